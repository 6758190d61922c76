"""Engines in memory: what the contract does not ask for."""

import numpy as np
import pytest
import scipy.sparse
from contract import parameters, weighting
from helpers import LOSSES, RISKS, make_data, make_loss

import sorel
from sorel.engines import Spec, make_engine
from sorel.engines.centered import CenteredMatrix
from sorel.engines.dense import DenseEngine

by_intercept = pytest.mark.parametrize("intercept", [False, True])
by_weighting = pytest.mark.parametrize("weighted", [False, True])
N, D = 40, 6
HOMES = {
    "rows": np.ascontiguousarray, "columns": np.asfortranarray, "sparse": scipy.sparse.csr_array,
    "single": lambda X: X.astype(np.float32),
}  # fmt: skip
by_home = pytest.mark.parametrize("home", HOMES)


def make_problem(
    loss="squared", *, risk="cvar", intercept=False, weighted=False, n=N, d=D, home=None, X=None
):
    """A problem on data of which half are zeros, unless X is given."""
    rng = np.random.default_rng(1)
    data, y = make_data(loss, n, d, 0)
    omega = rng.uniform(0.2, 2.0, n) if weighted else None
    X = HOMES[home or "rows"](data * (rng.random((n, d)) < 0.5)) if X is None else X
    return sorel.Problem(
        X, y, risk=RISKS[risk], loss=make_loss(loss), penalty=sorel.L2(0.1),
        fit_intercept=intercept, sample_weight=omega,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@by_intercept
@pytest.mark.parametrize("tile", [50, 65536])
def test_dense_matrices_are_used_in_place(monkeypatch, loss, intercept, order, dtype, tile):
    monkeypatch.setattr("sorel.engines.dense._TILE_SIZE", tile)
    X = np.asarray(make_data(loss, N, D, 0)[0], dtype, order=order)
    before = X.copy()
    X.flags.writeable = False
    given = make_problem(loss, intercept=intercept, X=X)
    exact = make_problem(loss, intercept=intercept, X=X.astype(np.float64, order="C"))
    assert isinstance(given.engine, DenseEngine)
    assert np.shares_memory(given.engine.stored()[0], X)
    matrices = []
    for engine in (given.engine, exact.engine):
        point = engine.point(parameters(engine))
        dual = weighting(engine)
        curvature = engine.curvature(point, dual).matrix()
        matrices.append([engine.losses(point), engine.gradient(point, dual), curvature])
    for found, expected in zip(*matrices, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    sorel.solve(given, solver="newton", tol=1e-6)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("loss", LOSSES)
@by_home
@pytest.mark.parametrize("d", [6, 30])
def test_products_with_the_rows_that_have_curvature(monkeypatch, loss, home, d):
    engine = make_problem(loss, home=home, d=d, intercept=True, weighted=True).engine
    point, v = engine.point(0.5 * parameters(engine)), parameters(engine, 11)
    dual = engine.dual_step(engine.worst_case(point), point, 0.4)
    for eta, damping in ((0.0, 0.0), (0.4, 0.0), (0.4, 0.5 * (loss != "multinomial"))):
        curvature = engine.curvature(point, dual, eta, damping)
        hessian = engine.curvature(point, dual, eta, damping).matrix()
        product = curvature.product(v).ravel()
        np.testing.assert_allclose(product, hessian @ v.ravel(), rtol=1e-9, atol=1e-12)
        assert np.all(curvature.diagonal().ravel() >= np.diag(hessian) * (1 - 1e-12))
        # The rows that a tail risk leaves out are left out here.
        assert curvature.share <= 0.7
    # Rows too large to copy are multiplied in place.
    monkeypatch.setattr(f"sorel.engines.{'sparse' if home == 'sparse' else 'dense'}.MAX_COPY", 10)
    every = engine.curvature(point, dual, eta, damping)
    assert every.share == 1.0
    np.testing.assert_allclose(every.product(v).ravel(), product, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("risk", ["mean", "cvar", "esrm"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@by_weighting
@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_sampled_hessian_stands_for_the_full_one(risk, loss, weighted, eta):
    X = make_data(loss, 6000, 3, 0)[0]
    engine = make_problem(loss, risk=risk, weighted=weighted, n=6000, X=X, intercept=True).engine
    point = engine.point(parameters(engine))
    dual = engine.dual_step(engine.uniform(), point, max(eta, 0.5))
    full = engine.curvature(point, dual, eta).matrix()
    sampled = engine.curvature(point, dual, eta).matrix(1000)
    assert np.linalg.norm(sampled - full) < 0.2 * np.linalg.norm(full)
    assert np.linalg.eigvalsh(sampled).min() > -1e-12 * np.linalg.norm(full)
    assert not np.array_equal(sampled, full) or risk == "esrm"
    # Few rows: nothing to gain, all are used.
    np.testing.assert_array_equal(engine.curvature(point, dual, eta).matrix(3000), full)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("seed", range(4))
def test_best_intercept_of_an_almost_perfect_fit(loss, seed):
    # Residuals of 1e-6 under margins of 100: the slope cannot fall below the margins' rounding.
    rng = np.random.default_rng(seed)
    X, w = 30.0 * rng.normal(size=(15, 8)), rng.normal(size=9)
    y = X @ w[:-1] + w[-1] + 1e-6 * rng.normal(size=15)
    problem = sorel.Problem(X, y, risk=sorel.ESRM(2.0), loss=loss, fit_intercept=True)
    engine = problem.engine
    dual = weighting(engine, seed)
    lam = engine.weights(dual)
    shift = lam @ (y - X @ w[:-1]) - w[-1]
    for start in (-1.0, 0.0, shift):
        given = problem.from_user(np.append(w[:-1], w[-1] + start))
        best = engine.best_intercept(engine.point(given), dual)
        assert best is not None
        assert abs(lam @ best.slopes) <= 1e-13
        assert problem.for_user(best.w)[-1] == pytest.approx(w[-1] + shift, abs=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "multinomial", "squared_hinge"])
def test_the_best_intercept_of_one_sample(loss):
    """None, or so far out that the infimum, which is 0, is reached in floating point."""
    engine = make_problem(loss, risk="max", intercept=True).engine
    alone = np.arange(N) == np.argmin(engine.y)
    dual = engine.nearest_dual(alone.astype(float))[0]
    np.testing.assert_array_equal(engine.weights(dual), alone)
    best = engine.best_intercept(engine.point(parameters(engine)), dual)
    if best is None:
        assert loss != "squared_hinge"
    else:
        assert engine.expected(best, dual) < (1e-30 if loss == "squared_hinge" else 1e-300)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7, 3), (70_001, 3), (3, 90_000)])
def test_sizes_of_columns(shape, order):
    X = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    X[-1, -1], X[0, 0] = -9.0, 8.0
    problem = sorel.Problem(X, np.zeros(len(X)))
    np.testing.assert_array_equal(problem.engine.column_scale(), np.abs(X).max(axis=0))


@by_home
def test_some_rows_are_a_problem_of_their_own(home):
    X, y = make_data("squared", N, 3, 0)
    weight = np.random.default_rng(1).uniform(0.1, 2.0, N)
    given, rows, w = HOMES[home](X), np.array([2, 3, 17, 39]), np.array([0.5, -1.0, 2.0])
    part = sorel.Problem(given, y, risk="cvar:0.4", sample_weight=weight).engine.on_rows(rows)
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


@by_home
@by_intercept
def test_some_columns_take_the_points_of_all(home, intercept):
    engine = make_problem("logistic", home=home, intercept=intercept).engine
    point = engine.point(parameters(engine))
    dual = engine.dual_step(engine.uniform(), point, 0.5)
    part = engine.columns(np.array([1, 4])).curvature(point, dual, 0.5).matrix()
    kept = [1, 4, 6] if intercept else [1, 4]
    whole = engine.curvature(point, dual, 0.5).matrix()
    np.testing.assert_allclose(part, whole[np.ix_(kept, kept)], rtol=1e-10, atol=1e-13)


def test_a_sparse_matrix_less_a_row_is_the_dense_one():
    rng, rows = np.random.default_rng(0), np.arange(3, N, 4)
    X, y = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.5), rng.normal(size=N)
    mean, w, less, found = X.mean(axis=0), rng.normal(size=D), [], []
    for shift in (mean, 2.0 * mean):
        less.append(CenteredMatrix(scipy.sparse.csr_array(X), shift))
    for matrix in (X - mean, less[0]):
        engine = sorel.Problem(matrix, y, risk="cvar:0.2").engine
        point = engine.point(w)
        dual = engine.dual_step(engine.worst_case(point), point, 0.3)
        hessian, gradient = engine.curvature(point, dual, 0.3), engine.gradient(point, dual)
        alone = sorel.Problem(matrix[rows], y[rows])
        part, some = engine.on_rows(rows), engine.columns(np.array([1, 4]))
        found.append(
            [hessian.product(w), hessian.diagonal(), hessian.solve(gradient, 0.1),
             part.losses(part.point(w)), some.curvature(point, dual, 0.3).matrix(),
             engine.stochastic().smoothness(dual), alone.losses(w)]
        )  # fmt: skip
    for dense, sparse in zip(*found, strict=True):
        np.testing.assert_allclose(sparse, dense, rtol=1e-9, atol=1e-12)
    assert engine.stored() is None
    other = sorel.Problem(less[1], y).fingerprint()
    assert engine.fingerprint()["data"] != other["data"]


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
    more = {"loss": "linear", "risk": "deviation:cvar:0.3", "penalty": sorel.L2(0.1)}
    engine = sorel.Problem(X, y, **more).engine
    # The weights of a deviation are no larger than those of the risk and of the mean together.
    assert engine.rounding(engine.point(w), engine.uniform()).slopes == pytest.approx(2.0)


def test_weights_are_as_exact_as_losses_that_overflow_when_squared():
    X, y = make_data("squared", 20, 2, 0)
    weight, w, errors = np.linspace(1.0, 2.0, 20), np.array([1.0, 2.0]), []
    for size in (1.0, 1e90):
        engine = sorel.Problem(X, size * y, sample_weight=weight).engine
        errors.append(engine.rounding(engine.point(size * w), engine.uniform()).weights)
    assert errors[1] == pytest.approx(1e180 * errors[0], rel=1e-9)


@by_home
def test_targets_and_weights_have_an_entry_per_row_and_labels_count_classes(home):
    def make(targets, weight=None, loss=None, classes=None):
        loss = sorel.losses.Squared() if loss is None else loss
        spec = Spec(targets, loss, sorel.Mean(), classes, False, weight)
        return make_engine(HOMES[home](np.eye(3)), spec)

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
    point = deviation.point([1.0, -2.0])
    value = deviation.expected(point, deviation.worst_case(point))
    assert deviation.risk(point) == pytest.approx(value) == plain.risk(point) - point.losses.mean()
