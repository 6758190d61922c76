"""SciPy's L-BFGS-B on the nonsmooth objective: what a clever user would do without this library.

The method is that of Byrd, Lu, Nocedal and Zhu (1995). The gradient at w is that of lam . l + g
with lam the weights of the sorted losses. Nothing is guaranteed: at a kink the line search may find
no descent, and the run ends (Lewis and Overton 2013 say when it goes well).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from sorel._lib.floats import EPS
from sorel.engines.base import FloatArray
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, check_count


class LBFGS(FirstOrder):
    """Limited-memory quasi-Newton method, without regard for the kinks.

    It runs in segments, with a check and an empty memory after each: the first of twice as many
    iterations as pairs are kept, each next one twice as long. It ends when a segment brings
    nothing. One evaluation is one pass.

    Parameters
    ----------
    memory : int, default=10
        Curvature pairs kept.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.LBFGS(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "lbfgs"

    def __init__(self, memory: int = 10) -> None:
        self.memory = check_count("memory", memory)

    def obstacle(self, problem: Problem) -> str | None:
        if not (problem.penalty.smooth or problem.penalty.smooth_in_bounds):
            return (
                f"takes smooth penalties and bounds, and the {problem.penalty.name} penalty is "
                "neither"
            )
        return super().obstacle(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        from scipy.optimize import minimize

        best = _Lowest(problem, run)
        best(run.w.ravel())
        bounds, length = _bounds(problem), 2 * self.memory
        while True:
            before = best.value
            yield best.iterate()
            outcome = minimize(
                best,
                best.w.ravel(),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=best.stop_when_exhausted,
                options={
                    "maxiter": length,
                    # A line search at a kink takes many evaluations: keep to the budget.
                    "maxfun": max(1, int(min(100 * length, run.max_passes - run.passes))),
                    "maxcor": self.memory,
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
            run.n_iter += int(outcome.nit)
            length *= 2
            if not best.value < before - EPS * abs(before):
                run.note = "the line search found no descent, at an optimum or a kink"
                break
        yield best.iterate()


class _Lowest:
    """The objective as scipy wants it, with the lowest point it has seen."""

    def __init__(self, problem: Problem, run: Run) -> None:
        self.problem, self.run = problem, run
        self.value = np.inf
        self._iterate: Iterate | None = None

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        problem, engine = self.problem, self.problem.engine
        w = np.array(x).reshape(engine.shape)
        point = engine.point(w)
        self.run.passes += 1
        dual = engine.worst_case(point)
        risk_gradient = engine.gradient(point, dual)
        coef = problem.coefficients(w)
        value = engine.expected(point, dual) + problem.penalty.value(coef)
        if value < self.value:
            self.value = value
            self._iterate = self.run.latest = Iterate(point, dual, risk_gradient)
        gradient = risk_gradient.copy()
        # Bounds are scipy's to keep.
        gradient[: problem.n_features] += problem.penalty.gradient(coef)
        return value, gradient.ravel()

    @property
    def w(self) -> FloatArray:
        assert self._iterate is not None
        return self._iterate.point.w

    def iterate(self) -> Iterate:
        """The lowest point, to be certified to the tolerance."""
        assert self._iterate is not None
        wanted = self.problem.gap_wanted(self.run.tol, self.value, self._iterate.point)
        return self._iterate._replace(refine=wanted)

    def stop_when_exhausted(self, intermediate_result: Any) -> None:
        if self.run.exhausted:
            raise StopIteration


def _bounds(problem: Problem) -> Any:
    limits = problem.penalty.bounds(problem.n_features)
    if limits is None:
        return None
    from scipy.optimize import Bounds

    shape = problem.engine.shape
    lower, upper = np.full(shape, -np.inf), np.full(shape, np.inf)
    for full, limit in ((lower, limits[0]), (upper, limits[1])):
        problem.coefficients(full)[...] = limit if full.ndim == 1 else limit[:, None]
    return Bounds(lower.ravel(), upper.ravel())
