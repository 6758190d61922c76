"""``sorel fit --scheduler`` and ``--local-cluster``: Parquet files that the workers read.

The model is the one that the same command makes in memory: columns are standardised inside the
saved pipeline, and predictions need no cluster.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sorel.cli.fit import Fitted, baselines, estimator_settings, needs_table, read_target
from sorel.cli.shared import Misuse

# Different values of a partition that are looked at to tell labels from numbers.
_FEW = 1000


def fit_on_cluster(arguments: argparse.Namespace) -> Fitted:
    """Fit Parquet files that the workers of a cluster read."""
    from sorel.dask import DaskSpectralRiskClassifier, DaskSpectralRiskRegressor

    needs = needs_table(arguments)
    if arguments.out_of_core:
        needs.append("--out-of-core")
    if needs:
        raise Misuse(f"{' and '.join(needs)} cannot be had on a cluster")
    with _client(arguments) as client:
        frame, names = _open(arguments)
        y = frame[arguments.target]
        # Some of the different values of the target tell what it is.
        seen = y.map_partitions(
            lambda part: part.dropna().drop_duplicates().head(_FEW), meta=y._meta
        ).compute()
        task, _ = read_target(seen.reset_index(drop=True), arguments)
        kind = DaskSpectralRiskRegressor if task == "regression" else DaskSpectralRiskClassifier
        settings = {**estimator_settings(task, arguments), "client": client}
        name = arguments.sample_weight
        weight = None if name is None else frame[name]
        pipeline, scaled = _standardised(frame[names], names)
        # In the pipeline, too, the model gets numbers without names.
        rows = scaled.to_dask_array()
        model = kind(**settings).fit(rows, y, weight)
        pipeline.steps[-1] = ("model", model.to_local())
        if arguments.baselines:
            pipeline.baselines_ = baselines(model, rows, y, weight)
        count = len(model.risk_weights_)
    return Fitted(task, dict.fromkeys(names, "numeric"), count, pipeline)


@contextmanager
def _client(arguments: argparse.Namespace) -> Iterator[Any]:
    """A client of the cluster that the arguments name, whose faults are errors of the command."""
    from sorel.dask import ClusterError  # says what to install where Dask is missing
    from sorel.dask.cluster import check_versions, dropping_stopped_workers, wait_for_worker

    import distributed  # isort: skip

    with ExitStack() as stack:
        cluster = arguments.scheduler
        if cluster is None:
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=arguments.local_cluster,
                    threads_per_worker=1,
                    # On all interfaces where only a port is named.
                    dashboard_address="127.0.0.1:0",
                )
            )
        try:
            client = stack.enter_context(distributed.Client(cluster))
        except (OSError, ValueError) as error:
            raise OSError(
                f"there is no scheduler at {arguments.scheduler}: {error}; start one with "
                "`dask scheduler`, or use --local-cluster 2"
            ) from None
        try:
            with dropping_stopped_workers(client):
                wait_for_worker(client)
                check_versions(client)
                yield client
        except ClusterError as error:
            # Workers that are lost or too small are no fault of the table.
            raise OSError(str(error)) from error


def _open(arguments: argparse.Namespace) -> tuple[Any, list[str]]:
    """The files as one dask DataFrame, and the names of its features."""
    import dask.dataframe as dd

    from sorel.files.tables import TableError, require_columns, require_features

    for name in arguments.files:
        os.stat(name)  # an error names the file that is not there
    try:
        # Workers need not share the current folder.
        frame = dd.read_parquet([os.path.abspath(name) for name in arguments.files])
    except (ValueError, OSError) as error:
        raise TableError(
            f"{arguments.files[0]} cannot be read as Parquet, which a cluster needs: {error}"
        ) from None
    require_columns(frame.columns, arguments.excluded)
    names = [name for name in frame.columns if name not in arguments.excluded]
    require_features(names)
    for name in names:
        kind = frame.dtypes[name]
        if getattr(kind, "kind", "O") not in "fiu":
            raise TableError(
                f"column {name!r} of {arguments.files[0]} holds {kind}; rows on a cluster must be "
                f"numbers: encode it, or leave it out with --drop {name!r}"
            )
    return frame, names


def _standardised(frame: Any, names: list[str]) -> tuple[Any, Any]:
    """The pipeline with its preparation fitted, and the standardised rows."""
    import numpy as np
    import pandas as pd
    from dask.base import compute
    from sklearn.preprocessing import StandardScaler

    from sorel.files.tables import scaled_pipeline

    found = compute(frame.mean(), frame.std(ddof=0), frame[names[0]].size)
    mean, deviation = (part[names].to_numpy(dtype=np.float64) for part in found[:2])
    # As in scikit-learn: what does not vary is left as it is.
    scale = np.where(deviation > 10 * np.finfo(float).eps * np.abs(mean), deviation, 1.0)
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_, scaler.var_ = mean, scale, deviation**2
    scaler.n_samples_seen_ = np.int64(found[2])
    meta = pd.DataFrame(columns=names, dtype=np.float64)
    scaled = frame.map_partitions(lambda part: (part - mean) / scale, meta=meta)
    return scaled_pipeline(names, scaler, None), scaled
