"""The outer loop of the second-order methods: how eta goes ahead and back."""

from __future__ import annotations

import numpy as np
import pytest

import sorel
from sorel.solvers.augmented import EtaSchedule, Pace, State

PACE = Pace(first=4.0, warm=100.0, growth=10.0, easy=3, full=0.0, short=0.1)


def solved_in(schedule, steps, length=1.0):
    for _ in range(steps):
        schedule.note(length)
    return schedule.advance()


def test_eta_is_measured_in_the_spread_of_the_losses():
    for scale in (1e-6, 1.0, 1e6):
        assert EtaSchedule(PACE, scale, warm=False).eta == pytest.approx(4.0 / scale)
        assert EtaSchedule(PACE, scale, warm=True).eta == pytest.approx(100.0 / scale)


def test_easy_problems_make_eta_grow_up_to_a_limit():
    schedule = EtaSchedule(PACE, 1.0, warm=False)
    assert [solved_in(schedule, 2) for _ in range(3)] == [40.0, 400.0, 4000.0]
    for _ in range(20):
        eta = solved_in(schedule, 1)
    assert eta == pytest.approx(1e9)


def test_problems_that_are_neither_easy_nor_hard_leave_eta_alone():
    schedule = EtaSchedule(PACE, 1.0, warm=False)
    assert solved_in(schedule, PACE.easy + 1) == 4.0
    assert solved_in(schedule, 13) == pytest.approx(1.2)


def test_a_pace_may_ask_for_full_steps():
    careful = EtaSchedule(PACE._replace(full=1.0), 1.0, warm=False)
    assert solved_in(careful, 1, length=0.9) == 4.0
    assert solved_in(careful, 1) == 40.0


def test_steps_cut_short_again_and_again_send_eta_back():
    schedule = EtaSchedule(PACE, 1.0, warm=False)
    schedule.note(0.05)
    assert not schedule.stuck
    schedule.note(1.0)
    schedule.note(0.05)
    assert not schedule.stuck  # not twice in a row
    schedule.note(0.05)
    assert schedule.stuck
    assert schedule.retreat() == pytest.approx(1.2)
    assert schedule.steps == 0
    # It then grows more slowly, and picks up pace again.
    grown = [solved_in(schedule, 1) for _ in range(3)]
    factors = np.diff(np.log([1.2, *grown]))
    assert np.exp(factors[0]) == pytest.approx(3.0)
    assert factors[0] < factors[1] < factors[2] < np.log(10.0)


def test_too_many_steps_are_hopeless():
    schedule = EtaSchedule(PACE, 1.0, warm=False)
    for _ in range(39):
        schedule.note(1.0)
    assert not schedule.stuck
    schedule.note(1.0)
    assert schedule.stuck


@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_the_state_is_the_envelope_and_its_gradient(eta):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    problem = sorel.Problem(X, X @ np.ones(3) + rng.normal(size=30), risk=sorel.ESRM(2.0)).for_run()
    engine, w, h = problem.engine, rng.normal(size=3), 1e-6
    center = engine.worst_case(engine.point(np.zeros(3)))

    def value(u):
        return State(problem, engine.point(u), center, eta).value

    state = State(problem, engine.point(w), center, eta)
    gradient = state.gradient + problem.penalty.l2 * w
    for j in range(3):
        move = h * np.eye(3)[j]
        assert gradient[j] == pytest.approx((value(w + move) - value(w - move)) / (2 * h), rel=1e-6)
    assert state.moved >= 0.0
