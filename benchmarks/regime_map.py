"""Which solver is first to a certified 1e-6, over shapes, conditions, losses, penalties and risks.

Problems are drawn from a space-filling design, each is given to every solver that takes it, and the
time of `auto` is compared with the best of them: its regret. One line of JSON per problem is
written as it is done, so that a run that was interrupted goes on where it was. Run as
``python -m benchmarks.regime_map [--quick] [--count N] [--update-docs]``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import qmc

import sorel
from benchmarks.common import markdown, show_seconds
from sorel.solvers import UnsupportedProblemError

ROOT = Path(__file__).resolve().parents[1]
OUT = Path("map-output")
DOCS, PICTURE = ROOT / "docs" / "choosing-a-solver.md", "regime-map.png"
MARKS = "<!-- map:start -->", "<!-- map:end -->"

TOL = 1e-6
SEED, COUNT = 7, 300
RIVALS = ("newton", "newton_cg", "sorel", "pdhg", "admm", "lbfgs", "continuation")
LOSSES = ("squared", "huber", "logistic", "multinomial")
PENALTIES = ("L2", "ElasticNet", "NonNegative", "Box", "Simplex")
RISKS = ("mean", "cvar:0.5", "cvar:0.1", "cvar:0.02", "esrm:2", "extremile:2.5")
CLASSES = 4

# Rows, columns and condition by powers of ten, and entries of X at most.
ROWS, COLUMNS, CONDITIONS = (2.0, 6.0), (0.0, 4.0), (0.0, 8.0)
MOST_NUMBERS, QUICK_NUMBERS = 2e7, 1e5

# Half of the problems have the penalty L2: the choice between methods is widest there.
L2_SHARE = 0.5

# Seconds that `auto` may take, how much longer than the best so far another one may run, how many
# runs the least of is taken of, what duration ends them and what duration all of them may have, and
# seconds to load compiled code.
SECONDS, QUICK_SECONDS = 10.0, 1.0
PATIENCE = 1.1
REPEATS, WORTH_REPEATING, ENOUGH = 20, 0.5, 1.0
LOADING = 1.0


@dataclass(frozen=True)
class Cell:
    """One problem of the design."""

    index: int
    n: int
    d: int
    condition: float
    loss: str
    penalty: str
    risk: str
    intercept: bool
    rotated: bool

    @property
    def shape(self) -> str:
        """The regime that its shape belongs to."""
        if self.n <= self.d:
            return "n <= d"
        return "n < 20 d" if self.n < 20 * self.d else "n >= 20 d"

    def describe(self) -> str:
        parts = f"{self.n} x {self.d}", f"condition {self.condition:.0e}", self.loss
        more = ["intercept"] * self.intercept + ["rotated"] * self.rotated
        return ", ".join([*parts, self.penalty, self.risk, *more])


def design(count: int, most_numbers: float = MOST_NUMBERS) -> list[Cell]:
    """The first problems of a scrambled Halton sequence, the same every time."""
    points = qmc.Halton(8, seed=SEED).random(count)
    return [_cell(index, u, most_numbers) for index, u in enumerate(points)]


def _cell(index: int, u: Any, most_numbers: float) -> Cell:
    n, d = 10.0 ** _between(ROWS, u[0]), 10.0 ** _between(COLUMNS, u[1])
    loss, risk = _pick(LOSSES, u[3]), _pick(RISKS, u[5])
    excess = n * d * (CLASSES if loss == "multinomial" else 1) / most_numbers
    if excess > 1.0:
        n, d = n / math.sqrt(excess), d / math.sqrt(excess)
        # Neither may leave its range: the other one makes up for it.
        least = 10.0 ** ROWS[0]
        n, d = max(n, least), min(d, d * n / least)
    plain = u[4] < L2_SHARE
    penalty = "L2" if plain else _pick(PENALTIES[1:], (u[4] - L2_SHARE) / (1.0 - L2_SHARE))
    condition = float(f"{10.0 ** _between(CONDITIONS, u[2]):.1e}")
    flags = bool(u[6] < 0.5), bool(u[7] < 0.5)
    return Cell(index, round(n), max(1, round(d)), condition, loss, penalty, risk, *flags)


def _between(limits: tuple[float, float], u: float) -> float:
    return limits[0] + u * (limits[1] - limits[0])


def _pick(names: tuple[str, ...], u: float) -> str:
    return names[min(int(u * len(names)), len(names) - 1)]


def build(cell: Cell) -> sorel.Problem:
    """The problem of a cell: gaussian columns of falling scale, a linear truth, and noise.

    Half of them are reflected, so that no scaling of the columns brings the condition back.
    """
    rng = np.random.default_rng(cell.index)
    X = rng.standard_normal((cell.n, cell.d))
    X *= np.geomspace(1.0, cell.condition**-0.5, cell.d)
    if cell.rotated:
        axis = rng.standard_normal(cell.d)
        X -= np.outer(X @ axis, 2.0 / (axis @ axis) * axis)
    used = rng.random((cell.d, CLASSES)) < 0.5
    truth = rng.standard_normal((cell.d, CLASSES)) * used / math.sqrt(max(1.0, used.sum() / 4))
    z = X @ truth
    if cell.loss == "multinomial":
        y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    elif cell.loss == "logistic":
        y = np.where(z[:, 0] + rng.logistic(size=cell.n) > 0.0, 1.0, -1.0)
    else:
        y = z[:, 0] + rng.standard_t(4, size=cell.n)
    l2 = 1.0 / cell.n
    penalty: sorel.penalties.Penalty = {
        "L2": lambda: sorel.L2(l2),
        "ElasticNet": lambda: sorel.ElasticNet(l2, 0.3 / math.sqrt(cell.n)),
        "NonNegative": lambda: sorel.NonNegative(l2),
        "Box": lambda: sorel.Box(l2, -0.2, 0.2),
        "Simplex": lambda: sorel.Simplex(l2),
    }[cell.penalty]()
    return sorel.Problem(
        X,
        y,
        risk=cell.risk,
        loss=cell.loss,
        penalty=penalty,
        fit_intercept=cell.intercept,
        n_jobs=1,
    )


def measure(cell: Cell, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Times to a certified 1e-6 by solver; None for one that did not get there in time."""
    problem = build(cell)
    times: dict[str, float | None] = {}
    status = ""
    for solver in ("auto", *RIVALS):
        known = [t for t in times.values() if t is not None]
        limit = min([seconds, *(PATIENCE * t for t in known)])
        try:
            times[solver], how = _time(problem, solver, limit, clock)
        except UnsupportedProblemError:
            continue
        status = how if solver == "auto" else status
    return {**asdict(cell), "seconds": times, "status": status}


