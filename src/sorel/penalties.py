"""Strongly convex penalties g(w): value, proximal map, conjugate and Fenchel-Young gap.

Every penalty here is ``g(w) = l2/2 ||w||^2 + h(w)`` with ``mu = l2 > 0`` and ``h`` a norm or the
indicator of a simple set. Strong convexity makes the conjugate ``g*`` finite and smooth, with
``grad g*(v) = prox_{h/mu}(v/mu)``, and that is what makes the duality gap of a problem computable:
its second bracket is the Fenchel-Young gap ``g(w) + g*(v) - v.w``, evaluated in this module as a
sum of nonnegative terms, so that it keeps its relative accuracy as it goes to zero.

Coefficients are arrays of shape (d,) or, for K outputs, (d, K). Intercepts are never penalised;
callers strip them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel.kernels.prox import prox_inplace, prox_inplace_outputs

__all__ = [
    "Box",
    "ElasticNet",
    "Kernel",
    "L2",
    "NonNegative",
    "Penalty",
    "Simplex",
    "prox_inplace",
    "prox_inplace_outputs",
]

Array = NDArray[np.float64]

# A point that leaves the domain by less than this, relative to the bound, was rounded out of it.
_FEASIBILITY = 1e-12

PURE_L2, SEPARABLE, SIMPLEX = 0, 1, 2


class Kernel(NamedTuple):
    """A penalty as plain scalars and arrays, the form that compiled loops take.

    Examples
    --------
    >>> from sorel.penalties import ElasticNet
    >>> ElasticNet(0.5, 0.1).kernel(2)
    Kernel(code=1, l2=0.5, l1=0.1, lower=array([-inf, -inf]), upper=array([inf, inf]))
    """

    code: int
    l2: float
    l1: float
    lower: Array
    upper: Array


def _number(value: Any, name: str) -> float:
    """Return `value` as a float; refuse what is not a real number (bool and str included)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {value!r} ({type(value).__name__}).")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got nan.")
    return number


def _check_step(step: float, name: str = "step") -> None:
    if not 0.0 < step < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {step!r}.")


def _soft(v: Array, threshold: float) -> Array:
    """Soft thresholding, sign(v) max(|v| - threshold, 0)."""
    return v - np.clip(v, -threshold, threshold)


