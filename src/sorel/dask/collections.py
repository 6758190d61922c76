"""From what a user gives to partitions on the workers: dask arrays, DataFrames, and their faults.

Every partition is checked where it lies, in the task that makes it: what is wrong is said with the
number of the partition. Only facts of fixed size (rows, bytes, sums, labels) come back.
"""

from __future__ import annotations

import uuid
import warnings
from typing import Any, NamedTuple

import dask.array as da
import distributed
import numpy as np
import scipy.sparse
from dask.base import is_dask_collection
from dask.delayed import delayed
from distributed.client import FutureCancelledError
from numpy.typing import NDArray

from sorel._lib.inputs import check_numbers
from sorel.dask.cluster import (
    ClusterError,
    check_versions,
    wait_for_futures,
    wait_for_worker,
)
from sorel.dask.shards import Partition
from sorel.problem.losses import Loss
from sorel.problem.risks import FloatArray

# A worker with more than so many times its share of the bytes hands some over, once.
_UNEVEN = 1.2

# Different labels of a partition beyond which y is no list of labels.
_MAX_LABELS = 10_000


class TargetFacts(NamedTuple):
    """Range of the targets of rows with weight, and the weighted sum."""

    least: float
    largest: float
    total: float


class PartitionFacts(NamedTuple):
    """What the driver learns of a partition."""

    rows: int
    bytes: int
    data_type: str
    labels: NDArray[Any] | None
    label_counts: NDArray[np.int64] | None
    label_weights: FloatArray | None
    weight: float
    least_weight: float
    largest_weight: float
    targets: TargetFacts | None
    sums: tuple[FloatArray, float] | None


