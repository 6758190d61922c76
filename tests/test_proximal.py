"""Quadratic models under penalties known by their proximal maps, against the active-set method."""

from __future__ import annotations

import math

import numpy as np
import pytest
from own_penalties import Ball, GroupLasso, Pseudohuber

import sorel
from sorel import proximal
from sorel.penalties import Box, ElasticNet, NonNegative, Penalty, Simplex
from sorel.proximal import ProximalModel
from sorel.quadratic import minimize_quadratic


class Shown(Penalty):
    """A penalty of the package, of which only the three formulas are shown."""

    def __init__(self, hidden):
        self._hidden = hidden
        self.l2, self.compact, self.separable = hidden.l2, hidden.compact, hidden.separable

    def value(self, w):
        return self._hidden.value(w)

    def prox(self, v, step):
        return self._hidden.prox(v, step)

    def conjugate(self, v):
        return self._hidden.conjugate(v)


def model(kind, p, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((max(2, p // 3) if kind == "deficient" else 2 * p, p))
    if kind == "correlated":
        X = 0.1 * np.cumsum(X, axis=1) + rng.standard_normal((len(X), 1))
    if kind == "scaled":
        X = X * 10.0 ** rng.uniform(-3.0, 3.0, p)
    H = X.T @ X / len(X)
    if kind == "stiff":
        B = rng.standard_normal((p // 3, p))
        H = H + 1e7 * B.T @ B
    return H, 2.0 * X.T @ rng.standard_normal(len(X)) / len(X), rng.standard_normal(p)


def objective(u, H, gradient, w, penalty, shape):
    step = u - w
    n = int(np.prod(shape))
    return gradient @ step + 0.5 * step @ H @ step + penalty.value(u[:n].reshape(shape))


HIDDEN = [
    ElasticNet(1e-3, 0.2),
    NonNegative(1e-3),
    Box(1e-3, -0.3, 0.2),
    Box(0.0, -0.3, 0.2),
    Simplex(1e-3),
    Simplex(0.0),
]


@pytest.mark.parametrize("kind", ["plain", "deficient", "correlated", "scaled", "stiff"])
@pytest.mark.parametrize("hidden", HIDDEN, ids=repr)
def test_minimisers_agree_with_the_active_set_method(hidden, kind):
    for p, intercept in ((6, 0), (31, 1)):
        H, gradient, w = model(kind, p)
        n = p - intercept
        expected, _ = minimize_quadratic(H, gradient, w, hidden, n)
        u, _ = minimize_quadratic(H, gradient, w, Shown(hidden), n)
        assert hidden.value(u[:n]) < np.inf
        best = objective(expected, H, gradient, w, hidden, (n,))
        start = objective(np.r_[hidden.project(w[:n]), w[n:]], H, gradient, w, hidden, (n,))
        assert objective(u, H, gradient, w, hidden, (n,)) <= best + 1e-5 * (start - best)


def test_typical_curvature_of_a_few_stiff_directions(monkeypatch):
    """They show in all coordinates; where columns are many, or all are alike, these must do."""
    H, gradient, w = model("stiff", 12)
    stiff = ProximalModel(H, gradient, w, Shown(HIDDEN[0]), (12,))
    assert np.median(np.diag(H)) > 1e6
    assert stiff._typical_curvature() == pytest.approx(np.median(np.linalg.eigvalsh(H)))
    assert stiff._typical_curvature() < 10.0
    monkeypatch.setattr(proximal, "_FEW_DIRECTIONS", 11)
    assert stiff._typical_curvature() == np.median(np.diag(H))
    stiff._H = np.zeros((12, 12))
    assert stiff._typical_curvature() == 0.0
    monkeypatch.undo()
    H, gradient, w = model("plain", 12)
    plain = ProximalModel(H, gradient, w, Shown(HIDDEN[0]), (12,))
    assert plain._typical_curvature() == np.median(np.diag(H))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("make", ["group", "smooth", "ball"])
def test_optimal_by_a_proximal_step(make, outputs):
    """A proximal gradient step leaves u where it is, far nearer than it has come from w."""
    d = 8
    penalty = {
        "group": GroupLasso(0.01, 0.3, np.arange(d) // 2),
        "smooth": Pseudohuber(0.01),
        "ball": Ball(),
    }[make]
    H, gradient, w = model("plain", (d + 1) * outputs, seed=outputs)
    n = d * outputs
    shape = (d,) if outputs == 1 else (d, outputs)
    u, info = minimize_quadratic(H, gradient, w, penalty, n, outputs)
    slope = gradient + H @ (u - w)
    moved = penalty.prox((u[:n] - slope[:n]).reshape(shape), 1.0).ravel()
    np.testing.assert_allclose(moved, u[:n], atol=1e-4 * np.abs(u - w).max())
    np.testing.assert_allclose(slope[n:], 0.0, atol=1e-12)
    assert info.shift == 0.0


def test_no_curvature_at_all():
    penalty, w = GroupLasso(0.5, 1.0, [0, 0, 1]), np.array([1.0, 2.0, 3.0, 4.0])
    gradient = np.array([-3.0, -4.0, 0.5, 0.0])
    u, info = minimize_quadratic(np.zeros((4, 4)), gradient, w, penalty, 3)
    np.testing.assert_allclose(u, [4.8, 6.4, 0.0, 4.0], atol=1e-2)
    assert info.shift == 1.0  # the intercept was lent curvature
    at_corner, _ = minimize_quadratic(np.zeros((3, 3)), gradient[:3], w[:3], Shown(Simplex(0.0)), 3)
    np.testing.assert_allclose(at_corner, [0.0, 1.0, 0.0], atol=1e-12)


def test_a_step_from_the_minimiser_stays_there():
    H, gradient, w = model("plain", 12)
    penalty = GroupLasso(0.01, 0.3, np.arange(12) // 3)
    first = ProximalModel(H, gradient, w, penalty, (12,)).minimize()
    again = ProximalModel(H, gradient + H @ (first - w), first, penalty, (12,))
    second = again.minimize()
    third = ProximalModel(H, gradient + H @ (second - w), second, penalty, (12,)).minimize()
    steps = [np.abs(step).max() for step in (first - w, second - first, third - second)]
    assert steps[1] <= 1e-3 * steps[0]
    assert steps[2] <= 1e-3 * steps[1]


def test_one_parameter():
    """u = soft(w - gradient / H) in one dimension, whatever the signs."""
    for gradient in (-3.0, -0.1, 0.1, 3.0):
        penalty = GroupLasso(0.5, 1.0, [0])
        u = ProximalModel(np.eye(1), np.array([gradient]), np.ones(1), penalty, (1,)).minimize()
        free = 1.0 - gradient
        expected = np.sign(free) * max(abs(free) - 1.0, 0.0) / 1.5
        np.testing.assert_allclose(u, expected, atol=1e-3)


def test_refuses_what_is_not_finite():
    H, gradient, w = model("plain", 4)
    gradient[1] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        minimize_quadratic(H, gradient, w, GroupLasso(0.1, 0.1, [0, 0, 1, 1]), 4)


def make_model(penalty=None, size=6, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(2 * size, size))
    penalty = sorel.ElasticNet(0.1, 0.3) if penalty is None else penalty
    H, gradient, w = A.T @ A / size, rng.normal(size=size), 0.5 * rng.normal(size=size)
    return ProximalModel(H, gradient, w, penalty, (size,)), H, gradient, w


def test_the_model_and_its_gradient():
    model, H, gradient, w = make_model()
    x = np.random.default_rng(1).normal(size=6)
    np.testing.assert_allclose(model._gradient(x), gradient + H @ (x - w))
    value = gradient @ (x - w) + 0.5 * (x - w) @ H @ (x - w) + model._penalty.value(x)
    assert model._value(x) == pytest.approx(value)
    assert model._start == pytest.approx(model._penalty.value(w))


def test_accelerated_steps(monkeypatch):
    """Against the method of Beck and Teboulle, with restarts where a step turns back."""
    model, H, gradient, w = make_model(seed=2)
    looks = []
    monkeypatch.setattr(ProximalModel, "_solved", lambda *arguments: looks.append(arguments))
    step, start = 1.0 / model._largest, np.random.default_rng(3).normal(size=6)
    u = y = start
    t, restarts = 1.0, 0
    for k in range(1, 61):
        z = y - step * (gradient + H @ (y - w))
        new = model._penalty.prox(z, step)
        if (y - new) @ (new - u) > 0.0:
            y, t, restarts = new, 1.0, restarts + 1
        else:
            grown = (1.0 + math.sqrt(1.0 + 4.0 * t**2)) / 2.0
            y, t = new + (t - 1.0) / grown * (new - u), grown
        u = new
        if k in (7, 25, 60):
            found, solved = model._accelerate(start, k)
            assert not solved
            np.testing.assert_allclose(found, u, rtol=1e-9, atol=1e-12)
    assert restarts > 0
    # At 25 steps of the second and third run: with a subgradient at the point reached.
    assert len(looks) == 1 + 2
    _, point, subgradient = looks[0]
    np.testing.assert_allclose(
        model._penalty.prox(point + step * subgradient, step), point, atol=1e-12
    )


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_when_a_point_is_good_enough(l2):
    """By rounding errors of what cancels there, or by what is left to gain under an l2."""
    penalty = sorel.ElasticNet(l2, 0.3) if l2 > 0.0 else sorel.Box(0.0, -9.0, 9.0)
    model, _, gradient, _ = make_model(penalty)
    u = np.random.default_rng(4).normal(size=6)
    slope = model._gradient(u)
    away = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    sizes = [np.linalg.norm(part) for part in (gradient, slope, slope, model._largest * u)]
    for share, good in ((0.9, True), (1.1, False)):
        residual = share * proximal._TOLERANCE * sum(sizes)
        # Too small an error to be seen in numbers of the size of the slope: they are set apart.
        model._gradient = lambda x, r=residual: r * away
        model._slope = np.full(6, (sum(sizes) - model._largest * np.linalg.norm(u)) / math.sqrt(6))
        model._start = model._value(u)
        assert model._solved(u, np.zeros(6)) is good
        assert model.kkt == pytest.approx(share * proximal._TOLERANCE, rel=1e-3)
    model, *_ = make_model(penalty)
    for share, good in ((0.99, True), (1.01, False)):
        gained = 3.0
        model._start = model._value(u) + gained
        residual = math.sqrt(share * 2.0 * l2 * proximal._FORCING * gained) or 1e-3
        model._gradient = lambda x, r=residual: r * away
        assert model._solved(u, np.zeros(6)) is (good and l2 > 0.0)


def test_a_search_ends_where_the_slope_is_small():
    for seed, length in enumerate((0.1, 1.0, 3.0, 30.0)):
        model, *_ = make_model(seed=seed)
        rng = np.random.default_rng(seed)
        x, multiplier, step = rng.normal(size=6), rng.normal(size=6), 0.2
        gradient = model._split(x, multiplier, step)[2]
        direction = -length * np.linalg.solve(model._H + np.eye(6), gradient)
        slope = gradient @ direction
        new, z, u, there = model._search(x, direction, slope, multiplier, step)
        np.testing.assert_allclose(z, new + step * multiplier)
        np.testing.assert_allclose(u, model._penalty.prox(z, step))
        np.testing.assert_allclose(there, model._gradient(new) + (z - u) / step)
        t = (new - x)[0] / direction[0]
        assert 0.0 < t <= 1.0 + 1e-12
        here = there @ direction
        assert abs(here) <= -0.5 * slope or (here < 0.0 and t == pytest.approx(1.0))
        # A full step that is good enough is taken.
        full = model._split(x + direction, multiplier, step)[2] @ direction
        if full <= -0.5 * slope:
            assert t == pytest.approx(1.0)


def test_newton_steps_end_when_the_multiplier_can_move(monkeypatch):
    """And their differences are shorter after a step that did not halve the gradient."""
    model, *_ = make_model(seed=5)
    rng = np.random.default_rng(5)
    x, multiplier, step = rng.normal(size=6), rng.normal(size=6), 0.2
    lengths, own = [], ProximalModel._newton_matrix

    def matrix(self, z, step, relative):
        lengths.append(relative)
        return own(self, z, step, relative)

    monkeypatch.setattr(ProximalModel, "_newton_matrix", matrix)
    x, z, u = model._descend(x, multiplier, step, 40)
    gradient = model._gradient(x) + (z - u) / step
    assert np.linalg.norm(gradient) <= 0.1 * np.linalg.norm(x - u) / step * (1 + 1e-9) + 1e-12
    assert model.n_iter == len(lengths)
    assert set(lengths) == {proximal._DIFFERENCE}
    # A search that gets nowhere: shorter and shorter, down to a limit.
    lengths.clear()
    start = model._split(np.ones(6), multiplier, step)
    monkeypatch.setattr(ProximalModel, "_search", lambda self, x, *rest: (x, *start))
    before = model.n_iter
    model._descend(np.ones(6), multiplier, step, before + 8)
    assert model.n_iter == before + 8
    assert lengths == pytest.approx([1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-9, 1e-9, 1e-9])


def test_steps_of_the_multipliers(monkeypatch):
    """From the inverse of the typical curvature, each a tenth, down to a share of the least."""
    model, H, *_ = make_model(seed=6)
    asked, solved = [], []

    def descend(self, x, multiplier, step, budget):
        asked.append((multiplier, step, budget))
        return x + 1.0, x + 3.0, x + 1.0

    monkeypatch.setattr(ProximalModel, "_descend", descend)
    monkeypatch.setattr(ProximalModel, "_solved", lambda self, u, m: solved.append(m))
    x = np.ones(6)
    model.n_iter = 7
    u, good = model._multipliers(x)
    assert not good
    np.testing.assert_array_equal(u, x + proximal._MAX_MULTIPLIERS)
    steps = [step for _, step, _ in asked]
    assert len(steps) == proximal._MAX_MULTIPLIERS
    first = 1.0 / np.median(np.diag(H))
    shortest = 0.01 / model._largest
    assert steps == pytest.approx([max(first * 0.1**k, shortest) for k in range(len(steps))])
    assert {budget for *_, budget in asked} == {7 + proximal._MAX_NEWTON}
    np.testing.assert_allclose(asked[0][0], -model._gradient(x))
    np.testing.assert_allclose(asked[1][0], 2.0 / steps[0])
    np.testing.assert_allclose(solved[0], 2.0 / steps[0])
    asked.clear()
    monkeypatch.setattr(ProximalModel, "_solved", lambda self, u, m: len(asked) == 3)
    assert model._multipliers(x)[1]
    assert len(asked) == 3
    # Curvature that is all but none, and a budget that is spent.
    model._H = np.zeros((6, 6))
    asked.clear()

    def spend(self, x, multiplier, step, budget):
        self.n_iter = budget
        return descend(self, x, multiplier, step, budget)

    monkeypatch.setattr(ProximalModel, "_descend", spend)
    monkeypatch.setattr(ProximalModel, "_solved", lambda self, u, m: False)
    assert not model._multipliers(x)[1]
    assert [step for _, step, _ in asked] == pytest.approx([1.0 / (2.0**-52 * model._largest)])


@pytest.mark.parametrize(("separable", "size"), [(True, 6), (True, 600), (False, 60)])
def test_rounds_of_a_model(monkeypatch, separable, size):
    """Accelerated steps, more of them in each round, and multipliers from the best point."""
    penalty = sorel.ElasticNet(0.1, 0.3) if separable else sorel.Simplex(0.1)
    H, w = np.eye(size), np.full(size, 1.0 / size)
    model = ProximalModel(H, np.ones(size), w, penalty, (size,))
    rounds, turns, values = [], [], iter([9.0, 8.0, 7.5, 8.5, 7.0, 7.2, 6.9, 6.8, 6.7, 6.75])

    def accelerate(self, u, steps):
        rounds.append((u, steps, self._largest))
        return np.full(size, 100.0 + len(rounds)), False

    def multipliers(self, u):
        turns.append(u)
        return np.full(size, 200.0 + len(turns)), False

    monkeypatch.setattr(ProximalModel, "_accelerate", accelerate)
    monkeypatch.setattr(ProximalModel, "_multipliers", multipliers)
    monkeypatch.setattr(ProximalModel, "_value", lambda self, x: next(values))
    found = model.minimize()
    share = proximal._STEPS_SEPARABLE if separable else proximal._STEPS
    first = max(int(share * size), proximal._LEAST_STEPS)
    steps = [first]
    for _ in range(4):
        steps.append(min(4 * steps[-1], proximal._MOST_STEPS))
    assert [count for _, count, _ in rounds] == steps
    # Values: 9 at first; round 1: 8 and 7.5; round 2: 8.5, which climbs; round 3: 7 and 7.2;
    # round 4: 6.9 and 6.8; round 5: 6.7 and 6.75.
    assert [round(u[0]) for u, *_ in rounds[1:]] == [201, 201, 103, 203]
    assert [round(u[0]) for u in turns] == [101, 103, 104, 105]
    sizes = [largest / rounds[0][2] for *_, largest in rounds]
    assert sizes == pytest.approx([1, 1, 2, 2, 2])
    assert round(found[0]) == 105


def test_the_first_point_is_that_of_a_proximal_gradient_step(monkeypatch):
    rng = np.random.default_rng(8)
    M = rng.standard_normal((9, 4))
    w, gradient, penalty = rng.standard_normal(4), rng.standard_normal(4), sorel.NonNegative(0.2)
    model = ProximalModel(M.T @ M, gradient, w, penalty, (4,))
    monkeypatch.setattr(model, "_accelerate", lambda u, steps: (u, True))
    step = 1.0 / model._largest
    np.testing.assert_allclose(model.minimize(), penalty.prox(w - step * gradient, step))


def test_newton_steps_end_with_gradients_of_rounding(monkeypatch):
    w, gradient = np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.0, 4.0])
    model = ProximalModel(np.diag([2.0, 3.0, 4.0]), gradient, w, sorel.NonNegative(0.2), (3,))
    x, z, step = np.array([4.0, 2.0, 0.5]), np.array([0.0, 0.6, 0.8]), 0.125
    # |slope| = 5, |x - w| = 5 and |z| = 1.
    rounding = 4.0 * 2.0**-52 * (5.0 + 5.0 * model._largest + 1.0 / step)
    for share, steps in ((0.99, 0), (1.01, 1)):
        split = (z, x, np.array([share * rounding, 0.0, 0.0]))
        monkeypatch.setattr(model, "_split", lambda *arguments, split=split: split)
        monkeypatch.setattr(model, "_search", lambda *arguments: (x, z, x, np.zeros(3)))
        before = model.n_iter
        model._descend(x, np.zeros(3), step, before + 9)
        assert model.n_iter - before == steps
    # Or where it is a tenth of what moves the multiplier, |x - u| / step.
    for share, steps in ((0.99, 0), (1.01, 1)):
        split = (z, x - [2.0, 0.0, 0.0], np.array([share * 0.1 * 2.0 / step, 0.0, 0.0]))
        monkeypatch.setattr(model, "_split", lambda *arguments, split=split: split)
        before = model.n_iter
        model._descend(x, np.zeros(3), step, before + 9)
        assert model.n_iter - before == steps


@pytest.mark.parametrize("slope", [-0.01, -100.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_search_ends_at_half_the_slope_in_any_units(monkeypatch, slope, sign):
    model = ProximalModel(np.eye(1), np.ones(1), np.zeros(1), sorel.NonNegative(0.2), (1,))
    # Above half of the slope on the far side, above on the near side, below.
    seen = [-0.51 * slope, sign * 0.51 * slope, sign * 0.49 * slope]
    trials = []

    def split(new, multiplier, step):
        trials.append(float(new[0]))
        return new, new, np.array([seen[len(trials) - 1]])

    monkeypatch.setattr(model, "_split", split)
    found = model._search(np.zeros(1), np.ones(1), slope, np.zeros(1), 1.0)
    assert len(trials) == 3
    assert found[0][0] == trials[-1]
    # By the secant: the slopes at 0 and 1 are -1 and 0.51 of the first.
    assert trials[:2] == pytest.approx([1.0, 1.0 / 1.51], rel=1e-12)
    low = (0.0, 1.0 / 1.51) if sign < 0.0 else (1.0 / 1.51, 1.0)
    share = 1.0 / 1.51 if sign < 0.0 else 0.5
    assert trials[2] == pytest.approx(low[0] + share * (low[1] - low[0]), rel=1e-12)


def test_a_matrix_that_is_not_quite_definite_is_shifted():
    rng = np.random.default_rng(9)
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    A, b = turn @ np.diag([3.0, 1.0, -1e-10]) @ turn.T, rng.standard_normal(3)
    largest = np.diag(A).max()
    shifts = 4.0 * 2.0**-52 * 8.0 ** np.arange(20)
    shift = shifts[np.argmax(shifts * largest > 1e-10)]
    expected = np.linalg.solve(A + shift * largest * np.eye(3), b)
    np.testing.assert_allclose(proximal._solve(A, b), expected, rtol=1e-3)


@pytest.mark.parametrize("gradient", [[0.0, 3.0], [0.0, 0.0], [-2.0, 1.0], [0.0, 1e12]])
def test_the_largest_curvature_is_estimated_from_above(gradient):
    found = proximal._largest_curvature(np.diag([4.0, 1.0]), np.array(gradient))
    assert found == pytest.approx(1.1 * 4.0, rel=1e-4)
    assert proximal._largest_curvature(np.zeros((2, 2)), np.array(gradient)) == 0.0


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_differences_are_as_long_as_what_they_are_taken_of(size):
    model = ProximalModel(np.eye(2), np.ones(2), np.zeros(2), sorel.NonNegative(1e-9), (2,))
    # The derivative of the proximal map is 1 above 0 and 0 below.
    found = model._newton_matrix(size * np.array([1.0, -1.0]), 0.5, 1e-5)
    np.testing.assert_allclose(found, np.diag([1.0, 3.0]), rtol=1e-6)
    assert np.isfinite(model._newton_matrix(np.zeros(2), 0.5, 1e-5)).all()
