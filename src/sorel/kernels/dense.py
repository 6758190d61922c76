"""Products with a dense X, in float64 or float32; every accumulator is float64.

Loops come in two shapes: "rows" reads X in C order, "columns" reads X.T of a Fortran-ordered X,
itself in C order, so that neither order is ever copied.
"""

from __future__ import annotations

from sorel._compiled import compiled

# Rows treated together when X is read by columns: the slice of margins stays in the first cache.
_ROW_BLOCK = 1024

# Rows that the Gram matrix of few columns should take at a time. Not a power of 2, which would put
# the columns of a tile into the same places of the cache.
FEW_TILE = 136

# Columns up to which several rows are taken at once. Longer rows are where X is in the cache: up to
# so many numbers, or so many for long ones. Beyond, memory delivers a single row faster, but for
# very long ones.
_SHORT_ROW, _LONG_ROW, _VERY_LONG_ROW = 64, 300, 700
_IN_CACHE, _LONG_IN_CACHE = 1_200_000, 4_000_000

# Share of nonzero weights below which a branch that the processor cannot foresee costs less than
# the rows it saves.
_WORTH_SKIPPING = 0.3


@compiled(inline=True)
def _take_four(n, d):
    """Whether rows that are not short are taken four at a time."""
    return d >= _VERY_LONG_ROW or (d >= _LONG_ROW and n * d <= _LONG_IN_CACHE)


@compiled
def product_rows(X, w, intercept, margins):
    """margins = X w + intercept, X by rows."""
    n, d = X.shape
    start = 0
    if d <= _SHORT_ROW:
        # Two short rows keep the processor busy where one has it wait for the sum.
        start = n - n % 2
        for i in range(0, start, 2):
            z0, z1 = 0.0, 0.0
            for j in range(d):
                z0 += X[i, j] * w[j]
                z1 += X[i + 1, j] * w[j]
            margins[i], margins[i + 1] = z0 + intercept, z1 + intercept
    elif _take_four(n, d):
        # Four long rows share the loads of w.
        start = n - n % 4
        for i in range(0, start, 4):
            z0, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
            for j in range(d):
                z0 += X[i, j] * w[j]
                z1 += X[i + 1, j] * w[j]
                z2 += X[i + 2, j] * w[j]
                z3 += X[i + 3, j] * w[j]
            margins[i], margins[i + 1] = z0 + intercept, z1 + intercept
            margins[i + 2], margins[i + 3] = z2 + intercept, z3 + intercept
    for i in range(start, n):
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
    elif d <= _SHORT_ROW or n * d <= _IN_CACHE or _take_four(n, d):
        # Four rows share the loads and stores of the sum.
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
def gram_product_rows(X, h, v, intercept, out):
    """out += [X 1]^T diag(h) (X v + intercept), in one sweep: each row is in the cache by then."""
    n, d = X.shape
    total = 0.0
    start = n - n % 4
    for i in range(0, start, 4):
        z0, z1, z2, z3 = intercept, intercept, intercept, intercept
        for j in range(d):
            z0 += X[i, j] * v[j]
            z1 += X[i + 1, j] * v[j]
            z2 += X[i + 2, j] * v[j]
            z3 += X[i + 3, j] * v[j]
        z0, z1, z2, z3 = z0 * h[i], z1 * h[i + 1], z2 * h[i + 2], z3 * h[i + 3]
        total += (z0 + z1) + (z2 + z3)
        for j in range(d):
            out[j] += (z0 * X[i, j] + z1 * X[i + 1, j]) + (z2 * X[i + 2, j] + z3 * X[i + 3, j])
    for i in range(start, n):
        z = intercept
        for j in range(d):
            z += X[i, j] * v[j]
        z *= h[i]
        total += z
        for j in range(d):
            out[j] += z * X[i, j]
    if out.shape[0] > d:
        out[d] += total


@compiled
def column_sizes(X, out):
    """out[j] = max(out[j], |x_ij|) over all rows, X by rows."""
    n, d = X.shape
    # Four rows share the loads and stores of what is largest so far.
    start = n - n % 4
    for i in range(0, start, 4):
        for j in range(d):
            one, two = max(abs(X[i, j]), abs(X[i + 1, j])), max(abs(X[i + 2, j]), abs(X[i + 3, j]))
            out[j] = max(out[j], max(one, two))
    for i in range(start, n):
        for j in range(d):
            out[j] = max(out[j], abs(X[i, j]))


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
def add_row(margins, row):
    """margins += row, for short rows, each of which NumPy would turn to by itself."""
    n, k = margins.shape
    for i in range(n):
        for c in range(k):
            margins[i, c] += row[c]


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


@compiled
def gather_rows(X, rows, out):
    """out[r] = X[rows[r]]."""
    for r in range(rows.shape[0]):
        i = rows[r]
        for j in range(X.shape[1]):
            out[r, j] = X[i, j]
