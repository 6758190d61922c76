// Coordinate descent on a weighted least-squares problem with a separable penalty.
//
// Rows are scaled by the roots of their weights, so that the residuals alone carry the weights.
// With an intercept, which is minimised over all the time, residuals and columns are centred:
// column j is x_j - means[j] * root, and the residual is `residual` + shift * root, so that a
// sparse column costs its own entries alone.
//
// A sweep over all columns is followed by some over those that are not at a bound or at zero. What
// a column has left to move is seen on the way, and its share of the duality gap with it.
#include <algorithm>

#include "core.hpp"
#include "lanes.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;

// Sweeps over the free columns between two over all columns.
constexpr int kPartialSweeps = 4;

// Sweeps over which the rate is measured that tells whether the goal will be reached.
constexpr index kRateSweeps = 10;

// Rows and columns of a block that is transposed: 8 kB of doubles.
constexpr index kBlock = 32;

// The minimiser in one coordinate of curvature/2 (u - old)^2 + slope u + l2/2 u^2 + l1 |u| in
// bounds.
SOREL_INLINE double minimum(double old, double slope, double curvature, double l1, double l2,
                            double lower, double upper) {
    double u = curvature * old - slope;
    u = u > l1 ? u - l1 : u < -l1 ? u + l1 : 0.0;
    return std::min(std::max(u / (curvature + l2), lower), upper);
}

// What a coordinate that wants to move so far adds to the duality gap, about.
SOREL_INLINE double gap_of_move(double move, double curvature, double l2, double lower,
                                double upper) {
    const double pull = std::abs(move) * (curvature + l2);
    return l2 > 0.0 ? pull * pull / (2.0 * l2) : pull * (upper - lower);
}

// Whether, at the rate of the last sweeps, so many more do not reach the goal.
SOREL_INLINE bool is_hopeless(double gap, double before, double goal, index remaining) {
    const double rate = std::pow(gap / before, 1.0 / kRateSweeps);
    return rate >= 1.0 || gap * std::pow(rate, static_cast<double>(remaining)) > goal;
}

// Columns that are the rows of a dense matrix.
struct DenseColumns {
    Matrix<const double> X;

    SOREL_INLINE double dot(index j, const double* residual) const {
        const double* x = X.row(j);
        return sum_terms(X.shape[1], [&](index i) SOREL_INLINED { return x[i] * residual[i]; });
    }
    SOREL_INLINE void add(index j, double move, double* residual) const {
        const double* x = X.row(j);
#pragma omp simd
        for (index i = 0; i < X.shape[1]; ++i) residual[i] += move * x[i];
    }
};

// Columns given by the three arrays of CSC.
template <class Index>
struct SparseColumns {
    const Index *indptr, *indices;
    const double* data;

    SOREL_INLINE double dot(index j, const double* residual) const {
        double total = 0.0;
        for (index e = indptr[j]; e < indptr[j + 1]; ++e) total += data[e] * residual[indices[e]];
        return total;
    }
    SOREL_INLINE void add(index j, double move, double* residual) const {
        for (index e = indptr[j]; e < indptr[j + 1]; ++e) residual[indices[e]] += move * data[e];
    }
};

