"""Coordinate descent on a weighted least-squares problem with a separable penalty.

Rows are scaled by the roots of their weights, so that the residuals alone carry the weights. With
an intercept, which is minimised over all the time, residuals and columns are centred: column j is
x_j - means[j] * root, and the residual is `residual` + shift * root, so that a sparse column costs
its own entries alone.

A sweep over all columns is followed by some over those that are away from their rest. What a column
has left to move is seen on the way, and its share of the duality gap with it.
"""

from __future__ import annotations

from sorel._compiled import compiled

# Sweeps over what is away from its rest between two over all columns; and sweeps over which the
# rate is measured that tells whether the goal will be reached.
_PARTIAL = 4
_RATE = 10

# Rows and columns of a block that is transposed.
_BLOCK = 32


@compiled
def _minimum(old, slope, curvature, l1, l2, lower, upper):
    """The minimiser in one coordinate of the model, the ridge, l1 |.| and the bounds."""
    new = curvature * old - slope
    if new > l1:
        new -= l1
    elif new < -l1:
        new += l1
    else:
        new = 0.0
    return min(max(new / (curvature + l2), lower), upper)


@compiled
def _left(move, curvature, l2, lower, upper):
    """What a coordinate that wants to move so far adds to the duality gap, about."""
    pull = abs(move) * (curvature + l2)
    return pull * pull / (2.0 * l2) if l2 > 0.0 else pull * (upper - lower)


@compiled
def _hopeless(left, before, goal, sweeps, remaining):
    """Whether, at the rate of the last sweeps, so many more do not reach the goal."""
    rate = (left / before) ** (1.0 / sweeps)
    return rate >= 1.0 or left * rate**remaining > goal


@compiled
def scaled_transpose(X, root, out, squares, means):
    """out = (diag(root) X)^T in blocks that stay in the cache; its squares, and X^T root^2."""
    n, d = X.shape
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for first in range(0, d, _BLOCK):
            last = min(first + _BLOCK, d)
            for i in range(start, stop):
                r = root[i]
                for j in range(first, last):
                    out[j, i] = r * X[i, j]
            for j in range(first, last):
                square = mean = 0.0
                for i in range(start, stop):
                    square += out[j, i] * out[j, i]
                    mean += out[j, i] * root[i]
                squares[j] += square
                means[j] += mean


@compiled
def descend_dense(X, means, curvature, residual, w, l1, l2, lower, upper, sweeps, goal, shift):
    """Sweep over the columns, which are the rows of `X` here, until about the goal is left.

    Moves `w` and `residual`. Returns the shift, what is left of the gap and the sweeps it took.
    """
    d, n = X.shape
    left = before = -1.0
    partial = 0
    for sweep in range(sweeps):
        total = 0.0
        for j in range(d):
            if curvature[j] + l2 <= 0.0:
                continue
            old = w[j]
            if partial > 0 and (old == lower[j] or old == upper[j] or (l1 > 0.0 and old == 0.0)):
                continue
            slope = shift * means[j]
            for i in range(n):
                slope += X[j, i] * residual[i]
            new = _minimum(old, slope, curvature[j], l1, l2, lower[j], upper[j])
            if new == old:
                continue
            move = new - old
            total += _left(move, curvature[j], l2, lower[j], upper[j])
            w[j] = new
            shift -= move * means[j]
            for i in range(n):
                residual[i] += move * X[j, i]
        if partial == 0:
            left = total
            if total <= goal:
                return shift, left, sweep + 1
        partial = 0 if partial == _PARTIAL or (partial > 0 and total <= goal) else partial + 1
        if sweep % _RATE == 0:
            if before > 0.0 and _hopeless(total, before, goal, _RATE, sweeps - sweep):
                return shift, left, sweep + 1
            before = total
    return shift, left, sweeps


@compiled
def descend_sparse(
    indptr, indices, data, means, curvature, residual, w, l1, l2, lower, upper, sweeps, goal, shift
):
    """The same for columns given by the three arrays of CSC."""
    left = before = -1.0
    partial = 0
    for sweep in range(sweeps):
        total = 0.0
        for j in range(w.shape[0]):
            if curvature[j] + l2 <= 0.0:
                continue
            old = w[j]
            if partial > 0 and (old == lower[j] or old == upper[j] or (l1 > 0.0 and old == 0.0)):
                continue
            slope = shift * means[j]
            for e in range(indptr[j], indptr[j + 1]):
                slope += data[e] * residual[indices[e]]
            new = _minimum(old, slope, curvature[j], l1, l2, lower[j], upper[j])
            if new == old:
                continue
            move = new - old
            total += _left(move, curvature[j], l2, lower[j], upper[j])
            w[j] = new
            shift -= move * means[j]
            for e in range(indptr[j], indptr[j + 1]):
                residual[indices[e]] += move * data[e]
        if partial == 0:
            left = total
            if total <= goal:
                return shift, left, sweep + 1
        partial = 0 if partial == _PARTIAL or (partial > 0 and total <= goal) else partial + 1
        if sweep % _RATE == 0:
            if before > 0.0 and _hopeless(total, before, goal, _RATE, sweeps - sweep):
                return shift, left, sweep + 1
            before = total
    return shift, left, sweeps
