"""Decisions and safeguards as functions of their numbers, at the borders and beside them.

Most change the work of a run and not its answer, which is certified whatever they say.
"""

from __future__ import annotations

import importlib
import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from helpers import LOSSES, make_data, make_loss
from own_penalties import Ball, GroupLasso, OwnElasticNet
from scipy.optimize import brentq

import sorel
from sorel import extended, factored, proximal, rounding, rounds
from sorel import problem as problems
from sorel.engines import memory
from sorel.engines.base import Engine
from sorel.kernels import margins
from sorel.kernels.losses import LOGISTIC
from sorel.metrics import cvar_loss
from sorel.models import FEW, step_of_few
from sorel.problem import Problem
from sorel.proximal import ProximalModel
from sorel.solvers import common, newton
from sorel.solvers.auto import Auto
from sorel.solvers.base import Run

# The function of that name hides the module.
solving = importlib.import_module("sorel.solve")


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def tail(shift):
    """The derivatives of log(1 + exp(8 - shift)) + 0.01 (shift + 3)^2, whose minimum is far off."""
    p = 1.0 / (1.0 + np.exp(shift - 8.0))
    return 0.02 * (shift + 3.0) - p, p * (1.0 - p) + 0.02, 1.0


TAIL_ROOT = brentq(lambda shift: tail(shift)[0], 0.0, 20.0, xtol=1e-13)


def kinked(shift):
    """The derivatives of |shift - 40| smoothed over a millionth: no curvature on either side."""
    t = (shift - 40.0) * 1e6
    return float(np.clip(t, -1.0, 1.0)), 1e6 if abs(t) < 1.0 else 0.0, 1.0


@pytest.mark.parametrize(
    ("statistics", "root", "most"),
    [
        (lambda shift: (3.0 * (shift - 0.7), 3.0, 1.0), 0.7, 3),
        (lambda shift: (3.0 * (shift + 0.7), 3.0, 1.0), -0.7, 3),
        (tail, TAIL_ROOT, 10),
        (lambda shift: (-tail(-shift)[0], *tail(-shift)[1:]), -TAIL_ROOT, 10),
        (kinked, 40.0, 45),
        (lambda shift: (-kinked(-shift)[0], *kinked(-shift)[1:]), -40.0, 45),
    ],
)
def test_the_best_shift_takes_few_steps(statistics, root, most):
    counted = Counted(statistics)
    shift = memory.best_shift(counted)
    assert shift == pytest.approx(root, abs=2e-5)
    assert abs(statistics(shift)[0]) < 1e-9
    assert counted.calls <= most


def test_without_a_minimum_there_is_no_best_shift():
    assert memory.best_shift(lambda shift: (-1.0, 0.0, 1.0)) is None
    # Exactly at a root nothing else is asked for.
    counted = Counted(lambda shift: (shift, 1.0, 1.0))
    assert memory.best_shift(counted) == 0.0
    assert counted.calls == 1


@pytest.mark.parametrize("curvature", [1e-3, 2.0, 1e5])
@pytest.mark.parametrize("residual", [1e-9, 1e-3])
def test_the_slack_of_a_parabola_is_a_few_times_what_it_falls(curvature, residual):
    counted = Counted(lambda shift: (curvature * shift, curvature, 0.0))
    slack = memory.shift_slack(counted, residual)
    assert residual**2 / (2.0 * curvature) <= slack <= 4.001 * residual**2 / curvature
    assert counted.calls == 3


def test_the_slack_reaches_to_where_the_derivative_has_both_signs_for_certain():
    # Flat up to 1e-8 on the left and 1e-6 on the right, so that the minimum may be anywhere there.
    def statistics(shift):
        return (-1.0 if shift < -1e-8 else 1.0 if shift > 1e-6 else 0.0), 0.0, 1.0

    slack = memory.shift_slack(statistics, 0.5)
    assert 0.5e-6 <= slack <= 16.0 * 0.5e-6
    one_sided = memory.shift_slack(lambda shift: (max(shift, 0.0), 1.0, 1.0), 0.5)
    assert one_sided == np.inf


def test_the_slack_of_softmax_intercepts():
    one = np.diag([0.3, 0.0, 0.0])
    assert memory.softmax_slack(one, 0.5 * memory._NO_SLOPE) == memory._NO_SLOPE
    assert memory.softmax_slack(one, 2.0 * memory._NO_SLOPE) == np.inf
    p = np.array([0.5, 0.3, 0.2])
    hessian = np.zeros((4, 4))
    hessian[:3, :3] = np.diag(p) - np.outer(p, p)
    curvature = np.linalg.eigvalsh(hessian[:3, :3])[1]
    near = memory._NEAR_MINIMUM * curvature
    assert memory.softmax_slack(hessian, 0.9 * near) == pytest.approx((0.9 * near) ** 2 / curvature)
    assert memory.softmax_slack(hessian, 1.1 * near) == np.inf


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "multinomial"])
def test_the_slack_of_an_intercept_bounds_what_is_left_to_gain(loss):
    X, y = make_data(loss, 60, 3, 4)
    problem = Problem(X, y, risk="esrm:2", loss=make_loss(loss), fit_intercept=True)
    engine = problem.engine
    dual = engine.worst_case(engine.point(np.array([0.3, -0.2, 0.1, 0.0])))
    best = engine.best_intercept(engine.point(np.array([0.3, -0.2, 0.1, 0.0])), dual)
    for shift in (1e-3, -1e-2):
        moved = engine.point(best.w + np.array([0.0, 0.0, 0.0, shift]))
        residual = abs(engine.gradient(moved, dual)[-1])
        left = engine.expected(moved, dual) - engine.expected(best, dual)
        assert left <= engine.intercept_slack(moved, dual, residual) <= 16.0 * left
    assert engine.intercept_slack(best, dual, 0.0) == 0.0
    assert engine.intercept_spread(best, dual, 0.25) == 0.25


def test_products_of_rows_with_themselves_and_with_others():
    X, y = make_data("squared", 9, 3, 0)
    engine = Problem(X, y).engine
    rows, others = np.array([0, 4, 7]), np.array([1, 2])
    np.testing.assert_allclose(engine._row_products(rows, rows), X[rows] @ X[rows].T)
    np.testing.assert_allclose(engine._row_products(rows, others), X[rows] @ X[others].T)


