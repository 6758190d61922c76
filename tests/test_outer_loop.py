"""The outer loop of the second-order methods, with steps that are written down beforehand.

When it checks, moves its centre, goes back or gives up changes no answer, only what it costs. So
the steps are taken out of the loop, and what it does with each is compared with its rules.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import make_data
from own_penalties import OwnElasticNet

import sorel
from sorel import rounds
from sorel.penalties import Box, ElasticNet, NonNegative, Simplex
from sorel.problem import Certificate, Problem
from sorel.solvers import Newton, Run, UnsupportedProblemError, augmented, newton
from sorel.solvers.augmented import AugmentedLagrangian, Direction, State

TOL = 1e-6


class Scripted(AugmentedLagrangian):
    """Steps that go nowhere, promise what a script says and have the length that it says.

    A line of the script is what a step predicts, its length, and what the move of the weights has
    gained by then, all in gaps wanted.
    """

    takes_apart = False

    def __init__(self, script):
        self.script, self.etas, self.cautions, self.points = list(script), [], [], []

    def direction(self, state, run, caution):
        raise NotImplementedError

    def first_step(self, state, run):
        return state

    def _step(self, state, run, caution):
        self.etas.append(state.eta)
        self.cautions.append(caution)
        self.points.append(state.point)
        if not self.script:
            raise np.linalg.LinAlgError
        run.passes += 1
        predicted, length, moved = self.script.pop(0)
        target = TOL * state.problem.unit(state.value)
        new = State(state.problem, state.point, state.center, state.eta)
        new.predicted, new.length, new.moved = predicted * target, length, moved * target
        return new


def scripted(script, risk="esrm:2", passes=0.0, rounding=0.0, max_passes=1e6, size=1.0, **options):
    """The checks of a run by number of steps and gap that each is worth, and what else it did."""
    X, y = make_data("squared", 40, 3, seed=1)
    problem = Problem(X, size * y, risk=risk, penalty=sorel.L2(1e-3))
    run = Run(problem.start(), None, TOL, max_passes, math.inf, 0, **options)
    solver = Scripted(script)
    iterates = solver.iterates(problem, run)
    checks = []
    reply = None
    while True:
        try:
            iterate = iterates.send(reply)
        except StopIteration:
            break
        value = problem.objective(iterate.point.w)
        worth = iterate.refine / (TOL * problem.unit(value))
        checks.append((len(solver.etas), worth if worth == math.inf else round(worth)))
        reply = Certificate(
            value, 0.0, value, 1.0, rounding * TOL * problem.unit(value), 0.0, passes
        )
        run.passes += passes
    return solver, run, checks


END = math.inf
OFTEN = 10 * AugmentedLagrangian.promising


def test_checks_where_a_step_promises_little():
    promising = AugmentedLagrangian.promising
    script = [(1.01 * promising, 1.0, 0.0), (0.99 * promising, 1.0, 0.0), (OFTEN, 1.0, 0.0)]
    solver, run, checks = scripted(script)
    # The last is that of a run which ends.
    assert checks == [(2, 1), (4, END)]
    assert run.note == "rounding errors allow no further progress"
    assert run.passes == 4.0
    assert solver.cautions == [0.0] * 4


def test_checks_where_weights_stand_still():
    """A risk of two levels falls short by what the move of the weights has gained."""
    still = rounds._NEARLY_STILL
    script = [(1.0, 1.0, 1.01 * still), (1.0, 1.0, 0.99 * still), (OFTEN, 1.0, 0.0)]
    _, _, checks = scripted(script, risk="cvar:0.5")
    assert [check for check in checks if check[1] == 1] == [(2, 1)]
    _, _, checks = scripted(script)
    assert [check for check in checks if check[1] == 1] == [(1, 1), (2, 1)]


def test_no_more_is_spent_on_checks_than_on_steps():
    _, _, checks = scripted([(5.0, 1.0, 0.0)] * 12, passes=4.0)
    # A check after 1 step takes passes 2 to 6; the next comes when as many have gone to steps.
    assert checks == [(1, 1), (5, 1), (9, 1), (13, END)]


def test_checks_from_time_to_time():
    beat = augmented.HEARTBEAT
    _, _, checks = scripted([(OFTEN, 1.0, 0.0)] * (2 * beat + 5))
    assert checks == [(beat + 1, 0), (2 * beat + 2, 0), (2 * beat + 6, END)]
    # Somebody looks on.
    _, _, checks = scripted([(OFTEN, 1.0, 0.0)] * 3, watched=True)
    assert checks == [(0, 0), (0, 0), (1, 0), (2, 0), (3, 0), (4, END)]


def test_caution_after_a_step_cut_short(monkeypatch):
    monkeypatch.setattr(rounds, "_NO_CAUTION", 2e-3)
    lengths = [1.0, 0.05, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1]
    solver, _, _ = scripted([(OFTEN, length, 0.0) for length in lengths])
    expected = [0.0, 0.0, 1.0, 0.1, 0.01, 0.001, 0.0, 0.0, 0.0]
    assert solver.cautions == pytest.approx(expected)


@pytest.mark.parametrize(
    ("before", "last", "moves"),
    [
        ((OFTEN, 1.0, 0.0), (0.99 * OFTEN, 1.0, OFTEN), True),
        ((OFTEN, 1.0, 0.0), (1.01 * OFTEN, 1.0, OFTEN), False),
        # Cut short, or cautious because the one before was: there is more to gain than was said.
        ((OFTEN, 1.0, 0.0), (0.5 * OFTEN, 0.19, OFTEN), False),
        ((OFTEN, 1.0, 0.0), (0.5 * OFTEN, 0.2, OFTEN), True),
        ((OFTEN, 1.0, 0.0), (0.029 * OFTEN, 0.19, OFTEN), True),
        ((OFTEN, 0.05, 0.0), (0.5 * OFTEN, 1.0, OFTEN), False),
        ((OFTEN, 0.05, 0.0), (0.029 * OFTEN, 1.0, OFTEN), True),
    ],
)
def test_the_centre_moves_when_the_inner_problem_is_done(before, last, moves):
    solver, run, _ = scripted([before, last])
    assert run.n_iter == moves
    assert solver.etas[1] == solver.etas[0]
    # Only whole steps, or nearly so, are a reason to go further.
    easy = moves and min(before[1], last[1]) >= AugmentedLagrangian.pace.full
    growth = AugmentedLagrangian.pace.growth if easy else 1.0
    assert solver.etas[2] == pytest.approx(growth * solver.etas[0])


def test_eta_goes_back_where_steps_are_cut_short():
    solver, _, _ = scripted([(OFTEN, 0.05, 0.0)] * 3)
    assert solver.etas[2] == pytest.approx(rounds._SHRINKAGE * solver.etas[0])
    assert solver.etas[3] == solver.etas[2]


def test_a_run_ends_when_centres_stand_idle():
    solver, run, checks = scripted([(0.0, 1.0, 0.0)] * 20, passes=0.0)
    assert run.n_iter == augmented._MAX_IDLE + 1
    assert len(solver.etas) == augmented._MAX_IDLE + 1
    # The first idle centre is worth all that a certificate can tell, and so is the end.
    assert [check for check in checks if check[1] == END] == [(1, END), (5, END)]
    busy = [(0.0, 1.0, 0.0)] * 4 + [(0.0, 1.0, 1.0)] + [(0.0, 1.0, 0.0)] * 4
    solver, run, _ = scripted(busy)
    assert len(solver.etas) == 10
    assert run.n_iter == 9


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("place", [0, 2])
def test_a_centre_is_idle_where_nothing_is_left_but_rounding(place, size):
    """In any units of the targets."""
    for share, idle in [(0.99, True), (1.01, False)]:
        line = [0.0, 1.0, 0.0]
        line[place] = share * augmented.ROUNDING / TOL
        solver, _, _ = scripted([tuple(line)] * 20, size=size)
        # A step that promises more than rounding, and more than the weights gained, is another one.
        assert (len(solver.etas) == augmented._MAX_IDLE + 1) is idle


def test_a_spent_budget_ends_a_run():
    _, run, checks = scripted([(OFTEN, 1.0, 0.0)] * 20, max_passes=4.0)
    assert run.passes == 4.0
    assert run.note == ""
    assert checks == [(3, END)]


@pytest.mark.parametrize(("rounding", "fresh"), [(0.09, False), (0.11, True)])
def test_margins_are_computed_anew_where_rounding_blurs_a_certificate(rounding, fresh):
    solver, _, _ = scripted([(1.0, 1.0, 0.0)] * 4, rounding=rounding)
    first, second, third, *_ = solver.points
    assert first is second
    assert (third is not second) is fresh


def test_a_check_of_the_start_where_it_may_be_the_solution():
    """Where all coefficients rest under the plain average, and only there."""
    X, y = make_data("squared", 40, 3, seed=1)
    for l1, rests in ((100.0, True), (1e-3, False)):
        problem = Problem(X, y, risk="esrm:2", penalty=ElasticNet(1e-3, l1))
        run = Run(problem.start(), None, TOL, 1e6, math.inf, 0)
        first = next(Scripted([]).iterates(problem, run))
        assert (first.refine == 0.0) is rests
        if rests:
            assert problem.engine.shortfall(first.point, first.dual) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("moves", "fresh"), [(2, False), (3, True)])
def test_margins_are_computed_anew_before_they_drift(moves, fresh, monkeypatch):
    """After so many moves that rounding might come to a share of the tolerance.

    The step for the plain average is the first of them.
    """
    per_move = rounds.DRIFT * TOL / 3.5
    monkeypatch.setattr(Problem, "margin_rounding", lambda self, unit: per_move)
    solver, _, _ = scripted([(OFTEN, 1.0, 0.0)] * moves)
    assert all(point is solver.points[0] for point in solver.points[:3])
    assert (solver.points[-1] is not solver.points[0]) is fresh


def test_losses_that_have_become_far_smaller_let_eta_go_further(monkeypatch):
    """Or where eta has come to its limit: either is reason enough to measure them again."""
    rescaled = []
    own = augmented.EtaSchedule.rescale
    monkeypatch.setattr(
        augmented.EtaSchedule,
        "rescale",
        lambda self, scale: rescaled.append(scale) or own(self, scale),
    )
    script = [(0.5 * OFTEN, 1.0, OFTEN)] * 2
    scripted(script)
    assert not rescaled
    monkeypatch.setattr(augmented.EtaSchedule, "capped", True)
    scripted(script)
    assert len(rescaled) == 2
    monkeypatch.setattr(augmented.EtaSchedule, "capped", False)
    monkeypatch.setattr(augmented, "FAR_BETTER", 1.1)
    scripted(script)
    assert len(rescaled) == 4


PENALTIES = [ElasticNet(0.1, 0.2), NonNegative(0.1), Box(0.1, -0.3, 0.4), Simplex(0.1)]


@pytest.mark.parametrize("penalty", [sorel.L2(0.1), *PENALTIES], ids=repr)
def test_how_far_a_direction_may_be_followed(penalty):
    """As far as no bound is crossed and no coefficient changes its sign, but at least to 1."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        coef = penalty.project(rng.normal(size=4))
        coef[0] = penalty.project(np.array([0.0, 0.5, 0.5, 0.0]))[0]
        delta = 0.1 * rng.normal(size=4)
        delta[rng.random(4) < 0.3] = 0.0
        reach = augmented._reach(penalty, coef, delta)
        if penalty.quadratic:
            assert reach == np.inf
            continue
        low, high = penalty.bounds(4) or (np.full(4, -np.inf), np.full(4, np.inf))

        def allowed(t, coef=coef, delta=delta, low=low, high=high):
            u = coef + t * delta
            return np.all((low <= u) & (u <= high) & (u * coef >= 0.0))

        if reach > 1.0:
            assert allowed(min(reach, 1e6) * (1.0 - 1e-9))
        assert reach == np.inf or not allowed(reach * (1.0 + 1e-9))
        both = augmented._reach(penalty, np.outer(coef, [1.0, 1.0]), np.outer(delta, [1.0, 0.5]))
        assert both == pytest.approx(reach)


