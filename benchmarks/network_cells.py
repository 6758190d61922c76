"""One cell of the benchmark of networks: a method, trained on one set from five seeds at once.

The five networks are one batched model, so that a cell costs little more than one network. Seeds
differ in the initial network and in the draws; all methods start from the same five networks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sorel
from sorel.datasets import PAPER_DATASETS, load_paper_split
from sorel.risks import Risk, parse_risk
from sorel.torch import SpectralObjective, SpectralSampler

SETS = (*PAPER_DATASETS, "digits")
RISKS = ("cvar:0.02", "cvar:0.1", "esrm:2")
BATCHES = (32, 64, 256)
SEEDS = 5
HIDDEN = 32
# Strong convexity for the certificate of a head, with next to no effect on it.
HEAD_L2 = 1e-4
SMOOTHED_STEP = 10.0


@dataclass(frozen=True)
class Cell:
    """What is trained on what, how fast, and with how many sample gradients."""

    data: str
    method: str
    risk: str
    batch: int
    rate: float
    budget: int

    @property
    def name(self) -> str:
        risk = self.risk.replace(":", "")
        return f"{self.data}-{self.method}-{risk}-{self.batch}-{self.rate:g}-{self.budget}"


class SortedTable(SpectralObjective):
    """The worst case of the table in every round, instead of a step towards it."""

    @torch.no_grad()
    def step(self) -> None:
        if self.seen.any():
            density = np.empty(self.n)
            self._projector.worst_case(self.losses.numpy(), density)
            self.density.copy_(torch.from_numpy(density))


class SmoothedTable(SpectralObjective):
    """The worst case less a quadratic penalty: every step starts at the uniform weighting."""

    def step(self) -> None:
        self.density.fill_(1.0)
        super().step()


class LossWeighted(SpectralObjective):
    """Half of the draws in proportion to the losses of the table; they count as they are drawn."""

    @torch.no_grad()
    def step(self) -> None:
        if self.seen.any():
            self.density.copy_(self.losses / self.losses.mean())

    def importance(self, index: torch.Tensor) -> torch.Tensor:
        return torch.ones(index.shape, dtype=torch.float64)


class Samples:
    """Training and held-out samples of a set, as tensors."""

    def __init__(self, name: str) -> None:
        self.labels = name == "digits"
        if self.labels:
            X, y = load_digits(return_X_y=True)
            parts = train_test_split(X / 16.0, y, test_size=0.2, random_state=42, stratify=y)
        else:
            parts = load_paper_split(name)
        kind = torch.int64 if self.labels else torch.float32
        self.X, self.X_test = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
        self.y, self.y_test = (torch.tensor(part, dtype=kind) for part in parts[2:])
        self.n = len(self.y)
        self.outputs = 10 if self.labels else 1

    def losses(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Losses of outputs of shape (seeds, rows, outputs): half squares, or cross entropy."""
        if not self.labels:
            return 0.5 * (z.squeeze(-1) - y) ** 2
        target = y.expand(z.shape[:-1])
        flat = torch.nn.functional.cross_entropy(
            z.reshape(-1, self.outputs), target.reshape(-1), reduction="none"
        )
        return flat.reshape(target.shape)


class Networks:
    """Five perceptrons with two hidden layers, as one batched model."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.parameters: list[torch.Tensor] = []
        generators = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
        for before, after in ((inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, outputs)):
            reach = 1.0 / math.sqrt(before)
            for rows in (before, 1):
                drawn = [torch.rand(rows, after, generator=each) for each in generators]
                self.parameters.append((reach * (2.0 * torch.stack(drawn) - 1.0)).requires_grad_())

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the last layer sees of samples of shape (seeds, rows, inputs)."""
        w1, b1, w2, b2 = self.parameters[:4]
        hidden = torch.relu(torch.baddbmm(b1, x, w1))
        return torch.relu(torch.baddbmm(b2, hidden, w2))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.parameters[5], self.features(x), self.parameters[4])


