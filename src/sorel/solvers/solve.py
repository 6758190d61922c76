"""One call for every solver: set up, certify each iterate, record, decide, finish."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter as now
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sorel._lib import stop as _stop
from sorel._lib.warnings import warn
from sorel.certificate import (
    MANY_PRODUCTS,
    Certificate,
    CertificateError,
    Certifier,
    gap_wanted,
    relative,
    unit,
    vanishes,
)
from sorel.certificate.rounding import ROUNDINGS, negative_gap
from sorel.engines.base import Dual, FloatArray
from sorel.files.checkpoints import Checkpoint, Keeper, SavedRun, generator_state
from sorel.problem.problem import Problem
from sorel.solvers import make_solver
from sorel.solvers.base import Iterate, Iterates, Run, Solver, make_generator
from sorel.solvers.common import BLOW_UP

# Passes without half of the gap gone after which a run is stalled.
_PATIENCE = 50.0

# A gap of no more than this multiple of its rounding errors is all that a stalled run can have.
_ALL_ROUNDING = 10.0

# Entries of X beyond which sums of as many of their squares as memory holds may overflow.
_LARGEST_ENTRY = math.sqrt(sys.float_info.max) * sys.float_info.epsilon

# Relative gap of the start that is found for losses which grow like exponentials.
_PHASE_ONE_TOL = 1e-2

# Ends of a run that nobody needs to be warned of, and one that a warning names.
_STOPPED, _INTERRUPTED, _CONVERGED = "stopped by the callback", "interrupted", "converged"
_ROUNDED = "rounding errors allow no further progress"


class ConvergenceWarning(UserWarning):
    """The tolerance was not reached; the message says what was, and what to do."""


class PrecisionWarning(UserWarning):
    """The tolerance is finer than the data; the message says what the answer then means."""


class Record(NamedTuple):
    """One check of a run: what it found, and the best that is known since.

    Every objective bounds the optimum from above and every dual value from below, whichever
    iterates they come from. So the lowest objective and the highest dual value belong together, and
    theirs is the gap that a run is stopped by and a :class:`Result` reports. The gap of a single
    iterate, with its own weighting, may be far larger.

    Attributes
    ----------
    passes, seconds : float
        Spent so far; the seconds leave out what the checks themselves took.
    objective, dual, gap, relative_gap : float
        The certificate of the iterate that was checked.
    best_objective, best_dual, best_gap, best_relative_gap : float
        The lowest objective and the highest dual value so far, and the gap between them.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3))
    >>> problem = sorel.Problem(X, X @ [1.0, 2.0, 3.0] + rng.standard_t(3, size=100))
    >>> result = sorel.solve(problem, "sorel", tol=1e-3)
    >>> last = result.history[-1]
    >>> last.best_objective == result.objective, last.best_relative_gap == result.relative_gap
    (True, True)
    """

    passes: float
    seconds: float
    objective: float
    dual: float
    gap: float
    relative_gap: float
    best_objective: float
    best_dual: float
    best_gap: float
    best_relative_gap: float


@dataclass(frozen=True)
class Result:
    """What :func:`solve` found.

    Attributes
    ----------
    w : array
        The parameters of the lowest objective, intercept last when fitted; of shape (p, K) for K
        classes.
    weights : array of length n
        lam, the weighting of the samples of the highest dual value: it certifies `w`.
    objective, dual, gap, relative_gap : float
        F(w), a lower bound on the optimum, their difference, and that divided by abs(F(w)); for
        affine losses, whose objective may cancel, by their mean absolute deviation at w where that
        is more. The last record of the history says the same.
    passes, seconds : float
        Sample gradients divided by n, and wall-clock time.
    n_iter : int
        Outer iterations.
    converged : bool
        Whether the relative gap is at most the tolerance, or the fit is perfect: a gap below 1e-12
        of the loss of the best constant model, or no objective beyond rounding. The status says
        which. A run that rounding errors have stopped has not converged.
    status : str
        One sentence on how the run ended.
    history : list of Record
        One record per check, and one of a last certificate where the run ended above the tolerance.
    solver : str
        Name of the solver.
    curvature : array or None
        A Hessian near the solution, where one was needed and there are so many parameters that a
        warm start of a similar problem gains from it.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 5.0])
    >>> result = sorel.solve(sorel.Problem(X, y, risk="cvar:0.5"))
    >>> result.converged, result.solver
    (True, 'auto')
    >>> bool(result.dual <= result.objective <= result.dual + result.gap + 1e-15)
    True
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
    curvature: FloatArray | None = field(default=None, repr=False, compare=False)


