"""Quantile regression against linear programming, scikit-learn's own tests, and mathematics."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import sklearn.linear_model
from helpers import pinball_optimum
from sklearn.metrics import mean_pinball_loss

import sorel


def random_problem(seed):
    """Ties, duplicated rows and columns, few rows, small whole numbers."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(4, 60)), int(rng.integers(1, 6))
    X, noise = rng.normal(size=(n, d)), rng.standard_t(2, size=n)
    kind = seed % 5
    if kind == 1:
        X, noise = np.round(X), np.round(noise)
    elif kind == 2:
        X, noise = X[rng.integers(0, n, n)], noise[rng.integers(0, n, n)]
    elif kind == 3 and d > 1:
        X[:, -1] = X[:, 0]
    y = X @ rng.normal(size=d) + noise + 10 * rng.normal()
    q = float(rng.choice([0.1, 0.25, 0.5, 0.7, 0.95]))
    alpha = float(rng.choice([0.0, 0.01, 0.1, 1.0]))
    weight = rng.integers(1, 5, n).astype(float) if seed % 3 == 0 else None
    return X, y, q, alpha, weight


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("block", range(10))
def test_optima_of_a_linear_program(block, intercept):
    for seed in range(20 * block, 20 * block + 20):
        X, y, q, alpha, weight = random_problem(seed)
        model = sorel.QuantileRegressor(
            quantile=q, alpha=alpha, fit_intercept=intercept, tol=1e-8, max_passes=5000
        ).fit(X, y, sample_weight=weight)
        best = pinball_optimum(X, y, q, alpha, weight, intercept)
        size = np.abs(y - np.median(y)).mean()
        found = mean_pinball_loss(y, model.predict(X), alpha=q, sample_weight=weight)
        found += alpha * np.abs(model.coef_).sum()
        assert found == pytest.approx(best, rel=1e-7, abs=1e-12 * size), (seed, model.status_)
        assert model.objective_ - model.gap_ <= best + 1e-12 * size, seed


def test_the_certificate_can_be_derived_again():
    X, y, *_ = random_problem(4)
    model = sorel.QuantileRegressor(quantile=0.7, alpha=0.05).fit(X, y)
    n = len(y)
    lam = model.risk_weights_
    assert lam.min() >= 0.0
    assert lam.max() <= 1 / (0.3 * n) * (1 + 1e-12)
    assert lam.sum() == pytest.approx(1.0, abs=1e-12)
    s = 0.3 * (lam - 1 / n)
    assert np.abs(X.T @ s).max() <= 0.05 * (1 + 1e-9)
    # s.y bounds the optimum from below, whatever made s.
    assert s @ y == pytest.approx(model.objective_ - model.gap_, rel=1e-9)
    assert s @ y <= pinball_optimum(X, y, 0.7, 0.05, None, True) * (1 + 1e-9)


def borrowed_tests():
    """scikit-learn's tests of its own estimator, with ours in its place."""
    spec = importlib.util.find_spec("sklearn.linear_model.tests.test_quantile")
    if spec is None:
        return {}
    source = Path(spec.origin).read_text(encoding="utf-8")
    names = {"__name__": "borrowed"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.linear_model, "QuantileRegressor", sorel.QuantileRegressor)
        exec(compile(source, spec.origin, "exec"), names)
    # It asks scikit-learn's solver about a solver that SciPy has dropped.
    names.pop("test_error_interior_point_future", None)
    return {name: item for name, item in names.items() if name.startswith(("test_", "X_y"))}


globals().update(borrowed_tests())


@pytest.fixture
def global_random_seed():
    return 42


def test_several_quantiles_in_one_path():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = X @ [1.0, 2.0, 0.0] + (0.5 + 0.4 * X[:, 2]) * rng.standard_t(3, size=400)
    levels = [0.1, 0.5, 0.9]
    path = sorel.QuantileRegressor(quantile=levels, alpha=0.0, tol=1e-8).fit(X, y)
    for q, coef, intercept in zip(levels, path.coef_, path.intercept_, strict=True):
        one = sorel.QuantileRegressor(quantile=q, alpha=0.0, tol=1e-8).fit(X, y)
        np.testing.assert_allclose(coef, one.coef_, rtol=1e-6, atol=1e-8)
        assert intercept == pytest.approx(one.intercept_, rel=1e-6)


