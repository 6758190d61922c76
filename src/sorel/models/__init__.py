"""The quadratic model of a step under constraints; nothing here knows X."""

from sorel.models.constrained import Model, Solution, minimize

__all__ = ["Model", "Solution", "minimize"]
