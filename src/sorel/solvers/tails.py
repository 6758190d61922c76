"""The rows that carry a tail risk, as a problem of their own.

Under CVaR only the samples of the worst losses have weight. Near a solution it is known which rows
may come to be among them: solve for those rows T alone, under CVaR(alpha / mass of T). A weighting
of T is one of all rows, so the bound on its optimum holds for all of them, and one product with X
says whether the worst losses are all in T. Along a path one T serves many points.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter as now
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.certificate import Certifier, relative, unit
from sorel.engines.base import Engine
from sorel.problem.problem import Problem
from sorel.problem.risks import CVaR
from sorel.solvers.solve import Record, Result, solve_quietly

FloatArray = NDArray[np.float64]

# Mass of the rows T when they are chosen, in units of alpha.
_CHOSEN_MASS = 1.3

# Mass of T in units of alpha below which it may miss rows of the tail.
_LEAST_MASS = 1.05

# Mass of T in units of alpha above which a smaller T is cheaper.
_LARGEST_MASS = 2.0

# Share of all rows up to which T is worth a problem of its own.
_LARGEST_SHARE = 0.8

# Bytes of the copy of T's rows, at most.
_MAX_COPY = 256 << 20

# Entries of X from which on T pays: a smaller problem is solved while T is chosen.
_LEAST_ENTRIES = 100_000

# Rows of T for each parameter, at least. With fewer, T depends on every coefficient.
_ROWS_PER_PARAMETER = 4

# Choices of T for one problem, at most.
_MAX_CHOICES = 2

# Problems that T failed to solve, after which no more are tried.
_MAX_FAILURES = 3

# Share of the tolerance that the problem on T may use up.
_SHARE_OF_TOL = 0.9

# Relative difference below which losses are equal. Any of them may then be the worst.
_EQUAL_LOSSES = 1e-9

# Relative distance from the largest weight above which a sample is in a tie.
_FULL_WEIGHT = 1e-6

# Relative increase of alpha on T, so that rounding makes no weight exceed its bound on all rows.
_ALPHA_SLACK = 1e-13

# Least tolerance: the gap is a difference of objectives.
_LEAST_TOL = 1e-10


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
        self._failures = 0

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
        begin, passes = now(), 0.0
        alpha = float(problem.risk.alpha)  # type: ignore[attr-defined] # of CVaR
        if self._engine is None or not _LEAST_MASS * alpha <= self._mass <= _LARGEST_MASS * alpha:
            self._choose(problem, alpha, problem.losses(start.w), start)
            passes += 1.0
        result = None
        for _ in range(_MAX_CHOICES):
            if self._engine is None:
                self._failures += 1
                break
            result, losses = self._solve_part(problem, self._engine, alpha, result or start)
            passes += result.passes
            if result.converged or result.status.startswith("interrupted"):
                break
            self._choose(problem, alpha, losses, result)
        else:
            self._failures += 1
        return None if result is None else self._describe(result, passes, now() - begin)

    def _serves(self, problem: Problem) -> bool:
        """Whether a few of the rows carry the risk, and they are worth a problem of their own."""
        if type(problem.risk) is not CVaR or problem.engine.entries < _LEAST_ENTRIES:
            return False
        if problem.engine.obstacle("on_rows") is not None:
            return False
        share = _CHOSEN_MASS * float(problem.risk.alpha)
        enough = share * problem.n_samples >= _ROWS_PER_PARAMETER * problem.engine.size
        few = share <= _LARGEST_SHARE and self._failures < _MAX_FAILURES
        return enough and few and self._tol >= max(_LEAST_TOL, np.finfo(problem.data_type).eps)

    def _choose(self, problem: Problem, alpha: float, losses: FloatArray, start: Result) -> None:
        """Choose the rows of the worst losses, and those that share a tie."""
        self._engine = None
        engine = problem.engine
        omega, n = engine.spec.sample_weight, engine.n_samples
        order = np.argsort(losses)[::-1]
        masses = (1.0 + np.arange(n)) / n if omega is None else np.cumsum(omega[order])
        edge, last = np.searchsorted(masses, [alpha, _CHOSEN_MASS * alpha])
        worst, least = losses[order[edge]], losses[order[last]]
        if not worst - least > _EQUAL_LOSSES * abs(worst):
            return
        density = start.weights if omega is None else _quotient(start.weights, omega)
        chosen = (density > 0.0) & (density < (1.0 - _FULL_WEIGHT) * density.max())
        chosen[order[: last + 1]] = True
        rows = np.flatnonzero(chosen)
        share = len(rows) / n
        size = share * engine.entries * engine.data_type.itemsize
        mass = share if omega is None else float(omega[rows].sum())
        # Losses that are all but equal may share weight far beyond the worst of them.
        if share > _LARGEST_SHARE or mass > _LARGEST_MASS * alpha or size > _MAX_COPY:
            return
        part = engine.on_rows(rows)
        if part is not None:
            self._engine, self._rows, self._mass = part.for_run(sequence=True), rows, mass

    def _solve_part(
        self, problem: Problem, engine: Engine, alpha: float, start: Result
    ) -> tuple[Result, FloatArray]:
        """The solution for the chosen rows, certified for all of them, and the losses of all."""
        rows = self._rows
        tail = engine.with_risk(CVaR(min((1.0 + _ALPHA_SLACK) * alpha / self._mass, 1.0)))
        assert tail is not None, "rows in memory take any risk"
        part = problem.with_engine(tail)
        found, _ = solve_quietly(
            part,
            "auto",
            _SHARE_OF_TOL * self._tol,
            self._max_passes,
            random_state=self._random_state,
            warm_start=replace(start, weights=start.weights[rows], curvature=None),
        )
        point = problem.engine.point(problem.from_user(found.w))
        objective, error = Certifier(problem).upper_bound(point)
        gap = objective + error - found.dual
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
