"""Quantile regression and portfolios: sorel against linear programs and conic solvers.

One process, one thread, compiled code warm. Every method is measured from outside: its objective is
evaluated in plain NumPy, and `excess` is how far it lies above the best one found, relative to it.
sorel is asked for certified relative gaps of 1e-6 and of 1e-9, the others keep their own
tolerances; the bars compare them with 1e-9. Where others are out of their range, the unit is one
product X @ w. Run as ``python -m benchmarks.linear [--quick]``; what is not installed is left out.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import sorel
from benchmarks.common import markdown, show_seconds
from sorel import ESRM, CVaR, Deviation, Extremile, QuantileRegressor, SpectralRiskPortfolio

LEVEL, ALPHA = 0.9, 0.05
# What sorel is asked for, and a gap that leaves no more error than the others do.
TOL, TIGHT = 1e-6, 1e-9


def installed(*names: str) -> bool:
    """Whether all of these packages are there."""
    return all(importlib.util.find_spec(name) is not None for name in names)


def timed(action: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Median of the seconds that it takes, and the last result."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - begin)
    return median(seconds), result


def product_seconds(X: np.ndarray) -> float:
    """Seconds of one X @ w."""
    w = np.full(X.shape[1], 1.0 / X.shape[1])
    return timed(lambda: X @ w, 7)[0]


def regression_data(n: int, d: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Rows with heavy-tailed errors whose spread depends on the rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X @ rng.standard_normal(d) + (1.0 + 0.3 * np.abs(X[:, 0])) * rng.standard_t(4, n)


def returns(n: int, d: int) -> np.ndarray:
    """Daily returns of d assets that share five factors, with heavy tails."""
    rng = np.random.default_rng(0)
    loadings = 0.5 * rng.standard_normal((5, d))
    drift = 5e-4 + 3e-4 * rng.standard_normal(d)
    R = np.empty((n, d))
    for start in range(0, n, 20_000):
        rows = R[start : start + 20_000]
        rows[:] = rng.standard_t(4, size=rows.shape)
        rows += rng.standard_normal((len(rows), 5)) @ loadings
        rows *= 0.01
        rows += drift
    return R


def pinball(X: np.ndarray, y: np.ndarray, coef: np.ndarray, level: float) -> float:
    """Mean pinball loss with the best intercept, in plain NumPy."""
    residual = y - X @ coef
    residual -= np.quantile(residual, level, method="inverted_cdf")
    return float(np.mean(np.maximum(level * residual, (level - 1.0) * residual)))


def indicator_data(n: int, levels: list[int], numeric: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors in full one-hot code, with a level that is all others, and rounded targets."""
    rng = np.random.default_rng(0)
    blocks = [np.eye(k)[rng.choice(k, n, p=rng.dirichlet(np.ones(k)))] for k in levels]
    X = np.hstack([*blocks, rng.standard_normal((n, numeric))])
    y = X @ rng.standard_normal(X.shape[1]) + rng.standard_t(4, n)
    return X, np.round(y, 1)


# Rows, levels of each factor, numeric columns: one factor, some, and a table like Ames's.
INDICATORS = {
    "1000 x 50": (1_000, [50], 0),
    "5000 x 102": (5_000, [100], 2),
    "5000 x 260": (5_000, [5, 10, 20, 40, 60, 125], 0),
    "2930 x 257": (
        2_930,
        [25, 16, 15, 10, 10, 8, 8, 7, 7, *[6] * 5, *[5] * 8, *[4] * 6, *[3] * 5],
        42,
    ),
}


