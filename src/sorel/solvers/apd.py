"""Accelerated primal-dual method with linearised losses, after Hamedani and Aybat (2021).

    q+ = Proj( q + sig [(1 + theta) l(w) - theta l(w_prev)] ),      theta = sig_prev / sig,
    w+ = prox_{tau g}( w - tau grad_w (q+ . l)(w) ),                sig = gamma tau,

with tau shortened until the step pays for the curvature and for the change of the losses,

    q+ . [l(w+) - l(w)] - grad.(w+ - w) + sig/2 |l(w+) - l(w)|^2  <=  |w+ - w|^2 / (2 tau).

For losses that are linear in w this is the method of Chambolle and Pock (2011).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sorel._lib.floats import EPS
from sorel.engines.base import Dual, Point
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_flag, proximal_step, step_for

# Factor of tau after a step that passed the test (24 random problems to 1e-6: a quarter fewer
# passes than with 1.02).
_GROWTH = 1.05

# Iterations between two checks.
CHECK_EVERY = 10

# Restart when the measure of optimality is down to this share of that at the last restart. This
# and the next two are those of cuPDLP (Lu and Yang 2023).
SUFFICIENT_DECAY = 0.2

# Restart when it is down to this share and rising.
NECESSARY_DECAY = 0.8

# Restart when a round is this share of all iterations.
LONG_ROUND = 0.36


class APD(FirstOrder):
    """Full-batch primal-dual method for every penalty with a proximal map.

    An iteration is one pass, and so is each shortening of its step. A check follows every tenth
    iteration.

    Parameters
    ----------
    adaptive : bool, default=True
        Lets the step grow again and restarts the extrapolation by the certified gap, each time with
        gamma balanced by how far q and w have gone. False is the published method: gamma grows by
        the modulus of the penalty, the step never does, and there are no restarts.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
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
        dual = watch.start_dual(point)
        reply = yield from watch.check(point, dual)
        tau = _first_step(problem, point, dual)
        run.passes += 2
        gamma = 1.0 / (problem.loss_scale(point) * tau)
        last_sigma = gamma * tau
        anchor, restarts = (point, dual), Restarts(reply.gap)
        while True:
            while True:
                sigma = gamma * tau
                new_dual = engine.dual_step(dual, point, sigma, previous, last_sigma / sigma)
                gradient = engine.gradient(point, new_dual)
                w = proximal_step(problem, point.w, gradient, tau)
                moved = engine.point(w)
                run.passes += 1
                step = w - point.w
                square = float(np.vdot(step, step))
                bend = engine.expected(moved, new_dual) - engine.expected(point, new_dual)
                bend -= float(np.vdot(gradient, step))
                change = engine.differences(new_dual, dual, moved, point).losses
                paid = max(bend, 0.0) + 0.5 * sigma * change <= square / (2.0 * tau)
                # What the test compares is rounding where the step is.
                if paid or square <= EPS**2 * float(np.vdot(w, w)) or run.exhausted:
                    break
                tau *= 0.5
            previous, point, dual, last_sigma = point, moved, new_dual, sigma
            run.n_iter += 1
            run.latest = Iterate(point, dual)
            if self.adaptive:
                tau *= _GROWTH
            else:
                growth = 1.0 + problem.penalty.l2 * tau
                gamma, tau = gamma * growth, tau / math.sqrt(growth)
            if run.n_iter % CHECK_EVERY == 0 or run.exhausted:
                reply = yield from watch.check(point, dual)
                if self.adaptive and restarts.due(reply.gap, run.n_iter, 2 * CHECK_EVERY):
                    gamma = measured_balance(problem, gamma, anchor, (point, dual))
                    anchor, previous = (point, dual), point
                    restarts.begin(reply.gap, run.n_iter)


def _first_step(problem: Problem, point: Point, dual: Dual) -> float:
    """1 over the trace of the Hessian of parabolas above the losses: short enough, or nearly."""
    engine = problem.engine
    curvature = float(np.sum(engine.curvature(point, dual, damping=1.0).diagonal()))
    curvature += problem.penalty.l2
    if curvature > 0.0:
        return 1.0 / curvature
    # Affine losses on a bounded domain have no curvature: the step goes by the gradient alone.
    return step_for(float(np.linalg.norm(engine.gradient(point, dual))))


class Restarts:
    """When a round of a primal-dual method ends (Applegate et al. 2021)."""

    def __init__(self, value: float) -> None:
        self.begin(value, 0)

    def begin(self, value: float, n_iter: int) -> None:
        """Begin a round with this measure of optimality."""
        self._first = self._last = value
        self._n_iter = n_iter

    def due(self, value: float, n_iter: int, least: int) -> bool:
        """Whether a round ends here; one of `least` iterations is too short to have failed."""
        rising, self._last = value > self._last, value
        enough = value <= SUFFICIENT_DECAY * self._first or (
            rising and value <= NECESSARY_DECAY * self._first
        )
        length = n_iter - self._n_iter
        return enough or (length > least and length >= LONG_ROUND * n_iter)


def balanced(ratio: float, primal: float, dual: float) -> float:
    """The geometric mean of a ratio of dual to primal steps and of what has been measured of it.

    `primal` and `dual` are the squares of how far both have gone.
    """
    return math.sqrt(ratio * dual / primal) if primal > 0.0 and dual > 0.0 else ratio


def measured_balance(
    problem: Problem, ratio: float, start: tuple[Point, Dual], end: tuple[Point, Dual]
) -> float:
    """The ratio of steps after a round from one point and weighting to another."""
    primal = float(np.sum((end[0].w - start[0].w) ** 2))
    return balanced(ratio, primal, problem.engine.differences(end[1], start[1]).weights)
