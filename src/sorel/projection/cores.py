"""Projections of items with positive weights: a spectrum, two levels of one, sample weights.

All keep orders and thresholds from call to call, and the working memory that goes with them. What
the risk gives is shared among forks and never written to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import sorel._core as _core
from sorel._lib.copies import shallow_copy
from sorel._lib.threads import Team, by_ranges
from sorel.problem.risks import FloatArray, Risk
from sorel.projection.ordering import Order, index_type
from sorel.projection.thresholds import BlockArray, Thresholder, select, totals


def _sum_products(a: FloatArray, b: FloatArray) -> float:
    return _core.weighted_sum(a, b, np.ones(1), False)


class Core(ABC):
    """What all share: an order, working memory and perhaps a threshold, which a fork has anew."""

    threshold: Thresholder | None = None
    team: Team | None = None

    def __init__(self, n: int) -> None:
        self.n = n

    @cached_property
    def _room(self) -> FloatArray:
        return np.empty((2, self.n))

    def _dot(self, a: FloatArray, b: FloatArray) -> float:
        """Inner product, added up in short runs, so that errors grow slowly with n."""
        return sum(by_ranges(self.team, _sum_products, a, b))

    def _scatter(self, values: FloatArray, order: npt.NDArray[Any], out: FloatArray) -> None:
        """out[order] = values."""
        by_ranges(self.team, lambda some, ranks: _core.scatter(some, ranks, out), values, order)

    def _ordered_shortfall(
        self, keep: Order, mass: FloatArray, density: FloatArray, weight: FloatArray | None
    ) -> float:
        key, order, team = keep.key, keep.order, self.team
        if team is None:
            return _core.ordered_shortfall(key, mass, density, weight, order, 0.0, 0.0, 0.0)[0]

        def sums(ranks: tuple[int, int], start: tuple[float, float]) -> tuple[float, float, float]:
            part, following = slice(*ranks), key.item(ranks[1]) if ranks[1] < self.n else 0.0
            return _core.ordered_shortfall(
                key[part], mass[part], density, weight, order[part], *start, following
            )

        # A range starts with the surplus of those before it, as a sum of two doubles.
        starts: list[tuple[float, float]] = []
        before = [0.0]
        for _, surplus, spill in team.map(lambda ranks: sums(ranks, (0.0, 0.0)), team.ranges):
            start = math.fsum(before)
            starts.append((start, math.fsum((*before, -start))))
            before += surplus, spill
        items = list(zip(team.ranges, starts, strict=True))
        return sum(team.map(lambda item: sums(*item)[0], items))

    @cached_property
    def _bounds(self) -> npt.NDArray[Any]:
        return np.empty(self.n, index_type(self.n))

    @cached_property
    def _order(self) -> Order:
        # The weights follow the losses: one order serves the losses and the vectors to project.
        return Order(self._room)

    def fork(self) -> Self:
        fork = shallow_copy(self)
        for name in ("_room", "_bounds", "_order"):
            fork.__dict__.pop(name, None)
        if self.threshold is not None:
            fork.threshold = self.threshold.fork()
        return fork

    def _sorted(self, values: FloatArray) -> Order:
        self._order.update(values, self.team)
        return self._order

    def project(self, zeta: FloatArray, out: FloatArray, block: BlockArray) -> int:
        """Write q and the block of each item, or -1; return the number of blocks."""
        if self.threshold is not None:
            count = self.threshold.project(zeta, out, block, self.team)
            if count >= 0:
                return count
        return self._pool(self._sorted(zeta), out, block)

    @abstractmethod
    def _pool(self, keep: Order, out: FloatArray, block: BlockArray) -> int:
        """The projection of a vector whose order is known (Ayer et al. 1955)."""

    @abstractmethod
    def worst_case(self, losses: FloatArray, out: FloatArray) -> float: ...

    @abstractmethod
    def value(self, losses: FloatArray) -> float: ...

    @abstractmethod
    def shortfall(self, losses: FloatArray, density: FloatArray) -> float: ...


class Uniform(Core):
    """Equal weights: minimise ``sum_i (q_i - zeta_i)^2`` over P(mass)."""

    def __init__(self, mass: FloatArray) -> None:
        super().__init__(mass.size)
        self.mass = mass

    def _pool(self, keep: Order, out: FloatArray, block: BlockArray) -> int:
        return _core.project_sorted(
            keep.key, self.mass, keep.order, self._bounds, *self._room, out, block
        )

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        keep = self._sorted(losses)
        self._scatter(self.mass, keep.order, out)
        return self._dot(self.mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        return self._dot(self.mass, self._sorted(losses).key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        keep = self._sorted(losses)
        return self._ordered_shortfall(keep, self.mass, density, None)


class TwoLevels(Uniform):
    """Equal weights and a mass of two levels, with at most one entry between them."""

    def __init__(self, n: int, bend: int, low: float, middle: float, high: float) -> None:
        Core.__init__(self, n)
        self._bend, self._levels = bend, (low, middle, high)
        total = math.fsum((low * bend, middle, high * (n - 1 - bend)))
        self.threshold = Thresholder(None, low, high, total, bend)

    @cached_property
    def mass(self) -> FloatArray:  # type: ignore[override] # made only where no threshold is found
        low, middle, high = self._levels
        mass = np.full(self.n, high)
        mass[: self._bend] = low
        mass[self._bend] = middle
        return mass

    def _edge(self, losses: FloatArray) -> float:
        """The loss at the bend between the levels."""
        if self._levels[0] == self._levels[2]:
            return float(losses[0])  # all weights are alike, and no rank differs from another
        return select(losses, self._bend, self.team)

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        _core.fill_levels(losses, *self._levels, self._bend, self._edge(losses), out)
        return self._dot(out, losses)

    def value(self, losses: FloatArray) -> float:
        low, middle, high = self._levels
        edge = self._edge(losses)
        parts = by_ranges(self.team, _core.sums_beside, losses, edge)
        below, n_below, above, n_above = totals(parts)
        # Losses equal to the edge fill the ranks between; the middle rank is one of them.
        at_low, at_high = self._bend - n_below, self.n - 1 - self._bend - n_above
        return float(low * below + high * above + edge * (low * at_low + middle + high * at_high))

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        low, _, high = self._levels
        edge = self._edge(losses)
        parts = by_ranges(self.team, _core.level_shortfall, losses, density, low, high, edge)
        return float(sum(parts))


def equal_weights(mass: FloatArray) -> Core:
    """The core for an ascending mass."""
    n = mass.size
    # The first entry above the lowest level and the one after it tell whether there are two levels.
    bend = min(int(np.searchsorted(mass, mass[0], side="right")), n - 1)
    if mass[min(bend + 1, n - 1)] == mass[-1]:
        return TwoLevels(n, bend, float(mass[0]), float(mass[bend]), float(mass[-1]))
    return Uniform(mass)


class Weighted(Core):
    """Positive sample weights, scaled to mean 1 so that sizes match equal weights."""

    def __init__(self, risk: Risk, omega: FloatArray) -> None:
        super().__init__(omega.size)
        self.risk, self.omega = risk, omega
        self.weight = omega * self.n
        levels = risk.levels(self.n, omega)
        if levels is not None:
            self.threshold = Thresholder(self.weight, *levels, float(self.n), 0)

    def _mass(self, order: npt.NDArray[Any]) -> FloatArray:
        mass = self.risk.increments(self.omega[order])
        mass *= self.n
        return mass

    def _pool(self, keep: Order, out: FloatArray, block: BlockArray) -> int:
        weight, mass = self.weight[keep.order], self._mass(keep.order)
        return _core.project_weighted(
            keep.key, mass, weight, keep.order, self._bounds, *self._room, np.empty(self.n), out,
            block,
        )  # fmt: skip

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        keep = self._sorted(losses)
        mass = self._mass(keep.order)
        self._scatter(mass / self.weight[keep.order], keep.order, out)
        return self._dot(mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        keep = self._sorted(losses)
        return self._dot(self._mass(keep.order), keep.key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        keep = self._sorted(losses)
        mass = self._mass(keep.order)
        return self._ordered_shortfall(keep, mass, density, self.weight)
