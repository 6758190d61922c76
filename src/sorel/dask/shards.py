"""What runs on a worker: its rows, and the operations of an engine on them.

A worker holds one :class:`Home` for each data set (engines in memory over its partitions) and in it
one :class:`Session` for each run (points, weightings and directions, known by numbers). The driver
sends a list of operations, all of which are carried out in one go in the worker's own thread pool,
and gets what they returned: sums over the rows of this worker, of a size that does not depend on
how many there are.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import sorel._core as _core
from sorel.dask import bins
from sorel.engines import DenseEngine, SparseEngine, Spec
from sorel.engines.curvature import OneMargin, SeveralMargins
from sorel.engines.memory import MemoryDual, MemoryEngine
from sorel.files.fingerprints import fingerprint_array, fingerprint_matrix
from sorel.problem.risks import FloatArray, Mean

# Bytes up to which partitions are joined, which copies them: many small ones would cost more in
# calls than in arithmetic.
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
    spec : Spec
        That of the problem, without targets and sample weights.
    n_samples : int
        Rows of all workers.
    total_weight : float or None
        Sum of all sample weights; None where they are all alike.
    class_weight : array or None
        A weight for each class.
    means : tuple or None
        Means of X and y that are taken away.
    """

    spec: Spec
    n_samples: int
    total_weight: float | None
    class_weight: FloatArray | None = None
    means: tuple[FloatArray, float] | None = None


class Home:
    """The rows of one worker, in engines."""

    def __init__(self, blocks: list[Partition], layout: Layout, n_jobs: int) -> None:
        self.layout = layout
        self.blocks = blocks
        self.engines = [self._engine(group, n_jobs) for group in _groups(blocks)]
        self.sessions: dict[str, Session] = {}

    def _engine(self, group: list[Partition], n_jobs: int) -> MemoryEngine:
        layout, spec = self.layout, self.layout.spec
        X = group[0].X if len(group) == 1 else _stacked([block.X for block in group])
        y = np.concatenate([block.y for block in group])
        if layout.means is not None:
            X, y = X - layout.means[0], y - layout.means[1]
        weight = np.ones(len(y))
        if group[0].sample_weight is not None:
            weight = np.concatenate([np.asarray(block.sample_weight) for block in group])
        targets: NDArray[Any] = y
        if spec.classes is None:
            targets = y - spec.offset
        else:
            targets = np.searchsorted(spec.classes, y)
            if layout.class_weight is not None:
                weight = weight * layout.class_weight[targets]
            if spec.n_outputs == 1:
                targets = np.where(targets == 1, 1.0, -1.0)
        # Weights sum to 1 over all workers.
        omega = None if layout.total_weight is None else weight / layout.total_weight
        # Risks are taken over all workers.
        spec = replace(spec, targets=targets, risk=Mean(), sample_weight=omega, n_jobs=n_jobs)
        kind = SparseEngine if scipy.sparse.issparse(X) else DenseEngine
        engine = kind(X, spec)
        if omega is None:
            engine._omega = np.full(1, 1.0 / layout.n_samples)
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
        size += matrix_bytes(block.X)
    return groups


def matrix_bytes(X: Any) -> int:
    """Bytes of the entries of X."""
    return int(X.data.nbytes if scipy.sparse.issparse(X) else X.nbytes)


def _stacked(parts: list[Any]) -> Any:
    if scipy.sparse.issparse(parts[0]):
        return scipy.sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


class Ref(int):
    """The number by which driver and workers know a point, a weighting and the like."""


class ShardDual(MemoryDual):
    """A weighting that a projection made, and how it moves with the losses.

    Attributes
    ----------
    block : array of int32
        The block of each sample; -1 where its weight does not move.
    follow : array
        omega_i times the part of a change that its density follows, less the mean of the block.
    """

    __slots__ = ("block", "follow")

    def __init__(self, density: FloatArray, block: NDArray[np.int32], follow: FloatArray) -> None:
        super().__init__(density)
        self.block, self.follow = block, follow


class _Binned(NamedTuple):
    """A target whose samples wait for the weights of their bins."""

    places: NDArray[np.int32]
    used: NDArray[np.intp]


