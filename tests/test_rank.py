"""Rank regression: optima of a linear program, robustness, and the intercept."""

import numpy as np
import pytest
from helpers import conic_risk

import sorel


def gini(residuals):
    """Half the mean absolute difference of all pairs, with repetition."""
    return 0.5 * np.abs(residuals[:, None] - residuals[None, :]).mean()


def make_rows(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ np.arange(1.0, d + 1) + rng.standard_t(2, size=n) + 5.0


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_over_all_pairs(seed):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    X, y = make_rows(25, 2, seed)
    if seed == 1:
        X, y = np.round(X), np.round(y)
    model = sorel.RankRegressor(tol=1e-8).fit(X, y)
    w = cp.Variable(2)
    r = y - X @ w
    i, j = np.triu_indices(25, 1)
    dispersion = cp.sum(cp.abs(r[i] - r[j])) / 25**2
    best = cp.Problem(cp.Minimize(dispersion)).solve(solver=cp.CLARABEL)
    found = gini(y - X @ model.coef_)
    assert found == pytest.approx(best, rel=1e-7)
    assert model.objective_ == pytest.approx(found, rel=1e-10)
    assert model.objective_ - model.gap_ <= best * (1 + 1e-9)


@pytest.mark.parametrize("risk", ["esrm:2", sorel.CVaR(0.3), "deviation:extremile:3"])
@pytest.mark.parametrize("penalty", [{}, {"l1": 0.05}, {"l2": 0.1}, {"l1": 0.05, "l2": 0.1}])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_scores_and_penalties(risk, penalty, weighted):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    X, y = make_rows(30, 3)
    weight = np.random.default_rng(1).integers(1, 4, 30) if weighted else None
    model = sorel.RankRegressor(risk, **penalty, tol=1e-8).fit(X, y, sample_weight=weight)
    rows = np.repeat(np.arange(30), 1 if weight is None else weight)
    inner = sorel.parse_risk(risk)
    deviation = sorel.Deviation(getattr(inner, "risk", inner))
    w = cp.Variable(3)
    objective = conic_risk(deviation, (y - X @ w)[rows]) + penalty.get("l1", 0.0) * cp.norm1(w)
    objective += penalty.get("l2", 0.0) / 2 * cp.sum_squares(w)
    best = cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL)
    assert model.objective_ == pytest.approx(best, rel=1e-6)
    assert model.objective_ - model.gap_ <= best * (1 + 1e-7)
    assert model.converged_


@pytest.mark.parametrize("n", [64, 65])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_median_is_a_midpoint(n, weighted):
    """Residuals of the other sign have the median of the other sign; a weight of 2 is two rows."""
    X, y = make_rows(n)
    weight = np.random.default_rng(8).integers(1, 4, n) if weighted else None
    model = sorel.RankRegressor().fit(X, y, sample_weight=weight)
    left = np.repeat(y - X @ model.coef_, 1 if weight is None else weight)
    assert model.intercept_ == pytest.approx(np.median(left), abs=1e-12)
    plain = sorel.RankRegressor(fit_intercept=False).fit(X, y, sample_weight=weight)
    assert plain.intercept_ == 0.0
    np.testing.assert_array_equal(plain.coef_, model.coef_)
    mirrored = sorel.RankRegressor().fit(-X, -y, sample_weight=weight)
    np.testing.assert_allclose(mirrored.predict(-X), -model.predict(X), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"risk": "gini"}, "unknown risk 'gini'"), ({"l1": -1}, "l1 must be a finite number >= 0")],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        sorel.RankRegressor(**options).fit(*make_rows())
