"""The engine of sorel.dask on a real cluster of processes, against formulas and differences."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from helpers import RISKS, SERVED, brute_losses, make_data, make_loss

import sorel

pytest.importorskip("distributed", reason="Dask is an extra")

import dask.array as da
import distributed

from sorel.dask import open_problem

N, D = 31, 3


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def make(client):
    """A function that makes a problem whose rows are in four partitions on the cluster."""
    opened = contextlib.ExitStack()

    def problem(X, y, *, loss="squared", risk="esrm:2", intercept=False, weight=None):
        chunks = -(-len(y) // 4)
        weight = None if weight is None else da.from_array(weight, chunks=chunks)
        return opened.enter_context(
            open_problem(
                da.from_array(X, chunks=(chunks, -1)), da.from_array(y, chunks=chunks), risk=risk,
                loss=make_loss(loss), penalty=sorel.L2(0.1), fit_intercept=intercept,
                sample_weight=weight, client=client,
            )
        )  # fmt: skip

    with opened:
        yield problem


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


def omega(weighted):
    return np.random.default_rng(1).uniform(0.2, 2.0, N) if weighted else None


@pytest.mark.parametrize("loss", SERVED)
def test_derivatives_of_the_engine(make, loss):
    X, y = make_data(loss, N, D, 0)
    for intercept, weighted in itertools.product((False, True), repeat=2):
        problem = make(X, y, loss=loss, intercept=intercept, weight=omega(weighted))
        engine = problem.engine.for_run()
        w, dual, delta = parameters(engine), weighting(engine), parameters(engine, 7)
        point = engine.point(w)
        brute = brute_losses(loss, X, y, problem.for_user(w), intercept)
        np.testing.assert_allclose(engine.losses(point), brute, rtol=1e-11, atol=1e-13)
        moved = engine.moved(point, delta, engine.direction(delta), 0.3)
        there = problem.for_user(w + 0.3 * delta)
        brute = brute_losses(loss, X, y, there, intercept)
        np.testing.assert_allclose(engine.losses(moved), brute, rtol=1e-11, atol=1e-13)
        gradient = engine.gradient(point, dual)

        def value(u, engine=engine, dual=dual):
            return engine.expected(engine.point(u), dual)

        def slopes(u, engine=engine, dual=dual):
            return engine.gradient(engine.point(u), dual).ravel()

        numeric = differences(value, w)
        np.testing.assert_allclose(gradient.ravel(), numeric, rtol=1e-6, atol=1e-8)
        slope = engine.slope(point, dual, engine.direction(delta))
        assert slope == pytest.approx(float(np.vdot(gradient, delta)), rel=1e-11)
        numeric = differences(slopes, w)
        np.testing.assert_allclose(
            engine.curvature(point, dual).matrix(), numeric, rtol=1e-5, atol=1e-7
        )
        if intercept:
            best = engine.best_intercept(point, dual)
            np.testing.assert_allclose(engine.gradient(best, dual)[-1], 0.0, atol=1e-12)


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_risk_worst_case_and_shortfall(make, risk, weighted):
    X, y = make_data("squared", N, D, 0)
    engine = make(X, y, risk=RISKS[risk], weight=omega(weighted)).engine.for_run()
    point = engine.point(parameters(engine))
    losses, weights = engine.losses(point), engine.weights(engine.uniform())
    order = np.argsort(losses)
    steps = np.append(0.0, np.cumsum(weights[order]))
    steps[-1] = 1.0
    sigma = np.diff(RISKS[risk].cumulative(steps))
    value = engine.risk(point)
    assert value == pytest.approx(sigma @ losses[order], rel=1e-12)
    worst = engine.worst_case(point)
    assert engine.expected(point, worst) == pytest.approx(value, rel=1e-12)
    for seed in range(3):
        dual = weighting(engine, seed)
        assert engine.expected(point, dual) == pytest.approx(engine.weights(dual) @ losses)
        gap = engine.shortfall(point, dual)
        assert gap == pytest.approx(value - engine.expected(point, dual), abs=1e-12 * value)


@pytest.mark.parametrize("risk", ["cvar", "esrm", "mixture"])
@pytest.mark.parametrize("weighted", [False, True])
def test_dual_steps_are_maximisers(make, risk, weighted):
    X, y = make_data("squared", N, D, 0)
    engine = make(X, y, risk=RISKS[risk], weight=omega(weighted)).engine.for_run()
    point, center = engine.point(parameters(engine)), weighting(engine)
    previous = engine.point(parameters(engine, 8))
    for eta, theta in itertools.product((0.01, 1.0, 1e4), (0.0, 0.6)):
        best = engine.dual_step(center, point, eta, previous, theta)
        losses = engine.losses(point) + theta * (engine.losses(point) - engine.losses(previous))

        def value(dual, losses=losses, eta=eta):
            distance = engine.differences(dual, center).weights / (2 * eta)
            return engine.weights(dual) @ losses - distance

        for rival in (center, engine.worst_case(point), weighting(engine, 1)):
            least = engine.differences(best, rival).weights / (2 * eta)
            assert value(best) - value(rival) >= least - 1e-11 * (abs(value(best)) + least)
        blend = engine.blend(center, best, 0.25)
        expected = 0.75 * engine.weights(center) + 0.25 * engine.weights(best)
        np.testing.assert_allclose(engine.weights(blend), expected, rtol=1e-13, atol=1e-16)
        square, product, _ = engine.differences(best, center, point, previous)
        assert square == pytest.approx(engine.differences(best, center).weights, rel=1e-10)
        moved = engine.weights(best) - engine.weights(center)
        change = engine.losses(point) - engine.losses(previous)
        assert product == pytest.approx(-moved @ change, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("risk", ["cvar", "esrm"])
def test_generalised_hessian(make, loss, risk):
    X, y = make_data(loss, N, D, 0)
    engine = make(X, y, loss=loss, risk=RISKS[risk], intercept=True).engine.for_run()
    w, center, eta = parameters(engine), weighting(engine), 0.2
    point = engine.point(w)
    dual = engine.dual_step(center, point, eta)

    def gradient(u):
        here = engine.point(u)
        return engine.gradient(here, engine.dual_step(center, here, eta)).ravel()

    hessian = engine.curvature(point, dual, eta).matrix()
    np.testing.assert_allclose(hessian, differences(gradient, w, 1e-6), rtol=1e-4, atol=1e-5)
    curvature, v = engine.curvature(point, dual, eta), parameters(engine, 11)
    np.testing.assert_allclose(
        curvature.product(v).ravel(), hessian @ v.ravel(), rtol=1e-9, atol=1e-11
    )
    assert 0.0 < curvature.share <= 1.0
    assert np.all(curvature.diagonal().ravel() >= np.diag(hessian) * (1 - 1e-12))


@pytest.mark.parametrize("solver", ["auto", "newton_cg"])
@pytest.mark.parametrize("loss", SERVED)
def test_solvers_certify(make, solver, loss):
    X, y = make_data(loss, N, D, 0)
    problem = make(X, y, loss=loss, intercept=True)
    result = sorel.solve(problem, solver, tol=1e-8, max_passes=5000)
    assert result.converged, result.status
    proof = problem.certificate(result.w, result.weights)
    assert proof.relative_gap <= 1e-8
    local = sorel.solve(
        sorel.Problem(
            X, y, risk="esrm:2", loss=make_loss(loss), penalty=sorel.L2(0.1), fit_intercept=True
        ),
        tol=1e-8,
    )
    assert result.objective == pytest.approx(local.objective, rel=3e-8)


def test_stochastic_solvers_are_refused_with_the_reason(make):
    X, y = make_data("squared", N, D, 0)
    for solver in ("sorel", "sgd", "prospect"):
        with pytest.raises(ValueError, match="single samples, of which each would cost a message"):
            sorel.solve(make(X, y), solver)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e9), (1e-9, 0.0), (1e9, 0.0)])
def test_offsets_and_units_of_the_targets_do_not_matter(make, scale, offset):
    X, y = make_data("squared", N, D, 0)
    y = (y + offset) - offset
    plain = sorel.Problem(X, y, risk="cvar:0.3", penalty=sorel.L2(0.1), fit_intercept=True)
    here = sorel.solve(plain)
    problem = make(X, scale * (y + offset), risk="cvar:0.3", intercept=True)
    there = sorel.solve(problem, "newton")
    assert there.converged, there.status
    assert there.objective / scale**2 == pytest.approx(here.objective, rel=3e-6)
