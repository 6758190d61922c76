"""Newton steps of a small dense problem, with nothing between the compiled loops.

What is computed is what the engine's operations compute one by one, most of it in a single call of
:mod:`sorel.kernels.small`. This module keeps the working memory of a run, sorts where that is
needed, and gives the results their handles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sorel.engines.base import FloatArray, Settled
from sorel.engines.handles import MemoryDual
from sorel.kernels import small
from sorel.permutahedron.cores import Uniform
from sorel.rounds import (
    BLOCKS,
    BUDGET,
    DECIDE,
    ETA,
    EVALUATE,
    EXPECTATION,
    GAINED,
    LEFT,
    PASSES,
    PHASE,
    ROUNDS,
    SIDE,
    Rounds,
)

__all__ = ["SmallSteps", "by_columns"]


# A sort that leaves too much to repair is followed by one that leaves nothing.
_MOST_STARTS = 2
_STABLE = 1


class End(NamedTuple):
    """Where a step ends.

    Attributes
    ----------
    w, margins, losses : array
        The point.
    settled : Settled
        The augmented Lagrangian there.
    length : float
        The part of the step that was taken.
    """

    w: FloatArray
    margins: FloatArray
    losses: FloatArray
    settled: Settled
    length: float


class Walked(NamedTuple):
    """Where several steps end.

    Attributes
    ----------
    w, margins, losses : array
        The point.
    center : MemoryDual
        The centre of the round there.
    settled : Settled or None
        The augmented Lagrangian there, where it is known.
    """

    w: FloatArray
    margins: FloatArray
    losses: FloatArray
    center: Any
    settled: Settled | None


class SmallSteps:
    """The steps of one run.

    Parameters
    ----------
    Xt : array
        X by columns in float64, that of an intercept included, and zeros: see :func:`by_columns`.
    y : array
        The targets.
    code, delta
        The loss.
    core : Uniform
        The projection of the run.
    d, size : int
        Number of coefficients, and of parameters: those, and perhaps an intercept.
    """

    def __init__(
        self, Xt: Any, y: Any, code: int, delta: float, core: Uniform, d: int, size: int
    ) -> None:
        width, n = Xt.shape
        self._n, self._d, self._size, self._core = n, d, size, core
        self._data = (Xt, y, code, delta, np.full(1, 1.0 / n))
        self._table, self._wide = np.empty((small.N_VECTORS, n)), np.zeros((2, width))
        self._no_blocks = np.full(n, -1, np.int32)
        factor = np.empty((size + 4, size))
        self._step, self._end = factor[size + 1], factor[size + 3]
        # Blocks have two items at least.
        self._work = (
            self._table,
            np.empty(n, np.uint32),
            np.zeros((width + 1, small.TILE)),
            np.empty((width + 1, n // 2)),
            np.empty((width, width)),
            factor,
        )
        self._start, self._numbers = np.zeros(5), np.empty(len(small.STAY))
        self._levels = self._sorting = self._fresh = None
        if core.threshold is None:
            self._sorting, self._fresh = core.sorting()
        else:
            self._levels = core.threshold.low, core.threshold.high, core.threshold.total
        self._nowhere, self._origin = np.zeros(n), np.zeros(size)

    def step(
        self,
        point: Any,
        dual: Any,
        center: Any,
        eta: float,
        gradient: FloatArray,
        l2: float,
        caution: float,
        noise: float,
    ) -> tuple[End, float] | None:
        """The end of the step, and what its model promises: see :meth:`Engine.newton_step`."""
        block = self._no_blocks if dual.block is None else dual.block
        descent, decrease = small.newton_step(
            *self._data, point.margins, point.w, gradient, dual.density, block, dual.n_blocks, eta,
            caution, l2, self._d, *self._work,
        )  # fmt: skip
        if not descent > 0.0:
            return None
        enough = 0.5 * max(descent, noise)
        end = self.search(point, center, eta, self._step, descent, enough, l2)
        return None if end is None else (end, decrease)

    def refine(self, point: Any, dual: Any, gradient: FloatArray, l2: float) -> End | None:
        """See :meth:`Engine.newton_point`."""
        descent, _ = small.newton_step(
            *self._data, point.margins, point.w, gradient, dual.density, self._no_blocks, 0, 0.0,
            0.0, l2, self._d, *self._work,
        )  # fmt: skip
        if math.isnan(descent):
            return None
        # From margins of 0, so that those at the end are computed from X.
        self._numbers[:] = small.GO
        return self._run(self._nowhere, self._origin, self._end, dual, 0.0, l2)

    def search(
        self,
        point: Any,
        center: Any,
        eta: float,
        delta: FloatArray,
        descent: float,
        enough: float,
        l2: float,
    ) -> End | None:
        """See :meth:`Engine.search`."""
        self._numbers[:] = small.GO
        self._numbers[small.SLOPE_LOW], self._numbers[small.ENOUGH] = -descent, enough
        return self._run(point.margins, point.w, delta, center, eta, l2)

    def settle(self, point: Any, center: Any, eta: float) -> Settled | None:
        """See :meth:`Engine.settle`; None where the projection has no luck."""
        if eta > 0.0 and self._levels is None and not self._core.moves():
            # Nothing is known yet, and the weights at the start are nearly alike.
            self._core.sort(point.losses, 0)
        self._numbers[:] = small.STAY
        end = self._run(point.margins, point.w, point.w, center, eta, 0.0)
        return None if end is None else end.settled

    def walk(
        self, point: Any, dual: Any, center: Any, gradient: FloatArray, l2: float, rounds: Rounds
    ) -> Walked | None:
        """See :meth:`Engine.walk`."""
        n, core = self._n, self._core
        places, parameters = np.empty((7, n)), np.empty((4, self._size))
        places[0], places[1], places[2] = point.margins, point.losses, dual.density
        places[6] = center.density
        parameters[0], parameters[1] = point.w, gradient
        blocks = np.empty((2, n), np.int32)
        blocks[0] = self._no_blocks if dual.block is None else dual.block
        progress, schedule = rounds.progress, rounds.schedule
        usual = core.moves() if core.threshold is None else 0
        progress[SIDE], progress[BLOCKS], progress[PHASE] = 0.0, dual.n_blocks, DECIDE
        progress[LEFT] = math.inf
        eta = schedule[ETA]

        def go_on(moves: int) -> int:
            progress[BUDGET] = moves
            return small.walk(
                *self._data, l2, self._d, self._levels, self._start, usual, self._sorting,
                self._fresh, rounds.limits, schedule, rounds.pace, progress, self._numbers, places,
                parameters, rounds.reach, blocks, self._table, self._wide, *self._work[1:],
            )  # fmt: skip

        def where() -> tuple[Any, FloatArray]:
            mark = self._numbers[small.TRIALS], progress[PASSES], progress[ROUNDS], schedule[ETA]
            return mark, places[5 - 3 * int(progress[SIDE])]

        self._sorted_anew(go_on, where)
        if progress[PASSES] == progress[ROUNDS] == 0.0 and schedule[ETA] == eta:
            return None
        side = int(progress[SIDE])
        w, gradient = parameters[2 * side], parameters[2 * side + 1]
        margins, losses, density = places[3 * side : 3 * side + 3]
        if progress[ROUNDS] > 0.0:
            center = MemoryDual(places[6], None)
        if progress[PHASE] == EVALUATE:
            # Without luck in the projection, nothing is known for the new centre or eta.
            return Walked(w, margins, losses, center, None)
        dual = MemoryDual(density, None)
        dual.block, dual.n_blocks = blocks[side], int(progress[BLOCKS])
        distance = 2.0 * schedule[ETA] * progress[GAINED]
        settled = Settled(dual, float(progress[EXPECTATION]), float(distance), gradient)
        return Walked(w, margins, losses, center, settled)

    def _run(
        self,
        margins: FloatArray,
        w: FloatArray,
        step: FloatArray,
        center: Any,
        eta: float,
        l2: float,
    ) -> End | None:
        """Search as the numbers say; None without a step, or without luck in the projection."""
        n = self._n
        room, block, gradient = np.empty((3, n)), np.empty(n, np.int32), np.empty(self._size)
        numbers = self._numbers
        count = self._sorted_anew(
            lambda moves: small.search(
                *self._data, margins, w, step, center.density, eta, l2, self._d, self._levels,
                self._start, moves, self._sorting, self._fresh, numbers, self._table, self._wide,
                room, block, gradient,
            ),
            lambda: (numbers[small.TRIALS], room[2]),
        )  # fmt: skip
        if count < 0:
            return None
        dual = center
        if eta > 0.0:
            dual = MemoryDual(room[2], None)
            dual.block, dual.n_blocks = block, count
        length, *_, expected, distance = numbers.tolist()
        settled = Settled(dual, expected, distance, gradient)
        # Most steps are taken whole, and a product more is a call more.
        if length > 0.0:
            w = w + step if length == 1.0 else w + length * step
        return End(w, room[0], room[1], settled, length)

    def _sorted_anew(
        self, search: Callable[[int], int], where: Callable[[], tuple[Any, FloatArray]]
    ) -> int:
        """What a search returns, given the moves per item that a repair of the order may take.

        Where it asks for a fresh start of the projection it is called again. Then `where` tells how
        far it had come, and what it was to project.
        """
        core, threshold, start, moves = self._core, self._core.threshold, self._start, 0
        if threshold is None:
            moves = core.moves()
        else:
            # Without an item to start from, and without bounds, the search stops at the target.
            start[small.PIVOT], start[small.TAU] = threshold.pivot, threshold.tau
        starts, last = 0, None
        while True:
            count = search(moves)
            if count != small.FRESH_START:
                break
            mark, target = where()
            starts, last = starts + 1 if mark == last else 1, mark
            if starts > _MOST_STARTS:
                break
            if threshold is None:
                moves = core.sort(target, starts - 1 if self._fresh is None else _STABLE)
            else:
                reference, tau, below, above = threshold.bracket(target)
                start[:] = -1.0, tau, reference, below, above
        if threshold is not None:
            threshold.pivot, threshold.tau = int(start[small.PIVOT]), float(start[small.TAU])
            if starts > 0:
                start[small.REFERENCE :] = 0.0
        return count


def by_columns(X: Any, intercept: bool) -> FloatArray:
    """X^T in float64, with a row of ones for an intercept, and zeros that make the rows even."""
    n, d = X.shape
    size = d + intercept
    Xt = np.empty((-(-size // small.TOGETHER) * small.TOGETHER, n))
    Xt[:d] = X.T
    Xt[d:size] = 1.0
    Xt[size:] = 0.0
    return Xt
