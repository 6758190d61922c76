"""Interior-point steps: their equations, where they lead, and problems that need them."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

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
from sorel.solvers import interior as solver_module
from sorel.solvers.auto import Auto
from sorel.solvers.base import Run
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


KINDS = {**PENALTIES, "sparse": sorel.NonNegative(0.05, 0.1)}


@pytest.mark.parametrize("penalty", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_a_direction_solves_the_linear_equations(loss, penalty):
    """Products change as asked for, and gradient, shares and sums come right, to first order."""
    risk = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.3), sorel.Max()], [0.2, 0.5, 0.3])
    problem = small(loss, risk, penalty, fit_intercept=True)
    path = path_of(problem)
    for _ in range(2):
        path.step()
    rng = np.random.default_rng(1)
    # Weights that do not add up yet.
    path._multipliers[0] *= rng.uniform(0.8, 1.1, path._multipliers[0].shape)
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


@pytest.mark.parametrize("penalty", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_the_model_is_the_problem_in_other_units(loss, penalty):
    X, y = make_data(loss, 13, 3, seed=3)
    X = X * [1e-3, 1.0, 1e4]
    weight = np.r_[0.0, np.linspace(1.0, 2.0, 12)]
    problem = sorel.Problem(
        X, y, loss=loss, penalty=penalty, fit_intercept=True, sample_weight=weight
    )
    model = InteriorModel.of(problem.engine, penalty, np.zeros(13))
    np.testing.assert_allclose(model.scale, [*np.sqrt(np.mean(X[1:] ** 2, axis=0)), 1.0])
    np.testing.assert_array_equal(model.used, np.arange(1, 13))
    rng = np.random.default_rng(0)
    w = rng.uniform(0.02, 0.1, problem.engine.shape)
    w[:3] /= w[:3].sum(axis=0)
    w[:3] = penalty.project(w[:3])
    u = model.scaled(w)
    np.testing.assert_allclose(model.unscaled(u, w.shape), w)
    np.testing.assert_allclose(model.losses(model.margins(u)), problem.losses(w)[1:])
    value = u @ (0.5 * model.l2 * u + model.linear) + model.l1 @ np.abs(u)
    assert value == pytest.approx(problem.penalty_value(w), rel=1e-12)
    kernel, columns = penalty.kernel(3), model.scale[:3]
    lower, upper = model.lower.reshape(4, -1), model.upper.reshape(4, -1)
    for k in range(problem.engine.n_outputs):
        np.testing.assert_allclose(lower[:3, k] / columns, kernel.lower)
        if model.sums is None:
            np.testing.assert_allclose(upper[:3, k] / columns, kernel.upper)
    assert np.isneginf(lower[3]).all()
    assert np.isposinf(upper[3]).all()
    if model.sums is not None:
        assert np.isposinf(upper).all()
        np.testing.assert_allclose(model.sums @ u, 1.0)
        np.testing.assert_allclose(model.sums @ model.scaled(w + 1.0), 4.0)


def test_a_column_of_zeros_has_no_scale():
    X = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk="max", penalty=sorel.ElasticNet(0.1, 0.2))
    model = InteriorModel.of(problem.engine, problem.penalty, np.zeros(3))
    np.testing.assert_allclose(model.scale, [np.sqrt(14.0 / 3.0), 1.0])


def test_rises_of_rounding_make_no_tails():
    """A spectrum that is flat but for the last bits has no more tails than steps."""
    flat = sorel.CustomSpectrum([1.0, 1.0 + 1e-15, 1.0 + 2e-15, 2e3, 2e3 * (1.0 + 2e-15)])
    tails = Tails.of(flat, np.full(5, 0.2), np.zeros(5))
    assert tails.levels == pytest.approx([0.4], rel=1e-12)
    faint = sorel.CustomSpectrum([0.0, 1e-9, 1.0])
    assert len(Tails.of(faint, np.full(3, 1 / 3), np.zeros(3)).levels) == 2


@pytest.mark.parametrize(
    ("risk", "penalty", "blurred"),
    [
        (sorel.Mean(), sorel.L2(0.1), True),
        (sorel.CVaR(0.3), sorel.L2(0.1), False),
        (sorel.Max(), sorel.L2(0.1), False),
        (sorel.Mean(), sorel.NonNegative(0.1), False),
        (sorel.Mean(), sorel.Box(0.1, -np.inf, 1.0), False),
        (sorel.Mean(), sorel.ElasticNet(0.1, 0.1), False),
    ],
)
@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_hinges_are_blurred_where_there_are_no_other_kinks(loss, risk, penalty, blurred):
    problem = small(loss, risk, penalty)
    path = path_of(problem, np.zeros(3))
    if blurred and loss == "squared_hinge":
        # All losses are 1 at 0.
        assert isinstance(path.model.loss, BlurredHinge)
        assert path.model.loss.blur == path._blur == path.gap == 1.0
    else:
        assert path.model.loss is problem.loss
        assert path._blur == 0.0
    before = path._blur
    path._length = 0.5
    path._sharpen()
    assert path._blur == 0.2 * before
    path._length = 0.49
    path._sharpen()
    assert path._blur == 0.2 * before


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_products_of_slacks_and_multipliers_begin_alike(loss, penalty):
    risk = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.3), sorel.Max()], [0.2, 0.5, 0.3])
    weight = np.linspace(1.0, 2.0, 13)
    problem = small(loss, risk, penalty, sample_weight=weight, fit_intercept=True)
    path = path_of(problem)
    model = path.model
    omega, shares, losses = weight / weight.sum(), [0.5, 0.3], model.losses(path._margins)
    np.testing.assert_allclose(path._margins, model.margins(path.w))
    product = max(np.mean(np.abs(losses)), np.ptp(losses)) / 13
    room, beyond, below, above, left, right = path._slacks
    lam, rest, low, high, first, second = path._multipliers
    np.testing.assert_allclose(path._fixed, 0.2 * omega)
    np.testing.assert_allclose(path.weights, lam.sum(axis=0) + 0.2 * omega)
    np.testing.assert_allclose(path._limits, [0.5 / 0.3 * omega])
    np.testing.assert_allclose(lam, [0.5 * omega, np.full(13, 0.3 / 13)])
    np.testing.assert_allclose(lam[:1] + rest, path._limits)
    np.testing.assert_allclose(beyond * rest, product)
    # The rows of each tail: l = t + s - room, and the least room is worth its share of products.
    np.testing.assert_allclose(room[0], path._t[0] + beyond[0] - losses)
    np.testing.assert_allclose(room[1], path._t[1] - losses)
    np.testing.assert_allclose(room.min(axis=1) * shares, 13 * product)
    np.testing.assert_allclose(below, (path.w - model.lower)[path._low])
    np.testing.assert_allclose(above, (model.upper - path.w)[path._high])
    np.testing.assert_allclose(low * below, product)
    np.testing.assert_allclose(high * above, product)
    # |w| <= v, and the multipliers of both sides add up to l1.
    np.testing.assert_allclose(first + second, model.l1[path._kinked])
    np.testing.assert_allclose(right - left, 2.0 * path.w[path._kinked], atol=1e-15)
    np.testing.assert_allclose(np.minimum(left, right) * first, product)
    total = sum(np.sum(x * y) for x, y in path._pairs())
    assert path.gap == pytest.approx(total, rel=1e-13)
    assert path._count == 13 * 3 + len(path._low) + len(path._high) + 2 * len(path._kinked)
    assert path.length == 1.0
    for values in (*path._slacks, *path._multipliers):
        assert (values > 0.0).all()


def test_losses_that_are_all_zero_have_products_all_the_same():
    problem = sorel.Problem([[1.0], [2.0]], [0.0, 0.0], risk="max", penalty=sorel.L2(0.1))
    path = path_of(problem, np.zeros(1))
    assert 0.0 < path.gap < 1e-290


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        # Within a tenth of a box from its sides, or within reach of a side that has no other.
        ([-1.0, -3.0, 0.5], [-0.6, 2.0, 0.5]),
        ([3.0, 9.0, 2.0], [2.6, 9.0, 2.0]),
        ([1.0, 2.5, 7.0], [1.0, 2.5, 5.0]),
    ],
)
def test_a_start_is_moved_inside_its_bounds(start, expected):
    X, y = np.eye(3), np.zeros(3)
    problem = sorel.Problem(
        np.vstack([X, -X, X]) * np.sqrt(3.0),
        np.tile(y, 3),
        penalty=sorel.Box(0.1, [-1.0, -1.0, -np.inf], [3.0, np.inf, 8.0]),
        risk="max",
    )
    path = path_of(problem, np.zeros(3))
    np.testing.assert_allclose(path.model.scale, 1.0)
    np.testing.assert_allclose(path._inside(np.array(start), 3.0), expected)
    near = path._inside(np.array(start), 1e-3)
    assert near[0] == pytest.approx(np.clip(start[0], -0.999, 2.999), rel=1e-12)


def test_reach_is_a_move_that_changes_losses_by_their_size(monkeypatch):
    seen = []
    inside = InteriorPath._inside
    monkeypatch.setattr(
        InteriorPath, "_inside", lambda self, w, reach: seen.append(reach) or inside(self, w, reach)
    )
    X = np.array([[1.0], [2.0], [4.0]])
    for y, loss, expected in [
        ([3.0, 0.0, -1.0], "squared", 0.5 * (9.0 + 1.0) / (3.0 + 1.0)),
        ([0.0, 0.0, 0.0], "squared", 1.0),
        ([1.0, -1.0, 1.0], "logistic", np.log(2.0) / 0.5),
    ]:
        penalty = sorel.NonNegative(0.1)
        problem = sorel.Problem(X, y, loss=loss, penalty=penalty, risk="max")
        path_of(problem, np.zeros(1))
        # Half of the square is the loss.
        assert seen[-1] == pytest.approx(expected, rel=1e-12)
    # Losses that do not vanish, and slopes that do.
    problem = sorel.Problem(X, [2.0, 4.0, 8.0], loss="squared", penalty=penalty, risk="max")
    path = path_of(problem, np.array([2.0]))
    assert seen[-1] == 1.0
    monkeypatch.setattr(
        type(path.model), "slopes", lambda self, margins: np.zeros((len(margins), 1))
    )
    path_of(problem, np.zeros(1))
    assert seen[-1] == 1.0


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_what_a_step_aims_at(monkeypatch, loss, short):
    path = path_of(small(loss, sorel.CVaR(0.3), PENALTIES["elastic"]))
    asked, moved = [], []
    direction, move = interior._System.direction, InteriorPath._move

    def record(self, targets):
        asked.append((self, targets, direction(self, targets)))
        return asked[-1][-1]

    monkeypatch.setattr(interior._System, "direction", record)
    monkeypatch.setattr(
        InteriorPath, "_move", lambda self, *args: moved.append(args) or move(self, *args)
    )
    for number in range(6):
        if short:
            path._length = 0.099
        elif number:
            path._length = 0.1
        pairs, gap = path._pairs(), path.gap
        asked.clear()
        path.step()
        (system, before, ahead), (_, targets, step) = asked
        changes = list(zip(ahead.slacks, ahead.multipliers, strict=True))
        for (x, y), target in zip(pairs, before, strict=True):
            np.testing.assert_array_equal(target, -x * y)
        length = min(1.0, longest(pairs, ahead))
        left = sum(
            np.sum((x + length * dx) * (y + length * dy))
            for (x, y), (dx, dy) in zip(pairs, changes, strict=True)
        )
        residual = np.max(np.abs(system.gradient))
        if number == 0:
            first_gap, first_residual = gap, residual
        aim = gap * max((left / gap) ** 3, 0.3 if short else 1e-4)
        aim = max(aim, min(gap, 1e-3 * first_gap * residual / first_residual))
        for (x, y), (dx, dy), target in zip(pairs, changes, targets, strict=True):
            expected = aim / (13 * 2 + 6) - x * y - (0.0 if short else dx * dy)
            np.testing.assert_allclose(target, expected, rtol=1e-10, atol=1e-12 * aim)
        assert moved[-1][0] is step
        assert moved[-1][1] == pytest.approx(min(1.0, 0.995 * longest(pairs, step)), rel=1e-12)
        assert moved[-1][2] == pytest.approx(gap, rel=1e-12)


def longest(pairs, direction):
    """How far slacks and multipliers stay positive."""
    changes = zip(pairs, direction.slacks, direction.multipliers, strict=True)
    with np.errstate(divide="ignore"):
        return min(
            np.min(np.where(change < 0.0, -value / change, np.inf), initial=np.inf)
            for (x, y), dx, dy in changes
            for value, change in ((x, dx), (y, dy))
        )


def still(path):
    """A direction in which nothing moves."""
    return interior._Direction(
        *(np.zeros_like(value) for value in (path.w, path._t, path._v, path._sums)),
        [np.zeros_like(x) for x in path._slacks],
        [np.zeros_like(y) for y in path._multipliers],
    )


def test_how_far_everything_stays_positive():
    path = path_of(small("squared", sorel.CVaR(0.3), PENALTIES["box"]))
    step = still(path)
    assert path._longest(step) == np.inf
    step.slacks[2][1] = -4.0 * path._slacks[2][1]
    step.slacks[3][:] = path._slacks[3]
    assert path._longest(step) == pytest.approx(0.25, rel=1e-15)
    step.multipliers[1][0, 3] = -5.0 * path._multipliers[1][0, 3]
    assert path._longest(step) == pytest.approx(0.2, rel=1e-15)


@pytest.mark.parametrize("cuts", [0, 1, 3])
@pytest.mark.parametrize("penalty", ["simplex", "elastic"])
def test_what_bent_losses_take_is_given_back_up_to_a_cost(penalty, cuts):
    """Slacks were promised to stay; where losses rise instead, tails and slacks are lifted."""
    risk = sorel.Mixture([sorel.CVaR(0.3), sorel.Max()], [0.6, 0.4])
    path = path_of(small("squared", risk, PENALTIES[penalty]))
    rng = np.random.default_rng(5)
    pieces = still(path)
    step = pieces._replace(
        w=60.0 * rng.standard_normal(3),
        t=0.1 * rng.standard_normal(2),
        v=0.1 * rng.random(len(path._v)),
        sums=0.1 * rng.random(len(path._sums)),
        slacks=[0.2 * x * rng.uniform(-1, 1, x.shape) for x in path._slacks],
        multipliers=[0.2 * y * rng.uniform(-1, 1, y.shape) for y in path._multipliers],
    )
    model, w, t, v, sums = path.model, path.w, path._t, path._v, path._sums
    slacks, multipliers = path._slacks, path._multipliers

    def trial(length):
        losses = model.losses(model.margins(w + length * step.w))
        promised = slacks[0] + length * step.slacks[0]
        beyond = slacks[1][0] + length * step.slacks[1][0]
        level = t + length * step.t
        missing = np.maximum(0.3 * promised[0] - (level[0] + beyond - losses), 0.0)
        lift = max(np.max(0.3 * promised[1] - (level[1] - losses)), 0.0)
        rest = multipliers[1][0] + length * step.multipliers[1][0]
        return losses, level, beyond, missing, lift, missing @ rest + 0.4 * lift

    lengths = 0.6 ** np.arange(cuts + 1)
    length = lengths[-1]
    losses, level, beyond, missing, lift, cost = trial(length)
    # Nothing shorter would have done, and the lift and the missing slack both have a part in it.
    assert cost > 0.0
    assert lift > 0.0
    assert cuts == 0 or trial(lengths[-2])[-1] > 1.01 * cost
    path._move(step, 1.0, 1.001 * cost / 0.3)
    assert path.length == pytest.approx(length, rel=1e-14)
    np.testing.assert_allclose(path.w, w + length * step.w)
    np.testing.assert_allclose(path._margins, model.margins(path.w))
    np.testing.assert_allclose(path._t, [level[0], level[1] + lift])
    np.testing.assert_allclose(path._v, v + length * step.v)
    np.testing.assert_allclose(path._sums, sums + length * step.sums)
    np.testing.assert_allclose(path._slacks[1][0], beyond + missing)
    np.testing.assert_allclose(path._slacks[0][0], level[0] + beyond + missing - losses, rtol=1e-6)
    np.testing.assert_allclose(path._slacks[0][1], level[1] + lift - losses, rtol=1e-6)
    for k in (2, 3, 4, 5):
        np.testing.assert_allclose(path._slacks[k], slacks[k] + length * step.slacks[k])
    for before, after, change in zip(multipliers, path._multipliers, step.multipliers, strict=True):
        np.testing.assert_allclose(after, before + length * change)
    assert min(values.min(initial=1.0) for values in path._slacks) > 0.0


def test_losses_that_overflow_are_no_place_to_go():
    problem = sorel.Problem(
        [[1.0], [2.0]], [1.0, 3.0], loss="poisson", risk="max", penalty=sorel.NonNegative(0.1)
    )
    path = path_of(problem, np.ones(1))
    step = still(path)._replace(w=np.array([5e3]))
    with np.errstate(over="ignore", invalid="ignore"):
        path._move(step, 1.0, np.finfo(float).max)
        # exp(709) is about the largest number there is, and one of the rows is the scaled 1.26.
        most = 0.6 * 709.8 / (5e3 * 2.0 / np.sqrt(2.5))
        assert most < path.length < most / 0.6
        with pytest.raises(np.linalg.LinAlgError, match="no step"):
            path._move(step._replace(w=np.array([np.inf])), 1.0, np.inf)


@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_the_share_of_equal_coefficients_in_a_start(loss):
    path = path_of(small(loss, sorel.CVaR(0.3), PENALTIES["simplex"], fit_intercept=True))
    model = path.model
    w = np.zeros((4, model.outputs))
    w[1], w[3] = 1.0, 0.7
    start = model.unscaled(path._blended(model.scaled(w)), w.shape)
    np.testing.assert_allclose(start[:3], 0.9 * w[:3] + 0.1 / 3.0)
    np.testing.assert_allclose(start[3], 0.7)


def test_less_of_equal_coefficients_where_they_make_losses_large():
    X, y = np.array([[3e3, 0.0], [0.0, 1.0]]), [1.0, 1.0]
    problem = sorel.Problem(X, y, loss="poisson", risk=sorel.Max(), penalty=sorel.Simplex(1.0))
    path = path_of(problem, np.array([0.0, 1.0]))
    model = path.model
    vertex = np.array([0.0, 1.0])
    size = np.mean(np.abs(problem.losses(vertex)))
    shares = np.geomspace(0.1, 1e-10, 10)
    blends = [(1.0 - share) * vertex + share * 0.5 for share in shares]
    with np.errstate(over="ignore"):
        fine = [np.mean(np.abs(problem.losses(blend))) <= 10.0 * size for blend in blends]
    assert not fine[0]
    assert any(fine)
    with np.errstate(over="ignore"):
        found = model.unscaled(path._blended(model.scaled(vertex)), (2,))
    np.testing.assert_allclose(found, blends[fine.index(True)], rtol=1e-12)


def test_a_matrix_that_has_lost_its_curvature_gets_a_ridge():
    unit = np.array([0.5, 2.0])
    for faint, ridge in [(1e-3, 1e-15), (-1e-12, 1e-11), (-1e-6, 1e-5), (-1e-2, None)]:
        scaled = np.array([[1.0, 1.0 - faint], [1.0 - faint, 1.0]])
        made = SimpleNamespace(matrix=scaled / np.outer(unit, unit), unit=unit)
        if ridge is None:
            with pytest.raises(np.linalg.LinAlgError, match="lost to rounding"):
                interior._System._factor(made)
            continue
        factor = np.tril(interior._System._factor(made)[0])
        np.testing.assert_allclose(factor @ factor.T, scaled + ridge * np.eye(2), rtol=1e-14)
    made = SimpleNamespace(unit=unit, factor=(np.linalg.cholesky(np.eye(2) + 0.5), True))
    found = interior._System._solve_once(made, np.array([1.0, 3.0]))
    matrix = (np.eye(2) + 0.5) / np.outer(unit, unit)
    np.testing.assert_allclose(matrix @ found, [1.0, 3.0])


def test_solutions_of_a_system_are_improved():
    A = np.array([[2.0, 1.0], [1.0, 3.0]])
    rough = SimpleNamespace(matrix=A, _solve_once=lambda right: 0.9 * np.linalg.solve(A, right))
    exact = np.array([1.0, -2.0])
    found = interior._System.solve(rough, A @ exact)
    np.testing.assert_allclose(exact - found, 1e-3 * exact)


def test_a_step_is_measured_in_units_of_the_diagonal():
    path = path_of(small("squared", sorel.CVaR(0.3), PENALTIES["box"]))
    system = interior._System(path)
    np.testing.assert_allclose(system.unit**2 * np.diag(system.matrix), 1.0)


def test_steps_that_overflow_are_an_error():
    path = path_of(small("squared", sorel.CVaR(0.3), PENALTIES["box"]))
    path._slacks[2][:] = 0.0
    with np.errstate(divide="ignore"), pytest.raises(np.linalg.LinAlgError, match="overflow"):
        interior._System(path)


@pytest.mark.parametrize("outputs", [1, 3])
def test_derivatives_of_the_model(outputs):
    loss = "logistic" if outputs == 1 else "multinomial"
    model = path_of(small(loss, sorel.CVaR(0.3), PENALTIES["box"], fit_intercept=True)).model
    rng = np.random.default_rng(0)
    w, weights = rng.standard_normal(4 * outputs), rng.random(13)
    jacobian = model.jacobian(model.margins(w))
    hessian = model.hessian(model.margins(w), weights)
    for k, unit in enumerate(1e-5 * np.eye(len(w))):
        ahead, behind = model.margins(w + unit), model.margins(w - unit)
        slope = (model.losses(ahead) - model.losses(behind)) / 2e-5
        np.testing.assert_allclose(jacobian[:, k], slope, rtol=1e-6, atol=1e-9)
        bend = weights @ (model.jacobian(ahead) - model.jacobian(behind)) / 2e-5
        np.testing.assert_allclose(hessian[k], bend, rtol=1e-6, atol=1e-9)


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


class Scripted:
    """A path whose steps are given: lengths, gaps, and how far w has come."""

    def __init__(self, model, start):
        self.model, self.start, self.number = model, start, 0
        self.w = start.copy()

    def step(self):
        if self.number == len(self.script):
            raise np.linalg.LinAlgError
        self.length, self.gap, self.w[0] = self.script[self.number]
        self.number += 1

    @property
    def weights(self):
        return self.model.omega


def rehearsed(monkeypatch, script, tol=1e-3, max_passes=1000.0, problem=None, w=None):
    """What the solver makes of a scripted path: run, targets of its checks, and the path."""
    made = []

    class Path(Scripted):
        def __init__(self, model, start):
            super().__init__(model, start)
            self.script = script
            made.append(self)

    monkeypatch.setattr(solver_module, "InteriorPath", Path)
    if problem is None:
        problem = sorel.Problem(
            [[1.0], [-1.0]], [1.0, -1.0], risk=sorel.Max(), penalty=sorel.L2(1.0)
        )
    problem = problem.for_run()
    run = Run(problem.start() if w is None else w, None, tol, max_passes, np.inf, 0)
    iterates, targets, reply = InteriorPoint()._inside(problem, run), [], None
    with contextlib.suppress(StopIteration):
        while True:
            iterate = iterates.send(reply)
            targets.append(iterate.refine)
            reply = problem.certify(iterate.point, iterate.dual)
    return run, targets, made[0]


def objective_at(w):
    """Of the problem above, whose losses are both (1 - w)^2 / 2."""
    return 0.5 * (1.0 - w) ** 2 + 0.5 * w**2


def test_checks_are_tried_where_the_products_are_small(monkeypatch):
    target = 1e-3 * objective_at(0.4)
    script = [(1.0, 3.01 * target, 0.4), (1.0, 2.99 * target, 0.4), (1.0, 0.1 * target, 0.4)]
    run, targets, _ = rehearsed(monkeypatch, script)
    assert targets == pytest.approx([target, target, np.inf])
    # One pass for the losses, two for the path and two for each step.
    assert run.passes == 1 + 2 + 2 * 3
    assert run.n_iter == 3
    np.testing.assert_array_equal(run.w, [0.4])
    assert run.dual is not None


@pytest.mark.parametrize(
    ("gap", "before", "now", "steps"),
    [
        # Next to nothing is left, and the objective stands still.
        (0.99e-4, 0.4, 0.4, 2),
        (1.01e-4, 0.4, 0.4, 3),
        (0.99e-4, 0.0, 0.4, 3),
        # The objective has risen.
        (0.99e-4, 0.4, 0.399, 2),
    ],
)
def test_steps_end_where_the_objective_stands_still(monkeypatch, gap, before, now, steps):
    target = 1e-3 * objective_at(now)
    script = [(1.0, 9.0, before), (1.0, gap * target, now), (1.0, 9.0, now)]
    run, _, path = rehearsed(monkeypatch, script)
    assert run.n_iter == path.number == steps


@pytest.mark.parametrize(
    ("fall", "steps"),
    [(0.99e-2, 2), (1.01e-2, 3)],
)
def test_how_still_an_objective_has_to_stand(monkeypatch, fall, steps):
    tol = 0.1
    target = tol * objective_at(0.5)
    # 0.25 + (w - 0.5)^2 is the objective.
    before = 0.5 - np.sqrt(fall * target)
    script = [(1.0, 9.0, before), (1.0, 1e-5 * target, 0.5), (1.0, 9.0, 0.5)]
    run, _, path = rehearsed(monkeypatch, script, tol=tol)
    assert run.n_iter == path.number == steps


def test_short_steps_in_a_row_are_the_last(monkeypatch):
    short, long = (0.99e-3, 9.0, 0.4), (1e-3, 9.0, 0.4)
    for script, steps in [
        ([short] * 20, 8),
        ([long] * 20, 20),
        ([short] * 7 + [long] + [short] * 20, 16),
        # The products of these fall, if slowly.
        ([(1e-3, 9.0 * 0.95**k, 0.4) for k in range(101)], 100),
    ]:
        run, targets, path = rehearsed(monkeypatch, script, tol=1e-9)
        assert run.n_iter == path.number == steps
        assert targets == [np.inf]


def test_a_spent_budget_ends_interior_point_steps(monkeypatch):
    script = [(1.0, 2e-3 * objective_at(0.4), 0.4)] * 20
    run, targets, path = rehearsed(monkeypatch, script, max_passes=8.0)
    # After three steps 9 of 8 passes are spent.
    assert path.number == 3
    assert len(targets) == 3
    np.testing.assert_array_equal(run.w, [0.4])


def test_a_start_that_overflows_is_not_taken(monkeypatch):
    X = np.array([[1e4, 1e4], [1.0, 2.0]])
    problem = sorel.Problem(
        X, [1.0, 1.0], loss="poisson", risk="max", penalty=sorel.Box(1.0, [0.1, -1.0], 1.0)
    )
    fine = np.array([0.1, -0.1])
    with np.errstate(all="ignore"):
        _, _, path = rehearsed(monkeypatch, [], problem=problem, w=fine)
        np.testing.assert_allclose(path.start, path.model.scaled(fine))
    tame = sorel.Problem(
        X / 1e4, [1.0, 1.0], loss="poisson", risk="max", penalty=sorel.Box(1.0, [0.1, -1.0], 1.0)
    )
    _, _, path = rehearsed(monkeypatch, [], problem=tame, w=fine)
    np.testing.assert_allclose(path.start, path.model.scaled(tame.start()))


@pytest.mark.parametrize(("gap", "goes_on"), [(0.49, True), (0.5, False), (np.inf, False)])
def test_newton_goes_on_from_what_is_no_failure(monkeypatch, gap, goes_on):
    problem = small("squared", sorel.CVaR(0.3), PENALTIES["box"])

    def inside(self, problem, run):
        yield "inside"
        return gap

    def newton(self, problem, run):
        yield "newton"

    monkeypatch.setattr(InteriorPoint, "_inside", inside)
    monkeypatch.setattr(Newton, "iterates", newton)
    run = Run(problem.start(), None, 1e-6, 10.0, np.inf, 0)
    found = list(InteriorPoint().iterates(problem, run))
    assert found == (["inside", "newton"] if goes_on else ["inside"])
    spent = Run(problem.start(), None, 1e-6, 10.0, np.inf, 0, passes=10.0)
    assert list(InteriorPoint().iterates(problem, spent)) == ["inside"]


def test_problems_that_are_taken():
    for loss, risk, penalty in [
        ("squared", sorel.CVaR(0.3), PENALTIES["l2"]),
        ("squared", sorel.Mean(), PENALTIES["box"]),
        ("squared_hinge", sorel.Mean(), PENALTIES["l2"]),
        ("squared_hinge", sorel.Max(), PENALTIES["elastic"]),
    ]:
        InteriorPoint().check(small(loss, risk, penalty))


def test_steps_that_no_longer_halve_the_products_are_left(monkeypatch):
    patience = solver_module._PATIENCE
    still = [(1.0, 1.0, 0.1)] * 90
    _, _, path = rehearsed(monkeypatch, still)
    assert path.number == patience + 1
    # A little more than a half is not enough, however often, and a half is.
    slow = [(1.0, 0.51 if k % 2 else 1.0, 0.1) for k in range(90)]
    assert rehearsed(monkeypatch, slow)[2].number == patience + 1
    halving = [(1.0, 0.5 ** (k // 20), 0.1) for k in range(90)]
    assert rehearsed(monkeypatch, halving)[2].number == 90
