"""The pieces of the minimisation under a budget: kinks, bounds, pairs and faces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sorel import budgeted
from sorel.penalties import Budget

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
    # The reference is not one that rests, however little its curvature.
    assert face(0.5, 1.0, 0.0, -0.5, 0.0) == ([3, 4], [0, -1])


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


def test_violations_are_measured_against_the_terms_of_a_slope(monkeypatch):
    rng = np.random.default_rng(2)
    M = rng.standard_normal((8, 5))
    H, gradient, w = M.T @ M, 3.0 * rng.standard_normal(5), rng.uniform(0.1, 0.4, 5)
    previous, cost, l2 = np.array([0.4, 0.1, 0.2, 0.3]), np.array([0.3, 0.0, 0.2, 0.1]), 0.7
    penalty = Budget(l2, 1.5, 0.05, 0.9, cost, previous)
    seen, own = [], budgeted._violation

    def violation(x, slope, *others):
        seen.append((x.copy(), slope.copy(), *others))
        return own(x, slope, *others)

    def shift(A, x, slope, cost, lower, upper, tolerance, n):
        np.testing.assert_allclose(tolerance, budgeted._TOLERANCE * seen[-1][-2], rtol=1e-14)
        shifted(A, x, slope, cost, lower, upper, tolerance, n)

    shifted = budgeted._shift_pairs
    monkeypatch.setattr(budgeted, "_violation", violation)
    monkeypatch.setattr(budgeted, "_shift_pairs", shift)
    found, info = budgeted.minimize_budget(H, gradient, w, penalty, 4)
    assert info.kkt <= 1e-13
    assert len(seen) > 1
    A, lead = H.copy(), np.arange(5) < 4
    A[lead, lead] += l2
    origin, costs = np.append(previous, 0.0), np.append(cost, 0.0)
    root = np.sqrt(np.diag(A))
    for x, slope, passed, lower, upper, size, n in seen:
        u = x + origin
        assert n == 4
        assert u[:4].sum() == pytest.approx(1.5, rel=1e-14)
        np.testing.assert_array_equal(passed, costs)
        np.testing.assert_allclose((lower + origin)[:4], 0.05)
        np.testing.assert_allclose((upper + origin)[:4], 0.9)
        np.testing.assert_allclose(slope, gradient + A @ (u - w) + l2 * lead * w, atol=1e-12)
        terms = root * (root @ np.maximum(np.abs(u - w), np.abs(u))) + l2 * lead * np.abs(u)
        np.testing.assert_allclose(size, np.abs(gradient) + costs + terms)
    np.testing.assert_array_equal(found, seen[-1][0] + origin)


@pytest.mark.parametrize(
    ("violations", "rounds"),
    [
        # Solved, or nearly solved and no better by half for four rounds.
        ([1e-3, budgeted._TOLERANCE, 1e-17], 2),
        ([1e-3, 1e-11, 0.9e-11, 0.8e-11, 0.7e-11, 0.6e-11, 1e-16], 6),
        ([1e-3, 1e-11, 1e-3, 1e-3, 1e-3, 1e-3, 1e-16], 6),
        ([1e-3, 1e-11, 1e-3, 1e-3, 0.4e-11, 1e-3, 1e-3, 1e-3, 1e-3, 1e-16], 9),
        ([1e-3, 0.9e-3, 0.8e-3, 0.7e-3, 0.6e-3, 0.55e-3, 0.52e-3, 1e-16], 8),
    ],
)
def test_rounds_end_when_solved_or_when_nearly_so_and_no_better(monkeypatch, violations, rounds):
    given, points = iter(violations), []

    def violation(x, *others):
        points.append(x.copy())
        return next(given)

    def elsewhere(A, x, *others):
        x[:2] += np.array([1.0, -1.0]) / 2.0 ** (len(points) + 3)
        return 2, 10.0 ** -len(points)

    monkeypatch.setattr(budgeted, "_violation", violation)
    monkeypatch.setattr(budgeted, "_shift_pairs", lambda *arguments: None)
    monkeypatch.setattr(budgeted, "_minimize_on_face", elsewhere)
    penalty = Budget(0.1, previous=np.array([0.25, 0.25, 0.5]))
    w = np.full(3, 1 / 3)
    found, info = budgeted.minimize_budget(np.eye(3), np.ones(3), w, penalty, 3)
    assert len(points) == rounds
    best = int(np.argmin(violations[:rounds]))
    np.testing.assert_allclose(found, points[best] + [0.25, 0.25, 0.5])
    assert info == (2 * (rounds - 1), violations[best], 0.1)


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_a_start_next_to_a_bound_or_a_kink_is_put_there(monkeypatch, size):
    starts = []

    def violation(x, *others):
        starts.append(x.copy())
        return 0.0

    monkeypatch.setattr(budgeted, "_violation", violation)
    previous = size * np.array([0.1, 0.2, 0.3, 0.15, 0.0])
    cost = np.array([0.0, 0.0, 0.5, 0.0, 0.5])
    lower, upper = size * np.array([[0.4, 0.0, 0.0, 0.0, 0.0], [1.0, 0.1, 1.0, 1.0, 1.0]])
    penalty = Budget(0.1, size, lower, upper, cost, previous)
    w = size * np.array([0.4, 0.1, 0.3, 0.15, 0.05])
    away = np.array([1.0, -1.0, 1.0, -1.0, 0.0])
    budgeted.minimize_budget(np.eye(5), np.ones(5), w + 4e-16 * size * away, penalty, 5)
    (x,) = starts
    np.testing.assert_array_equal(x[:3], [lower[0] - previous[0], upper[1] - previous[1], 0.0])
    # There is no kink without a cost.
    assert 0.0 < abs(x[3]) < 1e-15 * size
    np.testing.assert_allclose(x[4], 0.05 * size)
    budgeted.minimize_budget(np.eye(5), np.ones(5), w + 1e-11 * size * away, penalty, 5)
    far = starts[1] - [lower[0] - previous[0], upper[1] - previous[1], 0.0, 0.0, 0.05 * size]
    np.testing.assert_allclose(far, 1e-11 * size * away, rtol=1e-3, atol=1e-14 * size)


def test_weights_that_stand_where_they_stood_and_cost_nothing_are_free():
    rng = np.random.default_rng(4)
    M = rng.standard_normal((6, 4))
    H, gradient, w = M.T @ M, 0.1 * rng.standard_normal(4), np.full(4, 0.25)
    found = [
        budgeted.minimize_budget(H, gradient, w, Budget(0.1, previous=previous), 4)[0]
        for previous in (0.0, w)
    ]
    np.testing.assert_allclose(*found, atol=1e-14)
    assert np.abs(found[0] - w).max() > 1e-3


def test_a_step_is_bent_along_the_face():
    lower, upper, cost = np.full(5, -1.0), np.full(5, 2.0), np.array([0.1, 0.1, 0.0, 0.1, 0.1])
    x = np.array([0.5, -0.5, 0.5, 0.0, 0.7])
    step = np.array([-1.0, 1.0, -0.7, 0.3, 0.0])
    bent = budgeted._bend(x, step, cost, lower, upper, 1.1, 5)
    # To the kinks and no further, while what was at one or does not move rests.
    assert bent[0] >= 0.0
    assert bent[1] <= 0.0
    assert (bent[3], bent[4]) == (0.0, 0.7)
    assert bent.sum() == pytest.approx(1.1, rel=1e-14)
    # What is nearest to x + step among all of the face.
    grid = np.linspace(-1.0, 2.0, 301)
    a, b = np.meshgrid(grid[grid >= 0.0], grid[grid <= 0.0])
    c = 1.1 - 0.7 - a - b
    far = (a - x[0] - step[0]) ** 2 + (b - x[1] - step[1]) ** 2 + (c - x[2] - step[2]) ** 2
    least = far[(c >= -1.0) & (c <= 2.0)].min()
    assert np.sum((bent - x - step)[:3] ** 2) <= least + 1e-12


def test_the_reduced_system_of_a_face():
    rng = np.random.default_rng(3)
    M = rng.standard_normal((9, 5))
    A, slope = M.T @ M, rng.standard_normal(5)
    free, reference = np.array([0, 3, 4]), np.array([1, 1, -1])
    reduced, rhs = budgeted._reduce(A, slope, free, reference)
    # Columns: the moves of all coordinates that go with one of each free one.
    moves = np.zeros((5, 3))
    moves[free, range(3)] = 1.0
    moves[1, :2] = -1.0
    np.testing.assert_allclose(reduced, moves.T @ A @ moves)
    np.testing.assert_allclose(rhs, -moves.T @ slope)
    # Columns that agree have next to no curvature, and a little is left to them.
    equal = np.array([[2.0, 2.0], [2.0, 2.0]])
    reduced, _ = budgeted._reduce(equal, slope, np.array([0]), np.array([1]))
    assert reduced[0, 0] == budgeted._RIDGE * 4.0
    reduced, _ = budgeted._reduce(-equal, slope, np.array([0]), np.array([-1]))
    assert reduced[0, 0] == budgeted._RIDGE * 2.0


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_pair_of_weights_has_anything_to_gain(seed, intercept):
    """At the minimum no weight can go from one coordinate to another, and few solves lead there."""
    rng = np.random.default_rng(seed)
    d, p = 7, 7 + intercept
    M = rng.standard_normal((12, p))
    H, gradient, w = M.T @ M, 4.0 * rng.standard_normal(p), rng.uniform(0.0, 0.5, p)
    cost = rng.uniform(0.0, 2.0, d) * (rng.random(d) < 0.6)
    previous = rng.uniform(0.0, 0.4, d)
    penalty = Budget(0.3, 1.2, -0.2, rng.uniform(0.3, 0.9, d), cost, previous)
    u, info = budgeted.minimize_budget(H, gradient, w, penalty, d)
    x, lower, upper = u[:d], penalty.lower, penalty.upper
    assert x.sum() == pytest.approx(1.2, abs=1e-14)
    assert np.all((x >= lower - 1e-15) & (x <= upper + 1e-15))
    slope = gradient + H @ (u - w)
    slope[:d] += 0.3 * x
    near = np.abs(x - previous) <= 1e-14
    right = slope[:d] + np.where(near | (x > previous), cost, -cost)
    left = slope[:d] + np.where(near | (x < previous), -cost, cost)
    gain = left[x > lower + 1e-14].max() - right[x < upper - 1e-14].min()
    assert gain <= 1e-12 * np.abs(gradient).max()
    np.testing.assert_allclose(slope[d:], 0.0, atol=1e-12)
    assert info.kkt <= budgeted._TOLERANCE
    assert 1 <= info.n_iter <= 5
    assert info.shift == 0.0
    # From there nothing is left to do.
    again, info = budgeted.minimize_budget(H, gradient + H @ (u - w), u, penalty, d)
    np.testing.assert_allclose(again, u, atol=1e-13)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_refuses_what_is_not_finite(bad):
    arguments = [np.eye(3), np.ones(3), np.full(3, 1 / 3)]
    arguments[bad] = arguments[bad].copy()
    arguments[bad][..., 1] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        budgeted.minimize_budget(*arguments, Budget(0.1), 3)


def test_nothing_moves_where_everything_is_at_its_bound():
    u, info = budgeted.minimize_budget(
        np.eye(2), np.zeros(2), np.array([0.5, 0.5]), Budget(0.1, 1.0, 0.5, 0.5), 2
    )
    np.testing.assert_array_equal(u, [0.5, 0.5])
    assert (info.n_iter, info.kkt) == (0, 0.0)
    # Nothing to give, and nothing to take.
    slope, size = np.array([3.0, -2.0]), np.ones(2)
    for x in ([0.0, 0.0], [1.0, 1.0]):
        violation = budgeted._violation(
            np.array(x), slope, np.zeros(2), np.zeros(2), np.ones(2), size, 2
        )
        assert violation == 0.0
    # At their kinks both rest.
    cost = np.array([3.0, 3.0])
    assert budgeted._violation(np.zeros(2), slope, cost, -size, size, size, 2) == 0.0


def test_a_bent_step_keeps_to_the_side_of_its_kinks():
    """For each combination of side, cost and direction."""
    lower, upper, total = np.full(9, -3.0), np.full(9, 3.0), 0.0
    cost = np.array([0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.1, 0.0])
    x = np.array([0.5, 0.5, -0.5, -0.5, 0.5, -0.5, 0.0, 0.0, 0.0])
    step = np.array([0.9, -0.9, 0.9, -0.9, -0.9, 0.9, 0.4, 0.4, 0.0])
    bent = budgeted._bend(x, step, cost, lower, upper, total, 9)
    assert bent.sum() == pytest.approx(0.0, abs=1e-14)
    # One shift for all that is not held.
    shift = (bent - x - step)[0]
    np.testing.assert_allclose(bent[[0, 3, 4, 5, 6]], (x + step + shift)[[0, 3, 4, 5, 6]])
    np.testing.assert_array_equal(bent[[1, 2, 7, 8]], 0.0)


@pytest.mark.parametrize("tolerance", [1e-7, 0.05, 0.6])
@pytest.mark.parametrize("seed", range(6))
def test_weight_goes_where_it_promises_the_largest_decrease(seed, tolerance):
    """To the least derivative, from where the minimum along the piece they share is lowest."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((9, 6)) * 10.0 ** rng.uniform(-0.7, 0.3, 6)
    A, slope, cost = M.T @ M, 3.0 * rng.standard_normal(6), rng.choice([0.0, 0.4, 0.8], 6)
    lower, upper = rng.uniform(-1.5, -0.5, 6), rng.uniform(0.5, 1.5, 6)
    start = np.where(rng.random(6) < 0.3, lower, rng.uniform(-0.5, 0.5, 6))
    start[0], tolerances = 0.0, tolerance * rng.random(6)
    x, own = start.copy(), slope.copy()
    for _ in range(2 * 6):
        left = np.where(x > lower, own + np.where(x > 0.0, cost, -cost), -np.inf)
        right = np.where(x < upper, own + np.where(x >= 0.0, cost, -cost), np.inf)
        back = np.where((cost > 0.0) & (x > 0.0), np.minimum(x - lower, x), x - lower)
        ahead = np.where((cost > 0.0) & (x < 0.0), np.minimum(upper - x, -x), upper - x)
        to = np.argmin(right + tolerances)
        excess, reach = left - right[to], np.minimum(back, ahead[to])
        curvature = np.diag(A) + A[to, to] - 2.0 * A[to]
        with np.errstate(divide="ignore", invalid="ignore"):
            amount = np.fmin(reach, excess / curvature)
            decrease = amount * (excess - 0.5 * curvature * amount)
        decrease[(excess <= tolerances + tolerances[to]) | (np.arange(6) == to)] = 0.0
        source = np.argmax(decrease)
        if decrease[source] <= 0.0:
            break
        x[to] += amount[source]
        x[source] -= amount[source]
        # Exactly on its border, where it has come to one.
        for place in (lower, upper, np.where(cost > 0.0, 0.0, np.nan)):
            x = np.where(np.abs(x - place) < 1e-14, place, x)
        own += amount[source] * (A[to] - A[source])
    found, found_slope = start.copy(), slope.copy()
    budgeted._shift_pairs(A, found, found_slope, cost, lower, upper, tolerances, 6)
    np.testing.assert_allclose(found, x, atol=1e-12)
    np.testing.assert_allclose(found_slope, own, atol=1e-11)
