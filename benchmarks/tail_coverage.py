"""How often the intervals of ``sorel.metrics.tail_difference`` hold the true difference.

Two models predict on n held-out rows, many times over: one is off by a shift and the other has
wrong slopes ("different"), or both are off by noise of the same size ("equal": the share of
intervals without 0 is then the size of the test). The true risks come from 16 million rows. Beside
the interval of the package stand those that were not chosen, from the same resamples.
Run as ``python -m benchmarks.tail_coverage [--update-docs]``; half an hour on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common import markdown, replace_between
from sorel import parse_risk
from sorel.estimators.resampling import Resamples, resample
from sorel.risks import Risk

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "tails.md"
MARKERS = ("<!-- coverage:start -->", "<!-- coverage:end -->")
SIZES = (100, 300, 1000, 2000)
RISKS = ("cvar:0.1", "cvar:0.05")
LEVEL = 0.95
NORMAL_QUANTILE = 1.959964
RESAMPLES = 500
SIGNS = np.array([1.0, -1.0])
NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "t(3)": lambda rng, n: rng.standard_t(3, size=n),
    "lognormal": lambda rng, n: rng.lognormal(size=n) - np.exp(0.5),
}
LOSSES = {"squared": lambda r: 0.5 * r**2, "absolute": np.abs}
CASES = (("normal", "squared"), ("t(3)", "absolute"), ("lognormal", "squared"), ("t(3)", "squared"))
METHODS = ("symmetric t (chosen)", "equal-tailed t", "normal", "percentile", "basic")


def draw(case: tuple[str, str], equal: bool, n: int, rng: np.random.Generator) -> np.ndarray:
    """Losses of the two models on n rows."""
    noise, loss = case
    x, error = rng.normal(size=n), NOISES[noise](rng, n)
    off = 0.5 * rng.normal(size=(2, n)) if equal else np.array([np.full(n, 0.3), 0.3 * x])
    return np.asarray(LOSSES[loss](error - off))


def true_difference(case: tuple[str, str], equal: bool, risk: Risk) -> float:
    if equal:
        return 0.0
    rng = np.random.default_rng(99)
    parts = [draw(case, equal, 2_000_000, rng) for _ in range(8)]
    return float(np.mean([risk(a) - risk(b) for a, b in parts]))


def intervals(found: Resamples) -> Iterator[tuple[float, float]]:
    """The intervals of METHODS."""
    estimate, error = found.estimate, found.error
    share = np.array([0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL])
    yield found.interval(LEVEL)
    with np.errstate(over="ignore"):
        ratios = (found.estimates - estimate) / np.maximum(found.errors, np.finfo(float).tiny)
    low, high = np.quantile(ratios, share)
    yield estimate - high * error, estimate - low * error
    yield estimate - NORMAL_QUANTILE * error, estimate + NORMAL_QUANTILE * error
    low, high = np.quantile(found.estimates, share)
    yield low, high
    yield 2.0 * estimate - high, 2.0 * estimate - low


def coverage(
    case: tuple[str, str], equal: bool, spec: str, n: int, repetitions: int, truth: float
) -> np.ndarray:
    """Shares of the intervals of METHODS that hold the true difference."""
    rng, risk = np.random.default_rng(n), parse_risk(spec)
    held = np.zeros(len(METHODS))
    for _ in range(repetitions):
        found = resample(risk, draw(case, equal, n, rng), SIGNS, None, RESAMPLES, rng)
        held += [low <= truth <= high for low, high in intervals(found)]
    return held / repetitions


def summary(rows: list[list[str]], sizes: list[int]) -> str:
    """Coverage of the chosen interval, and of the normal and the percentile interval, by n."""
    cells: dict[tuple[str, ...], dict[int, str]] = {}
    for *setting, n, chosen, _, normal, percentile, _ in rows:
        cells.setdefault(tuple(setting), {})[int(n)] = f"{chosen} ({normal}, {percentile})"
    header = ["errors, loss", "models", "risk", *(f"n = {n}" for n in sizes)]
    return markdown(
        header, [[*setting, *map(found.get, sizes)] for setting, found in cells.items()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--update-docs", action="store_true")
    options = parser.parse_args()
    error = 100.0 * (LEVEL * (1.0 - LEVEL) / options.repetitions) ** 0.5
    print(f"Coverage of {100 * LEVEL:g} % intervals, in %, known to {error:.1f}:")
    print(f"{options.repetitions} repetitions, {RESAMPLES} resamples each")
    print("errors, loss", "models", "risk", "n", *METHODS, sep=" | ")
    rows: list[list[str]] = []
    for case, equal, spec in product(CASES, (False, True), RISKS):
        truth = true_difference(case, equal, parse_risk(spec))
        for n in options.sizes:
            found = coverage(case, equal, spec, n, options.repetitions, truth)
            row = [f"{case[0]}, {case[1]}", "equal" if equal else "different", spec, str(n)]
            rows.append([*row, *(f"{100 * share:.0f}" for share in found)])
            print(*rows[-1], sep=" | ", flush=True)
    table = summary(rows, options.sizes)
    print(table)
    if options.update_docs:
        replace_between(PAGE, MARKERS, table)


if __name__ == "__main__":
    main()
