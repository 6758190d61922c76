"""What every engine promises, asked through the contract alone: no test here knows an array.

A module with a fixture `home`, which makes a problem whose data live somewhere, imports these
tests.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import RISKS, SERVED, brute_losses, make_data

import sorel

FULL_PASSES = ["auto", "newton", "newton_cg", "continuation", "lbfgs", "subgradient"]
N, D = 31, 3


def parameters(engine, seed=5):
    return 0.5 * np.random.default_rng(seed).normal(size=engine.shape)


def weighting(engine, seed=6):
    lam = np.random.default_rng(seed).exponential(size=engine.n_samples)
    return engine.nearest_dual(lam / lam.sum())[0]


def differences(function, w, h=1e-5):
    rows = []
    for j in range(w.size):
        move = np.zeros(w.size)
        move[j] = h
        move = move.reshape(w.shape)
        rows.append((function(w + move) - function(w - move)) / (2 * h))
    return np.array(rows)


@pytest.mark.parametrize("loss", SERVED)
@pytest.mark.parametrize("intercept", [False, True])
def test_losses_along_a_line(home, loss, intercept):
    problem = home(loss, intercept=intercept)
    engine = problem.engine.for_run()
    X, y = make_data(loss, N, D, 0)
    w, delta = parameters(engine), parameters(engine, 7)
    point = engine.point(w)
    brute = brute_losses(loss, X, y, problem.for_user(w), intercept)
    np.testing.assert_allclose(engine.losses(point), brute, rtol=1e-11, atol=1e-13)
    moved = engine.moved(point, delta, engine.direction(delta), 0.3)
    np.testing.assert_array_equal(moved.w, w + 0.3 * delta)
    brute = brute_losses(loss, X, y, problem.for_user(w + 0.3 * delta), intercept)
    np.testing.assert_allclose(engine.losses(moved), brute, rtol=1e-11, atol=1e-13)
    size = np.abs(brute_losses(loss, X, y, problem.for_user(0 * w), intercept)).mean()
    found = engine.sizes(engine.point(0 * w))
    assert found.absolute == pytest.approx(size, rel=1e-12)
    at_zero = engine.losses(engine.point(0 * w))
    assert found.mean == pytest.approx(at_zero.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(np.abs(at_zero - at_zero.mean()).mean(), rel=1e-9)


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_risk_worst_case_and_shortfall(home, risk, weighted):
    problem = home("squared", risk=risk, weighted=weighted)
    engine = problem.engine.for_run()
    point = engine.point(parameters(engine))
    losses, omega = engine.losses(point), engine.weights(engine.uniform())
    order = np.argsort(losses)
    steps = np.append(0.0, np.cumsum(omega[order]))
    steps[-1] = 1.0
    sigma = np.diff(RISKS[risk].cumulative(steps))
    value = engine.risk(point)
    assert value == pytest.approx(sigma @ losses[order], rel=1e-12)
    worst = engine.worst_case(point)
    assert engine.expected(point, worst) == pytest.approx(value, rel=1e-13)
    for seed in range(3):
        dual = weighting(engine, seed)
        assert engine.expected(point, dual) == pytest.approx(engine.weights(dual) @ losses)
        gap = engine.shortfall(point, dual)
        assert gap >= 0.0
        assert gap == pytest.approx(value - engine.expected(point, dual), abs=1e-12 * value)


@pytest.mark.parametrize("risk", ["cvar", "esrm", "mixture"])
@pytest.mark.parametrize("weighted", [False, True])
def test_dual_steps_are_maximisers(home, risk, weighted):
    engine = home("squared", risk=risk, weighted=weighted).engine.for_run()
    point, center = engine.point(parameters(engine)), weighting(engine)
    previous = engine.point(parameters(engine, 8))
    omega = engine.weights(engine.uniform())
    for eta, theta in itertools.product((0.01, 1.0, 1e4), (0.0, 0.6)):
        best = engine.dual_step(center, point, eta, previous, theta)
        losses = engine.losses(point) + theta * (engine.losses(point) - engine.losses(previous))
        rivals = [center, engine.worst_case(point), *(weighting(engine, s) for s in range(3))]

        def value(dual, losses=losses, eta=eta):
            distance = engine.differences(dual, center).weights / (2 * eta)
            return engine.weights(dual) @ losses - distance

        for rival in rivals:
            least = engine.differences(best, rival).weights / (2 * eta)
            assert value(best) - value(rival) >= least - 1e-11 * (abs(value(best)) + least)
        blend = engine.blend(center, best, 0.25)
        expected = 0.75 * engine.weights(center) + 0.25 * engine.weights(best)
        np.testing.assert_allclose(engine.weights(blend), expected, rtol=1e-13, atol=1e-16)
        square, product, change = engine.differences(best, center, point, previous)
        moved = engine.weights(best) - engine.weights(center)
        assert square == pytest.approx(np.sum(moved**2 / omega), rel=1e-10)
        difference = engine.losses(point) - engine.losses(previous)
        assert product == pytest.approx(-moved @ difference, rel=1e-9, abs=1e-12)
        assert change == pytest.approx(omega @ difference**2, rel=1e-10)
    again, distance = engine.nearest_dual(engine.weights(center))
    assert distance <= 1e-12
    np.testing.assert_allclose(
        engine.weights(again), engine.weights(center), rtol=1e-12, atol=1e-16
    )
    assert engine.dual_step(center, point, 0.0) is center
    worst = engine.dual_step(center, point, np.inf)
    assert engine.expected(point, worst) == pytest.approx(engine.risk(point), rel=1e-13)


@pytest.mark.parametrize("loss", SERVED)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives(home, loss, intercept, weighted):
    engine = home(loss, intercept=intercept, weighted=weighted).engine.for_run()
    w, dual = parameters(engine), weighting(engine)
    point = engine.point(w)
    gradient = engine.gradient(point, dual)
    assert gradient.shape == w.shape
    numeric = differences(lambda u: engine.expected(engine.point(u), dual), w)
    np.testing.assert_allclose(gradient.ravel(), numeric, rtol=1e-6, atol=1e-8)
    delta = parameters(engine, 9)
    slope = engine.slope(point, dual, engine.direction(delta))
    assert slope == pytest.approx(float(np.vdot(gradient, delta)), rel=1e-11)
    numeric = differences(lambda u: engine.gradient(engine.point(u), dual).ravel(), w)
    np.testing.assert_allclose(
        engine.curvature(point, dual).matrix(), numeric, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("loss", SERVED)
@pytest.mark.parametrize("risk", ["cvar", "esrm"])
@pytest.mark.parametrize("intercept", [False, True])
def test_generalised_hessian(home, loss, risk, intercept):
    engine = home(loss, risk=risk, intercept=intercept).engine.for_run()
    w, center, eta = parameters(engine), weighting(engine), 0.2
    point = engine.point(w)
    dual = engine.dual_step(center, point, eta)

    def gradient(u):
        here = engine.point(u)
        return engine.gradient(here, engine.dual_step(center, here, eta)).ravel()

    curvature = engine.curvature(point, dual, eta)
    hessian = curvature.matrix()
    numeric = differences(gradient, w, 1e-6)
    np.testing.assert_allclose(hessian, numeric, rtol=1e-4, atol=1e-5)
    v = parameters(engine, 11)
    product = curvature.product(v)
    np.testing.assert_allclose(product.ravel(), hessian @ v.ravel(), rtol=1e-9, atol=1e-11)
    assert 0.0 < curvature.share <= 1.0
    assert np.all(curvature.diagonal().ravel() >= np.diag(hessian) * (1 - 1e-12))
    plain = engine.curvature(point, dual).matrix()
    damped = engine.curvature(point, dual, damping=1.0).matrix()
    assert np.linalg.eigvalsh(damped - plain).min() >= -1e-9 * np.linalg.norm(plain)


@pytest.mark.parametrize("loss", SERVED)
def test_best_intercept(home, loss):
    engine = home(loss, intercept=True).engine.for_run()
    dual = weighting(engine)
    best = engine.best_intercept(engine.point(parameters(engine)), dual)
    assert best is not None
    np.testing.assert_allclose(engine.gradient(best, dual)[-1], 0.0, atol=1e-12)


@pytest.mark.parametrize("solver", FULL_PASSES)
@pytest.mark.parametrize("loss", SERVED)
def test_every_solver_of_full_passes_certifies(home, solver, loss):
    # L-BFGS is stopped by the kinks of a risk, above all where all losses tie.
    problem = home(loss, risk="mean" if solver == "lbfgs" else "esrm", intercept=True)
    tol = 1e-3 if solver in ("lbfgs", "subgradient") else 1e-8
    result = sorel.solve(problem, solver, tol=tol, max_passes=5000)
    assert result.converged, result.status
    proof = problem.certificate(result.w, result.weights)
    assert proof.relative_gap <= tol
    assert result.objective == pytest.approx(problem.objective(result.w), rel=1e-12)


@pytest.mark.parametrize("risk", ["cvar", "esrm"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("unit", "shift"), [(1, 1e9), (1e-9, 0), (1e9, 0)])
def test_offsets_and_units_of_the_targets_do_not_matter(home, risk, weighted, unit, shift):
    more = {"risk": risk, "weighted": weighted, "intercept": True}
    plain, other = (
        sorel.solve(home("squared", **more, **change))
        for change in ({}, {"unit": unit, "shift": shift})
    )
    assert other.converged, other.status
    assert other.objective / unit**2 == pytest.approx(plain.objective, rel=3e-6)


def test_a_checkpoint_is_resumed_and_knows_its_targets(home, tmp_path):
    path = tmp_path / "run.ckpt"
    started = {"checkpoint": path, "callback": lambda record: record.passes > 2}
    sorel.solve(home("squared"), tol=1e-9, **started)
    assert "resumed" in sorel.solve(home("squared"), tol=1e-9, checkpoint=path).status
    with pytest.raises(sorel.CheckpointError, match="the targets y differ"):
        sorel.solve(home("squared", shift=1), checkpoint=path)
