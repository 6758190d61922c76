"""The experiments: functions of data and plain parameters that return plain numbers and lists.

Every function here is one kind of cell. Objectives are those of the original risk,
F(w) = sum_i sigma_i l_[i](w) + |w|^2 / (2 n), at the iterates of a method started at 0; times are
CPU seconds of the method alone, evaluations for the curve left out.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sorel.certificate import certify
from sorel.engines.base import FloatArray
from sorel.problem.penalties import L2
from sorel.problem.problem import Problem
from sorel.problem.risks import Max, parse_risk
from sorel.projection import project_permutahedron
from sorel.solvers import LSVRG, SGD, SOLVERS, SOREL, Drago, Prospect, StochasticPD
from sorel.solvers.base import Run, Solver
from sorel.solvers.solve import Result, solve
from sorel.solvers.sorel import Brake

Setting = Mapping[str, float]

# The paper scores a setting by the training loss of this many last epochs, of a check each.
LAST = 10


class Trace(NamedTuple):
    """One run: passes, CPU seconds and objective at each check, the starting point first."""

    passes: list[float]
    seconds: list[float]
    objective: list[float]

    def append(self, passes: float, seconds: float, objective: float) -> None:
        """Add a check."""
        for values, value in zip(self, (passes, seconds, objective), strict=True):
            values.append(float(value))

    def first(self, value: float) -> float:
        """Passes at the first objective that is at most `value`; infinity if there is none."""
        hits = np.flatnonzero(np.asarray(self.objective) <= value)
        return self.passes[hits[0]] if len(hits) else math.inf

    def score(self) -> float:
        """Mean objective of the last ten checks; infinity if the run diverged."""
        last = float(np.mean(self.objective[-LAST:]))
        return last if math.isfinite(last) else math.inf


def make_solver(method: str, setting: Setting, batch: int) -> Solver:
    """The solver behind a name of the reproduction."""
    alpha, several = setting.get("alpha"), None if batch == 1 else batch
    makers: dict[str, Callable[[], Solver]] = {
        "sgd": lambda: SGD(alpha, several or 64),
        "lsvrg": lambda: LSVRG(alpha, batch_size=batch),
        "prospect": lambda: Prospect(alpha, batch_size=batch),
        "sorel": lambda: SOREL("paper", alpha, setting.get("C"), batch),
        "sorel-auto": lambda: SOREL("auto", batch_size=batch),
        # Without mini-batches these two take blocks of the size that they choose themselves.
        "drago": lambda: Drago(block_size=several),
        "stochastic_pd": lambda: StochasticPD(batch_size=several),
        **{name: SOLVERS[name] for name in ("apd", "pdhg", "admm")},
    }
    return makers[method]()


def trace(problem: Problem, solver: Solver, passes: float, seed: int) -> Trace:
    """Run a solver for a number of passes, whatever it certifies, with only its own work timed.

    Parameters
    ----------
    problem : Problem
    solver : Solver
    passes : float
        Budget.
    seed : int
        Seed of the run.

    Returns
    -------
    Trace
        The run; shorter than the budget, and with an infinite last value, if it diverged.
    """
    problem = problem.for_run()
    run = Run(problem.start(), None, 0.0, passes, math.inf, random_state=seed, watched=True)
    record = Trace([], [], [])
    iterates, reply, seconds = solver.iterates(problem, run), None, 0.0
    while run.passes < passes:
        begin = time.process_time()
        try:
            iterate = iterates.send(reply)  # type: ignore[arg-type] # None starts a generator
        except StopIteration:
            break
        finally:
            seconds += time.process_time() - begin
        reply = certify(problem, iterate.point, iterate.dual, gradient=iterate.gradient)
        record.append(run.passes, seconds, reply.primal)
    else:
        iterates.close()
    if run.note.startswith("diverged"):
        record.append(run.passes, seconds, math.inf)
    return record


def trace_lbfgs(problem: Problem, passes: float) -> Trace:
    """scipy's L-BFGS-B on the nonsmooth objective, the lowest value after every evaluation.

    It starts again with an empty memory where its line search fails, until that brings nothing.
    """
    from scipy.optimize import minimize

    engine, l2 = problem.engine.for_run(), problem.penalty.l2
    record = Trace([], [], [])
    best: list[Any] = [math.inf, problem.start()]
    begin = time.process_time()

    def evaluate(w: FloatArray) -> tuple[float, FloatArray]:
        point = engine.point(np.array(w))
        dual = engine.worst_case(point)
        value = float(engine.expected(point, dual) + problem.penalty_value(point.w))
        gradient = engine.gradient(point, dual) + l2 * point.w
        if value < best[0]:
            best[:] = value, point.w
        record.append(len(record.passes) + 1, time.process_time() - begin, best[0])
        return value, gradient

    before = math.inf
    while (left := int(passes) - len(record.passes)) > 0:
        options = {"maxiter": left, "maxfun": left, "ftol": 0.0, "gtol": 0.0}
        minimize(evaluate, best[1], jac=True, method="L-BFGS-B", options=options)
        if not best[0] < before:
            break
        before = best[0]
    # scipy ends a line search that it has begun, beyond the budget or not.
    return Trace(*(values[: int(passes)] for values in record))


def _problem(data: Any, risk: str) -> Problem:
    return Problem(data.X, data.y, risk=parse_risk(risk))


def _minimum(problem: Problem, tolerance: float) -> Result:
    # Ask for more than is needed: suboptimalities of 1e-12 should mean something.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may stop above that
        return solve(problem, "newton", tol=1e-2 * tolerance, max_passes=5000)


def optimum(data: Any, *, risk: str, tolerance: float) -> dict[str, Any]:
    """The certified optimal value, the value at the start, and constants of the analysis."""
    problem = _problem(data, risk)
    begin = time.process_time()
    result = _minimum(problem, tolerance)
    seconds = time.process_time() - begin
    if not result.relative_gap <= tolerance:
        raise RuntimeError(
            f"the optimum of {data.name} with {risk} is certified to {result.relative_gap:.2g} "
            f"only, and {tolerance:g} is needed"
        )
    return {
        "optimum": float(result.dual),
        "relative_gap": float(result.relative_gap),
        "start": float(problem.objective(problem.start())),
        "seconds": seconds,
        **constants(problem, data, result.w),
    }


def constants(problem: Problem, data: Any, w: FloatArray) -> dict[str, Any]:
    """The constants that the paper's proof and its experiments disagree on, at the optimum w."""
    X, n = data.X, problem.n_samples
    norms = np.linalg.norm(X, axis=1)
    residual = X @ w - data.y
    radius = math.sqrt(2.0 * problem.objective(problem.start()) / problem.penalty.l2)
    return {
        "n": n,
        "G_one": float(np.abs(residual * norms).max()),
        "G_vector": float(np.linalg.norm(residual[:, None] * X, 2)),
        "n_sigma_n": float(n * problem.risk.weights(n)[-1]),
        "G_sublevel": float((norms * (np.abs(data.y) + radius * norms)).max()),
    }


