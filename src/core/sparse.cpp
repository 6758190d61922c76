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
    const index entries = data.size();
#pragma GCC unroll 4
    for (index e = 0; e < entries; ++e) {
        const double size = std::abs(static_cast<double>(data[e]));
        // Soon hardly ever true, and foreseen.
        if (size > out[indices[e]]) out[indices[e]] = size;
    }
}

// out = X w + intercept
template <class Index, class T>
SOREL_CLONES void product_csr(Vector<const Index> indptr, Vector<const Index> indices,
                              Vector<const T> data, Vector<const double> w, double intercept,
                              Vector<double> out) {
    const Csr<Index, T> X{indptr.data, indices.data, data.data};
    for (index i = 0; i < out.size(); ++i) out[i] = X.dot(i, w.data) + intercept;
}

// out += X^T c
template <class Index, class T>
SOREL_CLONES void adjoint_csr(Vector<const Index> indptr, Vector<const Index> indices,
                              Vector<const T> data, Vector<const double> c, Vector<double> out) {
    const Csr<Index, T> X{indptr.data, indices.data, data.data};
    for (index i = 0; i < c.size(); ++i)
        if (c[i] != 0.0) X.add(i, c[i], out.data);
}

// f(c, width) for the columns 0, ..., K - 1 in groups of at most four, each with its width as a
// type: sums over a row then stay in registers.
template <class F>
SOREL_INLINE void in_groups(index outputs, F&& f) {
    index c = 0;
    for (; c + 4 <= outputs; c += 4) f(c, std::integral_constant<int, 4>{});
    if (outputs - c == 3) f(c, std::integral_constant<int, 3>{});
    if (outputs - c == 2) f(c, std::integral_constant<int, 2>{});
    if (outputs - c == 1) f(c, std::integral_constant<int, 1>{});
}

// out = X W + intercepts, W of shape (d, K)
template <class Index, class T>
SOREL_CLONES void product_csr_many(Vector<const Index> indptr, Vector<const Index> indices,
                                   Vector<const T> data, Matrix<const double> W,
                                   Vector<const double> intercepts, Matrix<double> out) {
    const Csr<Index, T> X{indptr.data, indices.data, data.data};
    for (index i = 0; i < out.shape[0]; ++i) {
        in_groups(out.shape[1], [&](index c, auto width) SOREL_INLINED {
            double sum[width] = {};
            X.each(i, [&](index j, double x) SOREL_INLINED {
                const double* w = W.row(j) + c;
                for (int k = 0; k < width; ++k) sum[k] += x * w[k];
            });
            for (int k = 0; k < width; ++k) out(i, c + k) = intercepts[c + k] + sum[k];
        });
    }
}

// out += X^T C, C of shape (n, K)
template <class Index, class T>
SOREL_CLONES void adjoint_csr_many(Vector<const Index> indptr, Vector<const Index> indices,
                                   Vector<const T> data, Matrix<const double> C,
                                   Matrix<double> out) {
    const Csr<Index, T> X{indptr.data, indices.data, data.data};
    for (index i = 0; i < C.shape[0]; ++i) {
        in_groups(C.shape[1], [&](index c, auto width) SOREL_INLINED {
            double coefficients[width];
            std::copy_n(C.row(i) + c, int{width}, coefficients);
            X.each(i, [&](index j, double x) SOREL_INLINED {
                double* sum = out.row(j) + c;
                for (int k = 0; k < width; ++k) sum[k] += x * coefficients[k];
            });
        });
    }
}

// out += the diagonal of X^T diag(h) X
template <class Index, class T>
SOREL_CLONES void gram_diagonal_csr(Vector<const Index> indptr, Vector<const Index> indices,
                                    Vector<const T> data, Vector<const double> h,
                                    Vector<double> out) {
    const Csr<Index, T> X{indptr.data, indices.data, data.data};
    for (index i = 0; i < h.size(); ++i) {
        if (h[i] == 0.0) continue;
        X.each(i, [&, hi = h[i]](index j, double x) SOREL_INLINED { out[j] += hi * x * x; });
    }
}

// Lower triangle of out += that of X^T diag(h) X
template <class Index, class T>
SOREL_CLONES void gram_csr(Vector<const Index> indptr, Vector<const Index> indices,
                           Vector<const T> data, Vector<const double> h, Matrix<double> out) {
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
template <class Index, class T>
SOREL_CLONES void block_sums_csr(Vector<const Index> indptr, Vector<const Index> indices,
                                 Vector<const T> data, Vector<const double> c,
                                 Vector<const std::int32_t> block, index start,
                                 Matrix<double> out) {
    const Csr<Index, T> X{indptr.data, indices.data, data.data};
    for (index i = 0; i < c.size(); ++i) {
        const index b = block[i] - start;
        if (b >= 0 && b < out.shape[0] && c[i] != 0.0) X.add(i, c[i], out.row(b));
    }
}

template <class Index, class T>
void bind(nb::module_& m) {
    define(m, "column_maxima_csr", "indices data out", column_maxima_csr<Index, T>);
    define(m, "product_csr", "indptr indices data w intercept out", product_csr<Index, T>);
    define(m, "adjoint_csr", "indptr indices data c out", adjoint_csr<Index, T>);
    define(m, "product_csr_many", "indptr indices data W intercepts out",
           product_csr_many<Index, T>);
    define(m, "adjoint_csr_many", "indptr indices data C out", adjoint_csr_many<Index, T>);
    define(m, "gram_diagonal_csr", "indptr indices data h out", gram_diagonal_csr<Index, T>);
    define(m, "gram_csr", "indptr indices data h out", gram_csr<Index, T>);
    define(m, "block_sums_csr", "indptr indices data c block start out", block_sums_csr<Index, T>);
}

}  // namespace

void bind_sparse(nb::module_& m) {
    define(m, "inspect_csr", "indptr indices d", inspect_csr<std::int32_t>);
    define(m, "inspect_csr", "indptr indices d", inspect_csr<std::int64_t>);
    for_csr_types([&](auto i, auto x) { bind<decltype(i), decltype(x)>(m); });
}

}  // namespace sorel
