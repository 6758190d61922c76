// Stochastic steps on the rows of a dense X.
//
// Parameters are kept by output, W of shape (K, p) with the intercept last, so that every inner
// loop runs along a row of X; K = 1 for all losses but multinomial.
#include "steps.hpp"

#include "lanes.hpp"
#include "rows.hpp"
#include "tables.hpp"

namespace sorel {
namespace {

// z_c = x . W_c, plus the intercept.
SOREL_INLINE void sample_margins(const SampleLoss& sample, const double* x, index d, Matrix<double> W,
                                 double* z) {
    for (index c = 0; c < sample.outputs; ++c) {
        z[c] = dot(x, W.row(c), d);
        if (W.shape[1] > d) z[c] += W(c, d);
    }
}

// W <- prox(shrink W + drift - step sum_b coefficients_b x_b), for the rows of a batch.
SOREL_INLINE void take_step(const SampleLoss& sample, DoubleRows& X, index d, const std::int64_t* rows,
                            index batch, const double* coefficients, Matrix<double> W,
                            const double* drift, const StepRule& rule) {
    const index outputs = sample.outputs, p = W.shape[1];
    for (index b = 0; b < batch; ++b) {
        const double* x = X.row(rows[b]);
        for (index c = 0; c < outputs; ++c) {
            const double coefficient = coefficients[b * outputs + c],
                         scale = rule.step * coefficient;
            double* w = W.row(c);
            if (b == 0) {
                const double *push = drift + c * p, shrink = rule.shrink;
#pragma omp simd
                for (index j = 0; j < d; ++j) w[j] = shrink * w[j] + push[j] - scale * x[j];
                if (p > d) w[d] = rule.free_shrink * w[d] + push[d] - rule.free_step * coefficient;
            } else {
#pragma omp simd
                for (index j = 0; j < d; ++j) w[j] -= scale * x[j];
                if (p > d) w[d] -= rule.free_step * coefficient;
            }
        }
    }
    if (rule.proximal)
        for (index c = 0; c < outputs; ++c)
            prox_inplace(W.row(c), d, 1, rule.prox_step, rule.penalty);
}

// Variance-reduced steps around a snapshot with the given slopes: c_i = scale_i (phi'_i -
// slopes_i), scale = omega_i q_i / p_i for each draw. `drift` holds the snapshot's gradient. With
// `summed`, every iterate is added to `total`.
SOREL_CLONES void svrg_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                             Matrix<const double> slopes, Vector<const double> scale,
                             Vector<const std::int64_t> indices, index batch, Matrix<double> W,
                             Matrix<double> total, bool summed, Matrix<const double> drift,
                             double shrink, double step, double free_shrink, double free_step,
                             bool proximal, double prox_step, int penalty, double l2, double l1,
                             Vector<const double> lower, Vector<const double> upper) {
    const index d = X.shape[1], p = W.shape[1];
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    DoubleRows rows(X);
    std::vector<double> room((batch + 2) * W.shape[0]);
    const SampleLoss sample{W.shape[0], code, delta};
    const index outputs = sample.outputs;
    double *change = room.data(), *z = change + batch * outputs, *slope = z + outputs;
    for (index first = 0; first + batch <= indices.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            sample_margins(sample, rows.row(i), d, W, z);
            sample.slopes(y[i], z, slope);
            const double weight = scale[first + b] / static_cast<double>(batch);
            for (index c = 0; c < outputs; ++c)
                change[b * outputs + c] = (slope[c] - slopes.data[i * outputs + c]) * weight;
        }
        take_step(sample, rows, d, indices.data + first, batch, change, W, drift.data, rule);
        if (summed)
            for (index j = 0; j < outputs * p; ++j) total.data[j] += W.data[j];
    }
}

