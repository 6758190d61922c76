"""Products with a sparse X, given by the three arrays of CSR; columns stand in any order in a row.

Full passes take a range of rows: indptr[start:stop + 1] with all of indices and data, and vectors
of length stop - start.
"""

from __future__ import annotations

from sorel._core import (
    adjoint_csr,
    adjoint_csr_many,
    block_sums_csr,
    column_maxima_csr,
    gram_csr,
    gram_diagonal_csr,
    inspect_csr,
    product_csr,
    product_csr_many,
    row_squares_csr,
    select_csr,
)

__all__ = [
    "adjoint_csr",
    "adjoint_csr_many",
    "block_sums_csr",
    "column_maxima_csr",
    "gram_csr",
    "gram_diagonal_csr",
    "inspect_csr",
    "product_csr",
    "product_csr_many",
    "row_squares_csr",
    "select_csr",
]
