"""``sorel demo``: least squares against two tail risks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sorel.cli.arguments import add_command, positive


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = add_command(
        commands,
        "demo",
        run,
        help="compare least squares with ESRM(2) and CVaR(0.1)",
        description=(
            "Fit least squares, ESRM(2) and CVaR(0.1) on two measured sets, yacht and diabetes,\n"
            "and on a generated one with two populations; print tables and save a picture.\n"
            "Works offline."
        ),
        epilog="example:\n  sorel demo --splits 5 --out pictures",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("sorel-demo"), metavar="DIR",
        help="folder for the picture, created if missing (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--splits", type=positive, default=10, metavar="N",
        help="number of random splits to average over (default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel import demo

    return demo.run(arguments.out, splits=arguments.splits)
