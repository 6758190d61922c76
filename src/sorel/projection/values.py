"""The spectral risk of given losses, its worst weighting, and how far a weighting falls short."""

from __future__ import annotations

import math
from typing import Any

from sorel._core import (
    fill_levels,
    level_shortfall,
    ordered_shortfall,
    scatter,
    sums_beside,
)

__all__ = [
    "dot",
    "fill_levels",
    "level_shortfall",
    "ordered_shortfall",
    "scatter",
    "sums_beside",
]

# Items whose products are added up at a time: they stay in the cache.
_RUN = 1 << 15


def dot(a: Any, b: Any) -> float:
    """Inner product, added up in pairs, so that errors hardly grow with n."""
    if a.size <= _RUN:
        return float((a * b).sum())
    starts = range(0, a.size, _RUN)
    return math.fsum(float((a[i : i + _RUN] * b[i : i + _RUN]).sum()) for i in starts)
