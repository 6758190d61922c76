"""The problem and the proof of how well it is solved.

    min_w F(w) = sum_i sigma_i l_[i](w) + g(w) = min_w max_{lam in P(sigma)} lam . l(w) + g(w)

For a weighting lam and v = -X^T (lam phi'), the gap

    [ sum_i sigma_i l_[i](w) - lam . l(w) ] + [ g(w) + g*(v) - v . w ]  >=  F(w) - F*

is a sum of two brackets, neither of them negative: order, and Fenchel-Young.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from sorel._copies import shallow_copy
from sorel._inputs import check_meaning, check_numbers
from sorel._tensors import is_on_device, is_tensor, to_numpy
from sorel._threads import thread_count
from sorel.conjugate import Solution, minimize_model
from sorel.costs import FEW_PARAMETERS, StepCosts, carrying_rows, classes_by_products
from sorel.engines import trusting_engine
from sorel.engines.base import Dual, Engine, FloatArray, Point, Spec, Turned
from sorel.engines.csr import checked_csr
from sorel.fingerprints import describe, fingerprint_array
from sorel.losses import Loss, Squared, SquaredHinge, parse_loss
from sorel.penalties import L2, Penalty, check_penalty, sample_values
from sorel.quadratic import minimize_quadratic
from sorel.risks import (
    CVaR,
    Deviation,
    Max,
    Mean,
    Mixture,
    Risk,
    normalised_sample_weight,
    parse_risk,
)
from sorel.rounding import CertificateError, Path, Rounding
from sorel.rows import RowSource, open_data
from sorel.working_sets import (
    Part,
    TooManyColumnsError,
    WorkingSets,
    can_rest,
)

# A margin whose exponential overflows.
_BEYOND_EXPONENTIALS = 800.0

# Up to this many parameters a certificate is refined through a p x p Hessian. Beyond, conjugate
# gradients take its place where the penalty is quadratic, and after the second number nothing does
# where it is not.
_FEW_PARAMETERS = 1000
REFINABLE_SIZE = 5000

# Rows on disk that take no more than this are held in memory all the same.
WORTH_STREAMING = 256 << 20

# Newton steps that a refined certificate may take, from a matrix and by products.
_MAX_REFINEMENTS, _MAX_CONJUGATE_STEPS = 3, 10

# Products that all of them may take, during a run and for a user who asks. Where a bound is that
# hard to reach, another step of the solver gains more.
_FEW_PRODUCTS, MANY_PRODUCTS = 40, 500

# From this many parameters on the Hessian of an earlier certificate is kept: conjugate gradients
# that it preconditions take few products to the next one, and are left if they take more. They
# stop when so small a share of the bound is slack.
_WORTH_KEEPING, _KEPT_PRODUCTS, _KEPT_SLACK = 32, 6, 0.1

# Conjugate gradients stop when the model promises this share of the target, or, without a target,
# when so small a share of the bound is slack.
_MODEL_SHARE, _SLACK_SHARE = 0.9, 1e-3

# What the shares of a mixture may miss 1 by.
_ROUNDED_SHARES = 2.0**-51

# Affine losses have no such bound. Where rounding errors may be more than this share of the
# objective, it pays to add up how large the terms of the gradient are.
_WORTH_SUMS = 1e-7

# In units of the loss of the best constant model: the objective below which a fit is perfect, and
# the gap that is then as good as none.
_PERFECT_FIT, _PERFECT_GAP = 1e-6, 1e-12

# In units of the loss at zero margins: a gap that rounding each margin once may leave. That is the
# square of the unit roundoff, 1e-32, with room for margins 1e4 times the targets.
_VANISHING = 1e-24

# Losses whose spread is a smaller share of their mean tie: as those of labels do at w = 0.
_TIED = 1e-3

# Losses that are a smaller share of others are rounding: those at the start of those beside it, and
# those of the best constant model of those at zero margins, where targets are all alike.
_ALIKE = 1e-20

# Losses at a start beyond this multiple of that at zero margins are too far up an exponential.
_MODERATE = 1e6

# The least of these units.
_TINY = 1e-290

_EPS = float(np.finfo(np.float64).eps)

# Rounding errors of an objective, in those from rounding each margin once.
_NOISE = 4.0


@dataclass(frozen=True)
class Certificate:
    """Bounds on the optimal value: ``dual <= F* <= primal``.

    Attributes
    ----------
    primal : float
        F(w).
    dual : float
        A lower bound on the optimal value.
    gap : float
        primal - dual, computed without cancellation; never less than F(w) - F*.
    relative_gap : float
        gap / abs(F(w)). For affine losses, whose objective may cancel, the gap is divided by their
        mean absolute deviation at w where that is more.
    rounding : float
        The part of the gap that stands for rounding errors: no gap is smaller, and `dual` is a
        bound in spite of them.
    primal_rounding : float
        The part of that which stands for the error of `primal`.
    passes : float
        Passes over the data that conjugate gradients took to tighten the bound.
    unit : float
        What the gap was divided by; see :meth:`Problem.unit`.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 5.0])
    >>> problem = sorel.Problem(X, y, risk="cvar:0.5", penalty=sorel.L2(1.0))
    >>> certificate = problem.certificate([1.0], np.full(3, 1 / 3))
    >>> certificate.dual < certificate.primal
    True
    >>> abs(certificate.primal - certificate.dual - certificate.gap) < 1e-12
    True
    """

    primal: float
    dual: float
    gap: float
    relative_gap: float
    rounding: float = 0.0
    primal_rounding: float = 0.0
    passes: float = field(default=0.0, compare=False)
    unit: float = field(default=0.0, compare=False, repr=False)


class _Bound(NamedTuple):
    """How far below lam . l + g at some point a bound on its minimum lies.

    The part `rounding` of it stands for what the arithmetic may have got wrong.
    """

    total: float
    rounding: float


_NO_BOUND = _Bound(np.inf, 0.0)


class _Factor(NamedTuple):
    """Factor of the curvature that is kept, with an l2 added; None where there is none."""

    curvature: FloatArray
    l2: float
    factor: FloatArray | None


class Problem:
    """A spectral risk minimization problem over linear models.

    Parameters
    ----------
    X : array of shape (n, d)
        Dense (C or Fortran order) or any scipy sparse matrix or array; float64 and float32 are used
        in place, sparse ones where they are CSR without repeated entries. Or rows on disk: a
        memory-mapped array; the path of a .npy file, of a folder of .npy blocks, of a Parquet file
        or a folder of them; a ``pyarrow.dataset.Dataset``; or a :class:`sorel.rows.RowSource`.
        Beyond 256 MB they are read anew at every pass. Or a torch tensor on any device, dense or
        CSR, or an array of another library on a device: the computation then takes place there.
    y : array of length n
        Numbers for regression, labels for classification. Or the path of a .npy file or a folder of
        them, or the name of a column of Parquet data, which is then no feature.
    risk : Risk or str, default=CVaR(0.5)
        The weights of the sorted losses, e.g. ``CVaR(0.1)`` or ``"cvar:0.1"``.
    loss : str or Loss, default="squared"
        "squared", "huber", "logistic", "squared_hinge", "multinomial", "poisson" or "gamma", or a
        loss of your own: see :class:`sorel.losses.Loss`.
    penalty : Penalty, optional
        Strongly convex, or of bounded domain; ``L2(1 / n)`` when not given.
    fit_intercept : bool, default=False
        Add an unpenalised intercept, the last entry of every parameter vector. The problem is taken
        as written; ``sorel.path`` and the estimators, which take data, fit one unless told not to.
    sample_weight : array of length n, optional
        Nonnegative; a weight of 2 is the row twice.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores. None follows the settings of numba and
        of the linear algebra library, threadpoolctl's limits included.
    engine : callable, optional
        Makes the home of the data from X and a :class:`sorel.engines.Spec`, such as a class derived
        from :class:`sorel.engines.Engine`; X is then handed over as it is. None picks one of the
        package's own by the kind of X.

    Notes
    -----
    Several threads may use one problem at the same time: every run has its own working memory.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.Max(), penalty=sorel.L2(0.1))
    >>> problem.losses([1.0])
    array([0., 0., 2.])
    >>> problem.objective([1.0])
    2.05
    """

    # How the engine was made and from what, where that is known: another risk needs another one,
    # and counts other weights.
    _made_by: tuple[Callable[[Any, Spec], Engine], Any] | None
    _given_weight: FloatArray | None
    _given_targets: Any

    def __init__(
        self,
        X: Any,
        y: Any,
        *,
        risk: Risk | str | None = None,
        loss: str | Loss = "squared",
        penalty: Penalty | None = None,
        fit_intercept: bool = False,
        sample_weight: ArrayLike | None = None,
        n_jobs: int | None = None,
        engine: Callable[[Any, Spec], Engine] | None = None,
    ) -> None:
        if n_jobs is not None:
            thread_count(n_jobs)  # refuses what is not a number of threads
        risk = CVaR(0.5) if risk is None else parse_risk(risk)
        loss = parse_loss(loss)
        stored = getattr(X, "dtype", None)
        if engine is None and is_tensor(X):
            # Torch takes longer to import than all the rest.
            from sorel.engines.tensors import TensorEngine, read_data

            X, targets, classes = read_data(X, y, loss)
            engine = TensorEngine
        else:
            _check_meaning_of_targets(y, loss)
            if sample_weight is not None:
                check_numbers(sample_weight, "sample_weight")
            if engine is None:
                check_numbers(X, "X")
                source, y = open_data(X, y)
                X = _check_matrix(X) if source is None else _check_source(X, source)
                engine = trusting_engine
            targets, classes = _encode(loss, y, int(X.shape[0]))
        n = int(X.shape[0])
        weight = _check_sample_weight(sample_weight, n)
        offset, error, given = 0.0, 0.0, targets
        if fit_intercept and loss.translates:
            targets, offset, error = _centred(targets, weight)
        counting = _counting(weight, risk)
        spec = Spec(
            targets, loss, risk, classes, bool(fit_intercept), counting, n_jobs, offset, error
        )
        home = engine(X, spec)
        # Float16 is computed with as float64, and no better for it.
        half = isinstance(stored, np.dtype) and stored == np.float16
        self._set_up(home, penalty, stored if half else None)
        self._made_by, self._given_weight, self._given_targets = (engine, X), weight, given

    @classmethod
    def from_engine(cls, engine: Engine, penalty: Penalty | None = None) -> Problem:
        """The problem of an engine that has its data already.

        Parameters
        ----------
        engine : Engine
            Where the data live; its spec has the targets, the loss, the risk and the weights.
        penalty : Penalty, optional
            ``L2(1 / n)`` when not given.

        Examples
        --------
        >>> import numpy as np, sorel
        >>> from sorel.engines import DenseEngine, Spec
        >>> spec = Spec(np.array([1.0, 2.0, 5.0]), sorel.losses.Squared(), sorel.Max())
        >>> engine = DenseEngine(np.array([[1.0], [2.0], [3.0]]), spec)
        >>> sorel.Problem.from_engine(engine, sorel.L2(0.1)).objective([1.0])
        2.05
        """
        problem = cls.__new__(cls)
        problem._set_up(engine, penalty)
        return problem

    def _set_up(
        self, engine: Engine, penalty: Penalty | None, stored: np.dtype[Any] | None = None
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(f"engine must make a sorel.engines.Engine, got {engine!r}")
        if penalty is None:
            penalty = L2(1.0 / engine.n_samples)
        elif isinstance(penalty, numbers.Real):
            raise TypeError(f"penalty must be a penalty such as L2({penalty!r}), got {penalty!r}")
        elif not isinstance(penalty, Penalty):
            raise TypeError(
                "penalty must be one of sorel's penalties, or of a subclass of "
                f"sorel.penalties.Penalty, got {penalty!r}"
            )
        self.engine, self.penalty = engine, penalty
        self._made_by = None
        spec = engine.spec
        self._given_weight, self._given_targets = spec.sample_weight, None
        _check_affine(engine)
        self.risk, self.loss, self.classes = spec.risk, spec.loss, spec.classes
        self.fit_intercept, self.sample_weight = spec.fit_intercept, spec.sample_weight
        check_penalty(penalty, self._coefficient_shape)
        # Type of the numbers as they were stored; arithmetic is in float64 whatever it is.
        self.data_type = engine.data_type if stored is None else stored
        size = engine.mean_loss_at_zero()
        if not np.isfinite(size):
            raise ValueError(
                f"the {self.loss.name} loss is not finite where all margins are 0; scale y"
            )
        if size == 0.0:
            size = self._size_away_from_zero()
        self._zero_loss = max(size, _TINY)
        self._known_rounding: Rounding | None = None
        self.curvature: FloatArray | None = None
        self._known_factor: _Factor | None = None
        # Left by a method that knows it without a matrix: multiplies by about the inverse Hessian.
        self.near_inverse: Callable[[FloatArray], FloatArray] | None = None
        self._working_sets: WorkingSets | None = None

    def _size_at(self, w: FloatArray) -> float:
        """Mean size of the losses; 0 where they overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            size = self.engine.mean_size(self.engine.point(w))
        return size if np.isfinite(size) else 0.0

    def _size_away_from_zero(self) -> float:
        """Mean size of the losses where they cannot all be 0, if there is such a place."""
        start, targets = self.start(), self.engine.spec.targets
        if not np.any(start):
            return 0.0
        if self.loss.curvature_bound == np.inf and isinstance(targets, np.ndarray):
            # Exponentials at the start may be of any size; those of margins of 1 are not.
            return float(np.mean(np.abs(self.loss.value(targets, np.ones(len(targets))))))
        # Margins may cancel at the start, but for rounding, and nowhere else.
        beside = np.linspace(0.0, 1.0, start.size).reshape(start.shape) ** 2 / start.size
        beside[: self.n_features] = self.penalty.project(beside[: self.n_features])
        size, other = self._size_at(start), self._size_at(beside)
        return size if size > _ALIKE * other else other

    @cached_property
    def _levels(self) -> tuple[float, float] | None:
        return self.risk.levels(self.n_samples, self.sample_weight)

    @property
    def has_fixed_weights(self) -> bool:
        """Whether the dual set is one weighting: others change with the order of the losses."""
        return self._levels is not None and self._levels[0] == self._levels[1]

    @property
    def has_two_levels(self) -> bool:
        """Whether all but the samples at an edge have one of two weights, as under CVaR."""
        return self._levels is not None and self._levels[0] < self._levels[1]

    @property
    def is_quadratic(self) -> bool:
        """Whether risk and losses make a quadratic function: one Newton step then solves it."""
        return self.bends_evenly and self.has_fixed_weights

    @property
    def bends_evenly(self) -> bool:
        """Whether the losses have the same curvature wherever they are."""
        return type(self.loss) is Squared

    def keep_curvature(self, hessian: FloatArray) -> bool:
        """Keep the Hessian of a weighting, if there is something to be gained from that."""
        engine = self.engine
        few = len(hessian) < _WORTH_KEEPING or engine.n_outputs > 1
        if few or not (self.penalty.quadratic and engine.products_are_cheap):
            return False
        self.curvature = hessian
        return True

    @property
    def data_precision(self) -> float:
        """Relative rounding of the stored numbers."""
        return float(np.finfo(self.data_type).eps)

    @property
    def n_samples(self) -> int:
        """Rows of X."""
        return self.engine.n_samples

    @property
    def n_features(self) -> int:
        """Columns of X."""
        return self.engine.n_features

    def losses(self, w: ArrayLike) -> FloatArray:
        """Loss of each sample at `w`."""
        engine = self.engine.for_run()
        return engine.losses(engine.point(self.check_parameters(w)))

    def objective(self, w: ArrayLike) -> float:
        """F(w): the spectral risk of the losses plus the penalty."""
        engine = self.engine.for_run()
        point = engine.point(self.check_parameters(w))
        return engine.risk(point) + self.penalty_value(point.w)

    def certificate(self, w: ArrayLike, lam: ArrayLike) -> Certificate:
        """Bounds on the optimum from a parameter vector and a weighting of the samples.

        Parameters
        ----------
        w : array
            Parameters, intercept last.
        lam : array of length n
            A weighting in the dual set of the risk, e.g. ``result.weights``. One that is off by
            rounding is projected; one that is far away is refused.
        """
        run = self.for_run()
        point = run.engine.point(self.check_parameters(w))
        weights = np.asarray(lam, dtype=np.float64)
        if weights.shape != (self.n_samples,):
            raise ValueError(
                f"lam must have one weight per sample, shape ({self.n_samples},), "
                f"got {weights.shape}"
            )
        if not np.all(np.isfinite(weights)):
            raise ValueError("lam has weights that are not finite")
        dual, distance = run.engine.nearest_dual(weights)
        if distance > 1e-6:
            raise ValueError(
                f"lam is not a weighting that {self.risk!r} admits: it is {distance:.2g} away "
                "from the nearest one; use sorel.project_permutahedron(lam, risk) first"
            )
        # Newton steps that tighten the bound may go too far, and are then not used.
        with run.engine.working(), np.errstate(over="ignore", invalid="ignore"):
            return run.certify(point, dual, refine=np.inf, max_products=MANY_PRODUCTS)

    def fingerprint(self) -> dict[str, str]:
        """What the problem is made of, as texts that agree for equal problems.

        Returns
        -------
        dict
            Hashes of the data, the targets and the sample weights; risk, loss and penalty in words.

        Notes
        -----
        X is hashed whole up to 8 million numbers. Of a larger X, a million numbers are hashed, and
        all of them enter an exact checksum of their column, so that one changed value is always
        seen. A source of data with a method ``fingerprint`` speaks for itself.

        Examples
        --------
        >>> import numpy as np, sorel
        >>> X = np.array([[1.0], [2.0], [3.0]])
        >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.1))
        >>> parts = problem.fingerprint()
        >>> parts["shape"], parts["risk"]
        ('3 x 1', 'CVaR(alpha=0.1)')
        """
        parts = self.engine.fingerprint()
        if self._given_targets is not None:
            parts["targets"] = fingerprint_array(to_numpy(self._given_targets))
        return {
            "shape": f"{self.n_samples} x {self.n_features}",
            **parts,
            "risk": describe(self.risk),
            "loss": describe(self.loss),
            "penalty": self._describe_penalty(),
            "intercept": "fitted" if self.fit_intercept else "none",
        }

    def _describe_penalty(self) -> str:
        text = describe(self.penalty)
        if self.penalty.compiled:
            return text
        # What a class of the user computes is not to be read from its settings.
        values = sample_values(self.penalty, self._coefficient_shape)
        return f"{text} with values {', '.join(f'{value:.6e}' for value in values)}"

    # What the solvers use.

    def for_run(self) -> Problem:
        """The same problem with working memory of its own, for one run in one thread."""
        other = shallow_copy(self)
        other.engine = self.engine.for_run()
        return other

    def in_sequence(self) -> Problem:
        """The same problem for runs one after another, which hand on what they learn."""
        other = shallow_copy(self)
        other.engine = self.engine.in_sequence()
        return other

    def with_penalty(self, penalty: Penalty) -> Problem:
        """The same data, risk and loss under another penalty; nothing is copied."""
        other = shallow_copy(self)
        other.penalty = penalty
        vars(other).pop("_least_value", None)  # known of the penalty before
        return other

    def with_risk(self, risk: Risk | str) -> Problem:
        """The same data, loss and penalty under another risk; X is not copied.

        Examples
        --------
        >>> import numpy as np, sorel
        >>> problem = sorel.Problem(np.eye(3), [1.0, 2.0, 5.0], risk=sorel.Max())
        >>> problem.with_risk("mean").objective(np.zeros(3))
        5.0
        """
        if self._made_by is None:
            raise TypeError(
                "a problem made from an engine has the risk of its engine; make one from X and y"
            )
        risk = parse_risk(risk)
        weight = _counting(self._given_weight, risk)
        same = weight is self.sample_weight
        engine = self.engine.with_risk(risk) if same else None
        if engine is None:
            make, X = self._made_by
            spec = replace(self.engine.spec, risk=risk, sample_weight=weight)
            other = Problem.from_engine(make(X, spec), self.penalty)
            other._made_by, other._given_weight = self._made_by, self._given_weight
            other._given_targets = self._given_targets
            return other
        _check_affine(engine)
        other = shallow_copy(self)
        other.engine, other.risk = engine, risk
        for known in ("_levels", "_least_value"):  # of the risk before
            vars(other).pop(known, None)
        return other

    def tamed(self) -> Problem | None:
        """A problem that takes the margins to the side where this loss does not overflow.

        Where losses grow like exponentials and 0 is not in the domain, they may overflow at the
        start. The solution of this problem is a better one. None for a problem that cannot be had.
        """
        if self._made_by is None or self.engine.n_outputs > 1:
            return None
        make, X = self._made_by
        spec = self.engine.spec
        with np.errstate(over="ignore", invalid="ignore"):
            far = self.loss.value(
                to_numpy(spec.targets), np.full(self.n_samples, _BEYOND_EXPONENTIALS)
            )
        side = np.full(self.n_samples, 1.0 if np.all(np.isfinite(far)) else -1.0)
        return Problem.from_engine(
            make(X, replace(spec, targets=side, loss=SquaredHinge(), risk=Max())), self.penalty
        )

    def subsample(self, n_rows: int, rng: np.random.Generator) -> Problem | None:
        """The same risk, loss and penalty on random rows, in memory; None if they miss a class."""
        engine = self.engine.sample(n_rows, rng)
        if engine is None:
            return None
        other = shallow_copy(self)
        other.engine, other._made_by = engine, None
        return other

    def on_part(self, engine: Engine, risk: Risk) -> Problem:
        """The same loss and penalty on an engine of some of the rows, under another risk.

        Gaps are measured against the losses of all rows, as they are here.
        """
        part = engine.with_risk(risk)
        assert part is not None, "rows in memory take any risk"
        return self._on(part)

    def turned(self) -> tuple[Problem, Turned] | None:
        """The same problem in the space of the rows, and the way there and back, under L2 alone.

        None where there is no such: see :meth:`sorel.engines.Engine.turned`.
        """
        turned = self.engine.turned() if self.penalty.quadratic else None
        return None if turned is None else (self._on(turned.engine), turned)

    def _on(self, engine: Engine) -> Problem:
        """The penalty of this problem on an engine of its kind; gaps are measured as here."""
        other = Problem.from_engine(engine, self.penalty)
        other._zero_loss = self._zero_loss
        return other

    def certify(
        self,
        point: Point,
        dual: Dual,
        *,
        gradient: FloatArray | None = None,
        refine: float = 0.0,
        path: Path | None = None,
        max_products: int = _FEW_PRODUCTS,
    ) -> Certificate:
        """The certificate of a point and a weighting.

        Parameters
        ----------
        gradient : array, optional
            Gradient of lam . l at the point, where it is known already.
        refine : float, default=0.0
            A gap worth a Hessian. When only the second bracket stands above it, take one Newton
            step for this weighting and bound the dual there: exact for the squared loss, and far
            tighter than |grad|^2 / (2 mu) for the others, where mu is small.
        path : Path, optional
            How the margins of the point were moved since they were computed from X: each time adds
            to their rounding errors.
        max_products : int
            Products with the Hessian that this may take where it is too large to be formed.
        """
        engine = self.engine
        expected = engine.expected(point, dual)
        shortfall = engine.shortfall(point, dual)
        penalty = self.penalty_value(point.w)
        primal = expected + shortfall + penalty
        least = self._least_value
        if not math.isfinite(primal):
            return Certificate(np.inf, least, np.inf, np.inf, unit=np.inf)
        rounding = self._rounding()
        # The error of F(w), which the bound on F(w) - F* has to cover as well as its own.
        error = rounding.margins(point.w, path)
        noise = rounding.risk(point, dual, expected, shortfall, error)
        noise += rounding.penalty_value(penalty)
        if shortfall < -noise:
            raise CertificateError(negative_gap(engine, shortfall, noise))
        above = shortfall + noise
        target = 0.0 if refine == np.inf else refine - above
        bound, passes = _NO_BOUND, 0.0
        # Affine losses leave nothing to refine: they equal their linearisation.
        refinable = not self.loss.affine
        small = point.w.size <= REFINABLE_SIZE or self.penalty.quadratic or self.by_parts
        refinable = refinable and small
        hopeless, bracket = False, 0.0
        if refinable and gradient is not None and target >= 0.0 and refine < np.inf:
            # Where the bracket alone is too large the simple bound will not do, and is left for
            # the case that the refined one does not either.
            coef, slope = self.coefficients(point.w), self.coefficients(gradient)
            bracket = self.penalty.fenchel_young(coef, -slope)
            hopeless = bracket > target
        if not hopeless:
            bound = self._linear_bound(rounding, point, dual, expected, penalty, gradient, error)
        worthwhile = above + bound.total > refine >= above
        worthwhile = worthwhile or (refine == np.inf and bound.total > 0.0)
        if worthwhile and refinable:
            refined, passes = self._refined_bound(
                rounding, point, dual, expected + penalty, gradient, target, max_products
            )
            # The bracket is part of the simple bound, unless an intercept moves.
            worse = bracket >= refined.total and not self.fit_intercept
            if hopeless and refined.total > target and not worse:
                bound = self._linear_bound(
                    rounding, point, dual, expected, penalty, gradient, error
                )
            if refined.total < bound.total:
                bound = refined
        unit = self.unit(primal, point)
        if expected + penalty - least < bound.total:
            bound = _Bound(expected + penalty - least, 0.0)
        gap = above + bound.total
        rounding.forget_weighting()
        return Certificate(
            primal,
            max(primal - gap, least),
            gap,
            relative(gap, unit),
            noise + bound.rounding,
            noise,
            passes,
            unit,
        )

    def upper_bound(self, point: Point) -> tuple[float, float]:
        """The objective at a point, and how much more rounding may have made it in truth."""
        engine, rounding = self.engine, self._rounding()
        dual = engine.worst_case(point)
        risk, penalty = engine.expected(point, dual), self.penalty_value(point.w)
        error = rounding.risk(point, dual, risk, 0.0, rounding.margins(point.w))
        rounding.forget_weighting()
        return risk + penalty, error + rounding.penalty_value(penalty)

    @property
    def _coefficient_shape(self) -> tuple[int, ...]:
        return (self.n_features, *self.engine.shape[1:])

    def _rounding(self) -> Rounding:
        """Rounding errors of the certificates, of which a run asks for many."""
        known = self._known_rounding
        if known is not None and known.engine is self.engine and known.penalty is self.penalty:
            return known
        error = self.engine.spec.offset_error
        known = Rounding(self.engine, self.loss, self.penalty, self._zero_loss, error)
        self._known_rounding = known
        return known

    @property
    def by_parts(self) -> bool:
        """Whether second-order steps form the Hessian of no more columns than they move."""
        return self.penalty.separable and can_rest(self.engine, self.penalty)

    def part(self, w: FloatArray, gradient: FloatArray) -> Part:
        """The parameters that a second-order step from w should move."""
        known = self._working_sets
        if known is None or known.engine is not self.engine or known.penalty is not self.penalty:
            self._working_sets = known = WorkingSets(self.engine, self.penalty)
        return known.choose(w, gradient)

    @cached_property
    def _least_value(self) -> float:
        """A bound for free: no loss is below its declared bound, no penalty below its minimum.

        Losses may have no bound, but no risk of theirs is below their mean, except that the shares
        of a mixture add up to 1 only as far as they are rounded.
        """
        lowest = self.loss.lower_bound
        if isinstance(self.risk, Deviation):
            lowest = -self._rounded_shares(self.risk.risk) if self.risk.share == 1.0 else -np.inf
        if lowest == -np.inf:
            return -np.inf
        least = -self.penalty.conjugate(np.zeros(self._coefficient_shape))
        return lowest + least - 1e-15 * abs(least)

    def _rounded_shares(self, risk: Risk) -> float:
        """What shares that do not quite add up to 1 may make of the losses, the penalty included.

        No loss is larger than the sum of all at zero margins, and what margins add to it. Where
        nothing bounds a coefficient, the penalty does.
        """
        if not isinstance(risk, Mixture):
            return _ROUNDED_SHARES * self._zero_loss
        largest = _ROUNDED_SHARES * self.n_samples * self._zero_loss
        columns = self.engine.column_scale()
        if columns is None or not self.loss.lipschitz < np.inf:
            return largest
        steepest = _ROUNDED_SHARES * self.loss.lipschitz * columns
        bounds = self.penalty.bounds(len(columns))
        if bounds is None:
            bounds = np.full_like(columns, np.inf), np.full_like(columns, np.inf)
        reach = np.abs(bounds)
        free = steepest[np.isinf(reach).any(axis=0)]
        reach[np.isinf(reach)] = 0.0
        largest += float(steepest @ reach.max(axis=0))
        if len(free):
            largest += float(free @ free) / (2.0 * self.penalty.l2) if self.penalty.l2 else np.inf
        return largest

    def _linear_bound(
        self,
        rounding: Rounding,
        point: Point,
        dual: Dual,
        expected: float,
        penalty: float,
        gradient: FloatArray | None,
        margin_error: float,
    ) -> _Bound:
        """lam . l + g at the point, less the minimum of g and the linearised losses."""
        engine = self.engine
        excess = lost = residual = 0.0
        if self.fit_intercept:
            shifted = engine.best_intercept(point, dual)
            if shifted is None:
                return _NO_BOUND
            if shifted is not point:
                least = engine.expected(shifted, dual)
                excess, lost = max(0.0, expected - least), rounding.difference(expected)
                point, expected, gradient = shifted, least, None
                margin_error += rounding.shift(point.w)
        if gradient is None:
            gradient = engine.gradient(point, dual)
        coef, slope = self.coefficients(point.w), self.coefficients(gradient)
        bracket = self.penalty.fenchel_young(coef, -slope)
        if not math.isfinite(bracket):
            return _NO_BOUND
        error, slopes = rounding.losses(point, dual, expected, margin_error)
        if self.fit_intercept:
            drop, residual = rounding.intercept(point, dual, gradient[self.n_features], slopes)
            error += drop + lost
        error += rounding.penalty_value(penalty)
        spread = rounding.bracket(bracket, coef, slope, slopes, residual)
        if self.loss.affine and spread > _WORTH_SUMS * self.unit(expected + penalty, point):
            sums = rounding.affine_sums(dual)
            spread = min(spread, rounding.bracket(bracket, coef, slope, slopes, residual, sums))
        error += spread
        return _Bound(excess + bracket + error, error)

    def least_gap(self, w: FloatArray, dual: Dual) -> float:
        """What rounding errors leave of a gap at these parameters, however good they are."""
        engine, rounding = self.engine, self._rounding()
        point = engine.point(w)
        error = rounding.margins(w)
        lost, slopes = rounding.losses(point, dual, engine.expected(point, dual), error)
        coef, sums = self.coefficients(w), rounding.affine_sums(dual) if self.loss.affine else None
        return lost + rounding.bracket(0.0, coef, np.zeros_like(coef), slopes, 0.0, sums)

    def _refined_bound(
        self,
        rounding: Rounding,
        point: Point,
        dual: Dual,
        value: float,
        gradient: FloatArray | None,
        target: float,
        max_products: int,
        exact: bool = False,
    ) -> tuple[_Bound, float]:
        """lam . l + g at the point, less a bound on its minimum taken a Newton step further.

        A second step follows while the slack of the bound outweighs what the first one gained and
        the target is missed: with badly scaled columns one linear system leaves too many digits.
        Returns the bound, and the passes of conjugate gradients.
        """
        engine = self.engine
        formed = exact or not self._by_products()
        bound, passes, drop = _NO_BOUND, 0.0, 0.0
        current, slope = point, gradient
        kept = self.kept_factor() if formed else None
        for _ in range(_MAX_REFINEMENTS if formed else _MAX_CONJUGATE_STEPS):
            if slope is None:
                slope = engine.gradient(current, dual)
            reached = False
            if kept is not None or not formed:
                most = max_products if kept is None else _KEPT_PRODUCTS
                found = self._conjugate_step(current, dual, slope, target, drop, most, kept)
                u, reached = current.w + found.step, found.reached
                max_products -= found.products
                passes += found.passes + 1.0
            if formed and not reached:
                kept = None
                try:
                    u = self._newton_point(current, dual, slope)
                except (np.linalg.LinAlgError, TooManyColumnsError):
                    break
            del current  # its vectors serve the next point
            current, slope = engine.point(u), None
            expected = engine.expected(current, dual)
            penalty = self.penalty_value(u)
            drop = value - expected - penalty
            if not math.isfinite(drop):
                break
            linear, error = self._linear_bound(
                rounding, current, dual, expected, penalty, slope, rounding.margins(u)
            )
            # Without the errors both terms together are nonnegative, up to rounding.
            bound = min(bound, _Bound(max(drop + linear, error), error))
            # Where curvature all but vanishes the step may go too far, and lead nowhere.
            if drop < -error:
                break
            least = 0.1 if formed else _SLACK_SHARE
            if bound.total <= target or linear - error <= max(least * drop, error):
                break
            if not formed and (max_products <= 0 or drop > target > 0.0):
                break
        undecided = bound.total > target and not drop > target > 0.0
        if not formed and undecided and engine.size <= _FEW_PARAMETERS:
            # Products were likely to be cheaper than a matrix, and were not.
            other, _ = self._refined_bound(
                rounding, point, dual, value, gradient, target, 0, exact=True
            )
            bound = min(bound, other)
        return bound, passes

    def _by_products(self) -> bool:
        """Whether conjugate gradients refine a certificate for less than a matrix costs."""
        engine = self.engine
        if not self.penalty.quadratic:
            return False
        if classes_by_products(engine):
            return True
        if engine.size <= FEW_PARAMETERS:
            return False
        if not engine.products_are_cheap:
            return engine.size > _FEW_PARAMETERS
        costs = StepCosts(engine, carrying_rows(engine))
        if engine.size > _FEW_PARAMETERS and not costs.rows_are_cheaper:
            return True
        return costs.products() > _FEW_PRODUCTS

    def _newton_point(self, point: Point, dual: Dual, gradient: FloatArray) -> FloatArray:
        """Where a Newton step for a fixed weighting leads, from a p x p Hessian or from rows."""
        engine = self.engine
        if self.penalty.quadratic and engine.size > FEW_PARAMETERS and engine.solves_by_rows:
            curvature = engine.curvature(point, dual)
            if curvature.rows:
                costs = StepCosts(engine, curvature.rows)
                if engine.size > _FEW_PARAMETERS or costs.rows_are_cheaper:
                    step = curvature.solve(gradient + self.modulus() * point.w, self.penalty.l2)
                    return point.w + step
            if engine.size > REFINABLE_SIZE:
                raise np.linalg.LinAlgError("more rows have curvature than a matrix can serve")
        part = self.part(point.w, gradient)
        hessian = part.engine.hessian(point, dual)
        self.keep_curvature(hessian)
        slope, center = part.take(gradient), part.take(point.w)
        u, _ = minimize_quadratic(
            hessian, slope, center, part.penalty, part.n_penalized, engine.n_outputs
        )
        return part.put(point.w, u)

    def _conjugate_step(
        self,
        point: Point,
        dual: Dual,
        gradient: FloatArray,
        target: float,
        drop: float,
        max_products: int,
        precondition: Callable[[FloatArray], FloatArray] | None,
    ) -> Solution:
        """The same step by products, as far as the target needs it.

        It ends when the model promises a bound within the target, or when the minimum turns out to
        lie so low that this weighting cannot attain it. `drop` was gained by earlier steps.
        """
        modulus, l2 = self.modulus(), self.penalty.l2

        def enough(left: float, decrease: float, residual: FloatArray) -> bool:
            coef = self.coefficients(residual)
            slack = float(np.vdot(coef, coef)) / (2.0 * l2)
            total = drop + decrease
            if target > 0.0 and total + slack <= _MODEL_SHARE * target:
                return True
            if precondition is not None:
                # Products are few, and a bound that misses the target may serve a later iterate.
                return slack <= _KEPT_SLACK * total
            if target > 0.0:
                return total > target
            return slack <= 0.5 * _SLACK_SHARE * total

        return minimize_model(
            self.engine.curvature(point, dual),
            modulus,
            gradient + modulus * point.w,
            enough=enough,
            max_products=max_products,
            precondition=precondition or self.near_inverse,
        )

    def kept_factor(self) -> Callable[[FloatArray], FloatArray] | None:
        """Solves systems with the curvature that was kept, under this penalty; None without one."""
        if self.curvature is None or not (
            self.penalty.quadratic and self.engine.products_are_cheap
        ):
            return None
        known = self._known_factor
        if known is None or known.curvature is not self.curvature or known.l2 != self.penalty.l2:
            matrix = self.curvature + np.diag(self.modulus())
            factor, failed = dpotrf(matrix.T, lower=1, clean=0)
            known = _Factor(self.curvature, self.penalty.l2, None if failed else factor)
            self._known_factor = known
        if known.factor is None:
            return None
        return lambda residual: dpotrs(known.factor, residual, lower=1)[0]

    def unit(self, objective: float, point: Point) -> float:
        """What a gap is divided by to be relative: |F(w)|.

        The objective of affine losses may cancel. There it is at least the mean absolute deviation
        of the losses at the point.
        """
        size = abs(objective)
        return max(size, self.engine.loss_scale(point)) if self.loss.affine else size

    def gap_wanted(self, tol: float, objective: float, point: Point) -> float:
        """The gap at which a point is a solution, for a relative gap of `tol`.

        That of a perfect fit, whose objective is no measure of anything, is 1e-12 of the loss of
        the best constant model: a fit is perfect where less than 1e-6 of that loss is left. A `tol`
        of 0 asks for all that can be had.
        """
        return self.sufficient(tol, self.unit(objective, point))

    def sufficient(self, tol: float, unit: float) -> float:
        """The same for a known unit."""
        wanted = tol * unit
        # The loss of a constant model takes some work, and hardly ever matters.
        if tol > 0.0 and (self.loss.affine or unit < _PERFECT_FIT * self._zero_loss):
            constant = self._constant_loss
            if unit < _PERFECT_FIT * constant:
                wanted = max(wanted, _PERFECT_GAP * constant)
        return wanted

    def vanishes(self, objective: float, gap: float, rounding: float) -> bool:
        """Whether an objective is the least value for free, up to its own rounding error.

        So it is where targets are all alike, and the best constant model has no loss either.
        """
        if isinstance(self.risk, Deviation):
            # What its least value lacks to 0 is rounding of the risk.
            return self._least_value > -np.inf and objective <= rounding
        if not objective - self._least_value <= rounding:
            return False
        alike = self._constant_loss <= _ALIKE * self._zero_loss
        return alike and gap <= _VANISHING * max(self._zero_loss, self._size_at(self.start()))

    def vanishes_with_offset(self, gap: float) -> bool:
        """Whether a gap is no more than rounding an intercept that has the user's offset in it."""
        if self._given_targets is None:
            return False
        y = to_numpy(self._given_targets)
        return gap <= _VANISHING * float(np.mean(np.abs(self.loss.value(y, np.zeros(len(y))))))

    @cached_property
    def _constant_loss(self) -> float:
        """Mean loss of the best constant model, whether or not an intercept is fitted.

        For affine losses, which have no best one, the spread of the losses at w = 0 or beside it.
        """
        engine = self.engine.for_run()
        if self.loss.affine:
            return self.loss_scale(engine.point(np.zeros(engine.shape)))
        spec = engine.spec
        if spec.targets is not None:
            spec = replace(
                spec, targets=to_numpy(spec.targets), risk=Mean(), fit_intercept=True,
                sample_weight=self._given_weight,
            )  # fmt: skip
            engine = trusting_engine(np.zeros((self.n_samples, 1)), spec)
        elif not self.fit_intercept:  # rows on a cluster
            return 0.0
        best = engine.best_intercept(engine.point(np.zeros(engine.shape)), engine.uniform())
        return 0.0 if best is None else engine.mean_size(best)

    def loss_scale(self, point: Point) -> float:
        """Spread of the losses at a point, the inverse of the unit of a dual step eta.

        Losses that all but tie leave their size to go by, or their spread beside the point.
        """
        engine = self.engine
        spread = engine.loss_scale(point)
        if not self.loss.affine:
            mean = engine.mean_size(point)
            spread = spread if spread > _TIED * mean else mean
        if spread == 0.0:
            beside = np.full(engine.shape, 1.0 / engine.size)
            spread = engine.loss_scale(engine.point(beside))
        return spread or 1.0

    def is_moderate(self, point: Point) -> bool:
        """Whether the losses are of a size from which Newton steps get down.

        They climb down an exponential one by one.
        """
        return self.engine.mean_size(point) <= _MODERATE * self._zero_loss

    def margin_rounding(self, unit: float) -> float:
        """Relative error of the losses from rounding each margin once: large near a perfect fit."""
        return _EPS * math.sqrt(max(1.0, self._zero_loss / max(unit, _TINY)))

    def noise(self, unit: float) -> float:
        """Changes of an objective of that size that are rounding."""
        return _NOISE * self.margin_rounding(unit) * max(unit, _TINY)

    def penalty_value(self, w: FloatArray) -> float:
        """g of the penalised part of w."""
        return self.penalty.value(self.coefficients(w))

    def coefficients(self, w: FloatArray) -> FloatArray:
        """The penalised part of a parameter array: everything but the intercept."""
        return w[: self.n_features] if self.fit_intercept else w

    def for_user(self, w: FloatArray) -> FloatArray:
        """A copy of w for the user's targets, of which the engine has taken an offset off.

        Intercepts of several classes, which count only by differences, sum to 0.
        """
        w = np.array(w)
        if self.fit_intercept:
            w[-1] += self._offset if w.ndim == 1 else -w[-1].mean()
        return w

    def from_user(self, w: FloatArray) -> FloatArray:
        """A copy of the user's parameters for the targets of the engine."""
        w = np.array(w)
        if self._offset:
            w[-1] -= self._offset
        return w

    def margin_size(self, w: FloatArray) -> float:
        """How large margins at w may be."""
        return self._rounding().margin_size(w)

    @property
    def _offset(self) -> float:
        return self.engine.spec.offset

    def modulus(self) -> FloatArray:
        """Curvature of a quadratic penalty in each parameter, shaped like w: none in intercepts."""
        out = np.zeros(self.engine.shape)
        out[: self.n_features] = self.penalty.l2
        return out

    def start(self) -> FloatArray:
        """A feasible parameter array to start from: 0 where the penalty allows it."""
        w = np.zeros(self.engine.shape)
        w[: self.n_features] = self.penalty.feasible_start(w[: self.n_features].shape)
        return w

    def check_parameters(self, w: ArrayLike) -> FloatArray:
        """`w` as an array of the right shape, or an error that says what is wrong."""
        array = np.asarray(w, dtype=np.float64)
        shape = self.engine.shape
        if array.shape != shape:
            if array.ndim > 1 or array.size != np.prod(shape):
                extra = ", intercept last" if self.fit_intercept else ""
                raise ValueError(f"w must have shape {shape}{extra}, got {array.shape}")
            array = array.reshape(shape)
        if not np.all(np.isfinite(array)):
            raise ValueError("w has values that are not finite")
        return self.from_user(array)


