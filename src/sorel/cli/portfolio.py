"""``sorel portfolio``: find the portfolio of least tail risk for a table of returns.

Find the portfolio of least tail risk. The table has a column of returns for each asset and a row
for each scenario, such as a day; a first column of dates or texts names the scenarios.

examples:
  sorel portfolio returns.csv --risk cvar:0.05
      long-only and fully invested: the mean of the worst twentieth of the losses, least
  sorel portfolio returns.csv --risk deviation:extremile:2 --target-return 0.0005 -o weights.csv
      least Gini deviation for a mean return of at least 0.0005 per scenario
  sorel portfolio returns.csv --upper 0.1 --plot frontier.png
      no more than a tenth in any asset, and a picture of the efficient frontier

risks:
  cvar:ALPHA (the worst share ALPHA), esrm:RHO, extremile:R, max, mean; deviation:RISK is RISK minus
  the mean
"""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, Any

from sorel._lib import stop as _stop
from sorel._lib.defaults import TOL
from sorel.cli.arguments import Options, finite, nonnegative, risk_spec
from sorel.cli.pictures import check_picture, save_picture
from sorel.cli.shared import DONE, NOT_CONVERGED, Misuse, check_outputs, note, read_frame, say

if TYPE_CHECKING:
    import pandas as pd


def add(options: Options) -> None:
    """Declare the arguments."""
    options.table("the returns")
    words = "risk of the losses (default: %(default)s)"
    options.add("--risk", type=risk_spec, default="cvar:0.05", help=words)
    words = "how much risk a unit of mean return is worth (default: 0)"
    options.number("--reward", nonnegative, words, 0.0)
    options.number("--target-return", finite, "least mean return of a scenario")
    options.number("--budget", finite, "what the weights add up to (default: 1)", 1.0)
    options.number("--lower", finite, "least weight of an asset (default: 0)", 0.0)
    options.number("--upper", finite, "largest weight of an asset (default: none)")
    words = "strength of a ridge penalty, which spreads the weights (default: 0)"
    options.number("--l2", nonnegative, words, 0.0)
    options.drop()
    options.effort(TOL)
    options.file("--plot", "draw the efficient frontier, e.g. to frontier.png")
    options.output("weights and risk contributions")
    options.quiet()


def run(arguments: argparse.Namespace) -> int:
    """Do what the command is for; the exit code."""
    import pandas as pd

    from sorel.estimators import SpectralRiskPortfolio
    from sorel.files import tables

    if arguments.reward and arguments.target_return is not None:
        raise Misuse("--reward and --target-return exclude each other: a target finds its reward")
    if arguments.budget == 0.0:
        raise Misuse("--budget 0 leaves nothing to invest; give another number")
    if arguments.upper is not None and arguments.lower > arguments.upper:
        raise Misuse(f"--lower {arguments.lower:g} is above --upper {arguments.upper:g}")
    check_outputs(arguments.output)
    check_picture(arguments.plot)
    returns = _returns(arguments)
    model = SpectralRiskPortfolio(
        arguments.risk, reward=arguments.reward, target_return=arguments.target_return,
        budget=arguments.budget, lower=arguments.lower, upper=arguments.upper, l2=arguments.l2,
        tol=arguments.tol, max_passes=arguments.max_passes, n_jobs=arguments.jobs,
    )  # fmt: skip
    model.fit(returns)
    frontier = None
    if arguments.plot is not None:
        with warnings.catch_warnings():
            # The fit has said what there is to say of the table.
            warnings.simplefilter("ignore", UserWarning)
            frontier = model.frontier(returns)
    table = pd.DataFrame(
        {
            "asset": returns.columns,
            "weight": model.weights_,
            "risk_contribution": model.risk_contributions_,
        }
    )
    _stop.check()
    tables.write_table(table, arguments.output)
    if frontier is not None:
        _draw(frontier, model, arguments.plot)
    held = int((abs(model.weights_) > 1e-9).sum())
    note(
        arguments,
        f"{arguments.risk} {model.risk_:.6g}, mean return {model.expected_return_:.6g} in "
        f"{len(returns)} scenarios; {held} of {returns.shape[1]} assets held; certified gap "
        f"{model.gap_:.2g} (relative {model.relative_gap_:.2g}) in {model.n_passes_:.4g} passes",
    )
    code = DONE
    if not model.converged_:
        say(
            f"warning: the certified relative gap {model.relative_gap_:.2g} is above --tol "
            f"{arguments.tol:g}, and the contributions add up to "
            f"{model.risk_contributions_.sum():.6g}; raise --max-passes, --tol or --l2"
        )
        code = NOT_CONVERGED
    if frontier is not None and not frontier.converged.all():
        gaps = frontier.relative_gap[~frontier.converged]
        say(
            f"warning: {len(gaps)} of the {len(frontier)} points of the frontier miss --tol "
            f"{arguments.tol:g}, the worst with a relative gap of {gaps.max():.2g}; raise "
            "--max-passes, --tol or --l2"
        )
        code = NOT_CONVERGED
    return code


def _returns(arguments: argparse.Namespace) -> pd.DataFrame:
    """The columns of returns, indexed by the first column where that is none."""
    from sorel.files import tables

    frame = read_frame(arguments, arguments.drop).drop(columns=arguments.drop)
    tables.require_features(frame.columns)
    first = frame.columns[0]
    # Dates come as texts from CSV, and as dates from Parquet.
    if len(frame.columns) > 1 and frame[first].dtype.kind not in "iufb":
        frame = frame.set_index(first)
    kinds = tables.column_kinds(frame)
    for column, kind in kinds.items():
        if kind != "numeric":
            raise tables.TableError(
                f"column {column!r} holds {kind}s, and returns are numbers; leave it out with "
                f"--drop {column!r}"
            )
    return frame.astype("float64")


def _draw(frontier: Any, model: Any, path: str) -> None:
    from matplotlib.figure import Figure

    from sorel.estimators.plots import plot_frontier

    ax = plot_frontier(frontier, ax=Figure().subplots())
    (star,) = ax.plot(model.risk_, model.expected_return_, "*", color="#D55E00", markersize=13)
    star.set(label="this portfolio", zorder=4)
    ax.legend(frameon=False)
    save_picture(ax.figure, path)
