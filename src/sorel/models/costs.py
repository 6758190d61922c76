"""What a second-order step costs by one means or another, counted from shapes.

Counted and not timed, so that a run is the same every time. The unit is an operation of a product
with X; the constants are measured ratios, which differ less from machine to machine than times do.
"""

from __future__ import annotations

import math

from sorel.engines.base import Engine
from sorel.engines.row_gram import MAX_ROWS

# Time of an operation in a product of matrices, and of one in a product of sparse rows with each
# other.
_DENSE, _SCATTERED = 0.5, 8.0

# How much longer an operation of a product takes where X does not fit into the cache, and the
# numbers that do.
_FROM_MEMORY, _CACHED = 2.0, 2e6

# What calls cost whatever they compute: of a product, and of a factorisation.
_CALL, _FACTORISATION = 4e5, 6e5

# With this many rows for each parameter, and at least so many, a Hessian estimated from them steers
# well enough. It pays where there are so many times more rows.
ROWS_PER_PARAMETER, LEAST_ROWS, _WORTH_SAMPLING = 100, 10_000, 3

# Up to this many parameters a p x p matrix is cheap whatever the rows are.
FEW_PARAMETERS = 128

# The same for several classes, whose matrix takes K^2 weighted Gram matrices, and operations up to
# which it takes no time anyway.
_FEW_OF_CLASSES, _NO_TIME = 64, 1e7


class StepCosts:
    """Costs of a Newton step in which some rows have curvature.

    Parameters
    ----------
    engine : Engine
        Where the data live.
    rows : float
        How many of the rows have curvature.

    Attributes
    ----------
    product : float
        A product with the Hessian.
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

    def __init__(self, engine: Engine, rows: float) -> None:
        size = engine.size
        length = engine.entries / engine.n_samples * engine.n_outputs
        waiting = _FROM_MEMORY if rows * length > _CACHED else 1.0
        self.product = 4.0 * waiting * rows * length + _CALL
        dense = engine.entries == engine.n_samples * engine.n_features
        pairs = _DENSE * size**2 if dense else _SCATTERED * length**2
        sample = sampled_rows(engine.size)
        used = rows if rows <= _WORTH_SAMPLING * sample else sample
        self.matrix = used * pairs + _DENSE * size**3 + _FACTORISATION
        self.row_gram = rows * (_DENSE * rows * length if dense else _SCATTERED * length**2 + rows)
        self.by_rows = _DENSE * rows**3 + 4.0 * self.product + _FACTORISATION
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

    Few of them are needed then, and no matrix of all classes.
    """
    if engine.n_outputs == 1 or not engine.in_memory:
        return False
    matrix = float(engine.n_samples) * engine.size**2
    return engine.size > _FEW_OF_CLASSES and matrix > _NO_TIME


def sampled_rows(size: int) -> int:
    """Rows that are enough for an estimate of the Hessian of so many parameters."""
    return max(ROWS_PER_PARAMETER * size, LEAST_ROWS)


def carrying_rows(engine: Engine) -> float:
    """About how many rows have curvature where the risk is what it is at the solution."""
    return engine.spec.risk.effective_share(engine.n_samples) * engine.n_samples
