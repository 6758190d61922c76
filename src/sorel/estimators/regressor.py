"""Linear regression that minimises a spectral risk of the losses."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from sorel._lib.defaults import FIT_INTERCEPT, MAX_PASSES, MODEL_TOL, RISK
from sorel._lib.devices import is_tensor
from sorel.estimators.base import SpectralFit, SpectralModel, Task, WeightedRows
from sorel.estimators.constant_model import TARGET_SPREAD
from sorel.files.checkpoints import Checkpoint
from sorel.problem.losses import Loss, parse_loss
from sorel.problem.penalties import Penalty
from sorel.problem.risks import Risk
from sorel.solvers import Solver

FloatArray = NDArray[np.float64]


class RegressorFace(RegressorMixin, SpectralModel):  # type: ignore[misc] # untyped base
    """Predictions of a linear regressor."""

    loss: str | Loss
    intercept_: float

    def predict(self, X: Any) -> FloatArray:
        """Predict the target.

        Parameters
        ----------
        X : array-like, sparse matrix or tensor of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n,)
            Predicted values; a tensor on the device of X, if X is one.
        """
        scores, loss = self._scores(X), regression_loss(self.loss)
        if is_tensor(X):
            from sorel.estimators.tensor_data import predict_numbers

            return predict_numbers(loss, scores, X)
        return loss.predict(scores)

    def _encode(self, y: Any) -> tuple[Any, Loss]:
        return y, regression_loss(self.loss)

    def _varies(self, scores: FloatArray, y: NDArray[Any]) -> bool:
        predicted = regression_loss(self.loss).predict(scores)
        return bool(predicted.std() >= TARGET_SPREAD * y.std())


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
        the exponentials of the linear scores. For counts over exposures e, fit the rates with
        ``sample_weight=e``. A loss of your own: see :class:`sorel.losses.Loss`.
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
    be off as before. It needs X in memory, and dense, and a loss of the residual.

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

    def _task(self, X: Any, y: Any, sample_weight: Any) -> Task:
        task = super()._task(X, y, sample_weight)
        if isinstance(self.fit_intercept, str):
            self._means = self._check_means(task.data, task.loss)
            centered = {"X": task.data.X - self._means[0], "y": task.data.y - self._means[1]}
            task = task._replace(data=task.data._replace(**centered))
        return task

    def _check_means(self, data: WeightedRows, loss: Loss) -> tuple[FloatArray, float]:
        """WeightedRows means of X and y, where the constraint on the residuals can be had."""
        if self.fit_intercept != "mean":
            raise ValueError(
                f"fit_intercept must be True, False or 'mean', got {self.fit_intercept!r}"
            )
        if not isinstance(data.X, np.ndarray):
            raise ValueError(
                "fit_intercept='mean' centres X, which must be a dense array in memory, got "
                f"{type(data.X).__name__}; use fit_intercept=True"
            )
        if loss.link != "identity":
            raise ValueError(
                "fit_intercept='mean' is for losses of a residual, and predictions under "
                f"loss={loss.name!r} are exponentials; use fit_intercept=True"
            )
        weight = data.sample_weight
        return np.average(data.X, axis=0, weights=weight), float(np.average(data.y, weights=weight))

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