@pytest.mark.parametrize("c", [1e-6, 0.3, 5.0, 1e4, 1e9])
def test_the_proximal_map_of_the_logistic_loss_takes_few_steps(monkeypatch, c):
    counted = Counted(getattr(margins._sigmoid, "py_func", margins._sigmoid))
    monkeypatch.setattr(margins, "_sigmoid", counted)
    prox = getattr(margins.scalar_prox, "py_func", margins.scalar_prox)
    for mean in (-30.0, -2.0, 0.0, 0.4 * c, c, c + 3.0, 2.0 * c + 40.0):
        counted.calls = 0
        t = prox(LOGISTIC, 0.0, mean, c)
        # Halves of the bracket until the root is within the reach of Newton's steps, which square.
        assert counted.calls <= 12 + 1.5 * np.log2(1.0 + c)
        low, high = t - 1e-12 * (1.0 + abs(t)), t + 1e-12 * (1.0 + abs(t))
        slack = 4e-16 * (c + abs(mean))
        assert c * counted(low) + low - mean <= slack
        assert c * counted(high) + high - mean >= -slack


def watch(n_samples, passes, last, refine, bracket, wants_check=False, size=10):
    problem = SimpleNamespace(
        n_samples=n_samples,
        penalty=SimpleNamespace(fenchel_young=lambda w, slope: bracket),
        coefficients=lambda w: w,
        engine=SimpleNamespace(size=size),
    )
    found = common.Watch(problem, SimpleNamespace(passes=passes, wants_check=wants_check))
    found._last_check, found._refine = last, refine
    return found


def test_with_many_samples_iterates_are_checked_where_that_may_succeed():
    point, many = SimpleNamespace(w=np.zeros(2)), common._MANY_SAMPLES

    def due(*arguments, **options):
        return watch(*arguments, **options).due(point, np.zeros(2))

    assert due(many - 1, 5.0, 4.0, 0.1, 1.0)
    assert not due(many, 5.0, 4.0, 0.1, 1.0)
    assert due(many, 5.0, 4.0, 0.1, 1.0, wants_check=True)
    assert due(many, 4.0 + common._HEARTBEAT, 4.0, 0.1, 1.0)
    assert not due(many, 3.5 + common._HEARTBEAT, 4.0, 0.1, 1.0)
    assert due(many, 5.0, 4.0, 0.1, 0.1)
    assert due(many, 5.0, 4.0, 0.1, 0.05)


def test_costly_refinements_are_ever_rarer():
    cheap = watch(10, 0.0, 0.0, 0.5, 0.0, size=common._CHEAP_HESSIAN)
    assert [cheap.refine() for _ in range(6)] == [0.5] * 6
    costly = watch(10, 0.0, 0.0, 0.5, 0.0, size=common._CHEAP_HESSIAN + 1)
    asked = [number for number in range(1, 40) if costly.refine() > 0.0]
    assert asked == [1, 2, 4, 8, 16, 32]


def test_a_run_that_blows_up_is_stopped():
    X, y = make_data("squared", 20, 2, 0)
    problem = Problem(X, y, penalty=sorel.L2(0.1))
    run = Run(np.ones(2), None, 1e-3, 100, np.inf, None)
    watching = common.Watch(problem, run)
    start = watching.start()
    value = problem.objective(start.w)
    assert watching._refine == pytest.approx(1e-3 * problem.unit(value))
    far = np.ones(2)
    while problem.objective(far) < 0.01 * common._BLOW_UP * value:
        far *= 1.5
    assert watching.point(far, "smaller steps") is not None
    assert run.note == ""
    assert watching.point(1e3 * far, "smaller steps") is None
    assert "smaller steps" in run.note
    assert watching.point(np.array([np.nan, 0.0]), "smaller steps") is None


FLAGS = list(itertools.product([False, True], repeat=4))


@pytest.mark.parametrize(("two_levels", "affine", "fixed", "most"), FLAGS)
def test_a_risk_is_smooth_where_ranks_matter_little(two_levels, affine, fixed, most):
    share = newton._MOST_CARRY if most else 0.99 * newton._MOST_CARRY
    problem = SimpleNamespace(
        has_two_levels=two_levels,
        loss=SimpleNamespace(affine=affine),
        has_fixed_weights=fixed,
        engine=SimpleNamespace(effective_share=lambda: share),
    )
    assert newton.has_smooth_risk(problem) is (not (two_levels or affine) and (fixed or most))


@pytest.mark.parametrize(("quadratic", "cheap", "fixed", "even"), FLAGS)
@pytest.mark.parametrize("size", [30, 31])
def test_steps_share_a_matrix_where_it_hardly_changes(quadratic, cheap, fixed, even, size):
    problem = SimpleNamespace(
        penalty=SimpleNamespace(quadratic=quadratic),
        has_two_levels=False,
        loss=SimpleNamespace(affine=False),
        has_fixed_weights=fixed,
        bends_evenly=even,
        n_samples=30,
        engine=SimpleNamespace(products_are_cheap=cheap, size=size, effective_share=lambda: 1.0),
    )
    expected = quadratic and cheap and (fixed or even) and size <= 30
    assert newton.shares_matrix(problem) is expected
    problem.has_two_levels = True
    assert not newton.shares_matrix(problem)


@pytest.mark.parametrize("step", [0.2, 3.0])
def test_the_newton_matrix_of_a_proximal_map(step):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 4))
    H, z = A.T @ A, np.array([1.5, -0.7, 0.9, 0.011])
    l2, l1 = 0.3, 0.1
    separable = OwnElasticNet(l2, l1)
    separable.separable = True
    bend = np.where(np.abs(z) > step * l1, 1.0 / (1.0 + step * l2), 0.0)
    expected = H + np.diag(1.0 - bend) / step
    for penalty in (separable, OwnElasticNet(l2, l1)):
        model = ProximalModel(H, np.ones(4), np.zeros(4), penalty, (4,))
        np.testing.assert_allclose(model._newton_matrix(z, step, 1e-6), expected, atol=1e-6)
    # Groups make a derivative that is not diagonal: against differences of the map itself.
    penalty = GroupLasso(l2, l1, np.array([0, 0, 1, 1]))
    model = ProximalModel(H, np.ones(4), np.zeros(4), penalty, (4,))
    J = np.array([(penalty.prox(z + e, step) - penalty.prox(z - e, step)) / 2e-5
                  for e in 1e-5 * np.eye(4)])  # fmt: skip
    expected = H + (np.eye(4) - J) / step
    np.testing.assert_allclose(model._newton_matrix(z, step, 1e-6), expected, atol=1e-5)


