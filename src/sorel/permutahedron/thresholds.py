"""Two-level sets: a box cut by a plane, where one threshold does the work of a sort.

    q_i = clip(zeta_i - t, low, high)    with    sum_i w_i q_i = total

The left side of the plane's equation falls with t and is linear between kinks, so a few Newton
steps find t, each a sweep over the items. Thresholds are kept as ``t = reference + tau`` with the
reference one of the items: differences of near numbers are exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sorel._compiled import compiled
from sorel._copies import shallow_copy
from sorel._threads import Team, by_ranges
from sorel.risks import FloatArray

BlockArray = npt.NDArray[np.int32]

# Items per partial sum: short enough to keep plain sums accurate, long enough to be fast.
RUN = 256

# Trials of the threshold search: first from the last threshold, then from a safe bracket.
WARM_TRIALS = 12
COLD_TRIALS = 200
# Items that are looked at together in the search for the smallest.
_GLANCE = 64
# A value at a rank is looked for among those that a sample puts near it: how many values make that
# pay, the size of the sample, at most and as a share of them, and the ranks of the sample to either
# side that are taken in, in units of the square root of its size.
_SAMPLE_FROM, _SAMPLE, _SAMPLE_SHARE, _SAMPLE_MARGIN = 12_000, 10_000, 16, 2.0


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
        self.pivot = -1
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
        count = -1
        if self.pivot >= 0:
            start = (zeta.item(self.pivot), self.tau, -math.inf, math.inf)
            count = self._find(zeta, out, block, team, start, WARM_TRIALS)
        if count < 0:
            count = self._find(zeta, out, block, team, self.bracket(zeta, team), COLD_TRIALS)
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
        level = (self.low, self.high, self.total)
        if team is None:
            count, pivot, tau = project_levels(
                zeta, self.weight, *level, *start, trials, out, block
            )
        else:
            count, pivot, tau = _share_project_levels(
                team, zeta, self.weight, *level, *start, trials, out, block
            )
        if count >= 0:
            self.pivot, self.tau = pivot, tau
        return count


@compiled(fastmath=False, inner=True)
def _distance(value: float, reference: float) -> float:
    # Its own function, so that no reordering merges the reference with a tau: the difference of
    # two large near numbers is exact, and what is left of it after the merger is not.
    return value - reference


@compiled(inner=True)
def _split(zeta: Any, weight: Any, reference: float, tau: float, low: float, high: float) -> Any:
    """Weights at the low level, at the high level and between, and the sum over those between."""
    at_low, at_high, free, moment = 0.0, 0.0, 0.0, 0.0
    # Arithmetic in place of branches, so that the loop runs on vectors.
    for i in range(zeta.size):
        x = _distance(zeta[i], reference)
        w = 1.0 if weight is None else weight[i]
        down = w if x - tau <= low else 0.0
        up = w if x - tau >= high else 0.0
        between = w - down - up
        at_low += down
        at_high += up
        free += between
        moment += between * x
    return at_low, at_high, free, moment


@compiled(fastmath=False, inline=True)
def _level_sums(
    zeta: Any, weight: Any, reference: float, tau: float, low: float, high: float
) -> Any:
    """`_split` in short runs, with a compensated sum over them."""
    at_low, at_high, free = 0.0, 0.0, 0.0
    moment, spill = 0.0, 0.0
    for begin in range(0, zeta.size, RUN):
        end = begin + RUN
        part_low, part_high, part_free, part = _split(
            zeta[begin:end], None if weight is None else weight[begin:end],
            reference, tau, low, high,
        )  # fmt: skip
        at_low += part_low
        at_high += part_high
        free += part_free
        grown = moment + part
        piece = grown - moment
        spill += (moment - (grown - piece)) + (part - piece)
        moment = grown
    return at_low, at_high, free, moment, spill


@compiled(fastmath=False, inline=True)
def _nearest(zeta: Any, reference: float, tau: float, low: float, above: bool) -> int:
    """The smallest item above the low level, or else the largest one at it; -1 without any."""
    sign = 1.0 if above else -1.0
    best, place = math.inf, -1
    for begin in range(0, zeta.size, _GLANCE):
        part = zeta[begin : begin + _GLANCE]
        # Almost never is there a better one, which a loop without branches sees at a glance.
        better = 0
        for i in range(part.size):
            x = part[i]
            better += (((x - reference) - tau > low) == above) & (sign * x < best)
        if better > 0:
            for i in range(part.size):
                x = part[i]
                if ((x - reference) - tau > low) == above and sign * x < best:
                    best, place = sign * x, begin + i
    return place


@compiled(fastmath=False, inline=True)
def _fill_clipped(
    zeta: Any, reference: float, tau: float, low: float, high: float, out: Any, block: Any
) -> int:
    """Write q and the block of the items between the levels; return how many there are."""
    count = 0
    for i in range(zeta.size):
        q = (zeta[i] - reference) - tau
        inside = low < q < high
        count += inside
        out[i] = min(max(q, low), high)
        block[i] = 0 if inside else -1
    return count


@compiled(fastmath=False, inline=True)
def _excess(
    sums: Any, tau: float, below: float, above: float, low: float, high: float, total: float
) -> float:
    """By how much the q at tau sum to more than the total; 0 where only rounding is left."""
    at_low, at_high, free, moment, spill = sums
    excess = ((moment - free * tau) + spill) + (low * at_low + (high * at_high - total))
    noise = 2.0**-51 * (abs(moment) + abs(free * tau) + total)
    exhausted = above - below < math.inf and not below < 0.5 * (below + above) < above
    return 0.0 if exhausted or abs(excess) <= noise else excess


@compiled(fastmath=False, inline=True)
def _next_tau(
    trial: int, tau: float, below: float, above: float, span: float, excess: float, free: float,
    kink: float, low: float, high: float,
) -> Any:  # fmt: skip
    """The tau to try next, the bounds on it, and their distance at the last third trial.

    A Newton step where items are free; else to where the item at the distance `kink` comes free, as
    if it alone took up the excess.
    """
    if excess > 0.0:
        below = max(below, tau)
    else:
        above = min(above, tau)
    if free == 0.0:
        goal = kink - (high if excess > 0.0 else low) + excess
    else:
        goal = tau + excess / free
        # Without a bound on that side yet, a flat piece must not throw the search far away.
        if excess > 0.0 and above == math.inf:
            goal = min(goal, tau + (high - low))
        elif excess < 0.0 and below == -math.inf:
            goal = max(goal, tau - (high - low))
    width = above - below
    # Where three trials did not halve the bracket, halve it.
    slow = trial % 3 == 2 and width > 0.5 * span
    if trial % 3 == 2:
        span = width
    # Ends of the bracket have been tried: taking one again would cycle.
    if width < math.inf and (slow or not below < goal < above):
        goal = 0.5 * (below + above)
    return goal, below, above, span


@compiled(fastmath=False, inline=True)
def _exact_tau(sums: Any, tau: float, low: float, high: float, total: float) -> float:
    """The tau at which the items between the levels make up the total."""
    at_low, at_high, free, moment, spill = sums
    if free > 0.0:
        return ((moment + spill) + (low * at_low + (high * at_high - total))) / free
    return tau


@compiled(fastmath=False)
def project_levels(
    zeta: Any, weight: Any, low: float, high: float, total: float,
    reference: float, tau: float, below: float, above: float, trials: int, out: Any, block: Any,
) -> Any:  # fmt: skip
    """Find ``t = reference + tau`` and write q and the blocks.

    Returns the number of items between the levels (-1 when the trials did not suffice, and then
    nothing is written), the item that is the reference, and tau.
    """
    span = math.inf
    for trial in range(trials):
        sums = _level_sums(zeta, weight, reference, tau, low, high)
        excess, free = _excess(sums, tau, below, above, low, high, total), sums[2]
        place = -1
        if excess == 0.0 or free == 0.0:
            place = _nearest(zeta, reference, tau, low, excess >= 0.0)
        if place < 0:
            place = 0
        if excess != 0.0:
            tau, below, above, span = _next_tau(
                trial, tau, below, above, span, excess, free, zeta[place] - reference, low, high
            )
            continue
        # Settled. Start again from the smallest free item, where differences are exact: it rarely
        # takes more than two trials, and the sets may still change in the last digits.
        if zeta[place] == reference:
            tau = _exact_tau(sums, tau, low, high, total)
            return _fill_clipped(zeta, reference, tau, low, high, out, block), place, tau
        tau -= zeta[place] - reference
        reference = zeta[place]
        below, above, span = -math.inf, math.inf, math.inf
    return -1, -1, 0.0


def _share_project_levels(
    team: Team, zeta: FloatArray, weight: FloatArray | None,
    low: float, high: float, total: float, reference: float, tau: float, below: float, above: float,
    trials: int, out: FloatArray, block: BlockArray,
) -> tuple[int, int, float]:  # fmt: skip
    """`project_levels` with its sweeps shared among threads."""
    span = math.inf
    for trial in range(trials):
        sums = totals(by_ranges(team, _level_sums, zeta, weight, reference, tau, low, high))
        excess, free = _excess(sums, tau, below, above, low, high, total), sums[2]
        place = 0
        if excess == 0.0 or free == 0.0:
            found = by_ranges(team, _nearest, zeta, reference, tau, low, excess >= 0.0)
            places = [a + i for (a, _), i in zip(team.ranges, found, strict=True) if i >= 0]
            best = min if excess >= 0.0 else max
            place = best(places, key=zeta.__getitem__, default=0)
        nearest = float(zeta[place])
        if excess != 0.0:
            tau, below, above, span = _next_tau(
                trial, tau, below, above, span, excess, free, nearest - reference, low, high
            )
            continue
        if nearest == reference:
            tau = _exact_tau(sums, tau, low, high, total)
            counts = by_ranges(team, _fill_clipped, zeta, reference, tau, low, high, out, block)
            return sum(counts), place, tau
        tau -= nearest - reference
        reference = nearest
        below, above, span = -math.inf, math.inf, math.inf
    return -1, -1, 0.0


def totals(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sums of the first entries, of the second ones, and so on."""
    return tuple(sum(column) for column in zip(*parts, strict=True))


