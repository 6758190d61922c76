"""What a tail model is compared with: the plain fit, moved, and recalibrated."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from helpers import make_data
from scipy.optimize import minimize
from test_estimators import classification

import sorel
from sorel import SpectralRiskClassifier, SpectralRiskRegressor, load_model, save_model
from sorel.estimators.baselines import _OneScale
from sorel.metrics import TailScorer, baselines

WEIGHT = np.random.default_rng(0).integers(0, 3, 150).astype(float)


@pytest.mark.parametrize("risk", ["cvar:0.2", "esrm:2", "mix:mean=0.7,cvar:0.05=0.3"])
@pytest.mark.parametrize("kind", ["squared", "poisson", "gamma", "two classes", "three classes"])
def test_shift_and_scale_minimise_the_risk(kind, risk):
    if kind.endswith("classes"):
        X, y = classification(150, 3, 3 if kind.startswith("three") else 2)
        model = SpectralRiskClassifier(risk, l2=0.01)
    else:
        X, y = make_data(kind, 150, 3, 0)
        y = y + 20.0 * (kind == "squared")  # margins far from 0
        model = SpectralRiskRegressor(risk, loss=kind, l2=0.01)
    found = baselines(model, scipy.sparse.csr_array(X), y, WEIGHT)
    plain = found["plain fit"]

    def objective(parameters):
        scale, *shift = np.ravel(parameters)
        other = type(model)(risk, loss=model.loss)
        vars(other).update(vars(plain) | {"coef_": scale * plain.coef_})
        other.intercept_ = scale * plain.intercept_ + np.reshape(shift, np.shape(plain.intercept_))
        penalty = 0.5 * plain.l2_ * np.sum(other.coef_**2)
        return penalty - TailScorer(risk, model.loss)(other, X, y, WEIGHT)

    options = {"xatol": 1e-8, "fatol": 1e-10, "maxfev": 10_000}
    for name, fixed in (("plain fit + constant", [1.0]), ("plain fit, recalibrated", [])):
        scale = found[name].coef_.flat[0] / plain.coef_.flat[0]
        shift = np.ravel(found[name].intercept_ - scale * plain.intercept_)
        found_at = np.array([scale, *shift])
        best = minimize(
            lambda t, fixed=fixed: objective([*fixed, *t]),
            found_at[len(fixed) :] + 0.01,
            method="Nelder-Mead",
            options=options,
        )
        assert scale == pytest.approx(1.0) or not fixed
        assert objective(found_at) <= best.fun + 1e-5 * abs(best.fun)


def test_baselines_are_models_of_their_own(tmp_path):
    X, y = classification(120, 3, 3)
    found = baselines(SpectralRiskClassifier("cvar:0.1").fit(X, y), X, y)
    assert list(found) == ["plain fit", "plain fit + constant", "plain fit, recalibrated"]
    for other in found.values():
        save_model(other, tmp_path / "m.skops")
        loaded = load_model(tmp_path / "m.skops")
        np.testing.assert_array_equal(loaded.predict_proba(X), other.predict_proba(X))
    assert not hasattr(found["plain fit + constant"], "gap_")
    # A label that has no weight is none of the plain fit's.
    weighted = baselines(SpectralRiskClassifier("cvar:0.5"), X, y, (y != y[0]).astype(float))
    assert all(len(other.classes_) == 2 for other in weighted.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # names of columns are known to the plain fit
        baselines(SpectralRiskClassifier("cvar:0.5"), pd.DataFrame(X, columns=list("abc")), y)
    with pytest.raises(TypeError, match="got SpectralRiskRegressorCV; of a search take"):
        baselines(sorel.SpectralRiskRegressorCV(), X, y)
    linear = SpectralRiskRegressor(loss="linear", fit_intercept=False, penalty=sorel.Simplex(0.0))
    assert list(baselines(linear, X, y.astype(float))) == ["plain fit"]


def test_the_conjugate_of_one_scale_is_its_supremum():
    penalty, v = _OneScale(0.7, 3, 0.0, 4.0), np.random.default_rng(0).normal(size=9)
    for center in (-1.0, 0.3, 20.0):
        v[::4] += center
        scales = [a * np.eye(3).ravel() for a in np.linspace(0.0, 4.0, 4001)]
        supremum = max(v @ w - penalty.value(w) for w in scales)
        assert penalty.conjugate(v) == pytest.approx(supremum, rel=1e-5, abs=1e-9)
