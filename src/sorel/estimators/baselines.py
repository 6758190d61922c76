"""What a tail model is compared with: the plain fit, moved by a constant, and recalibrated.

A tail risk may be lowered by a shift of all predictions, by another scale, or by other slopes. The
plain fit with the best shift, and with the best shift and scale, tell these apart: what a tail
model gains beyond them is due to its slopes.

Shift and scale are few parameters under any risk. They are found by an augmented Lagrangian on the
weights of the losses, phi(t) = max_q [q.l(t) - |q - q_k|^2 / (2 eta)], minimised by L-BFGS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.devices import to_numpy
from sorel.problem.losses import Loss, Multinomial, parse_loss
from sorel.problem.risks import Risk, normalised_sample_weight, parse_risk
from sorel.projection import Projector

__all__ = ["baselines"]

FloatArray = NDArray[np.float64]

# Names of the fit to the mean, as it is, moved by a constant, and recalibrated.
PLAIN, MOVED, RECALIBRATED = "plain fit", "plain fit + constant", "plain fit, recalibrated"

# Rows that shift and scale are chosen on: a few parameters need no more, and it takes a second.
_MAX_ROWS = 100_000
# Relative excess of the risk over its value at the weights found, at which the search ends.
_TOL = 1e-7
# Updates of the weights at most: eta has grown by 1e19 then, beyond the digits of a double.
_MAX_UPDATES = 40

# Factor of eta from one update to the next: 3 to 17 updates on 24 random problems (2026-11).
_GROWTH = 3.0


class _Rows(NamedTuple):
    """Margins of the plain fit on training rows, with targets as the loss takes them."""

    margins: FloatArray
    targets: NDArray[Any]
    sample_weight: FloatArray | None
    offset: FloatArray


def baselines(
    model: Any,
    X: Any,
    y: ArrayLike,
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

    plain = clone(model).set_params(risk="mean", verbose=0, checkpoint=None)
    plain._warns_of_model = False
    plain.fit(X, y, sample_weight, **({} if offset is None else {"offset": offset}))
    del plain._warns_of_model
    found = {PLAIN: plain.to_local() if hasattr(plain, "to_local") else plain}
    loss = parse_loss(plain.loss)
    if loss.affine:
        return found
    if loss.is_classifier and len(plain.coef_) > 1:
        loss = Multinomial()
    rows = _training_rows(plain, loss, X, y, sample_weight, offset)
    risk, ridge = parse_risk(model.risk), plain.l2_ * float(np.vdot(plain.coef_, plain.coef_))
    for name, scaled in ((MOVED, False), (RECALIBRATED, True)):
        scale, shift = _best_shift(risk, loss, rows, ridge, scaled)
        found[name] = _moved(found[PLAIN], scale, shift)
    return found


def _training_rows(
    plain: Any, loss: Loss, X: Any, y: Any, sample_weight: Any, offset: Any
) -> _Rows:
    """Margins, targets and weights of the training rows, or of a random part of many."""
    if hasattr(plain, "to_local"):
        margins = (
            plain.decision_function(X) if loss.is_classifier else loss.margins(plain.predict(X))
        )
        y, weight = np.asarray(y), None if sample_weight is None else np.asarray(sample_weight)
    else:
        X, y, weight = plain._read(X, y, sample_weight)
        margins, y = to_numpy(plain._scores(X)), to_numpy(y)
    weight = plain._row_weights(y, weight)
    margins = np.asarray(margins, dtype=np.float64).reshape(len(y), -1)
    used = np.arange(len(y)) if weight is None else np.flatnonzero(weight)
    if len(used) > _MAX_ROWS:
        used = np.sort(np.random.default_rng(0).choice(used, _MAX_ROWS, replace=False))
    targets = y[used]
    if loss.is_classifier:
        codes = np.searchsorted(plain.classes_, targets)
        targets = codes if isinstance(loss, Multinomial) else np.where(codes == 1, 1.0, -1.0)
    weight = None if weight is None else weight[used]
    added = np.zeros(len(used)) if offset is None else np.asarray(offset, dtype=np.float64)[used]
    return _Rows(margins[used], targets, weight, added[:, None])


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


def _best_shift(
    risk: Risk, loss: Loss, rows: _Rows, ridge: float, scaled: bool
) -> tuple[float, FloatArray]:
    """The scale a and the shifts b of margins that minimise risk + ridge a^2 / 2."""
    margins, classes = rows.margins, isinstance(loss, Multinomial)
    centre = margins.mean(axis=0)
    spread = float(np.sqrt(np.mean((margins - centre) ** 2))) or 1.0
    # Steps in the units of the margins: those of y, or of a logarithm.
    unit = spread
    if loss.link == "identity" and not loss.is_classifier:
        unit = float(np.std(rows.targets - margins[:, 0])) or spread
    standard = (margins - centre) / spread

    def at(t: FloatArray) -> tuple[float, FloatArray]:
        scale = 1.0 + unit * t[0] / spread
        return scale, unit * t[1:] - (scale - 1.0) * centre

    def evaluate(t: FloatArray) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        z = margins + rows.offset + unit * (t[0] * standard + t[1:])
        z = z if classes else z[:, 0]
        slopes = np.asarray(loss.derivative(rows.targets, z)).reshape(len(z), -1)

        def gradient(weights: FloatArray) -> FloatArray:
            pulled = weights[:, None] * slopes
            return unit * np.append(np.vdot(pulled, standard), pulled.sum(axis=0))

        return np.asarray(loss.value(rows.targets, z)), gradient

    def penalty(t: FloatArray) -> tuple[float, float]:
        scale = 1.0 + unit * t[0] / spread
        return 0.5 * ridge * scale**2, ridge * scale * unit / spread

    least = -spread / unit if scaled else 0.0
    bounds = [(least, math.inf if scaled else 0.0), *[(-math.inf, math.inf)] * margins.shape[1]]
    return at(_minimise(risk, rows.sample_weight, evaluate, penalty, bounds))


def _minimise(
    risk: Risk,
    sample_weight: FloatArray | None,
    evaluate: Callable[[FloatArray], tuple[FloatArray, Callable[[FloatArray], FloatArray]]],
    penalty: Callable[[FloatArray], tuple[float, float]],
    bounds: list[tuple[float, float]],
) -> FloatArray:
    """The least risk of losses that a few parameters move, from 0 on.

    `evaluate` gives the losses, and the gradient of their weighted sum; `penalty` adds to both what
    the first parameter costs.
    """
    from scipy.optimize import minimize

    t = np.zeros(len(bounds))
    losses = evaluate(t)[0]
    n = len(losses)
    omega = np.full(n, 1.0 / n)
    if sample_weight is not None:
        omega = normalised_sample_weight(sample_weight, n)
    weights = Projector(risk, n, None if sample_weight is None else omega)
    unit = float(np.std(losses)) or 1.0
    eta, density = 1.0 / unit, np.ones(n)

    def smoothed(t: FloatArray) -> tuple[float, FloatArray]:
        losses, gradient = evaluate(t)
        q = weights.nearest(density + eta * losses)[0]
        value = omega @ (q * losses) - omega @ (q - density) ** 2 / (2.0 * eta)
        cost, slope = penalty(t)
        total = gradient(omega * q)
        total[0] += slope
        return float(value + cost) / unit, total / unit

    for _ in range(_MAX_UPDATES):
        t = minimize(smoothed, t, jac=True, method="L-BFGS-B", bounds=bounds).x
        losses = evaluate(t)[0]
        density = weights.nearest(density + eta * losses)[0]
        excess = weights.shortfall(losses, density)
        if excess <= _TOL * abs(weights.value(losses)):
            break
        eta *= _GROWTH
    return t
