// Pooling adjacent violators: the projection of a sorted vector onto the permutahedron.
//
// The blocks of several items stand on a stack. Each item that violates the order is merged with
// those before it, and perhaps with some that follow (Best & Chakravarti 1990). All is kept
// relative to the first item of a block, and sums carry their rounding errors (the two-sum of
// Knuth, vol. 2, 4.2.2), so files that include this are compiled without fused multiply-adds where
// these digits matter.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core.hpp"

namespace sorel {

// Items searched for violators at a time, and parts of them that may have none.
constexpr index kPoolRun = 512;
constexpr index kPoolPart = 16;

// The stack of blocks. Block b spans bounds[2 b] to bounds[2 b + 1]. It holds D, the sum of
// weight (key - ref) - mass, as totals[b] + spills[b], its weight in heavies[b] (if weighted), and
// D over the weight in levels[b]. Blocks have two items or more: n entries of each suffice.
template <class Index>
struct Blocks {
    Index* bounds;
    double* levels;
    double* totals;
    double* spills;
    double* heavies;
};

// Whether items r and r + 1 violate the order, for r from begin on: their numbers go to `marks`.
template <bool kWeighted>
SOREL_INLINE int find_violators(const double* key, const double* mass, const double* weight,
                                index begin, index count, std::uint16_t* marks) {
    const double *left = key + begin - 1, *right = key + begin;
    const double *less = mass + begin - 1, *more = mass + begin;
    int found = 0;
    for (index first = 0; first < count; first += kPoolPart) {
        const index last = std::min(first + kPoolPart, count);
        if (!kWeighted && last - first == kPoolPart) {
            // Most parts have none where eta is large, which is seen for many items at a time.
            std::int64_t violators = 0;
#pragma omp simd reduction(+ : violators)
            for (index r = first; r < first + kPoolPart; ++r)
                violators += more[r] - less[r] > right[r] - left[r];
            if (violators == 0) continue;
        }
        // Without a branch, which no processor could foresee.
        for (index r = first; r < last; ++r) {
            double own = more[r], other = less[r];
            if (kWeighted) {
                own /= weight[begin + r];
                other /= weight[begin + r - 1];
            }
            marks[found] = static_cast<std::uint16_t>(r);
            found += own - other > right[r] - left[r];
        }
    }
    return found;
}

// Pool adjacent violators of key - mass / weight; return the number of blocks of several items.
// Items in no block stay alone and get q = mass / weight, those of a block q = key - ref - level.
template <bool kWeighted, class Index>
SOREL_INLINE index pool(const double* key, const double* mass, const double* weight, index n,
                        Blocks<Index> blocks) {
    std::uint16_t marks[kPoolRun];
    index top = -1, stop = 0;
    const auto weight_of = [=](index i) { return kWeighted ? weight[i] : 1.0; };
    const auto level_of = [=](index i) { return kWeighted ? -mass[i] / weight[i] : -mass[i]; };
    for (index begin = 1; begin < n; begin += kPoolRun) {
        const index count = std::min(kPoolRun, n - begin);
        const int found = find_violators<kWeighted>(key, mass, weight, begin, count, marks);
        for (int mark = 0; mark < found; ++mark) {
            index start = begin + marks[mark];
            // What joined a block, or was refused by it, is done.
            if (start <= stop) continue;
            bool joins = true;
            stop = start;
            while (joins) {
                // A block of the next item alone, which takes in those before it.
                ++stop;
                double heavy = weight_of(start), total = -mass[start], spill = 0.0;
                double level = level_of(start), reference = key[start];
                while (start > 0) {
                    const bool pooled = top >= 0 && blocks.bounds[2 * top + 1] == start;
                    const index old_start = pooled ? blocks.bounds[2 * top] : start - 1;
                    const double old_level = pooled ? blocks.levels[top] : level_of(old_start);
                    // Means are compared through the distance of the references: sums of large keys
                    // would lose the digits that decide.
                    const double step = reference - key[old_start];
                    if (old_level - level <= step) break;
                    double old_total = -mass[old_start], old_spill = 0.0;
                    double old_heavy = weight_of(old_start);
                    if (pooled) {
                        old_total = blocks.totals[top];
                        old_spill = blocks.spills[top];
                        if (kWeighted) old_heavy = blocks.heavies[top];
                        --top;
                    }
                    // old_total + total + moved, with the rounding errors kept: a plain running sum
                    // over a large block would pool wrongly in its last digits.
                    const double moved = heavy * step;
                    const double pair = old_total + total;
                    double part = pair - old_total;
                    double lost = (old_total - (pair - part)) + (total - part);
                    const double triple = pair + moved;
                    part = triple - pair;
                    lost += (pair - (triple - part)) + (moved - part);
                    lost += old_spill + spill;
                    total = triple + lost;
                    spill = lost - (total - triple);
                    start = old_start;
                    heavy = kWeighted ? old_heavy + heavy : static_cast<double>(stop - start);
                    level = total / heavy;
                    reference = key[start];
                }
                ++top;
                blocks.bounds[2 * top] = static_cast<Index>(start);
                blocks.bounds[2 * top + 1] = static_cast<Index>(stop);
                blocks.levels[top] = level;
                blocks.totals[top] = total;
                blocks.spills[top] = spill;
                if (kWeighted) blocks.heavies[top] = heavy;
                joins = false;
                if (stop < n) {
                    joins = level - level_of(stop) > key[stop] - reference;
                    start = stop;
                }
            }
        }
    }
    return top + 1;
}

}  // namespace sorel
