"""Newton steps on the risk itself that share a matrix, where weights follow the ranks.

The matrix is the Hessian for weights that stay put, of the first step or of a similar problem. The
weights follow the losses, which adds to the curvature; how much, gradients along the steps tell, as
in BFGS. A step costs two products with X and the sorts of its line search. Each is to gain most of
what there is, and where one does not, the weights get a centre: see :mod:`sorel.solvers.augmented`.
"""

from __future__ import annotations

import numpy as np

from sorel.certificate import unit
from sorel.costs import sampled_rows
from sorel.engines.base import Engine, FloatArray
from sorel.solvers.augmented import Direction, Secant, State
from sorel.solvers.base import Run

# Numbers in X from which on a matrix is shared: where these are fewer, one for each step costs no
# more than the wrappers around it. And jumps in the weights up to which it is, relative to the
# largest weight: each is a kink, which no matrix tells of.
_WORTH_SHARING, _SMOOTH = 10_000, 0.05

# A step is to leave less than this share of what there was to gain. Else the next one gets a matrix
# of its own, if that says by so much more or less what there is.
_SLOW, _NEWS = 0.5, 2.0

# What there is to gain, relative to the objective, where the solution is far away.
_FAR = 1e-4

# So many of the last steps are remembered.
_MEMORY = 10


def can_share(engine: Engine) -> bool:
    """Whether steps by the ranks can share a matrix, and gain from that."""
    if not engine.in_memory or engine.n_outputs > 1 or engine.entries < _WORTH_SHARING:
        return False
    return engine.spec.risk.largest_jump(engine.n_samples) <= _SMOOTH


def gauge(state: State, run: Run) -> None:
    """Tell what remains to be gained under weights that stay put; make the matrix if need be.

    Lets go of the centre, too.
    """
    problem = state.problem
    # Weights without a centre need not hold a vector of length n for one.
    state.center = state.dual
    if run.known.matrix is None:
        _make_matrix(state, run)
    inverse = run.known.factor(problem)
    state.remains = np.inf
    if inverse is not None:
        slope = _slope(state)
        state.remains = 0.5 * float(np.vdot(slope, inverse(slope)))


def have_slowed(state: State, run: Run) -> bool:
    """Whether the last step has gained too little, and a matrix of this place tells no more."""
    if state.remains < np.inf and state.remains <= _SLOW * state.predicted:
        return False
    if not run.borrowed and len(state.secants) <= 1:
        return True
    remained = state.remains
    _make_matrix(state, run)
    gauge(state, run)
    low, high = sorted((state.remains, remained))
    return not _NEWS * low < high < np.inf


def are_far_off(state: State) -> bool:
    """Whether the ranks tell less of the weights than what else there is to start from."""
    return not state.remains <= _FAR * unit(state.problem, state.value, state.point)


def direction(state: State, run: Run) -> Direction:
    """A direction from the matrix and from what steps have told since."""
    inverse = run.known.factor(state.problem)
    if inverse is None:
        raise np.linalg.LinAlgError("the shared matrix is not positive definite")
    slope = _slope(state)
    step, shares = -slope, []
    for secant in reversed(state.secants):
        shares.append(float(np.vdot(secant.step, step)) / secant.bend)
        step -= shares[-1] * secant.change
    step = inverse(step)
    for secant in state.secants:
        share = float(np.vdot(secant.change, step)) / secant.bend
        step += (shares.pop() - share) * secant.step
    return Direction(step, -float(np.vdot(slope, step)), state.remains)


def remember(before: State, after: State) -> None:
    """Hand on what the steps so far have told, with the one from `before` to `after`."""
    step, change = after.point.w - before.point.w, _slope(after) - _slope(before)
    bend = float(np.vdot(step, change))
    after.secants = before.secants
    if bend > 0.0:
        after.secants = (*before.secants[1 - _MEMORY :], Secant(step, change, bend))


def _make_matrix(state: State, run: Run) -> None:
    """Make a matrix for the weights of the ranks, for this step and the next ones."""
    engine = state.problem.engine
    rows = sampled_rows(engine.size)
    run.known.matrix = engine.curvature(state.point, state.dual, 0.0).matrix(rows)
    state.predicted, state.secants = np.inf, ()
    run.borrowed = False
    run.passes += 1


def _slope(state: State) -> FloatArray:
    """Gradient of the objective, where the weights are those of the ranks."""
    return state.gradient + state.problem.modulus() * state.point.w
