"""The proximal map of a spectral risk in the margins: pooling in the order of the losses.

A loss of one margin is often a nondecreasing psi of one number t: the size of a residual, or minus
the margin of a label. Items in ascending order of t keep that order in the proximal map, and items
that end with one t form a block, whose t is the proximal map of psi at the mean of the block.
"""

from __future__ import annotations

from sorel._core import pool_losses
from sorel.kernels.losses import HUBER, LINEAR, LOGISTIC, SQUARED, SQUARED_HINGE

__all__ = ["CODES", "OF_LABELS", "OF_RESIDUALS", "pool_losses"]

# The losses that have a psi: t is |z - y|, -y z for a label y, or y - z.
OF_RESIDUALS, OF_LABELS = (SQUARED, HUBER), (LOGISTIC, SQUARED_HINGE)
CODES = (*OF_RESIDUALS, *OF_LABELS, LINEAR)
