"""X less the means of its columns, as a fit wants it whose residuals add up to 0.

A dense X in memory is copied, and rows on disk are shifted as they are read. A sparse X stays as it
is: X - 1 m^T is [X 1] after the linear map w -> (w, -m . w), so that all products with it follow
from those with [X 1].
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from sorel._lib.copies import shallow_copy
from sorel.engines.base import FloatArray
from sorel.engines.csr import checked_csr
from sorel.engines.matrix import RowMatrix
from sorel.engines.rows import RowSource, ScaledRows
from sorel.files.fingerprints import fingerprint_array, fingerprint_matrix


class CenteredMatrix:
    """A sparse matrix less a row, of which nothing is made dense.

    Parameters
    ----------
    X : sparse matrix or array
        CSR without repeated entries, and finite.
    mean : array of length d
        What is taken off every row.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from sorel.engines.centered import CenteredMatrix
    >>> X = scipy.sparse.csr_array([[1.0, 0.0], [0.0, 1.0]])
    >>> CenteredMatrix(X, np.full(2, 0.5)) @ np.array([1.0, 3.0])
    array([-1.,  1.])
    """

    def __init__(self, X: Any, mean: FloatArray) -> None:
        self.X, self.mean = X, mean
        self.shape, self.dtype = X.shape, X.dtype

    def __getitem__(self, rows: Any) -> CenteredMatrix:
        return CenteredMatrix(self.X[rows], self.mean)

    def __matmul__(self, coef: FloatArray) -> FloatArray:
        return np.asarray(self.X @ coef - self.mean @ coef)

    def fingerprint(self) -> str:
        """A short text that is the same as long as the data is."""
        return f"{fingerprint_matrix(self.X)} less {fingerprint_array(self.mean)}"


class CenteredRows(RowMatrix):
    """Products with X less a row, from those of `rows`, which is [X 1].

    Rounding errors are those of [X 1] and of the map: a column counts with the size of its entries
    and that of its mean.
    """

    # Loops that step on single rows would have to know the map.
    form = None

    def __init__(self, rows: RowMatrix, mean: FloatArray) -> None:
        super().__init__((rows.n, rows.d), False)
        self._rows, self._mean, self.entries = rows, mean, rows.entries

    def shared(self, threads: int) -> Self:
        other = shallow_copy(self)
        other._rows = self._rows.shared(threads)
        return other

    @property
    def array(self) -> CenteredMatrix:
        return CenteredMatrix(self._rows.array, self._mean)

    def select(self, rows: NDArray[np.intp]) -> CenteredRows | None:
        some = self._rows.select(rows)
        return None if some is None else CenteredRows(some, self._mean)

    def columns(self, chosen: NDArray[np.intp]) -> CenteredRows:
        return CenteredRows(self._rows.columns(chosen), self._mean[chosen])

    def inner_products(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> FloatArray:
        out = self._rows.inner_products(rows, others)
        return out - self._shift[rows, None] - self._shift[others]

    @cached_property
    def _shift(self) -> FloatArray:
        """x_i . m - |m|^2 / 2: what the mean takes off an inner product, from either side."""
        out, m = np.empty(self.n), self._mean
        self._rows.margins(np.append(m, -0.5 * (m @ m)), out)
        return out

    def margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        self._rows.margins(np.concatenate([w, -(self._mean @ w)[None]]), out)

    def adjoint(self, c: NDArray[Any]) -> FloatArray:
        out = self._rows.adjoint(c)
        return np.asarray(out[:-1] - np.multiply.outer(self._mean, out[-1]))

    def gram(self, h: FloatArray) -> FloatArray:
        out = self._rows.gram(h)
        part = np.outer(self._mean, out[-1, :-1] - 0.5 * out[-1, -1] * self._mean)
        return out[:-1, :-1] - (part + part.T)

    def gram_diagonal(self, h: FloatArray) -> FloatArray:
        sums = self._rows.adjoint(h)
        out = self._rows.gram_diagonal(h)[:-1]
        return out - self._mean * (2.0 * sums[:-1] - sums[-1] * self._mean)

    def block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        out = self._rows.block_sums(block, start, stop, c)
        return out[:, :-1] - out[:, -1:] * self._mean

    def column_scale(self) -> FloatArray:
        return self._rows.column_scale() + np.abs(self._mean)

    def squares(self) -> FloatArray:
        return np.maximum(self._rows.squares() - 2.0 * self._shift, 0.0)


def centered(X: Any, weight: FloatArray | None) -> tuple[Any, FloatArray]:
    """X less the weighted means of its columns, and these.

    Parameters
    ----------
    X : array, sparse matrix or RowSource
        Finite; a sparse matrix stays sparse, and rows on disk stay there, read once.
    weight : array of length n, or None
        Nonnegative, not all 0; None for equal weights.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.engines.centered import centered
    >>> centered(np.array([[1.0], [3.0]]), np.array([1.0, 3.0]))
    (array([[-1.5],
           [ 0.5]]), array([2.5]))
    """
    if isinstance(X, np.ndarray):
        mean = np.average(X, axis=0, weights=weight)
        return X - mean, mean
    share = np.ones(X.shape[0]) if weight is None else weight
    share = share / share.sum()
    if scipy.sparse.issparse(X):
        mean = np.asarray(X.T @ share)
        return CenteredMatrix(checked_csr(X), mean), mean
    assert isinstance(X, RowSource)
    mean = sum(share[start:stop] @ part for start, stop, part in X.finite_spans())
    return ScaledRows(X, mean, np.ones(X.n_features), np.dtype(np.float64)), mean
