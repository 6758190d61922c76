"""The quadratic subproblem against enumeration of faces, a conic solver and its own KKT system."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sorel.models.quadratic import (
    QuadraticInfo,
    minimize_quadratic,
    step_of_few,
)
from sorel.penalties import L2, Box, ElasticNet, NonNegative, Penalty, Simplex

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
@pytest.mark.parametrize(("d", "outputs", "intercept"), [(12, 1, 1), (7, 3, 1)])
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
@pytest.mark.parametrize("kind", ["scaled", "deficient", "correlated", "hilbert"])
def test_every_coordinate_is_optimal_on_its_own_scale(name, kind):
    """Columns over twelve decades, fewer rows than columns, and columns that are all but equal."""
    p, rng = 25, np.random.default_rng(9)
    H, gradient, w = model(rng, p, 5 if kind == "deficient" else None, 6.0 * (kind == "scaled"))
    if kind in ("correlated", "hilbert"):
        X = 1.0 / (np.arange(2 * p)[:, None] + np.arange(p) + 1.0)
        if kind == "correlated":
            X = 0.1 * np.cumsum(rng.standard_normal((2 * p, p)), axis=1)
            X += 10.0 * rng.standard_normal((2 * p, 1))
        H, gradient = X.T @ X / len(X), X.T @ rng.standard_normal(len(X)) / len(X)
    penalty = make_penalty(name, 1e-6, l1=0.01 * np.abs(gradient).max())
    u, info = minimize_quadratic(H, gradient, w, penalty, p - 1)
    assert info.kkt <= EXACT
    assert info.shift == 0.0
    assert kkt_violation(u, H, gradient, w, penalty, p - 1) <= EXACT


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


def test_refuses_indefinite_curvature():
    H = np.array([[1.0, 5.0], [5.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError, match="not positive semidefinite"):
        minimize_quadratic(H, np.ones(2), np.zeros(2), L2(0.1), 2)


@pytest.mark.parametrize("scale", [0.0, 2.0])
@pytest.mark.parametrize("rows", [60, 400])
@pytest.mark.parametrize("name", ["elastic", "nonnegative", "box"])
def test_many_coordinates_come_to_rest_on_one_face(name, rows, scale):
    # More free coordinates than are factorised anew each time, and most of them do not stay free.
    H, gradient, w = model(np.random.default_rng(3), 201, rows, scale)
    penalty = make_penalty(name, 1e-3, 0.3)
    u, _ = minimize_quadratic(H, gradient, w, penalty, 200)
    assert kkt_violation(u, H, gradient, w, penalty, 200) <= EXACT
    assert 0 < np.count_nonzero((u[:200] != 0.0) & (np.abs(u[:200] + 0.05) != 0.25)) < 200


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
