"""Tables in files: CSV and Parquet in, checked columns out, predictions back.

Rows are counted from 1, the header left out, and every complaint names the column and the row.
Columns are of four kinds: numbers, dates, which become numbers of days, texts and truth values; the
last two become indicator columns (one-hot) in the pipeline of :func:`make_pipeline`. pandas does
the reading and is imported only here, when a table is read; Parquet needs pyarrow too.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import numbers
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sorel._lib.defaults import STANDARD
from sorel._lib.extras import import_extra
from sorel._lib.inputs import exceeds_floats, show_integer
from sorel._lib.names import missing_columns
from sorel._lib.text import printable, shorten
from sorel.files.atomic import open_atomically
from sorel.files.unfolding import unfolded_bytes

if TYPE_CHECKING:
    import pandas as pd

# The rest is for the commands.
__all__ = [
    "TableError",
    "column_kinds",
    "make_pipeline",
    "read_table",
    "select_columns",
    "write_table",
]

# The squares of larger numbers, added up, may not be representable.
_LARGEST = sys.float_info.max ** (1 / 3)
_TOO_LARGE = "is {value} in row {row}, too large to compute with"
_PARQUET_ENDINGS = (".parquet", ".pq")
_TAB_ENDINGS = (".tsv", ".tab")

# Columns that a table may have: each takes kilobytes, however few rows there are.
_MAX_COLUMNS = 25_000
# Bytes that a Parquet file may unfold to unless the caller says more: commands take many times as
# much for a file of few columns.
_ROOM = 20_000_000
# Bytes that each byte of the file above half of that adds.
_RATIO = 20

# What pandas says where its parser cannot allocate. An error of the disk comes as an OSError.
_NO_MEMORY = ("out of memory", "Calling read(nbytes) on source failed", "error in IO callback")

# Rows that tell what a column holds.
_SAMPLE_ROWS = 10_000
# Share of the different texts in them that have to look like dates or numbers.
_MOST = 0.95
_CLOCK = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?(?:Z|[+-]\d{2}:?\d{2})?)?"
_IN_DISGUISE = {
    "dates": re.compile(
        rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{4}}){_CLOCK}"
        rf"|\d{{1,2}}:\d{{2}}(?::\d{{2}})?"
    ),
    "numbers with separators for thousands": re.compile(
        r"[+-]?\d{1,3}(?:[,' \u00a0\u202f.]\d{3})+(?:[.,]\d+)?"
    ),
    "numbers with a decimal comma": re.compile(r"[+-]?\d+,\d+"),
    "numbers with a sign": re.compile(
        r"[+-]?[$€£¥] ?[+-]?\d[\d,' ]*(?:\.\d+)?|[+-]?\d[\d,' ]*(?:\.\d+)? ?[$€£¥%]"
    ),
}
_PLAIN_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")

# What pandas calls the values of a column, and what they are here.
_KINDS = {
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "numeric"),
    **dict.fromkeys(("string", "categorical"), "text"),
    "boolean": "boolean",
}


class TableError(ValueError):
    """The table cannot be used; the message says what is wrong, where, and what to do."""


def read_table(
    source: str | os.PathLike[str],
    *,
    format: str = "auto",
    sep: str | None = None,
    text_columns: Iterable[str] = (),
    thousands: str | None = None,
    unpacked: float | None = None,
) -> pd.DataFrame:
    r"""Read a table with named columns.

    Parameters
    ----------
    source : path or "-"
        The file, or standard input.
    format : {"auto", "csv", "parquet"}, default="auto"
        By default, what the first bytes say.
    sep : str, optional
        The character between the fields of a CSV file: a tab if the name ends in ``.tsv``, else a
        comma.
    text_columns : iterable of str
        Columns that are read as text even where they look like numbers, so that ``01`` stays
        ``01``.
    thousands : str, optional
        The character that separates thousands in the numbers of a CSV file.
    unpacked : float, optional
        Bytes that the values of a Parquet file may take, since a file of some kilobytes can unfold
        to gigabytes: by default 20 MB, and 20 bytes more for each byte of the file above 10 MB.

    Returns
    -------
    DataFrame
        Its rows numbered from 0, its column names unique texts.

    Raises
    ------
    TableError
        If the file is empty, has no rows, has columns without a name or with the same name, or
        has rows of another length than the header, or unfolds to more than it may.

    Examples
    --------
    >>> import os, tempfile
    >>> from sorel.tables import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "people.csv")
    ...     with open(path, "w") as file:
    ...         _ = file.write("age,city\n31,Oslo\n42,Bergen\n")
    ...     read_table(path)
       age    city
    0   31    Oslo
    1   42  Bergen
    """
    _pandas()
    name = "standard input" if source == STANDARD else repr(os.fspath(source))
    with _open(source) as stream:
        magic = stream.read(4)
        stream.seek(0)
        if not magic:
            raise TableError(f"{name} is empty; it should have a header and rows")
        if format == "parquet" or (format == "auto" and magic == b"PAR1"):
            frame = _read_parquet(stream, name, unpacked)
        else:
            if sep is None:
                sep = "\t" if os.fspath(source).lower().endswith(_TAB_ENDINGS) else ","
            frame = _read_csv(stream, name, sep, set(text_columns), thousands)
    if not len(frame):
        raise TableError(f"{name} has a header but no rows")
    _check_names(list(frame.columns), name)
    for column in set(text_columns).intersection(frame.columns):
        frame[column] = _texts(frame[column])
    return frame


def write_table(frame: pd.DataFrame, destination: str | os.PathLike[str]) -> None:
    """Write a table: Parquet if the name ends in ``.parquet``, else CSV.

    Numbers are written with all their digits: reading them gives the same floating point numbers.

    Parameters
    ----------
    frame : DataFrame
        The table; its index is left out.
    destination : path or "-"
        The file, written in one step, or standard output (CSV).
    """
    if destination == STANDARD:
        if sys.stdout.isatty():
            text = frame.to_csv(index=False, lineterminator="\n")
            sys.stdout.write("\n".join(printable(line) for line in text.split("\n")))
        else:
            frame.to_csv(sys.stdout, index=False, lineterminator="\n")
        sys.stdout.flush()
        return
    is_parquet = os.fspath(destination).lower().endswith(_PARQUET_ENDINGS)
    if is_parquet:
        import_extra("pyarrow", "Parquet files need")
    # A long table takes more memory as text than as a table: it is written as it is made.
    with open_atomically(destination) as stream:
        if is_parquet:
            frame.to_parquet(stream, index=False, engine="pyarrow")
        else:
            frame.to_csv(stream, index=False, lineterminator="\n")


def column_kinds(frame: pd.DataFrame, dates: Iterable[str] = ()) -> dict[str, str]:
    """Say what each column holds.

    Parameters
    ----------
    frame : DataFrame
        A table from :func:`read_table`, or any other.
    dates : iterable of str
        Columns that hold dates, which nothing else makes known.

    Returns
    -------
    dict
        "numeric", "date", "text" or "boolean" for each column, in the order of the table.

    Raises
    ------
    TableError
        If a column has no values at all, or holds dates or something else.

    Examples
    --------
    >>> import pandas as pd
    >>> from sorel.tables import column_kinds
    >>> column_kinds(pd.DataFrame({"age": [31, 42], "city": ["Oslo", None]}))
    {'age': 'numeric', 'city': 'text'}
    """
    known = set(dates)
    return {
        column: "date" if column in known else _kind(frame[column], column)
        for column in frame.columns
    }


def refuse_misread(frame: pd.DataFrame, columns: Iterable[str]) -> None:
    """Refuse columns of texts that look like dates or like numbers in other dress.

    Each of their values would become an indicator column.

    Parameters
    ----------
    frame : DataFrame
        From :func:`read_table`.
    columns : iterable of str
        Its columns of texts that are to be looked at.

    Raises
    ------
    TableError
        Names the first such column, with an example and a remedy.

    Examples
    --------
    >>> import pandas as pd
    >>> from sorel.tables import refuse_misread
    >>> refuse_misread(pd.DataFrame({"when": ["2024-01-05", "2024-02-11"]}), ["when"])
    Traceback (most recent call last):
    ...
    sorel.files.tables.TableError: column 'when' holds dates, such as '2024-01-05', which would \
