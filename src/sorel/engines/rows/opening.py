"""From what a user gives to rows: opening files, folders and datasets, and copying to blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel.engines.rows.mapped import (
    COLUMNS,
    TARGETS,
    BlockFolderRows,
    MemmapRows,
    backed_by_file,
    map_array,
    npy_files,
)
from sorel.engines.rows.parquet import PARQUET_ENDINGS, ParquetRows, parquet_files
from sorel.engines.rows.source import BUFFER_BYTES, MIN_SPAN_ROWS, SPAN_BYTES, RowSource
from sorel.files.atomic import write_folder_atomically


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
        if npy_files(path):
            return BlockFolderRows(path)
        raise ValueError(f"folder {str(path)!r} has neither .npy nor .parquet files")
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    if path.suffix.lower() == ".npy":
        return MemmapRows(map_array(path))
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
            rows = X.choosing([name for name in X.columns if name != y])
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
    files = npy_files(path) if path.is_dir() else [path]
    if not files or files[0].suffix.lower() != ".npy":
        raise ValueError(
            f"{str(path)!r} holds no targets: give a .npy file, or a folder of .npy files"
        )
    arrays = [map_array(file) for file in files]
    for array in arrays:
        if array.ndim != 1 and array.shape[1:] != (1,):
            raise ValueError(
                f"{array.filename} has shape {array.shape}; targets have one dimension"
            )
    return np.concatenate([array.reshape(-1) for array in arrays])


def is_parquet(X: Any) -> bool:
    """Whether X is Parquet: a dataset of pyarrow, a file, or a folder of files and no blocks."""
    if isinstance(X, (str, os.PathLike)):
        path = Path(X)
        if path.is_dir():
            return not npy_files(path) and bool(parquet_files(path))
        return path.exists() and path.suffix.lower() in PARQUET_ENDINGS
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
        height = max(MIN_SPAN_ROWS, BUFFER_BYTES // (d * source.dtype.itemsize))
    if height < 1:
        raise ValueError(f"rows_per_block must be at least 1, got {rows_per_block!r}")
    with write_folder_atomically(folder) as place:
        for number, start in enumerate(range(0, n, height)):
            _write_block(place / f"block_{number:05d}.npy", source, start, min(start + height, n))
        if source.columns is not None:
            (place / COLUMNS).write_text(json.dumps(source.columns), encoding="utf-8")
        if targets is not None:
            np.save(place / TARGETS, targets)
    return BlockFolderRows(folder)


def _write_block(path: Path, source: RowSource, start: int, stop: int) -> None:
    # Written and not mapped: a disk that is full must raise an error, and not end the process.
    header = {
        "descr": np.lib.format.dtype_to_descr(source.dtype),
        "fortran_order": False,
        "shape": (stop - start, source.n_features),
    }
    step = max(1, SPAN_BYTES // (source.n_features * source.dtype.itemsize))
    with path.open("xb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for low in range(start, stop, step):
            stream.write(source.read(low, min(low + step, stop)).data)
        stream.flush()
        os.fsync(stream.fileno())
