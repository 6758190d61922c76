"""Linear regression that minimises a spectral risk of the losses."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, MODEL_TOL
from sorel._lib.devices import is_tensor
from sorel.engines.centered import centered
from sorel.estimators.base import SpectralFit, SpectralModel, WeightedRows
from sorel.estimators.constant_model import TARGET_SPREAD
from sorel.estimators.default_risks import RISK
from sorel.estimators.fit_warnings import warn_of_shifted_numbers
from sorel.estimators.plain_models import ToSklearn
from sorel.files.checkpoints import Checkpoint
from sorel.problem.losses import Gamma, Loss, parse_loss
from sorel.problem.penalties import Penalty
from sorel.problem.risks import Risk
from sorel.problem.validation import check_offset
from sorel.solvers import Solver

FloatArray = NDArray[np.float64]


class RegressorFace(RegressorMixin, ToSklearn, SpectralModel):  # type: ignore[misc] # untyped base
    """Predictions of a linear regressor."""

    loss: str | Loss
    intercept_: float

    def predict(self, X: Any, offset: ArrayLike | None = None) -> FloatArray:
        """Predict the target.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples.
        offset : array-like of shape (n,), optional
            Added to the scores under a log link: means are then those of exposures exp(offset), and
            without it those of an exposure of 1.

        Returns
        -------
        ndarray of shape (n,)
            Predicted values; a tensor on the device of X, if X is one.
        """
        scores, loss = self._scores(X), regression_loss(self.loss)
        if offset is not None:
            if is_tensor(X):
                raise TypeError("offset is for NumPy arrays; pass X.cpu().numpy()")
            scores = scores + check_offset(offset, loss, len(scores))
        if is_tensor(X):
            from sorel.estimators.tensor_data import predict_numbers

            return predict_numbers(loss, scores, X)
        return loss.predict(scores)

    def score(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Coefficient of determination R^2 of the predictions.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples.
        y : array-like of shape (n,)
            Their targets.
        sample_weight : array-like of shape (n,), optional
            Their weights.
        offset : array-like of shape (n,), optional
            As in :meth:`predict`.

        Returns
        -------
        float
            1 for perfect predictions, and 0 for the mean of y.
        """
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, offset), sample_weight=sample_weight))

    def _plain(self) -> Any:
        from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor

        loss = regression_loss(self.loss)
        of_means = GammaRegressor if isinstance(loss, Gamma) else PoissonRegressor
        kinds = {"identity": LinearRegression, "log": of_means}
        if type(loss).predict is not Loss.predict or loss.link not in kinds:
            raise ValueError(
                f"loss={loss.name!r} predicts neither the linear scores nor their exponentials, "
                "and no regressor of scikit-learn does the same; take coef_ and intercept_"
            )
        return kinds[loss.link]()

    def _encode(self, y: Any) -> tuple[Any, Loss]:
        return y, regression_loss(self.loss)

    def _varies(self, scores: FloatArray, y: NDArray[Any]) -> bool:
        predicted = regression_loss(self.loss).predict(scores)
        return bool(predicted.std() >= TARGET_SPREAD * y.std())

    def _warn_of_shift(
        self, risk: Risk, scores: FloatArray, y: NDArray[Any], weight: FloatArray | None
    ) -> None:
        warn_of_shifted_numbers(risk, regression_loss(self.loss), scores, y, weight)