def test_systems_that_are_all_but_positive_definite_are_solved():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((5, 3))
    b = rng.standard_normal(3)
    np.testing.assert_allclose(proximal._solve(A.T @ A, b), np.linalg.solve(A.T @ A, b))
    singular = np.outer([1.0, 2.0, 2.0], [1.0, 2.0, 2.0])
    x = proximal._solve(singular - 1e-15 * np.eye(3), singular @ b)
    np.testing.assert_allclose(singular @ x, singular @ b, rtol=1e-6)
    np.testing.assert_array_equal(proximal._solve(np.diag([2.0, -5.0]), np.ones(2)), [0.5, 0.5])


def test_estimates_of_the_largest_curvature():
    rng = np.random.default_rng(2)
    for scale in (1e-6, 1.0, 1e8):
        A = rng.standard_normal((40, 6)) * np.geomspace(1.0, 5.0, 6)
        H = scale * A.T @ A
        largest = np.linalg.eigvalsh(H)[-1]
        for gradient in (rng.standard_normal(6), np.zeros(6)):
            found = proximal._largest_curvature(H, gradient)
            assert 0.95 * largest <= found <= proximal._POWER_MARGIN * 1.0001 * largest
    assert proximal._largest_curvature(np.zeros((3, 3)), np.ones(3)) == 0.0
    assert proximal._least(np.array([3.0, 4.0]), np.zeros(2)) == pytest.approx(5e-8)
    assert proximal._least(np.array([3.0, 4.0]), np.array([0.0, 10.0])) == pytest.approx(5e-9)
    assert proximal._least(np.zeros(2), np.zeros(2)) == 1e-100


@pytest.mark.parametrize("n_penalized", [3, 4])
def test_a_step_of_few_parameters_is_the_minimum(n_penalized):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((9, 4))
    H, gradient, w = A.T @ A, rng.standard_normal(4), rng.standard_normal(4)
    modulus = np.where(np.arange(4) < n_penalized, 0.7, 0.0)
    step, descent, decrease = step_of_few(H, gradient, w, 0.7, n_penalized)
    np.testing.assert_allclose(step, np.linalg.solve(H + np.diag(modulus), -gradient - modulus * w))
    gained = 0.5 * modulus @ (w**2 - (w + step) ** 2) - gradient @ step
    assert descent == pytest.approx(gained)
    assert decrease == pytest.approx(gained - 0.5 * step @ H @ step)
    assert step_of_few(np.zeros((2, 2)), np.ones(2), np.zeros(2), 0.0, 2) is None
    for size, found in ((FEW, True), (FEW + 1, False)):
        many = step_of_few(np.eye(size), np.ones(size), np.zeros(size), 1.0, size)
        assert (many is not None) is found


def test_what_cannot_be_margins_is_refused_and_the_rest_is_not():
    truth = np.array([1, -1, 1])
    for taken in ([3, -2, 1], [1.0, -1.0, 1.0], [0.5, -0.5, 2.0]):
        assert cvar_loss(truth, np.array(taken), loss="logistic") > 0.0
    with pytest.raises(ValueError, match="holds labels"):
        cvar_loss(truth, np.array([1, 1, -1]), loss="logistic")
    scores = np.array([[0, 1, 2], [2, 1, 0], [1, 0, 2]])
    assert cvar_loss(np.array([0, 1, 2]), scores, loss="multinomial") > 0.0


def test_weights_that_are_all_alike_are_none():
    X, y = make_data("squared", 12, 2, 0)
    assert Problem(X, y, sample_weight=np.full(12, 3.0)).sample_weight is None
    assert Problem(X, y, sample_weight=2.0).sample_weight is None
    uneven = np.where(np.arange(12) == 5, 2.0, 1.0)
    np.testing.assert_allclose(Problem(X, y, sample_weight=uneven).sample_weight, uneven / 13.0)


def test_the_maximum_knows_of_a_weight_whether_there_is_one():
    weight = np.array([0.5, 0.0, 0.3, 0.2])
    some = np.array([1.0, 0.0, 1.0, 1.0]) / 3.0
    mixed = sorel.Mixture([sorel.Max(), sorel.Mean()], [0.5, 0.5])
    only = sorel.Mixture([sorel.Max(), sorel.Max()], [0.5, 0.5])
    for risk in (sorel.Max(), only):
        np.testing.assert_allclose(problems._counting(weight, risk), some)
        assert problems._counting(weight + 0.1, risk) is None
    for risk in (sorel.Mean(), mixed):
        assert problems._counting(weight, risk) is weight
    assert problems._counting(None, sorel.Max()) is None


@pytest.mark.parametrize("n_jobs", [0, 1.5, "two"])
def test_a_number_of_threads_is_refused_before_anything_else(n_jobs):
    with pytest.raises((ValueError, TypeError), match="n_jobs"):
        Problem("no matrix", None, n_jobs=n_jobs)


def by_products(
    size, products, rows_are_cheaper=False, cheap=True, quadratic=True, monkeypatch=None
):
    costs = SimpleNamespace(rows_are_cheaper=rows_are_cheaper, products=lambda: products)
    monkeypatch.setattr(problems, "StepCosts", lambda engine, rows: costs)
    monkeypatch.setattr(problems, "carrying_rows", lambda engine: 10.0)
    engine = SimpleNamespace(size=size, products_are_cheap=cheap, n_outputs=1)
    stand_in = SimpleNamespace(engine=engine, penalty=SimpleNamespace(quadratic=quadratic))
    return Problem._by_products(stand_in)


def test_certificates_are_refined_by_products_where_a_matrix_costs_more(monkeypatch):
    few, many, worth = problems.FEW_PARAMETERS, problems._FEW_PARAMETERS, problems._FEW_PRODUCTS

    def ask(*arguments, **options):
        return by_products(*arguments, **options, monkeypatch=monkeypatch)

    assert not ask(few, 2.0 * worth)
    assert ask(few + 1, 2.0 * worth)
    assert not ask(few + 1, worth)
    assert not ask(few + 1, 2.0 * worth, quadratic=False)
    assert not ask(many, 2.0 * worth, cheap=False)
    assert ask(many + 1, 0.0, cheap=False)
    assert ask(many + 1, 0.0)
    assert not ask(many + 1, worth, rows_are_cheaper=True)
    assert ask(many + 1, 2.0 * worth, rows_are_cheaper=True)
    assert not ask(many, worth, rows_are_cheaper=False)


