"""The estimators of sorel.dask on a real cluster of processes: kinds of input, and refusals."""

import io

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

import sorel

pytest.importorskip("distributed", reason="Dask is an extra")

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import pandas as pd
from test_dask_cluster import cluster

from sorel.dask import ClusterError, DaskSpectralRiskClassifier, DaskSpectralRiskRegressor

N, D = 600, 4


@pytest.fixture(scope="module")
def client():
    with cluster(2) as client:
        yield client


def made():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    y = X @ np.arange(1.0, D + 1) + 0.5 + rng.standard_t(3, size=N)
    return X, y, rng.uniform(0.0, 2.0, N)


@pytest.fixture(scope="module")
def data():
    return made()


def lazy(X, chunks=150):
    chunks = (chunks, -1) if np.ndim(X) == 2 else chunks
    return da.from_array(X, chunks=chunks, asarray=False)


def unknown(array):
    """The same with chunk sizes that Dask does not know, some of them 0."""
    keep = da.from_array(np.ones(N, bool), chunks=array.chunks[0])
    return array[keep]


def check_same(model, local, tol=1e-6):
    """Both are certified, so the objectives lie within both gaps."""
    assert model.converged_, model.status_
    assert local.converged_, local.status_
    assert abs(model.objective_ - local.objective_) <= model.gap_ + local.gap_
    assert model.relative_gap_ <= tol
    np.testing.assert_allclose(model.coef_, local.coef_, atol=0.02)
    for name in ("coef_", "intercept_", "risk_weights_"):
        assert not hasattr(getattr(model, name), "dask")


def kinds(X, y, weight):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y, w=weight)
    table = dd.from_pandas(frame, npartitions=3)
    parts = X, y, weight
    return {
        "dense": tuple(map(lazy, parts)),
        "sparse": (lazy(X).map_blocks(scipy.sparse.csr_matrix), lazy(y), lazy(weight)),
        "frame": (table[list("abcd")], table["y"], table["w"]),
        "unknown lengths": tuple(unknown(lazy(part)) for part in parts),
        "empty partitions": tuple(
            da.concatenate([lazy(part[:0]), lazy(part), lazy(part[:0])]) for part in parts
        ),
        "other chunks of y": (lazy(X), lazy(y, 70), lazy(weight, 200)),
        "in memory": parts,
        "y in memory": (lazy(X), y, weight),
    }


@pytest.mark.parametrize("kind", kinds(*made()))
def test_kinds_of_input(client, data, kind):
    X, y, weight = kinds(*data)[kind]
    model = DaskSpectralRiskRegressor(risk="cvar:0.1", tol=1e-6, client=client)
    local = sorel.SpectralRiskRegressor(risk="cvar:0.1", tol=1e-6)
    check_same(model.fit(X, y), local.fit(*data[:2]))
    model.set_params(risk="esrm:2").fit(X, y, weight)
    check_same(model, local.set_params(risk="esrm:2").fit(*data))
    np.testing.assert_allclose(model.risk_weights_.sum(), 1.0, rtol=1e-12)
    assert len(model.risk_weights_) == N
    predictions = model.predict(X)
    if kind != "in memory":
        assert hasattr(predictions, "dask")
    expected = model.to_local().predict(data[0])
    np.testing.assert_allclose(np.asarray(predictions), expected, rtol=1e-12)


def test_chunks_along_both_axes_and_float32_warn(client, data):
    X, y, _ = data
    model = DaskSpectralRiskRegressor(tol=1e-6, client=client)
    with pytest.warns(UserWarning, match="2 chunks along its columns"):
        model.fit(da.from_array(X, chunks=(200, 2)), lazy(y))
    check_same(model, sorel.SpectralRiskRegressor(tol=1e-6).fit(X, y))
    assert model.predict(da.from_array(X, chunks=(200, 2))).compute().shape == (N,)
    X = X.astype(np.float32)
    model.set_params(tol=1e-5).fit(lazy(X), lazy(y))
    check_same(model, sorel.SpectralRiskRegressor(tol=1e-5).fit(X, y), 1e-5)
    with pytest.warns(sorel.PrecisionWarning, match="float32"):
        model.set_params(tol=1e-8).fit(lazy(X), lazy(y))


