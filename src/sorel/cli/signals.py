"""SIGTERM and SIGHUP end a command as Ctrl-C does: checkpoints are written, scratch is removed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sorel._lib import stop as _stop
from sorel.cli.shared import INTERRUPTED


class Stop:
    """Which signal ended the command, if one did."""

    def __init__(self) -> None:
        self.signal = 0

    @property
    def exit_code(self) -> int:
        """What a shell reports of a process that the signal ended."""
        return 128 + self.signal if self.signal else INTERRUPTED

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signal = 0 if number == signal.SIGINT else number
        _stop.request()
        raise KeyboardInterrupt


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """A context in which signals raise KeyboardInterrupt; the handlers before come back.

    Only the main thread can have handlers, and signals that somebody ignores (``nohup``) or handles
    stay as they are.
    """
    stop = Stop()
    taken = {}
    if threading.current_thread() is threading.main_thread():
        found = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
        before = {number: signal.getsignal(number) for number in found if number is not None}
        usual = (signal.SIG_DFL, signal.default_int_handler)
        taken = {number: handler for number, handler in before.items() if handler in usual}
    for number in taken:
        signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
        _stop.withdraw()
