"""Plain models of scikit-learn, metadata routing, and arrays of other libraries."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import sklearn
from helpers import make_data
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sorel
from sorel import QuantileRegressor, SpectralRiskClassifier, SpectralRiskRegressor
from sorel.metrics import TailScorer, sample_losses

X, NUMBERS = make_data("squared", 90, 3, 0)
COUNTS, AMOUNTS = make_data("poisson", 90, 3, 0)[1], make_data("gamma", 90, 3, 0)[1]
LABELS = np.array(["a", "b", "c"])[np.digitize(NUMBERS, np.quantile(NUMBERS, [0.3, 0.6]))]
SEARCH = {"risks": ["mean", "cvar:0.5"], "l2s": [0.1], "cv": GroupKFold(3)}


@pytest.mark.parametrize(("model", "y", "kind"), [
    (SpectralRiskRegressor(loss="huber", fit_intercept="mean"), NUMBERS, "LinearRegression"),
    (SpectralRiskRegressor(fit_intercept=False), NUMBERS, "LinearRegression"),
    (SpectralRiskRegressor(loss="poisson"), COUNTS, "PoissonRegressor"),
    (SpectralRiskRegressor(loss="gamma"), AMOUNTS, "GammaRegressor"),
    (sorel.SpectralRiskRegressorCV(["mean"], l2s=[0.1]), NUMBERS, "LinearRegression"),
    (QuantileRegressor(quantile=[0.1, 0.9], alpha=0.0), NUMBERS, "LinearRegression"),
    (sorel.RankRegressor(), NUMBERS, "LinearRegression"),
    (SpectralRiskClassifier(), LABELS == "a", "LogisticRegression"),
    (sorel.SpectralRiskClassifierCV(["mean"], l2s=[0.1]), LABELS, "LogisticRegression"),
    (SpectralRiskClassifier(loss="squared_hinge"), LABELS == "a", "LinearSVC"),
])  # fmt: skip
def test_plain_models_predict_the_same(model, y, kind):
    pl = pytest.importorskip("polars", reason="polars is a package of the tests")
    model, table = clone(model), pl.DataFrame(X, schema=["u", "v", "w"])
    with pytest.raises(NotFittedError):
        model.to_sklearn()
    first = model.fit(table, y).to_sklearn()
    kept = pickle.dumps(first)
    first.coef_[:] = 0.0  # its own, not the model's
    clone(first).fit(X, y)
    assert b"sorel" not in kept
    plain = pickle.loads(kept)
    assert type(plain).__name__ == kind
    assert plain.n_features_in_ == 3
    for name in ("feature_names_in_", "classes_"):
        assert list(getattr(plain, name, [])) == list(getattr(model, name, []))
    for method in ("predict", "predict_proba", "decision_function"):
        assert hasattr(plain, method) == hasattr(model, method)
        if hasattr(plain, method):
            found, known = getattr(plain, method)(table), getattr(model, method)(table)
            numbers = known.dtype.kind == "f"
            same = np.isclose(found, known, 1e-12, 1e-14) if numbers else found == known
            assert same.all()
            assert found.shape == known.shape


def test_what_no_plain_model_predicts_is_refused():
    model = QuantileRegressor(quantile=[0.1, 0.9], alpha=0.0, noncrossing=True).fit(X, NUMBERS)
    with pytest.raises(ValueError, match="noncrossing=False"):
        model.to_sklearn()

    class Doubled(sorel.losses.Squared):
        def predict(self, margins):
            return 2.0 * margins

    with pytest.raises(ValueError, match="coef_"):
        SpectralRiskRegressor(loss=Doubled()).fit(X, NUMBERS).to_sklearn()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_models_become_onnx(dtype):
    skl2onnx = pytest.importorskip("skl2onnx", reason="107 MB with onnxruntime, in no extra")
    runtime = pytest.importorskip("onnxruntime", reason="107 MB with skl2onnx, in no extra")
    for model, y in [
        (SpectralRiskRegressor(), NUMBERS),
        (SpectralRiskRegressor(loss="gamma"), AMOUNTS),
        (SpectralRiskClassifier(), LABELS),
    ]:
        plain = model.fit(X, y).to_sklearn()
        options = {id(plain): {"zipmap": False}} if y is LABELS else None
        graph = skl2onnx.to_onnx(plain, X[:1].astype(dtype), options=options)
        session = runtime.InferenceSession(graph.SerializeToString())
        *_, found = session.run(None, {"X": X.astype(dtype)})
        known = model.predict_proba(X) if y is LABELS else model.predict(X)[:, None]
        np.testing.assert_allclose(found, known, rtol=1e-5, atol=20 * np.finfo(dtype).eps)


def test_metadata_is_routed():
    groups, weight = np.arange(90) // 9, np.linspace(1.0, 2.0, 90)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_output(transform="polars")
        scaler.set_fit_request(sample_weight=False)
        search = sorel.SpectralRiskRegressorCV(**SEARCH).set_fit_request(sample_weight=True)
        routed = make_pipeline(scaler, search).fit(X, NUMBERS, groups=groups, sample_weight=weight)
        known = clone(search).fit(scaler.transform(X), NUMBERS, weight, groups)
        np.testing.assert_array_equal(routed[-1].coef_, known.coef_)
        assert list(routed[-1].feature_names_in_) == ["x0", "x1", "x2"]
        nested = cross_val_score(search, X, NUMBERS, cv=GroupKFold(2), params={"groups": groups})
        assert np.isfinite(nested).all()


def test_scores_use_the_offsets_and_weights_that_they_request():
    weight = np.linspace(1.0, 2.0, 90)
    metadata = {"offset": np.log(weight), "sample_weight": weight}
    with sklearn.config_context(enable_metadata_routing=True):
        model = SpectralRiskRegressor(loss="poisson")
        model.set_fit_request(**dict.fromkeys(metadata, True))
        means = clone(model).fit(X, COUNTS, **metadata).predict(X, metadata["offset"])
        everything = {"cv": [(np.arange(90), np.arange(90))], "params": metadata}
        tail = TailScorer("cvar:0.1", "poisson")
        for scoring in (None, tail, tail.set_score_request(sample_weight=True)):
            with pytest.raises(ValueError, match="set_score_request"):
                cross_val_score(model, X, COUNTS, scoring=scoring, **everything)
        for used in (weight, None):
            requests = {"offset": True, "sample_weight": used is not None}
            score = cross_val_score(model.set_score_request(**requests), X, COUNTS, **everything)
            assert score[0] == pytest.approx(r2_score(COUNTS, means, sample_weight=used))
            scoring = tail.set_score_request(**requests)
            score = cross_val_score(model, X, COUNTS, scoring=scoring, **everything)
            known = sorel.CVaR(0.1)(sample_losses(COUNTS, means, "poisson"), used)
            assert score[0] == pytest.approx(-known)


DISPATCH = """
import array_api_strict as xp, numpy as np, sklearn
from sorel import QuantileRegressor, SpectralRiskClassifier, SpectralRiskRegressor
X = np.random.default_rng(0).normal(size=(60, 3))
for model, y in [
    (SpectralRiskRegressor(), X[:, 0]), (SpectralRiskClassifier(), X[:, 0] > 0.0),
    (QuantileRegressor(alpha=0.0), X[:, 0]),
]:
    known = model.fit(X, y, np.ones(60)).predict(X)
    with sklearn.config_context(array_api_dispatch=True):
        model.fit(xp.asarray(X), xp.asarray(y), xp.ones(60))
        assert (known == model.predict(xp.asarray(X))).all()
"""


def test_arrays_of_other_libraries_are_read_as_numpy_arrays():
    pytest.importorskip("array_api_strict", reason="a check of the standard, in no extra")
    # scikit-learn dispatches only where this was set before its import.
    env = os.environ | {"SCIPY_ARRAY_API": "1"}
    subprocess.run([sys.executable, "-c", DISPATCH], check=True, env=env)
