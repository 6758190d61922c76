"""One call for every solver: tolerance, budget, history, certificate, best iterate so far."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sorel._clock import now
from sorel._warnings import warn
from sorel.checkpoints import Checkpoint, Keeper, State, generator_state
from sorel.engines.base import Dual, FloatArray
from sorel.problem import Certificate, Problem
from sorel.solvers import make_solver
from sorel.solvers.base import Iterate, Iterates, Run, Solver, make_generator


class ConvergenceWarning(UserWarning):
    """The tolerance was not reached; the message says what was, and what to do."""


class PrecisionWarning(UserWarning):
    """The tolerance is finer than the data; the message says what the answer then means."""


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
        Sample gradients divided by n, and wall-clock time without that of compiling.
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
    w: FloatArray
    dual: Dual
    certificate: Certificate


class _Ledger:
    """The certified iterates of a run: history, lowest objective, smallest gap."""

    def __init__(self, problem: Problem, run: Run, history: list[Record]) -> None:
        self.problem, self.run = problem, run
        self.history = history
        self.lowest: _Checked | None = None
        self.tightest: _Checked | None = None
        self._begin = now() - (history[-1].seconds if history else 0.0)
        self._checking = 0.0

    def check(self, iterate: Iterate) -> Certificate:
        begin = now()
        certificate = self.problem.certify(
            iterate.point, iterate.dual, gradient=iterate.gradient, refine=iterate.refine
        )
        self.run.passes += certificate.passes
        if math.isfinite(certificate.primal):
            checked = _Checked(iterate.point.w, iterate.dual, certificate)
            if self.lowest is None or certificate.primal < self.lowest.certificate.primal:
                self.lowest = checked
            if self.tightest is None or certificate.gap < self.tightest.certificate.gap:
                self.tightest = checked
        # A check that spent passes did the solver's work.
        if certificate.passes == 0.0:
            self._checking += now() - begin
        self.history.append(
            Record(
                self.run.passes,
                now() - self._begin - self._checking,
                certificate.primal,
                certificate.dual,
                certificate.gap,
                certificate.relative_gap,
            )
        )
        return certificate

    def best(self) -> _Checked:
        """The pair with the smallest gap if that is good enough, else the lowest objective."""
        engine = self.problem.engine
        if self.tightest is None or self.lowest is None:
            point = engine.point(self.run.w)
            dual = engine.worst_case(point)
            return _Checked(self.run.w, dual, self.problem.certify(point, dual))
        if self.tightest.certificate.relative_gap <= self.run.tol:
            return self.tightest
        point = engine.point(self.lowest.w)
        other = self.problem.certify(point, self.tightest.dual, refine=math.inf)
        self.run.passes += other.passes
        if other.gap < self.lowest.certificate.gap:
            return _Checked(self.lowest.w, self.tightest.dual, other)
        return self.lowest

    def state(self, solver: str, seconds: float) -> State | None:
        """What a checkpoint should hold, or None before the first finite check."""
        if self.tightest is None or self.lowest is None:
            return None
        run, best = self.run, self.lowest
        if self.tightest.certificate.relative_gap <= run.tol:
            best = self.tightest
        return State(
            solver=solver,
            w=best.w,
            weights=self.problem.engine.weights(self.tightest.dual),
            history=np.array(self.history, dtype=np.float64),
            passes=run.passes,
            seconds=seconds,
            n_iter=run.n_iter,
            objective=best.certificate.primal,
            relative_gap=self.tightest.certificate.relative_gap,
            # Asking for the generator would make one.
            generator=generator_state(run.rng) if "rng" in vars(run) else None,
        )


class _Saver:
    """Writes the state of a run to its checkpoint, now and then and at the end."""

    def __init__(self, keeper: Keeper, ledger: _Ledger, solver: str, begin: float) -> None:
        self._keeper, self._ledger, self._solver = keeper, ledger, solver
        self._begin = begin
        ledger.run.save_at = keeper.next

    def save_if_due(self) -> None:
        if now() >= self._keeper.next:
            self.save()

    def save(self, *, last: bool = False) -> None:
        state = self._ledger.state(self._solver, now() - self._begin)
        if state is not None:
            self._keeper.save(state, last=last)
            self._ledger.run.save_at = self._keeper.next


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
    w0: ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
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
        Budget of wall-clock time; what the first run on a machine spends on compiling is not
        counted.
    random_state : int, Generator, RandomState or None, default=0
        Source of randomness; the same int gives the same result. No global state is touched.
    callback : callable, optional
        Called with a :class:`Record` after each check; a true return value ends the run.
    warm_start : Result, optional
        A result for a similar problem of the same shape to start from.
    w0 : array, optional
        Parameters to start from, intercept last; zeros when not given. Where the penalty forbids
        them, the nearest that it allows. A `warm_start` has its own.
    checkpoint : path or Checkpoint, optional
        A file that keeps the state of the run: written about once a minute, or as often as a
        :class:`Checkpoint` says, and at the end, however the run ends. If the file exists, the run
        goes on from it, and `warm_start` is not used. See the notes.

    Returns
    -------
    Result
        The best iterate found, with its certificate. Ctrl-C ends the run and returns it too.

    Raises
    ------
    CheckpointError
        If the checkpoint belongs to another problem, is damaged, or is of a newer version.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached.
    PrecisionWarning
        If X is float32 and the tolerance is below 1.2e-7, the rounding of its numbers. Sums are
        taken in float64, so such a tolerance can be reached, but it certifies the problem of the
        rounded numbers, whose optimum differs from that of the original ones by about as much.
    RuntimeWarning
        If a checkpoint could not be written, say because the disk is full. The run goes on.

    Notes
    -----
    A run that goes on from a checkpoint continues to count: `passes`, `seconds`, `n_iter` and
    `history` include what came before, and so does `max_passes`; `max_seconds` is the time of this
    call alone. The parameters, the weights and the random generator are restored; what a solver
    has learnt of the curvature or of its step sizes is not. Another solver, `tol` or budget may
    take over. The checkpoint of a finished run stays: the same call then returns the answer after
    one pass that certifies it again. Delete the file when it is no longer needed.

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
    if 0.0 < tol < problem.data_precision:
        warn(
            f"tol={tol:g} is below the rounding of X, {problem.data_precision:.1e} for float32: "
            "the answer will be certified for the rounded numbers; pass X as float64, or set "
            f"tol={2 * problem.data_precision:.1e} or more",
            PrecisionWarning,
        )
    keeper = None if checkpoint is None else Keeper(checkpoint, problem)
    saved = None if keeper is None else keeper.load()
    # Working memory of its own: other threads may solve the same problem.
    problem = problem.for_run()
    begin = now()
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
        if w0 is not None:
            raise ValueError("give w0 or warm_start, not both: each says where to start")
        _apply_warm_start(problem, run, warm_start)
    elif w0 is not None:
        _start_at(problem, run, problem.check_parameters(w0))
    history: list[Record] = []
    if saved is not None:
        history = _apply_checkpoint(problem, run, saved)
        begin -= saved.seconds
    ledger = _Ledger(problem, run, history)
    saver = None if keeper is None else _Saver(keeper, ledger, method.name, begin)
    iterates = method.iterates(problem, run)
    if saved is not None:
        iterates = _from_checkpoint(problem, run, saved, iterates)
    try:
        with problem.engine.working():
            ending = _drive(iterates, run, ledger, callback, saver)
    except BaseException as error:
        if saver is not None:
            if isinstance(error, Exception) and run.latest is not None:
                # Solvers that check rarely have come further. The check may fail for the same
                # reason as the run.
                with contextlib.suppress(Exception):
                    ledger.check(run.latest)
            saver.save(last=True)
        raise
    if saver is not None:
        saver.save(last=True)
    best = ledger.best()
    certificate = best.certificate
    # A run on large data leaves its working memory behind: hand it back before making the result.
    run.latest = run.dual = None
    problem.engine.release()
    converged = certificate.relative_gap <= tol
    result = Result(
        w=problem.settled(best.w),
        weights=problem.engine.weights(best.dual),
        objective=certificate.primal,
        dual=certificate.dual,
        gap=certificate.gap,
        relative_gap=certificate.relative_gap,
        passes=run.passes,
        seconds=now() - begin,
        n_iter=run.n_iter,
        converged=converged,
        status=_status(method, run, certificate, converged, ending, saved),
        solver=method.name,
        history=ledger.history,
    )
    if not converged and ending not in ("interrupted", "stopped by the callback"):
        _warn(result, run, ending)
    return result


def _drive(
    iterates: Iterates,
    run: Run,
    ledger: _Ledger,
    callback: Callable[[Record], Any] | None,
    saver: _Saver | None,
) -> str:
    """Advance the solver until something ends the run; return what did."""
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
            if now() >= run.deadline:
                return "max_seconds reached"
            if saver is not None:
                saver.save_if_due()
    except KeyboardInterrupt:
        if run.latest is not None:
            ledger.check(run.latest)
        return "interrupted"
    finally:
        iterates.close()


def _status(
    method: Solver,
    run: Run,
    certificate: Certificate,
    converged: bool,
    ending: str,
    saved: State | None,
) -> str:
    passes = f"{run.passes:.4g} passes"
    if saved is not None:
        passes += f", resumed at pass {saved.passes:.4g}"
    gap = f"certified relative gap {certificate.relative_gap:.2g}"
    how = f" ({run.note})" if run.note and run.note != ending else ""
    if ending == "interrupted":
        return f"interrupted: {method.name}{how} had a {gap} after {passes}"
    if converged:
        return f"converged: {method.name}{how} reached a {gap} in {passes}"
    return (
        f"not converged: {ending}; {method.name}{how} has a {gap}, above tol={run.tol:g}, "
        f"after {passes}"
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
    warn(
        f"relative gap {result.relative_gap:.3g} is above tol={run.tol:g} ({ending}); "
        f"to get there, {remedy}",
        convergence_warning(),
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
    _start_at(problem, run, w)
    # Another number of samples still has useful parameters; its weighting is of no use.
    if len(result.weights) == problem.n_samples:
        run.dual, _ = problem.engine.nearest_dual(result.weights)


def _start_at(problem: Problem, run: Run, w: FloatArray) -> None:
    run.w = w.copy()
    run.w[: problem.n_features] = problem.penalty.project(w[: problem.n_features])


def _apply_checkpoint(problem: Problem, run: Run, saved: State) -> list[Record]:
    """Set the run to where the checkpoint left it; return the records so far."""
    run.w = saved.w
    run.dual, _ = problem.engine.nearest_dual(saved.weights)
    run.passes, run.n_iter = saved.passes, saved.n_iter
    generator = saved.make_generator()
    if generator is not None:
        # A generator of the caller is left alone.
        run.rng = generator
    return [Record(*map(float, row)) for row in saved.history]


def _from_checkpoint(problem: Problem, run: Run, saved: State, iterates: Iterates) -> Iterates:
    """The pair of the checkpoint first: it may be all that is needed, and is the one to beat."""
    assert run.dual is not None
    point = problem.engine.point(run.w)
    run.passes += 1
    yield Iterate(point, run.dual, None, run.tol * problem.unit(saved.objective))
    yield from iterates


def _check_number(name: str, value: Any, least: float) -> None:
    try:
        good = not isinstance(value, (bool, str)) and float(value) >= least
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(f"{name} must be a number of at least {least:g}, got {value!r}")
