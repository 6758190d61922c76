"""Rank regression: coefficients that minimise a deviation of the residuals.

The dispersion sum_i a(rank of r_i) r_i of Jaeckel (1972) with Wilcoxon scores is, up to a factor,
the extremile deviation of order 2 of the residuals: half their Gini mean difference. Other spectra
are other scores.
"""

from __future__ import annotations

import numpy as np

from sorel.estimators.base import WeightedRows, spread
from sorel.estimators.quantile import DeviationModel, weighted_quantile
from sorel.problem.risks import Deviation, Extremile, Risk, parse_risk
from sorel.solvers import Solver

__all__ = ["RankRegressor"]

WILCOXON = Extremile(2.0)


class RankRegressor(DeviationModel):
    """Robust linear regression by the ranks of the residuals, with a certified optimum.

    It minimises ``R(r) - mean(r)`` of the residuals ``r = y - X w``, for a spectral risk R. With
    the default, the Wilcoxon scores, it is nearly as efficient as least squares on normal errors
    (95%), and bounded in the influence of any error. The intercept is the median of what is left,
    the midpoint where half of the weight lies on either side.

    Parameters
    ----------
    risk : Risk or str, default=Extremile(2.0)
        The scores of the ordered residuals. ``Extremile(2.0)`` has Wilcoxon's; a risk that weighs
        the largest residuals more, such as ``ESRM(2.0)``, suits skewed errors.
    l1, l2 : float, default=0.0
        Penalties on the coefficients; both may be 0.
    fit_intercept : bool, default=True
        Whether to predict with an intercept. The coefficients do not depend on it.
    solver : str or Solver, default="auto"
        A name or an instance from :mod:`sorel.solvers` for full passes.
    tol : float, default=1e-6
        Relative duality gap to reach.
    max_passes : float, default=1000
        Budget, in passes over the data.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Coefficients.
    intercept_ : float
        Intercept.
    objective_, gap_, relative_gap_ : float
        Objective, its certified distance to the optimum, and that relative to the objective.
    risk_weights_ : ndarray of shape (n,)
        The weighting of the training samples that certifies the fit.
    n_iter_, n_passes_ : int, float
        Outer iterations, and passes over the data.
    converged_ : bool
        Whether ``relative_gap_ <= tol``.
    status_ : str
        One sentence on how the fit ended.
    n_features_in_ : int
        Features seen in fit.
    feature_names_in_ : ndarray of shape (d,)
        Their names, where X has names that are all strings.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import RankRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=200)
    >>> y[:20] += 1000.0  # a tenth of the targets is wrong
    >>> RankRegressor().fit(X, y).coef_.round(1)
    array([1., 2.])
    """

    # Pickles and model files know the class by this name, wherever in the package it is written.
    __module__ = "sorel.estimators"

    def __init__(
        self,
        risk: Risk | str = WILCOXON,
        *,
        l1: float = 0.0,
        l2: float = 0.0,
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        tol: float = 1e-6,
        max_passes: float = 1000,
        n_jobs: int | None = None,
    ) -> None:
        self._keep_settings(locals())

    def _fit_rows(self, rows: WeightedRows) -> None:
        risk = parse_risk(self.risk)
        if isinstance(risk, Deviation):
            risk = risk.risk
        penalties = {"l1": self.l1, "l2": self.l2, "sample_weight": rows.sample_weight}
        found = self._minimize("rank regression", rows.X, rows.y, risk, **penalties)
        self.coef_, self.intercept_ = found.w, 0.0
        if self.fit_intercept:
            residual = rows.y - np.asarray(rows.X @ found.w)
            low = weighted_quantile(residual, 0.5, rows.sample_weight)
            high = -weighted_quantile(-residual, 0.5, rows.sample_weight)
            self.intercept_ = 0.5 * (low + high)
        self._keep_outcome(found)
        self.n_iter_ = max(1, found.n_iter)
        self.risk_weights_ = spread(found.weights, rows.kept)
