"""Engines against finite differences of lam . l(w), brute-force weightings and each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
from helpers import CLASSES, RISKS, brute_losses, make_data, make_loss

import sorel
from sorel.engines import Spec, make_engine
from sorel.engines.base import Plan
from sorel.engines.dense import DenseEngine
from sorel.engines.sparse import SparseEngine

LOSSES = ["squared", "huber", "logistic", "squared_hinge", "multinomial"]
by_loss = pytest.mark.parametrize("loss", LOSSES)
by_intercept = pytest.mark.parametrize("intercept", [False, True])
by_weighting = pytest.mark.parametrize("weighted", [False, True])
N, D = 30, 4


def make_problem(
    loss="squared", *, risk="cvar", intercept=False, weighted=False, n=N, d=D, seed=0, X=None
):
    data, y = make_data(loss, n, d, seed)
    omega = np.random.default_rng(seed + 1).uniform(0.2, 2.0, n) if weighted else None
    return sorel.Problem(
        data if X is None else X,
        y,
        risk=RISKS[risk] if isinstance(risk, str) else risk,
        loss=make_loss(loss),
        penalty=sorel.L2(0.1),
        fit_intercept=intercept,
        sample_weight=omega,
    )


def random_parameters(engine, seed=5, size=0.7):
    return size * np.random.default_rng(seed).normal(size=engine.shape)


def random_dual(engine, seed=6):
    """A weighting inside the dual set, where most weights differ."""
    lam = np.random.default_rng(seed).exponential(size=engine.n_samples)
    return engine.nearest_dual(lam / lam.sum())[0]


def omega_of(problem):
    n = problem.n_samples
    return np.full(n, 1.0 / n) if problem.sample_weight is None else problem.sample_weight


def differences(function, w, h=1e-5):
    """Central differences of a function of w, one row for each parameter."""
    rows = []
    for j in range(w.size):
        move = np.zeros(w.size)
        move[j] = h
        move = move.reshape(w.shape)
        rows.append((function(w + move) - function(w - move)) / (2 * h))
    return np.array(rows)


# X is read in place.


def in_place_matrices(tmp_path):
    X = make_data("squared", N, D, 0)[0]
    path = tmp_path / "X.bin"
    stored = np.memmap(path, dtype=np.float64, mode="w+", shape=X.shape)
    stored[:] = X
    stored.flush()
    read_only = X.copy()
    read_only.flags.writeable = False
    return {
        "C": X.copy(),
        "F": np.asfortranarray(X),
        "float32": X.astype(np.float32),
        "float32 F": np.asfortranarray(X.astype(np.float32)),
        "read-only": read_only,
        "read-only F": np.asfortranarray(X).view(),
        "memmap": np.memmap(path, dtype=np.float64, mode="r", shape=X.shape),
    }


@by_loss
@by_intercept
def test_dense_matrices_are_used_in_place_and_agree(loss, intercept, tmp_path):
    reference = make_problem(loss, intercept=intercept)
    w = random_parameters(reference.engine)
    point = reference.engine.point(w)
    dual = random_dual(reference.engine)
    for name, X in in_place_matrices(tmp_path).items():
        if name == "read-only F":
            X.flags.writeable = False
        before = np.array(X)
        problem = make_problem(loss, intercept=intercept, X=X)
        engine = problem.engine
        assert isinstance(engine, DenseEngine)
        assert np.shares_memory(engine._X, X), name
        here = engine.point(w)
        tolerance = {"rtol": 1e-12, "atol": 1e-13}
        if X.dtype == np.float32:
            # Rounding the data is not an error of the engine: compare with the rounded data.
            exact = make_problem(loss, intercept=intercept, X=X.astype(np.float64))
            np.testing.assert_allclose(here.losses, exact.losses(exact.for_user(w)), **tolerance)
            np.testing.assert_allclose(
                engine.hessian(here, dual),
                exact.engine.hessian(exact.engine.point(w), dual),
                **tolerance,
            )
        else:
            np.testing.assert_allclose(here.losses, point.losses, **tolerance)
            np.testing.assert_allclose(
                engine.gradient(here, dual), reference.engine.gradient(point, dual), **tolerance
            )
            np.testing.assert_allclose(
                engine.hessian(here, dual), reference.engine.hessian(point, dual), **tolerance
            )
        np.testing.assert_array_equal(np.array(X), before)


def test_solving_leaves_a_read_only_matrix_alone():
    X = make_data("squared", N, D, 0)[0]
    before = X.copy()
    X.flags.writeable = False
    sorel.solve(make_problem(X=X), solver="newton", tol=1e-9)
    np.testing.assert_array_equal(X, before)
    assert not X.flags.writeable


@pytest.mark.parametrize("kind", ["slice", "int", "bool", "float16", "big-endian", "list"])
def test_other_matrices_are_converted(kind):
    X = np.round(2 * make_data("squared", N, D, 0)[0])
    given = {
        "slice": np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3],
        "int": X.astype(np.int32),
        "bool": X > 0,
        "float16": X.astype(np.float16),
        "big-endian": X.astype(">f8"),
        "list": X.tolist(),
    }[kind]
    w = random_parameters(make_problem().engine)
    plain = np.asarray(given, dtype=np.float64, order="C").copy()
    np.testing.assert_allclose(
        make_problem(X=given).losses(w), make_problem(X=plain).losses(w), rtol=1e-13
    )


# Points.


@by_loss
@by_intercept
def test_points_hold_margins_losses_and_slopes(loss, intercept):
    problem = make_problem(loss, intercept=intercept)
    engine = problem.engine
    X, y = make_data(loss, N, D, 0)
    w = random_parameters(engine)
    point = engine.point(w)
    given = problem.for_user(w)
    np.testing.assert_allclose(
        point.losses, brute_losses(loss, X, y, given, intercept), rtol=1e-11, atol=1e-14
    )
    slopes = problem.loss.derivative(engine.y, point.margins)
    np.testing.assert_allclose(point.slopes, slopes, rtol=1e-13, atol=1e-15)


@by_loss
@by_intercept
def test_moving_along_a_direction_needs_no_data(loss, intercept):
    engine = make_problem(loss, intercept=intercept).engine
    w, delta = random_parameters(engine), random_parameters(engine, seed=7)
    moved = engine.moved(engine.point(w), delta, engine.direction(delta), 0.3)
    there = engine.point(w + 0.3 * delta)
    np.testing.assert_allclose(moved.w, there.w, rtol=1e-15)
    for name in ("margins", "losses", "slopes"):
        np.testing.assert_allclose(
            getattr(moved, name), getattr(there, name), rtol=1e-12, atol=1e-14
        )


def test_points_of_many_rows_do_not_share_memory():
    # Long arrays are recycled: only those of points that are gone.
    engine = make_problem(n=25_000, d=1).engine
    first = engine.point(np.array([1.0]))
    losses = first.losses.copy()
    for value in (2.0, 3.0):
        engine.gradient(engine.point(np.array([value])), engine.uniform())
    second = engine.point(np.array([2.0]))
    np.testing.assert_array_equal(first.losses, losses)
    assert not np.shares_memory(first.losses, second.losses)
    dual = engine.ascend(engine.uniform(), first, 1.0)
    density = dual.density.copy()
    engine.ascend(dual, second, 1.0)
    engine.worst_case(second)
    np.testing.assert_array_equal(dual.density, density)


# Weightings.


@pytest.mark.parametrize("risk", RISKS)
@by_weighting
def test_the_worst_case_attains_the_risk(risk, weighted):
    problem = make_problem(risk=risk, weighted=weighted)
    engine = problem.engine
    point = engine.point(random_parameters(engine))
    worst = engine.worst_case(point)
    value = engine.risk(point)
    assert engine.expected(point, worst) == pytest.approx(value, rel=1e-14)
    assert engine.shortfall(point, worst) == pytest.approx(0.0, abs=1e-15 * value)
    omega, order = omega_of(problem), np.argsort(point.losses)
    steps = np.concatenate([[0.0], np.cumsum(omega[order])])
    steps[-1] = 1.0
    sigma = np.diff(problem.risk.cumulative(steps))
    assert value == pytest.approx(sigma @ point.losses[order], rel=1e-12)
    lam = engine.weights(worst)
    assert lam.sum() == pytest.approx(1.0, abs=1e-14)
    assert lam.min() >= 0.0
    for seed in range(5):
        other = random_dual(engine, seed)
        gap = engine.shortfall(point, other)
        assert gap >= 0.0
        assert gap == pytest.approx(value - engine.expected(point, other), abs=1e-13 * value)


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@by_weighting
def test_a_trial_is_a_move_an_ascent_and_a_slope(loss, risk, weighted):
    problem = make_problem(loss, risk=risk, weighted=weighted)
    engine = problem.engine.for_run()
    point, center = engine.point(random_parameters(engine)), random_dual(engine)
    delta = random_parameters(engine, seed=1)
    change = engine.direction(delta)
    # From the second trial on there is a threshold or an order to go on from.
    for step, eta in ((1.0, 1.0), (0.9, 1.0), (0.5, 100.0), (2.0, 1e-3), (0.3, 0.0), (0.3, 1e6)):
        moved, dual, slope = engine.tried(point, delta, change, step, center, eta)
        alone = problem.engine.for_run()
        expected = alone.point(point.w + step * delta)
        best = alone.ascend(center, expected, eta) if eta > 0.0 else center
        np.testing.assert_allclose(moved.w, expected.w, rtol=1e-15)
        np.testing.assert_allclose(moved.losses, expected.losses, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(dual.density, best.density, rtol=1e-9, atol=1e-9 * (1 + eta))
        np.testing.assert_array_equal(dual.block, best.block)
        assert dual.n_blocks == best.n_blocks
        assert slope == pytest.approx(alone.slope(expected, best, change), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("risk", RISKS)
@by_weighting
def test_ascent_maximises_the_regularised_average(risk, weighted):
    engine = make_problem(risk=risk, weighted=weighted).engine
    point, center = engine.point(random_parameters(engine)), random_dual(engine)
    for eta in (0.01, 1.0, 1e4):
        best = engine.ascend(center, point, eta)

        def value(dual, eta=eta):
            distance = engine.square_distance(dual, center) / (2 * eta)
            return engine.expected(point, dual) - distance

        rivals = [center, engine.uniform(), engine.worst_case(point)]
        rivals += [random_dual(engine, seed) for seed in range(5)]
        rivals += [engine.blend(best, rival, 0.01) for rival in rivals]
        # Strong concavity: a rival loses at least the square of its distance.
        for rival in rivals:
            least = engine.square_distance(best, rival) / (2 * eta)
            assert value(best) - value(rival) >= least - 1e-12 * (abs(value(best)) + least)


def test_extrapolated_ascent():
    engine = make_problem(risk="esrm").engine
    point, previous = (engine.point(random_parameters(engine, seed)) for seed in (1, 2))
    center = random_dual(engine)
    found = engine.ascend(center, point, 0.3, previous, 0.6)
    target = center.density + 0.3 * (1.6 * point.losses - 0.6 * previous.losses)
    expected = sorel.project_permutahedron(target / N, RISKS["esrm"])
    np.testing.assert_allclose(engine.weights(found), expected, rtol=1e-11, atol=1e-15)


@by_weighting
def test_weights_go_out_and_come_back(weighted):
    engine = make_problem(weighted=weighted).engine
    dual = random_dual(engine)
    lam = engine.weights(dual)
    again, distance = engine.nearest_dual(lam)
    assert distance <= 1e-12
    np.testing.assert_allclose(engine.weights(again), lam, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(engine.uniform().density, 1.0)


def test_losses_that_all_tie_have_no_spread():
    problem = make_problem("logistic")
    engine = problem.engine
    start = engine.point(np.zeros(engine.shape))
    assert engine.loss_scale(start) <= 1e-15
    assert problem.loss_scale(start) == pytest.approx(np.log(2.0), rel=1e-12)
    assert engine.mean_loss_at_zero() == pytest.approx(np.log(2.0), rel=1e-12)


# Derivatives.


@by_loss
@by_intercept
@by_weighting
def test_gradient_slope_and_hessian_of_the_weighted_loss(loss, intercept, weighted):
    engine = make_problem(loss, intercept=intercept, weighted=weighted).engine
    w, dual = random_parameters(engine), random_dual(engine)
    point = engine.point(w)
    gradient = engine.gradient(point, dual)
    assert gradient.shape == w.shape
    numeric = differences(lambda u: engine.expected(engine.point(u), dual), w)
    np.testing.assert_allclose(gradient.ravel(), numeric, rtol=1e-6, atol=1e-8)
    hessian = engine.hessian(point, dual)
    numeric = differences(lambda u: engine.gradient(engine.point(u), dual).ravel(), w)
    np.testing.assert_allclose(hessian, numeric, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-15)
    delta = random_parameters(engine, seed=9)
    slope = engine.slope(point, dual, engine.direction(delta))
    assert slope == pytest.approx(float(np.vdot(gradient, delta)), rel=1e-12)


@pytest.mark.parametrize("d", [23, 24, 25, 40])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@by_intercept
def test_hessian_of_few_and_many_columns(d, loss, intercept):
    problem = make_problem(loss, d=d, intercept=intercept)
    engine = problem.engine
    point = engine.point(random_parameters(engine, size=0.2))
    center = random_dual(engine)
    dual = engine.ascend(center, point, 2.0)
    X = make_data(loss, N, d, 0)[0]
    full = np.column_stack([X, np.ones(N)])[:, : d + intercept]
    q, block = engine.weights(dual), np.asarray(dual.block)
    curvature = problem.loss.curvature(engine.y, point.margins)
    expected = full.T @ ((q * curvature)[:, None] * full)
    for b in range(dual.n_blocks):
        rows = point.slopes[block == b, None] * full[block == b]
        rows -= rows.mean(axis=0)
        expected += 2.0 / N * rows.T @ rows
    np.testing.assert_allclose(engine.hessian(point, dual, 2.0), expected, rtol=1e-9, atol=1e-11)


@by_loss
@pytest.mark.parametrize("risk", ["cvar", "esrm", "mixture", "custom"])
@by_weighting
@by_intercept
def test_generalised_hessian_is_the_derivative_of_the_gradient(loss, risk, weighted, intercept):
    """Phi(w) = max_q q . l(w) - |q - q_k|^2 / (2 eta), where its projection is differentiable."""
    engine = make_problem(loss, risk=risk, weighted=weighted, intercept=intercept).engine
    w, center = random_parameters(engine), random_dual(engine)
    eta, h = 0.2, 1e-6
    point = engine.point(w)
    dual = engine.ascend(center, point, eta)
    assert dual.n_blocks > 0
    assert np.max(dual.block) == dual.n_blocks - 1
    inside = np.asarray(dual.block).copy()

    def gradient(u):
        here = engine.point(u)
        best = engine.ascend(center, here, eta)
        np.testing.assert_array_equal(best.block >= 0, inside >= 0)  # else there is no derivative
        return engine.gradient(here, best).ravel()

    numeric = differences(gradient, w, h)
    hessian = engine.hessian(point, dual, eta)
    np.testing.assert_allclose(hessian, numeric, rtol=1e-5, atol=1e-6)
    # The augmented term is not a rounding error here.
    assert np.abs(hessian - engine.hessian(point, dual)).max() > 1e-4 * np.abs(hessian).max()
    v = random_parameters(engine, seed=11)
    curvature = engine.curvature(point, dual, eta)
    product = curvature.product(v)
    np.testing.assert_allclose(product.ravel(), hessian @ v.ravel(), rtol=1e-10, atol=1e-12)
    diagonal = curvature.diagonal()
    assert diagonal.shape == w.shape
    assert np.all(diagonal.ravel() >= np.diag(hessian) * (1 - 1e-12))


@by_loss
@by_intercept
@by_weighting
@pytest.mark.parametrize("risk", ["cvar", "esrm", "mixture"])
@pytest.mark.parametrize("home", ["C", "F", "sparse"])
def test_products_with_the_rows_that_have_curvature(loss, intercept, weighted, risk, home):
    X = sparse_data()
    X = {"C": X, "F": np.asfortranarray(X), "sparse": scipy.sparse.csr_array(X)}[home]
    problem = make_problem(
        loss, risk=risk, intercept=intercept, weighted=weighted, X=X, n=40, d=6, seed=2
    )
    engine = problem.engine
    point = engine.point(random_parameters(engine))
    center = engine.worst_case(point)
    v = random_parameters(engine, seed=11)
    for eta, caution in itertools.product((0.0, 0.4), (0.0, 0.5 * (loss != "multinomial"))):
        dual = engine.ascend(center, point, 0.4)
        curvature = engine.curvature(point, dual, eta, caution)
        hessian = engine.hessian(point, dual, eta, caution=caution)
        product = curvature.product(v)
        np.testing.assert_allclose(product.ravel(), hessian @ v.ravel(), rtol=1e-9, atol=1e-12)
        diagonal = curvature.diagonal()
        assert np.all(diagonal.ravel() >= np.diag(hessian) * (1 - 1e-12))
        active = np.asarray(dual.density) > 0.0
        if eta > 0.0:
            active |= np.asarray(dual.block) >= 0
        # Squared hinges and huber losses have flat parts, which are left out as well.
        assert curvature.share <= 1.0
        if (home != "F" or loss == "multinomial") and risk == "cvar":
            assert curvature.share <= active.mean() < 0.7


def test_rows_too_large_to_copy_are_multiplied_in_place(monkeypatch):
    engine = make_problem("logistic", X=scipy.sparse.csr_array(sparse_data()), n=40, d=6).engine
    point = engine.point(random_parameters(engine))
    dual = engine.worst_case(point)
    v = random_parameters(engine, seed=11)
    few = engine.curvature(point, dual)
    monkeypatch.setattr("sorel.engines.sparse._MAX_COPY", 100)
    every = engine.curvature(point, dual)
    assert few.share < every.share == 1.0
    np.testing.assert_allclose(every.product(v), few.product(v), rtol=1e-12, atol=1e-15)


def test_gradient_of_the_envelope():
    engine = make_problem(risk="esrm").engine
    w, center, eta = random_parameters(engine), random_dual(engine), 1.5

    def phi(u):
        point = engine.point(u)
        best = engine.ascend(center, point, eta)
        return engine.expected(point, best) - engine.square_distance(best, center) / (2 * eta)

    point = engine.point(w)
    found = engine.gradient(point, engine.ascend(center, point, eta))
    np.testing.assert_allclose(found, differences(phi, w), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("risk", ["mean", "cvar", "esrm"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@by_weighting
@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_sampled_hessian_stands_for_the_full_one(risk, loss, weighted, eta):
    engine = make_problem(loss, risk=risk, weighted=weighted, n=6000, d=3, intercept=True).engine
    point = engine.point(random_parameters(engine))
    dual = engine.ascend(engine.uniform(), point, max(eta, 0.5))
    full = engine.hessian(point, dual, eta)
    sampled = engine.hessian(point, dual, eta, n_rows=1000)
    assert np.linalg.norm(sampled - full) < 0.2 * np.linalg.norm(full)
    assert np.linalg.eigvalsh(sampled).min() > -1e-12 * np.linalg.norm(full)
    assert not np.array_equal(sampled, full) or risk == "esrm"
    # Few rows: nothing to gain, all are used.
    np.testing.assert_array_equal(engine.hessian(point, dual, eta, n_rows=3000), full)


# The intercept.


@by_loss
@by_weighting
def test_best_intercept_leaves_no_slope(loss, weighted):
    engine = make_problem(loss, risk="esrm", intercept=True, weighted=weighted).engine
    dual = random_dual(engine)
    for size in (0.0, 0.7, 20.0):
        point = engine.point(random_parameters(engine, size=size))
        best = engine.best_intercept(point, dual)
        assert best is not None
        np.testing.assert_array_equal(best.w[:-1], point.w[:-1])
        slopes = engine.weights(dual)[:, None] * best.slopes.reshape(engine.n_samples, -1)
        assert np.abs(slopes.sum(axis=0)).max() <= 1e-13 * max(1.0, np.abs(slopes).sum())
        np.testing.assert_allclose(engine.point(best.w).losses, best.losses, rtol=1e-9, atol=1e-12)
        assert engine.expected(best, dual) <= engine.expected(point, dual) * (1 + 1e-14)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("seed", range(10))
def test_best_intercept_of_an_almost_perfect_fit(loss, seed):
    # Residuals of 1e-6 under margins of 100: the slope cannot fall below the margins' rounding.
    rng = np.random.default_rng(seed)
    X, w = 30.0 * rng.normal(size=(15, 8)), rng.normal(size=9)
    y = X @ w[:-1] + w[-1] + 1e-6 * rng.normal(size=15)
    problem = sorel.Problem(X, y, risk=sorel.ESRM(2.0), loss=loss, fit_intercept=True)
    engine = problem.engine
    dual = random_dual(engine, seed)
    lam = engine.weights(dual)
    shift = lam @ (y - X @ w[:-1]) - w[-1]
    for start in (-1.0, 0.0, shift):
        given = problem.from_user(np.append(w[:-1], w[-1] + start))
        best = engine.best_intercept(engine.point(given), dual)
        assert best is not None
        assert abs(lam @ best.slopes) <= 1e-13
        assert problem.for_user(best.w)[-1] == pytest.approx(w[-1] + shift, abs=1e-12)


def dual_on_one_class(problem):
    """All weight on the samples of the first class."""
    first = problem.engine.y == problem.engine.y.min()
    lam = np.where(first, 1.0, 0.0)
    return problem.engine.nearest_dual(lam / lam.sum())[0], first


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_one_class_has_no_best_intercept(loss):
    problem = make_problem(loss, risk="max", intercept=True)
    dual, first = dual_on_one_class(problem)
    assert problem.engine.weights(dual)[~first].sum() == 0.0
    point = problem.engine.point(random_parameters(problem.engine))
    best = problem.engine.best_intercept(point, dual)
    # None, or so far out that the infimum, which is 0, is reached in floating point.
    assert best is None or problem.engine.expected(best, dual) < 1e-300


def test_one_class_has_a_best_intercept_where_the_loss_reaches_zero():
    problem = make_problem("squared_hinge", risk="max", intercept=True)
    dual, _ = dual_on_one_class(problem)
    best = problem.engine.best_intercept(
        problem.engine.point(random_parameters(problem.engine)), dual
    )
    assert best is not None
    assert problem.engine.expected(best, dual) == pytest.approx(0.0, abs=1e-30)


# Sparse matrices.


def sparse_data(n=40, d=6, seed=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.4)


@by_loss
@by_intercept
@by_weighting
def test_sparse_equals_dense(loss, intercept, weighted):
    X = sparse_data()
    options = {"intercept": intercept, "weighted": weighted, "n": 40, "d": 6, "risk": "esrm"}
    dense = make_problem(loss, X=X, **options)
    sparse = make_problem(loss, X=scipy.sparse.csr_array(X), **options)
    assert isinstance(sparse.engine, SparseEngine)
    w, delta = random_parameters(dense.engine), random_parameters(dense.engine, seed=8)
    close = {"rtol": 1e-11, "atol": 1e-13}
    points = dense.engine.point(w), sparse.engine.point(w)
    np.testing.assert_allclose(points[1].losses, points[0].losses, **close)
    found = []
    for problem, point in zip((dense, sparse), points, strict=True):
        engine = problem.engine
        dual = engine.ascend(random_dual(engine), point, 1.5)
        found.append(
            {
                "gradient": engine.gradient(point, dual),
                "slope": engine.slope(point, dual, engine.direction(delta)),
                "hessian": engine.hessian(point, dual, 1.5),
                "product": engine.curvature(point, dual, 1.5).product(delta),
                "diagonal": engine.curvature(point, dual, 1.5).diagonal(),
                "gap": problem.certificate(w, engine.weights(dual)).gap,
            }
        )
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, err_msg=name, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_sparse_formats_and_types(format, dtype, kind):
    X = np.round(3 * sparse_data()).astype(dtype)
    make = getattr(scipy.sparse, f"{format}_{kind}")
    given = make(X)
    dense = make_problem(X=X.astype(np.float64), n=40, d=6)
    sparse = make_problem(X=given, n=40, d=6)
    w = random_parameters(dense.engine)
    assert sparse.objective(w) == pytest.approx(dense.objective(w), rel=1e-12)
    np.testing.assert_array_equal(given.toarray(), X)
    result = sorel.solve(sparse, solver="newton", tol=1e-6)
    assert result.objective == pytest.approx(
        sorel.solve(dense, solver="newton", tol=1e-9).objective, rel=2e-6
    )


def test_sparse_rows_out_of_order_and_given_twice():
    data = np.array([1.0, 2.0, 3.0, -1.0, 4.0])
    indices = np.array([2, 0, 0, 1, 1])
    indptr = np.array([0, 3, 3, 5])
    X = scipy.sparse.csr_array((data, indices, indptr), shape=(3, 3))
    dense = np.array([[5.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    y = [1.0, 2.0, 3.0]
    first, second = (
        sorel.Problem(M, y, risk=sorel.ESRM(2.0), penalty=sorel.L2(0.1)) for M in (X, dense)
    )
    w = np.array([0.3, -0.5, 0.7])
    assert first.objective(w) == pytest.approx(second.objective(w), rel=1e-14)
    engines = first.engine, second.engine
    points = [engine.point(w) for engine in engines]
    duals = [e.ascend(e.uniform(), p, 1.0) for e, p in zip(engines, points, strict=True)]
    for name in ("gradient", "hessian"):
        found = [getattr(e, name)(p, q) for e, p, q in zip(engines, points, duals, strict=True)]
        np.testing.assert_allclose(found[0], found[1], rtol=1e-13, atol=1e-15)
    diagonals = [
        e.curvature(p, q).diagonal() for e, p, q in zip(engines, points, duals, strict=True)
    ]
    np.testing.assert_allclose(diagonals[0], diagonals[1], rtol=1e-13, atol=1e-15)


# Stochastic epochs.


@by_loss
@by_intercept
@by_weighting
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_epochs_stay_at_the_minimum_and_lead_to_it(loss, intercept, weighted, sampling):
    problem = make_problem(loss, risk="mean", intercept=intercept, weighted=weighted)
    engine, penalty = problem.engine, problem.penalty
    best = problem.from_user(sorel.solve(problem, solver="newton", tol=1e-14).w)
    dual, rng = engine.uniform(), np.random.default_rng(0)
    step = 0.1 / engine.smoothness(dual).component
    for proximal, batch in itertools.product([False, True], [1, 5]):
        plan = Plan(step, 40, penalty.kernel(D), batch, proximal, sampling=sampling)
        snapshot = engine.point(best)
        there = engine.epoch(snapshot, dual, engine.gradient(snapshot, dual), plan, rng)
        # At the minimum every step of the reduced variance is nil.
        np.testing.assert_allclose(there, best, rtol=0, atol=1e-6)
    w = best + 0.5
    for _ in range(10):
        point = engine.point(w)
        w = engine.epoch(point, dual, engine.gradient(point, dual), plan._replace(steps=400), rng)
    assert np.linalg.norm(w - best) < 0.5 * np.linalg.norm(np.full_like(best, 0.5))
    there, far = problem.for_user(w), problem.for_user(best + 0.5)
    assert problem.objective(there) < problem.objective(far)


def test_make_engine_chooses_by_the_kind_of_matrix():
    X, y = make_data("squared", 6, 2, 0)
    spec = Spec(y, sorel.losses.Squared(), sorel.Mean())
    assert isinstance(make_engine(X, spec), DenseEngine)
    assert isinstance(make_engine(scipy.sparse.csr_array(X), spec), SparseEngine)
    assert make_problem("multinomial").engine.n_outputs == CLASSES


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7, 3), (30_011, 10), (70_001, 3), (60, 3000), (3, 90_000)])
def test_sizes_of_columns(shape, order):
    X = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    X[-1, -1], X[0, 0] = -9.0, 8.0
    problem = sorel.Problem(X, np.zeros(len(X)))
    np.testing.assert_array_equal(problem.engine.column_scale(), np.abs(X).max(axis=0))
