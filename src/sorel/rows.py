"""Rows that stay on disk: memory-mapped arrays, folders of .npy blocks, and Parquet.

A :class:`RowSource` hands out consecutive rows as small arrays, to several threads at once, and
keeps next to nothing of what it has read in memory. :func:`open_rows` finds the source that suits
what a user gives. Targets are short and are loaded whole: :func:`open_data` opens both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._files import write_folder_atomically

__all__ = [
    "BlockFolderRows",
    "MemmapRows",
    "NotNumericError",
    "ParquetRows",
    "RowSource",
    "ScaledRows",
    "backed_by_file",
    "is_parquet",
    "open_data",
    "open_rows",
    "write_blocks",
]

# A span of rows is this many bytes, up to twice as many, and never fewer rows than this. Around
# 8 MB a full pass is fastest: calls no longer count, and the pages of a span are still in a cache.
_SPAN_BYTES = 8 << 20
MIN_SPAN_ROWS = 1024

# Pages of mapped files that stay in memory, and decoded row groups of Parquet files.
_MAPPED_BYTES = 64 << 20
_DECODED_BYTES = 128 << 20
_DECODED_GROUPS = 3
_OPEN_FILES = 64

# A fingerprint looks at so many places, and at so many rows in each.
_SAMPLED_PLACES = 64
_SAMPLED_GROUPS = 4
_SAMPLED_ROWS = 64

# Rows that are turned from columns into rows at a time, so that they stay in the second cache.
_TURNED_ROWS = 4096

_BLOCK_BYTES = 64 << 20
_TARGETS = "y.npy"
_COLUMNS = "columns.json"
_PARQUET_ENDINGS = (".parquet", ".pq")


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

    def _sampled_places(self) -> NDArray[np.int64]:
        """First rows of the places that a fingerprint looks at."""
        last = max(0, self.n_samples - _SAMPLED_ROWS)
        return np.unique(np.linspace(0, last, _SAMPLED_PLACES).astype(np.int64))

    def fingerprint(self) -> str:
        """A short text that is the same as long as the data is.

        It covers the shape, the type and the names of the columns, the names (without folders) and
        sizes of the files, and the values of some rows: 64 rows at each of 64 places, evenly spread
        from the first row to the last. Of Parquet it covers the description at the end of every
        file, which holds the size and, as a rule, the least and largest value of each column
        in each row group, and the rows of up to 4 row groups. A value that was changed in place
        elsewhere goes unnoticed.
        """
        digest = hashlib.sha256()
        head = [type(self).__name__, self.shape, self.dtype.str, self.columns, *self._identity()]
        digest.update(repr(head).encode())
        for start in self._sampled_places().tolist():
            digest.update(self.read(start, min(start + _SAMPLED_ROWS, self.n_samples)).tobytes())
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

    def _settle(self, edges: Sequence[int]) -> None:
        """Check that there is data, and divide it into spans; `edges` are its natural borders."""
        if self.n_samples == 0 or self.n_features == 0:
            raise ValueError(f"X is empty: shape {self.shape}; at least one row and one column")
        self.spans = _make_spans(edges, self.n_features * self.dtype.itemsize)


def _make_spans(edges: Sequence[int], row_bytes: int) -> list[tuple[int, int]]:
    """Split what is too long between two edges, and join what is too short."""
    step = max(MIN_SPAN_ROWS, _SPAN_BYTES // row_bytes)
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


class _Pages:
    """Ranges of mapped files that were read lately; those of long ago leave memory.

    Dropping a page that is still looked at costs time and nothing else: it is read again. So no
    reader needs to say when it is done.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[mmap.mmap, int, int]] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def note(self, mapping: mmap.mmap, start: int, stop: int) -> None:
        """Say that the bytes ``start`` to ``stop`` of a shared mapping are being read."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        with self._lock:
            self._recent.append((mapping, start, stop))
            self._size += stop - start
            while self._size > _MAPPED_BYTES and len(self._recent) > 1:
                self._drop()

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            while self._recent:
                self._drop()

    def _drop(self) -> None:
        mapping, start, stop = self._recent.popleft()
        self._size -= stop - start
        start -= start % mmap.PAGESIZE
        with contextlib.suppress(ValueError, OSError):  # closed by its owner
            mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


class _Mapped:
    """A two-dimensional array in a mapped file, read by rows."""

    def __init__(self, array: NDArray[Any], dtype: np.dtype[Any], pages: _Pages) -> None:
        self._array, self._dtype, self._pages = array, dtype, pages
        owner = backed_by_file(array)
        self._mapping: mmap.mmap | None = None
        # The pages of a private mapping hold what the user wrote to it, and must stay.
        if owner is not None and owner.mode != "c":
            self._mapping = _mapping_of(owner)
        if self._mapping is not None:
            begin = np.frombuffer(self._mapping, np.uint8).ctypes.data
            low, high = np.lib.array_utils.byte_bounds(array)
            self._low, self._high = low - begin, high - begin

    def read(self, start: int, stop: int) -> NDArray[Any]:
        rows = self._array[start:stop]
        if rows.flags.c_contiguous and rows.flags.aligned and rows.dtype == self._dtype:
            result = np.asarray(rows)
        else:
            result = np.array(rows, dtype=self._dtype, order="C", subok=False)
        if self._mapping is not None and start < stop:
            stride = self._array.strides[0]
            if self._array.flags.c_contiguous:
                low, high = self._low + start * stride, self._low + stop * stride
            else:
                low, high = self._low, self._high
            self._pages.note(self._mapping, low, high)
        return result


def backed_by_file(array: Any) -> np.memmap | None:
    """The memory-mapped array that `array` is, or is a view of; None where there is none.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.rows import backed_by_file
    >>> backed_by_file(np.zeros(3)) is None
    True
    """
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and _mapping_of(array) is not None:
            return array
        array = array.base
    return None


def _mapping_of(array: np.memmap) -> mmap.mmap | None:
    # NumPy's only name for it; a copy of a memmap has the type and no mapping.
    return getattr(array, "_mmap", None)


class MemmapRows(RowSource):
    """Rows of a memory-mapped array; one in memory serves as well.

    The pages of the file that were read are let go again, so that the array takes little memory
    although all of it is mapped. A copy-on-write array (mode "c") is the exception: its pages hold
    changes that exist nowhere else.

    Parameters
    ----------
    array : memmap
        Two-dimensional and numeric; also a view of one, in any order.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from sorel.rows import MemmapRows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "X.npy")
    ...     np.save(path, np.arange(6.0).reshape(3, 2))
    ...     rows = MemmapRows(np.load(path, mmap_mode="r"))
    ...     rows.shape, rows.read(1, 3).tolist()
    ((3, 2), [[2.0, 3.0], [4.0, 5.0]])
    """

    def __init__(self, array: NDArray[Any]) -> None:
        owner = backed_by_file(array)
        self._name = "X" if owner is None or owner.filename is None else str(owner.filename)
        if array.ndim != 2:
            hint = "; reshape one feature with X.reshape(-1, 1)" if array.ndim == 1 else ""
            raise ValueError(f"{self._name} must be two-dimensional, got shape {array.shape}{hint}")
        self.dtype = _float_type([array.dtype], [self._name])
        self.n_samples, self.n_features = array.shape
        self._settle([0, self.n_samples])
        self._pages = _Pages()
        self._mapped = _Mapped(array, self.dtype, self._pages)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._mapped.read(start, stop)

    def where(self, row: int, column: int) -> str:
        return f"{self._name}[{row}, {column}]"

    def _identity(self) -> Iterator[Any]:
        yield os.path.basename(self._name)

    def close(self) -> None:
        self._pages.clear()


class _Header(NamedTuple):
    """What a .npy file says of itself."""

    path: Path
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int
    size: int

    def map(self) -> np.memmap:
        order: Any = "F" if self.fortran else "C"
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order)

    def load(self) -> NDArray[Any]:
        array = np.fromfile(
            self.path, self.dtype, count=int(np.prod(self.shape)), offset=self.offset
        )
        return array.reshape(self.shape, order="F" if self.fortran else "C")


def _read_header(path: Path) -> _Header:
    """The header of a .npy file, checked against the length of the file."""
    with path.open("rb") as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                version, np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(stream)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is not a whole .npy file: {error}") from None
        offset = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{path} holds Python objects (dtype {dtype}); save it as numbers")
    size = path.stat().st_size
    expected = offset + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size < expected:
        raise ValueError(
            f"{path} is truncated: an array of shape {shape} and dtype {dtype} takes {expected} "
            f"bytes, the file has {size}; write or copy it again"
        )
    return _Header(path, shape, fortran, dtype, offset, size)


class BlockFolderRows(RowSource):
    """Rows of the .npy files in a folder, one file after the other.

    The files are taken in natural order, ``block_2.npy`` before ``block_10.npy``. All are
    two-dimensional and of the same width. ``y.npy`` is left out: :func:`write_blocks` puts the
    targets there, and the names of the columns into ``columns.json``.

    Parameters
    ----------
    folder : path
        The folder.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from sorel.rows import BlockFolderRows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(11):
    ...         np.save(os.path.join(folder, f"block_{number}.npy"), np.full((2, 3), number))
    ...     rows = BlockFolderRows(folder)
    ...     rows.shape, rows.read(19, 22)[:, 0].tolist()
    ((22, 3), [9.0, 10.0, 10.0])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        paths = [path for path in _npy_files(self.folder) if path.name != _TARGETS]
        if not paths:
            raise ValueError(f"folder {str(folder)!r} has no .npy files with rows")
        self._blocks = [_read_header(path) for path in paths]
        first = self._blocks[0]
        for block in self._blocks:
            if len(block.shape) != 2:
                raise ValueError(
                    f"{block.path} has shape {block.shape}; a block of rows is two-dimensional"
                )
            if block.shape[1] != first.shape[1]:
                raise ValueError(
                    f"blocks must have the same number of columns: {first.path} has "
                    f"{first.shape[1]}, {block.path} has {block.shape[1]}"
                )
        self.dtype = _float_type(
            [block.dtype for block in self._blocks], [str(block.path) for block in self._blocks]
        )
        self.n_features = first.shape[1]
        self._edges = np.cumsum([0, *(block.shape[0] for block in self._blocks)]).tolist()
        self.n_samples = self._edges[-1]
        self.columns = self._read_columns()
        self._settle(self._edges)
        self._pages = _Pages()
        self._open: OrderedDict[int, _Mapped] = OrderedDict()
        self._lock = threading.Lock()

    def _read_columns(self) -> list[str] | None:
        path = self.folder / _COLUMNS
        if not path.exists():
            return None
        try:
            columns = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            columns = None
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ValueError(f"{path} is not a list of column names")
        if len(columns) != self.n_features:
            raise ValueError(
                f"{path} names {len(columns)} columns, but {self._blocks[0].path} has "
                f"{self.n_features}"
            )
        return columns

    def read(self, start: int, stop: int) -> NDArray[Any]:
        block = int(np.searchsorted(self._edges, start, side="right")) - 1
        if stop <= start:
            return np.empty((0, self.n_features), self.dtype)
        if stop <= self._edges[block + 1]:
            first = self._edges[block]
            return self._mapped(block).read(start - first, stop - first)
        out = np.empty((stop - start, self.n_features), self.dtype)
        done = start
        while done < stop:
            first, last = self._edges[block], min(self._edges[block + 1], stop)
            if last > done:
                out[done - start : last - start] = self._mapped(block).read(
                    done - first, last - first
                )
                done = last
            block += 1
        return out

    def _mapped(self, block: int) -> _Mapped:
        with self._lock:
            mapped = self._open.pop(block, None)
            if mapped is None:
                mapped = _Mapped(self._blocks[block].map(), self.dtype, self._pages)
                if len(self._open) >= _OPEN_FILES:
                    self._open.popitem(last=False)
            self._open[block] = mapped
            return mapped

    def where(self, row: int, column: int) -> str:
        block = int(np.searchsorted(self._edges, row, side="right")) - 1
        return f"{self._blocks[block].path}[{row - self._edges[block]}, {column}]"

    def _identity(self) -> Iterator[Any]:
        for block in self._blocks:
            yield block.path.name, block.size

    def close(self) -> None:
        self._pages.clear()
        with self._lock:
            self._open.clear()


