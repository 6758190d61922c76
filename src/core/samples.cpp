// The loss of one sample in its margins, and its derivatives.
#include "losses.hpp"
#include "steps.hpp"

namespace sorel {
namespace {

// The loss of a sample with one margin.
template <class Loss>
struct OneMargin {
    Loss loss;

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
SOREL_INLINE void with_sample(const SampleLoss& loss, F&& f) {
    if (loss.outputs > 1) return f(ManyMargins{loss.outputs});
    with_loss(loss.code, loss.delta,
              [&](auto one) SOREL_INLINED { f(OneMargin<decltype(one)>{one}); });
}

}  // namespace

SOREL_CLONES double SampleLoss::value(double target, const double* z) const {
    double loss = 0.0;
    with_sample(*this, [&](auto sample) SOREL_INLINED { loss = sample.value(target, z); });
    return loss;
}

SOREL_CLONES void SampleLoss::slopes(double target, const double* z, double* out) const {
    with_sample(*this, [&](auto sample) SOREL_INLINED { sample.slopes(target, z, out); });
}

}  // namespace sorel
