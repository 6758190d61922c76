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

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ._compiled import compiled
from ._pool import WORTH_POOLING, Pool
from ._threads import Team
from .risks import FloatArray, Risk, normalised_sample_weight

__all__ = ["Projector", "project_permutahedron"]

IntArray = npt.NDArray[np.int64]
BlockArray = npt.NDArray[np.int32]

# Moves per item that repairing an order may take before a fresh sort is cheaper. For the last order
# of a long list the sort is cheaper sooner; what a sort leaves to repair is all nearby.
_MOVES_PER_ITEM, _MOVES_PER_ITEM_OF_MANY = 8, 1
# Newton passes of the threshold search: first from the last threshold, then from a safe bracket.
_WARM_PASSES = 12
_COLD_PASSES = 200
# Items per partial sum: short enough to keep plain sums accurate, long enough to be fast.
_RUN = 256
# Above this size, selecting the edge of a two-level spectrum beats keeping the order of the losses
# in repair.
_RADIX_FROM = 1000
_SELECT_FROM = 2000
# A value at a rank is looked for among those that a sample puts near it: how many values make that
# pay, the size of the sample, and the ranks of the sample to either side that are taken in.
_SAMPLE_FROM, _SAMPLE, _SAMPLE_MARGIN = 50_000, 10_000, 200
# Items from which the share of those that carry a risk is read off.
_SHARE_ITEMS = 10_000
# From this size on one order serves both the losses and the vectors to be projected.
_ONE_ORDER_FROM = 100_000


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
    _Uniform(mass, Pool()).project(point, out)
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
    pool : Pool, optional
        Where to borrow working memory.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.permutahedron import Projector
    >>> projector, q, block = Projector(CVaR(0.5), 4), np.empty(4), np.empty(4, np.int32)
    >>> projector.project(np.array([0.0, 1.0, 1.5, 9.0]), q, block)
    1
    >>> q
    array([0.  , 0.75, 1.25, 2.  ])
    >>> block
    array([-1,  0,  0, -1], dtype=int32)
    """

    def __init__(
        self,
        risk: Risk,
        n: int,
        sample_weight: FloatArray | None = None,
        pool: Pool | None = None,
    ) -> None:
        pool = Pool() if pool is None else pool
        self.risk = risk
        self.n = int(n)
        self._used: IntArray | None = None
        self._core: _Uniform | _Weighted
        if sample_weight is None:
            mass = risk.weights(self.n)
            mass *= self.n
            self._core = _Uniform(mass, pool)
            return
        omega = np.ascontiguousarray(sample_weight, dtype=np.float64)
        if not (omega > 0.0).all():
            self._used = np.flatnonzero(omega > 0.0)
            omega = omega[self._used]
            self._inner = np.empty((2, omega.size))
        self._core = _Weighted(risk, omega, pool)

    def fork(self, pool: Pool | None = None) -> Projector:
        """The same projections for another thread, which knows nothing of earlier ones.

        Shared, because nobody writes to it: the risk, the weights of the ordered items, the sample
        weights and the threads of :meth:`share`. Fresh: the orders, the last thresholds and all
        working memory. So the cost does not grow with n, but for what the first projection
        allocates, and two forks may be used at the same time.

        Parameters
        ----------
        pool : Pool, optional
            Where the fork borrows working memory; a pool serves one thread.

        Returns
        -------
        Projector
            Its results are those of a new projector.

        Examples
        --------
        >>> import numpy as np
        >>> from sorel import CVaR
        >>> from sorel.permutahedron import Projector
        >>> Projector(CVaR(0.5), 4).fork().value(np.array([0.0, 1.0, 1.5, 9.0]))
        5.25
        """
        fork = copy.copy(self)
        fork._core = self._core.fork(Pool() if pool is None else pool)
        if self._used is not None:
            fork._inner = np.empty_like(self._inner)
        return fork

    @property
    def two_levels(self) -> bool:
        """Whether a threshold does the work of a sort."""
        return self._core._threshold is not None

    def share(self, team: Team | None) -> None:
        """Let these threads share the sweeps; None leaves them to the caller's thread."""
        self._core.team = team if self._used is None else None

    def project(
        self, zeta: FloatArray, out: FloatArray, block: npt.NDArray[np.int32] | None = None
    ) -> int:
        """Project zeta onto the dual set: minimise ``sum_i omega_i (q_i - zeta_i)^2``.

        Within a block, ``dq = dzeta - (omega-weighted mean of dzeta over the block)``; elsewhere
        ``dq = 0``.

        Parameters
        ----------
        zeta : ndarray of shape (n,)
            Finite values.
        out : ndarray of shape (n,)
            Receives q; may be zeta itself.
        block : ndarray of int32, shape (n,), optional
            Receives the pooled block of each item, or -1 where q does not move with zeta.

        Returns
        -------
        int
            The number of blocks.
        """
        if self._used is None:
            return self._core.project(zeta, out, block)
        np.take(zeta, self._used, out=self._inner[0])
        inner = np.empty(self._used.size, np.int32)
        count = self._core.project(self._inner[0], self._inner[1], inner)
        out.fill(0.0)
        out[self._used] = self._inner[1]
        if block is not None:
            block.fill(-1)
            block[self._used] = inner
        return count

    def effective_share(self) -> float:
        """1 / (n sum_i sigma_i^2) for equal weights: the share of the items that carry the risk."""
        sigma = self.risk.weights(min(self.n, _SHARE_ITEMS))
        return float(1.0 / (sigma.size * np.vdot(sigma, sigma)))

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


