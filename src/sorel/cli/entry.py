"""Spectral risk minimization with a certificate of optimality.

examples:
  sorel fit train.csv --target price --risk cvar:0.1 -o model.skops
  sorel evaluate model.skops test.csv --groups region
  sorel predict model.skops new.csv -o predictions.csv
  sorel quantile train.csv --target price --quantiles 0.1 0.5 0.9
  sorel portfolio returns.csv --risk cvar:0.05 --upper 0.1
  sorel demo --splits 3           least squares against ESRM and CVaR on three datasets
  sorel reproduce --quick         the paper's experiments, run again

exit codes:
  0    done
  1    failed: a file cannot be read or written, memory or a package is missing
  2    wrong arguments
  3    fitted and saved, but the tolerance was not reached
  4    bad data: a table, a model or a checkpoint; standard error names the cell or the fault
  130  interrupted; 143 after SIGTERM, 129 after SIGHUP: a checkpoint is written, scratch removed
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from sorel._lib import stop as _stop
from sorel._lib.text import one_line, shorten
from sorel.cli import demo, evaluate, fit, info, portfolio, predict, quantile, reproduce, warmup
from sorel.cli.arguments import Options, add_command
from sorel.cli.shared import BAD_DATA, FAILED, MISUSED, Misuse, say, silence
from sorel.cli.signals import stopped_by_signals
from sorel.cli.streams import described, flushed, open_streams
from sorel.cli.words import in_options

# A command is a module with `add`, which declares it, and `run`, which does it. They are listed in
# this order by `sorel --help`.
COMMANDS = (fit, predict, evaluate, info, quantile, portfolio, demo, reproduce, warmup)

# Packages that a command may miss, with a message that names the extra.
_OPTIONAL = ("pandas", "pyarrow", "skops", "packaging", "matplotlib", "joblib", "dask")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: 0 only if the command did its job, 1 if it failed, 2 for wrong arguments, 3
        if a model was fitted and saved but the tolerance was not reached, 4 for bad data, 130 after
        Ctrl-C, 143 after SIGTERM and 129 after SIGHUP.

    Examples
    --------
    >>> from sorel.cli import main
    >>> main(["demo", "--splits", "2", "--out", "pictures"])  # doctest: +SKIP
    0
    """
    with open_streams():
        try:
            with stopped_by_signals():
                code = _run(argv)
        except SystemExit as end:
            # Help and wrong arguments.
            raise SystemExit(flushed(int(end.code or 0))) from None
        return flushed(code)


def _run(argv: Sequence[str] | None) -> int:
    arguments = argparse.Namespace()
    try:
        arguments = _parser(argv).parse_args(argv)
        with _plain_warnings(arguments):
            code = int(arguments.run(arguments))
        # The last fit may have been cut short, and what was made of it is not what was asked for.
        _stop.check()
        return code
    except KeyboardInterrupt:
        number = _stop.requested() or signal.SIGINT
        say("interrupted" if number == signal.SIGINT else "terminated")
        # What a shell reports of a process that the signal ended.
        return 128 + number
    except Misuse as error:
        say(f"error: {error}")
        return MISUSED
    except BrokenPipeError:
        # Whoever read our output has stopped; nothing may be written at exit either.
        silence(sys.stdout)
        return FAILED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL:
            raise
        say(f"error: {error}")
        return FAILED
    except MemoryError as error:
        # NumPy says what it could not allocate.
        say(f"error: there is not enough memory for this table; {one_line(error)}".rstrip("; "))
        return FAILED
    except OSError as error:
        say(f"error: {described(error) or one_line(error)}")
        return FAILED
    except ValueError as error:
        # Arguments were checked before: what is left are values in tables and files.
        say(f"error: {in_options(error, arguments)}")
        return BAD_DATA
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # A model file may be whole, and its content still make no sense.
        if not hasattr(arguments, "model"):
            raise
        say(
            f"error: the model {arguments.model} does not work with this table: "
            f"{type(error).__name__}: {shorten(error)}"
        )
        return BAD_DATA


def _parser(argv: Sequence[str] | None) -> argparse.ArgumentParser:
    from sorel import __version__

    parser = argparse.ArgumentParser(
        prog="sorel",
        description=(__doc__ or "").partition("\n")[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sorel {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        options = Options(add_command(commands, name, command.run, command.__doc__))
        # Only the options of the command that is named are declared: some need NumPy and SciPy.
        if name in (sys.argv if argv is None else argv):
            command.add(options)
    return parser


@contextlib.contextmanager
def _plain_warnings(arguments: argparse.Namespace) -> Iterator[None]:
    """Show warnings that concern the user as one line, and no others."""
    from sorel import ConvergenceWarning

    # Commands tell of a missed tolerance in words of their own, with the options that help.
    silent = (ConvergenceWarning, DeprecationWarning, PendingDeprecationWarning, FutureWarning)

    shown = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        words = in_options(message, arguments)
        # Fits to the folds, and those of other models, find the same.
        if not issubclass(category, silent) and words not in shown:
            shown.add(words)
            say(f"warning: {words}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
