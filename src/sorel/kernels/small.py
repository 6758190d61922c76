"""A Newton step of a small problem in one call, which leaves behind all that comes after it.

A problem of some hundred rows spends more time between the loops of a step than inside them. Here
X is dense, the samples have equal weights and one margin each, and the penalty is l2. X comes by
columns: the processor takes many rows at a time then, however few columns there are.
"""

from __future__ import annotations

import math

from sorel._compiled import compiled
from sorel.kernels.cholesky import minimize_few
from sorel.kernels.losses import (
    augmented_curvature,
    loss_derivative,
    move_margins,
    weighted_slopes,
)
from sorel.line_search import MAX_TRIALS, next_length
from sorel.permutahedron.ordering import MOVES_PER_ITEM, radix_order
from sorel.permutahedron.pooling import project_sorted
from sorel.permutahedron.thresholds import COLD_TRIALS, WARM_TRIALS, project_levels

# What a call is given and leaves: the length to try, the ends of the bracket and the derivatives
# there, the trials so far, or one of the tasks below; the derivative that is small enough; then
# lam . l and |q - q_k|^2 at the end of the step, and the decrease that the model predicts.
LENGTH, LOW, SLOPE_LOW, HIGH, SLOPE_HIGH, TRIALS, ENOUGH, EXPECTED, DISTANCE, DECREASE = range(10)

# In place of trials: stay at w; go along a step that is given; find the Newton step and go along
# it; find it, and compute the margins at its end from X.
STAY, GO, STEP, AFRESH = -1.0, -2.0, -3.0, -4.0

# Where a search for the threshold of two levels starts: an item and the threshold relative to it,
# which it also leaves; with -1 for the item, a reference and bounds, if there are any.
PIVOT, TAU, REFERENCE, BELOW, ABOVE = range(5)

# Ends of a call that are no number of blocks: the projection needs a fresh start, with its target
# where the densities would be; no step leads down; the Newton step is for a more careful path.
FRESH_START, NO_STEP, NO_SYSTEM = -1, -2, -3

# Rows of the table of vectors: change of the margins, curvatures, slopes, and zeros.
CHANGE, CURVATURE, SLOPES, ZEROS, N_VECTORS = range(5)

# Rows of X that the Gram matrix takes at a time, and the share of them below which it pays to put
# those that have curvature together first.
TILE = 256
_WORTH_PACKING = 0.7


@compiled(inline=True)
def _multiply(Xt, w, out):
    """out = X w, plus an intercept that follows the coefficients; four columns at a time."""
    d, n = Xt.shape
    intercept = w[d] if w.shape[0] > d else 0.0
    for i in range(n):
        out[i] = intercept
    whole = d - d % 4
    for j in range(0, whole, 4):
        a, b, c, e = w[j], w[j + 1], w[j + 2], w[j + 3]
        for i in range(n):
            out[i] += (a * Xt[j, i] + b * Xt[j + 1, i]) + (c * Xt[j + 2, i] + e * Xt[j + 3, i])
    for j in range(whole, d):
        a = w[j]
        for i in range(n):
            out[i] += a * Xt[j, i]


@compiled(inline=True)
def _multiply_back(Xt, c, out):
    """out = X^T c, and the sum of c after it when out has room for an intercept."""
    d, n = Xt.shape
    whole = d - d % 4
    for j in range(0, whole, 4):
        s0 = s1 = s2 = s3 = 0.0
        for i in range(n):
            s0 += c[i] * Xt[j, i]
            s1 += c[i] * Xt[j + 1, i]
            s2 += c[i] * Xt[j + 2, i]
            s3 += c[i] * Xt[j + 3, i]
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
    for j in range(whole, d):
        s0 = 0.0
        for i in range(n):
            s0 += c[i] * Xt[j, i]
        out[j] = s0
    if out.shape[0] > d:
        s0 = 0.0
        for i in range(n):
            s0 += c[i]
        out[d] = s0


