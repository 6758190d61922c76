// Four doubles that are added and multiplied at once.
//
// The compiler vectorises loops along long arrays by itself (`omp simd`). For the inner products of
// short rows it spends most of its time before and after the vectors, so these are spelled out.
#pragma once

#include <cstring>

#include "core.hpp"

namespace sorel {

constexpr int kLanes = 4;

#if defined(__GNUC__) || defined(__clang__)

using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));

SOREL_INLINE Lanes load_lanes(const double* x) {
    Lanes lanes;
    std::memcpy(&lanes, x, sizeof lanes);
    return lanes;
}

// Spelled out, since the compiler's own conversion of vectors takes two steps.
SOREL_INLINE Lanes load_lanes(const float* x) { return Lanes{x[0], x[1], x[2], x[3]}; }

// The sums of four lanes each.
SOREL_INLINE Lanes sums_of(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d) {
    const Lanes ab =
        __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
    const Lanes cd =
        __builtin_shufflevector(c, d, 0, 4, 2, 6) + __builtin_shufflevector(c, d, 1, 5, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
           __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

#else

struct Lanes {
    double values[kLanes] = {};
    double operator[](int k) const { return values[k]; }
    Lanes& operator+=(const Lanes& other) {
        for (int k = 0; k < kLanes; ++k) values[k] += other.values[k];
        return *this;
    }
    friend Lanes operator*(Lanes a, const Lanes& b) {
        for (int k = 0; k < kLanes; ++k) a.values[k] *= b.values[k];
        return a;
    }
};

template <class T>
SOREL_INLINE Lanes load_lanes(const T* x) {
    Lanes lanes;
    for (int k = 0; k < kLanes; ++k) lanes.values[k] = x[k];
    return lanes;
}

SOREL_INLINE double sum_of(const Lanes& a) { return (a[0] + a[1]) + (a[2] + a[3]); }

SOREL_INLINE Lanes sums_of(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d) {
    return {{sum_of(a), sum_of(b), sum_of(c), sum_of(d)}};
}

#endif

// z[r] = x_r . w for kRows rows of length d, `stride` apart from x on. Eight sums, or four for a
// single row, keep the processor busy where one would have it wait.
template <int kRows, class T>
SOREL_INLINE void dots(const T* x, index stride, index d, const double* w, double* z) {
    constexpr int kSums = kRows == 1 ? 4 : 2;
    Lanes sum[kRows][kSums] = {};
    double rest[kRows] = {};
    index j = 0;
    for (; j + kSums * kLanes <= d; j += kSums * kLanes)
        for (int s = 0; s < kSums; ++s) {
            const Lanes v = load_lanes(w + j + s * kLanes);
            for (int r = 0; r < kRows; ++r)
                sum[r][s] += load_lanes(x + r * stride + j + s * kLanes) * v;
        }
    for (int s = 1; s < kSums; ++s)
        for (int r = 0; r < kRows; ++r) sum[r][0] += sum[r][s];
    for (; j + kLanes <= d; j += kLanes) {
        const Lanes v = load_lanes(w + j);
        for (int r = 0; r < kRows; ++r) sum[r][0] += load_lanes(x + r * stride + j) * v;
    }
    // Not as a loop of unknown length, which the compiler would turn into vectors again.
    for (int k = 0; k < kLanes - 1; ++k, ++j) {
        if (j >= d) break;
        for (int r = 0; r < kRows; ++r) rest[r] += x[r * stride + j] * w[j];
    }
    if constexpr (kRows == 4) {
        const Lanes totals = sums_of(sum[0][0], sum[1][0], sum[2][0], sum[3][0]);
        for (int r = 0; r < kRows; ++r) z[r] = totals[r] + rest[r];
    } else {
        const Lanes& total = sum[0][0];
        z[0] = ((total[0] + total[1]) + (total[2] + total[3])) + rest[0];
    }
}

// sum_j a_j b_j
template <class T>
SOREL_INLINE double dot(const T* a, const double* b, index size) {
    double total;
    dots<1>(a, 0, size, b, &total);
    return total;
}

// sum_i term(i) for 0 <= i < n: four sums of a quarter each, so that none has to wait for itself.
template <class F>
SOREL_INLINE double sum_terms(index n, F&& term) {
    const index quarter = n / 4;
    double s0 = 0.0, s1 = 0.0, s2 = 0.0, s3 = 0.0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (index i = 0; i < quarter; ++i) {
        s0 += term(i);
        s1 += term(i + quarter);
        s2 += term(i + 2 * quarter);
        s3 += term(i + 3 * quarter);
    }
    for (index i = 4 * quarter; i < n; ++i) s0 += term(i);
    return (s0 + s1) + (s2 + s3);
}

}  // namespace sorel
