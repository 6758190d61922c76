"""Losses phi(y, z) of a target and a margin z = x.w + b, and the registry of the package's own.

A loss knows its value and its first and second derivative in z, how to read the targets a user
gives, and nothing of X. What else a solver, the certificate or a prediction needs to know, a loss
declares: a lower bound, a bound on the curvature, a Lipschitz constant, its link, the words of the
command line. A class here and its name in `LOSSES` is all that the package knows of a loss, but for
the formulas of its code in the compiled loops, where it has one. Formulas are written once, for
NumPy's arrays and for torch's tensors.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, softmax

import sorel._core as _core
from sorel._lib.devices import is_tensor
from sorel._lib.inputs import check_present, is_real

__all__ = [
    "LOSSES",
    "Gamma",
    "Huber",
    "Linear",
    "Logistic",
    "Loss",
    "Multinomial",
    "Poisson",
    "Squared",
    "SquaredHinge",
    "parse_loss",
]

FloatArray = NDArray[np.float64]

# Below this, exp(t) - 1 - t has lost too many digits of t.
_SERIES_BELOW = 0.05


def _vector(y: ArrayLike) -> NDArray[Any]:
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.ravel()
    if array.ndim != 1:
        raise ValueError(f"y must be one-dimensional, got shape {array.shape}")
    return array


def _finite_vector(y: ArrayLike, what: str) -> FloatArray:
    array = _vector(y)
    if array.dtype.kind not in "fiub":
        try:
            # Only numbers that happen to be objects: text and complex numbers are another matter.
            if array.dtype.kind != "O" or any(isinstance(v, (str, bytes, complex)) for v in array):
                raise TypeError
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"y must be numeric for the {what} loss, got dtype {array.dtype} "
                f"(first value {array[:1].tolist()}); for class labels use loss='logistic'"
            ) from None
    out = np.ascontiguousarray(array, dtype=np.float64)
    if not np.all(np.isfinite(out)):
        bad = int(np.flatnonzero(~np.isfinite(out))[0])
        raise ValueError(
            f"y has a value that is not finite: y[{bad}] = {array[bad]}; drop or impute such rows"
        )
    return out


class Loss(ABC):
    """Base of all losses: a convex function of the margin, and what is known about it.

    Derive from it to bring your own: set `name`, write `value`, `derivative` and `curvature` for
    arrays, and declare what holds. The defaults claim nothing. A solver that needs more than a loss
    declares refuses it by name. A lower bound must be right: the certificate relies on it.

    Attributes
    ----------
    name : str
        What messages, and ``Problem(loss=...)`` for the package's own, call it.
    lower_bound : float
        A number that phi never falls below; -inf (default) where none is known.
    curvature_bound : float
        A number that the second derivative never exceeds; inf (default) where none is known.
    lipschitz : float
        A number that the size of the derivative never exceeds; inf (default) where none is known.
    affine : bool
        Whether phi is affine in the margin.
    translates : bool
        Whether phi(y + c, z + c) = phi(y, z): an offset of y is then one of the intercept.
    link : str
        "identity", "log" or "logit": the function of the prediction that the margin is. A
        classifier has probabilities under "logit" alone.
    is_classifier : bool
        Whether the targets are two class labels, which the formulas see as -1 and 1.
    words : str
        What reports call the losses of samples. The command line offers those of the package's own
        that have some.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> class LogCosh(sorel.losses.Loss):
    ...     name = "log_cosh"
    ...     lower_bound, curvature_bound, lipschitz = 0.0, 1.0, 1.0
    ...     def value(self, y, z):
    ...         return np.logaddexp(z - y, y - z) - np.log(2)
    ...     def derivative(self, y, z):
    ...         return np.tanh(z - y)
    ...     def curvature(self, y, z):
    ...         return 1 - np.tanh(z - y) ** 2
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5), loss=LogCosh())
    >>> sorel.solve(problem).converged
    True
    """

    name: str
    lower_bound: float = -math.inf
    curvature_bound: float = math.inf
    lipschitz: float = math.inf
    affine: bool = False
    translates: bool = False
    link: str = "identity"
    is_classifier: bool = False
    words: str = "losses"

    @abstractmethod
    def value(self, y: Any, margins: Any) -> FloatArray:
        """Loss of each sample; `y` encoded (numbers, or -1 and 1)."""

    @abstractmethod
    def derivative(self, y: Any, margins: Any) -> FloatArray:
        """First derivative in the margin."""

    @abstractmethod
    def curvature(self, y: Any, margins: Any) -> FloatArray:
        """Second derivative in the margin, at least 0."""

    def majorant(self, y: Any, margins: Any) -> Any:
        """Curvature of a parabola that touches phi at the margin and lies above it.

        Newton steps fall back on it where they overshoot. Here it is phi'^2 / (phi - lower_bound),
        between the curvature and its bound. A convex loss has its minimum at a distance of at least
        (phi - lower_bound) / |phi'|, and this is the curvature of a parabola that gets there: far
        less than the bound where the loss is all but linear.
        """
        xp, y, z = _arrays(y, margins)
        curvature = self.curvature(y, z)
        if not self.curvature_bound < math.inf:
            return curvature
        bound = xp.full_like(z, self.curvature_bound)
        if self.lower_bound == -math.inf:
            return bound
        slope, above = self.derivative(y, z), self.value(y, z) - self.lower_bound
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            chord = slope**2 / above
        return xp.where(chord < bound, xp.maximum(chord, curvature), bound)

    def predict(self, margins: ArrayLike) -> FloatArray:
        """What the margins predict: the inverse of the link."""
        z = np.asarray(margins, dtype=np.float64)
        if self.link == "log":
            # A prediction beyond the largest number is infinite, and no surprise.
            with np.errstate(over="ignore"):
                return np.exp(z)
        return np.asarray(expit(z)) if self.link == "logit" else z

    def margins(self, predictions: ArrayLike) -> FloatArray:
        """The margins behind predictions: the link."""
        mean = np.asarray(predictions, dtype=np.float64)
        if self.link == "identity":
            return mean
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(mean) if self.link == "log" else np.asarray(logit(mean))

    def n_outputs(self, classes: NDArray[Any] | None) -> int:
        """Margins per sample."""
        return 1

    def encode(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Targets as the formulas want them, and the class labels if there are any."""
        if not self.is_classifier:
            return _finite_vector(y, self.name), None
        codes, classes = _class_codes(y)
        if len(classes) > 2:
            raise ValueError(
                f"the {self.name} loss takes two classes, y has {len(classes)}; "
                "use loss='multinomial' for more"
            )
        return np.where(codes == 1, 1.0, -1.0), classes


