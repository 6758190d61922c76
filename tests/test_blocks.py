"""The engine for rows on disk: against the dense one, and its draws against their probabilities."""

import itertools

import numpy as np
import pytest
from helpers import LOSSES, make_data, make_loss
from stochastic import plan

import sorel
from sorel.engines import BlocksEngine, DenseEngine
from sorel.rows import MemmapRows, write_blocks

N, D = 60, 4


@pytest.fixture
def tiny_spans(monkeypatch):
    """Spans of seven rows and more, and nothing that is too small for the disk."""
    monkeypatch.setattr("sorel.rows.source.SPAN_BYTES", 1)
    monkeypatch.setattr("sorel.rows.source.MIN_SPAN_ROWS", 7)
    monkeypatch.setattr("sorel.problem.validation.WORTH_STREAMING", 0)
    monkeypatch.setattr("sorel.engines.blocks._BUFFER_SPANS", 2)


def stored(X, folder, kind):
    if kind == "memmap":
        np.save(folder / "X.npy", X)
        return np.load(folder / "X.npy", mmap_mode="r")
    if kind == "blocks":
        return write_blocks(folder / "blocks", X, rows_per_block=11)
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.parquet as pq

    table = pa.table({f"x{j}": X[:, j] for j in range(X.shape[1])})
    pq.write_table(table, folder / "X.parquet", row_group_size=25)
    return folder / "X.parquet"


def pair(folder, loss="squared", kind="memmap", dtype=np.float64, n=N, **options):
    """The same problem on disk and in memory."""
    X, y = make_data(loss, n, D, 0)
    X = X.astype(dtype)
    options = {"loss": make_loss(loss), "penalty": sorel.L2(0.1), "risk": "esrm:2", **options}
    if options.pop("weighted", False):
        options["sample_weight"] = np.random.default_rng(1).uniform(0.2, 2.0, n)
    disk = sorel.Problem(stored(X, folder, kind), y, **options)
    assert isinstance(disk.engine, BlocksEngine)
    return disk, sorel.Problem(X, y, **options)


def epoch(problem, w, setting, rng, start=None, dual=None):
    """The iterate after an epoch whose snapshot is at w."""
    engine = problem.engine
    point, dual = engine.point(w), dual or engine.uniform()
    gradient = engine.gradient(point, dual)
    return engine.stochastic().epoch(point, dual, gradient, setting, rng, start)


