"""Two-level sets: a box cut by a plane, where one threshold does the work of a sort.

    q_i = clip(zeta_i - t, low, high)    with    sum_i w_i q_i = total

The left side of the plane's equation falls with t and is linear between kinks, so a few Newton
steps find t, each a sweep over the items (Cominetti, Mascarenhas and Silva 2014). Thresholds are
kept as ``t = reference + tau`` with the reference one of the items: differences of close floats are
exact (Sterbenz 1974).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import sorel._core as _core
from sorel._lib.copies import shallow_copy
from sorel._lib.threads import Team, by_ranges
from sorel.problem.risks import FloatArray

BlockArray = npt.NDArray[np.int32]

# Trials of a search, at most; it takes some ten.
MAX_TRIALS = 200

# Trials from the last threshold: it takes 4 to 8 where that is near, and thousands where it is far.
_WARM_TRIALS = 12

# Items from which on a sample of them saves more than it takes, where one is selected by its rank.
_WORTH_SAMPLING = 1000

# Relative error of the sum of q beyond which a threshold is wrong: that of 1e8 items is below it.
_TOTAL_ERROR = 1e-8


class Thresholder:
    """The threshold of a two-level set, found from where it was at the last call.

    Parameters
    ----------
    weight : ndarray of shape (n,) or None
        Positive weights w; None means 1 each.
    low, high : float
        The levels.
    total : float
        What the weighted q sum to.
    rank : int
        For equal weights, the number of items at the low level when no two are tied.
    """

    def __init__(
        self, weight: FloatArray | None, low: float, high: float, total: float, rank: int
    ) -> None:
        self.weight = weight
        self.low, self.high, self.total = low, high, total
        self.rank = rank
        self.forget()

    def forget(self) -> None:
        # Index of the item that is the reference, and the threshold relative to it.
        self.pivot = 0
        self.tau = 0.0

    def fork(self) -> Thresholder:
        fork = shallow_copy(self)
        fork.forget()
        return fork

    def project(
        self, zeta: FloatArray, out: FloatArray, block: BlockArray, team: Team | None = None
    ) -> int:
        """Write q and its blocks; return how many blocks there are, or -1 without luck."""
        if self.low == self.high:
            out.fill(self.low)
            block.fill(-1)
            return 0
        start = (zeta.item(self.pivot), self.tau, -math.inf, math.inf)
        count = self._find(zeta, out, block, team, start, _WARM_TRIALS)
        if count < 0:
            count = self._find(zeta, out, block, team, self.bracket(zeta, team), MAX_TRIALS)
        if count == 1:
            # A single free item takes what the others leave, and does not move.
            block.fill(-1)
            return 0
        return min(count, 1)

    def bracket(
        self, zeta: FloatArray, team: Team | None = None
    ) -> tuple[float, float, float, float]:
        """A reference, the first tau to try, and bounds between which tau must lie."""
        if self.weight is None:
            # The threshold lies between z_(rank) - high and z_(rank) - low.
            reference = select(zeta, self.rank, team)
            below, above = -self.high, -self.low
        else:
            least, most = float(zeta.min()), float(zeta.max())
            reference = 0.5 * least + 0.5 * most
            below, above = (least - reference) - self.high, (most - reference) - self.low
        # Rounding may put the threshold a hair outside; the first step would then be refused.
        slack = 0.01 * (self.high - self.low)
        below, above = below - slack, above + slack
        return reference, 0.5 * (below + above), below, above

    def _find(
        self,
        zeta: FloatArray,
        out: FloatArray,
        block: BlockArray,
        team: Team | None,
        start: tuple[float, float, float, float],
        trials: int,
    ) -> int:
        """Search from (reference, tau, below, above); the number of free items, or -1."""
        if team is not None:
            found = self._find_together(zeta, out, block, team, start, trials)
        else:
            found = _core.project_levels(
                zeta, self.weight, self.low, self.high, self.total, *start, trials, out, block
            )
        count, whole, pivot, tau = found
        # Far from the items, rounding of tau may lose them all.
        if count < 0 or not math.isclose(whole, self.total, rel_tol=_TOTAL_ERROR):
            return -1
        self.pivot, self.tau = pivot, tau
        return count

    def _find_together(
        self,
        zeta: FloatArray,
        out: FloatArray,
        block: BlockArray,
        team: Team,
        start: tuple[float, float, float, float],
        trials: int,
    ) -> tuple[int, float, int, float]:
        """The same with its sweeps shared among threads; see src/core/thresholds.cpp."""
        low, high, weight = self.low, self.high, self.weight
        (reference, tau, below, above), span = start, math.inf
        for trial in range(trials):
            parts = by_ranges(team, _core.level_sums, zeta, weight, reference, tau, low, high)
            sums = totals(parts)
            excess, free = _core.excess_at(sums, tau, below, above, low, high, self.total), sums[2]
            place = 0
            if excess == 0.0 or free == 0.0:
                found = by_ranges(team, _core.nearest, zeta, reference, tau, low, excess >= 0.0)
                places = [a + i for (a, _), i in zip(team.ranges, found, strict=True) if i >= 0]
                best = min if excess >= 0.0 else max
                place = best(places, key=zeta.__getitem__, default=0)
            item = float(zeta[place])
            if excess != 0.0:
                tau, below, above, span = _core.next_tau(
                    trial, tau, below, above, span, excess, free, item - reference, low, high
                )
            elif item == reference:
                tau = _core.exact_tau(sums, tau, low, high, self.total)
                fill = (zeta, weight, reference, tau, low, high, out, block)
                count, whole = totals(by_ranges(team, _core.fill_clipped, *fill))
                return count, whole, place, tau
            else:
                tau -= item - reference
                reference = item
                below, above, span = -math.inf, math.inf, math.inf
        return -1, 0.0, -1, 0.0


def totals(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sums of the first entries, of the second ones, and so on."""
    return tuple(sum(column) for column in zip(*parts, strict=True))


def select(values: FloatArray, rank: int, team: Team | None = None) -> float:
    """The value at a rank of the ascending order; a sample brackets it (Floyd and Rivest 1975)."""
    inside, place = values, rank
    if values.size >= _WORTH_SAMPLING:
        stride = round(values.size ** (1.0 / 3.0))
        sample = np.sort(values[::stride])
        # Twice the standard deviation of the rank in the sample, at most.
        spread, middle = math.isqrt(sample.size), rank // stride
        low = sample.item(middle - spread) if middle >= spread else -math.inf
        high = sample.item(middle + spread) if middle + spread < sample.size else math.inf

        def keep(some: FloatArray, room: FloatArray) -> tuple[int, FloatArray]:
            below, count = _core.keep_between(some, low, high, room)
            return below, room[:count]

        below, kept = zip(*by_ranges(team, keep, values, np.empty(values.size)), strict=True)
        if 0 <= rank - sum(below) < sum(map(len, kept)):
            inside, place = np.concatenate(kept), rank - sum(below)
    return float(np.partition(inside, place)[place])
