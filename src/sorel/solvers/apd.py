"""Accelerated primal-dual method with linearised losses, after Hamedani and Aybat (2021).

    q+ = Proj( q + sig [(1 + theta) l(w) - theta l(w_prev)] ),      theta = sig_prev / sig,
    w+ = prox_{tau g}( w - tau grad_w (q+ . l)(w) ),                sig = gamma tau,

with tau shortened until the step pays for the curvature and for the change of the losses,

    q+ . [l(w+) - l(w)] - grad.(w+ - w) + sig/(2 c) |l(w+) - l(w)|^2  <=  |w+ - w|^2 / (2 tau).

For losses that are linear in w this is the method of Chambolle and Pock.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, Point
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_flag

# The constant c of the test above.
_STEP_TEST = 0.9

# Factor of tau when the test fails.
_SHRINKAGE = 0.7

# Factor of tau after a step.
_GROWTH = 1.02

# A step shorter than this, relative to w, is rounding, and so is what the test compares.
_ROUNDING = 1e-14

# Iterations between two checks.
CHECK_EVERY = 20

# Restart when the gap is down to this share of that at the last restart. This and the next two are
# those of cuPDLP (Lu and Yang 2023).
SUFFICIENT_DECAY = 0.2

# Restart when it is down to this share and rising.
NECESSARY_DECAY = 0.8

# Restart when a round is this share of all iterations.
LONG_ROUND = 0.36


class APD(FirstOrder):
    """Full-batch primal-dual method for every penalty with a proximal map.

    An iteration is one pass, and so is each shortening of its step. A check follows every twentieth
    iteration.

    Parameters
    ----------
    adaptive : bool, default=True
        Lets the step grow again and restarts the extrapolation by the certified gap, each time with
        gamma balanced by how far q and w have gone. False is the published method: gamma grows by
        the modulus of the penalty, the step never does, and there are no restarts.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.APD(), tol=1e-6).converged
    True
    """

    name: ClassVar[str] = "apd"
    compiled_penalty: ClassVar[bool] = False

    def __init__(self, adaptive: bool = True) -> None:
        self.adaptive = check_flag("adaptive", adaptive)

    def obstacle(self, problem: Problem) -> str | None:
        loss = problem.loss
        if not loss.curvature_bound < math.inf:
            return f"takes gradient steps, and the {loss.name} loss has no bound on its curvature"
        return super().obstacle(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        point = previous = watch.start()
        dual = run.dual if run.dual is not None else engine.worst_case(point)
        reply = yield Iterate(point, dual, None, watch.refine())
        watch.saw(reply)
        tau = _first_step(problem, point, dual)
        run.passes += 2
        gamma = 1.0 / (problem.loss_scale(point) * tau)
        last_sigma = gamma * tau
        restarts = Restarts(point, dual, reply.gap)
        while True:
            while True:
                sigma = gamma * tau
                new_dual = engine.dual_step(dual, point, sigma, previous, last_sigma / sigma)
                gradient = engine.gradient(point, new_dual)
                w = point.w - tau * gradient
                coef = problem.coefficients(w)
                coef[...] = problem.penalty.prox(coef, tau)
                moved = engine.point(w)
                run.passes += 1
                step = w - point.w
                square = float(np.vdot(step, step))
                bend = engine.expected(moved, new_dual) - engine.expected(point, new_dual)
                bend -= float(np.vdot(gradient, step))
                change = engine.differences(new_dual, dual, moved, point).losses
                price = max(bend, 0.0) + sigma * change / (2.0 * _STEP_TEST)
                tiny = square <= _ROUNDING**2 * float(np.vdot(w, w))
                if price <= square / (2.0 * tau) or tiny or run.exhausted:
                    break
                tau *= _SHRINKAGE
            previous, point, dual, last_sigma = point, moved, new_dual, sigma
            run.n_iter += 1
            run.latest = Iterate(point, dual)
            if self.adaptive:
                tau *= _GROWTH
            else:
                growth = 1.0 + problem.penalty.l2 * tau
                gamma, tau = gamma * growth, tau / math.sqrt(growth)
            if run.n_iter % CHECK_EVERY == 0 or run.exhausted:
                reply = yield Iterate(point, dual, None, watch.refine())
                watch.saw(reply)
                if self.adaptive and restarts.due(reply.gap, run.n_iter):
                    gamma = restarts.balanced(problem, point, dual, gamma)
                    restarts.begin(point, dual, reply.gap, run.n_iter)
                    previous = point


def _first_step(problem: Problem, point: Point, dual: Dual) -> float:
    """1 over the trace of the Hessian of parabolas above the losses: short enough, or nearly."""
    engine = problem.engine
    curvature = float(np.sum(engine.curvature(point, dual, damping=1.0).diagonal()))
    curvature += problem.penalty.l2
    if curvature > 0.0:
        return 1.0 / curvature
    # Affine losses on a bounded domain bend nowhere: a step as long as the gradient is steep.
    slope = float(np.linalg.norm(engine.gradient(point, dual)))
    return 1.0 / slope if slope > 0.0 else 1.0


class Restarts:
    """When to restart, and the ratio gamma of dual and primal steps after it."""

    def __init__(self, point: Point, dual: Dual, gap: float) -> None:
        self.begin(point, dual, gap, 0)

    def begin(self, point: Point, dual: Dual, gap: float, n_iter: int) -> None:
        self._w, self._dual = point.w, dual
        self._first, self._last, self._n_iter = gap, math.inf, n_iter

    def due(self, gap: float, n_iter: int, least: int = CHECK_EVERY) -> bool:
        """Whether a round ends here; one of `least` iterations is too short to have failed."""
        rising, self._last = gap > self._last, gap
        enough = gap <= SUFFICIENT_DECAY * self._first or (
            rising and gap <= NECESSARY_DECAY * self._first
        )
        length = n_iter - self._n_iter
        return enough or (length > least and length >= LONG_ROUND * n_iter)

    def balanced(self, problem: Problem, point: Point, dual: Dual, gamma: float) -> float:
        """gamma halfway to the square of how far q has gone over how far w has."""
        primal = float(np.sum((point.w - self._w) ** 2))
        moved = problem.engine.differences(dual, self._dual).weights
        if not (primal > 0.0 and moved > 0.0):
            return gamma
        return math.sqrt(gamma * moved / primal)
