"""A bound on the optimum in extended precision, where double precision leaves none.

For a weighting lam, slopes s at margins z = X w and c = X^T (lam s), every x has

    F(x) >= lam . l(z) - c . w + c . x + g(x),

so that lam . l + g at w, less the bracket g(w) + g*(-c) + c . w, is a bound. With columns of 1e7,
targets far from 0 or a tiny l2, doubles do not resolve the margins well enough for a c whose
bracket is small: |c + l2 w|^2 / (2 l2) is no better than its rounding. The bound holds at any w.
Here w, z, s and c are long doubles, and Newton steps from a Hessian in doubles improve them. Where
long doubles are no longer than doubles, there is no such bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray

from sorel.engines.base import Dual, Engine, FloatArray, Point
from sorel.factored import FactoredModel, loses_curvature, minimize_factored, sees_faintly
from sorel.losses import (
    Gamma,
    Huber,
    Logistic,
    Loss,
    Multinomial,
    Poisson,
    Squared,
    SquaredHinge,
)
from sorel.models import minimize_quadratic
from sorel.penalties import SIMPLEX, Kernel, Penalty
from sorel.rounding import Rounding

Long = np.longdouble
LongArray = NDArray[np.longdouble]

_UNIT = float(np.finfo(Long).eps) / 2.0
_DOUBLE = 2.0**-53

# What errors of a certificate in long doubles are, at least, as a share of those in doubles: they
# enter it by their squares, or plainly.
LEAST_SHARE = (_UNIT / _DOUBLE) ** 2

# Numbers of X, times outputs, and parameters up to which the bound is worth its time.
_MOST_NUMBERS, _MOST_PARAMETERS = 200_000, 400

# Newton steps, how many of them may gain no more than a share of what is left, and how often one is
# cut to a quarter.
_MAX_STEPS, _MAX_IDLE, _IDLE, _MAX_CUTS = 60, 3, 1e-3, 12

# How far margins in doubles may be from the truth, in units of their rounding.
_BLUR = 8.0

# Rows with curvature up to which these take the place of a matrix.
_MOST_ROWS = 400

# A step leads down if the value rises by no more than this share of it.
_LEVEL = 1e-17

# Roundings in a term, with those of a sum that is made in pairs.
_OPERATIONS = 64.0

# What is added to a matrix of unit diagonal that has no Cholesky factor, and how often more of it.
_RIDGE, _MORE, _MAX_RIDGES = 1e-15, 100.0, 6


class Bound(NamedTuple):
    """A lower bound on the optimum, and what rounding errors take from it."""

    value: LongArray
    rounding: float


def can_extend(engine: Engine, penalty: Penalty) -> bool:
    """Whether there may be a bound in long doubles: the data are in memory, and not too many."""
    if engine.stored() is None or not penalty.compiled or 2.0 * _UNIT >= _DOUBLE:
        return False
    numbers = engine.n_samples * engine.n_features * engine.n_outputs
    return numbers <= _MOST_NUMBERS and engine.size <= _MOST_PARAMETERS


def extended_bound(
    engine: Engine,
    loss: Loss,
    penalty: Penalty,
    rounding: Rounding,
    point: Point,
    dual: Dual,
    enough: float,
    known: float,
) -> Bound | None:
    """A bound on min lam . l + g, from Newton steps that begin at a point.

    Parameters
    ----------
    engine, loss, penalty, rounding
        The parts of the problem.
    point : Point
        Where to begin: near the minimum for this weighting.
    dual : Dual
        The weighting.
    enough : float
        A slack of the bound at which no further step is taken.
    known : float
        A bound that is known. Where lam . l + g falls below it there is nothing to be gained.

    Returns
    -------
    Bound or None
        None where the data are many or not in memory, the formulas of the loss are not to be had in
        long doubles, or there is nothing that long doubles could do better.
    """
    model = _Model.of(engine, loss, penalty, rounding, dual)
    if model is None:
        return None
    if engine.fit_intercept:
        point = engine.best_intercept(point, dual) or point
    with np.errstate(all="ignore"):
        start = model.inside(point.w.astype(Long))
        state = model.state(start, model.margins(start))
        if state is None:
            return None
        best, idle = state, 0
        for step in range(_MAX_STEPS):
            if state.value - best.bound.value <= enough or idle > _MAX_IDLE:
                break
            if state.value <= known:
                break
            moved = model.stepped(state, blurred=step == 0)
            if moved is None:
                break
            # Far down an exponential the value falls for a while before the bound rises.
            gained = max(state.value - moved.value, moved.bound.value - best.bound.value)
            idle = 0 if gained > _IDLE * (state.value - best.bound.value) else idle + 1
            state = moved
            if state.bound.value > best.bound.value:
                best = state
    return best.bound if np.isfinite(best.bound.value) else None


class _State(NamedTuple):
    """Where the Newton steps are: parameters, gradient of lam . l, lam . l + g, and the bound.

    The margins are those of w up to rounding. Moved along with the steps, they resolve what w
    cannot: the bound asks for slopes of margins near X w, and not for X w itself. What they were
    rounded against are the largest sizes on the way.
    """

    w: LongArray
    margins: LongArray
    moves: int
    sizes: LongArray
    gradient: LongArray
    value: LongArray
    bound: Bound


class _Model:
    """lam . l + g in long doubles, for one weighting."""

    def __init__(
        self,
        engine: Engine,
        loss: Loss,
        formulas: Formulas,
        penalty: Penalty,
        rounding: Rounding,
        dual: Dual,
        X: LongArray,
        y: Any,
        slope_error: float,
    ) -> None:
        self.engine, self.loss, self.formulas, self.penalty = engine, loss, formulas, penalty
        self.rounding, self.dual = rounding, dual
        self.X, self.columns, self.y = X, np.ascontiguousarray(X.T), y
        # Losses of residuals: near a perfect fit these have digits that margins of the size of the
        # targets do not.
        self.origin: Any = 0.0
        if type(rounding.loss) in (Squared, Huber):
            self.origin, self.y = y.astype(Long), np.zeros_like(y)
        self.sizes, self.largest = np.abs(X), np.abs(X).max(axis=0)
        self.lam = engine.weights(dual).astype(Long)
        self.kernel: Kernel = penalty.kernel(engine.n_features)
        self.slope_error = slope_error
        # How far a move may end from where it went, in units of rounding: sums are put right.
        self.drift = 8.0 + engine.n_features
        self.logs: Any = 0.0
        if formulas in (_poisson, _gamma):
            # These compare the margin with log y, whose error is as good as one of the margin.
            self.logs = np.abs(np.log(np.where(y > 0.0, y, 1.0)))

    @classmethod
    def of(
        cls, engine: Engine, loss: Loss, penalty: Penalty, rounding: Rounding, dual: Dual
    ) -> _Model | None:
        stored = engine.stored()
        if stored is None or not can_extend(engine, penalty):
            return None
        X, y = stored
        formulas, slope_error = _FORMULAS.get(type(loss)), 0.0
        if type(loss) is Huber:
            formulas = _huber(loss.delta)
        elif formulas is None:
            # Numbers in the formulas of a user may be doubles.
            formulas, slope_error = _own(loss), 4.0 * _DOUBLE
        X = X.toarray() if scipy.sparse.issparse(X) else np.asarray(X)
        return cls(engine, loss, formulas, penalty, rounding, dual, X.astype(Long), y, slope_error)

    def inside(self, w: LongArray) -> LongArray:
        """The nearest parameters in the domain, or about that."""
        d = self.engine.n_features
        lower, upper = self._limits(w[:d])
        w[:d] = np.clip(w[:d], lower, upper)
        if self.kernel.code == SIMPLEX:
            w[:d] /= w[:d].sum(axis=0)
        return w

    def _limits(self, coef: LongArray) -> tuple[Any, Any]:
        lower, upper = self.kernel.lower, self.kernel.upper
        return (lower, upper) if coef.ndim == 1 else (lower[:, None], upper[:, None])

    def margins(self, w: LongArray) -> LongArray:
        """X w, with the intercept, less what margins are counted from."""
        return self._moves(w) - self.origin

    def _moves(self, step: LongArray) -> LongArray:
        """What a step adds to the margins."""
        d = self.engine.n_features
        moves = self._products(self.X, step[:d])
        return moves + step[d] if self.engine.fit_intercept else moves

    def _sizes(self, w: LongArray) -> LongArray:
        """What margins may be rounded against: |X| |w|."""
        d = self.engine.n_features
        sizes = self._products(self.sizes, np.abs(w[:d]))
        return sizes + np.abs(w[d]) if self.engine.fit_intercept else sizes

    def state(
        self, w: LongArray, margins: LongArray, before: _State | None = None
    ) -> _State | None:
        """Everything at w; None where it is not finite.

        The margins are those of a state before that were moved, or computed from w.
        """
        engine, lam, d = self.engine, self.lam, self.engine.n_features
        sizes, moves = self._sizes(w), 0
        if before is not None:
            sizes, moves = np.maximum(sizes, before.sizes), before.moves + 1
        losses, slopes = self.formulas(self.y, margins)
        if losses.dtype != Long or slopes.dtype != Long:
            return None
        weights = lam if slopes.ndim == 1 else lam[:, None]
        weighted = weights * slopes
        absolute = np.abs(weighted)
        gradient = np.zeros_like(w)
        gradient[:d] = self._products(self.columns, weighted)
        coef, slope = w[:d], gradient[:d]
        bracket, error = self._bracket(coef, -slope)
        value = np.sum(lam * losses) + self._penalty_value(coef)
        total = np.sum(absolute, axis=0)
        delta = self._products(np.abs(self.columns), absolute)
        delta = delta * (_OPERATIONS * _UNIT + self.slope_error)
        # Errors of margins, and those of the losses themselves.
        away = _UNIT * (
            (d + 4.0 + 2.0 * self.drift * moves) * sizes + 4.0 * (np.abs(margins).T + self.logs).T
        )
        size = np.sum(lam * np.abs(losses))
        error += 2.0 * np.sum(absolute * away) + _OPERATIONS * _UNIT * (size + abs(value))
        error += abs(float(np.sum(lam)) - 1.0) * size
        double = engine.point(w.astype(np.float64))
        error += engine.weights_rounding(double)
        if engine.fit_intercept:
            gradient[d] = np.sum(weighted, axis=0)
            left = np.abs(gradient[d]) + (_OPERATIONS * _UNIT + self.slope_error) * total
            drop, residual = self._intercept(double, float(np.linalg.norm(np.asarray(left, float))))
            error += drop
            delta = (delta.T + residual * self.largest).T
        error += self._spread(bracket, coef, slope, delta)
        if not np.isfinite(value):
            return None
        bound = Bound(value - bracket - error, float(error))
        return _State(w, margins, moves, sizes, gradient, value, bound)

    @staticmethod
    def _products(matrix: LongArray, v: LongArray) -> LongArray:
        """Products with the rows of a matrix, each summed in pairs."""
        if v.ndim == 1:
            return np.sum(matrix * v, axis=1)
        return np.stack([np.sum(matrix * column, axis=1) for column in v.T], axis=1)

    def _intercept(self, point: Point, residual: float) -> tuple[float, float]:
        """What a derivative left in the intercepts costs: see `Rounding.intercept`."""
        engine = self.engine
        drop = 2.0 * engine.intercept_slack(point, self.dual, residual)
        if engine.n_outputs > 1:
            most = residual + math.sqrt(2.0 * self.rounding.loss.curvature_bound * drop)
            residual = min(most, engine.intercept_spread(point, self.dual, residual))
        return drop, residual

    def _penalty_value(self, coef: LongArray) -> Any:
        return self.kernel.l2 / Long(2) * np.sum(coef * coef) + self.kernel.l1 * np.sum(
            np.abs(coef)
        )

    def _bracket(self, coef: LongArray, v: LongArray) -> tuple[Any, Any]:
        """g(w) + g*(v) - v . w, and its rounding error."""
        l2, l1 = self.kernel.l2, self.kernel.l1
        if self.kernel.code == SIMPLEX:
            # A number added to v changes nothing, since coefficients sum to 1.
            largest = np.max(np.abs(v), axis=0)
            v = v - v.max(axis=0)
            # Without l2 the corners that v is largest at are all as good, and so is their sum.
            best = _on_simplex(v / l2) if l2 > 0.0 else (v == 0.0).astype(Long)
            beside = float(np.sum(largest)) * len(coef)
        elif l2 > 0.0:
            shrunk = np.sign(v) * np.maximum(np.abs(v) - l1, 0)
            best, beside = np.clip(shrunk / l2, *self._limits(coef)), 0.0
        else:
            lower, upper = self._limits(coef)
            best, beside = np.where(v > 0, upper, np.where(v < 0, lower, coef)), 0.0
        move = best - coef
        terms = (v * move, l2 / Long(2) * move * (best + coef), l1 * (np.abs(best) - np.abs(coef)))
        size = sum(np.sum(np.abs(term)) for term in terms) + beside
        bracket = np.sum(terms[0] - terms[1] - terms[2])
        return np.maximum(bracket, 0), _OPERATIONS * _UNIT * size

    def _spread(self, bracket: Any, coef: LongArray, slope: LongArray, delta: LongArray) -> float:
        """What errors of c may add to the bracket."""
        total = math.inf
        errors = np.asarray(delta, dtype=np.float64)
        if self.kernel.l2 > 0.0:
            spread = float(np.linalg.norm(errors)) / math.sqrt(2.0 * self.kernel.l2)
            total = spread * (2.0 * math.sqrt(float(bracket)) + spread)
        if self.kernel.code == SIMPLEX:
            reach = float(np.sum(errors.max(axis=0)) + np.sum(errors * np.abs(coef)))
        else:
            lower, upper = self._limits(coef)
            with np.errstate(invalid="ignore"):
                reach = float(np.sum(errors * np.maximum(coef - lower, upper - coef)))
        return min(total, reach) if reach < math.inf else total

    def stepped(self, state: _State, blurred: bool) -> _State | None:
        """The state after a Newton step; None where there is none that leads down.

        With `blurred`, margins are those of doubles, and tell little about the side of a kink.
        """
        try:
            step = self._step(state, blurred)
        except (np.linalg.LinAlgError, ValueError):
            return None
        for _ in range(_MAX_CUTS):
            w = self.inside(state.w + step)
            beside = np.abs(w - state.w - step)
            if np.any(beside > self.drift * _UNIT * (np.abs(state.w) + np.abs(step))):
                new = self.state(w, self.margins(w))
            else:
                new = self.state(w, state.margins + self._moves(step), state)
            if new is not None and (
                new.value <= state.value + _LEVEL * abs(state.value)
                or new.bound.value > state.bound.value
            ):
                return new
            step = step / 4
        return None

    def _step(self, state: _State, blurred: bool) -> LongArray:
        """A Newton step: the model's minimum in doubles, and then, on its face, the way there.

        The second keeps the digits that a difference of two places would lose.
        """
        engine, d = self.engine, self.engine.n_features
        w = state.w.astype(np.float64)
        rooted = None
        if engine.n_outputs == 1:
            slopes, curvature = self._slopes(state, blurred)
            state = state._replace(gradient=self._gradient(slopes))
            rooted = self._rooted(curvature)
        hessian = (
            engine.hessian(engine.point(w), self.dual) if rooted is None else rooted.T @ rooted
        )
        gradient = state.gradient.astype(np.float64).ravel()
        outputs, l2, l1 = engine.n_outputs, self.kernel.l2, self.kernel.l1
        n_penalized = d * outputs
        u, _ = minimize_quadratic(hessian, gradient, w.ravel(), self.penalty, n_penalized, outputs)
        factored = self._factored(state, hessian, rooted)
        if factored is not None:
            u = minimize_factored(
                factored.M, gradient, w.ravel(), self.penalty, n_penalized, u, outputs
            )
        on_simplex = self.kernel.code == SIMPLEX
        lower, upper = (
            np.repeat(limit, outputs) for limit in (self.kernel.lower, self.kernel.upper)
        )
        coef = u[:n_penalized]
        free = np.ones(len(u), dtype=bool)
        free[:n_penalized] = (coef > lower) & ((coef < upper) | on_simplex)
        free[:n_penalized] &= (coef != 0.0) | (l1 == 0.0)
        start = state.w.ravel()
        step: LongArray = np.where(free, Long(0), u - start)
        slope = state.gradient.ravel().copy()
        slope[:n_penalized] += l2 * start[:n_penalized] + l1 * np.sign(coef)
        basis = np.eye(int(np.count_nonzero(free)))
        if on_simplex:
            basis, step = _within_sums(coef, free, step, outputs)
        placed = step.astype(np.float64)
        if factored is not None:
            right = -(slope.astype(np.float64) + factored.product(placed))[free]
            summing = free[:d] if on_simplex else None
            if summing is not None:
                summing = np.arange(np.count_nonzero(free)) < np.count_nonzero(summing)
            step[free] += factored.solve(free, right, summing)
            return step.reshape(state.w.shape)
        matrix = hessian.copy()
        matrix[np.arange(n_penalized), np.arange(n_penalized)] += l2
        right = -(slope.astype(np.float64) + matrix @ placed)[free]
        inner = basis.T @ matrix[np.ix_(free, free)] @ basis
        step[free] += basis @ _solve(inner, basis.T @ right)
        return step.reshape(state.w.shape)

    def _slopes(self, state: _State, blurred: bool) -> tuple[LongArray, FloatArray]:
        """Slopes and curvatures of all losses at the margins.

        Those of blurred margins are taken from the side where the loss bends more: with columns of
        1e7, a hinge that holds a coefficient in place is as often seen beyond its kink as before.
        """
        curvature = self.loss.curvature
        at: LongArray = state.margins
        if blurred:
            error = _BLUR * _DOUBLE * self._sizes(state.w)
            ahead, back = at + error, at - error
            bends = curvature(self.y, ahead.astype(float)) > curvature(self.y, back.astype(float))
            at = np.where(bends, ahead, back)
        bend = curvature(self.y, at.astype(np.float64))
        return self.formulas(self.y, at)[1] + bend * (state.margins - at), bend

    def _gradient(self, slopes: LongArray) -> LongArray:
        """X^T (lam s), and the sum of lam s for an intercept."""
        weighted = self.lam * slopes
        gradient = self._products(self.columns, weighted)
        return np.append(gradient, weighted.sum()) if self.engine.fit_intercept else gradient

    def _rooted(self, curvature: FloatArray) -> FloatArray:
        """M with M^T M the Hessian."""
        weights = np.sqrt(self.lam.astype(np.float64) * curvature)
        rows = np.flatnonzero(weights)
        M = np.ones((len(rows), self.engine.size))
        M[:, : self.engine.n_features] = self.X[rows]
        M *= weights[rows, None]
        return M

    def _factored(
        self, state: _State, hessian: FloatArray, rooted: FloatArray | None
    ) -> FactoredModel | None:
        """The curvature by its rows.

        These are few and the penalty has some of its own, or the matrix has lost faint directions.
        """
        engine, l2 = self.engine, self.kernel.l2
        n_rows = engine.n_samples * engine.n_outputs
        if l2 == 0.0 and not (self.penalty.separable and loses_curvature(hessian, l2, n_rows)):
            return None
        if l2 > 0.0 and engine.n_outputs > 1:
            return None
        factor = rooted
        if factor is None:
            point = engine.point(state.w.astype(np.float64))
            factor = engine.curvature(point, self.dual).factor()
        if factor is None or not 0 < len(factor) <= _MOST_ROWS:
            return None
        if l2 == 0.0 and not sees_faintly(factor):
            return None
        return FactoredModel(factor, l2, engine.n_features * engine.n_outputs, engine.n_outputs)


def _within_sums(
    coef: FloatArray, free: NDArray[np.bool_], step: LongArray, outputs: int
) -> tuple[FloatArray, LongArray]:
    """Directions that keep the sum of each output, and a step that puts the sums right."""
    place = np.cumsum(free) - 1
    basis = np.eye(int(np.count_nonzero(free)))
    pivots = []
    for k in range(outputs):
        own = np.arange(k, len(coef), outputs)
        chosen = own[free[own]]
        if len(chosen) == 0:
            continue
        pivot = chosen[np.argmax(coef[chosen])]
        step[pivot] -= step[own].sum()
        basis[place[pivot], place[chosen]] = -1.0
        pivots.append(place[pivot])
    return np.delete(basis, pivots, axis=1), step


def _solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """matrix^-1 right, of a matrix that may be singular up to rounding."""
    if right.size == 0:
        # SciPy before 1.14 takes no systems without unknowns.
        return np.zeros_like(right)
    scale = np.sqrt(np.maximum(np.diag(matrix), np.finfo(np.float64).tiny))
    scaled = matrix / scale[:, None] / scale
    ridge = 0.0
    for _ in range(_MAX_RIDGES):
        try:
            factor = scipy.linalg.cho_factor(scaled + ridge * np.eye(len(scale)))
            return np.asarray(scipy.linalg.cho_solve(factor, right / scale) / scale)
        except np.linalg.LinAlgError:
            ridge = _MORE * ridge if ridge > 0.0 else _RIDGE
    raise np.linalg.LinAlgError("no ridge was enough")


def _on_simplex(v: LongArray) -> LongArray:
    """Projection of each column onto the probability simplex."""
    columns = v if v.ndim > 1 else v[:, None]
    ordered = -np.sort(-columns, axis=0)
    ranks = np.arange(1, len(ordered) + 1)[:, None]
    excess = (np.cumsum(ordered, axis=0) - 1) / ranks
    last = np.sum(ordered > excess, axis=0) - 1
    out = np.maximum(columns - excess[last, np.arange(columns.shape[1])], 0)
    return out.reshape(v.shape)


# Losses and slopes of all samples at margins in long doubles.
Formulas = Callable[[Any, LongArray], tuple[LongArray, LongArray]]


def _squared(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
    return (z - y) ** 2 / 2, z - y


def _huber(delta: float) -> Formulas:
    def formulas(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
        slope = np.clip(z - y, -delta, delta)
        return slope * (z - y - slope / 2), slope

    return formulas


def _logistic(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
    tail = np.exp(-np.abs(z))
    wrong = y * z < 0
    losses = np.log1p(tail) + np.where(wrong, np.abs(z), 0)
    return losses, -y * np.where(wrong, 1, tail) / (1 + tail)


def _squared_hinge(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
    short = np.maximum(1 - y * z, 0)
    return short**2, -2 * y * short


def _poisson(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
    t = z - np.log(np.where(y > 0.0, y, 1.0).astype(Long))
    losses = np.where(y > 0.0, y * _exp_excess(t), np.exp(z))
    return losses, np.where(y > 0.0, y * np.expm1(t), np.exp(z))


def _gamma(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
    t = np.log(y.astype(Long)) - z
    return _exp_excess(t), -np.expm1(t)


def _multinomial(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
    own = np.arange(len(y)), y
    rest = z - z.max(axis=1)[:, None]
    below = rest[own]
    slopes = np.exp(rest)
    mine = slopes[own].copy()
    slopes[own] = 0
    others = slopes.sum(axis=1)
    losses = np.where(below == 0, np.log1p(others), np.log(others + mine) - below)
    slopes /= (others + mine)[:, None]
    slopes[own] = -others / (others + mine)
    return losses, slopes


def _own(loss: Loss) -> Formulas:
    def formulas(y: Any, z: LongArray) -> tuple[LongArray, LongArray]:
        return np.asarray(loss.value(y, z)), np.asarray(loss.derivative(y, z))

    return formulas


def _exp_excess(t: LongArray) -> LongArray:
    """exp(t) - 1 - t, by its series where the difference would lose digits."""
    small = np.where(np.abs(t) < 0.1, t, 0)
    series = np.ones_like(t)
    for k in range(16, 2, -1):
        series = 1 + series * small / k
    return np.where(np.abs(t) < 0.1, small * small / 2 * series, np.expm1(t) - t)


_FORMULAS: dict[type[Loss], Formulas] = {
    Squared: _squared,
    Logistic: _logistic,
    SquaredHinge: _squared_hinge,
    Poisson: _poisson,
    Gamma: _gamma,
    Multinomial: _multinomial,
}