class _Ledger:
    """The certified iterates of a run: history, lowest objective, highest dual value.

    With its rounding error added, an objective is an upper bound on F(w), and a dual value without
    that of its objective a lower bound on F*: the least of the one and the largest of the other
    make the gap of the run.
    """

    def __init__(self, problem: Problem, run: Run, history: list[Record]) -> None:
        self.problem, self.run, self.history = problem, run, history
        self.certifier = Certifier(problem, run.known)
        self.w = run.w
        self.dual: Dual | None = None
        self.objective, self.gap, self.unit = math.inf, math.inf, 0.0
        self._upper, self._lower, self._own_gap = math.inf, -math.inf, math.inf
        # The part of the gap that stands for rounding errors.
        self.rounding = 0.0
        self._halved = run.passes, math.inf
        self._begin = now() - (history[-1].seconds if history else 0.0)
        self._checking = 0.0

    @property
    def relative_gap(self) -> float:
        return relative(self.gap, self.unit)

    @property
    def solved(self) -> bool:
        """Whether the tolerance is reached, or the fit is perfect."""
        if self.dual is None:
            return False
        if self.gap <= gap_wanted(self.problem, self.run.tol, self.unit):
            return True
        error = self._upper - self.objective
        penalty = self.problem.penalty_value(self.w)
        return vanishes(self.problem, self.objective, penalty, self.gap, error)

    def ending(self) -> str | None:
        """Why the run is to end; None where it goes on."""
        run, stalled = self.run, self.run.passes > self._halved[0] + _PATIENCE
        if self.relative_gap <= run.tol:
            return _CONVERGED
        # A perfect fit is made better while it is more than rounding.
        rounded = self.gap <= _ALL_ROUNDING * self.rounding
        if (stalled or rounded) and self.solved:
            # Margins that were moved step by step have larger errors than those of the answer.
            self.close(stopped=False)
            if self.solved:
                return _CONVERGED
        if stalled and rounded and run.tol > 0.0:
            return _ROUNDED
        if run.passes >= run.max_passes:
            return f"max_passes={run.max_passes:g} reached"
        return "max_seconds reached" if now() >= run.deadline else None

    def check(self, iterate: Iterate) -> Certificate:
        """Certify an iterate, keep what is better than before, and record it."""
        begin = now()
        certificate = iterate.certify(self.certifier)
        # A check that spent passes did the solver's work.
        if certificate.passes == 0.0:
            self._checking += now() - begin
        self._enter(iterate.point.w, iterate.dual, certificate)
        return certificate

    def _enter(self, w: FloatArray, dual: Dual, found: Certificate) -> None:
        self.run.passes += found.passes
        if math.isfinite(found.primal):
            self._keep(w, dual, found)
        self._record(found.primal, found.dual, found.gap, found.relative_gap)

    def _record(self, objective: float, dual: float, gap: float, relative_gap: float) -> None:
        bound = max(self.objective - self.gap, self.certifier.least)
        best = self.objective, dual if self.dual is None else bound, self.gap, self.relative_gap
        seconds = now() - self._begin - self._checking
        self.history.append(
            Record(self.run.passes, seconds, objective, dual, gap, relative_gap, *best)
        )

    def _keep(self, w: FloatArray, dual: Dual, found: Certificate) -> None:
        # Rounding errors of a huge objective may overflow where it does not.
        upper = min(found.primal + found.primal_rounding, sys.float_info.max)
        lower = _lower_bound(found)
        if upper < self._upper:
            self.w, self.objective, self._upper, self.unit = w, found.primal, upper, found.unit
        # Of two equal bounds, such as the one that is free for all, the weights of the smaller gap
        # tell more.
        if self.dual is None or (lower, -found.gap) > (self._lower, -self._own_gap):
            self.dual, self._lower = dual, lower
            self._own_gap, self.rounding = found.gap, found.rounding
        # Where both are of this certificate, its gap was computed without cancellation.
        both = self._upper == upper and self._lower == lower
        self.gap = found.gap if both else self._upper - self._lower
        if self.gap < -self.rounding:
            raise CertificateError(negative_gap(self.problem.engine, self.gap, self.rounding))
        if self.gap <= 0.5 * self._halved[1]:
            self._halved = self.run.passes, self.gap

    def close(self, *, stopped: bool) -> tuple[FloatArray, Dual]:
        """The best parameters and weights, after a last attempt at a gap that is not yet closed.

        A run that its callback has `stopped` is left as the callback last saw it.
        """
        engine, certify = self.problem.engine, self.certifier.certify
        if self.dual is None:
            point = engine.point(self.run.w)
            dual = engine.worst_case(point)
            self._enter(point.w, dual, certify(point, dual))
            return point.w, dual
        w, moved = self._rounded(self.w)
        if moved or (self.relative_gap > self.run.tol and not stopped):
            # The two may never have met in one certificate, and a better bound may be worth more
            # now than it was during the run.
            found = certify(engine.point(w), self.dual, refine=math.inf, max_products=MANY_PRODUCTS)
            if moved:
                self.objective = self._upper = math.inf  # of parameters that nobody gets
            self._enter(w, self.dual, found)
        return self.w, self.dual

    def _rounded(self, w: FloatArray) -> tuple[FloatArray, bool]:
        """Parameters as they are once the user's offset is added, and whether that matters."""
        problem = self.problem
        if not problem.fit_intercept or problem.engine.n_outputs > 1:
            return w, False
        rounded = problem.from_user(problem.for_user(w))
        size = self.certifier.rounding.margin_size(w)
        moved = abs(rounded[-1] - w[-1]) > ROUNDINGS * size
        return (rounded, True) if moved else (w, False)

    def save(self, keeper: Keeper, solver: str, seconds: float, *, last: bool = False) -> None:
        """Write a checkpoint, once there is something to go on from."""
        run = self.run
        if self.dual is not None:
            state = SavedRun(
                solver=solver,
                w=self.problem.for_user(self.w),
                weights=self.problem.engine.weights(self.dual),
                history=np.array(self.history, dtype=np.float64),
                passes=run.passes,
                seconds=seconds,
                n_iter=run.n_iter,
                objective=self.objective,
                relative_gap=self.relative_gap,
                # Asking for the generator would make one.
                generator=generator_state(run.rng) if "rng" in vars(run) else None,
            )
            keeper.save(state, last=last)
        run.save_at = keeper.next


