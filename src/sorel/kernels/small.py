"""Newton steps of a small problem: a step, the line search along it, or many of both in one call.

A problem of some hundred rows spends more time between the loops of a step than inside them. Here
X is dense, the samples have equal weights and one margin each, and the penalty is l2. X comes by
columns, that of an intercept included: the processor takes many rows at a time then, however few
columns there are.
"""

from __future__ import annotations

import math

from sorel._compiled import compiled
from sorel.kernels.cholesky import decrease_from, minimize_few
from sorel.kernels.losses import (
    loss_curvature,
    loss_derivative,
    loss_value,
    majorant_curvature,
)
from sorel.line_search import MAX_TRIALS, next_length
from sorel.permutahedron.ordering import MOVES_PER_ITEM, repair, sort_short
from sorel.permutahedron.pooling import project_sorted
from sorel.permutahedron.thresholds import COLD_TRIALS, WARM_TRIALS, project_levels
from sorel.rounds import (
    AFRESH,
    ALONE,
    APART,
    BLOCKS,
    BUDGET,
    CAUTION,
    DECIDE,
    DRIFT,
    ETA,
    EVALUATE,
    EXPECTATION,
    FAR_BETTER,
    GAINED,
    GAUGE,
    LARGEST,
    LEAST_UNIT,
    LEFT,
    LOOK,
    MEASURED,
    MOST_PASSES,
    MOVES,
    NEXT_CHECK,
    PASSES,
    PHASE,
    PREDICTED,
    PROMISED,
    PROMISING,
    REMAINS,
    RESUMED,
    ROUNDING,
    ROUNDS,
    SEARCH,
    SHORT,
    SIDE,
    STEP,
    TAKEN,
    TOL,
    TWO_LEVELS,
    USED,
    VALUE,
    ZERO_LOSS,
    advance,
    has_slowed,
    is_ready,
    is_solved,
    is_stuck,
    leave_ranks,
    margin_rounding,
    next_caution,
    note_step,
    retreat,
)

# What a search is given and leaves: the length to try, the ends of the bracket and the derivatives
# there, the trials so far, or -1 before the margins of the step are known, and the derivative that
# is small enough; then lam . l and |q - q_k|^2 at its end.
LENGTH, LOW, SLOPE_LOW, HIGH, SLOPE_HIGH, TRIALS, ENOUGH, EXPECTED, DISTANCE = range(9)

# To stay where it is, or to try a step of length 1, and nothing is known beyond it.
STAY = (0.0, 0.0, 0.0, 0.0, 0.0, -1.0, math.inf, 0.0, 0.0)
GO = (1.0, 0.0, 0.0, 1.0, math.inf, -1.0, math.inf, 0.0, 0.0)

# Where a search for the threshold of two levels starts: an item and the threshold relative to it,
# which it also leaves; with -1 for the item, a reference and bounds, if there are any.
PIVOT, TAU, REFERENCE, BELOW, ABOVE = range(5)

# Ends of a search that are no number of blocks: the projection needs a fresh start, with its target
# where the densities would be; no step leads down.
FRESH_START, NO_STEP = -1, -2

# Rows of the table of vectors: change of the margins, curvatures, slopes.
CHANGE, CURVATURE, SLOPES, N_VECTORS = range(4)

# Weights between two levels that are looked at, at most, to see what they have to gain.
MOST_TIED = 100

# The end of a walk.
ARRIVED = 0

# Columns that are taken together: rows of zeros at the end of X^T make them come out even.
TOGETHER = 4

# Samples of neighbouring ranks whose weights are taken to follow their losses along a line.
NEIGHBOURS = 16

# Rows of X that the Gram matrix takes at a time, and the share of them below which it pays to put
# those that have curvature together first.
TILE = 256
_WORTH_PACKING = 0.7


@compiled(inline=True)
def _multiply(Xt, w, wide, out):
    """out = [X 1] w."""
    n = Xt.shape[1]
    for j in range(w.shape[0]):
        wide[j] = w[j]
    for i in range(n):
        out[i] = 0.0
    for j in range(0, Xt.shape[0], TOGETHER):
        a, b, c, d = wide[j], wide[j + 1], wide[j + 2], wide[j + 3]
        x0, x1, x2, x3 = Xt[j], Xt[j + 1], Xt[j + 2], Xt[j + 3]
        for i in range(n):
            out[i] += (a * x0[i] + b * x1[i]) + (c * x2[i] + d * x3[i])


