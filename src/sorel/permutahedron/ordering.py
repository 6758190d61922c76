"""The ascending order of a slowly changing vector: kept, repaired, and now and then sorted anew.

A repair by insertion is linear where little has moved. A fresh sort is a radix sort on the leading
bits, in two rounds for lists of some thousands and three for longer ones, which leaves only near
ties to the repair.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from sorel._compiled import compiled
from sorel._pool import Pool
from sorel._threads import Team, by_ranges
from sorel.risks import FloatArray

# Moves per item that repairing an order may take before a fresh sort is cheaper. For the last order
# of a list that the radix sort takes that is sooner; what a sort leaves to repair is all nearby.
MOVES_PER_ITEM, _MOVES_PER_ITEM_OF_MANY = 8, 1
# The share of these moves that is there from the start.
_EARLY = 0.1
# From this size on one order serves both the losses and the vectors to be projected.
ONE_ORDER_FROM = 100_000
# Below, NumPy's sort costs microseconds more than the radix sort, and nothing to compile.
_RADIX_FROM = 1500
# Up to this size items and keys of four bytes each stay in the cache while they are sorted.
_SHORT = 1 << 16
# Bits and buckets of one pass of the radix sort, and the values from which it learns the middle.
_DIGIT = 11
_BUCKETS = 1 << _DIGIT
_LARGEST_KEY = (1 << 2 * _DIGIT) - 1
_MIDDLE_SAMPLE = 31
# The part of the distance from the least value to the mean below which keys are even.
_EVEN = 0.125


def index_type(n: int) -> type[np.integer[Any]]:
    """Four bytes an item where they suffice: half the traffic of a gather."""
    return np.int32 if n < 2**31 else np.int64


def is_short(n: int) -> bool:
    """Whether a list is for the sort in two rounds."""
    return _RADIX_FROM <= n < _SHORT


def moves_per_item(n: int) -> int:
    """Moves per item that repairing the last order may take."""
    return MOVES_PER_ITEM if n < _RADIX_FROM else _MOVES_PER_ITEM_OF_MANY


def borrow(pool: Pool, n: int, count: int) -> tuple[FloatArray, ...]:
    """Vectors of length n from the pool."""
    return tuple(pool.take((n,)) for _ in range(count))


class Order:
    """The ascending order of a slowly changing vector, ties by position."""

    def __init__(self, n: int, pool: Pool) -> None:
        self.order = np.arange(n, dtype=index_type(n))
        self.key = np.empty(n)
        self.known = False
        self.pool = pool

    def sort(self, values: FloatArray, attempt: int, team: Team | None) -> None:
        self.known = True
        # The fast sorts leave near ties in an arbitrary order. The stable one settles what
        # repairing cannot, and makes the order, hence every result, independent of the history.
        if attempt == 0 and _RADIX_FROM <= values.size < 2**32:
            short = team is None and is_short(values.size)
            if short and sort_short(values, room_to_sort(values.size), self.order):
                return
            work = borrow(self.pool, values.size, 2)
            radix_sort(values, work, self.order, team)
            self.pool.give(*work)
        else:
            self.order[:] = np.argsort(values, kind=None if attempt == 0 else "stable")

    def update(
        self, values: FloatArray, team: Team | None = None, hint: Order | None = None
    ) -> None:
        """Sort again, from the last order or that of a related vector where one is near."""
        budget = moves_per_item(self.key.size) * self.key.size
        if self.known and repair(values, self.order, self.key, budget):
            return
        if hint is not None and hint is not self and hint.known:
            self.order[:] = hint.order
            self.known = True
            if repair(values, self.order, self.key, budget):
                return
        self.sort(values, 0, team)
        budget = MOVES_PER_ITEM * self.key.size
        attempt = 1
        while not repair(values, self.order, self.key, budget):
            self.sort(values, attempt, team)
            attempt += 1


@compiled(fastmath=False, inline=True)
def sink(key: Any, order: Any, rank: int, value: float, item: int, position: Any, also: Any) -> int:
    """Insert an item among the sorted ones before `rank`, ties by number; return where it went.

    Those that make room take their entries of `also` with them, and `position` notes their ranks;
    either may be None. The entry at `rank` itself is overwritten.
    """
    while rank > 0 and (
        key[rank - 1] > value or (key[rank - 1] == value and order[rank - 1] > item)
    ):
        key[rank] = key[rank - 1]
        order[rank] = order[rank - 1]
        if also is not None:
            also[rank] = also[rank - 1]
        if position is not None:
            position[order[rank]] = rank
        rank -= 1
    key[rank] = value
    order[rank] = item
    if position is not None:
        position[item] = rank
    return rank


@compiled(fastmath=False)
def repair(values: Any, order: Any, key: Any, budget: int) -> bool:
    """Sort by insertion from the given order, ties by position; False once the budget is spent.

    Part of the budget is there from the start, the rest comes with the items: an order that is far
    off is seen to be so after a few of them.
    """
    n = order.size
    spent, early, rate = 0, _EARLY * budget, (1.0 - _EARLY) * budget / max(n, 1)
    last = -np.inf
    last_item = -1
    for i in range(n):
        item = order[i]
        value = values[item]
        if last < value or (last == value and last_item < item):
            key[i] = value
            order[i] = item
            last, last_item = value, item
            continue
        spent += 1 + i - sink(key, order, i, value, item, None, None)
        last, last_item = key[i], order[i]
        if spent > early + rate * i:
            # The entries stay a permutation, so the next call starts from something valid.
            return False
    return True


def room_to_sort(n: int) -> tuple[Any, ...]:
    """What :func:`sort_short` works with: one piece of memory in two guises, and two others."""
    distance, numbers = np.empty(n), np.empty((2, n), np.uint32)
    return distance, distance.view(np.int64), numbers, np.empty((2, _BUCKETS), np.uint32)


def radix_sort(
    values: FloatArray, work: tuple[FloatArray, ...], order: Any, team: Team | None
) -> None:
    """Order by the leading 32 bits of the distance from a middle value: near ties stay unsorted.

    Three passes of counting sort on 11 bits each bring the order within a few exchanges of the
    right one, which `repair` then makes.
    """
    sample = np.sort(values[:: max(1, values.size // _MIDDLE_SAMPLE)])
    middle = float(sample[sample.size // 2])
    source, target = work[0].view(np.uint64), work[1].view(np.uint64)
    if team is None:
        _radix_order(values, middle, work[0], source, target, np.zeros((3, _BUCKETS), int), order)
        return
    team.sweep(lambda a, b: _radix_keys(values[a:b], middle, a, work[0][a:b], source[a:b]))
    for digit in range(3):
        shift = 32 + 11 * digit
        counts = np.zeros((len(team.ranges), _BUCKETS), int)
        parts = [source[a:b] for a, b in team.ranges]
        team.map(partial(_count_part, shift), list(zip(parts, counts, strict=True)))
        # Bucket by bucket, and inside a bucket range by range: the sort stays stable.
        ends = np.cumsum(counts.T).reshape(counts.shape[::-1]).T
        places = np.ascontiguousarray(ends - counts)
        team.map(partial(_scatter_part, target, shift), list(zip(parts, places, strict=True)))
        source, target = target, source
    by_ranges(team, _radix_items, source, order)


def _count_part(shift: int, job: tuple[Any, Any]) -> None:
    _radix_count(job[0], shift, job[1])


def _scatter_part(target: Any, shift: int, job: tuple[Any, Any]) -> None:
    _radix_scatter(job[0], target, shift, job[1])


@compiled(fastmath=False, inline=True)
def _radix_keys(values: Any, middle: float, first: int, distance: Any, keys: Any) -> None:
    """The leading 32 bits of the distance from a middle value, followed by the item's number.

    `distance` and `keys` are one piece of memory, as doubles and as their bits. The bits of
    doubles, those of negative ones inverted, ascend with them. Distances from the middle keep the
    digits where values are dense.
    """
    for i in range(values.size):
        distance[i] = values[i] - middle
    sign = np.uint64(1 << 63)
    item = np.uint64(first)
    for i in range(values.size):
        key = keys[i]
        key = ~key if key & sign else key | sign
        keys[i] = ((key >> np.uint64(32)) << np.uint64(32)) | item
        item += np.uint64(1)


@compiled(fastmath=False)
def _radix_count(keys: Any, shift: int, counts: Any) -> None:
    """Count the keys that fall into each bucket by the digit at `shift`."""
    for i in range(keys.size):
        counts[(keys[i] >> np.uint64(shift)) & np.uint64(_BUCKETS - 1)] += 1


@compiled(fastmath=False, inline=True)
def _radix_scatter(keys: Any, target: Any, shift: int, place: Any) -> None:
    """Put each key at the next free place of its bucket."""
    for i in range(keys.size):
        b = (keys[i] >> np.uint64(shift)) & np.uint64(_BUCKETS - 1)
        target[place[b]] = keys[i]
        place[b] += 1


@compiled(fastmath=False, inline=True)
def _radix_items(keys: Any, order: Any) -> None:
    for i in range(keys.size):
        order[i] = keys[i] & np.uint64(0xFFFFFFFF)


@compiled(fastmath=False)
def _radix_order(
    values: Any, middle: float, distance: Any, source: Any, target: Any, counts: Any, order: Any
) -> None:
    """The whole sort in one thread; `counts` are zero on entry."""
    _radix_keys(values, middle, 0, distance, source)
    # One sweep counts all three digits: their numbers do not depend on the order.
    for i in range(source.size):
        key = source[i]
        counts[0, (key >> np.uint64(32)) & np.uint64(_BUCKETS - 1)] += 1
        counts[1, (key >> np.uint64(43)) & np.uint64(_BUCKETS - 1)] += 1
        counts[2, key >> np.uint64(54)] += 1
    for digit in range(3):
        position = 0
        for b in range(_BUCKETS):
            size = counts[digit, b]
            counts[digit, b] = position
            position += size
        _radix_scatter(source, target, 32 + 11 * digit, counts[digit])
        source, target = target, source
    _radix_items(source, order)


@compiled(fastmath=False)
def sort_short(values: Any, room: Any, order: Any) -> bool:
    """Order some thousand values in two rounds; False where their range is no number.

    Keys are the bits of the distance from below the least value, as many as tell the values apart:
    they are even near the least value, where losses are dense, and grow like a logarithm far away.
    """
    n = values.size
    distance, bits, numbers, counts = room
    least, most, total = math.inf, -math.inf, 0.0
    # Four at a time, since each step has to wait for the last.
    for i in range(0, n, 4):
        a, b = values[i], values[min(i + 1, n - 1)]
        c, d = values[min(i + 2, n - 1)], values[min(i + 3, n - 1)]
        least = min(least, min(min(a, b), min(c, d)))
        most = max(most, max(max(a, b), max(c, d)))
        total += (a + b) + (c + d)
    if not 0.0 < most - least < math.inf or not abs(total) < math.inf:
        return False
    even = _EVEN * max(total / n - least, (most - least) / n)
    distance[0] = even
    distance[1] = (most - least) + even
    first, last = bits[0], bits[1]
    shift = 0
    while (last - first) >> shift > _LARGEST_KEY:
        shift += 1
    origin = least - even
    for i in range(n):
        distance[i] = values[i] - origin
    # Numbers without a sign need no test for a negative index.
    one, digit, mask = np.uint32(1), np.uint32(_DIGIT), np.uint32(_BUCKETS - 1)
    keys, items, low, high = numbers[0], numbers[1], counts[0], counts[1]
    for i in range(n):
        # Rounding may bring an end a hair beyond where it should be.
        keys[i] = min(max(bits[i] - first, 0) >> shift, _LARGEST_KEY)
    for b in range(_BUCKETS):
        low[b] = 0
        high[b] = 0
    for i in range(n):
        low[keys[i] & mask] += one
        high[keys[i] >> digit] += one
    before, above = np.uint32(0), np.uint32(0)
    for b in range(_BUCKETS):
        size = low[b]
        low[b] = before
        before += size
        size = high[b]
        high[b] = above
        above += size
    for i in range(n):
        b = keys[i] & mask
        items[low[b]] = i
        low[b] += one
    for r in range(n):
        i = items[r]
        b = keys[i] >> digit
        order[high[b]] = i
        high[b] += one
    return True
