"""Deviations of residuals without strong convexity: what quantile and rank regression minimise.

For quantiles see Koenker and Bassett (1978), for ranks Jaeckel (1972).

    min_w  F(w) = R(u) - share mean(u) + l1 |w|_1 + l2/2 |w|^2,    u = y - X w,    l1, l2 >= 0.

A weighting lam of the samples has the signed weights s = lam - share omega. Where |X^T s| <= l1,

    F* >= s.y,    F(w) - s.y = [R(u) - lam.u] + sum_j [l1 |w_j| - v_j w_j] + l2/2 |w|^2

with v = X^T s: a rigorous bound in which no modulus enters.

Under a risk of two levels this is a linear program (`linear_programs.py`), which is solved
at once where it is small, and after a first approximation where it is not. The approximation, and
all there is under other risks and with l2, comes from runs under a tiny l2. The weighting of such a
run nearly satisfies the condition, and is drawn towards one that satisfies it strictly (s = 0)
until it does; without l1, what X^T sees of it is taken off first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.certificate import gap_wanted, relative
from sorel.certificate.rounding import ROUNDINGS
from sorel.engines.base import Dual, Engine, Point
from sorel.models.conjugate import minimize_model
from sorel.problem.losses import Linear
from sorel.problem.penalties import L2, ElasticNet, Penalty
from sorel.problem.problem import Problem
from sorel.problem.risks import Deviation, Risk
from sorel.solvers import Solver
from sorel.solvers.linear_programs import TailProgram
from sorel.solvers.solve import Result, solve_quietly

FloatArray = NDArray[np.float64]

# Share of the tolerance that the l2 which stands in for none may cost, and the run under it.
_STAGE_SHARE = 0.1

# Runs at most.
_MAX_STAGES = 8

# Entries of its first round up to which the linear program is solved (seconds of HiGHS).
_LARGEST_PROGRAM = 5e5

# Relative gap of the first approximation to the solution of a linear program.
_ROUGH = 1e-3

# Without l1 a certificate is charged for X^T s that is not quite zero: as if in a solution no
# column told more than this many times the spread of y, or what one tells in the solution found.
_REACH = 10.0


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
        A :class:`sorel.Deviation`, or a spectral risk that the mean is taken off.
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
    >>> from sorel.solvers.deviations import minimize_deviation
    >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0]]), np.array([1.0, 2.0, 3.0, 3.0])
    >>> fit = minimize_deviation(X, y, CVaR(0.5))
    >>> fit.w.round(6), fit.converged
    (array([1.]), True)
    """
    deviation = risk if isinstance(risk, Deviation) else Deviation(risk)
    risk, share = deviation.risk, deviation.share
    shift = float(np.average(y, weights=sample_weight)) if share == 1.0 else 0.0
    # Only differences of residuals count: take off what would cost digits.
    problem = Problem(
        X, y - shift, risk=deviation, loss=Linear(), penalty=L2(1.0),
        sample_weight=sample_weight, n_jobs=n_jobs,
    )  # fmt: skip
    search = _PenaltySearch(problem, l1, l2, center, tol)
    program = _program(problem, risk, share, l1) if solver == "auto" and l2 == 0.0 else None
    if program is not None and program.is_small:
        search.solve_program(program, None)
        program = None
    result, ending = warm_start, ""
    if not search.done:
        result, ending = search.run_stages(program, solver, max_passes, warm_start)
    assert search.best is not None
    objective, gap, w, weights = search.best
    share, spent = relative(gap, abs(objective)), f"{search.passes:.4g} passes"
    certified = f"certified relative gap {share:.2g}"
    if not search.done:
        status = f"not converged: {ending}; {certified}, above tol={tol:g}, after {spent}"
    elif share > tol:
        status = f"converged: the fit is perfect, up to {gap:.2g}, in {spent}"
    else:
        status = f"converged: {certified} in {spent}"
    return DeviationFit(
        w, weights, objective, objective - gap, gap, share, search.passes, search.n_iter,
        search.done, status, result,
    )  # fmt: skip


def _program(problem: Problem, risk: Risk, share: float, l1: float) -> TailProgram | None:
    """The linear program of a problem that has one, and is of a size for it."""
    n, stored, weight = problem.n_samples, problem.engine.stored(), problem.sample_weight
    levels = risk.levels(n, weight)
    if stored is None or levels is None or not levels[0] < levels[1]:
        return None
    omega = np.ones(n) if weight is None else weight
    program = TailProgram(*stored, omega / omega.sum(), levels, share, l1)
    # Many columns are many rows of the program.
    tall = problem.n_features <= n and program.first_entries <= _LARGEST_PROGRAM
    return program if program.is_small or tall else None


class _Certified(NamedTuple):
    """F, a bound on its distance to the optimum, and what they belong to."""

    objective: float
    gap: float
    w: FloatArray
    weights: FloatArray


