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
from sorel import ESRM, CVaR, Mean, SpectralRiskClassifierCV, SpectralRiskRegressorCV
from sorel.estimators.search_report import Comparison, Fold
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
    model = sorel.SpectralRiskRegressor(tol=1e-8)
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
    plain = sorel.SpectralRiskRegressor(search.best_risk_, l2=search.best_l2_).fit(X, Y)
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
    plain = sorel.SpectralRiskClassifier(search.best_risk_, l2=search.best_l2_).fit(X, y)
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
        scoring = make_tail_scorer("cvar:0.1", loss)
        named = SpectralRiskRegressorCV(**one, loss=loss, scoring=scoring).fit(X, Y)
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


def test_sparse_rows_and_names():
    assert SpectralRiskRegressorCV(**SMALL).fit(scipy.sparse.csc_array(X), Y).converged_
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    search = SpectralRiskRegressorCV(**SMALL).fit(pd.DataFrame(X, columns=list("abc")), Y)
    np.testing.assert_array_equal(search.feature_names_in_, list("abc"))


def test_interrupt_ends_the_search():
    with pytest.raises(KeyboardInterrupt):
        SpectralRiskRegressorCV(**SMALL, solver=Interrupted(1), tol=1e-12).fit(X, Y)


@pytest.mark.parametrize(("settings", "message"), [
    ({"risks": []}, "risks is empty"),
    ({"l2s": []}, "l2s is empty"),
    ({"tail": "cvar:2"}, "tail='cvar:2': alpha must lie in"),
    ({"l2s": ["big"]}, "'auto'"),
    ({"risks": ["cvar"]}, "unknown risk"),
    ({"scoring": "best"}, "unknown scoring"),
    ({"tail": "deviation:cvar:0.1"}, "risk such as 'cvar:0.1'"),
])  # fmt: skip
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
    plain = sorel.SpectralRiskClassifier("mean").fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = SpectralRiskClassifierCV().fit(X, y)
    assert search.score(X_test, y_test) >= plain.score(X_test, y_test) - 0.02
    assert not search.constant_
    assert search.cv_results_["constant_share"].max() == 1.0
    assert search.cv_results_["rank_test_score"][search.best_index_] > 1
    assert not SpectralRiskClassifierCV(scoring="neg_cvar_10").fit(X[:1000], y[:1000]).constant_
    # The tail alone chooses it, with a warning.
    with pytest.warns(sorel.ConstantModelWarning, match="constant"):
        search = SpectralRiskClassifierCV(mean_slack=None).fit(X[:1000], y[:1000])
    assert search.constant_
    assert "constant" in search.status_
    alone = {"risks": ["cvar:0.1"], "l2s": ["auto"], "refit": False}
    with pytest.warns(sorel.ConstantModelWarning, match="milder risks"):
        SpectralRiskClassifierCV(**alone, mean_slack=None).fit(X, y)
    with pytest.warns(UserWarning, match="the plain fit was chosen; add milder risks"):
        assert SpectralRiskClassifierCV(**alone).fit(X, y).best_risk_ == Mean()


@pytest.mark.parametrize("scoring", [None, "neg_cvar_10"])
def test_mean_slack_is_the_price_of_the_tail(scoring):
    X, y, _ = sorel.datasets.make_two_populations(n=600)
    settings = {"risks": ["cvar:0.5", "mean", "cvar:0.2", "cvar:0.1"], "l2s": ["auto", 1.0]}
    settings |= {"tail": "cvar:0.05", "scoring": scoring}
    means = []
    for slack in (0.0, 0.05, 0.3, None):
        search = SpectralRiskRegressorCV(**settings, mean_slack=slack).fit(X, y)
        results = search.cv_results_
        mean, plain = results["mean_test_mean_loss"], np.repeat([False, True, False, False], 2)
        admitted, limit = results["admitted"], np.inf if slack is None else 1.0 + slack
        assert (mean[admitted] <= limit * mean[plain].min()).all()
        assert search.best_score_ == results["mean_test_score"][admitted].max()
        means.append(mean[search.best_index_])
    assert means == sorted(means)
    assert means[-1] > means[0] == mean[plain].min()
    for wrong in (-1, "7%", "0.07", True, [0.07], float("nan")):
        message = rf"mean_slack must be .*0\.03 for 3%.*got {re.escape(repr(wrong))}"
        with pytest.raises(ValueError, match=message):
            SpectralRiskRegressorCV(mean_slack=wrong).fit(X, y)