def tune(
    data: Any,
    *,
    risk: str,
    method: str,
    batch: int,
    seed: int,
    passes: float,
    grid: list[dict[str, float]],
    values: list[float],
) -> dict[str, Any]:
    """Every setting of a grid with one seed: its score, and passes to each of `values`."""
    problem = _problem(data, risk)
    runs = [trace(problem, make_solver(method, each, batch), passes, seed) for each in grid]
    reached = [[run.first(value) for value in values] for run in runs]
    return {"scores": [run.score() for run in runs], "reached": reached}


def curve(
    data: Any,
    *,
    risk: str,
    method: str,
    batch: int,
    seed: int,
    passes: float,
    setting: dict[str, float],
) -> dict[str, Any]:
    """One run, timed."""
    problem = _problem(data, risk)
    if method == "lbfgs":
        return trace_lbfgs(problem, passes)._asdict()
    return trace(problem, make_solver(method, setting, batch), passes, seed)._asdict()


def late(
    data: Any, *, risk: str, setting: dict[str, float], seed: int, iterations: int, inner: str
) -> dict[str, Any]:
    """A schedule for long: "paper", "stable" or "auto".

    With "exact paper" and "exact stable" the inner problems are solved to rounding.
    """
    problem = _problem(data, risk)
    how, _, schedule = inner.rpartition(" ")
    if how == "exact":
        brake = Brake() if schedule == "stable" else None
        return {"objective": _exact_schedule(problem, data, setting["C"], iterations, brake)}
    solver = SOREL(schedule, setting.get("alpha"), setting.get("C"))
    # One pass at the start, two per outer iteration.
    run = trace(problem, solver, 2 * iterations + 1, seed)
    return {"objective": run.objective}


def _exact_schedule(
    problem: Problem, data: Any, C: float, iterations: int, brake: Brake | None
) -> list[float]:
    """The published schedule with exact inner solves, with the brake of "stable" or without."""
    engine, n = problem.engine, problem.n_samples
    X, y, mu = data.X, data.y, problem.penalty.l2
    point = previous = engine.point(problem.start())
    dual = engine.worst_case(point)
    values = [engine.risk(point) + problem.penalty_value(point.w)]
    now = 0.0
    for k in range(iterations):
        before, now = now, k + 1.0 if brake is None else brake.time(k)
        # Weights are densities n lam inside the engine: a step eta of the paper is n eta there.
        center, theta = dual, min(before / now, 1.0)
        dual = engine.dual_step(center, point, C * now, previous, theta)
        if brake is not None and k > 0:
            steps = C * before, 20.0 * n / before
            brake.look(engine, now, steps, (dual, center), (point, previous))
        w = _weighted_ridge(X, y, engine.weights(dual), mu, point.w, 20.0 * n / now)
        previous, point = point, engine.point(w)
        values.append(engine.risk(point) + problem.penalty_value(w))
    return [float(value) for value in values]


