"""What `auto` decides: which methods come first, on how many rows, and when another has its turn.

Every answer is certified, so a wrong decision here makes a run slow and nothing else. The rules are
therefore asked one by one, at and around their limits.
"""

from __future__ import annotations

import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import make_data
from scipy.optimize import brentq

import sorel
from sorel.problem import Problem
from sorel.solvers import NewtonCG, Run, UnsupportedProblemError, auto, newton_cg
from sorel.solvers.augmented import CostlyError
from sorel.solvers.auto import Auto, _Balancing, _Classes, _Quick, _Thrifty
from sorel.solvers.continuation import Continuation
from sorel.solvers.lbfgs import LBFGS
from sorel.solvers.newton import MAX_SIZE, Newton
from sorel.solvers.sorel import SOREL

FLAGS = [False, True]


def prices(monkeypatch, products, by_rows=False):
    """Let a matrix for so many rows cost products(rows, steps) products."""

    class Costs:
        rows_are_cheaper = by_rows

        def __init__(self, engine, rows):
            self.rows = rows

        def products(self, steps=1):
            return products(self.rows, steps)

    monkeypatch.setattr(auto, "StepCosts", Costs)
    monkeypatch.setattr(auto, "carrying_rows", lambda engine: 10.0)


@pytest.mark.parametrize("shared", FLAGS)
@pytest.mark.parametrize("matrix", [3.0, 24.0, 40.0, 1e4])
def test_how_many_steps_from_gradients_alone(monkeypatch, shared, matrix):
    """As many as one matrix costs, at least some where one is not enough, and those with it."""
    prices(monkeypatch, lambda rows, steps: matrix * rows / 10.0)
    monkeypatch.setattr(auto, "shares_matrix", lambda problem: shared)
    found = _Quick().most_steps(SimpleNamespace(engine=None))
    least = matrix if shared else max(matrix, auto._STEPS_FOR_MATRICES)
    assert found == min(least + auto._STEPS_WITH_MATRIX, auto._MANY_STEPS)


@pytest.mark.parametrize("small", FLAGS)
def test_products_may_cost_a_share_of_what_a_matrix_would_have(monkeypatch, small):
    prices(monkeypatch, lambda rows, steps: rows * steps)
    entries = auto._SMALL if small else auto._SMALL + 1
    problem = SimpleNamespace(engine=SimpleNamespace(entries=entries), n_samples=200)
    of_matrix = auto._SHARE_WHERE_SMALL if small else auto._SHARE_OF_MATRIX
    solver, spent = _Thrifty(), 0
    for step, (share, products) in enumerate(
        [(0.52, 30), (0.43, 60), (0.11, 5), (0.52, 20)], start=1
    ):
        most = solver.most_products(problem, SimpleNamespace(share=share))
        steps = step + auto._ON_CREDIT
        allowed = int(of_matrix * share * 200 * steps - spent)
        assert most == max(allowed, auto._LEAST_PRODUCTS)
        solver.took(products, most)
        spent += products
    # One that took all it was allowed is the last.
    most = solver.most_products(problem, SimpleNamespace(share=0.5))
    solver.took(most - 1, most)
    most = solver.most_products(problem, SimpleNamespace(share=0.5))
    solver.took(most, most)
    with pytest.raises(CostlyError):
        solver.most_products(problem, SimpleNamespace(share=0.5))


@pytest.mark.parametrize(
    ("gaps", "taken", "best", "near"),
    [
        ([0.5, 0.1, 0.3, auto._PART_TOL, 1e-9], 4, 3, True),
        ([0.5, 2.0 * auto._PART_TOL, 0.3], 3, 1, 2.0 * auto._PART_TOL <= auto._NEAR),
        ([0.5, 1.01 * auto._NEAR, 0.6], 3, 1, False),
        ([0.5, 0.99 * auto._NEAR, 0.6], 3, 1, True),
        ([0.5, 0.5], 2, 1, False),
    ],
)
def test_the_best_for_a_part_of_the_rows_is_the_start(monkeypatch, gaps, taken, best, near):
    monkeypatch.setattr(auto, "_LEAST_ROWS", 100)
    monkeypatch.setattr(auto, "_ROWS_PER_PARAMETER", 1)
    X, y = make_data("huber", 4000, 3, seed=2)
    problem = Problem(X, 50.0 * y, loss="huber", penalty=sorel.L2(0.1))
    seen = []

    def rehearse(iterates, part, run):
        for number, gap in enumerate(gaps):
            seen.append(gap)
            point = SimpleNamespace(w=np.full(3, float(number)))
            yield SimpleNamespace(point=point), SimpleNamespace(relative_gap=gap, primal=0.0)

    monkeypatch.setattr(auto, "rehearse", rehearse)
    run = Run(problem.start(), None, 1e-6, 100, math.inf, 0)
    Auto()._start_from_part(problem, run, Newton())
    assert len(seen) == taken
    assert run.near is near
    np.testing.assert_array_equal(run.w, float(best))


