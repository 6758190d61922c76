"""Single measurements for ``benchmarks.scaling``, each made in a process of its own.

``python -m benchmarks.scaling_cases '{"measure": "dense", "n": 10000, ...}'`` prints one line of
JSON. A fresh process gives every case its own peak of memory and its own number of threads. What is
compiled is compiled, and loaded, on small data before memory and time are measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse

import sorel
from benchmarks.common import Budget, SortedObjective, Stop, duration
from sorel._lib.threads import Team

# Rows that are generated, and written to disk, at a time.
BLOCK = 1 << 16

# Sizes for the warm-up: all columns with few rows, then enough rows for the loops of large data.
WARM_UP = ((2_000, 10_000), (130_000, 10))

# Degrees of freedom of the noise: the mean loss exists, its variance does not.
TAIL = 2.1


class PeakMemory:
    """Peak of the resident memory since `reset`, in bytes.

    Linux keeps the peak as VmHWM and lowers it to the present value when asked through
    ``/proc/self/clear_refs``. Elsewhere the peak of the whole process has to do, which hides what
    stays below an earlier peak.
    """

    def __init__(self) -> None:
        self.method = "VmHWM"
        self.reset()

    def reset(self) -> None:
        gc.collect()
        # Memory that was freed but not returned would be used again unseen.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self.base = _status("VmRSS")
            if _status("VmHWM") > self.base + (1 << 24):
                raise OSError("the peak was not reset")
        except OSError:
            self.method = "ru_maxrss"
            self.base = _ru_maxrss()

    def peak(self) -> int:
        return _status("VmHWM") if self.method == "VmHWM" else _ru_maxrss()


def _status(key: str) -> int:
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(f"{key}:"):
                return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {key}")


def _ru_maxrss() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class AnonymousMemory:
    """Peak of the memory that no file backs, sampled every few milliseconds, in bytes.

    Pages of a mapped file count as resident, yet the system takes them back when it needs them.
    """

    def __init__(self) -> None:
        self.peak: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> AnonymousMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while not self._done.wait(0.005):
                self.peak = max(self.peak or 0, _status("RssAnon"))


def blocks(n: int, d: int, seed: int = 0) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """First row, X and y of consecutive blocks: a Gaussian design with Student-t noise."""
    rng = np.random.default_rng(seed)
    coef = rng.standard_normal(d)
    for start in range(0, n, BLOCK):
        X = rng.standard_normal((min(BLOCK, n - start), d))
        yield start, X, X @ coef + rng.standard_t(TAIL, size=len(X))


def dense_data(n: int, d: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    X, y = np.empty((n, d), dtype), np.empty(n)
    for start, rows, targets in blocks(n, d):
        X[start : start + len(rows)] = rows
        y[start : start + len(rows)] = targets
    return X, y


def sparse_data(n: int, d: int, nonzeros: int, seed: int = 0) -> tuple[Any, np.ndarray]:
    """CSR with distinct columns in each row, drawn by a power law, and noisy labels -1 and 1."""
    rng = np.random.default_rng(seed)
    share = np.cumsum(np.arange(1.0, d + 1.0) ** -0.8)
    share /= share[-1]

    def draw(size: Any) -> np.ndarray:
        return np.minimum(np.searchsorted(share, rng.random(size)), d - 1).astype(np.int32)

    columns = np.sort(draw((n, nonzeros)), axis=1)
    unsettled = np.arange(n)
    while len(unsettled):
        rows = columns[unsettled]
        again = np.zeros(rows.shape, dtype=bool)
        again[:, 1:] = rows[:, 1:] == rows[:, :-1]
        rows[again] = draw(int(again.sum()))
        rows.sort(axis=1)
        columns[unsettled] = rows
        unsettled = unsettled[again.any(axis=1)]
    values = np.abs(rng.standard_normal(n * nonzeros))
    pointers = np.arange(0, n * nonzeros + 1, nonzeros)
    X = scipy.sparse.csr_matrix((values, columns.ravel(), pointers), shape=(n, d))
    # A tenth of the columns matters, and the noise turns about a quarter of the labels.
    score = X @ (rng.standard_normal(d) * (rng.random(d) < 0.1))
    noise = 0.7 * rng.logistic(size=n)
    return X, np.where(score / score.std() + noise > 0.0, 1.0, -1.0)


def memory_of(X: Any) -> int:
    if scipy.sparse.issparse(X):
        return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    return X.nbytes


def build(X: Any, y: np.ndarray, risk: str, **options: Any) -> sorel.Problem:
    return sorel.Problem(X, y, risk=risk, penalty=sorel.L2(1.0 / len(y)), **options)


def products(X: Any, repeats: int = 7) -> list[float]:
    """Durations of X @ w, with X.T @ v added where X is sparse: the unit of the report."""
    w, v = np.ones(X.shape[1], X.dtype), np.ones(X.shape[0], X.dtype)
    if scipy.sparse.issparse(X):
        return [duration(lambda: (X @ w, X.T @ v)) for _ in range(repeats)]
    return [duration(lambda: X @ w) for _ in range(repeats)]


def warm_up(
    d: int, risk: str, dtype: str = "float64", solvers: tuple[str, ...] = ("auto",)
) -> None:
    for n, most_columns in WARM_UP:
        X, y = dense_data(n, min(d, most_columns), dtype)
        for solver in solvers:
            sorel.solve(build(X, y, risk), solver, tol=1e-6, max_passes=20)


def timed_solve(
    X: Any,
    y: np.ndarray,
    risk: str,
    budget: Budget,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    max_passes: float = 10**7,
    unit: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Solve fresh problems; the peak of memory is that of the first one."""
    before = products(X) if unit else []
    memory = PeakMemory()
    peaks: list[int] = []
    builds: list[float] = []
    result = None

    def run() -> float:
        nonlocal result
        result = None
        begin = time.perf_counter()
        problem = build(X, y, risk, **options)
        builds.append(time.perf_counter() - begin)
        result = sorel.solve(
            problem, solver, tol=tol, max_passes=max_passes, max_seconds=budget.seconds
        )
        seconds = time.perf_counter() - begin - builds[-1]
        if not peaks:
            peaks.append(memory.peak())
        return seconds

    seconds = budget.repeat(run)
    return {
        "shape": X.shape,
        "seconds": seconds,
        "build": median(builds),
        "product": median(before + products(X)) if unit else None,
        "passes": result.passes,
        "n_iter": result.n_iter,
        "relative_gap": result.relative_gap,
        "converged": result.converged,
        "status": result.status,
        "X_bytes": memory_of(X),
        "above_X": peaks[0] - memory.base,
        "memory": memory.method,
    }


