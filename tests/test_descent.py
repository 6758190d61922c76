"""Coordinate descent on the plain average: its loops, and what it leaves to Newton's method."""

from __future__ import annotations

import types
import warnings

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import Box, CVaR, ElasticNet, Mean, NonNegative, Problem
from sorel.engines import coordinate_descent
from sorel.kernels import descent as loops
from sorel.solvers import Newton, descent
from sorel.solvers.augmented import State
from sorel.solvers.base import Run

PENALTIES = [ElasticNet(0.02, 0.1), NonNegative(0.05), Box(0.0, -0.2, 0.3), Box(0.1, 0.0, np.inf)]


def data(n=80, d=12, seed=0):
    """Columns with means, so that the intercept is not alone."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + rng.uniform(-2.0, 2.0, d)
    return X, X[:, :3] @ np.array([1.0, -0.7, 0.2]) + 3.0 + 0.3 * rng.standard_normal(n)


def in_form(X, form):
    if form == "csr":
        return scipy.sparse.csr_array(np.where(np.abs(X) > 0.7, X, 0.0))
    return np.asfortranarray(X) if form == "F" else X.astype(form)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("form", ["float64", "float32", "F", "csr"])
@pytest.mark.parametrize("intercept", [False, True])
def test_it_ends_at_the_minimum(form, penalty, intercept):
    X, y = data()
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    problem = Problem(
        in_form(X, form),
        y,
        risk=Mean(),
        penalty=penalty,
        fit_intercept=intercept,
        sample_weight=weight,
    )
    engine = problem.engine
    w = problem.start()
    w[0] = 0.1
    point, dual = engine.point(w), engine.uniform()
    found = coordinate_descent.descend(
        engine, point, dual, w, penalty.kernel(engine.n_features), 20_000, 1e-16
    )
    assert found.sweeps < 20_000
    assert found.left <= 1e-16
    # A certificate of its own: the duality gap at the point.
    certificate = problem.certificate(problem.for_user(found.w), weight / weight.sum())
    assert certificate.relative_gap <= 1e-10
    # The start is left alone.
    assert w[0] == 0.1


def test_sweeps_that_would_not_reach_the_goal_are_not_made():
    rng = np.random.default_rng(0)
    common = rng.standard_normal((100, 1))
    X = common + 1e-4 * rng.standard_normal((100, 30))
    y = X[:, 0] - X[:, 1] + rng.standard_normal(100)
    penalty = ElasticNet(1e-10, 1e-9)
    problem = Problem(X, y, risk=Mean(), penalty=penalty)
    engine = problem.engine
    w = np.zeros(30)
    start = problem.objective(w)
    kernel = penalty.kernel(30)
    found = coordinate_descent.descend(
        engine, engine.point(w), engine.uniform(), w, kernel, 1000, 1e-12
    )
    assert found.sweeps < 100
    assert found.left > 1e-12
    assert problem.objective(found.w) < start


def test_only_squared_losses_descend():
    X, y = data()
    assert coordinate_descent.serves(Problem(X, y).engine)
    assert not coordinate_descent.serves(Problem(X, y, loss="huber").engine)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_plain_average_needs_no_hessian(sparse, monkeypatch):
    monkeypatch.setattr(Newton, "direction", None)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 400))
    y = X[:, :8] @ rng.standard_normal(8) + 0.2 * rng.standard_normal(300) + 1.0
    if sparse:
        X = in_form(X, "csr")
    result = sorel.solve(
        Problem(X, y, risk=Mean(), penalty=ElasticNet(1e-2, 0.1), fit_intercept=True), tol=1e-8
    )
    assert result.relative_gap <= 1e-8
    assert 0 < np.count_nonzero(result.w[:-1]) < 100


@pytest.mark.parametrize("risk", [Mean(), CVaR(0.3)], ids=repr)
def test_columns_that_are_all_but_alike_are_left_to_newton(risk, monkeypatch):
    monkeypatch.setattr(descent, "_LEAST_WORK", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 1)) + 1e-3 * rng.standard_normal((200, 60))
    y = 50.0 * (X[:, 0] - X[:, 1]) + rng.standard_normal(200)
    problem = Problem(X, y, risk=risk, penalty=ElasticNet(1e-6, 1e-6), fit_intercept=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sorel.solve(problem, tol=1e-8)
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-8


@pytest.mark.parametrize("shape", [(5, 3), (32, 32), (70, 33), (33, 70)])
def test_rows_are_scaled_and_turned_in_blocks(shape):
    rng = np.random.default_rng(0)
    X, root = rng.normal(size=shape), rng.uniform(0.1, 1.0, shape[0])
    out, squares, means = np.empty(shape[::-1]), np.zeros(shape[1]), np.zeros(shape[1])
    loops.scaled_transpose(X, root, out, squares, means)
    np.testing.assert_allclose(out, (root[:, None] * X).T, rtol=1e-14)
    np.testing.assert_allclose(squares, (root**2) @ X**2, rtol=1e-12)
    np.testing.assert_allclose(means, (root**2) @ X, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("alike", [0.0, 0.97])
@pytest.mark.parametrize("sweeps", [3, 200])
def test_sweeps_are_the_same_however_columns_are_kept(penalty, alike, sweeps):
    """The same problem by all entries and by those of CSC: each step, each sweep, each end."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(9, 40))
    A = (alike * A[:1] + (1.0 - alike) * A) / np.sqrt(40)
    A[4] = 0.0
    root = np.full(40, 1.0 / np.sqrt(40))
    means = A @ root
    curvature = (A**2).sum(axis=1) - means**2
    _, l2, l1, lower, upper = penalty.kernel(9)
    target = rng.normal(size=40)
    columns = scipy.sparse.csr_array(A)
    arrays = columns.indptr, columns.indices, columns.data
    for goal in (1e-2, 1e-6, 1e-12):
        found = []
        for loop, matrix in ((loops.descend_dense, (A,)), (loops.descend_sparse, arrays)):
            w = np.clip(np.zeros(9), lower, upper)
            residual = w @ A - target
            shift = -float(residual @ root)
            ends = loop(
                *matrix, means, curvature, residual, w, l1, l2, lower, upper, sweeps, goal, shift
            )
            # The residual is that of the coefficients, and centred it has no mean.
            np.testing.assert_allclose(residual, w @ A - target, atol=1e-12)
            assert ends[0] == pytest.approx(-float(residual @ root), abs=1e-12)
            assert (lower <= w).all()
            assert (w <= upper).all()
            found.append((*ends, *w))
        np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)
        assert 1 <= found[0][2] <= sweeps


