"""From what a user gives to partitions on the workers: dask arrays, DataFrames, and their faults.

Every partition is checked where it lies, in the task that makes it: what is wrong is said with the
number of the partition. Only facts of fixed size (rows, bytes, sums, labels) come back.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import dask.array as da
import distributed
import numpy as np
import scipy.sparse
from dask.base import is_dask_collection
from dask.delayed import delayed
from distributed.client import FutureCancelledError
from numpy.typing import NDArray

from sorel._lib.inputs import check_numbers, check_present
from sorel._lib.warnings import warn
from sorel.dask.cluster import ClusterError, check_versions, wait_for_futures, wait_for_worker
from sorel.dask.shards import Partition, matrix_bytes
from sorel.problem.losses import Loss
from sorel.problem.risks import FloatArray
from sorel.problem.validation import check_matrix

# A worker with more than so many times its share of the bytes hands some over, once.
_UNEVEN = 1.2

# Different labels of a partition beyond which y is no list of labels.
_MAX_LABELS = 10_000


class PartitionFacts(NamedTuple):
    """What the driver learns of a partition.

    Attributes
    ----------
    rows, bytes, data_type
        Its size, and the type of the entries of X.
    weight, least_weight, largest_weight : float
        Sum and range of the sample weights, 1 each where there are none.
    labels, label_counts, label_weights : array or None
        The labels of rows with weight, how many rows have each, and their weights together.
    targets : tuple of float or None
        The least and the largest target of rows with weight, and the weighted sum.
    sums : tuple or None
        Weighted sums of the rows of X and of the targets.
    """

    rows: int
    bytes: int
    data_type: str
    weight: float
    least_weight: float
    largest_weight: float
    labels: NDArray[Any] | None
    label_counts: NDArray[np.int64] | None
    label_weights: FloatArray | None
    targets: tuple[float, float, float] | None
    sums: tuple[FloatArray, float] | None


class Collections(NamedTuple):
    """Partitions that the workers hold.

    Attributes
    ----------
    futures : list of Future
        One :class:`~sorel.dask.shards.Partition` for each partition.
    facts : list of PartitionFacts
        What is known of each.
    n_features : int
        Columns of X.
    names : list of str or None
        Their names.
    """

    futures: list[Any]
    facts: list[PartitionFacts]
    n_features: int
    names: list[str] | None


def load(
    client: distributed.Client,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    loss: Loss,
    means: bool,
    name: str,
) -> Collections:
    """Check what a user gave, and have the workers hold it.

    Parameters
    ----------
    client : Client
        The cluster.
    X, y, sample_weight
        Dask collections; arrays in memory are cut into one piece for each worker.
    loss : Loss
        Says which targets are good.
    means : bool
        Whether sums of X and y are wanted.
    name : str
        How the work is called on the dashboard.
    """
    workers = wait_for_worker(client)
    check_versions(client)
    rows, chunks, d, names = _row_blocks(X, workers)
    targets = _vector_blocks(y, "y", len(rows), chunks)
    weights: list[Any] = [None] * len(rows)
    if sample_weight is not None:
        weights = _vector_blocks(sample_weight, "sample_weight", len(rows), chunks)
    classes, token = loss.is_classifier, uuid.uuid4().hex
    with distributed.span(name):
        blocks = [
            delayed(make_block, pure=False)(
                *parts, place, d, names, loss, dask_key_name=f"sorel-block-{token}-{place}"
            )
            for place, parts in enumerate(zip(rows, targets, weights, strict=True))
        ]
        futures = client.compute(blocks, optimize_graph=True, sync=False)
        facts = client.map(
            describe_block, futures, classes=classes, means=means, pure=False, key="sorel-facts"
        )
    try:
        found = _gathered(client, facts)
        if not any(fact.rows for fact in found):
            raise ValueError(f"X has no rows in any of its {len(futures)} partitions")
        if not any(fact.weight for fact in found):
            raise ValueError("sample_weight is zero everywhere: give some sample a positive weight")
    except BaseException:
        # The traceback may outlive this call, and would keep them on the workers.
        for future in futures:
            future.release()
        raise
    finally:
        for future in facts:
            future.release()
    return Collections(_balanced(client, futures, found), found, d, names)


def _balanced(
    client: distributed.Client, futures: list[Any], facts: list[PartitionFacts]
) -> list[Any]:
    """The same partitions, some of them moved where one worker holds far more than its share."""
    who = client.who_has(futures)
    holder = [next(iter(who[future.key]), "") for future in futures]
    load = dict.fromkeys(client.nthreads(), 0)
    if not all(address in load for address in holder):
        # Workers come and go: the partitions will be found when they are needed.
        return futures
    for address, fact in zip(holder, facts, strict=True):
        load[address] += fact.bytes
    share = sum(load.values()) / max(len(load), 1)
    moved = list(futures)
    for place in sorted(range(len(facts)), key=lambda i: -facts[i].bytes):
        source, target = holder[place], min(load, key=load.__getitem__)
        size = facts[place].bytes
        if load[source] <= _UNEVEN * share or load[target] + size > load[source] - size:
            continue
        moved[place] = client.submit(
            _same, futures[place], workers=[target], allow_other_workers=True, pure=False,
            key=f"sorel-moved-{uuid.uuid4().hex}",
        )  # fmt: skip
        load[source] -= size
        load[target] += size
    return moved


def _same(block: Partition) -> Partition:
    return block


def _gathered(client: distributed.Client, facts: list[Any]) -> list[PartitionFacts]:
    try:
        # Without a worker, gather alone would wait for ever.
        wait_for_futures(client, facts)
        found: list[PartitionFacts] = client.gather(facts)
    except distributed.KilledWorker as error:
        raise ClusterError(
            f"a worker was killed again and again while it made one of {len(facts)} partitions "
            f"({error}): most likely its memory is too small; use smaller partitions"
        ) from error
    except (FutureCancelledError, OSError) as error:
        raise ClusterError(f"the cluster went away while it loaded the data: {error}") from error
    return found


def is_frame(X: Any) -> bool:
    """Whether this is a dask DataFrame or Series."""
    return is_dask_collection(X) and hasattr(X, "divisions")


def _row_blocks(
    X: Any, workers: int
) -> tuple[list[Any], tuple[float, ...] | None, int, list[str] | None]:
    """One delayed object for each partition of X, their lengths, and columns with their names.

    Lengths that Dask does not know are NaN, and those of a DataFrame None.
    """
    if is_frame(X):
        if X.ndim != 2:
            raise ValueError("X must be two-dimensional, got a dask Series; use X.to_frame()")
        columns = list(X.columns)
        named = all(isinstance(column, str) for column in columns)
        return list(X.to_delayed()), None, len(columns), columns if named else None
    if not isinstance(X, da.Array):
        if is_dask_collection(X):
            raise TypeError(
                f"X must be a dask array or DataFrame, got {type(X).__name__}; for delayed "
                "objects, use dask.array.from_delayed or dask.dataframe.from_delayed"
            )
        if hasattr(X, "columns"):
            import dask.dataframe as dd

            return _row_blocks(dd.from_pandas(X, npartitions=workers), workers)
        values = X if scipy.sparse.issparse(X) else np.atleast_1d(X)
        height = max(1, -(-values.shape[0] // workers))
        X = da.from_array(values, chunks=(height, *values.shape[1:]), asarray=False)
    if X.ndim != 2:
        hint = "; reshape one feature with X.reshape(-1, 1)" if X.ndim == 1 else ""
        raise ValueError(f"X must be two-dimensional, got shape {X.shape}{hint}")
    if X.numblocks[1] > 1:
        warn(
            f"X has {X.numblocks[1]} chunks along its columns, which are joined so that every "
            "partition has whole rows; use X.rechunk({1: -1}) to do so beforehand"
        )
        X = X.rechunk({1: -1})
    return X.to_delayed().ravel().tolist(), X.chunks[0], X.shape[1], None


def _vector_blocks(y: Any, name: str, count: int, chunks: tuple[float, ...] | None) -> list[Any]:
    """One delayed object of y, or of the weights, for each partition of X."""
    frame, known = is_frame(y), chunks is not None and not np.isnan(chunks).any()
    if is_dask_collection(y) and not (frame or isinstance(y, da.Array)):
        raise TypeError(f"{name} must be a dask array or Series, got {type(y).__name__}")
    if not is_dask_collection(y):
        if not known:
            raise ValueError(
                f"{name} is an array in memory, and the lengths of the partitions of X are not "
                f"known; make {name} a dask collection with the same partitions, or call "
                "X.compute_chunk_sizes()"
            )
        y = da.from_array(np.asarray(y), chunks="auto")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[y.columns[0]] if frame else y[:, 0]
    if y.ndim != 1:
        raise ValueError(
            f"{name} should be a 1d array, got {y.shape[1]} columns instead: one target is fitted"
        )
    if known and not frame and not np.isnan(y.shape[0]):
        if y.shape[0] != sum(chunks or ()):
            raise ValueError(
                f"X has {int(sum(chunks or ()))} rows but {name} has {y.shape[0]} values; they "
                "must agree"
            )
        if y.chunks[0] != chunks:
            y = y.rechunk((chunks,))
    parts = list(y.to_delayed())
    if len(parts) != count:
        raise ValueError(
            f"{name} has {len(parts)} partitions and X has {count}, of lengths that are not known; "
            "give both the same partitions, or call compute_chunk_sizes()"
        )
    return parts


# What runs in the tasks that make partitions.


def make_block(
    x: Any, y: Any, weight: Any, place: int, d: int, names: list[str] | None, loss: Loss
) -> Partition:
    """One checked partition; errors name it."""
    try:
        X, targets = _checked_rows(x, d, names), _checked_targets(y, loss)
        weights = None if weight is None else _checked_weights(weight)
        for name, values in (("y", targets), ("sample_weight", weights)):
            if values is not None and len(values) != X.shape[0]:
                raise ValueError(
                    f"X has {X.shape[0]} rows but {name} has {len(values)} values; both need the "
                    "same partitions"
                )
    except ValueError as error:
        raise ValueError(f"partition {place}: {error}") from None
    return Partition(X, targets, weights)


def _checked_rows(x: Any, d: int, names: list[str] | None) -> Any:
    check_numbers(x, "X")
    if hasattr(x, "columns"):
        found = list(x.columns)
        if names is not None and found != names:
            raise ValueError(
                f"X has the columns {found}, other partitions have {names}; all need the same"
            )
        single = all(kind == np.float32 for kind in x.dtypes)
        x = x.to_numpy(dtype=np.float32 if single else np.float64, na_value=np.nan)
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(
            f"X has shape {x.shape}, other partitions have {d} columns; all need the same"
        )
    return check_matrix(x) if x.shape[0] else np.empty((0, d))


def _checked_targets(y: Any, loss: Loss) -> NDArray[Any]:
    if loss.is_classifier:
        check_present(y, "y")
        return np.asarray(y)
    try:
        check_numbers(y, "y")
    except ValueError as error:
        raise ValueError(f"{error}; for labels, use DaskSpectralRiskClassifier") from None
    # What a loss asks of all targets together (not all counts may be 0) is asked later.
    targets, _ = loss.encode(np.append(np.asarray(y, dtype=np.float64), 1.0))
    return np.ascontiguousarray(targets[:-1])


def _checked_weights(weight: Any) -> FloatArray:
    check_numbers(weight, "sample_weight")
    weights = np.ascontiguousarray(weight, dtype=np.float64)
    bad = np.flatnonzero(~((weights >= 0.0) & (weights < np.inf)))
    if len(bad):
        raise ValueError(
            f"sample_weight[{bad[0]}] = {weights[bad[0]]}; weights must be finite and not negative"
        )
    return weights


def describe_block(block: Partition, classes: bool, means: bool) -> PartitionFacts:
    """What the driver wants to know of a partition."""
    X, y, weight = block
    omega = np.ones(len(y)) if weight is None else weight
    labels = counts = weights = targets = sums = None
    if classes:
        labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        weights = np.bincount(codes, omega, len(labels)).astype(np.float64)
        carried = weights > 0.0
        labels, counts, weights = labels[carried], counts[carried], weights[carried]
        if len(labels) > _MAX_LABELS:
            raise ValueError(
                f"y has more than {_MAX_LABELS} different labels; for numbers, use "
                "DaskSpectralRiskRegressor"
            )
    elif (omega > 0.0).any():
        used = y[omega > 0.0]
        targets = float(used.min()), float(used.max()), float(omega @ y)
    if means:
        if scipy.sparse.issparse(X):
            raise ValueError(
                "fit_intercept='mean' centres X, which must be dense; use fit_intercept=True"
            )
        sums = omega @ X.astype(np.float64), float(omega @ y)
    least, largest = float(omega.min(initial=np.inf)), float(omega.max(initial=-np.inf))
    return PartitionFacts(
        len(y), matrix_bytes(X), str(X.dtype), float(omega.sum()), least, largest, labels, counts,
        weights, targets, sums,
    )  # fmt: skip