def states(loss, penalty, eta, seed, risk="esrm:2"):
    X, y = make_data(loss, 40, 3, seed=seed)
    problem = Problem(X, y, risk=risk, loss=loss, penalty=penalty)
    engine = problem.engine
    w = problem.start() + np.array([0.0, 0.1, 0.05])
    w = penalty.project(w)
    return problem, State(problem, engine.point(w), engine.uniform(), eta)


def derivative(state, delta, t):
    """Of Phi along a direction, from the side of smaller t."""
    problem, h = state.problem, 1e-6
    ends = []
    for length in (t - h, t):
        point = problem.engine.point(state.point.w + length * delta)
        ends.append(State(problem, point, state.center, state.eta).value)
    return (ends[1] - ends[0]) / h


@pytest.mark.parametrize("eta", [0.0, 0.3])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "poisson"])
@pytest.mark.parametrize("penalty", [sorel.L2(0.1), *PENALTIES], ids=repr)
def test_a_line_search_ends_where_the_derivative_is_small(loss, penalty, eta):
    for seed, size in enumerate((0.05, 1.0, 6.0)):
        problem, state = states(loss, penalty, eta, seed)
        w = state.point.w
        # A point of the domain that is better: the way there goes down, at first.
        best = sorel.solve(problem, "newton", tol=1e-3).w
        delta = size * (best - w)
        if not penalty.quadratic and size > 1.0:
            delta = penalty.project(w + delta) - w
        descent = -derivative(state, delta, 1e-6)
        if not descent > 1e-3 * state.value:
            continue
        direction = Direction(delta, descent, 0.5 * descent)
        enough = 0.5 * descent
        point, dual, length = Newton()._search_by_trials(state, direction, enough)
        np.testing.assert_allclose(point.w, w + length * delta, atol=1e-12)
        expected = problem.engine.ascend(state.center, point, eta) if eta > 0.0 else state.center
        weights = problem.engine.weights
        np.testing.assert_allclose(weights(dual), weights(expected), atol=1e-10)
        slope, error = derivative(state, delta, length), 1e-4 * state.value
        assert slope <= enough + error
        limit = augmented._reach(penalty, w, delta)
        short = 0.5 if loss == "poisson" else 1.0
        # At a kink the derivative turns from one sign to the other.
        kink = derivative(state, delta, length + 2e-6) >= -error
        assert slope >= -short * enough - error or length == pytest.approx(limit) or kink
        # No step is cut short without need.
        if length < 1.0:
            assert derivative(state, delta, min(2.0 * length + 0.1, 1.0)) > -error


