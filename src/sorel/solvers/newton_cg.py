"""Semismooth Newton steps by conjugate gradients, inside the augmented Lagrangian.

For problems with more parameters than a p x p matrix can serve, and for sparse X: the Hessian is
only ever multiplied by a vector.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.problem import Problem
from sorel.solvers.augmented import AugmentedLagrangian, Direction, State
from sorel.solvers.base import Run, UnsupportedProblemError

# A step is solved to this share of the gradient, in the norm of the preconditioner.
_FORCING = 0.1
_MAX_PRODUCTS = 250


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

    def check(self, problem: Problem) -> None:
        if not problem.penalty.smooth:
            raise UnsupportedProblemError(
                f"solver 'newton_cg' needs the smooth penalty L2, got {problem.penalty!r}; "
                "use solver='newton' or 'sorel'"
            )

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        """Preconditioned conjugate gradients on (H + mu I) s = -grad Phi."""
        problem, engine, point = state.problem, state.problem.engine, state.point
        modulus = np.zeros(engine.shape)
        modulus[: problem.n_features] = problem.penalty.l2
        matrix = (point, state.dual, state.eta)
        diagonal = engine.hessian_diagonal(*matrix, caution) + modulus
        # A flat intercept has no curvature to divide by.
        diagonal[diagonal <= 0.0] = 1.0
        gradient = state.gradient + modulus * point.w
        step, residual = np.zeros(engine.shape), -gradient
        scaled = residual / diagonal
        conjugate = scaled.copy()
        size = first = float(np.vdot(residual, scaled))
        for _ in range(min(_MAX_PRODUCTS, 10 + 2 * gradient.size)):
            if size <= _FORCING**2 * first or run.exhausted:
                break
            image = engine.hessian_product(*matrix, conjugate, caution)
            image += modulus * conjugate
            run.passes += 1
            curvature = float(np.vdot(conjugate, image))
            if curvature <= 0.0:
                break
            length = size / curvature
            step += length * conjugate
            residual -= length * image
            scaled = residual / diagonal
            new_size = float(np.vdot(residual, scaled))
            conjugate *= new_size / size
            conjugate += scaled
            size = new_size
        descent = -float(np.vdot(gradient, step))
        return Direction(step, descent, 0.5 * descent)
