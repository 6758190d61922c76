"""Dense X: which of two ways of the same product is taken, and that both are the same."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import sorel
from sorel.engines import dense, memory
from sorel.engines.base import Plan
from sorel.engines.memory import FEW_COLUMNS


def spy(name, of=dense):
    return mock.patch.object(of, name, wraps=getattr(of, name))


def make(n=40, d=3, **options):
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d))
    y = X[:, 0] + rng.standard_normal(n)
    if options.get("loss") == "multinomial":
        y = np.arange(n) % options.pop("classes", 3)
    return sorel.Problem(X, y, penalty=sorel.L2(0.1), **options)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("few", [True, False])
def test_how_the_largest_entries_are_found(order, few, monkeypatch):
    X = np.array([[1.0, -7.0, 0.0], [-3.0, 2.0, 0.0]], order=order)
    monkeypatch.setattr(dense, "_FEW_BYTES", X.nbytes + 1 if few else X.nbytes)
    with spy("column_sizes", dense.dense) as loop:
        np.testing.assert_array_equal(dense._column_sizes(X), [3.0, 7.0, 0.0])
    assert loop.called is (not few and order == "C")


@pytest.mark.parametrize("outputs", [dense._FEW_OUTPUTS, dense._FEW_OUTPUTS + 1])
@pytest.mark.parametrize("d", [dense._MANY_COLUMNS - 1, dense._MANY_COLUMNS])
def test_narrow_factors_come_first(outputs, d):
    rng = np.random.default_rng(0)
    X, W, out = (
        rng.standard_normal((5, d)),
        rng.standard_normal((d, outputs)),
        np.empty((5, outputs)),
    )
    with spy("matmul", np) as product:
        dense._product(X, W, out)
    np.testing.assert_allclose(out, X @ W)
    few = outputs <= dense._FEW_OUTPUTS
    assert product.called is not (few and d >= dense._MANY_COLUMNS)
    back = dense._adjoint(X, out)
    np.testing.assert_allclose(back, X.T @ out)
    # A narrow factor that came first leaves its product turned.
    assert back.flags.f_contiguous is few


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_single_precision_is_made_double_a_tile_at_a_time(dtype, monkeypatch):
    monkeypatch.setattr(dense, "_TILE_SIZE", 8)
    rng = np.random.default_rng(0)
    X, W, c = (
        rng.standard_normal((7, 3)).astype(dtype),
        rng.standard_normal((4, 2)),
        np.ones((7, 2)),
    )
    full = np.column_stack([X.astype(float), np.ones(7)])
    with spy("_tiles") as tiles:
        margins = np.empty((7, 2))
        dense._multiply(X, W[:3], margins)
        np.testing.assert_allclose(margins, full[:, :3] @ W[:3], rtol=1e-12)
        dense._multiply(X, W, margins)
        np.testing.assert_allclose(margins, full @ W, rtol=1e-12)
        for size in (3, 4):
            out = np.ones((size, 2))
            dense._add_adjoint(X, c, out)
            np.testing.assert_allclose(out, 1.0 + (full.T @ c)[:size], rtol=1e-12)
    assert tiles.call_count == (4 if dtype is np.float32 else 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("d", [FEW_COLUMNS, FEW_COLUMNS + 1])
def test_small_matrices_have_loops_of_their_own(d, threads, monkeypatch):
    if threads > 1:
        monkeypatch.setattr(memory, "WORTH_SHARING_X", 0)
    engine = make(200, d, n_jobs=threads, risk=sorel.ESRM(2.0)).for_run().engine
    X, h = np.asarray(engine.stored()[0]), np.linspace(0.0, 1.0, 200)
    small = d <= FEW_COLUMNS
    with (
        spy("_add_small_gram") as few,
        mock.patch.object(
            dense.DenseEngine, "_add_gram", autospec=True, side_effect=dense.DenseEngine._add_gram
        ) as many,
    ):
        found = engine._gram(h)
    np.testing.assert_allclose(found, X.T @ (h[:, None] * X), rtol=1e-10, atol=1e-12)
    parts = 1 if threads == 1 else len(engine._row_team.ranges)
    assert (few.call_count, many.call_count) == ((parts, 0) if small else (0, parts))
    # And the means of blocks are taken out by one loop where threads do not share the rows.
    point = engine.point(np.ones(d))
    dual = engine.ascend(engine.uniform(), point, 1.0)
    assert dual.n_blocks > 0
    with mock.patch.object(
        memory.MemoryEngine, "_subtract_block_means", autospec=True,
        side_effect=memory.MemoryEngine._subtract_block_means,
    ) as general:  # fmt: skip
        hessian = engine.hessian(point, dual, 1.0)
    assert general.called is not (small and threads == 1)
    slopes = X @ np.ones(d) - engine.y
    expected = X.T @ ((dual.density / 200)[:, None] * X)
    for b in range(dual.n_blocks):
        rows = dual.block == b
        G = slopes[rows, None] * X[rows]
        G = G - G.mean(axis=0)
        expected += G.T @ G / 200
    np.testing.assert_allclose(hessian, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("signs", [(1,), (-1,), (1, -1), ()])
@pytest.mark.parametrize("height", [7, 1000])
def test_weights_of_either_sign(signs, height, monkeypatch):
    monkeypatch.setattr(dense, "_TILE_SIZE", height * (FEW_COLUMNS + 1))
    engine = make(60, FEW_COLUMNS + 1).engine
    X, h = np.asarray(engine.stored()[0]), np.zeros(60)
    for k, sign in enumerate(signs):
        h[k::3] = sign * np.linspace(0.5, 1.0, 20)
    np.testing.assert_allclose(engine._gram(h), X.T @ (h[:, None] * X), atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("steps", "batch"), [(20, 1), (7, 3), (6, 4)])
def test_rows_are_copied_ahead_where_x_is_large(steps, batch, threads, monkeypatch):
    """Three draws at a time, or as many as make a whole batch, in turn in two rooms."""
    if threads > 1:
        monkeypatch.setattr(memory, "WORTH_SHARING_X", 0)
    problem = make(200, 4, risk=sorel.ESRM(2.0), n_jobs=threads)
    engine = problem.for_run().engine
    point = engine.point(np.ones(4))
    dual = engine.worst_case(point)
    plan = Plan(0.01, steps, problem.penalty.kernel(4), batch=batch, burn_in=2)

    def epoch():
        total = np.zeros(4)
        gradient = engine.gradient(point, dual)
        w = engine.epoch(point, dual, gradient, plan, np.random.default_rng(1), None, total)
        return np.concatenate([w, total])

    nbytes = 200 * 4 * 8
    monkeypatch.setattr(dense, "_CACHED", nbytes + 1)
    with spy("gather_rows", dense.dense) as gather:
        expected = epoch()
    assert not gather.called
    monkeypatch.setattr(dense, "_CACHED", nbytes)
    monkeypatch.setattr(dense, "_AHEAD", 3 * 4 * 8)
    ahead = "background" if threads > 1 else "immediately"
    with spy("gather_rows", dense.dense) as gather, spy(ahead) as asked:
        np.testing.assert_allclose(epoch(), expected, rtol=1e-12)
    height = max(1, 3 // batch) * batch
    lengths = []
    for draws in (2 * batch, (steps - 2) * batch):
        lengths += [min(height, draws - start) for start in range(0, draws, height)]
    assert [len(call.args[1]) for call in gather.call_args_list] == lengths
    assert asked.call_count == len(lengths)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_over_rows_are_shared_or_made_at_once(order, threads, monkeypatch):
    if threads > 1:
        monkeypatch.setattr(memory, "WORTH_SHARING_X", 0)
    rng = np.random.default_rng(3)
    X, c = np.array(rng.standard_normal((300, 4)), order=order), rng.standard_normal(300)
    problem = sorel.Problem(X, c, fit_intercept=True, n_jobs=threads)
    engine = problem.for_run().engine
    full = np.column_stack([X, np.ones(300)])
    with mock.patch.object(engine, "_accumulate", wraps=engine._accumulate) as shared:
        np.testing.assert_allclose(engine._adjoint(c), full.T @ c, atol=1e-11)
        assert shared.called is (threads > 1 or order == "F")
        shared.reset_mock()
        np.testing.assert_allclose(engine._gram(c), full.T @ (c[:, None] * full), atol=1e-11)
        assert shared.called is (threads > 1)
    w, out = rng.standard_normal(5), np.empty(300)
    engine._margins(w, out)
    np.testing.assert_allclose(out, full @ w, atol=1e-12)


def test_sums_of_some_blocks():
    engine = make(40, 3).engine
    X, block, c = np.asarray(engine.stored()[0]), np.arange(40) % 5 - 1, np.linspace(1.0, 2.0, 40)
    found = engine._block_sums(block.astype(np.int32), 1, 3, c)
    expected = [(c[block == b, None] * X[block == b]).sum(axis=0) for b in (1, 2)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rows_of_several_outputs_are_copied_up_to_a_limit(monkeypatch):
    engine, rows = make(40, 3, loss="multinomial").engine, np.arange(0, 40, 4)
    for limit, copied in ((10 * 3 * 8, True), (10 * 3 * 8 - 1, False)):
        monkeypatch.setattr(dense, "_MAX_COPY", limit)
        assert (engine._select(rows) is not None) is copied
    # One output takes a list of rows where these lie one after another.
    assert make(40, 3).engine._select(rows) is rows
    assert sorel.Problem(np.ones((40, 3), order="F"), np.ones(40)).engine._select(rows) is None
