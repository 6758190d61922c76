// The spectral risk of given losses, its worst weighting, and how far a weighting falls short.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>

#include "core.hpp"

namespace sorel {
namespace {

// out[order[i]] = values[i]: the value at each rank goes where the item of that rank is.
template <class Index>
void scatter(Vector<const double> values, Vector<const Index> order, Vector<double> out) {
    for (index i = 0; i < order.size(); ++i) out[order[i]] = values[i];
}

// Two-level weights by comparison with the loss at the bend, the edge; ties with it by position.
SOREL_CLONES void fill_levels(Vector<const double> losses, double low, double middle, double high,
                              index bend, double edge, Vector<double> out) {
    const index n = losses.size();
    std::int64_t rank = 0;
#pragma omp simd reduction(+ : rank)
    for (index i = 0; i < n; ++i) rank += losses[i] < edge;
    for (index i = 0; i < n; ++i) {
        if (losses[i] < edge)
            out[i] = low;
        else if (losses[i] > edge)
            out[i] = high;
        else {
            out[i] = rank < bend ? low : rank == bend ? middle : high;
            ++rank;
        }
    }
}

// Sums and counts of the losses below and above an edge.
SOREL_CLONES std::tuple<double, index, double, index> sums_beside(Vector<const double> losses,
                                                                  double edge) {
    double below = 0, above = 0;
    std::int64_t n_below = 0, n_above = 0;
    const index n = losses.size();
#pragma omp simd reduction(+ : below, above, n_below, n_above)
    for (index i = 0; i < n; ++i) {
        const double x = losses[i];
        below += x < edge ? x : 0.0;
        above += x > edge ? x : 0.0;
        n_below += x < edge;
        n_above += x > edge;
    }
    return {below, n_below, above, n_above};
}

// sum_j (sum_{i <= j} (w_i q_i - mass_i)) (l_(j+1) - l_(j)), the inner sum compensated (Abel
// summation), for a range of ranks: `surplus + spill` is the inner sum before it, `following` the
// loss after it. Every term is nonnegative up to rounding for a weighting of the set: a negative
// total tells of one outside. What rounding has taken from the total weight is missing at the
// largest loss, which 0 follows. Returns the total, and the inner sum at the end.
template <class Index>
std::tuple<double, double, double> ordered_shortfall(
    Vector<const double> key, Vector<const double> mass, Vector<const double> density,
    Optional<const double> weight, Vector<const Index> order, double surplus, double spill,
    double following) {
    double total = 0;
    const index last = order.size() - 1;
    for (index j = 0; j <= last; ++j) {
        const index i = order[j];
        const double own = weight ? density[i] * weight[i] : density[i];
        const double change = own - mass[j];
        const double grown = surplus + change;
        const double piece = grown - surplus;
        spill += (surplus - (grown - piece)) + (change - piece);
        surplus = grown;
        total += (surplus + spill) * ((j < last ? key[j + 1] : following) - key[j]);
    }
    return {total, surplus, spill};
}

// The same for two levels: above the bend the high level is due, below it the low one.
SOREL_CLONES double level_shortfall(Vector<const double> losses, Vector<const double> density,
                                    double low, double high, double edge) {
    double total = 0;
    const index n = losses.size();
#pragma omp simd reduction(+ : total)
    for (index i = 0; i < n; ++i) {
        const double distance = losses[i] - edge;
        const double due = distance > 0.0 ? high : low;
        total += (due - density[i]) * distance;
    }
    return total;
}

template <class Index>
void bind(nb::module_& m) {
    define(m, "scatter", "values order out", scatter<Index>);
    define(m, "ordered_shortfall", "key mass density weight order surplus spill following",
           ordered_shortfall<Index>);
}

}  // namespace

void bind_values(nb::module_& m) {
    bind<std::int32_t>(m);
    bind<std::int64_t>(m);
    define(m, "fill_levels", "losses low middle high bend edge out", fill_levels);
    define(m, "sums_beside", "losses edge", sums_beside);
    define(m, "level_shortfall", "losses density low high edge", level_shortfall);
}

}  // namespace sorel
