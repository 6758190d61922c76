"""The small quadratic models of proximal Newton steps (Lee, Sun and Saunders 2014).

    min_u  gradient.(u - w) + 1/2 (u - w)^T H (u - w) + g(u[:n_penalized])

An L2 penalty takes one Cholesky solve. Bounds, kinks and sums are one model with an active set
(`models/constrained.py`). Of a penalty that is not one of the package's own only the proximal map
is known, and `proximal.py` serves it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel._core import minimize_few
from sorel._lib.floats import EPS, TINY
from sorel.engines.matrix import FEW_COLUMNS
from sorel.models.constrained import RIDGE, Model, minimize
from sorel.models.proximal import ProximalModel
from sorel.problem.penalties import Penalty
from sorel.problem.penalties.builtin import FEASIBILITY, Declared

Array = NDArray[np.float64]


_NOT_FINITE = (
    "The curvature, the gradient or the centre of the model has entries that are not finite."
)


class QuadraticInfo(NamedTuple):
    """How a quadratic subproblem was solved.

    Attributes
    ----------
    n_iter : int
        Cholesky solves.
    kkt : float
        Largest violation of the optimality conditions, relative to the size of the terms that
        cancel in them; some units of 1e-16 when solved to machine precision.
    shift : float
        Largest multiple of the diagonal that had to be added for a Cholesky factorisation to
        exist; zero unless the curvature is singular to working precision. One where an intercept
        had no curvature at all, and got that of the stiffest coordinate.

    Examples
    --------
    >>> from sorel.models.quadratic import QuadraticInfo
    >>> QuadraticInfo(n_iter=1, kkt=1e-16, shift=0.0).shift
    0.0
    """

    n_iter: int
    kkt: float
    shift: float


def minimize_quadratic(
    H: Array, gradient: Array, w: Array, penalty: Penalty, n_penalized: int, n_outputs: int = 1
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
        Number of Cholesky solves, optimality residual and diagonal shift.

    Raises
    ------
    numpy.linalg.LinAlgError
        If an input has entries that are not finite, or H is far from positive semidefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import NonNegative
    >>> from sorel.models.quadratic import minimize_quadratic
    >>> H = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> u, info = minimize_quadratic(H, np.array([-3.0, 3.0]), np.zeros(2), NonNegative(1.0), 2)
    >>> u
    array([1., 0.])
    """
    if penalty.quadratic:
        return _minimize_smooth(H, gradient, w, penalty.l2, n_penalized)
    if not (np.isfinite(H).all() and np.isfinite(gradient).all() and np.isfinite(w).all()):
        raise np.linalg.LinAlgError(_NOT_FINITE)
    if isinstance(penalty, Declared) and penalty.declared:
        return _minimize_constrained(H, gradient, w, penalty, n_penalized, n_outputs)
    return _minimize_proximal(H, gradient, w, penalty, n_penalized, n_outputs)