// Steps along the subgradient of the risk of each batch: sigma by rank inside the batch.
SOREL_CLONES void minibatch_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                                  Vector<const double> sigma, Vector<const std::int64_t> indices,
                                  Matrix<double> W, Matrix<const double> drift, double shrink,
                                  double step, double free_shrink, double free_step, bool proximal,
                                  double prox_step, int penalty, double l2, double l1,
                                  Vector<const double> lower, Vector<const double> upper) {
    const index d = X.shape[1], batch = sigma.size();
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    DoubleRows rows(X);
    std::vector<double> room((batch + 1) * W.shape[0] + batch);
    std::vector<index> ranked(batch);
    const SampleLoss sample{W.shape[0], code, delta};
    const index outputs = sample.outputs;
    double *slopes = room.data(), *z = slopes + batch * outputs, *losses = z + outputs;
    for (index first = 0; first + batch <= indices.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            sample_margins(sample, rows.row(i), d, W, z);
            losses[b] = sample.value(y[i], z);
            sample.slopes(y[i], z, slopes + b * outputs);
        }
        rank_batch(losses, ranked);
        for (index rank = 0; rank < batch; ++rank)
            for (index c = 0; c < outputs; ++c)
                slopes[ranked[rank] * outputs + c] *= sigma[rank];
        take_step(sample, rows, d, indices.data + first, batch, slopes, W, drift.data, rule);
    }
}

// The table of q_i phi'_i with its mean gradient, and what a step of the methods with tables needs.
struct SlopeTable {
    Matrix<double> entries, mean;
    std::vector<double> weights, fresh, change, drift, z;

    SlopeTable(Matrix<double> table, Matrix<double> gradient, index batch)
        : entries(table),
          mean(gradient),
          weights(batch),
          fresh(batch * table.shape[1]),
          change(batch * table.shape[1]),
          drift(gradient.shape[0] * gradient.shape[1]),
          z(table.shape[1]) {}
};

// A step of the methods with tables: differences of the fresh q_i phi'_i from the table, the step
// along them and the mean gradient, and the new entries, in O(d) for each.
SOREL_INLINE void table_step(const SampleLoss& sample, DoubleRows& X, index d, Vector<const double> y,
                             const std::int64_t* rows, index batch, SlopeTable& table,
                             Matrix<double> W, const StepRule& rule) {
    const index outputs = sample.outputs, p = W.shape[1];
    double *fresh = table.fresh.data(), *change = table.change.data();
    for (index b = 0; b < batch; ++b) {
        const index i = rows[b];
        sample_margins(sample, X.row(i), d, W, table.z.data());
        sample.slopes(y[i], table.z.data(), fresh + b * outputs);
        for (index c = b * outputs; c < (b + 1) * outputs; ++c) {
            fresh[c] *= table.weights[b];
            change[c] = (fresh[c] - table.entries(i, c - b * outputs)) / static_cast<double>(batch);
        }
    }
    for (index c = 0; c < outputs; ++c)
        for (index j = 0; j < p; ++j)
            table.drift[c * p + j] = -(j < d ? rule.step : rule.free_step) * table.mean(c, j);
    take_step(sample, X, d, rows, batch, change, W, table.drift.data(), rule);
    for (index b = 0; b < batch; ++b) {
        const index i = rows[b];
        const double* x = X.row(i);
        for (index c = 0; c < outputs; ++c) {
            // A row drawn twice finds its own fresh entry the second time, and adds nothing.
            double& entry = table.entries(i, c);
            const double scale = (fresh[b * outputs + c] - entry) / static_cast<double>(y.size());
            entry = fresh[b * outputs + c];
            double* mean = table.mean.row(c);
#pragma omp simd
            for (index j = 0; j < d; ++j) mean[j] += scale * x[j];
            if (p > d) mean[d] += scale;
        }
    }
}