@pytest.mark.parametrize("points", [[-0.1, 0.5], [0.5, 1.1], [np.nan], [-1.0, 2.0]])
def test_levels_outside_the_unit_interval_are_refused(points):
    for function in (sorel.CVaR(0.5).cumulative, sorel.ESRM(2.0).tail):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            function(np.array(points))
    assert sorel.CVaR(0.5).cumulative(np.array([0.0, 1.0])).shape == (2,)


def test_trials_are_searched_for_overflows_only_where_losses_may_have_some(monkeypatch):
    for loss, looks in (("squared", 0), ("poisson", 1)):
        X, y = make_data(loss, 20, 2, 0)
        engine = Problem(X, y, loss=loss).engine
        point, delta = engine.point(np.zeros(2)), np.array([0.1, -0.2])
        look = Counted(engine.is_finite)
        monkeypatch.setattr(engine, "is_finite", look)
        center = engine.uniform()
        moved, dual, slope = Engine.tried(
            engine, point, delta, engine.direction(delta), 0.5, center, 0.0
        )
        assert look.calls == looks
        assert dual is center
        np.testing.assert_allclose(moved.w, 0.5 * delta)
        assert slope == pytest.approx(float(engine.gradient(moved, center) @ delta))


def test_a_step_that_is_given_needs_no_bound_on_the_curvature():
    class Steps(common.FirstOrder):
        operations = ("epoch", "smoothness", "jacobian_bound")

        def iterates(self, problem, run):
            raise NotImplementedError

    solver = Steps()
    assert common.FirstOrder.needs(solver) == Steps.operations
    solver.step_size = 0.1
    assert common.FirstOrder.needs(solver) == ("epoch", "jacobian_bound")
    assert common.step_for(4.0) == 0.25
    assert common.step_for(0.0) == 1.0


def rounding_of(penalty, d=3, **options):
    X, y = make_data(options.get("loss", "squared"), 40, d, 5)
    return Problem(X, y, penalty=penalty, **options)._rounding()


def most_gain(delta, coef, vertices):
    """The most that delta . (x - coef) is over some points of the domain, for any signs."""
    return max(float(np.sum(delta * np.abs(x - coef))) for x in vertices)


def test_errors_of_a_gradient_gain_no_more_than_the_domain_allows():
    delta, coef, slope = np.array([0.2, 0.1, 0.4]), np.array([0.5, 0.3, 0.2]), np.ones(3)
    for lower, upper in ((-1.0, 2.0), (-3.0, 1.0)):
        corners = [np.array(x) for x in itertools.product([lower, upper], repeat=3)]
        box = rounding_of(sorel.Box(0.1, lower, upper))
        assert box._gain(delta, coef, slope) == pytest.approx(most_gain(delta, coef, corners))
        several = np.stack([coef, -coef], axis=1)
        expected = sum(most_gain(delta, column, corners) for column in several.T)
        assert box._gain(delta, several, slope) == pytest.approx(expected)
    assert rounding_of(sorel.NonNegative(0.1))._gain(delta, coef, slope) == np.inf
    assert rounding_of(sorel.L2(0.1))._gain(delta, coef, slope) == np.inf
    simplex = rounding_of(sorel.Simplex(0.1))._gain(delta, coef, slope)
    # Two signs at each coefficient, so that it is at most the sum of both ends.
    assert most_gain(delta, coef, np.eye(3)) <= simplex <= delta.max() + delta @ coef + 1e-15
    ball = rounding_of(Ball())._gain(delta, coef, slope)
    reach = 1.0 + np.linalg.norm(coef)
    assert ball == pytest.approx(2.0 * np.linalg.norm(delta) * reach)


@pytest.mark.parametrize(("l2", "value", "residual"), [(0.5, 0.0, 0.0), (0.1, 2.0, 1e-9)])
def test_errors_of_the_bracket_of_a_strongly_convex_penalty(l2, value, residual):
    found = rounding_of(sorel.L2(l2))
    coef, slopes = np.array([3.0, -4.0, 0.0]), 0.7
    largest = np.linalg.norm(found._columns)
    own = rounding._OPERATIONS * rounding._UNIT * l2 * 5.0
    error = (found._likely_sum * slopes + residual) * largest + own
    # An error e of the gradient moves sqrt(value) by |e| / sqrt(2 l2).
    expected = (np.sqrt(value) + error / np.sqrt(2.0 * l2)) ** 2 - value
    got = found.bracket(value, coef, np.ones(3), slopes, residual)
    assert got == pytest.approx(expected, rel=1e-6)


def test_what_is_left_in_several_intercepts_moves_slopes():
    found = rounding_of(sorel.L2(0.1), loss="multinomial", fit_intercept=True)
    engine = found.engine
    point = engine.best_intercept(engine.point(np.zeros(engine.shape)), engine.uniform())
    dual = engine.uniform()
    derivative = np.array([3e-9, -4e-9, 0.0])
    residual = 5e-9 + found._likely_sum * 0.5
    drop, moved = found.intercept(point, dual, derivative, 0.5)
    assert drop == engine.intercept_slack(point, dual, residual)
    most = residual + np.sqrt(2.0 * found.loss.curvature_bound * drop)
    assert moved == min(most, engine.intercept_spread(point, dual, residual))
    assert moved > residual


def test_the_least_gap_is_that_of_rounding_alone():
    X, y = make_data("squared", 50, 3, 6)
    problem = Problem(X, y, penalty=sorel.L2(0.1))
    result = sorel.solve(problem, tol=1e-12)
    dual = problem.engine.nearest_dual(result.weights)[0]
    least = problem.least_gap(result.w, dual)
    point = problem.engine.point(result.w)
    charged = problem._rounding()
    lost, slopes = charged.losses(
        point, dual, problem.engine.expected(point, dual), charged.margins(result.w)
    )
    bracket = charged.bracket(0.0, result.w, 0.0 * result.w, slopes, 0.0)
    assert least == pytest.approx(lost + bracket, rel=1e-12, abs=0.0)
    assert 0.0 < least < 1e-12 * result.objective


