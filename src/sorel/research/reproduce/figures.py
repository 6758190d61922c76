"""The figures, drawn from the results and saved as PNG and PDF."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sorel.files.atomic import write_atomically
from sorel.research.reproduce.plan import FIXED_RUNS, INSTABILITY, Results
from sorel.research.reproduce.result_tables import knob_free, summary_curves
from sorel.research.reproduce.settings import (
    ALL_METHODS,
    APPENDIX_METHODS,
    LABELS,
    STYLES,
    risk_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The curves that the methods of the appendix are read against, then those.
_APPENDIX = ("sorel", "sorel-auto", *APPENDIX_METHODS)
# Room beside the panels for the legend, in inches.
_LEGEND = 1.9

# Differences of objectives are rounding below this; the curves are cut off there.
_FLOOR = 1e-15
_RC: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
}


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Draw what the results cover; return the PNG files by name, with a PDF beside each."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, (needed, draw) in _FIGURES.items():
        if set(needed).isdisjoint(results.settings.figures):
            continue
        with matplotlib.rc_context(_RC):
            figure = draw(results)
            if figure is not None:
                drawn[name] = _save(figure, folder / f"{name}.png")
    return drawn


def _save(figure: Figure, path: Path) -> Path:
    """Write a picture as PDF, and as PNG with a palette: a third of the size in the report."""
    from PIL import Image

    pdf, png, small = io.BytesIO(), io.BytesIO(), io.BytesIO()
    # Without dates and versions the same numbers give the same file.
    figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
    figure.savefig(png, format="png", dpi=100, metadata={"Software": None})
    picture = Image.open(png).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(small, format="PNG", optimize=True)
    write_atomically(path.with_suffix(".pdf"), pdf.getvalue())
    write_atomically(path, small.getvalue())
    return path


def _figure(rows: int, columns: int, width: float, height: float, **more: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def _plane(results: Results) -> Figure:
    plane = results.plane
    assert plane is not None
    figure, axes = _figure(1, 2, 9.0, 4.4, sharex=True, sharey=True)
    above = np.asarray(plane["levels"]) - plane["optimum"]
    steps = np.geomspace(max(above.min(), above.max() / 2000.0), above.max(), 14)
    for ax, name in zip(axes[0], ("without", "with"), strict=True):
        path = np.asarray(plane["paths"][name]["w"])[1:]
        ax.plot(*path.T, color=STYLES["sorel-auto"]["color"], linewidth=0.8, alpha=0.7)
        order = np.arange(1, len(path) + 1)
        points = ax.scatter(*path.T, c=order, norm="log", s=16, cmap="viridis_r", zorder=3)
        ax.plot(*plane["w"], "*", color="black", markersize=14, zorder=4, markeredgecolor="white")
        end = max(plane["paths"][name]["objective"][-1] - plane["optimum"], _FLOOR)
        ax.set_title(f"{name} a proximal term on λ\n$F - F^*$ = {end:.0e} at the end")
        ax.set_xlabel("$w_1$")
    axes[0, 0].set_ylabel("$w_2$")
    # Both paths whole, with a margin, at one scale; the level sets go beyond.
    axes[0, 0].margins(0.15)
    axes[0, 0].autoscale_view()
    for ax in axes[0]:
        ax.autoscale(False)
        ax.contour(*plane["axes"], above, levels=steps, colors="#b5b5b5", linewidths=0.8, zorder=0)
    figure.colorbar(points, ax=axes[0].tolist(), label="outer iteration", shrink=0.8)
    return figure


def _grid(results: Results, batch: int, methods: tuple[str, ...]) -> Figure:
    settings = results.settings
    curves = summary_curves(results)
    curves = curves[curves["batch"] == batch]
    rows, risks = len(settings.datasets), len(settings.risks)
    height = max(2.1 * rows + 0.9, 3.0)
    figure, axes = _figure(rows, 2 * risks, 4.9 * risks + _LEGEND, height, sharey="row")
    for i, name in enumerate(settings.datasets):
        for j, risk in enumerate(settings.risks):
            part = curves[(curves["dataset"] == name) & (curves["risk"] == risk)]
            _panel(axes[i, 2 * j], part, "passes", methods)
            _panel(axes[i, 2 * j + 1], part, "seconds", methods)
        axes[i, 0].set_ylabel(f"{name}\nsuboptimality")
    for j, risk in enumerate(settings.risks):
        axes[0, 2 * j].set_title(f"{risk_label(risk)}, passes")
        axes[0, 2 * j + 1].set_title(f"{risk_label(risk)}, CPU time")
        axes[-1, 2 * j].set_xlabel("passes")
        axes[-1, 2 * j + 1].set_xlabel("CPU milliseconds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return figure


def _panel(ax: Axes, part: pd.DataFrame, column: str, methods: tuple[str, ...]) -> None:
    for method in methods:
        run = part[part["method"] == method]
        x = run[column].to_numpy() * (1000.0 if column == "seconds" else 1.0)
        middle, low, high = run[["median", "lower", "upper"]].clip(lower=_FLOOR).to_numpy().T
        ax.plot(x, middle, label=LABELS[method], **STYLES[method])
        ax.fill_between(x, low, high, color=STYLES[method]["color"], alpha=0.18, linewidth=0)
    _suboptimality_axis(ax)
    ax.set_yticks([1.0, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
    ax.minorticks_off()
    if column == "passes":
        ax.set_xlim(left=0.0)
    else:
        # The methods differ by orders of magnitude, and so do the first and the last check.
        ax.set_xscale("log")


def _suboptimality_axis(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.set_ylim(_FLOOR / 2, 3.0)
    ax.grid(axis="y")


def _late(results: Results) -> Figure | None:
    name, risk, setting = INSTABILITY
    fixed = results.late[results.late["run"].isin(FIXED_RUNS)]
    if fixed.empty:
        return None
    figure, axes = _figure(1, 1, 8.0 + _LEGEND, 3.6)
    ax = axes[0, 0]
    lines = {
        "fixed paper": ("published", "sorel"),
        "fixed exact paper": ("published, exact solves", "lsvrg"),
        "fixed stable": ("stable", "admm"),
        "fixed exact stable": ("stable, exact solves", "pdhg"),
        "fixed auto": ("no knobs", "sorel-auto"),
    }
    for run, (label, method) in lines.items():
        level = fixed[fixed["run"] == run].set_index("iteration")["suboptimality"]
        ax.plot(level.clip(lower=_FLOOR), label=label, **STYLES[method])
    _suboptimality_axis(ax)
    ax.set_xlim(0, fixed["iteration"].max())
    ax.set_xlabel("outer iteration k")
    ax.set_ylabel("suboptimality")
    title = f"{name}, {risk_label(risk)}, α = {setting['alpha']:g}, C = {setting['C']:g}"
    ax.set_title(title)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def _toy(results: Results) -> Figure:
    assert results.toy is not None
    figure, axes = _figure(1, 1, 6.5, 2.8)
    ax, paths = axes[0, 0], results.toy["paths"]
    look = {"marker": "o", "markersize": 4}
    label = "weights recomputed at every outer iteration"
    ax.plot(paths["without"], label=label, **look, **STYLES["sorel"])
    ax.plot(paths["with"], label="weights kept near the last ones", **look, **STYLES["sorel-auto"])
    ax.axhline(0.0, color="black", linewidth=0.6)
    ax.set_xlabel("outer iteration k")
    ax.set_ylabel("$w_k$")
    ax.set_ylim(-1.25, 1.25)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


def _ratios(results: Results) -> Figure:
    from matplotlib.ticker import LogLocator

    batches = results.settings.batches
    rows = len(results.settings.datasets) * len(results.settings.risks)
    figure, axes = _figure(1, len(batches), 4.8 * len(batches) + 1.0, 0.26 * max(rows, 3) + 1.3)
    for ax, batch in zip(axes[0], batches, strict=True):
        table = knob_free(results, batch)
        labels = [f"{row.dataset}, {risk_label(str(row.risk))}" for row in table.itertuples()]
        y = np.arange(len(table))[::-1]
        limit = float(results.settings.budget(batch))
        ends = table[["auto 1e-06", "tuned 1e-06"]].to_numpy()
        ax.hlines(y, *ends.clip(max=limit).T, color="#bbbbbb", linewidth=1.0, zorder=0)
        for values, method in zip(ends.T, ("sorel-auto", "sorel"), strict=True):
            here, color = np.isfinite(values), STYLES[method]["color"]
            ax.plot(values[here], y[here], "o", color=color, label=LABELS[method])
            beyond = y[~here]
            ax.plot(np.full(len(beyond), limit), beyond, ">", color=color, fillstyle="none")
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=40))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.set_yticks(y, labels if ax is axes[0, 0] else [""] * len(labels))
        ax.set_xlabel("passes to 1e-6")
        how = "without mini-batches" if batch == 1 else f"mini-batches of {batch}"
        ax.set_title(f"{how} (arrowhead: not in {limit:.0f})")
        ax.grid(axis="x")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure


# The figures of the paper, of which one must be asked for, and what draws it.
_FIGURES: dict[str, tuple[str, Callable[[Results], Any]]] = {
    "figure1": ("1", _plane),
    "figure2": ("2", lambda results: _grid(results, 1, ALL_METHODS)),
    "figure3": ("3", lambda results: _grid(results, results.settings.batch_size, ALL_METHODS)),
    "appendix2": ("2", lambda results: _grid(results, 1, _APPENDIX)),
    "appendix3": ("3", lambda results: _grid(results, results.settings.batch_size, _APPENDIX)),
    "knob_free": ("23", _ratios),
    "late": ("23", _late),
    "toy": ("1", _toy),
}