def highs_quantile(X: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """Coefficients from the textbook linear program of n rows, sparse."""
    import scipy.sparse
    from scipy.optimize import linprog

    n, d = X.shape
    eye = scipy.sparse.eye_array(n)
    A = scipy.sparse.hstack([X, np.ones((n, 1)), eye, -eye], format="csc")
    cost = np.r_[np.zeros(d + 1), np.full(n, level / n), np.full(n, (1.0 - level) / n)]
    bounds = [(None, None)] * (d + 1) + [(0, None)] * (2 * n)
    return np.asarray(linprog(cost, A_eq=A, b_eq=y, bounds=bounds, method="highs").x[:d])


def cvxpy_quantile(X: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """Coefficients from Clarabel."""
    import cvxpy as cp

    w, b = cp.Variable(X.shape[1]), cp.Variable()
    r = y - X @ w - b
    loss = cp.sum(cp.maximum(level * r, (level - 1.0) * r)) / len(y)
    cp.Problem(cp.Minimize(loss)).solve(cp.CLARABEL)
    return np.asarray(w.value)


def quantile_methods(X: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """Fits that return coefficients."""
    from sklearn.linear_model import QuantileRegressor as Theirs

    methods: dict[str, Callable[[], np.ndarray]] = {
        "sorel": lambda: QuantileRegressor(quantile=LEVEL, alpha=0.0, tol=TOL).fit(X, y).coef_,
        "sorel, 1e-9": lambda: (
            QuantileRegressor(quantile=LEVEL, alpha=0.0, tol=TIGHT).fit(X, y).coef_
        ),
        "scikit-learn (HiGHS)": lambda: Theirs(quantile=LEVEL, alpha=0.0).fit(X, y).coef_,
    }
    if installed("statsmodels"):

        def statsmodels_fit() -> np.ndarray:
            from statsmodels.regression.quantile_regression import QuantReg

            design = np.column_stack([X, np.ones(len(y))])
            return np.asarray(QuantReg(y, design).fit(q=LEVEL, max_iter=5000).params[:-1])

        methods["statsmodels"] = statsmodels_fit
    if installed("cvxpy", "clarabel"):
        methods["Clarabel"] = lambda: cvxpy_quantile(X, y, LEVEL)
    return methods


def cvxpy_portfolio(R: np.ndarray, risk: CVaR, target: float | None = None) -> np.ndarray:
    """Weights from Clarabel, by the linear program of CVaR."""
    import cvxpy as cp

    n, d = R.shape
    w, t = cp.Variable(d, nonneg=True), cp.Variable()
    value = t + cp.sum(cp.pos(-R @ w - t)) / (risk.alpha * n)
    limits = [cp.sum(w) == 1]
    if target is not None:
        limits.append(1000.0 * R.mean(axis=0) @ w >= 1000.0 * target)
    cp.Problem(cp.Minimize(100.0 * value), limits).solve(cp.CLARABEL)
    return np.asarray(w.value)


def skfolio_portfolio(R: np.ndarray, risk: sorel.risks.Risk) -> np.ndarray:
    """Weights from skfolio's own optimization."""
    from skfolio import RiskMeasure
    from skfolio.optimization import MeanRisk

    if isinstance(risk, CVaR):
        model = MeanRisk(risk_measure=RiskMeasure.CVAR, cvar_beta=1.0 - risk.alpha)
    else:
        model = MeanRisk(risk_measure=RiskMeasure.GINI_MEAN_DIFFERENCE)
    return np.asarray(model.fit(R).weights_)


def cvqp_portfolio(R: np.ndarray, risk: CVaR, bound: float, tol: float | None) -> np.ndarray:
    """Weights of the largest mean return whose CVaR is at most `bound`, from CVQP."""
    import cvqp

    d = R.shape[1]
    B = np.vstack([np.eye(d), np.ones((1, d))])
    lower, upper = np.r_[np.zeros(d), 1.0], np.r_[np.ones(d), 1.0]
    settings = None if tol is None else cvqp.Settings(abstol=tol, reltol=tol)
    result = cvqp.solve(
        None, -R.mean(axis=0), -R, B, lower, upper, 1.0 - risk.alpha, bound, settings=settings
    )
    return np.asarray(result.x)


def fit_portfolio(R: np.ndarray, risk: sorel.risks.Risk, **settings: Any) -> SpectralRiskPortfolio:
    """The portfolio of sorel."""
    return SpectralRiskPortfolio(risk, **{"tol": TOL, **settings}).fit(R)


def compare(
    problem: str,
    methods: dict[str, Callable[[], np.ndarray]],
    objective: Callable[[np.ndarray], float],
    rows: list[list[str]],
    repeats: int,
) -> dict[str, float]:
    """Time the methods, score their answers alike, and add a row for each; their seconds."""
    found = {}
    for name, method in methods.items():
        try:
            found[name] = timed(method, repeats if name.startswith("sorel") else 1)
        except Exception as error:
            print(f"{problem}, {name}: {type(error).__name__}: {error}", file=sys.stderr)
    values = {name: objective(answer) for name, (_, answer) in found.items()}
    best = min(values.values())
    ours = found["sorel"][0]
    for name, (seconds, _) in found.items():
        excess = (values[name] - best) / abs(best)
        rows.append(
            [problem, name, show_seconds(seconds), f"{seconds / ours:.3g}", f"{excess:.1e}"]
        )
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    return {name: seconds for name, (seconds, _) in found.items()}


def portfolio_value(R: np.ndarray, risk: sorel.risks.Risk) -> Callable[[np.ndarray], float]:
    """Risk of weights that were first made feasible, in plain NumPy."""
    sigma = risk.weights(len(R))

    def value(w: np.ndarray) -> float:
        w = np.maximum(w, 0.0)
        return float(sigma @ np.sort(-R @ (w / w.sum())))

    return value


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    quick = parser.parse_args(argv).quick
    warnings.simplefilter("ignore")
    head = ["problem", "method", "seconds", "times sorel's", "excess"]
    large_head = ["problem", "seconds", "in X @ w", "passes", "certified relative gap"]
    bars: list[list[str]] = []

    # Compile everything on small problems first.
    fit_portfolio(returns(200, 5), CVaR(0.05))
    for risk in (ESRM(10.0), Deviation(Extremile(2.0))):
        fit_portfolio(returns(200, 5), risk)
        fit_portfolio(returns(200, 5), risk, upper=0.5)
    small = regression_data(500, 5)
    QuantileRegressor(quantile=LEVEL, alpha=0.0).fit(*small)
    # Many rows take other loops.
    QuantileRegressor(quantile=LEVEL, alpha=0.0).fit(*regression_data(100_000, 3))
    for risk in (CVaR(ALPHA), ESRM(10.0)):
        fit_portfolio(returns(100_000, 3), risk)

    rows: list[list[str]] = []
    for n in (1_000,) if quick else (1_000, 10_000):
        X, y = regression_data(n)
        seconds = compare(
            f"quantile {LEVEL}, {n} x 20", quantile_methods(X, y),
            lambda coef, X=X, y=y: pinball(X, y, coef, LEVEL), rows, 3,
        )  # fmt: skip
        if n == 10_000:
            ratio = seconds["scikit-learn (HiGHS)"] / seconds["sorel, 1e-9"]
            bars.append(
                ["quantile 10000 x 20, times faster than scikit-learn", "50", f"{ratio:.3g}"]
            )
    worst = np.inf
    for size, design in list(INDICATORS.items())[: 1 if quick else None]:
        X, y = indicator_data(*design)
        for level in (0.5, LEVEL):
            indicators: dict[str, Callable[[], np.ndarray]] = {
                "sorel": lambda X=X, y=y, level=level: (
                    QuantileRegressor(quantile=level, alpha=0.0).fit(X, y).coef_
                ),
                "HiGHS": lambda X=X, y=y, level=level: highs_quantile(X, y, level),
            }
            seconds = compare(
                f"quantile {level}, indicators, {size}", indicators,
                lambda coef, X=X, y=y, level=level: pinball(X, y, coef, level), rows, 3,
            )  # fmt: skip
            worst = min(worst, seconds["HiGHS"] / seconds["sorel"])
    bars.append(["indicators, times faster than HiGHS at least", "0.33", f"{worst:.3g}"])
    sizes = ((500, 20),) if quick else ((1_000, 50), (5_000, 200))
    for n, d in sizes:
        R, cvar = returns(n, d), CVaR(ALPHA)
        methods: dict[str, Callable[[], np.ndarray]] = {
            "sorel": lambda R=R: fit_portfolio(R, CVaR(ALPHA)).weights_,
            "sorel, 1e-9": lambda R=R: fit_portfolio(R, CVaR(ALPHA), tol=TIGHT).weights_,
        }
        if installed("cvxpy", "clarabel"):
            methods["Clarabel"] = lambda R=R: cvxpy_portfolio(R, CVaR(ALPHA))
        if installed("skfolio"):
            methods["skfolio"] = lambda R=R: skfolio_portfolio(R, CVaR(ALPHA))
        seconds = compare(
            f"portfolio {cvar!r}, {n} x {d}", methods, portfolio_value(R, cvar), rows, 3
        )
        if n == 5_000 and "Clarabel" in seconds:
            ratio = seconds["Clarabel"] / seconds["sorel, 1e-9"]
            bars.append(["portfolio 5000 x 200, times faster than Clarabel", "5", f"{ratio:.3g}"])
        if installed("cvxpy", "clarabel", "cvqp") and n <= 1_000:
            rows += _against_cvqp(R, n, d)
    n = 200 if quick else 1_000
    R, gini = returns(n, 20), Deviation(Extremile(2.0))
    methods = {
        "sorel": lambda: fit_portfolio(R, gini).weights_,
        "sorel, 1e-9": lambda: fit_portfolio(R, gini, tol=TIGHT).weights_,
    }
    if installed("skfolio"):
        methods["skfolio"] = lambda: skfolio_portfolio(R, gini)
    seconds = compare(f"portfolio Gini, {n} x 20", methods, portfolio_value(R, gini), rows, 3)
    if "skfolio" in seconds and not quick:
        ratio = seconds["skfolio"] / seconds["sorel, 1e-9"]
        bars.append(["Gini 1000 x 20, times faster than skfolio", "100", f"{ratio:.3g}"])

    large: list[list[str]] = []
    for n in (20_000,) if quick else (100_000, 1_000_000):
        X, y = regression_data(n)
        unit = product_seconds(X)
        spent, model = timed(
            lambda X=X, y=y: QuantileRegressor(quantile=LEVEL, alpha=0.0, tol=TOL).fit(X, y)
        )
        large.append(_large(f"quantile {LEVEL}, {n} x 20", spent, unit, model))
        if n == 1_000_000:
            bars.append(["quantile 1000000 x 20, X @ w at most", "500", f"{spent / unit:.3g}"])
    for n, d in ((5_000, 50),) if quick else ((50_000, 100), (200_000, 500)):
        R = returns(n, d)
        unit = product_seconds(R)
        for risk in (CVaR(ALPHA), ESRM(10.0)):
            spent, model = timed(lambda R=R, risk=risk: fit_portfolio(R, risk))
            large.append(_large(f"portfolio {risk!r}, {n} x {d}", spent, unit, model))
            if n == 200_000:
                name = f"portfolio {risk!r} 200000 x 500, X @ w at most"
                bars.append([name, "1000", f"{spent / unit:.3g}"])
    print(markdown(head, rows))
    print()
    print(markdown(large_head, large))
    if bars:
        print()
        print(markdown(["bar", "asked", "measured"], bars))
    return 0


def _large(problem: str, seconds: float, unit: float, model: Any) -> list[str]:
    gap = float(np.max(model.relative_gap_))
    row = [problem, show_seconds(seconds), f"{seconds / unit:.3g}", f"{model.n_passes_:.0f}"]
    row.append(f"{gap:.1e}")
    print("  ".join(row), file=sys.stderr, flush=True)
    return row


def _against_cvqp(R: np.ndarray, n: int, d: int) -> list[list[str]]:
    """One point of the frontier: sorel and Clarabel get its mean return, CVQP its risk.

    The excess is how far risk or mean return are from that point, whichever is worse.
    """
    risk, means = CVaR(ALPHA), R.mean(axis=0)
    target = 0.5 * (fit_portfolio(R, risk).expected_return_ + means.max())
    best = fit_portfolio(R, risk, target_return=target, tol=TIGHT).risk_
    methods: dict[str, Callable[[], np.ndarray]] = {
        "sorel": lambda: fit_portfolio(R, risk, target_return=target).weights_,
        "sorel, 1e-9": lambda: fit_portfolio(R, risk, target_return=target, tol=TIGHT).weights_,
        "Clarabel": lambda: cvxpy_portfolio(R, risk, target),
        "CVQP": lambda: cvqp_portfolio(R, risk, best, None),
        "CVQP, 1e-7": lambda: cvqp_portfolio(R, risk, best, 1e-7),
    }
    out, value = [], portfolio_value(R, risk)
    ours = 1.0
    for name, method in methods.items():
        seconds, w = timed(method)
        ours = seconds if name == "sorel" else ours
        w = np.maximum(w, 0.0) / np.maximum(w, 0.0).sum()
        excess = max(value(w) / best - 1.0, 1.0 - float(means @ w) / target, 0.0)
        times = f"{seconds / ours:.3g}"
        row = [f"CVaR, mean return, {n} x {d}", name, show_seconds(seconds), times]
        out.append([*row, f"{excess:.1e}"])
        print("  ".join(out[-1]), file=sys.stderr, flush=True)
    return out


if __name__ == "__main__":
    sys.exit(main())
