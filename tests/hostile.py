"""Files made to harm whoever reads them: small ones that ask for gigabytes, and broken ones.

`MODELS`, `CHECKPOINTS` and `TABLES` name functions that write one file each and return its path;
`NPY_HEADS` are starts of .npy files. Used by the tests and by `tests/torture.py`, which measures
what a command takes for them.
"""

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# What the largest of them unfold to, and how many members or texts others have.
MEGABYTE = 1 << 20
HUGE = 1 << 30
MANY = 200_000

MODELS: dict[str, Callable[[Path, Path], Path]] = {}
CHECKPOINTS: dict[str, Callable[[Path, Path], Path]] = {}


def _remade(make: Callable[..., Any], whole: Path, path: Path) -> Path:
    """Write an archive anew, after `make` has changed its members and added others."""
    with zipfile.ZipFile(whole) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        make(members, archive)
        for name, content in members.items():
            # Nothing in a checkpoint is packed.
            kind = zipfile.ZIP_STORED if name == "header.npy" else None
            archive.writestr(name, content, kind)
    return path


def _into(makers: dict[str, Callable[[Path, Path], Path]]) -> Callable[..., Any]:
    """A decorator that keeps what changes members and archive as a maker of files."""

    def keep(make: Callable[..., Any]) -> Callable[..., Any]:
        makers[make.__name__] = partial(_remade, make)
        return make

    return keep


