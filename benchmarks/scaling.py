"""How time and memory grow: with rows, with columns, on disk, with threads, and beside L-BFGS.

Every case runs in a process of its own with one thread, unless the table is about threads; see
``benchmarks.scaling_cases`` for what is measured and benchmarks/README.md for how to read it. Run
as ``python -m benchmarks.scaling [--quick] [--only SECTION ...]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import sorel
from benchmarks.common import Budget, markdown, show_seconds

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path("scaling-output", "scaling.png")
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
CVAR, ESRM = "cvar:0.1", "esrm:2"
NAMES = {CVAR: "CVaR(0.1)", ESRM: "ESRM(2)", "cvar:0.5": "CVaR(0.5)"}
TOL = 1e-6
# `sorel` runs for so many passes; its time is given for so many outer iterations, which take two
# passes each where n is small, and less where it is large.
FIXED_PASSES, FIXED_ITERATIONS = 20, 10
OUTER_PASSES = (10, 40)
PART_TARGETS = (1e-2, 1e-4, 1e-6)
JOBS = 2
MOST_VECTORS = 12


@dataclass(frozen=True)
class Sizes:
    """Shapes of the problems of each section."""

    rows: tuple[int, ...] = (10**4, 10**5, 10**6, 10**7)
    rows_d: int = 20
    columns: tuple[int, ...] = (10, 50, 200, 1000, 2000)
    columns_n: int = 10**5
    sparse: tuple[int, int, int] = (200_000, 100_000, 75)
    precision: tuple[int, int] = (10**6, 50)
    disk: tuple[int, int] = (2 * 10**7, 20)
    threads: tuple[int, int, int] = (10**6, 50, 100)
    part: tuple[int, int] = (10**6, 20)
    outer: tuple[int, int] = (10**6, 50)


QUICK = Sizes(
    rows=(10**4, 10**5),
    columns=(10, 50, 200),
    columns_n=10**4,
    # As in the full case, too many columns for a d x d matrix.
    sparse=(12_000, 6_000, 75),
    precision=(10**5, 50),
    disk=(10**6, 20),
    threads=(2 * 10**5, 50, 100),
    part=(2 * 10**5, 20),
    outer=(10**5, 50),
)


@dataclass(frozen=True)
class Bar:
    """A number that a section should reach."""

    what: str
    bound: str
    measured: str
    holds: bool | None


@dataclass
class Section:
    """One part of the report."""

    title: str
    lines: list[str]
    bars: list[Bar] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join([f"## {self.title}", "", *self.lines]) + "\n"


class Runner:
    """Runs cases in fresh processes and keeps their raw numbers."""

    def __init__(self, sizes: Sizes, budget: Budget, scratch: Path | None = None) -> None:
        self.sizes, self.budget, self.scratch = sizes, budget, scratch
        self.records: list[dict[str, Any]] = []

    def __call__(self, measure: str, *, threads: int = 1, **case: Any) -> dict[str, Any]:
        """The numbers of one case, or ``{"failed": why}``."""
        words = ", ".join(f"{key}={value}" for key, value in case.items() if key != "folder")
        print(f"{measure}: {words}", file=sys.stderr, flush=True)
        if measure != "write_files":
            case["budget"] = asdict(self.budget)
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        arguments = json.dumps({"measure": measure, **case})
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.scaling_cases", arguments],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600.0 + 10.0 * self.budget.seconds,
            )
        except subprocess.TimeoutExpired as error:
            record = {"failed": f"not done after {error.timeout:.0f} s"}
        else:
            record = _outcome(done)
        if "failed" in record:
            print(f"  failed: {record['failed']}", file=sys.stderr, flush=True)
        self.records.append({"measure": measure, **case, **record})
        return record


def _outcome(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode < 0:
        return {"failed": f"killed by signal {-done.returncode}; is there enough memory?"}
    if done.returncode > 0:
        lines = done.stderr.strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """Slope of the least-squares line through log(seconds) over log(sizes)."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def steepest(sizes: list[float], seconds: list[float]) -> float:
    """Largest slope between neighbours on the log-log plot."""
    return float(np.max(np.diff(np.log(seconds)) / np.diff(np.log(sizes))))


