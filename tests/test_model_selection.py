from __future__ import annotations

import pickle
import re
import warnings

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data
from joblib import parallel_config
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer, max_error
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from test_estimators import Interrupted, classification

import sorel
import sorel.datasets
from sorel import (
    ESRM,
    CVaR,
    Mean,
    SpectralRiskClassifier,
    SpectralRiskClassifierCV,
    SpectralRiskRegressor,
    SpectralRiskRegressorCV,
)
from sorel.metrics import make_tail_scorer, neg_cvar_10

# scikit-learn's metric of that name knows no sample weights.
WORST = make_scorer(max_error, greater_is_better=False)
GRID = {"risks": ["mean", CVaR(0.5), "cvar:0.2"], "l2s": [1.0, 0.1, "auto"]}
RISKS = [Mean(), CVaR(0.5), CVaR(0.2)]
SMALL = {"risks": ("mean", "cvar:0.5"), "l2s": (0.1,), "cv": 2}
X, Y = make_data("squared", 60, 3, 0)


def test_search_agrees_with_grid_search():
    X, y = make_data("squared", 120, 4, 0)
    ours = SpectralRiskRegressorCV(**GRID, cv=3, tol=1e-8).fit(X, y)
    grid = [{"risk": [risk], "l2": GRID["l2s"]} for risk in GRID["risks"]]
    model = SpectralRiskRegressor(tol=1e-8)
    other = GridSearchCV(model, grid, cv=3, scoring=neg_cvar_10).fit(X, y)
    results, theirs = ours.cv_results_, other.cv_results_
    for name in ("mean_test_score", "std_test_score", *(f"split{k}_test_score" for k in range(3))):
        np.testing.assert_allclose(results[name], theirs[name], rtol=1e-3)
    np.testing.assert_array_equal(results["rank_test_score"], theirs["rank_test_score"])
    assert ours.best_score_ == results["mean_test_score"].max()
    for name, places in (("l2", GRID["l2s"] * 3), ("risk", np.repeat(RISKS, 3))):
        assert getattr(ours, f"best_{name}_") == places[ours.best_index_]
        assert list(results[f"param_{name}"]) == list(places)
    assert ours.n_splits_ == 3
    assert {len(column) for column in results.values()} == {9}


def test_refit_is_the_plain_estimator():
    search = SpectralRiskRegressorCV(**GRID).fit(X, Y)
    plain = SpectralRiskRegressor(search.best_risk_, l2=search.best_l2_).fit(X, Y)
    for name in ("coef_", "risk_weights_", "intercept_", "gap_", "relative_gap_", "objective_",
                 "n_passes_", "n_iter_", "converged_", "status_", "l2_"):  # fmt: skip
        np.testing.assert_array_equal(getattr(search, name), getattr(plain, name))
    np.testing.assert_array_equal(search.predict(X), plain.predict(X))
    assert len(search.history_) == len(plain.history_)
    search = SpectralRiskRegressorCV(**GRID, refit=False).fit(X, Y)
    assert search.best_risk_ in RISKS
    with pytest.raises(NotFittedError):
        search.predict(X)


@pytest.mark.parametrize("backend", ["threading", "loky", "sequential"])
def test_any_backend_gives_the_same(backend):
    alone = SpectralRiskRegressorCV(**GRID, cv=2).fit(X, Y)
    with parallel_config(backend, n_jobs=2):
        together = SpectralRiskRegressorCV(**GRID, cv=2).fit(X, Y)
    assert together.best_score_ == alone.best_score_
    np.testing.assert_array_equal(alone.coef_, together.coef_)


@pytest.mark.parametrize("classes", [2, 3])
def test_classifier(classes):
    X, codes = classification(classes=classes)
    y = np.array(["b", "a", "c"])[codes]
    search = SpectralRiskClassifierCV(["mean", ESRM(2.0)], l2s=[0.1, 0.01]).fit(X, y)
    plain = SpectralRiskClassifier(search.best_risk_, l2=search.best_l2_).fit(X, y)
    np.testing.assert_array_equal(search.predict_proba(X), plain.predict_proba(X))
    loaded = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(loaded.predict(X), search.predict(X))
    hinge = SpectralRiskClassifierCV(loss="squared_hinge", l2s=[0.1])
    assert not hasattr(hinge, "predict_proba")
    if classes == 3:
        with pytest.raises(ValueError, match="OneVsRestClassifier"):
            hinge.fit(X, y)
    else:
        assert hinge.fit(X, y).best_score_ < 0


def test_default_score_is_the_worst_tenth_of_the_own_loss():
    one = {"risks": ["mean"], "l2s": [0.1]}
    for loss in ("squared", "huber"):
        default = SpectralRiskRegressorCV(**one, loss=loss).fit(X, Y)
        named = SpectralRiskRegressorCV(
            **one, loss=loss, scoring=make_tail_scorer("cvar:0.1", loss)
        ).fit(X, Y)
        assert default.best_score_ == named.best_score_
    for scoring in ("neg_cvar_50", "r2", WORST, lambda model, X, y: model.score(X, y)):
        assert np.isfinite(SpectralRiskRegressorCV(**one, scoring=scoring).fit(X, Y).best_score_)


