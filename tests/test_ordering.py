"""Orders that are kept: how far they are repaired, when they are sorted anew, and by what."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sorel._pool import Pool
from sorel._threads import Team
from sorel.permutahedron import ordering
from sorel.permutahedron.ordering import Order, index_type, moves_per_item, radix_sort, repair


def test_long_lists_are_repaired_less():
    few, many = ordering._RADIX_FROM, ordering.ONE_ORDER_FROM
    found = [moves_per_item(n) for n in (1, few - 1, few, many - 1, many, 10 * many)]
    assert found == [8, 8, 1, 1, 1, 1]


def test_items_are_numbered_by_as_few_bytes_as_they_need():
    assert index_type(2**31 - 1) is np.int32
    assert index_type(2**31) is np.int64


def repaired(values, budget):
    order, key = np.arange(len(values), dtype=np.int32), np.empty(len(values))
    whole = repair(values, order, key, budget)
    assert sorted(order) == list(range(len(values)))
    if whole:
        assert_array_equal(order, np.argsort(values, kind="stable"))
        assert_array_equal(key, np.sort(values))
    return whole


def test_a_repair_ends_where_its_budget_does():
    """A tenth of the budget is there at once, and a share of the rest with each of ten items."""
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


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize(
    ("n", "threads", "first"),
    [
        (ordering._RADIX_FROM - 1, 1, "argsort"),
        (ordering._RADIX_FROM, 1, "sort_short"),
        (ordering._SHORT - 1, 1, "sort_short"),
        (ordering._SHORT, 1, "radix_sort"),
        (ordering._RADIX_FROM, 2, "radix_sort"),
    ],
)
def test_which_sort_is_taken(n, threads, first, attempt):
    values, keep = np.random.default_rng(0).standard_normal(n), Order(n, Pool())
    with (
        mock.patch.object(ordering, "radix_sort", wraps=radix_sort) as radix,
        mock.patch.object(ordering, "sort_short", wraps=ordering.sort_short) as short,
        mock.patch.object(np, "argsort", wraps=np.argsort) as argsort,
    ):
        keep.sort(values, attempt, Team(n, threads) if threads > 1 else None)
    assert keep.known
    taken = first if attempt == 0 else "argsort"
    assert [radix.called, short.called] == [taken == "radix_sort", taken == "sort_short"]
    # Only the stable sort leaves nothing to repair.
    kinds = [call.kwargs["kind"] for call in argsort.call_args_list]
    assert kinds == ([None if attempt == 0 else "stable"] if taken == "argsort" else [])
    assert sorted(keep.order) == list(range(n))


def test_values_that_have_no_place_are_left_to_the_longer_sort():
    values = np.random.default_rng(0).standard_normal(2000)
    values[7] = np.inf
    with mock.patch.object(ordering, "radix_sort", wraps=radix_sort) as radix:
        Order(2000, Pool()).sort(values, 0, None)
    assert radix.called


@pytest.mark.parametrize("threads", [1, 3])
def test_the_radix_sort(threads):
    rng = np.random.default_rng(1)
    values = np.concatenate(
        [rng.standard_normal(2000), 1e9 + rng.standard_normal(500), 1e-9 * rng.standard_normal(500)]
    )
    rng.shuffle(values)
    values = np.round(values, 12)
    order, work = np.empty(3000, np.int32), (np.empty(3000), np.empty(3000))
    radix_sort(values, work, order, Team(3000, threads) if threads > 1 else None)
    assert sorted(order) == list(range(3000))
    # Sorted by 20 bits of the distance from a value in the middle.
    missed = np.maximum.accumulate(values[order]) - values[order]
    assert np.all(missed <= 2.0**-19 * np.abs(values[order]) + 1e-6)


def sorts(keep, *arguments):
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
    assert sorts(other, far + 1e-3 * rng.standard_normal(400), None, keep) == 0  # from a hint
    assert sorts(other, near, None, keep) == 1  # from a hint that is no better
    assert sorts(keep, values, None, keep) == 1
    assert sorts(keep, far, None, unknown) == 1
    assert sorts(Order(400, Pool()), values, None, unknown) == 1


@pytest.mark.parametrize("also", [True, False])
def test_an_item_sinks_among_the_sorted_ones_with_what_belongs_to_them(also):
    """Against a sort of (value, number): ties by number, entries and ranks in step."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        values = rng.integers(0, 4, 8).astype(float)
        rank = int(rng.integers(0, 8))
        items = rng.permutation(8).astype(np.int32)
        before = sorted(items[:rank], key=lambda item: (values[item], item))
        order = np.array([*before, *items[rank:]], dtype=np.int32)
        key, item = values[order], int(order[rank])
        extra, position = 10.0 * values[order] + order, np.empty(8, np.int32)
        position[order] = np.arange(8)
        own = extra[rank]
        place = ordering.sink(
            key, order, rank, values[item], item,
            position if also else None, extra if also else None,
        )  # fmt: skip
        expected = sorted([*before, item], key=lambda i: (values[i], i))
        assert place == expected.index(item)
        assert_array_equal(order, [*expected, *items[rank + 1 :]])
        assert_array_equal(key, values[order])
        if also:
            assert_array_equal(position[order], np.arange(8))
            extra[place] = own  # what sinks brings its entry along, or a new one
            assert_array_equal(extra, 10.0 * values[order] + order)


