"""Projection onto the permutahedron P(sigma), the dual set of a spectral risk.

Sort z ascending, fit the nondecreasing regression v of ``z_(i) - sigma_i`` by pooling adjacent
violators, and ``lam_(i) = z_(i) - v_i``. Where sigma has two levels, as for CVaR, P(sigma) is a box
cut by a plane, and one threshold t with ``sum_i clip(z_i - t, low, high) = sum_i sigma_i`` replaces
the sort.

The engines work in density form, ``q_i = lam_i / omega_i`` with omega the normalised sample weights
(1/n without), so that q = 1 is the plain mean. Inside a block all quantities are kept relative to
its smallest entry: there ``q_i = (z_i - z_ref) + q_ref`` adds two nonnegative numbers, and nothing
is lost however large z is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ._compiled import compiled
from .risks import FloatArray, Risk, normalised_sample_weight

__all__ = ["Projector", "project_permutahedron"]

IntArray = npt.NDArray[np.int64]

# Moves per item that repairing the last order may take before a fresh sort is cheaper.
_MOVES_PER_ITEM = 8
# Newton passes of the threshold search: first from the last threshold, then from a safe bracket.
_WARM_PASSES = 12
_COLD_PASSES = 200
# Items per partial sum: short enough to keep plain sums accurate, long enough to be fast.
_RUN = 256
# Above this size, selecting the edge of a two-level spectrum beats keeping the order of the losses
# in repair.
_RADIX_FROM = 1000
_SELECT_FROM = 2000


def project_permutahedron(
    z: npt.ArrayLike, sigma: npt.ArrayLike | Risk, sample_weight: npt.ArrayLike | None = None
) -> FloatArray:
    """Project a vector onto the permutahedron of sigma, the convex hull of its rearrangements.

    Parameters
    ----------
    z : array-like of shape (n,)
        The vector to project; it is not changed.
    sigma : array-like of shape (n,) or Risk
        Nonnegative, nondecreasing weights with a positive sum, or a risk that gives them.
    sample_weight : array-like of shape (n,), optional
        Sample weights omega (normalised here to sum 1); ``sigma`` must then be a risk. The norm is
        ``sum_i (lam_i - z_i)^2 / (n omega_i)``, so that a weight of 2 is the same as giving the row
        twice.

    Returns
    -------
    ndarray of shape (n,)
        The projection lam.

    Examples
    --------
    >>> import sorel
    >>> sorel.project_permutahedron([0.0, 1.0, 5.0], [0.0, 0.25, 0.75])
    array([0.  , 0.25, 0.75])
    >>> sorel.project_permutahedron([0.5, 0.5, 0.5], sorel.CVaR(0.5)).round(4)
    array([0.3333, 0.3333, 0.3333])
    """
    point = np.asarray(z)
    if point.dtype.kind not in "fiu":
        raise TypeError(f"z must be a vector of real numbers, got dtype {point.dtype}.")
    if point.ndim != 1 or point.size == 0:
        raise ValueError(f"z must be a non-empty vector, got shape {point.shape}.")
    point = np.ascontiguousarray(point, dtype=np.float64)
    if not np.isfinite(point).all():
        raise ValueError("z must be finite; it contains NaN or inf.")
    n = point.size
    out = np.empty(n)
    if sample_weight is not None:
        if not isinstance(sigma, Risk):
            raise TypeError(
                "sample_weight needs a risk in place of the vector sigma, because the weights of "
                "the ordered losses then depend on the order; pass e.g. CVaR(0.1)."
            )
        omega = normalised_sample_weight(sample_weight, n)
        with np.errstate(over="ignore"):
            zeta = np.divide(point, omega, out=np.zeros(n), where=omega > 0.0)
        if not np.isfinite(zeta).all():
            raise ValueError("z / sample_weight overflows; drop rows of negligible weight.")
        Projector(sigma, n, omega).project(zeta, out)
        out *= omega
        return out
    mass = sigma.weights(n) if isinstance(sigma, Risk) else _checked_sigma(sigma, n)
    _Uniform(mass).project(point, out)
    return out


def _checked_sigma(sigma: npt.ArrayLike, n: int) -> FloatArray:
    mass = np.ascontiguousarray(sigma, dtype=np.float64)
    if mass.shape != (n,):
        raise ValueError(f"sigma must have shape ({n},) like z, got {mass.shape}.")
    if not np.isfinite(mass).all():
        raise ValueError("sigma must be finite; it contains NaN or inf.")
    if mass[0] < 0.0:
        raise ValueError(f"sigma must be nonnegative, got {float(mass[0])!r}.")
    if (mass[1:] < mass[:-1]).any():
        where = int(np.argmax(mass[1:] < mass[:-1]))
        raise ValueError(
            f"sigma must be nondecreasing, but falls from {float(mass[where])!r} to "
            f"{float(mass[where + 1])!r} at position {where + 1}; sort it first."
        )
    if mass[-1] == 0.0:
        raise ValueError("sigma is zero everywhere; give it a positive sum.")
    return mass


class Projector:
    """Repeated projections, in density form, that reuse what the last one found.

    Parameters
    ----------
    risk : Risk
        The risk.
    n : int
        Number of items.
    sample_weight : ndarray of shape (n,), optional
        Normalised weights omega; None means 1/n each. Items of weight 0 get q = 0.

    Attributes
    ----------
    block : ndarray of int64, shape (n,)
        After `project`, the pooled block of each item, or -1 where q does not move with zeta.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.permutahedron import Projector
    >>> projector, q = Projector(CVaR(0.5), 4), np.empty(4)
    >>> projector.project(np.array([0.0, 1.0, 1.5, 9.0]), q)
    1
    >>> q
    array([0.  , 0.75, 1.25, 2.  ])
    >>> projector.block
    array([-1,  0,  0, -1])
    """

    def __init__(self, risk: Risk, n: int, sample_weight: FloatArray | None = None) -> None:
        self.risk = risk
        self.n = int(n)
        self.block = np.full(self.n, -1, dtype=np.int64)
        self._used: IntArray | None = None
        self._core: _Uniform | _Weighted
        if sample_weight is None:
            self._core = _Uniform(risk.weights(self.n) * self.n, self.block)
            return
        omega = np.ascontiguousarray(sample_weight, dtype=np.float64)
        if not (omega > 0.0).all():
            self._used = np.flatnonzero(omega > 0.0)
            omega = omega[self._used]
            self._inner = np.empty((2, omega.size))
            self._inner_block = np.full(omega.size, -1, dtype=np.int64)
        self._core = _Weighted(
            risk, omega, self._inner_block if self._used is not None else self.block
        )

    def project(self, zeta: FloatArray, out: FloatArray) -> int:
        """Project zeta onto the dual set: minimise ``sum_i omega_i (q_i - zeta_i)^2``.

        Within a block, ``dq = dzeta - (omega-weighted mean of dzeta over the block)``; elsewhere
        ``dq = 0``.

        Parameters
        ----------
        zeta : ndarray of shape (n,)
            Finite values.
        out : ndarray of shape (n,)
            Receives q. `block` is filled too.

        Returns
        -------
        int
            The number of blocks.
        """
        if self._used is None:
            return self._core.project(zeta, out)
        np.take(zeta, self._used, out=self._inner[0])
        count = self._core.project(self._inner[0], self._inner[1])
        out.fill(0.0)
        out[self._used] = self._inner[1]
        self.block[self._used] = self._inner_block
        return count

    def forget(self) -> None:
        """Drop what earlier calls left behind, so that the next results do not depend on them."""
        core = self._core
        for order in (core._project_order, core._value_order):
            if order is not None:
                order.known = False
        if core._threshold is not None:
            core._threshold.pivot = -1

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        """Fill q with the maximiser of ``sum_i omega_i q_i losses_i``, and return that maximum.

        Equal losses are taken in the order of their positions.

        Parameters
        ----------
        losses : ndarray of shape (n,)
            Finite losses.
        out : ndarray of shape (n,)
            Receives q.

        Returns
        -------
        float
            The spectral risk of the losses.
        """
        if self._used is None:
            return self._core.worst_case(losses, out) / self.n
        np.take(losses, self._used, out=self._inner[0])
        value = self._core.worst_case(self._inner[0], self._inner[1]) / self._used.size
        out.fill(0.0)
        out[self._used] = self._inner[1]
        return value

    def value(self, losses: FloatArray) -> float:
        """Return the spectral risk of the losses.

        Parameters
        ----------
        losses : ndarray of shape (n,)
            Finite losses.

        Returns
        -------
        float
            ``sum_i sigma_i l_[i]``.
        """
        if self._used is None:
            return self._core.value(losses) / self.n
        np.take(losses, self._used, out=self._inner[0])
        return self._core.value(self._inner[0]) / self._used.size

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        """Return the spectral risk less ``sum_i omega_i q_i losses_i``, without cancellation.

        Parameters
        ----------
        losses : ndarray of shape (n,)
            Finite losses.
        density : ndarray of shape (n,)
            q in the dual set.

        Returns
        -------
        float
            A sum of nonnegative terms: the mass that q holds below each gap between sorted
            losses, beyond what the risk puts there, times the width of the gap.
        """
        if self._used is None:
            return self._core.shortfall(losses, density) / self.n
        np.take(losses, self._used, out=self._inner[0])
        np.take(density, self._used, out=self._inner[1])
        return self._core.shortfall(self._inner[0], self._inner[1]) / self._used.size


class _Order:
    """The ascending order of a slowly changing vector, ties by position."""

    def __init__(self, n: int) -> None:
        self.order = np.arange(n)
        self.key = np.empty(n)
        self.known = False

    def sort(self, values: FloatArray, attempt: int) -> None:
        # The fast sorts leave near ties in an arbitrary order. The stable one settles what
        # repairing cannot, and makes the order, hence every result, independent of the history.
        if attempt == 0 and values.size >= _RADIX_FROM:
            _radix_order(values, np.empty((2, values.size), np.uint64), self.order)
        else:
            self.order[:] = np.argsort(values, kind=None if attempt == 0 else "stable")
        self.known = True

    def update(self, values: FloatArray, hint: _Order | None = None) -> None:
        """Sort again, from the last order or that of a related vector where one is near."""
        budget = _MOVES_PER_ITEM * self.key.size
        if self.known and _repair(values, self.order, self.key, budget):
            return
        if hint is not None and hint.known:
            self.order[:] = hint.order
            self.known = True
            if _repair(values, self.order, self.key, budget):
                return
        self.sort(values, 0)
        attempt = 1
        while not _repair(values, self.order, self.key, budget):
            self.sort(values, attempt)
            attempt += 1


class _Thresholder:
    """The threshold of a two-level set, found from where it was at the last call."""

    def __init__(
        self, weight: FloatArray | None, n: int, low: float, high: float, total: float, rank: int
    ) -> None:
        self.weight = weight
        self.low, self.high, self.total = low, high, total
        self.rank = rank
        self.shifted = np.empty(n)
        # Index of an item near the threshold, the threshold relative to it, and a scratch entry.
        self.pivot = -1
        self.offset = 0.0
        self.state = np.empty(2)

    def project(self, zeta: FloatArray, out: FloatArray, block: IntArray | None) -> int:
        arguments = (zeta, self.weight, self.low, self.high, self.total, self.shifted, out, block)
        count = -1
        if self.pivot >= 0:
            count = _threshold(
                *arguments, zeta[self.pivot], self.offset, -np.inf, np.inf, _WARM_PASSES, self.state
            )
        if count < 0:
            if self.weight is None:
                # The threshold lies between z_(rank) - high and z_(rank) - low.
                reference = np.partition(zeta, self.rank)[self.rank]
                below, above = -self.high, -self.low
            else:
                least, most = zeta.min(), zeta.max()
                reference = 0.5 * least + 0.5 * most
                below, above = (least - reference) - self.high, (most - reference) - self.low
            # Rounding may put the threshold a hair outside; the first step would then be refused.
            slack = 0.01 * (self.high - self.low)
            below, above = below - slack, above + slack
            count = _threshold(
                *arguments, reference, 0.5 * (below + above), below, above, _COLD_PASSES, self.state
            )
        if count >= 0:
            self.pivot, self.offset = int(self.state[0]), float(self.state[1])
        return count


class _Uniform:
    """Projection with equal weights: minimise ``sum_i (q_i - zeta_i)^2`` over P(mass)."""

    def __init__(self, mass: FloatArray, block: IntArray | None = None) -> None:
        n = mass.size
        self.mass = mass
        self.block = block
        self._project_order: _Order | None = None
        self._value_order: _Order | None = None
        self._work: FloatArray | None = None
        self._first: IntArray | None = None
        self._threshold: _Thresholder | None = None
        # As mass ascends, the first entry above the lowest level and the one after it settle
        # whether there are two levels, with at most one entry between them.
        bend = min(int(np.searchsorted(mass, mass[0], side="right")), n - 1)
        self._bend = bend if mass[min(bend + 1, n - 1)] == mass[-1] else None
        if self._bend is not None:
            low, high = float(mass[0]), float(mass[-1])
            total = math.fsum((low * bend, float(mass[bend]), high * (n - 1 - bend)))
            self._threshold = _Thresholder(None, n, low, high, total, bend)

    def _general(self) -> tuple[_Order, FloatArray, IntArray]:
        if self._project_order is None or self._work is None or self._first is None:
            n = self.mass.size
            self._project_order = _Order(n)
            self._work = np.empty((3, n))
            self._first = np.empty(n + 1, dtype=np.int64)
        return self._project_order, self._work, self._first

    def project(self, zeta: FloatArray, out: FloatArray) -> int:
        if self._threshold is not None:
            count = self._threshold.project(zeta, out, self.block)
            if count >= 0:
                return count
        keep, work, first = self._general()
        attempt = 0
        if not keep.known:
            keep.sort(zeta, 0)
            attempt = 1
        while True:
            count = _project_sorted(
                zeta, self.mass, keep.order, keep.key, work, first, out, self.block, _MOVES_PER_ITEM
            )
            if count >= 0:
                return count
            keep.sort(zeta, attempt)
            attempt += 1

    def _ordered(self, losses: FloatArray) -> _Order:
        if self._value_order is None:
            self._value_order = _Order(losses.size)
        # The weights follow the losses, so the order of the last projection is often theirs.
        self._value_order.update(losses, self._project_order)
        return self._value_order

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        if self._bend is not None and losses.size > _SELECT_FROM:
            edge = np.partition(losses, self._bend)[self._bend]
            _fill_levels(losses, self.mass, edge, out)
            return _dot(out, losses)
        keep = self._ordered(losses)
        _scatter(self.mass, keep.order, out)
        return _dot(self.mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        if self._bend is not None and losses.size > _SELECT_FROM:
            part = np.partition(losses, self._bend)
            return _dot(self.mass, part)
        return _dot(self.mass, self._ordered(losses).key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        if self._bend is not None and losses.size > _SELECT_FROM:
            edge = np.partition(losses, self._bend)[self._bend]
            return _level_shortfall(losses, density, self.mass[0], self.mass[-1], edge)
        keep = self._ordered(losses)
        return _ordered_shortfall(keep.key, self.mass, density, None, keep.order)


class _Weighted:
    """Projection with positive weights, scaled to mean 1 so that sizes match equal weights."""

    def __init__(self, risk: Risk, omega: FloatArray, block: IntArray) -> None:
        n = omega.size
        self.risk = risk
        self.omega = omega
        self.weight = omega * n
        self.block = block
        self._project_order = _Order(n)
        self._value_order = _Order(n)
        self._work = np.empty((4, n))
        self._first = np.empty(n + 1, dtype=np.int64)
        self._threshold: _Thresholder | None = None
        levels = risk.levels(n, omega)
        if levels is not None:
            self._threshold = _Thresholder(self.weight, n, *levels, float(n), 0)

    def _mass(self, order: IntArray) -> FloatArray:
        mass = self.risk.increments(self.omega[order])
        mass *= self.omega.size
        return mass

    def project(self, zeta: FloatArray, out: FloatArray) -> int:
        if self._threshold is not None:
            count = self._threshold.project(zeta, out, self.block)
            if count >= 0:
                return count
        keep = self._project_order
        keep.update(zeta)
        weight = self.weight[keep.order]
        mass = self._mass(keep.order)
        count = _pool(keep.key, mass, weight, self._work, self._first)
        return _write(
            keep.key, mass, weight, keep.order, count, self._work, self._first, out, self.block
        )

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        keep = self._value_order
        keep.update(losses)
        mass = self._mass(keep.order)
        _scatter(mass / self.weight[keep.order], keep.order, out)
        return _dot(mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        keep = self._value_order
        keep.update(losses)
        return _dot(self._mass(keep.order), keep.key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        keep = self._value_order
        keep.update(losses)
        mass = self._mass(keep.order)
        return _ordered_shortfall(keep.key, mass, density, self.weight, keep.order)


@compiled(fastmath=False)
def _radix_order(values: Any, work: Any, order: Any) -> None:
    """Order by the leading 32 bits of the distance from a middle value: near ties stay unsorted.

    The bits of doubles, those of negative ones inverted, ascend with them, so three passes of
    counting sort on 11 bits each bring the order within a few exchanges of the right one, which
    `_repair` then makes. Distances from the middle keep the digits where values are dense.
    """
    n = values.size
    middle = np.median(values[:: max(1, n // 31)])
    counts = np.zeros((3, 2048), np.int64)
    source, target = work[0], work[1]
    bits = source.view(np.float64)
    for i in range(n):
        bits[i] = values[i] - middle
    sign = np.uint64(1) << np.uint64(63)
    for i in range(n):
        key = source[i]
        key = ~key if key & sign else key | sign
        key = (key >> np.uint64(32)) << np.uint64(32)
        source[i] = key | np.uint64(i)
        counts[0, (key >> np.uint64(32)) & np.uint64(2047)] += 1
        counts[1, (key >> np.uint64(43)) & np.uint64(2047)] += 1
        counts[2, key >> np.uint64(54)] += 1
    for digit in range(3):
        position = 0
        for b in range(2048):
            size = counts[digit, b]
            counts[digit, b] = position
            position += size
        shift = np.uint64(32 + 11 * digit)
        for i in range(n):
            b = (source[i] >> shift) & np.uint64(2047)
            target[counts[digit, b]] = source[i]
            counts[digit, b] += 1
        source, target = target, source
    for i in range(n):
        order[i] = np.int64(source[i] & np.uint64(0xFFFFFFFF))


@compiled(fastmath=False)
def _repair(values: Any, order: Any, key: Any, budget: int) -> bool:
    """Sort by insertion from the given order, ties by position; False once the budget is spent."""
    n = order.size
    last = -np.inf
    last_item = -1
    for i in range(n):
        item = order[i]
        value = values[item]
        if last < value or (last == value and last_item < item):
            key[i] = value
            order[i] = item
            last, last_item = value, item
            continue
        j = i - 1
        while j >= 0 and (key[j] > value or (key[j] == value and order[j] > item)):
            key[j + 1] = key[j]
            order[j + 1] = order[j]
            j -= 1
        key[j + 1] = value
        order[j + 1] = item
        last, last_item = key[i], order[i]
        budget -= i - j
        if budget < 0:
            # The entries stay a permutation, so the next call starts from something valid.
            return False
    return True


@compiled(fastmath=False)
def _pool(key: Any, mass: Any, weight: Any, work: Any, first: Any) -> int:
    """Pool adjacent violators of ``key - mass / weight``, relative to the first key of each block.

    A block holds D, the sum of ``weight (key - ref) - mass``, as a sum of two doubles, its weight,
    and their quotient. Returns the number of blocks; block b spans ``first[b]:first[b + 1]``, and
    its quotient is ``work[0, b]``.
    """
    n = key.size
    top = -1
    # The block on top of the stack lives in scalars as well as on the stack.
    start, heavy, total, spill, level = 0, 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        new_start = i
        new_heavy = 1.0 if weight is None else weight[i]
        new_total = -mass[i]
        new_spill = 0.0
        new_level = new_total if weight is None else new_total / new_heavy
        reference = key[i]
        while top >= 0:
            # Means are compared through the distance of the references: sums of large keys would
            # lose the digits that decide.
            step = reference - key[start]
            if level - new_level <= step:
                break
            # total + new_total + moved, with the rounding errors kept: a plain running sum over a
            # large block would pool wrongly in its last digits.
            moved = new_heavy * step
            pair = total + new_total
            part = pair - total
            lost = (total - (pair - part)) + (new_total - part)
            triple = pair + moved
            part = triple - pair
            lost += (pair - (triple - part)) + (moved - part)
            lost += spill + new_spill
            new_total = triple + lost
            new_spill = lost - (new_total - triple)
            new_heavy = i + 1.0 - start if weight is None else heavy + new_heavy
            new_start = start
            new_level = new_total / new_heavy
            reference = key[start]
            top -= 1
            if top >= 0:
                start = first[top]
                level = work[0, top]
                total = work[1, top]
                spill = work[2, top]
                if weight is not None:
                    heavy = work[3, top]
        top += 1
        first[top] = new_start
        work[0, top] = new_level
        work[1, top] = new_total
        work[2, top] = new_spill
        if weight is not None:
            work[3, top] = new_heavy
        start, heavy, total, spill, level = new_start, new_heavy, new_total, new_spill, new_level
    first[top + 1] = n
    return top + 1


@compiled(fastmath=False)
def _write(
    key: Any,
    mass: Any,
    weight: Any,
    order: Any,
    count: int,
    work: Any,
    first: Any,
    out: Any,
    block: Any,
) -> int:
    """Write q back in place, number the blocks of two items or more, and return their count."""
    pooled = 0
    for b in range(count):
        start, stop = first[b], first[b + 1]
        if stop == start + 1:
            item = order[start]
            out[item] = mass[start] if weight is None else mass[start] / weight[start]
            if block is not None:
                block[item] = -1
            continue
        # Minus the quotient is q at the reference: nonnegative, like the distances from there.
        base = -work[0, b]
        if weight is None:
            least, most = mass[start], mass[stop - 1]
        else:
            least, most = 0.0, np.inf
        reference = key[start]
        for i in range(start, stop):
            item = order[i]
            out[item] = min(max((key[i] - reference) + base, least), most)
            if block is not None:
                block[item] = pooled
        pooled += 1
    return pooled


@compiled(fastmath=False)
def _project_sorted(
    zeta: Any,
    mass: Any,
    order: Any,
    key: Any,
    work: Any,
    first: Any,
    out: Any,
    block: Any,
    moves: int,
) -> int:
    """The whole projection for equal weights in one call; -1 where the order needs a fresh sort."""
    if not _repair(zeta, order, key, moves * key.size):
        return -1
    count = _pool(key, mass, None, work, first)
    return _write(key, mass, None, order, count, work, first, out, block)


@compiled
def _split(shifted: Any, weight: Any, tau: float, low: float, high: float) -> Any:
    """Weights at the low level, at the high level and between, and the sum over those between."""
    at_low, at_high, free, total = 0.0, 0.0, 0.0, 0.0
    # Arithmetic in place of branches, so that the loop runs on vectors.
    for i in range(shifted.size):
        x = shifted[i]
        w = 1.0 if weight is None else weight[i]
        down = w if x - tau <= low else 0.0
        up = w if x - tau >= high else 0.0
        between = w - down - up
        at_low += down
        at_high += up
        free += between
        total += between * x
    return at_low, at_high, free, total


@compiled(fastmath=False)
def _threshold(
    zeta: Any,
    weight: Any,
    low: float,
    high: float,
    total: float,
    shifted: Any,
    out: Any,
    block: Any,
    reference: float,
    tau: float,
    below: float,
    above: float,
    passes: int,
    state: Any,
) -> int:
    """Find t = reference + tau with ``sum_i w_i clip(zeta_i - t, low, high) = total``, and write q.

    Newton steps on a decreasing piecewise linear function, kept inside the bracket [below, above]
    for tau. Returns the number of blocks, or -1 when ``passes`` did not suffice; ``state`` receives
    an item near the threshold and the threshold relative to it.
    """
    n = zeta.size
    if low == high:
        for i in range(n):
            out[i] = low
            if block is not None:
                block[i] = -1
        state[0], state[1] = -1.0, 0.0
        return 0
    for i in range(n):
        shifted[i] = zeta[i] - reference
    small = 2.0**-51
    last_low, last_high = -1.0, -1.0
    span = np.inf
    newton = False
    for trial in range(passes):
        at_low, at_high, free, moment = _split(shifted, weight, tau, low, high)
        excess = (moment - free * tau) + (low * at_low + high * at_high - total)
        noise = small * (abs(moment) + abs(free * tau) + total)
        # Equal counts after a full Newton step: the sets are the same, and only rounding is left.
        settled = newton and at_low == last_low and at_high == last_high
        settled = settled and abs(excess) <= 2.0**12 * noise
        if settled or abs(excess) <= noise:
            pivot = _pivot(shifted, tau, low, high)
            if shifted[pivot] == 0.0:
                return _write_levels(
                    shifted, weight, low, high, total, out, block, tau, pivot, state
                )
            # Start again from the smallest free item, where differences are exact. It rarely takes
            # more than two passes, and the sets may still change in the last digits.
            tau -= shifted[pivot]
            reference = zeta[pivot]
            for i in range(n):
                shifted[i] = zeta[i] - reference
            below, above, span = -np.inf, np.inf, np.inf
            last_low, last_high = -1.0, -1.0
            continue
        last_low, last_high = at_low, at_high
        if excess > 0.0:
            below = max(below, tau)
        else:
            above = min(above, tau)
        newton = free > 0.0
        if newton:
            goal = full = tau + excess / free
            # Without a bound on that side yet, a flat piece must not throw the search far away.
            if excess > 0.0 and above == np.inf:
                goal = min(goal, tau + (high - low))
            elif excess < 0.0 and below == -np.inf:
                goal = max(goal, tau - (high - low))
        else:
            goal = full = _next_kink(shifted, tau, low, high, excess)
        # Ends of the bracket have been tried: taking one again would cycle. Where three passes did
        # not halve the bracket, halve it.
        slow = trial % 3 == 2 and above - below > 0.5 * span
        if trial % 3 == 2:
            span = above - below
        if above - below < np.inf and (slow or not below < goal < above):
            goal = 0.5 * (below + above)
        newton = newton and goal == full
        tau = goal
    return -1


@compiled(fastmath=False)
def _next_kink(shifted: Any, tau: float, low: float, high: float, excess: float) -> float:
    """Where the nearest clipped item comes free, and moved on as if it alone took up the excess."""
    nearest = np.inf if excess > 0.0 else -np.inf
    for i in range(shifted.size):
        x = shifted[i]
        if excess > 0.0:
            if x - tau >= high:
                nearest = min(nearest, x)
        elif x - tau <= low:
            nearest = max(nearest, x)
    return (nearest - high if excess > 0.0 else nearest - low) + excess


@compiled(fastmath=False)
def _pivot(shifted: Any, tau: float, low: float, high: float) -> int:
    """The smallest item above the low level."""
    pivot = -1
    for i in range(shifted.size):
        if shifted[i] - tau > low and (pivot < 0 or shifted[i] < shifted[pivot]):
            pivot = i
    return max(pivot, 0)


@compiled(fastmath=False)
def _write_levels(
    shifted: Any,
    weight: Any,
    low: float,
    high: float,
    total: float,
    out: Any,
    block: Any,
    tau: float,
    pivot: int,
    state: Any,
) -> int:
    """Solve for tau on the sets found, with compensated sums, and write q and the blocks."""
    n = shifted.size
    at_low, at_high, free = 0.0, 0.0, 0.0
    moment, spill = 0.0, 0.0
    for begin in range(0, n, _RUN):
        part_low, part_high, part_free, part = 0.0, 0.0, 0.0, 0.0
        for i in range(begin, min(begin + _RUN, n)):
            x = shifted[i]
            w = 1.0 if weight is None else weight[i]
            if x - tau <= low:
                part_low += w
            elif x - tau >= high:
                part_high += w
            else:
                part_free += w
                part += w * x
        at_low += part_low
        at_high += part_high
        free += part_free
        grown = moment + part
        piece = grown - moment
        spill += (moment - (grown - piece)) + (part - piece)
        moment = grown
    if free > 0.0:
        tau = ((moment + spill) + (low * at_low + (high * at_high - total))) / free
    count = 0
    for i in range(n):
        q = shifted[i] - tau
        inside = low < q < high
        count += inside
        out[i] = min(max(q, low), high)
        if block is not None:
            block[i] = 0 if inside else -1
    state[0], state[1] = pivot, tau - shifted[pivot]
    if count == 1 and block is not None:
        # A single free item takes what the others leave, and does not move.
        for i in range(n):
            block[i] = -1
    return 1 if count > 1 else 0


@compiled
def _plain_dot(a: Any, b: Any, start: int, stop: int) -> float:
    total = 0.0
    for i in range(start, stop):
        total += a[i] * b[i]
    return total


@compiled(fastmath=False)
def _dot(a: Any, b: Any) -> float:
    """Inner product as short plain sums added with compensation: no error that grows with n."""
    total, spill = 0.0, 0.0
    for begin in range(0, a.size, _RUN):
        part = _plain_dot(a, b, begin, min(begin + _RUN, a.size))
        grown = total + part
        piece = grown - total
        spill += (total - (grown - piece)) + (part - piece)
        total = grown
    return total + spill


@compiled(fastmath=False)
def _scatter(values: Any, order: Any, out: Any) -> None:
    for i in range(order.size):
        out[order[i]] = values[i]


@compiled(fastmath=False)
def _fill_levels(losses: Any, mass: Any, edge: float, out: Any) -> None:
    """Two-level weights by comparison with the loss at the bend; ties with it by position."""
    n = losses.size
    rank = 0
    for i in range(n):
        rank += losses[i] < edge
    for i in range(n):
        if losses[i] < edge:
            out[i] = mass[0]
        elif losses[i] > edge:
            out[i] = mass[n - 1]
        else:
            out[i] = mass[rank]
            rank += 1


@compiled(fastmath=False)
def _ordered_shortfall(key: Any, mass: Any, density: Any, weight: Any, order: Any) -> float:
    """sum_j max(0, sum_{i <= j} (w_i q_i - mass_i)) (l_(j+1) - l_(j)); inner sum compensated."""
    total, surplus, spill = 0.0, 0.0, 0.0
    for j in range(order.size - 1):
        i = order[j]
        own = density[i] if weight is None else density[i] * weight[i]
        change = own - mass[j]
        grown = surplus + change
        piece = grown - surplus
        spill += (surplus - (grown - piece)) + (change - piece)
        surplus = grown
        total += max(surplus + spill, 0.0) * (key[j + 1] - key[j])
    return total


@compiled
def _level_shortfall(losses: Any, density: Any, low: float, high: float, edge: float) -> float:
    """The same for two levels: above the bend the high level is due, below it the low one."""
    total = 0.0
    for i in range(losses.size):
        distance = losses[i] - edge
        due = high if distance > 0.0 else low
        total += max((due - density[i]) * distance, 0.0)
    return total
