"""Interior-point steps: their equations, where they lead, and problems that need them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import LOSSES, PENALTIES, RISKS, make_data, make_loss
from own_penalties import Ball

import sorel
from sorel import interior
from sorel.interior import (
    BlurredHinge,
    InteriorModel,
    InteriorPath,
    Tails,
    can_step_inside,
    most_tails,
)
from sorel.losses import Huber, SquaredHinge
from sorel.solvers import Continuation, Newton, UnsupportedProblemError
from sorel.solvers.auto import Auto
from sorel.solvers.interior import InteriorPoint


def path_of(problem, start=None):
    problem = problem.for_run()
    engine = problem.engine
    start = problem.start() if start is None else start
    model = InteriorModel.of(engine, problem.penalty, engine.losses(engine.point(start)))
    return InteriorPath(model, model.scaled(start))


def found_by(problem, path):
    """Parameters and weights, back in the units of the problem."""
    w = path.model.unscaled(path.w, problem.engine.shape)
    w[: problem.n_features] = problem.penalty.project(w[: problem.n_features])
    lam = np.zeros(problem.n_samples)
    lam[path.model.used] = path.weights
    risk = getattr(problem.risk, "risk", problem.risk)
    return w, sorel.project_permutahedron(lam, risk, problem.sample_weight)


def small(loss, risk, penalty, **options):
    X, y = make_data(loss, 13, 3, seed=3)
    return sorel.Problem(X, y, loss=make_loss(loss), risk=risk, penalty=penalty, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_tails_add_up_to_the_risk(risk, weighted):
    rng = np.random.default_rng(0)
    losses = rng.standard_normal(9)
    omega = rng.uniform(0.1, 1.0, 9) if weighted else np.ones(9)
    omega /= omega.sum()
    tails = Tails.of(risk, omega, losses)
    # Without weights the tails know nothing of the order.
    order = np.arange(9) if weighted else rng.permutation(9)
    value = tails.common * np.sum(omega * losses[order])
    for share, level in zip(tails.shares, tails.levels, strict=True):
        part = sorel.Max() if level == 0.0 else sorel.CVaR(level)
        value += share * part(losses[order], omega)
    assert value == pytest.approx(risk(losses[order], omega), rel=1e-12)
    assert tails.common + tails.shares.sum() == pytest.approx(1.0, rel=1e-12)


def test_a_level_that_two_parts_of_a_mixture_share_is_one_tail():
    mixture = sorel.Mixture([sorel.CVaR(0.5), sorel.CVaR(0.5), sorel.CVaR(1.0)], [0.2, 0.3, 0.5])
    tails = Tails.of(mixture, np.full(4, 0.25), np.zeros(4))
    assert (tails.common, *tails.shares, *tails.levels) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_a_direction_solves_the_linear_equations(loss, penalty):
    """Products change as asked for, and gradient, shares and sums come right, to first order."""
    risk = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.3), sorel.Max()], [0.2, 0.5, 0.3])
    problem = small(loss, risk, penalty, fit_intercept=True)
    path = path_of(problem)
    for _ in range(2):
        path.step()
    rng = np.random.default_rng(1)
    targets = [x * y * rng.uniform(-1, 1, x.shape) for x, y in path._pairs()]
    system = interior._System(path)
    step = system.direction(targets)
    pairs = zip(path._slacks, path._multipliers, strict=True)
    for (x, y), dx, dy, target in zip(pairs, step.slacks, step.multipliers, targets, strict=True):
        assert np.allclose(x * dy + y * dx, target, rtol=1e-7, atol=1e-12)
    model, d_lam = path.model, step.multipliers[0]
    assert np.allclose(d_lam.sum(axis=1), model.tails.shares - path._multipliers[0].sum(axis=1))
    assert np.allclose(step.multipliers[1], -d_lam[: path._capped])

    def gradient(t):
        """Gradient of the Lagrangian t steps ahead, by the formulas of the loss."""
        w = path.w + t * step.w
        y = [a + t * da for a, da in zip(path._multipliers, step.multipliers, strict=True)]
        out = model.jacobian(model.margins(w)).T @ (y[0].sum(axis=0) + path._fixed)
        out += model.l2 * w + model.linear
        out[path._low] -= y[2]
        out[path._high] += y[3]
        out[path._kinked] += y[4] - y[5]
        if model.sums is not None:
            out += model.sums.T @ (path._sums + t * step.sums)
        return out

    slope = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    assert np.allclose(slope, -gradient(0.0), rtol=1e-5, atol=1e-7 * np.abs(slope).max())
    if model.sums is not None:
        assert np.allclose(model.sums @ step.w, 0.0, atol=1e-12)


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
@pytest.mark.parametrize("loss", LOSSES)
def test_steps_lead_to_the_optimum(loss, risk):
    for number, penalty in enumerate(PENALTIES.values()):
        weight = None if number % 2 else np.r_[0.0, np.linspace(1.0, 2.0, 12)]
        problem = small(
            loss, risk, penalty, fit_intercept=bool(number % 3), sample_weight=weight
        )  # fmt: skip
        if problem.has_fixed_weights and penalty.quadratic:
            continue
        path = path_of(problem, sorel.solve(problem, tol=1e-10).w)
        # With sample weights the tails of a smooth spectrum are those of one order of the ties.
        exact = weight is None or not isinstance(risk, (sorel.ESRM, sorel.Extremile))
        for _ in range(40):
            path.step()
            if path.gap <= 1e-8:
                break
        gap = problem.certificate(*found_by(problem, path)).relative_gap
        assert gap <= (1e-6 if exact else 1e-3)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_deviations(share):
    risk = sorel.Deviation(sorel.Mixture([sorel.CVaR(0.2), sorel.Max()], [0.7, 0.3]), share)
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((12, 4)), rng.standard_normal(12), rng.uniform(1, 9, 12)
    problem = sorel.Problem(
        X, y, loss="linear", risk=risk, penalty=sorel.ElasticNet(1e-3, 1e-2), sample_weight=weight
    )
    assert sorel.solve(problem, InteriorPoint(), tol=1e-9).converged


@pytest.mark.parametrize("blur", [1.0, 1e-3, 1e-12])
def test_a_blurred_hinge_is_smooth_and_lies_above_the_hinge(blur):
    y = np.tile([1.0, -1.0], 50)
    z = y * (1.0 - np.sqrt(blur) * np.linspace(-20.0, 20.0, 100))
    loss = BlurredHinge(blur)
    h = np.sqrt(loss.value(y, z))
    np.testing.assert_allclose(2.0 * h * (h - (1.0 - y * z)), blur, rtol=1e-6)
    excess = loss.value(y, z) - SquaredHinge().value(y, z)
    assert (excess > 0.0).all()
    assert (excess <= blur).all()
    step = 1e-4 * np.sqrt(blur)
    slope = (loss.value(y, z + step) - loss.value(y, z - step)) / (2.0 * step)
    np.testing.assert_allclose(loss.derivative(y, z), slope, rtol=1e-5, atol=1e-7 * np.sqrt(blur))
    bend = (loss.derivative(y, z + step) - loss.derivative(y, z - step)) / (2.0 * step)
    np.testing.assert_allclose(loss.curvature(y, z), bend, rtol=1e-5, atol=1e-7)
    assert (loss.curvature(y, z) > 0.0).all()


@pytest.mark.parametrize("seed", range(3))
def test_hinges_of_separable_labels_and_next_to_no_penalty(seed):
    """Where labels can be told apart, the optimum is at the kinks of many hinges."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((19, 14)) * (rng.random((19, 14)) < 0.4)
    y = np.sign(X @ rng.standard_normal(14) + 1e-9)
    problem = sorel.Problem(X, y, loss="squared_hinge", risk="mean", penalty=sorel.L2(1e-8))
    result = sorel.solve(problem, InteriorPoint(), max_passes=120)
    assert result.converged, result.status


