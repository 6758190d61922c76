// A sparse X by rows, given by the three arrays of CSR. Columns stand in any order inside a row.
#pragma once

#include <cstdint>

#include "core.hpp"

namespace sorel {

template <class Index, class T>
struct Csr {
    const Index* indptr;
    const Index* columns;
    const T* data;

    // f(j, x_ij) for the entries of row i.
    template <class F>
    SOREL_INLINE void each(index i, F&& f) const {
        const index stop = indptr[i + 1];
#pragma GCC unroll 4
        for (index e = indptr[i]; e < stop; ++e) f(static_cast<index>(columns[e]), data[e]);
    }

    // x_i . w, in four sums, since each addition has to wait for the last.
    SOREL_INLINE double dot(index i, const double* w) const {
        double sum[4] = {};
        index e = indptr[i];
        const index stop = indptr[i + 1];
        for (; e + 4 <= stop; e += 4)
            for (int k = 0; k < 4; ++k) sum[k] += data[e + k] * w[columns[e + k]];
        for (; e < stop; ++e) sum[0] += data[e] * w[columns[e]];
        return (sum[0] + sum[2]) + (sum[1] + sum[3]);
    }

    // out += c x_i
    SOREL_INLINE void add(index i, double c, double* out) const {
        each(i, [=](index j, double x) SOREL_INLINED { out[j] += c * x; });
    }
};

// f(Index{}, T{}) for both types of indices and both of data.
template <class F>
void for_csr_types(F&& f) {
    f(std::int32_t{}, double{});
    f(std::int32_t{}, float{});
    f(std::int64_t{}, double{});
    f(std::int64_t{}, float{});
}

}  // namespace sorel
