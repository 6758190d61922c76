"""Tables for people: a pandas DataFrame, or a dictionary of columns where pandas is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_table(
    columns: Mapping[str, Sequence[Any]],
    index: Sequence[Any] | None = None,
    index_name: str = "index",
) -> Any:
    """The columns as a DataFrame; without pandas as a dictionary, the labels its first column.

    Examples
    --------
    >>> from sorel._lib.frames import as_table
    >>> as_table({"passes": [1, 2], "gap": [0.5, 0.0625]})
       passes     gap
    0       1  0.5000
    1       2  0.0625
    """
    try:
        import pandas as pd
    except ImportError:
        labels = {} if index is None else {index_name: index}
        return {name: list(values) for name, values in {**labels, **columns}.items()}
    rows = None if index is None else pd.Index(list(index), name=index_name)
    return pd.DataFrame(dict(columns), index=rows)
