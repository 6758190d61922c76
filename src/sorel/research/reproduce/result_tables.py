"""Tables of a reproduction, as data frames: what was run, chosen and reached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from sorel.research.reproduce.experiments import LAST
from sorel.research.reproduce.plan import INSTABILITY, Results
from sorel.research.reproduce.settings import (
    ALL_METHODS,
    APPENDIX_METHODS,
    LABELS,
    PAPER_METHODS,
    TARGETS,
    TEXTS,
    risk_label,
)

KEYS = ["dataset", "risk", "batch", "method"]
# Methods that are looked at so rarely that ten checks are most of a run: their last check counts.
RARELY = ("admm", "pdhg", "apd")


@dataclass(frozen=True)
class Table:
    """A data frame with the name of its file, a title and a sentence on how to read it."""

    name: str
    title: str
    note: str
    frame: pd.DataFrame


def make_table(name: str, frame: pd.DataFrame, batch: int = 1, **facts: Any) -> Table:
    """A table with the words of ``texts.toml``, and names of risks as the paper writes them."""
    how = "without mini-batches" if batch == 1 else f"with mini-batches of {batch}"
    title, note = (text.format(how=how, **facts) for text in TEXTS["tables"][name])
    if "risk" in frame:
        frame = frame.assign(risk=frame["risk"].map(risk_label))
    return Table(name if batch == 1 else f"{name}_batch", title, note, frame)


@lru_cache(maxsize=1)
def reached(results: Results) -> pd.DataFrame:
    """Passes and seconds to each target, and the level at the end: medians over the seeds.

    A target counts as reached at the first check that is at or below it; infinity means never. The
    end level is the mean suboptimality of the last ten checks, or the last one of methods that are
    checked rarely.
    """
    rows = []
    for key, run in results.curves.groupby([*KEYS, "seed"], sort=False):
        row: dict[str, Any] = dict(zip(KEYS, key, strict=False))
        level = run["suboptimality"].to_numpy()
        for target in TARGETS:
            hits = np.flatnonzero(level <= target)
            for column in ("passes", "seconds"):
                value = run[column].to_numpy()[hits[0]] if len(hits) else np.inf
                row[f"{column}_{target:.0e}"] = value
        row["end"] = float(np.mean(level[-(1 if row["method"] in RARELY else LAST) :]))
        row["lowest"] = float(level.min())
        rows.append(row)
    return pd.DataFrame(rows).groupby(KEYS, sort=False).median().reset_index()


def summary_curves(results: Results) -> pd.DataFrame:
    """Median and quartiles of the suboptimality over the seeds, check by check."""
    groups = results.curves.groupby([*KEYS, "iteration"], sort=False)
    frame = groups[["passes", "seconds"]].median()
    for name, share in (("lower", 0.25), ("median", 0.5), ("upper", 0.75)):
        frame[name] = groups["suboptimality"].quantile(share)
    return frame.reset_index()


def knob_free(results: Results, batch: int = 1) -> pd.DataFrame:
    """Passes of the published schedule, tuned, against those of the one without knobs.

    "tuned" follows the paper's rule of choice. "grid" is the least that any point of the grid
    needs for this very target, found with hindsight. Ratios are 0 where only the knob-free schedule
    arrives, and NaN where neither does.
    """
    problem = ["dataset", "risk"]
    table = reached(results)
    table = table[table["batch"] == batch]
    own, auto = (table[table["method"] == m].set_index(problem) for m in ("sorel", "sorel-auto"))
    grid = results.tuning[results.tuning["method"] == "sorel"]
    grid = grid[grid["batch"] == batch].groupby(problem, sort=False)
    frame = pd.DataFrame(index=own.index)
    for target in TARGETS[1:]:
        column, end = f"passes_{target:.0e}", f" {target:.0e}"
        frame["tuned" + end] = own[column]
        frame["grid" + end] = grid[column].min()
        frame["auto" + end] = auto[column]
        frame["ratio" + end] = frame["auto" + end] / frame["tuned" + end]
        frame["grid ratio" + end] = frame["auto" + end] / frame["grid" + end]
    return frame.reset_index()


def late_levels(results: Results) -> pd.DataFrame:
    """Long runs of the published schedule: the lowest level, and the level at the end.

    `lost` says that the end is more than a hundred times above the lowest level, and above 1e-9.
    """
    columns = ["dataset", "risk", "run", "iterations", "lowest", "at iteration", "end", "lost"]
    rows = []
    for key, part in results.late.groupby(["dataset", "risk", "run"], sort=False):
        level = np.maximum(part["suboptimality"].to_numpy(), 1e-16)
        lowest, end = float(level.min()), float(np.mean(level[-LAST:]))
        lost = end > 100.0 * lowest and end > 1e-9
        rows.append((*key, len(level) - 1, lowest, int(level.argmin()), end, lost))
    return pd.DataFrame(rows, columns=columns)


def all_tables(results: Results) -> list[Table]:
    """Every table of the report but the claims."""
    settings = results.settings
    if not settings.batches:
        return [_datasets(results)]
    tables = [_datasets(results), _settings(results)]
    for batch in settings.batches:
        facts = {"seeds": settings.seeds, "budget": settings.budget(batch)}
        for name, methods in (("reached", ALL_METHODS), ("appendix", APPENDIX_METHODS)):
            tables.append(make_table(name, _levels(results, batch, methods), batch, **facts))
        frame = knob_free(results, batch)
        frame = frame.drop(columns=frame.filter(like="grid ratio"))
        tables.append(make_table("knob_free", frame, batch))
    if not results.late.empty:
        tables.append(_late(results))
    return [*tables, _costs(results), _constants(results)]


def _datasets(results: Results) -> Table:
    frame, optima = results.datasets[["dataset", "n", "d"]].copy(), results.optima
    frame["data checksum"] = results.datasets["checksum"].str[:12]
    if optima.empty:
        return make_table("datasets", frame, certified="")
    for risk in results.settings.risks:
        values = optima[optima["risk"] == risk].set_index("dataset")["optimum"]
        frame[f"F*, {risk_label(risk)}"] = frame["dataset"].map(values).map("{:.12f}".format)
    facts = {"gap": optima["relative_gap"].max(), "milliseconds": 1000 * optima["seconds"].max()}
    return make_table("datasets", frame, certified=TEXTS["measured"]["certified"].format(**facts))


def _settings(results: Results) -> Table:
    settings = results.settings
    chosen = results.tuning[results.tuning["chosen"]].copy()
    chosen["setting"] = [
        f"{row.alpha:g}" + (f", C = {row.C:g}" if row.method == "sorel" else "")
        for row in chosen.itertuples()
    ]
    frame = chosen.pivot_table(
        index=["dataset", "risk", "batch"],
        columns="method",
        values="setting",
        aggfunc="first",
        sort=False,
    )
    frame = frame[list(PAPER_METHODS)].reset_index().rename(columns=LABELS)
    counts = {"alphas": len(settings.step_sizes), "Cs": len(settings.dual_steps)}
    return make_table("settings", frame, seeds=settings.tuning_seeds, **counts)


def _levels(results: Results, batch: int, methods: tuple[str, ...]) -> pd.DataFrame:
    """The rows of some methods, ready to be read."""
    frame = reached(results)
    chosen = (frame["batch"] == batch) & frame["method"].isin(methods)
    frame = frame[chosen].drop(columns=["batch", "lowest"])
    frame["method"] = frame["method"].map(LABELS)
    names = {"end": "end level"}
    for target in TARGETS:
        names[f"passes_{target:.0e}"] = f"passes to {target:.0e}"
        names[f"seconds_{target:.0e}"] = f"ms to {target:.0e}"
        frame[f"seconds_{target:.0e}"] *= 1000.0
    return frame.rename(columns=names)


def _late(results: Results) -> Table:
    name, risk, setting = INSTABILITY
    frame = late_levels(results)
    frame["run"] = [TEXTS["late_runs"][run].format(**setting) for run in frame["run"]]
    frame["lost"] = np.where(frame["lost"], "yes", "no")
    return make_table("late", frame, problem=f"{name} with {risk_label(risk)}")


def _costs(results: Results) -> Table:
    frame = results.costs.pivot_table(
        index="dataset", columns="method", values="seconds_per_pass", sort=False
    )
    frame = frame.reindex(list(results.settings.datasets)) * 1e3
    labels = {**LABELS, "prospect-projecting": "Prospect, projecting"}
    order = [name for name in labels if name in frame.columns]
    frame = frame[order].rename(columns=labels).reset_index()
    frame.insert(1, "n", frame["dataset"].map(results.datasets.set_index("dataset")["n"]))
    return make_table("costs", frame)


def _constants(results: Results) -> Table:
    names = {
        "G_one": "G of one loss",
        "G_vector": "G of the vector",
        "ratio": "their ratio",
        "n_sigma_n": "n sigma_n",
        "G_sublevel": "G on the sublevel set",
    }
    frame = results.optima
    frame = frame.assign(ratio=frame["G_vector"] / frame["G_one"])
    frame = frame[["dataset", "risk", "n", *names]].rename(columns=names)
    return make_table("constants", frame)


def number(value: Any) -> str:
    """A value as the tables print it.

    Examples
    --------
    >>> from sorel.reproduce.result_tables import number
    >>> number(1234.5), number(3.14159), number(2e-13), number(float("inf"))
    ('1234', '3.14', '2.0e-13', '-')
    """
    if not isinstance(value, (float, np.floating)):
        return str(value)
    size = abs(float(value))
    if not np.isfinite(size):
        return "-"
    if 0.0 < size < 1e-2:
        return f"{value:.1e}"
    if size < 10.0:
        return f"{value:.2f}"
    return f"{value:.1f}".removesuffix(".0") if size < 100.0 else f"{value:.0f}"


def to_markdown(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table."""
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|---" * len(frame.columns) + "|"]
    for row in frame.itertuples(index=False):
        lines.append("| " + " | ".join(number(value).replace("|", "\\|") for value in row) + " |")
    return "\n".join(lines)
