"""GridSearchCV over ten risks and five folds, against a grid of the same size for Ridge.

    python -m benchmarks.grid_search [--rows 10000] [--columns 20] [--repeats 5]

Both searches fit 50 models and score them with R^2, in one process and one thread. The bar is a
ratio below 20. Both times include scikit-learn's own work (cloning, splitting, validation,
scoring), which is most of what Ridge costs; the last lines tell how much of it a fit is.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from sorel import CVaR, SpectralRiskRegressor, SpectralRiskRegressorCV

BAR = 20.0
FOLDS = 5
LEVELS = np.linspace(1.0, 0.1, 10)


def make_data(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns, heavy-tailed noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d)) / np.sqrt(d))
    return X, X @ rng.standard_normal(d) + rng.standard_t(3, n)


def seconds(task: Callable[[], Any], repeats: int) -> float:
    """Median time of a task, after one run to warm up."""
    task()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        task()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Print the times and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    X, y = make_data(options.rows, options.columns)
    warnings.simplefilter("error")

    risks = [CVaR(float(alpha)) for alpha in LEVELS]
    alphas = np.geomspace(1e-2, 1e2, len(risks))
    ridge = GridSearchCV(Ridge(), {"alpha": alphas}, cv=FOLDS, refit=False)
    ours = GridSearchCV(SpectralRiskRegressor(), {"risk": risks}, cv=FOLDS, refit=False)
    chain = SpectralRiskRegressorCV(risks=risks, l2s=["auto"], cv=FOLDS, scoring="r2", refit=False)

    times = {
        "Ridge, GridSearchCV": seconds(lambda: ridge.fit(X, y), options.repeats),
        "SpectralRiskRegressor, GridSearchCV": seconds(lambda: ours.fit(X, y), options.repeats),
        "SpectralRiskRegressorCV": seconds(lambda: chain.fit(X, y), options.repeats),
    }
    base = times["Ridge, GridSearchCV"]
    print(f"{len(risks)} values x {FOLDS} folds, n={options.rows}, d={options.columns}, one thread")
    for label, value in times.items():
        print(f"  {label:36s} {value * 1e3:8.1f} ms   {value / base:5.1f} x Ridge")
    ratio = times["SpectralRiskRegressor, GridSearchCV"] / base
    print(f"ratio {ratio:.1f}, bar {BAR:.0f}: {'met' if ratio < BAR else 'missed'}")

    one = {
        "Ridge": seconds(lambda: Ridge().fit(X, y), 20),
        **{
            f"CVaR({risk.alpha:.1f})": seconds(
                lambda risk=risk: SpectralRiskRegressor(risk).fit(X, y), 20
            )
            for risk in risks
        },
    }
    print("one fit on all rows, ms: " + ", ".join(f"{k} {v * 1e3:.1f}" for k, v in one.items()))


if __name__ == "__main__":
    main()
