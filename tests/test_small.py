"""Newton steps of small problems: one call must find what the single operations find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sorel
from sorel import ESRM, L2, CVaR, Max, Mean
from sorel._compiled import plain
from sorel.engines import DenseEngine
from sorel.engines.base import Engine, FloatArray, Settled
from sorel.engines.small import _MOST_STARTS, SmallSteps
from sorel.kernels import small
from sorel.line_search import MAX_TRIALS, next_length
from sorel.models import step_of_few
from sorel.problem import Problem
from sorel.rounding import Path
from sorel.rounds import (
    BUDGET,
    ETA,
    EVALUATE,
    LARGEST,
    PHASE,
    PREDICTED,
    ROUNDING,
    ROUNDS,
    EtaSchedule,
    Rounds,
    next_caution,
)
from sorel.solvers import Run
from sorel.solvers.augmented import HEARTBEAT, Direction, Progress, State
from sorel.solvers.newton import Newton

RISKS = (CVaR(0.3), ESRM(3.0), Mean(), Max())
LOSSES = ("squared", "huber", "squared_hinge")


def make(
    risk: sorel.risks.Risk, loss: str = "squared", intercept: bool = False, n: int = 60
) -> Problem:
    """A small problem, in memory of its own."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, 4))
    y = X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_t(3, size=n)
    if loss == "squared_hinge":
        y = np.where(y > 0.0, 1.0, -1.0)
    problem = Problem(X, y, risk=risk, loss=loss, penalty=L2(0.1), fit_intercept=intercept)
    return problem.for_run()