@pytest.mark.parametrize("eta", [0.0, 0.3])
def test_a_line_search_that_runs_out_of_trials(monkeypatch, eta):
    """It stops where Phi still falls, with the weights that belong there."""
    monkeypatch.setattr(augmented, "MAX_TRIALS", 1)
    monkeypatch.setattr(augmented, "_HALVINGS", 0)
    problem, state = states("squared", sorel.L2(0.1), eta, 0)
    delta = 1e-3 * (sorel.solve(problem, "newton").w - state.point.w)
    direction = Direction(delta, -derivative(state, delta, 1e-6), 1.0)
    point, dual, length = Newton()._search_by_trials(state, direction, 0.5 * direction.descent)
    assert length == 1.0
    np.testing.assert_allclose(point.w, state.point.w + delta)
    if eta > 0.0:
        expected = problem.engine.ascend(state.center, point, eta)
        weights = problem.engine.weights
        np.testing.assert_allclose(weights(dual), weights(expected), atol=1e-12)
    else:
        assert dual is state.center
    # Nowhere to stop but at the start.
    direction = Direction(1e6 * delta, 1e6 * direction.descent, 1.0)
    point, dual, length = Newton()._search_by_trials(state, direction, 0.5 * direction.descent)
    assert (point, dual, length) == (state.point, state.dual, 0.0)


