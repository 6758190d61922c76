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

import sorel._core as _core
from sorel._lib.copies import shallow_copy
from sorel._lib.floats import EPS
from sorel.dask import bins
from sorel.dask.cluster import Each, Partitions, WorkersLostError
from sorel.dask.shards import Ref, added
from sorel.engines.base import (
    Curvature,
    Differences,
    Dual,
    Engine,
    FloatArray,
    Point,
    RoundingFacts,
    Sizes,
)
from sorel.engines.intercepts import InterceptStatistics
from sorel.engines.stochastic import SINGLE
from sorel.projection.thresholds import MAX_TRIALS, Thresholder

# Bins of a worker at the start.
BINS = 4096

# Bins of a worker at most: 10 MB.
_MAX_BINS = 1 << 18

# Share of the precision wanted that bins may cost before they are doubled.
_BIN_SHARE = 0.05

# Blocks of a projection that have a mean of their own in a Hessian.
_BLOCKS = 128

_Method = TypeVar("_Method", bound=Callable[..., Any])


class _Handle:
    """What the workers know by a number, for as long as somebody holds this.

    Parameters
    ----------
    engine : DaskEngine
        Whose workers.
    recipe : tuple, optional
        The operation of their engines that makes it, and its arguments, where it needs nothing that
        a lost worker held.
    """

    def __init__(self, engine: DaskEngine, *recipe: Any) -> None:
        self.number, self.recipe = Ref(next(engine._numbers)), recipe
        self._dropped = engine._dropped
        engine._handles[self.number] = self

    def __del__(self) -> None:
        self._dropped.append(self.number)


class DaskPoint(Point, _Handle):
    """Parameters, and the number by which the workers know the margins there."""

    def __init__(self, w: FloatArray, engine: DaskEngine) -> None:
        Point.__init__(self, w)
        _Handle.__init__(self, engine, "point", w)
        # The quantile of the losses where the weights of a worst case jump.
        self.quantile: float | None = None


class DaskDual(Dual, _Handle):
    """A weighting on the workers, and what was asked about it."""

    def __init__(self, engine: DaskEngine) -> None:
        _Handle.__init__(self, engine)
        self.forget()

    def forget(self) -> None:
        """Know nothing of it any more: it is another weighting now."""
        self.n_blocks = 0
        self.center: tuple[int, float] | None = None
        # For a point, lam . l and its gradient.
        self.known: dict[int, tuple[float, FloatArray]] = {}


def _recovering(method: _Method) -> _Method:
    """Start an operation of an engine, or of its curvature, again when workers were lost in it."""

    @functools.wraps(method)
    def again(self: Any, *args: Any, **more: Any) -> Any:
        engine: DaskEngine = getattr(self, "_engine", self)
        lost: WorkersLostError | None = None
        while True:
            try:
                if lost is not None:
                    engine._recover(lost)
                return method(self, *args, **more)
            except WorkersLostError as error:
                lost = error

    return again  # type: ignore[return-value] # functools.wraps keeps the signature


