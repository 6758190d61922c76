"""What the values of a Parquet file take in memory, found out before they are read.

A file of some kilobytes can hold gigabytes: equal numbers are counted, a text is stored once
however often it occurs, and texts are told by how they differ from the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMBER = np.dtype(np.float64).itemsize
# Bytes of a text that is an object, besides its letters.
_TEXT = 32
# Bytes of the description and the buffers of a column in a group of rows, however few it has.
_COLUMN = 2500
# Rows of texts that are looked at together.
_ROWS = 4096
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
    # For each column of texts the bytes that are stored by differences.
    texts: dict[str, int] = {}
    facts, names = file.metadata, set(file.schema_arrow.names)
    for number in range(facts.num_row_groups):
        group = facts.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            name, is_text = column.path_in_schema, column.physical_type == "BYTE_ARRAY"
            width = _TEXT if is_text else max(_NUMBER, facts.schema.column(place).length)
            size = column.total_uncompressed_size
            # Numbers may be packed more tightly than they are held, and texts may be long.
            total += max(width * column.num_values, size, _COLUMN)
            # Texts in lists are not looked at.
            if is_text and name in names:
                stored = size if _BY_DIFFERENCES in column.encodings else 0
                texts[name] = max(stored, texts.get(name, 0))
        if total > limit:
            return total
    # Read as a dictionary, a text is not copied for each of its rows. Texts that are told by
    # differences cannot be had so, and each of them may be as long as all that is stored.
    whole = [name for name, stored in texts.items() if not stored]
    words = pyarrow.parquet.ParquetFile(source, read_dictionary=whole) if whole else file
    for name, stored in texts.items():
        reader, rows = (file, max(1, limit // stored)) if stored else (words, _ROWS)
        for batch in reader.iter_batches(batch_size=rows, columns=[name], use_threads=False):
            total += _length(batch.column(0))
            if total > limit:
                return total
    return total


def _length(values: Any) -> int:
    """Bytes of the texts of an array, of which each different one may be stored once."""
    import pyarrow as pa
    import pyarrow.compute

    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    lengths = pyarrow.compute.binary_length(values.dictionary).to_numpy(zero_copy_only=False)
    words = values.indices.drop_null().to_numpy()
    return int(np.asarray(lengths, np.int64)[words].sum())
