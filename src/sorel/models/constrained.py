"""Quadratic models with bounds, kinks and rows: a guess at the active set, else PIQP.

    min_x  slope.(x - w) + 1/2 (x - w)^T A (x - w) + cost.|x - kink|
    with   lower <= x <= upper  and  rows x = sums

Block principal pivoting (Judice and Pires 1994) begins with the active set of the start, which most
steps of a Newton method keep: one Cholesky factor of the free coordinates and one check of signs,
after which every coordinate with a wrong sign changes sides. Where that does not converge, the
interior-point code PIQP (Schwan, Jiang, Kuhn and Jones 2023) finds the active set, on the sides of
the kinks to which the point is pulled. One more pivoting takes its answer to rounding errors.

Rows with two sides, l <= R x <= h, fit in as R x - s = 0 with bounds of a slack coordinate s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import piqp
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel._core import exchange, free_in_rows, mark_wrong
from sorel._lib.floats import EPS, ROUNDED, TINY

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


# Guesses in a row that may have no fewer wrong coordinates than the best before them.
_PATIENCE = 3

# Accuracy asked of PIQP: enough to tell the active set, which is then solved for.
_ACCURACY = 1e-10

# Curvature that is lent where there is none, relative to what is there: to a model without l2, and
# to factors of dependent coordinates.
RIDGE = 1e-12


class Model(NamedTuple):
    """The model of the module's first lines; arrays of length p, and `rows` of shape (m, p)."""

    A: Array
    slope: Array
    w: Array
    kink: Array
    cost: Array
    lower: Array
    upper: Array
    rows: Array
    sums: Array

    def value(self, x: Array) -> float:
        moved = x - self.w
        smooth = float((self.slope + 0.5 * (self.A @ moved)) @ moved)
        return smooth + float(self.cost @ np.abs(x - self.kink))

    def pulls(self, x: Array, slope: Array) -> Array:
        """The one-sided derivative along which each coordinate descends: up if it is negative."""
        left = right = slope
        if self.cost.any():
            left = slope + np.where(x > self.kink, self.cost, -self.cost)
            right = slope + np.where(x >= self.kink, self.cost, -self.cost)
        up = np.where(x < self.upper, np.minimum(right, 0.0), 0.0)
        return up + np.where(x > self.lower, np.maximum(left, 0.0), 0.0)

    def piece(self, side: Array) -> tuple[Array, Array]:
        """Between which ends each coordinate stays on this side of its kink."""
        if not self.cost.any():
            return self.lower, self.upper
        kinked = (self.cost > 0.0) & (self.lower < self.kink) & (self.kink < self.upper)
        low = np.where(kinked & (side > 0.0), self.kink, self.lower)
        return low, np.where(kinked & (side < 0.0), self.kink, self.upper)


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
    solved : bool
        Whether x is the minimiser up to rounding. If not, sums may be missed by more than that.
    """

    x: Array
    multipliers: Array
    kkt: float
    factors: int
    solved: bool


class _Face(NamedTuple):
    """A point, the coordinates that are free there, and the side of its kink of each."""

    x: Array
    free: Mask
    side: Array


def minimize(model: Model, start: Array) -> Solution:
    """Minimise from a start that keeps bounds and sums.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.models.constrained import Model, minimize
    >>> zero = np.zeros(3)
    >>> model = Model(
    ...     A=np.eye(3), slope=np.array([-1.0, 2.0, -0.5]), w=zero, kink=zero, cost=zero,
    ...     lower=zero, upper=np.full(3, np.inf), rows=np.ones((1, 3)), sums=np.ones(1),
    ... )
    >>> minimize(model, np.full(3, 1 / 3)).x
    array([0.75, 0.  , 0.25])
    """
    side = np.where(start > model.kink, 1.0, -1.0)
    low, high = model.piece(side)
    face = _Face(start, (start > low) & (start < high), side)
    first = value = model.value(start)
    found = _guess(model, face)
    factors = found.factors
    # Where curvature has underflowed the model may fall without end: no more solves than
    # coordinates, each of which may move some across their kinks.
    for _ in range(len(start)):
        if found.solved:
            break
        face, steps = _interior(model, face)
        before, value = value, model.value(face.x)
        found = _guess(model, face)
        factors += steps + found.factors
        if not before - value > _ACCURACY * (first - value):
            break
    return found._replace(factors=factors)


def _guess(model: Model, face: _Face) -> Solution:
    """Block principal pivoting from a face; the point of that face where it does not converge."""
    A, slope, w, kink, cost, lower, upper, rows, sums = model
    x, free, side = face.x.copy(), face.free.copy(), face.side.copy()
    curvature = np.maximum(A.diagonal(), TINY)
    root, weight = np.sqrt(curvature), float(curvature.mean())
    gradient = slope + A @ (x - w)
    multipliers = np.zeros(len(rows))
    pieces, marks = (kink, cost, lower, upper), np.empty(len(x), np.int64)
    free_in_rows(rows, sums, x, gradient, *pieces, side, free)
    fewest, last = math.inf, math.inf
    since, count, wrong = 0, 0, 1
    while True:
        if wrong:
            at = np.flatnonzero(free)
            block, tied = A.take(at, axis=0), rows.take(at, axis=1)
            count += 1
            # Rows in the matrix change no step that keeps the sums, and leave to them what A does
            # not see.
            matrix = block.take(at, axis=1)
            if len(rows):
                matrix += weight * (tied.T @ tied)
            if len(at):
                factor = _factor(matrix, curvature[at])
                if factor is None:
                    break
        if len(at):
            right = -(gradient + cost * side)[at]
            if len(rows):
                missing = sums - rows @ x
                right += (weight * missing - multipliers) @ tied
                step = dpotrs(factor, right, lower=1)[0]
                along = dpotrs(factor, tied.T, lower=1)[0]
                change = _solve_rows(tied @ along, tied @ step - missing)
                step = step - along @ change
                multipliers = multipliers + change
            else:
                step = dpotrs(factor, right, lower=1)[0]
            x[at] += step
            gradient += step @ block
        wrong, kkt = mark_wrong(
            slope, w, *pieces, rows, root, multipliers, x, gradient, side, free, marks
        )
        kkt = max(kkt, float(np.abs(sums - rows @ x).max())) if len(rows) else kkt
        if not math.isfinite(kkt) or since > _PATIENCE:
            break
        if wrong == 0 and (kkt <= ROUNDED or not kkt < 0.5 * last):
            # Work off what rounding has left as long as that helps.
            if kkt > _ACCURACY:
                break
            return Solution(np.clip(x, lower, upper), multipliers, kkt, count, True)
        last = kkt if wrong == 0 else math.inf
        if wrong:
            fewest, since = (wrong, 0) if wrong < fewest else (fewest, since + 1)
            exchange(marks, *pieces, x, side, free)
        gradient = slope + A @ (x - w)
        if wrong:
            free_in_rows(rows, sums, x, gradient, *pieces, side, free)
    return Solution(face.x, multipliers, math.inf, count, False)


def _factor(matrix: Array, curvature: Array) -> Array | None:
    """A Cholesky factor, of a matrix with a ridge where its own fails; None where both do.

    Pivots at rounding level count as a failure: a solve would divide by them. What a ridge changes
    is worked off by refinement.
    """
    for ridge in (0.0, RIDGE):
        matrix.ravel()[:: len(matrix) + 1] += ridge * curvature
        factor, failed = dpotrf(matrix.T, lower=1, clean=0)
        if not failed and (factor.diagonal() ** 2 > 4.0 * EPS * curvature).all():
            return factor
    return None


def _solve_rows(schur: Array, right: Array) -> Array:
    """Multipliers of the rows; the shortest where free coordinates are fewer than rows."""
    if len(right) > 1 or not schur[0, 0] > 0.0:
        return np.asarray(np.linalg.lstsq(schur, right)[0], dtype=np.float64)
    return right / schur[0]


def _interior(model: Model, face: _Face) -> tuple[_Face, int]:
    """Minimise by PIQP with each coordinate on the side of its kink to which it is pulled.

    Without rows, what is neither free nor pulled stays where it is. Returns the face that was
    found, and the number of interior-point steps.
    """
    x, free, side = face.x.copy(), face.free, face.side.copy()
    gradient = model.slope + model.A @ (x - model.w)
    slope = gradient
    if len(model.rows):
        known = free if free.any() else ~free
        fit = np.linalg.lstsq(model.rows[:, known].T, -(gradient + model.cost * side)[known])
        slope = gradient + fit[0] @ model.rows
    pulls = model.pulls(x, slope)
    side[(x == model.kink) & (pulls < 0.0)] = 1.0
    side[(x == model.kink) & (pulls > 0.0)] = -1.0
    chosen = free | (pulls != 0.0)
    at = np.flatnonzero(chosen)
    low, high = (end[at] for end in model.piece(side))
    slope = (gradient + model.cost * side)[at]
    root = np.sqrt(np.maximum(model.A.diagonal(), TINY))
    # Curvatures that are as good as lent do not set the unit of their coordinate.
    unit = np.maximum(root[at], math.sqrt(RIDGE) * float(root.max()))
    # A coordinate moves no further than to its bounds, nor than the rows allow.
    width = np.full(len(at), math.inf)
    width[model.rows[:, at].any(axis=0)] = np.abs(x).sum() + np.abs(model.sums).sum()
    width = np.minimum(width, high - low)
    steepest = max(float(np.abs(slope / unit).max()), TINY)
    longest = max(float(np.minimum(np.abs(slope / unit), width * unit).max()), TINY)
    length = longest / unit
    solver = piqp.DenseSolver()
    for name in ("eps_abs", "eps_rel", "eps_duality_gap_abs", "eps_duality_gap_rel"):
        setattr(solver.settings, name, _ACCURACY)
    ends = (low - x[at]) / length, (high - x[at]) / length
    rows, missing = model.rows[:, at] * (length / length.max()), model.sums - model.rows @ x
    solver.setup(
        P=np.asfortranarray(model.A[at[:, None], at] / np.outer(unit, unit)) * (longest / steepest),
        c=slope / (unit * steepest),
        A=np.asfortranarray(rows) if len(rows) else None,
        b=missing / length.max() if len(rows) else None,
        x_l=ends[0],
        x_u=ends[1],
    )
    solver.solve()
    result = solver.result
    at_low, at_high = result.x - ends[0] < result.z_bl, ends[1] - result.x < result.z_bu
    x[at] = np.clip(x[at] + result.x * length, low, high)
    x[at[at_low]], x[at[at_high]] = low[at_low], high[at_high]
    chosen[at[at_low | at_high]] = False
    return _Face(x, chosen, side), int(result.info.iter)
