"""The intercepts that minimise lam . l for given coefficients, from sums over the samples.

An engine gives the derivatives at shifted margins. For one margin per sample the shift is the root
of a nondecreasing function: Newton's method inside a bracket. For K margins it is Newton's method
in K unknowns, of which adding one number to all changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel._lib.floats import EPS, TINY

if TYPE_CHECKING:
    from sorel.engines.base import Dual, Engine, Point

FloatArray = NDArray[np.float64]


# Steps of any of the searches below; each at least halves what is left.
_MAX_STEPS = 60

# The longest first step: where losses hardly bend, it may lead anywhere.
_FIRST_STEP = 1e3

# A minimum no further away than this share of 1 is bounded from the curvature: along t a softmax
# changes its curvature by no more than a factor of exp(2 |t|).
_NEAR_MINIMUM = 0.05


class InterceptStatistics(NamedTuple):
    """Derivatives of lam . l in the intercepts.

    Attributes
    ----------
    gradient, hessian : array of shape (K,), (K, K)
        First and second derivatives, for K margins per sample.
    rounding : float
        What the rounding errors of the gradient are relative to.
    present : array of bool, shape (K,)
        Which classes have samples with weight; all of one margin.
    """

    gradient: FloatArray
    hessian: FloatArray
    rounding: float
    present: NDArray[np.bool_]


Statistics = Callable[[Any], InterceptStatistics]


def best_shift(statistics: Statistics, n_outputs: int) -> Any:
    """The shift of all margins that minimises lam . l; None where there is none."""
    return _root(statistics) if n_outputs == 1 else _softmax_minimum(statistics)


def _root(statistics: Statistics) -> float | None:
    low, high, shift = -math.inf, math.inf, 0.0
    reach, last = 1.0, _FIRST_STEP
    best, least = 0.0, math.inf
    for _ in range(_MAX_STEPS):
        found = statistics(shift)
        first, second = float(found.gradient[0]), float(found.hessian[0, 0])
        if abs(first) <= 2.0 * EPS * found.rounding < math.inf:
            return shift
        if abs(first) < least:
            best, least = shift, abs(first)
        if first < 0:
            low = shift
        else:
            high = shift
        trial = shift - first / second if second > 0 else math.nan
        closed = high - low < math.inf
        # Newton's steps down an exponential have length 1 for long; those of rounding may go on.
        most = max(0.9 * last, math.sqrt(EPS) * (high - low) if closed else 0.0)
        if not low < trial < high or abs(trial - shift) > most:
            if closed:
                trial = 0.5 * (low + high)
            else:
                reach *= 4.0
                trial = low + reach if low > -math.inf else high - reach
        if trial == shift or (closed and high - low <= 2.0 * EPS * max(abs(low), abs(high))):
            return shift
        shift, last = trial, abs(trial - shift)
    # Losses that are linear for far around may have next to no derivative, and no root nearby.
    return best if high - low < math.inf else None


def _softmax_minimum(statistics: Statistics) -> FloatArray | None:
    found = statistics(0.0)
    shift = np.zeros(len(found.gradient))
    # A class without weight has its best intercept at minus infinity: put it where it adds nothing
    # to a softmax.
    absent, drop = ~found.present, -math.log(TINY)
    while found.gradient[absent].any() and drop < 1e300:
        shift[absent] = -drop
        found, drop = statistics(shift), 4.0 * drop
    for _ in range(_MAX_STEPS):
        gradient, hessian = found.gradient, found.hessian
        size = float(np.max(np.abs(gradient)))
        if size <= 4.0 * EPS * found.rounding:
            break
        # Adding one number to all intercepts changes nothing: pin that direction.
        pinned = hessian + np.trace(hessian) / len(shift) ** 2
        delta = np.zeros(len(shift))
        try:
            delta[~absent] = -np.linalg.solve(pinned[~absent][:, ~absent], gradient[~absent])
        except np.linalg.LinAlgError:
            break
        slope, step = float(gradient @ delta), 1.0
        for _ in range(_MAX_STEPS):
            trial = statistics(shift + step * delta)
            # Too long is a step at whose end the function rises more than half as fast as it fell.
            if float(trial.gradient @ delta) <= -0.5 * slope:
                break
            step *= 0.5
        else:
            break
        if float(np.max(np.abs(trial.gradient))) >= size <= 1e-12:
            break
        shift, found = shift + step * delta, trial
    return shift if float(np.max(np.abs(found.gradient))) <= math.sqrt(EPS) else None


def slack(engine: Engine, point: Point, dual: Dual, residual: float) -> float:
    """How far lam . l may still fall in the intercepts, whose derivative is below `residual`.

    Asked at a point of :meth:`Engine.best_intercept`, where the residual is rounding.
    """
    if residual == 0.0:
        return 0.0
    if engine.n_outputs > 1:
        return softmax_slack(engine.intercept_statistics(point, dual, 0.0).hessian, residual)
    return shift_slack(lambda shift: engine.intercept_statistics(point, dual, shift), residual)


def shift_slack(statistics: Statistics, residual: float) -> float:
    """The same for one margin: the minimum lies where the derivative has either sign for certain.

    That is tried at two shifts, first as far away as the curvature says.
    """
    found = statistics(0.0)
    curvature = float(found.hessian[0, 0])
    # The first try is as long as the margins' own rounding needs to show a change.
    reach = 4.0 * (residual + EPS * found.rounding) / curvature if curvature > 0.0 else EPS
    for _ in range(_MAX_STEPS):
        below, above = statistics(-reach).gradient[0], statistics(reach).gradient[0]
        if below <= -residual and above >= residual:
            return residual * reach
        reach *= 16.0
    return math.inf


def softmax_slack(hessian: FloatArray, residual: float) -> float:
    """The same for the intercepts of several classes, from the Hessian of lam . l in them."""
    # A class that is out of reach has neither slope nor curvature.
    present = np.diag(hessian) > 0.0
    if np.count_nonzero(present) < 2:
        # Either one class has all the weight, and log(1 / p) of it is left to gain with 1 - p the
        # residual, or samples are so far on the wrong side that their losses are linear.
        return 2.0 * residual if residual < 1e-12 else math.inf
    # The least curvature but for the direction in which all intercepts grow alike.
    curvature = float(np.linalg.eigvalsh(hessian[np.ix_(present, present)])[1])
    if not residual < _NEAR_MINIMUM * curvature:
        return math.inf
    return residual**2 / curvature


def spread(n_outputs: int, residual: float) -> float:
    """By how much slopes may still move in the intercepts of several classes, in all.

    sum_i lam_i |change of phi'_i|_1, for a derivative r below `residual`. Probabilities p of a
    sample make up its curvature diag(p) - p p^T, so that a move t of the intercepts changes its
    slopes by at most sum_kj p_k p_j |t_k - t_j|. All samples together are a network of
    conductances a_kj = sum_i lam_i p_ik p_ij: in it the currents r make potentials t with
    |t_k - t_j| <= R_kj |r|_1 / 2, and the resistances have sum_{k<j} a_kj R_kj = K - 1 (Foster
    1949). The sum is (K - 1) |r|_1 at most, however little curvature some intercepts have and
    however far they move.
    """
    return residual if n_outputs == 1 else (n_outputs - 1) * math.sqrt(n_outputs) * residual
