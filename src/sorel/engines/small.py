"""Newton steps of a small dense problem, with nothing between the compiled loops.

What is computed is what the engine's operations compute one by one, in a single call of
:func:`sorel.kernels.small.walk`: one operation, or all rounds and steps up to the next check. This
module keeps the working memory of a run, starts projections afresh where that is needed, and gives
the results their handles.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.engines.base import FloatArray, Settled
from sorel.engines.handles import MemoryDual
from sorel.kernels import small
from sorel.permutahedron.cores import Uniform
from sorel.rounds import (
    AFRESH,
    ALONE,
    APART,
    BLOCKS,
    BUDGET,
    CAUTION,
    DECIDE,
    ETA,
    EVALUATE,
    EXPECTATION,
    LEFT,
    N_LIMITS,
    N_PROGRESS,
    N_SCHEDULE,
    PASSES,
    PHASE,
    PROMISED,
    REMAINS,
    ROUNDING,
    ROUNDS,
    SEARCH,
    SIDE,
    STEP,
    TAKEN,
    VALUE,
    Pace,
    Rounds,
)

__all__ = ["SmallSteps", "by_columns"]


# Where a sort in the loop leaves too much to repair, one that leaves nothing takes its place. No
# search has more than so many fresh starts.
_MOST_STARTS = 2
_STABLE = 1


class End(NamedTuple):
    """Where a step ends, or several.

    Attributes
    ----------
    w, margins, losses : array
        The point.
    center : MemoryDual
        The centre of the round there.
    settled : Settled
        The augmented Lagrangian there.
    length, remains : float
        The part of the last step that was taken, and about what the next one will promise, where
        weights follow the ranks.
    """

    w: FloatArray
    margins: FloatArray
    losses: FloatArray
    center: Any
    settled: Settled
    length: float
    remains: float


class _Room(NamedTuple):
    """What a walk works on: see :func:`sorel.kernels.small.walk`."""

    places: FloatArray
    parameters: FloatArray
    blocks: NDArray[np.int32]


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
        self._no_blocks = np.full(n, -1, np.int32)
        factor = np.empty((size + 4, size))
        self._step = factor[size + 1]
        # Blocks have two items at least.
        self._work = (
            np.empty((small.N_VECTORS, n)),
            np.zeros((2, width)),
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
        # For operations that are asked for alone.
        self._alone = Rounds(
            np.zeros(N_SCHEDULE), np.zeros(len(Pace._fields)), np.zeros(N_LIMITS),
            np.zeros(N_PROGRESS), np.zeros(size),
        )  # fmt: skip

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
        room, progress = self._room(point, dual, center, gradient), self._begin(STEP, eta)
        room.places[1] = point.losses
        progress[BLOCKS], progress[CAUTION] = dual.n_blocks, caution
        progress[VALUE] = noise / ROUNDING
        end = self._finish(room, center, l2)
        return None if end is None else (end, float(progress[PROMISED]))

    def refine(self, point: Any, dual: Any, gradient: FloatArray, l2: float) -> End | None:
        """See :meth:`Engine.newton_point`."""
        room, progress = self._room(point, dual, dual, gradient), self._begin(STEP, 0.0)
        progress[AFRESH] = 1.0
        return self._finish(room, dual, l2)

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
        self._begin(SEARCH, eta)
        self._step[:] = delta
        self._numbers[:] = small.GO
        self._numbers[small.SLOPE_LOW], self._numbers[small.ENOUGH] = -descent, enough
        return self._finish(self._room(point, None, center, None), center, l2)

    def settle(self, point: Any, center: Any, eta: float) -> Settled | None:
        """See :meth:`Engine.settle`; None where the projection has no luck."""
        self._begin(EVALUATE, eta)
        self._numbers[:] = small.STAY
        end = self._finish(self._room(point, None, center, None), center, 0.0)
        return None if end is None else end.settled

    def walk(
        self, point: Any, dual: Any, center: Any, gradient: FloatArray, l2: float, rounds: Rounds
    ) -> tuple[End, bool] | None:
        """The end, and whether the augmented Lagrangian is known there: see :meth:`Engine.walk`."""
        room = self._room(point, dual, center, gradient)
        room.places[1] = point.losses
        progress, schedule = rounds.progress, rounds.schedule
        progress[BLOCKS], progress[PHASE], progress[LEFT] = dual.n_blocks, DECIDE, math.inf
        eta = schedule[ETA]
        self._go(room, rounds, l2)
        if progress[PASSES] == progress[ROUNDS] == 0.0 and schedule[ETA] == eta:
            return None
        if progress[ROUNDS] > 0.0:
            center = MemoryDual(room.places[6], None)
        # Without luck in the projection, nothing is known for the new centre or eta.
        return self._end(room, rounds, center), progress[PHASE] != EVALUATE

    def _room(self, point: Any, dual: Any, center: Any, gradient: FloatArray | None) -> _Room:
        """Places for this point and the next one; what is not given is not looked at."""
        room = _Room(
            np.empty((7, self._n)), np.empty((4, self._size)), np.empty((2, self._n), np.int32)
        )
        room.places[0], room.places[6], room.parameters[0] = point.margins, center.density, point.w
        if dual is not None:
            room.places[2], room.parameters[1] = dual.density, gradient
            room.blocks[0] = self._no_blocks if dual.block is None else dual.block
        return room

    def _begin(self, phase: int, eta: float) -> FloatArray:
        """The progress of one operation."""
        progress = self._alone.progress
        progress[:] = 0.0
        progress[PHASE], progress[ALONE] = phase, 1.0
        self._alone.schedule[ETA] = eta
        return progress

    def _finish(self, room: _Room, center: Any, l2: float) -> End | None:
        """The end of one operation; None without a step, or without luck in the projection."""
        if self._sorting is None and self._alone.schedule[ETA] == math.inf:
            # Ranks are for those who sort.
            return None
        if self._go(room, self._alone, l2) != small.ARRIVED:
            return None
        return self._end(room, self._alone, center)

    def _end(self, room: _Room, rounds: Rounds, center: Any) -> End:
        """The point that was reached."""
        progress, eta = rounds.progress, float(rounds.schedule[ETA])
        side = int(progress[SIDE])
        w, gradient = room.parameters[2 * side : 2 * side + 2]
        margins, losses, density = room.places[3 * side : 3 * side + 3]
        dual = center
        if eta > 0.0:
            dual = MemoryDual(density, None)
            dual.block, dual.n_blocks = room.blocks[side], int(progress[BLOCKS])
        settled = Settled(dual, float(progress[EXPECTATION]), float(progress[APART]), gradient)
        length, remains = float(progress[TAKEN]), float(progress[REMAINS])
        return End(w, margins, losses, center, settled, length, remains)

    def _go(self, room: _Room, rounds: Rounds, l2: float) -> int:
        """Walk, with a fresh start of the projection wherever one is needed."""
        core, threshold, start = self._core, self._core.threshold, self._start
        progress, schedule, usual = rounds.progress, rounds.schedule, 0
        if threshold is None:
            usual = core.moves()
        else:
            # Without an item to start from, and without bounds, the search stops at the target.
            start[small.PIVOT], start[small.TAU] = threshold.pivot, threshold.tau
        progress[BUDGET] = usual
        starts, last = 0, None
        while True:
            count = small.walk(
                *self._data, l2, self._d, self._levels, start, usual, self._sorting, self._fresh,
                *rounds, self._numbers, *room, *self._work,
            )  # fmt: skip
            if count != small.FRESH_START:
                break
            # Each trial of each search has starts of its own.
            mark = self._numbers[small.TRIALS], progress[PASSES], progress[ROUNDS], schedule[ETA]
            starts, last = starts + 1 if mark == last else 1, mark
            if starts > _MOST_STARTS:
                break
            target = room.places[5 - 3 * int(progress[SIDE])]
            if threshold is None:
                progress[BUDGET] = core.sort(target, _STABLE)
            else:
                reference, tau, below, above = threshold.bracket(target)
                start[:] = -1.0, tau, reference, below, above
        if threshold is not None:
            threshold.pivot, threshold.tau = int(start[small.PIVOT]), float(start[small.TAU])
            start[small.REFERENCE :] = 0.0
        return int(count)


def by_columns(X: Any, intercept: bool) -> FloatArray:
    """X^T in float64, with a row of ones for an intercept, and zeros that make the rows even."""
    n, d = X.shape
    size = d + intercept
    Xt = np.empty((-(-size // small.TOGETHER) * small.TOGETHER, n))
    Xt[:d] = X.T
    Xt[d:size] = 1.0
    Xt[size:] = 0.0
    return Xt
