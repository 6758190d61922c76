"""SIGTERM and SIGHUP end a command as Ctrl-C does: checkpoints are written, scratch is removed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sorel import _stop
from sorel.cli.shared import INTERRUPTED

# Packages and a module that are called from C, and seconds until a signal that came then is sent
# again.
_DEAF, _DEAF_MODULE = ("llvmlite", "weakref"), "numba.core.serialize"
_AGAIN = 0.05


class Stop:
    """Which signal ended the command, if one did."""

    def __init__(self) -> None:
        self.signal = 0

    @property
    def exit_code(self) -> int:
        """What a shell reports of a process that the signal ended."""
        return 128 + self.signal if self.signal else INTERRUPTED

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_deaf(frame):
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        self.signal = 0 if number == signal.SIGINT else number
        _stop.request()
        raise KeyboardInterrupt


def _is_deaf(frame: FrameType | None) -> bool:
    """Whether Python would ignore what is raised here: in callbacks from C, and when objects go."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        deaf = module.partition(".")[0] in _DEAF or module == _DEAF_MODULE
        if deaf or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


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