def test_a_start_from_a_part_of_the_rows(monkeypatch):
    monkeypatch.setattr(auto, "_LEAST_ROWS", 100)
    monkeypatch.setattr(auto, "_ROWS_PER_PARAMETER", 1)
    X, y = make_data("huber", 4000, 3, seed=2)
    problem = Problem(X, 50.0 * y, loss="huber", penalty=sorel.L2(0.1))
    inner, own = [], auto.rehearse

    def rehearse(iterates, part, run):
        inner.append(run)
        return own(iterates, part, run)

    monkeypatch.setattr(auto, "rehearse", rehearse)
    run = Run(problem.start(), None, 1e-6, 100, math.inf, 0)
    Auto()._start_from_part(problem, run, Newton())
    rows = int(auto._SHARE * 4000)
    assert inner[0].max_passes == auto._PART_PASSES
    part = problem.with_engine(
        problem.engine.on_rows(
            np.sort(np.random.default_rng(0).choice(problem.n_samples, rows, replace=False))
        )
    )
    best = sorel.solve(part, "newton", tol=1e-8)
    # As good as asked for on the part, which is near the solution for all rows.
    assert part.objective(run.w) <= best.objective + auto._PART_TOL * best.objective
    assert run.near
    assert run.passes == pytest.approx(inner[0].passes * rows / 4000)
    assert run.passes > 0.0
    # A start that is as good on the part is left alone, and so is one where nothing may be spent.
    again = Run(best.w, None, 1e-6, 100, math.inf, 0)
    Auto()._start_from_part(problem, again, Newton())
    assert again.w is best.w
    assert not again.near
    for worse, moves in ((0.5, False), (5.0, True)):
        excess = worse * auto._PART_TOL * best.objective
        way = brentq(
            lambda t, excess=excess: part.objective(best.w + t) - best.objective - excess, 0.0, 50.0
        )
        again = Run(best.w + way, None, 1e-6, 100, math.inf, 0)
        Auto()._start_from_part(problem, again, Newton())
        assert np.array_equal(again.w, best.w + way) is not moves
    few = Run(problem.start(), None, 1e-6, 7.5, math.inf, 0, passes=7.0)
    Auto()._start_from_part(problem, few, Newton())
    assert inner[-1].max_passes == pytest.approx(0.5 * 4000 / rows)
    spent = Run(problem.start(), None, 1e-6, 7.0, math.inf, 0, passes=7.0)
    Auto()._start_from_part(problem, spent, Newton())
    assert spent.passes <= 7.0 + 3 * rows / 4000


@pytest.mark.parametrize(("smooth", "shared", "fixed"), list(itertools.product(FLAGS, repeat=3)))
@pytest.mark.parametrize("bends", ["unevenly", "evenly", "constantly"])
@pytest.mark.parametrize(("labels", "small"), list(itertools.product(FLAGS, repeat=2)))
def test_methods_before_a_matrix(monkeypatch, smooth, shared, fixed, bends, labels, small):
    """Gradients alone where a matrix costs so many products, products where it costs so many."""
    monkeypatch.setattr(auto, "has_smooth_risk", lambda problem: smooth)
    monkeypatch.setattr(auto, "shares_matrix", lambda problem: shared)
    entries = auto._SMALL if small else auto._SMALL + 1
    engine = SimpleNamespace(size=auto.FEW_PARAMETERS + 1, in_memory=True, entries=entries)
    problem = SimpleNamespace(
        engine=engine, has_fixed_weights=fixed, bends_evenly=bends != "unevenly",
        is_quadratic=bends == "constantly", loss=SimpleNamespace(is_classifier=labels),
    )  # fmt: skip
    level = labels and not fixed
    limits = {"unevenly": auto._WORTH_GRADIENTS if fixed else auto._WORTH_TRACKING,
              "evenly": auto._WORTH_FEW_MATRICES, "constantly": auto._WORTH_ONE_MATRIX}  # fmt: skip
    products = auto._WORTH_SHARED_MATRIX if shared else auto._WORTH_FEW_MATRICES
    if level or (small and not fixed and not shared):
        products = auto._WORTH_EARLY
    if not smooth:
        products = auto._WORTH_PRODUCTS
    for matrix in (1.0, *(k * limit for limit in (limits[bends], products) for k in (0.999, 1))):
        expected = [_Quick] if smooth and matrix >= limits[bends] else []
        expected += [_Thrifty] if matrix >= products else []
        assert Auto()._before_matrix(problem, matrix) == expected
    # A matrix that is not to be had leaves products without a limit.
    expected = [_Quick, NewtonCG] if smooth else [NewtonCG]
    assert Auto()._before_matrix(problem, math.inf) == expected
    engine.in_memory = False
    assert Auto()._before_matrix(problem, 1e9) == [_Thrifty]
    engine.size, engine.in_memory = auto.FEW_PARAMETERS, True
    assert Auto()._before_matrix(problem, 1e9) == ([_Quick] if smooth else [])


