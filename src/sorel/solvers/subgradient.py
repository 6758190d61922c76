"""Projected subgradient descent with Polyak's step towards a moving target.

    w <- Proj( w - (F(w) - target) / |s|^2 * s ),    s in the subdifferential of F at w.

With the optimal value as target this is Polyak's rule (1969). Here the target is the lowest value
so far less a margin delta, and never below a certified bound: delta doubles while the lowest value
falls as promised, and halves when it has not for a few iterations (in the manner of the dynamic
rule of Nedic and Bertsekas 2001, and of the levels of Goffin and Kiwiel 1999). No setting depends
on the scale of the data.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np

from sorel._lib.floats import EPS
from sorel.certificate import unit
from sorel.engines.base import Point
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_positive, projected

# Iterations between two checks, and without the promised descent before the margin is halved.
_PATIENCE = 5

# Share of a new subgradient's weighting in the running mean that is certified.
_MEMORY = 0.1


class Subgradient(FirstOrder):
    """Full-batch subgradient method.

    The weighting of a single subgradient jumps at the kinks; the running mean of the weightings
    along the way converges, and is what the certificate gets. One iteration is one pass. A check
    follows every fifth.

    Parameters
    ----------
    step_size : float, optional
        A constant step; None takes the rule above.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.Subgradient(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "subgradient"

    def __init__(self, step_size: float | None = None) -> None:
        self.step_size = check_positive("step_size", step_size)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        w, best, bound = run.w, np.inf, -np.inf
        delta = promised = np.inf
        mean, stuck = run.dual, 0
        lowest: Point | None = None
        for k in itertools.count():
            point = engine.point(w)
            run.passes += 1
            dual = engine.worst_case(point)
            value = engine.expected(point, dual) + problem.penalty_value(w)
            if not value < np.inf:
                run.note = f"diverged at pass {run.passes:.4g}: lower step_size={self.step_size}"
                return
            share = max(_MEMORY, 2.0 / (k + 2))
            mean = dual if mean is None else engine.blend(mean, dual, share)
            if lowest is None or value < best:
                best, lowest = value, point
            if k % _PATIENCE == 0:
                # The steps go by the bound: the first is worth a Hessian.
                reply = yield from watch.check(lowest, mean, refine=np.inf if k == 0 else None)
                bound = max(bound, reply.dual)
                delta = min(delta, best - bound)
            if k == 0:
                promised = best
            elif best <= promised - 0.5 * delta:
                promised, stuck, delta = best, 0, min(2.0 * delta, best - bound)
            else:
                stuck += 1
                if stuck >= _PATIENCE:
                    promised, stuck, delta = best, 0, 0.5 * delta
            if delta <= EPS * unit(problem, best, lowest):
                run.note = "rounding errors allow no further progress"
                break
            slope = engine.gradient(point, dual).copy()
            free = problem.coefficients(slope)
            free[...] = problem.penalty.shortest_subgradient(problem.coefficients(w), free)
            square = float(np.vdot(slope, slope))
            if square == 0.0:
                run.note = "the subgradient is zero"
                break
            step = self.step_size
            if step is None:
                step = (value - best + delta) / square
            w = projected(problem, w - step * slope)
            run.n_iter += 1
        assert lowest is not None
        assert mean is not None
        yield Iterate(lowest, mean, None, np.inf)