def _minimize_constrained(
    H: Array, gradient: Array, w: Array, penalty: Declared, n_penalized: int, n_outputs: int
) -> tuple[Array, QuadraticInfo]:
    """State bounds, kinks and sums of one of the package's penalties, and minimise."""
    p, n = len(w), n_penalized
    terms = penalty.terms((n // n_outputs,))
    parts = np.zeros((4, p))
    parts[2, n:], parts[3, n:] = -math.inf, math.inf
    for own, part in zip(parts, terms[:4], strict=True):
        own[:n] = np.repeat(part, n_outputs) if np.ndim(part) else part
    kink, cost, lower, upper = parts
    rows, sums = np.zeros((0, p)), np.zeros(0)
    if terms.total is not None:
        rows, sums = np.zeros((n_outputs, p)), np.full(n_outputs, terms.total)
        for k in range(n_outputs):
            rows[k, k:n:n_outputs] = 1.0
        # Upper bounds that follow from the sum would only hold what it holds already.
        low, high = (bound[:n].reshape(-1, n_outputs) for bound in (lower, upper))
        high[high >= terms.total - low.sum(axis=0) + low] = math.inf
    # Bounds that differ by rounding leave a point, and an interior-point code no interior.
    size = np.maximum(np.abs(lower), abs(terms.total or 0.0))
    upper = np.where(upper - lower < FEASIBILITY * size, lower, upper)

    A, slope = np.array(H, dtype=np.float64, order="C"), np.array(gradient, dtype=np.float64)
    if penalty.l2 == 0.0 and not A.diagonal().min() >= 0.0:
        _cover_rounding(A)
    lent = _add_penalty(A, slope, w, penalty.l2, n)
    shape = (n,) if n_outputs == 1 else (n // n_outputs, n_outputs)

    def inside(u: Array) -> Array:
        u = np.array(u, dtype=np.float64)
        u[:n] = penalty.project(u[:n].reshape(shape)).ravel()
        return np.clip(u, lower, upper)

    off = len(rows) and np.abs(rows @ w - sums).max() > FEASIBILITY
    start = inside(w) if off or (w < lower).any() or (w > upper).any() else w
    found = minimize(Model(A, slope, w, kink, cost, lower, upper, rows, sums), start)
    u = found.x if found.solved else inside(found.x)
    return u, QuadraticInfo(found.factors, found.kkt, lent)


def step_of_few(
    H: Array, gradient: Array, w: Array, l2: float, n_penalized: int
) -> tuple[Array, float, float] | None:
    """The step from w under an L2 penalty where a handful of parameters makes that one call.

    Parameters
    ----------
    H, gradient, w, n_penalized
        As for :func:`minimize_quadratic`, in C order.
    l2 : float
        The penalty is l2/2 ||u||^2 of the leading entries.

    Returns
    -------
    tuple or None
        The step u - w, the decrease of model and penalty without the curvature H, and the decrease.
        None where the parameters are many, or the matrix is singular to working precision.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.models.quadratic import step_of_few
    >>> step_of_few(np.array([[3.0]]), np.array([-4.0]), np.zeros(1), 1.0, 1)
    (array([1.]), 3.5, 2.0)
    """
    p = H.shape[0]
    if p > FEW_COLUMNS:
        return None
    work = np.empty((p + 4, p))
    descent, decrease = minimize_few(H, gradient, w, l2, n_penalized, work, work[p + 3])
    return None if math.isnan(descent) else (work[p + 1], descent, decrease)


def _factor(A: Array) -> tuple[Array, float]:
    """Cholesky factor of the symmetric matrix `A` (C order), and the relative shift it took.

    Cholesky's errors do not depend on how the variables are scaled, so `A` is not scaled before;
    a shift has to be scaled, and is a multiple of the diagonal. Pivots at rounding level count as
    a failure: their sign is an accident, and a solve would divide by them.
    """
    # The transpose of a C-ordered array is what LAPACK wants, and A is symmetric: no copies.
    factor, failed = dpotrf(A.T, lower=1, clean=0)
    p, diagonal = A.shape[0], A.diagonal()
    if not failed and (factor.diagonal() ** 2 > 4.0 * EPS * diagonal).all():
        return factor, 0.0
    if not np.isfinite(A).all():
        raise np.linalg.LinAlgError(_NOT_FINITE)
    shift = 8.0 * p * EPS
    while shift < 1.0:
        shifted = A.copy()
        shifted.ravel()[:: p + 1] = (1.0 + shift) * diagonal
        factor, failed = dpotrf(shifted.T, lower=1, clean=0, overwrite_a=1)
        if not failed and np.isfinite(factor.diagonal()).all():
            return factor, shift
        shift *= 8.0
    raise np.linalg.LinAlgError(
        f"The {p} x {p} curvature H is not positive semidefinite: a Cholesky factorisation fails "
        f"even with twice its diagonal (smallest diagonal entry {diagonal.min():g})."
    )


def _minimize_smooth(
    H: Array, gradient: Array, w: Array, l2: float, n_penalized: int
) -> tuple[Array, QuadraticInfo]:
    """Solve (H + l2 I) step = -(gradient + l2 w), with the l2 terms on the penalised part only."""
    A = np.array(H, dtype=np.float64, order="C")
    slope = np.array(gradient, dtype=np.float64)
    lent = _add_penalty(A, slope, w, l2, n_penalized)
    factor, shift = _factor(A)
    step = dpotrs(factor, -slope, lower=1)[0]
    residual = slope + A @ step
    if not np.isfinite(residual).all():
        raise np.linalg.LinAlgError(_NOT_FINITE)
    kkt = _relative_size(residual, slope, step, A)
    # One refinement takes the residual to rounding level. A shifted factor solves another
    # system, and more of them are needed to work off the difference.
    for _ in range(1 if shift == 0.0 else 8):
        refined = step - dpotrs(factor, residual, lower=1)[0]
        residual = slope + A @ refined
        refined_kkt = _relative_size(residual, slope, refined, A)
        if not refined_kkt < kkt:
            break
        step, kkt = refined, refined_kkt
    return w + step, QuadraticInfo(1, kkt, max(shift, lent))


def _add_penalty(A: Array, slope: Array, w: Array, l2: float, n_penalized: int) -> float:
    """Add the curvature and the slope at `w` of ``l2/2 ||.||^2`` to `A` and `slope`, in place.

    Without l2 the model may have many minimisers. A ridge around w, far too weak to be seen where
    there is curvature, then chooses one of the nearest. Returns 1 if an intercept had to be lent
    curvature and 0 if not.
    """
    diagonal = _diagonal(A)
    own = diagonal[:n_penalized]
    own += l2
    slope[:n_penalized] += l2 * w[:n_penalized]
    largest = max(float(diagonal.max()), 0.0)
    if l2 == 0.0:
        # Where there is no curvature at all, the slope alone sets a scale.
        steepest = float(np.abs(slope[:n_penalized]).max())
        least = RIDGE * largest if largest > 0.0 else max(steepest, TINY)
        own += RIDGE * np.maximum(own, least)
    return _lend(diagonal[n_penalized:], largest)


def _diagonal(A: Array) -> Array:
    """The diagonal of a matrix in C order, to be written to."""
    return A.reshape(-1)[:: A.shape[0] + 1]


def _cover_rounding(A: Array) -> None:
    """Raise a diagonal with negative entries until rounding cannot have made it indefinite.

    Where samples that agree tie, what they curve is a difference of equal terms, of which rounding
    leaves numbers of either sign, and no l2 covers them. A negative entry tells how large they are;
    a diagonal that outweighs its rows is enough in any case.
    """
    diagonal = _diagonal(A)
    noise = -float(diagonal.min())
    beside = np.sum(np.abs(A), axis=1) - np.abs(diagonal)
    np.maximum(diagonal, 0.0, out=diagonal)
    diagonal += np.minimum(beside, 2.0 * len(A) * noise)


def _lend(curvature: Array, largest: float) -> float:
    """Lend curvature to intercepts, whose entries of the diagonal these are, where they have none.

    The model has no minimiser along an intercept without curvature (saturated losses). It is lent
    the largest curvature there is, which makes its move a gradient step. Returns 1 if that
    happened and 0 if not.
    """
    flat = curvature <= EPS * EPS * largest
    if not flat.any():
        return 0.0
    curvature[flat] = largest if largest > 0.0 else 1.0
    return 1.0


def _relative_size(residual: Array, slope: Array, step: Array, A: Array) -> float:
    """Return the largest entry of ``residual = slope + A step`` relative to a bound on its terms.

    In a positive semidefinite matrix ``|A_jk| <= sqrt(A_jj A_kk)``, which bounds them in O(p).
    """
    root = np.sqrt(np.maximum(A.diagonal(), 0.0))
    size = np.abs(slope) + root * float(root @ np.abs(step))
    # A row without any term has no residual either.
    return float((np.abs(residual) / np.maximum(size, TINY)).max())


def _minimize_proximal(
    H: Array, gradient: Array, w: Array, penalty: Penalty, n_penalized: int, n_outputs: int
) -> tuple[Array, QuadraticInfo]:
    """Minimise over the intercepts in closed form, and over the rest by proximal maps."""
    n = n_penalized
    A, slope, shift = H[:n, :n], gradient[:n], 0.0
    shape = (n,) if n_outputs == 1 else (n // n_outputs, n_outputs)
    if len(w) > n:
        own = np.array(H[n:, n:], dtype=np.float64, order="C")
        lent = _lend(_diagonal(own), float(H.diagonal().max()))
        factor, shift = _factor(own)
        shift = max(shift, lent)
        follows = -dpotrs(factor, np.c_[H[n:, :n], gradient[n:]], lower=1)[0]
        A, slope = A + H[:n, n:] @ follows[:, :n], slope + H[:n, n:] @ follows[:, n]
    model = ProximalModel(A, slope, w[:n], penalty, shape)
    u = np.array(w, dtype=np.float64)
    u[:n] = model.minimize()
    if len(w) > n:
        u[n:] += follows @ np.r_[u[:n] - w[:n], 1.0]
    return u, QuadraticInfo(model.n_iter, model.kkt, shift)
