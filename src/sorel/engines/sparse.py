"""Sparse X in memory: the three arrays of CSR, read in place, nothing of X made dense.

Full passes cost O(nonzeros). So does a stochastic step, in the nonzeros of its rows: coefficients
that no row touches are brought up to date when one does. Only the simplex penalty, which ties all
coefficients together, makes a step O(d).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sorel import kernels
from sorel.engines.base import FloatArray
from sorel.engines.dense import _writable_view
from sorel.engines.sampled import SampledEngine, Steps
from sorel.losses import Loss
from sorel.risks import Risk


class SparseEngine(SampledEngine):
    """Engine for a scipy CSR matrix or array without repeated entries."""

    _X: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    _steps: ClassVar[Steps] = Steps(
        kernels.svrg_steps_csr,
        kernels.minibatch_steps_csr,
        kernels.prospect_steps_csr,
        kernels.saddle_saga_steps_csr,
    )

    def __init__(
        self,
        X: Any,
        y: NDArray[Any],
        loss: Loss,
        n_outputs: int,
        risk: Risk,
        fit_intercept: bool,
        sample_weight: FloatArray | None,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            X.shape[0], X.shape[1], y, loss, n_outputs, risk, fit_intercept, sample_weight, n_jobs
        )
        self._X = csr_arrays(X)

    def _squared_rows(self) -> FloatArray:
        indptr, _, data = self._X
        out = np.empty(self.n_samples)
        kernels.row_squares_csr(indptr, data, out)
        return out

    def _margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        d = self.n_features
        if self.n_outputs == 1:
            kernels.product_csr(*self._X, w[:d], w[d] if self.fit_intercept else 0.0, out)
        else:
            intercepts = w[d] if self.fit_intercept else np.zeros(self.n_outputs)
            kernels.product_csr_many(*self._X, w[:d], intercepts, out)

    def _adjoint(self, c: NDArray[Any]) -> FloatArray:
        out = np.zeros(self.shape)
        adjoint = kernels.adjoint_csr if self.n_outputs == 1 else kernels.adjoint_csr_many
        adjoint(*self._X, c, out)
        if self.fit_intercept:
            out[-1] = c.sum(axis=0)
        return out

    def _gram(self, h: FloatArray) -> FloatArray:
        d = self.n_features
        out = np.zeros((self.shape[0], self.shape[0]))
        kernels.gram_csr(*self._X, h, out)
        if self.fit_intercept:
            kernels.adjoint_csr(*self._X, h, out[d])
            out[d, d] = h.sum()
        lower = np.tril(out, -1)
        out += lower.T
        return out

    def _gram_diagonal(self, h: FloatArray) -> FloatArray:
        out = np.zeros(self.shape[0])
        kernels.gram_diagonal_csr(*self._X, h, out)
        if self.fit_intercept:
            out[-1] = h.sum()
        return out

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        out = np.zeros((stop - start, self.shape[0]))
        kernels.block_sums_csr(*self._X, c, block, start, out)
        if self.fit_intercept:
            inside = (block >= start) & (block < stop)
            out[:, -1] = np.bincount(block[inside] - start, c[inside], stop - start)
        return out


def csr_arrays(X: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """indptr, indices and data of a CSR matrix, in place, the first two as unsigned numbers."""
    indptr, indices, data = (
        _writable_view(np.ascontiguousarray(part)) for part in (X.indptr, X.indices, X.data)
    )
    return indptr.view(f"u{indptr.itemsize}"), indices.view(f"u{indices.itemsize}"), data
