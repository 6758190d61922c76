"""Inputs with a meaning beyond their numbers are refused by name wherever data are given."""

from __future__ import annotations

import datetime
import importlib
import math
import sys

import numpy as np
import pytest

import sorel
from sorel._lib.inputs import check_numbers
from sorel.metrics import cvar_loss, sample_losses, tail_report

N = 12
X = np.random.default_rng(0).normal(size=(N, 2))
Y = X[:, 0] + 1.0
REGRESSORS = [sorel.SpectralRiskRegressor, sorel.QuantileRegressor, sorel.RankRegressor]


def masked(values):
    mask = np.zeros(np.shape(values), dtype=bool)
    mask.ravel()[3] = True
    return np.ma.array(values, mask=mask)


BAD_X = {
    "masked": masked(X),
    "time spans": (100 * X).astype(np.int64).astype("m8[s]"),
    "dates": (100 * X).astype(np.int64).astype("M8[D]"),
    "texts": X.astype(str),
    "bytes": X.astype(str).astype("S"),
    "texts among numbers": np.where(np.eye(N, 2) > 0, "1.5", X.astype(object)),
    "time spans as objects": np.array([[datetime.timedelta(1), 2.0]] * N, dtype=object),
    "lists of texts": X.astype(str).tolist(),
    "complex": X + 1j,
    "complex among numbers": np.where(np.eye(N, 2) > 0, 2.0 - 3j, X.astype(object)),
    "beyond floats": np.where(np.eye(N, 2) > 0, -(7**500), X.astype(object)).tolist(),
}
BAD_Y = {name: (value if name == "masked" else np.asarray(value)[:, 0]) for name, value in
         BAD_X.items()}  # fmt: skip
BAD_Y["masked"] = masked(Y)


@pytest.mark.parametrize("kind", [list, np.asarray, "pandas", "nullable"])
def test_a_missing_target_is_named(kind):
    """NaN, None and NA, among numbers and among labels, by their place and with a remedy."""
    numbers, labels = Y.tolist(), np.where(Y > 1, "yes", "no").tolist()
    numbers[7], labels[7] = (None, None) if kind is list else (math.nan, math.nan)
    if kind == "nullable":
        pd = pytest.importorskip("pandas")
        numbers = pd.Series(numbers, dtype="Float64")
        labels = pd.Series(labels, dtype="string")
    elif kind == "pandas":
        pd = pytest.importorskip("pandas")
        numbers, labels = pd.Series(numbers), pd.Series(labels, dtype=object)
    elif kind is np.asarray:
        numbers, labels = np.asarray(numbers), np.asarray(labels, dtype=object)
    for estimator in (*REGRESSORS, sorel.SpectralRiskRegressorCV):
        with pytest.raises(ValueError, match=r"y has a missing value, y\[7\] = .*drop or impute"):
            estimator().fit(X, numbers)
    for estimator in (sorel.SpectralRiskClassifier, sorel.SpectralRiskClassifierCV):
        with pytest.raises(ValueError, match=r"y has a missing value, y\[7\] = .*drop or impute"):
            estimator().fit(X, labels)


@pytest.mark.parametrize("l2", [0, 0.0, -0.5, np.float64(0.0)])
def test_no_penalty_is_refused_with_what_to_use(l2):
    for model in (
        sorel.SpectralRiskRegressor(l2=l2),
        sorel.SpectralRiskRegressor(l2=l2, l1=0.1),
        sorel.SpectralRiskRegressor(l2=l2, positive=True),
        sorel.SpectralRiskRegressorCV(l2s=[0.1, l2]),
    ):
        with pytest.raises(ValueError, match=r"l2 must be .* above 0.* got .*; use l2='auto'"):
            model.fit(X, Y)


@pytest.mark.parametrize("what", BAD_X)
def test_such_rows_are_refused(what):
    bad = BAD_X[what]
    with pytest.raises(ValueError, match="X"):
        sorel.Problem(bad, Y)
    with pytest.raises(ValueError, match="X"):
        sorel.path(bad, Y, risks=["cvar:0.5"])
    for kind in REGRESSORS:
        with pytest.raises(ValueError, match="X"):
            kind().fit(bad, Y)
    with pytest.raises(ValueError, match="X"):
        sorel.SpectralRiskClassifier().fit(bad, Y > 1)
    with pytest.raises(ValueError, match="R "):
        sorel.SpectralRiskPortfolio().fit(bad)
    with pytest.raises(ValueError, match="X"):
        sorel.SpectralRiskRegressor().fit(X, Y).predict(bad)


@pytest.mark.parametrize("what", BAD_Y)
def test_such_targets_are_refused(what):
    bad = BAD_Y[what]
    with pytest.raises(ValueError, match="y"):
        sorel.Problem(X, bad)
    for kind in REGRESSORS:
        with pytest.raises(ValueError, match="y"):
            kind().fit(X, bad)


