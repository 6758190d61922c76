"""L-BFGS around a matrix or a diagonal: the recursion, and answers against Newton's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import sorel
from sorel import ESRM, L2, CVaR, Extremile, Problem
from sorel.solvers import Run
from sorel.solvers.quasi_newton import Pairs, QuasiNewton
from sorel.solvers.state import CostlyError


def make_problem(risk, loss="squared", n=3000, d=20, weighted=False, intercept=True, condition=1.0):
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
    scale = np.geomspace(1.0, condition**-0.5, d)
    X = rng.standard_normal((n, d)) @ (rotation * scale) @ rotation.T
    y = X @ rng.standard_normal(d) + rng.standard_t(4, size=n)
    if loss == "logistic":
        y = np.where(y > 0.0, 1.0, -1.0)
    elif loss == "poisson":
        y = rng.poisson(np.exp(0.1 * y.clip(-9.0, 9.0)))
    weight = rng.uniform(0.5, 2.0, size=n) if weighted else None
    return Problem(
        X, y, risk=risk, loss=loss, penalty=L2(1e-3), fit_intercept=intercept, sample_weight=weight
    )


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


@pytest.mark.parametrize(("rough", "count"), [(False, 1), (True, 8)])
def test_a_slow_pace_is_noticed(rough, count):
    """On a logarithmic scale, from what the last steps predicted and as many before them."""
    for factor, slow in ((0.5, False), (0.9, True), (1.0, True), (1.1, True)):
        pairs = Pairs(np.copy, 20.0 + count, rough=rough)
        for k in range(2 * count):
            assert not pairs.is_slow(1e-5)
            pairs.direction(np.array([factor ** (k / 2)]))
        assert pairs.is_slow(1e-5) is slow


@pytest.mark.parametrize("steps", [0.0, math.inf])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", ["mean", ESRM(0.5), ESRM(3.0), Extremile(2.5)], ids=str)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "poisson"])
def test_it_leads_to_the_optimum(loss, risk, weighted, steps):
    problem = make_problem(risk, loss, weighted=weighted)
    found = sorel.solve(problem, QuasiNewton(steps), tol=1e-8)
    assert found.converged, found.status
    assert problem.certificate(found.w, found.weights).relative_gap <= 1e-8
    other = sorel.solve(problem, "newton", tol=1e-9)
    assert other.dual <= found.objective <= other.objective * (1.0 + 1.1e-8)


def test_several_classes_have_gradients_too():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 5)), rng.integers(0, 3, 300)
    problem = Problem(X, y, risk="esrm:1", loss="multinomial", fit_intercept=True)
    assert sorel.solve(problem, QuasiNewton()).converged


@pytest.mark.parametrize(("steps", "matrix"), [(30.0, False), (30.0, True)])
def test_a_matrix_follows_where_gradients_lead_nowhere(steps, matrix):
    """Columns of the same size and a condition of 1e6: a diagonal tells little."""
    problem = make_problem("esrm:2", d=60, condition=1e6).for_run()
    if matrix:
        assert sorel.solve(problem, QuasiNewton(steps, matrix)).converged
        return
    run = Run(problem.start(), None, 1e-9, 1000, math.inf, 0)
    with pytest.raises(CostlyError):
        for _ in QuasiNewton(steps, matrix).iterates(problem, run):
            pass
    assert run.passes <= steps + 3


def test_labels_under_a_sharp_risk_are_left_to_others():
    """Losses come to tie there, and no step by the ranks leads on."""
    problem = make_problem(ESRM(6.0), "logistic", d=40)
    result = sorel.solve(problem, tol=1e-8)
    assert result.converged
    assert "quasi_newton then newton" in result.status


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_rows_start_from_a_sample(loss, weighted):
    problem = make_problem("esrm:2", loss, n=100_000, d=3, weighted=weighted)
    result, again = (sorel.solve(problem, tol=1e-8) for _ in range(2))
    assert "auto (quasi_newton)" in result.status
    np.testing.assert_array_equal(result.w, again.w)
    plain = sorel.solve(problem, "newton", tol=1e-8)
    # The certificate is one of all rows.
    assert result.dual <= plain.objective * (1.0 + 1e-12)
    assert plain.dual <= result.objective * (1.0 + 1e-12)
    assert result.passes < plain.passes


def test_a_sample_does_not_move_a_start_that_is_the_solution():
    """Labels that no column explains: what is best for some of the rows is chance."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((90_000, 2)), rng.integers(0, 2, 90_000)
    result = sorel.solve(Problem(X, y, risk="esrm:2", loss="logistic"))
    assert result.converged
    assert not np.any(result.w)


def test_certificates_use_the_pairs_and_leave_none_behind():
    problem = make_problem("esrm:2", n=900, d=200, condition=1e2).for_run()
    run = Run(problem.start(), None, 1e-6, 1000, math.inf, 0)
    iterates = QuasiNewton().iterates(problem, run)
    iterate = next(iterates)
    while not iterate.refine > 0.0:
        iterate = iterates.send(sorel.certificate.certify(problem, iterate.point, iterate.dual))
    inverse, vector = run.known.approximate_inverse, np.linspace(-1.0, 1.0, 201)
    assert vector @ inverse(vector) > 0.0
    iterates.close()
    assert run.known.approximate_inverse is None


@pytest.mark.parametrize(
    ("risk", "loss", "expected"),
    [
        ("mean", "logistic", True),
        ("extremile:2", "huber", True),
        (CVaR(0.5), "squared", False),
        ("esrm:2", "linear", False),
    ],
)
def test_auto_begins_with_gradients_where_the_risk_is_smooth(risk, loss, expected):
    problem = make_problem(risk, loss, n=900, d=100, intercept=loss != "linear")
    result = sorel.solve(problem)
    assert result.converged
    assert ("quasi_newton" in result.status) is expected


def test_other_penalties_are_refused_by_name():
    problem = Problem(np.eye(3), [1.0, 2.0, 3.0], penalty=sorel.NonNegative(0.1))
    with pytest.raises(sorel.solvers.UnsupportedProblemError, match="L2, got NonNegative"):
        sorel.solve(problem, QuasiNewton())
