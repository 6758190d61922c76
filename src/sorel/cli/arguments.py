"""Arguments that several commands have, and how argparse reads their values."""

from __future__ import annotations

import argparse
import math
from typing import Any

from sorel._defaults import MAX_PASSES

OR_FOLDER = "; or a folder of .parquet or .npy files with numbers"
SKIP_MISSING = "remove such rows, or leave them out with --skip-missing-target"


def add_command(commands: Any, name: str, run: Any, **words: str) -> argparse.ArgumentParser:
    """Add a command that calls `run`, with its words of help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **words
    )
    parser.set_defaults(run=run)
    return parser


def add_table(
    parser: argparse.ArgumentParser,
    name: str,
    words: str,
    more: str = "",
    several: bool = False,
) -> None:
    """Add a table to read, or several files of one, and how it is stored."""
    parser.add_argument(
        name,
        nargs="+" if several else None,
        metavar="TABLE",
        help=f"{words}: CSV with a header, or Parquet; - is standard input{more}",
    )
    parser.add_argument(
        "--format", choices=("auto", "csv", "parquet"), default="auto",
        help="how the table is stored (default: %(default)s, what its first bytes say)",
    )  # fmt: skip
    parser.add_argument(
        "--sep", type=separator, metavar="CHARACTER",
        help="between the fields of a CSV file (default: a comma, or a tab in .tsv files)",
    )  # fmt: skip
    parser.add_argument(
        "--unpacked", type=megabytes, metavar="MEGABYTES",
        help="what a Parquet table may unfold to (default: 20, and 20 times what its file has "
        "above 10)",
    )  # fmt: skip


def add_drop(parser: argparse.ArgumentParser) -> None:
    """Add columns to leave out."""
    parser.add_argument(
        "--drop", action="append", default=[], metavar="COLUMN",
        help="leave this column out; may be repeated",
    )  # fmt: skip


def add_effort(parser: argparse.ArgumentParser, tol: float, each: str = "") -> None:
    """Add how far to go, and what it may cost; `each` says what the passes are counted for."""
    parser.add_argument(
        "--tol", type=above_zero, default=tol, metavar="NUMBER",
        help="certified relative distance to the optimum to reach (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-passes", type=above_zero, default=float(MAX_PASSES), metavar="NUMBER",
        help=f"passes over the table to spend at most{each} (default: {MAX_PASSES:g})",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=positive, metavar="N",
        help="threads for large data (default: what the environment allows)",
    )  # fmt: skip


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add a wish for silence."""
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what goes wrong")


def add_unknown(parser: argparse.ArgumentParser) -> None:
    """Add what to do about texts that were not seen in training."""
    parser.add_argument(
        "--unknown", choices=("error", "ignore"), default="error",
        help="what to do about texts that were not seen in training: refuse them, or set all "
        "indicators of the column to 0 (default: %(default)s)",
    )  # fmt: skip


def risk_spec(text: str) -> str:
    """A risk, such as cvar:0.1."""
    from sorel.risks import parse_risk

    try:
        return parse_risk(text).spec or text
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def l2_or_auto(text: str) -> float | str:
    """A number above 0, or auto."""
    try:
        return text if text == "auto" else above_zero(text)
    except argparse.ArgumentTypeError as error:
        hint = "use auto, which is 1 / rows, or a small number such as 1e-6"
        raise argparse.ArgumentTypeError(f"{error}; {hint}") from None


def above_zero(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def nonnegative(text: str) -> float:
    """A number of at least 0."""
    value = _number(text)
    if not value >= 0.0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")
    return value


def megabytes(text: str) -> float:
    """Megabytes, as bytes."""
    return 1e6 * above_zero(text)


def finite(text: str) -> float:
    """A number."""
    return _number(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value


def separator(text: str) -> str:
    """One character between fields or thousands."""
    text = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(text) != 1 or text in '\r\n"':
        raise argparse.ArgumentTypeError(f"expected one character, got {text!r}")
    return text


def seed_number(text: str) -> int:
    """A seed."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value
