"""The command ``sorel``: parses arguments, and leaves the work to the module of each subcommand.

Results go to standard output or to a file, everything else to standard error. The exit code is 0
only if the command did its job; the others are listed in ``sorel --help``.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["main"]

DONE, FAILED, MISUSED, NOT_CONVERGED, INTERRUPTED = 0, 1, 2, 3, 130

_EXAMPLES = """\
examples:
  sorel fit train.csv --target price --risk cvar:0.1 -o model.skops
  sorel evaluate model.skops test.csv --groups region
  sorel predict model.skops new.csv -o predictions.csv
  sorel demo --splits 3           least squares against ESRM and CVaR on two datasets
  sorel reproduce --quick         the paper's experiments, run again

exit codes:
  0    done
  1    failed: a bad table, model or output file; standard error says what is wrong
  2    wrong arguments
  3    fitted and saved, but the tolerance was not reached
  130  interrupted
"""

_FIT = """\
Fit a linear model that minimises a tail risk, and save it with the preparation of its columns.
Numbers are standardised; texts and truth values become indicator columns, one for each value. The
target is left in its own units. A text target, or one with two values, makes it classification.
"""

_FIT_EXAMPLES = """\
examples:
  sorel fit train.csv --target price --risk cvar:0.1 -o model.skops
      the mean of the worst tenth of the losses, instead of the mean of all
  sorel fit people.parquet --target churned --risk esrm:2 --impute -o churn.skops
      classification; missing values become the median or the most frequent value
  sorel fit train.csv --target y --drop id --categorical zip --l2 0.01 -o model.skops
      leave out a column, and take the numbers of another as names
  sorel fit large.parquet --target y --checkpoint fit.ckpt -o model.skops
      a long fit: after Ctrl-C or a crash, the same command goes on from fit.ckpt
  cat train.csv | sorel fit - --target y -o - > model.skops
  sorel fit huge.parquet --target y --out-of-core --scratch /data/tmp -o model.skops
      more rows than fit into memory; all columns must be numbers
  sorel fit blocks/ --target y.npy -o model.skops
      a folder of .npy files with rows, called x0, x1 ... unless blocks/columns.json names them

risks:
  mean, max, cvar:ALPHA (the worst share ALPHA), esrm:RHO, extremile:R
"""

_PREDICT = """\
Predict with a saved model. The table needs the columns that the model was fitted to, by name and in
any order; others are ignored. Numbers are written with all their digits.
"""

_PREDICT_EXAMPLES = """\
examples:
  sorel predict model.skops new.csv -o predictions.csv
  sorel predict churn.skops people.parquet --proba --keep id -o churn.parquet
  cat new.csv | sorel predict model.skops - | head
"""

_EVALUATE = """\
Report the losses of a saved model on a table with known targets: the mean, the mean of the worst
shares (CVaR) and the worst, over all rows and, if wanted, for each group of rows.
"""

_EVALUATE_EXAMPLES = """\
examples:
  sorel evaluate model.skops test.csv
  sorel evaluate model.skops test.csv --groups region
  sorel evaluate model.skops test.csv --groups region -o report.csv
"""

_OR_FOLDER = "; or a folder of .parquet or .npy files with numbers"

_INFO_EXAMPLES = """\
examples:
  sorel info model.skops
