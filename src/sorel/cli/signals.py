"""SIGTERM and SIGHUP end a command as Ctrl-C does: checkpoints are written, scratch is removed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sorel._lib import stop


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """A context in which signals raise KeyboardInterrupt; the handlers before come back.

    Only the main thread can have handlers, and signals that somebody ignores (``nohup``) or handles
    stay as they are.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, signal.SIGINT)
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.request(0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    stop.request(number)
    raise KeyboardInterrupt
