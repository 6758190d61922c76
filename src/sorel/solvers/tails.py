"""The rows that carry a tail risk, as a problem of their own.

Under CVaR only the samples of the worst losses have weight. Near a solution it is known which rows
may come to be among them: solve for those rows T alone, under CVaR(alpha / mass of T). A weighting
of T is one of all rows, so the bound on its optimum holds for all of them, and one product with X
says whether the worst losses are all in T. Along a path one T serves many points.
"""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter as now
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.certificate import Certifier, relative, unit
from sorel.certificate.rounding import UNIT
from sorel.engines.base import Engine
from sorel.models.costs import LEAST_ENTRIES
from sorel.problem.problem import Problem
from sorel.problem.risks import CVaR
from sorel.solvers.base import SHARE_OF_TOL
from sorel.solvers.solve import Record, Result, solve_quietly

FloatArray = NDArray[np.float64]

# Mass of the rows T when they are chosen, in units of alpha.
_CHOSEN_MASS = 1.3

# Mass of T in units of alpha above which a smaller T is cheaper, or all rows are as cheap.
_LARGEST_MASS = 2.0

# Rows of T for each parameter, at least. With fewer, T depends on every coefficient.
_ROWS_PER_PARAMETER = 4


class Tails:
    """Solves similar problems one after another, each on the rows that carry its tail risk.

    Parameters
    ----------
    tol, max_passes, random_state
        As in :func:`sorel.solve`, for each problem.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.solvers.tails import Tails
    >>> X = np.random.default_rng(0).standard_normal((20_000, 10))
    >>> problem = sorel.Problem(X, X[:, 0] ** 2, risk=sorel.CVaR(0.1))
    >>> last, tails = sorel.solve(problem), Tails(1e-6, 1000, 0)
    >>> result = tails.solve(problem.with_risk(sorel.CVaR(0.09)), last)
    >>> result.converged, len(result.weights)
    (True, 20000)
    """

    def __init__(self, tol: float, max_passes: float, random_state: Any) -> None:
        self._tol, self._max_passes, self._random_state = tol, max_passes, random_state
        self._engine: Engine | None = None
        self._rows = np.empty(0, np.intp)
        self._mass = 0.0
        self._failed = False

    def solve(self, problem: Problem, start: Result) -> Result | None:
        """Solve a problem similar to one that is solved.

        Parameters
        ----------
        problem : Problem
            The problem, with the same data and loss each time.
        start : Result
            The solution of a similar one.

        Returns
        -------
        Result or None
            Certified for all rows. Where it has not converged it is a better start than the one
            given. None where few rows are of no help.
        """
        if not self._serves(problem):
            return None
        begin, passes, gap = now(), 0.0, math.inf
        alpha = float(problem.risk.alpha)  # type: ignore[attr-defined] # of CVaR
        result, losses = None, None
        while not self._failed:
            if self._engine is None or not alpha <= self._mass <= _LARGEST_MASS * alpha:
                if losses is None:
                    losses = problem.losses(start.w)
                    passes += 1.0
                self._choose(problem, alpha, losses, result or start)
            if self._engine is None:
                self._failed = True
                break
            result, losses = self._solve_part(problem, self._engine, alpha, result or start)
            passes += result.passes
            if result.converged or result.status.startswith("interrupted"):
                break
            # The worst rows at the solution for T are the next T, for as long as that helps.
            self._failed = not result.gap < 0.5 * gap
            self._engine, gap = None, result.gap
        return None if result is None else self._describe(result, passes, now() - begin)

    def _serves(self, problem: Problem) -> bool:
        """Whether a few of the rows carry the risk, and they are worth a problem of their own."""
        if type(problem.risk) is not CVaR or problem.engine.entries < LEAST_ENTRIES:
            return False
        if problem.engine.obstacle("on_rows") is not None:
            return False
        alpha, n = float(problem.risk.alpha), problem.n_samples
        enough = _CHOSEN_MASS * alpha * n >= _ROWS_PER_PARAMETER * problem.engine.size
        # The gap is a difference of objectives, which are sums of n terms.
        rounding = n * float(np.finfo(problem.data_type).eps)
        return enough and _LARGEST_MASS * alpha <= 1.0 and self._tol >= rounding

    def _choose(self, problem: Problem, alpha: float, losses: FloatArray, start: Result) -> None:
        """Choose the rows of the worst losses, and those that share a tie."""
        self._engine = None
        engine = problem.engine
        omega, n = engine.spec.sample_weight, engine.n_samples
        order = np.argsort(losses)[::-1]
        masses = (1.0 + np.arange(n)) / n if omega is None else np.cumsum(omega[order])
        edge, last = np.searchsorted(masses, [alpha, _CHOSEN_MASS * alpha])
        if np.isclose(losses[order[edge]], losses[order[last]], atol=0.0):
            return
        density = start.weights if omega is None else _quotient(start.weights, omega)
        chosen = (density > 0.0) & ~np.isclose(density, density.max(), atol=0.0)
        chosen[order[: last + 1]] = True
        rows = np.flatnonzero(chosen)
        mass = len(rows) / n if omega is None else float(omega[rows].sum())
        # Losses that are all but equal may share weight far beyond the worst of them.
        if mass > _LARGEST_MASS * alpha:
            return
        part = engine.on_rows(rows)
        if part is not None:
            self._engine, self._rows, self._mass = part.for_run(sequence=True), rows, mass

    def _solve_part(
        self, problem: Problem, engine: Engine, alpha: float, start: Result
    ) -> tuple[Result, FloatArray]:
        """The solution for the chosen rows, certified for all of them, and the losses of all."""
        rows = self._rows
        # Rounding of the mass makes no weight exceed its bound on all rows.
        share = alpha / self._mass * (1.0 + len(rows) * UNIT)
        tail = engine.with_risk(CVaR(min(share, 1.0)))
        assert tail is not None, "rows in memory take any risk"
        part = problem.with_engine(tail)
        found, _ = solve_quietly(
            part,
            "auto",
            SHARE_OF_TOL * self._tol,
            self._max_passes,
            random_state=self._random_state,
            warm_start=replace(start, weights=start.weights[rows], curvature=None),
        )
        point = problem.engine.point(problem.from_user(found.w))
        objective, most = Certifier(problem).upper_bound(point)
        gap = most - found.dual
        relative_gap = relative(gap, unit(problem, objective, point))
        weights = np.zeros(problem.n_samples)
        weights[rows] = found.weights
        result = replace(
            found,
            weights=weights,
            objective=objective,
            dual=objective - gap,
            gap=gap,
            relative_gap=relative_gap,
            passes=len(rows) / problem.n_samples * found.passes + 1.0,
            converged=found.converged and relative_gap <= self._tol,
            curvature=None,
        )
        return result, problem.engine.losses(point)

    def _describe(self, result: Result, passes: float, seconds: float) -> Result:
        """The result as that of one run."""
        values = result.objective, result.dual, result.gap, result.relative_gap
        status = result.status
        if result.converged:
            status = (
                f"converged: {result.solver} reached a certified relative gap "
                f"{result.relative_gap:.2g} in {passes:.4g} passes, most of them over the "
                f"{len(self._rows)} rows of the tail"
            )
        record = Record(passes, seconds, *values, *values)
        return replace(result, passes=passes, seconds=seconds, status=status, history=[record])


def _quotient(weights: FloatArray, omega: FloatArray) -> FloatArray:
    """Weights per sample weight; 0 where there is no sample weight."""
    return np.divide(weights, omega, out=np.zeros(len(omega)), where=omega > 0.0)
