"""Saved models: the way there and back, what a file may hold, and what a failure leaves behind."""

import copy
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

import sorel
from sorel import cli
from sorel.files.archives import ArchiveError, TooLargeError, unpacked
from sorel.files.atomic import write_atomically
from sorel.saving import ModelFileError, load_model, read_summary, save_model

pd = pytest.importorskip("pandas", reason="pandas is an extra")
pytest.importorskip("skops", reason="skops is an extra")


def data(n=60, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X @ np.arange(1.0, d + 1) + rng.standard_t(3, size=n)


@pytest.fixture(scope="module")
def model():
    return sorel.SpectralRiskRegressor(risk="cvar:0.2").fit(*data())


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "model.skops"
    save_model(model, path, summary={"data": "made up"})
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A table, and a model that the command fitted to it."""
    folder = tmp_path_factory.mktemp("made")
    X, price = data()
    frame = pd.DataFrame(X, columns=["area", "rooms", "age"]).assign(price=price)
    frame["town"], frame["new"] = ["Oslo", "Voss", "Moss"] * 20, X[:, 0] > 0.5
    frame.loc[3, "area"] = frame.loc[5, "town"] = np.nan
    frame.to_csv(folder / "t.csv", index=False)
    fit(folder / "t.csv", folder / "m.skops")
    return folder


def fit(table, model, *arguments):
    fixed = ["fit", str(table), "--target", "price", "-o", str(model), "--impute", "--quiet"]
    assert cli.main([*fixed, *arguments]) == 0


def rewrite(path, member, content):
    """The same archive with one member replaced, added, or (None) left out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | {member: content}
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in members.items():
            if value is not None:
                archive.writestr(name, value)


def change_json(path, member="sorel.json", **changes):
    with zipfile.ZipFile(path) as archive:
        content = json.loads(archive.read(member))
    rewrite(path, member, json.dumps({**content, **changes}))


# The way there and back.


def test_estimators_and_pipelines_come_back(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    codes = rng.integers(0, 3, size=(60, 1))
    table, y = np.hstack([X, codes]), X[:, 0] + X[:, 1] ** 2
    columns = ColumnTransformer([("x", StandardScaler(), [0, 1, 2]), ("c", OneHotEncoder(), [3])])
    labels = np.array(list("abc"))[codes[:, 0]]
    mixture = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.5)], [0.5, 0.5])
    risks = ["cvar:0.2", sorel.Extremile(2.5), mixture, sorel.CustomSpectrum([0.0, 1.0, 2.0])]
    own = {"loss": sorel.losses.Huber(2.0), "solver": sorel.solvers.SOREL()}
    path = tmp_path / "m.skops"
    for model in (
        *(sorel.SpectralRiskRegressor(risk=risk, tol=1e-3) for risk in risks),
        sorel.SpectralRiskRegressorCV(risks=["mean", sorel.CVaR(0.5)], l2s=[0.1], cv=2),
        sorel.SpectralRiskRegressor(penalty=sorel.Box(0.1, [-1.0] * 4, 0.5)),
        sorel.SpectralRiskRegressor(penalty=sorel.Simplex(0.0)),
        sorel.QuantileRegressor(quantile=[0.1, 0.5, 0.9]),
        sorel.RankRegressor(),
        make_pipeline(StandardScaler(with_mean=False), sorel.SpectralRiskRegressor(**own)),
        make_pipeline(columns, sorel.SpectralRiskClassifier()),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few rows
            model.fit(table, labels if is_classifier(model) else y)
        save_model(model, path)
        loaded = load_model(path)
        np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
        if type(model) is sorel.SpectralRiskRegressor:
            assert loaded.get_params(deep=False) == model.get_params(deep=False)
            np.testing.assert_array_equal(loaded.risk_weights_, model.risk_weights_)
    portfolio = sorel.SpectralRiskPortfolio().fit(rng.normal(0.01, 0.1, size=(80, 4)))
    save_model(portfolio, path)
    np.testing.assert_array_equal(load_model(path).weights_, portfolio.weights_)


def test_summary_tells_version_model_and_training(saved, model):
    expected = {"sorel": sorel.__version__, "data": "made up", "risk": "cvar:0.2", "n_features": 3}
    expected["relative_gap"] = model.relative_gap_
    assert expected.items() <= read_summary(saved).items()


def test_streams_serve_as_files_of_skops(model):
    import skops.io

    stream = io.BytesIO()
    save_model(model, stream)
    stream.seek(0)
    assert load_model(stream).get_params() == model.get_params()
    untrusted = skops.io.get_untrusted_types(data=stream.getvalue())
    assert untrusted == ["sorel.estimators.SpectralRiskRegressor"]


def test_what_is_left_out(tmp_path):
    """The weights of the samples on request, and always where a fit kept its state."""
    X, y = data()
    keeping = sorel.SpectralRiskRegressor(checkpoint=tmp_path / "fit.ckpt").fit(X, y)
    pipeline = Pipeline([("same", "passthrough"), ("model", keeping)])
    save_model(pipeline, tmp_path / "m.skops", risk_weights=False)
    last = load_model(tmp_path / "m.skops")[-1]
    assert last.checkpoint is None
    assert not hasattr(last, "risk_weights_")
    assert len(keeping.risk_weights_) == len(y)
    np.testing.assert_array_equal(last.predict(X), keeping.predict(X))
    assert len(last.set_params(warm_start=True).fit(X, y).risk_weights_) == len(y)


def test_arrays_of_zeros_are_saved_so_that_they_load_again(model, tmp_path):
    model = copy.copy(model)
    model.risk_weights_ = np.zeros(5_000_000)
    save_model(model, tmp_path / "model.skops")
    assert len(load_model(tmp_path / "model.skops").risk_weights_) == 5_000_000


# The same bytes.


def test_the_same_model_makes_the_same_bytes(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 4))
    model = sorel.SpectralRiskRegressorCV(risks=["mean", sorel.CVaR(0.3)], l2s=[0.1, 1.0], cv=3)
    model.fit(X, X[:, 0] + rng.normal(size=80))
    # A copy has other addresses, and shares other texts and numbers.
    contents = set()
    for copied in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        save_model(copied, tmp_path / "m.skops")
        contents.add((tmp_path / "m.skops").read_bytes())
    assert len(contents) == 1


