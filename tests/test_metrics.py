import pickle
import sys
import warnings
from functools import partial

import numpy as np
import pytest
from helpers import RISKS, make_data
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_absolute_error
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from test_estimators import classification

import sorel
from sorel import CVaR, Max, Mean, SpectralRiskClassifier, SpectralRiskRegressor, metrics
from sorel.losses import Huber
from sorel.metrics import (
    TailScorer,
    cvar_loss,
    get_scorer,
    make_tail_scorer,
    neg_cvar_10,
    sample_losses,
    spectral_risk_score,
    tail_difference,
    tail_report,
)

rng = np.random.default_rng(0)
TRUTH, PREDICTION = rng.normal(size=37), rng.normal(size=37)


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_score_is_the_weighted_sum_of_sorted_losses(risk):
    losses = np.sort(0.5 * (TRUTH - PREDICTION) ** 2)
    expected = risk.weights(len(losses)) @ losses
    assert spectral_risk_score(TRUTH, PREDICTION, risk) == pytest.approx(expected, rel=1e-12)
    if risk.spec is not None:
        assert spectral_risk_score(TRUTH, PREDICTION, risk.spec) == pytest.approx(expected)
    weight = rng.integers(0, 4, len(TRUTH))
    rows = np.repeat(np.arange(len(TRUTH)), weight)
    weighted = spectral_risk_score(TRUTH, PREDICTION, risk, sample_weight=weight)
    assert weighted == pytest.approx(spectral_risk_score(TRUTH[rows], PREDICTION[rows], risk))


@pytest.mark.parametrize("classes", [2, 3])
def test_losses_of_margins_and_probabilities(classes):
    X, y = classification(60, 5, classes)
    y = np.array(["b", "c", "a"])[y]
    model = LogisticRegression().fit(X, y)
    expected = log_loss(y, model.predict_proba(X))
    for loss, prediction in [
        ("log_loss", model.predict_proba(X)),
        ("logistic", model.decision_function(X)),
        ("multinomial", model.decision_function(X)),
    ]:
        assert spectral_risk_score(y, prediction, Mean(), loss) == pytest.approx(expected)
    # A fold that lacks a class needs to be told of it.
    rows = y != "c"
    shown = model.decision_function(X)[rows]
    if classes == 3:
        with pytest.raises(ValueError, match="labels="):
            sample_losses(y[rows], shown, "logistic")
    part = sample_losses(y[rows], shown, "logistic", labels=model.classes_)
    np.testing.assert_allclose(part, sample_losses(y, model.decision_function(X), "logistic")[rows])


def test_other_losses():
    mean = cvar_loss(TRUTH, PREDICTION, alpha=1.0, loss="absolute")
    assert mean == pytest.approx(mean_absolute_error(TRUTH, PREDICTION))
    np.testing.assert_array_equal(sample_losses(["a", "b"], ["a", "a"], "zero_one"), [0.0, 1.0])
    np.testing.assert_allclose(sample_losses([0.0, 0.0], [0.5, 3.0], Huber(1.0)), [0.125, 2.5])
    np.testing.assert_allclose(sample_losses([1, 2], [3, 4], lambda y, p: (p - y) ** 4), [16, 16])
    found = sample_losses([0, 1], [0.25, 0.25], "log_loss")
    np.testing.assert_allclose(found, -np.log([3 / 4, 1 / 4]))
    assert np.isfinite(sample_losses([0, 1], [1.0, 1.0], "log_loss")).all()


