"""Mini-batch subgradient steps: the formula, and the bias."""

from __future__ import annotations

import numpy as np
from stochastic import WEIGHTS, D, N, X, make, optimum, plan, quietly

import sorel
from sorel.solvers import SGD


def test_minibatch_epoch_equals_the_formula():
    problem = make()
    engine = problem.engine
    w = np.array([0.2, -0.1, 0.3])
    moved = engine.stochastic().minibatch_epoch(
        w, plan(problem, 0.05, 5, batch=8), np.random.default_rng(4)
    )
    order = np.random.default_rng(4).permutation(N)
    sigma = problem.risk.weights(8)
    for batch in order.reshape(5, 8):
        point = engine.point(w)
        ranked = batch[np.argsort(point.losses[batch])]
        w = (w - 0.05 * X[ranked].T @ (sigma * point.slopes[ranked])) / (1 + 0.05 * 0.1)
    np.testing.assert_allclose(moved, w, rtol=1e-12)


def test_sgd_is_biased():
    problem = make(risk=sorel.CVaR(0.1))
    best = optimum(problem).objective
    start = problem.objective(problem.start())
    small = quietly(problem, SGD(batch_size=2), tol=1e-8, max_passes=200)
    whole = quietly(problem, SGD(batch_size=N), tol=1e-8, max_passes=200)
    # Batches of two cannot see a tail of one in ten: they minimise something nearer to the mean.
    assert small.history[-1].objective - best > 1e-3 * (start - best)
    assert whole.objective <= small.history[-1].objective


def test_sgd_takes_sample_weights():
    problem = make(risk=sorel.Mean(), sample_weight=WEIGHTS)
    best = optimum(problem).objective
    result = quietly(problem, SGD(step_size=0.01, batch_size=4), tol=1e-8, max_passes=100)
    assert result.objective - best <= 1e-2 * (problem.objective(np.zeros(D)) - best)
