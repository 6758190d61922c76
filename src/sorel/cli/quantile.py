"""``sorel quantile``: fit quantile regressions to a table.

Fit linear quantile regressions, and write their coefficients with what certifies them. Texts and
truth values become indicator columns; numbers stay in their own units.

examples:
  sorel quantile houses.csv --target price --quantiles 0.1 0.5 0.9
  sorel quantile houses.csv --target price --quantiles 0.05 0.95 --alpha 0.01 -o coefficients.csv
      with an l1 penalty, which leaves columns out
  sorel quantile houses.csv --target price --quantiles 0.1 0.5 0.9 --noncrossing --plot fan.png
      sorted predictions for each row, and a picture of the coefficients
"""

from __future__ import annotations

import argparse
from typing import Any

from sorel._lib import stop as _stop
from sorel._lib.defaults import TOL
from sorel.cli.arguments import SKIP_MISSING, Options, level, nonnegative
from sorel.cli.pictures import check_picture, save_picture
from sorel.cli.shared import DONE, NOT_CONVERGED, Misuse, check_outputs, note, read_frame, say


def add(options: Options) -> None:
    """Declare the arguments."""
    options.table("the table to learn from")
    options.column("--target", "column to predict", required=True)
    words = "levels between 0 and 1 (default: 0.1 0.5 0.9)"
    given = [0.1, 0.5, 0.9]
    options.add("--quantiles", type=level, nargs="+", default=given, metavar="Q", help=words)
    options.number("--alpha", nonnegative, "strength of the lasso penalty (default: 0)", 0.0)
    words = (
        "sort the predictions of each row before they are measured: the sum of the losses of all "
        "quantiles does not grow, that of one may"
    )
    options.switch("--noncrossing", words)
    options.drop()
    options.skip_missing_target()
    options.effort(TOL, each=" for each quantile")
    options.file("--plot", "draw the coefficients against the quantiles")
    options.output("one row per quantile,")
    options.quiet()


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import numpy as np
    import pandas as pd
    from sklearn.metrics import mean_pinball_loss

    from sorel.estimators import QuantileRegressor
    from sorel.files import tables

    levels = sorted(arguments.quantiles)
    if len(set(levels)) < len(levels):
        raise Misuse(f"--quantiles names a level twice: {levels}")
    check_outputs(arguments.output)
    check_picture(arguments.plot)
    X, y = _read(arguments)
    model = QuantileRegressor(
        quantile=levels, alpha=arguments.alpha, noncrossing=arguments.noncrossing,
        tol=arguments.tol, max_passes=arguments.max_passes, n_jobs=arguments.jobs,
    )  # fmt: skip
    predicted = model.fit(X, y).predict(X)
    table = pd.DataFrame(
        {
            "quantile": levels,
            "coverage": [float(np.mean(y <= column)) for column in predicted.T],
            "pinball_loss": [
                mean_pinball_loss(y, column, alpha=level)
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
    note(
        arguments,
        f"{len(levels)} quantiles of {arguments.target!r} on {len(y)} rows, {X.shape[1]} columns: "
        f"certified relative gaps up to {worst:.2g} in {model.n_passes_:.4g} passes",
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
    import pandas as pd

    from sorel.files import tables

    if arguments.target in arguments.drop:
        raise Misuse(f"--drop {arguments.target!r} is the target")
    named = [arguments.target, *arguments.drop]
    frame = read_frame(arguments, named, target=arguments.target)
    wanted = {arguments.target: "numeric"}
    target = tables.select_columns(frame, wanted, hint=SKIP_MISSING)[arguments.target]
    features = frame.drop(columns=named)
    tables.require_features(features.columns)
    kinds = tables.column_kinds(features)
    X = tables.select_columns(
        features, kinds, hint="remove such rows, or leave the column out with --drop"
    )
    texts = [column for column, kind in kinds.items() if kind in ("text", "boolean")]
    # One value of each column is left out: with an intercept it is told by the others.
    if texts:
        X = pd.get_dummies(X, columns=texts, drop_first=True, dtype=float)
    if not len(X.columns):
        raise tables.TableError("no column varies: there is nothing to learn from")
    return X.astype("float64"), target.to_numpy()


def _draw(coefficients: dict[str, Any], levels: list[float], path: str) -> None:
    from matplotlib.figure import Figure

    from sorel.estimators.plots import PathDisplay

    display = PathDisplay(coefficients, [f"{level:g}" for level in levels], grid_name="quantile")
    save_picture(display.plot(Figure().subplots()).figure_, path)