"""

_LOSS_WORDS = {
    "squared": "losses: half the squared error",
    "huber": "losses: half the squared error, linear beyond an error of 1",
    "logistic": "losses: minus the logarithm of the probability given to the true label",
    "squared_hinge": "losses: squared shortfall of the margin",
}

# From this share of different values on, a text column is more likely a name than a category.
_MANY_CATEGORIES = 0.5
_FEW_ROWS = 20
# A Parquet file of numbers that would take more of the memory than this stays on disk.
_SHARE_OF_MEMORY = 0.25
_FEW_LABELS = 10
_FIRST_ROWS = 100_000


class _Misuse(Exception):
    """Arguments that do not go together."""


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
        if a model was fitted and saved but the tolerance was not reached, 130 after Ctrl-C.

    Examples
    --------
    >>> from sorel.cli import main
    >>> main(["demo", "--splits", "2", "--out", "pictures"])  # doctest: +SKIP
    0
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        with _plain_warnings():
            return int(arguments.run(arguments))
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except _Misuse as error:
        _say(f"error: {error}")
        return MISUSED
    except BrokenPipeError:
        # Whoever read our output has stopped; nothing may be written at exit either.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pandas", "pyarrow", "skops"):
            raise
        _say(f"error: {error}")
        return FAILED
    except MemoryError:
        _say("error: there is not enough memory for this table")
        return FAILED
    except OSError as error:
        known = error.filename is not None and error.strerror
        _say(f"error: {error.filename}: {error.strerror}" if known else f"error: {error}")
        return FAILED
    except ValueError as error:
        _say(f"error: {_one_line(error)}")
        return FAILED


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
    _add_fit(commands)
    _add_predict(commands)
    _add_evaluate(commands)
    _add_info(commands)
    _add_demo(commands)
    _add_reproduce(commands)
    return parser


def _add(commands: Any, name: str, run: Any, **words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **words
    )
    parser.set_defaults(run=run)
    return parser


def _add_fit(commands: Any) -> None:
    parser = _add(
        commands,
        "fit",
        _fit,
        help="fit a model to a table and save it",
        description=_FIT,
        epilog=_FIT_EXAMPLES,
    )
    _add_table(parser, "data", "the table to learn from", more=_OR_FOLDER)
    parser.add_argument(
        "--target", required=True, metavar="COLUMN",
        help="column to predict; beside .npy files, a .npy file or a folder of them",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", required=True, metavar="MODEL",
        help="file for the model, such as model.skops, or - for standard output",
    )  # fmt: skip
    parser.add_argument(
        "--risk", type=_risk, default="cvar:0.5", help="what to minimise (default: %(default)s)"
    )
    parser.add_argument(
        "--task", choices=("auto", "regression", "classification"), default="auto",
        help="what kind of target it is (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--loss", choices=("squared", "huber", "logistic", "squared_hinge"),
        help="loss of one row (default: squared for regression, logistic for classification)",
    )  # fmt: skip
    parser.add_argument(
        "--l2", type=_l2, default="auto", metavar="NUMBER",
        help="strength of the ridge penalty; auto is 1 / rows (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--l1", type=_nonnegative, default=0.0, metavar="NUMBER",
        help="strength of the lasso penalty (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--tol", type=_above_zero, default=1e-4, metavar="NUMBER",
        help="certified relative distance to the optimum to reach (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-passes", type=_above_zero, default=1000.0, metavar="NUMBER",
        help="passes over the table to spend at most (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N",
        help="seed of the random choices, where a solver makes any (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--impute", action="store_true",
        help="fill in missing values: the median of numbers, the most frequent text",
    )  # fmt: skip
    parser.add_argument(
        "--drop", action="append", default=[], metavar="COLUMN",
        help="leave this column out; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--categorical", action="append", default=[], metavar="COLUMN",
        help="take the values of this column as names, even if they are numbers; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=_positive, metavar="N",
        help="threads for large data (default: what the environment allows)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", metavar="FILE",
        help="keep the state of the fit in this file, and go on from it if it exists; "
        "it stays when the fit is done",
    )  # fmt: skip
    parser.add_argument(
        "--out-of-core", action="store_true",
        help="leave the rows of a Parquet file on disk, which takes numbers only; a folder is "
        "always read that way, and so is a file of numbers that would fill the memory",
    )  # fmt: skip
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR",
        help="folder for the standardised copy of rows on disk, which is removed at the end "
        "(default: the system's folder for temporary files)",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what goes wrong")


def _add_predict(commands: Any) -> None:
    parser = _add(
        commands,
        "predict",
        _predict,
        help="predict with a saved model",
        description=_PREDICT,
        epilog=_PREDICT_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="a model that `sorel fit` saved")
    _add_table(parser, "data", "the table to predict for", more=_OR_FOLDER)
    _add_unknown(parser)
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE",
        help="CSV or, if it ends in .parquet, Parquet; - is standard output (default)",
    )  # fmt: skip
    parser.add_argument(
        "--proba", action="store_true", help="add a column of probabilities for each class"
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="COLUMN",
        help="copy this column of the table in front of the predictions; may be repeated",
    )  # fmt: skip


def _add_evaluate(commands: Any) -> None:
    parser = _add(
        commands,
        "evaluate",
        _evaluate,
        help="report the tail of a saved model's losses",
        description=_EVALUATE,
        epilog=_EVALUATE_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="a model that `sorel fit` saved")
    _add_table(parser, "data", "a table with the model's columns and its target", more=_OR_FOLDER)
    _add_unknown(parser)
    parser.add_argument(
        "--target", metavar="COLUMN", help="column with the truth (default: the model's target)"
    )
    parser.add_argument(
        "--groups", metavar="COLUMN", help="report each value of this column separately as well"
    )
    parser.add_argument(
        "-o", "--output", default=None, metavar="FILE",
        help="write the report as CSV or Parquet instead; - is CSV on standard output",
    )  # fmt: skip


def _add_info(commands: Any) -> None:
    parser = _add(
        commands,
        "info",
        _info,
        help="show what is known about a saved model",
        description="Show the training summary inside a saved model, without loading the model.",
        epilog=_INFO_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help="a model that `sorel fit` saved")


def _add_demo(commands: Any) -> None:
    parser = _add(
        commands,
        "demo",
        _demo,
        help="compare least squares with ESRM(2) and CVaR(0.1)",
        description=(
            "Fit least squares, ESRM(2) and CVaR(0.1) on scikit-learn's diabetes set and on a\n"
            "generated set with two populations; print a table and save a picture. Works offline."
        ),
        epilog="example:\n  sorel demo --splits 5 --out pictures",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("sorel-demo"), metavar="DIR",
        help="folder for the picture, created if missing (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--splits", type=_positive, default=10, metavar="N",
        help="number of random splits to average over (default: %(default)s)",
    )  # fmt: skip


def _add_reproduce(commands: Any) -> None:
    parser = _add(
        commands,
        "reproduce",
        _reproduce,
        help="run the paper's experiments again, against certified optima",
        description=(
            "Run the experiments of the paper on its five datasets, and write figures, tables, "
            "curves and one HTML report. The datasets are looked for in --data, in $SOREL_DATA "
            "and in the user's cache. A run that was stopped goes on where it was."
        ),
        epilog=(
            "examples:\n"
            "  sorel reproduce --quick --out report      five minutes on two cores\n"
            "  sorel reproduce --out report              everything\n"
            "  sorel reproduce --figure 2 --datasets yacht energy --risks cvar:0.5\n"
            "  sorel reproduce --datasets diabetes generated    without the paper's datasets"
        ),
    )
    parser.add_argument(
        "--figure",
        choices=("1", "2", "3", "all"),
        default="all",
        help="1: trajectories; 2: without mini-batches; 3: with them (default: %(default)s)",
    )
    parser.add_argument(
        "--datasets",
        nargs="+",
        metavar="NAME",
        help="yacht, energy, concrete, kin8nm, power (default: these); diabetes, generated",
    )
    parser.add_argument(
        "--risks",
        nargs="+",
        metavar="RISK",
        help="risks (default: esrm:2 extremile:2.5 cvar:0.5)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds and passes")
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="processes (default: one per core)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("sorel-reproduction"),
        metavar="DIR",
        help="folder for everything, created if missing (default: %(default)s)",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the datasets")


def _add_table(parser: argparse.ArgumentParser, name: str, words: str, more: str = "") -> None:
    parser.add_argument(
        name,
        metavar="TABLE",
        help=f"{words}: CSV with a header, or Parquet; - is standard input{more}",
    )
    parser.add_argument(
        "--format", choices=("auto", "csv", "parquet"), default="auto",
        help="how the table is stored (default: %(default)s, what its first bytes say)",
    )  # fmt: skip
    parser.add_argument(
        "--sep", type=_separator, metavar="CHARACTER",
        help="between the fields of a CSV file (default: a comma, or a tab in .tsv files)",
    )  # fmt: skip


def _add_unknown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unknown", choices=("error", "ignore"), default="error",
        help="what to do about texts that were not seen in training: refuse them, or set all "
        "indicators of the column to 0 (default: %(default)s)",
    )  # fmt: skip


def _fit(arguments: argparse.Namespace) -> int:
    from sorel import ConvergenceWarning, tables
    from sorel._files import check_writable

    output = arguments.output
    if output != tables.STANDARD:
        check_writable(output)
    elif sys.stdout.isatty():
        raise _Misuse("a model is binary data, not for a terminal; give -o a file name")
    if arguments.checkpoint is not None:
        _check_checkpoint(arguments)
    if arguments.target in (*arguments.drop, *arguments.categorical):
        raise _Misuse(f"column {arguments.target!r} is the target; do not name it elsewhere too")
    with warnings.catch_warnings():
        # Said below, in the words of the command line.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if _on_disk(arguments):
            task, kinds, count, pipeline = _fit_rows(arguments)
        else:
            task, kinds, count, pipeline = _fit_table(arguments)
    model = pipeline[-1].set_params(verbose=0, n_jobs=None, checkpoint=None)
    if model.status_.startswith("interrupted"):
        if arguments.checkpoint is not None and os.path.exists(arguments.checkpoint):
            _say(
                f"the state of the fit is in {arguments.checkpoint}; the same command goes on from "
                "there"
            )
        raise KeyboardInterrupt
    _save(pipeline, output, _summary(task, arguments, kinds, count, model))
    if not arguments.quiet:
        place = "standard output" if output == tables.STANDARD else output
        _say(
            f"{task} with {arguments.risk} on {count} rows, {len(kinds)} columns: certified "
            f"relative gap {model.relative_gap_:.2g} in {model.n_passes_:.4g} passes; "
            f"saved to {place}"
        )
    if not model.converged_:
        again = ""
        if arguments.checkpoint is not None:
            again = f"; with more passes the fit goes on from {arguments.checkpoint}"
        _say(
            f"warning: the certified relative gap {model.relative_gap_:.2g} is above --tol "
            f"{arguments.tol:g}; raise --max-passes, --tol or --l2{again}"
        )
        return NOT_CONVERGED
    return DONE


def _fit_table(arguments: argparse.Namespace) -> tuple[str, dict[str, str], int, Any]:
    """Task, kinds of columns, number of rows and fitted pipeline of a table in memory."""
    from sorel import tables

    frame = tables.read_table(
        arguments.data,
        format=arguments.format,
        sep=arguments.sep,
        text_columns=set(arguments.categorical),
    )
    named = (arguments.target, *arguments.drop, *arguments.categorical)
    absent = [name for name in named if name not in frame.columns]
    if absent:
        raise tables.TableError(tables.missing_columns(absent, frame.columns))
    task, y = _target(frame[arguments.target], arguments)
    features = frame.drop(columns=[arguments.target, *arguments.drop])
    if not len(features.columns):
        raise tables.TableError("the table has no columns to learn from besides the target")
    kinds = tables.column_kinds(features)
    X = tables.select_columns(
        features,
        kinds,
        allow_missing=arguments.impute,
        hint="remove such rows, or have the values filled in with --impute",
    )
    _note_names(X, kinds)
    pipeline = tables.make_pipeline(kinds, _estimator(task, arguments), impute=arguments.impute)
    return task, kinds, len(frame), pipeline.fit(X, y)


def _on_disk(arguments: argparse.Namespace) -> bool:
    """Whether the rows are to stay on disk: told so, no single table, or too much for memory."""
    from sorel.tables import STANDARD

    if arguments.data == STANDARD:
        if arguments.out_of_core:
            raise _Misuse("--out-of-core needs a file or a folder, not standard input")
        return False
    path = Path(arguments.data)
    if arguments.out_of_core or path.is_dir() or path.suffix.lower() == ".npy":
        return True
    if arguments.impute or arguments.categorical or not _fills_memory(arguments):
        return False
    _say(
        f"note: {arguments.data} would fill the memory; its rows stay on disk, as with "
        "--out-of-core"
    )
    return True


def _fills_memory(arguments: argparse.Namespace) -> bool:
    """Whether a Parquet file holds numbers only, and more of them than a share of the memory."""
    path = Path(arguments.data)
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # Numbers rarely shrink to a tenth: do not even open what is small.
        if not path.is_file() or path.stat().st_size < 0.1 * _SHARE_OF_MEMORY * memory:
            return False
        return _parquet_rows(arguments).nbytes > _SHARE_OF_MEMORY * memory
    except (AttributeError, OSError, ValueError, ModuleNotFoundError):
        # Whatever is wrong with the file, reading it says so.
        return False


def _parquet_rows(arguments: argparse.Namespace) -> Any:
    from sorel.rows import NotNumericError, ParquetRows
    from sorel.tables import TableError

    try:
        rows = ParquetRows(arguments.data, exclude=[arguments.target, *arguments.drop])
    except NotNumericError as error:
        raise TableError(
            f"column {error.column!r} of {error.file} holds {error.words}; rows on disk must be "
            f"numbers: encode it, or leave it out with --drop {error.column!r}"
        ) from None
    for name in rows.truth_columns():
        raise TableError(
            f"column {name!r} of {arguments.data} holds truth values; rows on disk must be "
            f"numbers: store it as 0 and 1, or leave it out with --drop {name!r}"
        )
    return rows


def _fit_rows(arguments: argparse.Namespace) -> tuple[str, dict[str, str], int, Any]:
    """Task, kinds of columns, number of rows and fitted pipeline of rows on disk."""
    import shutil
    import tempfile

    import pandas as pd

    from sorel import tables
    from sorel.rows import ScaledRows, is_parquet, open_data, write_blocks

    path = Path(arguments.data)
    if arguments.impute or arguments.categorical:
        raise _Misuse("--impute and --categorical need a table in memory, not rows on disk")
    if is_parquet(path) or arguments.format == "parquet":
        rows = _parquet_rows(arguments)
        y = rows.column(arguments.target)
    elif path.is_file() and path.suffix.lower() != ".npy":
        raise _Misuse(
            f"{arguments.data} cannot stay on disk: --out-of-core reads Parquet and .npy files; "
            "convert it to Parquet first"
        )
    elif arguments.drop:
        raise _Misuse("--drop leaves out columns of tables and of Parquet files, not of .npy files")
    else:
        rows, y = open_data(path, Path(arguments.target))
    if len(y) != rows.n_samples:
        raise tables.TableError(
            f"{arguments.data} has {rows.n_samples} rows, but {arguments.target} has {len(y)} "
            "values"
        )
    task, y = _target(pd.Series(y, name=arguments.target), arguments)
    pipeline = tables.standardise_rows(rows, _estimator(task, arguments))
    scaler = pipeline["columns"].named_transformers_["numeric"]
    with tempfile.TemporaryDirectory(prefix="sorel-", dir=arguments.scratch) as place:
        free = shutil.disk_usage(place).free
        if free < 1.01 * rows.nbytes:
            raise tables.TableError(
                f"the standardised rows take {rows.nbytes / 2**30:.2g} GB, and {place} has "
                f"{free / 2**30:.2g} GB left; name a folder with more room with --scratch"
            )
        scaled = ScaledRows(rows, scaler.mean_, scaler.scale_)
        # In the pipeline, too, the model gets numbers without names.
        scaled.columns = None
        blocks = write_blocks(Path(place) / "rows", scaled)
        rows.close()
        try:
            pipeline[-1].fit(blocks, y)
        finally:
            blocks.close()
    names = scaler.feature_names_in_.tolist()
    return task, dict.fromkeys(names, "numeric"), rows.n_samples, pipeline


def _check_checkpoint(arguments: argparse.Namespace) -> None:
    """Refuse a checkpoint that cannot serve before the table is read; say where the fit goes on."""
    from sorel._files import check_writable
    from sorel.checkpoints import read_passes

    path = arguments.checkpoint
    others = {"the table": arguments.data, "the model": arguments.output}
    for name, other in others.items():
        if os.path.realpath(path) == os.path.realpath(other):
            raise _Misuse(f"--checkpoint {path} is {name}; give it a file of its own")
    check_writable(path)
    passes = read_passes(path)
    if passes is not None and not arguments.quiet:
        _say(f"resuming from {path} at pass {passes:.4g}")


def _estimator(task: str, arguments: argparse.Namespace) -> Any:
    from sorel.estimators import SpectralRiskClassifier, SpectralRiskRegressor

    losses = {
        "regression": ("squared", "huber"),
        "classification": ("logistic", "squared_hinge"),
    }[task]
    loss = arguments.loss or losses[0]
    if loss not in losses:
        raise _Misuse(
            f"--loss {loss} does not suit {task}; it takes {' or '.join(losses)} "
            "(--task says what the target is)"
        )
    kind = SpectralRiskRegressor if task == "regression" else SpectralRiskClassifier
    return kind(
        risk=arguments.risk,
        loss=loss,
        l2=arguments.l2,
        l1=arguments.l1,
        tol=arguments.tol,
        max_passes=arguments.max_passes,
        random_state=arguments.seed,
        verbose=int(sys.stderr.isatty() and not arguments.quiet),
        n_jobs=arguments.jobs,
        checkpoint=arguments.checkpoint,
    )


def _target(values: pd.Series, arguments: argparse.Namespace) -> tuple[str, Any]:
    """The task that a target calls for, and its values as the estimator wants them."""
    from sorel import tables

    name = arguments.target
    frame = values.to_frame()
    kind = tables.column_kinds(frame)[name]
    targets = tables.select_columns(frame, {name: kind}, hint="remove such rows")[name]
    # Counting the different values of a long column takes longer than a fit: a few are enough.
    count = targets.iloc[:_FIRST_ROWS].nunique()
    if count <= _FEW_LABELS:
        count = targets.nunique()
    if count < 2:
        only = targets.tolist()[0]
        raise tables.TableError(
            f"target {name!r} has one value only, {only!r}; there is nothing to learn"
        )
    task = arguments.task
    if task == "auto":
        task = "regression" if kind == "numeric" and count > 2 else "classification"
        if not arguments.quiet and count <= _FEW_LABELS:
            _note_task(name, kind, task, targets)
    if task == "regression":
        if kind != "numeric":
            raise _Misuse(f"--task regression needs numbers, and target {name!r} holds {kind}s")
        return task, targets.to_numpy()
    if kind == "numeric":
        # Labels stay whole numbers where the file has whole numbers.
        return task, values.to_numpy()
    return task, targets.to_numpy(dtype=bool if kind == "boolean" else object)


def _note_task(name: str, kind: str, task: str, targets: pd.Series) -> None:
    if kind != "numeric":
        return
    labels = sorted(targets.unique().tolist())
    if task == "classification":
        first, second = labels
        _say(
            f"note: target {name!r} has the two values {first:g} and {second:g}, taken as labels; "
            "use --task regression if they are numbers"
        )
    elif all(label.is_integer() for label in labels):
        _say(
            f"note: target {name!r} has {len(labels)} different whole numbers, taken as numbers; "
            "use --task classification if they are labels"
        )


def _note_names(X: pd.DataFrame, kinds: dict[str, str]) -> None:
    for column, kind in kinds.items():
        count = X[column].nunique() if kind == "text" else 0
        if len(X) >= _FEW_ROWS and count > _MANY_CATEGORIES * len(X):
            _say(
                f"warning: column {column!r} has {count} different texts in {len(X)} rows; if it "
                f"holds names, dates or misread numbers, leave it out with --drop {column!r}"
            )


def _summary(
    task: str, arguments: argparse.Namespace, kinds: dict[str, str], rows: int, model: Any
) -> dict[str, Any]:
    return {
        "task": task,
        "target": arguments.target,
        "rows": rows,
        "l2": float(model.l2_),
        "l1": arguments.l1,
        "tol": arguments.tol,
        "imputed": arguments.impute,
        "columns": kinds,
    }


def _save(model: Any, output: str, summary: dict[str, Any]) -> None:
    from sorel.saving import save_model
    from sorel.tables import STANDARD

    if output == STANDARD:
        save_model(model, sys.stdout.buffer, summary=summary)
        sys.stdout.buffer.flush()
    else:
        save_model(model, output, summary=summary)


def _load_model(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any], dict[str, str]]:
    """The model, its summary, and the kinds of its columns by name."""
    from sorel import tables
    from sorel.saving import load_model, read_summary

    if arguments.model == tables.STANDARD:
        raise _Misuse("the model must be a file; only the table may come from standard input")
    summary = read_summary(arguments.model)
    # A model that was saved from Python has names at most, and no types.
    columns = summary.get("columns")
    return load_model(arguments.model), summary, columns if isinstance(columns, dict) else {}


def _load(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any], pd.DataFrame, Any]:
    """The model, its summary, the table, and the part of the table that the model takes."""
    from sorel import tables

    model, summary, kinds = _load_model(arguments)
    frame = tables.read_table(
        arguments.data,
        format=arguments.format,
        sep=arguments.sep,
        text_columns={column for column, kind in kinds.items() if kind == "text"},
    )
    if not kinds:
        return model, summary, frame, _foreign_columns(model, frame)
    X = tables.select_columns(
        frame,
        kinds,
        allow_missing=summary.get("imputed", False),
        hint="remove such rows, or fit the model with --impute",
    )
    if arguments.unknown == "ignore":
        for step in _encoders(model):
            step.set_params(handle_unknown="ignore")
    else:
        _refuse_unknown(model, X)
    return model, summary, frame, X


class _Batches:
    """A model, and a folder's rows for it: tables of some rows at a time."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from sorel import tables
        from sorel.rows import open_rows

        self.model, self.summary, kinds = _load_model(arguments)
        texts = [name for name, kind in kinds.items() if kind != "numeric"]
        if texts or not kinds:
            what = f"column {texts[0]!r} is no number" if texts else "it has no list of columns"
            raise tables.TableError(
                f"a folder of rows is for models of numbers that `sorel fit` saved, and {what} in "
                f"{arguments.model}; give it a table"
            )
        self.names = list(kinds)
        rows = open_rows(arguments.data, self.names)
        assert rows is not None
        self.rows = rows
        if rows.columns is not None and rows.columns != self.names:
            raise tables.TableError(
                f"the columns of {arguments.data} are {rows.columns}, and the model was fitted to "
                f"{self.names}"
            )
        if rows.n_features != len(self.names):
            raise tables.TableError(
                f"the model was fitted to {len(self.names)} columns, and {arguments.data} has "
                f"{rows.n_features}"
            )

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Columns beside the model's: of Parquet by name, else .npy files."""
        import pandas as pd

        from sorel.rows import open_data
        from sorel.tables import TableError

        found = {name: open_data(self.rows, name)[1] for name in names}
        for name, values in found.items():
            if len(values) != self.rows.n_samples:
                raise TableError(
                    f"there are {self.rows.n_samples} rows, but {name} has {len(values)} values"
                )
        return pd.DataFrame(found)

    def map(self, function: Any) -> Any:
        """The results of ``function(table, start, stop)`` for all rows, put together."""
        import numpy as np
        import pandas as pd

        return np.concatenate(
            [
                function(pd.DataFrame(part, columns=self.names), start, stop)
                for start, stop, part in self.rows.finite_spans()
            ]
        )


