"""Random problems for the solvers of the related work: every part that they may be given.

`python tests/rivals.py 200` solves so many, with each of the solvers that accept them, and prints
those that were not certified. `python tests/rivals.py paper` prints the passes on the paper's 15
problems. Names of solvers may follow.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import scipy.sparse
from helpers import RISKS, make_data
from own_penalties import GroupLasso

import sorel
from sorel.datasets import load_paper_dataset
from sorel.losses import Huber
from sorel.solvers.drago import default_smoothing, smoothing_gap

RIVALS = ["apd", "pdhg", "admm", "drago", "stochastic_pd"]
LOSSES = ["squared", "huber", "logistic", "squared_hinge", "linear", "multinomial", "poisson"]
PASSES = 20_000


def random_problem(seed: int) -> sorel.Problem:
    """A problem of 20 to 120 rows whose parts are drawn from all that there are."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(20, 121)), int(rng.integers(1, 7))
    loss = LOSSES[seed % len(LOSSES)]
    X, y = make_data("squared" if loss == "linear" else loss, n, d, seed)
    X = X * 10.0 ** rng.uniform(-0.5, 0.5, d)
    l2 = float(10.0 ** rng.uniform(-2, 0))
    penalties = [
        sorel.L2(l2),
        sorel.ElasticNet(l2, 0.1),
        sorel.NonNegative(l2),
        sorel.Box(l2, -0.3, 0.4),
        sorel.Simplex(l2),
        GroupLasso(l2, 0.1, np.zeros(d, int)),
    ]
    weight = rng.uniform(0.2, 2.0, n) * (rng.random(n) > 0.1) if rng.random() < 0.4 else None
    risk = list(RISKS.values())[int(rng.integers(len(RISKS)))]
    return sorel.Problem(
        scipy.sparse.csr_array(X * (np.abs(X) > 0.3)) if rng.random() < 0.3 else X,
        y,
        risk=risk,
        loss=Huber(0.7) if loss == "huber" else loss,
        penalty=penalties[int(rng.integers(len(penalties)))],
        # Linear losses have no minimum in an intercept.
        fit_intercept=bool(rng.random() < 0.5) and loss != "linear",
        sample_weight=weight,
    )


def attempt(problem: sorel.Problem, solver: str) -> sorel.Result | None:
    """The result, or None where the solver refuses."""
    try:
        sorel.solvers.SOLVERS[solver]().check(problem)
    except sorel.solvers.UnsupportedProblemError:
        return None
    return _quietly(problem, solver, level(problem) if solver == "drago" else 1e-6)


def _quietly(problem: sorel.Problem, solver: str, tol: float) -> sorel.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorel.solve(problem, solver, tol=tol, max_passes=PASSES, random_state=0)


def level(problem: sorel.Problem) -> float:
    """The relative gap that the smoothing of a `drago` without settings allows."""
    optimum = sorel.solve(problem, "newton", tol=1e-6).objective
    nu = default_smoothing(problem, problem.engine.point(problem.start()))
    return max(1e-6, smoothing_gap(problem, nu) / abs(optimum))


def paper(names: list[str]) -> None:
    """A line for each problem of the paper: passes to 1e-6, or the relative gap that is left."""
    print("| set | risk |", " | ".join(f"`{name}`" for name in names), "|")
    for name in ("yacht", "energy", "concrete", "kin8nm", "power"):
        X, y = load_paper_dataset(name)[:2]
        for risk in ("cvar:0.5", "esrm:2", "extremile:2.5"):
            problem = sorel.Problem(X, y, risk=risk, penalty=sorel.L2(1 / len(y)))
            cells = []
            for solver in names:
                result = _quietly(problem, solver, 1e-6)
                done = f"{result.passes:.0f}"
                cells.append(done if result.converged else f"gap {result.relative_gap:.1e}")
                if solver == "drago" and not result.converged:
                    cells[-1] += f" (allowed {level(problem):.1e})"
            print(f"| {name} | {risk} |", " | ".join(cells), "|", flush=True)


def main(count: int, names: list[str]) -> None:
    for name in names:
        solved = refused = 0
        passes = []
        for seed in range(count):
            problem = random_problem(seed)
            result = attempt(problem, name)
            if result is None:
                refused += 1
                continue
            passes.append(result.passes)
            if result.converged:
                solved += 1
                continue
            parts = (problem.loss.name, problem.risk, problem.penalty, problem.fit_intercept)
            print(name, seed, problem.n_samples, *parts, problem.sample_weight is not None)
            print("   ", result.status)
        print(
            f"{name}: {solved} of {count - refused} certified, {refused} refused, "
            f"median {np.median(passes):.0f} passes, most {max(passes):.0f}"
        )


if __name__ == "__main__":
    what, chosen = (sys.argv[1:2] or ["200"])[0], sys.argv[2:] or RIVALS
    if what == "paper":
        paper(chosen)
    else:
        main(int(what), chosen)