def _time(
    problem: sorel.Problem, solver: str, limit: float, clock: Callable[[], float]
) -> tuple[float | None, str]:
    # On a busy machine the clock of the process stands still while others work.
    slack = 1.0 if clock is time.perf_counter else 3.0
    runs: list[float] = []
    # The first run loads compiled code: it has more time, and is not counted where it is short.
    for start_up in (LOADING, *REPEATS * (0.0,)):
        allowed = slack * limit + (start_up if limit < LOADING else 0.0) + 0.05
        begin = clock()
        try:
            result = sorel.solve(problem, solver, tol=TOL, max_passes=math.inf, max_seconds=allowed)
        except ValueError as error:
            if isinstance(error, UnsupportedProblemError):
                raise
            return None, f"failed: {error}"
        taken = clock() - begin
        if not result.converged:
            return None, result.status
        runs.append(taken)
        if len(runs) == 1 and taken <= 5.0 * LOADING:
            continue
        if taken > WORTH_REPEATING or sum(runs[1:]) > ENOUGH:
            break
    return min(runs), result.status


def regret(line: dict[str, Any]) -> float:
    """The time of `auto` over the best; inf where only others got there, NaN where none did."""
    known = [t for t in line["seconds"].values() if t is not None]
    if not known:
        return math.nan
    own = line["seconds"]["auto"]
    return math.inf if own is None else own / min(known)


def winner(line: dict[str, Any]) -> str:
    """The fastest solver, by the name of the method where `auto` chose it; "none" if none."""
    rivals = {name: t for name, t in line["seconds"].items() if t is not None and name != "auto"}
    own = line["seconds"]["auto"]
    if not rivals:
        return "none" if own is None else "auto"
    best = min(rivals, key=lambda name: rivals[name])
    # The same method within noise is not another one.
    return best if own is None or rivals[best] <= 1.05 * own else "auto"


