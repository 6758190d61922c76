"""The default: choose a method by the size of the problem, and change it when it stops paying.

Second order on the augmented Lagrangian wins wherever its steps are affordable, which is a matter
of the number of parameters. What is left goes to conjugate gradients, or to SOREL's stochastic
inner loop where the penalty is not quadratic.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.engines.base import Dual, FloatArray
from sorel.problem import Problem
from sorel.solvers.base import Iterates, Run, Solver, UnsupportedProblemError, rehearse
from sorel.solvers.continuation import Continuation
from sorel.solvers.newton import MAX_SIZE, Newton, SparseNewton
from sorel.solvers.newton_cg import NewtonCG
from sorel.solvers.sorel import SOREL
from sorel.solvers.subgradient import Subgradient

# Up to this many parameters a Newton step from a p x p Hessian is the cheapest way forward.
_FEW_PARAMETERS = 1000

# A random part of the rows is solved first: so many for each parameter, of those that carry the
# risk, at least this share of all rows where that is few numbers, and never more than the last
# share. How well, and for how many passes over the part.
_ROWS_PER_PARAMETER = 50
_LEAST_ROWS, _SHARE, _LARGEST_SHARE = 10_000, 0.04, 0.125
_PART_NUMBERS = 10_000_000
_PART_TOL, _PART_PASSES = 1e-3, 100
_NEAR = 0.1

# With at least so many parameters, rows for each of them, and numbers in X, products with the
# Hessian are tried before the matrix. It takes the time of many products, so they get so many
# passes for each parameter: enough where the columns are well scaled.
_SOME_PARAMETERS, _MANY_ROWS, _MANY_NUMBERS = 300, 20, 10_000_000
_PASSES_PER_PARAMETER = 0.125

# Where coefficients may rest, but do not, so many passes of the stochastic method come before a
# matrix of all columns: enough where the problem is easy.
_TRIAL = 50

# Passes without a tenth of the gap gone after which another method has its turn.
_PATIENCE = 250


class Auto(Solver):
    """No settings: picks a solver, watches the certified gap, and switches when it stalls.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> print(sorel.solve(problem).status.split(" reached")[0])
    converged: auto (newton)
    """

    name: ClassVar[str] = "auto"

    def check(self, problem: Problem) -> None:
        order = self._order(problem)
        if self._first_able(problem, [*order, Subgradient]) is None:
            order[0]().check(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        chosen: list[str] = []
        waiting = self._order(problem)
        first = self._first_able(problem, waiting)
        if first is None:
            # A penalty of the user's own with very many parameters is for none but the last.
            waiting, first = [Subgradient], 0
        if run.dual is None and waiting[first] is Newton:
            self._start_from_part(problem, run)
        while first is not None:
            solver, waiting = waiting[first](), waiting[first + 1 :]
            chosen.append(solver.name)
            run.note = " then ".join(chosen)
            yield from self._turn(problem, run, solver, waiting)
            if run.exhausted:
                return
            first = self._first_able(problem, waiting)
        run.note = f"{' then '.join(chosen)}; rounding errors allow no further progress"

    def _start_from_part(self, problem: Problem, run: Run) -> None:
        """Move the start near the solution for a few of the rows, where few suffice.

        The first digits are the same for a large part of the data and for all of it, and a part
        costs next to nothing. What is certified later is certified on all rows.
        """
        engine, n = problem.engine, problem.n_samples
        if _LARGEST_SHARE * n < _LEAST_ROWS or not engine.offers("sample"):
            return
        needed = _ROWS_PER_PARAMETER * engine.size / engine.effective_share()
        rows = int(max(needed, _LEAST_ROWS, min(_SHARE * n, _PART_NUMBERS / problem.n_features)))
        if rows > _LARGEST_SHARE * n or rows * problem.n_features > 2 * _PART_NUMBERS:
            return
        # Always the same rows: nobody expects chance in a method without settings.
        part = problem.subsample(rows, np.random.default_rng(0))
        if part is None:
            return
        limit = min(_PART_PASSES, (run.max_passes - run.passes) * n / rows)
        inner = Run(run.w, None, _PART_TOL, limit, run.deadline, run.random_state, near=run.near)
        best = np.inf
        for iterate, certificate in rehearse(Newton().iterates(part, inner), part, inner):
            if certificate.relative_gap <= best:
                best, run.w = certificate.relative_gap, iterate.point.w
            if best <= _PART_TOL:
                break
        run.passes += inner.passes * rows / n
        run.near = run.near or best <= _NEAR

    def _order(self, problem: Problem) -> list[type[Solver]]:
        """Methods that come into question: the cheapest first, the most robust last."""
        size = problem.engine.size
        if size <= _FEW_PARAMETERS:
            first: list[type[Solver]] = [NewtonCG] if self._by_products(problem) else []
            return [*first, Newton, Continuation, SOREL]
        dense: list[type[Solver]] = [Newton, Continuation] if size <= MAX_SIZE else []
        if problem.penalty.quadratic:
            return [NewtonCG, *dense, SOREL]
        if problem.by_parts:
            return [SparseNewton, SOREL, *dense, *([SOREL] if dense else [])]
        return [SOREL, *dense] if problem.engine.offers("epoch") or not dense else dense

    def _by_products(self, problem: Problem) -> bool:
        """Whether a matrix is affordable, but products are likely to be cheaper."""
        size, n = problem.engine.size, problem.n_samples
        many = n >= _MANY_ROWS * size and n * problem.n_features >= _MANY_NUMBERS
        return problem.penalty.quadratic and _SOME_PARAMETERS <= size <= _FEW_PARAMETERS and many

    def _first_able(self, problem: Problem, solvers: list[type[Solver]]) -> int | None:
        """The place of the first method that takes the problem."""
        for place, cls in enumerate(solvers):
            try:
                cls().check(problem)
            except UnsupportedProblemError:
                continue
            return place
        return None

    def _turn(
        self, problem: Problem, run: Run, solver: Solver, others: list[type[Solver]]
    ) -> Iterates:
        """Run one solver until it gives up or stalls; leave its best iterate as the next start."""
        iterates = solver.iterates(problem, run)
        note = run.note
        best: tuple[FloatArray, Dual] | None = None
        best_gap, since = np.inf, run.passes
        limit = np.inf
        if isinstance(solver, NewtonCG) and self._by_products(problem):
            limit = run.passes + _PASSES_PER_PARAMETER * problem.engine.size
        elif isinstance(solver, SOREL) and Newton in others and problem.by_parts:
            limit = run.passes + _TRIAL
        try:
            iterate = next(iterates)
            while True:
                certificate = yield iterate
                # The relative gap: where the optimum is near 0 the gap falls with the objective.
                if certificate.relative_gap < best_gap:
                    best = iterate.point.w, iterate.dual
                    if certificate.relative_gap < 0.9 * best_gap:
                        since = run.passes
                    best_gap = certificate.relative_gap
                if run.passes - since > _PATIENCE or run.passes > limit:
                    if self._first_able(problem, others) is not None:
                        break
                    since = limit = np.inf
                iterate = iterates.send(certificate)
        except (StopIteration, np.linalg.LinAlgError):
            pass
        finally:
            iterates.close()
        run.note = note
        if best is not None:
            run.w, run.dual = best