def assert_same(settled: Settled, other: Settled, engine: Engine) -> None:
    """The same weighting, numbers and gradient, to rounding."""
    np.testing.assert_allclose(
        engine.weights(settled.dual), engine.weights(other.dual), rtol=0.0, atol=1e-13
    )
    assert settled.expected == pytest.approx(other.expected, rel=1e-12)
    assert settled.distance == pytest.approx(other.distance, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(settled.gradient, other.gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_settle_is_the_sum_of_its_parts(risk: sorel.risks.Risk, loss: str, intercept: bool) -> None:
    problem = make(risk, loss, intercept)
    engine = problem.engine
    assert isinstance(engine, DenseEngine)
    assert engine._small_steps is not None
    rng = np.random.default_rng(0)
    center = engine.uniform()
    # Steps to and fro, so that orders and thresholds of one call serve the next.
    for eta in (0.0, 0.1, np.inf, 1e3, 3.0, 1e8):
        point = engine.point(rng.standard_normal(engine.shape))
        settled = engine.settle(point, center, eta)
        assert_same(settled, Engine.settle(engine, point, center, eta), engine)
        assert (eta > 0.0) == (settled.dual is not center)
        center = engine.as_center(settled.dual)


@pytest.mark.parametrize("loss", LOSSES)
def test_some_thousand_losses_are_sorted_where_they_are_projected(loss: str) -> None:
    problem = make(ESRM(3.0), loss, n=1600)
    engine, rng = problem.engine, np.random.default_rng(0)
    assert isinstance(engine, DenseEngine)
    assert engine._small_steps is not None
    mass = 1600 * ESRM(3.0).weights(1600)
    center = engine.uniform()
    # At first all losses of labels tie; near and far away the last order serves or does not.
    w = np.zeros(engine.shape)
    for eta, way in ((1.0, 0.0), (1.0, 1.0), (10.0, 1e-4), (3.0, 1.0), (1e8, 1e-9)):
        w = w + way * rng.standard_normal(engine.shape)
        point = engine.point(w)
        settled = engine.settle(point, center, eta)
        target = center.density + eta * point.losses  # type: ignore[attr-defined] # in memory
        expected = sorel.project_permutahedron(target, mass)
        np.testing.assert_allclose(
            1600 * engine.weights(settled.dual), expected, rtol=0.0, atol=1e-12
        )
        center = engine.as_center(settled.dual)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("eta", [0.0, 1.0, 1e4])
def test_one_call_ends_where_single_trials_end(
    risk: sorel.risks.Risk, loss: str, intercept: bool, eta: float
) -> None:
    problem = make(risk, loss, intercept)
    engine, rng = problem.engine, np.random.default_rng(1)
    state = State(problem, engine.point(rng.standard_normal(engine.shape)), engine.uniform(), eta)
    slope = state.gradient + problem.modulus() * state.point.w
    # From far too long to far too short.
    for scale in (30.0, 1.0, 0.01):
        delta = -scale * (slope + 0.1 * rng.standard_normal(slope.shape))
        descent = -float(slope @ delta)
        assert descent > 0.0
        enough = 0.5 * descent
        found = engine.search(state.point, state.center, eta, delta, descent, enough, 0.1)
        assert found is not None
        point, settled, length = found
        expected = Newton()._search_by_trials(state, Direction(delta, descent, descent), enough)
        assert length == pytest.approx(expected[2], rel=1e-9)
        np.testing.assert_allclose(point.w, state.point.w + length * delta, rtol=1e-12)
        fresh = engine.point(point.w)
        np.testing.assert_allclose(engine.losses(point), engine.losses(fresh), rtol=1e-9)
        assert_same(settled, Engine.settle(engine, fresh, state.center, eta), engine)
        # Phi is smooth, and its derivative along the step is what the search was to bring down.
        step = settled.gradient + problem.modulus() * point.w
        assert abs(float(step @ delta)) <= enough * (1.0 + 1e-9)


def step_by_parts(state: State, caution: float) -> tuple[Direction, Any]:
    """A Newton step from a Hessian, a linear system and single trials."""
    problem, engine, w = state.problem, state.problem.engine, state.point.w
    hessian = engine.hessian(state.point, state.dual, state.eta, caution=caution)
    slope = state.gradient + problem.modulus() * w
    delta = np.linalg.solve(hessian + np.diag(problem.modulus()), -slope)
    # Without the curvature of the losses, the penalty is all that bends.
    ends = problem.penalty_value(w) - problem.penalty_value(w + delta)
    descent = ends - float(state.gradient @ delta)
    direction = Direction(delta, descent, descent - 0.5 * float(delta @ hessian @ delta))
    return direction, Newton()._search_by_trials(state, direction, 0.5 * descent)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize(("eta", "caution"), [(0.0, 0.0), (1.0, 0.3), (1e4, 1.0)])
def test_newton_step_in_one_call_is_that_in_many(
    risk: sorel.risks.Risk, loss: str, intercept: bool, eta: float, caution: float
) -> None:
    problem = make(risk, loss, intercept)
    engine, rng = problem.engine, np.random.default_rng(2)
    state = State(problem, engine.point(rng.standard_normal(engine.shape)), engine.uniform(), eta)
    found = engine.newton_step(
        state.point, state.dual, state.center, eta, state.gradient, 0.1, caution, 0.0
    )
    assert found is not None
    point, settled, length, decrease, remains = found
    assert remains == np.inf
    direction, trial = step_by_parts(state, caution)
    assert decrease == pytest.approx(direction.decrease, rel=1e-8)
    assert length == pytest.approx(trial[2], rel=1e-8)
    np.testing.assert_allclose(point.w, trial[0].w, rtol=1e-8, atol=1e-10)
    fresh = engine.point(point.w)
    np.testing.assert_allclose(engine.losses(point), engine.losses(fresh), rtol=1e-7, atol=1e-10)
    assert_same(settled, Engine.settle(engine, point, state.center, eta), engine)


def step_by_ranks(state: State, caution: float) -> FloatArray:
    """The step where weights follow the losses along lines, one for each group of neighbours."""
    problem, engine, w = state.problem, state.problem.engine, state.point.w
    X = np.column_stack([problem.engine._X, *([np.ones(problem.n_samples)] * (len(w) > 4))])  # type: ignore[attr-defined] # in memory
    q, losses = engine.weights(state.dual) * len(X), state.point.losses  # type: ignore[attr-defined] # in memory
    hessian = engine.hessian(state.point, engine.as_center(state.dual), 0.0, caution=caution)
    slopes = X * state.point.slopes[:, None]  # type: ignore[attr-defined] # in memory
    order = np.argsort(losses, kind="stable")
    for begin in range(0, len(X), small.NEIGHBOURS):
        group = order[begin : begin + small.NEIGHBOURS]
        spread = losses[group[-1]] - losses[group[0]]
        if spread > 0.0:
            apart = slopes[group] - slopes[group].mean(axis=0)
            rate = (q[group[-1]] - q[group[0]]) / spread
            hessian = hessian + rate * apart.T @ apart / len(X)
    matrix = hessian + np.diag(problem.modulus())
    return np.linalg.solve(matrix, -(state.gradient + problem.modulus() * w))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("n", "caution"), [(60, 0.0), (64, 0.3), (1600, 0.0), (1601, 0.0)])
def test_a_step_by_ranks(loss: str, intercept: bool, n: int, caution: float) -> None:
    problem = make(ESRM(3.0), loss, intercept, n)
    engine, rng = problem.engine, np.random.default_rng(2)
    center, w = engine.uniform(), 0.1 * rng.standard_normal(engine.shape)
    state = State(problem, engine.point(w), center, np.inf)
    assert state.moved == 0.0
    assert state.value == pytest.approx(problem.objective(w), rel=1e-12)
    found = engine.newton_step(
        state.point, state.dual, center, np.inf, state.gradient, 0.1, caution, 0.0
    )
    assert found is not None
    point, settled, length, decrease, remains = found
    delta = step_by_ranks(state, caution)
    np.testing.assert_allclose(point.w - w, length * delta, rtol=1e-7, atol=1e-10)
    slope = state.gradient + problem.modulus() * w
    assert decrease == pytest.approx(-0.5 * slope @ delta, rel=1e-8)
    assert problem.objective(point.w) < problem.objective(w)
    assert_same(settled, Engine.settle(engine, point, center, np.inf), engine)
    # The derivative of the risk along the step is what the search was to bring down.
    there = settled.gradient + problem.modulus() * point.w
    assert abs(there @ delta) <= 0.5 * abs(slope @ delta) * (1.0 + 1e-9)
    # What the next step will promise, if the matrix stays as it is.
    again = State(problem, state.point, center, np.inf)
    again.gradient = there - problem.modulus() * w
    assert remains == pytest.approx(-0.5 * there @ step_by_ranks(again, caution), rel=1e-6)


# Quartets of columns and what is left of them; tiles of rows, full ones and others; with most rows
# in the Gram matrix, and with few.
@pytest.mark.parametrize("risk", [CVaR(0.2), ESRM(1.0)], ids=repr)
@pytest.mark.parametrize(("n", "d"), [(3, 1), (255, 2), (256, 5), (700, 7), (1500, 12), (400, 23)])
def test_newton_step_of_any_shape(n: int, d: int, risk: sorel.risks.Risk) -> None:
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d))
    y = X.sum(axis=1) + rng.standard_t(3, size=n)
    problem = Problem(X, y, risk=risk, penalty=L2(0.01), fit_intercept=d % 2 == 1).for_run()
    engine = problem.engine
    state = State(problem, engine.point(rng.standard_normal(engine.shape)), engine.uniform(), 3.0)
    found = engine.newton_step(
        state.point, state.dual, state.center, 3.0, state.gradient, 0.01, 0.0, 0.0
    )
    assert found is not None
    direction, trial = step_by_parts(state, 0.0)
    assert found[3] == pytest.approx(direction.decrease, rel=1e-8)
    np.testing.assert_allclose(found[0].w, trial[0].w, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_newton_point_is_the_minimum_of_squared_losses(
    risk: sorel.risks.Risk, intercept: bool
) -> None:
    problem = make(risk, "squared", intercept)
    engine = problem.engine
    point = engine.point(np.linspace(-1.0, 2.0, engine.size))
    # Any weighting will do, and one that gives weight to more samples than there are columns has
    # a minimum even without a penalty.
    dual = engine.settle(point, engine.uniform(), 1.0).dual
    found = engine.newton_point(point, dual, engine.gradient(point, dual), 0.1)
    assert found is not None
    u, expected, gradient = found
    np.testing.assert_allclose(gradient + problem.modulus() * u.w, 0.0, atol=1e-12)
    fresh = engine.point(u.w)
    np.testing.assert_allclose(engine.losses(u), engine.losses(fresh), rtol=1e-12, atol=1e-13)
    assert expected == pytest.approx(engine.expected(fresh, dual), rel=1e-12)
    np.testing.assert_allclose(gradient, engine.gradient(fresh, dual), atol=1e-12)


def test_system_without_a_solution_is_left_to_the_careful_path() -> None:
    X = np.ones((30, 2))
    problem = Problem(X, np.arange(30.0), risk="mean", penalty=L2(1e-300)).for_run()
    engine = problem.engine
    state = State(problem, engine.point(np.ones(2)), engine.uniform(), 0.0)
    step = engine.newton_step(
        state.point, state.dual, state.center, 0.0, state.gradient, 1e-300, 0.0, 0.0
    )
    assert step is None
    assert engine.newton_point(state.point, state.dual, state.gradient, 1e-300) is None


@pytest.mark.parametrize("kind", ["C", "F", "float32", "read-only"])
def test_all_kinds_of_arrays_take_the_same_steps(kind: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(-8, 8, size=(80, 5)).astype(np.float64)
    y = X.sum(axis=1) + rng.standard_normal(80)
    given = (
        X.astype(np.float32)
        if kind == "float32"
        else np.array(X, order="F" if kind == "F" else "C")
    )
    given.flags.writeable = kind != "read-only"
    problem = Problem(given, y, risk=ESRM(2.0), penalty=L2(0.1))
    engine = problem.for_run().engine
    assert isinstance(engine, DenseEngine)
    assert engine._small_steps is not None
    expected = sorel.solve(Problem(X, y, risk=ESRM(2.0), penalty=L2(0.1)), tol=1e-6)
    result = sorel.solve(problem, tol=1e-6)
    assert result.passes == expected.passes
    np.testing.assert_allclose(result.w, expected.w, rtol=1e-9)


def test_search_that_finds_no_step_leaves_the_matter_to_trials() -> None:
    problem = make(ESRM(2.0))
    engine = problem.engine
    point = engine.point(np.ones(4))
    settled = engine.settle(point, engine.uniform(), 0.0)
    uphill = settled.gradient + 0.1 * point.w
    assert engine.search(point, engine.uniform(), 0.0, uphill, 1.0, 1e-300, 0.1) is None


def test_order_far_from_the_last_one_is_sorted_anew() -> None:
    problem = make(ESRM(2.0), n=3000)
    engine, center = problem.engine, problem.engine.uniform()
    for w in (np.ones(4), -np.ones(4), np.array([50.0, -3.0, 0.0, 1.0])):
        point = engine.point(w)
        dual = engine.settle(point, center, 1e6).dual
        # At a large eta the densities follow the losses: this is the worst case.
        worst = engine.worst_case(point)
        assert engine.expected(point, dual) == pytest.approx(engine.risk(point), rel=1e-6)
        assert np.abs(engine.weights(dual) - engine.weights(worst)).sum() < 1e-2


@pytest.mark.parametrize(
    "arguments",
    [
        {"sample_weight": np.linspace(1.0, 2.0, 40)},
        {"loss": "logistic"},
        {"columns": 30},
    ],
    ids=["weights", "logistic", "many columns"],
)
def test_others_take_the_general_path(arguments: dict[str, Any]) -> None:
    options = dict(arguments)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, options.pop("columns", 3)))
    engine = Problem(X, np.where(X[:, 0] > 0.0, 1.0, -1.0), **options).for_run().engine
    center = engine.uniform()
    delta = np.ones(engine.shape)
    point = engine.point(delta)
    settled = engine.settle(point, center, 1.0)
    assert settled.distance >= 0.0
    assert engine.search(point, center, 1.0, delta, 1.0, 1.0, 0.1) is None
    assert engine.newton_point(point, center, delta, 0.1) is None
    step = engine.newton_step(point, settled.dual, center, 1.0, settled.gradient, 0.1, 0.0, 0.0)
    assert step is None
    assert not engine.walks
    empty = Rounds(*np.zeros((5, 20)))
    assert engine.walk(point, settled.dual, center, settled.gradient, 0.1, empty) is None


