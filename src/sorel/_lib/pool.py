"""Long arrays that went out of use, kept for the next who needs one of the same shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORTH_POOLING", "Pool"]

# Arrays of at least so many numbers are kept.
WORTH_POOLING = 20_000


class Pool:
    """Arrays to borrow and to give back.

    A fresh array of a million numbers costs more in page faults than the loop that fills it; a
    fresh array of a thousand costs less than looking for an old one.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[Any, ...], list[NDArray[Any]]] = {}

    def take(self, shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        if math.prod(shape) < WORTH_POOLING:
            return np.empty(shape, dtype)
        free = self._free.get((shape, dtype))
        return free.pop() if free else np.empty(shape, dtype)

    def give(self, *arrays: NDArray[Any] | None) -> None:
        for array in arrays:
            if array is not None and array.size >= WORTH_POOLING:
                self._free.setdefault((array.shape, array.dtype.type), []).append(array)