@compiled(inline=True)
def _multiply_back(Xt, c, wide, out):
    """out = [X 1]^T c."""
    for j in range(0, Xt.shape[0], TOGETHER):
        x0, x1, x2, x3 = Xt[j], Xt[j + 1], Xt[j + 2], Xt[j + 3]
        s0 = s1 = s2 = s3 = 0.0
        for i in range(c.shape[0]):
            s0 += c[i] * x0[i]
            s1 += c[i] * x1[i]
            s2 += c[i] * x2[i]
            s3 += c[i] * x3[i]
        wide[j], wide[j + 1], wide[j + 2], wide[j + 3] = s0, s1, s2, s3
    for j in range(out.shape[0]):
        out[j] = wide[j]


@compiled(inline=True)
def _set_rates(losses, density, order, rates):
    """The root of how fast weights grow with losses, among samples of neighbouring ranks.

    Weights ascend with the losses, so that no rate is negative, whatever the order says.
    """
    n = order.shape[0]
    for b in range(blocks_of_ranks(n)):
        first, last = order[b * NEIGHBOURS], order[min((b + 1) * NEIGHBOURS, n) - 1]
        rise, spread = density[last] - density[first], losses[last] - losses[first]
        rates[b] = math.sqrt(rise / spread) if rise * spread > 0.0 else 0.0


@compiled(inline=True)
def blocks_of_ranks(n):
    """How many groups of neighbours there are."""
    return (n + NEIGHBOURS - 1) // NEIGHBOURS


@compiled(inline=True)
def _set_curvature(code, delta, y, margins, density, block, eta, rates, caution, omega, h, c):
    """h = omega (q phi'' + eta phi'^2 [in a block]) and c = omega phi'.

    Where eta is infinite, each block has a rate of its own: its root is in c then, and eta is 1.
    """
    n = margins.shape[0]
    # One array at a time: more of them, and the compiler no longer sees that they are apart.
    for i in range(n):
        c[i] = omega * loss_derivative(code, delta, y[i], margins[i])
    if eta == math.inf:
        eta = 1.0
        for i in range(n):
            c[i] *= rates[block[i]]
    for i in range(n):
        tied = eta * c[i] * c[i] if block[i] >= 0 else 0.0
        h[i] = omega * density[i] * loss_curvature(code, delta, y[i], margins[i]) + tied / omega
    if caution > 0.0:
        for i in range(n):
            more = majorant_curvature(code, delta, y[i], margins[i])
            more -= loss_curvature(code, delta, y[i], margins[i])
            h[i] += caution * omega * density[i] * more


@compiled(inline=True)
def _gram(Xt, size, h, rows, tile, H):
    """The lower half of [X 1]^T diag(h) [X 1], and some entries above the diagonal.

    `tile` has one row more than Xt.
    """
    width, n = Xt.shape
    for j in range(width):
        for k in range(width):
            H[j, k] = 0.0
    used = 0
    for i in range(n):
        used += h[i] != 0.0
    packed = used < _WORTH_PACKING * n
    if packed:
        used = 0
        for i in range(n):
            rows[used] = i
            used += h[i] != 0.0
    end = used if packed else n
    for begin in range(0, end, TILE):
        count = min(TILE, end - begin)
        columns, first, weight = Xt, begin, h[begin : begin + count]
        if packed:
            chosen = rows[begin : begin + count]
            columns, first, weight = tile, 0, tile[width, :count]
            for r in range(count):
                weight[r] = h[chosen[r]]
            for j in range(size):
                x0 = Xt[j]
                for r in range(count):
                    tile[j, r] = x0[chosen[r]]
        last = first + count
        # Two columns by four: more products for what is read than one by four.
        for j in range(0, size, 2):
            left, right = columns[j, first:last], columns[j + 1, first:last]
            for k in range(0, j + 2, TOGETHER):
                x0, x1 = columns[k, first:last], columns[k + 1, first:last]
                x2, x3 = columns[k + 2, first:last], columns[k + 3, first:last]
                s0 = s1 = s2 = s3 = 0.0
                t0 = t1 = t2 = t3 = 0.0
                for r in range(count):
                    a, b = weight[r] * left[r], weight[r] * right[r]
                    s0 += a * x0[r]
                    s1 += a * x1[r]
                    s2 += a * x2[r]
                    s3 += a * x3[r]
                    t0 += b * x0[r]
                    t1 += b * x1[r]
                    t2 += b * x2[r]
                    t3 += b * x3[r]
                H[j, k] += s0
                H[j, k + 1] += s1
                H[j, k + 2] += s2
                H[j, k + 3] += s3
                H[j + 1, k] += t0
                H[j + 1, k + 1] += t1
                H[j + 1, k + 2] += t2
                H[j + 1, k + 3] += t3


