"""Dense X on disk: vectors of length n in memory, rows read when they are needed.

Full passes go from the first span of rows to the last, and each thread reads the spans it works on.
Stochastic epochs read random spans, a buffer of several at a time, and visit the rows that were
drawn from them in shuffled order. A step then costs as much as in memory, and the disk sees long
reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel._threads import Team, thread_count
from sorel.engines.base import Engine, FloatArray, Plan, Spec
from sorel.engines.dense import DenseEngine
from sorel.engines.memory import shared_property
from sorel.engines.sampled import SampledEngine, step_numbers, systematic_sample
from sorel.engines.views import writable_view
from sorel.kernels import steps
from sorel.rows import RowSource

IntArray = NDArray[np.int64]

# Bytes of rows that are shuffled together, and spans that should be among them even if few rows are
# drawn from each: neighbours in a file often resemble each other.
_BUFFER_BYTES = 64 << 20
_BUFFER_SPANS = 8


class _Slices:
    """A source that is sliced like an array."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.shape = source.shape
        self.dtype = source.dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        return writable_view(self._source.read(start, stop))


class BlocksEngine(DenseEngine):
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

    solves_by_rows = products_are_cheap = False

    def __init__(self, X: RowSource, spec: Spec) -> None:
        self._source = X
        # Not DenseEngine's own, which wants all of X.
        SampledEngine.__init__(self, X, spec)
        self._X: Any = _Slices(X)
        self._by_rows, self._columns = True, None

    def stored(self) -> tuple[Any, Any] | None:
        return None

    def _share_rows(self) -> None:
        super()._share_rows()
        # One thread, too, takes the rows span by span.
        self._span_team = Team(self.n_samples, thread_count(self.spec.n_jobs))
        self._span_team.ranges = self._source.spans
        self._row_team = self._span_team

    @shared_property
    def _row_squares(self) -> FloatArray:
        out = np.empty(self.n_samples)

        def fill(start: int, stop: int) -> None:
            rows = self._X[start:stop]
            np.einsum("ij,ij->i", rows, rows, dtype=np.float64, out=out[start:stop])

        self._span_team.sweep(fill)
        if self.fit_intercept:
            out += 1.0
        return out

    def _copy_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        out = np.empty((len(rows), self.n_features), self._source.dtype)

        def gather(start: int, stop: int) -> None:
            first, last = np.searchsorted(rows, [start, stop])
            if last > first:
                out[first:last] = self._X[start:stop][rows[first:last] - start]

        self._span_team.sweep(gather)
        return DenseEngine(out, self.spec.for_rows(rows))

    # Reading all rows to copy some columns would cost as much as a Hessian of all of them.
    columns = Engine.columns
    descend = Engine.descend

    def _select(self, rows: NDArray[np.intp]) -> Any:
        # A span is read whole, whichever rows are wanted.
        return None

    # Stochastic epochs. Tables of single samples would need a row from anywhere at every step.

    batches = Engine.batches
    table = Engine.table
    table_dual = Engine.table_dual
    prospect_epoch = Engine.prospect_epoch
    saddle_epoch = Engine.saddle_epoch

    def epoch(
        self,
        point: Any,
        dual: Any,
        gradient: FloatArray,
        plan: Plan,
        rng: np.random.Generator,
        start: FloatArray | None = None,
        total: FloatArray | None = None,
    ) -> FloatArray:
        probability = self._probabilities(dual, plan)
        numbers = step_numbers(plan, self._drift(plan, gradient))
        W = self._by_output(point.w if start is None else start)
        sums = np.zeros(W.shape) if total is not None else W
        left = (plan.burn_in if total is not None else plan.steps) * plan.batch
        for rows, drawn in self._draw_spans(probability, plan, rng):
            cut = min(left, len(drawn))
            left -= cut
            scale = self._scales(dual, probability, drawn)
            for part, summed in ((slice(cut), False), (slice(cut, None), True)):
                some = drawn[part]
                steps.svrg_steps(
                    rows[part], self._targets[some], *self._formula,
                    self._slopes_of(point, some), scale[part], np.arange(len(some)), plan.batch,
                    W, sums, summed, *numbers,
                )  # fmt: skip
        self._give(probability)
        if total is not None:
            total += self._by_parameter(sums)
        return self._by_parameter(W)

    def minibatch_epoch(self, w: FloatArray, plan: Plan, rng: np.random.Generator) -> FloatArray:
        probability = self.spec.sample_weight
        if probability is None:
            probability = np.full(self.n_samples, 1.0 / self.n_samples)
        sigma = self.spec.risk.weights(plan.batch)
        numbers = step_numbers(plan, self._drift(plan, np.zeros(self.shape)))
        W = self._by_output(w)
        for rows, drawn in self._draw_spans(probability, plan, rng):
            steps.minibatch_steps(
                rows, self._targets[drawn], *self._formula, sigma,
                np.arange(len(drawn)), W, *numbers,
            )  # fmt: skip
        return self._by_parameter(W)

    def _draw_spans(
        self, probability: FloatArray, plan: Plan, rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Rows drawn with the given probabilities, in the order of the steps, with their numbers.

        They come a buffer at a time, each for a whole number of steps.
        """
        edges = np.array([*(start for start, _ in self._source.spans), self.n_samples])
        mass = np.add.reduceat(probability, edges[:-1])
        round_steps = max(1, self.n_samples // plan.batch)
        for done in range(0, plan.steps, round_steps):
            steps = min(round_steps, plan.steps - done)
            spans, counts = _share_steps(mass, steps, plan.batch, self.n_samples, rng)
            draws = counts * plan.batch
            for chosen in self._buffers(draws):
                yield self._fill(edges, spans[chosen], draws[chosen], probability, rng)

    def _buffers(self, draws: IntArray) -> Iterator[slice]:
        """Runs of spans whose draws fill the buffer."""
        row_bytes = self.n_features * self._source.dtype.itemsize
        begin, held = 0, 0
        for number, count in enumerate(draws.tolist(), start=1):
            held += count * row_bytes
            if held >= _BUFFER_BYTES or number == len(draws):
                yield slice(begin, number)
                begin, held = number, 0

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
        places = rng.permutation(len(drawn))
        tasks = []
        first = 0
        for span, count, offset in zip(
            spans.tolist(), draws.tolist(), rng.random(len(spans)).tolist(), strict=True
        ):
            start, stop = int(edges[span]), int(edges[span + 1])
            inside = systematic_sample(probability[start:stop], count, offset)
            place = places[first : first + count]
            drawn[place] = start + inside
            tasks.append((start, stop, inside, place))
            first += count
        rows = np.empty((len(drawn), self.n_features), self._source.dtype)

        def read(task: tuple[int, int, IntArray, IntArray]) -> None:
            start, stop, inside, place = task
            rows[place] = self._X[start:stop][inside]

        self._span_team.map(read, tasks)
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
