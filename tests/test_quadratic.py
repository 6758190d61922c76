"""The quadratic subproblem against enumeration of faces, a conic solver and its own KKT system."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from own_penalties import Ball

from sorel import quadratic
from sorel.penalties import L2, Box, ElasticNet, NonNegative, Penalty, Simplex
from sorel.quadratic import (
    QuadraticInfo,
    _descend,
    _relative_size,
    _restore_sums,
    _well_factored,
    minimize_quadratic,
    step_of_few,
)

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
    assert info.n_iter <= 6


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


def test_rounding_of_the_sums_goes_to_the_largest_coordinate():
    """Too small to show in a solution, the drift of many steps must still not pile up."""
    u = np.array([0.25, 0.0, 0.5 + 3e-13, 0.25, 0.25, 0.75 - 2e-13, 7.0, 8.0])
    _restore_sums(u, 6, 2)
    np.testing.assert_array_equal(u, [0.25, 0.0, 0.5, 0.25, 0.25, 0.75, 7.0, 8.0])


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


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("pivot", [1e-9, 0.0, np.nan])
def test_one_poor_pivot_is_enough(bad, pivot):
    A = np.diag([4.0, 9.0, 1.0])
    factor = np.diag([2.0, 3.0, 1.0])
    assert _well_factored(factor, A, 1e-8)
    factor[bad, bad] = pivot
    assert not _well_factored(factor, A, 1e-8)


def test_residuals_are_measured_against_their_terms():
    A = np.array([[4.0, 1.0], [1.0, 9.0]])
    slope, step = np.array([1.0, -2.0]), np.array([0.5, -1.0])
    residual = np.array([0.3, -0.2])
    terms = np.abs(slope) + np.sqrt(np.diag(A)) * (np.sqrt(np.diag(A)) @ np.abs(step))
    expected = np.max(np.abs(residual) / terms)
    assert _relative_size(residual, slope, step, A) == pytest.approx(expected, rel=1e-12)
    nothing = np.zeros(2)
    assert _relative_size(nothing, nothing, nothing, A) == 0.0


@pytest.mark.parametrize(
    ("u", "slope", "l1", "lower", "expected"),
    [
        # Both leave their bound in the first sweep, so there is a second, and no third.
        ([0.0, 0.0], [-3.0, -3.0], 0.0, 0.0, [1.125, 0.9375]),
        # The second comes to its bound, so there is another sweep for the first.
        ([1.0, 0.5], [-3.0, 4.0], 0.0, 0.0, [2.75, 0.0]),
        # Both change their sign.
        ([-1.0, -1.0], [-6.0, -6.0], 0.5, -np.inf, [1.0625, 0.71875]),
        # Neither: one sweep is enough.
        ([1.0, 1.0], [-3.0, -3.0], 0.5, -np.inf, [2.25, 1.625]),
    ],
)
def test_sweeps_end_when_no_sign_or_bound_has_changed(u, slope, l1, lower, expected):
    A = np.array([[2.0, 1.0], [1.0, 2.0]])
    u, slope = np.array(u), np.array(slope)
    gradient = slope - A @ u
    start = u.copy()
    limits = np.full(2, l1), np.full(2, lower), np.full(2, np.inf)
    gain = _descend(A, u, slope, *limits, np.zeros(2), 50, 0.0, 0.0)
    assert u == pytest.approx(expected, rel=1e-14)
    assert slope == pytest.approx(gradient + A @ u, abs=1e-14)

    def value(u):
        return gradient @ u + 0.5 * u @ A @ u + l1 * np.abs(u).sum()

    assert gain == pytest.approx(value(start) - value(u), rel=1e-12)


def test_sweeps_end_when_they_gain_little():
    A = np.array([[1.0, 0.9], [0.9, 1.0]])
    limits = np.zeros(2), np.full(2, -np.inf), np.full(2, np.inf)

    def descend(slow, gained):
        u, slope = np.zeros(2), np.array([-1.0, -1.0])
        return _descend(A, u, slope, *limits, np.zeros(2), 1000, slow, gained)

    best = 1.0 / 1.9  # half of 1^T A^-1 1
    assert descend(1e-9, 0.0) == pytest.approx(best, rel=1e-7)
    assert 0.9 * best < descend(1e-2, 0.0) < 0.999 * best
    assert descend(1e-2, 100.0) < descend(1e-2, 0.0)


@pytest.mark.parametrize("scale", [0.0, 2.0])
@pytest.mark.parametrize("rows", [60, 400])
@pytest.mark.parametrize("name", ["elastic", "nonnegative", "box"])
def test_many_coordinates_come_to_rest_on_one_face(name, rows, scale):
    # More free coordinates than are factorised anew each time, and most of them do not stay free.
    H, gradient, w = model(np.random.default_rng(3), 201, rows, scale)
    penalty = make_penalty(name, 1e-3, 0.3)
    u, info = minimize_quadratic(H, gradient, w, penalty, 200)
    assert kkt_violation(u, H, gradient, w, penalty, 200) <= EXACT
    assert 0 < np.count_nonzero((u[:200] != 0.0) & (np.abs(u[:200] + 0.05) != 0.25)) < 200
    assert info.n_iter < 40


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
    # Few coordinates are minimised over exactly all the same.
    few = H[:40, :40], gradient[:40], w[:40], make_penalty(name, 1e-3, 0.1), 40
    assert np.array_equal(minimize_quadratic(*few)[0], minimize_quadratic(*few, rough=0.5)[0])


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


def large_simplex(seed, d=150, intercept=True):
    """A model whose minimiser on a simplex has most of the coordinates, but not all."""
    rng = np.random.default_rng(seed)
    p = d + intercept
    M = rng.standard_normal((3 * d, p))
    gradient = 0.003 * rng.standard_normal(p)
    w = np.append(rng.dirichlet(np.ones(d)), np.zeros(int(intercept)))
    return M.T @ M / (3 * d), gradient, w, Simplex(1e-3), d


def test_a_sum_that_is_off_by_rounding_wakes_nothing(monkeypatch):
    H, gradient, w, penalty, d = large_simplex(1)
    w[: d // 2] = 0.0
    w[:d] *= (1.0 - 4.0 * EPS) / w[:d].sum()
    seen, descend = [], quadratic._descend_pairs

    def record(A, u, *rest):
        seen.append(u > 0.0)
        return descend(A, u, *rest)

    monkeypatch.setattr(quadratic, "_descend_pairs", record)
    minimize_quadratic(H, gradient, w, penalty, d)
    np.testing.assert_array_equal(seen[0][:d], w[:d] > 0.0)


EPS, RIDGE = 2.0**-52, quadratic._RIDGE


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
    flat = quadratic._add_penalty(A, slope, w, l2, 2)
    np.testing.assert_allclose(np.diag(A)[:2], np.add(diagonal[:2], added), rtol=1e-15)
    np.testing.assert_array_equal(slope, [1.0 + 2.0 * l2, -3.0 + 4.0 * l2, 9.0])
    assert A[0, 1] == A[1, 0] == 0.25
    assert flat == (diagonal[2] == 0.0)
    assert A[2, 2] == (diagonal[2] or 1.0)


def test_curvature_is_lent_to_intercepts_without_any():
    for curvature, lent in [(1.01 * 3.0 * EPS**2, False), (0.99 * 3.0 * EPS**2, True)]:
        intercepts = np.array([1.0, curvature])
        assert quadratic._lend(intercepts, 3.0) == float(lent)
        np.testing.assert_array_equal(intercepts, [1.0, 3.0 if lent else curvature])


def test_negative_entries_of_a_diagonal_are_covered():
    A = np.array([[2.0, 0.5, -0.25], [0.5, -1e-3, 1e-4], [-0.25, 1e-4, 1.0]])
    covered = A.copy()
    quadratic._cover_rounding(covered)
    np.testing.assert_allclose(np.diag(covered), [2.006, 6e-3, 1.006], rtol=1e-14)
    A = np.array([[-1.0, 0.5], [0.5, 2.0]])
    quadratic._cover_rounding(A)
    np.testing.assert_allclose(A, [[0.5, 0.5], [0.5, 2.5]], rtol=1e-14)


@pytest.mark.parametrize("excess", [-0.5, 1e-12, 1e-9, 1e-3])
def test_a_shift_is_the_first_of_a_sequence_that_is_enough(excess):
    """The least eigenvalue of this matrix is minus the excess, and its diagonal 1."""
    A = np.array([[1.0, 1.0 + excess], [1.0 + excess, 1.0]])
    factor, shift = quadratic._factor(A)
    shifts = 8.0 * 2.0 * EPS * 8.0 ** np.arange(16)
    assert shift == (shifts[shifts > excess][0] if excess > 0.0 else 0.0)
    lower = np.tril(factor)
    np.testing.assert_allclose(lower @ lower.T, A + shift * np.eye(2), rtol=1e-15, atol=0)


def slope_of_least_size(u, slope, l1, lower, upper):
    """The derivative into the direction of descent, by trying both."""
    h = 1e-7
    moves = [t for t in (-h, h) if lower <= u + t <= upper]
    changes = {t: slope * t + l1 * (abs(u + t) - abs(u)) for t in moves}
    down = [t for t in moves if changes[t] < -1e-12]
    return changes[down[0]] / down[0] if down else 0.0


def test_violations_of_single_coordinates():
    for u, slope, l1, (lower, upper) in itertools.product(
        [-1.0, 0.0, 0.5, 2.0], [-3.0, -0.5, 0.0, 0.5, 3.0], [0.0, 1.0], [(-1.0, 2.0), (0.0, 0.5)]
    ):
        if lower <= u <= upper:
            expected = slope_of_least_size(u, slope, l1, lower, upper)
            found = quadratic._violation(u, slope, l1, lower, upper)
            assert found == pytest.approx(expected, abs=1e-6)


def test_the_violation_on_simplices_and_of_intercepts():
    rng = np.random.default_rng(6)
    for _ in range(30):
        # Two simplices of four, every other coordinate, and one intercept.
        u = np.append(rng.random(8) * (rng.random(8) < 0.6), 0.3)
        u[:2] = 0.5
        slope, size = rng.standard_normal(9), rng.uniform(1.0, 2.0, 9)
        slope[8] *= rng.choice([0.01, 2.0])
        none, l1 = np.full(9, np.inf), np.zeros(9)
        expected = abs(slope[8]) / size[8]
        for k in range(2):
            own = np.arange(k, 8, 2)
            support = min(own[u[own] > 0.0], key=lambda j: size[j])
            for j in own:
                excess = slope[support] - slope[j]
                excess = abs(excess) if u[j] > 0.0 else excess
                expected = max(expected, excess / (size[j] + size[support]))
        found = quadratic._optimality(u, slope, l1, -none, none, size, np.eye(9), 8, 2)
        assert found == pytest.approx(expected, rel=1e-14)
        lower, upper = np.r_[np.zeros(8), -np.inf], none
        found = quadratic._optimality(u, slope, l1 + 0.2, lower, upper, size, np.eye(9), 8, 0)
        single = [
            abs(quadratic._violation(u[j], slope[j], 0.2, lower[j], upper[j])) / size[j]
            for j in range(9)
        ]
        assert found == pytest.approx(max(single), rel=1e-14)


def test_sweeps_leave_what_is_within_its_tolerance_or_has_no_curvature():
    A = np.diag([2.0, 2.0, 0.0, -1.0])
    limits = np.zeros(4), np.full(4, -np.inf), np.full(4, np.inf)
    u, slope = np.zeros(4), np.array([-1.0, -1.0, -1.0, -1.0])
    quadratic._descend(A, u, slope, *limits, np.array([1.0, 0.99, 0.0, 0.0]), 5, 0.0, 0.0)
    np.testing.assert_array_equal(u, [0.0, 0.5, 0.0, 0.0])
    np.testing.assert_array_equal(slope, [-1.0, 0.0, -1.0, -1.0])


def test_pairs_of_a_simplex_are_minimised_exactly():
    rng = np.random.default_rng(7)
    for _ in range(10):
        M = rng.standard_normal((9, 7))
        A, b = M.T @ M, 3.0 * rng.standard_normal(7)
        x = np.array([0.5, 0.0, 0.3, 0.6, 0.2, 0.4, -0.1])  # two simplices of three, an intercept
        u, slope = x.copy(), b + A @ x

        def value(u, A=A, b=b):
            return 0.5 * u @ A @ u + b @ u

        quadratic._descend_pairs(A, u, slope, np.full(7, 1e-13), 6, 2)
        np.testing.assert_allclose(slope, b + A @ u, atol=1e-11)
        assert value(u) < value(x)
        np.testing.assert_allclose(u[:6].reshape(3, 2).sum(axis=0), 1.0, rtol=1e-14)
        assert u[:6].min() >= 0.0
        assert abs(slope[6]) < 1e-11 * np.abs(b).max()


@pytest.mark.parametrize("tolerance", [1e-7, 0.05, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_weight_goes_where_it_promises_the_largest_decrease(seed, tolerance):
    """To the least slope, from wherever the minimum along the line through both is lowest."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((9, 5)) * 10.0 ** rng.uniform(-0.7, 0.3, 5)
    A, x, slope = M.T @ M, rng.dirichlet(np.ones(5)), rng.standard_normal(5)
    x[2], x[3] = 0.0, x[2] + x[3]
    tolerances = tolerance * rng.random(5)
    u, own = x.copy(), slope.copy()
    for _ in range(2 * 5):
        to = np.argmin(own + tolerances)
        excess = own - own[to]
        curvature = np.diag(A) + A[to, to] - 2.0 * A[to]
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.fmin(u, excess / curvature)
        decrease = np.where(excess > tolerances + tolerances[to], moved * excess, 0.0)
        decrease -= np.where(decrease > 0.0, 0.5 * curvature * moved**2, 0.0)
        source = np.argmax(decrease)
        if decrease[source] <= 0.0:
            break
        u[to] += moved[source]
        u[source] -= moved[source]
        own += moved[source] * (A[to] - A[source])
    found, found_slope = x.copy(), slope.copy()
    quadratic._descend_pairs(A, found, found_slope, tolerances, 5, 1)
    np.testing.assert_allclose(found, u, atol=1e-12)
    np.testing.assert_allclose(found_slope, own, atol=1e-11)


