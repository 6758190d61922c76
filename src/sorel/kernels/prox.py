"""Proximal maps of the penalties, which the stochastic steps take: see src/core/prox.hpp."""

from __future__ import annotations

from sorel._core import (
    prox_inplace,
    prox_inplace_outputs,
)

__all__ = [
    "prox_inplace",
    "prox_inplace_outputs",
]

# What a penalty is to compiled code: a square alone, which is linear in a step, a map of each
# coefficient by itself, or one that ties all of them.
PURE_L2, SEPARABLE, SIMPLEX = 0, 1, 2
