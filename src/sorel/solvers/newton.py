"""Semismooth Newton steps from a p x p Hessian, inside the augmented Lagrangian.

The step minimises the quadratic model of the losses plus the penalty itself, so every penalty of
the package is served. Where rows are many, the Hessian is estimated from some of them.
"""

from __future__ import annotations

from typing import ClassVar

from sorel.problem import Problem
from sorel.quadratic import minimize_quadratic
from sorel.solvers.augmented import AugmentedLagrangian, Direction, State
from sorel.solvers.base import Iterates, Run, UnsupportedProblemError
from sorel.solvers.descent import can_descend, descend
from sorel.solvers.newton_cg import NewtonCG
from sorel.working_sets import LARGEST_HESSIAN, TooManyColumnsError

# Beyond this many parameters the p x p Hessian costs more than it gains: a quadratic penalty then
# does without it, and others with that of the coefficients that have left their rest.
MAX_SIZE = LARGEST_HESSIAN

# The next step sees other weights: the last hundredth of what a model promises would go to waste.
_ROUGH = 0.01

# With this many rows for each parameter a Hessian estimated from them steers well enough.
_ROWS_PER_PARAMETER = 100
_LEAST_ROWS = 10_000


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
        if size > MAX_SIZE and not problem.penalty.quadratic and not problem.by_parts:
            raise UnsupportedProblemError(
                f"solver {self.name!r} builds a {size} x {size} matrix for {problem.penalty!r} and "
                f"takes at most {MAX_SIZE} parameters then; use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        if problem.engine.size > MAX_SIZE and problem.penalty.quadratic:
            yield from NewtonCG().iterates(problem, run)
            return
        try:
            yield from super().iterates(problem, run)
        except TooManyColumnsError as reason:
            if run.latest is not None:
                yield run.latest
            run.note = str(reason)

    def first_step(self, state: State, run: Run) -> State:
        if not can_descend(state.problem):
            return super().first_step(state, run)
        return descend(state, run)

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        problem, engine, w = state.problem, state.problem.engine, state.point.w
        part = problem.part(w, state.gradient)
        if self.parts_only and part.rows is None:
            raise TooManyColumnsError("most coefficients leave their rest")
        gradient, center = part.take(state.gradient), part.take(w)
        n_rows = max(_ROWS_PER_PARAMETER * center.size, _LEAST_ROWS)
        while True:
            hessian = part.engine.hessian(state.point, state.dual, state.eta, n_rows, caution)
            run.passes += 1
            u, info = minimize_quadratic(
                hessian,
                gradient,
                center,
                part.penalty,
                part.n_penalized,
                engine.n_outputs,
                _ROUGH,
            )
            # An intercept without curvature was lent some, of a size that means nothing.
            if info.shift < 1.0 or caution == 1.0:
                break
            caution = 1.0
        step = u - center
        moved = part.put(w, u)
        gain = state.penalty - problem.penalty_value(moved)
        descent = gain - float(gradient @ step)
        decrease = descent - 0.5 * float(step @ (hessian @ step))
        return Direction(moved - w, descent, decrease)


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
