"""Quantile regression by the CVaR deviation of the residuals.

    min_b mean_i pinball_q(y_i - x_i.w - b) = (1 - q) [CVaR_{1-q}(u) - mean(u)],    u = y - X w,

so the best intercept is the q-quantile of what is left, and the coefficients minimise a deviation
(Koenker and Bassett 1978; Rockafellar, Uryasev and Zabarankin 2008). Sorting the predictions of
several quantiles is the rearrangement of Chernozhukov, Fernandez-Val and Galichon (2010).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from sorel._lib.inputs import is_real
from sorel._lib.warnings import warn
from sorel.estimators.base import SpectralModel, WeightedRows, spread, weighted_rows
from sorel.estimators.plain_models import ToSklearn
from sorel.problem.risks import CVaR, Deviation, Risk
from sorel.solvers import Solver
from sorel.solvers.deviations import DeviationFit, minimize_deviation
from sorel.solvers.solve import Result, convergence_warning

__all__ = ["QuantileRegressor", "weighted_quantile"]

FloatArray = NDArray[np.float64]

# scikit-learn's names for solvers of linear programs: accepted, so that its users change nothing
# but the import, and without a meaning here.
_LINEAR_PROGRAMS = ("highs", "highs-ds", "highs-ipm")


class DeviationModel(RegressorMixin, ToSklearn, SpectralModel):  # type: ignore[misc] # untyped base
    """What the regressors share that minimise a deviation of the residuals."""

    tol: float

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.
        y : array-like of shape (n,)
            Targets.
        sample_weight : array-like of shape (n,), optional
            Weights; 2 is the row twice.

        Returns
        -------
        self
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If `tol` was not reached within `max_passes`.
        """
        for name in ("alpha", "l1", "l2"):
            if hasattr(self, name):
                check_nonnegative(name, getattr(self, name))
        X, y, weight = self._read(X, y, sample_weight)
        self._fit_rows(weighted_rows(X, np.asarray(y, dtype=np.float64), weight))
        return self

    def _fit_rows(self, rows: WeightedRows) -> None:
        """Fit to rows that all have a weight."""
        raise NotImplementedError

    def _minimize(self, what: str, X: Any, y: FloatArray, risk: Risk, **settings: Any) -> Any:
        """The certified fit, with a warning where it missed the tolerance."""
        settings |= {"tol": self.tol, "max_passes": self.max_passes, "n_jobs": self.n_jobs}
        solver = "auto" if self.solver in _LINEAR_PROGRAMS else self.solver
        found = minimize_deviation(X, y, risk, solver=solver, **settings)
        if not found.converged:
            warn(
                f"{what}: relative gap {found.relative_gap:.3g} is above tol={self.tol:g}; raise "
                "max_passes, scale the columns, or give a small l2",
                convergence_warning(),
            )
        return found

    def predict(self, X: Any) -> FloatArray:
        """Predict the target.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Samples.

        Returns
        -------
        ndarray of shape (n,) or (n, n_quantiles)
            Predicted values; with several quantiles, columns in their order.
        """
        return self._scores(X)

    def _plain(self) -> Any:
        from sklearn.linear_model import LinearRegression

        return LinearRegression()


