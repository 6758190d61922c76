"""L-BFGS on the risk itself, around a Hessian that all steps share, or around its diagonal.

Where a risk weighs samples by their rank and no weight differs much from the next, the objective
is nearly smooth, and its gradient under the weights of the ranks is all that a step needs: one
pass. The first Hessian, for weights that stay put, is factorised once, or its diagonal does; what
the weights add as they follow the losses, pairs of steps and changes of the gradient tell (the
two-loop recursion: Nocedal, 1980; Liu and Nocedal, 1989). A run that slows is left to a method
with a centre for its weights: see :mod:`sorel.solvers.augmented`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from sorel._lib.floats import TINY
from sorel.certificate import Path, unit
from sorel.certificate.rounding import ROUNDINGS
from sorel.engines.base import FloatArray
from sorel.engines.curvature import WORTH_SAMPLING
from sorel.models.costs import sampled_rows
from sorel.problem.problem import Problem
from sorel.solvers.augmented import AugmentedLagrangian, Start
from sorel.solvers.base import Iterates, Run, UnsupportedProblemError, rehearse
from sorel.solvers.schedule import Pace
from sorel.solvers.state import CostlyError, Direction, State

# Pairs that are kept, and steps around a matrix that are worth it: about as many as it takes to
# halve a gap down to 1e-6.
_MEMORY = 20

# Steps around a diagonal over which their pace is measured: it is uneven.
_LOOK_BACK = 8

# Relative gap above which the ranks tell little of the weights, and to which a sample is solved.
_FAR = 1e-3

Inverse = Callable[[FloatArray], FloatArray]


class QuasiNewton(AugmentedLagrangian):
    """Steps from gradients around one matrix or a diagonal, for `auto`: for one run, under L2.

    Parameters
    ----------
    diagonal_steps : float
        Steps around the diagonal that are worth it. 0 begins with the matrix.
    matrix : bool
        Whether to go on around a matrix when these do not suffice. Else, and when steps around a
        new matrix slow, too, the run ends by a CostlyError.

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

    # The weights are those of the ranks all along.
    pace: ClassVar[Pace] = Pace(math.inf, warm=math.inf)

    # The decrease predicted for the next step is about what is left.
    promising: ClassVar[float] = 0.1

    def __init__(self, diagonal_steps: float = math.inf, matrix: bool = True) -> None:
        self._diagonal_steps, self._matrix = diagonal_steps, matrix
        self._pairs: Pairs | None = None
        self._last: tuple[FloatArray, FloatArray] | None = None
        self._next: Direction | None = None
        self._on_sample = False

    def check(self, problem: Problem) -> None:
        if not problem.penalty.quadratic:
            raise UnsupportedProblemError(
                f"solver {self.name!r} needs the smooth penalty L2, got {problem.penalty!r}; "
                "use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        self._on_sample = self._matrix and run.dual is None and _start_on_sample(problem, run)
        try:
            yield from super().iterates(problem, run)
        finally:
            # These pairs know nothing of what later methods find out.
            run.known.approximate_inverse = None

    def _start(self, problem: Problem, run: Run, path: Path) -> Start:
        if not self._on_sample:
            return (yield from super()._start(problem, run, path))
        # The solution for a sample is nearer than that for the plain average.
        run.passes += 1
        return problem.engine.point(run.w)

    def direction(self, state: State, run: Run, damping: float) -> Direction:
        if self._next is not None:
            return self._next
        # The step for the plain average, from where the run starts.
        pairs = self._begin(state, run, damping)
        if not (pairs.rough or state.problem.has_fixed_weights or state.problem.bends_evenly):
            # The matrix for equal weights is of no use for the weights of the risk.
            self._pairs = run.known.matrix = None
        return pairs.direction(state.slope)

    def predicted_decrease(self, state: State, run: Run, target: float) -> float:
        w, slope = state.point.w, state.slope
        pairs = self._pairs or self._begin(state, run)
        if self._last is not None:
            pairs.add(w - self._last[0], slope - self._last[1])
        self._last, self._next = (w, slope), pairs.direction(slope)
        if self._next.decrease > target and pairs.is_slow(target):
            if not self._matrix or pairs.is_new:
                size = unit(state.problem, state.value, state.point)
                far = self._next.decrease > _FAR * size and not state.problem.has_fixed_weights
                raise CostlyError(far)
            if not pairs.rough:
                run.known.matrix = None
            self._diagonal_steps = 0.0
            self._next = self._begin(state, run).direction(slope)
        return self._next.decrease

    def _begin(self, state: State, run: Run, damping: float = 0.0) -> Pairs:
        """Begin around the diagonal, a matrix that is known, or that of the weights here."""
        problem, known = state.problem, run.known
        if self._diagonal_steps > 0.0:
            curvature = problem.engine.curvature(state.point, state.dual)
            diagonal = curvature.diagonal() + problem.modulus()
            # A flat intercept has no curvature to divide by.
            inverse = 1.0 / np.where(diagonal > 0.0, diagonal, 1.0)
            self._pairs = Pairs(lambda v: inverse * v, self._diagonal_steps, rough=True)
            known.approximate_inverse = self._pairs.solve
            run.passes += 1
            return self._pairs
        made = known.matrix is None
        if made:
            rows = None if problem.is_quadratic else sampled_rows(problem.engine.size)
            curvature = problem.engine.curvature(state.point, state.dual, 0.0, damping)
            known.matrix = curvature.matrix(rows)
            run.passes += 1
        factor = known.factor(problem)
        if factor is None:
            raise CostlyError
        known.approximate_inverse = None
        self._pairs = Pairs(factor, _MEMORY, made=made)
        return self._pairs


class Pairs:
    """Steps and changes of the gradient along them, which tell of an inverse Hessian.

    Parameters
    ----------
    inverse : callable
        Multiplies by the inverse around which they are set.
    max_steps : float
        Steps that are worth it.
    rough : bool
        Whether that inverse is to be scaled by what the last step tells.
    made : bool
        Whether it was made here, and not for a similar problem.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.solvers.quasi_newton import Pairs
    >>> H = np.diag([1.0, 4.0])
    >>> pairs = Pairs(lambda v: v.copy())
    >>> for step in np.eye(2):
    ...     pairs.add(step, H @ step)
    >>> pairs.solve(np.array([1.0, 4.0]))
    array([1., 1.])
    """

    def __init__(
        self,
        inverse: Inverse,
        max_steps: float = math.inf,
        *,
        rough: bool = False,
        made: bool = False,
    ) -> None:
        self._inverse, self._max_steps, self.rough, self._made = inverse, max_steps, rough, made
        self._pairs: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=_MEMORY)
        self._predicted: list[float] = []

    @property
    def is_new(self) -> bool:
        """Whether another matrix would tell no more."""
        return self._made and len(self._predicted) <= 2

    @property
    def count(self) -> int:
        """Pairs that are kept."""
        return len(self._pairs)

    def add(self, step: FloatArray, change: FloatArray) -> None:
        """Take note of a step and the change of the gradient along it."""
        bend = float(np.vdot(step, change))
        lengths = float(np.vdot(step, step)) * float(np.vdot(change, change))
        if bend > ROUNDINGS * math.sqrt(lengths):
            self._pairs.append((step, change, bend))

    def solve(self, gradient: FloatArray) -> FloatArray:
        """The inverse times a vector: the two-loop recursion."""
        v, shares = gradient.copy(), []
        for step, change, bend in reversed(self._pairs):
            shares.append(float(np.vdot(step, v)) / bend)
            v -= shares[-1] * change
        v = self._inverse(v)
        if self.rough and self._pairs:
            _, change, bend = self._pairs[-1]
            v *= bend / float(np.vdot(change, self._inverse(change)))
        for step, change, bend in self._pairs:
            v += (shares.pop() - float(np.vdot(change, v)) / bend) * step
        return v

    def direction(self, slope: FloatArray) -> Direction:
        """The next direction."""
        step = -self.solve(slope)
        descent = -float(np.vdot(slope, step))
        self._predicted.append(max(0.5 * descent, 0.0))
        return Direction(step, descent, 0.5 * descent)

    def is_slow(self, target: float) -> bool:
        """Whether it takes too many steps to a decrease of `target`, at the pace of the last."""
        count, predicted = _LOOK_BACK if self.rough else 1, self._predicted
        if len(predicted) < 2 * count:
            return False
        before, recent = sum(predicted[-2 * count : -count]), sum(predicted[-count:])
        if before <= recent:
            return True
        left = count * math.log(recent / max(target, TINY)) / math.log(before / recent)
        return len(predicted) + left > self._max_steps


