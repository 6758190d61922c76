"""The engines in memory against plain NumPy, with few rows and with so many that arrays are pooled.

From 20000 rows on, arrays are borrowed from a pool and trial points of a line search have none of
their own, so every operation is checked on both sides of that number.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
from helpers import brute_losses, make_data, make_loss

import sorel
from sorel._pool import WORTH_POOLING
from sorel.engines import memory
from sorel.engines.last_gram import LastGram
from sorel.engines.memory import best_shift, shift_slack
from sorel.losses import Linear

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
D = 3
RISKS = {
    "cvar": sorel.CVaR(0.3),
    "esrm": sorel.ESRM(2.0),
    "deviation": sorel.Deviation(sorel.CVaR(0.3)),
}

by_rows = pytest.mark.parametrize("n", [40, WORTH_POOLING + 1])
by_weighting = pytest.mark.parametrize("weighted", [False, True])


class Setting:
    """A problem, two points and two weightings, and the same in plain NumPy."""

    def __init__(self, n, loss="huber", risk="esrm", weighted=False):
        rng = np.random.default_rng(n)
        self.name = loss
        self.X, self.y = make_data("squared" if loss == "linear" else loss, n, D, 0)
        self.omega = rng.uniform(0.2, 2.0, n) if weighted else np.ones(n)
        self.omega /= self.omega.sum()
        self.problem = sorel.Problem(
            self.X, self.y, risk=RISKS[risk], loss=make_loss(loss), penalty=sorel.L2(0.1),
            sample_weight=self.omega if weighted else None,
        )  # fmt: skip
        self.engine, self.loss = self.problem.engine, self.problem.loss
        self.w, self.delta = rng.normal(size=(2, D))
        self.point = self.engine.point(self.w)
        self.dual, self.other = (
            self.engine.nearest_dual(lam / lam.sum())[0] for lam in rng.exponential(size=(2, n))
        )
        self.offset = -1.0 if risk == "deviation" else 0.0

    def losses(self, w):
        if self.name == "linear":
            return self.y - self.X @ w
        return brute_losses(self.name, self.X, self.y, w, False)

    def lam(self, dual):
        return self.omega * (dual.density + self.offset)


@by_rows
@by_weighting
@pytest.mark.parametrize("risk", ["cvar", "esrm"])
@pytest.mark.parametrize("loss", ["huber", "logistic"])
def test_a_trial_of_a_line_search(n, weighted, risk, loss):
    here, eta, step = Setting(n, loss, risk, weighted), 0.7, 0.4
    engine, change = here.engine, here.engine.direction(here.delta)
    moved_losses = here.losses(here.w + step * here.delta)
    point, dual, slope = engine.tried(here.point, here.delta, change, step, here.dual, eta)
    # The weighting is the projection of the ascended one.
    target = here.dual.density + eta * moved_losses
    expected, _ = engine.nearest_dual(here.omega * target)
    np.testing.assert_allclose(dual.density, expected.density, rtol=1e-7, atol=1e-9)
    lam, h = here.omega * dual.density, 1e-6
    further = here.losses(here.w + (step + h) * here.delta)
    less = here.losses(here.w + (step - h) * here.delta)
    assert slope == pytest.approx(lam @ (further - less) / (2 * h), rel=1e-6, abs=1e-8)
    # Asked for, margins and losses of the trial are there, and those of the start still are.
    np.testing.assert_allclose(point.w, here.w + step * here.delta, **CLOSE)
    np.testing.assert_allclose(point.losses, moved_losses, **CLOSE)
    np.testing.assert_allclose(point.margins, here.X @ point.w, **CLOSE)
    np.testing.assert_allclose(here.point.losses, here.losses(here.w), **CLOSE)
    # A point that moved on from a trial starts where the trial is.
    twice = engine.moved(point, here.delta, change, 2 * step)
    np.testing.assert_allclose(twice.losses, here.losses(here.w + 3 * step * here.delta), **CLOSE)
    np.testing.assert_allclose(engine.losses(twice), twice.losses)


@by_rows
@by_weighting
@pytest.mark.parametrize("risk", list(RISKS))
def test_sums_over_samples(n, weighted, risk):
    here = Setting(n, "linear" if risk == "deviation" else "huber", risk, weighted)
    engine, point, dual, other = here.engine, here.point, here.dual, here.other
    losses, omega = here.losses(here.w), here.omega
    second = engine.point(here.w + here.delta)
    assert engine.expected(point, dual) == pytest.approx(here.lam(dual) @ losses, rel=1e-9)
    move = dual.density - other.density
    assert engine.square_distance(dual, other) == pytest.approx(omega @ move**2, rel=1e-9)
    square, product = engine.secant(dual, other, point, second)
    assert square == pytest.approx(omega @ move**2, rel=1e-9)
    assert product == pytest.approx(
        (omega * move) @ (second.losses - point.losses), rel=1e-8, abs=1e-11
    )
    blend = engine.blend(dual, other, 0.3)
    np.testing.assert_allclose(blend.density, 0.7 * dual.density + 0.3 * other.density, **CLOSE)
    assert engine.mass(dual) == pytest.approx(1.0, rel=1e-9)
    assert engine.mean_size(point) == pytest.approx(omega @ np.abs(losses), rel=1e-9)
    at_zero = here.losses(np.zeros(D))
    assert engine.mean_loss_at_zero() == pytest.approx(omega @ np.abs(at_zero), rel=1e-9)
    mean = omega @ losses
    assert engine.loss_scale(point) == pytest.approx(omega @ np.abs(losses - mean), rel=1e-9)
    assert engine.loss_distance(point, second) == pytest.approx(
        omega @ (point.losses - second.losses) ** 2, rel=1e-9
    )
    extra = here.offset * (omega @ losses)
    inner = RISKS[risk].risk if risk == "deviation" else RISKS[risk]
    assert engine.risk(point) == pytest.approx(inner(losses, omega) + extra, rel=1e-9)
    used = np.finfo(float).eps * np.sqrt(losses @ losses) if weighted else 0.0
    assert engine.weights_rounding(point) == pytest.approx(used, rel=1e-9)
    sizes = engine.absolute_sums(point, dual)
    if risk == "deviation":
        bound = omega @ ((dual.density + 1.0) * np.abs(losses))
        assert sizes[0] == pytest.approx(bound, rel=1e-9)
        assert sizes[1] == pytest.approx(2.0 * here.loss.lipschitz)
    else:
        assert sizes[0] == pytest.approx(here.lam(dual) @ np.abs(losses), rel=1e-9)
        slopes = np.abs(here.loss.derivative(here.y, here.X @ here.w))
        assert sizes[1] == pytest.approx(here.lam(dual) @ slopes, rel=1e-9)


@by_rows
@by_weighting
def test_derivatives(n, weighted):
    for risk, loss in (("esrm", "logistic"), ("deviation", "linear")):
        here = Setting(n, loss, risk, weighted)
        engine, point, dual = here.engine, here.point, here.dual
        slopes = here.loss.derivative(here.y, here.X @ here.w)
        gradient = here.X.T @ (here.lam(dual) * slopes)
        np.testing.assert_allclose(engine.gradient(point, dual), gradient, rtol=1e-8, atol=1e-11)
        change = engine.direction(here.delta)
        along = engine.slope(point, dual, change)
        assert along == pytest.approx(gradient @ here.delta, rel=1e-7, abs=1e-10)
        if risk == "deviation":
            continue
        curvature = here.lam(dual) * here.loss.curvature(here.y, here.X @ here.w)
        hessian = (here.X.T * curvature) @ here.X
        dual.forget_blocks()
        np.testing.assert_allclose(engine.hessian(point, dual), hessian, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(
            engine.curvature(point, dual).product(here.delta), hessian @ here.delta, rtol=1e-8
        )


@pytest.mark.parametrize(
    "risk",
    [
        sorel.CVaR(0.3),
        sorel.ESRM(2.0),
        sorel.Extremile(2.5),
        sorel.Mixture([sorel.Mean(), sorel.CVaR(0.3)], [0.5, 0.5]),
    ],
    ids=str,
)
@by_weighting
def test_a_corrected_weighting_stays_in_the_dual_set_and_reaches_its_edge(risk, weighted):
    rng = np.random.default_rng(3)
    X, y = make_data("squared", 30, D, 0)
    omega = rng.uniform(0.2, 2.0, 30) if weighted else None
    problem = sorel.Problem(X, y, risk=risk, loss="linear", sample_weight=omega)
    engine = problem.engine
    center = engine.uniform()
    for size in (1e-3, 1.0, 100.0):
        dual = engine.nearest_dual(rng.dirichlet(np.ones(30)))[0]
        change = engine.direction(size * rng.normal(size=D))
        moved = engine.corrected(dual, change, center)
        lam = engine.weights(moved)
        np.testing.assert_allclose(lam.sum(), 1.0, rtol=1e-12)
        assert engine.nearest_dual(lam)[1] < 1e-10
        # On the way from the centre, and no further along it than the dual set reaches.
        straight = dual.density - change.margins
        straight += engine.mass(change_as_dual(engine, change)) - center.density
        step = (moved.density - center.density) @ straight / (straight @ straight)
        np.testing.assert_allclose(
            moved.density, center.density + step * straight, rtol=1e-9, atol=1e-12
        )
        if step < 1.0 - 1e-9:
            beyond = center.density + 1.001 * step * straight
            own = engine.weights(moved) / np.where(moved.density != 0.0, moved.density, 1.0)
            share = np.where(moved.density != 0.0, own, 1.0 / 30)
            assert engine.nearest_dual(share * beyond)[1] > 1e-9


def change_as_dual(engine, change):
    """The margins of a direction in the place of densities, for their mean."""
    dual = engine.uniform()
    dual.density[:] = change.margins
    return dual


def test_bounds_on_slopes_of_an_affine_loss_are_its_own():
    class Threefold(Linear):
        name = "threefold"
        lipschitz = 3.0

        def value(self, y, z):
            return 3.0 * (np.asarray(y) - z)

        def derivative(self, y, z):
            return np.full(np.shape(z), -3.0)

    X, y = make_data("squared", 30, D, 0)
    for risk, share in ((sorel.CVaR(0.3), 0.0), (sorel.Deviation(sorel.CVaR(0.3)), 1.0)):
        problem = sorel.Problem(X, y, risk=risk, loss=Threefold(), penalty=sorel.L2(0.1))
        engine = problem.engine
        sums = engine.absolute_sums(engine.point(np.ones(D)), engine.uniform())
        assert sums[1:] == (3.0 * (1.0 + share), 0.0)


@pytest.mark.parametrize("kind", ["C", "F", "float32", "csr"])
def test_inner_products_of_rows_with_others(kind):
    X, y = make_data("squared", 30, 7, 0)
    X[np.abs(X) < 0.5] = 0.0
    given = {
        "C": X,
        "F": np.asfortranarray(X),
        "float32": X.astype(np.float32),
        "csr": scipy.sparse.csr_array(X),
    }[kind]
    engine = sorel.Problem(given, y).engine
    X = X.astype(np.float32).astype(float) if kind == "float32" else X
    rows, others = np.array([3, 0, 17]), np.array([5, 17, 2, 29])
    np.testing.assert_allclose(engine._row_products(rows, others), X[rows] @ X[others].T, **CLOSE)
    np.testing.assert_allclose(engine._row_products(rows, rows), X[rows] @ X[rows].T, **CLOSE)
    # Those that are known are used again, and new ones are joined to them.
    for wanted in (rows, np.array([0, 3, 4, 17]), others):
        np.testing.assert_allclose(engine._row_gram(wanted), X[wanted] @ X[wanted].T, **CLOSE)


def test_when_rows_are_sampled_and_which_are_kept():
    """So many rows stand for all of them, with their sum; blocks with few rows in it stay whole."""
    engine = Setting(1000).engine
    block = np.full(1000, -1, np.int32)
    block[:200] = np.repeat(np.arange(2), 100)
    for used in (3 * 100, 3 * 100 + 1):
        h = np.zeros(1000)
        h[-used:] = np.random.default_rng(0).uniform(0.5, 1.5, used)
        before = h.copy()
        factor = engine._sample_rows(h, block, 2, 0.0, 100)
        if used == 300:
            assert factor is None
            np.testing.assert_array_equal(h, before)
            continue
        assert 90 <= np.count_nonzero(h) <= 110
        assert h.sum() == pytest.approx(before.sum(), rel=0.02)
        np.testing.assert_allclose(h, before * factor, **CLOSE)
    for n_rows, eta, whole in ((99, 1.0, True), (101, 1.0, False), (99, 0.0, False)):
        h = np.ones(1000)
        factor = engine._sample_rows(h, block, 2, eta, n_rows)
        assert (factor[:200] == 1.0).all() is np.bool_(whole)
        assert np.count_nonzero(h[200:]) < 150


# One number that all margins are moved by.


def shifted(derivative, curvature, rounding=1.0):
    asked = []

    def statistics(shift):
        asked.append(shift)
        return derivative(shift), curvature(shift), rounding

    return statistics, asked


@pytest.mark.parametrize(
    ("derivative", "curvature", "root"),
    [
        (lambda s: s - 3.0, lambda s: 1.0, 3.0),
        (lambda s: s + 3e5, lambda s: 1.0, -3e5),
        (lambda s: np.tanh(s - 20.0), lambda s: np.cosh(s - 20.0) ** -2, 20.0),
        (lambda s: np.tanh(s + 20.0), lambda s: np.cosh(s + 20.0) ** -2, -20.0),
        (lambda s: np.exp(s) - 1e6, np.exp, np.log(1e6)),
        (lambda s: 1e6 - np.exp(-s), lambda s: np.exp(-s), -np.log(1e6)),
        # Flat on both sides of a kink, where there is no curvature to go by.
        (lambda s: -1.0 if s < 7.5 else 1.0, lambda s: 0.0, 7.5),
        (lambda s: -1.0 if s < -7.5 else 1.0, lambda s: 0.0, -7.5),
    ],
)
def test_the_root_of_the_derivative_in_a_shift(derivative, curvature, root):
    statistics, asked = shifted(derivative, curvature)
    assert best_shift(statistics) == pytest.approx(root, rel=1e-9, abs=1e-9)
    assert len(asked) < 60


def test_no_root_where_the_derivative_keeps_its_sign():
    assert best_shift(shifted(lambda s: 1.0 + np.exp(-abs(s)), lambda s: 0.0)[0]) is None


def test_how_far_the_sum_may_fall_below_a_small_derivative():
    """A parabola of curvature c and derivative r at no shift falls by r^2 / 2c; half a bound."""
    for residual, curvature in ((1e-3, 2.0), (1e-9, 5.0)):
        statistics, _ = shifted(
            lambda s, r=residual, c=curvature: r + c * s, lambda s, c=curvature: c
        )
        slack = shift_slack(statistics, residual)
        assert residual**2 / (2 * curvature) <= slack <= 100.0 * residual**2 / curvature + 1e-12
    flat = shift_slack(shifted(lambda s: 0.5 * np.tanh(s), lambda s: 0.0)[0], 1.0)
    assert flat == np.inf


# What a step from a stochastic method may count on.


@by_weighting
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_smoothness_of_one_sample_of_all_and_under_a_weighting(loss, weighted):
    here = Setting(40, loss, "esrm", weighted)
    bound = here.loss.curvature_bound
    squares = (here.X**2).sum(axis=1)
    average, component, top = here.engine.smoothness()
    assert top == pytest.approx(bound * squares.max())
    assert average == pytest.approx(bound * RISKS["esrm"](squares, here.omega))
    heaviest = max(40 * RISKS["esrm"].tail(here.omega[i : i + 1])[0] for i in range(40))
    assert component == pytest.approx(bound * heaviest * squares.max())
    average, component, top = here.engine.smoothness(here.dual)
    lam = here.lam(here.dual)
    assert average == pytest.approx(bound * lam @ squares)
    assert component == pytest.approx(bound * 40 * (lam * squares).max())
    assert top == pytest.approx(bound * squares.max())


# Who shares rows, and who borrows arrays.


@pytest.mark.parametrize(
    ("n", "d", "loss", "rows", "vectors"),
    [(60, 2, "squared", False, False), (60, 2, "logistic", False, True),
     (120, 2, "squared", False, True), (60, 20, "squared", True, False),
     (100, 10, "squared", True, True), (99, 10, "squared", False, False),
     (50, 2, "logistic", False, True), (49, 2, "logistic", False, False)],
)  # fmt: skip
def test_threads_share_what_is_large(n, d, loss, rows, vectors, monkeypatch):
    """Rows where X is, vectors where they are long, and sooner where losses take long."""
    monkeypatch.setattr(memory, "WORTH_SHARING_X", 1000)
    monkeypatch.setattr(memory, "_WORTH_SHARING", 100)
    monkeypatch.setattr(memory, "_WORTH_SHARING_SLOW", 50)
    X, y = make_data(loss, n, d, 0)
    engine = sorel.Problem(X, y, loss=loss, n_jobs=2).engine
    assert (engine._row_team is not None) is rows
    assert (engine._team is not None) is vectors
    assert engine._is_short is not vectors
    alone = sorel.Problem(X, y, loss=loss, n_jobs=1).engine
    assert alone._row_team is None
    assert alone._team is None
    assert alone._is_short


@pytest.mark.parametrize("n", [WORTH_POOLING - 1, WORTH_POOLING])
@pytest.mark.parametrize("risk", [sorel.CVaR(0.3), sorel.ESRM(2.0)], ids=str)
def test_long_vectors_are_borrowed_and_spared_where_a_projection_needs_many(n, risk):
    X, y = make_data("squared", n, 2, 0)
    engine = sorel.Problem(X, y, risk=risk).engine
    long = n >= WORTH_POOLING
    assert (engine._recycler is not None) is long
    assert engine._is_short is not long
    assert engine._sparing is (long and isinstance(risk, sorel.ESRM))
    labels = (y > 0).astype(int) + (y > 1)
    several = sorel.Problem(X, labels, risk=risk, loss="multinomial").engine
    assert not several._sparing
    assert not several._is_short


def test_short_problems_with_weights_or_a_deviation_go_the_long_way():
    X, y = make_data("squared", 30, 2, 0)
    assert not sorel.Problem(X, y, sample_weight=np.arange(1.0, 31.0)).engine._is_short
    deviation = sorel.Deviation(sorel.CVaR(0.3))
    assert not sorel.Problem(X, y, risk=deviation, loss="linear").engine._is_short


@pytest.mark.parametrize(
    ("n", "d", "left_alone"), [(30, 2, True), (30, 30, False), (9000, 20, False)]
)
def test_the_linear_algebra_library_is_limited_where_it_may_start_threads(n, d, left_alone):
    X, y = make_data("squared", n, d, 0)
    working = sorel.Problem(X, y, n_jobs=1).engine.working()
    assert isinstance(working, nullcontext) is left_alone


def test_a_sample_that_misses_a_class_or_all_weight_is_none():
    X = make_data("logistic", 40, 2, 0)[0]
    rng = np.random.default_rng(0)
    rare = np.where(np.arange(40) == 7, 1.0, -1.0)
    engine = sorel.Problem(X, rare, loss="logistic").engine
    found = [engine.sample(10, rng) for _ in range(30)]
    assert any(part is None for part in found)
    for part in found:
        assert part is None or ((part.y == 1.0).sum() == 1 and part.n_samples == 10)
    weight = np.where(np.arange(40) == 7, 1.0, 0.0)
    engine = sorel.Problem(X, X[:, 0], sample_weight=weight).engine
    found = [engine.sample(10, rng) for _ in range(30)]
    assert any(part is None for part in found)
    assert all(part is None or X[7, 0] in part.y for part in found)
    engine = sorel.Problem(X, X[:, 0]).engine
    for _ in range(5):
        rows = engine.sample(10, rng).y
        assert len(set(rows.tolist())) == 10  # no row twice


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


def test_the_linear_algebra_library_is_limited_where_threads_share_long_vectors(monkeypatch):
    monkeypatch.setattr(memory, "_WORTH_SHARING", 50)
    X, y = make_data("squared", 60, 2, 0)
    for threads in (1, 2):
        working = sorel.Problem(X, y, n_jobs=threads).engine.working()
        assert isinstance(working, nullcontext) is (threads == 1)
    # Up to 24 parameters and 100000 numbers, with those of the intercept.
    labels = np.arange(60) % 3
    for d, few in ((7, True), (8, False)):
        X = make_data("squared", 60, d, 0)[0]
        engine = sorel.Problem(X, labels, loss="multinomial", fit_intercept=True, n_jobs=1).engine
        assert isinstance(engine.working(), nullcontext) is few
    monkeypatch.setattr(memory, "_NO_LIBRARY_THREADS", 60 * 3)
    for d, small in ((2, True), (3, False)):
        X, y = make_data("squared", 60, d, 0)
        engine = sorel.Problem(X, y, fit_intercept=True, n_jobs=1).engine
        assert isinstance(engine.working(), nullcontext) is small


def test_losses_that_grow_like_exponentials_may_overflow():
    X, y = make_data("squared", 20, 2, 0)
    w = np.array([1e4, -1e4])
    with np.errstate(over="ignore"):
        engine = sorel.Problem(X, np.abs(y), loss="poisson").engine
        assert not engine.is_finite(engine.point(w))
    assert engine.is_finite(engine.point(1e-4 * w))


@pytest.mark.parametrize("error", [0.0, 0.25])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_largest_slope_of_a_sample_that_counts(weighted, error):
    X, y = make_data("squared", 20, 2, 0)
    weight = np.ones(20)
    weight[3] = 0.0 if weighted else 1.0
    y, w = np.abs(y), np.array([0.4, -0.3])
    y[3] = 1e3  # the steepest by far
    problem = sorel.Problem(X, y, loss="poisson", sample_weight=weight if weighted else None)
    mean = np.exp(X @ w)
    slopes = np.abs(mean - y) + error * mean
    expected = np.delete(slopes, 3).max() if weighted else slopes.max()
    engine = problem.engine
    assert engine.largest_slope(engine.point(w), error) == pytest.approx(expected)


def test_rounding_of_weights_survives_squares_that_overflow():
    X, y = make_data("squared", 20, 2, 0)
    weight = np.linspace(1.0, 2.0, 20)
    engine = sorel.Problem(X, y, sample_weight=weight).engine
    point = engine.point(np.array([1.0, 2.0]))
    before = engine.weights_rounding(point)
    assert before == pytest.approx(2.0**-52 * np.linalg.norm(point.losses), rel=1e-9)
    np.multiply(point.losses, 1e200, out=point.losses)
    assert engine.weights_rounding(point) == pytest.approx(1e200 * before, rel=1e-12)


def test_targets_and_weights_have_an_entry_per_row_and_labels_count_classes():
    def check(targets, weight=None, outputs=1):
        spec = SimpleNamespace(targets=targets, sample_weight=weight)
        memory._check_lengths(spec, 3, outputs)

    check(np.zeros(3))
    check(np.array([0, 1, 2]), np.ones(3), 3)
    for short in (np.zeros(2), np.zeros((3, 1))):
        shape = re.escape(str(short.shape))
        with pytest.raises(ValueError, match=f"^X has 3 rows but targets has shape {shape}; they"):
            check(short)
        with pytest.raises(ValueError, match=f"^X has 3 rows but sample_weight has shape {shape};"):
            check(np.zeros(3), short)
    for labels in ([0, 1, 3], [-1, 1, 2]):
        with pytest.raises(
            ValueError,
            match=f"^targets must be the numbers 0 to 2 of the classes, got values from "
            f"{min(labels)} to {max(labels)}$",
        ):
            check(np.array(labels), outputs=3)


@by_weighting
def test_the_scale_of_losses_is_their_spread_or_else_their_size(weighted):
    """Ties leave the size of the losses, and a perfect fit their spread beside it."""
    omega = np.array([0.5, 0.25, 0.25]) if weighted else np.full(3, 1.0 / 3.0)
    X, far = np.eye(3), 1e3

    def scale(losses):
        y = np.sqrt(2.0 * far) * np.ones(3)
        problem = sorel.Problem(X, y, sample_weight=omega if weighted else None)
        return problem.loss_scale(problem.engine.point(y - np.sqrt(2.0 * losses)))

    for share in (0.5, 0.9, 1.1, 5.0):
        away = np.array([1.0, 0.0, -1.0])
        away -= omega @ away
        losses = 10.0 + away * share * 1e-3 * 10.0 / (omega @ np.abs(away))
        expected = 10.0 if share < 1.0 else share * 1e-3 * 10.0
        assert scale(losses) == pytest.approx(expected, rel=1e-6)
    nothing = sorel.Problem(X, np.arange(3.0) + 1.0)
    beside = 0.5 * (1.0 / 3.0 - np.arange(3.0) - 1.0) ** 2
    spread = np.mean(np.abs(beside - beside.mean()))
    fitted = nothing.engine.point(np.arange(3.0) + 1.0)
    assert nothing.loss_scale(fitted) == pytest.approx(spread)


def test_eigenvectors_of_the_rows_are_worth_no_more_than_products_with_them():
    """Five parameters cubed against four times 3 classes, of ten entries or eleven: 125 to 120."""
    rng = np.random.default_rng(0)
    for entries, turned in ((10, False), (11, True)):
        X = np.zeros((12, 5))
        X[np.arange(entries), np.arange(entries) % 5] = rng.uniform(1.0, 2.0, entries)
        X = scipy.sparse.csr_array(X)
        problem = sorel.Problem(X, np.arange(12) % 3, loss="multinomial", penalty=sorel.L2(0.1))
        values, vectors = problem.engine._row_spectrum
        assert (vectors is not None) is turned
        assert values.sum() == pytest.approx((X.data**2).sum() / 12)


@by_weighting
def test_sums_of_a_log_link_have_the_logarithms_of_the_targets_in_them(weighted):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(8, 2)), np.array([0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
    omega = rng.uniform(0.5, 2.0, 8) if weighted else None
    problem = sorel.Problem(
        X, y, loss="poisson", penalty=sorel.L2(0.1), risk=sorel.ESRM(1.0), sample_weight=omega
    )
    engine, w = problem.engine, np.array([0.3, -0.4])
    point = engine.point(w)
    dual = engine.worst_case(point)
    lam, z = engine.weights(dual), X @ w
    positive = np.where(y > 0.0, y, 1.0)
    losses = np.exp(z) - y - y * (z - np.log(positive))
    slopes = np.abs(np.exp(z) - y)
    expected = lam @ (np.abs(losses) + slopes * np.abs(np.log(positive))), lam @ slopes
    found = engine.absolute_sums(point, dual)
    assert found == pytest.approx((*expected, lam @ np.exp(z)), rel=1e-12)


@pytest.mark.parametrize("risk", ["esrm", "deviation"])
def test_what_is_borrowed_for_a_sum_is_given_back_and_nothing_else(risk):
    here = Setting(WORTH_POOLING, "linear" if risk == "deviation" else "huber", risk)
    engine = here.problem.for_run().engine
    point, change = engine.point(here.w), engine.direction(here.delta)
    dual = engine.worst_case(point)

    def sums():
        engine.gradient(point, dual)
        engine.slope(point, dual, change)
        engine.expected(point, dual)
        engine.loss_scale(point)
        engine.secant(dual, dual, point, point)

    def free():
        return [array for arrays in engine._pool._free.values() for array in arrays]

    sums()
    known = {id(array) for array in free()}
    sums()
    assert {id(array) for array in free()} == known
    assert len(free()) == len(known)
    held = (dual.density, point.margins, point.losses, change.margins)
    assert not any(array is kept for array in free() for kept in held)


def test_a_problem_keeps_no_vectors_that_only_its_runs_could_use():
    """Runs have pools of their own: what the problem's own pool held would lie idle beside them."""
    X, y = make_data("huber", WORTH_POOLING, D, 0)
    for risk in ("cvar", "esrm"):
        engine = sorel.Problem(X, y, risk=RISKS[risk], loss="huber", penalty=sorel.L2(0.1)).engine
        assert engine.mean_loss_at_zero() > 0.0
        assert not any(engine._pool._free.values())


