import io
import logging
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import sklearn
from helpers import RISKS, make_data
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.fixes import parse_version

import sorel
from sorel import CVaR, SpectralRiskClassifier, SpectralRiskRegressor
from sorel.estimators.progress import ProgressLine
from sorel.rows import MemmapRows, write_blocks
from sorel.solvers import Newton


def regression(n=60, d=3, seed=0):
    return make_data("squared", n, d, seed)


def classification(n=80, d=4, classes=2, seed=0):
    return make_classification(
        n, d, n_informative=d, n_redundant=0, n_classes=classes, flip_y=0.2, random_state=seed
    )


def kind_and_data(classes, n=80):
    """An estimator for so many classes, or for numbers where there are none, and its data."""
    if classes:
        return SpectralRiskClassifier, classification(n, classes=classes)
    return SpectralRiskRegressor, regression(n, 4)


# For binary classifiers, the checks of scikit-learn 1.6 take the first label of either set for the
# negative one, and the sets are in different orders.
_OTHER_LABELS = dict.fromkeys(
    [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")],
    "the sets that are compared have different labels",
)


def expected_failures(estimator):
    old = parse_version(sklearn.__version__) < parse_version("1.7")
    return _OTHER_LABELS if old and getattr(estimator, "loss", "") == "squared_hinge" else {}


@parametrize_with_checks([
    SpectralRiskRegressor(), SpectralRiskRegressor("esrm:2", loss="huber", l1=0.01),
    SpectralRiskClassifier(), SpectralRiskClassifier(loss="squared_hinge"),
    sorel.SpectralRiskRegressorCV(("mean", "cvar:0.5"), l2s=(0.1,), cv=2),
    sorel.SpectralRiskClassifierCV(("mean", "cvar:0.5"), l2s=(0.1,), cv=2),
    sorel.QuantileRegressor(alpha=0.01), sorel.RankRegressor(l2=0.1, tol=1e-12),
    sorel.SpectralRiskPortfolio(),
], expected_failed_checks=expected_failures)  # fmt: skip
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::sorel.ConstantModelWarning")  # tails of noise
@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
def test_the_problem_is_solved(risk, loss):
    kind, (X, y) = kind_and_data(2 if loss in ("logistic", "squared_hinge") else 0)
    model = kind(risk, loss=loss, l2=0.05, tol=1e-7).fit(X, y)
    problem = sorel.Problem(X, y, risk=risk, loss=loss, penalty=sorel.L2(0.05), fit_intercept=True)
    w = np.append(model.coef_, model.intercept_)
    assert problem.certificate(w, model.risk_weights_).relative_gap <= 1e-7
    assert model.objective_ == pytest.approx(problem.objective(w), rel=1e-12)
    assert model.gap_ <= 1e-7 * abs(model.objective_)
    assert model.relative_gap_ <= 1e-7
    assert model.converged_
    assert model.status_.startswith("converged")


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("l1", [0.0, 0.9])
def test_mean_risk_is_the_elastic_net(fit_intercept, l1):
    X, y = regression(d=6)
    ours = SpectralRiskRegressor("mean", l2=0.1, l1=l1, fit_intercept=fit_intercept, tol=1e-12)
    settings = {"alpha": 0.1 + l1, "l1_ratio": l1 / (0.1 + l1), "tol": 1e-12, "max_iter": 10**5}
    theirs = ElasticNet(**settings, fit_intercept=fit_intercept)
    if l1 == 0.0:
        theirs = Ridge(alpha=0.1 * len(y), fit_intercept=fit_intercept)
    np.testing.assert_allclose(ours.fit(X, y).coef_, theirs.fit(X, y).coef_, atol=1e-6)
    np.testing.assert_array_equal(ours.coef_ == 0.0, theirs.coef_ == 0.0)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_mean_risk_is_logistic_regression(classes, class_weight):
    X, y = classification(classes=classes)
    ours = SpectralRiskClassifier("mean", l2=0.02, class_weight=class_weight, tol=1e-12).fit(X, y)
    other = LogisticRegression(
        C=1 / (0.02 * len(y)), class_weight=class_weight, tol=1e-10, max_iter=10**4
    ).fit(X, y)
    assert ours.intercept_.shape == other.intercept_.shape
    np.testing.assert_allclose(ours.coef_, other.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), other.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), other.decision_function(X), atol=1e-4)


