// Stochastic steps on sparse rows, at O(nonzeros) each: see steps.cpp for the methods, and lazy.hpp
// for coefficients that no row touches.
#include <limits>

#include "lazy.hpp"
#include "tables.hpp"

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
// (Shalev-Shwartz, Singer & Srebro 2007).
struct ScaledCoefficients {
    Matrix<double> V, total;
    bool summed;
    Matrix<const double> drift;
    index d;
    double s = 1.0, r = 0.0, s_sum = 0.0, r_sum = 0.0;
    std::vector<double> late;

    ScaledCoefficients(Matrix<double> W, Matrix<double> sums, bool summing,
                       Matrix<const double> push, index features)
        : V(W),
          total(sums),
          summed(summing),
          drift(push),
          d(features),
          late(summing ? W.shape[0] * features : 0) {}

    // V becomes W, for s = 1 and r = 0.
    void fold() {
        for (index c = 0; c < V.shape[0]; ++c) {
            double *v = V.row(c), *sum = total.row(c), *waiting = late.data() + c * d;
            const double* push = drift.row(c);
            for (index j = 0; j < d; ++j) {
                if (summed) {
                    sum[j] += s_sum * v[j] + r_sum * push[j] + waiting[j];
                    waiting[j] = 0.0;
                }
                v[j] = s * v[j] + r * push[j];
            }
        }
        s = 1.0;
        r = s_sum = r_sum = 0.0;
    }
};

// Variance-reduced steps W <- shrink W + drift - a x without a proximal map. They need
// 0 < shrink <= 1, the products of all rows with the drift, and a sweep over all coefficients every
// time that s has become small.
template <class Index, class T>
void svrg_steps_scaled(Csr<Index, T> X, Vector<const double> y, int code, double delta,
                       Matrix<const double> slopes, Vector<const double> scale,
                       Vector<const std::int64_t> indices, index batch, Matrix<double> W,
                       Matrix<double> total, bool summed, Matrix<const double> drift,
                       const StepRule& rule, index d) {
    const index n = y.size(), outputs = W.shape[0];
    const bool intercept = W.shape[1] > d;
    std::vector<double> along(n * outputs), room((batch + 2) * outputs);
    for (index i = 0; i < n; ++i)
        for (index c = 0; c < outputs; ++c) along[i * outputs + c] = X.dot(i, drift.row(c));
    double *change = room.data(), *z = change + batch * outputs, *slope = z + outputs;
    ScaledCoefficients w(W, total, summed, drift, d);
    const SampleLoss sample{outputs, code, delta};
    for (index first = 0; first + batch <= indices.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            for (index c = 0; c < outputs; ++c) {
                z[c] = w.s * X.dot(i, W.row(c)) + w.r * along[i * outputs + c];
                if (intercept) z[c] += W(c, d);
            }
            sample.slopes(y[i], z, slope);
            const double weight = scale[first + b] / static_cast<double>(batch);
            for (index c = 0; c < outputs; ++c)
                change[b * outputs + c] = (slope[c] - slopes(i, c)) * weight;
        }
        w.s *= rule.shrink;
        w.r = rule.shrink * w.r + 1.0;
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            for (index c = 0; c < outputs; ++c) {
                const double a = rule.step / w.s * change[b * outputs + c];
                X.add(i, -a, W.row(c));
                if (summed) X.add(i, a * w.s_sum, w.late.data() + c * d);
            }
        }
        if (intercept) {
            for (index c = 0; c < outputs; ++c) {
                double& free = W(c, d);
                free = rule.free_shrink * free + drift(c, d);
                for (index b = 0; b < batch; ++b) free -= rule.free_step * change[b * outputs + c];
                if (summed) total(c, d) += free;
            }
        }
        w.s_sum += w.s;
        w.r_sum += w.r;
        if (w.s < kSmallScale) w.fold();
    }
    w.fold();
}