def _is_folder(arguments: argparse.Namespace) -> bool:
    path = Path(arguments.data)
    return path.is_dir() or path.suffix.lower() == ".npy"


def _foreign_columns(model: Any, frame: pd.DataFrame) -> Any:
    """The columns for a model that was saved from Python, without a list of their types."""
    from sorel import tables

    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        absent = [str(name) for name in names if name not in frame.columns]
        if absent:
            raise tables.TableError(tables.missing_columns(absent, frame.columns))
        return frame[list(names)]
    count = getattr(model, "n_features_in_", None)
    if count is not None and count != len(frame.columns):
        raise tables.TableError(
            f"the model was fitted to {count} columns without names, and the table has "
            f"{len(frame.columns)}"
        )
    return frame.to_numpy()


def _encoders(model: Any) -> Iterator[Any]:
    """The one-hot encoder of a pipeline that `sorel fit` made."""
    parts = model["columns"].named_transformers_
    if "categorical" in parts:
        part = parts["categorical"]
        yield part[-1] if hasattr(part, "steps") else part


def _refuse_unknown(model: Any, X: pd.DataFrame) -> None:
    from sorel import tables

    for encoder in _encoders(model):
        names = {part[0]: part[2] for part in model["columns"].transformers_}["categorical"]
        known = dict(zip(names, encoder.categories_, strict=True))
        found = tables.unknown_categories(X, known)
        if found:
            column, value, row = found[0]
            more = f" (and {len(found) - 1} more such values)" if len(found) > 1 else ""
            raise tables.TableError(
                f"column {column!r} holds {value!r} in row {row}, which was not seen in "
                f"training{more}; correct it, or use --unknown ignore"
            )


