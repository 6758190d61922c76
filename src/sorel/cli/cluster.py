"""``sorel fit --scheduler`` and ``--local-cluster``: Parquet files that the workers read.

The model is the one that the same command makes in memory: columns are standardised inside the
saved pipeline, and predictions need no cluster.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sorel.cli.shared import Misuse

# Different values of a partition that are looked at to tell labels from numbers.
_FEW = 1000


def fit_on_cluster(arguments: argparse.Namespace) -> tuple[str, dict[str, str], int, Any]:
    """Task, kinds of columns, number of rows and fitted pipeline."""
    from sorel.cli.fit import _estimator_settings, _needs_table, _target
    from sorel.dask import DaskSpectralRiskClassifier, DaskSpectralRiskRegressor

    needs = _needs_table(arguments)
    if arguments.out_of_core:
        needs.append("--out-of-core")
    if needs:
        raise Misuse(f"{' and '.join(needs)} cannot be had on a cluster")
    with _client(arguments) as client:
        frame, names = _open(arguments)
        y = frame[arguments.target]
        seen = y.map_partitions(_some_values, meta=y._meta).compute()
        task, _ = _target(seen.reset_index(drop=True), arguments)
        kind = DaskSpectralRiskRegressor if task == "regression" else DaskSpectralRiskClassifier
        settings = {**_estimator_settings(task, arguments), "client": client}
        weight = None
        if arguments.sample_weight is not None:
            weight = frame[arguments.sample_weight]
        pipeline, scaled = _standardised(frame[names], names)
        # In the pipeline, too, the model gets numbers without names.
        rows = scaled.to_dask_array()
        model = kind(**settings).fit(rows, y, weight)
        pipeline.steps[-1] = ("model", model.to_local())
        if arguments.baselines:
            pipeline.baselines_ = _baselines(model, rows, y, weight)
        count = len(model.risk_weights_)
    return task, dict.fromkeys(names, "numeric"), count, pipeline


@contextmanager
def _client(arguments: argparse.Namespace) -> Iterator[Any]:
    """A client of the cluster that the arguments name, whose faults are errors of the command."""
    from sorel.dask import ClusterError  # says what to install where Dask is missing
    from sorel.dask.cluster import check_versions, dropping_stopped_workers, wait_for_worker

    try:
        with _connected(arguments) as client, dropping_stopped_workers(client):
            wait_for_worker(client)
            check_versions(client)
            yield client
    except ClusterError as error:
        # Workers that are lost or too small are no fault of the table.
        raise OSError(str(error)) from error


@contextmanager
def _connected(arguments: argparse.Namespace) -> Iterator[Any]:
    import distributed

    if arguments.scheduler is not None:
        try:
            client = distributed.Client(arguments.scheduler)
        except (OSError, ValueError) as error:
            raise OSError(
                f"there is no scheduler at {arguments.scheduler}: {error}; start one with "
                "`dask scheduler`, or use --local-cluster 2"
            ) from None
        with client:
            yield client
        return
    with (
        distributed.LocalCluster(
            n_workers=arguments.local_cluster,
            threads_per_worker=1,
            # On all interfaces where only a port is named.
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def _open(arguments: argparse.Namespace) -> tuple[Any, list[str]]:
    """The files as one dask DataFrame, and the names of its features."""
    import dask.dataframe as dd

    from sorel.tables import TableError, missing_columns

    for name in arguments.files:
        if not os.path.exists(name):
            raise FileNotFoundError(2, "No such file or directory", name)
    try:
        # Workers need not share the current folder.
        frame = dd.read_parquet([os.path.abspath(name) for name in arguments.files])
    except (ValueError, OSError) as error:
        raise TableError(
            f"{arguments.files[0]} cannot be read as Parquet, which a cluster needs: {error}"
        ) from None
    apart = [arguments.target, *arguments.drop]
    if arguments.sample_weight is not None:
        apart.append(arguments.sample_weight)
    absent = [name for name in apart if name not in frame.columns]
    if absent:
        raise TableError(missing_columns(absent, frame.columns))
    names = [name for name in frame.columns if name not in apart]
    if not names:
        raise TableError("the table has no columns to learn from besides the target")
    for name in names:
        kind = frame.dtypes[name]
        if getattr(kind, "kind", "O") not in "fiu":
            raise TableError(
                f"column {name!r} of {arguments.files[0]} holds {kind}; rows on a cluster must be "
                f"numbers: encode it, or leave it out with --drop {name!r}"
            )
    return frame, names


def _some_values(part: Any) -> Any:
    """Some of the different values of a target."""
    return part.dropna().drop_duplicates().head(_FEW)


def _standardised(frame: Any, names: list[str]) -> tuple[Any, Any]:
    """The pipeline with its preparation fitted, and the standardised rows."""
    import numpy as np
    import pandas as pd
    from dask.base import compute

    from sorel.tables import make_pipeline

    mean, deviation, count = compute(frame.mean(), frame.std(ddof=0), frame[names[0]].size)
    mean = mean[names].to_numpy(dtype=np.float64)
    scale = deviation[names].to_numpy(dtype=np.float64)
    variance = scale**2
    # As in scikit-learn: what does not vary is left as it is.
    scale = np.where(scale > 10 * np.finfo(float).eps * np.abs(mean), scale, 1.0)
    pipeline = make_pipeline(dict.fromkeys(names, "numeric"), None)
    # The columns learn their names from a table of one row, and the numbers from all rows.
    columns = pipeline["columns"].fit(pd.DataFrame([np.zeros(len(names))], columns=names))
    scaler = columns.named_transformers_["numeric"]
    scaler.mean_, scaler.scale_, scaler.var_ = mean, scale, variance
    scaler.n_samples_seen_ = np.int64(count)
    meta = pd.DataFrame({name: pd.Series([], dtype=np.float64) for name in names})
    return pipeline, frame.map_partitions(_scale, mean, scale, meta=meta)


def _scale(part: Any, mean: Any, scale: Any) -> Any:
    return (part - mean) / scale


def _baselines(model: Any, rows: Any, y: Any, weight: Any) -> dict[str, Any]:
    """What `sorel evaluate` compares with: the best constant model, and the fit to the mean."""
    from sklearn.base import clone

    from sorel import Mean, parse_risk

    fits = {"constant model": (model.risk, 0.0 * rows[:, :1])}
    if not isinstance(parse_risk(model.risk), Mean):
        fits["plain fit"] = ("mean", rows)
    if model.status_.startswith("interrupted"):
        return {}
    found = {}
    for name, (risk, table) in fits.items():
        other = clone(model).set_params(risk=risk, verbose=0, checkpoint=None)
        other._speaks_of_constant = False
        local = other.fit(table, y, weight).to_local()
        # Of the length of the table, and of no use to anybody who only predicts.
        del local.risk_weights_
        found[name] = local.set_params(n_jobs=None)
    return found