def _lower_bound(found: Certificate) -> float:
    """A bound on F* without the error of its objective, but for that of the difference."""
    upper = found.primal + found.primal_rounding
    lost = ROUNDINGS * (abs(upper) + found.gap)
    return max(found.dual, upper - found.gap - lost)


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
        Relative duality gap to reach, the same for every solver. A run also ends where the fit is
        perfect, and where rounding errors are all that is left of the gap. With 0 it ends only when
        the budget is spent or nothing is left to try.
    max_passes : float, default=1000
        Budget of sample gradients, divided by n.
    max_seconds : float, optional
        Budget of wall-clock time.
    random_state : int, Generator, RandomState or None, default=0
        Source of randomness; the same int gives the same result. No global state is touched.
    callback : callable, optional
        Called with a :class:`Record` after each check; a true return value ends the run. Its
        ``best_relative_gap`` is the one that `tol` is compared with.
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
        The parameters of the lowest objective, the weights of the highest dual value, and the gap
        between the two. Ctrl-C ends the run and returns them too.

    Raises
    ------
    CheckpointError
        If the checkpoint belongs to another problem, is damaged, or is of a newer version.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached; the message says whether rounding errors keep it away.
    PrecisionWarning
        If the tolerance is below the rounding of the entries of X: 1.2e-7 for float32, 9.8e-4 for
        float16. Sums are taken in float64, so such a tolerance can be reached, but it certifies the
        problem of the rounded numbers, whose optimum differs from that of the original ones by
        about as much. Integers are exact, and count as float64.
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
    result, complaint = solve_quietly(
        problem, solver, tol, max_passes, max_seconds=max_seconds, random_state=random_state,
        callback=callback, warm_start=warm_start, w0=w0, checkpoint=checkpoint,
    )  # fmt: skip
    if 0.0 < tol < np.finfo(problem.data_type).eps:
        _warn_of_precision(problem, tol)
    if complaint is not None:
        warn(complaint, convergence_warning())
    return result