def select(values: FloatArray, rank: int, team: Team | None = None) -> float:
    """The value at a rank of the ascending order, from the few that a sample puts near it."""
    n = values.size
    if n > _SAMPLE_FROM:
        stride = max(n // _SAMPLE, _SAMPLE_SHARE)
        sample = np.sort(values[::stride])
        place, margin = rank / stride, _SAMPLE_MARGIN * math.sqrt(sample.size)
        left, right = int(place - margin), int(place + margin)
        least = sample[left] if left >= 0 else -np.inf
        most = sample[right] if right < sample.size else np.inf
        parts = by_ranges(team, _gather, values, least, most)
        below = sum(count for count, _ in parts)
        near = np.concatenate([found for _, found in parts])
        if below <= rank < below + near.size:
            return float(np.partition(near, rank - below)[rank - below])
    # Few values, or a sample that misled: sort out all of them.
    return float(np.partition(values, rank)[rank])


@compiled(fastmath=False)
def _gather(values: Any, least: float, most: float) -> Any:
    """How many values lie below `least`, and those from there to `most`, or none if too many."""
    room = values.size // 4 + 64
    found = np.empty(room)
    below, count = 0, 0
    for i in range(values.size):
        value = values[i]
        below += value < least
        found[count] = value
        count += least <= value <= most
        if count == room:
            return below, found[:0]
    return below, found[:count].copy()
