"""What a solver may ask of the data.

A solver sees scalars, parameter vectors, p x p matrices and the opaque handles of this page.
Everything of length n (margins, losses, the weights lam, orders) belongs to an engine, which knows
where X lives. A new home for the data is a new engine; no solver changes.

Weights are kept as densities q_i = lam_i / omega_i against the sample weights omega (1/n each when
there are none): q = 1 is the plain average whatever n is, and the dual set, the norm
sum_i omega_i (q_i - q'_i)^2 and the step eta mean the same for 200 rows and for 10 million.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Point:
    """Margins, losses and loss derivatives at one parameter vector `w`."""

    __slots__ = ("_pool", "losses", "margins", "slopes", "w")

    def __init__(self, w: FloatArray, margins: Any, losses: Any, slopes: Any, pool: Any = None):
        self.w = w
        self.margins = margins
        self.losses = losses
        self.slopes = slopes
        self._pool = pool

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool.give(self.margins, self.losses, self.slopes)


class Dual:
    """A weighting in the dual set, as densities, with the blocks of the projection that made it."""

    __slots__ = ("_pool", "block", "density", "n_blocks")

    def __init__(self, density: Any, block: Any = None, n_blocks: int = 0, pool: Any = None):
        self.density = density
        self.block = block
        self.n_blocks = n_blocks
        self._pool = pool

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool.give(self.density, self.block)


class Engine(ABC):
    """One problem's data and every operation on it that costs O(n).

    Attributes
    ----------
    n_samples, n_features, n_outputs : int
        Rows and columns of X, margins per sample.
    fit_intercept : bool
        Whether the last row of a parameter array holds intercepts.
    shape : tuple of int
        Shape of a parameter array: ``(p,)``, or ``(p, K)`` for K margins per sample, where p counts
        the features and the intercept.
    """

    n_samples: int
    n_features: int
    n_outputs: int
    fit_intercept: bool
    shape: tuple[int, ...]

    @abstractmethod
    def point(self, w: FloatArray) -> Point:
        """Margins, losses and derivatives at w: one pass over the data."""

    @abstractmethod
    def direction(self, delta: FloatArray) -> Any:
        """Change of the margins per unit step along `delta`."""

    @abstractmethod
    def moved(self, point: Point, delta: FloatArray, direction: Any, step: float) -> Point:
        """The point at ``point.w + step * delta``, without touching X."""

    @abstractmethod
    def risk(self, point: Point) -> float:
        """Spectral risk of the losses, sum_i sigma_i l_[i]."""

    @abstractmethod
    def shortfall(self, point: Point, dual: Dual) -> float:
        """Spectral risk minus lam . l, at least 0: the first bracket of the certificate."""

    @abstractmethod
    def uniform(self) -> Dual:
        """The weighting lam = omega, which every spectral risk admits."""

    @abstractmethod
    def worst_case(self, point: Point) -> Dual:
        """A weighting that attains the spectral risk at this point."""

    @abstractmethod
    def ascend(
        self,
        dual: Dual,
        point: Point,
        eta: float,
        previous: Point | None = None,
        theta: float = 0.0,
    ) -> Dual:
        """Project q + eta [(1 + theta) l(w) - theta l(w_prev)] onto the dual set."""

    @abstractmethod
    def expected(self, point: Point, dual: Dual) -> float:
        """lam . l(w)."""

    @abstractmethod
    def square_distance(self, dual: Dual, other: Dual) -> float:
        """sum_i omega_i (q_i - q'_i)^2."""

    @abstractmethod
    def gradient(self, point: Point, dual: Dual) -> FloatArray:
        """Gradient of lam . l(w) in w, shaped like w."""

    @abstractmethod
    def slope(self, point: Point, dual: Dual, direction: Any) -> float:
        """Derivative of lam . l(w) along a direction of margins."""

    @abstractmethod
    def hessian(
        self, point: Point, dual: Dual, eta: float = 0.0, n_rows: int | None = None
    ) -> FloatArray:
        """Hessian of lam . l(w), flattened to p x p.

        With eta > 0, the generalised Hessian of max_q [q . l(w) - |q - q_k|^2 / (2 eta)], where
        `dual` is the maximiser that :meth:`ascend` returned. An engine may estimate it from about
        `n_rows` rows, chosen in proportion to their curvature.
        """

    @abstractmethod
    def best_intercept(self, point: Point, dual: Dual) -> Point | None:
        """The same margins shifted so that lam . l is least in the intercept.

        None when there is no minimum: all weight may lie on one class.
        """

    @abstractmethod
    def loss_scale(self, point: Point) -> float:
        """Spread of the losses, the unit in which a dual step eta is measured."""

    @abstractmethod
    def mean_loss_at_zero(self) -> float:
        """Average loss where all margins are 0: the natural unit of the objective."""

    @abstractmethod
    def weights(self, dual: Dual) -> FloatArray:
        """lam as an array of length n, for the user."""

    @abstractmethod
    def dual_from_weights(self, lam: FloatArray) -> Dual:
        """The weighting nearest to a user's lam."""
