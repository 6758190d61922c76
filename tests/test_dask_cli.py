"""`sorel fit` on a cluster: the model is the one that the command makes in memory."""

import re

import numpy as np
import pandas as pd
import pytest

import sorel
from sorel.cli import main

pytest.importorskip("distributed", reason="Dask is an extra")
pytest.importorskip("skops", reason="skops is an extra")

import dask
import distributed
import psutil

from sorel.dask import DaskSpectralRiskRegressor


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    rng = np.random.default_rng(0)
    for i in range(3):
        X = rng.normal(size=(200, 3)) * [1.0, 10.0, 100.0] + 5.0
        y = X @ [1.0, 0.1, 0.01] + rng.standard_t(3, size=200)
        frame = pd.DataFrame(X, columns=list("abc")).assign(
            y=y, label=np.where(y > 7, "high", "low"), w=rng.uniform(0.5, 2.0, 200)
        )
        frame.to_parquet(folder / f"part{i}.parquet")
    paths = sorted(str(path) for path in folder.glob("part*.parquet"))
    whole = folder / "whole.parquet"
    pd.concat([pd.read_parquet(path) for path in paths]).to_parquet(whole)
    return paths, str(whole)


@pytest.fixture(scope="module")
def scheduler():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.parametrize(
    ("target", "drop"), [("y", ["label"]), ("label", ["y"])], ids=["numbers", "labels"]
)
def test_the_same_model_as_in_memory(files, scheduler, tmp_path, capsys, target, drop):
    paths, whole = files
    settings = ["--target", target, "--risk", "cvar:0.3", "--tol", "1e-7", "--sample-weight", "w"]
    for name in drop:
        settings += ["--drop", name]
    near, far = str(tmp_path / "near.skops"), str(tmp_path / "far.skops")
    assert main(["fit", whole, *settings, "-o", near]) == 0
    assert main(["fit", *paths, *settings, "--scheduler", scheduler, "-o", far]) == 0
    assert "on 600 rows, 3 columns" in capsys.readouterr().err
    near, far = sorel.load_model(near), sorel.load_model(far)
    assert type(far[-1]) is type(near[-1])
    table = pd.read_parquet(whole)[list("abc")]
    np.testing.assert_allclose(far[:-1].transform(table), near[:-1].transform(table), rtol=1e-9)
    np.testing.assert_allclose(far[-1].coef_, near[-1].coef_, rtol=1e-3, atol=1e-4)
    assert sorted(far.baselines_) == sorted(near.baselines_)
    out = str(tmp_path / "predictions.csv")
    assert main(["predict", str(tmp_path / "far.skops"), whole, "-o", out]) == 0
    assert len(pd.read_csv(out)) == 600


def test_a_cluster_for_the_time_of_the_fit(files, tmp_path, monkeypatch):
    paths, _ = files
    out = tmp_path / "model.skops"
    fit, heard = DaskSpectralRiskRegressor.fit, []

    def listened(*args):
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            heard.extend(c for c in process.net_connections("inet") if c.status == "LISTEN")
        return fit(*args)

    monkeypatch.setattr(DaskSpectralRiskRegressor, "fit", listened)
    arguments = ["--target", "y", "--drop", "label", "--local-cluster", "1", "-o", str(out)]
    assert main(["fit", *paths, *arguments, "--no-baselines"]) == 0
    assert out.exists()
    # Other clusters of this process listen too, and their dashboards on loopback as well.
    assert {connection.laddr.ip for connection in heard} == {"127.0.0.1"}


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["--target", "y"], 2, "3 files are for a cluster"),
    (["--target", "y", "--local-cluster", "1", "--scheduler", "x"], 2, "two clusters"),
    (["--target", "y", "--impute", "--scheduler", "HERE"], 2, "--impute cannot be had"),
    (["--target", "q", "--scheduler", "HERE"], 4, "no column 'q'"),
    (["--target", "y", "--scheduler", "HERE"], 4, "column 'label' .* must be numbers"),
    (["--target", "y", "--scheduler", "tcp://127.0.0.1:9"], 1, "no scheduler at"),
], ids=["no cluster", "two clusters", "impute", "no column", "texts", "no scheduler"])  # fmt: skip
def test_refusals(files, scheduler, tmp_path, capsys, arguments, code, message):
    paths, _ = files
    arguments = [scheduler if part == "HERE" else part for part in arguments]
    out = tmp_path / "model.skops"
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert main(["fit", *paths, *arguments, "-o", str(out)]) == code
    assert re.search(message, capsys.readouterr().err)
    assert not out.exists()
