"""Classification: sorel against scikit-learn's LogisticRegression, for two classes and for many.

One process, one thread, compiled code warm, seconds of processor time (the least of several runs).
The problem is the same: mean loss, L2 penalty 1/n, intercepts that are not penalised. sorel is
asked for a certified relative gap of 1e-6. scikit-learn certifies nothing, so each of its solvers
gets the loosest `tol` that brings its objective within 1e-6 of the optimum, as if a user had known
it. Then the same data under other risks, where there is no rival. Run as
``python -m benchmarks.classes [--quick]``.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import sorel
from benchmarks.common import least_seconds, markdown, show_seconds

TOL, EXACT = 1e-6, 1e-9
TOLERANCES = 1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 1e-7, 1e-8
RISKS = "cvar:0.1", "esrm:2"

# A matrix of more parameters than this takes `newton` minutes for several classes.
MATRIX_SIZE = 1100

Data = tuple[np.ndarray, np.ndarray]


class Case(NamedTuple):
    """Rows, columns and classes; none stand for the handwritten digits of scikit-learn."""

    rows: int = 0
    columns: int = 0
    classes: int = 0

    def data(self) -> Data:
        """Columns of unit size, and labels that a linear model explains in part."""
        if self.rows == 0:
            X, y = load_digits(return_X_y=True)
            return X / 16.0, y
        rng = np.random.default_rng(0)
        X = rng.standard_normal((self.rows, self.columns))
        margins = X @ rng.standard_normal((self.columns, self.classes))
        margins *= 2.0 / math.sqrt(self.columns)
        return X, np.argmax(margins + rng.gumbel(size=margins.shape), axis=1)

    def __str__(self) -> str:
        if self.rows == 0:
            return "digits, 10 classes"
        return f"{self.rows} x {self.columns}, {self.classes} classes"


CASES = [
    Case(1000, 100, 5),
    Case(1000, 1000, 5),
    Case(10_000, 20, 3),
    Case(),
    Case(5000, 50, 20),
    Case(10_000, 50, 100),
    Case(10_000, 100, 2),
    Case(100_000, 10, 2),
    Case(1000, 500, 2),
]
QUICK = [Case(300, 20, 4), Case(500, 10, 2)]


def build(X: np.ndarray, y: np.ndarray, risk: str = "mean") -> sorel.Problem:
    """The problem of LogisticRegression(C=1), under any risk."""
    loss = "logistic" if y.max() == 1 else "multinomial"
    return sorel.Problem(
        X, y, risk=risk, loss=loss, penalty=sorel.L2(1.0 / len(y)), fit_intercept=True
    )


def run_solver(X: np.ndarray, y: np.ndarray, solver: str, risk: str = "mean") -> sorel.Result:
    """A certified solution, the making of the problem included."""
    return sorel.solve(build(X, y, risk), solver=solver, tol=TOL)


def solver_seconds(
    X: np.ndarray, y: np.ndarray, solver: str, repeats: int, risk: str = "mean"
) -> float:
    """What that takes; infinite where it is not reached."""
    if not run_solver(X, y, solver, risk).converged:
        return math.inf
    return least_seconds([partial(run_solver, X, y, solver, risk)], repeats)[0]


def rival_of(
    X: np.ndarray, y: np.ndarray, solver: str, optimum: float
) -> LogisticRegression | None:
    """scikit-learn's solver at the loosest `tol` that reaches the optimum."""
    problem = build(X, y)
    for tol in TOLERANCES:
        model = LogisticRegression(C=1.0, tol=tol, solver=solver, max_iter=10_000)
        model.fit(X, y)
        w = np.vstack([model.coef_.T, model.intercept_])
        value = problem.objective(w if problem.engine.n_outputs > 1 else w[:, 0])
        if value <= optimum * (1.0 + TOL):
            return model
    return None


def compare(case: Case, repeats: int) -> tuple[list[str], float]:
    """A row of the table against scikit-learn, and the ratio of times."""
    X, y = case.data()
    result = sorel.solve(build(X, y), tol=EXACT)
    size = result.w.size
    solvers = ["auto", "newton_cg", *(["newton"] if size <= MATRIX_SIZE else [])]
    rivals = ["lbfgs", *(["newton-cholesky"] if case.classes == 2 else [])]
    models = {name: rival_of(X, y, name, result.dual) for name in rivals}
    models = {name: model for name, model in models.items() if model is not None}
    fits: dict[str, Callable[[], Any]] = {
        name: lambda model=model: model.fit(X, y) for name, model in models.items()
    }
    # The first run of each compiles what is missing.
    fits |= {
        name: partial(run_solver, X, y, name)
        for name in solvers
        if run_solver(X, y, name).converged
    }
    times = dict.fromkeys([*rivals, *solvers], math.inf)
    times |= dict(zip(fits, least_seconds(list(fits.values()), repeats), strict=True))
    best = min(rivals, key=lambda name: times[name])
    ratio = times["auto"] / times[best]
    rival = f"{show_seconds(times[best])} ({best}, {models[best].tol:g})" if models else "missed"
    return [
        str(case),
        rival,
        show_seconds(times["auto"]),
        f"{ratio:.2f}",
        show_seconds(times["newton_cg"]),
        show_seconds(times["newton"]) if "newton" in times else "-",
    ], ratio


def under_risk(case: Case, risk: str, repeats: int) -> list[str]:
    """A row of the table of other risks."""
    X, y = case.data()
    solver_seconds(X, y, "auto", 1, risk)
    return [
        str(case),
        risk,
        *(
            show_seconds(solver_seconds(X, y, name, repeats, risk))
            for name in ("auto", "newton_cg")
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small cases, once each")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    cases, repeats = (QUICK, 1) if options.quick else (CASES, 5)
    rows, ratios = [], {}
    for case in cases:
        row, ratios[case] = compare(case, repeats)
        rows.append(row)
    header = ["data", "LogisticRegression (solver, tol)", "auto", "ratio", "newton_cg", "newton"]
    print(markdown(header, rows), end="\n\n")
    rows = [under_risk(case, risk, min(repeats, 2)) for case in cases for risk in RISKS]
    print(markdown(["data", "risk", "auto", "newton_cg"], rows), end="\n\n")
    bars = []
    for name, wanted in (("two classes", True), ("several classes", False)):
        worst = max(ratio for case, ratio in ratios.items() if (case.classes == 2) == wanted)
        bars.append([f"{name}, worst ratio", "<= 1.5", f"{worst:.2f}", _verdict(worst <= 1.5)])
    print(markdown(["", "bar", "measured", "holds"], bars))
    return 0


def _verdict(holds: bool) -> str:
    return "yes" if holds else "no"


if __name__ == "__main__":
    raise SystemExit(main())
