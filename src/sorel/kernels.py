"""Scalar losses and the compiled loops that call them.

A loss is a function phi(y, z) of a target and a margin, named by an integer code so that one
compiled loop serves all of them and is cached on disk once. The scalar functions and the loops
stand in one file because numba's cache does not notice an edit in a callee elsewhere.

Loops over a dense X come in two shapes: "rows" reads X in C order, "columns" reads X.T of a
Fortran-ordered X, itself in C order, so that neither order is ever copied. X may be float32 or
float64; every accumulator is float64.

A parameter named in `PER_ROW` has an entry for each sample, and `omega` has one when `weighted`
(else the one weight that all samples share). An engine cuts these to a range of rows where
several threads share a loop. Sums over the rows, such as X^T c, are added to what `out` holds.
"""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled

PER_ROW = frozenset(
    (
        "X", "y", "margins", "losses", "slopes", "density", "others", "previous", "target", "block",
        "direction", "new_margins", "change", "c", "h", "squares",
    )
)  # fmt: skip

SQUARED, HUBER, LOGISTIC, SQUARED_HINGE = 0, 1, 2, 3

# Rows treated together when X is read by columns: the slice of margins stays in the first cache.
_ROW_BLOCK = 1024

# Columns up to which rows are added up in quartets; share of nonzero weights below which a branch
# that the processor cannot foresee costs less than the rows it saves.
_SHORT_ROW = 12
_WORTH_SKIPPING = 0.3


@compiled
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
    m = y * z
    if code == LOGISTIC:
        if m >= 0.0:
            return math.log1p(math.exp(-m))
        return -m + math.log1p(math.exp(m))
    if m >= 1.0:
        return 0.0
    return (1.0 - m) * (1.0 - m)


@compiled
def loss_derivative(code, delta, y, z):
    """First derivative of phi in z."""
    if code == SQUARED:
        return z - y
    if code == HUBER:
        return min(max(z - y, -delta), delta)
    m = y * z
    if code == LOGISTIC:
        if m >= 0.0:
            e = math.exp(-m)
            return -y * e / (1.0 + e)
        return -y / (1.0 + math.exp(m))
    if m >= 1.0:
        return 0.0
    return -2.0 * y * (1.0 - m)


@compiled
def loss_curvature(code, delta, y, z):
    """Second derivative of phi in z (a generalised one at the kinks of huber and squared hinge)."""
    if code == SQUARED:
        return 1.0
    if code == HUBER:
        return 1.0 if abs(z - y) <= delta else 0.0
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
        return delta / max(abs(z - y), delta)
    if code == LOGISTIC:
        m = abs(y * z)
        return 0.25 if m < 1e-4 else 0.5 * math.tanh(0.5 * m) / m
    return 2.0


@compiled
def curvature_bound(code):
    """Largest second derivative of phi in z."""
    if code == LOGISTIC:
        return 0.25
    if code == SQUARED_HINGE:
        return 2.0
    return 1.0


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
def evaluate_rows(X, w, intercept, code, delta, y, margins, losses):
    """Margins and losses in one sweep over the rows of X."""
    n, d = X.shape
    for i in range(n):
        z = 0.0
        for j in range(d):
            z += X[i, j] * w[j]
        z += intercept
        margins[i] = z
        losses[i] = loss_value(code, delta, y[i], z)


@compiled
def product_rows(X, w, intercept, margins):
    """margins = X w + intercept, X by rows."""
    n, d = X.shape
    for i in range(n):
        z = 0.0
        for j in range(d):
            z += X[i, j] * w[j]
        margins[i] = z + intercept


@compiled
def product_columns(Xt, w, intercept, first, last, margins):
    """The same for the rows first..last, X by columns."""
    d = Xt.shape[0]
    for start in range(first, last, _ROW_BLOCK):
        stop = min(start + _ROW_BLOCK, last)
        for i in range(start, stop):
            margins[i] = intercept
        for j in range(d):
            wj = w[j]
            if wj != 0.0:
                for i in range(start, stop):
                    margins[i] += Xt[j, i] * wj


