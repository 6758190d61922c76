"""Penalties g(w): value, proximal map, conjugate and Fenchel-Young gap.

`Penalty` is the contract, which a class of your own can fill in. The penalties of the package are
``g(w) = l2/2 ||w||^2 + h(w)`` with ``h`` a norm or the indicator of a simple set. A conjugate
``g*`` that is finite everywhere is what makes the duality gap of a problem computable: its second
bracket is the Fenchel-Young gap ``g(w) + g*(v) - v.w``. Strong convexity (``mu = l2 > 0``) makes it
finite, and so does a bounded domain, where l2 may be 0.

Coefficients are arrays of shape (d,) or, for K outputs, (d, K). Intercepts are never penalised;
callers strip them.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel.kernels.prox import PURE_L2, SEPARABLE, SIMPLEX, prox_inplace, prox_inplace_outputs

__all__ = [
    "Box",
    "ElasticNet",
    "Kernel",
    "L2",
    "NonNegative",
    "PURE_L2",
    "Penalty",
    "SEPARABLE",
    "SIMPLEX",
    "Simplex",
    "prox_inplace",
    "prox_inplace_outputs",
]

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)

# A point that leaves the domain by less than this, relative to the bound, was rounded out of it.
_FEASIBILITY = 1e-12

# A proximal step so short that it only projects, and the longest difference, in parts of a
# direction, that stands for a derivative.
_NO_STEP = 2.0**-100
_LONGEST_DIFFERENCE = 0.1

# Up to this, relative to their terms, the formulas of a penalty must agree with each other.
_AGREEMENT = 1e-6


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


def _dot(a: ArrayLike, b: ArrayLike) -> float:
    return float(np.vdot(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)))


def _soft(v: Array, threshold: float) -> Array:
    """Soft thresholding, sign(v) max(|v| - threshold, 0)."""
    return v - np.clip(v, -threshold, threshold)


class Penalty(ABC):
    """The contract: a convex function g of the coefficients, which solvers and certificate ask.

    A subclass has the attribute `l2` and the methods `value`, `prox` and `conjugate`, which must
    belong to the same g. All else follows from them, and is worth giving where a formula of its own
    is faster or more accurate. A subclass of one of the package's penalties that changes one of the
    three has a g of its own: it inherits none of the formulas that rest on them.

    Attributes
    ----------
    l2 : float
        Modulus of strong convexity mu: ``g - l2/2 ||w||^2`` is convex. Above 0, or 0 where the
        domain is bounded.
    name : str
        How messages call the penalty; the name of the class unless it says otherwise.
    compact : bool
        Whether the domain of g is bounded.
    smooth : bool
        Whether g is differentiable everywhere, and has a `gradient`.
    smooth_in_bounds : bool
        Whether it is inside its `bounds`, which are all of its domain, and has a `gradient` there.
    separable : bool
        Whether g is a sum over coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.penalties import Penalty
    >>> class Ball(Penalty):  # coefficients of length 1 at most
    ...     l2, compact = 0.0, True
    ...
    ...     def value(self, w):
    ...         return 0.0 if np.linalg.norm(w) <= 1.0 + 1e-12 else np.inf
    ...
    ...     def prox(self, v, step):
    ...         return np.asarray(v) / max(1.0, np.linalg.norm(v))
    ...
    ...     def conjugate(self, v):
    ...         return np.linalg.norm(v)
    >>> Ball().project([3.0, 4.0])
    array([0.6, 0.8])
    """

    l2: float

    name: ClassVar[str]
    compact: bool = False
    smooth: bool = False
    smooth_in_bounds: bool = False
    separable: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "name" not in own:
            cls.name = cls.__name__
        if any(_from_package(cls, name) for name in own.keys() & _PREMISES):
            for name in _CONSEQUENCES - own.keys():
                if _from_package(cls, name):
                    setattr(cls, name, vars(Penalty)[name])

    def __repr__(self) -> str:
        public = ((name, value) for name, value in vars(self).items() if not name.startswith("_"))
        settings = ", ".join(f"{name}={value!r}" for name, value in public)
        return f"{type(self).__name__}({settings})"

    @abstractmethod
    def value(self, w: ArrayLike) -> float:
        """g(w); infinity where w leaves the domain by more than rounding."""

    @abstractmethod
    def prox(self, v: ArrayLike, step: float) -> Array:
        """argmin_u g(u) + ||u - v||^2 / (2 step), for ``step > 0``, as a new array."""

    @abstractmethod
    def conjugate(self, v: ArrayLike) -> float:
        """g*(v) = max_u v.u - g(u), finite for every `v`."""

    @property
    def quadratic(self) -> bool:
        """Whether g is ``l2/2 ||w||^2`` and no more: true of :class:`L2` alone."""
        return False

    @property
    def compiled(self) -> bool:
        """Whether compiled loops know this g: true of the package's own classes, not of others.

        A subclass may have other formulas, so it does not count as its parent.
        """
        return type(self) in _COMPILED

    def kernel(self, d: int) -> Kernel:
        """Return (code, l2, l1, lower, upper) for the compiled loops; arrays have length `d`.

        Only where `compiled` is true.
        """
        raise TypeError(
            f"The {self.name} penalty has no compiled form; the solvers of full passes do without."
        )

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

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """argmax_u v.u - g(u): the gradient of the conjugate at `v`, or one of its subgradients.

        No solver asks for it.
        """
        raise TypeError(f"The {self.name} penalty gives no gradient of its conjugate.")

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """g(w) + g*(v) - v.w >= 0, and never less than its exact value.

        Here a difference of numbers that may be far larger than the result, plus a bound on what
        their rounding took away. A sum of nonnegative terms keeps more digits, where there is one:
        with u = grad g*(v), so that v = l2 u + q and q is a subgradient of h = g - l2/2 ||.||^2 at
        u, it is l2/2 ||w - u||^2 plus the Bregman distance h(w) - h(u) - q.(w - u).
        """
        w, v = np.asarray(w, dtype=np.float64), np.asarray(v, dtype=np.float64)
        value = float(self.value(w))
        if not math.isfinite(value):
            return math.inf
        gap, size = _gap(value, float(self.conjugate(v)), w, v)
        # NumPy adds in pairs, so that the error of a sum grows with the logarithm of its length.
        return max(gap + (8.0 + math.log2(w.size)) * _EPS * size, 0.0)

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """lim_{t -> 0+} (g(w + t delta) - g(w)) / t, for a direction that stays in the domain.

        Here a difference, of all but the square in g. It is as good as the values of g are, which
        suits a line search.
        """
        w, delta = np.asarray(w, dtype=np.float64), np.asarray(delta, dtype=np.float64)
        length, size = float(np.linalg.norm(delta)), float(np.linalg.norm(w))
        if length == 0.0:
            return 0.0
        step = min(math.sqrt(_EPS) * max(size, length) / length, _LONGEST_DIFFERENCE)
        change = float(self.value(w + step * delta)) - float(self.value(w))
        # The square in g has changed by l2 (step w.delta + step^2 |delta|^2 / 2).
        return change / step - 0.5 * self.l2 * step * length**2

    def gradient(self, w: ArrayLike) -> Array:
        """Gradient of g where it is `smooth`, inside its bounds where it is `smooth_in_bounds`."""
        raise TypeError(f"The {self.name} penalty is not smooth and has no gradient; use prox().")

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """The shortest vector of ``slope + dg(w)``, dg the subdifferential; walls may be left out.

        Here by a short proximal step from w along -slope.
        """
        w, slope = np.asarray(w, dtype=np.float64), np.asarray(slope, dtype=np.float64)
        size, length = float(np.linalg.norm(w)), float(np.linalg.norm(slope))
        step = math.sqrt(_EPS) * (size or 1.0) / (length or 1.0)
        return (w - self.prox(w - step * slope, step)) / step

    def plus_ridge(self, extra: float) -> Penalty:
        """The penalty ``g + extra/2 ||w||^2``, for ``extra > 0``."""
        return _PlusRidge(self, extra)

    def project(self, w: ArrayLike) -> Array:
        """Euclidean projection onto the domain of g, as a new array."""
        # In a step this short only the domain counts.
        return np.array(self.prox(np.asarray(w, dtype=np.float64), _NO_STEP), dtype=np.float64)

    def feasible_start(self, d: int | tuple[int, ...]) -> Array:
        """Return the point of the domain nearest to the origin, of length or shape `d`."""
        return self.project(np.zeros(d))

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        """Bounds of the domain as two arrays of length `d`; None where there are none."""
        return None


# What a penalty is, and what the base class makes of it.
_PREMISES = {"value", "prox", "conjugate"}
_CONSEQUENCES = {
    name
    for name in vars(Penalty)
    if name not in _PREMISES and name not in ("name", "compiled") and not name.startswith("_")
}


def _from_package(cls: type, name: str) -> bool:
    """Whether what a class inherits under this name is a formula of the package's own penalties."""
    origin = next(parent for parent in cls.__mro__[1:] if name in vars(parent))
    return origin.__module__ == __name__ and origin is not Penalty


