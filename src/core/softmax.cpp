// Loops over samples for the multinomial loss log(sum_c exp z_c) - z_y of K margins each.
//
// `slopes` is p - onehot(y) with p = softmax(z): exact for the own class where p has lost its
// digits.
#include <vector>

#include "exponential.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;
using Classes = Vector<const std::int64_t>;
using Blocks = Vector<const std::int32_t>;

// Margins that pass from one step of the softmax to the next in the first cache.
constexpr index kTile = 2048;

// slopes = z - max(z) in each row, and losses = that of the own class
SOREL_INLINE void below_the_top(const std::int64_t* y, const double* z, index n, index k,
                                double* losses, double* slopes) {
    for (index i = 0; i < n; ++i, z += k, slopes += k) {
        double top = z[0];
        for (index c = 1; c < k; ++c) top = z[c] > top ? z[c] : top;
#pragma omp simd
        for (index c = 0; c < k; ++c) slopes[c] = z[c] - top;
        losses[i] = z[y[i]] - top;
    }
}

// Slopes, given the exponentials of those differences in their place, and the sum of the
// exponentials of the other classes than the largest, whose own is 1.
SOREL_INLINE void finish_softmax(const std::int64_t* y, index n, index k, const double* losses,
                                 double* slopes, double* others) {
    for (index i = 0; i < n; ++i, slopes += k) {
        const double own = slopes[y[i]];
        double rest = 0.0;
        for (index c = 0; c < k; ++c) rest += c == y[i] ? 0.0 : slopes[c];
        const double scale = 1.0 / (rest + own);
        // A confident sample leaves p no digits, but the sum of the other classes has them.
        others[i] = losses[i] == 0.0 ? rest : rest + own - 1.0;
        for (index c = 0; c < k; ++c) slopes[c] = scale * (c == y[i] ? -rest : slopes[c]);
    }
}

// losses = log(sum_c exp z_c) - z_y, slopes = softmax(z) - onehot(y)
SOREL_CLONES void softmax_losses(Classes y, Matrix<const double> margins, Vector<double> losses,
                                 Matrix<double> slopes) {
    const index n = margins.shape[0], k = margins.shape[1];
    const index height = std::max<index>(1, kTile / std::max<index>(k, 1));
    double others[kTile];
    for (index start = 0; start < n; start += height) {
        const index count = std::min(height, n - start);
        double *part = slopes.row(start), *loss = losses.data + start;
        below_the_top(y.data + start, margins.row(start), count, k, loss, part);
#pragma omp simd
        for (index j = 0; j < count * k; ++j) part[j] = falling_exponential(-part[j]);
        finish_softmax(y.data + start, count, k, loss, part, others);
#pragma omp simd
        for (index i = 0; i < count; ++i) loss[i] = log_of_sum(others[i]) - loss[i];
    }
}

// change = omega q (slopes + own onehot(y)): slopes for own = 0, probabilities for own = 1
SOREL_CLONES void weigh_softmax(Classes y, Matrix<const double> slopes, double own, Values density,
                                Values omega, bool weighted, Matrix<double> change) {
    const index n = slopes.shape[0], k = slopes.shape[1];
    for (index i = 0; i < n; ++i) {
        const double weight = density[i] * (weighted ? omega[i] : omega[0]), *slope = slopes.row(i);
        double* out = change.row(i);
#pragma omp simd
        for (index c = 0; c < k; ++c) out[c] = weight * slope[c];
        out[y[i]] += weight * own;
    }
}

// totals += the rows of change without the entry of their own class, and sums[y] the same
SOREL_CLONES void add_other_classes(Classes y, Matrix<double> change, Vector<double> totals,
                                    Matrix<double> sums) {
    const index n = change.shape[0], k = change.shape[1];
    for (index i = 0; i < n; ++i) {
        double *row = change.row(i), *sum = sums.row(y[i]);
        row[y[i]] = 0.0;
#pragma omp simd
        for (index c = 0; c < k; ++c) {
            sum[c] += row[c];
            totals[c] += row[c];
        }
    }
}

// change <- omega (q H + eta [in a block] (g g^T - their mean)) change, with g = slopes and
// H = diag(p) - p p^T: the curvature of `apply_curvature` for K margins. `means` has the mean of
// g . change over each block.
SOREL_CLONES void apply_softmax_curvature(Classes y, Matrix<const double> slopes, Values density,
                                          Blocks block, Values means, double eta, Values omega,
                                          bool weighted, Matrix<double> change) {
    const index n = slopes.shape[0], k = slopes.shape[1];
    for (index i = 0; i < n; ++i) {
        const double* slope = slopes.row(i);
        double *moves = change.row(i), moved = 0.0;
#pragma omp simd reduction(+ : moved)
        for (index c = 0; c < k; ++c) moved += slope[c] * moves[c];
        // p = slopes, but for the own class, where it is 1 + slopes: the mean of the change under p
        // is that of the own class plus what the loss has moved.
        const index own = y[i];
        const double average = moves[own] + moved;
        double weight = weighted ? omega[i] : omega[0], pull = 0.0;
        if (eta > 0.0 && block[i] >= 0) pull = weight * eta * (moved - means[block[i]]);
        weight *= density[i];
        const double at_own = pull * slope[own] - weight * (1.0 + slope[own]) * moved;
#pragma omp simd
        for (index c = 0; c < k; ++c) moves[c] = slope[c] * (weight * (moves[c] - average) + pull);
        moves[own] = at_own;
    }
}

// h = one (class, class) entry of omega (q H + eta [in a block] g g^T) of each sample
SOREL_CLONES void softmax_pair_curvature(Classes y, Matrix<const double> slopes, Values density,
                                         Blocks block, double eta, Values omega, bool weighted,
                                         index first_class, index second_class, Vector<double> h) {
    const index n = slopes.shape[0];
    for (index i = 0; i < n; ++i) {
        const double a = slopes(i, first_class), b = slopes(i, second_class);
        double t = 0.0;
        if (density[i] != 0.0) {
            const double pa = a + (y[i] == first_class), pb = b + (y[i] == second_class);
            // p (1 - p), with 1 - p taken from the slope where that is exact
            if (first_class == second_class)
                t = pa * (y[i] == first_class ? -a : 1.0 - pa);
            else
                t = -pa * pb;
            t *= density[i];
        }
        if (eta > 0.0 && block[i] >= 0) t += eta * a * b;
        h[i] = t * (weighted ? omega[i] : omega[0]);
    }
}

}  // namespace

void bind_softmax(nb::module_& m) {
    define(m, "softmax_losses", "y margins losses slopes", softmax_losses);
    define(m, "weigh_softmax", "y slopes own density omega weighted change", weigh_softmax);
    define(m, "add_other_classes", "y change totals sums", add_other_classes);
    define(m, "apply_softmax_curvature", "y slopes density block means eta omega weighted change",
           apply_softmax_curvature);
    define(m, "softmax_pair_curvature",
           "y slopes density block eta omega weighted first_class second_class h",
           softmax_pair_curvature);
}

}  // namespace sorel