// Sweep over the columns until about the goal is left. Moves `w` and `residual`; returns the shift,
// what is left of the gap and the sweeps it took.
template <class Columns>
SOREL_INLINE std::tuple<double, double, index> descend(const Columns& columns, Values means,
                                                       Values curvature, Vector<double> residual,
                                                       Vector<double> w, double l1, double l2,
                                                       Values lower, Values upper, index sweeps,
                                                       double goal, double shift) {
    double gap = -1.0, before = -1.0;
    int partial = 0;
    for (index sweep = 0; sweep < sweeps; ++sweep) {
        double total = 0.0;
        for (index j = 0; j < w.size(); ++j) {
            if (curvature[j] + l2 <= 0.0) continue;
            const double old = w[j];
            const bool at_rest = old == lower[j] || old == upper[j] || (l1 > 0.0 && old == 0.0);
            if (partial > 0 && at_rest) continue;
            const double slope = shift * means[j] + columns.dot(j, residual.data);
            const double moved = minimum(old, slope, curvature[j], l1, l2, lower[j], upper[j]);
            if (moved == old) continue;
            const double move = moved - old;
            total += gap_of_move(move, curvature[j], l2, lower[j], upper[j]);
            w[j] = moved;
            shift -= move * means[j];
            columns.add(j, move, residual.data);
        }
        if (partial == 0) {
            gap = total;
            if (total <= goal) return {shift, gap, sweep + 1};
        }
        const bool whole = partial == kPartialSweeps || (partial > 0 && total <= goal);
        partial = whole ? 0 : partial + 1;
        if (sweep % kRateSweeps == 0) {
            if (before > 0.0 && is_hopeless(total, before, goal, sweeps - sweep))
                return {shift, gap, sweep + 1};
            before = total;
        }
    }
    return {shift, gap, sweeps};
}

// For the columns of X, which are the rows of a matrix here.
SOREL_CLONES std::tuple<double, double, index> descend_dense(
    Matrix<const double> X, Values means, Values curvature, Vector<double> residual,
    Vector<double> w, double l1, double l2, Values lower, Values upper, index sweeps, double goal,
    double shift) {
    return descend(DenseColumns{X}, means, curvature, residual, w, l1, l2, lower, upper, sweeps,
                   goal, shift);
}

// For columns given by the three arrays of CSC.
template <class Index>
std::tuple<double, double, index> descend_sparse(Vector<const Index> indptr,
                                                 Vector<const Index> indices, Values data,
                                                 Values means, Values curvature,
                                                 Vector<double> residual, Vector<double> w,
                                                 double l1, double l2, Values lower, Values upper,
                                                 index sweeps, double goal, double shift) {
    const SparseColumns<Index> columns{indptr.data, indices.data, data.data};
    return descend(columns, means, curvature, residual, w, l1, l2, lower, upper, sweeps, goal,
                   shift);
}

// out = (diag(root) X)^T in blocks that stay in the cache; squares += those of its rows, and
// means += X^T root^2
SOREL_CLONES void scaled_transpose(AnyMatrix X, Values root, Matrix<double> out,
                                   Vector<double> squares, Vector<double> means) {
    const index n = X.shape[0], d = X.shape[1];
    const auto fill = [&](const auto* x) SOREL_INLINED {
        for (index start = 0; start < n; start += kBlock) {
            const index stop = std::min(start + kBlock, n);
            for (index first = 0; first < d; first += kBlock) {
                const index last = std::min(first + kBlock, d);
                for (index i = start; i < stop; ++i)
                    for (index j = first; j < last; ++j)
                        out(j, i) = root[i] * x[i * X.stride[0] + j * X.stride[1]];
                for (index j = first; j < last; ++j) {
                    const double* column = out.row(j);
                    double square = 0.0, mean = 0.0;
#pragma omp simd reduction(+ : square, mean)
                    for (index i = start; i < stop; ++i) {
                        square += column[i] * column[i];
                        mean += column[i] * root[i];
                    }
                    squares[j] += square;
                    means[j] += mean;
                }
            }
        }
    };
    if (X.single)
        fill(static_cast<const float*>(X.data));
    else
        fill(static_cast<const double*>(X.data));
}

}  // namespace

void bind_descent(nb::module_& m) {
    define(m, "descend_dense", "X means curvature residual w l1 l2 lower upper sweeps goal shift",
           descend_dense);
    const char* parameters =
        "indptr indices data means curvature residual w l1 l2 lower upper sweeps goal shift";
    define(m, "descend_sparse", parameters, descend_sparse<std::int32_t>);
    define(m, "descend_sparse", parameters, descend_sparse<std::int64_t>);
    define(m, "scaled_transpose", "X root out squares means", scaled_transpose);
}

}  // namespace sorel