def _arrays(y: Any, margins: Any) -> tuple[Any, Any, Any]:
    """The library of the margins, NumPy or torch, and targets and margins as its arrays."""
    if is_tensor(margins):
        return sys.modules["torch"], y, margins
    return np, np.asarray(y, dtype=np.float64), np.array(margins, dtype=np.float64, ndmin=1)


class _Compiled(Loss):
    """A loss whose formulas the compiled loops have too, under its name.

    Their proximal map works in a number t in which the loss does not decrease: |z - y|, y - z
    or -y z.
    """

    @property
    def parameter(self) -> float:
        """The number that the compiled loops need besides the name."""
        return 1.0

    def proximal_number(self, y: Any, margins: Any) -> Any:
        """The numbers t of given margins."""
        return -y * margins

    def proximal_margin(self, y: Any, t: Any, before: Any) -> Any:
        """Margins with the numbers t, on the side where they were before."""
        return -y * t


class _OfResidual(_Compiled):
    """A loss of |z - y|."""

    translates = True
    lower_bound = 0.0
    curvature_bound = 1.0

    def proximal_number(self, y: Any, margins: Any) -> Any:
        return np.abs(margins - y)

    def proximal_margin(self, y: Any, t: Any, before: Any) -> Any:
        return y + np.copysign(t, before - y)


@dataclass(frozen=True)
class Squared(_OfResidual):
    """Half the squared residual, ``(z - y)**2 / 2``.

    Examples
    --------
    >>> from sorel.losses import Squared
    >>> Squared().value([0.0], [3.0])
    array([4.5])
    """

    name = "squared"
    words = "losses: half the squared error"

    def value(self, y: Any, margins: Any) -> Any:
        _, y, z = _arrays(y, margins)
        return 0.5 * (z - y) ** 2

    def derivative(self, y: Any, margins: Any) -> Any:
        _, y, z = _arrays(y, margins)
        return z - y

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, _, z = _arrays(y, margins)
        return xp.ones_like(z)