def solve_quietly(
    problem: Problem,
    solver: str | Solver,
    tol: float,
    max_passes: float,
    *,
    max_seconds: float | None = None,
    random_state: Any = 0,
    callback: Callable[[Record], Any] | None = None,
    warm_start: Result | None = None,
    w0: ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
) -> tuple[Result, str | None]:
    """The result of :func:`solve`, and what is to be said where it missed the tolerance."""
    _stop.check()
    _check_arguments(problem, tol, max_passes, max_seconds, callback, random_state)
    method = make_solver(solver)
    method.check(problem)
    keeper = None if checkpoint is None else Keeper(checkpoint, problem)
    saved = None if keeper is None else keeper.load()
    # Working memory of its own: other threads may solve the same problem.
    problem = problem.for_run()
    begin = now()
    deadline = math.inf if max_seconds is None else begin + max_seconds
    watched = callback is not None
    run = Run(problem.start(), None, tol, max_passes, deadline, random_state, watched=watched)
    _choose_start(problem, run, warm_start, w0, saved)
    iterates, history = method.iterates(problem, run), []
    if saved is not None:
        history = [Record(*map(float, row)) for row in saved.history]
        iterates = _from_checkpoint(problem, run, saved, iterates)
        begin -= saved.seconds
    ledger = _Ledger(problem, run, history)

    def save(last: bool) -> None:
        if keeper is not None and (last or now() >= keeper.next):
            ledger.save(keeper, method.name, now() - begin, last=last)

    run.save_at = math.inf if keeper is None else keeper.next
    try:
        # A step too far may overflow; that is seen where it matters, and no news to the user.
        with problem.engine.working(), np.errstate(over="ignore", invalid="ignore"):
            ending = _drive(iterates, ledger, callback, save)
            w, dual = ledger.close(stopped=ending == _STOPPED)
            converged = ledger.solved
            lost = relative(ledger.rounding, ledger.unit)
    except Exception:
        if run.latest is not None:
            # Solvers that check rarely have come further. The check may fail as the run did.
            with contextlib.suppress(Exception):
                ledger.check(run.latest)
        raise
    finally:
        save(last=True)
    # A run on large data leaves its working memory behind: hand it back before making the result.
    run.latest = run.dual = None
    willing = ending in (_INTERRUPTED, _STOPPED)
    if ledger.objective == math.inf and not willing:
        raise ValueError(_overflow(problem))
    if not converged and (ending == _CONVERGED or ending.endswith(_ROUNDED)):
        # Either the method says so, or adding the user's offset has rounded the intercept.
        ending, lost = _ROUNDED, max(lost, ledger.relative_gap)
    last = ledger.history[-1]
    result = Result(
        w=problem.for_user(w),
        weights=problem.engine.weights(dual),
        objective=last.best_objective,
        dual=last.best_dual,
        gap=last.best_gap,
        relative_gap=last.best_relative_gap,
        passes=run.passes,
        seconds=now() - begin,
        n_iter=run.n_iter,
        converged=converged,
        status=_status(method, run, last, converged, ending, lost, saved),
        solver=method.name,
        history=ledger.history,
        curvature=run.known.matrix,
    )
    return result, None if converged or willing else _complaint(result, run, ending, lost)


