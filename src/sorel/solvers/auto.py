"""The default: a table of methods, each with when it applies, what it may spend and what follows.

Costs are counted from shapes (`models/costs.py`) and never timed, so that a run is the same every
time. The methods of a problem are the rows of the table that apply to it, in their order. One that
stalls, spends its budget or finds that others are cheaper hands its best iterate to the next.
docs/choosing-a-solver.md shows the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from sorel.engines.base import Dual, FloatArray
from sorel.models.costs import PRODUCTS_PER_STEP, StepCosts, carrying_rows, classes_by_products
from sorel.models.working_sets import chooses_columns
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run, Solver, UnsupportedProblemError
from sorel.solvers.continuation import Continuation
from sorel.solvers.lbfgs import LBFGS
from sorel.solvers.newton import Newton, can_form_matrix, is_on_simplex
from sorel.solvers.newton_cg import NewtonCG
from sorel.solvers.pdhg import PDHG
from sorel.solvers.quasi_newton import QuasiNewton
from sorel.solvers.row_space import RowSpace, pays
from sorel.solvers.sorel import SOREL
from sorel.solvers.state import CostlyError
from sorel.solvers.subgradient import Subgradient

# Parameters up to which the matrix of all columns comes first where the penalty is not quadratic,
# or X is not in memory.
_FEW_COLUMNS = 1000

# Passes that steps from gradients alone take to 1e-6: they come first where the matrices that they
# spare cost more products.
_GRADIENT_STEPS = 50.0

# Matrices that those steps spare, where the curvature of the losses changes (2026-11: 9 to 17).
_MATRICES = 13.0

# A jump from one weight to the next, relative to the largest, up to which a risk counts as smooth:
# each is a kink, which no gradient tells of.
_SMOOTH_JUMP = 0.05

# Rows that carry the risk, for each parameter, from which on all steps can share a matrix: the
# weights of neighbouring ranks then tell how weights move.
_ROWS_PER_PARAMETER = 10

# Entries of X from which on that pays: a matrix for each step of a smaller one takes no time (the
# paper's 15 problems, 2026-11: 1.1 times as long without it, 2.8 at most).
_LEAST_ENTRIES = 10_000

# Passes of a stochastic method before a matrix of all columns. A tenth of a trial tells whether it
# leads anywhere.
_TRIAL = 100.0

# Steps from a matrix whose cost another method may spend without progress, or on trial, before the
# matrix has its turn (3000 x 1500 under CVaR(0.05), 2026-11: 1 is too few, 10 no better).
_MATRIX_STEPS = 3.0

# The share of the passes left that a method may take where another follows.
_SHARE_OF_PASSES = 0.8

# Passes in which neither the gap nor the objective, which falls first, has lost a tenth of the gap,
# after which the next method has its turn.
_PATIENCE = 250.0


class Facts:
    """What the table asks of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.engine, self.size = problem, problem.engine, problem.engine.size
        self.l2 = problem.penalty.quadratic
        self.chooses_columns = chooses_columns(problem.engine, problem.penalty)
        self.has_classes = classes_by_products(problem.engine)
        self.in_memory = problem.engine.in_memory
        self.has_matrix = can_form_matrix(problem)

    @cached_property
    def is_smooth(self) -> bool:
        """Whether weights change little with the order of the losses, and few losses tie."""
        problem, engine = self.problem, self.engine
        if problem.has_fixed_weights or problem.has_two_levels or problem.loss.affine:
            return problem.has_fixed_weights and not problem.loss.affine
        jump = engine.spec.risk.largest_jump(engine.n_samples)
        return carrying_rows(engine) >= self.size and jump <= _SMOOTH_JUMP

    @cached_property
    def costs(self) -> StepCosts:
        """What steps cost at the solution."""
        engine, n = self.engine, self.problem.n_samples
        # Under two levels as many rows come to tie as there are parameters.
        rows = n if self.is_smooth else min(carrying_rows(engine) + self.size, n)
        return StepCosts(engine, rows)

    @property
    def matrix(self) -> float:
        """Products with the Hessian that cost as much as the cheaper matrix of a step."""
        return self.costs.products() if self.has_matrix else math.inf

    @property
    def matrix_budget(self) -> float:
        """Passes that cost as much as some steps from a matrix; infinite where there is none."""
        return max(_MATRIX_STEPS * self.matrix, _PATIENCE)

    @property
    def gradient_steps(self) -> float:
        """Steps from gradients alone that are worth it before a matrix; 0 for none."""
        matrices = 1.0 if self.problem.bends_evenly else _MATRICES
        gradients = _GRADIENT_STEPS * self.costs.gradient / self.costs.product
        if matrices * self.matrix < gradients:
            return 0.0
        return min(self.matrix + _GRADIENT_STEPS / 2, _PATIENCE)

    @property
    def shares_matrix(self) -> bool:
        """Whether steps around one matrix are worth it."""
        engine = self.engine
        if engine.n_outputs > 1 or engine.entries < _LEAST_ENTRIES or not self.has_matrix:
            return False
        return carrying_rows(engine) >= _ROWS_PER_PARAMETER * self.size

    @property
    def has_many_columns(self) -> bool:
        """Whether a matrix of all columns comes last, where the penalty is not quadratic."""
        problem = self.problem
        if self.l2 or self.size <= _FEW_COLUMNS:
            return False
        if is_on_simplex(problem) and (problem.has_fixed_weights or self.engine.n_outputs == 1):
            # Few columns carry the solution, but for losses of classes that come to tie.
            return False
        return self.chooses_columns or problem.n_samples > self.size

    @property
    def is_wide_in_bounds(self) -> bool:
        """Whether bounds hold more columns than rows, most of them between theirs (for `pdhg`)."""
        wide = self.in_memory and self.size >= self.problem.n_samples
        return wide and self.problem.penalty.smooth_in_bounds and _takes(PDHG(), self.problem)

    def wants_first_order(self) -> bool:
        """Whether a first-order method comes before a matrix of all columns."""
        if not (self.has_many_columns and self.problem.penalty.smooth_in_bounds):
            return False
        return self.is_wide_in_bounds or self.problem.has_fixed_weights

    def wants_products(self) -> bool:
        """Whether conjugate gradients come before a matrix."""
        if not self.l2:
            return False
        if self.has_classes:
            return True
        if not self.in_memory:
            return self.size > _FEW_COLUMNS
        return self.matrix >= PRODUCTS_PER_STEP

    def wants_gradients(self) -> bool:
        """Whether L-BFGS on the risk itself comes before Newton steps."""
        if not (self.l2 and self.in_memory and self.is_smooth):
            return False
        return not self.has_classes and (self.gradient_steps > 0.0 or self.shares_matrix)


