"""Standard streams that may be closed or full.

Python has no stream where a descriptor is closed, and loses what is printed without a word; and a
disk that is full is often noticed after the last line of the program. While a command runs, every
stream is there, and what was printed has arrived when it ends well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from sorel.cli.shared import DONE, FAILED, NOT_CONVERGED, say, silence

# Errors of writing. Only standard streams raise them without the name of a file.
_WRITE_ERRORS = (errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def open_streams() -> Iterator[None]:
    """Standard output that refuses what is printed where it is closed; errors that go nowhere."""
    before = sys.stdout, sys.stderr
    # The next file that is opened takes the lowest descriptor: it must not become a stream.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    with contextlib.ExitStack() as stack:
        if sys.stdout is None:
            # Nothing can be written to what was opened for reading: the next flush says so.
            unwritable = os.open(os.devnull, os.O_RDONLY)
            sys.stdout = open(unwritable, "w", encoding="utf-8")  # noqa: SIM115 (closed below)
            stack.callback(_close, sys.stdout)
        if sys.stderr is None:
            sys.stderr = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def _close(stream: TextIO) -> None:
    with contextlib.suppress(OSError):
        stream.close()


def described(error: OSError) -> str | None:
    """What went wrong, and with which file or stream; None where the error does not tell."""
    name = error.filename
    if name is None and error.errno in _WRITE_ERRORS:
        name = "standard output"
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    return f"{name}: {reason}" if name is not None and reason else None


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
            words = described(error) if isinstance(error, OSError) else None
            say(f"error: {words or error}")
    silence(sys.stdout)
    return FAILED if succeeded else code
