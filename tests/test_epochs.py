"""The steps on single samples that an engine offers: formulas, bias, bounds."""

import math

import numpy as np
import pytest
import scipy.sparse
from helpers import LOSSES
from stochastic import LABELS, PENALTIES, WEIGHTS, D, N, X, make, plan, quietly, snapshot

import sorel
from sorel.engines import stochastic as steps_module
from sorel.engines.base import Plan
from sorel.engines.stochastic import systematic_sample
from sorel.solvers import SGD, Prospect, SaddleSAGA


def seeded(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch", [1, 3])
def test_epoch_equals_the_formula_step_by_step(penalty, loss, batch):
    problem = make(loss, penalty=penalty, fit_intercept=True, sample_weight=WEIGHTS)
    engine, rows = problem.engine, np.column_stack([X, np.ones(N)])
    point, dual, gradient = snapshot(problem)
    center, start = point.w + 0.1, point.w + 0.0
    scale = N * engine.weights(dual)
    for proximal in (True, False) if penalty.name == "l2" else (True,):
        total, sums, w = np.zeros(engine.shape), np.zeros(engine.shape), start.copy()
        setting = plan(problem, 0.02, 12, batch=batch, proximal=proximal, center=center, tau=2.0)
        parts = (point, dual, gradient, setting, seeded(3))
        moved = engine.stochastic().epoch(*parts, start=start, total=total)
        for chosen in seeded(3).integers(N, size=12 * batch).reshape(12, batch):
            slopes = engine.point(w).slopes
            change = (scale[chosen] * (slopes - point.slopes)[chosen].T).T / batch
            direction = rows[chosen].T @ change + gradient
            v = w - 0.02 * direction
            if proximal:
                w = (v + 0.01 * center) / 1.01
                w[:D] = penalty.prox(w[:D], 0.02 / 1.01)
            else:
                v[:D] -= 0.02 * penalty.l2 * w[:D]
                w = v - 0.01 * (w - center)
            sums += w
        np.testing.assert_allclose(moved, w, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(total, sums, rtol=1e-10, atol=1e-12)


def first_steps(problem, draws, sampling):
    """Where one plain step leads from away from the snapshot: mean, spread, full gradient step."""
    engine, (point, dual, gradient) = problem.engine, snapshot(problem)
    start, rng, steps = point.w + 0.5, seeded(0), engine.stochastic()
    setting = plan(problem, 1e-3, 1, proximal=False, sampling=sampling)
    ends = [steps.epoch(point, dual, gradient, setting, rng, start=start) for _ in range(draws)]
    exact = start - 1e-3 * (engine.gradient(engine.point(start), dual) + problem.penalty.l2 * start)
    return np.mean(ends, axis=0), np.std(ends, axis=0), exact


@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "given"])
def test_direction_is_unbiased(sampling, weights):
    mean, spread, exact = first_steps(make(sample_weight=weights), 2000, sampling)
    assert np.all(np.abs(mean - exact) <= 5 * spread / math.sqrt(2000) + 1e-15)


def test_importance_sampling_is_more_accurate():
    problem = make(data=X * np.where(np.arange(N) % 10 == 0, 8.0, 1.0)[:, None])
    uniform, importance = (first_steps(problem, 300, s)[1] for s in ("uniform", "importance"))
    assert importance.sum() < 0.8 * uniform.sum()


def run_all(engine, point, dual, setting):
    """What each stochastic operation makes of the same start."""
    steps, gradient = engine.stochastic(), engine.gradient(point, dual)
    batches = setting._replace(batch=8)
    weighted = setting._replace(sampling="importance")

    def table():
        return steps.table(point, dual)

    return {
        "uniform": steps.epoch(point, dual, gradient, setting, seeded(5)),
        "importance": steps.epoch(point, dual, gradient, weighted, seeded(5)),
        "minibatch": steps.minibatch_epoch(point.w, batches, seeded(5)),
        "prospect": steps.prospect_epoch(table(), point.w, setting, 0.0, seeded(5)),
        "smoothed": steps.prospect_epoch(table(), point.w, setting, 0.3, seeded(5)),
        "saddle": steps.saddle_epoch(table(), point.w, setting, 0.01, 0.0, seeded(5)),
    }


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_layouts_and_precisions_agree(loss, fit_intercept):
    single = X.astype(np.float32)
    found = []
    for data in (X, np.asfortranarray(X), single, np.asfortranarray(single)):
        problem = make(loss, data=data, fit_intercept=fit_intercept)
        setting = plan(problem, 0.01, 30, batch=2)
        found.append(run_all(problem.engine, *snapshot(problem)[:2], setting))
    for other, tol in zip(found[1:], (1e-10, 1e-5, 1e-5), strict=True):
        for name, w in other.items():
            np.testing.assert_allclose(w, found[0][name], rtol=tol, atol=tol, err_msg=name)


