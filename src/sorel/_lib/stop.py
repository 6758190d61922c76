"""Whether the command that runs is to end, and which signal asked for it.

A run that is interrupted keeps what it has, and returns. A command may be about to start the next
one, and asks here first. Only the command line sets this; elsewhere an interruption concerns one
run.
"""

from __future__ import annotations

_requested = 0


def request(number: int) -> None:
    """Ask the command to end because of a signal; 0 takes that back."""
    global _requested
    _requested = number


def requested() -> int:
    """The signal that asked the command to end; 0 if none did."""
    return _requested


def check() -> None:
    """Raise KeyboardInterrupt if the command was asked to end.

    Examples
    --------
    >>> from sorel._lib import stop
    >>> stop.check()
    """
    if _requested:
        raise KeyboardInterrupt
