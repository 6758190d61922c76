"""Scalar losses phi(y, z) and the loops over samples that call them.

A loss is named by an integer code, so that one compiled loop serves all of them and is cached on
disk once. :mod:`sorel.engines.vectorised` has the same loops for a loss that has no code, and
:mod:`sorel.kernels.logistic` faster ones for the logistic loss.
"""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled
from sorel.kernels.exponential import exponentials

# The loops take a code on trust: the formulas of the squared hinge are those of any other number. A
# raise in them made sums over 20 000 samples two to four times as long, so `sorel.losses` asks
# before it calls them.
CODES = SQUARED, HUBER, LOGISTIC, SQUARED_HINGE, LINEAR = 0, 1, 2, 3, 4


@compiled(inner=True)
def loss_value(code, delta, y, z):
    """phi(y, z)."""
    if code == SQUARED:
        r = z - y
        return 0.5 * r * r
    if code == HUBER:
        r = abs(z - y)
        if r <= delta:
            return 0.5 * r * r
        return delta * (r - 0.5 * delta)
    if code == LINEAR:
        return y - z
    m = y * z
    if code == LOGISTIC:
        if m >= 0.0:
            return math.log1p(math.exp(-m))
        return -m + math.log1p(math.exp(m))
    if m >= 1.0:
        return 0.0
    return (1.0 - m) * (1.0 - m)


@compiled(inner=True)
def loss_derivative(code, delta, y, z):
    """First derivative of phi in z."""
    if code == SQUARED:
        return z - y
    if code == HUBER:
        r = z - y
        return -delta if r < -delta else delta if r > delta else r
    if code == LINEAR:
        return -1.0
    m = y * z
    if code == LOGISTIC:
        if m >= 0.0:
            e = math.exp(-m)
            return -y * e / (1.0 + e)
        return -y / (1.0 + math.exp(m))
    if m >= 1.0:
        return 0.0
    return -2.0 * y * (1.0 - m)


@compiled(inner=True)
def loss_curvature(code, delta, y, z):
    """Second derivative of phi in z (a generalised one at the kinks of huber and squared hinge)."""
    if code == SQUARED:
        return 1.0
    if code == HUBER:
        return 1.0 if abs(z - y) <= delta else 0.0
    if code == LINEAR:
        return 0.0
    m = y * z
    if code == LOGISTIC:
        e = math.exp(-abs(m))
        return e / ((1.0 + e) * (1.0 + e))
    return 2.0 if m < 1.0 else 0.0


@compiled
def majorant_curvature(code, delta, y, z):
    """Curvature of a parabola that touches phi at z and lies above it everywhere.

    Never below the second derivative, and positive where that vanishes: a step with it cannot
    overshoot.
    """
    if code == SQUARED:
        return 1.0
    if code == HUBER:
        r = abs(z - y)
        return delta / r if r > delta else 1.0
    if code == LINEAR:
        return 0.0
    if code == LOGISTIC:
        m = abs(y * z)
        return 0.25 if m < 1e-4 else 0.5 * math.tanh(0.5 * m) / m
    return 2.0


@compiled
def losses_at(code, delta, y, margins, losses):
    """Losses at given margins."""
    for i in range(margins.shape[0]):
        losses[i] = loss_value(code, delta, y[i], margins[i])


@compiled
def slopes_at(code, delta, y, margins, slopes):
    """First derivatives at given margins."""
    for i in range(margins.shape[0]):
        slopes[i] = loss_derivative(code, delta, y[i], margins[i])


@compiled
def curvatures_at(code, delta, y, margins, out):
    """Second derivatives at given margins."""
    for i in range(margins.shape[0]):
        out[i] = loss_curvature(code, delta, y[i], margins[i])


@compiled
def augmented_curvature(code, delta, y, margins, density, block, eta, caution, omega, weighted, h):
    """Diagonal weights of the generalised Hessian: omega (q phi'' + eta phi'^2 [in a block]).

    `caution` moves phi'' towards the majorant, from 0 (Newton) to 1.
    """
    n = margins.shape[0]
    uniform = omega[0]
    for i in range(n):
        t = loss_curvature(code, delta, y[i], margins[i])
        if caution > 0.0:
            t += caution * (majorant_curvature(code, delta, y[i], margins[i]) - t)
        h[i] = t * density[i] * (omega[i] if weighted else uniform)
    if eta > 0.0:
        # Apart, since the branch would keep the loop above from being vectorised.
        for i in range(n):
            if block[i] >= 0:
                slope = loss_derivative(code, delta, y[i], margins[i])
                h[i] += eta * slope * slope * (omega[i] if weighted else uniform)


