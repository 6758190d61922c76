"""Products with a dense X: see src/core/dense.cpp."""

from __future__ import annotations

from sorel._core import (
    add_row,
    adjoint_columns,
    adjoint_rows,
    adjoint_some_rows,
    block_sums,
    column_sizes,
    gather_rows,
    gram_diagonal,
    gram_few,
    gram_product_rows,
    product_columns,
    product_rows,
    product_some_rows,
    scaled_rows,
)

__all__ = [
    "add_row",
    "adjoint_columns",
    "adjoint_rows",
    "adjoint_some_rows",
    "block_sums",
    "column_sizes",
    "gather_rows",
    "gram_diagonal",
    "gram_few",
    "gram_product_rows",
    "product_columns",
    "product_rows",
    "product_some_rows",
    "scaled_rows",
]

# Rows that the Gram matrix of few columns should take at a time. Not a power of 2, which would put
# the columns of a tile into the same places of the cache.
FEW_TILE = 136