class NotNumericError(ValueError):
    """A column of Parquet data holds no numbers.

    Attributes
    ----------
    column, file : str
        Where.
    words : str
        What it holds instead.
    """

    def __init__(self, column: str, file: str, words: str) -> None:
        super().__init__(
            f"column {column!r} of {file} holds {words}, not numbers; encode it as numbers, or "
            "choose the columns to use without it"
        )
        self.column, self.file, self.words = column, file, words


class _Group(NamedTuple):
    """A row group of a Parquet file: its file, its number there, and the file's earlier rows."""

    fragment: Any
    number: int
    first: int


class ParquetRows(RowSource):
    """Numeric and boolean columns of Parquet files.

    A row group is decoded whole, and the last few stay in memory: passes from first to last decode
    each group once. A fit makes many passes; :func:`write_blocks` copies the rows to a form that
    needs no decoding.

    Parameters
    ----------
    source : path or pyarrow.dataset.Dataset
        A file, a folder of files (those below it too), or a dataset that pyarrow has opened.
    columns : sequence of str, optional
        The columns to use, in this order; by default all.
    exclude : sequence of str, optional
        Columns to leave out, such as the target.

    Examples
    --------
    >>> import os, tempfile
    >>> import pyarrow, pyarrow.parquet
    >>> from sorel.rows import ParquetRows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "people.parquet")
    ...     table = pyarrow.table({"age": [31.0, 42.0], "tall": [True, False], "y": [1.0, 2.0]})
    ...     pyarrow.parquet.write_table(table, path)
    ...     rows = ParquetRows(path, exclude=["y"])
    ...     rows.columns, rows.read(0, 2).tolist(), rows.column("y").tolist()
    (['age', 'tall'], [[31.0, 1.0], [42.0, 0.0]], [1.0, 2.0])
    """

    columns: list[str]

    def __init__(
        self, source: Any, columns: Sequence[str] | None = None, exclude: Sequence[str] = ()
    ) -> None:
        self._dataset = _open_dataset(source)
        names = list(self._dataset.schema.names)
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise ValueError(f"the data has several columns called {doubled[0]!r}; rename them")
        wanted = names if columns is None else list(columns)
        for name in [*wanted, *exclude]:
            _check_name(name, names)
        self.columns = [name for name in wanted if name not in set(exclude)]
        self.n_features = len(self.columns)
        try:
            self._fragments = list(self._dataset.get_fragments())
        except ValueError as error:
            raise ValueError(f"the dataset cannot be read file by file: {error}") from None
        self.dtype = self._column_type()
        self._groups: list[_Group] = []
        self._edges = [0]
        for fragment in self._fragments:
            first = 0
            for group in fragment.row_groups:
                self._groups.append(_Group(fragment, group.id, first))
                self._edges.append(self._edges[-1] + group.num_rows)
                first += group.num_rows
        self.n_samples = self._edges[-1]
        self._settle(self._edges)
        self._decoded: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._busy: dict[int, threading.Lock] = {}

    def excluding(self, name: str) -> ParquetRows:
        """The same rows without one column."""
        return ParquetRows(self._dataset, self.columns, [name])

    def choosing(self, columns: Sequence[str]) -> ParquetRows:
        """The same rows with these columns, in this order."""
        return self if self.columns == list(columns) else ParquetRows(self._dataset, columns)

    def _column_type(self) -> np.dtype[Any]:
        """Check the type of every column in every file; the common type."""
        import pyarrow as pa

        single = True
        for fragment in self._fragments:
            schema = fragment.physical_schema
            for name in self.columns:
                if name in schema.names:
                    kind = schema.field(name).type
                elif self._is_partition(name):
                    kind = self._dataset.schema.field(name).type
                else:
                    raise ValueError(f"{fragment.path} has no column {name!r}, other files have it")
                if not (
                    pa.types.is_integer(kind)
                    or pa.types.is_floating(kind)
                    or pa.types.is_boolean(kind)
                    or pa.types.is_decimal(kind)
                ):
                    raise NotNumericError(name, fragment.path, _words(kind))
                single = single and kind == pa.float32()
        return np.dtype(np.float32 if single else np.float64)

    def truth_columns(self) -> list[str]:
        """The columns of true and false, which are read as 1 and 0."""
        import pyarrow as pa

        schema = self._dataset.schema
        return [name for name in self.columns if pa.types.is_boolean(schema.field(name).type)]

    def _is_partition(self, name: str) -> bool:
        """Whether the values of a column stand in the names of folders, not in the files."""
        partitioning = getattr(self._dataset, "partitioning", None)
        return partitioning is not None and name in partitioning.schema.names

    def read(self, start: int, stop: int) -> NDArray[Any]:
        group = int(np.searchsorted(self._edges, start, side="right")) - 1
        if stop <= start:
            return np.empty((0, self.n_features), self.dtype)
        if stop <= self._edges[group + 1]:
            first = self._edges[group]
            return self._group(group)[start - first : stop - first]
        out = np.empty((stop - start, self.n_features), self.dtype)
        done = start
        while done < stop:
            first, last = self._edges[group], min(self._edges[group + 1], stop)
            if last > done:
                out[done - start : last - start] = self._group(group)[done - first : last - first]
                done = last
            group += 1
        return out

    def _group(self, group: int) -> NDArray[Any]:
        """The rows of a row group, decoded by one thread while others wait for it."""
        with self._lock:
            rows = self._decoded.get(group)
            if rows is not None:
                self._decoded.move_to_end(group)
                return rows
            busy = self._busy.setdefault(group, threading.Lock())
        with busy:
            with self._lock:
                rows = self._decoded.get(group)
            if rows is None:
                rows = self._decode(group)
                with self._lock:
                    self._decoded[group] = rows
                    self._busy.pop(group, None)
                    held = sum(other.nbytes for other in self._decoded.values())
                    # Threads that share a pass may be a group apart.
                    while held > _DECODED_BYTES and len(self._decoded) > _DECODED_GROUPS:
                        held -= self._decoded.popitem(last=False)[1].nbytes
            return rows

    def _decode(self, group: int) -> NDArray[Any]:
        table = self._table(group, self.columns)
        count = table.num_rows
        values = [
            self._numbers(table.column(place), group, name)
            for place, name in enumerate(self.columns)
        ]
        out = np.empty((count, self.n_features), self.dtype)
        for start in range(0, count, _TURNED_ROWS):
            stop = min(start + _TURNED_ROWS, count)
            for place, column in enumerate(values):
                out[start:stop, place] = column[start:stop]
        return out

    def _table(self, group: int, columns: list[str]) -> Any:
        fragment, number, _ = self._groups[group]
        try:
            return fragment.subset(row_group_ids=[number]).to_table(
                schema=self._dataset.schema, columns=columns
            )
        except (OSError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise ValueError(f"{fragment.path} cannot be read: {text}") from None

    def _numbers(self, column: Any, group: int, name: str) -> NDArray[Any]:
        import pyarrow as pa

        self._refuse_nulls(column, group, name)
        if pa.types.is_boolean(column.type) or pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        return np.asarray(column.to_numpy())

    def _refuse_nulls(self, column: Any, group: int, name: str) -> None:
        if column.null_count:
            fragment, _, first = self._groups[group]
            row = first + int(np.argmax(column.is_null().to_numpy()))
            raise ValueError(
                f"column {name!r} of {fragment.path} has no value in row {row + 1} (index {row}); "
                "drop or impute such rows"
            )

    def column(self, name: str) -> NDArray[Any]:
        """One column of any type, as an array in memory: numbers, truth values or texts."""
        _check_name(name, self._dataset.schema.names)
        parts = []
        for group in range(len(self._groups)):
            values = self._table(group, [name]).column(0)
            self._refuse_nulls(values, group, name)
            parts.append(_plain_values(values))
        return np.concatenate(parts)

    def where(self, row: int, column: int) -> str:
        group = int(np.searchsorted(self._edges, row, side="right")) - 1
        fragment, _, first = self._groups[group]
        inside = first + row - self._edges[group]
        name = self.columns[column]
        return f"column {name!r} of {fragment.path} in row {inside + 1} (index {inside})"

    def _identity(self) -> Iterator[Any]:
        for fragment in self._fragments:
            yield os.path.basename(fragment.path), _describe(fragment.metadata)

    def _sampled_places(self) -> NDArray[np.int64]:
        used = [group for group in range(len(self._groups)) if self._rows_of(group)]
        chosen = np.linspace(0, len(used) - 1, _SAMPLED_GROUPS).astype(int)
        places = []
        for group in sorted({used[place] for place in chosen}):
            last = max(0, self._rows_of(group) - _SAMPLED_ROWS)
            inside = np.linspace(0, last, _SAMPLED_PLACES // _SAMPLED_GROUPS)
            places.append(self._edges[group] + inside.astype(np.int64))
        return np.unique(np.concatenate(places))

    def _rows_of(self, group: int) -> int:
        return self._edges[group + 1] - self._edges[group]

    def close(self) -> None:
        with self._lock:
            self._decoded.clear()


class ScaledRows(RowSource):
    """Rows less a vector, divided by another, as they are read.

    Parameters
    ----------
    rows : RowSource
        The rows.
    mean, scale : array of length d
        What to take off each column, and what to divide it by.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.rows import MemmapRows, ScaledRows
    >>> rows = MemmapRows(np.array([[1.0, 20.0], [3.0, 40.0]]))
    >>> ScaledRows(rows, np.array([2.0, 30.0]), np.array([1.0, 10.0])).read(0, 2).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    def __init__(self, rows: RowSource, mean: NDArray[Any], scale: NDArray[Any]) -> None:
        self._rows, self._mean, self._scale = rows, mean, scale
        self.n_samples, self.n_features = rows.shape
        self.dtype, self.spans, self.columns = rows.dtype, rows.spans, rows.columns

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


def _describe(metadata: Any) -> list[Any]:
    """What the end of a Parquet file says of its row groups, without where in the file they are."""
    found: list[Any] = [metadata.serialized_size]
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            facts = column.statistics
            limits = None if facts is None or not facts.has_min_max else (facts.min, facts.max)
            found.append((column.path_in_schema, column.total_compressed_size, limits))
    return found


def _open_dataset(source: Any) -> Any:
    dataset = _pyarrow_dataset()
    if isinstance(source, dataset.Dataset):
        kind = getattr(getattr(source, "format", None), "default_extname", None)
        if kind != "parquet":
            raise ValueError(
                f"only datasets of Parquet files can be read by rows, got one of {kind or 'arrays'}"
            )
        return source
    path = Path(source)
    files = parquet_files(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"folder {str(path)!r} has no .parquet files")
    try:
        if not path.is_dir():
            return dataset.dataset(path, format="parquet")
        return dataset.dataset(
            [str(file) for file in files],
            format="parquet",
            partitioning="hive" if any(file.parent != path for file in files) else None,
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read as Parquet: {text}") from None


def _plain_values(column: Any) -> NDArray[Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=str)
    return np.asarray(column.to_numpy())


def _words(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if pa.types.is_temporal(kind):
        return "dates or times"
    return f"values of type {kind}"


def _check_name(name: str, names: Sequence[str]) -> None:
    if name not in names:
        shown = ", ".join(repr(other) for other in names[:20])
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise ValueError(f"there is no column {name!r}; the columns are {shown}{more}")


def _pyarrow_dataset() -> Any:
    try:
        import pyarrow.dataset
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ModuleNotFoundError(
            'Parquet files need pyarrow: pip install "sorel[cli]"', name="pyarrow"
        ) from None
    return pyarrow.dataset


def open_rows(X: Any, columns: Sequence[str] | None = None) -> RowSource | None:
    """The rows behind `X`, if they are on disk.

    Parameters
    ----------
    X : object
        A memory-mapped array or a view of one; the path of a .npy file, of a folder of .npy
        blocks, of a Parquet file or of a folder of them; a ``pyarrow.dataset.Dataset``; or a
        :class:`RowSource`.
    columns : sequence of str, optional
        The columns of Parquet data to use; by default all.

    Returns
    -------
    RowSource or None
        None for anything else, such as an array in memory.

    Raises
    ------
    FileNotFoundError
        If a path leads nowhere.
    ValueError
        If the files cannot be used; the message names the file.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.rows import open_rows
    >>> open_rows(np.zeros((3, 2))) is None
    True
    """
    if isinstance(X, ParquetRows):
        return X if columns is None else X.choosing(columns)
    if isinstance(X, RowSource):
        return X
    if isinstance(X, np.ndarray):
        return None if backed_by_file(X) is None else MemmapRows(X)
    if is_parquet(X):
        return ParquetRows(X, columns)
    if not isinstance(X, (str, os.PathLike)):
        return None
    path = Path(X)
    if path.is_dir():
        if _npy_files(path):
            return BlockFolderRows(path)
        raise ValueError(f"folder {str(path)!r} has neither .npy nor .parquet files")
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    if path.suffix.lower() == ".npy":
        header = _read_header(path)
        if not np.prod(header.shape, dtype=object):
            raise ValueError(f"{path} is empty: shape {header.shape}")
        return MemmapRows(header.map())
    raise ValueError(
        f"{str(path)!r} cannot be read by rows: give a .npy file, a .parquet file, or a folder of "
        "such files"
    )


def open_data(X: Any, y: Any) -> tuple[RowSource | None, Any]:
    """The rows behind `X`, if they are on disk, and their targets in memory.

    Parameters
    ----------
    X : object
        What :func:`open_rows` takes.
    y : array, str or path
        Values; or the path of a .npy file or of a folder of one-dimensional .npy files; or the name
        of a column of Parquet data, which is then no feature. A path that leads nowhere is looked
        for in the folder of the blocks, too.

    Returns
    -------
    rows : RowSource or None
        None where X is not on disk.
    y : array
        The targets; `y` itself, if it is neither on disk nor in a column.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from sorel.rows import open_data, write_blocks
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = os.path.join(place, "blocks")
    ...     _ = write_blocks(folder, np.eye(3), [1.0, 2.0, 3.0])
    ...     open_data(folder, "y.npy")
    (BlockFolderRows(shape=(3, 3), dtype=float64), array([1., 2., 3.]))
    """
    if isinstance(y, str) and not y.lower().endswith(".npy"):
        if isinstance(X, ParquetRows):
            rows = X.excluding(y) if y in X.columns else X
            return rows, rows.column(y)
        if is_parquet(X):
            rows = ParquetRows(X, exclude=[y])
            return rows, rows.column(y)
    source = open_rows(X)
    if isinstance(y, np.ndarray) and backed_by_file(y) is not None:
        return source, np.array(y, subok=False)
    if isinstance(y, (str, os.PathLike)):
        return source, _load_targets(Path(y), source)
    return source, y


def _load_targets(path: Path, rows: RowSource | None) -> NDArray[Any]:
    if isinstance(rows, BlockFolderRows) and not path.exists() and (rows.folder / path).exists():
        path = rows.folder / path
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r} with targets")
    files = _npy_files(path) if path.is_dir() else [path]
    if not files or files[0].suffix.lower() != ".npy":
        raise ValueError(
            f"{str(path)!r} holds no targets: give a .npy file, or a folder of .npy files"
        )
    headers = [_read_header(file) for file in files]
    for header in headers:
        if len(header.shape) != 1 and header.shape[1:] != (1,):
            raise ValueError(f"{header.path} has shape {header.shape}; targets have one dimension")
    return np.concatenate([header.load().reshape(-1) for header in headers])


def is_parquet(X: Any) -> bool:
    """Whether X is Parquet: a dataset of pyarrow, a file, or a folder of files and no blocks."""
    if isinstance(X, (str, os.PathLike)):
        path = Path(X)
        if path.is_dir():
            return not _npy_files(path) and bool(parquet_files(path))
        return path.exists() and path.suffix.lower() in _PARQUET_ENDINGS
    # Whoever has such a dataset has imported pyarrow; nobody else needs to pay for the import.
    return type(X).__module__.partition(".")[0] == "pyarrow" and hasattr(X, "get_fragments")


def write_blocks(
    folder: str | os.PathLike[str],
    X: Any,
    y: ArrayLike | None = None,
    *,
    rows_per_block: int | None = None,
) -> BlockFolderRows:
    """Copy rows to a folder of .npy blocks, which are read without decoding.

    The folder appears whole or not at all.

    Parameters
    ----------
    folder : path
        A folder that does not exist yet.
    X : RowSource, path, or array of shape (n, d)
        The rows.
    y : array of length n, optional
        Targets; they become ``y.npy``, which is no block.
    rows_per_block : int, optional
        By default as many as make 64 MB.

    Returns
    -------
    BlockFolderRows
        The rows in their new place.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from sorel.rows import write_blocks
    >>> with tempfile.TemporaryDirectory() as place:
    ...     rows = write_blocks(os.path.join(place, "blocks"), np.eye(5), rows_per_block=2)
    ...     sorted(os.listdir(rows.folder))
    ['block_00000.npy', 'block_00001.npy', 'block_00002.npy']
    """
    source = open_rows(X)
    if source is None:
        source = MemmapRows(np.asarray(X))
    n, d = source.shape
    targets = None if y is None else np.asarray(y)
    if targets is not None and targets.shape != (n,):
        raise ValueError(f"X has {n} rows but y has shape {targets.shape}; they must agree")
    if targets is not None and targets.dtype.hasobject:
        targets = targets.astype(str)
    height = rows_per_block
    if height is None:
        height = max(MIN_SPAN_ROWS, _BLOCK_BYTES // (d * source.dtype.itemsize))
    if height < 1:
        raise ValueError(f"rows_per_block must be at least 1, got {rows_per_block!r}")
    with write_folder_atomically(folder) as place:
        for number, start in enumerate(range(0, n, height)):
            _write_block(place / f"block_{number:05d}.npy", source, start, min(start + height, n))
        if source.columns is not None:
            (place / _COLUMNS).write_text(json.dumps(source.columns), encoding="utf-8")
        if targets is not None:
            np.save(place / _TARGETS, targets)
    return BlockFolderRows(folder)


def _write_block(path: Path, source: RowSource, start: int, stop: int) -> None:
    # Written and not mapped: a disk that is full must raise an error, and not end the process.
    header = {
        "descr": np.lib.format.dtype_to_descr(source.dtype),
        "fortran_order": False,
        "shape": (stop - start, source.n_features),
    }
    step = max(1, _SPAN_BYTES // (source.n_features * source.dtype.itemsize))
    with path.open("xb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for low in range(start, stop, step):
            stream.write(source.read(low, min(low + step, stop)).data)
        stream.flush()
        os.fsync(stream.fileno())


def parquet_files(folder: Path) -> list[Path]:
    """Parquet files in a folder and below it, in natural order; hidden ones are left out."""
    found = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _PARQUET_ENDINGS
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]
    return sorted(found, key=_natural)


def _npy_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}")
    found = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() == ".npy" and not path.name.startswith(".")
    ]
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[Any]:
    """A key that sorts the numbers inside names as numbers."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), part) if part.isdigit() else (-1, part) for part in parts]


def _float_type(dtypes: Sequence[np.dtype[Any]], names: Sequence[str]) -> np.dtype[Any]:
    """The type to compute in: float32 if all are, else float64."""
    for dtype, name in zip(dtypes, names, strict=True):
        if dtype.kind not in "fiub":
            _refuse_type(dtype, name)
    single = all(dtype.newbyteorder("=") == np.float32 for dtype in dtypes)
    return np.dtype(np.float32 if single else np.float64)


def _refuse_type(dtype: np.dtype[Any], name: str) -> NoReturn:
    raise ValueError(f"{name} must be numeric, got dtype {dtype}; encode text columns first")
