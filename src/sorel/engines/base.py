"""What a solver may ask of the data.

A solver sees scalars, parameter vectors, p x p matrices and the opaque handles of this page.
Everything of length n (margins, losses, the weights lam, orders) belongs to an engine, which knows
where X lives. A new home for the data is a new engine; no solver changes.

Weights are kept as densities q_i = lam_i / omega_i against the sample weights omega (1/n each when
there are none): q = 1 is the plain average whatever n is, and the dual set, the norm
sum_i omega_i (q_i - q'_i)^2 and the step eta mean the same for 200 rows and for 10 million.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from sorel.losses import Loss
from sorel.penalties import Kernel
from sorel.risks import Risk

FloatArray = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    """What an engine is told besides X: one problem's targets, loss, risk and weights.

    Attributes
    ----------
    targets : array
        What :meth:`sorel.losses.Loss.encode` made of y, or whatever stands for it where the data
        live.
    loss, risk : Loss, Risk
        What is measured, and how it is summed up.
    classes : array or None
        The labels of a classification problem, sorted.
    fit_intercept : bool
        Whether the last row of a parameter array holds intercepts, which no penalty touches.
    sample_weight : array or None
        omega, nonnegative, with sum 1; None means 1/n each.
    n_jobs : int or None
        Threads that the user wants; see :func:`sorel._threads.thread_count`.
    offset : float
        What was taken off the user's targets; the user's intercept is larger by as much.
    offset_error : float
        How much that subtraction may have rounded a target by.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.engines import DenseEngine, Spec
    >>> from sorel.losses import Squared
    >>> engine = DenseEngine(np.ones((3, 1)), Spec(np.arange(3.0), Squared(), CVaR(0.5)))
    >>> engine.losses(engine.point(np.zeros(1)))
    array([0. , 0.5, 2. ])
    """

    targets: Any
    loss: Loss
    risk: Risk
    classes: NDArray[Any] | None = None
    fit_intercept: bool = False
    sample_weight: FloatArray | None = None
    n_jobs: int | None = None
    offset: float = 0.0
    offset_error: float = 0.0

    @property
    def n_outputs(self) -> int:
        """Margins per sample."""
        return self.loss.n_outputs(self.classes)

    def for_rows(self, rows: NDArray[np.int64]) -> Spec:
        """The same for some of the rows, whose weights are normalised anew."""
        weight = self.sample_weight
        if weight is not None:
            weight = weight[rows] / weight[rows].sum()
        return dataclasses.replace(self, targets=self.targets[rows], sample_weight=weight)


class Point:
    """One parameter vector `w`, and whatever the engine that made it knows about it.

    Solvers use `w` alone. An engine derives a class of its own with what it keeps there.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [4.0]], [1.0, 2.0, 5.0], risk="cvar:0.5")
    >>> engine = problem.engine
    >>> engine.point(np.array([1.0])).w
    array([1.])
    """

    __slots__ = ("w",)

    def __init__(self, w: FloatArray) -> None:
        self.w = w


class Dual:
    """A weighting of the samples in the dual set of the risk.

    Solvers only hand it back to the engine that made it, which derives a class of its own.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [4.0]], [1.0, 2.0, 5.0], risk="cvar:0.5")
    >>> engine = problem.engine
    >>> dual = engine.ascend(engine.uniform(), engine.point(np.array([1.0])), 100.0)
    >>> engine.weights(dual).round(3)
    array([0.167, 0.167, 0.667])
    """

    __slots__ = ()


class Turned(NamedTuple):
    """The same problem in coordinates of the space that the rows of X span.

    Under L2 the solution lies in that space, and products with the square matrix that takes the
    place of X cost less where there are fewer rows than columns.

    Attributes
    ----------
    engine : Engine
        The problem with a triangular factor of X X^T in the place of X. Its weightings are those of
        the engine that made it.
    into, back : callable
        Parameters in these coordinates, of the part of w that margins depend on, and the way back.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> problem = sorel.Problem([[3.0, 0.0, 4.0], [1.0, 1.0, 1.0]], [1.0, 2.0])
    >>> turned = problem.engine.turned()
    >>> turned.engine.n_features, turned.into(np.array([0.6, 0.0, 0.8])).round(6) + 0.0
    (2, array([1., 0.]))
    """

    engine: Engine
    into: Callable[[FloatArray], FloatArray]
    back: Callable[[FloatArray], FloatArray]


class Curvature(ABC):
    """The matrix of :meth:`Engine.hessian` at one point, held for many products with it.

    Attributes
    ----------
    share : float
        Passes that one product costs: the part of the rows that have a say in it.
    rows : int or None
        How many these are, where :meth:`solve` is to be had.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [4.0]], [1.0, 2.0, 5.0], risk="cvar:0.5")
    >>> engine = problem.engine
    >>> point, dual = engine.point(np.array([1.0])), engine.uniform()
    >>> curvature = engine.curvature(point, dual, 0.0)
    >>> curvature.product(np.array([1.0]))
    array([7.])
    """

    share: float = 1.0
    rows: int | None = None

    @abstractmethod
    def product(self, v: FloatArray) -> FloatArray:
        """The matrix times v, both shaped like w, without forming it."""

    @abstractmethod
    def diagonal(self) -> FloatArray:
        """An upper estimate of its diagonal, shaped like w: a preconditioner."""

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        """The matrix itself, flattened to p x p; here from products with the unit vectors.

        An engine may estimate it from about `n_rows` rows, chosen in proportion to their curvature.
        """
        shape = self.diagonal().shape
        size = int(np.prod(shape))
        return np.array([self.product(unit.reshape(shape)).ravel() for unit in np.eye(size)])

    def preconditioner(self, modulus: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Solves with an approximation to the matrix plus diag(modulus): here with its diagonal."""
        diagonal = self.diagonal() + modulus
        # A flat intercept has no curvature to divide by.
        diagonal[diagonal <= 0.0] = 1.0
        return lambda residual: residual / diagonal

    def solve(self, gradient: FloatArray, l2: float) -> FloatArray:
        """Minus the inverse of the matrix, with l2 > 0 added for the coefficients, times a vector.

        From as many equations as there are `rows`; only where these are known. Raises LinAlgError
        where the intercept has no curvature.
        """
        raise UnsupportedOperationError(f"{type(self).__name__} does not solve by its rows")

    def factor(self) -> FloatArray | None:
        """M of shape (rows, p) with M^T M the matrix; None where the rows are not at hand."""
        return None


