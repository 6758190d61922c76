"""What a second-order step costs by one means or another, counted from shapes.

Counted and not timed, so that a run is the same every time. The unit is an operation of a product
with X; the constants are measured ratios, which differ less from machine to machine than times do.
"""

from __future__ import annotations

import math

from sorel.engines.base import Engine
from sorel.engines.curvature import WORTH_SAMPLING
from sorel.engines.matrix import FEW_PARAMETERS
from sorel.engines.row_gram import MAX_ROWS

# Time of an operation in a product of dense matrices.
_DENSE_TIME = 0.5

# Time of an operation in a product of sparse rows with each other.
_SPARSE_TIME = 8.0

# Operations that the calls of a product or of a factorisation cost, whatever their size.
_CALL = 4e5

# Operations that the loss of a margin and its slope cost (2026-11: 20 for squares, 80 for logistic
# losses, 200 for each of several classes).
_LOSS = 80.0

# Sampled rows for each parameter from which a Hessian is estimated well enough.
_ROWS_PER_PARAMETER = 100

# Entries of X from which on a smaller problem in the place of another pays: a run on fewer takes
# milliseconds.
LEAST_ENTRIES = 100_000

# Products that a step takes about where no more is known. A matrix that costs more comes later.
PRODUCTS_PER_STEP = 18.0

# Products that a step takes at least.
LEAST_PRODUCTS = 2.0


class StepCosts:
    """Costs of a Newton step in which some rows have curvature.

    Parameters
    ----------
    engine : Engine
        Where the data live.
    rows : float
        How many of the rows have curvature.
    sampled : bool, default=True
        Whether a sample of the rows will do for the matrix where they are many.

    Attributes
    ----------
    product : float
        A product with the Hessian.
    gradient : float
        The losses and a gradient, of all rows.
    matrix : float
        The p x p matrix, formed and factorised.
    by_rows : float
        The r x r matrix of the rows, factorised, and what it is used with.
    row_gram : float
        The inner products of the rows, which are needed once.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.models.costs import StepCosts
    >>> X = np.ones((100, 2000))
    >>> costs = StepCosts(sorel.Problem(X, np.ones(100)).engine, 100)
    >>> costs.product < costs.by_rows < costs.matrix, costs.rows_are_cheaper
    (True, True)
    """

    def __init__(self, engine: Engine, rows: float, sampled: bool = True) -> None:
        size = engine.size
        length = engine.entries / engine.n_samples * engine.n_outputs
        self.product = 4.0 * rows * length + _CALL
        self.gradient = engine.n_samples * (4.0 * length + _LOSS * engine.n_outputs) + _CALL
        dense = engine.entries == engine.n_samples * engine.n_features
        pairs = _DENSE_TIME * size**2 if dense else _SPARSE_TIME * length**2
        sample = sampled_rows(engine.size)
        used = sample if sampled and rows > WORTH_SAMPLING * sample else rows
        self.matrix = used * pairs + _DENSE_TIME * size**3 + _CALL
        self.row_gram = rows * (
            _DENSE_TIME * rows * length if dense else _SPARSE_TIME * length**2 + rows
        )
        self.by_rows = _DENSE_TIME * rows**3 + 4.0 * self.product + _CALL
        if rows > MAX_ROWS or not engine.in_memory or engine.n_outputs > 1:
            self.row_gram = self.by_rows = math.inf

    def products(self, steps: int = 1) -> float:
        """Products that cost as much as so many steps from the cheaper matrix."""
        return min(steps * self.matrix, self.row_gram + steps * self.by_rows) / self.product

    @property
    def rows_are_cheaper(self) -> bool:
        """Whether the matrix of the rows costs less than that of the columns, even if used once."""
        return self.row_gram + self.by_rows < self.matrix


def classes_by_products(engine: Engine) -> bool:
    """Whether several classes are better served by products, which their curvature preconditions.

    Few of them are needed then, and no matrix of all classes. It is formed all the same where it
    costs less than the mere calls of those products.
    """
    if engine.n_outputs == 1 or not engine.in_memory or engine.size <= FEW_PARAMETERS:
        return False
    return StepCosts(engine, engine.n_samples).matrix > PRODUCTS_PER_STEP * _CALL


def sampled_rows(size: int) -> int:
    """Rows that are enough for an estimate of the Hessian of so many parameters."""
    return _ROWS_PER_PARAMETER * max(size, FEW_PARAMETERS)


def certifying_products(engine: Engine) -> float:
    """Products that cost as much as the matrix of a certificate, for which no sample will do."""
    return StepCosts(engine, carrying_rows(engine), sampled=False).products()


def carrying_rows(engine: Engine) -> float:
    """About how many rows have curvature where the risk is what it is at the solution."""
    return engine.spec.risk.effective_share(engine.n_samples) * engine.n_samples
