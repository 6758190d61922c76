"""Three ways to a Newton direction, and the choice between them by counted cost.

Columns: the p x p Hessian of the columns that may move, and the minimum of its quadratic model plus
the penalty, which may have kinks and bounds. Rows: a system of as many equations as there are rows
with curvature (Woodbury 1950), for a quadratic penalty. Products: preconditioned conjugate
gradients (Dembo and Steihaug 1983), which form no matrix, for a quadratic penalty, too.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from sorel.engines.base import FloatArray
from sorel.engines.matrix import FEW_PARAMETERS
from sorel.models.conjugate import minimize_model
from sorel.models.costs import (
    PRODUCTS_PER_STEP,
    StepCosts,
    carrying_rows,
    classes_by_products,
    sampled_rows,
)
from sorel.models.quadratic import minimize_quadratic, step_of_few
from sorel.models.working_sets import LARGEST_HESSIAN, TooManyColumnsError
from sorel.problem.problem import Problem
from sorel.solvers.base import Run
from sorel.solvers.state import CostlyError, Direction, State

# Conjugate gradients end at this share of the gradient, in the norm of the preconditioner. More
# digits would go to waste: the next step sees other ties.
_FORCING = 0.3

# Products of a step at most.
_MAX_PRODUCTS = 250


class Columns:
    """From the Hessian of the columns in the working set.

    Parameters
    ----------
    inactive_only : bool
        Whether to give up, by a TooManyColumnsError, where all columns are in it.
    """

    def __init__(self, inactive_only: bool = False) -> None:
        self.inactive_only = inactive_only

    def __call__(self, state: State, run: Run, damping: float) -> Direction:
        problem, engine, w = state.problem, state.problem.engine, state.point.w
        part = run.known.part(problem, w, state.gradient)
        if self.inactive_only and part.rows is None:
            raise TooManyColumnsError("most coefficients move")
        gradient, center = part.take(state.gradient), part.take(w)
        # One step is all that a quadratic problem takes, if all rows have their say.
        n_rows = None if problem.is_quadratic else sampled_rows(center.size)
        while True:
            curvature = part.engine.curvature(state.point, state.dual, state.eta, damping)
            hessian = curvature.matrix(n_rows)
            _pin_intercepts(problem, hessian)
            run.passes += 1
            if problem.penalty.quadratic:
                found = step_of_few(hessian, gradient, center, problem.penalty.l2, part.n_penalized)
                if found is not None:
                    return Direction(found[0].reshape(w.shape), *found[1:])
            u, info = minimize_quadratic(
                hessian, gradient, center, part.penalty, part.n_penalized, engine.n_outputs
            )
            # An intercept without curvature was lent some, of a size that means nothing.
            if info.shift < 1.0 or damping == 1.0:
                break
            damping = 1.0
        if problem.has_fixed_weights:
            # Certificates need no matrix of their own where this one tells enough.
            run.known.keep(problem, hessian)
        step, moved = u - center, part.put(w, u)
        descent = state.penalty - problem.penalty_value(moved) - float(gradient @ step)
        return Direction(moved - w, descent, descent - 0.5 * float(step @ (hessian @ step)))


class Rows:
    """From the system of the rows that have curvature, or from columns where these cost less.

    How many rows have curvature is a matter of the state, so the choice is made at each step.
    """

    def __init__(self, columns: Columns | None = None) -> None:
        self.columns = columns or Columns()

    def __call__(self, state: State, run: Run, damping: float) -> Direction:
        problem, engine = state.problem, state.problem.engine
        if not _may_go_by_rows(problem):
            return self.columns(state, run, damping)
        curvature = engine.curvature(state.point, state.dual, state.eta, damping)
        many, rows = engine.size > LARGEST_HESSIAN, curvature.rows
        # Without curvature a small matrix of zeros is as good, and knows of a flat intercept.
        if rows is None or not (many or (rows and StepCosts(engine, rows).rows_are_cheaper)):
            return self.columns(state, run, damping)
        slope = state.slope
        try:
            step = curvature.solve(slope, problem.penalty.l2)
        except np.linalg.LinAlgError:
            if many:
                raise
            return self.columns(state, run, damping)
        run.passes += 1
        # The model is minimised exactly: half of its slope is what it gains.
        descent = -float(np.vdot(slope, step))
        return Direction(step, descent, 0.5 * descent)


class Products:
    """From products with the Hessian.

    Parameters
    ----------
    costs : StepCosts, optional
        Where given, all steps together may take the products that as many would cost from a
        matrix. Beyond that the next step is refused by a CostlyError.

    Attributes
    ----------
    spent : int
        Products so far.
    """

    def __init__(self, costs: StepCosts | None = None) -> None:
        self._costs = costs
        self.spent, self._steps, self._costly = 0, 0, False

    def __call__(self, state: State, run: Run, damping: float) -> Direction:
        if self._costly:
            raise CostlyError
        problem, slope = state.problem, state.slope

        def enough(left: float, decrease: float, residual: FloatArray) -> bool:
            return left <= _FORCING**2 or run.exhausted

        curvature = problem.engine.curvature(state.point, state.dual, state.eta, damping)
        limit = self._limit()
        found = minimize_model(
            curvature, problem.modulus(), slope, enough=enough, max_products=limit
        )
        run.passes += found.passes
        # The step is as good as another: it is the next one that is to be cheaper.
        self.spent += found.products
        self._costly = self._costs is not None and found.products >= limit
        return Direction(found.step, -float(np.vdot(slope, found.step)), found.decrease)

    def _limit(self) -> int:
        """Products that the next step may take."""
        self._steps += 1
        if self._costs is None:
            return _MAX_PRODUCTS
        left = self._costs.products(self._steps) - self.spent
        return int(max(left, PRODUCTS_PER_STEP))


class Cheapest:
    """From products for as long as they cost less than a matrix would, and then from a matrix.

    For a problem in which all rows have curvature, which is about the same at all steps.
    """

    def __init__(self, problem: Problem) -> None:
        engine = problem.engine
        self._matrix = Rows()
        self._products: Products | None = None
        self._most = math.inf
        if problem.penalty.quadratic and engine.size > FEW_PARAMETERS:
            costs = None
            if engine.size <= LARGEST_HESSIAN and not classes_by_products(engine):
                costs = StepCosts(engine, engine.n_samples)
                self._most = costs.products()
            self._products = Products(costs)

    @property
    def by_products(self) -> bool:
        """Whether the last direction came from products."""
        return self._products is not None

    def __call__(self, state: State, run: Run, damping: float) -> Direction:
        if self._products is not None and self._products.spent < self._most:
            with contextlib.suppress(CostlyError):
                return self._products(state, run, damping)
        self._products = None
        return self._matrix(state, run, damping)


def _may_go_by_rows(problem: Problem) -> bool:
    """Whether a system of the rows may be the smaller one."""
    engine = problem.engine
    if engine.size <= FEW_PARAMETERS or not engine.in_memory or engine.n_outputs > 1:
        return False
    return problem.penalty.quadratic and carrying_rows(engine) <= engine.size


def _pin_intercepts(problem: Problem, hessian: FloatArray) -> None:
    """Give curvature to adding one number to the intercepts of all classes.

    It changes no loss, so that nothing but rounding errors would decide on it.
    """
    classes = problem.engine.n_outputs
    if problem.fit_intercept and classes > 1:
        own = hessian[-classes:, -classes:]
        own += np.trace(own) / classes**2
