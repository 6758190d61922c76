"""Tail risks of small networks: the mean, mini-batch risks, tables of losses, and SOREL.

A perceptron is trained on the paper's sets and on digits from five seeds, every method with the
same number of sample gradients, and the best of some learning rates is shown for each. Every cell
is a file of its own, so that an interrupted run goes on where it was. Run as
``python -m benchmarks.networks [--quick] [--jobs 2] [--update-docs]``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import network_cells as cells
from benchmarks.network_cells import BATCHES, RISKS, Cell
from sorel.datasets import PAPER_DATASETS
from sorel.files.atomic import write_atomically

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURE = "networks.png"
NAMES = {"mean": "mean", "cvar:0.02": "CVaR(0.02)", "cvar:0.1": "CVaR(0.1)", "esrm:2": "ESRM(2)"}
RATES = (0.03, 0.01, 0.003)
BUDGET = 400_000
# The full batch gets more work, to show where training could end.
FULL_FACTOR = 16
BATCH = 64
CURVE_SET, CURVE_RISKS = "concrete", ("cvar:0.02", "cvar:0.1")
CURVE_START, CURVE_POINTS = 50_000, 8
CURVE_RATE = 0.01
# Short trainings with batches of 64: sample gradients, headings and methods.
SHORT_BUDGETS = (20_000, 100_000)
SHORT_METHODS = (
    ("mean", "mean"),
    ("loss-weighted", "weighted"),
    ("SOREL", "sorel"),
    ("SOREL, planned rounds", "planned"),
)
# What the training risk must be below that of the mini-batch risk, in the median over sets.
BARS = {"cvar:0.02": 0.15, "cvar:0.1": 0.10}
# Columns of the tables: a heading, the method and its batch.
COLUMNS = (
    ("mean", "mean", BATCH),
    ("loss-weighted", "weighted", BATCH),
    *((f"batch {b}", "batch", b) for b in BATCHES),
    ("sorted table", "sorted", BATCH),
    ("smoothed table", "smoothed", BATCH),
    ("SOREL, shuffled", "shuffled", BATCH),
    *((f"SOREL {b}", "sorel", b) for b in BATCHES),
    (f"full batch, {FULL_FACTOR}x", "full", 0),
)


def cell_of(
    data: str, method: str, risk: str, batch: int, rate: float, budget: int = BUDGET
) -> Cell:
    if method in ("mean", "weighted"):
        risk = "mean"
    factor = FULL_FACTOR if method == "full" else 1
    return Cell(data, method, risk, batch, rate, factor * budget)


def table_plan(sets: Iterable[str], budget: int, rates: Iterable[float]) -> list[Cell]:
    plan = [
        cell_of(data, method, risk, batch, rate, budget)
        for _, method, batch in sorted(COLUMNS, key=lambda column: column[2] != BATCH)
        for risk in RISKS
        for data in sets
        for rate in rates
    ]
    return list(dict.fromkeys(plan))


def curve_plan(budgets: Iterable[int]) -> list[Cell]:
    plan = [
        Cell(CURVE_SET, method, risk, batch, CURVE_RATE, budget)
        for budget in budgets
        for risk in CURVE_RISKS
        for method, batch in (("batch", BATCH), ("sorel", BATCH), ("full", 0))
    ]
    return list(dict.fromkeys(plan))


def short_plan(sets: Iterable[str], rates: Iterable[float]) -> list[Cell]:
    methods = ["batch", *(method for _, method in SHORT_METHODS)]
    plan = [
        cell_of(data, method, risk, BATCH, rate, budget)
        for data in sets
        for budget in SHORT_BUDGETS
        for method in methods
        for risk in RISKS
        for rate in rates
    ]
    return list(dict.fromkeys(plan))


def compute(plan: list[Cell], folder: Path, jobs: int) -> dict[Cell, dict[str, Any]]:
    """Records of all cells, from their files where they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in plan if not _file(folder, cell).is_file()]
    print(f"{len(plan)} cells, {len(missing)} to train", flush=True)
    # One thread each: the processes that are started read these.
    os.environ.update(OMP_NUM_THREADS="1")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context)
    try:
        futures = [pool.submit(_keep, cell, _file(folder, cell)) for cell in missing]
        for number, future in enumerate(as_completed(futures), 1):
            print(f"{number}/{len(missing)} {future.result()}", flush=True)
    finally:
        # An interrupted run keeps what is under way, and starts nothing more.
        pool.shutdown(cancel_futures=True)
    return {cell: json.loads(_file(folder, cell).read_text()) for cell in plan}


