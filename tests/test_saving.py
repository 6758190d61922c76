"""Saved models: the way there and back, what is refused, and what a failure leaves behind."""

import io
import json
import os
import pickle
import stat
import sys
import warnings
import zipfile

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sorel
from sorel.files.atomic import write_atomically
from sorel.saving import ModelFileError, load_model, read_summary, save_model

pytest.importorskip("skops", reason="skops is an extra")

RISKS = [
    "cvar:0.2",
    sorel.Mean(),
    sorel.Max(),
    sorel.CVaR(0.1),
    sorel.ESRM(2.0),
    sorel.Extremile(2.5),
    sorel.Mixture([sorel.Mean(), sorel.CVaR(0.5)], [0.5, 0.5]),
    sorel.CustomSpectrum([0.0, 1.0, 2.0]),
]


def data(n=60, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X @ np.arange(1.0, d + 1) + rng.standard_t(3, size=n)


@pytest.fixture(scope="module")
def model():
    X, y = data()
    return sorel.SpectralRiskRegressor(risk="cvar:0.2").fit(X, y)


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "model.skops"
    save_model(model, path, summary={"data": "made up"})
    return path


def rewrite(path, member, content):
    """The same archive with one member replaced, added, or (None) left out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[member] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in members.items():
            if value is not None:
                archive.writestr(name, value)


def change_header(path, **changes):
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("sorel.json"))
    header.update(changes)
    rewrite(path, "sorel.json", json.dumps(header))


@pytest.mark.parametrize("risk", RISKS, ids=str)
def test_every_risk_comes_back(risk, tmp_path):
    X, y = data()
    model = sorel.SpectralRiskRegressor(risk=risk, tol=1e-3).fit(X, y)
    save_model(model, tmp_path / "m.skops")
    loaded = load_model(tmp_path / "m.skops")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.risk_weights_, model.risk_weights_)
    assert loaded.get_params(deep=False) == model.get_params(deep=False)
    assert list(loaded.history_.columns) == list(model.history_.columns)


def test_summary_tells_version_model_and_training(saved, model):
    summary = read_summary(saved)
    assert summary["sorel"] == sorel.__version__
    assert summary["data"] == "made up"
    assert summary["model"] == "SpectralRiskRegressor"
    assert summary["risk"] == "cvar:0.2"
    assert summary["n_features"] == 3
    assert summary["relative_gap"] == model.relative_gap_
    assert summary["status"] == model.status_


def test_streams_serve_as_files(model):
    stream = io.BytesIO()
    save_model(model, stream)
    stream.seek(0)
    assert load_model(stream).get_params() == model.get_params()


def test_a_file_of_sorel_is_a_file_of_skops(saved):
    import skops.io

    untrusted = skops.io.get_untrusted_types(file=saved)
    assert untrusted == ["sorel.estimators.SpectralRiskRegressor"]


@pytest.mark.parametrize("changes", [{"sorel": "99.0.0"}, {"sorel": "99.0.0", "format": 7}])
def test_newer_version(saved, changes):
    change_header(saved, **changes)
    for read in (load_model, read_summary):
        with pytest.raises(ModelFileError, match=r"saved by sorel 99\.0\.0, newer than this sorel"):
            read(saved)


def without_arrays(path):
    with zipfile.ZipFile(path) as archive:
        arrays = [name for name in archive.namelist() if name.endswith(".npy")]
    rewrite(path, arrays[0], None)


NO_MODELS = {
    "nothing": (lambda path: path.write_bytes(b""), "not a model of sorel, or it is"),
    "a table": (lambda path: path.write_bytes(b"a,b\n1,2\n"), "File is not a zip file"),
    "half": (
        lambda path: path.write_bytes(b"PK\x03\x04 no more"),
        "not a model of sorel, or it is",
    ),
    "skops": (lambda path: rewrite(path, "sorel.json", None), "it has no sorel.json inside"),
    "no version": (lambda path: change_header(path, sorel=None), "damaged"),
    "another version": (lambda path: change_header(path, sorel="new"), "damaged"),
    "no format": (lambda path: change_header(path, format="x"), "damaged"),
    "no summary": (lambda path: change_header(path, summary=[]), "damaged"),
    "no arrays": (without_arrays, "damaged"),
    "no schema": (lambda path: rewrite(path, "schema.json", None), "it has no schema.json inside"),
    "empty schema": (lambda path: rewrite(path, "schema.json", b""), "damaged"),
    "no such module": (
        lambda path: rewrite(path, "schema.json", json.dumps({"__module__": "nobody.has.this"})),
        "damaged",
    ),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_files_that_are_no_models(saved, kind):
    make, words = NO_MODELS[kind]
    make(saved)
    with pytest.raises(ModelFileError) as raised:
        load_model(saved)
    assert words in str(raised.value)
    assert "model.skops" in str(raised.value)


def test_a_wide_table_makes_a_model_that_loads(tmp_path):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    from sorel.tables import column_kinds, make_pipeline

    rng = np.random.default_rng(0)
    columns = {f"x{k}": rng.normal(size=30) for k in range(400)}
    columns["city"] = np.array([f"town {k}" for k in range(30)])
    table = pd.DataFrame(columns)
    model = make_pipeline(column_kinds(table), sorel.SpectralRiskRegressor())
    model.fit(table, table["x0"])
    save_model(model, tmp_path / "model.skops")
    loaded = load_model(tmp_path / "model.skops")
    np.testing.assert_array_equal(loaded.predict(table), model.predict(table))


def test_truncated_anywhere(saved):
    data = saved.read_bytes()
    for size in range(0, len(data), 97):
        with pytest.raises(ModelFileError):
            load_model(io.BytesIO(data[:size]))


def test_flipped_bits_are_noticed_or_harmless(saved, model):
    X, _ = data()
    content = saved.read_bytes()
    expected = model.predict(X)
    rng = np.random.default_rng(0)
    noticed = 0
    for position in rng.choice(len(content), size=200, replace=False):
        broken = bytearray(content)
        broken[position] ^= 1 << rng.integers(8)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded = load_model(io.BytesIO(bytes(broken)))
        except ModelFileError as error:
            assert "\n" not in str(error)  # noqa: PT017 (any other error fails the test)
            noticed += 1
        else:
            np.testing.assert_array_equal(loaded.predict(X), expected)
    assert noticed > 100


class Trap:
    """A type from outside, which must not be built."""

    def __setstate__(self, state):
        raise AssertionError("code from the file was run")

    def __getstate__(self):
        return {"a": 1}


def test_types_from_outside_are_refused_without_being_built(saved):
    import skops.io

    header = zipfile.ZipFile(saved).read("sorel.json")
    bad = skops.io.dumps({"model": Trap()})
    saved.write_bytes(bad)
    rewrite(saved, "sorel.json", header)
    with pytest.raises(ModelFileError, match=r"does not trust, and was not loaded: .*Trap"):
        load_model(saved)


@pytest.mark.parametrize("target", ["os.system", "builtins.eval", "sorel.cli.main"])
def test_functions_are_refused(saved, target):
    module, _, name = target.rpartition(".")
    with zipfile.ZipFile(saved) as archive:
        schema = json.loads(archive.read("schema.json"))
    node = {"__class__": name, "__module__": module, "__loader__": "FunctionNode"}
    rewrite(saved, "schema.json", json.dumps({**schema, **node}))
    with pytest.raises(ModelFileError, match=target):
        load_model(saved)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    X, y = data()
    path = tmp_path / "m.skops"
    path.write_bytes(b"old")
    risk = sorel.CustomSpectrum(lambda u: u)
    model = sorel.SpectralRiskRegressor(risk=risk).fit(X, y)
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


def test_unwritable_places(model, tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        save_model(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        save_model(model, tmp_path / "none" / "m.skops")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="there is no folder"):
        save_model(model, tmp_path / "file" / "m.skops")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_permissions_follow_the_umask_or_the_old_file(tmp_path):
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


@pytest.mark.skipif(os.name != "posix", reason="symbolic links and devices")
def test_links_and_devices_stay_what_they_are(tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    target.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    reading, writing = os.pipe()
    write_atomically(f"/dev/fd/{writing}", b"through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    os.close(writing)
    write_atomically("/dev/null", b"nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_versions_are_saved_and_compared(saved, tmp_path):
    header = json.loads(zipfile.ZipFile(saved).read("sorel.json"))
    assert header["versions"] == {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    assert read_summary(saved)["versions"] == header["versions"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(saved)
    header["versions"] = {"scikit-learn": "0.99.3", "numpy": "1.21.0"}
    rewrite(saved, "sorel.json", json.dumps(header))
    here = rf"scikit-learn 0\.99\.3 \(here: {sklearn.__version__}\) and numpy 1\.21\.0"
    with pytest.warns(UserWarning, match=here) as seen:
        load_model(saved)
    assert seen[0].filename == __file__


@pytest.mark.parametrize("package", ["packaging.version", "skops.io", "skops"])
def test_a_missing_package_is_no_damage(saved, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith(package.partition(".")[0])]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sorel\[cli\]"') as caught:
        load_model(saved)
    assert not isinstance(caught.value, ValueError)


def test_weights_of_the_samples_can_be_left_out(model, tmp_path):
    X, y = data()
    pipeline = make_pipeline(StandardScaler(), sorel.SpectralRiskRegressor("cvar:0.2")).fit(X, y)
    for whole in (model, pipeline):
        save_model(whole, tmp_path / "m.skops", risk_weights=False)
        loaded = load_model(tmp_path / "m.skops")
        last = loaded[-1] if whole is pipeline else loaded
        assert not hasattr(last, "risk_weights_")
        np.testing.assert_array_equal(loaded.predict(X), whole.predict(X))
        assert hasattr(whole[-1] if whole is pipeline else whole, "risk_weights_")
    copy = pickle.loads(pickle.dumps(model))
    del copy.risk_weights_
    assert len(pickle.dumps(copy)) < len(pickle.dumps(model)) - 8 * len(y)
    copy.set_params(warm_start=True).fit(X, y)
    assert copy.converged_
    assert len(copy.risk_weights_) == len(y)


def test_where_a_fit_kept_its_state_is_not_saved(tmp_path):
    keeping = sorel.SpectralRiskRegressor(checkpoint="fit.ckpt")
    for model in (keeping, make_pipeline(StandardScaler(), keeping)):
        save_model(model, tmp_path / "m.skops")
        assert "fit.ckpt" not in zipfile.ZipFile(tmp_path / "m.skops").read("schema.json").decode()
        assert keeping.checkpoint == "fit.ckpt"
