"""What a model file may hold: types by name, arrays that fit together, and the same bytes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVR

import sorel
from sorel import cli
from sorel.saving import ModelFileError, load_model, read_summary, save_model
from sorel.tables import column_kinds, restore_pipeline
from sorel.tables import make_pipeline as make_table_pipeline

pd = pytest.importorskip("pandas", reason="pandas is an extra")
pytest.importorskip("skops", reason="skops is an extra")


def houses(n=50):
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "area": rng.normal(90.0, 20.0, n),
            "town": rng.choice(["Oslo", "Voss", "Moss"], n),
            "new": rng.random(n) < 0.5,
            "rooms": rng.integers(1, 6, n),
        }
    )
    frame["price"] = 2.0 * frame["area"] + 9.0 * frame["rooms"] + rng.normal(size=n)
    return frame


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A table, and a model that the command fitted to it."""
    folder = tmp_path_factory.mktemp("made")
    houses().to_csv(folder / "t.csv", index=False)
    fit(folder / "t.csv", folder / "m.skops", "--impute")
    return folder


def fit(table, model, *arguments):
    fixed = ["fit", str(table), "--target", "price", "-o", str(model), "--quiet"]
    assert cli.main([*fixed, *arguments]) == 0


def saved_again(made, path, change):
    """The model of the command with a change to it, in a file that tells the same about it."""
    model = load_model(made / "m.skops")
    changed = change(model)
    save_model(model if changed is None else changed, path, summary=read_summary(made / "m.skops"))
    return path


def refusals(path, table, capsys):
    """What load_model and the commands say to a file that they all refuse."""
    said = []
    with pytest.raises(ModelFileError) as raised:
        load_model(path)
    said.append(str(raised.value))
    said.extend(refused_by_commands(path, table, capsys))
    return said


def refused_by_commands(path, table, capsys):
    said = []
    for command in ("predict", "evaluate"):
        assert cli.main([command, str(path), str(table)]) == 4
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        said.append(captured.err)
    return said


def cut_svr():
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = SVR().fit(X, X[:, 0] ** 2)
    model.support_vectors_ = model.support_vectors_[:1]
    return model


