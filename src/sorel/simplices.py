"""Exact minimisation of a convex quadratic over simplices with many coordinates.

    min_u  slope.u + 1/2 u^T A u,   u >= 0 and the sum 1 in each simplex, the last entries free.

Nearly all of the work is to find the support. A guess at it takes one Cholesky factor and tells
what is wrong with it, and most guesses that change all of that at once settle in a handful. Where
curvatures differ by orders of magnitude, or coordinates come in nearly equal pairs, they may run in
circles instead. Interior-point steps do not, and what they lead to leaves the next guess little to
do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

__all__ = ["minimize_on_simplices"]

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)

# Slopes are the same up to this multiple of their rounding errors.
_TOLERANCE = 8.0 * _EPS

# Guesses at the support, and how many in a row may be no better. After one that is not, a smaller
# share of what is wrong with it is changed, and then more again.
_GUESSES, _NO_BETTER = 30, 10
_FEWER, _MORE = 0.5, 1.5

# Curvature that is added to intercepts where what they have in common has none, relative to theirs.
_STEADIED = 1e-10

# Interior-point steps at most, the share of the way to the border that they go, and what is left of
# the products of coefficients and their multipliers in the end.
_STEPS, _TO_BORDER, _CLOSE = 50, 0.995, 1e-8

# Weight that is spread evenly at their start, and the multipliers there, in the mean of all.
_SPREAD_EVENLY, _LEAST_MULTIPLIER = 0.5, 0.1


def minimize_on_simplices(
    A: Array, slope: Array, u: Array, n_penalized: int, n_simplices: int
) -> tuple[bool, int]:
    """Minimise from `u`, which is overwritten by the minimiser, or by what is nearer to it.

    Parameters
    ----------
    A : array of shape (p, p)
        Symmetric positive semidefinite curvature. Not modified.
    slope : array of shape (p,)
        The slope of the model at zero.
    u : array of shape (p,)
        A point of the simplices.
    n_penalized : int
        Number of coefficients that are on simplices; the entries after them (intercepts) are free.
    n_simplices : int
        Number K of simplices. Simplex k owns the entries ``u[k:n_penalized:K]``.

    Returns
    -------
    settled : bool
        Whether `u` is the minimiser, up to rounding.
    count : int
        Cholesky factors that were computed.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.simplices import minimize_on_simplices
    >>> u = np.array([0.5, 0.5, 0.0])
    >>> minimize_on_simplices(np.eye(3), np.array([-1.0, 2.0, -0.5]), u, 3, 1)
    (True, 2)
    >>> u
    array([0.75, 0.  , 0.25])
    """
    model = _Model(A, slope, n_penalized, n_simplices)
    settled, count = _guess(model, u)
    if settled:
        return True, count
    inside, steps = _from_inside(model, u)
    count += steps
    if inside is None:
        return False, count
    settled, guesses = _guess(model, inside)
    if settled or model.value(inside) < model.value(u):
        u[:] = inside
    return settled, count + guesses


class _Model:
    """The quadratic, and which simplex a coordinate belongs to."""

    def __init__(self, A: Array, slope: Array, n_penalized: int, n_simplices: int) -> None:
        self.A, self.slope, self.n_penalized = A, slope, n_penalized
        self.curvature = A.diagonal()
        # What all intercepts have in common changes no loss of several classes.
        self.steadied = self.curvature.copy()
        if n_simplices > 1:
            self.steadied[n_penalized:] *= 1.0 + _STEADIED
        self.members = np.zeros((len(slope), n_simplices))
        places = np.arange(n_penalized)
        self.members[places, places % n_simplices] = 1.0

    def value(self, u: Array) -> float:
        return float((self.slope + 0.5 * (self.A @ u)) @ u)


class _Bound(NamedTuple):
    """A system whose solutions have given sums: its factor, and a unit of each multiplier."""

    factor: Array
    members: Array
    along: Array

    @classmethod
    def of(cls, matrix: Array, members: Array) -> _Bound | None:
        """Factorise a matrix in C order, which is overwritten; None where that fails."""
        factor, failed = dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        if failed:
            return None
        return cls(factor, members, dpotrs(factor, members, lower=1)[0])

    def solve(self, right: Array, sums: Array | float) -> tuple[Array, Array]:
        """The solution with these sums, and the multipliers that it takes."""
        alone = dpotrs(self.factor, right, lower=1)[0]
        missing = sums - self.members.T @ alone
        multipliers = np.linalg.solve(self.members.T @ self.along, missing)
        return alone + self.along @ multipliers, multipliers


def _guess(model: _Model, u: Array) -> tuple[bool, int]:
    """Minimise by guesses at the support, of which that of `u` is the first.

    With the minimiser of a guess, those of its coefficients that are negative leave the support,
    and those join it whose slope is below the common one of their simplex: many at a time, which
    takes a few factors. Returns whether that came to an end, without which `u` stays what it was,
    and their number.
    """
    A, n = model.A, model.n_penalized
    root = np.sqrt(np.maximum(model.curvature, 0.0))
    free = u > 0.0
    free[n:] = True
    fewest, since, share = math.inf, 0, 1.0
    for count in range(1, _GUESSES + 1):
        places = np.flatnonzero(free)
        reduced = A[np.ix_(places, places)]
        reduced.ravel()[:: len(places) + 1] = model.steadied[places]
        tied = model.members[places]
        system = _Bound.of(reduced, tied) if tied.any(axis=0).all() else None
        if system is None:
            return False, count
        v = np.zeros_like(u)
        v[places], common = system.solve(-model.slope[places], 1.0)
        if not np.isfinite(v).all():
            return False, count
        own = model.slope + A @ v
        rounding = _TOLERANCE * (np.abs(model.slope) + root * float(root @ np.abs(v)))
        # In the unit of a slope, all of them.
        excess = np.where(free, -model.curvature * v, model.members @ common - rounding - own)
        excess[n:] = 0.0
        wrong = np.flatnonzero(excess > 0.0)
        if len(wrong) == 0:
            u[:] = v
            # What rounding has left, with the same sums.
            u[places] += system.solve(tied @ common - own[places], 0.0)[0]
            np.maximum(u[:n], 0.0, out=u[:n])
            return True, count
        better = len(wrong) < fewest
        fewest, since = (len(wrong), 0) if better else (fewest, since + 1)
        if since == _NO_BETTER:
            return False, count
        share = min(_MORE * share, 1.0) if better else _FEWER * share
        kept = len(wrong) - max(1, int(share * len(wrong)))
        changed = wrong[np.argpartition(excess[wrong], kept)[kept:]]
        free[changed] ^= True
    return False, _GUESSES


def _from_inside(model: _Model, u: Array) -> tuple[Array | None, int]:
    """A point near the minimiser, by primal-dual interior-point steps, and their number.

    Products of coefficients and multipliers are brought to 0 together, by Mehrotra's predictor and
    corrector. Coefficients that count less than their multipliers are 0 in what is returned; None
    where rounding leaves nothing to return.
    """
    A, n, members = model.A, model.n_penalized, model.members
    v = u.copy()
    v[:n] += _SPREAD_EVENLY * (members.shape[1] / n - v[:n])
    slope = model.slope + A @ v
    common = np.where(members[:n] > 0.0, slope[:n, None], math.inf).min(axis=0)
    above = slope[:n] - members[:n] @ common
    mean = max(float(v[:n] @ above) / n, _TINY)
    z = above + _LEAST_MULTIPLIER * mean / v[:n]
    target = _CLOSE * mean
    for count in range(_STEPS):
        x = v[:n]
        mean = float(x @ z) / n
        if mean <= target:
            break
        matrix = A.copy()
        diagonal = matrix.ravel()[:: len(v) + 1]
        diagonal[:] = model.steadied
        diagonal[:n] += z / x
        system = _Bound.of(matrix, members)
        if system is None:
            return None, count + 1
        missing = 1.0 - members.T @ v
        # The multipliers of what is ahead, without those of now: then with what is to be left.
        right = members @ common - slope
        step, _ = system.solve(right, missing)
        fall = -z - z / x * step[:n]
        length = min(_longest(x, step[:n]), _longest(z, fall))
        ahead = float((x + length * step[:n]) @ (z + length * fall)) / n
        left = ((ahead / mean) ** 3 * mean - step[:n] * fall) / x
        right[:n] += left
        step, change = system.solve(right, missing)
        fall = left - z - z / x * step[:n]
        length = _TO_BORDER * min(_longest(x, step[:n]), _longest(z, fall))
        v, z, common = v + length * step, z + length * fall, common + length * change
        slope = model.slope + A @ v
        if not np.isfinite(slope).all():
            return None, count + 1
    v[:n][model.curvature[:n] * v[:n] <= z] = 0.0
    sums = members.T @ v
    if not sums.all():
        return None, _STEPS
    v[:n] /= members[:n] @ sums
    return v, count


def _longest(x: Array, step: Array) -> float:
    """How much of a step may be taken until an entry of x comes to 0, at most all of it."""
    shrinks = step < 0.0
    return min(1.0, float((x[shrinks] / -step[shrinks]).min())) if shrinks.any() else 1.0
