"""The benchmark of networks: what it trains must be what it says."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import sorel
from sorel import ESRM, CVaR, Max
from sorel.torch import IndexedDataset, SpectralObjective, SpectralRisk, SpectralSampler

# The benchmarks are a folder of the repository, not part of the installed package.
cells = pytest.importorskip("benchmarks.network_cells", reason="not installed")
networks = pytest.importorskip("benchmarks.networks", reason="not installed")

RATE, BUDGET, BATCH = 0.01, 1000, 64


@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(2.0), Max()], ids=repr)
def test_expected_risk_of_a_batch(risk):
    losses = np.array([[0.5, 3.0, 1.0, 7.0]])
    draws = itertools.product(losses[0], repeat=3)
    expected = np.mean([risk(np.array(draw)) for draw in draws])
    assert cells.expected_batch_risks(losses, risk, 3)[0] == pytest.approx(expected, rel=1e-12)


def single(batched: object, seed: int) -> torch.nn.Module:
    """One network of the batched model."""
    layers = []
    for weight, bias in zip(batched.parameters[::2], batched.parameters[1::2], strict=True):
        layer = torch.nn.Linear(*weight.shape[1:])
        layer.weight.data = weight[seed].detach().T.clone()
        layer.bias.data = bias[seed, 0].detach().clone()
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def adam_steps(net: torch.nn.Module, batches: object) -> None:
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    spent = 0
    for value in batches:
        adam.param_groups[0]["lr"] = 0.5 * RATE * (1 + math.cos(math.pi * spent / BUDGET))
        adam.zero_grad()
        value.backward()
        adam.step()
        spent += BATCH
        if spent >= BUDGET:
            return


@pytest.mark.parametrize("method", ["sorel", "shuffled", "batch", "mean"])
def test_a_batched_cell_is_an_ordinary_training_loop(method):
    samples = cells.Samples("yacht")
    risk = "mean" if method == "mean" else "cvar:0.1"
    start = cells.Networks(samples.X.shape[1], 1)
    net = single(start, 2)
    cells.train(start, samples, cells.Cell("yacht", method, risk, BATCH, RATE, BUDGET))
    rows = samples.n // BATCH * BATCH

    def weighted():
        settings = {"uniform": 1.0} if method == "shuffled" else {}
        objective = SpectralObjective(risk, samples.n, **settings)
        sampler = SpectralSampler(objective, rows, seed=2)
        data = IndexedDataset(TensorDataset(samples.X, samples.y))
        while True:
            for index, (x, y) in DataLoader(data, batch_size=BATCH, sampler=sampler):
                yield objective(index, 0.5 * (net(x).squeeze(1) - y) ** 2)

    def shuffled():
        generator = torch.Generator().manual_seed(2)
        criterion = SpectralRisk(risk)
        while True:
            for part in torch.randperm(samples.n, generator=generator)[:rows].split(BATCH):
                yield criterion(0.5 * (net(samples.X[part]).squeeze(1) - samples.y[part]) ** 2)

    adam_steps(net, weighted() if method in cells.TABLES else shuffled())
    with torch.no_grad():
        batched = start(samples.X.expand(cells.SEEDS, -1, -1))[2]
        torch.testing.assert_close(batched, net(samples.X), rtol=1e-3, atol=1e-4)


def test_the_recipe_of_the_page_gives_a_head_for_class_labels():
    page = (networks.DOCS / "networks.md").read_text()
    (recipe,) = (part for part in re.findall(r"```python\n(.*?)```", page, re.S) if "head." in part)
    torch.manual_seed(0)
    X, y = torch.randn(90, 4), torch.randint(0, 3, (90,))
    body = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU())
    head = torch.nn.Linear(6, 3)

    def tail() -> float:
        losses = torch.nn.functional.cross_entropy(head(body(X)), y, reduction="none")
        return CVaR(0.1)(losses.detach().numpy())

    before = tail()
    names = {"sorel": sorel, "CVaR": CVaR, "torch": torch, "body": body, "head": head}
    exec(recipe, {**names, "X": X, "y": y}, out := {})
    assert out["result"].converged
    assert tail() == pytest.approx(CVaR(0.1)(out["problem"].losses(out["result"].w)), rel=1e-5)
    assert tail() < before
