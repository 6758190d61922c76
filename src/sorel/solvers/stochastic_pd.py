"""Variance-reduced accelerated primal-dual steps on mini-batches, after Hamedani and Jalilzadeh.

With a snapshot (w~, q~), its losses l~ and its gradient, and random blocks I and J of N in all,

    q+ = Proj( q + sig ( l~ + N [(1 + theta) l(w) - theta l(w_prev) - l~]_J ) ),
    w+ = prox_{tau g}( w - tau ( grad~ + N [q+ grad(w) - q~ grad(w~)]_I ) ),      sig = gamma tau.

N such steps are a round, with theta = 1, and the last iterate of a round is the next snapshot.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray, Point
from sorel.engines.batches import Batches
from sorel.problem import Problem
from sorel.solvers.apd import Restarts
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_flag

# Adaptive steps take this part of the bound on the curvature, which few problems come near.
_CURVATURE = 0.5

# What the measured coupling of w and q forgets in a round, and how much of it at least goes into
# the steps: a smaller gamma would slow down q and gain nothing for w.
_MEMORY = 0.95
_LEAST = 0.25

# A round that multiplies the best gap by this is undone, with steps of half the length after it.
_WORSE = 10.0


class StochasticPD(FirstOrder):
    """Stochastic primal-dual method for the risk itself, without smoothing.

    A step moves all n weights by a projection, so that blocks of sqrt(n) rows cost no more than it.
    A round takes the gradients of n samples, the losses of 2n and those of the snapshot: 4 passes.

    Parameters
    ----------
    adaptive : bool, default=True
        Measures the coupling of w and q, balances the steps by how far both have gone and undoes
        rounds that failed. False takes constant steps from bounds that hold everywhere and returns
        the mean of the rounds, the form for which rates are proved.
    batch_size : int, optional
        Rows in a block; None takes sqrt(n).

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.StochasticPD(), tol=1e-3, random_state=0).converged
    True
    """

    name: ClassVar[str] = "stochastic_pd"
    operations: ClassVar[tuple[str, ...]] = ("batches", "smoothness", "jacobian_bound")
    compiled_penalty: ClassVar[bool] = False

    def __init__(self, adaptive: bool = True, batch_size: int | None = None) -> None:
        self.adaptive = check_flag("adaptive", adaptive)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size)

    def needs(self) -> tuple[str, ...]:
        if self.adaptive:
            return "batches", "smoothness", "loss_distance"
        return self.operations

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, n = problem.engine, Watch(problem, run), problem.n_samples
        point = watch.start()
        dual = run.dual if run.dual is not None else engine.worst_case(point)
        run.passes += 1
        watch.saw((yield Iterate(point, dual, None, watch.refine())))
        size = self.batch_size or max(1, round(math.sqrt(n)))
        batches = engine.batches(-(-n // size), run.rng)
        rounds = self._adaptive if self.adaptive else self._constant
        yield from rounds(problem, run, watch, batches, point, dual)

    def _adaptive(
        self, problem: Problem, run: Run, watch: Watch, batches: Batches, point: Point, dual: Dual
    ) -> Iterates:
        engine, blocks = problem.engine, batches.n_blocks
        gradient = engine.gradient(point, dual)
        curvature = _CURVATURE * _curvature(problem, blocks)
        coupling = blocks * _coupling(problem, point, gradient, 1.0 / curvature)
        run.passes += 1
        gamma, safety = curvature / engine.loss_scale(point), 1.0
        restarts = Restarts(point, dual, math.inf)
        best: tuple[float, Point, Dual] = (math.inf, point, dual)
        while True:
            if coupling > 0.0:
                gamma = max(gamma, _LEAST * curvature**2 / coupling)
            tau = _step(curvature, gamma * coupling) / safety
            w, new = _round(problem, run, batches, point, dual, gradient, tau, gamma * tau)
            reply = None
            moved = watch.point(w, f"raise batch_size={problem.n_samples // blocks}")
            if moved is not None:
                new_gradient = engine.gradient(moved, new)
                reply = yield Iterate(moved, new, new_gradient, watch.refine())
                watch.saw(reply)
            if moved is None or reply is None or reply.gap > _WORSE * best[0]:
                if safety > 1e6:
                    return
                run.note = ""
                safety *= 2.0
                _, point, dual = best
                gradient = engine.gradient(point, dual)
                continue
            square = float(np.sum((moved.w - point.w) ** 2))
            if square > 0.0:
                seen = blocks * engine.loss_distance(moved, point) / square
                coupling = max(_MEMORY * coupling, seen)
            point, dual, gradient = moved, new, new_gradient
            if reply.gap < best[0]:
                best = reply.gap, point, dual
            if restarts.due(reply.gap, run.n_iter, 1):
                gamma = restarts.balanced(problem, point, dual, gamma)
                restarts.begin(point, dual, reply.gap, run.n_iter)

    def _constant(
        self, problem: Problem, run: Run, watch: Watch, batches: Batches, point: Point, dual: Dual
    ) -> Iterates:
        engine, blocks = problem.engine, batches.n_blocks
        curvature = _curvature(problem, blocks)
        gamma = curvature / engine.loss_scale(point)
        value = engine.risk(point) + problem.penalty_value(point.w)
        tau = _step(curvature, gamma * blocks * engine.jacobian_bound(value))
        mean_w, mean = point.w, dual
        while True:
            gradient = engine.gradient(point, dual)
            w, dual = _round(problem, run, batches, point, dual, gradient, tau, gamma * tau)
            moved = watch.point(w, "the bounds do not hold on its way; set adaptive=True")
            if moved is None:
                return
            point = moved
            share = 1.0 / run.n_iter
            mean_w = mean_w + share * (point.w - mean_w)
            mean = engine.blend(mean, dual, share)
            watch.saw((yield Iterate(engine.point(mean_w), mean, None, watch.refine())))


def _round(
    problem: Problem,
    run: Run,
    batches: Batches,
    point: Point,
    dual: Dual,
    gradient: FloatArray,
    tau: float,
    sigma: float,
) -> tuple[FloatArray, Dual]:
    """The last iterates of a round around a snapshot, whose gradient is given."""
    blocks = batches.n_blocks
    losses, slopes = batches.losses(point), batches.slopes(point, dual)
    w = before = point.w
    for i, j in run.rng.integers(blocks, size=(blocks, 2)):
        now, last = batches.evaluate(j, w), batches.evaluate(j, before)
        target = batches.correct(losses, blocks, now, losses)
        dual = batches.ascend(dual, batches.correct(target, blocks, now, last), sigma)
        change = batches.gradient(batches.evaluate(i, w), dual, slopes)
        before, w = w, w - tau * (gradient + blocks * change)
        coef = problem.coefficients(w)
        coef[...] = problem.penalty.prox(coef, tau)
    run.passes += 4
    run.n_iter += 1
    return w, dual


def _curvature(problem: Problem, blocks: int) -> float:
    """A bound for the estimates of a gradient: all samples and one block of them."""
    smooth = problem.engine.smoothness()
    share = blocks / problem.n_samples
    return smooth.average + share * smooth.component + problem.penalty.l2


def _coupling(problem: Problem, point: Point, gradient: FloatArray, step: float) -> float:
    """|l(w) - l(w')|^2 / |w - w'|^2 along a gradient step."""
    square = step**2 * float(np.vdot(gradient, gradient))
    if square == 0.0:
        return 0.0
    engine = problem.engine
    return engine.loss_distance(engine.point(point.w - step * gradient), point) / square


def _step(curvature: float, coupling: float) -> float:
    """The tau with tau curvature + tau^2 coupling = 1."""
    return 2.0 / (curvature + math.sqrt(curvature**2 + 4.0 * coupling))
