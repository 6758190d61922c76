"""The same problem in coordinates of the space that the rows of X span.

Under L2 the solution lies in that space (the representer theorem: Schoelkopf, Herbrich and Smola
2001). With the triangular factor L of X X^T = L L^T in the place of X, products cost n^2 in place
of n d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf

from sorel.engines.base import Engine, FloatArray
from sorel.engines.dense import DenseEngine
from sorel.engines.memory import MemoryEngine
from sorel.engines.row_gram import MAX_ROWS

# Pivots of X X^T below this share of the largest: rows are dependent up to rounding errors.
_LEAST_PIVOT = 1e-5


class Rotated(NamedTuple):
    """A problem in the space of the rows.

    Attributes
    ----------
    engine : Engine
        The problem with L in the place of X. Its weightings are those of the engine it was made
        from.
    into, back : callable
        Parameters in these coordinates, of the part of w that margins depend on, and the way back.
    """

    engine: Engine
    into: Callable[[FloatArray], FloatArray]
    back: Callable[[FloatArray], FloatArray]


def rotate(engine: Engine) -> Rotated | None:
    """The problem of an engine in the space of its rows; None where that is not to be had.

    Takes the inner products of all rows, so there should not be many, and these should be far from
    dependent.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.engines.rotated import rotate
    >>> problem = sorel.Problem([[3.0, 0.0, 4.0], [1.0, 1.0, 1.0]], [1.0, 2.0])
    >>> rotated = rotate(problem.engine)
    >>> rotated.engine.n_features, rotated.into(np.array([0.6, 0.0, 0.8])).round(6) + 0.0
    (2, array([1., 0.]))
    """
    if not isinstance(engine, MemoryEngine) or engine.stored() is None:
        return None
    if engine.n_outputs > 1 or engine.n_samples > MAX_ROWS:
        return None
    X, n, d = engine._rows.array, engine.n_samples, engine.n_features
    gram = engine._row_gram(np.arange(n))
    factor, failed = dpotrf(gram.T, lower=1, clean=1, overwrite_a=1)
    pivots = factor.diagonal()
    if failed or not pivots.min() >= _LEAST_PIVOT * pivots.max():
        return None
    factor = np.ascontiguousarray(factor)

    def into(w: FloatArray) -> FloatArray:
        return np.append(solve_triangular(factor, X @ w[:d], lower=True), w[d:])

    def back(v: FloatArray) -> FloatArray:
        w = X.T @ solve_triangular(factor, v[:n], lower=True, trans="T")
        return np.append(w, v[n:])

    return Rotated(DenseEngine(factor, engine.spec), into, back)
