"""The pages under docs/extending: their code runs, and what it defines is right."""

import numpy as np
import pytest
from helpers import PAGES, run_page
from scipy.integrate import quad
from sklearn.base import clone

import sorel
from sorel.solvers import UnsupportedProblemError


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.md")))
def test_pages_run(page):
    run_page(page)


def test_the_loss_of_the_page_is_differentiable_and_reaches_the_conic_optimum():
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    loss = run_page("loss")["Asymmetric"](2.5)
    y, z, h = np.zeros(50), np.linspace(-2, 2, 50), 1e-6
    slope = (loss.value(y, z + h) - loss.value(y, z - h)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(y, z), slope, atol=1e-8)
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    problem = sorel.Problem(X, y, risk="cvar:0.25", loss=loss, penalty=sorel.L2(0.1))
    w = cp.Variable(3)
    r = X @ w - y
    losses = 0.5 * cp.square(cp.pos(-r)) + 1.25 * cp.square(cp.pos(r))
    objective = cp.sum_largest(losses, 10) / 10 + 0.05 * cp.sum_squares(w)
    value = cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL)
    assert sorel.solve(problem, tol=1e-8).objective == pytest.approx(value, rel=1e-6)


def test_the_risk_of_the_page_is_wang_s():
    risk = run_page("risk")["ProportionalHazard"](2.0)
    assert clone(sorel.SpectralRiskRegressor(risk=risk)).risk == risk
    assert hash(risk) == hash(type(risk)(2.0))
    # The integral of the square root of the survival function of a uniform loss.
    losses = (np.arange(100_000) + 0.5) / 100_000
    expected = quad(lambda t: (1 - t) ** 0.5, 0, 1)[0]
    assert risk(losses) == pytest.approx(expected, rel=1e-4)
    u = np.linspace(0, 1, 11)
    np.testing.assert_allclose(risk.cumulative(u) + risk.tail(1 - u), 1.0, atol=1e-15)
    with pytest.raises(ValueError, match="at least 1"):
        type(risk)(0.5)
    assert "r" in risk.get_params()


def test_the_solver_of_the_page_finds_the_optimum_and_refuses_by_name():
    page = run_page("solver")
    problem, solver = page["problem"], page["GradientSteps"]()
    optimum = sorel.solve(problem, tol=1e-10).objective
    assert page["result"].objective == pytest.approx(optimum, rel=1e-4)
    other = problem.with_penalty(sorel.ElasticNet(0.1, 0.1))
    with pytest.raises(UnsupportedProblemError, match="'gradient_steps' needs the penalty L2"):
        sorel.solve(other, solver)