def test_what_counts_as_no_gap():
    X, y = make_data("squared", 50, 3, 6)
    problem = Problem(X, y, fit_intercept=True)
    zero, floor = problem._zero_loss, problems._FLOOR * problem._scale
    small = problems._NEGLIGIBLE * zero
    assert problem.is_negligible(0.9 * small, 0.0)
    assert not problem.is_negligible(1.1 * small, small)
    # With a large offset in y a small share of the loss at zero is not so small.
    far = Problem(X, y + 1e9, fit_intercept=True)
    small, floor = problems._NEGLIGIBLE * far._zero_loss, problems._FLOOR * far._scale
    assert floor < 0.1 * small
    assert far.is_negligible(0.9 * floor, 0.0)
    assert not far.is_negligible(0.9 * small, 0.0)
    assert far.is_negligible(0.9 * small, small / problems._ROUNDED)
    # A start that is not at zero margins may have larger losses.
    away = Problem(1e8 * X, y, penalty=sorel.Simplex(0.1))
    start = problems._NEGLIGIBLE * away._start_loss
    gap = 10.0 * problems._NEGLIGIBLE * away._zero_loss
    assert gap < start
    assert away.is_negligible(gap, gap / 9.0)
    assert not away.is_negligible(gap, gap / 11.0)
    assert not away.is_negligible(1.1 * start, start)
    assert problem._start_loss == 0.0


def test_the_unit_of_a_gap():
    X, y = make_data("squared", 50, 3, 6)
    problem = Problem(X, y)
    floor = problems._FLOOR * problem._zero_loss
    assert problem.unit(-3.0) == problem.unit(3.0) == 3.0
    assert problem.unit(0.5 * floor) == problem.unit(0.0) == pytest.approx(floor)
    assert problem.unit(2.0 * floor) == 2.0 * floor
    assert problem.margin_rounding(4.0 * problem._zero_loss) == rounds._EPS
    assert problem.margin_rounding(problem._zero_loss / 4.0) == 2.0 * rounds._EPS
    linear = Problem(X, y, loss="linear", penalty=sorel.Simplex(0.1))
    spread = problems._SPREAD_SHARE * linear._spread
    losses = linear.losses(linear.start())
    assert linear._spread == pytest.approx(np.mean(np.abs(losses - losses.mean())))
    assert linear.unit(0.5 * spread) == spread
    assert linear.unit(-2.0 * spread) == 2.0 * spread


def test_long_doubles_are_for_losses_that_bend():
    X, y = make_data("squared", 20, 3, 0)
    assert Problem(X, y).extends
    assert not Problem(X, y, loss="linear", penalty=sorel.Simplex(0.1)).extends
    assert not Problem(X, y, penalty=OwnElasticNet(0.1, 0.1)).extends
    affine = Problem(X, y, loss="linear", penalty=sorel.Simplex(0.1))
    engine = affine.engine
    assert affine.look_closer(engine.point(affine.start()), engine.uniform()) is None


def test_a_problem_of_an_engine_has_the_parts_of_its_engine():
    X, y = make_data("squared", 20, 3, 0)
    problem = Problem(X, y)
    made = Problem.from_engine(problem.engine, problem.penalty)
    with pytest.raises(TypeError, match="has the risk of its engine"):
        made.with_risk("mean")
    assert made.with_loss(make_loss("huber")) is None
    assert made.tamed() is None
    assert problem.with_loss(make_loss("huber")).loss.name == "huber"
    side = problem.with_loss(sorel.losses.parse_loss("poisson")).tamed()
    assert side is None or side.loss.name == "squared_hinge"


def test_a_kept_curvature_solves_its_systems():
    X, y = make_data("squared", 60, 4, 0)
    problem = Problem(X, y, penalty=sorel.L2(0.3), fit_intercept=True)
    assert problem.kept_factor() is None
    problem.curvature = X.T @ X + np.eye(4)
    problem.curvature = np.pad(problem.curvature, (0, 1)) + np.diag([0.0] * 4 + [2.0])
    matrix = problem.curvature + np.diag([0.3] * 4 + [0.0])
    b = np.arange(5.0)
    np.testing.assert_allclose(problem.kept_factor()(b), np.linalg.solve(matrix, b))
    other = problem.with_penalty(sorel.ElasticNet(0.3, 0.1))
    assert other.kept_factor() is None
    # Nothing of the last one is taken for another matrix, or another penalty.
    harder = problem.with_penalty(sorel.L2(3.0))
    np.testing.assert_allclose(
        harder.kept_factor()(b), np.linalg.solve(matrix + np.diag([2.7] * 4 + [0.0]), b)
    )
    problem.curvature = 2.0 * problem.curvature
    matrix = problem.curvature + np.diag([0.3] * 4 + [0.0])
    np.testing.assert_allclose(problem.kept_factor()(b), np.linalg.solve(matrix, b))
    problem.curvature = -np.eye(5)
    assert problem.kept_factor() is None


def ledger(gap, rounding=0.0, tol=1e-6, passes=10.0, halved=0.0, negligible=True):
    problem = SimpleNamespace(unit=abs, is_negligible=lambda gap, rounding: negligible)
    run = SimpleNamespace(tol=tol, passes=passes)
    found = object.__new__(solving._Ledger)
    found.problem, found.run, found.objective, found.gap = problem, run, 2.0, gap
    found.rounding, found._halved = rounding, (halved, gap)
    return found


def test_a_run_ends_at_its_tolerance_or_where_rounding_is_all_that_is_left():
    patience = solving._PATIENCE
    assert ledger(2e-6).finished
    assert not ledger(2.1e-6).finished
    assert not ledger(1.0, negligible=False, passes=1e6).finished
    assert not ledger(1.0, tol=0.0, passes=1e6).finished
    assert ledger(1.0, passes=5.0 + patience + 1.0, halved=5.0).finished
    assert not ledger(1.0, passes=5.0 + patience, halved=5.0).finished
    assert ledger(1.0, rounding=0.5, passes=5.0, halved=5.0).finished
    assert not ledger(1.0, rounding=0.4, passes=5.0, halved=5.0).finished
    assert ledger(np.inf).relative_gap == np.inf
    assert ledger(1.0).relative_gap == 0.5


