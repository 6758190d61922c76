"""Fits without an l2 penalty, by linear programs or runs under a tiny one; their certificate.

Quantiles on designs with indicators, ties and rank loss are compared with the primal program.
"""

import warnings

import numpy as np
import pytest
import scipy.sparse
from helpers import pinball_optimum
from sklearn.metrics import mean_pinball_loss

import sorel
from sorel import ESRM, CVaR, Extremile, Mean, Mixture, QuantileRegressor, RankRegressor
from sorel.solvers.deviations import corrected, minimize_deviation
from sorel.solvers.linear_programs import TailProgram


def indicators(rng, n, levels):
    return np.eye(levels)[rng.choice(levels, size=n, p=rng.dirichlet(np.full(levels, 1.0)))]


def random_design(seed):
    """Factors coded in full or less one level, whole numbers, equal rows and columns."""
    rng = np.random.default_rng(1000 + seed)
    n = int(rng.integers(40, 600))
    columns = []
    for _ in range(int(rng.integers(1, 4))):
        coded = indicators(rng, n, int(rng.integers(2, 25)))
        columns.append(coded[:, int(rng.integers(2)) :])
    columns.append(np.round(3.0 * rng.normal(size=(n, int(rng.integers(0, 4))))))
    X = np.hstack(columns)
    if seed % 4 == 1:
        X = np.column_stack([X, X[:, 0], X[:, :2].sum(axis=1)])
    y = X @ rng.normal(size=X.shape[1]) + rng.standard_t(3, size=n)
    if seed % 3 == 0:
        y = np.round(2.0 * y)
    if seed % 5 == 2:
        rows = rng.integers(0, n, n)
        X, y = X[rows], y[rows]
    weight = rng.integers(1, 4, n).astype(float) if seed % 6 == 5 else None
    q = float(rng.choice([0.05, 0.25, 0.5, 0.8, 0.95]))
    return X, y, q, float(rng.choice([0.0, 0.0, 0.003, 0.05])), weight


def check(X, y, q=0.5, alpha=0.0, weight=None, intercept=True):
    model = QuantileRegressor(quantile=q, alpha=alpha, fit_intercept=intercept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y, sample_weight=weight)
    best = pinball_optimum(X, y, q, alpha, weight, intercept)
    loss = mean_pinball_loss(y, model.predict(X), alpha=q, sample_weight=weight)
    assert loss + alpha * np.abs(model.coef_).sum() == pytest.approx(best, rel=1e-7)
    assert model.objective_ == pytest.approx(best, rel=1e-7)
    assert model.converged_
    assert 0.0 <= model.gap_ <= 1e-6 * best
    assert model.objective_ - model.gap_ <= best * (1.0 + 1e-9)
    return model


@pytest.mark.parametrize("block", range(6))
def test_random_designs_with_indicators(block):
    for seed in range(10 * block, 10 * block + 10):
        X, y, q, alpha, weight = random_design(seed)
        check(X, y, q, alpha, weight, intercept=seed % 7 != 3)


@pytest.mark.parametrize("q", [0.5, 0.9])
@pytest.mark.parametrize("factors", [4, 26], ids=["at once", "after an approximation"])
def test_designs_of_more_samples_than_enter_the_program(factors, q):
    rng = np.random.default_rng(factors)
    X = np.hstack([indicators(rng, 4000, 7) for _ in range(factors)])
    y = np.round(X @ rng.normal(size=X.shape[1]) + rng.standard_t(3, size=4000), 1)
    check(scipy.sparse.csr_array(X), y, q)


def test_columns_of_unequal_size_and_with_an_offset():
    """What an indicator of size 1e-6 tells is not lost beside a year in millions."""
    rng = np.random.default_rng(5)
    groups, year = indicators(rng, 500, 12), rng.integers(1990, 2020, 500)
    y = groups @ rng.normal(size=12) + 0.2 * year + rng.standard_t(3, size=500)
    best = check(np.column_stack([groups, year - 2000.0]), y).objective_
    for columns in ([1e-6 * groups, 1e6 * year], [groups, 1e6 + year], [1e5 * groups, 1e-5 * year]):
        for form in (np.asarray, scipy.sparse.csr_array):
            model = QuantileRegressor(alpha=0.0).fit(form(np.column_stack(columns)), y)
            assert model.objective_ == pytest.approx(best, rel=1e-7)
            assert model.gap_ <= 1e-6 * best