@pytest.mark.parametrize(("arguments", "message"), [
    (([], []), "non-empty"),
    (([1.0, 2.0], [1.0]), "agree"),
    (([1.0], [np.nan]), "NaN"),
    (([1.0, 2.0], [1.0, 2.0], "hinge"), "unknown loss"),
    (([0, 1], [[1.0, 2.0], [1.0, 2.0]], "squared_hinge"), "one margin"),
    (([0, 1], [1.0, 2.0], "logistic", [1, 2]), "label 0"),
    (([1.0, 2.0], [1.0, 2.0], lambda y, p: 1.0), "one value per sample"),
    ((np.ones((3, 2)), np.ones(3)), r"non-empty vector, got shape \(3, 2\)"),
    (([1.5, 2.5], np.ones((2, 2))), r"one prediction per sample, got y_pred of shape \(2, 2\)"),
    (([1.5, 2.5], np.ones((2, 1, 1))), r"y_pred has shape \(2, 1, 1\)"),
    (([0, 1], [0.5, 1.5], "log_loss"), "got values from 0.5 to 1.5; margins go with"),
    (([0, 1], [-0.1, 0.9], "log_loss"), "got values from -0.1 to 0.9; margins go with"),
    (([1.0, 2.0], [0.5, 0.0], "poisson"), r"above 0.* y_pred\[1\] = 0\.0"),
    (([1.0, 2.0], [-1.0, 1.0], "gamma"), r"above 0.* y_pred\[0\] = -1\.0"),
    (([1.0, 2.0], [1.0, np.nan], "gamma"), r"above 0.* y_pred\[1\] = nan"),
])  # fmt: skip
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sample_losses(*arguments)


def test_report_rows_are_the_groups(monkeypatch):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    groups = np.array(["north", "south"])[(PREDICTION > 0).astype(int)]
    weight = rng.integers(1, 4, len(TRUTH))
    report = tail_report(TRUTH, PREDICTION, groups, levels=(0.5, 0.1), sample_weight=weight)
    assert isinstance(report, pd.DataFrame)
    assert list(report.columns) == ["n", "mean", "cvar_0.5", "cvar_0.1", "worst", "bias"]
    losses = sample_losses(TRUTH, PREDICTION)
    for name in ("all", "north", "south"):
        part = (groups == name) | (name == "all")
        row = [Mean(), CVaR(0.5), CVaR(0.1), Max()]
        row = [part.sum(), *(risk(losses[part], weight[part]) for risk in row)]
        row.append(np.average((PREDICTION - TRUTH)[part], weights=weight[part]))
        np.testing.assert_allclose(report.loc[name].to_numpy(float), row)
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = tail_report(TRUTH, PREDICTION, groups, levels=(0.5, 0.1), sample_weight=weight)
    assert table["group"] == list(report.index) == ["all", "north", "south"]
    assert table["worst"] == report["worst"].tolist()


def test_report_of_other_models_and_intervals():
    names = ["a", "b"]
    y = np.repeat(names, [40, 80])
    p = np.column_stack([np.full(120, 0.5), np.full(120, 0.5)])
    better = np.column_stack([1 - 0.8 * (y == "b"), 0.8 * (y == "b")])
    options = {"levels": (0.5,), "loss": "log_loss", "interval": 0.9}
    found = tail_report(y, p, groups=y, against={"better": better}, **options)
    assert list(found.index) == ["all", "(better)", "a", "b"]
    np.testing.assert_allclose(found["bias"], [0.5 - 2 / 3, 0.8 * 2 / 3 - 2 / 3, 0.5, -0.5])
    assert (found["bias_low"] <= found["bias"] + 1e-12).all()
    assert (found["mean"] <= found["mean_high"] + 1e-12).all()
    assert "worst_low" not in found
    with pytest.warns(sorel.TailSizeWarning, match="of 50 rows in 'all'"):
        tail_report(TAILS[0], TAILS[1], levels=(0.05,), interval=0.9)
    with pytest.raises(ValueError, match="interval must lie between 0 and 1"):
        tail_report(TRUTH, PREDICTION, interval=95)


TAILS = rng.standard_t(4, size=(3, 50))


