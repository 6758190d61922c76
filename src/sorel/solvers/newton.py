"""Semismooth Newton steps from a p x p Hessian, inside the augmented Lagrangian.

The step minimises the quadratic model of the losses plus the penalty itself, so every penalty of
the package is served. Where rows are many, the Hessian is estimated from some of them.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.conjugate import minimize_model
from sorel.problem import Problem
from sorel.quadratic import minimize_quadratic
from sorel.solvers.augmented import AugmentedLagrangian, Direction, State
from sorel.solvers.base import Iterates, Run, UnsupportedProblemError
from sorel.solvers.newton_cg import NewtonCG

# Beyond this many parameters the p x p Hessian costs more than it gains: a quadratic penalty then
# does without it.
MAX_SIZE = 5000

# With this many rows for each parameter a Hessian estimated from them steers well enough.
_ROWS_PER_PARAMETER = 100
_LEAST_ROWS = 10_000

# Where a Hessian nearby is at hand, a step is solved to this share of the gradient by so many
# products at most, more of them for many columns. The matrix of no more than the last share of the
# rows is cheaper.
_FORCING, _FEW_PRODUCTS, _COLUMNS_PER_PRODUCT, _MOST_ROWS = 0.3, 3, 12, 0.75


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

    def check(self, problem: Problem) -> None:
        size = problem.engine.size
        if size > MAX_SIZE and not problem.penalty.quadratic:
            raise UnsupportedProblemError(
                f"solver {self.name!r} builds a {size} x {size} matrix for {problem.penalty!r} and "
                f"takes at most {MAX_SIZE} parameters then; use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        if problem.engine.size > MAX_SIZE:
            return NewtonCG().iterates(problem, run)
        return super().iterates(problem, run)

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        if run.resembles and caution == 0.0:
            direction = self._resembling(state, run)
            if direction is not None:
                return direction
        problem, engine, w = state.problem, state.problem.engine, state.point.w
        n_rows = None
        if not problem.is_quadratic:  # else one step is all it takes, if all rows have their say
            n_rows = max(_ROWS_PER_PARAMETER * w.size, _LEAST_ROWS)
        gradient, center = state.gradient.ravel(), w.ravel()
        while True:
            hessian = engine.hessian(state.point, state.dual, state.eta, n_rows, caution)
            run.passes += 1
            u, info = minimize_quadratic(
                hessian,
                gradient,
                center,
                problem.penalty,
                problem.coefficients(w).size,
                engine.n_outputs,
            )
            # An intercept without curvature was lent some, of a size that means nothing.
            if info.shift < 1.0 or caution == 1.0:
                break
            caution = 1.0
        if problem.has_fixed_weights or (state.eta == 0.0 and not problem.has_two_levels):
            # The next step needs no matrix of its own where this one tells enough of it. Ties at
            # the edge between two levels are too few, and too stiff, for that.
            run.resembles = problem.keep_curvature(hessian)
        step = u - center
        gain = state.penalty - problem.penalty_value(u.reshape(engine.shape))
        descent = gain - float(gradient @ step)
        decrease = descent - 0.5 * float(step @ (hessian @ step))
        return Direction(step.reshape(engine.shape), descent, decrease)

    def _resembling(self, state: State, run: Run) -> Direction | None:
        """A direction from a few products, if the Hessian that was kept is near enough."""
        problem, point = state.problem, state.point
        precondition = problem.kept_factor()
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