def test_step_of_few_promises_what_the_model_gives() -> None:
    rng = np.random.default_rng(0)
    for p in (1, 2, 5, 24):
        A = rng.standard_normal((p, p + 2))
        H, gradient, w = A @ A.T, rng.standard_normal(p), rng.standard_normal(p)
        n_penalized, l2 = max(1, p - 1), 0.3
        penalised = np.arange(p) < n_penalized
        found = step_of_few(H, gradient, w, l2, n_penalized)
        assert found is not None
        step, descent, decrease = found
        expected = np.linalg.solve(H + l2 * np.diag(penalised), -gradient - l2 * penalised * w)
        np.testing.assert_allclose(step, expected, rtol=1e-9, atol=1e-12)
        u = w + step
        gain = 0.5 * l2 * (w[penalised] @ w[penalised] - u[penalised] @ u[penalised])
        assert descent == pytest.approx(gain - gradient @ step, rel=1e-9)
        assert decrease == pytest.approx(gain - gradient @ step - 0.5 * step @ H @ step, rel=1e-9)


def test_step_of_few_declines_what_it_cannot_do() -> None:
    assert step_of_few(np.eye(25), np.ones(25), np.zeros(25), 1.0, 25) is None
    assert step_of_few(np.zeros((2, 2)), np.ones(2), np.zeros(2), 0.0, 2) is None
    assert step_of_few(np.full((1, 1), np.nan), np.ones(1), np.zeros(1), 1.0, 1) is None


