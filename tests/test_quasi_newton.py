"""L-BFGS around a matrix or a diagonal: the recursion, and answers against Newton's."""

import math

import numpy as np
import pytest

import sorel
from sorel import ESRM, L2, CVaR, Extremile, Problem
from sorel.solvers import Run
from sorel.solvers.quasi_newton import Pairs, QuasiNewton
from sorel.solvers.state import CostlyError


def make_problem(risk, loss="squared", n=3000, d=20, condition=1.0, **options):
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
    scale = np.geomspace(1.0, condition**-0.5, d)
    X = rng.standard_normal((n, d)) @ (rotation * scale) @ rotation.T
    y = X @ rng.standard_normal(d) + rng.standard_t(4, size=n)
    if loss == "logistic":
        y = np.where(y > 0.0, 1.0, -1.0)
    elif loss == "multinomial":
        y = np.digitize(y, [-1.0, 1.0])
    elif loss == "poisson":
        y = rng.poisson(np.exp(0.1 * y.clip(-9.0, 9.0)))
    options = {"penalty": L2(1e-3), "fit_intercept": loss != "linear", **options}
    return Problem(X, y, risk=risk, loss=loss, **options)


UNEVEN = np.linspace(0.5, 2.0, 3000)


def updated(inverse, step, change):
    """The BFGS update of an inverse Hessian, as the textbook has it."""
    bend = step @ change
    left = np.eye(len(step)) - np.outer(step, change) / bend
    return left @ inverse @ left.T + np.outer(step, step) / bend


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("count", [0, 1, 4, 25])
def test_the_recursion_is_that_of_bfgs(count, rough):
    rng, size = np.random.default_rng(count), 6
    A = rng.standard_normal((size, size))
    hessian, inverse = A @ A.T + np.eye(size), np.diag(rng.uniform(0.5, 1.0, size))
    pairs = Pairs(inverse.__matmul__, rough=rough)
    steps = rng.standard_normal((count, size))
    for step in steps:
        pairs.add(step, hessian @ step)
    last = steps[-20:] @ hessian
    if rough and count:
        inverse *= steps[-1] @ last[-1] / (last[-1] @ inverse @ last[-1])
    for step, change in zip(steps[-20:], last, strict=True):
        inverse = updated(inverse, step, change)
    v = rng.standard_normal(size)
    np.testing.assert_allclose(pairs.solve(v), inverse @ v, rtol=1e-9)
    found = pairs.direction(v)
    assert found.descent == pytest.approx(v @ inverse @ v) == pytest.approx(2.0 * found.decrease)


def test_pairs_without_curvature_are_left_out():
    pairs, step, v = Pairs(np.copy), np.array([1.0, 0.0]), np.array([4.0, 3.0])
    for change in ([0.0, 1.0], [-1.0, 0.0], [0.9e-16, 1.0]):
        pairs.add(step, np.array(change))
        np.testing.assert_array_equal(pairs.solve(v), v)


@pytest.mark.parametrize("steps", [0.0, math.inf])
@pytest.mark.parametrize("weight", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("risk", ["mean", ESRM(0.5), ESRM(3.0), Extremile(2.5)], ids=str)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "poisson", "multinomial"])
def test_it_leads_to_the_optimum(loss, risk, weight, steps):
    classes = loss == "multinomial"
    problem = make_problem(risk, loss, d=5 if classes else 20, sample_weight=weight)
    # A matrix is for one output.
    found = sorel.solve(problem, QuasiNewton(math.inf if classes else steps), tol=1e-8)
    assert found.converged, found.status
    assert problem.certificate(found.w, found.weights).relative_gap <= 1e-8
    other = sorel.solve(problem, "newton", tol=1e-9)
    assert other.dual <= found.objective <= other.objective * (1.0 + 1.1e-8)


def test_a_matrix_follows_where_gradients_lead_nowhere():
    """Columns of the same size and a condition of 1e6: a diagonal tells little."""
    problem = make_problem("esrm:2", d=60, condition=1e6).for_run()
    assert sorel.solve(problem, QuasiNewton(30.0, matrix=True)).converged
    run = Run(problem.start(), None, 1e-9, 1000, math.inf, 0)
    with pytest.raises(CostlyError):
        list(QuasiNewton(30.0, matrix=False).iterates(problem, run))
    assert run.passes <= 30.0 + 3


@pytest.mark.parametrize("loss", ["huber", "logistic"])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_rows_start_from_a_sample(loss, weighted):
    def problem(n):
        weight = np.linspace(0.5, 2.0, n) if weighted else None
        return make_problem("esrm:2", loss, n=n, d=3, sample_weight=weight)

    few, many = problem(38_000), problem(110_000)
    few, result, again = (sorel.solve(each, tol=1e-8) for each in (few, many, many))
    assert "auto (quasi_newton)" in result.status
    assert result.passes < few.passes
    np.testing.assert_array_equal(result.w, again.w)
    plain = sorel.solve(many, "newton", tol=1e-8)
    # The certificate is one of all rows.
    assert result.dual <= plain.objective * (1.0 + 1e-12)
    assert plain.dual <= result.objective * (1.0 + 1e-12)


def test_a_sample_does_not_move_a_start_that_is_the_solution():
    """Labels that no column explains: what is best for some of the rows is chance."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((110_000, 2)), rng.integers(0, 2, 110_000)
    result = sorel.solve(Problem(X, y, risk="esrm:2", loss="logistic"))
    assert result.converged
    assert not np.any(result.w)


@pytest.mark.parametrize(("risk", "loss", "d", "expected"), [
    ("mean", "logistic", 100, "auto (quasi_newton)"),
    ("extremile:2", "huber", 100, "auto (quasi_newton)"),
    (CVaR(0.5), "squared", 100, "auto (newton)"),
    ("esrm:2", "linear", 100, "auto ("),
    # Losses come to tie there, and no step by the ranks leads on.
    (ESRM(6.0), "logistic", 40, "quasi_newton then newton"),
])  # fmt: skip
def test_auto_begins_with_gradients_where_the_risk_is_smooth(risk, loss, d, expected):
    result = sorel.solve(make_problem(risk, loss, n=3000 if d == 40 else 900, d=d), tol=1e-8)
    assert result.converged
    assert expected in result.status
    assert ("quasi_newton" in result.status) is ("quasi_newton" in expected)


def test_other_penalties_are_refused_by_name():
    problem = Problem(np.eye(3), [1.0, 2.0, 3.0], penalty=sorel.NonNegative(0.1))
    with pytest.raises(sorel.solvers.UnsupportedProblemError, match="L2, got NonNegative"):
        sorel.solve(problem, QuasiNewton())
