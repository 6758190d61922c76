"""Stochastic steps on sparse rows, at O(nonzeros) each.

A coefficient that no row of a batch touches goes through a map of itself alone,

    u -> clip(soft(shrink u + drift) * scale),

so it is left where it is until a row needs it, and then taken through all the steps that it has
missed at once. The drift is a constant or, in the methods with tables, follows a mean gradient that
changes only where a row does. The simplex ties all coefficients together: its steps cost O(d).

A coefficient's line of the state holds all that a visit needs side by side: the number of steps it
has seen, then for each output its value, then what drives it, then the sum of its values after each
step. The intercept has the last line and is never late.

Variance-reduced steps under a quadratic penalty have a form of their own, `svrg_steps_scaled`,
which is faster where it applies.
"""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled
from sorel.kernels.prox import PURE_L2, SEPARABLE, SIMPLEX, prox_inplace
from sorel.kernels.sparse import product_csr
from sorel.kernels.steps import sample_derivatives, sample_loss
from sorel.kernels.tables import move_entry, ranked_weights, saddle_ascent

# Runs up to this length are tabulated one by one, longer ones by powers of two.
_RUN_BITS = 12
_RUN = 1 << _RUN_BITS
_LADDER = 40

# A scale below which rounding in v would show in w = s v + r drift.
_SMALL_SCALE = 1e-4


@compiled
def affine_runs(ratio):
    """Row k: what k steps u -> ratio u + m do, as factors of u and of m, in two pairs.

    The first pair gives the last value, the second the sum of all k. Row k < _RUN is a run of k
    steps, row _RUN + b one of _RUN 2^b.
    """
    runs = np.empty((_RUN + _LADDER, 4))
    runs[0] = 0.0
    runs[0, 0] = 1.0
    for k in range(1, _RUN + 1):
        runs[k, 0] = ratio * runs[k - 1, 0]
        runs[k, 1] = ratio * runs[k - 1, 1] + 1.0
        runs[k, 2] = runs[k - 1, 2] + runs[k, 0]
        runs[k, 3] = runs[k - 1, 3] + runs[k, 1]
    for k in range(_RUN + 1, _RUN + _LADDER):
        p, g, a, b = runs[k - 1, 0], runs[k - 1, 1], runs[k - 1, 2], runs[k - 1, 3]
        runs[k, 0] = p * p
        runs[k, 1] = g + p * g
        runs[k, 2] = a + a * p
        runs[k, 3] = 2.0 * b + a * g
    return runs


@compiled
def affine_run(length, u, m, runs):
    """The value after `length` steps u -> ratio u + m, and the sum of the values on the way."""
    total = 0.0
    if length >= _RUN:
        row = _RUN
        rest = length >> _RUN_BITS
        length &= _RUN - 1
        while rest > 0:
            if rest & 1:
                total += runs[row, 2] * u + runs[row, 3] * m
                u = runs[row, 0] * u + runs[row, 1] * m
            rest >>= 1
            row += 1
    total += runs[length, 2] * u + runs[length, 3] * m
    return runs[length, 0] * u + runs[length, 1] * m, total


@compiled
def shrunk(v, threshold, scale, lower, upper):
    """Proximal map of a separable penalty in one coefficient."""
    # Selections in place of branches, which no processor could foresee here.
    size = abs(v) - threshold
    size = size * scale if size > 0.0 else 0.0
    u = size if v > 0.0 else -size
    u = lower if u < lower else u
    return upper if u > upper else u