def show_exponent(pairs: list[tuple[float, dict[str, Any]]]) -> tuple[str, float]:
    """The fitted exponent over the cases that got there, in words and as a number."""
    good = [(size, record["seconds"]) for size, record in pairs if "failed" not in record]
    if len(good) < 2:
        return "-", math.nan
    sizes, seconds = map(list, zip(*good, strict=True))
    fitted = exponent(sizes, seconds)
    return f"{fitted:.2f} (steepest step {steepest(sizes, seconds):.2f})", fitted


def show_size(number: int) -> str:
    digits = f"{number:.0e}".replace("e+0", "e").replace("e+", "e")
    return digits if float(digits) == number else str(number)


def show_bytes(size: float | None) -> str:
    if size is None:
        return "-"
    return f"{size / 1e9:.2f} GB" if abs(size) >= 1e9 else f"{size / 1e6:.1f} MB"


def show_time(record: dict[str, Any]) -> str:
    """Seconds, and passes or evaluations in brackets; or why there are none."""
    if "failed" in record:
        return "failed"
    seconds = show_seconds(record["seconds"])
    if not record["converged"]:
        left = record.get("suboptimality", record.get("relative_gap"))
        return f"never ({left:.0e} after {seconds})"
    return f"{seconds} ({record.get('passes', record.get('evaluations')):.3g})"


def show_fixed(record: dict[str, Any]) -> str:
    return "failed" if "failed" in record else show_seconds(record["seconds"])


def in_products(record: dict[str, Any]) -> float:
    if "failed" in record or not record["converged"]:
        return math.nan
    return record["seconds"] / record["product"]


def show_number(number: float, digits: str = ".1f") -> str:
    return "-" if math.isnan(number) else format(number, digits)


def vectors(record: dict[str, Any]) -> float:
    """Peak memory above X in vectors of n float64."""
    if "failed" in record:
        return math.nan
    return record["above_X"] / (8 * record["shape"][0])


def failures(records: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        f"- {name}: {record['failed']}" for name, record in records.items() if "failed" in record
    ]
    return ["", "Failed:", "", *lines] if lines else []


def remarks(records: dict[str, dict[str, Any]]) -> list[str]:
    """Failed cases, and cases of L-BFGS whose yardstick is itself uncertain."""
    lines = failures(records)
    for name, record in records.items():
        gap = record.get("reference_gap", 0.0)
        if gap > record.get("target", math.inf):
            lines += ["", f"{name}: the reference optimum is certified to {gap:.0e} only."]
    return lines


