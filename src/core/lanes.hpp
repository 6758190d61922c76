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

SOREL_INLINE Lanes load_lanes(const float* x) {
    float __attribute__((vector_size(kLanes * sizeof(float)))) lanes;
    std::memcpy(&lanes, x, sizeof lanes);
    return __builtin_convertvector(lanes, Lanes);
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

#endif

// Entries from which on a row is long: the compiler's vectors, which may be wider than lanes, then
// outweigh what they cost before and after the loop.
constexpr index kLongRow = 96;

// z[r] = x_r . w_r for four long rows, strides apart. Four sums keep the processor busy where one would
// have it wait.
template <class T>
SOREL_INLINE void four_long_dots(const T* x, index stride, index d, const double* w, index step,
                                 double* z) {
    const T *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
    const double *w1 = w + step, *w2 = w1 + step, *w3 = w2 + step;
    double z0 = 0.0, z1 = 0.0, z2 = 0.0, z3 = 0.0;
#pragma omp simd reduction(+ : z0, z1, z2, z3)
    for (index j = 0; j < d; ++j) {
        z0 += x[j] * w[j];
        z1 += x1[j] * w1[j];
        z2 += x2[j] * w2[j];
        z3 += x3[j] * w3[j];
    }
    z[0] = z0, z[1] = z1, z[2] = z2, z[3] = z3;
}

// z[r] = x_r . w for kRows = 1 or 4 rows of length d, `stride` apart from x on.
template <int kRows, class T>
SOREL_INLINE void dots(const T* x, index stride, index d, const double* w, double* z) {
    if (d >= kLongRow) {
        if (kRows == 4) return four_long_dots(x, stride, d, w, 0, z);
        // The row in quarters, and what is left of it.
        const index quarter = d / 4;
        double parts[4], rest = 0.0;
        four_long_dots(x, quarter, quarter, w, quarter, parts);
        for (index j = 4 * quarter; j < d; ++j) rest += x[j] * w[j];
        z[0] = ((parts[0] + parts[2]) + (parts[1] + parts[3])) + rest;
        return;
    }
    Lanes sum[kRows] = {};
    double rest[kRows] = {};
    index j = 0;
    for (; j + kLanes <= d; j += kLanes) {
        const Lanes v = load_lanes(w + j);
        for (int r = 0; r < kRows; ++r) sum[r] += load_lanes(x + r * stride + j) * v;
    }
    for (; j < d; ++j)
        for (int r = 0; r < kRows; ++r) rest[r] += x[r * stride + j] * w[j];
    for (int r = 0; r < kRows; ++r)
        z[r] = ((sum[r][0] + sum[r][2]) + (sum[r][1] + sum[r][3])) + rest[r];
}

// sum_j a_j b_j
template <class T>
SOREL_INLINE double dot(const T* a, const double* b, index size) {
    double total;
    dots<1>(a, 0, size, b, &total);
    return total;
}

}  // namespace sorel
