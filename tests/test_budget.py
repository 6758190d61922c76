"""The budget penalty against a conic solver, and its formulas by hand."""

import numpy as np
import pytest
from helpers import conic_solve

from sorel import Budget, Simplex
from sorel.models.quadratic import minimize_quadratic
from sorel.penalties import check_penalty


def random_budget(seed, bounded=False):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 8))
    lower = rng.choice([0.0, -1.0, -0.2], d)
    upper = lower + rng.choice([0.5, 1.0, 3.0, np.inf], d)
    l2 = float(rng.choice([0.0, 1e-3, 1.0]))
    if seed % 5 == 0 and not bounded:
        lower, l2 = np.full(d, -np.inf), max(l2, 1e-3)
        upper = np.full(d, np.inf) if seed % 10 else rng.uniform(0.0, 1.0, d)
    low = np.where(np.isinf(lower), -2.0, lower)
    high = np.where(np.isinf(upper), np.maximum(low, 0.0) + 2.0, upper)
    budget = float((low + (high - low) * rng.uniform(0.0, 1.0, d)).sum())
    cost = rng.choice([0.0, 0.1, 1.0], d) * (seed % 2)
    return Budget(l2, budget, lower, upper, cost, rng.choice([0.0, 0.2, -0.3, 2.0], d)), d, rng


@pytest.mark.parametrize("seed", range(60))
def test_prox_and_conjugate_of_a_conic_solver(seed):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    penalty, d, rng = random_budget(seed)
    check_penalty(penalty, (d,))
    v, step = rng.normal(size=d) * rng.choice([0.1, 1.0, 10.0]), float(rng.choice([0.1, 1.0, 10.0]))
    x = cp.Variable(d)
    limits = [cp.sum(x) == penalty.budget]
    limits += [x[j] >= penalty.lower[j] for j in range(d) if np.isfinite(penalty.lower[j])]
    limits += [x[j] <= penalty.upper[j] for j in range(d) if np.isfinite(penalty.upper[j])]
    g = 0.5 * penalty.l2 * cp.sum_squares(x) + penalty.cost @ cp.abs(x - penalty.previous)
    u = penalty.prox(v, step)
    least = conic_solve(g + cp.sum_squares(x - v) / (2.0 * step), limits)
    value = penalty.value(u) + (u - v) @ (u - v) / (2.0 * step)
    assert value == pytest.approx(least, rel=1e-7, abs=1e-7)
    assert penalty.conjugate(v) == pytest.approx(
        -conic_solve(g - v @ x, limits), rel=1e-6, abs=1e-6
    )
    best = penalty.conjugate_gradient(v)
    assert v @ best - penalty.value(best) == pytest.approx(penalty.conjugate(v), abs=1e-10)


def test_several_columns_and_the_simplex():
    rng = np.random.default_rng(0)
    v = rng.normal(size=(4, 3))
    budget, simplex = Budget(0.5), Simplex(0.5)
    np.testing.assert_allclose(budget.prox(v, 0.3), simplex.prox(v, 0.3), atol=1e-14)
    assert budget.conjugate(v) == pytest.approx(simplex.conjugate(v))
    w = simplex.project(rng.normal(size=(4, 3)))
    assert budget.fenchel_young(w, v) == pytest.approx(simplex.fenchel_young(w, v))
    assert budget.value(w) == pytest.approx(simplex.value(w))
    M = rng.normal(size=(20, 15))
    model = M.T @ M, rng.normal(size=15), np.append(w.ravel(), np.zeros(3))
    expected, _ = minimize_quadratic(*model, simplex, 12, 3)
    np.testing.assert_allclose(minimize_quadratic(*model, budget, 12, 3)[0], expected, atol=1e-12)


def test_sums_are_right_for_arguments_that_are_far_larger():
    rng = np.random.default_rng(3)
    for size in (1.0, 1e6, 1e12, 1e15):
        for penalty in (Budget(0.5), Budget(lower=-0.3, upper=0.6, cost=0.1, previous=0.25)):
            w = penalty.prox(size * rng.normal(size=6) + size, 1.0)
            assert abs(w.sum() - 1.0) <= 4e-15 * (1.0 + np.abs(w).sum())
            assert penalty.value(w) < np.inf


