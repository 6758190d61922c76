"""Penalties g(w): the contract, which a class of your own can fill in, and the package's own."""

from __future__ import annotations

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
    "Penalty",
    "Simplex",
    "check_penalty",
    "choose_penalty",
    "resolve_l2",
    "sample_values",
]