def test_bad_weights_and_several_targets_are_refused():
    X, y = classification()
    for kind in (SpectralRiskRegressor, SpectralRiskClassifier):
        for weight, words in ((np.arange(80) - 1.0, "[Nn]egative"), (np.zeros(80), "zero")):
            with pytest.raises(ValueError, match=words):
                kind().fit(X, y, sample_weight=weight)
        with pytest.raises(ValueError, match=r"one target; for several, use sklearn\.multioutput"):
            kind().fit(X, np.column_stack([y, y]).tolist())
    with pytest.raises(ValueError, match="only one class"):
        SpectralRiskClassifier().fit(X, y, sample_weight=y == 1)


@pytest.mark.parametrize("labels", [["no", "yes"], [-1, 1], [True, False], ["c", "a", "b"]])
def test_any_labels(labels):
    X, codes = classification(classes=len(labels))
    model = SpectralRiskClassifier("mean").fit(X, np.array(labels)[codes])
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    assert set(model.predict(X)) <= set(labels)
    assert model.score(X, np.array(labels)[codes]) > 0.6
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), proba, rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[proba.argmax(axis=1)], model.predict(X))
    far = model.predict_log_proba(1e4 * np.sign(model.coef_))
    assert np.isfinite(far).all()
    assert far.min() < -1e3


def test_squared_hinge():
    X, y = classification()
    model = SpectralRiskClassifier(loss="squared_hinge").fit(X, y)
    with pytest.raises(AttributeError, match="predict_proba"):
        model.predict_proba(X)
    X, y = classification(classes=3)
    with pytest.raises(ValueError, match="OneVsRestClassifier"):
        SpectralRiskClassifier(loss="squared_hinge").fit(X, y)
    assert OneVsRestClassifier(SpectralRiskClassifier(loss="squared_hinge")).fit(X, y).score(X, y)


@pytest.mark.parametrize("risk", ["cvar:0.5", CVaR(0.5)])
def test_nested_risk_parameters(risk):
    model = SpectralRiskRegressor(risk)
    assert model.get_params()["risk__alpha"] == 0.5
    assert "risk__alpha" not in model.get_params(deep=False)
    assert model.set_params(risk__alpha=0.2) is model
    assert model.risk == CVaR(0.2)
    # As a grid of risks and levels sets them.
    assert model.set_params(risk=CVaR(0.5), risk__alpha=0.1).risk == CVaR(0.1)
    assert risk in ("cvar:0.5", CVaR(0.5))  # the caller's object is not touched
    for unknown in ("risk__rho", "risc__alpha"):
        with pytest.raises(ValueError, match=r"parameter .*(rho|risc)"):
            model.set_params(**{unknown: 2.0})


@pytest.mark.parametrize(("estimator", "message"), [
    (SpectralRiskRegressor("cvar"), "unknown risk"),
    (SpectralRiskRegressor(l2="big"), "'auto'"),
    (SpectralRiskRegressor(l2=0.0), "l2 must"),
    (SpectralRiskRegressor(l1=-1.0), "l1 must"),
    (SpectralRiskRegressor(loss="logistic"), "is for classification"),
    (SpectralRiskRegressor(loss="hinge"), "unknown loss"),
    (SpectralRiskRegressor(solver="best"), "unknown solver"),
    (SpectralRiskRegressor(tol=-1.0), "tol must"),
    (SpectralRiskRegressor(solver="sorel", batch_size=0), "batch_size"),
    (SpectralRiskRegressor(n_jobs=0), "n_jobs must be None or an integer other than 0"),
    (SpectralRiskClassifier(loss="squared"), "not for classification"),
])  # fmt: skip
def test_bad_parameters_are_refused_at_fit(estimator, message):
    X, y = classification()
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)


@pytest.mark.parametrize(
    "make",
    [scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix, np.asfortranarray,
     np.float32],
)  # fmt: skip
def test_other_containers(make):
    X, y = regression()
    X[np.abs(X) < 0.5] = 0.0
    X = X.astype(np.float32).astype(np.float64)
    known = SpectralRiskRegressor(tol=1e-8).fit(X, y)
    model = SpectralRiskRegressor(tol=1e-8).fit(make(X), y)
    np.testing.assert_allclose(model.coef_, known.coef_, atol=1e-4)
    assert model.objective_ == pytest.approx(known.objective_, rel=1e-7)
    # Predictions are sums in float64, however little memory there is for them.
    with sklearn.config_context(working_memory=1e-4):
        found = model.predict(make(X))
    np.testing.assert_allclose(found, X @ model.coef_ + model.intercept_, rtol=1e-12, atol=1e-13)
    assert found.dtype == np.float64


