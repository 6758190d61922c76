"""The searches for intercepts, on functions whose minimum is known: precise, and short."""

import numpy as np
import pytest

import sorel
from sorel.engines.intercepts import InterceptStatistics, best_shift, shift_slack, softmax_slack

PLACES = (-1e4, -300.0, -30.0, -0.3, 0.0, 1e-9, 3.0, 30.0, 1e6)
CURVES = {  # f' and f'' at the distance t from the root of f'
    "squared": lambda t: (t, 1.0),
    "exponential": lambda t: (np.expm1(t), np.exp(t)),
    "logistic": lambda t: (np.tanh(t), 1.0 - np.tanh(t) ** 2),
    "kinks": lambda t: (np.clip(10.0 * t, -1.0, 1.0), 10.0 * (abs(t) < 0.1)),
    "skew": lambda t: (min(t, 1e-3), float(t < 1e-3)),
}


class Counted:
    """Derivatives of a function of one shift, and how often they were asked for."""

    def __init__(self, derivatives, place=0.0):
        self.derivatives, self.place, self.calls = derivatives, place, 0

    def __call__(self, shift):
        self.calls += 1
        with np.errstate(over="ignore", invalid="ignore"):
            first, second = self.derivatives(shift - self.place)
            size = abs(first) + second * abs(shift)
        return InterceptStatistics(np.array([first]), np.array([[second]]), size, np.ones(1, bool))


@pytest.mark.parametrize("curve", CURVES)
def test_the_root_is_found_to_the_last_digits_in_few_steps(curve):
    for place in PLACES:
        statistics = Counted(CURVES[curve], place)
        assert best_shift(statistics, 1) == pytest.approx(place, rel=1e-14, abs=1e-15)
        assert statistics.calls <= 8 + 2 * np.log2(1.0 + abs(place))


def test_what_is_left_of_a_parabola_is_known_in_three_calls():
    for curvature in (1e-6, 1.0, 1e6):
        for residual in (1e-12, 1e-3):
            statistics = Counted(lambda t, c=curvature: (c * t, c))
            truth = residual**2 / (2.0 * curvature)
            assert truth <= shift_slack(statistics, residual) <= 10.0 * truth
            assert statistics.calls == 3
            two = np.array([[1.0, -1.0], [-1.0, 1.0]]) * curvature
            near = residual < 0.1 * curvature  # elsewhere nothing is known
            assert truth <= softmax_slack(two, residual) <= (2.0 * truth if near else np.inf)
    assert shift_slack(Counted(lambda t: (0.0, 0.0)), 1e-3) == np.inf
    assert best_shift(Counted(lambda t: (1.0, 0.0)), 1) is None


@pytest.mark.parametrize("classes", [3, 6])
@pytest.mark.parametrize("size", [0.0, 1.0, 10.0])
def test_classes_are_balanced_also_without_one_of_them(size, classes):
    for seed in range(5):
        rng, y = np.random.default_rng(seed), np.arange(60) % classes
        options = {"loss": "multinomial", "risk": "cvar:0.3", "fit_intercept": True}
        engine = sorel.Problem(rng.normal(size=(60, 2)), y, **options).engine
        lam = rng.uniform(1.0, 2.0, 60) * (y < classes - 1)
        dual = engine.nearest_dual(lam / lam.sum())[0]
        best = engine.best_intercept(engine.point(size * rng.normal(size=(3, classes))), dual)
        assert np.abs(engine.gradient(best, dual)[-1]).max() <= 1e-13
