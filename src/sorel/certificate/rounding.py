"""How far rounding may take a certificate from the truth.

With u the unit roundoff, a margin x_i . w is known up to

    e = a u sum_j m_j |w_j|,      m_j = max_i |x_ij|,

where `a` grows with the number of terms (Higham 2002, chapter 3). The margins z in a bound on the
optimum need not be those of w: convexity at z gives, for every x and c = X^T (lam phi'(z)),

    F(x) >= lam . l(z) - lam . (phi'(z) z) + c . x + g(x),

so that their errors cost at most e sum_i lam_i |phi'_i|. An error delta of c enters through g*,
which is 1/mu-smooth: the Fenchel-Young bracket f becomes at most

    (sqrt(f) + |delta| / sqrt(2 mu))^2,

or f plus what delta can gain in a bounded domain. A derivative r that is left in the intercept is
as good as errors m_j |r| of c: at the exact intercept all slopes have moved the same way, by r in
sum.

The constants cover the worst order of a short sum, and what was measured for long sums of terms
that are all alike, whose errors have one sign.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from sorel.engines import intercepts
from sorel.engines.base import Dual, Engine, FloatArray, Point, RoundingFacts
from sorel.problem.penalties import Penalty, Simplex
from sorel.problem.risks import Deviation

# The unit roundoff of doubles.
UNIT = 2.0**-53

# Roundings in a term, beside those of the sum that it enters.
_OPERATIONS = 8.0

# Relative error of an objective, of a margin or of a difference of sums.
ROUNDINGS = _OPERATIONS * UNIT

# What is far from every point of a bounded domain, in lengths of the point.
_FAR = 1e9

# Entries of X up to which a closer look at rounding may take products with it.
MAX_ENTRIES = 1_000_000

# What the weights of a projection may miss a sum of 1 by: more is no rounding.
_MOST_MASS_ERROR = 1e-6


class CertificateError(RuntimeError):
    """A certificate that contradicts itself: an engine has given a wrong risk or weighting."""


class Path:
    """The way that margins were moved since they were computed from X.

    Attributes
    ----------
    moves : int
        How often they were moved.
    reach : array
        The largest size of each parameter on the way.
    """

    __slots__ = ("moves", "reach")

    def __init__(self, w: FloatArray) -> None:
        self.moves, self.reach = 0, np.abs(w)

    def move(self, w: FloatArray) -> None:
        """Go on to w."""
        self.moves += 1
        np.maximum(self.reach, np.abs(w), out=self.reach)


class Rounding:
    """Bounds on the rounding errors in the certificates of one problem.

    Parameters
    ----------
    engine, penalty
        The parts of the problem.
    size : float
        Mean loss at zero margins: a guess at the size of margins for an engine that does not know
        the columns of X.
    target_error : float
        Error of the targets, from taking off an offset: as good as one of the margins.

    Attributes
    ----------
    product : float
        Relative error of a product over the coefficients, as of a penalty.
    """

    def __init__(
        self, engine: Engine, penalty: Penalty, size: float, target_error: float = 0.0
    ) -> None:
        self.engine, self.loss, self.penalty = engine, engine.spec.loss, penalty
        self._size, self._target_error = size, target_error
        offset = engine.spec.margin_offset
        self._largest_offset = 0.0 if offset is None else float(np.max(np.abs(offset)))
        self._columns = engine.column_scale()
        self._largest_column = self._size_of_columns = 0.0
        if self._columns is not None:
            self._largest_column = float(self._columns.max())
            self._size_of_columns = _norm(self._columns)
        loss = self.loss
        self._bounded = loss.lower_bound > -math.inf and loss.curvature_bound < math.inf
        n, d = engine.n_samples, engine.n_features
        self.product = UNIT * min(d + 3.0, _OPERATIONS + 2.0 * math.sqrt(d))
        self._sum = UNIT * (_OPERATIONS + n / 100.0)
        self._long_sum = UNIT * (_OPERATIONS + n / 4.0)

    def losses(
        self, point: Point, dual: Dual, expected: float, error: float
    ) -> tuple[float, float]:
        """Error of lam . l, and sum_i lam_i |phi'_i| or a bound on it, from that of the margins."""
        loss, facts = self.loss, self.engine.rounding(point, dual)
        if self._bounded:
            above = max(expected - loss.lower_bound, 0.0)
            size = above + abs(loss.lower_bound)
            # |phi'|^2 <= 2 L (phi - inf phi), and a mean is at most the root of the mean square.
            # The second term is what the slopes may change over the error of a margin.
            slopes = math.sqrt(2.0 * loss.curvature_bound * above) + loss.curvature_bound * error
            slopes = min(slopes, loss.lipschitz)
        else:
            size, slopes = facts.losses, facts.slopes + facts.curvatures * error
            slopes = min(slopes, loss.lipschitz)
        summed = self._sum + self._mass_error(facts)
        return error * slopes + summed * size + facts.weights, slopes

    def _mass_error(self, facts: RoundingFacts) -> float:
        error = abs(facts.mass - 1.0)
        if not error <= _MOST_MASS_ERROR:
            raise CertificateError(
                f"{type(self.engine).__name__} gave weights whose sum is {error:.3g} away from 1: "
                "its projection is wrong"
            )
        return error

    def risk(
        self, point: Point, dual: Dual, expected: float, shortfall: float, error: float
    ) -> float:
        """Error of the spectral risk, which is that of lam . l for the worst lam."""
        if self.loss.affine:
            # The worst weighting gives negative losses no more weight than the mean does.
            size = abs(expected + shortfall) + 2.0 * self.engine.sizes(point).absolute
            facts = self.engine.rounding(point, dual)
            total = self._sum + self._mass_error(facts)
            return error * self.loss.lipschitz + total * size + facts.weights
        if self._bounded:
            return self.losses(point, dual, expected + shortfall, error)[0]
        if shortfall > 0.0:
            dual = self.engine.worst_case(point)
        own = self.losses(point, dual, expected + shortfall, error)[0]
        # With the errors another weighting may be the worst one. R(l + e) <= R(l) + R(|e|), and no
        # weighting exceeds the mean by more than the density at the top of the order, or the
        # largest of all.
        facts = self.engine.rounding(point, self.engine.uniform())
        most = self._top_density * (facts.slopes + facts.curvatures * error)
        return own + error * min(most, facts.largest_slope + error * facts.largest_curvature)

    @cached_property
    def _top_density(self) -> float:
        """The largest density that a weighting may give to a sample."""
        spec, n = self.engine.spec, self.engine.n_samples
        omega = np.full(1, 1.0 / n) if spec.sample_weight is None else spec.sample_weight
        used = omega[omega > 0.0]
        return float(np.max(spec.risk.tail(used) / used))

    def margins(self, w: FloatArray, path: Path | None = None) -> float:
        """Error of margins at w that came there from X straight, or along a path."""
        beside = self._target_error
        if not self.penalty.separable:
            beside += self._beside(w) * self._largest_column
        if path is None or path.moves == 0:
            return self.product * self.margin_size(w) + beside
        # The directions are products with X as well, and no longer than the way in all.
        # Each move rounds a product and a sum.
        moved = 2.0 * self.product + 2.0 * UNIT * path.moves
        return moved * self.margin_size(path.reach) + beside

    def _beside(self, w: FloatArray) -> float:
        """How far rounding has put coefficients beside the domain, where the truth is asked for."""
        coef = w[: self.engine.n_features]
        return float(np.sum(np.abs(coef - self.penalty.project(coef))))

    def margin_size(self, w: FloatArray) -> float:
        """sum_j m_j |w_j| and the largest offset, or a norm of them for several outputs."""
        if self._columns is None:
            return math.sqrt(2.0 * self._size)
        d = self.engine.n_features
        sizes = self._columns @ np.abs(w[:d]) + self._largest_offset
        if self.engine.fit_intercept:
            sizes = sizes + np.abs(w[d])
        return float(sizes) if w.ndim == 1 else _norm(sizes)

    def intercept(
        self, point: Point, dual: Dual, derivative: Any, slopes: float
    ) -> tuple[float, float]:
        """What a derivative left in the intercepts costs.

        The value by which lam . l may still fall, and an error of the gradient in units of the
        columns of X.
        """
        residual = _norm(np.asarray(derivative)) + self._sum * slopes
        drop = intercepts.slack(self.engine, point, dual, residual)
        if self.engine.n_outputs > 1:
            # Several intercepts may move slopes to and fro: |H t| <= sqrt(L t.H t).
            most = residual + math.sqrt(2.0 * self.loss.curvature_bound * drop)
            residual = min(most, intercepts.spread(self.engine.n_outputs, residual))
        return drop, residual

    def penalty_value(self, value: float, w: FloatArray) -> float:
        """Error of g, and what it changes by where rounding has put w beside the domain."""
        error = self.product * abs(value)
        if not self.penalty.separable:
            inside = self.penalty.project(w[: self.engine.n_features])
            error += abs(value - self.penalty.value(inside))
        return error

    def affine_sums(self, dual: Dual) -> FloatArray | None:
        """sum_i |lam_i phi'_i x_ij| of an affine loss, or a bound on it; None for a large X."""
        engine = self.engine
        stored, spec, n = engine.stored(), engine.spec, engine.n_samples
        if stored is None or n * engine.n_features > MAX_ENTRIES:
            return None
        weights = engine.weights(dual)
        if isinstance(spec.risk, Deviation):
            omega = 1.0 / n if spec.sample_weight is None else spec.sample_weight
            weights = weights + abs(float(spec.risk.share)) * omega
        return self.loss.lipschitz * np.asarray(np.abs(stored[0]).T @ weights)

    def bracket(
        self,
        value: float,
        coef: FloatArray,
        gradient: FloatArray,
        slopes: float,
        residual: float,
        sums: FloatArray | None = None,
    ) -> float:
        """Error of the Fenchel-Young bracket at coefficients and the gradient of lam . l in them.

        `slopes` is sum_i lam_i |phi'_i|. `residual` is an error of the gradient in units of the
        columns of X, on top of its rounding. `sums` is sum_i |lam_i phi'_i x_ij| where that is
        known, instead of a bound from the slopes and the largest |x_ij|.
        """
        columns, l2 = self._columns, self.penalty.l2
        if columns is None:
            # The columns are not known: let the gradient speak for them.
            largest, slopes = _norm(gradient), 1.0
        else:
            largest = self._size_of_columns
        own = ROUNDINGS * l2 * _norm(coef)
        total = math.inf
        if l2 > 0.0:
            summed = slopes * largest if sums is None else _norm(sums)
            error = self._sum * summed + residual * largest + own
            spread = error / math.sqrt(2.0 * l2)
            total = spread * (2.0 * math.sqrt(value) + spread)
        if not self.penalty.quadratic:
            sizes = np.abs(gradient) if columns is None else columns
            terms = slopes * sizes if sums is None else sums
            delta = self._long_sum * terms + residual * sizes + own
            total = min(total, self._gain(delta, coef, gradient))
        if not self.penalty.separable:
            # Rounding may have put the coefficients beside the domain, where g is taken as smooth.
            total += self._beside(coef) * (slopes * largest + l2 * _norm(coef))
        return total

    def _gain(self, delta: FloatArray, coef: FloatArray, gradient: FloatArray) -> float:
        """The most that delta . (x - coef) can be in the domain, for any signs in delta."""
        if coef.ndim > delta.ndim:
            delta = np.repeat(delta[:, None], coef.shape[1], axis=1)
        if isinstance(self.penalty, Simplex):
            return float(np.sum(delta.max(axis=0)) + np.vdot(delta, np.abs(coef)))
        limits = self.penalty.bounds(len(coef))
        if limits is None and self.penalty.compact:
            # A domain of the user's own: as if it reached no more than twice as far as it does
            # down the gradient, which is where the minimum of the linear model lies, or along the
            # error, where the gradient is all but zero.
            ways = [-gradient, delta, -delta]
            lengths = [_FAR * (1.0 + _norm(coef)) / (_norm(way) or 1.0) for way in ways]
            ends = [self.penalty.project(t * way) for t, way in zip(lengths, ways, strict=True)]
            return 2.0 * _norm(delta) * (max(map(_norm, ends)) + _norm(coef))
        if limits is None:
            return math.inf
        lower, upper = (limit if coef.ndim == 1 else limit[:, None] for limit in limits)
        reach = np.maximum(coef - lower, upper - coef)
        return float(np.vdot(delta, reach)) if np.all(np.isfinite(reach)) else math.inf


def negative_gap(engine: Engine, gap: float, rounding: float) -> str:
    """What to say of a gap that no arithmetic explains."""
    return (
        f"{type(engine).__name__} gave a gap of {gap:.3g}, below zero by more than its rounding "
        f"errors, {rounding:.1g}: its risk, its weighting or its projection is wrong"
    )


def _norm(x: FloatArray) -> float:
    return math.sqrt(float(np.vdot(x, x)))