def test_history_is_a_table(monkeypatch):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    model = SpectralRiskRegressor(CVaR(0.1)).fit(*regression())
    assert isinstance(model.history_, pd.DataFrame)
    assert model.history_["relative_gap"].iloc[-1] == pytest.approx(model.relative_gap_)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert list(model.history_) == list(sorel.Record._fields)
    with pytest.raises(AttributeError, match="fit it first"):
        _ = SpectralRiskRegressor().history_


def test_missed_tolerance_warns_in_both_languages():
    for category in (sorel.ConvergenceWarning, SklearnConvergenceWarning):
        model = SpectralRiskRegressor("cvar:0.1", tol=1e-12, max_passes=2)
        with pytest.warns(category, match="raise max_passes"):
            model.fit(*regression())
    assert not model.converged_
    assert model.status_.startswith("not converged")


class Interrupted(Newton):
    """Newton's method, with somebody at the keyboard."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def iterates(self, problem, run):
        run.watched = True  # a check at every step
        iterates, reply = super().iterates(problem, run), None
        for _ in range(self.after):
            reply = yield iterates.send(reply)
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_fit_keeps_what_it_has(after, monkeypatch):
    monkeypatch.setattr("sorel.estimators.progress._last_interrupt", -math.inf)
    X, y = regression()
    model = SpectralRiskRegressor("cvar:0.1", solver=Interrupted(after), tol=1e-12)
    with pytest.warns(SklearnConvergenceWarning, match="interrupted"):
        assert model.fit(X, y) is model
    assert model.status_.startswith("interrupted")
    assert not model.converged_
    assert model.predict(X).shape == y.shape
    with pytest.raises(KeyboardInterrupt):  # so soon after, it is meant for the caller
        model.fit(X, y)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_warm_start_goes_on_from_the_last_fit(classes):
    kind, (X, y) = kind_and_data(classes, 400)
    model = kind("esrm:1", warm_start=True, tol=1e-6).fit(X, y)
    cold = model.n_passes_
    assert model.fit(X, y).n_passes_ < cold
    assert model.fit(X, y, sample_weight=np.arange(len(y)) > 20).converged_
    # Other numbers of features and of parameters: a cold start.
    assert model.fit(X[:, :3], y).coef_.shape[-1] == 3
    assert np.all(model.set_params(fit_intercept=False).fit(X, y).intercept_ == 0.0)


def test_verbose_shows_passes_and_gap_on_stderr(capfd):
    SpectralRiskRegressor().fit(*regression())
    assert capfd.readouterr() == ("", "")
    model = SpectralRiskRegressor("cvar:0.1", verbose=2).fit(*regression())
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == len(model.history_) + 1
    assert all("passes" in line and "gap" in line for line in lines)
    assert model.status_ in lines[-1]


def test_progress_line_of_a_terminal(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    line = ProgressLine(1, 1e-4, terminal)
    for passes in range(50):
        line(sorel.Record(float(passes), 0.0, *(1.0, 0.5, 0.5, 0.5), *(1.0, 0.5, 0.5, 0.5)))
    line.close(sorel.solve(sorel.Problem(*regression())))
    text = terminal.getvalue()
    assert text.count("\r") < 10  # ten a second
    assert text.count("\n") == 1
    assert text.endswith("s)\n")


def test_importing_sorel_leaves_scikit_learn_alone():
    code = (
        "import sys, sorel; sorel.path; sorel.metrics.neg_cvar_10; "
        "assert 'sklearn' not in sys.modules and 'pandas' not in sys.modules; "
        "assert 'SpectralRiskRegressor' in dir(sorel); "
        "sorel.SpectralRiskRegressor; assert 'sklearn' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="Regresor"):
        _ = sorel.SpectralRiskRegresor


@pytest.fixture
def on_disk(monkeypatch):
    """Rows on disk stay there, however few."""
    monkeypatch.setattr("sorel.problem.validation.WORTH_STREAMING", 0)
    monkeypatch.setattr("sorel.estimators.base.WORTH_STREAMING", 0)


def disk_data(folder, n=200, labels=False):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.standard_t(3, size=n) + 0.5
    if labels:
        y = np.array(["left", "middle", "right"])[np.digitize(y, [-1.0, 2.0])]
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    table = {"y": y, **{name: X[:, j] for j, name in enumerate("abc")}}
    pq.write_table(pa.table(table), folder / "data.parquet")
    write_blocks(folder / "blocks", X, y)
    return X, y


@pytest.mark.parametrize("labels", [False, True])
def test_estimators_fit_and_predict_rows_on_disk(tmp_path, on_disk, labels):
    X, y = disk_data(tmp_path, labels=labels)
    kind = SpectralRiskClassifier if labels else SpectralRiskRegressor
    method = "predict_proba" if labels else "predict"
    known = kind(risk="esrm:1", tol=1e-12).fit(X.copy(), y)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for given, targets in [
        (mapped, y), (tmp_path / "X.npy", str(tmp_path / "y.npy")), (tmp_path / "blocks", "y.npy"),
        (str(tmp_path / "data.parquet"), "y"),
    ]:  # fmt: skip
        model = kind(risk="esrm:1", tol=1e-12).fit(given, targets)
        np.testing.assert_allclose(model.coef_, known.coef_, atol=1e-6)
        np.testing.assert_allclose(model.intercept_, known.intercept_, atol=1e-6)
        assert model.n_features_in_ == 3
        assert hasattr(model, "feature_names_in_") == isinstance(given, str)
        predicted, expected = getattr(model, method)(given), getattr(known, method)(X)
        np.testing.assert_allclose(predicted, expected, atol=1e-5)
        assert model.predict(given).dtype == y.dtype
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 3"):
        model.predict(np.save(tmp_path / "Z.npy", X[:, :2]) or tmp_path / "Z.npy")


def test_wrong_rows_on_disk_are_refused(tmp_path, on_disk):
    X, y = disk_data(tmp_path)
    X[7, 1] = np.inf
    np.save(tmp_path / "bad.npy", X)
    turned = MemmapRows(X)
    turned.columns = ["c", "b", "a"]
    model = SpectralRiskRegressor().fit(tmp_path / "data.parquet", "y")
    for call, words in (
        (lambda: model.fit(tmp_path / "X.npy", y[1:]), "200 rows but y has 199"),
        (lambda: model.fit(tmp_path / "data.parquet", "z"), "there is no column 'z'"),
        (lambda: model.predict(turned), "columns of X are .*, and the model was fitted to"),
        (lambda: model.predict(tmp_path / "bad.npy"), r"bad\.npy\[7, 1\] is inf"),
        (lambda: model.fit(tmp_path / "bad.npy", y), r"bad\.npy\[7, 1\] is inf"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def skewed(n=300, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2.0
    return X, X @ [1.0, -1.0, 0.5] + 2.0 * rng.exponential(size=n)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("home", ["memory", "sparse", "disk"])
def test_an_intercept_that_keeps_the_mean(weighted, home, tmp_path, monkeypatch):
    """Right on average, and the best under that condition, by a conic solver."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    monkeypatch.setattr("sorel.problem.validation.WORTH_STREAMING", 0)
    X, y = skewed()
    X[X < 2.0] = 0.0
    rows = scipy.sparse.csr_array(X) if home == "sparse" else X
    if home == "disk":
        rows = sorel.rows.write_blocks(tmp_path / "rows", X)
    weight = np.random.default_rng(1).integers(1, 4, len(y)) if weighted else None
    model = SpectralRiskRegressor("cvar:0.2", l2=0.01, fit_intercept="mean", tol=1e-9)
    model.fit(rows, y, sample_weight=weight)
    assert np.average(y - model.predict(rows), weights=weight) == pytest.approx(0.0, abs=1e-12)
    share = np.ones(len(y)) / len(y) if weight is None else weight / weight.sum()
    w, b, t = cp.Variable(3), cp.Variable(), cp.Variable()
    losses = cp.square(y - X @ w - b) / 2
    objective = t + share @ cp.pos(losses - t) / 0.2 + 0.01 / 2 * cp.sum_squares(w)
    optimum = cp.Problem(cp.Minimize(objective), [share @ (y - X @ w - b) == 0]).solve("CLARABEL")
    assert model.objective_ == pytest.approx(optimum, rel=1e-6)
    dense = clone(model).fit(X, y, sample_weight=weight)
    assert model.objective_ == pytest.approx(dense.objective_, rel=1e-8)
    free = SpectralRiskRegressor("cvar:0.2", l2=0.01, tol=1e-9).fit(X, y, sample_weight=weight)
    assert free.objective_ < model.objective_
    assert np.average(free.predict(X) - y, weights=weight) > 0.5