@compiled
def separable_run(length, u, drift, shrink, threshold, scale, lower, upper, runs):
    """The same for steps u -> clip(soft(shrink u + drift) * scale), with the runs of their ratio.

    The map is increasing, so the values move one way only. They cross from one linear piece to the
    next at most a few times, and each piece is one run, whose length is found by bisection.
    """
    total = 0.0
    while length > 0:
        if u > 0.0:
            low, high, m = max(lower, 0.0), upper, (drift - threshold) * scale
        else:
            low, high, m = lower, min(upper, 0.0), (drift + threshold) * scale
        inside = u != 0.0 and low <= u <= high
        if inside:
            end, along = affine_run(length, u, m, runs)
            if low <= end <= high:
                return end, total + along
        end = shrunk(shrink * u + drift, threshold, scale, lower, upper)
        if end == u:
            return u, total + length * u
        taken, along = 1, end
        if inside and low <= end <= high:
            outside = length
            while outside - taken > 1:
                middle = (taken + outside) // 2
                further, sum_further = affine_run(middle, u, m, runs)
                if low <= further <= high:
                    taken, end, along = middle, further, sum_further
                else:
                    outside = middle
        u = end
        total += along
        length -= taken
    return u, total


@compiled
def coordinate_moves(
    factor, free_factor, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1
):
    """How one step moves a coefficient; its drift is `factor` times what the state holds."""
    kind = PURE_L2
    threshold = 0.0
    scale = 1.0
    if proximal is not None:
        kind = penalty
        threshold = prox_step * l1
        scale = 1.0 / (1.0 + prox_step * l2)
    return (
        kind, factor, free_factor, shrink, step, free_shrink, free_step, threshold, scale,
        prox_step, l2,
    )  # fmt: skip


@compiled
def lazy_state(W, driver):
    """Lines of the state at time 0, from arrays of shape (K, p)."""
    outputs, p = W.shape
    state = np.zeros((p, 1 + 3 * outputs))
    for j in range(p):
        for c in range(outputs):
            state[j, 1 + c] = W[c, j]
            state[j, 1 + outputs + c] = driver[c, j]
    return state


@compiled
def catch_up(state, j, time, outputs, moves, lower, upper, runs):
    """Take one coefficient through the steps that it has missed."""
    kind, factor, _, shrink, _, _, _, threshold, scale, _, _ = moves
    gap = np.int64(time - state[j, 0])
    if gap <= 0:
        return
    for c in range(outputs):
        u = state[j, 1 + c]
        drift = factor * state[j, 1 + outputs + c]
        if kind == SEPARABLE:
            u, total = separable_run(
                gap, u, drift, shrink, threshold, scale, lower[j], upper[j], runs
            )
        else:
            u, total = affine_run(gap, u, drift, runs)
        state[j, 1 + c] = u
        state[j, 1 + 2 * outputs + c] += total
    state[j, 0] = time


@compiled
def sparse_margins(X, i, state, d, time, moves, lower, upper, runs, z):
    """Margins of one sample; its coefficients are brought up to date."""
    indptr, indices, data = X
    outputs = z.shape[0]
    if outputs == 1:
        # The general loop below, with the common runs written out: a short one in a linear piece,
        # and one that rests at 0 or at a bound.
        kind, factor, _, shrink, _, _, _, threshold, scale, _, _ = moves
        total = state[d, 1] if state.shape[0] > d else 0.0
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            gap = np.int64(time - state[j, 0])
            u, drift = state[j, 1], factor * state[j, 2]
            m = (drift - (threshold if u > 0.0 else -threshold)) * scale
            row = np.uint64(gap if gap < _RUN else 0)
            end = runs[row, 0] * u + runs[row, 1] * m
            along = runs[row, 2] * u + runs[row, 3] * m
            common = bool(gap < _RUN)
            if kind == SEPARABLE:
                low, high = lower[j], upper[j]
                common = common and end * u > 0.0 and low <= u <= high and low <= end <= high
                if not common and shrunk(shrink * u + drift, threshold, scale, low, high) == u:
                    common, end, along = True, u, gap * u
            if not common:
                catch_up(state, j, time, 1, moves, lower, upper, runs)
                end, along = state[j, 1], 0.0
            state[j, 0] = time
            state[j, 1] = end
            state[j, 3] += along
            total += data[e] * end
        z[0] = total
        return
    for c in range(outputs):
        z[c] = state[d, 1 + c] if state.shape[0] > d else 0.0
    for e in range(indptr[i], indptr[i + 1]):
        j = indices[e]
        catch_up(state, j, time, outputs, moves, lower, upper, runs)
        x = data[e]
        for c in range(outputs):
            z[c] += x * state[j, 1 + c]


