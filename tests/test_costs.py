"""What steps cost, counted from shapes."""

import math

import numpy as np
import pytest
import scipy.sparse

from sorel import Problem
from sorel.engines.row_gram import MAX_ROWS
from sorel.models.costs import (
    StepCosts,
    carrying_rows,
    certifying_products,
    classes_by_products,
    sampled_rows,
)


def engine(n, d, classes=1, density=None, risk="cvar:0.25"):
    X = np.zeros((n, d), np.float32)
    if density is not None:
        X = scipy.sparse.random(n, d, density, format="csr", random_state=0)
    y = np.arange(n) % classes if classes > 1 else np.ones(n)
    return Problem(X, y, risk=risk, loss="multinomial" if classes > 1 else "squared").engine


def test_the_cheaper_matrix_counts():
    """The inner products of the rows are needed once, however many steps use them."""
    wide, long = StepCosts(engine(200, 5000), 200), StepCosts(engine(5000, 200), 5000)
    assert wide.rows_are_cheaper
    assert not long.rows_are_cheaper
    for steps in (1, 5):
        by_rows = (wide.row_gram + steps * wide.by_rows) / wide.product
        assert wide.products(steps) == pytest.approx(by_rows)
        assert long.products(steps) == pytest.approx(steps * long.matrix / long.product)


def test_more_rows_than_a_sample_needs_cost_nothing():
    assert sampled_rows(200) > sampled_rows(3) == sampled_rows(1)
    home = engine(60_000, 20)
    assert StepCosts(home, 60_000).matrix == StepCosts(home, 40_000).matrix
    assert StepCosts(home, 30_000).matrix > StepCosts(home, 15_000).matrix


def test_a_certificate_has_a_matrix_of_all_rows():
    """Twice the rows double the cost of the matrix and that of a product."""
    few, many = (certifying_products(engine(n, 100, risk="mean")) for n in (100_000, 200_000))
    assert few == pytest.approx(many, rel=0.02)
    assert few == pytest.approx(0.5 * 100**2 / (4 * 100), rel=0.05)


def test_where_no_rows_are_solved_with():
    for home, rows in ((engine(90, 5000, classes=3), 90), (engine(9000, 60), MAX_ROWS + 1)):
        costs = StepCosts(home, rows)
        assert costs.row_gram == costs.by_rows == math.inf
        assert not costs.rows_are_cheaper


def test_classes_of_many_parameters_are_for_products():
    assert classes_by_products(engine(10_000, 60, classes=3))
    assert not classes_by_products(engine(100, 40, classes=3))
    assert not classes_by_products(engine(10_000, 40))
    assert not classes_by_products(engine(10_000, 15, classes=4))


def test_rows_that_carry_the_risk():
    assert carrying_rows(engine(1000, 2)) == pytest.approx(250.0)
    assert carrying_rows(engine(1000, 2, risk="mean")) == pytest.approx(1000.0)


@pytest.mark.parametrize("density", [None, 0.02])
def test_costs_are_numbers_of_operations(density):
    """Two flops for each entry, there and back; Gram matrices and factors by their sizes."""
    n, d, rows = 300, 200, 40
    home = engine(n, d, density=density)
    none, costs, length = StepCosts(home, 0), StepCosts(home, rows), home.entries / n
    call, dense = none.product, (none.matrix - none.product) / d**3
    assert costs.product - call == pytest.approx(4 * rows * length)
    pairs = (costs.matrix - none.matrix) / rows
    if density is None:
        assert (pairs, costs.row_gram) == pytest.approx((dense * d**2, dense * rows**2 * length))
    else:
        assert costs.row_gram == pytest.approx(rows * (pairs + rows))
        assert pairs / length**2 > dense  # sparse rows are slower with each other
        twice = StepCosts(engine(n, d, density=2 * density), rows)
        assert twice.matrix == pytest.approx(none.matrix + 4 * rows * pairs)
    assert costs.by_rows == pytest.approx(dense * rows**3 + 4 * costs.product + call)
    several = StepCosts(engine(n, d, classes=3, density=density), rows)
    assert several.product - call == pytest.approx(3 * (costs.product - call))
