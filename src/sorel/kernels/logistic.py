"""The loops of :mod:`sorel.kernels.losses` for the logistic loss, in a form that is vectorised.

Calls of the C library's exponential and logarithm, one sample at a time, were most of the time of a
logistic fit with few columns. Here both are polynomials without a branch, exact to some units in
the last place, and so the compiler takes eight samples at once. Every function has the name and the
parameters of the loop it stands in for; `code` and `delta` are not used.
"""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled
from sorel.kernels.exponential import LOG2_HIGH, LOG2_LOW, PER_LOG2, near_zero
from sorel.kernels.losses import subtract_block_means

__all__ = [
    "augmented_curvature",
    "block_slopes",
    "directional_slope",
    "line_slope",
    "line_target",
    "losses_at",
    "move_margins",
    "shift_statistics",
    "slopes_at",
    "subtract_block_means",
    "weighted_slopes",
]

# Beyond this the exponential is 0.
_FAR = 750.0
_POWERS = 2.0 ** -np.arange(1100.0)

# Where the majorant's formula loses its digits, it is 1/4 to all of them that matter.
_NEAR = 1e-4


@compiled(fastmath=False)
def falling_exponential(a):
    """exp(-a) for a >= 0; NaN for NaN."""
    # NaN counts as far away where it would become an index, and stays NaN in the remainder.
    k = math.floor((a if a <= _FAR else _FAR) * PER_LOG2 + 0.5)
    r = (k * LOG2_HIGH - (_FAR if a > _FAR else a)) + k * LOG2_LOW
    return near_zero(r) * _POWERS[k]


@compiled(fastmath=False)
def log_one_plus(x):
    """log(1 + x) for 0 <= x <= 1: twice the inverse hyperbolic tangent of x / (2 + x) <= 1/3."""
    s = x / (2.0 + x)
    t = s * s
    p = 1.0 / 33.0
    p = p * t + 1.0 / 31.0
    p = p * t + 1.0 / 29.0
    p = p * t + 1.0 / 27.0
    p = p * t + 1.0 / 25.0
    p = p * t + 1.0 / 23.0
    p = p * t + 1.0 / 21.0
    p = p * t + 1.0 / 19.0
    p = p * t + 1.0 / 17.0
    p = p * t + 1.0 / 15.0
    p = p * t + 1.0 / 13.0
    p = p * t + 1.0 / 11.0
    p = p * t + 1.0 / 9.0
    p = p * t + 1.0 / 7.0
    p = p * t + 1.0 / 5.0
    p = p * t + 1.0 / 3.0
    return 2.0 * s + 2.0 * s * t * p


# Each of these is too long to be inlined by the compiler itself, and a call ends vectorisation.


@compiled(inline=True)
def _value(y, z):
    m = y * z
    below = 0.0 if m >= 0.0 else -m
    return below + log_one_plus(falling_exponential(abs(m)))


@compiled(inline=True)
def _slope(y, z):
    m = y * z
    e = falling_exponential(abs(m))
    return -y * (e if m >= 0.0 else 1.0) / (1.0 + e)


@compiled
def losses_at(code, delta, y, margins, losses):
    """Losses at given margins."""
    for i in range(margins.shape[0]):
        losses[i] = _value(y[i], margins[i])


@compiled
def slopes_at(code, delta, y, margins, slopes):
    """First derivatives at given margins."""
    for i in range(margins.shape[0]):
        slopes[i] = _slope(y[i], margins[i])


@compiled
def augmented_curvature(code, delta, y, margins, density, block, eta, caution, omega, weighted, h):
    """Diagonal weights of the generalised Hessian: omega (q phi'' + eta phi'^2 [in a block])."""
    n = margins.shape[0]
    uniform = omega[0]
    for i in range(n):
        a = abs(y[i] * margins[i])
        e = falling_exponential(a)
        scale = 1.0 / (1.0 + e)
        t = e * scale * scale
        # tanh(a / 2) / (2 a)
        above = 0.5 * (1.0 - e) * scale / a if a > _NEAR else 0.25
        h[i] = (t + caution * (above - t)) * density[i]
    if eta > 0.0:
        for i in range(n):
            slope = _slope(y[i], margins[i])
            h[i] += eta * slope * slope if block[i] >= 0 else 0.0
    for i in range(n):
        h[i] *= omega[i] if weighted else uniform


@compiled
def weighted_slopes(code, delta, y, margins, density, omega, weighted, c):
    """c = omega q phi': what X^T turns into the gradient of lam . l(w)."""
    uniform = omega[0]
    for i in range(density.shape[0]):
        weight = density[i] * (omega[i] if weighted else uniform)
        c[i] = weight * _slope(y[i], margins[i])


@compiled
def block_slopes(code, delta, y, margins, block, factor, sampled, omega, weighted, c):
    """c = omega phi' inside the blocks, times the sampling factors when rows were sampled."""
    uniform = omega[0]
    for i in range(margins.shape[0]):
        slope = _slope(y[i], margins[i]) * (omega[i] if weighted else uniform)
        c[i] = slope if block[i] >= 0 else 0.0
    if sampled:
        for i in range(margins.shape[0]):
            c[i] *= factor[i]


@compiled
def directional_slope(code, delta, y, margins, density, direction, omega, weighted):
    """sum_i omega_i q_i phi'_i direction_i."""
    uniform = omega[0]
    total = 0.0
    for i in range(density.shape[0]):
        weight = density[i] * (omega[i] if weighted else uniform)
        total += weight * _slope(y[i], margins[i]) * direction[i]
    return total


@compiled
def line_target(margins, direction, step, code, delta, y, density, eta, target):
    """target = q + eta l at the margins moved along a direction, which are not kept."""
    for i in range(margins.shape[0]):
        target[i] = density[i] + eta * _value(y[i], margins[i] + step * direction[i])


@compiled
def line_slope(margins, direction, step, code, delta, y, density, omega, weighted):
    """Derivative of lam . l along the direction, at the margins moved along it."""
    uniform = omega[0]
    total = 0.0
    for i in range(density.shape[0]):
        weight = density[i] * (omega[i] if weighted else uniform)
        total += weight * _slope(y[i], margins[i] + step * direction[i]) * direction[i]
    return total


@compiled
def move_margins(margins, direction, step, code, delta, y, new_margins, losses):
    """Margins moved along a direction, with the losses there."""
    for i in range(margins.shape[0]):
        z = margins[i] + step * direction[i]
        new_margins[i] = z
        losses[i] = _value(y[i], z)


@compiled
def shift_statistics(code, delta, y, margins, shift, density, omega, weighted):
    """Derivatives of sum_i omega_i q_i phi(y_i, z_i + shift) in the shift, and a rounding scale."""
    first = 0.0
    second = 0.0
    rounding = 0.0
    uniform = omega[0]
    for i in range(margins.shape[0]):
        weight = density[i] * (omega[i] if weighted else uniform)
        m = y[i] * (margins[i] + shift)
        e = falling_exponential(abs(m))
        scale = 1.0 / (1.0 + e)
        slope = weight * -y[i] * (e if m >= 0.0 else 1.0) * scale
        curvature = weight * e * scale * scale
        first += slope
        second += curvature
        rounding += abs(slope) + curvature * (abs(margins[i]) + abs(shift))
    return first, second, rounding