def _predict(arguments: argparse.Namespace) -> int:
    import pandas as pd

    from sorel import tables
    from sorel._files import check_writable

    if arguments.output != tables.STANDARD:
        check_writable(arguments.output)
    columns: dict[str, Any] = {}
    if _is_folder(arguments):
        if arguments.keep:
            raise _Misuse("--keep copies columns of a table, not of a folder of rows")
        batches = _Batches(arguments)
        model = batches.model

        def computing(method: str) -> Any:
            return batches.map(lambda table, start, stop: getattr(model, method)(table))

    else:
        model, _, frame, X = _load(arguments)
        absent = [column for column in arguments.keep if column not in frame.columns]
        if absent:
            raise tables.TableError(tables.missing_columns(absent, frame.columns))
        columns = {column: frame[column] for column in arguments.keep}

        def computing(method: str) -> Any:
            return getattr(model, method)(X)

    computed = {"prediction": computing("predict")}
    if arguments.proba:
        if not hasattr(model, "predict_proba"):
            raise _Misuse(
                "--proba needs probabilities, and this model gives none: it is a regression, or "
                "was fitted with --loss squared_hinge"
            )
        for label, shares in zip(model.classes_, computing("predict_proba").T, strict=True):
            computed[f"probability_{label}"] = shares
    taken = sorted(set(columns).intersection(computed))
    if taken:
        raise tables.TableError(f"the column {taken[0]!r} to keep has the name of a prediction")
    tables.write_table(pd.DataFrame({**columns, **computed}), arguments.output)
    return DONE


