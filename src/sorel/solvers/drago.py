"""Drago of Mehta, Diakonikolas and Harchaoui (2024): blocks of rows, cyclic tables, random steps.

For the smoothed saddle function q . l(w) + g(w) - nu/2 |q - 1|^2, with the table G of gradients
q_i grad_i and the table L of losses, both renewed block after block, and random blocks I and J,

    w <- argmin_w  (sum of G + N/(1+a) [q grad - G']_I) . w  + g(w) + mu b/2 |w - w_prev|^2,
    q <- argmax_q  (L + N/(1+a) [l(w) - L']_J) . q  - nu/2 |q - 1|^2 - nu b/2 |q - q_prev|^2,

where G' and L' are the tables of one step before, N is the number of blocks and b = 1/(a (1 + a)).
"""

from __future__ import annotations

import math
from typing import ClassVar

from sorel.engines.base import Dual, FloatArray, Point
from sorel.engines.batches import Batches
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_positive, proximal_step
from sorel.solvers.stochastic_pd import PATIENCE, measured_coupling

# The smoothing where none is given, in parts of the spread of the losses.
_SMOOTHING = 1e-3


class Drago(FirstOrder):
    """Stochastic primal-dual method for the smoothed risk.

    It converges to the optimum of a smoothed problem. The weights there fall short of the worst
    case by at most nu/2 (n sum_i sigma_i^2 - 1), and that much of a gap may stay: the status says
    how much. A step takes gradients of two blocks and losses of a third, counted as 3/N passes; the
    evaluation behind each check is not counted, for the method does not need it.

    Parameters
    ----------
    rate : float, optional
        The number a above; steps are a/mu in w and a/nu in q. None takes the least of what the
        curvature of the losses, their Jacobian at the start and the number of blocks suggest, and
        halves that when the gap no longer falls.
    nu : float, optional
        Strength of the smoothing; None takes a thousandth of the spread of the losses.
    block_size : int, optional
        Rows in a block; None takes n // d, as published.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.Drago(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "drago"
    operations: ClassVar[tuple[str, ...]] = ("batches", "smoothness")
    compiled_penalty: ClassVar[bool] = False

    def __init__(
        self, rate: float | None = None, nu: float | None = None, block_size: int | None = None
    ) -> None:
        self.rate = check_positive("rate", rate)
        self.nu = check_positive("nu", nu)
        self.block_size = None if block_size is None else check_count("block_size", block_size)

    def obstacle(self, problem: Problem) -> str | None:
        if problem.penalty.l2 == 0.0:
            return (
                "measures its steps by the modulus of strong convexity, which is 0 for "
                f"{problem.penalty!r}"
            )
        return super().obstacle(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, n = problem.engine, Watch(problem, run), problem.n_samples
        point = watch.start()
        run.passes += 1
        nu = self.nu if self.nu is not None else default_smoothing(problem, point)
        dual = run.dual if run.dual is not None else engine.uniform()
        size = self.block_size or max(1, n // problem.n_features)
        batches = engine.stochastic().batches(-(-n // size), run.rng)
        rate = self.rate if self.rate is not None else _rate(problem, run, nu, batches.n_blocks)
        allowed = smoothing_gap(problem, nu)
        remark = f"smoothing with nu={nu:.3g} may leave a gap of {allowed:.2g}"
        run.note = remark
        reply = yield from watch.check(point, dual)
        lowest, best, idle = reply.gap, (point, dual), 0
        tables = _Tables(problem, batches, *best)
        while True:
            w, dual = tables.cycle(run, rate, nu)
            moved = watch.point(w, f"lower rate={rate:.3g}")
            if moved is not None:
                reply = yield from watch.check(moved, dual)
                idle += 1
                if reply.gap < lowest:
                    lowest, best, idle = reply.gap, (moved, dual), 0
            elif self.rate is not None:
                return
            # What the smoothing allows is no reason to slow down.
            failed = idle > PATIENCE and lowest > allowed
            if self.rate is None and (moved is None or failed):
                rate, idle, run.note = 0.5 * rate, 0, remark
                tables = _Tables(problem, batches, *best)
                run.passes += 1


class _Tables:
    """w, q, and the tables: of losses, and of gradients now and one step before."""

    def __init__(self, problem: Problem, batches: Batches, point: Point, dual: Dual) -> None:
        self._problem, self._batches = problem, batches
        self._w, self._dual = point.w, dual
        self._losses, self._slopes = batches.losses(point), batches.slopes(point, dual)
        self._before, self._renewed = self._slopes.copy(), 0
        self._total = problem.engine.gradient(point, dual)

    def cycle(self, run: Run, rate: float, nu: float) -> tuple[FloatArray, Dual]:
        """A step for every block, whose tables it renews."""
        l2, batches, blocks = self._problem.penalty.l2, self._batches, self._batches.n_blocks
        pull = 1.0 / (rate * (1.0 + rate))
        scale, step, share = blocks / (1.0 + rate), 1.0 / (l2 * pull), 1.0 / (1.0 + pull)
        w, dual = self._w, self._dual
        for k, (i, j) in enumerate(run.rng.integers(blocks, size=(blocks, 2))):
            estimate = batches.gradient(batches.evaluate(i, w), dual, self._before)
            w = proximal_step(self._problem, w, self._total + scale * estimate, step)
            part, probe = batches.evaluate(k, w), batches.evaluate(j, w)
            renewed = batches.correct(self._losses, 1.0, part, self._losses)
            target = batches.correct(renewed, scale, probe, self._losses)
            dual = batches.dual_step(dual, target, share / nu, pull * share, share)
            self._losses = renewed
            batches.copy(self._before, self._renewed, self._slopes)
            self._renewed = k
            self._total = self._total + batches.store(self._slopes, part, dual)
            run.passes += 3.0 / blocks
        run.n_iter += 1
        self._w, self._dual = w, dual
        return w, dual


def default_smoothing(problem: Problem, start: Point) -> float:
    """The nu of a run that is given none."""
    return _SMOOTHING * problem.loss_scale(start)


def smoothing_gap(problem: Problem, nu: float) -> float:
    """nu/2 max |q - 1|^2 over the dual set: what the weights of the smoothed problem may lack.

    With sample weights the maximum depends on who is on top, and this is near it.
    """
    return 0.5 * nu * (1.0 / problem.risk.effective_share(problem.n_samples) - 1.0)


def _rate(problem: Problem, run: Run, nu: float, blocks: int) -> float:
    """The rate from the curvature of a block's estimate and the measured coupling of w and q."""
    engine, mu = problem.engine, problem.penalty.l2
    smooth = engine.stochastic().smoothness()
    curvature = smooth.average + smooth.component * blocks / problem.n_samples
    point = engine.point(run.w)
    gradient = engine.gradient(point, engine.worst_case(point))
    run.passes += 1
    coupling = measured_coupling(problem, point, gradient, 1.0 / (curvature + mu))
    rates = [1.0 / blocks]
    if curvature > 0.0:
        rates.append(mu / curvature)
    if coupling > 0.0:
        rates.append(math.sqrt(mu * nu / (blocks * coupling)))
    return min(rates)