def _drive(
    iterates: Iterates,
    ledger: _Ledger,
    callback: Callable[[Record], Any] | None,
    save: Callable[[bool], None],
) -> str:
    """Advance the solver until something ends the run; return what did."""
    run = ledger.run
    reply: Certificate | None = None
    try:
        while True:
            # Python loses what a signal raises in a finaliser or in a callback from C.
            _stop.check()
            try:
                iterate = iterates.send(reply)  # type: ignore[arg-type] # None starts a generator
            except StopIteration:
                return run.note or "the solver has nothing left to try"
            reply = ledger.check(iterate)
            if callback is not None and callback(ledger.history[-1]):
                return _STOPPED
            ending = ledger.ending()
            if ending is not None:
                return ending
            save(False)
    except KeyboardInterrupt:
        if run.latest is not None:
            ledger.check(run.latest)
        return _INTERRUPTED
    finally:
        iterates.close()


def _status(
    method: Solver,
    run: Run,
    last: Record,
    converged: bool,
    ending: str,
    lost: float,
    saved: SavedRun | None,
) -> str:
    passes = f"{run.passes:.4g} passes"
    if saved is not None:
        passes += f", resumed at pass {saved.passes:.4g}"
    gap = f"certified relative gap {last.best_relative_gap:.2g}"
    how = f" ({run.note})" if run.note and run.note != ending else ""
    if ending == _INTERRUPTED:
        return f"interrupted: {method.name}{how} had a {gap} after {passes}"
    if converged and last.best_relative_gap > run.tol:
        return (
            f"converged: {method.name}{how} found a perfect fit in {passes}: its objective is "
            f"{last.best_objective:.2g}, with a gap of {last.best_gap:.2g}"
        )
    if lost > run.tol > 0.0:
        return (
            f"stopped by rounding: {method.name}{how} has a {gap}, above tol={run.tol:g}, after "
            f"{passes}; rounding errors alone leave {lost:.1g}"
        )
    if converged:
        return f"converged: {method.name}{how} reached a {gap} in {passes}"
    return (
        f"not converged: {ending}; {method.name}{how} has a {gap}, above tol={run.tol:g}, "
        f"after {passes}"
    )


def _overflow(problem: Problem) -> str:
    """What to say where no point of finite losses was found."""
    columns = problem.engine.column_scale()
    sizes = "" if columns is None else f", and X has entries of size {columns.max():.3g}"
    return (
        f"the {problem.loss.name} losses overflow at all parameters that were tried{sizes}; scale "
        "the columns of X, or take a penalty that allows smaller coefficients"
    )


def _complaint(result: Result, run: Run, ending: str, rounding: float) -> str:
    if rounding > run.tol > 0.0:
        remedy = (
            f"scale the columns of X or raise l2: rounding errors alone leave {rounding:.1g}, "
            "however long it runs"
        )
    elif ending.startswith("max_"):
        remedy = "raise " + ending.split("=")[0].split(" ")[0]
        if result.solver not in ("auto", "newton"):
            remedy += ", or use solver='auto'"
    elif result.solver != "auto":
        remedy = "use solver='auto'"
    else:
        remedy = f"accept a tol of {2 * result.relative_gap:.0e}, raise l2, or scale the columns"
    return (
        f"relative gap {result.relative_gap:.3g} is above tol={run.tol:g} ({ending}); "
        f"to get there, {remedy}"
    )


