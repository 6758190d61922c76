"""Arguments that several commands have, and how argparse reads their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from sorel._lib.defaults import MAX_PASSES
from sorel.cli.words import in_options

OR_FOLDER = "; or a folder of .parquet or .npy files with numbers"
SKIP_MISSING = "remove such rows, or leave them out with --skip-missing-target"


class Options:
    """The options of a command, each declared in a line.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Takes them.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.add = parser.add_argument

    def switch(self, flag: str, words: str) -> None:
        """Something that is on or off."""
        self.add(flag, action="store_true", help=words)

    def choice(self, flag: str, choices: tuple[str, ...], words: str, default: Any = None) -> None:
        """One of some words."""
        self.add(flag, choices=choices, default=default, help=words)

    def number(
        self, flag: str, kind: Callable[[str], Any], words: str, default: Any = None, name: str = ""
    ) -> None:
        """A number, which `kind` reads."""
        self.add(flag, type=kind, default=default, metavar=name or "NUMBER", help=words)

    def column(self, flag: str, words: str, required: bool = False) -> None:
        """The name of a column."""
        self.add(flag, metavar="COLUMN", required=required, help=words)

    def columns(self, flag: str, words: str) -> None:
        """Names of columns, one each time."""
        words = f"{words}; may be repeated"
        self.add(flag, action="append", default=[], metavar="COLUMN", help=words)

    def file(self, flag: str, words: str, default: str | None = None) -> None:
        """The name of a file."""
        self.add(flag, metavar="FILE", default=default, help=words)

    def output(self, what: str, default: str | None = "-") -> None:
        """Where a table goes."""
        words = f"{what} as CSV or, if it ends in .parquet, Parquet; - is standard output"
        words += " (default)" if default else ""
        self.add("-o", "--output", default=default, metavar="FILE", help=words)

    def model(self) -> None:
        """A saved model."""
        self.add("model", metavar="MODEL", help="a model that `sorel fit` saved")

    def table(self, words: str, more: str = "", several: bool = False) -> None:
        """A table to read, or several files of one, and how it is stored."""
        words = f"{words}: CSV with a header, or Parquet; - is standard input{more}"
        self.add("data", nargs="+" if several else None, metavar="TABLE", help=words)
        words = "how the table is stored (default: %(default)s, what its first bytes say)"
        self.choice("--format", ("auto", "csv", "parquet"), words, "auto")
        words = "between the fields of a CSV file (default: a comma, or a tab in .tsv files)"
        self.number("--sep", separator, words, name="CHARACTER")
        words = (
            "what a Parquet table may unfold to (default: 20, and 20 times what its file has above "
            "10)"
        )
        self.number("--unpacked", lambda text: 1e6 * above_zero(text), words, name="MEGABYTES")

    def drop(self) -> None:
        """Columns to leave out."""
        self.columns("--drop", "leave this column out")

    def effort(self, tol: float, each: str = "") -> None:
        """How far to go, and what it may cost; `each` says what the passes are counted for."""
        words = "certified relative distance to the optimum to reach (default: %(default)s)"
        self.number("--tol", above_zero, words, tol)
        words = f"passes over the table to spend at most{each} (default: {MAX_PASSES:g})"
        self.number("--max-passes", above_zero, words, float(MAX_PASSES))
        words = "threads for large data (default: what the environment allows)"
        self.number("--jobs", positive, words, name="N")

    def quiet(self) -> None:
        """A wish for silence."""
        self.add("-q", "--quiet", action="store_true", help="say only what goes wrong")

    def unknown(self) -> None:
        """What to do about texts that were not seen in training."""
        words = (
            "what to do about texts that were not seen in training: refuse them, or set all "
            "indicators of the column to 0 (default: %(default)s)"
        )
        self.choice("--unknown", ("error", "ignore"), words, "error")

    def skip_missing_target(self) -> None:
        """Whether rows may lack a target."""
        self.switch("--skip-missing-target", "leave out the rows that have no target")


def add_command(commands: Any, name: str, run: Any, doc: str | None) -> argparse.ArgumentParser:
    """Add a command that calls `run`; its words of help are the docstring of its module.

    The first line is its line in the list of commands, what follows the description, and from
    "example" on the end of its help.
    """
    first, _, rest = (doc or "").partition("\n\n")
    description, mark, end = rest.partition("example")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=first.partition(": ")[2].rstrip("."),
        description=description,
        epilog=mark + end,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def risk_spec(text: str) -> str:
    """A risk, such as cvar:0.1."""
    from sorel.problem.risks import parse_risk

    try:
        return parse_risk(text).spec or text
    except (TypeError, ValueError) as error:
        words = in_options(error, argparse.Namespace())
        raise argparse.ArgumentTypeError(words) from None


def l2_or_auto(text: str) -> float | str:
    """A number above 0, or auto."""
    try:
        return text if text == "auto" else above_zero(text)
    except argparse.ArgumentTypeError as error:
        hint = "use auto, which is 1 / rows, or a small number such as 1e-6"
        raise argparse.ArgumentTypeError(f"{error}; {hint}") from None


def share(text: str) -> float:
    """A share such as 0.03 or 3%."""
    try:
        return float(nonnegative(text.removesuffix("%"))) / (100.0 if text.endswith("%") else 1.0)
    except argparse.ArgumentTypeError:
        words = f"expected a share such as 3% or 0.03, got {text!r}"
        raise argparse.ArgumentTypeError(words) from None


def separator(text: str) -> str:
    """One character between fields or thousands."""
    text = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(text) != 1 or text in '\r\n"':
        raise argparse.ArgumentTypeError(f"expected one character, got {text!r}")
    return text


def _reader(kind: type, fits: Callable[[Any], bool], words: str) -> Callable[[str], Any]:
    """What reads a number of a kind, and refuses those that do not fit."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        # Nothing compares with NaN.
        if not (math.isfinite(value) and fits(value)):
            raise argparse.ArgumentTypeError(f"expected {words}, got {text!r}")
        return value

    return read


finite = _reader(float, lambda value: True, "a number")
above_zero = _reader(float, lambda value: value > 0.0, "a number above 0")
nonnegative = _reader(float, lambda value: value >= 0.0, "a number of at least 0")
level = _reader(float, lambda value: 0.0 < value < 1.0, "a number between 0 and 1")
positive = _reader(int, lambda value: value >= 1, "a whole number of at least 1")
folds = _reader(int, lambda value: value >= 2, "at least 2 folds")
seed_number = _reader(int, lambda value: 0 <= value < 2**32, "a whole number of at least 0")