@dataclass(frozen=True)
class Penalty(ABC):
    """Base class: ``g(w) = l2/2 ||w||^2 + h(w)``. Instances are immutable values.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, mu > 0.

    Attributes
    ----------
    name : str
        How messages call the penalty.
    smooth : bool
        Whether g is differentiable (and has `gradient`).
    separable : bool
        Whether g is a sum over coordinates.

    Examples
    --------
    >>> from sorel.penalties import L2, Penalty
    >>> isinstance(L2(0.1), Penalty)
    True
    """

    l2: float

    name: ClassVar[str]
    smooth: ClassVar[bool] = False
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        l2 = _number(self.l2, "l2")
        if not 0.0 < l2 < math.inf:
            raise ValueError(
                f"l2 must be a finite number > 0, got {self.l2!r}: the duality gap and the "
                f"convergence of the solvers need strong convexity. Pass a small value such as "
                f"{type(self).__name__}(l2=1/n) with n the number of samples."
            )
        object.__setattr__(self, "l2", l2)

    @abstractmethod
    def value(self, w: ArrayLike) -> float:
        """g(w); infinity where w leaves the domain by more than rounding."""

    @abstractmethod
    def prox(self, v: ArrayLike, step: float) -> Array:
        """argmin_u g(u) + ||u - v||^2 / (2 step)."""

    def prox_centered(self, v: ArrayLike, step: float, center: ArrayLike, tau: float) -> Array:
        """argmin_u g(u) + ||u - center||^2 / (2 tau) + ||u - v||^2 / (2 step).

        The two quadratics are one, around a point between `v` and `center`, so this is a single
        ordinary `prox`. ``tau = inf`` drops the centre.
        """
        _check_step(step)
        if not tau > 0.0:
            raise ValueError(f"tau must be > 0 (inf for no centre), got {tau!r}.")
        v = np.asarray(v, dtype=np.float64)
        ratio = step / tau
        toward_center = (np.asarray(center, dtype=np.float64) - v) * (ratio / (1.0 + ratio))
        return self.prox(v + toward_center, step / (1.0 + ratio))

    @abstractmethod
    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """argmax_u v.u - g(u), the gradient of the conjugate at `v`."""

    def conjugate(self, v: ArrayLike) -> float:
        """g*(v) = max_u v.u - g(u), finite for every `v`."""
        v = np.asarray(v, dtype=np.float64)
        u = self.conjugate_gradient(v)
        return float(np.vdot(v, u)) - self.value(u)

    @abstractmethod
    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """g(w) + g*(v) - v.w >= 0, as a sum of nonnegative terms, without cancellation.

        With u = grad g*(v), so that v = l2 u + q and q is a subgradient of h at u, it equals
        l2/2 ||w - u||^2 plus the Bregman distance h(w) - h(u) - q.(w - u).
        """

    def gradient(self, w: ArrayLike) -> Array:
        """Gradient of g; only the smooth penalties have one."""
        raise TypeError(f"The {self.name} penalty is not smooth and has no gradient; use prox().")

    @abstractmethod
    def project(self, w: ArrayLike) -> Array:
        """Euclidean projection onto the domain of g, as a new array."""

    def feasible_start(self, d: int | tuple[int, ...]) -> Array:
        """Return the point of the domain nearest to the origin, of length or shape `d`."""
        return self.project(np.zeros(d))

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        """Bounds of the domain as two arrays of length `d`; None where there are none."""
        return None

    @abstractmethod
    def kernel(self, d: int) -> Kernel:
        """Return (code, l2, l1, lower, upper) for the compiled loops; arrays have length `d`."""


