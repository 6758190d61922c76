"""The pieces of the minimisation under a budget: kinks, bounds, pairs and faces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sorel import budgeted

LOWER, UPPER = np.array([-1.0, -1.0, 0.0, -2.0]), np.array([2.0, 1.0, 3.0, 0.0])
COST = np.array([0.3, 0.0, 0.2, 0.1])


def sides(x, slope):
    return [budgeted._sides(j, x, slope, COST, LOWER, UPPER) for j in range(len(x))]


@pytest.mark.parametrize("places", list(itertools.product([0, 1, 2], repeat=4)))
def test_derivatives_to_either_side(places):
    # Each coordinate at its lower bound, at 0 or inside, at its upper bound.
    choices = np.array([LOWER, [0.0, 0.25, 0.5, -0.5], UPPER])
    x = choices[list(places), range(4)]
    slope = np.array([0.7, -0.2, 0.1, -0.4])
    h = 1e-6
    for j, (left, right, back, ahead) in enumerate(sides(x, slope)):

        def value(t, j=j):
            return slope[j] * t + COST[j] * abs(t)

        kink = 0.0 if COST[j] > 0.0 else np.inf
        if x[j] > LOWER[j]:
            assert left == pytest.approx((value(x[j]) - value(x[j] - h)) / h, abs=1e-8)
            assert back == x[j] - max(LOWER[j], kink if kink < x[j] else -np.inf)
        else:
            assert (left, back) == (-np.inf, 0.0)
        if x[j] < UPPER[j]:
            assert right == pytest.approx((value(x[j] + h) - value(x[j])) / h, abs=1e-8)
            assert ahead == min(UPPER[j], kink if kink > x[j] else np.inf) - x[j]
        else:
            assert (right, ahead) == (np.inf, 0.0)


def test_the_violation_is_that_of_the_best_pair_or_of_a_free_coordinate():
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.choice([-1.0, 0.0, 0.5, 1.0], 5)
        x[:4] = np.clip(x[:4], LOWER, UPPER)
        slope, size = rng.standard_normal(5), rng.uniform(1.0, 2.0, 5)
        found = [budgeted._sides(j, x, slope, COST, LOWER, UPPER) for j in range(4)]
        give = max(range(4), key=lambda j: found[j][0])
        take = min(range(4), key=lambda j: found[j][1])
        pair = (found[give][0] - found[take][1]) / (size[give] + size[take])
        expected = max(pair, abs(slope[4]) / size[4], 0.0)
        for scale in (1.0, 1e-3):  # the free coordinate with a part in it, and without
            slope[4] *= scale
            expected = max(pair, abs(slope[4]) / size[4], 0.0)
            got = budgeted._violation(x, slope, COST, LOWER, UPPER, size, 4)
            assert got == pytest.approx(expected)


def test_the_rounding_of_a_sum_goes_where_there_is_room():
    x = np.array([1.75, -0.25, 0.25, -1.25])
    for total, moved in ((x.sum() + 1e-9, True), (x.sum() - 1e-9, True), (x.sum() + 1.0, False)):
        y = x.copy()
        budgeted._restore_sum(y, LOWER, UPPER, COST, total, 4)
        if moved:
            # 0.25 to the upper bound, 0.75 to the lower one, 0.25 to the kink, 0.75 to the bound.
            np.testing.assert_array_equal(y[[0, 2, 3]], x[[0, 2, 3]])
            assert y.sum() == pytest.approx(total, abs=1e-15)
        else:
            np.testing.assert_array_equal(y, x)
    # A kink counts as a border, and what is at a border stays there.
    y = np.array([0.0, 1.0, 0.5, -0.1])
    budgeted._restore_sum(y, LOWER, UPPER, COST, y.sum() + 0.01, 4)
    np.testing.assert_allclose(y, [0.0, 1.0, 0.51, -0.1])


@pytest.mark.parametrize(
    ("x", "sign", "cost", "bound", "expected"),
    [
        (-0.5, 1.0, 0.1, 2.0, 0.0),
        (-0.5, 1.0, 0.0, 2.0, 2.0),
        (-0.5, 1.0, 0.1, -0.2, -0.2),
        (-0.5, 1.0, 0.1, 0.0, 0.0),
        (0.0, 1.0, 0.1, 2.0, 2.0),
        (0.5, 1.0, 0.1, 2.0, 2.0),
        (0.5, -1.0, 0.1, -2.0, 0.0),
        (0.5, -1.0, 0.1, 0.2, 0.2),
        (-0.5, -1.0, 0.1, -2.0, -2.0),
    ],
)
def test_the_next_kink_or_bound(x, sign, cost, bound, expected):
    assert budgeted._landing(x, sign, cost, bound) == expected


def test_the_free_coordinates_of_a_face():
    A = np.diag([4.0, 3.0, 2.0, 5.0, 1.0])
    bounds = np.r_[LOWER, -np.inf], np.r_[UPPER, np.inf]
    cost = np.r_[COST, 0.0]

    def face(*x):
        free, reference = budgeted._face(np.array(x), cost, *bounds, A, 4)
        return free.tolist(), reference.tolist()

    assert face(0.5, 0.5, 0.5, -0.5, 0.0) == ([0, 1, 3, 4], [2, 2, 2, -1])
    # At a kink or a bound, but 0 is no kink without a cost.
    assert face(0.0, 0.0, 0.0, -0.5, 0.0) == ([3, 4], [1, -1])
    assert face(2.0, -1.0, 3.0, -2.0, 1.0) == ([4], [-1])
    assert face(2.0, 1.0, 0.5, -2.0, 1.0) == ([4], [-1])


def value(A, b, x):
    return 0.5 * x @ A @ x + b @ x + COST @ np.abs(x[:4])


def test_shifts_of_pairs_lower_the_objective_and_keep_what_must_be_kept():
    rng = np.random.default_rng(1)
    for _ in range(10):
        M = rng.standard_normal((7, 5))
        A, b = M.T @ M, 3.0 * rng.standard_normal(5)
        x = np.array([0.0, 1.0, 0.5, -1.0, 0.2])
        lower, upper = np.r_[LOWER, -np.inf], np.r_[UPPER, np.inf]
        cost, tolerance = np.r_[COST, 0.0], np.full(5, 1e-14)
        before = value(A, b, x)
        y, slope = x.copy(), b + A @ x
        budgeted._shift_pairs(A, y, slope, cost, lower, upper, tolerance, 4)
        assert value(A, b, y) < before
        assert y[:4].sum() == pytest.approx(x[:4].sum(), abs=1e-12)
        assert np.all((y[:4] >= LOWER) & (y[:4] <= UPPER))
        np.testing.assert_allclose(slope, b + A @ y, atol=1e-11)
        # The free coordinate is at its minimum, once the others rest.
        assert abs(slope[4]) < 1e-11 * np.abs(b).max()


@pytest.mark.parametrize("b", [(-0.2, 0.2), (-0.05, 0.3), (-3.0, 3.0), (0.4, -0.7), (0.0, 0.01)])
def test_a_pair_is_minimised_exactly_in_a_piece(b):
    A = np.array([[2.0, 0.3], [0.3, 1.0]])
    lower, upper, cost = np.array([-1.0, -1.0]), np.array([1.0, 1.0]), np.array([0.1, 0.05])
    x = np.array([0.25, 0.25])
    b = np.array(b)

    def along(t):
        y = np.array([0.25 + t, 0.25 - t])
        return 0.5 * y @ A @ y + b @ y + cost @ np.abs(y)

    y, slope = x.copy(), b + A @ x
    budgeted._shift_pairs(A, y, slope, cost, lower, upper, np.zeros(2), 2)
    grid = np.linspace(-1.25, 1.25, 200_001)
    grid = grid[(np.abs(0.25 + grid) <= 1.0) & (np.abs(0.25 - grid) <= 1.0)]
    best = grid[np.argmin([along(t) for t in grid[::100]]) * 100]
    # As many shifts as there are coordinates cross both kinks.
    assert along(y[0] - 0.25) <= along(best) + 1e-9
    assert y.sum() == pytest.approx(0.5)
