"""Semismooth Newton steps from a matrix, inside the augmented Lagrangian (Li, Sun and Toh 2018).

The step minimises the quadratic model of the losses plus the penalty itself (proximal Newton: Lee,
Sun and Saunders 2014), so every penalty of the package is served. Where rows are many, the Hessian
is estimated from some of them. Where the rows with curvature are fewer than the parameters and the
penalty is quadratic, a system of as many equations as there are rows takes its place.
"""

from __future__ import annotations

from typing import ClassVar

from sorel.engines.row_gram import MAX_ROWS
from sorel.models.working_sets import (
    LARGEST_HESSIAN,
    TooManyColumnsError,
    carried_by_few,
    may_be_inactive,
    on_few_columns,
)
from sorel.problem.problem import Problem
from sorel.solvers.augmented import AugmentedLagrangian
from sorel.solvers.base import Iterates, Run, UnsupportedProblemError
from sorel.solvers.directions import Columns, Rows
from sorel.solvers.newton_cg import NewtonCG
from sorel.solvers.state import Direction, State

# Parameters beyond which no p x p Hessian is formed. A quadratic penalty then takes products, and
# another one the Hessian of a working set.
MAX_SIZE = LARGEST_HESSIAN


class Newton(AugmentedLagrangian):
    """Second-order method; by conjugate gradients where the parameters are more than thousands.

    Parameters
    ----------
    inactive_only : bool
        Whether to give up where all coefficients move, none held at 0 or at a bound.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> sorel.solve(problem, solver=sorel.solvers.Newton(), tol=1e-9).converged
    True
    """

    name: ClassVar[str] = "newton"

    def __init__(self, inactive_only: bool = False) -> None:
        self._find = Rows(Columns(inactive_only))

    def check(self, problem: Problem) -> None:
        size = problem.engine.size
        inactive = may_be_inactive(problem.engine, problem.penalty)
        if size > MAX_SIZE and not problem.penalty.quadratic and not inactive:
            raise UnsupportedProblemError(
                f"solver {self.name!r} builds a {size} x {size} matrix for {problem.penalty!r} and "
                f"takes at most {MAX_SIZE} parameters then; use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        if problem.penalty.quadratic and not can_form_matrix(problem):
            yield from NewtonCG().iterates(problem, run)
            return
        if is_on_simplex(problem):
            self._move_few(problem, run)
        try:
            yield from super().iterates(problem, run)
        except TooManyColumnsError as reason:
            if run.latest is not None:
                yield run.latest
            run.note = str(reason)

    def direction(self, state: State, run: Run, damping: float) -> Direction:
        return self._find(state, run, damping)

    @staticmethod
    def _move_few(problem: Problem, run: Run) -> None:
        """Start on few of the columns of a simplex."""
        engine = problem.engine
        if carried_by_few(engine, run.w):
            return
        dual = engine.uniform() if run.dual is None else run.dual
        gradient = engine.gradient(engine.point(run.w), dual)
        run.w = on_few_columns(engine, run.w, gradient)
        run.passes += 2


def can_form_matrix(problem: Problem) -> bool:
    """Whether a matrix of all columns or of all rows can be had."""
    engine = problem.engine
    by_rows = engine.in_memory and engine.n_outputs == 1 and problem.penalty.quadratic
    return engine.size <= MAX_SIZE or (by_rows and problem.n_samples <= MAX_ROWS)


def is_on_simplex(problem: Problem) -> bool:
    """Whether coefficients share a sum, and most of them may be 0."""
    return may_be_inactive(problem.engine, problem.penalty) and not problem.penalty.separable
