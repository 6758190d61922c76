"""The sums behind a risk and a shortfall, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from sorel.permutahedron import values


def exact_shortfall(key, mass, density, weight, order):
    """The formula of the docstring in fractions."""
    own = [Fraction(float(density[i])) * Fraction(float(weight[i])) for i in order]
    surplus, total = Fraction(0), Fraction(0)
    for j in range(len(order)):
        surplus += own[j] - Fraction(float(mass[j]))
        if j + 1 < len(order):
            total += max(surplus, Fraction(0)) * (Fraction(key[j + 1]) - Fraction(key[j]))
    return float(total + max(-surplus * Fraction(key[-1]), Fraction(0)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e12])
def test_the_shortfall_of_a_weighting(weighted, size):
    rng = np.random.default_rng(0)
    for n in (1, 2, 30):
        losses = rng.standard_normal(n)
        order = np.argsort(losses)
        density, weight = rng.uniform(0.0, 2.0, n), np.ones(n)
        if weighted:
            weight = 2.0 ** rng.integers(-2, 3, n)  # products without rounding
        mass = (density * weight)[order]
        mass[: n // 2] -= 0.25
        mass[n // 2 :] += 0.25
        # A large number that comes and goes takes the digits of the rest from a plain sum.
        mass[0] -= size
        mass[-1] += size
        key = losses[order]
        got = values.ordered_shortfall(key, mass, density, weight if weighted else None, order)
        expected = exact_shortfall(key, mass, density, weight, order)
        assert got == pytest.approx(expected, rel=1e-14, abs=1e-13)


def test_a_running_sum_keeps_what_is_small_against_it():
    key = np.array([3.0, 3.0, 3.0, 3.0, 4.0])
    density = np.array([1e16, 1.0, 1.0, 0.0, 0.0])
    mass = np.array([0.0, 0.0, 0.0, 1e16, 2.0])
    got = values.ordered_shortfall(key, mass, density, None, np.arange(5))
    # After the fourth item 2 are left, which a plain sum has lost.
    assert got == 2.0
    short = values.ordered_shortfall(
        np.array([0.0, 1.0]), np.array([1e16, 1.0]), np.array([1e16, 0.5]), None, np.arange(2)
    )
    assert short == 0.5


def test_the_shortfall_of_two_levels():
    rng = np.random.default_rng(1)
    losses, density = rng.standard_normal(50), rng.uniform(0.2, 3.0, 50)
    losses[3] = 0.25
    got = values.level_shortfall(losses, density, 0.2, 3.0, 0.25)
    above, below = losses > 0.25, losses < 0.25
    expected = np.sum((3.0 - density[above]) * (losses[above] - 0.25))
    expected += np.sum((density[below] - 0.2) * (0.25 - losses[below]))
    assert got == pytest.approx(expected)
    # A density beyond the levels is not paid for.
    assert values.level_shortfall(np.array([1.0]), np.array([4.0]), 0.2, 3.0, 0.25) == 0.0


def test_sums_beside_an_edge():
    losses = np.array([1.0, 2.0, 2.0, 5.0, -1.0, 7.0])
    assert values.sums_beside(losses, 2.0) == (0.0, 2, 12.0, 2)


def test_levels_by_comparison_with_the_bend():
    losses = np.array([2.0, 1.0, 2.0, 3.0, 2.0, 0.0])
    out = np.empty(6)
    for bend, tied in ((2, [5.0, 9.0, 9.0]), (3, [1.0, 5.0, 9.0]), (4, [1.0, 1.0, 5.0])):
        values.fill_levels(losses, 1.0, 5.0, 9.0, bend, 2.0, out)
        np.testing.assert_array_equal(out[[0, 2, 4]], tied)
        np.testing.assert_array_equal(out[[1, 3, 5]], [1.0, 9.0, 1.0])
    values.scatter(np.array([10.0, 20.0, 30.0]), np.array([2, 0, 1]), out[:3])
    np.testing.assert_array_equal(out[:3], [20.0, 30.0, 10.0])


@pytest.mark.parametrize("n", [5, values._RUN, values._RUN + 1, 2 * values._RUN + 7])
def test_inner_products_in_runs(n):
    rng = np.random.default_rng(n)
    a, b = rng.standard_normal((2, n))
    assert values.dot(a, b) == pytest.approx(float(a @ b), rel=1e-11, abs=1e-11)