@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_array])
def test_an_intercept_that_keeps_the_mean_in_every_use(convert):
    X, y = skewed()
    X = convert(X)
    model = SpectralRiskRegressor("cvar:0.1", fit_intercept="mean", warm_start=True).fit(X, y)
    cold = model.n_passes_
    assert model.fit(X, y).n_passes_ <= cold
    search = sorel.SpectralRiskRegressorCV(fit_intercept="mean", l2s=["auto"], cv=2).fit(X, y)
    assert np.mean(search.predict(X)) == pytest.approx(np.mean(y))
    # With the mean risk it is the ordinary intercept.
    plain, kept = (
        SpectralRiskRegressor("mean", fit_intercept=kind, tol=1e-12).fit(X, y)
        for kind in (True, "mean")
    )
    np.testing.assert_allclose(kept.predict(X), plain.predict(X), rtol=1e-6)


@pytest.mark.parametrize(("settings", "convert", "message"), [
    ({"fit_intercept": "median"}, np.asarray, "must be True, False or 'mean', got 'median'"),
    ({"fit_intercept": "mean", "solver": "sorel"}, scipy.sparse.csr_array, "on single rows"),
    ({"fit_intercept": "mean", "loss": "poisson"}, np.asarray, "'poisson' are exponentials"),
])  # fmt: skip
def test_where_the_mean_cannot_be_kept(settings, convert, message):
    X, y = skewed()
    with pytest.raises(ValueError, match=message):
        SpectralRiskRegressor(**settings).fit(convert(X), np.abs(y))
    with pytest.raises(ValueError, match="must be True or False for labels, got 'mean'"):
        SpectralRiskClassifier(fit_intercept="mean").fit(X, y > 0.0)


