"""Whether the constant model is the solution, where all losses are equal at the start.

The losses of labels are equal at w = 0, so all weightings attain the risk there, and the start is
the solution if one of them makes the weighted gradient zero. Under a tail risk noisy labels make
that the rule. At a very large eta the augmented Lagrangian sees the losses as linear,
and its minimiser has the multipliers nearest to uniform weights, if there are any.
"""

from __future__ import annotations

import numpy as np

from sorel.certificate import gap_wanted, noise
from sorel.engines.base import FloatArray
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.directions import Cheapest
from sorel.solvers.schedule import Pace
from sorel.solvers.state import Direction, State

# The eta at which losses all but stay equal, in units of 1 / loss.
_ETA = 1e6

# The Fenchel-Young gap, in units of the gap wanted, from which on a certificate is worth a try: it
# may be refined (3371 x 148, four classes, 2026-11: 105 passes for 133).
_PROMISING = 100.0


def losses_are_equal(state: State) -> bool:
    """Whether the weights may change, and all losses are equal, as those of labels are at 0."""
    problem = state.problem
    if problem.has_fixed_weights or not problem.loss.is_classifier or np.any(state.point.w):
        return False
    rounding = problem.n_samples * noise(problem, state.value)
    return problem.engine.shortfall(state.point, state.dual) <= rounding


def constant_optimum(start: State, direction: Direction, find: Cheapest, run: Run) -> Iterates:
    """Yield the start with multipliers that make it the solution, if they can be found.

    `direction` is the step for the plain average. It leads to the multipliers where no weight comes
    to a limit, since gradients and curvature at the start are of one size.
    """
    problem, engine = start.problem, start.problem.engine
    rounding, eta = noise(problem, start.value), _ETA / start.value
    change = engine.direction(direction.delta)
    point = engine.moved(start.point, direction.delta, change, 1.0 / eta)
    del change
    run.passes += 1
    if engine.risk(point) + problem.penalty_value(point.w) < start.value - rounding:
        return
    # The margins of the start cost next to nothing, and are not kept beside those of the steps.
    w = start.point.w
    del start.point
    state = State(problem, point, start.center, eta)
    steps = _multipliers_at_constant(start, w, state, find, run)
    # Vectors of length n: the steps alone hold them, and let go of those that they leave.
    del point, state
    yield from steps
    start.point = engine.point(w)


def _multipliers_at_constant(
    start: State, w: FloatArray, state: State, find: Cheapest, run: Run
) -> Iterates:
    """Newton steps to the multipliers, for as long as there may be any."""
    problem, engine = start.problem, start.problem.engine
    target = gap_wanted(problem, run.tol, start.value)
    # No weighting is further away from the uniform one than this, so that Phi tells the risk.
    off = (1.0 / engine.spec.risk.effective_share(engine.n_samples) - 1.0) / (2.0 * state.eta)
    first, last = 0.0, (np.inf, np.inf)
    while not run.exhausted:
        slope = problem.coefficients(state.gradient)
        gap = problem.penalty.fenchel_young(problem.coefficients(w), -slope)
        first = first or gap
        if find.by_products and gap > first:
            # Where multipliers exist, most runs reduce the gap from the first step on. The others
            # are not worth the cost of their products.
            return
        if gap <= _PROMISING * target:
            point = engine.point(w)
            gradient = engine.gradient(point, state.dual)
            run.passes += 1
            yield Iterate(point, state.dual, gradient, target)
            del point
        # Gaps that have not fallen for two steps are those of no multipliers.
        if not gap < max(last):
            return
        last = last[1], gap
        state = state.line_search(find(state, run, 0.0))
        run.passes += 1
        # Steps are cut short where weights come to their limits: there are no multipliers.
        if state.length < Pace().short or state.value + off < start.value - target:
            return