class QuantileRegressor(DeviationModel):
    """Linear quantile regression with a certified optimum, for any number of rows.

    It minimises ``mean(pinball) + alpha ||w||_1 + l2/2 ||w||^2``, as scikit-learn's estimator of
    the same name does without the last term, and takes its parameters.

    Parameters
    ----------
    quantile : float or sequence of float, default=0.5
        The quantile to predict, strictly between 0 and 1; or several, which are fitted one after
        the other, each from the last.
    alpha : float, default=1.0
        Weight of the l1 norm of the coefficients, at least 0.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    l2 : float, default=0.0
        Weight of half their squared norm, at least 0.
    noncrossing : bool, default=False
        With several quantiles, sort the predictions for each sample: a higher quantile is then
        never below a lower one. The sum of the pinball losses over the quantiles does not grow;
        that of one quantile may. Sorted predictions are not linear in X, and ``objective_`` and
        ``gap_`` are those of the fits before.
    solver : str or Solver, default="auto"
        "auto" solves a linear program where ``l2=0`` and X is in memory with at most 1000 columns,
        as HiGHS does; otherwise, or by name, the methods of :mod:`sorel.solvers` for full passes
        are used. scikit-learn's names are accepted and mean "auto".
    solver_options : dict, optional
        Accepted for scikit-learn's sake, and not used.
    tol : float, default=1e-6
        Relative duality gap to reach.
    max_passes : float, default=1000
        Budget for each quantile, in passes over the data. A linear program is solved to its end.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores.

    Attributes
    ----------
    coef_ : ndarray of shape (d,) or (n_quantiles, d)
        Coefficients.
    intercept_ : float or ndarray of shape (n_quantiles,)
        Intercepts.
    objective_, gap_, relative_gap_ : float or ndarray of shape (n_quantiles,)
        Objective, its certified distance to the optimum, and that relative to the objective.
    risk_weights_ : ndarray of shape (n,) or (n_quantiles, n)
        The weightings of the training samples that certify the fits.
    n_iter_ : int
        Outer iterations, or those of the simplex method, of all quantiles together.
    n_passes_ : float
        Passes over the data, of all quantiles together.
    converged_ : bool
        Whether all of them reached `tol`.
    status_ : str
        One sentence on how the (last) fit ended.
    n_features_in_ : int
        Features seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where X has names that are all strings.

    See Also
    --------
    RankRegressor : Robust regression, by ranks of the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import QuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 2))
    >>> y = X @ [1.0, 2.0] + rng.standard_t(3, size=1000)
    >>> model = QuantileRegressor(quantile=0.9, alpha=0.0).fit(X, y)
    >>> round(float(np.mean(y <= model.predict(X))), 2)
    0.9
    >>> several = QuantileRegressor(quantile=[0.1, 0.5, 0.9], alpha=0.0, noncrossing=True)
    >>> several.fit(X, y).predict(X[:4]).shape
    (4, 3)
    """

    # Pickles and model files know the class by this name, wherever in the package it is written.
    __module__ = "sorel.estimators"

    def __init__(
        self,
        *,
        quantile: float | ArrayLike = 0.5,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        l2: float = 0.0,
        noncrossing: bool = False,
        solver: str | Solver = "auto",
        solver_options: dict[str, Any] | None = None,
        tol: float = 1e-6,
        max_passes: float = 1000,
        n_jobs: int | None = None,
    ) -> None:
        self._keep_settings(locals())

    def _fit_rows(self, rows: WeightedRows) -> None:
        fits: list[dict[str, Any]] = []
        found: DeviationFit | None = None
        for level in _levels(self.quantile):
            intercept, scale = 0.0, 1.0
            if self.fit_intercept:
                found = self._fit_centered(rows, level, None if found is None else found.result)
                residual, scale = rows.y - np.asarray(rows.X @ found.w), 1.0 - level
                intercept = weighted_quantile(residual, level, rows.sample_weight)
            else:
                found = self._fit_from_zero(rows, level)
            fits.append({
                "coef_": found.w, "intercept_": intercept, "objective_": scale * found.objective,
                "gap_": scale * found.gap, "relative_gap_": found.relative_gap,
                # Without an intercept the last row of zeros is no sample.
                "risk_weights_": spread(found.weights[: len(rows.y)], rows.kept),
                "n_iter_": found.n_iter, "n_passes_": found.passes,
                "converged_": found.converged, "status_": found.status,
            })  # fmt: skip
        several = np.ndim(self.quantile) > 0
        for name in fits[0]:
            values = [fit[name] for fit in fits]
            setattr(self, name, np.array(values) if several else values[0])
        self.n_iter_ = max(1, sum(fit["n_iter_"] for fit in fits))
        self.n_passes_ = sum(fit["n_passes_"] for fit in fits)
        self.converged_ = all(fit["converged_"] for fit in fits)
        self.status_ = fits[-1]["status_"]

    def _fit_centered(self, rows: WeightedRows, level: float, start: Result | None) -> DeviationFit:
        """The coefficients of a quantile; the intercept is the quantile of what is left."""
        share = 1.0 - level
        return self._minimize(
            f"quantile {level:g}", rows.X, rows.y, CVaR(share), l1=self.alpha / share,
            l2=self.l2 / share, sample_weight=rows.sample_weight, warm_start=start,
        )  # fmt: skip

    def _fit_from_zero(self, rows: WeightedRows, level: float) -> DeviationFit:
        """The same without an intercept: a row of zeros, as heavy as all others, stands for 0.

        Half the weight of rows and zeros together falls to the positive residuals, so
        mean pinball = CVaR_{1/2} - 2 (1 - level) mean over these rows.
        """
        X, zeros = rows.X, np.zeros((1, rows.X.shape[1]))
        X = scipy.sparse.vstack([X, zeros], "csr") if scipy.sparse.issparse(X) else np.r_[X, zeros]
        omega = np.ones(len(rows.y)) if rows.sample_weight is None else rows.sample_weight
        # No weight on any residual: rows get what the mean takes off again, the zeros the rest.
        center = np.append((1.0 - level) * omega / rows.total, level)
        return self._minimize(
            f"quantile {level:g}", X, np.append(rows.y, 0.0),
            Deviation(CVaR(0.5), 2.0 * (1.0 - level)), l1=self.alpha, l2=self.l2,
            sample_weight=np.append(omega, rows.total), center=center,
        )  # fmt: skip

    def _plain(self) -> Any:
        if self.noncrossing and self.coef_.ndim == 2:
            raise ValueError(
                "noncrossing=True sorts the predictions of several quantiles, and no linear model "
                "does; set noncrossing=False, or fit one quantile"
            )
        return super()._plain()

    def _scores(self, X: Any) -> FloatArray:
        scores: FloatArray = super()._scores(X)
        if self.noncrossing and scores.ndim == 2:
            ranks = np.argsort(np.argsort(np.asarray(self.quantile), kind="stable"), kind="stable")
            scores = np.sort(scores, axis=1)[:, ranks]
        return scores


def weighted_quantile(values: FloatArray, level: float, weight: FloatArray | None = None) -> float:
    """The smallest value with at least the share `level` of the weight at or below it.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.estimators.quantile import weighted_quantile
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), 0.5)
    2.0
    """
    return float(np.quantile(values, level, weights=weight, method="inverted_cdf"))


def check_nonnegative(name: str, value: Any) -> None:
    """Refuse what is not a finite number >= 0."""
    if not (is_real(value) and 0.0 <= value < np.inf):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def _levels(quantile: Any) -> list[float]:
    given = np.ravel(np.asarray(quantile, dtype=object)).tolist()
    for level in given:
        if not (is_real(level) and 0.0 < level < 1.0):
            raise ValueError(
                f"quantile must lie strictly between 0 and 1, got {level!r}; the lowest and the "
                "highest value have no quantile regression"
            )
    if not given:
        raise ValueError("quantile is empty: give at least one number between 0 and 1")
    return [float(level) for level in given]
