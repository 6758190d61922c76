"""Where a line search looks next, from the derivatives that it has seen.

A convex function falls towards its minimum along a line and rises beyond it. So two lengths bracket
the minimum, and a secant through their derivatives says where in between to look.
"""

from __future__ import annotations

import math

__all__ = ["MAX_TRIALS", "next_length"]

# Trials of a line search, and how near to an end of its bracket a trial may lie.
MAX_TRIALS = 15
_SAFEGUARD = 0.03

# How much longer a step may become at a time, at least and at most.
_LEAST_STRETCH, _MOST_STRETCH = 2.0, 10.0


def next_length(
    t: float,
    slope: float,
    low: float,
    slope_low: float,
    high: float,
    slope_high: float,
    limit: float,
) -> tuple[float, float, float, float, float]:
    """The length to try after t, and the bracket with its derivatives, given the derivative at t.

    Where the function still falls at the far end of the bracket the step becomes longer, up to a
    limit; elsewhere the trial takes the place of the end on its side of the minimum.

    Examples
    --------
    >>> from sorel.line_search import next_length
    >>> next_length(1.0, 1.0, 0.0, -1.0, 1.0, float("inf"), 4.0)[0]
    0.5
    """
    if slope < 0.0 and t == high:
        stretch = slope_low / (slope_low - slope) if slope_low < slope else math.inf
        longer = min(min(max(stretch, _LEAST_STRETCH), _MOST_STRETCH) * t, limit)
        return longer, t, slope, longer, slope_high
    if slope <= 0.0:
        low, slope_low = t, slope
    else:
        high, slope_high = t, slope
    secant = slope_low / (slope_low - slope_high) if slope_high < math.inf else 0.0
    share = min(max(secant, _SAFEGUARD), 1.0 - _SAFEGUARD)
    return low + share * (high - low), low, slope_low, high, slope_high
