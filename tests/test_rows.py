"""Rows on disk: every kind of home against the array that was written, and what is refused."""

import datetime
import decimal
import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

import sorel.rows
from sorel.rows import ParquetRows, open_data, open_rows, write_blocks


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(5000, 7))


def save(path, array):
    np.save(path, array)
    return path


def blocks(folder, X, edges):
    folder.mkdir()
    for number, (start, stop) in enumerate(pairwise(edges)):
        np.save(folder / f"block_{number}.npy", X[start:stop])
    return folder


def parquet(path, columns, **options):
    """A file of columns by name, or of those of an array, with names x0, x1, ..."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.parquet as pq

    if isinstance(columns, np.ndarray):
        columns = {f"x{j}": column for j, column in enumerate(columns.T)}
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def sources(folder, X):
    """The same rows in every kind of home."""
    place = save(folder / "X.npy", X)
    yield open_rows(place)
    yield open_rows(np.load(place, mmap_mode="r"))
    yield open_rows(save(folder / "F.npy", np.asfortranarray(X)))
    yield open_rows(blocks(folder / "blocks", X, [0, 3, 3, 1700, 1800, len(X)]))
    parquet(folder / "parts" / "p9.parquet", X[:2000], row_group_size=300)
    parquet(folder / "parts" / "p10.parquet", X[2000:], row_group_size=2500)
    yield open_rows(folder / "parts")
    import pyarrow.dataset as ds

    yield open_rows(ds.dataset(parquet(folder / "all.parquet", X)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_source_gives_the_same_rows(tmp_path, X, dtype):
    X = X.astype(dtype)
    for source in sources(tmp_path, X):
        assert isinstance(source, sorel.rows.RowSource)
        assert (source.shape, source.dtype, source.nbytes) == (X.shape, dtype, X.nbytes)
        for start, stop in [(0, 5000), (0, 1), (2, 4), (7, 7), (1699, 1801), (1999, 2301)]:
            read = source.read(start, stop)
            assert read.flags.c_contiguous
            assert read.dtype == dtype
            np.testing.assert_array_equal(read, X[start:stop])
        np.testing.assert_array_equal(np.vstack([source.read(*s) for s in source.spans]), X)
        source.check_finite()


def test_threads_may_read_at_once(tmp_path, X, monkeypatch):
    # Small limits, so that pages and row groups are dropped while others look at them.
    monkeypatch.setattr("sorel.rows.source.BUFFER_BYTES", 10_000)
    monkeypatch.setattr("sorel.rows.parquet._DECODED_GROUPS", 2)
    rng = np.random.default_rng(1)
    ranges = [sorted(rng.integers(0, len(X), 2).tolist()) for _ in range(200)]
    for source in sources(tmp_path, X):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda r, s=source: s.read(*r), ranges))
        for (start, stop), read in zip(ranges, found, strict=True):
            np.testing.assert_array_equal(read, X[start:stop])
        source.close()
        np.testing.assert_array_equal(source.read(0, 9), X[:9])


@pytest.mark.parametrize(
    "edges", [[0, 3000], [0, 1, 1, 2, 40, 3000], [0, 2990, 3000], [0, 5], [*range(0, 3001, 30)]]
)
def test_spans_are_neither_small_nor_large(tmp_path, monkeypatch, edges):
    monkeypatch.setattr("sorel.rows.source.MIN_SPAN_ROWS", 20)
    monkeypatch.setattr("sorel.rows.source.SPAN_BYTES", 2000)
    spans = open_rows(blocks(tmp_path / "b", np.ones((edges[-1], 2)), edges)).spans
    assert (spans[0][0], spans[-1][1]) == (0, edges[-1])
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    lengths = [stop - start for start, stop in spans]
    assert min(lengths) >= min(20, edges[-1])
    assert max(lengths) <= 2000 // 16 + 2 * 20
    assert len(spans) <= 1 + 2 * edges[-1] // (2000 // 16)


# Memory-mapped arrays.


def test_views_of_a_memmap_are_found(tmp_path, X):
    mapped = np.load(save(tmp_path / "X.npy", X), mmap_mode="r")
    for view, expected in [
        (np.asarray(mapped), X), (mapped[100:3000], X[100:3000]),
        (np.asarray(mapped)[::-3], X[::-3]), (mapped[:, 2:5], X[:, 2:5]),
    ]:  # fmt: skip
        source = open_rows(view)
        assert isinstance(source, sorel.rows.MemmapRows)
        np.testing.assert_array_equal(source.read(10, 400), expected[10:400])
        np.testing.assert_array_equal(source.read(0, source.n_samples), expected)
    for given in (X, np.array(mapped), [[1.0]]):
        assert open_rows(given) is None


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_of_the_user_survive_reading(tmp_path, X, mode, monkeypatch):
    monkeypatch.setattr("sorel.rows.source.BUFFER_BYTES", 4096)
    mapped = np.load(save(tmp_path / "X.npy", X), mmap_mode=mode)
    mapped[:, 0] = 7.0
    source = open_rows(mapped)
    for start in 2 * list(range(0, 5000, 100)):
        assert np.all(source.read(start, start + 100)[:, 0] == 7.0)
    source.close()
    assert np.all(mapped[:, 0] == 7.0)
    np.testing.assert_array_equal(mapped[:, 1:], X[:, 1:])


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<i2", "?", "<f2"])
def test_other_types_are_converted_on_reading(tmp_path, dtype):
    X = np.arange(12).reshape(4, 3).astype(dtype)
    source = open_rows(save(tmp_path / "X.npy", X))
    assert source.dtype == (np.float32 if dtype == ">f4" else np.float64)
    assert source.read(1, 4).dtype == source.dtype
    np.testing.assert_array_equal(source.read(1, 4), X[1:].astype(float))


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
def test_memory_stays_small(tmp_path):
    path = tmp_path / "X.npy"
    np.lib.format.open_memmap(path, "w+", np.float32, (4_000_000, 20))
    program = """
        import resource, sys
        from sorel.rows import open_rows

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        open_rows(sys.argv[1]).check_finite()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 150  # MB, of 300


