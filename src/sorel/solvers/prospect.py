"""Prospect of Mehta et al. (2024): tables of losses, gradients and weights, one entry at a time.

Per step, with samples i and j drawn uniformly and the weights q that the table of losses implies,

    w   <- w - alpha [ n q_i grad_i(w) - n rho_i g_i + gbar ],   gbar = sum_k rho_k g_k,
    g_i <- grad_i(w),  rho_i <- q_i,  l_j <- l_j(w_new).

The loss that changed moves to its place in the order; the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sorel.engines.base import Dual, FloatArray, Plan, Point
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import Smoothed, Watch


class RankTables(Smoothed):
    """Base of the methods that keep tables of single samples, ordered by rank."""

    def obstacle(self, problem: Problem) -> str | None:
        if problem.sample_weight is not None:
            return "takes no sample weights: its weights go by rank alone"
        return super().obstacle(problem)

    def epochs(
        self,
        watch: Watch,
        point: Point,
        dual: Dual,
        plan: Plan,
        epoch: Callable[[Any, FloatArray], FloatArray],
        remedy: str,
    ) -> Iterates:
        """Checks and epochs in turn; `epoch(table, w)` renews the table and returns the next w."""
        steps = watch.problem.engine.stochastic()
        table = steps.table(point, dual)
        # A gradient and a loss, of two samples.
        passes = 2 * plan.steps * plan.batch / watch.problem.n_samples
        while True:
            yield from watch.check(point, dual)
            moved = watch.after_epoch(epoch(table, point.w), passes, remedy)
            if moved is None:
                return
            point, dual = moved, steps.table_dual(table)


class Prospect(RankTables):
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
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.Prospect(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "prospect"
    operations: ClassVar[tuple[str, ...]] = ("table", "prospect_epoch", "smoothness")

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        watch, steps = Watch(problem, run), problem.engine.stochastic()
        point = watch.start()
        run.passes += 1
        step = self.safe_step(problem)
        plan = self.plan(problem, step, self.batch_size)

        def epoch(table: Any, w: FloatArray) -> FloatArray:
            return steps.prospect_epoch(table, w, plan, self.nu, run.rng)

        dual = self.weighting(problem, point)
        yield from self.epochs(watch, point, dual, plan, epoch, f"lower step_size={step:.3g}")