class Splitting(ABC):
    """Vectors of margins, for methods that keep z = X w apart from w.

    Vectors are opaque: one number for each sample, with the inner product sum_i omega_i a_i b_i.
    """

    @abstractmethod
    def vector(self, w: FloatArray) -> Any:
        """X w, with the intercept."""

    @abstractmethod
    def slopes(self, point: Point, dual: Dual) -> Any:
        """q_i phi'_i: the multipliers of z = X w that belong to a point and a weighting."""

    @abstractmethod
    def combine(self, *terms: tuple[float, Any]) -> Any:
        """The sum of factors times vectors."""

    @abstractmethod
    def dot(self, a: Any, b: Any) -> float:
        """sum_i omega_i a_i b_i."""

    @abstractmethod
    def adjoint(self, s: Any) -> FloatArray:
        """X^T (omega s), shaped like w."""

    @abstractmethod
    def gram(self) -> FloatArray:
        """X^T diag(omega) X."""

    @abstractmethod
    def prox(self, v: Any, rho: float) -> Any:
        """argmin_z of the spectral risk of the losses at z plus rho/2 |z - v|^2."""

    @abstractmethod
    def weighting(self) -> Dual:
        """The weighting that attains the risk at the z of the last :meth:`prox`."""


class UnsupportedOperationError(NotImplementedError):
    """An engine lacks an optional operation; the message says which."""


