"""Whether the searches keep their word: nested validation on real sets.

A search is given a goal, the tail and the mean slack, and the training part of each outer split.
Where its report claims a gain (the interval of the tail's change lies below 0), the change on the
outer test part is compared with that interval: *held* is a gain of at least its smaller end,
*inside* is between both ends. The mean loss on the test part, against the plain fit at the l2 that
the search found for it, is to stay within the slack plus two standard errors of that change.
Run as ``python -m benchmarks.goal [--quick] [--repeats 2] [--update-docs]``.
"""

from __future__ import annotations

import benchmarks.one_thread  # noqa: F401 (limits threads on import)

# isort: split
import argparse
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import RepeatedKFold, RepeatedStratifiedKFold
from sklearn.preprocessing import StandardScaler

from benchmarks.common import markdown, replace_between
from benchmarks.real_sets import SETS, Kind, load
from sorel import (
    SpectralRiskClassifier,
    SpectralRiskClassifierCV,
    SpectralRiskRegressor,
    SpectralRiskRegressorCV,
    parse_risk,
)
from sorel.metrics import TailScorer

# Tails to make small, and the share of the mean loss that may be paid.
GOALS = (("cvar:0.05", 0.03), ("cvar:0.1", 0.1))
FOLDS = 5
# Rows that are drawn from a larger set: small sets are the hard ones.
ROWS = 2000
# Seed of rows and splits; the intervals were chosen with others (0).
SEED = 1
PAGE = Path(__file__).resolve().parents[1] / "docs" / "choosing-a-risk.md"
MARKERS = ("<!-- goal:start -->", "<!-- goal:end -->")
# Ten classes take as long as all other sets.
NAMES = tuple(name for name in SETS if name != "digits")
QUICK_SETS = ("yacht", "wages", "breast cancer", "churn")


class Outcome(NamedTuple):
    """What a search claimed, and what came of it on the outer test part."""

    moved: bool
    claimed: bool
    low: float
    high: float
    tail_change: float
    mean_excess: float
    mean_error: float


def outcomes(name: str, tail: str, slack: float, repeats: int) -> list[Outcome]:
    """One search for each outer split of a set."""
    X, y, kind = load(name)
    rows = np.random.default_rng(SEED).permutation(len(y))[:ROWS]
    X, y = X[rows], y[rows]
    splitter = RepeatedKFold if kind == "regression" else RepeatedStratifiedKFold
    splits = splitter(n_splits=FOLDS, n_repeats=repeats, random_state=SEED).split(X, y)
    return [
        outcome(kind, tail, slack, *standardised(kind, X[a], y[a], X[b], y[b])) for a, b in splits
    ]


def standardised(kind: Kind, X: Any, y: Any, X_test: Any, y_test: Any) -> tuple[Any, Any, Any, Any]:
    scaler = StandardScaler().fit(X)
    if kind == "regression":
        centre, scale = np.mean(y), np.std(y)
        y, y_test = (y - centre) / scale, (y_test - centre) / scale
    return scaler.transform(X), y, scaler.transform(X_test), y_test


def outcome(
    kind: Kind, tail: str, slack: float, X: Any, y: Any, X_test: Any, y_test: Any
) -> Outcome:
    searching, fitting = SpectralRiskRegressorCV, SpectralRiskRegressor
    if kind == "classification":
        searching, fitting = SpectralRiskClassifierCV, SpectralRiskClassifier
    search = searching(tail=tail, mean_slack=slack).fit(X, y)
    table = search.search_report_.table
    chosen = table[table.chosen].iloc[0]
    plain = fitting("mean", l2=table.l2.iloc[0]).fit(X, y)
    scorer, risk = TailScorer(tail, search.loss), parse_risk(tail)
    ours, theirs = (scorer.losses(model, X_test, y_test) for model in (search, plain))
    mean_change = ours.mean() / theirs.mean() - 1.0
    pulls = ours - (1.0 + mean_change) * theirs
    return Outcome(
        moved=not table.chosen.iloc[0],
        claimed=bool(chosen.tail_high < 0.0),
        low=chosen.tail_low,
        high=chosen.tail_high,
        tail_change=risk(ours) / risk(theirs) - 1.0,
        mean_excess=mean_change - slack,
        mean_error=np.std(pulls) / np.sqrt(len(pulls)) / theirs.mean(),
    )


def row(name: str, found: list[Outcome]) -> list[str]:
    claims = [one for one in found if one.claimed]
    percent = {
        "claimed": [0.5 * (one.low + one.high) for one in claims],
        "on the test part": [one.tail_change for one in claims],
    }
    return [
        name,
        str(len(found)),
        str(sum(one.moved for one in found)),
        str(len(claims)),
        str(sum(one.tail_change <= one.high for one in claims)),
        str(sum(one.low <= one.tail_change <= one.high for one in claims)),
        *(f"{100 * np.mean(values):+.1f}" if values else "" for values in percent.values()),
        str(sum(one.mean_excess <= 0.0 for one in found)),
        str(sum(one.mean_excess <= 2.0 * one.mean_error for one in found)),
    ]


HEAD = ["set", "searches", "not plain", "claims", "held", "inside", "claimed, %", "on test, %"]
HEAD += ["mean within slack", "and two standard errors"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2, help="times the outer folds are drawn")
    parser.add_argument("--quick", action="store_true", help="four sets, drawn once")
    parser.add_argument(
        "--update-docs", action="store_true", help="put the totals into docs/choosing-a-risk.md"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names, repeats = NAMES, options.repeats
    if options.quick:
        names, repeats = QUICK_SETS, 1
    totals = []
    for tail, slack in GOALS:
        goal = f"{tail}, mean slack {slack:.0%}"
        everything: list[Outcome] = []
        rows = []
        for name in names:
            found = outcomes(name, tail, slack, repeats)
            everything += found
            rows.append(row(name, found))
            print(goal, *rows[-1], sep=" | ", flush=True)
        totals.append(row(goal, everything))
        print(markdown(HEAD, [*rows, totals[-1]]), flush=True)
    settings = (
        f"Settings: {len(names)} real sets of at most {ROWS} rows, {FOLDS} outer folds drawn "
        f"{repeats} times, columns and targets of regression standardised by the training part; "
        "all else is the default. `python -m benchmarks.goal --update-docs` prints it set by set."
    )
    text = f"{markdown(['goal', *HEAD[1:]], totals)}\n\n{settings}"
    print(text)
    if options.update_docs:
        replace_between(PAGE, MARKERS, text)


if __name__ == "__main__":
    main()
