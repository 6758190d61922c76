"""Orders that are kept: repaired where little has moved, sorted anew where much has."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sorel._lib.pool import Pool
from sorel.permutahedron.ordering import Order, index_type, repair


def test_items_are_numbered_by_as_few_bytes_as_they_need():
    assert index_type(2**31 - 1) is np.int32
    assert index_type(2**31) is np.int64


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_a_repair_ends_where_its_budget_does(index):
    """A tenth of the budget is there at once, and a share of the rest with each of ten items."""

    def repaired(values, budget):
        order, key = np.arange(len(values), dtype=index), np.empty(len(values))
        whole = repair(values, order, key, budget)
        assert sorted(order) == list(range(len(values)))
        if whole:
            assert_array_equal(order, np.argsort(values, kind="stable"))
            assert_array_equal(key, np.sort(values))
        return whole

    late = np.append(np.arange(1.0, 10.0), 0.0)  # ten moves for the last item: 0.91 of the budget
    assert [repaired(late, budget) for budget in (10, 11)] == [False, True]
    early = np.array([1.0, 0.0, *range(2, 10)])  # two moves for the second: 0.19 of the budget
    assert [repaired(early, budget) for budget in (10, 11)] == [False, True]
    assert repaired(np.arange(10.0), 0)
    assert repaired(np.zeros(10), 0)
    assert repaired(np.arange(10.0)[::-1].copy(), 1000)


def test_ties_are_put_in_the_order_of_their_numbers():
    values = np.array([1.0, 0.0, 1.0, 0.0])
    for start in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]):
        order, key = np.array(start, dtype=np.int32), np.empty(4)
        assert repair(values, order, key, 100)
        assert_array_equal(order, [1, 3, 0, 2])
        assert_array_equal(key, [0.0, 0.0, 1.0, 1.0])


def sorts(keep, *arguments):
    """How often an update sorts anew; its result is checked."""
    with mock.patch.object(Order, "sort", autospec=True, side_effect=Order.sort) as sort:
        keep.update(*arguments)
    assert_array_equal(keep.order, np.argsort(arguments[0], kind="stable"))
    assert_array_equal(keep.key, np.sort(arguments[0]))
    return sort.call_count


def test_an_order_is_sorted_anew_only_where_none_is_near():
    rng = np.random.default_rng(2)
    values = rng.standard_normal(400)
    near, far = values + 1e-3 * rng.standard_normal(400), rng.standard_normal(400)
    keep, other, unknown = Order(400, Pool()), Order(400, Pool()), Order(400, Pool())
    assert sorts(keep, values) == 1
    assert sorts(keep, near) == 0
    assert sorts(keep, far) == 1
    assert sorts(other, far + 1e-3 * rng.standard_normal(400), keep) == 0  # from a hint
    assert sorts(other, near, keep) == 1  # from a hint that is no better
    assert sorts(keep, values, keep) == 1
    assert sorts(keep, far, unknown) == 1


TINY = np.finfo(float).smallest_subnormal


@pytest.mark.parametrize("n", [1, 100, 1499, 1500, 5001, 70_000])
@pytest.mark.parametrize(
    "make",
    [
        lambda rng, n: rng.normal(size=n) ** 2,
        lambda rng, n: 1e6 + rng.normal(size=n),
        lambda rng, n: np.exp(8.0 * rng.normal(size=n)),
        lambda rng, n: np.where(np.arange(n) == 5, 1e300, rng.uniform(size=n)),
        lambda rng, n: rng.integers(0, 3, n).astype(float),
        lambda rng, n: TINY * rng.integers(0, 1000, n),
        lambda rng, n: np.repeat(rng.normal(size=n), 2)[:n] + 1e-12 * rng.normal(size=n),
        lambda rng, n: np.where(np.arange(n) == 7, np.inf, rng.normal(size=n)),
    ],
)
def test_few_sorts_order_any_values(make, n):
    """The radix sort leaves near ties to the repair, and to a stable sort what that cannot do."""
    assert 1 <= sorts(Order(n, Pool()), make(np.random.default_rng(6), n)) <= 2
