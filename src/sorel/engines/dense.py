"""Dense X in memory, in C or Fortran order, float64 or float32, read in place.

Read-only and memory-mapped arrays are used as they are: no operation writes to X.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel._threads import Team, background, immediately
from sorel.engines.base import Engine, FloatArray, Spec
from sorel.engines.memory import FEW_COLUMNS, shared_property, sweep_rows
from sorel.engines.sampled import SampledEngine, ScaledColumns
from sorel.engines.views import writable_view
from sorel.kernels import dense, descent

# Numbers in a tile of scaled rows: half a megabyte, so that BLAS finds it in the second cache.
_TILE_SIZE = 65536

# Up to this many outputs the linear algebra library is faster with the narrow factor first: in
# products X^T c, and in those X w with so many columns or more.
_FEW_OUTPUTS, _MANY_COLUMNS = 16, 200

# Bytes of an X of which a copy costs next to nothing.
_FEW_BYTES = 1 << 20

# Bytes of rows that may be copied to make products with them cheaper.
_MAX_COPY = 1 << 30

# Bytes of X from which on a random row is hardly ever in the cache, and of rows that are copied
# ahead of the steps that need them.
_CACHED = 32 << 20
_AHEAD = 1 << 20


class DenseEngine(SampledEngine):
    """Engine for a NumPy array.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> type(sorel.Problem(np.eye(3), [1.0, 2.0, 5.0]).engine).__name__
    'DenseEngine'
    """

    solves_by_rows = True

    def __init__(self, X: NDArray[Any], spec: Spec) -> None:
        super().__init__(X, spec)
        self._X = writable_view(X)
        self._by_rows = self._X.flags.c_contiguous
        self._columns = None if self._by_rows else self._X.T

    def _copy_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        # In the same order, for which the loops are compiled already.
        X = self._X.take(rows, axis=0) if self._by_rows else self._X.T.take(rows, axis=1).T
        return DenseEngine(X, self.spec.for_rows(rows))

    def columns(self, chosen: NDArray[np.intp]) -> Engine:
        # In the same order, for which the loops are compiled already.
        X = self._X.take(chosen, axis=1) if self._by_rows else self._X.T[chosen].T
        other: DenseEngine = self._with_columns(X, X)
        other._columns = None if self._by_rows else X.T
        return other

    def _scaled_columns(self, root: FloatArray) -> ScaledColumns:
        X = np.empty((self.n_features, self.n_samples))
        squares, means = np.zeros(self.n_features), np.zeros(self.n_features)
        descent.scaled_transpose(self._X, root, X, squares, means)
        return ScaledColumns(descent.descend_dense, (X,), squares, means)

    def _split(self, w: FloatArray) -> tuple[FloatArray, float]:
        if self.fit_intercept:
            return w[:-1], w[-1]
        return w, 0.0

    def _each_row(self, kernel: Any, *args: Any) -> None:
        """A loop over the rows of X, which the threads share."""
        if self._row_team is None:
            kernel(*args)
        else:
            sweep_rows(self._row_team, self._weighted, kernel, *args)

    def _margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        if self.n_outputs > 1:
            self._each_row(_multiply, self._X, w, out)
            return
        coef, intercept = self._split(w)
        if self._by_rows:
            self._each_row(dense.product_rows, self._X, coef, intercept, out)
        elif self._row_team is None:
            dense.product_columns(self._columns, coef, intercept, 0, self.n_samples, out)
        else:
            self._row_team.sweep(
                lambda start, stop: dense.product_columns(
                    self._columns, coef, intercept, start, stop, out
                )
            )

    def _adjoint(self, c: NDArray[Any]) -> FloatArray:
        if self.n_outputs > 1:
            return self._accumulate(
                lambda start, stop, out: _add_adjoint(self._X[start:stop], c[start:stop], out),
                self.shape,
            )
        if self._by_rows and self._row_team is None:
            out = np.zeros(self.shape)
            dense.adjoint_rows(self._X, c, out)
            return out
        if self._by_rows:
            return self._accumulate(
                lambda start, stop, out: dense.adjoint_rows(
                    self._X[start:stop], c[start:stop], out
                ),
                self.shape,
            )
        return self._accumulate(
            lambda start, stop, out: dense.adjoint_columns(self._columns, c, start, stop, out),
            self.shape,
        )

    def _gram_product(self, h: FloatArray, v: FloatArray) -> FloatArray:
        if not self._by_rows:
            return super()._gram_product(h, v)
        coef, intercept = self._split(v)
        return self._accumulate(
            lambda start, stop, out: dense.gram_product_rows(
                self._X[start:stop], h[start:stop], coef, intercept, out
            ),
            self.shape,
        )

    @shared_property
    def _column_scale(self) -> FloatArray:
        def largest(start: int, stop: int) -> NDArray[Any]:
            return _column_sizes(self._X[start:stop])

        team = self._row_team
        parts = [largest(0, self.n_samples)] if team is None else team.sweep(largest)
        return np.max(parts, axis=0).astype(np.float64)

    def _select(self, rows: NDArray[np.intp]) -> Any:
        if self.n_outputs > 1:
            # The products of the linear algebra library take no list of rows.
            return self._X[rows] if len(rows) * self._X[:1].nbytes <= _MAX_COPY else None
        # Rows of C order are long enough to jump between them; columns are read whole anyway.
        return rows if self._by_rows else None

    def _margins_of(self, selection: Any, w: FloatArray, out: FloatArray) -> None:
        if self.n_outputs > 1:
            self._team_for(selection).sweep(
                lambda start, stop: _multiply(selection[start:stop], w, out[start:stop])
            )
            return
        coef, intercept = self._split(w)
        self._team_for(selection).sweep(
            lambda start, stop: dense.product_some_rows(
                self._X, selection[start:stop], coef, intercept, out[start:stop]
            )
        )

    def _adjoint_of(self, selection: Any, c: FloatArray) -> FloatArray:
        if self.n_outputs > 1:
            return self._team_for(selection).accumulate(
                lambda start, stop, out: _add_adjoint(selection[start:stop], c[start:stop], out),
                self.shape,
            )
        return self._team_for(selection).accumulate(
            lambda start, stop, out: dense.adjoint_some_rows(
                self._X, selection[start:stop], c[start:stop], out
            ),
            self.shape,
        )

    def _with_square(self, X: FloatArray) -> Engine:
        return DenseEngine(X, self.spec)

    def _row_products(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> FloatArray:
        # All rows, in their order, need no copy.
        every = len(rows) == self.n_samples
        left = np.ascontiguousarray(self._X if every else self._X[rows], np.float64)
        right = left if others is rows else np.ascontiguousarray(self._X[others], np.float64)
        return np.asarray(left @ right.T)

    def _team_for(self, rows: NDArray[np.intp]) -> Team:
        return Team(len(rows), 1 if self._row_team is None else self._row_team.threads)

    def _take_steps(
        self,
        point: Any,
        indices: NDArray[np.int64],
        scale: FloatArray,
        batch: int,
        W: FloatArray,
        sums: FloatArray | None,
        numbers: tuple[Any, ...],
    ) -> None:
        if self._X.nbytes < _CACHED:
            super()._take_steps(point, indices, scale, batch, W, sums, numbers)
            return
        # A step that waits for its row from memory takes several times as long as one that does
        # not: copy rows ahead of the steps, many at a time, in a second thread where there is one.
        d = self.n_features
        height = max(1, _AHEAD // (d * self._X.itemsize * batch)) * batch
        starts = range(0, len(indices) - batch + 1, height)
        room = [np.empty((min(height, len(indices)), d), self._X.dtype) for _ in range(2)]

        def copy(number: int) -> NDArray[Any]:
            start = starts[number]
            rows = indices[start : start + height]
            out = room[number % 2][: len(rows)]
            dense.gather_rows(self._X, rows, out)
            return out

        ahead = background if self._row_team is not None else immediately
        coming = ahead(copy, 0)
        for number, start in enumerate(starts):
            X = coming()
            if number + 1 < len(starts):
                coming = ahead(copy, number + 1)
            rows = indices[start : start + height]
            self._steps.svrg(
                X, self._targets[rows], *self._formula,
                self._slopes_of(point, rows), scale[start : start + height],
                np.arange(len(rows)), batch, W, W if sums is None else sums, sums is not None,
                *numbers,
            )  # fmt: skip

    def _slopes_of(self, point: Any, rows: NDArray[np.int64]) -> FloatArray:
        """Derivatives of the losses of some rows, of shape (rows, outputs)."""
        if self.n_outputs > 1:
            return np.asarray(point.slopes[rows])
        slopes = np.empty(len(rows))
        self._loops.slopes_at(*self._formula, self.y[rows], point.margins[rows], slopes)
        return slopes[:, None]

    def _gram(self, h: FloatArray) -> FloatArray:
        size = self.shape[0]
        if size <= FEW_COLUMNS and self._row_team is None:
            out = np.zeros((size, size))
            _add_small_gram(self._X, h, out)
            return out
        if size <= FEW_COLUMNS:
            return self._accumulate(
                lambda start, stop, out: _add_small_gram(self._X[start:stop], h[start:stop], out),
                (size, size),
            )
        with self.working():
            return self._accumulate(partial(self._add_gram, h), (size, size))

    def _add_gram(self, h: FloatArray, start: int, stop: int, out: FloatArray) -> None:
        size = len(out)
        X, h = self._X[start:stop], h[start:stop]
        rows = np.flatnonzero(h)
        weights = h[rows]
        negative = bool(len(rows)) and float(weights.max()) < 0.0
        # A product of a matrix with itself takes half the time of one of two matrices.
        signed = bool(len(rows)) and float(weights.min()) < 0.0 and not negative
        height = max(1, _TILE_SIZE // size)
        tile = np.empty((height, size))
        plain, ones = (np.empty_like(tile), np.ones(height)) if signed else (tile, tile)
        for first in range(0, len(rows), height):
            last = min(first + height, len(rows))
            scale = weights[first:last] if signed else np.sqrt(np.abs(weights[first:last]))
            dense.scaled_rows(X, scale, rows, first, last, tile)
            if signed:
                dense.scaled_rows(X, ones, rows, first, last, plain)
            part = plain[: last - first].T @ tile[: last - first]
            if negative:
                out -= part
            else:
                out += part

    def _subtract_block_means(
        self, out: FloatArray, point: Any, dual: Any, eta: float, factor: FloatArray | None
    ) -> None:
        small = self.n_outputs == 1 and out.shape[0] <= FEW_COLUMNS and self._row_team is None
        if factor is not None or not small:
            super()._subtract_block_means(out, point, dual, eta, factor)
            return
        sums = np.zeros((dual.n_blocks, out.shape[0] + 1))
        self._loops.subtract_block_means(
            self._X, *self._loss_args, point.margins, dual.block, sums, eta, self._omega,
            self._weighted, out,
        )  # fmt: skip

    def _gram_diagonal(self, h: FloatArray) -> FloatArray:
        return self._accumulate(
            lambda start, stop, out: dense.gram_diagonal(self._X[start:stop], h[start:stop], out),
            (self.shape[0],),
        )

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        return self._accumulate(
            lambda first, last, out: dense.block_sums(
                self._X[first:last], c[first:last], block[first:last], start, out
            ),
            (stop - start, self.shape[0]),
        )


def _column_sizes(X: NDArray[Any]) -> NDArray[Any]:
    """The largest |x_ij| of each column."""
    if X.nbytes < _FEW_BYTES:
        # Along rows NumPy is several times as fast, and the copy is small.
        return np.abs(X.T, order="C").max(axis=1)
    if not X.flags.c_contiguous:
        return np.maximum(X.max(axis=0), -X.min(axis=0))
    size = np.zeros(X.shape[1])
    dense.column_sizes(X, size)
    return size


def _add_small_gram(X: NDArray[Any], h: FloatArray, out: FloatArray) -> None:
    size = len(out)
    tile, scaled = np.empty((size, dense.FEW_TILE)), np.empty((size + 1, dense.FEW_TILE))
    dense.gram_few(X, h, tile, scaled, out)


def _multiply(X: NDArray[Any], w: FloatArray, margins: FloatArray) -> None:
    """margins = X w, plus the last row of w where it has one more row than X has columns."""
    d = X.shape[1]
    if X.dtype == np.float64:
        _product(X, w[:d], margins)
    else:
        for rows in _tiles(X):
            _product(X[rows].astype(np.float64), w[:d], margins[rows])
    if len(w) > d:
        dense.add_row(margins, w[d])


def _product(X: FloatArray, coef: FloatArray, out: FloatArray) -> None:
    if coef.shape[1] <= _FEW_OUTPUTS and len(coef) >= _MANY_COLUMNS:
        out[...] = (coef.T @ X.T).T
    else:
        np.matmul(X, coef, out=out)


def _add_adjoint(X: NDArray[Any], c: FloatArray, out: FloatArray) -> None:
    """out[:d] += X^T c, and the column sums of c below when out has room for them."""
    d = X.shape[1]
    if X.dtype == np.float64:
        out[:d] += _adjoint(X, c)
    else:
        for rows in _tiles(X):
            out[:d] += _adjoint(X[rows].astype(np.float64), c[rows])
    if len(out) > d:
        out[d] += np.ones(len(c)) @ c


def _adjoint(X: FloatArray, c: FloatArray) -> FloatArray:
    return (c.T @ X).T if c.shape[1] <= _FEW_OUTPUTS else X.T @ c


def _tiles(X: NDArray[Any]) -> Iterator[slice]:
    """Rows at a time of which a copy in double precision stays in the cache."""
    height = max(1, _TILE_SIZE // X.shape[1])
    return (slice(start, start + height) for start in range(0, len(X), height))
