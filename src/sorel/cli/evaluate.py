"""``sorel evaluate``: report the tail of a saved model's losses.

Report the losses of a saved model on a table with known targets: the mean, the mean of the worst
shares (CVaR) and the worst, over all rows and, if wanted, for each group of rows; besides, the bias
of predicted numbers, or of predicted labels the accuracy and the mean probability of the predicted
one; of two labels the area under the ROC curve (AUC), the mean probability of the second and its
share.
More rows tell what the model is worth: the best constant model, the plain fit to the mean, and the
plain fit with the constant, or with constant and scale, that are best for the model's risk.

examples:
  sorel evaluate model.skops test.csv
  sorel evaluate model.skops test.csv --groups region
  sorel evaluate model.skops test.csv --groups region -o report.csv
  sorel evaluate model.skops test.csv --groups region --plot tails.png
      the losses beside those of the plain fit, and the tail of each region
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sorel.cli.arguments import OR_FOLDER, SKIP_MISSING, Options
from sorel.cli.pictures import check_picture, draw_losses, model_name
from sorel.cli.shared import DONE, Misuse, check_outputs, say, show

if TYPE_CHECKING:
    import pandas as pd


def add(options: Options) -> None:
    """Declare the arguments."""
    options.model()
    options.table("a table with the model's columns and its target", OR_FOLDER)
    options.unknown()
    options.column("--target", "column with the truth (default: the model's target)")
    options.column("--groups", "report each value of this column separately as well")
    options.column("--sample-weight", "column with the weights of the rows")
    options.skip_missing_target()
    options.output("write the report", default=None)
    words = "draw the losses, each row counted once, and with --groups the tail of each group"
    options.file("--plot", words)


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import numpy as np
    import pandas as pd
    from sklearn.pipeline import Pipeline

    from sorel.cli.saved_models import Data, read_weight
    from sorel.files import tables

    check_outputs(arguments.output)
    check_picture(arguments.plot)
    data = Data(arguments)
    model = data.model
    target = arguments.target or data.summary.get("target")
    if target is None:
        raise Misuse("this model does not know its target's name; give it with --target")
    if data.is_folder and arguments.skip_missing_target:
        raise Misuse("--skip-missing-target is for tables, not for folders of rows")
    named = [name for name in (target, arguments.groups, arguments.sample_weight) if name]
    frame = data.columns(named)
    if arguments.skip_missing_target:
        known = frame[target].notna().to_numpy()
        frame = frame[known]
        data.keep(known)
    column = arguments.sample_weight
    weight = read_weight(frame[column], column) if column else None
    y = _truth(model, frame, target)
    groups = None
    if arguments.groups:
        labels = frame[arguments.groups].astype(object)
        groups = labels.where(labels.notna(), "(missing)").to_numpy()
    last = model[-1] if hasattr(model, "steps") else model
    loss = getattr(last, "loss", None)

    def measured(other: Any, constant: bool = False) -> Measured:
        """Losses and predictions of a model, in one pass over the rows."""

        def part(rows: Any, start: int) -> Any:
            given = np.zeros((len(rows), 1)) if constant else rows
            return _measure(other, given, y[start : start + len(rows)], loss, start)

        return Measured(*data.map(part).T)

    own = measured(model)
    report = _report(own, y, model, groups, weight)
    losses = {model_name(last): own.loss}
    for name, other in getattr(model, "baselines_", {}).items():
        if name == "constant model":
            found = measured(other, constant=True)
        else:
            found = measured(Pipeline([*model.steps[:-1], ("model", other)]))
        if name == "plain fit":
            losses[name] = found.loss
        row = _report(found, y, model, None, weight)
        report = pd.concat([report, row.rename(index={"all": f"({name})"})])
    report.index.name = "group"
    if getattr(last, "constant_", False):
        say("warning: this model is (nearly) constant; fit it to a milder risk")
    if arguments.plot is not None:
        draw_losses(arguments.plot, losses, last, f"rows of {Path(arguments.data).name}", groups)
    if arguments.output is not None:
        tables.write_table(report.reset_index(), arguments.output)
        return DONE
    from sorel.problem.losses import LOSSES

    show(LOSSES[loss].words if loss in LOSSES else "losses")
    show(report.to_string(float_format=lambda value: f"{value:.6g}", na_rep=""))
    if "bias" in report.columns:
        show("bias: mean of prediction minus truth, in the units of the target")
    if "rate" in report.columns:
        label = model.classes_.tolist()[1]
        show(f"mean_p: mean predicted probability of {label!r}; rate: its share of the rows")
    elif "mean_p" in report.columns:
        show("mean_p: mean probability of the predicted label, which the accuracy should equal")
    return DONE


class Measured(NamedTuple):
    """Per row: the loss, the predicted number or whether the label is right, and the margin.

    The margin of a number is the number. With more than two classes it is the probability of the
    predicted one.
    """

    loss: Any
    outcome: Any
    margin: Any


def _measure(model: Any, X: Any, y: Any, loss: Any, start: int) -> Any:
    """The columns of :class:`Measured` for some rows, the first of which is `start`."""
    import numpy as np

    from sorel.cli.saved_models import finite_predictions
    from sorel.estimators.metrics import TailScorer

    outcome = margin = finite_predictions(model, "predict", X, start)
    if hasattr(model, "classes_"):
        outcome = outcome == y
        if len(model.classes_) == 2:
            margin = model.decision_function(X)
        else:
            margin = model.predict_proba(X).max(axis=1)
    return np.column_stack([TailScorer("mean", loss).losses(model, X, y), outcome, margin])


def _report(measured: Measured, y: Any, model: Any, groups: Any, weight: Any) -> pd.DataFrame:
    """The tail of the losses and what else tells a good model, for all rows and each group."""
    import numpy as np
    from scipy.special import expit

    from sorel.estimators.metrics import group_codes, tail_report

    def told(values: Any, **options: Any) -> pd.DataFrame:
        options |= {"groups": groups, "sample_weight": weight}
        return tail_report(y, values, loss=lambda truth, given: given, **options)

    report = told(measured.loss)
    if not hasattr(model, "classes_"):
        report["bias"] = told(measured.outcome - y, levels=())["mean"]
        return report
    report["accuracy"] = told(measured.outcome, levels=())["mean"]
    if len(model.classes_) == 2:
        weights = np.ones(len(y)) if weight is None else weight
        # Rows without weight say nothing.
        members = [weights > 0.0]
        if groups is not None:
            values, codes = group_codes(groups, len(y))
            members += [members[0] & (codes == code) for code in range(len(values))]
        positive, margin = y == model.classes_[1], measured.margin
        report["auc"] = [_auc(positive[rows], margin[rows], weights[rows]) for rows in members]
        if hasattr(model, "predict_proba"):
            report["mean_p"] = told(expit(margin), levels=())["mean"]
            report["rate"] = told(positive, levels=())["mean"]
    else:
        report["mean_p"] = told(measured.margin, levels=())["mean"]
    return report


def _auc(positive: Any, margin: Any, weights: Any) -> float:
    """Area under the ROC curve; NaN where there is one label only."""
    from sklearn.metrics import roc_auc_score

    if positive.all() or not positive.any():
        return float("nan")
    return float(roc_auc_score(positive, margin, sample_weight=weights))


def _truth(model: Any, frame: pd.DataFrame, target: str) -> Any:
    """The targets of a table, of the type that the model was fitted to."""
    from sorel.files import tables

    classes = getattr(model, "classes_", None)
    if classes is None:
        numbers = tables.select_columns(frame, {target: "numeric"}, hint=SKIP_MISSING)
        return numbers[target].to_numpy()
    known = classes.tolist()
    kind = {str: "text", bool: "boolean"}.get(type(known[0]), "numeric")
    labels = tables.select_columns(frame, {target: kind}, hint=SKIP_MISSING)[target]
    strange = tables.unknown_categories(labels.to_frame(), {target: known})
    if strange:
        _, value, row = strange[0]
        raise tables.TableError(
            f"target {target!r} is {value!r} in row {row}, which the model does not know; it knows "
            + ", ".join(repr(label) for label in known)
        )
    return labels.to_numpy(dtype=classes.dtype)
