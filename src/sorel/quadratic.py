"""Exact minimisation of a convex quadratic plus a penalty: the proximal Newton subproblem.

    min_u  gradient.(u - w) + 1/2 (u - w)^T H (u - w) + g(u[:n_penalized])

An L2 penalty takes one Cholesky solve. The others take an active-set method: compiled coordinate
descent (pairwise on the simplex) finds the face on which the minimiser lies, a Cholesky solve
minimises over that face, and the two alternate until the optimality conditions hold to rounding.
Both moves only ever decrease the objective, so no face is minimised twice and the method is finite.
Simplices with many coordinates free after the first sweeps have a module of their own,
`simplices.py`, which finds the face by other means.
A budget has such faces too, in `budgeted.py`. A penalty that is not one of the package's own has
none that could be known here, and takes the proximal method of `proximal.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs

from sorel._compiled import compiled
from sorel.kernels.cholesky import minimize_few
from sorel.penalties import SIMPLEX, Budget, Penalty
from sorel.proximal import ProximalModel
from sorel.simplices import minimize_on_simplices

__all__ = ["QuadraticInfo", "minimize_quadratic", "step_of_few"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_EPS = float(np.finfo(np.float64).eps)

# Up to this many parameters a compiled Cholesky solve beats the calls into LAPACK.
FEW = 24
_TINY = float(np.finfo(np.float64).tiny)

# Optimality is asked for up to this multiple of the rounding errors of the gradient.
_TOLERANCE = 8.0 * _EPS

# Sweeps of coordinate descent between two Cholesky solves: enough to settle most signs, cheap
# against the factorisation.
_SWEEPS = 25

# The same for a rough minimum, of which the sweeps find most: they end when one gains less than
# this part of what the minimum may miss.
_ROUGH_SWEEPS, _SLOW = 200, 0.03

_MAX_ROUNDS = 500

# From this many free coordinates on, those that reach a border are held there by multipliers, up to
# this share of them, instead of factorising what is left.
_MANY_FREE = 64
_MOST_HELD = 0.3

# What is no further from a simplex is on it, but for rounding.
_ON_SIMPLEX = 1e-12

# Curvature that is added where the penalty has none, relative to what is there.
_RIDGE = 1e-12

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
        had no curvature at all, and borrowed that of the stiffest coordinate.

    Examples
    --------
    >>> from sorel.quadratic import QuadraticInfo
    >>> QuadraticInfo(n_iter=1, kkt=1e-16, shift=0.0).shift
    0.0
    """

    n_iter: int
    kkt: float
    shift: float


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
    rough : float, default 0
        Where many coordinates are free, stop when another round gains less than this share of what
        was gained before. What is left is then no step for long, and rounds are expensive.

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
    >>> from sorel.quadratic import minimize_quadratic
    >>> H = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> u, info = minimize_quadratic(H, np.array([-3.0, 3.0]), np.zeros(2), NonNegative(1.0), 2)
    >>> u
    array([1., 0.])
    """
    if penalty.quadratic:
        return _minimize_smooth(H, gradient, w, penalty.l2, n_penalized)
    if type(penalty) is Budget and n_outputs == 1:
        # Here, because it builds on this module.
        from sorel.budgeted import minimize_budget

        return minimize_budget(H, gradient, w, penalty, n_penalized)
    if not penalty.compiled:
        return _minimize_proximal(H, gradient, w, penalty, n_penalized, n_outputs)
    return _minimize_active_set(H, gradient, w, penalty, n_penalized, n_outputs, rough)


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
    >>> from sorel.quadratic import step_of_few
    >>> step_of_few(np.array([[3.0]]), np.array([-4.0]), np.zeros(1), 1.0, 1)
    (array([1.]), 3.5, 2.0)
    """
    p = H.shape[0]
    if p > FEW:
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
    if not failed and _well_factored(factor, A, 4.0 * _EPS):
        return factor, 0.0
    p = A.shape[0]
    diagonal = A.diagonal()
    if not np.isfinite(A).all():
        raise np.linalg.LinAlgError(_NOT_FINITE)
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


