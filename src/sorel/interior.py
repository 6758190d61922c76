"""Primal-dual interior-point steps for the whole problem, kinks included.

A risk whose spectrum has steps is a sum of tails, each of them a share c_k of the worst alpha_k:

    min  sum_k [ c_k t_k + sum_i u_ki s_ki ] + m . l(w) + g(w),   l_i(w) <= t_k + s_ki,  s >= 0,

where u_ki = c_k omega_i / alpha_k, and m are the weights that every order of the losses leaves. The
maximum has no s. The multipliers of the first constraints are the weights of the samples, and those
of the second what they lack to their limit. All products of a slack and its multiplier are kept at
about one number, which falls to 0: so kinks are approached from inside, all at once, where Newton
steps on a piecewise smooth function are cut short at one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray

from sorel.engines.base import Engine
from sorel.losses import Loss, SquaredHinge
from sorel.penalties import SIMPLEX, Penalty
from sorel.risks import CustomSpectrum, CVaR, Deviation, Max, Mean, Mixture, Risk

__all__ = [
    "BlurredHinge",
    "InteriorModel",
    "InteriorPath",
    "Tails",
    "can_step_inside",
    "most_tails",
]

FloatArray = NDArray[np.float64]

# Rows times the square of the parameters, and rows times tails, up to which a step is worth its
# time.
_MOST_WORK, _MOST_PAIRS = 300_000_000, 200_000

# A rise of the spectrum by less than this share of its height makes no tail of its own.
_LEAST_RISE = 1e-14

# How far inside finite bounds a start lies, as a share of their distance. On the simplex it has
# this share of equal coefficients, or less where these make losses so many times larger: so many
# shares are tried, down to the least.
_INSIDE, _MUCH_LARGER, _BLENDS, _LEAST_INSIDE = 0.1, 10.0, 10, 1e-10

# Steps end at this share of the way to the boundary. Losses above their linearisation take slack
# away: of what a step promised at least the second share is restored, and what that costs may be no
# more than the third share of the products; else the step is cut by the last factor, so many times
# at most.
_TO_BOUNDARY, _LEAST_SLACK, _MOST_RESTORED, _CUT, _MOST_CUTS = 0.995, 0.3, 0.3, 0.6, 30

# The products are aimed at this share of their mean, at least, and at the second after a step
# shorter than the third number, without a correction of second order. They are to fall from what
# they were at the start to this share of it no sooner than the gradient has: far down an
# exponential it takes its time.
_LEAST_AIM, _CAREFUL_AIM, _SHORT, _SOONER = 1e-4, 0.3, 0.1, 1e-3

# What is added to a matrix of unit diagonal so that it has a Cholesky factor, and how often more.
_RIDGE, _MORE, _MOST_RIDGES = 1e-15, 100.0, 7

# Solutions of linear systems are improved so often.
_REFINEMENTS = 2

# The blur of hinges falls to this share of itself after a step of at least this length.
_NEXT_BLUR, _FULL = 0.2, 0.5

_TINY = 1e-300


def can_step_inside(engine: Engine, penalty: Penalty) -> bool:
    """Whether there are such steps: the data are in memory and few, the penalty is known."""
    if engine.stored() is None or not penalty.compiled:
        return False
    n, risk = engine.n_samples, engine.spec.risk
    if n * engine.size**2 > _MOST_WORK or most_tails(risk, n) * n > _MOST_PAIRS:
        return False
    kernel = penalty.kernel(engine.n_features)
    return bool(np.all(kernel.lower < kernel.upper))


def flat(risk: Risk, share: float = 1.0) -> list[tuple[float, Risk]]:
    """The risks of a mixture, and of mixtures in it, with their shares; else the risk itself."""
    if not isinstance(risk, Mixture):
        return [(share, risk)]
    found: list[tuple[float, Risk]] = []
    for part, inner in zip(risk._shares, risk.components, strict=True):
        found += flat(inner, share * part)
    return found


def most_tails(risk: Risk, n: int) -> int:
    """How many tails a risk of n samples has, at most: see :class:`Tails`."""
    count = 0
    for _, part in flat(risk.risk if isinstance(risk, Deviation) else risk):
        if isinstance(part, (CVaR, Max)):
            count += 1
        elif not isinstance(part, Mean):
            vector = part.density if isinstance(part, CustomSpectrum) else None
            count += len(vector) if isinstance(vector, tuple) else n
    return count


class BlurredHinge(Loss):
    """The squared hinge without its kink: h^2 with 2 h (h - r) = blur, for r = 1 - y z.

    The squared hinge is the least h^2 with h >= r, and this the same with the product of the slack
    h - r and its multiplier held at a number. It lies above the squared hinge.

    Parameters
    ----------
    blur : float
        That number, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel.interior import BlurredHinge
    >>> BlurredHinge(1e-6).value(np.ones(2), np.array([-1.0, 2.0])).round(5)
    array([4., 0.])
    """

    name = "blurred_hinge"
    lower_bound = 0.0
    is_classifier = True

    def __init__(self, blur: float) -> None:
        self.blur = blur

    def _parts(self, y: Any, margins: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
        r = 1.0 - y * margins
        root = np.sqrt(r * r + 2.0 * self.blur)
        h = np.where(r > 0.0, 0.5 * (r + root), self.blur / (root + np.abs(r)))
        return h, r, root

    def value(self, y: Any, margins: Any) -> FloatArray:
        """Loss of each sample."""
        return np.asarray(self._parts(y, margins)[0] ** 2)

    def derivative(self, y: Any, margins: Any) -> FloatArray:
        """First derivative in the margin."""
        h, _, root = self._parts(y, margins)
        return np.asarray(-2.0 * y * h * (h / root))

    def curvature(self, y: Any, margins: Any) -> FloatArray:
        """Second derivative in the margin."""
        h, r, root = self._parts(y, margins)
        return np.asarray(2.0 * (h / root) ** 2 * (2.0 - r / root))


class Tails(NamedTuple):
    """A risk as a sum of tails.

    Attributes
    ----------
    common : float
        What each sample has of its own weight, whatever the order of the losses.
    shares, levels : arrays of shape (m,)
        The weight of each tail, and the part of all samples that it consists of; 0 for the maximum,
        which comes last.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR, Max, Mean, Mixture
    >>> from sorel.interior import Tails
    >>> risk = Mixture([Mean(), CVaR(0.25), Max()], [0.5, 0.25, 0.25])
    >>> Tails.of(risk, np.full(4, 0.25), np.arange(4.0))
    Tails(common=0.5, shares=array([0.25, 0.25]), levels=array([0.25, 0.  ]))
    """

    common: float
    shares: FloatArray
    levels: FloatArray

    @classmethod
    def of(cls, risk: Risk, omega: FloatArray, losses: FloatArray) -> Tails:
        """The tails of a risk for samples of these weights, none of them 0.

        A smooth spectrum has steps where samples follow each other in the order of the losses.
        Without sample weights these are the same for all orders. With them the tails are those of
        the given losses, and an approximation for others.
        """
        common, tails = 0.0, {0.0: 0.0}
        ordered = omega[np.argsort(losses, kind="stable")]
        for share, part in flat(risk):
            if isinstance(part, Mean) or (isinstance(part, CVaR) and part.alpha >= 1.0):
                common += share
            elif isinstance(part, Max):
                tails[0.0] += share
            elif isinstance(part, CVaR):
                tails[part.alpha] = tails.get(part.alpha, 0.0) + share
            else:
                # A density that is a vector has its own steps.
                vector = part.density if isinstance(part, CustomSpectrum) else None
                widths = ordered
                if isinstance(vector, tuple):
                    widths = np.full(len(vector), 1.0 / len(vector))
                heights = share * part.increments(widths) / widths
                above = np.minimum(np.cumsum(widths[::-1])[::-1], 1.0)
                common += float(heights[0])
                for k in np.flatnonzero(np.diff(heights) > _LEAST_RISE * heights[-1]) + 1:
                    level, rise = float(above[k]), float(heights[k] - heights[k - 1])
                    tails[level] = tails.get(level, 0.0) + rise * level
        found = [(share, level) for level, share in sorted(tails.items(), reverse=True) if share]
        shares, levels = np.array(found).reshape(-1, 2).T
        return cls(common, shares, levels)


@dataclass
class InteriorModel:
    """A problem in units that suit its columns, as the steps see it.

    Attributes
    ----------
    rows : array of shape (n, q)
        The rows that have a weight, their columns divided by `scale`, and ones for the intercept.
    scale : array of shape (q,)
        Sizes of the columns.
    targets, omega : arrays of length n
        Targets and weights of these rows.
    used : array of int
        Which rows they are.
    tails : Tails
        The risk.
    off : float
        The share of the mean that a deviation takes off.
    loss : Loss
        The loss.
    outputs : int
        Margins of each row.
    l2, l1, linear, lower, upper : arrays of shape (p,)
        The penalty of the scaled parameters, p = q * outputs of them.
    sums : array of shape (outputs, p) or None
        What adds up to 1 on the simplex.
    """

    rows: FloatArray
    scale: FloatArray
    targets: NDArray[Any]
    omega: FloatArray
    used: NDArray[np.intp]
    tails: Tails
    off: float
    loss: Loss
    outputs: int
    l2: FloatArray
    l1: FloatArray
    linear: FloatArray
    lower: FloatArray
    upper: FloatArray
    sums: FloatArray | None

    @classmethod
    def of(cls, engine: Engine, penalty: Penalty, losses: FloatArray) -> InteriorModel:
        """The model of a problem for which there are such steps.

        The losses are those of a point that is as good as can be had: see :meth:`Tails.of`.
        """
        spec, stored = engine.spec, engine.stored()
        assert stored is not None
        X, y = stored
        n, d = X.shape
        weight = spec.sample_weight
        omega = np.full(n, 1.0 / n) if weight is None else np.asarray(weight)
        used = np.flatnonzero(omega > 0.0)
        X = X[used]
        X = np.asarray(X.toarray() if scipy.sparse.issparse(X) else X, dtype=np.float64)
        scale = np.sqrt(np.mean(X * X, axis=0))
        scale[scale == 0.0] = 1.0
        rows = X / scale
        if engine.fit_intercept:
            rows, scale = np.hstack([rows, np.ones((len(rows), 1))]), np.append(scale, 1.0)
        risk, off = spec.risk, 0.0
        if isinstance(risk, Deviation):
            off, risk = float(risk.share), risk.risk
        tails = Tails.of(risk, omega[used], losses[used])
        outputs, kernel = engine.n_outputs, penalty.kernel(d)

        def filled(values: Any, beyond: float = 0.0) -> FloatArray:
            """Numbers of the coefficients, for all parameters."""
            table = np.full((len(scale), outputs), beyond)
            table[:d] = np.asarray(values)[:, None]
            return table.ravel()

        columns = scale[:d]
        l1 = filled(kernel.l1 / columns)
        lower, upper = (
            filled(kernel.lower * columns, -np.inf),
            filled(kernel.upper * columns, np.inf),
        )
        one_sided = lower >= 0.0
        sums = None
        if kernel.code == SIMPLEX:
            upper[:] = np.inf
            table = np.zeros((outputs, len(scale), outputs))
            for k in range(outputs):
                table[k, :d, k] = 1.0 / columns
            sums = table.reshape(outputs, -1)
        return cls(
            rows, scale, y[used], omega[used], used, tails, off, spec.loss, outputs,
            l2=filled(kernel.l2 / columns**2), l1=np.where(one_sided, 0.0, l1),
            linear=np.where(one_sided, l1, 0.0), lower=lower, upper=upper, sums=sums,
        )  # fmt: skip

    def scaled(self, w: FloatArray) -> FloatArray:
        """Parameters of the problem in the units of the model."""
        return (w.reshape(len(self.scale), -1) * self.scale[:, None]).ravel()

    def unscaled(self, w: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        """The way back."""
        return (w.reshape(len(self.scale), -1) / self.scale[:, None]).reshape(shape)

    def margins(self, w: FloatArray) -> FloatArray:
        """Margins of the rows, one column for each output."""
        return self.rows @ w.reshape(-1, self.outputs)

    def losses(self, margins: FloatArray) -> FloatArray:
        """Losses of the rows."""
        return self.loss.value(self.targets, margins if self.outputs > 1 else margins[:, 0])

    def slopes(self, margins: FloatArray) -> FloatArray:
        """Derivatives of the losses in their margins, shaped like these."""
        if self.outputs > 1:
            return self.loss.derivative(self.targets, margins)
        return self.loss.derivative(self.targets, margins[:, 0])[:, None]

    def jacobian(self, margins: FloatArray) -> FloatArray:
        """Gradients of the losses, one row each."""
        slopes = self.slopes(margins)
        return (self.rows[:, :, None] * slopes[:, None, :]).reshape(len(self.rows), -1)

    def hessian(self, margins: FloatArray, weights: FloatArray) -> FloatArray:
        """Curvature of the weighted losses."""
        if self.outputs == 1:
            bend = weights * self.loss.curvature(self.targets, margins[:, 0])
            return (self.rows.T * bend) @ self.rows
        bends = weights[:, None, None] * self.loss.curvature(self.targets, margins)
        q, k = self.rows.shape[1], self.outputs
        out = np.empty((q, k, q, k))
        for a in range(k):
            for b in range(a + 1):
                block = (self.rows.T * bends[:, a, b]) @ self.rows
                out[:, a, :, b], out[:, b, :, a] = block, block
        return out.reshape(q * k, q * k)


class _Direction(NamedTuple):
    """A step of everything."""

    w: FloatArray
    t: FloatArray
    v: FloatArray
    sums: FloatArray
    slacks: list[FloatArray]
    multipliers: list[FloatArray]


class InteriorPath:
    """Where the steps are, and the next one.

    Parameters
    ----------
    model : InteriorModel
        The problem.
    start : array of shape (p,)
        Parameters to start from, moved inside their bounds, and on the simplex away from them.

    Attributes
    ----------
    w : array of shape (p,)
        Scaled parameters.
    gap : float
        Sum of all products of slacks and multipliers, and the blur of hinges: the distance of
        objective and bound, once the gradient vanishes.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.interior import InteriorModel, InteriorPath
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.Max(), penalty=sorel.L2(0.1))
    >>> model = InteriorModel.of(problem.engine, problem.penalty, problem.losses([0.0]))
    >>> path = InteriorPath(model, np.zeros(1))
    >>> while path.gap > 1e-9:
    ...     path.step()
    >>> w = model.unscaled(path.w, (1,))
    >>> bool(problem.objective(w) - problem.certificate(w, path.weights).dual < 1e-8)
    True
    """

    @np.errstate(all="ignore")
    def __init__(self, model: InteriorModel, start: FloatArray) -> None:
        self.model = model
        tails, omega, n = model.tails, model.omega, len(model.omega)
        self._low = np.flatnonzero(np.isfinite(model.lower))
        self._high = np.flatnonzero(np.isfinite(model.upper))
        self._kinked = np.flatnonzero(model.l1 > 0.0)
        shares, levels = tails.shares, tails.levels
        self._capped = int(np.count_nonzero(levels))  # the maximum, which has no limit, is last
        limits = (shares / np.where(levels > 0.0, levels, 1.0))[:, None] * omega
        self._limits = limits[: self._capped]
        self._fixed = (tails.common - model.off) * omega
        margins = model.margins(start)
        # Without other kinks the steps would be those of Newton's method, from hinge to hinge.
        smooth = not (len(shares) or len(self._low) or len(self._high) or len(self._kinked))
        self._blur = 0.0
        if smooth and isinstance(model.loss, SquaredHinge):
            self._blur = max(float(np.mean(model.losses(margins))), _TINY)
            model.loss = BlurredHinge(self._blur)
        size, slope = (
            float(np.mean(np.abs(values)))
            for values in (model.losses(margins), model.slopes(margins))
        )
        # A move of all margins that changes the losses by about their size.
        reach = size / slope if size > 0.0 and slope > 0.0 else 1.0
        w = self._inside(start, reach)
        self.w, self._margins = w, model.margins(w)
        losses = model.losses(self._margins)
        product = max(float(np.mean(np.abs(losses))), float(np.ptp(losses)), _TINY) / n
        lam = np.empty((len(shares), n))
        lam[: self._capped] = shares[: self._capped, None] * omega
        lam[self._capped :] = shares[self._capped :, None] / n
        rest = self._limits - lam[: self._capped]
        beyond = np.zeros_like(lam)
        beyond[: self._capped] = product / np.maximum(rest, _TINY)
        self._t = np.max(losses - beyond, axis=1) + n * product / shares
        room = self._t[:, None] + beyond - losses
        l1 = model.l1[self._kinked]
        inside = w[self._kinked]
        self._v = np.abs(inside) + 2.0 * product / l1
        self._slacks = [
            room, beyond[: self._capped], w[self._low] - model.lower[self._low],
            model.upper[self._high] - w[self._high], self._v - inside, self._v + inside,
        ]  # fmt: skip
        self._multipliers = [
            lam, rest, product / self._slacks[2], product / self._slacks[3], 0.5 * l1, 0.5 * l1,
        ]  # fmt: skip
        self._count = sum(slack.size for slack in self._slacks)
        self._sums = np.zeros(0 if model.sums is None else len(model.sums))
        self._length = 1.0
        self._first: tuple[float, float] | None = None  # gap and gradient

    def _inside(self, w: FloatArray, reach: float) -> FloatArray:
        model = self.model
        if model.sums is not None:
            return self._blended(w)
        with np.errstate(invalid="ignore"):
            pad = np.fmin(reach, _INSIDE * (model.upper - model.lower))
        return np.clip(w, model.lower + pad, model.upper - pad)

    def _blended(self, w: FloatArray) -> FloatArray:
        """Parameters between those given and equal coefficients, as far as losses stay finite."""
        model = self.model
        assert model.sums is not None
        ones = model.sums.sum(axis=0)
        coef = ones > 0.0
        equal = w.copy()
        equal[coef] = 1.0 / (ones[coef] * np.count_nonzero(model.sums[0]))
        size = float(np.mean(np.abs(model.losses(model.margins(w)))))
        for share in np.geomspace(_INSIDE, _LEAST_INSIDE, _BLENDS):
            blend = (1.0 - share) * w + share * equal
            if np.mean(np.abs(model.losses(model.margins(blend)))) <= _MUCH_LARGER * size:
                break
        return blend

    @property
    def gap(self) -> float:
        """Sum of all products of slacks and multipliers, and the blur."""
        return self._blur + self._products()

    @property
    def length(self) -> float:
        """The part of the last step that was taken."""
        return self._length

    @property
    def weights(self) -> FloatArray:
        """Weights of the rows of the model, up to how far they are from their set."""
        return self._multipliers[0].sum(axis=0) + self.model.tails.common * self.model.omega

    @np.errstate(all="ignore")
    def step(self) -> None:
        """Take one step, with a correction of second order.

        Raises
        ------
        LinAlgError
            Where rounding errors leave no direction.
        """
        if self._blur > 0.0:
            self._sharpen()
        system = _System(self)
        gap = self._products()
        careful = self._length < _SHORT
        ahead = system.direction([-x * y for x, y in self._pairs()])
        length = min(1.0, self._longest(ahead))
        left = sum(
            float(np.vdot(x + length * dx, y + length * dy))
            for (x, y), dx, dy in zip(self._pairs(), ahead.slacks, ahead.multipliers, strict=True)
        )
        aim = min(1.0, max(left / gap, 0.0) ** 3) if gap > 0.0 else 0.0
        aim = max(aim, _CAREFUL_AIM if careful else _LEAST_AIM) * gap
        residual = float(np.max(np.abs(system.gradient)))
        if self._first is None:
            self._first = gap, residual
        aim = max(aim, min(gap, _SOONER * self._first[0] * residual / max(self._first[1], _TINY)))
        aim /= max(self._count, 1)
        second = 0.0 if careful else 1.0
        direction = system.direction(
            [
                aim - x * y - second * dx * dy
                for (x, y), dx, dy in zip(
                    self._pairs(), ahead.slacks, ahead.multipliers, strict=True
                )
            ]
        )
        self._move(direction, min(1.0, _TO_BOUNDARY * self._longest(direction)), gap)

    def _sharpen(self) -> None:
        """Take blur from the hinges after a full step."""
        if self._length >= _FULL:
            self._blur *= _NEXT_BLUR
            self.model.loss = BlurredHinge(self._blur)

    def _products(self) -> float:
        return sum((float(np.vdot(x, y)) for x, y in self._pairs()), 0.0)

    def _pairs(self) -> list[tuple[FloatArray, FloatArray]]:
        return list(zip(self._slacks, self._multipliers, strict=True))

    def _longest(self, direction: _Direction) -> float:
        """How far slacks and multipliers stay positive."""
        longest = math.inf
        for values, changes in (
            *zip(self._slacks, direction.slacks, strict=True),
            *zip(self._multipliers, direction.multipliers, strict=True),
        ):
            falling = changes < 0.0
            if falling.any():
                longest = min(longest, float(np.min(values[falling] / -changes[falling])))
        return longest

    def _move(self, direction: _Direction, length: float, gap: float) -> None:
        """Go along a direction, less far where the losses bend too much."""
        model, capped = self.model, self._capped
        for _ in range(_MOST_CUTS):
            w = self.w + length * direction.w
            margins = model.margins(w)
            losses = model.losses(margins)
            slacks = [x + length * dx for x, dx in zip(self._slacks, direction.slacks, strict=True)]
            t = self._t + length * direction.t
            room = t[:, None] - losses
            room[:capped] += slacks[1]
            missing = np.maximum(_LEAST_SLACK * slacks[0] - room, 0.0)
            lift = missing[capped:].max(axis=1, initial=0.0)
            rest = self._multipliers[1] + length * direction.multipliers[1]
            cost = float(np.vdot(missing[:capped], rest))
            cost += float(lift @ model.tails.shares[capped:])
            if np.isfinite(losses).all() and cost <= _MOST_RESTORED * gap:
                break
            length *= _CUT
        else:
            raise np.linalg.LinAlgError("no step leads anywhere")
        slacks[1] = slacks[1] + missing[:capped]
        t[capped:] += lift
        room[:capped] += missing[:capped]
        room[capped:] += lift[:, None]
        slacks[0] = room
        self.w, self._t, self._margins = w, t, margins
        self._v = self._v + length * direction.v
        self._sums = self._sums + length * direction.sums
        self._slacks, self._length = slacks, length
        self._multipliers = [
            y + length * dy for y, dy in zip(self._multipliers, direction.multipliers, strict=True)
        ]


class _System:
    """The linear system of a step, with all but the parameters eliminated."""

    def __init__(self, path: InteriorPath) -> None:
        self.path, model = path, path.model
        room, beyond, below, above, left, right = path._slacks
        lam, rest, low, high, first, second = path._multipliers
        capped, kinked = path._capped, path._kinked
        self.jacobian = model.jacobian(path._margins)
        total = lam.sum(axis=0) + path._fixed
        gradient = self.jacobian.T @ total + model.l2 * path.w + model.linear
        gradient[path._low] -= low
        gradient[path._high] += high
        gradient[kinked] += first - second
        if model.sums is not None:
            gradient += model.sums.T @ path._sums
        self.gradient = gradient
        self.missing = model.tails.shares - lam.sum(axis=1)
        stiff = room / lam
        stiff[:capped] += beyond / rest
        self.stiff = 1.0 / stiff
        self.sums = self.stiff.sum(axis=1)
        self.means = self.stiff @ self.jacobian
        matrix = model.hessian(path._margins, total)
        matrix += (self.jacobian.T * self.stiff.sum(axis=0)) @ self.jacobian
        matrix -= (self.means.T / self.sums) @ self.means
        diagonal = matrix.ravel()[:: len(matrix) + 1]
        diagonal += model.l2
        diagonal[path._low] += low / below
        diagonal[path._high] += high / above
        self.pulls = first / left, second / right
        self.pull = self.pulls[0] + self.pulls[1]
        diagonal[kinked] += 4.0 * self.pulls[0] * (self.pulls[1] / self.pull)
        self.matrix = matrix
        if not np.isfinite(matrix).all():
            raise np.linalg.LinAlgError("the steps overflow")
        self.unit = 1.0 / np.sqrt(np.maximum(diagonal, _TINY))
        self.factor = self._factor()
        if model.sums is not None:
            self.responses = np.column_stack([self.solve(row) for row in model.sums])

    def _factor(self) -> Any:
        scaled = self.matrix * self.unit * self.unit[:, None]
        diagonal, ridge = scaled.ravel()[:: len(scaled) + 1], _RIDGE
        ones = diagonal.copy()
        for _ in range(_MOST_RIDGES):
            diagonal[:] = ones + ridge
            try:
                return scipy.linalg.cho_factor(scaled, lower=True, check_finite=False)
            except np.linalg.LinAlgError:
                ridge *= _MORE
        raise np.linalg.LinAlgError("the curvature is lost to rounding")

    def solve(self, right: FloatArray) -> FloatArray:
        """A vector that the matrix takes to another, about."""
        found = self._solve_once(right)
        for _ in range(_REFINEMENTS):
            found = found + self._solve_once(right - self.matrix @ found)
        return found

    def _solve_once(self, right: FloatArray) -> FloatArray:
        inner = scipy.linalg.cho_solve(self.factor, self.unit * right, check_finite=False)
        return np.asarray(self.unit * inner)

    def direction(self, targets: list[FloatArray]) -> _Direction:
        """The step that changes the products of slacks and multipliers by so much."""
        path, model = self.path, self.path.model
        _, beyond, below, above, left, right = path._slacks
        lam, rest, low, high, _, _ = path._multipliers
        capped, kinked = path._capped, path._kinked
        wanted = targets[0] / lam
        wanted[:capped] -= targets[1] / rest
        wanted *= self.stiff
        shift = (wanted.sum(axis=1) - self.missing) / self.sums
        force = -self.gradient - self.jacobian.T @ wanted.sum(axis=0) + self.means.T @ shift
        force[path._low] += targets[2] / below
        force[path._high] -= targets[3] / above
        one, other = targets[4] / left, targets[5] / right
        tilt = (self.pulls[0] - self.pulls[1]) / self.pull
        force[kinked] -= one - other - tilt * (one + other)
        w: FloatArray = self.solve(force)
        sums: FloatArray = np.zeros(0)
        if model.sums is not None:
            sums = np.asarray(np.linalg.solve(model.sums @ self.responses, model.sums @ w), float)
            w = w - self.responses @ sums
        t = shift + (self.means @ w) / self.sums
        moves = self.jacobian @ w
        d_lam = wanted + self.stiff * (moves - t[:, None])
        d_beyond = (targets[1] + beyond * d_lam[:capped]) / rest
        d_room = t[:, None] - moves
        d_room[:capped] += d_beyond
        inside = w[kinked]
        v = (one + other) / self.pull + tilt * inside
        d_first = one - self.pulls[0] * (v - inside)
        return _Direction(
            w, t, v, sums,
            [d_room, d_beyond, w[path._low], -w[path._high], v - inside, v + inside],
            [
                d_lam, -d_lam[:capped], (targets[2] - low * w[path._low]) / below,
                (targets[3] + high * w[path._high]) / above, d_first, -d_first,
            ],
        )  # fmt: skip
