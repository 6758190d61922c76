// Products with a sparse X in CSR. A range of rows is indptr[start:stop + 1] with all of the
// columns and data, and vectors of length stop - start.
#include <algorithm>
#include <vector>

#include "csr.hpp"

namespace sorel {
namespace {

// The first row that is not valid CSR, or -1; and whether a row names a column twice.
template <class Index>
std::tuple<index, bool> inspect_csr(Vector<const Index> indptr, Vector<const Index> indices,
                                    index d) {
    std::vector<index> seen(d, -1);
    bool repeated = false;
    for (index i = 0; i + 1 < indptr.size(); ++i) {
        if (indptr[i] < 0 || indptr[i + 1] < indptr[i] || indptr[i + 1] > indices.size())
            return {i, repeated};
        for (index e = indptr[i]; e < indptr[i + 1]; ++e) {
            const index j = indices[e];
            if (j < 0 || j >= d) return {i, repeated};
            repeated |= seen[j] == i;
            seen[j] = i;
        }
    }
    return {-1, repeated};
}

// The largest |x_ij| of each column, where it exceeds what `out` holds.
template <class Index, class T>
void column_maxima_csr(Vector<const Index> indices, Vector<const T> data, Vector<double> out) {
    for (index e = 0; e < data.size(); ++e) {
        double& largest = out[indices[e]];
        largest = std::max(largest, static_cast<double>(std::abs(data[e])));
    }
}

// out_i = |x_i|^2
template <class Index, class T>
void row_squares_csr(Vector<const Index> indptr, Vector<const T> data, Vector<double> out) {
    for (index i = 0; i < out.size(); ++i) {
        double total = 0.0;
        for (index e = indptr[i]; e < indptr[i + 1]; ++e) {
            const double x = data[e];
            total += x * x;
        }
        out[i] = total;
    }
}

// The loops with all three arrays.
template <class Index, class T>
struct Loops {
    using Indices = Vector<const Index>;
    using Data = Vector<const T>;

    static Csr<Index, T> rows(Indices indptr, Indices indices, Data data) {
        return {indptr.data, indices.data, data.data};
    }

    // out = X w + intercept
    static void product(Indices indptr, Indices indices, Data data, Vector<const double> w,
                        double intercept, Vector<double> out) {
        const auto X = rows(indptr, indices, data);
        for (index i = 0; i < out.size(); ++i) out[i] = X.dot(i, w.data) + intercept;
    }

    // out += X^T c
    static void adjoint(Indices indptr, Indices indices, Data data, Vector<const double> c,
                        Vector<double> out) {
        const auto X = rows(indptr, indices, data);
        for (index i = 0; i < c.size(); ++i)
            if (c[i] != 0.0) X.add(i, c[i], out.data);
    }

    // out = X W + intercepts, W of shape (d, K)
    static void product_many(Indices indptr, Indices indices, Data data, Matrix<const double> W,
                             Vector<const double> intercepts, Matrix<double> out) {
        const auto X = rows(indptr, indices, data);
        const index outputs = out.shape[1];
        for (index i = 0; i < out.shape[0]; ++i) {
            double* z = out.row(i);
            std::copy_n(intercepts.data, outputs, z);
            X.each(i, [=](index j, double x) SOREL_INLINED {
                const double* w = W.row(j);
#pragma omp simd
                for (index c = 0; c < outputs; ++c) z[c] += x * w[c];
            });
        }
    }

    // out += X^T C, C of shape (n, K)
    static void adjoint_many(Indices indptr, Indices indices, Data data, Matrix<const double> C,
                             Matrix<double> out) {
        const auto X = rows(indptr, indices, data);
        const index outputs = C.shape[1];
        for (index i = 0; i < C.shape[0]; ++i) {
            const double* coefficients = C.row(i);
            X.each(i, [=](index j, double x) SOREL_INLINED {
                double* sum = out.row(j);
#pragma omp simd
                for (index c = 0; c < outputs; ++c) sum[c] += x * coefficients[c];
            });
        }
    }

    // out += the diagonal of X^T diag(h) X
    static void gram_diagonal(Indices indptr, Indices indices, Data data, Vector<const double> h,
                              Vector<double> out) {
        const auto X = rows(indptr, indices, data);
        for (index i = 0; i < h.size(); ++i) {
            if (h[i] == 0.0) continue;
            X.each(i, [&, hi = h[i]](index j, double x) SOREL_INLINED { out[j] += hi * x * x; });
        }
    }

    // Lower triangle of out += that of X^T diag(h) X
    static void gram(Indices indptr, Indices indices, Data data, Vector<const double> h,
                     Matrix<double> out) {
        for (index i = 0; i < h.size(); ++i) {
            if (h[i] == 0.0) continue;
            for (index e = indptr[i]; e < indptr[i + 1]; ++e) {
                const index j = indices[e];
                const double a = h[i] * data[e];
                for (index f = indptr[i]; f <= e; ++f) {
                    const index k = indices[f];
                    out(std::max(j, k), std::min(j, k)) += a * data[f];
                }
            }
        }
    }

    // out[b] += the sum of c_i x_i over the rows of block start + b
    static void block_sums(Indices indptr, Indices indices, Data data, Vector<const double> c,
                           Vector<const std::int32_t> block, index start, Matrix<double> out) {
        const auto X = rows(indptr, indices, data);
        for (index i = 0; i < c.size(); ++i) {
            const index b = block[i] - start;
            if (b >= 0 && b < out.shape[0] && c[i] != 0.0) X.add(i, c[i], out.row(b));
        }
    }

    // Copy rows; `new_indptr` is given.
    static void select(Indices indptr, Indices indices, Data data, Vector<const std::int64_t> rows,
                       Indices new_indptr, Vector<Index> new_indices, Vector<T> new_data) {
        for (index r = 0; r < rows.size(); ++r) {
            const index first = indptr[rows[r]], place = new_indptr[r];
            const index count = new_indptr[r + 1] - place;
            std::copy_n(indices.data + first, count, new_indices.data + place);
            std::copy_n(data.data + first, count, new_data.data + place);
        }
    }
};

template <class Index, class T>
void bind(nb::module_& m) {
    using L = Loops<Index, T>;
    define(m, "column_maxima_csr", "indices data out", column_maxima_csr<Index, T>);
    define(m, "row_squares_csr", "indptr data out", row_squares_csr<Index, T>);
    define(m, "product_csr", "indptr indices data w intercept out", L::product);
    define(m, "adjoint_csr", "indptr indices data c out", L::adjoint);
    define(m, "product_csr_many", "indptr indices data W intercepts out", L::product_many);
    define(m, "adjoint_csr_many", "indptr indices data C out", L::adjoint_many);
    define(m, "gram_diagonal_csr", "indptr indices data h out", L::gram_diagonal);
    define(m, "gram_csr", "indptr indices data h out", L::gram);
    define(m, "block_sums_csr", "indptr indices data c block start out", L::block_sums);
    define(m, "select_csr", "indptr indices data rows new_indptr new_indices new_data", L::select);
}

}  // namespace

void bind_sparse(nb::module_& m) {
    define(m, "inspect_csr", "indptr indices d", inspect_csr<std::int32_t>);
    define(m, "inspect_csr", "indptr indices d", inspect_csr<std::int64_t>);
    for_csr_types([&](auto i, auto x) { bind<decltype(i), decltype(x)>(m); });
}

}  // namespace sorel
