"""The columns that a second-order step may move: the others are inactive, and cost nothing.

Under a penalty with kinks or bounds most coefficients of a solution are at 0 or at a bound, where
the gradient holds them. A proximal Newton step then needs the Hessian of the others alone, and of
those that the gradient pulls away. Which ones these are is seen at every step from the gradient in
all coordinates, as in projected Newton methods (Bertsekas 1982), and no certificate depends on the
choice. The sets grow with the solution, as those of Massias, Gramfort and Salmon (2018) do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sorel._core import SIMPLEX
from sorel.engines.base import Engine, FloatArray
from sorel.engines.curvature import WORTH_SELECTING
from sorel.engines.matrix import MAX_COPY
from sorel.engines.row_gram import MAX_ROWS
from sorel.problem.penalties import Penalty

Indices = NDArray[np.intp]

# Parameters up to which a Hessian of all of them may be formed: 200 MB, as for rows.
LARGEST_HESSIAN = MAX_ROWS

# Columns that a working set may always have.
_LEAST_SET = 64

# Columns that it may have for each one that is free.
_GROWTH = 3


class TooManyColumnsError(ArithmeticError):
    """More coefficients move than a Hessian is formed of."""


class WorkingSet:
    """Some of the parameters: coefficients of the chosen columns, and the intercepts.

    Parameters
    ----------
    engine : Engine
        The home of these columns.
    penalty : Penalty
        The penalty on their coefficients.
    rows : array of int or None
        Their rows in a parameter array of the problem, intercepts last; None for all of them.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.models.working_sets import WorkingSet
    >>> problem = sorel.Problem(np.eye(4), [1.0, 2.0, 3.0, 4.0], penalty=sorel.NonNegative(1.0))
    >>> chosen = np.array([1, 3])
    >>> part = WorkingSet(problem.engine.columns(chosen), problem.penalty, chosen)
    >>> part.take(np.array([5.0, 6.0, 7.0, 8.0]))
    array([6., 8.])
    >>> part.put(np.zeros(4), np.array([1.0, 2.0]))
    array([0., 1., 0., 2.])
    """

    def __init__(self, engine: Engine, penalty: Penalty, rows: Indices | None = None) -> None:
        self.engine, self.penalty, self.rows = engine, penalty, rows
        self.n_penalized = engine.n_features * engine.n_outputs

    def take(self, w: FloatArray) -> FloatArray:
        """The entries of an array shaped like w that belong to the part, flat."""
        return (w if self.rows is None else w[self.rows]).ravel()

    def put(self, w: FloatArray, u: FloatArray) -> FloatArray:
        """A copy of w with these entries in place of the part's."""
        if self.rows is None:
            return u.reshape(w.shape)
        new = w.copy()
        new[self.rows] = u.reshape(self.engine.shape)
        return new


class WorkingSets:
    """Chooses parts of a problem for second-order steps, and keeps the last one.

    Parameters
    ----------
    engine, penalty
        The parts of the problem that it depends on.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.models.working_sets import WorkingSets
    >>> X = np.random.default_rng(0).standard_normal((200, 300))
    >>> problem = sorel.Problem(X, X[:, 0], risk="mean", penalty=sorel.ElasticNet(0.1, 0.3))
    >>> w = np.zeros(300)
    >>> gradient = -X.T @ X[:, 0] / 200
    >>> part = WorkingSets(problem.engine, problem.penalty).choose(w, gradient)
    >>> bool(np.array_equal(part.rows, np.flatnonzero(np.abs(gradient) > 0.3)))
    True
    """

    def __init__(self, engine: Engine, penalty: Penalty) -> None:
        self.engine, self.penalty = engine, penalty
        self._all = WorkingSet(engine, penalty)
        self._last, self._chosen = self._all, np.empty(0, np.intp)
        self._useful = may_be_inactive(engine, penalty)

    def choose(self, w: FloatArray, gradient: FloatArray) -> WorkingSet:
        """The part that a step from w should move, given the gradient of the losses.

        Raises
        ------
        TooManyColumnsError
            If that are too many for a Hessian.
        """
        if not self._useful:
            return self._all
        engine, d = self.engine, self.engine.n_features
        pull, free = _pulls(self.penalty, w[:d], gradient[:d])
        wanted = free | (pull > 0.0)
        size, count = int(np.count_nonzero(wanted)), int(np.count_nonzero(free))
        most = max(_LEAST_SET, _GROWTH * count)
        if not self.penalty.separable:
            # On a simplex few more are ever needed, and models of many take longest.
            most = min(most, count + 2 * _LEAST_SET)
        many = engine.size > LARGEST_HESSIAN
        if many and min(size, most) * engine.n_outputs > LARGEST_HESSIAN:
            raise TooManyColumnsError(
                f"{size} of {d} coefficients move, and a Hessian is formed of "
                f"{LARGEST_HESSIAN // engine.n_outputs} at most"
            )
        if size > most:
            # What is free comes first, then what is pulled most.
            pull[free] += pull.max() + 1.0
            chosen = np.sort(np.argpartition(-pull, most - 1)[:most])
        else:
            # Where all are inactive, a column that does not move keeps the arrays from being empty.
            chosen = np.flatnonzero(wanted) if size else np.zeros(1, np.intp)
            # Columns that come and go are worth keeping, and so is the copy of them.
            kept = np.union1d(chosen, self._chosen)
            if len(chosen) >= WORTH_SELECTING * len(kept):
                if len(kept) == len(self._chosen):
                    return self._last
                chosen = kept
        copy = len(chosen) * engine.n_samples * engine.data_type.itemsize
        if not many and (copy > MAX_COPY or len(chosen) > WORTH_SELECTING * d):
            return self._all
        rows = np.append(chosen, d) if engine.fit_intercept else chosen
        self._chosen = chosen
        self._last = WorkingSet(engine.columns(chosen), self.penalty.on(chosen), rows)
        return self._last