def test_the_free_coordinates_of_a_face_and_their_references():
    A = np.diag([4.0, 3.0, 2.0, 5.0, 1.0, 6.0, 1.0])
    lower, upper = np.r_[np.zeros(6), -np.inf], np.full(7, np.inf)

    def face(u, l1, upper, simplices):
        places, references = np.empty((2, 7), np.int64), np.empty(max(simplices, 1), np.int64)
        m = quadratic._face(
            np.array(u), np.array(l1), lower, upper, A, 6, simplices, references, *places
        )
        return places[:, :m].tolist()

    none = np.zeros(7)
    u = [0.5, 0.0, 0.3, 0.6, 0.2, 0.4, 0.0]
    assert face(u, none, upper, 0) == [[0, 2, 3, 4, 5, 6], [-1] * 6]
    # Two simplices: the least curvature among 0, 2, 4 is that of 4, among 3, 5 that of 3.
    assert face(u, none, upper, 2) == [[0, 2, 5, 6], [4, 4, 3, -1]]
    assert face(u, none, np.array([0.5, 1, 1, 0.5, 1, 1, np.inf]), 0) == [[2, 4, 5, 6], [-1] * 4]
    lower[:6] = -1.0
    assert face(u, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.1], upper, 0) == [[0, 1, 2, 3, 4, 5], [-1] * 6]


