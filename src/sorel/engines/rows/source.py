"""The contract of rows on disk, and how they are divided into spans.

Whoever reads rows sees a :class:`RowSource`: consecutive rows as small arrays, for several threads
at once.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes of a span of rows, up to twice as many. Around 8 MB a full pass is fastest: calls no longer
# count, and the pages of a span are still in a cache.
SPAN_BYTES = 8 << 20

# Rows of a span, at least.
MIN_SPAN_ROWS = 1024

# Bytes of rows that are held at a time: pages, blocks that are written, rows that are shuffled.
BUFFER_BYTES = 64 << 20

# Places that a fingerprint looks at, and rows in each.
_SAMPLED = 64


class RowSource(ABC):
    """Rows of numbers that are read from disk a few at a time.

    Attributes
    ----------
    n_samples, n_features : int
        Rows and columns.
    dtype : dtype
        What :meth:`read` returns: float32 or float64.
    spans : list of (int, int)
        Consecutive ranges ``start, stop`` that cover all rows and are cheap to read: at least 1024
        rows each, where there are so many, and beyond that at most 16 MB.
    columns : list of str or None
        Names of the features, where the data has them.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.rows import MemmapRows
    >>> rows = MemmapRows(np.arange(6.0).reshape(3, 2))
    >>> rows.shape, rows.spans
    ((3, 2), [(0, 3)])
    >>> rows.read(1, 2)
    array([[2., 3.]])
    """

    n_samples: int
    n_features: int
    dtype: np.dtype[Any]
    spans: list[tuple[int, int]]
    columns: list[str] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.n_samples, self.n_features

    @property
    def nbytes(self) -> int:
        """What all rows would take in memory."""
        return self.n_samples * self.n_features * self.dtype.itemsize

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``start`` to ``stop`` as a C-contiguous array, which may be read-only.

        Several threads may read at once. The array stays valid; but to keep many of them is to hold
        the data in memory after all.
        """

    @abstractmethod
    def where(self, row: int, column: int) -> str:
        """Words for the place of a value, for messages: which file, row and column."""

    @abstractmethod
    def _identity(self) -> Iterator[Any]:
        """What a fingerprint covers besides shape, type, names and sampled rows."""

    def fingerprint(self) -> str:
        """A short text that is the same as long as the data is.

        It covers the shape, the type and the names of the columns, the names (without folders) and
        sizes of the files, and the values of some rows: 64 rows at each of 64 places, evenly spread
        from the first row to the last. Of Parquet it covers the description at the end of every
        file, which holds the size and, as a rule, the least and largest value of each column
        in each row group. A value that was changed in place elsewhere goes unnoticed.
        """
        digest = hashlib.sha256()
        head = [type(self).__name__, self.shape, self.dtype.str, self.columns, *self._identity()]
        digest.update(repr(head).encode())
        last = max(0, self.n_samples - _SAMPLED)
        for start in np.unique(np.linspace(0, last, _SAMPLED).astype(np.int64)).tolist():
            digest.update(self.read(start, min(start + _SAMPLED, self.n_samples)).tobytes())
        return digest.hexdigest()

    def finite_spans(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Read all rows once: start, stop and the rows of each span.

        Raises a ValueError that names the first value that is not finite.
        """
        for start, stop in self.spans:
            rows = self.read(start, stop)
            # NaN passes through both; two such sweeps are faster than one of isfinite.
            if not (np.isfinite(rows.min()) and np.isfinite(rows.max())):
                row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
                raise ValueError(
                    f"X has a value that is not finite: {self.where(start + row, column)} is "
                    f"{rows[row, column]}; drop or impute such rows"
                )
            yield start, stop, rows

    def check_finite(self) -> None:
        """Raise a ValueError that names the first value that is not finite, if there is one."""
        for _ in self.finite_spans():
            pass

    def close(self) -> None:  # noqa: B027 (a source that holds no files has nothing to do)
        """Let go of files; reading opens them again where it must."""

    def __enter__(self) -> RowSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    def _set_spans(self, edges: Sequence[int]) -> None:
        """Check that there is data, and divide it into spans; `edges` are its natural borders."""
        if self.n_samples == 0 or self.n_features == 0:
            raise ValueError(f"X is empty: shape {self.shape}; at least one row and one column")
        self.spans = _make_spans(edges, self.n_features * self.dtype.itemsize)


def _make_spans(edges: Sequence[int], row_bytes: int) -> list[tuple[int, int]]:
    """Split what is too long between two edges, and join what is too short."""
    step = max(MIN_SPAN_ROWS, SPAN_BYTES // row_bytes)
    spans: list[tuple[int, int]] = []
    first = edges[0]
    for low, high in pairwise(edges):
        parts = max(1, (high - low) // step)
        for part in range(1, parts + 1):
            stop = low + (high - low) * part // parts
            if spans and (first - spans[-1][0] < MIN_SPAN_ROWS or stop - spans[-1][0] <= step):
                spans[-1] = (spans[-1][0], stop)
            elif stop > first:
                spans.append((first, stop))
            first = stop
    if len(spans) > 1 and spans[-1][1] - spans[-1][0] < MIN_SPAN_ROWS:
        _, stop = spans.pop()
        spans[-1] = (spans[-1][0], stop)
    return spans


class PiecedRows(RowSource):
    """Rows in consecutive pieces: files, or row groups of files."""

    # The first row of each piece, and the number of all rows.
    _edges: list[int]

    @abstractmethod
    def _piece(self, piece: int, start: int, stop: int) -> NDArray[Any]:
        """Some rows of a piece, counted from its first one."""

    def _place(self, row: int) -> tuple[int, int]:
        """The piece of a row, and its number there."""
        piece = int(np.searchsorted(self._edges, row, side="right")) - 1
        return piece, row - self._edges[piece]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        parts = []
        while start < stop:
            piece, inside = self._place(start)
            last = min(self._edges[piece + 1], stop)
            parts.append(self._piece(piece, inside, inside + last - start))
            start = last
        if not parts:
            return np.empty((0, self.n_features), self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class ScaledRows(RowSource):
    """Rows less a vector, divided by another, as they are read.

    Parameters
    ----------
    rows : RowSource
        The rows.
    mean, scale : array of length d
        What to take off each column, and what to divide it by.
    dtype : dtype, optional
        Type of what is read; that of `rows` unless given.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.rows import MemmapRows, ScaledRows
    >>> rows = MemmapRows(np.array([[1.0, 20.0], [3.0, 40.0]]))
    >>> ScaledRows(rows, np.array([2.0, 30.0]), np.array([1.0, 10.0])).read(0, 2).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        rows: RowSource,
        mean: NDArray[Any],
        scale: NDArray[Any],
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        self._rows, self._mean, self._scale = rows, mean, scale
        self.n_samples, self.n_features = rows.shape
        self.dtype = rows.dtype if dtype is None else dtype
        self.spans, self.columns = rows.spans, rows.columns

    def read(self, start: int, stop: int) -> NDArray[Any]:
        part = self._rows.read(start, stop) - self._mean
        part /= self._scale
        return np.ascontiguousarray(part, dtype=self.dtype)

    def where(self, row: int, column: int) -> str:
        return self._rows.where(row, column)

    def _identity(self) -> Iterator[Any]:
        yield from self._rows._identity()

    def close(self) -> None:
        self._rows.close()


def natural(path: Path) -> list[Any]:
    """A key that sorts the numbers inside names as numbers."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]
