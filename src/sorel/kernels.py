"""Scalar losses and the compiled loops that call them.

A loss is a function phi(y, z) of a target and a margin, named by an integer code so that one
compiled loop serves all of them and is cached on disk once. The scalar functions and the loops
stand in one file because numba's cache does not notice an edit in a callee elsewhere.

Loops over a dense X come in two shapes: "rows" reads X in C order, "columns" reads X.T of a
Fortran-ordered X, itself in C order, so that neither order is ever copied. X may be float32 or
float64; every accumulator is float64.
"""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled

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
def losses_at(code, delta, y, margins, losses, slopes):
    """Losses and first derivatives at given margins."""
    for i in range(margins.shape[0]):
        losses[i] = loss_value(code, delta, y[i], margins[i])
        slopes[i] = loss_derivative(code, delta, y[i], margins[i])


@compiled
def curvatures_at(code, delta, y, margins, out):
    """Second derivatives at given margins."""
    for i in range(margins.shape[0]):
        out[i] = loss_curvature(code, delta, y[i], margins[i])


@compiled
def evaluate_rows(X, w, intercept, code, delta, y, margins, losses, slopes):
    """Margins, losses and derivatives in one sweep over the rows of X."""
    n, d = X.shape
    for i in range(n):
        z = 0.0
        for j in range(d):
            z += X[i, j] * w[j]
        z += intercept
        margins[i] = z
        losses[i] = loss_value(code, delta, y[i], z)
        slopes[i] = loss_derivative(code, delta, y[i], z)


@compiled
def product_rows(X, w, intercept, out):
    """out = X w + intercept, X by rows."""
    n, d = X.shape
    for i in range(n):
        z = 0.0
        for j in range(d):
            z += X[i, j] * w[j]
        out[i] = z + intercept


@compiled
def product_columns(Xt, w, intercept, out):
    """out = X w + intercept, X by columns."""
    d, n = Xt.shape
    for start in range(0, n, _ROW_BLOCK):
        stop = min(start + _ROW_BLOCK, n)
        for i in range(start, stop):
            out[i] = intercept
        for j in range(d):
            wj = w[j]
            if wj != 0.0:
                for i in range(start, stop):
                    out[i] += Xt[j, i] * wj


@compiled
def adjoint_rows(X, c, out):
    """out[:d] = X^T c, and the sum of c after it when out has room for an intercept."""
    n, d = X.shape
    for j in range(out.shape[0]):
        out[j] = 0.0
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
        out[d] = total


@compiled
def adjoint_columns(Xt, c, out):
    """The same, X by columns."""
    d, n = Xt.shape
    for j in range(out.shape[0]):
        out[j] = 0.0
    for start in range(0, n, _ROW_BLOCK):
        stop = min(start + _ROW_BLOCK, n)
        for j in range(d):
            s = 0.0
            for i in range(start, stop):
                s += c[i] * Xt[j, i]
            out[j] += s
    if out.shape[0] > d:
        total = 0.0
        for i in range(n):
            total += c[i]
        out[d] = total


@compiled
def gram_few(X, h, tile, scaled, out):
    """out = [X 1]^T diag(h) [X 1], with the column of ones when out has room for it.

    For few columns, where a call into BLAS costs more than it saves: rows of nonzero weight are
    turned into short columns, whose inner products are loops the processor likes. `tile` has a row
    for each row of `out`, `scaled` one more.
    """
    n, d = X.shape
    size = out.shape[0]
    height = tile.shape[1]
    for j in range(size):
        for k in range(size):
            out[j, k] = 0.0
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
    """out[r] = scale[i] * [X[i] 1] for i = rows[start + r]: a tile small enough for the cache."""
    d = X.shape[1]
    for r in range(stop - start):
        i = rows[start + r]
        s = scale[i]
        for j in range(d):
            out[r, j] = s * X[i, j]
        if out.shape[1] > d:
            out[r, d] = s


@compiled
def block_sums(X, c, block, start, out):
    """out[b] = sum of c_i [x_i 1] over the rows of block start + b, X read in its own order."""
    n, d = X.shape
    for b in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[b, j] = 0.0
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
    uniform = 1.0 / block.shape[0]
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
def augmented_curvature(
    code, delta, y, margins, slopes, density, block, eta, caution, omega, weighted, out
):
    """Diagonal weights of the generalised Hessian: omega (q phi'' + eta phi'^2 [in a block]).

    `caution` moves phi'' towards the majorant, from 0 (Newton) to 1.
    """
    n = margins.shape[0]
    uniform = 1.0 / n
    for i in range(n):
        h = 0.0
        if density[i] != 0.0:
            h = loss_curvature(code, delta, y[i], margins[i])
            if caution > 0.0:
                h += caution * (majorant_curvature(code, delta, y[i], margins[i]) - h)
            h *= density[i]
        if eta > 0.0 and block[i] >= 0:
            h += eta * slopes[i] * slopes[i]
        out[i] = h * (omega[i] if weighted else uniform)


