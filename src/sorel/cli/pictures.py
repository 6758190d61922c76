"""The pictures of ``--plot``: whether they can be written, the curves of losses, tails by group."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sorel._lib import stop as _stop
from sorel._lib.extras import import_extra
from sorel.cli.shared import Misuse, check_outputs

# The share of the worst rows that is marked where the risk is no CVaR.
_LEVEL = 0.1
# Groups in a picture, those with the largest tails; more names do not fit beside it.
_GROUPS = 30


def check_picture(path: str | None) -> None:
    """Refuse a picture that cannot be drawn or written, before work that would be in vain."""
    if path is None:
        return
    import_extra("matplotlib", "--plot needs", "plot")
    from matplotlib.backend_bases import FigureCanvasBase

    check_outputs(path)
    kinds = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.lstrip(".").lower() not in kinds:
        raise Misuse(f"--plot {path} has no ending of a picture; use .png, .pdf or .svg")


def save_picture(figure: Any, path: str) -> None:
    """Write a figure, whole or not at all."""
    from sorel.files.atomic import write_atomically

    buffer = io.BytesIO()
    kind = Path(path).suffix.lstrip(".").lower()
    figure.savefig(buffer, format=kind, dpi=150, bbox_inches="tight")
    write_atomically(path, buffer.getvalue())


def model_name(model: Any) -> str:
    """What a picture calls a model: its risk."""
    from sorel.problem.risks import parse_risk

    return parse_risk(model.risk).spec or "this model"


def held_out_losses(model: Any, X: Any, y: Any, weight: Any, folds: int) -> dict[str, Any]:
    """The losses of rows under fits to the other folds: by the model's settings, and the plain fit.

    Parameters
    ----------
    model : estimator
        A fitted one, which is left as it is.
    X, y, weight : array-like
        Rows, targets, and weights or None.
    folds : int
        How many parts are held out in turn.
    """
    import numpy as np
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import check_cv

    from sorel.estimators.metrics import TailScorer

    name = model_name(model)
    found = {name: model.risk} if name == "mean" else {name: model.risk, "plain fit": "mean"}
    losses = {name: np.empty(len(y)) for name in found}
    scorer = TailScorer("mean", model.loss)
    for train, test in check_cv(folds, y, classifier=is_classifier(model)).split(X, y):
        for name, risk in found.items():
            part = clone(model).set_params(risk=risk, verbose=0, checkpoint=None)
            part._warns_of_model = False
            part.fit(X[train], y[train], None if weight is None else weight[train])
            _stop.check()
            losses[name][test] = scorer.losses(part, X[test], y[test])
    return losses


def draw_losses(
    path: str,
    losses: Mapping[str, Any],
    model: Any,
    title: str,
    groups: Any = None,
    tail: str | None = None,
) -> None:
    """Draw the share of rows with at least a loss and, beside it, the tail of each group.

    Parameters
    ----------
    path : str
        The file.
    losses : mapping of str to array
        The losses of each model on the same rows, each of which counts once.
    model : estimator
        The one whose risk says which share of the rows is marked, unless `tail` does.
    title : str
        Which rows these are.
    groups : array, optional
        The group of each row.
    tail : str, optional
        The risk that was to be made small.
    """
    from matplotlib.figure import Figure

    from sorel.estimators.plots import LossTailDisplay
    from sorel.problem.losses import LOSSES
    from sorel.problem.risks import CVaR, parse_risk

    risk = parse_risk(tail or model.risk)
    level = risk.alpha if isinstance(risk, CVaR) and risk.alpha < 1.0 else _LEVEL
    words = LOSSES[model.loss].words if model.loss in LOSSES else "losses"
    tails = {} if groups is None else _group_tails(losses, groups, level)
    height = max(4.4, 1.2 + 0.28 * len(tails))
    figure = Figure(figsize=(7.4 if groups is None else 13.0, height), layout="constrained")
    axes = figure.subplots(1, 1 if groups is None else 2, squeeze=False)[0]
    LossTailDisplay(losses, level=level, loss_name=words.replace("losses", "loss", 1)).plot(axes[0])
    axes[0].set_title(title, fontsize="medium")
    if groups is not None:
        _draw_groups(axes[1], tails, list(losses), level, words)
    save_picture(figure, path)


def _group_tails(
    losses: Mapping[str, Any], groups: Any, level: float
) -> dict[str, tuple[float, ...]]:
    """The mean of the worst losses under each model by group, the largest last."""
    from sorel.estimators.metrics import group_codes
    from sorel.problem.risks import CVaR

    count = len(groups)
    values, codes = group_codes(groups, count)
    tails = {}
    for code, value in enumerate(values):
        rows = codes == code
        name = f"{value} ({rows.sum()})"
        tails[name] = tuple(CVaR(level)(each[rows]) for each in losses.values())
    return dict(sorted(tails.items(), key=lambda item: item[1][0])[-_GROUPS:])


def _draw_groups(
    ax: Any, tails: Mapping[str, tuple[float, ...]], models: list[str], level: float, words: str
) -> None:
    from sorel.estimators.plots import COLORS, MARKERS

    places = range(len(tails))
    ends = list(tails.values())
    ax.hlines(places, [min(end) for end in ends], [max(end) for end in ends], color="0.8", zorder=0)
    for position, model in enumerate(models):
        found = [end[position] for end in ends]
        look = {"color": COLORS[position], "label": model, "markersize": 7}
        ax.plot(found, places, MARKERS[position], markerfacecolor="white", **look)
    ax.set_yticks(places, tails)
    ax.set_ylim(-0.7, len(tails) - 0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel(words.replace("losses", f"mean of the worst {100 * level:.3g}% of losses", 1))
    ax.set_title("tail by group (rows)", fontsize="medium")
    ax.set_xlim(left=min(0.0, *(min(end) for end in ends)))
    ax.legend(frameon=False, fontsize="small", loc="lower right")
