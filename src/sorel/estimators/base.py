"""What the estimators share: reading X and y, a fit from arrays to attributes, scores.

A fit hands a :class:`sorel.Problem` to :func:`sorel.solve` and keeps the result; what the user
gave is checked once, here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import config_context, get_config
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import (
    _check_n_features,
    _check_sample_weight,
    _check_y,
    check_is_fitted,
    validate_data,
)

from sorel._lib.devices import is_on_device, is_tensor
from sorel._lib.frames import as_table
from sorel._lib.inputs import check_meaning, check_numbers, check_present
from sorel._lib.warnings import logger, warn
from sorel.engines.csr import check_indices
from sorel.engines.rows import RowSource, open_data, open_rows
from sorel.estimators.constant_model import (
    ConstantModelWarning,
    Level,
    advice,
    first_level,
    sample_rows,
)
from sorel.estimators.fit_warnings import warn_of_small_tail
from sorel.estimators.progress import ProgressLine, log_record, stop_if_repeated
from sorel.problem.losses import Loss
from sorel.problem.penalties import Penalty, choose_penalty
from sorel.problem.problem import Problem
from sorel.problem.risks import Mean, Risk, parse_risk
from sorel.problem.validation import WORTH_STREAMING
from sorel.solvers import SOREL, Solver, make_solver
from sorel.solvers.solve import Record, Result, convergence_warning, solve

FloatArray = NDArray[np.float64]

_FLOATS = (np.float64, np.float32)


class WeightedRows(NamedTuple):
    """Rows with a positive weight, their targets, and what the weights add up to."""

    X: Any
    y: NDArray[Any]
    sample_weight: FloatArray | None
    total: float
    kept: NDArray[np.bool_] | None
    offset: FloatArray | None = None


def validated(model: Any, *given: Any, **options: Any) -> Any:
    """Arrays as scikit-learn validates them, NumPy's whatever it may dispatch to."""
    with config_context(array_api_dispatch=False):
        return validate_data(model, *given, accept_sparse="csr", dtype=_FLOATS, **options)


