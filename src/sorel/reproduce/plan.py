"""From settings to results: which cells there are, in which order, and what they add up to.

Optima come first, then the grids, then the curves of the chosen settings. Everything after this
module only reads a :class:`Results`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sorel.datasets import (
    PAPER_DATASETS,
    load_diabetes,
    load_paper_dataset,
    make_two_populations,
    split_standardized,
)
from sorel.reproduce.cells import Cell, Dataset, Progress, Store, cell, code_version, run_cells
from sorel.reproduce.settings import (
    ALL_METHODS,
    APPENDIX_METHODS,
    FULL_METHODS,
    PAPER_METHODS,
    TARGETS,
    Settings,
)

__all__ = ["FIXED_RUNS", "INSTABILITY", "LATE_RUNS", "Results", "collect", "load_data"]

Keyed = dict[tuple[Any, ...], Cell]
Outcomes = dict[tuple[Any, ...], dict[str, Any]]

# The set, risk and tuned setting on which the published schedule is watched for long.
INSTABILITY = ("yacht", "esrm:2", {"alpha": 0.03, "C": 0.1})

# Long runs: on every problem the schedule, and whether it takes the tuned setting or its defaults;
# and schedules with the setting above.
LATE_RUNS = {
    "tuned": ("paper", True),
    "stable": ("stable", True),
    "stable default": ("stable", False),
}
FIXED_RUNS = {
    f"fixed {schedule}": schedule
    for schedule in ("paper", "exact paper", "stable", "exact stable", "auto")
}

# Settings whose scores differ by less than F* is known to are equally good by the paper's rule.
_TIE = 1e-12

_DATA_HELP = (
    "the copies in the package are damaged: install it again, name the folder of their CSV files "
    "with --data DIR or in $SOREL_DATA, or ask for other sets, e.g. --datasets diabetes generated"
)


@dataclass(eq=False)
class Results:
    """All numbers of a reproduction, before any of them is put into a table or a picture.

    Attributes
    ----------
    settings : Settings
    datasets : DataFrame
        name, n, d, checksum.
    optima : DataFrame
        dataset, risk, optimum, start, relative_gap, passes, seconds, ties.
    tuning : DataFrame
        dataset, risk, batch, method, alpha, C, score (mean over seeds, as suboptimality), chosen,
        and passes to each target (mean over seeds).
    curves : DataFrame
        dataset, risk, batch, method, seed, iteration, passes, seconds, objective, suboptimality
        (0 where rounding would make it negative).
    least : float
        The least suboptimality before that.
    late : DataFrame
        dataset, risk, run, iteration, suboptimality of long runs, named by `LATE_RUNS` on every
        problem and by `FIXED_RUNS` on one with a fixed setting.
    costs, constants : DataFrame
        CPU seconds per pass; constants of the analysis.
    plane, toy : dict
        Figure 1 and the appendix's example.
    """

    settings: Settings
    datasets: pd.DataFrame
    optima: pd.DataFrame
    tuning: pd.DataFrame
    curves: pd.DataFrame
    late: pd.DataFrame
    costs: pd.DataFrame
    constants: pd.DataFrame
    plane: dict[str, Any] | None = None
    toy: dict[str, Any] | None = None
    least: float = 0.0
    code: str = field(default_factory=code_version)
    seconds: float = 0.0
    cells: int = 0
    kept: int = 0


def load_data(settings: Settings, folder: str | os.PathLike[str] | None) -> dict[str, Dataset]:
    """The datasets by name, or a FileNotFoundError that says how to provide them."""
    data = {}
    wanted = list(settings.datasets)
    if "1" in settings.figures and "yacht" not in wanted and not _offline(settings):
        wanted.append("yacht")
    for name in wanted:
        if name in PAPER_DATASETS:
            try:
                X, y = load_paper_dataset(name, folder)
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{error}\n{_DATA_HELP}") from None
        elif name == "diabetes":
            X, _, y, _ = split_standardized(*load_diabetes())
        else:
            features, target, _ = make_two_populations(n=400, d=5, seed=0)
            X, _, y, _ = split_standardized(features, target)
        data[name] = Dataset(name, np.ascontiguousarray(X), np.ascontiguousarray(y))
    return data


def _offline(settings: Settings) -> bool:
    return not any(name in PAPER_DATASETS for name in settings.datasets)


def collect(
    settings: Settings,
    data: Mapping[str, Dataset],
    folder: Path,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Results:
    """Compute or read every cell, and put the numbers in order."""
    begin = time.monotonic()
    store = Store(folder, {name: dataset.checksum for name, dataset in data.items()})
    work = _Work(data, store, jobs, progress or Progress(shown=False))
    problems = [(name, risk) for name in settings.datasets for risk in settings.risks]
    if not settings.batches:
        problems = []

    first: Keyed = {("optimum", *key): _optimum_cell(settings, *key) for key in problems}
    if "1" in settings.figures:
        first["plane",] = _plane_cell(settings, data)
        first["toy",] = cell("toy", start=0.5, alpha=0.5, steps=60, iterations=12)
    for name in {key[0] for key in problems}:
        first["cost", name] = _cost_cell(settings, name, data)
    done = work.run("optima", first)
    optima = _optima(done, problems)

    grids = work.run("tuning", _tune_cells(settings, optima, data))
    tuning = _tuning(settings, grids, optima)

    last = _curve_cells(settings, tuning, data)
    last.update(_late_cells(settings, tuning, optima, data))
    for name, risk in problems:
        w = done["optimum", name, risk]["w"]
        last["constants", name, risk] = cell("constants", name, 1.0, risk=risk, w=w)
    results = work.run("curves", last)
    curves = _curves(results, optima)
    return Results(
        settings=settings,
        datasets=pd.DataFrame(
            [
                {
                    "dataset": name,
                    "n": data[name].X.shape[0],
                    "d": data[name].X.shape[1],
                    "checksum": data[name].checksum,
                }
                for name in settings.datasets
            ]
        ),
        optima=optima,
        tuning=tuning,
        curves=curves,
        least=_least(curves, optima),
        late=_late(results, optima),
        costs=pd.DataFrame(
            [
                {"dataset": key[1], "method": method, "seconds_per_pass": seconds}
                for key, result in done.items()
                if key[0] == "cost"
                for method, seconds in result["seconds_per_pass"].items()
            ],
            columns=["dataset", "method", "seconds_per_pass"],
        ),
        constants=pd.DataFrame(
            [
                {"dataset": key[1], "risk": key[2], **result}
                for key, result in results.items()
                if key[0] == "constants"
            ]
        ),
        plane=done.get(("plane",)),
        toy=done.get(("toy",)),
        seconds=time.monotonic() - begin,
        cells=work.cells,
        kept=work.kept,
    )


class _Work:
    """Runs cells by name, and counts them."""

    def __init__(
        self, data: Mapping[str, Dataset], store: Store, jobs: int, progress: Progress
    ) -> None:
        self.data, self.store, self.jobs, self.progress = data, store, jobs, progress
        self.cells = self.kept = 0

    def run(self, stage: str, keyed: Keyed) -> Outcomes:
        cells = list(dict.fromkeys(keyed.values()))
        self.cells += len(cells)
        self.kept += sum(self.store.path(each).exists() for each in cells)
        results = run_cells(stage, cells, self.data, self.store, self.jobs, self.progress)
        return {key: results[each] for key, each in keyed.items()}


def _optimum_cell(settings: Settings, name: str, risk: str) -> Cell:
    return cell("optimum", name, 1e6, risk=risk, tolerance=settings.tolerance)


def _plane_cell(settings: Settings, data: Mapping[str, Dataset]) -> Cell:
    name = "yacht" if "yacht" in data else settings.datasets[0]
    return cell(
        "plane",
        name,
        1e7,
        risk="extremile:2.5",
        iterations=200,
        eta=1.0,
        tolerance=settings.tolerance,
        resolution=81,
    )


def _cost_cell(settings: Settings, name: str, data: Mapping[str, Dataset]) -> Cell:
    n = len(data[name].y)
    return cell("cost", name, 1.0 * n**2, risk=settings.risks[0], epochs=20)


def _work_of(data: Mapping[str, Dataset], name: str, passes: float, runs: int) -> float:
    """Rough cost of runs: a pass takes time for its samples and for its overhead."""
    return runs * passes * (len(data[name].y) + 1000.0)


def _tune_cells(settings: Settings, optima: pd.DataFrame, data: Mapping[str, Dataset]) -> Keyed:
    keyed: Keyed = {}
    for row in optima.itertuples():
        values = [row.optimum + target * (row.start - row.optimum) for target in TARGETS]
        for batch in settings.batches:
            for method in PAPER_METHODS:
                grid = settings.grid(method)
                passes = settings.budget(batch)
                runs = len(grid) * (3 if method in ("sgd", "prospect") else 1)
                for seed in range(1, settings.tuning_seeds + 1):
                    keyed[row.dataset, row.risk, batch, method, seed] = cell(
                        "tune",
                        row.dataset,
                        _work_of(data, row.dataset, passes, runs),
                        risk=row.risk,
                        method=method,
                        batch=batch,
                        seed=seed,
                        passes=passes,
                        grid=grid,
                        values=values,
                    )
    return keyed


def _curve_cells(settings: Settings, tuning: pd.DataFrame, data: Mapping[str, Dataset]) -> Keyed:
    keyed: Keyed = {}
    if tuning.empty:
        return keyed
    chosen = tuning[tuning["chosen"]].set_index(["dataset", "risk", "batch", "method"])
    for name in settings.datasets:
        for risk in settings.risks:
            for batch in settings.batches:
                for method in (*ALL_METHODS, *APPENDIX_METHODS):
                    setting = {}
                    if method in PAPER_METHODS:
                        row = chosen.loc[name, risk, batch, method]
                        setting = {"alpha": float(row["alpha"])}
                        if method == "sorel":
                            setting["C"] = float(row["C"])
                    for seed in range(1, settings.seeds + 1):
                        keyed["curve", name, risk, batch, method, seed] = cell(
                            "curve",
                            name,
                            _work_of(data, name, settings.budget(batch), 1),
                            risk=risk,
                            method=method,
                            batch=1 if method in FULL_METHODS else batch,
                            seed=seed,
                            passes=settings.budget(batch),
                            setting=setting,
                        )
    return keyed


def _late_cells(
    settings: Settings, tuning: pd.DataFrame, optima: pd.DataFrame, data: Mapping[str, Dataset]
) -> Keyed:
    keyed: Keyed = {}
    iterations = settings.late_iterations
    if 1 in settings.batches:
        chosen = tuning[tuning["chosen"] & (tuning["method"] == "sorel") & (tuning["batch"] == 1)]
        for row in chosen.itertuples():
            tuned = {"alpha": row.alpha, "C": row.C}
            for run, (schedule, fitted) in LATE_RUNS.items():
                keyed["late", row.dataset, row.risk, run] = cell(
                    "late",
                    row.dataset,
                    _work_of(data, row.dataset, 2 * iterations, 1),
                    risk=row.risk,
                    setting=tuned if fitted else {},
                    seed=1,
                    iterations=iterations,
                    inner=schedule,
                )
    name, risk, setting = INSTABILITY
    if ((optima["dataset"] == name) & (optima["risk"] == risk)).any():
        for run, schedule in FIXED_RUNS.items():
            keyed["late", name, risk, run] = cell(
                "late",
                name,
                _work_of(data, name, 2 * iterations, 1),
                risk=risk,
                # The schedule without knobs has no place for them.
                setting={} if schedule == "auto" else setting,
                seed=1,
                iterations=iterations,
                inner=schedule,
            )
    return keyed


def _optima(done: Outcomes, problems: list[tuple[str, str]]) -> pd.DataFrame:
    columns = ["optimum", "start", "relative_gap", "passes", "seconds", "ties"]
    rows = []
    for name, risk in problems:
        result = done["optimum", name, risk]
        rows.append({"dataset": name, "risk": risk, **{key: result[key] for key in columns}})
    return pd.DataFrame(rows, columns=["dataset", "risk", *columns])


def _tuning(settings: Settings, grids: Outcomes, optima: pd.DataFrame) -> pd.DataFrame:
    """Scores of every setting, and the choice: the least mean score over the seeds.

    Settings within rounding of the best are ties; the one with the fewest passes to 1e-6 is taken.
    """
    keys = ["dataset", "risk", "batch", "method"]
    columns = [*keys, "alpha", "C", "score", *(f"passes_{t:.0e}" for t in TARGETS), "chosen"]
    known = optima.set_index(["dataset", "risk"])
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys(key[:4] for key in grids):
        results = [grids[(*key, seed)] for seed in range(1, settings.tuning_seeds + 1)]
        scores = np.mean([result["scores"] for result in results], axis=0)
        reached = np.mean([result["reached"] for result in results], axis=0)
        reference = known.loc[(key[0], key[1])]
        best = scores.min()
        tied = scores <= best + _TIE * abs(best)
        choice = min(np.flatnonzero(tied), key=lambda i: (reached[i, 1], reached[i, 2], scores[i]))
        scale = reference["start"] - reference["optimum"]
        for i, setting in enumerate(settings.grid(key[3])):
            row: dict[str, Any] = dict(zip(keys, key, strict=True))
            row.update(alpha=setting["alpha"], C=setting.get("C", np.nan), chosen=i == choice)
            row["score"] = (scores[i] - reference["optimum"]) / scale
            row.update({f"passes_{t:.0e}": reached[i, j] for j, t in enumerate(TARGETS)})
            rows.append(row)
    return pd.DataFrame(rows, columns=columns)


def _curves(results: Outcomes, optima: pd.DataFrame) -> pd.DataFrame:
    known = optima.set_index(["dataset", "risk"])
    parts = []
    for key, result in results.items():
        if key[0] != "curve":
            continue
        name, risk = key[1:3]
        part = pd.DataFrame(result)
        part.insert(0, "iteration", np.arange(len(part)))
        for position, (column, value) in enumerate(
            zip(("dataset", "risk", "batch", "method", "seed"), key[1:], strict=True)
        ):
            part.insert(position, column, value)
        part["suboptimality"] = _suboptimality(part["objective"], known.loc[(name, risk)])
        parts.append(part)
    if not parts:
        names = "dataset risk batch method seed iteration passes seconds objective suboptimality"
        return pd.DataFrame(columns=names.split())
    return pd.concat(parts, ignore_index=True)


def _late(results: Outcomes, optima: pd.DataFrame) -> pd.DataFrame:
    known = optima.set_index(["dataset", "risk"])
    parts = []
    for key, result in results.items():
        if key[0] != "late":
            continue
        _, name, risk, run = key
        part = pd.DataFrame({"objective": result["objective"]})
        part.insert(0, "iteration", np.arange(len(part)))
        part.insert(0, "run", run)
        part.insert(0, "risk", risk)
        part.insert(0, "dataset", name)
        part["suboptimality"] = _suboptimality(part["objective"], known.loc[(name, risk)])
        parts.append(part)
    if not parts:
        names = "dataset risk run iteration objective suboptimality"
        return pd.DataFrame(columns=names.split())
    return pd.concat(parts, ignore_index=True)


def _suboptimality(objective: pd.Series, reference: pd.Series) -> pd.Series:
    """(F - F*) / (F(0) - F*), 0 where rounding would make it negative: F* is a lower bound."""
    above = (objective - reference["optimum"]) / (reference["start"] - reference["optimum"])
    return above.clip(lower=0.0)


def _least(curves: pd.DataFrame, optima: pd.DataFrame) -> float:
    """The least suboptimality before it is cut off at 0: shows that only rounding was cut off."""
    if curves.empty:
        return 0.0
    lowest = curves.groupby(["dataset", "risk"])["objective"].min()
    known = optima.set_index(["dataset", "risk"])
    return float(((lowest - known["optimum"]) / (known["start"] - known["optimum"])).min())
