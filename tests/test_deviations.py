"""Stages of a fit without an l2 penalty, and the certificate of what they stand in for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import sorel
from sorel import CVaR, deviations
from sorel.deviations import _Bounds, _Matrix, _Spectrum, minimize_deviation

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


class Stages:
    """Runs and certificates that are known beforehand, and what is asked of each stage."""

    def __init__(self, monkeypatch, outcomes):
        self.outcomes, self.asked = list(outcomes), []
        monkeypatch.setattr(deviations, "solve", self.solve)
        monkeypatch.setattr(_Bounds, "certify", lambda bounds, result, tol: result.fit)

    def solve(self, problem, solver, tol, max_passes, warm_start):
        self.asked.append((problem.penalty, tol, max_passes, warm_start))
        gap, options = self.outcomes.pop(0)
        objective = options.pop("objective", 2.0)
        w = np.full(D, float(len(self.asked)))
        fit = (objective, objective - gap, gap, gap / objective, w, np.zeros(N))
        return SimpleNamespace(
            **{"passes": 10.0, "n_iter": 4, "converged": True, "status": "done", "fit": fit,
               "w": w, **options}
        )  # fmt: skip


def test_stages_until_the_gap_is_closed(monkeypatch):
    tol = 1e-4
    stages = Stages(monkeypatch, [(1.0, {}), (0.1, {}), (1e-6, {})])
    fit = minimize_deviation(X, Y, CVaR(0.5), tol=tol, max_passes=100.0)
    penalties, tols, budgets, starts = zip(*stages.asked, strict=True)
    assert tols == pytest.approx([0.3 * tol] * 3)
    assert budgets == pytest.approx((100.0, 90.0, 80.0))
    assert starts[0] is None
    assert starts[1].w[0] == 1.0
    assert (fit.passes, fit.n_iter, fit.converged) == (30.0, 12, True)
    assert fit.relative_gap == pytest.approx(0.5e-6)
    assert fit.status == "converged: certified relative gap 5e-07 in 30 passes"
    # A hundredth of the one before, or what may cost a tenth of the tolerance by the size of w.
    moduli = [penalty.l2 for penalty in penalties]
    for k in (1, 2):
        allowed = 0.1 * tol * 2.0 / (D * float(k) ** 2)
        assert moduli[k] == pytest.approx(min(0.01 * moduli[k - 1], allowed))


def test_a_small_solution_allows_no_more_than_a_hundredth(monkeypatch):
    for size, exact in ((1e-9, True), (1e3, False)):
        stages = Stages(monkeypatch, [(1.0, {"w": np.full(D, size)}), (1e-9, {})])
        minimize_deviation(X, Y, CVaR(0.5), tol=1e-4)
        first, second = (penalty.l2 for penalty, *_ in stages.asked)
        assert (second == pytest.approx(0.01 * first)) is exact
        if not exact:
            assert second == pytest.approx(0.1 * 1e-4 * 2.0 / (D * size**2))


def test_a_stage_that_rounding_has_stopped_is_followed_by_a_stronger_one(monkeypatch):
    stages = Stages(monkeypatch, [(1.0, {"converged": False}), (1e-9, {})])
    minimize_deviation(X, Y, CVaR(0.5))
    first, second = (penalty.l2 for penalty, *_ in stages.asked)
    assert second == pytest.approx(30.0 * first)


@pytest.mark.parametrize(
    ("options", "outcome", "stages"),
    [
        ({"l2": 0.1}, {}, 1),
        ({"max_passes": 10.0}, {}, 1),
        ({"max_passes": 11.0}, {}, 2),
        ({}, {"status": "interrupted: x"}, 1),
        ({}, {}, 8),
    ],
)
def test_what_ends_the_stages(monkeypatch, options, outcome, stages):
    found = Stages(monkeypatch, [(1.0 / k, dict(outcome)) for k in range(1, 9)])
    fit = minimize_deviation(X, Y, CVaR(0.5), **options)
    assert len(found.asked) == stages
    assert not fit.converged
    assert fit.status.startswith("not converged: certified relative gap")
    assert fit.status.endswith(f"({outcome.get('status', 'done')})")
    if "l2" in options:
        assert found.asked[0][0].l2 == 0.1


def test_the_best_of_the_stages_is_the_answer(monkeypatch):
    Stages(monkeypatch, [(0.5, {}), (0.1, {}), (0.3, {}), *[(0.4, {})] * 5])
    fit = minimize_deviation(X, Y, CVaR(0.5))
    assert fit.gap == pytest.approx(0.1)
    assert fit.w[0] == 2.0


def test_the_first_l2_goes_by_the_sizes_of_columns_and_targets():
    weight = np.random.default_rng(1).uniform(0.5, 2.0, N)
    for omega in (None, weight):
        bounds = make_bounds(weight=omega)
        covariance = np.cov(X.T, aweights=omega, ddof=0)
        np.testing.assert_allclose(bounds._covariance().diagonal(), np.diag(covariance), rtol=1e-9)
        expected = 0.1 * 1e-3 * np.mean(np.diag(covariance)) / bounds.spread
        assert bounds.first_l2(1e-3) == pytest.approx(expected, rel=1e-9)
    constant = make_bounds(matrix=np.column_stack([X[:, 0], np.ones(N)]))
    expected = 0.1 * 1e-3 * np.var(X[:, 0]) / constant.spread
    assert constant.first_l2(1e-3) == pytest.approx(expected, rel=1e-6)
    none = make_bounds(matrix=np.zeros((N, 2)))
    assert none.first_l2(1e-3) == pytest.approx(0.1 * 1e-3 / none.spread)


def test_the_unit_has_a_floor():
    bounds = make_bounds()
    assert bounds.unit(-3.0) == 3.0
    assert bounds.unit(0.0) == pytest.approx(1e-6 * bounds.spread)


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e5])
@pytest.mark.parametrize("rank", [3, 5])
def test_covariances_of_few_columns_and_of_many(rank, size):
    """Both find the shortest of the nearest solutions, as a pseudoinverse does."""
    rng = np.random.default_rng(2)
    factor = size * rng.normal(size=(5, rank)) @ rng.normal(size=(rank, 9))
    matrix, slope = factor.T @ factor, rng.normal(size=9)
    expected = np.linalg.pinv(matrix, rcond=1e-10) @ slope
    for held in (_Matrix(matrix), _Spectrum(factor.copy())):
        np.testing.assert_allclose(held.diagonal(), np.diag(matrix), rtol=1e-9)
        np.testing.assert_allclose(held.solve(slope), expected, rtol=1e-6, atol=1e-9 / size**2)


@pytest.mark.parametrize(("rows", "few", "spectrum"), [(5, 8, True), (5, 9, False), (9, 3, False)])
def test_many_columns_have_a_spectrum(monkeypatch, rows, few, spectrum):
    """Where they are more than a few, and more than the rows."""
    monkeypatch.setattr(deviations, "_FEW_COLUMNS", few)
    matrix = np.random.default_rng(3).normal(size=(rows, 9))
    held = make_bounds(matrix=matrix, y=np.arange(float(rows)))._covariance()
    assert isinstance(held, _Spectrum) is spectrum
    np.testing.assert_allclose(held.diagonal(), matrix.var(axis=0), rtol=1e-8)


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_covariances_do_not_depend_on_the_units_of_the_targets(size):
    held = make_bounds(y=size * Y)._covariance()
    np.testing.assert_allclose(held.diagonal(), X.var(axis=0), rtol=1e-8)


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
        result = SimpleNamespace(w=w, weights=best.weights)
        objective, dual, gap, relative, _, lam = bounds.certify(result, 1e-6)
        assert objective == pytest.approx(value)
        assert dual == pytest.approx(value - gap)
        assert relative == pytest.approx(gap / max(value, 1e-6 * bounds.spread))
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
    result = SimpleNamespace(w=np.full(D, 50.0), weights=lam)
    objective, dual, gap, _, _, weights = bounds.certify(result, 1e-6)
    assert gap == objective
    assert dual == 0.0
    np.testing.assert_allclose(weights, np.full(N, 1.0 / N))


def test_weights_are_blended_until_their_slopes_are_allowed():
    """With those of the mean, whose slopes are 0, so far that the largest is l1."""
    l1, w = 0.05, np.array([0.5, 0.2, -0.1])
    bounds = make_bounds(l1)
    engine = bounds.problem.engine
    worst = engine.weights(engine.worst_case(engine.point(w)))
    top = np.abs(X.T @ (worst - 1.0 / N)).max()
    assert top > 2.0 * l1
    *_, lam = bounds.certify(SimpleNamespace(w=w, weights=worst), 1e-6)
    np.testing.assert_allclose(lam - 1.0 / N, l1 / top * (worst - 1.0 / N), atol=1e-12)


def test_slopes_that_are_left_are_charged_for_a_longer_solution(monkeypatch):
    """As if one were ten times as long as the one found, where no correction is to be had."""
    best = minimize_deviation(X, Y, CVaR(0.5), tol=1e-8)
    bounds = make_bounds()
    engine = bounds.problem.engine
    still = SimpleNamespace(solve=lambda slope: 0.0 * slope)
    monkeypatch.setattr(bounds, "_covariance", lambda: still)
    worst = engine.weights(engine.worst_case(engine.point(np.zeros(D))))
    given = 0.999 * best.weights + 0.001 * worst
    _, _, gap, _, w, lam = bounds.certify(SimpleNamespace(w=best.w, weights=given), 1e-6)
    change = lam - 1.0 / N
    shortfall = deviation(w) - change @ (Y - X @ w)
    left = np.abs(X.T @ change).sum()
    assert left > 1e-5
    assert gap == pytest.approx(shortfall + 10.0 * left * np.abs(w).max())
