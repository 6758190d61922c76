"""Losses collapsed to bins: what a cluster exchanges in place of vectors of length n.

Every worker cuts its own values into at most B bins and sends weight, mean and range of each. The
driver treats a bin as one item of that weight. Samples that share the weight of their bin are a
vector with ties, so what is projected here lies in the dual set exactly, whatever the bins lose.
The risk itself is bounded from above: of all distributions on [low, high] with a given mean, the
one with all mass at the two ends has the largest spectral risk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.kernels import bins as loops
from sorel.permutahedron import Projector
from sorel.risks import FloatArray, Risk

# Values that the edges are chosen from at a time: all of them, or a sample of them and, for the
# upper end, of those beyond the last 1/_TOP of the sample, and so on.
_SAMPLE, _TOP = 1 << 15, 32

# How the bins are shared out: by what they can lose, by value and rank together, by rank alone.
_BY_LOSS, _BY_VALUE = 0.6, 0.2

# Where the risk has a kink, half of the bins are put on this share of the ranks to either side.
_WINDOW = 0.02

# Blocks that bins share which are not pooled: each with enough samples for a mean.
_GROUPS = 64


class Bins(NamedTuple):
    """Bins of one worker's values, without those that are empty.

    Attributes
    ----------
    size, mass : array
        Samples of each bin, and their weight.
    value, low, high : array
        Weighted mean, least and largest value of each bin.
    """

    size: FloatArray
    mass: FloatArray
    value: FloatArray
    low: FloatArray
    high: FloatArray


def choose_edges(keys: FloatArray, bins: int, risk: Risk, kink: float | None) -> FloatArray:
    """Edges between at most `bins` bins of these values.

    A bin loses at most weight x (range of the risk's density) x (range of its values), so its width
    in rank is chosen as the inverse cube root of the product of both slopes. Up to `bins` different
    values get a bin of their own.

    Parameters
    ----------
    keys : array
        Values, in any order.
    bins : int
        How many bins there may be.
    risk : Risk
        Where its density is steep, bins are narrow.
    kink : float or None
        A value near which half of the bins are put; None puts them where the risk says.
    """
    values, ranks = _sampled(keys)
    if len(keys) <= _SAMPLE:
        different = np.unique(values)
        if len(different) <= bins:
            return different[1:]
    tail = risk.tail(np.clip(1.0 - ranks, 0.0, 1.0))
    width, rise = np.diff(ranks), np.diff(values)
    density = -np.diff(tail) / np.maximum(width, 1e-300)
    bend = np.abs(np.gradient(density)) if len(density) > 1 else np.zeros_like(density)
    cost = np.cbrt(width * rise * bend)
    shares = (
        _BY_LOSS * _normal(cost)
        + _BY_VALUE * _normal(np.sqrt(width * rise))
        + (1.0 - _BY_LOSS - _BY_VALUE) * _normal(width)
    )
    levels = risk.levels(len(keys), keys)
    if levels is not None and levels[0] < levels[1]:
        center = 1.0 - (1.0 - levels[0]) / (levels[1] - levels[0])
        if kink is not None:
            center = float(np.interp(kink, values, ranks))
        near = np.abs(ranks[1:] - center) <= _WINDOW
        shares = 0.5 * _normal(shares) + 0.5 * _normal(width * near)
    reach = np.append(0.0, np.cumsum(_normal(shares)))
    goals = np.arange(1, bins) / bins
    return np.unique(np.interp(goals, reach, values))


def _normal(shares: FloatArray) -> FloatArray:
    total = shares.sum()
    return shares / total if total > 0.0 else np.full(len(shares), 1.0 / max(len(shares), 1))


def _sampled(keys: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Some of the values in ascending order, the upper end in detail, and their ranks in [0, 1]."""
    n = len(keys)
    if n <= _SAMPLE:
        return np.sort(keys), (np.arange(n) + 0.5) / n
    parts, ranks = [], []
    rest, below = keys, 0.0
    while True:
        stride = -(-len(rest) // _SAMPLE)
        some = np.sort(rest[::stride])
        share = len(rest) / n
        places = below + share * (np.arange(len(some)) + 0.5) / len(some)
        cut = len(some) - len(some) // _TOP
        if stride == 1 or cut == len(some):
            parts.append(some)
            ranks.append(places)
            break
        upper = rest[rest > some[cut - 1]]
        # Ties may hold the whole upper end: then there is nothing to see there.
        if len(upper) == 0 or len(upper) >= 0.5 * len(rest):
            parts.append(some)
            ranks.append(places)
            break
        parts.append(some[:cut])
        ranks.append(below + (share - len(upper) / n) * (np.arange(cut) + 0.5) / cut)
        rest, below = upper, 1.0 - len(upper) / n
    return np.concatenate([[keys.min()], *parts]), np.concatenate([[0.0], *ranks])


def fill(
    keys: FloatArray, edges: FloatArray, omega: FloatArray, weighted: bool
) -> tuple[NDArray[np.int32], Bins, NDArray[np.intp]]:
    """The bin of every value, the bins, and which of the ``len(edges) + 1`` bins they are."""
    size = len(edges) + 1
    places = np.empty(len(keys), np.int32)
    count, mass, moment = np.zeros((3, size))
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    loops.fill_bins(
        keys, edges, *_guide(edges), omega, weighted, places, count, mass, moment, low, high
    )
    used = np.flatnonzero(count)
    reference = np.append(edges[:1], edges) if size > 1 else np.zeros(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(mass > 0.0, reference + moment / mass, low)
    value = np.clip(value, low, high)
    return places, Bins(*(part[used] for part in (count, mass, value, low, high))), used


def _guide(edges: FloatArray) -> tuple[NDArray[np.int32], float, float, float]:
    """Where to start the search for a bin, by cells that are even up to the middle edge or so."""
    if len(edges) == 0:
        return np.zeros(1, np.int32), 0.0, 1.0, 1.0
    least = float(edges[0])
    span = float(edges[-1]) - least
    offset = max(float(edges[len(edges) // 2]) - least, 1e-9 * span)
    if not offset > 0.0:
        return np.zeros(1, np.int32), least, 1.0, 0.0
    cells = 4 * len(edges)
    scale = cells / np.log1p(span / offset)
    starts = least + offset * np.expm1(np.arange(cells) / scale)
    return np.searchsorted(edges, starts).astype(np.int32), least, offset, float(scale)


def join(parts: list[Bins]) -> Bins:
    """The bins of all workers."""
    return Bins(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Ordered(NamedTuple):
    """The ends of all bins as items in ascending order."""

    upper: float
    lower: float
    mass_low: FloatArray
    mass_high: FloatArray


def bound_risk(risk: Risk, items: Bins) -> Ordered:
    """Bounds on the spectral risk of the losses, and the weights of the two ends of each bin.

    The upper bound has all mass of a bin at its two ends, the lower one at its mean.
    """
    used = items.mass > 0.0
    span = items.high - items.low
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(span > 0.0, (items.value - items.low) / span, 0.0)
    above = items.mass * np.clip(share, 0.0, 1.0)
    below = np.where(used, items.mass - above, 0.0)
    ends, masses = np.concatenate([items.low, items.high]), np.concatenate([below, above])
    order = np.argsort(ends, kind="stable")
    omega = masses[order] / masses.sum()
    weights = np.empty(len(ends))
    weights[order] = risk.increments(omega)
    half = len(items.low)
    upper = float(weights @ ends)
    order = np.argsort(items.value, kind="stable")
    tied = risk.increments(items.mass[order] / items.mass.sum())
    lower = min(float(tied @ items.value[order]), upper)
    return Ordered(upper, lower, weights[:half], weights[half:])


def shortfall(items: Bins, bound: Ordered, held: FloatArray, moment: FloatArray) -> float:
    """The upper bound on the risk less lam . l, without differences of large numbers.

    `held` is what lam puts into each bin, `moment` the sum of lam_i (l_i - low) there.
    """
    inside = bound.mass_high * (items.high - items.low) - moment
    order = np.argsort(items.low, kind="stable")
    low = items.low[order]
    surplus = np.cumsum((held - bound.mass_low - bound.mass_high)[order])
    between = float(surplus[:-1] @ np.diff(low)) - float(surplus[-1] * low[-1])
    return max(float(inside.sum()) + between, 0.0)


class Projected(NamedTuple):
    """What the projection makes of the bins.

    Attributes
    ----------
    density : array
        q of each bin.
    block : array of int32
        What each bin moves with; -1 where it does not move.
    pull : array
        How much of a change of its values, less the mean of the block, its densities follow.
    n_blocks : int
        How many blocks there are.
    """

    density: FloatArray
    block: NDArray[np.int32]
    pull: FloatArray
    n_blocks: int


def project(risk: Risk, items: Bins, n_blocks: int, neighbours: int) -> Projected:
    """Project the values of the bins onto the dual set.

    Bins that are pooled form blocks, whose densities follow their values one to one. Any other bin
    has the density of its rank. That does not move with the bin as a whole, but its samples change
    places with their neighbours when their values move: densities follow by the slope of the
    risk's density in the values. Such bins, and pooled ones beyond the heaviest, share blocks by
    rank.

    Parameters
    ----------
    risk : Risk
        The risk.
    items : Bins
        The bins of all workers.
    n_blocks : int
        Blocks to use at most.
    neighbours : int
        How far to either side slopes are taken: as many bins as there are workers.
    """
    used = np.flatnonzero(items.mass > 0.0)
    used = used[np.argsort(items.value[used], kind="stable")]
    value, count = items.value[used], items.size[used]
    mass = items.mass[used] / items.mass.sum()
    inner, pooled = np.empty(len(used)), np.empty(len(used), np.int32)
    found = Projector(risk, len(used), mass).project(value, inner, pooled)
    block, pull = np.full(len(used), -1, np.int32), np.zeros(len(used))
    heavy = np.argsort(-np.bincount(pooled[pooled >= 0], mass[pooled >= 0], found), kind="stable")
    several = count > 1.0
    if found > n_blocks or several.any():
        heavy = heavy[: max(1, n_blocks // 2)]
    rank = np.full(found + 1, -1, np.int32)
    rank[heavy] = np.arange(len(heavy))
    block[:] = rank[pooled]
    pull[pooled >= 0] = 1.0
    rest = np.flatnonzero((block < 0) & ((pooled >= 0) | several))
    if len(rest):
        density = risk.increments(mass) / mass
        places = np.arange(len(used))
        left = np.maximum(places - neighbours, 0)
        right = np.minimum(places + neighbours, len(used) - 1)
        rise, run = density[right] - density[left], value[right] - value[left]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(rise > 0.0, np.minimum(rise / run, 1.0), 0.0)
        # A bin of ties moves as a pooled one, however far away the others are.
        tied = several & (items.high[used] <= items.low[used])
        pull[rest] = np.where(tied | (pooled >= 0), 1.0, slope)[rest]
        groups = min(len(rest), _GROUPS, max(1, n_blocks - len(heavy)))
        reach = np.cumsum(mass[rest])
        block[rest] = len(heavy) + np.minimum(groups * reach / reach[-1], groups - 1)
    size = len(items.mass)
    out = Projected(np.zeros(size), np.full(size, -1, np.int32), np.zeros(size), 0)
    out.density[used], out.block[used], out.pull[used] = inner, block, pull
    return out._replace(n_blocks=int(block.max(initial=-1)) + 1)


def worst_case(risk: Risk, items: Bins) -> FloatArray:
    """Densities of the bins that attain the risk of their means."""
    used = items.mass > 0.0
    order = np.argsort(items.value, kind="stable")
    density = np.zeros(len(items.mass))
    density[order] = risk.increments(items.mass[order] / items.mass.sum())
    np.divide(density, items.mass, out=density, where=used)
    return np.where(used, density, 0.0)


def pack(bins: Bins) -> NDArray[np.float64]:
    """One array for the wire."""
    return np.stack(bins)


def unpack(array: Any) -> Bins:
    """The bins in such an array."""
    return Bins(*array)
