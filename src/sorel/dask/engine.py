"""The engine for rows on a Dask cluster.

Points, weightings and directions live on the workers and are known here by numbers. Operations are
put off until something must be known, and then travel together: an evaluation with its dual step
and its gradient takes two rounds of messages under a spectrum of many levels, and some more, each
of a few numbers, in search of the threshold of a CVaR. When a worker is lost its rows come back
from their graph, points from their parameters, and another weighting takes the place of the lost
one.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import uuid
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import dask
import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel._lib.copies import shallow_copy
from sorel.dask import bins
from sorel.dask.cluster import Each, Partitions, WorkersLostError
from sorel.dask.shards import total_statistics
from sorel.engines.base import (
    Curvature,
    Differences,
    Dual,
    Engine,
    FloatArray,
    Point,
    RoundingFacts,
    Sizes,
    Spec,
)
from sorel.engines.intercepts import InterceptStatistics

_EPS = float(np.finfo(np.float64).eps)

# Bins of a worker at the start and at most, and the share of the precision wanted that they may
# cost before they are doubled.
BINS = 4096
_MAX_BINS = 1 << 18
_BIN_SHARE = 0.05

# Different densities up to which a user's weighting keeps them all.
_EXACT_LEVELS = 1 << 16

# Numbers that sums over blocks may take in a message, and blocks of many rows and of few.
_BLOCK_NUMBERS = 1 << 16
_MANY_ROWS, _FEW_BLOCKS, _MANY_BLOCKS = 200_000, 128, 4096

# Trials of a threshold.
_TRIALS = 200

# In units of 1 / (spread of the losses): the step that finds weights for given parameters.
_NEAR_ETA = 10.0

_Method = TypeVar("_Method", bound=Callable[..., Any])


class DaskPoint(Point):
    """Parameters, and the number by which the workers know the margins there."""

    __slots__ = ("__weakref__", "_engine", "number")

    def __init__(self, w: FloatArray, engine: DaskEngine, number: int) -> None:
        super().__init__(w)
        self._engine, self.number = engine, number

    def __del__(self) -> None:
        self._engine._dropped.append(self.number)


class DaskChange:
    """A direction, and the number by which the workers know the change of the margins."""

    __slots__ = ("__weakref__", "_engine", "delta", "number")

    def __init__(self, delta: FloatArray, engine: DaskEngine, number: int) -> None:
        self.delta, self._engine, self.number = delta, engine, number

    def __del__(self) -> None:
        self._engine._dropped.append(self.number)


class DaskDual(Dual):
    """A weighting on the workers, and what was asked about it."""

    __slots__ = ("__weakref__", "_engine", "center", "known", "mass", "n_blocks", "number")

    def __init__(self, engine: DaskEngine, number: int) -> None:
        self._engine, self.number = engine, number
        self.n_blocks = 0
        self.forget()

    def forget(self) -> None:
        """Know nothing of it any more: it is another weighting now."""
        self.center: tuple[int, float] | None = None
        self.mass: float | None = None
        # For a point, lam . l and its gradient.
        self.known: dict[int, tuple[float, FloatArray]] = {}

    def __del__(self) -> None:
        self._engine._dropped.append(self.number)


def _recovering(method: _Method) -> _Method:
    """Start an operation again when workers were lost in the middle of it."""

    @functools.wraps(method)
    def again(self: DaskEngine, *args: Any, **more: Any) -> Any:
        lost: WorkersLostError | None = None
        while True:
            try:
                if lost is not None:
                    self._recover(lost)
                return method(self, *args, **more)
            except WorkersLostError as error:
                lost = error

    return again  # type: ignore[return-value] # functools.wraps keeps the signature


class DaskEngine(Engine):
    """Engine for partitions on the workers of a Dask cluster.

    Parameters
    ----------
    partitions : Partitions
        Where the rows are.
    spec : Spec
        Loss, risk, classes and intercept; targets and sample weights are with the rows.
    n_features : int
        Columns of X.
    data_type : dtype
        Type of the numbers in X.
    weighted : bool
        Whether samples have weights of their own.
    bins : int, optional
        Bins of each worker to start with; the setting ``sorel.bins`` of Dask, or 4096.
    precision : float, default=1e-6
        Relative gap wanted: bins that would cost more than a twentieth of it are doubled.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from sorel.dask import open_problem
    >>> client = Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None)
    >>> with client, open_problem(da.ones((6, 1)), da.arange(6.0), client=client) as problem:
    ...     type(problem.engine).__name__
    'DaskEngine'
    """

    def __init__(
        self,
        partitions: Partitions,
        spec: Spec,
        n_features: int,
        data_type: Any = np.float64,
        weighted: bool = False,
        bins: int | None = None,
        precision: float = 1e-6,
    ) -> None:
        super().__init__(int(partitions.lengths.sum()), n_features, spec)
        self.partitions = partitions
        self._data_type = np.dtype(data_type)
        self._weighted = weighted
        self._precision = precision
        self.bins = _check_bins(dask.config.get("sorel.bins", BINS) if bins is None else bins)
        omega = np.ones(1) if weighted else None
        self._levels = spec.risk.levels(self.n_samples, omega)
        self._facts: dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self.run = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._queue: list[tuple[str, tuple[Any, ...]]] = []
        self._dropped: list[int] = []
        self._points: weakref.WeakValueDictionary[int, DaskPoint] = weakref.WeakValueDictionary()
        self._changes: weakref.WeakValueDictionary[int, DaskChange] = weakref.WeakValueDictionary()
        self._duals: weakref.WeakValueDictionary[int, DaskDual] = weakref.WeakValueDictionary()
        self._anchor: FloatArray | None = None
        self._kink: float | None = None
        self._epoch = self.partitions.epoch
        weakref.finalize(self, self.partitions.ended.append, self.run)

    def for_run(self, sequence: bool = False) -> DaskEngine:
        other = shallow_copy(self)
        other._begin()
        return other

    @property
    def data_type(self) -> np.dtype[Any]:
        return self._data_type

    def exchanged(self) -> str:
        """What travels in place of the losses, in words."""
        if self._levels is not None:
            return "thresholds exchanged"
        largest = max(int(self.partitions.lengths[held].sum()) for held in self.partitions.holdings)
        if largest <= self.bins:
            return "every loss in a bin of its own"
        return f"losses exchanged in {self.bins} bins each"

    def obstacle(self, operation: str) -> str | None:
        if super().obstacle(operation) is None:
            return None
        if operation in ("epoch", "minibatch_epoch", "prospect_epoch", "saddle_epoch", "table"):
            return (
                "takes one step after another on single samples, of which each would cost a "
                "message to a worker here (a DaskEngine)"
            )
        return f"needs the operation {operation!r}, which a DaskEngine does not offer"

    # Messages.

    def _post(self, name: str, *args: Any) -> None:
        """Have an operation done before the next question."""
        self._queue.append((name, args))

    def _ask(self, name: str, *args: Any) -> list[Any]:
        """What an operation returns, one entry for each worker: a round of messages."""
        if self._epoch != self.partitions.epoch:
            raise WorkersLostError([])
        queue, self._queue = self._queue, []
        dropped, self._dropped = self._dropped, []
        # What operations that wait still start from is freed after them, the rest before.
        waiting = {arg for _, parts in queue for arg in parts if isinstance(arg, int)}
        program = [*queue, (name, args)]
        for place, numbers in ((len(queue), waiting.intersection(dropped)),
                               (0, set(dropped) - waiting)):  # fmt: skip
            if numbers:
                program.insert(place, ("free", (sorted(numbers),)))
        return [answers[-1] for answers in self.partitions.exchange(self.run, program)]

    def _sum(self, name: str, *args: Any) -> Any:
        return sum(self._ask(name, *args))

    def _columns(self, name: str, *args: Any) -> list[Any]:
        """Sums over the workers of the entries of what they return."""
        answers = self._ask(name, *args)
        return [sum(column) for column in zip(*answers, strict=True)]

    def _recover(self, error: WorkersLostError) -> None:
        """Make all handles again on the workers that are left, then go on."""
        while True:
            try:
                self.partitions.recover(self._epoch, error.addresses)
                self._epoch = self.partitions.epoch
                self._remake()
            except WorkersLostError as another:
                error = another
            else:
                return

    def _remake(self) -> None:
        self._queue, self._dropped = [], []
        for number, point in list(self._points.items()):
            self._post("point", number, point.w)
        for number, change in list(self._changes.items()):
            self._post("direction", number, change.delta)
        stand_in = DaskDual(self, next(self._numbers))
        self._post("fill", stand_in.number, 1.0)
        if self._anchor is not None and self._duals:
            # Weights that suit the parameters reached: the augmented Lagrangian may be centred
            # anywhere.
            start, point = stand_in, self._new_point(self._anchor)
            mean, _, _, finite = self._columns("sums", point.number)
            spread = self._sum("deviation", point.number, mean) or abs(mean)
            if finite and spread > 0.0:
                stand_in = self._new_dual()
                self._post(
                    "target", stand_in.number, start.number, point.number, _NEAR_ETA / spread,
                    None, 0.0,
                )  # fmt: skip
                self._project(stand_in)
        for number, dual in list(self._duals.items()):
            dual.forget()
            dual.n_blocks = 0
            if dual is not stand_in:
                self._post("copy", number, stand_in.number)
        self._ask("free", [])

    # Points.

    def _new_point(self, w: FloatArray) -> DaskPoint:
        point = DaskPoint(np.array(w, dtype=np.float64), self, next(self._numbers))
        self._points[point.number] = point
        self._post("point", point.number, point.w)
        return point

    def _new_dual(self) -> DaskDual:
        dual = DaskDual(self, next(self._numbers))
        self._duals[dual.number] = dual
        return dual

    def point(self, w: FloatArray) -> DaskPoint:
        return self._new_point(w)

    def direction(self, delta: FloatArray) -> DaskChange:
        change = DaskChange(np.array(delta, dtype=np.float64), self, next(self._numbers))
        self._changes[change.number] = change
        self._post("direction", change.number, change.delta)
        return change

    def moved(self, point: Any, delta: FloatArray, direction: Any, step: float) -> DaskPoint:
        new = DaskPoint(point.w + step * delta, self, next(self._numbers))
        self._points[new.number] = new
        self._post("move", new.number, point.number, direction.number, step, new.w)
        return new

    @_recovering
    def losses(self, point: Any) -> FloatArray:
        return self.partitions.gathered(self._ask("losses", point.number))

    @_recovering
    def scores(self, w: FloatArray, rows: int) -> tuple[FloatArray, Any]:
        """Margins and targets of about so many rows of all, for a look at predictions."""
        point = self._new_point(w)
        share = -(-rows // len(self.partitions.addresses))
        margins, targets = zip(*self._ask("scores", point.number, share), strict=True)
        return np.concatenate(margins), np.concatenate(targets)

    # Risks.

    def _reached(self, point: Any) -> None:
        """Take note of an iterate: where to go on when workers are lost, or all of them."""
        self._anchor = self.partitions.reached = point.w

    def _loss_bins(self, point: Any, dual: Any) -> tuple[bins.Bins, bins.Ordered, Any]:
        """Bins of the losses, what they say of the risk, and what a weighting holds in them.

        Bins that leave the risk too uncertain are moved to the kink of the risk, or doubled.
        """
        number = None if dual is None else dual.number
        while True:
            found = self._ask("loss_bins", point.number, number, self.bins, self._kink)
            items = bins.join([bins.unpack(part) for part, _ in found])
            bound = bins.bound_risk(self.spec.risk, items)
            allowed = _BIN_SHARE * self._precision * abs(bound.upper)
            if not bound.upper - bound.lower > allowed or not self._refine(items):
                break
        held = None
        if dual is not None:
            held = np.concatenate([part[:, bin_part[0] > 0.0] for bin_part, part in found], axis=1)
        return items, bound, held

    def _refine(self, items: bins.Bins) -> bool:
        """Ask for better bins; False where they are as good as can be."""
        if not np.any(items.high > items.low):
            return False
        if self._levels is not None and self._levels[0] < self._levels[1]:
            order = np.argsort(items.value)
            reach = np.cumsum(items.mass[order]) / items.mass.sum()
            bend = 1.0 - (1.0 - self._levels[0]) / (self._levels[1] - self._levels[0])
            place = min(int(np.searchsorted(reach, bend)), len(reach) - 1)
            kink = float(items.value[order[place]])
            if self._kink is None or kink != self._kink:
                first, self._kink = self._kink is None, kink
                if first:
                    return True
        if self.bins >= _MAX_BINS:
            return False
        self.bins *= 2
        return True

    @_recovering
    def risk(self, point: Any) -> float:
        return self._loss_bins(point, None)[1].upper

    @_recovering
    def shortfall(self, point: Any, dual: Any) -> float:
        self._reached(point)
        items, bound, held = self._loss_bins(point, dual)
        return bins.shortfall(items, bound, held[0], held[1])

    # Weightings.

    def uniform(self) -> DaskDual:
        dual = self._new_dual()
        self._post("fill", dual.number, 1.0)
        return dual

    @_recovering
    def worst_case(self, point: Any) -> DaskDual:
        dual = self._new_dual()
        found = [
            bins.unpack(part) for part in self._ask("worst", dual.number, point.number, self.bins)
        ]
        density = bins.worst_case(self.spec.risk, bins.join(found))
        still = np.full(len(density), -1, np.int32)
        self._spread(dual, found, bins.Projected(density, still, 0.0 * density, 0))
        return dual

    @_recovering
    def dual_step(
        self, center: Any, point: Any, eta: float, previous: Any = None, theta: float = 0.0
    ) -> DaskDual:
        if eta == 0.0:
            return center
        if eta == np.inf:
            return self.worst_case(point)
        new = self._new_dual()
        self._post(
            "target", new.number, center.number, point.number, eta,
            None if previous is None else previous.number, theta,
        )  # fmt: skip
        self._project(new)
        self._summarise(point, new, center)
        return new

    def _project(self, dual: DaskDual, exact: bool = False) -> None:
        """Turn a target on the workers into the weighting nearest to it."""
        if self._levels is None:
            answers = self._ask("collapse", dual.number, self.bins, exact)
            found = [bins.unpack(part) for part in answers]
            most = _FEW_BLOCKS if self.n_samples > _MANY_ROWS else _MANY_BLOCKS
            most = max(2, min(most, _BLOCK_NUMBERS // self.size))
            projected = bins.project(self.spec.risk, bins.join(found), most, len(found))
            self._spread(dual, found, projected)
            return
        low, high = self._levels
        if low == high:
            self._post("fill", dual.number, low)
            return
        reference, tau = self._threshold(dual, low, high)
        self._post("clip", dual.number, reference, tau, low, high)
        dual.n_blocks = 1

    def _spread(self, dual: DaskDual, found: list[bins.Bins], projected: bins.Projected) -> None:
        """Send every worker the densities of its bins, and what they move with."""
        dual.n_blocks = projected.n_blocks
        cuts = np.cumsum([len(part.mass) for part in found])[:-1]
        lengths = self.partitions.lengths
        rooms = [min(self.bins, int(lengths[held].sum())) for held in self.partitions.holdings]
        split = (np.split(part, cuts) for part in projected[:3])
        padded = ([_padded(*pair) for pair in zip(parts, rooms, strict=True)] for parts in split)
        self._post("spread", dual.number, *map(Each, padded))

    def _threshold(self, dual: DaskDual, low: float, high: float) -> tuple[float, float]:
        """The threshold t = reference + tau of the two-level set, from sums over the workers."""
        total = float(self.n_samples)
        reference = _threshold_of_sketch(self._ask("sketch", dual.number), low, high)
        tau, below, above, span = 0.0, -np.inf, np.inf, np.inf
        for trial in range(_TRIALS):
            sums = tuple(self._columns("level_sums", dual.number, reference, tau, low, high))
            excess = _core.excess_at(sums, tau, below, above, low, high, total)
            free = sums[2]
            if excess == 0.0:
                return reference, float(_core.exact_tau(sums, tau, low, high, total))
            kink = 0.0
            if free == 0.0:
                found = self._ask("nearest", dual.number, reference, tau, low, excess >= 0.0)
                near = [value for value in found if value is not None]
                best = min if excess >= 0.0 else max
                kink = best(near, default=reference) - reference
            tau, below, above, span = _core.next_tau(
                trial, tau, below, above, span, excess, free, kink, low, high
            )
        return reference, tau

    @_recovering
    def blend(self, dual: Any, other: Any, share: float) -> DaskDual:
        new = self._new_dual()
        self._post("blend", new.number, dual.number, other.number, share)
        return new

    @_recovering
    def weights(self, dual: Any) -> FloatArray:
        return self.partitions.gathered(self._ask("weights", dual.number))

    @_recovering
    def nearest_dual(self, lam: FloatArray) -> tuple[DaskDual, float]:
        lam = np.asarray(lam, dtype=np.float64)
        dual = self._new_dual()
        self._post("give", dual.number, self.partitions.scattered(lam))
        self._project(dual, exact=len(np.unique(lam)) <= _EXACT_LEVELS)
        return dual, float(np.abs(self.weights(dual) - lam).sum())

    # What a weighting makes of the losses: asked for together.

    def _summarise(self, point: Any, dual: Any, center: Any = None) -> tuple[float, FloatArray]:
        if point.number not in dual.known:
            number = None if center is None else center.number
            expected, mass, distance, gradient = self._columns(
                "summary", point.number, dual.number, number
            )
            dual.mass = mass
            dual.known[point.number] = expected, gradient
            if center is not None:
                dual.center = center.number, distance
        return dual.known[point.number]

    @_recovering
    def expected(self, point: Any, dual: Any) -> float:
        return float(self._summarise(point, dual)[0])

    @_recovering
    def gradient(self, point: Any, dual: Any) -> FloatArray:
        return self._summarise(point, dual)[1].copy()

    @_recovering
    def slope(self, point: Any, dual: Any, direction: Any) -> float:
        return float(np.vdot(self._summarise(point, dual)[1], direction.delta))

    @_recovering
    def differences(
        self, dual: Any, other: Any, point: Any = None, other_point: Any = None
    ) -> Differences:
        if point is not None and other_point is not None:
            numbers = (handle.number for handle in (dual, other, point, other_point))
            return Differences(*self._columns("differences", *numbers))
        if dual.center is not None and dual.center[0] == other.number:
            return Differences(float(dual.center[1]))
        return Differences(float(self._sum("distance", dual.number, other.number)))

    # Sizes.

    @_recovering
    def sizes(self, point: Any) -> Sizes:
        mean, absolute, _, _ = self._columns("sums", point.number)
        return Sizes(mean, absolute, float(self._sum("deviation", point.number, mean)))

    @_recovering
    def rounding(self, point: Any, dual: Any) -> RoundingFacts:
        loss = self.spec.loss
        mass = 1.0 if dual.mass is None else float(dual.mass)
        facts = mass, self._weights_error(point)
        if loss.lower_bound > -np.inf and loss.curvature_bound < np.inf:
            return RoundingFacts(*facts)
        found = np.array(self._ask("rounding", point.number, dual.number))
        return RoundingFacts(*facts, *found[:, :3].sum(axis=0), *found[:, 3:].max(axis=0))

    def _weights_error(self, point: Any) -> float:
        if self._levels is None:
            # Weights of bins are differences of the cumulative risk, off by rounding errors of 1.
            items = self.bins * len(self.partitions.addresses)
            return _EPS * float(items * self._columns("sums", point.number)[2]) ** 0.5
        if not self._weighted:
            return 0.0
        return _EPS * float(self._sum("square_of_used", point.number)) ** 0.5

    @_recovering
    def column_scale(self) -> FloatArray | None:
        if "columns" not in self._facts:
            self._facts["columns"] = np.max(self._ask("column_scale"), axis=0)
        return np.asarray(self._facts["columns"])

    @_recovering
    def fingerprint(self) -> dict[str, str]:
        parts: list[Any] = [None] * len(self.partitions.lengths)
        answers = self._ask("fingerprints")
        for held, found in zip(self.partitions.holdings, answers, strict=True):
            for place, texts in zip(held, found, strict=True):
                parts[place] = texts
        columns = zip(*(texts for texts in parts if texts is not None), strict=True)
        names = ("data", "targets", "sample weights")
        return {
            name: hashlib.blake2b(" ".join(column).encode(), digest_size=16).hexdigest()
            for name, column in zip(names, columns, strict=True)
        }

    # Derivatives.

    def curvature(self, point: Any, dual: Any, eta: float = 0.0, damping: float = 0.0) -> Curvature:
        return DaskCurvature(self, point, dual, eta if dual.n_blocks else 0.0, damping)

    @_recovering
    def _recovered(self, operation: Callable[[], FloatArray]) -> FloatArray:
        """What an operation of a handle returns, started again when workers are lost."""
        return operation()

    @_recovering
    def intercept_statistics(self, point: Any, dual: Any, shift: Any) -> InterceptStatistics:
        answers = self._ask("intercept_statistics", point.number, dual.number, shift)
        return total_statistics([InterceptStatistics(*answer) for answer in answers])


class DaskCurvature(Curvature):
    """Products with the Hessian: one round each. What blocks share is kept here."""

    def __init__(
        self, engine: DaskEngine, point: Any, dual: Any, eta: float, damping: float
    ) -> None:
        self._engine, self._made_from = engine, (point, dual, eta, damping)
        self._number, self._epoch = -1, -1

    def _prepare(self) -> None:
        """Have the workers hold the matrix, if they do not, and get what blocks share."""
        engine = self._engine
        if self._epoch == engine._epoch:
            return
        point, dual, eta, damping = self._made_from
        engine._reached(point)
        self._number, self._epoch = next(engine._numbers), engine._epoch
        self._diagonal, sums, totals, rows = engine._columns(
            "curvature", self._number, point.number, dual.number, eta, damping, dual.n_blocks
        )
        self._share = rows / engine.n_samples
        self._sums = sums if eta > 0.0 else sums[:0]
        self._scale = eta / np.where(totals > 0.0, totals, np.inf)

    def _prepared(self) -> FloatArray:
        self._prepare()
        return np.asarray(self._diagonal.copy())

    @property
    def share(self) -> float:
        self._engine._recovered(self._prepared)
        return float(self._share)

    def product(self, v: FloatArray) -> FloatArray:
        return self._engine._recovered(lambda: self._product(v))

    def _product(self, v: FloatArray) -> FloatArray:
        self._prepare()
        out = self._engine._sum("product", self._number, v)
        if len(self._sums):
            means = self._scale[: len(self._sums)] * (self._sums @ v.ravel())
            out = out - (self._sums.T @ means).reshape(v.shape)
        return np.asarray(out)

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        return self._engine._recovered(lambda: self._matrix(n_rows))

    def _matrix(self, n_rows: int | None) -> FloatArray:
        engine, (point, dual, eta, damping) = self._engine, self._made_from
        engine._reached(point)
        share = None if n_rows is None else -(-n_rows // len(engine.partitions.addresses))
        matrix, sums, totals = engine._columns(
            "hessian", point.number, dual.number, eta, share, damping, dual.n_blocks
        )
        if eta > 0.0 and len(sums):
            scale = eta / np.where(totals > 0.0, totals, np.inf)
            matrix = matrix - (sums * scale[:, None]).T @ sums
        return np.asarray(matrix)

    def diagonal(self) -> FloatArray:
        return self._engine._recovered(self._prepared)

    def __del__(self) -> None:
        if self._number >= 0:
            self._engine._dropped.append(self._number)


def _padded(array: NDArray[Any], room: int) -> NDArray[Any]:
    """With zeros at the end: the size of a message says nothing of the data."""
    return np.concatenate([array, np.zeros(max(room - len(array), 0), array.dtype)])


def _threshold_of_sketch(answers: list[tuple[FloatArray, float]], low: float, high: float) -> float:
    """The threshold for a sketch of the values: where the search for the exact one begins."""
    keys = np.concatenate([values for values, _ in answers])
    omega = np.concatenate([np.full(len(values), mass / len(values)) for values, mass in answers])
    keys, order = np.sort(keys), np.argsort(keys)
    omega = omega[order] / omega.sum()
    least, most = float(keys[0]) - high, float(keys[-1]) - low
    for _ in range(100):
        middle = 0.5 * (least + most)
        if float(omega @ np.clip(keys - middle, low, high)) > 1.0:
            least = middle
        else:
            most = middle
        if not least < 0.5 * (least + most) < most:
            break
    return 0.5 * (least + most)


def _check_bins(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 2:
        raise ValueError(f"sorel.bins must be a whole number of at least 2, got {value!r}")
    return int(value)
