"""Prospect: its tables and its steps against a full sort and a full projection."""

from __future__ import annotations

import numpy as np
import pytest
from stochastic import N, X, make, plan, snapshot

import sorel


@pytest.mark.parametrize("nu", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_prospect_tables_are_what_a_full_sort_gives(nu, loss):
    # Integer data make ties, which the order settles by position as a stable sort does.
    data = np.round(X)
    problem = make(loss, data=data, fit_intercept=True)
    engine = problem.engine
    point, dual, _ = snapshot(problem)
    if nu > 0:
        dual = engine.dual_step(engine.uniform(), point, 1 / nu)
    table = engine.stochastic().table(point, dual)
    w, rng = point.w, np.random.default_rng(1)
    for _ in range(3):
        w = engine.stochastic().prospect_epoch(table, w, plan(problem, 0.01, N), nu, rng)
        keys = np.empty(N)
        keys[table.order] = table.key
        np.testing.assert_array_equal(table.order, np.argsort(keys, kind="stable"))
        np.testing.assert_array_equal(table.order[table.position], np.arange(N))
        mean = np.column_stack([data, np.ones(N)]).T @ table.slopes / N
        np.testing.assert_allclose(table.mean, mean.T, rtol=1e-10, atol=1e-12)
        lam = np.empty(N)
        if nu > 0:
            lam[:] = sorel.project_permutahedron(keys / N, problem.risk.weights(N))
        else:
            lam[table.order] = problem.risk.weights(N)
        np.testing.assert_allclose(
            engine.weights(engine.stochastic().table_dual(table)), lam, atol=1e-14
        )


def test_prospect_step_uses_the_projected_weights():
    problem = make()
    engine, nu = problem.engine, 0.2
    point, _, _ = snapshot(problem)
    dual = engine.dual_step(engine.uniform(), point, 1 / nu)
    table = engine.stochastic().table(point, dual)
    w = point.w + 0.1
    moved = engine.stochastic().prospect_epoch(
        table, w, plan(problem, 0.01, 1, proximal=False), nu, np.random.default_rng(0)
    )
    row, _ = np.random.default_rng(0).integers(N, size=(2, 1))
    i = row[0]
    change = dual.density[i] * (engine.point(w).slopes[i] - point.slopes[i]) * X[i]
    direction = change + engine.gradient(point, dual) + 0.1 * w
    np.testing.assert_allclose(moved, w - 0.01 * direction, rtol=1e-12)
