"""What a tail model is compared with: the plain fit, moved by a constant, and recalibrated.

A tail risk may be lowered by a shift of all predictions, by another scale, or by other slopes. The
plain fit with the best shift, and with the best shift and scale, tell these apart: what a tail
model gains beyond them is due to its slopes.

Shift and scale are those of a problem whose columns are the margins of the plain fit: the scale is
its coefficient, the shift its intercept.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.defaults import MAX_PASSES, TOL
from sorel._lib.devices import to_numpy
from sorel.problem.losses import parse_loss
from sorel.problem.penalties.base import Penalty, dot
from sorel.problem.penalties.builtin import FEASIBILITY, Box
from sorel.problem.problem import Problem
from sorel.solvers.solve import solve_quietly

FloatArray = NDArray[np.float64]

# Names of the fit to the mean, as it is, moved by a constant, and recalibrated.
PLAIN, MOVED, RECALIBRATED = "plain fit", "plain fit + constant", "plain fit, recalibrated"

# Rows that shift and scale are chosen on: a few parameters need no more, and it takes a second.
_MAX_ROWS = 100_000
# Least ridge penalty of the scale, as a share of the mean loss of the plain fit: a fit without one
# leaves nothing that makes the scale unique.
_LEAST_RIDGE = 1e-9


class _OneScale(Penalty):
    """``ridge/2 a^2`` of coefficients a I with low <= a <= high, where I has `size` rows."""

    def __init__(self, ridge: float, size: int, low: float, high: float) -> None:
        self.l2, self.size, self.low, self.high = ridge / size, size, low, high

    def _nearest(self, v: ArrayLike, factor: float) -> FloatArray:
        """The a I nearest to factor times v."""
        v = np.asarray(v, dtype=np.float64)
        scale = factor * np.trace(v.reshape(self.size, self.size)) / self.size
        return min(max(scale, self.low), self.high) * np.eye(self.size).reshape(v.shape)

    def value(self, w: ArrayLike) -> float:
        w = np.asarray(w, dtype=np.float64)
        if np.abs(w - self._nearest(w, 1.0)).max() > FEASIBILITY * max(1.0, np.abs(w).max()):
            return math.inf
        return 0.5 * self.l2 * dot(w, w)

    def prox(self, v: ArrayLike, step: float) -> FloatArray:
        return self._nearest(v, 1.0 / (1.0 + step * self.l2))

    def conjugate(self, v: ArrayLike) -> float:
        u = self._nearest(v, 1.0 / self.l2)
        return dot(v, u) - self.value(u)


def baselines(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
) -> dict[str, Any]:
    """Fit the plain model beside a tail model, as it is, moved by a constant, and recalibrated.

    Parameters
    ----------
    model : SpectralRiskRegressor or SpectralRiskClassifier
        The tail model, fitted or not; its settings are taken. Or one of :mod:`sorel.dask`, with X
        and y on the cluster.
    X : array-like, sparse matrix, tensor or rows on disk, of shape (n, d)
        The training rows of the model.
    y : array-like of shape (n,)
        Their targets or labels.
    sample_weight : array-like of shape (n,), optional
        Their weights.
    offset : array-like of shape (n,), optional
        What was added to their margins, as in ``fit``.

    Returns
    -------
    dict of str to estimator
        Fitted estimators of the class of `model`:

        - "plain fit": with the risk mean, and all other settings of the model;
        - "plain fit + constant": the same coefficients; the constant added to the margins (one for
          each class, where there are more than two) is the one that minimises the model's
          risk of the training losses;
        - "plain fit, recalibrated": margins ``a z + b`` of the plain margins z, with one a >= 0
          and b as before, which minimise the model's risk plus the ridge penalty of the scaled
          coefficients.

        Margins are predictions for numbers, their logarithms under a log link, and logits for
        labels. A loss that is affine in the margin has no best constant: there is the plain fit
        alone.

    Notes
    -----
    From more than 100 000 rows, shift and scale are chosen on a random 100 000.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import SpectralRiskRegressor
    >>> from sorel.metrics import baselines, cvar_loss
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> y = X @ [1.0, 2.0] + rng.exponential(size=500)
    >>> model = SpectralRiskRegressor("cvar:0.1").fit(X, y)
    >>> plain, moved, recalibrated = baselines(model, X, y).values()
    >>> tails = [cvar_loss(y, other.predict(X)) for other in (plain, moved, recalibrated, model)]
    >>> tails == sorted(tails, reverse=True)
    True
    """
    from sklearn.base import clone

    from sorel.estimators.base import SpectralFit

    if not isinstance(model, SpectralFit):
        raise TypeError(
            "model must be a SpectralRiskRegressor or a SpectralRiskClassifier, got "
            f"{type(model).__name__}; of a search take one with its best_risk_ and best_l2_, of a "
            "pipeline the last step, with X as that step sees it"
        )
    plain = clone(model).set_params(risk="mean", verbose=0, checkpoint=None)
    plain._warns_of_model = False
    plain.fit(X, y, sample_weight, **({} if offset is None else {"offset": offset}))
    del plain._warns_of_model
    local = plain.to_local() if hasattr(plain, "to_local") else plain
    found = {PLAIN: local}
    loss = parse_loss(plain.loss)
    if loss.affine:
        return found
    if local is plain:
        margins = to_numpy(plain._scores(X))
        _, y, sample_weight = plain._read(X, y, sample_weight)
        y = to_numpy(y)
    else:
        y = np.asarray(y)
        given = plain.decision_function(X) if loss.is_classifier else plain.predict(X)
        margins = given if loss.is_classifier else loss.margins(given)
    weight = plain._row_weights(y, None if sample_weight is None else np.asarray(sample_weight))
    rows = _some_rows(y, weight, loss.is_classifier)
    targets, loss = local._encode(y[rows])
    settings: dict[str, Any] = {"loss": loss, "risk": model.risk, "fit_intercept": True}
    for name, values in (("sample_weight", weight), ("offset", offset)):
        settings[name] = None if values is None else np.asarray(values)[rows]
    z = np.asarray(margins, dtype=np.float64).reshape(len(y), -1)[rows]
    centre = z.mean(axis=0)
    z = z - centre
    ridge = plain.l2_ * float(np.vdot(plain.coef_, plain.coef_))
    ridge = max(ridge, _LEAST_RIDGE * abs(plain.objective_)) or 1.0
    problem = Problem(z, targets, **settings)
    for name, low, high in ((MOVED, 1.0, 1.0), (RECALIBRATED, 0.0, math.inf)):
        one = len(centre) == 1
        penalty = Box(ridge, low, high) if one else _OneScale(ridge, len(centre), low, high)
        w = solve_quietly(problem.with_penalty(penalty), "auto", TOL, MAX_PASSES)[0].w
        scale = float(w.flat[0])
        found[name] = _moved(local, scale, w[-1] - scale * centre)
    return found


def _some_rows(y: Any, weight: FloatArray | None, is_classifier: bool) -> NDArray[np.intp]:
    """The rows with a weight, or a random part of many with at least one of each label."""
    rows = np.arange(len(y)) if weight is None else np.flatnonzero(weight)
    if len(rows) <= _MAX_ROWS:
        return rows
    drawn = np.random.default_rng(0).choice(rows, _MAX_ROWS, replace=False)
    first = rows[np.unique(y[rows], return_index=True)[1]] if is_classifier else drawn
    return np.union1d(drawn, first)


def _moved(plain: Any, scale: float, shift: FloatArray) -> Any:
    """The plain fit with other margins: a z + b."""
    other = copy(plain)
    for name in ("risk_weights_", "objective_", "gap_", "relative_gap_", "_history"):
        vars(other).pop(name, None)  # they certify the plain fit
    other.coef_ = scale * plain.coef_
    intercept = scale * np.asarray(plain.intercept_) + shift.reshape(np.shape(plain.intercept_))
    if intercept.size > 1:
        intercept -= intercept.mean()
    other.intercept_ = intercept if intercept.ndim else float(intercept)
    other.status_ = f"the plain fit with margins times {scale:.4g}, and other intercepts"
    return other
