"""Rows of memory-mapped arrays and of folders of .npy blocks.

The operating system reads the pages; those that were read long ago are handed back to it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.engines.rows import source
from sorel.engines.rows.source import PiecedRows, RowSource, natural
from sorel.files.archives import bounded_json

# Files of a folder of blocks that hold no rows.
TARGETS = "y.npy"
COLUMNS = "columns.json"


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


def _plain(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows as loops take them: in place where they can be."""
    return np.asarray(np.require(rows, dtype, ["C", "A"]))


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
        self._set_spans([0, self.n_samples])
        self._array, self._lock, self._held = array, threading.Lock(), 0
        # The pages of a private mapping hold what the user wrote to it, and must stay.
        kept = owner is None or owner.mode == "c" or not hasattr(mmap, "MADV_DONTNEED")
        self._mapping = None if owner is None or kept else _mapping_of(owner)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        rows = self._array[start:stop]
        # Rows of an array in columns are on all of its pages.
        size = rows.nbytes if self._array.flags.c_contiguous else self._array.nbytes
        with self._lock:
            self._held += size
            if self._held > source.BUFFER_BYTES:
                self.close()
                self._held = size
        return _plain(rows, self.dtype)

    def where(self, row: int, column: int) -> str:
        return f"{self._name}[{row}, {column}]"

    def _identity(self) -> Iterator[Any]:
        yield os.path.basename(self._name)

    def close(self) -> None:
        """Let the pages go. One that is still looked at is read again, and costs time only."""
        if self._mapping is not None:
            with contextlib.suppress(ValueError, OSError):  # closed by its owner
                self._mapping.madvise(mmap.MADV_DONTNEED)


def map_array(path: Path) -> np.memmap:
    """The array of a .npy file, mapped into memory; what is damaged or no array is refused."""
    try:
        with warnings.catch_warnings():
            # A garbled text may be a number or an escape that Python would rather not see.
            warnings.simplefilter("ignore")
            return np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy evaluates headers: garbled ones raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{path} is not a whole .npy file of numbers: {reason}; write or copy it again"
        ) from None


class BlockFolderRows(PiecedRows):
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
        paths = [path for path in npy_files(self.folder) if path.name != TARGETS]
        if not paths:
            raise ValueError(f"folder {str(folder)!r} has no .npy files with rows")
        self._paths, self._edges, dtypes = paths, [0], []
        for path in paths:
            block = map_array(path)
            if block.ndim != 2:
                raise ValueError(
                    f"{path} has shape {block.shape}; a block of rows has 2 dimensions"
                )
            if path == paths[0]:
                self.n_features = block.shape[1]
            if block.shape[1] != self.n_features:
                raise ValueError(
                    f"blocks must have the same number of columns: {paths[0]} has "
                    f"{self.n_features}, {path} has {block.shape[1]}"
                )
            self._edges.append(self._edges[-1] + block.shape[0])
            dtypes.append(block.dtype)
        self.dtype = _float_type(dtypes, paths)
        self.n_samples = self._edges[-1]
        self.columns = self._read_columns()
        self._set_spans(self._edges)

    def _read_columns(self) -> list[str] | None:
        path = self.folder / COLUMNS
        if not path.exists():
            return None
        try:
            # Names of at most 255 letters, in at most six bytes each.
            limit = 2000 * self.n_features
            with path.open("rb") as stream:
                columns = bounded_json(stream.read(limit), limit)
        except (ValueError, RecursionError):
            columns = None
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ValueError(f"{path} is not a list of column names")
        if len(columns) != self.n_features:
            raise ValueError(
                f"{path} names {len(columns)} columns, but {self._paths[0]} has {self.n_features}"
            )
        return columns

    def _piece(self, piece: int, start: int, stop: int) -> NDArray[Any]:
        # A mapping of its own for each piece: its pages go with the array that looks at them.
        block = np.lib.format.open_memmap(self._paths[piece], mode="r")
        return _plain(block[start:stop], self.dtype)

    def where(self, row: int, column: int) -> str:
        block, inside = self._place(row)
        return f"{self._paths[block]}[{inside}, {column}]"

    def _identity(self) -> Iterator[Any]:
        for path in self._paths:
            yield path.name, path.stat().st_size


def npy_files(folder: Path) -> list[Path]:
    """The .npy files in a folder, in natural order; hidden ones are left out."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}")
    found = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() == ".npy" and not path.name.startswith(".")
    ]
    return sorted(found, key=natural)


def _float_type(dtypes: Sequence[np.dtype[Any]], names: Sequence[Any]) -> np.dtype[Any]:
    """The type to compute in: float32 if all are, else float64."""
    for dtype, name in zip(dtypes, names, strict=True):
        if dtype.kind not in "fiub":
            raise ValueError(
                f"{name} must be numeric, got dtype {dtype}; encode text columns first"
            )
    single = all(dtype.newbyteorder("=") == np.float32 for dtype in dtypes)
    return np.dtype(np.float32 if single else np.float64)