class _PlusRidge(Penalty):
    """``g + extra/2 ||w||^2``, from the proximal map of g alone."""

    def __init__(self, penalty: Penalty, extra: float) -> None:
        self.penalty, self.extra = penalty, extra
        self.l2 = penalty.l2 + extra
        self.compact, self.separable = penalty.compact, penalty.separable

    def value(self, w: ArrayLike) -> float:
        return self.penalty.value(w) + 0.5 * self.extra * _dot(w, w)

    def prox(self, v: ArrayLike, step: float) -> Array:
        shrink = 1.0 / (1.0 + step * self.extra)
        return self.penalty.prox(shrink * np.asarray(v, dtype=np.float64), shrink * step)

    def conjugate(self, v: ArrayLike) -> float:
        v = np.asarray(v, dtype=np.float64)
        u = self.conjugate_gradient(v)
        return float(np.vdot(v, u)) - self.value(u)

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        return self.penalty.prox(np.asarray(v, dtype=np.float64) / self.extra, 1.0 / self.extra)

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        slope = self.penalty.directional_derivative(w, delta)
        return slope + self.extra * _dot(w, delta)

    def project(self, w: ArrayLike) -> Array:
        return self.penalty.project(w)

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        return self.penalty.bounds(d)


@dataclass(frozen=True)
class _BuiltIn(Penalty):
    """What the package's own penalties share. Instances are immutable values."""

    l2: float

    def __post_init__(self) -> None:
        l2 = _number(self.l2, "l2")
        object.__setattr__(self, "l2", l2)
        if l2 == 0.0 and self.compact:
            return
        if not 0.0 < l2 < math.inf:
            raise ValueError(
                f"l2 must be a finite number {'>=' if self.compact else '>'} 0, got {l2!r}: the "
                "duality gap and the convergence of the solvers need strong convexity"
                f"{self._exception()}. Pass a small value such as {type(self).__name__}(l2=1/n) "
                "with n the number of samples."
            )

    def _exception(self) -> str:
        """What would have made an l2 of 0 possible, for the message."""
        return ""

    def plus_ridge(self, extra: float) -> Penalty:
        """The same penalty with a larger l2."""
        if not self.compiled:
            return super().plus_ridge(extra)
        return replace(self, l2=self.l2 + extra)