@pytest.mark.parametrize(
    ("solver", "ending", "rounding", "tol", "words"),
    [
        ("auto", "stuck", 1e-5, 1e-6, "rounding errors alone leave 1e-05"),
        ("auto", "stuck", 1e-6, 1e-6, "accept a tol of 6e-03"),
        ("auto", "stuck", 1e-5, 0.0, "accept a tol of 6e-03"),
        ("sgd", "stuck", 0.0, 1e-6, "to get there, use solver='auto'"),
        ("sgd", "max_passes=3 reached", 0.0, 1e-6, "raise max_passes, or use solver='auto'"),
        ("newton", "max_passes=3 reached", 0.0, 1e-6, "raise max_passes$"),
        ("auto", "max_time=3 reached", 0.0, 1e-6, "raise max_time$"),
    ],
)
def test_the_remedy_for_a_gap_that_is_left(solver, ending, rounding, tol, words):
    result = SimpleNamespace(solver=solver, relative_gap=3e-3)
    complaint = solving._complaint(result, SimpleNamespace(tol=tol), ending, rounding)
    assert re.search(words, complaint)


def test_entries_whose_squares_overflow_are_refused():
    def problem(columns):
        return SimpleNamespace(
            engine=SimpleNamespace(column_scale=lambda: columns), loss=SimpleNamespace(name="x")
        )

    solving._check_scale(problem(None))
    solving._check_scale(problem(np.array([1.0, solving._LARGEST_ENTRY])))
    with pytest.raises(ValueError, match="in column 1"):
        solving._check_scale(problem(np.array([1.0, 1.1 * solving._LARGEST_ENTRY, 2.0])))
    with pytest.raises(ValueError, match="in column 0"):
        solving._check_scale(problem(np.array([np.nan, 1.0])))
    assert "entries of size 7" in solving._overflow(problem(np.array([1.0, 7.0])))
    assert "entries" not in solving._overflow(problem(None))


@pytest.mark.parametrize(("by_rows", "one", "quadratic", "few"), FLAGS)
def test_steps_by_rows_need_few_of_them(by_rows, one, quadratic, few):
    engine = SimpleNamespace(solves_by_rows=by_rows, n_outputs=1 if one else 2)
    problem = SimpleNamespace(
        engine=engine,
        penalty=SimpleNamespace(quadratic=quadratic),
        n_samples=newton.MAX_ROWS if few else newton.MAX_ROWS + 1,
    )
    assert newton.has_few_rows(problem) is (by_rows and one and quadratic and few)


def test_whose_weights_follow_the_ranks_at_first(monkeypatch):
    def follows(carried=50.0, **changes):
        monkeypatch.setattr(newton, "carrying_rows", lambda engine: carried)
        problem = SimpleNamespace(
            engine=SimpleNamespace(walks=True, products_are_cheap=False, size=5),
            penalty=SimpleNamespace(quadratic=True),
            loss=SimpleNamespace(affine=False), has_fixed_weights=False, has_two_levels=False,
        )  # fmt: skip
        for name, value in changes.items():
            owners = (problem, problem.engine, problem.penalty, problem.loss)
            setattr(next(owner for owner in owners if hasattr(owner, name)), name, value)
        return newton.Newton().follows_ranks(problem)

    assert follows()
    assert follows(size=6, carried=newton._ROWS_TO_FOLLOW * 6.0)
    assert not follows(size=6, carried=newton._ROWS_TO_FOLLOW * 6.0 - 0.1)
    assert not follows(walks=False)
    assert not follows(quadratic=False)
    assert not follows(affine=True)
    assert not follows(has_fixed_weights=True)
    assert not follows(has_two_levels=True)
    # Steps by products or gradients know nothing of ranks.
    assert not sorel.solvers.NewtonCG().follows_ranks(SimpleNamespace())


def rows_step(monkeypatch, size=1000, carried=50.0, rows=40, cheaper=True, raises=False, **changes):
    def solve(gradient, l2):
        if raises:
            raise np.linalg.LinAlgError
        return -gradient / l2

    curvature = SimpleNamespace(rows=rows, solve=solve)
    engine = SimpleNamespace(
        size=size, solves_by_rows=True, n_outputs=1, curvature=lambda *arguments: curvature
    )
    problem = SimpleNamespace(
        engine=engine, penalty=SimpleNamespace(quadratic=True, l2=0.5), modulus=lambda: 0.5
    )
    for name, value in changes.items():
        setattr(problem.penalty if name == "quadratic" else engine, name, value)
    costs = SimpleNamespace(rows_are_cheaper=cheaper)
    monkeypatch.setattr(newton, "StepCosts", lambda *arguments: costs)
    monkeypatch.setattr(newton, "carrying_rows", lambda engine: carried)
    point = SimpleNamespace(w=np.array([2.0]))
    state = SimpleNamespace(
        problem=problem, point=point, dual=None, eta=0.0, gradient=np.array([3.0])
    )
    return newton._step_by_rows(state, 0.0)


def test_a_step_from_the_system_of_the_rows(monkeypatch):
    few, most = newton.FEW_PARAMETERS, newton.MAX_SIZE
    np.testing.assert_array_equal(rows_step(monkeypatch), [-8.0])
    assert rows_step(monkeypatch, size=few + 1, carried=0.0) is not None
    assert rows_step(monkeypatch, size=few, carried=0.0) is None
    assert rows_step(monkeypatch, solves_by_rows=False) is None
    assert rows_step(monkeypatch, n_outputs=2) is None
    assert rows_step(monkeypatch, quadratic=False) is None
    assert rows_step(monkeypatch, carried=1000.0) is not None
    assert rows_step(monkeypatch, carried=1000.5) is None
    assert rows_step(monkeypatch, rows=0) is None
    assert rows_step(monkeypatch, rows=None) is None
    assert rows_step(monkeypatch, cheaper=False) is None
    assert rows_step(monkeypatch, size=most, cheaper=False) is None
    # Beyond that there is no other matrix.
    assert rows_step(monkeypatch, size=most + 1, cheaper=False) is not None
    assert rows_step(monkeypatch, size=most, raises=True) is None
    with pytest.raises(np.linalg.LinAlgError):
        rows_step(monkeypatch, size=most + 1, raises=True)