def quadratic_order(monkeypatch, size, cheap=True, even=False, classes=False, few_rows=False):
    y = np.array([-1.0, 1.0])
    problem = Problem(np.zeros((2, size), np.float32), y, loss="squared" if even else "logistic")
    monkeypatch.setattr(auto, "has_few_rows", lambda problem: few_rows)
    monkeypatch.setattr(auto, "classes_by_products", lambda engine: classes)
    monkeypatch.setattr(auto, "_products_of_matrix", lambda problem: 77.0)
    monkeypatch.setattr(Auto, "_before_matrix", lambda self, problem, matrix: [f"before {matrix}"])
    monkeypatch.setattr(type(problem.engine), "in_memory", cheap)
    assert problem.bends_evenly is even
    return Auto()._order(problem)


def test_the_order_of_methods_under_a_quadratic_penalty(monkeypatch):
    def order(size, **options):
        return quadratic_order(monkeypatch, size, **options)

    matrix = [Newton, Continuation, SOREL]
    for even, limit in ((False, auto._FEW_COLUMNS), (True, auto.FEW_PARAMETERS)):
        assert order(limit, even=even) == matrix
        assert order(limit + 1, even=even) == ["before 77.0", *matrix]
    assert order(5000, classes=True) == [_Classes, *matrix]
    assert order(auto._FEW_PARAMETERS, cheap=False) == matrix
    assert order(auto._FEW_PARAMETERS + 1, cheap=False) == [NewtonCG, *matrix]
    assert order(MAX_SIZE)[1:] == matrix
    assert order(MAX_SIZE + 1) == ["before inf", SOREL]
    assert order(MAX_SIZE + 1, few_rows=True) == ["before 77.0", *matrix]


@pytest.mark.parametrize(("two_levels", "even"), list(itertools.product(FLAGS, repeat=2)))
def test_ties_make_a_matrix_dearer(monkeypatch, two_levels, even):
    """A risk of two levels leads to as many more rows as there are parameters, if there are."""
    for price, n in itertools.product((0.1, 0.9, 1.0, 1.5, 2.0), (100, 35)):
        prices(monkeypatch, lambda rows, steps, price=price: price * rows)
        problem = SimpleNamespace(
            engine=SimpleNamespace(size=40, n_samples=n),
            has_two_levels=two_levels,
            bends_evenly=even,
        )
        tied = price * min(10 + 40, n)
        worth = tied >= (auto._WORTH_WITH_SQUARES if even else auto._WORTH_WITH_TIES)
        expected = tied if two_levels and worth else price * 10
        assert auto._products_of_matrix(problem) == pytest.approx(expected)


@pytest.mark.parametrize(("by_rows", "smooth"), list(itertools.product(FLAGS, repeat=2)))
def test_every_row_counts_in_a_system_of_the_rows(monkeypatch, by_rows, smooth):
    prices(monkeypatch, lambda rows, steps: rows, by_rows)
    monkeypatch.setattr(auto, "has_smooth_risk", lambda problem: smooth)
    problem = SimpleNamespace(
        engine=SimpleNamespace(size=40, n_samples=100), has_two_levels=False, bends_evenly=False
    )
    assert auto._products_of_matrix(problem) == (100 if by_rows and smooth else 10)


def test_a_sequence_of_problems_is_followed_to_its_end():
    assert turns(Continuation, lambda k: 1.0, [SOREL])[0] == math.inf
    assert turns(NewtonCG, lambda k: 1.0, [SOREL])[0] < math.inf


