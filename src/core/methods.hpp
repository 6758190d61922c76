// The stochastic methods on single samples, for coefficients of any kind.
//
// Coefficients W of shape (K, p), the intercept last, know the rows of X and how a step goes:
//
//     margins(i, z)                  z_c = x_i . W_c, plus the intercept
//     step(rows, batch, c)           W <- prox(shrink W + drift - step sum_b c_b x_b)
//     drive(i, c, scale)             add scale x_i to what drives the drift of output c
//
// K = 1 for all losses but multinomial. Sources: proximal SVRG, Xiao & Zhang 2014; Prospect, Mehta
// et al. 2024; SAGA, Defazio, Bach & Lacoste-Julien 2014, on saddle points Palaniappan & Bach 2016.
#pragma once

#include "steps.hpp"
#include "tables.hpp"

namespace sorel {

using Indices = Vector<const std::int64_t>;

// A step rule as Python passes it: see step_numbers in engines/stochastic.py.
using RuleArguments =
    std::tuple<double, double, double, double, bool, double, int, double, double,
               Vector<const double>, Vector<const double>>;

inline StepRule rule_of(const RuleArguments& a) {
    return {std::get<0>(a),
            std::get<1>(a),
            std::get<2>(a),
            std::get<3>(a),
            std::get<4>(a),
            std::get<5>(a),
            {std::get<6>(a), std::get<7>(a), std::get<8>(a), std::get<9>(a).data,
             std::get<10>(a).data}};
}

// Columns of X, for each of which the penalty has bounds.
inline index columns_of(const RuleArguments& a) { return std::get<9>(a).size(); }

// Keys, order, position, mass, pools and bounds of a sorted table.
using TableArguments = std::tuple<Vector<double>, Vector<std::int64_t>, Vector<std::int64_t>,
                                  Vector<const double>, Matrix<double>, Vector<std::int64_t>>;

inline Table table_of(const TableArguments& a) {
    return {std::get<0>(a).size(), std::get<0>(a).data, std::get<1>(a).data, std::get<2>(a).data,
            std::get<3>(a).data,   std::get<4>(a).data, std::get<5>(a).data};
}

// Variance-reduced steps around a snapshot with the given slopes: c_i = scale_i (phi'_i -
// slopes_i), scale = omega_i q_i / p_i for each draw. The drift holds the snapshot's gradient.
template <class Coefficients>
SOREL_INLINE void svrg(Coefficients& w, const SampleLoss& sample, Vector<const double> y,
                       Matrix<const double> slopes, Vector<const double> scale, Indices indices,
                       index batch) {
    const index outputs = sample.outputs;
    std::vector<double> room((batch + 2) * outputs);
    double *change = room.data(), *z = change + batch * outputs, *slope = z + outputs;
    for (index first = 0; first + batch <= indices.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            const index i = indices[first + b];
            w.margins(i, z);
            sample.slopes(y[i], z, slope);
            const double weight = scale[first + b] / static_cast<double>(batch);
            for (index c = 0; c < outputs; ++c)
                change[b * outputs + c] = (slope[c] - slopes.data[i * outputs + c]) * weight;
        }
        w.step(indices.data + first, batch, change);
    }
}

// Steps along the subgradient of the risk of each batch: sigma by rank inside the batch.
template <class Coefficients>
SOREL_INLINE void minibatch(Coefficients& w, const SampleLoss& sample, Vector<const double> y,
                            Vector<const double> sigma, Indices indices) {
    const index batch = sigma.size(), outputs = sample.outputs;
    std::vector<double> room((batch + 1) * outputs + batch);
    std::vector<index> ranked(batch);
    double *slopes = room.data(), *z = slopes + batch * outputs, *losses = z + outputs;
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
}

// The table of q_i phi'_i, whose mean gradient drives the coefficients.
template <class Coefficients>
struct SlopeTable {
    Coefficients& w;
    const SampleLoss& sample;
    Vector<const double> y;
    Matrix<double> entries;
    std::vector<double> weights, fresh, change, z;

    SlopeTable(Coefficients& coefficients, const SampleLoss& loss, Vector<const double> targets,
               Matrix<double> table, index batch)
        : w(coefficients),
          sample(loss),
          y(targets),
          entries(table),
          weights(batch),
          fresh(batch * table.shape[1]),
          change(batch * table.shape[1]),
          z(table.shape[1]) {}

    // Differences of the fresh q_i phi'_i from the table, the step along them and the mean
    // gradient, and the new entries.
    SOREL_INLINE void step(const std::int64_t* rows, index batch) {
        const index outputs = sample.outputs;
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
    SOREL_INLINE double probe(index i) {
        w.margins(i, z.data());
        return sample.value(y[i], z.data());
    }
};

// Prospect: weights from a table of losses whose order is repaired after every probe. `rows` are
// the samples whose gradients are taken, `probes` those whose losses are renewed. Keys are losses,
// over nu where nu > 0.
template <class Coefficients>
SOREL_INLINE void prospect(Coefficients& w, const SampleLoss& sample, Vector<const double> y,
                           Indices rows, Indices probes, index batch, Matrix<double> table,
                           const Table& sorted, double nu) {
    const double unit = nu > 0.0 ? 1.0 / nu : 1.0;
    SlopeTable<Coefficients> slopes(w, sample, y, table, batch);
    for (index first = 0; first + batch <= rows.size(); first += batch) {
        ranked_weights(sorted, rows.data + first, batch, nu, slopes.weights.data());
        slopes.step(rows.data + first, batch);
        for (index b = 0; b < batch; ++b) {
            const std::int64_t j = probes[first + b];
            move_entry(sorted, j, unit * slopes.probe(j));
        }
    }
}

// SAGA on the saddle point: a variance-reduced step in w, and one in q with its projection.
// `losses` and `density` stand in the order of the last projection, so that the O(n) part of a step
// reads and writes in sequence. Ends where the dual step diverged: the caller sees it in w.
template <class Coefficients>
SOREL_INLINE void saddle_saga(Coefficients& w, const SampleLoss& sample, Vector<const double> y,
                              Indices rows, Indices probes, index batch, Matrix<double> table,
                              const Table& sorted, double nu, double dual_step,
                              Vector<double> losses, Vector<double> density) {
    SlopeTable<Coefficients> slopes(w, sample, y, table, batch);
    std::vector<double> probed(batch);
    for (index first = 0; first + batch <= rows.size(); first += batch) {
        for (index b = 0; b < batch; ++b) {
            slopes.weights[b] = density[sorted.position[rows[first + b]]];
            probed[b] = slopes.probe(probes[first + b]);
        }
        slopes.step(rows.data + first, batch);
        if (!saddle_ascent(sorted, probes.data + first, probed.data(), batch, losses.data,
                           density.data, nu, dual_step))
            return;
    }
}

// The parameters of the four loops, after X: dense and sparse rows have them alike.
inline constexpr const char* kSvrgParameters =
    "X y code delta slopes scale indices batch W total summed drift rule";
inline constexpr const char* kMinibatchParameters = "X y code delta sigma indices W drift rule";
inline constexpr const char* kProspectParameters =
    "X y code delta rows probes batch table mean sorted nu W rule";
inline constexpr const char* kSaddleParameters =
    "X y code delta rows probes batch table mean sorted nu dual_step losses density W rule";

}  // namespace sorel
