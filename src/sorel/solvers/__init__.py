"""One file per method, all behind :func:`sorel.solve`."""

from __future__ import annotations

from sorel.solvers.base import Iterate, Run, Solver, UnsupportedProblemError
from sorel.solvers.newton import Newton

__all__ = ["SOLVERS", "Iterate", "Newton", "Run", "Solver", "UnsupportedProblemError"]

SOLVERS: dict[str, type[Solver]] = {cls.name: cls for cls in (Newton,)}


def make_solver(solver: str | Solver) -> Solver:
    """The solver of that name, or the instance itself."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in SOLVERS:
        return SOLVERS[solver]()
    raise ValueError(f"unknown solver {solver!r}; known solvers: {', '.join(SOLVERS)}")
