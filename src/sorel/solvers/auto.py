"""The default: choose a method by what its steps cost, and change it when it stops paying.

Second order on the augmented Lagrangian wins wherever its steps are affordable. They come from
gradients alone while these lead on quickly, from products with the Hessian for as long as these
cost less than a matrix, from the cheaper of two matrices where they do not, and in the space of the
rows where columns are far more. What is left goes to SOREL's stochastic inner loop where the
penalty is not quadratic.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sorel.certificate import unit
from sorel.costs import FEW_PARAMETERS, StepCosts, carrying_rows, classes_by_products
from sorel.engines.base import Curvature, Dual, FloatArray
from sorel.problem import Problem
from sorel.solvers.augmented import CostlyError, Direction, State
from sorel.solvers.base import Iterates, Run, Solver, UnsupportedProblemError, rehearse
from sorel.solvers.continuation import Continuation
from sorel.solvers.lbfgs import LBFGS
from sorel.solvers.newton import (
    MAX_SIZE,
    Newton,
    SparseNewton,
    has_few_rows,
    has_smooth_risk,
    is_on_simplex,
    shares_matrix,
)
from sorel.solvers.newton_cg import NewtonCG, Resting
from sorel.solvers.quasi_newton import QuasiNewton
from sorel.solvers.row_space import RowSpace, pays
from sorel.solvers.sorel import SOREL
from sorel.solvers.subgradient import Subgradient
from sorel.working_sets import chooses_columns

# Up to this many parameters a Newton step from a p x p Hessian is the cheapest way forward where
# the penalty is not quadratic, or a product costs a journey to the data.
_FEW_PARAMETERS = 1000

# The same for classes on simplices as weights move.
_FEW_ON_SIMPLICES = 2000

# Where coefficients may rest, and a matrix of all columns takes many rows for each of them, it is
# left to the end beyond so many. Where none may rest, fewer rows than columns are too few for
# single samples to tell the way.
_FEW_RESTING, _ROWS_PER_COLUMN = 350, 3

# A random part of the rows is solved first: so many for each parameter, of those that carry the
# risk, at least this share of all rows where that is few numbers, and never more than the last
# share; less where the penalty has kinks, at which a part may settle on the wrong side. How well,
# and for how many passes over the part.
_ROWS_PER_PARAMETER = 50
_LEAST_ROWS, _SHARE, _LARGEST_SHARE = 10_000, 0.04, 0.125
_WITH_KINKS = 0.05
_PART_NUMBERS = 10_000_000
_PART_TOL, _PART_PASSES = 1e-3, 100
_NEAR = 0.1

# Products are tried first where a matrix costs at least so many of them, or so many once as many
# rows tie as there are parameters, which is where a risk of two levels leads: more for the squared
# loss, whose matrices need fewer steps. Steps may take this share of what as many would have cost
# from a matrix, and from some more: when they take more, the matrix has its turn, and little is
# lost.
_WORTH_PRODUCTS, _WORTH_WITH_TIES, _WORTH_WITH_SQUARES = 18.0, 30.0, 50.0
_SHARE_OF_MATRIX, _LEAST_PRODUCTS, _ON_CREDIT = 0.7, 8, 2

# Where weights move smoothly, they are tried from the first number on if X is no larger than the
# second, or losses are equal at the start. Steps from so small a matrix take longer than counted.
_WORTH_EARLY, _SMALL, _SHARE_WHERE_SMALL = 8.0, 1e5, 2.0

# Where the start may be the solution, a matrix follows products if it costs no more than so many.
_FOR_BALANCE = 100.0

# They leave some of the passes of a run to matrices, which need fewer, but more time for each.
_SHARE_OF_BUDGET = 0.8

# Steps from gradients alone come before, where the risk is smooth and a matrix costs so many
# products: more where weights move, since it then takes longer to see that steps lead nowhere.
# It never does so up to these many columns.
_WORTH_GRADIENTS, _WORTH_TRACKING, _FEW_COLUMNS = 5.0, 10.0, 32

# Such steps may be as many as cost one matrix, or at least so many where one is not enough, and
# what steps with it would cost besides; but no more than the last.
_STEPS_FOR_MATRICES, _STEPS_WITH_MATRIX, _MANY_STEPS = 25.0, 15.0, 200.0

# For the squared loss one matrix is all that is needed, or few: these must cost so many products
# before gradients alone are tried. Where gradients lead nowhere the condition is bad, and products
# would not fare better than a matrix unless that costs so many, or the last if all steps share it.
_WORTH_ONE_MATRIX, _WORTH_FEW_MATRICES, _WORTH_SHARED_MATRIX = 60.0, 30.0, 150.0

# Where coefficients may rest, but do not, so many passes of the stochastic method come before a
# matrix of all columns, enough where the problem is easy, or as many as cost so many matrices.
_TRIAL, _TRIAL_OF_MATRICES = 100.0, 15.0

# After so many of them it is known whether they lead anywhere. With more than the second number
# left of the gap, the weights are no start for others.
_FIRST_LOOK, _FAR = 10, 0.1

# Passes without a tenth of the gap gone after which another method has its turn. The second is for
# Newton steps from a matrix under L2, which take two each; under other penalties many ties may take
# longer to settle.
_PATIENCE, _NEWTON_PATIENCE = 250, 100


class _Balancing(Resting):
    """Steps to weights that make the start the solution: by products, then from a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self._newton: Newton | None = None

    def most_products(self, problem: Problem, curvature: Curvature) -> int:
        most, matrix = super().most_products(problem, curvature), _products_for_balance(problem)
        return min(most, max(int(matrix), _LEAST_PRODUCTS)) if matrix <= _FOR_BALANCE else most

    def direction(self, state: State, run: Run, caution: float) -> Direction:
        if self._newton is None:
            try:
                return super().direction(state, run, caution)
            except CostlyError:
                if _products_for_balance(state.problem) > _FOR_BALANCE:
                    raise
                self._newton = Newton()
        return self._newton.direction(state, run, caution)