def _weighted_ridge(
    X: FloatArray,
    y: FloatArray,
    lam: FloatArray,
    mu: float,
    center: FloatArray | float = 0.0,
    tau: float = math.inf,
) -> FloatArray:
    """argmin_w lam . l(w) + mu/2 |w|^2 + |w - center|^2 / (2 tau) for the squared loss."""
    hessian = X.T @ (lam[:, None] * X) + (mu + 1.0 / tau) * np.eye(X.shape[1])
    right = X.T @ (lam * y) + center / tau
    return np.asarray(np.linalg.solve(hessian, right), dtype=np.float64)


def cost(data: Any, *, risk: str, epochs: int) -> dict[str, Any]:
    """CPU seconds per pass of each method, and of Prospect when every step projects."""
    problem = _problem(data, risk)
    solvers: dict[str, tuple[Solver, int]] = {
        name: (make_solver(name, {"alpha": 1e-4, "C": 0.1}, 1), epochs)
        for name in ("sgd", "lsvrg", "prospect", "sorel")
    }
    # A step of smoothed Prospect projects onto the permutahedron: one epoch is enough to see it.
    solvers["prospect-projecting"] = (Prospect(1e-4, nu=0.05), 1)
    seconds = {}
    for name, (solver, count) in solvers.items():
        run = trace(problem, solver, 2 * count + 1, seed=1)
        seconds[name] = (run.seconds[-1] - run.seconds[0]) / (run.passes[-1] - run.passes[0])
    return {"seconds_per_pass": seconds}


def plane(
    data: Any, *, risk: str, iterations: int, eta: float, tolerance: float, resolution: int
) -> dict[str, Any]:
    """Level sets in two principal components, and exact primal-dual trajectories in them.

    lam_{k+1} maximises lam . l(w_k), or that less |lam - lam_k|^2 / (2 eta); w_{k+1} minimises
    lam_{k+1} . l + g. `eta` is in units of 1 / L_D, where L_D bounds the curvature of the dual
    function at the optimum.
    """
    X, y, mu = _principal_components(data.X, 2), data.y, 1.0 / len(data.y)
    problem = Problem(X, y, risk=risk, penalty=L2(mu))
    best = _minimum(problem, tolerance)
    jacobian = (X @ best.w - y)[:, None] * X
    hessian = X.T @ (best.weights[:, None] * X) + mu * np.eye(2)
    curvature = float(np.linalg.norm(jacobian @ np.linalg.solve(hessian, jacobian.T), 2))
    paths = {
        "without": _primal_dual(problem, X, y, iterations, None),
        "with": _primal_dual(problem, X, y, iterations, eta / curvature),
    }
    tail = np.asarray(paths["without"]["w"][len(paths["without"]["w"]) // 2 :])
    reach = 4.0 * np.abs(tail - best.w).max()
    axes = [np.linspace(c - reach, c + reach, resolution) for c in best.w]
    levels = [[problem.objective(np.array([a, b])) for a in axes[0]] for b in axes[1]]
    return {
        "optimum": float(best.dual),
        "relative_gap": float(best.relative_gap),
        "w": best.w.tolist(),
        "axes": [axis.tolist() for axis in axes],
        "levels": levels,
        "paths": paths,
    }


def _principal_components(X: FloatArray, count: int) -> FloatArray:
    """Coordinates along the leading principal axes, signs fixed, each of unit variance."""
    from sklearn.decomposition import PCA

    projected = PCA(count).fit_transform(X)
    return np.asarray(projected / projected.std(axis=0))


def _primal_dual(
    problem: Problem, X: FloatArray, y: FloatArray, iterations: int, eta: float | None
) -> dict[str, Any]:
    sigma = problem.risk.weights(len(y))
    w = np.zeros(X.shape[1])
    lam: FloatArray | None = None
    path, values = [w.tolist()], [problem.objective(w)]
    for _ in range(iterations):
        losses = problem.losses(w)
        if eta is None or lam is None:
            lam = np.empty_like(sigma)
            lam[np.argsort(losses, kind="stable")] = sigma
        else:
            lam = project_permutahedron(lam + eta * losses, sigma)
        w = _weighted_ridge(X, y, lam, problem.penalty.l2)
        path.append(w.tolist())
        values.append(problem.objective(w))
    return {"w": path, "objective": values}


def toy(_: Any, *, start: float, alpha: float, steps: int, iterations: int) -> dict[str, Any]:
    """The appendix's example: losses (w - 1)^2 / 2 and (w + 1)^2 / 2, all weight on the larger.

    "without" is the paper's simplified algorithm, `steps` gradient steps of length alpha for each
    choice of the weights. "with" keeps the weights near the last ones (eta = 1/4).
    """
    centers, sigma = np.array([1.0, -1.0]), Max().weights(2)
    paths = {}
    for name in ("without", "with"):
        w, path = start, [start]
        lam = np.array([0.5, 0.5])
        for _k in range(iterations):
            losses = 0.5 * (w - centers) ** 2
            if name == "with":
                lam = project_permutahedron(lam + 0.25 * losses, sigma)
            else:
                lam = sigma if losses[0] < losses[1] else sigma[::-1]
            for _t in range(steps):
                w -= alpha * float(lam @ (w - centers))
            path.append(w)
        paths[name] = path
    return {"paths": paths}