def test_an_uphill_direction_is_not_followed():
    _, state = states("squared", sorel.L2(0.1), 0.3, 0)
    for descent in (0.0, -1.0):
        found = Newton()._line_search(state, Direction(np.ones(3), descent, 0.0))
        assert found[0] is state.point
        assert found[2] == 1.0


@pytest.mark.parametrize("eta", [0.0, 0.3])
@pytest.mark.parametrize("penalty", [sorel.L2(0.1), *PENALTIES], ids=repr)
def test_the_direction_minimises_its_model(penalty, eta):
    """The losses' part of the model is a parabola, the penalty is taken as it is."""
    problem, state = states("huber", penalty, eta, 0)
    engine, w = problem.engine, state.point.w
    hessian = engine.hessian(state.point, state.dual, eta)
    run = Run(w, None, TOL, 1e6, math.inf, 0)
    found = Newton().direction(state, run, 0.0)
    assert run.passes == 1.0

    def model(step):
        bend = 0.5 * step @ hessian @ step
        change = problem.penalty_value(w + step) - problem.penalty_value(w)
        return state.gradient @ step + bend + change

    assert found.decrease == pytest.approx(-model(found.delta), rel=1e-8)
    # Without the bend of the losses: the penalty has its whole change.
    change = problem.penalty_value(w + found.delta) - problem.penalty_value(w)
    assert found.descent == pytest.approx(-(state.gradient @ found.delta + change), rel=1e-8)
    rng = np.random.default_rng(1)
    for _ in range(50):
        other = penalty.project(w + found.delta + 0.05 * rng.normal(size=3)) - w
        assert model(other) >= model(found.delta) - 1e-12


