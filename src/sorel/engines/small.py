"""Newton steps of a small dense problem, with nothing between the compiled loops.

What is computed is what the engine's operations compute one by one, most of it in a single call of
:mod:`sorel.kernels.small`. This module keeps the working memory of a run, sorts where that is
needed, and gives the results their handles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sorel.engines.base import FloatArray, Settled
from sorel.engines.handles import MemoryDual
from sorel.engines.memory import NO_BLOCKS
from sorel.kernels import dense, losses, small
from sorel.permutahedron.cores import Uniform

__all__ = ["SmallSteps"]


# A sort that leaves too much to repair is followed by one that leaves nothing.
_MOST_STARTS = 2


class SmallSteps:
    """The steps of one run.

    Parameters
    ----------
    X : array
        By rows.
    y : array
        The targets.
    code, delta
        The loss.
    core : Uniform
        The projection of the run.
    size : int
        Number of parameters: the columns, and perhaps an intercept.
    """

    def __init__(self, X: Any, y: Any, code: int, delta: float, core: Uniform, size: int) -> None:
        n = len(y)
        self._n, self._size, self._core = n, size, core
        self._data = (X, y, code, delta, np.full(1, 1.0 / n))
        self._work = (
            np.empty(n),
            np.empty((size, dense.FEW_TILE)),
            np.empty((size + 1, dense.FEW_TILE)),
        )
        self._change, self._still = np.empty(n), np.zeros(size)
        self._start = np.zeros(5)
        self._projection: tuple[Any, Any, Any, Any, Any, Any, Any, Any]
        if core.threshold is None:
            self._projection = (None, None, *core.sorting())
        else:
            levels = (core.threshold.low, core.threshold.high, core.threshold.total)
            self._projection = (levels, self._start, None, None, None, None, None, None)

    def hessian(self, point: Any, dual: Any, eta: float, caution: float) -> FloatArray:
        """See :meth:`Engine.hessian`."""
        X, y, code, delta, omega = self._data
        size, margins, block = self._size, point.margins, dual.block
        if block is None or dual.n_blocks == 0:
            block, eta = NO_BLOCKS, 0.0
        h, tile, scaled = self._work
        out = np.zeros((size, size))
        losses.augmented_curvature(
            code, delta, y, margins, dual.density, block, eta, caution, omega, False, h
        )
        dense.gram_few(X, h, tile, scaled, out)
        if eta > 0.0:
            sums = np.zeros((dual.n_blocks, size + 1))
            losses.subtract_block_means(
                X, code, delta, y, margins, block, sums, eta, omega, False, out
            )
        return out

    def search(
        self,
        point: Any,
        center: Any,
        eta: float,
        delta: FloatArray,
        descent: float,
        enough: float,
        l2: float,
    ) -> tuple[FloatArray, Settled, float] | None:
        """Margins and losses at the end of the step, the rest, and its length.

        See :meth:`Engine.search`.
        """
        numbers = np.array((1.0, 0.0, -descent, 1.0, math.inf, -1.0, 0.0, 0.0))
        found = self._run(point, center, eta, delta, l2, enough, self._change, numbers)
        return None if found is None else (*found, float(numbers[small.LENGTH]))

    def settle(self, point: Any, center: Any, eta: float) -> Settled | None:
        """See :meth:`Engine.settle`; None where the projection has no luck."""
        found = self._run(
            point, center, eta, self._still, 0.0, math.inf, point.margins, np.zeros(8)
        )
        return None if found is None else found[1]

    def _run(
        self,
        point: Any,
        center: Any,
        eta: float,
        step: FloatArray,
        l2: float,
        enough: float,
        change: FloatArray,
        numbers: FloatArray,
    ) -> tuple[FloatArray, Settled] | None:
        """Search from the point; None without a step, or without luck in the projection."""
        n, core, threshold = self._n, self._core, self._core.threshold
        room, block, gradient = np.empty((4, n)), np.empty(n, np.int32), np.empty(self._size)
        moves = core.moves()
        if threshold is not None:
            # Without an item to start from, and without bounds, the search stops at the target.
            self._start[:] = threshold.pivot, threshold.tau, 0.0, 0.0, 0.0
        starts, trials = 0, -1.0
        while True:
            count = small.search(
                *self._data, point.margins, center.density, eta, point.w, step, l2, enough, moves,
                *self._projection, change, numbers, room, block, gradient,
            )  # fmt: skip
            if count != small.FRESH_START:
                break
            if numbers[small.TRIALS] != trials:
                starts, trials = 0, numbers[small.TRIALS]
            starts += 1
            if starts > _MOST_STARTS:
                break
            if threshold is not None:
                reference, tau, below, above = threshold.bracket(room[2])
                self._start[:] = -1.0, tau, reference, below, above
            else:
                moves = core.sort(room[2], starts - 1)
        if threshold is not None:
            threshold.pivot, threshold.tau = int(self._start[0]), float(self._start[1])
        if count < 0:
            return None
        dual = center
        if eta > 0.0:
            dual = MemoryDual(room[2], None)
            dual.block, dual.n_blocks = block, count
        expected, distance = numbers[small.EXPECTED :].tolist()
        return room, Settled(dual, expected, distance, gradient)
