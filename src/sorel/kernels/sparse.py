"""Products with a sparse X, given by the three arrays of CSR.

Both kinds of indices are unsigned, so that numba drops its test for negative ones; columns stand in
any order inside a row. Full passes take a range of rows: indptr[start:stop + 1] with all of indices
and data, and vectors of length stop - start.
"""

from __future__ import annotations

import numpy as np

from sorel._compiled import compiled


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
def column_maxima_csr(indices, data, out):
    """The largest |x_ij| of each column, where it exceeds what `out` holds."""
    for k in range(data.shape[0]):
        out[indices[k]] = max(out[indices[k]], abs(data[k]))


@compiled
def row_squares_csr(indptr, data, out):
    """out = |x_i|^2."""
    for i in range(out.shape[0]):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            x = np.float64(data[e])
            total += x * x
        out[i] = total
