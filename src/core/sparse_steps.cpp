// Stochastic steps on sparse rows, at O(nonzeros) each: see methods.hpp for the methods, and lazy.hpp
// for coefficients that no row touches.
#include <limits>

#include "lazy.hpp"
#include "methods.hpp"

namespace sorel {
namespace {

// The three arrays of CSR, as Python passes them.
template <class Index, class T>
using Arrays = std::tuple<Vector<const Index>, Vector<const Index>, Vector<const T>>;

template <class Index, class T>
Csr<Index, T> rows_of(const Arrays<Index, T>& X) {
    return {std::get<0>(X).data, std::get<1>(X).data, std::get<2>(X).data};
}

// A scale below which rounding in v would show in w = s v + r drift.
constexpr double kSmallScale = 1e-4;

// W = s V + r drift, and the sum of the iterates: s_sum V + r_sum drift, and in `late` what earlier
// iterates had of V before it moved. A step changes the scalars, and V along a row only
// (Shalev-Shwartz, Singer & Srebro 2007). Steps W <- shrink W + drift - a x without a proximal map
// need 0 < shrink <= 1, the products of all rows with the drift, and a sweep over all coefficients
// every time that s has become small.
template <class Index, class T>
class ScaledCoefficients {
  public:
    ScaledCoefficients(Csr<Index, T> X, index n, Matrix<double> W, Matrix<double> total,
                       bool summed, Matrix<double> drift, const StepRule& rule, index d)
        : X_(X),
          V_(W),
          total_(total),
          drift_(drift),
          summed_(summed),
          rule_(rule),
          d_(d),
          outputs_(W.shape[0]),
          late_(summed ? W.shape[0] * d : 0),
          along_(n * W.shape[0]) {
        for (index i = 0; i < n; ++i)
            for (index c = 0; c < outputs_; ++c) along_[i * outputs_ + c] = X.dot(i, drift.row(c));
    }

    void margins(index i, double* z) {
        for (index c = 0; c < outputs_; ++c) {
            z[c] = s_ * X_.dot(i, V_.row(c)) + r_ * along_[i * outputs_ + c];
            if (V_.shape[1] > d_) z[c] += V_(c, d_);
        }
    }

    void step(const std::int64_t* rows, index batch, const double* change) {
        s_ *= rule_.shrink;
        r_ = rule_.shrink * r_ + 1.0;
        for (index b = 0; b < batch; ++b) {
            for (index c = 0; c < outputs_; ++c) {
                const double a = rule_.step / s_ * change[b * outputs_ + c];
                X_.add(rows[b], -a, V_.row(c));
                if (summed_) X_.add(rows[b], a * s_sum_, late_.data() + c * d_);
            }
        }
        if (V_.shape[1] > d_) {
            for (index c = 0; c < outputs_; ++c) {
                double& free = V_(c, d_);
                free = rule_.free_shrink * free + drift_(c, d_);
                for (index b = 0; b < batch; ++b)
                    free -= rule_.free_step * change[b * outputs_ + c];
                if (summed_) total_(c, d_) += free;
            }
        }
        s_sum_ += s_;
        r_sum_ += r_;
        if (s_ < kSmallScale) fold();
    }

    // V becomes W, for s = 1 and r = 0.
    void fold() {
        for (index c = 0; c < outputs_; ++c) {
            double *v = V_.row(c), *sum = total_.row(c), *waiting = late_.data() + c * d_;
            const double* push = drift_.row(c);
            for (index j = 0; j < d_; ++j) {
                if (summed_) {
                    sum[j] += s_sum_ * v[j] + r_sum_ * push[j] + waiting[j];
                    waiting[j] = 0.0;
                }
                v[j] = s_ * v[j] + r_ * push[j];
            }
        }
        s_ = 1.0;
        r_ = s_sum_ = r_sum_ = 0.0;
    }

