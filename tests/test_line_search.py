"""Where a line search looks next."""

import numpy as np
import pytest

import sorel
from sorel.solvers.line_search import MAX_TRIALS, next_length


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


@pytest.mark.parametrize("minimum", [3.0, 5.0])
def test_a_longer_step_ends_where_a_straight_derivative_vanishes(minimum: float) -> None:
    found = next_length(1.0, 1.0 - minimum, 0.0, -minimum, 1.0, np.inf, np.inf)
    assert found[0] == pytest.approx(minimum)


def test_lengths_stay_within_the_limit() -> None:
    t, low, _, high, _ = next_length(1.0, -1.0, 0.0, -1.0, 1.0, np.inf, 1.5)
    assert (t, low, high) == (1.5, 1.0, 1.5)


def test_steps_within_bounds_are_long_where_losses_are_linear() -> None:
    # A sample of little weight is far on the wrong side, where its loss has no curvature.
    X = np.array([[400.0, 0.0, 8.0], [-1500.0, 0.5, -0.5]])
    problem = sorel.Problem(
        X, [-1, 1], loss="logistic", penalty=sorel.Simplex(0.03), fit_intercept=True,
        sample_weight=[1e-3, 1.0],
    )  # fmt: skip
    assert sorel.solve(problem).converged