def test_the_system_of_a_face():
    rng = np.random.default_rng(8)
    M = rng.standard_normal((9, 5))
    A, slope, l1 = M.T @ M, rng.standard_normal(5), np.array([0.3, 0.0, 0.0, 0.2, 0.1])
    u = np.array([0.5, 0.1, 0.2, -0.5, 0.0])
    free, reference = np.array([0, 3, 2]), np.array([1, 1, -1])
    reduced, rhs = np.empty((3, 3)), np.empty(3)
    quadratic._reduce(A, u, slope, l1, free, reference, reduced, rhs)
    moves = np.zeros((5, 3))
    moves[free, range(3)] = 1.0
    moves[1, :2] = -1.0
    np.testing.assert_allclose(reduced, moves.T @ A @ moves)
    np.testing.assert_allclose(rhs, -moves.T @ slope - [0.3, -0.2, 0.0])
    for sign, ridge in [(1.0, 5.0), (-1.0, 2.0)]:
        A = sign * np.array([[2.0, 2.5], [2.5, 3.0]])
        reference = np.array([1 if sign > 0.0 else -1])
        quadratic._reduce(A, u, slope, l1, np.array([0]), reference, reduced, rhs)
        assert reduced[0, 0] == pytest.approx(RIDGE * ridge, rel=1e-14)


