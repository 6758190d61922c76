"""``sorel fit``: fit a model to a table and save it.

Fit a linear model that minimises a tail risk, and save it with the preparation of its columns.
Numbers are standardised; texts and truth values become indicator columns, one for each value. The
target is left in its own units. A text target, or one with two values, makes it classification.

examples:
  sorel fit train.csv --target price --risk cvar:0.1 -o model.skops
      the mean of the worst tenth of the losses, instead of the mean of all
  sorel fit people.parquet --target churned --risk esrm:2 --impute -o churn.skops
      classification; missing values become the median or the most frequent value
  sorel fit train.csv --target y --drop id --categorical zip --l2 0.01 -o model.skops
      leave out a column, and take the numbers of another as names
  sorel fit flights.csv --target arr_delay --dates day --skip-missing-target --cv -o model.skops
      dates as numbers of days, rows without a target left out, risk and l2 by cross-validation
  sorel fit train.csv --target y --cv --tail cvar:0.05 --mean-slack 3% -o model.skops
      the worst 5% of the losses smaller, for a mean loss that is at most 3% larger
  sorel fit train.csv --target y --risk cvar:0.1 --plot losses.png -o model.skops
      and a picture of the held-out losses, beside those of the plain fit
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
  mean, max, cvar:ALPHA (the worst share ALPHA), esrm:RHO, extremile:R, and mixtures of them:
  mix:mean=0.7,cvar:0.05=0.3
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sorel._lib.defaults import MODEL_TOL, STANDARD
from sorel.cli.arguments import (
    OR_FOLDER,
    SKIP_MISSING,
    Options,
    folds,
    l2_or_auto,
    nonnegative,
    positive,
    risk_spec,
    seed_number,
    separator,
    share,
)
from sorel.cli.pictures import check_picture, draw_losses, held_out_losses
from sorel.cli.shared import DONE, NOT_CONVERGED, Misuse, check_outputs, note, read_frame, say

if TYPE_CHECKING:
    import pandas as pd

# Different numbers that may be labels, and texts that need no warning.
_FEW_VALUES = 10
# Different texts that are worth a warning; so are those of half of the rows.
_MANY_TEXTS = 1000
# Indicator columns that a model may have.
_MAX_INDICATORS = 1 << 16
# Classes that a model may have.
_MAX_CLASSES = 10_000
# Parts of the table that --cv and --plot hold out in turn.
_FOLDS = 5
# A Parquet file of numbers that would take more than this share of the memory stays on disk.
_SHARE_OF_MEMORY = 0.25


class Fitted(NamedTuple):
    """What a fit gives, wherever the rows are: the kinds are those of the columns by name.

    Held-out losses by model are there for --plot alone.
    """

    task: str
    kinds: dict[str, str]
    rows: int
    pipeline: Any
    held_out: Any = None


def add(options: Options) -> None:
    """Declare the arguments."""
    options.table("the table to learn from", OR_FOLDER, several=True)
    words = "column to predict; beside .npy files, a .npy file or a folder of them"
    options.column("--target", words, required=True)
    words = "file for the model, such as model.skops, or - for standard output"
    options.add("-o", "--output", required=True, metavar="MODEL", help=words)
    words = "what to minimise (default: what --cv chooses; else cvar:0.5, and esrm:1 for labels)"
    options.add("--risk", type=risk_spec, help=words)
    words = "what kind of target it is (default: %(default)s)"
    options.choice("--task", ("auto", "regression", "classification"), words, "auto")
    words = "loss of one row (default: squared for regression, logistic for classification)"
    options.choice("--loss", _losses("regression") + _losses("classification"), words)
    words = "strength of the ridge penalty; auto, the default without --cv, is 1 / rows"
    options.number("--l2", l2_or_auto, words)
    words = (
        "choose risk and l2, or the one that is not given, by cross-validation: the best tail "
        "among the models whose mean loss is near that of the plain fit (default: 5 folds)"
    )
    options.add("--cv", type=folds, nargs="?", const=_FOLDS, metavar="FOLDS", help=words)
    words = "with --cv, the risk of held-out losses that is to be small (default: cvar:0.1)"
    options.add("--tail", type=risk_spec, metavar="RISK", help=words)
    words = (
        "with --cv, by what share the mean held-out loss may exceed that of the plain fit, such "
        "as 3%% or 0.03 (default: 25%%)"
    )
    options.number("--mean-slack", share, words, name="SHARE")
    words = (
        "mean keeps the mean of the target over all rows (default: free; none for --loss linear)"
    )
    options.choice("--intercept", ("free", "mean", "none"), words)
    options.number("--l1", nonnegative, "strength of the lasso penalty (default: 0)", 0.0)
    options.switch("--positive", "allow no coefficient below 0")
    options.effort(MODEL_TOL)
    words = "seed of the random choices, where a solver makes any (default: %(default)s)"
    options.number("--seed", seed_number, words, 0, name="N")
    words = "fill in missing values: the median of numbers, the most frequent text"
    options.switch("--impute", words)
    options.drop()
    words = "take the values of this column as names, even if they are numbers"
    options.columns("--categorical", words)
    options.choice("--class-weight", ("balanced",), "give all classes the same total weight")
    words = "take this column of dates (2024-01-31, or with a time) as a number of days"
    options.columns("--dates", words)
    words = "what separates thousands in the numbers of a CSV file, such as , in 1,234"
    options.number("--thousands", separator, words, name="CHARACTER")
    words = (
        "column with the weights of the rows: 2 counts a row twice; beside .npy files, such a file"
    )
    options.column("--sample-weight", words)
    options.skip_missing_target()
    words = "keep the state of the fit in this file, and go on from it if it exists"
    options.file("--checkpoint", words)
    words = "leave rows of numbers on disk, as those of a folder or of a file that fills the memory"
    options.switch("--out-of-core", words)
    words = (
        "folder for a copy of rows on disk during the fit (default: the system's for such files)"
    )
    options.add("--scratch", type=Path, metavar="DIR", help=words)
    words = "fit on the Dask cluster of this scheduler, whose workers read Parquet files of numbers"
    options.add("--scheduler", metavar="ADDRESS", help=words)
    words = "the same on a cluster of N processes on this machine, for the time of the fit"
    options.number("--local-cluster", positive, words, name="N")
    words = "do not fit the plain models beside it, with which `sorel evaluate` compares"
    options.add("--no-baselines", dest="baselines", action="store_false", help=words)
    words = (
        "draw the losses of the model and of the plain fit on held-out rows, e.g. to losses.png; "
        "both are fitted once more for each of 5 folds, or of those of --cv"
    )
    options.file("--plot", words)
    words = (
        "keep in the model when it was made and how long that took; its bytes then differ each time"
    )
    options.switch("--times", words)
    options.quiet()


def _losses(task: str) -> tuple[str, ...]:
    """The losses of a task; those without words of their own are chosen by other means."""
    from sorel.problem.losses import LOSSES, Loss

    return tuple(
        name
        for name, loss in LOSSES.items()
        if loss.is_classifier == (task == "classification") and loss.words != Loss.words
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    from sorel.files.saving import save_model

    _check_arguments(arguments)
    on_cluster = arguments.scheduler is not None or arguments.local_cluster is not None
    if len(arguments.files) > 1 and not on_cluster:
        raise Misuse(
            f"{len(arguments.files)} files are for a cluster: add --local-cluster 2 or --scheduler "
            "ADDRESS, or give the folder that holds them"
        )
    if on_cluster:
        from sorel.cli.fit_on_cluster import fit_on_cluster

        fitted = fit_on_cluster(arguments)
    else:
        fitted = _fit_rows(arguments) if _on_disk(arguments) else _fit_table(arguments)
    model = fitted.pipeline[-1].set_params(verbose=0, n_jobs=None, checkpoint=None)
    checkpoint = arguments.checkpoint
    if model.status_.startswith("interrupted"):
        if checkpoint is not None and os.path.exists(checkpoint):
            say(f"the state of the fit is in {checkpoint}; the same command goes on from there")
        raise KeyboardInterrupt
    to_stream = arguments.output == STANDARD
    place: Any = sys.stdout.buffer if to_stream else arguments.output
    summary = _summary(arguments, fitted, model)
    save_model(fitted.pipeline, place, summary=summary, times=arguments.times)
    if fitted.held_out is not None:
        title = f"held-out rows of {arguments.folds} folds"
        draw_losses(arguments.plot, fitted.held_out, model, title, tail=arguments.tail)
    note(
        arguments,
        f"{fitted.task} with {arguments.risk} on {fitted.rows} rows, {len(fitted.kinds)} columns: "
        f"certified relative gap {model.relative_gap_:.2g} in {model.n_passes_:.4g} passes; "
        f"saved to {'standard output' if to_stream else place}",
    )
    if model.converged_:
        return DONE
    again = "" if checkpoint is None else f"; with more passes the fit goes on from {checkpoint}"
    say(
        f"warning: the certified relative gap {model.relative_gap_:.2g} is above --tol "
        f"{arguments.tol:g}; raise --max-passes, --tol or --l2{again}"
    )
    return NOT_CONVERGED


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse what can be known to be wrong before the table is read; fill in defaults."""
    # All files of a table, and the first, which is all of it without a cluster.
    arguments.files, arguments.data = arguments.data, arguments.data[0]
    if arguments.scheduler is not None and arguments.local_cluster is not None:
        raise Misuse("--scheduler and --local-cluster name two clusters; give one of them")
    if arguments.output == STANDARD and sys.stdout.isatty():
        raise Misuse("a model is binary data, not for a terminal; give -o a file name")
    check_outputs(arguments.output, arguments.checkpoint)
    check_picture(arguments.plot)
    if arguments.checkpoint is not None:
        _check_checkpoint(arguments)
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
    # The columns that are no features.
    arguments.excluded = [name for name in seen if seen[name] not in ("a name", "a date")]
    for name, given in (("--tail", arguments.tail), ("--mean-slack", arguments.mean_slack)):
        if arguments.cv is None and given is not None:
            raise Misuse(f"{name} says what --cv chooses by; add --cv, or leave {name} out")
    arguments.folds = arguments.cv or _FOLDS
    if arguments.cv is None:
        arguments.l2 = "auto" if arguments.l2 is None else arguments.l2
    elif arguments.risk is not None and arguments.l2 is not None:
        raise Misuse("--cv has nothing to choose where both --risk and --l2 are given")