  private:
    Csr<Index, T> X_;
    Matrix<double> V_, total_, drift_;
    bool summed_;
    StepRule rule_;
    index d_, outputs_;
    double s_ = 1.0, r_ = 0.0, s_sum_ = 0.0, r_sum_ = 0.0;
    std::vector<double> late_, along_;
};

template <class Index, class T>
void svrg_steps(Arrays<Index, T> arrays, Vector<const double> y, int code, double delta,
                Matrix<const double> slopes, Vector<const double> scale, Indices indices,
                index batch, Matrix<double> W, Matrix<double> total, bool summed,
                Matrix<double> drift, RuleArguments arguments) {
    const auto X = rows_of<Index, T>(arrays);
    const StepRule rule = rule_of(arguments);
    const index d = columns_of(arguments);
    const SampleLoss sample{W.shape[0], code, delta};
    // Sweeps over all coefficients must cost less than the rows of the steps between them.
    const double entries =
        static_cast<double>(batch * std::get<2>(arrays).size()) / static_cast<double>(y.size());
    const double decay = 0.0 < rule.shrink && rule.shrink <= 1.0
                             ? -std::log(rule.shrink)
                             : std::numeric_limits<double>::infinity();
    if (!rule.proximal && decay * static_cast<double>(d) <= -std::log(kSmallScale) * entries) {
        ScaledCoefficients<Index, T> w(X, y.size(), W, total, summed, drift, rule, d);
        svrg(w, sample, y, slopes, scale, indices, batch);
        return w.fold();
    }
    LazyCoefficients<Index, T> w(X, d, W, drift, 1.0, 1.0, rule);
    svrg(w, sample, y, slopes, scale, indices, batch);
    w.catch_up(W);
    if (summed)
        for (index j = 0; j < W.shape[1]; ++j)
            for (index c = 0; c < W.shape[0]; ++c) total(c, j) += w.total(j, c);
}

template <class Index, class T>
void minibatch_steps(Arrays<Index, T> X, Vector<const double> y, int code, double delta,
                     Vector<const double> sigma, Indices indices, Matrix<double> W,
                     Matrix<double> drift, RuleArguments rule) {
    LazyCoefficients<Index, T> w(rows_of<Index, T>(X), columns_of(rule), W, drift, 1.0, 1.0,
                                 rule_of(rule));
    minibatch(w, {W.shape[0], code, delta}, y, sigma, indices);
    w.catch_up(W);
}

// Steps of a method with tables, `run(w)`, in which the mean gradient drives the coefficients.
template <class Index, class T, class F>
void table_steps(const Arrays<Index, T>& X, Matrix<double> mean, Matrix<double> W,
                 const RuleArguments& arguments, F&& run) {
    const StepRule rule = rule_of(arguments);
    LazyCoefficients<Index, T> w(rows_of<Index, T>(X), columns_of(arguments), W, mean, -rule.step,
                                 -rule.free_step, rule);
    run(w);
    w.catch_up(W);
    for (index j = 0; j < W.shape[1]; ++j)
        for (index c = 0; c < W.shape[0]; ++c) mean(c, j) = w.driver(j, c);
}

template <class Index, class T>
void prospect_steps(Arrays<Index, T> X, Vector<const double> y, int code, double delta,
                    Indices rows, Indices probes, index batch, Matrix<double> table,
                    Matrix<double> mean, TableArguments sorted, double nu, Matrix<double> W,
                    RuleArguments rule) {
    table_steps(X, mean, W, rule, [&](auto& w) {
        prospect(w, {W.shape[0], code, delta}, y, rows, probes, batch, table, table_of(sorted),
                 nu);
    });
}

template <class Index, class T>
void saddle_saga_steps(Arrays<Index, T> X, Vector<const double> y, int code, double delta,
                       Indices rows, Indices probes, index batch, Matrix<double> table,
                       Matrix<double> mean, TableArguments sorted, double nu, double dual_step,
                       Vector<double> losses, Vector<double> density, Matrix<double> W,
                       RuleArguments rule) {
    table_steps(X, mean, W, rule, [&](auto& w) {
        saddle_saga(w, {W.shape[0], code, delta}, y, rows, probes, batch, table, table_of(sorted),
                    nu, dual_step, losses, density);
    });
}

template <class Index, class T>
void bind(nb::module_& m) {
    define(m, "svrg_steps", kSvrgParameters, svrg_steps<Index, T>);
    define(m, "minibatch_steps", kMinibatchParameters, minibatch_steps<Index, T>);
    define(m, "prospect_steps", kProspectParameters, prospect_steps<Index, T>);
    define(m, "saddle_saga_steps", kSaddleParameters, saddle_saga_steps<Index, T>);
}

}  // namespace

void bind_sparse_steps(nb::module_& m) {
    for_csr_types([&](auto i, auto x) { bind<decltype(i), decltype(x)>(m); });
}

}  // namespace sorel
