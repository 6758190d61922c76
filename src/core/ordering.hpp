// Sorted lists by insertion: an item that moves to its place, and the repair of a whole order.
#pragma once

#include <algorithm>
#include <limits>

#include "core.hpp"

namespace sorel {

// Share of the moves of a repair that is granted from the start. The rest comes with the items, so
// that an order that is far off is seen to be so after a few of them.
constexpr double kEarlyShare = 0.1;

// Insert an item among the sorted ones before `rank`, ties by number; return where it went. Those
// that make room take their entries of `also` with them, and `position` notes their ranks; either
// may be null. The entry at `rank` itself is overwritten.
template <class Index>
SOREL_INLINE index sink(double* key, Index* order, index rank, double value, Index item,
                        Index* position, double* also) {
    while (rank > 0 &&
           (key[rank - 1] > value || (key[rank - 1] == value && order[rank - 1] > item))) {
        key[rank] = key[rank - 1];
        order[rank] = order[rank - 1];
        if (also) also[rank] = also[rank - 1];
        if (position) position[order[rank]] = static_cast<Index>(rank);
        --rank;
    }
    key[rank] = value;
    order[rank] = item;
    if (position) position[item] = static_cast<Index>(rank);
    return rank;
}

// key = values in ascending order, by insertion from the given order, ties by position. False once
// the budget of moves is spent; the order is still a permutation then.
template <class Index>
inline bool repair(Vector<const double> values, Vector<Index> order, Vector<double> key,
                   double budget) {
    const index n = order.size();
    const double early = kEarlyShare * budget;
    const double rate = (1.0 - kEarlyShare) * budget / static_cast<double>(std::max<index>(n, 1));
    index spent = 0;
    double last = -std::numeric_limits<double>::infinity();
    Index last_item = -1;
    for (index i = 0; i < n; ++i) {
        const Index item = order[i];
        const double value = values[item];
        if (last < value || (last == value && last_item < item)) {
            key[i] = last = value;
            last_item = item;
            continue;
        }
        spent += 1 + i - sink<Index>(key.data, order.data, i, value, item, nullptr, nullptr);
        last = key[i];
        last_item = order[i];
        if (static_cast<double>(spent) > early + rate * static_cast<double>(i)) return false;
    }
    return true;
}

// Sort a key, and its order, whose entries before a place are sorted and so are those from it on.
// False once the budget of moves is spent.
template <class Index>
inline bool merge(Vector<Index> order, Vector<double> key, index place, double budget) {
    for (index i = place, spent = 0; i < order.size(); ++i) {
        const index rank =
            sink<Index>(key.data, order.data, i, key[i], order[i], nullptr, nullptr);
        // Where one entry is in its place, so are those after it.
        if (rank == i) return true;
        spent += i - rank;
        if (static_cast<double>(spent) > budget) return false;
    }
    return true;
}

}  // namespace sorel
