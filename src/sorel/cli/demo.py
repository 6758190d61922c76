"""``sorel demo``: compare least squares with ESRM(2) and CVaR(0.1).

Fit least squares, ESRM(2) and CVaR(0.1) on two measured sets, yacht and diabetes,
and on a generated one with two populations; print tables and save a picture.
Works offline.

example:
  sorel demo --splits 5 --out pictures
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sorel.cli.arguments import Options, positive


def add(options: Options) -> None:
    """Declare the arguments."""
    words = "folder for the picture, created if missing (default: %(default)s)"
    options.add("--out", type=Path, default=Path("sorel-demo"), metavar="DIR", help=words)
    words = "number of random splits to average over (default: %(default)s)"
    options.number("--splits", positive, words, 10, name="N")


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel.research import demo

    return demo.run(arguments.out, splits=arguments.splits)
