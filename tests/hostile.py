"""Files made to harm whoever reads them: small ones that ask for gigabytes, and broken ones.

Each function writes one file and returns its path; `MODELS`, `CHECKPOINTS`, `NPY_HEADS` and
`TABLES` list them.
Used by the tests and by `tests/torture.py`, which measures what a command takes for them.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterable
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


def _zeros(archive: zipfile.ZipFile, name: str, size: int, head: bytes = b"") -> None:
    """A member of so many zeros, written without holding them."""
    with archive.open(name, "w", force_zip64=True) as stream:
        stream.write(head)
        for _ in range(size // MEGABYTE):
            stream.write(bytes(MEGABYTE))


def npy_head(shape: Any, dtype: str = "<f8") -> bytes:
    """The start of a .npy file that holds what its header says, or not."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return npy_text(text.encode())


def npy_text(text: bytes, version: bytes = b"\x01\x00") -> bytes:
    """The start of a .npy file with any text for a header."""
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text


def _array_node(file: str, number: int) -> dict[str, Any]:
    return {
        "__class__": "ndarray", "__module__": "numpy", "__loader__": "NdArrayNode",
        "type": "numpy", "file": file, "__id__": number,
    }  # fmt: skip


def _text_node(text: str, number: int) -> dict[str, Any]:
    return {
        "__class__": "str", "__module__": "builtins", "__loader__": "JsonNode",
        "content": json.dumps(text), "is_json": True, "__id__": number,
    }  # fmt: skip


def _with_attribute(model: Path, node: Any) -> dict[str, bytes]:
    """The members of a saved model whose coefficients are another node."""
    members = _members(model)
    schema = json.loads(members["schema.json"])
    schema["content"]["content"]["coef_"] = node
    members["schema.json"] = json.dumps(schema).encode()
    return members