def relative(gap: float, unit: float) -> float:
    """gap / unit; 0 where there is no gap, whatever the unit."""
    if gap == 0.0:
        return 0.0
    return gap / unit if unit > 0.0 else math.inf


def negative_gap(engine: Engine, gap: float, rounding: float) -> str:
    """What to say of a gap that no arithmetic explains."""
    return (
        f"{type(engine).__name__} gave a gap of {gap:.3g}, below zero by more than its rounding "
        f"errors, {rounding:.1g}: its risk, its weighting or its projection is wrong"
    )


def target_offset(low: float, high: float, mean: float) -> tuple[float, float]:
    """What to take off targets of this range so that they keep their digits, and its rounding."""
    offset = min(max(mean, low), high)
    reach = max(high - offset, offset - low)
    if offset == 0.0 or not math.isfinite(reach):
        return 0.0, 0.0
    return offset, 2.0**-53 * reach


def _centred(targets: Any, weight: FloatArray | None) -> tuple[Any, float, float]:
    """Targets less their offset, the offset, and what that rounds them by."""
    values = to_numpy(targets)
    if weight is not None:
        values = values[weight > 0.0]
        weight = weight[weight > 0.0]
    # NumPy's average adds up products, and its mean pairs of numbers.
    mean = values.mean() if weight is None else np.average(values, weights=weight)
    offset, error = target_offset(float(values.min()), float(values.max()), float(mean))
    return targets - offset if offset else targets, offset, error


