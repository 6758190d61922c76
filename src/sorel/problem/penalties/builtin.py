"""The package's own penalties: each declares its terms, and all formulas follow from these.

    g(w) = l2/2 ||w||^2 + sum_j cost_j |w_j - kink_j|,  lower <= w <= upper,  sum_j w_j = total

The multiplier theta of the sum, where there is one, couples the coordinates, and nothing else does:
every formula is a separable one at the best theta, the root of a monotone, piecewise linear
function that is found by sorting its breakpoints (Held, Wolfe and Crowder 1974 for a simplex;
Helgason, Kennington and Lall 1980 with bounds). The Fenchel-Young gap is evaluated as a sum of
nonnegative terms: it keeps its relative accuracy as it goes to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._core import PURE_L2, SEPARABLE, SIMPLEX
from sorel._lib.floats import EPS, ROUNDED
from sorel.problem.penalties.base import Array, Kernel, Penalty, check_number

# A point that leaves the domain by less than this, relative to its size, was rounded out of it.
FEASIBILITY = 1e-12


# What a penalty is, and what the base class makes of it.
_PREMISES = {"value", "prox", "conjugate"}
_CONSEQUENCES = {name for name in vars(Penalty) if not name.startswith("_")} - _PREMISES


class Terms(NamedTuple):
    """What a penalty declares, in forms that broadcast against its coefficients.

    Examples
    --------
    >>> from sorel import NonNegative
    >>> NonNegative(1.0, l1=0.5).terms((3,))
    Terms(kink=0.0, cost=0.5, lower=0.0, upper=inf, total=None)
    """

    kink: Any = 0.0
    cost: Any = 0.0
    lower: Any = -math.inf
    upper: Any = math.inf
    total: float | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing costs, as a number tells."""
        return isinstance(self.cost, float) and self.cost == 0.0

    def moves(self, w: Array) -> Array:
        """w - kink, exactly 0 where the difference is rounding."""
        if isinstance(self.kink, float) and self.kink == 0.0:
            return w
        moved = w - self.kink
        return np.where(np.abs(moved) <= ROUNDED * (np.abs(w) + np.abs(self.kink)), 0.0, moved)

    def contain(self, w: Array) -> bool:
        """Whether w is in the domain, up to rounding."""
        size = np.abs(w)
        slack = FEASIBILITY * np.maximum(1.0, size)
        if (w < self.lower - slack).any() or (w > self.upper + slack).any():
            return False
        if self.total is None:
            return True
        size = np.maximum(size.sum(axis=0), max(1.0, abs(self.total), math.sqrt(len(w))))
        return bool((np.abs(w.sum(axis=0) - self.total) <= FEASIBILITY * size).all())

    def nearest(self, z: Array) -> Array:
        """argmin_x ||x - z||^2 / 2 + cost.|x - kink| in the domain."""
        return self.at(z) if self.total is None else self.each_column(Terms._nearest, z)

    def each_column(self, function: Callable[[Terms, Array], Array], z: Array) -> Array:
        """A function of these terms and of each column of z."""
        own = self.of_column()
        if z.ndim == 1:
            return function(own, z)
        return np.stack([function(own, column) for column in z.T], axis=1)

    def of_column(self) -> Terms:
        """The same terms for one column of coefficients."""
        kink, cost, lower, upper = (p.ravel() if np.ndim(p) else p for p in self[:4])
        return Terms(kink, cost, lower, upper, self.total)

    def at(self, z: Array) -> Array:
        """Soft thresholding of z around the kink, and clipping to the bounds."""
        if not self.plain:
            moved = z - self.kink
            z = self.kink + (moved - _clip(moved, -self.cost, self.cost))
        return _clip(z, self.lower, self.upper)

    def _nearest(self, z: Array) -> Array:
        total = float(self.total or 0.0)
        # A common shift changes nothing under a sum, and costs digits.
        z = z - z.max()
        x = self.at(z - self.multiplier(z))
        error = total - float(x.sum())
        if abs(error) > 8.0 * EPS * (float(np.abs(x).sum()) + 1.0):
            # z was far larger than x, and the multiplier lost the digits that make the sum right.
            own = self._replace(cost=0.0)
            x = own.at(x - own.multiplier(x))
            error = total - float(x.sum())
        # What rounding leaves goes to the largest entry that has room for it.
        room = (x + error >= self.lower) & (x + error <= self.upper)
        x[np.argmax(np.where(room, np.abs(x), -1.0))] += error
        return x

    def multiplier(self, z: Array) -> float:
        """The theta at which ``at(z - theta)`` has the sum, for one column."""
        _, cost, lower, upper, total = self
        # Where no upper bound can be reached before the sum is, the set is a simplex.
        scalars = self.plain and not np.ndim(lower) and not np.ndim(upper)
        if scalars and float(total or 0.0) - len(z) * lower <= upper - lower:
            descending, ranks = np.sort(z)[::-1], np.arange(1.0, len(z) + 1.0)
            excess = descending.cumsum() + ((len(z) - ranks) * lower - total)
            # At least 1: the first always counts, but for what is not finite, which stays so.
            size = max(int(np.count_nonzero((descending - lower) * ranks > excess)), 1)
            return float(excess[size - 1]) / size
        # Where theta rises, a coordinate falls from its upper bound to the kink, and from there to
        # its lower bound.
        begins, ends = [z - upper - cost], [z - lower + cost]
        if not self.plain:
            kink = _clip(self.kink, lower, upper)
            begins.append(z - kink + cost)
            ends.append(z - kink - cost)
        bends = np.concatenate(begins + ends)
        order = np.argsort(bends)
        bends = bends[order]
        rates = np.cumsum(np.where(order < len(bends) // 2, 1.0, -1.0))
        first, end = np.searchsorted(bends, (-math.inf, math.inf), side="right")
        end = end - np.count_nonzero(np.isinf(bends[first:]))
        if first == end:
            return (float(z.sum()) - float(total or 0.0)) / len(z)
        falling = float(rates[first - 1]) if first else 0.0
        bends, rates = bends[first:end], rates[first:end]
        sums = np.full(len(bends), float(self.at(z - bends[0]).sum()))
        sums[1:] -= np.cumsum(rates[:-1] * (bends[1:] - bends[:-1]))
        last = int(np.searchsorted(-sums, -float(total or 0.0), side="right")) - 1
        rate = float(rates[last]) if last >= 0 else falling
        theta = float(bends[max(last, 0)])
        if rate > 0.0:
            theta += float(sums[max(last, 0)] - total) / rate
        # The sums above have the rounding errors of all bends.
        x = self.at(z - theta)
        moving = (x > lower) & (x < upper)
        if not self.plain:
            moving &= x != self.kink
        count = int(np.count_nonzero(moving))
        return theta + (float(x.sum()) - float(total or 0.0)) / count if count else theta

    def fill(self, v: Array) -> tuple[Array, float]:
        """argmax_u v.u - cost.|u - kink| of one column, and the multiplier: a fractional knapsack.

        Up to its kink a coordinate is worth v + cost, beyond it v - cost. The sum is spent on what
        is worth most.
        """
        zero = np.zeros_like(v)
        lower, upper = zero + self.lower, zero + self.upper
        kink = _clip(zero + self.kink, lower, upper)
        worth = np.concatenate([v + self.cost, v - self.cost])
        room = np.concatenate([kink - lower, upper - kink])
        order = np.argsort(-worth, kind="stable")
        reach = np.cumsum(room[order])
        left = float(self.total or 0.0) - float(lower.sum())
        spent = np.zeros_like(room)
        spent[order] = _clip(left - (reach - room[order]), 0.0, room[order])
        last = min(int(np.searchsorted(reach, left)), len(order) - 1)
        return lower + spent[: len(v)] + spent[len(v) :], float(worth[order[last]])


def _clip(x: Any, lower: Any, upper: Any) -> Any:
    """The same as np.clip, which takes four times as long for short arrays."""
    return np.minimum(np.maximum(x, lower), upper)


@dataclass(frozen=True, eq=False)
class Declared(Penalty):
    """What the package's own penalties share. Instances are immutable values."""

    l2: float

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls).keys()
        if own & _PREMISES and not cls.__module__.startswith("sorel."):
            # Formulas of the package belong to its own g: others follow from those of the class.
            for name in _CONSEQUENCES - own:
                setattr(cls, name, vars(Penalty)[name])

    def __post_init__(self) -> None:
        l2 = check_number(self.l2, "l2")
        object.__setattr__(self, "l2", l2)
        if not (0.0 < l2 < math.inf or (l2 == 0.0 and self.compact)):
            raise ValueError(
                f"l2 must be a finite number {'>=' if self.compact else '>'} 0, got {l2!r}: the "
                "duality gap and the convergence of the solvers need strong convexity"
                f"{self._exception()}. Pass a small value such as {type(self).__name__}(l2=1/n) "
                "with n the number of samples."
            )

    def _exception(self) -> str:
        """What would have made an l2 of 0 possible, for the message."""
        return ""

    def _key(self) -> tuple[Any, ...]:
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(tuple(v.tolist()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because a copied or unpickled array would be writeable again.
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    def _declare(self) -> Terms:
        """The terms, as numbers and arrays with one entry per coefficient."""
        return Terms()

    def _complete(self, terms: Terms, d: int) -> Terms:
        """The terms for d coefficients, which may tell more of them."""
        return terms

    def terms(self, shape: tuple[int, ...]) -> Terms:
        """What this penalty declares, in a form that broadcasts against coefficients of `shape`."""
        terms = self._declare()
        for name, part in zip(("previous", "cost", "lower", "upper"), terms, strict=False):
            if isinstance(part, np.ndarray) and len(part) != shape[0]:
                raise ValueError(
                    f"{name} has {len(part)} entries, but there are {shape[0]} coefficients: give "
                    "a scalar or one bound per coefficient."
                )
        terms = self._complete(terms, shape[0])
        if len(shape) == 1:
            return terms
        kink, cost, lower, upper = (p[:, None] if np.ndim(p) else p for p in terms[:4])
        return Terms(kink, cost, lower, upper, terms.total)

    @property
    def declared(self) -> bool:
        """True, but for a subclass, whose formulas may be others."""
        return type(self) in OWN

    @property
    def compiled(self) -> bool:
        """Whether compiled loops have a code for it; a subclass has none."""
        return OWN.get(type(self)) is not None

    @property
    def separable(self) -> bool:  # type: ignore[override] # no attribute of the class here
        """Whether there is no sum."""
        return self._declare().total is None

    @property
    def smooth_in_bounds(self) -> bool:  # type: ignore[override] # no attribute of the class here
        """Whether no kink lies inside the bounds, and no sum couples the coefficients."""
        terms = self._declare()
        inside = (np.less(terms.lower, terms.kink) & np.greater(terms.upper, terms.kink)) & (
            np.asarray(terms.cost) > 0.0
        )
        return terms.total is None and not np.any(inside)

    def _finite(self, w: Array, terms: Terms) -> float:
        """g(w) inside the domain."""
        cost = float((terms.cost * np.abs(w - terms.kink)).sum())
        return 0.5 * self.l2 * _dot(w, w) + cost

    def value(self, w: ArrayLike) -> float:
        """The terms at w; infinity outside the domain by more than rounding."""
        w = np.asarray(w, dtype=np.float64)
        terms = self.terms(w.shape)
        return self._finite(w, terms) if terms.contain(w) else math.inf

    def _nearest(self, z: Array, scale: float, terms: Terms) -> Array:
        """argmin_x ||x - z||^2 / 2 + (costs of x) / scale in the domain."""
        return terms._replace(cost=terms.cost / scale).nearest(z)

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Shrinkage, soft thresholding around the kinks, one multiplier, clipping."""
        if not 0.0 < step < math.inf:
            raise ValueError(f"step must be a finite number > 0, got {step!r}.")
        v = np.asarray(v, dtype=np.float64)
        return self._nearest(v / (1.0 + step * self.l2), self.l2 + 1.0 / step, self.terms(v.shape))

    def project(self, w: ArrayLike) -> Array:
        """The nearest point of the domain."""
        w = np.array(w, dtype=np.float64)
        return self.terms(w.shape)._replace(kink=0.0, cost=0.0).nearest(w)

    def _maximiser(self, v: Array, terms: Terms) -> Array:
        """argmax_u v.u - g(u)."""
        if self.l2 > 0.0:
            return self._nearest(v / self.l2, self.l2, terms)
        if terms.total is not None:
            return terms.each_column(lambda own, column: own.fill(column)[0], v)
        # Without curvature the least pull leads to a bound, and none leaves a choice.
        rest = _clip(terms.kink, terms.lower, terms.upper)
        return np.where(v > terms.cost, terms.upper, np.where(v < -terms.cost, terms.lower, rest))

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Where v.u - g(u) is largest; a corner where l2 is 0."""
        v = np.asarray(v, dtype=np.float64)
        return self._maximiser(v, self.terms(v.shape))

    def conjugate(self, v: ArrayLike) -> float:
        """v.u - g(u) at u = grad g*(v)."""
        v = np.asarray(v, dtype=np.float64)
        terms = self.terms(v.shape)
        u = self._maximiser(v, terms)
        return float(np.vdot(v, u)) - self._finite(u, terms)

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """What each coordinate would gain by leaving w for its best value under v - theta."""
        w, v = np.asarray(w, dtype=np.float64), np.asarray(v, dtype=np.float64)
        terms = self.terms(w.shape)
        if not terms.contain(w):
            return math.inf
        if terms.total is None:
            return self._gain(w, v, terms)
        own, gain = terms.of_column(), 0.0
        scaled = own._replace(cost=own.cost / (self.l2 or 1.0))
        for x, slope in zip(w.reshape(len(w), -1).T, v.reshape(len(w), -1).T, strict=True):
            # A common shift changes nothing under a sum, and costs digits.
            slope = slope - slope.max()
            if self.l2 > 0.0:
                theta = self.l2 * scaled.multiplier(slope / self.l2)
            else:
                theta = own.fill(slope)[1]
            gain += self._gain(x, slope - theta, own)
        return gain

    def _gain(self, w: Array, slope: Array, terms: Terms) -> float:
        """sum_j max_u [slope_j (u - w_j) - h_j(u) + h_j(w_j)] >= 0, with h_j a coordinate's g."""
        kink, cost, lower, upper, _ = terms
        moved = terms.moves(w)
        if self.l2 > 0.0:
            u = terms._replace(cost=cost / self.l2).at(slope / self.l2)
            to, pull = terms.moves(u), slope - self.l2 * u
            # pull splits into a subgradient of the costs at u and a multiplier of the bounds: each
            # pays its own nonnegative term.
            own = np.where(to != 0.0, cost * np.sign(to), _clip(pull, -cost, cost))
            gains = 0.5 * self.l2 * (w - u) ** 2 + np.abs(moved) * (cost - np.sign(moved) * own)
            at_bound = (u <= lower) | (u >= upper)
            return float(
                np.sum(gains + np.where(at_bound, np.maximum((pull - own) * (u - w), 0), 0))
            )
        # Without curvature: the slopes of the pieces to the right of w that rise, and of those to
        # the left that fall, times their lengths.
        kink = _clip(kink, lower, upper)
        ahead, back = np.where(moved < 0.0, kink - w, 0.0), np.where(moved > 0.0, w - kink, 0.0)
        beyond = upper - np.where(moved < 0.0, kink, w)
        behind = np.where(moved > 0.0, kink, w) - lower
        gains = np.maximum(slope + cost, 0.0) * np.maximum(ahead, 0.0)
        gains += np.maximum(slope - cost, 0.0) * np.maximum(beyond, 0.0)
        gains += np.maximum(cost - slope, 0.0) * np.maximum(back, 0.0)
        gains += np.maximum(-cost - slope, 0.0) * np.maximum(behind, 0.0)
        return float(np.sum(gains))

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta, and how fast the costs grow."""
        w, delta = np.asarray(w, dtype=np.float64), np.asarray(delta, dtype=np.float64)
        terms = self.terms(w.shape)
        side = np.sign(terms.moves(w))
        costs = terms.cost * np.where(side == 0.0, np.abs(delta), side * delta)
        return self.l2 * _dot(w, delta) + float(costs.sum())

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """Coordinate by coordinate where there is no sum; 0 where a bound is in the way."""
        w = np.asarray(w, dtype=np.float64)
        terms = self.terms(w.shape)
        if terms.total is not None:
            return super().shortest_subgradient(w, slope)
        out = np.asarray(slope, dtype=np.float64) + self.l2 * w
        side, at_kink = np.sign(terms.moves(w)), out - _clip(out, -terms.cost, terms.cost)
        out = np.where(side == 0.0, at_kink, out + terms.cost * side)
        held = ((w <= terms.lower) & (out > 0.0)) | ((w >= terms.upper) & (out < 0.0))
        return np.where(held, 0.0, out)

    def gradient(self, w: ArrayLike) -> Array:
        """l2 w and the slope of the costs, where no kink is inside the bounds."""
        if not self.smooth_in_bounds:
            return super().gradient(w)
        w = np.asarray(w, dtype=np.float64)
        terms = self.terms(w.shape)
        return self.l2 * w + np.where(terms.lower >= terms.kink, terms.cost, -terms.cost)

    def bounds(self, d: int) -> tuple[Array, Array] | None:
        """Bounds as two arrays of length `d`; None where all are infinite."""
        _, _, lower, upper, _ = self.terms((d,))
        if np.all(np.isinf(lower)) and np.all(np.isinf(upper)):
            return None
        return np.full(d, lower, dtype=np.float64), np.full(d, upper, dtype=np.float64)

    def kernel(self, d: int) -> Kernel:
        """Return the code of the class, l2, l1 and the bounds of every coefficient."""
        code = OWN.get(type(self))
        if code is None:
            return super().kernel(d)
        _, l1, lower, upper, _ = self.terms((d,))
        return Kernel(code, self.l2, l1, np.full(d, lower), np.full(d, upper))

    def on(self, chosen: NDArray[np.intp]) -> Penalty:
        """The same penalty of those coefficients alone."""
        if not self.compiled:
            return super().on(chosen)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: v[chosen] for k, v in values.items() if np.ndim(v)})

    def plus_ridge(self, extra: float) -> Penalty:
        """The same penalty with a larger l2."""
        return replace(self, l2=self.l2 + extra) if self.declared else super().plus_ridge(extra)


def check_arrays(penalty: Any, *names: str) -> None:
    """Store these attributes as floats, or read-only float arrays of one length."""
    lengths = {}
    for name in names:
        value = getattr(penalty, name)
        if np.ndim(value) == 0:
            value = check_number(value.item() if isinstance(value, np.ndarray) else value, name)
        else:
            array = np.asarray(value)
            if array.ndim != 1 or array.dtype.kind not in "iuf" or array.size == 0:
                raise TypeError(
                    f"{name} must be a number or a one-dimensional array of numbers, one per "
                    f"coefficient; got an array of shape {array.shape} and dtype {array.dtype}."
                )
            value = array.astype(np.float64)
            if np.isnan(value).any():
                at = int(np.isnan(value).argmax())
                raise ValueError(f"{name} must not contain nan (index {at}).")
            value.flags.writeable = False
            lengths[name] = value.size
        object.__setattr__(penalty, name, value)
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"arrays must have the same length, one entry per coefficient; got lengths {lengths}."
        )


def check_bounds(lower: Any, upper: Any) -> None:
    """Refuse intervals that hold no real number; [inf, inf] and [-inf, -inf] are empty too."""
    lows, highs = np.broadcast_arrays(lower, upper)
    empty = (lows > highs) | (lows == math.inf) | (highs == -math.inf)
    if np.any(empty):
        at = int(np.flatnonzero(empty)[0])
        where = f" at index {at}" if lows.ndim else ""
        raise ValueError(
            f"lower <= upper must hold with a real number between them; got "
            f"lower={lows.flat[at]:g} and upper={highs.flat[at]:g}{where}."
        )


def _check_l1(penalty: Any) -> None:
    l1 = check_number(penalty.l1, "l1")
    if not 0.0 <= l1 < math.inf:
        raise ValueError(f"l1 must be a finite number >= 0, got {penalty.l1!r}.")
    object.__setattr__(penalty, "l1", l1)


def _dot(a: ArrayLike, b: ArrayLike) -> float:
    return float(np.vdot(a, np.asarray(b, dtype=np.float64)))


@dataclass(frozen=True, eq=False)
class L2(Declared):
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

    # Formulas of its own where small problems ask very often, or the general ones lose digits.

    @property
    def quadratic(self) -> bool:
        """True, but for a subclass, whose formulas may be others."""
        return type(self) is L2

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2."""
        return 0.5 * self.l2 * _dot(w, w)

    def conjugate(self, v: ArrayLike) -> float:
        """||v||^2 / (2 l2)."""
        return 0.5 * _dot(v, v) / self.l2

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """||v - l2 w||^2 / (2 l2)."""
        return self.conjugate(np.asarray(v) - self.l2 * np.asarray(w, dtype=np.float64))

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta."""
        return self.l2 * _dot(w, delta)

    def shortest_subgradient(self, w: ArrayLike, slope: ArrayLike) -> Array:
        """Return slope + l2 w: there is no other."""
        return np.asarray(slope, dtype=np.float64) + self.l2 * np.asarray(w, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class ElasticNet(Declared):
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
        _check_l1(self)

    def _declare(self) -> Terms:
        return Terms(cost=self.l1)


@dataclass(frozen=True, eq=False)
class NonNegative(Declared):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_l1(self)

    def _declare(self) -> Terms:
        return Terms(cost=self.l1, lower=0.0)


@dataclass(frozen=True, eq=False)
class Box(Declared):
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

    def __post_init__(self) -> None:
        check_arrays(self, "lower", "upper")
        check_bounds(self.lower, self.upper)
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

    def _declare(self) -> Terms:
        return Terms(lower=self.lower, upper=self.upper)


@dataclass(frozen=True, eq=False)
class Simplex(Declared):
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

    def _declare(self) -> Terms:
        return Terms(lower=0.0, upper=1.0, total=1.0)


# The package's own classes, and their codes in the compiled loops where they have one. A subclass
# may have other formulas, so it does not count as its parent.
OWN: dict[type[Penalty], int | None] = {
    L2: PURE_L2,
    ElasticNet: SEPARABLE,
    NonNegative: SEPARABLE,
    Box: SEPARABLE,
    Simplex: SIMPLEX,
}
