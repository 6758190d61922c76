"""Weights with a budget: bounds on each, one sum, a ridge, and costs of leaving where one stands.

    g(w) = l2/2 ||w||^2 + sum_j cost_j |w_j - previous_j|,  lower <= w <= upper,  sum_j w_j = budget

The multiplier theta of the budget couples the coordinates and nothing else does. Every formula here
is a separable one at the best theta, which is the root of a monotone, piecewise linear function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sorel.penalties.base import Array, Penalty, check_number, check_step, dot

_EPS = float(np.finfo(np.float64).eps)

# A point that leaves the domain by less than this, relative to its size, was rounded out of it.
_FEASIBILITY = 1e-12

# Up to so many units of rounding from the previous weight, a weight stands where it stood.
_AT_KINK = 8.0 * _EPS


class Pieces(NamedTuple):
    """The separable part for d coordinates: kinks, their weights, and bounds, all of length d."""

    previous: Array
    cost: Array
    lower: Array
    upper: Array


def project_budget(z: Array, lower: Array, upper: Array, total: float) -> Array:
    """The point nearest to z with ``lower <= x <= upper`` and the sum `total`.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.penalties.budget import project_budget
    >>> project_budget(np.array([2.0, 1.0, 0.0]), np.zeros(3), np.full(3, 0.5), 1.0)
    array([0.5, 0.5, 0. ])
    """
    pieces = Pieces(z, np.zeros_like(z), lower, upper)
    return _at(z, _multiplier(z, pieces, total), pieces)


def _at(z: Array, theta: float, pieces: Pieces) -> Array:
    """argmin_x sum_j (x_j - z_j + theta)^2 / 2 + cost_j |x_j - previous_j| within the bounds."""
    previous, cost, lower, upper = pieces
    moved = z - theta - previous
    return np.clip(previous + (moved - np.clip(moved, -cost, cost)), lower, upper)


def _multiplier(z: Array, pieces: Pieces, total: float) -> float:
    """The theta at which the minimisers of `_at` sum to `total`."""
    previous, cost, lower, upper = pieces
    # Where theta falls, each coordinate leaves its lower bound, rests at its kink, and ends at the
    # upper one: all places where the sum may bend.
    leaves = z - lower - np.where(lower >= previous, cost, -cost)
    ends = z - upper - np.where(upper > previous, cost, -cost)
    bends = np.concatenate([leaves, ends, z - previous + cost, z - previous - cost])
    bends = np.unique(bends[np.isfinite(bends)])
    low, high = -1, len(bends)
    while high - low > 1:
        middle = (low + high) // 2
        if float(_at(z, float(bends[middle]), pieces).sum()) >= total:
            low = middle
        else:
            high = middle
    # Between two bends the sum is a line: its slope is the number of coordinates that move.
    if low < 0:
        inside = float(bends[0]) - 1.0
    elif high == len(bends):
        inside = float(bends[-1]) + 1.0
    else:
        inside = 0.5 * (float(bends[low]) + float(bends[high]))
    x = _at(z, inside, pieces)
    moved = z - inside - previous
    moving = (x > lower) & (x < upper) & (np.abs(moved) > cost)
    count = int(np.count_nonzero(moving))
    if count == 0:
        return inside if low < 0 else float(bends[low])
    return inside + (float(x.sum()) - total) / count


@dataclass(frozen=True, eq=False)
class Budget(Penalty):
    """Weights within bounds that add up to a budget, with a ridge and transaction costs.

    Where weights are at least 0, sum to 1 and cost nothing, :class:`~sorel.Simplex` is the same and
    faster.

    Parameters
    ----------
    l2 : float, default=0.0
        Weight of ``||w||^2 / 2``, at least 0; above 0 where weights are bounded on neither side.
    budget : float, default=1.0
        What the weights add up to.
    lower, upper : float or array of shape (d,), default 0 and infinity
        Bounds of the weights.
    cost : float or array of shape (d,), default=0.0
        Cost of changing each weight by 1, at least 0.
    previous : float or array of shape (d,), default=0.0
        The weights that cost nothing.

    Examples
    --------
    >>> from sorel.penalties import Budget
    >>> penalty = Budget(upper=0.5)
    >>> penalty.project([2.0, 1.0, 0.0])
    array([0.5, 0.5, 0. ])
    >>> penalty.conjugate([3.0, 1.0, 0.0])  # half of the first, half of the second
    2.0
    >>> round(Budget(cost=0.01, previous=[0.5, 0.5]).value([0.75, 0.25]), 6)
    0.005
    """

    l2: float = 0.0
    budget: float = 1.0
    lower: float | Array = 0.0
    upper: float | Array = math.inf
    cost: float | Array = 0.0
    previous: float | Array = 0.0

    name: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        for name in ("l2", "budget"):
            object.__setattr__(self, name, check_number(getattr(self, name), name))
        if not 0.0 <= self.l2 < math.inf:
            raise ValueError(f"l2 must be a finite number >= 0, got {self.l2!r}.")
        if not math.isfinite(self.budget):
            raise ValueError(f"budget must be a finite number, got {self.budget!r}.")
        for name in ("lower", "upper", "cost", "previous"):
            object.__setattr__(self, name, _numbers(getattr(self, name), name))
        for name in ("cost", "previous"):
            if not np.all(np.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)!r}.")
        if np.any(np.asarray(self.cost) < 0.0):
            raise ValueError(f"cost must be at least 0, got {float(np.min(self.cost)):g}.")
        lengths = {
            name: np.size(getattr(self, name))
            for name in ("lower", "upper", "cost", "previous")
            if np.ndim(getattr(self, name))
        }
        if len(set(lengths.values())) > 1:
            raise ValueError(f"arrays must have one entry per weight, got lengths {lengths}.")
        lower, upper = np.broadcast_arrays(self.lower, self.upper)
        empty = (lower > upper) | (lower == math.inf) | (upper == -math.inf)
        if np.any(empty):
            at = int(np.flatnonzero(empty)[0])
            where = f" at index {at}" if lower.ndim else ""
            raise ValueError(
                f"lower <= upper must hold with a real number between them; got "
                f"lower={lower.flat[at]:g} and upper={upper.flat[at]:g}{where}."
            )
        if lengths:
            self._pieces(next(iter(lengths.values())))
        if self.l2 == 0.0 and not self.compact:
            raise ValueError(
                "l2 is 0 and the weights are unbounded: give l2 > 0, or finite lower or upper "
                "bounds for all weights, which with the budget bound the others too."
            )

    @property
    def compact(self) -> bool:  # type: ignore[override] # no attribute of the class here
        """Whether the bounds and the budget together bound all weights."""
        lower, upper = np.broadcast_arrays(self.lower, self.upper)
        if not lower.ndim:
            return bool(np.isfinite(lower) or np.isfinite(upper))
        # One side may be open where all weights but the one itself are bounded on the other.
        tight_lower, tight_upper = _tightened(lower, upper, self.budget)
        return bool(np.all(np.isfinite(tight_lower)) and np.all(np.isfinite(tight_upper)))

    def _key(self) -> tuple[Any, ...]:
        values = (self.lower, self.upper, self.cost, self.previous)
        parts = (tuple(v.tolist()) if isinstance(v, np.ndarray) else v for v in values)
        return (self.l2, self.budget, *parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Budget):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because a copied or unpickled array would be writeable again.
        return type(self), (
            self.l2, self.budget, self.lower, self.upper, self.cost, self.previous,
        )  # fmt: skip

    def plus_ridge(self, extra: float) -> Penalty:
        """The same penalty with a larger l2."""
        if type(self) is not Budget:
            return super().plus_ridge(extra)
        return Budget(
            self.l2 + extra, self.budget, self.lower, self.upper, self.cost, self.previous
        )

    def pieces(self, d: int) -> Pieces:
        """Kinks, costs and bounds as arrays of length `d`; bounds that the budget implies too.

        Refuses bounds of another length, and those between which no weights have this sum.
        """
        return self._pieces(d)

    def _pieces(self, d: int) -> Pieces:
        arrays = []
        for name in ("previous", "cost", "lower", "upper"):
            value = getattr(self, name)
            if np.ndim(value) and np.size(value) != d:
                raise ValueError(
                    f"{name} has {np.size(value)} entries, but there are {d} coefficients: give a "
                    "scalar or one entry per coefficient."
                )
            arrays.append(np.broadcast_to(np.asarray(value, dtype=np.float64), d))
        previous, cost, lower, upper = arrays
        slack = _FEASIBILITY * max(1.0, abs(self.budget))
        if float(lower.sum()) > self.budget + slack:
            raise ValueError(
                f"no weights satisfy the bounds: the lower bounds of {d} weights add up to "
                f"{float(lower.sum()):g}, above the budget of {self.budget:g}; lower them."
            )
        if float(upper.sum()) < self.budget - slack:
            raise ValueError(
                f"no weights satisfy the bounds: the upper bounds of {d} weights add up to "
                f"{float(upper.sum()):g}, below the budget of {self.budget:g}; raise them."
            )
        return Pieces(previous, cost, *_tightened(lower, upper, self.budget))

    def _per_column(self, w: Array) -> list[Array]:
        """The columns of w, each of which has the budget."""
        return [w] if w.ndim == 1 else [np.ascontiguousarray(column) for column in w.T]

    def _moves(self, w: Array, pieces: Pieces) -> Array:
        """w - previous, exactly 0 where the difference is rounding."""
        moved = w - pieces.previous
        moved[np.abs(moved) <= _AT_KINK * (np.abs(w) + np.abs(pieces.previous))] = 0.0
        return moved

    def _inside(self, w: Array, pieces: Pieces) -> bool:
        slack = _FEASIBILITY * np.maximum(1.0, np.abs(w))
        if np.any(w < pieces.lower - slack) or np.any(w > pieces.upper + slack):
            return False
        size = max(1.0, abs(self.budget), math.sqrt(len(w)), float(np.abs(w).sum()))
        return abs(float(w.sum()) - self.budget) <= _FEASIBILITY * size

    def value(self, w: ArrayLike) -> float:
        """l2/2 ||w||^2 plus the costs; infinity off the budget or the bounds."""
        w = np.asarray(w, dtype=np.float64)
        pieces = self._pieces(w.shape[0])
        total = 0.5 * self.l2 * dot(w, w)
        for column in self._per_column(w):
            if not self._inside(column, pieces):
                return math.inf
            total += float(pieces.cost @ np.abs(column - pieces.previous))
        return total

    def _solved(self, z: Array, scale: float, pieces: Pieces) -> Array:
        """argmin_x ||x - z||^2 / 2 + (costs of x) / scale in the domain."""
        scaled = pieces._replace(cost=pieces.cost / scale)
        x = _at(z, _multiplier(z, scaled, self.budget), scaled)
        # Where z is far larger than x, theta has lost the digits that make the sum right.
        if abs(float(x.sum()) - self.budget) > 8.0 * _EPS * (float(np.abs(x).sum()) + 1.0):
            x = project_budget(x, pieces.lower, pieces.upper, self.budget)
        return x

    def prox(self, v: ArrayLike, step: float) -> Array:
        """Shrinkage, soft thresholding around the previous weights, one multiplier, clipping."""
        check_step(step)
        v = np.asarray(v, dtype=np.float64)
        pieces = self._pieces(v.shape[0])
        scale = self.l2 + 1.0 / step
        z = v / (1.0 + step * self.l2)
        return _joined([self._solved(c, scale, pieces) for c in self._per_column(z)], v.shape)

    def project(self, w: ArrayLike) -> Array:
        """The nearest weights within the bounds that have the budget."""
        w = np.asarray(w, dtype=np.float64)
        pieces = self._pieces(w.shape[0])
        bounds = pieces.lower, pieces.upper, self.budget
        return _joined([project_budget(c, *bounds) for c in self._per_column(w)], w.shape)

    def _filled(self, v: Array, pieces: Pieces) -> tuple[Array, float]:
        """argmax_u v.u - costs(u) without l2, and the multiplier: a fractional knapsack.

        Up to the previous weight a coordinate is worth v + cost, beyond it v - cost. The budget is
        spent on what is worth most.
        """
        previous, cost, lower, upper = pieces
        kink = np.clip(previous, lower, upper)
        worth = np.concatenate([v + cost, v - cost])
        room = np.concatenate([kink - lower, upper - kink])
        order = np.argsort(-worth, kind="stable")
        reach = np.cumsum(room[order])
        left = self.budget - float(lower.sum())
        last = min(int(np.searchsorted(reach, left)), len(order) - 1)
        spent = np.zeros_like(room)
        spent[order[:last]] = room[order[:last]]
        before = float(reach[last - 1]) if last else 0.0
        spent[order[last]] = min(max(left - before, 0.0), room[order[last]])
        u = lower + spent[: len(v)] + spent[len(v) :]
        return u, float(worth[order[last]])

    def _maximiser(self, v: Array, pieces: Pieces) -> tuple[Array, float]:
        """argmax_u v.u - g(u), and the multiplier of the budget."""
        if self.l2 == 0.0:
            return self._filled(v, pieces)
        scaled = pieces._replace(cost=pieces.cost / self.l2)
        theta = _multiplier(v / self.l2, scaled, self.budget)
        return self._solved(v / self.l2, self.l2, pieces), self.l2 * theta

    def conjugate_gradient(self, v: ArrayLike) -> Array:
        """Where v.u - g(u) is largest; a corner, filled up greedily, where l2 is 0."""
        v = np.asarray(v, dtype=np.float64)
        pieces = self._pieces(v.shape[0])
        return _joined([self._maximiser(c, pieces)[0] for c in self._per_column(v)], v.shape)

    def conjugate(self, v: ArrayLike) -> float:
        """v.u - g(u) at u = grad g*(v)."""
        v = np.asarray(v, dtype=np.float64)
        pieces = self._pieces(v.shape[0])
        total = 0.0
        for column in self._per_column(v):
            u, _ = self._maximiser(column, pieces)
            costs = float(pieces.cost @ np.abs(u - pieces.previous))
            total += float(column @ u) - 0.5 * self.l2 * float(u @ u) - costs
        return total

    def fenchel_young(self, w: ArrayLike, v: ArrayLike) -> float:
        """What each coordinate would gain by leaving w for its best value under v - theta."""
        w, v = np.asarray(w, dtype=np.float64), np.asarray(v, dtype=np.float64)
        pieces = self._pieces(w.shape[0])
        total = 0.0
        for x, slope in zip(self._per_column(w), self._per_column(v), strict=True):
            if not self._inside(x, pieces):
                return math.inf
            # A common shift changes nothing under a budget, and costs digits.
            slope = slope - slope.max()
            _, theta = self._maximiser(slope, pieces)
            total += self._gain(x, slope - theta, pieces)
        return total

    def _gain(self, w: Array, slope: Array, pieces: Pieces) -> float:
        """sum_j max_u [slope_j (u - w_j) - h_j(u) + h_j(w_j)] >= 0, with h_j a coordinate's g."""
        previous, cost, lower, upper = pieces
        moved = self._moves(w, pieces)
        if self.l2 > 0.0:
            free = slope / self.l2 - previous
            threshold = cost / self.l2
            u = np.clip(previous + (free - np.clip(free, -threshold, threshold)), lower, upper)
            to = self._moves(u, pieces)
            pull = slope - self.l2 * u
            kink = np.where(to != 0.0, cost * np.sign(to), np.clip(pull, -cost, cost))
            clipped = (u <= lower) | (u >= upper)
            bound = np.where(clipped, np.maximum((pull - kink) * (u - w), 0.0), 0.0)
            terms = 0.5 * self.l2 * (w - u) ** 2 + np.abs(moved) * (cost - np.sign(moved) * kink)
            return float(np.sum(terms + bound))
        # Without curvature: the slopes of the pieces to the right of w that rise, and of those to
        # the left that fall, times their lengths.
        ahead = np.where(moved < 0.0, np.minimum(previous, upper) - w, 0.0)
        beyond = upper - np.where(moved < 0.0, np.maximum(previous, lower), w)
        back = np.where(moved > 0.0, w - np.maximum(previous, lower), 0.0)
        behind = np.where(moved > 0.0, np.minimum(previous, upper), w) - lower
        rises = np.maximum(slope + cost, 0.0), np.maximum(slope - cost, 0.0)
        falls = np.maximum(cost - slope, 0.0), np.maximum(-cost - slope, 0.0)
        terms = rises[0] * np.maximum(ahead, 0.0) + rises[1] * np.maximum(beyond, 0.0)
        terms += falls[0] * np.maximum(back, 0.0) + falls[1] * np.maximum(behind, 0.0)
        return float(np.sum(terms))

    def directional_derivative(self, w: ArrayLike, delta: ArrayLike) -> float:
        """l2 w.delta, and how fast the costs grow."""
        w, delta = np.asarray(w, dtype=np.float64), np.asarray(delta, dtype=np.float64)
        pieces = self._pieces(w.shape[0])
        slope = self.l2 * dot(w, delta)
        for x, step in zip(self._per_column(w), self._per_column(delta), strict=True):
            side = np.sign(self._moves(x, pieces))
            slope += float(pieces.cost @ np.where(side != 0.0, side * step, np.abs(step)))
        return slope

    def bounds(self, d: int) -> tuple[Array, Array]:
        """Bounds of the weights, which leave out that they have a budget."""
        pieces = self._pieces(d)
        return np.array(pieces.lower), np.array(pieces.upper)