@compiled(inline=True)
def _subtract_block_means(Xt, size, c, omega, block, sums, blocks, eta, rows, H):
    """H -= eta sum_b u_b u_b^T / omega_b, u_b = sum of omega phi'_i [x_i 1] over block b.

    The lower half of H; `sums` has one row more than Xt, and a column for each block.
    """
    width = Xt.shape[0]
    for j in range(width + 1):
        for b in range(blocks):
            sums[j, b] = 0.0
    used = 0
    for i in range(block.shape[0]):
        rows[used] = i
        used += block[i] >= 0
    for r in range(used):
        sums[width, block[rows[r]]] += omega
    # Several columns at a time: additions to the same sum have to wait for each other.
    for j in range(0, width, TOGETHER):
        x0, x1, x2, x3 = Xt[j], Xt[j + 1], Xt[j + 2], Xt[j + 3]
        for r in range(used):
            i = rows[r]
            b = block[i]
            sums[j, b] += c[i] * x0[i]
            sums[j + 1, b] += c[i] * x1[i]
            sums[j + 2, b] += c[i] * x2[i]
            sums[j + 3, b] += c[i] * x3[i]
    for b in range(blocks):
        sums[width, b] = math.sqrt(eta / sums[width, b])
    for j in range(size):
        for b in range(blocks):
            sums[j, b] *= sums[width, b]
        for k in range(j + 1):
            s = 0.0
            for b in range(blocks):
                s += sums[j, b] * sums[k, b]
            H[j, k] -= s


@compiled(inline=True)
def _move(margins, change, t, code, delta, y, moved, losses):
    """Margins moved along a step, with the losses there."""
    for i in range(margins.shape[0]):
        moved[i] = margins[i] + t * change[i]
    for i in range(margins.shape[0]):
        losses[i] = loss_value(code, delta, y[i], moved[i])


@compiled(inline=True)
def _weigh_slopes(code, delta, y, margins, density, omega, c):
    """c = omega q phi'."""
    for i in range(margins.shape[0]):
        c[i] = omega * density[i] * loss_derivative(code, delta, y[i], margins[i])


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


@compiled(inline=True)
def _follow_ranks(losses, mass, order, key, moves, density, block):
    """Weights by the ranks of the losses: no blocks, or -1 where the order needs a fresh sort."""
    for i in range(losses.shape[0]):
        density[i] = losses[i]
    if not repair(density, order, key, moves * key.size):
        return -1
    for rank in range(order.shape[0]):
        density[order[rank]] = mass[rank]
        block[order[rank]] = rank // NEIGHBOURS
    return 0


@compiled(inner=True)
def _newton_step(
    Xt, y, code, delta, omega, margins, losses, w, gradient, density, block, blocks, eta, caution,
    l2, n_penalized, sorting, table, rows, tile, sums, H, factor,
):  # fmt: skip
    """The Newton step from w, where `density` is the weighting and `blocks` its number of blocks.

    With an infinite eta, weights are taken to follow the losses of neighbouring ranks.
    Row p + 1 of `factor` becomes the step, and row p + 3 its end. Returns what
    :func:`sorel.kernels.cholesky.minimize_few` does.
    """
    p = w.shape[0]
    h, c, rates = table[CURVATURE], table[SLOPES], table[CHANGE]
    if sorting is not None and eta == math.inf:
        _set_rates(losses, density, sorting[1], rates)
        blocks = blocks_of_ranks(margins.shape[0])
    if blocks == 0:
        eta = 0.0
    _set_curvature(code, delta, y, margins, density, block, eta, rates, caution, omega[0], h, c)
    _gram(Xt, p, h, rows, tile, H)
    if eta == math.inf:
        eta = 1.0
    if eta > 0.0:
        _subtract_block_means(Xt, p, c, omega[0], block, sums, blocks, eta, rows, H)
    for j in range(p):
        for k in range(j):
            H[k, j] = H[j, k]
    return minimize_few(H, gradient, w, l2, n_penalized, factor, factor[p + 3])