def _check_meaning_of_targets(y: Any, loss: Loss) -> None:
    """Refuse masks, times and texts, though labels of a classification may be texts."""
    if loss.is_classifier:
        check_meaning(y, "y")
        return
    try:
        check_numbers(y, "y")
    except ValueError as error:
        if "texts" not in str(error):
            raise
        raise ValueError(
            f"{error}, or set loss='logistic' or loss='multinomial' if they are labels"
        ) from None


def _encode(loss: Loss, y: Any, n: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if is_on_device(y):
        raise ValueError(
            f"X is in host memory and y on {getattr(y, 'device', 'a device')}; move one of them, "
            "e.g. with y.cpu()"
        )
    length = len(np.asarray(y)) if np.ndim(y) else 0
    if length != n:
        raise ValueError(f"X has {n} rows but y has {length} values; they must agree")
    return loss.encode(y)


def _check_affine(engine: Engine) -> None:
    """Refuse what has no minimum, or is not convex, with losses that have no lower bound."""
    spec = engine.spec
    if isinstance(spec.risk, Deviation):
        if not spec.loss.affine:
            raise ValueError(
                f"{spec.risk!r} needs an affine loss, since a deviation falls where losses rise: "
                f"with the {spec.loss.name} loss it is not convex; use loss='linear', or the risk "
                f"{spec.risk.risk!r}"
            )
        if not engine.serves_deviations:
            raise ValueError(f"{type(engine).__name__} does not serve {spec.risk!r}")
    if spec.loss.affine and spec.fit_intercept:
        why = "has no minimum in an intercept: all losses fall with it, by the same amount"
        if isinstance(spec.risk, Deviation):
            why = "does not depend on an intercept"
        raise ValueError(
            f"{spec.risk!r} of the {spec.loss.name} loss {why}; set fit_intercept=False, and "
            "choose the intercept afterwards, e.g. a quantile of the residuals"
        )


def _check_matrix(X: Any) -> Any:
    """X as a finite two-dimensional matrix, copied only where its type or strides demand it."""
    import scipy.sparse

    if scipy.sparse.issparse(X):
        matrix = checked_csr(X) if X.ndim == 2 else X
        values = matrix.data
    else:
        matrix = X if isinstance(X, np.ndarray) else np.asarray(X)
        values = matrix
    if matrix.ndim != 2:
        hint = "; reshape one feature with X.reshape(-1, 1)" if matrix.ndim == 1 else ""
        raise ValueError(f"X must be two-dimensional, got shape {matrix.shape}{hint}")
    if matrix.shape[0] == 0 or matrix.shape[1] == 0:
        raise ValueError(f"X is empty: shape {matrix.shape}; at least one row and one column")
    if values.dtype not in (np.float64, np.float32):
        if values.dtype.kind not in "fiub":
            try:
                if values.dtype.kind != "O":
                    raise TypeError
                matrix = matrix.astype(np.float64)
            except (TypeError, ValueError):
                raise ValueError(
                    f"X must be numeric, got dtype {values.dtype}; encode text columns first"
                ) from None
        else:
            matrix = matrix.astype(np.float64)
        values = matrix.data if scipy.sparse.issparse(matrix) else matrix
    if not _all_finite(values):
        if scipy.sparse.issparse(matrix):
            raise ValueError("X has values that are not finite; drop or impute them")
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"X has a value that is not finite: X[{row}, {column}] = {values[row, column]}; "
            "drop or impute such rows"
        )
    if isinstance(matrix, np.ndarray) and not (
        matrix.flags.c_contiguous or matrix.flags.f_contiguous
    ):
        matrix = np.ascontiguousarray(matrix)
    return matrix


