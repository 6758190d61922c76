// Loops over vectors of length n that know neither X nor a loss.
//
// `density` is q, `omega` the sample weights (one entry that all samples share unless `weighted`),
// `block` the block of each sample in the last projection, or -1.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core.hpp"
#include "lanes.hpp"
#include "weights.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;
using Blocks = Vector<const std::int32_t>;

// Items of a partial sum. With it errors stay below n / 100 roundings, which certificates rely on.
constexpr index kRun = 128;

// out_b += total sample weight of block b, times the sampling factors when rows were sampled
void block_totals(Blocks block, Optional<const double> factor, Values omega, bool weighted,
                  Vector<double> out) {
    for (index i = 0; i < block.size(); ++i) {
        if (block[i] < 0) continue;
        const double weight = weighted ? omega[i] : omega[0];
        out[block[i]] += factor ? weight * factor[i] : weight;
    }
}

// totals_b <- eta / totals_b; 0 for a block without weight, which has no mean to take out
void block_scales(double eta, Vector<double> totals) {
    for (index b = 0; b < totals.size(); ++b) totals[b] = totals[b] > 0.0 ? eta / totals[b] : 0.0;
}

// sums_b *= sqrt(scale_b): their products with themselves are what the means of the blocks take out
void root_scaled(Values scale, Matrix<double> sums) {
    for (index b = 0; b < sums.shape[0]; ++b) {
        const double root = std::sqrt(scale[b]);
        double* sum = sums.row(b);
#pragma omp simd
        for (index j = 0; j < sums.shape[1]; ++j) sum[j] *= root;
    }
}

// How many entries are not 0, and their sum.
SOREL_CLONES std::tuple<index, double> count_and_sum(Values h) {
    const index n = h.size();
    std::int64_t count = 0;
    double total = 0.0;
#pragma omp simd reduction(+ : count, total)
    for (index i = 0; i < n; ++i) {
        count += h[i] != 0.0;
        total += h[i];
    }
    return {count, total};
}

// Choose rows with probability h / unit, at most 1, and scale them so that the sum is kept.
// Systematic sampling (Madow 1949): a row is taken whenever the running sum of h passes a multiple
// of the unit. `factor` is 0 for a row left out. Rows in blocks are all kept when `keep_blocks`.
void sample_rows(Values h, Blocks block, bool keep_blocks, double unit, Vector<double> sampled,
                 Vector<double> factor) {
    double running = 0.5 * unit;
    for (index i = 0; i < h.size(); ++i) {
        factor[i] = 1.0;
        if (h[i] != 0.0 && !(keep_blocks && block[i] >= 0)) {
            running += h[i];
            factor[i] = running >= unit ? std::max(1.0, unit / h[i]) : 0.0;
            if (running >= unit) running -= unit * std::floor(running / unit);
        }
        sampled[i] = h[i] * factor[i];
    }
}

// target = q + eta [(1 + theta) l - theta l_prev]
SOREL_CLONES void ascent_target(Values density, Values losses, Values previous, double eta,
                                double theta, Vector<double> target) {
    const index n = density.size();
    if (theta == 0.0) {
#pragma omp simd
        for (index i = 0; i < n; ++i) target[i] = density[i] + eta * losses[i];
    } else {
#pragma omp simd
        for (index i = 0; i < n; ++i)
            target[i] = density[i] + eta * (losses[i] + theta * (losses[i] - previous[i]));
    }
}

// sum_i omega_i q_i l_i, in short runs: a long plain sum loses what is small against an outlier
// that came before it.
SOREL_CLONES double weighted_sum(Values density, Values losses, Values omega, bool weighted) {
    const index n = density.size();
    return with_weights(omega, weighted, [&](auto weight) SOREL_INLINED {
        double total = 0.0;
        for (index first = 0; first < n; first += kRun) {
            const index last = std::min(first + kRun, n);
            double part = 0.0;
#pragma omp simd reduction(+ : part)
            for (index i = first; i < last; ++i) part += weight(i) * density[i] * losses[i];
            total += part;
        }
        return total;
    });
}

