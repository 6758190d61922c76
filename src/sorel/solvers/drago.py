"""Drago of Mehta, Diakonikolas and Harchaoui (2024): blocks of rows, cyclic tables, random steps.

For the smoothed saddle function q . l(w) + g(w) - nu/2 |q - 1|^2, with the table G of gradients
q_i grad_i and the table L of losses, both renewed block after block, and random blocks I and J,

    w <- argmin_w  (sum of G + N/(1+a) [q grad - G2]_I) . w  + g(w) + mu b/2 |w - w_prev|^2,
    q <- argmax_q  (L + N/(1+a) [l(w) - L2]_J) . q  - nu/2 |q - 1|^2 - nu b/2 |q - q_prev|^2,

where G2 and L2 are the tables before their last renewal, N is the number of blocks and
b = 1 / (a (1 + a)).
"""

from __future__ import annotations

import math
from typing import ClassVar

from sorel.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_positive
from sorel.solvers.stochastic_pd import measured_coupling

# The smoothing where none is given, in parts of the spread of the losses.
_SMOOTHING = 1e-3

# The rate a is this part of the largest that curvature, coupling and the number of blocks suggest.
_SAFE = 0.5


class Drago(FirstOrder):
    """Stochastic primal-dual method for the smoothed risk.

    It converges to the optimum of a smoothed problem. The weights there fall short of the worst
    case by at most nu/2 (n sum_i sigma_i^2 - 1), and that much of a gap may stay: the status says
    how much. A step takes gradients of two blocks and losses of a third, counted as 3/N passes; the
    evaluation behind each check is not counted, for the method does not need it.

    Parameters
    ----------
    rate : float, optional
        The number a above; steps are a/mu in w and a/nu in q. None takes half of what the curvature
        of the losses, their Jacobian at the start and the number of blocks allow.
    nu : float, optional
        Strength of the smoothing; None takes a thousandth of the spread of the losses.
    block_size : int, optional
        Rows in a block; None takes n // d, as published.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.Drago(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "drago"
    operations: ClassVar[tuple[str, ...]] = ("batches", "smoothness", "loss_distance")
    compiled_penalty: ClassVar[bool] = False

    def __init__(
        self,
        rate: float | None = None,
        nu: float | None = None,
        block_size: int | None = None,
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
        mu = problem.penalty.l2
        point = watch.start()
        run.passes += 1
        nu = self.nu if self.nu is not None else _SMOOTHING * engine.loss_scale(point)
        dual = run.dual if run.dual is not None else engine.uniform()
        size = self.block_size or max(1, n // problem.n_features)
        batches = engine.batches(-(-n // size), run.rng)
        blocks = batches.n_blocks
        rate = self.rate if self.rate is not None else _rate(problem, run, nu, blocks)
        pull = 1.0 / (rate * (1.0 + rate))
        scale = blocks / (1.0 + rate)
        step = 1.0 / (mu * pull)
        losses, slopes = batches.losses(point), batches.slopes(point, dual)
        older_losses, older_slopes = losses.copy(), slopes.copy()
        total, w = engine.gradient(point, dual), point.w
        allowed = 0.5 * nu * (1.0 / engine.effective_share() - 1.0)
        run.note = f"smoothing with nu={nu:.3g} leaves a gap of up to {allowed:.2g}"
        while True:
            watch.saw((yield Iterate(point, dual, None, watch.refine())))
            for k in range(blocks):
                i, j = run.rng.integers(blocks, size=2)
                estimate = batches.gradient(batches.evaluate(i, w), dual, older_slopes)
                w = w - step * (total + scale * estimate)
                coef = problem.coefficients(w)
                coef[...] = problem.penalty.prox(coef, step)
                part, probe = batches.evaluate(k, w), batches.evaluate(j, w)
                target = batches.correct(losses, 1.0, part, losses)
                target = batches.correct(target, scale, probe, older_losses)
                share = 1.0 / (1.0 + pull)
                dual = batches.ascend(dual, target, share / nu, pull * share, share)
                batches.copy(older_losses, k, losses)
                losses = batches.correct(losses, 1.0, part, losses)
                batches.copy(older_slopes, k, slopes)
                total += batches.store(slopes, part, dual)
                run.passes += 3.0 / blocks
            run.n_iter += 1
            moved = watch.point(w, f"lower rate={rate:.3g}")
            if moved is None:
                return
            point = moved


def _rate(problem: Problem, run: Run, nu: float, blocks: int) -> float:
    """The rate from the curvature of a block's estimate and the measured coupling of w and q."""
    engine, mu = problem.engine, problem.penalty.l2
    smooth = engine.smoothness()
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
    return _SAFE * min(rates)
