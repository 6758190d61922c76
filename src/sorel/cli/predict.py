"""``sorel predict``: the predictions of a saved model for a table."""

from __future__ import annotations

import argparse
from typing import Any

from sorel.cli.arguments import OR_FOLDER, add_command, add_table, add_unknown
from sorel.cli.models import Batches, finite_predictions, in_parts, is_folder, load
from sorel.cli.shared import DONE, Misuse

_DESCRIPTION = """\
Predict with a saved model. The table needs the columns that the model was fitted to, by name and in
any order; others are ignored. Numbers are written with all their digits.
"""

_EXAMPLES = """\
examples:
  sorel predict model.skops new.csv -o predictions.csv
  sorel predict churn.skops people.parquet --proba --keep id -o churn.parquet
  cat new.csv | sorel predict model.skops - | head
"""


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = add_command(
        commands,
        "predict",
        run,
        help="predict with a saved model",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="a model that `sorel fit` saved")
    add_table(parser, "data", "the table to predict for", more=OR_FOLDER)
    add_unknown(parser)
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE",
        help="CSV or, if it ends in .parquet, Parquet; - is standard output (default)",
    )  # fmt: skip
    parser.add_argument(
        "--proba", action="store_true", help="add a column of probabilities for each class"
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="COLUMN",
        help="copy this column of the table in front of the predictions; may be repeated",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import pandas as pd

    from sorel import tables
    from sorel._files import check_writable

    if arguments.output != tables.STANDARD:
        check_writable(arguments.output)
    columns: dict[str, Any] = {}
    if is_folder(arguments):
        if arguments.keep:
            raise Misuse("--keep copies columns of a table, not of a folder of rows")
        batches = Batches(arguments)
        model = batches.model

        def computing(method: str) -> Any:
            return batches.map(
                lambda table, start, stop: finite_predictions(model, method, table, start)
            )

    else:
        model, _, frame, X = load(arguments)
        absent = [column for column in arguments.keep if column not in frame.columns]
        if absent:
            raise tables.TableError(tables.missing_columns(absent, frame.columns))
        columns = {column: frame[column] for column in arguments.keep}
        del frame

        def computing(method: str) -> Any:
            return in_parts(
                lambda start, stop: finite_predictions(model, method, X[start:stop], start), X.shape
            )

    computed = {"prediction": computing("predict")}
    if arguments.proba:
        if not hasattr(model, "predict_proba"):
            raise Misuse(
                "--proba needs probabilities, and this model gives none: it is a regression, or "
                "was fitted with --loss squared_hinge"
            )
        for label, shares in zip(model.classes_, computing("predict_proba").T, strict=True):
            computed[f"probability_{label}"] = shares
    taken = sorted(set(columns).intersection(computed))
    if taken:
        raise tables.TableError(f"the column {taken[0]!r} to keep has the name of a prediction")
    tables.write_table(pd.DataFrame({**columns, **computed}), arguments.output)
    return DONE