def labels(seed, rows, n, d):
    """Four classes, and rows that are badly scaled or mostly zeros."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if rows == "scales":
        X *= 10.0 ** rng.uniform(-4, 4, d)
    else:
        X[rng.random((n, d)) < 0.7] = 0.0
    scores = X / np.sqrt(np.mean(X * X, axis=0)) @ rng.standard_normal((d, 4))
    y = np.argmax(scores + (rows == "zeros") * rng.gumbel(size=scores.shape), axis=1)
    y[:4] = np.arange(4)
    return X, y


@pytest.mark.parametrize(
    ("seed", "rows", "shape", "risk", "penalty"),
    [
        (2, "scales", (26, 9), sorel.CVaR(0.1), sorel.NonNegative(1e-8)),
        (24, "scales", (26, 9), sorel.CVaR(0.1), sorel.NonNegative(1e-8)),
        (8, "scales", (40, 12), sorel.CVaR(0.1), sorel.NonNegative(1e-8)),
        (5, "zeros", (48, 5), sorel.Extremile(15.0), sorel.Box(1e-6, -1e5, 1e5)),
        (11, "zeros", (48, 5), sorel.Extremile(15.0), sorel.Box(1e-6, -1e5, 1e5)),
    ],
)
def test_classes_within_bounds_and_next_to_no_penalty(seed, rows, shape, risk, penalty):
    X, y = labels(seed, rows, *shape)
    problem = sorel.Problem(
        X, y, loss="multinomial", risk=risk, penalty=penalty, fit_intercept=True
    )
    result = sorel.solve(problem)
    assert result.converged, result.status


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_the_worst_of_losses_with_a_kink_in_each(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, 10))[rng.integers(0, 20, 60)]
    y = X @ rng.standard_normal(10) * 20 + 100 * rng.standard_normal(60)
    problem = sorel.Problem(
        X, y, loss=Huber(0.1), risk=sorel.Max(), penalty=sorel.L2(1e-9), fit_intercept=True
    )
    result = sorel.solve(problem)
    assert result.converged, result.status
    assert "interior_point" in result.status


@pytest.mark.parametrize("seed", [0, 1])
def test_a_perfect_fit_far_down_an_exponential(seed):
    """The optimum is 0, and attained nowhere: the objective has to come down step by step."""
    X = 1e6 * np.random.default_rng(seed).standard_normal((2, 4))
    problem = sorel.Problem(
        X, [0.0, 1.0], loss="poisson", risk="mean", penalty=sorel.Simplex(0.0), fit_intercept=True
    )
    result = sorel.solve(problem)
    assert result.converged, result.status
    assert 0.0 <= result.objective < 1e-6 * problem.unit(0.0)


def test_a_start_on_the_boundary_of_the_simplex_is_moved_inside():
    problem = small("squared", sorel.CVaR(0.3), PENALTIES["simplex"])
    path = path_of(problem, np.array([0.0, 1.0, 0.0]))
    w = path.model.unscaled(path.w, (3,))
    assert w.min() > 0.0
    assert w.sum() == pytest.approx(1.0, rel=1e-12)
    # Where equal coefficients overflow, less of them.
    X, y = np.diag([1e4, 1e4, -1e4]) - 2e3, [1.0, 1.0, 1.0]
    steep = sorel.Problem(X, y, loss="poisson", risk=sorel.Max(), penalty=sorel.Simplex(1.0))
    with np.errstate(over="ignore"):
        path = path_of(steep, np.array([0.2, 0.2, 0.6]))
    assert np.isfinite(path.gap)


def test_problems_that_are_refused():
    X, y = make_data("squared", 13, 3, seed=0)
    for penalty, why in [
        (sorel.L2(0.1), "kinks"),
        (Ball(), "package"),
        (sorel.Box(0.1, [0.0, 0.0, 0.5], [1.0, 1.0, 0.5]), "apart"),
    ]:
        with pytest.raises(UnsupportedProblemError, match=why):
            InteriorPoint().check(sorel.Problem(X, y, risk="mean", penalty=penalty))


def test_work_and_tails_have_their_limits(monkeypatch):
    problem = small("squared", sorel.ESRM(2.0), PENALTIES["box"])
    engine, penalty = problem.engine, problem.penalty
    for name, border in [("_MOST_WORK", 13 * 3**2), ("_MOST_PAIRS", 13 * 13)]:
        with monkeypatch.context() as patch:
            patch.setattr(interior, name, border)
            assert can_step_inside(engine, penalty)
            patch.setattr(interior, name, border - 1)
            assert not can_step_inside(engine, penalty)


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_tails_are_no_more_than_expected(risk):
    for part in (risk, sorel.Mixture([risk, sorel.Max()], [0.5, 0.5])):
        tails = Tails.of(part, np.full(9, 1 / 9), np.arange(9.0))
        assert len(tails.shares) <= most_tails(part, 9) <= 10
        assert most_tails(sorel.Deviation(part), 9) == most_tails(part, 9)


def test_its_place_among_the_methods():
    problem = small("squared", sorel.CVaR(0.3), PENALTIES["box"])
    assert Auto()._order(problem)[:3] == [Newton, InteriorPoint, Continuation]
    exponentials = sorel.Problem(
        [[1.0], [2.0]], [1.0, 3.0], loss="poisson", risk="max", penalty=sorel.Simplex(0.1)
    )
    assert Auto()._order(exponentials)[:3] == [Newton, Continuation, InteriorPoint]
