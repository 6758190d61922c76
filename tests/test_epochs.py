"""The steps on single samples that an engine offers: formulas, bias, bounds."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.sparse
from stochastic import LABELS, PENALTIES, WEIGHTS, D, N, X, make, plan, snapshot

import sorel
from sorel.engines import stochastic as steps_module
from sorel.engines.base import Plan
from sorel.engines.stochastic import systematic_sample
from sorel.solvers import SGD, Prospect, SaddleSAGA


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge", "multinomial"])
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("batch", [1, 4])
def test_first_step_is_the_full_gradient_step(loss, sampling, batch):
    # At the snapshot the correction vanishes, whatever is drawn: the direction is the gradient.
    problem = make(loss, fit_intercept=True)
    point, dual, gradient = snapshot(problem)
    center = point.w + 1.0
    options = {"batch": batch, "sampling": sampling, "center": center, "tau": 0.7}
    coef = slice(0, problem.n_features)
    for proximal in (True, False):
        setting = plan(problem, 0.05, 1, proximal=proximal, **options)
        moved = problem.engine.stochastic().epoch(
            point, dual, gradient, setting, np.random.default_rng(0)
        )
        if proximal:
            pulled = (point.w - 0.05 * gradient + 0.05 / 0.7 * center) / (1 + 0.05 / 0.7)
            expected = pulled.copy()
            expected[coef] = problem.penalty.prox_centered(
                (point.w - 0.05 * gradient)[coef], 0.05, center[coef], 0.7
            )
        else:
            direction = gradient + (point.w - center) / 0.7
            direction[coef] += problem.penalty.l2 * point.w[coef]
            expected = point.w - 0.05 * direction
        np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
@pytest.mark.parametrize("loss", ["huber", "multinomial"])
def test_epoch_equals_the_formula_step_by_step(penalty, loss):
    problem = make(loss, penalty=penalty, fit_intercept=True, sample_weight=WEIGHTS)
    engine = problem.engine
    point, dual, gradient = snapshot(problem)
    center = point.w.copy()
    total = np.zeros(engine.shape)
    setting = plan(problem, 0.02, 12, batch=3, center=center, tau=2.0)
    moved = engine.stochastic().epoch(
        point, dual, gradient, setting, np.random.default_rng(3), start=point.w + 0.0, total=total
    )
    indices = np.random.default_rng(3).integers(N, size=36).reshape(12, 3)
    w, sums = point.w.copy(), np.zeros(engine.shape)
    scale = N * engine.weights(dual)
    rows = np.column_stack([X, np.ones(N)])
    for chosen in indices:
        slopes = engine.point(w).slopes
        change = (scale[chosen] * (slopes - point.slopes)[chosen].T).T / 3
        v = w - 0.02 * (rows[chosen].T @ change + gradient)
        w = (v + 0.01 * center) / 1.01
        w[:D] = penalty.prox_centered(v[:D], 0.02, center[:D], 2.0)
        sums += w
    np.testing.assert_allclose(moved, w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(total, sums, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_direction_is_unbiased(sampling, weights):
    # One step from a start away from the snapshot: its mean over many draws is the full gradient
    # step at the start.
    problem = make(sample_weight=weights)
    engine = problem.engine
    point, dual, gradient = snapshot(problem)
    start = point.w + 0.5
    draws = 2000
    rng = np.random.default_rng(0)
    setting = plan(problem, 1e-3, 1, proximal=False, sampling=sampling)
    steps = np.array(
        [
            engine.stochastic().epoch(point, dual, gradient, setting, rng, start=start)
            for _ in range(draws)
        ]
    )
    exact = start - 1e-3 * (engine.gradient(engine.point(start), dual) + problem.penalty.l2 * start)
    error = np.abs(steps.mean(0) - exact)
    assert np.all(error <= 5 * steps.std(0) / math.sqrt(draws) + 1e-15)


def test_importance_sampling_is_more_accurate():
    data = X * np.where(np.arange(N) % 10 == 0, 8.0, 1.0)[:, None]
    problem = make(data=data)
    point, dual, gradient = snapshot(problem)
    spread = {}
    for sampling in ("uniform", "importance"):
        setting = plan(problem, 1e-3, 1, sampling=sampling)
        rng = np.random.default_rng(0)
        steps = [
            problem.engine.stochastic().epoch(
                point, dual, gradient, setting, rng, start=point.w + 1.0
            )
            for _ in range(300)
        ]
        spread[sampling] = np.std(steps, axis=0).sum()
    assert spread["importance"] < 0.8 * spread["uniform"]


def run_all(problem, setting):
    """What each stochastic operation makes of the same start."""
    steps, rng = problem.engine.stochastic(), np.random.default_rng(5)
    point, dual, gradient = snapshot(problem)
    batches = setting._replace(batch=8)
    weighted = setting._replace(sampling="importance")
    return {
        "uniform": steps.epoch(point, dual, gradient, setting, rng),
        "importance": steps.epoch(point, dual, gradient, weighted, rng),
        "minibatch": steps.minibatch_epoch(point.w, batches, rng),
        "prospect": steps.prospect_epoch(steps.table(point, dual), point.w, setting, 0.0, rng),
        "smoothed": steps.prospect_epoch(steps.table(point, dual), point.w, setting, 0.3, rng),
        "saddle": steps.saddle_epoch(steps.table(point, dual), point.w, setting, 0.01, 0.0, rng),
    }


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_layouts_and_precisions_agree(loss, fit_intercept):
    single = X.astype(np.float32)
    found = []
    for data in (X, np.asfortranarray(X), single, np.asfortranarray(single)):
        problem = make(loss, data=data, fit_intercept=fit_intercept)
        found.append(run_all(problem, plan(problem, 0.01, 30, batch=2)))
    for other, tol in zip(found[1:], (1e-10, 1e-5, 1e-5), strict=True):
        for name, w in other.items():
            np.testing.assert_allclose(w, found[0][name], rtol=tol, atol=tol, err_msg=name)


def test_multinomial_with_two_classes_is_logistic():
    # With W = (-w/2, w/2) the softmax loss is the logistic one, and the symmetry is kept by steps
    # of the same length on half the margin.
    binary = sorel.Problem(X, LABELS, loss="logistic", risk=sorel.ESRM(2.0), penalty=sorel.L2(0.1))
    double = sorel.Problem(
        X, LABELS, loss="multinomial", risk=sorel.ESRM(2.0), penalty=sorel.L2(0.1)
    )
    one, two = binary.engine, double.engine
    w = np.array([0.3, -0.2, 0.1])
    W = np.column_stack([-w / 2, w / 2])
    a, b = one.point(w), two.point(W)
    np.testing.assert_allclose(a.losses, b.losses, rtol=1e-12)
    p, q = one.worst_case(a), two.worst_case(b)
    operations = {
        "epoch": lambda e, point, dual, s: e.stochastic().epoch(
            point, dual, e.gradient(point, dual), s, np.random.default_rng(5)
        ),
        "minibatch": lambda e, point, dual, s: e.stochastic().minibatch_epoch(
            point.w, s._replace(batch=5), np.random.default_rng(5)
        ),
        "prospect": lambda e, point, dual, s: e.stochastic().prospect_epoch(
            e.stochastic().table(point, dual), point.w, s, 0.0, np.random.default_rng(5)
        ),
        "saddle": lambda e, point, dual, s: e.stochastic().saddle_epoch(
            e.stochastic().table(point, dual), point.w, s, 0.01, 0.0, np.random.default_rng(5)
        ),
    }
    for name, operate in operations.items():
        # A gradient in W moves w = W[:, 1] - W[:, 0] twice as far: halve its penalty and step so
        # that both problems take the same path.
        kernel = binary.penalty.kernel(D)
        single = operate(one, a, p, Plan(0.1, 40, kernel))
        halves = operate(two, b, q, Plan(0.05, 40, kernel._replace(l2=2 * kernel.l2)))
        np.testing.assert_allclose(halves[:, 1] - halves[:, 0], single, rtol=1e-8, err_msg=name)
        np.testing.assert_allclose(halves[:, 1], -halves[:, 0], rtol=1e-8)


def test_smoothness_bounds_the_hessian_for_any_weighting():
    rng = np.random.default_rng(0)
    for loss in ("squared", "huber", "logistic", "squared_hinge", "multinomial"):
        for weights in (None, WEIGHTS):
            problem = make(loss, sample_weight=weights, fit_intercept=True)
            engine = problem.engine
            worst = engine.stochastic().smoothness()
            for _ in range(5):
                point = engine.point(rng.standard_normal(engine.shape))
                dual = engine.worst_case(point)
                bound = engine.stochastic().smoothness(dual)
                top = np.linalg.eigvalsh(engine.curvature(point, dual).matrix())[-1]
                assert top <= bound.average * (1 + 1e-12)
                assert bound.average <= worst.average * (1 + 1e-12)
                assert bound.component <= worst.component * (1 + 1e-12)
                assert bound.average <= bound.component * (1 + 1e-12)


def test_jacobian_bound_holds():
    rng = np.random.default_rng(0)
    for loss in ("squared", "huber", "logistic", "squared_hinge", "multinomial"):
        problem = make(loss)
        engine = problem.engine
        for scale in (0.1, 1.0, 10.0):
            point = engine.point(scale * rng.standard_normal(engine.shape))
            slopes = point.slopes.reshape(N, -1)
            jacobian = (X[:, :, None] * slopes[:, None, :]).reshape(N, -1)
            norm = np.linalg.norm(jacobian / math.sqrt(N), 2) ** 2
            assert norm <= engine.stochastic().jacobian_bound(point.losses.mean()) * (1 + 1e-12)


def test_systematic_sample_follows_the_probabilities():
    rng = np.random.default_rng(2)
    probability = rng.exponential(size=30)
    probability[[0, 5, 29]] = 0.0
    for count in (1, 7, 200):
        for offset in (0.0, 0.37, 1.0 - 1e-16):
            out = systematic_sample(probability, count, offset)
            drawn = np.bincount(out, minlength=30)
            assert drawn.sum() == count
            share = count * probability / probability.sum()
            assert np.all(np.abs(drawn - share) < 1.0 + 1e-9)
            assert np.all(np.diff(out) >= 0)
            assert drawn[probability == 0.0].sum() == 0


def test_plain_steps_need_a_smooth_penalty():
    problem = make(penalty=sorel.ElasticNet(0.1, 0.1))
    point, dual, gradient = snapshot(problem)
    with pytest.raises(ValueError, match="smooth"):
        problem.engine.stochastic().epoch(
            point, dual, gradient, plan(problem, 0.1, proximal=False), np.random.default_rng(0)
        )
    with pytest.raises(ValueError, match="sampling"):
        problem.engine.stochastic().epoch(
            point, dual, gradient, plan(problem, 0.1, sampling="odd"), np.random.default_rng(0)
        )


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("solver", [Prospect(), Prospect(nu=0.1), SaddleSAGA(), SGD(batch_size=4)])
def test_loops_that_are_left_now_and_then_take_the_same_steps(form, solver, monkeypatch):
    """Long loops are cut into pieces, between which signals are heard; nothing else changes."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 5)) * (rng.random((60, 5)) < 0.5)
    y = rng.normal(size=60)
    found = []
    for unheard in (steps_module._UNHEARD, 1500):
        monkeypatch.setattr(steps_module, "_UNHEARD", unheard)
        data = X if form == "dense" else scipy.sparse.csr_array(X)
        problem = sorel.Problem(data, y, risk=sorel.ESRM(2.0), penalty=sorel.L2(0.1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sorel.ConvergenceWarning)
            found.append(sorel.solve(problem, solver, tol=0.0, max_passes=6, random_state=3).w)
    if form == "dense":
        assert (found[0] == found[1]).all()
    else:
        np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)