@dataclass(frozen=True)
class L2(_BuiltIn):
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
    smooth = True
    smooth_in_bounds = True
    separable = True

    @property
    def quadratic(self) -> bool:
        """True, but for a subclass, whose formulas may be others."""
        return type(self) is L2

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

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta."""
        return self.l2 * _dot(w, delta)

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """Return slope + l2 w: there is no other."""
        return np.asarray(slope, dtype=np.float64) + self.l2 * np.asarray(w, dtype=np.float64)

    def project(self, w: ArrayLike) -> Array:
        """Return a copy of `w`: every point is in the domain."""
        return np.array(w, dtype=np.float64)

    def kernel(self, d: int) -> Kernel:
        """Return code 0 and no bounds."""
        return Kernel(PURE_L2, self.l2, 0.0, np.full(d, -math.inf), np.full(d, math.inf))


@dataclass(frozen=True)
class _Separable(_BuiltIn):
    """``sum_j l2/2 w_j^2 + l1 |w_j| + indicator(lower_j <= w_j <= upper_j)``."""

    separable = True

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        """Return l1 and the bounds, in a form that broadcasts against coefficients of `shape`."""
        return 0.0, -math.inf, math.inf

    def _finite(self, w: Array, l1: float) -> float:
        """g(w) inside the bounds."""
        quadratic = 0.5 * self.l2 * float(np.vdot(w, w))
        return quadratic + l1 * float(np.abs(w).sum()) if l1 else quadratic

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2 + l1 ||w||_1; infinity outside the bounds by more than rounding."""
        w = np.asarray(w, dtype=np.float64)
        l1, lower, upper = self._terms(w.shape)
        return self._finite(w, l1) if _inside(w, lower, upper) else math.inf

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Soft thresholding, shrinkage, and clipping to the bounds."""
        _check_step(step)
        v = np.asarray(v, dtype=np.float64)
        l1, lower, upper = self._terms(v.shape)
        # In one dimension, the minimiser over an interval is the clipped free minimiser.
        return np.clip(_soft(v, step * l1) / (1.0 + step * self.l2), lower, upper)

    def _maximiser(
        self, v: Array, l1: float, lower: Any, upper: Any
    ) -> tuple[Array, NDArray[np.bool_]]:
        """argmax_u v.u - g(u), and where a bound decides it."""
        pull = _soft(v, l1)
        if self.l2 > 0.0:
            free = pull / self.l2
            u = np.clip(free, lower, upper)
            return u, u != free
        # Without curvature the least pull leads to a bound, and none leaves a choice.
        rest = np.clip(np.zeros_like(v), lower, upper)
        return np.where(pull > 0.0, upper, np.where(pull < 0.0, lower, rest)), pull != 0.0

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Soft thresholding of `v` over l2, clipped to the bounds; a bound where l2 is 0."""
        v = np.asarray(v, dtype=np.float64)
        return self._maximiser(v, *self._terms(v.shape))[0]

    def conjugate(self, v: ArrayLike) -> float:
        """v.u - g(u) at u = grad g*(v)."""
        v = np.asarray(v, dtype=np.float64)
        l1, lower, upper = self._terms(v.shape)
        u, _ = self._maximiser(v, l1, lower, upper)
        return float(np.vdot(v, u)) - self._finite(u, l1)

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """Sum over coordinates of l2/2 (w - u)^2, an l1 term and a term of the bounds."""
        w = np.asarray(w, dtype=np.float64)
        v = np.asarray(v, dtype=np.float64)
        l1, lower, upper = self._terms(w.shape)
        if not _inside(w, lower, upper):
            return math.inf
        u, clipped = self._maximiser(v, l1, lower, upper)
        total = 0.0
        if self.l2 > 0.0:
            residual = self.l2 * (w - u)
            total = 0.5 * float(np.vdot(residual, residual)) / self.l2
        # q = v - l2 u splits into a subgradient `slope` of l1|.| at u and a multiplier of the
        # bounds; each part pays its own nonnegative term.
        slope = np.zeros_like(v)
        if l1:
            slope = np.where(u != 0.0, l1 * np.sign(u), np.clip(v, -l1, l1))
            total += float(np.sum(np.abs(w) * (l1 - np.sign(w) * slope)))
        if clipped.any():
            multiplier = np.where(clipped, v - self.l2 * u - slope, 0.0)
            # Where a bound is clipped at, u is that bound: u - w is the slack of the constraint.
            total += float(np.sum(np.maximum(multiplier * (u - w), 0.0)))
        return total

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta, and l1 times how fast the absolute values grow."""
        w, delta = np.asarray(w, dtype=np.float64), np.asarray(delta, dtype=np.float64)
        slope = self.l2 * float(np.vdot(w, delta))
        l1 = self._terms(w.shape)[0]
        if l1:
            slope += l1 * float(np.vdot(np.sign(w), delta) + np.abs(delta[w == 0.0]).sum())
        return slope

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """Coordinate by coordinate, the bounds left out."""
        w = np.asarray(w, dtype=np.float64)
        free = np.asarray(slope, dtype=np.float64) + self.l2 * w
        l1 = self._terms(w.shape)[0]
        if not l1:
            return free
        return np.where(w == 0.0, _soft(free, l1), free + l1 * np.sign(w))

    def gradient(self, w: ArrayLike) -> Array:
        """l2 w + l1 sign(w) inside the bounds."""
        if not self.smooth_in_bounds:
            return super().gradient(w)
        w = np.asarray(w, dtype=np.float64)
        # Where l1 is not 0, no coefficient is negative.
        return self.l2 * w + self._terms(w.shape)[0]

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


def _inside(w: Array, lower: Any, upper: Any) -> bool:
    """Whether w is within the bounds, up to rounding."""
    slack = _FEASIBILITY * np.maximum(1.0, np.abs(w))
    return not (np.any(w < lower - slack) or np.any(w > upper + slack))


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
        object.__setattr__(self, "l1", _check_l1(self.l1))

    @property
    def smooth_in_bounds(self) -> bool:  # type: ignore[override] # no attribute of the class here
        """Whether l1 is 0."""
        return self.l1 == 0.0

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        return self.l1, -math.inf, math.inf


@dataclass(frozen=True)
class NonNegative(_Separable):
    """Nonnegative coefficients, ``l2/2 ||w||^2 + l1 sum(w) + indicator(w >= 0)``.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, > 0.
    l1 : float, default=0.0
        Weight of the l1 norm, >= 0; larger values give sparser coefficients.

    Examples
    --------
    >>> from sorel import NonNegative
    >>> penalty = NonNegative(1.0)
    >>> penalty.value([1.0, -1.0])
    inf
    >>> penalty.prox([2.0, -2.0], step=1.0)
    array([1., 0.])
    """

    l1: float = 0.0

    name: ClassVar[str] = "nonnegative"
    smooth_in_bounds = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "l1", _check_l1(self.l1))

    def _terms(self, shape: tuple[int, ...]) -> tuple[float, Any, Any]:
        return self.l1, 0.0, math.inf

    def bounds(self, d: int) -> tuple[Array, Array]:
        """Bounds 0 and infinity."""
        return np.zeros(d), np.full(d, math.inf)


def _check_l1(value: Any) -> float:
    l1 = _number(value, "l1")
    if not 0.0 <= l1 < math.inf:
        raise ValueError(f"l1 must be a finite number >= 0, got {value!r}.")
    return l1


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
        Modulus of strong convexity, > 0; 0 is allowed where all bounds are finite.
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
    smooth_in_bounds = True

    def __post_init__(self) -> None:
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
        super().__post_init__()

    @property
    def compact(self) -> bool:  # type: ignore[override] # no attribute of the class here
        """Whether all bounds are finite."""
        return bool(np.all(np.isfinite(self.lower)) and np.all(np.isfinite(self.upper)))

    def _exception(self) -> str:
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            for at in np.flatnonzero(np.isinf(bound))[:1]:
                where = f" at index {at}" if np.ndim(bound) else ""
                return f", and only finite bounds replace it: {name} is infinite{where}"
        return ""

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
class Simplex(_BuiltIn):
    """Ridge penalty on the simplex, ``l2/2 ||w||^2 + indicator(w >= 0, sum(w) = 1)``.

    Coefficients are then the weights of a portfolio or of a mixture. With K outputs, each column
    lies on a simplex.

    Parameters
    ----------
    l2 : float
        Modulus of strong convexity, >= 0.

    Examples
    --------
    >>> from sorel import Simplex
    >>> penalty = Simplex(1.0)
    >>> penalty.prox([2.0, 1.0, -3.0], step=1.0)
    array([0.75, 0.25, 0.  ])
    >>> Simplex(0.0).conjugate([2.0, 1.0, -3.0])
    2.0
    """

    name: ClassVar[str] = "simplex"
    compact = True

    def _inside(self, w: Array) -> bool:
        slack = _FEASIBILITY * max(1.0, math.sqrt(w.shape[0]))
        return not (np.any(w < -_FEASIBILITY) or np.any(np.abs(w.sum(axis=0) - 1.0) > slack))

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2 on the simplex; infinity off it by more than rounding."""
        w = np.asarray(w, dtype=np.float64)
        return 0.5 * self.l2 * float(np.vdot(w, w)) if self._inside(w) else math.inf

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Projection of v / (1 + step l2) onto the simplex."""
        _check_step(step)
        return _project_simplex(np.asarray(v, dtype=np.float64) / (1.0 + step * self.l2))

    def _maximiser(self, v: Array) -> Array:
        if self.l2 > 0.0:
            return _project_simplex(v / self.l2)
        u = np.zeros_like(v)
        np.put_along_axis(u, np.expand_dims(v.argmax(axis=0), 0), 1.0, axis=0)
        return u

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Projection of v / l2 onto the simplex; the corner of the largest entry where l2 is 0."""
        return self._maximiser(np.asarray(v, dtype=np.float64))

    def conjugate(self, v: ArrayLike) -> float:
        """v.u - g(u) at u = grad g*(v); the largest entry, summed over columns, where l2 is 0."""
        v = np.asarray(v, dtype=np.float64)
        u = self._maximiser(v)
        return float(np.vdot(v, u)) - 0.5 * self.l2 * float(np.vdot(u, u))

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """l2/2 ||w - u||^2 plus what w pays off the support of u = grad g*(v)."""
        w = np.asarray(w, dtype=np.float64)
        if not self._inside(w):
            return math.inf
        # A common shift of a column changes nothing on the simplex, and costs digits.
        v = np.asarray(v, dtype=np.float64)
        shifted = v - v.max(axis=0)
        if self.l2 == 0.0:
            return float(-np.vdot(shifted, np.maximum(w, 0.0)))
        free = shifted / self.l2
        excess = free - _simplex_threshold(free)
        u = np.maximum(excess, 0.0)
        # Off the support of u, -excess is the multiplier of w >= 0; on it, that is zero.
        multiplier = np.maximum(-excess, 0.0)
        difference = w - u
        quadratic = 0.5 * float(np.vdot(difference, difference))
        return self.l2 * (quadratic + float(np.vdot(multiplier, np.maximum(w, 0.0))))

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta."""
        return self.l2 * _dot(w, delta)

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """Return slope + l2 w, the simplex left out."""
        return np.asarray(slope, dtype=np.float64) + self.l2 * np.asarray(w, dtype=np.float64)

    def project(self, w: ArrayLike) -> Array:
        """Project every column onto the simplex."""
        return _project_simplex(np.asarray(w, dtype=np.float64))

    def bounds(self, d: int) -> tuple[Array, Array]:
        """Bounds 0 and 1 of the simplex, which leave out that the coefficients sum to one."""
        return np.zeros(d), np.ones(d)

    def kernel(self, d: int) -> Kernel:
        """Return code 2 and the bounds 0 and 1."""
        return Kernel(SIMPLEX, self.l2, 0.0, np.zeros(d), np.ones(d))


_COMPILED = frozenset({L2, ElasticNet, NonNegative, Box, Simplex})


def check_penalty(penalty: Penalty, shape: tuple[int, ...]) -> None:
    """Refuse a penalty that does not keep its contract for coefficients of this shape.

    Of the package's own classes only the bounds can be at fault. Of others, it is seen at a few
    points whether prox, value, conjugate and l2 belong to one convex function: a certificate is
    worth no more than they are.
    """
    if penalty.compiled:
        penalty.kernel(shape[0])  # bounds of another length are refused here
        return
    _check_modulus(penalty)
    pairs = [_subgradient_pair(penalty, z, step) for z, step in _test_points(shape)]
    values = [float(penalty.value(u)) for u, _ in pairs]
    conjugates = [float(penalty.conjugate(q)) for _, q in pairs]
    for i, (u, _) in enumerate(pairs):
        for j, (_, q) in enumerate(pairs):
            gap, size = _gap(values[i], conjugates[j], u, q)
            # Comparisons that also fail for what is not a number.
            if not (-gap <= _AGREEMENT * size and (i != j or gap <= _AGREEMENT * size)):
                raise ValueError(
                    f"The {penalty.name} penalty contradicts itself: for u = prox(z, step), "
                    "q = (z - u) / step is a subgradient of g at u, so that g(u) + g*(q) = q.u "
                    f"there and g(u) + g*(q) >= q.u elsewhere; the difference is {gap:.3g} where "
                    f"it must be {'0' if i == j else 'at least 0'}. Check that value, prox and "
                    "conjugate belong to the same g."
                )
    for (u, q), (v, r) in itertools.combinations(pairs, 2):
        slope, square = _dot(q - r, u - v), _dot(u - v, u - v)
        if slope < penalty.l2 * square - _AGREEMENT * (abs(slope) + penalty.l2 * square):
            raise ValueError(
                f"l2={penalty.l2:g} of the {penalty.name} penalty is not its modulus of strong "
                f"convexity: between two points g bends by {slope / square:.3g} only. Lower it."
            )


def _check_modulus(penalty: Penalty) -> None:
    if not hasattr(penalty, "l2"):
        raise TypeError(
            f"The {penalty.name} penalty has no attribute l2: set it to the modulus of strong "
            "convexity of g, such that g - l2/2 ||w||^2 is convex."
        )
    l2 = _number(penalty.l2, f"l2 of the {penalty.name} penalty")
    if not (0.0 < l2 < math.inf or (l2 == 0.0 and penalty.compact)):
        raise ValueError(
            f"l2 of the {penalty.name} penalty must be a finite number > 0, got {l2!r}: the "
            "duality gap needs strong convexity, or a bounded domain. Add l2/2 ||w||^2 to g, or "
            "set compact = True where no coefficient can go to infinity."
        )


def _test_points(shape: tuple[int, ...]) -> list[tuple[Array, float]]:
    """Points and steps, always the same."""
    rng = np.random.default_rng(0)
    scales = ((0.01, 1.0), (1.0, 1.0), (1.0, 0.1), (100.0, 10.0))
    return [(scale * rng.standard_normal(shape), step) for scale, step in scales]


def _subgradient_pair(penalty: Penalty, z: Array, step: float) -> tuple[Array, Array]:
    """u = prox(z, step), and the subgradient of g at u that belongs to it."""
    given = z.copy()
    u = np.asarray(penalty.prox(z, step), dtype=np.float64)
    if u.shape != z.shape or not np.all(np.isfinite(u)):
        raise ValueError(
            f"prox of the {penalty.name} penalty must return finite numbers in the shape of its "
            f"argument, {z.shape}; got shape {u.shape}."
        )
    if u is z or not np.array_equal(z, given):
        raise ValueError(f"prox of the {penalty.name} penalty must leave its argument alone.")
    return u, (z - u) / step


def _gap(value: float, conjugate: float, w: Array, v: Array) -> tuple[float, float]:
    """g(w) + g*(v) - v.w, and the size of its terms."""
    product = v * w
    size = abs(value) + abs(conjugate) + float(np.abs(product).sum())
    return value + conjugate - float(product.sum()), size


def sample_values(penalty: Penalty, shape: tuple[int, ...]) -> list[float]:
    """g at a few points of its domain, always the same: what tells two penalties apart.

    Examples
    --------
    >>> from sorel.penalties import L2, sample_values
    >>> sample_values(L2(1.0), (3,)) == sample_values(L2(2.0), (3,))
    False
    """
    points = [penalty.prox(z, step) for z, step in _test_points(shape)]
    return [float(penalty.value(u)) for u in points]
