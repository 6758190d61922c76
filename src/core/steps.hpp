// What stochastic steps on dense and on sparse rows share: the loss of one sample in its margins,
// and the numbers behind a step.
#pragma once

#include <vector>

#include "core.hpp"
#include "prox.hpp"

namespace sorel {

// The loss under a code of a sample with so many margins. It is looked up for every sample, which
// costs nothing beside a row, and saves a version of every loop for every loss.
struct SampleLoss {
    index outputs;
    int code;
    double delta;

    double value(double target, const double* z) const;
    void slopes(double target, const double* z, double* out) const;
};

// A step is W <- prox(shrink W + drift - step sum over the batch of c_i x_i), where shrink and
// drift hold a quadratic penalty, a centre and a full gradient. The intercept, which no penalty
// touches, has its own shrink and step. Without `proximal`, shrink holds all of the penalty.
struct StepRule {
    double shrink, step, free_shrink, free_step;
    bool proximal;
    double prox_step;
    Penalty penalty;
};

// Ranks of the losses of a batch, ascending, ties by place and NaN last.
inline void rank_batch(const double* losses, std::vector<index>& ranked) {
    for (index b = 0; b < static_cast<index>(ranked.size()); ++b) ranked[b] = b;
    std::sort(ranked.begin(), ranked.end(), [=](index a, index b) {
        const double first = losses[a], second = losses[b];
        if (first == second || (first != first && second != second)) return a < b;
        return first < second || second != second;
    });
}

}  // namespace sorel
