// Products with a dense X, in float64 or float32; every accumulator is float64.
//
// Loops come in two shapes: "rows" reads X by rows, "columns" reads X^T of a Fortran-ordered X,
// itself in C order, so that neither order is ever copied.
#include <algorithm>
#include <vector>

#include "lanes.hpp"
#include "rows.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;
using RowNumbers = Vector<const std::int64_t>;

// Rows treated together when X is read by columns: the slice of margins stays in the first cache.
constexpr index kRowBlock = 1024;

// Share of nonzero weights below which a branch that the processor cannot foresee costs less than
// the rows it saves.
constexpr double kWorthSkipping = 0.3;

// out += c x
template <class T>
SOREL_INLINE void add_scaled(double c, const T* x, index d, double* out) {
#pragma omp simd
    for (index j = 0; j < d; ++j) out[j] += c * x[j];
}

// out += c0 x0 + c1 x1 + c2 x2 + c3 x3: four rows share the loads and stores of the sum.
template <class Rows>
SOREL_INLINE void add_four(const double* c, Rows& rows, index i, index d, double* out) {
    const auto *x0 = rows.row(i), *x1 = rows.row(i + 1), *x2 = rows.row(i + 2),
               *x3 = rows.row(i + 3);
    const double c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
#pragma omp simd
    for (index j = 0; j < d; ++j) out[j] += (c0 * x0[j] + c1 * x1[j]) + (c2 * x2[j] + c3 * x3[j]);
}

// z[r] = x_r . w for the four rows from i on
template <class T>
SOREL_INLINE void four_dots(const PlainRows<T>& rows, index i, index d, const double* w,
                            double* z) {
    dots<4>(rows.row(i), rows.stride, d, w, z);
}

SOREL_INLINE void four_dots(DoubleRows& rows, index i, index d, const double* w, double* z) {
    for (index r = 0; r < 4; ++r) z[r] = dot(rows.row(i + r), w, d);
}

// margins = X w + intercept, X by rows
SOREL_CLONES void product_rows(AnyMatrix X, Values w, double intercept, Vector<double> margins) {
    const index n = X.shape[0], d = X.shape[1];
    double* z = margins.data;
    with_rows(X, [&](auto rows) SOREL_INLINED {
        index i = 0;
        for (; i + 4 <= n; i += 4) four_dots(rows, i, d, w.data, z + i);
        for (; i < n; ++i) z[i] = dot(rows.row(i), w.data, d);
    });
    if (intercept == 0.0) return;
#pragma omp simd
    for (index i = 0; i < n; ++i) z[i] += intercept;
}

// The same for the rows first..last, X by columns.
template <class T>
SOREL_CLONES void product_columns(Matrix<const T> Xt, Values w, double intercept, index first,
                                  index last, Vector<double> margins) {
    const index d = Xt.shape[0];
    for (index start = first; start < last; start += kRowBlock) {
        const index count = std::min(kRowBlock, last - start);
        double* z = margins.data + start;
        std::fill_n(z, count, intercept);
        index j = 0;
        // Four columns share the loads and stores of the margins.
        for (; j + 4 <= d; j += 4) {
            const PlainRows<T> columns{Xt.row(j) + start, Xt.shape[1]};
            if (w[j] != 0.0 || w[j + 1] != 0.0 || w[j + 2] != 0.0 || w[j + 3] != 0.0)
                add_four(w.data + j, columns, 0, count, z);
        }
        for (; j < d; ++j)
            if (w[j] != 0.0) add_scaled(w[j], Xt.row(j) + start, count, z);
    }
}

// out[:d] += X^T c, and the sum of c after it when out has room for an intercept
SOREL_CLONES void adjoint_rows(AnyMatrix X, Values c, Vector<double> out) {
    const index n = X.shape[0], d = X.shape[1];
    double total = 0.0, used = 0.0;
#pragma omp simd reduction(+ : total, used)
    for (index i = 0; i < n; ++i) {
        used += c[i] != 0.0 ? 1.0 : 0.0;
        total += c[i];
    }
    const bool sparse = used < kWorthSkipping * static_cast<double>(n);
    with_rows(X, [&](auto rows) SOREL_INLINED {
        index i = 0;
        if (sparse) {
            for (; i < n; ++i)
                if (c[i] != 0.0) add_scaled(c[i], rows.row(i), d, out.data);
        }
        for (; i + 4 <= n; i += 4) add_four(c.data + i, rows, i, d, out.data);
        for (; i < n; ++i) add_scaled(c[i], rows.row(i), d, out.data);
    });
    if (out.size() > d) out[d] += total;
}

// The same for the rows first..last, X by columns.
template <class T>
SOREL_CLONES void adjoint_columns(Matrix<const T> Xt, Values c, index first, index last,
                                  Vector<double> out) {
    const index d = Xt.shape[0];
    for (index start = first; start < last; start += kRowBlock) {
        const index count = std::min(kRowBlock, last - start);
        index j = 0;
        for (; j + 4 <= d; j += 4) {
            double sums[4];
            dots<4>(Xt.row(j) + start, Xt.shape[1], count, c.data + start, sums);
            for (int r = 0; r < 4; ++r) out[j + r] += sums[r];
        }
        for (; j < d; ++j) out[j] += dot(Xt.row(j) + start, c.data + start, count);
    }
    if (out.size() <= d) return;
    double total = 0.0;
#pragma omp simd reduction(+ : total)
    for (index i = first; i < last; ++i) total += c[i];
    out[d] += total;
}