class _PenaltySearch:
    """The best fit so far under the penalties of the user, and what was spent on it."""

    def __init__(
        self, problem: Problem, l1: float, l2: float, center: FloatArray | None, tol: float
    ) -> None:
        self.problem, self.l1, self.l2, self.tol = problem, l1, l2, tol
        self._center = center
        self._engine = engine = problem.engine.for_run()
        scale = engine.column_scale()
        self._scale = np.ones(engine.shape) if scale is None else np.where(scale > 0.0, scale, 1.0)
        self._zero = engine.point(np.zeros(engine.shape))
        # Deviations from the mean at w = 0: the size of y, if it has any.
        self._spread = problem.loss_scale(self._zero)
        self._covariance: FloatArray | None = None
        self.best: _Certified | None = None
        self.passes, self.n_iter = 0.0, 0

    @property
    def done(self) -> bool:
        """Whether the best fit is good enough.

        A deviation is not negative, and 0 only for a perfect fit: F is the unit of its gap.
        """
        if self.best is None:
            return False
        return self.best.gap <= gap_wanted(self.problem, self.tol, abs(self.best.objective))

    def solve_program(self, program: TailProgram, start: FloatArray | None) -> None:
        """Solve the linear program, and once more for what rounding has left of the residuals."""
        for _ in range(2):
            found = program.solve(start)
            if found is None:
                return
            self.add(found.w, found.weights, found.passes, found.n_iter)
            if self.done:
                return
            start = found.w

    def run_stages(
        self,
        program: TailProgram | None,
        solver: str | Solver,
        max_passes: float,
        result: Result | None,
    ) -> tuple[Result, str]:
        """Minimise under a tiny l2, and under less and less of it; the last run, why it ended."""
        mu = self.l2 if self.l2 > 0.0 else self._first_l2()
        ending = "rounding errors allow no further progress"
        for _ in range(_MAX_STAGES):
            result, _complaint = solve_quietly(
                self.problem.with_penalty(_penalty(mu, self.l1)),
                solver,
                _STAGE_SHARE * self.tol if program is None else max(self.tol, _ROUGH),
                max_passes - self.passes,
                warm_start=result,
            )
            best = self.add(result.w, result.weights, result.passes, result.n_iter)
            if result.status.startswith("interrupted"):
                return result, "interrupted"
            if program is not None:
                self.solve_program(program, result.w)
                program = None
            if self.done:
                break
            if self.passes >= max_passes:
                return result, f"max_passes={max_passes:g} reached"
            if self.l2 > 0.0:
                break
            if not result.converged:
                # Too little to hold on to: the next run starts near this one's answer.
                mu /= _STAGE_SHARE
                continue
            square = float(np.vdot(result.w, result.w))
            mu = min(0.01 * mu, _STAGE_SHARE * self.tol * best.objective / max(square, 1e-300))
            if not mu > 0.0:
                break
        assert result is not None
        return result, ending

    def _first_l2(self) -> float:
        """An l2 that costs next to nothing, by the sizes of y and of the columns of X."""
        squares = self._engine.curvature(*self._pooled()).diagonal()
        squares = squares[squares > 0.0]
        square = float(squares.mean()) if len(squares) else 1.0
        return _STAGE_SHARE * self.tol * square / self._spread

    def _pooled(self) -> tuple[Point, Dual, float]:
        """Where the Hessian is the covariance of the columns of X under the sample weights.

        A step too short to reach the boundary of the dual set pools all samples in one block, and
        inside a block the Hessian is a covariance of the gradients of the losses.
        """
        short = ROUNDINGS / self._spread
        return self._zero, self._engine.dual_step(self._engine.uniform(), self._zero, short), 1.0

    def add(self, w: FloatArray, weights: FloatArray, passes: float, n_iter: int) -> _Certified:
        """Certify coefficients with a weighting near the given one; return the best so far."""
        self.passes, self.n_iter = self.passes + passes, self.n_iter + n_iter
        engine = self._engine
        with self.problem.engine.working():
            point, (dual, _) = engine.point(w), engine.nearest_dual(weights)
            penalty = self.l1 * float(np.abs(w).sum()) + 0.5 * self.l2 * float(np.vdot(w, w))
            objective = engine.risk(point) + penalty
            gap, dual = self._gap(engine, point, dual)
            if self._center is None and gap > objective:
                gap, dual = objective, engine.uniform()
        if self.best is None or not gap >= self.best.gap:
            self.best = _Certified(objective, gap, w, engine.weights(dual))
        return self.best

    def _gap(self, engine: Engine, point: Point, dual: Dual) -> tuple[float, Dual]:
        """The gap of a weighting near the given one for which there is one."""
        w, slope = point.w, -engine.gradient(point, dual)
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
            return engine.shortfall(point, dual) + float(terms.sum()), dual
        change = engine.direction(self._explain(slope))
        other = corrected(engine, dual, change, center)
        pairs = (dual, slope), (other, -engine.gradient(point, other))
        reach = _REACH * max(float((self._scale * np.abs(w)).max()), self._spread)
        gaps = [
            engine.shortfall(point, q) + reach * float((np.abs(s) / self._scale).sum())
            for q, s in pairs
        ]
        # What X^T sees of rounding errors is not taken off by more of them.
        return min(zip(gaps, (dual, other), strict=True), key=lambda pair: pair[0])

    def _explain(self, slope: FloatArray) -> FloatArray:
        """A vector whose image under the covariance of the columns is nearest to the slopes."""
        curvature = self._engine.curvature(*self._pooled())
        if slope.size > self._engine.n_samples:
            # The covariance has no more eigenvalues than there are rows: few products do.
            return minimize_model(
                curvature,
                np.zeros_like(slope),
                -slope,
                enough=lambda left, *_: left <= ROUNDINGS**2,
                max_products=2 * self._engine.n_samples,
                precondition=lambda r: r / self._scale**2,
            ).step
        if self._covariance is None:
            self._covariance = curvature.matrix()
        squares = np.diag(self._covariance)
        # Columns of unequal size are made equal.
        root = np.where(squares > 0.0, np.sqrt(np.maximum(squares, 0.0)), 1.0)
        matrix = self._covariance / np.outer(root, root)
        return np.asarray(np.linalg.lstsq(matrix, slope / root, rcond=1e-12)[0] / root)


def _penalty(l2: float, l1: float) -> Penalty:
    return ElasticNet(l2, l1) if l1 > 0.0 else L2(l2)


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
