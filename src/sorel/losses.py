"""Losses phi(y, z) of a target and a margin z = x.w + b.

Each loss knows its value and its first and second derivative in z, how to read the targets a user
gives, and nothing of X. The scalar formulas live in :mod:`sorel.kernels`.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel import kernels

FloatArray = NDArray[np.float64]


def _finite_vector(y: ArrayLike, what: str) -> FloatArray:
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.ravel()
    if array.ndim != 1:
        raise ValueError(f"y must be one-dimensional, got shape {array.shape}")
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


@dataclass(frozen=True)
class Loss:
    """Base of all losses: value, derivative and curvature at margins.

    Attributes
    ----------
    name : str
        The name by which ``Problem(loss=...)`` finds it.
    is_classifier : bool
        Whether the targets are class labels.
    lower_bound : float
        What no loss falls below; -inf where there is no such number.
    curvature_bound : float
        What no second derivative exceeds; inf where there is no such number.
    """

    name: ClassVar[str]
    is_classifier: ClassVar[bool] = False
    code: ClassVar[int] = -1
    lower_bound: ClassVar[float] = 0.0
    curvature_bound: ClassVar[float] = 1.0

    @property
    def parameter(self) -> float:
        """The number that the compiled loops need besides the code."""
        return 1.0

    def n_outputs(self, classes: NDArray[Any] | None) -> int:
        """Margins per sample."""
        return 1

    def encode(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Targets as the compiled loops want them, and the class labels if there are any."""
        return _finite_vector(y, self.name), None

    def value(self, y: ArrayLike, margins: ArrayLike) -> FloatArray:
        """Loss of each sample; `y` encoded (numbers, or -1 and 1)."""
        return self._evaluate(y, margins)[0]

    def derivative(self, y: ArrayLike, margins: ArrayLike) -> FloatArray:
        """First derivative in the margin."""
        return self._evaluate(y, margins)[1]

    def curvature(self, y: ArrayLike, margins: ArrayLike) -> FloatArray:
        """Second derivative in the margin."""
        targets, z = self._arrays(y, margins)
        out = np.empty_like(z)
        kernels.curvatures_at(self.code, self.parameter, targets, z, out)
        return out

    def _arrays(self, y: ArrayLike, margins: ArrayLike) -> tuple[FloatArray, FloatArray]:
        z = np.array(margins, dtype=np.float64, ndmin=1)
        targets = np.ascontiguousarray(np.broadcast_to(np.asarray(y, dtype=np.float64), z.shape))
        return targets, z

    def _evaluate(self, y: ArrayLike, margins: ArrayLike) -> tuple[FloatArray, FloatArray]:
        targets, z = self._arrays(y, margins)
        losses, slopes = np.empty_like(z), np.empty_like(z)
        kernels.losses_at(self.code, self.parameter, targets, z, losses)
        kernels.slopes_at(self.code, self.parameter, targets, z, slopes)
        return losses, slopes


@dataclass(frozen=True)
class Squared(Loss):
    """Half the squared residual, ``(z - y)**2 / 2``.

    Examples
    --------
    >>> from sorel.losses import Squared
    >>> Squared().value([0.0], [3.0])
    array([4.5])
    """

    name: ClassVar[str] = "squared"
    code: ClassVar[int] = kernels.SQUARED


@dataclass(frozen=True)
class Huber(Loss):
    """Quadratic up to `delta`, linear beyond.

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
    name: ClassVar[str] = "huber"
    code: ClassVar[int] = kernels.HUBER

    def __post_init__(self) -> None:
        number = isinstance(self.delta, numbers.Real) and not isinstance(self.delta, bool)
        if not (number and 0 < self.delta < np.inf):
            raise ValueError(f"delta must be a finite number above 0, got {self.delta!r}")

    @property
    def parameter(self) -> float:
        return float(self.delta)


@dataclass(frozen=True)
class _Binary(Loss):
    is_classifier: ClassVar[bool] = True

    def encode(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any] | None]:
        codes, classes = _class_codes(y)
        if len(classes) > 2:
            raise ValueError(
                f"the {self.name} loss takes two classes, y has {len(classes)}; "
                "use loss='multinomial' for more"
            )
        return np.where(codes == 1, 1.0, -1.0), classes


@dataclass(frozen=True)
class Logistic(_Binary):
    """``log(1 + exp(-y z))`` with y in {-1, 1}; any two labels are accepted, sorted.

    Examples
    --------
    >>> from sorel.losses import Logistic
    >>> Logistic().value([1.0, -1.0], [1e4, 1e4])
    array([    0., 10000.])
    """

    name: ClassVar[str] = "logistic"
    code: ClassVar[int] = kernels.LOGISTIC
    curvature_bound: ClassVar[float] = 0.25


@dataclass(frozen=True)
class SquaredHinge(_Binary):
    """``max(0, 1 - y z)**2`` with y in {-1, 1}; any two labels are accepted, sorted.

    Examples
    --------
    >>> from sorel.losses import SquaredHinge
    >>> SquaredHinge().value([1.0, 1.0], [0.0, 2.0])
    array([1., 0.])
    """

    name: ClassVar[str] = "squared_hinge"
    code: ClassVar[int] = kernels.SQUARED_HINGE
    curvature_bound: ClassVar[float] = 2.0


@dataclass(frozen=True)
class Multinomial(Loss):
    """Cross-entropy of a softmax over K classes, ``logsumexp(z) - z[y]``.

    Examples
    --------
    >>> from sorel.losses import Multinomial
    >>> Multinomial().value([2], [[0.0, 0.0, 0.0]]).round(4)
    array([1.0986])
    """

    name: ClassVar[str] = "multinomial"
    is_classifier: ClassVar[bool] = True
    curvature_bound: ClassVar[float] = 0.5

    def n_outputs(self, classes: NDArray[Any] | None) -> int:
        assert classes is not None
        return len(classes)

    def encode(self, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any] | None]:
        return _class_codes(y)

    def curvature(self, y: ArrayLike, margins: ArrayLike) -> FloatArray:
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
        kernels.softmax_losses(targets, z, losses, slopes)
        return losses, slopes


def _class_codes(y: ArrayLike) -> tuple[NDArray[np.int64], NDArray[Any]]:
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ValueError(f"y must be one-dimensional, got shape {labels.shape}")
    if labels.dtype.kind in "fc":
        _finite_vector(labels, "classification")
    elif labels.dtype.kind == "O":
        missing = [i for i, label in enumerate(labels) if label is None or label != label]
        if missing:
            raise ValueError(
                f"y has a label that is missing: y[{missing[0]}] = {labels[missing[0]]!r}; "
                "drop or impute such rows"
            )
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
    cls.name: cls for cls in (Squared, Huber, Logistic, SquaredHinge, Multinomial)
}


def parse_loss(loss: str | Loss) -> Loss:
    """The loss of that name, or the loss itself."""
    if isinstance(loss, Loss):
        return loss
    try:
        return LOSSES[loss]()
    except (KeyError, TypeError):
        raise ValueError(f"unknown loss {loss!r}; known losses: {', '.join(LOSSES)}") from None
