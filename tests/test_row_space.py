"""A problem in the space of its rows is the problem, and its solution that of all columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import CVaR
from sorel.certificate import certify
from sorel.engines.rotated import rotate
from sorel.engines.row_gram import MAX_ROWS
from sorel.solvers import Newton, Run, UnsupportedProblemError, row_space
from sorel.solvers.row_space import RowSpace, pays


def make_problem(n=60, d=6000, kind="rows", loss="squared", intercept=True, **more):
    rng = np.random.default_rng(n + d)
    X = rng.standard_normal((n, d)) * np.geomspace(1.0, 0.1, d)
    y = X[:, :5] @ rng.standard_normal(5) + rng.standard_t(3, n)
    if loss == "logistic":
        y = np.where(y > 0.0, 1.0, -1.0)
    if kind == "columns":
        X = np.asfortranarray(X)
    elif kind == "sparse":
        X = scipy.sparse.csr_array(np.where(rng.random((n, d)) < 0.6, X, 0.0))
    elif kind == "single":
        X = X.astype(np.float32)
    more.setdefault("risk", CVaR(0.2))
    return sorel.Problem(X, y, loss=loss, fit_intercept=intercept, **more)


@pytest.mark.parametrize("kind", ["rows", "columns", "sparse", "single"])
@pytest.mark.parametrize("intercept", [True, False])
def test_losses_risk_and_norm_are_the_same_there(kind, intercept):
    problem = make_problem(kind=kind, intercept=intercept)
    rotated = rotate(problem.engine)
    small = problem.with_engine(rotated.engine)
    assert small.engine.n_features == small.n_samples == 60
    rng = np.random.default_rng(0)
    v = rng.standard_normal(60 + intercept)
    w = rotated.back(v)
    assert w.shape == problem.engine.shape
    w, v = problem.for_user(w), small.for_user(v)
    np.testing.assert_allclose(problem.losses(w), small.losses(v), rtol=1e-6, atol=1e-9)
    assert problem.objective(w) == pytest.approx(small.objective(v), rel=1e-8)
    assert np.linalg.norm(w[:6000]) == pytest.approx(np.linalg.norm(v[:60]), rel=1e-8)
    into = rotated.into(problem.from_user(w))
    np.testing.assert_allclose(small.for_user(into), v, atol=1e-8)
    # What margins do not depend on is lost, and nothing else.
    anywhere = rng.standard_normal(problem.engine.shape)
    there = rotated.into(anywhere)
    np.testing.assert_allclose(
        problem.losses(problem.for_user(anywhere)), small.losses(small.for_user(there)), rtol=1e-8
    )
    assert np.linalg.norm(there[:60]) < np.linalg.norm(anywhere[:6000])


def test_dependent_rows_have_no_coordinates():
    problem = make_problem()
    X, y = problem.engine.stored()
    twice = np.vstack([X, X[:1]])
    assert rotate(sorel.Problem(twice, np.append(y, 0.0), risk=CVaR(0.2)).engine) is None
    twice[-1, 0] += 1e-7
    assert rotate(sorel.Problem(twice, np.append(y, 0.0), risk=CVaR(0.2)).engine) is None
    twice[-1, 0] += 1.0
    assert rotate(sorel.Problem(twice, np.append(y, 0.0), risk=CVaR(0.2)).engine) is not None


def test_what_has_no_space_of_rows():
    X = np.random.default_rng(0).standard_normal((30, 200))
    classes = np.arange(30) % 3
    assert rotate(sorel.Problem(X, classes, loss="multinomial").engine) is None
    few = sorel.Problem(X[:, :20], X[:, 0])
    assert rotate(few.engine) is None  # thirty rows of twenty columns are dependent


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["rows", "sparse"])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_the_solution_is_that_of_newton_steps(loss, kind, weighted):
    weight = np.random.default_rng(1).uniform(0.2, 3.0, 60) if weighted else None
    problem = make_problem(kind=kind, loss=loss, sample_weight=weight, penalty=sorel.L2(1e-3))
    found = sorel.solve(problem, RowSpace(), tol=1e-7)
    other = sorel.solve(problem, Newton(), tol=1e-9)
    assert found.converged
    assert found.dual <= other.objective * (1 + 1e-13)
    assert other.dual <= found.objective * (1 + 1e-13)
    assert problem.certificate(found.w, found.weights).relative_gap <= 1e-7
    np.testing.assert_allclose(found.w, other.w, atol=2e-2 * np.abs(other.w).max())


def test_auto_goes_there_first():
    result = sorel.solve(make_problem())
    assert result.converged
    assert "auto (row_space)" in result.status
    assert "row_space" not in sorel.solve(make_problem(risk="esrm:2")).status


def test_auto_goes_on_where_that_leads_nowhere():
    problem = make_problem()
    X, y = problem.engine.stored()
    X = np.vstack([X, X[:2]])
    problem = sorel.Problem(X, np.append(y, [0.0, 1.0]), risk=CVaR(0.2), fit_intercept=True)
    result = sorel.solve(problem)
    assert result.converged
    assert "row_space then" in result.status
    with pytest.warns(sorel.ConvergenceWarning, match="rows of X are all but dependent"):
        assert not sorel.solve(problem, RowSpace()).converged


def test_a_warm_start_is_one_there_too():
    problem = make_problem()
    start = sorel.solve(problem, tol=1e-8)
    again = sorel.solve(problem, RowSpace(), tol=1e-6, warm_start=start)
    cold = sorel.solve(problem, RowSpace(), tol=1e-6)
    assert again.converged
    assert again.passes < cold.passes


def test_steps_that_lead_nowhere_are_left(monkeypatch):
    monkeypatch.setattr(row_space, "_PATIENCE", 0)
    problem = make_problem(risk=CVaR(0.1), penalty=sorel.L2(1e-4))
    run = Run(problem.start(), None, 1e-12, 1000, math.inf, 0)
    reached = []
    for iterate in RowSpace().iterates(problem, run):
        reached.append(certify(problem, iterate.point, iterate.dual).primal)
    assert len(reached) == 1
    assert run.passes < 300


def test_somebody_who_looks_on_sees_the_way():
    problem = make_problem(penalty=sorel.L2(1e-4))
    seen = []
    result = sorel.solve(problem, RowSpace(), callback=lambda record: seen.append(record.passes))
    assert result.converged
    assert len(seen) > 2
    assert seen == sorted(seen)


def test_an_interrupt_loses_nothing(monkeypatch):
    problem = make_problem(penalty=sorel.L2(1e-4))
    rehearse = row_space.rehearse

    def stopped(iterates, small, run):
        for count, found in enumerate(rehearse(iterates, small, run)):
            if count == 3:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(row_space, "rehearse", stopped)
    result = sorel.solve(problem, RowSpace())
    assert result.status.startswith("interrupted")
    assert result.objective < 0.5 * problem.objective(problem.start())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"n": 400, "d": 800}, True),
        ({"n": 400, "d": 799}, False),
        ({"n": 60, "d": 3300}, False),  # too few entries to be worth the way
        ({"risk": "mean"}, False),
        ({"risk": "esrm:2"}, False),
        ({"loss": "linear", "intercept": False}, False),
        ({"penalty": sorel.ElasticNet(0.1, 0.1)}, False),
    ],
)
def test_where_it_pays(change, expected):
    problem = make_problem(**change)
    assert pays(problem) == expected
    if not expected:
        with pytest.raises(UnsupportedProblemError, match=f"at most {MAX_ROWS} rows and 2 times"):
            sorel.solve(problem, RowSpace())
