"""``sorel warmup``: nothing to do any more; images and scripts that call it go on as before."""

from __future__ import annotations

import argparse
from typing import Any

from sorel.cli.arguments import add_command
from sorel.cli.shared import DONE


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    add_command(
        commands,
        "warmup",
        run,
        help="does nothing: all loops are compiled when the package is built",
        description="Earlier versions compiled their loops at the first fit. This one does not.",
        epilog="example:\n  sorel warmup",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    print("nothing to compile: the loops were compiled when the package was built")
    return DONE
