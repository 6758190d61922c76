"""Loops over vectors of length n that know neither X nor a loss."""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled

# Items of a partial sum. With it errors stay below n / 100 roundings, which certificates rely on.
_RUN = 128


@compiled
def block_totals(block, factor, sampled, omega, weighted, out):
    """Total sample weight of each block, times the sampling factors when rows were sampled."""
    uniform = omega[0]
    for b in range(out.shape[0]):
        out[b] = 0.0
    for i in range(block.shape[0]):
        if block[i] >= 0:
            weight = omega[i] if weighted else uniform
            out[block[i]] += weight * factor[i] if sampled else weight


@compiled
def sample_rows(h, block, keep_blocks, unit, factor):
    """Choose rows with probability h / unit, at most 1, and scale h so that its sum is kept.

    Systematic sampling: a row is taken whenever the running sum of h passes a multiple of the
    unit. `factor` is 0 for a row left out. Rows in blocks are all kept when `keep_blocks`.
    """
    running = 0.5 * unit
    for i in range(h.shape[0]):
        if h[i] == 0.0 or (keep_blocks and block[i] >= 0):
            factor[i] = 1.0
            continue
        running += h[i]
        if running >= unit:
            running -= unit * math.floor(running / unit)
            factor[i] = max(1.0, unit / h[i])
            h[i] *= factor[i]
        else:
            factor[i] = 0.0
            h[i] = 0.0


@compiled
def sample_slopes(slopes, factor, sampled, omega, weighted, out):
    """out = omega phi', times the sampling factors when rows were sampled."""
    uniform = omega[0]
    for i in range(slopes.shape[0]):
        c = slopes[i] * (omega[i] if weighted else uniform)
        out[i] = c * factor[i] if sampled else c


@compiled
def ascent_target(density, losses, previous, eta, theta, target):
    """target = q + eta [(1 + theta) l - theta l_prev]."""
    if theta == 0.0:
        for i in range(density.shape[0]):
            target[i] = density[i] + eta * losses[i]
    else:
        for i in range(density.shape[0]):
            target[i] = density[i] + eta * (losses[i] + theta * (losses[i] - previous[i]))


@compiled
def weighted_sum(density, losses, omega, weighted):
    """sum_i omega_i q_i l_i.

    In short runs: a long plain sum loses what is small against an outlier that came before it.
    """
    n = density.shape[0]
    total = 0.0
    # Runs of a length that the compiler knows are several times as fast.
    whole = n - n % _RUN
    for first in range(0, whole, _RUN):
        part = 0.0
        for i in range(first, first + _RUN):
            part += (omega[i] if weighted else 1.0) * density[i] * losses[i]
        total += part
    part = 0.0
    for i in range(whole, n):
        part += (omega[i] if weighted else 1.0) * density[i] * losses[i]
    total += part
    return total if weighted else total * omega[0]


@compiled
def absolute_sum(density, losses, omega, weighted, share):
    """sum_i omega_i (q_i + share) |l_i|."""
    total = 0.0
    if weighted:
        for i in range(density.shape[0]):
            total += omega[i] * (density[i] + share) * abs(losses[i])
        return total
    for i in range(density.shape[0]):
        total += (density[i] + share) * abs(losses[i])
    return total * omega[0]


@compiled
def square_of_used(losses, omega):
    """sum_i l_i^2 over the samples that have a weight."""
    total = 0.0
    for i in range(losses.shape[0]):
        if omega[i] > 0.0:
            total += losses[i] * losses[i]
    return total


@compiled
def weighted_square_distance(density, others, omega, weighted):
    """sum_i omega_i (q_i - q'_i)^2."""
    total = 0.0
    if weighted:
        for i in range(density.shape[0]):
            total += omega[i] * (density[i] - others[i]) * (density[i] - others[i])
        return total
    for i in range(density.shape[0]):
        total += (density[i] - others[i]) * (density[i] - others[i])
    return total * omega[0]


@compiled
def block_means(block, values, omega, weighted, totals, means):
    """omega-weighted mean of the values over each block."""
    uniform = omega[0]
    for b in range(means.shape[0]):
        means[b] = 0.0
        totals[b] = 0.0
    for i in range(block.shape[0]):
        b = block[i]
        if b >= 0:
            weight = omega[i] if weighted else uniform
            totals[b] += weight
            means[b] += weight * values[i]
    for b in range(means.shape[0]):
        if totals[b] > 0.0:
            means[b] /= totals[b]


@compiled
def apply_curvature(h, pull, block, scale, change):
    """Turn a change of margins into the change of omega q phi', in place.

    `h` holds the diagonal weights of :func:`augmented_curvature`, `pull` is omega phi', `block` the
    block of each row or -1, and `scale` is eta divided by the weight of the block: inside a block
    the weights move with the losses, less their mean.
    """
    sums = np.zeros(scale.shape[0])
    for i in range(change.shape[0]):
        if block[i] >= 0:
            sums[block[i]] += pull[i] * change[i]
    for b in range(scale.shape[0]):
        sums[b] *= scale[b]
    for i in range(change.shape[0]):
        t = h[i] * change[i]
        if block[i] >= 0:
            t -= pull[i] * sums[block[i]]
        change[i] = t


@compiled
def systematic_sample(probability, count, offset, out):
    """`count` draws in order of position, of which item i gets count * p_i, rounded up or down."""
    n = probability.shape[0]
    total = 0.0
    for i in range(n):
        total += probability[i]
    spacing = total / count
    drawn = 0
    reached = 0.0
    last = 0
    for i in range(n):
        if probability[i] > 0.0:
            last = i
            reached += probability[i]
            while drawn < count and (drawn + offset) * spacing < reached:
                out[drawn] = i
                drawn += 1
    # Rounding may leave the last draw beyond the sum.
    while drawn < count:
        out[drawn] = last
        drawn += 1


@compiled
def quasi_newton_product(steps, changes, bends, first, count, diagonal, v):
    """v = H v, for the inverse H that L-BFGS makes of `count` pairs: the two-loop recursion.

    The pairs are rows of `steps` and `changes`, the oldest at `first` and the others after it, in a
    ring. `bends` has their inner products. Without pairs H is the inverse of the diagonal.
    """
    size, room = v.shape[0], bends.shape[0]
    shares = np.zeros(count)
    for k in range(count - 1, -1, -1):
        r = (first + k) % room
        s = 0.0
        for j in range(size):
            s += steps[r, j] * v[j]
        shares[k] = s / bends[r]
        for j in range(size):
            v[j] -= shares[k] * changes[r, j]
    scale = 1.0
    if count > 0:
        r = (first + count - 1) % room
        s = 0.0
        for j in range(size):
            s += changes[r, j] * changes[r, j] / diagonal[j]
        scale = bends[r] / s
    for j in range(size):
        v[j] *= scale / diagonal[j]
    for k in range(count):
        r = (first + k) % room
        s = 0.0
        for j in range(size):
            s += changes[r, j] * v[j]
        share = shares[k] - s / bends[r]
        for j in range(size):
            v[j] += share * steps[r, j]
