"""Tables of a reproduction, as data frames: what was run, chosen and reached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from sorel.reproduce.plan import INSTABILITY, Results
from sorel.reproduce.settings import (
    ALL_METHODS,
    APPENDIX_METHODS,
    LABELS,
    PAPER_METHODS,
    TARGETS,
    risk_label,
)

__all__ = [
    "Table",
    "all_tables",
    "knob_free",
    "late_levels",
    "number",
    "reached",
    "summary_curves",
    "to_markdown",
]

KEYS = ["dataset", "risk", "batch", "method"]
LAST = 10
# Methods that are looked at so rarely that ten checks are most of a run: their last check counts.
RARELY = ("admm", "pdhg", "apd")


@dataclass(frozen=True)
class Table:
    """A data frame with the name of its file, a title and a sentence on how to read it."""

    name: str
    title: str
    note: str
    frame: pd.DataFrame


@lru_cache(maxsize=1)
def reached(results: Results) -> pd.DataFrame:
    """Passes and seconds to each target, and the level at the end: medians over the seeds.

    A target counts as reached at the first check that is at or below it; infinity means never. The
    end level is the mean suboptimality of the last ten checks, or the last one of methods that are
    checked rarely.
    """
    rows = []
    for (*key, seed), run in results.curves.groupby([*KEYS, "seed"], sort=False):
        row: dict[str, Any] = dict(zip(KEYS, key, strict=True))
        row["seed"] = seed
        level = run["suboptimality"].to_numpy()
        for target in TARGETS:
            hits = np.flatnonzero(level <= target)
            for column in ("passes", "seconds"):
                value = run[column].to_numpy()[hits[0]] if len(hits) else np.inf
                row[f"{column}_{target:.0e}"] = value
        row["end"] = float(np.mean(level[-(1 if row["method"] in RARELY else LAST) :]))
        row["lowest"] = float(level.min())
        rows.append(row)
    if not rows:
        return pd.DataFrame(columns=[*KEYS, "end", "lowest"])
    return (
        pd.DataFrame(rows).groupby(KEYS, sort=False).median(numeric_only=True)
        .drop(columns="seed").reset_index()
    )  # fmt: skip


def summary_curves(results: Results) -> pd.DataFrame:
    """Median and quartiles of the suboptimality over the seeds, check by check."""
    if results.curves.empty:
        return pd.DataFrame()
    groups = results.curves.groupby([*KEYS, "iteration"], sort=False)
    frame = groups[["passes", "seconds"]].median()
    for name, share in (("lower", 0.25), ("median", 0.5), ("upper", 0.75)):
        frame[name] = groups["suboptimality"].quantile(share)
    return frame.reset_index()


def knob_free(results: Results, batch: int = 1) -> pd.DataFrame:
    """Passes of the published schedule, tuned, against those of the one without knobs.

    "tuned" follows the paper's rule of choice. "grid" is the least that any point of the grid
    needs for this very target, found with hindsight.
    """
    table = reached(results)
    table = table[table["batch"] == batch]
    grid = results.tuning[
        (results.tuning["method"] == "sorel") & (results.tuning["batch"] == batch)
    ]
    rows = []
    for (name, risk), group in table.groupby(["dataset", "risk"], sort=False):
        by_method = group.set_index("method")
        settings = grid[(grid["dataset"] == name) & (grid["risk"] == risk)]
        row: dict[str, Any] = {"dataset": name, "risk": risk}
        for target in TARGETS[1:]:
            column = f"passes_{target:.0e}"
            row[f"tuned {target:.0e}"] = by_method.loc["sorel", column]
            row[f"grid {target:.0e}"] = settings[column].min()
            row[f"auto {target:.0e}"] = by_method.loc["sorel-auto", column]
            row[f"ratio {target:.0e}"] = _ratio(
                row[f"auto {target:.0e}"], row[f"tuned {target:.0e}"]
            )
            row[f"grid ratio {target:.0e}"] = _ratio(
                row[f"auto {target:.0e}"], row[f"grid {target:.0e}"]
            )
        rows.append(row)
    return pd.DataFrame(rows)


def _ratio(ours: float, theirs: float) -> float:
    """ours / theirs, 0 where only theirs never arrives, NaN where neither does."""
    if np.isinf(ours) and np.isinf(theirs):
        return np.nan
    return ours / theirs


def late_levels(results: Results) -> pd.DataFrame:
    """Long runs of the published schedule: the lowest level, and the level at the end.

    `lost` says that the end is more than a hundred times above the lowest level, and above 1e-9.
    """
    rows = []
    for (name, risk, run), part in results.late.groupby(["dataset", "risk", "run"], sort=False):
        level = np.maximum(part["suboptimality"].to_numpy(), 1e-16)
        end = float(np.mean(level[-LAST:]))
        lowest = int(level.argmin())
        rows.append(
            {
                "dataset": name,
                "risk": risk,
                "run": run,
                "iterations": len(level) - 1,
                "lowest": float(level[lowest]),
                "at iteration": lowest,
                "end": end,
                "lost": end > 100.0 * level[lowest] and end > 1e-9,
            }
        )
    columns = ["dataset", "risk", "run", "iterations", "lowest", "end", "lost"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def all_tables(results: Results) -> list[Table]:
    """Every table of the report but the claims."""
    tables = [_datasets(results)]
    if results.optima.empty:
        return tables
    tables.append(_settings(results))
    tables += [_reached(results, batch) for batch in results.settings.batches]
    tables += [_appendix(results, batch) for batch in results.settings.batches]
    tables += [_knob_free(results, batch) for batch in results.settings.batches]
    if not results.late.empty:
        tables.append(_late(results))
    tables.append(_costs(results))
    tables.append(_constants(results))
    return tables


def _datasets(results: Results) -> Table:
    frame = results.datasets[["dataset", "n", "d"]].copy()
    frame["data checksum"] = results.datasets["checksum"].str[:12]
    for risk in results.settings.risks if not results.optima.empty else ():
        rows = results.optima[results.optima["risk"] == risk].set_index("dataset")
        frame[f"F*, {risk_label(risk)}"] = [
            f"{rows.loc[name, 'optimum']:.12f}" for name in frame["dataset"]
        ]
    note = "Training part: 80% of the rows, features and target standardised. mu = 1/n."
    if not results.optima.empty:
        worst = results.optima["relative_gap"].max()
        seconds = results.optima["seconds"].max()
        note += (
            f" Every F* is a certified lower bound, at most {worst:.0e} below the value attained "
            f"(relatively); the second-order solver finds the slowest of them in "
            f"{1000 * seconds:.0f} ms of CPU time."
        )
    return Table("datasets", "Datasets and certified optima", note, frame)


def _settings(results: Results) -> Table:
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
    frame = frame[list(PAPER_METHODS)].reset_index()
    frame = _labelled(frame).rename(columns={name: LABELS[name] for name in PAPER_METHODS})
    return Table(
        "settings",
        "Chosen step sizes alpha, and C of SOREL",
        "The paper's rule: the least training loss, averaged over the last ten epochs and the "
        f"{results.settings.tuning_seeds} seeds, over {len(results.settings.step_sizes)} step "
        f"sizes and, for SOREL, {len(results.settings.dual_steps)} values of C. Settings that "
        "agree to 1e-12 are ties, which the fewest passes to 1e-6 decide.",
        frame,
    )


def _levels(results: Results, batch: int, methods: tuple[str, ...]) -> pd.DataFrame:
    """The rows of some methods, ready to be read."""
    frame = reached(results)
    chosen = (frame["batch"] == batch) & frame["method"].isin(methods)
    frame = frame[chosen].drop(columns=["batch", "lowest"])
    frame["method"] = frame["method"].map(LABELS)
    names = {f"passes_{t:.0e}": f"passes to {t:.0e}" for t in TARGETS}
    names.update({f"seconds_{t:.0e}": f"ms to {t:.0e}" for t in TARGETS})
    frame = _labelled(frame.rename(columns=names))
    for target in TARGETS:
        frame[f"ms to {target:.0e}"] *= 1000.0
    return frame.rename(columns={"end": "end level"})


def _reached(results: Results, batch: int) -> Table:
    frame = _levels(results, batch, ALL_METHODS)
    how = "without mini-batches" if batch == 1 else f"with mini-batches of {batch}"
    return Table(
        "reached" if batch == 1 else "reached_batch",
        f"Passes and CPU time to a suboptimality, {how}",
        f"Medians over {results.settings.seeds} seeds, at most {results.settings.budget(batch)} "
        "passes; a dash means never. A target counts at the first check below it, even if the "
        "method leaves it again: the end level is the mean of the last ten checks.",
        frame,
    )


def _appendix(results: Results, batch: int) -> Table:
    how = "without mini-batches" if batch == 1 else f"with mini-batches of {batch}"
    return Table(
        "appendix" if batch == 1 else "appendix_batch",
        f"Not in the paper: methods of the related work, {how}",
        "With the library's default settings, which adapt or come from bounds: nothing was tuned. "
        "Drago minimises a smoothed risk and ends where its smoothing lets it. ADMM is looked at "
        "every 10 passes, PDHG and APD every 20: their passes are rounded up, and their end level "
        "is that of the last check.",
        _levels(results, batch, APPENDIX_METHODS),
    )


def _knob_free(results: Results, batch: int) -> Table:
    frame = _labelled(knob_free(results, batch))
    frame = frame.drop(columns=[name for name in frame if name.startswith("grid ratio")])
    how = "without mini-batches" if batch == 1 else f"with mini-batches of {batch}"
    return Table(
        "knob_free" if batch == 1 else "knob_free_batch",
        f"SOREL without knobs against SOREL tuned, {how}",
        "Passes to 1e-6 and 1e-9. tuned: the published schedule with the setting of the paper's "
        "rule; grid: the best of its 72 settings for this very target, in hindsight (a mean over "
        "the seeds, the others are medians); ratio: auto / tuned, 0 where only auto arrives.",
        frame,
    )


def _late(results: Results) -> Table:
    name, risk, setting = INSTABILITY
    special = f"alpha = {setting['alpha']:g}, C = {setting['C']:g}"
    words = {
        "tuned": "published, tuned",
        "stable": "stable, the same setting",
        "stable default": "stable, one setting for all",
        "fixed paper": f"published, {special}",
        "fixed exact paper": f"published, exact inner solves, C = {setting['C']:g}",
        "fixed stable": f"stable, {special}",
        "fixed exact stable": f"stable, exact inner solves, C = {setting['C']:g}",
        "fixed auto": "no knobs",
    }
    frame = _labelled(late_levels(results))
    frame["run"] = frame["run"].map(words)
    frame["lost"] = np.where(frame["lost"], "yes", "no")
    return Table(
        "late",
        "The published schedule, watched for longer",
        "lost: the run ends more than a hundred times above the lowest level that it had reached, "
        "and above 1e-9. stable: the same formulas with a clock that is stopped in time, with the "
        "tuned setting or, for all problems, with alpha from the curvature and C = 0.1. The last "
        f"rows take {name} with {risk_label(risk)} and a fixed setting.",
        frame,
    )


def _costs(results: Results) -> Table:
    frame = results.costs.pivot_table(
        index="dataset", columns="method", values="seconds_per_pass", sort=False
    )
    frame = frame.reindex(list(results.settings.datasets)) * 1e3
    labels = {**LABELS, "prospect-projecting": "Prospect, projecting"}
    order = [name for name in labels if name in frame.columns]
    frame = frame[order].rename(columns=labels).reset_index()
    frame.insert(1, "n", frame["dataset"].map(results.datasets.set_index("dataset")["n"]))
    return Table(
        "costs",
        "CPU milliseconds per pass",
        "Prospect keeps the losses in order and moves the one that changed; with a projection in "
        "every step (nu > 0), as the paper describes it, a pass costs O(n^2).",
        frame,
    )


def _constants(results: Results) -> Table:
    frame = results.constants.copy()
    frame["G_vector / G_one"] = frame["G_vector"] / frame["G_one"]
    frame = _labelled(frame).rename(
        columns={
            "G_one": "G of one loss",
            "G_vector": "G of the vector",
            "G_vector / G_one": "their ratio",
            "n_sigma_n": "n sigma_n",
            "G_sublevel": "G on the sublevel set",
        }
    )
    columns = ["dataset", "risk", "n", "G of one loss", "G of the vector", "their ratio"]
    columns += ["n sigma_n", "G on the sublevel set"]
    return Table(
        "constants",
        "Constants of the analysis",
        "At the optimum: the Lipschitz constant of one loss and of the vector of losses, which the "
        "proof takes to be equal; n sigma_n, by which the step 1/(12 L) is too long; and what the "
        "Lipschitz constant of one loss can be on the sublevel set of the start.",
        frame[columns],
    )


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.copy()
    frame["risk"] = frame["risk"].map(risk_label)
    return frame


def number(value: Any) -> str:
    """A value as the tables print it.

    Examples
    --------
    >>> from sorel.reproduce.tables import number
    >>> number(1234.5), number(3.14159), number(2e-13), number(float("inf"))
    ('1234', '3.14', '2.0e-13', '-')
    """
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if not isinstance(value, (float, np.floating)):
        return str(value)
    value = float(value)
    if not np.isfinite(value):
        return "-"
    size = abs(value)
    if size != 0.0 and size < 1e-2:
        return f"{value:.1e}"
    if size >= 100.0:
        return f"{value:.0f}"
    if size >= 10.0:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}"


def to_markdown(frame: pd.DataFrame) -> str:
    """A data frame as a Markdown table."""
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|---" * len(frame.columns) + "|"]
    for row in frame.itertuples(index=False):
        lines.append("| " + " | ".join(number(value).replace("|", "\\|") for value in row) + " |")
    return "\n".join(lines)
