"""``sorel fit``: a table or rows on disk in, a saved model out."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sorel._defaults import MODEL_TOL, RISK
from sorel.cli.arguments import (
    OR_FOLDER,
    SKIP_MISSING,
    add_command,
    add_drop,
    add_effort,
    add_quiet,
    add_table,
    l2_or_auto,
    nonnegative,
    positive,
    risk_spec,
    seed_number,
    separator,
)
from sorel.cli.merging import Repeats, find_repeats
from sorel.cli.models import read_weight
from sorel.cli.shared import DONE, NOT_CONVERGED, Misuse, say

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """\
Fit a linear model that minimises a tail risk, and save it with the preparation of its columns.
Numbers are standardised; texts and truth values become indicator columns, one for each value. The
target is left in its own units. A text target, or one with two values, makes it classification.
"""

_EXAMPLES = """\
examples:
  sorel fit train.csv --target price --risk cvar:0.1 -o model.skops
      the mean of the worst tenth of the losses, instead of the mean of all
  sorel fit people.parquet --target churned --risk esrm:2 --impute -o churn.skops
      classification; missing values become the median or the most frequent value
  sorel fit train.csv --target y --drop id --categorical zip --l2 0.01 -o model.skops
      leave out a column, and take the numbers of another as names
  sorel fit flights.csv --target arr_delay --dates day --skip-missing-target --cv -o model.skops
      dates as numbers of days, rows without a target left out, risk and l2 by cross-validation
  sorel fit large.parquet --target y --checkpoint fit.ckpt -o model.skops
      a long fit: after Ctrl-C or a crash, the same command goes on from fit.ckpt
  cat train.csv | sorel fit - --target y -o - > model.skops
  sorel fit huge.parquet --target y --out-of-core --scratch /data/tmp -o model.skops
      more rows than fit into memory; all columns must be numbers
  sorel fit data/*.parquet --target y --scheduler tcp://host:8786 -o model.skops
      on a Dask cluster, whose workers read the files; --local-cluster 2 starts one here
  sorel fit blocks/ --target y.npy -o model.skops
      a folder of .npy files with rows, called x0, x1 ... unless blocks/columns.json names them

risks:
  mean, max, cvar:ALPHA (the worst share ALPHA), esrm:RHO, extremile:R
"""

# From this share of different values on, a text column is more likely a name than a category.
_MANY_CATEGORIES = 0.5
_FEW_ROWS = 20
# So many different values are worth a word however many rows there are.
_TOO_MANY_CATEGORIES = 1000
# And so many, or so many labels, make a model that nobody wants to load.
_MOST_CATEGORIES, _MOST_LABELS = 1 << 16, 10_000
_DEFAULT_RISK = RISK.spec
# A Parquet file of numbers that would take more of the memory than this stays on disk.
_SHARE_OF_MEMORY = 0.25
_FEW_LABELS = 10
_FIRST_ROWS = 100_000
# Letters of a cell that a message shows.
_SHOWN = 60

_REGRESSION_LOSSES = ("squared", "huber", "poisson", "gamma", "linear")
_CLASSIFICATION_LOSSES = ("logistic", "squared_hinge")


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = add_command(
        commands,
        "fit",
        run,
        help="fit a model to a table and save it",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_table(parser, "data", "the table to learn from", more=OR_FOLDER, several=True)
    parser.add_argument(
        "--target", required=True, metavar="COLUMN",
        help="column to predict; beside .npy files, a .npy file or a folder of them",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", required=True, metavar="MODEL",
        help="file for the model, such as model.skops, or - for standard output",
    )  # fmt: skip
    parser.add_argument(
        "--risk", type=risk_spec, help="what to minimise (default: cvar:0.5, or what --cv chooses)"
    )
    parser.add_argument(
        "--task", choices=("auto", "regression", "classification"), default="auto",
        help="what kind of target it is (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--loss", choices=(*_REGRESSION_LOSSES, *_CLASSIFICATION_LOSSES),
        help="loss of one row (default: squared for regression, logistic for classification)",
    )  # fmt: skip
    parser.add_argument(
        "--l2", type=l2_or_auto, metavar="NUMBER",
        help="strength of the ridge penalty; auto, the default without --cv, is 1 / rows",
    )  # fmt: skip
    parser.add_argument(
        "--cv", type=_folds, nargs="?", const=5, metavar="FOLDS",
        help="choose risk and l2, or the one that is not given, by cross-validation: the best tail "
        "among the models whose mean loss is near the best (default: 5 folds)",
    )  # fmt: skip
    parser.add_argument(
        "--intercept", choices=("free", "mean", "none"),
        help="an intercept of its own, one that keeps the mean of the target over all rows, or "
        "none (default: free; none for --loss linear)",
    )  # fmt: skip
    parser.add_argument(
        "--l1", type=nonnegative, default=0.0, metavar="NUMBER",
        help="strength of the lasso penalty (default: 0)",
    )  # fmt: skip
    parser.add_argument("--positive", action="store_true", help="allow no coefficient below 0")
    add_effort(parser, MODEL_TOL)
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="N",
        help="seed of the random choices, where a solver makes any (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--impute", action="store_true",
        help="fill in missing values: the median of numbers, the most frequent text",
    )  # fmt: skip
    add_drop(parser)
    parser.add_argument(
        "--categorical", action="append", default=[], metavar="COLUMN",
        help="take the values of this column as names, even if they are numbers; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--class-weight", choices=("balanced",), help="give all classes the same total weight"
    )
    parser.add_argument(
        "--dates", action="append", default=[], metavar="COLUMN",
        help="take this column of dates (2024-01-31, or with a time) as a number of days; may be "
        "repeated",
    )  # fmt: skip
    parser.add_argument(
        "--thousands", type=separator, metavar="CHARACTER",
        help="what separates thousands in the numbers of a CSV file, such as , in 1,234",
    )  # fmt: skip
    parser.add_argument(
        "--sample-weight", metavar="COLUMN",
        help="column with the weights of the rows, which is no feature; 2 counts a row twice; "
        "beside .npy files, a .npy file",
    )  # fmt: skip
    parser.add_argument(
        "--skip-missing-target", action="store_true",
        help="leave out the rows that have no target",
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
    parser.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="fit on the Dask cluster of this scheduler, such as tcp://host:8786; its workers read "
        "the Parquet files, which may be several, and hold numbers only",
    )  # fmt: skip
    parser.add_argument(
        "--local-cluster", type=positive, metavar="N",
        help="the same on a cluster of N processes on this machine, for the time of the fit",
    )  # fmt: skip
    parser.add_argument(
        "--no-baselines", dest="baselines", action="store_false",
        help="do not fit the plain model beside it, with which `sorel evaluate` compares",
    )  # fmt: skip
    parser.add_argument(
        "--times", action="store_true",
        help="keep in the model when it was made and how long it took; without, the same table and "
        "arguments make the same file",
    )  # fmt: skip
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel import ConvergenceWarning, tables
    from sorel._files import check_writable

    _check_files(arguments)
    output = arguments.output
    if output != tables.STANDARD:
        check_writable(output)
    elif sys.stdout.isatty():
        raise Misuse("a model is binary data, not for a terminal; give -o a file name")
    if arguments.checkpoint is not None:
        _check_checkpoint(arguments)
    _check_names(arguments)
    if arguments.cv is None:
        arguments.risk = arguments.risk or _DEFAULT_RISK
        arguments.l2 = "auto" if arguments.l2 is None else arguments.l2
    elif arguments.risk is not None and arguments.l2 is not None:
        raise Misuse("--cv has nothing to choose where both --risk and --l2 are given")
    with warnings.catch_warnings():
        # Said below, in the words of the command line.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if _on_cluster(arguments):
            from sorel.cli.cluster import fit_on_cluster

            task, kinds, count, pipeline = fit_on_cluster(arguments)
        elif _on_disk(arguments):
            task, kinds, count, pipeline = _fit_rows(arguments)
        else:
            task, kinds, count, pipeline = _fit_table(arguments)
    model = pipeline[-1].set_params(verbose=0, n_jobs=None, checkpoint=None)
    if model.status_.startswith("interrupted"):
        if arguments.checkpoint is not None and os.path.exists(arguments.checkpoint):
            say(
                f"the state of the fit is in {arguments.checkpoint}; the same command goes on from "
                "there"
            )
        raise KeyboardInterrupt
    _save(pipeline, arguments, _summary(task, arguments, kinds, count, model))
    if not arguments.quiet:
        place = "standard output" if output == tables.STANDARD else output
        say(
            f"{task} with {arguments.risk} on {count} rows, {len(kinds)} columns: certified "
            f"relative gap {model.relative_gap_:.2g} in {model.n_passes_:.4g} passes; "
            f"saved to {place}"
        )
    if not model.converged_:
        again = ""
        if arguments.checkpoint is not None:
            again = f"; with more passes the fit goes on from {arguments.checkpoint}"
        say(
            f"warning: the certified relative gap {model.relative_gap_:.2g} is above --tol "
            f"{arguments.tol:g}; raise --max-passes, --tol or --l2{again}"
        )
        return NOT_CONVERGED
    return DONE


def _on_cluster(arguments: argparse.Namespace) -> bool:
    return arguments.scheduler is not None or arguments.local_cluster is not None


def _check_files(arguments: argparse.Namespace) -> None:
    """Keep the list of files, and the first as the table, which is all of it without a cluster."""
    arguments.files, arguments.data = arguments.data, arguments.data[0]
    if arguments.scheduler is not None and arguments.local_cluster is not None:
        raise Misuse("--scheduler and --local-cluster name two clusters; give one of them")
    if len(arguments.files) > 1 and not _on_cluster(arguments):
        raise Misuse(
            f"{len(arguments.files)} files are for a cluster: add --local-cluster 2 or --scheduler "
            "ADDRESS, or give the folder that holds them"
        )


def _fit_table(arguments: argparse.Namespace) -> tuple[str, dict[str, str], int, Any]:
    """Task, kinds of columns, number of rows and fitted pipeline of a table in memory."""
    from scipy.sparse import issparse

    task, kinds, pipeline, rows, y, weight, repeats = _prepare_table(arguments)
    if arguments.intercept == "mean" and issparse(rows):
        raise Misuse(
            f"--intercept mean takes no sparse table, and the {rows.shape[1]} columns that the "
            "texts make are mostly 0; use --intercept free, or --drop texts with many values"
        )
    given = arguments.class_weight
    if repeats is not None and given is not None:
        # They are made of numbers of rows.
        arguments.class_weight = _class_weights(given, y)
    if arguments.cv is not None:
        _choose(task, arguments, rows, y, weight, repeats)
    count, own = len(y), weight
    if repeats is not None:
        rows, y, weight = rows[repeats.first], y[repeats.first], repeats.weights(own)
    model = _estimator(task, arguments).fit(rows, y, weight)
    pipeline.steps[-1] = ("model", model)
    if arguments.baselines:
        pipeline.baselines_ = _baselines(model, rows, y, weight)
    if repeats is not None:
        model.risk_weights_ = repeats.shared_out(model.risk_weights_, own)
        if given is not None:
            model.set_params(class_weight=given)
    return task, kinds, count, pipeline


def _class_weights(kind: str, y: Any) -> dict[Any, float]:
    import numpy as np
    from sklearn.utils.class_weight import compute_class_weight

    classes = np.unique(y)
    found = compute_class_weight(kind, classes=classes, y=y)
    return dict(zip(classes.tolist(), found.tolist(), strict=True))


def _prepare_table(
    arguments: argparse.Namespace,
) -> tuple[str, dict[str, str], Any, Any, Any, Any, Repeats | None]:
    """Task, kinds of columns, pipeline without a model, and rows, targets and weights for one.

    And which rows are equal, where that is worth knowing.

    A function of its own so that the table is dropped before the fit, which needs the memory.
    """
    from sorel import tables

    frame = tables.read_table(
        arguments.data,
        format=arguments.format,
        sep=arguments.sep,
        unpacked=arguments.unpacked,
        text_columns=set(arguments.categorical),
        thousands=arguments.thousands,
    )
    absent = [name for name in _named(arguments) if name not in frame.columns]
    if absent:
        raise tables.TableError(tables.missing_columns(absent, frame.columns))
    if arguments.skip_missing_target:
        frame = _with_target(frame, arguments)
    task, y = _target(frame[arguments.target], arguments)
    weight = None
    apart = [arguments.target, *arguments.drop]
    if arguments.sample_weight is not None:
        apart.append(arguments.sample_weight)
        weight = read_weight(frame[arguments.sample_weight], arguments.sample_weight)
    features = frame.drop(columns=apart)
    del frame
    if not len(features.columns):
        raise tables.TableError("the table has no columns to learn from besides the target")
    kinds = tables.column_kinds(features, arguments.dates)
    _refuse_misread(features, kinds, arguments)
    _note_names(features, kinds)
    X = tables.select_columns(
        features,
        kinds,
        allow_missing=arguments.impute,
        hint="remove such rows, or have the values filled in with --impute",
    )
    del features
    pipeline = tables.make_pipeline(kinds, None, impute=arguments.impute)
    repeats = find_repeats(X, y)
    return task, kinds, pipeline, pipeline[:-1].fit_transform(X), y, weight, repeats


def _on_disk(arguments: argparse.Namespace) -> bool:
    """Whether the rows are to stay on disk: told so, no single table, or too much for memory."""
    from sorel.tables import STANDARD

    if arguments.data == STANDARD:
        if arguments.out_of_core:
            raise Misuse("--out-of-core needs a file or a folder, not standard input")
        return False
    path = Path(arguments.data)
    if arguments.out_of_core or path.is_dir() or path.suffix.lower() == ".npy":
        return True
    if _needs_table(arguments) or not _fills_memory(arguments):
        return False
    say(
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
        apart = [arguments.target, *arguments.drop]
        if arguments.sample_weight is not None:
            apart.append(arguments.sample_weight)
        rows = ParquetRows(arguments.data, exclude=apart)
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

    import pandas as pd

    from sorel import tables
    from sorel._files import scratch_folder
    from sorel.rows import ScaledRows, is_parquet, open_data, write_blocks

    path = Path(arguments.data)
    needs = _needs_table(arguments)
    if needs:
        raise Misuse(f"{' and '.join(needs)} need a table in memory, not rows on disk")
    weight = None
    if is_parquet(path) or arguments.format == "parquet":
        rows = _parquet_rows(arguments)
        y = rows.column(arguments.target)
        if arguments.sample_weight is not None:
            weight = rows.column(arguments.sample_weight)
    elif path.is_file() and path.suffix.lower() != ".npy":
        raise Misuse(
            f"{arguments.data} cannot stay on disk: --out-of-core reads Parquet and .npy files; "
            "convert it to Parquet first"
        )
    elif arguments.drop:
        raise Misuse("--drop leaves out columns of tables and of Parquet files, not of .npy files")
    else:
        rows, y = open_data(path, Path(arguments.target))
        if arguments.sample_weight is not None:
            weight = open_data(rows, Path(arguments.sample_weight))[1]
    for name, values in ((arguments.target, y), (arguments.sample_weight, weight)):
        if values is not None and len(values) != rows.n_samples:
            raise tables.TableError(
                f"{arguments.data} has {rows.n_samples} rows, but {name} has {len(values)} values"
            )
    if weight is not None:
        weight = read_weight(pd.Series(weight), arguments.sample_weight)
    task, y = _target(pd.Series(y, name=arguments.target), arguments)
    pipeline = tables.standardise_rows(rows, _estimator(task, arguments))
    scaler = pipeline["columns"].named_transformers_["numeric"]
    with scratch_folder(arguments.scratch) as place:
        free = shutil.disk_usage(place).free
        if free < 1.01 * rows.nbytes:
            raise tables.TableError(
                f"the standardised rows take {rows.nbytes / 2**30:.2g} GB, and {place} has "
                f"{free / 2**30:.2g} GB left; name a folder with more room with --scratch"
            )
        scaled = ScaledRows(rows, scaler.mean_, scaler.scale_)
        # In the pipeline, too, the model gets numbers without names.
        scaled.columns = None
        blocks = write_blocks(place / "rows", scaled)
        rows.close()
        try:
            pipeline[-1].fit(blocks, y, weight)
            if arguments.baselines:
                pipeline.baselines_ = _baselines(pipeline[-1], blocks, y, weight)
        finally:
            blocks.close()
    names = scaler.feature_names_in_.tolist()
    return task, dict.fromkeys(names, "numeric"), rows.n_samples, pipeline


def _check_names(arguments: argparse.Namespace) -> None:
    """Refuse columns that are named for two purposes."""
    purposes = {
        "the target": [arguments.target],
        "the weight of the rows": [arguments.sample_weight] if arguments.sample_weight else [],
        "to be left out": arguments.drop,
        "a name": arguments.categorical,
        "a date": arguments.dates,
    }
    seen: dict[str, str] = {}
    for purpose, names in purposes.items():
        for name in names:
            if seen.setdefault(name, purpose) != purpose:
                raise Misuse(f"column {name!r} is {seen[name]}; do not name it elsewhere too")


def _named(arguments: argparse.Namespace) -> list[str]:
    """All columns that the arguments name."""
    names = [arguments.target, *arguments.drop, *arguments.categorical, *arguments.dates]
    return names if arguments.sample_weight is None else [*names, arguments.sample_weight]


def _needs_table(arguments: argparse.Namespace) -> list[str]:
    """The options in use that only a table in memory can serve."""
    options = {
        "--impute": arguments.impute,
        "--categorical": arguments.categorical,
        "--dates": arguments.dates,
        "--skip-missing-target": arguments.skip_missing_target,
        "--cv": arguments.cv,
        "--intercept mean": arguments.intercept == "mean",
    }
    return [name for name, used in options.items() if used]


def _with_target(frame: pd.DataFrame, arguments: argparse.Namespace) -> pd.DataFrame:
    from sorel.tables import TableError

    known = frame[arguments.target].notna()
    if not known.any():
        raise TableError(f"target {arguments.target!r} has no values at all")
    if not known.all() and not arguments.quiet:
        say(f"note: {(~known).sum()} of {len(frame)} rows have no target and are left out")
    # Rows are counted as in the file, in messages too.
    return frame[known]


def _refuse_misread(
    features: pd.DataFrame, kinds: dict[str, str], arguments: argparse.Namespace
) -> None:
    """Refuse texts that are dates or numbers: each value would become a column of its own."""
    from sorel.tables import TableError, misread_columns

    for column, what, example, count in misread_columns(features, kinds):
        if column in arguments.categorical:
            continue
        if what == "dates":
            remedy = f"turn it into a number of days with --dates {column!r}"
        elif "thousands" in what and "," in example:
            remedy = "have them read with --thousands ,"
        else:
            remedy = "write plain numbers such as 1234.5"
        raise TableError(
            f"column {column!r} holds {what}, such as {example!r}, which would become {count} "
            f"indicator columns; {remedy}, leave it out with --drop {column!r}, or take the values "
            f"as names with --categorical {column!r}"
        )


def _choose(
    task: str,
    arguments: argparse.Namespace,
    rows: Any,
    y: Any,
    weight: Any,
    repeats: Repeats | None,
) -> None:
    """Set risk and l2, or the one that was not given, to what cross-validation prefers."""
    import numpy as np
    from sklearn.model_selection import PredefinedSplit, check_cv

    from sorel.model_selection import SpectralRiskClassifierCV, SpectralRiskRegressorCV

    kind = SpectralRiskRegressorCV if task == "regression" else SpectralRiskClassifierCV
    settings = _estimator_settings(task, arguments)
    for name in ("risk", "l2", "verbose", "checkpoint", "n_jobs"):
        del settings[name]
    if arguments.risk is not None:
        settings["risks"] = [arguments.risk]
    if arguments.l2 is not None:
        settings["l2s"] = [arguments.l2]
    folds = arguments.cv
    if repeats is not None:
        # Equal rows of a fold are one, and the folds are those of all rows.
        fold = np.empty(len(y), np.int32)
        splitter = check_cv(folds, y, classifier=task == "classification")
        for number, (_, test) in enumerate(splitter.split(rows, y)):
            fold[test] = number
        repeats = repeats.within(fold)
        first = repeats.first
        rows, y, weight = rows[first], y[first], repeats.weights(weight)
        folds = PredefinedSplit(fold[first])
    search = kind(**settings, cv=folds, refit=False).fit(rows, y, weight)
    arguments.risk, arguments.l2 = search.best_risk_.spec, search.best_l2_
    if not arguments.quiet:
        best = search.cv_results_["mean_test_mean_loss"][search.best_index_]
        say(
            f"cross-validation chose {arguments.risk} and l2 {arguments.l2}: held-out losses of "
            f"{best:.4g} on average, {-search.best_score_:.4g} in the worst tenth"
        )


def _folds(text: str) -> int:
    value = positive(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"expected at least 2 folds, got {text!r}")
    return value


def _baselines(model: Any, X: Any, y: Any, weight: Any) -> dict[str, Any]:
    """What `sorel evaluate` compares with: the best constant model, and the fit to the mean."""
    import numpy as np
    from sklearn.base import clone

    from sorel import Mean, parse_risk

    fits = {"constant model": (model.risk, np.zeros((len(y), 1)))}
    if not isinstance(parse_risk(model.risk), Mean):
        fits["plain fit"] = ("mean", X)
    if model.status_.startswith("interrupted"):
        return {}
    found = {}
    for name, (risk, rows) in fits.items():
        other = clone(model).set_params(risk=risk, verbose=0, checkpoint=None)
        other._speaks_of_constant = False
        other.fit(rows, y, weight)
        # Of the length of the table, and of no use to anybody who only predicts.
        del other.risk_weights_
        found[name] = other.set_params(n_jobs=None)
    return found


def _check_checkpoint(arguments: argparse.Namespace) -> None:
    """Refuse a checkpoint that cannot serve before the table is read; say where the fit goes on."""
    from sorel._files import check_writable
    from sorel.checkpoints import read_passes

    path = arguments.checkpoint
    others = {"the table": arguments.data, "the model": arguments.output}
    for name, other in others.items():
        if os.path.realpath(path) == os.path.realpath(other):
            raise Misuse(f"--checkpoint {path} is {name}; give it a file of its own")
    check_writable(path)
    passes = read_passes(path)
    if passes is not None and not arguments.quiet:
        say(f"resuming from {path} at pass {passes:.4g}")


def _estimator(task: str, arguments: argparse.Namespace) -> Any:
    from sorel.estimators import SpectralRiskClassifier, SpectralRiskRegressor

    kind = SpectralRiskRegressor if task == "regression" else SpectralRiskClassifier
    return kind(**_estimator_settings(task, arguments))


def _estimator_settings(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from sorel.losses import LOSSES

    losses = {
        "regression": _REGRESSION_LOSSES,
        "classification": _CLASSIFICATION_LOSSES,
    }[task]
    loss = arguments.loss or losses[0]
    if loss not in losses:
        raise Misuse(
            f"--loss {loss} does not suit {task}; it takes {' or '.join(losses)} "
            "(--task says what the target is)"
        )
    intercepts: dict[str, bool | str] = {"free": True, "mean": "mean", "none": False}
    intercept = arguments.intercept or ("none" if loss == "linear" else "free")
    if loss == "linear" and intercept != "none":
        raise Misuse(
            f"--loss linear has no best intercept, so --intercept {intercept} is of no use; leave "
            "it out, or give --intercept none"
        )
    if arguments.intercept == "mean" and task == "classification":
        raise Misuse("--intercept mean is for targets that are numbers, not for labels")
    if arguments.intercept == "mean" and LOSSES[loss].link != "identity":
        raise Misuse(
            f"--intercept mean is for losses of a residual, and --loss {loss} predicts by an "
            "exponential; use --intercept free"
        )
    extra = {}
    if arguments.class_weight is not None:
        if task == "regression":
            raise Misuse("--class-weight is for labels, and the target holds numbers")
        extra = {"class_weight": arguments.class_weight}
    return {
        **extra,
        "risk": arguments.risk,
        "loss": loss,
        "l2": arguments.l2,
        "l1": arguments.l1,
        "positive": arguments.positive,
        "fit_intercept": intercepts[intercept],
        "tol": arguments.tol,
        "max_passes": arguments.max_passes,
        "random_state": arguments.seed,
        "verbose": int(sys.stderr.isatty() and not arguments.quiet),
        "n_jobs": arguments.jobs,
        "checkpoint": arguments.checkpoint,
    }


def _target(values: pd.Series, arguments: argparse.Namespace) -> tuple[str, Any]:
    """The task that a target calls for, and its values as the estimator wants them."""
    from sorel import tables

    name = arguments.target
    frame = values.to_frame()
    kind = tables.column_kinds(frame)[name]
    if kind == "text" and arguments.task == "auto":
        _refuse_stray(values, name)
    if arguments.task == "regression":
        # Whatever is no number is named.
        kind = "numeric"
    targets = tables.select_columns(frame, {name: kind}, hint=SKIP_MISSING)[name]
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
    if task != "regression" and kind != "numeric" and count > _MOST_LABELS:
        raise tables.TableError(
            f"target {name!r} has {count} different labels, more than {_MOST_LABELS}; is it a name?"
        )
    if task == "auto":
        task = "regression" if kind == "numeric" and count > 2 else "classification"
        if not arguments.quiet and count <= _FEW_LABELS:
            _note_task(name, kind, task, targets)
    if task == "regression":
        return task, targets.to_numpy()
    if kind == "numeric":
        # Labels stay whole numbers where the file has whole numbers.
        return task, values.to_numpy()
    return task, targets.to_numpy(dtype=bool if kind == "boolean" else object)


def _refuse_stray(values: pd.Series, name: str) -> None:
    """Refuse numbers with a few texts among them: labels would be fitted, one for each number."""
    from sorel.tables import TableError, stray_texts

    stray = stray_texts(values)
    if stray is not None:
        row, text, count = stray
        more = f" (and {count - 1} more such cells)" if count > 1 else ""
        raise TableError(
            f"target {name!r} is mostly numbers, but row {row} (the header not counted) holds "
            f"{str(text)[:_SHOWN]!r}{more}; correct it, or say --task classification if all of "
            "them are labels"
        )


def _note_task(name: str, kind: str, task: str, targets: pd.Series) -> None:
    if kind != "numeric":
        return
    labels = sorted(targets.unique().tolist())
    if task == "classification":
        first, second = labels
        say(
            f"note: target {name!r} has the two values {first:g} and {second:g}, taken as labels; "
            "use --task regression if they are numbers"
        )
    elif all(label.is_integer() for label in labels):
        say(
            f"note: target {name!r} has {len(labels)} different whole numbers, taken as numbers; "
            "use --task classification if they are labels"
        )


def _note_names(features: pd.DataFrame, kinds: dict[str, str]) -> None:
    from sorel.tables import TableError

    total = 0
    for column, kind in kinds.items():
        if kind != "text":
            continue
        # A part of a long column decides, where it can: different texts take memory.
        count = features[column].head(2 * _MOST_CATEGORIES).nunique()
        if count <= _MOST_CATEGORIES < len(features):
            count = features[column].nunique()
        if count > _MOST_CATEGORIES:
            raise TableError(
                f"column {column!r} has more than {_MOST_CATEGORIES} different texts, each of "
                f"which would become an indicator column; leave it out with --drop {column!r}"
            )
        total += count
        if total > _MOST_CATEGORIES:
            raise TableError(
                f"the columns up to {column!r} have more than {_MOST_CATEGORIES} different texts "
                "together, each of which would become an indicator column; leave some out with "
                "--drop"
            )
        many = len(features) >= _FEW_ROWS and count > _MANY_CATEGORIES * len(features)
        if many or count > _TOO_MANY_CATEGORIES:
            say(
                f"warning: column {column!r} has {count} different texts in {len(features)} rows, "
                "each of which becomes an indicator column; if it holds names or identifiers, "
                f"leave it out with --drop {column!r}"
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
        "positive": arguments.positive,
        "tol": arguments.tol,
        "imputed": arguments.impute,
        "thousands": arguments.thousands,
        "sample_weight": arguments.sample_weight,
        "constant": bool(model.constant_),
        "columns": kinds,
    }


def _save(model: Any, arguments: argparse.Namespace, summary: dict[str, Any]) -> None:
    from sorel.saving import save_model
    from sorel.tables import STANDARD

    if arguments.output == STANDARD:
        save_model(model, sys.stdout.buffer, summary=summary, times=arguments.times)
        sys.stdout.buffer.flush()
    else:
        save_model(model, arguments.output, summary=summary, times=arguments.times)