def _evaluate(arguments: argparse.Namespace) -> int:
    from sorel import tables
    from sorel._files import check_writable
    from sorel.metrics import TailScorer, tail_report

    if arguments.output not in (None, tables.STANDARD):
        check_writable(arguments.output)
    batches = _Batches(arguments) if _is_folder(arguments) else None
    if batches is None:
        model, summary, frame, X = _load(arguments)
    else:
        model, summary = batches.model, batches.summary
    target = arguments.target or summary.get("target")
    if target is None:
        raise _Misuse("this model does not know its target's name; give it with --target")
    if batches is not None:
        frame = batches.columns([name for name in (target, arguments.groups) if name])
    absent = [name for name in (target, arguments.groups) if name and name not in frame.columns]
    if absent:
        raise tables.TableError(tables.missing_columns(absent, frame.columns))
    y = _truth(model, frame, target)
    groups = None
    if arguments.groups:
        column = frame[arguments.groups].astype(object)
        groups = column.where(column.notna(), "(missing)").to_numpy()
    last = model[-1] if hasattr(model, "steps") else model
    loss = getattr(last, "loss", None)
    scorer = TailScorer("mean", loss)
    if batches is None:
        losses = scorer.losses(model, X, y)
    else:
        losses = batches.map(lambda table, a, b: scorer.losses(model, table, y[a:b]))
    report = tail_report(y, losses, groups=groups, loss=lambda truth, given: given)
    if arguments.output is None:
        print(_LOSS_WORDS.get(str(loss), "losses"))
        print(report.to_string(float_format=lambda value: f"{value:.6g}"))
    else:
        tables.write_table(report.reset_index(), arguments.output)
    return DONE


