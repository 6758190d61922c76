"""What a user waits for before anything is compiled, and in every new process after that.

Each case has a process and a cache folder of its own. "empty" is the first fit of its kind on a new
machine, and for the second table the first one after a default fit of the same estimator; "filled"
is a new process on a machine that has seen it all, with the import of sorel. Importing NumPy, SciPy
and scikit-learn's linear models is left out: who fits one has them. CPU seconds stand beside those
of the clock, since a compiler is the first to suffer from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Rows and columns of every problem.
N, D = 1000, 10

# The kinds of problems: the estimator ("regressor", "binary" or "multinomial"), what X is made to
# be, and the options. The first of each estimator is its default fit; the others are measured after
# that one.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "regressor": ("regressor", "", {}),
    "binary": ("binary", "", {}),
    "multinomial": ("multinomial", "", {}),
    "ESRM": ("regressor", "", {"risk": "esrm:2"}),
    "Extremile": ("regressor", "", {"risk": "extremile:2"}),
    "Huber loss": ("regressor", "", {"loss": "huber"}),
    "elastic net": ("regressor", "", {"l1": 0.01}),
    "sample weights": ("regressor", "weighted", {}),
    "sparse X": ("regressor", "sparse", {}),
    "float32 X": ("regressor", "float32", {}),
    "X by columns": ("regressor", "by columns", {}),
    "read-only X and y": ("regressor", "read-only", {}),
    "solver sorel": ("regressor", "", {"solver": "sorel"}),
    "squared hinge": ("binary", "", {"loss": "squared_hinge"}),
    "binary, sparse X": ("binary", "sparse", {}),
    "binary, solver sorel": ("binary", "", {"solver": "sorel"}),
    "multinomial, ESRM": ("multinomial", "", {"risk": "esrm:2"}),
    "multinomial, sparse X": ("multinomial", "sparse", {}),
    "multinomial, solver sorel": ("multinomial", "", {"solver": "sorel"}),
}


def fit(kind: str) -> Any:
    """Fit an estimator to a problem of this kind."""
    import numpy as np
    import scipy.sparse

    from sorel import SpectralRiskClassifier, SpectralRiskRegressor

    name, form, options = KINDS[kind]
    rng = np.random.default_rng(0)
    X: Any = rng.standard_normal((N, D))
    y = X @ rng.standard_normal(D) + rng.standard_t(3, N)
    if name == "binary":
        y = y > 0.0
    elif name == "multinomial":
        y = np.digitize(y, [-1.0, 1.0])
    if form == "sparse":
        X = scipy.sparse.csr_array(np.where(np.abs(X) > 1.0, X, 0.0))
    elif form == "float32":
        X = X.astype(np.float32)
    elif form == "by columns":
        X = np.asfortranarray(X)
    elif form == "read-only":
        X.flags.writeable = y.flags.writeable = False
    weight = rng.random(N) if form == "weighted" else None
    estimator = SpectralRiskRegressor if name == "regressor" else SpectralRiskClassifier
    return estimator(**options).fit(X, y, sample_weight=weight)


def measure(kinds: list[str]) -> dict[str, Any]:
    """Fit these kinds one after the other, in this process: the times of the last one.

    Returns
    -------
    dict
        Seconds and CPU seconds of the import and of the first fit, CPU seconds of another fit and
        those that each function took to compile, callees left out.
    """
    import scipy.sparse  # noqa: F401 (not our time)
    import sklearn.linear_model  # noqa: F401 (not our time)

    begin = (time.perf_counter(), time.process_time())
    import sorel  # noqa: F401 (the time of the import itself)

    imported = (time.perf_counter() - begin[0], time.process_time() - begin[1])
    functions: dict[str, float] = {}
    _follow_compiler(functions)
    for kind in kinds:
        functions.clear()
        begin = (time.perf_counter(), time.process_time())
        fit(kind)
        first = (time.perf_counter() - begin[0], time.process_time() - begin[1])
    again = []
    for _ in range(5):
        since = time.process_time()
        fit(kinds[-1])
        again.append(time.process_time() - since)
    return {"import": imported, "first": first, "again": min(again), "functions": functions}


def _follow_compiler(functions: dict[str, float]) -> None:
    """Add up what every function costs to compile."""
    from numba.core import event

    class Follower(event.Listener):
        stack: list[tuple[float, list[float]]] = []  # noqa: RUF012 (one instance)

        def on_start(self, event: Any) -> None:
            self.stack.append((time.process_time(), [0.0]))

        def on_end(self, event: Any) -> None:
            since, callees = self.stack.pop()
            seconds = time.process_time() - since
            function = event.data["dispatcher"].py_func
            name = f"{function.__module__}.{function.__qualname__}"
            functions[name] = functions.get(name, 0.0) + seconds - callees[0]
            if self.stack:
                self.stack[-1][1][0] += seconds

    event.register("numba:compile", Follower())


def in_a_new_process(kinds: list[str], cache: Path) -> dict[str, Any]:
    """`measure` in a process of its own that keeps compiled code in `cache`."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(cache),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_use", "--measure", json.dumps(kinds)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def case(kind: str, before: str | None, repeats: int, folder: Path) -> dict[str, Any]:
    """The least times of one kind: with an empty cache, and with one that is filled."""
    best: dict[str, Any] = {}
    prepared = folder / "prepared"
    if before is not None:
        in_a_new_process([before], prepared)
    for _ in range(repeats):
        cache = folder / "cache"
        if before is not None:
            shutil.copytree(prepared, cache)
        kinds = [kind] if before is None else [before, kind]
        empty = in_a_new_process(kinds, cache)
        filled = in_a_new_process([kind], cache)
        shutil.rmtree(cache)
        start = tuple(a + b for a, b in zip(filled["import"], filled["first"], strict=True))
        found = {"empty": empty["first"], "filled": start, "again": filled["again"]}
        for name, value in found.items():
            best[name] = min(best.get(name, value), value)
        best["functions"] = empty["functions"]
    shutil.rmtree(prepared, ignore_errors=True)
    return best


