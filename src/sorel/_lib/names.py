"""Words about columns that are not there, with what may have been meant instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# Columns that are listed, and suggestions for one name.
_SHOWN, _SUGGESTED = 20, 3


def missing_columns(absent: Sequence[str], present: Iterable[str]) -> str:
    """Say that columns are not there, and what there is instead.

    Examples
    --------
    >>> from sorel._lib.names import missing_columns
    >>> missing_columns(["delay"], ["arr_delay", "carrier"])
    "there is no column 'delay'; did you mean 'arr_delay'? The columns are 'arr_delay', 'carrier'"
    """
    present = [str(column) for column in present]
    one = len(absent) == 1
    message = f"there {'is no column' if one else 'are no columns'} {_listed(absent)}"
    for column in absent[:_SHOWN]:
        similar = " or ".join(map(repr, _similar(column, present)))
        if similar:
            message += f"; did you mean {similar}" + ("?" if one else f" for {column!r}?")
    separator = " The" if message.endswith("?") else "; the"
    return f"{message}{separator} columns are {_listed(present)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more


def _similar(name: str, present: Sequence[str]) -> list[str]:
    """Columns that contain the name, or else are spelt alike, or else are contained in it."""
    folded = {_fold(column): column for column in present}
    wanted = _fold(name)
    keys = [key for key in folded if len(wanted) > 1 and wanted in key]
    keys = keys or difflib.get_close_matches(wanted, folded, n=1)
    keys = keys or [key for key in folded if len(key) > 2 and key in wanted]
    return [folded[key] for key in keys[:_SUGGESTED]]


def _fold(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")
