"""The linear program of deviations of residuals under a two-level risk, such as CVaR.

The dual set is a box cut by a plane, in densities q_i = lam_i / omega_i. With u = y - X w,

    min_w  R(u) - share mean(u) + l1 |w|_1  =  max_q  sum_i omega_i (q_i - share) y_i,
        |X^T omega (q - share)| <= l1,    sum_i omega_i q_i = 1,    low <= q_i <= high,

which has one row per column of X, and w as the multipliers of these rows (for quantiles: Koenker
2005, section 6.2). HiGHS solves it by the dual simplex method.

Samples far from the threshold of the tail have a density of `low` or `high`. Those on one side
enter the program as one sample, their sum (Portnoy and Koenker 1997, preprocessing). The value
never exceeds the optimum, and is the optimum once none of these samples changes sides. Where some
do, the step of the program leads downhill all the same: a part of it is taken, and twice as many
samples near the new threshold enter the next round by themselves.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse.linalg import LinearOperator, lsmr

FloatArray = NDArray[np.float64]

# Samples per parameter that enter the first round by themselves. Each round doubles them.
_SAMPLES_PER_PARAMETER = 5

# Entries of X that enter the first round in any case: about 10 ms of HiGHS.
_FEW_ENTRIES = 10_000

# Lengths of a step, the first of which that lowers the deviation is taken.
_LENGTHS = 0.5 ** np.arange(10)

# What HiGHS allows residuals and rows of the program to be off, where residuals have a mean size of
# 1 and columns a largest entry of 1. Its default is 1e-7, its least 1e-10.
_TOLERANCE = 1e-9


class ProgramSolution(NamedTuple):
    """Coefficients, the weighting lam that belongs to them, iterations, and passes over X."""

    w: FloatArray
    weights: FloatArray
    n_iter: int
    passes: int


class TailProgram:
    """The program of one problem, for X in memory.

    Parameters
    ----------
    X, y : array of shape (n, d) or CSR, array of length n
        Samples.
    omega : array of length n
        Sample weights that add up to 1.
    levels : (low, high)
        Bounds on the densities; see :meth:`sorel.risks.Risk.levels`.
    share : float
        How much of the mean is taken off.
    l1 : float
        Penalty on w.
    """

    def __init__(
        self,
        X: Any,
        y: FloatArray,
        omega: FloatArray,
        levels: tuple[float, float],
        share: float,
        l1: float,
    ) -> None:
        self._X, self._y, self._omega, self._share, self._l1 = X, y, omega, share, l1
        self._low, self._high = levels
        # Nonzero entries of X, and in the samples that enter the first round by themselves.
        self.entries = int(X.nnz if scipy.sparse.issparse(X) else np.count_nonzero(X))
        n, d = X.shape
        few = _FEW_ENTRIES * n // max(self.entries, 1)
        self._first_count = min(n, max(few, _SAMPLES_PER_PARAMETER * (d + 1)))
        self.first_entries = self.entries * self._first_count / n

    @property
    def is_small(self) -> bool:
        """Whether the program is solved faster than a first approximation is found."""
        # With l1 the start from least squares takes many rounds.
        entries = self.entries if self._l1 > 0.0 else self.first_entries
        return entries <= _FEW_ENTRIES

    def solve(self, start: FloatArray | None = None) -> ProgramSolution | None:
        """The optimum; None if HiGHS does not find it.

        Parameters
        ----------
        start : array of length d, optional
            Coefficients to start from; those of least squares, where it is not given.
        """
        n = len(self._y)
        count, n_iter, passes = self._first_count, 0, 0
        w = start
        if w is None:
            w, passes = self._least_squares() if count < n else (np.zeros(self._X.shape[1]), 0)
        excess = self._excess(w)
        alone = _least(np.abs(excess), count)
        while True:
            passes += 1
            size = float(self._omega @ np.abs(excess) + self._l1 * np.abs(w).sum())
            if not size > 0.0:
                return ProgramSolution(w, self._omega, n_iter, passes)
            # A number for those above, for those below, and for each that enters by itself.
            group = np.where(excess > 0.0, 0, 1)
            group[alone] = 2 + np.arange(np.count_nonzero(alone))
            sums = scipy.sparse.csr_array((n * self._omega, (group, np.arange(n))))
            found = self._step(sums @ self._X, sums @ (excess / size), sums.sum(axis=1), w / size)
            if found is None:
                return None
            delta, threshold, density, spent = found
            n_iter += spent
            delta, threshold = size * delta, size * threshold
            change = self._X @ delta + threshold
            moved = excess - change
            wrong = ~alone & (moved * excess < 0.0) & (np.abs(moved) > _TOLERANCE * size)
            if not wrong.any():
                return ProgramSolution(w + delta, self._omega * density[group], n_iter, passes)
            # The program does not see the samples that change sides: shorten its step.
            value = self._deviation(excess, 0.0, w)
            for t in _LENGTHS:
                if self._deviation(excess - t * change, t * threshold, w + t * delta) < value:
                    w = w + t * delta
                    excess = self._excess(w)
                    break
            count *= 2
            alone = _least(np.abs(excess), count)

    @cached_property
    def _shift(self) -> FloatArray:
        """The middle of each column that has one sign; what varies is then not lost beside it."""
        least, most = self._range
        return np.where((least > 0.0) | (most < 0.0), 0.5 * least + 0.5 * most, 0.0)

    @cached_property
    def _scale(self) -> FloatArray:
        """The largest size in each column less its shift."""
        least, most = self._range
        largest = np.maximum(most - self._shift, self._shift - least)
        return np.where(largest > 0.0, largest, 1.0)

    @cached_property
    def _range(self) -> tuple[FloatArray, FloatArray]:
        """The least and the largest entry of each column."""
        least, most = self._X.min(axis=0), self._X.max(axis=0)
        if scipy.sparse.issparse(self._X):
            least, most = least.toarray(), most.toarray()
        return np.ravel(least).astype(np.float64), np.ravel(most).astype(np.float64)

    def _least_squares(self) -> tuple[FloatArray, int]:
        """Coefficients near those of least squares with an intercept, and iterations."""
        X, shift, scale = self._X, self._shift, self._scale

        def product(w: FloatArray) -> FloatArray:
            coef = w[:-1] / scale
            return np.asarray(X @ coef - shift @ coef + w[-1])

        def adjoint(v: FloatArray) -> FloatArray:
            return np.append((X.T @ v - shift * v.sum()) / scale, v.sum())

        system = LinearOperator((len(self._y), len(scale) + 1), product, adjoint, dtype=np.float64)
        found = lsmr(system, self._y)
        return found[0][:-1] / scale, int(found[2])

    def _excess(self, w: FloatArray) -> FloatArray:
        """Residuals less the threshold where their tail begins."""
        residual = self._y - self._X @ w
        order = np.argsort(residual)
        below = (self._high - 1.0) / (self._high - self._low)
        place = int(np.searchsorted(np.cumsum(self._omega[order]), below))
        return np.asarray(residual - residual[order[min(place, len(order) - 1)]])

    def _deviation(self, excess: FloatArray, threshold: float, w: FloatArray) -> float:
        """The objective, up to a constant, where residuals exceed the threshold by so much."""
        density = np.where(excess > 0.0, self._high, self._low) - self._share
        penalty = self._l1 * float(np.abs(w).sum())
        return (1.0 - self._share) * threshold + float(self._omega @ (density * excess)) + penalty

    def _step(
        self, rows: Any, targets: FloatArray, weights: FloatArray, w: FloatArray
    ) -> tuple[FloatArray, float, FloatArray, int] | None:
        """What to add to w, the threshold, the densities, and iterations; for weighted sums."""
        n, d = self._X.shape
        count = len(targets)
        low = np.full(count, self._low - self._share)
        high = np.full(count, self._high - self._share)
        shift, scale, total = self._shift, self._scale, n * (1.0 - self._share)
        if scipy.sparse.issparse(rows):
            moved = rows - scipy.sparse.csr_array(np.outer(weights, shift)) if shift.any() else rows
            A = scipy.sparse.hstack([moved / scale, weights[:, None]], format="csr").T
        else:
            moved = (rows - np.outer(weights, shift)) / scale
            A = scipy.sparse.csr_array(np.column_stack([moved, weights])).T
        if self._l1 > 0.0:
            # X^T omega (q - share) is a variable of its own.
            A = scipy.sparse.hstack([A, -scipy.sparse.eye_array(d + 1, d)], format="csc")
            targets, limit = np.append(targets, w * scale), n * self._l1 / scale
            low, high = np.append(low, -limit), np.append(high, limit)
        found = linprog(
            -targets,
            A_eq=A,
            b_eq=np.append(-total * shift / scale, total),
            bounds=np.column_stack([low, high]),
            method="highs-ds",
            options={
                "presolve": False,
                "primal_feasibility_tolerance": _TOLERANCE,
                "dual_feasibility_tolerance": _TOLERANCE,
            },
        )
        if found.status != 0:
            return None
        multipliers = -found.eqlin.marginals
        delta = multipliers[:-1] / scale
        threshold = float(multipliers[-1] - shift @ delta)
        return delta, threshold, found.x[:count] + self._share, int(found.nit)


def _least(values: FloatArray, count: int) -> NDArray[np.bool_]:
    """Which values are the least so many, with those that equal the next one."""
    if count >= len(values):
        return np.ones(len(values), dtype=bool)
    return np.asarray(values <= np.partition(values, count)[count])
