"""The ascending order of a slowly changing vector: kept, repaired, and now and then sorted anew.

A repair by insertion is linear where little has moved. A fresh sort is a radix sort on the leading
bits, which leaves only near ties to the repair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sorel._core import radix_order, repair
from sorel._lib.pool import Pool
from sorel.problem.risks import FloatArray

__all__ = ["Order", "work_arrays", "index_type", "moves_per_item", "repair"]

# Moves per item that repairing what a sort leaves may take: all of it is nearby.
MOVES_PER_ITEM = 8
# Moves per item that repairing the last order may take, where the radix sort is the alternative.
_MOVES_PER_ITEM_OF_MANY = 1
# From this size on one order serves both the losses and the vectors to be projected.
ONE_ORDER_FROM = 100_000
# Items below which NumPy's sort is as fast as the radix sort.
_RADIX_FROM = 1500
# Values from which the radix sort learns the middle.
_MIDDLE_SAMPLE = 31


def index_type(n: int) -> type[np.integer[Any]]:
    """Four bytes an item where they suffice: half the traffic of a gather."""
    return np.int32 if n < 2**31 else np.int64


def moves_per_item(n: int) -> int:
    """Moves per item that repairing the last order may take."""
    return MOVES_PER_ITEM if n < _RADIX_FROM else _MOVES_PER_ITEM_OF_MANY


def work_arrays(pool: Pool, n: int, count: int) -> tuple[FloatArray, ...]:
    """Vectors of length n from the pool."""
    return tuple(pool.take((n,)) for _ in range(count))


class Order:
    """The ascending order of a slowly changing vector, ties by position."""

    def __init__(self, n: int, pool: Pool) -> None:
        self.order = np.arange(n, dtype=index_type(n))
        self.key = np.empty(n)
        self.known = False
        self.pool = pool

    def sort(self, values: FloatArray, attempt: int) -> None:
        self.known = True
        # The fast sorts leave near ties in an arbitrary order. Where too many are left to repair, a
        # stable sort makes the order, hence every result, independent of the history.
        if attempt == 0 and _RADIX_FROM <= values.size < 2**32:
            sample = np.sort(values[:: values.size // _MIDDLE_SAMPLE])
            work = work_arrays(self.pool, values.size, 2)
            source, target = (part.view(np.uint64) for part in work)
            radix_order(values, sample.item(sample.size // 2), source, target, self.order)
            self.pool.give(*work)
        else:
            self.order[:] = np.argsort(values, kind=None if attempt == 0 else "stable")

    def update(self, values: FloatArray, hint: Order | None = None) -> None:
        """Sort again, from the last order or that of a related vector where one is near."""
        budget = moves_per_item(self.key.size) * self.key.size
        if self.known and repair(values, self.order, self.key, budget):
            return
        if hint is not None and hint is not self and hint.known:
            self.order[:] = hint.order
            self.known = True
            if repair(values, self.order, self.key, budget):
                return
        self.sort(values, 0)
        budget = MOVES_PER_ITEM * self.key.size
        attempt = 1
        while not repair(values, self.order, self.key, budget):
            self.sort(values, attempt)
            attempt += 1
