"""One call for every solver: tolerance, budget, history, certificate, best iterate so far."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem import Certificate, Problem
from sorel.solvers import make_solver
from sorel.solvers.base import Iterate, Run, Solver, make_generator


class ConvergenceWarning(UserWarning):
    """The tolerance was not reached; the message says what was, and what to do."""


class Record(NamedTuple):
    """One check of a run. `seconds` leaves out the time that the checks themselves took."""

    passes: float
    seconds: float
    objective: float
    dual: float
    gap: float
    relative_gap: float


@dataclass(frozen=True)
class Result:
    """What :func:`solve` found.

    Attributes
    ----------
    w : array
        Parameters, intercept last when fitted; of shape (p, K) for K classes.
    weights : array of length n
        lam, the worst-case weighting of the samples that certifies `w`.
    objective, dual, gap, relative_gap : float
        F(w), a lower bound on the optimum, their difference, and that relative to F(w).
    passes, seconds : float
        Sample gradients divided by n, and wall-clock time.
    n_iter : int
        Outer iterations.
    converged : bool
        Whether the relative gap is at most the tolerance.
    status : str
        One sentence on how the run ended.
    history : list of Record
        One record per check.
    solver : str
        Name of the solver.
    """

    w: FloatArray
    weights: FloatArray
    objective: float
    dual: float
    gap: float
    relative_gap: float
    passes: float
    seconds: float
    n_iter: int
    converged: bool
    status: str
    solver: str
    history: list[Record] = field(repr=False)


class _Checked(NamedTuple):
    point: Point
    dual: Dual
    certificate: Certificate


class _Ledger:
    """The certified iterates of a run: history, lowest objective, smallest gap."""

    def __init__(self, problem: Problem, run: Run) -> None:
        self.problem, self.run = problem, run
        self.history: list[Record] = []
        self.lowest: _Checked | None = None
        self.tightest: _Checked | None = None
        self._begin = time.perf_counter()
        self._checking = 0.0

    def check(self, iterate: Iterate) -> Certificate:
        begin = time.perf_counter()
        certificate = self.problem.certify(
            iterate.point, iterate.dual, gradient=iterate.gradient, refine=iterate.refine
        )
        self.run.passes += certificate.passes
        if math.isfinite(certificate.primal):
            checked = _Checked(iterate.point, iterate.dual, certificate)
            if self.lowest is None or certificate.primal < self.lowest.certificate.primal:
                self.lowest = checked
            if self.tightest is None or certificate.gap < self.tightest.certificate.gap:
                self.tightest = checked
        # A check that spent passes did the solver's work.
        if certificate.passes == 0.0:
            self._checking += time.perf_counter() - begin
        self.history.append(
            Record(
                self.run.passes,
                time.perf_counter() - self._begin - self._checking,
                certificate.primal,
                certificate.dual,
                certificate.gap,
                certificate.relative_gap,
            )
        )
        return certificate

    def best(self) -> _Checked:
        """The pair with the smallest gap if that is good enough, else the lowest objective."""
        if self.tightest is None or self.lowest is None:
            run, engine = self.run, self.problem.engine
            point = engine.point(run.w)
            dual = engine.worst_case(point)
            return _Checked(point, dual, self.problem.certify(point, dual))
        if self.tightest.certificate.relative_gap <= self.run.tol:
            return self.tightest
        other = self.problem.certify(self.lowest.point, self.tightest.dual, refine=math.inf)
        self.run.passes += other.passes
        if other.gap < self.lowest.certificate.gap:
            return _Checked(self.lowest.point, self.tightest.dual, other)
        return self.lowest


def solve(
    problem: Problem,
    solver: str | Solver = "auto",
    tol: float = 1e-6,
    max_passes: float = 1000,
    *,
    max_seconds: float | None = None,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
    callback: Callable[[Record], Any] | None = None,
    warm_start: Result | None = None,
) -> Result:
    """Minimise a spectral risk to a certified relative gap.

    Parameters
    ----------
    problem : Problem
        What to solve.
    solver : str or Solver, default="auto"
        A name from ``sorel.solvers.SOLVERS`` or an instance from :mod:`sorel.solvers`.
    tol : float, default=1e-6
        Relative duality gap to reach, the same for every solver.
    max_passes : float, default=1000
        Budget of sample gradients, divided by n.
    max_seconds : float, optional
        Budget of wall-clock time.
    random_state : int, Generator, RandomState or None, default=0
        Source of randomness; the same int gives the same result. No global state is touched.
    callback : callable, optional
        Called with a :class:`Record` after each check; a true return value ends the run.
    warm_start : Result, optional
        A result for a similar problem of the same shape to start from.

    Returns
    -------
    Result
        The best iterate found, with its certificate. Ctrl-C ends the run and returns it too.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3))
    >>> y = X @ [1.0, 2.0, 3.0] + rng.standard_t(3, size=100)
    >>> result = sorel.solve(sorel.Problem(X, y, risk=sorel.CVaR(0.1)))
    >>> result.converged, result.relative_gap <= 1e-6
    (True, True)
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a sorel.Problem, got {type(problem).__name__}")
    _check_number("tol", tol, least=0.0)
    _check_number("max_passes", max_passes, least=0.0)
    if max_seconds is not None:
        _check_number("max_seconds", max_seconds, least=0.0)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if not isinstance(random_state, (int, np.integer)) or random_state < 0:
        make_generator(random_state)  # refuses what is not a source of randomness, at the door
    method = make_solver(solver)
    method.check(problem)
    problem.engine.forget()
    begin = time.perf_counter()
    run = Run(
        w=problem.start(),
        dual=None,
        tol=tol,
        max_passes=max_passes,
        deadline=begin + (math.inf if max_seconds is None else max_seconds),
        random_state=random_state,
        watched=callback is not None,
    )
    if warm_start is not None:
        _apply_warm_start(problem, run, warm_start)
    ledger = _Ledger(problem, run)
    ending = _drive(problem, method, run, ledger, callback)
    best = ledger.best()
    certificate = best.certificate
    converged = certificate.relative_gap <= tol
    result = Result(
        w=np.array(best.point.w),
        weights=problem.engine.weights(best.dual),
        objective=certificate.primal,
        dual=certificate.dual,
        gap=certificate.gap,
        relative_gap=certificate.relative_gap,
        passes=run.passes,
        seconds=time.perf_counter() - begin,
        n_iter=run.n_iter,
        converged=converged,
        status=_status(method, run, certificate, converged, ending),
        solver=method.name,
        history=ledger.history,
    )
    if not converged and ending not in ("interrupted", "stopped by the callback"):
        _warn(result, run, ending)
    return result