@pytest.mark.parametrize("minimum", [1e-3, 0.2, 0.97, 3.0, 40.0])
@pytest.mark.parametrize("power", [1.0, 3.0])
def test_lengths_close_in_on_the_minimum(minimum: float, power: float) -> None:
    def derivative(t: float) -> float:
        return float(np.sign(t - minimum) * abs(t - minimum) ** power)

    t, low, slope_low, high, slope_high = 1.0, 0.0, derivative(0.0), 1.0, np.inf
    for _ in range(MAX_TRIALS):
        slope = derivative(t)
        if abs(slope) <= 0.5 * abs(derivative(0.0)):
            break
        t, low, slope_low, high, slope_high = next_length(
            t, slope, low, slope_low, high, slope_high, np.inf
        )
        assert low < t <= high
        assert slope_low < 0.0
    else:
        pytest.fail(f"no length near {minimum} after {MAX_TRIALS} trials")


def test_lengths_stay_within_the_limit() -> None:
    t, low, _, high, _ = next_length(1.0, -1.0, 0.0, -1.0, 1.0, np.inf, 1.5)
    assert (t, low, high) == (1.5, 1.0, 1.5)


@pytest.mark.parametrize(("used", "packed"), [(2, True), (6, True), (7, False), (9, False)])
def test_rows_with_curvature_are_put_together_where_they_are_few(used: int, packed: bool) -> None:
    """Below seven tenths of ten rows they are copied, and the last row of the copy has weights."""
    engine = make(CVaR(0.3), n=10).engine
    assert isinstance(engine, DenseEngine)
    point, dual = engine.point(np.ones(4)), engine.uniform()
    dual.density[:] = np.where(np.arange(10) < used, 10.0 / used, 0.0)
    assert engine._small_steps is not None
    tile = engine._small_steps._work[3]
    tile[-1] = -1.0
    gradient = engine.gradient(point, dual)
    found = engine.newton_point(point, dual, gradient, 0.1)
    assert found is not None
    np.testing.assert_allclose(found[2] + 0.1 * found[0].w, 0.0, atol=1e-12)
    np.testing.assert_allclose(tile[-1, :used], 1.0 / used if packed else -1.0)