def _index_type(n: int) -> type[np.integer[Any]]:
    # Four bytes an item where they suffice: half the traffic of a gather.
    return np.int32 if n < 2**31 else np.int64


def _moves_per_item(n: int) -> int:
    return _MOVES_PER_ITEM if n < _ONE_ORDER_FROM else _MOVES_PER_ITEM_OF_MANY


def _borrow(pool: Pool, n: int, count: int) -> tuple[FloatArray, ...]:
    return tuple(pool.take((n,)) for _ in range(count))


class _Order:
    """The ascending order of a slowly changing vector, ties by position."""

    def __init__(self, n: int, pool: Pool) -> None:
        self.order = np.arange(n, dtype=_index_type(n))
        self.key = np.empty(n)
        self.known = False
        self.pool = pool

    def sort(self, values: FloatArray, attempt: int, team: Team | None) -> None:
        # The fast sorts leave near ties in an arbitrary order. The stable one settles what
        # repairing cannot, and makes the order, hence every result, independent of the history.
        if attempt == 0 and _RADIX_FROM <= values.size < 2**32:
            work = _borrow(self.pool, values.size, 2)
            bits = (work[0].view(np.uint64), work[1].view(np.uint64))
            _radix_sort(values, bits, self.order, team)
            self.pool.give(*work)
        else:
            self.order[:] = np.argsort(values, kind=None if attempt == 0 else "stable")
        self.known = True

    def update(
        self, values: FloatArray, team: Team | None = None, hint: _Order | None = None
    ) -> None:
        """Sort again, from the last order or that of a related vector where one is near."""
        budget = _moves_per_item(self.key.size) * self.key.size
        if self.known and _repair(values, self.order, self.key, budget):
            return
        if hint is not None and hint is not self and hint.known:
            self.order[:] = hint.order
            self.known = True
            if _repair(values, self.order, self.key, budget):
                return
        self.sort(values, 0, team)
        budget = _MOVES_PER_ITEM * self.key.size
        attempt = 1
        while not _repair(values, self.order, self.key, budget):
            self.sort(values, attempt, team)
            attempt += 1