def summary(lines: list[dict[str, Any]]) -> str:
    """The tables: regret by regime, the largest of all, and who wins."""
    groups: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [("all", lambda line: True)]
    cells = {line["index"]: _cell_of(line) for line in lines}
    for shape in ("n >= 20 d", "n < 20 d", "n <= d"):
        groups.append((shape, lambda line, shape=shape: cells[line["index"]].shape == shape))
    groups.append(("condition >= 1e4", lambda line: line["condition"] >= 1e4))
    for key, names in (("loss", LOSSES), ("penalty", PENALTIES), ("risk", RISKS)):
        groups += [(name, lambda line, key=key, name=name: line[key] == name) for name in names]
    rows = []
    for name, chosen in groups:
        part = [line for line in lines if chosen(line)]
        values = [value for value in map(regret, part) if not math.isnan(value)]
        if not values:
            continue
        rows.append([
            name, str(len(part)), str(len(part) - len(values)),
            str(sum(math.isinf(v) for v in values)), f"{median(values):.2f}",
            f"{_quantile(values, 0.9):.2f}", f"{max(v for v in values if v < math.inf):.2f}",
            _winners(part),
        ])  # fmt: skip
    header = ["problems", "number", "open", "missed", "median", "90%", "worst", "first to 1e-6"]
    text = markdown(header, rows)
    worst = sorted((line for line in lines if regret(line) > 1.2), key=regret, reverse=True)[:12]
    if not worst:
        return text
    table = [
        [cells[line["index"]].describe(), f"{regret(line):.2f}", _times(line)] for line in worst
    ]
    return f"{text}\n\nThe largest regrets:\n\n" + markdown(["problem", "regret", "times"], table)


def _cell_of(line: dict[str, Any]) -> Cell:
    return Cell(**{name: line[name] for name in Cell.__dataclass_fields__})


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _winners(lines: list[dict[str, Any]]) -> str:
    counts = Counter(map(winner, lines))
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(4))


def _times(line: dict[str, Any]) -> str:
    known = {name: t for name, t in line["seconds"].items() if t is not None}
    return ", ".join(
        f"{name} {show_seconds(t)}" for name, t in sorted(known.items(), key=lambda item: item[1])
    )


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Who is first over rows and columns, and what `auto` takes beside it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11.0, 4.6), sharey=True, layout="constrained")
    n, d = (np.array([line[key] for line in lines]) for key in ("n", "d"))
    names = np.array([winner(line) for line in lines])
    markers = "osD^vPX"
    for k, name in enumerate(sorted(set(names), key=str)):
        chosen = names == name
        axes[0].plot(n[chosen], d[chosen], markers[k % 7], ms=5, ls="", label=name, alpha=0.8)
    axes[0].legend(fontsize=8, loc="upper right")
    axes[0].set(title="first to a certified 1e-6", ylabel="columns")
    values = np.array([regret(line) for line in lines])
    shown = np.isfinite(values)
    dots = axes[1].scatter(
        n[shown], d[shown], c=np.log2(values[shown]), cmap="viridis_r", s=25, vmin=0.0, vmax=2.0
    )
    axes[1].plot(n[np.isinf(values)], d[np.isinf(values)], "rx", ls="", label="missed")
    axes[1].set(title="auto / best")
    bar = figure.colorbar(dots, ax=axes[1], ticks=[0, 1, 2])
    bar.ax.set_yticklabels(["1", "2", "4"])
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="rows")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def update_docs(lines: list[dict[str, Any]], page: Path) -> None:
    """Put the table and the picture into the page."""
    text = page.read_text(encoding="utf-8")
    start, end = (text.index(mark) for mark in MARKS)
    body = f"{MARKS[0]}\n{summary(lines)}\n\n![who is first, and what auto takes]({PICTURE})\n"
    page.write_text(text[:start] + body + text[end:], encoding="utf-8")
    draw(lines, page.parent / PICTURE)


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def run(
    cells: Iterable[Cell], path: Path, seconds: float, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Measure what the file does not have yet; return the lines of these problems."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {_cell_of(line): line for line in read_lines(path)}
    lines = []
    for cell in cells:
        if cell not in known:
            known[cell] = measure(cell, seconds, clock)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[cell]) + "\n")
            print(f"{cell.index}: {cell.describe()}: {_times(known[cell])}", file=sys.stderr)
        lines.append(known[cell])
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, help=f"problems (default {COUNT}, quick 20)")
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--quick", action="store_true", help="small problems: about a minute")
    parser.add_argument("--cpu", action="store_true", help="time of the process: a busy machine")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--update-docs", action="store_true", help="rewrite the page of the docs")
    options = parser.parse_args(argv)
    count = options.count or (20 if options.quick else COUNT)
    cells = design(options.first + count, QUICK_NUMBERS if options.quick else MOST_NUMBERS)
    clock = time.process_time if options.cpu else time.perf_counter
    name = ("quick" if options.quick else "map") + ("-cpu" if options.cpu else "") + ".jsonl"
    with warnings.catch_warnings():
        # A missed target is an entry of the table.
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        seconds = QUICK_SECONDS if options.quick else SECONDS
        lines = run(cells[options.first :], options.out / name, seconds, clock)
    print(summary(lines))
    if options.update_docs:
        update_docs(lines, DOCS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