@compiled
def adjoint_rows(X, c, out):
    """out[:d] += X^T c, and the sum of c after it when out has room for an intercept."""
    n, d = X.shape
    total = 0.0
    used = 0
    for i in range(n):
        used += c[i] != 0.0
        total += c[i]
    start = 0
    if used < _WORTH_SKIPPING * n:
        for i in range(n):
            ci = c[i]
            if ci != 0.0:
                for j in range(d):
                    out[j] += ci * X[i, j]
        start = n
    elif d <= _SHORT_ROW:
        # Four short rows share the loads and stores of the sum.
        start = n - n % 4
        for i in range(0, start, 4):
            c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
            for j in range(d):
                out[j] += (c0 * X[i, j] + c1 * X[i + 1, j]) + (c2 * X[i + 2, j] + c3 * X[i + 3, j])
    for i in range(start, n):
        ci = c[i]
        for j in range(d):
            out[j] += ci * X[i, j]
    if out.shape[0] > d:
        out[d] += total


@compiled
def adjoint_columns(Xt, c, first, last, out):
    """The same for the rows first..last, X by columns."""
    d = Xt.shape[0]
    for start in range(first, last, _ROW_BLOCK):
        stop = min(start + _ROW_BLOCK, last)
        for j in range(d):
            s = 0.0
            for i in range(start, stop):
                s += c[i] * Xt[j, i]
            out[j] += s
    if out.shape[0] > d:
        total = 0.0
        for i in range(first, last):
            total += c[i]
        out[d] += total


@compiled
def gram_few(X, h, tile, scaled, out):
    """out += [X 1]^T diag(h) [X 1], with the column of ones when out has room for it.

    For few columns, where a call into BLAS costs more than it saves: rows of nonzero weight are
    turned into short columns, whose inner products are loops the processor likes. `tile` has a row
    for each row of `out`, `scaled` one more.
    """
    n, d = X.shape
    size = out.shape[0]
    height = tile.shape[1]
    weight = scaled[size]
    i = 0
    while i < n:
        count = 0
        while i < n and count < height:
            if h[i] != 0.0:
                weight[count] = h[i]
                for j in range(d):
                    tile[j, count] = X[i, j]
                count += 1
            i += 1
        if size > d:
            for r in range(count):
                tile[d, r] = 1.0
        for j in range(size):
            for r in range(count):
                scaled[j, r] = weight[r] * tile[j, r]
        for j in range(size):
            k = 0
            while k + 3 <= j:
                s0 = s1 = s2 = s3 = 0.0
                for r in range(count):
                    a = scaled[j, r]
                    s0 += a * tile[k, r]
                    s1 += a * tile[k + 1, r]
                    s2 += a * tile[k + 2, r]
                    s3 += a * tile[k + 3, r]
                out[j, k] += s0
                out[j, k + 1] += s1
                out[j, k + 2] += s2
                out[j, k + 3] += s3
                k += 4
            while k <= j:
                s0 = 0.0
                for r in range(count):
                    s0 += scaled[j, r] * tile[k, r]
                out[j, k] += s0
                k += 1
    for j in range(size):
        for k in range(j):
            out[k, j] = out[j, k]


@compiled
def scaled_rows(X, scale, rows, start, stop, out):
    """out[r] = scale[r] * [X[i] 1] for i = rows[start + r]: a tile small enough for the cache."""
    d = X.shape[1]
    for r in range(stop - start):
        i = rows[start + r]
        s = scale[r]
        for j in range(d):
            out[r, j] = s * X[i, j]
        if out.shape[1] > d:
            out[r, d] = s


@compiled
def block_sums(X, c, block, start, out):
    """out[b] += sum of c_i [x_i 1] over the rows of block start + b, X read in its own order."""
    n, d = X.shape
    stop = start + out.shape[0]
    for i in range(n):
        b = block[i]
        if b >= start and b < stop and c[i] != 0.0:
            ci = c[i]
            b -= start
            for j in range(d):
                out[b, j] += ci * X[i, j]
            if out.shape[1] > d:
                out[b, d] += ci


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
def augmented_curvature(code, delta, y, margins, density, block, eta, caution, omega, weighted, h):
    """Diagonal weights of the generalised Hessian: omega (q phi'' + eta phi'^2 [in a block]).

    `caution` moves phi'' towards the majorant, from 0 (Newton) to 1.
    """
    n = margins.shape[0]
    uniform = omega[0]
    cheap = code != LOGISTIC  # else a branch that cannot be foreseen saves an exponential
    for i in range(n):
        t = 0.0
        if density[i] != 0.0 or cheap:
            t = loss_curvature(code, delta, y[i], margins[i])
            if caution > 0.0:
                t += caution * (majorant_curvature(code, delta, y[i], margins[i]) - t)
            t *= density[i]
        if eta > 0.0 and block[i] >= 0:
            slope = loss_derivative(code, delta, y[i], margins[i])
            t += eta * slope * slope
        h[i] = t * (omega[i] if weighted else uniform)


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
def sample_slopes(slopes, factor, sampled, omega, weighted, out):
    """out = omega phi', times the sampling factors when rows were sampled."""
    uniform = omega[0]
    for i in range(slopes.shape[0]):
        c = slopes[i] * (omega[i] if weighted else uniform)
        out[i] = c * factor[i] if sampled else c


