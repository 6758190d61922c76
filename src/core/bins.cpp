// Values collapsed to bins: which bin a value is in, and sums over the bins.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core.hpp"

namespace sorel {
namespace {

// Keys that are turned into cells together: short enough for the first cache.
constexpr index kRun = 512;
// The bits of 1.0, from which cells are counted.
constexpr std::int64_t kOne = std::int64_t{1023} << 52;

// cells = the leading bits of 1 + t, t = (key - least) scale: a monotone function of t, even up to
// t = 1 and about logarithmic beyond, that costs next to nothing.
SOREL_INLINE void cells_of(const double* keys, index n, double least, double scale, index shift,
                           std::int64_t* cells) {
    for (index i = 0; i < n; ++i) {
        const double t = 1.0 + std::max(keys[i] - least, 0.0) * scale;
        std::int64_t bits;
        std::memcpy(&bits, &t, sizeof bits);
        cells[i] = (bits - kOne) >> shift;
    }
}

SOREL_CLONES void find_cells(Vector<const double> keys, double least, double scale, index shift,
                             Vector<std::int64_t> cells) {
    cells_of(keys.data, keys.size(), least, scale, shift, cells.data);
}

// Bin of each key; numbers, weights and moments of the bins in the columns of `sums`.
//
// Bin b holds the keys from edges[b - 1] on and below edges[b]. Its moment is the sum of
// omega_i (key_i - reference), where the reference is its lower edge, or `first`, the least key:
// differences of near numbers are exact. `guide` has the first bin of each cell of `find_cells`, so
// that the search for a bin takes a step or two.
SOREL_CLONES void fill_bins(Vector<const double> keys, double first, Vector<const double> edges,
                            Vector<const std::int32_t> guide, double least, double scale,
                            index shift, Vector<const double> omega, bool weighted,
                            Vector<std::int32_t> places, Matrix<double> sums) {
    const index n = keys.size(), last = edges.size();
    const std::int64_t most = guide.size() - 1;
    std::int64_t cells[kRun];
    for (index begin = 0; begin < n; begin += kRun) {
        const index end = std::min(begin + kRun, n);
        cells_of(keys.data + begin, end - begin, least, scale, shift, cells);
        for (index i = begin; i < end; ++i) {
            const double key = keys[i];
            index place = guide[std::clamp(cells[i - begin], std::int64_t{0}, most)];
            while (place < last && edges[place] <= key) ++place;
            places[i] = static_cast<std::int32_t>(place);
            const double weight = omega[weighted ? i : 0];
            const double reference = place > 0 ? edges[place - 1] : first;
            double* sum = sums.row(place);
            sum[0] += 1.0;
            sum[1] += weight;
            sum[2] += weight * (key - reference);
        }
    }
}

// What a weighting holds in each bin: sums of omega_i q_i, and of omega_i q_i (key_i - low).
void held_by_bins(Vector<const double> keys, Vector<const std::int32_t> places,
                  Vector<const double> density, Vector<const double> omega, bool weighted,
                  Vector<const double> low, Vector<double> held, Vector<double> moment) {
    for (index i = 0; i < keys.size(); ++i) {
        const index place = places[i];
        const double weight = density[i] * omega[weighted ? i : 0];
        held[place] += weight;
        moment[place] += weight * (keys[i] - low[place]);
    }
}

// Give every sample the density and the block of its bin.
void spread_bins(Vector<const std::int32_t> places, Vector<const double> levels,
                 Vector<const std::int32_t> blocks, Vector<double> density,
                 Vector<std::int32_t> block) {
    for (index i = 0; i < places.size(); ++i) {
        density[i] = levels[places[i]];
        block[i] = blocks[places[i]];
    }
}

}  // namespace

void bind_bins(nb::module_& m) {
    define(m, "find_cells", "keys least scale shift cells", find_cells);
    define(m, "fill_bins", "keys first edges guide least scale shift omega weighted places sums",
           fill_bins);
    define(m, "held_by_bins", "keys places density omega weighted low held moment", held_by_bins);
    define(m, "spread_bins", "places levels blocks density block", spread_bins);
}

}  // namespace sorel
