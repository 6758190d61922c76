"""The quadratic model under a budget: bounds, one sum, and kinks where weights stood before.

min_u  gradient.(u - w) + 1/2 (u - w)^T H (u - w) + g(u[:n_penalized]),    g a `Budget`
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sorel.models import Model, minimize
from sorel.penalties.budget import Budget
from sorel.quadratic import _NOT_FINITE, QuadraticInfo, _add_penalty

__all__ = ["minimize_budget"]

Array = NDArray[np.float64]

# What is no further from the domain of the penalty is in it, but for rounding.
_FEASIBLE = 1e-12


def minimize_budget(
    H: Array, gradient: Array, w: Array, penalty: Budget, n_penalized: int
) -> tuple[Array, QuadraticInfo]:
    """Minimise a quadratic model around `w` plus a budget penalty on its leading entries.

    Parameters and results are those of :func:`sorel.quadratic.minimize_quadratic`.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.budgeted import minimize_budget
    >>> from sorel.penalties import Budget
    >>> H, slope = np.diag([1.0, 1.0, 2.0]), np.array([0.0, 0.0, -3.0])
    >>> u, info = minimize_budget(H, slope, np.zeros(3), Budget(upper=0.5), 3)
    >>> u
    array([0.25, 0.25, 0.5 ])
    """
    p, n = len(w), n_penalized
    if not (np.isfinite(H).all() and np.isfinite(gradient).all() and np.isfinite(w).all()):
        raise np.linalg.LinAlgError(_NOT_FINITE)
    kink, cost, lower, upper = np.zeros(p), np.zeros(p), np.full(p, -math.inf), np.full(p, math.inf)
    kink[:n], cost[:n], lower[:n], upper[:n] = penalty.pieces(n)
    row = np.zeros((1, p))
    row[0, :n] = 1.0
    # Bounds that differ by rounding leave a point, and an interior-point code no interior.
    upper = np.where(upper - lower < _FEASIBLE * np.maximum(1.0, np.abs(lower)), lower, upper)
    A, slope = np.array(H, dtype=np.float64, order="C"), np.array(gradient, dtype=np.float64)
    lent = _add_penalty(A, slope, w, penalty.l2, n)
    start = np.array(w, dtype=np.float64)
    off = abs(float(w[:n].sum()) - penalty.budget)
    if off > _FEASIBLE or (w < lower).any() or (w > upper).any():
        start[:n] = penalty.project(start[:n])
        start = np.clip(start, lower, upper)
    sums = np.array([penalty.budget])
    found = minimize(Model(A, slope, w, kink, cost, lower, upper, row, sums, np.zeros(p)), start)
    return found.x, QuadraticInfo(found.factors, found.kkt, lent)
