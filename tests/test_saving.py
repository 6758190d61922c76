"""Saved models: the way there and back, what is refused, and what a failure leaves behind."""

import contextlib
import io
import json
import os
import pickle
import stat
import sys
import threading
import warnings
import zipfile

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sorel
from sorel import saving
from sorel._files import write_atomically
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


def test_classifier_in_a_pipeline_comes_back(tmp_path):
    X, y = data()
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-1.0, 1.0])]
    model = make_pipeline(StandardScaler(), sorel.SpectralRiskClassifier(loss="logistic"))
    model.fit(X, labels)
    save_model(model, tmp_path / "m.skops")
    loaded = load_model(tmp_path / "m.skops")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_instances_of_losses_solvers_and_searches_come_back(tmp_path):
    X, y = data()
    models = [
        sorel.SpectralRiskRegressor(loss=sorel.losses.Huber(2.0), solver=sorel.solvers.SOREL()),
        sorel.SpectralRiskRegressorCV(risks=["mean", sorel.CVaR(0.5)], l2s=[0.1], cv=2),
    ]
    for model in models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        save_model(model, tmp_path / "m.skops")
        loaded = load_model(tmp_path / "m.skops")
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


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


def test_empty_file(tmp_path):
    path = tmp_path / "m.skops"
    path.write_bytes(b"")
    for read in (load_model, read_summary):
        with pytest.raises(ModelFileError, match=r"m\.skops' is empty"):
            read(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "m.skops")


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x80\x04\x95", b"PK\x03\x04 and no more"])
def test_other_files(content, tmp_path):
    path = tmp_path / "m.skops"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not a model of sorel, or it is damaged"):
        load_model(path)


def test_a_model_of_skops_without_our_header(tmp_path):
    import skops.io

    skops.io.dump(Ridge(), tmp_path / "ridge.skops")
    with pytest.raises(ModelFileError, match=r"not a model of sorel: it has no sorel\.json"):
        load_model(tmp_path / "ridge.skops")


@pytest.mark.parametrize("changes", [{"sorel": "99.0.0"}, {"sorel": "99.0.0", "format": 7}])
def test_newer_version(saved, changes):
    change_header(saved, **changes)
    for read in (load_model, read_summary):
        with pytest.raises(ModelFileError, match=r"saved by sorel 99\.0\.0, newer than this sorel"):
            read(saved)


def test_older_version_is_accepted(saved):
    change_header(saved, sorel="0.0.1")
    load_model(saved)


@pytest.mark.parametrize(
    "changes", [{"sorel": None}, {"sorel": "new"}, {"format": "x"}, {"summary": []}]
)
def test_headers_that_make_no_sense(saved, changes):
    change_header(saved, **changes)
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"protocol": 2}'])
def test_schemas_that_make_no_sense(saved, content):
    rewrite(saved, "schema.json", content)
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(saved)


def test_missing_members(saved):
    with zipfile.ZipFile(saved) as archive:
        array = next(name for name in archive.namelist() if name.endswith(".npy"))
    rewrite(saved, array, None)
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(saved)


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


def test_without_skops_the_extra_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sorel\[cli\]"'):
        save_model(model, tmp_path / "m.skops")


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
    # Where such a file cannot be built, the versions are the first thing to know.
    rewrite(saved, "schema.json", "{}")
    with pytest.warns(UserWarning, match=here), pytest.raises(ModelFileError, match=here):
        load_model(saved)


def test_files_without_versions_are_read_in_silence(saved):
    header = json.loads(zipfile.ZipFile(saved).read("sorel.json"))
    for versions in (None, "1.0", {"numpy": 3}):
        header["versions"] = versions
        rewrite(saved, "sorel.json", json.dumps(header))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_model(saved)


@pytest.mark.parametrize("package", ["packaging.version", "skops.io", "skops"])
def test_a_missing_package_is_no_damage(saved, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith(package.partition(".")[0])]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sorel\[cli\]"') as caught:
        load_model(saved)
    assert not isinstance(caught.value, ValueError)


