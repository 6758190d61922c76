"""What the engines in memory know about a point, a weighting and a direction.

Each handle owns its arrays, and gives them back to the pool of its run when it is dropped. Code
that holds on to a handle holds on to its vectors of length n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from sorel._pool import Pool
from sorel.engines.base import Dual, FloatArray, Point

if TYPE_CHECKING:
    from sorel.engines.memory import MemoryEngine

__all__ = ["Change", "Line", "MemoryDual", "MemoryPoint"]

# A point that is not evaluated yet: a start, a direction of margins, and a step along it.
Line = tuple["MemoryPoint", "Change", float]


class MemoryPoint(Point):
    """Margins, losses and slopes at one parameter vector.

    What is missing is made by the engine when it is first asked for: slopes always, and margins and
    losses of a point on a line. Most trial points of a line search need none of them.
    """

    __slots__ = ("_engine", "_losses", "_margins", "_slopes", "line")

    def __init__(
        self,
        w: FloatArray,
        engine: MemoryEngine,
        margins: Any = None,
        losses: Any = None,
        line: Line | None = None,
    ) -> None:
        self.w = w
        self._engine = engine
        self._margins, self._losses = margins, losses
        self._slopes: Any = None
        self.line = line

    @property
    def margins(self) -> Any:
        """x_i . w for every sample."""
        if self._margins is None:
            self._settle()
        return self._margins

    @property
    def losses(self) -> Any:
        """The loss of every sample."""
        if self._losses is None:
            self._settle()
        return self._losses

    @property
    def slopes(self) -> Any:
        """Derivatives of the losses in the margins."""
        if self._slopes is None:
            self._slopes = self._engine._slopes_at(self)
        return self._slopes

    @slopes.setter
    def slopes(self, slopes: Any) -> None:
        self._slopes = slopes

    def _settle(self) -> None:
        """Get margins and losses of its own."""
        self._margins, self._losses = self._engine._evaluated(self)
        self.line = None

    def forget_losses(self) -> None:
        """Keep the margins alone; the losses are made again if they are asked for."""
        if self._engine._recycler is not None:
            self._engine._recycler.give(self._losses)
        self._losses = None

    def __del__(self) -> None:
        recycler = self._engine._recycler
        if recycler is not None:
            recycler.give(self._margins, self._losses, self._slopes)


class MemoryDual(Dual):
    """A weighting as densities, with the blocks of the projection that made it."""

    __slots__ = ("_pool", "block", "density", "n_blocks")

    def __init__(self, density: FloatArray, pool: Pool | None) -> None:
        self.density = density
        self.block: NDArray[Any] | None = None
        self.n_blocks = 0
        self._pool = pool

    def forget_blocks(self) -> None:
        """Keep the weighting alone: only the last projection is ever differentiated."""
        if self._pool is not None:
            self._pool.give(self.block)
        self.block, self.n_blocks = None, 0

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool.give(self.density, self.block)


class Change:
    """Change of the margins per unit step along a direction."""

    __slots__ = ("_pool", "margins")

    def __init__(self, margins: NDArray[Any], pool: Pool | None) -> None:
        self.margins = margins
        self._pool = pool

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool.give(self.margins)