become 2 indicator columns; turn it into a number of days with --dates 'when', leave it out with \
--drop 'when', or take the values as names with --categorical 'when'
    """
    for column in columns:
        texts = frame[column].dropna().head(_SAMPLE_ROWS)
        first = texts.astype(str).str.strip().drop_duplicates()
        for what, pattern in _IN_DISGUISE.items():
            fits = first.str.fullmatch(pattern)
            example = first[fits].iloc[0] if fits.any() else ""
            # Plain numbers may stand among those that are not.
            if what != "dates":
                fits |= first.str.fullmatch(_PLAIN_NUMBER)
            if not example or len(first) < 2 or fits.mean() < _MOST:
                continue
            remedy = "write plain numbers such as 1234.5"
            if what == "dates":
                remedy = f"turn it into a number of days with --dates {column!r}"
            elif "thousands" in what and "," in example:
                remedy = "have them read with --thousands ,"
            raise TableError(
                f"column {column!r} holds {what}, such as {example!r}, which would become "
                f"{frame[column].nunique()} indicator columns; {remedy}, leave it out with --drop "
                f"{column!r}, or take the values as names with --categorical {column!r}"
            )


def refuse_stray_texts(values: pd.Series, name: str) -> None:
    """Refuse a target of numbers with a few texts among them.

    One such cell makes a column of numbers a column of texts, and each number would be a label.

    Parameters
    ----------
    values : Series
        A column of texts.
    name : str
        What it is called.

    Raises
    ------
    TableError
        Names the first text that is no number, where numbers are the majority of the rows or of the
        different values.

    Examples
    --------
    >>> import pandas as pd
    >>> from sorel.tables import refuse_stray_texts
    >>> refuse_stray_texts(pd.Series(["1", "a", "b"]), "y")
    >>> refuse_stray_texts(pd.Series(["1.5", "2.25", "oops", "4"]), "y")
    Traceback (most recent call last):
    ...
    sorel.files.tables.TableError: target 'y' is mostly numbers, but row 3 (the header not \
counted) holds 'oops'; correct it, or say --task classification if all of them are labels
    """
    numbers = _pandas().to_numeric(values.astype(object), errors="coerce")
    strange = (numbers.isna() & values.notna()).to_numpy()
    # Counting the different values of a long column takes memory: a part of it tells.
    start = slice(_SAMPLE_ROWS)
    of_rows = numbers.count() / values.count()
    of_values = numbers.iloc[start].nunique() / max(1, values.iloc[start].nunique())
    if strange.any() and max(of_rows, of_values) > 0.5:
        count, place = int(strange.sum()), int(strange.argmax())
        more = f" (and {count - 1} more such cells)" if count > 1 else ""
        raise TableError(
            f"target {name!r} is mostly numbers, but row {_row(values, place)} (the header not "
            f"counted) holds {_shown(values.iloc[place])}{more}; correct it, or say "
            "--task classification if all of them are labels"
        )


def select_columns(
    frame: pd.DataFrame, kinds: Mapping[str, str], *, allow_missing: bool = False, hint: str = ""
) -> pd.DataFrame:
    """Take the columns that a model needs, in its order, after checking all of their values.

    Parameters
    ----------
    frame : DataFrame
        Has these columns, and perhaps others, in any order.
    kinds : mapping of str to {"numeric", "date", "text", "boolean"}
        What the columns hold.
    allow_missing : bool, default=False
        Whether missing values pass.
    hint : str, optional
        What can be done about a missing value; ends the message about it.

    Returns
    -------
    DataFrame
        Numbers as float64; dates as days since the start of 1970, UTC where they name a time zone;
        texts and truth values as objects; NaN where a value is missing.

    Raises
    ------
    TableError
        If a column is not there, holds values of another kind, or has missing or infinite values.

    Examples
    --------
    >>> import pandas as pd
    >>> from sorel.tables import select_columns
    >>> table = pd.DataFrame({"city": ["Oslo", None], "age": [31, 42]})
    >>> select_columns(table, {"age": "numeric", "city": "text"})
    Traceback (most recent call last):
    ...
    sorel.files.tables.TableError: column 'city' has no value in row 2
    """
    pandas = _pandas()
    require_columns(frame.columns, kinds)
    part = frame[list(kinds)]
    if set(kinds.values()) == {"numeric"} and all(kind.kind in "iuf" for kind in part.dtypes):
        # Thousands of columns at once; whatever is wrong with one is looked for below.
        numbers = part.to_numpy(dtype=np.float64, na_value=np.nan)
        if numbers.size and numbers.min() >= -_LARGEST and numbers.max() <= _LARGEST:
            return pandas.DataFrame(numbers, index=frame.index, columns=list(kinds))
    chosen = {
        column: _as_kind(frame[column], column, kind, allow_missing, hint)
        for column, kind in kinds.items()
    }
    return pandas.DataFrame(chosen, index=frame.index)


def require_columns(columns: Iterable[str], named: Iterable[str]) -> None:
    """Refuse names of columns that are not there, with what may have been meant instead.

    Examples
    --------
    >>> from sorel.tables import require_columns
    >>> require_columns(["arr_delay"], ["delay"])
    Traceback (most recent call last):
    ...
    sorel.files.tables.TableError: there is no column 'delay'; did you mean 'arr_delay'? The \