@compiled
def subtract_block_means(X, code, delta, y, margins, block, n_blocks, eta, omega, weighted, out):
    """out -= eta sum_b u_b u_b^T / omega_b, u_b = sum of omega_i phi'_i [x_i 1] over block b.

    For few columns, where one sweep beats a sequence of calls.
    """
    n, d = X.shape
    size = out.shape[0]
    uniform = omega[0]
    sums = np.zeros((n_blocks, size))
    totals = np.zeros(n_blocks)
    for i in range(n):
        b = block[i]
        if b >= 0:
            weight = omega[i] if weighted else uniform
            totals[b] += weight
            c = weight * loss_derivative(code, delta, y[i], margins[i])
            for j in range(d):
                sums[b, j] += c * X[i, j]
            if size > d:
                sums[b, d] += c
    for b in range(n_blocks):
        scale = eta / totals[b]
        for j in range(size):
            a = scale * sums[b, j]
            for k in range(size):
                out[j, k] -= a * sums[b, k]


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
def mean_and_deviation(values, omega, weighted):
    """Mean, and mean absolute deviation from it: heavy tails must not set the scale."""
    n = values.shape[0]
    uniform = omega[0]
    mean = 0.0
    for i in range(n):
        mean += values[i] * (omega[i] if weighted else uniform)
    deviation = 0.0
    for i in range(n):
        deviation += abs(values[i] - mean) * (omega[i] if weighted else uniform)
    return mean, deviation


@compiled
def weighted_sum(density, losses, omega, weighted):
    """sum_i omega_i q_i l_i."""
    total = 0.0
    if weighted:
        for i in range(density.shape[0]):
            total += omega[i] * density[i] * losses[i]
        return total
    for i in range(density.shape[0]):
        total += density[i] * losses[i]
    return total * omega[0]


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
def weighted_secant(density, others, losses, previous, omega, weighted):
    """sum omega (q - q')^2 and -sum omega (q - q') (l - l')."""
    uniform = omega[0]
    square = 0.0
    product = 0.0
    for i in range(density.shape[0]):
        move = (density[i] - others[i]) * (omega[i] if weighted else uniform)
        square += move * (density[i] - others[i])
        product -= move * (losses[i] - previous[i])
    return square, product


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


@compiled
def product_many(X, W, margins):
    """margins = X W, plus the last row of W where it has one more row than X has columns."""
    n, d = X.shape
    k = W.shape[1]
    for i in range(n):
        for c in range(k):
            margins[i, c] = W[d, c] if W.shape[0] > d else 0.0
        for j in range(d):
            x = X[i, j]
            if x != 0.0:
                for c in range(k):
                    margins[i, c] += x * W[j, c]


@compiled
def adjoint_many(X, C, out):
    """out[:d] += X^T C, and the column sums of C below when out has room for them."""
    n, d = X.shape
    k = C.shape[1]
    for i in range(n):
        for j in range(d):
            x = X[i, j]
            if x != 0.0:
                for c in range(k):
                    out[j, c] += x * C[i, c]
        if out.shape[0] > d:
            for c in range(k):
                out[d, c] += C[i, c]


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
def product_some_rows(X, rows, w, intercept, out):
    """out[r] = X[rows[r]] w + intercept."""
    d = X.shape[1]
    for r in range(rows.shape[0]):
        i = rows[r]
        z = 0.0
        for j in range(d):
            z += X[i, j] * w[j]
        out[r] = z + intercept


