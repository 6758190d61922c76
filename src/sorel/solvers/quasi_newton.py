"""Quasi-Newton steps inside the augmented Lagrangian: no product with a Hessian at all.

A direction comes from the last gradients (the two-loop recursion of L-BFGS), so that a step costs
one pass: the change of the margins, and a gradient. Where a risk weighs samples by their rank and
has many of them, Phi is nearly smooth even at a large eta, and few steps suffice.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray
from sorel.kernels import vectors
from sorel.problem import Problem
from sorel.solvers.augmented import AugmentedLagrangian, CostlyError, Direction, State
from sorel.solvers.base import Iterates, Run, UnsupportedProblemError
from sorel.solvers.newton_cg import Resting
from sorel.solvers.schedule import Pace

# Pairs of steps and changes of the gradient that are kept.
_MEMORY = 20

# A pair whose curvature is below this, relative to its lengths, is all rounding.
_FLAT = 1e-14

# The pace is judged by what so many steps promised, and as many before them. Weights that move make
# it uneven.
_LOOK_BACK, _LOOK_BACK_FIXED = 8, 4


class QuasiNewton(AugmentedLagrangian):
    """Steps from the last gradients, for `auto`: for one run, and for the smooth penalty L2.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.solvers.quasi_newton import QuasiNewton
    >>> X = np.random.default_rng(0).standard_normal((500, 20))
    >>> problem = sorel.Problem(X, X[:, 0], risk=sorel.ESRM(2.0))
    >>> sorel.solve(problem, solver=QuasiNewton()).converged
    True
    """

    name: ClassVar[str] = "quasi_newton"

    # Steps are cheap, so an inner problem may take many before eta is to blame.
    pace: ClassVar[Pace] = Pace(50.0, warm=50.0, growth=3.0, easy=20, full=0.0, short=0.02, hard=60)

    # What a step promised is about what is left.
    promising: ClassVar[float] = 0.1

    def __init__(self) -> None:
        self._pairs: _Pairs | None = None
        self._last: tuple[FloatArray, FloatArray, Dual, float] | None = None
        self._promises: list[float] = []
        self._most = math.inf

    def check(self, problem: Problem) -> None:
        if not problem.penalty.quadratic:
            raise UnsupportedProblemError(
                f"solver {self.name!r} needs the smooth penalty L2, got {problem.penalty!r}; "
                "use solver='auto'"
            )

    def most_steps(self, problem: Problem) -> float:
        """Steps that a run is worth: one that would take more is ended by a CostlyError."""
        return np.inf

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        if self._pairs is not None:
            run.known.approximate_inverse = self._pairs.solve
        try:
            yield from super().iterates(problem, run)
        finally:
            # What others come to know is not in these pairs.
            run.known.approximate_inverse = None

    def resting(self) -> AugmentedLagrangian:
        # Gradients of another Phi would be no news of this one.
        return Resting()

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        problem, w = state.problem, state.point.w
        gradient = state.gradient + problem.modulus() * w
        if self._pairs is None:
            curvature = problem.engine.curvature(state.point, state.dual)
            self._pairs = _Pairs(curvature.diagonal() + problem.modulus())
            run.known.approximate_inverse = self._pairs.solve
            self._most = self.most_steps(problem)
            run.passes += 1
        if self._last is not None:
            last_w, last_gradient, center, eta = self._last
            # Gradients of one and the same Phi.
            if center is state.center and eta == state.eta:
                self._pairs.add(w - last_w, gradient - last_gradient)
        self._last = w, gradient, state.center, state.eta
        step = -self._pairs.solve(gradient)
        descent = -float(np.vdot(gradient, step))
        self._promises.append(max(0.5 * descent, 0.0))
        left = self._steps_left(problem, problem.gap_wanted(run.tol, state.value, state.point))
        if len(self._promises) + left > self._most:
            raise CostlyError
        return Direction(step, descent, 0.5 * descent)

    def _steps_left(self, problem: Problem, target: float) -> float:
        """How many more steps it takes at the pace of the last ones."""
        count = _LOOK_BACK_FIXED if problem.has_fixed_weights else _LOOK_BACK
        recent = sum(self._promises[-count:])
        if len(self._promises) < 2 * count or not recent > target > 0.0:
            return 0.0
        before = sum(self._promises[-2 * count : -count])
        if before <= recent:
            return math.inf
        return count * math.log(recent / target) / math.log(before / recent)


class _Pairs:
    """The last steps, and what the gradient has changed by along them."""

    def __init__(self, diagonal: FloatArray) -> None:
        # A flat intercept has no curvature to divide by.
        self._diagonal = np.where(diagonal > 0.0, diagonal, 1.0).ravel()
        self._steps = np.empty((_MEMORY, diagonal.size))
        self._changes = np.empty_like(self._steps)
        self._bends = np.empty(_MEMORY)
        self._first = self._count = 0

    def add(self, step: FloatArray, change: FloatArray) -> None:
        bend = float(np.vdot(step, change))
        lengths = float(np.vdot(step, step)) * float(np.vdot(change, change))
        if not bend > _FLAT * math.sqrt(lengths):
            return
        if self._count == _MEMORY:
            self._first = (self._first + 1) % _MEMORY
            self._count -= 1
        place = (self._first + self._count) % _MEMORY
        self._steps[place], self._changes[place] = step.ravel(), change.ravel()
        self._bends[place] = bend
        self._count += 1

    def solve(self, gradient: FloatArray) -> FloatArray:
        """The inverse of the Hessian that the pairs stand for, times a vector."""
        out = gradient.flatten()
        vectors.quasi_newton_product(
            self._steps, self._changes, self._bends, self._first, self._count, self._diagonal, out
        )
        return out.reshape(gradient.shape)
