"""Steps on a part of the columns: the part itself, and optimality in all columns at the end."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse
from helpers import CASES, certified, conic_optimum
from own_penalties import Ball
from partitioned import PartitionedEngine

import sorel
from sorel import ESRM, CVaR, ElasticNet, Mean, Problem, Simplex
from sorel.losses import parse_loss
from sorel.models import working_sets as module
from sorel.models.working_sets import WorkingSets, chooses_columns
from sorel.solvers import newton


@pytest.fixture
def small_sets(monkeypatch):
    """Working sets for problems of any size, which grow one column at a time."""
    monkeypatch.setattr(module, "_LEAST_SET", 1)
    monkeypatch.setattr(module, "_GROWTH", 2)
    monkeypatch.setattr(module, "WORTH_SELECTING", 1.0)


solved = partial(certified, solver="auto", tol=1e-8)


def wide_data(n, d, loss="squared", seed=0):
    """Five columns of d count, and heavy tails."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X[:, :5] @ np.array([2.0, -1.5, 1.0, 1.0, -1.0])
    if loss == "squared":
        return X, z + 0.5 * rng.standard_t(4, n)
    if loss == "multinomial":
        return X, np.argmax(np.c_[z, -z, X[:, 5]] + rng.gumbel(size=(n, 3)), axis=1)
    return X, np.where(z + rng.logistic(size=n) > 0, 1, -1)


LOSSES = ("squared", "logistic", "multinomial")
SPARSE = [case for case in CASES if case.penalty != "l2" and case.loss in LOSSES]


@pytest.mark.parametrize("case", SPARSE[::4], ids=str)
def test_against_a_conic_solver(case, small_sets):
    result = solved(case.problem(), solver="newton")
    assert result.objective == pytest.approx(conic_optimum(case).value, rel=1e-6)


@pytest.mark.parametrize("risk", [Mean(), CVaR(0.2), ESRM(2.0)], ids=repr)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_conditions_of_optimality_hold_in_all_columns(loss, risk):
    X, y = wide_data(150, 400, loss)
    weight = np.random.default_rng(1).integers(1, 4, 150).astype(float)
    # With more, noisy labels make the constant model the best one for the tail.
    l1, l2 = {"squared": 0.1, "logistic": 0.06}[loss], 1e-2
    options = {"risk": risk, "loss": loss, "sample_weight": weight, "fit_intercept": True}
    problem = Problem(X, y, penalty=ElasticNet(l2, l1), **options)
    result = solved(problem, tol=1e-11)
    coef = result.w[:-1]
    slopes = parse_loss(loss).derivative(y.astype(float), X @ coef + result.w[-1])
    pull = X.T @ (result.weights * slopes) + l2 * coef
    used = coef != 0.0
    assert 5 <= used.sum() < 300
    np.testing.assert_allclose(pull[used], -l1 * np.sign(coef[used]), atol=1e-5)
    assert np.all(np.abs(pull[~used]) <= l1 + 1e-5)
    assert abs(result.weights @ slopes) <= 1e-6


@pytest.mark.parametrize("free", [5, 100])
@pytest.mark.parametrize("penalty", [ElasticNet(0.1, 0.3), Simplex(0.1)], ids=repr)
def test_free_columns_and_those_that_are_pulled_most(penalty, free):
    """Twice as many as are free, but 64 in all at least, and 128 more at most on a simplex."""
    rng, d = np.random.default_rng(0), 4000
    problem = Problem(rng.standard_normal((3, d)), np.ones(3), penalty=penalty)
    w, gradient, used = np.zeros(d), -rng.uniform(1.0, 2.0, d), rng.permutation(d)[:free]
    w[used], gradient[used] = 1.0 / free, -0.5
    rows = WorkingSets(problem.engine, problem.penalty).choose(w, gradient).rows
    more = 64 - free if free == 5 else 200 if isinstance(penalty, ElasticNet) else 128
    w[used], others = 0.0, np.setdiff1d(np.arange(d), used)
    pulled = others[np.argsort(gradient[others])[:more]]
    np.testing.assert_array_equal(rows, np.sort(np.r_[used, pulled]))


def test_classes_have_one_working_set():
    X, y = wide_data(120, 150, "multinomial")
    more = {"penalty": ElasticNet(1e-2, 3e-2), "fit_intercept": True}
    problem = Problem(X, y, risk=CVaR(0.5), loss="multinomial", **more)
    result = solved(problem, tol=1e-7)
    assert 0 < np.count_nonzero(result.w[:-1].any(axis=1)) < 75