def test_sweeps_that_are_worth_it():
    def part(n, d):
        return types.SimpleNamespace(engine=types.SimpleNamespace(n_samples=n, n_features=d))

    few = descent._sweeps(part(10**6, 100))
    assert few == 10 + int(descent._BY_COLUMN * 100)
    # Beside few rows a matrix is dear: its cube over the entries of X.
    many = descent._sweeps(part(100, 1000))
    assert many == int(10 + descent._BY_COLUMN * 1000 + descent._BY_CUBE * 1000**3 / (100 * 1000))
    assert descent._sweeps(part(10, 10_000)) == descent._MOST_SWEEPS


def test_descent_goes_on_until_its_bracket_is_closed(monkeypatch):
    monkeypatch.setattr(descent, "_LEAST_WORK", 0)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 12))
    y = X[:, :3] @ rng.standard_normal(3) + 0.2 * rng.standard_normal(80)
    problem = Problem(X, y, risk=Mean(), penalty=ElasticNet(1e-2, 0.1)).for_run()
    engine, dual = problem.engine, problem.engine.uniform()

    def descended(w):
        run = Run(w, None, 1e-8, 1000, np.inf, 0)
        state = descent.descend(State(problem, engine.point(w), dual, 0.0), run)
        goal = descent._CLOSED * 1e-8 * state.value
        return state, run.passes, goal

    state, cold, goal = descended(problem.start())
    assert state.fenchel_young() <= goal
    # From there one round is tried all the same, and is the last.
    again, warm, goal = descended(state.point.w)
    assert again.fenchel_young() <= goal
    assert 1.0 < warm < cold
    spent = Run(problem.start(), None, 1e-8, 5.0, np.inf, 0, passes=5.0)
    start = State(problem, engine.point(problem.start()), dual, 0.0)
    assert descent.descend(start, spent) is start