template <class Index, class T>
void svrg_steps_csr(Arrays<Index, T> arrays, Vector<const double> y, int code, double delta,
                    Matrix<const double> slopes, Vector<const double> scale,
                    Vector<const std::int64_t> indices, index batch, Matrix<double> W,
                    Matrix<double> total, bool summed, Matrix<const double> drift, double shrink,
                    double step, double free_shrink, double free_step, bool proximal,
                    double prox_step, int penalty, double l2, double l1, Vector<const double> lower,
                    Vector<const double> upper) {
    const auto X = rows_of<Index, T>(arrays);
    const index d = lower.size(), outputs = W.shape[0];
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    // Sweeps over all coefficients must cost less than the rows of the steps between them.
    const double entries =
        static_cast<double>(batch * std::get<2>(arrays).size()) / static_cast<double>(y.size());
    const double decay =
        0.0 < shrink && shrink <= 1.0 ? -std::log(shrink) : std::numeric_limits<double>::infinity();
    if (!proximal && decay * static_cast<double>(d) <= -std::log(kSmallScale) * entries)
        return svrg_steps_scaled(X, y, code, delta, slopes, scale, indices, batch, W, total, summed,
                                 drift, rule, d);
    LazyCoefficients<Index, T> w(X, d, {W.data, {outputs, W.shape[1]}}, drift, 1.0, 1.0, rule);
    std::vector<double> room((batch + 2) * outputs);
    double *change = room.data(), *z = change + batch * outputs, *slope = z + outputs;
    const SampleLoss sample{outputs, code, delta};
    for (index first = 0; first + batch <= indices.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            w.margins(i, z);
            sample.slopes(y[i], z, slope);
            const double weight = scale[first + b] / static_cast<double>(batch);
            for (index c = 0; c < outputs; ++c)
                change[b * outputs + c] = (slope[c] - slopes(i, c)) * weight;
        }
        w.step(indices.data + first, batch, change);
    }
    w.settle(W);
    if (summed)
        for (index j = 0; j < W.shape[1]; ++j)
            for (index c = 0; c < outputs; ++c) total(c, j) += w.total(j, c);
}

template <class Index, class T>
void minibatch_steps_csr(Arrays<Index, T> arrays, Vector<const double> y, int code, double delta,
                         Vector<const double> sigma, Vector<const std::int64_t> indices,
                         Matrix<double> W, Matrix<const double> drift, double shrink, double step,
                         double free_shrink, double free_step, bool proximal, double prox_step,
                         int penalty, double l2, double l1, Vector<const double> lower,
                         Vector<const double> upper) {
    const index d = lower.size(), batch = sigma.size(), outputs = W.shape[0];
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    LazyCoefficients<Index, T> w(rows_of<Index, T>(arrays), d, {W.data, {outputs, W.shape[1]}},
                                 drift, 1.0, 1.0, rule);
    std::vector<double> room((batch + 1) * outputs + batch);
    std::vector<index> ranked(batch);
    double *slopes = room.data(), *z = slopes + batch * outputs, *losses = z + outputs;
    const SampleLoss sample{outputs, code, delta};
    for (index first = 0; first + batch <= indices.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            w.margins(i, z);
            losses[b] = sample.value(y[i], z);
            sample.slopes(y[i], z, slopes + b * outputs);
        }
        rank_batch(losses, ranked);
        for (index rank = 0; rank < batch; ++rank)
            for (index c = 0; c < outputs; ++c) slopes[ranked[rank] * outputs + c] *= sigma[rank];
        w.step(indices.data + first, batch, slopes);
    }
    w.settle(W);
}

// The table of q_i phi'_i. The state drives each coefficient by the mean gradient, which changes
// where the rows do.
template <class Index, class T>
struct LazyTable {
    LazyCoefficients<Index, T> w;
    Vector<const double> y;
    Matrix<double> entries;
    std::vector<double> weights, fresh, change, z;

    LazyTable(const Arrays<Index, T>& X, Vector<const double> targets, Matrix<double> table,
              Matrix<double> mean, index batch, Matrix<double> W, const StepRule& rule, index d)
        : w(rows_of<Index, T>(X), d, {W.data, {W.shape[0], W.shape[1]}},
            {mean.data, {mean.shape[0], mean.shape[1]}}, -rule.step, -rule.free_step, rule),
          y(targets),
          entries(table),
          weights(batch),
          fresh(batch * table.shape[1]),
          change(batch * table.shape[1]),
          z(table.shape[1]) {}

    // Differences of the fresh q_i phi'_i from the table, the step, and the new entries.
    void step(const SampleLoss& sample, const std::int64_t* rows, index batch) {
        const index outputs = entries.shape[1];
        for (index b = 0; b < batch; ++b) {
            const index i = rows[b];
            w.margins(i, z.data());
            double *own = fresh.data() + b * outputs, *moved = change.data() + b * outputs;
            sample.slopes(y[i], z.data(), own);
            for (index c = 0; c < outputs; ++c) {
                own[c] *= weights[b];
                moved[c] = (own[c] - entries(i, c)) / static_cast<double>(batch);
            }
        }
        w.step(rows, batch, change.data());
        for (index b = 0; b < batch; ++b) {
            for (index c = 0; c < outputs; ++c) {
                // A row drawn twice finds its own fresh entry the second time, and adds nothing.
                double& entry = entries(rows[b], c);
                const double own = fresh[b * outputs + c];
                const double scale = (own - entry) / static_cast<double>(y.size());
                entry = own;
                w.drive(rows[b], c, scale);
            }
        }
    }

