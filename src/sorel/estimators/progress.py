"""What happens while a fit runs: the progress line, scikit-learn's callbacks, Ctrl-C.

All of them hear of a run through the callback of :func:`sorel.solve`, one record per check.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import metaestimators

from sorel._lib.warnings import logger
from sorel.problem.problem import Problem
from sorel.solvers import Solver
from sorel.solvers.base import Iterates, Run
from sorel.solvers.solve import Record, Result

if TYPE_CHECKING:
    from sorel.estimators.base import SpectralFit

try:  # scikit-learn 1.9 and newer
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
    from sklearn.callback import with_callbacks as _managed
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef] # one or the other
        """Nothing: this scikit-learn has no callbacks."""

    def _managed(method: Any) -> Any:
        return method


FloatArray = NDArray[np.float64]
Method = TypeVar("Method", bound=Callable[..., Any])


def with_callbacks(method: Method) -> Method:
    """scikit-learn's decorator of ``fit``, where it has one; the types stay."""
    return cast(Method, _managed(method))


def available_if(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """scikit-learn's decorator of methods that some models lack; the types stay."""
    return cast(Callable[[Method], Method], metaestimators.available_if(check))


# A second Ctrl-C within so many seconds is meant for whatever calls fit again and again.
_TWICE_WITHIN = 2.0
_last_interrupt = -math.inf


def stop_if_repeated() -> None:
    """Raise KeyboardInterrupt if this is the second interruption within two seconds."""
    global _last_interrupt
    before, _last_interrupt = _last_interrupt, time.monotonic()
    if _last_interrupt - before < _TWICE_WITHIN:
        raise KeyboardInterrupt("interrupted twice")


def all_of(listeners: list[Callable[[Record], Any]]) -> Callable[[Record], bool] | None:
    """One callback that calls all of them, and asks to stop if any of them does."""
    if not listeners:
        return None

    def call(record: Record) -> bool:
        stops = [bool(listener(record)) for listener in listeners]  # every one hears of it
        return any(stops)

    return call


def log_record(record: Record) -> None:
    """Log a check, for those who follow the logger ``sorel`` at the level DEBUG."""
    logger.debug(
        "%.5g passes, objective %.8g, relative gap %.2e",
        record.passes, record.objective, record.relative_gap,
    )  # fmt: skip


class ProgressLine:
    """Passes and certified gap of a run, on one line of a terminal or one line a second elsewhere.

    Parameters
    ----------
    verbose : int
        From 2 on, every check gets a line of its own.
    tol : float
        The gap to reach, shown beside the one reached.
    stream : file, optional
        Where to write; standard error when not given.
    """

    def __init__(self, verbose: int, tol: float, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._every = verbose > 1
        self._in_place = not self._every and self._stream.isatty()
        self._interval = 0.0 if self._every else 0.1 if self._in_place else 1.0
        self._tol = tol
        self._width = 0
        self._next = 0.0

    def __call__(self, record: Record) -> None:
        """Show a check, if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        self._write(
            f"sorel: {record.passes:.5g} passes, objective {record.best_objective:.8g}, "
            f"relative gap {record.best_relative_gap:.2e} (tol {self._tol:.0e})"
        )

    def close(self, result: Result) -> None:
        """Leave the outcome on the screen."""
        self._write(f"sorel: {result.status} ({result.seconds:.3g} s)")
        if self._in_place:
            self._stream.write("\n")
        self._stream.flush()

    def _write(self, text: str) -> None:
        if self._in_place:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


class Hooks(Solver):
    """scikit-learn's callbacks: one task per fit, and in it one per check.

    It stands in for the solver of the fit, whose iterates it sees pass.
    """

    def __init__(
        self, estimator: SpectralFit, problem: Problem, solver: Solver, given: dict[str, Any]
    ) -> None:
        self._inner = solver
        self.name = solver.name  # type: ignore[misc] # an instance stands in for the class here
        self._estimator, self._d = estimator, problem.n_features
        self._told = {"estimator": estimator, **given}
        self._root: Any = None
        self._task: Any = None
        self._w = problem.for_user(problem.start())
        self._best = math.inf, self._w
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(max_subtasks=None)

    def check(self, problem: Problem) -> None:
        self._inner.check(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        # A resumed fit is checked where it starts, before the solver has its first turn.
        self._w = problem.for_user(run.w)
        return self._follow(problem, self._inner.iterates(problem, run))

    def _follow(self, problem: Problem, iterates: Iterates) -> Iterates:
        reply: Any = None
        with contextlib.closing(iterates), contextlib.suppress(StopIteration):
            while True:
                iterate = iterates.send(reply)
                self._w = problem.for_user(iterate.point.w)
                reply = yield iterate

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self._root is not None and bool(getattr(self._estimator, "_skl_callbacks", None))

    def begin(self) -> None:
        if self._root is not None:
            self._root.call_on_fit_task_begin(**self._told)
        if self.wanted:
            self._start_task()

    def __call__(self, record: Record) -> bool:
        if record.objective < self._best[0]:
            self._best = record.objective, self._w
        attributes = self._attributes
        stop = self._task.call_on_fit_task_end(reconstruction_attributes=attributes, **self._told)
        self._start_task()
        return bool(stop)

    def end(self) -> None:
        if self._task is not None:
            # The task that the last check opened has nothing in it.
            self._task.call_on_fit_task_end(estimator=self._estimator)
        if self._root is not None:
            self._root.call_on_fit_task_end(reconstruction_attributes={}, **self._told)

    def _start_task(self) -> None:
        self._task = self._root.subcontext(task_name="check")
        attributes = self._attributes
        self._task.call_on_fit_task_begin(reconstruction_attributes=attributes, **self._told)

    def _attributes(self) -> dict[str, Any]:
        return self._estimator._parameters_of(self._best[1], self._d)
