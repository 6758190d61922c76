"""Loops over values collapsed to bins: which bin a value is in, and sums over the bins."""

from __future__ import annotations

import numpy as np

from sorel._compiled import compiled

# Keys that are turned into cells together: short enough for the cache.
_RUN = 512

# The bits of 1.0, from which cells are counted.
_ONE = 1023 << 52


@compiled(fastmath=False)
def find_cells(keys, least, scale, shift, cells):
    """Cell of each key in a grid that is even up to 1 / scale above `least`, and coarser beyond.

    The leading bits of a floating-point number 1 + t are a monotone function of t, about
    logarithmic, and cost next to nothing.
    """
    run = np.empty(_RUN)
    bits = run.view(np.int64)
    for begin in range(0, keys.size, _RUN):
        part = keys[begin : begin + _RUN]
        for i in range(part.size):
            run[i] = 1.0 + max(part[i] - least, 0.0) * scale
        for i in range(part.size):
            cells[begin + i] = (bits[i] - _ONE) >> shift


@compiled(fastmath=False)
def fill_bins(keys, first, edges, guide, least, scale, shift, omega, weighted, places, sums):
    """Bin of each key; numbers, weights and moments of the bins in the columns of `sums`.

    Bin b holds the keys from ``edges[b - 1]`` on and below ``edges[b]``. Its moment is the sum of
    omega_i (key_i - reference), where the reference is its lower edge, or `first`, the least key:
    differences of near numbers are exact. `guide` has the first bin of each cell of
    :func:`find_cells`, so that the search for a bin takes a step or two.
    """
    last, most = edges.size, guide.size - 1
    uniform = omega[0]
    run = np.empty(_RUN)
    bits = run.view(np.int64)
    for begin in range(0, keys.size, _RUN):
        part = keys[begin : begin + _RUN]
        for i in range(part.size):
            run[i] = 1.0 + max(part[i] - least, 0.0) * scale
        for i in range(part.size):
            key = part[i]
            place = guide[min((bits[i] - _ONE) >> shift, most)]
            while place < last and edges[place] <= key:
                place += 1
            places[begin + i] = place
            weight = omega[begin + i] if weighted else uniform
            reference = edges[place - 1] if place > 0 else first
            sums[place, 0] += 1.0
            sums[place, 1] += weight
            sums[place, 2] += weight * (key - reference)


@compiled(fastmath=False)
def held_by_bins(keys, places, density, omega, weighted, low, held, moment):
    """What a weighting holds in each bin: sums of omega_i q_i, and of omega_i q_i (key_i - low)."""
    uniform = omega[0]
    for i in range(keys.size):
        place = places[i]
        weight = density[i] * (omega[i] if weighted else uniform)
        held[place] += weight
        moment[place] += weight * (keys[i] - low[place])


@compiled(fastmath=False)
def spread_bins(places, levels, blocks, density, block):
    """Give every sample the density and the block of its bin."""
    for i in range(places.size):
        density[i] = levels[places[i]]
        block[i] = blocks[places[i]]
