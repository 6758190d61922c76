"""Vectors of margins: sums by NumPy, and the proximal map of a risk by what makes it optimal."""

import itertools

import numpy as np
import pytest
from helpers import make_data, make_loss

import sorel
from sorel._core import LOSS_CODES, pool_losses
from sorel.losses import Huber

MONOTONE = ["squared", "huber", "logistic", "squared_hinge", "linear"]


def margin_problem(loss, risk, n, seed, weight=None):
    """X = I: parameters are margins, and the proximal map is that of the risk alone."""
    _, y = make_data("squared" if loss == "linear" else loss, n, 1, seed)
    return sorel.Problem(
        np.eye(n), y, risk=risk, loss=make_loss(loss), penalty=sorel.L2(1.0), sample_weight=weight
    )


def prox(problem, v, rho):
    split = problem.engine.splitting()
    z = split.prox(split.vector(v), rho)
    return np.array(z), split.weighting()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", MONOTONE)
@pytest.mark.parametrize("risk", ["cvar:0.3", "esrm:3", "max", "mean"])
def test_the_proximal_map_satisfies_its_optimality_conditions(loss, risk, weighted):
    """z minimises q.l(z) + rho/2 |z - v|^2 for a q that attains the risk at z: a saddle point."""
    n = 12
    for seed in range(4):
        rng = np.random.default_rng(seed)
        weight = rng.integers(0, 4, n).astype(float) if weighted else None
        problem = margin_problem(loss, risk, n, seed, weight)
        engine, rho = problem.engine, float(10.0 ** rng.uniform(-1, 1))
        v = 2.0 * rng.standard_normal(n)
        # Ties among the losses at v, and a loss without slope.
        v[1], v[2] = v[0], problem.engine.y[2]
        z, dual = prox(problem, v, rho)
        point = engine.point(z)
        lam, omega = engine.weights(dual), engine.weights(engine.uniform())
        assert engine.shortfall(point, dual) <= 1e-12 * (1 + abs(engine.risk(point)))
        slope = lam * problem.loss.derivative(engine.y, z) + rho * omega * (z - v)
        assert np.max(np.abs(slope)) <= 1e-10


def test_the_scalar_map_of_the_logistic_loss_is_a_root():
    """Newton's steps alone go to and fro between the flat ends of the sigmoid."""
    for mean, c in itertools.product((-50.0, -1.0, 0.0, 5.0, 80.0), (1e-3, 1.0, 20.0, 1e4)):
        key, density, t = np.array([mean]), np.array([c]), np.empty(1)
        pool_losses(
            LOSS_CODES["logistic"], 1.0, 1.0, key, density, np.ones(1), np.zeros(1, np.int64),
            np.empty((4, 1)), t,
        )  # fmt: skip
        slope = c * 0.5 * (1.0 + np.tanh(0.5 * t[0])) + t[0] - mean
        assert abs(slope) <= 1e-13 * (1.0 + abs(mean) + c)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_vectors(weighted):
    rng = np.random.default_rng(4)
    X, omega = rng.normal(size=(14, 3)), rng.uniform(0.2, 2.0, 14) if weighted else np.ones(14)
    omega /= omega.sum()
    weight = omega if weighted else None
    problem = sorel.Problem(X, rng.normal(size=14), loss=Huber(0.5), sample_weight=weight)
    engine, split = problem.engine, problem.engine.splitting()
    w, u = rng.normal(size=(2, 3))
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
