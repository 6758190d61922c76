"""Bootstrap of spectral risks: standard errors and studentised resamples.

A risk is a function of the distribution of losses, R(F) = int Q(u) dS(u). Its influence function is
H(l) - mean of H, with H(l) = int^l S'(F(t)) dt; for CVaR(alpha), H is the excess over the quantile
divided by alpha. The variance of that over the rows gives the standard error, of the sample and of
every resample. Rows are drawn with replacement, and bring their losses under all models with them.
Bootstrap-t intervals: Efron and Tibshirani (1993), chapter 12; symmetric ones: Hall (1988).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.estimators.fit_warnings import MIN_ERROR_ROWS, tail_rows
from sorel.problem.risks import Risk

FloatArray = NDArray[np.float64]

# Entries of resamples that are handled at once: half a megabyte for each array, as caches hold.
_ENTRIES = 1 << 16


class Resamples(NamedTuple):
    """An estimate with its standard error, and the same of each resample."""

    estimate: float
    error: float
    estimates: FloatArray
    errors: FloatArray

    def interval(self, level: float) -> tuple[float, float]:
        """The symmetric studentised interval; NaN where there is no standard error."""
        if math.isnan(self.error):
            return math.nan, math.nan
        if self.error == 0.0:
            return self.estimate, self.estimate
        half = float(np.quantile(self._deviations(), level, method="higher")) * self.error
        return self.estimate - half, self.estimate + half

    def p_value(self) -> float:
        """How often a resample is as far from the estimate as that is from 0, in its own errors."""
        if math.isnan(self.error):
            return math.nan
        if self.error == 0.0:
            return 1.0 if self.estimate == 0.0 else 1.0 / (1 + len(self.estimates))
        far = self._deviations() >= abs(self.estimate) / self.error
        return float((1 + far.sum()) / (1 + len(far)))

    def _deviations(self) -> FloatArray:
        """Distances from the estimate in standard errors of the resample."""
        away = np.abs(self.estimates - self.estimate)
        far = np.where(away > 0.0, math.inf, 0.0)
        return np.divide(away, self.errors, out=far, where=self.errors > 0.0)


class OrderedLosses:
    """Losses of one model in ascending order."""

    def __init__(self, losses: FloatArray) -> None:
        self.order = np.argsort(losses, kind="stable")
        self.place = np.argsort(self.order, kind="stable")
        self.values = losses[self.order]

    def evaluate(self, risk: Risk, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The risk under each row of weights, and H of every loss, in the order of the samples."""
        n = weights.shape[1]
        mass = weights[:, self.order]
        # Weight of a loss and all above it, from the smallest on, and 0 beyond the largest.
        reach = np.zeros((len(mass), n + 1))
        np.cumsum(mass[:, ::-1], axis=1, out=reach[:, n - 1 :: -1])
        reach /= reach[:, :1].copy()
        tail = risk.tail(reach)
        estimates = (tail[:, :-1] - tail[:, 1:]) @ self.values
        # The slope of S between two losses, over the weight of one row.
        between, half = reach[:, 1:-1], 0.5 / n
        high, low = np.minimum(between + half, 1.0), np.maximum(between - half, 0.0)
        slope = (risk.tail(high) - risk.tail(low)) / (high - low)
        H = np.zeros_like(mass)
        np.cumsum(slope * np.diff(self.values), axis=1, out=H[:, 1:])
        return estimates, H[:, self.place]


def resample(
    risk: Risk,
    losses: FloatArray,
    signs: FloatArray,
    sample_weight: FloatArray | None,
    n_resamples: int,
    rng: np.random.Generator,
) -> Resamples:
    """Bootstrap sum_j signs_j risk(losses_j).

    Parameters
    ----------
    risk : Risk
        The risk.
    losses : ndarray of shape (m, n)
        Losses of m models on the same rows, finite.
    signs : ndarray of shape (m,)
        Factors of the risks.
    sample_weight : ndarray of shape (n,) or None
        Weights that rows bring into a resample.
    n_resamples : int
        Number of resamples.
    rng : Generator
        Draws the rows.

    Returns
    -------
    Resamples
        Estimate and standard error of the rows, and of each resample.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import Mean
    >>> from sorel.estimators.resampling import resample
    >>> rng = np.random.default_rng(0)
    >>> found = resample(Mean(), np.arange(10.0)[None], np.ones(1), None, 200, rng)
    >>> found.estimate, round(found.error, 4), found.estimates.shape
    (4.5, 0.9083, (200,))
    """
    ordered = [OrderedLosses(part) for part in losses]
    n = losses.shape[1]
    own = np.ones(n) if sample_weight is None else sample_weight

    def evaluate(counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        found = [part.evaluate(risk, counts * own) for part in ordered]
        estimates = sum(sign * part[0] for sign, part in zip(signs, found, strict=True))
        influence = sum(sign * part[1] for sign, part in zip(signs, found, strict=True))
        weights = counts * own
        total = weights.sum(axis=1, keepdims=True)
        influence = influence - np.sum(weights * influence, axis=1, keepdims=True) / total
        # Each of the draws of a row counts for itself.
        variance = np.sum(counts * (own * influence) ** 2, axis=1) / total[:, 0] ** 2
        return estimates, np.sqrt(variance)

    estimate, error = evaluate(np.ones((1, n)))
    if tail_rows(risk, n) < MIN_ERROR_ROWS:
        return Resamples(float(estimate[0]), math.nan, np.empty(0), np.empty(0))
    estimates, errors = np.empty((2, n_resamples))
    step = max(1, _ENTRIES // n)
    for start in range(0, n_resamples, step):
        count = min(step, n_resamples - start)
        drawn = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)
        part = slice(start, start + count)
        estimates[part], errors[part] = evaluate(counts.astype(np.float64))
    return Resamples(float(estimate[0]), float(error[0]), estimates, errors)