    // The loss of a sample at the coefficients as they are now.
    double probe(const SampleLoss& sample, index i) {
        w.margins(i, z.data());
        return sample.value(y[i], z.data());
    }

    void settle(Matrix<double> W, Matrix<double> mean) {
        w.settle(W);
        for (index j = 0; j < W.shape[1]; ++j)
            for (index c = 0; c < W.shape[0]; ++c) mean(c, j) = w.driver(j, c);
    }
};

template <class Index, class T>
void prospect_steps_csr(Arrays<Index, T> X, Vector<const double> y, int code, double delta,
                        Vector<const std::int64_t> rows, Vector<const std::int64_t> probes,
                        index batch, Matrix<double> table, Matrix<double> mean, Vector<double> key,
                        Vector<std::int64_t> order, Vector<std::int64_t> position,
                        Vector<const double> mass, double nu, Matrix<double> pools,
                        Vector<std::int64_t> bounds, Matrix<double> W, double shrink, double step,
                        double free_shrink, double free_step, bool proximal, double prox_step,
                        int penalty, double l2, double l1, Vector<const double> lower,
                        Vector<const double> upper) {
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    const Table sorted{key.size(), key.data,   order.data, position.data,
                       mass.data,  pools.data, bounds.data};
    const double unit = nu > 0.0 ? 1.0 / nu : 1.0;
    LazyTable<Index, T> slopes(X, y, table, mean, batch, W, rule, lower.size());
    const SampleLoss sample{W.shape[0], code, delta};
    for (index first = 0; first + batch <= rows.size(); first += batch) {
        ranked_weights(sorted, rows.data + first, batch, nu, slopes.weights.data());
        slopes.step(sample, rows.data + first, batch);
        for (index b = 0; b < batch; ++b) {
            const std::int64_t j = probes[first + b];
            move_entry(sorted, j, unit * slopes.probe(sample, j));
        }
    }
    slopes.settle(W, mean);
}

template <class Index, class T>
void saddle_saga_steps_csr(Arrays<Index, T> X, Vector<const double> y, int code, double delta,
                           Vector<const std::int64_t> rows, Vector<const std::int64_t> probes,
                           index batch, Matrix<double> table, Matrix<double> mean,
                           Vector<double> losses, Vector<double> density, Vector<double> key,
                           Vector<std::int64_t> order, Vector<std::int64_t> position,
                           Vector<const double> mass, double nu, double dual_step,
                           Matrix<double> pools, Vector<std::int64_t> bounds, Matrix<double> W,
                           double shrink, double step, double free_shrink, double free_step,
                           bool proximal, double prox_step, int penalty, double l2, double l1,
                           Vector<const double> lower, Vector<const double> upper) {
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    const Table sorted{key.size(), key.data,   order.data, position.data,
                       mass.data,  pools.data, bounds.data};
    LazyTable<Index, T> slopes(X, y, table, mean, batch, W, rule, lower.size());
    std::vector<double> probed(batch);
    const SampleLoss sample{W.shape[0], code, delta};
    for (index first = 0; first + batch <= rows.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            slopes.weights[b] = density[position[rows[first + b]]];
            probed[b] = slopes.probe(sample, probes[first + b]);
        }
        slopes.step(sample, rows.data + first, batch);
        // Where the dual step diverged, the caller sees it in w.
        if (!saddle_ascent(sorted, probes.data + first, probed.data(), batch, losses.data,
                           density.data, nu, dual_step))
            break;
    }
    slopes.settle(W, mean);
}

template <class Index, class T>
void bind(nb::module_& m) {
    define(m, "svrg_steps_csr",
           "X y code delta slopes scale indices batch W total summed drift shrink step free_shrink "
           "free_step proximal prox_step penalty l2 l1 lower upper",
           svrg_steps_csr<Index, T>);
    define(m, "minibatch_steps_csr",
           "X y code delta sigma indices W drift shrink step free_shrink free_step proximal "
           "prox_step penalty l2 l1 lower upper",
           minibatch_steps_csr<Index, T>);
    define(m, "prospect_steps_csr",
           "X y code delta rows probes batch table mean key order position mass nu pools bounds W "
           "shrink step free_shrink free_step proximal prox_step penalty l2 l1 lower upper",
           prospect_steps_csr<Index, T>);
    define(m, "saddle_saga_steps_csr",
           "X y code delta rows probes batch table mean losses density key order position mass nu "
           "dual_step pools bounds W shrink step free_shrink free_step proximal prox_step penalty "
           "l2 l1 lower upper",
           saddle_saga_steps_csr<Index, T>);
}

}  // namespace

void bind_sparse_steps(nb::module_& m) {
    for_csr_types([&](auto i, auto x) { bind<decltype(i), decltype(x)>(m); });
}

}  // namespace sorel
