"""The minimum of a quadratic of a handful of parameters: see src/core/cholesky.cpp."""

from __future__ import annotations

from sorel._core import minimize_few

__all__ = ["minimize_few"]