@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_short_sort_leaves_near_ties_alone(spread, sign):
    """Keys are even up to an eighth of the way to the mean, and then grow like a logarithm."""
    n = 1600
    values = sign * np.exp(spread * np.random.default_rng(4).standard_normal(n)) - 3.0
    room, order = ordering.room_to_sort(n), np.empty(n, np.int32)
    assert ordering.sort_short(values, room, order)
    assert sorted(order) == list(range(n))
    even = max(values.mean() - values.min(), np.ptp(values) / n) / 8.0
    # What the sort works with are distances from a place below the least value.
    np.testing.assert_allclose(room[0], values - values.min() + even, rtol=1e-12)
    # 22 bits tell doublings apart, and places within each.
    resolution = room[0][order] * np.log2(np.ptp(values) / even + 2.0) * 2.0**-20
    missed = np.maximum.accumulate(values[order]) - values[order]
    assert np.all(missed <= resolution)


def test_the_short_sort_of_one_value_that_sticks_out():
    """Every value is looked at; where the rest is alike, keys are even for a range over n."""
    for n in (1600, 1601, 1602, 1603):
        beyond = np.full(n + 4, np.inf)
        values, room, order = beyond[:n], ordering.room_to_sort(n), np.empty(n, np.int32)
        for place in (0, 1, 2, 3, n - 4, n - 3, n - 2, n - 1):
            for value in (5.0, -5.0):
                values[:] = 1.0
                values[place] = value
                assert ordering.sort_short(values, room, order)
                assert order[-1 if value > 0.0 else 0] == place
                if value > 0.0 and n == 1600:
                    assert room[0][1 if place == 0 else 0] == pytest.approx(4.0 / n / 8.0)
    values[:] = 1.0
    assert not ordering.sort_short(values, room, order)
    for bad in (np.inf, -np.inf, np.nan):
        values[7] = bad
        assert not ordering.sort_short(values, room, order)
    # A sum that is no number, of values whose range is one.
    values[:] = 1e308 * (1.0 + 1e-3 * np.arange(n) / n)
    assert not ordering.sort_short(values, room, order)


def test_near_ties_are_repaired_after_one_sort():
    rng = np.random.default_rng(5)
    values = np.repeat(rng.standard_normal(800), 2) + 1e-12 * rng.standard_normal(1600)
    rng.shuffle(values)
    assert sorts(Order(1600, Pool()), values) == 1