@pytest.mark.parametrize(
    ("u", "y", "expected"),
    [
        # The whole step fits; an infinite bound; a bound; the kink before it; the bound before it.
        ([0.5, 0.5, 0.5], [0.2, -0.2], (1.0, -1, 0.0)),
        ([0.5, 0.5, 0.5], [9e9, 0.0], (0.5 / 9e9, 2, 0.0)),
        ([0.5, 0.5, 0.5], [0.0, 3.0], (0.5, 1, 2.0)),
        ([0.5, 0.5, 0.5], [0.0, -1.0], (0.5, 1, 0.0)),
        ([0.5, 1.5, 0.5], [0.0, 1.0], (0.5, 1, 2.0)),
        ([0.5, -0.25, 0.5], [0.0, 1.0], (0.25, 1, 0.0)),
        ([0.5, -0.25, 0.5], [0.0, -3.0], (0.25, 1, -1.0)),
        ([-1.0, 0.5, 0.5], [0.25, -1.0], (0.5, 1, 0.0)),
        ([0.5, 0.5, 0.5], [0.5, 0.0], (1.0, 2, 0.0)),
        ([0.5, 0.5, 0.5], [-3.0, -1.0], (0.5, 1, 0.0)),
    ],
)
def test_where_a_step_leaves_its_face(u, y, expected):
    lower, upper = np.array([-np.inf, -1.0, 0.0]), np.array([np.inf, 2.0, np.inf])
    step = np.zeros(3)
    found = quadratic._breakpoint(
        np.array(u), np.array([0.0, 0.1, 0.0]), lower, upper, np.array([0, 1]), np.array([2, -1]),
        np.array(y), step,
    )  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-14)
    np.testing.assert_array_equal(step, [y[0], y[1], -y[0]])