@dataclass(frozen=True)
class Huber(_OfResidual):
    """Quadratic up to `delta`, linear beyond (Huber 1964).

    Parameters
    ----------
    delta : float, default=1.0
        Residual at which the loss turns linear, in the units of y.

    Examples
    --------
    >>> from sorel.losses import Huber
    >>> Huber(1.0).value([0.0, 0.0], [0.5, 3.0])
    array([0.125, 2.5  ])
    """

    delta: float = 1.0
    name = "huber"
    words = "losses: half the squared error, linear beyond an error of 1"

    def __post_init__(self) -> None:
        if not (is_real(self.delta) and 0 < self.delta < np.inf):
            raise ValueError(f"delta must be a finite number above 0, got {self.delta!r}")

    @property
    def parameter(self) -> float:
        return float(self.delta)

    @property
    def lipschitz(self) -> float:  # type: ignore[override] # a constant of the instance here
        """The derivative is clipped at delta."""
        return float(self.delta)

    def value(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        r = xp.abs(z - y)
        inner = xp.clip(r, 0.0, self.parameter)
        # min(r, delta) (r - min(r, delta) / 2) is both branches at once.
        return inner * (r - 0.5 * inner)

    def derivative(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return xp.clip(z - y, -self.parameter, self.parameter)

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return xp.ones_like(z) * (xp.abs(z - y) <= self.parameter)


@dataclass(frozen=True)
class Logistic(_Compiled):
    """``log(1 + exp(-y z))`` with y in {-1, 1}; any two labels are accepted, sorted.

    Examples
    --------
    >>> from sorel.losses import Logistic
    >>> Logistic().value([1.0, -1.0], [1e4, 1e4])
    array([    0., 10000.])
    """

    name = "logistic"
    words = "losses: minus the logarithm of the probability given to the true label"
    lower_bound = 0.0
    curvature_bound = 0.25
    lipschitz = 1.0
    link = "logit"
    is_classifier = True

    def value(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        m = y * z
        return xp.log1p(xp.exp(-xp.abs(m))) - xp.clip(m, None, 0.0)

    def derivative(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        sigmoid: Any = expit if xp is np else xp.sigmoid
        return -y * sigmoid(-y * z)

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        e = xp.exp(-xp.abs(y * z))
        return e / (1.0 + e) ** 2


@dataclass(frozen=True)
class SquaredHinge(_Compiled):
    """``max(0, 1 - y z)**2`` with y in {-1, 1}; any two labels are accepted, sorted.

    Examples
    --------
    >>> from sorel.losses import SquaredHinge
    >>> SquaredHinge().value([1.0, 1.0], [0.0, 2.0])
    array([1., 0.])
    """

    name = "squared_hinge"
    words = "losses: squared shortfall of the margin"
    lower_bound = 0.0
    curvature_bound = 2.0
    is_classifier = True

    def value(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return xp.clip(1.0 - y * z, 0.0, None) ** 2

    def derivative(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return -2.0 * y * xp.clip(1.0 - y * z, 0.0, None)

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return 2.0 * xp.ones_like(z) * (y * z < 1.0)


@dataclass(frozen=True)
class Linear(_Compiled):
    """The residual itself, ``y - z``: losses of a portfolio (y = 0), or deviations of residuals.

    It has no lower bound, so it needs a penalty with a bounded domain or with l2 > 0, or a
    deviation as the risk.

    Examples
    --------
    >>> from sorel.losses import Linear
    >>> Linear().value([0.0, 0.0], [0.5, -0.5])
    array([-0.5,  0.5])
    """

    name = "linear"
    words = "losses: target minus prediction"
    curvature_bound = 0.0
    lipschitz = 1.0
    affine = True

    def value(self, y: Any, margins: Any) -> Any:
        _, y, z = _arrays(y, margins)
        return y - z

    def derivative(self, y: Any, margins: Any) -> Any:
        xp, _, z = _arrays(y, margins)
        return -xp.ones_like(z)

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, _, z = _arrays(y, margins)
        return xp.zeros_like(z)

    def proximal_number(self, y: Any, margins: Any) -> Any:
        return y - margins

    def proximal_margin(self, y: Any, t: Any, before: Any) -> Any:
        return y - t


class Deviance(Loss):
    """Half the deviance of a distribution, in the margin t = z - log(y) above the best one.

    See McCullagh and Nelder (1989), section 2.3.
    """

    lower_bound = 0.0
    link = "log"
    # Targets that are refused, and why.
    rule: ClassVar[str]

    def refused(self, y: Any) -> Any:
        """Which targets the distribution does not give."""
        raise NotImplementedError

    def encode(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any] | None]:
        targets = _finite_vector(y, self.name)
        bad = self.refused(targets)
        if bad.any():
            first = int(np.argmax(bad))
            raise ValueError(
                f"{self.rule}, got y[{first}] = {targets[first]:g}; drop such rows, or use another "
                "loss"
            )
        return targets, None

    def majorant(self, y: Any, margins: Any) -> Any:
        """Curvature of the chord from the margin to the minimum, or phi'' where that is more.

        No parabola lies above a loss that grows like an exponential, but a step with this
        curvature ends short of the minimum.
        """
        xp, y, z = _arrays(y, margins)
        curvature, slope = self.curvature(y, z), self.derivative(y, z)
        with np.errstate(divide="ignore", invalid="ignore"):
            away = z - xp.log(y)
            chord = xp.where(xp.abs(away) > 1e-4, slope / away, 0.0)
        return xp.maximum(curvature, xp.where(xp.isfinite(chord), chord, 0.0))


@dataclass(frozen=True)
class Poisson(Deviance):
    """Half the Poisson deviance of counts or rates, ``exp(z) - y - y (z - log y)``.

    The margin is the logarithm of the mean. Targets are at least 0; for counts y observed over
    exposures e, give the problem or ``fit`` the ``offset`` log e.

    Examples
    --------
    >>> from sorel.losses import Poisson
    >>> Poisson().value([0.0, 1.0], [0.0, 0.0])
    array([1., 0.])
    """

    name = "poisson"
    words = "losses: half the Poisson deviance"
    rule = "the poisson loss takes counts or rates >= 0"

    def refused(self, y: Any) -> Any:
        if not y.any():
            raise ValueError(
                "y is 0 everywhere, and the poisson loss has no minimum then; "
                "at least one count must be above 0"
            )
        return y < 0.0

    def value(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        t = z - xp.log(xp.where(y > 0.0, y, 1.0))
        return xp.where(y > 0.0, y * _exp_excess(xp, t), xp.exp(z))

    def derivative(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        t = z - xp.log(xp.where(y > 0.0, y, 1.0))
        return xp.where(y > 0.0, y * xp.expm1(t), xp.exp(z))

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, _, z = _arrays(y, margins)
        return xp.exp(z)


@dataclass(frozen=True)
class Gamma(Deviance):
    """Half the gamma deviance of positive amounts, ``y exp(-z) - 1 + (z - log y)``.

    The margin is the logarithm of the mean, and only the ratio of target and mean counts.

    Examples
    --------
    >>> from sorel.losses import Gamma
    >>> Gamma().value([1.0, 2.0], [0.0, 0.0]).round(3)
    array([0.   , 0.307])
    """

    name = "gamma"
    words = "losses: half the gamma deviance"
    rule = "the gamma loss takes amounts > 0"

    def refused(self, y: Any) -> Any:
        return y <= 0.0

    def value(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return _exp_excess(xp, xp.log(y) - z)

    def derivative(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return -xp.expm1(xp.log(y) - z)

    def curvature(self, y: Any, margins: Any) -> Any:
        xp, y, z = _arrays(y, margins)
        return xp.exp(xp.log(y) - z)


def _exp_excess(xp: Any, t: Any) -> Any:
    """exp(t) - 1 - t, at full relative accuracy: by its series where the difference has none."""
    near = xp.abs(t) < _SERIES_BELOW
    small = xp.where(near, t, 0.0)
    series = xp.ones_like(t)
    for k in range(9, 2, -1):
        series = 1.0 + series * small / k
    return xp.where(near, 0.5 * small * small * series, xp.expm1(t) - t)


@dataclass(frozen=True)
class Multinomial(Loss):
    """Cross-entropy of a softmax over K classes, ``logsumexp(z) - z[y]``.

    Examples
    --------
    >>> from sorel.losses import Multinomial
    >>> Multinomial().value([2], [[0.0, 0.0, 0.0]]).round(4)
    array([1.0986])
    """

    name = "multinomial"
    link = "logit"
    is_classifier = True
    lower_bound = 0.0
    # The largest eigenvalue of diag(p) - p p^T is at most 1/2, and |p - e_y| at most sqrt(2).
    curvature_bound = 0.5
    lipschitz = math.sqrt(2.0)

    def n_outputs(self, classes: NDArray[Any] | None) -> int:
        assert classes is not None
        return len(classes)

    def encode(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any] | None]:
        return _class_codes(y)

    def value(self, y: Any, margins: Any) -> FloatArray:
        """Loss of each sample; `y` holds the indices of the classes."""
        return self._evaluate(y, margins)[0]

    def derivative(self, y: Any, margins: Any) -> FloatArray:
        """First derivatives in the K margins."""
        return self._evaluate(y, margins)[1]

    def predict(self, margins: ArrayLike) -> FloatArray:
        """Probabilities of the K classes."""
        return np.asarray(softmax(np.asarray(margins, dtype=np.float64), axis=-1))

    def margins(self, predictions: ArrayLike) -> FloatArray:
        """Logarithms of probabilities: margins up to a number common to all classes."""
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(predictions, dtype=np.float64))

    def curvature(self, y: Any, margins: Any) -> FloatArray:
        """Second derivative: for each sample the K x K matrix diag(p) - p p^T."""
        targets, z = self._arrays(y, margins)
        slopes = self._evaluate(targets, z)[1]
        own = np.arange(len(slopes)), targets
        p, rest = slopes.copy(), 1.0 - slopes
        # The slope of the own class is p - 1: exact where a confident sample leaves p no digits.
        p[own] += 1.0
        rest[own] = -slopes[own]
        out = -p[:, :, None] * p[:, None, :]
        index = np.arange(p.shape[1])
        out[:, index, index] = p * rest
        return np.asarray(out)

    def _arrays(self, y: ArrayLike, margins: ArrayLike) -> tuple[Any, FloatArray]:
        z = np.array(margins, dtype=np.float64, ndmin=2, order="C")
        targets = np.ascontiguousarray(np.broadcast_to(np.asarray(y, dtype=np.int64), len(z)))
        return targets, z

    def _evaluate(self, y: ArrayLike, margins: ArrayLike) -> tuple[FloatArray, FloatArray]:
        targets, z = self._arrays(y, margins)
        losses, slopes = np.empty(len(z)), np.empty_like(z)
        _core.softmax_losses(targets, z, losses, slopes)
        return losses, slopes


def _class_codes(y: ArrayLike) -> tuple[NDArray[np.int64], NDArray[Any]]:
    labels = _vector(y)
    if labels.dtype.kind in "fc":
        _finite_vector(labels, "classification")
    check_present(labels, "y")
    classes, codes = np.unique(labels, return_inverse=True)
    if labels.dtype.kind == "f" and len(classes) > 2 and np.any(classes != np.floor(classes)):
        raise ValueError(
            f"y holds {len(classes)} different real numbers such as {classes[0]!r}: "
            "classification needs class labels; use loss='squared' for regression"
        )
    if len(classes) < 2:
        raise ValueError(
            f"y holds only one class, {classes.tolist()}; a classifier needs at least two"
        )
    return codes.astype(np.int64), classes


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (Squared, Huber, Logistic, SquaredHinge, Poisson, Gamma, Linear, Multinomial)
}


def compiled_form(loss: Loss) -> tuple[int, float] | None:
    """The code and the parameter of a loss that the compiled loops know, else None.

    A class derived from one of the package's own may have other formulas, so it does not count.
    """
    if not isinstance(loss, _Compiled) or type(loss) not in LOSSES.values():
        return None
    if loss.name not in _core.LOSS_CODES:
        raise ValueError(
            f"the loss {type(loss).__name__} has no formulas under the name {loss.name!r} in "
            "src/core/losses.hpp; write them there"
        )
    return _core.LOSS_CODES[loss.name], loss.parameter


def parse_loss(loss: str | Loss) -> Loss:
    """The loss of that name, or the loss itself, if its declarations make sense.

    Examples
    --------
    >>> from sorel.losses import parse_loss
    >>> parse_loss("huber")
    Huber(delta=1.0)
    """
    if isinstance(loss, Loss):
        _check_declarations(loss)
        return loss
    try:
        return LOSSES[loss]()
    except (KeyError, TypeError):
        raise ValueError(f"unknown loss {loss!r}; known losses: {', '.join(LOSSES)}") from None


def _check_declarations(loss: Loss) -> None:
    kind = type(loss).__name__
    if not isinstance(getattr(loss, "name", None), str):
        raise TypeError(f"the loss {kind} needs a `name`, a text that messages call it by")
    for what, least in (("lower_bound", -math.inf), ("curvature_bound", 0.0), ("lipschitz", 0.0)):
        number = getattr(loss, what)
        if not (is_real(number) and float(number) >= least):
            raise ValueError(
                f"{kind}.{what} must be a number >= {least:g} (infinite where none is known), "
                f"got {number!r}"
            )
    if loss.lower_bound == math.inf:
        raise ValueError(f"{kind}.lower_bound must be finite or -inf, got inf")
    if loss.link not in ("identity", "log", "logit"):
        raise ValueError(f"{kind}.link must be 'identity', 'log' or 'logit', got {loss.link!r}")