class PartitionedRows(NamedTuple):
    """X, y and sample weights on the workers.

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

    @property
    def n_samples(self) -> int:
        return sum(fact.rows for fact in self.facts)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_samples, self.n_features


def load(
    client: distributed.Client,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    loss: Loss,
    means: bool,
    name: str,
) -> PartitionedRows:
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
    rows, names = _row_blocks(X, workers)
    d = _width(X)
    targets = _vector_blocks(y, "y", rows)
    weights = None
    if sample_weight is not None:
        weights = _vector_blocks(sample_weight, "sample_weight", rows)
    classes, token = loss.is_classifier, uuid.uuid4().hex
    with distributed.span(name):
        blocks = [
            delayed(make_block, pure=False)(
                rows.parts[i],
                targets[i],
                None if weights is None else weights[i],
                i,
                d,
                names,
                None if classes else loss,
                dask_key_name=f"sorel-block-{token}-{i}",
            )
            for i in range(len(rows.parts))
        ]
        futures = client.compute(blocks, optimize_graph=True, sync=False)
        facts = client.map(
            describe_block, futures, classes=classes, means=means, pure=False, key="sorel-facts"
        )
    try:
        found = _gathered(client, facts, X)
    except BaseException:
        # The traceback may outlive this call, and would keep them on the workers.
        for future in futures:
            future.release()
        raise
    finally:
        for future in facts:
            future.release()
    loaded = PartitionedRows(_balanced(client, futures, found), found, d, names)
    if loaded.n_samples == 0:
        raise ValueError(f"X has no rows in any of its {len(futures)} partitions")
    return loaded


def _balanced(
    client: distributed.Client, futures: list[Any], facts: list[PartitionFacts]
) -> list[Any]:
    """The same partitions, some of them moved where one worker holds far more than its share."""
    who = client.who_has(futures)
    holder = [(who.get(future.key) or who.get(str(future.key)) or [""])[0] for future in futures]
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


def _gathered(client: distributed.Client, facts: list[Any], X: Any) -> list[PartitionFacts]:
    try:
        # Without a worker, gather alone would wait for ever.
        wait_for_futures(client, facts)
        found: list[PartitionFacts] = client.gather(facts)
    except distributed.KilledWorker as error:
        raise ClusterError(
            f"a worker was killed again and again while it made a partition ({error}): most "
            f"likely its memory is too small; {_sizes(X, len(facts))}"
        ) from error
    except (FutureCancelledError, OSError) as error:
        raise ClusterError(f"the cluster went away while it loaded the data: {error}") from error
    return found


def _sizes(X: Any, count: int) -> str:
    size = getattr(X, "nbytes", None)
    if size is None or not np.isfinite(size):
        return f"X has {count} partitions"
    return f"X has {count} partitions of about {size / count / 2**20:.4g} MiB each"


class _Parts(NamedTuple):
    parts: list[Any]
    chunks: tuple[float, ...] | None


def is_frame(X: Any) -> bool:
    """Whether this is a dask DataFrame or Series."""
    return (
        is_dask_collection(X)
        and hasattr(X, "npartitions")
        and hasattr(X, "_meta")
        and (not isinstance(X, da.Array))
    )


def _row_blocks(X: Any, workers: int) -> tuple[_Parts, list[str] | None]:
    """One delayed object for each partition of X, and the names of the columns."""
    if is_frame(X):
        columns = list(getattr(X, "columns", []))
        if getattr(X, "ndim", 2) != 2:
            raise ValueError("X must be two-dimensional, got a dask Series; use X.to_frame()")
        names = [str(c) for c in columns] if all(isinstance(c, str) for c in columns) else None
        return _Parts(list(X.to_delayed()), None), names
    if not isinstance(X, da.Array):
        if is_dask_collection(X):
            raise TypeError(
                f"X must be a dask array or DataFrame, got {type(X).__name__}; for delayed "
                "objects, use dask.array.from_delayed or dask.dataframe.from_delayed"
            )
        if hasattr(X, "columns"):
            import dask.dataframe as dd

            return _row_blocks(dd.from_pandas(X, npartitions=workers), workers)
        values = X if scipy.sparse.issparse(X) else np.asarray(X)
        if values.ndim != 2:
            raise ValueError(f"X must be two-dimensional, got shape {values.shape}")
        height = max(1, -(-values.shape[0] // workers))
        X = da.from_array(values, chunks=(height, -1), asarray=False)
    if X.ndim != 2:
        hint = "; reshape one feature with X.reshape(-1, 1)" if X.ndim == 1 else ""
        raise ValueError(f"X must be two-dimensional, got shape {X.shape}{hint}")
    if X.dtype.kind not in "fiub":
        raise ValueError(f"X must be numeric, got dtype {X.dtype}; encode text columns first")
    if X.numblocks[1] > 1:
        warnings.warn(
            f"X has {X.numblocks[1]} chunks along its columns, which are joined so that every "
            "partition has whole rows; use X.rechunk({1: -1}) to do so beforehand",
            UserWarning,
            stacklevel=5,
        )
        X = X.rechunk({1: -1})
    return _Parts(X.to_delayed().ravel().tolist(), X.chunks[0]), None


def _width(X: Any) -> int:
    d = len(X.columns) if hasattr(X, "columns") else int(X.shape[1])
    if d < 1:
        raise ValueError("X has no columns; at least one is needed")
    return d


def _vector_blocks(y: Any, name: str, rows: _Parts) -> list[Any]:
    """One delayed object for each partition of X, of y or of the weights."""
    count = len(rows.parts)
    known = rows.chunks is not None and not np.isnan(rows.chunks).any()
    if is_frame(y):
        if getattr(y, "ndim", 1) == 2:
            if len(y.columns) != 1:
                raise ValueError(f"{name} should be one column, got the columns {list(y.columns)}")
            y = y[y.columns[0]]
        parts = list(y.to_delayed())
        if len(parts) != count:
            raise ValueError(
                f"{name} has {len(parts)} partitions and X has {count}; they must have the same "
                "rows in each: use repartition, or take both from one DataFrame"
            )
        return parts
    if is_dask_collection(y) and not isinstance(y, da.Array):
        raise TypeError(f"{name} must be a dask array or Series, got {type(y).__name__}")
    if not isinstance(y, da.Array):
        if not known:
            raise ValueError(
                f"{name} is an array in memory, and the lengths of the partitions of X are not "
                f"known; make {name} a dask collection with the same partitions, or call "
                "X.compute_chunk_sizes()"
            )
        y = da.from_array(np.asarray(y), chunks="auto")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(
            f"{name} should be a 1d array, got an array of shape {y.shape} instead: one target is "
            "fitted"
        )
    if known and not np.isnan(y.shape[0]):
        if y.shape[0] != sum(rows.chunks or ()):
            raise ValueError(
                f"X has {int(sum(rows.chunks or ()))} rows but {name} has {y.shape[0]} values; "
                "they must agree"
            )
        if y.chunks[0] != rows.chunks:
            y = y.rechunk((rows.chunks,))
    if y.numblocks[0] != count:
        raise ValueError(
            f"{name} has {y.numblocks[0]} chunks and X has {count} partitions, of lengths that are "
            "not known; give both the same partitions, or call compute_chunk_sizes()"
        )
    return y.to_delayed().ravel().tolist()


# What runs in the tasks that make partitions.


def make_block(
    x: Any, y: Any, weight: Any, place: int, d: int, names: list[str] | None, loss: Loss | None
) -> Partition:
    """One checked partition; errors name it."""
    X = _checked_rows(x, place, d, names)
    targets = _checked_targets(y, place, loss)
    if len(targets) != X.shape[0]:
        raise ValueError(
            f"partition {place}: X has {X.shape[0]} rows but y has {len(targets)} values; both "
            "need the same partitions"
        )
    weights = None
    if weight is not None:
        check_numbers(weight, f"sample_weight of partition {place}")
        weights = np.ascontiguousarray(np.asarray(weight, dtype=np.float64).ravel())
        if len(weights) != X.shape[0]:
            raise ValueError(
                f"partition {place}: X has {X.shape[0]} rows but sample_weight has "
                f"{len(weights)} values"
            )
        bad = np.flatnonzero(~(weights >= 0.0) | ~np.isfinite(weights))
        if len(bad):
            raise ValueError(
                f"partition {place}: sample_weight[{bad[0]}] = {weights[bad[0]]}; weights must be "
                "finite and not negative"
            )
    return Partition(X, targets, weights)


def _checked_rows(x: Any, place: int, d: int, names: list[str] | None) -> Any:
    if hasattr(x, "columns"):
        found = [str(column) for column in x.columns]
        if names is not None and found != names:
            raise ValueError(
                f"partition {place} of X has the columns {found}, the others have {names}; all "
                "partitions need the same"
            )
        for column, kind in zip(found, x.dtypes, strict=True):
            if getattr(kind, "kind", "O") not in "fiub":
                raise ValueError(
                    f"partition {place} of X: column {column!r} holds {kind}, not numbers; encode "
                    "it first, or leave it out"
                )
        x = x.to_numpy(dtype=_common_type(x.dtypes), na_value=np.nan)
    if x.ndim != 2 or x.shape[1] != d:
        raise ValueError(
            f"partition {place} of X has shape {x.shape}, the others have {d} columns; all "
            "partitions need the same"
        )
    sparse = scipy.sparse.issparse(x)
    if not sparse and hasattr(x, "tocsr"):
        x, sparse = x.tocsr(), True
    if not sparse:
        x = np.asarray(x)
    if x.dtype.kind not in "fiub":
        raise ValueError(
            f"partition {place} of X holds {x.dtype}, not numbers; encode text columns first"
        )
    if x.dtype not in (np.float64, np.float32):
        x = x.astype(np.float64)
    if sparse:
        x = scipy.sparse.csr_array(x)
        x.sum_duplicates()
        values = x.data
    else:
        x = np.ascontiguousarray(x)
        values = x
    with np.errstate(all="ignore"):
        finite = bool(np.isfinite(np.sum(values, dtype=np.float64)))
    if not finite and not np.all(np.isfinite(values)):
        raise ValueError(_not_finite(x, place, names))
    return x


def _common_type(kinds: Any) -> Any:
    return np.float32 if all(kind == np.float32 for kind in kinds) else np.float64


def _not_finite(x: Any, place: int, names: list[str] | None) -> str:
    if scipy.sparse.issparse(x):
        coo = x.tocoo()
        first = int(np.flatnonzero(~np.isfinite(coo.data))[0])
        row, column, value = int(coo.row[first]), int(coo.col[first]), coo.data[first]
    else:
        row, column = (int(i) for i in np.argwhere(~np.isfinite(x))[0])
        value = x[row, column]
    called = repr(names[column]) if names is not None else str(column)
    return (
        f"partition {place} of X has a value that is not finite: {value} in column {called}, row "
        f"{row} of the partition; drop or impute such rows"
    )


def _checked_targets(y: Any, place: int, loss: Loss | None) -> NDArray[Any]:
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"partition {place} of y has shape {values.shape}; one target is fitted")
    if loss is None:
        missing = values != values if values.dtype.kind == "f" else _missing(values)
        if np.any(missing):
            raise ValueError(
                f"partition {place} of y: label {int(np.argmax(missing))} is missing; drop the row"
            )
        return values
    if values.dtype.kind not in "fiub":
        first = values[0] if len(values) else ""
        raise ValueError(
            f"partition {place} of y holds {values.dtype} such as {first!r}, not numbers; for "
            "labels, use DaskSpectralRiskClassifier"
        )
    try:
        # What a loss asks of all targets together (not all counts may be 0) is asked later.
        targets, _ = loss.encode(np.append(values.astype(np.float64), 1.0))
    except ValueError as error:
        raise ValueError(f"partition {place} of y: {error}") from None
    return np.ascontiguousarray(targets[:-1])


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind != "O":
        return np.zeros(len(values), bool)
    return np.array([value is None or value != value for value in values], bool)


def _describe_targets(y: NDArray[Any], weight: FloatArray | None) -> TargetFacts | None:
    used = y if weight is None else y[weight > 0.0]
    if len(used) == 0:
        return None
    total = y.sum() if weight is None else weight @ y
    return TargetFacts(float(used.min()), float(used.max()), float(total))


def describe_block(block: Partition, classes: bool, means: bool) -> PartitionFacts:
    """What the driver wants to know of a partition."""
    X, y, weight = block
    labels = counts = weights = None
    if classes:
        labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        weights = np.bincount(codes, weight, len(labels)).astype(np.float64)
        if len(labels) > _MAX_LABELS:
            raise ValueError(
                f"y has more than {_MAX_LABELS} different labels; for numbers, use "
                "DaskSpectralRiskRegressor"
            )
        carried = weights > 0.0
        labels, counts, weights = labels[carried], counts[carried], weights[carried]
    sums = None
    if means:
        if scipy.sparse.issparse(X):
            raise ValueError(
                "fit_intercept='mean' centres X, which must be dense; use fit_intercept=True"
            )
        scale = np.ones(len(y)) if weight is None else weight
        sums = scale @ X.astype(np.float64), float(scale @ y)
    n = len(y)
    size = X.data.nbytes if scipy.sparse.issparse(X) else X.nbytes
    return PartitionFacts(
        n,
        int(size),
        str(X.dtype),
        labels,
        counts,
        weights,
        float(n if weight is None else weight.sum()),
        1.0 if weight is None else float(weight.min(initial=np.inf)),
        1.0 if weight is None else float(weight.max(initial=-np.inf)),
        None if classes else _describe_targets(y, weight),
        sums,
    )