def test_blocks_of_several_types_and_orders_come_in_natural_order(tmp_path, X):
    folder = blocks(tmp_path / "b", X, range(0, 5001, 500))
    np.save(folder / "block_2.npy", X[1000:1500].astype(np.float32))
    np.save(folder / "block_10.npy", np.arange(14).reshape(2, 7))
    source = open_rows(folder)
    assert source.dtype == np.float64
    expected = np.vstack([X, np.arange(14).reshape(2, 7)])
    expected[1000:1500] = expected[1000:1500].astype(np.float32)
    np.testing.assert_array_equal(source.read(0, 5002), expected)


# What is refused.


def test_wrong_blocks_are_refused(tmp_path, X):
    folder = blocks(tmp_path / "b", X, [0, 10, 20])
    path = folder / "block_1.npy"
    whole = path.read_bytes()
    objects = np.array([[1, "a"]], dtype=object)
    for words, change in [
        (r"block_0\.npy has 7, .*block_1\.npy has 4", lambda: np.save(path, X[10:20, :4])),
        (r"block_1\.npy has shape \(5000,\)", lambda: np.save(path, X[:, 0])),
        (r"block_1\.npy is not .* than file size", lambda: path.write_bytes(whole[:588])),
        (r"block_1\.npy is not a whole \.npy file", lambda: path.write_bytes(whole[:20])),
        ("is not a whole", lambda: path.write_bytes(b"no array, but long enough")),
        (r"block_1\.npy .* Python objects", lambda: np.save(path, objects, allow_pickle=True)),
        ("numeric, got dtype complex128", lambda: np.save(path, np.ones((2, 7), complex))),
        (r"columns\.json names 1 columns, but .* has 7", lambda: path.write_bytes(whole)),
    ]:
        change()
        (folder / "columns.json").write_text(json.dumps(["a"]))
        with pytest.raises(ValueError, match=words):
            open_rows(folder)


