// Proximal maps of the penalties: see sorel.penalties.
#pragma once

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core.hpp"

namespace sorel {

// What a penalty is to the loops: a square alone, which is linear in a step, a map of each
// coefficient by itself, or one that ties all of them.
enum PenaltyCode { kPureL2 = 0, kSeparable = 1, kSimplex = 2 };

// A penalty as the loops take it: l2/2 |w|^2 + l1 |w|_1 and bounds, or the simplex.
struct Penalty {
    int code;
    double l2, l1;
    const double *lower, *upper;
};

// Projection of w / (1 + step l2) onto {w >= 0, sum w = 1}. Entries are relative to the largest.
SOREL_INLINE void prox_simplex(double* w, index d, index stride, double scale) {
    double top = w[0];
    for (index j = 1; j < d; ++j) top = std::max(top, w[j * stride]);
    for (index j = 0; j < d; ++j) w[j * stride] = (w[j * stride] - top) * scale;
    // Entries below the threshold of those kept are zero: leave them out until none is left to
    // leave out (Michelot 1986). Rounding may bring an entry at the threshold back, which is no
    // reason to go on.
    double theta = -std::numeric_limits<double>::infinity();
    for (index kept = d + 2, count = d + 1; count < kept;) {
        kept = count;
        count = 0;
        double total = -1.0;
        for (index j = 0; j < d; ++j) {
            if (w[j * stride] > theta) {
                total += w[j * stride];
                ++count;
            }
        }
        theta = total / static_cast<double>(count);
    }
    for (index j = 0; j < d; ++j) w[j * stride] = std::max(w[j * stride] - theta, 0.0);
}

// w <- argmin_u step penalty(u) + |u - w|^2 / 2, for d entries of w that are `stride` apart.
SOREL_INLINE void prox_inplace(double* w, index d, index stride, double step,
                               const Penalty& penalty) {
    const double scale = 1.0 / (1.0 + step * penalty.l2);
    if (penalty.code == kPureL2) {
        for (index j = 0; j < d; ++j) w[j * stride] *= scale;
    } else if (penalty.code == kSeparable) {
        const double threshold = step * penalty.l1;
        for (index j = 0; j < d; ++j) {
            double v = w[j * stride];
            v = v > threshold    ? (v - threshold) * scale
                : v < -threshold ? (v + threshold) * scale
                                 : 0.0;
            w[j * stride] = std::min(std::max(v, penalty.lower[j]), penalty.upper[j]);
        }
    } else if (penalty.code == kSimplex) {
        prox_simplex(w, d, stride, scale);
    } else {
        throw std::invalid_argument("no proximal map is known under this code of a penalty");
    }
}

}  // namespace sorel