@pytest.mark.parametrize("what", [name for name in BAD_Y if name != "dates"])
def test_such_weights_are_refused(what):
    bad = BAD_Y[what]
    with pytest.raises(ValueError, match="sample_weight"):
        sorel.Problem(X, Y, sample_weight=bad)
    for kind in REGRESSORS:
        with pytest.raises(ValueError, match="sample_weight"):
            kind().fit(X, Y, bad)
    with pytest.raises(ValueError, match="sample_weight"):
        sorel.SpectralRiskPortfolio().fit(X, sample_weight=bad)
    with pytest.raises(ValueError, match="sample_weight"):
        tail_report(Y, Y, sample_weight=bad)


@pytest.mark.parametrize(("sign", "power"), [(1, 700), (-1, 700), (1, 10_000)])
def test_integers_beyond_floats_are_named_with_a_remedy(sign, power):
    bad = [1, sign * 3**power, 2.5]
    shown = r"about -?\d\.\d+e\+\d+.*; divide"
    with pytest.raises(ValueError, match=f"y holds .*{shown}"):
        sorel.SpectralRiskRegressor().fit(X[:3], bad)
    with pytest.raises(ValueError, match=f"y_true holds .*{shown}"):
        sample_losses(bad, Y[:3])
    with pytest.raises(ValueError, match=f"y_true holds .*{shown}"):
        sample_losses(bad, Y[:3], "absolute")
    with pytest.raises(ValueError, match=f"losses holds .*{shown}"):
        sorel.CVaR(0.5)(bad)
    with pytest.raises(ValueError, match=f"sample_weight holds .*{shown}"):
        sorel.CVaR(0.5)([1.0, 2.0, 3.0], sample_weight=bad)
    # The largest float is an integer, and one of them.
    assert sorel.Mean()([int(sys.float_info.max), 0]) == sys.float_info.max / 2


def test_masks_are_refused_in_metrics_risks_and_projections():
    for function in (sample_losses, cvar_loss):
        with pytest.raises(ValueError, match="y_true"):
            function(masked(Y), Y)
        with pytest.raises(ValueError, match="y_pred"):
            function(Y, masked(Y))
    with pytest.raises(ValueError, match="losses"):
        sorel.CVaR(0.5)(masked(Y))
    with pytest.raises(ValueError, match="z"):
        sorel.project_permutahedron(masked(Y), sorel.CVaR(0.5))
    with pytest.raises(ValueError, match="y"):
        sorel.SpectralRiskClassifier().fit(X, masked(Y > 1))


def test_masks_that_mask_nothing_pass():
    whole = np.ma.array(X)
    assert sorel.Problem(whole, np.ma.array(Y)).objective([1.0, 0.0]) > 0
    model = sorel.SpectralRiskRegressor().fit(whole, np.ma.array(Y))
    assert (model.predict(whole) == model.predict(X)).all()


def test_numbers_in_any_dress_pass():
    for values in (
        X.astype(object),
        X.tolist(),
        X.astype(np.float16),
        X > 0,
        3,
        None,
        [[1], [2, 3]],
    ):
        check_numbers(values, "X")
    assert sorel.Problem(X.astype(object), Y.tolist()).n_features == 2
    labels = np.where(Y > 1, "yes", "no")
    assert set(sorel.SpectralRiskClassifier().fit(X, labels).classes_) == {"no", "yes"}


def test_columns_of_pandas_are_named():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    table = pd.DataFrame(X, columns=["a", "b"])
    spans = table.assign(b=pd.to_timedelta(np.arange(N), unit="h"))
    texts = table.assign(b=[str(value) for value in Y])
    dates = table.assign(b=pd.date_range("2024-01-01", periods=N))
    for bad, words in ((spans, "time spans"), (texts, "texts"), (dates, "dates")):
        with pytest.raises(ValueError, match=rf"column 'b' of X holds .*{words}"):
            sorel.SpectralRiskRegressor().fit(bad, Y)
        with pytest.raises(ValueError, match="y holds"):
            sorel.SpectralRiskRegressor().fit(table, bad["b"])
    assert sorel.SpectralRiskRegressor().fit(table.astype("Float64"), Y).n_features_in_ == 2


def test_columns_of_polars_are_named_and_lazy_tables_refused():
    pl = pytest.importorskip("polars", reason="polars is an extra")
    table = pl.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    spans = table.with_columns(b=pl.Series([datetime.timedelta(hours=i) for i in range(N)]))
    texts = table.with_columns(b=pl.Series([str(value) for value in Y]))
    for bad in (spans, texts):
        with pytest.raises(ValueError, match="column 'b' of X"):
            sorel.SpectralRiskRegressor().fit(bad, Y)
    fitted = sorel.SpectralRiskRegressor().fit(table, Y)
    with pytest.raises(TypeError, match="LazyFrame"):
        sorel.SpectralRiskRegressor().fit(table.lazy(), Y)
    with pytest.raises(TypeError, match="LazyFrame"):
        fitted.predict(table.lazy())
    with pytest.raises(TypeError, match="LazyFrame"):
        sorel.Problem(table.lazy(), Y)


def test_a_missing_torch_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "sorel.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'needs torch .* pip install "sorel\[torch\]"'):
        importlib.import_module("sorel.torch")
