"""Standard streams that are closed or full: the right exit code, one line, no traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from sorel import cli
from sorel.files.atomic import open_atomically, write_atomically, write_folder_atomically

pytest.importorskip("skops", reason="skops is an extra")
pytest.importorskip("pandas", reason="pandas is an extra")

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    rng = np.random.default_rng(0)
    rows = "".join(f"{a:.3f},{b:.3f},{2 * a - b:.3f}\n" for a, b in rng.normal(size=(40, 2)))
    (folder / "table.csv").write_text("a,b,y\n" + rows)
    arguments = ["fit", f"{folder}/table.csv", "--target", "y", "-o", f"{folder}/model.skops"]
    assert cli.main([*arguments, "--quiet"]) == 0
    return folder


# Commands that print their result, and commands that do not.
PRINTING = {
    "help": ["--help"],
    "help of a command": ["fit", "--help"],
    "version": ["--version"],
    "fit": ["fit", "table.csv", "--target", "y", "-o", "-"],
    "predict": ["predict", "model.skops", "table.csv"],
    "evaluate": ["evaluate", "model.skops", "table.csv"],
    "info": ["info", "model.skops"],
    "quantile": ["quantile", "table.csv", "--target", "y", "--quantiles", "0.5"],
    "portfolio": ["portfolio", "table.csv"],
}
SILENT = {
    "fit": ["fit", "table.csv", "--target", "y", "-o", "other.skops"],
    "predict": ["predict", "model.skops", "table.csv", "-o", "out.csv"],
    "evaluate": ["evaluate", "model.skops", "table.csv", "-o", "out.csv"],
}


def run(arguments):
    try:
        return cli.main(list(arguments))
    except SystemExit as end:
        return end.code


STREAMS = [
    pytest.param("full", "standard output: No space left on device", marks=needs_full),
    ("closed", "standard output: it is closed"),
]


@pytest.fixture
def output(place, monkeypatch):
    """Standard streams of a kind, in a folder with a table and a model."""
    monkeypatch.chdir(place)

    def become(kind, *names):
        full = open("/dev/full", "w") if kind == "full" else None  # noqa: SIM115 (closed below)
        opened.append(full)
        for name in names:
            monkeypatch.setattr(sys, name, full)

    opened = []
    yield become
    for full in opened:
        if full is not None:
            # At exit, Python flushes once more.
            full.flush()
            full.close()


@pytest.mark.parametrize("command", PRINTING)
@pytest.mark.parametrize(("kind", "words"), STREAMS)
def test_standard_output_that_takes_nothing(output, capfd, command, kind, words):
    output(kind, "stdout")
    assert run(PRINTING[command]) == 1
    said = capfd.readouterr().err
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", SILENT)
@pytest.mark.parametrize(("kind", "words"), STREAMS)
def test_what_is_not_printed_needs_no_streams(output, command, kind, words):
    output(kind, "stdout", "stderr")
    assert run(SILENT[command]) == 0
    assert os.path.exists(SILENT[command][-1])


@pytest.mark.parametrize(("kind", "words"), STREAMS)
def test_errors_that_nobody_hears_keep_their_code(output, kind, words):
    output(kind, "stderr")
    assert run(["info", "nothing"]) == 1
    assert run(["fit", "table.csv", "--target", "z", "-o", "x"]) == 4
    assert run(["fit", "table.csv"]) == 2
    assert run(["fit", "table.csv", "--target", "y", "-o", "o", "--max-passes", "1"]) == 3


def test_closed_standard_input(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["fit", "-", "--target", "y", "-o", "x"]) == 1
    assert "standard input: it is closed" in capsys.readouterr().err


@needs_full
@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 1), (">/dev/full", 1), ("2>&-", 0), ("2>/dev/full", 0), (">&- 2>&- <&-", 1)],
)
def test_whole_processes(place, redirection, code):
    """Python has a last word at exit, and descriptors that are closed are given out again."""
    if "2>&-" in redirection and np.__version__.startswith("2.0."):
        pytest.skip("NumPy 2.0 itself cannot be imported without standard error")
    command = f'"{sys.executable}" -m sorel info "{place}/model.skops" {redirection}'
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert "ignored" not in ended.stderr


@needs_full
def test_full_disks_are_named(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="/dev/full") as error:
        write_atomically("/dev/full", b"content")
    assert error.value.errno == errno.ENOSPC

    def fill(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(OSError, match=r"model\.skops"):
        write_atomically(tmp_path / "model.skops", b"content")
    with pytest.raises(OSError, match="blocks"), write_folder_atomically(tmp_path / "blocks"):
        fill()
    with pytest.raises(FileNotFoundError, match="elsewhere"), open_atomically(tmp_path / "new"):
        raise FileNotFoundError(errno.ENOENT, "No such file", "elsewhere")
    assert os.listdir(tmp_path) == []
