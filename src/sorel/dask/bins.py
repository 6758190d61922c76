"""Losses collapsed to bins: what a cluster exchanges in place of vectors of length n.

Every worker cuts its own values into at most B bins and sends weight, mean and range of each. The
driver treats a bin as one item of that weight. Samples that share the weight of their bin are a
vector with ties, so what is projected here lies in the dual set exactly, whatever the bins lose.
The risk itself is bounded from above: of all distributions on [low, high] with a given mean, the
one with all mass at the two ends has the largest spectral risk, as it has the largest mean of every
convex function (Madansky 1959).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel.problem.risks import FloatArray, Risk
from sorel.projection import Projector

# Values that the edges are chosen from: some of all ranks, and as many of the largest.
_SAMPLE = 1 << 15

# Share of the bins that is placed by what they can lose; the others by value and rank together.
_BY_LOSS = 0.7

# Cells of the grid by which bins are found, for each bin.
_CELLS_PER_BIN = 8


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


def choose_edges(keys: FloatArray, bins: int, risk: Risk) -> FloatArray:
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
    """
    values, ranks = _sampled(keys)
    if len(keys) <= _SAMPLE:
        different = np.unique(values)
        if len(different) <= bins:
            return different[1:]
    tail = risk.tail(np.clip(1.0 - ranks, 0.0, 1.0))
    width, rise = np.diff(ranks), np.diff(values)
    density = -np.diff(tail) / np.maximum(width, np.finfo(np.float64).tiny)
    loss = np.cbrt(width * rise * np.abs(np.gradient(density)))
    shares = _BY_LOSS * _normal(loss) + (1.0 - _BY_LOSS) * _normal(np.sqrt(width * rise))
    reach = np.append(0.0, np.cumsum(_normal(shares)))
    goals = np.arange(1, bins) / bins
    return np.unique(np.interp(goals, reach, values))


def _normal(shares: FloatArray) -> FloatArray:
    """Divided by their sum, where there is one."""
    total = shares.sum()
    return shares / total if total > 0.0 else shares


def _sampled(keys: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Some of the values in ascending order, the largest all, and their ranks in [0, 1]."""
    n = len(keys)
    some = np.sort(keys[:: -(-n // _SAMPLE)])
    if len(some) == n:
        return some, (np.arange(n) + 0.5) / n
    cut = some[int(len(some) * (1.0 - _SAMPLE / n))]
    lower, upper = some[some <= cut], np.sort(keys[keys > cut])
    share = 1.0 - len(upper) / n
    below = share * (np.arange(len(lower)) + 0.5) / len(lower)
    above = share + (np.arange(len(upper)) + 0.5) / n
    return np.concatenate([[keys.min()], lower, upper]), np.concatenate([[0.0], below, above])


def fill(
    keys: FloatArray, edges: FloatArray, omega: FloatArray, weighted: bool
) -> tuple[NDArray[np.int32], Bins, NDArray[np.intp]]:
    """The bin of every value, the bins, and which of the ``len(edges) + 1`` bins they are.

    The range of a bin is that of its edges, but for the first and the last one.
    """
    size = len(edges) + 1
    places, sums = np.empty(len(keys), np.int32), np.zeros((size, 3))
    first = float(keys.min())
    _core.fill_bins(keys, first, edges, *_guide(edges), omega, weighted, places, sums)
    used = np.flatnonzero(sums[:, 0])
    number, mass, moment = sums[used].T.copy()
    low = np.append(first, edges)[used]
    high = np.append(edges, keys.max())[used]
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(mass > 0.0, low + moment / mass, low)
    # A bin of one sample has no width, nor has one of equal values: then the mean is the edge.
    alone = (number == 1.0) | (value == low)
    high[alone] = value[alone]
    low[alone] = value[alone]
    return places, Bins(number, mass, np.clip(value, low, high), low, high), used


def _guide(edges: FloatArray) -> tuple[NDArray[np.int32], float, float, int]:
    """The first bin of each cell, and what cells depend on: see the compiled loop."""
    least = float(edges[0]) if len(edges) else 0.0
    span = float(edges[-1]) - least if len(edges) else 0.0
    middle = float(edges[len(edges) // 2]) - least if len(edges) else 0.0
    if not span > 0.0:
        return np.zeros(1, np.int32), least, 0.0, 52
    scale = 1.0 / max(middle, 1e-6 * span)
    octaves = 1 + int(np.log2(1.0 + span * scale))
    shift = 52 - max(1, int(np.log2(_CELLS_PER_BIN * len(edges) / octaves)))
    cells = np.empty(len(edges), np.int64)
    _core.find_cells(edges, least, scale, shift, cells)
    guide = np.searchsorted(cells, np.arange(cells[-1] + 2)).astype(np.int32)
    return guide, least, scale, shift


def join(parts: Sequence[Bins]) -> Bins:
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
    lower = min(float((worst_case(risk, items) * items.mass) @ items.value), upper)
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
        groups = min(len(rest), max(1, n_blocks - len(heavy)))
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
