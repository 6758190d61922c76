"""Outside codes: who is faster, and who solves the right problem.

Every code runs with a range of its own settings, and the fastest that reaches an accuracy counts;
accuracy is judged by sorel's objective against a certified optimum. One process, one thread, CPU
time, compiled code warm, models built before the clock. What is not installed is named and left
out; codes that no package index has are run from a checkout:

    python -m benchmarks.rivals [--quick] [--with drlearn=FOLDER] [--update-readme]
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import math
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from threadpoolctl import threadpool_limits

import sorel
from benchmarks.common import markdown, replace_between, show_seconds
from benchmarks.rival_codes import CODES, Code, Task, add_checkout, quiet
from sorel import ESRM, CVaR, Mean
from sorel.datasets import load_diabetes, load_paper_dataset, split_standardized

HERE = Path(__file__).resolve().parent
TARGETS = (1e-3, 1e-6, 1e-9)
# An answer this close is the right one: a code that weighs samples wrongly is further off.
RIGHT = 1e-4
OURS = "sorel (auto)"
README_MARKERS = ("<!-- rivals:start -->", "<!-- rivals:end -->")


@dataclass
class Outcome:
    """One code on one problem: CPU seconds to each target, and the least error of any setting."""

    task: str
    code: str
    seconds: dict[float, float] = field(default_factory=dict)
    error: float = math.inf
    failure: str = ""
    # Whether there was no time for all settings.
    cut: bool = False

    def show(self, target: float) -> str:
        if self.failure and not self.seconds:
            return "fails"
        return show_seconds(self.seconds.get(target, math.inf))


@dataclass(frozen=True)
class Reference:
    """A certified optimum, by which all answers are judged."""

    task: Task
    optimum: float

    @classmethod
    def of(cls, task: Task) -> Reference:
        result = quiet(
            lambda: sorel.solve(task.problem, tol=1e-12, max_passes=10**6, max_seconds=120.0)
        )
        if not result.relative_gap <= 1e-10:
            raise ArithmeticError(
                f"the optimum of {task.name} is certified to {result.relative_gap:.1g} only, and "
                "1e-10 is needed to judge by"
            )
        return cls(task, result.objective)

    def error(self, w: np.ndarray) -> float:
        """(F(w) - F*) / |F*|; infinite where w is no answer."""
        if w is None or w.shape != (self.task.size,) or not np.all(np.isfinite(w)):
            return math.inf
        value = float(quiet(lambda: self.task.problem.objective(w)))
        return (value - self.optimum) / abs(self.optimum) if math.isfinite(value) else math.inf


def measure(code: Code, reference: Reference, limit: float) -> Outcome:
    """Run a code with its settings, the cheapest first, until it is done or out of time."""
    task = reference.task
    outcome = Outcome(task.name, code.name)
    spent, fit = 0.0, None
    for setting in code.settings:
        try:
            if fit is None:
                fit = quiet(partial(code.prepare, task))
                spent += _cpu(partial(fit, setting))[0]
            seconds, w = min(_repeat(partial(fit, setting)), key=lambda run: run[0])
        except Exception as error:  # whatever other people's codes raise is their answer
            outcome.failure = f"{type(error).__name__}: {error}"
            continue
        spent += seconds
        error = reference.error(w)
        outcome.error = min(outcome.error, error)
        for target in TARGETS:
            if error <= target:
                outcome.seconds[target] = min(seconds, outcome.seconds.get(target, math.inf))
        # Settings that are alternatives are all tried; a finer tolerance only costs more.
        alternatives = isinstance(setting, (str, tuple))
        if spent > limit:
            outcome.cut = setting is not code.settings[-1]
            break
        if error <= TARGETS[-1] and not alternatives:
            break
    return outcome


def _cpu(action):
    begin = time.process_time()
    result = quiet(action)
    return time.process_time() - begin, result


def _repeat(action) -> list:
    """Short runs are repeated, since a clock and a cache have their moods."""
    runs = [_cpu(action)]
    while len(runs) < 5 and sum(seconds for seconds, _ in runs) < 0.05:
        runs.append(_cpu(action))
    return runs


def generated(n: int, d: int, loss: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a linear model for a loss."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) / math.sqrt(d)
    if loss == "logistic":
        # With more noise than this the constant model is the optimum of CVaR(0.5).
        return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-6.0 * z)), 1.0, -1.0)
    if loss == "poisson":
        return X, rng.poisson(np.exp(0.5 * z)).astype(float)
    return X, z + rng.standard_t(3, size=n)


def tasks(quick: bool) -> list[Task]:
    """The problems of the first table."""
    made = []
    for name in ("yacht",) if quick else ("yacht", "concrete"):
        X, y = load_paper_dataset(name)
        for risk in (CVaR(0.5), ESRM(2.0)):
            made.append(Task(f"{name}, {risk!r}", X, y, risk, l2=1.0 / len(y)))
    diabetes = split_standardized(*load_diabetes())
    X, y = diabetes.X_train, diabetes.y_train
    n = len(y)
    made.append(Task("diabetes, mean", X, y, Mean(), l2=1.0 / n))
    made.append(Task("diabetes, mean, l1", X, y, Mean(), l2=0.01, l1=0.05))
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    for risk, name in ((Mean(), "mean"), (CVaR(0.5), "CVaR(0.5)")):
        made.append(
            Task(f"breast cancer, logistic, {name}", X, y, risk, "logistic", l2=1.0 / len(y))
        )
    sizes = [(2000, 10)] if quick else [(2000, 10), (100_000, 50)]
    for n, d in sizes:
        for loss in ("squared", "logistic", "poisson", "huber"):
            X, y = generated(n, d, loss)
            task = Task(f"n={n}, d={d}, {loss}, mean", X, y, Mean(), loss, l2=1.0 / n)
            made.append(task)
            if loss == "squared":
                made.append(replace(task, name=f"n={n}, d={d}, squared, mean, l1", l1=0.05))
            if loss in ("squared", "logistic"):
                level = 0.1 if loss == "squared" else 0.5
                name = f"n={n}, d={d}, {loss}, CVaR({level})"
                made.append(replace(task, name=name, risk=CVaR(level)))
    for n, d in [(500, 20)] if quick else [(1000, 50), (5000, 100)]:
        made.append(portfolio(f"portfolio, {n} x {d}, CVaR(0.05)", n, d, 0.05))
    return made


def portfolio(name: str, n: int, d: int, level: float) -> Task:
    """Returns with common factors and heavy tails; the losses are y - z with y = 0."""
    rng = np.random.default_rng(0)
    R = rng.standard_t(4, size=(n, d)) + rng.standard_normal((n, 3)) @ rng.standard_normal((3, d))
    return Task(
        name, R + 0.05 * rng.standard_normal(d), np.zeros(n), CVaR(level), "linear", l2=1e-4,
        simplex=True,
    )  # fmt: skip


def questions() -> dict[str, list[Task]]:
    """Tiny problems of the second table; a code is asked the first that it can state."""
    rng = np.random.default_rng(1)

    def squared(n: int, alpha: float, **more) -> Task:
        X = rng.standard_normal((n, 3))
        y = X @ [1.0, -1.0, 0.5] + rng.standard_t(3, size=n) + 3.0 * more.get("intercept", False)
        return Task("", X, y, CVaR(alpha), l2=0.1, **more)

    fraction, rounded = squared(10, 0.35), squared(100, 0.71)
    shifted = squared(30, 0.3, intercept=True)
    base = squared(10, 0.3)
    tied = replace(base, X=np.repeat(base.X, 3, axis=0), y=np.repeat(base.y, 3))
    # At w = 0 all losses are equal, and where rows are sorted by label the order in which a sort
    # leaves ties puts all weight on one class.
    X, y = generated(40, 3, "logistic", seed=0)
    order = np.argsort(y, kind="stable")
    X = X + 0.8 * np.outer(y, [1.0, 0.5, 0.0])
    start = Task("", X[order], y[order], CVaR(0.4), "logistic", l2=0.01)
    means = []
    kinds = [(loss, 0.0) for loss in ("squared", "logistic", "poisson", "huber")]
    for loss, l1 in [*kinds, ("squared", 0.05)]:
        X, y = generated(60, 3, loss, seed=2)
        y = 3.0 * y + 2.0 if loss in ("squared", "huber") else y
        means.append(Task("", X, y, Mean(), loss, l2=0.1, l1=l1, intercept=True))
    asked = {
        "n alpha an integer": [base, portfolio("", 40, 4, 0.25)],
        "n alpha not one": [fraction, portfolio("", 30, 4, 0.15)],
        "one but for rounding": [rounded, portfolio("", 30, 4, 0.2)],
        "free intercept": [shifted, *means],
        "ties at the optimum": [tied],
        "ties at the start": [start],
    }
    # Codes without a penalty are asked the same with one that does not show.
    return {
        name: [*group, *(replace(task, l2=1e-9) for task in group if task.cvar and task.smooth)]
        for name, group in asked.items()
    }


def compare(chosen: Iterable[Task], codes: Iterable[Code], limit: float) -> list[Outcome]:
    outcomes = []
    for task in chosen:
        reference = Reference.of(task)
        for code in codes:
            if code.states(task):
                outcomes.append(measure(code, reference, limit))
        print(f"{task.name}: done", file=sys.stderr, flush=True)
    return outcomes


def answers(codes: Iterable[Code], limit: float) -> tuple[list[list[str]], list[Outcome]]:
    """For every code and question: whether its best answer is the optimum."""
    asked = questions()
    references: dict[int, Reference] = {}
    rows, outcomes = [], []
    for code in codes:
        cells = []
        for name, group in asked.items():
            task = next((task for task in group if code.states(task)), None)
            if task is None:
                cells.append("-")
                continue
            reference = references.setdefault(id(task), Reference.of(task))
            outcome = measure(code, reference, limit)
            outcomes.append(replace(outcome, task=name))
            if outcome.failure and not math.isfinite(outcome.error):
                cells.append("fails")
            else:
                verdict = "not in time" if outcome.cut else "no"
                right = outcome.error <= RIGHT
                cells.append("yes" if right else f"{verdict}: {outcome.error:.1g} above")
        rows.append([code.name, *cells])
    return rows, outcomes


def times_table(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.task,
            outcome.code,
            *(outcome.show(target) for target in TARGETS),
            f"{outcome.error:.0e}" if math.isfinite(outcome.error) else "-",
        ]
        for outcome in outcomes
    ]
    return markdown(["problem", "code", *(f"{t:.0e}" for t in TARGETS), "least error"], rows)


def faster_table(outcomes: list[Outcome]) -> tuple[str, int, int]:
    """Where another code is faster; in how many cases that is, and of how many."""
    rows, lost, total = [], 0, 0
    for name in dict.fromkeys(outcome.task for outcome in outcomes):
        group = [outcome for outcome in outcomes if outcome.task == name]
        own = next(outcome for outcome in group if outcome.code == OURS)
        cells, winners = [], []
        for target in TARGETS:
            mine = own.seconds.get(target, math.inf)
            rivals = [
                (outcome.seconds.get(target, math.inf), outcome.code)
                for outcome in group
                if outcome.code != OURS
            ]
            best, winner = min(rivals, default=(math.inf, ""))
            faster = best < mine
            total, lost = total + 1, lost + faster
            cells.append(f"{show_seconds(best)} / {show_seconds(mine)}" if faster else "")
            winners += [winner] if faster else []
        if winners:
            rows.append([name, ", ".join(dict.fromkeys(winners)), *cells])
    header = ["problem", "code", *(f"to {target:.0e}: code / sorel" for target in TARGETS)]
    return markdown(header, rows) if rows else "nowhere", lost, total


def report(
    outcomes: list[Outcome],
    right: list[list[str]],
    asked: list[Outcome],
    absent: dict[str, str],
) -> str:
    table, lost, total = faster_table(outcomes)
    failures = {
        f"{outcome.code}, {outcome.task}: {outcome.failure.splitlines()[0][:160]}": None
        for outcome in [*outcomes, *asked]
        if outcome.failure
    }
    lines = [
        "# Outside codes",
        "",
        f"sorel {sorel.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{platform.machine()}. CPU seconds on one thread, compiled code warm, models built before "
        "the clock; for each accuracy the fastest of a code's own settings. Accuracy is "
        "(F - F*) / |F*| by sorel's objective; sorel's time ends with a certificate of it.",
        "",
        "## Where others are faster",
        "",
        table,
        "",
        f"That is {lost} of {total} pairs of a problem and an accuracy.",
        "",
        "## Who solves the right problem",
        "",
        "Tiny problems. no: how far the best answer of a code lies above the optimum, relatively; "
        "-: cannot be stated.",
        "",
        markdown(["code", *questions()], right),
        "",
        "## All times",
        "",
        times_table(outcomes),
        "",
        "## Notes",
        "",
        *(f"- {code.name}: {code.note}." for code in CODES if code.note),
        *(f"- Not run, {reason}: {name}." for name, reason in absent.items()),
        *(f"- Failed: {failure}." for failure in failures),
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small problems, short limits")
    parser.add_argument(
        "--seconds", type=float, help="CPU limit of a code on a problem (default: 20, quick: 2)"
    )
    parser.add_argument("--only", metavar="TEXT", help="only problems whose name contains TEXT")
    parser.add_argument(
        "--with", dest="checkouts", action="append", default=[], metavar="NAME=FOLDER",
        help="run a code from a checkout: drlearn, prospect (its authors' LSVRG as well) or spqr",
    )  # fmt: skip
    parser.add_argument(
        "--out",
        type=Path,
        help="Markdown file (default: benchmarks/results-rivals.md; quick: none)",
    )
    parser.add_argument(
        "--update-readme", action="store_true", help="put the first table into README.md"
    )
    options = parser.parse_args(argv)
    limit = options.seconds or (2.0 if options.quick else 20.0)
    given = {add_checkout(argument) for argument in options.checkouts}
    absent, present = {}, []
    for code in CODES:
        if code.outside and code.outside not in given:
            absent[code.name] = f"for want of --with {code.outside}=FOLDER"
        elif code.missing():
            absent[code.name] = f"for want of {', '.join(code.missing())}"
        else:
            present.append(code)
    chosen = [task for task in tasks(options.quick) if (options.only or "") in task.name]
    if not chosen:
        print("no problem to run", file=sys.stderr)
        return 1
    with threadpool_limits(1):
        outcomes = compare(chosen, present, limit)
        right, asked = answers(present, limit)
    text = report(outcomes, right, asked, absent)
    print(text, end="")
    out = options.out or (None if options.quick or options.only else HERE / "results-rivals.md")
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if options.update_readme:
        replace_between(HERE.parent / "README.md", README_MARKERS, faster_table(outcomes)[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
