"""SIGTERM and SIGHUP end a command as Ctrl-C does: checkpoints are written, scratch is removed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from sorel.cli.shared import INTERRUPTED


class Stop:
    """Which signal ended the command, if one did."""

    def __init__(self) -> None:
        self.signal = 0

    @property
    def exit_code(self) -> int:
        """What a shell reports of a process that the signal ended."""
        return 128 + self.signal if self.signal else INTERRUPTED

    def __call__(self, number: int, frame: Any) -> None:
        self.signal = number
        raise KeyboardInterrupt


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """A context in which such signals raise KeyboardInterrupt; the handlers before come back.

    Only the main thread can have handlers, and signals that somebody ignores (``nohup``) or handles
    stay as they are.
    """
    stop = Stop()
    found = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    numbers = [number for number in found if number is not None]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
