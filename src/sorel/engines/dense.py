"""Dense X in memory, in C or Fortran order, float64 or float32, read in place.

Read-only and memory-mapped arrays are used as they are: no operation writes to X.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel._lib.threads import limit_blas
from sorel.engines.base import FloatArray, Spec
from sorel.engines.matrix import FEW_PARAMETERS, MAX_COPY, RowMatrix
from sorel.engines.memory import MemoryEngine

# Entries of a tile of scaled rows: half a megabyte, so that BLAS finds it in the second cache.
_TILE_SIZE = 65536

# Rows of a tile for a Gram matrix at least: each tile reads and writes the whole matrix, too
# (2026-11, against tiles in the second cache: 20000 x 1000 2.3 times as fast, 1500 x 3000 8 times).
_TILE_ROWS = 1024


class DenseRows(RowMatrix):
    """Products with a dense X."""

    def __init__(self, X: NDArray[Any], intercept: bool) -> None:
        super().__init__(X.shape, intercept)
        self.form: Any = np.asarray(np.require(X, None, ["A"]))
        self._by_rows = self.form.flags.c_contiguous

    @property
    def array(self) -> Any:
        return self.form

    def select(self, rows: NDArray[np.intp]) -> DenseRows | None:
        if len(rows) * self.d * self.form.itemsize > MAX_COPY:
            return None
        # In the same order: columns are gathered one by one.
        X = self.form.take(rows, axis=0) if self._by_rows else self.form.T.take(rows, axis=1).T
        return self._like(DenseRows(X, self.intercept))

    def columns(self, chosen: NDArray[np.intp]) -> DenseRows:
        X = self.form.take(chosen, axis=1) if self._by_rows else self.form.T[chosen].T
        return self._like(DenseRows(X, self.intercept))

    def margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        X = self.form
        if out.ndim > 1:
            self._sweep(lambda start, stop: _multiply(X[start:stop], w, out[start:stop]))
            return
        coef, intercept = (w[:-1], w[-1]) if self.intercept else (w, 0.0)
        if self._by_rows:
            self._sweep(
                lambda start, stop: _core.product_rows(
                    X[start:stop], coef, intercept, out[start:stop]
                )
            )
        else:
            self._sweep(partial(_product_columns, X.T, coef, intercept, out))

    def adjoint(self, c: NDArray[Any]) -> FloatArray:
        X, shape = self.form, (self.p, *c.shape[1:])
        if c.ndim > 1:
            return self._sum(lambda a, b, out: _add_adjoint(X[a:b], c[a:b], out), shape)
        if self._by_rows:
            return self._sum(lambda a, b, out: _core.adjoint_rows(X[a:b], c[a:b], out), shape)
        return self._sum(lambda a, b, out: _core.adjoint_columns(X.T, c, a, b, out), shape)

    def gram_product(self, h: FloatArray, v: FloatArray) -> FloatArray:
        if not self._by_rows:
            return super().gram_product(h, v)
        X = self.form
        coef, intercept = (v[:-1], v[-1]) if self.intercept else (v, 0.0)
        return self._sum(
            lambda a, b, out: _core.gram_product_rows(X[a:b], h[a:b], coef, intercept, out),
            (self.p,),
        )

    def gram(self, h: FloatArray) -> FloatArray:
        X, shape = self.form, (self.p, self.p)
        if self.p <= FEW_PARAMETERS:
            return self._sum(lambda a, b, out: _core.gram_few(X[a:b], h[a:b], out), shape)
        with limit_blas():
            return self._sum(lambda a, b, out: _add_gram(X[a:b], h[a:b], out), shape)

    def gram_diagonal(self, h: FloatArray) -> FloatArray:
        X = self.form
        return self._sum(lambda a, b, out: _core.gram_diagonal(X[a:b], h[a:b], out), (self.p,))

    def block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        X = self.form
        return self._sum(
            lambda a, b, out: _core.block_sums(X[a:b], c[a:b], block[a:b], start, out),
            (stop - start, self.p),
        )

    def column_scale(self) -> FloatArray:
        X = self.form
        parts = self._sweep(lambda start, stop: _column_sizes(X[start:stop]))
        return np.max(parts, axis=0).astype(np.float64)

    def squares(self) -> FloatArray:
        out, X = np.empty(self.n), self.form

        def fill(start: int, stop: int) -> None:
            rows = X[start:stop]
            np.einsum("ij,ij->i", rows, rows, dtype=np.float64, out=out[start:stop])

        self._sweep(fill)
        return out


class DenseEngine(MemoryEngine):
    """Engine for a NumPy array.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> type(sorel.Problem(np.eye(3), [1.0, 2.0, 5.0]).engine).__name__
    'DenseEngine'
    """

    def __init__(self, X: NDArray[Any], spec: Spec) -> None:
        super().__init__(DenseRows(X, spec.fit_intercept), spec)


def _product_columns(
    Xt: NDArray[Any], coef: FloatArray, intercept: float, out: FloatArray, start: int, stop: int
) -> None:
    _core.product_columns(Xt, coef, intercept, start, stop, out)


def _add_gram(X: NDArray[Any], h: FloatArray, out: FloatArray) -> None:
    """out += [X 1]^T diag(h) [X 1], by products of scaled tiles with themselves."""
    size = len(out)
    height = max(_TILE_ROWS, _TILE_SIZE // size)
    tile = np.empty((min(height, len(X)), size))
    # A product of a matrix with itself takes half the time of one of two matrices.
    for sign in (1.0, -1.0):
        rows = np.flatnonzero(sign * h > 0.0)
        roots = np.sqrt(sign * h[rows])
        for first in range(0, len(rows), height):
            last = min(first + height, len(rows))
            _core.scaled_rows(X, roots[first:last], rows, first, last, tile)
            part = tile[: last - first].T @ tile[: last - first]
            if sign > 0.0:
                out += part
            else:
                out -= part


def _column_sizes(X: NDArray[Any]) -> NDArray[Any]:
    """The largest |x_ij| of each column."""
    if not X.flags.c_contiguous:
        return np.maximum(X.max(axis=0), -X.min(axis=0))
    size = np.zeros(X.shape[1])
    _core.column_sizes(X, size)
    return size


def _multiply(X: NDArray[Any], w: FloatArray, margins: FloatArray) -> None:
    """margins = X w, plus the last row of w where it has one more row than X has columns."""
    d = X.shape[1]
    for rows, tile in _doubles(X):
        np.matmul(tile, w[:d], out=margins[rows])
    if len(w) > d:
        _core.add_row(margins, w[d])


def _add_adjoint(X: NDArray[Any], c: FloatArray, out: FloatArray) -> None:
    """out[:d] += X^T c, and the column sums of c below when out has room for them."""
    d = X.shape[1]
    for rows, tile in _doubles(X):
        # The linear algebra library is faster with the narrow factor first.
        out[:d] += (c[rows].T @ tile).T
    if len(out) > d:
        out[d] += np.ones(len(c)) @ c


def _doubles(X: NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    """X in double precision: itself, or rows at a time of which a copy stays in the cache."""
    if X.dtype == np.float64:
        yield slice(None), X
        return
    height = max(1, _TILE_SIZE // X.shape[1])
    for start in range(0, len(X), height):
        yield slice(start, start + height), X[start : start + height].astype(np.float64)
