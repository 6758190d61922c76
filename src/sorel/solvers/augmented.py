"""Augmented Lagrangian on the weights: the outer loop that the second-order methods share.

With a centre q_k and a step eta, the inner problem

    min_w  Phi(w) = max_q [ q . l(w) - |q - q_k|^2 / (2 eta) ] + g(w)

is convex with a continuous gradient. Its maximiser is one projection, and the projection is
piecewise linear, so Phi has a generalised Hessian: the curvature of the losses under q plus, inside
each block that the projection pools, eta times the covariance of the loss gradients. The centre
then moves to the maximiser. Few centres are needed when eta is large; few Newton steps when it is
small. The step adapts to what the last inner problem cost.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run, Solver

# In units of 1 / (spread of the losses): the step that finds weights for parameters of a similar
# problem, and the one beyond which the rounding of eta * l would reach the weights.
_NEAR_ETA = 10.0
_MAX_ETA = 1e9

# eta grows after an easy inner problem and shrinks after one of many Newton steps. When so many
# steps in a row are cut short, new samples keep joining the ties: eta came too far ahead, goes back
# and grows more slowly for a while.
_HARD, _HOPELESS = 12, 40
_SHORT_STEPS = 2
_SHRINKAGE = 0.3
_LEAST_GROWTH = 2.0
_CAUTION, _CONFIDENCE = 0.3, 1.2

# An inner problem is done when its last step promised less than what the move of the weights has
# gained, or, if that step was cut shorter or more cautious than this, less than this share of it.
_FULL_ENOUGH, _CAUTIOUS, _CUT_SHARE = 0.2, 0.1, 0.03

# A refined certificate costs a Hessian, or many products with it: try it once a Newton step
# promised no more than this multiple of the gap wanted.
_PROMISING = 10.0

# Relative to the objective, changes below this are rounding; so many idle centres end a run.
_ROUNDING = 1e-15
_MAX_IDLE = 4

# Margins that are moved along and along drift away from X w: compute them afresh before the drift
# reaches this share of the tolerance.
_DRIFT = 0.01

# Passes after which a check is made though it will hardly succeed: others may want to step in.
_HEARTBEAT = 50

# Trials of a line search, and how near to an end of its bracket a trial may lie.
_MAX_TRIALS = 15
_SAFEGUARD = 0.03

# After a step cut short the curvature of the losses is taken from parabolas above them, and less so
# after every full step.
_EASE, _NO_CAUTION = 0.1, 1e-3


class Pace(NamedTuple):
    """How fast eta goes ahead, which is a matter of what a Newton step costs at a large eta.

    Attributes
    ----------
    first, warm : float
        First step from uniform weights and from those of a similar problem, in units of
        1 / (spread of the losses).
    growth : float
        Factor after an easy inner problem.
    easy : int
        Newton steps of an easy inner problem, at most.
    full : float
        Length of each of them, at least.
    short : float
        Length below which a step counts as cut short.
    """

    first: float = 4.0
    warm: float = 100.0
    growth: float = 10.0
    easy: int = 3
    full: float = 0.0
    short: float = 0.1


class State:
    """Phi and its gradient at one point, for one centre and one eta (0: the weights stay put)."""

    __slots__ = (
        "center", "dual", "eta", "gradient", "length", "moved", "penalty", "point", "predicted",
        "problem", "value",
    )  # fmt: skip

    def __init__(
        self,
        problem: Problem,
        point: Point,
        center: Dual,
        eta: float,
        dual: Dual | None = None,
    ) -> None:
        engine = problem.engine
        if dual is None:
            dual = engine.ascend(center, point, eta) if eta > 0 else center
        self.problem, self.point, self.center, self.eta = problem, point, center, eta
        self.dual = dual
        self.moved = engine.square_distance(dual, center) / (2 * eta) if eta > 0 else 0.0
        self.penalty = problem.penalty_value(point.w)
        self.value = engine.expected(point, dual) - self.moved + self.penalty
        self.gradient = engine.gradient(point, dual)
        # What the Newton step that led here was to gain (what remains is far less), and the part of
        # it that was taken.
        self.predicted, self.length = np.inf, 1.0

    def fenchel_young(self) -> float:
        """The second bracket of the certificate, up to the choice of the intercept."""
        problem = self.problem
        return problem.penalty.fenchel_young(
            problem.coefficients(self.point.w), -problem.coefficients(self.gradient)
        )


class Direction(NamedTuple):
    """A step, minus the slope of Phi along it, and the decrease that its model predicts."""

    delta: FloatArray
    descent: float
    decrease: float


class AugmentedLagrangian(Solver):
    """Outer loop and line search; a subclass says how to find a direction."""

    pace: ClassVar[Pace] = Pace()

    @abstractmethod
    def direction(self, state: State, run: Run, caution: float) -> Direction:
        """A Newton direction for Phi at the state; see Engine.hessian for `caution`."""

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, pace = problem.engine, self.pace
        point = engine.point(run.w)
        run.passes += 1
        center = run.dual
        warm = run.near or center is not None
        if center is None:
            center = engine.uniform()
            if run.watched:
                yield Iterate(point, center)
        if run.dual is None and run.near:
            center = engine.ascend(center, point, _NEAR_ETA / engine.loss_scale(point))
            center.forget_blocks()
        elif run.dual is None:
            # A step for the plain average brings the losses to their final scale.
            point = self._step(State(problem, point, center, 0.0), run, 1.0).point
        scale = engine.loss_scale(point)
        eta = (pace.warm if warm else pace.first) / scale
        state = State(problem, point, center, eta)
        # Vectors of length n: nothing but the state may hold them.
        del point, center
        run.dual = None
        steps = idle = cuts = moves = 0
        growth, checked = pace.growth, run.passes
        caution, used, shortest, resumed = 0.0, 0.0, 1.0, 0.0
        while not run.exhausted:
            run.latest = Iterate(state.point, state.dual, state.gradient, np.inf)
            unit = problem.unit(state.value)
            target, noise = run.tol * unit, _ROUNDING * unit
            if problem.margin_rounding(unit) * moves > _DRIFT * run.tol:
                fresh = State(problem, engine.point(state.point.w), state.center, eta)
                fresh.predicted, fresh.length = state.predicted, state.length
                state, moves = fresh, 0
            if state.predicted <= _PROMISING * target and run.passes >= resumed:
                reply = yield Iterate(state.point, state.dual, state.gradient, target)
                checked = run.passes
                # No more is spent on certificates in vain than on steps.
                resumed = checked + reply.passes
            elif (
                run.wants_check
                or run.passes > checked + _HEARTBEAT
                or state.fenchel_young() <= target
            ):
                yield Iterate(state.point, state.dual, state.gradient)
                checked = run.passes
            # A step cut short has gained little of what it promised, and a cautious one promised
            # less than there is: both leave work to do.
            share = 1.0 if state.length >= _FULL_ENOUGH and used <= _CAUTIOUS else _CUT_SHARE
            if steps > 0 and state.predicted <= max(share * state.moved, noise):
                run.n_iter += 1
                idle = idle + 1 if max(state.moved, state.predicted) <= noise else 0
                if idle > _MAX_IDLE:
                    break
                if steps <= pace.easy and shortest >= pace.full:
                    eta = min(growth * eta, _MAX_ETA / scale)
                    growth = min(_CONFIDENCE * growth, pace.growth)
                elif steps > _HARD:
                    eta *= _SHRINKAGE
                state.dual.forget_blocks()
                state = State(problem, state.point, state.dual, eta)
                steps = cuts = 0
                shortest = 1.0
            elif steps >= _HOPELESS or cuts >= _SHORT_STEPS:
                eta *= _SHRINKAGE
                growth = max(_CAUTION * growth, _LEAST_GROWTH)
                state = State(problem, state.point, state.center, eta)
                steps = cuts = 0
            used = caution
            state = self._step(state, run, caution)
            shortest = min(shortest, state.length)
            if state.length < pace.short:
                cuts, caution = cuts + 1, 1.0
            else:
                cuts = 0
                caution = _EASE * caution if caution > _NO_CAUTION else 0.0
            steps += 1
            moves += 1
        if not run.exhausted:
            run.note = "rounding errors allow no further progress"
        yield Iterate(state.point, state.dual, state.gradient, np.inf)

    def _step(self, state: State, run: Run, caution: float) -> State:
        """The state after one Newton step with line search."""
        direction = self.direction(state, run, caution)
        point, dual, length = self._line_search(state, direction)
        run.passes += 1
        new = State(state.problem, point, state.center, state.eta, dual)
        new.predicted, new.length = max(direction.decrease, 0.0), length
        return new

    def _line_search(self, state: State, direction: Direction) -> tuple[Point, Dual, float]:
        """A step in (0, 1] near the minimum along the direction, by its derivative.

        Phi is convex and its derivative costs no product with X, so a zero of the derivative is
        the better target: with large eta it has kinks at which a test on values stops short.
        """
        problem, engine = state.problem, state.problem.engine
        delta, descent = direction.delta, direction.descent
        if not descent > 0.0:
            return state.point, state.dual, 1.0
        change = engine.direction(delta)
        # Where the derivative is negative Phi has not yet turned up: safe to stop there.
        safe = 0.0
        low, slope_low, high, slope_high = 0.0, -descent, 1.0, np.inf
        t = 1.0
        enough = 0.5 * max(descent, _ROUNDING * problem.unit(state.value))
        for _ in range(_MAX_TRIALS):
            point = engine.moved(state.point, delta, change, t)
            dual = state.center
            if state.eta > 0:
                dual = engine.ascend(state.center, point, state.eta)
            slope = engine.slope(point, dual, change) + problem.penalty_slope(point.w, delta)
            if slope <= enough and (slope >= -enough or t == 1.0):
                return point, dual, t
            if slope <= 0:
                low, slope_low, safe = t, slope, t
            else:
                high, slope_high = t, slope
            secant = slope_low / (slope_low - slope_high) if slope_high < np.inf else 0.0
            t = low + min(max(secant, _SAFEGUARD), 1.0 - _SAFEGUARD) * (high - low)
            del point, dual  # vectors of length n, which the next trial can take
        if safe == 0.0:
            return state.point, state.dual, 0.0
        point = engine.moved(state.point, delta, change, safe)
        dual = engine.ascend(state.center, point, state.eta) if state.eta > 0 else state.center
        return point, dual, safe
