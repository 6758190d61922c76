"""Penalties g(w): the contract, which a class of your own can fill in, and the package's own."""

from __future__ import annotations

from sorel._core import PURE_L2, SEPARABLE, SIMPLEX, prox_inplace, prox_inplace_outputs
from sorel.problem.penalties.base import Kernel, Penalty
from sorel.problem.penalties.budget import Budget
from sorel.problem.penalties.builtin import L2, Box, ElasticNet, NonNegative, Simplex
from sorel.problem.penalties.checks import AGREEMENT, check_penalty, sample_values
from sorel.problem.penalties.choice import choose_penalty, resolve_l2

__all__ = [
    "AGREEMENT",
    "Box",
    "Budget",
    "ElasticNet",
    "Kernel",
    "L2",
    "NonNegative",
    "PURE_L2",
    "Penalty",
    "SEPARABLE",
    "SIMPLEX",
    "Simplex",
    "check_penalty",
    "choose_penalty",
    "prox_inplace",
    "prox_inplace_outputs",
    "resolve_l2",
    "sample_values",
]
