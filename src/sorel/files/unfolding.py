"""What the values of a Parquet file take in memory, found out before they are read.

A file of some kilobytes can hold gigabytes: equal numbers are counted, a text is stored once
however often it occurs, and texts are told by how they differ from the one before.
"""

from __future__ import annotations

from typing import Any

# Bytes of a value at least, where a text is an object, and of a column in a group of rows: its
# description and its buffers count as so many numbers, however few it has.
_NUMBER, _TEXT = 8, 32
_COLUMN = 2500

# Rows of texts that are looked at together: where a text is stored once, and where it may be as
# long as all that came before.
_WORDS, _DIFFERENCES = 4096, 8
_BY_DIFFERENCES = "DELTA_BYTE_ARRAY"


def unfolded_bytes(file: Any, source: Any, limit: int) -> int:
    """The bytes that the values of a Parquet file take; more than the limit need not be counted.

    Parameters
    ----------
    file : pyarrow.parquet.ParquetFile
        The file.
    source : pyarrow.NativeFile
        What it reads from.
    limit : int
        The count ends when it is above.
    """
    import pyarrow.parquet

    total = 0
    texts: dict[str, bool] = {}
    facts, names = file.metadata, set(file.schema_arrow.names)
    for number in range(facts.num_row_groups):
        group = facts.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            name, is_text = column.path_in_schema, column.physical_type == "BYTE_ARRAY"
            width = _TEXT if is_text else max(_NUMBER, facts.schema.column(place).length)
            # Numbers may be packed more tightly than they are held, and texts may be long.
            total += max(width * column.num_values, column.total_uncompressed_size, _COLUMN)
            # Texts in lists are not looked at.
            if is_text and name in names:
                texts[name] = texts.get(name, False) or _BY_DIFFERENCES in column.encodings
        if total > limit:
            return total
    # With the words of a column apart from its rows none is copied for each of them; texts that are
    # told by differences cannot be had so.
    apart = [name for name, by_differences in texts.items() if not by_differences]
    words = pyarrow.parquet.ParquetFile(source, read_dictionary=apart) if apart else file
    for name, by_differences in texts.items():
        reader, rows = (file, _DIFFERENCES) if by_differences else (words, _WORDS)
        for batch in reader.iter_batches(batch_size=rows, columns=[name], use_threads=False):
            total += _length(batch.column(0))
            if total > limit:
                return total
    return total


def _length(values: Any) -> int:
    """Bytes of the texts of an array, of which each different one may be stored once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    lengths = pyarrow.compute.binary_length(values.dictionary).to_numpy(zero_copy_only=False)
    words = values.indices.drop_null().to_numpy()
    return int(np.asarray(lengths, np.int64)[words].sum())
