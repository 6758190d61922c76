"""Coordinate descent on weighted least squares: see src/core/descent.cpp."""

from __future__ import annotations

from sorel._core import (
    descend_dense,
    descend_sparse,
    scaled_transpose,
)

__all__ = [
    "descend_dense",
    "descend_sparse",
    "scaled_transpose",
]
