"""Loops over samples that call a loss: see src/core/losses.hpp for the formulas.

A loss is named by an integer code; an unknown one is refused with a ValueError.
:mod:`sorel.engines.vectorised` has the same loops for a loss that has no code.
"""

from __future__ import annotations

from sorel._core import (
    add_other_classes,
    apply_softmax_curvature,
    augmented_curvature,
    block_slopes,
    curvatures_at,
    directional_slope,
    line_slope,
    line_target,
    losses_at,
    move_margins,
    shift_statistics,
    slopes_at,
    softmax_losses,
    softmax_pair_curvature,
    subtract_block_means,
    weigh_softmax,
    weighted_slopes,
)

__all__ = [
    "add_other_classes",
    "apply_softmax_curvature",
    "augmented_curvature",
    "block_slopes",
    "curvatures_at",
    "directional_slope",
    "line_slope",
    "line_target",
    "losses_at",
    "move_margins",
    "shift_statistics",
    "slopes_at",
    "softmax_losses",
    "softmax_pair_curvature",
    "subtract_block_means",
    "weigh_softmax",
    "weighted_slopes",
]

CODES = SQUARED, HUBER, LOGISTIC, SQUARED_HINGE, LINEAR = 0, 1, 2, 3, 4
