"""Loops over vectors of length n that know neither X nor a loss: see src/core/vectors.cpp."""

from __future__ import annotations

from sorel._core import (
    absolute_sum,
    apply_curvature,
    ascent_target,
    block_means,
    block_totals,
    quasi_newton_product,
    sample_rows,
    sample_slopes,
    square_of_used,
    systematic_sample,
    weighted_square_distance,
    weighted_sum,
)

__all__ = [
    "absolute_sum",
    "apply_curvature",
    "ascent_target",
    "block_means",
    "block_totals",
    "quasi_newton_product",
    "sample_rows",
    "sample_slopes",
    "square_of_used",
    "systematic_sample",
    "weighted_square_distance",
    "weighted_sum",
]
