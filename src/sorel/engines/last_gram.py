"""Weighted Gram matrices X^T diag(h) X, each formed from the last where few weights have changed.

Under a tail risk most rows have no weight or as much as one row may have, and keep it from one
Newton step to the next. Where losses bend evenly, only the rows in between then change the matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sorel._lib.floats import ROUNDED

FloatArray = NDArray[np.float64]

# Changed rows, as a share of the rows with weight, up to which the last matrix is updated.
_CHANGED_SHARE = 0.4

# Share of its largest value that the diagonal may fall to by updates: cancellation costs digits.
_LEAST_DIAGONAL = 0.1


class LastGram:
    """The last weighted Gram matrix of a run, and its weights.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.engines.last_gram import LastGram
    >>> X = np.array([[1.0, 0.0], [1.0, 2.0], [3.0, 0.0]])
    >>> last, gram = LastGram(), lambda h: (X.T * h) @ X
    >>> last.of(np.array([1.0, 1.0, 1.0]), gram)
    array([[11.,  2.],
           [ 2.,  4.]])
    >>> last.of(np.array([1.0, 1.0, 2.0]), gram)
    array([[20.,  2.],
           [ 2.,  4.]])
    """

    def __init__(self) -> None:
        self._h: FloatArray | None = None
        self._matrix = self._largest = np.empty(0)

    def of(self, h: FloatArray, gram: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """The matrix for these weights, none of them negative; the caller may write to it.

        Parameters
        ----------
        h : array of length n
            The weights.
        gram : callable
            Forms the matrix for given weights, which may have either sign.
        """
        matrix = None
        if self._h is not None:
            # Where losses overflow, the Hessian is found to be of no use by who asked for it.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                matrix = self._changed(self._h, h, gram)
        if matrix is None:
            matrix = gram(h)
            self._largest = matrix.diagonal().copy()
        self._h, self._matrix = h.copy(), matrix
        return matrix.copy()

    def _changed(
        self, last: FloatArray, h: FloatArray, gram: Callable[[FloatArray], FloatArray]
    ) -> FloatArray | None:
        """The last matrix with what has changed; None where that is too much."""
        scale, change = 1.0, h - last
        few = _CHANGED_SHARE * np.count_nonzero(h)
        if np.count_nonzero(change) > few:
            # Another alpha of a tail risk changes the largest weight, and so most rows alike.
            scale = _typical(h) / _typical(last)
            change = h - scale * last
            change[np.abs(change) <= ROUNDED * np.abs(h)] = 0.0
            if not 0.0 < scale < np.inf or np.count_nonzero(change) > few:
                return None
        # Weights of one sign take half the time of others.
        matrix = scale * self._matrix
        matrix += gram(np.maximum(change, 0.0))
        self._largest = np.maximum(scale * self._largest, matrix.diagonal())
        matrix += gram(np.minimum(change, 0.0))
        if not np.all(matrix.diagonal() >= _LEAST_DIAGONAL * self._largest):
            return None
        return matrix


def _typical(h: FloatArray) -> np.float64:
    """The weight that most rows have, if there is such a one; 0 where no row has any."""
    used = h[h > 0.0]
    return np.float64(np.median(used) if len(used) else 0.0)
