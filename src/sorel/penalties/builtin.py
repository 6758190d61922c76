"""The package's own penalties, ``g(w) = l2/2 ||w||^2 + h(w)``.

h is a norm or the indicator of a simple set. With ``u = grad g*(v) = prox_{h/l2}(v/l2)``, the
Fenchel-Young gap is evaluated here as a sum of nonnegative terms, so that it keeps its relative
accuracy as it goes to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel.kernels.prox import PURE_L2, SEPARABLE, SIMPLEX
from sorel.penalties.base import Array, Kernel, Penalty, check_number, check_step

# A point that leaves the domain by less than this, relative to the bound, was rounded out of it.
_FEASIBILITY = 1e-12


def _dot(a: Array, b: Array) -> float:
    """The sum of a_j b_j; for vectors in the fastest way, since small problems ask very often."""
    return float(a.dot(b)) if a.ndim == 1 else float(np.vdot(a, b))


def _soft(v: Array, threshold: float) -> Array:
    """Soft thresholding, sign(v) max(|v| - threshold, 0)."""
    return v - np.clip(v, -threshold, threshold)


@dataclass(frozen=True)
class _BuiltIn(Penalty):
    """What the package's own penalties share. Instances are immutable values."""

    l2: float

    def __post_init__(self) -> None:
        l2 = check_number(self.l2, "l2")
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

    @property
    def compiled(self) -> bool:
        """True, but for a subclass."""
        return type(self) in _COMPILED

    def on(self, chosen: NDArray[np.intp]) -> Penalty:
        """The same penalty: it treats all coefficients alike."""
        return self

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
        return 0.5 * self.l2 * _dot(w, w)

    def gradient(self, w: ArrayLike) -> Array:
        """l2 w."""
        return self.l2 * np.asarray(w, dtype=np.float64)

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Return v / (1 + step l2)."""
        check_step(step)
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
        return 0.5 * _dot(residual, residual) / self.l2

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta."""
        return self.l2 * _dot(np.asarray(w), np.asarray(delta))

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
        check_step(step)
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
        """Coordinate by coordinate; 0 where a bound is in the way of descent."""
        w = np.asarray(w, dtype=np.float64)
        out = np.asarray(slope, dtype=np.float64) + self.l2 * w
        l1, lower, upper = self._terms(w.shape)
        if l1:
            out = np.where(w == 0.0, _soft(out, l1), out + l1 * np.sign(w))
        return np.where(((w <= lower) & (out > 0.0)) | ((w >= upper) & (out < 0.0)), 0.0, out)

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
    l1 = check_number(value, "l1")
    if not 0.0 <= l1 < math.inf:
        raise ValueError(f"l1 must be a finite number >= 0, got {value!r}.")
    return l1


def _bound(value: Any, name: str) -> float | Array:
    """Validate one bound of a box: a float, or a read-only float array of length d."""
    if isinstance(value, Real) or np.ndim(value) == 0:
        return check_number(value.item() if isinstance(value, np.ndarray) else value, name)
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

    def on(self, chosen: NDArray[np.intp]) -> Penalty:
        """The same bounds, of those coefficients alone."""
        lower, upper = (
            bound[chosen] if isinstance(bound, np.ndarray) else bound
            for bound in (self.lower, self.upper)
        )
        return replace(self, lower=lower, upper=upper)

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
    # Rounding errors of the sum go into the largest entry, which hardly feels them.
    columns = projected.reshape(len(projected), -1)
    columns[columns.argmax(axis=0), np.arange(columns.shape[1])] += 1.0 - columns.sum(axis=0)
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
        check_step(step)
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
        return self.l2 * float(np.vdot(np.asarray(w), np.asarray(delta)))

    def project(self, w: ArrayLike) -> Array:
        """Project every column onto the simplex."""
        return _project_simplex(np.asarray(w, dtype=np.float64))

    def bounds(self, d: int) -> tuple[Array, Array]:
        """Bounds 0 and 1 of the simplex, which leave out that the coefficients sum to one."""
        return np.zeros(d), np.ones(d)

    def kernel(self, d: int) -> Kernel:
        """Return code 2 and the bounds 0 and 1."""
        return Kernel(SIMPLEX, self.l2, 0.0, np.zeros(d), np.ones(d))


# A subclass may have other formulas, so it is not compiled as its parent.
_COMPILED = frozenset({L2, ElasticNet, NonNegative, Box, Simplex})
