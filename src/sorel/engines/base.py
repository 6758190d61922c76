"""The contract of an engine: what a solver may ask of the data.

A solver sees scalars, parameter vectors, p x p matrices and the opaque handles of this page.
Everything of length n (margins, losses, the weights lam, orders) belongs to an engine, which knows
where X lives. A new home for the data is a new engine; no solver changes.

Weights are kept as densities q_i = lam_i / omega_i against the sample weights omega (1/n each when
there are none): q = 1 is the plain average whatever n is, and the dual set, the norm
sum_i omega_i (q_i - q'_i)^2 and the step eta mean the same for 200 rows and for 10 million.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from sorel.engines import intercepts
from sorel.engines.intercepts import InterceptStatistics
from sorel.problem.losses import Loss
from sorel.problem.penalties import Kernel
from sorel.problem.risks import Risk

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
        Threads that the user wants; see :func:`sorel._lib.threads.thread_count`.
    offset : float
        What was taken off the user's targets; the user's intercept is larger by as much.
    offset_error : float
        How much that subtraction may have rounded a target by.
    margin_offset : array or None
        Added to the margins X w of the rows, such as logarithms of exposures.

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
    margin_offset: FloatArray | None = None

    @property
    def n_outputs(self) -> int:
        """Margins per sample."""
        return self.loss.n_outputs(self.classes)

    def for_rows(self, rows: NDArray[np.int64]) -> Spec:
        """The same for some of the rows, whose weights are normalised anew."""
        weight, offset = self.sample_weight, self.margin_offset
        if weight is not None:
            weight = weight[rows] / weight[rows].sum()
        if offset is not None:
            offset = offset[rows]
        return dataclasses.replace(
            self, targets=self.targets[rows], sample_weight=weight, margin_offset=offset
        )


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
    >>> dual = engine.dual_step(engine.uniform(), engine.point(np.array([1.0])), 100.0)
    >>> engine.weights(dual).round(3)
    array([0.167, 0.167, 0.667])
    """

    __slots__ = ()


