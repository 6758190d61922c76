"""Rows of a long table that are equal, as one row with the weight of all of them.

Equal rows have equal losses, so the problem is the same; a solver needs a dozen vectors of the
number of rows, and a table of millions of short rows has few different ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Rows from which on it is tried, the first of them, which tell whether it is worth it, and the
# share of different rows up to which it is.
_MANY, _LOOKED_AT, _WORTH_IT = 1 << 19, 1 << 16, 0.25


class Repeats(NamedTuple):
    """Which of the different rows each row is, and where each of these is found first."""

    place: Any
    first: Any

    def weights(self, weight: Any) -> Any:
        """The weights of the different rows; without any, each row counts 1."""
        total = np.bincount(self.place, weights=weight, minlength=len(self.first))
        return total.astype(np.float64)

    def shared_out(self, lam: Any, weight: Any) -> Any:
        """What the different rows have, given to all rows in proportion to their weights."""
        total = self.weights(weight)
        density = np.divide(lam, total, out=np.zeros(len(lam)), where=total > 0.0)[self.place]
        return density if weight is None else density * weight

    def within(self, groups: Any) -> Repeats:
        """The same for rows that are equal and of the same group, which are numbered from 0."""
        import pandas as pd

        codes = self.place.astype(np.int64)
        codes *= int(groups.max()) + 1
        codes += groups
        place, values = pd.factorize(codes)
        return _repeats(place, len(values))


def find_repeats(table: pd.DataFrame, y: Any = None) -> Repeats | None:
    """The different rows of a table with targets, or None where they are not far fewer than all.

    Parameters
    ----------
    table : DataFrame
        Features; missing values are equal to each other.
    y : array, optional
        Targets, numbers or labels.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sorel.cli.merging import find_repeats
    >>> table = pd.DataFrame({"a": np.tile([0.0, 2.0], 500_000)})
    >>> repeats = find_repeats(table, table["a"].to_numpy())
    >>> repeats.first.tolist(), repeats.weights(None).tolist()
    ([0, 1], [500000.0, 500000.0])
    """
    n = len(table)
    if n < _MANY:
        return None
    if y is None:
        y = np.zeros(n, np.int8)
    if _places(table[:_LOOKED_AT], y[:_LOOKED_AT])[1] > _WORTH_IT * _LOOKED_AT:
        return None
    place, count = _places(table, y)
    if count > _WORTH_IT * n:
        return None
    return _repeats(place, count)


def _repeats(place: Any, count: int) -> Repeats:
    first = np.empty(count, np.intp)
    first[place[::-1]] = np.arange(len(place) - 1, -1, -1)
    return Repeats(place.astype(np.int32), first)


def _places(table: pd.DataFrame, y: Any) -> tuple[Any, int]:
    """Which of the different rows each row is, in the order of their first, and how many."""
    import pandas as pd

    place, values = pd.factorize(y)
    for column in table.columns:
        count = len(values)
        codes, _ = pd.factorize(table[column], use_na_sentinel=False)
        codes *= count
        codes += place
        place, values = pd.factorize(codes)
    return place, len(values)
