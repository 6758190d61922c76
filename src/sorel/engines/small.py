"""Newton steps of a small dense problem, with nothing between the compiled loops.

What is computed is what the engine's operations compute one by one, most of it in a single call of
:mod:`sorel.kernels.small`. This module keeps the working memory of a run, sorts where that is
needed, and gives the results their handles.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sorel.engines.base import FloatArray, Settled
from sorel.engines.handles import MemoryDual
from sorel.engines.memory import NO_BLOCKS
from sorel.kernels import small
from sorel.permutahedron.cores import Uniform

__all__ = ["SmallSteps"]


# A search for a threshold that fails from its bracket has no hope, and an order neither.
_MOST_STARTS = 2

# Where each task begins: a step of length 1, and nothing known beyond it.
_STAY = np.array([0.0, 0.0, 0.0, 0.0, 0.0, small.STAY, math.inf, 0.0, 0.0, 0.0])
_GO, _STEP, _AFRESH = (
    np.array([1.0, 0.0, 0.0, 1.0, math.inf, task, math.inf, 0.0, 0.0, 0.0])
    for task in (small.GO, small.STEP, small.AFRESH)
)

# A place to start from: margins, parameters, gradient, densities, blocks and their number.
_Place = tuple[Any, Any, Any, Any, Any, int]


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
    decrease : float
        What its model promised.
    """

    w: FloatArray
    margins: FloatArray
    losses: FloatArray
    settled: Settled
    length: float
    decrease: float


class SmallSteps:
    """The steps of one run.

    Parameters
    ----------
    Xt : array
        X by columns, in float64.
    y : array
        The targets.
    code, delta
        The loss.
    core : Uniform
        The projection of the run.
    size : int
        Number of parameters: the columns, and perhaps an intercept.
    """

    def __init__(self, Xt: Any, y: Any, code: int, delta: float, core: Uniform, size: int) -> None:
        d, n = Xt.shape
        self._n, self._size, self._core = n, size, core
        self._data = (Xt, y, code, delta, np.full(1, 1.0 / n))
        steps = np.zeros((size + 4, size))
        self._given, self._end = steps[size + 1], steps[size + 3]
        # Blocks have two items at least.
        self._work = (
            np.zeros((small.N_VECTORS, n)),
            np.empty(n, np.uint32),
            np.empty((d + 3, small.TILE)),
            np.empty((size + 1, n // 2)),
            np.empty((size, size)),
            steps,
        )
        self._start, self._numbers = np.zeros(5), np.empty(len(_STAY))
        self._levels = self._sorting = None
        if core.threshold is None:
            self._sorting = core.sorting()
        else:
            self._levels = core.threshold.low, core.threshold.high, core.threshold.total

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
    ) -> End | None:
        """See :meth:`Engine.newton_step`."""
        self._numbers[:] = _STEP
        self._numbers[small.ENOUGH] = noise
        block = NO_BLOCKS if dual.block is None else dual.block
        place = point.margins, point.w, gradient, dual.density, block, dual.n_blocks
        return self._run(place, center, eta, caution, l2)

    def refine(self, point: Any, dual: Any, gradient: FloatArray, l2: float) -> End | None:
        """See :meth:`Engine.newton_point`."""
        self._numbers[:] = _AFRESH
        place = point.margins, point.w, gradient, dual.density, NO_BLOCKS, 0
        return self._run(place, dual, 0.0, 0.0, l2)

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
        self._numbers[:] = _GO
        self._numbers[small.SLOPE_LOW], self._numbers[small.ENOUGH] = -descent, enough
        self._given[:] = delta
        place = point.margins, point.w, point.w, center.density, NO_BLOCKS, 0
        return self._run(place, center, eta, 0.0, l2)

    def settle(self, point: Any, center: Any, eta: float) -> Settled | None:
        """See :meth:`Engine.settle`; None where the projection has no luck."""
        self._numbers[:] = _STAY
        place = point.margins, point.w, point.w, center.density, NO_BLOCKS, 0
        end = self._run(place, center, eta, 0.0, 0.0)
        return None if end is None else end.settled

    def _run(self, place: _Place, center: Any, eta: float, caution: float, l2: float) -> End | None:
        """Do what the numbers ask for; None without a step, or without luck in the projection."""
        n, core, threshold = self._n, self._core, self._core.threshold
        room, block, gradient = np.empty((3, n)), np.empty(n, np.int32), np.empty(self._size)
        numbers, start, moves = self._numbers, self._start, 0
        if threshold is None:
            moves = core.moves()
        else:
            # Without an item to start from, and without bounds, the search stops at the target.
            start[:] = threshold.pivot, threshold.tau, 0.0, 0.0, 0.0
        starts, trials = 0, -1.0
        while True:
            count = small.advance(
                *self._data, *place, center.density, eta, caution, l2, self._levels, start, moves,
                self._sorting, numbers, *self._work, room, block, gradient,
            )  # fmt: skip
            if count != small.FRESH_START:
                break
            if numbers[small.TRIALS] != trials:
                starts, trials = 0, numbers[small.TRIALS]
            starts += 1
            if starts > _MOST_STARTS:
                break
            if threshold is None:
                moves = core.sort(room[2])
            else:
                reference, tau, below, above = threshold.bracket(room[2])
                start[:] = -1.0, tau, reference, below, above
        if threshold is not None:
            threshold.pivot, threshold.tau = int(start[0]), float(start[1])
        if count < 0:
            return None
        dual = center
        if eta > 0.0:
            if threshold is None:
                core.note_order()
            dual = MemoryDual(room[2], None)
            dual.block, dual.n_blocks = block, count
        length, *_, expected, distance, decrease = numbers.tolist()
        settled = Settled(dual, expected, distance, gradient)
        return End(self._end.copy(), room[0], room[1], settled, length, decrease)
