"""The clock of a run: it stands still while this thread waits for the compiler.

The first problem of its kind compiles the loops that it needs, once for a machine. That is not the
solver's time: budgets, histories and results leave it out.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

from numba.core import event

__all__ = ["now"]


def now() -> float:
    """Seconds since some fixed moment, less those spent on compiling and on loading compiled code.

    Only differences mean something, and only between calls from one thread.

    Returns
    -------
    float
        The time.

    Examples
    --------
    >>> from sorel._clock import now
    >>> begin = now()
    >>> now() >= begin
    True
    """
    return perf_counter() - _compiling.seconds


class _Compiling(threading.local):
    """What the compiler has cost one thread."""

    depth = 0
    since = 0.0
    seconds = 0.0


class _Listener(event.Listener):
    """Follows numba's lock, which it holds while it compiles, and while it loads from its store.

    The lock is taken again and again inside, and a thread that waits for another one's compilation
    waits for it.
    """

    def on_start(self, event: Any) -> None:
        if _compiling.depth == 0:
            _compiling.since = perf_counter()
        _compiling.depth += 1

    def on_end(self, event: Any) -> None:
        _compiling.depth -= 1
        if _compiling.depth == 0:
            _compiling.seconds += perf_counter() - _compiling.since


_compiling = _Compiling()
event.register("numba:compiler_lock", _Listener())