// Prospect: weights from a table of losses whose order is repaired after every probe. `rows` are
// the samples whose gradients are taken, `probes` those whose losses are renewed. Keys are losses,
// over nu where nu > 0.
SOREL_CLONES void prospect_steps(AnyMatrix X, Vector<const double> y, int code, double delta,
                                 Vector<const std::int64_t> rows, Vector<const std::int64_t> probes,
                                 index batch, Matrix<double> table, Matrix<double> mean,
                                 Vector<double> key, Vector<std::int64_t> order,
                                 Vector<std::int64_t> position, Vector<const double> mass,
                                 double nu, Matrix<double> pools, Vector<std::int64_t> bounds,
                                 Matrix<double> W, double shrink, double step, double free_shrink,
                                 double free_step, bool proximal, double prox_step, int penalty,
                                 double l2, double l1, Vector<const double> lower,
                                 Vector<const double> upper) {
    const index d = X.shape[1];
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
    DoubleRows samples(X);
    SlopeTable slopes(table, mean, batch);
    const SampleLoss sample{W.shape[0], code, delta};
    for (index first = 0; first + batch <= rows.size(); first += batch) {
        ranked_weights(sorted, rows.data + first, batch, nu, slopes.weights.data());
        table_step(sample, samples, d, y, rows.data + first, batch, slopes, W, rule);
        for (index b = 0; b < batch; ++b) {
            const std::int64_t j = probes[first + b];
            sample_margins(sample, samples.row(j), d, W, slopes.z.data());
            move_entry(sorted, j, unit * sample.value(y[j], slopes.z.data()));
        }
    }
}

// SAGA on the saddle point: a variance-reduced step in w, and one in q with its projection.
// `losses` and `density` stand in the order of the last projection, so that the O(n) part of a step
// reads and writes in sequence. Ends where the dual step diverged: the caller sees it in w.
SOREL_CLONES void saddle_saga_steps(
    AnyMatrix X, Vector<const double> y, int code, double delta, Vector<const std::int64_t> rows,
    Vector<const std::int64_t> probes, index batch, Matrix<double> table, Matrix<double> mean,
    Vector<double> losses, Vector<double> density, Vector<double> key, Vector<std::int64_t> order,
    Vector<std::int64_t> position, Vector<const double> mass, double nu, double dual_step,
    Matrix<double> pools, Vector<std::int64_t> bounds, Matrix<double> W, double shrink, double step,
    double free_shrink, double free_step, bool proximal, double prox_step, int penalty, double l2,
    double l1, Vector<const double> lower, Vector<const double> upper) {
    const index d = X.shape[1];
    const StepRule rule{shrink,
                        step,
                        free_shrink,
                        free_step,
                        proximal,
                        prox_step,
                        {penalty, l2, l1, lower.data, upper.data}};
    const Table sorted{key.size(), key.data,   order.data, position.data,
                       mass.data,  pools.data, bounds.data};
    DoubleRows samples(X);
    SlopeTable slopes(table, mean, batch);
    std::vector<double> probed(batch);
    const SampleLoss sample{W.shape[0], code, delta};
    for (index first = 0; first + batch <= rows.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            slopes.weights[b] = density[position[rows[first + b]]];
            const index j = probes[first + b];
            sample_margins(sample, samples.row(j), d, W, slopes.z.data());
            probed[b] = sample.value(y[j], slopes.z.data());
        }
        table_step(sample, samples, d, y, rows.data + first, batch, slopes, W, rule);
        if (!saddle_ascent(sorted, probes.data + first, probed.data(), batch, losses.data,
                           density.data, nu, dual_step))
            return;
    }
}

}  // namespace

void bind_steps(nb::module_& m) {
    define(m, "svrg_steps",
           "X y code delta slopes scale indices batch W total summed drift shrink step free_shrink "
           "free_step proximal prox_step penalty l2 l1 lower upper",
           svrg_steps);
    define(
        m, "minibatch_steps",
        "X y code delta sigma indices W drift shrink step free_shrink free_step proximal prox_step "
        "penalty l2 l1 lower upper",
        minibatch_steps);
    define(m, "prospect_steps",
           "X y code delta rows probes batch table mean key order position mass nu pools bounds W "
           "shrink step free_shrink free_step proximal prox_step penalty l2 l1 lower upper",
           prospect_steps);
    define(
        m, "saddle_saga_steps",
        "X y code delta rows probes batch table mean losses density key order position mass nu "
        "dual_step pools bounds W shrink step free_shrink free_step proximal prox_step penalty l2 "
        "l1 lower upper",
        saddle_saga_steps);
}

}  // namespace sorel