class _Quick(QuasiNewton):
    """Steps from gradients alone, as long as the rest of them promises to cost less than others."""

    def _balance(self, start: State, w: FloatArray, state: State, run: Run) -> Iterates:
        # Weights that make the start the solution are found by products, or from a matrix.
        raise CostlyError

    def most_steps(self, problem: Problem) -> float:
        engine = problem.engine
        matrix = StepCosts(engine, carrying_rows(engine)).products()
        if not shares_matrix(problem):
            matrix = max(matrix, _STEPS_FOR_MATRICES)
        return min(matrix + _STEPS_WITH_MATRIX, _MANY_STEPS)


class _Classes(NewtonCG):
    """Steps by products that the curvature of the classes preconditions."""

    def resting(self) -> Resting:
        return _Balancing()


class _Thrifty(NewtonCG):
    """Steps by products for as long as none costs more than a matrix; for one run."""

    def __init__(self) -> None:
        self._steps, self._spent, self._costly = _ON_CREDIT, 0, False

    def resting(self) -> Resting:
        return _Balancing()

    def most_products(self, problem: Problem, curvature: Curvature) -> int:
        if self._costly:
            raise CostlyError
        self._steps += 1
        costs = StepCosts(problem.engine, curvature.share * problem.n_samples)
        share = _SHARE_WHERE_SMALL if problem.engine.entries <= _SMALL else _SHARE_OF_MATRIX
        left = share * costs.products(self._steps) - self._spent
        return max(int(left), _LEAST_PRODUCTS)

    def took(self, products: int, most: int) -> None:
        # The step is as good as another: it is the next one that is to be cheaper.
        self._spent += products
        self._costly = products >= most


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
        classes = waiting[first] is _Classes
        if not run.is_weighted and (waiting[first] in (Newton, _Quick, _Thrifty) or classes):
            self._start_from_part(problem, run, NewtonCG() if classes else Newton())
        while first is not None:
            solver, waiting = waiting[first](), waiting[first + 1 :]
            chosen.append(solver.name)
            run.note = " then ".join(chosen)
            yield from self._turn(problem, run, solver, waiting)
            if run.exhausted:
                return
            first = self._first_able(problem, waiting)
        run.note = f"{' then '.join(chosen)}; rounding errors allow no further progress"

    def _start_from_part(self, problem: Problem, run: Run, solver: Solver) -> None:
        """Move the start near the solution for a few of the rows, where few suffice.

        The first digits are the same for a large part of the data and for all of it, and a part
        costs next to nothing. What is certified later is certified on all rows.
        """
        engine, n = problem.engine, problem.n_samples
        largest = (_LARGEST_SHARE if problem.penalty.quadratic else _WITH_KINKS) * n
        if largest < _LEAST_ROWS or engine.obstacle("on_rows") is not None or problem.is_quadratic:
            return
        needed = (
            _ROWS_PER_PARAMETER * engine.size / engine.spec.risk.effective_share(engine.n_samples)
        )
        rows = int(max(needed, _LEAST_ROWS, min(_SHARE * n, _PART_NUMBERS / problem.n_features)))
        if rows > largest or rows * problem.n_features > 2 * _PART_NUMBERS:
            return
        # Always the same rows: nobody expects chance in a method without settings.
        chosen = np.random.default_rng(0).choice(engine.n_samples, rows, replace=False)
        sample = engine.on_rows(np.sort(chosen))
        if sample is None:
            return
        part = problem.with_engine(sample)
        limit = min(_PART_PASSES, (run.max_passes - run.passes) * n / rows)
        inner = Run(run.w, None, _PART_TOL, limit, run.deadline, run.random_state, near=run.near)
        best, value, w = np.inf, np.inf, run.w
        for iterate, certificate in rehearse(solver.iterates(part, inner), part, inner):
            if certificate.relative_gap <= best:
                best, value, w = certificate.relative_gap, certificate.primal, iterate.point.w
            if best <= _PART_TOL:
                break
        run.passes += inner.passes * rows / n
        # Where the start is as good on the part, it may be the solution, which chance has left.
        start = part.engine.point(run.w)
        first = part.engine.risk(start) + part.penalty_value(run.w)
        if not value < first - _PART_TOL * unit(part, first, start):
            return
        run.w = w
        run.near = run.near or best <= _NEAR

    def _order(self, problem: Problem) -> list[type[Solver]]:
        """Methods that come into question: the cheapest first, the most robust last."""
        engine, size = problem.engine, problem.engine.size
        # On a simplex few columns carry the solution, but for losses of classes that come to tie.
        may_tie = engine.n_outputs > 1 and not problem.has_fixed_weights
        few_carry = is_on_simplex(problem) and (not may_tie or size <= _FEW_ON_SIMPLICES)
        affordable = size <= MAX_SIZE or has_few_rows(problem) or few_carry
        dense: list[type[Solver]] = [Newton, Continuation] if affordable else []
        if problem.penalty.quadratic:
            if not affordable:
                return [*self._before_matrix(problem, np.inf), SOREL]
            first: list[type[Solver]] = []
            if classes_by_products(engine):
                first = [_Classes]
            elif engine.in_memory:
                if size > (FEW_PARAMETERS if problem.bends_evenly else _FEW_COLUMNS):
                    first = self._before_matrix(problem, _products_of_matrix(problem))
                if pays(problem):
                    first = [RowSpace, *first]
            elif size > _FEW_PARAMETERS:
                first = [NewtonCG]
            return [*first, *dense, SOREL]
        many_rows = problem.n_samples >= _ROWS_PER_COLUMN * size
        by_parts = chooses_columns(engine, problem.penalty)
        samples_first = by_parts and many_rows and engine.n_outputs == 1
        few = size <= (_FEW_RESTING if samples_first else _FEW_PARAMETERS)
        if few or few_carry or (not by_parts and problem.n_samples <= size):
            return [*dense, SOREL]
        if by_parts:
            if problem.has_fixed_weights and problem.penalty.smooth_in_bounds:
                # Without kinks between the bounds, gradients remember more than single samples do.
                return [SparseNewton, LBFGS, SOREL, *dense]
            return [SparseNewton, SOREL, *dense, *([SOREL] if dense else [])]
        return [SOREL, *dense] if engine.obstacle("epoch") is None or not dense else dense

    def _before_matrix(self, problem: Problem, matrix: float) -> list[type[Solver]]:
        """Methods to be tried before a matrix that costs so many products."""
        smooth, shared = has_smooth_risk(problem), shares_matrix(problem)
        quick = _WORTH_GRADIENTS if problem.has_fixed_weights else _WORTH_TRACKING
        if problem.bends_evenly:
            quick = _WORTH_ONE_MATRIX if problem.is_quadratic else _WORTH_FEW_MATRICES
        products = _WORTH_SHARED_MATRIX if shared else _WORTH_FEW_MATRICES
        # Losses of labels are equal at the start, and gradients alone hand over if they stay so.
        level = problem.loss.is_classifier and not problem.has_fixed_weights
        small = problem.engine.entries <= _SMALL and not problem.has_fixed_weights and not shared
        if level or small:
            products = _WORTH_EARLY
        if not smooth:
            products = _WORTH_PRODUCTS
        if problem.engine.size <= FEW_PARAMETERS:
            products = np.inf
        by_products = _Thrifty if matrix < np.inf else NewtonCG
        first: list[type[Solver]] = []
        if smooth and matrix >= quick and problem.engine.in_memory:
            first = [_Quick]
        return [*first, by_products] if matrix >= products else first

    @staticmethod
    def _leads_nowhere(first: float, gap: float, run: Run, began: float, limit: float) -> bool:
        """Whether a trial that goes on as from its first gap will end above the tolerance."""
        gone = run.passes - began
        if gone < _FIRST_LOOK or gap <= run.tol:
            return False
        digits = np.log(max(first / gap, 1.0))
        return bool(digits * (limit - run.passes) < gone * np.log(gap / run.tol))

    def _first_able(self, problem: Problem, solvers: list[type[Solver]]) -> int | None:
        """The place of the first method that takes the problem."""
        for place, cls in enumerate(solvers):
            try:
                cls().check(problem)
            except UnsupportedProblemError:
                continue
            return place
        return None

    def _follows(self, problem: Problem, others: list[type[Solver]], kind: type[Solver]) -> bool:
        """Whether the next method is of some kind."""
        place = self._first_able(problem, others)
        return place is not None and issubclass(others[place], kind)

    def _turn(
        self, problem: Problem, run: Run, solver: Solver, others: list[type[Solver]]
    ) -> Iterates:
        """Run one solver until it gives up or stalls; leave its best iterate as the next start."""
        iterates = solver.iterates(problem, run)
        note = run.note
        best: tuple[FloatArray, Dual | None] | None = None
        best_gap, first_gap, since = np.inf, 0.0, run.passes
        # The gap of affine losses is large until the last, since none can be refined.
        refinable = not problem.loss.affine
        quickly = isinstance(solver, Newton) and problem.penalty.quadratic and refinable
        patience: float = _NEWTON_PATIENCE if quickly else _PATIENCE
        if isinstance(solver, Continuation):
            # Its gap falls at the end of the sequence, and not before.
            patience = np.inf
        by_parts = chooses_columns(problem.engine, problem.penalty)
        trial = isinstance(solver, SOREL | LBFGS) and Newton in others and by_parts
        began, limit = run.passes, run.passes + _trial_passes(problem) if trial else np.inf
        if isinstance(solver, _Thrifty):
            limit = run.passes + _SHARE_OF_BUDGET * (run.max_passes - run.passes)
        before, run.latest = run.latest, None
        cold = not run.is_weighted
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
                # A gap that is larger tells nothing of how far the tolerance is.
                first_gap = first_gap or min(best_gap, 1.0)
                if trial and self._leads_nowhere(first_gap, best_gap, run, began, limit):
                    if best is not None and best_gap > _FAR:
                        # Weights that are far off are worse than none, from which eta grows fast.
                        best = best[0], None
                    break
                if run.passes - since > patience or run.passes > limit:
                    if self._first_able(problem, others) is not None:
                        break
                    since = limit = np.inf
                iterate = iterates.send(certificate)
        except CostlyError:
            # No better than others at finding the way, and further along it than at any check.
            if run.latest is not None:
                best = run.latest.point.w, run.latest.dual
            moves = not problem.has_fixed_weights
            few_rows = problem.n_samples <= problem.engine.size
            if cold and moves and (few_rows or self._follows(problem, others, NewtonCG)):
                # Where losses have come to spread little, ties are many: steps take longer from
                # there than from the start.
                best = None
        except (StopIteration, np.linalg.LinAlgError):
            pass
        finally:
            iterates.close()
        run.note = note
        run.latest = run.latest or before
        if best is not None:
            run.w, run.dual = best


