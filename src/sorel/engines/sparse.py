"""Sparse X in memory: full passes through scipy's CSR products, nothing of X made dense.

Stochastic epochs need single rows at O(nonzeros) a step and are not offered here yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from sorel import kernels
from sorel.engines.base import FloatArray
from sorel.engines.memory import MemoryEngine
from sorel.losses import Loss
from sorel.risks import Risk

# Bytes of rows that may be copied to make products with them cheaper.
_MAX_COPY = 2**30


class SparseEngine(MemoryEngine):
    """Engine for a scipy CSR matrix or array."""

    def __init__(
        self,
        X: Any,
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
        self._X = X
        # A CSC view of the transpose: X^T c without a second copy of the data.
        self._Xt = X.T

    def _margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        np.copyto(out, self._X @ w[: self.n_features])
        if self.fit_intercept:
            out += w[-1]

    def _adjoint(self, c: NDArray[Any]) -> FloatArray:
        out = np.empty(self.shape)
        out[: self.n_features] = self._Xt @ c
        if self.fit_intercept:
            out[-1] = c.sum(axis=0)
        return out

    def _gram(self, h: FloatArray) -> FloatArray:
        d = self.n_features
        out = np.empty((self.shape[0], self.shape[0]))
        out[:d, :d] = (self._Xt @ _scaled_rows(self._X, h)).toarray()
        if self.fit_intercept:
            out[:d, d] = out[d, :d] = self._Xt @ h
            out[d, d] = h.sum()
        return out

    def _gram_diagonal(self, h: FloatArray) -> FloatArray:
        out = np.empty(self.shape[0])
        X = self._X
        if X.has_canonical_format:
            kernels.gram_diagonal_sparse(X.data, X.indices, X.indptr, h, out)
        else:
            # An entry given in parts is squared as a whole.
            out[: self.n_features] = X.power(2).T @ h
        if self.fit_intercept:
            out[-1] = h.sum()
        return out

    def _select(self, rows: NDArray[np.intp]) -> Any:
        # Copying rows costs about one product with them; jumping between them costs more for each.
        X = self._X
        entries = int(np.diff(X.indptr)[rows].sum())
        if entries * (X.data.itemsize + X.indices.itemsize) > _MAX_COPY:
            return None
        return X[rows]

    def _margins_of(self, selection: Any, w: FloatArray, out: FloatArray) -> None:
        np.copyto(out, selection @ w[: self.n_features])
        if self.fit_intercept:
            out += w[-1]

    def _adjoint_of(self, selection: Any, c: FloatArray) -> FloatArray:
        out = np.empty(self.shape)
        out[: self.n_features] = selection.T @ c
        if self.fit_intercept:
            out[-1] = c.sum()
        return out

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        rows = np.flatnonzero((block >= start) & (block < stop))
        indicator = scipy.sparse.csr_array(
            (c[rows], (block[rows] - start, rows)), shape=(stop - start, self.n_samples)
        )
        out = np.empty((stop - start, self.shape[0]))
        out[:, : self.n_features] = (indicator @ self._X).toarray()
        if self.fit_intercept:
            out[:, -1] = indicator.sum(axis=1)
        return out


def _scaled_rows(X: Any, h: FloatArray) -> Any:
    """diag(h) X, sharing the sparsity pattern of X."""
    data = X.data * np.repeat(h, np.diff(X.indptr))
    return scipy.sparse.csr_array((data, X.indices, X.indptr), shape=X.shape)
