"""``sorel quantile``: quantile regressions of a table, as a table of coefficients."""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import Any

from sorel import _stop
from sorel.cli.arguments import (
    add_command,
    add_drop,
    add_effort,
    add_quiet,
    add_table,
    nonnegative,
)
from sorel.cli.merging import find_repeats
from sorel.cli.shared import DONE, NOT_CONVERGED, Misuse, say

_DESCRIPTION = """\
Fit linear quantile regressions, and write their coefficients with what certifies them. Texts and
truth values become indicator columns; numbers stay in their own units.
"""

_EXAMPLES = """\
examples:
  sorel quantile houses.csv --target price --quantiles 0.1 0.5 0.9
  sorel quantile houses.csv --target price --quantiles 0.05 0.95 --alpha 0.01 -o coefficients.csv
      with an l1 penalty, which leaves columns out
  sorel quantile houses.csv --target price --quantiles 0.1 0.5 0.9 --noncrossing --plot fan.png
      sorted predictions for each row, and a picture of the coefficients
"""


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = add_command(
        commands,
        "quantile",
        run,
        help="fit quantile regressions to a table",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_table(parser, "data", "the table to learn from")
    parser.add_argument("--target", required=True, metavar="COLUMN", help="column to predict")
    parser.add_argument(
        "--quantiles", type=_level, nargs="+", default=[0.1, 0.5, 0.9], metavar="Q",
        help="levels between 0 and 1 (default: 0.1 0.5 0.9)",
    )  # fmt: skip
    parser.add_argument(
        "--alpha", type=nonnegative, default=0.0, metavar="NUMBER",
        help="strength of the lasso penalty (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--noncrossing", action="store_true",
        help="sort the predictions of each row before they are measured",
    )  # fmt: skip
    add_drop(parser)
    add_effort(parser, 1e-6, each=" for each quantile")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the coefficients against the quantiles"
    )
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE",
        help="one row per quantile, as CSV or, if it ends in .parquet, Parquet; - is standard "
        "output (default)",
    )  # fmt: skip
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import numpy as np
    import pandas as pd
    from sklearn.metrics import mean_pinball_loss

    from sorel import ConvergenceWarning, tables
    from sorel._files import check_writable
    from sorel.estimators import QuantileRegressor

    levels = sorted(arguments.quantiles)
    twice = [level for level, after in itertools.pairwise(levels) if level == after]
    if twice:
        raise Misuse(f"--quantiles has {twice[0]:g} twice")
    for path in (arguments.output, arguments.plot):
        if path is not None and path != tables.STANDARD:
            check_writable(path)
    X, y = _read(arguments)
    count, weight = len(y), None
    repeats = find_repeats(X, y)
    if repeats is not None:
        X, y, weight = X.iloc[repeats.first], y[repeats.first], repeats.weights(None)
    model = QuantileRegressor(
        quantile=levels, alpha=arguments.alpha, noncrossing=arguments.noncrossing,
        tol=arguments.tol, max_passes=arguments.max_passes, n_jobs=arguments.jobs,
    )  # fmt: skip
    with warnings.catch_warnings():
        # Said below, in the words of the command line.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, weight)
    predicted = model.predict(X)
    table = pd.DataFrame(
        {
            "quantile": levels,
            "coverage": [float(np.average(y <= column, weights=weight)) for column in predicted.T],
            "pinball_loss": [
                mean_pinball_loss(y, column, alpha=level, sample_weight=weight)
                for level, column in zip(levels, predicted.T, strict=True)
            ],
            "gap": model.gap_,
            "relative_gap": model.relative_gap_,
            "intercept": model.intercept_,
            **dict(zip(X.columns, model.coef_.T, strict=True)),
        }
    )
    _stop.check()
    tables.write_table(table, arguments.output)
    if arguments.plot is not None:
        _draw(dict(zip(X.columns, model.coef_.T, strict=True)), levels, arguments.plot)
    worst = float(np.max(model.relative_gap_))
    if not arguments.quiet:
        say(
            f"{len(levels)} quantiles of {arguments.target!r} on {count} rows, {X.shape[1]} "
            f"columns: certified relative gaps up to {worst:.2g} in {model.n_passes_:.4g} passes"
        )
    if not model.converged_:
        say(
            f"warning: a certified relative gap of {worst:.2g} is above --tol {arguments.tol:g}; "
            "raise --max-passes, --tol or --alpha"
        )
        return NOT_CONVERGED
    return DONE


def _read(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Columns as numbers, indicators included, and the target."""
    from sorel import tables

    frame = tables.read_table(
        arguments.data, format=arguments.format, sep=arguments.sep, unpacked=arguments.unpacked
    )
    named = [arguments.target, *arguments.drop]
    absent = [name for name in named if name not in frame.columns]
    if absent:
        raise tables.TableError(tables.missing_columns(absent, frame.columns))
    if arguments.target in arguments.drop:
        raise Misuse(f"--drop {arguments.target!r} is the target")
    hint = "remove such rows"
    wanted = {arguments.target: "numeric"}
    target = tables.select_columns(frame, wanted, hint=hint)[arguments.target]
    features = frame.drop(columns=named)
    del frame
    if not len(features.columns):
        raise tables.TableError("the table has no columns to learn from besides the target")
    kinds = tables.column_kinds(features)
    X = tables.select_columns(features, kinds, hint=hint)
    del features
    import pandas as pd

    texts = [column for column, kind in kinds.items() if kind in ("text", "boolean")]
    # One value of each column is left out: with an intercept it is told by the others.
    if texts:
        X = pd.get_dummies(X, columns=texts, drop_first=True, dtype=float)
    if not len(X.columns):
        raise tables.TableError("no column varies: there is nothing to learn from")
    return X.astype("float64"), target.to_numpy()


def _level(text: str) -> float:
    """A number strictly between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value


def _draw(coefficients: dict[str, Any], levels: list[float], path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from sorel.plots import PathDisplay

    display = PathDisplay(coefficients, [f"{level:g}" for level in levels], grid_name="quantile")
    display.plot().figure_.savefig(path, dpi=150, bbox_inches="tight")
