"""Fits without an l2 penalty, by runs under a tiny one or a linear program; their certificate."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sorel
from sorel import ESRM, CVaR, Extremile, Mean, Mixture, deviations
from sorel.deviations import _Bounds, _Matrix, _Spectrum, minimize_deviation
from sorel.linear_programs import TailProgram

N, D = 40, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * np.array([1.0, 3.0, 0.2]) + 5.0
Y = X @ np.array([1.0, -0.5, 2.0]) + RNG.standard_t(3, size=N)


def make_bounds(l1=0.0, l2=0.0, matrix=X, y=Y, weight=None):
    problem = sorel.Problem(
        matrix, y, risk=sorel.Deviation(CVaR(0.5)), loss="linear", penalty=sorel.L2(1.0),
        sample_weight=weight,
    )  # fmt: skip
    return _Bounds(problem, l1, l2, None)


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


def test_the_gap_of_a_tighter_tolerance_is_no_larger():
    gaps = [minimize_deviation(X, Y, ESRM(3.0), tol=tol).relative_gap for tol in (1e-4, 1e-6, 1e-9)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] <= 1e-9


def test_a_program_that_cannot_be_solved_is_left_to_the_runs(monkeypatch):
    monkeypatch.setattr(TailProgram, "solve", lambda program, near=None: None)
    fit = minimize_deviation(X, Y, CVaR(0.3))
    assert fit.converged
    assert fit.result is not None


def test_the_first_l2_goes_by_the_sizes_of_columns_and_targets():
    weight = np.random.default_rng(1).uniform(0.5, 2.0, N)
    for omega in (None, weight):
        bounds = make_bounds(weight=omega)
        covariance = np.cov(X.T, aweights=omega, ddof=0)
        np.testing.assert_allclose(bounds._covariance().diagonal, np.diag(covariance), rtol=1e-9)
        expected = 0.1 * 1e-3 * np.mean(np.diag(covariance)) / bounds.spread
        assert bounds.first_l2(1e-3) == pytest.approx(expected, rel=1e-9)
    constant = make_bounds(matrix=np.column_stack([X[:, 0], np.ones(N)]))
    expected = 0.1 * 1e-3 * np.var(X[:, 0]) / constant.spread
    assert constant.first_l2(1e-3) == pytest.approx(expected, rel=1e-6)
    none = make_bounds(matrix=np.zeros((N, 2)))
    assert none.first_l2(1e-3) == pytest.approx(0.1 * 1e-3 / none.spread)


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e5])
@pytest.mark.parametrize("rank", [3, 5])
def test_covariances_of_few_columns_and_of_many(rank, size):
    """Both solve for slopes in their range, whatever the sizes of the columns."""
    rng = np.random.default_rng(2)
    factor = size * rng.normal(size=(5, rank)) @ rng.normal(size=(rank, 9))
    factor *= np.geomspace(1e-6, 1e6, 9)
    factor[:, 4] = 0.0
    matrix = factor.T @ factor
    slope = matrix @ (rng.normal(size=9) / np.geomspace(1e-6, 1e6, 9))
    for held in (_Matrix(matrix), _Spectrum(factor.copy())):
        np.testing.assert_allclose(held.diagonal, np.diag(matrix), rtol=1e-9)
        np.testing.assert_allclose(matrix @ held.solve(slope), slope, rtol=1e-7)


@pytest.mark.parametrize(("rows", "few", "spectrum"), [(5, 8, True), (5, 9, False), (9, 3, False)])
def test_many_columns_have_a_spectrum(monkeypatch, rows, few, spectrum):
    """Where they are more than a few, and more than the rows."""
    monkeypatch.setattr(deviations, "_FEW_COLUMNS", few)
    matrix = np.random.default_rng(3).normal(size=(rows, 9))
    held = make_bounds(matrix=matrix, y=np.arange(float(rows)))._covariance()
    assert isinstance(held, _Spectrum) is spectrum
    np.testing.assert_allclose(held.diagonal, matrix.var(axis=0), rtol=1e-8)


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_covariances_do_not_depend_on_the_units_of_the_targets(size):
    held = make_bounds(y=size * Y)._covariance()
    np.testing.assert_allclose(held.diagonal, X.var(axis=0), rtol=1e-8)


def deviation(w):
    losses = np.sort(Y - X @ w)
    return losses[N // 2 :].mean() - losses.mean()


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_the_certificate_of_any_coefficients(l1, l2):
    """F and a gap that the weighting proves, for the best coefficients and for others."""
    best = minimize_deviation(X, Y, CVaR(0.5), l1=l1, l2=l2, tol=1e-8)
    assert best.converged
    rng = np.random.default_rng(4)
    for size in (0.0, 1e-3, 0.3):
        w = best.w + size * rng.normal(size=D)
        value = deviation(w) + l1 * np.abs(w).sum() + 0.5 * l2 * w @ w
        bounds = make_bounds(l1, l2)
        objective, gap, relative, _, lam = bounds.certify(w, best.weights)
        dual = objective - gap
        assert objective == pytest.approx(value)
        assert relative == pytest.approx(gap / value)
        assert dual <= best.objective * (1.0 + 1e-9)
        # Weights of the risk, no more than omega / alpha, less those of the mean.
        change = lam - 1.0 / N
        assert change.sum() == pytest.approx(0.0, abs=1e-9)
        assert np.all((change >= -1.0 / N - 1e-9) & (change <= 1.0 / N + 1e-9))
        # change.y less what the penalty's conjugate says of X^T change bounds F from below.
        slope = X.T @ change
        if l2 > 0.0:
            excess = np.maximum(np.abs(slope) - l1, 0.0)
            bound = change @ Y - excess @ excess / (2.0 * l2)
            assert dual == pytest.approx(bound, rel=1e-6)
        elif l1 > 0.0:
            assert np.abs(slope).max() <= l1 * (1.0 + 1e-9)
            assert dual <= change @ Y + 1e-9
            assert dual == pytest.approx(change @ Y, rel=1e-6)
        else:
            # Nothing but rounding is left of it, and charged for ten times the way to w.
            assert np.abs(slope).max() <= 1e-9
            assert dual <= change @ Y + 1e-9
            assert dual >= change @ Y - 1e-6
    assert 0.0 <= best.gap <= 1e-8 * best.objective


def test_a_deviation_is_never_negative():
    """Weights that prove nothing are replaced by those that prove as much."""
    bounds = make_bounds(l2=1e-9)
    lam = np.where(np.arange(N) < N // 2, 1.0, -1.0) / N
    objective, gap, _, _, weights = bounds.certify(np.full(D, 50.0), lam)
    assert gap == objective
    np.testing.assert_allclose(weights, np.full(N, 1.0 / N))


def test_weights_are_blended_until_their_slopes_are_allowed():
    """With those of the mean, whose slopes are 0, so far that the largest is l1."""
    l1, w = 0.05, np.array([0.5, 0.2, -0.1])
    bounds = make_bounds(l1)
    engine = bounds.problem.engine
    worst = engine.weights(engine.worst_case(engine.point(w)))
    top = np.abs(X.T @ (worst - 1.0 / N)).max()
    assert top > 2.0 * l1
    *_, lam = bounds.certify(w, worst)
    np.testing.assert_allclose(lam - 1.0 / N, l1 / top * (worst - 1.0 / N), atol=1e-12)


def test_slopes_that_are_left_are_charged_for_a_longer_solution(monkeypatch):
    """By ten times what a column tells in the one found, where no correction is to be had."""
    best = minimize_deviation(X, Y, CVaR(0.5))
    bounds = make_bounds()
    engine = bounds.problem.engine
    still = SimpleNamespace(solve=lambda slope: 0.0 * slope)
    monkeypatch.setattr(bounds, "_covariance", lambda: still)
    worst = engine.weights(engine.worst_case(engine.point(np.zeros(D))))
    given = 0.999 * best.weights + 0.001 * worst
    _, gap, _, w, lam = bounds.certify(best.w, given)
    change = lam - 1.0 / N
    shortfall = deviation(w) - change @ (Y - X @ w)
    scale = np.abs(X).max(axis=0)
    left = (np.abs(X.T @ change) / scale).sum()
    assert left > 1e-5
    assert gap == pytest.approx(shortfall + 10.0 * left * (scale * np.abs(w)).max())
