"""Inputs that mean more than their numbers: refused by name before the meaning is lost.

``np.asarray`` forgets the mask of a masked array, turns time spans into counts of nanoseconds,
reads texts as numbers and drops imaginary parts; a lazy table is no table yet, and an integer may
be larger than any float. Whoever gives such things wants something that only they can say.
"""

from __future__ import annotations

import datetime
import numbers
import sys
from decimal import Decimal
from typing import Any

import numpy as np

_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


def check_meaning(values: Any, name: str) -> None:
    """Refuse masked values and tables that are not computed yet; anything else passes.

    Parameters
    ----------
    values : object
        What the user gave.
    name : str
        What messages call it.

    Raises
    ------
    ValueError
        If values are masked.
    TypeError
        If it is a lazy table.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel._lib.inputs import check_meaning
    >>> check_meaning(np.ma.array([1.0, 2.0], mask=[False, True]), "y")
    Traceback (most recent call last):
    ...
    ValueError: y is a masked array and 1 of its values is masked; drop or fill in such values, \
e.g. with y.filled(value)
    """
    if type(values) is np.ndarray:
        return
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(values))
        if masked:
            verb = "is" if masked == 1 else "are"
            raise ValueError(
                f"{name} is a masked array and {masked} of its values {verb} masked; drop or fill "
                f"in such values, e.g. with {name}.filled(value)"
            )
    kind = type(values)
    if kind.__module__.partition(".")[0] == "polars" and kind.__name__ == "LazyFrame":
        raise TypeError(f"{name} is a polars LazyFrame, which has no values yet; collect() it")


def check_numbers(values: Any, name: str) -> None:
    """Refuse what is no real number although it could be read as one: times, texts, and the like.

    Parameters
    ----------
    values : object
        What the user gave: an array, a table, or lists.
    name : str
        What messages call it.

    Raises
    ------
    ValueError
        If there are masked values, times, texts, complex numbers or integers beyond all floats.
    TypeError
        If it is a lazy table.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel._lib.inputs import check_numbers
    >>> check_numbers(np.array(["1.5", "2"]), "y")
    Traceback (most recent call last):
    ...
    ValueError: y holds texts such as '1.5'; convert them to numbers first
    """
    check_meaning(values, name)
    if isinstance(values, np.ndarray):
        _check_array(values, name)
    elif hasattr(values, "columns") and hasattr(values, "dtypes"):
        for column in values.columns:
            part = values[column]
            # Two columns of one name make a table again; validation has its own word on that.
            if not hasattr(part, "columns"):
                _check_series(part, f"column {str(column)!r} of {name}")
    elif hasattr(values, "dtype") and hasattr(values, "to_numpy"):
        _check_series(values, name)
    elif isinstance(values, (list, tuple)):
        try:
            array = np.asarray(values)
        except ValueError:
            # Ragged, which whoever reads it reports.
            return
        _check_array(array, name)


def check_present(values: Any, name: str) -> None:
    """Refuse targets of which one is missing: NaN, None, or what pandas calls NA.

    Examples
    --------
    >>> from sorel._lib.inputs import check_present
    >>> check_present(["yes", None], "y")
    Traceback (most recent call last):
    ...
    ValueError: y has a missing value, y[1] = None; drop or impute such rows
    """
    try:
        array = np.asarray(values)
    except ValueError:
        # Ragged, which whoever reads it reports.
        return
    if array.ndim == 0 or array.dtype.kind not in "fO":
        return
    array = array.ravel()
    if array.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(array))
    else:
        missing = np.flatnonzero([_is_missing(value) for value in array])
    if len(missing):
        first = int(missing[0])
        raise ValueError(
            f"{name} has a missing value, {name}[{first}] = {array[first]}; drop or impute such "
            "rows"
        )


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        # Of NA nothing can be said, and of an array too much.
        return type(value).__name__ == "NAType"


def _check_series(values: Any, name: str) -> None:
    """A column of pandas or polars."""
    kind = getattr(values.dtype, "kind", None)
    # Numbers are not copied only to be looked at.
    if not (values.dtype.is_numeric() if kind is None else kind in "iufb"):
        _check_array(np.asarray(values), name)


def _check_array(array: np.ndarray[Any, Any], name: str) -> None:
    kind = array.dtype.kind
    if kind in "mM":
        _refuse_times(name, str(array.dtype))
    if kind == "c":
        _refuse_complex(name, array.flat[0] if array.size else 0j)
    if kind in "USO":
        for value in array.ravel().tolist() if kind == "O" else array.ravel()[:1]:
            if isinstance(value, (str, bytes)):
                shown = value if isinstance(value, bytes) else str(value)
                raise ValueError(
                    f"{name} holds texts such as {shown!r}; convert them to numbers first"
                )
            if isinstance(value, _TIMES):
                _refuse_times(name, type(value).__name__)
            if isinstance(value, (complex, np.complexfloating)):
                _refuse_complex(name, value)
            if exceeds_floats(value):
                raise ValueError(
                    f"{name} holds an integer beyond the range of floats, about "
                    f"{show_integer(value)}; divide by a unit, or drop such rows"
                )


def is_real(value: Any) -> bool:
    """Whether this is a real number, and no truth value.

    Examples
    --------
    >>> from sorel._lib.inputs import is_real
    >>> is_real(2), is_real(True), is_real("2")
    (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def exceeds_floats(value: Any) -> bool:
    """Whether this is an integer beyond the range of floats."""
    return isinstance(value, int) and abs(value) > sys.float_info.max


def show_integer(value: int) -> str:
    """Some digits and the power of ten: Python refuses to write thousands of digits."""
    return f"{Decimal(value):.3g}"


def _refuse_complex(name: str, value: Any) -> None:
    # The first words are those of scikit-learn.
    raise ValueError(
        f"Complex data not supported: {name} holds complex numbers such as {complex(value)}; give "
        "real ones, e.g. their real part or modulus"
    )


def _refuse_times(name: str, what: str) -> None:
    raise ValueError(
        f"{name} holds dates or time spans ({what}), which are numbers of any unit; choose one, "
        "e.g. values / np.timedelta64(1, 's')"
    )
