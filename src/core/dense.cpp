// Products with a dense X, in float64 or float32; every accumulator is float64.
//
// Loops come in two shapes: "rows" reads X in C order, "columns" reads X^T of a Fortran-ordered X,
// itself in C order, so that neither order is ever copied.
#include <algorithm>

#include "core.hpp"
#include "lanes.hpp"

namespace sorel {
namespace {

// Rows treated together when X is read by columns: the slice of margins stays in the first cache.
constexpr index kRowBlock = 1024;

// Share of nonzero weights below which a branch that the processor cannot foresee costs less than
// the rows it saves.
constexpr double kWorthSkipping = 0.3;

// margins = X w + intercept, X by rows. Four rows share the loads of w.
template <class T>
SOREL_CLONES void product_rows(Matrix<const T> X, Vector<const double> w, double intercept,
                               Vector<double> margins) {
    const index n = X.shape[0], d = X.shape[1];
    double* z = margins.data;
    index i = 0;
    for (; i + 4 <= n; i += 4) dots<4>(X.row(i), d, w.data, z + i);
    for (; i < n; ++i) dots<1>(X.row(i), d, w.data, z + i);
    for (i = 0; i < n; ++i) z[i] += intercept;
}

// out[:d] += X^T c, and the sum of c after it when out has room for an intercept.
template <class T>
SOREL_CLONES void adjoint_rows(Matrix<const T> X, Vector<const double> c, Vector<double> out) {
    const index n = X.shape[0], d = X.shape[1];
    double total = 0;
    index used = 0;
    for (index i = 0; i < n; ++i) {
        used += c[i] != 0.0;
        total += c[i];
    }
    double* sum = out.data;
    index i = 0;
    if (static_cast<double>(used) < kWorthSkipping * static_cast<double>(n)) {
        for (; i < n; ++i) {
            if (c[i] == 0.0) continue;
            const T* x = X.row(i);
            const double ci = c[i];
#pragma omp simd
            for (index j = 0; j < d; ++j) sum[j] += ci * x[j];
        }
    }
    // Four rows share the loads and stores of the sum.
    for (; i + 4 <= n; i += 4) {
        const T *x0 = X.row(i), *x1 = X.row(i + 1), *x2 = X.row(i + 2), *x3 = X.row(i + 3);
        const double c0 = c[i], c1 = c[i + 1], c2 = c[i + 2], c3 = c[i + 3];
#pragma omp simd
        for (index j = 0; j < d; ++j)
            sum[j] += (c0 * x0[j] + c1 * x1[j]) + (c2 * x2[j] + c3 * x3[j]);
    }
    for (; i < n; ++i) {
        const T* x = X.row(i);
        const double ci = c[i];
#pragma omp simd
        for (index j = 0; j < d; ++j) sum[j] += ci * x[j];
    }
    if (out.size() > d) out[d] += total;
}

template <class T>
void bind(nb::module_& m) {
    define(m, "product_rows", "X w intercept margins", product_rows<T>);
    define(m, "adjoint_rows", "X c out", adjoint_rows<T>);
}

}  // namespace

void bind_dense(nb::module_& m) {
    bind<double>(m);
    bind<float>(m);
}

}  // namespace sorel
