"""Standard streams that are closed or full: the right exit code, one line, no traceback."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from sorel import cli
from sorel.files.atomic import write_atomically, write_folder_atomically

pytest.importorskip("skops", reason="skops is an extra")
pytest.importorskip("pandas", reason="pandas is an extra")

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")

FIT = ["fit", "table.csv", "--target", "y"]
# Commands that print their result.
PRINTING = {
    "help": ["--help"],
    "fit": [*FIT, "-o", "-"],
    "predict": ["predict", "model.skops", "table.csv"],
    "info": ["info", "model.skops"],
    "portfolio": ["portfolio", "table.csv"],
}


def run(*arguments):
    try:
        return cli.main(list(arguments))
    except SystemExit as end:
        return end.code


@pytest.fixture
def place(table_and_model, monkeypatch):
    monkeypatch.chdir(table_and_model)
    return table_and_model


@pytest.fixture(params=["closed", pytest.param("full", marks=needs_full)])
def useless(place, request):
    """A stream that takes nothing, in a folder with a table and a model."""
    if request.param == "closed":
        yield None
        return
    with open("/dev/full", "w") as full:
        yield full
        # At exit, Python flushes once more.
        full.flush()


@pytest.mark.parametrize("command", PRINTING)
def test_standard_output_that_takes_nothing(useless, monkeypatch, capfd, command):
    monkeypatch.setattr(sys, "stdout", useless)
    assert run(*PRINTING[command]) == 1
    said = capfd.readouterr().err
    reason = "it is closed" if useless is None else "No space left on device"
    assert f"standard output: {reason}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", [FIT, PRINTING["predict"]], ids=["fit", "predict"])
def test_what_is_not_printed_needs_no_streams(useless, place, monkeypatch, command):
    (place / "out").unlink(missing_ok=True)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, useless)
    assert run(*command, "-o", "out") == 0
    assert (place / "out").exists()


def test_errors_that_nobody_hears_keep_their_code(useless, monkeypatch):
    monkeypatch.setattr(sys, "stderr", useless)
    assert run("info", "nothing") == 1
    assert run(*FIT[:-1], "z", "-o", "x") == 4
    assert run(*FIT) == 2
    assert run(*FIT, "-o", "o", "--max-passes", "1") == 3


def test_closed_standard_input(place, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert run("fit", "-", "--target", "y", "-o", "x") == 1
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
    assert os.listdir(tmp_path) == []