def test_default_grid_leads_from_the_mean_to_the_tail():
    for tail, count in (("cvar:0.05", 8), ("cvar:0.3", 7), ("mix:mean=0.2,cvar:0.1=0.8", 8)):
        search = SpectralRiskRegressorCV(tail=tail, l2s=[0.1], cv=2, refit=False).fit(X, Y)
        risks = search.cv_results_["param_risk"]
        assert len(set(risks)) == len(risks) == count
        assert (risks[0], risks[-1]) == (Mean(), sorel.parse_risk(tail))
        assert all(sorel.parse_risk(risk.spec) == risk for risk in risks)
        assert risks[1](Y) == pytest.approx(0.97 * Y.mean() + 0.03 * risks[-1](Y))


def test_report_of_a_gain_survives_copies(tmp_path):
    for package in ("pandas", "skops"):
        pytest.importorskip(package, reason=f"{package} is an extra")
    X, y, _ = sorel.datasets.make_two_populations(n=2000)
    search = SpectralRiskRegressorCV(tail="cvar:0.05", mean_slack=0.1, l2s=[0.01, 0.1]).fit(X, y)
    report, results = search.search_report_, search.cv_results_
    assert f"{search.best_risk_.spec} (l2 {search.best_l2_}) gains on the plain fit" in str(report)
    table = report.table
    chosen, plain = ({k: v.iloc[i] for k, v in table.items()} for i in (table.chosen.argmax(), 0))
    assert chosen["tail_low"] < chosen["tail_change"] < chosen["tail_high"] < 0.0
    assert chosen["mean_change"] == pytest.approx(chosen["mean"] / plain["mean"] - 1.0)
    lines = str(report).splitlines()
    assert f"{chosen['tail_change']:+.1%} [" in lines[1 + table.chosen.argmax()]
    assert "%" not in lines[1]  # the plain fit against itself
    assert -chosen["tail"] == pytest.approx(search.best_score_)
    assert -search.best_score_ == results["mean_test_tail"][search.best_index_]
    assert plain["mean"] == pytest.approx(results["mean_test_mean_loss"][:2].min())
    sorel.save_model(search, tmp_path / "m.skops")
    for other in (pickle.loads(pickle.dumps(search)), sorel.load_model(tmp_path / "m.skops")):
        assert str(other.search_report_) == str(report)


def test_report_claims_nothing_where_nothing_is_to_be_gained():
    X, y = noisy_labels(600, 1, noise=0.3)
    report = SpectralRiskClassifierCV(tail="cvar:0.05", mean_slack=0.0).fit(X, y).search_report_
    assert report.verdict.startswith("no model beats the plain one")
    X, y = make_data("squared", 150, 4, 0)
    report = SpectralRiskRegressorCV(["cvar:0.5"], l2s=[0.01]).fit(X, y).search_report_
    assert "cvar:0.5 (l2 0.01) cannot be told from the plain fit" in report.verdict
    # A maximum has no standard error, and its change no interval.
    search = SpectralRiskRegressorCV("max", tail="max", l2s=0.01, mean_slack=None).fit(X, y)
    report = search.search_report_
    assert report.verdict == "no model beats the plain one" or "unknown" in report.verdict
    assert np.isnan(report.table["tail_low"]["max"])
    assert "[unknown]" in str(report)


def test_intervals_of_a_report_cover_the_change():
    """Of the tail of two fixed predictions, -14.84% by ten million draws."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        residuals = rng.standard_t(6, size=400)
        losses = np.stack([residuals**2, (0.9 * residuals + 0.3 * rng.normal(size=400)) ** 2])
        parts = np.array_split(np.arange(400), 5)
        # As many rows trained on as make no correction: the predictions are fixed.
        folds = [Fold(rows, losses[:, rows], None, 10**9) for rows in parts]
        found = Comparison(folds, 0).interval("tail", CVaR(0.1), 1, tried=1)
        hits += found["tail_low"] <= -0.1484 <= found["tail_high"]
    assert 180 <= hits <= 199
    # Student's t of 39 degrees of freedom, for one pair and (Bonferroni) for ten; for rows trained
    # on, a factor of their own.
    error = Comparison(folds, 0).change(CVaR(0.1), 1)[2]
    for trained, tried, quantile in ((10**9, 1, 2.02269), (10**9, 10, 2.97561), (800, 1, 2.47728)):
        folds = [fold._replace(trained=trained) for fold in folds]
        found = Comparison(folds, 0).interval("tail", CVaR(0.1), 1, tried=tried)
        for end, sign in (("low", -1.0), ("high", 1.0)):
            margin = sign * (found[f"tail_{end}"] - found["tail_change"])
            assert margin == pytest.approx(quantile * error, rel=1e-5)


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_the_folds_are_told_of_from_the_second_level_on(verbose, capfd):
    SpectralRiskRegressorCV(["mean"], l2s=[0.1], cv=3, verbose=verbose).fit(X, Y)
    printed = "".join(capfd.readouterr())
    assert ("[Parallel" in printed) == (verbose > 1)
    assert ("sorel:" in printed) == (verbose > 0)
