"""Augmented Lagrangian on the weights, semismooth Newton in w.

With a centre q_k and a step eta, the inner problem

    min_w  Phi(w) = max_q [ q . l(w) - |q - q_k|^2 / (2 eta) ] + g(w)

is convex with a continuous gradient. Its maximiser is one projection, and the projection is
piecewise linear, so Phi has a generalised Hessian: the curvature of the losses under q plus, inside
each block that the projection pools, eta times the covariance of the loss gradients. The centre
then moves to the maximiser. Few centres are needed when eta is large; few Newton steps when it is
small. The step adapts to what the last inner problem cost.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem import Problem
from sorel.quadratic import minimize_quadratic
from sorel.solvers.base import Iterate, Iterates, Run, Solver, UnsupportedProblemError

# Beyond this many parameters the p x p Hessian costs more than it gains.
MAX_SIZE = 5000

# First step of the weights, in units of 1 / (spread of the losses), and its bounds: above the
# last, the rounding of eta * l would reach the weights.
_FIRST_ETA = 4.0
_MAX_ETA = 1e9

# eta grows after an inner problem of few Newton steps, and shrinks after one of many.
_EASY, _HARD, _HOPELESS = 3, 12, 40
_GROWTH, _SHRINKAGE = 10.0, 0.25

# A refined certificate costs a Hessian: try it once a Newton step promised no more than this
# multiple of the gap wanted.
_PROMISING = 10.0

# With this many rows for each parameter a Hessian estimated from them steers well enough.
_ROWS_PER_PARAMETER = 100
_LEAST_ROWS = 10_000

# Relative to the objective, changes below this are rounding.
_ROUNDING = 1e-15
_MAX_IDLE = 4
_MAX_TRIALS = 12


class Newton(Solver):
    """Second-order method for problems with up to a few thousand parameters.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> sorel.solve(problem, solver=sorel.solvers.Newton(), tol=1e-9).converged
    True
    """

    name: ClassVar[str] = "newton"

    def check(self, problem: Problem) -> None:
        size = int(np.prod(problem.engine.shape))
        if size > MAX_SIZE:
            raise UnsupportedProblemError(
                f"solver 'newton' builds a {size} x {size} matrix and takes at most {MAX_SIZE} "
                "parameters; use solver='sorel' or 'auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine = problem.engine
        point = engine.point(run.w)
        run.passes += 1
        center = run.dual
        if center is None:
            center = engine.uniform()
            # A Newton step for the plain average brings the losses to their final scale.
            point = _State(problem, point, center, 0.0, center).newton_step(run).point
        scale = engine.loss_scale(point)
        eta = _FIRST_ETA / scale
        state = _State.at(problem, point, center, eta)
        steps = idle = 0
        while not run.exhausted:
            target = run.tol * problem.unit(state.value)
            if state.predicted <= _PROMISING * target:
                yield Iterate(state.point, state.dual, state.gradient, target)
            elif state.fenchel_young() <= target:
                yield Iterate(state.point, state.dual, state.gradient)
            noise = _ROUNDING * problem.unit(state.value)
            if steps > 0 and state.predicted <= max(state.moved, noise):
                run.n_iter += 1
                idle = idle + 1 if state.moved <= noise and state.predicted <= noise else 0
                if idle > _MAX_IDLE:
                    break
                if steps <= _EASY:
                    eta = min(_GROWTH * eta, _MAX_ETA / scale)
                elif steps > _HARD:
                    eta *= _SHRINKAGE
                state = _State.at(problem, state.point, state.dual, eta)
                steps = 0
            elif steps >= _HOPELESS:
                eta *= _SHRINKAGE
                state = _State.at(problem, state.point, state.center, eta)
                steps = 0
            state = state.newton_step(run)
            steps += 1
        if not run.exhausted:
            run.note = "rounding errors allow no further progress"
        yield Iterate(state.point, state.dual, state.gradient, np.inf)


class _State:
    """Phi, its gradient and its Newton step at one point."""

    def __init__(
        self, problem: Problem, point: Point, center: Dual, eta: float, dual: Dual
    ) -> None:
        engine = problem.engine
        self.problem, self.point, self.center, self.eta = problem, point, center, eta
        self.dual = dual
        self.moved = engine.square_distance(dual, center) / (2 * eta) if eta > 0 else 0.0
        self.value = engine.expected(point, dual) - self.moved + problem.penalty_value(point.w)
        self.gradient = engine.gradient(point, dual)
        # What the Newton step that led here was to gain: what remains is far less.
        self.predicted = np.inf

    @classmethod
    def at(cls, problem: Problem, point: Point, center: Dual, eta: float) -> _State:
        return cls(problem, point, center, eta, problem.engine.ascend(center, point, eta))

    def fenchel_young(self) -> float:
        problem = self.problem
        return problem.penalty.fenchel_young(
            problem.coefficients(self.point.w), -problem.coefficients(self.gradient)
        )

    def newton_step(self, run: Run) -> _State:
        """The state after one Newton step with line search."""
        problem, engine, w = self.problem, self.problem.engine, self.point.w
        n_rows = max(_ROWS_PER_PARAMETER * w.size, _LEAST_ROWS)
        hessian = engine.hessian(self.point, self.dual, self.eta, n_rows)
        gradient = self.gradient.ravel()
        u, _ = minimize_quadratic(
            hessian,
            gradient,
            w.ravel(),
            problem.penalty,
            problem.coefficients(w).size,
            engine.n_outputs,
        )
        step = u - w.ravel()
        delta = step.reshape(engine.shape)
        gain = problem.penalty_value(w) - problem.penalty_value(u.reshape(engine.shape))
        descent = gain - float(gradient @ step)
        run.passes += 2
        point, dual = self._line_search(delta, descent)
        new = _State(problem, point, self.center, self.eta, dual)
        new.predicted = max(descent - 0.5 * float(step @ (hessian @ step)), 0.0)
        return new

    def _line_search(self, delta: FloatArray, descent: float) -> tuple[Point, Dual]:
        """A step in (0, 1] near the minimum along the direction, by its derivative.

        Phi is convex and its derivative costs no product with X, so a zero of the derivative is
        the better target: with large eta it has kinks at which a test on values stops short.
        """
        engine = self.problem.engine
        direction = engine.direction(delta)
        low, slope_low, high, slope_high = 0.0, -descent, 1.0, np.inf
        t = 1.0
        enough = 0.5 * max(descent, _ROUNDING * self.problem.unit(self.value))
        for _ in range(_MAX_TRIALS):
            point = engine.moved(self.point, delta, direction, t)
            dual = self.center
            if self.eta > 0:
                dual = engine.ascend(self.center, point, self.eta)
            slope = engine.slope(point, dual, direction) + self._penalty_slope(point.w, delta)
            if slope <= enough and (slope >= -enough or t == 1.0):
                break
            if slope > 0:
                high, slope_high = t, slope
            else:
                low, slope_low = t, slope
            secant = slope_low / (slope_low - slope_high) if slope_high < np.inf else 0.0
            t = low + min(max(secant, 0.05), 0.95) * (high - low)
        return point, dual

    def _penalty_slope(self, w: FloatArray, delta: FloatArray) -> float:
        penalty = self.problem.penalty
        coef, move = self.problem.coefficients(w), self.problem.coefficients(delta)
        slope = penalty.l2 * float(np.vdot(coef, move))
        l1 = getattr(penalty, "l1", 0.0)
        if l1:
            slope += l1 * float(np.vdot(np.sign(coef), move) + np.abs(move[coef == 0]).sum())
        return slope
