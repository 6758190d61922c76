"""Downloads, judged by their content.

Whatever table an archive, a spreadsheet, an ARFF file or plain text holds must have the published
numbers, by a checksum of the numbers themselves; nothing else is handed on.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.research.datasets.published import PaperDataset

FloatArray = NDArray[np.float64]

# Attempts at each address.
_ATTEMPTS = 3
# Seconds before the second attempt, doubled before each further one.
_PAUSE = 0.5
# Seconds to connect, and seconds that a server may be silent.
_TIMEOUT = (10.0, 30.0)
# Seconds that one download may take.
_MAX_SECONDS = 300.0
# Bytes that one download, and one file in it, may have.
_MAX_BYTES = 50_000_000


class DownloadError(Exception):
    """No address gave the set; the message says what each of them did."""


def fetch_table(entry: PaperDataset) -> FloatArray:
    """The verified table from the first address that gives it.

    Every address has its turn before the first is tried again, after a pause. One that refuses the
    request for good (404 and the like) is not asked again.
    """
    addresses = entry.urls
    failures: dict[str, str] = {}
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        for url in list(addresses):
            try:
                return _extract(_get(url), entry)
            except ModuleNotFoundError as error:
                failures[url] = f'reading it needs {error.name}: pip install "sorel[data]"'
                addresses.remove(url)
            except OSError as error:
                # All errors of requests are OSErrors; those with a status come from the server.
                status = getattr(getattr(error, "response", None), "status_code", None)
                failures[url] = f"HTTP status {status}" if status else _network_trouble(error)
                if status is not None and 400 <= status < 500 and status not in (408, 429):
                    addresses.remove(url)
            except ValueError as error:
                failures[url] = str(error)
        if not addresses:
            break
    raise DownloadError("; ".join(f"{reason} ({url})" for url, reason in failures.items()))


def _get(url: str) -> bytes:
    """The body of one response, in memory: a download that breaks off leaves nothing behind."""
    import requests

    body, deadline = bytearray(), time.monotonic() + _MAX_SECONDS
    with requests.get(url, stream=True, timeout=_TIMEOUT) as response:
        response.raise_for_status()
        for part in response.iter_content(4096):
            body += part
            if time.monotonic() > deadline:
                raise TimeoutError(f"the download took more than {_MAX_SECONDS:g} s")
            if len(body) > _MAX_BYTES:
                raise OSError(f"the download has more than {_MAX_BYTES:g} bytes")
    return bytes(body)


def _network_trouble(error: OSError) -> str:
    """What went wrong between here and the server, without the words of four layers of software."""
    from requests import exceptions

    text = " ".join(str(error).split())
    if not isinstance(error, exceptions.RequestException):
        return text
    if "timed out" in text:
        return "the server timed out"
    if isinstance(error, exceptions.SSLError):
        return "the server's certificate was refused"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the download broke off"
    return "no connection to the server"


# Cells are text, numbers or None.
_Rows = Iterable[Sequence[Any]]
_TABLE_SUFFIXES = (".xlsx", ".xls", ".data", ".csv", ".txt", ".arff", ".zip")


def _extract(data: bytes, entry: PaperDataset) -> FloatArray:
    """The table in a download whose numbers are the published ones."""
    seen = []
    try:
        for label, rows in _tables(data, "the file"):
            table = _numbers(rows, len(entry.columns))
            if entry.verified(table):
                return table
            seen.append(f"{label}: {table.shape[0]} x {table.shape[1]}")
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # Readers of archives and spreadsheets fail in many ways on a damaged file.
        raise ValueError(f"{len(data)} bytes were received and are damaged: {error!r}") from None
    found = f"other tables than the published one ({', '.join(seen)})" if seen else "no table"
    raise ValueError(f"{len(data)} bytes were received and hold {found}")


def _tables(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    """Every table in a file, told by its first bytes: spreadsheet, archive, ARFF or plain text."""
    if data.startswith(b"PK"):
        yield from _unzipped(data, label)
    elif data.startswith(b"\xd0\xcf\x11\xe0"):
        yield from _xls(data, label)
    else:
        yield label, _text_rows(data.decode("utf-8-sig", errors="replace"))


def _unzipped(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if "xl/workbook.xml" in archive.namelist():
            yield from _xlsx(data, label)
            return
        # Text beside a spreadsheet is a description more often than data.
        names = sorted(archive.namelist(), key=lambda name: name.lower().endswith((".txt", ".csv")))
        for name in names:
            path = PurePosixPath(name)
            if path.suffix.lower() in _TABLE_SUFFIXES:
                with archive.open(name) as stream:
                    # Asked for all at once, zipfile unpacks all, whatever size was declared.
                    yield from _tables(stream.read(_MAX_BYTES), path.name)


def _xlsx(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    for sheet in book.worksheets:
        # The size that a file claims for a sheet may be wrong.
        sheet.reset_dimensions()
        yield f"{label} ({sheet.title})", sheet.iter_rows(values_only=True)


def _xls(data: bytes, label: str) -> Iterator[tuple[str, _Rows]]:
    import xlrd

    book = xlrd.open_workbook(file_contents=data, logfile=io.StringIO())
    for sheet in book.sheets():
        yield f"{label} ({sheet.name})", map(sheet.row_values, range(sheet.nrows))


def _text_rows(text: str) -> Iterator[Sequence[str]]:
    """Cells of ARFF, or of lines separated by commas, semicolons or white space."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.strip().lower() == "@data"]
    if starts:
        lines = [line for line in lines[starts[0] + 1 :] if not line.lstrip().startswith("%")]
    for line in lines:
        separator = next((mark for mark in ",;" if mark in line), None)
        yield line.split(separator)


def _numbers(rows: _Rows, columns: int) -> FloatArray:
    """The block of numbers below whatever header a table has; empty rows and columns go."""
    table: list[list[float]] = []
    for row in rows:
        cells = ["" if cell is None else str(cell).strip(" \t'\"") for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            numbers = []
        if len(numbers) == columns:
            table.append(numbers)
        elif table:
            # Something else below the numbers: not the table that was looked for.
            break
    return np.array(table, dtype=np.float64).reshape(len(table), columns)
