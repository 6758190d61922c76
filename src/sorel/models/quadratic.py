"""A penalty's quadratic model, and who minimises it."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg.lapack import dpotrs

from sorel.models.constrained import Model, minimize
from sorel.models.smooth import (
    NOT_FINITE,
    Array,
    QuadraticInfo,
    add_penalty,
    cholesky,
    cover_rounding,
    diagonal_of,
    lend,
    minimize_smooth,
)
from sorel.penalties import SIMPLEX, Budget, Penalty
from sorel.proximal import ProximalModel

# Curvature that intercepts of several outputs are lent, relative to theirs: what all of them have
# in common changes no loss.
_RIDGE = 1e-12

# What is no further from the domain of a penalty is in it, but for rounding.
_FEASIBLE = 1e-12


def minimize_quadratic(
    H: Array,
    gradient: Array,
    w: Array,
    penalty: Penalty,
    n_penalized: int,
    n_outputs: int = 1,
    rough: float = 0.0,
) -> tuple[Array, QuadraticInfo]:
    """Minimise a quadratic model around `w` plus a penalty on its leading entries.

    Parameters
    ----------
    H : array of shape (p, p)
        Symmetric positive semidefinite curvature, without that of the penalty. Not modified.
    gradient : array of shape (p,)
        Gradient of the model at `w`, without that of the penalty.
    w : array of shape (p,)
        The point around which the model is built. It may lie outside the penalty's domain.
    penalty : Penalty
        Penalty on the first `n_penalized` entries.
    n_penalized : int
        Number of coefficients; the entries after them (intercepts) are free and unpenalised.
    n_outputs : int, default 1
        Number K of outputs. The coefficients are then a (d, K) array in C order, so that output
        k owns the entries ``u[k:n_penalized:K]``.

    Returns
    -------
    u : array of shape (p,)
        The minimiser.
    info : QuadraticInfo
        Number of factorisations, optimality residual and diagonal shift.

    Raises
    ------
    numpy.linalg.LinAlgError
        If an input has entries that are not finite, or H is far from positive semidefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import NonNegative
    >>> from sorel.models import minimize_quadratic
    >>> H = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> u, info = minimize_quadratic(H, np.array([-3.0, 3.0]), np.zeros(2), NonNegative(1.0), 2)
    >>> u
    array([1., 0.])
    """
    if penalty.quadratic:
        return minimize_smooth(H, gradient, w, penalty.l2, n_penalized)
    if not (np.isfinite(H).all() and np.isfinite(gradient).all() and np.isfinite(w).all()):
        raise np.linalg.LinAlgError(NOT_FINITE)
    if penalty.compiled or (type(penalty) is Budget and n_outputs == 1):
        return _minimize_constrained(H, gradient, w, penalty, n_penalized, n_outputs, rough)
    return _minimize_proximal(H, gradient, w, penalty, n_penalized, n_outputs)


def _minimize_constrained(
    H: Array,
    gradient: Array,
    w: Array,
    penalty: Penalty,
    n_penalized: int,
    n_outputs: int,
    rough: float,
) -> tuple[Array, QuadraticInfo]:
    """State bounds, kinks and sums of one of the package's penalties, and minimise."""
    p, n = len(w), n_penalized
    kink, cost, lower, upper = np.zeros(p), np.zeros(p), np.full(p, -math.inf), np.full(p, math.inf)
    rows, sums = np.zeros((0, p)), np.zeros(0)
    if isinstance(penalty, Budget):
        kink[:n], cost[:n], lower[:n], upper[:n] = penalty.pieces(n)
        rows, sums = np.zeros((1, p)), np.array([penalty.budget])
        rows[0, :n] = 1.0
    else:
        code, _, cost[:n], low, high = penalty.kernel(n // n_outputs)
        lower[:n] = np.repeat(low, n_outputs)
        if code == SIMPLEX:
            # The upper bounds follow from the sums.
            rows, sums = np.zeros((n_outputs, p)), np.ones(n_outputs)
            rows[np.arange(n) % n_outputs, np.arange(n)] = 1.0
        else:
            upper[:n] = np.repeat(high, n_outputs)

    # Bounds that differ by rounding leave a point, and an interior-point code no interior.
    upper = np.where(upper - lower < _FEASIBLE * np.maximum(1.0, np.abs(lower)), lower, upper)

    A = np.array(H, dtype=np.float64, order="C")
    if penalty.l2 == 0.0 and not A.diagonal().min() >= 0.0:
        cover_rounding(A)
    slope = np.array(gradient, dtype=np.float64)
    lent = add_penalty(A, slope, w, penalty.l2, n)

    start = np.array(w, dtype=np.float64)
    off = np.abs(rows @ w - sums).max(initial=0.0)
    if off > _FEASIBLE or (w < lower).any() or (w > upper).any():
        shape = (n,) if n_outputs == 1 else (n // n_outputs, n_outputs)
        start[:n] = penalty.project(start[:n].reshape(shape)).ravel()
        start = np.clip(start, lower, upper)
    ridge = np.zeros(p)
    if n_outputs > 1:
        ridge[n:] = _RIDGE * A.diagonal()[n:]
    model = Model(A, slope, w, kink, cost, lower, upper, rows, sums, ridge)
    found = minimize(model, start, rough)
    return found.x, QuadraticInfo(found.factors, found.kkt, lent)


def _minimize_proximal(
    H: Array, gradient: Array, w: Array, penalty: Penalty, n_penalized: int, n_outputs: int
) -> tuple[Array, QuadraticInfo]:
    """Minimise over the intercepts in closed form, and over the rest by proximal maps."""
    n = n_penalized
    A, slope, shift = H[:n, :n], gradient[:n], 0.0
    shape = (n,) if n_outputs == 1 else (n // n_outputs, n_outputs)
    if len(w) > n:
        own = np.array(H[n:, n:], dtype=np.float64, order="C")
        lent = lend(diagonal_of(own), float(H.diagonal().max()))
        factor, shift = cholesky(own)
        shift = max(shift, lent)
        follows = -dpotrs(factor, np.c_[H[n:, :n], gradient[n:]], lower=1)[0]
        A, slope = A + H[:n, n:] @ follows[:, :n], slope + H[:n, n:] @ follows[:, n]
    model = ProximalModel(A, slope, w[:n], penalty, shape)
    u = np.array(w, dtype=np.float64)
    u[:n] = model.minimize()
    if len(w) > n:
        u[n:] += follows @ np.r_[u[:n] - w[:n], 1.0]
    return u, QuadraticInfo(model.n_iter, model.kkt, shift)