columns are 'arr_delay'
    """
    present = dict.fromkeys(columns)
    absent = [name for name in named if name not in present]
    if absent:
        raise TableError(missing_columns(absent, present))


def require_features(columns: Collection[str]) -> None:
    """Refuse a table that has no columns left to learn from.

    Examples
    --------
    >>> from sorel.tables import require_features
    >>> require_features(["age"])
    """
    if not len(columns):
        raise TableError("the table has no columns to learn from besides the target")


def unknown_categories(
    frame: pd.DataFrame, categories: Mapping[str, Sequence[Any]]
) -> list[tuple[str, Any, int]]:
    """Find values that a model has not seen in training.

    Parameters
    ----------
    frame : DataFrame
        From :func:`select_columns`.
    categories : mapping of str to sequence
        The values that were seen, for each column of texts or truth values.

    Returns
    -------
    list of (column, value, row)
        Each unknown value once, with the first row of the file that holds it, counted from 1.

    Examples
    --------
    >>> import pandas as pd
    >>> from sorel.tables import unknown_categories
    >>> table = pd.DataFrame({"city": ["Oslo", "Rome", "Rome"]})
    >>> unknown_categories(table, {"city": ["Bergen", "Oslo"]})
    [('city', 'Rome', 2)]
    """
    found: list[tuple[str, Any, int]] = []
    for column, known in categories.items():
        values = frame[column]
        first = values.notna() & ~values.isin(list(known)) & ~values.duplicated()
        places = np.flatnonzero(first).tolist()
        found.extend((column, values.iloc[place], _row(values, place)) for place in places)
    return found


def make_pipeline(kinds: Mapping[str, str], model: Any, *, impute: bool = False) -> Any:
    """Put the preparation of the columns in front of a model.

    Numbers and days are standardised; texts and truth values become indicator columns, one for each
    value seen in training. The numbers come first, each group in the order of the table. With
    `impute`, missing numbers become the median and missing texts the most frequent value of the
    training table.

    Parameters
    ----------
    kinds : mapping of str to {"numeric", "date", "text", "boolean"}
        The columns that the model uses.
    model : estimator
        The last step, called "model".
    impute : bool, default=False
        Whether missing values are filled in.

    Returns
    -------
    sklearn.pipeline.Pipeline
        Not fitted. Its first step, called "columns", is a ``ColumnTransformer``.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.linear_model import Ridge
    >>> from sorel.tables import column_kinds, make_pipeline
    >>> table = pd.DataFrame({"age": [31.0, 42.0], "city": ["Oslo", "Bergen"]})
    >>> pipeline = make_pipeline(column_kinds(table), Ridge()).fit(table, [1.0, 2.0])
    >>> list(pipeline[:-1].get_feature_names_out())
    ['numeric__age', 'categorical__city_Bergen', 'categorical__city_Oslo']
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numeric = [column for column, kind in kinds.items() if kind in ("numeric", "date")]
    categorical = [column for column, kind in kinds.items() if kind in ("text", "boolean")]
    scale: Any = StandardScaler()
    encode: Any = OneHotEncoder(handle_unknown="error")
    if impute:
        scale = Pipeline([("impute", SimpleImputer(strategy="median")), ("scale", scale)])
        encode = Pipeline([("impute", SimpleImputer(strategy="most_frequent")), ("encode", encode)])
    parts = [("numeric", scale, numeric), ("categorical", encode, categorical)]
    columns = ColumnTransformer([part for part in parts if part[2]])
    return Pipeline([("columns", columns), ("model", model)])


