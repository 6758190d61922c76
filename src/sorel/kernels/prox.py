"""Proximal maps of the penalties, which the stochastic steps take: see :mod:`sorel.penalties`."""

from __future__ import annotations

import math

from sorel._compiled import compiled

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
    elif code == SIMPLEX:
        top = w[0]
        for j in range(1, d):
            top = max(top, w[j])
        for j in range(d):
            w[j] = (w[j] - top) * scale
        # Entries below the threshold of those kept are zero: leave them out until none is left to
        # leave out. A sort would take longer, and far longer to compile. Rounding may bring an
        # entry at the threshold back, which is no reason to go on.
        theta, kept, count = -math.inf, d + 2, d + 1
        while count < kept:
            kept, count, total = count, 0, -1.0
            for j in range(d):
                if w[j] > theta:
                    total += w[j]
                    count += 1
            theta = total / count
        for j in range(d):
            w[j] = max(w[j] - theta, 0.0)
    else:
        raise ValueError("no proximal map is known under this code of a penalty")


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
