"""Dense X in memory, in C or Fortran order, float64 or float32, read in place.

Read-only and memory-mapped arrays are used as they are: no operation writes to X.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel import kernels
from sorel.engines.base import Dual, FloatArray, Point
from sorel.engines.memory import FEW_COLUMNS
from sorel.engines.sampled import SampledEngine
from sorel.losses import Loss
from sorel.risks import Risk

# Rows that the Gram matrix of few columns takes at a time.
_FEW_TILE = 128

# Numbers in a tile of scaled rows: half a megabyte, so that BLAS finds it in the second cache.
_TILE_SIZE = 65536


class DenseEngine(SampledEngine):
    """Engine for a NumPy array."""

    def __init__(
        self,
        X: NDArray[Any],
        y: NDArray[Any],
        loss: Loss,
        n_outputs: int,
        risk: Risk,
        fit_intercept: bool,
        sample_weight: FloatArray | None,
    ) -> None:
        super().__init__(
            X.shape[0], X.shape[1], y, loss, n_outputs, risk, fit_intercept, sample_weight
        )
        self._X = _writable_view(X)
        self._by_rows = self._X.flags.c_contiguous
        self._columns = None if self._by_rows else self._X.T

    def point(self, w: FloatArray) -> Point:
        if self.n_outputs > 1 or not self._by_rows:
            return super().point(w)
        point = self._new_point(w)
        coef, intercept = self._split(point.w)
        kernels.evaluate_rows(
            self._X, coef, intercept, *self._loss_args, point.margins, point.losses, point.slopes
        )
        return point

    def _split(self, w: FloatArray) -> tuple[FloatArray, float]:
        if self.fit_intercept:
            return w[:-1], w[-1]
        return w, 0.0

    def _margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        if self.n_outputs == 1:
            coef, intercept = self._split(w)
            if self._by_rows:
                kernels.product_rows(self._X, coef, intercept, out)
            else:
                kernels.product_columns(self._columns, coef, intercept, out)
            return
        kernels.product_many(self._X, w, out)

    def _adjoint(self, c: NDArray[Any]) -> FloatArray:
        out = np.empty(self.shape)
        if self.n_outputs == 1:
            if self._by_rows:
                kernels.adjoint_rows(self._X, c, out)
            else:
                kernels.adjoint_columns(self._columns, c, out)
        else:
            kernels.adjoint_many(self._X, c, out)
        return out

    def _select(self, rows: NDArray[np.intp]) -> Any:
        # Rows of C order are long enough to jump between them; columns are read whole anyway.
        return rows if self._by_rows else None

    def _margins_of(self, selection: Any, w: FloatArray, out: FloatArray) -> None:
        kernels.product_some_rows(self._X, selection, *self._split(w), out)

    def _adjoint_of(self, selection: Any, c: FloatArray) -> FloatArray:
        out = np.empty(self.shape)
        kernels.adjoint_some_rows(self._X, selection, c, out)
        return out

    def _gram(self, h: FloatArray) -> FloatArray:
        size = self.shape[0]
        out = np.zeros((size, size))
        if size <= FEW_COLUMNS:
            tile, scaled = np.empty((size, _FEW_TILE)), np.empty((size + 1, _FEW_TILE))
            kernels.gram_few(self._X, h, tile, scaled, out)
            return out
        rows = np.flatnonzero(h)
        height = max(1, _TILE_SIZE // size)
        tile = np.empty((height, size))
        signed = bool(len(rows)) and float(h.min()) < 0.0
        scale = h if signed else np.sqrt(h)
        plain, ones = (np.empty_like(tile), np.ones_like(h)) if signed else (tile, h)
        for start in range(0, len(rows), height):
            stop = min(start + height, len(rows))
            kernels.scaled_rows(self._X, scale, rows, start, stop, tile)
            if signed:
                kernels.scaled_rows(self._X, ones, rows, start, stop, plain)
            out += plain[: stop - start].T @ tile[: stop - start]
        return out

    def _subtract_block_means(
        self, out: FloatArray, point: Point, dual: Dual, eta: float, factor: FloatArray | None
    ) -> None:
        if factor is not None or self.n_outputs > 1 or out.shape[0] > FEW_COLUMNS:
            super()._subtract_block_means(out, point, dual, eta, factor)
            return
        kernels.subtract_block_means(
            self._X, point.slopes, dual.block, dual.n_blocks, eta, self._omega, self._weighted, out
        )

    def _gram_diagonal(self, h: FloatArray) -> FloatArray:
        out = np.empty(self.shape[0])
        kernels.gram_diagonal(self._X, h, out)
        return out

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        out = np.empty((stop - start, self.shape[0]))
        kernels.block_sums(self._X, c, block, start, out)
        return out


class _SameMemory:
    """The memory of an array, declared writable; keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.owner = array
        interface = dict(np.asarray(array).__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _writable_view(X: NDArray[Any]) -> NDArray[Any]:
    """The same memory as a plain array that is formally writable.

    Numba compiles each loop again for read-only arrays; the loops here never write to X, so the
    flag would only cost compile time.
    """
    if X.flags.writeable and type(X) is np.ndarray:
        return X
    return np.asarray(_SameMemory(X))
