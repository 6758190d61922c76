"""What a run has learnt of the curvature, for its own steps and for its certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel.engines.base import FloatArray
from sorel.models.costs import LEAST_PRODUCTS, certifying_products
from sorel.models.working_sets import WorkingSet, WorkingSets

if TYPE_CHECKING:
    from sorel.problem.problem import Problem

Inverse = Callable[[FloatArray], FloatArray]


@dataclass
class KnownCurvature:
    """A Hessian nearby, and what else is kept from one step or certificate to the next.

    Attributes
    ----------
    matrix : array or None
        A Hessian of lam . l, without the penalty.
    approximate_inverse : callable or None
        Multiplies by about the inverse of the Hessian with its penalty; left by a method that knows
        it without a matrix.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.certificate import KnownCurvature
    >>> known = KnownCurvature()
    >>> problem = sorel.Problem(np.eye(200), np.ones(200), penalty=sorel.L2(1.0))
    >>> known.keep(problem, np.eye(200))
    True
    >>> bool(np.allclose(known.factor(problem)(np.ones(200)), 0.5))
    True
    >>> known.keep(problem, 3.0 * np.eye(200))
    True
    >>> bool(np.allclose(known.factor(problem)(np.ones(200)), 0.25))
    True
    """

    matrix: FloatArray | None = None
    approximate_inverse: Inverse | None = None
    _factor: tuple[FloatArray, float, FloatArray | None] | None = None
    _sets: WorkingSets | None = None

    def keep(self, problem: Problem, hessian: FloatArray) -> bool:
        """Keep a Hessian, if there is something to be gained from that."""
        # Products that this one preconditions may cost more than the next Hessian.
        single = problem.engine.n_outputs == 1
        if not (single and self._serves(problem)):
            return False
        if certifying_products(problem.engine) <= LEAST_PRODUCTS:
            return False
        self.matrix = hessian
        return True

    def factor(self, problem: Problem) -> Inverse | None:
        """Solves systems with the matrix and the penalty of a problem; None without a matrix."""
        matrix, l2 = self.matrix, problem.penalty.l2
        if matrix is None or not self._serves(problem):
            return None
        if self._factor is None or self._factor[0] is not matrix or self._factor[1] != l2:
            found, failed = dpotrf((matrix + np.diag(problem.modulus())).T, lower=1, clean=0)
            self._factor = matrix, l2, None if failed else found
        factor = self._factor[2]
        return None if factor is None else lambda residual: dpotrs(factor, residual, lower=1)[0]

    def inverse(self, problem: Problem) -> Inverse | None:
        """What multiplies by about the inverse of the Hessian, if anything is known of it."""
        return self.factor(problem) or self.approximate_inverse

    def part(self, problem: Problem, w: FloatArray, gradient: FloatArray) -> WorkingSet:
        """The parameters that a second-order step from w should move."""
        sets = self._sets
        if sets is None or sets.engine is not problem.engine or sets.penalty is not problem.penalty:
            sets = self._sets = WorkingSets(problem.engine, problem.penalty)
        return sets.choose(w, gradient)

    @staticmethod
    def _serves(problem: Problem) -> bool:
        return problem.penalty.quadratic and problem.engine.in_memory