@dataclass(frozen=True)
class L2(Penalty):
    """Ridge penalty ``l2/2 ||w||^2``.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, > 0.

    Examples
    --------
    >>> from sorel import L2
    >>> penalty = L2(0.5)
    >>> penalty.value([3.0, 4.0])
    6.25
    >>> penalty.prox([3.0, 4.0], step=2.0)
    array([1.5, 2. ])
    """

    name: ClassVar[str] = "L2"
    smooth: ClassVar[bool] = True

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2."""
        w = np.asarray(w, dtype=np.float64)
        return 0.5 * self.l2 * float(np.vdot(w, w))

    def gradient(self, w: ArrayLike) -> Array:
        """l2 w."""
        return self.l2 * np.asarray(w, dtype=np.float64)

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Return v / (1 + step l2)."""
        _check_step(step)
        return np.asarray(v, dtype=np.float64) / (1.0 + step * self.l2)

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Return v / l2."""
        return np.asarray(v, dtype=np.float64) / self.l2

    def conjugate(self, v: ArrayLike) -> float:
        """||v||^2 / (2 l2)."""
        v = np.asarray(v, dtype=np.float64)
        return 0.5 * float(np.vdot(v, v)) / self.l2

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """||v - l2 w||^2 / (2 l2)."""
        residual = np.asarray(v, dtype=np.float64) - self.l2 * np.asarray(w, dtype=np.float64)
        return 0.5 * float(np.vdot(residual, residual)) / self.l2

    def project(self, w: ArrayLike) -> Array:
        """Return a copy of `w`: every point is in the domain."""
        return np.array(w, dtype=np.float64)

    def kernel(self, d: int) -> Kernel:
        """Return code 0 and no bounds."""
        return Kernel(PURE_L2, self.l2, 0.0, np.full(d, -math.inf), np.full(d, math.inf))


@dataclass(frozen=True)
class _Separable(Penalty):
    """``sum_j l2/2 w_j^2 + l1 |w_j| + indicator(lower_j <= w_j <= upper_j)``."""

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        """Return l1 and the bounds, in a form that broadcasts against coefficients of `shape`."""
        return 0.0, -math.inf, math.inf

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2 + l1 ||w||_1; infinity outside the bounds by more than rounding."""
        w = np.asarray(w, dtype=np.float64)
        l1, lower, upper = self._terms(w.shape)
        slack = _FEASIBILITY * np.maximum(1.0, np.abs(w))
        if np.any(w < lower - slack) or np.any(w > upper + slack):
            return math.inf
        quadratic = 0.5 * self.l2 * float(np.vdot(w, w))
        return quadratic + l1 * float(np.abs(w).sum()) if l1 else quadratic

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Soft thresholding, shrinkage, and clipping to the bounds."""
        _check_step(step)
        v = np.asarray(v, dtype=np.float64)
        l1, lower, upper = self._terms(v.shape)
        # In one dimension, the minimiser over an interval is the clipped free minimiser.
        return np.clip(_soft(v, step * l1) / (1.0 + step * self.l2), lower, upper)

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Soft thresholding of `v` over l2, clipped to the bounds."""
        v = np.asarray(v, dtype=np.float64)
        l1, lower, upper = self._terms(v.shape)
        return np.clip(_soft(v, l1) / self.l2, lower, upper)

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """Sum over coordinates of l2/2 (w - u)^2, an l1 term and a term of the bounds."""
        w = np.asarray(w, dtype=np.float64)
        v = np.asarray(v, dtype=np.float64)
        if not math.isfinite(self.value(w)):
            return math.inf
        l1, lower, upper = self._terms(w.shape)
        free = _soft(v, l1) / self.l2
        u = np.clip(free, lower, upper)
        residual = self.l2 * (w - u)
        total = 0.5 * float(np.vdot(residual, residual)) / self.l2
        # q = v - l2 u splits into a subgradient `slope` of l1|.| at u and a multiplier of the
        # bounds; each part pays its own nonnegative term.
        slope = np.zeros_like(v)
        if l1:
            slope = np.where(u != 0.0, l1 * np.sign(u), np.clip(v, -l1, l1))
            total += float(np.sum(np.abs(w) * (l1 - np.sign(w) * slope)))
        clipped = u != free
        if clipped.any():
            multiplier = np.where(clipped, v - self.l2 * u - slope, 0.0)
            # Where a bound is clipped at, u is that bound: u - w is the slack of the constraint.
            total += float(np.sum(np.maximum(multiplier * (u - w), 0.0)))
        return total

    def project(self, w: ArrayLike) -> Array:
        """Clip `w` to the bounds."""
        w = np.array(w, dtype=np.float64)
        _, lower, upper = self._terms(w.shape)
        return np.clip(w, lower, upper)

    def kernel(self, d: int) -> Kernel:
        """Return code 1, l1 and the bounds of every coefficient."""
        l1, lower, upper = self._terms((d,))
        filled = (np.array(np.broadcast_to(bound, d), dtype=np.float64) for bound in (lower, upper))
        return Kernel(SEPARABLE, self.l2, l1, *filled)


@dataclass(frozen=True)
class ElasticNet(_Separable):
    """Elastic net ``l2/2 ||w||^2 + l1 ||w||_1``.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, > 0.
    l1 : float
        Weight of the l1 norm, >= 0; larger values give sparser coefficients.

    Examples
    --------
    >>> from sorel import ElasticNet
    >>> penalty = ElasticNet(l2=1.0, l1=0.5)
    >>> penalty.prox([2.0, -0.25], step=1.0)
    array([0.75, 0.  ])
    """

    l1: float

    name: ClassVar[str] = "elastic net"

    def __post_init__(self) -> None:
        super().__post_init__()
        l1 = _number(self.l1, "l1")
        if not 0.0 <= l1 < math.inf:
            raise ValueError(f"l1 must be a finite number >= 0, got {self.l1!r}.")
        object.__setattr__(self, "l1", l1)

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        return self.l1, -math.inf, math.inf


