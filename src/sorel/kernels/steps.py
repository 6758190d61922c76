"""Stochastic steps on the rows of a dense X.

Parameters are kept by output here, W of shape (K, p) with the intercept last, so that every inner
loop runs along a row of X; K = 1 for all losses but multinomial. A step is

    W <- prox(shrink W + drift - step * (sum over the batch of c_i x_i)),

where shrink and drift hold a quadratic penalty, a centre and a full gradient. The intercept, which
no penalty touches, has its own shrink and step. `proximal` is None where shrink holds all of the
penalty: no code is made then for a proximal map.
"""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled
from sorel.kernels.losses import loss_derivative, loss_value
from sorel.kernels.prox import prox_inplace
from sorel.kernels.tables import move_entry, ranked_weights, saddle_ascent


@compiled
def sample_margins(X, i, W, z):
    """Margins of one sample."""
    d = X.shape[1]
    for c in range(W.shape[0]):
        total = 0.0
        for j in range(d):
            total += X[i, j] * W[c, j]
        if W.shape[1] > d:
            total += W[c, d]
        z[c] = total


@compiled
def sample_derivatives(code, delta, target, z, slopes):
    """Derivatives of the loss of one sample in its margins."""
    if z.shape[0] == 1:
        slopes[0] = loss_derivative(code, delta, target, z[0])
        return
    top = z[0]
    for c in range(1, z.shape[0]):
        top = max(top, z[c])
    total = 0.0
    for c in range(z.shape[0]):
        slopes[c] = math.exp(z[c] - top)
        total += slopes[c]
    for c in range(z.shape[0]):
        slopes[c] /= total
    slopes[int(target)] -= 1.0


@compiled
def sample_loss(code, delta, target, z):
    """Loss of one sample at its margins."""
    if z.shape[0] == 1:
        return loss_value(code, delta, target, z[0])
    top = z[0]
    for c in range(1, z.shape[0]):
        top = max(top, z[c])
    total = 0.0
    for c in range(z.shape[0]):
        total += math.exp(z[c] - top)
    return math.log(total) - (z[int(target)] - top)


