"""Loops over values collapsed to bins: which bin a value is in, and sums over the bins."""

from __future__ import annotations

import math

from sorel._compiled import compiled


@compiled(fastmath=False)
def fill_bins(
    keys,
    edges,
    guide,
    least,
    offset,
    scale,
    omega,
    weighted,
    places,
    count,
    mass,
    moment,
    low,
    high,
):
    """Bin of each key, and numbers, weights, moments, least and largest keys of the bins.

    Bin b holds the keys from ``edges[b - 1]`` on and below ``edges[b]``. Its moment is the sum of
    omega_i (key_i - reference), where the reference is its lower edge: differences of near numbers
    are exact. `guide` has a bin near the right one for each cell of a logarithmic grid, from which
    a few steps lead to it; a search by halves would take ten times as long.
    """
    last, cells = edges.size, guide.size
    uniform = omega[0]
    for i in range(keys.size):
        key = keys[i]
        place = 0
        if last > 0:
            cell = int(scale * math.log(max(key - least, 0.0) / offset + 1.0))
            place = guide[min(cell, cells - 1)]
            while place > 0 and edges[place - 1] > key:
                place -= 1
            while place < last and edges[place] <= key:
                place += 1
        places[i] = place
        weight = omega[i] if weighted else uniform
        reference = edges[max(place - 1, 0)] if last > 0 else 0.0
        count[place] += 1.0
        mass[place] += weight
        moment[place] += weight * (key - reference)
        low[place] = min(low[place], key)
        high[place] = max(high[place], key)


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
