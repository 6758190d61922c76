"""The quadratic model under an L2 penalty: one Cholesky solve, and what singular matrices take."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel.kernels.cholesky import minimize_few

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)

# Up to this many parameters a compiled Cholesky solve beats the calls into LAPACK.
FEW = 24

# Curvature that is added where the penalty has none, relative to what is there.
_RIDGE = 1e-12

NOT_FINITE = (
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
        had no curvature at all, and borrowed that of the stiffest coordinate.

    Examples
    --------
    >>> from sorel.models import QuadraticInfo
    >>> QuadraticInfo(n_iter=1, kkt=1e-16, shift=0.0).shift
    0.0
    """

    n_iter: int
    kkt: float
    shift: float


def step_of_few(
    H: Array, gradient: Array, w: Array, l2: float, n_penalized: int
) -> tuple[Array, float, float] | None:
    """The step from w under an L2 penalty where a handful of parameters makes that one call.

    Parameters
    ----------
    H, gradient, w, n_penalized
        As for :func:`~sorel.models.minimize_quadratic`, in C order.
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
    >>> from sorel.models import step_of_few
    >>> step_of_few(np.array([[3.0]]), np.array([-4.0]), np.zeros(1), 1.0, 1)
    (array([1.]), 3.5, 2.0)
    """
    p = H.shape[0]
    if p > FEW:
        return None
    work = np.empty((p + 4, p))
    descent, decrease = minimize_few(H, gradient, w, l2, n_penalized, work, work[p + 3])
    return None if math.isnan(descent) else (work[p + 1], descent, decrease)


def cholesky(A: Array) -> tuple[Array, float]:
    """Cholesky factor of the symmetric matrix `A` (C order), and the relative shift it took.

    Cholesky's errors do not depend on how the variables are scaled, so `A` is not scaled before;
    a shift has to be scaled, and is a multiple of the diagonal. Pivots at rounding level count as
    a failure: their sign is an accident, and a solve would divide by them.
    """
    # The transpose of a C-ordered array is what LAPACK wants, and A is symmetric: no copies.
    factor, failed = dpotrf(A.T, lower=1, clean=0)
    if not failed and _well_factored(factor, A, 4.0 * _EPS):
        return factor, 0.0
    p = A.shape[0]
    diagonal = A.diagonal()
    if not np.isfinite(A).all():
        raise np.linalg.LinAlgError(NOT_FINITE)
    shift = 8.0 * p * _EPS
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


def minimize_smooth(
    H: Array, gradient: Array, w: Array, l2: float, n_penalized: int
) -> tuple[Array, QuadraticInfo]:
    """Solve (H + l2 I) step = -(gradient + l2 w), with the l2 terms on the penalised part only."""
    p = H.shape[0]
    if p <= FEW:
        u = np.empty_like(w)
        work = np.empty((p + 3, p))
        numbers = minimize_few(np.ascontiguousarray(H), gradient, w, l2, n_penalized, work, u)
        if not math.isnan(numbers[0]):
            return u, QuadraticInfo(1, 0.0, 0.0)
    A = np.array(H, dtype=np.float64, order="C")
    slope = np.array(gradient, dtype=np.float64)
    lent = add_penalty(A, slope, w, l2, n_penalized)
    factor, shift = cholesky(A)
    step = dpotrs(factor, -slope, lower=1)[0]
    residual = slope + A @ step
    if not np.isfinite(residual).all():
        raise np.linalg.LinAlgError(NOT_FINITE)
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


def add_penalty(A: Array, slope: Array, w: Array, l2: float, n_penalized: int) -> float:
    """Add the curvature and the slope at `w` of ``l2/2 ||.||^2`` to `A` and `slope`, in place.

    Without l2 the model may have many minimisers. A ridge around w, far too weak to be seen where
    there is curvature, then chooses one of the nearest. Returns 1 if an intercept had to be lent
    curvature and 0 if not.
    """
    diagonal = diagonal_of(A)
    own = diagonal[:n_penalized]
    own += l2
    slope[:n_penalized] += l2 * w[:n_penalized]
    largest = max(float(diagonal.max()), 0.0)
    if l2 == 0.0:
        # Where there is no curvature at all, the slope alone sets a scale.
        steepest = float(np.abs(slope[:n_penalized]).max())
        least = _RIDGE * largest if largest > 0.0 else max(steepest, _TINY)
        own += _RIDGE * np.maximum(own, least)
    return lend(diagonal[n_penalized:], largest)


def diagonal_of(A: Array) -> Array:
    """The diagonal of a matrix in C order, to be written to."""
    return A.reshape(-1)[:: A.shape[0] + 1]


def cover_rounding(A: Array) -> None:
    """Raise a diagonal with negative entries until rounding cannot have made it indefinite.

    Where samples that agree tie, what they curve is a difference of equal terms, of which rounding
    leaves numbers of either sign, and no l2 covers them. A negative entry tells how large they are;
    a diagonal that outweighs its rows is enough in any case.
    """
    diagonal = diagonal_of(A)
    noise = -float(diagonal.min())
    beside = np.sum(np.abs(A), axis=1) - np.abs(diagonal)
    np.maximum(diagonal, 0.0, out=diagonal)
    diagonal += np.minimum(beside, 2.0 * len(A) * noise)


def lend(curvature: Array, largest: float) -> float:
    """Lend curvature to intercepts, whose entries of the diagonal these are, where they have none.

    The model has no minimiser along an intercept without curvature (saturated losses). It is lent
    the largest curvature there is, which makes its move a gradient step. Returns 1 if that
    happened and 0 if not.
    """
    flat = curvature <= _EPS * _EPS * largest
    if not flat.any():
        return 0.0
    curvature[flat] = largest if largest > 0.0 else 1.0
    return 1.0


def _well_factored(factor: Array, A: Array, threshold: float) -> bool:
    """Whether every squared pivot exceeds `threshold` times its diagonal entry (NaN does not)."""
    return bool((factor.diagonal() ** 2 > threshold * A.diagonal()).all())


def _relative_size(residual: Array, slope: Array, step: Array, A: Array) -> float:
    """Return the largest entry of ``residual = slope + A step`` relative to a bound on its terms.

    In a positive semidefinite matrix ``|A_jk| <= sqrt(A_jj A_kk)``, which bounds them in O(p).
    """
    root = np.sqrt(np.maximum(A.diagonal(), 0.0))
    size = np.abs(slope) + root * float(root @ np.abs(step))
    # A row without any term has no residual either.
    return float((np.abs(residual) / np.maximum(size, _TINY)).max())
