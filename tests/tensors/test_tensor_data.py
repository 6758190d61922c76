"""Tensors in, tensors out: what is taken, what is said about the rest, and where results live."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import sorel


@pytest.fixture
def data(regression):
    return regression(40, 3)


def stacked(y):
    return torch.stack([y, y], dim=1)


REFUSED = [
    *(
        (lambda X, y, kind=kind: (X.to(kind), y), "squared", TypeError, f"float32, got {kind}")
        for kind in (torch.int64, torch.bool, torch.float16, torch.bfloat16)
    ),
    (lambda X, y: (X[:, 0], y), "squared", ValueError, r"got shape \(40,\); reshape"),
    (lambda X, y: (X[:0], y[:0]), "squared", ValueError, r"X is empty: shape \(0, 3\)"),
    (lambda X, y: (X, y[:-1]), "squared", ValueError, "X has 40 rows but y has 39 values"),
    (lambda X, y: (X, stacked(y)), "squared", ValueError, r"one-dimensional, got shape \(40, 2\)"),
    (lambda X, y: (X, y + 1j), "squared", ValueError, "y must be real, got torch.complex128"),
    (lambda X, y: (X, y), "poisson", ValueError, r"takes counts .* got y\[\d+\] = -"),
    (lambda X, y: (X, 0 * y.abs()), "gamma", ValueError, r"takes amounts > 0, got y\[0\] = 0"),
    (lambda X, y: (X, 0 * y), "logistic", ValueError, "only one class"),
    (lambda X, y: (X, y.argsort() % 3), "logistic", ValueError, "takes two classes, y has 3"),
    (lambda X, y: (X, y), "multinomial", ValueError, "different real numbers"),
]


@pytest.mark.parametrize(("change", "loss", "error", "words"), REFUSED, ids=range(len(REFUSED)))
def test_bad_tensors_are_named(data, change, loss, error, words):
    with pytest.raises(error, match=words):
        sorel.Problem(*change(*data), loss=loss)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_place_of_a_value_that_is_not_finite_is_named(data, sparse, bad):
    X, y = data
    model = sorel.SpectralRiskRegressor().fit(X, y)
    X[17, 2] = bad
    X = X.to_sparse_csr() if sparse else X
    for use in (lambda: sorel.Problem(X, y), lambda: model.predict(X)):
        with pytest.raises(ValueError, match=rf"not finite: X\[17, 2\] = {bad}"):
            use()
    y[5] = bad
    for use in (sorel.Problem, sorel.SpectralRiskRegressor().fit):
        with pytest.raises(ValueError, match=rf"not finite: y\[5\] = {bad}"):
            use(data[0].nan_to_num(0.0, 0.0), y)


def test_two_devices_are_named(data):
    X, _ = data
    elsewhere = torch.empty(40, device="meta")
    for use in (sorel.Problem, sorel.SpectralRiskRegressor().fit):
        with pytest.raises(ValueError, match=rf"X is on {X.device} and y on meta; move one"):
            use(X, elsewhere)
        with pytest.raises(ValueError, match="X is in host memory and y on meta"):
            use(X.cpu().numpy(), elsewhere)


def test_estimators_refuse_by_name(data):
    X, y = data
    model = sorel.SpectralRiskRegressor().fit(X, y)
    with pytest.raises(ValueError, match=r"fit_intercept='mean' centres X.*got Tensor"):
        sorel.SpectralRiskRegressor(fit_intercept="mean").fit(X, y)
    with pytest.raises(ValueError, match=r"expected \(40,\)"):
        model.fit(X, y, sample_weight=[1.0])
    with pytest.raises(ValueError, match="fits one target"):
        model.fit(X, stacked(y))
    with pytest.raises(ValueError, match="expecting 3 features"):
        model.predict(X[:, :2])


def test_layouts_and_kinds_of_the_same_data_are_one_problem(data):
    X, y = data
    plain = sorel.solve(sorel.Problem(X, y)).objective
    graph = X.clone().requires_grad_(), y.clone().requires_grad_()
    # Rows that do not follow each other in memory are copied.
    for same in ((X, y[:, None]), (X.T.contiguous().T, y), (X, y.cpu().numpy()), graph):
        assert sorel.solve(sorel.Problem(*same)).objective == plain
    for made in (X.to_sparse_csr(), X.to_sparse(), X.to_sparse_csc()):
        assert sorel.solve(sorel.Problem(made, y)).objective == pytest.approx(plain, rel=1e-6)
    assert sorel.solve(sorel.Problem(X, y.round().long())).converged
    assert not sorel.SpectralRiskRegressor().fit(*graph).predict(graph[0]).requires_grad


@pytest.mark.parametrize("kind", ["float64", "float32", "sparse"])
def test_regressor(regression, device, kind):
    X, y = regression(300, 4)
    X, y = torch.where(X > -1.0, X, 0.0), torch.exp(0.3 * X[:, 0]).round()
    X = X.float() if kind == "float32" else X
    given = X.to_sparse_csr() if kind == "sparse" else X
    weight = np.random.default_rng(1).integers(0, 3, 300).astype(float)
    settings = {"risk": "esrm:2", "loss": "poisson", "tol": 1e-6}
    here = sorel.SpectralRiskRegressor(**settings)
    here.fit(given, y, torch.tensor(weight, device=device))
    there = sorel.SpectralRiskRegressor(**settings).fit(X.cpu().numpy(), y.cpu().numpy(), weight)
    assert np.all(here.risk_weights_[weight == 0.0] == 0.0)
    for name in ("coef_", "intercept_", "objective_", "risk_weights_"):
        assert isinstance(getattr(here, name), (np.ndarray, float))
    # Both are within the same gap, which leaves the coefficients the root of it.
    assert here.objective_ == pytest.approx(there.objective_, rel=2e-6)
    np.testing.assert_allclose(here.coef_, there.coef_, atol=2e-3)
    predicted = here.predict(given)
    assert predicted.device == X.device
    assert predicted.dtype == torch.float64
    np.testing.assert_allclose(predicted.cpu(), here.predict(X.cpu().numpy()), rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("texts", [False, True])
def test_classifier(regression, device, classes, texts):
    tensor, _ = regression(300, 4)
    X = tensor.cpu().numpy()
    noise = np.random.default_rng(1).gumbel(size=(300, classes))
    y = (3.0 * X[:, :classes] + noise).argmax(axis=1)
    labels = np.array(["a", "b", "c"])[y] if texts else 10 + y
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


def test_torch_is_loaded_by_nobody_who_has_no_tensors():
    code = (
        "import sys, sorel, numpy as np; X = np.eye(3);"
        "sorel.SpectralRiskRegressor().fit(X, X[0]).predict(X); assert 'torch' not in sys.modules;"
        "assert sorel.torch.TensorEngine"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


class OnDevice:
    """An array of another library on a CUDA device, for all that DLPack says."""

    shape = (4, 2)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **more):
        raise AssertionError("not to be asked without a device")


def test_arrays_of_other_libraries_need_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"this torch .* has no CUDA; install a CUDA build"):
        sorel.Problem(OnDevice(), np.zeros(4))
    with pytest.raises(TypeError, match="SpectralRiskRegressorCV does not take data on a device"):
        sorel.SpectralRiskRegressorCV().fit(OnDevice(), np.zeros(4))


@pytest.mark.usefixtures("cuda_device")
def test_cupy_arrays_are_taken_without_a_copy(regression):
    cupy = pytest.importorskip("cupy", reason="CuPy is nobody's requirement")
    X, y = (part.cpu().numpy() for part in regression(500, 3))
    model = sorel.SpectralRiskRegressor(risk="cvar:0.2").fit(cupy.asarray(X), cupy.asarray(y))
    there = sorel.SpectralRiskRegressor(risk="cvar:0.2").fit(X, y)
    np.testing.assert_allclose(model.coef_, there.coef_, rtol=1e-6)
    assert isinstance(model.predict(cupy.asarray(X)), cupy.ndarray)
    classifier = sorel.SpectralRiskClassifier().fit(cupy.asarray(X), cupy.asarray(y > 0))
    assert isinstance(classifier.predict_proba(cupy.asarray(X)), cupy.ndarray)
