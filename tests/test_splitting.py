"""Vectors of margins: sums by NumPy, and the proximal map of a risk by what makes it optimal."""

from __future__ import annotations

import numpy as np
import pytest

import sorel
from sorel.losses import Huber

N, D = 14, 3
LOSSES = {
    "squared": "squared",
    "huber": Huber(0.5),
    "squared_hinge": "squared_hinge",
    "logistic": "logistic",
    "linear": "linear",
}


def make(loss, weighted, risk="esrm:2"):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, D))
    y = X @ rng.normal(size=D) + rng.normal(size=N)
    if loss in ("squared_hinge", "logistic"):
        y = np.sign(y)
    omega = None
    if weighted:
        omega = rng.uniform(0.2, 2.0, N)
        omega[[3, 8]] = 0.0
        omega /= omega.sum()
    problem = sorel.Problem(
        X, y, risk=risk, loss=LOSSES[loss], penalty=sorel.L2(0.1), sample_weight=omega
    )
    return problem, np.full(N, 1.0 / N) if omega is None else omega


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", ["esrm:2", "cvar:0.4", "mean"])
def test_the_proximal_map_of_a_risk(loss, weighted, risk):
    """q in the dual set attains the risk at z, and q_i phi'_i + rho (z_i - v_i) vanishes."""
    problem, omega = make(loss, weighted, risk)
    engine, formulas, used = problem.engine, problem.loss, omega > 0.0
    split = engine.splitting()
    rng = np.random.default_rng(3)
    for rho in (0.1, 2.0):
        v = split.combine((1.0, split.vector(rng.normal(size=D))), (2.0, split.vector(np.ones(D))))
        z = split.prox(v, rho)
        dual = split.weighting()
        q = dual.density
        losses = formulas.value(engine.y, z)
        lam = omega * q
        # The nearest weighting of the dual set is itself, and it is the worst case.
        assert engine.nearest_dual(lam)[1] <= 1e-12
        assert lam @ losses == pytest.approx(problem.risk(losses, omega), rel=1e-9, abs=1e-12)
        left = q * formulas.derivative(engine.y, z) + rho * (z - v)
        at_kink = np.zeros(N, dtype=bool)
        if loss == "squared_hinge":
            at_kink = np.abs(engine.y * z - 1.0) < 1e-9
        np.testing.assert_allclose(left[used & ~at_kink], 0.0, atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_vectors(weighted):
    problem, omega = make("huber", weighted)
    engine, split = problem.engine, problem.engine.splitting()
    rng = np.random.default_rng(4)
    w, u = rng.normal(size=(2, D))
    X = np.asarray(engine.stored()[0])
    a, b = split.vector(w), split.vector(u)
    np.testing.assert_allclose(a, X @ w)
    both = split.combine((0.5, a), (-3.0, b))
    np.testing.assert_allclose(both, X @ (0.5 * w - 3.0 * u))
    assert split.dot(a, b) == pytest.approx(omega @ ((X @ w) * (X @ u)))
    np.testing.assert_allclose(split.adjoint(a), X.T @ (omega * (X @ w)))
    np.testing.assert_allclose(split.gram(), X.T @ (omega[:, None] * X))
    point = engine.point(w)
    dual = engine.worst_case(point)
    expected = dual.density * problem.loss.derivative(engine.y, X @ w)
    np.testing.assert_allclose(split.slopes(point, dual), expected)