def test_a_kink_beyond_a_bound_is_none():
    arguments = np.array([0.5]), np.array([0.1]), np.array([0.25]), np.array([2.0])
    places = np.array([0]), np.array([-1])
    found = quadratic._breakpoint(*arguments, *places, np.array([-1.0]), np.zeros(1))
    assert found == (0.25, 0, 0.25)


def test_a_bent_step_and_its_change():
    rng = np.random.default_rng(9)
    u, step = np.array([0.5, -0.5, 0.5, 0.0]), np.array([-1.0, 0.2, -0.2, 0.7])
    l1 = np.array([0.1, 0.1, 0.0, 0.0])
    bent = quadratic._bend(u, step, l1, ElasticNet(0.1, 0.1), 2, 1)
    np.testing.assert_allclose(bent, [0.0, -0.3, 0.3, 0.7])
    bent = quadratic._bend(u, step, np.zeros(4), Box(0.1, -0.2, 0.2), 2, 1)
    np.testing.assert_allclose(bent, [-0.2, -0.2, 0.3, 0.7])
    M = rng.standard_normal((5, 4))
    A, b = M.T @ M, rng.standard_normal(4)

    def value(x):
        return 0.5 * x @ A @ x + b @ x + l1 @ np.abs(x)

    change = quadratic._change(u, bent, b + A @ u, l1, A @ (bent - u))
    assert change == pytest.approx(value(bent) - value(u), rel=1e-12)


# Shares of a step at which the first border is reached; in stiff directions bent steps cost much.
reaches = pytest.mark.parametrize("reach", [1.5, 0.95, 0.7, 0.3, 0.02])
stiffness = pytest.mark.parametrize("stiff", [0.0, 100.0])


def large_face(seed, stiff, m=80):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((2 * m, m))
    v = rng.choice([-1.0, 1.0], m)
    A = M.T @ M / m + 0.1 * np.eye(m) + stiff * np.outer(v, v)
    return rng, A, quadratic._factor(A.copy())[0]