@pytest.mark.parametrize("settings", [
    {"fit_intercept": False},
    {"fit_intercept": "mean"},
    {"l1": 0.05, "l2": 0.1},
    {"penalty": sorel.Box(0.1, -0.5, 2.0)},
    {"risk": sorel.Max(), "l2": 1.0},
    {"risk": sorel.Mixture([sorel.Mean(), sorel.CVaR(0.1), sorel.ESRM(3)], [0.4, 0.3, 0.3])},
    {"solver": "newton_cg"},
], ids=str)  # fmt: skip
def test_settings(client, data, settings):
    X, y, _ = data
    settings = {"risk": "cvar:0.2", "tol": 1e-6, **settings}
    model = DaskSpectralRiskRegressor(**settings, client=client).fit(lazy(X), lazy(y))
    check_same(model, sorel.SpectralRiskRegressor(**settings).fit(X, y))


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
@pytest.mark.parametrize("risk", ["cvar:0.5", "esrm:1"])
def test_log_links_and_rows_of_weight_zero(client, data, loss, risk):
    rng = np.random.default_rng(1)
    X, used = data[0].copy(), np.arange(N) % 10 > 0
    mean = np.exp(0.3 * X[:, 0])
    X[~used, 0] = 5000.0  # exponentials of which overflow
    y = rng.poisson(mean).astype(float) if loss == "poisson" else mean * rng.gamma(2.0, 0.5, N)
    settings = {"risk": risk, "loss": loss, "tol": 1e-6}
    model = DaskSpectralRiskRegressor(**settings, client=client)
    model.fit(lazy(X), lazy(y), lazy(used.astype(float)))
    check_same(model, sorel.SpectralRiskRegressor(**settings).fit(X[used], y[used]))
    assert np.all(model.risk_weights_[~used] == 0.0)
    expected = model.to_sklearn().predict(X[used])
    np.testing.assert_allclose(model.predict(lazy(X[used])), expected)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("risk", ["cvar:0.5", "esrm:1"])
def test_classification(client, data, classes, risk):
    X, y, weight = data
    labels = np.array(["no", "yes", "perhaps"])[np.digitize(y, np.linspace(-2, 2, classes - 1))]
    settings = {"risk": risk, "tol": 1e-6}
    model = DaskSpectralRiskClassifier(**settings, client=client).fit(lazy(X), lazy(labels))
    local = sorel.SpectralRiskClassifier(**settings).fit(X, labels)
    check_same(model, local)
    assert model.classes_.tolist() == local.classes_.tolist()
    near = model.to_local()
    np.testing.assert_array_equal(model.predict(lazy(X)), model.to_sklearn().predict(X))
    for method in ("predict_proba", "decision_function", "predict_log_proba"):
        found, expected = getattr(model, method)(lazy(X)), getattr(near, method)(X)
        np.testing.assert_allclose(found.compute(), expected)
    table = dd.from_pandas(pd.DataFrame(X, columns=list("abcd")).assign(y=labels), npartitions=3)
    model.fit(table[list("abcd")], table["y"])
    check_same(model, local)
    frame = model.predict_proba(table[list("abcd")]).compute()
    assert [str(name) for name in frame.columns] == model.classes_.tolist()
    for class_weight in ("balanced", {"no": 3.0}):
        model.set_params(class_weight=class_weight).fit(lazy(X), lazy(labels), lazy(weight))
        local.set_params(class_weight=class_weight).fit(X, labels, weight)
        check_same(model, local)


def test_labels_that_a_partition_lacks_and_constant_models(client):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    labels = np.repeat([2, 5, 9], 100)
    noisy = X[:, 0] + 3 * rng.logistic(size=300) > 0
    with pytest.warns(sorel.ConstantModelWarning, match="hardly depend on X"):
        model = DaskSpectralRiskClassifier("cvar:0.1", client=client).fit(lazy(X), lazy(noisy))
    assert model.constant_
    X[:, 0] += labels / 4
    model.set_params(risk="esrm:1", tol=1e-6).fit(lazy(X, 100), lazy(labels, 100))
    check_same(model, sorel.SpectralRiskClassifier("esrm:1", tol=1e-6).fit(X, labels))
    with pytest.raises(ValueError, match="only one class"):
        model.fit(lazy(X, 100), lazy(np.ones(300), 100))


def test_status_says_what_was_exchanged(client, data):
    X, y, _ = data
    model = DaskSpectralRiskRegressor(risk="esrm:2", client=client)
    assert "600 rows on 2 workers" in model.fit(lazy(X), lazy(y)).status_
    assert "every loss in a bin of its own" in model.status_
    with dask.config.set({"sorel.bins": 100}):
        assert "bins each" in model.fit(lazy(X), lazy(y)).status_
    assert "thresholds" in model.set_params(risk="cvar:0.1").fit(lazy(X), lazy(y)).status_


def test_model_files_and_clones(client, data):
    X, y, _ = data
    model = DaskSpectralRiskRegressor(risk="cvar:0.1", client=client).fit(lazy(X), lazy(y))
    assert clone(model).client is client
    local = model.to_local()
    assert local.get_params() == {k: v for k, v in model.get_params().items() if k != "client"}
    assert len(local.history_) == len(model.history_)
    pytest.importorskip("skops", reason="skops is an extra")
    stream = io.BytesIO()
    sorel.save_model(model, stream)
    stream.seek(0)
    found = sorel.load_model(stream)
    assert type(found) is type(local) is sorel.SpectralRiskRegressor
    np.testing.assert_array_equal(found.coef_, model.coef_)


def test_checkpoints_and_warm_starts(client, data, tmp_path):
    X, y, _ = data
    model = DaskSpectralRiskRegressor("esrm:2", checkpoint=tmp_path / "fit.ckpt", client=client)
    model.fit(lazy(X), lazy(y))
    assert "resumed at pass" in model.fit(lazy(X), lazy(y)).status_
    model = DaskSpectralRiskRegressor("esrm:2", tol=1e-6, warm_start=True, client=client)
    cold = model.fit(lazy(X), lazy(y)).n_passes_
    assert model.fit(lazy(X), lazy(y)).n_passes_ <= cold


