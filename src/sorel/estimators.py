"""Linear models with scikit-learn's face: spectral risks in ``fit``, plain scores in ``predict``.

The estimators minimise ``sum_i sigma_i l_[i](w) + l2/2 ||w||^2 + l1 ||w||_1`` to a certified
relative gap of `tol`. They read what scikit-learn's users give (data frames, labels, sample
weights, callbacks), hand a :class:`sorel.Problem` to :func:`sorel.solve`, and keep the result.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_sample_weight,
    _check_y,
    check_is_fitted,
    validate_data,
)

from sorel._frames import as_table
from sorel.checkpoints import Checkpoint
from sorel.losses import Loss, parse_loss
from sorel.penalties import L2, ElasticNet, Penalty
from sorel.problem import WORTH_STREAMING, Problem
from sorel.risks import CVaR, Risk, parse_risk
from sorel.rows import RowSource, open_data, open_rows
from sorel.solve import Record, Result, convergence_warning, solve
from sorel.solvers import SOREL, Solver, make_solver
from sorel.solvers.base import Iterates, Run

try:  # scikit-learn 1.9 and newer
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef] # one or the other
        """Nothing: this scikit-learn has no callbacks."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Leave `method` as it is."""
        return method


__all__ = ["SpectralRiskClassifier", "SpectralRiskRegressor"]

FloatArray = NDArray[np.float64]


_FLOATS = (np.float64, np.float32)

# Numbers of float32 that are converted together.
_PIECE = 1_000_000
_DEFAULT_RISK = CVaR(0.5)
# What a fit leaves behind besides n_features_in_, feature_names_in_ and classes_.
FITTED = (
    "coef_", "intercept_", "risk_weights_", "gap_", "relative_gap_", "objective_", "n_passes_",
    "n_iter_", "converged_", "status_", "l2_", "_history",
)  # fmt: skip


class Weighted(NamedTuple):
    """Rows with a positive weight, their targets, and what the weights add up to."""

    X: Any
    y: NDArray[Any]
    sample_weight: FloatArray | None
    total: float
    kept: NDArray[np.bool_] | None


def _product(X: Any, coef: FloatArray) -> FloatArray:
    """X coef; float32 rows are brought to float64 a few at a time, not all at once."""
    if not (isinstance(X, np.ndarray) and X.dtype == np.float32):
        return np.asarray(X @ coef)
    out = np.empty((len(X), *coef.shape[1:]))
    height = max(1, _PIECE // X.shape[1])
    for start in range(0, len(X), height):
        np.matmul(X[start : start + height], coef, out=out[start : start + height])
    return out


class SpectralModel(BaseEstimator):  # type: ignore[misc] # untyped base
    """What all estimators share: parameters with nested risks, tags, tables."""

    risk: Risk | str

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
        """One row per check: passes, seconds, objective, dual, gap, relative_gap.

        A pandas DataFrame where pandas is installed, else a plain table with the same columns.
        """
        if "_history" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} has no history_: fit it first")
        return as_table(dict(zip(Record._fields, self._history.T, strict=True)))

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, numeric: bool
    ) -> tuple[Any, NDArray[Any], FloatArray | None]:
        """Validated X, y and sample weights."""
        _refuse_many_targets(self, y)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=_FLOATS, y_numeric=numeric)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        return X, y, sample_weight

    def _scores(self, X: Any) -> FloatArray:
        check_is_fitted(self, "coef_")
        if not _is_small(X):
            names = getattr(self, "feature_names_in_", None)
            rows = open_rows(X, None if names is None else names.tolist())
            if rows is not None:
                return self._scores_on_disk(rows)
        X = validate_data(self, X, accept_sparse="csr", dtype=_FLOATS, reset=False)
        return _product(X, self.coef_.T) + self.intercept_

    def _scores_on_disk(self, rows: RowSource) -> FloatArray:
        _check_columns(self, rows)
        scores = np.empty((rows.n_samples, *np.shape(self.coef_)[:-1]))
        for start, stop, part in rows.finite_spans():
            np.matmul(part, self.coef_.T, out=scores[start:stop])
        scores += self.intercept_
        return scores

    n_features_in_: int
    coef_: FloatArray
    intercept_: Any
    _history: FloatArray


