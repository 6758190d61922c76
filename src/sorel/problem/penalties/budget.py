"""Weights with a budget: bounds on each, one sum, a ridge, and costs of leaving where one stands.

g(w) = l2/2 ||w||^2 + sum_j cost_j |w_j - previous_j|,  lower <= w <= upper,  sum_j w_j = budget
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sorel.problem.penalties.base import Array, check_number
from sorel.problem.penalties.builtin import (
    FEASIBILITY,
    OWN,
    Declared,
    Terms,
    check_arrays,
    check_bounds,
)


@dataclass(frozen=True, eq=False)
class Budget(Declared):
    """Weights within bounds that add up to a budget, with a ridge and transaction costs.

    Where weights are at least 0, sum to 1 and cost nothing, :class:`~sorel.Simplex` is the same and
    faster.

    Parameters
    ----------
    l2 : float, default=0.0
        Weight of ``||w||^2 / 2``, at least 0; above 0 where weights are bounded on neither side.
    budget : float, default=1.0
        What the weights add up to.
    lower, upper : float or array of shape (d,), default 0 and infinity
        Bounds of the weights.
    cost : float or array of shape (d,), default=0.0
        Cost of changing each weight by 1, at least 0.
    previous : float or array of shape (d,), default=0.0
        The weights that cost nothing.

    Examples
    --------
    >>> from sorel.penalties import Budget
    >>> penalty = Budget(upper=0.5)
    >>> penalty.project([2.0, 1.0, 0.0])
    array([0.5, 0.5, 0. ])
    >>> penalty.conjugate([3.0, 1.0, 0.0])  # half of the first, half of the second
    2.0
    >>> round(Budget(cost=0.01, previous=[0.5, 0.5]).value([0.75, 0.25]), 6)
    0.005
    """

    l2: float = 0.0
    budget: float = 1.0
    lower: float | Array = 0.0
    upper: float | Array = math.inf
    cost: float | Array = 0.0
    previous: float | Array = 0.0

    name: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        for name in ("l2", "budget"):
            object.__setattr__(self, name, check_number(getattr(self, name), name))
        if not 0.0 <= self.l2 < math.inf:
            raise ValueError(f"l2 must be a finite number >= 0, got {self.l2!r}.")
        if not math.isfinite(self.budget):
            raise ValueError(f"budget must be a finite number, got {self.budget!r}.")
        names = ("lower", "upper", "cost", "previous")
        check_arrays(self, *names)
        for name in ("cost", "previous"):
            if not np.all(np.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)!r}.")
        if np.any(np.asarray(self.cost) < 0.0):
            raise ValueError(f"cost must be at least 0, got {float(np.min(self.cost)):g}.")
        check_bounds(self.lower, self.upper)
        for name in names:
            if np.ndim(getattr(self, name)):
                self.terms((np.size(getattr(self, name)),))
        if self.l2 == 0.0 and not self.compact:
            raise ValueError(
                "l2 is 0 and the weights are unbounded: give l2 > 0, or finite lower or upper "
                "bounds for all weights, which with the budget bound the others too."
            )

    @property
    def compact(self) -> bool:  # type: ignore[override] # no attribute of the class here
        """Whether the bounds and the budget together bound all weights."""
        lower, upper = np.broadcast_arrays(self.lower, self.upper)
        if not lower.ndim:
            return bool(np.isfinite(lower) or np.isfinite(upper))
        # One side may be open where all weights but the one itself are bounded on the other.
        tight_lower, tight_upper = _tightened(lower, upper, self.budget)
        return bool(np.all(np.isfinite(tight_lower)) and np.all(np.isfinite(tight_upper)))

    def _declare(self) -> Terms:
        return Terms(self.previous, self.cost, self.lower, self.upper, self.budget)

    def _complete(self, terms: Terms, d: int) -> Terms:
        """The same with bounds that the budget implies; refuses those that leave no weights."""
        lower, upper = (np.broadcast_to(bound, d) for bound in (terms.lower, terms.upper))
        slack = FEASIBILITY * max(1.0, abs(self.budget))
        for side, total, sign in (("lower", lower.sum(), 1.0), ("upper", upper.sum(), -1.0)):
            if sign * (float(total) - self.budget) > slack:
                where, remedy = ("above", "lower") if sign > 0.0 else ("below", "raise")
                raise ValueError(
                    f"no weights satisfy the bounds: the {side} bounds of {d} weights add up to "
                    f"{float(total):g}, {where} the budget of {self.budget:g}; {remedy} them."
                )
        lower, upper = _tightened(lower, upper, self.budget)
        return terms._replace(lower=lower, upper=upper)


OWN[Budget] = None


def _tightened(lower: Array, upper: Array, budget: float) -> tuple[Array, Array]:
    """Bounds that also follow from the budget and the bounds of all other weights."""

    def others(bound: Array) -> Array:
        infinite = np.isinf(bound)
        count = int(np.count_nonzero(infinite))
        finite = np.where(infinite, 0.0, bound)
        out = float(finite.sum()) - finite
        open_ended = count - infinite > 0
        return np.where(open_ended, bound[infinite][0] if count else 0.0, out)

    # What the others leave may differ from a bound of one's own by rounding.
    tight_upper = np.maximum(np.minimum(upper, budget - others(lower)), lower)
    tight_lower = np.minimum(np.maximum(lower, budget - others(upper)), tight_upper)
    return tight_lower, tight_upper
