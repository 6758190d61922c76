"""The figures, drawn from the results and saved as PNG and PDF."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sorel._files import write_atomically
from sorel.reproduce.plan import FIXED_RUNS, INSTABILITY, Results
from sorel.reproduce.settings import ALL_METHODS, APPENDIX_METHODS, LABELS, risk_label
from sorel.reproduce.tables import knob_free, summary_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_all"]

# Colours of Okabe and Ito, and dashes that tell the lines apart in grey.
_STYLE: dict[str, dict[str, Any]] = {
    "sgd": {"color": "#999999", "linestyle": (0, (1, 1))},
    "lsvrg": {"color": "#E69F00", "linestyle": "--"},
    "prospect": {"color": "#CC79A7", "linestyle": "-."},
    "sorel": {"color": "#D55E00", "linestyle": "-"},
    "sorel-auto": {"color": "#0072B2", "linestyle": "-"},
    "lbfgs": {"color": "#000000", "linestyle": ":"},
    "admm": {"color": "#009E73", "linestyle": "-"},
    "pdhg": {"color": "#56B4E9", "linestyle": "--"},
    "apd": {"color": "#CC79A7", "linestyle": "-."},
    "stochastic_pd": {"color": "#E69F00", "linestyle": "-"},
    "drago": {"color": "#999999", "linestyle": (0, (4, 1, 1, 1))},
}
# The curves that the methods of the appendix are read against, then those.
_APPENDIX = ("sorel", "sorel-auto", *APPENDIX_METHODS)
_WIDTH = 1.4
# Room beside the panels for the legend, in inches.
_LEGEND = 1.9

# Differences of objectives are rounding below this; the curves are cut off there.
_FLOOR = 1e-15
_RC: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "legend.frameon": False,
}


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Draw what the results cover; return the PNG files by name, with a PDF beside each."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for name, draw in _FIGURES.items():
        with rc_context(_RC):
            figure = draw(results)
            if figure is None:
                continue
            for suffix in ("pdf", "png"):
                _save(figure, folder / f"{name}.{suffix}")
            drawn[name] = folder / f"{name}.png"
    return drawn


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    # Without dates and versions the same numbers give the same file.
    clean = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
    figure.savefig(buffer, format=path.suffix[1:], dpi=100, metadata=clean)
    write_atomically(path, buffer.getvalue() if path.suffix == ".pdf" else _smaller(buffer))


def _smaller(png: io.BytesIO) -> bytes:
    """The same picture with a palette: a third of the size, so that the report stays light."""
    from PIL import Image

    buffer = io.BytesIO()
    picture = Image.open(png).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _figure(rows: int, columns: int, width: float, height: float, **more: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def _plane(results: Results) -> Figure | None:
    plane = results.plane
    if plane is None:
        return None
    figure, axes = _figure(1, 2, 9.0, 4.4, sharex=True, sharey=True)
    levels = np.asarray(plane["levels"])
    above = levels - plane["optimum"]
    titles = {"without": "without a proximal term on λ", "with": "with a proximal term on λ"}
    for ax, (name, title) in zip(axes[0], titles.items(), strict=True):
        path = np.asarray(plane["paths"][name]["w"])[1:]
        steps = np.geomspace(max(above.min(), above.max() / 2000.0), above.max(), 14)
        ax.contour(*plane["axes"], above, levels=steps, colors="#b5b5b5", linewidths=0.8)
        ax.plot(*path.T, color=_STYLE["sorel-auto"]["color"], linewidth=0.8, alpha=0.7)
        points = ax.scatter(
            *path.T,
            c=np.arange(1, len(path) + 1),
            norm="log",
            s=16,
            cmap="viridis_r",
            zorder=3,
        )
        ax.plot(*plane["w"], "*", color="black", markersize=14, zorder=4, markeredgecolor="white")
        end = plane["paths"][name]["objective"][-1] - plane["optimum"]
        ax.set_title(f"{title}\n$F - F^*$ = {max(end, _FLOOR):.0e} at the end")
        ax.set_xlabel("$w_1$")
    _frame_paths(axes[0], plane)
    axes[0, 0].set_ylabel("$w_2$")
    figure.colorbar(points, ax=axes[0].tolist(), label="outer iteration", shrink=0.8)
    return figure


def _frame_paths(axes: Any, plane: dict[str, Any]) -> None:
    """Show both paths whole, with a margin, at one scale."""
    points = np.concatenate([np.asarray(path["w"])[1:] for path in plane["paths"].values()])
    points = np.vstack([points, plane["w"]])
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.15 * (high - low).max()
    axes[0].set_xlim(low[0] - margin, high[0] + margin)
    axes[0].set_ylim(low[1] - margin, high[1] + margin)


def _grid(
    figure_name: str, methods: tuple[str, ...] = ALL_METHODS
) -> Callable[[Results], Figure | None]:
    def draw(results: Results) -> Figure | None:
        settings = results.settings
        if figure_name not in settings.figures or results.curves.empty:
            return None
        batch = 1 if figure_name == "2" else settings.batch_size
        curves = summary_curves(results)
        curves = curves[curves["batch"] == batch]
        rows, risks = len(settings.datasets), len(settings.risks)
        height = max(2.1 * rows + 0.9, 3.0)
        figure, axes = _figure(rows, 2 * risks, 4.9 * risks + _LEGEND, height, sharey="row")
        for i, name in enumerate(settings.datasets):
            for j, risk in enumerate(settings.risks):
                part = curves[(curves["dataset"] == name) & (curves["risk"] == risk)]
                for k, column in enumerate(("passes", "seconds")):
                    ax = axes[i, 2 * j + k]
                    _panel(ax, part, column, methods)
                    if i == 0:
                        unit = "passes" if column == "passes" else "CPU time"
                        ax.set_title(f"{risk_label(risk)}, {unit}")
                    if i == rows - 1:
                        ax.set_xlabel("passes" if column == "passes" else "CPU milliseconds")
            axes[i, 0].set_ylabel(f"{name}\nsuboptimality")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
        return figure

    return draw


def _panel(ax: Axes, part: pd.DataFrame, column: str, methods: tuple[str, ...]) -> None:
    for method in methods:
        run = part[part["method"] == method]
        if run.empty:
            continue
        x = run[column].to_numpy() * (1000.0 if column == "seconds" else 1.0)
        middle, low, high = (
            np.clip(run[name].to_numpy(), _FLOOR, None) for name in ("median", "lower", "upper")
        )
        ax.plot(x, middle, label=LABELS[method], linewidth=_WIDTH, **_STYLE[method])
        ax.fill_between(x, low, high, color=_STYLE[method]["color"], alpha=0.18, linewidth=0)
    ax.set_yscale("log")
    ax.set_ylim(_FLOOR / 2, 3.0)
    ax.set_yticks([1.0, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
    ax.minorticks_off()
    ax.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    if column == "passes":
        ax.set_xlim(left=0.0)
    else:
        # The methods differ by orders of magnitude, and so do the first and the last check.
        ax.set_xscale("log")


def _late(results: Results) -> Figure | None:
    name, risk, setting = INSTABILITY
    fixed = results.late[results.late["run"].isin(FIXED_RUNS)]
    if fixed.empty:
        return None
    figure, axes = _figure(1, 1, 8.0 + _LEGEND, 3.6)
    ax = axes[0, 0]
    lines = {
        "fixed paper": ("published", _STYLE["sorel"]),
        "fixed exact paper": ("published, exact solves", _STYLE["lsvrg"]),
        "fixed stable": ("stable", _STYLE["admm"]),
        "fixed exact stable": ("stable, exact solves", _STYLE["pdhg"]),
        "fixed auto": ("no knobs", _STYLE["sorel-auto"]),
    }
    for run, (label, style) in lines.items():
        part = fixed[fixed["run"] == run]
        level = np.clip(part["suboptimality"].to_numpy(), _FLOOR, None)
        ax.plot(part["iteration"], level, label=label, linewidth=_WIDTH, **style)
    ax.set_yscale("log")
    ax.set_ylim(_FLOOR / 2, 3.0)
    ax.set_xlim(0, fixed["iteration"].max())
    ax.set_xlabel("outer iteration k")
    ax.set_ylabel("suboptimality")
    ax.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    ax.set_title(
        f"{name}, {risk_label(risk)}, α = {setting['alpha']:g}, C = {setting['C']:g}: "
        "what is reached by k = 400 is lost by k = 600"
        if _loses(fixed)
        else f"{name}, {risk_label(risk)}, α = {setting['alpha']:g}, C = {setting['C']:g}"
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def _loses(fixed: pd.DataFrame) -> bool:
    level = fixed[fixed["run"] == "fixed paper"].set_index("iteration")["suboptimality"]
    return bool(600 in level.index and level[600] > 1e3 * max(level[400], _FLOOR))


def _toy(results: Results) -> Figure | None:
    if results.toy is None:
        return None
    figure, axes = _figure(1, 1, 6.5, 2.8)
    ax = axes[0, 0]
    for name, label, style in (
        ("without", "weights recomputed at every outer iteration", _STYLE["sorel"]),
        ("with", "weights kept near the last ones", _STYLE["sorel-auto"]),
    ):
        path = results.toy["paths"][name]
        ax.plot(
            range(len(path)), path, marker="o", markersize=4, label=label, linewidth=_WIDTH, **style
        )
    ax.axhline(0.0, color="black", linewidth=0.6)
    ax.set_xlabel("outer iteration k")
    ax.set_ylabel("$w_k$")
    ax.set_ylim(-1.25, 1.25)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


def _ratios(results: Results) -> Figure | None:
    from matplotlib.ticker import NullLocator

    batches = results.settings.batches
    if results.curves.empty:
        return None
    rows = len(results.settings.datasets) * len(results.settings.risks)
    figure, axes = _figure(1, len(batches), 4.8 * len(batches) + 1.0, 0.26 * max(rows, 3) + 1.3)
    for ax, batch in zip(axes[0], batches, strict=True):
        table = knob_free(results, batch)
        labels = [f"{row.dataset}, {risk_label(str(row.risk))}" for row in table.itertuples()]
        y = np.arange(len(table))[::-1]
        limit = float(results.settings.budget(batch))
        for column, label, style in (
            ("auto 1e-06", LABELS["sorel-auto"], _STYLE["sorel-auto"]),
            ("tuned 1e-06", LABELS["sorel"], _STYLE["sorel"]),
        ):
            values = table[column].to_numpy()
            arrived = np.isfinite(values)
            color = style["color"]
            ax.plot(values[arrived], y[arrived], "o", color=color, label=label)
            ax.plot(
                np.full((~arrived).sum(), limit), y[~arrived], ">", color=color, fillstyle="none"
            )
        for position, row in zip(y, table.itertuples(index=False), strict=True):
            ends = [
                min(row[table.columns.get_loc(c)], limit) for c in ("auto 1e-06", "tuned 1e-06")
            ]
            ax.plot(ends, [position] * 2, color="#bbbbbb", linewidth=1.0, zorder=0)
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        steps = (1.0, 2.0, 5.0) if high > 10.0 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
        ticks = [step * 10.0**power for power in range(-1, 5) for step in steps]
        ax.set_xticks([tick for tick in ticks if low <= tick <= high])
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_yticks(y, labels if ax is axes[0, 0] else [""] * len(labels))
        ax.set_xlabel("passes to 1e-6")
        how = "without mini-batches" if batch == 1 else f"mini-batches of {batch}"
        ax.set_title(f"{how} (arrowhead: not in {limit:.0f})")
        ax.grid(axis="x", color="#e5e5e5", linewidth=0.6)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure


_FIGURES: dict[str, Callable[[Results], Any]] = {
    "figure1": _plane,
    "figure2": _grid("2"),
    "figure3": _grid("3"),
    "appendix2": _grid("2", _APPENDIX),
    "appendix3": _grid("3", _APPENDIX),
    "knob_free": _ratios,
    "late": _late,
    "toy": _toy,
}
