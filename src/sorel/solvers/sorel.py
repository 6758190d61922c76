"""SOREL: a primal-dual method with a stochastic inner loop.

    v_k       = (1 + theta_k) l(w_k) - theta_k l(w_{k-1}),
    lam_{k+1} = Proj(lam_k + eta_k v_k)  onto P(sigma),
    w_{k+1}  ~= argmin_w  lam_{k+1} . l(w) + g(w) + ||w - w_k||^2 / (2 tau_k),

the last line by variance-reduced steps n lam_i (grad_i(w) - grad_i(wbar)) + gbar. The schedules
differ in theta, eta, tau and in how long and with which steps the inner problem is worked on.
Weights are densities q = n lam here, so that a step eta of the paper is n eta in q.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray, Plan, Point
from sorel.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_positive

SCHEDULES = ("auto", "paper", "theory")

# Without a step size, 1 over this many times the largest curvature of a term.
_SAFE = 3.0

# The constant of the published schedule's centre, and the dual step used where none is given.
_PAPER_TAU = 20.0
_PAPER_DUAL_STEP = 0.1

# Proximal SVRG with steps 1/(12 L) and epochs of 96 L / mu + 2 steps (Lemma 3 of the paper).
_THEORY_STEP, _THEORY_EPOCH = 12.0, 96.0


class SOREL(FirstOrder):
    """Stochastic primal-dual method for spectral risks.

    Parameters
    ----------
    schedule : {"auto", "paper", "theory"}, default="auto"
        "auto" needs no settings. "paper" is the practical form of the published experiments.
        "theory" is the published algorithm with the constants that its proof supports.
    step_size : float, optional
        Step alpha of the inner loop. None takes 1 / (3 max_i n lam_i L_i) for "paper"; "theory"
        sets its own.
    dual_step : float, optional
        The constant C of "paper"; None takes 0.1. The other schedules have no such setting.
    batch_size : int, default=1
        Samples per inner step, drawn with replacement. An epoch of "paper" has n // batch_size
        steps.

    Notes
    -----
    "paper" sets theta_k = k/(k+1), tau_k = 20 n/(k+1) and eta_k = C (k+1)/n, runs n inner steps
    (one pass) from w_k and keeps the last iterate: two passes per outer iteration. Steps are plain
    gradient steps where the penalty is smooth, proximal ones where it is not. The published grid is
    step_size in {1e-4, 3e-4, ..., 3e-1} and C in {1, 2, 4} x {1e-2, 1e-1, 1}.

    This schedule is not stable: eta_k tau_k stays constant while eta_k grows without end, and after
    some hundreds of outer iterations the objective can rise again by many orders of magnitude. It
    is reproduced as published; :func:`sorel.solve` returns the best iterate. A step size that
    diverges ends the run, and its status says so.

    "theory" takes Theorem 1's theta_k = k/(k+1), tau_k = 4/(mu (k+1)), eta_k = mu (k+1)/(8 G^2) and
    delta_k, with G the operator norm of the Jacobian of the vector of losses where the mean loss is
    at most F(w_0), in place of the Lipschitz constant of one loss, and L = max_i n lam_i L_i, the
    smoothness of a term under uniform sampling, in place of that of one loss. The inner loop is
    proximal SVRG with averaged snapshots and outputs, each epoch from its snapshot, and as many
    epochs as bring the expected error below delta_k from a certified bound on the error at w_k. It
    is safe and very slow: one inner epoch is often thousands of passes. It needs a strongly convex
    objective, hence no intercept.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> solver = sorel.solvers.SOREL(schedule="paper", step_size=0.01, dual_step=0.1)
    >>> sorel.solve(problem, solver, tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "sorel"
    operations: ClassVar[tuple[str, ...]] = ("epoch", "smoothness", "jacobian_bound")

    def __init__(
        self,
        schedule: str = "auto",
        step_size: float | None = None,
        dual_step: float | None = None,
        batch_size: int = 1,
    ) -> None:
        if schedule not in SCHEDULES:
            known = ", ".join(repr(name) for name in SCHEDULES)
            raise ValueError(f"schedule must be one of {known}, got {schedule!r}")
        self.schedule = schedule
        self.step_size = check_positive("step_size", step_size)
        self.dual_step = check_positive("dual_step", dual_step)
        if schedule == "theory" and not (step_size is None and dual_step is None):
            raise ValueError(
                "schedule='theory' takes its steps from the theorem: leave step_size and dual_step "
                f"None, got step_size={step_size!r} and dual_step={dual_step!r}"
            )
        self.batch_size = check_count("batch_size", batch_size)

    def obstacle(self, problem: Problem) -> str | None:
        if self.schedule == "theory" and problem.fit_intercept:
            return (
                "with schedule='theory' needs a strongly convex objective, and an intercept is not "
                "penalised; set fit_intercept=False or schedule='paper'"
            )
        return super().obstacle(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        if self.schedule == "paper":
            return self._paper(problem, run)
        if self.schedule == "theory":
            return self._theory(problem, run)
        return self._auto(problem, run)

    def _auto(self, problem: Problem, run: Run) -> Iterates:
        raise NotImplementedError("schedule='auto' is not available; use schedule='paper'")

    def _paper(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, n = problem.engine, Watch(problem, run), problem.n_samples
        rate = self.dual_step if self.dual_step is not None else _PAPER_DUAL_STEP
        point = previous = watch.start()
        run.passes += 1
        dual = run.dual if run.dual is not None else engine.worst_case(point)
        for k in itertools.count():
            dual = engine.ascend(dual, point, rate * (k + 1), previous, k / (k + 1))
            gradient = engine.gradient(point, dual)
            watch.saw((yield Iterate(point, dual, gradient, watch.refine())))
            tau = _PAPER_TAU * n / (k + 1)
            step = self.step_size
            if step is None:
                component = engine.smoothness(dual).component
                step = 1.0 / (_SAFE * component + problem.penalty.l2 + 1.0 / tau)
            plan = self.plan(problem, step, self.batch_size, center=point.w, tau=tau)
            w = engine.epoch(point, dual, gradient, plan, run.rng)
            run.n_iter += 1
            run.passes += 1 + plan.steps * plan.batch / n
            moved = watch.point(w, f"lower step_size={step:.3g} or dual_step={rate:.3g}")
            if moved is None:
                return
            previous, point = point, moved

    def _theory(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, mu = problem.engine, Watch(problem, run), problem.penalty.l2
        point = previous = watch.start()
        run.passes += 1
        dual = run.dual if run.dual is not None else engine.worst_case(point)
        level = 0.0
        for k in itertools.count():
            # G must hold all along the way: an iterate that leaves the first sublevel set brings
            # its own.
            level = max(level, engine.risk(point) + problem.penalty_value(point.w))
            eta = mu * (k + 1) / (8.0 * engine.jacobian_bound(level))
            dual = engine.ascend(dual, point, eta, previous, k / (k + 1))
            gradient = engine.gradient(point, dual)
            previous = point
            tau = 4.0 / (mu * (k + 1))
            smooth = engine.smoothness(dual).component
            steps = math.ceil(_THEORY_EPOCH * smooth / (mu + 1.0 / tau)) + 2
            plan = self.plan(
                problem, 1.0 / (_THEORY_STEP * smooth), self.batch_size, proximal=True,
                center=point.w, tau=tau,
            )._replace(steps=steps)  # fmt: skip
            error = problem.penalty.fenchel_young(point.w, -gradient)
            delta = min(mu / (8.0 * (k + 5)), mu * (k + 1.0) ** -6)
            for _ in range(_epochs(error / delta, mu + 1.0 / tau, smooth, steps)):
                watch.saw((yield Iterate(point, dual, gradient, watch.refine())))
                w = _averaged_epoch(problem, run, point, dual, gradient, plan)
                moved = watch.point(w, "the constants do not hold for this problem")
                if moved is None:
                    return
                point = moved
                run.passes += 1
                gradient = engine.gradient(point, dual)
            run.n_iter += 1


def _epochs(ratio: float, strong: float, smooth: float, steps: int) -> int:
    """Epochs of proximal SVRG that cut the expected error by `ratio` (Xiao and Zhang 2014)."""
    share = 4.0 / _THEORY_STEP
    contraction = _THEORY_STEP * smooth / (strong * (1.0 - share) * steps)
    contraction += share * (steps + 1) / ((1.0 - share) * steps)
    return max(1, math.ceil(math.log(max(ratio, 1.0)) / -math.log(contraction)))


def _averaged_epoch(
    problem: Problem, run: Run, point: Point, dual: Dual, gradient: FloatArray, plan: Plan
) -> FloatArray:
    """The mean iterate of an epoch, taken in pieces of a pass so that the budget is kept."""
    n, engine = problem.n_samples, problem.engine
    total, taken = np.zeros(engine.shape), 0
    w = point.w
    while taken < plan.steps and (taken == 0 or not run.exhausted):
        piece = min(plan.steps - taken, n // plan.batch)
        w = engine.epoch(
            point, dual, gradient, plan._replace(steps=piece), run.rng, start=w, total=total
        )
        taken += piece
        run.passes += piece * plan.batch / n
    mean = total / taken
    if np.all(np.isfinite(mean)):
        # The mean of points of a convex set leaves it by rounding only.
        coef = problem.coefficients(mean)
        coef[:] = problem.penalty.project(coef)
    return mean
