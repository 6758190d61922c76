"""Exit codes, what commands say, and what they do with tables before they begin."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from sorel._lib.defaults import STANDARD
from sorel._lib.text import printable

DONE, FAILED, MISUSED, NOT_CONVERGED, BAD_DATA = range(5)


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


def note(arguments: argparse.Namespace, message: object) -> None:
    """Say something that is no fault, unless silence was asked for."""
    if not arguments.quiet:
        say(message)


def silence(stream: Any) -> None:
    """Lead a standard stream nowhere: what is left in its buffer cannot be written either."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def check_outputs(*paths: str | None) -> None:
    """Refuse files that cannot be written, before work that would be in vain."""
    from sorel.files.atomic import check_writable

    for path in paths:
        if path is not None and path != STANDARD:
            check_writable(path)


def read_frame(
    arguments: argparse.Namespace, named: list[str], target: str | None = None, **options: Any
) -> Any:
    """The table of a command, which must have the columns that its arguments name.

    With --skip-missing-target, rows without a value of `target` are left out; messages count rows
    as in the file.
    """
    from sorel.files import tables

    frame = tables.read_table(
        arguments.data,
        format=arguments.format,
        sep=arguments.sep,
        unpacked=arguments.unpacked,
        **options,
    )
    tables.require_columns(frame.columns, named)
    if target is None or not arguments.skip_missing_target:
        return frame
    known = frame[target].notna()
    if not known.any():
        raise tables.TableError(f"target {target!r} has no values at all")
    if not known.all():
        missing = (~known).sum()
        note(arguments, f"note: {missing} of {len(frame)} rows have no target and are left out")
    return frame[known]
