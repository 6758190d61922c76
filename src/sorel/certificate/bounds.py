"""Bounds on the optimal value from a parameter vector w and a weighting lam of the samples.

For a weighting lam in the dual set and v = -X^T (lam phi'), the gap

    [ sum_i sigma_i l_[i](w) - lam . l(w) ] + [ g(w) + g*(v) - v . w ]  >=  F(w) - F*

is a sum of two brackets, neither of them negative: the first by the order of the losses, the second
by the Fenchel-Young inequality (Rockafellar 1970, section 12; their sum is a duality gap: section
31). With a small modulus mu the second, |grad|^2 / (2 mu), stays large long after w is good. The
minimum of lam . l + g is then bounded at another point, some Newton steps from w.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from sorel._lib.floats import TINY
from sorel.certificate.criteria import relative, unit
from sorel.certificate.known import KnownCurvature
from sorel.certificate.rounding import (
    MAX_ENTRIES,
    ROUNDINGS,
    UNIT,
    CertificateError,
    Path,
    Rounding,
    negative_gap,
)
from sorel.engines.base import Dual, FloatArray, Point
from sorel.engines.matrix import FEW_PARAMETERS
from sorel.models.conjugate import minimize_model
from sorel.models.costs import (
    LEAST_PRODUCTS,
    StepCosts,
    certifying_products,
    classes_by_products,
)
from sorel.models.quadratic import minimize_quadratic, step_of_few
from sorel.models.working_sets import LARGEST_HESSIAN, TooManyColumnsError, chooses_columns
from sorel.problem.penalties.builtin import Declared
from sorel.problem.risks import Deviation, Mixture

if TYPE_CHECKING:
    from sorel.problem.problem import Problem

# Newton steps that a refined bound may take.
_MAX_STEPS = 10

# Products that all of them may take during a run. Where a bound is that hard to reach, another step
# of the solver gains more.
_FEW_PRODUCTS = 40

# The same for a user who asks, and for the last certificate of a run. A matrix that costs more is
# not formed where products have led nowhere.
MANY_PRODUCTS = 500

# Newton steps end when this share of what they have gained is slack, and so do products in a step.
_SLACK = 0.01

# Share of the unit of a gap above which rounding errors of affine losses are worth a closer look.
_WORTH_SUMS = math.sqrt(UNIT)


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
        What the gap was divided by.

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
    rounding: float = 0.0


_NO_BOUND = _Bound(np.inf)


def certify(
    problem: Problem,
    point: Point,
    dual: Dual,
    *,
    known: KnownCurvature | None = None,
    **options: Any,
) -> Certificate:
    """The certificate of one point and one weighting; for the options: :meth:`Certifier.certify`.

    Examples
    --------
    >>> import sorel
    >>> from sorel.certificate import certify
    >>> problem = sorel.Problem([[1.0], [2.0]], [1.0, 3.0])
    >>> certify(problem, problem.engine.point([1.0]), problem.engine.uniform()).gap > 0
    True
    """
    return Certifier(problem, known).certify(point, dual, **options)


class Certifier:
    """Makes the certificates of one run.

    Parameters
    ----------
    problem : Problem
        A problem with working memory of its own.
    known : KnownCurvature, optional
        What the run has learnt of the curvature; Newton steps of certificates use it and add to it.

    Examples
    --------
    >>> import sorel
    >>> from sorel.certificate import Certifier
    >>> problem = sorel.Problem([[1.0], [2.0]], [1.0, 3.0]).for_run()
    >>> engine, certifier = problem.engine, Certifier(problem)
    >>> certifier.certify(engine.point([1.0]), engine.uniform()).gap > 0
    True
    """

    def __init__(self, problem: Problem, known: KnownCurvature | None = None) -> None:
        self.problem, self.engine, self.penalty = problem, problem.engine, problem.penalty
        self.known = KnownCurvature() if known is None else known
        self.rounding = Rounding(
            self.engine, self.penalty, problem.zero_loss, self.engine.spec.offset_error
        )
        # A lower bound on every objective.
        self.least = _least_value(problem, self.rounding.product)

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
            A gap worth a Hessian. When only the second bracket stands above it, take some Newton
            steps for this weighting and bound the dual there: exact for the squared loss, and far
            tighter than |grad|^2 / (2 mu) for the others, where mu is small.
        path : Path, optional
            How the margins of the point were moved since they were computed from X: each time adds
            to their rounding errors.
        max_products : int
            Products with the Hessian that this may take where it is too large to be formed.
        """
        problem, rounding = self.problem, self.rounding
        expected = self.engine.expected(point, dual)
        shortfall = self.engine.shortfall(point, dual)
        penalty = problem.penalty_value(point.w)
        primal = expected + shortfall + penalty
        if not math.isfinite(primal):
            return Certificate(np.inf, self.least, np.inf, np.inf, unit=np.inf)
        # The error of F(w), which the bound on F(w) - F* has to cover as well as its own.
        error = rounding.margins(point.w, path)
        noise = rounding.risk(point, dual, expected, shortfall, error)
        noise += rounding.penalty_value(penalty, point.w)
        if shortfall < -noise:
            raise CertificateError(negative_gap(self.engine, shortfall, noise))
        above, value, passes = shortfall + noise, expected + penalty, 0.0
        bound = self._linear_bound(point, dual, expected, penalty, gradient, error)
        target = 0.0 if refine == np.inf else refine - above
        if bound.total > target >= 0.0 and self._can_refine(point):
            refined, passes = self._refined_bound(
                point, dual, value, gradient, target, max_products
            )
            bound = min(bound, refined)
            if refine == np.inf:
                with contextlib.suppress(np.linalg.LinAlgError):
                    bound = min(bound, self._slope_bound(point, dual, expected))
        if value - self.least < bound.total:
            bound = _Bound(value - self.least, 0.0)
        gap, size = above + bound.total, unit(problem, primal, point)
        return Certificate(
            primal, max(primal - gap, self.least), gap, relative(gap, size),
            noise + bound.rounding, noise, passes, size,
        )  # fmt: skip

    def upper_bound(self, point: Point) -> tuple[float, float]:
        """The objective at a point, and the most that it is in truth, which rounding may hide."""
        dual = self.engine.worst_case(point)
        risk, penalty = self.engine.expected(point, dual), self.problem.penalty_value(point.w)
        error = self.rounding.risk(point, dual, risk, 0.0, self.rounding.margins(point.w))
        error += self.rounding.penalty_value(penalty, point.w)
        return risk + penalty, risk + penalty + error

    def _can_refine(self, point: Point) -> bool:
        """Whether Newton steps lead to a better bound: affine losses equal their linearisation."""
        if self.problem.loss.affine:
            return False
        if point.w.size <= LARGEST_HESSIAN or self.penalty.quadratic:
            return True
        return chooses_columns(self.engine, self.penalty)

    def _linear_bound(
        self,
        point: Point,
        dual: Dual,
        expected: float,
        penalty: float,
        gradient: FloatArray | None,
        margin_error: float,
    ) -> _Bound:
        """lam . l + g at the point, less the minimum of g and the linearised losses."""
        engine, problem, rounding = self.engine, self.problem, self.rounding
        excess = lost = residual = 0.0
        if problem.fit_intercept:
            # An intercept has no conjugate: its derivative must vanish.
            shifted = engine.best_intercept(point, dual)
            if shifted is None:
                return _NO_BOUND
            if shifted is not point:
                least = engine.expected(shifted, dual)
                excess, lost = max(0.0, expected - least), ROUNDINGS * abs(expected)
                point, expected, gradient = shifted, least, None
                # Moving margins rounds a product and a sum.
                margin_error += 2.0 * UNIT * rounding.margin_size(point.w)
        if gradient is None:
            gradient = engine.gradient(point, dual)
        coef, slope = problem.coefficients(point.w), problem.coefficients(gradient)
        bracket = self.penalty.fenchel_young(coef, -slope)
        if not math.isfinite(bracket):
            return _NO_BOUND
        error, slopes = rounding.losses(point, dual, expected, margin_error)
        if problem.fit_intercept:
            drop, residual = rounding.intercept(point, dual, gradient[problem.n_features], slopes)
            error += drop + lost
        error += rounding.penalty_value(penalty, point.w)
        spread = rounding.bracket(bracket, coef, slope, slopes, residual)
        if problem.loss.affine and spread > _WORTH_SUMS * unit(problem, expected + penalty, point):
            sums = rounding.affine_sums(dual)
            spread = min(spread, rounding.bracket(bracket, coef, slope, slopes, residual, sums))
        error += spread
        return _Bound(excess + bracket + error, error)

    def _refined_bound(
        self,
        point: Point,
        dual: Dual,
        value: float,
        gradient: FloatArray | None,
        target: float,
        max_products: int,
    ) -> tuple[_Bound, float]:
        """lam . l + g at the point, less a bound on its minimum taken some Newton steps further.

        By products where they are cheaper than a matrix or well preconditioned, and by a matrix
        where they are not, or have left it open whether the target can be met. Returns the bound,
        and the passes of the products.
        """
        bound, passes, start = _NO_BOUND, 0.0, (point, dual, value, gradient, target)
        cost = self._matrix_cost()
        known = self.known.inverse(self.problem) is not None
        if cost > _FEW_PRODUCTS or (known and cost > LEAST_PRODUCTS):
            # With a good preconditioner, about as many as the matrix would cost, of all rows.
            most = max_products
            if cost <= _FEW_PRODUCTS:
                most = min(most, math.ceil(cost))
            steps = _Products(self.problem, self.known, target, most)
            bound, drop = self._descend(steps.move, *start)
            passes = steps.passes
            if bound.total <= target or drop > target > 0.0 or cost > MANY_PRODUCTS:
                return bound, passes
        formed, _ = self._descend(self._newton_point, *start)
        return min(bound, formed), passes

    def _slope_bound(self, point: Point, dual: Dual, expected: float) -> _Bound:
        """The same from slopes that are those of no parameters, where few rows have weight.

        Near a perfect fit the slopes phi' at the optimum are smaller than what rounding a margin
        changes in them. By the Fenchel-Young inequality every s and v = -X^T (lam s) give

            min_u  lam . l(u) + g(u)  >=  lam . [l(w) - D] + g(w) - [g(w) + g*(v) - v . w]

        where phi'(t) = s and D = phi(z) - phi(t) - s (z - t) <= (phi'(z) - s) (z - t) for the
        margins z of w. The best s is near phi'(z), and v a subgradient of g at w.
        """
        engine, loss, penalty, w = self.engine, self.problem.loss, self.penalty, point.w
        lam, coef, stored = engine.weights(dual), self.problem.coefficients(w), engine.stored()
        used = np.flatnonzero(lam)
        if stored is None or used.size > w.size or used.size * w.size > MAX_ENTRIES:
            return _NO_BOUND
        if w.ndim > 1 or engine.spec.margin_offset is not None or not isinstance(penalty, Declared):
            return _NO_BOUND
        X = csr_array(stored[0][used], dtype=np.float64).toarray()
        y, lam = stored[1][used], lam[used]
        z = X @ coef + w[len(coef) :].sum()
        # Where g is smooth v is its slope, up to a number for all where coefficients have a sum.
        terms = penalty.terms(coef.shape)
        side = np.sign(terms.moves(coef))
        free = (coef > terms.lower) & (coef < terms.upper) & ((side != 0.0) | (terms.cost == 0.0))
        columns, pull = X.T[free], (penalty.l2 * coef + terms.cost * side)[free]
        if terms.total is not None and pull.size:
            columns, pull = columns - columns.mean(axis=0), pull - pull.mean()
        if engine.fit_intercept:
            columns, pull = np.vstack([columns, np.ones(len(y))]), np.append(pull, 0.0)
        slope, bend = loss.derivative(y, z), loss.curvature(y, z)
        s, root = lam * slope, np.sqrt(lam * bend)
        s += root * np.linalg.lstsq(columns * root, -pull - columns @ s)[0]
        if engine.fit_intercept:
            # An intercept has no conjugate: slopes add up to 0, as far as they are rounded.
            s -= s.sum() * root**2 / max(float(root @ root), TINY)
        size = float(np.abs(s).sum())
        residual = ROUNDINGS * len(s) * size if engine.fit_intercept else 0.0
        change = np.where(root > 0.0, s / lam - slope, 0.0)
        # A margin beyond t stands for it.
        step = 2.0 * change / np.maximum(bend, TINY)
        beyond = np.nextafter(z + step, np.copysign(np.inf, change))
        passed = (lam * loss.derivative(y, beyond) - s) * change >= 0.0
        if abs(s.sum()) > residual > 0.0 or not passed.all():
            return _NO_BOUND
        away, gradient = np.abs(beyond - z), s @ X
        bracket = penalty.fenchel_young(coef, -gradient)
        drop = expected - lam @ (loss.value(y, z) - np.abs(change) * away)
        error = self.rounding.losses(point, dual, expected, 0.0)[0]
        error += self.rounding.margins(w) * size + residual * float(away.max())
        error += self.rounding.penalty_value(self.problem.penalty_value(w), w)
        error += self.rounding.bracket(bracket, coef, gradient, size, residual)
        return _Bound(max(float(drop) + bracket, 0.0) + error, error)

    def _matrix_cost(self) -> float:
        """Products that cost as much as a matrix; 0 where there are none to be had."""
        if not self.penalty.quadratic:
            return 0.0
        if classes_by_products(self.engine):
            return MANY_PRODUCTS
        return certifying_products(self.engine)

    def _descend(
        self,
        move: Callable[[Point, Dual, FloatArray, float], FloatArray | None],
        point: Point,
        dual: Dual,
        value: float,
        slope: FloatArray | None,
        target: float,
    ) -> tuple[_Bound, float]:
        """The best bound along Newton steps for a fixed weighting, and what these have gained.

        They end when the target is met, when the slack of the bound is a small share of what they
        have gained, or when the minimum turns out to lie too low for the target.
        """
        engine, bound, drop = self.engine, _NO_BOUND, 0.0
        for _ in range(_MAX_STEPS):
            if slope is None:
                slope = engine.gradient(point, dual)
            try:
                w = move(point, dual, slope, drop)
            except (np.linalg.LinAlgError, TooManyColumnsError):
                break
            if w is None:
                break
            del point  # its vectors serve the next one
            point, slope = engine.point(w), None
            expected, penalty = engine.expected(point, dual), self.problem.penalty_value(w)
            drop = value - expected - penalty
            if not math.isfinite(drop):
                break
            error = self.rounding.margins(w)
            linear, lost = self._linear_bound(point, dual, expected, penalty, None, error)
            # Without the errors both terms together are nonnegative, up to rounding.
            bound = min(bound, _Bound(max(drop + linear, lost), lost))
            # Where curvature all but vanishes a step may go too far, and lead nowhere.
            if bound.total <= target or drop < -lost or drop > target > 0.0:
                break
            if linear - lost <= max(_SLACK * drop, lost):
                break
        return bound, drop

    def _newton_point(
        self, point: Point, dual: Dual, gradient: FloatArray, drop: float
    ) -> FloatArray:
        """Where a Newton step for a fixed weighting leads, from a p x p Hessian or from rows."""
        engine, problem = self.engine, self.problem
        if self.penalty.quadratic and engine.size > FEW_PARAMETERS and engine.in_memory:
            curvature = engine.curvature(point, dual)
            if curvature.rows:
                costs = StepCosts(engine, curvature.rows)
                if engine.size > LARGEST_HESSIAN or costs.rows_are_cheaper:
                    slope = gradient + problem.modulus() * point.w
                    return point.w + curvature.solve(slope, self.penalty.l2)
            if engine.size > LARGEST_HESSIAN:
                raise np.linalg.LinAlgError("more rows have curvature than a matrix can serve")
        part = self.known.part(problem, point.w, gradient)
        hessian = part.engine.curvature(point, dual).matrix()
        self.known.keep(problem, hessian)
        slope, center = part.take(gradient), part.take(point.w)
        if self.penalty.quadratic:
            few = step_of_few(hessian, slope, center, self.penalty.l2, part.n_penalized)
            if few is not None:
                return part.put(point.w, center + few[0])
        u, _ = minimize_quadratic(
            hessian, slope, center, part.penalty, part.n_penalized, engine.n_outputs
        )
        return part.put(point.w, u)


