"""Whether the command that runs is to end.

A run that is interrupted keeps what it has, and returns. A command may be about to start the next
one, and asks here first. Only the command line sets this; elsewhere an interruption concerns one
run.
"""

from __future__ import annotations

__all__ = ["check", "request", "withdraw"]

_requested = False


def request() -> None:
    """Ask the command to end."""
    global _requested
    _requested = True


def withdraw() -> None:
    """Forget that it was asked to."""
    global _requested
    _requested = False


def check() -> None:
    """Raise KeyboardInterrupt if the command was asked to end.

    Examples
    --------
    >>> from sorel._lib import stop
    >>> stop.check()
    """
    if _requested:
        raise KeyboardInterrupt
