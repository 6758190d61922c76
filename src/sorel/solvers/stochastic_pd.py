"""Variance-reduced accelerated primal-dual steps on mini-batches, after Hamedani and Jalilzadeh.

With a snapshot (w~, q~) of all losses and the gradient, and random blocks I and J of N in all,

    q+ = Proj( q + sig ( l~ + N [(1 + theta) l(w) - theta l(w_prev) - l~]_J ) ),
    w+ = prox_{tau g}( w - tau ( grad~ + N [q+ grad(w) - q~ grad(w~)]_I ) ),      sig = gamma tau.

N steps are a round, and the last iterate of a round is the next snapshot.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem import Problem
from sorel.solvers.apd import Restarts
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_flag

import os
_CURV = float(os.environ.get("SP_CURV", "1.0"))
_COUP = float(os.environ.get("SP_COUP", "1.0"))


class StochasticPD(FirstOrder):
    name: ClassVar[str] = "stochastic_pd"
    operations: ClassVar[tuple[str, ...]] = ("batches", "smoothness", "loss_distance")
    compiled_penalty: ClassVar[bool] = False

    def __init__(self, adaptive: bool = True, batch_size: int | None = None) -> None:
        self.adaptive = check_flag("adaptive", adaptive)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, n = problem.engine, Watch(problem, run), problem.n_samples
        point = watch.start()
        dual = run.dual if run.dual is not None else engine.worst_case(point)
        reply = yield Iterate(point, dual, None, watch.refine())
        watch.saw(reply)
        size = self.batch_size or max(1, round(math.sqrt(n)))
        batches = engine.batches(-(-n // size), run.rng)
        blocks = batches.n_blocks
        gradient = engine.gradient(point, dual)
        run.passes += 1
        coupling = _coupling(problem, point, gradient)
        run.passes += 1
        gamma = 1.0 / engine.loss_scale(point)
        smooth = engine.smoothness()
        curvature = smooth.average + smooth.component * blocks / n + problem.penalty.l2
        tau = 1.0 / curvature
        gamma /= tau
        safety = 1.0
        restarts = Restarts(point, dual, reply.gap)
        best = reply.gap
        while True:
            # tau curvature + sigma tau coupling blocks <= 1
            c = _COUP * gamma * coupling * blocks
            b = _CURV * curvature
            tau = 2.0 / (b + math.sqrt(b * b + 4 * c)) / safety
            sigma = gamma * tau
            losses, slopes = batches.losses(point), batches.slopes(point, dual)
            w, before, q = point.w, point.w, dual
            for _ in range(blocks):
                i, j = run.rng.integers(blocks, size=2)
                now = batches.evaluate(j, w)
                last = now if before is w else batches.evaluate(j, before)
                target = batches.correct(losses, blocks, now, losses)
                target = batches.correct(target, blocks, now, last)
                q = batches.ascend(q, target, sigma)
                estimate = gradient + blocks * batches.gradient(batches.evaluate(i, w), q, slopes)
                before, w = w, w - tau * estimate
                coef = problem.coefficients(w)
                coef[...] = problem.penalty.prox(coef, tau)
            run.passes += 4
            run.n_iter += 1
            moved = watch.point(w, "x")
            if moved is None:
                return
            square = float(np.sum((moved.w - point.w) ** 2))
            if square > 0:
                seen = engine.loss_distance(moved, point) / square
                coupling = max(0.8 * coupling, seen)
            point, dual = moved, q
            gradient = engine.gradient(point, dual)
            reply = yield Iterate(point, dual, gradient, watch.refine())
            watch.saw(reply)
            if os.environ.get("V"):
                print(run.passes, reply.gap, "tau", tau, "gamma", gamma, "coup", coupling)
            if restarts.due(reply.gap, run.n_iter):
                gamma = restarts.balanced(problem, point, dual, gamma)
                restarts.begin(point, dual, reply.gap, run.n_iter)


def _coupling(problem: Problem, point: Point, gradient: FloatArray) -> float:
    engine = problem.engine
    square = float(np.vdot(gradient, gradient))
    if square == 0.0:
        return 0.0
    step = 1.0 / engine.smoothness().average
    return engine.loss_distance(engine.point(point.w - step * gradient), point) / (step**2 * square)
