"""A bound on the optimum from margins that are those of no parameters.

Near a perfect fit, losses have slopes at the optimum that are smaller than what rounding a margin
changes in them. With t the margins less an origin at which the losses are least, every t gives

    min_w  lam . l(w) + g(w)  >=  lam . l(t) + g(w) - s . (origin + t - X w) - [g(w) + g*(v) - v.w]

for s = lam phi'(t) and v = -X^T s, and t has digits of its own. Semismooth Newton steps (Qi and
Sun, 1993) on origin + t = X w with w = grad g*(v), one equation for each row, lead to its largest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sorel._lib.devices import to_numpy
from sorel.certificate.rounding import MAX_ENTRIES, ROUNDINGS, UNIT
from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem.penalties.builtin import OWN, Declared
from sorel.problem.risks import Deviation

if TYPE_CHECKING:
    from sorel.problem.problem import Problem

# Rows up to which the matrix of the steps costs next to nothing.
_FEW_ROWS = 50

# Steps at most: each changes which coefficients are at a kink or at a bound.
_MAX_STEPS = 100


class MarginBound(NamedTuple):
    """The bound, less the rounding of its own terms, and what other errors depend on."""

    value: float
    expected: float
    coef: FloatArray
    gradient: FloatArray
    bracket: float
    slopes: float
    origin: float


def margin_bound(problem: Problem, point: Point, dual: Dual) -> MarginBound | None:
    """The best bound for a weighting, from the margins of a point on; None where it has none.

    Served are few rows with one output and no intercept, under a penalty with l2.
    """
    engine, penalty, loss = problem.engine, problem.penalty, problem.loss
    if not isinstance(penalty, Declared) or type(penalty) not in OWN:
        return None  # a class derived from one of these may have other formulas
    if penalty.l2 == 0.0 or problem.fit_intercept:
        return None
    if engine.n_outputs > 1 or isinstance(problem.risk, Deviation) or engine.spec.targets is None:
        return None
    if engine.n_samples > _FEW_ROWS or engine.entries > MAX_ENTRIES:
        return None
    stored = engine.stored()
    if stored is None:
        return None
    used = np.flatnonzero(engine.weights(engine.uniform()))
    X = stored[0][used]
    X = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
    y, origin, factor = loss.centred(to_numpy(engine.spec.targets)[used])
    if engine.spec.margin_offset is not None:
        origin = origin - engine.spec.margin_offset[used]
    lam = engine.weights(dual)[used] * factor
    t = X @ point.w - origin
    best = _at(problem, X, y, origin, lam, t)
    other = _from_subgradient(penalty, X, point.w, lam * loss.curvature(y, t), t)
    found = _at(problem, X, y, origin, lam, other)
    if found.value > best.value:
        best, t = found, other
    for _ in range(_MAX_STEPS):
        free = _free(penalty, X, best.coef)[0]
        bend = free @ free.T / penalty.l2 * (lam * loss.curvature(y, t))
        step = -np.linalg.solve(np.eye(len(t)) + bend, origin + t - X @ best.coef)
        length = 1.0
        while length > UNIT:
            other = t + length * step
            found = _at(problem, X, y, origin, lam, other)
            if found.value > best.value:
                break
            length *= 0.5
        else:
            break
        best, t = found, other
    return best


def _from_subgradient(
    penalty: Declared, X: FloatArray, w: FloatArray, bend: FloatArray, t: FloatArray
) -> FloatArray:
    """Margins whose slopes are those that the penalty has at w."""
    columns, slope = _free(penalty, X, w)
    s = np.linalg.lstsq(columns.T, -slope, rcond=None)[0]
    return np.divide(s, bend, out=t.copy(), where=bend > 0.0)


def _at(
    problem: Problem,
    X: FloatArray,
    y: FloatArray,
    origin: FloatArray,
    lam: FloatArray,
    t: FloatArray,
) -> MarginBound:
    loss, penalty = problem.loss, problem.penalty
    s = lam * loss.derivative(y, t)
    gradient = s @ X
    coef = penalty.conjugate_gradient(-gradient)
    losses, fitted = loss.value(y, t), X @ coef
    expected = float(lam @ losses)
    bracket = penalty.fenchel_young(coef, -gradient)
    value = expected + penalty.value(coef) - float(s @ (origin + t - fitted)) - bracket
    # Far from the margins of any parameters the terms are large, and their digits cancel.
    terms = lam @ np.abs(losses) + np.abs(s) @ (np.abs(origin) + np.abs(t) + np.abs(fitted))
    value -= float(terms) * ROUNDINGS * len(t)
    size = float(np.abs(origin).max())
    return MarginBound(
        value if math.isfinite(value) else -math.inf,
        expected, coef, gradient, bracket, float(np.abs(s).sum()), size,
    )  # fmt: skip


def _free(penalty: Declared, X: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The columns whose coefficients are at no kink and no bound, and the slope of g in them.

    Under a sum, both less their means.
    """
    terms = penalty.terms(w.shape)
    free = (w > terms.lower) & (w < terms.upper)
    free &= (terms.moves(w) != 0.0) | (np.asarray(terms.cost) == 0.0)
    slope = (penalty.l2 * w + terms.cost * np.sign(terms.moves(w)))[free]
    columns = X[:, free]
    if terms.total is not None and free.any():
        columns, slope = columns - columns.mean(axis=1, keepdims=True), slope - slope.mean()
    return columns, slope