@reaches
@stiffness
@pytest.mark.parametrize("kinks", [False, True])
def test_one_step_on_a_large_face_is_the_better_of_two(kinks, stiff, reach):
    """Cut at the first border, or bent along all of them, by the values of the objective."""
    rng, A, factor = large_face(1, stiff)
    m = len(A)
    lower, upper = np.full(m, -1.0), np.full(m, 1.0)
    l1 = np.where(np.arange(m) % 2, 0.0, 0.3) * kinks
    x = rng.uniform(-0.9, 0.9, m)
    rhs = rng.standard_normal(m)  # with the slope of l1 in it

    def room(y):
        ahead = np.where(y > 0.0, 1.0 - x, x + 1.0) / np.abs(y)
        return np.where((l1 > 0.0) & (x * y < 0.0), np.minimum(ahead, np.abs(x / y)), ahead).min()

    rhs *= room(np.linalg.solve(A, rhs)) / reach
    y = np.linalg.solve(A, rhs)
    length = min(1.0, room(y))
    assert length == pytest.approx(min(1.0, reach), rel=1e-9)
    bent = x + y
    bent[(l1 > 0.0) & (bent * x <= 0.0)] = 0.0
    bent = np.clip(bent, -1.0, 1.0)

    def change(target):
        return -rhs @ (target - x) + 0.5 * (target - x) @ A @ (target - x)

    found, done = quadratic._minimize_on_large_face(A, factor, rhs, x, l1, lower, upper, np.inf)
    assert done
    if length == 1.0:
        np.testing.assert_allclose(found, x + y, rtol=1e-10)
        return
    assert change(found) == pytest.approx(min(change(bent), change(x + length * y)), rel=1e-10)
    nearest = min((bent, x + length * y), key=change)
    np.testing.assert_allclose(found, nearest, atol=1e-10)
    # That was enough of a gain, or it goes on, and never rises.
    gain = -change(nearest)
    for enough, last in ((1.0001 * gain, True), (0.9999 * gain, False)):
        other, done = quadratic._minimize_on_large_face(A, factor, rhs, x, l1, lower, upper, enough)
        # Not done where it is left for a smaller face.
        assert (done and np.array_equal(other, found)) is last
        assert change(other) <= change(found) + 1e-12
    other, done = quadratic._minimize_on_large_face(A, factor, rhs, x, l1, lower, upper, 0.0)
    if done:
        # Between the borders nothing is left to gain.
        inside = (np.abs(other) < 1.0) & ((l1 == 0.0) | (other != 0.0))
        left = A @ (other - x) - rhs
        np.testing.assert_allclose(left[inside], 0.0, atol=1e-9 * np.abs(rhs).max())
    assert done or reach < 0.1


@pytest.mark.parametrize(
    ("violations", "rounds"),
    [
        ([1e-3, quadratic._TOLERANCE, 1e-17], 2),
        ([1e-3, 1e-11, 0.9e-11, 0.8e-11, 0.7e-11, 0.6e-11, 1e-16], 6),
        ([1e-3, 1e-11, 1e-3, 1e-3, 1e-3, 1e-3, 1e-16], 6),
        ([1e-3, 1e-11, 1e-3, 1e-3, 0.4e-11, 1e-3, 1e-3, 1e-3, 1e-3, 1e-16], 9),
        ([1e-3, 0.9e-3, 0.8e-3, 0.7e-3, 0.6e-3, 0.55e-3, 0.52e-3, 1e-16], 8),
    ],
)
def test_rounds_end_when_solved_or_when_nearly_so_and_no_better(monkeypatch, violations, rounds):
    given, points = iter(violations), []

    def violation(u, *others):
        points.append(u.copy())
        return next(given)

    def elsewhere(A, u, *others):
        u += 2.0 ** -len(points)
        return 2, 10.0 ** -len(points)

    monkeypatch.setattr(quadratic, "_optimality", violation)
    monkeypatch.setattr(quadratic, "_descend", lambda *arguments: 0.0)
    monkeypatch.setattr(quadratic, "_minimize_on_face", elsewhere)
    u, info = minimize_quadratic(np.eye(3), np.ones(3), np.zeros(3), NonNegative(0.1), 3)
    assert len(points) == rounds
    best = int(np.argmin(violations[:rounds]))
    np.testing.assert_array_equal(u, points[best])
    assert info == (2 * (rounds - 1), violations[best], 0.1)