@pytest.mark.parametrize("risk", [CVaR(0.3), Mixture([Mean(), CVaR(0.2)], [0.5, 0.5])], ids=repr)
def test_rank_regression_under_risks_of_two_levels(risk):
    rng = np.random.default_rng(8)
    X = indicators(rng, 800, 40)
    y = np.round(2.0 * rng.standard_t(3, size=800))
    model = RankRegressor(risk).fit(X, y)
    assert model.relative_gap_ <= 1e-9
    # The weighting proves it: within its bounds, without slopes, and with the same value.
    lam, omega = model.risk_weights_, 1.0 / 800
    low, high = risk.levels(800)
    assert np.all((lam >= low * omega - 1e-12) & (lam <= high * omega + 1e-12))
    np.testing.assert_allclose(X.T @ (lam - omega), 0.0, atol=1e-12)
    residual = y - X @ model.coef_
    assert sorel.Deviation(risk)(residual) == pytest.approx((lam - omega) @ y, rel=1e-9)


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


@pytest.mark.parametrize(("n", "d", "l1", "passes"), [
    (20_000, 2, 0.0, 4), (20_000, 2, 0.01, 4), (4_000, 30, 0.0, 14), (3_000, 60, 0.01, 16),
])  # fmt: skip
@pytest.mark.parametrize("storage", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("risk", [CVaR(0.1), Mixture([Mean(), CVaR(0.2)], [0.5, 0.5])], ids=repr)
def test_few_samples_enter_the_program_by_themselves(n, d, l1, passes, risk, storage):
    """It is exact, and takes few passes: those of least squares, and a round or two."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) + 5.0
    y = X @ np.arange(1.0, d + 1) + np.exp(X[:, 0] - 5.0) * rng.exponential(size=n)
    omega = (weight := rng.random(n)) / weight.sum()
    program = TailProgram(storage(X), y, omega, risk.levels(n, omega), 1.0, l1)
    assert program.first_entries == d * max(10_000 // d, 5 * (d + 1))
    assert program.is_small is (l1 == 0.0)
    found = program.solve()
    residual = y - X @ found.w
    order = np.argsort(residual)
    deviation = risk.increments(omega[order]) @ residual[order] - omega @ residual
    value = deviation + l1 * np.abs(found.w).sum()
    assert (found.weights - omega) @ y == pytest.approx(value, rel=1e-9)
    assert found.passes <= passes + 1
    assert program.solve(found.w).passes == 1


def test_more_columns_than_rows_are_left_to_runs(monkeypatch):
    """A program of so many rows takes several times as long."""
    monkeypatch.setattr(TailProgram, "solve", None)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 200)), rng.standard_t(3, size=80)
    found = minimize_deviation(X, y, CVaR(0.2), l1=0.02)
    assert found.converged
    assert min(found.passes, found.n_iter) > 0
    with pytest.raises(TypeError, match="not callable"):
        minimize_deviation(X.T, rng.normal(size=200), CVaR(0.2), l1=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_weights_that_miss_the_optimality_conditions_are_corrected(seed):
    """Without an l2 a bound exists only where X^T lam is exact: nine digits need the correction."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((400, 20)) * np.geomspace(1.0, 1e3, 20)
    model = RankRegressor(tol=1e-9).fit(X, X @ rng.normal(size=20) + rng.standard_t(2, 400))
    assert model.relative_gap_ <= 1e-9


@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(2.0), Extremile(3.0)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_correction_goes_straight_to_the_edge_of_the_set(risk, weighted):
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    omega = rng.dirichlet(np.ones(40)) if weighted else np.full(40, 1.0 / 40)
    problem = sorel.Problem(X, y, loss="linear", risk=sorel.Deviation(risk), sample_weight=omega)
    engine = problem.engine
    dual = engine.worst_case(engine.point(0.1 * np.ones(2)))
    for size in (1e-3, 1.0, 1e3):
        change = size * rng.normal(size=40)
        move = engine.weights(dual) - omega - omega * (change - omega @ change)
        found = engine.weights(corrected(engine, dual, change, engine.uniform())) - omega
        share = found @ move / (move @ move)
        np.testing.assert_allclose(found, share * move, atol=1e-14)
        assert share > 0.0
        distance = engine.nearest_dual(omega + 1.01 * share * move)[1]
        assert distance > 1e-3 * np.abs(share * move).max()