def _warn_of_precision(problem: Problem, tol: float) -> None:
    kind = problem.data_type
    precision = float(np.finfo(kind).eps)
    remedy = f"set tol={2 * precision:.1e} or more"
    if kind != np.float64:
        remedy = f"pass the original numbers as float64, or {remedy}"
    warn(
        f"tol={tol:g} is below the rounding of X, {precision:.1e} for {kind}: "
        f"the answer will be certified for the rounded numbers; {remedy}",
        PrecisionWarning,
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


def _check_arguments(
    problem: Any, tol: Any, max_passes: Any, max_seconds: Any, callback: Any, random_state: Any
) -> None:
    """Refuse what the solvers could not work with, at the door."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a sorel.Problem, got {type(problem).__name__}")
    seconds = 0.0 if max_seconds is None else max_seconds
    for name, value in (("tol", tol), ("max_passes", max_passes), ("max_seconds", seconds)):
        try:
            good = not isinstance(value, (bool, str)) and float(value) >= 0.0
        except (TypeError, ValueError):
            good = False
        if not good:
            raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    if random_state is not None and not (isinstance(random_state, int) and random_state >= 0):
        make_generator(random_state)  # refuses what is not a source of randomness
    columns = problem.engine.column_scale()
    if columns is not None and not np.maximum.reduce(columns) <= _LARGEST_ENTRY:
        j = int(np.argmax(columns))
        raise ValueError(
            f"X has an entry of size {columns[j]:.3g} in column {j}, whose square overflows; "
            f"divide that column by a number such as {columns[j]:.0e}"
        )


def _choose_start(
    problem: Problem,
    run: Run,
    warm_start: Result | None,
    w0: ArrayLike | None,
    saved: SavedRun | None,
) -> None:
    """Set the run to where it begins: a checkpoint, another result, the user's parameters, or 0."""
    engine, d = problem.engine, problem.n_features
    if warm_start is not None and w0 is not None:
        raise ValueError("give w0 or warm_start, not both: each says where to start")
    if warm_start is not None:
        _check_warm_start(warm_start, engine.shape)
        run.w = problem.from_user(np.asarray(warm_start.w, dtype=np.float64))
        run.known.matrix = warm_start.curvature
        # Another number of samples still has useful parameters; its weighting is of no use.
        weights = warm_start.weights
        if len(weights) == problem.n_samples:
            run.dual, _ = engine.nearest_dual(weights)
    elif w0 is not None:
        run.w = problem.check_parameters(w0)
    elif saved is None:
        _start_where_finite(problem, run)
    run.w[:d] = problem.penalty.project(run.w[:d])
    if saved is not None:
        run.w = problem.from_user(saved.w)
        run.dual, _ = engine.nearest_dual(saved.weights)
        run.passes, run.n_iter = saved.passes, saved.n_iter
        generator = saved.make_generator()
        if generator is not None:
            # A generator of the caller is left alone.
            run.rng = generator


def _check_warm_start(result: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(result, Result):
        raise TypeError(f"warm_start must be a Result of sorel.solve, got {type(result).__name__}")
    if np.shape(result.w) != shape:
        raise ValueError(
            f"warm_start has parameters of shape {np.shape(result.w)}, this problem needs {shape}"
        )


def _start_where_finite(problem: Problem, run: Run) -> None:
    """Phase one: start losses that grow like exponentials where they are of a moderate size.

    Newton steps climb down an exponential one by one.
    """
    if problem.loss.curvature_bound < math.inf:
        return
    engine = problem.engine
    with np.errstate(over="ignore", invalid="ignore"):
        if engine.sizes(engine.point(run.w)).absolute <= BLOW_UP * problem.zero_loss:
            return
    phase_one = problem.phase_one()
    if phase_one is not None:
        result, _ = solve_quietly(phase_one, "newton", _PHASE_ONE_TOL, run.max_passes)
        run.w, run.passes = result.w, result.passes


def _from_checkpoint(problem: Problem, run: Run, saved: SavedRun, iterates: Iterates) -> Iterates:
    """The pair of the checkpoint first: it may be all that is needed, and is the one to beat."""
    assert run.dual is not None
    point = problem.engine.point(run.w)
    run.passes += 1
    # The bound that the weights gave is worth having again, and no more than that.
    worth = max(run.tol, saved.relative_gap) * unit(problem, saved.objective, point)
    yield Iterate(point, run.dual, None, worth)
    yield from iterates