@pytest.mark.parametrize("risk", ["mean", "cvar:0.3", "esrm:2"])
@pytest.mark.parametrize("weighted", [False, True])
def test_difference_of_tails_is_a_paired_bootstrap(risk, weighted):
    """Against a plain loop over resamples, with standard errors by the jackknife."""
    weight = rng.integers(1, 4, 50).astype(float) if weighted else None
    y, a, b = TAILS[0], 0.3 * TAILS[1], 0.5 * TAILS[2] + 0.3
    score = partial(spectral_risk_score, risk=risk)

    def differ(rows):
        own = {"sample_weight": None if weight is None else weight[rows]}
        return score(y[rows], a[rows], **own) - score(y[rows], b[rows], **own)

    def studentised(rows):
        left_out = [differ(np.delete(rows, i)) for i in range(50)]
        return differ(rows), np.sqrt(49 * np.var(left_out))

    options = {"risk": risk, "sample_weight": weight, "n_resamples": 400}
    found = tail_difference(y, a, b, **options)
    estimate, error = studentised(np.arange(50))
    assert found.difference == pytest.approx(estimate)
    assert found.difference == pytest.approx(found.risk_a - found.risk_b)
    assert found.standard_error == pytest.approx(error, rel=0.1)
    draws = np.array([studentised(rng.integers(0, 50, 50)) for _ in range(150)])
    ratios = np.abs(draws[:, 0] - estimate) / draws[:, 1]
    assert found.high - estimate == pytest.approx(np.quantile(ratios, 0.95) * error, rel=0.35)
    assert estimate - found.low == pytest.approx(found.high - estimate)
    assert found.p_value == pytest.approx(np.mean(ratios >= abs(estimate) / error), abs=0.12)
    assert tail_difference(y, a, b, **options) == found
    assert (found.p_value > 0.05) == (found.low < 0 < found.high)
    turned = tail_difference(y, b, a, **options)
    assert (turned.difference, turned.p_value) == pytest.approx((-estimate, found.p_value))


def test_difference_of_tails_of_odd_models():
    same = tail_difference(TAILS[0], TAILS[1], TAILS[1], "cvar:0.5")
    assert (same.difference, same.interval, same.p_value) == (0.0, (0.0, 0.0), 1.0)
    # Losses of 2 and 1/2, resampled however.
    far = tail_difference(np.zeros(50), np.full(50, 2.0), np.ones(50), "cvar:0.5", n_resamples=9)
    assert (far.difference, far.interval, far.p_value) == (1.5, (1.5, 1.5), 0.1)
    y = TAILS[0] > 0
    p = 1 / (1 + np.exp(-TAILS[1:]))
    found = tail_difference(y, *p, "cvar:0.5", loss="log_loss")
    assert found.risk_a == cvar_loss(y, p[0], 0.5, loss="log_loss")
    with pytest.warns(sorel.TailSizeWarning, match="holds 5 of 50 rows: intervals"):
        tail_difference(*TAILS)
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        tail_difference(*TAILS, level=1.0)
    for wrong in (0, 2.5, "9"):
        with pytest.raises(ValueError, match=f"n_resamples must be .* above 0, got {wrong!r}"):
            tail_difference(*TAILS, n_resamples=wrong)


@pytest.mark.filterwarnings("ignore::sorel.TailSizeWarning")
def test_a_tail_of_one_row_has_no_interval():
    """Its influence is 0 in every sample, which is no certainty."""
    for risk in ("max", "cvar:0.01"):
        found = tail_difference(*TAILS, risk)
        assert found.difference != 0.0
        assert np.isnan([*found.interval, found.p_value, found.standard_error]).all()
    table = tail_report(*TAILS[:2], levels=0.01, interval=0.9)
    assert np.isnan(table["cvar_0.01_low"]["all"])
    assert table["mean_low"]["all"] > 0.0
    with pytest.raises(TypeError, match="against must map names to predictions"):
        tail_report(*TAILS[:2], against=TAILS[2])