def _start_on_sample(problem: Problem, run: Run) -> bool:
    """Move the start to the solution for some of the rows, where rows are many; whether it moved.

    The first digits are the same for a sample and for all rows, and a sample costs next to nothing.
    The matrix of a squared loss serves steps from anywhere (2026-11: 0.85 without the sample).
    """
    engine, n, rows = problem.engine, problem.n_samples, sampled_rows(problem.engine.size)
    if WORTH_SAMPLING * rows > n or problem.bends_evenly or engine.obstacle("on_rows") is not None:
        return False
    # Always the same rows, so that a run is the same every time.
    part = engine.on_rows(np.sort(np.random.default_rng(0).choice(n, rows, replace=False)))
    if part is None:
        return False
    sample = problem.with_engine(part)
    # Where the start is as good for the sample, it may be the solution.
    least = (1.0 - _FAR) * sample.objective(problem.for_user(run.w))
    moved = False
    inner = Run(run.w, None, _FAR, run.max_passes, run.deadline, run.random_state)
    try:
        method = QuasiNewton(0.0).iterates(sample, inner)
        for iterate, certificate in rehearse(method, sample, inner):
            if certificate.relative_gap <= _FAR:
                if certificate.primal < least:
                    run.w, moved = iterate.point.w, True
                break
    except CostlyError:
        pass
    run.passes += inner.passes * rows / n
    return moved
