"""Blocks of rows in memory, for methods whose steps look at one block and move all the weights.

A step costs a few dozen rows and a projection of O(n), so that NumPy's calls are no burden and no
loop needs to be compiled. Blocks hold shuffled rows: the order of a file means nothing then.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.engines.base import Dual, FloatArray

if TYPE_CHECKING:
    from sorel.engines.memory import MemoryEngine


class BlockSlopes(NamedTuple):
    """Losses and slopes of one block at some w; solvers only hand it back."""

    block: int
    losses: FloatArray
    slopes: FloatArray


class Batches:
    """The rows of an engine in `n_blocks` blocks of one size, give or take a row.

    Vectors of losses and tables of slopes are opaque to a solver. They stand in the order of the
    blocks, weightings in that of the rows.
    """

    def __init__(self, engine: MemoryEngine, n_blocks: int, rng: np.random.Generator) -> None:
        self._engine = engine
        n = engine.n_samples
        self.n_blocks = min(n_blocks, n)
        order = rng.permutation(n)
        edges = np.linspace(0, n, self.n_blocks + 1).astype(np.int64)
        self._order, self._y = order, engine.y[order]
        self._slices = [slice(a, b) for a, b in itertools.pairwise(edges.tolist())]
        X = engine._rows.array[order]
        self._X: list[Any] = [X[part] for part in self._slices]
        self._omega = np.broadcast_to(np.asarray(engine._omega, dtype=np.float64), (n,))[order]

    def losses(self, point: Any) -> FloatArray:
        """The losses at a point, as a vector of its own."""
        return np.asarray(point.losses[self._order])

    def slopes(self, point: Any, dual: Any) -> FloatArray:
        """The table of lam_i phi'_i at a point."""
        return self._weigh(point.slopes[self._order], slice(None), dual)

    def evaluate(self, block: int, w: FloatArray) -> BlockSlopes:
        """Losses and slopes of a block."""
        engine, rows = self._engine, self._slices[block]
        d = engine.n_features
        z = np.asarray(self._X[block] @ w[:d], dtype=np.float64)
        if engine.fit_intercept:
            z += w[d]
        losses, slopes, y = np.empty(len(z)), np.empty_like(z), self._y[rows]
        if engine.n_outputs > 1:
            engine._loops.softmax_losses(y, z, losses, slopes)
        else:
            engine._loops.losses_at(*engine._loss_args[:2], y, z, losses)
            engine._loops.slopes_at(*engine._loss_args[:2], y, z, slopes)
        return BlockSlopes(block, losses, slopes)

    def correct(
        self, vector: FloatArray, factor: float, part: BlockSlopes, other: Any
    ) -> FloatArray:
        """The vector with factor * (losses of the part - those of another) added in its block.

        The other is a part of the same block, or a vector of losses.
        """
        rows = self._slices[part.block]
        before = other.losses if isinstance(other, BlockSlopes) else other[rows]
        out = vector.copy()
        out[rows] += factor * (part.losses - before)
        return out

    def square_distance(self, part: BlockSlopes, other: BlockSlopes) -> float:
        """sum_i omega_i (l_i - l'_i)^2 over the block of two parts."""
        change = part.losses - other.losses
        return float(np.sum(self._omega[self._slices[part.block]] * change**2))

    def store(self, table: FloatArray, part: BlockSlopes, dual: Dual) -> FloatArray:
        """Put lam_i phi'_i of a block into the table; the change of the gradient."""
        rows = self._slices[part.block]
        fresh = self._weigh(part.slopes, rows, dual)
        change = fresh - table[rows]
        table[rows] = fresh
        return self._adjoint(part.block, change)

    def copy(self, table: FloatArray, block: int, source: FloatArray) -> None:
        """Copy a block of one table or vector into another."""
        rows = self._slices[block]
        table[rows] = source[rows]

    def gradient(self, part: BlockSlopes, dual: Dual, table: FloatArray) -> FloatArray:
        """The gradient of lam . l over a block, less what the table holds there."""
        rows = self._slices[part.block]
        return self._adjoint(part.block, self._weigh(part.slopes, rows, dual) - table[rows])

    def dual_step(
        self, dual: Any, vector: FloatArray, step: float, keep: float = 1.0, shift: float = 0.0
    ) -> Dual:
        """Project shift + keep q + step * (vector of losses) onto the dual set."""
        density = keep * dual.density + shift
        density[self._order] += step * vector
        return self._engine._nearest(density)

    def _weigh(self, slopes: FloatArray, rows: slice, dual: Any) -> FloatArray:
        lam = self._omega[rows] * dual.density[self._order[rows]]
        return slopes * (lam if slopes.ndim == 1 else lam[:, None])

    def _adjoint(self, block: int, c: NDArray[Any]) -> FloatArray:
        engine, X = self._engine, self._X[block]
        out = np.empty(engine.shape)
        out[: engine.n_features] = X.T @ c
        if engine.fit_intercept:
            out[engine.n_features] = c.sum(axis=0)
        return out