class RegressorFace(RegressorMixin, SpectralModel):  # type: ignore[misc] # untyped base
    """Predictions of a linear regressor."""

    def predict(self, X: Any) -> FloatArray:
        """Predict the target.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n,)
            Predicted values.
        """
        return self._scores(X)


def _gives_probabilities(model: ClassifierFace) -> bool:
    if _loss_name(model.loss) != "squared_hinge":
        return True
    raise AttributeError(
        "loss='squared_hinge' gives no probabilities; use loss='logistic', or "
        "sklearn.calibration.CalibratedClassifierCV"
    )


class ClassifierFace(ClassifierMixin, SpectralModel):  # type: ignore[misc] # untyped base
    """Predictions of a linear classifier."""

    loss: str | Loss
    classes_: NDArray[Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = _loss_name(self.loss) != "squared_hinge"
        return tags

    def decision_function(self, X: Any) -> FloatArray:
        """Margins of the samples.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n,) or (n, n_classes)
            With two classes, positive values speak for ``classes_[1]``.
        """
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the label.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n,)
            The label with the largest margin.
        """
        scores = self.decision_function(X)
        codes = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.intp)
        return self.classes_[codes]

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of the classes; not available for ``loss="squared_hinge"``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``; rows sum to 1.
        """
        scores = self.decision_function(X)
        if scores.ndim == 2:
            return np.asarray(softmax(scores, axis=1))
        return np.column_stack([expit(-scores), expit(scores)])

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of the probabilities, exact where those underflow.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        scores = self.decision_function(X)
        if scores.ndim == 2:
            return np.asarray(log_softmax(scores, axis=1))
        return np.column_stack([log_expit(-scores), log_expit(scores)])

    def _read_labels(self, y: NDArray[Any]) -> tuple[NDArray[np.int64], str | Loss]:
        """Set classes_; return the codes of the labels and the loss for that many classes."""
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        loss = _classification_loss(self.loss)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds only one class, {self.classes_.tolist()}, among the samples with a "
                "positive weight; a classifier needs at least two classes"
            )
        if len(self.classes_) > 2:
            if loss == "squared_hinge":
                raise ValueError(
                    "Only binary classification is supported. The type of the target is "
                    f"{type_of_target(y)}. With loss='squared_hinge', {len(self.classes_)} classes "
                    "need sklearn.multiclass.OneVsRestClassifier around this estimator; "
                    "loss='logistic' takes any number of classes."
                )
            loss = "multinomial"
        return codes.astype(np.int64), loss