@compiled(inner=True)
def _search(
    Xt, y, code, delta, omega, margins, w, step, center, eta, l2, n_penalized, levels, start, moves,
    sorting, fresh, numbers, table, wide, room, block, gradient,
):  # fmt: skip
    """Go along a step until the derivative is small, and evaluate the augmented Lagrangian there.

    Weights of two levels come with `levels` and `start`, others with `sorting` and with `fresh`, in
    which they are sorted; None for the rest.
    With an infinite eta, which is for the latter, they are those of the ranks.
    The rows of `room` become margins, losses and densities. With a length of 0, w itself is
    evaluated. Returns the number of blocks; after FRESH_START the same call goes on where it
    stopped.
    """
    change, c = table[CHANGE], table[SLOPES]
    moved, losses, density = room[0], room[1], room[2]
    if numbers[TRIALS] < 0.0:
        numbers[TRIALS] = 0.0
        if numbers[LENGTH] > 0.0:
            _multiply(Xt, step, wide[0], change)
        else:
            for i in range(change.shape[0]):
                change[i] = 0.0
    # The derivative of the penalty, which is a line.
    pull, growth = 0.0, 0.0
    for j in range(n_penalized):
        pull += l2 * w[j] * step[j]
        growth += l2 * step[j] * step[j]
    count = 0
    while True:
        t = numbers[LENGTH]
        _move(margins, change, t, code, delta, y, moved, losses)
        if eta < math.inf:
            _set_target(center, losses, eta, density)
        if eta > 0.0:
            # The compiler drops what asks for a None.
            if sorting is not None:
                mass, order, key, bounds, work, spills = sorting
                sorted_anew = False
                # Few near ties are left to repair after a sort.
                for budget in (moves, MOVES_PER_ITEM):
                    if eta == math.inf:
                        count = _follow_ranks(losses, mass, order, key, budget, density, block)
                    else:
                        count = project_sorted(
                            density, mass, order, key, budget, bounds, work, spills, density, block
                        )
                    if count >= 0 or sorted_anew or not sort_short(density, fresh, order):
                        break
                    sorted_anew = True
            if levels is not None:
                count = _project_two_levels(density, levels, start, block)
        if count < 0:
            return FRESH_START
        numbers[TRIALS] += 1.0
        _weigh_slopes(code, delta, y, moved, density, omega[0], c)
        slope, expected, distance = _sums(c, change, density, losses, center)
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
    _multiply_back(Xt, c, wide[1], gradient)
    numbers[EXPECTED], numbers[DISTANCE] = expected * omega[0], distance * omega[0]
    return count


@compiled(inline=True)
def _set_numbers(numbers, values):
    """An assignment of all would compile what to say of arrays that do not match."""
    for i in range(numbers.shape[0]):
        numbers[i] = values[i]


@compiled(inline=True)
def _evaluate_next(progress, numbers):
    """Have the point evaluated for another centre or eta, of which nothing is promised yet."""
    _set_numbers(numbers, STAY)
    progress[PHASE], progress[PREDICTED], progress[TAKEN] = EVALUATE, math.inf, 1.0


@compiled(inline=True)
def _take_center(progress, numbers, density, center):
    """Make the weights the next centre."""
    for i in range(center.shape[0]):
        center[i] = density[i]
    progress[ROUNDS] += 1.0
    _evaluate_next(progress, numbers)


@compiled(inline=True)
def _fenchel_young(gradient, w, l2, n_penalized):
    """The second bracket of the certificate: |gradient + l2 w|^2 / (2 l2), coefficients alone."""
    total = 0.0
    for j in range(n_penalized):
        slope = gradient[j] + l2 * w[j]
        total += slope * slope
    return 0.5 * total / l2


@compiled(inline=True)
def _gain_of_order(losses, density, mass, order, key, room):
    """What the weights have to gain from the losses: all of it, or what a near order tells.

    `order` is that of the last projection; `key` and `room` are for its repair.
    """
    for i in range(order.shape[0]):
        room[i] = order[i]
    known = repair(losses, room, key, order.shape[0])
    most = 0.0
    expected = 0.0
    for i in range(order.shape[0]):
        most += mass[i] * (key[i] if known else losses[order[i]])
        expected += density[i] * losses[i]
    return most - expected