@compiled
def stochastic_step(
    X, indices, first, batch, coefficients, W, drift, shrink, step, free_shrink, free_step,
    proximal, prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """One step with the batch indices[first:first + batch] and the coefficients c_i of its rows."""
    d = X.shape[1]
    intercept = W.shape[1] > d
    i = indices[first]
    for c in range(W.shape[0]):
        scale = step * coefficients[0, c]
        for j in range(d):
            W[c, j] = shrink * W[c, j] + drift[c, j] - scale * X[i, j]
        if intercept:
            W[c, d] = free_shrink * W[c, d] + drift[c, d] - free_step * coefficients[0, c]
    for b in range(1, batch):
        i = indices[first + b]
        for c in range(W.shape[0]):
            scale = step * coefficients[b, c]
            for j in range(d):
                W[c, j] -= scale * X[i, j]
            if intercept:
                W[c, d] -= free_step * coefficients[b, c]
    if proximal is not None:
        for c in range(W.shape[0]):
            prox_inplace(W[c, :d], prox_step, penalty, l2, l1, lower, upper)


@compiled
def svrg_steps(
    X, y, code, delta, slopes, scale, indices, batch, W, total, summed, drift, shrink, step,
    free_shrink, free_step, proximal, prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """Variance-reduced steps around a snapshot with the given slopes.

    scale = omega_i q_i / p_i for each draw, and drift holds the snapshot's gradient. With `summed`,
    every iterate is added to `total`.
    """
    # Written out in place of the helpers above: twice as fast at ten columns.
    d = X.shape[1]
    outputs = W.shape[0]
    intercept = W.shape[1] > d
    z = np.empty(outputs)
    slope = np.empty(outputs)
    change = np.empty((batch, outputs))
    for first in range(0, indices.shape[0] - batch + 1, batch):
        for b in range(batch):
            i = indices[first + b]
            for c in range(outputs):
                margin = W[c, d] if intercept else 0.0
                for j in range(d):
                    margin += X[i, j] * W[c, j]
                z[c] = margin
            if outputs == 1:
                slope[0] = loss_derivative(code, delta, y[i], z[0])
            else:
                sample_derivatives(code, delta, y[i], z, slope)
            for c in range(outputs):
                change[b, c] = (slope[c] - slopes[i, c]) * scale[first + b] / batch
        i = indices[first]
        for c in range(outputs):
            a = step * change[0, c]
            for j in range(d):
                W[c, j] = shrink * W[c, j] + drift[c, j] - a * X[i, j]
            if intercept:
                W[c, d] = free_shrink * W[c, d] + drift[c, d] - free_step * change[0, c]
        for b in range(1, batch):
            i = indices[first + b]
            for c in range(outputs):
                a = step * change[b, c]
                for j in range(d):
                    W[c, j] -= a * X[i, j]
                if intercept:
                    W[c, d] -= free_step * change[b, c]
        if proximal is not None:
            for c in range(outputs):
                prox_inplace(W[c, :d], prox_step, penalty, l2, l1, lower, upper)
        if summed:
            for c in range(outputs):
                for j in range(W.shape[1]):
                    total[c, j] += W[c, j]


@compiled
def minibatch_steps(
    X, y, code, delta, sigma, indices, W, drift, shrink, step, free_shrink, free_step, proximal,
    prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """Steps along the subgradient of the risk of each batch: sigma by rank inside the batch."""
    batch, outputs = sigma.shape[0], W.shape[0]
    z = np.empty(outputs)
    losses = np.empty(batch)
    slopes = np.empty((batch, outputs))
    for first in range(0, indices.shape[0] - batch + 1, batch):
        for b in range(batch):
            i = indices[first + b]
            sample_margins(X, i, W, z)
            losses[b] = sample_loss(code, delta, y[i], z)
            sample_derivatives(code, delta, y[i], z, slopes[b])
        ranked = np.argsort(losses)
        for rank in range(batch):
            for c in range(outputs):
                slopes[ranked[rank], c] *= sigma[rank]
        stochastic_step(
            X, indices, first, batch, slopes, W, drift, shrink, step, free_shrink, free_step,
            proximal, prox_step, penalty, l2, l1, lower, upper,
        )  # fmt: skip


@compiled
def table_differences(
    X, y, code, delta, indices, first, batch, W, z, weights, table, fresh, change
):
    """Fresh q_i phi'_i of a batch, and its distance from the table over the batch size."""
    for b in range(batch):
        i = indices[first + b]
        sample_margins(X, i, W, z)
        sample_derivatives(code, delta, y[i], z, fresh[b])
        for c in range(W.shape[0]):
            fresh[b, c] *= weights[b]
            change[b, c] = (fresh[b, c] - table[i, c]) / batch


@compiled
def update_table(X, indices, first, batch, fresh, table, mean):
    """Put the fresh entries into the table and its mean gradient, in O(d) for each."""
    n, d = X.shape
    for b in range(batch):
        i = indices[first + b]
        for c in range(table.shape[1]):
            # A row drawn twice finds its own fresh entry the second time, and adds nothing.
            scale = (fresh[b, c] - table[i, c]) / n
            table[i, c] = fresh[b, c]
            for j in range(d):
                mean[c, j] += scale * X[i, j]
            if mean.shape[1] > d:
                mean[c, d] += scale


@compiled
def prospect_steps(
    X, y, code, delta, rows, probes, batch, table, mean, key, order, position, mass, nu, pools,
    bounds, W, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1, lower,
    upper,
):  # fmt: skip
    """Prospect: weights from a table of losses whose order is repaired after every probe.

    `rows` are the samples whose gradients are taken, `probes` those whose losses are renewed. Keys
    are losses, over nu where nu > 0.
    """
    outputs, p = W.shape
    d = X.shape[1]
    unit = 1.0 / nu if nu > 0.0 else 1.0
    z = np.empty(outputs)
    weights = np.empty(batch)
    fresh = np.empty((batch, outputs))
    change = np.empty((batch, outputs))
    drift = np.empty((outputs, p))
    for first in range(0, rows.shape[0] - batch + 1, batch):
        ranked_weights(rows[first : first + batch], key, position, mass, nu, pools, bounds, weights)
        table_differences(
            X, y, code, delta, rows, first, batch, W, z, weights, table, fresh, change
        )
        for c in range(outputs):
            for j in range(p):
                drift[c, j] = -(step if j < d else free_step) * mean[c, j]
        stochastic_step(
            X, rows, first, batch, change, W, drift, shrink, step, free_shrink, free_step,
            proximal, prox_step, penalty, l2, l1, lower, upper,
        )  # fmt: skip
        update_table(X, rows, first, batch, fresh, table, mean)
        for b in range(batch):
            j = probes[first + b]
            sample_margins(X, j, W, z)
            move_entry(key, order, position, j, unit * sample_loss(code, delta, y[j], z))


@compiled
def saddle_saga_steps(
    X, y, code, delta, rows, probes, batch, table, mean, losses, density, key, order, position,
    mass, nu, dual_step, pools, bounds, W, shrink, step, free_shrink, free_step, proximal,
    prox_step, penalty, l2, l1, lower, upper,
):  # fmt: skip
    """SAGA on the saddle point: a variance-reduced step in w, and one in q with its projection.

    `losses` and `density` stand in the order of the last projection, so that the O(n) part of a
    step reads and writes in sequence.
    """
    outputs, p = W.shape
    d = X.shape[1]
    z = np.empty(outputs)
    weights = np.empty(batch)
    probed = np.empty(batch)
    fresh = np.empty((batch, outputs))
    change = np.empty((batch, outputs))
    drift = np.empty((outputs, p))
    for first in range(0, rows.shape[0] - batch + 1, batch):
        for b in range(batch):
            weights[b] = density[position[rows[first + b]]]
            j = probes[first + b]
            sample_margins(X, j, W, z)
            probed[b] = sample_loss(code, delta, y[j], z)
        table_differences(
            X, y, code, delta, rows, first, batch, W, z, weights, table, fresh, change
        )
        for c in range(outputs):
            for j in range(p):
                drift[c, j] = -(step if j < d else free_step) * mean[c, j]
        stochastic_step(
            X, rows, first, batch, change, W, drift, shrink, step, free_shrink, free_step,
            proximal, prox_step, penalty, l2, l1, lower, upper,
        )  # fmt: skip
        update_table(X, rows, first, batch, fresh, table, mean)
        if not saddle_ascent(
            probes[first : first + batch], probed, losses, density, key, order, position, mass, nu,
            dual_step, pools, bounds,
        ):  # fmt: skip
            # Diverged: no order to repair, and the caller sees it in w.
            return