@pytest.mark.parametrize("scoring", [None, "r2", WORST, lambda model, X, y: 0.0])
def test_sample_weights_reach_fit_and_those_scorers_that_take_them(scoring):
    X, y = make_data("squared", 40, 3, 0)
    weight = np.random.default_rng(0).integers(1, 4, 40)
    rows = np.repeat(np.arange(40), weight)
    half = np.arange(40) < 20
    settings = {**GRID, "tol": 1e-10, "scoring": scoring}
    weighted, repeated = (
        SpectralRiskRegressorCV(**settings, cv=[(np.flatnonzero(part), np.flatnonzero(~part))])
        for part in (half, half[rows])
    )
    weighted.fit(X, y, sample_weight=weight)
    repeated.fit(X[rows], y[rows])
    found, expected = (search.cv_results_["mean_test_score"] for search in (weighted, repeated))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)


def test_splitters_and_groups():
    groups = np.arange(60) % 4
    for cv, given, splits in (
        (GroupKFold(4), groups, 4),
        (KFold(3, shuffle=True, random_state=0), None, 3),
        (None, None, 5),
    ):
        search = SpectralRiskRegressorCV(**SMALL | {"cv": cv}).fit(X, Y, groups=given)
        assert search.n_splits_ == splits


def test_tail_training_wins_where_it_should():
    # Noise that grows with the feature tilts the best line for the tail against the mean's.
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, 1000)
    y = x + (0.1 + 2.0 * x) * rng.exponential(size=1000)
    for scoring, best in (("neg_cvar_10", CVaR(0.1)), ("r2", Mean())):
        search = SpectralRiskRegressorCV(["mean", "cvar:0.1"], l2s=["auto"], scoring=scoring)
        assert search.fit(x[:, None], y).best_risk_ == best


def test_sparse_rows_and_names():
    assert SpectralRiskRegressorCV(**SMALL).fit(scipy.sparse.csc_array(X), Y).converged_
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    search = SpectralRiskRegressorCV(**SMALL).fit(pd.DataFrame(X, columns=list("abc")), Y)
    np.testing.assert_array_equal(search.feature_names_in_, list("abc"))


def test_interrupt_ends_the_search():
    with pytest.raises(KeyboardInterrupt):
        SpectralRiskRegressorCV(**SMALL, solver=Interrupted(1), tol=1e-12).fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"risks": []}, "must not be empty"),
        ({"l2s": []}, "must not be empty"),
        ({"l2s": ["big"]}, "'auto'"),
        ({"risks": ["cvar"]}, "unknown risk"),
        ({"scoring": "best"}, "unknown scoring"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SpectralRiskRegressorCV(**settings).fit(X, Y)
    with pytest.raises(ValueError, match="Invalid parameter"):
        SpectralRiskRegressorCV().set_params(risk__alpha=0.1)


def noisy_labels(n, seed, noise=1.5, d=5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + noise * rng.logistic(size=n) > 0


def test_noisy_labels_do_not_win_with_a_constant_model():
    """The constant model has the best tail, and must not be chosen for it."""
    X, y = noisy_labels(4000, 0)
    X_test, y_test = noisy_labels(20_000, 100)
    plain = SpectralRiskClassifier("mean").fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = SpectralRiskClassifierCV().fit(X, y)
    assert search.score(X_test, y_test) >= plain.score(X_test, y_test) - 0.02
    assert not search.constant_
    assert search.cv_results_["constant_share"].max() == 1.0
    assert search.cv_results_["rank_test_score"][search.best_index_] > 1
    # The plain score chooses it, with a warning.
    with pytest.warns(sorel.ConstantModelWarning, match="constant"):
        search = SpectralRiskClassifierCV(scoring="neg_cvar_10").fit(X[:1000], y[:1000])
    assert search.constant_
    assert "constant" in search.status_
    with pytest.warns(sorel.ConstantModelWarning, match="milder risks"):
        SpectralRiskClassifierCV(["cvar:0.1"], l2s=["auto"], refit=False).fit(X, y)


def test_mean_slack_is_the_price_of_the_tail():
    X, y, _ = sorel.datasets.make_two_populations(n=600)
    settings = {"risks": ["mean", "cvar:0.5", "cvar:0.2", "cvar:0.1"], "l2s": ["auto"]}
    means = []
    for slack in (0.0, 0.05, 0.25, None):
        search = SpectralRiskRegressorCV(**settings, mean_slack=slack).fit(X, y)
        mean = search.cv_results_["mean_test_mean_loss"]
        score = search.cv_results_["mean_test_score"]
        allowed = mean <= (np.inf if slack is None else (1 + slack) * mean.min())
        assert search.best_score_ == score[allowed].max()
        means.append(mean[search.best_index_])
    assert means == sorted(means)
    assert means[-1] > means[0]
    for wrong in (-1, "7%", "0.07", True, [0.07], float("nan")):
        message = rf"mean_slack must be .*0\.03 for 3%.*got {re.escape(repr(wrong))}"
        with pytest.raises(ValueError, match=message):
            SpectralRiskRegressorCV(mean_slack=wrong).fit(X, y)


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_the_folds_are_told_of_from_the_second_level_on(verbose, capfd):
    SpectralRiskRegressorCV(["mean"], l2s=[0.1], cv=3, verbose=verbose).fit(X, Y)
    printed = "".join(capfd.readouterr())
    assert ("[Parallel" in printed) == (verbose > 1)
    assert ("sorel:" in printed) == (verbose > 0)
