"""Sparse X in memory: the three arrays of CSR, read in place, nothing of X made dense.

Full passes cost O(nonzeros). So does a stochastic step, in the nonzeros of its rows: coefficients
that no row touches are brought up to date when one does. Only the simplex penalty, which ties all
coefficients together, makes a step O(d).
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from sorel._threads import Team, thread_count
from sorel.engines.base import Engine, FloatArray, Plan, Spec
from sorel.engines.csr import checked_csr, index_arrays
from sorel.engines.dense import DenseEngine
from sorel.engines.memory import WORTH_SHARING_X, shared_property
from sorel.engines.sampled import SampledEngine, ScaledColumns, Steps
from sorel.kernels import descent, sparse, sparse_steps
from sorel.penalties import SIMPLEX

# Operations that a step takes for one entry of its row, which brings a coefficient up to date.
_ENTRY_WORK = 20

# Bytes of rows that may be copied to make products with them cheaper.
_MAX_COPY = 2**30


class SparseEngine(SampledEngine):
    """Engine for a scipy sparse matrix or array.

    Parameters
    ----------
    X : sparse matrix or array
        Read in place where it is CSR without repeated entries.
    spec : Spec
        The rest of the problem.
    checked : bool, default=False
        Whether X comes from :func:`sorel.engines.csr.checked_csr`, and need not be looked at again.

    Examples
    --------
    >>> import scipy.sparse, sorel
    >>> type(sorel.Problem(scipy.sparse.eye_array(3), [1.0, 2.0, 5.0]).engine).__name__
    'SparseEngine'
    """

    solves_by_rows = True
    _X: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    _steps: ClassVar[Steps] = Steps(
        sparse_steps.svrg_steps_csr,
        sparse_steps.minibatch_steps_csr,
        sparse_steps.prospect_steps_csr,
        sparse_steps.saddle_saga_steps_csr,
    )

    def __init__(self, X: Any, spec: Spec, *, checked: bool = False) -> None:
        if not checked:
            X = checked_csr(X)
        self._X = csr_arrays(X)
        super().__init__(X, spec)

    @property
    def entries(self) -> int:
        return len(self._X[2])

    def _share_rows(self) -> None:
        super()._share_rows()
        self._rows = _CsrRows(self._X, 1)
        indptr = self._X[0]
        entries = int(indptr[-1])
        if entries >= WORTH_SHARING_X:
            self._rows = _CsrRows(self._X, thread_count(self.spec.n_jobs))

    def _copy_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        indptr, indices, data = self._rows.select(rows).arrays
        X = scipy.sparse.csr_array((data, indices, indptr), shape=(len(rows), self.n_features))
        return SparseEngine(X, self.spec.for_rows(rows), checked=True)

    def columns(self, chosen: NDArray[np.intp]) -> Engine:
        X = self._matrix[:, chosen]
        other: SparseEngine = self._with_columns(X, csr_arrays(X))
        return other

    def _scaled_columns(self, root: FloatArray) -> ScaledColumns:
        X = self._matrix.tocsc()
        data = X.data * root[X.indices]
        X = scipy.sparse.csc_array((data, X.indices, X.indptr), shape=X.shape)
        squares = np.asarray(X.power(2).sum(axis=0)).ravel()
        return ScaledColumns(
            descent.descend_sparse, (X.indptr, X.indices, data), squares, X.T @ root
        )

    def _row_work(self, plan: Plan) -> int:
        entries = -(-len(self._X[2]) // self.n_samples)
        # Only the simplex ties a step to all coefficients.
        everywhere = self.size if plan.penalty.code == SIMPLEX else 0
        return _ENTRY_WORK * self.n_outputs * (1 + entries) + 3 * everywhere

    def _squared_rows(self) -> FloatArray:
        indptr, _, data = self._X
        out = np.empty(self.n_samples)
        sparse.row_squares_csr(indptr, data, out)
        return out

    def _margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        self._margins_of(self._rows, w, out)

    def _adjoint(self, c: NDArray[Any]) -> FloatArray:
        return self._adjoint_of(self._rows, c)

    @shared_property
    def _column_scale(self) -> FloatArray:
        _, indices, data = self._X
        out = np.zeros(self.n_features)
        sparse.column_maxima_csr(indices, data, out)
        return out

    def _gram(self, h: FloatArray) -> FloatArray:
        d = self.n_features
        out = self._rows.accumulate(sparse.gram_csr, (h,), (self.shape[0], self.shape[0]))
        if self.fit_intercept:
            out[d] = self._adjoint_of(self._rows, h)
        lower = np.tril(out, -1)
        out += lower.T
        return out

    def _gram_diagonal(self, h: FloatArray) -> FloatArray:
        out = self._rows.accumulate(sparse.gram_diagonal_csr, (h,), (self.shape[0],))
        if self.fit_intercept:
            out[-1] = h.sum()
        return out

    def _with_square(self, X: FloatArray) -> Engine:
        return DenseEngine(X, self.spec)

    def _row_products(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> FloatArray:
        left = self._matrix[rows].astype(np.float64)
        right = left if others is rows else self._matrix[others].astype(np.float64)
        return np.asarray((left @ right.T).toarray())

    def _select(self, rows: NDArray[np.intp]) -> Any:
        # Copying rows costs about one product with them; jumping between them costs more for each.
        indptr, indices, data = self._X
        entries = int((indptr[rows + 1] - indptr[rows]).sum())
        if entries * (data.itemsize + indices.itemsize) > _MAX_COPY:
            return None
        return self._rows.select(rows)

    def _margins_of(self, selection: Any, w: FloatArray, out: NDArray[Any]) -> None:
        d = self.n_features
        if w.ndim == 1:
            selection.product(sparse.product_csr, w[:d], w[d] if self.fit_intercept else 0.0, out)
        else:
            intercepts = w[d] if self.fit_intercept else np.zeros(self.n_outputs)
            selection.product(sparse.product_csr_many, w[:d], intercepts, out)

    def _adjoint_of(self, selection: Any, c: NDArray[Any]) -> FloatArray:
        kernel = sparse.adjoint_csr if c.ndim == 1 else sparse.adjoint_csr_many
        out = selection.accumulate(kernel, (c,), (self.shape[0], *c.shape[1:]))
        if self.fit_intercept:
            out[-1] = c.sum(axis=0)
        return np.asarray(out)

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        shape = (stop - start, self.shape[0])
        out = self._rows.accumulate(sparse.block_sums_csr, (c, block), shape, start)
        if self.fit_intercept:
            inside = (block >= start) & (block < stop)
            out[:, -1] = np.bincount(block[inside] - start, c[inside], stop - start)
        return out


class _CsrRows:
    """Rows in CSR, shared among threads so that each has about as many entries."""

    def __init__(self, arrays: tuple[NDArray[Any], ...], threads: int) -> None:
        self.arrays = arrays
        indptr = arrays[0]
        n = len(indptr) - 1
        self.team = Team(n, threads)
        if threads > 1:
            shares = np.linspace(0, int(indptr[-1]), threads + 1)[1:-1]
            cuts = np.unique([0, *np.searchsorted(indptr, shares).tolist(), n]).tolist()
            self.team.ranges = list(itertools.pairwise(cuts))

    def product(self, kernel: Any, w: FloatArray, intercept: Any, out: NDArray[Any]) -> None:
        """out = X w + intercept."""
        indptr, indices, data = self.arrays
        self.team.sweep(
            lambda start, stop: kernel(
                indptr[start : stop + 1], indices, data, w, intercept, out[start:stop]
            )
        )

    def accumulate(
        self, kernel: Any, vectors: tuple[Any, ...], shape: tuple[int, ...], *more: Any
    ) -> FloatArray:
        """The sum over the rows of what a loop adds up, given vectors with an entry per row."""
        indptr, indices, data = self.arrays
        return self.team.accumulate(
            lambda start, stop, out: kernel(
                indptr[start : stop + 1], indices, data, *(v[start:stop] for v in vectors), *more,
                out,
            ),
            shape,
        )  # fmt: skip

    def select(self, rows: NDArray[np.intp]) -> _CsrRows:
        """A copy of some of the rows."""
        indptr, indices, data = self.arrays
        new_indptr = np.zeros(len(rows) + 1, indptr.dtype)
        np.cumsum(indptr[rows + 1] - indptr[rows], out=new_indptr[1:])
        entries = int(new_indptr[-1])
        new_indices, new_data = np.empty(entries, indices.dtype), np.empty(entries, data.dtype)
        chosen = _CsrRows((new_indptr, new_indices, new_data), self.team.threads)
        chosen.team.sweep(
            lambda start, stop: sparse.select_csr(
                indptr, indices, data, rows[start:stop], new_indptr[start : stop + 1],
                new_indices, new_data,
            )
        )  # fmt: skip
        return chosen


def csr_arrays(X: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """indptr, indices and data of a CSR matrix as the loops take them, in place where they can."""
    return (*index_arrays(X), np.ascontiguousarray(X.data))
