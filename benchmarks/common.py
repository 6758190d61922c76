"""What the benchmarks share: repeated timings, the rival, and Markdown.

Nothing here sets a number of threads. A script that wants one sets the environment before it
imports this module, since NumPy reads it when it is first imported.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

import sorel


@dataclass(frozen=True)
class Budget:
    """How long and how often to run."""

    repeats: int
    seconds: float

    def repeat(self, action: Callable[[], float]) -> float:
        """Median of the durations that `action` returns; long ones are not repeated as often."""
        return self.take_turns({"": action})[""]

    def take_turns(self, actions: dict[str, Callable[[], float]]) -> dict[str, float]:
        """The same for several actions in turn: a slow moment of the machine is nobody's alone."""
        durations: dict[str, list[float]] = {name: [] for name in actions}
        while waiting := [name for name, times in durations.items() if self._wants_more(times)]:
            for name in waiting:
                durations[name].append(actions[name]())
        return {name: median(times) for name, times in durations.items()}

    def _wants_more(self, times: list[float]) -> bool:
        if not times:
            return True
        # A busy machine interrupts a run for milliseconds: short runs need a larger sample.
        few, short = len(times) < self.repeats, len(times) < 5 * self.repeats
        return (few and sum(times) < 0.2 * self.seconds) or (short and sum(times) < 0.1)


def least_seconds(actions: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """The least processor time of each action, in turn: a slow moment is nobody's alone.

    All are run once before, to warm up.
    """
    for action in actions:
        action()
    best = [math.inf] * len(actions)
    for _ in range(repeats):
        for place, action in enumerate(actions):
            begin = time.process_time()
            action()
            best[place] = min(best[place], time.process_time() - begin)
    return best


class Stop(Exception):
    """Ends scipy's minimiser from inside the objective."""


class SortedObjective:
    """The nonsmooth objective as a NumPy user writes it: sort, weigh, differentiate.

    The loss is "squared", or "logistic" for labels -1 and 1. X may be sparse.
    """

    def __init__(
        self, X: np.ndarray, y: np.ndarray, risk: sorel.risks.Risk, loss: str = "squared"
    ) -> None:
        self.X, self.y, self.sigma = X, y, risk.weights(len(y))
        self.loss = {"squared": self._squared, "logistic": self._logistic}[loss]
        self.mu = 1.0 / len(y)

    def __call__(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        losses, slopes = self.loss(self.X @ w)
        lam = np.empty_like(losses)
        lam[np.argsort(losses)] = self.sigma
        value = lam @ losses + 0.5 * self.mu * (w @ w)
        return float(value), self.X.T @ (lam * slopes) + self.mu * w

    def _squared(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual = margins - self.y
        return 0.5 * residual**2, residual

    def _logistic(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        signed = self.y * margins
        return np.logaddexp(0.0, -signed), -self.y * expit(-signed)

    def lbfgs(self, on_value: Callable[[float], None]) -> None:
        """Run L-BFGS-B from 0 until it stops or `on_value` raises."""

        def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(w)
            on_value(value)
            return value, gradient

        options = {"maxiter": 10**6, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-14}
        start = np.zeros(self.X.shape[1])
        with contextlib.suppress(Stop):
            minimize(objective, start, jac=True, method="L-BFGS-B", options=options)


def duration(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a table that is Markdown and reads well as plain text."""
    widths = [max(len(row[j]) for row in [header, *rows]) for j in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, ["-" * width for width in widths], *rows]
    ]
    return "\n".join(lines)


def replace_between(path: Path, markers: tuple[str, str], text: str) -> None:
    """Put a text between two markers of a file, each on a line of its own."""
    whole = path.read_text(encoding="utf-8")
    start, end = markers
    if whole.count(start) != 1 or whole.count(end) != 1:
        raise SystemExit(f"{path} must contain each of the markers {start} and {end} once")
    before, _, rest = whole.partition(start)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")


def show_seconds(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "never"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
