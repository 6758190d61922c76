"""The contract of a penalty g(w), and what follows from its value, proximal map and conjugate.

A conjugate g* that is finite everywhere is what makes the duality gap of a problem computable: its
second bracket is the Fenchel-Young gap g(w) + g*(v) - v.w. Strong convexity (mu = l2 > 0) makes it
finite, and so does a bounded domain, where l2 may be 0.

Coefficients are arrays of shape (d,) or, for K outputs, (d, K). Intercepts are never penalised;
callers strip them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.floats import EPS

Array = NDArray[np.float64]


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


def check_number(value: Any, name: str) -> float:
    """Return `value` as a float; refuse what is not a real number (bool and str included)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number, got {value!r} ({type(value).__name__}).")
    number = float(value)
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got nan.")
    return number


def dot(a: ArrayLike, b: ArrayLike) -> float:
    """Inner product of two arrays of one shape."""
    return float(np.vdot(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)))


def plain_gap(value: float, conjugate: float, w: Array, v: Array) -> tuple[float, float]:
    """g(w) + g*(v) - v.w, and the size of its terms."""
    product = v * w
    size = abs(value) + abs(conjugate) + float(np.abs(product).sum())
    return value + conjugate - float(product.sum()), size


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
        if "name" not in vars(cls):
            cls.name = cls.__name__

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
    def declared(self) -> bool:
        """Whether g is all that its `terms` say: true of the package's own classes alone."""
        return False

    @property
    def compiled(self) -> bool:
        """Whether compiled loops know this g: true of the package's own classes, not of others.

        A subclass may have other formulas, so it does not count as its parent.
        """
        return False

    def kernel(self, d: int) -> Kernel:
        """Return (code, l2, l1, lower, upper) for the compiled loops; arrays have length `d`.

        Only where `compiled` is true.
        """
        raise TypeError(
            f"The {self.name} penalty has no compiled form; the solvers of full passes do without."
        )

    def on(self, chosen: NDArray[np.intp]) -> Penalty:
        """The same g of some coefficients, where the others rest. Only where `compiled` is true."""
        raise TypeError(
            f"The {self.name} penalty is not known to be the same on a part of the coefficients."
        )

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
        gap, size = plain_gap(value, float(self.conjugate(v)), w, v)
        # NumPy adds in pairs, so that the error of a sum grows with the logarithm of its length.
        return max(gap + (8.0 + math.log2(w.size)) * EPS * size, 0.0)

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """lim_{t -> 0+} (g(w + t delta) - g(w)) / t, for a direction that stays in the domain.

        Here a difference, of all but the square in g. It is as good as the values of g are, which
        suits a line search.
        """
        w, delta = np.asarray(w, dtype=np.float64), np.asarray(delta, dtype=np.float64)
        length, size = float(np.linalg.norm(delta)), float(np.linalg.norm(w))
        if length == 0.0:
            return 0.0
        step = min(math.sqrt(EPS) * max(size, length) / length, 1.0)
        change = float(self.value(w + step * delta)) - float(self.value(w))
        # The square in g has changed by l2 (step w.delta + step^2 |delta|^2 / 2).
        return change / step - 0.5 * self.l2 * step * length**2

    def gradient(self, w: ArrayLike) -> Array:
        """Gradient of g where it is `smooth`, inside its bounds where it is `smooth_in_bounds`."""
        raise TypeError(f"The {self.name} penalty is not smooth and has no gradient; use prox().")

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """The shortest vector of ``slope + dg(w)``, with dg the subdifferential of g.

        Here by a short proximal step from w along -slope.
        """
        w, slope = np.asarray(w, dtype=np.float64), np.asarray(slope, dtype=np.float64)
        size, length = float(np.linalg.norm(w)), float(np.linalg.norm(slope))
        step = math.sqrt(EPS) * (size or 1.0) / (length or 1.0)
        return (w - self.prox(w - step * slope, step)) / step

    def plus_ridge(self, extra: float) -> Penalty:
        """The penalty ``g + extra/2 ||w||^2``, for ``extra > 0``."""
        return _PlusRidge(self, extra)

    def project(self, w: ArrayLike) -> Array:
        """Euclidean projection onto the domain of g, as a new array."""
        # In a step this short only the domain counts.
        return np.array(self.prox(np.asarray(w, dtype=np.float64), EPS**2), dtype=np.float64)

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        """Bounds of the domain as two arrays of length `d`; None where there are none."""
        return None


class _PlusRidge(Penalty):
    """``g + extra/2 ||w||^2``, from the proximal map of g alone."""

    def __init__(self, penalty: Penalty, extra: float) -> None:
        self.penalty, self.extra = penalty, extra
        self.l2 = penalty.l2 + extra
        self.compact, self.separable = penalty.compact, penalty.separable

    def value(self, w: ArrayLike) -> float:
        return self.penalty.value(w) + 0.5 * self.extra * dot(w, w)

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
        return slope + self.extra * dot(w, delta)

    def project(self, w: ArrayLike) -> Array:
        return self.penalty.project(w)

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        return self.penalty.bounds(d)
