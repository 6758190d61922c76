// Stochastic steps on the rows of a dense X.
#include "lanes.hpp"
#include "methods.hpp"
#include "rows.hpp"

namespace sorel {
namespace {

// Coefficients of which every step moves all. They are kept by output, so that every inner loop
// runs along a row of X.
class DenseCoefficients {
  public:
    // A step adds `factor` times the driver to a coefficient, and `free_factor` times it to the
    // intercept. With `summed`, every iterate is added to `total`.
    DenseCoefficients(const AnyMatrix& X, Matrix<double> W, Matrix<double> driver, double factor,
                      double free_factor, const StepRule& rule, Matrix<double> total = {},
                      bool summed = false)
        : X_(X),
          d_(X.shape[1]),
          W_(W),
          driver_(driver),
          factor_(factor),
          free_factor_(free_factor),
          rule_(rule),
          total_(total),
          summed_(summed) {}

    SOREL_INLINE void margins(index i, double* z) {
        const double* x = X_.row(i);
        for (index c = 0; c < W_.shape[0]; ++c) {
            z[c] = dot(x, W_.row(c), d_);
            if (W_.shape[1] > d_) z[c] += W_(c, d_);
        }
    }

    SOREL_INLINE void step(const std::int64_t* rows, index batch, const double* coefficients) {
        const index outputs = W_.shape[0], p = W_.shape[1], d = d_;
        for (index b = 0; b < batch; ++b) {
            const double* x = X_.row(rows[b]);
            for (index c = 0; c < outputs; ++c) {
                const double coefficient = coefficients[b * outputs + c],
                             scale = rule_.step * coefficient;
                double* w = W_.row(c);
                if (b == 0) {
                    const double *push = driver_.row(c), shrink = rule_.shrink, factor = factor_;
#pragma omp simd
                    for (index j = 0; j < d; ++j)
                        w[j] = shrink * w[j] + factor * push[j] - scale * x[j];
                    if (p > d)
                        w[d] = rule_.free_shrink * w[d] + free_factor_ * push[d] -
                               rule_.free_step * coefficient;
                } else {
#pragma omp simd
                    for (index j = 0; j < d; ++j) w[j] -= scale * x[j];
                    if (p > d) w[d] -= rule_.free_step * coefficient;
                }
            }
        }
        if (rule_.proximal)
            for (index c = 0; c < outputs; ++c)
                prox_inplace(W_.row(c), d, 1, rule_.prox_step, rule_.penalty);
        if (summed_)
            for (index j = 0; j < outputs * p; ++j) total_.data[j] += W_.data[j];
    }

    SOREL_INLINE void drive(index i, index c, double scale) {
        const double* x = X_.row(i);
        double* driver = driver_.row(c);
#pragma omp simd
        for (index j = 0; j < d_; ++j) driver[j] += scale * x[j];
        if (W_.shape[1] > d_) driver[d_] += scale;
    }

  private:
    DoubleRows X_;
    index d_;
    Matrix<double> W_, driver_;
    double factor_, free_factor_;
    StepRule rule_;
    Matrix<double> total_;
    bool summed_;
};

SOREL_CLONES void svrg_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                             Matrix<const double> slopes, Vector<const double> scale,
                             Indices indices, index batch, Matrix<double> W, Matrix<double> total,
                             bool summed, Matrix<double> drift, RuleArguments rule) {
    DenseCoefficients w(X, W, drift, 1.0, 1.0, rule_of(rule), total, summed);
    svrg(w, {W.shape[0], code, delta}, y, slopes, scale, indices, batch);
}

SOREL_CLONES void minibatch_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                                  Vector<const double> sigma, Indices indices, Matrix<double> W,
                                  Matrix<double> drift, RuleArguments rule) {
    DenseCoefficients w(X, W, drift, 1.0, 1.0, rule_of(rule));
    minibatch(w, {W.shape[0], code, delta}, y, sigma, indices);
}

SOREL_CLONES void prospect_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                                 Indices rows, Indices probes, index batch, Matrix<double> table,
                                 Matrix<double> mean, TableArguments sorted, double nu,
                                 Matrix<double> W, RuleArguments arguments) {
    const StepRule rule = rule_of(arguments);
    DenseCoefficients w(X, W, mean, -rule.step, -rule.free_step, rule);
    prospect(w, {W.shape[0], code, delta}, y, rows, probes, batch, table, table_of(sorted), nu);
}

SOREL_CLONES void saddle_saga_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                                    Indices rows, Indices probes, index batch,
                                    Matrix<double> table, Matrix<double> mean,
                                    TableArguments sorted, double nu, double dual_step,
                                    Vector<double> losses, Vector<double> density,
                                    Matrix<double> W, RuleArguments arguments) {
    const StepRule rule = rule_of(arguments);
    DenseCoefficients w(X, W, mean, -rule.step, -rule.free_step, rule);
    saddle_saga(w, {W.shape[0], code, delta}, y, rows, probes, batch, table, table_of(sorted), nu,
                dual_step, losses, density);
}

}  // namespace

void bind_steps(nb::module_& m) {
    define(m, "svrg_steps", kSvrgParameters, svrg_steps);
    define(m, "minibatch_steps", kMinibatchParameters, minibatch_steps);
    define(m, "prospect_steps", kProspectParameters, prospect_steps);
    define(m, "saddle_saga_steps", kSaddleParameters, saddle_saga_steps);
}

}  // namespace sorel