def restore_pipeline(kinds: Mapping[str, str], fitted: Any, *, impute: bool = False) -> Any:
    """A new pipeline of :func:`make_pipeline` with the numbers and texts of a fitted one.

    Nothing else of the fitted one is kept but its model, so that whatever a stranger wrote into its
    preparation of the columns is not run.

    Parameters
    ----------
    kinds : mapping of str to {"numeric", "date", "text", "boolean"}
        The columns that the model was fitted to.
    fitted : sklearn.pipeline.Pipeline
        From :func:`make_pipeline`, and fitted; it stays as it is.
    impute : bool, default=False
        As it was made.

    Returns
    -------
    sklearn.pipeline.Pipeline
        Predicts the same.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If the parts are not those of such a pipeline, or do not fit together.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.linear_model import Ridge
    >>> from sorel.tables import column_kinds, make_pipeline, restore_pipeline
    >>> table = pd.DataFrame({"age": [31.0, 42.0], "city": ["Oslo", "Bergen"]})
    >>> kinds = column_kinds(table)
    >>> fitted = make_pipeline(kinds, Ridge()).fit(table, [1.0, 2.0])
    >>> bool((restore_pipeline(kinds, fitted).predict(table) == fitted.predict(table)).all())
    True
    """
    unknown = set(kinds.values()).difference(("numeric", "date", "text", "boolean"))
    if unknown:
        raise ValueError(f"there are no columns of the kind {unknown.pop()!r}")
    old = dict(fitted["columns"].named_transformers_)
    pandas = _pandas()
    row: dict[str, Any] = {name: np.zeros(1) for name in kinds}
    pipeline = make_pipeline(kinds, fitted["model"], impute=impute)
    columns = pipeline["columns"]
    for name, part, names in columns.transformers:
        if name == "categorical":
            categories = _last(old[name]).categories_
            for key, own in zip(names, categories, strict=True):
                row[key] = pandas.Series(own[:1], dtype=object)
            _last(part).set_params(categories=list(categories))
    # One row tells the columns their names and places; the rest is put in.
    width = columns.fit_transform(pandas.DataFrame(row)).shape[1]
    if width != fitted["model"].n_features_in_:
        raise ValueError(
            f"the columns become {width} numbers, and the model takes "
            f"{fitted['model'].n_features_in_}"
        )
    for name, part in columns.named_transformers_.items():
        if name == "numeric":
            for own in ("mean_", "scale_"):
                _take(own, _last(old[name]), _last(part))
        if impute:
            _take("statistics_", old[name][0], part[0])
    return pipeline


