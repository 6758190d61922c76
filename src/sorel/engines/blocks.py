"""Dense X on disk: vectors of length n in memory, rows read when they are needed.

Full passes go from the first span of rows to the last, and each thread reads the spans it works on.
Stochastic epochs read random spans, a buffer of several at a time, and visit the rows that were
drawn from them in shuffled order. A step then costs as much as in memory, and the disk sees long
reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sorel._lib.copies import shallow_copy
from sorel._lib.threads import Team
from sorel.engines.base import Engine, FloatArray, Plan, Spec
from sorel.engines.dense import DenseRows
from sorel.engines.matrix import RowMatrix
from sorel.engines.memory import MemoryEngine
from sorel.engines.rows import RowSource, source
from sorel.engines.stochastic import MemoryStochastic, systematic_sample

IntArray = NDArray[np.int64]

# Spans that should be among them even if few rows are drawn from each: neighbours in a file are
# often alike.
_BUFFER_SPANS = 8

# Copying some columns would cost as much as a Hessian of all of them, and steps on single samples
# of a table would need a row from anywhere at every one.
_OUT_OF_ORDER = ("columns", "batches", "table", "table_dual", "prospect_epoch", "saddle_epoch")


class _Slices:
    """A source that is sliced like an array."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.shape = source.shape
        self.dtype = source.dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        return self._source.read(start, stop)


class BlockRows(DenseRows):
    """Products with rows on disk: each thread, or one alone, takes them span by span."""

    in_memory = False

    def __init__(self, source: RowSource, intercept: bool) -> None:
        RowMatrix.__init__(self, source.shape, intercept)
        self.source = source
        self.form = _Slices(source)
        self._by_rows = True

    @property
    def array(self) -> RowSource:
        return self.source

    def shared(self, threads: int) -> Self:
        other = shallow_copy(self)
        other._threads, other._team = threads, Team(self.n, threads)
        other._team.ranges = self.source.spans
        return other

    def select(self, rows: NDArray[np.intp]) -> DenseRows | None:
        out = np.empty((len(rows), self.d), self.source.dtype)

        def gather(start: int, stop: int) -> None:
            first, last = np.searchsorted(rows, [start, stop])
            if last > first:
                out[first:last] = self.form[start:stop][rows[first:last] - start]

        self._sweep(gather)
        return DenseRows(out, self.intercept)


class BlocksEngine(MemoryEngine):
    """Engine for a :class:`sorel.rows.RowSource`.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.rows import MemmapRows
    >>> from sorel.engines import BlocksEngine
    >>> spec = sorel.Problem(np.eye(3), [1.0, 2.0, 5.0]).engine.spec
    >>> BlocksEngine(MemmapRows(np.eye(3)), spec).shape
    (3,)
    """

    def __init__(self, X: RowSource, spec: Spec) -> None:
        super().__init__(BlockRows(X, spec.fit_intercept), spec)

    def obstacle(self, operation: str) -> str | None:
        if operation in _OUT_OF_ORDER:
            return f"needs the operation {operation!r}, which {type(self).__name__} does not offer"
        return super().obstacle(operation)

    def columns(self, chosen: NDArray[np.intp]) -> Engine:
        self._lacking("columns")

    def stochastic(self) -> BlockStochastic:
        return BlockStochastic(self)


class BlockStochastic(MemoryStochastic):
    """Epochs that read random spans, a buffer of several at a time."""

    _rows: BlockRows

    def _shuffled(self, plan: Plan, rng: np.random.Generator) -> Any:
        engine = self._engine
        probability = engine.spec.sample_weight
        if probability is None:
            probability = np.full(engine.n_samples, 1.0 / engine.n_samples)
        for rows, drawn in self._draws(probability, plan, rng):
            yield rows, engine._targets[drawn], np.arange(len(drawn))

    def _draws(
        self, probability: FloatArray, plan: Plan, rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Rows drawn with the given probabilities, in the order of the steps, with their numbers.

        They come a buffer at a time, each for a whole number of steps.
        """
        n, row_bytes = self._engine.n_samples, self._rows.d * self._rows.source.dtype.itemsize
        edges = np.array([*(start for start, _ in self._rows.source.spans), n])
        mass = np.add.reduceat(probability, edges[:-1])
        round_steps = max(1, n // plan.batch)
        for done in range(0, plan.steps, round_steps):
            steps = min(round_steps, plan.steps - done)
            spans, counts = _share_steps(mass, steps, plan.batch, n, rng)
            buffers = -(-steps * plan.batch * row_bytes // source.BUFFER_BYTES)
            for chosen in np.array_split(np.arange(len(spans)), min(buffers, len(spans))):
                draws = counts[chosen] * plan.batch
                yield self._fill(edges, spans[chosen], draws, probability, rng)

    def _fill(
        self,
        edges: IntArray,
        spans: IntArray,
        draws: IntArray,
        probability: FloatArray,
        rng: np.random.Generator,
    ) -> tuple[NDArray[Any], IntArray]:
        """Draw rows from each of the spans, and read them in shuffled order."""
        drawn = np.empty(int(draws.sum()), np.int64)
        rows = np.empty((len(drawn), self._rows.d), self._rows.source.dtype)
        places = np.split(rng.permutation(len(drawn)), np.cumsum(draws)[:-1])

        def read(task: tuple[int, IntArray, float]) -> None:
            span, place, offset = task
            start, stop = int(edges[span]), int(edges[span + 1])
            inside = systematic_sample(probability[start:stop], len(place), offset)
            drawn[place] = start + inside
            rows[place] = self._rows.form[start:stop][inside]

        tasks = zip(spans.tolist(), places, rng.random(len(spans)).tolist(), strict=True)
        assert self._rows._team is not None
        self._rows._team.map(read, list(tasks))
        return rows, drawn


def _share_steps(
    mass: FloatArray, steps: int, batch: int, n_samples: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Spans to visit, in random order, and the number of steps for each.

    A span of probability P gets steps * P on average. All spans are visited if there is work for
    all; else as many as the steps can use, so that a short epoch does not read all of the data.
    """
    n_spans = len(mass)
    useful = max(-(-steps * batch * n_spans // n_samples), _BUFFER_SPANS)
    visits = steps if useful >= n_spans else min(useful, steps)
    drawn = systematic_sample(mass, visits, rng.random())
    # Each visit is worth the same number of steps, up to one; which get one more is left to chance.
    worth = np.full(visits, steps // visits)
    worth[rng.permutation(visits)[: steps % visits]] += 1
    spans, inverse = np.unique(drawn, return_inverse=True)
    counts = np.bincount(inverse, weights=worth).astype(np.int64)
    order = rng.permutation(len(spans))
    return spans[order], counts[order]
