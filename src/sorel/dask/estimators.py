"""The estimators for dask collections: the local ones, with the rows left on the workers."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import dask.array as da
import distributed
import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, MODEL_TOL
from sorel._lib.warnings import warn
from sorel.dask.cluster import ClusterError, dropping_stopped_workers, find_client
from sorel.dask.collections import is_frame, load
from sorel.dask.engine import DaskEngine
from sorel.dask.problems import Loaded
from sorel.estimators import SpectralRiskClassifier, SpectralRiskRegressor
from sorel.estimators.base import SpectralFit, WeightedRows
from sorel.estimators.classifier import _classification_loss
from sorel.estimators.constant_model import ConstantModelWarning, Level, advice
from sorel.estimators.default_risks import CLASSIFIER_RISK, RISK
from sorel.estimators.regressor import regression_loss
from sorel.files.checkpoints import Checkpoint
from sorel.problem.losses import Loss, Poisson, parse_loss
from sorel.problem.penalties import Penalty
from sorel.problem.problem import Problem
from sorel.problem.risks import Mean, Risk, parse_risk
from sorel.solvers import Solver

# Rows whose predictions are looked at to see whether they vary.
_LOOK = 10_000


class _OnCluster(SpectralFit):
    """What both estimators share: loading, the problem of an engine, lazy predictions."""

    client: distributed.Client | None
    loss: str | Loss
    _local: type[SpectralFit]

    def __sklearn_clone__(self) -> Any:
        # A client is a connection, and not to be copied.
        params = self.get_params(deep=False)
        client = params.pop("client")
        copies = {name: clone(value, safe=False) for name, value in params.items()}
        return type(self)(**copies, client=client)

    def _load(self, X: Any, y: Any, sample_weight: Any, loss: Loss) -> Loaded:
        client = find_client(self.client)
        means = isinstance(self.fit_intercept, str)
        name = f"sorel-{type(self).__name__}"
        with dropping_stopped_workers(client):
            rows = load(client, X, y, sample_weight, loss=loss, means=means, name=name)
        self.n_features_in_ = rows.n_features
        if rows.names is not None:
            self.feature_names_in_ = np.array(rows.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return Loaded(client, rows)

    def _fit_loaded(self, loaded: Loaded, loss: Loss) -> None:
        data = WeightedRows(loaded, np.empty(0), None, loaded.total, None)
        try:
            with dropping_stopped_workers(loaded.client):
                self._fit(data, loss)
            self.status_ += self._account(loaded)
        except ClusterError as error:
            reached = None if loaded.partitions is None else loaded.partitions.reached
            if reached is not None:
                assert loaded.engine is not None
                offset = loaded.engine.spec.offset
                if offset:
                    reached = np.append(reached[:-1], reached[-1] + offset)
                error.w = reached
                for name, value in self._parameters_of(reached, loaded.shape[1]).items():
                    setattr(error, name, value)
            raise
        finally:
            loaded.close()

    def _account(self, loaded: Loaded) -> str:
        """What the cluster did, in words."""
        engine, partitions = loaded.engine, loaded.partitions
        assert engine is not None
        assert partitions is not None
        count = len(partitions.addresses)
        text = f"; {engine.n_samples} rows on {count} worker{'s' if count != 1 else ''}, "
        text += engine.exchanged()
        if partitions.lost_workers:
            text += f"; {partitions.lost_workers} lost and their shards rebuilt"
        return text

    def _problem(self, data: WeightedRows, loss: str | Loss, penalty: Penalty) -> Problem:
        engine = data.X.settle(
            parse_loss(loss),
            parse_risk(self.risk),
            getattr(self, "classes_", None),
            self._has_intercept,
            self.tol,
        )
        return Problem.from_engine(engine, penalty)

    def _note_constant(self, data: WeightedRows, problem: Problem) -> None:
        self.constant_ = False
        if not self.converged_:
            return
        engine = problem.engine
        assert isinstance(engine, DaskEngine)
        w = np.zeros(engine.shape)
        w[: problem.n_features] = self.coef_.T.reshape(w[: problem.n_features].shape)
        scores, targets = engine.for_run().scores(w, _LOOK)
        if scores.ndim == 1 and self.coef_.ndim == 2:
            scores = scores[:, None]
        self.constant_ = not self._varies(scores, targets)
        if not self._warns_of_model:
            return
        if self.constant_:
            self.status_ += "; the model is constant: its predictions hardly depend on X"
            warn(advice(problem.risk, Level(None, None)), ConstantModelWarning)
            return
        self._warn_of_small_tail(problem)
        if not (isinstance(problem.risk, Mean) or data.X.weighted or self._means is not None):
            # Targets on the workers are without the offset that the intercept has.
            scores = scores + (self.intercept_ - engine.spec.offset)
            self._warn_of_shift(problem.risk, scores, targets, None)

    def to_local(self) -> Any:
        """The ordinary estimator with the same parameters, fitted attributes included.

        Returns
        -------
        SpectralRiskRegressor or SpectralRiskClassifier
            Predicts for arrays in memory, and is what a model file holds.
        """
        params = self.get_params(deep=False)
        del params["client"]
        local = self._local(**params)
        for name, value in self._fitted().items():
            setattr(local, name, value)
        return local

    def _lazily(self, method: str, X: Any, columns: list[Any] | None, kind: Any) -> Any:
        """The local estimator's method on every partition, as a collection of the same kind."""
        check_is_fitted(self, "coef_")
        local = self.to_local()
        # Of the length of the training data, and of no use here.
        local.risk_weights_ = np.empty(0)
        predict = partial(_predict_part, local, method, columns)
        if is_frame(X):
            import pandas as pd

            meta: Any = pd.Series([], dtype=kind)
            if columns is not None:
                meta = pd.DataFrame(dict.fromkeys(columns, meta))
            return X.map_partitions(predict, meta=meta)
        if not isinstance(X, da.Array):
            return getattr(local, method)(X)
        if X.ndim != 2 or X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has shape {X.shape}, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        if X.numblocks[1] > 1:
            X = X.rechunk({1: -1})
        if columns is None:
            return X.map_blocks(predict, dtype=kind, drop_axis=1, meta=np.empty(0, kind))
        shape = {"chunks": (X.chunks[0], (len(columns),)), "meta": np.empty((0, 0), kind)}
        return X.map_blocks(predict, dtype=kind, **shape)


