// The minimum of a quadratic of a handful of parameters, where calls cost more than arithmetic:
// Cholesky's factorisation with one refinement (Higham 2002, chapters 10 and 12).
#include <limits>

#include "lanes.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;

// Pivots at this many units of their diagonal entry are rounding errors.
constexpr double kLeastPivot = 4.0 * std::numeric_limits<double>::epsilon();

// Rounds of substitution: the second is the refinement, which takes the residual to rounding level.
constexpr int kRounds = 2;

// u = w + step with (H + l2 I) step = -(gradient + l2 w), l2 on the penalised part only. `factor`
// has three rows more than H, for vectors; afterwards its row p + 1 is the step. Returns the
// decrease of the quadratic and the penalty with the curvature H left out, and with it. Both are
// NaN when a pivot is at rounding level: such systems are left to the careful path.
SOREL_CLONES std::tuple<double, double> minimize_few(Matrix<const double> H, Values gradient,
                                                     Values w, double l2, index n_penalized,
                                                     Matrix<double> factor, Vector<double> u) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const index p = gradient.size();
    double *slope = factor.row(p), *step = factor.row(p + 1), *residual = factor.row(p + 2);
    for (index i = 0; i < p; ++i) {
        const double ridge = i < n_penalized ? l2 : 0.0;
        slope[i] = residual[i] = gradient[i] + ridge * w[i];
        step[i] = 0.0;
        double* row = factor.row(i);
        for (index j = 0; j < i; ++j)
            row[j] = (H(i, j) - dot(row, factor.row(j), j)) / factor(j, j);
        const double diagonal = H(i, i) + ridge, pivot = diagonal - dot(row, row, i);
        if (!(pivot > kLeastPivot * diagonal)) return {kNone, kNone};
        row[i] = std::sqrt(pivot);
    }
    for (int round = 0; round < kRounds; ++round) {
        for (index i = 0; i < p; ++i)
            residual[i] = (residual[i] - dot(factor.row(i), residual, i)) / factor(i, i);
        for (index i = p - 1; i >= 0; --i) {
            double total = residual[i];
            for (index k = i + 1; k < p; ++k) total -= factor(k, i) * residual[k];
            residual[i] = total / factor(i, i);
            step[i] -= residual[i];
        }
        for (index i = 0; i < p; ++i) {
            const double ridge = i < n_penalized ? l2 : 0.0;
            residual[i] = slope[i] + ridge * step[i] + dot(H.row(i), step, p);
        }
    }
    double slide = 0.0, square = 0.0, bend = 0.0;
    bool finite = true;
    for (index i = 0; i < p; ++i) {
        u[i] = w[i] + step[i];
        finite = finite && std::isfinite(u[i]);
        slide += slope[i] * step[i];
        square += i < n_penalized ? step[i] * step[i] : 0.0;
        // The residual is what is left of slope + (H + l2 I) step.
        bend += step[i] * (residual[i] - slope[i]);
    }
    if (!finite) return {kNone, kNone};
    return {-slide - 0.5 * l2 * square, -slide - 0.5 * bend};
}

}  // namespace

void bind_cholesky(nb::module_& m) {
    define(m, "minimize_few", "H gradient w l2 n_penalized factor u", minimize_few);
}

}  // namespace sorel
