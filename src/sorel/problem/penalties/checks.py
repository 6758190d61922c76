"""Whether a penalty keeps its contract: a certificate is worth no more than its formulas are."""

from __future__ import annotations

import itertools
import math

import numpy as np

from sorel._lib.floats import ROUNDED
from sorel.problem.penalties.base import Array, Penalty, check_number, dot, plain_gap

# Relative difference up to which what a user gives is what it must be: the formulas of a penalty
# that belong together, and a weighting of the dual set.
AGREEMENT = 1e-6


def check_penalty(penalty: Penalty, shape: tuple[int, ...]) -> None:
    """Refuse a penalty that does not keep its contract for coefficients of this shape.

    Of the package's own classes only the bounds can be at fault. Of others, it is seen at a few
    points whether prox, value, conjugate and l2 belong to one convex function.

    Examples
    --------
    >>> from sorel import Box
    >>> from sorel.penalties import check_penalty
    >>> check_penalty(Box(1.0, [0.0, 0.0], [1.0, 2.0]), (2,))
    >>> check_penalty(Box(1.0, [0.0, 0.0], [1.0, 2.0]), (3,))
    Traceback (most recent call last):
    ...
    ValueError: lower has 2 entries, but there are 3 coefficients: give a scalar or one bound per \
coefficient.
    """
    if penalty.compiled:
        penalty.kernel(shape[0])  # bounds of another length are refused here
        return
    _check_modulus(penalty)
    points = _test_points(shape)
    pairs = [_subgradient_pair(penalty, z, step) for z, step in points]
    values = [float(penalty.value(u)) for u, _ in pairs]
    conjugates = [float(penalty.conjugate(q)) for _, q in pairs]
    for i, (u, _) in enumerate(pairs):
        for j, (_, q) in enumerate(pairs):
            gap, size = plain_gap(values[i], conjugates[j], u, q)
            # Comparisons that also fail for what is not a number.
            if not (-gap <= AGREEMENT * size and (i != j or gap <= AGREEMENT * size)):
                raise ValueError(
                    f"The {penalty.name} penalty contradicts itself: for u = prox(z, step), "
                    "q = (z - u) / step is a subgradient of g at u, so that g(u) + g*(q) = q.u "
                    f"there and g(u) + g*(q) >= q.u elsewhere; the difference is {gap:.3g} where "
                    f"it must be {'0' if i == j else 'at least 0'}. Check that value, prox and "
                    "conjugate belong to the same g."
                )
    for i, j in itertools.combinations(range(len(pairs)), 2):
        (u, q), (v, r) = pairs[i], pairs[j]
        slope, square = dot(q - r, u - v), dot(u - v, u - v)
        # Two points that agree but for rounding may seem to bend the other way.
        largest = max(float(np.abs(z).max()) for z in (points[i][0], points[j][0], u, v))
        shortest = min(points[i][1], points[j][1])
        away = np.abs(q - r) + np.abs(u - v) / shortest
        noise = ROUNDED * largest * float(away.sum())
        if slope < penalty.l2 * square - AGREEMENT * (abs(slope) + penalty.l2 * square) - noise:
            raise ValueError(
                f"l2={penalty.l2:g} of the {penalty.name} penalty is not its modulus of strong "
                f"convexity: between two points g bends by {slope / square:.3g} only. Lower it."
            )


def _check_modulus(penalty: Penalty) -> None:
    if not hasattr(penalty, "l2"):
        raise TypeError(
            f"The {penalty.name} penalty has no attribute l2: set it to the modulus of strong "
            "convexity of g, such that g - l2/2 ||w||^2 is convex."
        )
    l2 = check_number(penalty.l2, f"l2 of the {penalty.name} penalty")
    if not (0.0 < l2 < math.inf or (l2 == 0.0 and penalty.compact)):
        raise ValueError(
            f"l2 of the {penalty.name} penalty must be a finite number > 0, got {l2!r}: the "
            "duality gap needs strong convexity, or a bounded domain. Add l2/2 ||w||^2 to g, or "
            "set compact = True where no coefficient can go to infinity."
        )


def _test_points(shape: tuple[int, ...]) -> list[tuple[Array, float]]:
    """Points and steps, always the same."""
    rng = np.random.default_rng(0)
    scales = ((0.01, 1.0), (1.0, 1.0), (1.0, 0.1), (100.0, 10.0))
    return [(scale * rng.standard_normal(shape), step) for scale, step in scales]


def _subgradient_pair(penalty: Penalty, z: Array, step: float) -> tuple[Array, Array]:
    """u = prox(z, step), and the subgradient of g at u that belongs to it."""
    given = z.copy()
    u = np.asarray(penalty.prox(z, step), dtype=np.float64)
    if u.shape != z.shape or not np.all(np.isfinite(u)):
        raise ValueError(
            f"prox of the {penalty.name} penalty must return finite numbers in the shape of its "
            f"argument, {z.shape}; got shape {u.shape}."
        )
    if u is z or not np.array_equal(z, given):
        raise ValueError(f"prox of the {penalty.name} penalty must leave its argument alone.")
    return u, (z - u) / step


def sample_values(penalty: Penalty, shape: tuple[int, ...]) -> list[float]:
    """g* at a few points, always the same: what tells two penalties apart.

    g itself may be 0 on its domain, whatever the domain is.

    Examples
    --------
    >>> from sorel.penalties import L2, sample_values
    >>> sample_values(L2(1.0), (3,)) == sample_values(L2(2.0), (3,))
    False
    """
    return [float(penalty.conjugate(z)) for z, _ in _test_points(shape)]