def _drive(
    problem: Problem,
    method: Solver,
    run: Run,
    ledger: _Ledger,
    callback: Callable[[Record], Any] | None,
) -> str:
    """Advance the solver until something ends the run; return what did."""
    iterates = method.iterates(problem, run)
    reply: Certificate | None = None
    try:
        while True:
            try:
                iterate = iterates.send(reply)  # type: ignore[arg-type] # None starts a generator
            except StopIteration:
                return run.note or "the solver has nothing left to try"
            reply = ledger.check(iterate)
            if callback is not None and callback(ledger.history[-1]):
                return "stopped by the callback"
            if reply.relative_gap <= run.tol:
                return "converged"
            if run.passes >= run.max_passes:
                return f"max_passes={run.max_passes:g} reached"
            if time.perf_counter() >= run.deadline:
                return "max_seconds reached"
    except KeyboardInterrupt:
        if run.latest is not None:
            ledger.check(run.latest)
        return "interrupted"
    finally:
        iterates.close()


def _status(
    method: Solver, run: Run, certificate: Certificate, converged: bool, ending: str
) -> str:
    gap = f"certified relative gap {certificate.relative_gap:.2g}"
    how = f" ({run.note})" if run.note and run.note != ending else ""
    if ending == "interrupted":
        return f"interrupted: {method.name}{how} had a {gap} after {run.passes:.4g} passes"
    if converged:
        return f"converged: {method.name}{how} reached a {gap} in {run.passes:.4g} passes"
    return (
        f"not converged: {ending}; {method.name}{how} has a {gap}, above tol={run.tol:g}, "
        f"after {run.passes:.4g} passes"
    )


def _warn(result: Result, run: Run, ending: str) -> None:
    if ending.startswith("max_"):
        remedy = "raise " + ending.split("=")[0].split(" ")[0]
        if result.solver not in ("auto", "newton"):
            remedy += ", or use solver='auto'"
    elif result.solver != "auto":
        remedy = "use solver='auto'"
    else:
        remedy = f"accept a tol of {2 * result.relative_gap:.0e}, raise l2, or scale the columns"
    warnings.warn(
        f"relative gap {result.relative_gap:.3g} is above tol={run.tol:g} ({ending}); "
        f"to get there, {remedy}",
        convergence_warning(),
        stacklevel=3,
    )


@cache
def _shared_warning(sklearn_warning: type[Warning]) -> type[ConvergenceWarning]:
    return type("ConvergenceWarning", (ConvergenceWarning, sklearn_warning), {})


def convergence_warning() -> type[ConvergenceWarning]:
    """The category to warn with: also scikit-learn's own where that is loaded.

    Its users filter on theirs, and importing it for the name alone would cost a second.
    """
    sklearn = sys.modules.get("sklearn.exceptions")
    return ConvergenceWarning if sklearn is None else _shared_warning(sklearn.ConvergenceWarning)


def _apply_warm_start(problem: Problem, run: Run, result: Result) -> None:
    if not isinstance(result, Result):
        raise TypeError(f"warm_start must be a Result of sorel.solve, got {type(result).__name__}")
    w = np.asarray(result.w, dtype=np.float64)
    if w.shape != problem.engine.shape:
        raise ValueError(
            f"warm_start has parameters of shape {w.shape}, this problem needs "
            f"{problem.engine.shape}"
        )
    run.w = w.copy()
    run.w[: problem.n_features] = problem.penalty.project(w[: problem.n_features])
    # Another number of samples still has useful parameters; its weighting is of no use.
    if len(result.weights) == problem.n_samples:
        run.dual = problem.engine.dual_from_weights(result.weights)


def _check_number(name: str, value: Any, least: float) -> None:
    try:
        good = not isinstance(value, (bool, str)) and float(value) >= least
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"{name} must be a number of at least {least:g}, got {value!r}")
