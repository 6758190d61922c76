"""A risk as a convex set of weightings, and the projector of a spectral one.

An engine asks a :class:`WeightSet` for the largest weighted loss and the weighting that attains it,
for the weighting nearest to a vector with the derivative of that step, and for the slack of a
weighting. A set of one's own takes the place of the permutahedron by way of it. The derivative in
the blocks of a permutahedron is that of Luo, Sun, Toh and Xiu (2019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sorel._lib.copies import shallow_copy
from sorel._lib.inputs import check_numbers
from sorel._lib.threads import Team
from sorel.problem.risks import FloatArray, Risk, normalised_sample_weight
from sorel.projection.cores import Core, Weighted, equal_weights

IntArray = npt.NDArray[np.int64]


class Derivative(NamedTuple):
    """How the projection q of z moves with z, in the norm sum_i omega_i q_i^2.

    dq = scale (dz - its mean over the block) inside the blocks, less sum_k v_k <v_k, dz>.

    Attributes
    ----------
    block : array of int32, shape (n,)
        The block of each item; -1 where q does not move with z.
    n_blocks : int
        The number of blocks.
    scale : float
        1 for spectra, whose blocks are faces of a polytope; less for a set with a round boundary.
    vectors : array of shape (k, n) or None
        A part of low rank that is taken away besides.
    """

    block: npt.NDArray[np.int32]
    n_blocks: int
    scale: float = 1.0
    vectors: FloatArray | None = None


class WeightSet(ABC):
    """A convex set of densities q of n items with sample weights omega.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.permutahedron import Projector
    >>> q, derivative = Projector(CVaR(0.5), 4).nearest(np.array([0.0, 1.0, 1.5, 9.0]))
    >>> q, derivative.block, derivative.n_blocks
    (array([0.  , 0.75, 1.25, 2.  ]), array([-1,  0,  0, -1], dtype=int32), 1)
    """

    # The largest weight omega_i q_i that an item may have.
    heaviest: float

    @abstractmethod
    def value(self, losses: FloatArray) -> float:
        """The largest sum_i omega_i q_i losses_i."""

    @abstractmethod
    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        """Fill `out` with a q that attains it; the value."""

    @abstractmethod
    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        """The value less sum_i omega_i q_i losses_i, at least 0 and without cancellation."""

    @abstractmethod
    def nearest(self, zeta: FloatArray) -> tuple[FloatArray, Derivative]:
        """The q that minimises sum_i omega_i (q_i - zeta_i)^2, in the place of zeta."""

    def fork(self) -> Self:
        """The same set for another thread, with working memory of its own."""
        return self

    def share(self, team: Team | None) -> None:  # noqa: B027 (most sets do without threads)
        """Let these threads share the sweeps; None leaves them to the caller's thread."""


def project_permutahedron(
    z: npt.ArrayLike, sigma: npt.ArrayLike | Risk, sample_weight: npt.ArrayLike | None = None
) -> FloatArray:
    """Project a vector onto the permutahedron of sigma, the convex hull of its rearrangements.

    Parameters
    ----------
    z : array-like of shape (n,)
        The vector to project; it is not changed.
    sigma : array-like of shape (n,) or Risk
        Nonnegative, nondecreasing weights with a positive sum, or a risk that gives them.
    sample_weight : array-like of shape (n,), optional
        Sample weights omega (normalised here to sum 1); ``sigma`` must then be a risk. The norm is
        ``sum_i (lam_i - z_i)^2 / (n omega_i)``, so that a weight of 2 is the same as giving the row
        twice.

    Returns
    -------
    ndarray of shape (n,)
        The projection lam.

    Examples
    --------
    >>> import sorel
    >>> sorel.project_permutahedron([0.0, 1.0, 5.0], [0.0, 0.25, 0.75])
    array([0.  , 0.25, 0.75])
    >>> sorel.project_permutahedron([0.5, 0.5, 0.5], sorel.CVaR(0.5)).round(4)
    array([0.3333, 0.3333, 0.3333])
    """
    check_numbers(z, "z")
    point = np.asarray(z)
    if point.dtype.kind not in "fiu":
        raise TypeError(f"z must be a vector of real numbers, got dtype {point.dtype}.")
    if point.ndim != 1 or point.size == 0:
        raise ValueError(f"z must be a non-empty vector, got shape {point.shape}.")
    point = np.ascontiguousarray(point, dtype=np.float64)
    if not np.isfinite(point).all():
        raise ValueError("z must be finite; it contains NaN or inf.")
    n = point.size
    out = np.empty(n)
    if sample_weight is not None:
        if not isinstance(sigma, Risk):
            raise TypeError(
                "sample_weight needs a risk in place of the vector sigma, because the weights of "
                "the ordered losses then depend on the order; pass e.g. CVaR(0.1)."
            )
        omega = normalised_sample_weight(sample_weight, n)
        with np.errstate(over="ignore"):
            zeta = np.divide(point, omega, out=np.zeros(n), where=omega > 0.0)
        if not np.isfinite(zeta).all():
            raise ValueError("z / sample_weight overflows; drop rows of negligible weight.")
        Projector(sigma, n, omega).project(zeta, out)
        out *= omega
        return out
    mass = sigma.weights(n) if isinstance(sigma, Risk) else _checked_sigma(sigma, n)
    equal_weights(mass).project(point, out, np.empty(n, np.int32))
    return out