def _predict_part(model: Any, method: str, columns: list[Any] | None, part: Any) -> Any:
    """A method of a fitted estimator on one partition; a frame stays one, with its index."""
    rows = part
    if part.shape[0] == 0:
        # Estimators refuse tables without rows, and partitions may be empty.
        rows = np.zeros((1, model.n_features_in_))
        if hasattr(part, "columns"):
            rows = type(part)(rows, columns=part.columns)
    values = getattr(model, method)(rows)[: part.shape[0]]
    if not hasattr(part, "columns"):
        return values
    import pandas as pd

    if columns is None:
        return pd.Series(values, index=part.index)
    return pd.DataFrame(values, index=part.index, columns=columns)


class DaskSpectralRiskRegressor(_OnCluster, SpectralRiskRegressor):
    """:class:`sorel.SpectralRiskRegressor` for dask collections.

    Rows stay on the workers; parameters, gradients, small matrices and, in place of the losses,
    thresholds or bins travel. The answer is certified as on one machine.

    Parameters
    ----------
    risk, loss, l2, l1, penalty, positive, fit_intercept, solver, tol, max_passes, batch_size, \
warm_start, random_state, verbose, n_jobs, checkpoint
        As in :class:`sorel.SpectralRiskRegressor`. `solver` is one of those of full passes; a
        worker uses the threads that it has, whatever `n_jobs` says.
    client : distributed.Client, optional
        The cluster; the current client when not given.

    Attributes
    ----------
    coef_, intercept_, risk_weights_, objective_, gap_, relative_gap_, n_passes_, n_iter_, \
converged_, status_, constant_, history_, l2_, n_features_in_, feature_names_in_
        As in :class:`sorel.SpectralRiskRegressor`: NumPy arrays and numbers. `status_` also says
        what the workers exchanged, and how many of them were lost.

    Notes
    -----
    The settings ``sorel.bins`` (of each worker, 4096) and ``sorel.worker-timeout`` (seconds without
    workers, or without a sign of life from one, 120) of Dask's configuration apply.

    Examples
    --------
    >>> import dask.array as da, distributed
    >>> from sorel.dask import DaskSpectralRiskRegressor
    >>> client = distributed.Client(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
    >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(250, 3))
    >>> y = X.sum(axis=1) + da.random.default_rng(1).standard_t(3, size=1000, chunks=250)
    >>> model = DaskSpectralRiskRegressor(risk="cvar:0.1").fit(X, y)
    >>> model.converged_, model.predict(X).shape
    (True, (1000,))
    >>> client.close()
    """

    __module__ = "sorel.dask"
    _local = SpectralRiskRegressor

    def __init__(
        self,
        risk: Risk | str = RISK,
        *,
        loss: str | Loss = "squared",
        l2: float | str = "auto",
        l1: float = 0.0,
        penalty: Penalty | None = None,
        positive: bool = False,
        fit_intercept: bool | str = FIT_INTERCEPT,
        solver: str | Solver = "auto",
        tol: float = MODEL_TOL,
        max_passes: float = MAX_PASSES,
        batch_size: int = 1,
        warm_start: bool = False,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        client: distributed.Client | None = None,
    ) -> None:
        self._keep_settings(locals())

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None
    ) -> DaskSpectralRiskRegressor:
        """Fit the model.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples, in blocks of whole rows, dense or sparse; lengths need not be known, and may
            be 0.
        y : dask array or Series of length n
            Targets, in the same partitions.
        sample_weight : dask array or Series of length n, optional
            Weights; 2 is the row twice.
        offset : None
            Refused: offsets are for data in memory or on disk.

        Returns
        -------
        DaskSpectralRiskRegressor
            The fitted estimator.

        Raises
        ------
        ClusterError
            If the cluster cannot go on; the error has the parameters reached.
        """
        _refuse_offset(offset)
        loss = regression_loss(self.loss)
        self._check_intercept(loss)
        loaded = self._load(X, y, sample_weight, loss)
        if isinstance(loss, Poisson) and loaded.target_range[1] == 0.0:
            loaded.close()
            loss.encode(np.zeros(1))
        if isinstance(self.fit_intercept, str):
            sums = [fact.sums for fact in loaded.rows.facts if fact.sums is not None]
            mean = np.sum([part for part, _ in sums], axis=0) / loaded.total
            loaded.means = self._means = mean, sum(part for _, part in sums) / loaded.total
        try:
            self._fit_loaded(loaded, loss)
        finally:
            self._means = None
        return self

    def _check_intercept(self, loss: Loss) -> None:
        if isinstance(self.fit_intercept, str):
            self._check_means(loss)

    def predict(self, X: Any, offset: Any = None) -> Any:
        """Predict, lazily.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples.
        offset : None
            Refused, as in :meth:`fit`.

        Returns
        -------
        dask array or Series of length n
            Predictions, computed when asked for; an array in memory for such an X.
        """
        _refuse_offset(offset)
        return self._lazily("predict", X, None, np.float64)