@compiled
def weighted_slopes(density, slopes, omega, weighted, out):
    """out = omega q phi': what X^T turns into the gradient of lam . l(w)."""
    uniform = 1.0 / density.shape[0]
    for i in range(density.shape[0]):
        out[i] = density[i] * slopes[i] * (omega[i] if weighted else uniform)


@compiled
def sample_slopes(slopes, factor, sampled, omega, weighted, out):
    """out = omega phi', times the sampling factors when rows were sampled."""
    uniform = 1.0 / slopes.shape[0]
    for i in range(slopes.shape[0]):
        c = slopes[i] * (omega[i] if weighted else uniform)
        out[i] = c * factor[i] if sampled else c


@compiled
def subtract_block_means(X, slopes, block, n_blocks, eta, omega, weighted, out):
    """out -= eta sum_b u_b u_b^T / omega_b, u_b = sum of omega_i phi'_i [x_i 1] over block b.

    For few columns, where one sweep beats a sequence of calls.
    """
    n, d = X.shape
    size = out.shape[0]
    uniform = 1.0 / n
    sums = np.zeros((n_blocks, size))
    totals = np.zeros(n_blocks)
    for i in range(n):
        b = block[i]
        if b >= 0:
            weight = omega[i] if weighted else uniform
            totals[b] += weight
            c = weight * slopes[i]
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
def ascent_target(density, losses, previous, eta, theta, out):
    """out = q + eta [(1 + theta) l - theta l_prev]."""
    if theta == 0.0:
        for i in range(density.shape[0]):
            out[i] = density[i] + eta * losses[i]
    else:
        for i in range(density.shape[0]):
            out[i] = density[i] + eta * (losses[i] + theta * (losses[i] - previous[i]))


@compiled
def mean_and_deviation(values, omega, weighted):
    """Mean, and mean absolute deviation from it: heavy tails must not set the scale."""
    n = values.shape[0]
    uniform = 1.0 / n
    mean = 0.0
    for i in range(n):
        mean += values[i] * (omega[i] if weighted else uniform)
    deviation = 0.0
    for i in range(n):
        deviation += abs(values[i] - mean) * (omega[i] if weighted else uniform)
    return mean, deviation


@compiled
def weighted_sum(density, values, omega, weighted):
    """sum_i omega_i q_i values_i."""
    total = 0.0
    if weighted:
        for i in range(density.shape[0]):
            total += omega[i] * density[i] * values[i]
        return total
    for i in range(density.shape[0]):
        total += density[i] * values[i]
    return total / density.shape[0]


@compiled
def weighted_square_distance(a, b, omega, weighted):
    """sum_i omega_i (a_i - b_i)^2."""
    total = 0.0
    if weighted:
        for i in range(a.shape[0]):
            total += omega[i] * (a[i] - b[i]) * (a[i] - b[i])
        return total
    for i in range(a.shape[0]):
        total += (a[i] - b[i]) * (a[i] - b[i])
    return total / a.shape[0]


@compiled
def weighted_secant(a, b, values, others, omega, weighted):
    """sum omega (a - b)^2 and -sum omega (a - b) (values - others)."""
    uniform = 1.0 / a.shape[0]
    square = 0.0
    product = 0.0
    for i in range(a.shape[0]):
        move = (a[i] - b[i]) * (omega[i] if weighted else uniform)
        square += move * (a[i] - b[i])
        product -= move * (values[i] - others[i])
    return square, product


@compiled
def directional_slope(density, slopes, direction, omega, weighted):
    """sum_i omega_i q_i phi'_i direction_i."""
    total = 0.0
    if weighted:
        for i in range(density.shape[0]):
            total += omega[i] * density[i] * slopes[i] * direction[i]
        return total
    for i in range(density.shape[0]):
        total += density[i] * slopes[i] * direction[i]
    return total / density.shape[0]


@compiled
def move_margins(margins, direction, step, code, delta, y, new_margins, losses, slopes):
    """Margins moved along a direction, with the losses and derivatives there."""
    for i in range(margins.shape[0]):
        z = margins[i] + step * direction[i]
        new_margins[i] = z
        losses[i] = loss_value(code, delta, y[i], z)
        slopes[i] = loss_derivative(code, delta, y[i], z)