def _check_checkpoint(arguments: argparse.Namespace) -> None:
    """Refuse a checkpoint that cannot serve; say where the fit goes on."""
    from sorel.files.checkpoints import read_passes

    path = arguments.checkpoint
    for name, other in (("the table", arguments.data), ("the model", arguments.output)):
        if os.path.realpath(path) == os.path.realpath(other):
            raise Misuse(f"--checkpoint {path} is {name}; give it a file of its own")
    passes = read_passes(path)
    if passes is not None:
        note(arguments, f"resuming from {path} at pass {passes:.4g}")


def _fit_table(arguments: argparse.Namespace) -> Fitted:
    """Fit a table in memory."""
    task, kinds, pipeline, rows, y, weight = _prepare_table(arguments)
    if arguments.cv is not None:
        _choose(task, arguments, rows, y, weight)
    model = estimator(task, arguments).fit(rows, y, weight)
    pipeline.steps[-1] = ("model", model)
    if arguments.baselines:
        pipeline.baselines_ = baselines(model, rows, y, weight)
    held_out = None
    if arguments.plot is not None and not model.status_.startswith("interrupted"):
        held_out = held_out_losses(model, rows, y, weight, arguments.folds)
    return Fitted(task, kinds, len(y), pipeline, held_out)


def _prepare_table(arguments: argparse.Namespace) -> tuple[str, dict[str, str], Any, Any, Any, Any]:
    """Task, kinds of columns, pipeline without a model, and rows, targets and weights for one.

    A function of its own so that the table is dropped before the fit, which needs the memory.
    """
    from sorel.files import tables

    frame = read_frame(
        arguments,
        [*arguments.excluded, *arguments.categorical, *arguments.dates],
        target=arguments.target,
        text_columns=set(arguments.categorical),
        thousands=arguments.thousands,
    )
    task, y, weight = _read_targets(frame, arguments)
    features = frame.drop(columns=arguments.excluded)
    del frame
    tables.require_features(features.columns)
    kinds = tables.column_kinds(features, arguments.dates)
    texts = [column for column, kind in kinds.items() if kind == "text"]
    tables.refuse_misread(features, [name for name in texts if name not in arguments.categorical])
    _refuse_names(features[texts])
    hint = "remove such rows, or have the values filled in with --impute"
    X = tables.select_columns(features, kinds, allow_missing=arguments.impute, hint=hint)
    del features
    pipeline = tables.make_pipeline(kinds, None, impute=arguments.impute)
    return task, kinds, pipeline, pipeline[:-1].fit_transform(X), y, weight