@compiled
def sparse_row_step(X, i, coefficients, state, time, moves, lower, upper):
    """The step of a batch of one row: each of its coefficients drifts, moves and is done."""
    indptr, indices, data = X
    kind, factor, _, shrink, step, _, _, threshold, scale, _, _ = moves
    outputs = coefficients.shape[0]
    for c in range(outputs):
        value, driver, total = 1 + c, 1 + outputs + c, 1 + 2 * outputs + c
        a = step * coefficients[c]
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            u = shrink * state[j, value] + factor * state[j, driver] - a * data[e]
            if kind == SEPARABLE:
                u = shrunk(u, threshold, scale, lower[j], upper[j])
            state[j, 0] = time + 1.0
            state[j, value] = u
            state[j, total] += u


@compiled
def sparse_batch_step(X, rows, coefficients, state, d, time, moves, lower, upper):
    """The step of several rows, or of all coefficients at once.

    Those of several rows drift once: half a step on the clock says that it has happened and that
    the proximal map is still to come.
    """
    indptr, indices, data = X
    kind, factor, _, shrink, step, _, _, threshold, scale, prox_step, l2 = moves
    outputs = coefficients.shape[1]
    halfway = time + 0.5
    if kind == SIMPLEX:
        for j in range(d):
            state[j, 0] = halfway
            for c in range(outputs):
                state[j, 1 + c] = shrink * state[j, 1 + c] + factor * state[j, 1 + outputs + c]
    for b in range(rows.shape[0]):
        i = rows[b]
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            late = state[j, 0] == time
            state[j, 0] = halfway
            for c in range(outputs):
                u = state[j, 1 + c]
                if late:
                    u = shrink * u + factor * state[j, 1 + outputs + c]
                state[j, 1 + c] = u - step * coefficients[b, c] * data[e]
    if kind == SIMPLEX:
        column = np.empty(d)
        for c in range(outputs):
            for j in range(d):
                column[j] = state[j, 1 + c]
            prox_inplace(column, prox_step, kind, l2, 0.0, lower, upper)
            for j in range(d):
                state[j, 0] = time + 1.0
                state[j, 1 + c] = column[j]
                state[j, 1 + 2 * outputs + c] += column[j]
        return
    for b in range(rows.shape[0]):
        i = rows[b]
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            if state[j, 0] == halfway:
                state[j, 0] = time + 1.0
                for c in range(outputs):
                    u = state[j, 1 + c]
                    if kind == SEPARABLE:
                        u = shrunk(u, threshold, scale, lower[j], upper[j])
                    state[j, 1 + c] = u
                    state[j, 1 + 2 * outputs + c] += u


@compiled
def sparse_step(X, rows, coefficients, state, d, time, moves, lower, upper):
    """One step with a batch of rows, all of whose coefficients are up to date."""
    if rows.shape[0] == 1 and moves[0] != SIMPLEX:
        sparse_row_step(X, rows[0], coefficients[0], state, time, moves, lower, upper)
    else:
        sparse_batch_step(X, rows, coefficients, state, d, time, moves, lower, upper)
    if state.shape[0] > d:
        _, _, free_factor, _, _, free_shrink, free_step, _, _, _, _ = moves
        outputs = coefficients.shape[1]
        for c in range(outputs):
            u = free_shrink * state[d, 1 + c] + free_factor * state[d, 1 + outputs + c]
            for b in range(rows.shape[0]):
                u -= free_step * coefficients[b, c]
            state[d, 1 + c] = u
            state[d, 1 + 2 * outputs + c] += u