def _refuse_offset(offset: Any) -> None:
    if offset is not None:
        raise TypeError(
            "DaskSpectralRiskRegressor takes no offset; use sorel.SpectralRiskRegressor, on data "
            "in memory or on disk"
        )


class DaskSpectralRiskClassifier(_OnCluster, SpectralRiskClassifier):
    """:class:`sorel.SpectralRiskClassifier` for dask collections.

    Parameters
    ----------
    risk, loss, l2, l1, penalty, positive, fit_intercept, class_weight, solver, tol, max_passes, \
batch_size, warm_start, random_state, verbose, n_jobs, checkpoint
        As in :class:`sorel.SpectralRiskClassifier`. `solver` is one of those of full passes; a
        worker uses the threads that it has, whatever `n_jobs` says.
    client : distributed.Client, optional
        The cluster; the current client when not given.

    Attributes
    ----------
    classes_, coef_, intercept_, risk_weights_, objective_, gap_, relative_gap_, n_passes_, \
n_iter_, converged_, status_, constant_, history_, l2_, n_features_in_, feature_names_in_
        As in :class:`sorel.SpectralRiskClassifier`: NumPy arrays and numbers.

    Examples
    --------
    >>> import dask.array as da, distributed
    >>> from sorel.dask import DaskSpectralRiskClassifier
    >>> client = distributed.Client(n_workers=1, processes=False, dashboard_address="127.0.0.1:0")
    >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(250, 3))
    >>> y = X.sum(axis=1) + da.random.default_rng(1).normal(size=1000, chunks=250) > 0
    >>> model = DaskSpectralRiskClassifier(risk="cvar:0.5").fit(X, y)
    >>> model.converged_, model.predict_proba(X).shape
    (True, (1000, 2))
    >>> client.close()
    """

    __module__ = "sorel.dask"
    _local = SpectralRiskClassifier

    def __init__(
        self,
        risk: Risk | str = CLASSIFIER_RISK,
        *,
        loss: str | Loss = "logistic",
        l2: float | str = "auto",
        l1: float = 0.0,
        penalty: Penalty | None = None,
        positive: bool = False,
        fit_intercept: bool = FIT_INTERCEPT,
        class_weight: dict[Any, float] | str | None = None,
        solver: str | Solver = "auto",
        tol: float = MODEL_TOL,
        max_passes: float = MAX_PASSES,
        batch_size: int = 1,
        warm_start: bool = False,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        client: distributed.Client | None = None,
    ) -> None:
        self._keep_settings(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> DaskSpectralRiskClassifier:
        """Fit the model.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples, in blocks of whole rows, dense or sparse; lengths need not be known, and may
            be 0.
        y : dask array or Series of length n
            Labels of any kind, in the same partitions.
        sample_weight : dask array or Series of length n, optional
            Weights; 2 is the row twice.

        Returns
        -------
        DaskSpectralRiskClassifier
            The fitted estimator.

        Raises
        ------
        ClusterError
            If the cluster cannot go on; the error has the parameters reached.
        """
        loaded = self._load(X, y, sample_weight, _classification_loss(self.loss))
        try:
            facts = [fact for fact in loaded.rows.facts if fact.rows]
            labels = np.concatenate([np.asarray(fact.labels) for fact in facts])
            _, loss = self._encode(labels)
            if self.class_weight is not None:
                self._weigh_classes(loaded)
        except BaseException:
            loaded.close()
            raise
        self._fit_loaded(loaded, loss)
        return self

    def _weigh_classes(self, loaded: Loaded) -> None:
        counts, weights = np.zeros((2, len(self.classes_)))
        for fact in loaded.rows.facts:
            if fact.rows:
                codes = np.searchsorted(self.classes_, np.asarray(fact.labels))
                counts[codes] += np.asarray(fact.label_counts)
                weights[codes] += np.asarray(fact.label_weights)
        if self.class_weight == "balanced":
            factors = counts.sum() / (len(counts) * counts)
        elif isinstance(self.class_weight, dict):
            given = self.class_weight
            factors = np.array([float(given.get(label, 1.0)) for label in self.classes_.tolist()])
        else:
            raise ValueError(
                f"class_weight must be a dict, 'balanced' or None, got {self.class_weight!r}"
            )
        loaded.class_weight, loaded.weighted = factors, True
        loaded.total = float(factors @ weights)

    def decision_function(self, X: Any) -> Any:
        """Margins of the samples, lazily.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples.

        Returns
        -------
        dask collection of shape (n,) or (n, n_classes)
            With two classes, positive values speak for ``classes_[1]``.
        """
        check_is_fitted(self, "coef_")
        columns = self.classes_.tolist() if len(self.classes_) > 2 else None
        return self._lazily("decision_function", X, columns, np.float64)

    def predict(self, X: Any) -> Any:
        """Predict the label, lazily.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples.

        Returns
        -------
        dask array or Series of length n
            The label with the largest margin, computed when asked for.
        """
        check_is_fitted(self, "coef_")
        return self._lazily("predict", X, None, self.classes_.dtype)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, lazily; not available for ``loss="squared_hinge"``.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples.

        Returns
        -------
        dask collection of shape (n, n_classes)
            Columns in the order of ``classes_``; rows sum to 1.
        """
        check_is_fitted(self, "coef_")
        self.to_local().predict_proba  # noqa: B018 (says why it is missing, where it is)
        return self._lazily("predict_proba", X, self.classes_.tolist(), np.float64)

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the probabilities, lazily.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n, d)
            Samples.

        Returns
        -------
        dask collection of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        check_is_fitted(self, "coef_")
        self.to_local().predict_log_proba  # noqa: B018 (says why it is missing, where it is)
        return self._lazily("predict_log_proba", X, self.classes_.tolist(), np.float64)
