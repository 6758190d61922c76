"""Work, probabilities and bounds of engines that step on single samples, by their formulas."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel.engines import sampled, sparse
from sorel.engines.base import Plan

RNG = np.random.default_rng(0)
N, D = 60, 5
X = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.4)
Y = RNG.normal(size=N)
LABELS = np.arange(N) % 3
WEIGHTS = RNG.uniform(0.5, 2.0, N)


def engine_of(home="dense", loss="squared", weight=None, intercept=True, risk=None):
    y = LABELS if loss == "multinomial" else np.sign(Y) if loss == "logistic" else Y
    given = scipy.sparse.csr_array(X) if home == "sparse" else X
    problem = sorel.Problem(
        given, y, loss=loss, risk=risk or sorel.ESRM(1.0), fit_intercept=intercept,
        sample_weight=weight,
    )  # fmt: skip
    return problem.for_run().engine


def plan(penalty=None, **options):
    return Plan(0.01, 6, (penalty or sorel.L2(0.1)).kernel(D), **options)


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_the_work_of_a_row(loss):
    outputs = 3 if loss == "multinomial" else 1
    size = (D + 1) * outputs
    simplex = plan(sorel.Simplex(0.1))
    dense = engine_of(loss=loss)
    assert dense._row_work(plan()) == dense._row_work(simplex) == 3 * size
    here = engine_of("sparse", loss)
    entries = -(-np.count_nonzero(X) // N)
    assert here._row_work(plan()) == sparse._ENTRY_WORK * outputs * (1 + entries)
    # Only the simplex moves coefficients that a row does not have.
    assert here._row_work(simplex) == here._row_work(plan()) + 3 * size


@pytest.mark.parametrize("home", ["dense", "sparse"])
def test_loops_are_left_as_often_as_their_work_asks_for(home):
    engine = engine_of(home)
    engine._steps = sampled.Steps(*[lambda *arguments: None] * 4)  # what they do is no matter
    setting, rng = plan(batch=4), np.random.default_rng(1)
    point = engine.point(np.zeros(engine.shape))
    table = engine.table(point, engine.uniform())
    row, ranks = engine._row_work(setting), sampled._TABLE_WORK * N // 4
    runs = {
        row: lambda: engine.minibatch_epoch(point.w, setting, rng),
        row + ranks: lambda: engine.prospect_epoch(table, point.w, setting, 0.0, rng),
    }
    for work, run in runs.items():
        with mock.patch.object(sampled, "_pieces", wraps=sampled._pieces) as pieces:
            run()
        assert pieces.call_args.args == (24, 4, work)
    table = engine.table(point, engine.uniform())
    with mock.patch.object(sampled, "_pieces", wraps=sampled._pieces) as pieces:
        engine.saddle_epoch(table, point.w, setting, 0.1, 0.0, rng)
    assert pieces.call_args.args == (24, 4, row + ranks)


def test_a_piece_is_as_long_as_anybody_waits(monkeypatch):
    monkeypatch.setattr(sampled, "_UNHEARD", 100)
    assert sampled._pieces(60, 5, 4) == [(0, 25), (25, 50), (50, 60)]
    assert sampled._pieces(20, 5, 2) == [(0, 20)]
    assert sampled._pieces(10, 5, 1000) == [(0, 5), (5, 10)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("home", ["dense", "sparse"])
def test_probabilities_follow_weights_and_rows(home, weighted):
    engine = engine_of(home, weight=WEIGHTS if weighted else None)
    point = engine.point(RNG.normal(size=engine.shape))
    dual = engine.worst_case(point)
    lam = engine.weights(dual)
    share = lam * (np.sum(X**2, axis=1) + 1.0)
    importance = plan(sampling="importance")
    found = engine._probabilities(dual, importance)
    np.testing.assert_allclose(found, 0.95 * share / share.sum() + 0.05 / N, rtol=1e-12)
    indices = np.array([3, 3, 17, 59])
    np.testing.assert_allclose(
        engine._scales(dual, found, indices), lam[indices] / found[indices], rtol=1e-12
    )
    np.testing.assert_allclose(engine._probabilities(dual, plan()), 1.0 / N, rtol=1e-15)
    dual.density.fill(0.0)
    np.testing.assert_allclose(engine._probabilities(dual, importance), 1.0 / N, rtol=1e-15)
    with pytest.raises(ValueError, match="sampling must be 'uniform' or 'importance'"):
        engine._probabilities(dual, plan(sampling="other"))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_bounds_on_jacobians(weighted, intercept):
    squares = np.sum(X**2, axis=1) + intercept
    omega = WEIGHTS / WEIGHTS.sum() if weighted else np.full(N, 1.0 / N)
    options = {"weight": WEIGHTS if weighted else None, "intercept": intercept}
    # |phi'| <= 1, or |phi'|^2 <= 2 L phi.
    logistic = engine_of(loss="logistic", **options)
    for value in (1e-3, 10.0):
        expected = min(omega @ squares, 2.0 * 0.25 * value * squares.max())
        assert logistic.jacobian_bound(value) == pytest.approx(expected)
    squared = engine_of(**options)
    assert squared.jacobian_bound(0.7) == pytest.approx(2.0 * 0.7 * squares.max())


def test_sparse_rows_are_copied_where_they_are_few(monkeypatch):
    engine = engine_of("sparse")
    rows = np.array([2, 5, 40])
    entries = np.count_nonzero(X[rows])
    number = engine._X[2].itemsize + engine._X[1].itemsize
    monkeypatch.setattr(sparse, "_MAX_COPY", entries * number)
    chosen = engine._select(rows)
    out = np.empty(3)
    engine._margins_of(chosen, np.arange(D + 1.0), out)
    np.testing.assert_allclose(out, X[rows] @ np.arange(5.0) + 5.0, rtol=1e-14)
    monkeypatch.setattr(sparse, "_MAX_COPY", entries * number - 1)
    assert engine._select(rows) is None


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_have_as_many_entries_each(threads):
    rows = sparse._CsrRows(engine_of("sparse")._X, threads)
    indptr = rows.arrays[0].astype(np.int64)
    assert rows.team.ranges[0][0] == 0
    assert rows.team.ranges[-1][1] == N
    for (_, stop), (start, _) in zip(rows.team.ranges, rows.team.ranges[1:], strict=False):
        assert start == stop
    if threads > 1:
        shares = [indptr[stop] - indptr[start] for start, stop in rows.team.ranges]
        assert len(shares) == threads
        # None is off by more than a row at either end.
        assert max(abs(share - indptr[-1] / threads) for share in shares) <= 2 * D