def _truth(model: Any, frame: pd.DataFrame, target: str) -> Any:
    """The targets of a table, of the type that the model was fitted to."""
    from sorel import tables

    classes = getattr(model, "classes_", None)
    if classes is None:
        return tables.select_columns(frame, {target: "numeric"})[target].to_numpy()
    known = classes.tolist()
    kind = {str: "text", bool: "boolean"}.get(type(known[0]), "numeric")
    labels = tables.select_columns(frame, {target: kind})[target]
    strange = tables.unknown_categories(labels.to_frame(), {target: known})
    if strange:
        _, value, row = strange[0]
        raise tables.TableError(
            f"target {target!r} is {value!r} in row {row}, which the model does not know; it knows "
            + ", ".join(repr(label) for label in known)
        )
    return labels.to_numpy(dtype=classes.dtype)


def _info(arguments: argparse.Namespace) -> int:
    from sorel.saving import read_summary

    facts = read_summary(arguments.model)
    width = max(map(len, facts))
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} ({kind})" for name, kind in value.items())
        elif isinstance(value, list):
            value = ", ".join(str(item) for item in value)
        print(f"{key:{width}}  {value}")
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    from sorel import demo

    return demo.run(arguments.out, splits=arguments.splits)


def _reproduce(arguments: argparse.Namespace) -> int:
    from sorel import reproduce

    return reproduce.run(
        arguments.out,
        figure=arguments.figure,
        datasets=arguments.datasets,
        risks=arguments.risks,
        quick=arguments.quick,
        jobs=arguments.jobs,
        data=arguments.data,
    )


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings that concern the user as one line, and no others."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
            _say(f"warning: {_one_line(message)}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


# What argparse calls to read a value.


def _risk(text: str) -> str:
    from sorel.risks import parse_risk

    try:
        return parse_risk(text).spec or text
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _l2(text: str) -> float | str:
    return text if text == "auto" else _above_zero(text)


def _above_zero(text: str) -> float:
    value = _number(text)
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def _nonnegative(text: str) -> float:
    value = _number(text)
    if not value >= 0.0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value


def _separator(text: str) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(text, text)
    if len(text) != 1 or text in '\r\n"':
        raise argparse.ArgumentTypeError(f"expected one character, got {text!r}")
    return text


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return value


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value
