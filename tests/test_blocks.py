"""The engine for rows on disk: against the dense one, and its draws against their probabilities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import LOSSES, make_data, make_loss

import sorel
from sorel.engines import BlocksEngine, DenseEngine
from sorel.engines.base import Plan
from sorel.rows import open_rows, write_blocks

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


def pair(folder, loss="squared", kind="memmap", dtype=np.float64, n=N, d=D, **options):
    """The same problem on disk and in memory."""
    X, y = make_data(loss, n, d, 0)
    X = X.astype(dtype)
    options = {"loss": make_loss(loss), "penalty": sorel.L2(0.1), "risk": "esrm:2", **options}
    if options.pop("weighted", False):
        options["sample_weight"] = np.random.default_rng(1).uniform(0.2, 2.0, n)
    disk = sorel.Problem(stored(X, folder, kind), y, **options)
    assert isinstance(disk.engine, BlocksEngine)
    assert len(disk.engine._rows.source.spans) > 2
    return disk, sorel.Problem(X, y, **options)


@pytest.mark.parametrize("solver", ["auto", "newton_cg", "sorel"])
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


def test_the_number_of_threads_changes_rounding_alone(tmp_path, tiny_spans):
    results = []
    for n_jobs in (1, 2, 2):
        folder = tmp_path / str(len(results))
        folder.mkdir()
        problem = pair(folder, n=200, n_jobs=n_jobs)[0]
        results.append(sorel.solve(problem, "sorel", tol=1e-7).w)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    np.testing.assert_array_equal(results[1], results[2])


def test_solvers_that_need_any_row_at_any_time_are_refused(tmp_path, tiny_spans):
    disk, _ = pair(tmp_path)
    for solver in ("prospect", "saddle_saga"):
        with pytest.raises(ValueError, match="needs the operation 'table', which BlocksEngine"):
            sorel.solve(disk, solver)


# Stochastic epochs.


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_epochs_stay_at_the_minimum_and_lead_to_it(tmp_path, tiny_spans, loss, sampling):
    problem, _ = pair(tmp_path, loss, risk="mean", fit_intercept=True, weighted=True)
    engine = problem.engine
    best = problem.from_user(sorel.solve(problem, "newton", tol=1e-14).w)
    dual, rng = engine.uniform(), np.random.default_rng(0)
    step = 0.1 / engine.stochastic().smoothness(dual).component
    kernel = problem.penalty.kernel(D)
    for proximal, batch in itertools.product([False, True], [1, 5]):
        plan = Plan(step, 40, kernel, batch, proximal, sampling=sampling)
        snapshot = engine.point(best)
        there = engine.stochastic().epoch(
            snapshot, dual, engine.gradient(snapshot, dual), plan, rng
        )
        np.testing.assert_allclose(there, best, rtol=0, atol=1e-6)
    w = best + 0.5
    for _ in range(10):
        point = engine.point(w)
        w = engine.stochastic().epoch(
            point, dual, engine.gradient(point, dual), plan._replace(steps=400), rng
        )
    assert np.linalg.norm(w - best) < 0.5 * np.linalg.norm(np.full_like(best, 0.5))


def test_an_epoch_is_unbiased(tmp_path, tiny_spans):
    """One step from a far start, averaged over draws, is a step along the full gradient."""
    problem, memory = pair(tmp_path, "logistic", weighted=True)
    engine, rng = problem.engine, np.random.default_rng(0)
    snapshot, start = engine.point(np.zeros(D)), np.array([1.0, -1.0, 2.0, 0.5])
    dual = engine.worst_case(engine.point(start))
    gradient = engine.gradient(snapshot, dual)
    kernel = sorel.L2(1e-9).kernel(D)
    expected = memory.engine.gradient(
        memory.engine.point(start), memory.engine.nearest_dual(engine.weights(dual))[0]
    )
    for sampling in ("uniform", "importance"):
        plan = Plan(1e-3, 1, kernel, 3, sampling=sampling)
        steps = np.array(
            [
                (start - engine.stochastic().epoch(snapshot, dual, gradient, plan, rng, start))
                / plan.step
                for _ in range(4000)
            ]
        )
        error = steps.std(axis=0) / np.sqrt(len(steps))
        assert np.all(np.abs(steps.mean(axis=0) - expected) <= 4.5 * error + 1e-6)


def test_a_full_epoch_visits_every_row_and_mixes_the_spans(tmp_path, tiny_spans):
    engine = pair(tmp_path)[0].engine
    plan = Plan(0.1, N, sorel.L2(0.1).kernel(D))
    [(_, drawn)] = engine.stochastic()._draw_spans(
        np.full(N, 1.0 / N), plan, np.random.default_rng(0)
    )
    # A span of rows may get one draw more or less, by rounding, and nothing else may differ.
    assert len(set(drawn.tolist())) >= N - len(engine._rows.source.spans)
    spans = np.searchsorted([stop for _, stop in engine._rows.source.spans], drawn, side="right")
    assert np.count_nonzero(np.diff(spans)) > N / 2


def test_short_epochs_read_few_and_whole_spans(tmp_path, tiny_spans, monkeypatch):
    problem, _ = pair(tmp_path, n=500)
    engine = problem.engine
    read, seen = engine._rows.source.read, []
    monkeypatch.setattr(engine._rows.source, "read", lambda *span: seen.append(span) or read(*span))
    plan = Plan(0.1, 10, problem.penalty.kernel(D))
    for _ in engine.stochastic()._draw_spans(np.full(500, 1 / 500), plan, np.random.default_rng(0)):
        pass
    assert 1 <= len(seen) <= 3
    assert set(seen) <= set(engine._rows.source.spans)


def test_minibatch_epochs_lower_the_objective(tmp_path, tiny_spans):
    for weighted in (False, True):
        folder = tmp_path / str(weighted)
        folder.mkdir()
        problem, _ = pair(folder, n=200, risk="cvar:0.5", weighted=weighted)
        plan = Plan(0.02, 100, problem.penalty.kernel(D), 20)
        w = problem.engine.stochastic().minibatch_epoch(
            problem.start(), plan, np.random.default_rng(0)
        )
        best = sorel.solve(problem, "newton").objective
        before = problem.objective(problem.start()) - best
        assert problem.objective(w) - best < 0.1 * before


# Problems of rows on disk.


def test_small_data_is_taken_into_memory(tmp_path, monkeypatch):
    X, y = make_data("squared", N, D, 0)
    write_blocks(tmp_path / "blocks", X, y)
    np.save(tmp_path / "X.npy", X)
    for given in (tmp_path / "blocks", tmp_path / "X.npy", stored(X, tmp_path, "parquet")):
        assert isinstance(sorel.Problem(given, y).engine, DenseEngine)
        assert not isinstance(sorel.Problem(given, y).engine, BlocksEngine)
    assert sorel.Problem(tmp_path / "blocks", "y.npy").objective(np.ones(D)) == (
        sorel.Problem(X, y).objective(np.ones(D))
    )
    monkeypatch.setattr("sorel.problem.validation.WORTH_STREAMING", X.nbytes - 1)
    assert isinstance(sorel.Problem(str(tmp_path / "X.npy"), y).engine, BlocksEngine)


def test_a_column_of_parquet_is_the_target(tmp_path, tiny_spans):
    X, y = make_data("logistic", N, D, 0)
    path = stored(np.column_stack([X, y]), tmp_path, "parquet")
    problem = sorel.Problem(path, "x4", loss="logistic")
    assert problem.n_features == D
    np.testing.assert_allclose(
        problem.losses(np.ones(D)), sorel.Problem(X, y, loss="logistic").losses(np.ones(D))
    )


def test_a_checkpoint_of_rows_on_disk(tmp_path, tiny_spans):
    X, y = make_data("squared", 300, D, 0)
    path = tmp_path / "X.npy"
    np.save(path, X)
    options = {"tol": 1e-8, "checkpoint": tmp_path / "state.ckpt"}
    with pytest.warns(sorel.ConvergenceWarning):
        first = sorel.solve(sorel.Problem(path, y), "sorel", max_passes=5, **options)
    second = sorel.solve(sorel.Problem(path, y), "sorel", **options)
    assert second.converged
    assert second.passes > first.passes
    X[:, 1] += 0.1
    np.save(path, X)
    with pytest.raises(ValueError, match="the values of X differ"):
        sorel.solve(sorel.Problem(path, y), "sorel", **options)


def test_bad_rows_are_named(tmp_path, tiny_spans):
    X, y = make_data("squared", N, D, 0)
    X[31, 2] = np.nan
    with pytest.raises(ValueError, match=r"block_00002\.npy\[9, 2\] is nan"):
        sorel.Problem(stored(X, tmp_path, "blocks"), y)
    with pytest.raises(ValueError, match="60 rows but y has 59"):
        sorel.Problem(open_rows(stored(np.ones((N, D)), tmp_path, "memmap")), y[1:])
