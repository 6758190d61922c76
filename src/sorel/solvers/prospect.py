"""Prospect of Mehta et al. (2024): tables of losses, gradients and weights, one entry at a time.

Per step, with samples i and j drawn uniformly and the weights q that the table of losses implies,

    w   <- w - alpha [ n q_i grad_i(w) - n rho_i g_i + gbar ],   gbar = sum_k rho_k g_k,
    g_i <- grad_i(w),  rho_i <- q_i,  l_j <- l_j(w_new).

The loss that changed moves to its place in the order; the others keep theirs.
"""

from __future__ import annotations

from typing import ClassVar

from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import (
    SAFE_CURVATURE,
    FirstOrder,
    Watch,
    check_count,
    check_nonnegative,
    check_positive,
)


class Prospect(FirstOrder):
    """Variance reduction in the gradients and in the weights, without full passes.

    With nu = 0 a step costs O(d) and the few places by which the renewed loss moves in the order.
    With nu > 0 the weights solve a smoothed problem and a projection of O(n) comes on top. A step
    takes one gradient and one loss of two samples, counted as 2/n passes; the evaluation behind
    each check is not counted, for the method does not need it.

    Parameters
    ----------
    step_size : float, optional
        Step alpha; None takes 1 / (3 n sigma_n max_i L_i).
    nu : float, default=0.0
        Strength of the smoothing.
    batch_size : int, default=1
        Samples per step, drawn with replacement; a check follows n // batch_size steps.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.Prospect(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "prospect"
    operations: ClassVar[tuple[str, ...]] = ("table", "prospect_epoch", "smoothness")

    def __init__(
        self, step_size: float | None = None, nu: float = 0.0, batch_size: int = 1
    ) -> None:
        self.step_size = check_positive("step_size", step_size)
        self.nu = check_nonnegative("nu", nu)
        self.batch_size = check_count("batch_size", batch_size)

    def obstacle(self, problem: Problem) -> str | None:
        if problem.sample_weight is not None:
            return "takes no sample weights: its weights go by rank alone"
        return super().obstacle(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        steps = engine.stochastic()
        point = watch.start()
        run.passes += 1
        step = self.step_size
        if step is None:
            step = 1.0 / (SAFE_CURVATURE * steps.smoothness().component + problem.penalty.l2)
        plan = self.plan(problem, step, self.batch_size)
        if self.nu > 0:
            dual = engine.dual_step(engine.uniform(), point, 1.0 / self.nu)
        else:
            dual = engine.worst_case(point)
        table = steps.table(point, dual)
        while True:
            watch.saw((yield Iterate(point, dual, None, watch.refine())))
            w = steps.prospect_epoch(table, point.w, plan, self.nu, run.rng)
            run.n_iter += 1
            run.passes += 2 * plan.steps * plan.batch / problem.n_samples
            moved = watch.point(w, f"lower step_size={step:.3g}")
            if moved is None:
                return
            point, dual = moved, steps.table_dual(table)
