"""Rows that stay on disk: memory-mapped arrays, folders of .npy blocks, and Parquet.

A :class:`RowSource` hands out consecutive rows as small arrays, to several threads at once, and
keeps next to nothing of what it has read in memory. :func:`open_rows` finds the source that suits
what a user gives. Targets are short and are loaded whole: :func:`open_data` opens both.
"""

from sorel.engines.rows.mapped import BlockFolderRows, MemmapRows, backed_by_file
from sorel.engines.rows.opening import is_parquet, open_data, open_rows, write_blocks
from sorel.engines.rows.parquet import NotNumericError, ParquetRows
from sorel.engines.rows.source import RowSource, ScaledRows

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