@compiled(inline=True)
def _gain_of_ties(losses, density, block, low, high, tied):
    """What weights of two levels have to gain from changes among those that are between them.

    `tied` is room for some vector; where it is too short for the rest, nothing is known.
    """
    count = 0
    share = 0.0
    expected = 0.0
    for i in range(block.shape[0]):
        if block[i] >= 0:
            if count == MOST_TIED or count == tied.shape[0]:
                return 0.0
            # The largest first.
            rank = count
            while rank > 0 and tied[rank - 1] < losses[i]:
                tied[rank] = tied[rank - 1]
                rank -= 1
            tied[rank] = losses[i]
            count += 1
            share += density[i] - low
            expected += (density[i] - low) * losses[i]
    most = 0.0
    for rank in range(count):
        part = min(max(share, 0.0), high - low)
        most += part * tied[rank]
        share -= part
    return most - expected


@compiled(inline=True)
def _is_due(limits, progress):
    """Whether it is time for a look, whatever that may find."""
    if progress[PASSES] >= limits[MOST_PASSES] or progress[PASSES] > limits[NEXT_CHECK]:
        return True
    unit = abs(progress[VALUE])
    return margin_rounding(limits[ZERO_LOSS], unit) * progress[MOVES] > DRIFT * limits[TOL]


@compiled(inline=True)
def _is_worth_look(schedule, limits, progress, target, bracket):
    """Whether a certificate may succeed, as far as the steps tell."""
    ready = is_ready(
        schedule, progress[GAINED], progress[PREDICTED], progress[REMAINS], target,
        limits[PROMISING], limits[TWO_LEVELS] > 0.0,
    )  # fmt: skip
    return (ready and progress[PASSES] >= limits[RESUMED]) or bracket <= target