def may_be_inactive(engine: Engine, penalty: Penalty) -> bool:
    """Whether the penalty has inactive coefficients, and the engine can leave them out."""
    return penalty.compiled and not penalty.quadratic and engine.obstacle("columns") is None


def chooses_columns(engine: Engine, penalty: Penalty) -> bool:
    """Whether second-order steps form the Hessian of no more columns than they move."""
    return penalty.separable and may_be_inactive(engine, penalty)


def carried_by_few(engine: Engine, w: FloatArray) -> bool:
    """Whether so few columns carry the weight of a simplex that steps should be taken from there.

    Where a Hessian of all columns can be formed, they should be unless the weight is spread evenly:
    such a start says nothing about the columns of the solution.
    """
    coef = w[: engine.n_features].reshape(engine.n_features, -1)
    carrying = np.count_nonzero(coef.any(axis=1))
    chosen = engine.size <= LARGEST_HESSIAN and not np.allclose(coef, coef[0, 0])
    return bool(carrying <= _LEAST_SET or chosen)


def on_few_columns(engine: Engine, w: FloatArray, gradient: FloatArray) -> FloatArray:
    """Parameters that carry the weight of each simplex on the columns of least slope.

    Where it is spread evenly none is inactive, so that a Hessian would be one of all.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.models.working_sets import carried_by_few, on_few_columns
    >>> X = np.random.default_rng(0).standard_normal((3, 4000))
    >>> problem = sorel.Problem(X, np.ones(3), penalty=sorel.Simplex(1.0))
    >>> carried_by_few(problem.engine, problem.start())
    False
    >>> w = on_few_columns(problem.engine, problem.start(), -X.sum(axis=0))
    >>> int(np.count_nonzero(w)), float(w.sum()), carried_by_few(problem.engine, w)
    (64, 1.0, True)
    """
    d, outputs = engine.n_features, engine.n_outputs
    few = max(1, _LEAST_SET // outputs)
    chosen = np.argpartition(gradient[:d].reshape(d, outputs), few - 1, axis=0)[:few]
    sums = w[:d].reshape(d, outputs).sum(axis=0)
    new = w.copy()
    new[:d] = 0.0
    np.put_along_axis(new[:d].reshape(d, outputs), chosen, sums / few, axis=0)
    return new


def _pulls(
    penalty: Penalty, coef: FloatArray, slope: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """How strongly the gradient pulls each column off its bound, and whether it is free anyway."""
    code, l2, l1, lower, upper = penalty.kernel(len(coef))
    if coef.ndim > 1:
        lower, upper = lower[:, None], upper[:, None]
    if code == SIMPLEX:
        free = coef > 0.0
        slope = slope + l2 * coef
        # Weight moves to where the slope is less, from where it is largest.
        top = np.where(free, slope, -np.inf).max(axis=0)
        pull = np.where(free, 0.0, np.maximum(top - slope, 0.0))
    else:
        free = np.logical_and(coef > lower, coef < upper)
        if l1 > 0.0:
            free &= coef != 0.0
        pull = np.abs(penalty.shortest_subgradient(coef, slope))
    if coef.ndim > 1:
        return pull.max(axis=1), np.any(free, axis=1)
    return pull, free
