"""Standard streams that may be closed or full.

Python has no stream where a descriptor is closed, and loses what is printed without a word; and a
disk that is full is often noticed after the last line of the program. While a command runs,
standard output here is one that says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

from sorel.cli.shared import DONE, FAILED, NOT_CONVERGED, say, silence

STANDARD_OUTPUT = "standard output"


class _Named:
    """A stream whose errors say which it is; None stands for one that is closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # argparse passes over errors in silence.
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _Named:
        return self if self._stream is None else _Named(self._stream.buffer)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def write(self, data: Any) -> Any:
        if self._stream is None:
            self.lost = OSError(errno.EBADF, "it is closed", STANDARD_OUTPUT)
            raise self.lost
        try:
            with _naming():
                return self._stream.write(data)
        except OSError as error:
            # A stream without a buffer, as PYTHONUNBUFFERED makes it, says so here and never again.
            self.lost = error
            raise

    def flush(self) -> None:
        if self.lost is not None:
            raise self.lost
        if self._stream is not None:
            with _naming():
                self._stream.flush()


@contextlib.contextmanager
def _naming() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from None


@contextlib.contextmanager
def named_streams() -> Iterator[None]:
    """Standard output that names itself in errors; standard error that never raises any."""
    before = sys.stdout, sys.stderr
    _fill_descriptors()
    with contextlib.ExitStack() as stack:
        sys.stdout = _Named(before[0])
        if sys.stderr is None:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def _fill_descriptors() -> None:
    """Give closed descriptors a place: the next file opened must not become standard output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is taken.
            os.open(os.devnull, os.O_RDWR)


def flushed(code: int) -> int:
    """The exit code, after all that was printed has arrived; a failure if it has not."""
    succeeded = code in (DONE, NOT_CONVERGED)
    try:
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        if succeeded:
            say(f"error: {STANDARD_OUTPUT}: {getattr(error, 'strerror', None) or error}")
    silence(sys.stdout)
    return FAILED if succeeded else code