class _Thresholder:
    """The threshold of a two-level set, found from where it was at the last call."""

    def __init__(
        self, weight: FloatArray | None, n: int, low: float, high: float, total: float, rank: int
    ) -> None:
        self.weight = weight
        self.n = n
        self.low, self.high, self.total = low, high, total
        self.rank = rank
        self._begin()

    def _begin(self) -> None:
        # Index of an item near the threshold, and the threshold relative to it.
        self.pivot = -1
        self.offset = 0.0
        self._search = np.empty(_SEARCH_SIZE)

    def fork(self) -> _Thresholder:
        fork = copy.copy(self)
        fork._begin()
        return fork

    def project(
        self, zeta: FloatArray, out: FloatArray, block: BlockArray | None, team: Team | None = None
    ) -> int:
        count = -1
        if self.pivot >= 0:
            start = (zeta[self.pivot], self.offset, -np.inf, np.inf)
            count = self._find(zeta, out, block, team, start, _WARM_PASSES)
        if count < 0:
            if self.weight is None:
                # The threshold lies between z_(rank) - high and z_(rank) - low.
                reference = _select(zeta, self.rank, team)
                below, above = -self.high, -self.low
            else:
                least, most = zeta.min(), zeta.max()
                reference = 0.5 * least + 0.5 * most
                below, above = (least - reference) - self.high, (most - reference) - self.low
            # Rounding may put the threshold a hair outside; the first step would then be refused.
            slack = 0.01 * (self.high - self.low)
            below, above = below - slack, above + slack
            start = (reference, 0.5 * (below + above), below, above)
            count = self._find(zeta, out, block, team, start, _COLD_PASSES)
        return count

    def _find(
        self,
        zeta: FloatArray,
        out: FloatArray,
        block: BlockArray | None,
        team: Team | None,
        start: tuple[float, float, float, float],
        passes: int,
    ) -> int:
        """Search from (reference, tau, below, above); the number of blocks, or -1 without luck."""
        low, high, total, search = self.low, self.high, self.total, self._search
        if low == high:
            out.fill(low)
            if block is not None:
                block.fill(-1)
            return 0
        _begin_search(search, *start)
        if team is None:
            pivot = _search_threshold(zeta, self.weight, low, high, total, passes, search)
        else:
            pivot = self._search_shared(zeta, team, passes)
        if pivot < 0:
            return -1
        reference, tau = float(search[_REFERENCE]), float(search[_TAU])
        if team is None:
            count, tau = _write_levels(
                zeta, self.weight, low, high, total, out, block, reference, tau
            )
        else:
            count, tau = self._write_shared(zeta, out, block, team, reference, tau)
        self.pivot, self.offset = pivot, tau
        if count == 1 and block is not None:
            # A single free item takes what the others leave, and does not move.
            block.fill(-1)
        return 1 if count > 1 else 0

    def _search_shared(self, zeta: FloatArray, team: Team, passes: int) -> int:
        """`_search_threshold` with its sweeps shared among threads."""
        low, high, search = self.low, self.high, self._search
        starts = [start for start, _ in team.ranges]
        while search[_TRIAL] < passes:
            place = (float(search[_REFERENCE]), float(search[_TAU]), low)
            parts = _shared(team, _split, zeta, self.weight, *place, high)
            at_low, at_high, free, moment = _total(parts)
            action = _decide(search, at_low, at_high, free, moment, low, high, self.total)
            if action == _SETTLED:
                found = _shared(team, _pivot, zeta, *place)
                items = [start + i for start, i in zip(starts, found, strict=True) if i >= 0]
                pivot = min(items, key=zeta.__getitem__, default=0)
                if zeta[pivot] == place[0]:
                    return int(pivot)
                _rebase(search, zeta[pivot])
            elif action == _STUCK:
                excess = float(search[_EXCESS])
                kinks = _shared(team, _nearest_clipped, zeta, *place, high, excess)
                _jump(search, min(kinks) if excess > 0.0 else max(kinks), low, high)
        return -1

    def _write_shared(
        self,
        zeta: FloatArray,
        out: FloatArray,
        block: BlockArray | None,
        team: Team,
        reference: float,
        tau: float,
    ) -> tuple[int, float]:
        """`_write_levels` with its sweeps shared among threads."""
        low, high = self.low, self.high
        sums = _total(_shared(team, _level_sums, zeta, self.weight, low, high, reference, tau))
        at_low, at_high, free, moment, spill = sums
        tau = _exact_tau(at_low, at_high, free, moment, spill, low, high, self.total, tau)
        counts = _shared(team, _fill_clipped, zeta, low, high, reference, tau, out, block)
        return sum(counts), tau