def run(cell: Cell) -> dict[str, Any]:
    """Train, and return the risks of training and held-out losses of every seed."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    samples = Samples(cell.data)
    networks = Networks(samples.X.shape[1], samples.outputs)
    train(networks, samples, cell)
    record: dict[str, Any] = {"cell": asdict(cell), "n": samples.n}
    parts = (("train", samples.X, samples.y), ("held_out", samples.X_test, samples.y_test))
    with torch.no_grad():
        for name, X, y in parts:
            losses = samples.losses(networks(X.expand(SEEDS, -1, -1)), y).double().numpy()
            record[name] = {
                risk: [parse_risk(risk)(each) for each in losses] for risk in ("mean", *RISKS)
            }
            if name == "train" and cell.method == "mean":
                record["batch_risk"] = {
                    risk: {b: expected_batch_risks(losses, parse_risk(risk), b) for b in BATCHES}
                    for risk in RISKS
                }
        if cell.method == "mean":
            record["heads"] = {risk: certified_heads(networks, samples, risk) for risk in RISKS}
    record["seconds"] = time.perf_counter() - started
    return record


def train(networks: Networks, samples: Samples, cell: Cell) -> None:
    """Spend the budget with Adam and a learning rate that falls to 0 along a cosine."""
    batch = samples.n if cell.method == "full" else min(cell.batch, samples.n)
    adam = torch.optim.Adam(networks.parameters, lr=cell.rate, fused=True)
    risk = parse_risk(cell.risk)
    sigma = torch.tensor(risk.weights(batch), dtype=torch.float32)
    rounds = weighted_rounds if cell.method in TABLES else shuffled_rounds
    spent = 0
    planned = math.ceil(cell.budget / (samples.n // batch * batch))
    for index, factors, note in rounds(samples.n, batch, cell.method, risk, planned):
        seen = []
        for start in range(0, index.shape[1], batch):
            if spent >= cell.budget:
                return
            part = index[:, start : start + batch]
            losses = samples.losses(networks(samples.X[part]), samples.y[part])
            if factors is not None:
                value = (factors[:, start : start + batch] * losses).sum() / batch
            else:
                # The sum over seeds of the risks of their batches.
                value = (torch.sort(losses, dim=1).values * sigma).sum()
            adam.param_groups[0]["lr"] = (
                0.5 * cell.rate * (1.0 + math.cos(math.pi * spent / cell.budget))
            )
            adam.zero_grad(set_to_none=True)
            value.backward()
            adam.step()
            seen.append(losses.detach())
            spent += batch
        note(torch.cat(seen, dim=1))


Round = tuple[torch.Tensor, torch.Tensor | None, Any]


def shuffled_rounds(n: int, batch: int, method: str, risk: Risk, planned: int) -> Iterator[Round]:
    """Epochs of shuffled batches; an incomplete last one is left out."""
    generators = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
    while True:
        order = torch.stack([torch.randperm(n, generator=each) for each in generators])
        yield order[:, : n // batch * batch], None, lambda losses: None


TABLES = {
    "sorel": (SpectralObjective, {}),
    "planned": (SpectralObjective, {}),
    "weighted": (LossWeighted, {}),
    "shuffled": (SpectralObjective, {"uniform": 1.0}),
    "sorted": (SortedTable, {}),
    "smoothed": (SmoothedTable, {"step_size": SMOOTHED_STEP}),
}


def weighted_rounds(n: int, batch: int, method: str, risk: Risk, planned: int) -> Iterator[Round]:
    """Rounds of the sampler, with the factors of the losses.

    Within a round factors are fixed and the table is not read, so that both can be served for all
    batches of a round at once: the same as calling the objective batch by batch.
    """
    kind, settings = TABLES[method]
    if method == "planned":
        settings = {"planned_rounds": planned}
    objectives = [kind(risk, n, **settings) for _ in range(SEEDS)]
    samplers = [
        SpectralSampler(each, n // batch * batch, seed=seed) for seed, each in enumerate(objectives)
    ]
    while True:
        index = torch.tensor([list(sampler) for sampler in samplers])
        pairs = list(zip(objectives, index, strict=True))

        def note(losses: torch.Tensor, pairs: Any = pairs) -> None:
            for (objective, own), row in zip(pairs, losses, strict=True):
                objective.record(own, row)

        factors = torch.stack([objective.importance(own) for objective, own in pairs])
        yield index, factors.to(torch.float32), note


def expected_batch_risks(losses: np.ndarray, risk: Risk, batch: int) -> list[float]:
    """Expected risk of a batch that is drawn with replacement, for each row of losses.

    A batch has K of its losses among the smallest i of n, K binomial, and gives them the weight
    S(K / batch). So the expectation is again a spectral risk, with the Bernstein polynomial
    E S(K / batch) of S in place of S.
    """
    n = losses.shape[1]
    reach = np.arange(n + 1) / n
    counts = np.arange(batch + 1)
    steps = risk.cumulative(counts / batch)
    weights = np.diff([steps @ binom.pmf(counts, batch, u) for u in reach])
    return [float(np.sort(row) @ weights) for row in losses]


def certified_heads(networks: Networks, samples: Samples, risk: str) -> dict[str, list[float]]:
    """The last layer solved anew on frozen features, to a certified optimum, for each seed."""
    out: dict[str, list[float]] = {"train": [], "held_out": [], "gap": [], "seconds": []}
    seen, unseen = (
        networks.features(X.expand(SEEDS, -1, -1)).double().numpy()
        for X in (samples.X, samples.X_test)
    )
    y, y_test = samples.y.numpy(), samples.y_test.numpy()
    loss = "multinomial" if samples.labels else "squared"
    for features, held_out in zip(seen, unseen, strict=True):
        problem, other = (
            sorel.Problem(
                X, target, risk=risk, loss=loss, penalty=sorel.L2(HEAD_L2), fit_intercept=True
            )
            for X, target in ((features, y), (held_out, y_test))
        )
        started = time.perf_counter()
        result = sorel.solve(problem, tol=1e-6)
        out["seconds"].append(time.perf_counter() - started)
        out["gap"].append(result.relative_gap)
        out["train"].append(parse_risk(risk)(problem.losses(result.w)))
        out["held_out"].append(parse_risk(risk)(other.losses(result.w)))
    return out