def for_fixed_iterations(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a run of `sorel`, its time brought to a fixed number of outer iterations."""
    if "failed" in record:
        return record
    share = FIXED_ITERATIONS / record["n_iter"]
    return {**record, "seconds": share * record["seconds"]}


def over_rows(run: Runner) -> Section:
    d = run.sizes.rows_d
    methods: dict[str, Callable[[int], dict[str, Any]]] = {
        "auto": lambda n: run("dense", n=n, d=d, risk=CVAR, tol=TOL),
        "auto, ESRM": lambda n: run("dense", n=n, d=d, risk=ESRM, tol=TOL),
        "sorel": lambda n: for_fixed_iterations(
            run("dense", n=n, d=d, risk=CVAR, solver="sorel", tol=0.0, max_passes=FIXED_PASSES)
        ),
        "L-BFGS": lambda n: run("lbfgs_dense", n=n, d=d, risk=CVAR, target=TOL),
        "L-BFGS, ESRM": lambda n: run("lbfgs_dense", n=n, d=d, risk=ESRM, target=TOL),
    }
    outcome = {n: {name: case(n) for name, case in methods.items()} for n in run.sizes.rows}
    ours_names = ("auto", "auto, ESRM", "sorel")
    times, memory = [], []
    for n, records in outcome.items():
        auto = records["auto"]
        times.append(
            [
                show_size(n),
                "-" if "failed" in auto else show_seconds(auto["product"]),
                show_time(auto),
                show_number(in_products(auto), ".0f"),
                show_time(records["L-BFGS"]),
                show_time(records["auto, ESRM"]),
                show_time(records["L-BFGS, ESRM"]),
                show_fixed(records["sorel"]),
            ]
        )
        ours = [records[name] for name in ours_names]
        memory.append(
            [
                show_size(n),
                show_bytes(auto.get("X_bytes")),
                *(
                    f"{show_bytes(record.get('above_X'))} ({show_number(vectors(record))})"
                    for record in ours
                ),
            ]
        )
    fits = {
        name: show_exponent([(n, outcome[n][name]) for n in outcome if _arrived(outcome[n][name])])
        for name in methods
    }
    times.append(
        [
            "exponent",
            "",
            fits["auto"][0],
            "",
            fits["L-BFGS"][0],
            fits["auto, ESRM"][0],
            fits["L-BFGS, ESRM"][0],
            fits["sorel"][0],
        ]
    )
    all_ours = [outcome[n][name] for n in outcome for name in ours_names]
    # Buffers that do not grow with n count as vectors where n is small.
    largest = max(run.sizes.rows)
    # A case that failed makes the largest unknown.
    worst = float(np.max([vectors(outcome[largest][name]) for name in ours_names]))
    ends = f"{show_size(min(run.sizes.rows))} to {show_size(largest)}"
    fixed = fits["sorel"][1]
    return Section(
        f"Rows: d={d}, dense float64, Student-t noise",
        [
            f"Time to a certified {TOL:.0e} (passes in brackets), to a suboptimality of {TOL:.0e} "
            f"for L-BFGS (evaluations), and of {FIXED_ITERATIONS} outer iterations of `sorel`.",
            "",
            markdown(
                [
                    "n",
                    "one X@w",
                    "auto, CVaR(0.1)",
                    "in X@w",
                    "L-BFGS, CVaR(0.1)",
                    "auto, ESRM(2)",
                    "L-BFGS, ESRM(2)",
                    f"sorel, {FIXED_ITERATIONS} iterations",
                ],
                times,
            ),
            "",
            f"Peak memory above X, in brackets in vectors of n float64 ({_methods(all_ours)}).",
            "",
            markdown(["n", "X", "auto, CVaR(0.1)", "auto, ESRM(2)", "sorel, CVaR(0.1)"], memory),
            *remarks(
                {f"n={show_size(n)}, {name}": outcome[n][name] for n in outcome for name in methods}
            ),
        ],
        [
            Bar(
                f"exponent of time in n, {ends}, fixed outer iterations",
                "<= 1.1",
                show_number(fixed, ".2f"),
                _within(fixed, 1.1),
            ),
            Bar(
                f"peak memory above X, n={show_size(largest)}, d={d}",
                f"<= {MOST_VECTORS} vectors of n",
                show_number(worst),
                _within(worst, MOST_VECTORS),
            ),
        ],
    )


def _arrived(record: dict[str, Any]) -> bool:
    """Whether a time says something about growth: targets reached, or a fixed amount of work."""
    return "failed" not in record and (
        record["converged"] or "max_passes" in record.get("status", "")
    )


def _within(value: float, bound: float) -> bool | None:
    return None if math.isnan(value) else value <= bound


def _methods(records: list[dict[str, Any]]) -> str:
    used = sorted({record["memory"] for record in records if "failed" not in record})
    return "by " + " and ".join(used) if used else "not measured"


def over_columns(run: Runner) -> Section:
    n = run.sizes.columns_n
    outcome = {
        d: {
            "auto": run("dense", n=n, d=d, risk=CVAR, tol=TOL),
            "L-BFGS": run("lbfgs_dense", n=n, d=d, risk=CVAR, target=TOL),
        }
        for d in run.sizes.columns
    }
    rows = []
    for d, records in outcome.items():
        auto = records["auto"]
        rows.append(
            [
                str(d),
                "-" if "failed" in auto else show_seconds(auto["product"]),
                show_time(auto),
                show_number(in_products(auto), ".0f"),
                show_time(records["L-BFGS"]),
                show_bytes(auto.get("X_bytes")),
                f"{show_bytes(auto.get('above_X'))} ({show_number(vectors(auto))})",
                f"{show_bytes(8 * d * d)} ({d * d / n:.1f})",
            ]
        )
    fits = [
        show_exponent([(d, outcome[d][name]) for d in outcome if _arrived(outcome[d][name])])[0]
        for name in ("auto", "L-BFGS")
    ]
    rows.append(["exponent", "", fits[0], "", fits[1], "", "", ""])
    return Section(
        f"Columns: n={show_size(n)}, dense float64, CVaR(0.1), {TOL:.0e}",
        [
            "Passes or evaluations in brackets beside times, vectors of n float64 beside memory.",
            "",
            markdown(
                ["d", "one X@w", "auto", "in X@w", "L-BFGS", "X", "above X", "one d x d"], rows
            ),
            *remarks({f"d={d}, {name}": outcome[d][name] for d in outcome for name in outcome[d]}),
        ],
    )


def sparse(run: Runner) -> Section:
    n, d, nonzeros = run.sizes.sparse
    shape = {"n": n, "d": d, "nonzeros": nonzeros}
    rows, bars, records = [], [], {}
    for risk, tol, bound, goal in (("cvar:0.5", 1e-3, 500, 200), (CVAR, 1e-2, 800, 300)):
        ours = run("sparse", **shape, risk=risk, tol=tol)
        rival = run("lbfgs_sparse", **shape, risk=risk, target=tol)
        pairs = in_products(ours)
        rows.append(
            [
                NAMES[risk],
                f"{tol:.0e}",
                "-" if "failed" in ours else show_seconds(ours["product"]),
                show_time(ours),
                show_number(pairs, ".0f"),
                show_time(rival),
                show_bytes(ours.get("X_bytes")),
                f"{show_bytes(ours.get('above_X'))} ({show_number(vectors(ours))})",
            ]
        )
        bars.append(
            Bar(
                f"sparse, certified {tol:.0e} at {NAMES[risk]}",
                f"<= {bound} pairs of products (goal {goal})",
                show_number(pairs, ".0f"),
                None if "failed" in ours else pairs <= bound,
            )
        )
        records |= {f"{NAMES[risk]}, auto": ours, f"{NAMES[risk]}, L-BFGS": rival}
    return Section(
        f"Sparse: n={show_size(n)}, d={show_size(d)}, {nonzeros} nonzeros a row",
        [
            "Columns by a power law, logistic loss, noisy labels, l2=1/n. A pair is one X@w and "
            "one X.T@v by SciPy in the same process. L-BFGS has to reach the same suboptimality.",
            "",
            markdown(
                ["risk", "target", "one pair", "auto", "in pairs", "L-BFGS", "X", "above X"], rows
            ),
            *remarks(records),
        ],
        bars,
    )


def precision(run: Runner) -> Section:
    n, d = run.sizes.precision
    rows, records = [], {}
    for tol in (1e-4, 1e-6):
        for dtype in ("float64", "float32"):
            record = run("dense", n=n, d=d, risk=CVAR, tol=tol, dtype=dtype)
            records[f"{dtype}, {tol:.0e}"] = record
            failed = "failed" in record
            rows.append(
                [
                    f"{tol:.0e}",
                    dtype,
                    "-" if failed else show_seconds(record["product"]),
                    show_time(record),
                    show_bytes(record.get("X_bytes")),
                    f"{show_bytes(record.get('above_X'))} ({show_number(vectors(record))})",
                    "-" if failed else show_bytes(record["X_bytes"] + record["above_X"]),
                ]
            )
    return Section(
        f"float32 against float64: n={show_size(n)}, d={d}, auto, CVaR(0.1)",
        [
            markdown(["target", "type", "one X@w", "time", "X", "above X", "together"], rows),
            *failures(records),
        ],
    )


def disk(run: Runner) -> Section:
    n, d = run.sizes.disk
    title = f"Memory against disk: n={show_size(n)}, d={d}, float32, auto, CVaR(0.1), 1e-04"
    needed = 4 * n * d + 8 * n
    with tempfile.TemporaryDirectory(prefix="sorel-scaling-", dir=run.scratch) as folder:
        free = shutil.disk_usage(folder).free
        if free < 1.1 * needed:
            why = f"{show_bytes(needed)} are needed on disk and {show_bytes(free)} are free"
            return Section(title, [f"Left out: {why}; use --scratch FOLDER."])
        written = run("write_files", folder=folder, n=n, d=d)
        if "failed" in written:
            return Section(title, failures({"writing the file": written}))
        records = {
            name: run("from_file", folder=folder, mapped=name == "mapped", risk=CVAR, tol=1e-4)
            for name in ("in memory", "mapped")
        }
    rows = []
    for name, record in records.items():
        failed = "failed" in record
        above = None if failed or record["anonymous"] is None else record["anonymous"]
        rows.append(
            [
                name,
                "-" if failed else show_seconds(record["build"]),
                show_time(record),
                show_bytes(record.get("with_X")),
                show_bytes(above),
                "-" if above is None else f"{above / (8 * n):.1f}",
            ]
        )
    ratio = math.nan
    good = all(_arrived(record) for record in records.values())
    if good:
        whole = {name: record["build"] + record["seconds"] for name, record in records.items()}
        ratio = whole["mapped"] / whole["in memory"]
    beside = beside_vectors(records["mapped"], n)
    return Section(
        title,
        [
            f"X.npy has {show_bytes(written['bytes'])}; the page cache is warm. Resident memory "
            "counts from before X is opened, y not included; pages of a mapped file are part of "
            "it, though the system may drop them, and are left out of the last two columns.",
            "",
            markdown(
                ["X", "build", "solve", "peak resident", "without file pages", "in vectors of n"],
                rows,
            ),
            "",
            f"Mapped over in memory, build and solve: {show_number(ratio, '.2f')}.",
            *failures(records),
        ],
        [
            Bar(
                f"on disk over in memory, n={show_size(n)}, float32",
                "<= 4",
                show_number(ratio, ".2f"),
                _within(ratio, 4.0),
            ),
            Bar(
                f"resident memory from disk beside {MOST_VECTORS} vectors of n",
                "<= 1 GB",
                "-" if math.isnan(beside) else show_bytes(beside),
                _within(beside, 1e9),
            ),
        ],
    )


def beside_vectors(record: dict[str, Any], n: int) -> float:
    """Pages of the file, and what other memory there is beyond the vectors that are allowed."""
    if "failed" in record or record["with_X"] is None or record["anonymous"] is None:
        return math.nan
    pages = max(0, record["with_X"] - record["anonymous"])
    return pages + max(0, record["anonymous"] - MOST_VECTORS * 8 * n)


def threads(run: Runner) -> Section:
    n, d, gram_d = run.sizes.threads
    record = run("threads", n=n, d=d, gram_d=gram_d, risk=CVAR, jobs=JOBS, tol=TOL)
    title = f"{JOBS} threads against 1: n={show_size(n)}, CVaR(0.1)"
    if "failed" in record:
        return Section(title, failures({"threads": record}))
    rows, speedups = [], {}
    for name, (one, several) in record["seconds"].items():
        speedups[name] = one / several
        rows.append([name, show_seconds(one), show_seconds(several), f"{one / several:.2f}"])
    full = next(value for name, value in speedups.items() if name.startswith("full pass"))
    enough = record["cores"] >= JOBS
    note = f"The process may use {record['cores']} core{'s'[: record['cores'] != 1]}"
    note += ": too few to show a gain." if not enough else "; both take turns in one process."
    note += (
        " A sum over X shows how fast memory can be read: no pass over a dense X larger than the"
        " cache can gain more than that, unless one thread leaves time to spare."
    )
    header = ["work", "n_jobs=1", f"n_jobs={JOBS}", "speed-up"]
    return Section(
        title,
        [note, "", markdown(header, rows)],
        [
            Bar(
                f"{JOBS} threads against 1 on full passes",
                ">= 1.6",
                f"{full:.2f}" + ("" if enough else f" on {record['cores']} core"),
                full >= 1.6 if enough else None,
            )
        ],
    )


def part(run: Runner) -> Section:
    n, d = run.sizes.part
    rows, records = [], {}
    for risk in ("cvar:0.5", CVAR, ESRM):
        record = records[risk] = run("part", n=n, d=d, risk=risk, targets=PART_TARGETS)
        for entry in record.get("targets", []):
            cells = [
                f"{show_seconds(entry['seconds'][name])} ({entry['passes'][name]:.3g})"
                if entry["converged"][name]
                else "never"
                for name in ("newton", "auto")
            ]
            ratio = entry["seconds"]["newton"] / entry["seconds"]["auto"]
            products = entry["seconds"]["auto"] / record["product"]
            rows.append(
                [NAMES[risk], f"{entry['target']:.0e}", *cells, f"{ratio:.2f}", f"{products:.0f}"]
            )
    return Section(
        f"What a start from part of the rows buys: n={show_size(n)}, d={d}",
        [
            "`newton` sees all rows from the start; `auto` is the same method, started near the "
            "solution for a random part of them. Both certify on all rows. Passes in brackets.",
            "",
            markdown(
                ["risk", "target", "newton", "auto", "newton / auto", "auto in X@w"],
                rows,
            ),
            *failures(records),
        ],
    )


def outer(run: Runner) -> Section:
    n, d = run.sizes.outer
    rows, bars, records = [], [], {}
    for risk in (CVAR, "cvar:0.5", ESRM):
        record = run("outer_iteration", n=n, d=d, risk=risk, passes=OUTER_PASSES)
        records[risk] = record
        if "failed" in record:
            continue
        ratios = [record[key] / record["product"] for key in ("iteration", "without_checks")]
        rows.append(
            [
                NAMES[risk],
                show_seconds(record["product"]),
                show_seconds(record["iteration"]),
                f"{ratios[0]:.1f}",
                f"{ratios[1]:.1f}",
                "{} and {}".format(*record["n_iter"]),
            ]
        )
        bars.append(
            Bar(
                f"one outer iteration of `sorel`, n={show_size(n)}, d={d}, {NAMES[risk]}",
                "<= 6 X@w",
                f"{ratios[0]:.1f} ({ratios[1]:.1f} without checks)",
                ratios[0] <= 6.0,
            )
        )
    return Section(
        f"One outer iteration of `sorel`: n={show_size(n)}, d={d}, dense float64",
        [
            "A stochastic epoch, a full gradient, a projection and the certificate: the slope "
            "between runs of different length. Without checks: the certificate left out.",
            "",
            markdown(
                ["risk", "one X@w", "one iteration", "in X@w", "without checks", "iterations"], rows
            ),
            *failures(records),
        ],
        bars,
    )


SECTIONS: dict[str, Callable[[Runner], Section]] = {
    "rows": over_rows,
    "columns": over_columns,
    "sparse": sparse,
    "float32": precision,
    "disk": disk,
    "threads": threads,
    "part": part,
    "outer": outer,
}


def summary(sections: list[Section]) -> str:
    words = {True: "yes", False: "no", None: "-"}
    rows = [
        [bar.what, bar.bound, bar.measured, words[bar.holds]]
        for section in sections
        for bar in section.bars
    ]
    if not rows:
        return ""
    return "## Summary\n\n" + markdown(["", "bar", "measured", "holds"], rows) + "\n"


def heading(quick: bool, budget: Budget, load: float) -> str:
    sizes = " Small sizes (`--quick`): these numbers say nothing about large ones." if quick else ""
    return (
        "# Scaling\n\n"
        f"sorel {sorel.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"SciPy {scipy.__version__}, {platform.machine()}; every case "
        "in a process of its own, one thread unless said otherwise, compiled code warm; median of "
        f"{budget.repeats} or more runs where time allows, at most {budget.seconds:g} s each. "
        f"Load of the machine at the start: {load:.1f} on {os.cpu_count()} cores.{sizes}\n"
    )


def draw(records: list[dict[str, Any]], path: Path) -> bool:
    """Time and memory over n on logarithmic axes; False where there is nothing to draw."""
    curves: dict[str, list[dict[str, Any]]] = {}
    d = None
    for record in records:
        if record.get("section") != "rows" or not _arrived(record):
            continue
        d = record["d"]
        name = "L-BFGS" if record["measure"] == "lbfgs_dense" else record.get("solver", "auto")
        if name == "sorel":
            name = f"sorel, {FIXED_ITERATIONS} outer iterations"
            record = for_fixed_iterations(record)
        curves.setdefault(f"{name}, {NAMES[record['risk']]}", []).append(record)
    if not curves:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    everything = [record for curve in curves.values() for record in curve]
    n = np.array(sorted({record["n"] for record in everything}), dtype=float)
    for name, curve in curves.items():
        x = [record["n"] for record in curve]
        dashed = "--" if name.startswith("L-BFGS") else "-"
        (line,) = left.loglog(x, [r["seconds"] for r in curve], dashed, marker="o", label=name)
        if "above_X" in curve[0]:
            above = [record["above_X"] / 1e6 for record in curve]
            right.loglog(x, above, marker="o", color=line.get_color(), label=name)
    lowest = min(record["seconds"] for record in everything if record["n"] == n[0])
    left.loglog(n, 0.5 * lowest * n / n[0], ":", color="gray", label="slope 1")
    right.loglog(
        n, MOST_VECTORS * 8e-6 * n, ":", color="gray", label=f"{MOST_VECTORS} vectors of n"
    )
    right.loglog(n, d * 8e-6 * n, "--", color="gray", label="X itself")
    left.set(xlabel="n", ylabel="seconds", title=f"Time to {TOL:.0e}, d={d}")
    right.set(xlabel="n", ylabel="MB", title="Peak memory above X")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def main(argv: list[str] | None = None, sizes: Sizes | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, short limits")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS)
    )
    parser.add_argument(
        "--seconds", type=float, help="wall-clock limit of one run (default: 300, quick: 5)"
    )
    parser.add_argument("--repeats", type=int, help="timed runs per number (default: 5, quick: 3)")
    parser.add_argument("--out", type=Path, help="Markdown file (default: none)")
    parser.add_argument("--json", type=Path, help="file for the raw numbers (default: none)")
    parser.add_argument(
        "--picture",
        type=Path,
        default=PICTURE,
        help=f"picture of section rows (default: {PICTURE})",
    )
    parser.add_argument("--scratch", type=Path, help="folder for the file of section disk")
    options = parser.parse_args(argv)
    budget = Budget(
        options.repeats or (3 if options.quick else 5),
        options.seconds or (5.0 if options.quick else 300.0),
    )
    run = Runner(sizes or (QUICK if options.quick else Sizes()), budget, options.scratch)
    top = heading(options.quick, budget, os.getloadavg()[0])
    print(top, flush=True)
    sections: list[Section] = []
    for name in options.only or SECTIONS:
        seen = len(run.records)
        sections.append(SECTIONS[name](run))
        for record in run.records[seen:]:
            record["section"] = name
        print(sections[-1].text(), flush=True)
        # After every section: an interrupted run keeps what it has.
        if options.out is not None:
            texts = [top, summary(sections), *(section.text() for section in sections)]
            options.out.write_text("\n".join(filter(None, texts)), encoding="utf-8")
        if options.json is not None:
            options.json.write_text(json.dumps(run.records, indent=1) + "\n", encoding="utf-8")
    print(summary(sections), end="")
    if draw(run.records, options.picture):
        print(f"picture: {options.picture}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