def _on_disk(arguments: argparse.Namespace) -> bool:
    """Whether the rows are to stay on disk: told so, no single table, or too much for memory."""
    if arguments.data == STANDARD:
        if arguments.out_of_core:
            raise Misuse("--out-of-core needs a file or a folder, not standard input")
        return False
    path = Path(arguments.data)
    if arguments.out_of_core or path.is_dir() or path.suffix.lower() == ".npy":
        return True
    if needs_table(arguments) or not _fills_memory(arguments):
        return False
    say(f"note: {path} would fill the memory; its rows stay on disk, as with --out-of-core")
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
    from sorel.engines.rows import NotNumericError, ParquetRows
    from sorel.files.tables import TableError

    try:
        rows = ParquetRows(arguments.data, exclude=arguments.excluded)
        for name in rows.truth_columns():
            raise NotNumericError(name, arguments.data, "truth values")
    except NotNumericError as error:
        raise TableError(
            f"column {error.column!r} of {error.file} holds {error.words}; rows on disk must be "
            f"numbers: encode it, or leave it out with --drop {error.column!r}"
        ) from None
    return rows


def _fit_rows(arguments: argparse.Namespace) -> Fitted:
    """Fit rows on disk."""
    import shutil

    from sklearn.preprocessing import StandardScaler

    from sorel.cli.saved_models import columns_beside
    from sorel.engines.rows import ScaledRows, is_parquet, open_rows, write_blocks
    from sorel.files import tables
    from sorel.files.atomic import scratch_folder

    path = Path(arguments.data)
    needs = needs_table(arguments)
    if needs:
        verb = "needs" if len(needs) == 1 else "need"
        raise Misuse(f"{' and '.join(needs)} {verb} a table in memory, not rows on disk")
    if is_parquet(path) or arguments.format == "parquet":
        rows = _parquet_rows(arguments)
    elif path.is_file() and path.suffix.lower() != ".npy":
        raise Misuse(
            f"{arguments.data} cannot stay on disk: --out-of-core reads Parquet and .npy files; "
            "convert it to Parquet first"
        )
    elif arguments.drop:
        raise Misuse("--drop leaves out columns of tables and of Parquet files, not of .npy files")
    else:
        rows = open_rows(path)
    frame = columns_beside(
        rows, [name for name in arguments.excluded if name not in arguments.drop]
    )
    task, y, weight = _read_targets(frame, arguments)
    tables.check_width(rows.n_features, "the data")
    scaler = StandardScaler()
    for _, _, part in rows.finite_spans():
        scaler.partial_fit(part)
    names = rows.columns or [f"x{place}" for place in range(rows.n_features)]
    pipeline = tables.scaled_pipeline(names, scaler, estimator(task, arguments))
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
                pipeline.baselines_ = baselines(pipeline[-1], blocks, y, weight)
        finally:
            blocks.close()
    return Fitted(task, dict.fromkeys(names, "numeric"), rows.n_samples, pipeline)