@compiled
def settle(state, d, time, moves, lower, upper, runs, W):
    """Bring every coefficient up to date and write the values to W."""
    outputs = W.shape[0]
    for j in range(state.shape[0]):
        if j < d:
            catch_up(state, j, time, outputs, moves, lower, upper, runs)
        for c in range(outputs):
            W[c, j] = state[j, 1 + c]


@compiled
def fold_scaled(V, drift, late, d, s, r, total, s_sum, r_sum, summed):
    """Put the scalars of w = s v + r drift into the arrays: v becomes w, for s = 1 and r = 0."""
    for c in range(V.shape[0]):
        for j in range(d):
            v = V[c, j]
            V[c, j] = s * v + r * drift[c, j]
            if summed:
                total[c, j] += s_sum * v + r_sum * drift[c, j] + late[c, j]
                late[c, j] = 0.0


@compiled
def sparse_product(X, i, v):
    """x_i . v."""
    indptr, indices, data = X
    total = 0.0
    for e in range(indptr[i], indptr[i + 1]):
        total += data[e] * v[indices[e]]
    return total


@compiled
def svrg_steps_scaled(
    X, y, code, delta, slopes, scale, indices, batch, W, total, summed, drift, shrink, step,
    free_shrink, free_step, d,
):  # fmt: skip
    """`svrg_steps` on sparse rows under a quadratic penalty, with w = s v + r drift.

    A step w <- shrink w + drift - a x changes the two scalars, and v along x only. It needs
    0 < shrink <= 1, the products of all rows with the drift, and a sweep over all coefficients
    every time that s has become small. The sum of the iterates is s_sum v + r_sum drift, and what
    earlier iterates had of v before it moved.
    """
    indptr, columns, data = X
    n, outputs = y.shape[0], W.shape[0]
    intercept = W.shape[1] > d
    along = np.empty((outputs, n))
    for c in range(outputs):
        product_csr(indptr, columns, data, drift[c], 0.0, along[c])
    late = np.zeros((outputs, d if summed else 0))
    z = np.empty(outputs)
    slope = np.empty(outputs)
    change = np.empty((batch, outputs))
    s, r, s_sum, r_sum = 1.0, 0.0, 0.0, 0.0
    for first in range(0, indices.shape[0] - batch + 1, batch):
        for b in range(batch):
            i = indices[first + b]
            for c in range(outputs):
                z[c] = s * sparse_product(X, i, W[c]) + r * along[c, i]
                if intercept:
                    z[c] += W[c, d]
            sample_derivatives(code, delta, y[i], z, slope)
            for c in range(outputs):
                change[b, c] = (slope[c] - slopes[i, c]) * scale[first + b] / batch
        s *= shrink
        r = shrink * r + 1.0
        for b in range(batch):
            i = indices[first + b]
            for c in range(outputs):
                a = step / s * change[b, c]
                for e in range(indptr[i], indptr[i + 1]):
                    W[c, columns[e]] -= a * data[e]
                if summed:
                    a *= s_sum
                    for e in range(indptr[i], indptr[i + 1]):
                        late[c, columns[e]] += a * data[e]
        if intercept:
            for c in range(outputs):
                W[c, d] = free_shrink * W[c, d] + drift[c, d]
                for b in range(batch):
                    W[c, d] -= free_step * change[b, c]
                if summed:
                    total[c, d] += W[c, d]
        s_sum += s
        r_sum += r
        if s < _SMALL_SCALE:
            fold_scaled(W, drift, late, d, s, r, total, s_sum, r_sum, summed)
            s, r, s_sum, r_sum = 1.0, 0.0, 0.0, 0.0
    fold_scaled(W, drift, late, d, s, r, total, s_sum, r_sum, summed)