def test_another_process_makes_the_same_file(made, tmp_path):
    """With other hashes of texts, in another folder and at another time."""
    (tmp_path / "t.csv").write_bytes((made / "t.csv").read_bytes())
    source = str(Path(sorel.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": source}
    arguments = ["fit", "t.csv", "--target", "price", "-o", "m.skops", "--impute", "-q"]
    command = [sys.executable, "-m", "sorel", *arguments]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "m.skops").read_bytes() == (made / "m.skops").read_bytes()


def test_times_are_kept_on_request(made, tmp_path):
    fit(made / "t.csv", tmp_path / "m.skops", "--times")
    assert read_summary(tmp_path / "m.skops")["created"].startswith("20")
    assert (load_model(tmp_path / "m.skops")[-1].history_["seconds"] > 0.0).all()
    assert "created" not in read_summary(made / "m.skops")
    assert load_model(made / "m.skops")[-1].history_["seconds"].isna().all()
    with zipfile.ZipFile(made / "m.skops") as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {1980}


# Files that are no models, or damaged.


NO_MODELS = {
    "a table": (lambda path: path.write_bytes(b"a,b\n1,2\n"), "File is not a zip file"),
    "skops": (lambda path: rewrite(path, "sorel.json", None), "it has no sorel.json inside"),
    "no version": (lambda path: change_json(path, sorel=None), "damaged"),
    "no schema": (lambda path: rewrite(path, "schema.json", None), "it has no schema.json inside"),
    "newer": (lambda path: change_json(path, sorel="99.0.0"), "sorel 99.0.0, newer than this"),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_files_that_are_no_models(saved, kind):
    make, words = NO_MODELS[kind]
    make(saved)
    with pytest.raises(ModelFileError) as raised:
        load_model(saved)
    assert words in str(raised.value)
    assert "model.skops" in str(raised.value)


def test_truncated_and_flipped_bits_are_noticed_or_harmless(saved, model):
    X, _ = data()
    content = saved.read_bytes()
    for size in range(0, len(content), 97):
        with pytest.raises(ModelFileError):
            load_model(io.BytesIO(content[:size]))
    rng = np.random.default_rng(0)
    noticed = 0
    for position in rng.choice(len(content), size=200, replace=False):
        broken = bytearray(content)
        broken[position] ^= 1 << rng.integers(8)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what damage looks like
                loaded = load_model(io.BytesIO(bytes(broken)))
        except ModelFileError as error:
            assert "\n" not in str(error)  # noqa: PT017 (any other error fails the test)
            noticed += 1
        else:
            np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert noticed > 100


def test_versions_are_saved_and_compared(saved):
    here = {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    assert read_summary(saved)["versions"] == here
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(saved)
    change_json(saved, versions={"scikit-learn": "0.99.3", "numpy": "1.21.0"})
    words = rf"scikit-learn 0\.99\.3 \(here: {sklearn.__version__}\) and numpy 1\.21\.0"
    with pytest.warns(UserWarning, match=words):
        load_model(saved)


def test_a_missing_package_is_no_damage(saved, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("skops")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sorel\[cli\]"'):
        load_model(saved)


def archive(*members, kind=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as file:
        for name, size in members:
            file.writestr(name, bytes(size))
    return stream


def test_limits_of_archives_hold_to_the_byte():
    stream = archive(("a", 1_500_000), ("b", 500_000))
    assert unpacked(stream, 2_000_000) == {"a": bytes(1_500_000), "b": bytes(500_000)}
    assert unpacked(stream, 500_000, only="b") == {"b": bytes(500_000)}
    assert unpacked(stream, 0, only="c") == {}
    with pytest.raises(TooLargeError, match=r"^it unfolds to 2 MB, and may take 1\.9 MB$"):
        unpacked(stream, 1_900_000)
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive(("a", 1), ("a", 2))
    with pytest.raises(ArchiveError, match="same name"):
        unpacked(twice, 10)
    with pytest.raises(ArchiveError, match="member 'a' is packed in an unusual way"):
        unpacked(archive(("a", 5), kind=zipfile.ZIP_BZIP2), 5)
    content = bytearray(archive(("a", 5)).getvalue())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the directory at the end
    with pytest.raises(RuntimeError, match="encrypted"):
        unpacked(io.BytesIO(bytes(content)), 5)


# What a file may hold.


class Trap:
    """A type from outside, which must not be built."""

    def __setstate__(self, state):
        raise AssertionError("code from the file was run")

    def __getstate__(self):
        return {"a": 1}


def test_types_from_outside_are_refused_without_being_built(saved):
    import skops.io

    header = zipfile.ZipFile(saved).read("sorel.json")
    saved.write_bytes(skops.io.dumps({"model": Trap()}))
    rewrite(saved, "sorel.json", header)
    with pytest.raises(ModelFileError, match=r"does not trust, and was not loaded: .*Trap"):
        load_model(saved)


def test_functions_are_refused(saved):
    node = {"__class__": "system", "__module__": "os", "__loader__": "FunctionNode"}
    change_json(saved, "schema.json", **node)
    with pytest.raises(ModelFileError, match=r"os\.system"):
        load_model(saved)


def saved_again(made, path, change):
    """The model of the command with a change to it, in a file that tells the same about it."""
    model = load_model(made / "m.skops")
    save_model(change(model) or model, path, summary=read_summary(made / "m.skops"))
    return path


def refusal(path, made, capsys):
    """What a command says to a file that it refuses."""
    assert cli.main(["predict", str(path), str(made / "t.csv")]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("place", ["step", "column"])
def test_other_estimators_are_refused_by_name(made, tmp_path, capsys, monkeypatch, place):
    name = "sklearn.preprocessing._polynomial.PolynomialFeatures"

    def change(model):
        stranger = PolynomialFeatures(60)
        if place == "step":
            model.steps.insert(1, ("stranger", stranger))
        else:
            columns = model["columns"]
            columns.transformers_[0] = ("numeric", stranger, columns.transformers_[0][2])

    path = saved_again(made, tmp_path / "m.skops", change)
    with monkeypatch.context() as patch:
        # Nothing of the file is built.
        patch.setattr("skops.io.loads", None)
        assert name in refusal(path, made, capsys)
    with pytest.raises(ModelFileError, match=rf"does not trust.*{name}"):
        load_model(path, trusted=["sklearn.linear_model._ridge.Ridge"])
    assert load_model(path, trusted=[name]) is not None


def put(owner, **state):
    vars(owner).update(state)


def encoder(model):
    return model["columns"].named_transformers_["categorical"][-1]


DAMAGES = {
    "cut coefficients": lambda model: put(model[-1], coef_=model[-1].coef_[:-1]),
    "infinite intercept": lambda model: put(model[-1], intercept_=np.inf),
    # They would be written where there is no column: SciPy trusts the places of entries.
    "indicators outside": lambda model: put(encoder(model), _n_features_outs=[1, 1]),
    "many processes": lambda model: put(model["columns"], n_jobs=10_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_arrays_that_do_not_fit_together_are_refused(made, tmp_path, capsys, monkeypatch, damage):
    path = tmp_path / "m.skops"
    with monkeypatch.context() as patch:
        # A file of somebody else, who does not look.
        patch.setattr("sorel.files.contents.check_numbers", lambda *_, **__: None)
        saved_again(made, path, DAMAGES[damage])
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(path)
    assert "damaged" in refusal(path, made, capsys)
    if damage in ("cut coefficients", "infinite intercept"):
        path.unlink()
        with pytest.raises(ValueError, match=r"of the SpectralRiskRegressor (is|has)"):
            saved_again(made, path, DAMAGES[damage])
        assert not path.exists()


def fewer_categories(model):
    first, *others = encoder(model).categories_
    put(encoder(model), categories_=[first[:2], *others], _n_features_outs=[2, 2])


LAYOUTS = {
    "other baseline": lambda model: model.baselines_.update({"plain fit": sorel.RankRegressor()}),
    "fewer categories": fewer_categories,
    "no columns": lambda model: make_pipeline(StandardScaler(), model[-1]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_commands_take_the_layout_of_fit_only(made, tmp_path, capsys, layout):
    path = saved_again(made, tmp_path / "m.skops", LAYOUTS[layout])
    load_model(path)
    assert "no model that `sorel fit` wrote" in refusal(path, made, capsys)


def test_nothing_but_numbers_and_texts_of_the_preparation_is_used(made, tmp_path, capsys):
    """A dense result would take memory for all indicators of all rows."""

    def change(model):
        columns = model["columns"]
        columns.sparse_output_ = not columns.sparse_output_
        columns.output_indices_ = columns._transformer_to_input_indices = {}
        columns.transformer_weights = {"numeric": 7.0}

    changed = saved_again(made, tmp_path / "m.skops", change)
    for model in (made / "m.skops", changed):
        assert cli.main(["predict", str(model), str(made / "t.csv"), "-o", f"{model}.csv"]) == 0
    assert Path(f"{changed}.csv").read_bytes() == (made / "m.skops.csv").read_bytes()


def test_an_encoder_that_drops_categories_loads_on_trust(tmp_path):
    X = np.array([["a"], ["b"], ["c"]] * 9, dtype=object)
    model = make_pipeline(OneHotEncoder(drop="first"), sorel.SpectralRiskRegressor())
    save_model(model.fit(X, np.arange(27.0)), tmp_path / "m.skops")
    with pytest.raises(ModelFileError, match="OneHotEncoder drops or merges"):
        load_model(tmp_path / "m.skops")
    name = "sklearn.preprocessing._encoders.OneHotEncoder"
    loaded = load_model(tmp_path / "m.skops", trusted=[name])
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


# Writing.


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    path = tmp_path / "m.skops"
    path.write_bytes(b"old")
    risk = sorel.CustomSpectrum(lambda u: u)
    model = sorel.SpectralRiskRegressor(risk=risk).fit(*data())
    with pytest.raises(TypeError, match="this SpectralRiskRegressor cannot be saved"):
        save_model(model, path)
    with pytest.raises(TypeError, match="the summary must hold only"):
        save_model(Ridge(), path, summary={"when": object()})
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("m.skops", b"old")]


@pytest.mark.parametrize("step", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_interrupted_write_leaves_the_old_file(saved, model, monkeypatch, step, error):
    before = saved.read_bytes()

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        save_model(model, saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == ["model.skops"]


@pytest.mark.skipif(os.name != "posix", reason="permissions, links and devices are POSIX's")
def test_permissions_links_and_devices_stay_what_they_are(tmp_path):
    path = tmp_path / "new"
    before = os.umask(0o027)
    try:
        write_atomically(path, b"1")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        write_atomically(path, b"2")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    link = tmp_path / "link"
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    reading, writing = os.pipe()
    write_atomically(f"/dev/fd/{writing}", b"through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("risk", ["esrm:2.5", sorel.ESRM(2.5), sorel.CustomSpectrum([0.0, 1.0])])
def test_a_summary_names_the_risk(tmp_path, risk):
    model = sorel.SpectralRiskRegressor(risk=risk).fit(np.eye(4), np.arange(4.0))
    save_model(model, tmp_path / "model.skops")
    own = isinstance(risk, sorel.CustomSpectrum)
    assert read_summary(tmp_path / "model.skops")["risk"] == (repr(risk) if own else "esrm:2.5")