def test_a_trial_is_extended_as_it_began():
    """On a logarithmic scale, from the first gap to what it would be in the end."""
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(300):
        first, tol = 10.0 ** rng.uniform(-2, 0), 10.0 ** rng.uniform(-7, -2)
        gap = first * 10.0 ** rng.uniform(-4, 0)
        began, gone = rng.uniform(0, 500), rng.uniform(auto._FIRST_LOOK, 100)
        limit = began + 100
        digits = math.log10(first / gap)
        in_the_end = -math.log10(gap) + digits / gone * (100 - gone)
        if abs(in_the_end + math.log10(tol)) < 1e-9:
            continue
        run = SimpleNamespace(passes=began + gone, tol=tol)
        ends.append(Auto._leads_nowhere(first, gap, run, began, limit))
        assert ends[-1] == (gap > tol and in_the_end < -math.log10(tol))
    assert 30 < sum(ends) < 270


class Refuses:
    def check(self, problem):
        raise UnsupportedProblemError("no")


def test_the_first_method_that_takes_a_problem():
    X, y = make_data("squared", 20, 2, seed=0)
    problem = Problem(X, y)
    assert Auto()._first_able(problem, [Refuses, Newton, SOREL]) == 1
    assert Auto()._first_able(problem, [Refuses]) is None
    assert Auto()._follows(problem, [Refuses, NewtonCG, Newton], NewtonCG)
    assert Auto()._follows(problem, [_Thrifty], NewtonCG)
    assert not Auto()._follows(problem, [Newton, NewtonCG], NewtonCG)
    assert not Auto()._follows(problem, [], NewtonCG)


def turns(solver, gaps, others, cost=1.0, passes=0.0, max_passes=1e9, penalty=None, loss="squared"):
    """How many checks a solver gets whose relative gaps are given, and the run after its turn."""
    X, y = make_data(loss, 30, 2, seed=0)
    problem = Problem(X, y, risk="cvar:0.5", loss=loss, penalty=penalty or sorel.L2(0.1))
    run = Run(problem.start(), None, 1e-9, max_passes, math.inf, 0, passes=passes)
    run.note = "turn"

    def iterates(self, problem, run):
        for k in itertools.count():
            point = problem.engine.point(np.full(2, float(k)))
            run.latest = sorel.solvers.Iterate(point, problem.engine.uniform())
            run.note = "inside"
            yield run.latest
            run.passes += cost

    method = solver()
    method.iterates = functools.partial(iterates, method)
    turn = Auto()._turn(problem, run, method, others)
    next(turn)
    for k in itertools.count(1):
        try:
            turn.send(SimpleNamespace(relative_gap=gaps(k)))
        except StopIteration:
            break
        if k > 2000:
            turn.close()
            return math.inf, run
    assert run.note == "turn"
    return k, run