// out += [X 1]^T diag(h) (X v + intercept), in one sweep: each row is in the cache by then
SOREL_CLONES void gram_product_rows(AnyMatrix X, Values h, Values v, double intercept,
                                    Vector<double> out) {
    const index n = X.shape[0], d = X.shape[1];
    double total = 0.0;
    with_rows(X, [&](auto rows) SOREL_INLINED {
        index i = 0;
        for (; i + 4 <= n; i += 4) {
            double z[4];
            four_dots(rows, i, d, v.data, z);
            for (int r = 0; r < 4; ++r) total += z[r] = (z[r] + intercept) * h[i + r];
            add_four(z, rows, i, d, out.data);
        }
        for (; i < n; ++i) {
            const auto* x = rows.row(i);
            const double z = (dot(x, v.data, d) + intercept) * h[i];
            total += z;
            add_scaled(z, x, d, out.data);
        }
    });
    if (out.size() > d) out[d] += total;
}

// The larger of a and |b|.
template <class T>
SOREL_INLINE double larger(double a, T b) {
    const double size = std::abs(static_cast<double>(b));
    return size > a ? size : a;
}

// out_j = max(out_j, |x_ij|) over all rows
SOREL_CLONES void column_sizes(AnyMatrix X, Vector<double> out) {
    const index n = X.shape[0], d = X.shape[1];
    with_rows(X, [&](auto rows) SOREL_INLINED {
        index i = 0;
        // Four rows share the loads and stores of what is largest so far.
        for (; i + 4 <= n; i += 4) {
            const auto *x0 = rows.row(i), *x1 = rows.row(i + 1), *x2 = rows.row(i + 2),
                       *x3 = rows.row(i + 3);
#pragma omp simd
            for (index j = 0; j < d; ++j)
                out[j] = larger(larger(out[j], larger(larger(0.0, x0[j]), x1[j])),
                                larger(larger(0.0, x2[j]), x3[j]));
        }
        for (; i < n; ++i) {
            const auto* x = rows.row(i);
            for (index j = 0; j < d; ++j) out[j] = larger(out[j], x[j]);
        }
    });
}

// A cache line of doubles. The columns of a tile begin with one: loads that straddle two cost twice.
struct alignas(64) CacheLine {
    double values[8];
};

// Rows of a tile of the Gram matrix of few columns: whole cache lines, and not a power of 2, which
// would put all columns into the same places of the cache.
constexpr index kTileHeight = 136;

// z[4 r + s] = x_r . y_s for two columns x of a tile and the four columns from y on
SOREL_INLINE void two_by_four_dots(const double* x, const double* y, index count, double* z) {
    double z0 = 0.0, z1 = 0.0, z2 = 0.0, z3 = 0.0, z4 = 0.0, z5 = 0.0, z6 = 0.0, z7 = 0.0;
#pragma omp simd reduction(+ : z0, z1, z2, z3, z4, z5, z6, z7)
    for (index i = 0; i < count; ++i) {
        const double a = x[i], b = x[i + kTileHeight];
        const double y0 = y[i], y1 = y[i + kTileHeight], y2 = y[i + 2 * kTileHeight],
                     y3 = y[i + 3 * kTileHeight];
        z0 += a * y0;
        z1 += a * y1;
        z2 += a * y2;
        z3 += a * y3;
        z4 += b * y0;
        z5 += b * y1;
        z6 += b * y2;
        z7 += b * y3;
    }
    z[0] = z0, z[1] = z1, z[2] = z2, z[3] = z3, z[4] = z4, z[5] = z5, z[6] = z6, z[7] = z7;
}

