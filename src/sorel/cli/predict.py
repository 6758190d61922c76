"""``sorel predict``: predict with a saved model.

Predict with a saved model. The table needs the columns that the model was fitted to, by name and in
any order; others are ignored. Numbers are written with all their digits.

examples:
  sorel predict model.skops new.csv -o predictions.csv
  sorel predict churn.skops people.parquet --proba --keep id -o churn.parquet
  cat new.csv | sorel predict model.skops - | head
"""

from __future__ import annotations

import argparse
from typing import Any

from sorel.cli.arguments import OR_FOLDER, Options
from sorel.cli.shared import DONE, Misuse, check_outputs


def add(options: Options) -> None:
    """Declare the arguments."""
    options.model()
    options.table("the table to predict for", OR_FOLDER)
    options.unknown()
    options.output("the predictions")
    options.switch("--proba", "add a column of probabilities for each class")
    options.columns("--keep", "copy this column of the table in front of the predictions")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import pandas as pd

    from sorel.cli.saved_models import Data, finite_predictions
    from sorel.files import tables

    check_outputs(arguments.output)
    data = Data(arguments)
    model = data.model
    if data.is_folder and arguments.keep:
        raise Misuse("--keep copies columns of a table, not of a folder of rows")
    if arguments.proba and not hasattr(model, "predict_proba"):
        raise Misuse(
            "--proba needs probabilities, and this model gives none: it is a regression, or "
            "was fitted with --loss squared_hinge"
        )
    kept = dict(data.columns(arguments.keep)) if arguments.keep else {}

    def computed(method: str) -> Any:
        return data.map(lambda rows, start: finite_predictions(model, method, rows, start))

    found = {"prediction": computed("predict")}
    if arguments.proba:
        for label, shares in zip(model.classes_, computed("predict_proba").T, strict=True):
            found[f"probability_{label}"] = shares
    taken = sorted(set(kept).intersection(found))
    if taken:
        raise tables.TableError(f"the column {taken[0]!r} to keep has the name of a prediction")
    tables.write_table(pd.DataFrame({**kept, **found}), arguments.output)
    return DONE
