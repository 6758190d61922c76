"""Semismooth Newton steps by conjugate gradients, inside the augmented Lagrangian.

For problems with more parameters than a p x p matrix can serve, and for sparse X: the Hessian is
only ever multiplied by a vector (Zhao, Sun and Toh 2010).
"""

from __future__ import annotations

from typing import ClassVar

from sorel.models.costs import StepCosts
from sorel.problem.problem import Problem
from sorel.solvers.augmented import AugmentedLagrangian
from sorel.solvers.base import Run, UnsupportedProblemError
from sorel.solvers.directions import Products
from sorel.solvers.schedule import Pace
from sorel.solvers.state import Direction, State


class NewtonCG(AugmentedLagrangian):
    """Second-order method that forms no matrix; for the smooth penalty L2.

    Parameters
    ----------
    costs : StepCosts, optional
        What steps from a matrix cost, for one run that is to cost less; see
        :class:`sorel.solvers.directions.Products`.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> sorel.solve(problem, solver=sorel.solvers.NewtonCG(), tol=1e-9).converged
    True
    """

    name: ClassVar[str] = "newton_cg"

    # Products are many where eta is large, so more centres at a smaller eta are cheaper.
    pace: ClassVar[Pace] = Pace(2.0, warm=3.0, growth=3.0, easy=2, full=1.0, short=0.2)

    def __init__(self, costs: StepCosts | None = None) -> None:
        self._find = Products(costs)

    def check(self, problem: Problem) -> None:
        if not problem.penalty.quadratic:
            other = "sorel" if problem.penalty.compiled else "auto"
            raise UnsupportedProblemError(
                f"solver 'newton_cg' needs the smooth penalty L2, got {problem.penalty!r}; "
                f"use solver='newton' or {other!r}"
            )

    def direction(self, state: State, run: Run, damping: float) -> Direction:
        return self._find(state, run, damping)