@compiled
def svrg_steps_csr(
    X, y, code, delta, slopes, scale, indices, batch, W, total, summed, drift, shrink, step,
    free_shrink, free_step, proximal, prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """`svrg_steps` on sparse rows."""
    d, outputs = lower.shape[0], W.shape[0]
    # Sweeps over all coefficients must cost less than the rows of the steps between them.
    nonzeros = batch * X[2].shape[0] / y.shape[0]
    decay = -math.log(shrink) if 0.0 < shrink <= 1.0 else math.inf
    if proximal is None and decay * d <= -math.log(_SMALL_SCALE) * nonzeros:
        svrg_steps_scaled(
            X, y, code, delta, slopes, scale, indices, batch, W, total, summed, drift, shrink,
            step, free_shrink, free_step, d,
        )  # fmt: skip
        return
    moves = coordinate_moves(
        1.0, 1.0, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1
    )
    runs = affine_runs(shrink * moves[8])
    state = lazy_state(W, drift)
    z = np.empty(outputs)
    slope = np.empty(outputs)
    change = np.empty((batch, outputs))
    time = 0.0
    for first in range(0, indices.shape[0] - batch + 1, batch):
        for b in range(batch):
            i = indices[first + b]
            sparse_margins(X, i, state, d, time, moves, lower, upper, runs, z)
            sample_derivatives(code, delta, y[i], z, slope)
            for c in range(outputs):
                change[b, c] = (slope[c] - slopes[i, c]) * scale[first + b] / batch
        sparse_step(X, indices[first : first + batch], change, state, d, time, moves, lower, upper)
        time += 1.0
    settle(state, d, time, moves, lower, upper, runs, W)
    if summed:
        for j in range(W.shape[1]):
            for c in range(outputs):
                total[c, j] += state[j, 1 + 2 * outputs + c]


@compiled
def minibatch_steps_csr(
    X, y, code, delta, sigma, indices, W, drift, shrink, step, free_shrink, free_step, proximal,
    prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """`minibatch_steps` on sparse rows."""
    d, batch, outputs = lower.shape[0], sigma.shape[0], W.shape[0]
    moves = coordinate_moves(
        1.0, 1.0, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1
    )
    runs = affine_runs(shrink * moves[8])
    state = lazy_state(W, drift)
    z = np.empty(outputs)
    losses = np.empty(batch)
    slopes = np.empty((batch, outputs))
    time = 0.0
    for first in range(0, indices.shape[0] - batch + 1, batch):
        for b in range(batch):
            i = indices[first + b]
            sparse_margins(X, i, state, d, time, moves, lower, upper, runs, z)
            losses[b] = sample_loss(code, delta, y[i], z)
            sample_derivatives(code, delta, y[i], z, slopes[b])
        ranked = np.argsort(losses)
        for rank in range(batch):
            for c in range(outputs):
                slopes[ranked[rank], c] *= sigma[rank]
        sparse_step(X, indices[first : first + batch], slopes, state, d, time, moves, lower, upper)
        time += 1.0
    settle(state, d, time, moves, lower, upper, runs, W)


@compiled
def sparse_table_step(
    X, y, code, delta, rows, weights, table, z, fresh, change, state, d, time, moves, lower, upper,
    runs,
):  # fmt: skip
    """A step of the methods with tables: differences from the table, the step, the new entries.

    The state drives each coefficient by the mean gradient, which changes where the rows do.
    """
    indptr, indices, data = X
    n, batch, outputs = y.shape[0], rows.shape[0], z.shape[0]
    for b in range(batch):
        i = rows[b]
        sparse_margins(X, i, state, d, time, moves, lower, upper, runs, z)
        sample_derivatives(code, delta, y[i], z, fresh[b])
        for c in range(outputs):
            fresh[b, c] *= weights[b]
            change[b, c] = (fresh[b, c] - table[i, c]) / batch
    sparse_step(X, rows, change, state, d, time, moves, lower, upper)
    for b in range(batch):
        i = rows[b]
        for c in range(outputs):
            # A row drawn twice finds its own fresh entry the second time, and adds nothing.
            scale = (fresh[b, c] - table[i, c]) / n
            table[i, c] = fresh[b, c]
            for e in range(indptr[i], indptr[i + 1]):
                state[indices[e], 1 + outputs + c] += scale * data[e]
            if state.shape[0] > d:
                state[d, 1 + outputs + c] += scale


@compiled
def settle_table(state, d, time, moves, lower, upper, runs, W, mean):
    """`settle`, and write the mean gradient back."""
    settle(state, d, time, moves, lower, upper, runs, W)
    outputs = W.shape[0]
    for j in range(state.shape[0]):
        for c in range(outputs):
            mean[c, j] = state[j, 1 + outputs + c]


@compiled
def prospect_steps_csr(
    X, y, code, delta, rows, probes, batch, table, mean, key, order, position, mass, nu, pools,
    bounds, W, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1, lower,
    upper,
):  # fmt: skip
    """`prospect_steps` on sparse rows."""
    d, outputs = lower.shape[0], W.shape[0]
    moves = coordinate_moves(
        -step, -free_step, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2,
        l1,
    )  # fmt: skip
    runs = affine_runs(shrink * moves[8])
    state = lazy_state(W, mean)
    unit = 1.0 / nu if nu > 0.0 else 1.0
    z = np.empty(outputs)
    weights = np.empty(batch)
    fresh = np.empty((batch, outputs))
    change = np.empty((batch, outputs))
    time = 0.0
    for first in range(0, rows.shape[0] - batch + 1, batch):
        chosen = rows[first : first + batch]
        ranked_weights(chosen, key, position, mass, nu, pools, bounds, weights)
        sparse_table_step(
            X, y, code, delta, chosen, weights, table, z, fresh, change, state, d, time, moves,
            lower, upper, runs,
        )  # fmt: skip
        time += 1.0
        for b in range(batch):
            j = probes[first + b]
            sparse_margins(X, j, state, d, time, moves, lower, upper, runs, z)
            move_entry(key, order, position, j, unit * sample_loss(code, delta, y[j], z))
    settle_table(state, d, time, moves, lower, upper, runs, W, mean)


@compiled
def saddle_saga_steps_csr(
    X, y, code, delta, rows, probes, batch, table, mean, losses, density, key, order, position,
    mass, nu, dual_step, pools, bounds, W, shrink, step, free_shrink, free_step, proximal,
    prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """`saddle_saga_steps` on sparse rows."""
    d, outputs = lower.shape[0], W.shape[0]
    moves = coordinate_moves(
        -step, -free_step, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2,
        l1,
    )  # fmt: skip
    runs = affine_runs(shrink * moves[8])
    state = lazy_state(W, mean)
    z = np.empty(outputs)
    weights = np.empty(batch)
    probed = np.empty(batch)
    fresh = np.empty((batch, outputs))
    change = np.empty((batch, outputs))
    time = 0.0
    for first in range(0, rows.shape[0] - batch + 1, batch):
        for b in range(batch):
            weights[b] = density[position[rows[first + b]]]
            j = probes[first + b]
            sparse_margins(X, j, state, d, time, moves, lower, upper, runs, z)
            probed[b] = sample_loss(code, delta, y[j], z)
        sparse_table_step(
            X, y, code, delta, rows[first : first + batch], weights, table, z, fresh, change,
            state, d, time, moves, lower, upper, runs,
        )  # fmt: skip
        time += 1.0
        if not saddle_ascent(
            probes[first : first + batch], probed, losses, density, key, order, position, mass, nu,
            dual_step, pools, bounds,
        ):  # fmt: skip
            # Diverged: the caller sees it in w.
            break
    settle_table(state, d, time, moves, lower, upper, runs, W, mean)