@compiled
def shift_statistics(code, delta, y, margins, shift, density, omega, weighted):
    """Derivatives of sum_i omega_i q_i phi(y_i, z_i + shift) in the shift, and a rounding scale.

    The first derivative is known up to the unit roundoff times the third number: the size of its
    terms, and that of the margins times the curvature.
    """
    first = 0.0
    second = 0.0
    rounding = 0.0
    uniform = 1.0 / margins.shape[0]
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
def product_many(X, W, out):
    """out = X W (+ the last row of W as intercepts when it has one more row than X has columns)."""
    n, d = X.shape
    k = W.shape[1]
    for i in range(n):
        for c in range(k):
            out[i, c] = W[d, c] if W.shape[0] > d else 0.0
        for j in range(d):
            x = X[i, j]
            if x != 0.0:
                for c in range(k):
                    out[i, c] += x * W[j, c]


@compiled
def adjoint_many(X, C, out):
    """out[:d] = X^T C, and the column sums of C below when out has room for them."""
    n, d = X.shape
    k = C.shape[1]
    for j in range(out.shape[0]):
        for c in range(k):
            out[j, c] = 0.0
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
    uniform = 1.0 / block.shape[0]
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
    """out = sum of c[r] [x_i 1] over i = rows[r], with the 1 when out has room for it."""
    d = X.shape[1]
    for j in range(out.shape[0]):
        out[j] = 0.0
    for r in range(rows.shape[0]):
        i = rows[r]
        cr = c[r]
        for j in range(d):
            out[j] += cr * X[i, j]
        if out.shape[0] > d:
            out[d] += cr


@compiled
def gram_diagonal_sparse(data, indices, indptr, h, out):
    """Diagonal of X^T diag(h) X for a CSR matrix without repeated entries."""
    for j in range(out.shape[0]):
        out[j] = 0.0
    for i in range(h.shape[0]):
        hi = h[i]
        if hi != 0.0:
            for k in range(indptr[i], indptr[i + 1]):
                out[indices[k]] += hi * data[k] * data[k]


@compiled
def gram_diagonal(X, h, out):
    """Diagonal of [X 1]^T diag(h) [X 1]."""
    n, d = X.shape
    for j in range(out.shape[0]):
        out[j] = 0.0
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
    uniform = 1.0 / n
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
    y, slopes, density, block, eta, omega, weighted, first_class, second_class, out
):
    """One (class, class) entry of the per-sample Hessian blocks, with the augmented term."""
    n = slopes.shape[0]
    uniform = 1.0 / n
    for i in range(n):
        h = 0.0
        ga = slopes[i, first_class]
        gb = slopes[i, second_class]
        if density[i] != 0.0:
            pa = ga + (1.0 if y[i] == first_class else 0.0)
            pb = gb + (1.0 if y[i] == second_class else 0.0)
            if first_class == second_class:
                # p (1 - p), with 1 - p taken from the slope where that is exact
                h = pa * (-ga if y[i] == first_class else 1.0 - pa)
            else:
                h = -pa * pb
            h *= density[i]
        if eta > 0.0 and block[i] >= 0:
            h += eta * ga * gb
        out[i] = h * (omega[i] if weighted else uniform)


# Proximal maps of the penalties, which the stochastic steps take: see sorel.penalties.


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
    if code == 0:
        for j in range(d):
            w[j] *= scale
    elif code == 1:
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

    scale[i] = omega_i q_i / p_i, and drift holds the snapshot's gradient. With `summed`, every
    iterate is added to `total`.
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
                change[b, c] = (slope[c] - slopes[i, c]) * scale[i] / batch
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
        blocks = pool_sorted(key, mass, level, first_of) if nu > 0.0 else 0
        for b in range(batch):
            rank = position[rows[first + b]]
            if nu > 0.0:
                weights[b] = pooled_density(rank, key, level, first_of, blocks)
            else:
                weights[b] = mass[rank]
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
            value = unit * sample_loss(code, delta, y[j], z)
            # A loss that is not a number has no place in the order: leave the divergence to w.
            if value == value:
                move_entry(key, order, position, j, value)


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
    n, d = X.shape
    z = np.empty(outputs)
    weights = np.empty(batch)
    probed = np.empty(batch)
    fresh = np.empty((batch, outputs))
    change = np.empty((batch, outputs))
    drift = np.empty((outputs, p))
    damping = 1.0 / (1.0 + dual_step * nu)
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
        for rank in range(n):
            key[rank] = (density[rank] + dual_step * (losses[rank] + nu)) * damping
        finite = True
        for b in range(batch):
            rank = position[probes[first + b]]
            key[rank] += dual_step * damping * n * (probed[b] - losses[rank]) / batch
            finite = finite and abs(key[rank]) < math.inf
        if not finite:
            # Diverged: no order to repair, and the caller sees it in w.
            return
        for b in range(batch):
            losses[position[probes[first + b]]] = probed[b]
        repair_order(key, order, position, losses)
        blocks = pool_sorted(key, mass, level, first_of)
        for b in range(blocks):
            start = first_of[b]
            for rank in range(start, first_of[b + 1]):
                density[rank] = key[rank] - key[start] - level[b]


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
