"""Exit codes, and how a command says something: results go to standard output, all else here."""

from __future__ import annotations

import sys

DONE, FAILED, MISUSED, NOT_CONVERGED, INTERRUPTED = 0, 1, 2, 3, 130


class Misuse(Exception):
    """Arguments that do not go together."""


def say(message: str) -> None:
    """Write a line to standard error."""
    print(message, file=sys.stderr, flush=True)


def one_line(message: object) -> str:
    """The words of a message, without its line breaks."""
    return " ".join(str(message).split())