def test_weights_rounded_beside_the_previous_ones_stand_there():
    """At a kink both sides cost; a weight that is off by an ulp has not left it."""
    previous = np.array([0.1, 0.3, 0.6])
    penalty = Budget(0.0, cost=[1.0, 2.0, 3.0], previous=previous)
    delta = np.array([1.0, 1.0, -2.0])
    for ulps, slope in ((0, 9.0), (3, 9.0), (-3, 9.0), (1000, 9.0), (-1000, 7.0)):
        w = previous.copy()
        w[0] += ulps * 2.0**-56
        assert penalty.directional_derivative(w, delta) == pytest.approx(slope)


@pytest.mark.parametrize("seed", range(30))
def test_bounds_that_follow_from_others_are_attained(seed):
    """The least and the most of each weight, by linear programs over all others."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 6))
    lower = rng.choice([-np.inf, -1.0, 0.0, 0.3], d, p=[0.2, 0.2, 0.4, 0.2])
    upper = np.maximum(lower, 0.0) + rng.choice([0.2, 1.0, np.inf], d)
    budget = float(rng.uniform(-1.0, 2.0))
    budget = float(np.clip(budget, lower.sum(), upper.sum()))
    penalty = Budget(1.0, budget, lower, upper)
    found = penalty.bounds(d)
    for j in range(d):
        others = np.arange(d) != j
        assert found[0][j] == pytest.approx(max(lower[j], budget - upper[others].sum()), abs=1e-12)
        assert found[1][j] == pytest.approx(min(upper[j], budget - lower[others].sum()), abs=1e-12)
    assert penalty.compact == np.isfinite(found).all()


@pytest.mark.parametrize(("settings", "words"), [
    ({"l2": -1.0}, "l2 must be a finite number >= 0"),
    ({"lower": -np.inf}, "l2 is 0 and the weights are unbounded"),
    ({"lower": [0.6, 0.6]}, "lower bounds of 2 weights add up to 1.2, above the budget of 1"),
    ({"upper": [0.1, 0.1]}, "upper bounds of 2 weights add up to 0.2, below the budget of 1"),
    ({"lower": [0.0, 0.5], "upper": [1.0, 0.25]}, "lower=0.5 and upper=0.25 at index 1"),
    ({"cost": [-1.0, 0.0]}, "cost must be at least 0, got -1"),
    ({"cost": [0.0, 0.0], "previous": [0.0] * 3}, "lengths"),
    ({"previous": [np.nan, 0.0]}, "previous must not contain nan"),
    ({"upper": [1.0, np.nan, 1.0]}, r"upper must not contain nan \(index 1\)"),
    ({"budget": np.inf}, "budget must be a finite number"),
    ({"lower": [0.0, np.inf]}, "a real number between them.*at index 1"),
    ({"upper": [1.0, -np.inf], "lower": -np.inf}, "a real number between them.*at index 1"),
])  # fmt: skip
def test_what_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Budget(**settings)


def test_bounds_that_leave_one_point_or_none_up_to_rounding():
    thirds, millions = np.full(3, 1.0 / 3.0), np.full(3, 1e6)
    assert Budget(lower=thirds, upper=thirds).value(thirds) == 0.0
    assert Budget(budget=3e6, lower=1e6 * (1.0 + 1e-13), upper=2e6).bounds(3)[0][0] >= 1e6
    with pytest.raises(ValueError, match=r"add up to 3e.06, above the budget of 3e.06"):
        Budget(budget=3e6, lower=1e6 * (1.0 + 1e-11)).value(millions)
    with pytest.raises(ValueError, match=r"add up to 3e.06, below the budget of 3e.06"):
        Budget(budget=3e6, upper=1e6 * (1.0 - 1e-11)).value(millions)
    with pytest.raises(ValueError, match="upper has 2 entries, but there are 3 coefficients"):
        Budget(upper=[1.0, 1.0]).value(thirds)
    # So far beside the domain is rounding, and no further.
    assert np.isfinite(Budget(0.1, 3e6, -np.inf).value(millions + np.array([1e-6, 0, 0])))
    assert Budget(0.1, 3e6, -np.inf).value(millions + np.array([1e-5, 0, 0])) == np.inf