@compiled
def adjoint_some_rows(X, rows, c, out):
    """out += sum of c[r] [x_i 1] over i = rows[r], with the 1 when out has room for it."""
    d = X.shape[1]
    for r in range(rows.shape[0]):
        i = rows[r]
        cr = c[r]
        for j in range(d):
            out[j] += cr * X[i, j]
        if out.shape[0] > d:
            out[d] += cr


@compiled
def gram_diagonal(X, h, out):
    """out += diagonal of [X 1]^T diag(h) [X 1]."""
    n, d = X.shape
    for i in range(n):
        hi = h[i]
        if hi != 0.0:
            for j in range(d):
                out[j] += hi * X[i, j] * X[i, j]
            if out.shape[0] > d:
                out[d] += hi


# The multinomial loss: K margins per sample, y the index of the class, phi = logsumexp(z) - z_y.


@compiled
def softmax_losses(y, margins, losses, slopes):
    """Losses, and slopes = softmax(z) - onehot(y)."""
    n, k = margins.shape
    for i in range(n):
        top = margins[i, 0]
        for c in range(1, k):
            top = max(top, margins[i, c])
        total = 0.0
        for c in range(k):
            slopes[i, c] = math.exp(margins[i, c] - top)
            total += slopes[i, c]
        own = margins[i, y[i]] - top
        # log(total) loses the digits of a confident sample: there total - 1 is tiny.
        if own == 0.0:
            rest = 0.0
            for c in range(k):
                if c != y[i]:
                    rest += slopes[i, c]
            losses[i] = math.log1p(rest)
        else:
            losses[i] = math.log(total) - own
        rest = 0.0
        for c in range(k):
            slopes[i, c] /= total
            if c != y[i]:
                rest += slopes[i, c]
        slopes[i, y[i]] = -rest


@compiled
def apply_softmax_curvature(y, slopes, density, block, means, eta, omega, weighted, change):
    """The same as apply_curvature for K margins per sample."""
    n, k = slopes.shape
    uniform = omega[0]
    for i in range(n):
        weight = omega[i] if weighted else uniform
        average = 0.0
        moved = 0.0
        for c in range(k):
            p = slopes[i, c] + (1.0 if y[i] == c else 0.0)
            average += p * change[i, c]
            moved += slopes[i, c] * change[i, c]
        inside = eta > 0.0 and block[i] >= 0
        if inside:
            moved = eta * (moved - means[block[i]])
        for c in range(k):
            p = slopes[i, c] + (1.0 if y[i] == c else 0.0)
            t = density[i] * p * (change[i, c] - average)
            if inside:
                t += moved * slopes[i, c]
            change[i, c] = t * weight


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


# Proximal maps of the penalties, which the stochastic steps take: see sorel.penalties.

# What a penalty is to compiled code: a square alone, which is linear in a step, a map of each
# coefficient by itself, or one that ties all of them.
PURE_L2, SEPARABLE, SIMPLEX = 0, 1, 2


@compiled
def prox_inplace(w, step, code, l2, l1, lower, upper):
    """Overwrite `w`, of shape (d,), by its proximal map; the rest is what `kernel(d)` returns.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.penalties import L2, prox_inplace
    >>> w = np.array([3.0, 4.0])
    >>> prox_inplace(w, 2.0, *L2(0.5).kernel(2))
    >>> w
    array([1.5, 2. ])
    """
    d = w.shape[0]
    scale = 1.0 / (1.0 + step * l2)
    if code == PURE_L2:
        for j in range(d):
            w[j] *= scale
    elif code == SEPARABLE:
        threshold = step * l1
        for j in range(d):
            v = w[j]
            if v > threshold:
                v = (v - threshold) * scale
            elif v < -threshold:
                v = (v + threshold) * scale
            else:
                v = 0.0
            w[j] = min(max(v, lower[j]), upper[j])
    else:
        top = w[0]
        for j in range(1, d):
            top = max(top, w[j])
        for j in range(d):
            w[j] = (w[j] - top) * scale
        ascending = np.sort(w)
        total = -1.0
        theta = 0.0
        for j in range(d):
            candidate = ascending[d - 1 - j]
            # The support ends at the first entry that its own threshold would cut off.
            if (candidate + total) / (j + 1.0) >= candidate:
                break
            total += candidate
            theta = total / (j + 1.0)
        for j in range(d):
            w[j] = max(w[j] - theta, 0.0)


