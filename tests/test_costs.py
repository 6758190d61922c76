"""What steps cost, counted by hand; and which way is chosen because of it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from sorel import costs
from sorel.costs import StepCosts


def home(n=1000, d=50, outputs=1, entries=None, by_rows=True, preconditions=True, share=0.25):
    """What the counts ask of an engine."""
    return SimpleNamespace(
        n_samples=n,
        n_features=d,
        n_outputs=outputs,
        size=d * outputs,
        entries=n * d if entries is None else entries,
        solves_by_rows=by_rows,
        preconditions_classes=preconditions,
        effective_share=lambda: share,
    )


def test_a_product_goes_through_the_rows_twice():
    # Two operations for an entry of X, once for X v and once for X^T.
    few = StepCosts(home(100, 30), 40).product - StepCosts(home(100, 30), 30).product
    assert few == pytest.approx(4 * 10 * 30)
    sparse = StepCosts(home(100, 30, entries=500), 40).product
    assert StepCosts(home(100, 30), 40).product - sparse == pytest.approx(4 * 40 * (30 - 5))
    # From memory each operation takes longer; with several margins there are more of them.
    many = home(10**6, 30)
    per_row = StepCosts(many, 900_000).product - StepCosts(many, 800_000).product
    assert per_row == pytest.approx(costs._FROM_MEMORY * 4 * 100_000 * 30)
    classes = home(100, 30, outputs=3)
    several = StepCosts(classes, 40).product - StepCosts(classes, 30).product
    assert several == pytest.approx(4 * 10 * 30 * 3)


def test_a_matrix_takes_the_pairs_of_columns_of_each_row_and_a_factorisation():
    dense = home(1000, 60)
    one_more = StepCosts(dense, 501).matrix - StepCosts(dense, 500).matrix
    assert one_more == pytest.approx(costs._DENSE * 60**2)
    assert StepCosts(dense, 0).matrix == costs._DENSE * 60**3 + costs._FACTORISATION
    sparse = home(1000, 60, entries=4000)
    one_more = StepCosts(sparse, 501).matrix - StepCosts(sparse, 500).matrix
    assert one_more == pytest.approx(costs._SCATTERED * 4**2)


def test_more_rows_than_a_sample_needs_cost_nothing():
    engine = home(10**7, 200)
    sample = costs.sampled_rows(200)
    assert sample == 200 * costs.ROWS_PER_PARAMETER
    assert costs.sampled_rows(3) == costs.LEAST_ROWS
    most = StepCosts(engine, costs._WORTH_SAMPLING * sample)
    beyond = StepCosts(engine, costs._WORTH_SAMPLING * sample + 1)
    assert beyond.matrix == StepCosts(engine, sample).matrix < most.matrix
    assert most.matrix == pytest.approx(
        beyond.matrix + (costs._WORTH_SAMPLING - 1) * sample * costs._DENSE * 200**2
    )


def test_a_system_of_rows():
    engine = home(400, 5000)
    some = StepCosts(engine, 300)
    assert some.row_gram == costs._DENSE * 300**2 * 5000
    expected = costs._DENSE * 300**3 + 4 * some.product + costs._FACTORISATION
    assert some.by_rows == pytest.approx(expected)
    sparse = StepCosts(home(400, 5000, entries=4000), 300)
    assert sparse.row_gram == 300 * (costs._SCATTERED * 10**2 + 300)


@pytest.mark.parametrize(
    ("engine", "rows"),
    [(home(400, 5000, by_rows=False), 300), (home(400, 5000, outputs=2), 300),
     (home(10**5, 5000), costs.MAX_ROWS + 1)],
)  # fmt: skip
def test_where_no_rows_are_solved_with(engine, rows):
    step = StepCosts(engine, rows)
    assert step.row_gram == step.by_rows == math.inf
    assert not step.rows_are_cheaper
    assert step.products(3) == pytest.approx(3 * step.matrix / step.product)


def test_the_most_rows_that_are_solved_with():
    assert StepCosts(home(10**5, 50_000), costs.MAX_ROWS).by_rows < math.inf


def test_the_cheaper_matrix_counts():
    """The inner products of the rows are needed once, however many steps use them."""
    wide, long = StepCosts(home(200, 5000), 200), StepCosts(home(5000, 200), 5000)
    assert wide.rows_are_cheaper
    assert not long.rows_are_cheaper
    for steps in (1, 5):
        by_rows = (wide.row_gram + steps * wide.by_rows) / wide.product
        assert wide.products(steps) == pytest.approx(by_rows)
        assert long.products(steps) == pytest.approx(steps * long.matrix / long.product)
    # Used once, the inner products are part of the price.
    between = StepCosts(home(200, 5000), 200)
    between.row_gram = between.matrix - between.by_rows
    assert not between.rows_are_cheaper
    between.row_gram *= 0.999
    assert between.rows_are_cheaper


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [(home(10**5, 40, outputs=1), False), (home(10**5, 40, outputs=3), True),
     (home(10**5, 40, outputs=3, preconditions=False), False),
     (home(10**5, 30, outputs=2), False), (home(10, 40, outputs=3), False)],
)  # fmt: skip
def test_many_parameters_of_classes_and_many_rows_are_for_products(engine, chosen):
    assert costs.classes_by_products(engine) is chosen


def test_rows_that_carry_the_risk():
    assert costs.carrying_rows(home(1000, share=0.25)) == 250