class Curvature(ABC):
    """The Hessian of lam . l(w) at one point; nothing is formed before it is asked for.

    With eta > 0 it is the generalised Hessian of max_q [q . l(w) - |q - q_k|^2 / (2 eta)], where
    the weighting is the maximiser that :meth:`Engine.dual_step` returned.

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

    @property
    def share(self) -> float:
        """See the attributes above; all rows."""
        return 1.0

    @property
    def rows(self) -> int | None:
        """See the attributes above; not known."""
        return None

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


class Stochastic(ABC):
    """Steps on single samples and on blocks of them, and the bounds that their lengths come from.

    An engine need not have all of it: :meth:`Engine.obstacle` names what is missing.
    """

    @abstractmethod
    def smoothness(self, dual: Dual | None = None) -> Smoothness:
        """Curvature bounds of lam . l(w), for one weighting or, without it, for the worst one."""

    @abstractmethod
    def jacobian_bound(self, value: float) -> float:
        """Bound on the squared operator norm of the Jacobian of l, in the norm of the densities.

        It holds wherever the mean loss is at most `value`: |phi'|^2 <= 2 L phi for a nonnegative
        loss of curvature L, which also covers losses that are not Lipschitz.
        """

    @abstractmethod
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

    @abstractmethod
    def minibatch_epoch(self, w: FloatArray, plan: Plan, rng: np.random.Generator) -> FloatArray:
        """Steps along the subgradient of each batch's own risk: biased, but no pass is needed.

        Batches are consecutive pieces of a shuffled list of the samples, in which a sample of twice
        the weight stands twice as often.
        """

    @abstractmethod
    def table(self, point: Point, dual: Dual) -> Any:
        """Tables of losses and weighted loss derivatives for the SAGA-like methods."""

    @abstractmethod
    def table_dual(self, table: Any) -> Dual:
        """The weighting that a table stands for."""

    @abstractmethod
    def prospect_epoch(
        self, table: Any, w: FloatArray, plan: Plan, nu: float, rng: np.random.Generator
    ) -> FloatArray:
        """Prospect's steps; the table is updated in place, its order repaired and never re-sorted.

        With nu = 0 the weights are sigma by rank. With nu > 0 they are the projection of
        1 + l / nu, found anew in O(n) at every step.
        """

    @abstractmethod
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

    @abstractmethod
    def batches(self, n_blocks: int, rng: np.random.Generator) -> Any:
        """The rows in so many blocks: see :class:`sorel.engines.batches.Batches`."""


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
    product: float = 0.0
    losses: float = 0.0


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

    def __init__(self, n_samples: int, n_features: int, spec: Spec) -> None:
        self.spec = spec
        self.n_samples, self.n_features = n_samples, n_features
        self.n_outputs, self.fit_intercept = spec.n_outputs, spec.fit_intercept
        rows = n_features + int(spec.fit_intercept)
        self.shape = (rows,) if self.n_outputs == 1 else (rows, self.n_outputs)
        self.size = rows * self.n_outputs

    # The data.

    def for_run(self, sequence: bool = False) -> Engine:
        """The same engine with working memory of its own, for one run in one thread.

        What is returned shares the data. An engine without working memory returns itself. Several
        runs may then use one problem at once, and none depends on an earlier one, unless it is for
        a `sequence` of similar problems: the runs of what is returned, and of the same with other
        risks, then hand on what they learn.
        """
        return self

    def working(self) -> AbstractContextManager[Any]:
        """A context for a run: whatever settings serve the engine, restored at the end."""
        return nullcontext()

    def with_risk(self, risk: Risk) -> Engine | None:
        """The same data under another risk, sharing all that does not depend on it.

        None, where an engine has no way to do so; one for the risk is then made from the data.
        """
        return None

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """Texts for "data", "targets" and "sample weights" that agree where these agree."""

    @property
    def data_type(self) -> np.dtype[Any]:
        """Type of the entries of X, whose rounding limits what a tolerance means."""
        return np.dtype(np.float64)

    @property
    def entries(self) -> int:
        """Entries of X that a product with it reads."""
        return self.n_samples * self.n_features

    def stored(self) -> tuple[Any, Any] | None:
        """X and the targets as arrays in memory, X dense or CSR; None where they are elsewhere."""
        return None

    @property
    def in_memory(self) -> bool:
        """Whether X is an array of this process.

        A product costs its operations then, and no reading or message besides; rows can be picked,
        systems of rows solved, and several classes have a preconditioner that spares the matrix.
        """
        return self.stored() is not None

    def column_scale(self) -> FloatArray | None:
        """The largest |x_ij| of each column, by which rounding errors are measured.

        Computed once. None, where that is not worth a pass: errors are then guessed.
        """
        return None

    # Points.

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
    def losses(self, point: Point) -> FloatArray:
        """The losses as an array of length n, for the user."""

    @abstractmethod
    def sizes(self, point: Point) -> Sizes:
        """Sizes of the losses; not finite where one of a sample with weight is not."""

    # Risks and weightings.

    @abstractmethod
    def risk(self, point: Point) -> float:
        """Risk of the losses: the largest lam . l in the dual set."""

    @abstractmethod
    def shortfall(self, point: Point, dual: Dual) -> float:
        """Risk minus lam . l, at least 0: the first bracket of the certificate."""

    @abstractmethod
    def uniform(self) -> Dual:
        """The weighting lam = omega, which every spectral risk admits."""

    @abstractmethod
    def worst_case(self, point: Point) -> Dual:
        """A weighting that attains the risk at this point."""

    @abstractmethod
    def dual_step(
        self,
        center: Dual,
        point: Point,
        eta: float,
        previous: Point | None = None,
        theta: float = 0.0,
    ) -> Dual:
        """Project q_k + eta [(1 + theta) l(w) - theta l(w_prev)] onto the dual set.

        That maximises q . l - |q - q_k|^2 / (2 eta). With eta = 0 it is the centre q_k itself, and
        with an infinite eta the worst case.
        """

    @abstractmethod
    def blend(self, dual: Dual, other: Dual, share: float) -> Dual:
        """(1 - share) q + share q'."""

    @abstractmethod
    def expected(self, point: Point, dual: Dual) -> float:
        """lam . l(w).

        Under a Deviation, here and in the derivatives, lam stands for lam - share * omega.
        """

    @abstractmethod
    def differences(
        self, dual: Dual, other: Dual, point: Point | None = None, other_point: Point | None = None
    ) -> Differences:
        """|q - q'|^2, and with two points -(q - q') . (l - l') and |l - l'|^2 as well."""

    @abstractmethod
    def weights(self, dual: Dual) -> FloatArray:
        """lam as an array of length n, for the user."""

    @abstractmethod
    def nearest_dual(self, lam: FloatArray) -> tuple[Dual, float]:
        """The weighting nearest to a user's lam, of length n, and sum_i |lam_i - its weights|."""

    # Derivatives.

    @abstractmethod
    def gradient(self, point: Point, dual: Dual) -> FloatArray:
        """Gradient of lam . l(w) in w, shaped like w."""

    @abstractmethod
    def slope(self, point: Point, dual: Dual, direction: Any) -> float:
        """Derivative of lam . l(w) along a direction of margins."""

    @abstractmethod
    def curvature(
        self, point: Point, dual: Dual, eta: float = 0.0, damping: float = 0.0
    ) -> Curvature:
        """Hessian of lam . l(w), or of its maximum around a centre.

        `damping` from 0 to 1 replaces the curvature of the losses by that of parabolas above them.
        """

    # The intercept.

    @abstractmethod
    def intercept_statistics(self, point: Point, dual: Dual, shift: Any) -> InterceptStatistics:
        """Derivatives of lam . l in the intercepts, at margins moved by `shift`.

        A number, or one for each margin of a sample. Asked of problems with an intercept.
        """

    def best_intercept(self, point: Point, dual: Dual) -> Point | None:
        """The same margins shifted so that lam . l is least in the intercept.

        None when there is no minimum: all weight may lie on one class.
        """
        statistics = partial(self.intercept_statistics, point, dual)
        shift = intercepts.best_shift(statistics, self.n_outputs)
        if shift is None:
            return None
        delta = np.zeros(self.shape)
        delta[-1] = shift
        return self.moved(point, delta, self.direction(delta), 1.0)

    def rounding(self, point: Point, dual: Dual) -> RoundingFacts:
        """What the rounding errors of a certificate at a point and a weighting are made of.

        The defaults claim no more than that weights are as good as the sums that they enter, which
        is enough for losses that are bounded below and have bounded curvature.
        """
        loss = self.spec.loss
        if loss.lower_bound > -np.inf and loss.curvature_bound < np.inf:
            return RoundingFacts()
        raise UnsupportedOperationError(
            f"{type(self).__name__} has no operation 'rounding', which the certificate needs for a "
            "loss without bounds on its value and its curvature"
        )

    # Optional operations. An engine that lacks one says so, and the solvers that need it refuse.

    def obstacle(self, operation: str) -> str | None:
        """Why an optional operation is not to be had, or None if it is.

        One of those below, of :class:`Stochastic`, "deviations", which are weights that may be
        negative, or "margin_offset", which its points then add to the margins.
        """
        name = operation if hasattr(Engine, operation) else "stochastic"
        extra = operation in ("deviations", "margin_offset")
        if not extra and getattr(type(self), name) is not getattr(Engine, name):
            return None
        return f"needs the operation {operation!r}, which {type(self).__name__} does not offer"

    def _lacking(self, operation: str) -> NoReturn:
        raise UnsupportedOperationError(
            f"{type(self).__name__} has no operation {operation!r}; use a solver of full passes, "
            "such as 'newton', 'lbfgs' or 'subgradient'"
        )

    def on_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        """The same risk and loss on some rows, which are copied into memory.

        Parameters
        ----------
        rows : array
            Their indices, in ascending order. Their sample weights are normalised anew.

        Returns
        -------
        Engine or None
            None where the rows miss a class: a model for those left may have no finite intercept.
        """
        self._lacking("on_rows")

    def columns(self, chosen: NDArray[np.intp]) -> Engine:
        """The same problem with some of the columns alone, which are copied.

        Its :meth:`curvature` takes the points and weightings of this engine as well as its own, so
        that a part of a Hessian costs no more than its columns.
        """
        self._lacking("columns")

    def splitting(self) -> Splitting:
        """Vectors of margins and the proximal map of the risk in them."""
        self._lacking("splitting")

    def stochastic(self) -> Stochastic:
        """Steps on single samples, for homes of the data that reach a row cheaply."""
        self._lacking("stochastic")