def test_when_another_method_has_its_turn():
    # A tenth of the gap each 40 checks is progress; less is not.
    for better, patience in ((Newton, auto._NEWTON_PATIENCE), (NewtonCG, auto._PATIENCE)):
        checks, run = turns(better, lambda k: 0.5, [SOREL])
        assert checks == patience + 2
        np.testing.assert_array_equal(run.w, [0.0, 0.0])
        checks, _ = turns(better, lambda k: 0.5 / (1 + k // 90), [SOREL])
        assert checks > 3 * patience
        checks, run = turns(better, lambda k: 0.5 * 0.9999**k, [SOREL])
        assert checks == patience + 2
        # The best iterate is the start of the next: here the last.
        np.testing.assert_array_equal(run.w, np.full(2, patience + 1.0))
        assert run.dual is not None
        assert turns(better, lambda k: 0.5, [])[0] == math.inf
    # Under other penalties, and for affine losses, ties may take longer to settle.
    patient = [
        turns(Newton, lambda k: 0.5, [SOREL], penalty=sorel.ElasticNet(0.1, 0.1))[0],
        turns(Newton, lambda k: 0.5, [SOREL], loss="linear", penalty=sorel.L2(0.1))[0],
    ]
    assert patient == [auto._PATIENCE + 2] * 2


def test_products_leave_some_passes_to_matrices():
    checks, _ = turns(_Thrifty, lambda k: 0.5**k, [Newton], cost=5.0, passes=100.0, max_passes=600)
    assert checks == auto._SHARE_OF_BUDGET * 500 / 5.0 + 2
    assert turns(NewtonCG, lambda k: 0.85**k, [Newton], cost=5.0, max_passes=600)[0] == math.inf


@pytest.mark.parametrize("method", [SOREL, LBFGS])
def test_trials_before_a_matrix(monkeypatch, method):
    """Where coefficients may rest, some passes before a matrix, and fewer in vain."""
    lasso = sorel.ElasticNet(0.1, 0.1)
    monkeypatch.setattr(auto, "_trial_passes", lambda problem: 40.0)
    assert turns(method, lambda k: 1e-9, [Newton], penalty=lasso)[0] == 40 + 2
    # What the method before had reached is not its own.
    for gap in (3.0, 0.5, 0.1, 1e-6):
        found, run = turns(method, lambda k, gap=gap: gap, [Newton], penalty=lasso)
        assert found == auto._FIRST_LOOK + 1
        # Weights that are far off are no start for others; the parameters are.
        assert (run.dual is None) is (gap > auto._FAR)
        np.testing.assert_array_equal(run.w, np.zeros(2))
    found, _ = turns(method, lambda k: max(0.5**k, 1e-9), [Newton], penalty=lasso)
    assert found == 40 + 2


def test_how_long_a_trial_may_be(monkeypatch):
    class Priced:
        def __init__(self, engine, rows):
            self.matrix, self.product = 7.0 * rows, 0.5 * rows

    monkeypatch.setattr(auto, "StepCosts", Priced)
    for carrying, quadratic, passes in (
        (10.0, False, auto._TRIAL_OF_MATRICES * 1.4),
        (0.1, False, auto._FIRST_LOOK),
        (90.0, False, auto._TRIAL),
        (90.0, True, 12.6),
    ):
        monkeypatch.setattr(auto, "carrying_rows", lambda engine, carrying=carrying: carrying)
        problem = SimpleNamespace(engine=SimpleNamespace(n_samples=100), is_quadratic=quadratic)
        assert auto._trial_passes(problem) == pytest.approx(passes)


def test_the_stochastic_method_without_a_matrix_to_follow():
    lasso = sorel.ElasticNet(0.1, 0.1)
    assert turns(SOREL, lambda k: 0.5, [Continuation], penalty=lasso)[0] == auto._PATIENCE + 2
    assert turns(SOREL, lambda k: 0.5, [Newton])[0] == auto._PATIENCE + 2


def costly_turn(fixed, products_follow, warm=False, latest=True, rows=30):
    """The start that is left when a method finds that it costs more than others."""
    X, y = make_data("squared", rows, 2, seed=0)
    problem = Problem(X, y, risk="mean" if fixed else "cvar:0.5")
    run = Run(problem.start(), None, 1e-9, 1e9, math.inf, 0)
    before = sorel.solvers.Iterate(problem.engine.point(np.ones(2)), problem.engine.uniform())
    run.latest, run.dual = before, problem.engine.uniform() if warm else None

    def iterates(self, problem, run):
        yield before
        if latest:
            run.latest = before._replace(point=problem.engine.point(np.full(2, 7.0)))
        raise CostlyError

    method = type("Stub", (NewtonCG,), {"iterates": iterates})()
    turn = Auto()._turn(problem, run, method, [_Thrifty if products_follow else Newton])
    next(turn)
    with pytest.raises(StopIteration):
        turn.send(SimpleNamespace(relative_gap=0.5))
    assert (run.latest is before) is not latest
    return run.w[0]


def test_where_a_method_starts_after_one_that_cost_too_much():
    """Further along than at any check; from the start where products follow on moving weights."""
    assert costly_turn(fixed=False, products_follow=False) == 7.0
    assert costly_turn(fixed=False, products_follow=False, latest=False) == 1.0
    assert costly_turn(fixed=True, products_follow=True) == 7.0
    assert costly_turn(fixed=False, products_follow=True) == 0.0
    assert costly_turn(fixed=False, products_follow=True, warm=True) == 7.0
    # Few rows come to tie as well.
    assert costly_turn(fixed=False, products_follow=False, rows=2) == 0.0
    assert costly_turn(fixed=False, products_follow=False, rows=3) == 7.0
    assert costly_turn(fixed=True, products_follow=False, rows=2) == 7.0


@pytest.mark.parametrize(
    ("first", "started"),
    [
        (Newton, "newton"),
        (_Quick, "newton"),
        (_Thrifty, "newton"),
        (NewtonCG, None),
        (_Classes, "newton_cg"),
        (SOREL, None),
    ],
)
def test_who_starts_from_a_part_of_the_rows(monkeypatch, first, started):
    """Steps of second order from one matrix, or for several classes, and not from known weights."""
    problem, found = Problem(*make_data("squared", 30, 2, seed=0)), []
    monkeypatch.setattr(Auto, "_order", lambda self, problem: [first])
    monkeypatch.setattr(Auto, "_turn", lambda *arguments: iter(()))
    monkeypatch.setattr(
        Auto, "_start_from_part", lambda self, problem, run, solver: found.append(solver.name)
    )
    run = Run(problem.start(), None, 1e-9, 1e9, math.inf, 0)
    assert list(Auto().iterates(problem, run)) == []
    assert found == ([] if started is None else [started])
    assert run.note == f"{first().name}; rounding errors allow no further progress"
    found.clear()
    run.dual = problem.engine.uniform()
    assert list(Auto().iterates(problem, run)) == []
    assert found == []


def level_problem(n=1500, d=120, condition=1e6):
    """Labels that columns tell little of: weights of a tail make 0 the solution."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.geomspace(1.0, condition**-0.5, d)
    axis = rng.standard_normal(d)
    X -= np.outer(X @ axis, 2.0 / (axis @ axis) * axis)
    y = np.where(0.3 * X[:, 0] + rng.logistic(size=n) > 0.0, 1.0, -1.0)
    return Problem(X, y, risk="esrm:2", loss="logistic", penalty=sorel.L2(1.0 / n))


@pytest.mark.parametrize("dear", FLAGS)
def test_a_matrix_finds_weights_for_the_start_where_products_are_too_many(monkeypatch, dear):
    problem, taken = level_problem(condition=1e4), []
    own = Newton.direction

    def direction(self, state, run, caution):
        taken.append(state.eta)
        return own(self, state, run, caution)

    monkeypatch.setattr(Newton, "direction", direction)
    monkeypatch.setattr(auto, "_FOR_BALANCE", 0.0 if dear else math.inf)
    monkeypatch.setattr(newton_cg, "_FEW_PRODUCTS", 3)
    result = sorel.solve(problem, solver=_Classes(), tol=1e-6)
    assert result.converged
    # At the largest eta of all, at which losses are as good as linear.
    assert (max(taken, default=0.0) > 1e5) is not dear
    best = sorel.solve(problem, "newton", tol=1e-9)
    assert result.objective == pytest.approx(best.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("matrix", "most"), [(3.0, 8), (20.9, 20), (60.0, 60), (99.0, 60), (101.0, 60)]
)
def test_products_towards_weights_for_the_start(monkeypatch, matrix, most):
    """No more than a matrix costs, where that is what follows."""
    monkeypatch.setattr(auto, "_products_for_balance", lambda problem: matrix)
    method = _Balancing()
    assert method.most_products(None, None) == most
    method.took(min(most, 59) - 1, most)
    later = 4 * (min(most, 59) - 1)
    limit = max(int(matrix), 8) if matrix <= auto._FOR_BALANCE else math.inf
    assert method.most_products(None, None) == min(max(60, later), 250, limit)


def test_who_finds_weights_for_the_start_by_a_matrix():
    for kind in (_Thrifty, _Classes):
        assert type(kind().resting()) is _Balancing
    costs = auto.StepCosts(level_problem().engine, 1500)
    assert auto._products_for_balance(level_problem()) == costs.matrix / costs.product
    many = Problem(np.zeros((2, MAX_SIZE + 1), np.float32), [-1.0, 1.0], loss="logistic")
    assert auto._products_for_balance(many) == math.inf


@pytest.mark.parametrize("noisy", FLAGS)
def test_gradients_alone_hand_over_where_the_start_may_be_the_solution(monkeypatch, noisy):
    """Noisy labels leave a tail nothing to gain; those that columns tell are worth many steps."""
    problem, called = level_problem(d=300, condition=1.0), []
    if not noisy:
        X, _ = problem.engine.stored()
        labels = np.where(X[:, :9].sum(axis=1) > 0.0, 1.0, -1.0)
        problem = Problem(X, labels, risk="esrm:2", loss="logistic", penalty=sorel.L2(0.1))
    own = _Quick._balance

    def balance(self, *arguments):
        called.append(self)
        return own(self, *arguments)

    monkeypatch.setattr(_Quick, "_balance", balance)
    result = sorel.solve(problem)
    assert result.converged
    assert len(called) == noisy
    assert ("(quasi_newton)" in result.status) is not noisy