def dense(
    n: int,
    d: int,
    risk: str,
    budget: Budget,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    max_passes: float = 10**7,
    dtype: str = "float64",
) -> dict[str, Any]:
    """One solver on generated dense data."""
    warm_up(d, risk, dtype, (solver,))
    X, y = dense_data(n, d, dtype)
    return timed_solve(X, y, risk, budget, solver=solver, tol=tol, max_passes=max_passes)


def sparse(
    n: int, d: int, nonzeros: int, risk: str, budget: Budget, *, tol: float
) -> dict[str, Any]:
    """`auto` with the logistic loss on a sparse matrix with many columns."""
    for rows, columns in ((2_000, d), (20_000, 2_000)):
        X, y = sparse_data(rows, columns, min(nonzeros, columns // 4))
        sorel.solve(build(X, y, risk, loss="logistic"), tol=tol, max_passes=20)
    X, y = sparse_data(n, d, nonzeros)
    return timed_solve(X, y, risk, budget, tol=tol, loss="logistic")


def lbfgs_dense(n: int, d: int, risk: str, budget: Budget, *, target: float) -> dict[str, Any]:
    X, y = dense_data(n, d)
    return time_lbfgs(X, y, risk, "squared", target, 0.01 * target, budget)


def lbfgs_sparse(
    n: int, d: int, nonzeros: int, risk: str, budget: Budget, *, target: float
) -> dict[str, Any]:
    X, y = sparse_data(n, d, nonzeros)
    return time_lbfgs(X, y, risk, "logistic", target, 0.1 * target, budget)


def time_lbfgs(
    X: Any,
    y: np.ndarray,
    risk: str,
    loss: str,
    target: float,
    reference_tol: float,
    budget: Budget,
) -> dict[str, Any]:
    """Time of L-BFGS-B to a suboptimality, against an optimum that `auto` certifies better."""
    reference = sorel.solve(
        build(X, y, risk, loss=loss),
        tol=reference_tol,
        max_passes=10**7,
        max_seconds=budget.seconds,
    )
    optimum = reference.objective
    objective = SortedObjective(X, y, sorel.parse_risk(risk), loss)
    best, evaluations, reached = np.inf, 0, False

    def run() -> float:
        nonlocal best, evaluations, reached
        best, evaluations, reached = np.inf, 0, False
        begin = time.perf_counter()

        def on_value(value: float) -> None:
            nonlocal best, evaluations, reached
            best, evaluations = min(best, value), evaluations + 1
            reached = value - optimum <= target * abs(optimum)
            if reached or time.perf_counter() - begin > budget.seconds:
                raise Stop

        objective.lbfgs(on_value)
        return time.perf_counter() - begin

    seconds = run()
    if reached and seconds < 0.5 * budget.seconds:
        seconds = budget.repeat(run)
    return {
        "shape": X.shape,
        "seconds": seconds,
        "converged": reached,
        "evaluations": evaluations,
        "target": target,
        "suboptimality": (best - optimum) / abs(optimum),
        "reference_gap": reference.relative_gap,
    }


def write_files(folder: str, n: int, d: int) -> dict[str, Any]:
    """X in float32 and y as .npy files, block by block."""
    with contextlib.ExitStack() as stack:
        X_file = stack.enter_context(open(Path(folder, "X.npy"), "wb"))
        y_file = stack.enter_context(open(Path(folder, "y.npy"), "wb"))
        for file, dtype, shape in ((X_file, np.float32, (n, d)), (y_file, np.float64, (n,))):
            description = np.lib.format.dtype_to_descr(np.dtype(dtype))
            header = {"descr": description, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        for _, rows, targets in blocks(n, d):
            X_file.write(rows.astype(np.float32).tobytes())
            y_file.write(targets.tobytes())
    return {"bytes": Path(folder, "X.npy").stat().st_size}


def from_file(
    folder: str, mapped: bool, risk: str, budget: Budget, *, tol: float
) -> dict[str, Any]:
    """`auto` on X in a file, mapped or loaded, with the file in the page cache."""
    path = Path(folder, "X.npy")
    _, d = np.load(path, mmap_mode="r").shape
    warm_up(d, risk, "float32")
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass
    y = np.load(Path(folder, "y.npy"))
    before = PeakMemory()
    anonymous = _anonymous()
    X = np.load(path, mmap_mode="r" if mapped else None)
    with AnonymousMemory() as sampled:
        # A product would map all of the file before memory is measured.
        record = timed_solve(X, y, risk, budget, tol=tol, unit=False)
    peak = before.peak()
    record["with_X"] = peak - before.base if before.method == "VmHWM" else None
    record["anonymous"] = None if sampled.peak is None else sampled.peak - anonymous
    return record


def _anonymous() -> int:
    try:
        return _status("RssAnon")
    except OSError:
        return 0


def threads(
    n: int, d: int, gram_d: int, risk: str, budget: Budget, *, jobs: int, tol: float
) -> dict[str, Any]:
    """The same work with one thread and with several, in turns."""
    warm_up(d, risk)
    record: dict[str, Any] = {"cores": _cores(), "jobs": jobs, "seconds": {}}
    X, y = dense_data(n, d)
    problems = {k: build(X, y, risk, n_jobs=k) for k in (1, jobs)}
    w = np.full(d, 0.1)
    points = {k: problem.engine.point(w) for k, problem in problems.items()}
    # Equal weights: the worst case would leave out most rows, whose weight is 0.
    duals = {k: problem.engine.uniform() for k, problem in problems.items()}

    def objective(k: int) -> None:
        problems[k].objective(w)

    def gradient(k: int) -> None:
        problems[k].engine.gradient(points[k], duals[k])

    def full_pass(k: int) -> None:
        objective(k)
        gradient(k)

    def solve(k: int) -> None:
        problem = build(X, y, risk, n_jobs=k)
        sorel.solve(problem, tol=tol, max_passes=10**7, max_seconds=budget.seconds)

    team = {k: Team(X.size, k) for k in (1, jobs)}

    def read(k: int) -> None:
        team[k].sweep(lambda start, stop: np.sum(X.ravel()[start:stop]))

    for name, action in (
        (f"reading X, d={d}", read),
        (f"objective, d={d}", objective),
        (f"gradient, d={d}", gradient),
        (f"full pass (both), d={d}", full_pass),
        (f"whole solve to {tol:.0e}, d={d}", solve),
    ):
        record["seconds"][name] = in_turns(action, (1, jobs), budget)
    labels = np.where(y > 0.0, 1.0, -1.0)
    for name, matrix, target, loss in (
        (f"full pass, float32, d={d}", X.astype(np.float32), y, "squared"),
        (f"full pass, logistic, d={d}", X, labels, "logistic"),
    ):
        problems = {k: build(matrix, target, risk, loss=loss, n_jobs=k) for k in (1, jobs)}
        points = {k: problem.engine.point(w) for k, problem in problems.items()}
        record["seconds"][name] = in_turns(full_pass, (1, jobs), budget)
    del X, y, problems, points, duals, matrix
    X, y = sparse_data(n // 5, n // 10, 75)
    problems = {k: build(X, y, risk, loss="logistic", n_jobs=k) for k in (1, jobs)}
    w = np.full(n // 10, 0.1)
    points = {k: problem.engine.point(w) for k, problem in problems.items()}
    duals = {k: problem.engine.uniform() for k, problem in problems.items()}
    name = "full pass, sparse logistic, 75 nonzeros a row"
    record["seconds"][name] = in_turns(full_pass, (1, jobs), budget)
    X, y = dense_data(n, gram_d)
    problems = {k: build(X, y, risk, n_jobs=k) for k in (1, jobs)}
    w = np.full(gram_d, 0.1)
    points = {k: problem.engine.point(w) for k, problem in problems.items()}
    duals = {k: problem.engine.uniform() for k, problem in problems.items()}

    def gram(k: int) -> None:
        problems[k].engine.hessian(points[k], duals[k])

    record["seconds"][f"Gram matrix, d={gram_d}"] = in_turns(gram, (1, jobs), budget)
    return record


def in_turns(action: Callable[[Any], object], keys: tuple[Any, ...], budget: Budget) -> list[float]:
    """Median duration for each key; the keys take turns, so that other load hits all alike."""
    durations: dict[Any, list[float]] = {key: [] for key in keys}
    for key in keys:
        action(key)
    spent = 0.0
    while len(durations[keys[0]]) < 3 or (
        len(durations[keys[0]]) < 5 * budget.repeats and spent < 0.05 * budget.seconds
    ):
        for key in keys:
            durations[key].append(duration(lambda key=key: action(key)))
            spent += durations[key][-1]
    return [median(durations[key]) for key in keys]


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def part(
    n: int, d: int, risk: str, budget: Budget, *, targets: tuple[float, ...]
) -> dict[str, Any]:
    """`auto`, which starts from a part of the rows, and `newton`, which does not, in turns."""
    warm_up(d, risk, solvers=("newton", "auto"))
    X, y = dense_data(n, d)
    record: dict[str, Any] = {"product": median(products(X)), "targets": []}
    for target in targets:
        results: dict[str, sorel.Result] = {}

        def run(solver: str, tol: float = target, results: dict = results) -> None:
            results[solver] = sorel.solve(
                build(X, y, risk), solver, tol=tol, max_passes=10**7, max_seconds=budget.seconds
            )

        seconds = in_turns(run, ("newton", "auto"), budget)
        record["targets"].append(
            {
                "target": target,
                "seconds": dict(zip(("newton", "auto"), seconds, strict=True)),
                "passes": {name: result.passes for name, result in results.items()},
                "converged": {name: result.converged for name, result in results.items()},
            }
        )
    return record


def outer_iteration(
    n: int, d: int, risk: str, budget: Budget, *, passes: tuple[float, float]
) -> dict[str, Any]:
    """Time of one outer iteration of `sorel`: the slope between a short and a long run."""
    warm_up(d, risk, solvers=("sorel",))
    X, y = dense_data(n, d)
    unit = products(X)
    problem = build(X, y, risk)
    slopes, slopes_unchecked = [], []
    for _ in range(budget.repeats):
        ends = []
        for limit in passes:
            begin = time.perf_counter()
            result = sorel.solve(problem, "sorel", tol=0.0, max_passes=limit)
            ends.append((result.n_iter, time.perf_counter() - begin, result.history[-1].seconds))
            unit += products(X, 2)
        (first, begin, begin_unchecked), (last, end, end_unchecked) = ends
        slopes.append((end - begin) / (last - first))
        slopes_unchecked.append((end_unchecked - begin_unchecked) / (last - first))
    return {
        "product": median(unit),
        "iteration": median(slopes),
        "without_checks": median(slopes_unchecked),
        "n_iter": [first, last],
    }


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "dense": dense,
    "sparse": sparse,
    "lbfgs_dense": lbfgs_dense,
    "lbfgs_sparse": lbfgs_sparse,
    "write_files": write_files,
    "from_file": from_file,
    "threads": threads,
    "part": part,
    "outer_iteration": outer_iteration,
}


def main(argv: list[str]) -> int:
    case = json.loads(argv[0])
    measure = MEASURES[case.pop("measure")]
    if "budget" in case:
        case["budget"] = Budget(**case["budget"])
    # A missed target is an entry of the table.
    warnings.simplefilter("ignore", sorel.ConvergenceWarning)
    print(json.dumps(measure(**case)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
