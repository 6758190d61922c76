"""``sorel evaluate``: the tail of a saved model's losses on a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sorel.cli.arguments import OR_FOLDER, add_command, add_table, add_unknown
from sorel.cli.models import Batches, is_folder, load
from sorel.cli.shared import DONE, Misuse

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """\
Report the losses of a saved model on a table with known targets: the mean, the mean of the worst
shares (CVaR) and the worst, over all rows and, if wanted, for each group of rows.
"""

_EXAMPLES = """\
examples:
  sorel evaluate model.skops test.csv
  sorel evaluate model.skops test.csv --groups region
  sorel evaluate model.skops test.csv --groups region -o report.csv
"""

_LOSS_WORDS = {
    "squared": "losses: half the squared error",
    "huber": "losses: half the squared error, linear beyond an error of 1",
    "logistic": "losses: minus the logarithm of the probability given to the true label",
    "squared_hinge": "losses: squared shortfall of the margin",
    "poisson": "losses: half the Poisson deviance",
    "gamma": "losses: half the gamma deviance",
}


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
        "-o", "--output", default=None, metavar="FILE",
        help="write the report as CSV or Parquet instead; - is CSV on standard output",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel import tables
    from sorel._files import check_writable
    from sorel.metrics import TailScorer, tail_report

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
    if batches is not None:
        frame = batches.columns([name for name in (target, arguments.groups) if name])
    absent = [name for name in (target, arguments.groups) if name and name not in frame.columns]
    if absent:
        raise tables.TableError(tables.missing_columns(absent, frame.columns))
    y = _truth(model, frame, target)
    groups = None
    if arguments.groups:
        column = frame[arguments.groups].astype(object)
        groups = column.where(column.notna(), "(missing)").to_numpy()
    last = model[-1] if hasattr(model, "steps") else model
    loss = getattr(last, "loss", None)
    scorer = TailScorer("mean", loss)
    if batches is None:
        losses = scorer.losses(model, X, y)
    else:
        losses = batches.map(lambda table, a, b: scorer.losses(model, table, y[a:b]))
    report = tail_report(y, losses, groups=groups, loss=lambda truth, given: given)
    if arguments.output is None:
        print(_LOSS_WORDS.get(str(loss), "losses"))
        print(report.to_string(float_format=lambda value: f"{value:.6g}"))
    else:
        tables.write_table(report.reset_index(), arguments.output)
    return DONE


def _truth(model: Any, frame: pd.DataFrame, target: str) -> Any:
    """The targets of a table, of the type that the model was fitted to."""
    from sorel import tables

    classes = getattr(model, "classes_", None)
    if classes is None:
        return tables.select_columns(frame, {target: "numeric"})[target].to_numpy()
    known = classes.tolist()
    kind = {str: "text", bool: "boolean"}.get(type(known[0]), "numeric")
    labels = tables.select_columns(frame, {target: kind})[target]
    strange = tables.unknown_categories(labels.to_frame(), {target: known})
    if strange:
        _, value, row = strange[0]
        raise tables.TableError(
            f"target {target!r} is {value!r} in row {row}, which the model does not know; it knows "
            + ", ".join(repr(label) for label in known)
        )
    return labels.to_numpy(dtype=classes.dtype)
