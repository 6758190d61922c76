"""Newton's method along a falling penalty.

With a tiny l2 and data that a linear model fits exactly, the optimum lies where most losses have a
kink, and Newton steps from afar are cut short at one kink after another. Under a strong penalty the
problem is easy; each solution is a good start for a penalty ten times weaker (continuation as in
Hale, Yin and Zhang 2008).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from sorel.models.constrained import RIDGE
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run, rehearse
from sorel.solvers.newton import Newton

# Factor of l2 from one stage to the next, down to that of the problem.
_L2_FACTOR = 0.1

# Relative gap of a stage. It has to identify the ties, which the next stage begins with.
_STAGE_TOL = 1e-5

# Passes of a stage, at most.
_STAGE_PASSES = 200


class Continuation(Newton):
    """Newton's method started from a sequence of problems with a stronger penalty.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [-3.0]])
    >>> penalty = sorel.L2(1e-6)
    >>> problem = sorel.Problem(X, [1, 1, 0], loss="squared_hinge", penalty=penalty)
    >>> sorel.solve(problem, solver=sorel.solvers.Continuation()).converged
    True
    """

    name: ClassVar[str] = "continuation"

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        run.w, run.dual = problem.start(), None
        for l2 in self._moduli(problem, run):
            stage = problem.with_penalty(problem.penalty.plus_ridge(l2 - problem.penalty.l2))
            self._solve_stage(stage, run)
            if run.exhausted:
                break
        yield from super().iterates(problem, run)

    def _moduli(self, problem: Problem, run: Run) -> list[float]:
        """Falling values of l2, from the curvature of the losses to the problem's own."""
        engine = problem.engine
        # Where coefficients cannot be 0, losses may have no curvature left at the start.
        strongest = 0.0
        for w in (run.w, np.zeros_like(run.w)) if np.any(run.w) else (run.w,):
            diagonal = engine.curvature(engine.point(w), engine.uniform()).diagonal()
            run.passes += 1
            strongest = max(strongest, float(np.mean(diagonal)))
        l2 = problem.penalty.l2
        # Far below the rounding of the curvature another stage changes nothing.
        own = max(l2, RIDGE**2 * strongest) if l2 > 0.0 else RIDGE * strongest
        moduli = []
        while own < _L2_FACTOR * strongest < math.inf:
            moduli.append(strongest)
            strongest *= _L2_FACTOR
        return moduli

    def _solve_stage(self, stage: Problem, run: Run) -> None:
        """Advance `run` to a solution of one stage, or by so many passes."""
        limit = min(run.max_passes, run.passes + _STAGE_PASSES)
        inner = dataclasses.replace(
            run, tol=_STAGE_TOL, max_passes=limit, watched=False, save_at=math.inf,
            known=dataclasses.replace(run.known),
        )  # fmt: skip
        best = np.inf
        for iterate, certificate in rehearse(super().iterates(stage, inner), stage, inner):
            if certificate.gap <= best:
                best = certificate.gap
                run.w, run.dual = iterate.point.w, iterate.dual
            if certificate.relative_gap <= _STAGE_TOL:
                break
        run.passes = inner.passes
        run.n_iter += inner.n_iter
