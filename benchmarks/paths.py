"""Paths and cross-validation against cold fits, and small fits against scikit-learn's.

    python -m benchmarks.paths [--quick]

Ratios of processor time in one process and one thread, compiled code warm; below 1 ours is less.
A path is compared with the fits of its points, each of a new problem and from the usual start, and
a search over folds with a plain loop that fits and scores the same models. Fits of the mean are
compared with Ridge and with LogisticRegression, which is given the loosest tol that brings its
objective within 1e-6 of the certified optimum.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold
from threadpoolctl import threadpool_limits

import sorel
from benchmarks.common import least_seconds, markdown, show_seconds
from sorel import ESRM, CVaR, SpectralRiskClassifier, SpectralRiskRegressor
from sorel.metrics import make_tail_scorer

TOL = 1e-6
# What the ratios of a section should not exceed.
BARS = {"path": 0.4, "search": 0.7, "fit": 1.5, "tail": 2.0}


@dataclass(frozen=True)
class Sizes:
    """How large the cases are."""

    path: tuple[int, int]
    points: int
    search: tuple[int, int]
    fits: tuple[tuple[int, int], ...]
    repeats: int


FULL = Sizes((20_000, 50), 50, (1000, 10), ((50, 3), (1000, 10), (10_000, 100), (100_000, 10)), 7)
QUICK = Sizes((3000, 40), 6, (300, 5), ((50, 3), (1000, 10)), 3)


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of ours, and of what it is compared with."""

    section: str
    case: str
    ours: float
    other: float

    @property
    def ratio(self) -> float:
        return self.ours / self.other


def make_data(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Heavy-tailed noise on a linear model."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X @ rng.standard_normal(d) + rng.standard_t(3, n)


def paths(sizes: Sizes) -> Iterator[Row]:
    """Paths over risks and over penalties."""
    (n, d), m = sizes.path, sizes.points
    X, y = make_data(n, d)
    labels = np.where(y > 0.0, 1.0, -1.0)
    strengths = np.geomspace(1.0, 1e-5, m)
    grids: dict[str, tuple[list[Any], Any]] = {
        f"{m} levels of CVaR": ([CVaR(alpha) for alpha in np.geomspace(0.9, 0.05, m)], [1.0 / n]),
        f"{m} levels of ESRM": ([ESRM(rho) for rho in np.geomspace(0.5, 10.0, m)], [1.0 / n]),
        f"{m} penalties, CVaR(0.2)": ([CVaR(0.2)], strengths),
        f"{m} penalties, ESRM(2)": ([ESRM(2.0)], strengths),
    }
    for name, (risks, l2) in grids.items():
        for loss, targets in (("squared", y), ("logistic", labels)):

            def warm(risks: Any = risks, l2: Any = l2, loss: str = loss, y: Any = targets) -> None:
                sorel.path(X, y, risks=risks, l2=l2, loss=loss, tol=TOL)

            def cold(risks: Any = risks, l2: Any = l2, loss: str = loss, y: Any = targets) -> None:
                for risk in risks:
                    for value in l2:
                        problem = sorel.Problem(
                            X, y, risk=risk, loss=loss, penalty=sorel.L2(value), fit_intercept=True
                        )
                        sorel.solve(problem, tol=TOL)

            times = least_seconds([warm, cold], sizes.repeats)
            yield Row("path", f"{n} x {d}, {loss}, {name}", *times)


def searches(sizes: Sizes) -> Iterator[Row]:
    """Cross-validation over 12 models and 5 folds."""
    n, d = sizes.search
    X, y = make_data(n, d)
    risks, l2s, folds = ["mean", "cvar:0.5", "cvar:0.2"], [1e-4, 1e-3, 1e-2, 1e-1], KFold(5)
    kinds = (
        ("regression", SpectralRiskRegressor, sorel.SpectralRiskRegressorCV, y),
        ("classification", SpectralRiskClassifier, sorel.SpectralRiskClassifierCV, y > 0.0),
    )
    for name, model, search, targets in kinds:

        def ours(search: Any = search, y: Any = targets) -> None:
            search(risks=risks, l2s=l2s, cv=folds, refit=False).fit(X, y)

        def loop(model: Any = model, y: Any = targets) -> None:
            scorer = make_tail_scorer("cvar:0.1", model().loss)
            for train, test in folds.split(X):
                for risk in risks:
                    for l2 in l2s:
                        scorer(model(risk=risk, l2=l2).fit(X[train], y[train]), X[test], y[test])

        times = least_seconds([ours, loop], sizes.repeats)
        yield Row("search", f"{n} x {d}, {name}, 12 models x 5 folds", *times)


def fits(sizes: Sizes) -> Iterator[Row]:
    """Single fits to the mean against scikit-learn's, and one to CVaR against Ridge."""
    for n, d in sizes.fits:
        X, y = make_data(n, d)
        repeats = (20 if n <= 1000 else 3) * sizes.repeats
        risks = ("mean", "cvar:0.5") if n <= 1000 else ("mean",)
        models = [SpectralRiskRegressor(risk=risk, tol=TOL) for risk in risks]
        # l2="auto" is 1 / n, and so are these: alpha and C belong to sums over the rows.
        tasks = [partial(model.fit, X, y) for model in (Ridge(alpha=1.0), *models)]
        ridge, *ours = least_seconds(tasks, repeats)
        for risk, seconds in zip(risks, ours, strict=True):
            section = "fit" if risk == "mean" else "tail"
            yield Row(section, f"{n} x {d}, {risk} against Ridge", seconds, ridge)
        labels = y > np.median(y) + 0.5
        pair = SpectralRiskClassifier("mean", tol=TOL), rival_classifier(X, labels)
        times = least_seconds([partial(model.fit, X, labels) for model in pair], repeats)
        yield Row("fit", f"{n} x {d}, mean against LogisticRegression", *times)


def rival_classifier(X: np.ndarray, labels: np.ndarray) -> LogisticRegression:
    """LogisticRegression with the loosest tol that comes within 1e-6 of the optimum."""
    problem = sorel.Problem(X, labels, risk="mean", loss="logistic", fit_intercept=True)
    optimum = sorel.solve(problem, tol=1e-9).objective
    for tol in 10.0 ** -np.arange(1.0, 9.0):
        model = LogisticRegression(C=1.0, tol=tol, max_iter=10_000).fit(X, labels)
        value = problem.objective(np.append(model.coef_[0], model.intercept_))
        if value - optimum <= TOL * optimum:
            break
    return LogisticRegression(C=1.0, tol=tol, max_iter=10_000)


def report(rows: list[Row]) -> str:
    """The table, with the bar of each section."""
    header = ["case", "ours", "compared with", "ratio", "bar"]
    lines = [
        [
            row.case,
            show_seconds(row.ours),
            show_seconds(row.other),
            f"{row.ratio:.2f}",
            f"{BARS[row.section]:g}",
        ]
        for row in rows
    ]
    return markdown(header, lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small cases, some seconds")
    sizes = QUICK if parser.parse_args(arguments).quick else FULL
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        rows = [row for section in (paths, searches, fits) for row in section(sizes)]
    print(report(rows))


if __name__ == "__main__":
    main()
