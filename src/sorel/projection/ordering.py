"""The ascending order of a slowly changing vector: kept, repaired, and now and then sorted anew.

A repair by insertion is linear where little has moved (Knuth, vol. 3, 5.2.1). A fresh sort is a
radix sort on the leading bits (5.2.5), which leaves only near ties to the repair. Threads repair a
range of the order each, and then what crosses its ends; they sort a bucket each, of the values
between two quantiles of a sample (Frazer and McKellar 1970). The order is the same for any number
of threads.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from sorel._core import count_buckets, fill_buckets, make_keys, merge, radix_order, repair
from sorel._lib.threads import Team, by_ranges
from sorel.problem.risks import FloatArray


def index_type(n: int) -> type[np.integer[Any]]:
    """Four bytes an item where they suffice: half the traffic of a gather."""
    return np.int32 if n < 2**31 else np.int64


class Order:
    """The ascending order of a slowly changing vector, ties by position.

    Parameters
    ----------
    room : array of shape (2, n)
        Working memory, which is overwritten by a sort.
    """

    def __init__(self, room: FloatArray) -> None:
        n = room.shape[1]
        self.order = np.arange(n, dtype=index_type(n))
        self.key = np.empty(n)
        self._room = room
        self._known = False

    def update(self, values: FloatArray, team: Team | None = None) -> None:
        """Put the values into order, from the last order where that is close."""
        if self._known and self._repair(values, team):
            return
        self._known = True
        n = values.size
        if n >= 2**32:
            self._sort_stably(values, slice(n))
            return
        # Distances from the middle keep the digits where values are dense.
        sample = np.sort(values[:: math.isqrt(n)])
        if team is None:
            make_keys(values, sample.item(sample.size // 2), self._room[0].view(np.uint64))
            self._sort_keys(values, (0, n))
        else:
            buckets = self._fill_buckets(values, sample, team)
            team.map(lambda bucket: self._sort_keys(values, bucket), buckets)

    def _repair(self, values: FloatArray, team: Team | None) -> bool:
        """Sort by insertion; False where that takes too long."""
        order, key = self.order, self.key
        # A radix sort takes the time of about one move for each item.
        if team is None:
            return repair(values, order, key, order.size)
        parts = by_ranges(team, lambda o, k: repair(values, o, k, o.size), order, key)
        return all(parts) and all(merge(order, key, a, b - a) for a, b in team.ranges[1:])

    def _fill_buckets(
        self, values: FloatArray, sample: FloatArray, team: Team
    ) -> list[tuple[int, int]]:
        """Write keys by buckets, in each of them by position; the places of the buckets."""
        count = len(team.ranges)
        quantiles = sample[np.arange(1, 2 * count) * sample.size // (2 * count)]
        middles, splitters = quantiles[::2].copy(), quantiles[1::2].copy()
        parts = by_ranges(team, lambda some: count_buckets(some, splitters), values)
        # One row for each bucket, in which the ranges of rows have a part each.
        sizes = np.array(parts).T
        ends = np.cumsum(sizes).reshape(sizes.shape)
        places = (ends - sizes).T.tolist()
        keys = self._room[0].view(np.uint64)

        def fill(k: int) -> None:
            start, stop = team.ranges[k]
            fill_buckets(values[start:stop], start, middles, splitters, places[k], keys)

        team.map(fill, list(range(count)))
        return list(pairwise([0, *ends[:, -1].tolist()]))

    def _sort_keys(self, values: FloatArray, bucket: tuple[int, int]) -> None:
        """Sort the items of a bucket by their keys, and near ties by insertion."""
        part = slice(*bucket)
        order, room = self.order[part], self._room[:, part].view(np.uint64)
        radix_order(*room, order)
        # A sort by comparisons takes the time of log2 n moves for each item.
        if not repair(values, order, self.key[part], order.size * math.log2(values.size + 1)):
            self._sort_stably(values, part)

    def _sort_stably(self, values: FloatArray, part: slice) -> None:
        """Sort items by comparisons, whatever the order that they are in."""
        order = np.sort(self.order[part])
        order = order[np.argsort(values[order], kind="stable")]
        self.order[part], self.key[part] = order, values[order]
