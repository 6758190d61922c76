"""The models of second-order steps: faces by brute force, a conic solver, optimality conditions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from own_penalties import Ball

from sorel.models import QuadraticInfo, minimize_quadratic
from sorel.models.constrained import Model, minimize
from sorel.models.smooth import _RIDGE as RIDGE
from sorel.models.smooth import add_penalty, cholesky, cover_rounding, lend
from sorel.penalties import L2, Box, Budget, ElasticNet, NonNegative, Penalty, Simplex

EPS = 2.0**-52
EXACT = 1e-14
NAMES = ["l2", "elastic", "nonnegative", "box", "simplex"]
by_name = pytest.mark.parametrize("name", NAMES)


def make_penalty(name: str, l2: float, l1: float = 0.1) -> Penalty:
    return {
        "l2": L2(l2),
        "elastic": ElasticNet(l2, l1),
        "nonnegative": NonNegative(l2),
        "box": Box(l2, lower=-0.3, upper=0.2),
        "simplex": Simplex(l2),
    }[name]


def model(rng: np.random.Generator, p: int, rows: int | None = None, scale: float = 0.0):
    """Curvature, gradient and centre of a least-squares model with columns scaled by 10^+-scale."""
    X = rng.standard_normal((rows or 2 * p, p)) * 10.0 ** rng.uniform(-scale, scale, p)
    H = X.T @ X / len(X)
    gradient = 2.0 * X.T @ rng.standard_normal(len(X)) / len(X)
    return H, gradient, rng.standard_normal(p)


def objective(u, H, gradient, w, penalty, n, outputs=1):
    step = u - w
    smooth = gradient @ step + 0.5 * step @ H @ step
    return smooth + penalty.value(u[:n].reshape(-1, outputs))


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


def enumerate_faces(H, gradient, w, penalty, n):
    """Minimise by trying every face: each coefficient free (with a sign), or at a kink or bound."""
    p = len(w)
    A = H + np.diag(np.r_[np.full(n, penalty.l2), np.zeros(p - n)])
    base = gradient - H @ w
    code, _, l1, lower, upper = penalty.kernel(n)
    best, best_value = None, math.inf
    if code == 2:
        choices = [("free", 0.0), ("fixed", 0.0)]
    else:
        choices = [("free", s * l1) for s in ((-1, 1) if l1 else (0,))]
        choices += [("fixed", 0.0)] * (l1 > 0)
    per_coordinate = [
        choices + [("fixed", b) for b in (lower[j], upper[j]) if code == 1 and math.isfinite(b)]
        for j in range(n)
    ]
    for face in itertools.product(*per_coordinate):
        free = np.array([kind == "free" for kind, _ in face] + [True] * (p - n))
        u = np.array([0.0 if kind == "free" else value for kind, value in face] + [0.0] * (p - n))
        linear = base + np.array(
            [v if kind == "free" else 0.0 for kind, v in face] + [0.0] * (p - n)
        )
        rhs = -(linear + A @ u)[free]
        if code == 2:
            ones = np.r_[np.ones(n), np.zeros(p - n)][free]
            if not ones.any():
                continue
            system = np.block(
                [[A[np.ix_(free, free)], ones[:, None]], [ones[None], np.zeros((1, 1))]]
            )
            u[free] = np.linalg.solve(system, np.r_[rhs, 1.0])[:-1]
        else:
            u[free] = np.linalg.solve(A[np.ix_(free, free)], rhs)
        value = objective(u, H, gradient, w, penalty, n)
        if value < best_value:
            best, best_value = u, value
    return best, best_value


@by_name
@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("intercept", [0, 1])
def test_against_every_face(name, d, intercept):
    rng = np.random.default_rng(d)
    for _ in range(8):
        H, gradient, w = model(rng, d + intercept)
        penalty = make_penalty(name, 0.05, l1=0.3)
        u, info = minimize_quadratic(H, gradient, w, penalty, d)
        expected, value = enumerate_faces(H, gradient, w, penalty, d)
        np.testing.assert_allclose(u, expected, atol=1e-9)
        assert objective(u, H, gradient, w, penalty, d) <= value + 1e-12
        assert info.kkt <= EXACT


def conic_solution(H, gradient, w, penalty, n, outputs):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    values, vectors = np.linalg.eigh(H)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    u = cp.Variable(len(w))
    code, l2, l1, lower, upper = penalty.kernel(n // outputs)
    cost = gradient @ (u - w) + 0.5 * cp.sum_squares(root @ (u - w))
    cost += 0.5 * l2 * cp.sum_squares(u[:n]) + l1 * cp.norm1(u[:n])
    lower, upper = np.repeat(lower, outputs), np.repeat(upper, outputs)
    below, above = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    constraints = [u[below] >= lower[below]] if below.size else []
    constraints += [u[above] <= upper[above]] if above.size else []
    if code == 2:
        constraints += [cp.sum(u[k:n:outputs]) == 1.0 for k in range(outputs)]
    tight = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    cp.Problem(cp.Minimize(cost), constraints).solve(solver=cp.CLARABEL, **tight)
    return u.value


@by_name
@pytest.mark.parametrize(("d", "outputs", "intercept"), [(12, 1, 1), (7, 3, 1), (20, 1, 0)])
def test_against_a_conic_solver(name, d, outputs, intercept):
    rng = np.random.default_rng(d)
    n = d * outputs
    H, gradient, w = model(rng, n + intercept * outputs)
    penalty = make_penalty(name, 0.02)
    u, info = minimize_quadratic(H, gradient, w, penalty, n, outputs)
    np.testing.assert_allclose(u, conic_solution(H, gradient, w, penalty, n, outputs), atol=2e-5)
    assert info.kkt <= EXACT
    assert kkt_violation(u, H, gradient, w, penalty, n, outputs) <= EXACT


def test_array_bounds_hold_for_every_output():
    rng = np.random.default_rng(8)
    H, gradient, w = model(rng, 8)
    penalty = Box(0.1, lower=[0.0, -0.1, -math.inf, 0.05], upper=[0.1, 0.1, 0.0, math.inf])
    u, _ = minimize_quadratic(H, gradient, w, penalty, 8, n_outputs=2)
    np.testing.assert_allclose(u, conic_solution(H, gradient, w, penalty, 8, 2), atol=2e-5)
    assert penalty.value(u.reshape(4, 2)) < math.inf


@by_name
def test_scaled_columns(name):
    """Columns over twelve decades: every coordinate is optimal on its own scale."""
    for seed in range(6):
        H, gradient, w = model(np.random.default_rng(seed), 15, scale=6.0)
        penalty = make_penalty(name, 1e-6)
        u, info = minimize_quadratic(H, gradient, w, penalty, 14)
        assert info.kkt <= EXACT
        assert info.shift == 0.0
        assert kkt_violation(u, H, gradient, w, penalty, 14) <= EXACT


@by_name
@pytest.mark.parametrize("l2", [1e-8, 1e-3])
def test_rank_deficient_curvature(name, l2):
    for seed in range(6):
        H, gradient, w = model(np.random.default_rng(seed), 20, rows=5)
        penalty = make_penalty(name, l2)
        u, info = minimize_quadratic(H, gradient, w, penalty, 20)
        assert info.kkt <= EXACT
        assert kkt_violation(u, H, gradient, w, penalty, 20) <= EXACT


@by_name
def test_equal_columns_share(name):
    """Strong convexity alone decides between equal columns, and splits evenly."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((30, 3))[:, [0, 0, 1, 1, 2, 2]]
    H, gradient, w = X.T @ X / 30, X.T @ rng.standard_normal(30) / 30, np.zeros(6)
    u, info = minimize_quadratic(H, gradient, w, make_penalty(name, 1e-6, l1=1e-3), 6)
    np.testing.assert_allclose(u[::2], u[1::2], atol=1e-9)
    assert info.kkt <= EXACT


@by_name
def test_curvature_singular_to_working_precision(name):
    """With l2 below rounding level a shift may be needed; the result must be finite and good."""
    H, gradient, w = model(np.random.default_rng(4), 12, rows=3)
    penalty = make_penalty(name, 1e-20)
    u, info = minimize_quadratic(H, gradient, w, penalty, 12)
    assert np.isfinite(u).all()
    assert info.shift < 1e-12
    start = np.r_[penalty.project(w)]
    assert objective(u, H, gradient, w, penalty, 12) < objective(start, H, gradient, w, penalty, 12)
    assert info.kkt < 1e-9


@by_name
@pytest.mark.parametrize("curvature", [0.0, 1e-22])
def test_nearly_flat_intercept(name, curvature):
    H, gradient, w = model(np.random.default_rng(6), 5)
    H[-1] = H[:, -1] = 0.0
    H[-1, -1] = curvature
    gradient[-1] = 3e-22
    penalty = make_penalty(name, 0.1)
    u, info = minimize_quadratic(H, gradient, w, penalty, 4)
    alone, _ = minimize_quadratic(H[:4, :4], gradient[:4], w[:4], penalty, 4)
    np.testing.assert_allclose(u[:4], alone, rtol=1e-12, atol=1e-15)
    if curvature:
        assert u[-1] == pytest.approx(w[-1] - 3.0, rel=1e-12)
        assert info.shift == 0.0
    else:
        assert abs(u[-1] - w[-1]) < 1e-12
        assert info.shift == 1.0


def test_no_curvature_at_all():
    penalty = ElasticNet(2.0, 1.0)
    u, info = minimize_quadratic(
        np.zeros((3, 3)), np.array([-5.0, 0.5, 0.0]), np.array([9.0, 9.0, 4.0]), penalty, 2
    )
    np.testing.assert_allclose(u, [2.0, 0.0, 4.0], atol=1e-15)
    assert info.kkt <= EXACT


@by_name
def test_one_more_step_from_the_minimiser_stays_there(name):
    """Re-centring the model at its minimiser must not move it: the accuracy Newton relies on."""
    H, gradient, w = model(np.random.default_rng(7), 30, scale=2.0)
    penalty = make_penalty(name, 1e-4)
    u, _ = minimize_quadratic(H, gradient, w, penalty, 29)
    again, info = minimize_quadratic(H, gradient + H @ (u - w), u, penalty, 29)
    root = np.sqrt(np.diag(H) + 1e-4)
    assert np.max(root * np.abs(again - u)) <= 1e-9 * np.max(root * np.abs(u))
    np.testing.assert_array_equal(again[:29] == 0.0, u[:29] == 0.0)
    assert info.n_iter <= 2


@by_name
@pytest.mark.parametrize("kind", ["correlated", "hilbert"])
def test_hard_identification(name, kind):
    """Strongly correlated columns, where coordinate descent alone would take forever."""
    p = 25
    rng = np.random.default_rng(9)
    if kind == "correlated":
        X = 0.1 * np.cumsum(rng.standard_normal((2 * p, p)), axis=1)
        X += 10.0 * rng.standard_normal((2 * p, 1))
    else:
        X = 1.0 / (np.arange(2 * p)[:, None] + np.arange(p) + 1.0)
    H, gradient = X.T @ X / len(X), X.T @ rng.standard_normal(len(X)) / len(X)
    penalty = make_penalty(name, 1e-6, l1=0.01 * np.abs(gradient).max())
    w = rng.standard_normal(p)
    u, info = minimize_quadratic(H, gradient, w, penalty, p)
    assert info.kkt <= EXACT
    assert kkt_violation(u, H, gradient, w, penalty, p) <= EXACT


@by_name
def test_inputs_are_left_alone(name):
    H, gradient, w = model(np.random.default_rng(10), 6)
    copies = H.copy(), gradient.copy(), w.copy()
    for array in (H, gradient, w):
        array.flags.writeable = False
    u, info = minimize_quadratic(H, gradient, w, make_penalty(name, 0.1), 6)
    assert isinstance(info, QuadraticInfo)
    assert not np.shares_memory(u, w)
    for array, expected in zip((H, gradient, w), copies, strict=True):
        np.testing.assert_array_equal(array, expected)
    by_columns, _ = minimize_quadratic(
        np.asfortranarray(H), gradient, w, make_penalty(name, 0.1), 6
    )
    np.testing.assert_allclose(by_columns, u, rtol=1e-12)


@by_name
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("at", ["diagonal", "off", "gradient", "w"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_refuses_what_is_not_finite(name, at, value):
    H, gradient, w = model(np.random.default_rng(11), 4)
    if at == "diagonal":
        H[1, 1] = value
    elif at == "off":
        H[1, 2] = H[2, 1] = value
    elif at == "gradient":
        gradient[1] = value
    else:
        w[1] = value
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        minimize_quadratic(H, gradient, w, make_penalty(name, 0.1), 4)


@pytest.mark.parametrize("at", ["curvature", "gradient", "w"])
def test_refuses_what_is_not_finite_under_a_penalty_of_ones_own(at):
    H, gradient, w = model(np.random.default_rng(11), 4)
    {"curvature": H[1], "gradient": gradient, "w": w}[at][2] = math.nan
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        minimize_quadratic(H, gradient, w, Ball(), 4)


def test_refuses_indefinite_curvature():
    H = np.array([[1.0, 5.0], [5.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError, match="not positive semidefinite"):
        minimize_quadratic(H, np.ones(2), np.zeros(2), L2(0.1), 2)


@pytest.mark.parametrize("scale", [0.0, 2.0])
@pytest.mark.parametrize("rows", [60, 400])
@pytest.mark.parametrize("name", ["elastic", "nonnegative", "box"])
def test_many_coordinates_come_to_rest_on_one_face(name, rows, scale):
    H, gradient, w = model(np.random.default_rng(3), 201, rows, scale)
    penalty = make_penalty(name, 1e-3, 0.3)
    u, info = minimize_quadratic(H, gradient, w, penalty, 200)
    assert kkt_violation(u, H, gradient, w, penalty, 200) <= EXACT
    assert 0 < np.count_nonzero((u[:200] != 0.0) & (np.abs(u[:200] + 0.05) != 0.25)) < 200
    assert info.kkt <= EXACT


@pytest.mark.parametrize("name", ["elastic", "nonnegative", "box"])
def test_a_rough_minimum_misses_little(name):
    H, gradient, w = model(np.random.default_rng(4), 201, 150)
    penalty = make_penalty(name, 1e-3, 0.1)
    w[:200] = penalty.project(w[:200])
    exact, _ = minimize_quadratic(H, gradient, w, penalty, 200)
    rough, _ = minimize_quadratic(H, gradient, w, penalty, 200, rough=0.05)
    values = [objective(u, H, gradient, w, penalty, 200) for u in (w, rough, exact)]
    assert values[0] > values[1] >= values[2] - 1e-12
    assert values[1] - values[2] <= 0.05 * (values[0] - values[2])


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize("rank", [30, 120, 400])
def test_many_free_coordinates_of_a_simplex_against_a_conic_solver(rank, l2, intercept):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    rng = np.random.default_rng(rank)
    d, p = 150, 150 + intercept
    M = rng.standard_normal((rank, p)) * 10.0 ** rng.uniform(-1.0, 1.0, p)
    H, gradient = 1e3 * M.T @ M / rank, 0.05 * rng.standard_normal(p)
    w = np.append(np.full(d, 1.0 / d), np.zeros(int(intercept)))
    u, info = minimize_quadratic(H, gradient, w, Simplex(l2), d)
    assert info.kkt <= 1e-13
    assert u[:d].min() >= 0.0
    assert u[:d].sum() == pytest.approx(1.0, abs=1e-14)
    x = cp.Variable(p)
    model = gradient @ (x - w) + 500.0 / rank * cp.sum_squares(M @ (x - w))
    penalty = 0.5 * l2 * cp.sum_squares(x[:d])
    constraints = [x[:d] >= 0.0, cp.sum(x[:d]) == 1.0]
    best = cp.Problem(cp.Minimize(model + penalty), constraints).solve(solver=cp.CLARABEL)
    move = u - w
    value = gradient @ move + 0.5 * move @ H @ move + 0.5 * l2 * u[:d] @ u[:d]
    assert value == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize(
    ("diagonal", "l2", "added"),
    [
        ([4.0, 1.0, 2.0], 0.5, [0.5, 0.5]),
        # Without l2 a ridge, in proportion to the curvature or to a little of the largest.
        ([4.0, 1.0, 2.0], 0.0, [4.0 * RIDGE, RIDGE]),
        ([4.0, 0.0, 2.0], 0.0, [4.0 * RIDGE, 4.0 * RIDGE**2]),
        # And where there is none at all, to the steepest slope.
        ([0.0, 0.0, 0.0], 0.0, [3.0 * RIDGE, 3.0 * RIDGE]),
    ],
)
def test_the_curvature_and_the_slope_of_the_penalty(diagonal, l2, added):
    A, slope, w = np.diag(diagonal) + 0.0, np.array([1.0, -3.0, 9.0]), np.array([2.0, 4.0, 8.0])
    A[0, 1] = A[1, 0] = 0.25
    flat = add_penalty(A, slope, w, l2, 2)
    np.testing.assert_allclose(np.diag(A)[:2], np.add(diagonal[:2], added), rtol=1e-15)
    np.testing.assert_array_equal(slope, [1.0 + 2.0 * l2, -3.0 + 4.0 * l2, 9.0])
    assert A[0, 1] == A[1, 0] == 0.25
    assert flat == (diagonal[2] == 0.0)
    assert A[2, 2] == (diagonal[2] or 1.0)


def test_curvature_is_lent_to_intercepts_without_any():
    for curvature, lent in [(1.01 * 3.0 * EPS**2, False), (0.99 * 3.0 * EPS**2, True)]:
        intercepts = np.array([1.0, curvature])
        assert lend(intercepts, 3.0) == float(lent)
        np.testing.assert_array_equal(intercepts, [1.0, 3.0 if lent else curvature])


def test_negative_entries_of_a_diagonal_are_covered():
    A = np.array([[2.0, 0.5, -0.25], [0.5, -1e-3, 1e-4], [-0.25, 1e-4, 1.0]])
    covered = A.copy()
    cover_rounding(covered)
    np.testing.assert_allclose(np.diag(covered), [2.006, 6e-3, 1.006], rtol=1e-14)
    A = np.array([[-1.0, 0.5], [0.5, 2.0]])
    cover_rounding(A)
    np.testing.assert_allclose(A, [[0.5, 0.5], [0.5, 2.5]], rtol=1e-14)


@pytest.mark.parametrize("excess", [-0.5, 1e-12, 1e-9, 1e-3])
def test_a_shift_is_the_first_of_a_sequence_that_is_enough(excess):
    """The least eigenvalue of this matrix is minus the excess, and its diagonal 1."""
    A = np.array([[1.0, 1.0 + excess], [1.0 + excess, 1.0]])
    factor, shift = cholesky(A)
    shifts = 8.0 * 2.0 * EPS * 8.0 ** np.arange(16)
    assert shift == (shifts[shifts > excess][0] if excess > 0.0 else 0.0)
    lower = np.tril(factor)
    np.testing.assert_allclose(lower @ lower.T, A + shift * np.eye(2), rtol=1e-15, atol=0)


def random_penalty(rng, d):
    """One of the package's penalties; bounds may coincide, and kinks lie on them."""
    lower = rng.choice([0.0, -0.5, -0.1], d)
    upper = lower + rng.choice([0.0, 0.2, 1.0, 2.0], d)
    l2 = float(rng.choice([0.0, 1e-6, 1e-3, 1.0]))
    kind = rng.choice(["elastic", "nonnegative", "box", "simplex", "budget"])
    if kind == "elastic":
        return ElasticNet(max(l2, 1e-6), float(rng.choice([0.0, 0.1, 10.0])))
    if kind == "nonnegative":
        return NonNegative(max(l2, 1e-6))
    if kind == "box":
        return Box(l2, lower, upper)
    if kind == "simplex":
        return Simplex(l2)
    total = float((lower + (upper - lower) * rng.choice([0.0, 0.3, 0.5, 1.0])).sum())
    cost = rng.choice([0.0, 0.05, 1.0], d) * rng.integers(0, 2)
    return Budget(l2, total, lower, upper, cost, rng.choice([0.0, 0.1, -0.1], d))


def one_sided_violation(u, H, gradient, w, penalty, n, outputs):
    """What a coordinate, or a pair that shares a sum, gains at first order, relative to its terms.

    A multiplier exists exactly where no derivative to the left exceeds one to the right.
    """
    slope = gradient + H @ (u - w)
    root = np.sqrt(np.maximum(np.diag(H), 0.0) + penalty.l2)
    size = np.abs(gradient) + root * (root @ (np.abs(u - w) + np.abs(u))) + 1e-300
    kink, cost, lower, upper = np.zeros(n), np.zeros(n), np.full(n, -np.inf), np.full(n, np.inf)
    if isinstance(penalty, Budget):
        kink, cost, lower, upper = penalty.pieces(n)
    else:
        code, _, l1, low, high = penalty.kernel(n // outputs)
        cost, lower = np.full(n, l1), np.repeat(low, outputs)
        upper = upper if code == 2 else np.repeat(high, outputs)
    x = u[:n]
    assert np.all((x >= lower) & (x <= upper))
    slope[:n] += penalty.l2 * x
    # Bounds that coincide may do so but for rounding.
    upper, lower = np.where(upper - lower < 1e-12, [x, x], [upper, lower])
    right = np.where(x < upper, slope[:n] + np.where(x >= kink, cost, -cost), np.inf)
    left = np.where(x > lower, slope[:n] + np.where(x > kink, cost, -cost), -np.inf)
    size[:n] += cost
    worst = float(np.max(np.abs(slope[n:]) / size[n:], initial=0.0))
    if penalty.separable:
        gains = np.maximum(np.maximum(-right, left), 0.0) / size[:n]
        return max(worst, float(gains.max()))
    for k in range(outputs):
        own = slice(k, n, outputs)
        give, take = int(np.argmax(left[own])), int(np.argmin(right[own]))
        gain = left[own][give] - right[own][take]
        if gain > 0.0:
            worst = max(worst, gain / (size[own][give] + size[own][take]))
    return worst


@pytest.mark.parametrize("seed", range(400))
def test_degenerate_models(seed):
    """Singular curvature, equal columns, bounds that coincide, starts at corners and outside."""
    rng = np.random.default_rng(seed)
    d = int(rng.choice([1, 2, 3, 6, 15, 40]))
    penalty = random_penalty(rng, d)
    outputs = int(rng.choice([1, 3])) if type(penalty) is not Budget else 1
    n = d * outputs
    p = n + outputs * int(rng.integers(0, 2))
    X = rng.standard_normal((int(rng.choice([0, 1, 3, p, 2 * p])), p))
    if rng.random() < 0.5:
        X = X[:, rng.integers(0, p, p)]
    X[:, n:] += 1.0
    H = X.T @ X * 10.0 ** rng.uniform(-4.0, 4.0)
    gradient = rng.standard_normal(p) * 10.0 ** rng.uniform(-3.0, 3.0)
    # Along intercepts without curvature the model has no minimum.
    gradient[n:] = X[:, n:].T @ rng.standard_normal(len(X))
    shape = (d,) if outputs == 1 else (d, outputs)
    w = np.concatenate([rng.choice([0.0, 0.1, 1.0], n), rng.standard_normal(p - n)])
    if rng.random() < 0.7:
        w[:n] = penalty.project(w[:n].reshape(shape)).ravel()
    u, info = minimize_quadratic(H, gradient, w, penalty, n, outputs)
    assert penalty.value(u[:n].reshape(shape)) < math.inf
    assert one_sided_violation(u, H, gradient, w, penalty, n, outputs) <= 1e-9
    # Where it is strictly convex the answer is that of rounding.
    if penalty.l2 >= 1e-3 and penalty.l2 >= 1e-6 * np.abs(H).max(initial=0.0):
        assert info.kkt <= EXACT
        assert one_sided_violation(u, H, gradient, w, penalty, n, outputs) <= EXACT


@pytest.mark.parametrize("seed", range(20))
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
    assert one_sided_violation(u, H, gradient, w, penalty, d, 1) <= EXACT
    assert info.kkt <= EXACT
    again, info = minimize_quadratic(H, gradient + H @ (u - w), u, penalty, d)
    np.testing.assert_allclose(again, u, atol=1e-12)
    assert info.n_iter <= 2


def test_nothing_moves_where_everything_is_at_its_bound():
    w = np.array([0.5, 0.5])
    u, info = minimize_quadratic(np.eye(2), np.zeros(2), w, Budget(0.1, 1.0, 0.5, 0.5), 2)
    np.testing.assert_array_equal(u, w)
    assert info.kkt == 0.0


@pytest.mark.parametrize("rest", [1e-3, 1e-6, 1e-9])
def test_a_weight_that_is_nearly_zero_makes_up_the_sum(rest):
    gradient = np.array([1.0, 3.0, 2.0, 1.1])
    penalty = Budget(0.0, upper=[1.0 - rest, 1.0, 1.0, 1.0])
    u, _ = minimize_quadratic(np.zeros((4, 4)), gradient, np.full(4, 0.25), penalty, 4)
    np.testing.assert_allclose(u, [1.0 - rest, 0.0, 0.0, rest], atol=1e-9)
    assert u.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("rank", [None, 40])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_large_simplices(spread, rank, k):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n, p = 120, 120 + k
        M = rng.standard_normal((rank or 2 * p, p)) + rng.standard_normal((rank or 2 * p, 1))
        M *= 10.0 ** rng.uniform(-spread, spread, p)
        H = M.T @ M / len(M)
        gradient = 0.1 * M.T @ rng.standard_normal(len(M)) / np.sqrt(len(M))
        w = np.append(np.full(n, k / n), np.zeros(k))
        u, _ = minimize_quadratic(H, gradient, w, Simplex(1e-4), n, k)
        np.testing.assert_allclose([u[j:n:k].sum() for j in range(k)], 1.0, rtol=1e-13)
        assert one_sided_violation(u, H, gradient, w, Simplex(1e-4), n, k) <= 1e-12


def test_classes_may_share_what_no_loss_sees():
    """Intercepts of classes: their common part has no curvature, and stays a number."""
    rng = np.random.default_rng(4)
    d, k = 40, 3
    X = np.append(rng.standard_normal((200, d)), np.ones((200, 1)), axis=1)
    shares = rng.dirichlet(np.ones(k), 200)
    curvature = np.einsum("ia,ab->iab", shares, np.eye(k)) - np.einsum("ia,ib->iab", shares, shares)
    H = np.einsum("ij,iab,il->jalb", X, curvature, X, optimize=True).reshape((d + 1) * k, -1) / 200
    n = d * k
    gradient = np.append(0.02 * rng.standard_normal(n), rng.standard_normal(k))
    gradient[n:] -= gradient[n:].mean()
    w = np.append(np.full(n, 1.0 / d), np.zeros(k))
    u, _ = minimize_quadratic(H, gradient, w, Simplex(1e-3), n, k)
    assert np.abs(u[n:]).max() < 1e3
    assert one_sided_violation(u, H, gradient, w, Simplex(1e-3), n, k) <= 1e-9


def test_rows_of_any_kind():
    """Two rows with coefficients of their own, against the system of all active conditions."""
    rng = np.random.default_rng(2)
    p = 12
    M = rng.standard_normal((2 * p, p))
    rows = rng.uniform(0.5, 2.0, (2, p))
    start = rng.uniform(0.0, 1.0, p)
    model = Model(
        A=M.T @ M, slope=10.0 * rng.standard_normal(p), w=np.zeros(p), kink=np.zeros(p),
        cost=np.zeros(p), lower=np.zeros(p), upper=np.ones(p), rows=rows, sums=rows @ start,
        ridge=np.zeros(p),
    )  # fmt: skip
    found = minimize(model, start)
    np.testing.assert_allclose(rows @ found.x, rows @ start, rtol=1e-14)
    assert np.all((found.x >= 0.0) & (found.x <= 1.0))
    slope = model.slope + model.A @ found.x + found.multipliers @ rows
    inside = (found.x > 0.0) & (found.x < 1.0)
    np.testing.assert_allclose(slope[inside], 0.0, atol=1e-11)
    assert np.all(slope[found.x == 0.0] >= 0.0)
    assert np.all(slope[found.x == 1.0] <= 0.0)
    assert found.kkt <= EXACT