@pytest.mark.parametrize("solver", ["auto", "sorel"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_solvers_reach_the_same_certified_optimum(tmp_path, tiny_spans, solver, dtype):
    disk, memory = pair(tmp_path, dtype=dtype, n=300, risk="cvar:0.2", fit_intercept=True)
    found = sorel.solve(disk, solver, tol=1e-6)
    assert found.converged
    best = sorel.solve(memory, "newton", tol=2.5e-7)
    assert abs(found.objective - best.objective) <= 2e-6 * best.objective
    # The certificate is as good in memory as on disk.
    assert memory.certificate(found.w, found.weights).relative_gap <= 1.01e-6


@pytest.mark.parametrize("kind", ["memmap", "blocks", "parquet"])
def test_a_sample_of_the_rows_is_that_of_memory(tmp_path, tiny_spans, kind):
    parts = [
        problem.with_engine(problem.engine.on_rows(np.arange(3, 43, 2)))
        for problem in pair(tmp_path, kind=kind, weighted=True)
    ]
    assert parts[0].engine.in_memory
    assert parts[0].n_samples == 20
    assert parts[0].objective(np.ones(D)) == parts[1].objective(np.ones(D))


@pytest.mark.parametrize("solver", ["prospect", "saddle_saga"])
def test_solvers_that_need_any_row_at_any_time_are_refused(tmp_path, tiny_spans, solver):
    with pytest.raises(ValueError, match="needs the operation 'table', which BlocksEngine"):
        sorel.solve(pair(tmp_path)[0], solver)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_epochs_stay_at_the_minimum_and_lead_to_it(tmp_path, tiny_spans, loss, sampling):
    problem, _ = pair(tmp_path, loss, risk="mean", fit_intercept=True, weighted=True)
    engine, rng = problem.engine, np.random.default_rng(0)
    best = problem.from_user(sorel.solve(problem, "newton", tol=1e-14).w)
    step = 0.1 / engine.stochastic().smoothness(engine.uniform()).component
    for proximal, batch in itertools.product([False, True], [1, 5]):
        setting = plan(problem, step, 40, batch=batch, proximal=proximal, sampling=sampling)
        there = epoch(problem, best, setting, rng)
        np.testing.assert_allclose(there, best, rtol=0, atol=1e-6)
    w = best + 0.5
    for _ in range(10):
        w = epoch(problem, w, setting._replace(steps=400), rng)
    assert np.linalg.norm(w - best) < 0.25 * np.sqrt(best.size)


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_an_epoch_is_unbiased(tmp_path, tiny_spans, sampling):
    """One step from a far start, averaged over draws, is a step along the full gradient."""
    problem, memory = pair(tmp_path, "logistic", weighted=True, penalty=sorel.L2(1e-9))
    engine, rng, start = problem.engine, np.random.default_rng(0), np.array([1.0, -1.0, 2.0, 0.5])
    dual = engine.worst_case(engine.point(start))
    same = memory.engine.nearest_dual(engine.weights(dual))[0]
    expected = memory.engine.gradient(memory.engine.point(start), same)
    setting = plan(problem, 1e-3, 1, batch=3, sampling=sampling)
    ends = [epoch(problem, np.zeros(D), setting, rng, start, dual) for _ in range(4000)]
    steps = (start - np.array(ends)) / setting.step
    error = steps.std(axis=0) / np.sqrt(len(steps))
    assert np.all(np.abs(steps.mean(axis=0) - expected) <= 4.5 * error + 1e-6)


def test_short_epochs_read_few_and_whole_spans(tiny_spans, monkeypatch):
    X, y = make_data("squared", 500, D, 0)
    source, seen = MemmapRows(X), []
    problem = sorel.Problem(source, y, risk="mean", engine=BlocksEngine)
    point, dual = problem.engine.point(np.zeros(D)), problem.engine.uniform()
    gradient = problem.engine.gradient(point, dual)
    read = source.read
    monkeypatch.setattr(source, "read", lambda *span: seen.append(span) or read(*span))
    setting, rng = plan(problem, 0.1, 10), np.random.default_rng(0)
    problem.engine.stochastic().epoch(point, dual, gradient, setting, rng)
    assert 1 <= len(seen) <= 3
    assert set(seen) <= set(source.spans)


def test_minibatch_epochs_lower_the_objective(tmp_path, tiny_spans):
    problem, _ = pair(tmp_path, n=200, risk="cvar:0.5", weighted=True)
    setting, rng = plan(problem, 0.02, 100, batch=20), np.random.default_rng(0)
    w = problem.engine.stochastic().minibatch_epoch(problem.start(), setting, rng)
    best = sorel.solve(problem, "newton").objective
    before = problem.objective(problem.start()) - best
    assert problem.objective(w) - best < 0.1 * before


# Problems of rows on disk.


def test_small_data_is_taken_into_memory(tmp_path, monkeypatch):
    X, y = make_data("squared", N, D, 0)
    write_blocks(tmp_path / "blocks", X, y)
    both = stored(np.column_stack([X, y]), tmp_path, "parquet")
    np.save(tmp_path / "X.npy", X)
    for given, targets in [(tmp_path / "blocks", "y.npy"), (tmp_path / "X.npy", y), (both, "x4")]:
        problem = sorel.Problem(given, targets)
        assert type(problem.engine) is DenseEngine
        assert problem.objective(np.ones(D)) == sorel.Problem(X, y).objective(np.ones(D))
    monkeypatch.setattr("sorel.problem.validation.WORTH_STREAMING", X.nbytes - 1)
    assert isinstance(sorel.Problem(str(tmp_path / "X.npy"), y).engine, BlocksEngine)


def test_bad_rows_are_named(tmp_path, tiny_spans):
    X, y = make_data("squared", N, D, 0)
    X[31, 2] = np.nan
    with pytest.raises(ValueError, match=r"block_00002\.npy\[9, 2\] is nan"):
        sorel.Problem(stored(X, tmp_path, "blocks"), y)
