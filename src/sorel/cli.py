"""The command ``sorel``: parses arguments, and leaves the work to the module of each subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

_EXAMPLES = """\
examples:
  sorel demo                      compare least squares, ESRM and CVaR on two datasets
  sorel demo --splits 3           the same, faster
  sorel demo --out pictures       save the picture in another folder
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: 0 only if the command did its job.

    Examples
    --------
    >>> from sorel.cli import main
    >>> main(["demo", "--splits", "2", "--out", "pictures"])  # doctest: +SKIP
    0
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return _demo(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from sorel import __version__

    parser = argparse.ArgumentParser(
        prog="sorel",
        description="Spectral risk minimization with a certificate of optimality.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sorel {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="compare least squares with ESRM(2) and CVaR(0.1)",
        description=(
            "Fit least squares, ESRM(2) and CVaR(0.1) on scikit-learn's diabetes set and on a "
            "generated set with two populations; print a table and save a picture. Works offline."
        ),
        epilog="example:\n  sorel demo --splits 5 --out pictures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("sorel-demo"),
        metavar="DIR",
        help="folder for the picture, created if missing (default: %(default)s)",
    )
    demo.add_argument(
        "--splits",
        type=_positive,
        default=10,
        metavar="N",
        help="number of random splits to average over (default: %(default)s)",
    )
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from sorel import demo

    return demo.run(arguments.out, splits=arguments.splits)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value
