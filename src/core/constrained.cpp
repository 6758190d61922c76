// The parts of a guess at the active set of a quadratic model with bounds, kinks and rows; see
// sorel/models/constrained.py for the model.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core.hpp"

namespace sorel {
namespace {

using Values = Vector<const double>;

// Optimality is asked for up to this multiple of the rounding errors of its terms.
constexpr double kTolerance = 8.0 * std::numeric_limits<double>::epsilon();

// kink, cost, lower and upper of the coordinates.
struct Pieces {
    Values kink, cost, lower, upper;

    // Between which ends coordinate j stays on its side of the kink.
    std::pair<double, double> ends(index j, double side) const {
        if (cost[j] > 0.0 && lower[j] < kink[j] && kink[j] < upper[j])
            return side > 0.0 ? std::pair(kink[j], upper[j]) : std::pair(lower[j], kink[j]);
        return {lower[j], upper[j]};
    }
};

// Mark what is wrong with a guess; how many are, and the largest violation of optimality. A free
// coordinate is wrong outside its piece, and a fixed one where it is pulled inside: up if its mark
// is 1, down if it is -1. Violations are relative to the size of their terms.
std::tuple<index, double> mark_wrong(Values slope, Values w, Values kink, Values cost,
                                     Values lower, Values upper, Matrix<const double> rows,
                                     Values root, Values multipliers, Values x, Values gradient,
                                     Values side, Vector<const bool> free,
                                     Vector<std::int64_t> marks) {
    const index p = x.size();
    const Pieces pieces{kink, cost, lower, upper};
    // |A_jk| <= sqrt(A_jj A_kk). x is stored with errors of its own size, which A passes on.
    double reach = 0.0, worst = 0.0;
    for (index j = 0; j < p; ++j)
        reach += root[j] * std::max(std::abs(x[j]), std::abs(x[j] - w[j]));
    index wrong = 0;
    bool undefined = !(reach < std::numeric_limits<double>::infinity());
    for (index j = 0; j < p; ++j) {
        marks[j] = 0;
        double own = gradient[j];
        for (index k = 0; k < rows.shape[0]; ++k) own += multipliers[k] * rows(k, j);
        const double size = std::abs(slope[j]) + cost[j] + root[j] * reach +
                            std::numeric_limits<double>::min();
        double pull = 0.0;
        if (free[j]) {
            pull = own + side[j] * cost[j];
            const auto [low, high] = pieces.ends(j, side[j]);
            if (root[j] * root[j] * std::max(low - x[j], x[j] - high) > kTolerance * size)
                marks[j] = x[j] > high ? 1 : -1;
        } else {
            const double right = own + (x[j] >= kink[j] ? cost[j] : -cost[j]);
            const double left = own + (x[j] > kink[j] ? cost[j] : -cost[j]);
            if (right < 0.0 && x[j] < upper[j]) pull = right;
            else if (left > 0.0 && x[j] > lower[j]) pull = left;
            if (std::abs(pull) > kTolerance * size) marks[j] = pull < 0.0 ? 1 : -1;
        }
        wrong += marks[j] != 0;
        worst = std::max(worst, std::abs(pull) / size);
        undefined |= pull != pull;
    }
    return {wrong, undefined ? std::numeric_limits<double>::quiet_NaN() : worst};
}

// Fix the free coordinates that are marked at the end they passed, and free the fixed ones.
void exchange(Vector<const std::int64_t> marks, Values kink, Values cost, Values lower,
              Values upper, Vector<double> x, Vector<double> side, Vector<bool> free) {
    const Pieces pieces{kink, cost, lower, upper};
    for (index j = 0; j < x.size(); ++j) {
        if (marks[j] == 0) continue;
        if (free[j]) {
            const auto [low, high] = pieces.ends(j, side[j]);
            x[j] = marks[j] > 0 ? high : low;
        } else if (x[j] == kink[j]) {
            side[j] = static_cast<double>(marks[j]);
        } else {
            side[j] = x[j] > kink[j] ? 1.0 : -1.0;
        }
        free[j] = !free[j];
    }
}

// Free a coordinate of each row that has none: where making up for the sum costs least.
void free_in_rows(Matrix<const double> rows, Values sums, Values x, Values gradient, Values kink,
                  Values cost, Values lower, Values upper, Vector<double> side,
                  Vector<bool> free) {
    for (index k = 0; k < rows.shape[0]; ++k) {
        double missing = sums[k];
        bool any_free = false;
        for (index j = 0; j < x.size(); ++j) {
            missing -= rows(k, j) * x[j];
            any_free = any_free || (free[j] && rows(k, j) != 0.0);
        }
        double least = std::numeric_limits<double>::infinity();
        index best = -1;
        for (index j = 0; !any_free && j < x.size(); ++j) {
            if (rows(k, j) == 0.0) continue;
            const double to = missing * rows(k, j) >= 0.0 ? 1.0 : -1.0;
            if (to > 0.0 ? x[j] >= upper[j] : x[j] <= lower[j]) continue;
            const bool beyond = to > 0.0 ? x[j] >= kink[j] : x[j] > kink[j];
            const double rise =
                to * (gradient[j] + (beyond ? cost[j] : -cost[j])) / std::abs(rows(k, j));
            if (rise < least) {
                least = rise;
                best = j;
            }
        }
        if (best < 0) continue;
        free[best] = true;
        side[best] = missing * rows(k, best) >= 0.0 ? 1.0 : -1.0;
        if (x[best] != kink[best]) side[best] = x[best] > kink[best] ? 1.0 : -1.0;
    }
}

}  // namespace

void bind_constrained(nb::module_& m) {
    define(m, "mark_wrong",
           "slope w kink cost lower upper rows root multipliers x gradient side free marks",
           mark_wrong);
    define(m, "exchange", "marks kink cost lower upper x side free", exchange);
    define(m, "free_in_rows", "rows sums x gradient kink cost lower upper side free",
           free_in_rows);
}

}  // namespace sorel