class Balancing(Scripted):
    """Steps after which the second bracket, the length and the value are what a script says.

    The bracket and how far the value is below that of the start are in gaps wanted.
    """

    def __init__(self, script, start, off):
        super().__init__(script)
        self.start, self.off = start, off

    def shaped(self, state, bracket, below=0.0):
        target = TOL * state.problem.unit(self.start.value)
        size = math.sqrt(2.0 * state.problem.penalty.l2 * bracket * target)
        state.gradient = np.array([size, 0.0, 0.0])
        state.value = self.start.value - self.off - below * target
        return state

    def _step(self, state, run, caution):
        assert caution == 0.0
        self.etas.append(state.eta)
        bracket, length, below = self.script.pop(0)
        new = State(state.problem, state.point, state.center, state.eta)
        new.length = length
        return self.shaped(new, bracket, below)


def balance(first, script, max_passes=1e6):
    """After how many steps the weights were checked, and how many steps there were."""
    X, y = make_data("logistic", 40, 3, seed=1)
    problem = Problem(X, y, risk="cvar:0.5", loss="logistic", penalty=sorel.L2(0.1))
    engine, eta = problem.engine, 10.0
    start = State(problem, engine.point(np.zeros(3)), engine.uniform(), 0.0)
    # For half of the samples at twice the weight, |q - 1|^2 is 1.
    solver = Balancing(script, start, 1.0 / (2.0 * eta))
    run = Run(np.zeros(3), None, TOL, max_passes, math.inf, 0)
    state = State(problem, engine.point(np.full(3, 1e-6)), engine.uniform(), eta)
    checks = []
    for iterate in solver._balance(start, np.zeros(3), solver.shaped(state, first), run):
        checks.append(len(solver.etas))
        assert not np.any(iterate.point.w)
        assert iterate.refine == pytest.approx(TOL * problem.unit(start.value))
    assert run.passes == len(checks)
    return checks, len(solver.etas)


def test_weights_for_which_the_start_is_the_solution(monkeypatch):
    worth = augmented._WORTH_REFINING
    # Brackets that are halved are progress, and those near the gap wanted worth a check.
    brackets = [64.0 * worth * 0.49**k for k in range(1, 9)]
    checks, steps = balance(64.0 * worth, [(b, 1.0, 0.0) for b in brackets] + [(b, 0.1, 0.0)
                            for b in brackets[-1:]])  # fmt: skip
    assert (checks, steps) == ([6, 7, 8], 9)
    # Failures to halve the least one end the search, unless one is made good.
    assert balance(1e4, [(1e4, 1.0, 0.0)] * 9) == ([], augmented._MAX_FAILURES + 2)
    script = [(1e4, 1.0, 0.0)] * 2 + [(4e3, 1.0, 0.0)] * 9
    assert balance(1e4, script) == ([], 3 + augmented._MAX_FAILURES + 2)
    assert balance(1e4, [(6e3, 1.0, 0.0), (4e3, 1.0, 0.0), (2.9e3, 1.0, 0.0), *script]) == ([], 4)
    # So does one that is larger than the first of them, where steps take many products.
    larger = [(1.01e4, 1.0, 0.0)] * 9
    assert balance(1e4, larger) == ([], augmented._MAX_FAILURES + 2)
    monkeypatch.setattr(Balancing, "by_products", True)
    assert balance(1e4, larger) == ([], 1)
    assert balance(1e4, [(6e3, 1.0, 0.0), (9.9e3, 1.0, 0.0), (1.01e4, 1.0, 0.0)]) == ([], 3)
    # So do steps cut short, and a value below that of the start.
    full = rounds.FULL_ENOUGH
    assert balance(1e4, [(1e3, 0.99 * full, 0.0)])[1] == 1
    assert balance(1e4, [(1e3, full, 0.0), (1e2, 0.0, 0.0)])[1] == 2
    assert balance(1e4, [(1e3, 1.0, 1.01)])[1] == 1
    assert balance(1e4, [(1e3, 1.0, 0.99), (1e2, 0.0, 0.0)])[1] == 2
    assert balance(1e4, [], max_passes=0.0) == ([], 0)


