"""Tables that stay sorted while entries change, against sorting and projecting anew."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sorel
from sorel.kernels import tables
from sorel.permutahedron.pooling import size_of_bounds

N = 12


def sorted_table(values):
    order = np.argsort(values, kind="stable")
    position = np.empty(len(values), np.int64)
    position[order] = np.arange(len(values))
    return values[order], order, position


def room(n=N):
    return np.empty((3, n)), np.empty(size_of_bounds(n), np.int64)


def test_an_entry_moves_to_its_place():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, N).astype(float)
    key, order, position = sorted_table(values)
    for _ in range(200):
        item, value = int(rng.integers(N)), float(rng.integers(-1, 7))
        values[item] = value
        tables.move_entry(key, order, position, item, value)
        expected = sorted_table(values)
        for found, right in zip((key, order, position), expected, strict=True):
            assert_array_equal(found, right)
    tables.move_entry(key, order, position, 3, np.nan)
    for found, right in zip((key, order, position), expected, strict=True):
        assert_array_equal(found, right)


def test_a_repair_takes_companions_along():
    rng = np.random.default_rng(1)
    for _ in range(40):
        values = rng.integers(0, 6, N).astype(float)
        _, order, position = sorted_table(values)
        values += rng.integers(-2, 3, N)
        key, companion = values[order], 100.0 * np.arange(N)[order]
        tables.repair_order(key, order, position, companion)
        expected = sorted_table(values)
        for found, right in zip((key, order, position), expected, strict=True):
            assert_array_equal(found, right)
        assert_array_equal(companion, 100.0 * order)


@pytest.mark.parametrize("risk", [sorel.CVaR(0.4), sorel.ESRM(3.0), sorel.Mean(), sorel.Max()])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 100.0])
def test_densities_of_ranks_are_those_of_the_projection(risk, spread):
    rng = np.random.default_rng(2)
    mass = N * risk.weights(N)
    for level in (0.0, 1e6):
        key = np.sort(level + spread * rng.standard_normal(N))
        key[4:6] = key[4]
        pools, bounds = room()
        blocks = tables.pool_sorted(key, mass, pools, bounds)
        expected = sorel.project_permutahedron(key - level, mass)
        found = [tables.pooled_density(r, key, mass, pools, bounds, blocks) for r in range(N)]
        assert_allclose(found, expected, rtol=0.0, atol=1e-8)
        # The weights of a batch: those, or the mass by rank.
        position, rows, weights = rng.permutation(N), np.array([3, 0, 7, 3]), np.empty(4)
        arguments = rows, key, position, mass
        tables.ranked_weights(*arguments, 0.5, pools, bounds, weights)
        assert_allclose(weights, expected[position[rows]], rtol=0.0, atol=1e-8)
        tables.ranked_weights(*arguments, 0.0, pools, bounds, weights)
        assert_array_equal(weights, mass[position[rows]])


@pytest.mark.parametrize("nu", [0.0, 0.3])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_dual_step_of_probed_losses(nu, batch):
    """A proximal step of the weighting, along losses whose mean the probes make right."""
    rng = np.random.default_rng(3)
    mass, step = N * sorel.ESRM(2.0).weights(N), 0.4
    start = rng.standard_normal(N)
    key, order, position = sorted_table(start)
    losses, density = rng.exponential(size=N), sorel.project_permutahedron(key, mass)
    by_item, weights = losses[position], density[position]
    for _ in range(20):
        probes = rng.choice(N, batch, replace=False)
        probed = rng.exponential(size=batch)
        along = by_item.copy()
        along[probes] += N / batch * (probed - by_item[probes])
        # argmax_q of q . along - nu/2 |q - 1|^2 - |q - weights|^2 / (2 step).
        target = (weights + step * (along + nu)) / (1.0 + step * nu)
        weights = sorel.project_permutahedron(target, mass)
        by_item[probes] = probed
        assert tables.saddle_ascent(
            probes, probed, losses, density, key, order, position, mass, nu, step, *room()
        )
        assert_array_equal(order[position], np.arange(N))
        assert_allclose(key, np.sort(target), rtol=1e-12)
        assert_allclose(losses[position], by_item, rtol=1e-12)
        assert_allclose(density[position], weights, rtol=1e-9, atol=1e-12)
    for bad in (np.inf, -np.inf, np.nan):
        known = losses.copy()
        assert not tables.saddle_ascent(
            np.array([5, 2]), np.array([bad, 1.0]), losses, density, key, order, position, mass,
            nu, step, *room(),
        )  # fmt: skip
        assert_array_equal(losses, known)
