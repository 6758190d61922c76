"""Quadratic models with bounds, kinks and sums: optimality, known answers, degenerate cases."""

import numpy as np
import pytest

from sorel import Budget
from sorel.models import Model, minimize
from sorel.models.quadratic import minimize_quadratic


def value(model, x):
    move = x - model.w
    kinks = model.cost @ np.abs(x - model.kink)
    return model.slope @ move + 0.5 * move @ model.A @ move + kinks


def random_model(seed):
    """Bounds, kinks and one or two rows; curvature may be singular, and bounds may coincide."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(3, 40))
    M = rng.standard_normal((int(rng.integers(2, 2 * p)), p))
    lower = np.where(rng.random(p) < 0.2, -1.0, 0.0)
    upper = lower + rng.uniform(0.2, 1.0, p) * (rng.random(p) < 0.9)
    rows = np.ones((1, p)) if seed % 2 else rng.uniform(0.5, 2.0, (2, p))
    start = rng.uniform(lower, upper)
    return Model(
        A=M.T @ M + 1e-6 * np.eye(p), slope=5.0 * rng.standard_normal(p), w=start.copy(),
        kink=np.clip(rng.uniform(0.0, 0.5, p), lower, upper), cost=rng.uniform(0.0, 1.0, p),
        lower=lower, upper=upper, rows=rows, sums=rows @ start,
    ), start  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_no_feasible_point_nearby_is_better(seed):
    model, start = random_model(seed)
    found = minimize(model, start)
    x = found.x
    assert found.kkt <= 1e-10
    assert np.all(x >= model.lower)
    assert np.all(x <= model.upper)
    np.testing.assert_allclose(model.rows @ x, model.sums, rtol=1e-12, atol=1e-12)
    best = value(model, x)
    assert best <= value(model, start) + 1e-12 * abs(best)
    # Convexity: if no feasible direction leads down, the point is the minimiser.
    rng = np.random.default_rng(seed)
    null = np.linalg.svd(model.rows)[2][len(model.rows) :]
    for _ in range(50):
        direction = null.T @ rng.standard_normal(len(null))
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(direction > 0.0, model.upper - x, x - model.lower) / np.abs(direction)
        reach = float(np.min(room, initial=1.0))
        if reach > 0.0:
            there = x + 0.5 * reach * direction
            assert value(model, there) >= best - 1e-9 * max(1.0, abs(best))


@pytest.mark.parametrize("seed", range(10))
def test_a_budget_with_costs(seed):
    """Kinks inside the bounds, an intercept beside; from the minimiser nothing is left to do."""
    rng = np.random.default_rng(seed)
    d, p = 60, 61
    M = rng.standard_normal((30, p))
    H, gradient, w = M.T @ M, 4.0 * rng.standard_normal(p), rng.uniform(0.0, 0.5, p)
    cost = rng.uniform(0.0, 2.0, d) * (rng.random(d) < 0.6)
    penalty = Budget(0.3, 1.2, -0.2, rng.uniform(0.3, 0.9, d), cost, rng.uniform(0.0, 0.4, d))
    u, info = minimize_quadratic(H, gradient, w, penalty, d)
    assert u[:d].sum() == pytest.approx(1.2, abs=1e-13)
    assert info.kkt <= 1e-12
    again, _ = minimize_quadratic(H, gradient + H @ (u - w), u, penalty, d)
    np.testing.assert_allclose(again, u, atol=1e-12)


def test_nothing_moves_where_everything_is_at_its_bound():
    w = np.array([0.5, 0.5])
    u, info = minimize_quadratic(np.eye(2), np.zeros(2), w, Budget(0.1, 1.0, 0.5, 0.5), 2)
    np.testing.assert_array_equal(u, w)
    assert info.kkt <= 1e-15


@pytest.mark.parametrize("rest", [1e-3, 1e-6, 1e-9])
def test_a_weight_that_is_nearly_zero_makes_up_the_sum(rest):
    gradient = np.array([1.0, 3.0, 2.0, 1.1])
    penalty = Budget(0.0, upper=[1.0 - rest, 1.0, 1.0, 1.0])
    u, _ = minimize_quadratic(np.zeros((4, 4)), gradient, np.full(4, 0.25), penalty, 4)
    np.testing.assert_allclose(u, [1.0 - rest, 0.0, 0.0, rest], atol=1e-9)
    assert u.sum() == pytest.approx(1.0, abs=1e-15)
