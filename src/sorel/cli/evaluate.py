"""``sorel evaluate``: the tail of a saved model's losses on a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from sorel.cli.arguments import OR_FOLDER, SKIP_MISSING, add_command, add_table, add_unknown
from sorel.cli.models import Batches, finite_predictions, in_parts, is_folder, load, read_weight
from sorel.cli.shared import DONE, Misuse, say, show

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """\
Report the losses of a saved model on a table with known targets: the mean, the mean of the worst
shares (CVaR) and the worst, over all rows and, if wanted, for each group of rows; besides, the bias
of predicted numbers, or the accuracy and the area under the ROC curve (AUC) of predicted labels.
Two more rows tell what the model is worth: the best constant model, and the plain fit to the mean.
"""

_EXAMPLES = """\
examples:
  sorel evaluate model.skops test.csv
  sorel evaluate model.skops test.csv --groups region
  sorel evaluate model.skops test.csv --groups region -o report.csv
"""


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = add_command(
        commands,
        "evaluate",
        run,
        help="report the tail of a saved model's losses",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="a model that `sorel fit` saved")
    add_table(parser, "data", "a table with the model's columns and its target", more=OR_FOLDER)
    add_unknown(parser)
    parser.add_argument(
        "--target", metavar="COLUMN", help="column with the truth (default: the model's target)"
    )
    parser.add_argument(
        "--groups", metavar="COLUMN", help="report each value of this column separately as well"
    )
    parser.add_argument(
        "--sample-weight", metavar="COLUMN", help="column with the weights of the rows"
    )
    parser.add_argument(
        "--skip-missing-target", action="store_true",
        help="leave out the rows that have no target",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", default=None, metavar="FILE",
        help="write the report as CSV or Parquet instead; - is CSV on standard output",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import numpy as np
    import pandas as pd
    from sklearn.pipeline import Pipeline

    from sorel import tables
    from sorel._files import check_writable

    if arguments.output not in (None, tables.STANDARD):
        check_writable(arguments.output)
    batches = Batches(arguments) if is_folder(arguments) else None
    if batches is None:
        model, summary, frame, X = load(arguments)
    else:
        model, summary = batches.model, batches.summary
    target = arguments.target or summary.get("target")
    if target is None:
        raise Misuse("this model does not know its target's name; give it with --target")
    named = [name for name in (target, arguments.groups, arguments.sample_weight) if name]
    if batches is not None:
        if arguments.skip_missing_target:
            raise Misuse("--skip-missing-target is for tables, not for folders of rows")
        frame = batches.columns(named)
    absent = [name for name in named if name not in frame.columns]
    if absent:
        raise tables.TableError(tables.missing_columns(absent, frame.columns))
    if arguments.skip_missing_target:
        known = frame[target].notna().to_numpy()
        frame, X = frame[known], X[known]
    weight = None
    if arguments.sample_weight:
        weight = read_weight(frame[arguments.sample_weight], arguments.sample_weight)
    y = _truth(model, frame, target)
    groups = None
    if arguments.groups:
        column = frame[arguments.groups].astype(object)
        groups = column.where(column.notna(), "(missing)").to_numpy()
    # Vectors of the length of the table, as most that follows.
    del frame
    last = model[-1] if hasattr(model, "steps") else model
    loss = getattr(last, "loss", None)

    def measured(other: Any, only_rows: bool = False) -> Measured:
        """Losses and predictions of a model, in one pass over the rows."""

        def part(table: Any, start: int, stop: int) -> Any:
            rows = np.zeros((stop - start, 1)) if only_rows else table
            found = _measure(other, rows, y[start:stop], loss, start)
            return np.column_stack([column for column in found if column is not None])

        if batches is not None:
            return Measured(*batches.map(part).T)
        parts = in_parts(lambda start, stop: part(X[start:stop], start, stop), X.shape)
        return Measured(*parts.T)

    own = measured(model)
    report = _report(own, y, model, groups, weight)
    constant = summary.get("constant") or _is_constant(own, y, model)
    del own
    for name, other in getattr(model, "baselines_", {}).items():
        only_rows = name == "constant model"
        if not only_rows:
            other = Pipeline([*model.steps[:-1], ("model", other)])
        row = _report(measured(other, only_rows), y, model, None, weight)
        report = pd.concat([report, row.rename(index={"all": f"({name})"})])
    report.index.name = "group"
    if constant:
        say("warning: the predictions of this model are (nearly) constant; fit it to a milder risk")
    if arguments.output is None:
        from sorel.losses import LOSSES

        show(LOSSES[loss].words if loss in LOSSES else "losses")
        show(report.to_string(float_format=lambda value: f"{value:.6g}", na_rep=""))
        if "bias" in report.columns:
            show("bias: mean of prediction minus truth, in the units of the target")
    else:
        tables.write_table(report.reset_index(), arguments.output)
    return DONE


class Measured(NamedTuple):
    """Per row: the loss, and the predicted number or, of a label, whether it is right.

    The margin is that of two classes, NaN for more, and None for numbers.
    """

    loss: Any
    outcome: Any
    margin: Any = None


def _measure(model: Any, X: Any, y: Any, loss: Any, start: int) -> Measured:
    """Losses and outcomes of some rows, the first of which is `start`."""
    import numpy as np

    from sorel.metrics import TailScorer

    predicted = finite_predictions(model, "predict", X, start)
    losses = TailScorer("mean", loss).losses(model, X, y)
    if not hasattr(model, "classes_"):
        return Measured(losses, predicted)
    margin = np.full(len(y), np.nan)
    if len(model.classes_) == 2:
        margin = np.asarray(model.decision_function(X))
    return Measured(losses, (predicted == y).astype(float), margin)


def _report(measured: Measured, y: Any, model: Any, groups: Any, weight: Any) -> pd.DataFrame:
    """The tail of the losses and what else tells a good model, for all rows and each group."""
    from sorel.metrics import group_codes, tail_report

    report = tail_report(
        y, measured.loss, groups=groups, loss=lambda truth, given: given, sample_weight=weight
    )
    members: list[Any] = [slice(None)]
    if groups is not None:
        values, codes = group_codes(groups, len(y))
        members += [codes == code for code in range(len(values))]
    if not hasattr(model, "classes_"):
        report["bias"] = [_mean(measured.outcome - y, weight, rows) for rows in members]
        return report
    report["accuracy"] = [_mean(measured.outcome, weight, rows) for rows in members]
    if len(model.classes_) == 2:
        positive = y == model.classes_[1]
        report["auc"] = [
            _auc(positive[rows], measured.margin[rows], None if weight is None else weight[rows])
            for rows in members
        ]
    return report


def _mean(values: Any, weight: Any, rows: Any) -> float:
    if weight is None:
        return float(values[rows].mean())
    total = weight[rows].sum()
    return float(values[rows] @ weight[rows] / total) if total > 0.0 else float("nan")


def _auc(positive: Any, margin: Any, weight: Any) -> float:
    """Area under the ROC curve: how often a positive is above a negative; NaN without either.

    By two searches, since a curve takes many vectors of the length of the table.
    """
    import numpy as np

    counted = positive if weight is None else positive[weight > 0.0]
    if counted.all() or not counted.any() or np.isnan(margin).any():
        return float("nan")
    order = np.argsort(margin[~positive])
    negatives = margin[~positive][order]
    total = np.arange(len(order) + 1.0)
    if weight is not None:
        total[1:] = np.cumsum(weight[~positive][order])
    del order
    above = total[np.searchsorted(negatives, margin[positive], side="left")]
    above += total[np.searchsorted(negatives, margin[positive], side="right")]
    return _mean(above, None if weight is None else weight[positive], slice(None)) / (2 * total[-1])


def _is_constant(measured: Measured, y: Any, model: Any) -> bool:
    import numpy as np

    from sorel.estimators.constant import MARGIN_SPREAD, TARGET_SPREAD

    if not hasattr(model, "classes_"):
        return bool(np.std(measured.outcome) < TARGET_SPREAD * np.std(y))
    return bool(np.std(measured.margin) < MARGIN_SPREAD)


def _truth(model: Any, frame: pd.DataFrame, target: str) -> Any:
    """The targets of a table, of the type that the model was fitted to."""
    from sorel import tables

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
