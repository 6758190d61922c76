"""Variance-reduced primal-dual steps on mini-batches, after Hamedani and Jalilzadeh (2023).

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
from sorel.problem.problem import Problem
from sorel.solvers.apd import Restarts, measured_balance
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_flag, proximal_step

# Share of the bound on the curvature that adaptive steps take: few problems attain the bound.
_CURVATURE_SHARE = 0.5

# Factor of the measured coupling of w and q from one round to the next.
_MEMORY = 0.95

# Rounds without a lower gap after which what is left is noise.
PATIENCE = 100

# Share of the coupling in the steps, at least: a smaller gamma slows q and gains nothing for w.
_LEAST_COUPLING = 0.25


class StochasticPD(FirstOrder):
    """Stochastic primal-dual method for the risk itself, without smoothing.

    A step moves all n weights by a projection, so that blocks of sqrt(n) rows cost no more than it.
    A round takes the gradients of n samples, the losses of 2n and those of the snapshot: 4 passes.

    Parameters
    ----------
    adaptive : bool, default=True
        Measures the coupling of w and q, balances the steps by how far both have gone, and halves
        them where a round diverged. False takes constant steps from bounds that hold everywhere
        and returns the mean of the rounds, the form for which rates are proved.
    batch_size : int, optional
        Rows in a block; None takes sqrt(n).

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
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
        dual = watch.start_dual(point)
        run.passes += 1
        yield from watch.check(point, dual)
        size = self.batch_size or max(1, round(math.sqrt(n)))
        batches = engine.stochastic().batches(-(-n // size), run.rng)
        rounds = self._adaptive if self.adaptive else self._constant
        yield from rounds(problem, run, watch, batches, point, dual)

    def _adaptive(
        self, problem: Problem, run: Run, watch: Watch, batches: Batches, point: Point, dual: Dual
    ) -> Iterates:
        engine, before = problem.engine, point.w
        gradient = engine.gradient(point, dual)
        curvature = _CURVATURE_SHARE * _curvature(problem, batches.n_blocks)
        coupling = batches.n_blocks * measured_coupling(problem, point, gradient, 1.0 / curvature)
        run.passes += 1
        gamma, safety = curvature / problem.loss_scale(point), 1.0
        anchor, restarts = (point, dual), Restarts(math.inf)
        lowest, best, idle = math.inf, (point, dual), 0
        while True:
            if coupling > 0.0:
                gamma = max(gamma, _LEAST_COUPLING * curvature**2 / coupling)
            tau = _step(curvature, gamma * coupling) / safety
            w, last, new, seen = _round(
                problem, run, batches, point, before, dual, gradient, tau, gamma * tau
            )
            coupling = max(_MEMORY * coupling, seen)
            moved = watch.point(w, "a round of shorter steps follows")
            if moved is None:
                run.note, safety = "", 2.0 * safety
                (point, dual), before = best, best[0].w
                gradient = engine.gradient(point, dual)
                continue
            point, before, dual = moved, last, new
            gradient = engine.gradient(point, dual)
            reply = yield from watch.check(point, dual, gradient)
            idle += 1
            if reply.gap < lowest:
                lowest, best, idle = reply.gap, (point, dual), 0
            if idle > PATIENCE and batches.n_blocks > 1:
                # Blocks of twice as many rows.
                coupling /= batches.n_blocks
                batches, idle = engine.stochastic().batches(-(-batches.n_blocks // 2), run.rng), 0
                coupling *= batches.n_blocks
                curvature = _CURVATURE_SHARE * _curvature(problem, batches.n_blocks)
            if restarts.due(reply.gap, run.n_iter, 1):
                gamma = measured_balance(problem, gamma, anchor, (point, dual))
                anchor = point, dual
                restarts.begin(reply.gap, run.n_iter)

    def _constant(
        self, problem: Problem, run: Run, watch: Watch, batches: Batches, point: Point, dual: Dual
    ) -> Iterates:
        engine, blocks = problem.engine, batches.n_blocks
        curvature = _curvature(problem, blocks)
        gamma = curvature / problem.loss_scale(point)
        value = engine.risk(point) + problem.penalty_value(point.w)
        tau = _step(curvature, gamma * blocks * engine.stochastic().jacobian_bound(value))
        mean_w, mean, before = point.w, dual, point.w
        while True:
            gradient = engine.gradient(point, dual)
            w, before, dual, _ = _round(
                problem, run, batches, point, before, dual, gradient, tau, gamma * tau
            )
            moved = watch.point(w, "the bounds do not hold on its way; set adaptive=True")
            if moved is None:
                return
            point = moved
            share = 1.0 / run.n_iter
            mean_w = mean_w + share * (point.w - mean_w)
            mean = engine.blend(mean, dual, share)
            yield from watch.check(engine.point(mean_w), mean)


def _round(
    problem: Problem,
    run: Run,
    batches: Batches,
    point: Point,
    before: FloatArray,
    dual: Dual,
    gradient: FloatArray,
    tau: float,
    sigma: float,
) -> tuple[FloatArray, FloatArray, Dual, float]:
    """A round around a snapshot, whose gradient is given: its last iterates, and the coupling.

    That is the mean square of the estimated change of the losses over that of the change of w.
    """
    blocks, ways, changes = batches.n_blocks, 0.0, 0.0
    losses, slopes = batches.losses(point), batches.slopes(point, dual)
    w = point.w
    for i, j in run.rng.integers(blocks, size=(blocks, 2)):
        now, last = batches.evaluate(j, w), batches.evaluate(j, before)
        ways += float(np.sum((w - before) ** 2))
        changes += blocks**2 * batches.square_distance(now, last)
        target = batches.correct(losses, blocks, now, losses)
        target = batches.correct(target, blocks, now, last)
        dual = batches.dual_step(dual, target, sigma)
        change = batches.gradient(batches.evaluate(i, w), dual, slopes)
        before, w = w, proximal_step(problem, w, gradient + blocks * change, tau)
    run.passes += 4
    run.n_iter += 1
    return w, before, dual, changes / ways if ways > 0.0 else 0.0


def _curvature(problem: Problem, blocks: int) -> float:
    """A bound for the estimates of a gradient: all samples and one block of them."""
    smooth = problem.engine.stochastic().smoothness()
    share = blocks / problem.n_samples
    return smooth.average + share * smooth.component + problem.penalty.l2


def measured_coupling(problem: Problem, point: Point, gradient: FloatArray, step: float) -> float:
    """|l(w) - l(w')|^2 / |w - w'|^2 along a gradient step."""
    square = step**2 * float(np.vdot(gradient, gradient))
    if square == 0.0:
        return 0.0
    engine = problem.engine
    mean, moved = engine.uniform(), engine.point(point.w - step * gradient)
    return engine.differences(mean, mean, moved, point).losses / square


def _step(curvature: float, coupling: float) -> float:
    """The tau with tau curvature + tau^2 coupling = 1."""
    return 2.0 / (curvature + math.sqrt(curvature**2 + 4.0 * coupling))
