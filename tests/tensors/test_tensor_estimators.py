"""Estimators on tensors: NumPy attributes, predictions where X is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sorel


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    return X, X @ [1.0, -2.0, 3.0, 0.0] + 0.5 + rng.standard_t(3, 300), rng


def on(device, *arrays):
    return [torch.tensor(array, device=device) for array in arrays]


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_regressor(device, data, kind, loss):
    X, y, _ = data
    if loss == "poisson":
        y = np.round(np.exp(0.3 * X[:, 0]))
    tensors = on(device, X, y)
    tensors[0] = tensors[0].to(kind)
    settings = {"risk": "esrm:2", "loss": loss, "tol": 1e-6}
    here = sorel.SpectralRiskRegressor(**settings).fit(*tensors)
    there = sorel.SpectralRiskRegressor(**settings).fit(tensors[0].cpu().numpy(), y)
    for name in ("coef_", "intercept_", "objective_", "risk_weights_"):
        assert isinstance(getattr(here, name), (np.ndarray, float))
    # Both are within the same gap, which leaves the coefficients the root of it.
    assert here.objective_ == pytest.approx(there.objective_, rel=2e-6)
    np.testing.assert_allclose(here.coef_, there.coef_, atol=2e-3)
    assert here.n_features_in_ == 4
    predicted = here.predict(tensors[0])
    assert predicted.device == tensors[0].device
    assert predicted.dtype == torch.float64
    again = here.predict(tensors[0].cpu().numpy())
    np.testing.assert_allclose(predicted.cpu().numpy(), again, rtol=1e-12)
    with pytest.raises(ValueError, match="expecting 4 features"):
        here.predict(tensors[0][:, :2])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("texts", [False, True])
def test_classifier(device, data, classes, texts):
    X, _, rng = data
    y = (3.0 * X[:, :classes] + rng.gumbel(size=(300, classes))).argmax(axis=1)
    labels = np.array(["a", "b", "c"])[y] if texts else 10 + y
    tensor = torch.tensor(X, device=device)
    target = labels if texts else torch.tensor(labels, device=device)
    settings = {"risk": "cvar:0.5", "class_weight": "balanced", "tol": 1e-6}
    here = sorel.SpectralRiskClassifier(**settings).fit(tensor, target)
    there = sorel.SpectralRiskClassifier(**settings).fit(X, labels)
    np.testing.assert_array_equal(here.classes_, there.classes_)
    np.testing.assert_allclose(here.coef_, there.coef_, atol=1e-3)
    predicted = here.predict(tensor)
    assert isinstance(predicted, np.ndarray if texts else torch.Tensor)
    predicted = predicted if texts else predicted.cpu().numpy()
    np.testing.assert_array_equal(predicted, here.predict(X))
    for method in ("decision_function", "predict_proba", "predict_log_proba"):
        values = getattr(here, method)(tensor)
        assert values.device == tensor.device
        np.testing.assert_allclose(values.cpu().numpy(), getattr(here, method)(X), atol=1e-12)


def test_sparse_tensors_and_weights(device, data):
    X, y, rng = data
    X = np.where(rng.random(X.shape) < 0.5, X, 0.0)
    weight = rng.integers(0, 3, 300).astype(float)
    tensors = on(device, X, y)
    sparse = tensors[0].to_sparse_csr()
    model = sorel.SpectralRiskRegressor(risk="esrm:2", tol=1e-7)
    here = model.fit(sparse, tensors[1], torch.tensor(weight, device=device)).coef_
    there = sorel.SpectralRiskRegressor(risk="esrm:2", tol=1e-7).fit(X, y, weight)
    np.testing.assert_allclose(here, there.coef_, atol=1e-5)
    assert np.all(model.risk_weights_[weight == 0.0] == 0.0)
    np.testing.assert_allclose(model.predict(sparse).cpu(), model.predict(X), rtol=1e-12)


def test_a_constant_model_says_so(device, data):
    X, _, rng = data
    labels = torch.tensor(rng.integers(0, 2, 300), device=device)
    with pytest.warns(sorel.ConstantModelWarning, match="hardly depend on X"):
        model = sorel.SpectralRiskClassifier(risk="cvar:0.05").fit(
            torch.tensor(X, device=device), labels
        )
    assert model.constant_


def test_warm_start_and_refusals(device, data):
    X, y = on(device, *data[:2])
    model = sorel.SpectralRiskRegressor(risk="cvar:0.2", warm_start=True).fit(X, y)
    passes = model.n_passes_
    assert model.fit(X, y).n_passes_ <= passes
    with pytest.raises(ValueError, match=r"fit_intercept='mean' centres X.*got Tensor"):
        sorel.SpectralRiskRegressor(fit_intercept="mean").fit(X, y)
    with pytest.raises(ValueError, match=r"expected \(300,\): one weight"):
        model.fit(X, y, sample_weight=[1.0])
    with pytest.raises(ValueError, match="fits one target"):
        model.fit(X, torch.stack([y, y], dim=1))
