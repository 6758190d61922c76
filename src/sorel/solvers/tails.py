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

# The mass of the rows in units of alpha: when they are chosen, and the range in which they serve.
_CHOSEN, _LEAST, _MOST = 1.3, 1.05, 2.0

# Rows are taken apart up to this share of all, or this many bytes of X, and from so many numbers in
# X on: a small problem is solved in the time that it takes to choose. Where they are fewer than
# so many parameters, each of them counts, and which ones they are depends on all coefficients.
_MOST_ROWS, _MAX_COPY, _WORTH_A_PART, _ROWS_PER_PARAMETER = 0.8, 256 << 20, 100_000, 4

# Times that rows are chosen for one problem, problems in vain after which it is left, and the share
# of the tolerance that the part may use up.
_ROUNDS, _IN_VAIN, _SHARE = 2, 3, 0.9

# Losses that differ by less, relative to them, are equal: the worst of them are then any of them.
# A weight that misses the largest by more, relative to it, is that of a sample in a tie.
_LEVEL, _WHOLE = 1e-9, 1e-6

# The tail of the part is larger by this, so that rounding makes no weight larger than the risk of
# all rows allows. Far smaller tolerances are not for gaps that are differences.
_ROOM, _LEAST_TOL = 1e-13, 1e-10


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
        if self._engine is None or not _LEAST * alpha <= self._mass <= _MOST * alpha:
            self._choose(problem, alpha, problem.losses(start.w), start)
            passes += 1.0
        result = None
        for _ in range(_ROUNDS):
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
        if type(problem.risk) is not CVaR or problem.engine.entries < _WORTH_A_PART:
            return False
        if problem.engine.obstacle("on_rows") is not None:
            return False
        share = _CHOSEN * float(problem.risk.alpha)
        enough = share * problem.n_samples >= _ROWS_PER_PARAMETER * problem.engine.size
        few = share <= _MOST_ROWS and self._failures < _IN_VAIN
        return enough and few and self._tol >= max(_LEAST_TOL, np.finfo(problem.data_type).eps)

    def _choose(self, problem: Problem, alpha: float, losses: FloatArray, start: Result) -> None:
        """Choose the rows of the worst losses, and those that share a tie."""
        self._engine = None
        engine = problem.engine
        omega, n = engine.spec.sample_weight, engine.n_samples
        order = np.argsort(losses)[::-1]
        masses = (1.0 + np.arange(n)) / n if omega is None else np.cumsum(omega[order])
        edge, last = np.searchsorted(masses, [alpha, _CHOSEN * alpha])
        worst, least = losses[order[edge]], losses[order[last]]
        if not worst - least > _LEVEL * abs(worst):
            return
        density = start.weights if omega is None else _quotient(start.weights, omega)
        chosen = (density > 0.0) & (density < (1.0 - _WHOLE) * density.max())
        chosen[order[: last + 1]] = True
        rows = np.flatnonzero(chosen)
        share = len(rows) / n
        size = share * engine.entries * engine.data_type.itemsize
        mass = share if omega is None else float(omega[rows].sum())
        # Losses that are all but equal may share weight far beyond the worst of them.
        if share > _MOST_ROWS or mass > _MOST * alpha or size > _MAX_COPY:
            return
        part = engine.on_rows(rows)
        if part is not None:
            self._engine, self._rows, self._mass = part.for_run(sequence=True), rows, mass

    def _solve_part(
        self, problem: Problem, engine: Engine, alpha: float, start: Result
    ) -> tuple[Result, FloatArray]:
        """The solution for the chosen rows, certified for all of them, and the losses of all."""
        rows = self._rows
        tail = engine.with_risk(CVaR(min((1.0 + _ROOM) * alpha / self._mass, 1.0)))
        assert tail is not None, "rows in memory take any risk"
        part = problem.with_engine(tail)
        found, _ = solve_quietly(
            part,
            "auto",
            _SHARE * self._tol,
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