def _last(part: Any) -> Any:
    """What follows the imputation, if there is one."""
    return part[-1] if hasattr(part, "steps") else part


def _take(name: str, source: Any, target: Any) -> None:
    """Set an array of a fitted part to that of another, of the same length and type."""
    old, new = np.asarray(getattr(source, name)), getattr(target, name)
    if old.shape != new.shape or old.dtype.kind != new.dtype.kind:
        raise ValueError(f"{name} does not fit the columns")
    if old.dtype.kind == "f" and not np.isfinite(old).all():
        raise ValueError(f"{name} is not finite")
    setattr(target, name, old)


def scaled_pipeline(names: Sequence[str], scaler: Any, model: Any) -> Any:
    """The pipeline of :func:`make_pipeline` for columns of numbers, with its preparation fitted.

    Parameters
    ----------
    names : sequence of str
        The columns.
    scaler : sklearn.preprocessing.StandardScaler
        Knows their means and deviations.
    model : estimator
        The last step, called "model"; it is left alone.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sorel.tables import scaled_pipeline
    >>> scaler = StandardScaler().fit([[1.0], [3.0]])
    >>> scaled_pipeline(["a"], scaler, Ridge())["columns"].transform(pd.DataFrame({"a": [3.0]}))
    array([[1.]])
    """
    pipeline = make_pipeline(dict.fromkeys(names, "numeric"), model)
    # The columns learn their names from a table of one row, and the numbers from all rows.
    columns = pipeline["columns"].fit(_pandas().DataFrame([np.zeros(len(names))], columns=names))
    vars(columns.named_transformers_["numeric"]).update(vars(scaler))
    return pipeline