@pytest.mark.parametrize(
    ("loss", "has_bias"),
    [(None, True), ("absolute", True), ("huber", True), ("zero_one", False), ("linear", False),
     ("logistic", False), (lambda y, p: np.abs(y - p), False)],
)  # fmt: skip
def test_predictions_that_are_no_numbers_have_no_bias(loss, has_bias):
    report = tail_report([1.0, 3.5], [2.0, 3.0], loss=loss)
    assert ("bias" in report) == has_bias
    assert not has_bias or report["bias"]["all"] == 0.25
    assert "bias" not in tail_report(["a", "b", "c"], np.full((3, 3), 1 / 3), loss="log_loss")


def test_report_of_odd_groups():
    mixed = tail_report([0, 0, 0], [1, 2, 3], groups=np.array([None, "a", 1], dtype=object))
    assert sorted(mixed.index) == ["1", "None", "a", "all"]
    missing = tail_report([0, 0, 0], [1, 2, 3], groups=[1.0, np.nan, np.nan])
    assert list(missing["n"]) == [3, 1, 2]
    none = tail_report([0, 0], [1, 2], groups=["a", "b"], sample_weight=[1, 0])
    assert np.isnan(list(none["mean"])[2])
    for name, short in (("groups", ["a"]), ("sample_weight", [1])):
        with pytest.raises(ValueError, match=name):
            tail_report([0, 0], [1, 2], **{name: short})


def test_scorer_of_a_regressor():
    X, y = make_data("squared", 60, 3, 0)
    model = Ridge().fit(X, y)
    for weight in (None, np.arange(60.0)):
        tail = cvar_loss(y, model.predict(X), alpha=0.1, sample_weight=weight)
        assert neg_cvar_10(model, X, y, sample_weight=weight) == -tail
    absolute = make_tail_scorer("max", loss="absolute")
    assert absolute(model, X, y) == -np.abs(y - model.predict(X)).max()
    grid, scoring = {"risk__alpha": [0.1, 1.0]}, {"tail": neg_cvar_10, "r2": "r2"}
    search = GridSearchCV(SpectralRiskRegressor(), grid, scoring=scoring, refit="tail", cv=3)
    assert search.fit(X, y).best_score_ < 0
    again = pickle.loads(pickle.dumps(neg_cvar_10))
    assert repr(clone(again, safe=False)) == repr(neg_cvar_10) == "TailScorer(CVaR(alpha=0.1))"


@pytest.mark.parametrize("classes", [2, 3])
def test_scorer_of_a_classifier(classes):
    X, y = classification(80, 5, classes)
    y = np.array(["b", "c", "a"])[y]
    model = SpectralRiskClassifier("mean").fit(X, y)
    margins = sample_losses(y, model.decision_function(X), "logistic")
    assert neg_cvar_10(model, X, y) == pytest.approx(-CVaR(0.1)(margins))
    wrapped = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    expected = -log_loss(y, wrapped.predict_proba(X))
    assert make_tail_scorer("mean")(wrapped, X, y) == pytest.approx(expected)
    forest = RandomForestClassifier(5, random_state=0).fit(X, y)
    assert np.isfinite(neg_cvar_10(forest, X, y))
    wrong = make_tail_scorer("mean", loss="zero_one")
    assert wrong(model, X, y) == pytest.approx(model.score(X, y) - 1.0)
    # A label never seen is charged finitely.
    other = np.where(np.arange(80) == 3, "z", y)
    assert -1e3 < make_tail_scorer("max")(wrapped, X, other) < -700


