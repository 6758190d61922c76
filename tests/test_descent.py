"""Coordinate descent on the plain average: its loops, and what it leaves to Newton's method."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import Box, CVaR, ElasticNet, Mean, NonNegative, Problem
from sorel.solvers import Newton, descent

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
    found = engine.descend(point, dual, w, penalty.kernel(engine.n_features), 20_000, 1e-16)
    assert found.sweeps < 20_000
    assert found.left <= 1e-16
    # A certificate of its own: the duality gap at the point.
    certificate = problem.certificate(found.w, weight / weight.sum())
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
    found = engine.descend(engine.point(w), engine.uniform(), w, kernel, 1000, 1e-12)
    assert found.sweeps < 100
    assert found.left > 1e-12
    assert problem.objective(found.w) < start


def test_only_squared_losses_descend():
    X, y = data()
    assert Problem(X, y).engine.offers("descend")
    assert "squared loss" in Problem(X, y, loss="huber").engine.obstacle("descend")
    with pytest.raises(NotImplementedError, match="descend"):
        sorel.engines.Engine.descend(Problem(X, y).engine, *[None] * 6)


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