@compiled
def walk(
    Xt, y, code, delta, omega, l2, n_penalized, levels, start, moves, sorting, fresh, schedule,
    pace, limits, progress, reach, numbers, places, parameters, blocks, table, wide, rows, tile,
    sums, H, factor,
):  # fmt: skip
    """Rounds and steps of the augmented Lagrangian, until somebody is to look at the point.

    The rows of `places` are margins, losses and densities of the point, and of the next one, and
    the centre; those of `parameters` are w and the gradient, of both. The rules are those of
    :mod:`sorel.rounds`; what they leave to others ends the walk as well. It may begin in the middle
    of a round, and end after one operation. Returns ARRIVED, or NO_STEP where none leads down;
    after FRESH_START the same call goes on where it stopped.
    """
    p = parameters.shape[1]
    center = places[6]
    solved, target, gain = False, 0.0, 0.0
    while True:
        side = int(progress[SIDE])
        other = 1 - side
        margins, density = places[3 * side], places[3 * side + 2]
        w, gradient = parameters[2 * side], parameters[2 * side + 1]
        unit = abs(progress[VALUE])
        noise = ROUNDING * unit
        by_ranks = schedule[ETA] == math.inf and progress[ALONE] == 0.0
        if progress[PHASE] <= DECIDE:
            if not limits[LEAST_UNIT] <= unit < math.inf:
                return ARRIVED
            looks, progress[PHASE] = progress[PHASE] == LOOK, LOOK
            target = limits[TOL] * unit
            if looks and _is_due(limits, progress):
                return ARRIVED
            gained, predicted = progress[GAINED], progress[PREDICTED]
            solved = is_solved(schedule, gained, predicted, progress[TAKEN], progress[USED], noise)
            bracket = _fenchel_young(gradient, w, l2, n_penalized)
            if looks and _is_worth_look(schedule, limits, progress, target, bracket):
                # The weights may have more to gain than the gap wanted, and so may the parameters.
                gain = 0.0
                if sorting is not None and not by_ranks:
                    gain = omega[0] * _gain_of_order(
                        places[3 * side + 1], density, sorting[0], sorting[1], sorting[2],
                        blocks[other],
                    )  # fmt: skip
                if levels is not None:
                    gain = omega[0] * _gain_of_ties(
                        places[3 * side + 1], density, blocks[side], levels[0], levels[1],
                        table[CHANGE],
                    )  # fmt: skip
                progress[PHASE] = GAUGE
            if progress[PHASE] == LOOK:
                progress[PHASE] = STEP
                if sorting is not None and by_ranks:
                    if solved or has_slowed(schedule, progress[TAKEN]):
                        leave_ranks(schedule, pace)
                        _take_center(progress, numbers, density, center)
                elif solved:
                    still = max(gained, predicted) <= noise
                    rescales = schedule[ETA] >= schedule[LARGEST]
                    if still or rescales or unit < FAR_BETTER * limits[MEASURED]:
                        progress[PHASE] = LOOK
                        return ARRIVED
                    advance(schedule, pace)
                    _take_center(progress, numbers, density, center)
                elif is_stuck(schedule, pace):
                    retreat(schedule)
                    _evaluate_next(progress, numbers)
        gauges = progress[PHASE] == GAUGE
        if progress[PHASE] == STEP or (gauges and gain <= target):
            descent, progress[PROMISED] = _newton_step(
                Xt, y, code, delta, omega, margins, places[3 * side + 1], w, gradient, density,
                blocks[side], 0 if gauges else int(progress[BLOCKS]),
                0.0 if gauges else schedule[ETA], 0.0 if gauges else progress[CAUTION], l2,
                n_penalized, sorting, table, rows, tile, sums, H, factor,
            )  # fmt: skip
        if gauges:
            if gain <= target and progress[PROMISED] > 0.0:
                gain += progress[PROMISED]
            progress[PHASE] = LOOK
            # What does not fall from round to round may be rounding, and is for a certificate.
            if gain <= target or (solved and gain > 0.5 * progress[LEFT]):
                return ARRIVED
            if solved:
                progress[LEFT] = gain
            progress[PHASE] = DECIDE
            continue
        if progress[PHASE] == STEP:
            progress[PHASE] = LOOK
            _set_numbers(numbers, GO)
            if progress[AFRESH] > 0.0:
                if math.isnan(descent):
                    return NO_STEP
                # From margins of 0, so that those at the end are computed from X.
                for i in range(margins.shape[0]):
                    margins[i] = 0.0
                for j in range(p):
                    w[j] = 0.0
                    factor[p + 1, j] = factor[p + 3, j]
            elif descent > 0.0:
                numbers[SLOPE_LOW], numbers[ENOUGH] = -descent, 0.5 * max(descent, noise)
            elif sorting is not None and by_ranks:
                leave_ranks(schedule, pace)
                _take_center(progress, numbers, density, center)
                continue
            else:
                return NO_STEP
            progress[USED] = progress[CAUTION]
            progress[PHASE] = SEARCH
        stays = progress[PHASE] == EVALUATE
        count = _search(
            Xt, y, code, delta, omega, margins, w, w if stays else factor[p + 1], center,
            schedule[ETA], l2, n_penalized, levels, start, int(progress[BUDGET]), sorting, fresh,
            numbers, table, wide, places[3 * other : 3 * other + 3], blocks[other],
            parameters[2 * other + 1],
        )  # fmt: skip
        if count == FRESH_START:
            return FRESH_START
        if count == NO_STEP:
            if sorting is not None and by_ranks:
                leave_ranks(schedule, pace)
                _take_center(progress, numbers, density, center)
                continue
            progress[PHASE] = LOOK
            return NO_STEP
        # What a fresh start was given for one search is of no use to the next.
        for i in range(REFERENCE, ABOVE + 1):
            start[i] = 0.0
        length = numbers[LENGTH]
        square = 0.0
        for j in range(p):
            parameters[2 * other, j] = w[j] if stays else w[j] + length * factor[p + 1, j]
            reach[j] = max(reach[j], abs(parameters[2 * other, j]))
            if j < n_penalized:
                square += parameters[2 * other, j] * parameters[2 * other, j]
        progress[REMAINS] = math.inf
        if sorting is not None and schedule[ETA] == math.inf and not stays:
            # From the matrix of the last step, which hardly changes to the next.
            progress[REMAINS] = decrease_from(
                parameters[2 * other + 1], parameters[2 * other], l2, n_penalized, factor,
                factor[p + 3],
            )  # fmt: skip
        progress[BUDGET] = moves
        progress[SIDE], progress[BLOCKS] = other, count
        progress[EXPECTATION], progress[APART] = numbers[EXPECTED], numbers[DISTANCE]
        if progress[ALONE] > 0.0:
            progress[TAKEN] = length
            return ARRIVED
        progress[GAINED] = numbers[DISTANCE] / (2.0 * schedule[ETA])
        progress[VALUE] = numbers[EXPECTED] - progress[GAINED] + 0.5 * l2 * square
        if stays:
            progress[PHASE] = STEP
        else:
            progress[PREDICTED], progress[TAKEN] = max(progress[PROMISED], 0.0), length
            progress[PASSES] += 2.0
            progress[MOVES] += 1.0
            note_step(schedule, pace, length, progress[PREDICTED])
            progress[CAUTION] = next_caution(progress[CAUTION], length < pace[SHORT])
            progress[PHASE] = LOOK
