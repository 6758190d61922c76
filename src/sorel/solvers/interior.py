"""Interior-point steps on a small problem that Newton's method does not solve, for `auto`.

Where many samples tie, coefficients come to bounds and l2 is tiny, Newton steps on the augmented
Lagrangian are cut short at one kink after another. :mod:`sorel.interior` approaches all kinks at
once. What it finds is certified as any other iterate, and Newton's method goes on from there.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray
from sorel.interior import InteriorModel, InteriorPath, can_step_inside
from sorel.losses import SquaredHinge
from sorel.problem import Certificate, Problem
from sorel.solvers.base import Iterate, Iterates, Run, UnsupportedProblemError
from sorel.solvers.newton import Newton

# Steps at most, each of which takes two passes, and how many in a row may be shorter than the
# second number.
_MOST_STEPS, _MOST_SHORT, _SHORT = 100, 8, 1e-3

# A certificate is worth trying where the products of slacks and multipliers add up to this multiple
# of the gap wanted. There is nothing left to do below this share of it, once the objective falls by
# no more than the last share of it.
_WORTH_CHECK, _DONE, _STILL = 3.0, 1e-4, 1e-2

# Steps that may fail to halve the sum of these products.
_PATIENCE = 24

# A relative gap that has led nowhere: Newton's method does not go on from there.
_FAILED = 0.5


class InteriorPoint(Newton):
    """Interior-point steps to a start for Newton's method; for `auto`.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.solvers.interior import InteriorPoint
    >>> X = np.random.default_rng(0).standard_normal((50, 5))
    >>> problem = sorel.Problem(X, X[:, 0], risk=sorel.Max(), penalty=sorel.NonNegative(1e-6))
    >>> sorel.solve(problem, solver=InteriorPoint()).converged
    True
    """

    name: ClassVar[str] = "interior_point"

    def check(self, problem: Problem) -> None:
        super().check(problem)
        hinges = isinstance(problem.loss, SquaredHinge)
        if problem.has_fixed_weights and problem.penalty.quadratic and not hinges:
            raise UnsupportedProblemError(
                f"solver {self.name!r} is for problems with kinks, and there are none under "
                f"{problem.risk!r} and {problem.penalty!r}; use solver='auto'"
            )
        if not can_step_inside(problem.engine, problem.penalty):
            raise UnsupportedProblemError(
                f"solver {self.name!r} takes small data in memory, and the penalties of the "
                "package with bounds that are apart; use solver='auto'"
            )

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        relative_gap = yield from self._inside(problem, run)
        if relative_gap < _FAILED and not run.exhausted:
            yield from super().iterates(problem, run)

    def _inside(self, problem: Problem, run: Run) -> Generator[Iterate, Certificate, float]:
        """Interior-point steps, the last of which is left as the start of others; its gap."""
        engine = problem.engine
        point = engine.point(run.w)
        run.passes += 1
        model = InteriorModel.of(engine, problem.penalty, engine.losses(point))
        start = problem.start()
        if not engine.is_finite(engine.point(start)):
            start = run.w
        path = InteriorPath(model, model.scaled(start))
        run.passes += 2
        short, value = 0, np.inf
        halved, since = np.inf, 0
        for number in range(_MOST_STEPS):
            try:
                path.step()
            except np.linalg.LinAlgError:
                break
            run.passes += 2
            run.n_iter += 1
            short = short + 1 if path.length < _SHORT else 0
            if path.gap <= 0.5 * halved:
                halved, since = path.gap, number
            if run.exhausted or short >= _MOST_SHORT or number - since >= _PATIENCE:
                break
            w, dual = self._found(problem, path)
            point = engine.point(w)
            before, value = value, engine.risk(point) + problem.penalty_value(w)
            target = problem.gap_wanted(run.tol, value, point)
            gap = path.gap
            if gap <= _WORTH_CHECK * target:
                run.w, run.dual = w, dual
                yield Iterate(point, dual, None, target)
            if gap <= _DONE * target and before - value <= _STILL * target:
                break
        w, dual = self._found(problem, path)
        run.w, run.dual = w, dual
        reply = yield Iterate(engine.point(w), dual, None, np.inf)
        return reply.relative_gap

    def _found(self, problem: Problem, path: InteriorPath) -> tuple[FloatArray, Dual]:
        engine, model = problem.engine, path.model
        w = model.unscaled(path.w, engine.shape)
        w[: problem.n_features] = problem.penalty.project(w[: problem.n_features])
        weights = np.zeros(engine.n_samples)
        weights[model.used] = path.weights
        return w, engine.nearest_dual(weights)[0]
