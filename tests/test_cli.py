"""Arguments, exit codes and messages of the command."""

import subprocess
import sys
from pathlib import Path

import pytest

import sorel
from sorel import cli, demo


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    return stop.value.code


def test_version(capsys):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"sorel {sorel.__version__}"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_shows_an_example(arguments, capsys):
    assert exit_code(arguments) == 0
    assert "sorel demo --splits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--splits", "0"], "at least 1, got '0'"),
        (["demo", "--splits", "two"], "at least 1, got 'two'"),
    ],
)
def test_bad_arguments_exit_with_two(arguments, message, capsys):
    assert exit_code(arguments) == 2
    assert message in capsys.readouterr().err


def test_demo_receives_its_arguments(monkeypatch):
    received = {}

    def run(out, *, splits):
        received.update(out=out, splits=splits)
        return 1

    monkeypatch.setattr(demo, "run", run)
    assert cli.main(["demo", "--out", "pictures", "--splits", "4"]) == 1
    assert received == {"out": Path("pictures"), "splits": 4}


def test_interrupt_is_reported(monkeypatch, capsys):
    def run(out, *, splits):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", run)
    assert cli.main(["demo"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "sorel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"sorel {sorel.__version__}"
