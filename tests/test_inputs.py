"""Inputs with a meaning beyond their numbers are refused by name wherever data are given."""

import datetime
import importlib
import math
import sys

import numpy as np
import pytest

import sorel
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


@pytest.mark.parametrize("kind", ["list", "array", "pandas", "nullable"])
def test_a_missing_target_is_named(kind):
    """NaN, None and NA, among numbers and among labels, by their place and with a remedy."""
    numbers, labels = Y.tolist(), np.where(Y > 1, "yes", "no").tolist()
    numbers[7] = labels[7] = None if kind == "list" else math.nan
    if kind == "array":
        numbers, labels = np.asarray(numbers), np.asarray(labels, dtype=object)
    elif kind != "list":
        pd = pytest.importorskip("pandas", reason="pandas is an extra")
        kinds = ("Float64", "string") if kind == "nullable" else (None, object)
        numbers, labels = map(pd.Series, (numbers, labels), [None] * 2, kinds)
    cases = [(estimator, numbers) for estimator in (*REGRESSORS, sorel.SpectralRiskRegressorCV)]
    cases += [(sorel.SpectralRiskClassifier, labels), (sorel.SpectralRiskClassifierCV, labels)]
    for estimator, y in cases:
        with pytest.raises(ValueError, match=r"y has a missing value, y\[7\] = .*drop or impute"):
            estimator().fit(X, y)


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
def test_such_rows_targets_and_weights_are_refused(what):
    rows, values = BAD_X[what], BAD_Y[what]
    fitted = sorel.SpectralRiskRegressor().fit(X, Y)
    calls = [
        ("X", lambda: sorel.Problem(rows, Y)),
        ("X", lambda: sorel.path(rows, Y, risks=["cvar:0.5"])),
        ("X", lambda: sorel.SpectralRiskClassifier().fit(rows, Y > 1)),
        ("R ", lambda: sorel.SpectralRiskPortfolio().fit(rows)),
        ("X", lambda: fitted.predict(rows)),
        ("y", lambda: sorel.Problem(X, values)),
    ]
    for kind in REGRESSORS:
        calls += [("X", lambda kind=kind: kind().fit(rows, Y))]
        calls += [("y", lambda kind=kind: kind().fit(X, values))]
    if what == "masked":
        calls += [
            ("y_true", lambda: sample_losses(values, Y)),
            ("y_pred", lambda: cvar_loss(Y, values)),
            ("losses", lambda: sorel.CVaR(0.5)(values)),
            ("z", lambda: sorel.project_permutahedron(values, sorel.CVaR(0.5))),
            ("y", lambda: sorel.SpectralRiskClassifier().fit(X, masked(Y > 1))),
        ]
    if what != "dates":
        calls += [
            ("sample_weight", lambda: sorel.Problem(X, Y, sample_weight=values)),
            ("sample_weight", lambda: sorel.SpectralRiskRegressor().fit(X, Y, values)),
            ("sample_weight", lambda: sorel.QuantileRegressor().fit(X, Y, values)),
            ("sample_weight", lambda: sorel.SpectralRiskPortfolio().fit(X, sample_weight=values)),
            ("sample_weight", lambda: tail_report(Y, Y, sample_weight=values)),
        ]
    for name, call in calls:
        with pytest.raises(ValueError, match=name):
            call()


@pytest.mark.parametrize(("sign", "power"), [(1, 700), (-1, 700), (1, 10_000)])
def test_integers_beyond_floats_are_named_with_a_remedy(sign, power):
    bad = [1, sign * 3**power, 2.5]
    for name, call in (
        ("y", lambda: sorel.SpectralRiskRegressor().fit(X[:3], bad)),
        ("y_true", lambda: sample_losses(bad, Y[:3])),
        ("y_true", lambda: sample_losses(bad, Y[:3], "absolute")),
        ("losses", lambda: sorel.CVaR(0.5)(bad)),
        ("sample_weight", lambda: sorel.CVaR(0.5)([1.0, 2.0, 3.0], sample_weight=bad)),
    ):
        with pytest.raises(ValueError, match=rf"{name} holds .*about -?\d\.\d+e\+\d+.*; divide"):
            call()
    # The largest float is an integer, and one of them.
    assert sorel.Mean()([int(sys.float_info.max), 0]) == sys.float_info.max / 2


def test_numbers_in_any_dress_pass():
    whole = np.ma.array(X)
    model = sorel.SpectralRiskRegressor().fit(whole, np.ma.array(Y))
    assert (model.predict(whole) == model.predict(X)).all()
    for values in (X.astype(object), X.tolist(), X.astype(np.float16), X > 0, whole):
        assert sorel.Problem(values, Y.tolist()).n_features == 2
    labels = np.where(Y > 1, "yes", "no")
    assert set(sorel.SpectralRiskClassifier().fit(X, labels).classes_) == {"no", "yes"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_tables_are_named_and_lazy_tables_refused(library):
    tables = pytest.importorskip(library, reason=f"{library} is an extra")
    columns = {"a": X[:, 0], "b": X[:, 1]}
    day = datetime.datetime(2024, 1, 1)
    for bad, words in (
        ([datetime.timedelta(hours=i) for i in range(N)], "time spans"),
        ([str(value) for value in Y], "texts"),
        ([day + datetime.timedelta(i) for i in range(N)], "dates"),
    ):
        table = tables.DataFrame(columns | {"b": bad})
        with pytest.raises(ValueError, match=rf"column 'b' of X holds .*{words}"):
            sorel.SpectralRiskRegressor().fit(table, Y)
        with pytest.raises(ValueError, match="y holds"):
            sorel.SpectralRiskRegressor().fit(X, table["b"])
    table = tables.DataFrame(columns)
    fitted = sorel.SpectralRiskRegressor().fit(table, Y)
    if library == "pandas":
        assert sorel.SpectralRiskRegressor().fit(table.astype("Float64"), Y).n_features_in_ == 2
        return
    calls = (lambda rows: fitted.fit(rows, Y), fitted.predict, lambda rows: sorel.Problem(rows, Y))
    for call in calls:
        with pytest.raises(TypeError, match="LazyFrame"):
            call(table.lazy())


def test_a_missing_torch_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "sorel.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'needs torch .* pip install "sorel\[torch\]"'):
        importlib.import_module("sorel.torch")
