"""What happens while a fit runs: the progress line, the log, Ctrl-C.

Line and log hear of a run through the callback of :func:`sorel.solve`, one record per check.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO

from sorel._lib.warnings import logger
from sorel.solvers.solve import Record, Result

# A second Ctrl-C within so many seconds is meant for whatever calls fit again and again.
_TWICE_WITHIN = 2.0
_last_interrupt = -math.inf


def stop_if_repeated() -> None:
    """Raise KeyboardInterrupt if this is the second interruption within two seconds."""
    global _last_interrupt
    before, _last_interrupt = _last_interrupt, time.monotonic()
    if _last_interrupt - before < _TWICE_WITHIN:
        raise KeyboardInterrupt("interrupted twice")


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
