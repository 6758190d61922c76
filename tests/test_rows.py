import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from sorel.rows import (
    BlockFolderRows,
    MemmapRows,
    ParquetRows,
    RowSource,
    backed_by_file,
    open_data,
    open_rows,
    write_blocks,
)
from sorel.rows.source import MIN_SPAN_ROWS, _make_spans


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


def parquet(path, X, y=None, **options):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.parquet as pq

    columns = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    if y is not None:
        columns["y"] = y
    pq.write_table(pa.table(columns), path, **options)
    return path


def sources(folder, X):
    """The same rows in every kind of home."""
    place = save(folder / "X.npy", X)
    yield open_rows(place)
    yield open_rows(np.load(place, mmap_mode="r"))
    yield open_rows(save(folder / "F.npy", np.asfortranarray(X)))
    yield open_rows(blocks(folder / "blocks", X, [0, 3, 3, 1700, 1800, len(X)]))
    (folder / "parts").mkdir()
    parquet(folder / "parts" / "p9.parquet", X[:2000], row_group_size=300)
    parquet(folder / "parts" / "p10.parquet", X[2000:], row_group_size=2500)
    yield open_rows(folder / "parts")
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.dataset as ds

    yield open_rows(ds.dataset(parquet(folder / "all.parquet", X)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_source_gives_the_same_rows(tmp_path, X, dtype):
    X = X.astype(dtype)
    for source in sources(tmp_path, X):
        assert isinstance(source, RowSource)
        assert (source.shape, source.dtype, source.nbytes) == (X.shape, dtype, X.nbytes)
        for start, stop in [(0, 5000), (0, 1), (2, 4), (1699, 1801), (1999, 2301), (4999, 5000)]:
            read = source.read(start, stop)
            assert read.flags.c_contiguous
            assert read.dtype == dtype
            np.testing.assert_array_equal(read, X[start:stop])
        assert source.read(7, 7).shape == (0, 7)
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
            for (start, stop), read in zip(
                ranges, pool.map(lambda r, s=source: s.read(*r), ranges), strict=True
            ):
                np.testing.assert_array_equal(read, X[start:stop])
        source.close()
        np.testing.assert_array_equal(source.read(0, 9), X[:9])


@pytest.mark.parametrize(
    ("edges", "row_bytes"),
    [
        ([0, 10], 8),
        ([0, 10_000_000], 80),
        ([0, 5000], 1 << 20),
        ([0, *range(1, 3000, 7), 3_000_000], 80),
        ([0, 3_000_000, 3_000_500], 80),
        ([0, 0, 2000, 2000, 2600, 1_000_000, 1_000_000], 400),
    ],
)
def test_spans_cover_all_rows_and_are_neither_small_nor_large(edges, row_bytes):
    spans = _make_spans(edges, row_bytes)
    assert spans[0][0] == 0
    assert spans[-1][1] == edges[-1]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    lengths = [stop - start for start, stop in spans]
    assert min(lengths) >= min(MIN_SPAN_ROWS, edges[-1])
    assert max(lengths) * row_bytes <= max(16 << 20, 2 * MIN_SPAN_ROWS * row_bytes) + (
        2 * MIN_SPAN_ROWS * row_bytes
    )


# Memory-mapped arrays.


def test_views_of_a_memmap_are_found(tmp_path, X):
    mapped = np.load(save(tmp_path / "X.npy", X), mmap_mode="r")
    for view, expected in [
        (np.asarray(mapped), X),
        (mapped[100:3000], X[100:3000]),
        (np.asarray(mapped)[::-3], X[::-3]),
        (mapped[:, 2:5], X[:, 2:5]),
    ]:
        source = open_rows(view)
        assert isinstance(source, MemmapRows)
        np.testing.assert_array_equal(source.read(10, 400), expected[10:400])
        np.testing.assert_array_equal(source.read(0, source.n_samples), expected)
    assert backed_by_file(X) is None
    assert backed_by_file(np.array(mapped)) is None
    assert open_rows(X) is None
    assert open_rows([[1.0]]) is None


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_of_the_user_survive_reading(tmp_path, X, mode, monkeypatch):
    monkeypatch.setattr("sorel.rows.source.BUFFER_BYTES", 4096)
    mapped = np.load(save(tmp_path / "X.npy", X), mmap_mode=mode)
    mapped[:, 0] = 7.0
    source = open_rows(mapped)
    for _ in range(2):
        for start in range(0, 5000, 100):
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_small(tmp_path):
    path = tmp_path / "X.npy"
    mapped = np.lib.format.open_memmap(path, "w+", np.float32, (4_000_000, 20))
    del mapped
    program = """
        import sys
        from sorel.rows import open_rows

        def resident():
            for line in open("/proc/self/status"):
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) / 1024

        before = resident()
        source = open_rows(sys.argv[1])
        source.check_finite()
        print(source.nbytes / 2**20, resident() - before)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    size, grown = map(float, ran.stdout.split())
    assert size > 300
    assert grown < 150


def test_a_wrong_memmap_is_refused(tmp_path, X):
    with pytest.raises(ValueError, match=r"X\.npy must be two-dimensional.*reshape"):
        open_rows(save(tmp_path / "X.npy", X[:, 0]))
    with pytest.raises(ValueError, match=r"T\.npy must be numeric, got dtype <U1"):
        open_rows(save(tmp_path / "T.npy", np.array([["a", "b"]])))
    with pytest.raises(ValueError, match="is empty"):
        open_rows(save(tmp_path / "E.npy", X[:0]))


# Folders of blocks.


def test_blocks_come_in_natural_order(tmp_path):
    folder = blocks(tmp_path / "b", np.arange(24.0).reshape(12, 2), list(range(13)))
    assert open_rows(folder).read(0, 12)[:, 0].tolist() == list(range(0, 24, 2))


def test_blocks_of_several_types_and_orders(tmp_path, X):
    folder = blocks(tmp_path / "b", X, [0, 1000])
    np.save(folder / "block_1.npy", np.asfortranarray(X[1000:2000]))
    np.save(folder / "block_2.npy", X[2000:3000].astype(np.float32))
    np.save(folder / "block_3.npy", np.arange(14).reshape(2, 7))
    source = open_rows(folder)
    assert source.dtype == np.float64
    expected = np.vstack([X[:2000], X[2000:3000].astype(np.float32), np.arange(14).reshape(2, 7)])
    np.testing.assert_array_equal(source.read(0, 3002), expected)
    np.testing.assert_array_equal(source.read(3000, 3002), expected[3000:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path, X: np.save(path, X[10:20, :4]), r"block_0\.npy has 7, .*block_1\.npy has 4"),
        (lambda path, X: np.save(path, X[:, 0]), r"block_1\.npy has shape \(5000,\)"),
        (lambda path, X: os.truncate(path, 588), r"block_1\.npy is trunc.* 688 bytes.* has 588"),
        (lambda path, X: os.truncate(path, 20), r"block_1\.npy is not a whole \.npy file"),
        (lambda path, X: os.truncate(path, 0), r"block_1\.npy is not a whole \.npy file"),
        (lambda path, X: path.write_bytes(b"no array, but long enough"), "is not a whole"),
        (
            lambda path, X: np.save(path, np.array([[1, "a"]], dtype=object), allow_pickle=True),
            r"block_1\.npy holds Python objects",
        ),
        (lambda path, X: np.save(path, np.ones((2, 7), complex)), "numeric, got dtype complex128"),
    ],
)
def test_wrong_blocks_are_refused(tmp_path, X, change, words):
    folder = blocks(tmp_path / "b", X, [0, 10, 20])
    change(folder / "block_1.npy", X)
    with pytest.raises(ValueError, match=words):
        open_rows(folder)


def test_other_paths_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has neither"):
        open_rows(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        open_rows(tmp_path / "nowhere")
    (tmp_path / "X.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=r"X\.csv' cannot be read by rows"):
        open_rows(tmp_path / "X.csv")


def test_a_value_that_is_not_finite_is_named(tmp_path, X):
    X = X.copy()
    X[1234, 3], X[4000, 0] = np.nan, np.inf
    with pytest.raises(ValueError, match=r"X\.npy\[1234, 3\] is nan"):
        open_rows(save(tmp_path / "X.npy", X)).check_finite()
    with pytest.raises(ValueError, match=r"block_1\.npy\[234, 3\] is nan"):
        open_rows(blocks(tmp_path / "b", X, [0, 1000, 2000, 5000])).check_finite()
    path = parquet(tmp_path / "X.parquet", X, row_group_size=1000)
    with pytest.raises(
        ValueError, match=r"column 'x3' of .*X\.parquet in row 1235 \(index 1234\) is nan"
    ):
        open_rows(path).check_finite()
    X[1234, 3] = 0.0
    with pytest.raises(
        ValueError, match=r"column 'x0' of .*X\.parquet in row 4001 \(index 4000\) is inf"
    ):
        open_rows(parquet(tmp_path / "X.parquet", X)).check_finite()


# Parquet.


def test_parquet_types(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import decimal

    import pyarrow.parquet as pq

    table = pa.table(
        {
            "f": pa.array([1.5, 2.5], pa.float32()),
            "i": pa.array([1, 2], pa.int8()),
            "b": [True, False],
            "d": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.50")]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    source = ParquetRows(tmp_path / "t.parquet")
    assert source.columns == ["f", "i", "b", "d"]
    assert source.read(0, 2).tolist() == [[1.5, 1.0, 1.0, 1.25], [2.5, 2.0, 0.0, 2.5]]
    assert ParquetRows(tmp_path / "t.parquet", columns=["f"]).dtype == np.float32
    assert ParquetRows(tmp_path / "t.parquet", columns=["d", "f"]).read(1, 2).tolist() == [
        [2.5, 2.5]
    ]
    with pytest.raises(ValueError, match="there is no column 'z'; the columns are 'f', 'i'"):
        ParquetRows(tmp_path / "t.parquet", columns=["z"])


def test_a_null_is_named_by_file_column_and_row(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.parquet as pq

    (tmp_path / "p").mkdir()
    pq.write_table(pa.table({"a": [1.0] * 50, "b": [1] * 50}), tmp_path / "p" / "1.parquet")
    second = pa.table({"a": [1.0] * 50, "b": [1] * 33 + [None] + [2] * 16})
    pq.write_table(second, tmp_path / "p" / "2.parquet", row_group_size=20)
    source = open_rows(tmp_path / "p")
    with pytest.raises(
        ValueError, match=r"column 'b' of .*2\.parquet has no value in row 34 \(index 33\);"
    ):
        source.check_finite()
    with pytest.raises(
        ValueError, match=r"column 'b' of .*2\.parquet has no value in row 34 \(index 33\);"
    ):
        open_data(tmp_path / "p", "b")


def test_text_in_parquet_is_named_by_file_and_column(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import datetime

    import pyarrow.parquet as pq

    (tmp_path / "p").mkdir()
    pq.write_table(pa.table({"a": [1.0], "b": [1.0]}), tmp_path / "p" / "1.parquet")
    pq.write_table(pa.table({"a": [1.0], "b": ["x"]}), tmp_path / "p" / "2.parquet")
    with pytest.raises(ValueError, match=r"'b' of .*2\.parquet holds text.*encode it.*or choose"):
        open_rows(tmp_path / "p")
    assert ParquetRows(tmp_path / "p", exclude=["b"]).shape == (2, 1)
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "p" / "2.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet has no column 'b'"):
        open_rows(tmp_path / "p")
    pq.write_table(pa.table({"t": [datetime.date(2020, 1, 1)]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="holds dates or times"):
        open_rows(tmp_path / "t.parquet")


def test_a_broken_parquet_file_is_named(tmp_path, X):
    path = parquet(tmp_path / "X.parquet", X)
    os.truncate(path, 1000)
    with pytest.raises(ValueError, match=r"X\.parquet cannot be read as Parquet"):
        open_rows(path)


def test_a_filtered_dataset_is_refused(tmp_path, X):
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow as pa
    import pyarrow.dataset as ds

    data = ds.dataset(parquet(tmp_path / "X.parquet", X))
    with pytest.raises(ValueError, match="cannot be read file by file"):
        open_rows(data.filter(ds.field("x0") > 0))
    with pytest.raises(ValueError, match="only datasets of Parquet"):
        open_rows(ds.dataset(pa.table({"a": [1.0]})))


def test_partitions_are_columns(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.parquet as pq

    for year in (2020, 2021):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / f"year={year}" / "p.parquet")
    source = open_rows(tmp_path)
    assert source.columns == ["a", "year"]
    assert source.read(1, 3).tolist() == [[2.0, 2020.0], [1.0, 2021.0]]


# Targets.


def test_targets_of_every_kind(tmp_path, X):
    y = X[:, 0] > 0
    place = save(tmp_path / "X.npy", X)
    save(tmp_path / "y.npy", y)
    for given in (y, np.load(tmp_path / "y.npy", mmap_mode="r"), tmp_path / "y.npy"):
        source, read = open_data(place, given)
        assert source.shape == X.shape
        assert backed_by_file(read) is None
        np.testing.assert_array_equal(read, y)
    (tmp_path / "ys").mkdir()
    for number, part in enumerate(np.split(y, 20)):
        save(tmp_path / "ys" / f"y_{number}.npy", part)
    np.testing.assert_array_equal(open_data(place, str(tmp_path / "ys"))[1], y)
    assert open_data(X, y) == (None, y)

    labels = np.where(y, "yes", "no")
    path = parquet(tmp_path / "X.parquet", X, labels, row_group_size=1024)
    for given in (path, ParquetRows(path, exclude=["y"])):
        source, read = open_data(given, "y")
        assert source.columns == [f"x{j}" for j in range(7)]
        np.testing.assert_array_equal(read, labels)
    source, read = open_data(ParquetRows(path, exclude=["y"]), "x6")
    assert source.columns == [f"x{j}" for j in range(6)]
    np.testing.assert_array_equal(read, X[:, 6])


def test_wrong_targets_are_refused(tmp_path, X):
    place = save(tmp_path / "X.npy", X)
    with pytest.raises(FileNotFoundError, match=r"'nowhere\.npy' with targets"):
        open_data(place, "nowhere.npy")
    with pytest.raises(ValueError, match=r"X\.npy has shape \(5000, 7\); targets have one"):
        open_data(place, place)
    os.truncate(save(tmp_path / "y.npy", X[:, 0]), 1000)
    with pytest.raises(ValueError, match=r"y\.npy is truncated"):
        open_data(place, tmp_path / "y.npy")
    with pytest.raises(ValueError, match="there is no column 'z'"):
        open_data(parquet(tmp_path / "X.parquet", X), "z")


# Fingerprints.


def test_a_fingerprint_is_stable_and_notices_changes(tmp_path, X):
    path = save(tmp_path / "X.npy", X)
    known = open_rows(path).fingerprint()
    assert open_rows(path).fingerprint() == known
    for row in open_rows(path)._sampled_places():
        changed = X.copy()
        changed[row, 6] += 1.0
        assert open_rows(save(path, changed)).fingerprint() != known
    assert open_rows(save(path, X[:-1])).fingerprint() != known
    assert open_rows(save(path, X.astype(np.float32))).fingerprint() != known
    assert open_rows(save(path, X)).fingerprint() == known


def test_a_fingerprint_of_parquet_notices_changes(tmp_path, X):
    path = parquet(tmp_path / "X.parquet", X, row_group_size=500)
    source = open_rows(path)
    known = source.fingerprint()
    assert open_rows(path).fingerprint() == known
    places = source._sampled_places()
    assert places[0] == 0
    assert len(X) - places[-1] <= 64
    for row in (places[0], places[20], places[-1]):
        changed = X.copy()
        changed[row, 6] *= 0.5
        path = parquet(tmp_path / "X.parquet", changed, row_group_size=500)
        assert open_rows(path).fingerprint() != known
    # An extreme value anywhere shows in the description of its row group.
    changed = X.copy()
    changed[777, 2] = 1e9
    path = parquet(tmp_path / "X.parquet", changed, row_group_size=500)
    assert open_rows(path).fingerprint() != known


# Writing.


def test_blocks_hold_what_was_written(tmp_path, X):
    y = X[:, 0]
    path = parquet(tmp_path / "X.parquet", X.astype(np.float32), row_group_size=700)
    for number, given in enumerate([X, X.tolist(), path, save(tmp_path / "X.npy", X)]):
        source = write_blocks(tmp_path / f"b{number}", given, y, rows_per_block=999)
        assert len(source._blocks) == 6
        assert source.dtype == (np.float32 if given is path else np.float64)
        assert source.columns == ([f"x{j}" for j in range(7)] if given is path else None)
        again, read = open_data(tmp_path / f"b{number}", "y.npy")
        np.testing.assert_array_equal(again.read(0, 5000), X.astype(source.dtype))
        np.testing.assert_array_equal(read, y)
    (tmp_path / "b2" / "columns.json").write_text(json.dumps(["a"]))
    with pytest.raises(ValueError, match=r"columns\.json names 1 columns, but .* has 7"):
        open_rows(tmp_path / "b2")


def test_blocks_appear_whole_or_not_at_all(tmp_path, X):
    bad = X.copy()
    folder = blocks(tmp_path / "b", bad, [0, 1000, 5000])
    source = BlockFolderRows(folder)
    os.remove(folder / "block_1.npy")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match="block_1"):
        write_blocks(tmp_path / "new", source, rows_per_block=500)
    assert sorted(os.listdir(tmp_path)) == before
    with pytest.raises(FileExistsError, match="exists already"):
        write_blocks(folder, X)
    with pytest.raises(FileNotFoundError, match="create it first"):
        write_blocks(tmp_path / "no" / "b", X)
    with pytest.raises(ValueError, match="5000 rows but y has shape"):
        write_blocks(tmp_path / "new", X, X[:3, 0])
    with pytest.raises(ValueError, match="rows_per_block must be at least 1"):
        write_blocks(tmp_path / "new", X, rows_per_block=0)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_full_disk_leaves_nothing_behind(tmp_path, X):
    resource = pytest.importorskip("resource", reason="POSIX only")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(OSError, match="large"):
            write_blocks(tmp_path / "new", X)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == []
