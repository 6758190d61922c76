"""Quadratic models of Newton steps: their conditions of optimality, and what scales with them."""

import math

import numpy as np
import pytest
from own_penalties import Ball, GroupLasso, Pseudohuber

from sorel import Budget
from sorel.models import Model, minimize
from sorel.models.quadratic import minimize_quadratic, step_of_few
from sorel.penalties import L2, Box, ElasticNet, NonNegative, Penalty, Simplex

EXACT = 1e-14
NAMES = ["l2", "elastic", "nonnegative", "box", "simplex"]
by_name = pytest.mark.parametrize("name", NAMES)


def make_penalty(name: str, l2: float, l1: float = 0.1) -> Penalty:
    return {
        "l2": L2(l2), "elastic": ElasticNet(l2, l1), "nonnegative": NonNegative(l2),
        "box": Box(l2, lower=-0.3, upper=0.2), "simplex": Simplex(l2),
    }[name]  # fmt: skip


def model(seed, p, kind="plain", scale=6.0):
    """Curvature, gradient and centre of a least-squares model."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((max(2, p // 4) if kind == "deficient" else 2 * p, p))
    if kind == "correlated":
        X = 0.1 * np.cumsum(X, axis=1) + 10.0 * rng.standard_normal((len(X), 1))
    elif kind == "hilbert":
        X = 1.0 / (np.arange(2 * p)[:, None] + np.arange(p) + 1.0)
    elif kind == "scaled":
        X = X * 10.0 ** rng.uniform(-scale, scale, p)
    H = X.T @ X / len(X)
    if kind == "stiff":
        B = rng.standard_normal((p // 3, p))
        H = H + 1e7 * B.T @ B
    return H, 2.0 * X.T @ rng.standard_normal(len(X)) / len(X), rng.standard_normal(p)


def objective(u, H, gradient, w, penalty, n, outputs=1):
    step = u - w
    smooth = gradient @ step + 0.5 * step @ H @ step
    return smooth + penalty.value(u[:n].reshape(-1, outputs) if outputs > 1 else u[:n])


def kkt_violation(u, H, gradient, w, penalty, n, outputs=1):
    """Violation of optimality, each coordinate relative to the terms of its own equation.

    Written from the definition: u must be the prox of u minus the smooth gradient, coordinate by
    coordinate, for a diagonal metric; on the simplex, slopes must agree on the support.
    """
    step = u - w
    slope = gradient + H @ step
    root = np.sqrt(np.diag(H) + penalty.l2)
    size = np.abs(gradient) + root * (root @ (np.abs(step) + np.abs(u))) + 1e-300
    slope[:n] += penalty.l2 * u[:n]
    violation = np.abs(slope)
    code, _, l1, lower, upper = penalty.kernel(n // outputs)
    lower, upper = np.repeat(lower, outputs), np.repeat(upper, outputs)
    if code == 2:
        for k in range(outputs):
            own = np.arange(k, n, outputs)
            support = own[u[own] > 0.0]
            assert u[own].min() >= 0.0
            assert abs(u[own].sum() - 1.0) <= 4e-16 * len(own)
            theta = slope[support[np.argmin(size[support])]]
            violation[own] = np.maximum(theta - slope[own], 0.0)
            violation[support] = np.abs(slope[support] - theta)
            size[own] += abs(theta)
    else:
        coefficients = u[:n]
        assert np.all(coefficients >= lower)
        assert np.all(coefficients <= upper)
        right = slope[:n] + np.where(coefficients >= 0.0, l1, -l1)
        left = slope[:n] + np.where(coefficients > 0.0, l1, -l1)
        up = np.where(coefficients < upper, np.maximum(-right, 0.0), 0.0)
        down = np.where(coefficients > lower, np.maximum(left, 0.0), 0.0)
        violation[:n] = np.maximum(up, down)
        size[:n] += l1
    return float(np.max(violation / size))


BOUNDS = Box(0.1, [0.0, -0.1, -math.inf, 0.05], [0.1, 0.1, 0.0, math.inf])


@pytest.mark.parametrize("penalty", [*(make_penalty(name, 0.02) for name in NAMES), BOUNDS])
@pytest.mark.parametrize(("d", "outputs", "intercept"), [(4, 1, 1), (4, 3, 1), (4, 2, 0)])
def test_bounds_kinks_and_sums_of_several_outputs(penalty, d, outputs, intercept):
    n = d * outputs
    for seed in range(3):
        H, gradient, w = model(seed, n + intercept * outputs)
        u, info = minimize_quadratic(H, gradient, w, penalty, n, outputs)
        assert max(info.kkt, kkt_violation(u, H, gradient, w, penalty, n, outputs)) <= EXACT


@by_name
@pytest.mark.parametrize("kind", ["scaled", "deficient", "correlated", "hilbert"])
def test_every_coordinate_is_optimal_on_its_own_scale(name, kind):
    """Columns over twelve decades, fewer rows than columns, and columns that are all but equal."""
    H, gradient, w = model(9, 25, kind)
    penalty = make_penalty(name, 1e-6, l1=0.01 * np.abs(gradient).max())
    u, info = minimize_quadratic(H, gradient, w, penalty, 24)
    assert info.shift == 0.0
    assert max(info.kkt, kkt_violation(u, H, gradient, w, penalty, 24)) <= EXACT


@by_name
def test_curvature_singular_to_working_precision(name):
    """With l2 below rounding level a shift may be needed; the result must be finite and good."""
    H, gradient, w = model(4, 12, "deficient")
    penalty = make_penalty(name, 1e-20)
    u, info = minimize_quadratic(H, gradient, w, penalty, 12)
    assert info.shift < 1e-12
    start = penalty.project(w)
    assert objective(u, H, gradient, w, penalty, 12) < objective(start, H, gradient, w, penalty, 12)
    assert info.kkt < 1e-9


@by_name
@pytest.mark.parametrize("curvature", [0.0, 1e-22])
def test_nearly_flat_intercept(name, curvature):
    H, gradient, w = model(6, 5)
    H[-1] = H[:, -1] = 0.0
    H[-1, -1] = curvature
    gradient[-1] = 3e-22
    penalty = make_penalty(name, 0.1)
    u, info = minimize_quadratic(H, gradient, w, penalty, 4)
    alone, _ = minimize_quadratic(H[:4, :4], gradient[:4], w[:4], penalty, 4)
    np.testing.assert_allclose(u[:4], alone, rtol=1e-12, atol=1e-15)
    moved, shift = (-3.0, 0.0) if curvature else (0.0, 1.0)
    assert u[-1] == pytest.approx(w[-1] + moved, abs=1e-11)
    assert info.shift == shift


@pytest.mark.parametrize("penalty", [*(make_penalty(name, 0.1) for name in NAMES), Ball()])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("at", "index"), [(0, (1, 1)), (0, (1, 2)), (1, 1), (2, 1)])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf - inf
def test_refuses_what_is_not_finite(penalty, at, index, value):
    given = model(11, 4)
    given[at][index] = value
    if index == (1, 2):
        given[0][2, 1] = value
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        minimize_quadratic(*given, penalty, 4)


def test_refuses_indefinite_curvature():
    H = np.array([[1.0, 5.0], [5.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError, match="not positive semidefinite"):
        minimize_quadratic(H, np.ones(2), np.zeros(2), L2(0.1), 2)


@pytest.mark.parametrize("kind", ["plain", "scaled", "deficient"])
@pytest.mark.parametrize("name", ["elastic", "nonnegative", "box"])
def test_many_coordinates_come_to_rest_on_one_face(name, kind):
    # More free coordinates than are factorised anew each time, and most of them do not stay free.
    H, gradient, w = model(3, 201, kind, 2.0)
    penalty = make_penalty(name, 1e-3, 0.3)
    u, _ = minimize_quadratic(H, gradient, w, penalty, 200)
    assert kkt_violation(u, H, gradient, w, penalty, 200) <= EXACT
    assert 0 < np.count_nonzero((u[:200] != 0.0) & (np.abs(u[:200] + 0.05) != 0.25)) < 200


def test_step_of_few_promises_what_the_model_gives():
    rng = np.random.default_rng(0)
    for p in (1, 2, 5, 24):
        A = rng.standard_normal((p, p + 2))
        H, gradient, w = A @ A.T, rng.standard_normal(p), rng.standard_normal(p)
        n_penalized, l2 = max(1, p - 1), 0.3
        ridge = l2 * (np.arange(p) < n_penalized)
        step, descent, decrease = step_of_few(H, gradient, w, l2, n_penalized)
        expected = np.linalg.solve(H + np.diag(ridge), -gradient - ridge * w)
        np.testing.assert_allclose(step, expected, rtol=1e-9, atol=1e-12)
        gain = 0.5 * ridge @ (w**2 - (w + step) ** 2)
        assert descent == pytest.approx(gain - gradient @ step, rel=1e-9)
        assert decrease == pytest.approx(gain - gradient @ step - 0.5 * step @ H @ step, rel=1e-9)


def test_step_of_few_declines_what_it_cannot_do():
    assert step_of_few(np.eye(25), np.ones(25), np.zeros(25), 1.0, 25) is None
    assert step_of_few(np.zeros((2, 2)), np.ones(2), np.zeros(2), 0.0, 2) is None
    assert step_of_few(np.full((1, 1), np.nan), np.ones(1), np.zeros(1), 1.0, 1) is None


class Shown(Penalty):
    """A penalty of the package, of which only the three formulas are shown."""

    def __init__(self, hidden):
        self.l2, self.compact, self.separable = hidden.l2, hidden.compact, hidden.separable
        self.value, self.prox, self.conjugate = hidden.value, hidden.prox, hidden.conjugate

    def value(self, w):
        raise NotImplementedError

    prox = conjugate = value


@pytest.mark.parametrize("kind", ["plain", "deficient", "correlated", "scaled", "stiff"])
@pytest.mark.parametrize(
    "hidden",
    [*(make_penalty(name, 1e-3, 0.2) for name in NAMES[1:]), Box(0.0, -0.3, 0.2), Simplex(0.0)],
    ids=repr,
)
def test_proximal_steps_find_what_the_active_set_method_finds(hidden, kind):
    for p, n in ((6, 6), (31, 30)):
        given = *model(0, p, kind, 3.0), hidden, n
        expected, _ = minimize_quadratic(*given)
        u, info = minimize_quadratic(*given[:3], Shown(hidden), n)
        best = objective(expected, *given)
        start = objective(np.r_[hidden.project(given[2][:n]), given[2][n:]], *given)
        assert objective(u, *given) <= best + 1e-7 * (start - best)
        # Accelerated steps are enough where curvatures are of one scale.
        if hidden.l2 > 0.0 and kind != "scaled":
            assert info.n_iter <= (0 if kind == "plain" else 120)


@pytest.mark.parametrize(("unit", "size"), [(2.0**30, 1.0), (1.0, 2.0**30), (2.0**-30, 2.0**-20)])
@pytest.mark.parametrize("kind", ["plain", "correlated", "stiff"])
@pytest.mark.parametrize("show", [lambda penalty: penalty, Shown])
def test_units_of_the_model_and_of_its_coordinates_do_not_matter(show, kind, unit, size):
    H, gradient, w = model(2, 20, kind)
    given = H * unit / size**2, gradient * unit / size, w * size
    l2, l1 = 1e-3 * unit / size**2, 0.2 * unit / size
    for penalty, scaled in (
        (ElasticNet(1e-3, 0.2), ElasticNet(l2, l1)),
        (Box(1e-3, -0.3, 0.2), Box(l2, -0.3 * size, 0.2 * size)),
    ):
        u, info = minimize_quadratic(H, gradient, w, show(penalty), 20)
        found, other = minimize_quadratic(*given, show(scaled), 20)
        np.testing.assert_allclose(found, u * size, rtol=1e-9, atol=1e-12 * size)
        assert other.n_iter == info.n_iter


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    "penalty",
    [GroupLasso(0.01, 0.3, np.arange(8) // 2), Pseudohuber(0.01), Ball()],
    ids=["group", "smooth", "ball"],
)
def test_optimal_by_a_proximal_step(penalty, outputs):
    """A proximal gradient step leaves u where it is, far nearer than it has come from w."""
    H, gradient, w = model(outputs, 9 * outputs)
    n = 8 * outputs
    u, info = minimize_quadratic(H, gradient, w, penalty, n, outputs)
    slope = gradient + H @ (u - w)
    shape = (8,) if outputs == 1 else (8, outputs)
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


def random_model(seed):
    """Bounds, kinks and one or two rows; curvature may be singular, and bounds may coincide."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(3, 40))
    M = rng.standard_normal((int(rng.integers(2, 2 * p)), p))
    lower = np.where(rng.random(p) < 0.2, -1.0, 0.0)
    upper = lower + rng.uniform(0.2, 1.0, p) * (rng.random(p) < 0.9)
    rows = np.ones((1, p)) if seed % 2 else rng.uniform(0.5, 2.0, (2, p))
    start = rng.uniform(lower, upper)
    return Model(
        A=M.T @ M + 1e-6 * np.eye(p), slope=5.0 * rng.standard_normal(p), w=start.copy(),
        kink=np.clip(rng.uniform(0.0, 0.5, p), lower, upper), cost=rng.uniform(0.0, 1.0, p),
        lower=lower, upper=upper, rows=rows, sums=rows @ start,
    ), start  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_no_feasible_point_nearby_is_better(seed):
    given, start = random_model(seed)
    found = minimize(given, start)
    x = found.x

    def value(x):
        move = x - given.w
        kinks = given.cost @ np.abs(x - given.kink)
        return given.slope @ move + 0.5 * move @ given.A @ move + kinks

    assert found.kkt <= 1e-10
    assert minimize(given, x).factors == 1
    assert np.all((x >= given.lower) & (x <= given.upper))
    np.testing.assert_allclose(given.rows @ x, given.sums, rtol=1e-12, atol=1e-12)
    assert given.value(x) == pytest.approx(value(x))
    # A coordinate is pulled by the slopes to either side that lead down within its bounds.
    y = np.where(np.arange(len(x)) % 3, start, given.kink)
    slope, step = given.slope + given.A @ (y - given.w), 1e-7 * np.eye(len(x))
    right = np.array([value(y + move) - value(y) for move in step]) / 1e-7
    left = np.array([value(y) - value(y - move) for move in step]) / 1e-7
    up, down = np.minimum(right, 0.0) * (y < given.upper), np.maximum(left, 0.0) * (y > given.lower)
    np.testing.assert_allclose(given.pulls(y, slope), up + down, atol=1e-4)
    # Convexity: if no feasible direction leads down, the point is the minimiser.
    best, rng = value(x), np.random.default_rng(seed)
    null = np.linalg.svd(given.rows)[2][len(given.rows) :]
    directions = [start - x, *(null.T @ rng.standard_normal(len(null)) for _ in range(50))]
    for direction in directions:
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(direction > 0.0, given.upper - x, x - given.lower) / np.abs(direction)
        reach = float(np.nanmin(room, initial=1.0))
        if reach > 0.0:
            assert value(x + 0.5 * reach * direction) >= best - 1e-9 * max(1.0, abs(best))


@pytest.mark.parametrize("seed", range(10))
def test_a_budget_with_costs(seed):
    """Kinks inside the bounds, an intercept beside; from the minimiser nothing is left to do."""
    rng = np.random.default_rng(seed)
    d, p = 60, 61
    M = rng.standard_normal((30, p))
    H, gradient, w = M.T @ M, 4.0 * rng.standard_normal(p), rng.uniform(0.0, 0.5, p)
    cost = rng.uniform(0.0, 2.0, d) * (rng.random(d) < 0.6)
    penalty = Budget(0.3, 1.2, -0.2, rng.uniform(0.3, 0.9, d), cost, rng.uniform(0.0, 0.4, d))
    u, info = minimize_quadratic(H, gradient, w, penalty, d)
    assert u[:d].sum() == pytest.approx(1.2, abs=1e-13)
    assert info.kkt <= 1e-12
    again, _ = minimize_quadratic(H, gradient + H @ (u - w), u, penalty, d)
    np.testing.assert_allclose(again, u, atol=1e-12)


@pytest.mark.parametrize("rest", [1e-3, 1e-6, 1e-9])
def test_a_weight_that_is_nearly_zero_makes_up_the_sum(rest):
    gradient = np.array([1.0, 3.0, 2.0, 1.1])
    penalty = Budget(0.0, upper=[1.0 - rest, 1.0, 1.0, 1.0])
    u, _ = minimize_quadratic(np.zeros((4, 4)), gradient, np.full(4, 0.25), penalty, 4)
    np.testing.assert_allclose(u, [1.0 - rest, 0.0, 0.0, rest], atol=1e-9)
    assert u.sum() == pytest.approx(1.0, abs=1e-15)


def test_a_model_without_a_minimum_is_given_up():
    zero, row, infinite = np.zeros(3), np.array([[1.0, 1.0, 0.0]]), np.full(3, np.inf)
    lower, slope = np.array([0.0, 0.0, -np.inf]), np.array([-1.0, 0.0, -1.0])
    A = np.diag([1.0, 1.0, 0.0])
    endless = Model(A, slope, zero, zero, zero, lower, infinite, row, np.ones(1))
    with np.errstate(all="ignore"):
        assert not minimize(endless, np.array([0.5, 0.5, 0.0])).solved
