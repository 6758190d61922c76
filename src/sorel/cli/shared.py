"""Exit codes, and how a command says something: results go to standard output, all else here."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from sorel._text import printable

DONE, FAILED, MISUSED, NOT_CONVERGED, BAD_DATA, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Misuse(Exception):
    """Arguments that do not go together."""


def show(text: object) -> None:
    """Write lines to standard output, control characters escaped."""
    print("\n".join(printable(line) for line in str(text).split("\n")))


def say(message: object) -> None:
    """Write a line to standard error, control characters escaped; whoever does not listen may."""
    try:
        print(printable(message), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


def silence(stream: Any) -> None:
    """Lead a standard stream nowhere: what is left in its buffer cannot be written either."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def one_line(message: object) -> str:
    """The words of a message, without its line breaks."""
    return " ".join(str(message).split())
