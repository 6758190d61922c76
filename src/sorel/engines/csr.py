"""Sparse matrices checked before anything follows their indices.

scipy's conversions and products and the package's own loops read memory wherever the index arrays
of a matrix point. Whoever built the matrix by hand, or changed its arrays afterwards, may have made
them point anywhere; here that is an error with a name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import sorel._core as _core


def check_indices(X: Any) -> None:
    """Refuse a sparse matrix whose arrays do not fit each other; anything else passes.

    Parameters
    ----------
    X : object
        A scipy sparse matrix or array of any format is looked at.

    Raises
    ------
    ValueError
        If indices lead outside the matrix, or the arrays are of the wrong type or length.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from sorel.engines.csr import check_indices
    >>> X = scipy.sparse.csr_array(np.eye(3))
    >>> check_indices(X)
    >>> X.indices[1] = 7
    >>> check_indices(X)
    Traceback (most recent call last):
    ...
    ValueError: X is not a valid CSR matrix: row 1 has an index outside its 3 columns or 3 stored \
entries; see X.check_format()
    """
    if not scipy.sparse.issparse(X) or X.ndim != 2:
        return
    n, d = X.shape
    if X.format == "csr":
        _check_compressed(X, n, d, X.data.shape[:1])
    elif X.format == "csc":
        _check_compressed(X, d, n, X.data.shape[:1])
    elif X.format == "bsr":
        blocks = X.data.shape
        if len(blocks) != 3 or 0 in blocks[1:] or n % blocks[1] or d % blocks[2]:
            raise _invalid(X, f"its blocks of shape {blocks[1:]} do not fill the shape {X.shape}")
        _check_compressed(X, n // blocks[1], d // blocks[2], blocks[:1])
    elif X.format == "coo":
        _check_triples(X)
    elif X.format == "dia":
        if X.data.ndim != 2 or X.offsets.shape != X.data.shape[:1]:
            raise _invalid(X, f"{len(X.offsets)} offsets for data of shape {X.data.shape}")
        _check_integers(X, X.offsets, "offsets")


def checked_csr(X: Any) -> Any:
    """A sparse matrix in CSR with each entry given once; X itself where it has that form.

    Parameters
    ----------
    X : sparse matrix or array
        Two-dimensional, of any format; it is not changed.

    Returns
    -------
    sparse matrix or array
        Its stored entries are those that ``indptr`` covers, no more.

    Examples
    --------
    >>> import numpy as np, scipy.sparse
    >>> from sorel.engines.csr import checked_csr
    >>> X = scipy.sparse.csr_array(np.eye(3))
    >>> checked_csr(X) is X
    True
    """
    if X.format != "csr":
        check_indices(X)
        X = X.tocsr()
    n, d = X.shape
    repeated = _check_compressed(X, n, d, X.data.shape)
    if repeated:
        X = X.copy()
        X.sum_duplicates()
    stored = int(X.indptr[-1])
    if stored < len(X.data) or stored < len(X.indices):
        # Room that a matrix keeps after entries were removed holds no values.
        parts = (X.data[:stored], X.indices[:stored], X.indptr)
        X = type(X)(parts, shape=X.shape)
    return X


def _check_compressed(X: Any, major: int, minor: int, stored: tuple[int, ...]) -> bool:
    """Check the arrays of CSR, CSC or BSR; whether an entry is given twice."""
    indptr, indices = X.indptr, X.indices
    for name, array in (("indptr", indptr), ("indices", indices)):
        _check_integers(X, array, name)
    if len(stored) != 1:
        raise _invalid(X, f"its data has shape {X.data.shape}, not one dimension")
    if len(indptr) != major + 1:
        raise _invalid(X, f"its indptr has {len(indptr)} values, not {major + 1}")
    if indptr[0] != 0:
        raise _invalid(X, f"its indptr starts at {indptr[0]}, not at 0")
    bad, repeated = _core.inspect_csr(*index_arrays(X), minor)
    line, across = ("column", "rows") if X.format == "csc" else ("row", "columns")
    if bad >= 0:
        raise _invalid(
            X,
            f"{line} {bad} has an index outside its {minor} {across} or {len(indices)} stored "
            "entries",
        )
    # The loops read as many values as indptr promises.
    if indptr[-1] > stored[0]:
        raise _invalid(X, f"its indptr ends at {indptr[-1]}, but its data has {stored[0]} values")
    return bool(repeated)


def index_arrays(X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """indptr and indices of one type, which the loops know; in place where they have it."""
    both = X.indptr, X.indices
    kind = np.int32 if all(part.dtype == np.int32 for part in both) else np.int64
    indptr, indices = (np.require(part, kind, ["C", "A"]) for part in both)
    return indptr, indices


def _check_triples(X: Any) -> None:
    for axis, (places, size) in enumerate(zip(X.coords, X.shape, strict=True)):
        name = ("row", "col")[axis]
        _check_integers(X, places, name)
        if places.shape != X.data.shape:
            raise _invalid(X, f"{len(places)} values in {name} for data of shape {X.data.shape}")
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
            raise _invalid(X, f"{name} has an index outside 0..{size - 1}")


def _check_integers(X: Any, array: NDArray[Any], name: str) -> None:
    if not (isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iu"):
        kind = getattr(array, "dtype", type(array).__name__)
        raise _invalid(
            X, f"its {name} must be integers in one dimension, got {kind} {np.shape(array)}"
        )


def _invalid(X: Any, what: str) -> ValueError:
    remedy = "; see X.check_format()" if hasattr(X, "check_format") else "; build it again"
    return ValueError(f"X is not a valid {X.format.upper()} matrix: {what}{remedy}")