def test_secants_are_added_up_part_by_part(monkeypatch):
    monkeypatch.setattr(memory, "_PART", 7)
    for weighted in (False, True):
        here = Setting(40, "huber", "esrm", weighted)
        second = here.engine.point(here.w + here.delta)
        found = here.engine.secant(here.dual, here.other, here.point, second)
        move = here.dual.density - here.other.density
        expected = move, second.losses - here.point.losses
        np.testing.assert_allclose(found, [(here.omega * move) @ v for v in expected], rtol=1e-12)


@pytest.mark.parametrize("start", [0.0, 3.0, 8.0])
def test_intercepts_of_classes_are_found_from_far_away(start):
    """Where the slopes of each class add up to nothing; no value on the way is above the first."""
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((60, 2)), rng.integers(0, 3, 60)
    y[:3] = [0, 1, 2]
    engine = sorel.Problem(
        X, y, loss="multinomial", penalty=sorel.L2(0.1), fit_intercept=True, risk=sorel.ESRM(1.0)
    ).engine
    w = np.zeros((3, 3))
    w[-1] = [start, -start, 0.5 * start]
    point = engine.point(w)
    dual = engine.worst_case(point)
    best = engine.best_intercept(point, dual)
    lam = engine.weights(dual)
    assert np.abs(lam @ best.slopes).max() <= 1e-15
    assert engine.expected(best, dual) <= engine.expected(point, dual)
    np.testing.assert_array_equal(best.w[:2], w[:2])
    np.testing.assert_allclose(best.margins, X @ best.w[:2] + best.w[2], atol=1e-13 * (1 + start))


