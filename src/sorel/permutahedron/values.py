"""The spectral risk of given losses, its worst weighting, and how far a weighting falls short."""

from __future__ import annotations

import math
from typing import Any

from sorel._compiled import compiled

# Items whose products are added up at a time: they stay in the cache.
_RUN = 1 << 15


def dot(a: Any, b: Any) -> float:
    """Inner product, added up in pairs, so that errors hardly grow with n."""
    if a.size <= _RUN:
        return float((a * b).sum())
    starts = range(0, a.size, _RUN)
    return math.fsum(float((a[i : i + _RUN] * b[i : i + _RUN]).sum()) for i in starts)


@compiled(fastmath=False)
def scatter(values: Any, order: Any, out: Any) -> None:
    """Put the value at each rank where the item of that rank is."""
    for i in range(order.size):
        out[order[i]] = values[i]


@compiled(fastmath=False)
def fill_levels(
    losses: Any, low: float, middle: float, high: float, bend: int, edge: float, out: Any
) -> None:
    """Two-level weights by comparison with the loss at the bend; ties with it by position."""
    n = losses.size
    rank = 0
    for i in range(n):
        rank += losses[i] < edge
    for i in range(n):
        if losses[i] < edge:
            out[i] = low
        elif losses[i] > edge:
            out[i] = high
        else:
            out[i] = low if rank < bend else middle if rank == bend else high
            rank += 1


@compiled
def sums_beside(losses: Any, edge: float) -> Any:
    """Sums and counts of the losses below and above an edge."""
    below, above = 0.0, 0.0
    n_below, n_above = 0, 0
    for i in range(losses.size):
        x = losses[i]
        below += x if x < edge else 0.0
        above += x if x > edge else 0.0
        n_below += x < edge
        n_above += x > edge
    return below, n_below, above, n_above


@compiled(fastmath=False)
def ordered_shortfall(key: Any, mass: Any, density: Any, weight: Any, order: Any) -> float:
    """sum_j max(0, sum_{i <= j} (w_i q_i - mass_i)) (l_(j+1) - l_(j)); inner sum compensated.

    What rounding has taken from the total weight is missing at the largest loss.
    """
    total, surplus, spill = 0.0, 0.0, 0.0
    last = order.size - 1
    for j in range(order.size):
        i = order[j]
        own = density[i] if weight is None else density[i] * weight[i]
        change = own - mass[j]
        grown = surplus + change
        piece = grown - surplus
        spill += (surplus - (grown - piece)) + (change - piece)
        surplus = grown
        if j < last:
            total += max(surplus + spill, 0.0) * (key[j + 1] - key[j])
    return total + max(-(surplus + spill) * key[last], 0.0)


@compiled
def level_shortfall(losses: Any, density: Any, low: float, high: float, edge: float) -> float:
    """The same for two levels: above the bend the high level is due, below it the low one."""
    total = 0.0
    for i in range(losses.size):
        distance = losses[i] - edge
        due = high if distance > 0.0 else low
        total += max((due - density[i]) * distance, 0.0)
    return total
