"""``sorel warmup``: does nothing, since all loops are compiled when the package is built.

Earlier versions compiled their loops at the first fit. This one does not; images and scripts that
call the command go on as before.

example:
  sorel warmup
"""

from __future__ import annotations

import argparse

from sorel.cli.arguments import Options
from sorel.cli.shared import DONE


def add(options: Options) -> None:
    """Declare the arguments: there are none."""


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    print("nothing to compile: the loops were compiled when the package was built")
    return DONE