def test_a_weighting_on_the_edge_of_the_dual_set_is_a_hair_inside():
    problem = sorel.Problem(np.eye(4), np.arange(4.0), risk=sorel.CVaR(0.5))
    move, center = np.array([2.0, -2.0, 0.5, -0.5]), np.ones(4)
    for factor, share in ((1.0, 0.5), (4.0, 0.125)):
        found = problem.engine._share_inside(factor * move, center)
        assert share * (1.0 - 1e-13) < found < share
    # A move that ends inside is made whole, but for that hair.
    assert problem.engine._share_inside(0.01 * move, center) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize(
    ("n", "d", "n_rows", "kept"),
    [
        (60, memory.FEW_COLUMNS, None, False),
        (60, memory.FEW_COLUMNS + 1, None, True),
        (30, 30, None, True),
        (30, 31, None, False),  # larger than X
        (600, 30, 50, False),  # rows that are sampled differ each time
    ],
)
def test_which_hessians_are_made_from_the_last_one(n, d, n_rows, kept):
    rng = np.random.default_rng(n)
    X, y = rng.standard_normal((n, d)), rng.standard_normal(n)
    engine = sorel.Problem(X, y, risk=sorel.Mean()).for_run().engine
    point, dual = engine.point(np.zeros(d)), engine.uniform()
    with mock.patch.object(LastGram, "of", autospec=True, side_effect=LastGram.of) as last:
        hessian = engine.hessian(point, dual, n_rows=n_rows)
    assert last.called is kept
    if n_rows is None:
        np.testing.assert_allclose(hessian, X.T @ X / n, atol=1e-12)