def _joined(columns: list[Array], shape: tuple[int, ...]) -> Array:
    return columns[0] if len(shape) == 1 else np.stack(columns, axis=1)


def _tightened(lower: Array, upper: Array, budget: float) -> tuple[Array, Array]:
    """Bounds that also follow from the budget and the bounds of all other weights."""

    def others(bound: Array) -> Array:
        infinite = np.isinf(bound)
        count = int(np.count_nonzero(infinite))
        finite = np.where(infinite, 0.0, bound)
        out = float(finite.sum()) - finite
        open_ended = count - infinite > 0
        return np.where(open_ended, bound[infinite][0] if count else 0.0, out)

    # What the others leave may differ from a bound of one's own by rounding.
    tight_upper = np.maximum(np.minimum(upper, budget - others(lower)), lower)
    tight_lower = np.minimum(np.maximum(lower, budget - others(upper)), tight_upper)
    return tight_lower, tight_upper


def _numbers(value: Any, name: str) -> float | Array:
    """A float, or a read-only float array of length d."""
    if np.ndim(value) == 0:
        return check_number(value.item() if isinstance(value, np.ndarray) else value, name)
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or array.size == 0:
        raise TypeError(
            f"{name} must be a number or a one-dimensional array of numbers, one per weight; got "
            f"an array of shape {array.shape} and dtype {array.dtype}."
        )
    array = array.astype(np.float64)
    if np.isnan(array).any():
        raise ValueError(f"{name} must not contain nan (index {int(np.isnan(array).argmax())}).")
    array.flags.writeable = False
    return array