@compiled
def prox_inplace_outputs(w, step, code, l2, l1, lower, upper):
    """Overwrite `w`, of shape (d, K), by its proximal map: `prox_inplace` on every column.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.penalties import Simplex, prox_inplace_outputs
    >>> w = np.zeros((2, 3))
    >>> prox_inplace_outputs(w, 1.0, *Simplex(1.0).kernel(2))
    >>> w
    array([[0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5]])
    """
    for k in range(w.shape[1]):
        prox_inplace(w[:, k], step, code, l2, l1, lower, upper)


# Stochastic steps. Parameters are kept by output here, W of shape (K, p) with the intercept last,
# so that every inner loop runs along a row of X; K = 1 for all losses but multinomial. A step is
#
#     W <- prox(shrink W + drift - step * (sum over the batch of c_i x_i)),
#
# where shrink and drift hold a quadratic penalty, a centre and a full gradient. The intercept,
# which no penalty touches, has its own shrink and step.


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
    if proximal:
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
        if proximal:
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
def move_entry(key, order, position, item, value):
    """Give one item of a sorted list a new key: only the items between its ranks move."""
    # A loss that is not a number has no place in the order: leave the divergence to w.
    if value != value:
        return
    n = key.shape[0]
    rank = position[item]
    while rank > 0 and (
        key[rank - 1] > value or (key[rank - 1] == value and order[rank - 1] > item)
    ):
        key[rank] = key[rank - 1]
        order[rank] = order[rank - 1]
        position[order[rank]] = rank
        rank -= 1
    while rank + 1 < n and (
        key[rank + 1] < value or (key[rank + 1] == value and order[rank + 1] < item)
    ):
        key[rank] = key[rank + 1]
        order[rank] = order[rank + 1]
        position[order[rank]] = rank
        rank += 1
    key[rank] = value
    order[rank] = item
    position[item] = rank


@compiled
def repair_order(key, order, position, companion):
    """Sort by insertion what was sorted before the keys changed; `companion` moves with them."""
    for i in range(1, key.shape[0]):
        value, item = key[i], order[i]
        if key[i - 1] < value or (key[i - 1] == value and order[i - 1] < item):
            continue
        carried = companion[i]
        j = i - 1
        while j >= 0 and (key[j] > value or (key[j] == value and order[j] > item)):
            key[j + 1] = key[j]
            companion[j + 1] = companion[j]
            order[j + 1] = order[j]
            position[order[j]] = j + 1
            j -= 1
        key[j + 1] = value
        companion[j + 1] = carried
        order[j + 1] = item
        position[item] = j + 1


@compiled
def pool_sorted(key, mass, level, first):
    """Blocks of the projection of ascending keys onto the permutahedron of `mass`.

    Block b spans first[b]:first[b + 1] and its items get q = key - key[first[b]] - level[b].
    Levels are relative to the block's first key: keys may be large against the weights.
    """
    top = -1
    for i in range(key.shape[0]):
        start, size, value = i, 1, -mass[i]
        while top >= 0:
            left = first[top]
            distance = key[start] - key[left]
            if level[top] - value <= distance:
                break
            held = start - left
            value = (held * level[top] + size * (value + distance)) / (held + size)
            start = left
            size += held
            top -= 1
        top += 1
        first[top] = start
        level[top] = value
    first[top + 1] = key.shape[0]
    return top + 1


@compiled
def pooled_density(rank, key, level, first, blocks):
    """q of the item at a rank, by bisection for its block."""
    low, high = 0, blocks
    while high - low > 1:
        middle = (low + high) // 2
        if first[middle] <= rank:
            low = middle
        else:
            high = middle
    return key[rank] - key[first[low]] - level[low]


@compiled
def ranked_weights(rows, key, position, mass, nu, level, first_of, weights):
    """Prospect's weights of a batch: sigma by rank, or the projection of the keys where nu > 0."""
    blocks = pool_sorted(key, mass, level, first_of) if nu > 0.0 else 0
    for b in range(rows.shape[0]):
        rank = position[rows[b]]
        if nu > 0.0:
            weights[b] = pooled_density(rank, key, level, first_of, blocks)
        else:
            weights[b] = mass[rank]