class Script:
    """Walks that end as they are told to, and what they are started with."""

    def __init__(self, ends: list[tuple[float, int]]) -> None:
        self.ends, self.moves, self.starts = ends, list[int](), list[list[float]]()

    def __call__(self, *arguments: Any) -> int:
        self.moves.append(int(arguments[15][BUDGET]))
        self.starts.append(list(arguments[8]))
        trials, count = self.ends[min(len(self.moves), len(self.ends)) - 1]
        arguments[17][small.TRIALS] = trials
        return count


FRESH = small.FRESH_START


@pytest.mark.parametrize(
    ("ends", "attempts"),
    [
        ([(1.0, 0)], []),
        # Each trial has starts of its own. The fast sort has had its turn in the loop.
        ([(0.0, FRESH), (0.0, FRESH), (1.0, FRESH), (1.0, FRESH), (2.0, 0)], [1, 1, 1, 1]),
        ([(0.0, FRESH), (1.0, FRESH), (2.0, FRESH), (3.0, 0)], [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("n", [60, 1600])
def test_orders_are_found_anew_as_often_as_a_trial_needs(
    ends: list[tuple[float, int]], attempts: list[int], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(ESRM(2.0), n=n).engine
    assert isinstance(engine, DenseEngine)
    point, center = engine.point(np.ones(4)), engine.uniform()
    core, taken, script = engine._projector.core, list[int](), Script(ends)
    monkeypatch.setattr(core, "moves", lambda: 5)
    monkeypatch.setattr(core, "sort", lambda target, attempt: taken.append(attempt) or 70)
    monkeypatch.setattr(small, "walk", script)
    assert engine._small_steps is not None
    settled = engine._small_steps.settle(point, center, 1.0)
    assert settled is not None
    assert taken == attempts
    assert script.moves == [5] + [70] * len(attempts)


@pytest.mark.parametrize("risk", [ESRM(2.0), CVaR(0.3)], ids=repr)
def test_a_projection_without_luck_is_given_up(
    risk: sorel.risks.Risk, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(risk).engine
    assert isinstance(engine, DenseEngine)
    steps, script = engine._small_steps, Script([(0.0, FRESH)])
    assert steps is not None
    threshold = engine._projector.core.threshold
    if threshold is not None:
        threshold.pivot, threshold.tau = 7, 0.25
        monkeypatch.setattr(threshold, "bracket", lambda target: (1.0, 2.0, 3.0, 4.0))
    monkeypatch.setattr(small, "walk", script)
    assert steps.settle(engine.point(np.ones(4)), engine.uniform(), 1.0) is None
    assert len(script.moves) == _MOST_STARTS + 1
    if threshold is not None:
        # At first from the last threshold, then from a bracket; what it left is kept, and what was
        # to bracket it is not.
        assert script.starts[0][:2] == [7.0, 0.25]
        assert script.starts[1:] == [[-1.0, 2.0, 1.0, 3.0, 4.0]] * _MOST_STARTS
        assert (threshold.pivot, threshold.tau) == (-1, 2.0)
        assert list(steps._start) == [-1.0, 2.0, 0.0, 0.0, 0.0]


def test_a_step_is_searched_until_half_of_its_descent_is_gone() -> None:
    """Or half of what rounding makes of it, if that is more."""
    problem = make(ESRM(2.0))
    engine = problem.engine
    assert isinstance(engine, DenseEngine)
    state = State(problem, engine.point(np.ones(4)), engine.uniform(), 1.0)
    steps = engine._small_steps
    assert steps is not None
    descent = step_by_parts(state, 0.0)[0].descent
    for noise in (0.0, 1e6):
        found = steps.step(
            state.point, state.dual, state.center, 1.0, state.gradient, 0.1, 0.0, noise
        )
        assert found is not None
        enough = steps._numbers[small.ENOUGH]
        assert enough == pytest.approx(0.5 * max(descent, noise), rel=1e-9)


@pytest.mark.parametrize("n", [60, 1600])
def test_losses_are_sorted_where_they_are_projected(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(ESRM(2.0), n=n).engine
    assert isinstance(engine, DenseEngine)
    core = engine._projector.core
    monkeypatch.setattr(core, "sort", lambda *args: pytest.fail("sorted elsewhere"))
    point, center = engine.point(np.ones(4)), engine.uniform()
    assert engine._small_steps is not None
    settled = engine._small_steps.settle(point, center, 1.0)
    assert settled is not None
    monkeypatch.undo()
    assert_same(settled, Engine.settle(engine, point, center, 1.0), engine)


# Several rounds and steps in one call.


def start_of(problem: Problem, eta: float) -> tuple[State, Progress]:
    """A state some way from the solution, and the beginning of its rounds."""
    engine = problem.engine
    state = State(problem, engine.point(np.full(engine.shape, 0.3)), engine.uniform(), eta)
    scale = Newton.pace.first / eta if eta < np.inf else engine.loss_scale(state.point)
    schedule = EtaSchedule(Newton.pace, scale, warm=False)
    if eta == np.inf:
        schedule.follow_ranks()
    return state, Progress(schedule, Path(state.point.w), problem.unit(state.value), 0.0)


def make_run(tol: float) -> Run:
    return Run(np.zeros(1), None, tol, 1000.0, np.inf, 0)


def one_by_one(state: State, run: Run, progress: Progress, passes: float) -> State:
    """The loop in Python until as many passes are spent, with no look at any point."""
    solver, schedule, problem = Newton(), progress.schedule, state.problem
    while run.passes < passes:
        noise = ROUNDING * problem.unit(state.value)
        solved = schedule.is_solved(
            state.moved, state.predicted, state.length, progress.used, noise
        )
        if schedule.by_ranks:
            if solved or schedule.has_slowed(state.length):
                state = solver._leave_ranks(state, run, schedule)
        elif solved:
            run.n_iter += 1
            center = problem.engine.as_center(state.dual)
            state = State(problem, state.point, center, schedule.advance())
        elif schedule.stuck:
            state = State(problem, state.point, state.center, schedule.retreat())
        progress.used = progress.caution
        state = solver._step(state, run, progress.caution)
        schedule.note(state.length, state.predicted)
        progress.caution = next_caution(progress.caution, schedule.is_short(state.length))
    return state


# An intercept of which no loss has curvature takes a step of another kind.
@pytest.mark.parametrize(
    ("loss", "intercept"), [*((loss, False) for loss in LOSSES), ("squared", True)]
)
@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(3.0), Max(), CVaR(0.02)], ids=repr)
@pytest.mark.parametrize("eta", [1.0, 1e3])
@pytest.mark.parametrize("n", [60, 1600])
def test_a_walk_goes_where_single_steps_go(
    risk: sorel.risks.Risk, loss: str, intercept: bool, eta: float, n: int
) -> None:
    compare_walk_and_steps(risk, loss, intercept, eta, n, 1e-7)


@pytest.mark.parametrize("tol", [1e-3, 1e-7])
@pytest.mark.parametrize("n", [60, 1600])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_walk_follows_the_ranks_as_single_steps_do(loss: str, n: int, tol: float) -> None:
    compare_walk_and_steps(ESRM(3.0), loss, False, np.inf, n, tol)


def compare_walk_and_steps(
    risk: sorel.risks.Risk, loss: str, intercept: bool, eta: float, n: int, tol: float
) -> None:
    problem, other = make(risk, loss, intercept, n), make(risk, loss, intercept, n)
    (state, progress), run = start_of(problem, eta), make_run(tol)
    walked = Newton()._walk(state, run, progress)
    assert walked is not None
    assert run.passes >= 2.0
    (state, single), again = start_of(other, eta), make_run(tol)
    expected = one_by_one(state, again, single, run.passes)
    assert (again.passes, again.n_iter) == (run.passes, run.n_iter)
    assert walked.eta == pytest.approx(expected.eta, rel=1e-12)
    np.testing.assert_allclose(
        progress.schedule.numbers, single.schedule.numbers, rtol=1e-8, atol=1e-14
    )
    assert (progress.caution, progress.used) == (single.caution, single.used)
    assert walked.remains == pytest.approx(expected.remains, rel=1e-4, abs=1e-14)
    assert walked.length == pytest.approx(expected.length, rel=1e-6)
    np.testing.assert_allclose(walked.point.w, expected.point.w, rtol=1e-7, atol=1e-9)
    assert walked.value == pytest.approx(expected.value, rel=1e-10)
    # Whatever the way there, what is known of the end is so.
    fresh = problem.engine.point(walked.point.w)
    np.testing.assert_allclose(
        problem.engine.losses(walked.point), problem.engine.losses(fresh), rtol=1e-9, atol=1e-12
    )
    settled = Engine.settle(problem.engine, fresh, walked.center, walked.eta)
    assert walked.value == pytest.approx(
        State(problem, fresh, walked.center, walked.eta, settled).value, rel=1e-11
    )
    np.testing.assert_allclose(walked.gradient, settled.gradient, rtol=1e-6, atol=1e-8)
    assert np.all(progress.path.reach >= np.abs(walked.point.w) * (1.0 - 1e-15))


@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(3.0)], ids=repr)
def test_a_walk_ends_where_a_look_is_due(risk: sorel.risks.Risk) -> None:
    # After a number of passes, at the end of the budget, or where a certificate may succeed.
    (state, progress), run = start_of(make(risk), 1.0), make_run(1e-12)
    progress.checked = 4.0 - HEARTBEAT
    assert Newton()._walk(state, run, progress) is not None
    assert run.passes == 6.0
    # Margins that have drifted too far for the tolerance are for others to compute afresh.
    (state, progress), run = start_of(make(risk), 1.0), make_run(1e-300)
    assert Newton()._walk(state, run, progress) is not None
    assert run.passes == 2.0
    (state, progress), run = start_of(make(risk), 1.0), make_run(1e-9)
    run.max_passes = 6.0
    assert Newton()._walk(state, run, progress) is not None
    assert run.passes == 6.0
    (state, progress), run = start_of(make(risk), 1.0), make_run(1e-4)
    walked = Newton()._walk(state, run, progress)
    assert walked is not None
    target = 1e-4 * walked.problem.unit(walked.value)
    certificate = walked.problem.certify(walked.point, walked.dual, refine=target)
    assert certificate.gap <= 10.0 * target


@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(3.0)], ids=repr)
@pytest.mark.parametrize("tol", [1e-5, 1e-7])
def test_nobody_is_asked_to_look_at_weights_with_much_to_gain(
    risk: sorel.risks.Risk, tol: float
) -> None:
    (state, progress), run = start_of(make(risk, n=200), 1.0), make_run(tol)
    walked = Newton()._walk(state, run, progress)
    assert walked is not None
    assert run.passes < HEARTBEAT
    problem = walked.problem
    shortfall = problem.engine.shortfall(walked.point, walked.dual)
    assert shortfall <= (1.0 + 1e-6) * tol * problem.unit(walked.value)


def test_a_walk_leaves_to_others_what_is_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def walks(problem: Problem, **changes: Any) -> bool:
        (state, progress), run = start_of(problem, 1.0), make_run(1e-6)
        for name, value in changes.items():
            setattr(progress if hasattr(progress, name) else run, name, value)
        return Newton()._walk(state, run, progress) is not None

    assert walks(make(CVaR(0.3)))
    # Somebody looks on, steps share a matrix, or rounding blurs certificates.
    assert not walks(make(CVaR(0.3)), watched=True)
    assert not walks(make(CVaR(0.3)), resembles=True)
    assert not walks(make(CVaR(0.3)), coarse=True)
    # Losses that are far smaller than those that eta was measured by, or eta at its end.
    (state, progress), run = start_of(make(CVaR(0.3)), 1.0), make_run(1e-6)
    progress.schedule.note(1.0)
    state.predicted, progress.measured = 0.0, 1e3 * abs(state.value)
    assert Newton()._walk(state, run, progress) is None
    progress.measured = abs(state.value)
    progress.schedule.numbers[LARGEST] = progress.schedule.numbers[ETA]
    assert Newton()._walk(state, run, progress) is None
    # An objective that is not its own unit.
    (state, progress), run = start_of(make(CVaR(0.3)), 1.0), make_run(1e-6)
    state.value = 0.0
    assert Newton()._walk(state, run, progress) is None
    # Without luck in the projection there is no step, and what was begun is of no account.
    (state, progress), run = start_of(make(CVaR(0.3)), 1.0), make_run(1e-6)
    monkeypatch.setattr(SmallSteps, "_go", lambda *args: small.FRESH_START)
    assert Newton()._walk(state, run, progress) is None


def test_a_projection_without_luck_at_a_new_centre_is_made_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = make(ESRM(3.0))
    (state, progress), run = start_of(problem, 1.0), make_run(1e-6)
    progress.schedule.note(1.0)
    state.predicted = 0.0  # the round is over
    density = state.dual.density.copy()  # type: ignore[attr-defined] # in memory

    def luckless(*args: Any) -> int:
        # The centre has moved and eta has grown, and there the projection fails.
        if args[15][PHASE] != EVALUATE:
            args[18][6] = density
            args[12][ETA] *= 10.0
            args[15][ROUNDS], args[15][PHASE], args[15][PREDICTED] = 1.0, EVALUATE, np.inf
        return small.FRESH_START

    monkeypatch.setattr(small, "walk", luckless)
    monkeypatch.setattr(DenseEngine, "settle", Engine.settle)
    walked = Newton()._walk(state, run, progress)
    assert walked is not None
    assert run.n_iter == 1
    assert run.passes == 0.0
    monkeypatch.undo()
    fresh = Engine.settle(problem.engine, walked.point, walked.center, walked.eta)
    assert walked.eta == 10.0
    np.testing.assert_allclose(60 * problem.engine.weights(walked.center), density, rtol=1e-14)
    assert walked.moved == pytest.approx(fresh.distance / (2.0 * walked.eta), rel=1e-9, abs=1e-12)
    assert walked.predicted == np.inf


def test_what_weights_have_to_gain() -> None:
    rng = np.random.default_rng(0)
    problem = make(ESRM(3.0), n=50)
    core = problem.engine._projector.core  # type: ignore[attr-defined] # in memory
    for _ in range(20):
        losses = rng.exponential(size=50)
        density = sorel.project_permutahedron(rng.standard_normal(50), core.mass)
        order = np.argsort(losses + 0.01 * rng.standard_normal(50)).astype(np.int32)
        gain = small_gain(losses, density, core.mass, order)
        assert gain == pytest.approx(core.shortfall(losses, density), abs=1e-12)
    # Too far from the order: what it tells, which is less.
    gain = small_gain(losses, density, core.mass, np.argsort(-losses).astype(np.int32))
    assert gain <= core.shortfall(losses, density)


def small_gain(losses: Any, density: Any, mass: Any, order: Any) -> float:
    key, room = np.empty(len(losses)), np.empty(len(losses), np.int32)
    return float(plain(small._gain_of_order)(losses, density, mass, order, key, room))


@pytest.mark.parametrize("tied", [2, 5, 30])
def test_what_tied_weights_have_to_gain(tied: int) -> None:
    rng = np.random.default_rng(tied)
    gain = plain(small._gain_of_ties)
    low, high = 0.0, 2.0
    losses = np.sort(rng.exponential(size=40))
    block = np.full(40, -1, np.int32)
    block[20 - tied // 2 : 20 - tied // 2 + tied] = 0
    density = np.where(np.arange(40) < 20, low, high)
    free = block >= 0
    density[free] = np.clip(1.0 + 0.3 * rng.standard_normal(tied), low, high)
    expected = 0.0
    rest = density[free].sum()
    for loss in losses[free][::-1]:
        share = min(rest, high)
        expected += share * loss
        rest -= share
    expected -= float(density[free] @ losses[free])
    assert gain(losses, density, block, low, high, np.empty(40)) == pytest.approx(expected)
    assert gain(losses, density, block, low, high, np.empty(tied - 1)) == 0.0