def test_a_module_that_nobody_has_is_no_missing_package(saved):
    with zipfile.ZipFile(saved) as archive:
        schema = json.loads(archive.read("schema.json"))
    rewrite(saved, "schema.json", json.dumps({**schema, "__module__": "nobody.has.this"}))
    with pytest.raises(ModelFileError):
        load_model(saved)


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


def test_errors_without_words_are_called_by_their_type(saved, monkeypatch):
    import skops.io

    def fail(*arguments, **options):
        raise KeyError

    monkeypatch.setattr(skops.io, "loads", fail)
    with pytest.raises(ModelFileError, match=r"was not loaded: KeyError$"):
        load_model(saved)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
@pytest.mark.parametrize("spare", [0, -1])
def test_pipes_are_read_as_far_as_a_model_may_be_long(saved, tmp_path, monkeypatch, spare):
    content = saved.read_bytes()
    monkeypatch.setattr(saving, "_MAX_PIPE", len(content) + spare)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with contextlib.suppress(BrokenPipeError):
            pipe.write_bytes(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        if spare < 0:
            with pytest.raises(ModelFileError, match="does not end"):
                load_model(pipe)
        else:
            assert load_model(pipe).coef_.shape == (3,)
    finally:
        writer.join()


@pytest.mark.parametrize("name", [None, "another.package"])
def test_another_package_that_is_missing_is_not_called_skops(model, tmp_path, monkeypatch, name):
    class Broken:
        def find_spec(self, module, path=None, target=None):
            if module == "skops.io":
                raise ModuleNotFoundError("not this one", name=name)

    monkeypatch.delitem(sys.modules, "skops.io", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="not this one"):
        save_model(model, tmp_path / "model.skops")


@pytest.fixture(scope="module")
def wide():
    """A model of many columns, of which some hold texts, and its table."""
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    from sorel.tables import column_kinds, make_pipeline

    rng = np.random.default_rng(0)
    columns = {f"x{k}": rng.normal(size=30) for k in range(400)}
    columns.update({f"t{k}": rng.choice(["a", f"b{k}"], 30) for k in range(300)})
    columns["city"] = np.array([f"town {k}" for k in range(30)])
    table = pd.DataFrame(columns)
    pipeline = make_pipeline(column_kinds(table), sorel.SpectralRiskRegressor())
    return pipeline.fit(table, table["x0"]), table


def test_names_of_many_columns_are_kept_beside_the_model(wide, tmp_path):
    model, table = wide
    names = model["columns"].feature_names_in_
    save_model(model, tmp_path / "model.skops", summary={"columns": dict.fromkeys(names, "any")})
    with zipfile.ZipFile(tmp_path / "model.skops") as archive:
        schema = archive.read("schema.json").decode()
        assert json.loads(archive.read("sorel.json"))["format"] == 2
    assert "x399" not in schema
    assert "b299" not in schema
    # Saving has changed nothing about the model itself.
    assert model["columns"].feature_names_in_ is names
    loaded = load_model(tmp_path / "model.skops")
    np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
    for before, after in zip(_parts(model), _parts(loaded), strict=True):
        np.testing.assert_array_equal(after.feature_names_in_, before.feature_names_in_)
    np.testing.assert_array_equal(
        loaded[:-1].get_feature_names_out(), model[:-1].get_feature_names_out()
    )
    encoders = (part["columns"].named_transformers_["categorical"] for part in (model, loaded))
    for before, after in zip(*(encoder.categories_ for encoder in encoders), strict=True):
        assert before.tolist() == after.tolist()
    assert list(read_summary(tmp_path / "model.skops")["columns"]) == list(names)
    # What was loaded can be saved again, and is the same then.
    save_model(loaded, tmp_path / "again.skops")
    np.testing.assert_array_equal(
        load_model(tmp_path / "again.skops").predict(table), model.predict(table)
    )


def _parts(pipeline):
    columns = pipeline["columns"]
    return [columns, *columns.named_transformers_.values()]


def test_few_columns_make_a_file_that_earlier_versions_read(saved):
    with zipfile.ZipFile(saved) as archive:
        assert json.loads(archive.read("sorel.json"))["format"] == 1
        assert "lists.json" not in archive.namelist()


def test_a_wide_model_saved_without_lists_still_loads(wide, tmp_path, monkeypatch):
    """As earlier versions wrote it: every name in the schema."""
    model, table = wide
    monkeypatch.setattr("sorel._sequences._LONG", 10**9)
    save_model(model, tmp_path / "model.skops")
    monkeypatch.undo()
    with zipfile.ZipFile(tmp_path / "model.skops") as archive:
        assert "x399" in archive.read("schema.json").decode()
    np.testing.assert_array_equal(
        load_model(tmp_path / "model.skops").predict(table), model.predict(table)
    )


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"[1]", b'{"0": []}', b"[[[1]]]", b"[" * 10_000, b"[[1, 2]]"]
)
def test_lists_that_make_no_sense(wide, tmp_path, content):
    save_model(wide[0], tmp_path / "model.skops")
    rewrite(tmp_path / "model.skops", "lists.json", content)
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(tmp_path / "model.skops")