def needs_table(arguments: argparse.Namespace) -> list[str]:
    """The options in use that only a table in memory can serve."""
    options = {
        "--impute": arguments.impute,
        "--categorical": arguments.categorical,
        "--dates": arguments.dates,
        "--skip-missing-target": arguments.skip_missing_target,
        "--cv": arguments.cv,
        "--plot": arguments.plot,
    }
    return [name for name, used in options.items() if used]


def _choose(task: str, arguments: argparse.Namespace, rows: Any, y: Any, weight: Any) -> None:
    """Set risk and l2, or the one that was not given, to what cross-validation prefers."""
    import numpy as np

    from sorel.estimators.model_selection import SpectralRiskClassifierCV, SpectralRiskRegressorCV

    kind = SpectralRiskRegressorCV if task == "regression" else SpectralRiskClassifierCV
    most, what = len(y), "rows"
    if task == "classification":
        most, what = np.unique(y, return_counts=True)[1].max(), "rows of one class"
    if arguments.cv > most:
        raise Misuse(f"--cv {arguments.cv} is more than the {most} {what}; give fewer folds")
    settings = estimator_settings(task, arguments)
    for name in ("risk", "l2", "verbose", "checkpoint", "n_jobs"):
        del settings[name]
    if arguments.risk is not None:
        settings["risks"] = [arguments.risk]
    if arguments.l2 is not None:
        settings["l2s"] = [arguments.l2]
    for name, given in (("tail", arguments.tail), ("mean_slack", arguments.mean_slack)):
        if given is not None:
            settings[name] = given
    search = kind(**settings, cv=arguments.cv, refit=False).fit(rows, y, weight)
    arguments.risk, arguments.l2 = search.best_risk_.spec, search.best_l2_
    note(arguments, f"cross-validation chose {arguments.risk} and l2 {arguments.l2}")
    for line in str(search.search_report_).splitlines():
        note(arguments, line)