@pytest.mark.parametrize("solver", ["newton", "auto"])
def test_more_columns_than_a_matrix_has_room_for(solver):
    rng = np.random.default_rng(0)
    n, d = 300, 20_000
    X = scipy.sparse.random(n, d, 0.01, format="csr", random_state=0)
    y = X[:, :500] @ rng.standard_normal(500) + 0.1 * rng.standard_normal(n)
    penalty = ElasticNet(1e-3, 0.3 * np.abs(X.T @ y).max() / n)
    result = solved(Problem(X, y, risk=CVaR(0.5), penalty=penalty), tol=1e-6, solver=solver)
    assert "newton" in result.status
    assert 0 < np.count_nonzero(result.w) < 1000


@pytest.mark.parametrize("solver", ["newton", "auto"])
@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["linear", "squared"])
def test_weight_on_few_of_more_columns_than_a_matrix_has_room_for(solver, l2, loss):
    rng = np.random.default_rng(0)
    n, d = 40, 6000
    X = rng.standard_normal((n, d))
    # Targets out of reach: no l2 has to choose among models that fit them.
    y = np.zeros(n) if loss == "linear" else 5.0 * X[:, :5].sum(axis=1)
    problem = Problem(X, y, risk=CVaR(0.3), loss=loss, penalty=Simplex(l2))
    result = solved(problem, tol=1e-7 if loss == "squared" else 1e-6, solver=solver)
    assert "newton" in result.status
    held = np.flatnonzero(result.w)
    assert 1 < len(held) < 1000
    assert result.w.min() >= 0.0
    assert result.w.sum() == pytest.approx(1.0, abs=1e-12)
    # The columns that it holds, alone, do no better.
    alone = solved(Problem(X[:, held], y, risk=CVaR(0.3), loss=loss, penalty=Simplex(l2)), tol=1e-7)
    assert alone.objective == pytest.approx(result.objective, rel=2e-6)


def test_a_dense_solution_is_left_to_others(monkeypatch):
    monkeypatch.setattr(module, "LARGEST_HESSIAN", 50)
    monkeypatch.setattr(newton, "MAX_SIZE", 50)
    monkeypatch.setattr(module, "_LEAST_SET", 16)
    monkeypatch.setattr("sorel.solvers.auto._FEW_COLUMNS", 50)
    X, y = wide_data(400, 60)
    problem = Problem(X, y, penalty=ElasticNet(0.1, 1e-6))
    with pytest.warns(sorel.ConvergenceWarning, match=r"coefficients move.*'auto'"):
        result = sorel.solve(problem, solver="newton")
    assert result.objective < problem.objective(np.zeros(60))
    assert "then" in solved(problem, tol=1e-4).status


def test_refused_where_coefficients_do_not_rest_or_columns_cannot_be_had():
    X, y = wide_data(20, 30)
    engine = Problem(X, y).engine
    assert chooses_columns(engine, ElasticNet(0.1, 0.1))
    for penalty in (sorel.L2(0.1), Ball()):
        assert not chooses_columns(engine, penalty)
    elsewhere = Problem(X, y, penalty=ElasticNet(0.1, 0.1), engine=PartitionedEngine)
    assert not chooses_columns(elsewhere.engine, elsewhere.penalty)
    solved(elsewhere, solver="newton")


def test_what_is_free_and_what_is_pulled_most(small_sets):
    X, y = wide_data(20, 6)
    penalty = ElasticNet(0.5, 1.0)
    sets = WorkingSets(Problem(X, y, penalty=penalty, fit_intercept=True).engine, penalty)
    w = np.array([0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 7.0])
    gradient = np.array([0.9, -2.5, 1.5, -4.0, 1.0, -0.2, 0.0])
    # Twice as many as are free: coefficient 1, though its slope is 0, and the one pulled most.
    part = sets.choose(w, gradient)
    np.testing.assert_array_equal(part.rows, [1, 3, 6])
    np.testing.assert_array_equal(part.take(gradient), [-2.5, -4.0, 0.0])
    moved = part.put(w, np.array([1.0, 2.0, 5.0]))
    np.testing.assert_array_equal(moved, [0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 5.0])
    # What has been chosen serves again while it holds all that is needed.
    gradient[[2, 3]] = 0.0
    w[3] = -1.0
    assert sets.choose(w, gradient) is part
    gradient[0] = 2.0
    np.testing.assert_array_equal(sets.choose(w, gradient).rows, [0, 1, 3, 6])


def test_weight_on_a_simplex_moves_to_lower_slopes(small_sets):
    X, y = wide_data(20, 5)
    penalty = Simplex(1.0)
    sets = WorkingSets(Problem(X, y, penalty=penalty).engine, penalty)
    # Slopes with the ridge: 1.4 where there is weight.
    w = np.array([0.4, 0.6, 0.0, 0.0, 0.0])
    part = sets.choose(w, np.array([1.0, 0.8, 1.5, 1.3, 1.4]))
    np.testing.assert_array_equal(part.rows, [0, 1, 3])
