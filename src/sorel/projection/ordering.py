"""The ascending order of a slowly changing vector: kept, repaired, and now and then sorted anew.

A repair by insertion is linear where little has moved. A fresh sort is a radix sort on the leading
bits, which leaves only near ties to the repair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sorel._core import radix_order, repair
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

    def update(self, values: FloatArray) -> None:
        """Put the values into order, from the last order where that is close."""
        n = values.size
        # A radix sort takes the time of about one move for each item.
        if self._known and repair(values, self.order, self.key, n):
            return
        self._known = True
        if n < 2**32:
            # Distances from the middle keep the digits where values are dense.
            sample = np.sort(values[:: math.isqrt(n)])
            middle = sample.item(sample.size // 2)
            radix_order(values, middle, *self._room.view(np.uint64), self.order)
            # A sort by comparisons takes that of log2 n.
            if repair(values, self.order, self.key, n * math.log2(n + 1)):
                return
        # Near ties are left in an arbitrary order. Where these are too many to repair, a stable
        # sort makes the order, hence every result, independent of the history.
        self.order[:] = np.argsort(values, kind="stable")
        np.take(values, self.order, out=self.key)
