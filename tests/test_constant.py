"""Fits that end at the constant model say so, and say what to do; others keep silent."""

import warnings

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sorel
from sorel import ConstantModelWarning, SpectralRiskClassifier, SpectralRiskRegressor
from sorel.datasets import BUNDLED_DATASETS, PAPER_DATASETS, load_bundled, load_paper_dataset
from sorel.estimators.constant_model import sample_rows
from sorel.rows import open_rows, write_blocks


@pytest.mark.parametrize("n", [300, 12_500])
def test_a_sample_has_rows_and_their_targets(n, tmp_path):
    X, y = np.arange(2.0 * n).reshape(n, 2), np.arange(n)
    write_blocks(tmp_path / "X", X)
    for home in (X, open_rows(tmp_path / "X")):
        part, targets, weight = sample_rows(home, y, y + 1.0)
        np.testing.assert_array_equal(part, X[targets])
        np.testing.assert_array_equal(weight, targets + 1.0)
        assert len(np.unique(targets)) == len(targets) == min(n, 10_000)


def noisy(n=4000, d=5, seed=0, noise=1.5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] + noise * rng.logistic(size=n) > 0, "yes", "no")


@pytest.mark.parametrize("risk", ["cvar:0.1", "cvar:0.5", "esrm:3", "extremile:4", "max"])
def test_noisy_labels_are_reported(risk):
    X, y = noisy()
    with pytest.warns(ConstantModelWarning, match="constant.*starts to learn at about") as seen:
        model = SpectralRiskClassifier(risk).fit(X, y)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert model.constant_
    assert "constant" in model.status_
    # It is the optimum all the same, and certified: nothing beats log 2 everywhere.
    assert model.converged_
    assert model.objective_ == pytest.approx(np.log(2), rel=1e-3)
    # The level that is named learns.
    level = str(seen[0].message).rpartition("about ")[2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SpectralRiskClassifier(level).fit(X, y)
    assert not model.constant_
    assert model.score(X, y) > 0.6


def test_the_share_of_uniform_weights_that_balances_the_classes_decides():
    """One feature that tells two classes of equal size apart, but for a share of wrong labels.

    A weighting with cap 1 / (alpha n) can cancel the gradient at the constant model if the wrong
    labels carry as much of it as the right ones: alpha <= 2 (share of wrong labels).
    """
    n = 1000
    x = np.where(np.arange(n) % 2, 1.0, -1.0)
    y = x.copy()
    y[: n // 5] *= -1  # a fifth, half of each class
    X = x[:, None]
    for alpha, constant in ((0.3, True), (0.38, True), (0.45, False), (0.6, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant on purpose
            model = SpectralRiskClassifier(sorel.CVaR(alpha), l2=1e-6).fit(X, y)
        assert model.constant_ == constant
    with pytest.warns(ConstantModelWarning, match=r"about cvar:0\.4\d?$"):
        SpectralRiskClassifier("cvar:0.1", l2=1e-6).fit(X, y)


@pytest.mark.parametrize("name", [name for name in BUNDLED_DATASETS if name != "diabetes"])
@pytest.mark.parametrize("risk", ["mean", "esrm:2", "cvar:0.5", "cvar:0.1"])
def test_silence_on_measured_classes(name, risk):
    X, y = load_bundled(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", sorel.TailSizeWarning)  # sets are small
        model = make_pipeline(StandardScaler(), SpectralRiskClassifier(risk)).fit(X, y)[-1]
    assert not model.constant_


@pytest.mark.parametrize("name", PAPER_DATASETS)
@pytest.mark.parametrize("risk", ["mean", "cvar:0.5", "cvar:0.01", "max"])
def test_silence_on_measured_numbers(name, risk):
    X, y = load_paper_dataset(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", sorel.TailSizeWarning)  # sets are small
        if risk in ("cvar:0.01", "max"):
            warnings.simplefilter("ignore", sorel.MeanShiftWarning)
        assert not SpectralRiskRegressor(risk).fit(X, y).constant_


def test_a_heavy_penalty_is_another_matter():
    X, y = noisy(500)
    numbers = X @ np.arange(5.0)
    for model, target in (
        (SpectralRiskClassifier("mean", l2=1e6), y),
        (SpectralRiskRegressor("cvar:0.5", l2=1e6), numbers),
        (SpectralRiskRegressor("mean", l1=1e6), numbers),
    ):
        with pytest.warns(ConstantModelWarning, match="constant.*lower l2 or l1"):
            model.fit(X, target)
        assert model.constant_


def test_constant_targets_and_unfinished_fits_are_no_surprise():
    X, y = noisy(500)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConstantModelWarning)
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)  # equal targets
        assert not SpectralRiskRegressor().fit(X, np.full(500, 3.0)).constant_
        model = SpectralRiskClassifier("cvar:0.1", max_passes=1, tol=1e-9).fit(X, y)
    assert not model.converged_
    assert not model.constant_


@pytest.mark.parametrize("kind", ["classes", "weights", "disk"])
def test_other_kinds_of_data(kind, tmp_path):
    X, y = noisy(3000)
    rng, weight = np.random.default_rng(1), None
    if kind == "classes":
        y = np.where(rng.random(3000) < 0.3, "maybe", y)
    elif kind == "weights":
        weight = rng.integers(0, 3, 3000)
    else:
        X = write_blocks(tmp_path / "blocks", X, rows_per_block=700)
    with pytest.warns(ConstantModelWarning, match="starts to learn|mean"):
        SpectralRiskClassifier("cvar:0.05").fit(X, y, sample_weight=weight)
