"""The step eta of the augmented Lagrangian: how it goes ahead and back."""

import numpy as np
import pytest

from sorel.solvers.schedule import EtaSchedule, Pace, next_damping

PACE = Pace(first=4.0, warm=100.0, growth=10.0, easy=3, full=0.0, short=0.1)


def solved_in(schedule, steps, length=1.0):
    for _ in range(steps):
        schedule.note(length)
    return schedule.advance()


def fresh(scale=1.0, warm=False, **changed):
    return EtaSchedule(PACE._replace(**changed), scale, warm=warm)


def test_how_easy_a_problem_was_decides_how_eta_goes_on():
    schedule = fresh()
    assert [solved_in(schedule, 2) for _ in range(3)] == [40.0, 400.0, 4000.0]
    for _ in range(20):
        eta = solved_in(schedule, 1)
    assert eta == pytest.approx(1e15, rel=0.2)
    assert schedule.capped
    schedule = fresh()
    assert solved_in(schedule, PACE.easy + 1) == 4.0
    assert solved_in(schedule, 13) == pytest.approx(1.2)
    assert solved_in(fresh(full=1.0), 1, length=0.9) == 4.0
    assert solved_in(fresh(full=1.0), 1) == 40.0
    schedule = EtaSchedule(Pace(np.inf, warm=np.inf), 2.0, warm=False)
    assert schedule.eta == solved_in(schedule, 1) == schedule.retreat() == np.inf


def test_a_far_better_fit_lifts_eta():
    schedule = fresh(scale=1e17)
    for scale in (1e3, 1e6):  # losses that grow again do not take it back
        schedule.rescale(scale)
        assert schedule.eta == pytest.approx(4e-3)


def test_steps_cut_short_again_and_again_send_eta_back():
    schedule = fresh()
    stuck = []
    for length in (0.05, 1.0, 0.05, 0.05):  # twice in a row
        schedule.note(length)
        stuck.append(schedule.stuck)
    assert stuck == [False, False, False, True]
    assert schedule.retreat() == pytest.approx(1.2)
    # It then grows more slowly, and picks up pace again.
    grown = [solved_in(schedule, 1) for _ in range(3)]
    factors = np.diff(np.log([1.2, *grown]))
    assert np.exp(factors[0]) == pytest.approx(3.0)
    assert factors[0] < factors[1] < factors[2] <= np.log(10.0) + 1e-12
    schedule = fresh()
    for step in range(1, 37):
        schedule.note(1.0)
        assert schedule.stuck is (step == 36)


def test_when_an_inner_problem_is_solved():
    schedule = fresh()
    assert not schedule.is_solved(1.0, 0.0, 1.0, 0.0, noise=0.0)  # no step was taken
    schedule.note(1.0)
    assert schedule.is_solved(2.0, 2.0, 1.0, 0.0, noise=0.0)
    assert not schedule.is_solved(2.0, 2.1, 1.0, 0.0, noise=0.0)
    assert schedule.is_solved(2.0, 2.1, 1.0, 0.0, noise=2.2)
    # A step that was cut short or damped leaves work.
    for length, damping in ((0.05, 0.0), (1.0, 1.0)):
        assert not schedule.is_solved(2.0, 0.3, length, damping, noise=0.0)
        assert schedule.is_solved(2.0, 0.15, length, damping, noise=0.0)


def test_eta_from_weights_nearby_grows_faster_and_faster():
    schedule = EtaSchedule(Pace(first=4.0, warm=100.0, growth=10.0), 1.0, warm=True)
    etas = [schedule.eta, *(solved_in(schedule, 1) for _ in range(8))]
    factors = np.diff(np.log(etas))
    assert etas[:2] == [100.0, 200.0]
    assert np.all(np.diff(factors) >= -1e-12)
    assert factors[-1] == pytest.approx(np.log(10.0))


@pytest.mark.parametrize("scale", [1e-6, 7.0, 1e6])
@pytest.mark.parametrize("warm", [False, True])
def test_a_schedule_does_not_depend_on_the_units_of_the_losses(scale, warm):
    """In units of 1 / scale every schedule goes the same way, its end included."""
    ours, plain = fresh(scale, warm), fresh(1.0, warm)
    assert ours.eta * scale == pytest.approx(100.0 if warm else 4.0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        length = float(rng.choice([1.0, 1.0, 1.0, 1.0, 0.01]))
        for schedule in (ours, plain):
            schedule.note(length)
        assert ours.stuck is plain.stuck
        if ours.stuck:
            assert ours.retreat() * scale == pytest.approx(plain.retreat(), rel=1e-12)
        elif rng.random() < 0.8:
            assert ours.advance() * scale == pytest.approx(plain.advance(), rel=1e-12)
        assert ours.capped is plain.capped or plain.eta >= 0.99e15
    # Where the spread has shrunk, eta may go further, and never less far.
    eta = ours.eta
    ours.rescale(scale / 100.0)
    assert ours.eta == max(eta, PACE.first * 100.0 / scale)
    ours.rescale(100.0 * scale)
    for _ in range(100):
        solved_in(ours, 1)
    assert ours.eta == pytest.approx(1e15 * 100.0 / scale, rel=0.2)


def test_damping_comes_at_once_and_goes_step_by_step():
    assert next_damping(0.0, short=True) == next_damping(0.3, short=True) == 1.0
    assert next_damping(0.0, short=False) == 0.0
    assert next_damping(0.5, short=False) == pytest.approx(0.05)
    assert next_damping(1e-4, short=False) == 0.0
