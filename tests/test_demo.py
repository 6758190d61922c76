"""A small run of the demo: its numbers, its words and its picture."""

import dataclasses
import sys

import numpy as np
import pytest

from sorel.cli import main
from sorel.datasets import make_two_populations
from sorel.research import demo


@pytest.fixture(scope="module")
def comparison():
    X, y, _ = make_two_populations(n=600, d=4, seed=0)
    return demo.compare("Small set", "600 people", X, y, splits=2)


def test_scores_of_known_losses():
    losses = np.arange(1.0, 21.0)[::-1]
    scores = demo.Scores.of([losses - 1.0, losses + 1.0])
    assert scores == demo.Scores(mean=10.5, tail=19.5, worst=20.0)


def test_every_method_wins_its_own_training_score(comparison):
    rows = comparison.rows
    assert comparison.certified
    # The penalty 1/n and the tolerance leave room for differences of this order only.
    assert rows["least squares"].train.mean <= min(row.train.mean for row in rows.values()) + 1e-4
    assert rows["CVaR(0.1)"].train.tail <= min(row.train.tail for row in rows.values()) + 1e-2
    for row in rows.values():
        assert row.held_out_losses.shape == (2 * 180,)
        np.testing.assert_allclose(row.held_out_losses.mean(), row.held_out.mean)
    lines = demo.table(comparison).splitlines()
    assert [line.split("  ")[0] for line in lines[3:]] == list(demo.METHODS)
    assert len({len(line) for line in lines[2:]}) == 1


@pytest.mark.parametrize(("factor", "words"), [
    (0.8, "cuts the worst tenth of held-out losses by 20%"),
    (0.99, "hardly"),
    (1.3, "keep least squares"),
])  # fmt: skip
def test_verdict_follows_the_numbers(comparison, factor, words):
    base = comparison.rows[demo.BASELINE]
    scores = base.held_out._replace(tail=factor * base.held_out.tail)
    changed = {method: row._replace(held_out=scores) for method, row in comparison.rows.items()}
    rows = {**changed, demo.BASELINE: base}
    assert words in demo.verdict(dataclasses.replace(comparison, rows=rows))


def test_run_prints_tables_and_saves_the_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    assert demo.run(tmp_path / "new" / "folder", splits=1, n=400) == 0
    printed = capsys.readouterr().out
    picture = tmp_path / "new" / "folder" / "demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    yacht = "Yacht: CVaR(0.1) cuts the worst tenth of held-out losses"
    for words in (str(picture), "Diabetes", "Generated set", yacht):
        assert words in printed


def test_the_table_is_printed_without_matplotlib(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--splits", "1", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "CVaR(0.1)" in captured.out
    assert 'pip install "sorel[plot]"' in captured.err


def test_an_unwritable_folder_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--splits", "1", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err
