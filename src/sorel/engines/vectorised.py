"""The loops of src/core/losses.cpp for a loss of a user: vectorised formulas, in NumPy.

Every function has the name and the parameters of the compiled loop it stands in for; `loss` takes
the place of the code, and `delta` is not used. An engine calls one set or the other and does not
know which. What the formulas return is checked here: a loss that breaks its own declarations would
be certified wrongly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sorel._lib.floats import EPS
from sorel.problem.losses import FloatArray, Loss

# A loss may lie below its declared bound by rounding, relative to the largest loss.
_ROUNDING = math.sqrt(EPS)


def _formula(loss: Loss, which: str, y: Any, margins: Any) -> FloatArray:
    """One of the formulas at the margins, as an array of the right shape."""
    # A trial step that goes too far may overflow: the line search sees that and shortens it. Rows
    # that several threads share are evaluated where the settings of the run do not hold.
    with np.errstate(over="ignore", invalid="ignore"):
        out = np.asarray(getattr(loss, which)(y, margins), dtype=np.float64)
    if out.shape != margins.shape:
        raise ValueError(
            f"{type(loss).__name__}.{which}(y, margins) must return one number per sample, shape "
            f"{margins.shape}, got {out.shape}"
        )
    return out


def _values(loss: Loss, y: Any, margins: Any) -> FloatArray:
    values = _formula(loss, "value", y, margins)
    bound = loss.lower_bound
    if bound > -np.inf and len(values):
        least = float(values.min())
        if least < bound - _ROUNDING * max(1.0, abs(bound), float(np.abs(values).max())):
            i = int(values.argmin())
            raise ValueError(
                f"{type(loss).__name__} declares lower_bound={bound:g}, but its value is {least:g} "
                f"at y={y[i]:g}, margin {margins[i]:g}; mend the formula, or set lower_bound=-inf"
            )
    return values


def _slopes(loss: Loss, y: Any, margins: Any) -> FloatArray:
    return _formula(loss, "derivative", y, margins)


def _curvatures(loss: Loss, y: Any, margins: Any, damping: float) -> FloatArray:
    curvature = _formula(loss, "curvature", y, margins)
    if len(curvature) and curvature.min() < 0.0:
        i = int(curvature.argmin())
        raise ValueError(
            f"{type(loss).__name__}.curvature is {curvature[i]:g} at y={y[i]:g}, margin "
            f"{margins[i]:g}; a convex loss has no negative curvature"
        )
    if damping > 0.0:
        curvature = curvature + damping * (_formula(loss, "majorant", y, margins) - curvature)
    return curvature


def losses_at(loss: Loss, delta: float, y: Any, margins: Any, losses: Any) -> None:
    """Losses at given margins."""
    losses[...] = _values(loss, y, margins)


def slopes_at(loss: Loss, delta: float, y: Any, margins: Any, slopes: Any) -> None:
    """First derivatives at given margins."""
    slopes[...] = _slopes(loss, y, margins)


def augmented_curvature(
    loss: Loss, delta: float, y: Any, margins: Any, density: Any, block: Any, eta: float,
    damping: float, omega: Any, weighted: bool, h: Any, pull: Any,
) -> None:  # fmt: skip
    """Diagonal weights of the generalised Hessian, and where eta > 0 pull = omega phi'."""
    np.multiply(_curvatures(loss, y, margins, damping), density, out=h)
    weight = omega if weighted else omega[0]
    if eta > 0.0:
        pull[...] = _slopes(loss, y, margins)
        inside = block >= 0
        h[inside] += eta * pull[inside] ** 2
        pull *= weight
    h *= weight


def weighted_slopes(
    loss: Loss, delta: float, y: Any, margins: Any, density: Any, omega: Any, weighted: bool, c: Any
) -> None:
    """c = omega q phi': what X^T turns into the gradient of lam . l(w)."""
    np.multiply(_slopes(loss, y, margins), density, out=c)
    c *= omega if weighted else omega[0]


def directional_slope(
    loss: Loss, delta: float, y: Any, margins: Any, density: Any, direction: Any, omega: Any,
    weighted: bool,
) -> float:  # fmt: skip
    """sum_i omega_i q_i phi'_i direction_i."""
    terms = _slopes(loss, y, margins) * density * direction
    return float(np.sum(terms * omega)) if weighted else float(np.sum(terms) * omega[0])


def move_margins(
    margins: Any, direction: Any, step: float, loss: Loss, delta: float, y: Any, new_margins: Any,
    losses: Any,
) -> None:  # fmt: skip
    """Margins moved along a direction, with the losses there."""
    np.multiply(direction, step, out=new_margins)
    new_margins += margins
    losses[...] = _values(loss, y, new_margins)


def shift_statistics(
    loss: Loss, delta: float, y: Any, margins: Any, shift: float, density: Any, omega: Any,
    weighted: bool,
) -> tuple[float, float, float]:  # fmt: skip
    """Derivatives of sum_i omega_i q_i phi(y_i, z_i + shift) in the shift, and a rounding scale."""
    z = margins + shift
    lam = density * (omega if weighted else omega[0])
    used = lam != 0.0
    y, z, margins, lam = y[used], z[used], margins[used], lam[used]
    slopes = lam * _slopes(loss, y, z)
    curvatures = lam * _curvatures(loss, y, z, 0.0)
    # A shift that has run away has no scale to be told.
    with np.errstate(over="ignore", invalid="ignore"):
        rounding = np.abs(slopes) + curvatures * (np.abs(margins) + abs(shift))
    return float(slopes.sum()), float(curvatures.sum()), float(rounding.sum())
