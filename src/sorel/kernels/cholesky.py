"""The minimum of a quadratic of a handful of parameters, where calls cost more than arithmetic."""

from __future__ import annotations

import math

import numpy as np

from sorel._compiled import compiled

_EPS = float(np.finfo(np.float64).eps)


@compiled(inline=True)
def minimize_few(H, gradient, w, l2, n_penalized, factor, u):
    """u = w + step with (H + l2 I) step = -(gradient + l2 w), l2 on the penalised part only.

    `factor` has three rows more than H, for vectors: arrays that are made here would take longer to
    compile than all the rest. Afterwards its row p + 1 is the step. Returns the decrease of the
    quadratic and the penalty with the curvature H left out, and with it. Both are NaN when a pivot
    is at rounding level: such systems are left to the careful path.
    """
    p = gradient.shape[0]
    slope, step, residual = factor[p], factor[p + 1], factor[p + 2]
    for i in range(p):
        slope[i] = gradient[i] + (l2 * w[i] if i < n_penalized else 0.0)
        residual[i] = slope[i]
        step[i] = 0.0
        for j in range(i + 1):
            total = H[i, j]
            if i == j and i < n_penalized:
                total += l2
            diagonal = total
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i > j:
                factor[i, j] = total / factor[j, j]
            elif total > 4.0 * _EPS * diagonal:
                factor[i, i] = math.sqrt(total)
            else:
                return np.nan, np.nan
    # The second round is the refinement, which takes the residual to rounding level.
    for _ in range(2):
        for i in range(p):
            total = residual[i]
            for k in range(i):
                total -= factor[i, k] * residual[k]
            residual[i] = total / factor[i, i]
        for i in range(p - 1, -1, -1):
            total = residual[i]
            for k in range(i + 1, p):
                total -= factor[k, i] * residual[k]
            residual[i] = total / factor[i, i]
            step[i] -= residual[i]
        for i in range(p):
            total = slope[i] + (l2 * step[i] if i < n_penalized else 0.0)
            for k in range(p):
                total += H[i, k] * step[k]
            residual[i] = total
    slide = 0.0
    square = 0.0
    bend = 0.0
    finite = True
    for i in range(p):
        u[i] = w[i] + step[i]
        # isfinite() is x - x == 0 to the compiler, which reordering makes true for NaN.
        finite = finite and abs(u[i]) < np.inf
        slide += slope[i] * step[i]
        square += step[i] * step[i] if i < n_penalized else 0.0
        # The residual is what is left of slope + (H + l2 I) step.
        bend += step[i] * (residual[i] - slope[i])
    if not finite:
        return np.nan, np.nan
    return -slide - 0.5 * l2 * square, -slide - 0.5 * bend