@pytest.mark.parametrize("name", ["elastic", "nonnegative", "box", "simplex"])
def test_violations_are_measured_against_the_terms_of_a_slope(monkeypatch, name):
    H, gradient, w = model(np.random.default_rng(10), 5)
    penalty, l2 = make_penalty(name, 0.7), 0.7
    seen, own = [], quadratic._optimality

    def violation(u, slope, l1, lower, upper, size, *others):
        seen.append((u.copy(), slope.copy(), size.copy(), l1.copy()))
        return own(u, slope, l1, lower, upper, size, *others)

    monkeypatch.setattr(quadratic, "_optimality", violation)
    minimize_quadratic(H, gradient, w, penalty, 4)
    lead = np.arange(5) < 4
    A = H + l2 * np.diag(lead)
    root = np.sqrt(np.diag(A))
    for u, slope, size, l1 in seen:
        np.testing.assert_allclose(slope, gradient + A @ (u - w) + l2 * lead * w, atol=1e-12)
        terms = root * (root @ np.maximum(np.abs(u - w), np.abs(u))) + l2 * lead * np.abs(u)
        np.testing.assert_allclose(size, np.abs(gradient) + l1 + terms)
        assert np.all(l1 == 0.1 * lead) if name == "elastic" else not l1.any()


@pytest.mark.parametrize(
    ("share", "shift", "left"),
    [
        # A tenth is left each time: one refinement, or eight with a shifted factor.
        (0.9, 0.0, 0.1**2),
        (0.9, 1e-10, 0.1**9),
        # Where it makes things worse it is not taken.
        (2.5, 0.0, -1.5),
        (2.5, 1e-10, -1.5),
    ],
)
def test_what_a_linear_system_leaves_is_worked_off(monkeypatch, share, shift, left):
    p = quadratic.FEW + 3
    H, gradient, w = model(np.random.default_rng(11), p)
    A = H + 0.3 * np.diag(np.arange(p) < p - 1)
    monkeypatch.setattr(quadratic, "_factor", lambda A: (None, shift))
    monkeypatch.setattr(
        quadratic, "dpotrs", lambda factor, b, lower: (share * np.linalg.solve(A, b), 0)
    )
    u, info = minimize_quadratic(H, gradient, w, L2(0.3), p - 1)
    slope = gradient + 0.3 * np.where(np.arange(p) < p - 1, w, 0.0)
    exact = -np.linalg.solve(A, slope)
    np.testing.assert_allclose(exact - (u - w), left * exact, rtol=1e-4)
    assert info.n_iter == 1
    assert info.shift == shift
    assert info.kkt == pytest.approx(_relative_size(left * slope, slope, u - w, A), rel=1e-3)


@pytest.mark.parametrize("name", ["elastic", "nonnegative"])
@pytest.mark.parametrize("p", [quadratic._MANY_FREE, quadratic._MANY_FREE - 1])
def test_a_rough_minimum_ends_where_a_round_gains_little(monkeypatch, name, p):
    """By the values of the objective; with few parameters none is rough."""
    rough, penalty = 0.1, make_penalty(name, 0.2)
    H, gradient, w = np.eye(p), np.full(p, -1.0), np.full(p, 0.1)
    places = iter([0.4, 0.6, 0.65, 0.66, 0.67, 0.68])
    points, swept, enough = [], [], []

    def violation(u, *others):
        points.append(u.copy())
        return 1e-3 * len(points) if len(points) < 6 else 0.0

    def descend(A, u, slope, l1, lower, upper, tolerance, sweeps, slow, gained):
        swept.append((sweeps, slow, gained))
        return 0.7

    def elsewhere(A, u, *others):
        enough.append(others[-1])
        u[:] = next(places)
        return 1, 0.0

    monkeypatch.setattr(quadratic, "_optimality", violation)
    monkeypatch.setattr(quadratic, "_descend", descend)
    monkeypatch.setattr(quadratic, "_minimize_on_face", elsewhere)
    u, _ = minimize_quadratic(H, gradient, w, penalty, p, rough=rough)
    if p < quadratic._MANY_FREE:
        assert len(points) == 6
        assert swept == [(quadratic._SWEEPS, 0.0, 0.0)] * 5
        assert enough == [0.0] * 5
        return
    values = [objective(u, H, gradient, w, penalty, p) for u in points]
    gained = values[0] - np.array(values)
    little = [k for k in range(1, len(points)) if gained[k] - gained[k - 1] <= rough * gained[k]]
    # The point of the last round, though others had smaller violations.
    assert little == [len(points) - 1]
    assert 2 < len(points) < 6
    np.testing.assert_array_equal(u, points[-1])
    for k, (sweeps, slow, before) in enumerate(swept):
        assert sweeps == quadratic._ROUGH_SWEEPS
        assert slow == pytest.approx(quadratic._SLOW * rough, rel=1e-14)
        assert before == pytest.approx(gained[k], abs=1e-12)
    np.testing.assert_allclose(enough, rough * (gained[: len(enough)] + 0.7), rtol=1e-12)