class DaskEngine(Engine):
    """Engine for partitions on the workers of a Dask cluster.

    Parameters
    ----------
    partitions : Partitions
        Where the rows are, with the loss, risk, classes and intercept of the problem.
    n_features : int
        Columns of X.
    data_type : dtype
        Type of the entries of X.
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
        n_features: int,
        data_type: Any = np.float64,
        bins: int | None = None,
        precision: float = 1e-6,
    ) -> None:
        layout = partitions.layout
        super().__init__(layout.n_samples, n_features, layout.spec)
        self.partitions = partitions
        self._data_type = np.dtype(data_type)
        self._precision = precision
        self.bins = _check_bins(dask.config.get("sorel.bins", BINS) if bins is None else bins)
        omega = None if layout.total_weight is None else np.ones(1)
        # The two slopes of the risk, where there are no more; anything else goes by bins.
        self._levels: Any = layout.spec.risk.levels(self.n_samples, omega)
        self._facts: dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self.run = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._queue: list[tuple[Any, ...]] = []
        self._dropped: list[int] = []
        self._handles: weakref.WeakValueDictionary[int, _Handle] = weakref.WeakValueDictionary()
        self._anchor: FloatArray | None = None
        self._epoch = self.partitions.epoch
        weakref.finalize(self, self.partitions.ended.append, self.run)

    def for_run(self, sequence: bool = False) -> DaskEngine:
        other = shallow_copy(self)
        other._begin()
        return other

    @property
    def data_type(self) -> np.dtype[Any]:
        return self._data_type

    def account(self) -> str:
        """What the cluster does for a fit, in words."""
        partitions, count = self.partitions, len(self.partitions.addresses)
        text = f"{self.n_samples} rows on {count} worker{'s' if count != 1 else ''}, "
        text += self._exchanged()
        if partitions.lost_workers:
            text += f"; {partitions.lost_workers} lost and their shards rebuilt"
        return text

    def _exchanged(self) -> str:
        """What travels in place of the losses."""
        if self._levels is not None:
            return "thresholds exchanged"
        largest = max(int(self.partitions.lengths[held].sum()) for held in self.partitions.holdings)
        if largest <= self.bins:
            return "every loss in a bin of its own"
        return f"losses exchanged in {self.bins} bins each"

    def obstacle(self, operation: str) -> str | None:
        if operation in SINGLE:
            return (
                "takes one step after another on single samples, of which each would cost a "
                "message to a worker here (a DaskEngine)"
            )
        return super().obstacle(operation)

    # Messages.

    def _post(self, *operation: Any) -> None:
        """Have an operation done before the next question; what it refers to lives until then."""
        self._queue.append(operation)

    def _ask_all(self, *operations: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """What operations return, each an entry for each worker: a round of messages."""
        if self._epoch != self.partitions.epoch:
            raise WorkersLostError([])
        queue, self._queue = self._queue, []
        dropped = self._dropped[:]
        del self._dropped[: len(dropped)]
        program = [("free", dropped), *queue, *operations]
        answers = self.partitions.exchange(self.run, [tuple(map(_ref, part)) for part in program])
        return list(zip(*answers, strict=True))[-len(operations) :]

    def _ask(self, *operation: Any) -> tuple[Any, ...]:
        """What an operation returns, an entry for each worker."""
        return self._ask_all(operation)[0]

    def _sum(self, *operation: Any) -> Any:
        """The sum over the workers of what an operation returns."""
        return added(self._ask(*operation))

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
        self._queue = []
        self._dropped.clear()
        handles = list(self._handles.values())
        for handle in handles:
            if handle.recipe:
                self._post("make", handle, *handle.recipe)
        duals = [handle for handle in handles if isinstance(handle, DaskDual)]
        # The augmented Lagrangian may be centred anywhere: here at weights for the last iterate.
        stand_in = self.uniform()
        if self._anchor is not None and duals:
            stand_in = self._worst_case(self.point(self._anchor))
        for dual in duals:
            dual.forget()
            self._post("copy", dual, stand_in)
        self._ask("free", [])

    # Points.

    def point(self, w: FloatArray) -> DaskPoint:
        point = DaskPoint(np.array(w, dtype=np.float64), self)
        self._post("make", point, *point.recipe)
        return point

    def direction(self, delta: FloatArray) -> _Handle:
        change = _Handle(self, "direction", np.array(delta, dtype=np.float64))
        self._post("make", change, *change.recipe)
        return change

    def moved(self, point: Any, delta: FloatArray, direction: Any, step: float) -> DaskPoint:
        new = DaskPoint(point.w + step * delta, self)
        self._post("make", new, "moved", point, np.asarray(delta), direction, step)
        return new

    @_recovering
    def losses(self, point: Any) -> FloatArray:
        return self.partitions.gathered(self._ask("rows", "losses", point))

    @_recovering
    def scores(self, w: FloatArray, rows: int) -> list[Any]:
        """Margins, targets and weights of about so many rows of all, for a look at predictions."""
        share = -(-rows // len(self.partitions.addresses))
        answers = self._ask("scores", self.point(w), share)
        return [np.concatenate(parts) for parts in zip(*answers, strict=True)]

    # Risks.

    def _reached(self, point: Any) -> None:
        """Take note of an iterate: where to go on when workers are lost, or all of them."""
        self._anchor = self.partitions.reached = point.w

    def _quantile(self, point: Any) -> float:
        """The loss at which the weights of a worst case of two levels jump.

        Every round of sorted samples brackets it for certain, some hundred times closer.
        """
        low, high = self._levels
        if point.quantile is None and high > low:
            goal = (high - 1.0) / (high - low)
            least, most, slack = -np.inf, np.inf, np.inf
            while slack > 0.0:
                found = self._ask("ranks", point, least, most)
                below, slack = sum(part[0] for part in found), sum(part[1] for part in found)
                values, masses = np.hstack([part[2] for part in found])
                order = np.argsort(values, kind="stable")
                values, reach = values[order], below + np.cumsum(masses[order])
                # Groups count by their largest values: of each worker one may be there in part.
                before, after = values[reach + slack < goal], values[reach >= goal]
                bracket = before.max(initial=least), after.min(initial=most)
                if bracket == (least, most):
                    break
                least, most = bracket
            point.quantile = float(most)
        known = point.quantile
        return known if known is not None and np.isfinite(known) else 0.0

    def _loss_bins(self, point: Any, dual: Any = None) -> tuple[bins.Bins, bins.Ordered, Any]:
        """Bins of the losses, what they say of the risk, and what a weighting holds in them.

        Bins that leave the risk too uncertain are doubled.
        """
        while True:
            found = self._ask("loss_bins", point, dual, self.bins)
            items = bins.join([part for part, _ in found])
            bound = bins.bound_risk(self.spec.risk, items)
            allowed = _BIN_SHARE * self._precision * abs(bound.upper)
            exact = not np.any(items.high > items.low)
            if not bound.upper - bound.lower > allowed or exact or self.bins >= _MAX_BINS:
                held = None if dual is None else np.hstack([part for _, part in found])
                return items, bound, held
            self.bins *= 2

    @_recovering
    def risk(self, point: Any) -> float:
        if self._levels is None:
            return self._loss_bins(point)[1].upper
        return self._two_level_risk(point)

    def _two_level_risk(self, point: Any, dual: Any = None) -> float:
        """The risk of two levels less lam . l; without a weighting, the risk."""
        threshold = self._quantile(point)
        lacking, mass = self._sum("short_of", point, dual, threshold, *self._levels)
        return float(lacking + threshold * (1.0 - mass))

    @_recovering
    def shortfall(self, point: Any, dual: Any) -> float:
        self._reached(point)
        if self._levels is None:
            items, bound, held = self._loss_bins(point, dual)
            return bins.shortfall(items, bound, *held)
        return max(self._two_level_risk(point, dual), 0.0)

    # Weightings.

    def uniform(self) -> DaskDual:
        dual = DaskDual(self)
        self._post("make", dual, "uniform")
        return dual

    @_recovering
    def worst_case(self, point: Any) -> DaskDual:
        return self._worst_case(point)

    def _worst_case(self, point: Any) -> DaskDual:
        dual = DaskDual(self)
        if self._levels is None:
            self._post("losses_as_target", dual, point)
            found = self._ask("collapse", dual, self.bins)
            density = bins.worst_case(self.spec.risk, bins.join(found))
            still = np.full(len(density), -1, np.int32)
            self._spread(dual, found, bins.Projected(density, still, 0.0 * density, 0))
            return dual
        (low, high), threshold = self._levels, self._quantile(point)
        below, tied, above = self._sum("masses", point, threshold)
        if low == high or tied == 0.0:
            return self.uniform()
        middle = (1.0 - low * below - high * above) / tied
        self._post("jump", dual, point, threshold, low, middle, high)
        return dual

    @_recovering
    def dual_step(
        self, center: Any, point: Any, eta: float, previous: Any = None, theta: float = 0.0
    ) -> DaskDual:
        if eta == 0.0:
            return center
        if eta == np.inf:
            return self.worst_case(point)
        new = DaskDual(self)
        self._post("target", new, center, point, eta, previous or point, theta)
        self._project(new)
        self._summarise(point, new, center)
        return new

    def _project(self, dual: DaskDual, exact: bool = False) -> None:
        """Turn a target on the workers into the weighting nearest to it."""
        if self._levels is None:
            found = self._ask("collapse", dual, self.bins, exact)
            joined = bins.join(found)
            self._spread(dual, found, bins.project(self.spec.risk, joined, _BLOCKS, len(found)))
        elif self._levels[0] == self._levels[1]:
            self._post("make", dual, "uniform")
        else:
            self._post("clip", dual, *self._threshold(dual), *self._levels)
            dual.n_blocks = 1

    def _spread(self, dual: DaskDual, found: Any, projected: bins.Projected) -> None:
        """Send every worker the densities of its bins, and what they move with."""
        dual.n_blocks = projected.n_blocks
        cuts = np.cumsum([len(part.mass) for part in found])[:-1]
        self._post("spread", dual, *(Each(np.split(part, cuts)) for part in projected[:3]))

    def _threshold(self, dual: DaskDual) -> tuple[float, float]:
        """The threshold t = reference + tau of a target, from sums over the workers."""
        (low, high), total = self._levels, float(self.n_samples)
        reference = _threshold_of_sketch(self._ask("sketch", dual), low, high)
        tau, below, above, span = 0.0, -np.inf, np.inf, np.inf
        for trial in range(MAX_TRIALS):
            sums = self._sum("level_sums", dual, reference, tau, low, high)
            excess = _core.excess_at(sums, tau, below, above, low, high, total)
            if excess == 0.0:
                return reference, float(_core.exact_tau(sums, tau, low, high, total))
            kink, free = 0.0, sums[2]
            if free == 0.0:
                found = self._ask("nearest", dual, reference, tau, low, excess >= 0.0)
                best = min if excess >= 0.0 else max
                kink = best((x for x in found if x is not None), default=reference) - reference
            tau, below, above, span = _core.next_tau(
                trial, tau, below, above, span, excess, free, kink, low, high
            )
        return reference, tau

    @_recovering
    def blend(self, dual: Any, other: Any, share: float) -> DaskDual:
        new = DaskDual(self)
        self._post("make", new, "blend", dual, other, share)
        return new

    @_recovering
    def weights(self, dual: Any) -> FloatArray:
        return self.partitions.gathered(self._ask("rows", "weights", dual))

    @_recovering
    def nearest_dual(self, lam: FloatArray) -> tuple[DaskDual, float]:
        lam = np.asarray(lam, dtype=np.float64)
        dual = DaskDual(self)
        self._post("weights_as_target", dual, self.partitions.scattered(lam))
        self._project(dual, exact=len(np.unique(lam)) <= _MAX_BINS)
        return dual, float(np.abs(self.weights(dual) - lam).sum())

    # What a weighting makes of the losses: asked for together.

    def _summarise(self, point: Any, dual: Any, center: Any = None) -> tuple[float, FloatArray]:
        if point.number not in dual.known:
            asked = [("total", name, point, dual) for name in ("expected", "gradient")]
            if center is not None:
                asked.append(("total", "differences", dual, center))
            expected, gradient, *more = map(added, self._ask_all(*asked))
            dual.known[point.number] = float(expected), gradient
            if center is not None:
                dual.center = center.number, float(more[0][0])
        return dual.known[point.number]

    @_recovering
    def expected(self, point: Any, dual: Any) -> float:
        return self._summarise(point, dual)[0]

    @_recovering
    def gradient(self, point: Any, dual: Any) -> FloatArray:
        return self._summarise(point, dual)[1].copy()

    @_recovering
    def slope(self, point: Any, dual: Any, direction: Any) -> float:
        return float(np.vdot(self._summarise(point, dual)[1], direction.recipe[1]))

    @_recovering
    def differences(
        self, dual: Any, other: Any, point: Any = None, other_point: Any = None
    ) -> Differences:
        if point is None and dual.center is not None and dual.center[0] == other.number:
            return Differences(dual.center[1])
        return Differences(*self._sum("total", "differences", dual, other, point, other_point))

    # Sizes.

    @_recovering
    def sizes(self, point: Any) -> Sizes:
        mean, absolute, _, _ = self._sum("sums", point, 0.0)
        return Sizes(mean, absolute, self._sum("sums", point, mean)[2])

    @_recovering
    def rounding(self, point: Any, dual: Any) -> RoundingFacts:
        facts, sums = self._ask_all(("rounding", point, dual), ("sums", point, 0.0))
        mass, error, *means = np.sum([part[:5] for part in facts], axis=0)
        if self._levels is None:
            # Weights of bins are differences of the cumulative risk, off by rounding errors of 1.
            items = self.bins * len(self.partitions.addresses)
            error = EPS**2 * items * added(sums)[3]
        largest = np.max([part[5:] for part in facts], axis=0)
        return RoundingFacts(mass, float(error) ** 0.5, *means, *largest)

    @_recovering
    def column_scale(self) -> FloatArray | None:
        if "columns" not in self._facts:
            self._facts["columns"] = np.max(self._ask("column_scale"), axis=0)
        return np.asarray(self._facts["columns"])

    @_recovering
    def fingerprint(self) -> dict[str, str]:
        places = itertools.chain(*self.partitions.holdings)
        texts = itertools.chain(*self._ask("fingerprints"))
        in_order = [text for _, text in sorted(zip(places, texts, strict=True))]
        names = ("data", "targets", "sample weights")
        return {
            name: hashlib.blake2b(" ".join(column).encode(), digest_size=16).hexdigest()
            for name, column in zip(names, zip(*in_order, strict=True), strict=True)
        }

    # Derivatives.

    def curvature(self, point: Any, dual: Any, eta: float = 0.0, damping: float = 0.0) -> Curvature:
        return DaskCurvature(self, point, dual, eta, damping)

    @_recovering
    def intercept_statistics(self, point: Any, dual: Any, shift: Any) -> InterceptStatistics:
        found = InterceptStatistics(*self._sum("total", "intercept_statistics", point, dual, shift))
        return found._replace(present=np.asarray(found.present, bool))


class DaskCurvature(Curvature):
    """The Hessian, in parts on the workers; the means of blocks are taken off here."""

    def __init__(
        self, engine: DaskEngine, point: Any, dual: Any, eta: float, damping: float
    ) -> None:
        self._engine, self._made_from = engine, (point, dual, eta, damping)
        self._handle: _Handle | None = None
        self._epoch = -1

    def _prepare(self) -> None:
        """Have the workers hold their parts, if they do not."""
        engine = self._engine
        if self._epoch != engine._epoch:
            point, dual, eta, damping = self._made_from
            engine._reached(point)
            self._handle, self._epoch = _Handle(engine), engine._epoch
            self._diagonal: FloatArray | None = None
            # A weighting that took the place of a lost one has no blocks.
            self._n_blocks, self._eta = dual.n_blocks, eta if dual.n_blocks else 0.0
            engine._post("curvature", self._handle, point, dual, self._eta, damping)

    def _low_rank(self, sums: FloatArray, totals: FloatArray) -> FloatArray:
        """L with L^T L the means of blocks."""
        return np.asarray(
            sums * np.sqrt(self._eta / np.where(totals > 0.0, totals, np.inf))[:, None]
        )

    def _look(self) -> None:
        """Get what products need besides those of the workers, once."""
        self._prepare()
        if self._diagonal is None:
            self._diagonal, sums, totals, rows = self._engine._sum(
                "diagonal", self._handle, self._n_blocks
            )
            self._means, self._share = self._low_rank(sums, totals), rows / self._engine.n_samples

    @property
    @_recovering
    def share(self) -> float:
        self._look()
        return float(self._share)

    @_recovering
    def diagonal(self) -> FloatArray:
        self._look()
        return np.array(self._diagonal)

    @_recovering
    def product(self, v: FloatArray) -> FloatArray:
        self._look()
        out = self._engine._sum("product", self._handle, v)
        return np.asarray(out - (self._means.T @ (self._means @ v.ravel())).reshape(v.shape))

    @_recovering
    def matrix(self, n_rows: int | None = None) -> FloatArray:
        self._prepare()
        share = None if n_rows is None else n_rows / self._engine.n_samples
        matrix, sums, totals = self._engine._sum("hessian", self._handle, share, self._n_blocks)
        means = self._low_rank(sums, totals)
        return np.asarray(matrix - means.T @ means)


def _ref(value: Any) -> Any:
    return value.number if isinstance(value, _Handle) else value


def _threshold_of_sketch(sketch: Any, low: float, high: float) -> float:
    """The threshold for a sketch of the values: where the search for the exact one begins."""
    keys = np.concatenate([values for values, _ in sketch])
    omega = np.concatenate([np.full(len(values), mass / len(values)) for values, mass in sketch])
    search = Thresholder(omega, low, high, float(omega.sum()), 0)
    search.project(keys, np.empty(len(keys)), np.empty(len(keys), np.int32))
    return float(keys[search.pivot]) + search.tau


def _check_bins(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 2:
        raise ValueError(f"sorel.bins must be a whole number of at least 2, got {value!r}")
    return int(value)
