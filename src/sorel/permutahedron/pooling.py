"""Pooling adjacent violators: the projection of a sorted vector onto the permutahedron.

The blocks of several items stand on a stack, and each item that violates the order is merged with
those before it, and perhaps with some that follow. All is kept relative to the first item of a
block, and sums carry their rounding errors; inlined into a loop that may reorder sums, :func:`pool`
takes plain ones.
"""

from __future__ import annotations

import math
from typing import Any

from sorel._compiled import compiled
from sorel.permutahedron.ordering import repair

# Items that are searched for violators at a time, and parts of them that may have none.
RUN, PART = 512, 16


def size_of_bounds(n: int) -> int:
    """Entries of the integer array that pooling n items works with."""
    return n + RUN


@compiled(fastmath=False, inline=True)
def pool(
    key: Any,
    mass: Any,
    weight: Any,
    bounds: Any,
    levels: Any,
    totals: Any,
    spills: Any,
    heavies: Any,
) -> int:
    """Pool adjacent violators of ``key - mass / weight``, relative to the first key of each block.

    Items that stay alone need nothing. A block of several holds D, the sum of
    ``weight (key - ref) - mass``, as the sum of two doubles in `totals` and `spills`, its weight in
    `heavies`, which equal weights leave alone, and their quotient in `levels`. Returns the number
    of such blocks; block b spans ``bounds[2 * b]:bounds[2 * b + 1]``. `bounds` has the size that
    :func:`size_of_bounds` says.
    """
    n = key.size
    marks = bounds[n:]
    top, stop = -1, 0
    for begin in range(1, n, RUN):
        # Neighbours that violate the order, found without a branch that nobody can foresee.
        count = min(RUN, n - begin)
        left, right = key[begin - 1 : begin - 1 + count], key[begin : begin + count]
        less, more = mass[begin - 1 : begin - 1 + count], mass[begin : begin + count]
        found = 0
        for first in range(0, count, PART):
            last = min(first + PART, count)
            if weight is None:
                # Most parts have none where eta is large, which is seen for many items at a time.
                violators = 0
                for r in range(first, last):
                    violators += more[r] - less[r] > right[r] - left[r]
                if violators == 0:
                    continue
            for r in range(first, last):
                own, other = more[r], less[r]
                if weight is not None:
                    own, other = own / weight[begin + r], other / weight[begin + r - 1]
                marks[found] = r
                found += own - other > right[r] - left[r]
        for mark in range(found):
            start = begin + marks[mark]
            # What joined a block, or was refused by it, is settled.
            if start <= stop:
                continue
            joins = True
            stop = start
            while joins:
                # A block of the next item alone, which takes in those before it.
                stop += 1
                heavy = stop - start if weight is None else weight[start]
                total, spill = -mass[start], 0.0
                level = total if weight is None else total / heavy
                reference = key[start]
                while start > 0:
                    pooled = top >= 0 and bounds[2 * top + 1] == start
                    old_start = start - 1
                    if pooled:
                        old_start = bounds[2 * top]
                    old_heavy, old_total, old_spill = 1.0, -mass[old_start], 0.0
                    if weight is not None:
                        old_heavy = weight[old_start]
                    old_level = old_total if weight is None else old_total / old_heavy
                    if pooled:
                        old_level = levels[top]
                    # Means are compared through the distance of the references: sums of large keys
                    # would lose the digits that decide.
                    step = reference - key[old_start]
                    if old_level - level <= step:
                        break
                    if pooled:
                        old_total, old_spill = totals[top], spills[top]
                        if weight is not None:
                            old_heavy = heavies[top]
                        top -= 1
                    # old_total + total + moved, with the rounding errors kept: a plain running sum
                    # over a large block would pool wrongly in its last digits.
                    moved = heavy * step
                    pair = old_total + total
                    part = pair - old_total
                    lost = (old_total - (pair - part)) + (total - part)
                    triple = pair + moved
                    part = triple - pair
                    lost += (pair - (triple - part)) + (moved - part)
                    lost += old_spill + spill
                    total = triple + lost
                    spill = lost - (total - triple)
                    start = old_start
                    heavy = stop - start if weight is None else old_heavy + heavy
                    level = total / heavy
                    reference = key[start]
                top += 1
                bounds[2 * top] = start
                bounds[2 * top + 1] = stop
                levels[top] = level
                totals[top] = total
                spills[top] = spill
                if weight is not None:
                    heavies[top] = heavy
                joins = False
                if stop < n:
                    new_level = -mass[stop] if weight is None else -mass[stop] / weight[stop]
                    joins = level - new_level > key[stop] - reference
                    start = stop
    return top + 1


@compiled(fastmath=False, inline=True)
def _write_pooled(
    key: Any, mass: Any, weight: Any, order: Any, count: int, bounds: Any, levels: Any,
    out: Any, block: Any,
) -> int:  # fmt: skip
    """Write q back in place and number the blocks; return their count."""
    for i in range(block.size):
        block[i] = -1
    # Those alone, and for now the others: it is faster than to ask.
    for i in range(order.size):
        out[order[i]] = mass[i] if weight is None else mass[i] / weight[i]
    for b in range(count):
        start, stop = bounds[2 * b], bounds[2 * b + 1]
        # Minus the quotient is q at the reference: nonnegative, like the distances from there.
        base = -levels[b]
        least = mass[start] if weight is None else 0.0
        most = mass[stop - 1] if weight is None else math.inf
        reference = key[start]
        for i in range(start, stop):
            item = order[i]
            out[item] = min(max((key[i] - reference) + base, least), most)
            block[item] = b
    return count


@compiled(fastmath=False)
def project_sorted(
    zeta: Any, mass: Any, order: Any, key: Any, moves: int, bounds: Any, levels: Any, spills: Any,
    out: Any, block: Any,
) -> int:  # fmt: skip
    """The whole projection for equal weights in one call; -1 where the order needs a fresh sort."""
    if not repair(zeta, order, key, moves * key.size):
        return -1
    # The vector that will hold q serves the pooling until then.
    count = pool(key, mass, None, bounds, levels, out, spills, spills)
    return _write_pooled(key, mass, None, order, count, bounds, levels, out, block)


@compiled(fastmath=False)
def project_weighted(
    key: Any, mass: Any, weight: Any, order: Any, bounds: Any, levels: Any, spills: Any,
    heavies: Any, out: Any, block: Any,
) -> int:  # fmt: skip
    """The projection of sorted keys with their weights and masses in the same order."""
    count = pool(key, mass, weight, bounds, levels, out, spills, heavies)
    return _write_pooled(key, mass, weight, order, count, bounds, levels, out, block)
