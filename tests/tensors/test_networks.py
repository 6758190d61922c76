"""The benchmark of networks: what it trains must be what it says."""

from __future__ import annotations

import itertools
import json
import math
import re

import numpy as np
import pytest

# The submodule, because this folder has the package's name.
pytest.importorskip("torch.nn", reason="torch is an extra")
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


def test_heads_are_certified_and_better_on_the_training_samples():
    record = cells.run(cells.Cell("yacht", "mean", "mean", BATCH, RATE, BUDGET))
    for risk in cells.RISKS:
        head = record["heads"][risk]
        assert max(head["gap"]) <= 1e-6
        for seed in range(cells.SEEDS):
            assert head["train"][seed] < record["train"][risk][seed]


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


def test_cells_are_trained_once(tmp_path, capsys):
    plan = [cells.Cell("yacht", "batch", "cvar:0.1", 64, RATE, budget) for budget in (64, 128)]
    first = networks.compute(plan, tmp_path, jobs=1)
    assert "2 to train" in capsys.readouterr().out
    (tmp_path / f"{plan[0].name}.json").write_text(json.dumps({"kept": True}))
    second = networks.compute(plan, tmp_path, jobs=1)
    assert "0 to train" in capsys.readouterr().out
    assert second[plan[0]] == {"kept": True}
    assert second[plan[1]] == first[plan[1]]


def test_the_report_shows_the_better_rate_and_judges_the_bar():
    records = {}
    plan = networks.table_plan(cells.SETS, BUDGET, networks.RATES)
    for cell in (*plan, *networks.short_plan(cells.SETS, networks.RATES)):
        value = {"sorel": 0.8, "batch": 1.0}.get(cell.method, 2.0) + 10 * (cell.rate != 0.01)
        risks = dict.fromkeys(("mean", *cells.RISKS), [value] * 5)
        head = {"train": [1.0], "held_out": [1.0], "gap": [1e-7], "seconds": [0.1]}
        records[cell] = {
            "n": 100,
            "train": risks,
            "held_out": risks,
            "batch_risk": {
                risk: {str(b): [0.9 * value] * 5 for b in cells.BATCHES} for risk in cells.RISKS
            },
            "heads": dict.fromkeys(cells.RISKS, head),
        }
    sections = networks.Report(records, cells.SETS, BUDGET, networks.RATES).sections()
    judged = [line for line in sections["comparison"] if "met" in line or "missed" in line]
    assert len(judged) == 2
    assert all("-20%" in line and ": met" in line for line in judged)
    assert all("-10.0%" in line for line in sections["bias"][2:])
    assert all("| +100% | +100% | -20% | +100% |" in line for line in sections["short"][2:])
    for lines in sections.values():
        assert len({line.count("|") for line in lines}) == 1
    page = (networks.DOCS / "networks.md").read_text()
    for name in sections:
        assert page.count(f"<!-- {name}:start -->") == page.count(f"<!-- {name}:end -->") == 1
