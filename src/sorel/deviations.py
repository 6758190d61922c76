"""Deviations of residuals without strong convexity: what quantile and rank regression minimise.

    min_w  F(w) = R(u) - share mean(u) + l1 |w|_1 + l2/2 |w|^2,    u = y - X w,    l1, l2 >= 0.

A weighting lam of the samples has the signed weights s = lam - share omega. Where |X^T s| <= l1,

    F* >= s.y,    F(w) - s.y = [R(u) - lam.u] + sum_j [l1 |w_j| - v_j w_j] + l2/2 |w|^2

with v = X^T s: a rigorous bound in which no modulus enters.

Under a risk of two levels this is a linear program (:mod:`sorel.linear_programs`), which is solved
at once where it is small, and after a first approximation where it is not. The approximation, and
all there is under other risks and with l2, comes from runs under a tiny l2. The weighting of such a
run nearly satisfies the condition, and is drawn towards one that satisfies it strictly (s = 0)
until it does; without l1, what X^T sees of it is taken off first.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from sorel.certificate import gap_wanted, relative
from sorel.engines.base import Dual, Engine
from sorel.linear_programs import TailProgram
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

# Entries of X up to which the linear program needs no first approximation, and entries of its first
# round up to which it is solved at all; and the relative gap of the approximation.
_SMALL_PROGRAM, _LARGEST_PROGRAM, _ROUGH = 1e5, 5e5, 1e-3

# A stage that rounding has stopped is followed by one with so many times its l2.
_BACK = 30.0

# A certificate of the original problem is charged for X^T s that is not quite zero where there is
# no l1: as if in a solution no column told more than this many times the spread of y, or what one
# tells in the solution found.
_REACH = 10.0

# X^T s is zero up to rounding below this share of the largest entry of a column.
_ROUNDED = 1e-14

# A step of the weights that stays inside the dual set, in units of 1 / (spread of the losses).
_SHORT = 1e-12

# Up to so many columns their covariance is a matrix, however few rows there are. Eigenvalues below
# this share of the largest are taken for zeros.
_FEW_COLUMNS, _SINGULAR = 1000, 1e-12


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
        Whether the relative gap is at most the tolerance, or the fit is perfect.
    status : str
        One sentence on how the fit ended.
    result : Result or None
        The last run under a tiny l2, if there was one: where the next fit may start.
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
    result: Result | None


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
    search = _Search(_Bounds(problem, l1, l2, center), tol)
    program = None
    if solver == "auto" and l2 == 0.0:
        program = _program(problem, risk, share, l1)
    if program is not None and program.entries <= _SMALL_PROGRAM:
        search.solve_program(program, None)
        program = None
    result, ending = warm_start, ""
    if not search.done:
        result, ending = search.run_stages(program, solver, max_passes, warm_start)
    assert search.best is not None
    best, spent = search.best, f"{search.passes:.4g} passes"
    certified = f"certified relative gap {best.relative_gap:.2g}"
    if not search.done:
        status = f"not converged: {ending}; {certified}, above tol={tol:g}, after {spent}"
    elif best.relative_gap > tol:
        status = f"converged: the fit is perfect, up to {best.gap:.2g}, in {spent}"
    else:
        status = f"converged: {certified} in {spent}"
    return DeviationFit(
        best.w, best.weights, best.objective, best.objective - best.gap, best.gap,
        best.relative_gap, search.passes, search.n_iter, search.done, status, result,
    )  # fmt: skip


def _program(problem: Problem, risk: Risk, share: float, l1: float) -> TailProgram | None:
    """The linear program of a problem that has one, and is of a size for it."""
    n, engine = problem.n_samples, problem.engine
    stored, weight = engine.stored(), engine.spec.sample_weight
    levels = risk.levels(n, weight)
    if stored is None or levels is None or not levels[0] < levels[1]:
        return None
    if engine.n_features > _FEW_COLUMNS:
        return None
    omega = np.ones(n) if weight is None else weight
    program = TailProgram(*stored, omega / omega.sum(), levels, share, l1)
    return program if program.first_entries <= _LARGEST_PROGRAM else None


class _Certified(NamedTuple):
    """F, a bound on its distance to the optimum, that relative to F, and what they belong to."""

    objective: float
    gap: float
    relative_gap: float
    w: FloatArray
    weights: FloatArray


class _Search:
    """The best fit so far, and what was spent on it."""

    def __init__(self, bounds: _Bounds, tol: float) -> None:
        self.bounds, self.tol = bounds, tol
        self.best: _Certified | None = None
        self.passes, self.n_iter = 0.0, 0

    @property
    def done(self) -> bool:
        """Whether the best fit is good enough."""
        if self.best is None:
            return False
        wanted = gap_wanted(self.bounds.problem, self.tol, abs(self.best.objective))
        return self.best.gap <= wanted

    def solve_program(self, program: TailProgram, near: FloatArray | None) -> None:
        """Solve the linear program, and once more for what rounding has left of the residuals."""
        for _ in range(2):
            found = program.solve(near)
            if found is None:
                return
            self._add(found.w, found.weights, found.passes, found.n_iter)
            if self.done:
                return
            near = found.w

    def run_stages(
        self,
        program: TailProgram | None,
        solver: str | Solver,
        max_passes: float,
        warm_start: Result | None,
    ) -> tuple[Result, str]:
        """Minimise under a tiny l2, and under less and less of it; the last run, why it ended."""
        bounds, problem, tol = self.bounds, self.bounds.problem, self.tol
        mu = bounds.l2 if bounds.l2 > 0.0 else bounds.first_l2(tol)
        result, stage_tol = warm_start, _STAGE_SHARE * tol
        for _ in range(_MAX_STAGES):
            with warnings.catch_warnings():
                # Whether the original problem is solved is told at the end.
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.simplefilter("ignore", PrecisionWarning)
                result = solve(
                    problem.with_penalty(_penalty(mu, bounds.l1)), solver,
                    stage_tol if program is None else max(stage_tol, _ROUGH),
                    max_passes - self.passes, warm_start=result,
                )  # fmt: skip
            self._add(result.w, result.weights, result.passes, result.n_iter)
            if result.status.startswith("interrupted"):
                return result, "interrupted"
            if program is not None:
                self.solve_program(program, result.w)
                program = None
            if self.done:
                break
            if self.passes >= max_passes:
                return result, f"max_passes={max_passes:g} reached"
            if bounds.l2 > 0.0:
                break
            if not result.converged:
                # Too little to hold on to: the next stage starts near this one's answer.
                mu *= _BACK
                continue
            square = float(np.vdot(result.w, result.w))
            assert self.best is not None
            mu = min(0.01 * mu, _L2_SHARE * tol * self.best.objective / max(square, 1e-300))
            if not mu > 0.0:
                break
        assert result is not None
        return result, "rounding errors allow no further progress"

    def _add(self, w: FloatArray, weights: FloatArray, passes: float, n_iter: int) -> None:
        self.passes, self.n_iter = self.passes + passes, self.n_iter + n_iter
        with self.bounds.problem.engine.working():
            fit = self.bounds.certify(w, weights)
        if self.best is None or fit.gap < self.best.gap or np.isnan(self.best.gap):
            self.best = fit


def _penalty(l2: float, l1: float) -> Penalty:
    return ElasticNet(l2, l1) if l1 > 0.0 else L2(l2)


class _Matrix:
    """A covariance matrix."""

    def __init__(self, matrix: FloatArray) -> None:
        self.diagonal = np.diag(matrix)
        self._root = _roots(self.diagonal)
        self._matrix = matrix / np.outer(self._root, self._root)

    def solve(self, slope: FloatArray) -> FloatArray:
        """A vector whose image is nearest to a vector of slopes."""
        found = np.linalg.lstsq(self._matrix, slope / self._root, rcond=_SINGULAR)[0]
        return np.asarray(found / self._root)


class _Spectrum:
    """The covariance M^T M of many columns, by the eigenvectors that are not in its null space."""

    def __init__(self, factor: FloatArray) -> None:
        self.diagonal = np.einsum("ij,ij->j", factor, factor)
        self._root = _roots(self.diagonal)
        factor /= self._root
        # The factor is as large as X: none of it is copied, or kept.
        vectors, roots, _ = scipy.linalg.svd(
            factor.T, full_matrices=False, overwrite_a=True, check_finite=False
        )
        kept = roots**2 > _SINGULAR * roots[0] ** 2
        self._values, self._vectors = roots[kept] ** 2, vectors[:, kept]

    def solve(self, slope: FloatArray) -> FloatArray:
        """A vector whose image is nearest to a vector of slopes."""
        parts = (slope / self._root) @ self._vectors / self._values
        return np.asarray(self._vectors @ parts / self._root)


def _roots(squares: FloatArray) -> FloatArray:
    """Standard deviations, by which columns of unequal size are made equal; 1 for constant ones."""
    return np.where(squares > 0.0, np.sqrt(np.maximum(squares, 0.0)), 1.0)


class _Bounds:
    """F and its lower bounds, for the penalties that the user gave."""

    def __init__(self, problem: Problem, l1: float, l2: float, center: FloatArray | None) -> None:
        self.problem, self.l1, self.l2 = problem, l1, l2
        engine = problem.engine.for_run()
        start = engine.point(np.zeros(engine.shape))
        # Deviations from the mean at w = 0: the size of y, if it has any.
        self.spread = problem.loss_scale(start)
        scale = engine.column_scale()
        self._scale = np.ones(engine.shape) if scale is None else np.where(scale > 0.0, scale, 1.0)
        self._center = center
        self._held: _Matrix | _Spectrum | None = None

    def first_l2(self, tol: float) -> float:
        """An l2 that costs next to nothing, by the sizes of y and of the columns of X."""
        squares = self._covariance().diagonal
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
            dual = engine.dual_step(engine.uniform(), point, _SHORT / self.spread)
            factor = None
            if engine.n_features > max(_FEW_COLUMNS, engine.n_samples):
                factor = engine.curvature(point, dual, 1.0).factor()
            if factor is None:
                self._held = _Matrix(engine.curvature(point, dual, 1.0).matrix())
            else:
                self._held = _Spectrum(factor)
        return self._held

    def certify(self, w: FloatArray, weights: FloatArray) -> _Certified:
        """The certificate of coefficients with a weighting, or with one near it that proves more.

        A deviation is not negative, and 0 only for a perfect fit: F is the unit of its gap.
        """
        engine = self.problem.engine.for_run()
        point = engine.point(w)
        dual, _ = engine.nearest_dual(weights)
        objective = engine.risk(point) + self._penalty_value(w)
        gap, dual = self._gap(engine, point, w, dual)
        if self._center is None and gap > objective:
            gap, dual = objective, engine.uniform()
        share = relative(gap, abs(objective))
        return _Certified(objective, gap, share, w, engine.weights(dual))

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
                slope = -engine.gradient(point, dual)
            terms = np.maximum(self.l1 * np.abs(w) - slope * w, 0.0)
        else:
            if np.any(np.abs(slope) > _ROUNDED * self._scale):
                change = engine.direction(self._covariance().solve(slope))
                dual = corrected(engine, dual, change, center)
                slope = -engine.gradient(point, dual)
            reach = _REACH * max(float((self._scale * np.abs(w)).max()), self.spread)
            terms = reach * np.abs(slope) / self._scale
        return engine.shortfall(point, dual) + float(terms.sum()), dual


def corrected(engine: Engine, dual: Dual, change: FloatArray, center: Dual) -> Dual:
    """q less a direction of margins, which loses its mean first, drawn into the dual set.

    It is drawn towards `center`, a weighting inside the set: the uniform one, or any one if the
    risk has two levels.
    """
    omega, inside = engine.weights(engine.uniform()), engine.weights(center)
    move = engine.weights(dual) - inside - omega * (change - omega @ change)
    return engine.nearest_dual(inside + _share_inside(engine, move, inside, omega) * move)[0]


def _share_inside(engine: Engine, move: FloatArray, center: FloatArray, omega: FloatArray) -> float:
    """The largest t <= 1, up to rounding, for which the weights center + t move are in the set."""
    risk = engine.spec.risk.risk if isinstance(engine.spec.risk, Deviation) else engine.spec.risk
    levels = risk.levels(engine.n_samples, engine.spec.sample_weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        if levels is not None:
            room = np.where(move > 0.0, levels[1] * omega - center, center - levels[0] * omega)
            shares = room / np.abs(move)
        else:
            # The top of the order may not hold more than the risk puts there.
            order = np.argsort(-np.divide(move, omega, out=np.zeros_like(move), where=omega > 0.0))
            reach = np.minimum(np.cumsum(omega[order]), 1.0)
            held = np.cumsum(move[order])
            # All samples together hold nothing, up to rounding.
            counts = held > 1e-13 * held.max()
            shares = (risk.tail(reach[counts]) - reach[counts]) / held[counts]
    shares = shares[np.isfinite(shares) & (shares >= 0.0)]
    return min(1.0, float(shares.min(initial=1.0)) * (1.0 - 1e-14))
