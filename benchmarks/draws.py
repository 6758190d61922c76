"""Sixty draws of one distribution: how much longer than the median the slowest fit takes.

Run as ``python -m benchmarks.draws [--count 60] [--jobs 2] [--only NAME]``. Ten kinds of problems;
each draw has its own seed. Times are processor seconds of one thread, the least of three fits to
the default tolerance of `solve`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

import sorel
from benchmarks.common import markdown, show_seconds

TOL, REPEATS, SECONDS = 1e-6, 3, 60.0


def _regression(n: int, d: int, risk: str, seed: int, **options: Any) -> sorel.Problem:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = X @ rng.standard_normal(d) + 3.0 * rng.standard_t(4, n)
    options = {"penalty": sorel.L2(1.0 / n), "fit_intercept": True, **options}
    return sorel.Problem(X, y, risk=risk, n_jobs=1, **options)


def _classes(n: int, d: int, classes: int, risk: str, seed: int) -> sorel.Problem:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal((d, classes)) / math.sqrt(d)
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1).astype(float)
    loss = "multinomial" if classes > 2 else "logistic"
    penalty = sorel.L2(1.0 / n)
    return sorel.Problem(X, y, risk=risk, loss=loss, penalty=penalty, fit_intercept=True, n_jobs=1)


def _portfolio(n: int, d: int, seed: int) -> sorel.Problem:
    rng = np.random.default_rng(seed)
    returns = 0.01 * (rng.standard_t(4, (n, d)) + rng.standard_t(4, (n, 1)))
    penalty = sorel.Simplex(0.0)
    return sorel.Problem(-returns, np.zeros(n), risk="cvar:0.05", loss="linear", penalty=penalty)


KINDS: dict[str, Callable[[int], sorel.Problem]] = {
    "mean, six classes, 2000 x 80": partial(_classes, 2000, 80, 6, "mean"),
    "CVaR(0.1), six classes, 2000 x 40": partial(_classes, 2000, 40, 6, "cvar:0.1"),
    "CVaR(0.5), logistic, 5000 x 100": partial(_classes, 5000, 100, 2, "cvar:0.5"),
    "ESRM(2), logistic, 5000 x 300": partial(_classes, 5000, 300, 2, "esrm:2"),
    "CVaR(0.1), squared, 20000 x 50": partial(_regression, 20_000, 50, "cvar:0.1"),
    "CVaR(0.05), squared, 1000 x 400": partial(_regression, 1000, 400, "cvar:0.05"),
    "ESRM(2), squared, 3000 x 1000": partial(_regression, 3000, 1000, "esrm:2"),
    "CVaR(0.1), Huber, 5000 x 200": partial(_regression, 5000, 200, "cvar:0.1", loss="huber"),
    "CVaR(0.1), elastic net, 2000 x 300": partial(
        _regression, 2000, 300, "cvar:0.1", penalty=sorel.ElasticNet(5e-4, 0.1)
    ),
    "CVaR(0.05), long-only portfolio, 1000 x 100": partial(_portfolio, 1000, 100),
}


def measure(kind: str, seed: int) -> tuple[float, float, bool]:
    """Processor seconds, passes, and whether the tolerance was reached."""
    problem, times = KINDS[kind](seed), []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        for _ in range(REPEATS):
            begin = time.process_time()
            result = sorel.solve(problem, tol=TOL, max_passes=math.inf, max_seconds=SECONDS)
            times.append(time.process_time() - begin)
    return min(times), result.passes, result.converged


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60, help="draws of each kind (default 60)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--only", default="", help="kinds whose name has this text")
    options = parser.parse_args(argv)
    kinds = [kind for kind in KINDS if options.only in kind]
    seeds = range(options.first, options.first + options.count)
    jobs = [delayed(measure)(kind, seed) for kind in kinds for seed in seeds]
    found = iter(Parallel(n_jobs=options.jobs)(jobs))
    rows = []
    for kind in kinds:
        seconds, passes, converged = zip(*(next(found) for _ in seeds), strict=True)
        slowest = int(np.argmax(seconds))
        rows.append([
            kind, show_seconds(float(np.median(seconds))),
            f"{max(seconds) / np.median(seconds):.2f}", str(seeds[slowest]),
            f"{np.median(passes):.0f}", f"{passes[slowest]:.0f}", str(converged.count(False)),
        ])  # fmt: skip
    header = ["kind", "median", "slowest / median", "its seed", "passes", "of the slowest"]
    print(markdown([*header, "missed"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
