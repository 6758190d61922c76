"""Words about columns that are not there, with what may have been meant instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["missing_columns"]

# Columns that are listed, and suggestions for one name.
_SHOWN, _SUGGESTED = 20, 3


def missing_columns(absent: Sequence[str], present: Iterable[str]) -> str:
    """Say that columns are not there, and what there is instead.

    Examples
    --------
    >>> from sorel._names import missing_columns
    >>> missing_columns(["delay"], ["arr_delay", "carrier"])
    "there is no column 'delay'; did you mean 'arr_delay'? The columns are 'arr_delay', 'carrier'"
    """
    present = [str(column) for column in present]
    names = ", ".join(repr(column) for column in absent[:_SHOWN])
    if len(absent) > _SHOWN:
        names += f" and {len(absent) - _SHOWN} more"
    message = f"there is no column {names}" if len(absent) == 1 else f"there are no columns {names}"
    for column in absent[:_SHOWN]:
        near = _near(column, present)
        if near:
            meant = " or ".join(repr(name) for name in near)
            message += f"; did you mean {meant}" + (
                "?" if len(absent) == 1 else f" for {column!r}?"
            )
    shown = ", ".join(repr(column) for column in present[:_SHOWN])
    more = f" and {len(present) - _SHOWN} more" if len(present) > _SHOWN else ""
    separator = " The" if message.endswith("?") else "; the"
    return f"{message}{separator} columns are {shown}{more}"


def _near(name: str, present: Sequence[str]) -> list[str]:
    """Columns that contain the name, or else are spelt alike, or else are contained in it."""
    folded = {_fold(column): column for column in present}
    wanted = _fold(name)
    keys = [key for key in folded if len(wanted) > 1 and wanted in key]
    keys = keys or difflib.get_close_matches(wanted, folded, n=1)
    keys = keys or [key for key in folded if len(key) > 2 and key in wanted]
    return [folded[key] for key in keys[:_SUGGESTED]]


def _fold(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")
