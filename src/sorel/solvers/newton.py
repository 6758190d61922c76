"""Semismooth Newton steps from a p x p Hessian, inside the augmented Lagrangian.

The step minimises the quadratic model of the losses plus the penalty itself, so every penalty of
the package is served. Where rows are many, the Hessian is estimated from some of them. Where the
rows with curvature are fewer than the parameters and the penalty is quadratic, a system of as many
equations as there are rows takes its place.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.conjugate import minimize_model
from sorel.costs import FEW_PARAMETERS, StepCosts, carrying_rows, sampled_rows
from sorel.engines.base import FloatArray
from sorel.engines.row_gram import MAX_ROWS
from sorel.problem import Problem
from sorel.quadratic import minimize_quadratic, step_of_few
from sorel.solvers import ranks
from sorel.solvers.augmented import AugmentedLagrangian, Direction, State
from sorel.solvers.base import Iterates, Run, UnsupportedProblemError
from sorel.solvers.descent import can_descend, descend
from sorel.solvers.newton_cg import NewtonCG
from sorel.working_sets import (
    LARGEST_HESSIAN,
    TooManyColumnsError,
    can_rest,
    carried_by_few,
    on_few_columns,
)

# Beyond this many parameters the p x p Hessian costs more than it gains: a quadratic penalty then
# does without it, and others with that of the coefficients that have left their rest.
MAX_SIZE = LARGEST_HESSIAN

# Where a Hessian nearby is at hand, a step is solved to this share of the gradient by so many
# products at most, more of them for many columns. The matrix of no more than the last share of the
# rows is cheaper.
_FORCING, _FEW_PRODUCTS, _COLUMNS_PER_PRODUCT, _MOST_ROWS = 0.3, 3, 12, 0.75

# Where at least this share of the rows carries the risk, ranks that change make slight kinks, and
# the curvature hardly changes with the weights.
_MOST_CARRY = 0.5

# Rows that carry the risk, for each parameter, from which on the weights of neighbouring ranks tell
# how weights move.
_ROWS_TO_FOLLOW = 10


class Newton(AugmentedLagrangian):
    """Second-order method; by conjugate gradients where the parameters are more than thousands.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> sorel.solve(problem, solver=sorel.solvers.Newton(), tol=1e-9).converged
    True
    """

    name: ClassVar[str] = "newton"

    # Whether to give up where no coefficients rest.
    parts_only: ClassVar[bool] = False

    def check(self, problem: Problem) -> None:
        size = problem.engine.size
        rests = can_rest(problem.engine, problem.penalty)
        if size > MAX_SIZE and not problem.penalty.quadratic and not rests:
            raise UnsupportedProblemError(
                f"solver {self.name!r} builds a {size} x {size} matrix for {problem.penalty!r} and "
                f"takes at most {MAX_SIZE} parameters then; use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        by_rows = has_few_rows(problem)
        if problem.engine.size > MAX_SIZE and problem.penalty.quadratic and not by_rows:
            yield from NewtonCG().iterates(problem, run)
            return
        if is_on_simplex(problem):
            self._leave_most_at_rest(problem, run)
        try:
            yield from super().iterates(problem, run)
        except TooManyColumnsError as reason:
            if run.latest is not None:
                yield run.latest
            run.note = str(reason)

    @staticmethod
    def _leave_most_at_rest(problem: Problem, run: Run) -> None:
        """Start on few of the columns of a simplex."""
        engine = problem.engine
        if carried_by_few(engine, run.w):
            return
        dual = engine.uniform() if run.dual is None else run.dual
        gradient = engine.gradient(engine.point(run.w), dual)
        run.w = on_few_columns(engine, run.w, gradient)
        run.passes += 2

    def first_step(self, state: State, run: Run) -> State:
        if not can_descend(state.problem):
            return super().first_step(state, run)
        return descend(state, run)

    def follows_ranks(self, problem: Problem) -> bool:
        engine = problem.engine
        if not problem.penalty.quadratic or problem.loss.affine:
            return False
        if problem.has_fixed_weights or problem.has_two_levels:
            return False
        if not ranks.can_share(engine):
            return False
        return carrying_rows(engine) >= _ROWS_TO_FOLLOW * engine.size

    def gauge(self, state: State, run: Run) -> None:
        ranks.gauge(state, run)

    def has_slowed(self, state: State, run: Run) -> bool:
        problem = state.problem
        if not ranks.have_slowed(state, run):
            return False
        run.resembles, run.borrowed = shares_matrix(problem), False
        if not run.resembles:
            run.known.matrix = None
        return True

    def is_astray(self, state: State) -> bool:
        return ranks.are_far_off(state)

    def _step(self, state: State, run: Run, caution: float) -> State:
        if state.eta < np.inf:
            return super()._step(state, run, caution)
        new = self._follow(state, ranks.direction(state, run), run)
        ranks.remember(state, new)
        return new

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        if _wants_matrix_of_weights(state, run):
            # Started from weights that are nearly right: their matrix serves all steps.
            point, rows = state.point, sampled_rows(state.problem.engine.size)
            hessian = state.problem.engine.curvature(point, state.dual, 0.0).matrix(rows)
            run.resembles = run.known.keep(state.problem, hessian)
            run.passes += 1
        if run.resembles and caution == 0.0:
            direction = self._resembling(state, run)
            if direction is not None:
                return direction
        problem, engine, w = state.problem, state.problem.engine, state.point.w
        step = _step_by_rows(state, caution)
        if step is not None:
            run.passes += 1
            descent = -float(np.vdot(state.gradient + problem.modulus() * w, step))
            # The model is minimised exactly: half of its slope is what it gains.
            return Direction(step, descent, 0.5 * descent)
        part = run.known.part(problem, w, state.gradient)
        if self.parts_only and part.rows is None:
            raise TooManyColumnsError("most coefficients leave their rest")
        gradient, center = part.take(state.gradient), part.take(w)
        # One step is all that a quadratic problem takes, if all rows have their say.
        n_rows = None if problem.is_quadratic else sampled_rows(center.size)
        while True:
            hessian = part.engine.curvature(state.point, state.dual, state.eta, caution).matrix(
                n_rows
            )
            run.passes += 1
            if problem.penalty.quadratic:
                found = step_of_few(hessian, gradient, center, problem.penalty.l2, part.n_penalized)
                if found is not None:
                    _fix_intercepts(problem, found[0], np.zeros_like(found[0]))
                    return Direction(found[0].reshape(w.shape), *found[1:])
            u, info = minimize_quadratic(
                hessian,
                gradient,
                center,
                part.penalty,
                part.n_penalized,
                engine.n_outputs,
            )
            _fix_intercepts(problem, u, center)
            # An intercept without curvature was lent some, of a size that means nothing.
            if info.shift < 1.0 or caution == 1.0:
                break
            caution = 1.0
        # The next step needs no matrix of its own where this one tells enough of it. Ties at the
        # edge between two levels are too few, and too stiff, for that.
        even = state.eta == 0.0 and problem.bends_evenly and not problem.has_two_levels
        if problem.has_fixed_weights or even:
            run.resembles = run.known.keep(problem, hessian)
        step = u - center
        moved = part.put(w, u)
        gain = state.penalty - problem.penalty_value(moved)
        descent = gain - float(gradient @ step)
        decrease = descent - 0.5 * float(step @ (hessian @ step))
        return Direction(moved - w, descent, decrease)

    def _resembling(self, state: State, run: Run) -> Direction | None:
        """A direction from a few products, if the Hessian that was kept is near enough."""
        problem, point = state.problem, state.point
        precondition = run.known.factor(problem)
        first, run.borrowed = run.borrowed and not problem.has_two_levels, False
        if first and precondition is not None:
            # Near the solution of a similar problem its Hessian says where to go, and a line search
            # how far: a product to learn more costs as much as the step.
            gradient = state.gradient + problem.modulus() * point.w
            step = -precondition(gradient)
            descent = -float(np.vdot(gradient, step))
            return Direction(step, descent, 0.5 * descent)
        curvature = problem.engine.curvature(point, state.dual, state.eta)
        if precondition is None or curvature.share < _MOST_ROWS:
            run.resembles = False
            return None
        modulus = problem.modulus()
        gradient = state.gradient + modulus * point.w
        found = minimize_model(
            curvature,
            modulus,
            gradient,
            enough=lambda left, decrease, residual: left <= _FORCING**2,
            max_products=max(_FEW_PRODUCTS, gradient.size // _COLUMNS_PER_PRODUCT),
            precondition=precondition,
        )
        run.passes += found.passes
        if not found.reached:
            run.resembles = False
            return None
        return Direction(found.step, -float(np.vdot(gradient, found.step)), found.decrease)


class SparseNewton(Newton):
    """Newton's method as long as some coefficients rest, for `auto`: it leaves the rest to others.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.solvers.newton import SparseNewton
    >>> X = np.random.default_rng(0).standard_normal((50, 200))
    >>> problem = sorel.Problem(X, X[:, 0], penalty=sorel.ElasticNet(0.1, 0.1))
    >>> sorel.solve(problem, solver=SparseNewton()).converged
    True
    """

    parts_only: ClassVar[bool] = True


def _fix_intercepts(problem: Problem, u: FloatArray, center: FloatArray) -> None:
    """Take off what a step adds to the intercepts of all classes alike.

    It changes no loss, so that nothing but rounding errors decides on it, and may be so much that
    the intercepts lose their digits.
    """
    classes = problem.engine.n_outputs
    if problem.fit_intercept and classes > 1:
        u[-classes:] -= np.mean(u[-classes:] - center[-classes:])


def has_few_rows(problem: Problem) -> bool:
    """Whether steps by rows are to be had, however many rows come to have curvature."""
    engine = problem.engine
    by_rows = engine.in_memory and engine.n_outputs == 1 and problem.penalty.quadratic
    return by_rows and problem.n_samples <= MAX_ROWS


def is_on_simplex(problem: Problem) -> bool:
    """Whether coefficients share a sum, and most of them may rest."""
    return can_rest(problem.engine, problem.penalty) and not problem.penalty.separable


def has_smooth_risk(problem: Problem) -> bool:
    """Whether weights change little with the order of the losses, so that kinks are slight."""
    if problem.has_two_levels or problem.loss.affine:
        return False
    return (
        problem.has_fixed_weights
        or problem.engine.spec.risk.effective_share(problem.engine.n_samples) >= _MOST_CARRY
    )


def shares_matrix(problem: Problem) -> bool:
    """Whether all steps have about the same p x p Hessian, but for ties, and are to use it."""
    cheap = problem.penalty.quadratic and problem.engine.in_memory
    even = problem.has_fixed_weights or problem.bends_evenly
    return cheap and even and problem.engine.size <= problem.n_samples and has_smooth_risk(problem)


def _wants_matrix_of_weights(state: State, run: Run) -> bool:
    """Whether steps that move weights could share a matrix, and have none."""
    problem = state.problem
    if state.eta == 0.0 or run.known.matrix is not None:
        return False
    return problem.engine.size > FEW_PARAMETERS and shares_matrix(problem)


def _step_by_rows(state: State, caution: float) -> FloatArray | None:
    """A Newton step from the system of the rows; None where the p x p matrix is cheaper."""
    problem, engine = state.problem, state.problem.engine
    if engine.size <= FEW_PARAMETERS or not engine.in_memory or engine.n_outputs > 1:
        return None
    if not problem.penalty.quadratic or carrying_rows(engine) > engine.size:
        return None
    curvature = engine.curvature(state.point, state.dual, state.eta, caution)
    # Without curvature a small matrix of zeros is as good, and knows of a flat intercept.
    if curvature.rows is None or (curvature.rows == 0 and engine.size <= MAX_SIZE):
        return None
    costs = StepCosts(engine, curvature.rows)
    if engine.size <= MAX_SIZE and not costs.rows_are_cheaper:
        return None
    try:
        return curvature.solve(
            state.gradient + problem.modulus() * state.point.w, problem.penalty.l2
        )
    except np.linalg.LinAlgError:
        if engine.size > MAX_SIZE:
            raise
        return None
