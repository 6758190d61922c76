// Loops over samples that call a loss of one margin: see losses.hpp for the formulas.
//
// `density` is q, `omega` the sample weights (one entry that all samples share unless `weighted`),
// `block` the block of each sample in the last projection, or -1.
#include "losses.hpp"

#include "lanes.hpp"
#include "weights.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;
using Blocks = Vector<const std::int32_t>;

// f(loss, weight) for the loss under a code and the weights of the samples.
template <class F>
SOREL_INLINE auto with_weighted_loss(int code, double delta, Values omega, bool weighted, F&& f) {
    return with_loss(code, delta, [&](auto loss) SOREL_INLINED {
        return with_weights(omega, weighted,
                            [&](auto weight) SOREL_INLINED { return f(loss, weight); });
    });
}

// losses = phi(y, z)
SOREL_CLONES void losses_at(int code, double delta, Values y, Values margins,
                            Vector<double> losses) {
    with_loss(code, delta, [&](auto loss) SOREL_INLINED {
#pragma omp simd
        for (index i = 0; i < margins.size(); ++i) losses[i] = loss.value(y[i], margins[i]);
    });
}

// slopes = phi'(y, z)
SOREL_CLONES void slopes_at(int code, double delta, Values y, Values margins,
                            Vector<double> slopes) {
    with_loss(code, delta, [&](auto loss) SOREL_INLINED {
#pragma omp simd
        for (index i = 0; i < margins.size(); ++i) slopes[i] = loss.slope(y[i], margins[i]);
    });
}

// out = phi''(y, z)
SOREL_CLONES void curvatures_at(int code, double delta, Values y, Values margins,
                                Vector<double> out) {
    with_loss(code, delta, [&](auto loss) SOREL_INLINED {
#pragma omp simd
        for (index i = 0; i < margins.size(); ++i) out[i] = loss.curvature(y[i], margins[i]);
    });
}

// h = omega (q phi'' + eta phi'^2 [in a block]), the diagonal of the generalised Hessian, and where
// eta > 0 pull = omega phi'. `damping` moves phi'' towards the majorant, from 0 (Newton) to 1.
SOREL_CLONES void augmented_curvature(int code, double delta, Values y, Values margins,
                                      Values density, Blocks block, double eta, double damping,
                                      Values omega, bool weighted, Vector<double> h,
                                      Vector<double> pull) {
    const index n = margins.size();
    with_loss(code, delta, [&](auto loss) SOREL_INLINED {
        if (damping > 0.0) {
#pragma omp simd
            for (index i = 0; i < n; ++i) {
                const double t = loss.curvature(y[i], margins[i]);
                h[i] = (t + damping * (loss.majorant(y[i], margins[i]) - t)) * density[i];
            }
        } else {
#pragma omp simd
            for (index i = 0; i < n; ++i) h[i] = loss.curvature(y[i], margins[i]) * density[i];
        }
        if (eta > 0.0) {
#pragma omp simd
            for (index i = 0; i < n; ++i) {
                const double slope = loss.slope(y[i], margins[i]);
                h[i] += block[i] >= 0 ? eta * slope * slope : 0.0;
                pull[i] = slope;
            }
        }
    });
    with_weights(omega, weighted, [&](auto weight) SOREL_INLINED {
#pragma omp simd
        for (index i = 0; i < n; ++i) h[i] *= weight(i);
#pragma omp simd
        for (index i = 0; i < pull.size(); ++i) pull[i] *= weight(i);
    });
}

// c = omega q phi': what X^T turns into the gradient of lam . l(w)
SOREL_CLONES void weighted_slopes(int code, double delta, Values y, Values margins, Values density,
                                  Values omega, bool weighted, Vector<double> c) {
    with_weighted_loss(code, delta, omega, weighted, [&](auto loss, auto weight) SOREL_INLINED {
#pragma omp simd
        for (index i = 0; i < density.size(); ++i)
            c[i] = density[i] * weight(i) * loss.slope(y[i], margins[i]);
    });
}

// sum_i omega_i q_i phi'_i direction_i
SOREL_CLONES double directional_slope(int code, double delta, Values y, Values margins,
                                      Values density, Values direction, Values omega,
                                      bool weighted) {
    return with_weighted_loss(
        code, delta, omega, weighted, [&](auto loss, auto weight) SOREL_INLINED {
            return sum_terms(density.size(), [&](index i) SOREL_INLINED {
                return weight(i) * density[i] * loss.slope(y[i], margins[i]) * direction[i];
            });
        });
}

// new_margins = z + step direction, with the losses there
SOREL_CLONES void move_margins(Values margins, Values direction, double step, int code,
                               double delta, Values y, Vector<double> new_margins,
                               Vector<double> losses) {
    with_loss(code, delta, [&](auto loss) SOREL_INLINED {
#pragma omp simd
        for (index i = 0; i < margins.size(); ++i) {
            const double z = margins[i] + step * direction[i];
            new_margins[i] = z;
            losses[i] = loss.value(y[i], z);
        }
    });
}

// First and second derivative of sum_i omega_i q_i phi(y_i, z_i + shift) in the shift. The first is
// known up to the unit roundoff times the third number: the size of its terms, and that of the
// margins times the curvature.
SOREL_CLONES std::tuple<double, double, double> shift_statistics(int code, double delta, Values y,
                                                                 Values margins, double shift,
                                                                 Values density, Values omega,
                                                                 bool weighted) {
    double first = 0.0, second = 0.0, rounding = 0.0;
    with_weighted_loss(code, delta, omega, weighted, [&](auto loss, auto weight) SOREL_INLINED {
#pragma omp simd reduction(+ : first, second, rounding)
        for (index i = 0; i < margins.size(); ++i) {
            // Samples without weight count for nothing, though their margins be infinite.
            const bool used = density[i] != 0.0;
            const double share = density[i] * weight(i), z = margins[i] + shift;
            const double slope = share * loss.slope(y[i], z),
                         bend = share * loss.curvature(y[i], z);
            const double unsure = std::abs(slope) + bend * (std::abs(margins[i]) + std::abs(shift));
            first += used ? slope : 0.0;
            second += used ? bend : 0.0;
            rounding += used ? unsure : 0.0;
        }
    });
    return {first, second, rounding};
}

}  // namespace

void bind_losses(nb::module_& m) {
    nb::dict codes;
    for (const auto& [name, code] : kLossCodes) codes[name] = static_cast<int>(code);
    m.attr("LOSS_CODES") = codes;
    define(m, "losses_at", "code delta y margins losses", losses_at);
    define(m, "slopes_at", "code delta y margins slopes", slopes_at);
    define(m, "curvatures_at", "code delta y margins out", curvatures_at);
    define(m, "augmented_curvature",
           "code delta y margins density block eta damping omega weighted h pull", augmented_curvature);
    define(m, "weighted_slopes", "code delta y margins density omega weighted c", weighted_slopes);
    define(m, "directional_slope", "code delta y margins density direction omega weighted",
           directional_slope);
    define(m, "move_margins", "margins direction step code delta y new_margins losses",
           move_margins);
    define(m, "shift_statistics", "code delta y margins shift density omega weighted",
           shift_statistics);
}

}  // namespace sorel