@compiled
def saddle_ascent(
    probes, probed, losses, density, key, order, position, mass, nu, dual_step, level, first_of
):
    """The dual step of SAGA with the probed losses of a batch; False where it diverged."""
    n, batch = key.shape[0], probes.shape[0]
    damping = 1.0 / (1.0 + dual_step * nu)
    for rank in range(n):
        key[rank] = (density[rank] + dual_step * (losses[rank] + nu)) * damping
    finite = True
    for b in range(batch):
        rank = position[probes[b]]
        key[rank] += dual_step * damping * n * (probed[b] - losses[rank]) / batch
        finite = finite and abs(key[rank]) < math.inf
    if not finite:
        return False
    for b in range(batch):
        losses[position[probes[b]]] = probed[b]
    repair_order(key, order, position, losses)
    blocks = pool_sorted(key, mass, level, first_of)
    for b in range(blocks):
        start = first_of[b]
        for rank in range(start, first_of[b + 1]):
            density[rank] = key[rank] - key[start] - level[b]
    return True


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
    X, y, code, delta, rows, probes, batch, table, mean, key, order, position, mass, nu, level,
    first_of, W, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1, lower,
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
        ranked_weights(
            rows[first : first + batch], key, position, mass, nu, level, first_of, weights
        )
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
    mass, nu, dual_step, level, first_of, W, shrink, step, free_shrink, free_step, proximal,
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
            dual_step, level, first_of,
        ):  # fmt: skip
            # Diverged: no order to repair, and the caller sees it in w.
            return


@compiled
def weighted_peak(density, squares, omega, weighted):
    """Largest of omega_i q_i |x_i|^2."""
    uniform = omega[0]
    peak = 0.0
    for i in range(density.shape[0]):
        peak = max(peak, density[i] * squares[i] * (omega[i] if weighted else uniform))
    return peak


@compiled
def importance(density, squares, omega, weighted, share, floor, target):
    """target = share omega_i q_i |x_i|^2 + floor."""
    uniform = omega[0]
    for i in range(density.shape[0]):
        heavy = density[i] * squares[i] * (omega[i] if weighted else uniform)
        target[i] = share * heavy + floor


@compiled
def draw_scales(density, omega, weighted, probability, indices, out):
    """out = omega_i q_i / p_i for every draw."""
    uniform = omega[0]
    for k in range(indices.shape[0]):
        i = indices[k]
        out[k] = density[i] * (omega[i] if weighted else uniform) / probability[i]


@compiled
def gather_rows(X, rows, out):
    """out[r] = X[rows[r]]."""
    for r in range(rows.shape[0]):
        i = rows[r]
        for j in range(X.shape[1]):
            out[r, j] = X[i, j]


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


# Sparse X: the three arrays of CSR, both kinds of indices unsigned so that numba drops its test for
# negative ones, columns in any order inside a row. Full passes take a range of rows:
# indptr[start:stop + 1] with all of indices and data, and vectors of length stop - start.


@compiled
def inspect_csr(indptr, indices, d):
    """The first row that is not valid CSR, or -1; and whether a row names a column twice."""
    seen = np.full(d, -1, np.int64)
    repeated = False
    for i in range(indptr.shape[0] - 1):
        if indptr[i] < 0 or indptr[i + 1] < indptr[i] or indptr[i + 1] > indices.shape[0]:
            return i, repeated
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            if j < 0 or j >= d:
                return i, repeated
            if seen[j] == i:
                repeated = True
            seen[j] = i
    return -1, repeated


@compiled
def product_csr(indptr, indices, data, w, intercept, out):
    """out = X w + intercept."""
    for i in range(out.shape[0]):
        z = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            z += data[e] * w[indices[e]]
        out[i] = z + intercept


@compiled
def adjoint_csr(indptr, indices, data, c, out):
    """out += X^T c."""
    for i in range(c.shape[0]):
        ci = c[i]
        if ci != 0.0:
            for e in range(indptr[i], indptr[i + 1]):
                out[indices[e]] += ci * data[e]


