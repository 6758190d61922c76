"""Pooling adjacent violators: the projection of a sorted vector onto the permutahedron.

The blocks of the regression stand on a stack, and each new item is merged with the blocks that it
violates. All is kept relative to the first item of a block, and sums carry their rounding errors;
inlined into a loop that may reorder sums, :func:`pool` takes plain ones.
"""

from __future__ import annotations

import math
from typing import Any

from sorel._compiled import compiled
from sorel.permutahedron.ordering import repair


@compiled(fastmath=False, inline=True)
def pool(
    key: Any,
    mass: Any,
    weight: Any,
    first: Any,
    levels: Any,
    totals: Any,
    spills: Any,
    heavies: Any,
) -> int:
    """Pool adjacent violators of ``key - mass / weight``, relative to the first key of each block.

    A block holds D, the sum of ``weight (key - ref) - mass``, as the sum of two doubles in `totals`
    and `spills`, its weight in `heavies`, which equal weights leave alone, and their quotient in
    `levels`; one of a single item holds the quotient alone. Returns the number of blocks; block b
    spans ``first[b]:first[b + 1]``.
    """
    n = key.size
    top = -1
    start, level = 0, 0.0
    for i in range(n):
        new_level = -mass[i] if weight is None else -mass[i] / weight[i]
        # Most items stay alone, and need no more than a level.
        if top < 0 or level - new_level <= key[i] - key[start]:
            top += 1
            first[top] = i
            levels[top] = new_level
            start, level = i, new_level
            continue
        new_start = i
        new_heavy = 1.0 if weight is None else weight[i]
        new_total = -mass[i]
        new_spill = 0.0
        reference = key[i]
        while top >= 0:
            # Means are compared through the distance of the references: sums of large keys would
            # lose the digits that decide.
            step = reference - key[start]
            if level - new_level <= step:
                break
            heavy, total, spill = 1.0, -mass[start], 0.0
            if new_start - start > 1:
                total, spill = totals[top], spills[top]
            if weight is not None:
                heavy = heavies[top] if new_start - start > 1 else weight[start]
            # total + new_total + moved, with the rounding errors kept: a plain running sum over a
            # large block would pool wrongly in its last digits.
            moved = new_heavy * step
            pair = total + new_total
            part = pair - total
            lost = (total - (pair - part)) + (new_total - part)
            triple = pair + moved
            part = triple - pair
            lost += (pair - (triple - part)) + (moved - part)
            lost += spill + new_spill
            new_total = triple + lost
            new_spill = lost - (new_total - triple)
            new_heavy = i + 1.0 - start if weight is None else heavy + new_heavy
            new_start = start
            new_level = new_total / new_heavy
            reference = key[start]
            top -= 1
            if top >= 0:
                start, level = first[top], levels[top]
        top += 1
        first[top] = new_start
        levels[top] = new_level
        totals[top] = new_total
        spills[top] = new_spill
        if weight is not None:
            heavies[top] = new_heavy
        start, level = new_start, new_level
    first[top + 1] = n
    return top + 1


@compiled(fastmath=False, inline=True)
def _write_pooled(
    key: Any, mass: Any, weight: Any, order: Any, count: int, first: Any, levels: Any,
    out: Any, block: Any,
) -> int:  # fmt: skip
    """Write q back in place, number the blocks of two items or more, and return their count."""
    pooled = 0
    for i in range(block.size):
        block[i] = -1
    for b in range(count):
        start, stop = first[b], first[b + 1]
        if stop == start + 1:
            out[order[start]] = mass[start] if weight is None else mass[start] / weight[start]
            continue
        # Minus the quotient is q at the reference: nonnegative, like the distances from there.
        base = -levels[b]
        least = mass[start] if weight is None else 0.0
        most = mass[stop - 1] if weight is None else math.inf
        reference = key[start]
        for i in range(start, stop):
            item = order[i]
            out[item] = min(max((key[i] - reference) + base, least), most)
            block[item] = pooled
        pooled += 1
    return pooled


@compiled(fastmath=False)
def project_sorted(
    zeta: Any, mass: Any, order: Any, key: Any, moves: int, first: Any, levels: Any, spills: Any,
    out: Any, block: Any,
) -> int:  # fmt: skip
    """The whole projection for equal weights in one call; -1 where the order needs a fresh sort."""
    if not repair(zeta, order, key, moves * key.size):
        return -1
    # The vector that will hold q serves the pooling until then.
    count = pool(key, mass, None, first, levels, out, spills, spills)
    return _write_pooled(key, mass, None, order, count, first, levels, out, block)


@compiled(fastmath=False)
def project_weighted(
    key: Any, mass: Any, weight: Any, order: Any, first: Any, levels: Any, spills: Any,
    heavies: Any, out: Any, block: Any,
) -> int:  # fmt: skip
    """The projection of sorted keys with their weights and masses in the same order."""
    count = pool(key, mass, weight, first, levels, out, spills, heavies)
    return _write_pooled(key, mass, weight, order, count, first, levels, out, block)
