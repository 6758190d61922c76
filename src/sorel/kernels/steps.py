"""Stochastic steps on the rows of a dense X: see src/core/steps.cpp."""

from __future__ import annotations

from sorel._core import (
    minibatch_steps,
    prospect_steps,
    saddle_saga_steps,
    svrg_steps,
)

__all__ = [
    "minibatch_steps",
    "prospect_steps",
    "saddle_saga_steps",
    "svrg_steps",
]
