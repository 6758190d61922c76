// Coefficients that are brought up to date only when a sparse row needs them.
//
// A coefficient that no row of a batch touches goes through a map of itself alone,
//
//     u -> clip(soft(shrink u + drift) * scale),
//
// so it is left where it is until a row needs it, and then taken through all the steps that it has
// missed at once (Carpenter 2008; for means of tables Schmidt, Le Roux & Bach 2017, section 4). The
// drift is a constant or, in the methods with tables, follows a mean gradient that changes only
// where a row does. The simplex ties all coefficients together: its steps cost O(d).
#pragma once

#include <limits>
#include <vector>

#include "csr.hpp"
#include "steps.hpp"

namespace sorel {

struct Run {
    double end, sum;
};

// What k steps u -> ratio u + m do: the last value, and the sum of all k.
class AffineRuns {
  public:
    explicit AffineRuns(double ratio) : rows_(kLong + kLadder) {
        rows_[0] = {1.0, 0.0, 0.0, 0.0};
        for (index k = 1; k <= kLong; ++k) {
            const Row& last = rows_[k - 1];
            const double power = ratio * last.power, gathered = ratio * last.gathered + 1.0;
            rows_[k] = {power, gathered, last.power_sum + power, last.gathered_sum + gathered};
        }
        for (index k = kLong + 1; k < kLong + kLadder; ++k) {
            const auto [p, g, a, b] = rows_[k - 1];
            rows_[k] = {p * p, g + p * g, a + a * p, 2.0 * b + a * g};
        }
    }

    // A run of less than kLong steps.
    SOREL_INLINE Run short_run(index length, double u, double m) const {
        const Row& row = rows_[length];
        return {row.power * u + row.gathered * m, row.power_sum * u + row.gathered_sum * m};
    }

    SOREL_INLINE Run run(index length, double u, double m) const {
        double total = 0.0;
        index k = kLong;
        for (index rest = length >> kLongBits; rest > 0; rest >>= 1, ++k) {
            if (!(rest & 1)) continue;
            const Run part = short_run(k, u, m);
            total += part.sum;
            u = part.end;
        }
        const Run part = short_run(length & (kLong - 1), u, m);
        return {part.end, total + part.sum};
    }

    // Runs below this length are tabulated one by one, longer ones by powers of two.
    static constexpr int kLongBits = 12;
    static constexpr index kLong = index{1} << kLongBits;

  private:
    // Powers of two in the table: more steps than anybody takes.
    static constexpr index kLadder = 40;

    // Factors of u and of m in the last value, and in the sum. Row k < kLong is a run of k steps,
    // row kLong + b one of kLong 2^b.
    struct Row {
        double power, gathered, power_sum, gathered_sum;
    };
    std::vector<Row> rows_;
};

// The separable proximal map of one coefficient, and what one step makes of it before.
struct SeparableMap {
    double shrink, threshold, scale;

    SOREL_INLINE double operator()(double v, double lower, double upper) const {
        // Selections in place of branches, which no processor could foresee here.
        double size = std::abs(v) - threshold;
        size = size > 0.0 ? size * scale : 0.0;
        double u = v > 0.0 ? size : -size;
        u = u < lower ? lower : u;
        return u > upper ? upper : u;
    }