def _keep(cell: Cell, path: Path) -> str:
    record = cells.run(cell)
    write_atomically(path, json.dumps(record).encode())
    return f"{cell.name}: {record['seconds']:.1f} s"


def _file(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.name}.json"


class Report:
    """Tables of what was computed."""

    def __init__(
        self,
        records: dict[Cell, dict[str, Any]],
        sets: tuple[str, ...],
        budget: int,
        rates: tuple[float, ...],
    ) -> None:
        self.records, self.sets, self.budget, self.rates = records, sets, budget, rates

    def best(
        self, data: str, method: str, risk: str, batch: int, budget: int | None = None
    ) -> dict[str, Any]:
        """The record of the learning rate with the least training risk in the median of seeds."""
        found = [
            self.records[cell_of(data, method, risk, batch, rate, budget or self.budget)]
            for rate in self.rates
        ]
        return min(found, key=lambda record: median(record["train"][risk]))

    def value(
        self, data: str, method: str, risk: str, batch: int, part: str, budget: int | None = None
    ) -> float:
        return median(self.best(data, method, risk, batch, budget)[part][risk])

    def training(self, risk: str, part: str) -> list[str]:
        lines = _head(["set", *(heading for heading, _, _ in COLUMNS)])
        for data in self.sets:
            values = [self.value(data, method, risk, b, part) for _, method, b in COLUMNS]
            lines.append(_row([data, *map(_number, values)]))
        return lines

    def comparison(self) -> list[str]:
        """SOREL against the mini-batch risk with the same batch: change of the risk."""
        papers = [data for data in self.sets if data in PAPER_DATASETS]
        lines = _head(["risk", "batch", *self.sets, "median of the paper's sets", "bar"])
        for risk in RISKS:
            for batch in BATCHES:
                change = {
                    data: self.value(data, "sorel", risk, batch, "train")
                    / self.value(data, "batch", risk, batch, "train")
                    - 1.0
                    for data in self.sets
                }
                middle = median(change[data] for data in papers)
                bar = BARS.get(risk) if batch == BATCH else None
                verdict = ""
                if bar is not None:
                    verdict = f"{-bar:.0%}: {'met' if middle <= -bar else 'missed'}"
                shown = [f"{change[data]:+.0%}" for data in self.sets]
                lines.append(_row([NAMES[risk], str(batch), *shown, f"{middle:+.0%}", verdict]))
        return lines

    def short(self) -> list[str]:
        """Training risks of short trainings against that of the mini-batch risk."""
        headings = [heading for heading, _ in SHORT_METHODS]
        lines = _head(["risk", "set", "sample gradients", "rounds", *headings])
        for risk in RISKS:
            for data in self.sets:
                for budget in SHORT_BUDGETS:
                    base = self.best(data, "batch", risk, BATCH, budget)
                    rounds = budget / (base["n"] // BATCH * BATCH)
                    changes = [
                        self.value(data, method, risk, BATCH, "train", budget)
                        / median(base["train"][risk])
                        - 1.0
                        for _, method in SHORT_METHODS
                    ]
                    shown = [f"{change:+.0%}" for change in changes]
                    lines.append(_row([NAMES[risk], data, f"{budget:,}", f"{rounds:.0f}", *shown]))
        return lines

    def bias(self) -> list[str]:
        """Expected risk of a batch against the risk of all, at the networks of the mean."""
        pairs = [(risk, batch) for risk in RISKS for batch in BATCHES]
        lines = _head(["set", *(f"{NAMES[risk]}, {batch}" for risk, batch in pairs)])
        for data in self.sets:
            record = self.best(data, "mean", "mean", BATCH)
            shown = []
            for risk, batch in pairs:
                drawn, whole = record["batch_risk"][risk][str(batch)], record["train"][risk]
                ratios = [part / full - 1.0 for part, full in zip(drawn, whole, strict=True)]
                shown.append(f"{median(ratios):+.1%}")
            lines.append(_row([data, *shown]))
        return lines

    def heads(self) -> list[str]:
        lines = _head(
            [
                "set",
                "risk",
                "training: mean",
                "certified head",
                "SOREL 64",
                "held out: mean",
                "certified head",
                "SOREL 64",
                "largest gap",
                "seconds",
            ]
        )
        for data in self.sets:
            base = self.best(data, "mean", "mean", BATCH)
            for risk in RISKS:
                head = base["heads"][risk]
                values = [
                    value
                    for part in ("train", "held_out")
                    for value in (
                        median(base[part][risk]),
                        median(head[part]),
                        self.value(data, "sorel", risk, BATCH, part),
                    )
                ]
                ends = [f"{max(head['gap']):.0e}", f"{median(head['seconds']):.2f}"]
                lines.append(_row([data, NAMES[risk], *map(_number, values), *ends]))
        return lines

    def settings(self) -> list[str]:
        rates = [f"{rate:g}" for rate in self.rates]
        return [
            f"In these tables every method has {self.budget:,} sample gradients and the best of "
            f"the learning rates {', '.join(rates)}."
        ]

    def sections(self) -> dict[str, list[str]]:
        out = {"settings": self.settings(), "comparison": self.comparison()}
        for risk in RISKS:
            key = risk.replace(":", "-").replace(".", "")
            out[f"train-{key}"] = self.training(risk, "train")
            out[f"held-out-{key}"] = self.training(risk, "held_out")
        return {**out, "short": self.short(), "bias": self.bias(), "heads": self.heads()}


def draw(records: dict[Cell, dict[str, Any]], budgets: tuple[int, ...], path: Path) -> None:
    """Training risk against sample gradients: medians, and ranges over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(CURVE_RISKS), figsize=(10, 4), layout="constrained")
    methods = (
        ("batch", BATCH, f"risk of mini-batches of {BATCH}", "tab:red"),
        ("sorel", BATCH, f"SOREL, batches of {BATCH}", "tab:blue"),
        ("full", 0, "full batch", "tab:gray"),
    )
    for axis, risk in zip(axes, CURVE_RISKS, strict=True):
        for method, batch, label, color in methods:
            seeds = [
                records[Cell(CURVE_SET, method, risk, batch, CURVE_RATE, budget)]["train"][risk]
                for budget in budgets
            ]
            axis.plot(budgets, [median(row) for row in seeds], "o-", color=color, label=label)
            low, high = [min(row) for row in seeds], [max(row) for row in seeds]
            axis.fill_between(budgets, low, high, color=color, alpha=0.2, linewidth=0)
        axis.set(
            xscale="log",
            yscale="log",
            title=f"{CURVE_SET}, {NAMES[risk]}",
            xlabel="sample gradients",
            ylabel="training risk",
        )
        axis.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _head(cells: list[str]) -> list[str]:
    return [_row(cells), "|---" * len(cells) + "|"]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.3f}" if value >= 0.01 else f"{value:.1e}"


def update(path: Path, sections: dict[str, list[str]]) -> None:
    """Put tables between the markers of a page."""
    text = path.read_text()
    for name, lines in sections.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        before, rest = text.split(start)
        text = before + start + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    path.write_text(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small sets and short training")
    parser.add_argument(
        "--short", action="store_true", help="only the table of short trainings, batches of 64"
    )
    parser.add_argument("--budget", type=int, default=BUDGET, help="sample gradients of a cell")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=RATES, help="learning rates to choose from"
    )
    parser.add_argument(
        "--curve", type=int, default=CURVE_POINTS, help="budgets in the figure, each twice the last"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", type=Path, help="folder of the cells and the report")
    parser.add_argument(
        "--update-docs", action="store_true", help="put them into docs/networks-results.md"
    )
    options = parser.parse_args(arguments)
    if options.quick and options.update_docs:
        parser.error("--update-docs wants the full run; leave out --quick")
    sets, budgets = cells.SETS, tuple(CURVE_START * 2**k for k in range(options.curve))
    budget, rates = options.budget, tuple(options.rates)
    if options.quick:
        sets, budget, rates, budgets = ("yacht", "concrete"), 10_000, (0.01,), (5_000, 10_000)
    out = options.out or Path("networks-output", "quick" if options.quick else "full")
    plan = short_plan(sets, rates)
    if not options.short:
        plan = [*table_plan(sets, budget, rates), *curve_plan(budgets), *plan]
    records = compute(list(dict.fromkeys(plan)), out / "cells", options.jobs)
    report = Report(records, sets, budget, rates)
    sections = report.sections() if not options.short else {"short": report.short()}
    for name, lines in sections.items():
        print(f"\n{name}\n" + "\n".join(lines))
    write_atomically(out / "report.json", json.dumps(sections, indent=1).encode())
    if options.update_docs:
        update(DOCS / "networks-results.md", sections)
    if options.short:
        return
    draw(records, budgets, out / PICTURE)
    if options.update_docs:
        draw(records, budgets, DOCS / "figures" / PICTURE)


if __name__ == "__main__":
    main()