def baselines(model: Any, X: Any, y: Any, weight: Any) -> dict[str, Any]:
    """What `sorel evaluate` compares with: the best constant model, and those of the plain fit.

    X and y may be collections of a cluster, where the model is one for them.
    """
    import numpy as np
    from sklearn.base import clone

    from sorel import Mean, parse_risk
    from sorel.estimators.baselines import baselines as plain_fits

    if model.status_.startswith("interrupted"):
        return {}
    on_cluster = hasattr(model, "to_local")
    constant = clone(model).set_params(verbose=0, checkpoint=None)
    constant._warns_of_model = False
    constant.fit(0.0 * X[:, :1] if on_cluster else np.zeros((len(y), 1)), y, weight)
    found = {"constant model": constant.to_local() if on_cluster else constant}
    if not isinstance(parse_risk(model.risk), Mean):
        found |= plain_fits(model, X, y, weight)
    for other in found.values():
        # Of the length of the table, and of no use to anybody who only predicts.
        vars(other).pop("risk_weights_", None)
        other.set_params(n_jobs=None)
    return found


def estimator(task: str, arguments: argparse.Namespace) -> Any:
    """The estimator for a task, not fitted."""
    from sorel.estimators import SpectralRiskClassifier, SpectralRiskRegressor

    kind = SpectralRiskRegressor if task == "regression" else SpectralRiskClassifier
    return kind(**estimator_settings(task, arguments))


