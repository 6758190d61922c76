// Projection onto the permutahedron by pooling, with equal weights and with sample weights.
#include "pooling.hpp"

#include <limits>


namespace sorel {
namespace {

// q back in the places of the items, and the number of the block of each, or -1.
template <bool kWeighted, class Index>
SOREL_INLINE void write_pooled(const double* key, const double* mass, const double* weight,
                               Vector<Index> order, index count, const Index* bounds,
                               const double* levels, double* out, std::int32_t* block) {
    const index n = order.size();
    std::fill_n(block, n, -1);
    // Those alone, and for now the others: it is faster than to ask.
    for (index i = 0; i < n; ++i) out[order[i]] = kWeighted ? mass[i] / weight[i] : mass[i];
    for (index b = 0; b < count; ++b) {
        const index start = bounds[2 * b], stop = bounds[2 * b + 1];
        // Minus the level is q at the reference: nonnegative, like the distances from there.
        const double base = -levels[b], reference = key[start];
        const double least = kWeighted ? 0.0 : mass[start];
        const double most = kWeighted ? std::numeric_limits<double>::infinity() : mass[stop - 1];
        for (index i = start; i < stop; ++i) {
            out[order[i]] = std::min(std::max((key[i] - reference) + base, least), most);
            block[order[i]] = static_cast<std::int32_t>(b);
        }
    }
}

// The projection of sorted keys for equal weights; returns the number of blocks.
template <class Index>
SOREL_CLONES index project_sorted(Vector<const double> key, Vector<const double> mass,
                                  Vector<Index> order, Vector<Index> bounds, Vector<double> levels,
                                  Vector<double> spills, Vector<double> out,
                                  Vector<std::int32_t> block) {
    const index n = key.size();
    // The vector that will hold q serves the pooling until then.
    const Blocks<Index> blocks{bounds.data, levels.data, out.data, spills.data, nullptr};
    const index count = pool<false>(key.data, mass.data, nullptr, n, blocks);
    write_pooled<false>(key.data, mass.data, nullptr, order, count, bounds.data, levels.data,
                        out.data, block.data);
    return count;
}

// The same with sample weights in the same order as the keys.
template <class Index>
SOREL_CLONES index project_weighted(Vector<const double> key, Vector<const double> mass,
                                    Vector<const double> weight, Vector<Index> order,
                                    Vector<Index> bounds, Vector<double> levels,
                                    Vector<double> spills, Vector<double> heavies,
                                    Vector<double> out, Vector<std::int32_t> block) {
    const Blocks<Index> blocks{bounds.data, levels.data, out.data, spills.data, heavies.data};
    const index count = pool<true>(key.data, mass.data, weight.data, key.size(), blocks);
    write_pooled<true>(key.data, mass.data, weight.data, order, count, bounds.data, levels.data,
                       out.data, block.data);
    return count;
}

template <class Index>
void bind(nb::module_& m) {
    define(m, "project_sorted", "key mass order bounds levels spills out block",
           project_sorted<Index>);
    define(m, "project_weighted", "key mass weight order bounds levels spills heavies out block",
           project_weighted<Index>);
}

}  // namespace

void bind_pooling(nb::module_& m) {
    bind<std::int32_t>(m);
    bind<std::int64_t>(m);
}

}  // namespace sorel
