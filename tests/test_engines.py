"""Engines in memory: what the contract does not ask for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
from helpers import CLASSES, LOSSES, RISKS, make_data, make_loss

import sorel
from sorel.engines import Spec, intercepts, make_engine
from sorel.engines.base import InterceptStatistics
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


def sparse_data(n=40, d=6, seed=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.4)


# X is read in place.


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@by_intercept
@pytest.mark.parametrize("tile", [50, 65536])
def test_dense_matrices_are_used_in_place(monkeypatch, loss, intercept, order, dtype, tile):
    monkeypatch.setattr("sorel.engines.dense._TILE_SIZE", tile)
    X = np.asarray(make_data(loss, N, D, 0)[0].astype(dtype), order=order)
    before = X.copy()
    X.flags.writeable = False
    given = make_problem(loss, intercept=intercept, X=X)
    exact = make_problem(loss, intercept=intercept, X=X.astype(np.float64, order="C"))
    assert isinstance(given.engine, DenseEngine)
    assert np.shares_memory(given.engine.stored()[0], X)
    matrices = []
    for engine in (given.engine, exact.engine):
        point = engine.point(random_parameters(engine))
        dual = random_dual(engine)
        curvature = engine.curvature(point, dual).matrix()
        matrices.append([engine.losses(point), engine.gradient(point, dual), curvature])
    for found, expected in zip(*matrices, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    sorel.solve(given, solver="newton", tol=1e-6)
    np.testing.assert_array_equal(X, before)


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


# Derivatives.


@by_loss
@by_intercept
@by_weighting
@pytest.mark.parametrize("risk", ["cvar", "esrm"])
@pytest.mark.parametrize("home", ["C", "F", "sparse"])
@pytest.mark.parametrize("d", [6, 30])
def test_products_with_the_rows_that_have_curvature(loss, intercept, weighted, risk, home, d):
    X = sparse_data(d=d)
    X = {"C": X, "F": np.asfortranarray(X), "sparse": scipy.sparse.csr_array(X)}[home]
    problem = make_problem(
        loss, risk=risk, intercept=intercept, weighted=weighted, X=X, n=40, d=d, seed=2
    )
    engine = problem.engine
    point = engine.point(random_parameters(engine, size=0.3))
    center = engine.worst_case(point)
    v = random_parameters(engine, seed=11)
    for eta, damping in itertools.product((0.0, 0.4), (0.0, 0.5 * (loss != "multinomial"))):
        dual = engine.dual_step(center, point, 0.4)
        curvature = engine.curvature(point, dual, eta, damping)
        hessian = engine.curvature(point, dual, eta, damping).matrix()
        product = curvature.product(v)
        np.testing.assert_allclose(product.ravel(), hessian @ v.ravel(), rtol=1e-9, atol=1e-12)
        assert np.all(curvature.diagonal().ravel() >= np.diag(hessian) * (1 - 1e-12))
        # The rows that a tail risk leaves out are left out here, and those on flat parts of losses.
        assert curvature.share <= (0.7 if risk == "cvar" else 1.0)


@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
@pytest.mark.parametrize("home", ["dense", "sparse"])
def test_rows_too_large_to_copy_are_multiplied_in_place(monkeypatch, home, loss):
    X = sparse_data()
    X = scipy.sparse.csr_array(X) if home == "sparse" else X
    engine = make_problem(loss, X=X, n=40, d=6).engine
    point = engine.point(random_parameters(engine))
    dual, v = engine.worst_case(point), random_parameters(engine, seed=11)
    few = engine.curvature(point, dual)
    assert few.share < 0.7
    monkeypatch.setattr(f"sorel.engines.{home}.MAX_COPY", 100)
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


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("seed", range(4))
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


# Parts, facts and refusals.


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