// out += [X 1]^T diag(h) [X 1], with the column of ones when out has room for it. For some hundred
// columns at most, where BLAS is no faster (60000 x 26: 1.5 ms for 2.4, x 127: 24 for 27): rows of
// nonzero weight are turned into short columns, whose inner products are loops the processor likes.
SOREL_CLONES void gram_few(AnyMatrix X, Values h, Matrix<double> out) {
    const index n = X.shape[0], d = X.shape[1], size = out.shape[0];
    // Columns of zeros make whole blocks of two by four.
    const index padded = (size + 3) / 4 * 4;
    std::vector<CacheLine> room((2 * padded + 1) * kTileHeight / 8);
    double *tile = room.data()->values, *scaled = tile + padded * kTileHeight,
           *weight = scaled + padded * kTileHeight;
    const auto sweep = [&](const auto* data) SOREL_INLINED {
        for (index i = 0; i < n;) {
            index count = 0, kept[kTileHeight];
            // Which rows those are, no processor foresees: a place that is not wanted is overwritten.
            for (; i < n && count < kTileHeight; ++i) {
                kept[count] = i;
                count += h[i] != 0.0;
            }
            for (index r = 0; r < count; ++r) {
                const auto* x = data + kept[r] * X.stride[0];
                weight[r] = h[kept[r]];
                for (index j = 0; j < d; ++j) tile[j * kTileHeight + r] = x[j * X.stride[1]];
            }
            if (size > d) std::fill_n(tile + d * kTileHeight, count, 1.0);
            for (index j = 0; j < size; ++j) {
                double *left = scaled + j * kTileHeight, *right = tile + j * kTileHeight;
#pragma omp simd
                for (index r = 0; r < count; ++r) left[r] = weight[r] * right[r];
            }
            // Blocks of two rows and four columns, down to the diagonal or a little beyond it.
            for (index j = 0; j < size; j += 2)
                for (index k = 0; k <= j + 1; k += 4) {
                    double parts[8];
                    two_by_four_dots(scaled + j * kTileHeight, tile + k * kTileHeight, count,
                                     parts);
                    for (index r = 0; r < std::min<index>(2, size - j); ++r)
                        for (index s = 0; s < std::min<index>(4, size - k); ++s)
                            out(j + r, k + s) += parts[4 * r + s];
                }
        }
    };
    if (X.single)
        sweep(static_cast<const float*>(X.data));
    else
        sweep(static_cast<const double*>(X.data));
    for (index j = 0; j < size; ++j)
        for (index k = 0; k < j; ++k) out(k, j) = out(j, k);
}

// out_r = scale_r [x_i 1] for i = rows[start + r]: a tile small enough for the cache
SOREL_CLONES void scaled_rows(AnyMatrix X, Values scale, RowNumbers rows, index start, index stop,
                              Matrix<double> out) {
    const index d = X.shape[1];
    with_rows(X, [&](auto samples) SOREL_INLINED {
        for (index r = 0; r < stop - start; ++r) {
            const auto* x = samples.row(rows[start + r]);
            const double s = scale[r];
            double* row = out.row(r);
#pragma omp simd
            for (index j = 0; j < d; ++j) row[j] = s * x[j];
            if (out.shape[1] > d) row[d] = s;
        }
    });
}

// out_b += sum of c_i [x_i 1] over the rows of block start + b
SOREL_CLONES void block_sums(AnyMatrix X, Values c, Vector<const std::int32_t> block, index start,
                             Matrix<double> out) {
    const index n = X.shape[0], d = X.shape[1], stop = start + out.shape[0];
    with_rows(X, [&](auto rows) SOREL_INLINED {
        for (index i = 0; i < n; ++i) {
            const index b = block[i];
            if (b < start || b >= stop || c[i] == 0.0) continue;
            double* sum = out.row(b - start);
            add_scaled(c[i], rows.row(i), d, sum);
            if (out.shape[1] > d) sum[d] += c[i];
        }
    });
}

// margins += row, for short rows, each of which NumPy would turn to by itself
SOREL_CLONES void add_row(Matrix<double> margins, Values row) {
    for (index i = 0; i < margins.shape[0]; ++i)
        add_scaled(1.0, row.data, margins.shape[1], margins.row(i));
}

// out += diagonal of [X 1]^T diag(h) [X 1]
SOREL_CLONES void gram_diagonal(AnyMatrix X, Values h, Vector<double> out) {
    const index n = X.shape[0], d = X.shape[1];
    const double total = sum_terms(n, [&](index i) SOREL_INLINED { return h[i]; });
    with_rows(X, [&](auto rows) SOREL_INLINED {
        // Rows with a weight are taken two at a time, which share the loads and stores of the sum.
        for (index i = 0; i < n; ++i) {
            if (h[i] == 0.0) continue;
            const double first = h[i];
            const auto* x = rows.row(i);
            while (++i < n && h[i] == 0.0) {
            }
            const double second = i < n ? h[i] : 0.0;
            const auto* y = i < n ? rows.row(i) : x;
#pragma omp simd
            for (index j = 0; j < d; ++j) {
                const double one = x[j], two = y[j];
                out[j] += first * one * one + second * two * two;
            }
        }
    });
    if (out.size() > d) out[d] += total;
}

// The loops whose matrices have one type in C order.
template <class T>
void bind_typed(nb::module_& m) {
    define(m, "product_columns", "Xt w intercept first last margins", product_columns<T>);
    define(m, "adjoint_columns", "Xt c first last out", adjoint_columns<T>);
}

}  // namespace

void bind_dense(nb::module_& m) {
    bind_typed<double>(m);
    bind_typed<float>(m);
    define(m, "product_rows", "X w intercept margins", product_rows);
    define(m, "adjoint_rows", "X c out", adjoint_rows);
    define(m, "gram_product_rows", "X h v intercept out", gram_product_rows);
    define(m, "column_sizes", "X out", column_sizes);
    define(m, "gram_few", "X h out", gram_few);
    define(m, "scaled_rows", "X scale rows start stop out", scaled_rows);
    define(m, "block_sums", "X c block start out", block_sums);
    define(m, "add_row", "margins row", add_row);
    define(m, "gram_diagonal", "X h out", gram_diagonal);
}

}  // namespace sorel
