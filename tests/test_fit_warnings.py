"""What a fit says of a tail too small for its model, and of a mean prediction that has moved."""

import warnings

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import MeanShiftWarning, SpectralRiskRegressor, TailSizeWarning
from sorel.rows import open_rows, write_blocks

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3))
SKEWED = X @ [1.0, 2.0, 3.0] + rng.exponential(scale=3.0, size=400)
OFFSET = np.log(rng.uniform(0.1, 10.0, size=400))
COUNTS = rng.poisson(np.exp(0.5 * X[:, 0] - 3.0 + OFFSET)).astype(float)
RARE = np.where(X[:, 0] + rng.logistic(size=400) > 2.0, "rare", "usual")


def said(fit):
    """Kinds and words of what a fit warns of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit()
    return {warning.category: str(warning.message) for warning in seen}


def on_disk(folder):
    write_blocks(folder / "X", X)
    return open_rows(folder / "X")


HOMES = {"memory": lambda _: X, "sparse": lambda _: scipy.sparse.csr_array(X), "disk": on_disk}


@pytest.mark.parametrize("home", HOMES)
def test_predictions_that_are_off_on_average(home, tmp_path):
    rows = HOMES[home](tmp_path)
    model = SpectralRiskRegressor("cvar:0.1")
    words = said(lambda: model.fit(rows, SKEWED))[MeanShiftWarning]
    shift = np.mean(model.predict(X) - SKEWED)
    assert f"predictions are {shift:.3g} above the targets" in words
    assert f"{shift / SKEWED.std():.0%} of their standard deviation" in words
    assert not said(lambda: model.set_params(fit_intercept="mean").fit(rows, SKEWED))
    assert not said(lambda: model.set_params(fit_intercept=True, risk="mean").fit(rows, SKEWED))
    classifier = sorel.SpectralRiskClassifier("esrm:2")
    words = said(lambda: classifier.fit(rows, RARE))[MeanShiftWarning]
    mean = classifier.predict_proba(X)[:, 1].mean()
    assert f"of 'usual' is {mean:.2f}, and its share of the rows" in words
    assert f"share of the rows {np.mean(RARE == 'usual'):.2f}:" in words
    # Targets that differ by rounding are the same.
    equal = said(lambda: model.set_params(risk="cvar:0.5").fit(rows, 1e6 + 1e-3 * SKEWED))
    assert MeanShiftWarning not in equal


def test_of_several_classes_the_one_that_is_furthest_off():
    labels = np.select([RARE == "rare", X[:, 1] > 1.0], ["c", "b"], "a")
    model = sorel.SpectralRiskClassifier("esrm:2")
    words = said(lambda: model.fit(X, labels))[MeanShiftWarning]
    mean = model.predict_proba(X).mean(axis=0)
    share = np.mean(labels[:, None] == ["a", "b", "c"], axis=0)
    k = np.argmax(np.abs(mean - share))
    assert f"'{'abc'[k]}' is {mean[k]:.2f}, and its share of the rows {share[k]:.2f}:" in words


def test_rates_are_off_by_a_share_of_their_mean():
    model = SpectralRiskRegressor("cvar:0.1", loss="poisson")
    words = said(lambda: model.fit(X, COUNTS, offset=OFFSET))[MeanShiftWarning]
    ratio = model.predict(X, offset=OFFSET).sum() / COUNTS.sum()
    assert f"{ratio - 1:.0%} of their mean" in words
    assert "fit_intercept" not in words


def test_tails_too_small_for_their_models():
    y = X @ [1.0, 2.0, 3.0] + rng.uniform(-1, 1, size=400)
    few = said(lambda: SpectralRiskRegressor("cvar:0.02").fit(X, y))
    assert "holds 8 of 400 rows, fewer than 10:" in few[TailSizeWarning]
    wide = np.hstack([X, rng.normal(size=(400, 50))])
    for rows in (wide, scipy.sparse.csr_array(wide)):
        many = said(lambda rows=rows: SpectralRiskRegressor("cvar:0.1").fit(rows, y))
        assert "holds 40 of 400 rows, fewer than the 54 parameters" in many[TailSizeWarning]
    # Coefficients that are 0 are no parameters.
    sparse = SpectralRiskRegressor("cvar:0.1", l1=0.5)
    assert TailSizeWarning not in said(lambda: sparse.fit(wide, y))
    assert not said(lambda: SpectralRiskRegressor("cvar:0.1").fit(X, y))


def test_searches_and_paths_do_not_warn_of_each_fit():
    risks = ["cvar:0.01", "cvar:0.02"]
    search = sorel.SpectralRiskRegressorCV(risks, mean_slack=None, refit=False)
    assert not said(lambda: search.fit(X, SKEWED))
    assert not said(lambda: sorel.path(X, SKEWED, risks=risks))
