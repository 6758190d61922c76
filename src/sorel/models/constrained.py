"""The quadratic model with bounds, kinks and rows: a guess at the active set, else PIQP.

    min_x  slope.(x - w) + 1/2 (x - w)^T A (x - w) + cost.|x - kink|
    with   lower <= x <= upper  and  rows x = sums

A primal-dual active-set method (Hintermueller, Ito and Kunisch 2002) begins with the active set of
the start, which most steps of a Newton method keep: one Cholesky factor of the free coordinates and
one look at signs. Where guesses do not settle, the interior-point code PIQP (Schwan, Jiang, Kuhn
and Jones 2023) finds the active set on the sides of the kinks to which the point is pulled, and the
same equality system takes its answer to rounding level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import piqp
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv, dpotrf, dpotrs

__all__ = ["Model", "Solution", "minimize"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)

# Pulls are 0 up to this multiple of the rounding errors of the slope.
_TOLERANCE = 8.0 * _EPS

# Guesses at the active set at most: so many, and one more for so many coordinates, which is about
# what the interior-point code costs. How many in a row may have no fewer wrong coordinates; after
# one of these half of the share is changed at once, after a better one more again.
_GUESSES, _PER_GUESS, _PATIENCE = 2, 50, 3
_FEWER, _MORE = 0.5, 1.5

# Interior-point solves at most; each may move coordinates across their kinks.
_ROUNDS = 20

# Accuracy asked of PIQP: enough to tell the active set, which is then solved for.
_ACCURACY = 1e-10

# What a sum may be missed by, relative to the sizes of what is added.
_FEASIBLE = 1e-13

# Curvatures below this share of the largest do not set the unit of their coordinate.
_LEAST_UNIT = 1e-6


class Solution(NamedTuple):
    """A point of the model.

    Attributes
    ----------
    x : array of shape (p,)
        The point, within its bounds.
    multipliers : array of shape (m,)
        Those of the rows.
    kkt : float
        Largest one-sided derivative along which a coordinate descends, relative to the terms that
        cancel in it.
    factors : int
        Cholesky factors, and steps of the interior-point code.
    """

    x: Array
    multipliers: Array
    kkt: float
    factors: int


class _Face(NamedTuple):
    """Coordinates that are fixed, where they are, and the side of its kink of each that is free."""

    x: Array
    free: Mask
    side: Array


@dataclass(frozen=True)
class Model:
    """The model of the module's first lines; arrays of length p, and `rows` of shape (m, p).

    `ridge` is curvature that factors of A are lent, and their solutions corrected for.
    """

    A: Array
    slope: Array
    w: Array
    kink: Array
    cost: Array
    lower: Array
    upper: Array
    rows: Array
    sums: Array
    ridge: Array

    @cached_property
    def curvature(self) -> Array:
        return np.maximum(self.A.diagonal(), _TINY)

    @cached_property
    def root(self) -> Array:
        return np.sqrt(self.curvature)

    @cached_property
    def weight(self) -> float:
        """Curvature that rows are given, in that of a typical coordinate."""
        return float(self.curvature.mean())

    @cached_property
    def kinked(self) -> Mask:
        return (self.cost > 0.0) & (self.lower < self.kink) & (self.kink < self.upper)

    def gradient(self, x: Array) -> tuple[Array, Array]:
        """Gradient of the quadratic, and a bound on the size of its terms.

        In a positive semidefinite matrix ``|A_jk| <= sqrt(A_jj A_kk)``. x is stored with errors of
        its own size, which the curvature passes on.
        """
        moved = x - self.w
        reach = float(self.root @ np.maximum(np.abs(moved), np.abs(x)))
        # The smallest normal number keeps an empty row (0 = 0) from dividing by zero.
        size = np.abs(self.slope) + self.cost + self.root * reach + _TINY
        return self.slope + self.A @ moved, size

    def value(self, x: Array) -> float:
        moved = x - self.w
        smooth = float((self.slope + 0.5 * (self.A @ moved)) @ moved)
        return smooth + float(self.cost @ np.abs(x - self.kink))

    def sides(self, x: Array, slope: Array) -> tuple[Array, Array]:
        """Derivatives to the left and to the right; infinite where a bound ends the way."""
        left = np.where(x > self.kink, self.cost, -self.cost)
        right = np.where(x >= self.kink, self.cost, -self.cost)
        return (
            np.where(x > self.lower, slope + left, -math.inf),
            np.where(x < self.upper, slope + right, math.inf),
        )

    def pulls(self, x: Array, slope: Array) -> Array:
        """The one-sided derivative along which each coordinate descends: up if it is negative."""
        left, right = self.sides(x, slope)
        return np.where(right < 0.0, right, np.maximum(left, 0.0))

    def misses(self, x: Array) -> Mask:
        """Which rows miss their sums by more than rounding."""
        return np.abs(self.sums - self.rows @ x) > _FEASIBLE * (np.abs(self.rows) @ np.abs(x))

    def face(self, x: Array, pulls: Array | None = None) -> _Face:
        """The face of x; a coordinate at its kink is on the side to which it is pulled."""
        free = (x > self.lower) & (x < self.upper) & ~(self.kinked & (x == self.kink))
        above = x > self.kink
        if pulls is not None:
            above |= (x == self.kink) & (pulls < 0.0)
        return _Face(x, free, np.where(above, 1.0, -1.0))

    def piece(self, side: Array) -> tuple[Array, Array]:
        """Between which ends each coordinate stays on this side of its kink."""
        low = np.where(self.kinked & (side > 0.0), self.kink, self.lower)
        return low, np.where(self.kinked & (side < 0.0), self.kink, self.upper)


def minimize(model: Model, start: Array, rough: float = 0.0) -> Solution:
    """Minimise from a start that keeps bounds and sums.

    Parameters
    ----------
    model : Model
        What to minimise.
    start : array of shape (p,)
        The first guess has its active set.
    rough : float, default 0
        Stop where this share of what was gained, by estimate, is left to gain. Only without rows,
        because points between two guesses miss their sums.

    Returns
    -------
    Solution
        The minimiser, its multipliers and how nearly it is optimal.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.models.constrained import Model, minimize
    >>> zero = np.zeros(3)
    >>> model = Model(
    ...     A=np.eye(3), slope=np.array([-1.0, 2.0, -0.5]), w=zero, kink=zero, cost=zero,
    ...     lower=zero, upper=np.full(3, np.inf), rows=np.ones((1, 3)), sums=np.ones(1), ridge=zero,
    ... )
    >>> minimize(model, np.full(3, 1 / 3)).x
    array([0.75, 0.  , 0.25])
    """
    first, value = model.value(start), math.inf
    found = _guess(model, model.face(start), rough)
    factors = found.guesses
    for _ in range(_ROUNDS):
        if found.settled:
            break
        face, chosen = _pulled(model, found)
        if not chosen.any():
            break
        face, steps = _interior(model, face, chosen)
        found = _guess(model, face, rough)
        factors += steps + found.guesses
        before, value = value, model.value(found.x)
        if before - value <= max(rough, _ACCURACY) * (first - value):
            break
    slope, size = model.gradient(found.x)
    pulls = model.pulls(found.x, slope + found.multipliers @ model.rows)
    return Solution(found.x, found.multipliers, float((np.abs(pulls) / size).max()), factors)


class _System:
    """Steps of the free coordinates that have given sums.

    The rows are added to the matrix, A + weight R^T R, which changes no such step and leaves
    directions that A does not see to the sums. A row without a free coordinate keeps the
    multiplier that it had.

    Raises
    ------
    numpy.linalg.LinAlgError
        If it is singular to working precision.
    """

    def __init__(self, model: Model, free: Mask) -> None:
        self.places = at = np.flatnonzero(free)
        self.bound = model.rows[:, at].any(axis=1)
        self.rows = model.rows[self.bound][:, at]
        self.weight = model.weight
        self.ridge = model.ridge[at]
        matrix = model.A.take(at, axis=0).take(at, axis=1)
        matrix.ravel()[:: len(at) + 1] += self.ridge
        if len(self.rows):
            matrix += self.weight * (self.rows.T @ self.rows)
        self.factor, failed = dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        if not failed and len(self.rows):
            self.along = dpotrs(self.factor, self.rows.T, lower=1)[0]
            self.schur, failed = dpotrf(self.rows @ self.along, lower=1)
        # Pivots at rounding level count as a failure: a solve would divide by them.
        pivots = self.factor.diagonal()
        if failed or (pivots * pivots <= 4.0 * _EPS * model.curvature[at]).any():
            raise np.linalg.LinAlgError("The free coordinates are dependent.")

    def solve(self, slope: Array, missing: Array) -> tuple[Array, Array]:
        """The step d with ``A d + R^T change = -slope`` and ``R d = missing``, and the change."""
        change = np.zeros(len(missing))
        if not len(slope):
            return slope, change
        step, change[self.bound] = self._solve(slope, missing[self.bound])
        if not self.ridge.any():
            return step, change
        # Without the ridge.
        more, further = self._solve(-self.ridge * step, 0.0 * missing[self.bound])
        change[self.bound] += further
        return step + more, change

    def _solve(self, slope: Array, missing: Array) -> tuple[Array, Array]:
        if not len(self.rows):
            return dpotrs(self.factor, -slope, lower=1)[0], missing
        right = self.weight * (missing @ self.rows) - slope
        step = dpotrs(self.factor, right, lower=1)[0]
        multipliers = dpotrs(self.schur, self.rows @ step - missing, lower=1)[0]
        return step - self.along @ multipliers, multipliers


class _Guess(NamedTuple):
    """Where guesses have led, whether that is the minimiser, and their number."""

    x: Array
    multipliers: Array
    settled: bool
    guesses: int


def _guess(model: Model, face: _Face, rough: float) -> _Guess:
    """Guesses at the active set, from a face on.

    At the minimiser of a guess, free coordinates that have left their piece are fixed at its end,
    and fixed ones that are pulled inside are set free: many at a time. Where they do not settle,
    the result is the lowest point that was seen.
    """
    x, free, side = face
    best, lowest = x, model.value(x)
    first, multipliers = lowest, np.zeros(len(model.sums))
    if not model.rows[:, free].any(axis=1).all():
        multipliers = _multipliers(model, face)
    fewest, since, share = math.inf, 0, 1.0
    for count in range(1, _GUESSES + len(x) // _PER_GUESS + 1):
        moved = np.where(free, 0.0, x - model.w)
        slope = model.slope + model.cost * side + multipliers @ model.rows
        at = np.flatnonzero(moved)
        if len(at):
            slope += moved[at] @ model.A[at]
        try:
            system = _System(model, free)
        except np.linalg.LinAlgError:
            break
        at = system.places
        step, change = system.solve(slope[at], model.sums - model.rows @ (model.w + moved))
        multipliers = multipliers + change
        v = x.copy()
        v[at] = model.w[at] + step
        gradient, size = model.gradient(v)
        gradient += multipliers @ model.rows
        if not np.isfinite(gradient).all():
            break
        low, high = model.piece(side)
        pulls = model.pulls(v, gradient)
        # In the unit of a slope, all of them.
        outside = model.curvature * np.maximum(low - v, v - high)
        excess = np.where(free, outside, np.abs(pulls) - _TOLERANCE * size)
        wrong = np.flatnonzero(excess > 0.0)
        if not len(wrong):
            # What rounding has left.
            if model.misses(v)[~system.bound].any():
                break
            missing = model.sums - model.rows @ v
            step, change = system.solve(gradient[at] + (model.cost * side)[at], missing)
            v[at] += step
            return _Guess(np.clip(v, low, high), multipliers + change, True, count)
        x = np.clip(v, low, high)
        if not len(model.rows):
            value = model.value(x)
            left = 0.5 * float((excess[wrong] ** 2 / model.curvature[wrong]).sum())
            if left <= rough * (first - value):
                return _Guess(x, multipliers, True, count)
            if value < lowest:
                best, lowest = x, value
        better = len(wrong) < fewest
        fewest, since = (len(wrong), 0) if better else (fewest, since + 1)
        if since > _PATIENCE:
            break
        share = min(_MORE * share, 1.0) if better else _FEWER * share
        kept = len(wrong) - max(1, int(share * len(wrong)))
        changed = wrong[np.argpartition(excess[wrong], kept)[kept:]]
        joins = changed[~free[changed]]
        side, free = side.copy(), free.copy()
        side[joins] = model.face(x, pulls).side[joins]
        free[changed] ^= True
    return _Guess(best, _multipliers(model, model.face(best)), False, count)


def _multipliers(model: Model, face: _Face) -> Array:
    """Multipliers of the rows at the point of a face.

    Those that fit the slopes of the free coordinates best; of a row without any, the middle of
    those at which no coordinate is pulled.
    """
    multipliers = np.zeros(len(model.sums))
    if not len(multipliers):
        return multipliers
    x, free = face.x, face.free
    gradient = model.gradient(x)[0]
    bound = model.rows[:, free].any(axis=1)
    rows = model.rows[bound][:, free]
    slope = (gradient + model.cost * face.side)[free]
    multipliers[bound] = _solve_semidefinite(rows @ rows.T, -rows @ slope)
    if bound.all():
        return multipliers
    left, right = model.sides(x, gradient)
    for k in np.flatnonzero(~bound):
        at = np.flatnonzero(model.rows[k])
        ends = -left[at] / model.rows[k, at], -right[at] / model.rows[k, at]
        least, most = np.minimum(*ends).max(initial=-math.inf), np.maximum(*ends).min()
        multipliers[k] = np.mean([end for end in (least, most) if math.isfinite(end)] or [0.0])
    return multipliers


def _pulled(model: Model, found: _Guess) -> tuple[_Face, Mask]:
    """The face of a point on the sides to which it is pulled; what is free or pulled there."""
    slope, size = model.gradient(found.x)
    pulls = model.pulls(found.x, slope + found.multipliers @ model.rows)
    face = model.face(found.x, pulls)
    return face, face.free | (np.abs(pulls) > _TOLERANCE * size)


def _interior(model: Model, face: _Face, chosen: Mask) -> tuple[_Face, int]:
    """Minimise over the chosen coordinates on their sides of the kinks, the others fixed.

    Returns the face that PIQP has found, and its steps.
    """
    at = np.flatnonzero(chosen)
    x, side = face.x.copy(), face.side
    low, high = (end[at] for end in model.piece(side))
    slope = (model.gradient(x)[0] + model.cost * side)[at]
    unit = np.maximum(model.root[at], _LEAST_UNIT * float(model.root.max()))
    # A coordinate moves no further than to its bounds, nor than the rows allow.
    width = np.where(
        model.rows[:, at].any(axis=0), np.abs(x).sum() + np.abs(model.sums).sum(), math.inf
    )
    width = np.minimum(width, high - low)
    steepest = max(float(np.abs(slope / unit).max()), _TINY)
    longest = max(float(np.minimum(np.abs(slope / unit), width * unit).max()), _TINY)
    length = longest / unit
    solver = piqp.DenseSolver()
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(solver.settings, name, _ACCURACY)
    limits = (low - x[at]) / length, (high - x[at]) / length
    rows, missing = model.rows[:, at] * (length / length.max()), model.sums - model.rows @ x
    solver.setup(
        P=np.asfortranarray(model.A[at[:, None], at] / np.outer(unit, unit)) * (longest / steepest),
        c=slope / (unit * steepest),
        A=np.asfortranarray(rows) if len(rows) else None,
        b=missing / length.max() if len(rows) else None,
        x_l=limits[0],
        x_u=limits[1],
    )
    solver.solve()
    result = solver.result
    y = result.x
    at_low, at_high = y - limits[0] < result.z_bl, limits[1] - y < result.z_bu
    inside = np.clip(x[at] + y * length, low, high)
    x[at] = np.where(at_low, low, np.where(at_high, high, inside))
    free = np.zeros_like(chosen)
    free[at[~(at_low | at_high)]] = True
    x = _with_sums(model, _Face(x, free, side))
    if model.misses(x).any():
        # One that is nearly at its bound makes up for what the sum lacks: none is put there.
        x[at] = inside
        free = chosen
        x = _with_sums(model, _Face(x, free, side))
    return _Face(x, free, side), int(result.info.iter)


def _with_sums(model: Model, face: _Face) -> Array:
    """The point of a face moved to its sums, each free coordinate by the room that it has."""
    low, high = model.piece(face.side)
    x = np.clip(face.x, low, high)
    if not len(model.sums):
        return x
    room = np.where(face.free, np.minimum(np.minimum(x - low, high - x), 1.0), 0.0)
    missing = model.sums - model.rows @ x
    weighted = model.rows * room
    return x + _solve_semidefinite(weighted @ model.rows.T, missing) @ weighted


def _solve_semidefinite(matrix: Array, right: Array) -> Array:
    """Solve a small system; zeros where its matrix is zero, or empty."""
    if not matrix.any():
        return np.zeros_like(right)
    shifted = matrix + _EPS * float(matrix.trace()) * np.eye(len(right))
    _, solution, failed = dposv(shifted, right, lower=1)
    return np.zeros_like(right) if failed else solution
