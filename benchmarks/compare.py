"""Time to a relative gap of 1e-3, 1e-6 and 1e-9: sorel's solvers against what users do today.

One process, one thread, compiled code warm, median of repeated runs. See benchmarks/README.md for
what is counted. Run as ``python -m benchmarks.compare [--quick] [--update-docs]``.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import scipy
from threadpoolctl import threadpool_info, threadpool_limits

import sorel
from benchmarks.common import (
    Budget,
    SortedObjective,
    Stop,
    duration,
    markdown,
    replace_between,
    show_seconds,
)
from sorel import ESRM, L2, CVaR, Extremile
from sorel.datasets import PAPER_DATASETS, load_diabetes, load_paper_dataset, split_standardized

HERE = Path(__file__).resolve().parent
TARGETS = (1e-3, 1e-6, 1e-9)
SOLVERS = ("auto", "newton", "sorel")
METHODS = ("L-BFGS", *SOLVERS, "Clarabel")
PAPER_RISKS = (CVaR(0.5), ESRM(2.0), Extremile(2.5))
LARGE_RISKS = (CVaR(0.5), ESRM(2.0))
# A conic solver factors a matrix with a few rows per sample; beyond this it is out of its range.
CLARABEL_ROWS = 10_000
MARKERS = ("<!-- bench:start -->", "<!-- bench:end -->")


@dataclass(frozen=True)
class Case:
    """One dataset and the risks to minimise on it."""

    group: str
    name: str
    load: Callable[[], tuple[np.ndarray, np.ndarray]]
    risks: tuple[sorel.risks.Risk, ...]


@dataclass(frozen=True)
class Timing:
    """Seconds and passes to one target; infinite seconds mean that it was never reached."""

    seconds: float
    passes: float = math.nan

    @property
    def reached(self) -> bool:
        return math.isfinite(self.seconds)


NEVER = Timing(math.inf)


@dataclass
class Outcome:
    """All methods on one problem."""

    group: str
    name: str
    risk: str
    shape: tuple[int, int]
    build_seconds: float
    product_seconds: float
    certified: float
    timings: dict[str, dict[float, Timing]] = field(default_factory=dict)

    def ratio(self, method: str, target: float) -> float:
        """Seconds over those of L-BFGS: 0 where only L-BFGS fails, inf where only this one does."""
        ours = self.timings.get(method, {}).get(target)
        theirs = self.timings["L-BFGS"][target]
        if ours is None or not (ours.reached or theirs.reached):
            return math.nan
        return ours.seconds / theirs.seconds if ours.reached else math.inf


@dataclass(frozen=True)
class Contender:
    """A method on its way to one target: what a run of it takes, and the passes of one.

    `once` is the time of a run that is too long for another.
    """

    run: Callable[[], float]
    passes: float = math.nan
    once: float | None = None


def enter_lbfgs(
    objective: SortedObjective, optimum: float, budget: Budget
) -> dict[float, Contender]:
    """Find the evaluation that reaches each target: runs are cut at that evaluation."""
    values: list[float] = []
    begin = time.perf_counter()

    def record(value: float) -> None:
        values.append(value)
        solved = value - optimum <= 0.1 * TARGETS[-1] * abs(optimum)
        if solved or time.perf_counter() - begin > budget.seconds:
            raise Stop

    objective.lbfgs(record)
    found = {}
    for target in TARGETS:
        reached = np.flatnonzero(np.array(values) - optimum <= target * abs(optimum))
        if len(reached):
            count = int(reached[0]) + 1
            found[target] = Contender(partial(_time_cut_run, objective, count), count)
    return found


def _time_cut_run(objective: SortedObjective, evaluations: int) -> float:
    left = evaluations

    def count(value: float) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Stop

    begin = time.perf_counter()
    objective.lbfgs(count)
    return time.perf_counter() - begin


def enter_solver(
    X: np.ndarray, y: np.ndarray, risk: sorel.risks.Risk, solver: str, budget: Budget
) -> dict[float, Contender]:
    """``sorel.solve`` to a certified relative gap, on a fresh problem each time."""

    def run(tol: float) -> tuple[float, sorel.Result]:
        problem = build(X, y, risk)
        begin = time.perf_counter()
        result = sorel.solve(problem, solver, tol=tol, max_passes=10**7, max_seconds=budget.seconds)
        return time.perf_counter() - begin, result

    found = {}
    for target in TARGETS:
        # The first run loads compiled code and is not counted, unless it already uses up the time.
        first, result = run(target)
        if not result.converged:
            # A tighter target would only use up the time limit again.
            break
        once = first if first >= 0.5 * budget.seconds else None
        found[target] = Contender(lambda tol=target: run(tol)[0], result.passes, once)
    return found


def time_in_turn(
    contenders: dict[str, dict[float, Contender]], budget: Budget
) -> dict[str, dict[float, Timing]]:
    """The times of all methods to each target."""
    timings: dict[str, dict[float, Timing]] = {name: {} for name in contenders}
    for target in TARGETS:
        there = {name: found[target] for name, found in contenders.items() if target in found}
        runs = {name: method.run for name, method in there.items() if method.once is None}
        seconds = budget.take_turns(runs)
        for name in contenders:
            method = there.get(name)
            timings[name][target] = NEVER
            if method is not None:
                taken = seconds[name] if method.once is None else method.once
                timings[name][target] = Timing(taken, method.passes)
    return timings


def time_clarabel(
    objective: SortedObjective, alpha: float, optimum: float, budget: Budget
) -> dict[float, Timing]:
    """Time cvxpy with Clarabel on the epigraph form of CVaR; the suboptimality is checked by us."""
    import cvxpy as cp

    n, d = objective.X.shape
    w, threshold = cp.Variable(d), cp.Variable()
    losses = 0.5 * cp.square(objective.X @ w - objective.y)
    tail = threshold + cp.sum(cp.pos(losses - threshold)) / (n * alpha)
    problem = cp.Problem(cp.Minimize(tail + 0.5 * objective.mu * cp.sum_squares(w)))
    timings = {}
    for target in TARGETS:
        # Its default accuracy is 1e-8; a user lowers it for 1e-9 and leaves it alone otherwise.
        accuracy = min(1e-8, 0.1 * target)
        options = {"tol_gap_abs": accuracy, "tol_gap_rel": accuracy, "tol_feas": accuracy}

        def run(options: dict[str, float] = options) -> float:
            begin = time.perf_counter()
            problem.solve(solver=cp.CLARABEL, time_limit=budget.seconds, **options)
            return time.perf_counter() - begin

        try:
            seconds = budget.repeat(run)
        except cp.error.SolverError:
            timings[target] = NEVER
            continue
        reached = w.value is not None and objective(w.value)[0] - optimum <= target * abs(optimum)
        timings[target] = Timing(seconds) if reached else NEVER
    return timings


def build(X: np.ndarray, y: np.ndarray, risk: sorel.risks.Risk) -> sorel.Problem:
    return sorel.Problem(X, y, risk=risk, penalty=L2(1.0 / len(y)))


def best_known(problem: sorel.Problem, seconds: float) -> tuple[float, float]:
    """Lowest objective found and the relative gap that certifies it."""
    result = sorel.solve(problem, tol=1e-12, max_passes=10**7, max_seconds=seconds)
    return result.objective, result.relative_gap


def measure(case: Case, budget: Budget) -> Iterator[Outcome]:
    X, y = case.load()
    w = np.ones(X.shape[1])
    for risk in case.risks:
        build_seconds = budget.repeat(lambda risk=risk: duration(lambda: build(X, y, risk)))
        product_seconds = median(duration(lambda: X @ w) for _ in range(7))
        optimum, certified = best_known(build(X, y, risk), budget.seconds)
        outcome = Outcome(
            case.group, case.name, repr(risk), X.shape, build_seconds, product_seconds, certified
        )
        objective = SortedObjective(X, y, risk)
        contenders = {"L-BFGS": enter_lbfgs(objective, optimum, budget)}
        contenders |= {name: enter_solver(X, y, risk, name, budget) for name in SOLVERS}
        outcome.timings = time_in_turn(contenders, budget)
        if isinstance(risk, CVaR) and len(y) <= CLARABEL_ROWS:
            outcome.timings["Clarabel"] = time_clarabel(objective, risk.alpha, optimum, budget)
        yield outcome


def require_one_thread() -> None:
    """Refuse to measure if a thread pool still has several threads.

    The environment is read when a library is first imported. Had NumPy or SciPy been imported
    earlier, their pools would keep all cores; on a busy machine that slows the tiny BLAS calls of
    L-BFGS-B some hundredfold and flatters every other method.
    """
    pools = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    wrong = {Path(path).name: threads for path, threads in pools.items() if threads != 1}
    if wrong:
        raise SystemExit(f"these libraries still use several threads: {wrong}")


def generated(
    n: int, d: int, *, condition: float = 1.0, heavy: bool = False, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian design with the given condition number of X^T X / n, normal or Student-t noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if condition > 1.0:
        rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
        X = X @ (rotation * np.logspace(0.0, -0.5 * np.log10(condition), d)) @ rotation.T
    # Two degrees of freedom and a bit: the mean loss exists, its variance does not.
    noise = rng.standard_t(2.1, size=n) if heavy else rng.standard_normal(n)
    return X, X @ rng.standard_normal(d) + noise


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    data = split_standardized(*load_diabetes())
    return data.X_train, data.y_train


def cases(quick: bool) -> list[Case]:
    chosen = []
    names = PAPER_DATASETS[:2] if quick else PAPER_DATASETS
    chosen += [
        Case("paper's sets", name, lambda name=name: load_paper_dataset(name), PAPER_RISKS)
        for name in names
    ]
    chosen.append(Case("diabetes", "diabetes", diabetes, PAPER_RISKS))
    if quick:
        chosen += [
            Case("isotropic", "n=1e4, d=30", lambda: generated(10_000, 30), LARGE_RISKS),
            Case(
                "condition 1e4",
                "n=1e4, d=30, condition 1e4",
                lambda: generated(10_000, 30, condition=1e4),
                LARGE_RISKS,
            ),
        ]
        return chosen
    chosen += [
        Case("isotropic", "n=1e5, d=100", lambda: generated(100_000, 100), LARGE_RISKS),
        Case(
            "condition 1e4",
            "n=1e5, d=100, condition 1e4",
            lambda: generated(100_000, 100, condition=1e4),
            LARGE_RISKS,
        ),
        Case(
            "heavy tails",
            "n=1e5, d=20, Student t noise",
            lambda: generated(100_000, 20, heavy=True),
            (*LARGE_RISKS, CVaR(0.05)),
        ),
        Case(
            "many rows",
            "n=1e6, d=20",
            lambda: generated(1_000_000, 20),
            (*LARGE_RISKS, CVaR(0.1)),
        ),
    ]
    return chosen


def show_ratio(ratio: float) -> str:
    if math.isnan(ratio):
        return "-"
    if math.isinf(ratio):
        return "never"
    return "only this" if ratio == 0.0 else f"{ratio:.2g}"


def show_timing(timing: Timing | None) -> str:
    if timing is None:
        return "-"
    if not timing.reached or math.isnan(timing.passes):
        return show_seconds(timing.seconds)
    return f"{show_seconds(timing.seconds)} ({timing.passes:.0f})"


def times_table(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.name,
            outcome.risk,
            f"{target:.0e}",
            *(show_timing(outcome.timings.get(method, {}).get(target)) for method in METHODS),
        ]
        for outcome in outcomes
        for target in TARGETS
    ]
    return markdown(["problem", "risk", "target", *METHODS], rows)


def ratios_table(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.name,
            outcome.risk,
            f"{target:.0e}",
            *(show_ratio(outcome.ratio(method, target)) for method in METHODS[1:]),
        ]
        for outcome in outcomes
        for target in TARGETS
    ]
    return markdown(["problem", "risk", "target", *METHODS[1:]], rows)


def summary_table(outcomes: list[Outcome]) -> str:
    rows = []
    for group in dict.fromkeys(outcome.group for outcome in outcomes):
        members = [outcome for outcome in outcomes if outcome.group == group]
        for target in TARGETS:
            missed = sum(not outcome.timings["L-BFGS"][target].reached for outcome in members)
            cells = []
            for solver in SOLVERS:
                ratios = [outcome.ratio(solver, target) for outcome in members]
                ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
                cells.append(
                    f"{show_ratio(median(ratios))} / {show_ratio(max(ratios))}" if ratios else "-"
                )
            rows.append(
                [group, str(len(members)), f"{target:.0e}", *cells, f"{missed} of {len(members)}"]
            )
    header = ["problems", "count", "target", *(f"`{solver}`" for solver in SOLVERS), "L-BFGS never"]
    return markdown(header, rows)


def product_lines(outcomes: list[Outcome]) -> list[str]:
    """Times of `auto` on the largest problems as multiples of one product X @ w."""
    lines = []
    for outcome in outcomes:
        if outcome.shape[0] < 1_000_000:
            continue
        for target in TARGETS:
            timing = outcome.timings["auto"][target]
            if timing.reached:
                multiple = timing.seconds / outcome.product_seconds
                lines.append(
                    f"- {outcome.name}, {outcome.risk}, certified {target:.0e}: "
                    f"{multiple:.0f} times one X @ w ({show_seconds(outcome.product_seconds)})"
                )
    return lines


def report(outcomes: list[Outcome], budget: Budget, load: float) -> str:
    uncertain = [outcome for outcome in outcomes if outcome.certified > 1e-10]
    lines = [
        "# Benchmark",
        "",
        f"sorel {sorel.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"SciPy {scipy.__version__}, {platform.machine()}, one thread; "
        f"median of {budget.repeats} or more warm runs where time allows, "
        f"at most {budget.seconds:g} s each. "
        f"Load of the machine at the start: {load:.1f} on {os.cpu_count()} cores.",
        "",
        "## Summary: time over the time of L-BFGS, median / worst",
        "",
        "sorel's times end with a *certified* relative gap; those of L-BFGS end when its "
        "suboptimality, which it cannot know, is below the target. "
        "`only this`: L-BFGS never gets there.",
        "",
        summary_table(outcomes),
        "",
        "## Ratios against L-BFGS",
        "",
        ratios_table(outcomes),
        "",
        "## Times, with passes over the data (evaluations for L-BFGS) in brackets",
        "",
        times_table(outcomes),
        "",
        "## Building the problem (validation, not in the times above)",
        "",
        markdown(
            ["problem", "risk", "build", "relative gap of the reference optimum"],
            [
                [
                    outcome.name,
                    outcome.risk,
                    show_seconds(outcome.build_seconds),
                    f"{outcome.certified:.0e}",
                ]
                for outcome in outcomes
            ],
        ),
    ]
    products = product_lines(outcomes)
    if products:
        lines += ["", "## `auto` in products X @ w", "", *products]
    if uncertain:
        names = ", ".join(f"{outcome.name} {outcome.risk}" for outcome in uncertain)
        lines += ["", f"The reference optimum has a relative gap above 1e-10 on: {names}."]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few small problems, short limits")
    parser.add_argument(
        "--seconds", type=float, help="wall-clock limit of one run (default: 30, quick: 3)"
    )
    parser.add_argument("--repeats", type=int, help="timed runs per number (default: 7, quick: 3)")
    parser.add_argument(
        "--only", metavar="TEXT", help="only problems whose name or group contains TEXT"
    )
    parser.add_argument(
        "--out", type=Path, help="Markdown file (default: benchmarks/results.md; quick: none)"
    )
    parser.add_argument(
        "--update-docs", action="store_true", help="put the summary into docs/benchmarks.md"
    )
    options = parser.parse_args(argv)
    budget = Budget(
        options.repeats or (3 if options.quick else 7),
        options.seconds or (3.0 if options.quick else 30.0),
    )
    chosen = [
        case
        for case in cases(options.quick)
        if options.only is None or options.only in case.name or options.only in case.group
    ]
    if not chosen:
        print("no problem to run", file=sys.stderr)
        return 1
    outcomes: list[Outcome] = []
    load = os.getloadavg()[0]
    with threadpool_limits(1), warnings.catch_warnings():
        require_one_thread()
        # A missed target is an entry of the table.
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        for case in chosen:
            for outcome in measure(case, budget):
                outcomes.append(outcome)
                print(f"{outcome.name}, {outcome.risk}: done", file=sys.stderr, flush=True)
    text = report(outcomes, budget, load)
    print(text, end="")
    out = options.out or (None if options.quick or options.only else HERE / "results.md")
    if out is not None:
        out.write_text(text, encoding="utf-8")
        print(f"\nwritten to {out}")
    if options.update_docs:
        replace_between(HERE.parent / "docs" / "benchmarks.md", MARKERS, summary_table(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
