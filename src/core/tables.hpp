// Sorted tables of single samples: a changed entry moves to its place, and blocks are pooled.
//
// The methods with tables (Prospect, SAGA) keep the losses of all samples in order and renew a few
// of them at every step: order[r] is the item at rank r, position its inverse.
#pragma once

#include <cstdint>

#include "ordering.hpp"
#include "pooling.hpp"

namespace sorel {

// The sorted keys of n items with their masses by rank, and room for n / 2 blocks of the
// projection.
struct Table {
    index n;
    double* key;
    std::int64_t *order, *position;
    const double* mass;
    double* pools;
    std::int64_t* bounds;
};

// Give one item a new key: only the items between its ranks move.
SOREL_INLINE void move_entry(const Table& table, std::int64_t item, double value) {
    // A loss that is not a number has no place in the order: leave the divergence to w.
    if (value != value) return;
    double* key = table.key;
    std::int64_t *order = table.order, *position = table.position;
    index rank = sink(key, order, position[item], value, item, position, nullptr);
    while (rank + 1 < table.n &&
           (key[rank + 1] < value || (key[rank + 1] == value && order[rank + 1] < item))) {
        key[rank] = key[rank + 1];
        order[rank] = order[rank + 1];
        position[order[rank]] = rank;
        ++rank;
    }
    key[rank] = value;
    order[rank] = item;
    position[item] = rank;
}

// Sort by insertion what was sorted before the keys changed; `companion` moves with them.
SOREL_INLINE void repair_order(const Table& table, double* companion) {
    double* key = table.key;
    std::int64_t* order = table.order;
    for (index i = 1; i < table.n; ++i) {
        const double value = key[i];
        const std::int64_t item = order[i];
        if (key[i - 1] < value || (key[i - 1] == value && order[i - 1] < item)) continue;
        const double carried = companion[i];
        companion[sink(key, order, i, value, item, table.position, companion)] = carried;
    }
}

// Blocks of the projection of the keys onto the permutahedron of `mass`: block b spans bounds[2 b]
// to bounds[2 b + 1], and its items get q = key - ref - pools[b] with ref its first key, since keys
// may be large against the weights. Items in no block get their mass.
SOREL_INLINE index pool_sorted(const Table& table) {
    const index n = table.n;
    double *levels = table.pools, *totals = levels + n, *spills = totals + n;
    return pool<false, std::int64_t>(table.key, table.mass, nullptr, n,
                                     {table.bounds, levels, totals, spills, spills});
}

// q of the item at a rank, by bisection for its block.
SOREL_INLINE double pooled_density(const Table& table, index rank, index blocks) {
    const std::int64_t* bounds = table.bounds;
    index low = 0, high = blocks;
    while (high - low > 1) {
        const index middle = (low + high) / 2;
        (bounds[2 * middle] <= rank ? low : high) = middle;
    }
    if (blocks > 0 && bounds[2 * low] <= rank && rank < bounds[2 * low + 1])
        return table.key[rank] - table.key[bounds[2 * low]] - table.pools[low];
    return table.mass[rank];
}

// Prospect's weights of a batch: sigma by rank, or the projection of the keys where nu > 0.
inline void ranked_weights(const Table& table, const std::int64_t* rows, index batch, double nu,
                           double* weights) {
    const index blocks = nu > 0.0 ? pool_sorted(table) : 0;
    for (index b = 0; b < batch; ++b)
        weights[b] = pooled_density(table, table.position[rows[b]], blocks);
}

// The dual step of SAGA with the probed losses of a batch; false where it diverged. `losses` and
// `density` stand in the order of the keys.
inline bool saddle_ascent(const Table& table, const std::int64_t* probes, const double* probed,
                          index batch, double* losses, double* density, double nu,
                          double dual_step) {
    const index n = table.n;
    const double damping = 1.0 / (1.0 + dual_step * nu);
    for (index rank = 0; rank < n; ++rank)
        table.key[rank] = (density[rank] + dual_step * (losses[rank] + nu)) * damping;
    bool finite = true;
    for (index b = 0; b < batch; ++b) {
        const index rank = table.position[probes[b]];
        table.key[rank] += dual_step * damping * static_cast<double>(n) *
                           (probed[b] - losses[rank]) / static_cast<double>(batch);
        finite = finite && std::isfinite(table.key[rank]);
    }
    if (!finite) return false;
    for (index b = 0; b < batch; ++b) losses[table.position[probes[b]]] = probed[b];
    repair_order(table, losses);
    const index blocks = pool_sorted(table);
    std::copy(table.mass, table.mass + n, density);
    for (index b = 0; b < blocks; ++b) {
        const index start = table.bounds[2 * b], stop = table.bounds[2 * b + 1];
        for (index rank = start; rank < stop; ++rank)
            density[rank] = table.key[rank] - table.key[start] - table.pools[b];
    }
    return true;
}

}  // namespace sorel