class SpectralRiskRegressor(RegressorFace, SpectralFit):
    """Linear regression that minimises a spectral risk of the losses.

    Ordinary least squares minimises the mean loss. A spectral risk gives larger losses more
    weight: ``CVaR(0.1)``, for example, is the mean of the worst tenth.

    Parameters
    ----------
    risk : Risk or str, default=CVaR(0.5)
        Weights of the ordered losses, such as ``CVaR(0.1)``, ``ESRM(2.0)`` or ``"cvar:0.1"``.
        Its parameters can be searched as ``risk__alpha`` and the like.
    loss : {"squared", "huber", "poisson", "gamma"} or Loss, default="squared"
        Loss of one sample. "squared" is half the squared residual; "huber" turns linear at
        ``abs(r) = 1``, and ``sorel.losses.Huber(delta)`` elsewhere. "poisson" (counts, rates) and
        "gamma" (positive amounts) are half the deviances under a log link: ``predict`` gives means,
        the exponentials of the linear scores. For counts over exposures e, see ``offset`` in
        :meth:`fit`. A loss of your own: see :class:`sorel.losses.Loss`.
    l2 : float or "auto", default="auto"
        Weight of ``||w||^2 / 2``, above 0. "auto" is 1 / n, with n the number of rows or, where
        sample weights are given, their sum.
    l1 : float, default=0.0
        Weight of ``||w||_1``; above 0, coefficients become sparse.
    penalty : Penalty, optional
        A penalty such as ``Simplex(0.0)``, ``Box(0.1, 0.0, 1.0)`` or one of your own, in place of
        what `l2`, `l1` and `positive` say, which must then be left alone.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool or "mean", default=True
        Whether to fit an intercept, which is not penalised. With "mean" it is the one that makes
        the predictions right on average over the training rows, and the coefficients are the best
        under that condition; see the notes.
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
        1 keeps a line with passes and certified gap on standard error, 2 prints every check. The
        logger ``sorel`` hears of every check (DEBUG), of the outcome (INFO) and of all warnings.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores. None follows the settings of
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
        The worst-case weighting of the training samples that certifies the fit. Predictions do not
        need it: ``del model.risk_weights_`` makes a pickle small.
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
    constant_ : bool
        Whether the optimum is (nearly) the constant model: predictions hardly depend on X.
    history_ : DataFrame or table
        One row per check.
    l2_ : float
        The l2 used; that of the penalty where one is given.
    n_features_in_ : int
        Features seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where X has names that are all strings.

    See Also
    --------
    SpectralRiskRegressorCV : Chooses risk and l2 by cross-validation.

    Notes
    -----
    A tail risk of squares serves the largest errors of either sign. Where these lie on one side, as
    for skewed targets, the predictions move there: they are no longer right on average, and a sum
    of them is biased. ``fit_intercept="mean"`` solves the problem with the constraint that the
    residuals add up to 0, on X and y less their means: the certificate is one of that problem. That
    is the weighted sum over all training rows: the mean over a group of rows, or over new rows, may
    be off as before. It needs a loss of the residual. Nothing of a sparse X is made dense, and rows
    on disk stay there; solvers that step on single rows do not take a sparse X then.

    The squared loss is *half* the squared residual, here and in ``objective_``.

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

    # Pickles and model files know the class by this name, wherever in the package it is written.
    __module__ = "sorel.estimators"

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
    ) -> None:
        self._keep_settings(locals())

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples; or rows on disk, as :class:`sorel.Problem` takes them.
        y : array-like of shape (n,)
            Targets; or where they are on disk, as :class:`sorel.Problem` takes them.
        sample_weight : array-like of shape (n,), optional
            Weights; 2 is the row twice.
        offset : array-like of shape (n,), optional
            Added to the linear scores, for "poisson" and "gamma": with the logarithm of exposures,
            losses are the deviances of the counts themselves. Rates with exposures as sample
            weights have the same optimum under the mean alone: a tail risk ranks deviances per
            exposure then.

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
            If predictions are off on average, over up to 10 000 rows, by more than a tenth of the
            standard deviation of y; under a log link, of its mean.
        """
        try:
            self._fit(*self._task(X, y, sample_weight, offset))
        finally:
            self._means = None
        return self

    def _task(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None
    ) -> tuple[WeightedRows, Loss]:
        data, loss = super()._task(X, y, sample_weight)
        if offset is not None:
            rows = data.X.shape[0] if data.kept is None else len(data.kept)
            offset = check_offset(offset, loss, rows)
            data = data._replace(offset=offset if data.kept is None else offset[data.kept])
        if isinstance(self.fit_intercept, str):
            self._check_means(loss)
            if is_tensor(data.X):
                raise ValueError(
                    "fit_intercept='mean' centres X, which must be in memory or on disk, got "
                    f"{type(data.X).__name__}; use fit_intercept=True, or pass X.cpu().numpy()"
                )
            X, mean = centered(data.X, data.sample_weight)
            self._means = mean, float(np.average(data.y, weights=data.sample_weight))
            data = data._replace(X=X, y=data.y - self._means[1])
        return data, loss

    def _check_means(self, loss: Loss) -> None:
        """Refuse what cannot be had under the constraint on the residuals."""
        if self.fit_intercept != "mean":
            raise ValueError(
                f"fit_intercept must be True, False or 'mean', got {self.fit_intercept!r}"
            )
        if loss.link != "identity":
            raise ValueError(
                "fit_intercept='mean' is for losses of a residual, and predictions under "
                f"loss={loss.name!r} are exponentials; use fit_intercept=True"
            )

    def _parameters_of(self, w: FloatArray, d: int) -> dict[str, Any]:
        coef = w[:d].copy()
        if self._means is not None:
            return {"coef_": coef, "intercept_": float(self._means[1] - self._means[0] @ coef)}
        return {"coef_": coef, "intercept_": float(w[d]) if self.fit_intercept else 0.0}


def regression_loss(loss: str | Loss) -> Loss:
    """The loss, if it is one for numbers."""
    parsed = parse_loss(loss)
    if parsed.is_classifier:
        raise ValueError(
            f"loss={loss!r} is for classification; a regressor takes 'squared', 'huber', "
            "'poisson', 'gamma' or an instance such as sorel.losses.Huber(2.0)"
        )
    return parsed