@pytest.mark.parametrize(
    ("loss", "risk", "eta", "kept"),
    [
        ("logistic", "mean", 0.0, True),
        ("squared", "mean", 0.3, True),
        ("squared", "esrm:2", 0.0, True),
        ("squared", "esrm:2", 0.3, False),
        ("logistic", "esrm:2", 0.0, False),
        ("squared", "cvar:0.5", 0.0, False),
    ],
)
def test_a_matrix_is_kept_where_it_tells_enough_of_the_next(monkeypatch, loss, risk, eta, kept):
    """Under fixed weights, or for losses that bend alike as long as weights stay put."""
    problem, state = states(loss, ElasticNet(0.1, 0.2), eta, 0, risk)
    found = []
    monkeypatch.setattr(Problem, "keep_curvature", lambda self, hessian: found.append(hessian))
    run = Run(state.point.w, None, TOL, 1e6, math.inf, 0)
    Newton().direction(state, run, 0.0)
    assert len(found) == kept
    if kept:
        expected = problem.engine.hessian(state.point, state.dual, eta)
        np.testing.assert_allclose(found[0], expected)


def test_a_step_adds_nothing_to_all_intercepts_alike():
    X, y = make_data("multinomial", 40, 3, seed=1)
    rng = np.random.default_rng(0)
    for intercept in (True, False):
        problem = Problem(X, y, loss="multinomial", fit_intercept=intercept)
        size, classes = problem.engine.size, problem.engine.n_outputs
        center, before = rng.normal(size=size), rng.normal(size=size)
        u = before.copy()
        newton._fix_intercepts(problem, u, center)
        if not intercept:
            np.testing.assert_array_equal(u, before)
            continue
        np.testing.assert_array_equal(u[:-classes], before[:-classes])
        assert np.mean(u[-classes:] - center[-classes:]) == pytest.approx(0.0, abs=1e-15)
        np.testing.assert_allclose(np.diff(u[-classes:]), np.diff(before[-classes:]))
    single = Problem(X, y * 1.0, fit_intercept=True)
    u = np.ones(4)
    newton._fix_intercepts(single, u, np.zeros(4))
    np.testing.assert_array_equal(u, np.ones(4))


@pytest.mark.parametrize(
    ("penalty", "size", "refused"),
    [
        (OwnElasticNet(0.1, 0.1), newton.MAX_SIZE, False),
        (OwnElasticNet(0.1, 0.1), newton.MAX_SIZE + 1, True),
        (sorel.L2(0.1), newton.MAX_SIZE + 1, False),
        (ElasticNet(0.1, 0.1), newton.MAX_SIZE + 1, False),
    ],
)
def test_matrices_that_are_too_large(penalty, size, refused):
    """Where the penalty is one of which nothing is known that would make them smaller."""
    problem = Problem(np.zeros((2, size), np.float32), [0.0, 1.0], penalty=penalty)
    if refused:
        with pytest.raises(UnsupportedProblemError, match=f"builds a {size} x {size} matrix"):
            Newton().check(problem)
    else:
        Newton().check(problem)


@pytest.mark.parametrize("root", [0.3, 1e-6, 1e-12])
def test_a_line_search_without_end_goes_by_powers(monkeypatch, root):
    """At a kink, after so many trials, by the geometric mean of the last lengths on its sides."""
    monkeypatch.setattr(augmented, "MAX_TRIALS", 3)
    problem, state = states("squared", sorel.L2(1e-9), 0.0, 0)
    engine, tried = problem.engine, []

    def derivative(point, delta, change, t, center, eta):
        tried.append(t)
        assert len(tried) < 200
        return engine.moved(point, delta, change, t), center, -1.0 if t < root else 1.0

    monkeypatch.setattr(engine, "tried", derivative)
    direction = Direction(np.full(3, 1e-3), 1.0, 1.0)
    _, _, length = Newton()._search_by_trials(state, direction, 1e-3)
    assert length <= root
    for k in range(3, len(tried) - 1):
        below = [t for t in tried[: k + 1] if t < root]
        above = [t for t in tried[: k + 1] if t >= root]
        if below:
            mean = math.sqrt(max(below)) * math.sqrt(min(above))
            assert tried[k + 1] == pytest.approx(mean, rel=1e-12)
    assert length == max(t for t in tried if t < root)
    assert length >= 0.99 * root
