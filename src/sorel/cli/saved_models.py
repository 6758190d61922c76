"""Saved models and the tables or folders of rows that they are applied to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sorel._lib.defaults import STANDARD
from sorel._lib.text import one_line
from sorel.cli.shared import Misuse, read_frame
from sorel.engines.rows import open_data, open_rows
from sorel.estimators import SpectralRiskClassifier, SpectralRiskRegressor
from sorel.files import tables
from sorel.files.saving import ModelFileError, load_model, read_summary

if TYPE_CHECKING:
    import pandas as pd

# Cells of a table that a model is applied to at a time: the preparation of the columns copies them
# several times over.
_CELLS = 1 << 21


class Data:
    """A saved model, and the rows of a table or of a folder that it is applied to.

    Parameters
    ----------
    arguments : argparse.Namespace
        Those of ``sorel predict`` or ``sorel evaluate``.

    Attributes
    ----------
    model : estimator
        The model.
    summary : dict
        What is known about it.
    is_folder : bool
        Whether the rows are those of a folder or a .npy file, and no table.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model, self.summary, kinds = _load_model(arguments)
        path = Path(arguments.data)
        self.is_folder = path.is_dir() or path.suffix.lower() == ".npy"
        self._frame: Any = None
        if self.is_folder:
            self._names = list(kinds)
            self._rows = _open_rows(arguments, kinds)
            return
        self._frame = read_frame(
            arguments,
            [],
            text_columns={column for column, kind in kinds.items() if kind == "text"},
            thousands=self.summary.get("thousands"),
        )
        self._rows = self._selected(kinds, arguments.unknown == "ignore")

    def _selected(self, kinds: dict[str, str], ignore_unknown: bool) -> Any:
        """The part of the table that the model takes."""
        if not kinds:
            return _foreign_columns(self.model, self._frame)
        missing = self.summary.get("imputed", False)
        hint = "remove such rows, or fit the model with --impute"
        X = tables.select_columns(self._frame, kinds, allow_missing=missing, hint=hint)
        for name, part, names in self.model["columns"].transformers_:
            encoder = part[-1] if hasattr(part, "steps") else part
            if name == "categorical" and ignore_unknown:
                encoder.set_params(handle_unknown="ignore")
            elif name == "categorical":
                _refuse_unknown(X, dict(zip(names, encoder.categories_, strict=True)))
        return X

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns beside the model's."""
        if self.is_folder:
            return columns_beside(self._rows, names)
        tables.require_columns(self._frame.columns, names)
        return self._frame[list(dict.fromkeys(names))]

    def keep(self, rows: Any) -> None:
        """Go on with some rows of a table, and without its other columns."""
        self._rows, self._frame = self._rows[rows], None

    def map(self, function: Callable[[Any, int], Any]) -> Any:
        """The results of ``function(rows, start)`` for some rows at a time, put together."""
        self._frame = None
        return np.concatenate([function(rows, start) for start, rows in self._parts()])

    def _parts(self) -> Iterator[tuple[int, Any]]:
        import pandas as pd

        if self.is_folder:
            for start, _, part in self._rows.finite_spans():
                yield start, pd.DataFrame(part, columns=self._names)
            return
        count, width = self._rows.shape
        height = max(1, _CELLS // max(1, width))
        for start in range(0, count, height):
            yield start, self._rows[start : start + height]


def columns_beside(rows: Any, names: Sequence[str]) -> pd.DataFrame:
    """Columns beside rows on disk: of Parquet files by name, else .npy files."""
    import pandas as pd

    found = {name: open_data(rows, name)[1] for name in names}
    for name, values in found.items():
        if len(values) != rows.n_samples:
            raise tables.TableError(
                f"the data has {rows.n_samples} rows, but {name} has {len(values)} values"
            )
    return pd.DataFrame(found)


def _load_model(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """The model, its summary, and the kinds of its columns by name."""
    if arguments.model == STANDARD:
        raise Misuse("the model must be a file; only the table may come from standard input")
    summary = read_summary(arguments.model)
    # A model that was saved from Python has names at most, and no types.
    columns = summary.get("columns")
    kinds = columns if isinstance(columns, dict) else {}
    model = load_model(arguments.model)
    try:
        return _checked(model, kinds, bool(summary.get("imputed"))), summary, kinds
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{arguments.model!r} is no model that `sorel fit` wrote, and was not used: "
            f"{one_line(error)}"
        ) from None


def _checked(loaded: Any, kinds: dict[str, str], imputed: bool) -> Any:
    """The model with columns as `sorel fit` makes them, or one without; no other may run."""
    model = tables.restore_pipeline(kinds, loaded, impute=imputed) if kinds else loaded
    last = model["model"] if kinds else model
    others = dict(getattr(loaded, "baselines_", {}))
    if type(last) not in (SpectralRiskRegressor, SpectralRiskClassifier):
        raise TypeError(f"it is a {type(last).__name__}")
    for part in (last, *others.values()):
        if type(part) is not type(last):
            raise TypeError(f"it holds a {type(part).__name__}")
        # As long as the training table, and of no use for another one.
        vars(part).pop("risk_weights_", None)
    for name, other in others.items():
        if other.n_features_in_ != (1 if name == "constant model" else last.n_features_in_):
            raise ValueError(f"its {name} takes {other.n_features_in_} numbers")
    if others:
        model.baselines_ = others
    return model


def _open_rows(arguments: argparse.Namespace, kinds: dict[str, str]) -> Any:
    """The rows of a folder, which has the columns of the model and no others."""
    texts = [name for name, kind in kinds.items() if kind != "numeric"]
    if texts or not kinds:
        what = f"column {texts[0]!r} is no number" if texts else "it has no list of columns"
        raise tables.TableError(
            f"a folder of rows is for models of numbers that `sorel fit` saved, and {what} in "
            f"{arguments.model}; give it a table"
        )
    rows: Any = open_rows(arguments.data, list(kinds))
    if rows.n_features != len(kinds) or rows.columns not in (None, list(kinds)):
        raise tables.TableError(
            f"the {rows.n_features} columns of {arguments.data} are {rows.columns or 'unnamed'}, "
            f"and the model was fitted to {len(kinds)}: {list(kinds)}"
        )
    return rows


def finite_predictions(model: Any, method: str, table: Any, start: int) -> Any:
    """What a method says of rows, the first of which is `start`; an error where it overflows.

    A label hides an overflow: there the margins are looked at.
    """
    found = getattr(model, method)(table)
    is_label = method == "predict" and hasattr(model, "classes_")
    numbers = model.decision_function(table) if is_label else found
    wrong = ~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise tables.TableError(
            f"the prediction for row {start + row + 1} is not finite "
            f"({np.ravel(numbers[row])[0]}): its values are too large for this model"
        )
    return found


def read_weight(values: pd.Series, name: str) -> Any:
    """A column of weights, as numbers."""
    weight = tables.select_columns(values.to_frame(name), {name: "numeric"})[name].to_numpy()
    words = "holds weights, and is {value} in row {row}; weights are at least 0"
    tables.refuse_rows(values, name, weight < 0.0, words)
    if not weight.any():
        raise tables.TableError(f"column {name!r} holds weights, and all of them are 0")
    return weight


def _foreign_columns(model: Any, frame: pd.DataFrame) -> Any:
    """The columns for a model that was saved from Python, without a list of their types."""
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        tables.require_columns(frame.columns, names)
        return frame[list(names)]
    return frame.to_numpy()


def _refuse_unknown(X: pd.DataFrame, known: dict[str, Any]) -> None:
    found = tables.unknown_categories(X, known)
    if found:
        column, value, row = found[0]
        more = f" (and {len(found) - 1} more such values)" if len(found) > 1 else ""
        raise tables.TableError(
            f"column {column!r} holds {value!r} in row {row}, which was not seen in "
            f"training{more}; correct it, or use --unknown ignore"
        )
