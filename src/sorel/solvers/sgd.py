"""Mini-batch stochastic subgradient: the risk of each batch in place of the risk of the sample.

Per step, w <- w - alpha sum_b sigma_b grad_(b)(w), the losses of the batch in ascending order and
sigma of the batch's size. The risk of a batch is not the risk of the sample on average, and the
method converges to the wrong point however long it runs (Levy, Carmon, Duchi and Sidford 2020
bound how wrong): it is the paper's baseline.
"""

from __future__ import annotations

from typing import ClassVar

from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_positive


class SGD(FirstOrder):
    """Stochastic subgradient steps on batches, biased by construction.

    Batches are cut from a fresh shuffle of the samples at every epoch, of which the last
    n mod batch_size are left out. The evaluation behind each check is not counted as a pass, for
    the method does not need it.

    Parameters
    ----------
    step_size : float, optional
        Constant step alpha; None takes 1 / max_i L_i, at which no batch overshoots.
    batch_size : int, default=64
        Samples per step; all of them where there are fewer.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> result = sorel.solve(problem, sorel.solvers.SGD(step_size=0.02), tol=1e-3)
    >>> result.converged  # a batch of all three samples has no bias
    True
    """

    name: ClassVar[str] = "sgd"
    operations: ClassVar[tuple[str, ...]] = ("minibatch_epoch", "smoothness")

    def __init__(self, step_size: float | None = None, batch_size: int = 64) -> None:
        self.step_size = check_positive("step_size", step_size)
        self.batch_size = check_count("batch_size", batch_size)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        steps = engine.stochastic()
        point = watch.start()
        step = self.step_size
        if step is None:
            step = 1.0 / (steps.smoothness().largest + problem.penalty.l2)
        plan = self.plan(problem, step, self.batch_size)
        passes = plan.steps * plan.batch / problem.n_samples
        while True:
            yield from watch.check(point, engine.worst_case(point))
            w = steps.minibatch_epoch(point.w, plan, run.rng)
            moved = watch.after_epoch(w, passes, f"lower step_size={step:.3g}")
            if moved is None:
                return
            point = moved
