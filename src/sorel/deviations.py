"""Deviations of residuals without strong convexity: what quantile and rank regression minimise.

    min_w  F(w) = R(u) - share mean(u) + l1 |w|_1 + l2/2 |w|^2,    u = y - X w,    l1, l2 >= 0.

A weighting lam of the samples has the signed weights s = lam - share omega. Where |X^T s| <= l1,

    F* >= s.y,    F(w) - s.y = [R(u) - lam.u] + sum_j [l1 |w_j| - v_j w_j] + l2/2 |w|^2

with v = X^T s: a rigorous bound in which no modulus enters. The weighting of a run under a tiny l2
nearly satisfies the condition, and is drawn towards one that satisfies it strictly (s = 0) until it
does; without l1, what X^T sees of it is taken off first.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from sorel.engines.base import Dual, Engine
from sorel.losses import Linear
from sorel.penalties import L2, ElasticNet, Penalty
from sorel.problem import Problem
from sorel.risks import Deviation, Risk
from sorel.solve import ConvergenceWarning, PrecisionWarning, Result, solve
from sorel.solvers import Solver

__all__ = ["DeviationFit", "minimize_deviation"]

FloatArray = NDArray[np.float64]

# The l2 that stands in for none: it may cost these shares of the tolerance, by what is known of w
# before the first stage and after each. Each stage has the third share of the tolerance; there are
# so many at most.
_FIRST, _L2_SHARE, _STAGE_SHARE = 0.1, 0.1, 0.3
_MAX_STAGES = 8

# A stage that rounding has stopped is followed by one with so many times its l2.
_BACK = 30.0

# A certificate of the original problem is charged for X^T s that is not quite zero where there is
# no l1: as if a solution were no longer than this many times the one found.
_REACH = 10.0

# A step of the weights that stays inside the dual set, in units of 1 / (spread of the losses).
_SHORT = 1e-12

# Up to so many columns their covariance is a matrix, however few rows there are. Eigenvalues below
# this share of the largest are taken for zeros.
_FEW_COLUMNS, _SINGULAR = 1000, 1e-12

# The gap is measured against F, but never against less than this share of the spread of y.
_FLOOR = 1e-6


@dataclass(frozen=True)
class DeviationFit:
    """What :func:`minimize_deviation` found.

    Attributes
    ----------
    w : array of length d
        Coefficients.
    weights : array of length n
        lam, which certifies them.
    objective, dual, gap, relative_gap : float
        F(w), a lower bound on the optimum, their difference, and that relative to F(w).
    passes : float
        Passes over the data.
    n_iter : int
        Outer iterations.
    converged : bool
        Whether the relative gap is at most the tolerance.
    status : str
        One sentence on how the fit ended.
    result : Result
        The last run, under the tiny l2: where the next fit may start.
    """

    w: FloatArray
    weights: FloatArray
    objective: float
    dual: float
    gap: float
    relative_gap: float
    passes: float
    n_iter: int
    converged: bool
    status: str
    result: Result


def minimize_deviation(
    X: Any,
    y: FloatArray,
    risk: Risk,
    *,
    share: float = 1.0,
    l1: float = 0.0,
    l2: float = 0.0,
    sample_weight: FloatArray | None = None,
    center: FloatArray | None = None,
    tol: float = 1e-6,
    max_passes: float = 1000,
    solver: str | Solver = "auto",
    n_jobs: int | None = None,
    warm_start: Result | None = None,
) -> DeviationFit:
    """Minimise the deviation of the residuals y - X w, to a certified relative gap.

    Parameters
    ----------
    X, y, sample_weight, n_jobs
        As :class:`sorel.Problem` takes them.
    risk : Risk
        A spectral risk.
    share : float, default=1.0
        How much of the mean is taken off.
    l1, l2 : float, default=0.0
        Penalties on w; both may be 0.
    center : array of length n, optional
        A weighting with X^T (lam - share omega) = 0; the sample weights when not given, which have
        that property under ``share=1``.
    tol, max_passes, solver
        As :func:`sorel.solve` takes them.
    warm_start : Result, optional
        The ``result`` of a similar fit.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.deviations import minimize_deviation
    >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0]]), np.array([1.0, 2.0, 3.0, 3.0])
    >>> fit = minimize_deviation(X, y, CVaR(0.5))
    >>> fit.w.round(6), fit.converged
    (array([1.]), True)
    """
    shift = float(np.average(y, weights=sample_weight)) if share == 1.0 else 0.0
    # Only differences of residuals count: take off what would cost digits.
    problem = Problem(
        X,
        y - shift,
        risk=Deviation(risk, share),
        loss=Linear(),
        penalty=L2(1.0),
        sample_weight=sample_weight,
        n_jobs=n_jobs,
    )
    bounds = _Bounds(problem, l1, l2, center)
    mu = l2 if l2 > 0.0 else bounds.first_l2(tol)
    passes, n_iter, best, reason = 0.0, 0, None, ""
    result = warm_start
    for _ in range(_MAX_STAGES):
        stage = problem.with_penalty(_penalty(mu, l1))
        with warnings.catch_warnings():
            # Whether the original problem is solved is told at the end.
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", PrecisionWarning)
            result = solve(
                stage, solver, _STAGE_SHARE * tol, max_passes - passes, warm_start=result
            )
        passes, n_iter = passes + result.passes, n_iter + result.n_iter
        with problem.engine.working():
            fit = bounds.certify(result, tol)
        if best is None or fit[2] < best[2]:
            best = fit
        reason = result.status
        interrupted = result.status.startswith("interrupted")
        if best[3] <= tol or l2 > 0.0 or passes >= max_passes or interrupted:
            break
        if not result.converged:
            # Too little to hold on to: the next stage starts near this one's answer.
            mu *= _BACK
            continue
        square = float(np.vdot(result.w, result.w))
        mu = min(0.01 * mu, _L2_SHARE * tol * bounds.unit(best[0]) / max(square, 1e-300))
        if not mu > 0.0:
            break
    assert best is not None
    assert result is not None
    objective, dual, gap, relative, w, weights = best
    converged = relative <= tol
    status = f"certified relative gap {relative:.2g} in {passes:.4g} passes"
    status = f"converged: {status}" if converged else f"not converged: {status} ({reason})"
    return DeviationFit(
        w, weights, objective, dual, gap, relative, passes, n_iter, converged, status, result
    )


def _penalty(l2: float, l1: float) -> Penalty:
    return ElasticNet(l2, l1) if l1 > 0.0 else L2(l2)


class _Matrix:
    """A covariance matrix."""

    def __init__(self, matrix: FloatArray) -> None:
        self._matrix = matrix

    def diagonal(self) -> FloatArray:
        return np.diag(self._matrix)

    def solve(self, slope: FloatArray) -> FloatArray:
        """The least of the vectors whose image is nearest to a vector of slopes."""
        return np.asarray(np.linalg.lstsq(self._matrix, slope, rcond=_SINGULAR)[0])


class _Spectrum:
    """The covariance M^T M of many columns, by the eigenvectors that are not in its null space."""

    def __init__(self, factor: FloatArray) -> None:
        # The factor is as large as X: none of it is copied, or kept.
        vectors, roots, _ = scipy.linalg.svd(
            factor.T, full_matrices=False, overwrite_a=True, check_finite=False
        )
        kept = roots**2 > _SINGULAR * roots[0] ** 2
        self._values, self._vectors = roots[kept] ** 2, vectors[:, kept]

    def diagonal(self) -> FloatArray:
        return np.asarray(np.einsum("jk,jk,k->j", self._vectors, self._vectors, self._values))

    def solve(self, slope: FloatArray) -> FloatArray:
        """The least of the vectors whose image is nearest to a vector of slopes."""
        return np.asarray(self._vectors @ (slope @ self._vectors / self._values))


class _Bounds:
    """F and its lower bounds, for the penalties that the user gave."""

    def __init__(self, problem: Problem, l1: float, l2: float, center: FloatArray | None) -> None:
        self.problem, self.l1, self.l2 = problem, l1, l2
        engine = problem.engine.for_run()
        start = engine.point(np.zeros(engine.shape))
        # Deviations from the mean at w = 0: the size of y, if it has any.
        self.spread = engine.loss_scale(start)
        self._center = center
        self._held: _Matrix | _Spectrum | None = None

    def unit(self, objective: float) -> float:
        return max(abs(objective), _FLOOR * self.spread)

    def first_l2(self, tol: float) -> float:
        """An l2 that costs next to nothing, by the sizes of y and of the columns of X."""
        squares = self._covariance().diagonal()
        squares = squares[squares > 0.0]
        square = float(squares.mean()) if len(squares) else 1.0
        return _FIRST * tol * square / self.spread

    def _covariance(self) -> _Matrix | _Spectrum:
        """The covariance of the columns of X under the sample weights."""
        if self._held is None:
            engine = self.problem.engine.for_run()
            point = engine.point(np.zeros(engine.shape))
            # A step too short to reach the boundary of the dual set pools all samples in one block,
            # and inside a block the Hessian is a covariance of the gradients of the losses.
            dual = engine.ascend(engine.uniform(), point, _SHORT / self.spread)
            factor = None
            if engine.n_features > max(_FEW_COLUMNS, engine.n_samples):
                factor = engine.curvature(point, dual, 1.0).factor()
            if factor is None:
                self._held = _Matrix(engine.hessian(point, dual, 1.0))
            else:
                self._held = _Spectrum(factor)
        return self._held

    def certify(
        self, result: Result, tol: float
    ) -> tuple[float, float, float, float, FloatArray, FloatArray]:
        """F, its bound, their gap and relative gap, with the coefficients and the weighting."""
        engine, w = self.problem.engine.for_run(), result.w
        point = engine.point(w)
        dual, _ = engine.nearest_dual(result.weights)
        objective = engine.risk(point) + self._penalty_value(w)
        gap, dual = self._gap(engine, point, w, dual)
        # A deviation is never negative.
        if self._center is None and gap > objective:
            gap, dual = objective, engine.uniform()
        return (
            objective, objective - gap, gap, gap / self.unit(objective), w, engine.weights(dual),
        )  # fmt: skip

    def _penalty_value(self, w: FloatArray) -> float:
        return self.l1 * float(np.abs(w).sum()) + 0.5 * self.l2 * float(np.vdot(w, w))

    def _gap(self, engine: Engine, point: Any, w: FloatArray, dual: Dual) -> tuple[float, Dual]:
        slope = -engine.gradient(point, dual)
        if self.l2 > 0.0:
            penalty = _penalty(self.l2, self.l1)
            return engine.shortfall(point, dual) + penalty.fenchel_young(w, slope), dual
        center = engine.uniform()
        if self._center is not None:
            center, _ = engine.nearest_dual(self._center)
        if self.l1 > 0.0:
            top = float(np.abs(slope).max())
            if top > self.l1:
                dual = engine.blend(center, dual, self.l1 / top * (1.0 - 1e-15))
        else:
            change = engine.direction(self._covariance().solve(slope))
            dual = engine.corrected(dual, change, center)
        slope = -engine.gradient(point, dual)
        if self.l1 > 0.0:
            terms = np.maximum(self.l1 * np.abs(w) - slope * w, 0.0)
        else:
            terms = np.abs(slope) * _REACH * max(float(np.abs(w).max()), 1e-300)
        return engine.shortfall(point, dual) + float(terms.sum()), dual
