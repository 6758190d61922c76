"""Passes of the solvers of the related work on the paper's 15 problems; for docs/rivals.md.

`python -m benchmarks.related_work` prints the table. Names of solvers may follow.
"""

from __future__ import annotations

import sys
import warnings

import sorel
from sorel.datasets import load_paper_dataset
from sorel.solvers.drago import default_smoothing, smoothing_gap

SOLVERS = ["apd", "pdhg", "admm", "stochastic_pd", "drago"]
PASSES = 20_000


def main(names: list[str]) -> None:
    """A line for each problem: passes to 1e-6, or the relative gap that is left."""
    print("| set | risk |", " | ".join(f"`{name}`" for name in names), "|")
    for name in ("yacht", "energy", "concrete", "kin8nm", "power"):
        X, y = load_paper_dataset(name)[:2]
        for risk in ("cvar:0.5", "esrm:2", "extremile:2.5"):
            problem = sorel.Problem(X, y, risk=risk, penalty=sorel.L2(1 / len(y)))
            cells = [cell(problem, solver) for solver in names]
            print(f"| {name} | {risk} |", " | ".join(cells), "|", flush=True)


def cell(problem: sorel.Problem, solver: str) -> str:
    """What a run has come to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sorel.solve(problem, solver, tol=1e-6, max_passes=PASSES, random_state=0)
    if result.converged:
        return f"{result.passes:.0f}"
    left = f"gap {result.relative_gap:.1e}"
    if solver != "drago":
        return left
    nu = default_smoothing(problem, problem.engine.point(problem.start()))
    return f"{left} (allowed {smoothing_gap(problem, nu) / abs(result.objective):.1e})"


if __name__ == "__main__":
    main(sys.argv[1:] or SOLVERS)