@compiled(inner=True)
def _add_gram(Xt, d, first, last, weight, even, odd, out):
    """Add the lower half of [X 1]^T diag(h) [X 1], for d columns and the rows first..last of X.

    Two columns meet four at a time, which keeps the processor busy, and some entries above the
    diagonal come along.
    """
    size = out.shape[0]
    count = last - first
    whole = d - d % 4
    for j in range(0, size, 2):
        for r in range(count):
            even[r] = odd[r] = weight[r]
        if j < d:
            x0 = Xt[j, first:last]
            for r in range(count):
                even[r] *= x0[r]
        if j + 1 < d:
            x1 = Xt[j + 1, first:last]
            for r in range(count):
                odd[r] *= x1[r]
        i = min(j + 1, size - 1)
        for k in range(0, min(i + 1, whole), 4):
            x0, x1 = Xt[k, first:last], Xt[k + 1, first:last]
            x2, x3 = Xt[k + 2, first:last], Xt[k + 3, first:last]
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = 0.0
            for r in range(count):
                s0 += even[r] * x0[r]
                s1 += even[r] * x1[r]
                s2 += even[r] * x2[r]
                s3 += even[r] * x3[r]
                t0 += odd[r] * x0[r]
                t1 += odd[r] * x1[r]
                t2 += odd[r] * x2[r]
                t3 += odd[r] * x3[r]
            out[j, k] += s0
            out[j, k + 1] += s1
            out[j, k + 2] += s2
            out[j, k + 3] += s3
            if i > j:
                out[i, k] += t0
                out[i, k + 1] += t1
                out[i, k + 2] += t2
                out[i, k + 3] += t3
        for k in range(whole, min(i + 1, size)):
            s0 = t0 = 0.0
            if k < d:
                x0 = Xt[k, first:last]
                for r in range(count):
                    s0 += even[r] * x0[r]
                    t0 += odd[r] * x0[r]
            else:
                for r in range(count):
                    s0 += even[r]
                    t0 += odd[r]
            out[j, k] += s0
            if i > j:
                out[i, k] += t0


@compiled(inline=True)
def _gram(Xt, h, rows, tile, out):
    """The lower half of [X 1]^T diag(h) [X 1], with the column of ones when out has room for it.

    `tile` has three rows more than X has columns.
    """
    d, n = Xt.shape
    for j in range(out.shape[0]):
        for k in range(out.shape[0]):
            out[j, k] = 0.0
    used = 0
    for i in range(n):
        used += h[i] != 0.0
    weight, even, odd = tile[d], tile[d + 1], tile[d + 2]
    if used >= _WORTH_PACKING * n:
        for begin in range(0, n, TILE):
            stop = min(begin + TILE, n)
            _add_gram(Xt, d, begin, stop, h[begin:stop], even, odd, out)
        return
    used = 0
    for i in range(n):
        rows[used] = i
        used += h[i] != 0.0
    for begin in range(0, used, TILE):
        chosen = rows[begin : min(begin + TILE, used)]
        for j in range(d):
            x = Xt[j]
            for r in range(chosen.shape[0]):
                tile[j, r] = x[chosen[r]]
        for r in range(chosen.shape[0]):
            weight[r] = h[chosen[r]]
        _add_gram(tile, d, 0, chosen.shape[0], weight, even, odd, out)


@compiled(inline=True)
def _subtract_block_means(Xt, code, delta, y, margins, omega, block, sums, blocks, eta, rows, c, H):
    """H -= eta sum_b u_b u_b^T / omega_b, u_b = sum of omega phi'_i [x_i 1] over block b.

    The lower half of H; `sums` has one row more than H, and a column for each block.
    """
    d, n = Xt.shape
    size = H.shape[0]
    for j in range(size + 1):
        for b in range(blocks):
            sums[j, b] = 0.0
    used = 0
    for i in range(n):
        rows[used] = i
        used += block[i] >= 0
    for r in range(used):
        i = rows[r]
        c[r] = omega[0] * loss_derivative(code, delta, y[i], margins[i])
        sums[size, block[i]] += omega[0]
    for j in range(size):
        if j < d:
            for r in range(used):
                sums[j, block[rows[r]]] += c[r] * Xt[j, rows[r]]
        else:
            for r in range(used):
                sums[j, block[rows[r]]] += c[r]
    for b in range(blocks):
        sums[size, b] = 1.0 / math.sqrt(sums[size, b])
    for j in range(size):
        for b in range(blocks):
            sums[j, b] *= sums[size, b]
        for k in range(j + 1):
            s = 0.0
            for b in range(blocks):
                s += sums[j, b] * sums[k, b]
            H[j, k] -= eta * s


