"""What minimising a tail risk buys, and what it costs: the command ``sorel demo``.

Least squares, ESRM(2) and CVaR(0.1) are fitted on repeated splits of three sets: measured ones on
which the tail improves (yacht) and does not (diabetes), and a generated one. The tables give the
mean, the mean of the worst tenth and the worst of the losses on training and held-out rows; the
picture shows the held-out tails and the certified convergence.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sorel._lib.extras import import_extra
from sorel.engines.base import FloatArray
from sorel.estimators.plots import LossTailDisplay, plot_convergence
from sorel.problem.penalties import L2
from sorel.problem.problem import Problem
from sorel.problem.risks import ESRM, CVaR, Mean, Risk
from sorel.research.datasets import (
    load_diabetes,
    load_paper_table,
    make_two_populations,
    split_standardized,
)
from sorel.solvers.solve import Result, solve

BASELINE = "least squares"
METHODS: dict[str, Risk] = {BASELINE: Mean(), "ESRM(2)": ESRM(2.0), "CVaR(0.1)": CVaR(0.1)}
TAIL = CVaR(0.1)
# Relative gap of every fit.
TOLERANCE = 1e-8
# Share of the rows that is held out.
TEST_SIZE = 0.3
# Relative changes of the held-out tail below this are called none.
NOTABLE = 0.02


class Scores(NamedTuple):
    """Mean, CVaR(0.1) and largest of a set of losses."""

    mean: float
    tail: float
    worst: float

    @classmethod
    def of(cls, splits: list[FloatArray]) -> Scores:
        """The scores of the losses of each split, averaged over the splits."""
        scores = [(losses.mean(), TAIL(losses), losses.max()) for losses in splits]
        return cls(*np.mean(scores, axis=0).tolist())


class Row(NamedTuple):
    """One method on one dataset, over all splits."""

    train: Scores
    held_out: Scores
    relative_gap: float
    seconds: float
    held_out_losses: FloatArray


@dataclass(frozen=True)
class Comparison:
    """All methods on one dataset."""

    name: str
    description: str
    rows: dict[str, Row]

    @property
    def certified(self) -> bool:
        """Whether every fit reached the tolerance."""
        return all(row.relative_gap <= TOLERANCE for row in self.rows.values())

    def change(self, method: str, score: str) -> float:
        """Relative change of a held-out score against least squares."""
        ours = getattr(self.rows[method].held_out, score)
        return float(ours / getattr(self.rows[BASELINE].held_out, score) - 1.0)


def compare(
    name: str, description: str, X: FloatArray, y: FloatArray, *, splits: int
) -> Comparison:
    """Fit every method on repeated splits of one dataset.

    Parameters
    ----------
    name, description : str
        What the table and the picture call the dataset.
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
    splits : int
        Number of random splits; 30% of the rows are held out in each.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> from sorel.datasets import make_two_populations
    >>> from sorel.research.demo import compare
    >>> X, y, _ = make_two_populations(n=200, d=3)
    >>> result = compare("small", "200 people", X, y, splits=1)
    >>> result.certified
    True
    """
    splitting = [split_standardized(X, y, test_size=TEST_SIZE, seed=k) for k in range(splits)]
    rows = {}
    for method, risk in METHODS.items():
        _show_progress(f"{name}: {method}")
        train, held_out, results = [], [], []
        for data in splitting:
            problem = _problem(data.X_train, data.y_train, risk)
            results.append(solve(problem, tol=TOLERANCE))
            train.append(problem.losses(results[-1].w))
            held_out.append(_problem(data.X_test, data.y_test, risk).losses(results[-1].w))
        rows[method] = Row(
            Scores.of(train),
            Scores.of(held_out),
            max(result.relative_gap for result in results),
            float(np.mean([result.seconds for result in results])),
            np.concatenate(held_out),
        )
    return Comparison(name, description, rows)


def table(comparison: Comparison) -> str:
    """Lay out a comparison as aligned text."""
    lines = [
        f"{comparison.name}: {comparison.description}",
        f"{'':15}{'training':^27}   {'held out':^27}   {'certified':>9}",
        f"{'':15}"
        + f"{'mean':>7}{'CVaR(0.1)':>11}{'worst':>9}   " * 2
        + f"{'gap':>9}{'seconds':>10}",
    ]
    for method, row in comparison.rows.items():
        scores = "".join(
            f"{s.mean:7.3f}{s.tail:11.3f}{s.worst:9.2f}   " for s in (row.train, row.held_out)
        )
        lines.append(f"{method:15}{scores}{row.relative_gap:9.1e}{row.seconds:10.4f}")
    return "\n".join(lines)


def verdict(comparison: Comparison) -> str:
    """Say in one sentence what the held-out numbers show."""
    change = {m: comparison.change(m, "tail") for m in METHODS if m != BASELINE}
    best = min(change, key=lambda method: change[method])
    tail = change.pop(best)
    others = ", ".join(f"{method} {_percent(value)}" for method, value in change.items())
    if tail <= -NOTABLE:
        return (
            f"{comparison.name}: {best} cuts the worst tenth of held-out losses by {-tail:.0%} "
            f"({others}); the mean loss changes by {_percent(comparison.change(best, 'mean'))}."
        )
    if tail < NOTABLE:
        found = "the worst tenth of held-out losses hardly changes"
        advice = "least squares is good enough here"
    else:
        found = "no method here improves the worst tenth of held-out losses"
        advice = "keep least squares"
    return f"{comparison.name}: {found} ({best} {_percent(tail)}, {others}); {advice}."


def convergence(X: FloatArray, y: FloatArray) -> dict[str, Result]:
    """Runs of three solvers on CVaR(0.1), first split."""
    data = split_standardized(X, y, test_size=TEST_SIZE, seed=0)
    problem = _problem(data.X_train, data.y_train, TAIL)
    runs = {}
    for solver in ("auto", "sorel", "lsvrg"):
        with warnings.catch_warnings():
            # A solver that stops short is shown by its curve.
            warnings.simplefilter("ignore")
            # With somebody watching, every step is checked, not only those that may be the last.
            runs[f'solver="{solver}"'] = solve(
                problem, solver, TOLERANCE, 400, max_seconds=3.0, callback=lambda record: False
            )
    return runs


def draw(comparisons: list[Comparison], runs: dict[str, Result], path: Path) -> None:
    """Save the held-out tails of three sets and the convergence as one PNG."""
    figure = import_extra("matplotlib.figure", "the picture needs", "plot").Figure(
        figsize=(11.0, 9.2), layout="constrained"
    )
    *axes, last = figure.subplots(2, 2).ravel()
    for ax, comparison in zip(axes, comparisons, strict=True):
        losses = {method: row.held_out_losses for method, row in comparison.rows.items()}
        tails = LossTailDisplay(losses, level=0.1, loss_name="loss (half the squared error)")
        # The table averages over the splits; the picture pools them, and gives no second number.
        tails.plot(ax, show_cvar=False)
        ax.set_ylabel("share of held-out rows with at least this loss")
        change = comparison.change("CVaR(0.1)", "tail")
        effect = f"changes the worst tenth by {_percent(change)}"
        if change <= -NOTABLE:
            effect = f"cuts the worst tenth by {-change:.0%}"
        ax.set_title(f"{comparison.name}:\nminimising CVaR(0.1) {effect}", fontsize=11)
    plot_convergence(runs, tol=TOLERANCE, ax=last)
    last.set_title(
        "Every fit proves how close it is to the optimum\n(CVaR(0.1), generated set)", fontsize=11
    )
    figure.savefig(path, dpi=120)


def run(out: Path, *, splits: int = 10, n: int = 2000) -> int:
    """Print the tables, save the picture, and return the exit code.

    Parameters
    ----------
    out : Path
        Folder of the picture; created if missing.
    splits : int, default=10
        Number of random splits.
    n : int, default=2000
        Size of the generated set.

    Returns
    -------
    int
        0 if every fit was certified, else 1.
    """
    yacht, diabetes = load_paper_table("yacht"), load_diabetes()
    X, y, minority = make_two_populations(n=n)
    sets = {
        "Yacht": (yacht, "resistance of {n} hulls, {d} measurements"),
        "Generated set": ((X, y), f"{{n}} rows, {minority.mean():.0%} of which follow another law"),
        "Diabetes (from scikit-learn)": (diabetes, "{n} people, {d} measurements"),
    }
    comparisons = []
    for name, (data, words) in sets.items():
        text = words.format(n=data[0].shape[0], d=data[0].shape[1])
        text += f"; {splits} split{'s' if splits > 1 else ''}, {TEST_SIZE:.0%} held out"
        comparisons.append(compare(name, text, *data, splits=splits))
    _show_progress("")
    print("Fit the mean, or fit the tail? Losses are half the squared error of the standardised")
    print("target, averaged over the splits; CVaR(0.1) is the mean of the worst tenth.\n")
    for comparison in comparisons:
        print(table(comparison), end="\n\n")
    for comparison in comparisons:
        print(verdict(comparison))

    code = 0
    if not all(comparison.certified for comparison in comparisons):
        print(f"error: some fits did not reach the certified gap {TOLERANCE:g}", file=sys.stderr)
        code = 1
    path = out / "demo.png"
    try:
        _show_progress("drawing")
        out.mkdir(parents=True, exist_ok=True)
        draw(comparisons, convergence(X, y), path)
    finally:
        _show_progress("")
    print(f"\nPicture: {path}")
    return code


def _problem(X: FloatArray, y: FloatArray, risk: Risk) -> Problem:
    return Problem(X, y, risk=risk, penalty=L2(1.0 / len(y)), fit_intercept=True)


def _percent(change: float) -> str:
    # Adding zero turns -0.0 into 0.0.
    return f"{round(100 * change, 1) + 0.0:+.1f}%"


def _show_progress(message: str) -> None:
    """A status line on a terminal, silence elsewhere."""
    if sys.stderr.isatty():
        # Return to the line's start and clear it.
        print(f"\r\x1b[K{message}", end="", file=sys.stderr, flush=True)
