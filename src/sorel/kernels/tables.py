"""Sorted tables of single samples: a changed entry moves to its place, and blocks are pooled.

The methods with tables (Prospect, SAGA) keep the losses of all samples in order and renew a few of
them at every step.
"""

from __future__ import annotations

import math

from sorel._compiled import compiled
from sorel.permutahedron.ordering import sink
from sorel.permutahedron.pooling import pool


@compiled
def move_entry(key, order, position, item, value):
    """Give one item of a sorted list a new key: only the items between its ranks move."""
    # A loss that is not a number has no place in the order: leave the divergence to w.
    if value != value:
        return
    n = key.shape[0]
    rank = sink(key, order, position[item], value, item, position, None)
    while rank + 1 < n and (
        key[rank + 1] < value or (key[rank + 1] == value and order[rank + 1] < item)
    ):
        key[rank] = key[rank + 1]
        order[rank] = order[rank + 1]
        position[order[rank]] = rank
        rank += 1
    key[rank] = value
    order[rank] = item
    position[item] = rank


@compiled
def repair_order(key, order, position, companion):
    """Sort by insertion what was sorted before the keys changed; `companion` moves with them."""
    for i in range(1, key.shape[0]):
        value, item = key[i], order[i]
        if key[i - 1] < value or (key[i - 1] == value and order[i - 1] < item):
            continue
        carried = companion[i]
        companion[sink(key, order, i, value, item, position, companion)] = carried


@compiled
def pool_sorted(key, mass, pools, bounds):
    """Blocks of the projection of ascending keys onto the permutahedron of `mass`.

    Block b spans bounds[2 * b]:bounds[2 * b + 1] and its items get q = key - ref - pools[0, b] with
    ref its first key: keys may be large against the weights. Items that are in no block get their
    mass. The other two rows of `pools` are working memory.
    """
    return pool(key, mass, None, bounds, pools[0], pools[1], pools[2], pools[2])


@compiled
def pooled_density(rank, key, mass, pools, bounds, blocks):
    """q of the item at a rank, by bisection for its block."""
    low, high = 0, blocks
    while high - low > 1:
        middle = (low + high) // 2
        if bounds[2 * middle] <= rank:
            low = middle
        else:
            high = middle
    if blocks > 0 and bounds[2 * low] <= rank < bounds[2 * low + 1]:
        return key[rank] - key[bounds[2 * low]] - pools[0, low]
    return mass[rank]


@compiled
def ranked_weights(rows, key, position, mass, nu, pools, bounds, weights):
    """Prospect's weights of a batch: sigma by rank, or the projection of the keys where nu > 0."""
    blocks = pool_sorted(key, mass, pools, bounds) if nu > 0.0 else 0
    for b in range(rows.shape[0]):
        rank = position[rows[b]]
        if nu > 0.0:
            weights[b] = pooled_density(rank, key, mass, pools, bounds, blocks)
        else:
            weights[b] = mass[rank]


@compiled
def saddle_ascent(
    probes, probed, losses, density, key, order, position, mass, nu, dual_step, pools, bounds
):
    """The dual step of SAGA with the probed losses of a batch; False where it diverged."""
    n, batch = key.shape[0], probes.shape[0]
    damping = 1.0 / (1.0 + dual_step * nu)
    for rank in range(n):
        key[rank] = (density[rank] + dual_step * (losses[rank] + nu)) * damping
    finite = True
    for b in range(batch):
        rank = position[probes[b]]
        key[rank] += dual_step * damping * n * (probed[b] - losses[rank]) / batch
        finite = finite and abs(key[rank]) < math.inf
    if not finite:
        return False
    for b in range(batch):
        losses[position[probes[b]]] = probed[b]
    repair_order(key, order, position, losses)
    blocks = pool_sorted(key, mass, pools, bounds)
    for rank in range(n):
        density[rank] = mass[rank]
    for b in range(blocks):
        start = bounds[2 * b]
        for rank in range(start, bounds[2 * b + 1]):
            density[rank] = key[rank] - key[start] - pools[0, b]
    return True