class SpectralFit(CallbackSupportMixin, SpectralModel):  # type: ignore[misc] # untyped base
    """From validated arrays to fitted attributes, for the two estimators without search."""

    l2: float | str
    l1: float
    fit_intercept: bool
    solver: str | Solver
    tol: float
    max_passes: float
    batch_size: int
    warm_start: bool
    random_state: Any
    verbose: int
    n_jobs: int | None
    checkpoint: str | os.PathLike[str] | Checkpoint | None

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, numeric: bool
    ) -> tuple[Any, NDArray[Any], FloatArray | None]:
        rows, y = (None, y) if _is_small(X) else open_data(X, y)
        if rows is None:
            return super()._read(X, y, sample_weight, numeric=numeric)
        _refuse_many_targets(self, y)
        y = _check_y(y, y_numeric=numeric, estimator=self)
        if len(y) != rows.n_samples:
            raise ValueError(
                f"X has {rows.n_samples} rows but y has {len(y)} values; they must agree"
            )
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, y, dtype=np.float64, ensure_non_negative=True
            )
        self.n_features_in_ = rows.n_features
        if rows.columns is not None:
            self.feature_names_in_ = np.array(rows.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return rows, y, sample_weight

    def _fit(self, data: Weighted, loss: str | Loss, n_samples: int, given: dict[str, Any]) -> None:
        """Solve the problem of `data` and keep the result; `given` is what callbacks see."""
        self.l2_ = resolve_l2(self.l2, data.total)
        problem = Problem(
            data.X,
            data.y,
            risk=self.risk,
            loss=loss,
            penalty=make_penalty(self.l2_, self.l1),
            fit_intercept=self.fit_intercept,
            sample_weight=data.sample_weight,
            n_jobs=self.n_jobs,
        )
        solver: str | Solver = self.solver
        if solver == "sorel":
            solver = SOREL(batch_size=self.batch_size)
        previous = self._previous(problem, data.kept) if self.warm_start else None
        hooks = _Hooks(self, problem, given)
        listeners: list[Callable[[Record], Any]] = []
        if hooks.wanted:
            solver = hooks.spy = _Spy(make_solver(solver))
            listeners.append(hooks)
        progress = ProgressLine(self.verbose, self.tol) if self.verbose else None
        if progress is not None:
            listeners.append(progress)
        hooks.begin()
        result = solve(
            problem,
            solver,
            tol=self.tol,
            max_passes=self.max_passes,
            random_state=self.random_state,
            callback=_all_of(listeners),
            warm_start=previous,
            checkpoint=self.checkpoint,
        )
        if progress is not None:
            progress.close(result)
        self._keep(result, problem.n_features, n_samples, data.kept)
        hooks.end()
        if result.status.startswith("interrupted"):
            _stop_if_repeated()
            warnings.warn(
                f"fit was {result.status}; the model holds the best iterate so far",
                convergence_warning(),
                stacklevel=4,
            )

    def _keep(self, result: Result, d: int, n_samples: int, kept: NDArray[np.bool_] | None) -> None:
        for name, value in self._parameters_of(result.w, d).items():
            setattr(self, name, value)
        if kept is None:
            self.risk_weights_ = result.weights
        else:
            self.risk_weights_ = np.zeros(n_samples)
            self.risk_weights_[kept] = result.weights
        self.objective_ = result.objective
        self.gap_ = result.gap
        self.relative_gap_ = result.relative_gap
        self.n_passes_ = result.passes
        self.n_iter_ = result.n_iter
        self.converged_ = result.converged
        self.status_ = result.status
        self._history = np.array(result.history, dtype=np.float64).reshape(-1, len(Record._fields))

    def _parameters_of(self, w: FloatArray, d: int) -> dict[str, Any]:
        """coef_ and intercept_ of the core's parameter array."""
        raise NotImplementedError

    def _previous(self, problem: Problem, kept: NDArray[np.bool_] | None) -> Result | None:
        """The last fit as a result to start from, where it has the shape of this problem."""
        if not hasattr(self, "coef_"):
            return None
        w = np.atleast_2d(self.coef_).T
        if self.fit_intercept:
            w = np.vstack([w, np.atleast_1d(self.intercept_)])
        if problem.engine.n_outputs == 1 and w.shape[1] == 1:
            w = w[:, 0]
        if w.shape != problem.engine.shape:
            return None
        lam = self.risk_weights_
        if kept is not None and len(kept) == len(lam):
            lam = lam[kept]
        nan = math.nan
        return Result(w, lam, nan, nan, nan, nan, 0.0, 0.0, 0, False, "", "", [])


class SpectralRiskRegressor(RegressorFace, SpectralFit):
    """Linear regression that minimises a spectral risk of the losses.

    Ordinary least squares minimises the mean loss. A spectral risk gives larger losses more
    weight: ``CVaR(0.1)``, for example, is the mean of the worst tenth.

    Parameters
    ----------
    risk : Risk or str, default=CVaR(0.5)
        Weights of the ordered losses, such as ``CVaR(0.1)``, ``ESRM(2.0)`` or ``"cvar:0.1"``.
        Its parameters can be searched as ``risk__alpha`` and the like.
    loss : {"squared", "huber"} or Loss, default="squared"
        Loss of one residual. "squared" is ``r**2 / 2``; "huber" turns linear at ``abs(r) = 1``,
        and ``sorel.losses.Huber(delta)`` elsewhere.
    l2 : float or "auto", default="auto"
        Weight of ``||w||^2 / 2``, above 0. "auto" is 1 / n, with n the number of rows or, where
        sample weights are given, their sum.
    l1 : float, default=0.0
        Weight of ``||w||_1``; above 0, coefficients become sparse.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers`. "auto" suits every problem.
    tol : float, default=1e-4
        Relative duality gap to reach: the objective is then certified to lie within that factor
        of the optimum.
    max_passes : float, default=1000
        Budget, in passes over the data.
    batch_size : int, default=1
        Samples per stochastic step of ``solver="sorel"``; the others have no use for it.
    warm_start : bool, default=False
        Start from the last fit where that has the same features.
    random_state : int, Generator, RandomState or None, default=None
        Randomness of the stochastic solvers; "auto" and "newton" on dense data use none.
    verbose : int, default=0
        1 keeps a line with passes and certified gap on standard error, 2 prints every check.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores. None follows the settings of numba and
        of the linear algebra library, threadpoolctl's limits included.
    checkpoint : path or Checkpoint, optional
        A file that keeps the state of a long fit. If it exists, ``fit`` goes on from it, or refuses
        it if the data or the parameters are others; see :func:`sorel.solve`. It serves one fit, not
        a search over many.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.
    intercept_ : float
        Intercept.
    risk_weights_ : ndarray of shape (n,)
        The worst-case weighting of the training samples that certifies the fit.
    objective_, gap_, relative_gap_ : float
        Objective, its certified distance to the optimum, and that relative to the objective.
    n_passes_ : float
        Passes over the data.
    n_iter_ : int
        Outer iterations.
    converged_ : bool
        Whether ``relative_gap_ <= tol``.
    status_ : str
        One sentence on how the fit ended.
    history_ : DataFrame or table
        One row per check.
    l2_ : float
        The l2 used.
    n_features_in_ : int
        Features seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where X has names that are all strings.

    See Also
    --------
    SpectralRiskRegressorCV : Chooses risk and l2 by cross-validation.

    Notes
    -----
    A sample weight of 2 is the row twice, and 0 is the row left out. Ctrl-C ends a fit early: the
    estimator then holds the best iterate found, a warning says so, and ``status_`` begins with
    "interrupted". In a search over many fits, press it twice to end the search.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR, SpectralRiskRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = X @ [1.0, 2.0, 3.0] + rng.standard_t(3, size=200)
    >>> model = SpectralRiskRegressor(risk=CVaR(0.1)).fit(X, y)
    >>> model.relative_gap_ <= 1e-4
    True
    >>> model.predict(X[:5]).shape
    (5,)
    """

    def __init__(
        self,
        risk: Risk | str = _DEFAULT_RISK,
        *,
        loss: str | Loss = "squared",
        l2: float | str = "auto",
        l1: float = 0.0,
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        tol: float = 1e-4,
        max_passes: float = 1000,
        batch_size: int = 1,
        warm_start: bool = False,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> None:
        self.risk = risk
        self.loss = loss
        self.l2 = l2
        self.l1 = l1
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_passes = max_passes
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.checkpoint = checkpoint

    @with_callbacks
    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> SpectralRiskRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples; or rows on disk, as :class:`sorel.Problem` takes them.
        y : array-like of shape (n,)
            Targets; or where they are on disk, as :class:`sorel.Problem` takes them.
        sample_weight : array-like of shape (n,), optional
            Weights; 2 is the row twice.

        Returns
        -------
        SpectralRiskRegressor
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If `tol` was not reached within `max_passes`, or fit was interrupted.
        """
        loss = regression_loss(self.loss)
        X, y, sample_weight = self._read(X, y, sample_weight, numeric=True)
        given = {"X": X, "y": y, "sample_weight": sample_weight}
        self._fit(weighted_rows(X, y, sample_weight), loss, X.shape[0], given)
        return self

    def _parameters_of(self, w: FloatArray, d: int) -> dict[str, Any]:
        return {"coef_": w[:d].copy(), "intercept_": float(w[d]) if self.fit_intercept else 0.0}


class SpectralRiskClassifier(ClassifierFace, SpectralFit):
    """Linear classification that minimises a spectral risk of the losses.

    With the logistic loss it is logistic regression, binary or multinomial, with more weight on the
    samples that fare worst.

    Parameters
    ----------
    risk : Risk or str, default=CVaR(0.5)
        Weights of the ordered losses, such as ``CVaR(0.1)``, ``ESRM(2.0)`` or ``"cvar:0.1"``.
        Its parameters can be searched as ``risk__alpha`` and the like.
    loss : {"logistic", "squared_hinge"} or Loss, default="logistic"
        Loss of one margin. "logistic" becomes the multinomial cross-entropy where there are more
        than two classes. "squared_hinge" takes two classes and gives no probabilities; for more
        classes put ``sklearn.multiclass.OneVsRestClassifier`` around the estimator.
    l2 : float or "auto", default="auto"
        Weight of ``||w||^2 / 2``, above 0. "auto" is 1 / n, with n the number of rows or, where
        sample weights are given, their sum.
    l1 : float, default=0.0
        Weight of ``||w||_1``; above 0, coefficients become sparse.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers`. "auto" suits every problem.
    tol : float, default=1e-4
        Relative duality gap to reach: the objective is then certified to lie within that factor
        of the optimum.
    max_passes : float, default=1000
        Budget, in passes over the data.
    batch_size : int, default=1
        Samples per stochastic step of ``solver="sorel"``; the others have no use for it.
    warm_start : bool, default=False
        Start from the last fit where that has the same features and number of classes.
    random_state : int, Generator, RandomState or None, default=None
        Randomness of the stochastic solvers; "auto" and "newton" on dense data use none.
    verbose : int, default=0
        1 keeps a line with passes and certified gap on standard error, 2 prints every check.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores. None follows the settings of numba and
        of the linear algebra library, threadpoolctl's limits included.
    checkpoint : path or Checkpoint, optional
        A file that keeps the state of a long fit. If it exists, ``fit`` goes on from it, or refuses
        it if the data or the parameters are others; see :func:`sorel.solve`. It serves one fit, not
        a search over many.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    coef_ : ndarray of shape (1, d) or (n_classes, d)
        Coefficients; one row where there are two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    risk_weights_ : ndarray of shape (n,)
        The worst-case weighting of the training samples that certifies the fit.
    objective_, gap_, relative_gap_ : float
        Objective, its certified distance to the optimum, and that relative to the objective.
    n_passes_ : float
        Passes over the data.
    n_iter_ : int
        Outer iterations.
    converged_ : bool
        Whether ``relative_gap_ <= tol``.
    status_ : str
        One sentence on how the fit ended.
    history_ : DataFrame or table
        One row per check.
    l2_ : float
        The l2 used.
    n_features_in_ : int
        Features seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where X has names that are all strings.

    See Also
    --------
    SpectralRiskClassifierCV : Chooses risk and l2 by cross-validation.

    Notes
    -----
    A sample weight of 2 is the row twice, and 0 is the row left out. Ctrl-C ends a fit early: the
    estimator then holds the best iterate found, a warning says so, and ``status_`` begins with
    "interrupted". In a search over many fits, press it twice to end the search.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sorel import SpectralRiskClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SpectralRiskClassifier(risk="cvar:0.2").fit(X, y)
    >>> model.coef_.shape, model.predict_proba(X[:2]).sum(axis=1)
    ((3, 4), array([1., 1.]))
    """

    def __init__(
        self,
        risk: Risk | str = _DEFAULT_RISK,
        *,
        loss: str | Loss = "logistic",
        l2: float | str = "auto",
        l1: float = 0.0,
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        tol: float = 1e-4,
        max_passes: float = 1000,
        batch_size: int = 1,
        warm_start: bool = False,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> None:
        self.risk = risk
        self.loss = loss
        self.l2 = l2
        self.l1 = l1
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_passes = max_passes
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.checkpoint = checkpoint

    @with_callbacks
    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> SpectralRiskClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples; or rows on disk, as :class:`sorel.Problem` takes them.
        y : array-like of shape (n,)
            Labels of any kind, two or more; or where they are on disk, as :class:`sorel.Problem`
            takes them.
        sample_weight : array-like of shape (n,), optional
            Weights; 2 is the row twice.

        Returns
        -------
        SpectralRiskClassifier
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If `tol` was not reached within `max_passes`, or fit was interrupted.
        """
        X, y, sample_weight = self._read(X, y, sample_weight, numeric=False)
        given = {"X": X, "y": y, "sample_weight": sample_weight}
        data = weighted_rows(X, y, sample_weight)
        codes, loss = self._read_labels(data.y)
        self._fit(data._replace(y=codes), loss, X.shape[0], given)
        return self

    def _parameters_of(self, w: FloatArray, d: int) -> dict[str, Any]:
        table = w.reshape(len(w), -1).T
        intercept = table[:, d].copy() if self.fit_intercept else np.zeros(len(table))
        if len(table) > 1:
            # Adding one number to all of them changes no probability: take those that sum to 0.
            intercept -= intercept.mean()
        return {"coef_": np.ascontiguousarray(table[:, :d]), "intercept_": intercept}


def regression_loss(loss: str | Loss) -> Loss:
    """The loss, if it is one for numbers."""
    parsed = parse_loss(loss)
    if parsed.is_classifier:
        raise ValueError(
            f"loss={loss!r} is for classification; a regressor takes 'squared', 'huber' or an "
            "instance such as sorel.losses.Huber(2.0)"
        )
    return parsed


def _classification_loss(loss: str | Loss) -> str:
    name = parse_loss(loss).name
    if name not in ("logistic", "squared_hinge", "multinomial"):
        raise ValueError(
            f"loss={loss!r} is not for classification; a classifier takes 'logistic' or "
            "'squared_hinge'"
        )
    # Two classes need one margin, not two.
    return "logistic" if name == "multinomial" else name


def _loss_name(loss: Any) -> Any:
    return getattr(loss, "name", loss)


def resolve_l2(l2: float | str, total: float) -> float:
    """The number that `l2` stands for when the sample weights add up to `total`."""
    if isinstance(l2, str):
        if l2 != "auto":
            raise ValueError(f"l2 must be a number above 0 or 'auto', got {l2!r}")
        return 1.0 / total
    return float(L2(l2).l2)


def make_penalty(l2: float, l1: float) -> Penalty:
    """Ridge, or the elastic net where l1 is not 0."""
    return ElasticNet(l2, l1) if l1 else L2(l2)


def weighted_rows(X: Any, y: NDArray[Any], sample_weight: FloatArray | None) -> Weighted:
    """Leave out the rows of weight 0: they are not there."""
    if sample_weight is None:
        return Weighted(X, y, None, float(X.shape[0]), None)
    total = float(sample_weight.sum())
    if not total > 0.0:
        raise ValueError("sample_weight is zero everywhere: give some sample a positive weight")
    # Rows on disk cannot be left out cheaply; they stay, with the weight 0.
    if sample_weight.all() or isinstance(X, RowSource):
        return Weighted(X, y, sample_weight, total, None)
    kept = sample_weight > 0.0
    return Weighted(X[kept], y[kept], sample_weight[kept], total, kept)


def _is_small(X: Any) -> bool:
    """Whether X is an array that scikit-learn's checks may read at once, mapped or not."""
    return isinstance(X, np.ndarray) and X.nbytes <= WORTH_STREAMING


def _check_columns(model: Any, rows: RowSource) -> None:
    if rows.n_features != model.n_features_in_:
        raise ValueError(
            f"X has {rows.n_features} features, but {type(model).__name__} is expecting "
            f"{model.n_features_in_} features as input"
        )
    names = getattr(model, "feature_names_in_", None)
    if names is not None and rows.columns is not None and rows.columns != names.tolist():
        raise ValueError(
            f"the columns of X are {rows.columns}, and the model was fitted to {names.tolist()}"
        )


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


# What happens while a fit runs.


# A second Ctrl-C within so many seconds is meant for whatever calls fit again and again.
_SECOND_THOUGHT = 2.0
_last_interrupt = -math.inf


def _stop_if_repeated() -> None:
    global _last_interrupt
    before, _last_interrupt = _last_interrupt, time.monotonic()
    if _last_interrupt - before < _SECOND_THOUGHT:
        raise KeyboardInterrupt("interrupted twice")


def _all_of(listeners: list[Callable[[Record], Any]]) -> Callable[[Record], bool] | None:
    if not listeners:
        return None

    def call(record: Record) -> bool:
        stops = [bool(listener(record)) for listener in listeners]  # every one hears of it
        return any(stops)

    return call


class ProgressLine:
    """Passes and certified gap of a run, on one line of a terminal or one line a second elsewhere.

    Parameters
    ----------
    verbose : int
        From 2 on, every check gets a line of its own.
    tol : float
        The gap to reach, shown beside the one reached.
    stream : file, optional
        Where to write; standard error when not given.
    """

    def __init__(self, verbose: int, tol: float, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._every = verbose > 1
        self._in_place = not self._every and self._stream.isatty()
        self._interval = 0.0 if self._every else 0.1 if self._in_place else 1.0
        self._tol = tol
        self._width = 0
        self._next = 0.0

    def __call__(self, record: Record) -> None:
        """Show a check, if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        self._write(
            f"sorel: {record.passes:.5g} passes, objective {record.objective:.8g}, "
            f"relative gap {record.relative_gap:.2e} (tol {self._tol:.0e})"
        )

    def close(self, result: Result) -> None:
        """Leave the outcome on the screen."""
        self._write(f"sorel: {result.status} ({result.seconds:.3g} s)")
        if self._in_place:
            self._stream.write("\n")
        self._stream.flush()

    def _write(self, text: str) -> None:
        if self._in_place:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


class _Spy(Solver):
    """A solver that remembers the parameters it was last checked at."""

    def __init__(self, inner: Solver) -> None:
        self._inner = inner
        self.name = inner.name  # type: ignore[misc] # an instance stands in for the class here
        self.w: FloatArray | None = None

    def check(self, problem: Problem) -> None:
        self._inner.check(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        # A resumed fit is checked where it starts, before the solver has its first turn.
        self.w = run.w
        return self._follow(self._inner.iterates(problem, run))

    def _follow(self, iterates: Iterates) -> Iterates:
        reply = None
        try:
            while True:
                try:
                    iterate = iterates.send(reply)  # type: ignore[arg-type] # None starts it
                except StopIteration:
                    return
                self.w = iterate.point.w
                reply = yield iterate
        finally:
            iterates.close()


class _Hooks:
    """scikit-learn's callbacks: one task per fit, and in it one per check."""

    def __init__(self, estimator: SpectralFit, problem: Problem, given: dict[str, Any]) -> None:
        self._estimator = estimator
        self._d = problem.n_features
        weight = given["sample_weight"]
        self._given = {
            "X": given["X"],
            "y": given["y"],
            "metadata": None if weight is None else {"sample_weight": weight},
        }
        self.spy: _Spy | None = None
        self._root: Any = None
        self._task: Any = None
        self._best = (math.inf, problem.start())
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(max_subtasks=None)

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self._root is not None and bool(getattr(self._estimator, "_skl_callbacks", None))

    def begin(self) -> None:
        if self._root is not None:
            self._root.call_on_fit_task_begin(estimator=self._estimator, **self._given)
        if self.wanted:
            self._start_task()

    def __call__(self, record: Record) -> bool:
        assert self.spy is not None
        assert self.spy.w is not None
        if record.objective < self._best[0]:
            self._best = (record.objective, self.spy.w.copy())
        stop = self._end_task()
        self._start_task()
        return stop

    def end(self) -> None:
        if self._task is not None:
            # The task that the last check opened has nothing in it.
            self._task.call_on_fit_task_end(estimator=self._estimator)
        if self._root is not None:
            self._root.call_on_fit_task_end(
                estimator=self._estimator, reconstruction_attributes={}, **self._given
            )

    def _start_task(self) -> None:
        self._task = self._root.subcontext(task_name="check")
        self._task.call_on_fit_task_begin(
            estimator=self._estimator, reconstruction_attributes=self._attributes, **self._given
        )

    def _end_task(self) -> bool:
        return bool(
            self._task.call_on_fit_task_end(
                estimator=self._estimator, reconstruction_attributes=self._attributes, **self._given
            )
        )

    def _attributes(self) -> dict[str, Any]:
        return self._estimator._parameters_of(self._best[1], self._d)