def test_local_estimators_name_the_dask_class(data):
    X, y, _ = data
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=2)
    for kind in ("Regressor", "Classifier"):
        for given, target in ((lazy(X), y > 0), (frame, y > 0), (X, lazy(y))):
            with pytest.raises(TypeError, match=rf"use sorel\.dask\.DaskSpectralRisk{kind}"):
                getattr(sorel, f"SpectralRisk{kind}")().fit(given, target)


def bad_inputs(X, y):
    names = list("abcd")
    nan = X.copy()
    nan[450, 2] = np.nan
    frame = pd.DataFrame(X, columns=names)
    halves = dd.from_pandas(pd.Series(y), npartitions=2)

    def joined(second):
        parts = [dask.delayed(lambda part=part: part)() for part in (frame[:300], second)]
        return dd.from_delayed(parts, meta=frame[:0], verify_meta=False)

    wrong = joined(frame[300:].rename(columns={"b": "q"}))
    text = joined(frame[300:].astype({"c": str}))
    # It claims one column more than it has.
    narrow = da.from_delayed(dask.delayed(X[300:, :3]), shape=(300, D), dtype=float)
    narrow = da.concatenate([lazy(X[:300], 300), narrow], axis=0)
    return {
        "NaN": (lazy(nan), lazy(y), r"partition 3: X has .*: X\[0, 2\] = nan"),
        "NaN in a frame": (dd.from_pandas(pd.DataFrame(nan, columns=names), npartitions=2), halves,
                           r"partition 1: X has .*: X\[150, 2\] = nan"),
        "other columns": (wrong, halves, r"partition 1: X has the columns \['a', 'q'"),
        "other types": (text, halves, r"partition 1: column 'c' of X holds"),
        "other width": (narrow, lazy(y, 300), r"partition 1: X has shape \(300, 3\)"),
        "length of y": (lazy(X), lazy(y[:-1]), "X has 600 rows but y has 599 values"),
        "length of y in memory": (lazy(X), y[:-1], "X has 600 rows but y has 599 values"),
        "partitions of y": (unknown(lazy(X)), lazy(y, 300), "y has 2 partitions and X has 4"),
        "rows of a partition": (
            unknown(lazy(X)), lazy(y)[da.from_array(np.arange(N) > 0, chunks=150)],
            r"partition 0: X has 150 rows but y has 149 values",
        ),
        "NaN in y": (lazy(X), lazy(np.where(y == y[200], np.nan, y)), "partition 1: .*y\\[50\\]"),
        "texts in y": (lazy(X), lazy(y.astype(str)), "use DaskSpectralRiskClassifier"),
        "one dimension": (lazy(y), lazy(y), "two-dimensional"),
        "two targets": (lazy(X), lazy(X[:, :2]), "y should be a 1d array"),
        "no rows": (lazy(X[:0]), lazy(y[:0]), "no rows"),
    }  # fmt: skip


@pytest.mark.parametrize("case", bad_inputs(*made()[:2]))
def test_bad_input_is_named(client, data, case):
    X, y, message = bad_inputs(*data[:2])[case]
    with pytest.raises(ValueError, match=message):
        DaskSpectralRiskRegressor(client=client).fit(X, y)


def test_bad_weights_bins_and_clients(client, data):
    X, y, _ = data
    model = DaskSpectralRiskRegressor(client=client)
    with pytest.raises(ValueError, match=r"partition 0: sample_weight\[3\] = -1.0"):
        model.fit(lazy(X), lazy(y), lazy(np.where(np.arange(N) == 3, -1.0, 1.0)))
    with pytest.raises(ValueError, match="zero everywhere"):
        model.fit(lazy(X), lazy(y), lazy(np.zeros(N)))
    with dask.config.set({"sorel.bins": 0}), pytest.raises(ValueError, match=r"sorel\.bins"):
        model.fit(lazy(X), lazy(y))
    with pytest.raises(TypeError, match=r"must be a distributed\.Client"):
        DaskSpectralRiskRegressor(client="tcp://nowhere").fit(lazy(X), lazy(y))
    closed = distributed.Client(client.cluster, set_as_default=False)
    closed.close()
    with pytest.raises(ClusterError, match="the client is closed"):
        DaskSpectralRiskRegressor(client=closed).fit(lazy(X), lazy(y))


def test_nothing_is_left_on_the_workers(client, data):
    def homes():
        from sorel.dask import shards

        return len(shards._HOMES)

    X, y, _ = data
    DaskSpectralRiskRegressor("esrm:2", client=client).fit(lazy(X), lazy(y))
    with pytest.raises(ValueError, match="partition"):
        DaskSpectralRiskRegressor(client=client).fit(lazy(np.full((N, 2), np.nan)), lazy(y))
    assert set(client.run(homes).values()) == {0}
    assert not [key for key in client.futures if "sorel" in str(key)]