def test_class_weights_are_sample_weights():
    X, y = classification(classes=3)
    names = np.array(["b", "a", "c"])[y]
    weights = {"a": 2.0, "b": 0.5, "c": 3.0}
    weight = np.array([weights[name] for name in names])
    by_class = SpectralRiskClassifier("cvar:0.6", class_weight=weights, tol=1e-9)
    by_class.fit(X, names, sample_weight=np.full(len(y), 0.5))
    by_row = SpectralRiskClassifier("cvar:0.6", tol=1e-9).fit(X, names, sample_weight=0.5 * weight)
    np.testing.assert_array_equal(by_class.coef_, by_row.coef_)


@pytest.mark.parametrize("suffix", ["", "CV"])
def test_messages_name_the_other_estimator(suffix):
    X, y = regression(n=60, d=2)
    labels = np.where(y > 0, "yes", "no")
    regressor = getattr(sorel, f"SpectralRiskRegressor{suffix}")
    classifier = getattr(sorel, f"SpectralRiskClassifier{suffix}")
    words = f"texts such as '.*use SpectralRiskClassifier{suffix}$"
    for target in (labels, labels.astype(object), labels.tolist()):
        with pytest.raises(ValueError, match=words):
            regressor().fit(X, target)
    with pytest.raises(ValueError, match=f"Unknown label.*use SpectralRiskRegressor{suffix}"):
        classifier().fit(X, y)


def test_fits_are_logged(caplog):
    X, y = regression()
    with caplog.at_level(logging.INFO, "sorel"):
        model = SpectralRiskRegressor().fit(X, y)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert model.status_ in caplog.text
    with caplog.at_level(logging.DEBUG, "sorel"), pytest.warns(SklearnConvergenceWarning):
        SpectralRiskRegressor(tol=1e-12, max_passes=2).fit(X, y)
    assert {record.levelname for record in caplog.records} == {"INFO", "DEBUG", "WARNING"}
    assert "relative gap" in caplog.records[1].getMessage()
    assert "max_passes" in caplog.text


def test_types_hold_when_they_are_run():
    from typed_use import use

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    use(X, X @ [1.0, 2.0] + 0.1 * rng.normal(size=60))