class _Uniform:
    """Projection with equal weights: minimise ``sum_i (q_i - zeta_i)^2`` over P(mass)."""

    def __init__(self, mass: FloatArray, pool: Pool) -> None:
        n = mass.size
        self.n = n
        self.team: Team | None = None
        self._threshold: _Thresholder | None = None
        # As mass ascends, the first entry above the lowest level and the one after it settle
        # whether there are two levels, with at most one entry between them.
        bend = min(int(np.searchsorted(mass, mass[0], side="right")), n - 1)
        self._bend = bend if mass[min(bend + 1, n - 1)] == mass[-1] else None
        self._levels = (float(mass[0]), float(mass[bend]), float(mass[-1]))
        if self._bend is not None:
            low, middle, high = self._levels
            total = math.fsum((low * bend, middle, high * (n - 1 - bend)))
            self._threshold = _Thresholder(None, n, low, high, total, bend)
        # Three numbers tell all about two levels: large vectors of them need not be kept.
        self._select = self._bend is not None and n > _SELECT_FROM
        self._mass = None if self._select else mass
        self._begin(pool)

    def _begin(self, pool: Pool) -> None:
        self.pool = pool
        self._project_order: _Order | None = None
        self._value_order: _Order | None = None
        self._first: npt.NDArray[Any] | None = None
        self._work: tuple[FloatArray, ...] | None = None

    def fork(self, pool: Pool) -> _Uniform:
        fork = copy.copy(self)
        fork._begin(pool)
        if self._threshold is not None:
            fork._threshold = self._threshold.fork()
        return fork

    @property
    def mass(self) -> FloatArray:
        if self._mass is None:
            assert self._bend is not None
            low, middle, high = self._levels
            self._mass = np.full(self.n, high)
            self._mass[: self._bend] = low
            self._mass[self._bend] = middle
        return self._mass

    def _general(self) -> tuple[_Order, npt.NDArray[Any]]:
        if self._project_order is None or self._first is None:
            self._first = np.empty(self.n + 1, _index_type(self.n))
            self._project_order = _Order(self.n, self.pool)
            if self.n < WORTH_POOLING:
                # What is too short to be kept by the pool is kept here.
                self._work = _borrow(self.pool, self.n, 2)
        return self._project_order, self._first

    def project(self, zeta: FloatArray, out: FloatArray, block: BlockArray | None = None) -> int:
        if self._threshold is not None:
            count = self._threshold.project(zeta, out, block, self.team)
            if count >= 0:
                return count
        keep, first = self._general()
        attempt, moves = 0, _moves_per_item(self.n)
        if not keep.known:
            keep.sort(zeta, 0, self.team)
            attempt, moves = 1, _MOVES_PER_ITEM
        while True:
            work = self._work or _borrow(self.pool, self.n, 2)
            count = _project_sorted(
                zeta, self.mass, keep.order, keep.key, work, first, out, block, moves
            )
            if self._work is None:
                self.pool.give(*work)
            if count >= 0:
                return count
            keep.sort(zeta, attempt, self.team)
            attempt, moves = attempt + 1, _MOVES_PER_ITEM

    def _ordered(self, losses: FloatArray) -> _Order:
        if self._value_order is None:
            # The weights follow the losses, so the two orders are near: long lists share one.
            own = self.n < _ONE_ORDER_FROM
            self._value_order = _Order(self.n, self.pool) if own else self._general()[0]
        self._value_order.update(losses, self.team, self._project_order)
        return self._value_order

    def _edge(self, losses: FloatArray) -> float:
        """The loss at the bend between two levels."""
        assert self._bend is not None
        return _select(losses, self._bend, self.team)

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        if self._select:
            assert self._bend is not None
            _fill_levels(losses, *self._levels, self._bend, self._edge(losses), out)
            return _dot(out, losses)
        keep = self._ordered(losses)
        _scatter(self.mass, keep.order, out)
        return _dot(self.mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        if self._select:
            assert self._bend is not None
            low, middle, high = self._levels
            edge = self._edge(losses)
            parts = _shared(self.team, _sums_beside, losses, edge)
            below, n_below, above, n_above = _total(parts)
            # Losses equal to the edge fill the ranks between; the middle rank is one of them.
            at_low, at_high = self._bend - n_below, self.n - 1 - self._bend - n_above
            return float(
                low * below + high * above + edge * (low * at_low + middle + high * at_high)
            )
        return _dot(self.mass, self._ordered(losses).key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        if self._select:
            low, _, high = self._levels
            edge = self._edge(losses)
            return float(
                sum(_shared(self.team, _level_shortfall, losses, density, low, high, edge))
            )
        keep = self._ordered(losses)
        return _ordered_shortfall(keep.key, self.mass, density, None, keep.order)


class _Weighted:
    """Projection with positive weights, scaled to mean 1 so that sizes match equal weights."""

    def __init__(self, risk: Risk, omega: FloatArray, pool: Pool) -> None:
        n = omega.size
        self.n = n
        self.team: Team | None = None
        self.risk = risk
        self.omega = omega
        self.weight = omega * n
        self._threshold: _Thresholder | None = None
        levels = risk.levels(n, omega)
        if levels is not None:
            self._threshold = _Thresholder(self.weight, n, *levels, float(n), 0)
        self._begin(pool)

    def _begin(self, pool: Pool) -> None:
        self.pool = pool
        self._project_order: _Order | None = None
        self._value_order: _Order | None = None
        self._first: npt.NDArray[Any] | None = None

    def fork(self, pool: Pool) -> _Weighted:
        fork = copy.copy(self)
        fork._begin(pool)
        if self._threshold is not None:
            fork._threshold = self._threshold.fork()
        return fork

    def _ordered(self, losses: FloatArray) -> _Order:
        if self._value_order is None:
            self._value_order = _Order(self.n, self.pool)
        self._value_order.update(losses, self.team)
        return self._value_order

    def _mass(self, order: npt.NDArray[Any]) -> FloatArray:
        mass = self.risk.increments(self.omega[order])
        mass *= self.omega.size
        return mass

    def project(self, zeta: FloatArray, out: FloatArray, block: BlockArray | None = None) -> int:
        if self._threshold is not None:
            count = self._threshold.project(zeta, out, block, self.team)
            if count >= 0:
                return count
        if self._project_order is None or self._first is None:
            self._first = np.empty(self.n + 1, _index_type(self.n))
            self._project_order = _Order(self.n, self.pool)
        keep = self._project_order
        keep.update(zeta, self.team)
        weight = self.weight[keep.order]
        mass = self._mass(keep.order)
        work = _borrow(self.pool, zeta.size, 3)
        count = _pool(keep.key, mass, weight, work, out, self._first)
        count = _write(keep.key, mass, weight, keep.order, count, work, self._first, out, block)
        self.pool.give(*work)
        return count

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        keep = self._ordered(losses)
        mass = self._mass(keep.order)
        _scatter(mass / self.weight[keep.order], keep.order, out)
        return _dot(mass, keep.key)

    def value(self, losses: FloatArray) -> float:
        keep = self._ordered(losses)
        return _dot(self._mass(keep.order), keep.key)

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        keep = self._ordered(losses)
        mass = self._mass(keep.order)
        return _ordered_shortfall(keep.key, mass, density, self.weight, keep.order)


def _shared(team: Team | None, sweep: Any, *arguments: Any) -> list[Any]:
    """What a sweep over vectors of one length returns, by ranges of the threads."""
    if team is None:
        return [sweep(*arguments)]
    return team.sweep(
        lambda start, stop: sweep(
            *(x[start:stop] if isinstance(x, np.ndarray) else x for x in arguments)
        )
    )


def _total(parts: list[tuple[Any, ...]]) -> list[Any]:
    """The sums of the first entries, of the second ones, and so on."""
    return [sum(column) for column in zip(*parts, strict=True)]


def _select(values: FloatArray, rank: int, team: Team | None = None) -> float:
    """The value at a rank of the ascending order, from the few that a sample puts near it."""
    n = values.size
    if n > _SAMPLE_FROM:
        stride = n // _SAMPLE
        sample = np.sort(values[::stride])
        place = rank / stride
        left, right = int(place - _SAMPLE_MARGIN), int(place + _SAMPLE_MARGIN)
        least = sample[left] if left >= 0 else -np.inf
        most = sample[right] if right < sample.size else np.inf
        parts = _shared(team, _gather, values, least, most)
        below = sum(count for count, _ in parts)
        near = np.concatenate([found for _, found in parts])
        if below <= rank < below + near.size:
            return float(np.partition(near, rank - below)[rank - below])
    # Few values, or a sample that misled: sort out all of them.
    return float(np.partition(values, rank)[rank])


@compiled(fastmath=False)
def _gather(values: Any, least: float, most: float) -> Any:
    """How many values lie below `least`, and those from there to `most`, or none if too many."""
    room = values.size // 4 + 64
    found = np.empty(room)
    below, count = 0, 0
    for i in range(values.size):
        value = values[i]
        below += value < least
        found[count] = value
        count += least <= value <= most
        if count == room:
            return below, found[:0]
    return below, found[:count].copy()


@compiled
def _sums_beside(losses: Any, edge: float) -> Any:
    """Sums and counts of the losses below and above an edge."""
    below, above = 0.0, 0.0
    n_below, n_above = 0, 0
    for i in range(losses.size):
        x = losses[i]
        below += x if x < edge else 0.0
        above += x if x > edge else 0.0
        n_below += x < edge
        n_above += x > edge
    return below, n_below, above, n_above


def _radix_sort(values: FloatArray, work: Any, order: Any, team: Team | None) -> None:
    """`_radix_order`, each pass shared among threads: count by ranges, then scatter by ranges."""
    if team is None:
        _radix_order(values, work, order)
        return
    middle = _middle(values)
    source, target = work[0], work[1]
    team.sweep(lambda a, b: _radix_keys(values[a:b], middle, a, source[a:b]))
    for digit in range(3):
        shift = np.uint64(32 + 11 * digit)
        counts = np.array(_shared(team, _radix_count, source, shift))
        # Bucket by bucket, and inside a bucket range by range: the sort stays stable.
        ends = np.cumsum(counts.T).reshape(counts.shape[::-1]).T
        parts = [source[a:b] for a, b in team.ranges]
        jobs = zip(parts, np.ascontiguousarray(ends - counts), strict=True)
        team.map(partial(_radix_deal, target, shift), list(jobs))
        source, target = target, source
    _shared(team, _radix_items, source, order)


def _radix_deal(target: Any, shift: Any, job: tuple[Any, Any]) -> None:
    _radix_scatter(job[0], target, shift, job[1])


@compiled(fastmath=False)
def _middle(values: Any) -> float:
    return np.median(values[:: max(1, values.size // 31)])


@compiled(fastmath=False)
def _radix_keys(values: Any, middle: float, first: int, keys: Any) -> None:
    """The leading 32 bits of the distance from a middle value, followed by the item's number.

    The bits of doubles, those of negative ones inverted, ascend with them. Distances from the
    middle keep the digits where values are dense.
    """
    bits = keys.view(np.float64)
    for i in range(values.size):
        bits[i] = values[i] - middle
    sign = np.uint64(1) << np.uint64(63)
    for i in range(values.size):
        key = keys[i]
        key = ~key if key & sign else key | sign
        keys[i] = ((key >> np.uint64(32)) << np.uint64(32)) | np.uint64(first + i)


@compiled(fastmath=False)
def _radix_count(keys: Any, shift: Any) -> Any:
    """How many keys fall into each of 2048 buckets by the digit at `shift`."""
    counts = np.zeros(2048, np.int64)
    for i in range(keys.size):
        counts[(keys[i] >> shift) & np.uint64(2047)] += 1
    return counts


@compiled(fastmath=False)
def _radix_scatter(keys: Any, target: Any, shift: Any, place: Any) -> None:
    """Put each key at the next free place of its bucket."""
    for i in range(keys.size):
        b = (keys[i] >> shift) & np.uint64(2047)
        target[place[b]] = keys[i]
        place[b] += 1


@compiled(fastmath=False)
def _radix_items(keys: Any, order: Any) -> None:
    for i in range(keys.size):
        order[i] = keys[i] & np.uint64(0xFFFFFFFF)


@compiled(fastmath=False)
def _radix_order(values: Any, work: Any, order: Any) -> None:
    """Order by the leading 32 bits of the distance from a middle value: near ties stay unsorted.

    Three passes of counting sort on 11 bits each bring the order within a few exchanges of the
    right one, which `_repair` then makes.
    """
    n = values.size
    source, target = work[0], work[1]
    _radix_keys(values, _middle(values), 0, source)
    # One sweep counts all three digits: their numbers do not depend on the order.
    counts = np.zeros((3, 2048), np.int64)
    for i in range(n):
        key = source[i]
        counts[0, (key >> np.uint64(32)) & np.uint64(2047)] += 1
        counts[1, (key >> np.uint64(43)) & np.uint64(2047)] += 1
        counts[2, key >> np.uint64(54)] += 1
    for digit in range(3):
        position = 0
        for b in range(2048):
            size = counts[digit, b]
            counts[digit, b] = position
            position += size
        _radix_scatter(source, target, np.uint64(32 + 11 * digit), counts[digit])
        source, target = target, source
    _radix_items(source, order)


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
def _pool(key: Any, mass: Any, weight: Any, work: Any, totals: Any, first: Any) -> int:
    """Pool adjacent violators of ``key - mass / weight``, relative to the first key of each block.

    A block holds D, the sum of ``weight (key - ref) - mass``, as a sum of two doubles, its weight,
    and their quotient. Returns the number of blocks; block b spans ``first[b]:first[b + 1]``, and
    its quotient is ``work[0][b]``. `totals` is overwritten.
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
                level = work[0][top]
                total = totals[top]
                spill = work[1][top]
                if weight is not None:
                    heavy = work[2][top]
        top += 1
        first[top] = new_start
        work[0][top] = new_level
        totals[top] = new_total
        work[1][top] = new_spill
        if weight is not None:
            work[2][top] = new_heavy
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
        base = -work[0][b]
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
    # The vector that will hold q serves the pooling until then.
    count = _pool(key, mass, None, work, out, first)
    return _write(key, mass, None, order, count, work, first, out, block)


# The search for a threshold t = reference + tau: where it stands, in one small array.
_REFERENCE, _TAU, _BELOW, _ABOVE, _SPAN, _LAST_LOW, _LAST_HIGH, _NEWTON, _TRIAL, _EXCESS = range(10)
_SEARCH_SIZE = 10

# What to do after a trial: try the next tau, find a reference, or look for the next kink.
_TRY, _SETTLED, _STUCK = 0, 1, 2


@compiled(fastmath=False)
def _distance(value: float, reference: float) -> float:
    # Its own function, so that no reordering merges the reference with a tau: the difference of
    # two large near numbers is exact, and what is left of it after the merger is not.
    return value - reference


@compiled
def _split(zeta: Any, weight: Any, reference: float, tau: float, low: float, high: float) -> Any:
    """Weights at the low level, at the high level and between, and the sum over those between."""
    at_low, at_high, free, moment = 0.0, 0.0, 0.0, 0.0
    # Arithmetic in place of branches, so that the loop runs on vectors.
    for i in range(zeta.size):
        x = _distance(zeta[i], reference)
        w = 1.0 if weight is None else weight[i]
        down = w if x - tau <= low else 0.0
        up = w if x - tau >= high else 0.0
        between = w - down - up
        at_low += down
        at_high += up
        free += between
        moment += between * x
    return at_low, at_high, free, moment


@compiled(fastmath=False)
def _begin_search(search: Any, reference: float, tau: float, below: float, above: float) -> None:
    search[_REFERENCE], search[_TAU], search[_BELOW], search[_ABOVE] = reference, tau, below, above
    search[_SPAN], search[_LAST_LOW], search[_LAST_HIGH] = np.inf, -1.0, -1.0
    search[_NEWTON], search[_TRIAL], search[_EXCESS] = 0.0, 0.0, 0.0


@compiled(fastmath=False)
def _decide(
    search: Any,
    at_low: float,
    at_high: float,
    free: float,
    moment: float,
    low: float,
    high: float,
    total: float,
) -> int:
    """Take in the sums of one trial, and choose the next tau inside the bracket."""
    tau = search[_TAU]
    excess = (moment - free * tau) + (low * at_low + high * at_high - total)
    noise = 2.0**-51 * (abs(moment) + abs(free * tau) + total)
    # Equal counts after a full Newton step: the sets are the same, and only rounding is left.
    settled = search[_NEWTON] > 0.0
    settled = settled and at_low == search[_LAST_LOW] and at_high == search[_LAST_HIGH]
    settled = settled and abs(excess) <= 2.0**12 * noise
    if settled or abs(excess) <= noise:
        search[_TRIAL] += 1.0
        return _SETTLED
    search[_LAST_LOW], search[_LAST_HIGH] = at_low, at_high
    if excess > 0.0:
        search[_BELOW] = max(search[_BELOW], tau)
    else:
        search[_ABOVE] = min(search[_ABOVE], tau)
    search[_EXCESS] = excess
    if not free > 0.0:
        return _STUCK
    goal = full = tau + excess / free
    # Without a bound on that side yet, a flat piece must not throw the search far away.
    if excess > 0.0 and search[_ABOVE] == np.inf:
        goal = min(goal, tau + (high - low))
    elif excess < 0.0 and search[_BELOW] == -np.inf:
        goal = max(goal, tau - (high - low))
    search[_NEWTON] = 1.0
    _move(search, goal, full)
    return _TRY


@compiled(fastmath=False)
def _move(search: Any, goal: float, full: float) -> None:
    """Set the next tau: the goal, or the middle of the bracket where that is safer."""
    below, above = search[_BELOW], search[_ABOVE]
    # Ends of the bracket have been tried: taking one again would cycle. Where three passes did not
    # halve the bracket, halve it.
    third = search[_TRIAL] % 3.0 == 2.0
    slow = third and above - below > 0.5 * search[_SPAN]
    if third:
        search[_SPAN] = above - below
    if above - below < np.inf and (slow or not below < goal < above):
        goal = 0.5 * (below + above)
    if goal != full:
        search[_NEWTON] = 0.0
    search[_TAU] = goal
    search[_TRIAL] += 1.0


@compiled(fastmath=False)
def _jump(search: Any, nearest: float, low: float, high: float) -> None:
    """Go to where the nearest clipped item comes free, as if it alone took up the excess."""
    excess = search[_EXCESS]
    goal = (nearest - high if excess > 0.0 else nearest - low) + excess
    search[_NEWTON] = 0.0
    _move(search, goal, goal)


@compiled(fastmath=False)
def _rebase(search: Any, pivot: float) -> None:
    """Start again from the smallest free item, where differences are exact.

    It rarely takes more than two passes, and the sets may still change in the last digits.
    """
    search[_TAU] -= pivot - search[_REFERENCE]
    search[_REFERENCE] = pivot
    search[_BELOW], search[_ABOVE], search[_SPAN] = -np.inf, np.inf, np.inf
    search[_LAST_LOW], search[_LAST_HIGH] = -1.0, -1.0


@compiled(fastmath=False)
def _search_threshold(
    zeta: Any, weight: Any, low: float, high: float, total: float, passes: int, search: Any
) -> int:
    """Find t with ``sum_i w_i clip(zeta_i - t, low, high) = total``.

    Newton steps on a decreasing piecewise linear function, kept inside a bracket. Returns the item
    that is the reference of the threshold found, or -1 when the passes did not suffice.
    """
    while search[_TRIAL] < passes:
        reference, tau = search[_REFERENCE], search[_TAU]
        at_low, at_high, free, moment = _split(zeta, weight, reference, tau, low, high)
        action = _decide(search, at_low, at_high, free, moment, low, high, total)
        if action == _SETTLED:
            pivot = max(_pivot(zeta, reference, tau, low), 0)
            if zeta[pivot] == reference:
                return pivot
            _rebase(search, zeta[pivot])
        elif action == _STUCK:
            excess = search[_EXCESS]
            nearest = _nearest_clipped(zeta, reference, tau, low, high, excess)
            _jump(search, nearest, low, high)
    return -1


@compiled(fastmath=False)
def _nearest_clipped(
    zeta: Any, reference: float, tau: float, low: float, high: float, excess: float
) -> float:
    """The item at the high level, or at the low one, that comes free first; by its distance."""
    nearest = np.inf if excess > 0.0 else -np.inf
    for i in range(zeta.size):
        x = zeta[i] - reference
        if excess > 0.0:
            if x - tau >= high:
                nearest = min(nearest, x)
        elif x - tau <= low:
            nearest = max(nearest, x)
    return nearest


@compiled(fastmath=False)
def _pivot(zeta: Any, reference: float, tau: float, low: float) -> int:
    """The smallest item above the low level, or -1."""
    pivot = -1
    for i in range(zeta.size):
        if (zeta[i] - reference) - tau > low and (pivot < 0 or zeta[i] < zeta[pivot]):
            pivot = i
    return pivot


@compiled(fastmath=False)
def _level_sums(
    zeta: Any, weight: Any, low: float, high: float, reference: float, tau: float
) -> Any:
    """`_split` in short runs, with a compensated sum over them."""
    at_low, at_high, free = 0.0, 0.0, 0.0
    moment, spill = 0.0, 0.0
    n = zeta.size
    for begin in range(0, n, _RUN):
        end = min(begin + _RUN, n)
        part_low, part_high, part_free, part = _split(
            zeta[begin:end], None if weight is None else weight[begin:end],
            reference, tau, low, high,
        )  # fmt: skip
        at_low += part_low
        at_high += part_high
        free += part_free
        grown = moment + part
        piece = grown - moment
        spill += (moment - (grown - piece)) + (part - piece)
        moment = grown
    return at_low, at_high, free, moment, spill


@compiled(fastmath=False)
def _exact_tau(
    at_low: float,
    at_high: float,
    free: float,
    moment: float,
    spill: float,
    low: float,
    high: float,
    total: float,
    tau: float,
) -> float:
    """The tau at which the items between the levels make up the total."""
    if free > 0.0:
        return ((moment + spill) + (low * at_low + (high * at_high - total))) / free
    return tau


@compiled(fastmath=False)
def _fill_clipped(
    zeta: Any, low: float, high: float, reference: float, tau: float, out: Any, block: Any
) -> int:
    """Write q and the block of the items between the levels; return how many there are."""
    count = 0
    for i in range(zeta.size):
        q = (zeta[i] - reference) - tau
        inside = low < q < high
        count += inside
        out[i] = min(max(q, low), high)
        if block is not None:
            block[i] = 0 if inside else -1
    return count


@compiled(fastmath=False)
def _write_levels(
    zeta: Any,
    weight: Any,
    low: float,
    high: float,
    total: float,
    out: Any,
    block: Any,
    reference: float,
    tau: float,
) -> Any:
    """Solve for tau on the sets found, with compensated sums, and write q and the block."""
    at_low, at_high, free, moment, spill = _level_sums(zeta, weight, low, high, reference, tau)
    tau = _exact_tau(at_low, at_high, free, moment, spill, low, high, total, tau)
    return _fill_clipped(zeta, low, high, reference, tau, out, block), tau


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
def _fill_levels(
    losses: Any, low: float, middle: float, high: float, bend: int, edge: float, out: Any
) -> None:
    """Two-level weights by comparison with the loss at the bend; ties with it by position."""
    n = losses.size
    rank = 0
    for i in range(n):
        rank += losses[i] < edge
    for i in range(n):
        if losses[i] < edge:
            out[i] = low
        elif losses[i] > edge:
            out[i] = high
        else:
            out[i] = low if rank < bend else middle if rank == bend else high
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
