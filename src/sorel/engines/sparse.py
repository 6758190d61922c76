"""Sparse X in memory: the three arrays of CSR, read in place, nothing of X made dense.

Full passes cost O(nonzeros). So does a stochastic step, in the nonzeros of its rows: coefficients
that no row touches are brought up to date when one does. Only the simplex penalty, which ties all
coefficients together, makes a step O(d).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel._lib.threads import Team
from sorel.engines.base import FloatArray, Spec
from sorel.engines.csr import checked_csr, index_arrays
from sorel.engines.matrix import MAX_COPY, RowMatrix
from sorel.engines.memory import MemoryEngine


class CsrRows(RowMatrix):
    """Products with an X in CSR; threads have about as many entries each."""

    def __init__(self, X: Any, intercept: bool) -> None:
        super().__init__(X.shape, intercept)
        self._X = X
        self.form = (*index_arrays(X), np.require(X.data, None, ["C", "A"]))
        self.entries = int(self.form[0][-1])

    @property
    def array(self) -> Any:
        return self._X

    def _make_team(self, threads: int) -> Team:
        team, indptr = Team(self.n, threads), self.form[0]
        if threads > 1:
            shares = np.linspace(0, self.entries, threads + 1)[1:-1]
            cuts = np.unique([0, *np.searchsorted(indptr, shares).tolist(), self.n]).tolist()
            team.ranges = list(itertools.pairwise(cuts))
        return team

    def select(self, rows: NDArray[np.intp]) -> CsrRows | None:
        indptr, indices, data = self.form
        counts = indptr[rows + 1] - indptr[rows]
        if int(counts.sum()) * (data.itemsize + indices.itemsize) > MAX_COPY:
            return None
        return self._like(CsrRows(self._X[rows], self.intercept))

    def columns(self, chosen: NDArray[np.intp]) -> CsrRows:
        return self._like(CsrRows(self._X[:, chosen], self.intercept))

    def margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        indptr, indices, data = self.form
        intercept: Any = w[self.d] if self.intercept else np.zeros(w.shape[1:])
        kernel = _core.product_csr_many if w.ndim > 1 else _core.product_csr
        if w.ndim == 1:
            intercept = float(intercept)
        coef = w[: self.d]
        self._sweep(
            lambda start, stop: kernel(
                indptr[start : stop + 1], indices, data, coef, intercept, out[start:stop]
            )
        )

    def _accumulate(
        self, kernel: Any, vectors: tuple[Any, ...], shape: tuple[int, ...], *more: Any
    ) -> FloatArray:
        """The sum over the rows of what a loop adds up, given vectors with an entry per row."""
        indptr, indices, data = self.form
        return self._sum(
            lambda start, stop, out: kernel(
                indptr[start : stop + 1], indices, data, *(v[start:stop] for v in vectors), *more,
                out,
            ),
            shape,
        )  # fmt: skip

    def adjoint(self, c: NDArray[Any]) -> FloatArray:
        kernel = _core.adjoint_csr if c.ndim == 1 else _core.adjoint_csr_many
        out = self._accumulate(kernel, (c,), (self.p, *c.shape[1:]))
        if self.intercept:
            out[-1] = c.sum(axis=0)
        return out

    def gram(self, h: FloatArray) -> FloatArray:
        out = self._accumulate(_core.gram_csr, (h,), (self.p, self.p))
        if self.intercept:
            out[-1] = self.adjoint(h)
        out += np.tril(out, -1).T
        return out

    def gram_diagonal(self, h: FloatArray) -> FloatArray:
        out = self._accumulate(_core.gram_diagonal_csr, (h,), (self.p,))
        if self.intercept:
            out[-1] = h.sum()
        return out

    def block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        out = self._accumulate(_core.block_sums_csr, (c, block), (stop - start, self.p), start)
        if self.intercept:
            inside = (block >= start) & (block < stop)
            out[:, -1] = np.bincount(block[inside] - start, c[inside], stop - start)
        return out

    def column_scale(self) -> FloatArray:
        _, indices, data = self.form
        out = np.zeros(self.d)
        _core.column_maxima_csr(indices, data, out)
        return out

    def squares(self) -> FloatArray:
        return np.asarray(self._X.astype(np.float64).power(2).sum(axis=1)).ravel()


class SparseEngine(MemoryEngine):
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

    def __init__(self, X: Any, spec: Spec, *, checked: bool = False) -> None:
        rows = CsrRows(X if checked else checked_csr(X), spec.fit_intercept)
        super().__init__(rows, spec)
