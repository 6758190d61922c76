"""What tensors are taken, and what is said about the others."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import sorel
from sorel._lib.devices import as_tensor, is_tensor


@pytest.fixture
def data(device):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = X @ np.ones(3) + rng.standard_normal(40)
    return torch.tensor(X, device=device), torch.tensor(y, device=device)


def test_integers_and_half_precision_are_refused(data):
    X, y = data
    for kind in (torch.int64, torch.bool, torch.float16, torch.bfloat16):
        with pytest.raises(TypeError, match=rf"X must be float64 or float32, got {kind}.*double"):
            sorel.Problem(X.to(kind), y)
    assert sorel.solve(sorel.Problem(X, y.round().long())).converged


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_row_of_a_value_that_is_not_finite_is_named(data, sparse, bad):
    X, y = data
    X[17, 2] = bad
    with pytest.raises(ValueError, match=rf"not finite: X\[17, 2\] = {bad}"):
        sorel.Problem(X.to_sparse_csr() if sparse else X, y)
    X[17, 2] = 0.0
    y[5] = bad
    with pytest.raises(ValueError, match=rf"not finite: y\[5\] = {bad}"):
        sorel.Problem(X, y)
    with pytest.raises(ValueError, match=rf"y\[5\] = {bad}"):
        sorel.SpectralRiskRegressor().fit(X, y)


def test_two_devices_are_named(data):
    X, _ = data
    elsewhere = torch.empty(40, device="meta")
    with pytest.raises(ValueError, match=rf"X is on {X.device} and y on meta; move one of them"):
        sorel.Problem(X, elsewhere)
    with pytest.raises(ValueError, match="and y on meta"):
        sorel.SpectralRiskRegressor().fit(X, elsewhere)
    host = X.cpu().numpy()
    with pytest.raises(ValueError, match="X is in host memory and y on meta"):
        sorel.Problem(host, elsewhere)
    with pytest.raises(ValueError, match="X is in host memory and y on meta"):
        sorel.SpectralRiskRegressor().fit(host, elsewhere)


def test_gradients_are_no_part_of_a_fit(data):
    X, y = data
    X.requires_grad_()
    y.requires_grad_()
    result = sorel.solve(sorel.Problem(X, y))
    assert result.converged
    model = sorel.SpectralRiskRegressor().fit(X, y)
    assert not model.predict(X).requires_grad
    assert X.grad is None


def test_shapes(data):
    X, y = data
    with pytest.raises(ValueError, match=r"two-dimensional, got shape \(40,\); reshape"):
        sorel.Problem(X[:, 0], y)
    with pytest.raises(ValueError, match=r"X is empty: shape \(0, 3\)"):
        sorel.Problem(X[:0], y[:0])
    with pytest.raises(ValueError, match="X has 40 rows but y has 39 values"):
        sorel.Problem(X, y[:-1])
    with pytest.raises(ValueError, match=r"y must be one-dimensional, got shape \(40, 2\)"):
        sorel.Problem(X, torch.stack([y, y], dim=1))
    plain = sorel.solve(sorel.Problem(X, y)).objective
    assert sorel.solve(sorel.Problem(X, y[:, None])).objective == plain
    # Rows that do not follow each other are copied, columns too.
    assert sorel.solve(sorel.Problem(X.T.contiguous().T, y)).objective == plain
    assert sorel.solve(sorel.Problem(X, y.cpu().numpy())).objective == plain


def test_targets_of_counts_and_amounts(data):
    X, y = data
    with pytest.raises(ValueError, match=r"poisson loss takes counts .* got y\[\d+\] = -"):
        sorel.Problem(X, y, loss="poisson")
    with pytest.raises(ValueError, match="y is 0 everywhere"):
        sorel.Problem(X, 0 * y, loss="poisson")
    with pytest.raises(ValueError, match=r"gamma loss takes amounts > 0, got y\[0\] = 0"):
        sorel.Problem(X, 0 * y, loss="gamma")


def test_labels(data):
    X, y = data
    codes = (y > 0).long()
    problem = sorel.Problem(X, 3 + 4 * codes, loss="logistic")
    np.testing.assert_array_equal(problem.classes, [3, 7])
    with pytest.raises(ValueError, match="only one class"):
        sorel.Problem(X, 0 * codes, loss="logistic")
    with pytest.raises(ValueError, match="takes two classes, y has 3"):
        sorel.Problem(X, torch.arange(40, device=X.device) % 3, loss="logistic")
    with pytest.raises(ValueError, match="different real numbers"):
        sorel.Problem(X, y, loss="multinomial")
    texts = np.where(codes.cpu().numpy() == 1, "up", "down")
    assert sorel.Problem(X, texts, loss="logistic").classes.tolist() == ["down", "up"]


def test_sparse_layouts(data):
    X, y = data
    plain = sorel.solve(sorel.Problem(X, y)).objective
    for made in (X.to_sparse_csr(), X.to_sparse(), X.to_sparse_csc()):
        assert sorel.solve(sorel.Problem(made, y)).objective == pytest.approx(plain, rel=1e-6)


def test_torch_is_loaded_by_nobody_who_has_no_tensors():
    code = (
        "import sys, sorel, numpy as np; X = np.eye(3);"
        "sorel.SpectralRiskRegressor().fit(X, X[0]).predict(X); assert 'torch' not in sys.modules;"
        "assert sorel.torch.TensorEngine"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


class OnDevice:
    """An array of another library on a CUDA device, for all that DLPack says."""

    def __init__(self, shape=(4, 2)):
        self.shape = shape

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **more):
        raise AssertionError("not to be asked without a device")


def test_arrays_of_other_libraries(monkeypatch):
    array = OnDevice()
    assert is_tensor(array)
    assert not is_tensor(np.zeros(3))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"this torch .* has no CUDA; install a CUDA build"):
        as_tensor(array)
    with pytest.raises(RuntimeError, match="has no CUDA"):
        sorel.Problem(array, np.zeros(4))
    with pytest.raises(TypeError, match="SpectralRiskRegressorCV does not take data on a device"):
        sorel.SpectralRiskRegressorCV().fit(array, np.zeros(4))


def test_cupy_arrays_are_taken_without_a_copy(device):
    if device.type != "cuda":
        pytest.skip("CuPy needs a CUDA device")
    cupy = pytest.importorskip("cupy", reason="CuPy is nobody's requirement")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 3))
    y = X @ np.ones(3) + rng.standard_normal(500)
    model = sorel.SpectralRiskRegressor(risk="cvar:0.2").fit(cupy.asarray(X), cupy.asarray(y))
    there = sorel.SpectralRiskRegressor(risk="cvar:0.2").fit(X, y)
    np.testing.assert_allclose(model.coef_, there.coef_, rtol=1e-6)
    assert isinstance(model.predict(cupy.asarray(X)), cupy.ndarray)
    classifier = sorel.SpectralRiskClassifier().fit(cupy.asarray(X), cupy.asarray(y > 0))
    assert isinstance(classifier.predict_proba(cupy.asarray(X)), cupy.ndarray)
