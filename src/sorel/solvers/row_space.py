"""A problem of few rows and many columns, solved in the space of its rows.

Under L2 the solution is a combination of the rows of X (the representer theorem: Schoelkopf,
Herbrich and Smola 2001). With X X^T = L L^T, the problem with L in the place of X has the same
losses, risk and norm at v as this one at w = X^T L^-T v, and products with L take n^2 operations
instead of n d. That pays where hundreds of samples tie, as under CVaR. What is found is certified
as a point of the problem itself.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.certificate import gap_wanted
from sorel.engines.base import Dual, FloatArray
from sorel.engines.rotated import Rotated, rotate
from sorel.engines.row_gram import MAX_ROWS
from sorel.models.costs import LEAST_ENTRIES
from sorel.problem.problem import Problem
from sorel.solvers.base import (
    SHARE_OF_TOL,
    Iterate,
    Iterates,
    Run,
    Solver,
    UnsupportedProblemError,
    rehearse,
)
from sorel.solvers.newton_cg import NewtonCG

# Passes over the small matrix without a tenth of the gap gone after which the run ends.
_PATIENCE = 1000


class RowSpace(Solver):
    """Newton steps by products in the space of the rows; for `auto`.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.solvers.row_space import RowSpace
    >>> X = np.random.default_rng(0).standard_normal((50, 4000))
    >>> problem = sorel.Problem(X, X[:, 0], risk=sorel.CVaR(0.2))
    >>> sorel.solve(problem, solver=RowSpace()).converged
    True
    """

    name: ClassVar[str] = "row_space"

    def check(self, problem: Problem) -> None:
        if not pays(problem):
            raise UnsupportedProblemError(
                f"solver {self.name!r} is for CVaR and other risks of two levels under L2, for at "
                f"most {MAX_ROWS} rows, more columns than rows and at least {LEAST_ENTRIES} "
                "entries; use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        rotated = rotate(problem.engine)
        run.passes += 1.0
        if rotated is None:
            run.note = "the rows of X are all but dependent"
            return
        small = problem.with_engine(rotated.engine)
        began, cheaper = run.passes, problem.engine.entries / problem.n_samples**2
        tol, most = SHARE_OF_TOL * run.tol, (run.max_passes - run.passes) * cheaper
        inner = Run(rotated.into(run.w), run.dual, tol, most, run.deadline, run.random_state)
        best: tuple[FloatArray, Dual] | None = None
        least, known, since, target = np.inf, np.inf, 0.0, 0.0
        try:
            for iterate, certificate in rehearse(NewtonCG().iterates(small, inner), small, inner):
                run.passes, run.n_iter = began + inner.passes / cheaper, inner.n_iter
                if certificate.relative_gap < least:
                    best, least = (iterate.point.w, iterate.dual), certificate.relative_gap
                    target = gap_wanted(problem, run.tol, certificate.unit)
                    if run.wants_check:
                        yield _back(problem, rotated, *best, 0.0)
                if least < 0.9 * known:
                    known, since = least, inner.passes
                if least <= inner.tol or inner.passes - since > _PATIENCE:
                    break
        except KeyboardInterrupt:
            if best is not None:
                run.latest = _back(problem, rotated, *best, target)
            raise
        if best is not None:
            run.passes += 2.0
            yield _back(problem, rotated, *best, target)


def _back(problem: Problem, rotated: Rotated, v: FloatArray, dual: Dual, refine: float) -> Iterate:
    """What was found in the space of the rows, as parameters of the problem."""
    return Iterate(problem.engine.point(rotated.back(v)), dual, None, refine)


def pays(problem: Problem) -> bool:
    """Whether the space of the rows is so much smaller that the rotation pays."""
    engine, n = problem.engine, problem.n_samples
    if n > MAX_ROWS or engine.entries < max(n * n, LEAST_ENTRIES):
        return False
    served = problem.penalty.quadratic and engine.n_outputs == 1 and engine.stored() is not None
    return served and problem.has_two_levels and not problem.loss.affine
