"""Bounds on rounding errors against the errors themselves, in extended precision."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from helpers import LOSSES, RISKS, make_data, make_loss

import sorel
from sorel import L2, Problem
from sorel.engines import DenseEngine, Engine
from sorel.kernels.vectors import weighted_sum
from sorel.losses import Loss
from sorel.rounding import Path, Rounding

Long = np.longdouble
needs_long = pytest.mark.skipif(
    np.finfo(Long).eps > 1e-18, reason="long double is no longer than double here"
)


class Linear(Loss):
    """y - z: neither bounded below nor curved."""

    name = "linear"
    lower_bound, curvature_bound, lipschitz, affine = -math.inf, 0.0, 1.0, True

    def value(self, y, z):
        return y - z

    def derivative(self, y, z):
        return np.full_like(z, -1.0)

    def curvature(self, y, z):
        return np.zeros_like(z)


class Shifted(Loss):
    """The squared loss less 3: bounded below by a number other than 0."""

    name = "shifted"
    lower_bound, curvature_bound = -3.0, 1.0

    def value(self, y, z):
        return 0.5 * (z - y) ** 2 - 3.0

    def derivative(self, y, z):
        return z - y

    def curvature(self, y, z):
        return np.ones_like(z)


def rounding_of(problem):
    return Rounding(
        problem.engine, problem.loss, problem.penalty, problem.engine.mean_loss_at_zero()
    )


# Facts that the bounds are made of.


@pytest.mark.parametrize("storage", ["C", "F", "float32", "sparse", "blocks"])
def test_the_scale_of_the_columns(storage, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)) * [1.0, 1e6, 1e-6, 0.0]
    X[7, 0] = -9.0
    given = {
        "C": X,
        "F": np.asfortranarray(X),
        "float32": X.astype(np.float32),
        "sparse": scipy.sparse.csr_array(X),
        "blocks": X,
    }[storage]
    if storage == "blocks":
        monkeypatch.setattr("sorel.problem.WORTH_STREAMING", 0)
        sorel.rows.write_blocks(tmp_path / "blocks", X, rows_per_block=7)
        given = tmp_path / "blocks"
    problem = Problem(given, rng.normal(size=50))
    expected = np.abs(X.astype(np.float32) if storage == "float32" else X).max(axis=0)
    np.testing.assert_array_equal(problem.engine.column_scale(), expected)


@needs_long
@pytest.mark.parametrize("d", [1, 3, 40, 700])
@pytest.mark.parametrize("storage", ["C", "F", "sparse"])
def test_margins_are_known_up_to_their_bound(d, storage):
    rng = np.random.default_rng(d)
    X = rng.normal(size=(30, d)) * 10.0 ** rng.uniform(-3, 3, d)
    given = {"C": X, "F": np.asfortranarray(X), "sparse": scipy.sparse.csr_array(X)}[storage]
    problem = Problem(given, rng.normal(size=30), fit_intercept=True)
    rounding = rounding_of(problem)
    w = rng.normal(size=d + 1)
    path, point = Path(w), problem.engine.point(w)

    def error(point):
        exact = X.astype(Long) @ point.w[:d].astype(Long) + Long(point.w[d])
        return float(np.abs(point.margins - exact).max())

    assert error(point) <= rounding.margins(point.w)
    for step in (1e6, 1.0, -1e6, 1e-3):
        delta = step * rng.normal(size=d + 1)
        point = problem.engine.moved(point, delta, problem.engine.direction(delta), 0.7)
        path.move(point.w)
        assert error(point) <= rounding.margins(point.w, path)
    assert rounding.margins(point.w, path) >= rounding.margins(point.w)


@needs_long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", RISKS)
def test_the_objective_is_known_up_to_its_bound(loss, risk):
    X, y = make_data(loss, 60, 4, seed=1)
    problem = Problem(1e3 * X, y, risk=RISKS[risk], loss=make_loss(loss), penalty=L2(1e-3))
    rng = np.random.default_rng(2)
    for size in (1e-6, 1e-3, 1.0):
        w = size * rng.normal(size=problem.engine.shape)
        point = problem.engine.point(w)
        found = problem.certify(point, problem.engine.worst_case(point))
        z = (1e3 * X).astype(Long) @ w.reshape(4, -1).astype(Long)
        exact = _risk(problem, _losses(loss, y, z)) + Long(1e-3) / 2 * np.sum(w.astype(Long) ** 2)
        assert abs(Long(found.primal) - exact) <= found.primal_rounding
        assert found.primal_rounding <= found.rounding <= found.gap
        assert found.rounding <= 1e-11 * found.primal  # of some use


def _losses(loss, y, z):
    if loss == "squared":
        return (z[:, 0] - y) ** 2 / 2
    if loss == "huber":
        r, delta = np.abs(z[:, 0] - y), Long(0.7)
        return np.where(r <= delta, r * r / 2, delta * (r - delta / 2))
    if loss == "logistic":
        return np.logaddexp(Long(0), -y * z[:, 0])
    if loss == "squared_hinge":
        return np.maximum(0, 1 - y * z[:, 0]) ** 2
    return np.logaddexp.reduce(z, axis=1) - z[np.arange(len(y)), y]


def _risk(problem, losses):
    return np.sum(problem.risk.weights(len(losses)).astype(Long) * np.sort(losses))


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
def test_what_the_intercept_may_still_gain(loss):
    rng = np.random.default_rng(3)
    X, y = make_data(loss, 30, 2, seed=3)
    given = sorel.losses.Huber(0.01) if loss == "huber" else loss
    problem = Problem(X, y, loss=given, risk=sorel.ESRM(3.0), fit_intercept=True)
    engine = problem.engine
    point = engine.point(rng.normal(size=3))
    dual = engine.worst_case(point)
    best = engine.best_intercept(point, dual)
    left = abs(float(engine.gradient(best, dual)[-1])) + 1e-14
    slack = engine.intercept_slack(best, dual, left)
    if loss != "huber":
        # Without a bracket, from the curvature, which the linear part of huber lacks.
        slack = min(slack, Engine.intercept_slack(engine, best, dual, left))
    assert 0.0 < slack <= 1e-12
    value = engine.expected(best, dual)
    for step in 10.0 ** np.arange(-16, 3):
        for shift in (-step, step):
            moved = engine.point(best.w + np.array([0.0, 0.0, shift]))
            assert engine.expected(moved, dual) >= value - slack - 1e-15 * value


def test_weights_that_do_not_add_up_are_charged():
    rng = np.random.default_rng(4)
    problem = Problem(rng.normal(size=(20, 2)), rng.normal(size=20), risk=sorel.ESRM(2.0))
    engine = problem.engine
    point = engine.point(np.zeros(2))
    dual = engine.worst_case(point)
    fine = problem.certify(point, dual)
    for share in (1e-10, -1e-10):
        other = engine.worst_case(point)
        other.density *= 1.0 + share
        found = problem.certify(point, other)
        assert found.dual <= fine.dual + fine.rounding
        assert found.rounding >= 1e-10 * found.primal
        assert found.primal + found.primal_rounding >= fine.primal


# Certificates of engines and losses of all kinds.


class Blind(DenseEngine):
    """An engine that knows nothing of its rounding errors."""

    def column_scale(self):
        return None

    def mass(self, dual):
        return 1.0


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_an_engine_may_leave_it_out(fit_intercept):
    X, y = make_data("squared", 40, 3, seed=5)
    options = {"risk": sorel.CVaR(0.2), "fit_intercept": fit_intercept}
    blind, seeing = Problem(X, y, engine=Blind, **options), Problem(X, y, **options)
    result = sorel.solve(blind, tol=1e-10)
    assert result.converged
    assert result.gap > 0.0
    found = seeing.certificate(result.w, result.weights)
    assert found.relative_gap <= 2e-10
    guess = blind.certificate(result.w, result.weights)
    assert guess.rounding == pytest.approx(found.rounding, rel=0.99)


@pytest.mark.parametrize(
    "loss", [Linear(), Shifted(), "poisson", "gamma"], ids=["linear", "shifted", "poisson", "gamma"]
)
@pytest.mark.parametrize("risk", ["cvar", "esrm", "max"])
def test_losses_without_bounds_are_certified(loss, risk):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(50, 3))
    y = rng.gamma(2.0, size=50)
    problem = Problem(X, y, loss=loss, risk=RISKS[risk], penalty=L2(0.1))
    result = sorel.solve(problem, "newton", tol=1e-9)
    assert result.converged
    best = sorel.solve(problem, "newton", tol=1e-13, max_passes=200, warm_start=result)
    assert result.dual <= best.objective + 1e-15 * abs(best.objective)
    for size in (0.0, 1e-3, 1.0):
        w = best.w + size * rng.normal(size=3)
        for lam in (best.weights, np.full(50, 0.02)):
            found = problem.certificate(w, lam)
            assert found.dual <= best.objective + 1e-15 * abs(best.objective)
            assert found.gap >= found.primal - best.objective
            assert 0.0 < found.rounding <= 1e-12 * (1.0 + abs(found.primal))


def test_an_engine_that_lacks_the_sums_says_so():
    class Poor(DenseEngine):
        absolute_sums = Engine.absolute_sums

    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(10, 2)), rng.gamma(2.0, size=10)
    problem = Problem(X, y, loss="poisson", engine=Poor)
    with pytest.raises(NotImplementedError, match=r"Poor has no operation 'absolute_sums'"):
        problem.certificate(np.zeros(2), np.full(10, 0.1))
    # Losses with bounds do without.
    assert sorel.solve(Problem(X, y, engine=Poor)).converged


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rounding_is_in_proportion(size):
    X, y = make_data("squared", 60, 4, seed=8)
    penalty = L2(0.01)
    plain = sorel.solve(Problem(X, y, penalty=penalty), "newton", tol=1e-12)
    scaled = Problem(size * X, size * y, penalty=L2(0.01 * size**2))
    found = scaled.certificate(plain.w, plain.weights)
    assert found.relative_gap <= 1e-12
    assert 0.0 < found.rounding <= 1e-13 * found.primal


def test_small_losses_behind_an_outlier_are_not_lost():
    # Added one by one to a sum of 1e11, thirty thousand losses of 1e-5 would leave no trace.
    n = 30_000
    losses = np.full(n, 1e-5)
    losses[0] = 1e11
    density = np.ones(n)
    for weighted in (False, True):
        omega = np.full(n if weighted else 1, 1.0 / n)
        found = weighted_sum(density, losses, omega, weighted)
        assert found == pytest.approx((1e11 + (n - 1) * 1e-5) / n, rel=(8 + n / 100) * 2.0**-53)


def test_coefficients_beside_the_domain_are_charged_by_the_slope_there():
    """g is finite on the simplex alone: what rounding puts beside it costs slope times distance."""
    X, y = make_data("squared", 40, 3, 0)
    problem = Problem(1e3 * X, y, penalty=sorel.Simplex(0.5))
    rounding = rounding_of(problem)
    inside, gradient = np.array([0.2, 0.3, 0.5]), np.array([1.0, -2.0, 0.5])
    columns = np.abs(1e3 * X).max(axis=0)
    for slopes in (0.25, 4.0):
        clean = rounding.bracket(0.0, inside, gradient, slopes, 0.0)
        for distance in (1e-8, 1e-5):
            beside = inside + np.array([distance, 0.0, 0.0])
            away = np.abs(beside - problem.penalty.project(beside)).sum()
            charged = rounding.bracket(0.0, beside, gradient, slopes, 0.0) - clean
            slope = slopes * np.linalg.norm(columns) + 0.5 * np.linalg.norm(beside)
            assert charged == pytest.approx(away * slope, rel=1e-4)


# The formulas of the module, written out a second time, on engines that answer whatever is set.

UNIT = 2.0**-53


def close(expected, rel=1e-9):
    """Errors are tiny numbers: only a share of them tells two apart."""
    return pytest.approx(expected, rel=rel, abs=0.0)


COLUMNS = np.array([3.0, 0.25, 7.0])


def bare(columns=COLUMNS, *, n=300, outputs=1, intercept=False, size=0.0, penalty=None, loss=None,
         d=None, **answers):  # fmt: skip
    """Rounding of an engine that has no data; d tells how many columns where these are unknown."""
    engine = SimpleNamespace(
        column_scale=lambda: columns,
        n_samples=n,
        n_features=len(columns) if d is None else d,
        n_outputs=outputs,
        fit_intercept=intercept,
        weights_rounding=lambda point: 1e-14,
        mass=lambda dual: 1.0 - 2.0**-41,
        **answers,
    )
    given = {"lower_bound": 0.0, "curvature_bound": 2.0, "lipschitz": math.inf, "affine": False}
    loss = SimpleNamespace(**(given | (loss or {})))
    return Rounding(engine, loss, L2(0.3) if penalty is None else penalty, size)


@pytest.mark.parametrize(("d", "operations"), [(1, 4.0), (3, 6.0), (100, 28.0), (400, 48.0)])
def test_an_error_of_margins_is_in_proportion_to_sizes_and_moves(d, operations):
    rng = np.random.default_rng(d)
    columns, w = rng.uniform(0.5, 2.0, d), rng.normal(size=d)
    rounding, other = bare(columns), 3.0 * rng.normal(size=d)
    size = columns @ np.abs(w)
    assert rounding.margins(w) == close(operations * UNIT * size)
    assert rounding.shift(w.copy()) == close(2.0 * UNIT * size)
    path = Path(w)
    assert rounding.margins(w, path) == rounding.margins(w)
    for moves in range(1, 40):
        path.move(other if moves == 2 else w)
        reach = np.maximum(np.abs(w), np.abs(other)) if moves > 1 else np.abs(w)
        expected = (2.0 * operations + 2.0 * moves) * UNIT * (columns @ reach)
        assert rounding.margins(w, path) == close(expected)
    assert rounding.penalty_value(-5.0) == close(operations * UNIT * 5.0)
    assert rounding.difference(-5.0) == close(8.0 * UNIT * 5.0)


def test_intercepts_and_outputs_enter_the_size_of_margins():
    w = np.array([1.0, -2.0, 0.5, -10.0])
    size = 3.0 + 0.5 + 3.5
    assert bare(intercept=True).shift(w) == close(2.0 * UNIT * (size + 10.0))
    assert bare().shift(w) == close(2.0 * UNIT * size)
    several = np.column_stack([w, -3.0 * w])
    expected = 2.0 * UNIT * math.hypot(size + 10.0, 3.0 * (size + 10.0))
    assert bare(intercept=True).shift(several) == close(expected)
    assert bare().shift(several) == close(2.0 * UNIT * math.hypot(size, 3.0 * size))
    # Columns that are not known: margins that a squared loss would have at the mean loss.
    assert bare(None, d=3, size=8.0).shift(w) == close(2.0 * UNIT * 4.0)


@pytest.mark.parametrize("moved", [False, True])
def test_margins_beside_the_domain_are_charged_by_the_largest_column(moved):
    rounding = bare(penalty=sorel.Simplex(0.1))
    w = np.array([0.5, 0.25, 0.25 + 3e-6])
    path = Path(w)
    if moved:
        path.move(w)
    operations = 2.0 * 6.0 + 2.0 if moved else 6.0
    # Each of the three is 1e-6 beside its projection.
    expected = operations * UNIT * (COLUMNS @ w) + 7.0 * 3e-6
    assert rounding.margins(w, path) == close(expected, rel=1e-9)


def test_paths_keep_few_points():
    path = Path(np.zeros(2))
    for k in range(1, 100):
        path.move(np.array([float(k), -float(k)]))
        assert len(path._passed) <= 16
        if k < 16:  # nothing is summed up that nobody asked for
            assert len(path._passed) == k + 1
    np.testing.assert_array_equal(path.reach, [99.0, 99.0])
    assert path.moves == 99


@pytest.mark.parametrize("lipschitz", [0.5, math.inf])
@pytest.mark.parametrize("low", [-3.0, 0.0, 2.0])
def test_the_error_of_losses_with_bounds(low, lipschitz):
    rounding = bare(loss={"lower_bound": low, "lipschitz": lipschitz})
    for expected, error in ((low + 4.0, 1e-13), (low + 1e-20, 0.1), (low - 1e-3, 1e-13)):
        above = max(expected - low, 0.0)
        slopes = min(math.sqrt(2.0 * 2.0 * above) + 2.0 * error, lipschitz)
        total = error * slopes + ((8.0 + 3.0) * UNIT + 2.0**-41) * (above + abs(low)) + 1e-14
        found = rounding.losses(None, object(), expected, error)
        assert found == close((total, slopes), rel=1e-6)
        risk = rounding.risk(None, object(), expected - 1.0, 1.0, error)
        assert risk == close(total, rel=1e-6)


UNBOUNDED = [{"curvature_bound": math.inf}, {"lower_bound": -math.inf}]


@pytest.mark.parametrize("loss", UNBOUNDED, ids=["curvature", "below"])
@pytest.mark.parametrize("shortfall", [0.0, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("largest", [0.5, 1e9])
@pytest.mark.parametrize("error", [1e-15, 3.3e-11, 1.5e-10, 1e-3])
def test_the_error_of_losses_without_bounds(loss, shortfall, weighted, largest, error):
    given, worst, mean = object(), object(), object()
    sums = {id(given): (5.0, 3.0, 40.0), id(worst): (6.0, 4.0, 50.0), id(mean): (2.0, 1.5, 9.0)}
    omega = np.array([0.0, 0.01, 0.99]) if weighted else None
    rounding = bare(
        loss=loss,
        absolute_sums=lambda point, dual: sums[id(dual)],
        worst_case=lambda point: worst,
        uniform=lambda: mean,
        largest_slope=lambda point, e: largest + e,
        spec=SimpleNamespace(sample_weight=omega, risk=sorel.CVaR(0.05)),
    )
    size, slope, curvature = sums[id(worst if shortfall else given)]
    slopes = slope + curvature * error
    own = error * slopes + (11.0 * UNIT + 2.0**-41) * size + 1e-14
    if not shortfall:
        assert rounding.losses(None, given, 7.0, error) == close((own, slopes), rel=1e-6)
    most = error * 20.0 * (1.5 + 9.0 * error)  # the worst twentieth weighs twenty times as much
    if most > 1e-9 * (5.0 + shortfall):
        most = min(most, error * (largest + error))
    found = rounding.risk(None, given, 5.0, shortfall, error)
    assert found == close(own + most, rel=1e-6)


def test_the_error_of_an_affine_loss():
    rounding = bare(loss={"affine": True, "lipschitz": 1.5}, mean_size=lambda point: 4.0)
    for expected, shortfall in ((3.0, 2.0), (-9.0, 2.0)):
        size = abs(expected + shortfall) + 2.0 * 4.0
        total = 1e-14 * 1.5 + (11.0 * UNIT + 2.0**-41) * size + 1e-14
        found = rounding.risk(None, object(), expected, shortfall, 1e-14)
        assert found == close(total, rel=1e-6)


@pytest.mark.parametrize("spread", [1e-3, 1e9])
def test_what_a_derivative_of_several_intercepts_costs(spread):
    operations = 8.0 + 0.5 * math.sqrt(300.0)
    answers = {
        "intercept_slack": lambda point, dual, residual: 0.7 * residual,
        "intercept_spread": lambda point, dual, residual: spread * residual,
    }
    derivative = np.array([3e-13, -4e-13])
    residual = 5e-13 + operations * UNIT * 6.0
    found = bare(**answers).intercept(None, None, derivative, 6.0)
    assert found == close((0.7 * residual, residual), rel=1e-9)
    found = bare(outputs=2, **answers).intercept(None, None, derivative, 6.0)
    most = residual + math.sqrt(2.0 * 2.0 * 0.7 * residual)
    assert found == close((0.7 * residual, min(most, spread * residual)), rel=1e-9)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize(
    "penalty",
    [L2(0.3), sorel.Box(0.3, -1.0, 2.0), sorel.Box(0.0, -1.0, 2.0), sorel.Simplex(0.0),
     sorel.Simplex(0.3)],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("value", [0.0, 1e-26, 4.0])
def test_the_error_of_the_bracket(known, summed, penalty, value):
    rounding = bare(COLUMNS if known else None, penalty=penalty, d=3)
    coef, gradient = np.array([0.25, 0.25, 0.5]), np.array([1.0, -2.0, 2.0])
    slopes, residual = 0.7, 1e-13
    sums = np.array([0.1, 0.3, 0.2]) if summed else None
    columns = COLUMNS if known else np.abs(gradient)
    size = float(np.linalg.norm(columns))
    each = sums if summed else columns * (slopes if known else 1.0)
    l2 = penalty.l2
    own = 8.0 * UNIT * l2 * np.linalg.norm(coef)
    expected = math.inf
    if l2 > 0.0:
        likely = (8.0 + 0.5 * math.sqrt(300.0)) * UNIT * np.linalg.norm(each)
        spread = (likely + residual * size + own) / math.sqrt(2.0 * l2)
        expected = 2.0 * math.sqrt(value) * spread + spread**2
    delta = (8.0 + 75.0) * UNIT * each + residual * columns + own
    if isinstance(penalty, sorel.Box):
        # The farthest corner from the coefficients.
        expected = min(expected, float(delta @ [1.75, 1.75, 1.5]))
    elif isinstance(penalty, sorel.Simplex):
        expected = min(expected, float(delta.max() + delta @ coef))
    found = rounding.bracket(value, coef, gradient, slopes, residual, sums)
    assert found == close(expected, rel=1e-9)


def test_the_gain_in_a_domain_for_several_outputs():
    delta, gradient = np.array([1.0, 2.0, 4.0]), np.ones((3, 2))
    coef = np.array([[0.5, 0.2], [0.25, 0.3], [0.25, 0.5]])
    simplex = bare(penalty=sorel.Simplex(0.0), outputs=2)
    expected = 2 * 4.0 + float(np.sum(delta[:, None] * coef))
    assert simplex._gain(delta, coef, gradient) == close(expected)
    box = bare(penalty=sorel.Box(0.0, [-1.0, 0.0, 0.0], [1.0, 1.0, 3.0]), outputs=2)
    reach = np.array([[1.5, 1.2], [0.75, 0.7], [2.75, 2.5]])
    assert box._gain(delta, coef, gradient) == close(float(np.sum(delta[:, None] * reach)))
    assert bare()._gain(delta, coef, gradient) == math.inf
    half = bare(penalty=sorel.NonNegative(0.1))
    assert half._gain(delta, coef, gradient) == math.inf


def test_the_gain_in_a_domain_of_ones_own():
    def project(z):
        return z * min(1.0, 2.0 / max(float(np.linalg.norm(z)), 1e-300))

    # Coefficients no longer than 2.
    ball = SimpleNamespace(project=project, bounds=lambda count: None, compact=True, l2=0.0)
    rounding = bare(penalty=ball)
    coef, gradient = np.array([0.6, 0.0, -0.8]), np.array([1e-8, 0.0, 1e-8])
    found = rounding._gain(np.array([3.0, 0.0, 4.0]), coef, gradient)
    assert found == close(2.0 * 5.0 * (2.0 + 1.0))


@pytest.mark.parametrize("sample_weight", [None, [0.5, 0.3, 0.2]])
@pytest.mark.parametrize("share", [None, 0.5])
def test_absolute_sums_of_an_affine_loss(sample_weight, share):
    X, weights = np.array([[1.0, -2.0], [0.0, 3.0], [-4.0, 5.0]]), np.array([0.2, 0.0, 0.8])
    risk = sorel.CVaR(0.5) if share is None else sorel.Deviation(sorel.CVaR(0.5), share)
    omega = np.full(3, 1.0 / 3.0) if sample_weight is None else np.array(sample_weight)
    answers = {
        "stored": lambda: (X, None),
        "weights": lambda dual: weights,
        "spec": SimpleNamespace(risk=risk, sample_weight=None if sample_weight is None else omega),
    }
    rounding = bare(np.ones(2), n=3, loss={"lipschitz": 2.0}, **answers)
    total = weights if share is None else weights + share * omega
    np.testing.assert_allclose(rounding.affine_sums(None), 2.0 * np.abs(X).T @ total)
    assert bare(np.ones(2), n=500_000, **answers).affine_sums(None) is not None
    assert bare(np.ones(2), n=500_001, **answers).affine_sums(None) is None
    answers["stored"] = lambda: None
    assert bare(np.ones(2), n=3, **answers).affine_sums(None) is None