def test_multinomial_with_two_classes_is_logistic():
    # With W = (-w/2, w/2) the softmax loss is the logistic one. A gradient in W moves
    # w = W[:, 1] - W[:, 0] twice as far: half the step and twice the penalty take the same path.
    options = {"risk": sorel.ESRM(2.0), "penalty": sorel.L2(0.1)}
    w, kernel = np.array([0.3, -0.2, 0.1]), sorel.L2(0.1).kernel(D)
    found = []
    for loss, start, step, l2 in (
        ("logistic", w, 0.1, kernel.l2),
        ("multinomial", np.column_stack([-w / 2, w / 2]), 0.05, 2 * kernel.l2),
    ):
        engine = sorel.Problem(X, LABELS, loss=loss, **options).engine
        point = engine.point(start)
        setting = Plan(step, 40, kernel._replace(l2=l2))
        found.append(run_all(engine, point, engine.worst_case(point), setting))
    for name, single in found[0].items():
        halves = found[1][name]
        np.testing.assert_allclose(halves[:, 1] - halves[:, 0], single, rtol=1e-8, err_msg=name)
        np.testing.assert_allclose(halves[:, 1], -halves[:, 0], rtol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "given"])
def test_bounds_on_curvature_and_slopes(loss, weights):
    rng = seeded(0)
    engine = make(loss, sample_weight=weights, fit_intercept=True).engine
    steps, full = engine.stochastic(), np.column_stack([X, np.ones(N)])
    omega, worst = engine.weights(engine.uniform()), engine.stochastic().smoothness()
    for scale in (0.1, 0.5, 1.0, 2.0, 10.0):
        point = engine.point(scale * rng.standard_normal(engine.shape))
        dual = engine.worst_case(point)
        bound = steps.smoothness(dual)
        top = np.linalg.eigvalsh(engine.curvature(point, dual).matrix())[-1]
        assert top <= bound.average * (1 + 1e-12)
        assert bound.average <= min(worst.average, bound.component) * (1 + 1e-12)
        assert bound.component <= worst.component * (1 + 1e-12)
        # The Jacobian of all losses, under the sample weights.
        slopes = point.slopes.reshape(N, -1)
        jacobian = (full[:, :, None] * slopes[:, None, :]).reshape(N, -1)
        norm = np.linalg.norm(jacobian * np.sqrt(omega)[:, None], 2) ** 2
        assert norm <= steps.jacobian_bound(omega @ point.losses) * (1 + 1e-12)


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


@pytest.mark.parametrize(
    ("option", "words"), [({"proximal": False}, "smooth"), ({"sampling": "odd"}, "sampling")]
)
def test_wrong_plans_are_refused(option, words):
    problem = make(penalty=sorel.ElasticNet(0.1, 0.1))
    steps = problem.engine.stochastic()
    with pytest.raises(ValueError, match=words):
        steps.epoch(*snapshot(problem), plan(problem, 0.1, **option), seeded(0))


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("solver", [Prospect(), Prospect(nu=0.1), SaddleSAGA(), SGD(batch_size=4)])
def test_loops_that_are_left_now_and_then_take_the_same_steps(form, solver, monkeypatch):
    """Long loops are cut into pieces, between which signals are heard; nothing else changes."""
    found = []
    for unheard in (steps_module._UNHEARD, 1500):
        monkeypatch.setattr(steps_module, "_UNHEARD", unheard)
        sparse = np.where(np.abs(X) < 0.5, 0.0, X)
        problem = make(data=sparse if form == "dense" else scipy.sparse.csr_array(sparse))
        found.append(quietly(problem, solver, tol=0.0, max_passes=6, random_state=3).w)
    if form == "dense":
        assert (found[0] == found[1]).all()
    else:
        np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)
