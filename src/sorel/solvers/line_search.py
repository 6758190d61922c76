"""A line search on the derivative of a convex function.

A convex function falls towards its minimum along a line and rises beyond it. So two lengths bracket
the minimum, and a safeguarded secant through their derivatives gives the next trial (as for roots:
Brent 1973, chapter 4). The derivative of the augmented Lagrangian costs no product with X, and with
a large eta it has kinks at which a test on values would stop short.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sorel.certificate import noise, unit
from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem.penalties import Penalty

if TYPE_CHECKING:
    from sorel.solvers.state import Direction, State

# Trials at most. After a quarter of them each is at the geometric mean of the bracket: where
# margins of 1e7 meet an exponential, the derivatives at its ends are too unlike for a secant.
MAX_TRIALS = 64

# How near to an end of its bracket a trial may lie, as a share of the bracket.
_SAFEGUARD = 0.03

# How much longer a step may become at a time, and how much shorter one after which losses overflow.
_MAX_STRETCH = 10.0


def next_length(
    t: float,
    slope: float,
    low: float,
    slope_low: float,
    high: float,
    slope_high: float,
    limit: float,
) -> tuple[float, float, float, float, float]:
    """The length to try after t, and the bracket with its derivatives, given the derivative at t.

    Where the function still falls at the far end of the bracket the step becomes longer, up to a
    limit; elsewhere the trial takes the place of the end on its side of the minimum.

    Examples
    --------
    >>> from sorel.solvers.line_search import next_length
    >>> next_length(1.0, 1.0, 0.0, -1.0, 1.0, float("inf"), 4.0)[0]
    0.5
    """
    if slope < 0.0 and t == high:
        stretch = slope_low / (slope_low - slope) if slope_low < slope else math.inf
        longer = min(min(max(stretch, 2.0), _MAX_STRETCH) * t, limit)
        return longer, t, slope, longer, slope_high
    if slope <= 0.0:
        low, slope_low = t, slope
    else:
        high, slope_high = t, slope
    secant = slope_low / (slope_low - slope_high) if slope_high < math.inf else 0.0
    share = min(max(secant, _SAFEGUARD), 1.0 - _SAFEGUARD)
    return low + share * (high - low), low, slope_low, high, slope_high


def search(state: State, direction: Direction) -> tuple[Point, Dual, float]:
    """A point near the minimum of Phi along a direction, its weights, and the length of the step.

    Most steps are 1 or less. One is longer where Phi still falls at least half as fast there as at
    the start: far from the minimum, losses that grow like a line or an exponential have a curvature
    that tells little of the way to go.
    """
    problem, engine = state.problem, state.problem.engine
    delta, descent = direction.delta, direction.descent
    if not descent > 0.0:
        return state.point, state.dual, 1.0
    change = engine.direction(delta)
    # How fast the penalty has been growing on the way to a trial: its derivative, looking back.
    growth, backwards = problem.penalty.directional_derivative, -problem.coefficients(delta)
    enough = 0.5 * max(descent, noise(problem, unit(problem, state.value, state.point)))
    # A Newton step takes an exponential down by a factor of e, and leaves 0.37 of its slope.
    may_overflow = not problem.loss.curvature_bound < np.inf
    least = 0.5 * enough if may_overflow else enough
    low, slope_low, high, slope_high = 0.0, -descent, 1.0, np.inf
    t, limit = 1.0, np.inf
    if not problem.penalty.quadratic:
        # Kinks and bounds beyond a full step are not those of the model.
        coef = problem.coefficients(state.point.w)
        limit = _reach(problem.penalty, coef, -backwards)
    for trial in range(MAX_TRIALS):
        point = engine.moved(state.point, delta, change, t)
        if may_overflow and not math.isfinite(engine.sizes(point).absolute):
            # Far beyond the minimum of a loss that grows like an exponential.
            high, slope_high, limit = t, np.inf, t
            t = low + (t - low) / _MAX_STRETCH
            continue
        dual = engine.dual_step(state.center, point, state.eta)
        slope = engine.slope(point, dual, change)
        slope -= growth(problem.coefficients(point.w), backwards)
        if -least <= slope <= enough:
            return point, dual, t
        if slope < 0.0 and t == high and t >= limit:
            return point, dual, t
        t, low, slope_low, high, slope_high = next_length(
            t, slope, low, slope_low, high, slope_high, limit
        )
        if 4 * trial >= MAX_TRIALS and 0.0 < low < t < high:
            t = math.sqrt(low) * math.sqrt(high)
            if not low < t < high:
                break
        del point, dual  # vectors of length n, which the next trial can take
    # Where the derivative is negative, Phi has fallen all the way: safe to stop there.
    if low == 0.0:
        return state.point, state.dual, 0.0
    point = engine.moved(state.point, delta, change, low)
    return point, engine.dual_step(state.center, point, state.eta), low


def _reach(penalty: Penalty, coef: FloatArray, delta: FloatArray) -> float:
    """How far a direction that is feasible up to 1 may be followed, through smooth parts of g."""
    if not penalty.compiled:
        return 1.0
    d = len(coef)
    lower, upper = penalty.bounds(d) or (np.full(d, -np.inf), np.full(d, np.inf))
    if coef.ndim > 1:
        lower, upper = lower[:, None], upper[:, None]
    # A coefficient may come to 0 and stay there, but does not change its sign.
    upper, lower = np.where(coef < 0.0, 0.0, upper), np.where(coef > 0.0, 0.0, lower)
    ahead = np.where(delta > 0.0, upper, lower)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(delta == 0.0, np.inf, (ahead - coef) / delta)
    return max(float(room.min()), 1.0)
