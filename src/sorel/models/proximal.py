"""The quadratic model under a penalty of which only the Euclidean proximal map is known.

    min_x  m(x) + g(x),    m(x) = gradient.(x - w) + 1/2 (x - w)^T H (x - w)

FISTA with restarts (Beck and Teboulle 2009; O'Donoghue and Candes 2015) finds the minimiser where
curvatures are of one scale. Elsewhere follows an augmented Lagrangian on the split of x into itself
and the u that g sees, with semismooth Newton steps inside (Li, Sun and Toh 2018). With a multiplier
lam,

    min_x  m(x) + e(x + s lam),    e(z) = min_u g(u) + |u - z|^2 / (2 s),

is smooth and convex, and its Newton matrix H + (I - J) / s, with J the derivative of prox by
differences, takes H as it is, whatever its scales. lam then becomes the subgradient of g at u.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from sorel._lib.floats import EPS, ROUNDED, TINY
from sorel.problem.penalties import Penalty

Array = NDArray[np.float64]


# A model is solved when what is left to gain is this share of what was gained.
_FORCING = 1e-6

# Steps of FISTA between two checks of optimality.
_CHECK_EVERY = 25

# Newton steps and multipliers at most.
_MAX_STEPS = 200

# Factor of the step s from one multiplier to the next, and accuracy of its Newton steps: the share
# of what moves the next multiplier that their gradient may be.
_STAGE_FACTOR = 0.1

# Relative length of the central differences that stand for the derivative of prox.
_DIFFERENCE = EPS ** (1.0 / 3.0)


class ProximalModel:
    """The model in the penalised coefficients alone.

    Parameters
    ----------
    H, gradient, w : arrays of shape (p, p), (p,) and (p,)
        Curvature, gradient at w, and w.
    penalty : Penalty
        g. Nothing but its prox, its value and its modulus is asked for.
    shape : tuple of int
        The shape in which the penalty takes its p coefficients.

    Attributes
    ----------
    n_iter : int
        Newton steps.
    kkt : float
        How far the minimiser found is from optimal, relative to the terms that cancel there.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import NonNegative
    >>> from sorel.models.proximal import ProximalModel
    >>> H = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> model = ProximalModel(H, np.array([-3.0, 3.0]), np.zeros(2), NonNegative(1.0), (2,))
    >>> model.minimize().round(9)
    array([1., 0.])
    """

    def __init__(
        self, H: Array, gradient: Array, w: Array, penalty: Penalty, shape: tuple[int, ...]
    ) -> None:
        self._H, self._slope, self._w = H, gradient, w
        self._penalty, self._shape = penalty, shape
        own = np.linalg.eigvalsh(H)
        self._typical = float(np.median(own[own > 0.0])) if own[-1] > 0.0 else 0.0
        # A flat model has steps of a finite length.
        least = 1e-8 * _norm(gradient) / max(_norm(w), 1.0) + 1e-100
        self._largest = max(float(own[-1]), penalty.l2, least)
        self.n_iter, self.kkt = 0, math.inf

    def minimize(self) -> Array:
        """The minimiser, or the best point that was found."""
        self._best = x = self._prox(self._w - self._slope / self._largest, 1.0 / self._largest)
        self._lowest = self._start = self._value(x)
        if math.isfinite(self._value(self._w)):
            self._start = self._value(self._w)
        if self._accelerate(x):
            return self._best
        x = self._best
        multiplier = -self._gradient(x)
        step = 1.0 / max(self._typical, EPS * self._largest)
        while self.n_iter < _MAX_STEPS:
            x, z, u = self._descend(x, multiplier, step)
            multiplier = (z - u) / step
            if self._solved(u, multiplier):
                break
            self.n_iter += 1
            step = max(_STAGE_FACTOR * step, _STAGE_FACTOR / self._largest)
        return self._best

    def _solved(self, u: Array, subgradient: Array) -> bool:
        """Whether u is good enough, to judge by a subgradient of g at u; keeps the best."""
        gradient, value, l2 = self._gradient(u), self._value(u), self._penalty.l2
        residual = _norm(gradient + subgradient)
        if value <= self._lowest:
            # u has errors of its own size, which the curvature passes on.
            terms = (self._slope, gradient, subgradient, self._largest * u)
            self._best, self._lowest = u, value
            self.kkt = residual / max(sum(map(_norm, terms)), TINY)
        # No more than residual^2 / (2 l2) is left to gain.
        enough = 2.0 * l2 * _FORCING * (self._start - value)
        return self.kkt <= ROUNDED or residual**2 <= enough

    def _accelerate(self, u: Array) -> bool:
        """Accelerated proximal gradient steps; whether they have solved the model."""
        step, y, inertia = 1.0 / self._largest, u, 1.0
        # As many steps as there are columns cost what a Newton matrix does.
        for k in range(1, max(u.size, 2 * _CHECK_EVERY) + 1):
            z = y - step * self._gradient(y)
            new = self._prox(z, step)
            grown = 0.5 + math.sqrt(0.25 + inertia * inertia)
            if float((y - new) @ (new - u)) > 0.0:
                y, grown = new, 1.0
            else:
                y = new + ((inertia - 1.0) / grown) * (new - u)
            u, inertia = new, grown
            if k % _CHECK_EVERY == 0 and self._solved(u, (z - u) / step):
                return True
        return False

    def _prox(self, z: Array, step: float) -> Array:
        u = self._penalty.prox(z.reshape(self._shape), step)
        return np.asarray(u, dtype=np.float64).reshape(-1)

    def _gradient(self, x: Array) -> Array:
        """Gradient of m."""
        return self._slope + self._H @ (x - self._w)

    def _value(self, x: Array) -> float:
        """m(x) + g(x)."""
        smooth = 0.5 * float((self._slope + self._gradient(x)) @ (x - self._w))
        return smooth + float(self._penalty.value(x.reshape(self._shape)))

    def _descend(self, x: Array, multiplier: Array, step: float) -> tuple[Array, Array, Array]:
        """Newton steps on m + e for one multiplier: the last x, its z, and u = prox(z)."""

        def split(x: Array) -> tuple[Array, Array, Array]:
            z = x + step * multiplier
            u = self._prox(z, step)
            return z, u, self._gradient(x) + (z - u) / step

        z, u, slope = split(x)
        relative = _DIFFERENCE
        while self.n_iter < _MAX_STEPS:
            terms = _norm(self._slope) + self._largest * _norm(x - self._w) + _norm(z) / step
            size = _norm(slope)
            if size <= max(4.0 * EPS * terms, _STAGE_FACTOR * _norm(x - u) / step):
                break
            self.n_iter += 1
            direction = -_solve(self._newton_matrix(z, step, relative), slope)
            along, t = float(slope @ direction), 1.0
            if not along < 0.0:
                break
            z, u, new = split(x + direction)
            # Back until the slope along the direction is no steeper than half of what it was, but
            # not further than the differences reach.
            while float(new @ direction) > -0.5 * along and t > _DIFFERENCE:
                t *= 0.5
                z, u, new = split(x + t * direction)
            x, slope = x + t * direction, new
            # A step that fails to halve the gradient may have seen across a kink.
            relative = _DIFFERENCE if _norm(slope) <= 0.5 * size else max(0.1 * relative, 1e-9)
        return x, z, u

    def _newton_matrix(self, z: Array, step: float, relative: float) -> Array:
        """H + (I - J) / step, with J the derivative of prox at z by differences."""
        typical = _norm(z) / math.sqrt(z.size) or 1.0
        lengths = relative * np.maximum(np.abs(z), typical)
        if self._penalty.separable:
            rise = self._prox(z + lengths, step) - self._prox(z - lengths, step)
            return self._H + np.diag((1.0 - rise / (2.0 * lengths)) / step)
        moves = np.diag(lengths)
        columns = [self._prox(z + move, step) - self._prox(z - move, step) for move in moves]
        J = np.array(columns) / (2.0 * lengths[:, None])
        # J is the second derivative of a convex function, hence symmetric.
        return self._H + (np.eye(z.size) - 0.5 * (J + J.T)) / step


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))


def _solve(A: Array, b: Array) -> Array:
    """Solve A x = b for a matrix that is positive definite up to the errors of differences."""
    _, solution, failed = dposv(A, b, lower=1)
    if not failed and np.isfinite(solution).all():
        return np.asarray(solution)
    own, basis = np.linalg.eigh(A)
    return np.asarray(basis @ ((basis.T @ b) / np.maximum(own, max(EPS * own[-1], TINY))))
