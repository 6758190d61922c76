"""LSVRG of Mehta et al. (2022): weights frozen at a snapshot, one pass of SVRG steps around it.

At the snapshot w, lam is sigma by rank (nu = 0) or the maximiser of
lam . l - (nu n / 2) ||lam - 1/n||^2 over P(sigma) (nu > 0), in densities the projection of
1 + l / nu. The direction of the n steps that follow is
n lam_i (grad_i(w) - grad_i(snapshot)) + gbar.
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
    step_for,
)


class LSVRG(FirstOrder):
    """SVRG epochs with the weights of the last snapshot.

    With nu = 0 the weights jump where losses cross, so that the method may circle around an optimum
    with ties; with nu > 0 it converges, to the optimum of the smoothed risk. The certificate is
    that of the original risk in either case. One iteration is two passes.

    Parameters
    ----------
    step_size : float, optional
        Step alpha; None takes 1 / (3 max_i n lam_i L_i), renewed at every snapshot.
    nu : float, default=0.0
        Strength of the smoothing.
    batch_size : int, default=1
        Samples per step, drawn with replacement; an epoch has n // batch_size steps.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> solver = sorel.solvers.LSVRG(step_size=0.01)
    >>> sorel.solve(problem, solver, tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "lsvrg"
    operations: ClassVar[tuple[str, ...]] = ("epoch", "smoothness")

    def __init__(
        self, step_size: float | None = None, nu: float = 0.0, batch_size: int = 1
    ) -> None:
        self.step_size = check_positive("step_size", step_size)
        self.nu = check_nonnegative("nu", nu)
        self.batch_size = check_count("batch_size", batch_size)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        steps = engine.stochastic()
        point, mean = watch.start(), engine.uniform()
        run.passes += 1
        while True:
            if self.nu > 0:
                dual = engine.dual_step(mean, point, 1.0 / self.nu)
            else:
                dual = engine.worst_case(point)
            gradient = engine.gradient(point, dual)
            watch.saw((yield Iterate(point, dual, gradient, watch.refine())))
            step = self.step_size
            if step is None:
                step = step_for(
                    SAFE_CURVATURE * steps.smoothness(dual).component + problem.penalty.l2
                )
            plan = self.plan(problem, step, self.batch_size)
            w = steps.epoch(point, dual, gradient, plan, run.rng)
            run.n_iter += 1
            run.passes += 1 + plan.steps * plan.batch / problem.n_samples
            moved = watch.point(w, f"lower step_size={step:.3g}")
            if moved is None:
                return
            point = moved
