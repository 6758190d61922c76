"""What a search over risks found: gains and costs against the plain fit, with paired intervals.

A change is relative: T_c / T_p - 1, where T is a risk of the held-out losses, averaged over the
folds, of a candidate c and of the plain fit p. Its variance is the sum of squares of the influences
of the held-out rows on it, times 1 + rows held out / rows trained on, since folds share training
rows: the correction of Nadeau and Bengio (2003, section 3), applied to rows, of which there are
more than folds. Quantiles are those of Student's t with one degree of freedom less than the tail
has rows, at a level that all pairs of risk and l2 share (Bonferroni), since both are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from sorel._lib.frames import as_table
from sorel._lib.inputs import is_real
from sorel.estimators.baselines import PLAIN
from sorel.estimators.fit_warnings import MIN_ERROR_ROWS, tail_rows
from sorel.estimators.resampling import OrderedLosses
from sorel.problem.risks import Risk, spelled

FloatArray = NDArray[np.float64]

_CAPTION = (
    "Averages over the folds, and changes against the plain fit with 95% intervals that hold for "
    "all that was tried; within slack is the mean with one standard error."
)
# Probability with which all intervals of a report hold together.
_LEVEL = 0.95


class Fold(NamedTuple):
    """Held-out rows of a fold, their losses under every model, their weights, rows trained on."""

    rows: NDArray[np.intp]
    losses: FloatArray
    weight: FloatArray | None
    trained: int


class Comparison:
    """Held-out losses of models against those of one of them.

    Parameters
    ----------
    folds : sequence of Fold
        One for each fold.
    reference : int
        Row of the losses of the plain fit.
    """

    def __init__(self, folds: Sequence[Fold], reference: int) -> None:
        self._folds, self._reference = folds, reference
        self._bases: dict[Risk, tuple[float, FloatArray]] = {}
        self._rows, self._places = np.unique(
            np.concatenate([fold.rows for fold in folds]), return_inverse=True
        )

    def change(self, risk: Risk, model: int) -> tuple[float, float, float]:
        """A risk of a model, averaged over the folds, its relative change, and the error of that.

        The standard error is that over the held-out rows.
        """
        with np.errstate(all="ignore"):
            value, pull = self._influences(risk, model)
            if risk not in self._bases:
                self._bases[risk] = self._influences(risk, self._reference)
            base, base_pull = self._bases[risk]
            change = np.divide(value - base, abs(base))
            pull = (pull - value / base * base_pull) / abs(base)
            # A row that several folds hold out counts once.
            total = np.bincount(self._places, weights=pull)
            return value, float(change), float(np.sqrt(np.sum(total**2)))

    def interval(self, what: str, risk: Risk, model: int, tried: int) -> dict[str, float]:
        """A risk, its change and the ends of its interval, where as many models were tried."""
        value, change, error = self.change(risk, model)
        held_out = len(self._rows)
        trained = np.mean([fold.trained for fold in self._folds])
        freedom = max(held_out * risk.effective_share(held_out) - 1.0, 1.0)
        quantile = student.ppf(1.0 - 0.5 * (1.0 - _LEVEL) / max(tried, 1), freedom)
        margin = quantile * error * math.sqrt(1.0 + held_out / trained)
        if min(tail_rows(risk, len(fold.rows)) for fold in self._folds) < MIN_ERROR_ROWS:
            margin = math.nan
        return {
            what: value,
            f"{what}_change": change,
            f"{what}_low": float(change - margin),
            f"{what}_high": float(change + margin),
        }

    def _influences(self, risk: Risk, model: int) -> tuple[float, FloatArray]:
        """A risk averaged over the folds, and the influence of each held-out row on it."""
        values, pulls = [], []
        for fold in self._folds:
            losses = fold.losses[model]
            weight = np.ones(len(losses)) if fold.weight is None else fold.weight
            share = weight / weight.sum()
            (value,), (heights,) = OrderedLosses(losses).evaluate(risk, weight[None])
            values.append(value)
            pulls.append(share * (heights - share @ heights) / len(self._folds))
        return float(np.mean(values)), np.concatenate(pulls)


class SearchReport:
    """What each risk of a search gains and costs against the plain fit, on held-out rows.

    ``print(report)`` shows the table and the verdict.

    Attributes
    ----------
    tail : str
        The risk of the held-out losses that was to be made smaller.
    mean_slack : float or None
        By what share the mean held-out loss might exceed that of the plain fit.

    Examples
    --------
    >>> from sorel import SpectralRiskRegressorCV
    >>> from sorel.datasets import make_two_populations
    >>> X, y, _ = make_two_populations(n=2000)
    >>> search = SpectralRiskRegressorCV(tail="cvar:0.1", mean_slack=0.1, l2s=["auto"]).fit(X, y)
    >>> report = search.search_report_
    >>> report.verdict.startswith(f"{search.best_risk_.spec} (l2 auto) gains on the plain fit")
    True
    >>> list(report.table.index[[0, -2, -1]])
    ['plain fit', 'plain fit + constant', 'plain fit, recalibrated']
    """

    def __init__(
        self, tail: Risk, mean_slack: float | None, rows: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.tail, self.mean_slack = spelled(tail), mean_slack
        self._rows = [{"model": name, **row} for name, row in rows.items()]

    @property
    def table(self) -> Any:
        """The plain fit at its best l2, each risk at its best l2, and what is no candidate.

        Columns: `l2`; `mean` and `tail`, averages over the folds; `mean_change` and `tail_change`
        against the plain fit (-0.1 is a tenth less), with 95% intervals for all that was tried in
        `..._low` and `..._high`, NaN where a fold has fewer than two rows in the tail;
        `within_slack`; `chosen`. A pandas DataFrame where pandas is
        installed, else a dictionary of its columns.
        """
        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        return as_table(columns, index=columns.pop("model"), index_name="model")

    @property
    def verdict(self) -> str:
        """What was gained at what price, in one sentence.

        It speaks of a gain only where the interval of the tail's change lies below 0.
        """
        chosen = next(row for row in self._rows if row["chosen"])
        if chosen["model"] == PLAIN:
            if self.mean_slack is None:
                return "no model beats the plain one"
            slack = f"{100 * self.mean_slack:.4g}%"
            return f"no model beats the plain one within a mean slack of {slack}"
        name, tail = f"{chosen['model']} (l2 {chosen['l2']})", f"{self.tail} of the held-out losses"
        low, high = chosen["tail_low"], chosen["tail_high"]
        told = f"{chosen['tail_change']:+.1%} (95% interval {_ends(low, high)})"
        if high < 0.0:
            words = f"{name} gains on the plain fit: {told} in {tail}"
        elif low > 0.0:
            words = f"{name} loses to the plain fit: {told} in {tail}"
        else:
            words = f"{name} cannot be told from the plain fit: {told} in {tail}"
        ends = _ends(chosen["mean_low"], chosen["mean_high"])
        return f"{words}, and {chosen['mean_change']:+.1%} ({ends}) in their mean"

    def __str__(self) -> str:
        lines = [("model", "l2", "mean", "change", self.tail, "change", "within slack", "chosen")]
        for row in self._rows:
            cells = [row["model"], f"{row['l2']:.4g}" if is_real(row["l2"]) else row["l2"]]
            for what in ("mean", "tail"):
                change, low, high = (row[f"{what}_{part}"] for part in ("change", "low", "high"))
                cells += [f"{row[what]:.4g}", f"{change:+.1%} [{_ends(low, high, ', ')}]"]
            cells += [("no", "yes")[row["within_slack"]], ("", "yes")[row["chosen"]]]
            if row["model"] == PLAIN:
                cells[3] = cells[5] = ""
            lines.append(tuple(cells))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([*table, _CAPTION, self.verdict])

    def __repr__(self) -> str:
        return f"<SearchReport: {self.verdict}>"


def _ends(low: float, high: float, between: str = " to ") -> str:
    """The ends of an interval in words; a fold may have too few rows in its tail for one."""
    return "unknown" if math.isnan(low) else f"{low:+.1%}{between}{high:+.1%}"
