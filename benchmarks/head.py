"""Two versions of the package on the same problems, in turn: ratios of the new time to the old.

Run as ``python -m benchmarks.head --base main~5 [--kind map|large|all] [--count 60] [--seed 1]``,
or ``make bench-head BASE=main~5``. Each version runs in a process of its own, with its own sources;
every problem is built anew in both. Times are processor seconds of one thread, the least of
several runs. `map` draws fresh problems from the sampler of the map with another seed, `large` are
24 problems of up to 2e7 numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((1_000_000, 20), (200_000, 100), (20_000, 1000), (30_000, 400))

# Numbers in X at most, relative gap wanted, seconds for one run, runs at most, and seconds for all
# runs of one problem.
MOST_NUMBERS, TOL, SECONDS, REPEATS, ENOUGH = 2e6, 1e-6, 20.0, 5, 1.0


def map_problem(index: int, seed: int) -> tuple[str, Any]:
    """A problem of the map's sampler, for another seed than the map's own."""
    from scipy.stats import qmc

    from benchmarks import regime_map

    u = qmc.Halton(8, seed=10_000 + seed).random(index + 1)[-1]
    cell = regime_map._cell(100_000 * seed + index, u, MOST_NUMBERS)
    return cell.describe(), regime_map.build(cell)


def large_problem(index: int, seed: int) -> tuple[str, Any]:
    """One of 24 larger problems: four shapes, three losses, a tail and a smooth risk."""
    import sorel

    n, d = SHAPES[index // 6]
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.geomspace(1.0, 0.1, d)
    z = X @ rng.standard_normal(d)
    loss = ("squared", "huber", "logistic")[index % 6 // 2]
    y = z + rng.standard_t(4, n)
    tail = "cvar:0.1"
    if loss == "logistic":
        y, tail = (z + rng.logistic(size=n) > 0.0).astype(float), "cvar:0.5"
    risk = (tail, "esrm:2")[index % 2]
    problem = sorel.Problem(
        X, y, risk=risk, loss=loss, penalty=sorel.L2(1.0 / n), fit_intercept=True, n_jobs=1
    )
    return f"{n} x {d}, {loss}, {risk}", problem


def work() -> None:
    """Time the problems whose numbers come in by lines, and answer with lines."""
    # An editable install would come before any path.
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    import sorel

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        kind, index, seed = json.loads(line)
        name, problem = (map_problem if kind == "map" else large_problem)(index, seed)
        times: list[float] = []
        for _ in range(REPEATS):
            begin = time.process_time()
            result = sorel.solve(problem, tol=TOL, max_passes=math.inf, max_seconds=SECONDS)
            times.append(time.process_time() - begin)
            if not result.converged or sum(times) > ENOUGH + times[0]:
                break
        # The first run loads compiled code.
        best = min(times[1:] or times) if result.converged else None
        print(json.dumps([name, best, result.relative_gap]), flush=True)


def install(source: Path, site: Path) -> Path:
    """Build the package of a checkout into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run(command, check=True)
    return site


def start(folder: Path) -> subprocess.Popen[str]:
    """A process with the package in a folder; the problems are those of this checkout."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    environment["PYTHONPATH"] = str(folder)
    command = [sys.executable, "-m", "benchmarks.head", "--worker"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip


def ask(worker: subprocess.Popen[str], job: tuple[str, int, int]) -> tuple[str, float | None]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(job) + "\n")
    worker.stdin.flush()
    name, seconds, _ = json.loads(worker.stdout.readline())
    return name, seconds


def compare(base: str, jobs: list[tuple[str, int, int]]) -> None:
    """Print the ratio of each problem, and what they come to."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "base"
        subprocess.run(["git", "worktree", "add", "--detach", "-q", folder, base], check=True)
        try:
            sites = (install(folder, Path(scratch) / "old"), install(ROOT, Path(scratch) / "new"))
            workers = [start(site) for site in sites]
            ratios, missed, gained = [], [], 0
            for turn, job in enumerate(jobs):
                found = [None, None]
                for side in (0, 1) if turn % 2 else (1, 0):
                    name, found[side] = ask(workers[side], job)
                old, new = found
                if old and new:
                    ratios.append(new / old)
                    print(f"{new / old:6.2f}  {old:8.4f} -> {new:8.4f} s  {name}", flush=True)
                elif old:
                    missed.append(name)
                    print(f"missed  {old:8.4f} s before  {name}", flush=True)
                else:
                    gained += bool(new)
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.close()
                worker.wait()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    if ratios:
        print(
            f"{len(ratios)} problems: geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, "
            f"90 % {np.quantile(ratios, 0.9):.2f}, worst {max(ratios):.2f}; newly missed "
            f"{len(missed)}, newly solved {gained}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", default="HEAD~1", help="a commit, or a branch")
    parser.add_argument("--kind", choices=("map", "large", "all"), default="map")
    parser.add_argument("--count", type=int, default=60, help="problems of the map's sampler")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    jobs = []
    if options.kind != "large":
        jobs += [("map", index, options.seed) for index in range(options.count)]
    if options.kind != "map":
        jobs += [("large", index, options.seed) for index in range(6 * len(SHAPES))]
    compare(options.base, jobs)


if __name__ == "__main__":
    main()