// sum_i l_i^2 over the samples that have a weight
SOREL_CLONES double square_of_used(Values losses, Values omega) {
    return sum_terms(losses.size(), [&](index i) SOREL_INLINED {
        const double square = losses[i] * losses[i];
        return omega[i] > 0.0 ? square : 0.0;
    });
}

// sum_i omega_i (q_i - q'_i)^2
SOREL_CLONES double weighted_square_distance(Values density, Values others, Values omega,
                                             bool weighted) {
    return with_weights(omega, weighted, [&](auto weight) SOREL_INLINED {
        return sum_terms(density.size(), [&](index i) SOREL_INLINED {
            return weight(i) * (density[i] - others[i]) * (density[i] - others[i]);
        });
    });
}

// means_b = omega-weighted mean of the values over block b, and totals_b its weight
void block_means(Blocks block, Values values, Values omega, bool weighted, Vector<double> totals,
                 Vector<double> means) {
    std::fill_n(totals.data, totals.size(), 0.0);
    std::fill_n(means.data, means.size(), 0.0);
    for (index i = 0; i < block.size(); ++i) {
        const index b = block[i];
        if (b < 0) continue;
        const double weight = weighted ? omega[i] : omega[0];
        totals[b] += weight;
        means[b] += weight * values[i];
    }
    for (index b = 0; b < means.size(); ++b)
        if (totals[b] > 0.0) means[b] /= totals[b];
}

// change <- h change - pull scale_b sum of (pull change) over the block b of each sample: a change
// of margins becomes that of omega q phi'. `h` holds the weights of `augmented_curvature`, `pull`
// is omega phi', and `scale` is eta over the weight of the block: inside a block the weights move
// with the losses, less their mean.
void apply_curvature(Values h, Values pull, Blocks block, Values scale, Vector<double> change) {
    const index n = change.size(), blocks = scale.size();
    std::vector<double> sums(blocks);
    for (index i = 0; i < n; ++i)
        if (block[i] >= 0) sums[block[i]] += pull[i] * change[i];
    for (index b = 0; b < blocks; ++b) sums[b] *= scale[b];
    for (index i = 0; i < n; ++i) {
        change[i] *= h[i];
        if (block[i] >= 0) change[i] -= pull[i] * sums[block[i]];
    }
}

// `count` draws in order of position, of which item i gets count * p_i, rounded up or down (Madow
// 1949).
SOREL_CLONES void systematic_sample(Values probability, index count, double offset,
                                    Vector<std::int64_t> out) {
    const index n = probability.size();
    const double total = sum_terms(n, [&](index i) SOREL_INLINED { return probability[i]; });
    const double spacing = total / static_cast<double>(count);
    index drawn = 0, last = 0;
    double reached = 0.0;
    for (index i = 0; i < n; ++i) {
        if (!(probability[i] > 0.0)) continue;
        last = i;
        reached += probability[i];
        while (drawn < count && (static_cast<double>(drawn) + offset) * spacing < reached)
            out[drawn++] = i;
    }
    // Rounding may leave the last draw beyond the sum.
    while (drawn < count) out[drawn++] = last;
}

}  // namespace

void bind_vectors(nb::module_& m) {
    define(m, "block_totals", "block factor omega weighted out", block_totals);
    define(m, "block_scales", "eta totals", block_scales);
    define(m, "root_scaled", "scale sums", root_scaled);
    define(m, "count_and_sum", "h", count_and_sum);
    define(m, "sample_rows", "h block keep_blocks unit sampled factor", sample_rows);
    define(m, "ascent_target", "density losses previous eta theta target", ascent_target);
    define(m, "weighted_sum", "density losses omega weighted", weighted_sum);
    define(m, "square_of_used", "losses omega", square_of_used);
    define(m, "weighted_square_distance", "density others omega weighted",
           weighted_square_distance);
    define(m, "block_means", "block values omega weighted totals means", block_means);
    define(m, "apply_curvature", "h pull block scale change", apply_curvature);
    define(m, "systematic_sample", "probability count offset out", systematic_sample);
}

}  // namespace sorel
