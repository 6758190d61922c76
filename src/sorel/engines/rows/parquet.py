"""Rows of Parquet files, decoded a row group at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel._lib.names import missing_columns
from sorel.engines.rows.source import PiecedRows, natural

# Decoded row groups that stay in memory: threads that share a pass may be a group apart.
_DECODED_GROUPS = 4

PARQUET_ENDINGS = (".parquet", ".pq")


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


class ParquetRows(PiecedRows):
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
        self._set_spans(self._edges)
        self._decoded: dict[int, NDArray[Any]] = {}
        self._lock = threading.Lock()

    def choosing(self, columns: Sequence[str]) -> ParquetRows:
        """The same rows with these columns, in this order."""
        return self if self.columns == list(columns) else ParquetRows(self._dataset, columns)

    def _column_type(self) -> np.dtype[Any]:
        """Check the type of every column in every file; the common type."""
        import pyarrow as pa

        numeric = (
            pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal
        )  # fmt: skip
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
                if not any(is_kind(kind) for is_kind in numeric):
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

    def _piece(self, piece: int, start: int, stop: int) -> NDArray[Any]:
        return self._group(piece)[start:stop]

    def _group(self, group: int) -> NDArray[Any]:
        """The rows of a row group, decoded by the threads of pyarrow while ours wait."""
        with self._lock:
            rows = self._decoded.pop(group, None)
            if rows is None:
                rows = self._decode(group)
            # The group that was asked for last stands last.
            self._decoded[group] = rows
            if len(self._decoded) > _DECODED_GROUPS:
                del self._decoded[next(iter(self._decoded))]
        return rows

    def _decode(self, group: int) -> NDArray[Any]:
        table = self._table(group, self.columns)
        named = zip(self.columns, table.columns, strict=True)
        values = [self._numbers(column, group, name) for name, column in named]
        return np.column_stack(values).astype(self.dtype, copy=False)

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
        group, inside = self._place(row)
        fragment, _, first = self._groups[group]
        inside += first
        name = self.columns[column]
        return f"column {name!r} of {fragment.path} in row {inside + 1} (index {inside})"

    def _identity(self) -> Iterator[Any]:
        for fragment in self._fragments:
            yield os.path.basename(fragment.path), fragment.metadata.to_dict()

    def close(self) -> None:
        with self._lock:
            self._decoded.clear()


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
    nested = path.is_dir() and any(file.parent != path for file in files)
    try:
        return dataset.dataset(
            list(map(str, files)), format="parquet", partitioning="hive" if nested else None
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
        raise ValueError(missing_columns([name], names))


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


def parquet_files(folder: Path) -> list[Path]:
    """Parquet files in a folder and below it, in natural order; hidden ones are left out."""
    found = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in PARQUET_ENDINGS
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]
    return sorted(found, key=natural)
