"""SAGA on the saddle point, against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from stochastic import D, N, X, make, plan, snapshot

import sorel


@pytest.mark.parametrize("nu", [0.0, 0.5])
def test_saddle_saga_equals_the_formula(nu):
    problem = make(fit_intercept=True)
    engine = problem.engine
    point, dual, _ = snapshot(problem)
    table = engine.stochastic().table(point, dual)
    setting = plan(problem, 0.02, 10, batch=2)
    moved = engine.stochastic().saddle_epoch(
        table, point.w, setting, 0.05, nu, np.random.default_rng(2)
    )
    rows, probes = np.random.default_rng(2).integers(N, size=(2, 20)).reshape(2, 10, 2)
    padded = np.column_stack([X, np.ones(N)])
    w, q = point.w.copy(), dual.density.copy()
    losses, slopes = point.losses.copy(), q * point.slopes
    sigma = problem.risk.weights(N)
    for i, j in zip(rows, probes, strict=True):
        now = engine.point(w)
        fresh = q[i] * now.slopes[i]
        direction = padded[i].T @ (fresh - slopes[i]) / 2 + padded.T @ slopes / N
        target = q + 0.05 * (losses + nu)
        np.add.at(target, j, 0.05 * N * (now.losses[j] - losses[j]) / 2)
        q = N * sorel.project_permutahedron(target / (1 + 0.05 * nu) / N, sigma)
        slopes[i], losses[j] = fresh, now.losses[j]
        w = w - 0.02 * direction
        w[:D] /= 1 + 0.02 * 0.1
    np.testing.assert_allclose(moved, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        engine.stochastic().table_dual(table).density, q, rtol=1e-9, atol=1e-10
    )
    np.testing.assert_allclose(table.losses, losses[table.order], rtol=1e-12)
