"""Semismooth Newton steps by conjugate gradients, inside the augmented Lagrangian.

For problems with more parameters than a p x p matrix can serve, and for sparse X: the Hessian is
only ever multiplied by a vector.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.conjugate import minimize_model
from sorel.engines.base import Curvature, FloatArray
from sorel.problem import Problem
from sorel.solvers.augmented import AugmentedLagrangian, CostlyError, Direction, State
from sorel.solvers.base import Run, UnsupportedProblemError
from sorel.solvers.schedule import Pace

# A step is solved to this share of the gradient, in the norm of the preconditioner. More digits
# would go to waste: the next step sees other ties.
_FORCING = 0.3
_MAX_PRODUCTS = 250

# Products of a step towards weights for which the start is the solution, at least, and in those of
# the step before: where there are such weights, ties are many, and few products suffice at first.
_FEW_PRODUCTS, _MORE_PRODUCTS = 60, 4


class NewtonCG(AugmentedLagrangian):
    """Second-order method that forms no matrix; for the smooth penalty L2.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> sorel.solve(problem, solver=sorel.solvers.NewtonCG(), tol=1e-9).converged
    True
    """

    name: ClassVar[str] = "newton_cg"

    by_products: ClassVar[bool] = True

    # Products are many where eta is large, so more centres at a smaller eta are cheaper.
    pace: ClassVar[Pace] = Pace(2.0, warm=3.0, growth=3.0, easy=2, full=1.0, short=0.2)

    def check(self, problem: Problem) -> None:
        if not problem.penalty.quadratic:
            other = "sorel" if problem.penalty.compiled else "auto"
            raise UnsupportedProblemError(
                f"solver 'newton_cg' needs the smooth penalty L2, got {problem.penalty!r}; "
                f"use solver='newton' or {other!r}"
            )

    def resting(self) -> AugmentedLagrangian:
        return Resting()

    def most_products(self, problem: Problem, curvature: Curvature) -> int:
        """Products that a step may take."""
        return _MAX_PRODUCTS

    def took(self, products: int, most: int) -> None:
        """Take note of the products of a step, and of how many it could have had."""

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        """Preconditioned conjugate gradients on (H + mu I) s = -grad Phi."""
        problem, point = state.problem, state.point
        modulus = problem.modulus()
        gradient = state.gradient + modulus * point.w

        def enough(left: float, decrease: float, residual: FloatArray) -> bool:
            return left <= _FORCING**2 or run.exhausted

        curvature = problem.engine.curvature(point, state.dual, state.eta, caution)
        most = self.most_products(problem, curvature)
        found = minimize_model(curvature, modulus, gradient, enough=enough, max_products=most)
        run.passes += found.passes
        self.took(found.products, most)
        descent = -float(np.vdot(gradient, found.step))
        return Direction(found.step, descent, found.decrease)


class Resting(NewtonCG):
    """The same in search of weights for the start, as long as steps do not take far more products.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.solvers.newton_cg import Resting
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> sorel.solve(problem, solver=Resting()).converged
    True
    """

    def __init__(self) -> None:
        self._latest = 0

    def most_products(self, problem: Problem, curvature: Curvature) -> int:
        return min(max(_FEW_PRODUCTS, _MORE_PRODUCTS * self._latest), _MAX_PRODUCTS)

    def took(self, products: int, most: int) -> None:
        if products >= most:
            raise CostlyError
        self._latest = products