class Plan(NamedTuple):
    """How a stochastic epoch steps.

    A step is w <- w - step * direction, followed by the proximal map of
    g + ||. - center||^2 / (2 tau); or, with ``proximal=False``, the gradient of that function joins
    the direction, which needs a smooth g.

    Attributes
    ----------
    step : float
        Step size alpha.
    steps : int
        Number of steps.
    penalty : Kernel
        The penalty g, as :meth:`sorel.penalties.Penalty.kernel` gives it.
    batch : int
        Samples per step.
    proximal : bool
        Whether the penalty enters by its proximal map.
    center, tau : array or None, float
        Centre and radius of the proximal term; no centre means no term.
    sampling : {"uniform", "importance"}
        Samples are drawn independently and uniformly, or with probabilities
        p_i = 0.95 lam_i |x_i|^2 / (sum) + 0.05 / n, systematically and shuffled.
    burn_in : int
        Steps whose iterates are left out of the `total` of an epoch.
    """

    step: float
    steps: int
    penalty: Kernel
    batch: int = 1
    proximal: bool = True
    center: FloatArray | None = None
    tau: float = np.inf
    sampling: str = "uniform"
    burn_in: int = 0


class Smoothness(NamedTuple):
    """Bounds on the curvature of lam . l(w), with L_i that of one loss.

    Attributes
    ----------
    average : float
        sum_i lam_i L_i, a bound for the weighted sum.
    component : float
        max_i n lam_i L_i, a bound for each term under uniform sampling.
    largest : float
        max_i L_i.
    """

    average: float
    component: float
    largest: float


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


class Settled(NamedTuple):
    """What is known of the augmented Lagrangian at a point, for a centre q_k and a step eta.

    Attributes
    ----------
    dual : Dual
        The maximiser q, or the centre itself with eta = 0.
    expected, distance : float
        lam . l of that weighting, and |q - q_k|^2.
    gradient : array
        Gradient of lam . l.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> engine = sorel.Problem([[1.0], [2.0], [4.0]], [1.0, 2.0, 5.0]).engine
    >>> settled = engine.settle(engine.point(np.array([1.0])), engine.uniform(), 0.0)
    >>> settled.distance, settled.gradient.round(3)
    (0.0, array([-1.333]))
    """

    dual: Dual
    expected: float
    distance: float
    gradient: FloatArray


class Sizes(NamedTuple):
    """How large the losses at a point are, under the sample weights.

    Attributes
    ----------
    mean, absolute, deviation : float
        The mean of l_i, of |l_i|, and of |l_i - mean|.
    """

    mean: float
    absolute: float
    deviation: float


class Differences(NamedTuple):
    """Differences of two weightings and two points, in the norm of the densities.

    Attributes
    ----------
    weights, product, losses : float
        |q - q'|^2, -(q - q') . (l - l') and |l - l'|^2.
    """

    weights: float
    product: float
    losses: float


class RoundingFacts(NamedTuple):
    """What the rounding errors of a certificate are made of.

    Attributes
    ----------
    mass : float
        sum_i lam_i: 1, but for rounding.
    weights : float
        Error of lam . l because lam is in the dual set up to rounding only.
    losses, slopes, curvatures : float
        sum_i lam_i |l_i|, sum_i lam_i |phi'_i| and sum_i lam_i phi''_i. Infinite where the loss
        is bounded below and has bounded curvature, which say as much.
    largest_slope, largest_curvature : float
        The largest |phi'| and phi'' of a sample with weight; infinite where they are not known.
    """

    mass: float = 1.0
    weights: float = 0.0
    losses: float = np.inf
    slopes: float = np.inf
    curvatures: float = np.inf
    largest_slope: float = np.inf
    largest_curvature: float = np.inf