@compiled
def weighted_slopes(code, delta, y, margins, density, omega, weighted, c):
    """c = omega q phi': what X^T turns into the gradient of lam . l(w)."""
    uniform = omega[0]
    cheap = code != LOGISTIC  # else a branch that cannot be foreseen saves an exponential
    for i in range(density.shape[0]):
        if density[i] != 0.0 or cheap:
            slope = loss_derivative(code, delta, y[i], margins[i])
            c[i] = density[i] * slope * (omega[i] if weighted else uniform)
        else:
            c[i] = 0.0


@compiled
def block_slopes(code, delta, y, margins, block, factor, sampled, omega, weighted, c):
    """c = omega phi' inside the blocks, times the sampling factors when rows were sampled."""
    uniform = omega[0]
    for i in range(margins.shape[0]):
        c[i] = 0.0
        if block[i] >= 0 and (factor[i] != 0.0 if sampled else True):
            slope = loss_derivative(code, delta, y[i], margins[i])
            c[i] = slope * (omega[i] if weighted else uniform)
            if sampled:
                c[i] *= factor[i]


@compiled
def subtract_block_means(X, code, delta, y, margins, block, sums, eta, omega, weighted, out):
    """out -= eta sum_b u_b u_b^T / omega_b, u_b = sum of omega_i phi'_i [x_i 1] over block b.

    For few columns, where one sweep beats a sequence of calls. `sums` has a row of zeros for each
    block, one longer than those of `out`.
    """
    n, d = X.shape
    size = out.shape[0]
    uniform = omega[0]
    for i in range(n):
        b = block[i]
        if b >= 0:
            weight = omega[i] if weighted else uniform
            sums[b, size] += weight
            c = weight * loss_derivative(code, delta, y[i], margins[i])
            for j in range(d):
                sums[b, j] += c * X[i, j]
            if size > d:
                sums[b, d] += c
    for b in range(sums.shape[0]):
        scale = eta / sums[b, size]
        for j in range(size):
            a = scale * sums[b, j]
            for k in range(size):
                out[j, k] -= a * sums[b, k]


@compiled
def directional_slope(code, delta, y, margins, density, direction, omega, weighted):
    """sum_i omega_i q_i phi'_i direction_i."""
    uniform = omega[0]
    cheap = code != LOGISTIC  # else a branch that cannot be foreseen saves an exponential
    total = 0.0
    for i in range(density.shape[0]):
        if density[i] != 0.0 or cheap:
            slope = loss_derivative(code, delta, y[i], margins[i])
            total += (omega[i] if weighted else uniform) * density[i] * slope * direction[i]
    return total


@compiled
def line_target(margins, direction, step, code, delta, y, density, eta, target):
    """target = q + eta l at the margins moved along a direction, which are not kept."""
    for i in range(margins.shape[0]):
        loss = loss_value(code, delta, y[i], margins[i] + step * direction[i])
        target[i] = density[i] + eta * loss


@compiled
def line_slope(margins, direction, step, code, delta, y, density, omega, weighted):
    """Derivative of lam . l along the direction, at the margins moved along it."""
    uniform = omega[0]
    cheap = code != LOGISTIC  # else a branch that cannot be foreseen saves an exponential
    total = 0.0
    for i in range(density.shape[0]):
        if density[i] != 0.0 or cheap:
            slope = loss_derivative(code, delta, y[i], margins[i] + step * direction[i])
            total += (omega[i] if weighted else uniform) * density[i] * slope * direction[i]
    return total


@compiled
def move_margins(margins, direction, step, code, delta, y, new_margins, losses):
    """Margins moved along a direction, with the losses there."""
    for i in range(margins.shape[0]):
        z = margins[i] + step * direction[i]
        new_margins[i] = z
        losses[i] = loss_value(code, delta, y[i], z)


@compiled
def shift_statistics(code, delta, y, margins, shift, density, omega, weighted):
    """Derivatives of sum_i omega_i q_i phi(y_i, z_i + shift) in the shift, and a rounding scale.

    The first derivative is known up to the unit roundoff times the third number: the size of its
    terms, and that of the margins times the curvature.
    """
    first = 0.0
    second = 0.0
    rounding = 0.0
    uniform = omega[0]
    for i in range(margins.shape[0]):
        if density[i] != 0.0:
            a = density[i] * (omega[i] if weighted else uniform)
            z = margins[i] + shift
            slope = a * loss_derivative(code, delta, y[i], z)
            curvature = a * loss_curvature(code, delta, y[i], z)
            first += slope
            second += curvature
            rounding += abs(slope) + curvature * (abs(margins[i]) + abs(shift))
    return first, second, rounding


