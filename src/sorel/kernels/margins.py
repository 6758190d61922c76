"""The proximal map of a spectral risk in the margins: pooling in the order of the losses.

A loss of one margin is often a nondecreasing psi of one number t: the size of a residual, or minus
the margin of a label. Items in ascending order of t keep that order in the proximal map, and items
that end with one t form a block, whose t is the proximal map of psi at the mean of the block.
"""

from __future__ import annotations

import math

from sorel._compiled import compiled
from sorel.kernels.losses import HUBER, LINEAR, LOGISTIC, SQUARED, SQUARED_HINGE

# The losses that have a psi here: t is |z - y|, -y z for a label y, or y - z.
OF_RESIDUALS, OF_LABELS = (SQUARED, HUBER), (LOGISTIC, SQUARED_HINGE)
CODES = (*OF_RESIDUALS, *OF_LABELS, LINEAR)
_UNKNOWN = "no proximal map is known under this code of a loss"

_MAX_STEPS = 100


@compiled(fastmath=False)
def scalar_prox(code, delta, mean, c):
    """argmin_t c psi(t) + (t - mean)^2 / 2; residual losses get a mean >= 0."""
    if code == SQUARED:
        return mean / (1.0 + c)
    if code == HUBER:
        t = mean / (1.0 + c)
        return t if t <= delta else mean - c * delta
    if code == LINEAR:
        return mean - c
    if code == LOGISTIC:
        # The root of c / (1 + exp(-t)) + t - mean, which lies in [mean - c, mean]: Newton steps,
        # and halves of the bracket where these leave it or do not shrink.
        low, high = mean - c, mean
        t, last = 0.5 * (low + high), high - low
        for _ in range(_MAX_STEPS):
            p = _sigmoid(t)
            value = c * p + t - mean
            if value > 0.0:
                high = t
            else:
                low = t
            new = t - value / (1.0 + c * p * (1.0 - p))
            if not low <= new <= high or abs(new - t) > 0.5 * last:
                new = 0.5 * (low + high)
            last = abs(new - t)
            if last <= 2e-16 * (abs(t) + abs(new)):
                break
            t = new
        return t
    if code == SQUARED_HINGE:
        return mean if mean <= -1.0 else (mean - 2.0 * c) / (1.0 + 2.0 * c)
    raise ValueError(_UNKNOWN)


@compiled(fastmath=False)
def _sigmoid(t):
    if t >= 0.0:
        return 1.0 / (1.0 + math.exp(-t))
    e = math.exp(t)
    return e / (1.0 + e)


@compiled(fastmath=False)
def scalar_slope(code, delta, t):
    """psi'(t)."""
    if code == SQUARED:
        return t
    if code == HUBER:
        return min(t, delta)
    if code == LINEAR:
        return 1.0
    if code == LOGISTIC:
        return _sigmoid(t)
    if code == SQUARED_HINGE:
        return 2.0 * max(0.0, 1.0 + t)
    raise ValueError(_UNKNOWN)


@compiled(fastmath=False)
def pool_losses(code, delta, rho, key, density, weight, first, work, out):
    """Minimise sum_i weight_i (density_i psi(t_i) + rho/2 (t_i - key_i)^2) over ascending t.

    `key` ascends, and so does `density`, which becomes that of the maximiser: the same sum over a
    block, spread in it as the keys are. `out` receives t; `first` and four rows are working memory.
    """
    means, masses, heavies, values = work[0], work[1], work[2], work[3]
    top = -1
    for i in range(key.shape[0]):
        start, mean, heavy, mass = i, key[i], weight[i], weight[i] * density[i]
        value = scalar_prox(code, delta, mean, mass / (heavy * rho))
        while top >= 0 and values[top] >= value:
            total = heavies[top] + heavy
            mean = means[top] + (mean - means[top]) * (heavy / total)
            heavy, mass, start = total, mass + masses[top], first[top]
            value = scalar_prox(code, delta, mean, mass / (heavy * rho))
            top -= 1
        top += 1
        first[top], means[top], masses[top], heavies[top], values[top] = (
            start, mean, mass, heavy, value
        )  # fmt: skip
    end = key.shape[0]
    for b in range(top, -1, -1):
        slope = scalar_slope(code, delta, values[b])
        for i in range(first[b], end):
            out[i] = values[b]
            density[i] = masses[b] / heavies[b]
            if slope > 0.0:
                density[i] += rho * (key[i] - means[b]) / slope
        end = first[b]
