"""One file per method, all behind :func:`sorel.solve`."""

from __future__ import annotations

from sorel.solvers.admm import ADMM
from sorel.solvers.apd import APD
from sorel.solvers.auto import Auto
from sorel.solvers.base import Iterate, Run, Solver, UnsupportedProblemError
from sorel.solvers.continuation import Continuation
from sorel.solvers.drago import Drago
from sorel.solvers.lbfgs import LBFGS
from sorel.solvers.lsvrg import LSVRG
from sorel.solvers.newton import Newton
from sorel.solvers.newton_cg import NewtonCG
from sorel.solvers.pdhg import PDHG
from sorel.solvers.prospect import Prospect
from sorel.solvers.saddle_saga import SaddleSAGA
from sorel.solvers.sgd import SGD
from sorel.solvers.sorel import SOREL
from sorel.solvers.stochastic_pd import StochasticPD
from sorel.solvers.subgradient import Subgradient

__all__ = [
    "ADMM",
    "APD",
    "Auto",
    "Continuation",
    "Drago",
    "LBFGS",
    "LSVRG",
    "SGD",
    "SOLVERS",
    "SOREL",
    "Iterate",
    "Newton",
    "NewtonCG",
    "PDHG",
    "Prospect",
    "Run",
    "SaddleSAGA",
    "Solver",
    "StochasticPD",
    "Subgradient",
    "UnsupportedProblemError",
]

SOLVERS: dict[str, type[Solver]] = {
    cls.name: cls
    for cls in (
        Auto,
        Newton,
        NewtonCG,
        Continuation,
        SOREL,
        LSVRG,
        Prospect,
        SaddleSAGA,
        SGD,
        Subgradient,
        LBFGS,
        APD,
        PDHG,
        ADMM,
        Drago,
        StochasticPD,
    )
}


def make_solver(solver: str | Solver) -> Solver:
    """The solver of that name, or the instance itself."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in SOLVERS:
        return SOLVERS[solver]()
    raise ValueError(f"unknown solver {solver!r}; known solvers: {', '.join(SOLVERS)}")