class Engine(ABC):
    """One problem's data and every operation on it that costs O(n).

    Parameters
    ----------
    n_samples, n_features : int
        Rows and columns of X.
    spec : Spec
        Targets, loss, risk, weights.

    Attributes
    ----------
    n_outputs : int
        Margins per sample.
    fit_intercept : bool
        Whether the last row of a parameter array holds intercepts.
    shape : tuple of int
        Shape of a parameter array: ``(p,)``, or ``(p, K)`` for K margins per sample, where p counts
        the features and the intercept.
    size : int
        Number of parameters.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [4.0]], [1.0, 2.0, 5.0], risk="cvar:0.5")
    >>> engine = problem.engine
    >>> point, dual = engine.point(np.array([1.0])), engine.uniform()
    >>> engine.risk(point), engine.expected(point, dual)
    (0.3333333333333333, 0.16666666666666666)
    >>> engine.gradient(point, dual).round(3)
    array([-1.333])
    """

    # Whether the engine serves a Deviation, whose weights may be negative.
    serves_deviations: ClassVar[bool] = False

    # Whether products with the Hessian of several classes have a preconditioner that spares the
    # matrix: there are few of them then.
    preconditions_classes: ClassVar[bool] = False
    # Whether a product with the Hessian costs its operations, and not a round trip or a reading of
    # the data besides: then many of them may replace a matrix.
    products_are_cheap: ClassVar[bool] = False

    # Whether a Curvature of one margin per sample can solve by its rows, where these are few.
    solves_by_rows: bool = False

    def __init__(self, n_samples: int, n_features: int, spec: Spec) -> None:
        self.spec = spec
        self.n_samples, self.n_features = n_samples, n_features
        self.n_outputs, self.fit_intercept = spec.n_outputs, spec.fit_intercept
        rows = n_features + int(spec.fit_intercept)
        self.shape = (rows,) if self.n_outputs == 1 else (rows, self.n_outputs)
        self.size = rows * self.n_outputs

    def for_run(self, sequence: bool = False) -> Engine:
        """The same engine with working memory of its own, for one run in one thread.

        With `sequence` it is for similar problems one after another: the runs of what is returned,
        and of the same with other risks, hand on what they learn. What is returned shares the data. An engine without working memory returns itself. Several
        runs may then use one problem at once, and none depends on an earlier one.
        """
        return self.in_sequence() if sequence else self

    def in_sequence(self) -> Engine:
        """The same engine for similar problems one after another, in one thread.

        The runs of what is returned, and of the same with other risks, may hand on what they learn.
        """
        return self

    def with_risk(self, risk: Risk) -> Engine | None:
        """The same data under another risk, sharing all that does not depend on it.

        None, where an engine has no way to do so; one for the risk is then made from the data.
        """
        return None

    def release(self) -> None:  # noqa: B027 (an engine that keeps nothing has nothing to do)
        """Hand back working memory: the run is over."""

    def working(self) -> AbstractContextManager[Any]:
        """A context for a run: whatever settings serve the engine, restored at the end."""
        return nullcontext()

    @property
    def data_type(self) -> np.dtype[Any]:
        """Type of the numbers in X, whose rounding limits what a tolerance means."""
        return np.dtype(np.float64)

    @property
    def entries(self) -> int:
        """Numbers in X that a product with it reads."""
        return self.n_samples * self.n_features

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """Texts for "data", "targets" and "sample weights" that agree where these agree."""

    @abstractmethod
    def point(self, w: FloatArray) -> Point:
        """Margins, losses and derivatives at w: one pass over the data."""

    def is_finite(self, point: Point) -> bool:
        """Whether all losses are finite; only where the loss can overflow is that in doubt."""
        return True

    @abstractmethod
    def direction(self, delta: FloatArray) -> Any:
        """Change of the margins per unit step along `delta`."""

    @abstractmethod
    def moved(self, point: Point, delta: FloatArray, direction: Any, step: float) -> Point:
        """The point at ``point.w + step * delta``, without touching X."""

    def tried(
        self,
        point: Point,
        delta: FloatArray,
        direction: Any,
        step: float,
        center: Dual,
        eta: float,
    ) -> tuple[Point, Dual, float]:
        """A trial of a line search: :meth:`moved`, and :meth:`response` and :meth:`slope` there.

        The slope is infinite where losses overflow.
        """
        moved = self.moved(point, delta, direction, step)
        # Only losses without a bound on their curvature grow fast enough, and a look may be costly.
        if not (self.spec.loss.curvature_bound < np.inf or self.is_finite(moved)):
            return moved, center, np.inf
        dual = self.response(center, moved, eta)
        return moved, dual, self.slope(moved, dual, direction)

    def response(self, center: Dual, point: Point, eta: float) -> Dual:
        """The weights of the augmented Lagrangian at a point.

        With eta = 0 they stay at the centre, and with an infinite eta they are those of the risk.
        """
        if eta == np.inf:
            return self.worst_case(point)
        return self.ascend(center, point, eta) if eta > 0.0 else center

    def settle(self, point: Point, center: Dual, eta: float, dual: Dual | None = None) -> Settled:
        """The augmented Lagrangian at a point, in one call; `dual` is its maximiser where known."""
        if dual is None:
            dual = self.response(center, point, eta)
        distance = self.square_distance(dual, center) if eta > 0.0 else 0.0
        return Settled(dual, self.expected(point, dual), distance, self.gradient(point, dual))

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

    def as_center(self, dual: Dual) -> Dual:
        """The same weighting, of which only further steps are wanted and no Hessian any more.

        An engine may then drop what it noted of the projection. The handle given is spent.
        """
        return dual

    @abstractmethod
    def expected(self, point: Point, dual: Dual) -> float:
        """lam . l(w).

        Under a Deviation, here and in the derivatives, lam stands for lam - share * omega.
        """

    @abstractmethod
    def square_distance(self, dual: Dual, other: Dual) -> float:
        """sum_i omega_i (q_i - q'_i)^2."""

    @abstractmethod
    def secant(
        self, dual: Dual, other: Dual, point: Point, other_point: Point
    ) -> tuple[float, float]:
        """|q - q'|^2 and -(q - q') . (l - l'), in the norm of the densities."""

    @abstractmethod
    def blend(self, dual: Dual, other: Dual, share: float) -> Dual:
        """(1 - share) q + share q'."""

    @abstractmethod
    def gradient(self, point: Point, dual: Dual) -> FloatArray:
        """Gradient of lam . l(w) in w, shaped like w."""

    @abstractmethod
    def slope(self, point: Point, dual: Dual, direction: Any) -> float:
        """Derivative of lam . l(w) along a direction of margins."""

    @abstractmethod
    def hessian(
        self,
        point: Point,
        dual: Dual,
        eta: float = 0.0,
        n_rows: int | None = None,
        caution: float = 0.0,
    ) -> FloatArray:
        """Hessian of lam . l(w), flattened to p x p.

        With eta > 0, the generalised Hessian of max_q [q . l(w) - |q - q_k|^2 / (2 eta)], where
        `dual` is the maximiser that :meth:`ascend` returned. `caution` from 0 to 1 replaces the
        curvature of the losses by that of parabolas above them. An engine may estimate the matrix
        from about `n_rows` rows, chosen in proportion to their curvature.
        """

    @abstractmethod
    def curvature(
        self, point: Point, dual: Dual, eta: float = 0.0, caution: float = 0.0
    ) -> Curvature:
        """That matrix for products with it: never formed, and prepared once for all of them."""

    @abstractmethod
    def best_intercept(self, point: Point, dual: Dual) -> Point | None:
        """The same margins shifted so that lam . l is least in the intercept.

        None when there is no minimum: all weight may lie on one class.
        """

    def intercept_slack(self, point: Point, dual: Dual, residual: float) -> float:
        """How far lam . l may still fall in the intercepts, whose derivative is below `residual`.

        Asked at a point of :meth:`best_intercept`, where the residual is rounding. Here from the
        curvature; an engine that can bracket the minimum knows better.
        """
        curvature = float(np.min(self.curvature(point, dual).diagonal()[self.n_features]))
        if curvature > 0.0:
            return 2.0 * residual**2 / curvature
        return 0.0 if residual == 0.0 else np.inf

    def intercept_spread(self, point: Point, dual: Dual, residual: float) -> float:
        """By how much slopes may still move in the intercepts of several classes, in all.

        sum_i lam_i |change of phi'_i|_1, for a derivative r below `residual`. Probabilities p of a
        sample make up its curvature diag(p) - p p^T, so that a move t of the intercepts changes its
        slopes by at most sum_kj p_k p_j |t_k - t_j|. All samples together are a network of
        conductances a_kj = sum_i lam_i p_ik p_ij: in it the currents r make potentials t with
        |t_k - t_j| <= R_kj |r|_1 / 2, and the resistances have sum_{k<j} a_kj R_kj = K - 1. The sum
        is (K - 1) |r|_1 at most, however little some intercepts bend and however far they move.
        """
        classes = self.n_outputs
        return residual if classes == 1 else (classes - 1) * math.sqrt(classes) * residual

    def mass(self, dual: Dual) -> float:
        """sum_i lam_i: 1, but for rounding errors where the projection makes some."""
        return 1.0

    def weights_rounding(self, point: Point) -> float:
        """Error of lam . l because lam is in the dual set up to rounding only.

        Beside that of its sum. Here 0: the weights are as good as the sums that they enter.
        """
        return 0.0

    def largest_slope(self, point: Point, error: float) -> float:
        """The largest |phi'| of a sample with weight, for margins that are off by an error.

        Infinity, the default, claims nothing. Asked of losses of one margin whose curvature has no
        bound.
        """
        return np.inf

    def stored(self) -> tuple[Any, Any] | None:
        """X and the targets as arrays in memory, X dense or CSR; None where they are elsewhere."""
        return None

    def column_scale(self) -> FloatArray | None:
        """The largest |x_ij| of each column, by which rounding errors are measured.

        Computed once. None, where that is not worth a pass: errors are then guessed.
        """
        return None

    def absolute_sums(self, point: Point, dual: Dual) -> tuple[float, float, float]:
        """sum_i lam_i |l_i|, sum_i lam_i |phi'_i| and sum_i lam_i phi''_i, of one margin each.

        Only for losses that are not bounded below, or have no bound on their curvature.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} has no operation 'absolute_sums', which the certificate needs "
            "for a loss without bounds on its value and its curvature"
        )

    @abstractmethod
    def loss_scale(self, point: Point) -> float:
        """Mean absolute deviation of the losses from their mean, under the sample weights."""

    @abstractmethod
    def mean_size(self, point: Point) -> float:
        """Average size |l_i| of the losses, under the sample weights."""

    def mean_loss_at_zero(self) -> float:
        """That size where all margins are 0."""
        return self.mean_size(self.point(np.zeros(self.shape)))

    @abstractmethod
    def losses(self, point: Point) -> FloatArray:
        """The losses as an array of length n, for the user."""

    @abstractmethod
    def weights(self, dual: Dual) -> FloatArray:
        """lam as an array of length n, for the user."""

    @abstractmethod
    def nearest_dual(self, lam: FloatArray) -> tuple[Dual, float]:
        """The weighting nearest to a user's lam, of length n, and sum_i |lam_i - its weights|."""

    @abstractmethod
    def effective_share(self) -> float:
        """Rows that carry the risk, as a share of all: (sum sigma)^2 / (n sum sigma^2)."""

    def largest_jump(self) -> float:
        """Largest difference between weights of neighbouring ranks, relative to the largest weight.

        1 where it is not known.
        """
        return 1.0

    # Names that the operations above are to have.

    @property
    def in_memory(self) -> bool:
        """Whether X is an array of this process.

        A product costs its operations then, and no reading or message besides; rows can be picked,
        and systems of rows solved.
        """
        return self.stored() is not None

    def sizes(self, point: Point) -> Sizes:
        """Sizes of the losses under the sample weights."""
        mean = self.expected(point, self.uniform())
        return Sizes(mean, self.mean_size(point), self.loss_scale(point))

    def dual_step(
        self,
        center: Dual,
        point: Point,
        eta: float,
        previous: Point | None = None,
        theta: float = 0.0,
    ) -> Dual:
        """The maximiser of q . [(1 + theta) l(w) - theta l(w_prev)] - |q - q_k|^2 / (2 eta).

        With eta = 0 that is the centre q_k itself, and with an infinite eta the worst case.
        """
        if eta == np.inf:
            return self.worst_case(point)
        return self.ascend(center, point, eta, previous, theta) if eta > 0.0 else center

    def differences(
        self,
        dual: Dual,
        other: Dual,
        point: Point | None = None,
        other_point: Point | None = None,
    ) -> Differences:
        """|q - q'|^2, and with two points -(q - q') . (l - l') and |l - l'|^2 as well."""
        if point is None or other_point is None:
            return Differences(self.square_distance(dual, other), 0.0, 0.0)
        square, product = self.secant(dual, other, point, other_point)
        losses = self.loss_distance(point, other_point) if self.offers("loss_distance") else np.inf
        return Differences(square, product, losses)

    def rounding(self, point: Point, dual: Dual) -> RoundingFacts:
        """What the rounding errors of a certificate at a point and a weighting are made of."""
        loss = self.spec.loss
        sums = (np.inf, np.inf, np.inf)
        if not (loss.lower_bound > -np.inf and loss.curvature_bound < np.inf):
            sums = self.absolute_sums(point, dual)
        largest = self.largest_slope(point, 0.0) if self.n_outputs == 1 else np.inf
        more = self.largest_slope(point, 1.0) - largest if largest < np.inf else np.inf
        return RoundingFacts(self.mass(dual), self.weights_rounding(point), *sums, largest, more)

    # Optional operations. An engine that lacks one says so, and the solvers that need it refuse.

    def obstacle(self, operation: str) -> str | None:
        """Why the optional operation of that name is not to be had, or None if it is."""
        if getattr(type(self), operation) is getattr(Engine, operation):
            return f"needs the operation {operation!r}, which {type(self).__name__} does not offer"
        return None

    def offers(self, operation: str) -> bool:
        """Whether the optional operation of that name is there."""
        return self.obstacle(operation) is None

    def _lacking(self, operation: str) -> NoReturn:
        raise UnsupportedOperationError(
            f"{type(self).__name__} has no operation {operation!r}; use a solver of full passes, "
            "such as 'newton', 'lbfgs' or 'subgradient'"
        )

    def sample(self, n_rows: int, rng: np.random.Generator) -> Engine | None:
        """The same problem on `n_rows` random rows, in memory; None if they miss a class."""
        self._lacking("sample")

    def on_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        """The same risk and loss on some rows, which are copied into memory.

        Parameters
        ----------
        rows : array
            Their numbers, in ascending order. Their sample weights are normalised anew.

        Returns
        -------
        Engine or None
            None where an engine has no way to do so, or the rows miss a class: a model for those
            left may have no finite intercept.
        """
        return None

    def turned(self) -> Turned | None:
        """The same problem in the space of the rows; None where that is not to be had.

        Takes the inner products of all rows, so there should not be many, and these should be
        far from dependent.
        """
        return None

    def columns(self, chosen: NDArray[np.intp]) -> Engine:
        """The same problem with some of the columns alone, which are copied.

        Its :meth:`hessian` takes the points and weightings of this engine as well as its own, so
        that a part of a Hessian costs no more than its columns.
        """
        self._lacking("columns")

    def descend(
        self, point: Point, dual: Dual, w: FloatArray, penalty: Kernel, sweeps: int, goal: float
    ) -> Descent:
        """Coordinate descent on lam . l + g for the squared loss and a separable penalty.

        Parameters
        ----------
        point, dual
            Where it starts, and the weighting. They may belong to the engine of which this one has
            some of the :meth:`columns`.
        w : array
            The start again, shaped like the parameters of this engine.
        penalty : Kernel
            The penalty g, as :meth:`sorel.penalties.Penalty.kernel` gives it.
        sweeps : int
            Sweeps over the columns, at most; fewer where so many would not reach the goal.
        goal : float
            A duality gap in these columns that is small enough.
        """
        self._lacking("descend")

    def corrected(self, dual: Dual, change: Any, center: Dual) -> Dual:
        """q less a direction of margins, which loses its mean first, drawn into the dual set.

        It is drawn towards `center`, a weighting inside the set: the uniform one, or any one if the
        risk has two levels.
        """
        self._lacking("corrected")

    def loss_distance(self, point: Point, other: Point) -> float:
        """sum_i omega_i (l_i - l'_i)^2."""
        self._lacking("loss_distance")

    def splitting(self) -> Splitting:
        """Vectors of margins and the proximal map of the risk in them."""
        self._lacking("splitting")

    def batches(self, n_blocks: int, rng: np.random.Generator) -> Any:
        """The rows in so many blocks: see :class:`sorel.engines.batches.Batches`."""
        self._lacking("batches")

    # Bounds that hold for all w, of losses that have them.

    def smoothness(self, dual: Dual | None = None) -> Smoothness:
        """Curvature bounds of lam . l(w), for one weighting or, without it, for the worst one."""
        self._lacking("smoothness")

    def jacobian_bound(self, value: float) -> float:
        """Bound on the squared operator norm of the Jacobian of l, in the norm of the densities.

        It holds wherever the mean loss is at most `value`: |phi'|^2 <= 2 L phi for a nonnegative
        loss of curvature L, which also covers losses that are not Lipschitz.
        """
        self._lacking("jacobian_bound")

    # Steps on single samples, for homes of the data that reach a row cheaply.

    def epoch(
        self,
        point: Point,
        dual: Dual,
        gradient: FloatArray,
        plan: Plan,
        rng: np.random.Generator,
        start: FloatArray | None = None,
        total: FloatArray | None = None,
    ) -> FloatArray:
        """Variance-reduced steps for a fixed weighting; the last iterate.

        The direction of a step is the batch mean of
        (omega_i q_i / p_i) (phi'_i(x_i . w) - phi'_i(snapshot)) x_i, plus the snapshot's gradient.

        Parameters
        ----------
        point, dual, gradient
            The snapshot, the weighting, and the gradient of lam . l at the snapshot.
        plan : Plan
            Steps to take.
        rng : Generator
            Source of the samples, all drawn before the first step.
        start : array, optional
            First iterate, where it is not the snapshot.
        total : array, optional
            Every iterate after the plan's `burn_in` is added to it, for averages.
        """
        self._lacking("epoch")

    def minibatch_epoch(self, w: FloatArray, plan: Plan, rng: np.random.Generator) -> FloatArray:
        """Steps along the subgradient of each batch's own risk: biased, but no pass is needed.

        Batches are consecutive pieces of a shuffled list of the samples, in which a sample of twice
        the weight stands twice as often.
        """
        self._lacking("minibatch_epoch")

    def table(self, point: Point, dual: Dual) -> Any:
        """Tables of losses and weighted loss derivatives for the SAGA-like methods."""
        self._lacking("table")

    def table_dual(self, table: Any) -> Dual:
        """The weighting that a table stands for."""
        self._lacking("table_dual")

    def prospect_epoch(
        self, table: Any, w: FloatArray, plan: Plan, nu: float, rng: np.random.Generator
    ) -> FloatArray:
        """Prospect's steps; the table is updated in place, its order repaired and never re-sorted.

        With nu = 0 the weights are sigma by rank. With nu > 0 they are the projection of
        1 + l / nu, found anew in O(n) at every step.
        """
        self._lacking("prospect_epoch")

    def saddle_epoch(
        self,
        table: Any,
        w: FloatArray,
        plan: Plan,
        dual_step: float,
        nu: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        """SAGA steps on the saddle point; the table is updated in place, O(n) at every step."""
        self._lacking("saddle_epoch")