STRANGERS = {
    "sklearn.svm._classes.SVR": cut_svr,
    "sklearn.preprocessing._polynomial.PolynomialFeatures": lambda: PolynomialFeatures(60),
    "sklearn.feature_extraction.text.CountVectorizer": lambda: CountVectorizer(input="filename"),
    "sklearn.feature_extraction.text.TfidfVectorizer": lambda: TfidfVectorizer(
        token_pattern="(a+)+$"
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("place", ["alone", "step", "column"])
def test_other_estimators_are_refused_by_name(made, tmp_path, capsys, monkeypatch, name, place):
    def change(model):
        stranger = STRANGERS[name]()
        if place == "alone":
            return stranger
        if place == "step":
            model.steps.insert(1, ("stranger", stranger))
        else:
            columns = model["columns"]
            columns.transformers_[0] = ("numeric", stranger, columns.transformers_[0][2])
        return None

    path = saved_again(made, tmp_path / "m.skops", change)

    def build(*arguments, **options):
        raise AssertionError("something of the file was built")

    with monkeypatch.context() as patch:
        patch.setattr("skops.io.loads", build)
        for said in refusals(path, made / "t.csv", capsys):
            assert name in said
            assert "trusted" in said
    assert load_model(path, trusted=[name]) is not None
    if place != "alone":
        return
    with pytest.raises(ModelFileError, match="does not trust"):
        load_model(path, trusted=["sklearn.linear_model._ridge.Ridge"])


def nan_coefficient(model):
    model[-1].coef_[1] = np.nan


def infinite_intercept(model):
    model[-1].intercept_ = np.inf


@pytest.mark.parametrize("change", [nan_coefficient, infinite_intercept])
def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(
    made, tmp_path, capsys, monkeypatch, change
):
    with pytest.raises(ValueError, match="is not finite"):
        saved_again(made, tmp_path / "m.skops", change)
    assert not (tmp_path / "m.skops").exists()
    with monkeypatch.context() as patch:
        patch.setattr("sorel.files.contents.check_numbers", lambda *_, **__: None)
        path = saved_again(made, tmp_path / "m.skops", change)
    for said in refusals(path, made / "t.csv", capsys):
        assert "is not finite" in said


def cut_coefficients(model):
    model[-1].coef_ = model[-1].coef_[:-1]


def coefficients_of_two(model):
    model[-1].coef_ = np.tile(model[-1].coef_, (2, 1))


def texts_as_coefficients(model):
    model[-1].coef_ = np.full(model[-1].coef_.shape, "a")


def cut_scaler(model):
    scaler = model["columns"].named_transformers_["numeric"][-1]
    scaler.scale_ = scaler.scale_[:1]


def indicators_outside(model):
    """They would be written where there is no column: SciPy trusts the places of entries."""
    model["columns"].named_transformers_["categorical"][-1]._n_features_outs = [1, 1]


def dropped_indicators(model):
    encoder = model["columns"].named_transformers_["categorical"][-1]
    encoder.drop, encoder._drop_idx_after_grouping = "first", np.array([9, 9])


def many_processes(model):
    model["columns"].n_jobs = 10_000


SHAPES = [
    cut_coefficients,
    coefficients_of_two,
    texts_as_coefficients,
    cut_scaler,
    indicators_outside,
    dropped_indicators,
    many_processes,
]


@pytest.mark.parametrize("change", SHAPES, ids=lambda change: change.__name__)
def test_arrays_that_do_not_fit_together_are_refused(made, tmp_path, capsys, monkeypatch, change):
    monkeypatch.setattr("sorel.files.contents._check_linear", lambda model: None)
    path = saved_again(made, tmp_path / "m.skops", change)
    monkeypatch.undo()
    for said in refusals(path, made / "t.csv", capsys):
        assert "damaged" in said


def wider_model(model):
    model[-1].coef_ = np.append(model[-1].coef_, 1.0)
    model[-1].n_features_in_ += 1


def wider_baseline(model):
    wider_model([model.baselines_["plain fit"]])


def other_model(model):
    X = np.ones((9, model[-1].n_features_in_)) * np.arange(9.0)[:, None]
    model.steps[-1] = ("model", sorel.RankRegressor().fit(X, X[:, 0]))


def other_baseline(model):
    model.baselines_["plain fit"] = sorel.RankRegressor()


def columns_by_other_names(model):
    model["columns"].transformers_[0] = ("numbers", *model["columns"].transformers_[0][1:])


def fewer_categories(model):
    encoder = model["columns"].named_transformers_["categorical"][-1]
    encoder.categories_[0] = encoder.categories_[0][:2]
    encoder._n_features_outs = [2, 2]


def nan_median(model):
    model["columns"].named_transformers_["numeric"][0].statistics_[0] = np.nan


def no_columns(model):
    return Pipeline([("scale", StandardScaler()), ("model", model[-1])])


LAYOUTS = [
    wider_model,
    wider_baseline,
    other_model,
    other_baseline,
    columns_by_other_names,
    fewer_categories,
    nan_median,
    no_columns,
]


@pytest.mark.parametrize("change", LAYOUTS, ids=lambda change: change.__name__)
def test_commands_take_the_layout_of_fit_only(made, tmp_path, capsys, change):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = saved_again(made, tmp_path / "m.skops", change)
    load_model(path)
    for said in refused_by_commands(path, made / "t.csv", capsys):
        assert "no model that `sorel fit` wrote" in said


def test_nothing_but_numbers_and_texts_of_the_preparation_is_used(made, tmp_path, capsys):
    """A dense result would take memory for all indicators of all rows."""

    def change(model):
        columns = model["columns"]
        columns.sparse_output_ = not columns.sparse_output_
        columns.output_indices_ = columns._transformer_to_input_indices = {}
        columns.transformer_weights = {"numeric": 7.0}

    path = saved_again(made, tmp_path / "m.skops", change)
    outputs = []
    for model in (made / "m.skops", path):
        assert cli.main(["predict", str(model), str(made / "t.csv")]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("impute", [False, True])
def test_a_restored_pipeline_predicts_the_same(impute):
    table = houses()
    if impute:
        table.loc[3, "area"] = table.loc[5, "town"] = np.nan
    y = table.pop("price")
    kinds = column_kinds(table)
    table = table.astype({"town": object, "new": object})
    # Many categories make the encoded table sparse.
    table["name"], kinds["name"] = [f"house {k}" for k in range(50)], "text"
    fitted = make_table_pipeline(kinds, sorel.SpectralRiskRegressor(), impute=impute).fit(table, y)
    restored = restore_pipeline(kinds, fitted, impute=impute)
    np.testing.assert_array_equal(restored.predict(table), fitted.predict(table))
    assert type(restored[0].transform(table)) is type(fitted[0].transform(table))
    with pytest.raises(ValueError, match="no columns of the kind 'code'"):
        restore_pipeline(kinds | {"area": "code"}, fitted, impute=impute)


def test_pipelines_from_python_load_and_predict_the_same(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    codes = rng.integers(0, 3, size=(60, 1))
    table = np.hstack([X, codes])
    columns = ColumnTransformer([("x", StandardScaler(), [0, 1, 2]), ("c", OneHotEncoder(), [3])])
    labels = np.array(["a", "b", "c"])[codes[:, 0]]
    for model, y in (
        (make_pipeline(StandardScaler(with_mean=False), sorel.SpectralRiskRegressor()), X[:, 0]),
        (
            sorel.SpectralRiskRegressor(loss=sorel.losses.Huber(2.0), solver=sorel.solvers.SOREL()),
            X[:, 0],
        ),
        (sorel.SpectralRiskRegressorCV(risks=["mean", sorel.CVaR(0.5)], l2s=[0.1], cv=2), X[:, 0]),
        (make_pipeline(columns, sorel.SpectralRiskClassifier()), labels),
        (sorel.QuantileRegressor(quantile=[0.1, 0.5, 0.9]), X[:, 0] + X[:, 1] ** 2),
        (sorel.RankRegressor(), X[:, 0]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(table, y)
        save_model(model, tmp_path / "m.skops")
        loaded = load_model(tmp_path / "m.skops")
        np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
    returns = rng.normal(0.01, 0.1, size=(80, 4))
    portfolio = sorel.SpectralRiskPortfolio().fit(returns)
    save_model(portfolio, tmp_path / "m.skops")
    np.testing.assert_array_equal(load_model(tmp_path / "m.skops").weights_, portfolio.weights_)


def test_an_encoder_that_drops_categories_loads_on_trust(tmp_path):
    X = np.array([["a"], ["b"], ["c"]] * 9, dtype=object)
    y = np.arange(27.0)
    model = make_pipeline(OneHotEncoder(drop="first"), sorel.SpectralRiskRegressor()).fit(X, y)
    save_model(model, tmp_path / "m.skops")
    with pytest.raises(ModelFileError, match="OneHotEncoder drops or merges"):
        load_model(tmp_path / "m.skops")
    name = "sklearn.preprocessing._encoders.OneHotEncoder"
    loaded = load_model(tmp_path / "m.skops", trusted=[name])
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


# The same bytes.


def test_the_same_model_makes_the_same_bytes(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 4))
    search = sorel.SpectralRiskRegressorCV(risks=["mean", sorel.CVaR(0.3)], l2s=[0.1, 1.0], cv=3)
    for model in (sorel.SpectralRiskRegressor(risk=sorel.ESRM(2.0)), search):
        model.fit(X, X[:, 0] + rng.normal(size=80))
        history = model.history_.copy()
        # A copy has other addresses, and shares other texts and numbers.
        for number, copied in enumerate(
            (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
        ):
            save_model(copied, tmp_path / f"{number}.skops")
        contents = {path.read_bytes() for path in tmp_path.glob("*.skops")}
        assert len(contents) == 1
        pd.testing.assert_frame_equal(model.history_, history)


def test_two_processes_make_the_same_file(made, tmp_path):
    """With other hashes of texts, in another folder and at another time."""
    paths = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "t.csv").write_bytes((made / "t.csv").read_bytes())
        source = str(Path(sorel.__file__).resolve().parents[1])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
        arguments = ["fit", "t.csv", "--target", "price", "-o", "m.skops", "--impute", "-q"]
        command = [sys.executable, "-m", "sorel", *arguments]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        paths.append(folder / "m.skops")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes() == (made / "m.skops").read_bytes()


def test_times_are_kept_on_request(made, tmp_path):
    fit(made / "t.csv", tmp_path / "m.skops", "--times")
    assert read_summary(tmp_path / "m.skops")["created"].startswith("20")
    assert (load_model(tmp_path / "m.skops")[-1].history_["seconds"] > 0.0).all()
    assert "created" not in read_summary(made / "m.skops")
    assert load_model(made / "m.skops")[-1].history_["seconds"].isna().all()
    with zipfile.ZipFile(made / "m.skops") as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {1980}
