"""Every snippet of the README runs."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from sorel.cli import main

README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.S | re.M)


def test_sessions_print_what_they_show():
    pytest.importorskip("pandas", reason="pandas is an extra")
    failed, tried = doctest.testfile(
        str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert tried > 15
    assert failed == 0


def test_the_first_lines_run(capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    code = blocks("python")[0]
    assert ">>>" not in code
    assert len(code.strip().splitlines()) <= 5
    exec(compile(code, str(README), "exec"), {"X": X, "y": X[:, 0] + rng.normal(size=60)})
    assert capsys.readouterr().out.startswith("converged")


def test_commands_do_what_they_say(tmp_path, monkeypatch, capsys):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    pytest.importorskip("skops", reason="skops is an extra")
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for name in ("train.csv", "test.csv", "new.csv"):
        table = pd.DataFrame(
            {"area": rng.uniform(20, 200, 80), "region": rng.choice(["north", "south"], 80)}
        )
        table["price"] = 3 * table.area + 40 * (table.region == "north") + rng.normal(0, 5, 80)
        table.drop(columns="price" if name == "new.csv" else []).to_csv(name, index=False)
    commands = [
        line.removeprefix("$ sorel ")
        for block in blocks("console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert len(commands) == 4
    for command in commands:
        assert main(shlex.split(command)) == 0, command
    assert len(pd.read_csv("predictions.csv")) == 80
    assert "cvar" in capsys.readouterr().out.lower()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        if not target.startswith("http"):
            assert (README.parent / target).exists(), target