@compiled(inline=True)
def _set_target(center, losses, eta, target):
    """target = q_k + eta l."""
    for i in range(center.shape[0]):
        target[i] = center[i] + eta * losses[i]


@compiled(inline=True)
def _sums(c, change, density, losses, center):
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


@compiled(fastmath=False, inline=True)
def _project_by_order(target, sorting, moves, block):
    """The same for other weights, from the last order or a fresh one."""
    mass, order, key, first, work, spills, distance, source, other, counts = sorting
    count = -1
    for attempt in range(2):
        count = project_sorted(target, mass, order, key, moves, first, work, spills, target, block)
        if count >= 0 or attempt > 0:
            break
        # Of three values the middle one is hardly an outlier.
        a, b, c = target[0], target[target.shape[0] // 2], target[target.shape[0] - 1]
        middle = max(min(a, b), min(max(a, b), c))
        radix_order(target, middle, distance, source, other, counts, order)
        moves = MOVES_PER_ITEM
    return count


@compiled
def advance(
    Xt, y, code, delta, omega, margins, w, gradient, density, block, blocks, center, eta, caution,
    l2, levels, start, moves, sorting, numbers, table, rows, tile, sums, H, factor, room, new_block,
    new_gradient,
):  # fmt: skip
    """Take a Newton step with its line search, and evaluate the augmented Lagrangian at its end.

    The step starts at w, where `density` is the weighting and `blocks` its number of blocks. Its
    task is in the place of the trials. Weights of two levels come with `levels` and `start`, others
    with `sorting`; None for the rest. The rows of `room` become margins, losses and densities.
    Afterwards row p + 1 of `factor` is the step, and row p + 3 where it ends. Returns the number of
    blocks there; after FRESH_START the same call goes on where it stopped.
    """
    d, n = Xt.shape
    p = w.shape[0]
    change, c = table[CHANGE], table[SLOPES]
    step, end = factor[p + 1], factor[p + 3]
    base = table[ZEROS] if numbers[TRIALS] == AFRESH else margins
    moved, losses, new_density = room[0], room[1], room[2]
    task = numbers[TRIALS]
    if task <= STEP:
        h = table[CURVATURE]
        curved = eta if blocks > 0 else 0.0
        augmented_curvature(
            code, delta, y, margins, density, block, curved, caution, omega, False, h
        )
        _gram(Xt, h, rows, tile, H)
        if curved > 0.0:
            _subtract_block_means(
                Xt, code, delta, y, margins, omega, block, sums, blocks, eta, rows, c, H
            )
        for j in range(p):
            for k in range(j):
                H[k, j] = H[j, k]
        descent, decrease = minimize_few(H, gradient, w, l2, d, factor, end)
        if not descent > 0.0:
            return NO_SYSTEM
        numbers[SLOPE_LOW], numbers[DECREASE] = -descent, decrease
        numbers[ENOUGH] = 0.5 * max(descent, numbers[ENOUGH])
    if task < 0.0:
        numbers[TRIALS] = 0.0
        if task == STAY:
            for i in range(n):
                change[i] = 0.0
        else:
            _multiply(Xt, end if task == AFRESH else step, change)
    # The derivative of the penalty, which is a line.
    pull, growth = 0.0, 0.0
    for j in range(d):
        pull += l2 * w[j] * step[j]
        growth += l2 * step[j] * step[j]
    count = 0
    while True:
        t = numbers[LENGTH]
        move_margins(base, change, t, code, delta, y, moved, losses)
        _set_target(center, losses, eta, new_density)
        if eta > 0.0:
            # The compiler drops what asks for a None.
            if sorting is not None:
                count = _project_by_order(new_density, sorting, moves, new_block)
            if levels is not None:
                count = _project_two_levels(new_density, levels, start, new_block)
        if count < 0:
            return FRESH_START
        numbers[TRIALS] += 1.0
        weighted_slopes(code, delta, y, moved, new_density, omega, False, c)
        slope, expected, distance = _sums(c, change, new_density, losses, center)
        slope += pull + t * growth
        if abs(slope) <= numbers[ENOUGH]:
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
            numbers[ENOUGH] = math.inf
    if task != AFRESH:
        for j in range(p):
            end[j] = w[j] + numbers[LENGTH] * step[j]
    _multiply_back(Xt, c, new_gradient)
    numbers[EXPECTED], numbers[DISTANCE] = expected * omega[0], distance * omega[0]
    return count