def test_marks_are_places_in_the_lists():
    from sorel._sequences import put_back

    for place, kind in ((-1, "list"), ("0", "list"), (True, "list"), (0, "set")):
        mark = {"sorel_sequence": place, "kind": kind}
        with pytest.raises(ValueError, match="no place"):
            put_back({"a": mark}, [["x"], ["y"]])
    with pytest.raises(IndexError):
        put_back({"a": {"sorel_sequence": 2, "kind": "list"}}, [["x"], ["y"]])
    # A list that holds itself is looked at once.
    around = [1]
    around.append(around)
    assert put_back(around, []) is around


def test_where_a_fit_kept_its_state_is_not_saved(tmp_path):
    keeping = sorel.SpectralRiskRegressor(checkpoint="fit.ckpt")
    for model in (keeping, make_pipeline(StandardScaler(), keeping)):
        save_model(model, tmp_path / "m.skops")
        assert "fit.ckpt" not in zipfile.ZipFile(tmp_path / "m.skops").read("schema.json").decode()
        assert keeping.checkpoint == "fit.ckpt"


@pytest.mark.parametrize(
    ("risk", "told"),
    [
        ("CVAR:0.2", "CVAR:0.2"),
        (sorel.CVaR(0.2), "cvar:0.2"),
        (sorel.CustomSpectrum([1.0, 2.0]), "CustomSpectrum((1.0, 2.0))"),
    ],
)
def test_a_risk_is_described_by_its_short_form_where_it_has_one(risk, told):
    assert saving._describe(sorel.SpectralRiskRegressor(risk=risk))["risk"] == told


@pytest.mark.parametrize(
    ("text", "shown"), [("found: ['a.B', 'c.D'].", "'a.B', 'c.D'"), ("no list", "no list")]
)
def test_types_that_are_not_trusted_are_listed(saved, monkeypatch, text, shown):
    from skops.io import exceptions

    class Untrusted(exceptions.UntrustedTypesFoundException):
        def __init__(self):
            Exception.__init__(self, text)

        def __str__(self):
            return text

    def refuse(*arguments, **options):
        raise Untrusted

    monkeypatch.setattr("skops.io.loads", refuse)
    with pytest.raises(ModelFileError, match="does not trust") as raised:
        load_model(saved)
    assert f"was not loaded: {shown};" in str(raised.value)


def test_missing_packages_are_named_where_a_model_may_need_them():
    with pytest.raises(ModuleNotFoundError, match=r"scipy is needed"):
        saving._tell_missing("the file", ImportError(name="scipy.sparse"))
    saving._tell_missing("the file", ImportError(name="elsewhere"))
    saving._tell_missing("the file", ImportError())
    saving._tell_missing("the file", NameError(name="scipy"))
