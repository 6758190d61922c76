"""LSVRG of Mehta et al. (2023): weights frozen at a snapshot, one pass of SVRG steps around it.

At the snapshot w, lam is sigma by rank (nu = 0) or the maximiser of
lam . l - (nu n / 2) ||lam - 1/n||^2 over P(sigma) (nu > 0), in densities the projection of
1 + l / nu. The direction of the n steps that follow is
n lam_i (grad_i(w) - grad_i(snapshot)) + gbar.
"""

from __future__ import annotations

from typing import ClassVar

from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import Smoothed, Watch


class LSVRG(Smoothed):
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
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> solver = sorel.solvers.LSVRG(step_size=0.01)
    >>> sorel.solve(problem, solver, tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "lsvrg"
    operations: ClassVar[tuple[str, ...]] = ("epoch", "smoothness")

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        point = watch.start()
        run.passes += 1
        while True:
            dual = self.weighting(problem, point)
            gradient = engine.gradient(point, dual)
            yield from watch.check(point, dual, gradient)
            step = self.safe_step(problem, dual)
            plan = self.plan(problem, step, self.batch_size)
            w = engine.stochastic().epoch(point, dual, gradient, plan, run.rng)
            passes = 1 + plan.steps * plan.batch / problem.n_samples
            moved = watch.after_epoch(w, passes, f"lower step_size={step:.3g}")
            if moved is None:
                return
            point = moved
