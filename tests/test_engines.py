"""Engines in memory: what the contract does not ask for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
from helpers import CLASSES, LOSSES, RISKS, make_data, make_loss

import sorel
from sorel.engines import Spec, intercepts, make_engine
from sorel.engines.base import InterceptStatistics, Plan
from sorel.engines.dense import DenseEngine
from sorel.engines.sparse import SparseEngine

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
        assert np.shares_memory(engine.stored()[0], X), name
        here = engine.point(w)
        tolerance = {"rtol": 1e-12, "atol": 1e-13}
        if X.dtype == np.float32:
            # Rounding the data is not an error of the engine: compare with the rounded data.
            exact = make_problem(loss, intercept=intercept, X=X.astype(np.float64))
            np.testing.assert_allclose(here.losses, exact.losses(exact.for_user(w)), **tolerance)
            np.testing.assert_allclose(
                engine.curvature(here, dual).matrix(),
                exact.engine.curvature(exact.engine.point(w), dual).matrix(),
                **tolerance,
            )
        else:
            np.testing.assert_allclose(here.losses, point.losses, **tolerance)
            np.testing.assert_allclose(
                engine.gradient(here, dual), reference.engine.gradient(point, dual), **tolerance
            )
            np.testing.assert_allclose(
                engine.curvature(here, dual).matrix(),
                reference.engine.curvature(point, dual).matrix(),
                **tolerance,
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


# Weightings.


def test_extrapolated_ascent():
    engine = make_problem(risk="esrm").engine
    point, previous = (engine.point(random_parameters(engine, seed)) for seed in (1, 2))
    center = random_dual(engine)
    found = engine.dual_step(center, point, 0.3, previous, 0.6)
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


# Derivatives.


@pytest.mark.parametrize("d", [23, 24, 25, 40])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@by_intercept
def test_hessian_of_few_and_many_columns(d, loss, intercept):
    problem = make_problem(loss, d=d, intercept=intercept)
    engine = problem.engine
    point = engine.point(random_parameters(engine, size=0.2))
    center = random_dual(engine)
    dual = engine.dual_step(center, point, 2.0)
    X = make_data(loss, N, d, 0)[0]
    full = np.column_stack([X, np.ones(N)])[:, : d + intercept]
    q, block = engine.weights(dual), dual.derivative.block
    curvature = problem.loss.curvature(engine.y, point.margins)
    expected = full.T @ ((q * curvature)[:, None] * full)
    for b in range(dual.derivative.n_blocks):
        rows = point.slopes[block == b, None] * full[block == b]
        rows -= rows.mean(axis=0)
        expected += 2.0 / N * rows.T @ rows
    np.testing.assert_allclose(
        engine.curvature(point, dual, 2.0).matrix(), expected, rtol=1e-9, atol=1e-11
    )


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
    for eta, damping in itertools.product((0.0, 0.4), (0.0, 0.5 * (loss != "multinomial"))):
        dual = engine.dual_step(center, point, 0.4)
        curvature = engine.curvature(point, dual, eta, damping)
        hessian = engine.curvature(point, dual, eta, damping).matrix()
        product = curvature.product(v)
        np.testing.assert_allclose(product.ravel(), hessian @ v.ravel(), rtol=1e-9, atol=1e-12)
        diagonal = curvature.diagonal()
        assert np.all(diagonal.ravel() >= np.diag(hessian) * (1 - 1e-12))
        active = np.asarray(dual.density) > 0.0
        if eta > 0.0:
            active |= dual.derivative.block >= 0
        # Squared hinges and huber losses have flat parts, which are left out as well.
        assert curvature.share <= 1.0
        if risk == "cvar":
            assert curvature.share <= active.mean() < 0.7


def test_rows_too_large_to_copy_are_multiplied_in_place(monkeypatch):
    engine = make_problem("logistic", X=scipy.sparse.csr_array(sparse_data()), n=40, d=6).engine
    point = engine.point(random_parameters(engine))
    dual = engine.worst_case(point)
    v = random_parameters(engine, seed=11)
    few = engine.curvature(point, dual)
    assert few.share < 0.7
    monkeypatch.setattr("sorel.engines.sparse.MAX_COPY", 100)
    every = engine.curvature(point, dual)
    assert every.share == 1.0
    np.testing.assert_allclose(every.product(v), few.product(v), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("risk", ["mean", "cvar", "esrm"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@by_weighting
@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_sampled_hessian_stands_for_the_full_one(risk, loss, weighted, eta):
    engine = make_problem(loss, risk=risk, weighted=weighted, n=6000, d=3, intercept=True).engine
    point = engine.point(random_parameters(engine))
    dual = engine.dual_step(engine.uniform(), point, max(eta, 0.5))
    full = engine.curvature(point, dual, eta).matrix()
    sampled = engine.curvature(point, dual, eta).matrix(1000)
    assert np.linalg.norm(sampled - full) < 0.2 * np.linalg.norm(full)
    assert np.linalg.eigvalsh(sampled).min() > -1e-12 * np.linalg.norm(full)
    assert not np.array_equal(sampled, full) or risk == "esrm"
    # Few rows: nothing to gain, all are used.
    np.testing.assert_array_equal(engine.curvature(point, dual, eta).matrix(3000), full)


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
    duals = [e.dual_step(e.uniform(), p, 1.0) for e, p in zip(engines, points, strict=True)]
    handles = list(zip(engines, points, duals, strict=True))
    for found in (
        [e.gradient(p, q) for e, p, q in handles],
        [e.curvature(p, q).matrix() for e, p, q in handles],
        [e.curvature(p, q).diagonal() for e, p, q in handles],
    ):
        np.testing.assert_allclose(found[0], found[1], rtol=1e-13, atol=1e-15)


# Stochastic epochs.


@by_loss
@by_intercept
@by_weighting
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_epochs_stay_at_the_minimum_and_lead_to_it(loss, intercept, weighted, sampling):
    problem = make_problem(loss, risk="mean", intercept=intercept, weighted=weighted)
    engine, penalty = problem.engine, problem.penalty
    best = problem.from_user(sorel.solve(problem, solver="newton", tol=1e-12).w)
    dual, rng = engine.uniform(), np.random.default_rng(0)
    step = 0.1 / engine.stochastic().smoothness(dual).component
    for proximal, batch in itertools.product([False, True], [1, 5]):
        plan = Plan(step, 40, penalty.kernel(D), batch, proximal, sampling=sampling)
        snapshot = engine.point(best)
        there = engine.stochastic().epoch(
            snapshot, dual, engine.gradient(snapshot, dual), plan, rng
        )
        # At the minimum every step of the reduced variance is nil.
        np.testing.assert_allclose(there, best, rtol=0, atol=1e-6)
    w = best + 0.5
    for _ in range(10):
        point = engine.point(w)
        w = engine.stochastic().epoch(
            point, dual, engine.gradient(point, dual), plan._replace(steps=400), rng
        )
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


# Parts, facts and refusals.


@pytest.mark.parametrize("kind", ["rows", "columns", "sparse", "single"])
def test_some_rows_are_a_problem_of_their_own(kind):
    X, y = make_data("squared", 40, 3, 0)
    weight = np.random.default_rng(1).uniform(0.1, 2.0, 40)
    given = {
        "rows": X, "columns": np.asfortranarray(X), "sparse": scipy.sparse.csr_array(X),
        "single": X.astype(np.float32),
    }[kind]  # fmt: skip
    rows, w = np.array([2, 3, 17, 39]), np.array([0.5, -1.0, 2.0])
    engine = sorel.Problem(given, y, risk="cvar:0.4", sample_weight=weight).engine
    part = engine.on_rows(rows)
    alone = sorel.Problem(given[rows], y[rows], risk="cvar:0.4", sample_weight=weight[rows])
    assert part.risk(part.point(w)) == pytest.approx(alone.objective(w) - 0.125 * w @ w)
    # A copy: the caller's X may change, and so may the part.
    assert not np.shares_memory(part.stored()[0].data, given.data)


def test_rows_that_miss_a_class_or_all_weight_are_none():
    X = make_data("logistic", 40, 2, 0)[0]
    rare = np.where(np.arange(40) == 7, 1.0, -1.0)
    engine = sorel.Problem(X, rare, loss="logistic").engine
    assert engine.on_rows(np.arange(7)) is None
    assert engine.on_rows(np.arange(8)).n_samples == 8
    engine = sorel.Problem(X, X[:, 0], sample_weight=np.where(np.arange(40) == 7, 1.0, 0.0)).engine
    assert engine.on_rows(np.arange(7)) is None


@pytest.mark.parametrize("kind", ["C", "F", "sparse"])
@by_intercept
def test_some_columns_take_the_points_of_all(kind, intercept):
    X = sparse_data()
    given = {"C": X, "F": np.asfortranarray(X), "sparse": scipy.sparse.csr_array(X)}[kind]
    engine = make_problem("logistic", X=given, n=40, d=6, intercept=intercept).engine
    point = engine.point(random_parameters(engine))
    dual = engine.dual_step(engine.uniform(), point, 0.5)
    chosen = np.array([1, 4])
    part = engine.columns(chosen)
    kept = np.array([1, 4, 6][: 2 + int(intercept)])
    whole = engine.curvature(point, dual, 0.5).matrix()
    np.testing.assert_allclose(
        part.curvature(point, dual, 0.5).matrix(), whole[np.ix_(kept, kept)], rtol=1e-10, atol=1e-13
    )


def test_sums_that_rounding_errors_are_measured_by():
    X, y = make_data("squared", 20, 2, 0)
    y, w, weight = np.abs(y), np.array([0.4, -0.3]), np.ones(20)
    y[3], weight[3] = 1e3, 0.0  # the steepest by far has no weight
    engine = sorel.Problem(X, y, loss="poisson", sample_weight=weight).engine
    point, dual = engine.point(w), engine.uniform()
    facts, mean, lam = engine.rounding(point, dual), np.exp(X @ w), weight / 19
    slopes = np.abs(mean - y)
    assert facts.mass == pytest.approx(1.0)
    assert facts.slopes == pytest.approx(lam @ slopes)
    assert facts.curvatures == pytest.approx(lam @ mean)
    assert facts.losses >= lam @ np.abs(engine.losses(point))
    assert facts.largest_slope == pytest.approx(np.delete(slopes, 3).max())
    assert facts.largest_curvature == pytest.approx(np.delete(mean, 3).max())
    engine = sorel.Problem(
        X, y, loss="linear", risk=sorel.Deviation(sorel.CVaR(0.3)), penalty=sorel.L2(0.1)
    ).engine
    # The weights of a deviation are no larger than those of the risk and of the mean together.
    assert engine.rounding(engine.point(w), engine.uniform()).slopes == pytest.approx(2.0)


def test_weights_are_as_exact_as_losses_that_overflow_when_squared():
    X, y = make_data("squared", 20, 2, 0)
    weight = np.linspace(1.0, 2.0, 20)
    w = np.array([1.0, 2.0])
    errors = []
    for size in (1.0, 1e90):
        engine = sorel.Problem(X, size * y, sample_weight=weight).engine
        errors.append(engine.rounding(engine.point(size * w), engine.uniform()).weights)
    assert errors[1] == pytest.approx(1e180 * errors[0], rel=1e-9)


def test_losses_that_grow_like_exponentials_may_overflow():
    X, y = make_data("squared", 20, 2, 0)
    engine = sorel.Problem(X, np.abs(y), loss="poisson").engine
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(engine.sizes(engine.point(np.array([1e4, -1e4]))).absolute)
    assert np.isfinite(engine.sizes(engine.point(np.ones(2))).absolute)


def test_targets_and_weights_have_an_entry_per_row_and_labels_count_classes():
    def make(targets, weight=None, loss=None, classes=None):
        loss = sorel.losses.Squared() if loss is None else loss
        return make_engine(np.eye(3), Spec(targets, loss, sorel.Mean(), classes, False, weight))

    make(np.zeros(3))
    for short in (np.zeros(2), np.zeros((3, 1))):
        with pytest.raises(ValueError, match=r"^X has 3 rows but targets has shape"):
            make(short)
        with pytest.raises(ValueError, match=r"^X has 3 rows but sample_weight has shape"):
            make(np.zeros(3), short)
    for labels in ([0, 1, 3], [-1, 1, 2]):
        with pytest.raises(ValueError, match=r"^targets must be the numbers 0 to 2 of the classes"):
            make(np.array(labels), None, sorel.losses.Multinomial(), np.arange(3))


def test_what_a_deviation_stands_in_the_way_of():
    X, y = make_data("squared", 20, 2, 0)
    more = {"loss": "linear", "penalty": sorel.L2(0.1)}
    plain = sorel.Problem(X, y, risk="cvar:0.3", **more).engine
    deviation = sorel.Problem(X, y, risk="deviation:cvar:0.3", **more).engine
    for operation in ("splitting", "batches", "epoch", "smoothness"):
        assert plain.obstacle(operation) is None
        assert "deviation" in deviation.obstacle(operation)
    assert deviation.obstacle("deviations") is None


@by_weighting
def test_bounds_on_curvature_and_jacobians(weighted):
    problem = make_problem("logistic", risk="esrm", weighted=weighted, intercept=True)
    engine, omega = problem.engine, omega_of(problem)
    steps = engine.stochastic()
    squares = (make_data("logistic", N, D, 0)[0] ** 2).sum(axis=1) + 1.0
    average, component, largest = steps.smoothness()
    assert largest == pytest.approx(0.25 * squares.max())
    for seed in range(5):
        lam = engine.weights(random_dual(engine, seed))
        found = steps.smoothness(engine.nearest_dual(lam)[0])
        assert found.average == pytest.approx(0.25 * lam @ squares)
        assert found.component == pytest.approx(0.25 * N * (lam * squares).max())
        assert found.average <= average * (1 + 1e-12)
        assert found.component <= component * (1 + 1e-12)
    assert steps.jacobian_bound(np.inf) == pytest.approx(omega @ squares)


# The intercepts, from derivatives at a shift.


def statistics_of(derivative, curvature, rounding=1.0):
    return lambda s: InterceptStatistics(
        np.array([derivative(s)]), np.array([[curvature(s)]]), rounding, np.ones(1, bool)
    )


@pytest.mark.parametrize(
    ("derivative", "curvature", "root"),
    [
        (lambda s: s - 3.0, lambda s: 1.0, 3.0),
        (lambda s: s + 3e5, lambda s: 1.0, -3e5),
        (lambda s: np.tanh(s - 20.0), lambda s: np.cosh(s - 20.0) ** -2, 20.0),
        (lambda s: np.exp(s) - 1e6, np.exp, np.log(1e6)),
        # Flat on both sides of a kink, where there is no curvature to go by.
        (lambda s: -1.0 if s < 7.5 else 1.0, lambda s: 0.0, 7.5),
    ],
)
def test_the_root_of_the_derivative_in_a_shift(derivative, curvature, root):
    found = intercepts.best_shift(statistics_of(derivative, curvature), 1)
    assert found == pytest.approx(root, rel=1e-9, abs=1e-9)


def test_no_root_where_the_derivative_keeps_its_sign():
    flat = statistics_of(lambda s: 1.0 + np.exp(-abs(s)), lambda s: 0.0)
    assert intercepts.best_shift(flat, 1) is None


def test_how_far_the_sum_may_fall_below_a_small_derivative():
    """A parabola of curvature c and derivative r at no shift falls by r^2 / 2c; half a bound."""
    for r, c in ((1e-3, 2.0), (1e-9, 5.0)):
        slack = intercepts.shift_slack(
            statistics_of(lambda s, r=r, c=c: r + c * s, lambda s, c=c: c), r
        )
        assert r**2 / (2 * c) <= slack <= 100.0 * r**2 / c + 1e-12
    flat = intercepts.shift_slack(statistics_of(lambda s: 0.5 * np.tanh(s), lambda s: 0.0), 1.0)
    assert flat == np.inf
