"""A preconditioner for the Hessians of several classes, from one matrix of rows and one of classes.

The Hessian of the multinomial loss is a sum over the samples of A_i kron x_i x_i^T, where A_i is
the K x K curvature of a loss in its margins. With (sum_i A_i) kron G in its place, where G is the
mean of x_i x_i^T (a mean of products by a product of means, as Martens and Grosse 2015), the
eigenvectors of the two small matrices solve a system in two products each way. The direction in
which the margins of all classes grow alike has no curvature in either, and so the steps leave it
alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of G; no vectors stand for those of the coordinates."""

    values: FloatArray
    vectors: FloatArray | None


class KroneckerPreconditioner:
    """Solves with ``rows kron classes + modulus``, for arrays of shape (p, K).

    Parameters
    ----------
    rows : Spectrum
        That of the p x p matrix G.
    classes : array of shape (K, K)
        Sum of the curvatures A_i, positive semidefinite up to rounding.
    modulus : float
        Curvature of the penalty. Intercepts are lent it too, where it is next to nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.engines.kronecker import KroneckerPreconditioner, Spectrum
    >>> classes = np.array([[0.25, -0.25], [-0.25, 0.25]])
    >>> solve = KroneckerPreconditioner(Spectrum(np.array([2.0]), None), classes, 0.5)
    >>> solve(np.array([[1.0, -1.0]]))
    array([[ 0.66666667, -0.66666667]])
    """

    def __init__(self, rows: Spectrum, classes: FloatArray, modulus: float) -> None:
        values, self._classes = np.linalg.eigh(classes)
        self._rows = rows.vectors
        curvature = np.multiply.outer(np.maximum(rows.values, 0.0), np.maximum(values, 0.0))
        curvature += modulus
        # Neither rows nor a penalty: any step is as good as another.
        curvature[curvature <= 0.0] = 1.0
        self._curvature = curvature

    def __call__(self, residual: FloatArray) -> FloatArray:
        rotated = residual @ self._classes
        if self._rows is None:
            rotated /= self._curvature
        else:
            rotated = self._rows.T @ rotated
            rotated /= self._curvature
            rotated = self._rows @ rotated
        return rotated @ self._classes.T