class Method(NamedTuple):
    """A row of the table.

    Attributes
    ----------
    name : str
        The method.
    applies : callable
        Whether it comes into question.
    make : callable
        Makes the solver, for one run.
    patience : callable
        Passes that it may take without progress.
    trial : callable
        Passes after which another one has its turn.
    """

    name: str
    applies: Callable[[Facts], bool]
    make: Callable[[Facts], Solver]
    patience: Callable[[Facts], float] = lambda f: _PATIENCE
    trial: Callable[[Facts], float] = lambda f: math.inf


TABLE = (
    Method("row_space", lambda f: pays(f.problem), lambda f: RowSpace()),
    Method(
        "quasi_newton",
        Facts.wants_gradients,
        lambda f: QuasiNewton(f.gradient_steps, f.shares_matrix),
    ),
    Method(
        "newton_cg",
        Facts.wants_products,
        lambda f: NewtonCG(f.costs if f.has_matrix and not f.has_classes else None),
        patience=lambda f: f.matrix_budget if f.has_matrix else _PATIENCE,
    ),
    Method(
        "newton on a working set",
        lambda f: (
            (f.has_many_columns and f.chooses_columns and not f.is_wide_in_bounds)
            or (is_on_simplex(f.problem) and not f.has_matrix)
        ),
        lambda f: Newton(inactive_only=True),
    ),
    Method(
        "lbfgs or pdhg",
        Facts.wants_first_order,
        # Within bounds the mean is smooth, and no risk else.
        lambda f: LBFGS() if f.problem.has_fixed_weights else PDHG(),
        # Its gap falls late: a trial is longer than the patience of other methods.
        trial=lambda f: _MATRIX_STEPS * f.matrix_budget,
    ),
    Method(
        "sorel",
        lambda f: f.has_many_columns or not f.has_matrix,
        lambda f: SOREL(),
        trial=lambda f: _TRIAL,
    ),
    Method("newton", lambda f: f.has_matrix, lambda f: Newton()),
    # Its gap falls at the end of the sequence, and not before.
    Method("continuation", lambda f: f.has_matrix, lambda f: Continuation(), lambda f: math.inf),
)