def test_which_faces_count_as_large(monkeypatch):
    """Those of many free coordinates."""
    called, own = [], quadratic._minimize_on_large_face

    def record(*arguments):
        called.append(len(arguments[0]))
        return own(*arguments)

    monkeypatch.setattr(quadratic, "_minimize_on_large_face", record)
    rng = np.random.default_rng(12)
    for p in (quadratic._MANY_FREE - 1, quadratic._MANY_FREE):
        called.clear()
        H, w = np.eye(p), np.full(p, 1.0 / p)
        gradient = 0.01 / p * rng.standard_normal(p)
        u, _ = minimize_quadratic(H, gradient, w, NonNegative(0.01), p)
        assert u.min() > 0.0
        assert called == ([p] if p == quadratic._MANY_FREE else [])


def test_what_a_factor_leaves_of_a_whole_step_is_worked_off(monkeypatch):
    """A tenth is left by one solution, and a hundredth by two."""
    rng, A, factor = large_face(3, 0.0)
    m = len(A)
    monkeypatch.setattr(
        quadratic._Held, "solve", lambda self, right: 0.9 * np.linalg.solve(A, right)
    )
    rhs = 1e-3 / m * rng.standard_normal(m)
    x = np.full(m, 1.0 / (m + 1))
    one = np.ones(m)
    found, done = quadratic._minimize_on_large_face(
        A, factor, rhs, x, 0.0 * one, 0.0 * one, one, 0.0
    )
    assert done
    np.testing.assert_allclose(found - x, 0.99 * np.linalg.solve(A, rhs), rtol=1e-9)


def test_step_of_few_promises_what_the_model_gives() -> None:
    rng = np.random.default_rng(0)
    for p in (1, 2, 5, 24):
        A = rng.standard_normal((p, p + 2))
        H, gradient, w = A @ A.T, rng.standard_normal(p), rng.standard_normal(p)
        n_penalized, l2 = max(1, p - 1), 0.3
        penalised = np.arange(p) < n_penalized
        found = step_of_few(H, gradient, w, l2, n_penalized)
        assert found is not None
        step, descent, decrease = found
        expected = np.linalg.solve(H + l2 * np.diag(penalised), -gradient - l2 * penalised * w)
        np.testing.assert_allclose(step, expected, rtol=1e-9, atol=1e-12)
        u = w + step
        gain = 0.5 * l2 * (w[penalised] @ w[penalised] - u[penalised] @ u[penalised])
        assert descent == pytest.approx(gain - gradient @ step, rel=1e-9)
        assert decrease == pytest.approx(gain - gradient @ step - 0.5 * step @ H @ step, rel=1e-9)


def test_step_of_few_declines_what_it_cannot_do() -> None:
    assert step_of_few(np.eye(25), np.ones(25), np.zeros(25), 1.0, 25) is None
    assert step_of_few(np.zeros((2, 2)), np.ones(2), np.zeros(2), 0.0, 2) is None
    assert step_of_few(np.full((1, 1), np.nan), np.ones(1), np.zeros(1), 1.0, 1) is None
