"""Warnings of a fit that did what it was told: too few rows in the tail, a shifted mean.

A tail risk learns from the rows of the tail alone, n times the effective share of the risk. And it
moves the mean prediction wherever losses are larger on one side, which no certificate tells.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from sorel._lib.warnings import warn
from sorel.problem.losses import Huber, Loss, Squared
from sorel.problem.risks import Risk, spelled

FloatArray = NDArray[np.float64]

# Rows of a tail below which neither fits nor intervals are worth much.
MIN_TAIL_ROWS = 10
# Rows of a tail below which its risk has no standard error: there is nothing that varies.
MIN_ERROR_ROWS = 2
# Mean residual, as a share of the standard deviation of y, or of its mean under a log link. Of 14
# real sets (benchmarks.real_sets) none has more at CVaR(0.5), and 3 have at CVaR(0.1).
_MEAN_RESIDUAL = 0.1
# Mean probability minus share of a class. On 10 real sets, log losses of fits beyond it are 10 % or
# more above those of the plain fit; the default ESRM(1) stays within it, at 5 % or less.
_MEAN_PROBABILITY = 0.05


class TailSizeWarning(UserWarning):
    """The tail holds fewer rows than the model has parameters, or fewer than ten."""


class MeanShiftWarning(UserWarning):
    """The mean prediction is far from the mean of the targets."""


def tail_rows(risk: Risk, n: int) -> float:
    """Rows that carry the risk of n losses.

    Examples
    --------
    >>> from sorel import CVaR
    >>> from sorel.estimators.fit_warnings import tail_rows
    >>> tail_rows(CVaR(0.1), 200)
    20.0
    """
    return round(n * risk.effective_share(n), 6)


def warn_of_small_tail(risk: Risk, n: int, parameters: int) -> None:
    """Warn where a model has more parameters than its tail has rows, or that has hardly any."""
    rows = tail_rows(risk, n)
    if rows >= max(parameters, MIN_TAIL_ROWS):
        return
    few = f"the {parameters} parameters of the model" if rows < parameters else f"{MIN_TAIL_ROWS}"
    warn(
        f"the tail of {spelled(risk)} holds {rows:.3g} of {n} rows, fewer than {few}: "
        "what the fit does there may be chance; use a milder risk, a larger l2, or more rows",
        TailSizeWarning,
    )


def warn_of_shifted_numbers(
    risk: Risk, loss: Loss, scores: FloatArray, y: FloatArray, weight: FloatArray | None
) -> None:
    """Warn where predicted numbers are far from the targets on average."""
    if loss.link == "identity" and type(loss) not in (Squared, Huber):
        return  # a loss of one's own may mean to predict something else than the mean
    shift = float(np.average(loss.predict(scores) - y, weights=weight))
    mean = float(np.average(y, weights=weight))
    if loss.link == "log":
        unit, what, remedy = mean, "mean", ""
    else:
        unit = float(np.sqrt(np.average((y - mean) ** 2, weights=weight)))
        what, remedy = "standard deviation", "fit_intercept='mean', "
        if unit <= math.sqrt(np.finfo(np.float64).eps) * abs(mean):
            return  # the same target everywhere
    if abs(shift) > _MEAN_RESIDUAL * unit:
        side = "above" if shift > 0.0 else "below"
        warn(
            f"predictions are {abs(shift):.3g} {side} the targets on average, "
            f"{abs(shift) / unit:.0%} of their {what}: {spelled(risk)} moves them to the "
            f"side of the larger errors; use {remedy}a milder risk, or a mixture of mean and tail",
            MeanShiftWarning,
        )


def warn_of_shifted_probabilities(
    risk: Risk, loss: Loss, scores: FloatArray, codes: Any, labels: Any, weight: FloatArray | None
) -> None:
    """Warn where the mean probability of a class is far from its share."""
    if loss.link != "logit":
        return
    margins = scores if scores.shape[1] > 1 else np.hstack([np.zeros_like(scores), scores])
    # Codes of two classes may be -1 and 1.
    own = np.maximum(codes, 0)[:, None] == np.arange(len(labels))
    mean = np.average(softmax(margins, axis=1), axis=0, weights=weight)
    share = np.average(own, axis=0, weights=weight)
    # Of two classes the second is the one that is spoken of.
    off = np.abs(mean - share)
    most = 1 if len(labels) == 2 else int(np.argmax(off))
    if off[most] > _MEAN_PROBABILITY:
        warn(
            f"the mean predicted probability of {labels[most]!r} is {mean[most]:.2f}, and its "
            f"share of the rows {share[most]:.2f}: {spelled(risk)} serves the worst rows "
            "at the expense of all probabilities; use a milder risk, "
            "SpectralRiskClassifierCV(mean_slack=0.03), or CalibratedClassifierCV of scikit-learn",
            MeanShiftWarning,
        )
