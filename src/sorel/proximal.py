"""The quadratic model under a penalty of which only the Euclidean proximal map is known.

    min_x  m(x) + g(x),    m(x) = gradient.(x - w) + 1/2 (x - w)^T H (x - w)

The minimiser is the x that a proximal gradient step leaves where it is. Newton's method solves that
equation, with the derivative of prox by differences. It is fast near the minimiser, and from afar
where its steps lower the forward-backward envelope, the value of m + g as a proximal gradient step
sees it (Stella, Themelis, Sopasakis and Patrinos, 2017). Where they do not, accelerated proximal
gradient steps come nearer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.penalties import Penalty

__all__ = ["ProximalModel"]

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)

# Optimality is asked for up to this multiple of the rounding errors, or until what is left to gain
# is this share of what was gained.
_TOLERANCE = 8.0 * _EPS
_FORCING = 1e-6

# The proximal step, in units of the longest that is sure to descend, and the share of what such a
# step takes away from the envelope that a Newton step must take away as well.
_STEP, _DESCENT = 0.95, 0.5

# Products that estimate the largest curvature. It is raised where it proves too small.
_POWER_STEPS, _POWER_MARGIN = 12, 1.1

# Parts of a Newton step that are tried, each so much shorter than the last, and how often.
_SHRINKAGE, _TRIALS = 0.3, 3

# Gradient steps after a Newton step cut short: as many as cost about the same, and at least so
# many, doubled every time. How often, and Newton steps in all.
_LEAST_STEPS, _MOST_STEPS, _MAX_ROUNDS = 50, 2000, 10
_MAX_NEWTON = 50

# Relative length of the differences that stand for the derivative of prox.
_DIFFERENCE = 1e-5


class _State(NamedTuple):
    """A point x, the gradient of m there, and the proximal gradient step z -> u from it."""

    x: Array
    gradient: Array
    z: Array
    u: Array
    envelope: float


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
    >>> model.minimize().round(12)
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
        """The minimiser, or where the search for it has ended."""
        first = self._prox(self._w - self._step * self._slope)
        if not math.isfinite(self._start):
            self._start = self._value(first)
        state, best = self._at(first), first
        # A matrix of differences takes two proximal maps for every column.
        steps = _LEAST_STEPS if self._penalty.separable else max(_LEAST_STEPS, 2 * self._w.size)
        rounds = 0
        while True:
            state, step, residual = self._safe(state)
            kkt = residual / self._size(state)
            if kkt < self.kkt:
                best, self.kkt = state.u, kkt
            if kkt <= _TOLERANCE or self._suffices(state.u, residual):
                return best
            if self.n_iter >= _MAX_NEWTON or rounds >= _MAX_ROUNDS:
                return best
            state, whole = self._newton_step(state, step)
            self.n_iter += 1
            if not whole:
                state = self._at(self._accelerate(state.u, steps))
                steps = min(2 * steps, _MOST_STEPS)
                rounds += 1

    @property
    def _step(self) -> float:
        return _STEP / self._largest

    def _prox(self, z: Array) -> Array:
        u = self._penalty.prox(z.reshape(self._shape), self._step)
        return np.asarray(u, dtype=np.float64).reshape(-1)

    def _penalty_value(self, x: Array) -> float:
        return float(self._penalty.value(x.reshape(self._shape)))

    def _gradient(self, x: Array) -> Array:
        return self._slope + self._H @ (x - self._w)

    def _value(self, x: Array) -> float:
        """m(x) + g(x)."""
        moved = x - self._w
        return float((self._slope + 0.5 * (self._H @ moved)) @ moved) + self._penalty_value(x)

    def _at(self, x: Array) -> _State:
        gradient = self._gradient(x)
        z = x - self._step * gradient
        u = self._prox(z)
        step = u - x
        envelope = 0.5 * float((self._slope + gradient) @ (x - self._w)) + self._penalty_value(u)
        envelope += float(gradient @ step) + float(step @ step) / (2.0 * self._step)
        return _State(x, gradient, z, u, envelope)

    def _safe(self, state: _State) -> tuple[_State, Array, float]:
        """The state under a step that is short enough, that step, and the residual at u."""
        while True:
            step = state.u - state.x
            bend = self._H @ step
            if float(step @ bend) <= self._largest * float(step @ step):
                # The gradient of m at u plus the subgradient of g that prox has found there.
                return state, step, float(np.linalg.norm(bend - step / self._step))
            self._largest *= 2.0
            state = self._at(state.x)

    def _size(self, state: _State) -> float:
        """Size of the terms that cancel in the residual, errors of their last digits included."""
        parts = (self._slope, state.gradient, self._largest * state.z)
        return max(sum(float(np.linalg.norm(part)) for part in parts), np.finfo(np.float64).tiny)

    def _suffices(self, u: Array, residual: float) -> bool:
        l2 = self._penalty.l2
        # No more than residual^2 / (2 l2) is left to gain.
        return l2 > 0.0 and residual**2 <= 2.0 * l2 * _FORCING * (self._start - self._value(u))

    def _accelerate(self, x: Array, steps: int) -> Array:
        """Accelerated proximal gradient steps, begun anew whenever they turn back."""
        y, inertia = x, 1.0
        for _ in range(steps):
            new = self._prox(y - self._step * self._gradient(y))
            moved = new - x
            if float((y - new) @ moved) > 0.0:
                y, inertia = new, 1.0
            else:
                grown = 0.5 + math.sqrt(0.25 + inertia * inertia)
                y = new + ((inertia - 1.0) / grown) * moved
                inertia = grown
            x = new
        return x

    def _newton_step(self, state: _State, step: Array) -> tuple[_State, bool]:
        """The next state, and whether the whole Newton step has led to it."""
        newton = self._newton(state, step)
        square = float(step @ step)
        enough = state.envelope - _DESCENT * (1.0 - _STEP) * square / (2.0 * self._step)
        part = 1.0
        for _ in range(_TRIALS):
            new = self._at(state.x + (1.0 - part) * step + part * newton)
            left = new.u - new.x
            # Near the solution rounding hides the descent, but not that steps become shorter.
            if new.envelope <= enough or 4.0 * float(left @ left) <= square:
                return new, part == 1.0
            part *= _SHRINKAGE
        return state, False

    def _newton(self, state: _State, step: Array) -> Array:
        """Solve (I - J (I - s H)) d = u - x, with J the derivative of prox at z.

        Where a row of J is 0, prox stays put and d is u - x. The others make the system.
        """
        J = self._derivative(state.z)
        if J.ndim == 1:
            moving = J != 0.0
            product = J[moving, None] * self._H[moving]
            J = np.diag(J[moving])
        else:
            moving = J.any(axis=1)
            J = J[np.ix_(moving, moving)]
            product = J @ self._H[moving]
        product *= self._step
        system = product[:, moving] - J
        system.ravel()[:: len(system) + 1] += 1.0
        rest = step[moving] - product[:, ~moving] @ step[~moving]
        out = step.copy()
        try:
            out[moving] = np.linalg.solve(system, rest)
        except np.linalg.LinAlgError:
            return step
        return out if np.all(np.isfinite(out)) else step

    def _derivative(self, z: Array) -> Array:
        """Derivative of prox at z: a matrix, or its diagonal where g is separable."""
        typical = float(np.linalg.norm(z)) / math.sqrt(z.size)
        lengths = _DIFFERENCE * np.maximum(np.abs(z), typical or 1.0)
        if self._penalty.separable:
            return (self._prox(z + lengths) - self._prox(z - lengths)) / (2.0 * lengths)
        J = np.empty((z.size, z.size))
        moved = z.copy()
        for j, length in enumerate(lengths):
            moved[j] = z[j] + length
            J[:, j] = self._prox(moved)
            moved[j] = z[j] - length
            J[:, j] -= self._prox(moved)
            moved[j] = z[j]
        J /= 2.0 * lengths
        # It is the second derivative of a convex function.
        return 0.5 * (J + J.T)


def _largest_curvature(H: Array, gradient: Array) -> float:
    """Estimate of the largest eigenvalue of H."""
    vector = np.cos(np.arange(float(len(gradient))))
    length = float(np.linalg.norm(gradient))
    if length > 0.0:
        # Half of it, which cannot cancel the only entry where there is one coefficient.
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