def _minimize_smooth(
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
        least = _RIDGE * largest if largest > 0.0 else max(steepest, _TINY)
        own += _RIDGE * np.maximum(own, least)
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


def _minimize_proximal(
    H: Array, gradient: Array, w: Array, penalty: Penalty, n_penalized: int, n_outputs: int
) -> tuple[Array, QuadraticInfo]:
    """Minimise over the intercepts in closed form, and over the rest by proximal maps."""
    n = n_penalized
    if not (np.isfinite(H).all() and np.isfinite(gradient).all() and np.isfinite(w).all()):
        raise np.linalg.LinAlgError(_NOT_FINITE)
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


def _minimize_active_set(
    H: Array,
    gradient: Array,
    w: Array,
    penalty: Penalty,
    n_penalized: int,
    n_outputs: int,
    rough: float,
) -> tuple[Array, QuadraticInfo]:
    """Alternate descent sweeps and exact solves on the current face until optimal."""
    p = gradient.shape[0]
    code, l2, l1_weight, lower_d, upper_d = penalty.kernel(n_penalized // n_outputs)
    n_simplices = n_outputs if code == SIMPLEX else 0
    l1, lower, upper = np.zeros(p), np.full(p, -math.inf), np.full(p, math.inf)
    l1[:n_penalized] = l1_weight
    lower[:n_penalized] = np.repeat(lower_d, n_outputs)
    if not n_simplices:
        # On a simplex the upper bound follows from the sum, and would only be a false breakpoint.
        upper[:n_penalized] = np.repeat(upper_d, n_outputs)

    A = np.array(H, dtype=np.float64, order="C")
    if l2 == 0.0 and not A.diagonal().min() >= 0.0:
        _cover_rounding(A)
    slope_at_w = np.array(gradient, dtype=np.float64)
    lent = _add_penalty(A, slope_at_w, w, l2, n_penalized)
    root = np.sqrt(np.maximum(A.diagonal(), 0.0))

    u = np.array(w, dtype=np.float64)
    _project(u, penalty, n_penalized, n_outputs)
    if n_simplices and np.abs(u - w).max() <= _ON_SIMPLEX:
        # A sum that is off by rounding would wake all that rests.
        u[:] = w
    # The smallest normal number keeps an empty row (0 = 0) from dividing by zero.
    fixed_size = np.maximum(np.abs(gradient) + l1, _TINY)

    best, best_kkt, since_best = u, math.inf, 0
    n_iter, shift = 0, lent
    rough = rough if p >= _MANY_FREE and not n_simplices else 0.0
    start = gained = 0.0
    for rounds in range(_MAX_ROUNDS):
        if n_simplices:
            _restore_sums(u, n_penalized, n_simplices)
        # Fresh products, because the updates of the slope in the sweeps add up their rounding.
        moved = u - w
        slope = slope_at_w + A @ moved
        if not np.isfinite(slope).all():
            raise np.linalg.LinAlgError(_NOT_FINITE)
        # u is stored with errors of its own size, which the curvature passes on to the slope.
        size = fixed_size + root * float(root @ np.maximum(np.abs(moved), np.abs(u)))
        size[:n_penalized] += l2 * np.abs(u[:n_penalized])
        kkt = _optimality(u, slope, l1, lower, upper, size, A, n_penalized, n_simplices)
        if kkt < best_kkt:
            since_best = 0 if kkt < 0.5 * best_kkt else since_best + 1
            best, best_kkt = u.copy(), kkt
        else:
            since_best += 1
        # Near rounding level a violation can come and go for ever. Above it the objective
        # decreases strictly, which is progress even while the violation does not shrink.
        if kkt <= _TOLERANCE or (since_best >= 4 and best_kkt < 1e-10):
            break
        if rough > 0.0:
            value = 0.5 * float((slope + slope_at_w) @ moved) + float(l1 @ np.abs(u))
            start = value if rounds == 0 else start
            gained, before = start - value, gained
            if rounds > 0 and gained - before <= rough * gained:
                best, best_kkt = u, kkt
                break
        if n_simplices:
            _descend_pairs(A, u, slope, _TOLERANCE * size, n_penalized, n_simplices)
            gain = 0.0
            if rounds == 0 and np.count_nonzero(u > 0.0) >= _MANY_FREE:
                settled, n_iter = minimize_on_simplices(
                    A, slope_at_w - A @ w, u, n_penalized, n_simplices
                )
                if settled:
                    continue
                slope = slope_at_w + A @ (u - w)
        else:
            gain = _descend(
                A, u, slope, l1, lower, upper, _TOLERANCE * size,
                _ROUGH_SWEEPS if rough > 0.0 else _SWEEPS, _SLOW * rough, gained,
            )  # fmt: skip
        solves, round_shift = _minimize_on_face(
            A, u, slope, l1, lower, upper, penalty, n_penalized, n_outputs, n_simplices,
            rough * (gained + gain),
        )  # fmt: skip
        n_iter += solves
        shift = max(shift, round_shift)
    return best, QuadraticInfo(n_iter, best_kkt, shift)


def _project(u: Array, penalty: Penalty, n_penalized: int, n_outputs: int) -> None:
    """Project the coefficients in `u` onto the domain of the penalty, in place."""
    coefficients = u[:n_penalized]
    if n_outputs > 1:
        coefficients = coefficients.reshape(-1, n_outputs)
    coefficients[...] = penalty.project(coefficients)


def _minimize_on_face(
    A: Array,
    u: Array,
    slope: Array,
    l1: Array,
    lower: Array,
    upper: Array,
    penalty: Penalty,
    n_penalized: int,
    n_outputs: int,
    n_simplices: int,
    enough: float,
) -> tuple[int, float]:
    """Minimise over the face of `u`, shrinking it where the minimiser lies beyond its border.

    On a large face, a step that gains less than `enough` is the last. Overwrites `u`, and `slope`
    up to its last step, which the caller evaluates afresh. Returns the number of Cholesky solves
    and the largest shift.
    """
    p, n_iter, shift = u.shape[0], 0, 0.0
    # Made here because compiled code takes longer to compile than to run where it makes arrays.
    references = np.empty(max(n_simplices, 1), np.int64)
    places = np.empty((2, p), np.int64)
    # Every blocked solve shrinks the face; the factor two leaves room for rounding at a border.
    for _ in range(2 * p + 1):
        m = _face(u, l1, lower, upper, A, n_penalized, n_simplices, references, *places)
        if m == 0:
            return n_iter, shift
        free, reference = places[0, :m], places[1, :m]
        reduced, rhs = np.empty((m, m)), np.empty(m)
        _reduce(A, u, slope, l1, free, reference, reduced, rhs)
        factor, used_shift = _factor(reduced)
        n_iter += 1
        shift = max(shift, used_shift)
        if m >= _MANY_FREE and not n_simplices:
            before = u[free]
            after, done = _minimize_on_large_face(
                reduced, factor, rhs, before, l1[free], lower[free], upper[free], enough
            )
            u[free] = after
            if done:
                return n_iter, shift
            slope += A[:, free] @ (after - before)
            continue
        y = dpotrs(factor, rhs, lower=1)[0]
        y += dpotrs(factor, rhs - reduced @ y, lower=1)[0]
        step = np.zeros(p)
        length, blocking, border = _breakpoint(u, l1, lower, upper, free, reference, y, step)
        if blocking < 0:
            u += step
            return n_iter, shift
        # Stopping at the first border fixes one variable per factorisation. Bending the whole
        # step into the face fixes many; take it where it decreases the objective more.
        bent = _bend(u, step, l1, penalty, n_penalized, n_outputs)
        cut = np.clip(u + length * step, lower, upper)
        cut[blocking] = border
        bent_product, cut_product = A @ (bent - u), A @ (cut - u)
        if _change(u, bent, slope, l1, bent_product) < _change(u, cut, slope, l1, cut_product):
            u[:] = bent
            slope += bent_product
        else:
            u[:] = cut
            slope += cut_product
    return n_iter, shift


class _Held:
    """Coordinates of a factorised system that do not move, by multipliers.

    With Z their columns of the inverse of the matrix, a solution y becomes y - Z (Z_held)^-1
    y_held. That takes some products where the system without them would take a factorisation.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.quadratic import _factor, _Held
    >>> A = np.eye(8) + 1.0
    >>> held = _Held(_factor(A)[0])
    >>> held.add(np.array([5, 2]))
    True
    >>> y, moves = held.solve(np.arange(8.0)), [0, 1, 3, 4, 6, 7]
    >>> np.allclose(y[moves], np.linalg.solve(A[np.ix_(moves, moves)], moves)), y[[2, 5]]
    (True, array([0., 0.]))
    >>> held.add(np.array([0, 1, 3]))
    False
    """

    def __init__(self, factor: Array) -> None:
        self._factor = factor
        m = len(factor)
        most = int(_MOST_HELD * m)
        self._columns = np.empty((m, most), order="F")
        # The Cholesky factor of the part of the inverse that belongs to them.
        self._own = np.empty((most, most), order="F")
        self.places = np.zeros(0, np.int64)

    def solve(self, right: Array) -> Array:
        """Solve the system; what is held has zeros."""
        y: Array = dpotrs(self._factor, right, lower=1)[0]
        count = len(self.places)
        if count:
            own = self._own[:count, :count]
            y -= self._columns[:, :count] @ dpotrs(own, y[self.places], lower=1)[0]
            y[self.places] = 0.0
        return y

    def add(self, more: Indices) -> bool:
        """Hold more of them; False, and nothing is changed, where a new factorisation is better."""
        old, new = len(self.places), len(self.places) + len(more)
        if new > len(self._own):
            return False
        units = np.zeros((len(self._factor), len(more)), order="F")
        units[more, np.arange(len(more))] = 1.0
        columns = dpotrs(self._factor, units, lower=1, overwrite_b=1)[0]
        corner = columns[more]
        if old:
            own = self._own[:old, :old]
            beside = dtrtrs(own, columns[self.places], lower=1)[0]
            corner = corner - beside.T @ beside
            self._own[old:new, :old] = beside.T
        corner, failed = dpotrf(corner, lower=1)
        if failed or not np.isfinite(corner.diagonal()).all():
            return False
        self._own[old:new, old:new] = corner
        self._columns[:, old:new] = columns
        self.places = np.concatenate([self.places, more])
        return True


def _minimize_on_large_face(
    A: Array,
    factor: Array,
    rhs: Array,
    x: Array,
    l1: Array,
    lower: Array,
    upper: Array,
    enough: float,
) -> tuple[Array, bool]:
    """Minimise over a face with many free coordinates `x` from one factorisation of its `A`.

    A coordinate that reaches a border is held there by a multiplier. Returns the point, and whether
    it is the minimiser, or close to it: the last step gained less than `enough`. It is not where so
    many are held that a smaller face is cheaper.
    """
    m = len(x)
    places, alone = np.arange(m), np.full(m, -1)
    slope = -rhs
    held = _Held(factor)
    while True:
        y = held.solve(-slope)
        length, blocking, border = _breakpoint(x, l1, lower, upper, places, alone, y, np.zeros(m))
        if blocking < 0:
            y += held.solve(-slope - A @ y)
            return np.clip(x + y, lower, upper), True
        bent = x + y
        bent[(l1 > 0.0) & (bent * x <= 0.0)] = 0.0
        np.clip(bent, lower, upper, out=bent)
        bent[held.places] = x[held.places]
        cut = np.clip(x + length * y, lower, upper)
        cut[blocking] = border
        product = A @ (bent - x)
        bent_change = float((slope + 0.5 * product) @ (bent - x))
        # But for what is held, whose slope is never asked for, A y = -slope.
        cut_change = length * (1.0 - 0.5 * length) * float(slope @ y)
        if bent_change < cut_change:
            x, slope = bent, slope + product
        else:
            x, slope = cut, (1.0 - length) * slope
        if -min(bent_change, cut_change) < enough:
            return x, True
        at_rest = (x <= lower) | (x >= upper) | ((l1 > 0.0) & (x == 0.0))
        at_rest[held.places] = False
        if not held.add(np.flatnonzero(at_rest)):
            return x, False


def _bend(
    u: Array, step: Array, l1: Array, penalty: Penalty, n_penalized: int, n_outputs: int
) -> Array:
    """Return ``u + step`` projected onto the domain, with changes of sign cut at the l1 kink."""
    target = u + step
    target[(l1 > 0.0) & (target * u <= 0.0)] = 0.0
    _project(target, penalty, n_penalized, n_outputs)
    return target


def _change(u: Array, target: Array, slope: Array, l1: Array, product: Array) -> float:
    """Change of the objective from `u` to `target`; `product` is the curvature times the step."""
    change = float((slope + 0.5 * product) @ (target - u))
    return change + float(l1 @ (np.abs(target) - np.abs(u)))


@compiled
def _optimality(
    u: Array,
    slope: Array,
    l1: Array,
    lower: Array,
    upper: Array,
    size: Array,
    A: Array,
    n_penalized: int,
    n_simplices: int,
) -> float:
    """Return the largest violation of the optimality conditions relative to `size`."""
    worst = 0.0
    for j in range(n_penalized if n_simplices > 0 else 0, u.shape[0]):
        violation = _violation(u[j], slope[j], l1[j], lower[j], upper[j])
        worst = max(worst, abs(violation) / size[j])
    for k in range(n_simplices):
        # The multiplier of the sum is read off the support, where it is known best.
        support = -1
        for j in range(k, n_penalized, n_simplices):
            if u[j] > 0.0 and (support < 0 or size[j] < size[support]):
                support = j
        for j in range(k, n_penalized, n_simplices):
            difference = slope[support] - slope[j]
            if u[j] > 0.0:
                difference = abs(difference)
            worst = max(worst, difference / (size[j] + size[support]))
    return worst


@compiled
def _violation(u: float, slope: float, l1: float, lower: float, upper: float) -> float:
    """Return the one-sided derivative along which a coordinate can descend, or zero.

    Negative: the coordinate should increase; positive: it should decrease.
    """
    right = slope + (l1 if u >= 0.0 else -l1)
    if right < 0.0 and u < upper:
        return right
    left = slope + (l1 if u > 0.0 else -l1)
    if left > 0.0 and u > lower:
        return left
    return 0.0


@compiled
def _descend(
    A: Array,
    u: Array,
    slope: Array,
    l1: Array,
    lower: Array,
    upper: Array,
    tolerance: Array,
    max_sweeps: int,
    slow: float,
    gained: float,
) -> float:
    """Sweep over the coordinates, minimising exactly in each, until no sign or bound changes.

    With ``slow > 0``, until a sweep gains less than this share of all that was gained, of which
    `gained` before. Returns what the sweeps have gained.
    """
    p = u.shape[0]
    total = 0.0
    for _ in range(max_sweeps):
        settled = True
        gain = 0.0
        for j in range(p):
            curvature = A[j, j]
            old = u[j]
            if curvature <= 0.0:
                continue
            if abs(_violation(old, slope[j], l1[j], lower[j], upper[j])) <= tolerance[j]:
                continue
            new = old - slope[j] / curvature
            threshold = l1[j] / curvature
            if new > threshold:
                new -= threshold
            elif new < -threshold:
                new += threshold
            else:
                new = 0.0
            new = min(max(new, lower[j]), upper[j])
            if new == old:
                continue
            at_border = new == lower[j] or new == upper[j]
            was_at_border = old == lower[j] or old == upper[j]
            if at_border != was_at_border or (l1[j] > 0.0 and np.sign(new) != np.sign(old)):
                settled = False
            u[j] = new
            change = new - old
            gain -= change * (slope[j] + 0.5 * change * curvature)
            gain -= l1[j] * (abs(new) - abs(old))
            for i in range(p):
                slope[i] += change * A[j, i]
        total += gain
        if (settled and slow == 0.0) or gain <= slow * (gained + total):
            return total
    return total


@compiled
def _descend_pairs(
    A: Array, u: Array, slope: Array, tolerance: Array, n_penalized: int, n_simplices: int
) -> None:
    """Shift weight between pairs of coordinates, minimising exactly over each pair.

    Weight goes to the coordinate of least slope, from the one that promises the largest decrease.
    """
    p = u.shape[0]
    for k in range(n_simplices):
        for _ in range(2 * (n_penalized // n_simplices)):
            to = k
            for j in range(k, n_penalized, n_simplices):
                if slope[j] + tolerance[j] < slope[to] + tolerance[to]:
                    to = j
            source = -1
            best = 0.0
            amount = 0.0
            for j in range(k, n_penalized, n_simplices):
                excess = slope[j] - slope[to]
                if u[j] <= 0.0 or j == to or excess <= tolerance[j] + tolerance[to]:
                    continue
                curvature = A[j, j] + A[to, to] - 2.0 * A[j, to]
                # Rounding may leave a pair of equal columns without its positive curvature.
                shifted = u[j] if excess >= curvature * u[j] else excess / curvature
                decrease = shifted * (excess - 0.5 * curvature * shifted)
                if decrease > best:
                    source = j
                    best = decrease
                    amount = shifted
            if source < 0:
                break
            u[to] += amount
            u[source] = max(u[source] - amount, 0.0)
            for i in range(p):
                slope[i] += amount * (A[to, i] - A[source, i])
    for j in range(n_penalized, p):
        if A[j, j] > 0.0:
            change = -slope[j] / A[j, j]
            u[j] += change
            for i in range(p):
                slope[i] += change * A[j, i]


@compiled
def _restore_sums(u: Array, n_penalized: int, n_simplices: int) -> None:
    """Put the rounding errors of the sum of every simplex into its largest coordinate."""
    for k in range(n_simplices):
        largest = k
        total = 0.0
        for j in range(k, n_penalized, n_simplices):
            total += u[j]
            if u[j] > u[largest]:
                largest = j
        u[largest] += 1.0 - total


@compiled
def _face(
    u: Array,
    l1: Array,
    lower: Array,
    upper: Array,
    A: Array,
    n_penalized: int,
    n_simplices: int,
    references: Indices,
    free: Indices,
    reference: Indices,
) -> int:
    """List the coordinates that are free on the face of `u`, with a reference for each.

    On a simplex the reference takes up what the others give away, and is not listed itself. It is
    the coordinate of least curvature, so that eliminating it does not swamp the others. A
    coordinate outside any simplex has the reference -1. `references` has room for one number of
    each simplex. Returns how many are free.
    """
    p = u.shape[0]
    for k in range(n_simplices):
        references[k] = -1
    for j in range(n_penalized if n_simplices > 0 else 0):
        k = j % n_simplices
        if u[j] > 0.0 and (references[k] < 0 or A[j, j] < A[references[k], references[k]]):
            references[k] = j
    count = 0
    for j in range(p):
        if u[j] <= lower[j] or u[j] >= upper[j] or (l1[j] > 0.0 and u[j] == 0.0):
            continue
        own = references[j % n_simplices] if n_simplices > 0 and j < n_penalized else -1
        if own != j:
            free[count] = j
            reference[count] = own
            count += 1
    return count


@compiled
def _reduce(
    A: Array, u: Array, slope: Array, l1: Array, free: Indices, reference: Indices, reduced: Array,
    rhs: Array,
) -> None:  # fmt: skip
    """Fill in curvature and negative slope of the objective in the free coordinates of a face."""
    m = free.shape[0]
    for a in range(m):
        i = free[a]
        i0 = reference[a]
        rhs[a] = -(slope[i] + (l1[i] if u[i] > 0.0 else -l1[i]))
        if i0 >= 0:
            rhs[a] += slope[i0]
        for b in range(m):
            j = free[b]
            j0 = reference[b]
            entry = A[i, j]
            if i0 >= 0:
                entry -= A[i0, j]
            if j0 >= 0:
                entry -= A[i, j0]
                if i0 >= 0:
                    entry += A[i0, j0]
            reduced[a, b] = entry
        # Columns that agree leave rounding errors of either sign where there is no curvature.
        size = abs(A[i, i]) + (abs(A[i0, i0]) if i0 >= 0 else 0.0)
        reduced[a, a] = max(reduced[a, a], _RIDGE * size)


@compiled
def _breakpoint(
    u: Array, l1: Array, lower: Array, upper: Array, free: Indices, reference: Indices, y: Array,
    step: Array,
) -> tuple[float, int, float]:  # fmt: skip
    """Expand `y` to a `step`, zero on entry, in all coordinates; find where it leaves the face.

    Returns the fraction of it that stays on the face, the coordinate that blocks the rest (-1 if
    the whole step fits) and the value at which it blocks.
    """
    p = u.shape[0]
    for a in range(free.shape[0]):
        step[free[a]] += y[a]
        if reference[a] >= 0:
            step[reference[a]] -= y[a]
    length = 1.0
    blocking = -1
    value = 0.0
    for j in range(p):
        if step[j] == 0.0:
            continue
        border = upper[j] if step[j] > 0.0 else lower[j]
        if l1[j] > 0.0 and u[j] * step[j] < 0.0 and abs(u[j]) < abs(border - u[j]):
            border = 0.0
        # Written with the distance to the border, so that an infinite one never blocks.
        if abs(border - u[j]) <= length * abs(step[j]):
            length = abs(border - u[j]) / abs(step[j])
            blocking = j
            value = border
    return length, blocking, value
