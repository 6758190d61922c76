"""Sparse solutions: ElasticNet against scikit-learn, and penalties under other risks.

One process, one thread, compiled code warm. Times are CPU seconds, the least of several runs, and
the two libraries take turns. sorel is asked for a certified relative gap of 1e-6. scikit-learn gets
the loosest `tol` among powers of ten at which its objective, evaluated by sorel, is that good.
Run as ``python -m benchmarks.elastic_net [--quick]``.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.linear_model import ElasticNet as Theirs

import sorel
from benchmarks.common import markdown, show_seconds
from sorel import Box, ElasticNet, NonNegative, Problem, Simplex

TOL = 1e-6
L1_RATIO = 0.9
BAR, GOAL = 3.0, 1.5

# Rows, columns, and the share of entries that are not 0.
SIZES = [(100, 20, 1.0), (1000, 100, 1.0), (5000, 200, 1.0), (1000, 1000, 1.0), (500, 3000, 1.0),
         (2000, 5000, 0.01)]  # fmt: skip
# l1, as shares of the value from which on all coefficients are 0.
SHARES = [0.3, 0.1, 0.03]

RISKS = ["cvar:0.1", "esrm:2"]
LOSSES = ["squared", "logistic"]


def make_data(n: int, d: int, density: float = 1.0) -> tuple[Any, np.ndarray]:
    """A tenth as many columns count as there are columns or rows; noise of half their size."""
    rng = np.random.default_rng(0)
    if density < 1.0:
        X: Any = scipy.sparse.random(n, d, density, format="csr", random_state=0)
        X.data = rng.standard_normal(len(X.data))
    else:
        X = rng.standard_normal((n, d))
    used = rng.choice(d, max(3, min(d, n) // 10), replace=False)
    w = np.zeros(d)
    w[used] = rng.standard_normal(len(used))
    y = X @ w
    return X, y + 0.5 * y.std() * rng.standard_normal(n) + 1.0


def strength(X: Any, y: np.ndarray, share: float) -> float:
    """scikit-learn's alpha at which l1 is this share of the value that leaves no coefficient."""
    return share * float(np.abs(X.T @ (y - y.mean())).max()) / len(y) / L1_RATIO


def least(actions: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Least CPU seconds of actions that take turns; long ones are not repeated as often."""
    best = [np.inf] * len(actions)
    begin = time.perf_counter()
    for done in range(repeats):
        for k, action in enumerate(actions):
            start = time.process_time()
            action()
            best[k] = min(best[k], time.process_time() - start)
        if done >= 2 and time.perf_counter() - begin > 10.0:
            break
    return best


def loosest_fit(problem: Problem, bound: float, alpha: float, X: Any, y: np.ndarray) -> Any:
    """scikit-learn's estimator with the loosest tol whose objective is within TOL of the bound."""
    model = Theirs(alpha=alpha, l1_ratio=L1_RATIO, max_iter=1_000_000)
    for digits in range(2, 13):
        model.set_params(tol=10.0**-digits).fit(X, y)
        value = problem.objective(np.append(model.coef_, model.intercept_))
        if value - bound <= TOL * abs(value):
            return model
    return None


def against_sklearn(
    sizes: list[tuple[int, int, float]], shares: list[float], repeats: int
) -> list[list[str]]:
    """A row for each problem: both times, their ratio, and what was found."""
    rows = []
    for n, d, density in sizes:
        X, y = make_data(n, d, density)
        for share in shares:
            alpha = strength(X, y, share)
            penalty = ElasticNet(l2=alpha * (1.0 - L1_RATIO), l1=alpha * L1_RATIO)

            def build(X: Any = X, y: np.ndarray = y, penalty: Any = penalty) -> Problem:
                return Problem(X, y, risk="mean", penalty=penalty, fit_intercept=True)

            def ours(build: Callable[[], Problem] = build) -> sorel.Result:
                return sorel.solve(build(), tol=TOL)

            problem, result = build(), ours()
            theirs = loosest_fit(problem, result.dual, alpha, X, y)
            actions = [ours] if theirs is None else [ours, lambda m=theirs, X=X, y=y: m.fit(X, y)]
            seconds = least(actions, repeats)
            name = f"{n} x {d}" + (f", {density:.0%} full" if density < 1.0 else "")
            rows.append(
                [
                    name,
                    f"{share:g}",
                    str(np.count_nonzero(result.w[:-1])),
                    show_seconds(seconds[0]),
                    "never" if theirs is None else show_seconds(seconds[1]),
                    "0" if theirs is None else f"{seconds[0] / seconds[1]:.2f}",
                    f"{result.relative_gap:.0e}",
                ]
            )
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def other_risks(n: int, d: int, repeats: int) -> list[list[str]]:
    """A row for each risk, loss and penalty."""
    rows = []
    X, y = make_data(n, d)
    for loss in LOSSES:
        targets = y if loss == "squared" else np.where(y > np.median(y), 1.0, -1.0)
        alpha = strength(X, targets, 0.1)
        l1, l2 = alpha * L1_RATIO, alpha * (1.0 - L1_RATIO)
        penalties = {
            "ElasticNet": ElasticNet(l2, l1),
            "NonNegative": NonNegative(l2, l1),
            "Box": Box(l2, -0.05, 0.05),
            "Simplex": Simplex(l2),
        }
        for risk in RISKS:
            for name, penalty in penalties.items():
                problem = Problem(
                    X, targets, risk=risk, loss=loss, penalty=penalty, fit_intercept=True
                )
                result = sorel.solve(problem, tol=TOL)
                seconds = least([lambda p=problem: sorel.solve(p, tol=TOL)], repeats)[0]
                coef = result.w[:-1]
                lower, upper = penalty.bounds(d) or (-np.inf, np.inf)
                moving = np.count_nonzero((coef != 0.0) & (coef != lower) & (coef != upper))
                rows.append(
                    [
                        f"{risk}, {loss}, {name}",
                        str(moving),
                        show_seconds(seconds),
                        f"{result.passes:.0f}",
                        f"{result.relative_gap:.0e}",
                    ]
                )
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def report(quick: bool) -> str:
    """Both tables, as Markdown."""
    sizes, shares = (SIZES[:2], SHARES[:1]) if quick else (SIZES, SHARES)
    rows = against_sklearn(sizes, shares, 3 if quick else 15)
    header = ["X", "l1", "nonzero", "sorel", "scikit-learn", "ratio", "gap"]
    worst = max(float(row[5]) for row in rows)
    n, d = (300, 100) if quick else (3000, 1000)
    others = other_risks(n, d, 1 if quick else 3)
    return "\n".join(
        [
            "## Mean, squared, against scikit-learn's ElasticNet\n",
            markdown(header, rows),
            f"\nworst ratio {worst:.2f}: bar {BAR:g} {'met' if worst <= BAR else 'missed'}, "
            f"goal {GOAL:g} {'met' if worst <= GOAL else 'missed'}",
            f"\n## Other risks and penalties, {n} x {d}\n",
            markdown(["problem", "away from rest", "sorel", "passes", "gap"], others),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small problems only, for a look")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(report(options.quick))


if __name__ == "__main__":
    main()
