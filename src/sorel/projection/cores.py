"""The two ways to project: with equal weights, and with sample weights.

Both keep orders and thresholds from call to call, and the working memory that goes with them. What
the risk gives is shared among forks and never written to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sorel._lib.copies import shallow_copy
from sorel._lib.pool import WORTH_POOLING, Pool
from sorel._lib.threads import Team, by_ranges
from sorel.problem.risks import FloatArray, Risk
from sorel.projection import values
from sorel.projection.ordering import (
    MOVES_PER_ITEM,
    ONE_ORDER_FROM,
    Order,
    index_type,
    moves_per_item,
    work_arrays,
)
from sorel.projection.pooling import project_sorted, project_weighted
from sorel.projection.thresholds import BlockArray, Thresholder, select, totals

# Above this size, selecting the edge of a two-level spectrum beats keeping the order of the losses
# in repair.
_SELECT_FROM = 2000

# Where blocks begin before there is an order.
_NONE = np.empty(0, np.int32)


class Core(ABC):
    """What both ways share: state that a fork has for itself."""

    threshold: Thresholder | None

    def __init__(self, n: int, pool: Pool) -> None:
        self.n = n
        self.team: Team | None = None
        self._begin(pool)

    def _begin(self, pool: Pool) -> None:
        self.pool = pool
        self._project_order: Order | None = None
        self._value_order: Order | None = None
        self._bounds: npt.NDArray[Any] = _NONE
        self._work: tuple[FloatArray, ...] | None = None

    def fork(self, pool: Pool) -> Self:
        fork = shallow_copy(self)
        fork._begin(pool)
        if self.threshold is not None:
            fork.threshold = self.threshold.fork()
        return fork

    def _general(self) -> tuple[Order, npt.NDArray[Any]]:
        """The order of the vectors to be projected, and room for the bounds of blocks."""
        if self._project_order is None:
            self._bounds = np.empty(self.n, index_type(self.n))
            self._project_order = Order(self.n, self.pool)
        return self._project_order, self._bounds

    @abstractmethod
    def project(self, zeta: FloatArray, out: FloatArray, block: BlockArray) -> int: ...

    @abstractmethod
    def worst_case(self, losses: FloatArray, out: FloatArray) -> float: ...

    @abstractmethod
    def value(self, losses: FloatArray) -> float: ...

    @abstractmethod
    def shortfall(self, losses: FloatArray, density: FloatArray) -> float: ...


class Uniform(Core):
    """Projection with equal weights: minimise ``sum_i (q_i - zeta_i)^2`` over P(mass)."""

    def __init__(self, mass: FloatArray, pool: Pool) -> None:
        n = mass.size
        super().__init__(n, pool)
        self.threshold = None
        # As mass ascends, the first entry above the lowest level and the one after it tell
        # whether there are two levels, with at most one entry between them.
        bend = min(int(np.searchsorted(mass, mass[0], side="right")), n - 1)
        self._bend = bend if mass[min(bend + 1, n - 1)] == mass[-1] else None
        self._levels = (float(mass[0]), float(mass[bend]), float(mass[-1]))
        if self._bend is not None:
            low, middle, high = self._levels
            total = math.fsum((low * bend, middle, high * (n - 1 - bend)))
            self.threshold = Thresholder(None, low, high, total, bend)
        # Three values tell all about two levels: large vectors of them need not be kept.
        self._select = self._bend is not None and n > _SELECT_FROM
        self._mass = None if self._select else mass

    @property
    def mass(self) -> FloatArray:
        if self._mass is None:
            assert self._bend is not None
            low, middle, high = self._levels
            self._mass = np.full(self.n, high)
            self._mass[: self._bend] = low
            self._mass[self._bend] = middle
        return self._mass

    def project(self, zeta: FloatArray, out: FloatArray, block: BlockArray) -> int:
        if self.threshold is not None:
            count = self.threshold.project(zeta, out, block, self.team)
            if count >= 0:
                return count
        keep, bounds = self._general()
        if self._work is None and self.n < WORTH_POOLING:
            # What is too short to be kept by the pool is kept here.
            self._work = work_arrays(self.pool, self.n, 2)
        attempt, moves = 0, moves_per_item(self.n)
        if not keep.known:
            keep.sort(zeta, 0)
            attempt, moves = 1, MOVES_PER_ITEM
        while True:
            work = self._work or work_arrays(self.pool, self.n, 2)
            count = project_sorted(
                zeta, self.mass, keep.order, keep.key, moves, bounds, work[0], work[1], out, block
            )
            if self._work is None:
                self.pool.give(*work)
            if count >= 0:
                return count
            keep.sort(zeta, attempt)
            attempt, moves = 1, MOVES_PER_ITEM

    def _ordered(self, losses: FloatArray) -> Order:
        if self._value_order is None:
            # The weights follow the losses, so the two orders are similar: long lists share one.
            own = self.n < ONE_ORDER_FROM
            self._value_order = Order(self.n, self.pool) if own else self._general()[0]
        self._value_order.update(losses, self._project_order)
        return self._value_order

    def _edge(self, losses: FloatArray) -> float:
        """The loss at the bend between two levels."""
        assert self._bend is not None
        if self._levels[0] == self._levels[2]:
            return float(losses[0])  # all weights are alike, and no rank differs from another
        return select(losses, self._bend, self.team)

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        if self._select:
            assert self._bend is not None
            values.fill_levels(losses, *self._levels, self._bend, self._edge(losses), out)
            return values.dot(out, losses)
        keep = self._ordered(losses)
        values.scatter(self.mass, keep.order, out)
        return values.dot(self.mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        if self._select:
            assert self._bend is not None
            low, middle, high = self._levels
            edge = self._edge(losses)
            parts = by_ranges(self.team, values.sums_beside, losses, edge)
            below, n_below, above, n_above = totals(parts)
            # Losses equal to the edge fill the ranks between; the middle rank is one of them.
            at_low, at_high = self._bend - n_below, self.n - 1 - self._bend - n_above
            return float(
                low * below + high * above + edge * (low * at_low + middle + high * at_high)
            )
        return values.dot(self.mass, self._ordered(losses).key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        if self._select:
            low, _, high = self._levels
            edge = self._edge(losses)
            return float(
                sum(by_ranges(self.team, values.level_shortfall, losses, density, low, high, edge))
            )
        keep = self._ordered(losses)
        return values.ordered_shortfall(keep.key, self.mass, density, None, keep.order)


class Weighted(Core):
    """Projection with positive weights, scaled to mean 1 so that sizes match equal weights."""

    def __init__(self, risk: Risk, omega: FloatArray, pool: Pool) -> None:
        n = omega.size
        super().__init__(n, pool)
        self.risk = risk
        self.omega = omega
        self.weight = omega * n
        levels = risk.levels(n, omega)
        self.threshold = None
        if levels is not None:
            self.threshold = Thresholder(self.weight, *levels, float(n), 0)

    def _ordered(self, losses: FloatArray) -> Order:
        if self._value_order is None:
            self._value_order = Order(self.n, self.pool)
        self._value_order.update(losses)
        return self._value_order

    def _mass(self, order: npt.NDArray[Any]) -> FloatArray:
        mass = self.risk.increments(self.omega[order])
        mass *= self.omega.size
        return mass

    def project(self, zeta: FloatArray, out: FloatArray, block: BlockArray) -> int:
        if self.threshold is not None:
            count = self.threshold.project(zeta, out, block, self.team)
            if count >= 0:
                return count
        keep, bounds = self._general()
        keep.update(zeta)
        weight = self.weight[keep.order]
        mass = self._mass(keep.order)
        levels, spills, heavies = work_arrays(self.pool, zeta.size, 3)
        count = project_weighted(
            keep.key, mass, weight, keep.order, bounds, levels, spills, heavies, out, block
        )
        self.pool.give(levels, spills, heavies)
        return count

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        keep = self._ordered(losses)
        mass = self._mass(keep.order)
        values.scatter(mass / self.weight[keep.order], keep.order, out)
        return values.dot(mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        keep = self._ordered(losses)
        return values.dot(self._mass(keep.order), keep.key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        keep = self._ordered(losses)
        mass = self._mass(keep.order)
        return values.ordered_shortfall(keep.key, mass, density, self.weight, keep.order)
