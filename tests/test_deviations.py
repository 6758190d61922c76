"""Fits without an l2 penalty, by runs under a tiny one or a linear program; their certificate."""

from __future__ import annotations

import numpy as np
import pytest

import sorel
from sorel import ESRM, CVaR, Extremile, Mean, Mixture
from sorel.solvers.deviations import minimize_deviation
from sorel.solvers.linear_programs import TailProgram

N, D = 40, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * np.array([1.0, 3.0, 0.2]) + 5.0
Y = X @ np.array([1.0, -0.5, 2.0]) + RNG.standard_t(3, size=N)


@pytest.mark.parametrize("l1", [0.0, 0.1])
@pytest.mark.parametrize("risk", [CVaR(0.3), Mixture([Mean(), CVaR(0.2)], [0.4, 0.6])], ids=repr)
def test_runs_under_a_tiny_l2_find_what_the_linear_program_finds(risk, l1):
    """A named solver makes the runs; "auto" leaves a risk of two levels to the program."""
    exact = minimize_deviation(X, Y, risk, l1=l1)
    runs = minimize_deviation(X, Y, risk, l1=l1, solver="newton", tol=1e-8)
    assert exact.converged
    assert runs.converged
    assert exact.relative_gap <= 1e-12
    assert runs.objective == pytest.approx(exact.objective, rel=1e-8)
    assert exact.result is None
    again = minimize_deviation(X, Y, risk, l1=l1, solver="newton", warm_start=runs.result)
    assert again.passes < runs.passes


@pytest.mark.parametrize("solver", ["auto", "newton"])
def test_a_missed_tolerance_is_told_in_one_gap_and_the_tolerance_that_was_set(solver):
    fit = minimize_deviation(X, Y, Extremile(2.0), tol=1e-7, max_passes=3, solver=solver)
    assert not fit.converged
    assert fit.relative_gap > 1e-7
    gap, passes = f"{fit.relative_gap:.2g}", f"{fit.passes:.4g}"
    expected = f"certified relative gap {gap}, above tol=1e-07, after {passes} passes"
    assert fit.status == f"not converged: max_passes=3 reached; {expected}"


def test_a_program_that_cannot_be_solved_is_left_to_the_runs(monkeypatch):
    monkeypatch.setattr(TailProgram, "solve", lambda program, start=None: None)
    fit = minimize_deviation(X, Y, CVaR(0.3))
    assert fit.converged
    assert fit.result is not None


def test_more_columns_than_rows_are_fitted_perfectly():
    rng = np.random.default_rng(3)
    matrix, y = rng.normal(size=(8, 20)), rng.normal(size=8)
    for risk in (CVaR(0.3), ESRM(2.0)):
        fit = minimize_deviation(matrix, y, risk)
        assert fit.converged
        assert fit.objective <= 1e-6 * np.abs(y).mean()


@pytest.mark.parametrize("risk", [CVaR(0.5), ESRM(2.0)], ids=repr)
@pytest.mark.parametrize("scales", [[1e-3, 1.0, 1e3], [1e3, 0.0, 1e-3]])
def test_columns_of_unequal_size(risk, scales):
    fit = minimize_deviation(X * scales, Y, risk)
    assert fit.converged
    used = np.array(scales) > 0.0
    alone = minimize_deviation(X[:, used], Y, risk, tol=1e-8)
    assert fit.objective == pytest.approx(alone.objective, rel=2e-6)


@pytest.mark.parametrize("risk", [CVaR(0.5), ESRM(2.0)], ids=repr)
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
@pytest.mark.parametrize("max_passes", [2, 1000])
def test_the_weighting_proves_the_gap(risk, l1, l2, max_passes):
    """s.y, less what the penalty's conjugate says of X^T s, bounds F from below."""
    fit = minimize_deviation(X, Y, risk, l1=l1, l2=l2, tol=1e-8, max_passes=max_passes)
    value = sorel.Deviation(risk)(Y - X @ fit.w)
    value += l1 * np.abs(fit.w).sum() + 0.5 * l2 * fit.w @ fit.w
    assert fit.objective == pytest.approx(value)
    assert fit.relative_gap == pytest.approx(fit.gap / value)
    lam, signed = fit.weights, fit.weights - 1.0 / N
    np.testing.assert_allclose(sorel.project_permutahedron(lam, risk), lam, atol=1e-9)
    slope = X.T @ signed
    excess = np.maximum(np.abs(slope) - l1, 0.0)
    if l2 == 0.0:
        assert excess.max() <= 1e-9
    bound = signed @ Y - (excess @ excess / (2.0 * l2) if l2 > 0.0 else 0.0)
    assert fit.dual <= bound + 1e-9
    assert fit.dual >= min(bound, 0.0) - 1e-6
    best = minimize_deviation(X, Y, risk, l1=l1, l2=l2, tol=1e-8)
    assert best.converged
    assert fit.dual <= best.objective * (1.0 + 1e-9)


def test_a_deviation_is_never_negative():
    """Where weights prove nothing, those of the mean prove as much as is known for free."""
    fit = minimize_deviation(1e3 * X, Y, ESRM(50.0), max_passes=0)
    assert fit.dual >= 0.0
    assert fit.gap <= fit.objective
