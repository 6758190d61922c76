"""Stochastic steps on sparse rows, at O(nonzeros) each.

A coefficient that no row of a batch touches goes through a map of itself alone, so it is left where
it is until a row needs it, and then taken through all the steps that it has missed at once.
"""

from __future__ import annotations

from sorel._core import (
    minibatch_steps_csr,
    prospect_steps_csr,
    saddle_saga_steps_csr,
    svrg_steps_csr,
)

__all__ = [
    "minibatch_steps_csr",
    "prospect_steps_csr",
    "saddle_saga_steps_csr",
    "svrg_steps_csr",
]