@pytest.mark.parametrize(("n", "turned"), [(8, False), (9, True)])
def test_all_entries_of_a_dense_matrix_count(n, turned):
    """Ten parameters cubed against four times 3 classes times ten entries a row."""
    X = np.random.default_rng(0).standard_normal((n, 10))
    problem = sorel.Problem(X, np.arange(n) % 3, loss="multinomial", penalty=sorel.L2(0.1))
    assert (problem.engine._row_spectrum[1] is not None) is turned


def test_what_a_deviation_stands_in_the_way_of():
    engine = Setting(40, "linear", "deviation").engine
    for operation in ("splitting", "batches"):
        assert "a deviation has negative ones" in engine.obstacle(operation)
        assert Setting(40).engine.obstacle(operation) is None
    assert engine.obstacle("hessian") is None


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_curvature_without_blocks_or_without_their_part(loss, blocks):
    """With neither blocks nor eta there is nothing of a block in it."""
    rng = np.random.default_rng(10)
    X, y = rng.standard_normal((30, 3)), np.arange(30) % 3
    engine = sorel.Problem(X, y, loss=loss, penalty=sorel.L2(0.1), risk=sorel.ESRM(2.0)).engine
    point = engine.point(rng.standard_normal(engine.shape))
    dual = engine.ascend(engine.uniform(), point, 1.0) if blocks else engine.worst_case(point)
    assert (dual.n_blocks > 0) is blocks
    eta, v = (0.0 if blocks else 1.0), rng.standard_normal(engine.shape)
    found = engine.curvature(point, dual, eta).product(v)
    lam = engine.weights(dual)
    bends = engine.loss.curvature(y, X @ point.w)
    if loss == "squared":
        expected = X.T @ (lam * (X @ v))
    else:
        expected = X.T @ (lam[:, None] * np.einsum("iab,ib->ia", bends, X @ v))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        (engine.hessian(point, dual, eta) @ v.ravel()).reshape(v.shape), expected, atol=1e-11
    )
