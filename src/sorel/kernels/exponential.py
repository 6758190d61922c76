"""Exponentials without a branch or a call, so that the compiler takes several at once.

They are exact to some units in the last place. The C library's, one at a time, would be most of the
time of losses that need them.
"""

from __future__ import annotations

import math

from sorel._compiled import compiled

__all__ = ["LOG2_HIGH", "LOG2_LOW", "PER_LOG2", "exponentials", "near_zero"]

# log(2) in two parts, of which the first times a number below 2000 is exact; and 1 / log(2).
LOG2_HIGH, LOG2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
PER_LOG2 = 1.0 / math.log(2.0)

# Below this an exponential counts as 0.
_LEAST = -708.0

# Added to a number, this leaves the nearest whole one in the last bits of the sum. The bits of a
# power of 2: its exponent, and more of that for 1.
_ROUNDER = 1.5 * 2.0**52
_EXPONENT_AT, _EXPONENT_OF_ONE = 52, 1023


@compiled(inline=True)
def near_zero(r):
    """exp(r) for |r| <= log(2) / 2, by Taylor's series."""
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    return p * r + 1.0


@compiled(fastmath=False)
def exponentials(x, powers, bits):
    """x = exp(x) for x <= 0, in place; NaN for NaN.

    `powers` and `bits` are the same memory, at least as long as x, as numbers and as integers.
    """
    for i in range(x.shape[0]):
        a = _LEAST if x[i] < _LEAST else x[i]
        rounded = a * PER_LOG2 + _ROUNDER
        powers[i] = rounded
        k = rounded - _ROUNDER
        p = near_zero((a - k * LOG2_HIGH) - k * LOG2_LOW)
        x[i] = 0.0 if x[i] < _LEAST else p
    for i in range(x.shape[0]):
        bits[i] = (bits[i] + _EXPONENT_OF_ONE) << _EXPONENT_AT
    for i in range(x.shape[0]):
        x[i] *= powers[i]
