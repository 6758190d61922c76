"""The quadratic model under a budget: bounds, one sum, and kinks where weights stood before.

    min_u  gradient.(u - w) + 1/2 (u - w)^T H (u - w) + g(u[:n_penalized]),    g a `Budget`

The method is that of `quadratic.py`: weight moves between pairs of coordinates until it is clear on
which face the minimiser lies, a Cholesky solve minimises over that face, and the two alternate.
Positions are counted from the previous weights, so that all kinks lie at 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrs

from sorel._compiled import compiled
from sorel.penalties.budget import Budget, project_budget
from sorel.quadratic import (
    _MAX_ROUNDS,
    _NOT_FINITE,
    _RIDGE,
    _TINY,
    _TOLERANCE,
    QuadraticInfo,
    _add_penalty,
    _breakpoint,
    _change,
    _factor,
)

__all__ = ["minimize_budget"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Near rounding level a violation can come and go for ever: so many rounds without a better one,
# once it is below this.
_PATIENCE, _NEARLY = 4, 1e-10


def minimize_budget(
    H: Array, gradient: Array, w: Array, penalty: Budget, n_penalized: int
) -> tuple[Array, QuadraticInfo]:
    """Minimise a quadratic model around `w` plus a budget penalty on its leading entries.

    Parameters and results are those of :func:`sorel.quadratic.minimize_quadratic`.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.budgeted import minimize_budget
    >>> from sorel.penalties import Budget
    >>> H, slope = np.diag([1.0, 1.0, 2.0]), np.array([0.0, 0.0, -3.0])
    >>> u, info = minimize_budget(H, slope, np.zeros(3), Budget(upper=0.5), 3)
    >>> u
    array([0.25, 0.25, 0.5 ])
    """
    p, n = len(w), n_penalized
    pieces = penalty.pieces(n)
    origin, cost, lower, upper = np.zeros(p), np.zeros(p), np.full(p, -math.inf), np.full(p, np.inf)
    origin[:n], cost[:n] = pieces.previous, pieces.cost
    lower[:n], upper[:n] = pieces.lower - pieces.previous, pieces.upper - pieces.previous
    total = penalty.budget - float(pieces.previous.sum())

    A = np.array(H, dtype=np.float64, order="C")
    slope_at_w = np.array(gradient, dtype=np.float64)
    if not (np.isfinite(A).all() and np.isfinite(slope_at_w).all() and np.isfinite(w).all()):
        raise np.linalg.LinAlgError(_NOT_FINITE)
    lent = _add_penalty(A, slope_at_w, w, penalty.l2, n)
    root = np.sqrt(np.maximum(A.diagonal(), 0.0))
    # The smallest normal number keeps an empty row (0 = 0) from dividing by zero.
    fixed_size = np.maximum(np.abs(gradient) + cost, _TINY)

    start = np.array(w, dtype=np.float64)
    start[:n] = penalty.project(start[:n])
    x = start - origin
    # Rounding must not take a weight off its bound or its kink.
    for place in (lower, upper, np.where(cost > 0.0, 0.0, np.nan)):
        near = np.abs(x - place) <= _TOLERANCE * (np.abs(start) + np.abs(origin))
        x[near] = place[near]

    best, best_kkt, since_best = x, math.inf, 0
    n_iter, shift = 0, lent
    for _ in range(_MAX_ROUNDS):
        _restore_sum(x, lower, upper, cost, total, n)
        moved = x + origin - w
        slope = slope_at_w + A @ moved
        if not np.isfinite(slope).all():
            raise np.linalg.LinAlgError(_NOT_FINITE)
        size = fixed_size + root * float(root @ np.maximum(np.abs(moved), np.abs(x + origin)))
        size[:n] += penalty.l2 * np.abs(x[:n] + origin[:n])
        kkt = _violation(x, slope, cost, lower, upper, size, n)
        if kkt < best_kkt:
            since_best = 0 if kkt < 0.5 * best_kkt else since_best + 1
            best, best_kkt = x.copy(), kkt
        else:
            since_best += 1
        if kkt <= _TOLERANCE or (since_best >= _PATIENCE and best_kkt < _NEARLY):
            break
        _shift_pairs(A, x, slope, cost, lower, upper, _TOLERANCE * size, n)
        solves, round_shift = _minimize_on_face(A, x, slope, cost, lower, upper, total, n)
        n_iter += solves
        shift = max(shift, round_shift)
    return best + origin, QuadraticInfo(n_iter, best_kkt, shift)


def _minimize_on_face(
    A: Array, x: Array, slope: Array, cost: Array, lower: Array, upper: Array, total: float, n: int
) -> tuple[int, float]:
    """Minimise over the face of `x`, shrinking it where the minimiser lies beyond its border.

    Overwrites `x`, and `slope` up to its last step. Returns the number of Cholesky solves and the
    largest shift.
    """
    n_iter, shift = 0, 0.0
    for _ in range(2 * len(x) + 1):
        free, reference = _face(x, cost, lower, upper, A, n)
        if not len(free):
            break
        side = cost * np.sign(x)
        reduced, rhs = _reduce(A, slope + side, free, reference)
        factor, used_shift = _factor(reduced)
        n_iter += 1
        shift = max(shift, used_shift)
        y = dpotrs(factor, rhs, lower=1)[0]
        y += dpotrs(factor, rhs - reduced @ y, lower=1)[0]
        step = np.zeros(len(x))
        length, blocking, border = _breakpoint(x, cost, lower, upper, free, reference, y, step)
        if blocking < 0:
            x += step
            break
        cut = np.clip(x + length * step, lower, upper)
        cut[blocking] = border
        bent = _bend(x, step, cost, lower, upper, total, n)
        bent_product, cut_product = A @ (bent - x), A @ (cut - x)
        if _change(x, bent, slope, cost, bent_product) < _change(x, cut, slope, cost, cut_product):
            x[:] = bent
            slope += bent_product
        else:
            x[:] = cut
            slope += cut_product
    return n_iter, shift


def _bend(
    x: Array, step: Array, cost: Array, lower: Array, upper: Array, total: float, n: int
) -> Array:
    """Return ``x + step`` projected onto the closed face of `x`, which ends at bounds and kinks."""
    out = x + step
    resting = (step == 0.0) | ((cost > 0.0) & (x == 0.0))
    low = np.where(resting, x, np.where((cost > 0.0) & (x > 0.0), np.maximum(lower, 0.0), lower))
    high = np.where(resting, x, np.where((cost > 0.0) & (x < 0.0), np.minimum(upper, 0.0), upper))
    out[:n] = project_budget(out[:n], low[:n], high[:n], total)
    return out


@compiled
def _restore_sum(x: Array, lower: Array, upper: Array, cost: Array, total: float, n: int) -> None:
    """Put the rounding error of the sum into the coordinate with the most room around it."""
    excess = -total
    best = 0.0
    at = -1
    for j in range(n):
        excess += x[j]
        room = min(x[j] - lower[j], upper[j] - x[j])
        if cost[j] > 0.0:
            room = min(room, abs(x[j]))
        if room > best:
            best = room
            at = j
    if at >= 0 and abs(excess) < best:
        x[at] -= excess


@compiled
def _sides(
    j: int, x: Array, slope: Array, cost: Array, lower: Array, upper: Array
) -> tuple[float, float, float, float]:
    """Derivatives of one coordinate to the left and right, and how far they hold."""
    left, right, back, ahead = -np.inf, np.inf, 0.0, 0.0
    if x[j] > lower[j]:
        left = slope[j] + (cost[j] if x[j] > 0.0 else -cost[j])
        back = x[j] - lower[j]
        if cost[j] > 0.0 and x[j] > 0.0:
            back = min(back, x[j])
    if x[j] < upper[j]:
        right = slope[j] + (cost[j] if x[j] >= 0.0 else -cost[j])
        ahead = upper[j] - x[j]
        if cost[j] > 0.0 and x[j] < 0.0:
            ahead = min(ahead, -x[j])
    return left, right, back, ahead


@compiled
def _violation(
    x: Array, slope: Array, cost: Array, lower: Array, upper: Array, size: Array, n: int
) -> float:
    """What moving weight from one coordinate to another gains at most, relative to `size`."""
    worst = 0.0
    give, take = -1, -1
    most, least = -np.inf, np.inf
    for j in range(n):
        left, right, _, _ = _sides(j, x, slope, cost, lower, upper)
        if left > most:
            most, give = left, j
        if right < least:
            least, take = right, j
    if give >= 0 and take >= 0 and most > least:
        worst = (most - least) / (size[give] + size[take])
    for j in range(n, x.shape[0]):
        worst = max(worst, abs(slope[j]) / size[j])
    return worst


@compiled
def _shift_pairs(
    A: Array,
    x: Array,
    slope: Array,
    cost: Array,
    lower: Array,
    upper: Array,
    tolerance: Array,
    n: int,
) -> None:
    """Shift weight between pairs of coordinates, minimising exactly over each pair and piece.

    Weight goes to the coordinate of least slope, from the one that promises the largest decrease.
    """
    p = x.shape[0]
    for _ in range(2 * n):
        to = -1
        least = np.inf
        room = 0.0
        for j in range(n):
            _, right, _, ahead = _sides(j, x, slope, cost, lower, upper)
            if right + tolerance[j] < least:
                least, to, room = right + tolerance[j], j, ahead
        if to < 0:
            break
        source = -1
        best = 0.0
        amount = 0.0
        limit = 0.0
        for j in range(n):
            left, _, back, _ = _sides(j, x, slope, cost, lower, upper)
            excess = left - least - tolerance[j]
            if j == to or excess <= 0.0:
                continue
            excess += tolerance[j] + tolerance[to]
            curvature = A[j, j] + A[to, to] - 2.0 * A[j, to]
            reach = min(back, room)
            # Rounding may leave a pair of equal columns without its positive curvature.
            shifted = reach if excess >= curvature * reach else excess / curvature
            decrease = shifted * (excess - 0.5 * curvature * shifted)
            if decrease > best:
                source, best, amount, limit = j, decrease, shifted, back
        if source < 0 or not amount < np.inf:
            break
        # A border that is reached is reached exactly.
        if amount == limit:
            x[source] = _landing(x[source], -1.0, cost[source], lower[source])
        else:
            x[source] -= amount
        if amount == room:
            x[to] = _landing(x[to], 1.0, cost[to], upper[to])
        else:
            x[to] += amount
        for i in range(p):
            slope[i] += amount * (A[to, i] - A[source, i])
    for j in range(n, p):
        if A[j, j] > 0.0:
            change = -slope[j] / A[j, j]
            x[j] += change
            for i in range(p):
                slope[i] += change * A[j, i]


@compiled
def _landing(x: float, sign: float, cost: float, bound: float) -> float:
    """The next kink or bound in a direction."""
    if cost > 0.0 and x * sign < 0.0 and bound * sign > 0.0:
        return 0.0
    return bound


@compiled
def _face(
    x: Array, cost: Array, lower: Array, upper: Array, A: Array, n: int
) -> tuple[Indices, Indices]:
    """The coordinates that are free on the face of `x`, and a reference for each.

    The reference, the coordinate of least curvature, takes up what the others give away, and is not
    listed itself. What comes after the weights has the reference -1.
    """
    p = x.shape[0]
    first = -1
    free = np.empty(p, dtype=np.int64)
    reference = np.empty(p, dtype=np.int64)
    for j in range(n):
        inside = lower[j] < x[j] < upper[j] and (cost[j] == 0.0 or x[j] != 0.0)
        if inside and (first < 0 or A[j, j] < A[first, first]):
            first = j
    count = 0
    for j in range(p):
        inside = lower[j] < x[j] < upper[j] and (cost[j] == 0.0 or x[j] != 0.0)
        if inside and j != first:
            free[count] = j
            reference[count] = first if j < n else -1
            count += 1
    return free[:count], reference[:count]


@compiled
def _reduce(A: Array, slope: Array, free: Indices, reference: Indices) -> tuple[Array, Array]:
    """Curvature and negative slope of the objective in the free coordinates of a face."""
    m = free.shape[0]
    reduced = np.empty((m, m))
    rhs = np.empty(m)
    for a in range(m):
        i = free[a]
        i0 = reference[a]
        rhs[a] = -slope[i] + (slope[i0] if i0 >= 0 else 0.0)
        for b in range(m):
            j = free[b]
            j0 = reference[b]
            entry = A[i, j]
            if i0 >= 0:
                entry -= A[i0, j]
            if j0 >= 0:
                entry -= A[i, j0]
                if i0 >= 0:
                    entry += A[i0, j0]
            reduced[a, b] = entry
        # Columns that agree leave rounding errors of either sign where there is no curvature.
        size = abs(A[i, i]) + (abs(A[i0, i0]) if i0 >= 0 else 0.0)
        reduced[a, a] = max(reduced[a, a], _RIDGE * size)
    return reduced, rhs