def test_scorer_reads_margins_where_there_are_no_probabilities():
    X, y = make_classification(80, 5, random_state=0)
    for model in (SpectralRiskClassifier(loss="squared_hinge"), LinearSVC()):
        margins = model.fit(X, y).decision_function(X)
        tail = cvar_loss(y, margins, loss="logistic", alpha=0.1)
        assert neg_cvar_10(model, X, y) == pytest.approx(-tail)
        hinge = make_tail_scorer(Max(), "squared_hinge")
        largest = np.max(np.maximum(0.0, 1.0 - np.where(y == 1, 1, -1) * margins) ** 2)
        assert hinge(model, X, y) == pytest.approx(-largest)
        with pytest.raises(TypeError, match="no probabilities"):
            make_tail_scorer("mean", "log_loss")(model, X, y)
    # Margins of a model that always favours one label lie between 0 and 1; they are not doubted.
    X, y = np.linspace(0.0, 1.0, 20)[:, None], np.where(np.arange(20) % 4 == 0, -1, 1)
    model = SpectralRiskClassifier("mean", loss="squared_hinge", l2=10.0).fit(X, y)
    assert np.all((model.decision_function(X) > 0) & (model.decision_function(X) < 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TailScorer("mean", "squared_hinge")(model, X, y)


def test_names_of_scorers():
    for name, scorer in metrics.SCORERS.items():
        assert get_scorer(name) is scorer is getattr(metrics, name)
    assert get_scorer(neg_cvar_10) is neg_cvar_10
    assert get_scorer("r2")(Ridge().fit([[0.0], [1.0]], [0.0, 1.0]), [[0.0], [1.0]], [0, 1]) < 1
    with pytest.raises(ValueError, match="neg_cvar_10"):
        get_scorer("neg_cvar_11")
    with pytest.raises(ValueError, match="unknown loss"):
        make_tail_scorer("mean", "hinge")


@pytest.fixture(scope="module")
def classifier():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return SpectralRiskClassifier("mean", l2=0.01).fit(X, y), X, y


@pytest.mark.parametrize("loss", ["logistic", "multinomial", "squared_hinge"])
def test_probabilities_are_not_taken_for_margins(classifier, loss):
    model, X, y = classifier
    shares = model.predict_proba(X)
    with pytest.raises(ValueError, match="go with loss='log_loss'"):
        tail_report(y, shares, loss=loss)
    with pytest.warns(UserWarning, match="if these are probabilities, use loss='log_loss'") as seen:
        tail_report(y, shares[:, 1], loss=loss)
    assert seen[0].filename == __file__
    with pytest.raises(ValueError, match="go with loss='zero_one'"):
        tail_report(y, model.predict(X), loss=loss)


@pytest.mark.parametrize("kind", [int, float, bool, str, object])
@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba"])
def test_labels_without_a_loss_are_an_error(classifier, kind, method):
    model, X, y = classifier
    labels = y.astype(bool).astype(kind) if kind is not object else np.where(y, "yes", "no")
    with pytest.raises(ValueError, match="loss='log_loss' for predict_proba"):
        sample_losses(labels, getattr(model, method)(X))


def test_whole_numbers_are_still_numbers():
    with pytest.raises(ValueError, match="loss='zero_one' for predict"):
        cvar_loss([0, 1, 2, 1], [0, 2, 2, 1])
    assert cvar_loss([0, 1], [0.5, 0.5], 1.0, loss="squared") == 0.125
    # Whole predictions of which some are no label, all of one value, and of another type.
    assert cvar_loss([3, 5, 9], [4, 5, 9], 1.0) == pytest.approx(1 / 6)
    assert cvar_loss([3, 3], [3, 3], 1.0) == 0.0
    assert cvar_loss([3, 5, 9], [3.0, 9.0, 9.0], 1.0) == pytest.approx(16 / 6)
    assert cvar_loss([3.0, 5.0, 9.0], [3, 9, 9], 1.0) == pytest.approx(16 / 6)
    assert cvar_loss(np.array([1.0, 2.5], dtype=object), [1.0, 2.0], 1.0) == 0.0625
    # A column is a vector.
    columns = sample_losses(TRUTH[:, None], PREDICTION[:, None])
    np.testing.assert_array_equal(columns, sample_losses(TRUTH, PREDICTION))


def test_margins_beyond_probabilities_are_margins():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for margins in ([-0.5, 0.25, 0.75], [0.25, 0.75, 1.5]):
            sample_losses([1, -1, 1], margins, loss="logistic")
    with pytest.warns(UserWarning, match=r"lies between 0\.25 and 0\.75; if these are"):
        sample_losses([1, -1, 1], [0.5, 0.25, 0.75], loss="logistic")
