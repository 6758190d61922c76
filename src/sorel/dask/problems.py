"""Problems whose rows are on a cluster, for research and for the estimators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import distributed
import numpy as np
from numpy.typing import NDArray

from sorel.dask.cluster import Partitions, dropping_stopped_workers, find_client
from sorel.dask.collections import Collections, load
from sorel.dask.engine import DaskEngine
from sorel.dask.shards import Layout
from sorel.engines import Spec
from sorel.problem.losses import Loss, parse_loss
from sorel.problem.penalties import Penalty
from sorel.problem.problem import Problem
from sorel.problem.risks import CVaR, FloatArray, Risk, parse_risk
from sorel.problem.validation import target_offset


class Loaded:
    """Rows on the workers, with what the fit found out about them."""

    def __init__(self, client: distributed.Client, rows: Collections) -> None:
        self.client, self.futures, self.facts, self.n_features, self.names = client, *rows
        facts = self.facts
        self.lengths = np.array([fact.rows for fact in facts], dtype=np.int64)
        self.shape = int(self.lengths.sum()), self.n_features
        self.total = sum(fact.weight for fact in facts)
        least = min(fact.least_weight for fact in facts)
        self.weighted = least < max(fact.largest_weight for fact in facts)
        # The least, the largest and the mean target.
        self.target_range = 0.0, 0.0, 0.0
        known = [fact.targets for fact in facts if fact.targets is not None]
        if known:
            lowest, largest, sums = zip(*known, strict=True)
            self.target_range = min(lowest), max(largest), sum(sums) / self.total
        self.class_weight: FloatArray | None = None
        self.means: tuple[FloatArray, float] | None = None
        self.partitions: Partitions | None = None

    def labels(self) -> NDArray[Any]:
        """The labels of all partitions, some of them several times."""
        return np.concatenate([np.asarray(fact.labels) for fact in self.facts if fact.rows])

    def weighted_means(self) -> tuple[FloatArray, float]:
        """Means of X and of y under the sample weights, where their sums were asked for."""
        sums = [fact.sums for fact in self.facts if fact.sums is not None]
        mean = np.sum([part for part, _ in sums], axis=0) / self.total
        return mean, sum(part for _, part in sums) / self.total

    def make_engine(
        self,
        loss: Loss,
        risk: Risk,
        classes: Any,
        fit_intercept: bool,
        precision: float,
        bins: int | None = None,
    ) -> DaskEngine:
        """Make the engine, with homes for the rows on the workers."""
        offset = error = 0.0
        if fit_intercept and loss.translates:
            offset, error = target_offset(*self.target_range)
        spec = Spec(None, loss, risk, classes, fit_intercept, offset=offset, offset_error=error)
        total = self.total if self.weighted else None
        layout = Layout(spec, self.shape[0], total, self.class_weight, self.means)
        sizes = np.array([fact.bytes for fact in self.facts], dtype=np.int64)
        self.partitions = Partitions(self.client, self.futures, self.lengths, sizes, layout)
        single = all(fact.data_type == "float32" for fact in self.facts if fact.rows)
        data_type = np.float32 if single else np.float64
        return DaskEngine(self.partitions, self.n_features, data_type, bins, precision)


@contextmanager
def loaded_rows(
    client: distributed.Client | None, X: Any, y: Any, sample_weight: Any, **options: Any
) -> Iterator[Loaded]:
    """Rows on the workers of a cluster until the context ends; for options see :func:`load`."""
    client = find_client(client)
    with dropping_stopped_workers(client):
        rows = load(client, X, y, sample_weight, **options)
        loaded = Loaded(client, rows)
        try:
            yield loaded
        finally:
            if loaded.partitions is not None:
                loaded.partitions.close()
            for future in rows.futures:
                future.release()


@contextmanager
def open_problem(
    X: Any,
    y: Any,
    *,
    risk: Risk | str | None = None,
    loss: str | Loss = "squared",
    penalty: Penalty | None = None,
    fit_intercept: bool = False,
    sample_weight: Any = None,
    client: distributed.Client | None = None,
    bins: int | None = None,
    precision: float = 1e-6,
) -> Iterator[Problem]:
    """A :class:`sorel.Problem` whose rows stay on the workers of a Dask cluster.

    Parameters
    ----------
    X, y, sample_weight
        Dask collections, as the estimators take them.
    risk, loss, penalty, fit_intercept
        As in :class:`sorel.Problem`.
    client : distributed.Client, optional
        The cluster; the current client when not given.
    bins : int, optional
        Bins of each worker to start with; the setting ``sorel.bins`` of Dask, or 4096.
    precision : float, default=1e-6
        Relative gap wanted: bins that would cost more than a twentieth of it are doubled. With
        ``inf`` they stay as they are.

    Yields
    ------
    Problem
        For :func:`sorel.solve`. When the context ends, the workers forget the rows.

    Examples
    --------
    >>> import dask.array as da, distributed, sorel
    >>> from sorel.dask import open_problem
    >>> client = distributed.Client(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
    >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(250, 3))
    >>> y = X.sum(axis=1) + da.random.default_rng(1).standard_t(3, size=1000, chunks=250)
    >>> with open_problem(X, y, risk="esrm:2") as problem:
    ...     result = sorel.solve(problem, "newton", tol=1e-8)
    >>> result.converged
    True
    >>> client.close()
    """
    loss = parse_loss(loss)
    risk = CVaR(0.5) if risk is None else parse_risk(risk)
    options = {"loss": loss, "means": False, "name": "sorel-problem"}
    with loaded_rows(client, X, y, sample_weight, **options) as loaded:
        classes = np.unique(loaded.labels()) if loss.is_classifier else None
        engine = loaded.make_engine(loss, risk, classes, bool(fit_intercept), precision, bins)
        yield Problem.from_engine(engine, penalty)
