"""The search for the threshold of a two-level set: its steps, and how many of them it takes."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest

from sorel._lib.threads import Team
from sorel.permutahedron import thresholds
from sorel.permutahedron.thresholds import Thresholder

LOW, HIGH = 0.5, 2.0


def next_tau(trial=0, tau=1.0, below=-math.inf, above=math.inf, span=math.inf, excess=0.5,
             free=2.0, kink=3.0):  # fmt: skip
    return thresholds.next_tau(trial, tau, below, above, span, excess, free, kink, LOW, HIGH)


def test_what_was_tried_becomes_a_bound():
    assert next_tau(excess=0.1, below=-4.0, above=9.0)[1:3] == (1.0, 9.0)
    assert next_tau(excess=0.1, below=2.0, above=9.0)[1:3] == (2.0, 9.0)
    assert next_tau(excess=-0.1, below=-4.0, above=9.0)[1:3] == (-4.0, 1.0)
    assert next_tau(excess=-0.1, below=-4.0, above=0.5)[1:3] == (-4.0, 0.5)


def test_steps_are_newtons_where_items_are_free():
    assert next_tau(excess=0.5, free=2.0)[0] == 1.25
    assert next_tau(excess=-0.5, free=2.0)[0] == 0.75


def test_an_open_side_limits_a_step_to_the_distance_of_the_levels():
    assert next_tau(excess=40.0, free=2.0)[0] == 1.0 + (HIGH - LOW)
    assert next_tau(excess=-40.0, free=2.0)[0] == 1.0 - (HIGH - LOW)
    # A bound on that side is enough.
    assert next_tau(excess=40.0, free=2.0, above=50.0)[0] == 21.0
    assert next_tau(excess=-40.0, free=2.0, below=-50.0)[0] == -19.0
    # The bound on the other side is none here.
    assert next_tau(excess=40.0, free=2.0, below=-50.0)[0] == 1.0 + (HIGH - LOW)


def test_without_free_items_the_nearest_one_comes_free():
    assert next_tau(free=0.0, excess=0.25, kink=3.5)[0] == 3.5 - HIGH + 0.25
    assert next_tau(free=0.0, excess=-0.25, kink=0.75)[0] == 0.75 - LOW - 0.25


def test_a_bracket_is_halved_where_steps_leave_it_or_hardly_shrink_it():
    # 1.25 would leave it, and so would its end.
    assert next_tau(above=1.125)[0] == 0.5 * (1.0 + 1.125)
    assert next_tau(above=1.25)[0] == 0.5 * (1.0 + 1.25)
    assert next_tau(above=3.0)[0] == 1.25
    # Every third trial looks back.
    for trial in range(6):
        goal, _, _, span = next_tau(trial=trial, above=3.0, span=3.5)
        assert (goal, span) == ((2.0, 2.0) if trial % 3 == 2 else (1.25, 3.5))
    assert next_tau(trial=2, above=3.0, span=4.5)[::3] == (1.25, 2.0)
    # There is nothing to halve without a bound.
    assert next_tau(trial=2, span=math.inf)[::3] == (1.25, math.inf)


def test_the_excess_counts_all_items_and_forgives_rounding():
    excess = thresholds.excess_at
    sums = (3.0, 4.0, 2.0, 5.0, 0.25)  # at the low level, at the high one, free, moment, spill
    total = LOW * 3.0 + HIGH * 4.0 + (5.25 - 2.0 * 0.75)
    assert excess(sums, 0.75, -9.0, 9.0, LOW, HIGH, total - 1.0) == 1.0
    assert excess(sums, 0.75, -9.0, 9.0, LOW, HIGH, total + 2.0) == -2.0
    noise = 2.0**-51 * (5.0 + 1.5 + total)
    assert excess(sums, 0.75, -9.0, 9.0, LOW, HIGH, total - 0.5 * noise) == 0.0
    assert excess(sums, 0.75, -9.0, 9.0, LOW, HIGH, total - 8.0 * noise) != 0.0
    # Nothing is between two neighbours among the numbers.
    assert excess(sums, 0.75, 0.75, np.nextafter(0.75, 1.0), LOW, HIGH, total - 1.0) == 0.0
    assert excess(sums, 0.75, -math.inf, math.inf, LOW, HIGH, total - 1.0) == 1.0
    exact = thresholds.exact_tau
    assert exact(sums, 0.1, LOW, HIGH, total) == pytest.approx(0.75)
    assert exact((3.0, 4.0, 0.0, 0.0, 0.0), 0.1, LOW, HIGH, total) == 0.1


def test_the_item_nearest_to_the_low_level():
    nearest = thresholds.nearest
    for seed in range(4):
        zeta = np.random.default_rng(seed).integers(0, 12, 150).astype(float)
        for tau in (-3.0, 2.0, 30.0):
            q = (zeta - 1.0) - tau
            above, at = np.flatnonzero(q > LOW), np.flatnonzero(q <= LOW)
            place = nearest(zeta, 1.0, tau, LOW, True)
            assert place == (above[np.argmin(zeta[above])] if above.size else -1)
            place = nearest(zeta, 1.0, tau, LOW, False)
            assert place == (at[np.argmax(zeta[at])] if at.size else -1)


def test_clipped_items_and_their_blocks():
    zeta = np.array([0.0, 1.5, 2.0, 2.75, 3.0, 9.0])
    out, block = np.empty(6), np.empty(6, np.int32)
    count = thresholds.fill_clipped(zeta, 1.0, 0.0, LOW, HIGH, out, block)
    np.testing.assert_array_equal(out, [LOW, LOW, 1.0, 1.75, HIGH, HIGH])
    np.testing.assert_array_equal(block, [-1, -1, 0, 0, -1, -1])
    assert count == 2


def test_sums_of_parts():
    rng = np.random.default_rng(0)
    zeta, weight = rng.uniform(0.0, 4.0, 700), rng.uniform(0.5, 1.5, 700)
    zeta[:3] = [1.5, 3.0, 1.75]  # at either level, and between
    for w in (None, weight):
        mass = np.ones(700) if w is None else w
        at_low, at_high, free, moment, spill = thresholds.level_sums(zeta, w, 1.0, 0.0, LOW, HIGH)
        q = zeta - 1.0
        inside = (q > LOW) & (q < HIGH)
        assert at_low == pytest.approx(mass[q <= LOW].sum())
        assert at_high == pytest.approx(mass[q >= HIGH].sum())
        assert free == pytest.approx(mass[inside].sum())
        assert moment + spill == pytest.approx(float(mass[inside] @ q[inside]), rel=1e-14)
    assert thresholds.totals([(1, 2.0), (3, 4.0)]) == (4, 6.0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_threshold_is_found_in_few_trials(monkeypatch, weighted, spread, threads):
    monkeypatch.setattr(thresholds, "COLD_TRIALS", 40 if weighted else 16)
    monkeypatch.setattr(thresholds, "WARM_TRIALS", 7)
    rng = np.random.default_rng(3)
    n, low, high = 400, 0.0, 5.0
    weight = rng.uniform(0.3, 2.0, n) if weighted else None
    mass = np.ones(n) if weight is None else weight
    total = 1.0 * mass.sum()
    found = Thresholder(weight, low, high, total, n - n // 5)
    out, block = np.empty(n), np.empty(n, np.int32)
    team = Team(n, threads) if threads > 1 else None
    zeta = spread * rng.standard_t(2, n) + 3.0
    reference, first, below, above = found.bracket(zeta)
    assert first - below == pytest.approx(above - first)
    for step in range(4):
        assert found.project(zeta, out, block, team) >= 0
        assert out.min() >= low
        assert out.max() <= high
        assert float(mass @ out) == pytest.approx(total, rel=1e-12)
        free = (out > low) & (out < high)
        if free.sum() > 1:
            assert np.ptp(zeta[free] - out[free]) <= 1e-9 * max(1.0, spread)
        if step == 0:
            # The bracket holds the threshold.
            assert mass @ np.clip(zeta - (reference + below), low, high) >= total
            assert mass @ np.clip(zeta - (reference + above), low, high) <= total
        # The next search starts from the last threshold.
        zeta = zeta + 1e-3 * spread * rng.standard_normal(n)


@pytest.mark.parametrize("n", [50, thresholds._SAMPLE_FROM, thresholds._SAMPLE_FROM + 9000])
def test_the_value_at_a_rank(n):
    values = np.random.default_rng(n).standard_normal(n)
    ordered = np.sort(values)
    for rank in (0, 1, n // 3, n - 2, n - 1):
        with mock.patch.object(np, "partition", wraps=np.partition) as partition:
            assert thresholds.select(values, rank) == ordered[rank]
        # Of many values a sample leaves few to look at.
        looked_at = partition.call_args.args[0].size
        assert looked_at == n if n <= thresholds._SAMPLE_FROM else looked_at < n // 4
    # A sample that misleads: all of it is of one kind.
    values[:: max(n // thresholds._SAMPLE, thresholds._SAMPLE_SHARE)] += 100.0
    assert thresholds.select(values, n // 2) == np.sort(values)[n // 2]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_search_begins_between_bounds_that_hold_the_threshold(weighted):
    rng = np.random.default_rng(8)
    zeta, low, high = 1e3 + rng.standard_normal(25), -0.5, 4.0
    weight = rng.uniform(0.5, 1.5, 25) if weighted else None
    searched = thresholds.Thresholder(weight, low, high, 25.0, 19)
    reference, tau, below, above = searched.bracket(zeta)
    if weighted:
        assert reference == pytest.approx((zeta.min() + zeta.max()) / 2.0, rel=1e-15)
        expected = zeta.min() - reference - high, zeta.max() - reference - low
    else:
        assert reference == np.sort(zeta)[19]
        expected = -high, -low
    # And a hundredth of the distance of the levels for rounding.
    assert (below, above) == pytest.approx((expected[0] - 0.045, expected[1] + 0.045), abs=1e-12)
    assert tau == pytest.approx((below + above) / 2.0, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_free_items_keep_what_is_small_against_them(weighted):
    run = 256  # items that are added up without compensation
    zeta = np.concatenate([np.full(run, size) for size in (1e16, 1.0, -1e16, 3.0, 7e15, -7e15)])
    weight = np.ones(len(zeta)) if weighted else None
    found = thresholds.level_sums(zeta, weight, 0.0, 0.0, -1e17, 1e17)
    assert found[:3] == (0.0, 0.0, len(zeta))
    assert found[3] + found[4] == 4.0 * run
