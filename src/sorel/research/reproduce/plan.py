"""From settings to results: which cells there are, in which order, and what they add up to.

Optima come first, then the grids, then the curves of the chosen settings. Everything after this
module only reads a :class:`Results`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sorel.research.datasets import (
    PAPER_DATASETS,
    load_diabetes,
    load_paper_dataset,
    make_two_populations,
    split_standardized,
)
from sorel.research.reproduce.cells import Cell, Dataset, Progress, Work, cell, code_version
from sorel.research.reproduce.settings import (
    ALL_METHODS,
    APPENDIX_METHODS,
    FULL_METHODS,
    PAPER_METHODS,
    TARGETS,
    Settings,
)

# Cells and their results by the kind of experiment and what tells its cells apart.
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

_PROBLEM = ["dataset", "risk"]
_GRID = [*_PROBLEM, "batch", "method"]
_CONSTANTS = ["n", "G_one", "G_vector", "n_sigma_n", "G_sublevel"]
_OPTIMUM = ["optimum", "start", "relative_gap", "seconds", *_CONSTANTS]


@dataclass(eq=False)
class Results:
    """All numbers of a reproduction, before any of them is put into a table or a picture.

    Attributes
    ----------
    settings : Settings
    datasets : DataFrame
        name, n, d, checksum.
    optima : DataFrame
        dataset, risk, optimum, start, relative_gap, seconds, and constants of the analysis at the
        optimum: n, G_one, G_vector, n_sigma_n, G_sublevel.
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
    costs : DataFrame
        CPU seconds per pass.
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
    plane: dict[str, Any] | None = None
    toy: dict[str, Any] | None = None
    least: float = 0.0
    code: str = field(default_factory=code_version)
    cells: int = 0
    kept: int = 0


def load_data(settings: Settings, folder: str | os.PathLike[str] | None) -> dict[str, Dataset]:
    """The datasets by name."""
    data, wanted = {}, dict.fromkeys(settings.datasets)
    # Figure 1 shows yacht, unless only sets outside the paper are asked for.
    if "1" in settings.figures and not wanted.keys().isdisjoint(PAPER_DATASETS):
        wanted["yacht"] = None
    for name in wanted:
        if name in PAPER_DATASETS:
            X, y = load_paper_dataset(name, folder)
        else:
            raw = load_diabetes() if name == "diabetes" else make_two_populations(n=400, d=5)[:2]
            X, _, y, _ = split_standardized(*raw)
        data[name] = Dataset(name, np.ascontiguousarray(X), np.ascontiguousarray(y))
    return data