def test_what_cannot_be_read_is_refused(tmp_path):
    def mixed(name, second):
        parquet(tmp_path / name / "1.parquet", {"a": [1.0], "b": [1.0]})
        return parquet(tmp_path / name / "2.parquet", second).parent

    short = parquet(tmp_path / "short.parquet", {"a": np.arange(1000.0)})
    os.truncate(short, 1000)
    other = tmp_path / "X.csv"
    other.write_text("a\n1\n")
    import pyarrow as pa
    import pyarrow.dataset as ds

    numbers = ds.dataset(parquet(tmp_path / "a.parquet", {"a": [1.0]}))
    dates = parquet(tmp_path / "t.parquet", {"t": [datetime.date(2020, 1, 1)]})
    (tmp_path / "empty").mkdir()
    text = mixed("text", {"a": [1.0], "b": ["x"]})
    for words, place in [
        (r"V\.npy must be two-dimensional.*reshape", save(tmp_path / "V.npy", np.ones(5))),
        (r"T\.npy must be numeric, got dtype <U1", save(tmp_path / "T.npy", np.array([["a"]]))),
        ("is empty", save(tmp_path / "E.npy", np.ones((0, 7)))),
        ("has neither", tmp_path / "empty"),
        (r"short\.parquet cannot be read as Parquet", short),
        (r"X\.csv' cannot be read by rows", other),
        (r"'b' of .*2\.parquet holds text.*encode it.*or choose", text),
        (r"2\.parquet has no column 'b'", mixed("missing", {"a": [1.0]})),
        ("holds dates or times", dates),
        ("cannot be read file by file", numbers.filter(ds.field("a") > 0)),
        ("only datasets of Parquet", ds.dataset(pa.table({"a": [1.0]}))),
    ]:
        with pytest.raises(ValueError, match=words):
            open_rows(place)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        open_rows(tmp_path / "nowhere")
    assert ParquetRows(text, exclude=["b"]).shape == (2, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(tmp_path, X, value):
    X[1234, 3] = value
    table = parquet(tmp_path / "X.parquet", X, row_group_size=1000)
    for place, words in [
        (save(tmp_path / "X.npy", X), r"X\.npy\[1234, 3\]"),
        (blocks(tmp_path / "b", X, [0, 1000, 2000, 5000]), r"block_1\.npy\[234, 3\]"),
        (table, r"column 'x3' of .*X\.parquet in row 1235 \(index 1234\)"),
    ]:
        with pytest.raises(ValueError, match=f"{words} is {value};"):
            open_rows(place).check_finite()


# Parquet.


def test_parquet_types(tmp_path):
    path = parquet(
        tmp_path / "t.parquet",
        {
            "f": np.array([1.5, 2.5], np.float32),
            "i": np.array([1, 2], np.int8),
            "b": [True, False],
            "d": [decimal.Decimal("1.25"), decimal.Decimal("2.50")],
        },
    )
    source = ParquetRows(path)
    assert source.columns == ["f", "i", "b", "d"]
    assert source.read(0, 2).tolist() == [[1.5, 1.0, 1.0, 1.25], [2.5, 2.0, 0.0, 2.5]]
    assert ParquetRows(path, columns=["f"]).dtype == np.float32
    assert ParquetRows(path, columns=["d", "f"]).read(1, 2).tolist() == [[2.5, 2.5]]
    with pytest.raises(ValueError, match="there is no column 'z'; the columns are 'f', 'i'"):
        ParquetRows(path, columns=["z"])


def test_a_null_is_named_by_file_column_and_row(tmp_path):
    parquet(tmp_path / "p" / "1.parquet", {"a": [1.0] * 50, "b": [1] * 50})
    second = {"a": [1.0] * 50, "b": [1] * 33 + [None] + [2] * 16}
    parquet(tmp_path / "p" / "2.parquet", second, row_group_size=20)
    for read in (open_rows(tmp_path / "p").check_finite, lambda: open_data(tmp_path / "p", "b")):
        with pytest.raises(
            ValueError, match=r"column 'b' of .*2\.parquet has no value in row 34 \(index 33\);"
        ):
            read()


def test_partitions_are_columns(tmp_path):
    for year in (2020, 2021):
        parquet(tmp_path / f"year={year}" / "p.parquet", {"a": [1.0, 2.0]})
    source = open_rows(tmp_path)
    assert source.columns == ["a", "year"]
    assert source.read(1, 3).tolist() == [[2.0, 2020.0], [1.0, 2021.0]]


# Targets.


def test_targets_of_every_kind(tmp_path, X):
    y = X[:, 0] > 0
    place = save(tmp_path / "X.npy", X)
    file = save(tmp_path / "y.npy", y)
    folder = blocks(tmp_path / "ys", y, range(0, 5001, 250))
    for given in (y, np.load(file, mmap_mode="r"), file, str(folder)):
        source, read = open_data(place, given)
        assert source.shape == X.shape
        assert sorel.rows.backed_by_file(read) is None
        np.testing.assert_array_equal(read, y)
    assert open_data(X, y) == (None, y)

    labels = np.where(y, "yes", "no")
    columns = {f"x{j}": X[:, j] for j in range(7)}
    path = parquet(tmp_path / "X.parquet", {**columns, "y": labels}, row_group_size=1024)
    for given in (path, ParquetRows(path, exclude=["y"])):
        source, read = open_data(given, "y")
        assert source.columns == list(columns)
        np.testing.assert_array_equal(read, labels)
    source, read = open_data(ParquetRows(path, exclude=["y"]), "x6")
    assert source.columns == list(columns)[:6]
    np.testing.assert_array_equal(read, X[:, 6])


def test_wrong_targets_are_refused(tmp_path, X):
    place, short = save(tmp_path / "X.npy", X), save(tmp_path / "y.npy", X[:, 0])
    os.truncate(short, 1000)
    for error, words, rows, given in [
        (FileNotFoundError, r"'nowhere\.npy' with targets", place, "nowhere.npy"),
        (ValueError, r"X\.npy has shape \(5000, 7\); targets have one", place, place),
        (ValueError, r"y\.npy is not a whole", place, short),
        (ValueError, "there is no column 'z'", parquet(tmp_path / "X.parquet", X), "z"),
    ]:
        with pytest.raises(error, match=words):
            open_data(rows, given)


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_fingerprint_is_stable_and_notices_changes(tmp_path, X, kind):
    def fingerprint(values):
        path = tmp_path / f"X.{kind}"
        save(path, values) if kind == "npy" else parquet(path, values, row_group_size=500)
        return open_rows(path).fingerprint()

    def changed(row, value):
        other = X.copy()
        other[row, 2] = value
        return other

    known = fingerprint(X)
    assert fingerprint(X) == known
    # Some rows are looked at, the first and the last among them.
    others = [X[:-1], X.astype(np.float32), changed(0, 0.1), changed(4999, 0.1)]
    if kind == "parquet":  # the least and largest values of all row groups
        others += [changed(777, 1e9)]
    for other in others:
        assert fingerprint(other) != known


# Writing.


def test_blocks_hold_what_was_written(tmp_path, X):
    y = X[:, 0]
    path = parquet(tmp_path / "X.parquet", X.astype(np.float32), row_group_size=700)
    for number, given in enumerate([X, X.tolist(), path, save(tmp_path / "X.npy", X)]):
        folder = tmp_path / f"b{number}"
        source = write_blocks(folder, given, y, rows_per_block=999)
        assert len(list(folder.glob("block_*.npy"))) == 6
        assert source.dtype == (np.float32 if given is path else np.float64)
        assert source.columns == ([f"x{j}" for j in range(7)] if given is path else None)
        again, read = open_data(folder, "y.npy")
        np.testing.assert_array_equal(again.read(0, 5000), X.astype(source.dtype))
        np.testing.assert_array_equal(read, y)


def test_blocks_appear_whole_or_not_at_all(tmp_path, X):
    folder = blocks(tmp_path / "b", X, [0, 1000, 5000])
    source = sorel.rows.BlockFolderRows(folder)
    os.remove(folder / "block_1.npy")
    new = tmp_path / "new"
    for error, words, arguments in [
        (OSError, "block_1", (new, source)),
        (FileExistsError, "exists already", (folder, X)),
        (FileNotFoundError, "create it first", (tmp_path / "no" / "b", X)),
        (ValueError, "5000 rows but y has shape", (new, X, X[:3, 0])),
    ]:
        with pytest.raises(error, match=words):
            write_blocks(*arguments, rows_per_block=500)
        assert os.listdir(tmp_path) == ["b"]
    with pytest.raises(ValueError, match="rows_per_block must be at least 1"):
        write_blocks(new, X, rows_per_block=0)