@pytest.mark.parametrize("levels", [[0.1, 0.5, 0.9], [0.9, 0.1, 0.5]])
def test_quantiles_that_must_not_cross(levels):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 4))
    y = rng.standard_t(2, size=40)
    plain = sorel.QuantileRegressor(quantile=levels, alpha=0.0).fit(X, y)
    sorted_ = sorel.QuantileRegressor(quantile=levels, alpha=0.0, noncrossing=True).fit(X, y)
    far = 3 * rng.normal(size=(200, 4))
    order = np.argsort(levels)
    assert np.any(np.diff(plain.predict(far)[:, order], axis=1) < 0)
    assert np.all(np.diff(sorted_.predict(far)[:, order], axis=1) >= 0)
    total = [
        sum(mean_pinball_loss(y, model.predict(X)[:, k], alpha=q) for k, q in enumerate(levels))
        for model in (plain, sorted_)
    ]
    assert total[1] <= total[0] + 1e-12


@pytest.mark.filterwarnings("error")
def test_constant_target_and_perfect_fit():
    X = np.random.default_rng(3).normal(size=(30, 2))
    for rows, y in ((X, np.full(30, 7.0)), (X, X @ [1.0, 2.0] + 3.0), (X.T, [1.0, 5.0])):
        model = sorel.QuantileRegressor(quantile=0.8, alpha=0.0).fit(rows, y)
        np.testing.assert_allclose(model.predict(rows), y, rtol=1e-6)


@pytest.mark.parametrize(("options", "message"), [
    ({"quantile": 0.0}, "strictly between 0 and 1, got 0.0"),
    ({"quantile": 1}, "strictly between 0 and 1, got 1"),
    ({"quantile": [0.5, 1.5]}, "strictly between 0 and 1, got 1.5"),
    ({"quantile": []}, "quantile is empty"),
    ({"quantile": "median"}, "strictly between 0 and 1, got 'median'"),
    ({"alpha": -1.0}, "alpha must be a finite number >= 0, got -1.0"),
    ({"l2": np.nan}, "l2 must be a finite number >= 0"),
    ({"solver": "simplex"}, "unknown solver 'simplex'"),
])  # fmt: skip
def test_bad_settings(options, message):
    X, y, *_ = random_problem(1)
    with pytest.raises(ValueError, match=message):
        sorel.QuantileRegressor(**options).fit(X, y)


@pytest.mark.parametrize("rank", [7, 30], ids=["few directions", "all rows are met"])
def test_far_more_columns_than_rows(rank):
    """Their covariance is never formed: by its rows the same optimum, certified."""
    rng = np.random.default_rng(rank)
    few, mixed = rng.normal(size=(30, rank)), rng.normal(size=(rank, 6000))
    y = rng.normal(size=30)
    wide = sorel.QuantileRegressor(quantile=0.3, alpha=0.0).fit(few @ mixed, y)
    assert wide.converged_
    narrow = sorel.QuantileRegressor(quantile=0.3, alpha=0.0).fit(few, y)
    assert wide.objective_ == pytest.approx(narrow.objective_, abs=2e-6)


@pytest.mark.parametrize("level", [0.2, 0.9])
def test_l2_is_added_to_the_mean_pinball_loss(level):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.standard_t(3, size=80)
    model = sorel.QuantileRegressor(quantile=level, alpha=0.0, l2=0.3).fit(X, y)

    def objective(coef):
        left = y - X @ coef
        shift = np.quantile(left, level, method="inverted_cdf")
        return mean_pinball_loss(left, np.full(80, shift), alpha=level) + 0.15 * coef @ coef

    assert model.objective_ == pytest.approx(objective(model.coef_), rel=1e-9)
    for step in 0.01 * np.vstack([np.eye(3), -np.eye(3)]):
        assert objective(model.coef_ + step) > model.objective_
