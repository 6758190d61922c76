"""Some hundred columns and not many more rows: `auto` against L-BFGS on the sorted losses.

One process, one thread, compiled code warm, seconds of processor time (the least of several runs,
which take turns). sorel is asked for a certified relative gap of 1e-6; L-BFGS, which certifies
nothing, is cut at the evaluation whose objective is within 1e-6 of the optimum. Under CVaR it comes
to rest at a kink before that. Run as ``python -m benchmarks.columns [--quick]``.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import sorel
from benchmarks.common import SortedObjective, Stop, markdown, show_seconds
from sorel import ESRM, L2, CVaR, Extremile

TOL, EXACT = 1e-6, 1e-8
BAR = 1.5
SIZES = [(2000, 500), (2000, 1000), (5000, 1000)]
QUICK = [(300, 150)]
RISKS = [CVaR(0.5), ESRM(2.0), Extremile(2.5)]

# Evaluations after which L-BFGS is taken to rest.
MOST_EVALUATIONS = 1000


def make_data(n: int, d: int, loss: str) -> tuple[np.ndarray, np.ndarray]:
    """Normal columns; a linear model explains half of the targets, or the labels in part."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    margins = X @ rng.standard_normal(d)
    if loss == "squared":
        return X, margins + rng.standard_normal(n)
    margins *= 2.0 / math.sqrt(d)
    return X, np.where(margins + rng.logistic(size=n) > 0.0, 1.0, -1.0)


def seconds(action: Callable[[], Any]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def run_lbfgs(objective: SortedObjective, goal: float) -> tuple[int, bool]:
    """Evaluations until the objective is at the goal, and whether it got there."""
    count, reached = 0, False

    def note(value: float) -> None:
        nonlocal count, reached
        count += 1
        reached = value <= goal
        if reached or count == MOST_EVALUATIONS:
            raise Stop

    objective.lbfgs(note)
    return count, reached


def compare(n: int, d: int, loss: str, risk: Any, repeats: int) -> tuple[list[str], float]:
    """A row of the table, and the ratio of times: 0 where L-BFGS does not arrive."""
    X, y = make_data(n, d, loss)

    def build() -> sorel.Problem:
        return sorel.Problem(X, y, risk=risk, loss=loss, penalty=L2(1.0 / n))

    # Not by `auto`, which is what is measured.
    optimum = sorel.solve(build(), "newton_cg", tol=EXACT, max_passes=10_000).dual
    goal = optimum + TOL * abs(optimum)
    objective = SortedObjective(X, y, risk, loss)
    evaluations, reached = run_lbfgs(objective, goal)
    result = sorel.solve(build(), tol=TOL)
    ours = theirs = math.inf
    for _ in range(repeats):
        problem = build()
        ours = min(ours, seconds(lambda problem=problem: sorel.solve(problem, tol=TOL)))
        if reached:
            theirs = min(theirs, seconds(lambda: run_lbfgs(objective, goal)))
    ours = ours if result.converged else math.inf
    ratio = ours / theirs if reached else 0.0
    return [
        f"{n} x {d}, {loss}",
        repr(risk),
        f"{show_seconds(theirs)} ({evaluations})",
        f"{show_seconds(ours)} ({result.passes:.0f})",
        f"{ratio:.2f}" if reached else "only ours",
    ], ratio


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small case, once")
    options = parser.parse_args(arguments)
    sizes, repeats = (QUICK, 1) if options.quick else (SIZES, 9)
    with warnings.catch_warnings():
        # A missed target is an entry of the table.
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        found = [
            compare(n, d, loss, risk, repeats)
            for n, d in sizes
            for loss in ("squared", "logistic")
            for risk in RISKS
        ]
    header = ["data", "risk", "L-BFGS (evaluations)", "auto (passes)", "ratio"]
    print(markdown(header, [row for row, _ in found]), end="\n\n")
    worst = max(ratio for _, ratio in found)
    holds = "yes" if worst <= BAR else "no"
    bars = [["worst ratio", f"<= {BAR:g}", f"{worst:.2f}", holds]]
    print(markdown(["", "bar", "measured", "holds"], bars))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