    // Many steps u -> map(shrink u + drift). The map is increasing, so the values move one way
    // only. They cross from one linear piece to the next at most a few times, and each piece is one
    // run, whose length is found by bisection.
    inline Run run(index length, double u, double drift, double lower, double upper,
                   const AffineRuns& runs) const {
        double total = 0.0;
        while (length > 0) {
            const bool positive = u > 0.0;
            const double low = positive ? std::max(lower, 0.0) : lower;
            const double high = positive ? upper : std::min(upper, 0.0);
            const double m = (positive ? drift - threshold : drift + threshold) * scale;
            const auto in_piece = [=](double v) { return low <= v && v <= high; };
            const bool inside = u != 0.0 && in_piece(u);
            if (inside) {
                const Run whole = runs.run(length, u, m);
                if (in_piece(whole.end)) return {whole.end, total + whole.sum};
            }
            const double next = (*this)(shrink * u + drift, lower, upper);
            if (next == u) return {u, total + static_cast<double>(length) * u};
            index taken = 1;
            Run part{next, next};
            if (inside && in_piece(next)) {
                for (index outside = length; outside - taken > 1;) {
                    const index middle = (taken + outside) / 2;
                    const Run further = runs.run(middle, u, m);
                    if (in_piece(further.end)) {
                        taken = middle;
                        part = further;
                    } else {
                        outside = middle;
                    }
                }
            }
            u = part.end;
            total += part.sum;
            length -= taken;
        }
        return {u, total};
    }
};

// All coefficients W of shape (K, p), the intercept last, in steps along rows of a sparse X.
//
// A coefficient's line of the state holds all that a visit needs side by side: the number of steps
// it has seen, then for each output its value, then what drives it, then the sum of its values
// after each step. The intercept has the last line and is never late.
template <class Index, class T>
class LazyCoefficients {
  public:
    // A step adds `factor` times the driver to a coefficient, and `free_factor` times it to the
    // intercept.
    LazyCoefficients(Csr<Index, T> X, index d, Matrix<double> W, Matrix<double> driver,
                     double factor, double free_factor, const StepRule& rule)
        : X_(X),
          d_(d),
          p_(W.shape[1]),
          outputs_(W.shape[0]),
          width_(1 + 3 * outputs_),
          kind_(rule.proximal ? rule.penalty.code : static_cast<int>(kPureL2)),
          factor_(factor),
          free_factor_(free_factor),
          rule_(rule),
          map_{rule.shrink, rule.proximal ? rule.prox_step * rule.penalty.l1 : 0.0,
               rule.proximal ? 1.0 / (1.0 + rule.prox_step * rule.penalty.l2) : 1.0},
          runs_(rule.shrink * map_.scale),
          state_(p_ * width_) {
        for (index j = 0; j < p_; ++j) {
            for (index c = 0; c < outputs_; ++c) {
                value(j, c) = W(c, j);
                this->driver(j, c) = driver(c, j);
            }
        }
    }

    double& value(index j, index c) { return state_[j * width_ + 1 + c]; }
    double& driver(index j, index c) { return state_[j * width_ + 1 + outputs_ + c]; }
    double& total(index j, index c) { return state_[j * width_ + 1 + 2 * outputs_ + c]; }

    // Margins of one sample; its coefficients are brought up to date.
    void margins(index i, double* z) {
        for (index c = 0; c < outputs_; ++c) z[c] = p_ > d_ ? value(d_, c) : 0.0;
        if (outputs_ == 1) {
            double sum = z[0];
            X_.each(i, [&](index j, double x) SOREL_INLINED { sum += x * current(j); });
            z[0] = sum;
            return;
        }
        X_.each(i, [&](index j, double x) SOREL_INLINED {
            catch_up(j);
            for (index c = 0; c < outputs_; ++c) z[c] += x * value(j, c);
        });
    }

    // One step with the rows of a batch, all of whose coefficients are up to date.
    void step(const std::int64_t* rows, index batch, const double* coefficients) {
        if (batch == 1 && kind_ != kSimplex)
            step_row(rows[0], coefficients);
        else
            step_batch(rows, batch, coefficients);
        if (p_ > d_) {
            for (index c = 0; c < outputs_; ++c) {
                double u = rule_.free_shrink * value(d_, c) + free_factor_ * driver(d_, c);
                for (index b = 0; b < batch; ++b)
                    u -= rule_.free_step * coefficients[b * outputs_ + c];
                value(d_, c) = u;
                total(d_, c) += u;
            }
        }
        time_ += 1.0;
    }

    // Add scale x_i, and scale for the intercept, to what drives the coefficients of an output.
    void drive(index i, index c, double scale) {
        X_.each(i, [&](index j, double x) SOREL_INLINED { driver(j, c) += scale * x; });
        if (p_ > d_) driver(d_, c) += scale;
    }

    // Bring every coefficient up to date and write the values to W.
    void catch_up(Matrix<double> W) {
        for (index j = 0; j < p_; ++j) {
            if (j < d_) catch_up(j);
            for (index c = 0; c < outputs_; ++c) W(c, j) = value(j, c);
        }
    }

  private:
    double& seen(index j) { return state_[j * width_]; }