def zeros_in_an_array(model: Path, path: Path) -> Path:
    """An array of gigabytes of zeros."""
    with _write(path, _with_attribute(model, _array_node("big.npy", 10**6))) as archive:
        _zeros(archive, "big.npy", HUGE, npy_head((HUGE // 8,)))
    return path


def zeros_that_nobody_asked_for(model: Path, path: Path) -> Path:
    """A member that nothing refers to."""
    with _write(path, _members(model)) as archive:
        _zeros(archive, "big.bin", HUGE)
    return path


def _spaces(model: Path, path: Path, name: str) -> Path:
    """A text of a saved model with gigabytes of spaces behind it."""
    members = _members(model)
    head = members.pop(name)
    with _write(path, members) as archive, archive.open(name, "w", force_zip64=True) as stream:
        stream.write(head)
        for _ in range(HUGE // MEGABYTE):
            stream.write(b" " * MEGABYTE)
    return path


def spaces_in_the_header(model: Path, path: Path) -> Path:
    """A summary of gigabytes of spaces."""
    return _spaces(model, path, "sorel.json")


def spaces_in_the_schema(model: Path, path: Path) -> Path:
    """A schema of gigabytes of spaces."""
    return _spaces(model, path, "schema.json")


def _items(model: Path, path: Path, name: str, item: str, count: int) -> Path:
    """A text of a saved model with a list of many short things in it."""
    members = _members(model)
    members[name] = members[name].rstrip()[:-1] + f', "extra": [{item * count}0]}}'.encode()
    _write(path, members).close()
    return path


def lists_in_the_header(model: Path, path: Path) -> Path:
    """A summary of millions of empty lists."""
    return _items(model, path, "sorel.json", "[],", 10**7)


def lists_in_the_schema(model: Path, path: Path) -> Path:
    """A schema of millions of empty lists."""
    return _items(model, path, "schema.json", "[],", 2 * 10**7)


def texts_in_the_schema(model: Path, path: Path) -> Path:
    """A schema of millions of short texts."""
    return _items(model, path, "schema.json", '"ab",', 3 * 10**6)


def nodes_in_the_schema(model: Path, path: Path) -> Path:
    """A list of many texts, each of which is an object of its own when it is read."""
    items = [_text_node("a", 10**6 + number) for number in range(5 * MANY)]
    node = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
    _write(path, _with_attribute(model, {**node, "content": items, "__id__": 10**6 - 1})).close()
    return path


def one_array_many_times(model: Path, path: Path) -> Path:
    """A list of a thousand arrays that share one member of the archive."""
    items = [_array_node("big.npy", 10**6 + number) for number in range(1000)]
    node = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
    members = _with_attribute(model, {**node, "content": items, "__id__": 10**6 - 1})
    with _write(path, members) as archive:
        _zeros(archive, "big.npy", 20 * MEGABYTE, npy_head((20 * MEGABYTE // 8,)))
    return path


def size_that_is_a_lie(model: Path, path: Path) -> Path:
    """A member of gigabytes that the directory says is short."""
    with _write(path, _with_attribute(model, _array_node("big.npy", 10**6))) as archive:
        _zeros(archive, "big.npy", HUGE, npy_head((HUGE // 8,)))
        info = archive.getinfo("big.npy")
        info.file_size = 1000
    return path


def many_members(model: Path, path: Path) -> Path:
    """A directory of hundreds of thousands of members."""
    with _write(path, _members(model), zipfile.ZIP_STORED) as archive:
        info = zipfile.ZipInfo("x")
        archive.writestr(info, b"")
        for number in range(MANY):
            entry = zipfile.ZipInfo(f"{number:x}")
            entry.header_offset = archive.getinfo("x").header_offset
            entry.CRC = entry.compress_size = entry.file_size = 0
            archive.filelist.append(entry)
    return path


def other_compression(model: Path, path: Path) -> Path:
    """Zeros in a kind of compression that makes a block of forty bytes out of a megabyte."""
    with _write(path, _with_attribute(model, _array_node("big.npy", 10**6))) as archive:
        info = zipfile.ZipInfo("big.npy")
        info.compress_type = zipfile.ZIP_BZIP2
        with archive.open(info, "w", force_zip64=True) as stream:
            stream.write(npy_head((HUGE // 80,)))
            for _ in range(HUGE // 10 // MEGABYTE):
                stream.write(bytes(MEGABYTE))
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
    content = _array_node("other.npy", 10**6)
    node = {"__class__": "dtype", "__module__": "numpy", "__loader__": "DTypeNode"}
    schema = {**json.loads(members["schema.json"]), **node, "content": content}
    members["schema.json"] = json.dumps(schema).encode()
    members["other.npy"] = npy_head((0,))
    _write(path, members).close()
    return path


def as_much_as_it_may(model: Path, path: Path) -> Path:
    """Just below all limits: texts, arrays, and a summary."""
    items = [_text_node("a", 10**6 + number) for number in range(60_000)]
    node = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
    array = _array_node("big.npy", 10**6 - 2)
    content = [*items, array]
    members = _with_attribute(model, {**node, "content": content, "__id__": 10**6 - 1})
    header = json.loads(members["sorel.json"])
    header["summary"]["columns"] = {f"{number:x}": "" for number in range(120_000)}
    members["sorel.json"] = json.dumps(header).encode()
    with _write(path, members) as archive:
        _zeros(archive, "big.npy", 15 * MEGABYTE, npy_head((15 * MEGABYTE // 8,)))
    return path


MODELS: list[Callable[[Path, Path], Path]] = [
    zeros_in_an_array,
    zeros_that_nobody_asked_for,
    spaces_in_the_header,
    spaces_in_the_schema,
    lists_in_the_header,
    lists_in_the_schema,
    nodes_in_the_schema,
    one_array_many_times,
    size_that_is_a_lie,
    many_members,
    other_compression,
    deep_nesting,
    top_level_dtype,
    as_much_as_it_may,
    texts_in_the_schema,
]


def packed_checkpoint(checkpoint: Path, path: Path) -> Path:
    """The weights of a checkpoint as gigabytes of zeros."""
    members = _members(checkpoint)
    del members["weights.npy"]
    with _write(path, members) as archive:
        _zeros(archive, "weights.npy", HUGE, npy_head((HUGE // 8,)))
    return path


def long_header_of_a_checkpoint(checkpoint: Path, path: Path) -> Path:
    """A header of a checkpoint with millions of lists."""
    members = _members(checkpoint)
    text = b"[" + b"[]," * 3 * 10**6 + b"0]"
    members["header.npy"] = npy_head((len(text),), "|u1") + text
    _write(path, members, zipfile.ZIP_STORED).close()
    return path


def place_outside_a_generator(checkpoint: Path, path: Path) -> Path:
    """The state of a random generator that points outside its own memory."""
    members = _members(checkpoint)
    header = json.loads(np.load(io.BytesIO(members["header.npy"])).tobytes())
    state = dict(np.random.MT19937(0).state)
    state["state"] = {"key": state["state"]["key"].tolist(), "pos": 2**30}
    header["generator"] = state
    text = json.dumps(header).encode()
    members["header.npy"] = npy_head((len(text),), "|u1") + text
    _write(path, members, zipfile.ZIP_STORED).close()
    return path


CHECKPOINTS: list[Callable[[Path, Path], Path]] = [
    packed_checkpoint,
    long_header_of_a_checkpoint,
    place_outside_a_generator,
]


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


def _table(path: Path, lines: Iterable[str]) -> Path:
    with path.open("w") as stream:
        stream.writelines(lines)
    return path


def commas_without_end(path: Path) -> Path:
    """Two columns in the header, and millions of fields in a row."""
    return _table(path, ["a,y\n1,2\n", "," * 10**7, "\n"])


def more_columns_than_names(path: Path) -> Path:
    """A header of millions of columns."""
    return _table(path, [",".join(["a"] * 4_500_000), "\n"])


def different_texts(path: Path) -> Path:
    """A column of which every value is another."""
    return _table(path, ["t,y\n", *(f"{i:x},{i % 9}\n" for i in range(1_100_000))])


def one_long_text(path: Path) -> Path:
    """A field of ten megabytes."""
    return _table(path, ["t,y\n", "x" * 10**7, ",1\n", "z,2\n"])


def quote_without_end(path: Path) -> Path:
    """A quote that opens and never closes."""
    return _table(path, ['t,y\n"', "1,2\n" * 2_400_000])


def different_labels(path: Path) -> Path:
    """A target of which every value is another text."""
    return _table(path, ["a,y\n", *(f"{i % 9},{i:x}\n" for i in range(1_100_000))])


def many_named_columns(path: Path) -> Path:
    """As many columns as a table may have, each of which has a name in the model."""
    count = 24_990
    names = ",".join(f"c{k}" for k in range(count))
    rows = (f"{','.join(str(row * k % 7) for k in range(count))},{row % 5}\n" for row in range(195))
    return _table(path, [names, ",y\n", *rows])


def many_short_rows(path: Path) -> Path:
    """Millions of rows, each of which is a number in a dozen vectors."""
    return _table(path, ["a,y\n", *["0,0\n1,1\n3,2\n4,1\n"] * 625_000])


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
    n = 4 * 10**6
    return _parquet(path, {"a": np.zeros(n), "y": np.zeros(n)})


def one_text_many_times(path: Path) -> Path:
    """A long text that is stored once, in thousands of rows."""
    import pyarrow as pa

    texts = pa.DictionaryArray.from_arrays(np.arange(4000) % 2, ["x" * 10**6, "y"])
    return _parquet(path, {"t": texts, "y": np.arange(4000.0)}, store_schema=False)


def texts_by_differences(path: Path) -> Path:
    """Long texts of which each is told by how it differs from the one before."""
    encoding = {"t": "DELTA_BYTE_ARRAY", "y": "PLAIN"}
    texts = ["x" * 10**6 + f"{i}" for i in range(90)]
    return _parquet(
        path, {"t": texts, "y": np.arange(90.0)}, use_dictionary=False, column_encoding=encoding
    )


def lists_of_numbers(path: Path) -> Path:
    """A few rows, each of which is a list of a million numbers."""
    import pyarrow as pa

    lists = pa.ListArray.from_arrays(np.arange(0, 10**7, 10**6, np.int32), np.zeros(9 * 10**6))
    return _parquet(path, {"a": lists, "y": np.arange(9.0)})


def many_columns_of_parquet(path: Path) -> Path:
    """As many columns as a small Parquet file may have."""
    columns = {f"c{k}": np.arange(300.0) * k % 7 for k in range(7_990)}
    return _parquet(path, columns | {"y": np.arange(300.0) % 5})


# Tables that need pyarrow.
PARQUET: list[Callable[[Path], Path]] = [
    as_many_equal_numbers_as_it_may,
    equal_numbers,
    one_text_many_times,
    texts_by_differences,
    lists_of_numbers,
    many_columns_of_parquet,
]

TABLES: list[Callable[[Path], Path]] = [
    commas_without_end,
    more_columns_than_names,
    different_texts,
    one_long_text,
    quote_without_end,
    different_labels,
    many_named_columns,
    many_short_rows,
    *PARQUET,
]