@dataclass(frozen=True)
class NonNegative(_Separable):
    """Ridge penalty on nonnegative coefficients, ``l2/2 ||w||^2 + indicator(w >= 0)``.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, > 0.

    Examples
    --------
    >>> from sorel import NonNegative
    >>> penalty = NonNegative(1.0)
    >>> penalty.value([1.0, -1.0])
    inf
    >>> penalty.prox([2.0, -2.0], step=1.0)
    array([1., 0.])
    """

    name: ClassVar[str] = "nonnegative"

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        return 0.0, 0.0, math.inf

    def bounds(self, d: int) -> tuple[Array, Array]:
        """Bounds 0 and infinity."""
        return np.zeros(d), np.full(d, math.inf)


def _bound(value: Any, name: str) -> float | Array:
    """Validate one bound of a box: a float, or a read-only float array of length d."""
    if isinstance(value, Real) or np.ndim(value) == 0:
        return _number(value.item() if isinstance(value, np.ndarray) else value, name)
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or array.size == 0:
        raise TypeError(
            f"{name} must be a number or a one-dimensional array of numbers, one per "
            f"coefficient; got an array of shape {array.shape} and dtype {array.dtype}."
        )
    array = array.astype(np.float64)
    if np.isnan(array).any():
        raise ValueError(f"{name} must not contain nan; use -inf or inf for no bound.")
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Box(_Separable):
    """Ridge penalty on bounded coefficients, ``l2/2 ||w||^2 + indicator(lower <= w <= upper)``.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, > 0.
    lower, upper : float or array of shape (d,), default -1 and 1
        Bounds, ``lower <= upper``; infinities are allowed. With K outputs, an array bounds
        every column.

    Examples
    --------
    >>> from sorel import Box
    >>> Box(1.0, lower=0.0, upper=[0.5, 2.0]).prox([3.0, 3.0], step=1.0)
    array([0.5, 1.5])
    """

    lower: float | Array = -1.0
    upper: float | Array = 1.0

    name: ClassVar[str] = "box"

    def __post_init__(self) -> None:
        super().__post_init__()
        lower, upper = _bound(self.lower, "lower"), _bound(self.upper, "upper")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if np.ndim(lower) and np.ndim(upper) and np.shape(lower) != np.shape(upper):
            raise ValueError(
                f"lower and upper must have the same length, got {np.size(lower)} and "
                f"{np.size(upper)}."
            )
        # An interval that holds no real number is empty too: [inf, inf] and [-inf, -inf].
        empty = np.greater(lower, upper) | np.equal(lower, math.inf) | np.equal(upper, -math.inf)
        if empty.any():
            lows, highs = np.broadcast_arrays(lower, upper)
            at = np.flatnonzero(empty)[0]
            where = f" at index {at}" if empty.ndim else ""
            raise ValueError(
                f"lower <= upper must hold with a real number between them; got "
                f"lower={lows.flat[at]:g} and upper={highs.flat[at]:g}{where}."
            )

    def _key(self) -> tuple[Any, ...]:
        bounds = (
            tuple(bound.tolist()) if isinstance(bound, np.ndarray) else bound
            for bound in (self.lower, self.upper)
        )
        return (self.l2, *bounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Box):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because a copied or unpickled array would be writeable again.
        return type(self), (self.l2, self.lower, self.upper)

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if isinstance(bound, np.ndarray) and bound.shape[0] != shape[0]:
                raise ValueError(
                    f"{name} has {bound.shape[0]} entries, but there are {shape[0]} "
                    f"coefficients: give a scalar or one bound per coefficient."
                )
        lower, upper = self.lower, self.upper
        if len(shape) == 2:
            lower = lower[:, None] if isinstance(lower, np.ndarray) else lower
            upper = upper[:, None] if isinstance(upper, np.ndarray) else upper
        return 0.0, lower, upper

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        """Bounds as two arrays of length `d`; None where all are infinite."""
        kernel = self.kernel(d)
        if np.all(np.isinf(kernel.lower)) and np.all(np.isinf(kernel.upper)):
            return None
        return kernel.lower, kernel.upper