def added(parts: Sequence[Any]) -> Any:
    """The sum of what parts of the rows return: numbers, arrays, or tuples of these."""
    if isinstance(parts[0], tuple):
        return tuple(sum(column) for column in zip(*parts, strict=True))
    return sum(parts)


class Session:
    """Points, weightings and directions of one run; every public method is an operation."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._engines = [engine.for_run() for engine in home.engines]
        first, lengths = self._engines[0], [engine.n_samples for engine in self._engines]
        self._n, self._cuts = sum(lengths), np.cumsum(lengths)[:-1]
        self._weighted, self._omega = first._weighted, first._omega
        if self._weighted:
            self._omega = np.concatenate([engine._omega for engine in self._engines])
        # For each number what the engines made; or, for the time of a projection, its target.
        self._kept: dict[int, Any] = {}

    def run(self, program: list[tuple[Any, ...]]) -> list[Any]:
        """Carry out operations, and return what they returned."""
        with np.errstate(over="ignore", invalid="ignore"), self._engines[0].working():
            return [getattr(self, name)(*args) for name, *args in program]

    # Operations of the engines, by name.

    def _each(self, operation: str, args: tuple[Any, ...]) -> list[Any]:
        """What every engine returns for its own part of what the arguments refer to."""
        return [
            getattr(engine, operation)(
                *(self._kept[arg][i] if isinstance(arg, Ref) else arg for arg in args)
            )
            for i, engine in enumerate(self._engines)
        ]

    def make(self, number: Ref, operation: str, *args: Any) -> None:
        """Keep what the engines make under a number."""
        self._kept[number] = self._each(operation, args)

    def total(self, operation: str, *args: Any) -> Any:
        return added(self._each(operation, args))

    def rows(self, operation: str, *args: Any) -> NDArray[Any]:
        """What the engines return, an entry for each row."""
        return np.concatenate(self._each(operation, args))

    def copy(self, number: Ref, other: Ref) -> None:
        self._kept[number] = self._kept[other]

    def free(self, numbers: list[int]) -> None:
        """Forget what is known by these numbers."""
        for number in numbers:
            self._kept.pop(number, None)

    # Facts about the data.

    def column_scale(self) -> FloatArray:
        return np.max(self._each("column_scale", ()), axis=0)

    def fingerprints(self) -> list[tuple[str, str, str]]:
        """Of each partition of this worker, in the order of the driver's list."""
        return [
            (
                fingerprint_matrix(X),
                fingerprint_array(y.astype(str) if y.dtype == object else y),
                "none" if weight is None else fingerprint_array(weight),
            )
            for X, y, weight in self._home.blocks
        ]

    # Losses.

    def _losses(self, point: Ref) -> FloatArray:
        return np.concatenate([part.losses for part in self._kept[point]])

    def scores(self, point: Ref, rows: int) -> tuple[NDArray[Any], ...]:
        """Margins, targets and weights of about so many rows, evenly spread."""
        stride = max(1, -(-self._n // rows))
        margins = np.concatenate([part.margins for part in self._kept[point]])
        targets = np.concatenate([engine.y for engine in self._engines])
        weights = np.broadcast_to(self._omega, (self._n,))
        return margins[::stride], targets[::stride], weights[::stride]

    def sums(self, point: Ref, center: float) -> tuple[float, ...]:
        """Weighted sums of l, |l|, |l - center| and l^2."""
        values = self._losses(point)
        sizes = values, np.abs(values), np.abs(values - center), values**2
        return tuple(float(np.sum(self._omega * size)) for size in sizes)

    def rounding(self, point: Ref, dual: Ref) -> FloatArray:
        """Sums over the rows that errors are measured by; of the last two the largest."""
        facts = np.array(self._each("rounding", (point, dual)))
        # Errors of weights are independent of each other.
        facts[:, 1] **= 2
        return np.concatenate([facts[:, :5].sum(axis=0), facts[:, 5:].max(axis=0)])

    # Targets of a projection: densities of all rows of this worker.

    def losses_as_target(self, number: Ref, point: Ref) -> None:
        self._kept[number] = self._losses(point)

    def weights_as_target(self, number: Ref, weights: FloatArray) -> None:
        """Densities of the weights that a user gave."""
        omega = np.broadcast_to(self._omega, (self._n,))
        self._kept[number] = np.divide(weights, omega, out=np.zeros(self._n), where=omega > 0.0)

    def target(
        self, number: Ref, dual: Ref, point: Ref, eta: float, previous: Ref, theta: float
    ) -> None:
        """q + eta [(1 + theta) l - theta l_prev]."""
        out = np.empty(self._n)
        parts = (self._kept[dual], self._kept[point], self._kept[previous], self._split(out))
        for center, here, there, part in zip(*parts, strict=True):
            _core.ascent_target(center.density, here.losses, there.losses, eta, theta, part)
        self._kept[number] = out

    def _split(self, array: Any) -> list[NDArray[Any]]:
        """The parts of an array that belong to the engines."""
        return np.split(array, self._cuts)

    def _keep(
        self, number: Ref, density: FloatArray, block: NDArray[np.int32], pull: FloatArray | float
    ) -> None:
        """Put a weighting into the place of its target."""
        follow = np.where(block >= 0, self._omega * pull, 0.0)
        parts = [self._split(array) for array in (density, block, follow)]
        self._kept[number] = list(map(ShardDual, *parts))

    # Two levels: the search for a threshold.

    def sketch(self, number: Ref) -> tuple[FloatArray, float]:
        """Some values of a target, in ascending order, and the weight that they stand for."""
        keys = self._kept[number]
        some = np.sort(keys[:: max(1, self._n // (4 * _SKETCH))])
        places = np.linspace(0, len(some) - 1, min(len(some), _SKETCH)).astype(np.int64)
        return some[places], float(np.broadcast_to(self._omega, (self._n,)).sum())

    def level_sums(
        self, number: Ref, reference: float, tau: float, low: float, high: float
    ) -> tuple[float, ...]:
        # Scaled to mean 1 over all workers, as the search for a threshold expects it.
        weight = self._omega * self._home.layout.n_samples if self._weighted else None
        sums: tuple[float, ...] = _core.level_sums(
            self._kept[number], weight, reference, tau, low, high
        )
        return sums

    def nearest(
        self, number: Ref, reference: float, tau: float, low: float, above: bool
    ) -> float | None:
        keys = self._kept[number]
        place = _core.nearest(keys, reference, tau, low, above)
        return None if place < 0 else float(keys[place])

    def clip(self, number: Ref, reference: float, tau: float, low: float, high: float) -> None:
        """Turn a target into the weighting of this threshold."""
        density, block = self._kept[number], np.empty(self._n, np.int32)
        _core.fill_clipped(density, None, reference, tau, low, high, density, block)
        self._keep(number, density, block, 1.0)

    # Two levels: the worst case, and the risk.

    def ranks(
        self, point: Ref, least: float, most: float
    ) -> tuple[float, float, tuple[FloatArray, FloatArray]]:
        """Losses above `least` up to `most` in ascending order, and their weights.

        Where there are many, the largest of groups and the weights of these. Before them, the
        weight up to `least`, and the largest weight of a group; 0 where there are none.
        """
        values, omega = self._losses(point), np.broadcast_to(self._omega, (self._n,))
        below, inside = values <= least, (values > least) & (values <= most)
        values, weight = values[inside], omega[inside]
        if self._weighted:
            order = np.argsort(values)
            values, weight = values[order], weight[order]
        else:
            values.sort()
        stride = max(1, -(-len(values) // _SKETCH))
        starts = np.arange(0, len(values), stride)
        masses = np.add.reduceat(weight, starts) if len(starts) else weight
        last = np.minimum(starts + stride, len(values)) - 1
        slack = float(masses.max()) if stride > 1 else 0.0
        return float(np.sum(omega[below])), slack, (values[last], masses)

    def masses(self, point: Ref, threshold: float) -> tuple[float, ...]:
        """The weights of losses below a threshold, at it and above it."""
        values, omega = self._losses(point), np.broadcast_to(self._omega, (self._n,))
        sides = values < threshold, values == threshold, values > threshold
        return tuple(float(np.sum(omega[side])) for side in sides)

    def jump(
        self, number: Ref, point: Ref, threshold: float, low: float, middle: float, high: float
    ) -> None:
        """The weighting of three densities: below a threshold, at it and above it."""
        values = self._losses(point)
        density = np.where(values > threshold, high, np.where(values < threshold, low, middle))
        self._kept[number] = list(map(MemoryDual, self._split(density)))

    def short_of(
        self, point: Ref, dual: Ref | None, threshold: float, low: float, high: float
    ) -> tuple[float, float]:
        """The weighted sum of max((low - q) (l - t), (high - q) (l - t)), and the mass of q."""
        density: Any = np.zeros(self._n)
        if dual is not None:
            density = np.concatenate([part.density for part in self._kept[dual]])
        above = self._losses(point) - threshold
        lacking = np.where(above > 0.0, high - density, low - density) * above
        return float(np.sum(self._omega * lacking)), float(np.sum(self._omega * density))

    # Other spectra: bins.

    def _fill(self, keys: FloatArray, edges: FloatArray) -> Any:
        return bins.fill(keys, edges, self._omega, self._weighted)

    def collapse(self, number: Ref, count: int, exact: bool = False) -> bins.Bins:
        """Bins of a target, whose samples wait for the weights of their bins."""
        keys = self._kept[number]
        edges = np.unique(keys)[1:]
        if not exact:
            edges = bins.choose_edges(keys, count, self._home.layout.spec.risk)
        places, found, used = self._fill(keys, edges)
        self._kept[number] = _Binned(places, used)
        return found

    def spread(self, number: Ref, levels: FloatArray, blocks: Any, pulls: FloatArray) -> None:
        """Turn a target into the weighting of its bins."""
        places, used = self._kept[number]
        size = int(used[-1]) + 1
        by_bin, block_of, pull = np.zeros(size), np.full(size, -1, np.int32), np.zeros(size)
        by_bin[used], block_of[used], pull[used] = levels, blocks, pulls
        density, block = np.empty(self._n), np.empty(self._n, np.int32)
        _core.spread_bins(places, by_bin, block_of, density, block)
        self._keep(number, density, block, pull[places])

    def loss_bins(self, point: Ref, dual: Ref | None, count: int) -> tuple[bins.Bins, Any]:
        """Bins of the losses, and what a weighting holds in them."""
        values = self._losses(point)
        edges = bins.choose_edges(values, count, self._home.layout.spec.risk)
        places, found, used = self._fill(values, edges)
        if dual is None:
            return found, None
        low = np.zeros(len(edges) + 1)
        low[used] = found.low
        held, moment = np.zeros((2, len(low)))
        density = np.concatenate([part.density for part in self._kept[dual]])
        _core.held_by_bins(values, places, density, self._omega, self._weighted, low, held, moment)
        return found, (held[used], moment[used])

    # Second derivatives.

    def curvature(self, number: Ref, point: Ref, dual: Ref, eta: float, damping: float) -> None:
        kind = OneShard if self._engines[0].n_outputs == 1 else SeveralShard
        parts = zip(self._engines, self._kept[point], self._kept[dual], strict=True)
        self._kept[number] = [kind(*part, eta, damping) for part in parts]

    def diagonal(self, number: Ref, n_blocks: int) -> Any:
        """The diagonal without means of blocks, the sums that make these, and rows with a say."""
        return added(
            [
                (part.diagonal(), *part.block_sums(n_blocks), part.share * part._engine.n_samples)
                for part in self._kept[number]
            ]
        )

    def hessian(self, number: Ref, share: float | None, n_blocks: int) -> Any:
        """The Hessian of these rows without means of blocks, and the sums that make these."""
        return added([part.hessian(share, n_blocks) for part in self._kept[number]])

    def product(self, number: Ref, v: FloatArray) -> Any:
        return added([part.product(v) for part in self._kept[number]])


class _Shard:
    """What one margin and several have in common: sums over the blocks of all workers."""

    _engine: MemoryEngine
    _point: Any

    def _move(self, dual: MemoryDual, eta: float) -> None:
        """Take note of how weights follow losses, where they do."""
        n = self._engine.n_samples
        self._blocks, self._follow = np.full(n, -1, np.int32), np.zeros(n)
        if eta > 0.0:
            assert isinstance(dual, ShardDual)
            self._blocks, self._follow = dual.block, dual.follow
        self._pull = eta * self._follow

    def block_sums(
        self, n_blocks: int, factor: FloatArray | float = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Sums of follow phi' x and of follow over the blocks, for rows counted `factor` times."""
        engine, block, follow = self._engine, self._blocks, self._follow * factor
        inside = block >= 0
        totals = np.bincount(block[inside], follow[inside], n_blocks).astype(np.float64)
        slopes = self._point.slopes.reshape(engine.n_samples, -1)
        parts = [
            engine._rows.block_sums(block, 0, n_blocks, follow * slope)
            for slope in np.ascontiguousarray(slopes.T)
        ]
        return np.dstack(parts).reshape(n_blocks, engine.size), totals


class OneShard(_Shard, OneMargin):
    """The Hessian of some rows without the means of blocks, which other workers share."""

    def __init__(
        self, engine: MemoryEngine, point: Any, dual: MemoryDual, eta: float, damping: float
    ) -> None:
        super().__init__(engine, point, dual, 0.0, damping)
        self._move(dual, eta)
        self._h += self._pull * point.slopes**2

    def hessian(self, share: float | None, n_blocks: int) -> tuple[FloatArray, ...]:
        """The matrix, from a share of the rows where that pays, and the sums over the blocks."""
        engine, h, factor = self._engine, self._h, None
        if share is not None:
            n_rows = math.ceil(share * engine.n_samples)
            h, factor = self._sample(n_rows, self._blocks, n_blocks)
        return engine._rows.gram(h), *self.block_sums(n_blocks, 1.0 if factor is None else factor)


class SeveralShard(_Shard, SeveralMargins):
    """The same for the multinomial loss."""

    def __init__(
        self, engine: MemoryEngine, point: Any, dual: MemoryDual, eta: float, damping: float
    ) -> None:
        super().__init__(engine, point, dual, 0.0)
        self._move(dual, eta)

    def _active(self) -> NDArray[np.bool_]:
        return super()._active() | (self._blocks >= 0)

    def product(self, v: FloatArray) -> FloatArray:
        slopes = self._own(self._point.slopes)
        change = np.empty(slopes.shape)
        self._rows.margins(np.ascontiguousarray(v), change)
        moved = self._own(self._pull) * np.einsum("ik,ik->i", slopes, change)
        _core.apply_softmax_curvature(*self._parts(), np.empty(0), 0.0, *self._own_weights, change)
        return self._rows.adjoint(change + moved[:, None] * slopes)

    def _pair(self, a: int, b: int) -> FloatArray:
        slopes = self._point.slopes
        return super()._pair(a, b) + self._pull * slopes[:, a] * slopes[:, b]

    def hessian(self, share: float | None, n_blocks: int) -> tuple[FloatArray, ...]:
        """The matrix, always from all rows, and the sums over the blocks."""
        return self.matrix(), *self.block_sums(n_blocks)


# What a worker process holds: in a cluster of threads, several workers share it.
_HOMES: dict[tuple[str, str], Home] = {}


class ForgottenError(Exception):
    """The worker knows of no such data."""


class Message(NamedTuple):
    """What the driver sends.

    Attributes
    ----------
    data, run : str
        Which home and which session it is for.
    program : list
        Operations of :class:`Session`, with their arguments; or "place" or "leave" alone.
    ended : list of str
        Runs that are over.
    """

    data: str
    run: str
    program: list[tuple[Any, ...]]
    ended: list[str]


async def answer(message: Message, dask_worker: Any) -> Any:
    """Carry out a message in the threads of the worker, so that its event loop stays awake."""
    loop = asyncio.get_running_loop()
    executor = dask_worker.executors["default"]
    return await loop.run_in_executor(executor, _act, message, dask_worker)


def _act(message: Message, worker: Any) -> Any:
    key = worker.address, message.data
    name, *args = message.program[0]
    if name == "place":
        return _place(key, worker, *args)
    if name == "leave":
        return _HOMES.pop(key, None) is not None
    if key not in _HOMES:
        raise ForgottenError(message.data)
    home = _HOMES[key]
    for run in message.ended:
        home.sessions.pop(run, None)
    return home.session(message.run).run(message.program)


def _place(key: tuple[str, str], worker: Any, names: list[Any], layout: Layout) -> bool:
    """Make the home from partitions in the worker's memory; False if some are not there."""
    if any(name not in worker.data for name in names):
        return False
    _HOMES[key] = Home([worker.data[name] for name in names], layout, worker.state.nthreads)
    return True