def _open(source: str | os.PathLike[str]) -> BinaryIO:
    """A stream that can be read more than once."""
    if source == STANDARD:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed", "standard input")
        return io.BytesIO(sys.stdin.buffer.read())
    path = Path(source)
    if path.is_file():
        return path.open("rb")
    # A pipe can be read once only.
    return io.BytesIO(path.read_bytes())


def _read_csv(
    stream: BinaryIO, name: str, sep: str, text_columns: set[str], thousands: str | None
) -> pd.DataFrame:
    pandas = _pandas()
    try:
        with _rows(stream, sep) as rows:
            header = next(rows, [])
        if not header:
            raise TableError(f"{name} has no header: its first line is blank")
        check_width(len(header), name)
        _check_names(header, name)
        if len(header) == 1:
            _check_separator(header[0], name, sep)
        stream.seek(0)
        options: dict[str, Any] = {}
        if int(pandas.__version__.partition(".")[0]) < 3:
            # Later versions round every number correctly; before, one had to ask.
            options["float_precision"] = "round_trip"
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                stream,
                sep=sep,
                encoding="utf-8-sig",
                index_col=False,
                dtype=dict.fromkeys(text_columns.intersection(header), str),
                low_memory=False,
                thousands=thousands,
                **options,
            )
    except UnicodeDecodeError as error:
        raise TableError(
            f"{name} is not text in UTF-8 (byte {error.object[error.start]:#04x} cannot be read); "
            "save it as UTF-8, or as Parquet"
        ) from None
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, csv.Error) as error:
        if any(words in str(error) for words in _NO_MEMORY):
            raise MemoryError(
                f"memory ran out while {name} was read; allow more, or leave the rows on disk: "
                "write them as Parquet and use --out-of-core"
            ) from None
        _check_lengths(stream, name, sep)
        raise TableError(f"{name} is not a well-formed CSV file: {shorten(error)}") from None
    frame.columns = header
    # A row that is too short is filled up with missing values, the last one always among them.
    if len(frame) and frame.iloc[:, -1].isna().any():
        _check_lengths(stream, name, sep)
    return frame


@contextlib.contextmanager
def _rows(stream: BinaryIO, sep: str) -> Iterator[Iterator[list[str]]]:
    stream.seek(0)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        yield csv.reader(text, delimiter=sep)
    finally:
        text.detach()


def check_width(columns: int, name: str) -> None:
    """Refuse a table with more columns than can be told apart by name.

    Parameters
    ----------
    columns : int
        Number of columns.
    name : str
        What messages call the table.

    Raises
    ------
    TableError
        If there are more than 25000.

    Examples
    --------
    >>> from sorel.tables import check_width
    >>> check_width(100_000, "wide.csv")
    Traceback (most recent call last):
    ...
    sorel.files.tables.TableError: wide.csv has 100000 columns, and a table may have 25000; if \
rows and columns are swapped, turn it, else fit a matrix in Python
    """
    if columns > _MAX_COLUMNS:
        raise TableError(
            f"{name} has {columns} columns, and a table may have {_MAX_COLUMNS}; if rows and "
            "columns are swapped, turn it, else fit a matrix in Python"
        )