@compiled
def product_csr_many(indptr, indices, data, W, intercepts, out):
    """out = X W + intercepts for W of shape (d, K)."""
    k = out.shape[1]
    for i in range(out.shape[0]):
        for c in range(k):
            out[i, c] = intercepts[c]
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            x = data[e]
            for c in range(k):
                out[i, c] += x * W[j, c]


@compiled
def adjoint_csr_many(indptr, indices, data, C, out):
    """out += X^T C for C of shape (n, K)."""
    k = C.shape[1]
    for i in range(C.shape[0]):
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            x = data[e]
            for c in range(k):
                out[j, c] += x * C[i, c]


@compiled
def gram_diagonal_csr(indptr, indices, data, h, out):
    """out += the diagonal of X^T diag(h) X."""
    for i in range(h.shape[0]):
        hi = h[i]
        if hi != 0.0:
            for e in range(indptr[i], indptr[i + 1]):
                x = np.float64(data[e])
                out[indices[e]] += hi * x * x


@compiled
def gram_csr(indptr, indices, data, h, out):
    """Lower triangle of out += that of X^T diag(h) X."""
    for i in range(h.shape[0]):
        hi = h[i]
        if hi != 0.0:
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                a = hi * data[e]
                for f in range(indptr[i], e + 1):
                    k = indices[f]
                    out[max(j, k), min(j, k)] += a * data[f]


@compiled
def block_sums_csr(indptr, indices, data, c, block, start, out):
    """out[b] += sum of c_i x_i over the rows of block start + b."""
    stop = start + out.shape[0]
    for i in range(c.shape[0]):
        b = block[i]
        if b >= start and b < stop and c[i] != 0.0:
            ci = c[i]
            b -= start
            for e in range(indptr[i], indptr[i + 1]):
                out[b, indices[e]] += ci * data[e]


@compiled
def select_csr(indptr, indices, data, rows, new_indptr, new_indices, new_data):
    """Copy rows; `new_indptr` is given."""
    for r in range(rows.shape[0]):
        e = indptr[rows[r]]
        for f in range(new_indptr[r], new_indptr[r + 1]):
            new_indices[f] = indices[e]
            new_data[f] = data[e]
            e += np.uint64(1)


@compiled
def row_squares_csr(indptr, data, out):
    """out = |x_i|^2."""
    for i in range(out.shape[0]):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            x = np.float64(data[e])
            total += x * x
        out[i] = total


# Stochastic steps on sparse rows, at O(nonzeros) each. A coefficient that no row of a batch touches
# goes through a map of itself alone,
#
#     u -> clip(soft(shrink u + drift) * scale),
#
# so it is left where it is until a row needs it, and then taken through all the steps that it has
# missed at once. The drift is a constant or, in the methods with tables, follows a mean gradient
# that changes only where a row does. The simplex ties all coefficients together: its steps cost
# O(d).
#
# A coefficient's line of the state holds all that a visit needs side by side: the number of steps
# it has seen, then for each output its value, then what drives it, then the sum of its values after
# each step. The intercept has the last line and is never late.
#
# Variance-reduced steps under a quadratic penalty have a form of their own, `svrg_steps_scaled`,
# which is faster where it applies.

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
    if proximal:
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
            row = np.uint64(gap if gap < _RUN else _RUN - 1)
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
    if kind == SIMPLEX:
        for j in range(d):
            state[j, 0] = time + 0.5
            for c in range(outputs):
                state[j, 1 + c] = shrink * state[j, 1 + c] + factor * state[j, 1 + outputs + c]
    for b in range(rows.shape[0]):
        i = rows[b]
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            late = state[j, 0] == time
            state[j, 0] = time + 0.5
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
            if state[j, 0] == time + 0.5:
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
    if not proximal and decay * d <= -math.log(_SMALL_SCALE) * nonzeros:
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
    X, y, code, delta, rows, probes, batch, table, mean, key, order, position, mass, nu, level,
    first_of, W, shrink, step, free_shrink, free_step, proximal, prox_step, penalty, l2, l1, lower,
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
        ranked_weights(chosen, key, position, mass, nu, level, first_of, weights)
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
    mass, nu, dual_step, level, first_of, W, shrink, step, free_shrink, free_step, proximal,
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
            dual_step, level, first_of,
        ):  # fmt: skip
            # Diverged: the caller sees it in w.
            break
    settle_table(state, d, time, moves, lower, upper, runs, W, mean)