def test_steps_that_move_weights_may_want_a_matrix(monkeypatch):
    def wants(eta=1.0, curvature=None, size=newton.FEW_PARAMETERS + 1, shared=True):
        monkeypatch.setattr(newton, "shares_matrix", lambda problem: shared)
        problem = SimpleNamespace(curvature=curvature, engine=SimpleNamespace(size=size))
        return newton._wants_matrix_of_weights(SimpleNamespace(problem=problem, eta=eta))

    assert wants()
    assert not wants(eta=0.0)
    assert not wants(curvature=np.eye(2))
    assert not wants(size=newton.FEW_PARAMETERS)
    assert not wants(shared=False)


def test_a_model_is_minimised_by_its_factor_where_rows_are_to_be_had():
    M = np.array([[1e9, 2.0], [1e9, 1.0]])
    gradient, w, u = np.array([3.0, 1.0]), np.ones(2), np.full(2, 9.0)

    def by_factor(penalty, n_outputs=1, factor=None):
        curvature = SimpleNamespace(factor=lambda: factor)
        engine = SimpleNamespace(n_outputs=n_outputs, curvature=lambda *arguments: curvature)
        problem = SimpleNamespace(
            engine=engine, penalty=penalty, n_features=2, n_samples=2, _has_faint_columns=False
        )
        return Problem.by_factor(problem, M.T @ M, None, None, gradient, w, u)

    # An l2 of which the matrix has lost every digit, and the rows none.
    found, bend = by_factor(sorel.L2(0.5), factor=M)
    step = np.linalg.solve(M.T @ M + 0.5 * np.eye(2), -gradient - 0.5 * w)
    np.testing.assert_allclose(found, w + step, rtol=1e-5)
    assert bend == pytest.approx(np.sum((M @ step) ** 2), rel=1e-5)
    for given, bend in (
        by_factor(sorel.L2(0.5)),
        by_factor(sorel.L2(0.5), n_outputs=2, factor=M),
        by_factor(OwnElasticNet(0.5, 0.0), factor=M),
        by_factor(sorel.L2(1e9), factor=M),
    ):
        assert given is u
        assert bend is None


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_threads_share_the_products_with_a_large_matrix(monkeypatch, loss, order):
    for name in ("WORTH_SHARING_X", "_WORTH_SHARING", "_WORTH_SHARING_SLOW"):
        monkeypatch.setattr(memory, name, 0)
    X, y = make_data(loss, 40, 3, 0)
    X = np.asarray(X, order=order)
    alone = Problem(X, y, loss=loss, n_jobs=1).engine.for_run()
    shared = Problem(X, y, loss=loss, n_jobs=2).engine.for_run()
    assert alone._row_team is None
    tasks = Counted(shared._row_team.map)
    monkeypatch.setattr(shared._row_team, "map", tasks)
    w = np.linspace(-0.3, 0.4, shared.size).reshape(shared.shape)
    found = []
    for engine in (alone, shared):
        point, dual = engine.point(w), engine.uniform()
        found.append([point.margins, engine.gradient(point, dual), engine.column_scale()])
        if engine is shared:
            # The margins, the slopes' way back through X, and the sizes of the columns.
            assert tasks.calls >= 3
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-15)
    before = tasks.calls
    shared._adjoint(np.ones_like(found[0][0]))
    assert tasks.calls == before + 1
    shared._margins(w, np.empty_like(found[0][0]))
    assert tasks.calls == before + 2


@pytest.mark.parametrize("outputs", [1, 3])
def test_long_doubles_are_for_data_that_are_few_and_at_hand(outputs):
    columns = extended._MOST_PARAMETERS // outputs
    rows = extended._MOST_NUMBERS // (columns * outputs)

    def can(n=rows, d=columns, stored=(1, 2), penalty=None):
        engine = SimpleNamespace(
            stored=lambda: stored, n_samples=n, n_features=d, n_outputs=outputs, size=d * outputs
        )
        return extended.can_extend(engine, penalty or sorel.L2(0.1))

    assert can()
    assert not can(n=rows + 2)
    assert not can(n=2, d=columns + 1)
    assert not can(stored=None)
    assert not can(penalty=OwnElasticNet(0.1, 0.1))


def test_long_doubles_on_the_simplex():
    rng = np.random.default_rng(4)
    for shape in ((6,), (6, 3)):
        v = rng.standard_normal(shape).astype(extended.Long)
        u = extended._on_simplex(v)
        assert u.shape == v.shape
        for one, other in zip(u.reshape(6, -1).T, v.reshape(6, -1).T, strict=True):
            assert float(abs(one.sum() - 1)) < 1e-17
            assert np.all(one >= 0)
            # v - u is one number where u > 0, and no more elsewhere.
            lost = other - one
            assert float(np.ptp(lost[one > 0])) < 1e-17
            assert np.all(lost[one == 0] <= lost[one > 0].max())
    inside = np.array([0.25, 0.75], dtype=extended.Long)
    np.testing.assert_array_equal(extended._on_simplex(inside), inside)


@pytest.mark.parametrize("outputs", [1, 2])
def test_directions_that_keep_sums(outputs):
    rng = np.random.default_rng(5)
    coef, free = rng.uniform(0.1, 1.0, 8), np.array([1, 1, 1, 0, 1, 1, 0, 1], dtype=bool)
    step = rng.standard_normal(8).astype(extended.Long)
    step[~free] = 0
    largest = [np.argmax(np.where(free & (np.arange(8) % outputs == k), coef, 0.0))
               for k in range(outputs)]  # fmt: skip
    basis, right = extended._within_sums(coef, free, step.copy(), outputs)
    assert basis.shape == (6, 6 - outputs)
    assert np.linalg.matrix_rank(basis) == 6 - outputs
    where = np.flatnonzero(free)
    for k in range(outputs):
        np.testing.assert_array_equal(basis[where % outputs == k].sum(axis=0), 0.0)
        assert float(abs(right[k::outputs].sum())) < 1e-17
    # The largest coefficient of each output makes up for the others.
    assert sorted(np.flatnonzero(right != step)) == sorted(largest)


def test_systems_that_are_singular_up_to_rounding():
    rng = np.random.default_rng(6)
    A, b, scale = rng.standard_normal((6, 4)), rng.standard_normal(4), [1.0, 1e6, 1e-6, 3.0]
    expected = np.linalg.solve(A.T @ A, b / scale) / scale
    np.testing.assert_allclose(extended._solve((A * scale).T @ (A * scale), b), expected)
    twice = np.outer([1.0, 2.0], [1.0, 2.0]) - 1e-16 * np.eye(2)
    x = extended._solve(twice, np.array([1.0, 2.0]))
    np.testing.assert_allclose(twice @ x, [1.0, 2.0], rtol=1e-4)
    with pytest.raises(np.linalg.LinAlgError, match="no ridge"):
        extended._solve(-np.eye(2), np.ones(2))
    assert extended._solve(np.zeros((0, 0)), np.zeros(0)).shape == (0,)