    // Take one coefficient through the steps that it has missed.
    void catch_up(index j) {
        const auto gap = static_cast<index>(time_ - seen(j));
        if (gap <= 0) return;
        for (index c = 0; c < outputs_; ++c) {
            const double u = value(j, c), drift = factor_ * driver(j, c);
            const Run run = kind_ == kSeparable ? map_.run(gap, u, drift, rule_.penalty.lower[j],
                                                           rule_.penalty.upper[j], runs_)
                                                : runs_.run(gap, u, drift);
            value(j, c) = run.end;
            total(j, c) += run.sum;
        }
        seen(j) = time_;
    }

    // The value of a coefficient of the only output, brought up to date: `catch_up` with the common
    // runs written out, a short one in a linear piece and one that stays at 0 or at a bound.
    SOREL_INLINE double current(index j) {
        double* line = state_.data() + j * width_;
        const auto gap = static_cast<index>(time_ - line[0]);
        const double u = line[1], drift = factor_ * line[2];
        const double m = (drift - (u > 0.0 ? map_.threshold : -map_.threshold)) * map_.scale;
        bool common = gap < AffineRuns::kLong;
        Run run = runs_.short_run(common ? gap : 0, u, m);
        if (kind_ == kSeparable) {
            const double low = rule_.penalty.lower[j], high = rule_.penalty.upper[j];
            common = common && run.end * u > 0.0 && low <= u && u <= high && low <= run.end &&
                     run.end <= high;
            if (!common && map_(map_.shrink * u + drift, low, high) == u) {
                common = true;
                run = {u, static_cast<double>(gap) * u};
            }
        }
        if (!common) {
            catch_up(j);
            return line[1];
        }
        line[0] = time_;
        line[1] = run.end;
        line[3] += run.sum;
        return run.end;
    }

    SOREL_INLINE double mapped(double u, index j) const {
        return kind_ == kSeparable ? map_(u, rule_.penalty.lower[j], rule_.penalty.upper[j]) : u;
    }

    // The step of a batch of one row: each of its coefficients drifts, moves and is done.
    void step_row(index i, const double* coefficients) {
        for (index c = 0; c < outputs_; ++c) {
            const double a = rule_.step * coefficients[c];
            X_.each(i, [&](index j, double x) SOREL_INLINED {
                const double drifted = rule_.shrink * value(j, c) + factor_ * driver(j, c);
                const double u = mapped(drifted - a * x, j);
                seen(j) = time_ + 1.0;
                value(j, c) = u;
                total(j, c) += u;
            });
        }
    }

    // The step of several rows, or of all coefficients at once. Those of several rows drift once:
    // half a step on the clock says that it has happened and that the proximal map is still to
    // come.
    void step_batch(const std::int64_t* rows, index batch, const double* coefficients) {
        const double halfway = time_ + 0.5;
        const auto drift = [&](index j) SOREL_INLINED {
            if (seen(j) == halfway) return;
            seen(j) = halfway;
            for (index c = 0; c < outputs_; ++c)
                value(j, c) = rule_.shrink * value(j, c) + factor_ * driver(j, c);
        };
        if (kind_ == kSimplex)
            for (index j = 0; j < d_; ++j) drift(j);
        for (index b = 0; b < batch; ++b) {
            const double* coefficient = coefficients + b * outputs_;
            X_.each(rows[b], [&](index j, double x) SOREL_INLINED {
                drift(j);
                for (index c = 0; c < outputs_; ++c) value(j, c) -= rule_.step * coefficient[c] * x;
            });
        }
        const auto finish = [&](index j) SOREL_INLINED {
            if (seen(j) != halfway) return;
            seen(j) = time_ + 1.0;
            for (index c = 0; c < outputs_; ++c)
                total(j, c) += value(j, c) = mapped(value(j, c), j);
        };
        if (kind_ == kSimplex) {
            for (index c = 0; c < outputs_; ++c)
                prox_inplace(&value(0, c), d_, width_, rule_.prox_step, rule_.penalty);
            for (index j = 0; j < d_; ++j) finish(j);
            return;
        }
        for (index b = 0; b < batch; ++b)
            X_.each(rows[b], [&](index j, double) SOREL_INLINED { finish(j); });
    }

    Csr<Index, T> X_;
    index d_, p_, outputs_, width_;
    int kind_;
    double factor_, free_factor_;
    StepRule rule_;
    SeparableMap map_;
    AffineRuns runs_;
    std::vector<double> state_;
    double time_ = 0.0;
};

}  // namespace sorel
