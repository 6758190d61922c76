"""Files made to harm: refused with an error that names them, before they take much memory."""

import tracemalloc

import hostile
import numpy as np
import pandas as pd
import pytest

import sorel
from sorel import cli
from sorel.checkpoints import CheckpointError
from sorel.rows import open_data, open_rows, write_blocks
from sorel.saving import ModelFileError, load_model, read_summary, save_model
from sorel.tables import TableError, read_table

pytest.importorskip("skops", reason="skops is an extra")

# What reading may add to the memory of the process, in bytes.
ROOM = 200 << 20


@pytest.fixture(scope="module")
def saved(table_and_model):
    # Whatever is imported for the first time is not the fault of a file.
    load_model(table_and_model / "model.skops")
    return table_and_model


def refused(kind, function, *arguments, room=ROOM):
    """The error of a call, which holds no more than `room` bytes beyond what was there."""
    tracemalloc.start()
    try:
        with pytest.raises(kind) as raised:
            function(*arguments)
        assert tracemalloc.get_traced_memory()[1] < room
    finally:
        tracemalloc.stop()
    return str(raised.value)


@pytest.fixture
def smaller(monkeypatch):
    """Less than the torture makes: enough to be noticed, and quick to write."""
    monkeypatch.setattr(hostile, "HUGE", 300 << 20)
    monkeypatch.setattr(hostile, "MANY", 100_000)


@pytest.mark.parametrize("name", sorted({*hostile.MODELS} - {"as_much_as_it_may"}))
def test_models_that_unfold_are_refused_in_little_memory(saved, tmp_path, name, smaller):
    path = hostile.MODELS[name](saved / "model.skops", tmp_path / "model.skops")
    said = refused(ModelFileError, load_model, path)
    assert repr(str(path)) in said
    assert "no model" in said or name != "top_level_dtype"
    if name in ("many_members", "spaces_in_the_header"):
        refused(ModelFileError, read_summary, path)
    else:
        assert read_summary(path) == read_summary(saved / "model.skops")


def test_whoever_trusts_a_file_may_allow_more(saved, tmp_path):
    make = hostile.MODELS["one_array_many_times"]
    path = make(saved / "model.skops", tmp_path / "model.skops")
    for limit, words in (
        (10**6, r"may take 1 MB; .*max_bytes"),
        (5 * 10**7, r"its arrays take 2097\d(\.\d)? MB, and may take 50 MB"),
    ):
        with pytest.raises(ModelFileError, match=words):
            load_model(path, max_bytes=limit)


@pytest.mark.parametrize("name", hostile.CHECKPOINTS)
def test_checkpoints_that_unfold_are_refused_in_little_memory(tmp_path, name, smaller):
    rng = np.random.default_rng(0)
    problem = sorel.Problem(rng.normal(size=(30, 2)), rng.normal(size=30))
    whole = tmp_path / "whole.ckpt"
    sorel.solve(problem, checkpoint=whole)
    path = hostile.CHECKPOINTS[name](whole, tmp_path / "fit.ckpt")
    refused(CheckpointError, lambda: sorel.solve(problem, checkpoint=path))


@pytest.mark.parametrize("what", hostile.NPY_HEADS)
def test_headers_of_npy_files_that_make_no_sense(tmp_path, what):
    path = tmp_path / "X.npy"
    path.write_bytes(hostile.NPY_HEADS[what] + bytes(64))
    write_blocks(tmp_path / "blocks", np.ones((4, 2)))
    readers = [lambda: open_rows(path), lambda: open_rows(tmp_path)]
    if what != "dates":
        readers.append(lambda: open_data(tmp_path / "blocks", path))
    for read in readers:
        with pytest.raises(ValueError, match=r"X\.npy"):
            read()


def test_names_of_columns_that_are_none(tmp_path):
    write_blocks(tmp_path / "blocks", np.ones((4, 2)))
    (tmp_path / "blocks" / "columns.json").write_bytes(b'["' + b"x" * 10**7)
    said = refused(ValueError, open_rows, tmp_path / "blocks", room=30 << 20)
    assert "columns.json" in said


def test_tables_of_too_many_columns_or_fields(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(",".join(f"{i:x}" for i in range(70_000)) + "\n")
    assert "70000 columns" in refused(TableError, read_table, path)
    path.write_bytes(b"a,y\n1,2\n" + b"," * 3_000_000)
    assert "fields" in refused(TableError, read_table, path)


@pytest.mark.parametrize("name", hostile.UNFOLDING)
def test_parquet_that_unfolds(tmp_path, name):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    path = hostile.UNFOLDING[name](tmp_path / "small.parquet")
    assert path.stat().st_size < 1e6
    # Arrow's arrays come from memory of its own, whose highest mark is kept.
    pool = pa.default_memory_pool()
    most = max(pool.max_memory(), pool.bytes_allocated() + ROOM)
    said = refused(TableError, read_table, path)
    assert "unfolds to" in said
    assert "--unpacked" in said
    assert pool.max_memory() <= most


def test_parquet_may_unfold_as_far_as_its_reader_says(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    path = tmp_path / "t.parquet"
    frame = pd.DataFrame({"a": np.zeros(1000), "t": ["x" * 100, "y"] * 500})
    frame.to_parquet(path)
    # Numbers have 8 bytes, texts 32 and what they hold: 101 bytes in two rows.
    needed = 1000 * (8 + 32) + 500 * 101
    assert read_table(path, unpacked=needed).equals(read_table(path))
    with pytest.raises(TableError, match="unfolds to"):
        read_table(path, unpacked=needed - 1)


NASTY = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"


def test_texts_from_files_are_shown_and_not_obeyed(saved, tmp_path, capsys):
    """Summaries, names of columns and values, and group labels, wherever a command prints them."""
    path = tmp_path / "model.skops"
    summary = {"status": NASTY, NASTY: "key", "columns": {NASTY: NASTY}}
    save_model(load_model(saved / "model.skops"), path, summary=summary)
    table = tmp_path / "table.csv"
    rows = (saved / "table.csv").read_text().splitlines()
    lines = [f"{row},{NASTY if number % 2 else 'plain'}" for number, row in enumerate(rows[1:])]
    table.write_text("\n".join([rows[0] + ",group", *lines]) + "\n")
    for arguments, code in (
        (["info", path], 0),
        (["predict", path, table], 4),
        (["evaluate", saved / "model.skops", table, "--groups", "group"], 0),
        (["fit", table, "--target", NASTY, "-o", tmp_path / "x"], 4),
        (["info", tmp_path / NASTY], 1),
    ):
        assert cli.main([str(argument) for argument in arguments]) == code, arguments
        said = "".join(capsys.readouterr())
        assert not set(said) & set("\x1b\x07\x9b\u202e"), arguments
        assert r"\x1b]0;owned" in said


def test_memory_that_is_not_there_is_one_line(saved, monkeypatch, capsys):
    monkeypatch.setattr("sorel.tables.read_table", lambda *_, **__: np.ones(1 << 50))
    assert cli.main(["predict", f"{saved}/model.skops", f"{saved}/table.csv"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: there is not enough memory")
    assert "allocate" in said
    assert said.count("\n") == 1