HEADER = ["empty: s", "CPU s", "filled: s", "CPU s", "functions", "once more: CPU ms"]


def row(kind: str, found: dict[str, Any]) -> list[str]:
    """A line of the table; functions are the package's own that were compiled, plus numba's."""
    own = sum(name.startswith("sorel.") for name in found["functions"])
    others = len(found["functions"]) - own
    seconds = [f"{value:.2f}" for value in (*found["empty"], *found["filled"])]
    return [kind, *seconds, f"{own} + {others}", f"{1e3 * found['again']:.2f}"]


def main(argv: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="KIND", help="some kinds (default: all)")
    parser.add_argument("--repeats", type=int, default=1, help="processes; the least time counts")
    parser.add_argument("--detail", action="store_true", help="compile times by function")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure is not None:
        json.dump(measure(json.loads(options.measure)), sys.stdout)
        return 0
    from benchmarks.common import markdown

    chosen = options.only or list(KINDS)
    unknown = set(chosen) - set(KINDS)
    if unknown:
        parser.error(f"unknown kinds {sorted(unknown)}; known are {', '.join(KINDS)}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"n={N}, d={D}; load of the machine {load:.1f}\n", flush=True)
    details = []
    for title, default in (("first fit", True), ("a further kind", False)):
        rows = []
        for kind in chosen:
            first = KINDS[kind][0]
            if (kind == first) != default:
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = case(kind, None if default else first, options.repeats, Path(folder))
            rows.append(row(kind, found))
            details.append((kind, found["functions"]))
        if rows:
            print(markdown([title, *HEADER], rows) + "\n", flush=True)
    if options.detail:
        for kind, functions in details:
            print(f"{kind}: {sum(functions.values()):.2f} CPU s to compile")
            for name, seconds in sorted(functions.items(), key=lambda item: -item[1]):
                print(f"  {seconds:6.3f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
