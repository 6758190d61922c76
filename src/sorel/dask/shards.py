"""What runs on a worker: its rows, and the operations of an engine on them.

A worker holds one :class:`Home` for each data set (engines in memory over its partitions) and in it
one :class:`Session` for each run (points, weightings and directions, known by numbers). The driver
sends a list of operations, all of which are carried out in one go in the worker's own thread pool,
and gets what they returned: sums over the rows of this worker, of a size that does not depend on
how many there are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import sorel._core as _core
from sorel.dask import bins
from sorel.engines import DenseEngine, SparseEngine, Spec
from sorel.engines.base import Curvature
from sorel.engines.curvature import (
    NO_BLOCKS,
    ROWS_PER_BLOCK,
    WORTH_SAMPLING,
    WORTH_SELECTING,
)
from sorel.engines.intercepts import InterceptStatistics
from sorel.engines.memory import MemoryDual, MemoryEngine
from sorel.files.fingerprints import fingerprint_array, fingerprint_matrix
from sorel.problem.losses import Loss
from sorel.problem.risks import FloatArray, Mean, Risk

# Partitions are joined, which copies them, until they have so many bytes: many small ones would
# cost more in calls than in arithmetic.
_WORTH_ALONE = 2 << 20

# Values that a worker sends as a sketch of all of them.
_SKETCH = 1024


class Partition(NamedTuple):
    """One partition: rows, what y says of them, and their weights."""

    X: Any
    y: NDArray[Any]
    sample_weight: FloatArray | None


class Layout(NamedTuple):
    """What a worker must know to turn its partitions into engines.

    Attributes
    ----------
    loss, risk : Loss, Risk
        Those of the problem.
    classes : array or None
        Labels of all partitions, sorted.
    fit_intercept : bool
        Whether there is an intercept.
    n_samples : int
        Rows of all workers.
    total_weight : float or None
        Sum of all sample weights; None where they are all alike.
    class_weight : array or None
        A weight for each class.
    means : tuple or None
        Means of X and y that are taken away.
    offset : float
        What is taken off the targets, and added to the intercept of the user.
    """

    loss: Loss
    risk: Risk
    classes: NDArray[Any] | None
    fit_intercept: bool
    n_samples: int
    total_weight: float | None
    class_weight: FloatArray | None = None
    means: tuple[FloatArray, float] | None = None
    offset: float = 0.0


class Home:
    """The rows of one worker, in engines."""

    def __init__(self, blocks: list[Partition], layout: Layout, n_jobs: int) -> None:
        self.layout = layout
        self.blocks = blocks
        self.engines = [self._engine(group, n_jobs) for group in _groups(blocks)]
        lengths = [engine.n_samples for engine in self.engines]
        ends = np.cumsum(lengths).tolist()
        self.ranges = [slice(end - n, end) for end, n in zip(ends, lengths, strict=True)]
        self.n_samples = sum(lengths)
        parts = [engine._omega for engine in self.engines]
        self.weighted = self.engines[0]._weighted
        self.omega = np.concatenate(parts) if self.weighted else parts[0]
        self.sessions: dict[str, Session] = {}

    def _engine(self, group: list[Partition], n_jobs: int) -> MemoryEngine:
        layout = self.layout
        X = group[0].X if len(group) == 1 else _stacked([block.X for block in group])
        y = np.concatenate([block.y for block in group])
        if layout.means is not None:
            X, y = X - layout.means[0], y - layout.means[1]
        weight = None
        if layout.total_weight is not None:
            weight = np.ones(len(y))
            if group[0].sample_weight is not None:
                weight = np.concatenate([np.asarray(block.sample_weight) for block in group])
        targets: NDArray[Any] = y
        if layout.classes is not None:
            codes = np.searchsorted(layout.classes, y)
            targets = codes.astype(np.int64)
            if layout.loss.n_outputs(layout.classes) == 1:
                targets = np.where(codes == 1, 1.0, -1.0)
            if layout.class_weight is not None:
                assert weight is not None
                weight = weight * layout.class_weight[codes]
        else:
            targets = np.asarray(y, dtype=np.float64) - layout.offset
        spec = Spec(
            targets, layout.loss, Mean(), layout.classes, layout.fit_intercept, None, n_jobs
        )
        kind = SparseEngine if scipy.sparse.issparse(X) else DenseEngine
        engine = kind(X, spec)
        if weight is None and engine.n_outputs > 1:
            weight = np.ones(len(y))
        if weight is None:
            engine._omega = np.full(1, 1.0 / layout.n_samples)
        else:
            total = layout.total_weight or float(layout.n_samples)
            engine._weighted, engine._omega = True, weight / total
            engine.spec = dataclasses.replace(spec, sample_weight=engine._omega)
        return engine

    def session(self, run: str) -> Session:
        """The session of a run, made when it is first asked for."""
        if run not in self.sessions:
            self.sessions[run] = Session(self)
        return self.sessions[run]


def _groups(blocks: list[Partition]) -> list[list[Partition]]:
    """Neighbouring partitions that are to be joined; those without rows are left out."""
    groups: list[list[Partition]] = []
    size = math.inf
    for block in blocks:
        if len(block.y) == 0:
            continue
        if size >= _WORTH_ALONE:
            groups.append([])
            size = 0.0
        groups[-1].append(block)
        X = block.X
        size += X.data.nbytes if scipy.sparse.issparse(X) else X.nbytes
    return groups


def _stacked(parts: list[Any]) -> Any:
    if scipy.sparse.issparse(parts[0]):
        return scipy.sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


class _Weighting:
    """A weighting on a worker: densities, and what a projection still needs to be told."""

    def __init__(self, n: int) -> None:
        self.density = np.empty(n)
        self.block: NDArray[np.int32] | None = None
        # Of each bin, what its samples' densities follow; None where all in a block follow alike.
        self.pull: FloatArray | None = None
        self.places: NDArray[np.int32] | None = None
        self.used: NDArray[np.intp] | None = None


class Session:
    """Points, weightings and directions of one run; every public method is an operation."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._engines = [engine.for_run() for engine in home.engines]
        self._ranges, self._n = home.ranges, home.n_samples
        self._omega, self._weighted = home.omega, home.weighted
        self._points: dict[int, list[Any]] = {}
        self._changes: dict[int, list[Any]] = {}
        self._duals: dict[int, _Weighting] = {}
        self._curvatures: dict[int, list[Any]] = {}

    def run(self, program: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
        """Carry out operations, and return what they returned."""
        with np.errstate(over="ignore", invalid="ignore"), self._engines[0].working():
            return [getattr(self, name)(*args) for name, args in program]

    def free(self, numbers: list[int]) -> None:
        """Forget what is known by these numbers."""
        for number in numbers:
            kinds: tuple[dict[int, Any], ...] = (
                self._points, self._changes, self._duals, self._curvatures,
            )  # fmt: skip
            for kept in kinds:
                kept.pop(number, None)

    # Facts about the data.

    def column_scale(self) -> FloatArray:
        return np.max([np.asarray(engine.column_scale()) for engine in self._engines], axis=0)

    def fingerprints(self) -> list[tuple[str, str, str]]:
        """Of each partition of this worker, in the order of the driver's list."""
        return [
            (
                fingerprint_matrix(block.X),
                _fingerprint_labels(block.y),
                "none" if block.sample_weight is None else fingerprint_array(block.sample_weight),
            )
            for block in self._home.blocks
        ]

    # Points.

    def point(self, number: int, w: FloatArray) -> None:
        self._points[number] = [engine.point(w) for engine in self._engines]

    def direction(self, number: int, delta: FloatArray) -> None:
        self._changes[number] = [engine.direction(delta) for engine in self._engines]

    def move(self, number: int, point: int, change: int, step: float, w: FloatArray) -> None:
        moved = []
        for engine, start, way in zip(
            self._engines, self._points[point], self._changes[change], strict=True
        ):
            new = engine.moved(start, np.zeros(engine.shape), way, step)
            new.w = w
            moved.append(new)
        self._points[number] = moved

    def shift(self, number: int, point: int, shift: Any, w: FloatArray) -> None:
        """Margins moved by the same amount for all samples."""
        self._points[number] = [
            engine._evaluated(w, start.margins + shift)
            for engine, start in zip(self._engines, self._points[point], strict=True)
        ]

    def losses(self, point: int) -> FloatArray:
        return np.concatenate([part.losses for part in self._points[point]])

    def scores(self, point: int, rows: int) -> tuple[FloatArray, NDArray[Any]]:
        """Margins and targets of about so many rows, evenly spread."""
        stride = max(1, -(-self._n // rows))
        margins = np.concatenate([part.margins for part in self._points[point]])
        targets = np.concatenate([engine.y for engine in self._engines])
        return margins[::stride], targets[::stride]

    def sums(self, point: int) -> tuple[float, float, float, bool]:
        """Weighted sums of l, |l| and l^2, and whether all losses are finite."""
        values = self.losses(point)
        omega = np.broadcast_to(self._omega, values.shape)
        return (
            float(omega @ values),
            float(omega @ np.abs(values)),
            float(omega @ values**2),
            bool(np.all(np.isfinite(values))),
        )

    def deviation(self, point: int, mean: float) -> float:
        values = self.losses(point)
        return float(np.broadcast_to(self._omega, values.shape) @ np.abs(values - mean))

    # Weightings.

    def fill(self, number: int, level: float) -> None:
        """The weighting of equal densities."""
        dual = self._duals[number] = _Weighting(self._n)
        dual.density.fill(level)

    def copy(self, number: int, other: int) -> None:
        dual = self._duals[number] = _Weighting(self._n)
        dual.density[:] = self._duals[other].density

    def blend(self, number: int, dual: int, other: int, share: float) -> None:
        new = self._duals[number] = _Weighting(self._n)
        np.multiply(self._duals[dual].density, 1.0 - share, out=new.density)
        new.density += share * self._duals[other].density

    def give(self, number: int, weights: FloatArray) -> None:
        """A target to be projected: densities of the weights that a user gave."""
        dual = self._duals[number] = _Weighting(self._n)
        omega = np.broadcast_to(self._omega, (self._n,))
        dual.density.fill(0.0)
        np.divide(weights, omega, out=dual.density, where=omega > 0.0)

    def target(
        self, number: int, dual: int, point: int, eta: float, previous: int | None, theta: float
    ) -> None:
        """q + eta [(1 + theta) l - theta l_prev], in the place of a weighting to come."""
        new = self._duals[number] = _Weighting(self._n)
        last = self._points[point if previous is None else previous]
        for rows, here, there in zip(self._ranges, self._points[point], last, strict=True):
            _core.ascent_target(
                self._duals[dual].density[rows], here.losses, there.losses, eta, theta,
                new.density[rows],
            )  # fmt: skip

    def sketch(self, number: int) -> tuple[FloatArray, float]:
        """Some values of a target, in ascending order, and the weight that they stand for."""
        keys = self._duals[number].density
        some = np.sort(keys[:: max(1, self._n // (4 * _SKETCH))])
        places = np.linspace(0, len(some) - 1, min(len(some), _SKETCH)).astype(np.int64)
        mass = float(self._omega.sum()) if self._weighted else self._n * float(self._omega[0])
        return some[places], mass

    @property
    def _threshold_weights(self) -> FloatArray | None:
        # Scaled to mean 1 over all workers, as the search for a threshold expects it.
        return self._omega * self._home.layout.n_samples if self._weighted else None

    def level_sums(
        self, number: int, reference: float, tau: float, low: float, high: float
    ) -> tuple[float, ...]:
        sums: tuple[float, ...] = _core.level_sums(
            self._duals[number].density, self._threshold_weights, reference, tau, low, high
        )
        return sums

    def nearest(
        self, number: int, reference: float, tau: float, low: float, above: bool
    ) -> float | None:
        keys = self._duals[number].density
        place = _core.nearest(keys, reference, tau, low, above)
        return None if place < 0 else float(keys[place])

    def clip(self, number: int, reference: float, tau: float, low: float, high: float) -> None:
        """Turn a target into the weighting of this threshold."""
        dual = self._duals[number]
        dual.block = np.empty(self._n, np.int32)
        _core.fill_clipped(dual.density, reference, tau, low, high, dual.density, dual.block)

    def collapse(self, number: int, count: int, exact: bool) -> NDArray[np.float64]:
        """Bins of a target; its samples wait for the weights of their bins."""
        dual = self._duals[number]
        edges = bins.choose_edges(dual.density, count, self._home.layout.risk, None)
        if exact:
            edges = np.unique(dual.density)[1:]
        dual.places, found, dual.used = self._filled(dual.density, edges)
        return bins.pack(found, min(count, self._n))

    def _filled(self, keys: FloatArray, edges: FloatArray) -> Any:
        return bins.fill(keys, edges, self._omega, self._weighted)

    def spread(self, number: int, levels: FloatArray, blocks: Any, pulls: FloatArray) -> None:
        """Turn a target into the weighting of its bins."""
        dual = self._duals[number]
        assert dual.places is not None
        assert dual.used is not None
        size, count = int(dual.used[-1]) + 1, len(dual.used)
        density, block, dual.pull = np.zeros(size), np.full(size, -1, np.int32), np.zeros(size)
        density[dual.used], block[dual.used] = levels[:count], blocks[:count]
        dual.pull[dual.used] = pulls[:count]
        dual.block = np.empty(self._n, np.int32)
        _core.spread_bins(dual.places, density, block, dual.density, dual.block)

    def weights(self, number: int) -> FloatArray:
        return self._duals[number].density * self._omega

    def distance(self, dual: int, other: int) -> float:
        return float(
            _core.weighted_square_distance(
                self._duals[dual].density, self._duals[other].density, self._omega, self._weighted
            )
        )

    def differences(
        self, dual: int, other: int, point: int, other_point: int
    ) -> tuple[float, float, float]:
        move = self._duals[dual].density - self._duals[other].density
        moved = move * self._omega
        change = self.losses(other_point) - self.losses(point)
        squares = change * change * self._omega
        return float(moved @ move), float(moved @ change), float(squares.sum())

    def _parts(self, point: int, dual: int) -> Any:
        """Engine, point and weighting of each group of partitions."""
        weighting = self._duals[dual]
        for engine, rows, here in zip(
            self._engines, self._ranges, self._points[point], strict=True
        ):
            yield engine, here, MemoryDual(weighting.density[rows])

    def summary(
        self, point: int, dual: int, center: int | None
    ) -> tuple[float, float, float, FloatArray]:
        """lam . l, the mass of lam, its distance from a centre, and the gradient of lam . l."""
        expected, gradient = 0.0, np.zeros(self._engines[0].shape)
        for engine, here, part in self._parts(point, dual):
            expected += engine.expected(here, part)
            gradient += engine.gradient(here, part)
        density = self._duals[dual].density
        mass = float(self._omega @ density if self._weighted else density.sum() * self._omega[0])
        return expected, mass, 0.0 if center is None else self.distance(dual, center), gradient

    # The certificate.

    def loss_bins(
        self, point: int, dual: int | None, count: int, kink: float | None
    ) -> tuple[NDArray[np.float64], Any]:
        """Bins of the losses, and what a weighting holds in them."""
        values = self.losses(point)
        edges = bins.choose_edges(values, count, self._home.layout.risk, kink)
        places, found, used = self._filled(values, edges)
        if dual is None:
            return bins.pack(found, min(count, self._n)), None
        low = np.zeros(len(edges) + 1)
        low[used] = found.low
        held, moment = np.zeros((2, len(low)))
        _core.held_by_bins(
            values, places, self._duals[dual].density, self._omega, self._weighted, low, held,
            moment,
        )  # fmt: skip
        packed = bins.pack(found, min(count, self._n))
        extra = np.zeros((2, packed.shape[1]))
        extra[:, : len(used)] = held[used], moment[used]
        return packed, extra

    def worst(self, number: int, point: int, count: int) -> NDArray[np.float64]:
        """Bins of the losses, whose samples wait for the weights of their bins."""
        dual = self._duals[number] = _Weighting(self._n)
        dual.density[:] = self.losses(point)
        return self.collapse(number, count, False)

    def square_of_used(self, point: int) -> float:
        return float(_core.square_of_used(self.losses(point), self._omega))

    def rounding(self, point: int, dual: int) -> FloatArray:
        """Sums over the rows that errors are measured by; of the last two the largest."""
        facts = [engine.rounding(here, part) for engine, here, part in self._parts(point, dual)]
        found = np.array(facts)[:, 2:]
        return np.concatenate([found[:, :3].sum(axis=0), found[:, 3:].max(axis=0)])

    # The intercept.

    def intercept_statistics(self, point: int, dual: int, shift: Any) -> InterceptStatistics:
        found = [
            engine.intercept_statistics(here, part, shift)
            for engine, here, part in self._parts(point, dual)
        ]
        return total_statistics(found)

    # Second derivatives.

    def _movements(self, dual: int, eta: float) -> list[Movement | None]:
        """What follows the losses in each group of partitions."""
        weighting = self._duals[dual]
        if weighting.block is None or eta == 0.0:
            return [None] * len(self._engines)
        follow = np.where(weighting.block >= 0, self._omega, 0.0)
        if weighting.pull is not None:
            follow *= weighting.pull[weighting.places]
        return [Movement(weighting.block[rows], follow[rows], eta) for rows in self._ranges]

    def hessian(
        self, point: int, dual: int, eta: float, n_rows: int | None, damping: float, n_blocks: int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The Hessian of these rows without means of blocks, and the sums that make these."""
        size = self._engines[0].size
        matrix, sums, totals = (
            np.zeros((size, size)),
            np.zeros((n_blocks, size)),
            np.zeros(n_blocks),
        )
        movements = self._movements(dual, eta)
        for (engine, here, part), moving in zip(self._parts(point, dual), movements, strict=True):
            rows = None if n_rows is None else -(-n_rows * engine.n_samples // self._n)
            found = shard_hessian(engine, here, part.density, moving, rows, damping, n_blocks)
            matrix += found[0]
            sums += found[1]
            totals += found[2]
        return matrix, sums, totals

    def curvature(
        self, number: int, point: int, dual: int, eta: float, damping: float, n_blocks: int
    ) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        """Prepare products; the diagonal, sums over the blocks, and the rows that have a say."""
        shape, size = self._engines[0].shape, self._engines[0].size
        diagonal, rows = np.zeros(shape), 0.0
        sums, totals = np.zeros((n_blocks, size)), np.zeros(n_blocks)
        kept: list[Any] = []
        movements = self._movements(dual, eta)
        for (engine, here, part), moving in zip(self._parts(point, dual), movements, strict=True):
            if moving is not None:
                own = block_sums(engine, here, moving, n_blocks, None)
                sums += own[0]
                totals += own[1]
            kind = ShardRows if engine.n_outputs == 1 else ShardSoftmaxRows
            matrix = kind(engine, here, part.density, moving, damping)
            diagonal += matrix.diagonal()
            rows += matrix.share * engine.n_samples
            kept.append(matrix)
        self._curvatures[number] = kept
        return diagonal, sums, totals, rows

    def product(self, number: int, v: FloatArray) -> FloatArray:
        v = np.ascontiguousarray(v)
        return np.sum([matrix.product(v) for matrix in self._curvatures[number]], axis=0)


def total_statistics(parts: list[InterceptStatistics]) -> InterceptStatistics:
    """The sum of what parts of the rows contribute."""
    gradient, hessian, rounding, present = zip(*parts, strict=True)
    return InterceptStatistics(sum(gradient), sum(hessian), sum(rounding), np.any(present, axis=0))


class Movement(NamedTuple):
    """How weights follow losses.

    Attributes
    ----------
    block : array of int32
        The block of each sample; -1 where its weight does not move.
    follow : array
        omega_i times the part of a change that its density follows, less the mean of the block.
    eta : float
        The length of the dual step.
    """

    block: NDArray[np.int32]
    follow: FloatArray
    eta: float


def _diagonal_weights(
    engine: MemoryEngine, point: Any, density: FloatArray, moving: Movement | None, damping: float
) -> FloatArray:
    """Weights h of the samples in X^T diag(h) X, without the means of blocks."""
    h = np.empty(engine.n_samples)
    engine._loops.augmented_curvature(
        *engine._loss_args, point.margins, density, NO_BLOCKS, 0.0, damping, engine._omega,
        engine._weighted, h,
    )  # fmt: skip
    if moving is not None:
        h += moving.eta * moving.follow * point.slopes**2
    return h


def shard_hessian(
    engine: MemoryEngine,
    point: Any,
    density: FloatArray,
    moving: Movement | None,
    n_rows: int | None,
    damping: float,
    n_blocks: int,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """:meth:`MemoryEngine.hessian` without the means of blocks, and the sums that make these."""
    sums, totals = np.zeros((n_blocks, engine.size)), np.zeros(n_blocks)
    factor = None
    if engine.n_outputs > 1:
        matrix = _softmax_hessian(engine, point, density, moving)
    else:
        h = _diagonal_weights(engine, point, density, moving, damping)
        if n_rows is not None and np.count_nonzero(h) > WORTH_SAMPLING * n_rows:
            block = NO_BLOCKS if moving is None else moving.block
            keep = moving is not None and n_blocks * ROWS_PER_BLOCK > n_rows
            factor = np.empty(engine.n_samples)
            _core.sample_rows(h, block, keep, float(h.sum()) / n_rows, factor)
        matrix = engine._rows.gram(h)
    if moving is not None:
        sums, totals = block_sums(engine, point, moving, n_blocks, factor)
    return matrix, sums, totals


def _softmax_hessian(
    engine: MemoryEngine, point: Any, density: FloatArray, moving: Movement | None
) -> FloatArray:
    rows, k = engine.shape[0], engine.n_outputs
    out, h = np.empty((rows, k, rows, k)), np.empty(engine.n_samples)
    for a in range(k):
        for b in range(a + 1):
            _core.softmax_pair_curvature(
                engine.y, point.slopes, density, NO_BLOCKS, 0.0, engine._omega, engine._weighted,
                a, b, h,
            )  # fmt: skip
            if moving is not None:
                h += moving.eta * moving.follow * point.slopes[:, a] * point.slopes[:, b]
            out[:, a, :, b] = out[:, b, :, a] = engine._rows.gram(h)
    return out.reshape(rows * k, rows * k)


def block_sums(
    engine: MemoryEngine, point: Any, moving: Movement, n_blocks: int, factor: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Sums of follow phi' x and of follow over the blocks."""
    follow = moving.follow if factor is None else moving.follow * factor
    inside = moving.block >= 0
    totals = np.bincount(moving.block[inside], follow[inside], n_blocks).astype(np.float64)
    if engine.n_outputs == 1:
        return engine._rows.block_sums(moving.block, 0, n_blocks, follow * point.slopes), totals
    cube = np.empty((n_blocks, *engine.shape))
    for a in range(engine.n_outputs):
        cube[:, :, a] = engine._rows.block_sums(
            moving.block, 0, n_blocks, follow * point.slopes[:, a]
        )
    return cube.reshape(n_blocks, engine.size), totals


class ShardRows(Curvature):
    """Products with the Hessian of some rows, through those of them that have curvature."""

    def __init__(
        self,
        engine: MemoryEngine,
        point: Any,
        density: FloatArray,
        moving: Movement | None,
        damping: float,
    ) -> None:
        self._engine, self._rows = engine, engine._rows
        self._h = self._active = _diagonal_weights(engine, point, density, moving, damping)
        rows = np.flatnonzero(self._h)
        if len(rows) <= WORTH_SELECTING * engine.n_samples:
            selection = engine._rows.select(rows)
            if selection is not None:
                self._rows, self._active = selection, self._h[rows]

    @property
    def share(self) -> float:
        return self._rows.n / self._engine.n_samples

    def product(self, v: FloatArray) -> FloatArray:
        return self._rows.gram_product(self._active, v)

    def diagonal(self) -> FloatArray:
        return self._engine._rows.gram_diagonal(self._h)


class ShardSoftmaxRows(Curvature):
    """The same for the multinomial loss, whose parabolas above it are not used for damping."""

    def __init__(
        self,
        engine: MemoryEngine,
        point: Any,
        density: FloatArray,
        moving: Movement | None,
        damping: float,
    ) -> None:
        self._engine, self._slopes = engine, point.slopes
        self._density, self._moving = density, moving

    def product(self, v: FloatArray) -> FloatArray:
        engine, slopes, moving = self._engine, self._slopes, self._moving
        change = np.empty(engine._margin_shape)
        engine._rows.margins(v, change)
        if moving is not None:
            moved = moving.eta * moving.follow * (change * slopes).sum(axis=1)
        _core.apply_softmax_curvature(
            engine.y, slopes, self._density, NO_BLOCKS, np.zeros(1), 0.0, engine._omega,
            engine._weighted, change,
        )  # fmt: skip
        if moving is not None:
            change += moved[:, None] * slopes
        return engine._rows.adjoint(change)

    def diagonal(self) -> FloatArray:
        engine, out = self._engine, np.empty(self._engine.shape)
        h = np.empty(engine.n_samples)
        for a in range(engine.n_outputs):
            _core.softmax_pair_curvature(
                engine.y, self._slopes, self._density, NO_BLOCKS, 0.0, engine._omega,
                engine._weighted, a, a, h,
            )  # fmt: skip
            if self._moving is not None:
                h += self._moving.eta * self._moving.follow * self._slopes[:, a] ** 2
            out[:, a] = engine._rows.gram_diagonal(h)
        return out


def _fingerprint_labels(y: NDArray[Any]) -> str:
    if y.dtype.kind in "iufb":
        return fingerprint_array(y)
    return fingerprint_array(np.frombuffer("\0".join(map(str, y)).encode(), np.uint8))


# What a worker process holds: in a cluster of threads, several workers share it.
_HOMES: dict[tuple[str, str], Home] = {}


class Message(NamedTuple):
    """What the driver sends.

    Attributes
    ----------
    data, run : str
        Which home and which session it is for.
    program : list
        Operations of :class:`Session`, with their arguments; or "settle" or "leave" alone.
    ended : list of str
        Runs that are over.
    """

    data: str
    run: str
    program: list[tuple[str, tuple[Any, ...]]]
    ended: list[str]


class Reply(NamedTuple):
    """What came of it: "done", "lost" (the worker knows of no such data) or "failed"."""

    outcome: str
    content: Any


async def answer(message: Message, dask_worker: Any) -> Reply:
    """Carry out a message in the threads of the worker, so that its event loop stays awake."""
    loop = asyncio.get_running_loop()
    executor = dask_worker.executors["default"]
    return await loop.run_in_executor(executor, _act, message, dask_worker)


def _act(message: Message, worker: Any) -> Reply:
    key = worker.address, message.data
    try:
        name, args = message.program[0]
        if name == "settle":
            return Reply("done", _settle(key, worker, *args))
        if name == "leave":
            _HOMES.pop(key, None)
            return Reply("done", None)
        home = _HOMES.get(key)
        if home is None:
            return Reply("lost", None)
        for run in message.ended:
            home.sessions.pop(run, None)
        return Reply("done", home.session(message.run).run(message.program))
    except MemoryError as error:
        return Reply("memory", str(error))
    except Exception as error:
        return Reply("failed", error)


def _settle(
    key: tuple[str, str], worker: Any, keys: list[Any], layout: Layout
) -> tuple[bool, int, int]:
    """Make the home from partitions in the worker's memory; False if they are not there any more.

    Also rows, and the bytes of the largest group of them.
    """
    if any(name not in worker.data for name in keys):
        return False, 0, 0
    home = Home([worker.data[name] for name in keys], layout, worker.state.nthreads)
    _HOMES[key] = home
    return True, home.n_samples, len(home.engines)