class Auto(Solver):
    """No settings: picks a solver, watches the certified gap, and switches when it stalls.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.CVaR(0.5))
    >>> print(sorel.solve(problem).status.split(" reached")[0])
    converged: auto (newton)
    """

    name: ClassVar[str] = "auto"

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        facts, waiting, chosen = Facts(problem), methods(problem), []
        while waiting:
            row, *waiting = waiting
            solver = row.make(facts)
            chosen.append(solver.name)
            run.note = " then ".join(chosen)
            yield from self._turn(facts, run, solver, row, last=not waiting)
            if run.exhausted:
                return
        run.note = f"{' then '.join(chosen)}; rounding errors allow no further progress"

    def _turn(self, facts: Facts, run: Run, solver: Solver, row: Method, last: bool) -> Iterates:
        """Run one solver until it gives up or stalls; leave its best iterate as the next start."""
        problem = facts.problem
        note, before, run.latest = run.note, run.latest, None
        best: tuple[FloatArray, Dual | None] | None = None
        best_gap, first_gap, since, began = np.inf, 0.0, run.passes, run.passes
        lowest = np.inf
        patience, trial = row.patience(facts), math.inf if last else row.trial(facts)
        limit = began + _SHARE_OF_PASSES * (run.max_passes - began)
        iterates = solver.iterates(problem, run)
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
                if certificate.primal < lowest - 0.1 * min(best_gap, 1.0) * certificate.unit:
                    lowest, since = certificate.primal, run.passes
                # A gap that is larger tells nothing of how far the tolerance is.
                first_gap = first_gap or min(best_gap, 1.0)
                if _will_miss(first_gap, best_gap, run.tol, run.passes - began, trial):
                    # Weights that are far off are worse than none, from which eta grows fast.
                    best = best and (best[0], None)
                    break
                if not last and (run.passes - since > patience or run.passes > limit):
                    break
                iterate = iterates.send(certificate)
        except CostlyError as reason:
            # The latest iterate is better than that of any check.
            if run.latest is not None:
                best = None if reason.far else (run.latest.point.w, run.latest.dual)
        except (StopIteration, np.linalg.LinAlgError):
            pass
        finally:
            iterates.close()
        run.note = note
        run.latest = run.latest or before
        if best is not None:
            run.w, run.dual = best


def methods(problem: Problem) -> list[Method]:
    """The rows of the table for a problem, the first method first."""
    facts = Facts(problem)
    found = [row for row in TABLE if row.applies(facts) and _takes(row.make(facts), problem)]
    # A penalty of the user's own with very many parameters is for none but the last.
    return found or [Method("subgradient", lambda f: True, lambda f: Subgradient())]


def _takes(solver: Solver, problem: Problem) -> bool:
    """Whether a method takes the problem."""
    try:
        solver.check(problem)
    except UnsupportedProblemError:
        return False
    return True


def _will_miss(first: float, gap: float, tol: float, passes: float, trial: float) -> bool:
    """Whether a method that goes on at its rate so far will miss the tolerance in its trial."""
    if trial == math.inf or passes < 0.1 * trial or gap <= tol:
        return False
    digits = math.log(max(first / gap, 1.0))
    return passes > trial or digits * (trial - passes) < passes * math.log(gap / tol)