def _products_for_balance(problem: Problem) -> float:
    """Products that cost as much as the matrix of a step in which all rows have curvature."""
    costs = StepCosts(problem.engine, problem.n_samples)
    return costs.matrix / costs.product if problem.engine.size <= MAX_SIZE else np.inf


def _trial_passes(problem: Problem) -> float:
    """Passes over the data that the stochastic method may take before a matrix has its turn."""
    engine = problem.engine
    matrix = StepCosts(engine, carrying_rows(engine)).matrix
    steps = 1.0 if problem.is_quadratic else _TRIAL_OF_MATRICES
    passes = steps * matrix / StepCosts(engine, engine.n_samples).product
    return min(max(passes, _FIRST_LOOK), _TRIAL)


def _products_of_matrix(problem: Problem) -> float:
    """Products that cost as much as the matrix of a step."""
    engine, rows = problem.engine, carrying_rows(problem.engine)
    costs = StepCosts(engine, rows)
    if costs.rows_are_cheaper and has_smooth_risk(problem):
        # Rows of little weight hardly count in a risk, and count in full in a system of the rows.
        costs = StepCosts(engine, engine.n_samples)
    products = costs.products()
    if problem.has_two_levels:
        tied = StepCosts(engine, min(rows + engine.size, engine.n_samples)).products()
        if tied >= (_WORTH_WITH_SQUARES if problem.bends_evenly else _WORTH_WITH_TIES):
            return max(products, tied)
    return products
