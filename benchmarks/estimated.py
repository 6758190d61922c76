"""What fits to a tail risk estimate, on simulated rows: the numbers of docs/what-is-estimated.md.

Run as ``python -m benchmarks.estimated [--quick] [--update-docs]``. All fits have an intercept, the
squared loss, and an l2 of 1e-8, which is none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm

from benchmarks.common import markdown, replace_between
from sorel import CVaR, Mean, SpectralRiskRegressor
from sorel.risks import Risk, parse_risk

PAGE = Path(__file__).resolve().parents[1] / "docs" / "what-is-estimated.md"
L2 = 1e-8
RISKS = ("mean", "cvar:0.5", "esrm:2", "cvar:0.1", "cvar:0.05")
ROWS, COLUMNS = 2000, 5
# Rows that stand for the population.
POPULATION = 1_000_000
TAIL = CVaR(0.1)

Rng = np.random.Generator


def fit(X: np.ndarray, y: np.ndarray, risk: Risk | str, intercept: bool | str = True) -> np.ndarray:
    """Intercept and slopes."""
    model = SpectralRiskRegressor(risk, l2=L2, fit_intercept=intercept, tol=1e-6).fit(X, y)
    return np.append(model.intercept_, model.coef_)


def efficiency(risk: Risk) -> float:
    """(E r^2 s)^2 / E r^2 s^2 for normal r, with the weight s of its squared loss.

    The score of a residual is r s; its mean derivative is E r^2 s, by Stein's identity.
    """
    step = 1e-6

    def weight(r: float) -> float:
        # The density of the risk at the rank of |r|.
        u = min(max(2.0 * norm.cdf(r) - 1.0, step), 1.0 - step)
        low, high = risk.cumulative(np.array([u - step, u + step]))
        return float(high - low) / (2.0 * step)

    edge = [norm.ppf(1.0 - risk.alpha / 2.0)] if isinstance(risk, CVaR) else None
    moments = [
        quad(lambda r, k=k: 2.0 * norm.pdf(r) * r**2 * weight(r) ** k, 0.0, 8.0, points=edge)[0]
        for k in (1, 2)
    ]
    return moments[0] ** 2 / moments[1]


def efficiencies(repeats: int) -> str:
    """Variance of the plain slopes over that of the slopes under each risk."""
    draws: dict[str, Callable[[Rng], np.ndarray]] = {
        "normal": lambda rng: rng.standard_normal(ROWS),
        "t with 4 degrees": lambda rng: rng.standard_t(4, ROWS),
        "uniform": lambda rng: rng.uniform(-1.0, 1.0, ROWS),
    }
    measured = {}
    for name, draw in draws.items():
        rng = np.random.default_rng(0)
        slopes = np.empty((repeats, len(RISKS), COLUMNS))
        for k in range(repeats):
            X, y = rng.standard_normal((ROWS, COLUMNS)), draw(rng)
            slopes[k] = [fit(X, y, risk)[1:] for risk in RISKS]
        spread = (slopes**2).mean(axis=(0, 2))
        measured[name] = spread[0] / spread
    rows = [
        [risk, f"{efficiency(parse_risk(risk)):.2f}", *(f"{m[j]:.2f}" for m in measured.values())]
        for j, risk in enumerate(RISKS)
    ]
    return markdown(["risk", "formula, normal errors", *measured], rows)


def skewed(rng: Rng, scale: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """y = 1 + 2 x + scale(x) (e - 1) with e exponential and x uniform in [0, 1]."""
    x = rng.uniform(size=POPULATION)
    y = 1.0 + 2.0 * x + scale(x) * (rng.exponential(size=POPULATION) - 1.0)
    return x[:, None], y


def skew() -> str:
    """Slope and bias under skewed errors, with and without a scale that grows with x."""
    rng = np.random.default_rng(1)
    cases = {"the same for all x": np.ones_like, "growing with x": lambda x: 0.5 + x}
    rows = []
    for name, scale in cases.items():
        X, y = skewed(rng, scale)
        for risk in RISKS:
            cells = [name, risk]
            for intercept in (True, "mean"):
                b, slope = fit(X, y, risk, intercept)
                bias = b + slope * X[:, 0].mean() - y.mean()
                cells += [f"{slope:.2f}", f"{bias:+.2f}"]
            rows.append(cells)
    header = ["scale of the errors", "risk", "slope", "bias"]
    return markdown([*header, 'slope, `"mean"`', 'bias, `"mean"`'], rows)


def optimism(repeats: int) -> str:
    """The tail of new rows over that of the training rows, normal errors."""
    rng, rows = np.random.default_rng(2), []
    for n in (100, 300, 1000, 3000):
        for d in (3, 10, 30):
            tails = np.zeros((2, 2))
            for _ in range(repeats):
                X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
                new, truth = rng.standard_normal((20_000, d)), rng.standard_normal(20_000)
                for row, risk in zip(tails, (Mean(), TAIL), strict=True):
                    w = fit(X, y, risk)
                    row += [
                        TAIL(0.5 * (t - w[0] - Z @ w[1:]) ** 2) for Z, t in ((X, y), (new, truth))
                    ]
            ratios = tails[:, 1] / tails[:, 0]
            rows.append([str(n), str(d), f"{0.1 * n:.0f}", *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["rows", "columns", "rows of the tail", "plain fit", "cvar:0.1"]
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--update-docs", action="store_true", help=f"put the tables into {PAGE}")
    options = parser.parse_args()
    repeats = 20 if options.quick else 400
    tables = {
        "efficiency": efficiencies(repeats),
        "skew": skew(),
        "optimism": optimism(max(4, repeats // 10)),
    }
    for name, table in tables.items():
        print(f"{name}:\n\n{table}\n", flush=True)
        if options.update_docs:
            replace_between(PAGE, (f"<!-- {name}:start -->", f"<!-- {name}:end -->"), table)


if __name__ == "__main__":
    main()
