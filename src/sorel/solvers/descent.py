"""Coordinate descent on the plain average of squared losses, where most coefficients rest.

Where columns are not too much alike, some sweeps over those that move cost less than one Hessian of
them. That is a start for any risk, and for the plain average itself most often the whole way.
"""

from __future__ import annotations

from sorel.engines import coordinate_descent
from sorel.problem import Problem
from sorel.solvers.augmented import State
from sorel.solvers.base import Run
from sorel.working_sets import Part, TooManyColumnsError, chooses_columns

__all__ = ["can_descend", "descend"]

# Below this many numbers that a Hessian takes from X, it is cheaper than the first sweep.
_LEAST_WORK = 10_000_000

# What is left of the gap when it counts as closed, as a share of the gap wanted, and the relative
# gap that is close enough for another risk than the plain average.
_CLOSED = 0.3
_START = 1e-3

# Choices of columns at most; sweeps over each until it stays the same.
_MAX_CHOICES = 25
_FEW_SWEEPS = 8

# Sweeps that take about the time of the Newton steps from a matrix which they replace: by the
# columns, and by their cube for each entry of X in them. At most so many.
_BY_COLUMN, _BY_CUBE, _MOST_SWEEPS = 0.1, 0.08, 1000


def can_descend(problem: Problem) -> bool:
    """Whether coordinate descent is to be had, and likely to pay."""
    engine = problem.engine
    work = engine.n_samples * engine.n_features**2
    return (
        chooses_columns(engine, problem.penalty)
        and coordinate_descent.serves(engine)
        and work >= _LEAST_WORK
    )


def descend(state: State, run: Run) -> State:
    """The state after coordinate descent for its weighting, which stays as it is."""
    problem, engine = state.problem, state.problem.engine
    plain = engine.spec.risk.effective_share(engine.n_samples) >= 1.0 - 1e-12
    tol = run.tol if plain else max(run.tol, _START)
    last: Part | None = None
    for _ in range(_MAX_CHOICES):
        goal = _CLOSED * problem.gap_wanted(tol, state.value, state.point)
        if run.exhausted or (last is not None and state.fenchel_young() <= goal):
            break
        w = state.point.w
        try:
            part = run.known.part(problem, w, state.gradient)
        except TooManyColumnsError:
            break
        sweeps = _sweeps(part) if part is last else _FEW_SWEEPS
        found = coordinate_descent.descend(
            part.engine,
            state.point,
            state.dual,
            part.take(w),
            part.penalty.kernel(part.engine.n_features),
            sweeps,
            _CLOSED * goal,
        )
        point = engine.point(part.put(w, found.w))
        run.passes += 1.0 + found.sweeps * part.engine.n_features / engine.n_features
        state = State(problem, point, state.center, 0.0)
        if part is last and found.left > goal:
            break
        last = part
    return state


def _sweeps(part: Part) -> int:
    """How many sweeps are worth it before a Hessian is."""
    engine = part.engine
    cube = engine.n_features**3 / (engine.n_samples * engine.n_features)
    return int(min(10.0 + _BY_COLUMN * engine.n_features + _BY_CUBE * cube, _MOST_SWEEPS))
