"""Arrays as the compiled loops know them: contiguous and formally writable.

numba compiles each loop again for read-only arrays and for strided ones. pandas and joblib give out
the first, columns of a matrix are the second; a loop that only reads gains nothing from the
difference, and would cost seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class _SameMemory:
    """The memory of an array, declared writable; keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.owner = array
        interface = dict(np.asarray(array).__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def writable_view(X: NDArray[Any]) -> NDArray[Any]:
    """The same memory as a plain array that is formally writable.

    Whoever takes it must not write to it.
    """
    if X.flags.writeable and type(X) is np.ndarray:
        return X
    return np.asarray(_SameMemory(X))