def _check_separator(header: str, name: str, sep: str) -> None:
    for other in ";\t|,":
        if other != sep and other in header:
            shown = "'\\t'" if other == "\t" else repr(other)
            raise TableError(
                f"{name} has one column only, called {header!r}; "
                f"if the fields are separated by {shown}, say so with --sep {shown}"
            )


def _check_lengths(stream: BinaryIO, name: str, sep: str) -> None:
    try:
        with _rows(stream, sep) as rows:
            width = len(next(rows))
            number = 0
            for row in rows:
                number += bool(row)
                if row and len(row) != width:
                    raise TableError(
                        f"row {number} of {name} has {len(row)} fields, the header has {width}"
                    )
    except (csv.Error, UnicodeDecodeError):
        # Whoever asked has found out already that the file is broken, and says how.
        return


def _read_parquet(stream: BinaryIO, name: str, unpacked: float | None) -> pd.DataFrame:
    parquet = import_extra("pyarrow.parquet", "Parquet files need")
    try:
        native = _native(stream)
        # Buffers that are filled ahead, and by threads, take more than the table if it is wide.
        file = parquet.ParquetFile(native, pre_buffer=False)
        _check_unpacked(file, native, name, unpacked)
        frame = file.read(use_threads=False).to_pandas().reset_index(drop=True)
    except Exception as error:  # pyarrow has many kinds of its own
        if isinstance(error, (MemoryError, TableError)):
            raise
        raise TableError(f"{name} cannot be read as Parquet: {shorten(error)}") from None
    frame.columns = [str(column) for column in frame.columns]
    return frame


def _native(stream: BinaryIO) -> Any:
    """What a stream reads, without Python.

    pyarrow reads ahead in threads of its own. One that has to call Python while the process ends,
    as where a file is refused halfway, aborts it.
    """
    import pyarrow

    name = getattr(stream, "name", None)
    return pyarrow.OSFile(name) if isinstance(name, str) else pyarrow.BufferReader(stream.read())


