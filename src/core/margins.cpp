// The proximal map of a spectral risk in the margins: pooling in the order of the losses.
//
// A loss is a nondecreasing psi of one number t (see losses.hpp). Items in ascending order of t
// keep that order in the proximal map, and items that end with one t form a block, whose t is the
// proximal map of psi at the mean of the block (Xiao, Ge, Jiang & Yan 2023).
#include <cstdint>

#include "losses.hpp"

namespace sorel {
namespace {

// Minimise sum_i weight_i (density_i psi(t_i) + rho/2 (t_i - key_i)^2) over ascending t. `key`
// ascends, and so does `density`, which becomes that of the maximiser: the same sum over a block,
// spread in it as the keys are. `out` receives t; `first` and the four rows of `work` are room.
template <class Loss>
SOREL_INLINE void pool_losses(Loss loss, double rho, Vector<const double> key,
                              Vector<double> density, Vector<const double> weight,
                              Vector<std::int64_t> first, Matrix<double> work, Vector<double> out) {
    double *means = work.row(0), *masses = work.row(1), *heavies = work.row(2),
           *values = work.row(3);
    const index n = key.size();
    index top = -1;
    for (index i = 0; i < n; ++i) {
        index start = i;
        double mean = key[i], heavy = weight[i], mass = weight[i] * density[i];
        double value = loss.prox(mean, mass / (heavy * rho));
        for (; top >= 0 && values[top] >= value; --top) {
            const double total = heavies[top] + heavy;
            mean = means[top] + (mean - means[top]) * (heavy / total);
            heavy = total;
            mass += masses[top];
            start = first[top];
            value = loss.prox(mean, mass / (heavy * rho));
        }
        ++top;
        first[top] = start;
        means[top] = mean;
        masses[top] = mass;
        heavies[top] = heavy;
        values[top] = value;
    }
    for (index end = n; top >= 0; end = first[top--]) {
        const double slope = loss.psi_slope(values[top]);
        for (index i = first[top]; i < end; ++i) {
            out[i] = values[top];
            density[i] = masses[top] / heavies[top];
            if (slope > 0.0) density[i] += rho * (key[i] - means[top]) / slope;
        }
    }
}

SOREL_CLONES void pool_coded_losses(int code, double delta, double rho, Vector<const double> key,
                                    Vector<double> density, Vector<const double> weight,
                                    Vector<std::int64_t> first, Matrix<double> work,
                                    Vector<double> out) {
    with_loss(code, delta, [=](auto loss) SOREL_INLINED {
        pool_losses(loss, rho, key, density, weight, first, work, out);
    });
}

}  // namespace

void bind_margins(nb::module_& m) {
    define(m, "pool_losses", "code delta rho key density weight first work out", pool_coded_losses);
}

}  // namespace sorel
