"""Fingerprints: short texts that agree where data and settings agree, and differ where they differ.

Arrays are hashed whole, some rows at a time: a gigabyte takes one or two seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Numbers that are hashed at a time.
_TILE = 2**20

# Longer lists of settings are shown as a hash.
_SHOWN = 8

# Points at which a function of the user is looked at.
_GRID = 1024


def fingerprint_matrix(X: Any) -> str:
    """Fingerprint of a matrix: its kind, its type of numbers, and a hash.

    Parameters
    ----------
    X : array, scipy CSR, or a source with a method ``fingerprint``
        The data. The memory order of an array and the width of sparse indices do not matter.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.files.fingerprints import fingerprint_matrix
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> fingerprint_matrix(X) == fingerprint_matrix(np.asfortranarray(X))
    True
    >>> fingerprint_matrix(X) == fingerprint_matrix(X + 1e-15)
    False
    """
    own = getattr(X, "fingerprint", None)
    if callable(own):
        return str(own())
    import scipy.sparse

    if scipy.sparse.issparse(X):
        digest = hashlib.blake2b(digest_size=16)
        for part in (X.indptr, X.indices, X.data):
            if part.dtype.kind == "i":
                part = part.astype(np.int64, copy=False)
            _feed(digest, part.reshape(-1, 1))
        return f"sparse {X.dtype} {digest.hexdigest()}"
    return f"dense {X.dtype} {fingerprint_array(X)}"


def fingerprint_array(array: NDArray[Any]) -> str:
    """Hash of a vector's or a matrix's numbers, whatever its order in memory."""
    digest = hashlib.blake2b(digest_size=16)
    values = np.asarray(array)
    _feed(digest, values.reshape(-1, 1) if values.ndim != 2 else values)
    return digest.hexdigest()


def _feed(digest: Any, values: NDArray[Any]) -> None:
    n, d = values.shape
    digest.update(f"{n} {d} {values.dtype.str}".encode())
    tile = max(1, _TILE // max(d, 1))
    for start in range(0, n, tile):
        digest.update(np.ascontiguousarray(values[start : start + tile]).data)


def describe(value: Any) -> str:
    """A setting in words that do not depend on the process: no addresses, no shortened arrays.

    Examples
    --------
    >>> import sorel
    >>> from sorel.files.fingerprints import describe
    >>> describe(sorel.CVaR(0.1)), describe(sorel.ElasticNet(0.5, 1))
    ('CVaR(alpha=0.1)', 'ElasticNet(l2=0.5, l1=1.0)')
    """
    if isinstance(value, (bool, str, type(None))):
        return repr(value)
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, np.ndarray):
        return describe(value.tolist()) if value.size <= _SHOWN else fingerprint_array(value)
    if isinstance(value, (tuple, list)):
        text = ", ".join(describe(item) for item in value)
        if len(value) <= _SHOWN:
            return f"({text})"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    if hasattr(value, "get_params"):
        given = value.get_params(deep=False)
        if any(callable(item) for item in given.values()):
            # A function has no name that can be trusted: look at what it does.
            values = value.cumulative(np.linspace(0.0, 1.0, _GRID + 1))
            given = {"cumulative": np.round(values, 9) + 0.0}
    elif dataclasses.is_dataclass(value):
        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        own = getattr(value, "__dict__", {})
        given = {name: item for name, item in own.items() if not callable(item)}
    inner = ", ".join(f"{name}={describe(item)}" for name, item in given.items())
    return f"{type(value).__name__}({inner})"