def _simplex_threshold(v: Array) -> Array:
    """Return theta, one per column of `v`, such that ``max(v - theta, 0)`` sums to one."""
    top = v.max(axis=0)
    # Relative to the largest entry the support lies in [-1, 0], whatever the size of v.
    descending = -np.sort(top - v, axis=0)
    ranks = np.arange(1.0, v.shape[0] + 1.0).reshape((-1,) + (1,) * (v.ndim - 1))
    excess = np.cumsum(descending, axis=0) - 1.0
    size = np.count_nonzero(descending * ranks > excess, axis=0)
    # size >= 1 always: the first comparison is 0 > -1.
    last = np.take_along_axis(excess, np.expand_dims(np.asarray(size) - 1, 0), axis=0)[0]
    return top + last / size


def _project_simplex(v: Array) -> Array:
    """Project each column of `v` onto the probability simplex."""
    shifted = v - v.max(axis=0)
    projected: Array = np.maximum(shifted - _simplex_threshold(shifted), 0.0)
    return projected


@dataclass(frozen=True)
class Simplex(Penalty):
    """Ridge penalty on the simplex, ``l2/2 ||w||^2 + indicator(w >= 0, sum(w) = 1)``.

    Coefficients are then the weights of a portfolio or of a mixture. With K outputs, each column
    lies on a simplex.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, > 0.

    Examples
    --------
    >>> from sorel import Simplex
    >>> penalty = Simplex(1.0)
    >>> penalty.prox([2.0, 1.0, -3.0], step=1.0)
    array([0.75, 0.25, 0.  ])
    """

    name: ClassVar[str] = "simplex"
    separable: ClassVar[bool] = False

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2 on the simplex; infinity off it by more than rounding."""
        w = np.asarray(w, dtype=np.float64)
        slack = _FEASIBILITY * max(1.0, math.sqrt(w.shape[0]))
        if np.any(w < -_FEASIBILITY) or np.any(np.abs(w.sum(axis=0) - 1.0) > slack):
            return math.inf
        return 0.5 * self.l2 * float(np.vdot(w, w))

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Projection of v / (1 + step l2) onto the simplex."""
        _check_step(step)
        return _project_simplex(np.asarray(v, dtype=np.float64) / (1.0 + step * self.l2))

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Projection of v / l2 onto the simplex."""
        return _project_simplex(np.asarray(v, dtype=np.float64) / self.l2)

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """l2/2 ||w - u||^2 plus what w pays off the support of u = grad g*(v)."""
        w = np.asarray(w, dtype=np.float64)
        if not math.isfinite(self.value(w)):
            return math.inf
        # A common shift of a column changes nothing on the simplex, and costs digits.
        v = np.asarray(v, dtype=np.float64)
        free = (v - v.max(axis=0)) / self.l2
        excess = free - _simplex_threshold(free)
        u = np.maximum(excess, 0.0)
        # Off the support of u, -excess is the multiplier of w >= 0; on it, that is zero.
        multiplier = np.maximum(-excess, 0.0)
        difference = w - u
        quadratic = 0.5 * float(np.vdot(difference, difference))
        return self.l2 * (quadratic + float(np.vdot(multiplier, np.maximum(w, 0.0))))

    def project(self, w: ArrayLike) -> Array:
        """Project every column onto the simplex."""
        return _project_simplex(np.asarray(w, dtype=np.float64))

    def bounds(self, d: int) -> tuple[Array, Array]:
        """Bounds 0 and 1 of the simplex, which leave out that the coefficients sum to one."""
        return np.zeros(d), np.ones(d)

    def kernel(self, d: int) -> Kernel:
        """Return code 2 and the bounds 0 and 1."""
        return Kernel(SIMPLEX, self.l2, 0.0, np.zeros(d), np.ones(d))
