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

// z[r] = x_r . w for kRows rows of length d, one after the other from x on.
template <int kRows, class T>
SOREL_INLINE void dots(const T* x, index d, const double* w, double* z) {
    Lanes sum[kRows] = {};
    double rest[kRows] = {};
    index j = 0;
    for (; j + kLanes <= d; j += kLanes) {
        const Lanes v = load_lanes(w + j);
        for (int r = 0; r < kRows; ++r) sum[r] += load_lanes(x + r * d + j) * v;
    }
    for (; j < d; ++j)
        for (int r = 0; r < kRows; ++r) rest[r] += x[r * d + j] * w[j];
    for (int r = 0; r < kRows; ++r)
        z[r] = ((sum[r][0] + sum[r][2]) + (sum[r][1] + sum[r][3])) + rest[r];
}

}  // namespace sorel