def estimator_settings(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the arguments say about an estimator for a task, whose default risk they get."""
    from sorel.estimators.default_risks import CLASSIFIER_RISK, RISK
    from sorel.problem.losses import LOSSES

    if arguments.risk is None and arguments.cv is None:
        arguments.risk = (RISK if task == "regression" else CLASSIFIER_RISK).spec
    losses = _losses(task)
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
    if arguments.class_weight is not None and task == "regression":
        raise Misuse("--class-weight is for labels, and the target holds numbers")
    return {
        **({} if task == "regression" else {"class_weight": arguments.class_weight}),
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


def read_target(values: pd.Series, arguments: argparse.Namespace) -> tuple[str, Any]:
    """The task that a target calls for, and its values as the estimator wants them."""
    from sorel.files import tables

    name = arguments.target
    frame = values.to_frame()
    kind = tables.column_kinds(frame)[name]
    if kind == "text" and arguments.task == "auto":
        tables.refuse_stray_texts(values, name)
    if arguments.task == "regression":
        # Whatever is no number is named.
        kind = "numeric"
    targets = tables.select_columns(frame, {name: kind}, hint=SKIP_MISSING)[name]
    count = targets.nunique()
    if count < 2:
        only = targets.tolist()[0]
        raise tables.TableError(
            f"target {name!r} has one value only, {only!r}; there is nothing to learn"
        )
    task = arguments.task
    if task != "regression" and kind != "numeric" and count > _MAX_CLASSES:
        raise tables.TableError(
            f"target {name!r} has {count} different labels, more than {_MAX_CLASSES}; is it a name?"
        )
    if task == "auto":
        task = "regression" if kind == "numeric" and count > 2 else "classification"
        if kind == "numeric" and count <= _FEW_VALUES:
            _note_task(arguments, task, sorted(targets.unique().tolist()))
    if task == "regression":
        return task, targets.to_numpy()
    if kind == "numeric":
        # Labels stay whole numbers where the file has whole numbers.
        return task, values.to_numpy()
    return task, targets.to_numpy(dtype=bool if kind == "boolean" else object)


def _read_targets(frame: pd.DataFrame, arguments: argparse.Namespace) -> tuple[str, Any, Any]:
    """The task, the targets, and the weights of the rows if there are any."""
    from sorel.cli.saved_models import read_weight
    from sorel.files.tables import refuse_rows
    from sorel.problem.losses import LOSSES, Deviance

    task, y = read_target(frame[arguments.target], arguments)
    loss = LOSSES[arguments.loss]() if arguments.loss else None
    if task == "classification" and arguments.loss == "squared_hinge" and len(set(y)) > 2:
        raise Misuse("--loss squared_hinge takes two labels, and the target has more; use logistic")
    if task == "regression" and isinstance(loss, Deviance):
        words = (
            f"is {{value}} in row {{row}}, and {loss.rule}; drop such rows, or give another --loss"
        )
        refuse_rows(frame[arguments.target], arguments.target, loss.refused(y), words)
    name = arguments.sample_weight
    return task, y, None if name is None else read_weight(frame[name], name)


def _note_task(arguments: argparse.Namespace, task: str, labels: list[float]) -> None:
    if task == "classification":
        words = f"the two values {labels[0]:g} and {labels[1]:g}, taken as labels; use --task "
        words += "regression if they are numbers"
    elif all(label.is_integer() for label in labels):
        words = f"{len(labels)} different whole numbers, taken as numbers; use --task "
        words += "classification if they are labels"
    else:
        return
    note(arguments, f"note: target {arguments.target!r} has {words}")


def _refuse_names(texts: pd.DataFrame) -> None:
    """Refuse more texts than a model may have columns, and point out those that may be names."""
    from sorel.files.tables import TableError

    counts = texts.nunique()
    if counts.sum() > _MAX_INDICATORS:
        raise TableError(
            f"the columns have {counts.sum()} different texts, more than {_MAX_INDICATORS}, and "
            "each of them would become an indicator column; leave some out, e.g. with --drop "
            f"{counts.idxmax()!r}"
        )
    for column, count in counts.items():
        if count > min(_MANY_TEXTS, max(_FEW_VALUES, len(texts) // 2)):
            say(
                f"warning: column {column!r} has {count} different texts in {len(texts)} rows, "
                "each of which becomes an indicator column; if it holds names or identifiers, "
                f"leave it out with --drop {column!r}"
            )


def _summary(arguments: argparse.Namespace, fitted: Fitted, model: Any) -> dict[str, Any]:
    return {
        "task": fitted.task,
        "target": arguments.target,
        "rows": fitted.rows,
        "l2": float(model.l2_),
        "l1": arguments.l1,
        "positive": arguments.positive,
        "tol": arguments.tol,
        "imputed": arguments.impute,
        "thousands": arguments.thousands,
        "sample_weight": arguments.sample_weight,
        "constant": bool(model.constant_),
        "columns": fitted.kinds,
    }