def test_an_exponential_less_its_first_terms():
    t = np.array([-3.0, -0.11, -0.09, -1e-8, 0.0, 1e-9, 0.05, 0.0999, 0.1001, 2.0])
    with mpmath.workdps(40):
        exact = [float(mpmath.exp(v) - 1 - mpmath.mpf(float(v))) for v in t]
    got = extended._exp_excess(t.astype(extended.Long)).astype(float)
    np.testing.assert_allclose(got, exact, rtol=1e-15)


@pytest.mark.parametrize("summing", [[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0]])
def test_orthonormal_directions_that_keep_a_sum(summing):
    summing = np.array(summing, dtype=bool)
    basis = factored._sums_kept(summing)
    assert basis.shape == (4, 3)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-15)
    np.testing.assert_allclose(summing @ basis, 0.0, atol=1e-15)


def test_no_more_is_spent_on_certificates_in_vain_than_on_steps():
    X, y = make_data("huber", 60, 40, 1)
    problem = Problem(X, y, risk="max", loss=make_loss("huber"), penalty=sorel.L2(1e-3)).for_run()
    run = Run(problem.start(), None, 1e-2, 60.0, np.inf, None)
    iterates = newton.Newton().iterates(problem, run)
    spent, resumed, asked = 7.0, 0.0, 0
    iterate = next(iterates)
    while not run.exhausted:
        if 0.0 < iterate.refine < np.inf:
            assert run.passes >= resumed
            resumed, asked = run.passes + spent, asked + 1
        reply = problem.certify(iterate.point, iterate.dual)
        try:
            iterate = iterates.send(replace(reply, passes=spent))
        except StopIteration:
            break
    assert 2 <= asked <= 60.0 / spent


@pytest.mark.parametrize("weighted", [False, True])
def test_the_slopes_of_a_deviation_are_bounded_by_its_share(weighted):
    X, y = make_data("squared", 30, 2, 0)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 30) if weighted else None
    risk = sorel.Deviation(sorel.CVaR(0.2), 0.5)
    problem = Problem(X, y, risk=risk, loss="linear", penalty=sorel.Simplex(0.1),
                      sample_weight=weight)  # fmt: skip
    engine = problem.engine
    point = engine.point(problem.start())
    dual = engine.worst_case(point)
    lam, losses = engine.weights(dual), engine.losses(point)
    size, slopes, curvature = engine.absolute_sums(point, dual)
    assert size >= np.abs(lam) @ np.abs(losses) * (1.0 - 1e-12)
    assert np.abs(lam).sum() <= slopes == 1.5
    assert curvature == 0.0


def order_of(n, d, penalty, loss="squared", risk="cvar:0.5"):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) if n * d < 10_000 else np.zeros((n, d), np.float32)
    y = np.arange(n) % 3 if loss == "multinomial" else np.arange(n) * 1.0
    problem = Problem(X, y, risk=risk, loss=loss, penalty=penalty)
    return [solver.__name__ for solver in Auto()._order(problem)]


@pytest.mark.parametrize(
    ("shape", "penalty", "options", "first"),
    [
        # A simplex of one output, of which few columns carry the solution.
        ((30, 1000), sorel.Simplex(0.1), {}, ["Newton", "InteriorPoint"]),
        ((1002, 1001), sorel.Simplex(0.1), {}, ["Newton", "InteriorPoint"]),
        # Of several: the same, but as weights move only up to two thousand, or with few rows.
        ((2002, 666), sorel.Simplex(0.1), {"loss": "multinomial"}, ["Newton", "InteriorPoint"]),
        ((2001, 667), sorel.Simplex(0.1), {"loss": "multinomial"}, ["Newton", "InteriorPoint"]),
        ((2002, 667), sorel.Simplex(0.1), {"loss": "multinomial"}, ["SOREL", "Newton"]),
        ((2002, 667), sorel.Simplex(0.1), {"loss": "multinomial", "risk": "mean"}, ["Newton"]),
        # Bounds, at which coefficients rest: single samples first if there are many of them.
        ((1750, 350), sorel.Box(0.1, -1.0, 1.0), {}, ["Newton", "InteriorPoint"]),
        ((1053, 351), sorel.Box(0.1, -1.0, 1.0), {}, ["SparseNewton", "SOREL", "Newton"]),
        ((1052, 351), sorel.Box(0.1, -1.0, 1.0), {}, ["Newton", "InteriorPoint"]),
        ((1800, 120), sorel.Box(0.1, -1.0, 1.0), {"loss": "multinomial"}, ["Newton"]),
        ((30, 1001), sorel.ElasticNet(0.1, 0.1), {}, ["SparseNewton", "SOREL", "Newton"]),
        # Without kinks between the bounds.
        ((30, 1001), sorel.Box(0.1, -1.0, 1.0), {"risk": "mean"}, ["SparseNewton", "LBFGS"]),
        ((30, 1001), sorel.ElasticNet(0.1, 0.1), {"risk": "mean"}, ["SparseNewton", "SOREL"]),
    ],
)  # fmt: skip
def test_the_order_of_methods_where_the_penalty_is_not_quadratic(shape, penalty, options, first):
    assert order_of(*shape, penalty, **options)[: len(first)] == first


@pytest.mark.parametrize(
    ("gap", "passes", "ends"),
    [
        (1.0, 9.0, False),  # too early to tell
        (1.0, 10.0, True),
        (0.2, 10.0, False),  # 1.6 in 10 of 13.8 in 100
        (0.3, 10.0, True),  # 1.2
        (1e-3, 40.0, False),
        (1e-2, 40.0, True),
        (1e-6, 99.0, False),
        (2.0, 50.0, True),
    ],
)
def test_a_trial_ends_where_it_leads_nowhere(gap, passes, ends):
    run = SimpleNamespace(passes=7.0 + passes, tol=1e-6)
    assert Auto._leads_nowhere(1.0, gap, run, 7.0, 107.0) is ends
