"""The line search of a small problem in one call, which leaves behind all that comes after it.

A problem of some hundred rows spends more time between the loops of a step than inside them. Here
X is dense and by rows, the samples have equal weights and one margin each, and the penalty is l2.
"""

from __future__ import annotations

import math

from sorel._compiled import compiled
from sorel.kernels.dense import adjoint_rows, product_rows
from sorel.kernels.losses import move_margins, weighted_slopes
from sorel.line_search import MAX_TRIALS, next_length
from sorel.permutahedron.pooling import project_sorted
from sorel.permutahedron.thresholds import COLD_TRIALS, WARM_TRIALS, project_levels

# What a search is given and leaves: the length to try, the ends of the bracket and the derivatives
# there, the trials so far, or -1 before the margins of the step are known; then lam . l and
# |q - q_k|^2 at its end.
LENGTH, LOW, SLOPE_LOW, HIGH, SLOPE_HIGH, TRIALS, EXPECTED, DISTANCE = range(8)

# Where a search for the threshold of two levels starts: an item and the threshold relative to it,
# which it also leaves; with -1 for the item, a reference and bounds, if there are any.
PIVOT, TAU, REFERENCE, BELOW, ABOVE = range(5)

# Ends of a search that are no number of blocks: the projection needs a fresh start, with its target
# where the densities would be; no step leads down.
FRESH_START, NO_STEP = -1, -2


@compiled(inline=True)
def _set_target(center, losses, eta, target):
    """target = q_k + eta l."""
    for i in range(center.shape[0]):
        target[i] = center[i] + eta * losses[i]


@compiled(inline=True)
def _products(c, change, density, losses, center):
    """c . change, q . l and |q - q_k|^2."""
    slope = 0.0
    expected = 0.0
    distance = 0.0
    for i in range(c.shape[0]):
        slope += c[i] * change[i]
        expected += density[i] * losses[i]
        distance += (density[i] - center[i]) * (density[i] - center[i])
    return slope, expected, distance


@compiled(fastmath=False, inline=True)
def _project_two_levels(target, levels, start, block):
    """Turn the target into densities; the number of blocks, or -1 without luck."""
    low, high, total = levels
    if low == high:
        for i in range(target.shape[0]):
            target[i] = low
            block[i] = -1
        return 0
    reference, below, above, trials = start[REFERENCE], start[BELOW], start[ABOVE], COLD_TRIALS
    if start[PIVOT] < 0.0 and not below < above:
        return -1
    if start[PIVOT] >= 0.0:
        reference, below, above = target[int(start[PIVOT])], -math.inf, math.inf
        trials = WARM_TRIALS
    count, pivot, tau = project_levels(
        target, None, low, high, total, reference, start[TAU], below, above, trials, target, block
    )
    start[PIVOT], start[TAU] = pivot, tau
    if count == 1:
        # A single free item takes what the others leave, and does not move.
        for i in range(target.shape[0]):
            block[i] = -1
        return 0
    return min(count, 1)


@compiled
def search(
    X, y, code, delta, omega, margins, center, eta, w, step, l2, enough, moves, levels, start, mass,
    order, key, first, work, spills, change, numbers, room, block, gradient,
):  # fmt: skip
    """Go along a step until the derivative is small, and evaluate the augmented Lagrangian there.

    Weights of two levels come with `levels` and `start`, others with what a sort needs; None for
    the rest. The rows of `room` become margins, losses, densities and omega q phi'. With a length
    of 0 and any finite `change`, w itself is evaluated. Returns the number of blocks; after
    FRESH_START the same call goes on where it stopped.
    """
    d = X.shape[1]
    moved, losses, density, c = room[0], room[1], room[2], room[3]
    if numbers[TRIALS] < 0.0:
        numbers[TRIALS] = 0.0
        product_rows(X, step[:d], step[d] if step.shape[0] > d else 0.0, change)
    # The derivative of the penalty, which is a line.
    pull, growth = 0.0, 0.0
    for j in range(d):
        pull += l2 * w[j] * step[j]
        growth += l2 * step[j] * step[j]
    while True:
        t = numbers[LENGTH]
        move_margins(margins, change, t, code, delta, y, moved, losses)
        _set_target(center, losses, eta, density)
        count = 0
        if eta > 0.0:
            # The compiler drops what asks for a None.
            if order is not None:
                count = project_sorted(
                    density, mass, order, key, moves, first, work, spills, density, block
                )
            if levels is not None:
                count = _project_two_levels(density, levels, start, block)
        if count < 0:
            return FRESH_START
        numbers[TRIALS] += 1.0
        weighted_slopes(code, delta, y, moved, density, omega, False, c)
        slope, expected, distance = _products(c, change, density, losses, center)
        slope += pull + t * growth
        if abs(slope) <= enough:
            break
        if numbers[TRIALS] < MAX_TRIALS:
            t, low, slope_low, high, slope_high = next_length(
                t, slope, numbers[LOW], numbers[SLOPE_LOW], numbers[HIGH], numbers[SLOPE_HIGH],
                math.inf,
            )  # fmt: skip
            numbers[LENGTH], numbers[LOW], numbers[SLOPE_LOW] = t, low, slope_low
            numbers[HIGH], numbers[SLOPE_HIGH] = high, slope_high
        elif numbers[LOW] == 0.0:
            return NO_STEP
        else:
            # The function has not yet turned up there: safe to stop.
            numbers[LENGTH] = numbers[LOW]
            enough = math.inf
    for j in range(gradient.shape[0]):
        gradient[j] = 0.0
    adjoint_rows(X, c, gradient)
    numbers[EXPECTED], numbers[DISTANCE] = expected * omega[0], distance * omega[0]
    return count
