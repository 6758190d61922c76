"""The quadratic model under a penalty of which only the Euclidean proximal map is known.

    min_x  m(x) + g(x),    m(x) = gradient.(x - w) + 1/2 (x - w)^T H (x - w)

Accelerated proximal gradient steps find the minimiser where the curvatures are of one scale, and
come near it elsewhere. The rest is an augmented Lagrangian on the split of x into itself and the u
that g sees. With a multiplier lam,

    min_x  m(x) + e(x + s lam),    e(z) = min_u g(u) + |u - z|^2 / (2 s),

is smooth and convex, and its Newton matrix H + (I - J) / s, with J the derivative of prox by
differences, takes H as it is, whatever its scales. lam then becomes the subgradient of g at u.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel.penalties import Penalty

__all__ = ["ProximalModel"]

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)

# Optimality is asked for up to this multiple of the rounding errors, or until what is left to gain
# is this share of what was gained.
_TOLERANCE = 8.0 * _EPS
_FORCING = 1e-6

# Products that estimate the largest curvature, and the margin above. It is doubled where it proves
# too small.
_POWER_STEPS, _POWER_MARGIN = 12, 1.1

# Accelerated steps of the first round, by the number of parameters and at least so many: they cost
# what a Newton step or some of them do, whose matrix takes proximal maps for every column unless
# the penalty is separable. How many more each next round has; rounds; steps between two looks.
_STEPS, _STEPS_SEPARABLE, _LEAST_STEPS = 2.0, 0.33, 50
_MORE_STEPS, _MOST_STEPS = 4, 2000
_MAX_ROUNDS, _LOOK_EVERY = 5, 25

# The step s of the multiplier: each time this much shorter, down to this share of the inverse of
# the largest curvature. How often, with how many Newton steps in a round.
_SHORTER, _SHORTEST = 0.1, 1e-2
_MAX_MULTIPLIERS, _MAX_NEWTON = 25, 40

# A few stiff directions show in all coordinates. Up to so many parameters it is seen whether half
# of all directions have less than this share of the curvature.
_FEW_DIRECTIONS, _STIFF = 100, 1e-2

# A Newton step ends when the slope along it has fallen to this share, after so many trials at most.
# Those of one multiplier end when the gradient is this share of what moves the next.
_SLOPE_SHARE, _MAX_TRIALS = 0.5, 12
_INNER_SHARE = 0.1

# Relative length of the differences that stand for the derivative of prox: the usual one and the
# least. A Newton step that fails to halve the gradient may have seen across a kink, and the next
# differences are a tenth as long.
_DIFFERENCE, _LEAST_DIFFERENCE = 1e-5, 1e-9


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
    >>> from sorel.proximal import ProximalModel
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
        self._largest = max(_largest_curvature(H, gradient), penalty.l2, _least(gradient, w))
        # What the model starts from, to see how much has been gained.
        self._start = self._penalty_value(w)
        self.n_iter, self.kkt = 0, math.inf

    def minimize(self) -> Array:
        """The minimiser, or the best point that was found."""
        u = self._prox(self._w - self._slope / self._largest, 1.0 / self._largest)
        if not math.isfinite(self._start):
            self._start = self._value(u)
        lowest = self._value(u)
        steps = int((_STEPS_SEPARABLE if self._penalty.separable else _STEPS) * u.size)
        for _ in range(_MAX_ROUNDS):
            steps = min(max(steps, _LEAST_STEPS), _MOST_STEPS)
            new, solved = self._accelerate(u, steps)
            steps *= _MORE_STEPS
            if solved:
                return new
            value = self._value(new)
            if not value <= lowest:
                # Steps of a safe length never climb.
                self._largest *= 2.0
                continue
            u, lowest = new, value
            new, solved = self._multipliers(u)
            if solved:
                return new
            value = self._value(new)
            if value < lowest:
                u, lowest = new, value
        return u

    def _prox(self, z: Array, step: float) -> Array:
        u = self._penalty.prox(z.reshape(self._shape), step)
        return np.asarray(u, dtype=np.float64).reshape(-1)

    def _penalty_value(self, x: Array) -> float:
        return float(self._penalty.value(x.reshape(self._shape)))

    def _gradient(self, x: Array) -> Array:
        """Gradient of m."""
        return self._slope + self._H @ (x - self._w)

    def _value(self, x: Array) -> float:
        """m(x) + g(x)."""
        moved = x - self._w
        return float((self._slope + 0.5 * (self._H @ moved)) @ moved) + self._penalty_value(x)

    def _solved(self, u: Array, subgradient: Array) -> bool:
        """Whether u is good enough, to judge by a subgradient of g at u."""
        gradient = self._gradient(u)
        residual = float(np.linalg.norm(gradient + subgradient))
        # u has errors of its own size, which the curvature passes on.
        parts = (self._slope, gradient, subgradient, self._largest * u)
        size = sum(float(np.linalg.norm(part)) for part in parts)
        self.kkt = residual / max(size, np.finfo(np.float64).tiny)
        if self.kkt <= _TOLERANCE:
            return True
        l2 = self._penalty.l2
        # No more than residual^2 / (2 l2) is left to gain.
        return l2 > 0.0 and residual**2 <= 2.0 * l2 * _FORCING * (self._start - self._value(u))

    def _accelerate(self, u: Array, steps: int) -> tuple[Array, bool]:
        """Accelerated proximal gradient steps, begun anew whenever they turn back.

        Returns the last point, and whether it is good enough.
        """
        step = 1.0 / self._largest
        y, inertia = u, 1.0
        for k in range(1, steps + 1):
            z = y - step * self._gradient(y)
            new = self._prox(z, step)
            moved = new - u
            if float((y - new) @ moved) > 0.0:
                y, inertia = new, 1.0
            else:
                grown = 0.5 + math.sqrt(0.25 + inertia * inertia)
                y = new + ((inertia - 1.0) / grown) * moved
                inertia = grown
            u = new
            if k % _LOOK_EVERY == 0 and self._solved(u, (z - u) / step):
                return u, True
        return u, False

    def _multipliers(self, x: Array) -> tuple[Array, bool]:
        """The augmented Lagrangian: the last u, and whether it is good enough."""
        # What it has to be at the minimiser, and more nearly so than a subgradient at x.
        multiplier = -self._gradient(x)
        step = 1.0 / max(self._typical_curvature(), _EPS * self._largest)
        u, budget = x, self.n_iter + _MAX_NEWTON
        for _ in range(_MAX_MULTIPLIERS):
            x, z, u = self._descend(x, multiplier, step, budget)
            multiplier = (z - u) / step
            if self._solved(u, multiplier):
                return u, True
            if self.n_iter >= budget:
                break
            step = max(_SHORTER * step, _SHORTEST / self._largest)
        return u, False

    def _typical_curvature(self) -> float:
        """Half of the coordinates have less, or half of all directions where that is far less."""
        along = _middle(self._H.diagonal())
        if len(self._slope) > _FEW_DIRECTIONS:
            return along
        own = _middle(np.linalg.eigvalsh(self._H))
        return own if own < _STIFF * along else along

    def _descend(
        self, x: Array, multiplier: Array, step: float, budget: int
    ) -> tuple[Array, Array, Array]:
        """Newton steps on m + e for one multiplier: the last x, its z, and u = prox(z)."""
        z, u, gradient = self._split(x, multiplier, step)
        relative = _DIFFERENCE
        while self.n_iter < budget:
            size = float(np.linalg.norm(gradient))
            terms = (self._slope, self._largest * (x - self._w), z / step)
            rounding = 4.0 * _EPS * sum(float(np.linalg.norm(term)) for term in terms)
            if size <= max(rounding, _INNER_SHARE * float(np.linalg.norm(x - u)) / step):
                break
            self.n_iter += 1
            direction = -_solve(self._newton_matrix(z, step, relative), gradient)
            slope = float(gradient @ direction)
            if not slope < 0.0:
                break
            x, z, u, gradient = self._search(x, direction, slope, multiplier, step)
            if float(np.linalg.norm(gradient)) > 0.5 * size:
                relative = max(0.1 * relative, _LEAST_DIFFERENCE)
            else:
                relative = min(10.0 * relative, _DIFFERENCE)
        return x, z, u

    def _split(self, x: Array, multiplier: Array, step: float) -> tuple[Array, Array, Array]:
        """z, u = prox(z), and the gradient of m + e at x."""
        z = x + step * multiplier
        u = self._prox(z, step)
        return z, u, self._gradient(x) + (z - u) / step

    def _search(
        self, x: Array, direction: Array, slope: float, multiplier: Array, step: float
    ) -> tuple[Array, Array, Array, Array]:
        """A point near the minimum along a direction, in (0, 1], by the slope."""
        low, high, slope_low, slope_high = 0.0, 1.0, slope, math.inf
        t = 1.0
        for _ in range(_MAX_TRIALS):
            new = x + t * direction
            z, u, gradient = self._split(new, multiplier, step)
            here = float(gradient @ direction)
            if abs(here) <= -_SLOPE_SHARE * slope or (here < 0.0 and t == 1.0):
                break
            if here > 0.0:
                high, slope_high = t, here
            else:
                low, slope_low = t, here
            secant = slope_low / (slope_low - slope_high) if slope_high < math.inf else 0.5
            t = low + min(max(secant, 0.05), 0.95) * (high - low)
        return new, z, u, gradient

    def _newton_matrix(self, z: Array, step: float, relative: float) -> Array:
        """H + (I - J) / step, with J the derivative of prox at z by differences."""
        typical = float(np.linalg.norm(z)) / math.sqrt(z.size) or 1.0
        lengths = relative * np.maximum(np.abs(z), typical)
        diagonal = slice(None, None, z.size + 1)
        if self._penalty.separable:
            A = np.array(self._H, order="C")
            rise = self._prox(z + lengths, step) - self._prox(z - lengths, step)
            A.ravel()[diagonal] += (1.0 - rise / (2.0 * lengths)) / step
            return A
        J = np.empty((z.size, z.size))
        moved = z.copy()
        for j, length in enumerate(lengths):
            moved[j] = z[j] + length
            J[:, j] = self._prox(moved, step)
            moved[j] = z[j] - length
            J[:, j] -= self._prox(moved, step)
            moved[j] = z[j]
        J /= 2.0 * lengths
        # J is the second derivative of a convex function, hence symmetric.
        A = self._H - (0.5 / step) * (J + J.T)
        A.ravel()[diagonal] += 1.0 / step
        return A


def _middle(curvatures: NDArray[np.floating[Any]]) -> float:
    """The median of those that are positive."""
    positive = curvatures[curvatures > 0.0]
    return float(np.median(positive)) if len(positive) else 0.0


def _solve(A: Array, b: Array) -> Array:
    """Solve A x = b for a matrix that is positive definite up to the errors of differences."""
    largest, shift = max(float(A.diagonal().max()), np.finfo(np.float64).tiny), 0.0
    while shift < 1.0:
        shifted = A.copy()
        shifted.ravel()[:: len(b) + 1] += shift * largest
        factor, failed = dpotrf(shifted.T, lower=1, clean=0, overwrite_a=1)
        if not failed and np.isfinite(factor.diagonal()).all():
            return dpotrs(factor, b, lower=1)[0]
        shift = max(8.0 * shift, 4.0 * _EPS)
    return b / largest


def _largest_curvature(H: Array, gradient: Array) -> float:
    """Estimate of the largest eigenvalue of H."""
    # Any start will do that is not 0, and half a unit of the gradient cannot cancel this one.
    vector = np.cos(np.arange(1.0, len(gradient) + 1.0))
    length = float(np.linalg.norm(gradient))
    if length > 0.0:
        vector += 0.5 * gradient / length
    size = 0.0
    for _ in range(_POWER_STEPS):
        vector = H @ (vector / np.linalg.norm(vector))
        size = float(np.linalg.norm(vector))
        if size == 0.0:
            return 0.0
    return _POWER_MARGIN * size


def _least(gradient: Array, w: Array) -> float:
    """A curvature at which a step is so long that it may as well be without end."""
    size = max(float(np.linalg.norm(w)), 1.0)
    return max(1e-8 * float(np.linalg.norm(gradient)) / size, 1e-100)
