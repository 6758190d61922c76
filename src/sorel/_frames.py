"""Tables for people: a pandas DataFrame where pandas is installed, a plain one elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Table:
    """Named columns of equal length that print aligned; stands in for a DataFrame.

    Parameters
    ----------
    columns : mapping of str to sequence
        The columns, in order.
    index : sequence, optional
        Labels of the rows; their numbers when not given.
    index_name : str, optional
        Heading of the labels.

    Examples
    --------
    >>> from sorel._frames import Table
    >>> table = Table({"passes": [1, 2], "gap": [0.5, 0.0625]})
    >>> table["gap"]
    [0.5, 0.0625]
    >>> print(table)
       passes     gap
    0       1     0.5
    1       2  0.0625
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Any]],
        index: Sequence[Any] | None = None,
        index_name: str | None = None,
    ) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}
        length = len(next(iter(self._columns.values()), []))
        self.index = list(range(length)) if index is None else list(index)
        self.index_name = index_name

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __str__(self) -> str:
        heads = [self.index_name or "", *self._columns]
        cells = [[_shown(label) for label in self.index]]
        cells += [[_shown(value) for value in values] for values in self._columns.values()]
        widths = [max(map(len, [head, *cell])) for head, cell in zip(heads, cells, strict=True)]
        lines = []
        for row in [heads, *zip(*cells, strict=True)]:
            first, *others = (f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
            lines.append("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__


def as_table(
    columns: Mapping[str, Sequence[Any]],
    index: Sequence[Any] | None = None,
    index_name: str | None = None,
) -> Any:
    """The columns as a pandas DataFrame, or as a :class:`Table` where pandas is missing."""
    try:
        import pandas as pd
    except ImportError:
        return Table(columns, index, index_name)
    labels = None if index is None else pd.Index(list(index), name=index_name)
    return pd.DataFrame(dict(columns), index=labels)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
