"""The command that compiles everything: what it goes through, and what it says when it cannot."""

from __future__ import annotations

import errno

import numba
import numpy as np
import pytest

import sorel
from sorel import _compiled, warmup
from sorel.cli import main
from sorel.engines import BlocksEngine

needs_compiler = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")


@pytest.fixture
def one_step(monkeypatch):
    """Everything is too long for a test: the projections alone."""
    steps = [step for step in warmup.steps() if step[0] == "projections"]
    monkeypatch.setattr(warmup, "steps", lambda: iter(steps))
    monkeypatch.setattr(_compiled, "_trouble", None)


def test_every_kind_has_a_name_of_its_own():
    names = [name for name, _ in warmup.steps()]
    assert len(set(names)) == len(names)
    for word in ("losses", "penalties", "weights", "sparse", "float32", "on disk", "threads"):
        assert any(word in name for name in names)


@pytest.mark.parametrize("loss", sorel.losses.LOSSES)
def test_every_loss_gets_targets_that_it_takes(loss):
    loss = sorel.losses.LOSSES[loss]()
    y = np.random.default_rng(0).normal(size=50)
    _, classes = loss.encode(warmup._targets(loss, y))
    assert loss.n_outputs(classes) == (3 if loss.name == "multinomial" else 1)


def test_all_losses_penalties_and_solvers_are_gone_through(monkeypatch):
    solved = []

    def record(problem, solver, **options):
        home = type(problem.engine).__name__
        solved.append((problem.loss.name, type(problem.penalty).__name__, solver, home))

    monkeypatch.setattr(warmup, "solve", record)
    for _, action in warmup.steps():
        action()
    losses, penalties, solvers, homes = (set(column) for column in zip(*solved, strict=True))
    assert losses == set(sorel.losses.LOSSES)
    assert penalties >= {"L2", "ElasticNet", "NonNegative", "Box", "Simplex"}
    assert solvers == set(sorel.solvers.SOLVERS)
    assert homes >= {"DenseEngine", "SparseEngine", "BlocksEngine"}


def test_rows_as_if_on_disk_are_streamed():
    X = np.random.default_rng(0).normal(size=(30, 3))
    problem = sorel.Problem(warmup._Streamed(X), X[:, 0])
    assert isinstance(problem.engine, BlocksEngine)
    assert problem.objective(np.ones(3)) == sorel.Problem(X, X[:, 0]).objective(np.ones(3))


@needs_compiler
def test_the_command_says_what_it_did_and_where(one_step, capsys):
    assert main(["warmup"]) == 0
    out = capsys.readouterr().out
    assert "projections" in out
    assert "loops compiled in" in out
    assert all(folder in out for folder in _compiled.cache_folders())


@needs_compiler
def test_without_a_folder_it_fails_and_says_what_to_do(one_step, capsys, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(warmup, "cache_folder", lambda: None)
    assert main(["warmup"]) == 1
    assert "set NUMBA_CACHE_DIR" in capsys.readouterr().err


@needs_compiler
def test_a_folder_that_was_set_and_cannot_be_written_is_named(
    one_step, capsys, tmp_path, monkeypatch
):
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(file))
    assert main(["warmup"]) == 1
    assert f"NUMBA_CACHE_DIR={file} cannot be written" in capsys.readouterr().err


@needs_compiler
def test_a_full_disk_is_reported(one_step, capsys, monkeypatch):
    monkeypatch.setattr(warmup, "trouble", lambda: OSError(errno.ENOSPC, "No space left on device"))
    assert main(["warmup"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_without_a_compiler_there_is_nothing_to_do(capsys, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert main(["warmup"]) == 2
    assert "NUMBA_DISABLE_JIT" in capsys.readouterr().err