def collect(
    settings: Settings,
    data: Mapping[str, Dataset],
    folder: Path,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Results:
    """Compute or read every cell, and put the numbers in order."""
    work = Work(folder, data, jobs, progress)
    done = work.run("optima", _first_cells(settings, data))
    rows = [{**_labels(key, _PROBLEM), **each} for key, each in done.items() if key[0] == "optimum"]
    optima = pd.DataFrame(rows, columns=[*_PROBLEM, *_OPTIMUM])
    tuning = _tuning(settings, work.run("tuning", _tune_cells(settings, optima)), optima)
    last = {**_curve_cells(settings, tuning), **_late_cells(settings, tuning, optima)}
    results = work.run("curves", last)
    labels = [*_GRID, "seed"]
    curves = _runs(results, "curve", labels, ["passes", "seconds", "objective"], optima)
    late = _runs(results, "late", [*_PROBLEM, "run"], ["objective"], optima)
    return Results(
        settings=settings,
        datasets=pd.DataFrame(
            [(name, *data[name].X.shape, data[name].checksum) for name in settings.datasets],
            columns=["dataset", "n", "d", "checksum"],
        ),
        optima=optima,
        tuning=tuning,
        least=0.0 if curves.empty else float(curves["suboptimality"].min()),
        # F* is a lower bound: only rounding takes an iterate below it.
        curves=curves.assign(suboptimality=curves["suboptimality"].clip(lower=0.0)),
        late=late.assign(suboptimality=late["suboptimality"].clip(lower=0.0)),
        costs=pd.DataFrame(
            [
                (key[1], *cost)
                for key, result in done.items()
                if key[0] == "cost"
                for cost in result["seconds_per_pass"].items()
            ],
            columns=["dataset", "method", "seconds_per_pass"],
        ),
        plane=done.get(("plane",)),
        toy=done.get(("toy",)),
        cells=work.cells,
        kept=work.kept,
    )


def _labels(key: tuple[Any, ...], names: list[str]) -> dict[str, Any]:
    return dict(zip(names, key[1:], strict=True))


def _first_cells(settings: Settings, data: Mapping[str, Dataset]) -> Keyed:
    keyed: Keyed = {}
    if settings.batches:
        for name, risk in product(settings.datasets, settings.risks):
            arguments = {"risk": risk, "tolerance": settings.tolerance}
            keyed["optimum", name, risk] = cell("optimum", name, **arguments)
        for name in settings.datasets:
            keyed["cost", name] = cell("cost", name, risk=settings.risks[0], epochs=20)
    if "1" in settings.figures:
        name = "yacht" if "yacht" in data else settings.datasets[0]
        how = {"iterations": 200, "eta": 1.0, "resolution": 81, "tolerance": settings.tolerance}
        keyed["plane",] = cell("plane", name, risk="extremile:2.5", **how)
        keyed["toy",] = cell("toy", start=0.5, alpha=0.5, steps=60, iterations=12)
    return keyed


def _tune_cells(settings: Settings, optima: pd.DataFrame) -> Keyed:
    keyed: Keyed = {}
    seeds = range(1, settings.tuning_seeds + 1)
    for row in optima.itertuples():
        values = [row.optimum + target * (row.start - row.optimum) for target in TARGETS]
        for batch, method, seed in product(settings.batches, PAPER_METHODS, seeds):
            run = {"risk": row.risk, "method": method, "batch": batch, "seed": seed}
            goal = {"passes": settings.budget(batch), "grid": settings.grid(method)}
            key = ("tune", row.dataset, row.risk, batch, method, seed)
            keyed[key] = cell("tune", row.dataset, values=values, **run, **goal)
    return keyed


def _curve_cells(settings: Settings, tuning: pd.DataFrame) -> Keyed:
    keyed: Keyed = {}
    chosen = tuning[tuning["chosen"].astype(bool)].set_index(_GRID)[["alpha", "C"]]
    methods = (*ALL_METHODS, *APPENDIX_METHODS)
    for key in product(settings.datasets, settings.risks, settings.batches, methods):
        name, risk, batch, method = key
        setting = chosen.loc[key].dropna().to_dict() if method in PAPER_METHODS else {}
        run = {"risk": risk, "method": method, "batch": 1 if method in FULL_METHODS else batch}
        run |= {"passes": settings.budget(batch), "setting": setting}
        for seed in range(1, settings.seeds + 1):
            keyed["curve", *key, seed] = cell("curve", name, seed=seed, **run)
    return keyed


def _late_cells(settings: Settings, tuning: pd.DataFrame, optima: pd.DataFrame) -> Keyed:
    keyed: Keyed = {}

    def add(name: str, risk: str, run: str, schedule: str, setting: dict[str, float]) -> None:
        arguments = {"seed": 1, "iterations": settings.late_iterations, "inner": schedule}
        keyed["late", name, risk, run] = cell("late", name, risk=risk, setting=setting, **arguments)

    tuned = tuning["chosen"].astype(bool) & (tuning["method"] == "sorel") & (tuning["batch"] == 1)
    for row in tuning[tuned].itertuples():
        for run, (schedule, fitted) in LATE_RUNS.items():
            setting = {"alpha": row.alpha, "C": row.C} if fitted else {}
            add(row.dataset, row.risk, run, schedule, setting)
    name, risk, fixed = INSTABILITY
    if ((optima["dataset"] == name) & (optima["risk"] == risk)).any():
        for run, schedule in FIXED_RUNS.items():
            # The schedule without knobs has no place for them.
            add(name, risk, run, schedule, {} if schedule == "auto" else fixed)
    return keyed


def _tuning(settings: Settings, grids: Outcomes, optima: pd.DataFrame) -> pd.DataFrame:
    """Scores of every setting, and the choice: the least mean score over the seeds.

    Settings whose scores differ by less than F* is known to are ties; the one with the fewest
    passes to 1e-6 is taken.
    """
    passes = [f"passes_{target:.0e}" for target in TARGETS]
    known = optima.set_index(_PROBLEM)
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys(key[:-1] for key in grids):
        results = [grids[(*key, seed)] for seed in range(1, settings.tuning_seeds + 1)]
        scores = np.mean([result["scores"] for result in results], axis=0)
        reached = np.mean([result["reached"] for result in results], axis=0)
        best, reference = scores.min(), known.loc[key[1:3]]
        tied = np.flatnonzero(scores <= best + settings.tolerance * abs(best))
        choice = min(tied, key=lambda i: (reached[i, 1], reached[i, 2], scores[i]))
        above = (scores - reference["optimum"]) / (reference["start"] - reference["optimum"])
        for i, setting in enumerate(settings.grid(key[4])):
            row = {**_labels(key, _GRID), **setting, "score": above[i], "chosen": i == choice}
            rows.append({**row, **dict(zip(passes, reached[i], strict=True))})
    return pd.DataFrame(rows, columns=[*_GRID, "alpha", "C", "score", *passes, "chosen"])


def _runs(
    results: Outcomes, kind: str, labels: list[str], columns: list[str], optima: pd.DataFrame
) -> pd.DataFrame:
    """All runs of a kind, check by check, with (F - F*) / (F(0) - F*)."""
    parts = [pd.DataFrame(columns=[*labels, "iteration", *columns])]
    for key, result in results.items():
        if key[0] == kind:
            part = pd.DataFrame(result, columns=columns).rename_axis("iteration").reset_index()
            parts.append(part.assign(**_labels(key, labels)))
    frame = pd.concat(parts[1:], ignore_index=True) if len(parts) > 1 else parts[0]
    known = frame[_PROBLEM].merge(optima, how="left", on=_PROBLEM)
    above = (frame["objective"] - known["optimum"]) / (known["start"] - known["optimum"])
    return frame[list(parts[0])].assign(suboptimality=above)
