"""The estimators for dask collections: the local ones, with the rows left on the workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import distributed
import numpy as np
from dask.base import is_dask_collection
from sklearn.base import clone
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_is_fitted

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, MODEL_TOL
from sorel.dask.cluster import ClusterError
from sorel.dask.collections import is_frame
from sorel.dask.engine import DaskEngine
from sorel.dask.problems import Loaded, loaded_rows
from sorel.estimators import SpectralRiskClassifier, SpectralRiskRegressor
from sorel.estimators.base import SpectralFit, WeightedRows
from sorel.estimators.classifier import _classification_loss
from sorel.estimators.constant_model import Level
from sorel.estimators.default_risks import CLASSIFIER_RISK, RISK
from sorel.estimators.regressor import regression_loss
from sorel.files.checkpoints import Checkpoint
from sorel.problem.losses import Loss, parse_loss
from sorel.problem.penalties import Penalty
from sorel.problem.problem import Problem
from sorel.problem.risks import Risk, parse_risk
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

    @contextmanager
    def _loaded(self, X: Any, y: Any, sample_weight: Any, loss: Loss) -> Iterator[Loaded]:
        """The rows on the workers, and the parameters reached in the error that ends a fit."""
        options = {"loss": loss, "means": isinstance(self.fit_intercept, str)}
        options["name"] = f"sorel-{type(self).__name__}"
        with loaded_rows(self.client, X, y, sample_weight, **options) as loaded:
            self._note_features(loaded.n_features, loaded.names)
            try:
                yield loaded
            except ClusterError as error:
                partitions = loaded.partitions
                if partitions is not None and partitions.reached is not None:
                    error.w = partitions.reached.copy()
                    # Only one intercept has an offset.
                    error.w[-1] += partitions.layout.spec.offset
                    for name, value in self._parameters_of(error.w, loaded.n_features).items():
                        setattr(error, name, value)
                raise

    def _fit_loaded(self, loaded: Loaded, loss: Loss) -> None:
        data = WeightedRows(loaded, np.empty(0), None, loaded.total, None)
        self._fit(data, loss)

    def _problem(self, data: WeightedRows, loss: str | Loss, penalty: Penalty) -> Problem:
        engine = data.X.make_engine(
            parse_loss(loss),
            parse_risk(self.risk),
            getattr(self, "classes_", None),
            self._has_intercept,
            self.tol,
        )
        return Problem.from_engine(engine, penalty)

    def _note_constant(self, data: WeightedRows, problem: Problem) -> None:
        engine, found = problem.engine, self._previous(problem, None)
        assert isinstance(engine, DaskEngine)
        assert found is not None
        self.constant_ = False
        if self.converged_:
            scores, y, weight = engine.for_run().scores(problem.from_user(found.w), _LOOK)
            scores = scores if self.coef_.ndim == 1 else scores.reshape(-1, len(self.coef_))
            self._judge(problem, scores, y, weight, lambda: Level(None, None))
        self.status_ += f"; {engine.account()}"

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

    def _lazily(self, method: str, X: Any) -> Any:
        """The local estimator's method on every partition, as a collection of the same kind."""
        check_is_fitted(self, "coef_")
        local = self.to_local()
        if not is_dask_collection(X):
            return getattr(local, method)(X)
        # Of the length of the training data, and of no use here.
        local.risk_weights_ = np.empty(0)
        getattr(local, method)  # says why it is missing, where it is
        predict = partial(_predict_part, local, method)
        if is_frame(X):
            return X.map_partitions(predict)
        if X.ndim != 2 or X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has shape {X.shape}, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        X = X.rechunk({1: -1})
        meta = predict(np.empty((0, self.n_features_in_)))
        if meta.ndim == 1:
            return X.map_blocks(predict, drop_axis=1, meta=meta)
        return X.map_blocks(predict, chunks=(X.chunks[0], meta.shape[1:]), meta=meta)


def _predict_part(model: Any, method: str, part: Any) -> Any:
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

    if values.ndim == 1:
        return pd.Series(values, index=part.index)
    return pd.DataFrame(values, index=part.index, columns=model.classes_.tolist())


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
        if isinstance(self.fit_intercept, str):
            self._check_means(loss)
        try:
            with self._loaded(X, y, sample_weight, loss) as loaded:
                # What a loss asks of all targets together: not all counts may be 0.
                loss.encode(np.array(loaded.target_range[:2]))
                if isinstance(self.fit_intercept, str):
                    loaded.means = self._means = loaded.weighted_means()
                self._fit_loaded(loaded, loss)
        finally:
            self._means = None
        return self

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
        return self._lazily("predict", X)


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
        with self._loaded(X, y, sample_weight, _classification_loss(self.loss)) as loaded:
            _, loss = self._encode(loaded.labels())
            if self.class_weight is not None:
                self._weigh_classes(loaded)
            self._fit_loaded(loaded, loss)
        return self

    def _weigh_classes(self, loaded: Loaded) -> None:
        codes = np.searchsorted(self.classes_, loaded.labels())
        facts = [fact for fact in loaded.facts if fact.rows]
        counts = np.bincount(codes, np.concatenate([fact.label_counts for fact in facts]))
        weights = np.bincount(codes, np.concatenate([fact.label_weights for fact in facts]))
        if self.class_weight == "balanced":
            factors = counts.sum() / (len(counts) * counts)
        else:
            given = {"classes": self.classes_, "y": self.classes_}
            factors = compute_class_weight(self.class_weight, **given)
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
        return self._lazily("decision_function", X)

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
        return self._lazily("predict", X)

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
        return self._lazily("predict_proba", X)

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
        return self._lazily("predict_log_proba", X)