def _checked_sigma(sigma: npt.ArrayLike, n: int) -> FloatArray:
    mass = np.ascontiguousarray(sigma, dtype=np.float64)
    if mass.shape != (n,):
        raise ValueError(f"sigma must have shape ({n},) like z, got {mass.shape}.")
    if not np.isfinite(mass).all():
        raise ValueError("sigma must be finite; it contains NaN or inf.")
    if mass[0] < 0.0:
        raise ValueError(f"sigma must be nonnegative, got {float(mass[0])!r}.")
    if (mass[1:] < mass[:-1]).any():
        where = int(np.argmax(mass[1:] < mass[:-1]))
        raise ValueError(
            f"sigma must be nondecreasing, but falls from {float(mass[where])!r} to "
            f"{float(mass[where + 1])!r} at position {where + 1}; sort it first."
        )
    if mass[-1] == 0.0:
        raise ValueError("sigma is zero everywhere; give it a positive sum.")
    return mass


class Projector(WeightSet):
    """The dual set of a spectral risk; projections reuse what the last one found.

    Parameters
    ----------
    risk : Risk
        The risk.
    n : int
        Number of items.
    sample_weight : ndarray of shape (n,), optional
        Normalised weights omega; None means 1/n each. Items of weight 0 get q = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.permutahedron import Projector
    >>> projector, q, block = Projector(CVaR(0.5), 4), np.empty(4), np.empty(4, np.int32)
    >>> projector.project(np.array([0.0, 1.0, 1.5, 9.0]), q, block)
    1
    >>> q
    array([0.  , 0.75, 1.25, 2.  ])
    >>> block
    array([-1,  0,  0, -1], dtype=int32)
    """

    def __init__(self, risk: Risk, n: int, sample_weight: FloatArray | None = None) -> None:
        self.risk = risk
        self.n = int(n)
        self._used: IntArray | None = None
        self._core: Core
        if sample_weight is None:
            mass = risk.weights(self.n)
            mass *= self.n
            self.heaviest = float(mass[-1]) / self.n
            self._core = equal_weights(mass)
            return
        omega = np.ascontiguousarray(sample_weight, dtype=np.float64)
        if not (omega > 0.0).all():
            self._used = np.flatnonzero(omega > 0.0)
            omega = omega[self._used]
        self.heaviest = float(np.max(risk.tail(np.minimum(omega, 1.0))))
        self._core = Weighted(risk, omega)

    def fork(self) -> Self:
        """The same projections for another thread, which knows nothing of earlier ones.

        Shared, because nobody writes to it: the risk, the weights of the ordered items, the sample
        weights and the threads of :meth:`share`. Fresh: the orders, the last thresholds and all
        working memory. So the cost does not grow with n, but for what the first projection
        allocates, and two forks may be used at the same time.
        """
        fork = shallow_copy(self)
        fork._core = self._core.fork()
        return fork

    def _of_used(self, vector: FloatArray) -> FloatArray:
        """The entries of the items that have weight."""
        return vector if self._used is None else vector[self._used]

    def nearest(self, zeta: FloatArray) -> tuple[FloatArray, Derivative]:
        block = np.empty(self.n, np.int32)
        return zeta, Derivative(block, self.project(zeta, zeta, block))

    def share(self, team: Team | None) -> None:
        """Let these threads share the sweeps; None leaves them to the caller's thread."""
        self._core.team = team if self._used is None else None

    def project(
        self, zeta: FloatArray, out: FloatArray, block: npt.NDArray[np.int32] | None = None
    ) -> int:
        """Project zeta onto the dual set: minimise ``sum_i omega_i (q_i - zeta_i)^2``.

        Within a block, ``dq = dzeta - (omega-weighted mean of dzeta over the block)``; elsewhere
        ``dq = 0``.

        Parameters
        ----------
        zeta : ndarray of shape (n,)
            Finite values.
        out : ndarray of shape (n,)
            Receives q; may be zeta itself.
        block : ndarray of int32, shape (n,), optional
            Receives the pooled block of each item, or -1 where q does not move with zeta.

        Returns
        -------
        int
            The number of blocks.
        """
        if block is None:
            block = np.empty(self.n, np.int32)
        if self._used is None:
            return self._core.project(zeta, out, block)
        q, inner = np.empty(self._core.n), np.empty(self._core.n, np.int32)
        count = self._core.project(zeta[self._used], q, inner)
        out.fill(0.0)
        out[self._used] = q
        block.fill(-1)
        block[self._used] = inner
        return count

    def worst_case(self, losses: FloatArray, out: FloatArray) -> float:
        """Fill q with the maximiser of ``sum_i omega_i q_i losses_i``, and return that maximum.

        Equal losses are taken in the order of their positions.

        Parameters
        ----------
        losses : ndarray of shape (n,)
            Finite losses.
        out : ndarray of shape (n,)
            Receives q.

        Returns
        -------
        float
            The spectral risk of the losses.
        """
        if self._used is None:
            return self._core.worst_case(losses, out) / self.n
        q = np.empty(self._core.n)
        value = self._core.worst_case(losses[self._used], q) / self._core.n
        out.fill(0.0)
        out[self._used] = q
        return value

    def value(self, losses: FloatArray) -> float:
        """Return the spectral risk of the losses.

        Parameters
        ----------
        losses : ndarray of shape (n,)
            Finite losses.

        Returns
        -------
        float
            ``sum_i sigma_i l_[i]``.
        """
        return self._core.value(self._of_used(losses)) / self._core.n

    def shortfall(self, losses: FloatArray, density: FloatArray) -> float:
        """Return the spectral risk less ``sum_i omega_i q_i losses_i``, without cancellation.

        Parameters
        ----------
        losses : ndarray of shape (n,)
            Finite losses.
        density : ndarray of shape (n,)
            q in the dual set.

        Returns
        -------
        float
            A sum of nonnegative terms: the mass that q holds below each gap between sorted
            losses, beyond what the risk puts there, times the width of the gap.
        """
        used = self._of_used
        return self._core.shortfall(used(losses), used(density)) / self._core.n
