// Sample weights as loops take them: one that all samples share, or one for each.
#pragma once

#include "core.hpp"

namespace sorel {

struct SharedWeight {
    double value;
    SOREL_INLINE double operator()(index) const { return value; }
};

struct OwnWeights {
    const double* values;
    SOREL_INLINE double operator()(index i) const { return values[i]; }
};

// f(weight), where weight(i) is that of sample i: a choice inside a loop would keep it from being
// vectorised.
template <class F>
SOREL_INLINE auto with_weights(Vector<const double> omega, bool weighted, F&& f) {
    if (weighted) return f(OwnWeights{omega.data});
    return f(SharedWeight{omega[0]});
}

}  // namespace sorel
