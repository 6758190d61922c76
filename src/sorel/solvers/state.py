"""One iterate of the augmented Lagrangian, and a direction from there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem.problem import Problem
from sorel.solvers.line_search import search


class CostlyError(Exception):
    """The next steps would cost more than those of another method: `auto` knows which.

    `far` says that the next method should begin where the run began.
    """

    def __init__(self, far: bool = False) -> None:
        super().__init__()
        self.far = far


class Direction(NamedTuple):
    """A step, minus the slope of Phi along it, and the decrease that its model predicts."""

    delta: FloatArray
    descent: float
    decrease: float


class State:
    """Phi and its gradient at a point, for one centre and one eta.

    With eta = 0 the weights stay at the centre. With an infinite eta Phi is the objective itself,
    the weights are those of the risk, and there is no centre.

    Attributes
    ----------
    value : float
        Phi(w).
    gained : float
        |q - q_k|^2 / (2 eta): what the move of the weights away from the centre has cost Phi.
    gradient : array
        Of the losses under the weights; that of the penalty is not in it.
    predicted, length : float
        The decrease that the step to this point was to bring, and the part of it that was taken.
    """

    __slots__ = (
        "center", "dual", "eta", "gained", "gradient", "length", "penalty", "point", "predicted",
        "problem", "value",
    )  # fmt: skip

    def __init__(
        self, problem: Problem, point: Point, center: Dual, eta: float, dual: Dual | None = None
    ) -> None:
        engine = problem.engine
        self.problem, self.point, self.eta = problem, point, eta
        self.dual = engine.dual_step(center, point, eta) if dual is None else dual
        # A centre is a vector of length n: it is kept only where it is used.
        self.center = center if eta < np.inf else self.dual
        self.gained = 0.0
        if 0.0 < eta < np.inf:
            self.gained = engine.differences(self.dual, center).weights / (2.0 * eta)
        self.gradient = engine.gradient(point, self.dual)
        self.penalty = problem.penalty_value(point.w)
        self.value = engine.expected(point, self.dual) - self.gained + self.penalty
        self.predicted, self.length = np.inf, 1.0

    @property
    def slope(self) -> FloatArray:
        """The gradient of Phi under a quadratic penalty."""
        return self.gradient + self.problem.modulus() * self.point.w

    def in_order(self, target: float) -> bool:
        """Whether the first bracket of the certificate allows a gap of `target`.

        That of affine losses may be rounding, which a certificate alone can tell. The weights of
        the risk leave none.
        """
        if self.problem.loss.affine or self.eta == np.inf:
            return True
        return self.problem.engine.shortfall(self.point, self.dual) <= target

    def fenchel_young(self) -> float:
        """The second bracket of the certificate, up to the choice of the intercept."""
        problem = self.problem
        return problem.penalty.fenchel_young(
            problem.coefficients(self.point.w), -problem.coefficients(self.gradient)
        )

    def line_search(self, direction: Direction) -> State:
        """The state near the minimum along a direction; costs one pass."""
        point, dual, length = search(self, direction)
        new = State(self.problem, point, self.center, self.eta, dual)
        new.predicted, new.length = max(direction.decrease, 0.0), length
        return new