def _check_source(X: Any, source: RowSource) -> Any:
    """Rows on disk, found to be finite; as an array where that is small."""
    if source.nbytes > WORTH_STREAMING:
        source.check_finite()
        return source
    if isinstance(X, np.ndarray):
        return _check_matrix(X)
    source.check_finite()
    matrix = source.read(0, source.n_samples)
    source.close()
    return matrix


def _all_finite(values: NDArray[Any]) -> bool:
    # The sum is finite unless a value is not, or the sum overflows: look closely only then.
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(values, dtype=np.float64)):
            return True
    return bool(np.all(np.isfinite(values)))


def _counting(weight: FloatArray | None, risk: Risk) -> FloatArray | None:
    """The weights that a risk knows of: the maximum tells no more than whether there is one.

    Steps of the weighting are measured against these, and those of samples that weigh next to
    nothing would be small for no reason.
    """
    if weight is None or not _is_maximum(risk):
        return weight
    used = weight > 0.0
    return None if used.all() else used / float(np.count_nonzero(used))


def _is_maximum(risk: Risk) -> bool:
    """Whether a risk is the maximum, if only as a mixture of nothing else."""
    if isinstance(risk, Mixture):
        return all(map(_is_maximum, risk.components))
    return isinstance(risk, Max)


def _check_sample_weight(sample_weight: ArrayLike | None, n: int) -> FloatArray | None:
    """Weights that sum to 1, or None where all are alike: then the faster loops serve."""
    if sample_weight is None:
        return None
    weight = np.asarray(to_numpy(sample_weight))
    if weight.ndim == 0:
        weight = np.full(n, weight)
    weight = normalised_sample_weight(weight, n)
    return None if np.all(weight == weight[0]) else weight
