"""``sorel warmup``: compile everything once, so that no fit has to."""

from __future__ import annotations

import argparse
from typing import Any

from sorel.cli.arguments import add_command
from sorel.cli.shared import DONE, Misuse


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    add_command(
        commands,
        "warmup",
        run,
        help="compile everything once, so that first fits start at once",
        description=(
            "Solve small problems of every kind, so that all loops are compiled and stored: for\n"
            "container images and new machines. Set NUMBA_CACHE_DIR to choose the folder."
        ),
        epilog="example:\n  RUN pip install sorel && sorel warmup     (in a Dockerfile)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel.warmup import warm_up

    try:
        summary = warm_up(lambda line: print(line, flush=True))
    except ValueError as error:
        raise Misuse(str(error)) from None
    print(f"{summary.loops} loops compiled in {summary.seconds:.1f} s; all are stored in")
    for folder in summary.folders:
        print(f"  {folder}")
    return DONE
