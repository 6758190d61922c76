// What stochastic steps on dense and on sparse rows share: the loss of one sample in its margins,
// and the numbers behind a step.
#pragma once

#include <vector>

#include "losses.hpp"
#include "prox.hpp"

namespace sorel {

// The loss of a sample with one margin.
template <class Loss>
struct OneMargin {
    Loss loss;

    static constexpr index outputs() { return 1; }
    SOREL_INLINE double value(double target, const double* z) const {
        return loss.value(target, z[0]);
    }
    SOREL_INLINE void slopes(double target, const double* z, double* out) const {
        out[0] = loss.slope(target, z[0]);
    }
};

// log(sum_c exp z_c) - z_target: the multinomial loss of a sample with K margins.
struct ManyMargins {
    index count;

    index outputs() const { return count; }
    SOREL_INLINE double top(const double* z) const {
        double largest = z[0];
        for (index c = 1; c < count; ++c) largest = std::max(largest, z[c]);
        return largest;
    }
    SOREL_INLINE double value(double target, const double* z) const {
        const double largest = top(z);
        double total = 0.0;
        for (index c = 0; c < count; ++c) total += falling_exponential(largest - z[c]);
        return std::log(total) - (z[static_cast<index>(target)] - largest);
    }
    SOREL_INLINE void slopes(double target, const double* z, double* out) const {
        const double largest = top(z);
        double total = 0.0;
        for (index c = 0; c < count; ++c) total += out[c] = falling_exponential(largest - z[c]);
        for (index c = 0; c < count; ++c) out[c] /= total;
        out[static_cast<index>(target)] -= 1.0;
    }
};

// f(sample) for the loss under a code, or for the multinomial one where there are several margins.
template <class F>
SOREL_INLINE void with_sample_loss(index outputs, int code, double delta, F&& f) {
    if (outputs > 1) return f(ManyMargins{outputs});
    with_loss(code, delta, [&](auto loss) SOREL_INLINED { f(OneMargin<decltype(loss)>{loss}); });
}

// A step is W <- prox(shrink W + drift - step sum over the batch of c_i x_i), where shrink and
// drift hold a quadratic penalty, a centre and a full gradient. The intercept, which no penalty
// touches, has its own shrink and step. Without `proximal`, shrink holds all of the penalty.
struct StepRule {
    double shrink, step, free_shrink, free_step;
    bool proximal;
    double prox_step;
    Penalty penalty;
};

// Ranks of the losses of a batch, ascending, ties by place and NaN last.
inline void rank_batch(const double* losses, std::vector<index>& ranked) {
    for (index b = 0; b < static_cast<index>(ranked.size()); ++b) ranked[b] = b;
    std::sort(ranked.begin(), ranked.end(), [=](index a, index b) {
        const double first = losses[a], second = losses[b];
        if (first == second || (first != first && second != second)) return a < b;
        return first < second || second != second;
    });
}

}  // namespace sorel
