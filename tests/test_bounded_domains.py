"""Bounded domains without curvature: l2 = 0 on the simplex and in finite boxes."""

import numpy as np
import pytest
from helpers import certified, conic_reference, make_data, make_loss, quietly

import sorel
from sorel import ESRM, Box, CVaR, Max, Problem, Simplex
from sorel.models.quadratic import minimize_quadratic
from sorel.solvers import SOLVERS, UnsupportedProblemError

PENALTIES = {"simplex": Simplex(0.0), "box": Box(0.0, -0.2, 0.3), "positive": Box(0.0, 0.0, 1.0)}
SHAPES = {"wide": (10, 16), "tall": (40, 6), "twins": (24, 12)}


def data(loss, shape, seed):
    n, d = SHAPES[shape]
    X, y = make_data(loss, n, d, seed)
    if shape == "twins":
        X[:, d // 2 :] = X[:, : d // 2]
    return X, 3.0 * y if loss in ("squared", "huber") else y


def penalize(penalty):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")

    def terms(coef):
        if isinstance(penalty, Simplex):
            return 0.0, [coef >= 0, cp.sum(coef, axis=0) == 1]
        return 0.0, [coef >= penalty.lower, coef <= penalty.upper]

    return terms


@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(2.0), Max()], ids=repr)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PENALTIES)
def test_optimum_agrees_with_a_conic_solver(name, shape, loss, risk):
    penalty, seed = PENALTIES[name], len(name + shape + loss)
    X, y = data(loss, shape, seed)
    intercept = seed % 2 == 0
    expected = conic_reference(X, y, risk, loss, intercept, penalize(penalty)).value
    options = {"risk": risk, "loss": make_loss(loss), "fit_intercept": intercept}
    result = certified(Problem(X, y, penalty=penalty, **options), tol=1e-6)
    exact = certified(Problem(X, y, penalty=penalty, **options), tol=1e-9)
    # The certificate holds to 1e-9; the conic solver now and then has fewer digits, and too much.
    assert expected * (1 - 1e-6) - 1e-9 <= exact.objective <= expected * (1 + 1e-7) + 1e-9
    assert result.dual * (1 - 1e-12) <= exact.objective <= result.objective * (1 + 1e-9)
    assert penalty.value(result.w[: X.shape[1]]) == 0.0


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("loss", ["linear", "squared"])
def test_losses_without_curvature(solver, loss):
    """Affine losses, or an X of zeros: a method that needs a curvature for its steps says so."""
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
    if loss == "squared":
        X = np.zeros_like(X)
    problem = Problem(X, y, risk=CVaR(0.5), loss=loss, penalty=Simplex(0.0))
    optimum = certified(problem, tol=1e-6).objective
    if solver not in ("auto", "newton", "continuation", "subgradient", "apd", "pdhg", "admm"):
        with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*use .*'newton'"):
            sorel.solve(problem, solver)
        if solver not in ("lsvrg", "prospect", "sgd", "saddle_saga"):
            return
        solver = SOLVERS[solver](step_size=0.1)
    result = quietly(problem, solver, tol=1e-6, max_passes=100)
    assert result.dual - 1e-9 <= optimum <= result.objective + 1e-6


@pytest.mark.parametrize(("loss", "sign"), [("poisson", 1.0), ("gamma", -1.0)])
@pytest.mark.parametrize("solver", ["auto", "newton"])
def test_a_start_where_exponentials_overflow_is_left(loss, sign, solver):
    rng = np.random.default_rng(0)
    X = sign * np.column_stack([2000.0 + rng.random(40), rng.standard_normal(40)])
    problem = Problem(X, rng.uniform(1.0, 2.0, 40), loss=loss, penalty=Simplex(1e-3))
    result = sorel.solve(problem, solver)
    assert result.converged
    assert result.objective <= problem.objective([0.0, 1.0])


def test_curvature_that_is_nothing_but_rounding():
    """Equal samples that tie curve nothing, and what their differences leave may be negative."""
    rng = np.random.default_rng(8)
    for scale in (1e-12, 1.0, 1e9):
        H = scale * 1e-12 * rng.standard_normal((4, 4))
        H[0, 0] = 0.0
        gradient = scale * np.array([-2.0, 1.0, -1.0, 3.0])
        u, _ = minimize_quadratic(H, gradient, np.zeros(4), Box(0.0, -0.2, 0.3), 4)
        np.testing.assert_array_equal(u, [0.3, -0.2, 0.3, -0.2])
