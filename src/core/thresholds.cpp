// Two-level sets: a box cut by a plane, where one threshold does the work of a sort.
//
//     q_i = clip(zeta_i - t, low, high)    with    sum_i w_i q_i = total
//
// Newton steps in t find it (Cominetti, Mascarenhas & Silva 2014). Thresholds are kept as t =
// reference + tau with the reference one of the items: differences of close floats are exact
// (Sterbenz 1974).
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core.hpp"

namespace sorel {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Items per partial sum: short enough to keep plain sums accurate, long enough to be fast.
constexpr index kRun = 256;
// Items that are looked at together in the search for the smallest.
constexpr index kGlance = 64;
// Rounding error of the excess, relative to the size of its terms.
constexpr double kNoise = 0x1p-51;
// A bracket that was not halved in so many trials is halved.
constexpr index kPatience = 3;

// Weights at the low level, at the high level and between; the sum of the distances from the
// reference over those between, as a sum of two doubles.
using Sums = std::tuple<double, double, double, double, double>;

template <bool kWeighted>
SOREL_INLINE Sums level_sums(const double* zeta, const double* weight, index n, double reference,
                             double tau, double low, double high) {
    double at_low = 0, at_high = 0, free = 0, moment = 0, spill = 0;
    for (index begin = 0; begin < n; begin += kRun) {
        const index end = std::min(begin + kRun, n);
        double part_low = 0, part_high = 0, part_free = 0, part = 0;
        // Arithmetic in place of branches, so that the loop runs on vectors.
#pragma omp simd reduction(+ : part_low, part_high, part_free, part)
        for (index i = begin; i < end; ++i) {
            const double x = zeta[i] - reference;
            const double w = kWeighted ? weight[i] : 1.0;
            const double down = x - tau <= low ? w : 0.0;
            const double up = x - tau >= high ? w : 0.0;
            const double between = w - down - up;
            part_low += down;
            part_high += up;
            part_free += between;
            part += between * x;
        }
        at_low += part_low;
        at_high += part_high;
        free += part_free;
        const double grown = moment + part;
        const double piece = grown - moment;
        spill += (moment - (grown - piece)) + (part - piece);
        moment = grown;
    }
    return {at_low, at_high, free, moment, spill};
}

SOREL_CLONES Sums level_sums(Vector<const double> zeta, Optional<const double> weight,
                             double reference, double tau, double low, double high) {
    const index n = zeta.size();
    return weight ? level_sums<true>(zeta.data, weight.data, n, reference, tau, low, high)
                  : level_sums<false>(zeta.data, nullptr, n, reference, tau, low, high);
}

// The smallest item above the low level, or else the largest one at it; -1 without any.
template <bool kAbove>
SOREL_INLINE index nearest(const double* zeta, index n, double reference, double tau, double low) {
    double best = kAbove ? kInf : -kInf;
    index place = -1;
    const auto is_better = [&](double x) {
        const bool above = (x - reference) - tau > low;
        return kAbove ? above & (x < best) : !above & (x > best);
    };
    for (index begin = 0; begin < n; begin += kGlance) {
        const index end = std::min(begin + kGlance, n);
        // Almost never is there a better one, which a loop without branches sees at a glance.
        std::int64_t better = 0;
#pragma omp simd reduction(+ : better)
        for (index i = begin; i < end; ++i) better += is_better(zeta[i]);
        if (better == 0) continue;
        for (index i = begin; i < end; ++i) {
            if (!is_better(zeta[i])) continue;
            best = zeta[i];
            place = i;
        }
    }
    return place;
}

SOREL_CLONES index nearest(Vector<const double> zeta, double reference, double tau, double low,
                           bool above) {
    return above ? nearest<true>(zeta.data, zeta.size(), reference, tau, low)
                 : nearest<false>(zeta.data, zeta.size(), reference, tau, low);
}

// Write q and the block of the items between the levels; return how many there are, and what the
// weighted q sum to.
SOREL_CLONES std::tuple<index, double> fill_clipped(Vector<const double> zeta,
                                                    Optional<const double> weight,
                                                    double reference, double tau, double low,
                                                    double high, Vector<double> out,
                                                    Vector<std::int32_t> block) {
    double sum = 0.0;
    const index n = zeta.size();
    const auto clip = [&](index i) SOREL_INLINED {
        const double q = (zeta[i] - reference) - tau;
        return out[i] = q > low ? (q < high ? q : high) : low;
    };
    if (weight) {
#pragma omp simd reduction(+ : sum)
        for (index i = 0; i < n; ++i) sum += weight[i] * clip(i);
    } else {
#pragma omp simd reduction(+ : sum)
        for (index i = 0; i < n; ++i) sum += clip(i);
    }
    // Integers of four bytes in a loop of their own: mixed widths keep a loop from running on vectors.
    std::int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (index i = 0; i < n; ++i) {
        const std::int32_t inside = (low < out[i]) & (out[i] < high);
        count += inside;
        block[i] = inside - 1;
    }
    return {count, sum};
}

// Copy the values between two bounds to the front of `room`; return how many are below the bounds,
// and how many were copied.
SOREL_CLONES std::tuple<index, index> keep_between(Vector<const double> values, double low,
                                                   double high, Vector<double> room) {
    index below = 0, count = 0;
    // A copy that is not wanted is overwritten by the next: no branch, and never beyond the end.
    for (index i = 0; i < values.size(); ++i) {
        const double x = values[i];
        below += x < low;
        room[count] = x;
        count += (x >= low) & (x <= high);
    }
    return {below, count};
}

// By how much the q at tau sum to more than the total; 0 where only rounding is left.
double excess_at(Sums sums, double tau, double below, double above, double low, double high,
              double total) {
    const auto [at_low, at_high, free, moment, spill] = sums;
    const double excess =
        ((moment - free * tau) + spill) + (low * at_low + (high * at_high - total));
    const double noise = kNoise * (std::abs(moment) + std::abs(free * tau) + total);
    const double middle = 0.5 * (below + above);
    const bool exhausted = above - below < kInf && !(below < middle && middle < above);
    return exhausted || std::abs(excess) <= noise ? 0.0 : excess;
}

// The tau to try next, the bounds on it, and their distance at the last third trial: a Newton step
// where items are free; else to where the item at the distance `kink` comes free, as if it alone
// took up the excess.
std::tuple<double, double, double, double> next_tau(index trial, double tau, double below,
                                                    double above, double span, double excess,
                                                    double free, double kink, double low,
                                                    double high) {
    if (excess > 0.0)
        below = std::max(below, tau);
    else
        above = std::min(above, tau);
    double goal;
    if (free == 0.0) {
        goal = kink - (excess > 0.0 ? high : low) + excess;
    } else {
        goal = tau + excess / free;
        // Without a bound on that side yet, a flat piece must not throw the search far away.
        if (excess > 0.0 && above == kInf)
            goal = std::min(goal, tau + (high - low));
        else if (excess < 0.0 && below == -kInf)
            goal = std::max(goal, tau - (high - low));
    }
    const double width = above - below;
    const bool look_back = trial % kPatience == kPatience - 1;
    const bool slow = look_back && width > 0.5 * span;
    if (look_back) span = width;
    // Ends of the bracket have been tried: taking one again would cycle.
    if (width < kInf && (slow || !(below < goal && goal < above))) goal = 0.5 * (below + above);
    return {goal, below, above, span};
}

// The tau at which the items between the levels make up the total.
double exact_tau(Sums sums, double tau, double low, double high, double total) {
    const auto [at_low, at_high, free, moment, spill] = sums;
    if (!(free > 0.0)) return tau;
    return ((moment + spill) + (low * at_low + (high * at_high - total))) / free;
}

// Find t = reference + tau, and write q and the blocks. Returns the number of items between the
// levels (-1 when the trials did not suffice, and then nothing is written), the sum of the weighted
// q, the item that is the reference, and tau.
std::tuple<index, double, index, double> project_levels(
    Vector<const double> zeta, Optional<const double> weight, double low, double high, double total,
    double reference, double tau, double below, double above, index trials, Vector<double> out,
    Vector<std::int32_t> block) {
    double span = kInf;
    for (index trial = 0; trial < trials; ++trial) {
        const Sums sums = level_sums(zeta, weight, reference, tau, low, high);
        const double more = excess_at(sums, tau, below, above, low, high, total);
        const double free = std::get<2>(sums);
        index place = -1;
        if (more == 0.0 || free == 0.0) place = nearest(zeta, reference, tau, low, more >= 0.0);
        if (place < 0) place = 0;
        const double kink = zeta[place] - reference;
        if (more != 0.0) {
            std::tie(tau, below, above, span) =
                next_tau(trial, tau, below, above, span, more, free, kink, low, high);
            continue;
        }
        if (zeta[place] == reference) {
            tau = exact_tau(sums, tau, low, high, total);
            const auto [count, sum] =
                fill_clipped(zeta, weight, reference, tau, low, high, out, block);
            return {count, sum, place, tau};
        }
        // Start again from the smallest free item, where differences are exact: it rarely takes
        // more than two trials, and the sets may still change in the last digits.
        tau -= kink;
        reference = zeta[place];
        below = -kInf;
        above = span = kInf;
    }
    return {-1, 0.0, -1, 0.0};
}

}  // namespace

void bind_thresholds(nb::module_& m) {
    define(m, "level_sums", "zeta weight reference tau low high",
           static_cast<Sums (*)(Vector<const double>, Optional<const double>, double, double,
                                double, double)>(level_sums));
    define(m, "nearest", "zeta reference tau low above",
           static_cast<index (*)(Vector<const double>, double, double, double, bool)>(nearest));
    define(m, "fill_clipped", "zeta weight reference tau low high out block", fill_clipped);
    define(m, "keep_between", "values low high room", keep_between);
    define(m, "excess_at", "sums tau below above low high total", excess_at);
    define(m, "next_tau", "trial tau below above span excess free kink low high", next_tau);
    define(m, "exact_tau", "sums tau low high total", exact_tau);
    define(m, "project_levels",
           "zeta weight low high total reference tau below above trials out block", project_levels);
}

}  // namespace sorel