# Numbers that pass from one step of the softmax to the next in the second cache.
_SOFTMAX_TILE = 32_768


def softmax_losses(y, margins, losses, slopes):
    """Losses, and slopes = softmax(z) - onehot(y), which are in C order."""
    n, k = margins.shape
    height = max(1, _SOFTMAX_TILE // k)
    powers = np.empty(min(height, n) * k)
    for start in range(0, n, height):
        part = slice(start, min(start + height, n))
        below_the_top(y[part], margins[part], losses[part], slopes[part])
        exponentials(slopes[part].reshape(-1), powers, powers.view(np.int64))
        finish_softmax(y[part], losses[part], slopes[part])


@compiled
def below_the_top(y, margins, losses, slopes):
    """slopes = z - max(z) in each row, and losses = that of the own class."""
    n, k = margins.shape
    for i in range(n):
        top = margins[i, 0]
        for c in range(1, k):
            top = max(top, margins[i, c])
        for c in range(k):
            slopes[i, c] = margins[i, c] - top
        losses[i] = slopes[i, y[i]]


@compiled
def finish_softmax(y, losses, slopes):
    """Losses and slopes, given the exponentials of those differences in `slopes`."""
    n, k = slopes.shape
    for i in range(n):
        own = slopes[i, y[i]]
        slopes[i, y[i]] = 0.0
        rest = 0.0
        for c in range(k):
            rest += slopes[i, c]
        # A confident sample leaves p no digits, and log(total) none either: there the sum of the
        # other classes has them.
        if losses[i] == 0.0:
            losses[i] = math.log1p(rest)
        else:
            losses[i] = math.log(rest + own) - losses[i]
        scale = 1.0 / (rest + own)
        for c in range(k):
            slopes[i, c] *= scale
        slopes[i, y[i]] = -rest * scale


@compiled
def weigh_softmax(y, slopes, own, density, omega, weighted, change):
    """change = omega q (slopes + own onehot(y)): slopes for own = 0, probabilities for own = 1."""
    n, k = slopes.shape
    uniform = omega[0]
    for i in range(n):
        weight = density[i] * (omega[i] if weighted else uniform)
        for c in range(k):
            change[i, c] = weight * slopes[i, c]
        change[i, y[i]] += weight * own


@compiled
def add_other_classes(y, change, totals, sums):
    """totals += the rows of change without the entry of their own class c, and sums[c] the same."""
    n, k = change.shape
    for i in range(n):
        own = y[i]
        change[i, own] = 0.0
        for c in range(k):
            sums[own, c] += change[i, c]
            totals[c] += change[i, c]


@compiled
def apply_softmax_curvature(y, slopes, density, block, means, eta, omega, weighted, change):
    """The same as apply_curvature for K margins per sample."""
    n, k = slopes.shape
    uniform = omega[0]
    for i in range(n):
        own = y[i]
        weight = omega[i] if weighted else uniform
        moved = 0.0
        for c in range(k):
            moved += slopes[i, c] * change[i, c]
        # p = slopes, but for the own class, where it is 1 + slopes: the mean of the change under p
        # is that of the own class plus what the loss has moved.
        average = change[i, own] + moved
        pull = 0.0
        if eta > 0.0 and block[i] >= 0:
            pull = weight * eta * (moved - means[block[i]])
        weight *= density[i]
        at_own = pull * slopes[i, own] - weight * (1.0 + slopes[i, own]) * moved
        for c in range(k):
            change[i, c] = slopes[i, c] * (weight * (change[i, c] - average) + pull)
        change[i, own] = at_own


@compiled
def softmax_pair_curvature(
    y, slopes, density, block, eta, omega, weighted, first_class, second_class, h
):
    """One (class, class) entry of the per-sample Hessian blocks, with the augmented term."""
    n = slopes.shape[0]
    uniform = omega[0]
    for i in range(n):
        t = 0.0
        ga = slopes[i, first_class]
        gb = slopes[i, second_class]
        if density[i] != 0.0:
            pa = ga + (1.0 if y[i] == first_class else 0.0)
            pb = gb + (1.0 if y[i] == second_class else 0.0)
            if first_class == second_class:
                # p (1 - p), with 1 - p taken from the slope where that is exact
                t = pa * (-ga if y[i] == first_class else 1.0 - pa)
            else:
                t = -pa * pb
            t *= density[i]
        if eta > 0.0 and block[i] >= 0:
            t += eta * ga * gb
        h[i] = t * (omega[i] if weighted else uniform)
