"""Inner products of rows, kept for the rows that were asked for before.

The rows that carry a tail risk change little from one Newton step to the next, so that most of
K = A A^T is known already. Only the products of new rows cost passes over their columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Rows whose products are kept: 200 MB.
MAX_ROWS = 5000


class RowGram:
    """The matrix of inner products of some rows.

    Parameters
    ----------
    n_samples : int
        Rows of X.
    products : callable
        Given two arrays of row numbers, the inner products of the one with the other.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.engines.row_gram import RowGram
    >>> X = np.array([[1.0, 0.0], [1.0, 2.0], [3.0, 0.0]])
    >>> RowGram(3, lambda a, b: X[a] @ X[b].T).of(np.array([0, 2]))
    array([[1., 3.],
           [3., 9.]])
    """

    def __init__(
        self, n_samples: int, products: Callable[[NDArray[np.intp], NDArray[np.intp]], FloatArray]
    ) -> None:
        self._products = products
        self._place = np.full(n_samples, -1, np.intp)
        self._known = np.empty(0, np.intp)
        self._values = np.empty((0, 0))

    def of(self, rows: NDArray[np.intp]) -> FloatArray:
        """K for these rows, at most MAX_ROWS of them; the caller may write to it."""
        new = rows[self._place[rows] < 0]
        if len(self._known) + len(new) > MAX_ROWS:
            self._place.fill(-1)
            self._known, new = np.empty(0, np.intp), rows
        if len(new):
            self._learn(new)
        places = self._place[rows]
        return self._values[np.ix_(places, places)]

    def _learn(self, new: NDArray[np.intp]) -> None:
        old, count = len(self._known), len(self._known) + len(new)
        if count > len(self._values):
            room = min(max(count, 2 * old), MAX_ROWS)
            values = np.empty((room, room))
            values[:old, :old] = self._values[:old, :old]
            self._values = values
        if old:
            beside = self._products(new, self._known)
            self._values[old:count, :old] = beside
            self._values[:old, old:count] = beside.T
        self._values[old:count, old:count] = self._products(new, new)
        self._known = np.concatenate([self._known, new])
        self._place[new] = np.arange(old, count)
