// The losses phi(y, z) of one margin, one class each, under the codes of LossCode.
//
// `curvature` is a generalised second derivative at a kink. `majorant` is the curvature of a
// parabola that touches phi at z and lies above it everywhere: never below the second derivative,
// and positive where that vanishes, so that a step with it cannot overshoot (de Leeuw & Lange 2009;
// logistic: Jaakkola & Jordan 2000).
//
// Each loss is also a nondecreasing psi of one number t: |z - y| for the first two, -y z for
// labels, y - z for the linear one. `psi_slope` is psi'(t), and `prox` is argmin_t c psi(t) + (t -
// mean)^2 / 2 with mean >= 0 where t is the size of a residual.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "exponential.hpp"

namespace sorel {

enum LossCode { kSquared, kHuber, kLogistic, kSquaredHinge, kLinear };

// The codes by the names that losses have in Python.
inline constexpr std::pair<const char*, LossCode> kLossCodes[] = {
    {"squared", kSquared},
    {"huber", kHuber},
    {"logistic", kLogistic},
    {"squared_hinge", kSquaredHinge},
    {"linear", kLinear},
};

// (z - y)^2 / 2
struct Squared {
    SOREL_INLINE double value(double y, double z) const { return 0.5 * (z - y) * (z - y); }
    SOREL_INLINE double slope(double y, double z) const { return z - y; }
    SOREL_INLINE double curvature(double, double) const { return 1.0; }
    SOREL_INLINE double majorant(double, double) const { return 1.0; }
    SOREL_INLINE double psi_slope(double t) const { return t; }
    SOREL_INLINE double prox(double mean, double c) const { return mean / (1.0 + c); }
};

// r^2 / 2 for r = |z - y| <= delta, and delta (r - delta / 2) beyond
struct Huber {
    double delta;

    SOREL_INLINE double value(double y, double z) const {
        const double r = std::abs(z - y);
        const double inside = 0.5 * r * r, outside = delta * (r - 0.5 * delta);
        return r <= delta ? inside : outside;
    }
    SOREL_INLINE double slope(double y, double z) const {
        const double r = z - y;
        return r < -delta ? -delta : r > delta ? delta : r;
    }
    SOREL_INLINE double curvature(double y, double z) const {
        return std::abs(z - y) <= delta ? 1.0 : 0.0;
    }
    SOREL_INLINE double majorant(double y, double z) const {
        const double r = std::abs(z - y);
        return r > delta ? delta / r : 1.0;
    }
    SOREL_INLINE double psi_slope(double t) const { return std::min(t, delta); }
    SOREL_INLINE double prox(double mean, double c) const {
        const double t = mean / (1.0 + c);
        return t <= delta ? t : mean - c * delta;
    }
};

// log(1 + exp(-m)) for m = y z, y = -1 or 1
struct Logistic {
    // Where the formula of the majorant loses its digits, it is 1/4 to all of them that matter.
    static constexpr double kNear = 1e-4;
    // Steps of a safeguarded Newton method: twice what bisection alone would take.
    static constexpr int kMaxSteps = 100;
    // Change of t at which it stands still, in units of t: twice the unit roundoff.
    static constexpr double kStill = 2e-16;

    SOREL_INLINE double value(double y, double z) const {
        const double m = y * z;
        return (m >= 0.0 ? 0.0 : -m) + log_one_plus(falling_exponential(std::abs(m)));
    }
    SOREL_INLINE double slope(double y, double z) const {
        const double m = y * z, e = falling_exponential(std::abs(m));
        return -y * (m >= 0.0 ? e : 1.0) / (1.0 + e);
    }
    SOREL_INLINE double curvature(double y, double z) const {
        const double e = falling_exponential(std::abs(y * z)), scale = 1.0 / (1.0 + e);
        return e * scale * scale;
    }
    // tanh(a / 2) / (2 a) for a = |m|
    SOREL_INLINE double majorant(double y, double z) const {
        const double a = std::abs(y * z), e = falling_exponential(a);
        const double quotient = 0.5 * (1.0 - e) / ((1.0 + e) * a);
        return a < kNear ? 0.25 : quotient;
    }
    // Called for one t at a time, where the library's exponential is the faster one.
    SOREL_INLINE double psi_slope(double t) const {
        const double e = std::exp(-std::abs(t));
        return (t >= 0.0 ? 1.0 : e) / (1.0 + e);
    }
    // The root of c psi'(t) + t - mean, which lies in [mean - c, mean]: Newton steps, and halves of
    // the bracket where these leave it or do not shrink.
    SOREL_INLINE double prox(double mean, double c) const {
        double low = mean - c, high = mean;
        double t = 0.5 * (low + high), last = high - low;
        for (int step = 0; step < kMaxSteps; ++step) {
            const double p = psi_slope(t), excess = c * p + t - mean;
            (excess > 0.0 ? high : low) = t;
            double next = t - excess / (1.0 + c * p * (1.0 - p));
            if (!(low <= next && next <= high) || std::abs(next - t) > 0.5 * last)
                next = 0.5 * (low + high);
            last = std::abs(next - t);
            if (last <= kStill * (std::abs(t) + std::abs(next))) break;
            t = next;
        }
        return t;
    }
};

// max(0, 1 - m)^2 for m = y z, y = -1 or 1
struct SquaredHinge {
    SOREL_INLINE double value(double y, double z) const {
        const double m = y * z;
        return m >= 1.0 ? 0.0 : (1.0 - m) * (1.0 - m);
    }
    SOREL_INLINE double slope(double y, double z) const {
        const double m = y * z;
        return m >= 1.0 ? 0.0 : -2.0 * y * (1.0 - m);
    }
    SOREL_INLINE double curvature(double y, double z) const { return y * z < 1.0 ? 2.0 : 0.0; }
    SOREL_INLINE double majorant(double, double) const { return 2.0; }
    SOREL_INLINE double psi_slope(double t) const { return 2.0 * std::max(0.0, 1.0 + t); }
    SOREL_INLINE double prox(double mean, double c) const {
        return mean <= -1.0 ? mean : (mean - 2.0 * c) / (1.0 + 2.0 * c);
    }
};

// y - z
struct Linear {
    SOREL_INLINE double value(double y, double z) const { return y - z; }
    SOREL_INLINE double slope(double, double) const { return -1.0; }
    SOREL_INLINE double curvature(double, double) const { return 0.0; }
    SOREL_INLINE double majorant(double, double) const { return 0.0; }
    SOREL_INLINE double psi_slope(double) const { return 1.0; }
    SOREL_INLINE double prox(double mean, double c) const { return mean - c; }
};

[[noreturn]] inline void refuse_loss(int code) {
    throw std::invalid_argument("no loss has the code " + std::to_string(code) +
                                "; those of LossCode in src/core/losses.hpp have formulas");
}

// f(loss) for the loss under a code. Write f as a lambda with SOREL_INLINED.
template <class F>
SOREL_INLINE auto with_loss(int code, double delta, F&& f) {
    switch (code) {
        case kSquared:
            return f(Squared{});
        case kHuber:
            return f(Huber{delta});
        case kLogistic:
            return f(Logistic{});
        case kSquaredHinge:
            return f(SquaredHinge{});
        case kLinear:
            return f(Linear{});
    }
    refuse_loss(code);
}

}  // namespace sorel
