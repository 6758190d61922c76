"""Files made to harm whoever reads them: small ones that ask for gigabytes, and broken ones.

`MODELS`, `CHECKPOINTS` and `TABLES` name functions that write one file each and return its path;
`NPY_HEADS` are starts of .npy files. Used by the tests and by `tests/torture.py`, which measures
what a command takes for them.
"""

from __future__ import annotations

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


def _members(model: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(model) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write(
    path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED
) -> zipfile.ZipFile:
    archive = zipfile.ZipFile(path, "w", compression)
    for name, content in members.items():
        archive.writestr(name, content)
    return archive


def _fill(
    archive: zipfile.ZipFile, name: Any, size: int, head: bytes, letter: bytes = b"\0"
) -> None:
    """A member of so many equal bytes, written without holding them."""
    with archive.open(name, "w", force_zip64=True) as stream:
        stream.write(head)
        for _ in range(size // MEGABYTE):
            stream.write(letter * MEGABYTE)


def npy_head(shape: Any, dtype: str = "<f8") -> bytes:
    """The start of a .npy file that holds what its header says, or not."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return npy_text(text.encode())


def npy_text(text: bytes, version: bytes = b"\x01\x00") -> bytes:
    """The start of a .npy file with any text for a header."""
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text


def _node(module: str, name: str, loader: str, number: int, **more: Any) -> dict[str, Any]:
    return {"__class__": name, "__module__": module, "__loader__": loader, "__id__": number, **more}


def _array_node(number: int = 10**6) -> dict[str, Any]:
    return _node("numpy", "ndarray", "NdArrayNode", number, type="numpy", file="big.npy")


def _text_nodes(count: int) -> list[dict[str, Any]]:
    node = partial(_node, "builtins", "str", "JsonNode", content=json.dumps("a"), is_json=True)
    return [node(10**6 + number) for number in range(count)]


def _with_coefficients(model: Path, node: Any) -> dict[str, bytes]:
    """The members of a saved model whose coefficients are another node, or a list of nodes."""
    members = _members(model)
    if isinstance(node, list):
        node = _node("builtins", "list", "ListNode", 10**6 - 1, content=node)
    schema = json.loads(members["schema.json"])
    schema["content"]["content"]["coef_"] = node
    members["schema.json"] = json.dumps(schema).encode()
    return members


def zeros_in_an_array(model: Path, path: Path) -> Path:
    with _write(path, _with_coefficients(model, _array_node())) as archive:
        _fill(archive, "big.npy", HUGE, npy_head((HUGE // 8,)))
    return path


def zeros_that_nobody_asked_for(model: Path, path: Path) -> Path:
    with _write(path, _members(model)) as archive:
        _fill(archive, "big.bin", HUGE, b"")
    return path


def spaces(model: Path, path: Path, name: str) -> Path:
    """A text of a saved model with gigabytes of spaces behind it."""
    members = _members(model)
    head = members.pop(name)
    with _write(path, members) as archive:
        _fill(archive, name, HUGE, head, b" ")
    return path


def items(model: Path, path: Path, name: str, item: str, count: int) -> Path:
    """A text of a saved model with a list of many short things in it."""
    members = _members(model)
    members[name] = members[name].rstrip()[:-1] + f', "extra": [{item * count}0]}}'.encode()
    _write(path, members).close()
    return path


def nodes_in_the_schema(model: Path, path: Path) -> Path:
    """Many texts, each of which is an object of its own when it is read."""
    _write(path, _with_coefficients(model, _text_nodes(5 * MANY))).close()
    return path


def one_array_many_times(model: Path, path: Path) -> Path:
    """A thousand arrays that share one member of the archive."""
    nodes = [_array_node(10**6 + number) for number in range(1000)]
    with _write(path, _with_coefficients(model, nodes)) as archive:
        _fill(archive, "big.npy", 20 * MEGABYTE, npy_head((20 * MEGABYTE // 8,)))
    return path


def size_that_is_a_lie(model: Path, path: Path) -> Path:
    """A member of gigabytes that the directory says is short."""
    with _write(path, _with_coefficients(model, _array_node())) as archive:
        _fill(archive, "big.npy", HUGE, npy_head((HUGE // 8,)))
        archive.getinfo("big.npy").file_size = 1000
    return path


def many_members(model: Path, path: Path) -> Path:
    with _write(path, _members(model), zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("x"), b"")
        for number in range(MANY):
            entry = zipfile.ZipInfo(f"{number:x}")
            entry.header_offset = archive.getinfo("x").header_offset
            entry.CRC = entry.compress_size = entry.file_size = 0
            archive.filelist.append(entry)
    return path


def other_compression(model: Path, path: Path) -> Path:
    """Zeros in a kind of compression that makes a block of forty bytes out of a megabyte."""
    with _write(path, _with_coefficients(model, _array_node())) as archive:
        info = zipfile.ZipInfo("big.npy")
        info.compress_type = zipfile.ZIP_BZIP2
        _fill(archive, info, HUGE // 10, npy_head((HUGE // 80,)))
    return path


def deep_nesting(model: Path, path: Path) -> Path:
    """Lists inside lists, deeper than any reader goes."""
    members = _members(model)
    members["schema.json"] = b"[" * 10**6 + b"]" * 10**6
    _write(path, members).close()
    return path


def top_level_dtype(model: Path, path: Path) -> Path:
    """A model that is no model but a type of numbers."""
    members = _members(model)
    node = _node("numpy", "dtype", "DTypeNode", 10**6 + 1, content=_array_node())
    schema = {**json.loads(members["schema.json"]), **node}
    members["schema.json"] = json.dumps(schema).encode()
    members["big.npy"] = npy_head((0,))
    _write(path, members).close()
    return path


def as_much_as_it_may(model: Path, path: Path) -> Path:
    """Just below all limits: texts, arrays, and a summary."""
    nodes = [*_text_nodes(60_000), _array_node(10**6 - 2)]
    members = _with_coefficients(model, nodes)
    header = json.loads(members["sorel.json"])
    header["summary"]["columns"] = {f"{number:x}": "" for number in range(120_000)}
    members["sorel.json"] = json.dumps(header).encode()
    with _write(path, members) as archive:
        _fill(archive, "big.npy", 15 * MEGABYTE, npy_head((15 * MEGABYTE // 8,)))
    return path


def _named(*makers: Callable[..., Path]) -> dict[str, Callable[..., Path]]:
    return {make.__name__: make for make in makers}


MODELS: dict[str, Callable[[Path, Path], Path]] = {
    **_named(
        zeros_in_an_array, zeros_that_nobody_asked_for, nodes_in_the_schema, one_array_many_times,
        size_that_is_a_lie, many_members, other_compression, deep_nesting, top_level_dtype,
        as_much_as_it_may,
    ),
    "spaces_in_the_header": partial(spaces, name="sorel.json"),
    "spaces_in_the_schema": partial(spaces, name="schema.json"),
    "lists_in_the_header": partial(items, name="sorel.json", item="[],", count=10**7),
    "lists_in_the_schema": partial(items, name="schema.json", item="[],", count=2 * 10**7),
    "texts_in_the_schema": partial(items, name="schema.json", item='"ab",', count=3 * 10**6),
}  # fmt: skip


def packed_checkpoint(checkpoint: Path, path: Path) -> Path:
    """The weights of a checkpoint as gigabytes of zeros."""
    members = _members(checkpoint)
    del members["weights.npy"]
    with _write(path, members) as archive:
        _fill(archive, "weights.npy", HUGE, npy_head((HUGE // 8,)))
    return path


def _with_header(checkpoint: Path, path: Path, text: bytes) -> Path:
    members = _members(checkpoint) | {"header.npy": npy_head((len(text),), "|u1") + text}
    _write(path, members, zipfile.ZIP_STORED).close()
    return path


def long_header_of_a_checkpoint(checkpoint: Path, path: Path) -> Path:
    """A header of a checkpoint with millions of lists."""
    return _with_header(checkpoint, path, b"[" + b"[]," * 3 * 10**6 + b"0]")


def place_outside_a_generator(checkpoint: Path, path: Path) -> Path:
    """The state of a random generator that points outside its own memory."""
    header = json.loads(np.load(io.BytesIO(_members(checkpoint)["header.npy"])).tobytes())
    state = dict(np.random.MT19937(0).state)
    state["state"] = {"key": state["state"]["key"].tolist(), "pos": 2**30}
    return _with_header(checkpoint, path, json.dumps({**header, "generator": state}).encode())


CHECKPOINTS: dict[str, Callable[[Path, Path], Path]] = _named(
    packed_checkpoint, long_header_of_a_checkpoint, place_outside_a_generator
)


# Starts of .npy files that are none, by what is wrong with them.
NPY_HEADS = {
    "negative shape": npy_head((-4, 2)),
    "both lengths negative": npy_head((-4, -2)),
    "no tuple": npy_head([4, 2]),
    "shape of texts": npy_head(("4", "2")),
    "shape of fractions": npy_head((4.0, 2.0)),
    "huge shape": npy_head((2**62, 2**62)),
    "type that does not exist": npy_head((4, 2), "<q77"),
    "type of no size": npy_head((2**40, 2), "|V0"),
    "objects": npy_head((4, 2), "|O"),
    "dates": npy_head((4, 2), "<M8[s]"),
    "texts": npy_head((4, 2), "<U3"),
    "no dictionary": npy_text(b"[1, 2, 3]"),
    "other keys": npy_text(b"{'descr': '<f8', 'fortran_order': False, 'form': (4, 2)}"),
    "open bracket": npy_text(b"{'descr': '<f8', 'fortran_order': False, 'shape': (4, "),
    "control characters": npy_text(b"{'\x1b[31m': \x00}"),
    "code": npy_text(b"__import__('os').system('true')"),
    "digits without end": npy_text(b"9" * 5000),
    "deep brackets": npy_text(b"(" * 4000),
    "not in UTF-8": npy_text(b"{'descr': '<f8\xff\xfe', }", b"\x03\x00"),
    "format of tomorrow": npy_text(b"{}", b"\x09\x00"),
    "length of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{}",
    "nothing after the magic": b"\x93NUMPY",
    "another magic": b"PK\x03\x04" + bytes(60),
    "empty": b"",
}


def _table(path: Path, lines: Callable[[], Iterable[str]]) -> Path:
    with path.open("w") as stream:
        stream.writelines(lines())
    return path


def _wide_rows() -> Iterable[str]:
    """As many columns as a table may have, each of which has a name in the model."""
    count = 24_990
    yield ",".join(f"c{k}" for k in range(count)) + ",y\n"
    for row in range(195):
        yield f"{','.join(str(row * k % 7) for k in range(count))},{row % 5}\n"


CSV: dict[str, Callable[[], Iterable[str]]] = {
    "commas without end": lambda: ["a,y\n1,2\n", "," * 10**7, "\n"],
    "more columns than names": lambda: [",".join(["a"] * 4_500_000), "\n"],
    "different texts": lambda: ["t,y\n", *(f"{i:x},{i % 9}\n" for i in range(1_100_000))],
    "one long text": lambda: ["t,y\n", "x" * 10**7, ",1\n", "z,2\n"],
    "quote without end": lambda: ['t,y\n"', "1,2\n" * 2_400_000],
    "different labels": lambda: ["a,y\n", *(f"{i % 9},{i:x}\n" for i in range(1_100_000))],
    "many named columns": _wide_rows,
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


def many_columns_of_parquet(path: Path) -> Path:
    """As many columns as a small Parquet file may have."""
    columns = {f"c{k}": np.arange(300.0) * k % 7 for k in range(7_990)}
    return _parquet(path, columns | {"y": np.arange(300.0) % 5})


# Parquet files that unfold to more than they may.
UNFOLDING = _named(equal_numbers, one_text_many_times, texts_by_differences, lists_of_numbers)

TABLES: dict[str, Callable[[Path], Path]] = {
    **{name: partial(_table, lines=lines) for name, lines in CSV.items()},
    **UNFOLDING,
    **_named(as_many_equal_numbers_as_it_may, many_columns_of_parquet),
}
