"""SOREL (Ge and Jiang 2024): a primal-dual method with a stochastic inner loop.

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

from sorel._lib.floats import EPS
from sorel.engines.base import Dual, Engine, FloatArray, Plan, Point
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_count, check_positive, projected, step_for
from sorel.solvers.quasi_newton import Pairs

SCHEDULES = ("auto", "paper", "stable", "theory")

# "auto": steps of an inner loop, at most. More samples are redundant (1e6 x 10, 3e5 x 20, 1e-6).
_MAX_INNER_STEPS = 20_000

# "paper": tau_k = 20 n / k, as published.
_PAPER_TAU = 20.0

# "paper": eta_k / k where the user gives none.
_PAPER_DUAL_STEP = 0.1

# "stable": outer iterations before the debt of the steps is counted, and after k was halved.
_WARM_UP = 20

# "stable": factor of the debt from one outer iteration to the next.
_DEBT_MEMORY = 0.9

# "theory": proximal SVRG takes steps 1 / (12 L) (Lemma 3 of the paper).
_THEORY_STEP = 12.0

# "theory": epochs of 96 L / mu + 2 steps (Lemma 3 of the paper).
_THEORY_EPOCH = 96.0


class SOREL(FirstOrder):
    """Stochastic primal-dual method for spectral risks.

    Parameters
    ----------
    schedule : {"auto", "paper", "stable", "theory"}, default="auto"
        "auto" needs no settings. "paper" is the practical form of the published experiments, and
        "stable" the same with a brake that keeps it from diverging late. "theory" is the published
        algorithm with the constants that its proof supports.
    step_size : float, optional
        Step alpha of the inner loop. None takes 1 / (3 max_i n lam_i L_i) for "paper" and "stable";
        "theory" sets its own.
    dual_step : float, optional
        The constant C of "paper" and "stable"; None takes 0.1. The other schedules have no such
        setting.
    batch_size : int, default=1
        Samples per inner step, drawn with replacement. An epoch of "paper" has n // batch_size
        steps.

    Notes
    -----
    "auto" takes theta_k = 0 and no centre, so that the outer iteration is gradient ascent on
    D(lam) = min_w lam . l(w) + g(w). eta_k is the Barzilai-Borwein length of the last change of lam
    and l. The inner loop is importance-sampled SVRG that starts from a quasi-Newton step (its
    curvature pairs come from gradients at hand) and returns the mean of its last half; one that
    does not lower the Lagrangian is undone and the step halved. It takes n samples, or 20 000 where
    there are more. An outer iteration is two passes at most.

    "paper" sets theta_k = k/(k+1), tau_k = 20 n/(k+1) and eta_k = C (k+1)/n, runs n inner steps
    (one pass) from w_k and keeps the last iterate: two passes per outer iteration. Steps are plain
    gradient steps where the penalty is smooth, proximal ones where it is not. The published grid is
    step_size in {1e-4, 3e-4, ..., 3e-1} and C in {1, 2, 4} x {1e-2, 1e-1, 1}.

    This schedule is not stable: eta_k tau_k stays constant while eta_k grows without end, and after
    some hundreds of outer iterations the objective can rise again by many orders of magnitude. It
    is reproduced as published; :func:`sorel.solve` returns the best iterate. A step size that
    diverges ends the run, and its status says so.

    "stable" puts a clock in the place of k + 1: theta_k, tau_k and eta_k are those of "paper" at
    its time. The clock keeps time with k until the outer iteration shows that it is no longer
    stable, and is then set back to half and stopped there. What it goes by is an account of
    eta <l(w_k) - l(w_{k-1}), lam_{k+1} - lam_k>, the only term of the convergence proof that can
    grow, against the squared steps that pay for it: no constant of the problem, no pass over the
    data. With exact inner solves the clock stops finitely often and the iterates then converge;
    docs/paper-corrections.md has the proof and what is only observed.

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
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
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

    def needs(self) -> tuple[str, ...]:
        # The other schedules take steps of their own.
        published = self.schedule in ("paper", "stable")
        return super().needs() if published else self.operations

    def obstacle(self, problem: Problem) -> str | None:
        reason = super().obstacle(problem)
        if reason is not None:
            return reason
        if self.schedule == "theory" and problem.fit_intercept:
            return (
                "with schedule='theory' needs a strongly convex objective, and an intercept is not "
                "penalised; set fit_intercept=False or schedule='paper'"
            )
        if self.schedule == "theory" and problem.penalty.l2 == 0.0:
            return (
                "with schedule='theory' divides by the modulus of strong convexity, which is 0 "
                f"for {problem.penalty!r}; set schedule='paper'"
            )
        return None

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        if self.schedule == "auto":
            return self._auto(problem, run)
        if self.schedule == "theory":
            return self._theory(problem, run)
        return self._published(problem, run)

    def _auto(self, problem: Problem, run: Run) -> Iterates:
        """Dual ascent with measured steps; each inner loop is a pass, or less, of averaged SVRG.

        The state is a point w_k that an inner loop has found under the weights lam_k.
        """
        engine, watch, penalty = problem.engine, Watch(problem, run), problem.penalty
        point = watch.start()
        run.passes += 1
        dual = run.dual if run.dual is not None else engine.uniform()
        yield Iterate(point, dual)
        pairs, ascent, safety = _no_pairs(), _DualAscent(), 1.0
        while not run.exhausted:
            run.latest = Iterate(point, dual)
            loss_gradient = engine.gradient(point, dual)
            gradient = _with_penalty(problem, loss_gradient, point.w)
            start = point.w - pairs.solve(gradient) if pairs.count else point.w
            step = step_for(safety * (engine.stochastic().smoothness(dual).average + penalty.l2))
            plan = self.plan(problem, step, self.batch_size, sampling="importance")
            steps = max(1, min(problem.n_samples, _MAX_INNER_STEPS) // plan.batch)
            plan = plan._replace(steps=steps, burn_in=steps - max(1, steps // 2))
            w = _mean_iterate(problem, run, point, dual, loss_gradient, plan, start)
            run.passes += 1
            run.n_iter += 1
            new = engine.point(w) if np.all(np.isfinite(w)) else None
            value = _lagrangian(problem, point, dual)
            new_value = _lagrangian(problem, new, dual) if new is not None else np.inf
            if new is None or not new_value <= value + EPS * abs(value):
                # The inner loop failed. Blame its start first, its step size second.
                if pairs.count:
                    pairs = _no_pairs()
                else:
                    safety *= 2.0
                yield from watch.check(point, dual, loss_gradient)
                continue
            new_gradient = engine.gradient(new, dual)
            yield from watch.check(new, dual, new_gradient)
            if penalty.quadratic:
                pairs.add(new.w - point.w, _with_penalty(problem, new_gradient, new.w) - gradient)
            point = new
            dual = ascent.step(problem, point, dual)

    def _published(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, n = problem.engine, Watch(problem, run), problem.n_samples
        rate = self.dual_step if self.dual_step is not None else _PAPER_DUAL_STEP
        brake = Brake() if self.schedule == "stable" else None
        point = previous = watch.start()
        run.passes += 1
        dual = watch.start_dual(point)
        time = 0.0
        for k in itertools.count():
            before, time = time, k + 1.0 if brake is None else brake.time(k)
            center = dual
            dual = engine.dual_step(center, point, rate * time, previous, min(before / time, 1.0))
            if brake is not None and k > 0:
                # eta_{k-1} and tau_{k-1}, with which w_k was found.
                steps = rate * before, _PAPER_TAU * n / before
                brake.look(engine, time, steps, (dual, center), (point, previous))
            gradient = engine.gradient(point, dual)
            yield from watch.check(point, dual, gradient)
            tau = _PAPER_TAU * n / time
            step = self.safe_step(problem, dual, 1.0 / tau)
            plan = self.plan(problem, step, self.batch_size, center=point.w, tau=tau)
            w = engine.stochastic().epoch(point, dual, gradient, plan, run.rng)
            remedy = f"lower step_size={step:.3g} or dual_step={rate:.3g}"
            new = watch.after_epoch(w, 1 + plan.steps * plan.batch / n, remedy)
            if new is None:
                return
            previous, point = point, new

    def _theory(self, problem: Problem, run: Run) -> Iterates:
        engine, watch, mu = problem.engine, Watch(problem, run), problem.penalty.l2
        point = previous = watch.start()
        run.passes += 1
        dual = watch.start_dual(point)
        highest = 0.0
        for k in itertools.count():
            # G must hold all along the way: an iterate that leaves the first sublevel set brings
            # its own.
            highest = max(highest, engine.risk(point) + problem.penalty_value(point.w))
            eta = mu * (k + 1) / (8.0 * engine.stochastic().jacobian_bound(highest))
            dual = engine.dual_step(dual, point, eta, previous, k / (k + 1))
            gradient = engine.gradient(point, dual)
            previous = point
            tau = 4.0 / (mu * (k + 1))
            smooth = engine.stochastic().smoothness(dual).component
            steps = math.ceil(_THEORY_EPOCH * smooth / (mu + 1.0 / tau)) + 2
            plan = self.plan(
                problem, 1.0 / (_THEORY_STEP * smooth), self.batch_size, proximal=True,
                center=point.w, tau=tau,
            )._replace(steps=steps)  # fmt: skip
            error = problem.penalty.fenchel_young(point.w, -gradient)
            delta = min(mu / (8.0 * (k + 5)), mu * (k + 1.0) ** -6)
            for _ in range(_epochs(error / delta, mu + 1.0 / tau, smooth, steps)):
                yield from watch.check(point, dual, gradient)
                w = _mean_iterate(problem, run, point, dual, gradient, plan, point.w)
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


def _no_pairs() -> Pairs:
    """Curvature pairs of lam . l + g for a quasi-Newton start of the inner loop, none as yet."""
    return Pairs(np.copy, rough=True)


class Brake:
    """The clock of "stable", and the account of the outer iteration that sets it back.

    With t_k = eta_k as weights, the proof of convergence has one term without a sign,
    eta_{k-1} <l(w_k) - l(w_{k-1}), lam_{k+1} - lam_k>, and can spare half of
    |lam_{k+1} - lam_k|^2 + (eta_k / tau_k) |w_{k+1} - w_k|^2 of every step for it. Where the steps
    swing back and forth, the term exceeds that. The account forgets slowly: one long step is
    forgiven if others pay for it, and a divergence shows as soon as it outgrows the rest.
    """

    def __init__(self) -> None:
        self.limit = math.inf
        self._age = 0
        self._debt = 0.0
        self._squares = 0.0

    def time(self, k: int) -> float:
        """What stands for k + 1 in the schedule."""
        return min(k + 1.0, self.limit)

    def look(
        self,
        engine: Engine,
        time: float,
        steps: tuple[float, float],
        duals: tuple[Dual, Dual],
        points: tuple[Point, Point],
    ) -> None:
        """Enter lam_{k+1} and lam_k, w_k and w_{k-1}; `steps` are eta_{k-1} and tau_{k-1}."""
        eta, tau = steps
        distance, product, _ = engine.differences(*duals, *points)
        moved = float(np.sum((points[0].w - points[1].w) ** 2))
        slack = EPS * eta * engine.sizes(points[0]).absolute
        self.enter(time, -eta * product - slack, distance + eta / tau * moved)

    def enter(self, time: float, cross: float, squares: float) -> None:
        """Enter a step by its term without a sign and its squares."""
        # A quarter of what the proof can spare pays for the term, and leaves as much.
        spare = (squares + self._squares) / 8.0
        self._squares = squares
        self._age += 1
        if self._age <= _WARM_UP:
            return
        self._debt = _DEBT_MEMORY * self._debt + cross - spare
        if self._debt > 0.0:
            self.limit = 0.5 * time
            self._age, self._debt = 0, 0.0


class _DualAscent:
    """Projected gradient steps on D(lam) with the lengths of Barzilai and Borwein (1988)."""

    def __init__(self) -> None:
        self.eta: float | None = None
        self._last: tuple[Dual, Point] | None = None

    def step(self, problem: Problem, point: Point, dual: Dual) -> Dual:
        """The next weights, from those under which `point` was found."""
        if self.eta is None or self._last is None:
            self.eta = 1.0 / problem.loss_scale(point)
        else:
            last_dual, last = self._last
            length, product, _ = problem.engine.differences(dual, last_dual, point, last)
            if product > 0.0:
                # Lengths that are measured with noise change by one order of magnitude at most.
                self.eta = min(max(length / product, self.eta / 10.0), self.eta * 10.0)
        self._last = dual, point
        return problem.engine.dual_step(dual, point, self.eta)


def _lagrangian(problem: Problem, point: Point, dual: Dual) -> float:
    """lam . l(w) + g(w)."""
    return problem.engine.expected(point, dual) + problem.penalty_value(point.w)


def _with_penalty(problem: Problem, gradient: FloatArray, w: FloatArray) -> FloatArray:
    """Gradient of lam . l + g where g is quadratic; that of lam . l otherwise."""
    out = gradient.copy()
    if problem.penalty.quadratic:
        out[: problem.n_features] += problem.penalty.gradient(w[: problem.n_features])
    return out


def _mean_iterate(
    problem: Problem,
    run: Run,
    point: Point,
    dual: Dual,
    gradient: FloatArray,
    plan: Plan,
    start: FloatArray,
) -> FloatArray:
    """The mean of an epoch's iterates after its burn-in: less noise than the last one has.

    Epochs are taken in pieces of a pass, so that the budget is kept.
    """
    engine, n = problem.engine, problem.n_samples
    total, taken, w = np.zeros(engine.shape), 0, start
    while taken < plan.steps and (taken == 0 or not run.exhausted):
        piece = min(plan.steps - taken, n // plan.batch)
        w = engine.stochastic().epoch(
            point, dual, gradient, plan._replace(steps=piece), run.rng, start=w, total=total
        )
        taken += piece
        run.passes += piece * plan.batch / n
    mean = total / (taken - plan.burn_in)
    # The mean of points of a convex set leaves it by rounding only.
    return projected(problem, mean) if np.all(np.isfinite(mean)) else mean
