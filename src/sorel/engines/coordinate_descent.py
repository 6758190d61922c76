"""Coordinate descent on lam . l + g for the squared loss and a separable penalty."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from sorel.engines.base import Engine, FloatArray
from sorel.kernels import descent
from sorel.losses import Squared
from sorel.penalties import Kernel


class Descent(NamedTuple):
    """Where coordinate descent has led.

    Attributes
    ----------
    w : array
        Parameters, the intercept at its best.
    left : float
        Duality gap that is left in the columns, about.
    sweeps : int
        Sweeps over the columns that it took.
    """

    w: FloatArray
    left: float
    sweeps: int


def serves(engine: Engine) -> bool:
    """Whether this engine has what :func:`descend` asks for."""
    return engine.in_memory and type(engine.spec.loss) is Squared


def descend(
    engine: Engine, point: Any, dual: Any, w: FloatArray, penalty: Kernel, sweeps: int, goal: float
) -> Descent:
    """Coordinate descent from a point, which may be of an engine with more columns.

    Parameters
    ----------
    engine : Engine
        In memory, with the squared loss.
    point, dual
        Where it starts, and the weighting.
    w : array
        The start again, shaped like the parameters of this engine.
    penalty : Kernel
        The penalty g, as :meth:`sorel.penalties.Penalty.kernel` gives it.
    sweeps : int
        Sweeps over the columns, at most; fewer where so many would not reach the goal.
    goal : float
        A duality gap in these columns that is small enough.
    """
    stored = engine.stored()
    assert stored is not None
    X, d, root = stored[0], engine.n_features, np.sqrt(engine.weights(dual))
    residual, new = root * point.slopes, w.copy()
    if scipy.sparse.issparse(X):
        X = X.tocsc()
        data = X.data * root[X.indices]
        X = scipy.sparse.csc_array((data, X.indices, X.indptr), shape=X.shape)
        squares, means = np.asarray(X.power(2).sum(axis=0)).ravel(), X.T @ root
        loop: Any = descent.descend_sparse
        arrays: tuple[Any, ...] = (X.indptr, X.indices, data)
    else:
        by_columns = np.empty((d, engine.n_samples))
        squares, means = np.zeros(d), np.zeros(d)
        descent.scaled_transpose(X, root, by_columns, squares, means)
        loop, arrays = descent.descend_dense, (by_columns,)
    if engine.fit_intercept:
        shift = -float(root @ residual)
        residual += shift * root
        squares -= means**2
        new[-1] += shift
    else:
        means = np.zeros_like(means)
    _, l2, l1, lower, upper = penalty
    moved, left, taken = loop(
        *arrays, means, np.maximum(squares, 0.0), residual, new[:d], l1, l2, lower, upper, sweeps,
        goal, 0.0,
    )  # fmt: skip
    if engine.fit_intercept:
        new[-1] += moved
    return Descent(new, left, taken)
