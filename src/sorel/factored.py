"""The penalised quadratic model where the curvature is known by its factor.

    min_u  gradient.(u - w) + 1/2 |M (u - w)|^2 + g(u[:n_penalized])

With fewer rows than columns, and columns of 1e7, the matrix M^T M has lost an l2 of 1e-3 to
rounding before it is added, and with it every direction that M does not see. The singular values of
M keep both apart: with D the curvature of the penalty and M D^-1/2 = U S V^T,

    (D + M^T M)^-1 = D^-1/2 [ (I - V V^T) + V (1 + S^2)^-1 V^T ] D^-1/2.

The same goes for columns that agree in all but their last digits: a direction that M sees 1e9 times
more faintly than others has a curvature 1e18 times less, and none in the matrix. Without l2, those
that M does not see at all are lent some.

An active-set method, which begins on the face that the plain model has found, goes from face to
face.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf

from sorel.penalties import SIMPLEX, Penalty

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_TINY = 1e-290

# Parameters, and rows times parameters, up to which the method is worth its time. The share of l2
# that rounding errors of the matrix may have, and the share of l2 w that those of the gradient may
# have.
_MOST_PARAMETERS, _MOST_NUMBERS, _MOST_ROUNDING, _MOST_NOISE = 150, 1_000_000, 1e-4, 1e-2

# A direction in which columns that are scaled to length 1 have less than the first share of their
# length is lost to a matrix, or about that. Below the second share it is taken for none: slopes
# along it are rounding, or lead to a bound. Of several outputs small probabilities make directions
# as faint, and these tell nothing of the way to go. Without l2, what is not seen is lent some: the
# last share of what the faintest of the others has.
_FAINT, _INVISIBLE, _INVISIBLE_OF_SEVERAL, _LENT = 3e-5, 1e-13, 1e-11, 1e-2

# The length of a column counts for no less than this share of the longest.
_LEAST_LENGTH = 1e-6

# Curvature that is lent to an intercept: this share of what the largest coefficient, moved instead,
# would have.
_RIDGE = 1e-4

# A face is settled when a step is no larger than this share of the parameters.
_SETTLED = 1e-8

# A face is settled after so many full steps as well.
_FULL_STEPS = 3

# What coefficients on the simplex may miss their sum by.
_ON_SIMPLEX = 1e-12

# Times that a linear system is solved, for what the times before have left.
_REFINEMENTS = 3

# Steps and changes of the face, for each parameter, and for all.
_FACES, _MORE_FACES = 8, 40

# Multipliers count as wrong beyond this multiple of the rounding errors of a slope.
_TOLERANCE = 16.0 * _EPS


def loses_penalty(hessian: Array, gradient: Array, w: Array, l2: float, n_rows: int) -> bool:
    """Whether a matrix from that few rows has too few digits for the curvature of the penalty.

    Far from the minimum the gradient has too few of them as well, and nothing is to be gained.
    """
    p = len(hessian)
    if not l2 > 0.0 or n_rows > p or p > _MOST_PARAMETERS:
        return False
    lost = _EPS * float(hessian.diagonal().max()) > _MOST_ROUNDING * l2
    return lost and _EPS * float(np.abs(gradient).max()) < _MOST_NOISE * l2 * float(np.abs(w).max())


def loses_curvature(hessian: Array, l2: float, n_rows: int) -> bool:
    """Whether a matrix may have too few digits for the curvature of faint directions.

    Its pivots tell, and those of directions without any curvature do too: see `sees_faintly`.
    """
    p = len(hessian)
    diagonal = hessian.diagonal()
    largest = float(diagonal.max())
    if p > _MOST_PARAMETERS or n_rows * p > _MOST_NUMBERS:
        return False
    if not _EPS * largest > _MOST_ROUNDING * l2:
        return False
    root = np.maximum(np.sqrt(np.maximum(diagonal, _EPS * _EPS * largest)), _TINY)
    factor, failed = dpotrf((hessian / root / root[:, None]).T, lower=1, clean=0)
    return bool(failed) or not float(factor.diagonal().min()) >= _FAINT


def sees_faintly(M: Array) -> bool:
    """Whether a factor has directions that its matrix would have lost, beside those it has not.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.factored import sees_faintly
    >>> sees_faintly(np.array([[1.0, 1.0], [1.0, 1.0]]))  # equal columns
    False
    >>> sees_faintly(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-9]]))
    True
    """
    sizes = np.sqrt(np.sum(M**2, axis=0))
    seen = sizes > 0.0
    if not seen.any():
        return False
    singular = np.linalg.svd(M[:, seen] / sizes[seen], compute_uv=False)
    faint = (singular > _INVISIBLE * singular[0]) & (singular < _FAINT * singular[0])
    return bool(faint.any())


class FactoredModel:
    """The curvature D + M^T M, for solutions with some of the parameters.

    Parameters
    ----------
    M : array of shape (r, p)
        Factor of the curvature of the losses.
    l2 : float
        Curvature of the penalty. Where it is 0, M gets rows for the directions that it has not.
    n_penalized : int
        The parameters before this one are coefficients, those after it intercepts.
    n_outputs : int, default 1
        Outputs, to each of which a share of the parameters belongs.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.factored import FactoredModel
    >>> model = FactoredModel(np.array([[3e7, 4e7]]), 1e-3, 2)
    >>> step = model.solve(np.array([True, True]), np.array([4e-3, -3e-3]))
    >>> np.allclose(step, [4.0, -3.0])
    True
    """

    def __init__(self, M: Array, l2: float, n_penalized: int, n_outputs: int = 1) -> None:
        own = np.sum(M[:, n_penalized:] ** 2, axis=0)
        if not np.all(own > 0.0):
            raise np.linalg.LinAlgError("the losses do not bend in the intercept")
        sizes = np.sum(M**2, axis=0)
        largest = float(sizes.max())
        if not largest > 0.0:
            raise np.linalg.LinAlgError("the losses do not bend at all")
        if l2 == 0.0:
            self._scale = np.sqrt(np.maximum(sizes, _LEAST_LENGTH**2 * largest))
            least = _INVISIBLE if n_outputs == 1 else _INVISIBLE_OF_SEVERAL
            M = np.concatenate([M, _unseen(M / self._scale, least) * self._scale])
            self.diagonal = np.zeros(M.shape[1])
        else:
            self.diagonal = np.full(M.shape[1], l2)
            self.diagonal[n_penalized:] = _RIDGE * l2 * own / largest
            self._scale = np.sqrt(self.diagonal)
        self.M = M

    def product(self, step: Array) -> Array:
        """The curvature times a vector."""
        return self.M.T @ (self.M @ step) + self.diagonal * step

    def solve(
        self, free: NDArray[np.bool_], right: Array, summing: NDArray[np.bool_] | None = None
    ) -> Array:
        """The inverse on the free parameters, times a vector of these.

        With `summing`, a mask among them, these keep their sum.
        """
        rows, diagonal = self.M[:, free], self.diagonal[free]
        # The coefficients have one curvature, so that a rotation among them leaves it alone.
        basis = _sums_kept(summing) if summing is not None and summing.any() else None
        turned = rows if basis is None else rows @ basis
        root = self._scale[free] if basis is None else np.sqrt(diagonal @ basis**2)
        _, singular, V = np.linalg.svd(turned / root, full_matrices=False)
        # With rows for all directions, V leaves none.
        bare = not diagonal.any()
        curvature = singular**2 if bare else 1.0 + singular**2
        step = np.zeros_like(right)
        # What a slope has in common with the rows is far larger than the rest: the first solution
        # has the digits of that, and the others those of what is left.
        for _ in range(_REFINEMENTS):
            left = right - rows.T @ (rows @ step) - diagonal * step
            x = (left if basis is None else left @ basis) / root
            seen = V @ x
            move = V.T @ (seen / curvature)
            if not bare:
                rest = x - V.T @ seen
                move += rest - V.T @ (V @ rest)
            move /= root
            step += move if basis is None else basis @ move
        return step


def _unseen(M: Array, least: float) -> Array:
    """Faint rows for all directions that a factor of columns of length 1 does not see."""
    _, singular, V = np.linalg.svd(M)
    rank = np.count_nonzero(singular > least * singular[0])
    return np.asarray(_LENT * singular[rank - 1] * V[rank:])


def _sums_kept(summing: NDArray[np.bool_]) -> Array:
    """Orthonormal directions in which the sum of some parameters stays as it is."""
    count = int(np.count_nonzero(summing))
    # A reflection that takes the first axis to the direction of the sum.
    normal = np.where(summing, -1.0 / math.sqrt(count), 0.0)
    first = int(np.argmax(summing))
    normal[first] += 1.0
    size = float(normal @ normal)
    reflection = np.eye(len(summing))
    if size > 0.0:
        reflection -= np.outer(normal, normal) * (2.0 / size)
    return np.delete(reflection, first, axis=1)


def minimize_factored(
    M: Array,
    gradient: Array,
    w: Array,
    penalty: Penalty,
    n_penalized: int,
    start: Array,
    n_outputs: int = 1,
) -> Array:
    """Minimise the model, from a feasible start.

    Parameters
    ----------
    M : array of shape (r, p)
        Factor of the curvature of the losses.
    gradient, w : arrays of shape (p,)
        Gradient of the model at w, without that of the penalty, and w.
    penalty : Penalty
        One of the package's own, on the first `n_penalized` parameters.
    start : array of shape (p,)
        Where to begin: a minimiser up to rounding.
    n_outputs : int, default 1
        Outputs, as in :func:`sorel.models.minimize_quadratic`; one on the simplex.

    Returns
    -------
    array of shape (p,)
        The minimiser, or the start where rounding errors lead nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import Simplex
    >>> from sorel.factored import minimize_factored
    >>> M, even = np.array([[1e8, 1e8, 1e8]]), np.full(3, 1 / 3)
    >>> g = np.array([1e-6, 0.0, -1e-6])
    >>> minimize_factored(M, g, even, Simplex(1e-5), 3, even).round(6)
    array([0.233333, 0.333333, 0.433333])
    """
    kernel = penalty.kernel(n_penalized // n_outputs)
    l1, on_simplex = kernel.l1, kernel.code == SIMPLEX
    p = len(w)
    if len(M) > p:
        M = np.asarray(np.linalg.qr(M, mode="r"))
    model = FactoredModel(M, kernel.l2, n_penalized, n_outputs)
    M = model.M
    lower, upper = np.full(p, -math.inf), np.full(p, math.inf)
    lower[:n_penalized] = np.repeat(kernel.lower, n_outputs)
    if not on_simplex:
        upper[:n_penalized] = np.repeat(kernel.upper, n_outputs)
    coefs = np.arange(p) < n_penalized
    slope = gradient + np.where(coefs, kernel.l2 * w, 0.0)
    lengths = np.sqrt(np.sum(M**2, axis=0))
    u = start.copy()
    # M (u - w), moved along: rounding errors of u times M would drown the multipliers.
    image, settled, full = M @ (u - w), False, 0
    tolerance = _TOLERANCE * (np.abs(slope) + lengths * np.linalg.norm(image))
    side = np.where(coefs & (l1 > 0.0), np.sign(u), 0.0)
    free = (u > lower) & (u < upper) & ((side != 0.0) | (l1 == 0.0) | ~coefs)
    for _ in range(_FACES * p + _MORE_FACES):
        total = slope + M.T @ image + model.diagonal * (u - w) + l1 * side
        if free.any() and not settled:
            step = model.solve(free, -total[free], coefs[free] if on_simplex else None)
            # A coefficient under l1 may come to 0, and no further for now.
            low = np.where(side > 0.0, np.maximum(lower, 0.0), lower)[free]
            high = np.where(side < 0.0, np.minimum(upper, 0.0), upper)[free]
            ahead = np.where(step > 0.0, high, low)
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(step == 0.0, math.inf, (ahead - u[free]) / step)
            length = min(1.0, float(room.min()))
            moved = u[free] + length * step
            stopped = (room <= length) & (length < 1.0)
            moved[stopped] = ahead[stopped]
            # The second step on a face puts right what rounding has left of the first. In faint
            # directions there is always something left.
            full = full + 1 if length == 1.0 else 0
            small = float(np.abs(step).max()) <= _SETTLED * _size(u)
            settled = length == 1.0 and (small or full >= _FULL_STEPS)
            u[free] = np.clip(moved, low, high)
            image += length * (M[:, free] @ step)
            where = np.flatnonzero(free)[stopped]
            free[where], side[where] = False, 0.0
            continue
        # The multiplier of the sum is what free coefficients have in common.
        chosen = free & coefs
        common = float(total[chosen].mean()) if on_simplex and chosen.any() else 0.0
        down = np.where(free | (u <= lower), 0.0, total - common - l1 * (side == 0.0))
        up = np.where(free | (u >= upper), 0.0, common - total - l1 * (side == 0.0))
        wrong = np.maximum(down, up) - tolerance
        worst = int(np.argmax(wrong))
        if not wrong[worst] > 0.0:
            break
        free[worst], settled, full = True, False, 0
        if l1 > 0.0 and u[worst] == 0.0:
            side[worst] = 1.0 if up[worst] > down[worst] else -1.0
    move = u - start
    change = slope + M.T @ (M @ (start - w)) + np.where(coefs, kernel.l2, 0.0) * (start - w)
    rise = float(change @ move) + 0.5 * float(np.sum((M @ move) ** 2))
    rise += l1 * float(np.sum(np.abs(u[coefs])) - np.sum(np.abs(start[coefs])))
    inside = not on_simplex or abs(float(np.sum(move[coefs]))) <= _ON_SIMPLEX
    noise = float(tolerance @ np.abs(move))
    return u if inside and rise <= noise and np.all(np.isfinite(u)) else start


def _size(x: Array) -> float:
    return float(np.abs(x).max())
