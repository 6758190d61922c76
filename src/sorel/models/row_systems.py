"""Newton steps of an L2 penalty from as many equations as there are rows with curvature.

With A the rows that have curvature, C = B B^T their weights and K = A A^T, the system

    (mu I + A^T C A) s = -g

is solved by s = -(g - A^T B (mu I + B^T K B)^-1 B^T A g) / mu (Woodbury 1950),
so that r rows need an r x r matrix, however many columns X has. Inside a block that the projection
pools, C is a diagonal less a matrix of rank one, and so has a root B that is never formed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel._lib.floats import EPS

Array = NDArray[np.float64]


class Weights(NamedTuple):
    """The matrix C of the rows that have curvature.

    Attributes
    ----------
    h : array of length r
        Its diagonal but for the blocks, positive.
    pull : array of length r
        What a unit of margin changes in the loss, times the weight of the row; read inside blocks.
    block : array of length r
        The block of each row, or -1.
    scale : array, one for each block
        C is diag(h) less ``scale[b] * outer(pull, pull)`` inside block b.
    """

    h: Array
    pull: Array
    block: NDArray[np.int32]
    scale: Array

    def rooted(self, A: Array) -> Array:
        """B^T A, so that its product with its transpose is A^T C A; A is overwritten."""
        root = _Root(self)
        for column in A.T:
            column[:] = root.adjoint(column)
        return A


class _Root:
    """B = diag(sqrt(h)) S, where S = S^T is the root of I - sum_b u_b u_b^T, and |u_b| <= 1."""

    def __init__(self, weights: Weights) -> None:
        h, pull, block, scale = weights
        self._root = np.sqrt(h)
        self._rows = np.flatnonzero(block >= 0)
        self._block = block[self._rows]
        self._count = len(scale)
        self._u = pull[self._rows] * np.sqrt(scale[self._block]) / self._root[self._rows]
        size = np.minimum(np.bincount(self._block, self._u**2, self._count), 1.0)
        # (1 - sqrt(1 - t)) / t without cancellation.
        self._factor = 1.0 / (1.0 + np.sqrt(1.0 - size))

    def _pooled(self, x: Array) -> Array:
        """S x, in place."""
        if self._count == 0:
            return x
        inside = self._u * x[self._rows]
        sums = self._factor * np.bincount(self._block, inside, self._count)
        x[self._rows] -= self._u * sums[self._block]
        return x

    def times(self, x: Array) -> Array:
        """B x."""
        return self._root * self._pooled(x.copy())

    def adjoint(self, x: Array) -> Array:
        """B^T x."""
        return self._pooled(self._root * x)

    def congruent(self, K: Array) -> Array:
        """B^T K B; K is overwritten."""
        K *= self._root
        K *= self._root[:, None]
        if self._count == 0:
            return K
        # Blocks are many and disjoint: a sparse matrix with one number for each row.
        from scipy.sparse import csr_array

        shape = (self._count, len(self._root))
        U = csr_array((self._u, (self._block, self._rows)), shape=shape)
        F = csr_array((self._u * self._factor[self._block], (self._block, self._rows)), shape=shape)
        # S K S = K - Y - Y^T with Y = F^T (U K - U K U^T F / 2).
        image = U @ K
        image -= 0.5 * ((image @ U.T) @ F)
        Y = F.T @ image
        K -= Y
        K -= Y.T
        return K


class RowSystem:
    """The factorised matrix mu I + B^T K B, for steps with and without an intercept.

    Parameters
    ----------
    K : array of shape (r, r)
        Inner products of the rows that have curvature. Overwritten.
    weights : Weights
        C.
    l2 : float
        mu, positive.

    Attributes
    ----------
    rounding : float
        About what rounding leaves of the gradient, as a share of it.

    Raises
    ------
    numpy.linalg.LinAlgError
        If rounding has spoilt the matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.models.row_systems import RowSystem, Weights
    >>> A, h, g = np.array([[1.0, 2.0, 2.0]]), np.array([3.0]), np.array([1.0, 0.0, 1.0])
    >>> none = np.zeros(1), np.array([-1], np.int32), np.zeros(0)
    >>> system = RowSystem(A @ A.T, Weights(h, *none), 0.5)
    >>> t, _ = system.solve(A @ g)
    >>> s = -(g - A.T @ t) / 0.5
    >>> np.allclose((0.5 * np.eye(3) + A.T @ np.diag(h) @ A) @ s, -g)
    True
    """

    def __init__(self, K: Array, weights: Weights, l2: float) -> None:
        self._root, self._l2 = _Root(weights), l2
        matrix = self._root.congruent(K)
        # Digits that cancel in g - A^T t, as a share of the gradient.
        self.rounding = EPS * float(matrix.diagonal().max()) / l2
        matrix.ravel()[:: len(matrix) + 1] += l2
        self._factor, failed = dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        if failed or not np.isfinite(self._factor.diagonal()).all():
            raise np.linalg.LinAlgError(f"the {len(K)} x {len(K)} system of the rows is singular")

    def solve(self, image: Array, derivative: float | None = None) -> tuple[Array, float]:
        """What is to be subtracted from the gradient, and the step of the intercept.

        Parameters
        ----------
        image : array of length r
            A g, for the gradient g in the coefficients.
        derivative : float, optional
            That in an unpenalised intercept, where there is one.

        Returns
        -------
        t : array of length r
            For which the step is -(g - A^T t) / mu.
        b : float
            The step of the intercept.

        Raises
        ------
        numpy.linalg.LinAlgError
            If nothing bends in the intercept.
        """
        solved = self._inverse(self._root.adjoint(image))
        b = 0.0
        if derivative is not None:
            ones = self._root.adjoint(np.ones(len(image)))
            flat = self._inverse(ones)
            bend = self._l2 * float(ones @ flat)
            # Relative to what the rows would bend without the coefficients: a sum of rounded terms.
            if not bend > 8.0 * len(ones) * EPS * float(ones @ ones):
                raise np.linalg.LinAlgError("the losses do not bend in the intercept")
            b = (float(ones @ solved) - derivative) / bend
            solved -= self._l2 * b * flat
        return self._root.times(solved), b

    def _inverse(self, x: Array) -> Array:
        solution: Array = dpotrs(self._factor, x, lower=1)[0]
        return solution
