"""The sets of the paper from their sources, judged by content.

Whatever table an archive, a spreadsheet, an ARFF file or plain text holds must have the published
numbers, by a checksum of the numbers themselves; nothing else is handed on.
"""

from __future__ import annotations

import io
import re
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sorel._lib.extras import import_extra
from sorel._lib.text import shorten
from sorel.engines.base import FloatArray
from sorel.research.datasets.published import PaperDataset

# Seconds that a server may be silent.
_TIMEOUT = 30.0
# Bytes that one download, and one file in it, may have.
_MAX_BYTES = 50_000_000

# The rows of a table; cells are text, numbers or None.
_Rows = Iterable[Sequence[Any]]


def fetch_table(entry: PaperDataset) -> FloatArray:
    """The table at the address of a set, if its numbers are the published ones."""
    try:
        with urllib.request.urlopen(entry.address, timeout=_TIMEOUT) as response:
            return _extract(response.read(_MAX_BYTES), entry)
    except Exception as error:
        # Readers of archives and spreadsheets fail in many ways on a damaged file.
        reason = shorten(error) or type(error).__name__
        raise FileNotFoundError(f"the download of {entry.address} failed: {reason}") from None


def _extract(data: bytes, entry: PaperDataset) -> FloatArray:
    """The table in a download whose numbers are the published ones."""
    seen = []
    for rows in _tables(data):
        table = _numbers(rows, len(entry.columns))
        if entry.verified(table):
            return table
        seen.append(f"{len(table)} rows of {len(entry.columns)} numbers")
    raise ValueError(f"it holds no table with the published numbers, but {' and '.join(seen)}")


def _tables(data: bytes) -> Iterator[_Rows]:
    """Every table in a file, told by its first bytes: spreadsheet, archive or text."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):
        xlrd = import_extra("xlrd", "it is a spreadsheet and needs", "data")
        for sheet in xlrd.open_workbook(file_contents=data).sheets():
            yield map(sheet.row_values, range(sheet.nrows))
    elif data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if "xl/workbook.xml" in archive.namelist():
                openpyxl = import_extra("openpyxl", "it is a spreadsheet and needs", "data")
                for sheet in openpyxl.load_workbook(io.BytesIO(data), data_only=True).worksheets:
                    yield sheet.values
                return
            for name in archive.namelist():
                with archive.open(name) as stream:
                    # Asked for all at once, zipfile unpacks all, whatever size was declared.
                    yield from _tables(stream.read(_MAX_BYTES))
    else:
        lines = data.decode("utf-8-sig", errors="replace").splitlines()
        yield (re.split(r"[,;\s]+", line) for line in lines)


def _numbers(rows: _Rows, columns: int) -> FloatArray:
    """The rows of so many numbers, empty cells left out; headers and comments have others."""
    table = []
    for row in rows:
        cells = [str(cell) for cell in row if cell is not None]
        try:
            numbers = [float(cell) for cell in cells if cell.strip()]
        except ValueError:
            continue
        if len(numbers) == columns:
            table.append(numbers)
    return np.array(table, dtype=np.float64).reshape(len(table), columns)