def product(X: Any, coef: FloatArray) -> FloatArray:
    """X coef; float32 rows are brought to float64 a few at a time, not all at once."""
    if not isinstance(X, np.ndarray):
        return np.asarray(X @ coef)
    out = np.empty((len(X), *coef.shape[1:]))
    room = int(get_config()["working_memory"] * 2**20)
    height = max(1, room // (coef.itemsize * X.shape[1]))
    for start in range(0, len(X), height):
        rows = slice(start, start + height)
        np.matmul(X[rows], coef, out=out[rows])
    return out


class SpectralModel(BaseEstimator):  # type: ignore[misc] # untyped base
    """What all estimators share: parameters with nested risks, tags, tables."""

    risk: Risk | str
    n_features_in_: int
    coef_: FloatArray
    intercept_: Any
    risk_weights_: FloatArray
    objective_: Any
    gap_: Any
    relative_gap_: Any
    n_passes_: float
    n_iter_: int
    converged_: bool
    status_: str
    _history: FloatArray

    def _keep_settings(self, arguments: dict[str, Any]) -> None:
        """Keep what ``__init__`` was given, as it is: scikit-learn wants nothing else from it."""
        for name, value in arguments.items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; the parameters of the risk as ``risk__<name>``.

        Parameters
        ----------
        deep : bool, default=True
            Whether to include the parameters of nested objects.

        Returns
        -------
        dict
            Names and values. A risk given as a string counts as the risk that it names.
        """
        params: dict[str, Any] = super().get_params(deep=deep)
        if deep and isinstance(params.get("risk"), str):
            try:
                nested = parse_risk(params["risk"]).get_params()
            except ValueError:  # fit says what is wrong with it
                nested = {}
            params.update({f"risk__{name}": value for name, value in nested.items()})
        return params

    def set_params(self, **params: Any) -> Any:
        """Set parameters by name, such as ``l2=0.1`` or ``risk__alpha=0.2``.

        Parameters
        ----------
        **params
            New values. A change of ``risk__<name>`` replaces the risk by a changed copy, so that
            estimators which share a risk stay independent.

        Returns
        -------
        self
            The estimator.
        """
        if any(name.startswith("risk__") for name in params):
            risk = params.get("risk", getattr(self, "risk", None))
            if risk is not None:
                params = {**params, "risk": clone(parse_risk(risk))}
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def history_(self) -> Any:
        """One row per check, with the columns of a :class:`sorel.Record`.

        `objective`, `dual`, `gap` and `relative_gap` are those of the iterate that was checked;
        the same with `best_` before them are the best so far.
        A pandas DataFrame where pandas is installed, else a dictionary of its columns.
        """
        if "_history" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} has no history_: fit it first")
        return as_table(dict(zip(Record._fields, self._history.T, strict=True)))

    @property
    def _numeric(self) -> bool:
        """Whether targets are numbers, not labels."""
        return not isinstance(self, ClassifierMixin)

    def _read(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, NDArray[Any], FloatArray | None]:
        """Validated X, y and sample weights."""
        refuse_dask(self, X, y)
        if is_on_device(X):
            raise TypeError(
                f"{type(self).__name__} does not take data on a device; pass NumPy arrays, such as "
                "X.cpu().numpy()"
            )
        if is_on_device(y):
            raise ValueError(
                f"X is in host memory and y on {getattr(y, 'device', 'a device')}; move one of "
                "them, e.g. with y.cpu()"
            )
        check_numbers(X, "X")
        self._check_targets(y)
        check_indices(X)
        X, y = validated(self, X, y, y_numeric=self._numeric)
        return X, y, check_weights(sample_weight, X)

    def _check_targets(self, y: Any) -> None:
        """Refuse targets that mean something else than what validation would read."""
        check_meaning(y, "y")
        _refuse_many_targets(self, y)
        check_present(y, "y")
        if self._numeric:
            _refuse_texts(self, y)
            check_numbers(y, "y")

    def _fitted(self) -> dict[str, Any]:
        """What a fit has left behind, by name."""
        return {k: v for k, v in vars(self).items() if k.endswith("_") or k == "_history"}

    def _keep_outcome(self, found: Any) -> None:
        """Certificate and cost of what was found."""
        self.objective_, self.gap_ = found.objective, found.gap
        self.relative_gap_ = found.relative_gap
        self.n_passes_, self.n_iter_ = found.passes, found.n_iter
        self.converged_, self.status_ = found.converged, found.status

    def _scores(self, X: Any) -> Any:
        check_is_fitted(self, "coef_")
        refuse_dask(self, X)
        if is_tensor(X):
            from sorel.estimators import tensor_data

            return tensor_data.scores(self, X)
        if not _is_small(X):
            names = getattr(self, "feature_names_in_", None)
            rows = open_rows(X, None if names is None else names.tolist())
            if rows is not None:
                return self._scores_on_disk(rows)
        check_numbers(X, "X")
        check_indices(X)
        X = validated(self, X, reset=False)
        return product(X, self.coef_.T) + self.intercept_

    def _scores_on_disk(self, rows: RowSource) -> FloatArray:
        _check_columns(self, rows)
        scores = np.empty((rows.n_samples, *np.shape(self.coef_)[:-1]))
        for start, stop, part in rows.finite_spans():
            np.matmul(part, self.coef_.T, out=scores[start:stop])
        scores += self.intercept_
        return scores

    def _encode(self, y: Any) -> tuple[Any, Loss]:
        """Targets as the loss takes them, and that loss."""
        raise NotImplementedError

    def _varies(self, scores: FloatArray, y: NDArray[Any]) -> bool:
        """Whether the predictions that belong to scores differ from row to row."""
        raise NotImplementedError

    def _warn_of_shift(
        self, risk: Risk, scores: FloatArray, y: NDArray[Any], weight: FloatArray | None
    ) -> None:
        """Warn where mean predictions are far from mean targets."""
        raise NotImplementedError


class SpectralFit(SpectralModel):
    """From validated arrays to fitted attributes, for the two estimators without search."""

    fit_intercept: bool | str
    objective_: float
    gap_: float
    relative_gap_: float
    l2_: float
    constant_: bool
    _warns_of_model = True
    # Means of X and y that were taken off, while a fit runs.
    _means: tuple[FloatArray, float] | None = None

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples; or rows on disk, as :class:`sorel.Problem` takes them.
        y : array-like of shape (n,)
            Targets, or labels of any kind, two or more; or where they are on disk, as
            :class:`sorel.Problem` takes them.
        sample_weight : array-like of shape (n,), optional
            Weights; 2 is the row twice.

        Returns
        -------
        self
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If `tol` was not reached within `max_passes`, or fit was interrupted.
        ConstantModelWarning
            If the optimum is (nearly) the constant model, with the level at which it would learn.
        TailSizeWarning
            If the tail of the risk holds fewer rows than the model has parameters, or fewer than
            ten.
        MeanShiftWarning
            If predictions are off on average: numbers by more than a tenth of the standard
            deviation of y (of its mean, under a log link), the probability of a class by more than
            0.05. Up to 10 000 rows are looked at.
        """
        try:
            self._fit(*self._task(X, y, sample_weight))
        finally:
            self._means = None
        return self

    def _read(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, NDArray[Any], FloatArray | None]:
        refuse_dask(self, X, y)
        if is_tensor(X):
            return self._read_tensors(X, y, sample_weight)
        rows, y = (None, y) if _is_small(X) else open_data(X, y)
        if rows is None:
            return super()._read(X, y, sample_weight)
        self._check_targets(y)
        y = _check_y(y, y_numeric=self._numeric, estimator=self)
        if len(y) != rows.n_samples:
            raise ValueError(
                f"X has {rows.n_samples} rows but y has {len(y)} values; they must agree"
            )
        sample_weight = check_weights(sample_weight, y)
        self._note_features(rows.n_features, rows.columns)
        return rows, y, sample_weight

    def _read_tensors(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, Any, FloatArray | None]:
        # Torch takes longer to import than all the rest.
        from sorel.estimators import tensor_data

        _refuse_many_targets(self, y)
        if self._numeric and not is_tensor(y):
            _refuse_texts(self, y)
        X, y, sample_weight = tensor_data.read_arrays(X, y, sample_weight)
        self._note_features(int(X.shape[1]), None)
        return X, y, sample_weight

    def _note_features(self, count: int, names: list[str] | None) -> None:
        self.n_features_in_ = count
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    @property
    def _has_intercept(self) -> bool:
        """Whether the solver finds the intercept; one that follows from means is no parameter."""
        return bool(self.fit_intercept) and not isinstance(self.fit_intercept, str)

    def _task(self, X: Any, y: Any, sample_weight: Any) -> tuple[WeightedRows, Loss]:
        """Read and check what `fit` was given: rows with targets as the loss takes them."""
        X, y, sample_weight = self._read(X, y, sample_weight)
        data = weighted_rows(X, y, self._row_weights(y, sample_weight))
        targets, loss = self._encode(data.y)
        return data._replace(y=targets), loss

    def _row_weights(self, y: Any, sample_weight: FloatArray | None) -> FloatArray | None:
        """Weights of the rows in the fit."""
        return sample_weight

    def _method(self) -> str | Solver:
        """The solver, with the settings that the estimator has for it."""
        return SOREL(batch_size=self.batch_size) if self.solver == "sorel" else self.solver

    def _fits_along(
        self, data: WeightedRows, loss: Loss, pairs: Iterable[tuple[Risk, float | str]]
    ) -> Iterator[None]:
        """Fit to every risk and l2 in turn, each from the last: the data are read once for all."""
        problem = previous = None
        for risk, l2 in pairs:
            self.risk, self.l2 = risk, l2
            penalty = self._penalty(data)
            if problem is None:
                problem = self._problem(data, loss, penalty)
            elif problem.risk != risk:
                problem = problem.with_risk(risk)
            problem = problem.with_penalty(penalty)
            previous = self._solve(problem, self._method(), warm_start=previous)
            self._keep(previous, problem, data)
            self._note_constant(data, problem)
            yield

    def _fit(self, data: WeightedRows, loss: Loss) -> None:
        """Solve the problem of these rows, and keep the result."""
        problem = self._problem(data, loss, self._penalty(data))
        solver = make_solver(self._method())
        previous = self._previous(problem, data.kept) if self.warm_start else None
        progress = ProgressLine(self.verbose, self.tol) if self.verbose else None
        options = {"warm_start": previous, "checkpoint": self.checkpoint}
        result = self._solve(problem, solver, progress, **options)
        if progress is not None:
            progress.close(result)
        self._keep(result, problem, data)
        self._note_constant(data, problem)
        if result.status.startswith("interrupted"):
            stop_if_repeated()
            warn(
                f"fit was {result.status}; the model holds the best iterate so far",
                convergence_warning(),
            )

    def _solve(
        self,
        problem: Problem,
        solver: str | Solver,
        progress: Callable[[Record], None] | None = None,
        **options: Any,
    ) -> Result:
        """Solve a problem, and log the result."""
        logged = logger.isEnabledFor(logging.DEBUG)

        def follow(record: Record) -> None:
            if progress is not None:
                progress(record)
            if logged:
                log_record(record)

        options["callback"] = follow if logged or progress is not None else None
        options["random_state"] = self.random_state
        result = solve(problem, solver, tol=self.tol, max_passes=self.max_passes, **options)
        logger.info("%s: %s (%.3g s)", type(self).__name__, result.status, result.seconds)
        return result

    def _penalty(self, data: WeightedRows) -> Penalty:
        penalty = choose_penalty(self.penalty, self.l2, self.l1, self.positive, data.total)
        self.l2_ = float(penalty.l2)
        return penalty

    def _problem(self, data: WeightedRows, loss: str | Loss, penalty: Penalty) -> Problem:
        settings = {"risk": self.risk, "loss": loss, "penalty": penalty, "n_jobs": self.n_jobs}
        settings |= {"fit_intercept": self._has_intercept, "sample_weight": data.sample_weight}
        settings["offset"] = data.offset
        return Problem(data.X, data.y, **settings)

    def _keep(self, result: Result, problem: Problem, data: WeightedRows) -> None:
        for name, value in self._parameters_of(result.w, problem.n_features).items():
            setattr(self, name, value)
        self.risk_weights_ = spread(result.weights, data.kept)
        self._keep_outcome(result)
        self._history = np.array(result.history, dtype=np.float64).reshape(-1, len(Record._fields))

    def _note_constant(self, data: WeightedRows, problem: Problem) -> None:
        """Say so if the optimum is nearly the constant model."""
        self.constant_ = False
        if not self.converged_:
            return
        y = data.y if data.offset is None else data.y * np.exp(-data.offset)
        sample = sample_rows(data.X, y, data.sample_weight)

        def learns(w: FloatArray) -> bool:
            found = self._parameters_of(w, problem.n_features)
            scores = product(sample.X, found["coef_"].T) + found["intercept_"]
            return self._varies(scores, sample.y)

        scores = product(sample.X, self.coef_.T) + self.intercept_
        weight = sample.sample_weight
        if data.offset is not None:
            # Rates count by their exposures.
            exposure = sample_rows(data.X, np.exp(data.offset), None).y
            weight = exposure if weight is None else exposure * weight
        self._judge(problem, scores, sample.y, weight, lambda: first_level(problem, sample, learns))

    def _judge(
        self,
        problem: Problem,
        scores: FloatArray,
        y: NDArray[Any],
        weight: FloatArray | None,
        find_level: Callable[[], Level],
    ) -> None:
        """Warn of what scores of some rows say of the model, and of a tail that is too small."""
        self.constant_ = not self._varies(scores, y)
        if not self._warns_of_model:
            return
        if self.constant_:
            self.status_ += "; the model is constant: its predictions hardly depend on X"
            warn(advice(problem.risk, find_level()), ConstantModelWarning)
        elif not isinstance(problem.risk, Mean):
            intercepts = np.size(self.intercept_) if self.fit_intercept else 0
            parameters = int(np.count_nonzero(self.coef_)) + intercepts
            warn_of_small_tail(problem.risk, problem.n_samples, parameters)
            if not isinstance(self.fit_intercept, str):
                self._warn_of_shift(problem.risk, scores, y, weight)

    def _parameters_of(self, w: FloatArray, d: int) -> dict[str, Any]:
        """coef_ and intercept_ of the core's parameter array."""
        raise NotImplementedError

    def _previous(self, problem: Problem, kept: NDArray[np.bool_] | None) -> Result | None:
        """The last fit as a result to start from, where it has the shape of this problem."""
        if not hasattr(self, "coef_"):
            return None
        w = np.atleast_2d(self.coef_).T
        if self._has_intercept:
            w = np.vstack([w, np.atleast_1d(self.intercept_)])
        if problem.engine.n_outputs == 1 and w.shape[1] == 1:
            w = w[:, 0]
        if w.shape != problem.engine.shape:
            return None
        lam = getattr(self, "risk_weights_", np.empty(0))
        if kept is not None and len(kept) == len(lam):
            lam = lam[kept]
        nan = math.nan
        return Result(w, lam, nan, nan, nan, nan, 0.0, 0.0, 0, False, "", "", [])


def spread(weights: FloatArray, kept: NDArray[np.bool_] | None) -> FloatArray:
    """Weights of all samples: 0 for those that were left out."""
    if kept is None:
        return weights
    out = np.zeros(len(kept))
    out[kept] = weights
    return out


def check_weights(sample_weight: Any, X: Any) -> FloatArray | None:
    """Sample weights as an array of numbers of at least 0, one for each row of X."""
    if sample_weight is None:
        return None
    check_numbers(sample_weight, "sample_weight")
    with config_context(array_api_dispatch=False):
        weights: FloatArray = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
    return weights


def weighted_rows(X: Any, y: NDArray[Any], sample_weight: FloatArray | None) -> WeightedRows:
    """Leave out the rows of weight 0: they are not there."""
    if sample_weight is None:
        return WeightedRows(X, y, None, float(X.shape[0]), None)
    total = float(sample_weight.sum())
    if not total > 0.0:
        raise ValueError("sample_weight is zero everywhere: give some sample a positive weight")
    # Rows on disk or on a device cannot be left out cheaply; they stay, with the weight 0.
    if sample_weight.all() or isinstance(X, RowSource) or is_tensor(X):
        return WeightedRows(X, y, sample_weight, total, None)
    kept = sample_weight > 0.0
    return WeightedRows(X[kept], y[kept], sample_weight[kept], total, kept)


def _is_small(X: Any) -> bool:
    """Whether X is an array that scikit-learn's checks may read at once, mapped or not."""
    return isinstance(X, np.ndarray) and X.nbytes <= WORTH_STREAMING


def _check_columns(model: Any, rows: RowSource) -> None:
    _check_n_features(model, rows, reset=False)
    names = getattr(model, "feature_names_in_", None)
    if names is not None and rows.columns is not None and rows.columns != names.tolist():
        raise ValueError(
            f"the columns of X are {rows.columns}, and the model was fitted to {names.tolist()}"
        )


def refuse_dask(estimator: Any, *collections: Any) -> None:
    """Say which class takes dask collections: here they would all be brought into this process."""
    for given in collections:
        if type(given).__module__.partition(".")[0] not in ("dask", "dask_expr"):
            continue
        name = type(estimator).__name__
        other, remedy = f"Dask{name.removesuffix('CV')}", "call its compute() first"
        if other in ("DaskSpectralRiskRegressor", "DaskSpectralRiskClassifier"):
            leaves = "which leaves the rows on the workers"
            remedy = f"use sorel.dask.{other}, {leaves}, or call compute() first"
        kind = f"a {type(given).__name__} of Dask"
        raise TypeError(f"{name} takes data in memory or on disk, got {kind}; {remedy}")


def _refuse_texts(estimator: Any, y: Any) -> None:
    """Labels that are texts belong to a classifier, and not to another loss of this estimator."""
    values = np.asarray(y)
    first = values.ravel()[:1].tolist()
    if not first or not isinstance(first[0], (str, bytes)):
        return
    try:  # texts that are numbers are no labels; they are refused as such
        values.astype(np.float64)
    except ValueError:
        name = type(estimator).__name__
        raise ValueError(
            f"y holds texts such as {str(first[0])!r}, and {name} predicts numbers; for labels, "
            f"use {name.replace('Regressor', 'Classifier')}"
        ) from None


def _refuse_many_targets(estimator: Any, y: Any) -> None:
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if isinstance(y, (list, tuple)):
        try:
            shape = np.shape(y)
        except ValueError:  # ragged, which validation reports
            return
    if len(shape) > 1 and shape[1] > 1:
        kind = "Classifier" if isinstance(estimator, ClassifierMixin) else "Regressor"
        raise ValueError(
            f"y should be a 1d array, got an array of shape {tuple(shape)} instead: "
            f"{type(estimator).__name__} fits one target; for several, use "
            f"sklearn.multioutput.MultiOutput{kind}"
        )
