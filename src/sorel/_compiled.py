"""The one decorator behind every compiled loop of the package.

It fixes the options that were measured to matter, so that no kernel carries its own copy of them,
and it keeps the package importable where numba finds no folder to store compiled code in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numba

__all__ = ["compiled"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Reordering sums gives the whole gain of fast math; leaving out "nnan" and "ninf" keeps NaN and inf
# honest.
_REORDER = {"reassoc", "contract", "nsz", "arcp"}


@overload
def compiled(function: _Function) -> _Function: ...


@overload
def compiled(*, fastmath: bool = ...) -> Callable[[_Function], _Function]: ...


def compiled(function: Any = None, *, fastmath: bool = True) -> Any:
    """Compile a function of arrays and scalars with the package's options.

    Parameters
    ----------
    function : callable
        A function that numba's nopython mode accepts.
    fastmath : bool, default=True
        Let the compiler reorder sums. Turn it off where the order of the operations carries the
        accuracy (compensated sums, exact differences).

    Returns
    -------
    callable
        The compiled function, or the function itself when ``NUMBA_DISABLE_JIT=1``.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel._compiled import compiled
    >>> @compiled
    ... def total(x):
    ...     s = 0.0
    ...     for value in x:
    ...         s += value
    ...     return s
    >>> float(total(np.ones(3)))
    3.0
    """
    if function is None:
        return lambda f: compiled(f) if fastmath else _compile(f, False)
    return _compile(function, _REORDER if fastmath else False)


def _compile(function: Any, fastmath: Any) -> Any:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        # Raised at decoration, when neither the source's folder nor the user's cache folder can be
        # written.
        if "no locator available" not in str(error):
            raise
        return numba.njit(cache=False, **options)(function)