def _fill(archive, name, size, head=b"", letter=b"\0"):
    """Add a member of so many equal bytes, without holding them."""
    with archive.open(name, "w", force_zip64=True) as stream:
        stream.write(head)
        for _ in range(size // MEGABYTE):
            stream.write(letter * MEGABYTE)


def _fill_array(archive: zipfile.ZipFile, size: int, name: str = "big.npy") -> None:
    _fill(archive, name, size, npy_head((size // 8,)))


def npy_head(shape: Any, dtype: str = "<f8") -> bytes:
    """The start of a .npy file that holds what its header says, or not."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return npy_text(text.encode())


def npy_text(text: bytes) -> bytes:
    """The start of a .npy file with any text for a header."""
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _node(module: str, name: str, loader: str, number: int, **more: Any) -> dict[str, Any]:
    return {"__class__": name, "__module__": module, "__loader__": loader, "__id__": number, **more}


def _array_node(number: int = 10**6) -> dict[str, Any]:
    return _node("numpy", "ndarray", "NdArrayNode", number, type="numpy", file="big.npy")


def _text_nodes(count: int) -> list[dict[str, Any]]:
    node = partial(_node, "builtins", "str", "JsonNode", content=json.dumps("a"), is_json=True)
    return [node(10**6 + number) for number in range(count)]


def _set_coefficients(members: dict[str, bytes], node: Any) -> None:
    """Let the coefficients of a saved model be another node, or a list of nodes."""
    if isinstance(node, list):
        node = _node("builtins", "list", "ListNode", 10**6 - 1, content=node)
    schema = json.loads(members["schema.json"])
    schema["content"]["content"]["coef_"] = node
    members["schema.json"] = json.dumps(schema).encode()


@_into(MODELS)
def zeros_in_an_array(members, archive):
    _set_coefficients(members, _array_node())
    _fill_array(archive, HUGE)


@_into(MODELS)
def one_array_many_times(members, archive):
    """A thousand arrays that share one member of the archive."""
    _set_coefficients(members, [_array_node(10**6 + number) for number in range(1000)])
    _fill_array(archive, 20 * MEGABYTE)


@_into(MODELS)
def size_that_is_a_lie(members, archive):
    """A member of gigabytes that the directory says is short."""
    zeros_in_an_array(members, archive)
    archive.getinfo("big.npy").file_size = 1000


@_into(MODELS)
def many_members(members, archive):
    archive.writestr(zipfile.ZipInfo("x"), b"")
    for number in range(MANY):
        entry = zipfile.ZipInfo(f"{number:x}")
        entry.header_offset = archive.getinfo("x").header_offset
        entry.CRC = entry.compress_size = entry.file_size = 0
        archive.filelist.append(entry)


@_into(MODELS)
def top_level_dtype(members, archive):
    """A model that is no model but a type of numbers."""
    node = _node("numpy", "dtype", "DTypeNode", 10**6 + 1, content=_array_node())
    schema = {**json.loads(members["schema.json"]), **node}
    members["schema.json"] = json.dumps(schema).encode()
    members["big.npy"] = npy_head((0,))


@_into(MODELS)
def as_much_as_it_may(members, archive):
    """Just below all limits: texts, arrays, and a summary."""
    _set_coefficients(members, [*_text_nodes(60_000), _array_node(10**6 - 2)])
    header = json.loads(members["sorel.json"])
    header["summary"]["columns"] = {f"{number:x}": "" for number in range(120_000)}
    members["sorel.json"] = json.dumps(header).encode()
    _fill_array(archive, 15 * MEGABYTE)


def _spaces(members, archive):
    """A header with gigabytes of spaces behind it."""
    _fill(archive, "sorel.json", HUGE, members.pop("sorel.json"), b" ")


def _lists(members, archive):
    """A schema with many empty lists in it."""
    lists = b"[]," * 2 * 10**7
    members["schema.json"] = members["schema.json"].rstrip()[:-1] + b', "extra": [%s0]}' % lists


MODELS |= {
    what: partial(_remade, make)
    for what, make in {
        "zeros_that_nobody_asked_for": lambda _, archive: _fill(archive, "big.bin", HUGE),
        # Each text is an object of its own when it is read.
        "nodes_in_the_schema": lambda members, _: _set_coefficients(members, _text_nodes(5 * MANY)),
        # Deeper than any reader goes.
        "deep_nesting": lambda members, _: members.update({"schema.json": b"[" * 10**6}),
        "spaces_in_the_header": _spaces,
        "lists_in_the_schema": _lists,
    }.items()
}


def _set_header(members: dict[str, bytes], text: bytes) -> None:
    members["header.npy"] = npy_head((len(text),), "|u1") + text


@_into(CHECKPOINTS)
def packed_checkpoint(members, archive):
    """The weights of a checkpoint as gigabytes of zeros."""
    del members["weights.npy"]
    _fill_array(archive, HUGE, "weights.npy")


@_into(CHECKPOINTS)
def long_header_of_a_checkpoint(members, archive):
    """A header of a checkpoint with millions of lists."""
    _set_header(members, b"[" + b"[]," * 3 * 10**6 + b"0]")


@_into(CHECKPOINTS)
def place_outside_a_generator(members, archive):
    """The state of a random generator that points outside its own memory."""
    header = json.loads(np.load(io.BytesIO(members["header.npy"])).tobytes())
    state = dict(np.random.MT19937(0).state)
    state["state"] = {"key": state["state"]["key"].tolist(), "pos": 2**30}
    _set_header(members, json.dumps({**header, "generator": state}).encode())


# Starts of .npy files that are none, by what is wrong with them.
NPY_HEADS = {
    "negative shape": npy_head((-4, 2)),
    "no tuple": npy_head([4, 2]),
    "huge shape": npy_head((2**62, 2**62)),
    "type of no size": npy_head((2**40, 2), "|V0"),
    "objects": npy_head((4, 2), "|O"),
    "dates": npy_head((4, 2), "<M8[s]"),
    "no dictionary": npy_text(b"[1, 2, 3]"),
    "control characters": npy_text(b"{'\x1b[31m': \x00}"),
    "digits without end": npy_text(b"9" * 5000),
    "format of tomorrow": b"\x93NUMPY\x09\x00\x04\x00\x00\x00{} \n",
    "length of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{}",
    "nothing after the magic": b"\x93NUMPY",
}


def _table(path: Path, lines: Callable[[], Iterable[str]]) -> Path:
    with path.open("w") as stream:
        stream.writelines(lines())
    return path


CSV: dict[str, Callable[[], Iterable[str]]] = {
    "different texts": lambda: ["t,y\n", *(f"{i:x},{i % 9}\n" for i in range(1_100_000))],
    "quote without end": lambda: ['t,y\n"', "1,2\n" * 2_400_000],
    "many short rows": lambda: ["a,y\n", *["0,0\n1,1\n3,2\n4,1\n"] * 625_000],
}


def _parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table(columns), path, compression="zstd", **options)
    return path


def as_many_equal_numbers_as_it_may(path: Path) -> Path:
    """Numbers of a Parquet file that are counted, not stored, below what it may unfold to."""
    tile = np.arange(16) % 5.0
    return _parquet(path, {"a": np.tile(tile, 78_000), "y": np.tile(tile[::-1], 78_000)})


def equal_numbers(path: Path) -> Path:
    """Kilobytes that stand for many megabytes of equal numbers."""
    return _parquet(path, {"a": np.zeros(4 * 10**6), "y": np.zeros(4 * 10**6)})


def one_text_many_times(path: Path) -> Path:
    """A long text that is stored once, in thousands of rows."""
    import pyarrow as pa

    texts = pa.DictionaryArray.from_arrays(np.arange(4000) % 2, ["x" * 10**6, "y"])
    return _parquet(path, {"t": texts, "y": np.arange(4000.0)}, store_schema=False)


def texts_by_differences(path: Path) -> Path:
    """Long texts of which each is told by how it differs from the one before."""
    columns = {"t": ["x" * 10**6 + f"{i}" for i in range(90)], "y": np.arange(90.0)}
    encoding = {"t": "DELTA_BYTE_ARRAY", "y": "PLAIN"}
    return _parquet(path, columns, use_dictionary=False, column_encoding=encoding)


def lists_of_numbers(path: Path) -> Path:
    """A few rows, each of which is a list of a million numbers."""
    import pyarrow as pa

    lists = pa.ListArray.from_arrays(np.arange(0, 10**7, 10**6, np.int32), np.zeros(9 * 10**6))
    return _parquet(path, {"a": lists, "y": np.arange(9.0)})


def _named(*makers: Callable[..., Path]) -> dict[str, Callable[..., Path]]:
    return {make.__name__: make for make in makers}


# Parquet files that unfold to more than they may.
UNFOLDING = _named(equal_numbers, one_text_many_times, texts_by_differences, lists_of_numbers)

TABLES: dict[str, Callable[[Path], Path]] = {
    **{name: partial(_table, lines=lines) for name, lines in CSV.items()},
    **UNFOLDING,
    **_named(as_many_equal_numbers_as_it_may),
}