class _Products:
    """Newton steps by conjugate gradients, as far as the target needs them.

    They end when the model promises a bound within the target, or when the minimum turns out to lie
    so low that this weighting cannot attain it.

    Attributes
    ----------
    passes : float
        What all steps have cost.
    """

    def __init__(
        self, problem: Problem, known: KnownCurvature, target: float, max_products: int
    ) -> None:
        self._problem, self._target, self._left = problem, target, max_products
        self._inverse = known.inverse(problem)
        self.passes, self._gained = 0.0, 0.0
        # A step ends when its slack is this share of what the target leaves for it. With the best
        # intercept the slack may be more than promised: the next step goes further.
        self._share = 0.9

    def move(
        self, point: Point, dual: Dual, gradient: FloatArray, gained: float
    ) -> FloatArray | None:
        """The parameters after a step; None where no products are left."""
        if self._left <= 0:
            return None
        modulus, self._gained = self._problem.modulus(), gained
        found = minimize_model(
            self._problem.engine.curvature(point, dual),
            modulus,
            gradient + modulus * point.w,
            enough=self._is_enough,
            max_products=self._left,
            precondition=self._inverse,
        )
        self._left -= found.products
        self.passes += found.passes + 1.0
        self._share *= 0.1
        return point.w + found.step

    def _is_enough(self, left: float, decrease: float, residual: FloatArray) -> bool:
        coef = self._problem.coefficients(residual)
        slack = float(np.vdot(coef, coef)) / (2.0 * self._problem.penalty.l2)
        total = self._gained + decrease
        if self._target > 0.0:
            return slack <= self._share * (self._target - total) or total > self._target
        return slack <= 0.1 * _SLACK * total


def _least_value(problem: Problem, rounding: float) -> float:
    """A bound for free: no loss is below its declared bound, no penalty below its minimum.

    Losses may have no bound, but no risk of theirs is below their mean, except that the shares of a
    mixture add up to 1 only as far as they are rounded. `rounding` is the relative error of a
    penalty.
    """
    lowest, risk = problem.loss.lower_bound, problem.risk
    if isinstance(risk, Deviation):
        whole = risk.share == 1.0 and not isinstance(risk.risk, Mixture)
        lowest = -ROUNDINGS * problem.zero_loss if whole else -np.inf
    if lowest == -np.inf:
        return -np.inf
    shape = (problem.n_features, *problem.engine.shape[1:])
    least = -problem.penalty.conjugate(np.zeros(shape))
    return float(lowest + least - rounding * abs(least))