def _check_unpacked(file: Any, native: Any, name: str, unpacked: float | None) -> None:
    """Refuse a Parquet file that unfolds to more than it may, before it does."""
    check_width(file.metadata.num_columns, name)
    size = native.size()
    if unpacked is None:
        unpacked = _ROOM + _RATIO * max(0, size - _ROOM // 2)
    limit = int(unpacked)
    found = unfolded_bytes(file, native, limit)
    if found > limit:
        raise TableError(
            f"{name} has {size / 1e6:.3g} MB and unfolds to {found / 1e6:.3g} MB or more, which is "
            f"above {limit / 1e6:.3g} MB; if that is right, allow more (--unpacked MEGABYTES), or "
            "write its numbers as .npy blocks with sorel.rows.write_blocks"
        )


def _check_names(names: Sequence[str], name: str) -> None:
    seen: dict[str, int] = {}
    for position, column in enumerate(names, start=1):
        if not column.strip():
            raise TableError(
                f"column {position} of {name} has no name; if it only numbers the rows, remove it, "
                "else name it"
            )
        if column in seen:
            raise TableError(
                f"{name} has two columns called {column!r} ({seen[column]} and {position}); "
                "rename one of them"
            )
        seen[column] = position


def _texts(values: pd.Series) -> pd.Series:
    """The values as texts, NaN where they are missing."""
    is_text = _pandas().api.types.infer_dtype(values, skipna=True) == "string"
    texts = values if is_text else values.astype(str)
    return texts.astype(object).where(values.notna(), np.nan)


def _kind(values: pd.Series, column: str) -> str:
    if values.isna().all():
        raise TableError(f"column {column!r} has no values at all; remove it, or drop it")
    inferred = _pandas().api.types.infer_dtype(values, skipna=True)
    if inferred in _KINDS:
        return _KINDS[inferred]
    words = f"values of other types ({inferred})"
    if inferred.startswith(("datetime", "date", "time", "period")):
        words = "dates or times"
    raise TableError(
        f"column {column!r} holds {words}, neither numbers nor texts; turn it into numbers, or "
        "drop it"
    )


def _as_kind(
    values: pd.Series, column: str, kind: str, allow_missing: bool, hint: str
) -> pd.Series:
    pandas = _pandas()
    missing = values.isna().to_numpy()
    if not allow_missing:
        refuse_rows(values, column, missing, "has no value in row {row}" + (hint and f"; {hint}"))
    if kind == "date":
        return _days(values, column)
    if kind == "numeric":
        is_number = pandas.api.types.is_numeric_dtype(values.dtype)
        if pandas.api.types.is_bool_dtype(values.dtype) or not is_number:
            values = _numbers(values, column)
        floats = values.to_numpy(dtype=np.float64, na_value=np.nan)
        numbers = pandas.Series(floats, index=values.index)
        refuse_rows(numbers, column, np.isinf(floats), "is {value} in row {row}")
        refuse_rows(numbers, column, np.abs(floats) > _LARGEST, _TOO_LARGE)
        return numbers
    if missing.all():
        return pandas.Series(np.nan, index=values.index, dtype=object)
    if _kind(values, column) != "boolean" and kind == "boolean":
        words = "should hold true or false, but row {row} holds {value}"
        refuse_rows(values, column, ~missing, words)
    return _texts(values) if kind == "text" else values.astype(object).where(~missing, np.nan)


def _days(values: pd.Series, column: str) -> pd.Series:
    """Dates as days since 1970; texts must be ISO 8601, which cannot be read in two ways."""
    pandas = _pandas()
    words = "should hold dates such as 2024-01-31 or 2024-01-31 18:30, but row {row} holds {value}"
    present = values.notna().to_numpy()
    # Numbers among texts are no dates, whatever pandas makes of them.
    is_number = values.map(lambda value: isinstance(value, numbers.Number)).to_numpy(dtype=bool)
    refuse_rows(values, column, is_number & present, words)
    # Without a date, a column may have any type.
    dates = values if present.any() else values.astype(object)
    times = pandas.to_datetime(dates, errors="coerce", format="ISO8601", utc=True)
    refuse_rows(values, column, times.isna().to_numpy() & present, words)
    naive = times.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    days = (naive - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    return pandas.Series(np.where(values.isna(), np.nan, days), index=values.index)


def _numbers(values: pd.Series, column: str) -> pd.Series:
    """Values of an object or text column as numbers, or an error that names the first culprit."""
    pandas = _pandas()
    large = values.map(exceeds_floats).to_numpy(dtype=bool)
    refuse_rows(values, column, large, _TOO_LARGE)
    numbers = pandas.to_numeric(values.astype(object), errors="coerce")
    is_truth = values.map(lambda value: isinstance(value, (bool, np.bool_)))
    wrong = ((numbers.isna() & values.notna()) | is_truth.fillna(False).astype(bool)).to_numpy()
    refuse_rows(values, column, wrong, "should hold numbers, but row {row} holds {value}")
    return numbers


def refuse_rows(values: pd.Series, column: str, wrong: Any, words: str) -> None:
    """Raise an error that names the first row where something is wrong, and its value.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sorel.tables import refuse_rows
    >>> refuse_rows(pd.Series([1, 2]), "x", np.array([False, True]), "is {value} in row {row}")
    Traceback (most recent call last):
    ...
    sorel.files.tables.TableError: column 'x' is 2 in row 2
    """
    if wrong.any():
        place = wrong.argmax()
        facts = {"row": _row(values, place), "value": _shown(values.iloc[place])}
        raise TableError(f"column {column!r} {words.format(**facts)}")


def _row(values: pd.Series, place: int) -> int:
    """A row as the file counts it, with the rows that were left out."""
    label = values.index[place]
    return int(label if isinstance(label, (int, np.integer)) else place) + 1


def _shown(value: Any) -> str:
    if exceeds_floats(value):
        return show_integer(value)
    return shorten(repr(value.item() if isinstance(value, np.generic) else value))


def _pandas() -> Any:
    return import_extra("pandas", "reading tables needs")
