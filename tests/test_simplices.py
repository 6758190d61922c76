"""Quadratics over large simplices: against their optimality conditions and a conic solver."""

from __future__ import annotations

import numpy as np
import pytest

from sorel import quadratic, simplices
from sorel.penalties import Simplex
from sorel.quadratic import minimize_quadratic
from sorel.simplices import minimize_on_simplices

counts = pytest.mark.parametrize("k", [1, 3])


def large_model(seed, d, k, intercepts=0, rank=None, spread=0.0, l2=1e-4):
    """Curvature, slope at zero, an even start and the number of its coefficients."""
    rng = np.random.default_rng(seed)
    p = d * k + intercepts
    M = rng.standard_normal((rank or 2 * p, p)) + rng.standard_normal((rank or 2 * p, 1))
    M *= 10.0 ** rng.uniform(-spread, spread, p)
    A = M.T @ M / len(M)
    A[np.arange(d * k), np.arange(d * k)] += l2
    slope = 0.1 * M.T @ rng.standard_normal(len(M)) / np.sqrt(len(M))
    return A, slope, np.append(np.full(d * k, 1.0 / d), np.zeros(intercepts)), d * k


def violation(A, slope, u, n, k):
    """How far u is from optimal: slopes agree on a support and are larger elsewhere."""
    assert u[:n].min() >= 0.0
    np.testing.assert_allclose([u[j:n:k].sum() for j in range(k)], 1.0, rtol=1e-12)
    own = slope + A @ u
    size = np.abs(slope) + np.abs(A) @ np.abs(u)
    worst = float(np.max(np.abs(own[n:]) / size[n:], initial=0.0))
    for j in range(k):
        part, free = own[j:n:k], u[j:n:k] > 0.0
        common = np.median(part[free])
        off = np.where(free, np.abs(part - common), np.maximum(common - part, 0.0))
        worst = max(worst, float((off / size[j:n:k]).max()))
    return worst


@counts
@pytest.mark.parametrize("rank", [None, 40])
@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_the_minimiser_fulfils_the_conditions(spread, rank, k):
    for seed in range(5):
        A, slope, u, n = large_model(seed, 120 // k, k, intercepts=k, rank=rank, spread=spread)
        before = A.copy(), slope.copy()
        settled, count = minimize_on_simplices(A, slope, u, n, k)
        assert settled
        assert count <= simplices._GUESSES + simplices._STEPS
        assert violation(A, slope, u, n, k) <= 1e-12
        np.testing.assert_array_equal(before[0], A)
        np.testing.assert_array_equal(before[1], slope)


@counts
def test_against_a_conic_solver(k):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    A, slope, u, n = large_model(3, 60, k, rank=50, spread=1.0)
    assert minimize_on_simplices(A, slope, u, n, k)[0]
    x = cp.Variable(n)
    value = slope @ x + 0.5 * cp.quad_form(x, cp.psd_wrap(A))
    sums = [cp.sum(x[j::k]) == 1.0 for j in range(k)]
    best = cp.Problem(cp.Minimize(value), [x >= 0.0, *sums]).solve(solver=cp.CLARABEL)
    assert slope @ u + 0.5 * u @ A @ u == pytest.approx(best, rel=1e-6)


def test_guesses_that_run_in_circles_are_followed_by_steps_from_inside():
    circles = 0
    for seed in range(8):
        A, slope, u, n = large_model(seed, 40, 3, rank=60, spread=2.0)
        settled, count = simplices._guess(simplices._Model(A, slope, n, 3), u.copy())
        circles += not settled
        done, total = minimize_on_simplices(A, slope, u, n, 3)
        assert done
        assert total == count if settled else total > count + 2
        assert violation(A, slope, u, n, 3) <= 1e-12
    assert circles >= 3


@counts
@pytest.mark.parametrize("intercept", [False, True])
def test_steps_from_inside_come_close_by_themselves(k, intercept):
    for seed in range(5):
        A, slope, u, n = large_model(seed, 150 // k, k, intercept * k, rank=60, spread=1.0)
        best = u.copy()
        assert minimize_on_simplices(A, slope, best, n, k)[0]
        model = simplices._Model(A, slope, n, k)
        inside, steps = simplices._from_inside(model, u)
        # Newton-like: a few digits with every step.
        assert steps <= 15
        assert inside[:n].min() >= 0.0
        np.testing.assert_allclose([inside[j:n:k].sum() for j in range(k)], 1.0, rtol=1e-12)
        assert model.value(inside) - model.value(best) <= 1e-6 * (
            model.value(u) - model.value(best)
        )
        # Nearly the same coefficients are zero.
        differs = (inside[:n] > 0.0) != (best[:n] > 0.0)
        assert np.count_nonzero(differs) <= 2


def test_classes_may_share_what_no_loss_sees():
    """Intercepts of classes: their common part has no curvature, and stays a number."""
    rng = np.random.default_rng(4)
    d, k = 40, 3
    X = np.append(rng.standard_normal((200, d)), np.ones((200, 1)), axis=1)
    shares = rng.dirichlet(np.ones(k), 200)
    curvature = np.einsum("ia,ab->iab", shares, np.eye(k)) - np.einsum("ia,ib->iab", shares, shares)
    A = np.einsum("ij,iab,il->jalb", X, curvature, X, optimize=True).reshape((d + 1) * k, -1) / 200
    n = d * k
    A[np.arange(n), np.arange(n)] += 1e-3
    slope = np.append(0.02 * rng.standard_normal(n), rng.standard_normal(k))
    slope[n:] -= slope[n:].mean()
    u = np.append(np.full(n, 1.0 / d), np.zeros(k))
    assert minimize_on_simplices(A, slope, u, n, k)[0]
    assert np.abs(u[n:]).max() < 1e3
    own = slope + A @ u
    assert np.abs(own[n:]).max() <= 1e-12
    assert violation(A, slope, u, n, k) <= 1e-8


def large_simplex(seed, d=150, intercept=True):
    """A model around a point of a simplex, with a minimiser of which most entries are not 0."""
    rng = np.random.default_rng(seed)
    p = d + intercept
    M = rng.standard_normal((3 * d, p))
    gradient = 0.003 * rng.standard_normal(p)
    w = np.append(rng.dirichlet(np.ones(d)), np.zeros(int(intercept)))
    return M.T @ M / (3 * d), gradient, w, Simplex(1e-3), d


@pytest.mark.parametrize("seed", range(8))
def test_faces_one_by_one_lead_to_the_same(seed, monkeypatch):
    model = large_simplex(seed, intercept=seed % 2 == 0)
    monkeypatch.setattr(quadratic, "minimize_on_simplices", lambda *arguments: (False, 0))
    slow, _ = minimize_quadratic(*model)
    monkeypatch.undo()

    def never(*arguments):
        raise AssertionError("the support was not found")

    monkeypatch.setattr(quadratic, "_minimize_on_face", never)
    quick, info = minimize_quadratic(*model)
    assert quadratic._MANY_FREE < np.count_nonzero(slow[: model[-1]]) < model[-1]
    assert info.kkt <= quadratic._TOLERANCE
    np.testing.assert_allclose(quick, slow, rtol=0.0, atol=1e-13)


def test_a_point_nearer_to_the_minimiser_is_taken_along(monkeypatch):
    """What steps from inside have found is not lost where no guess settles."""
    model = large_simplex(5)
    best, _ = minimize_quadratic(*model)
    own = simplices._guess
    monkeypatch.setattr(simplices, "_guess", lambda *arguments: (False, 1))
    starts, face = [], quadratic._minimize_on_face

    def record(A, u, slope, *rest):
        starts.append(np.abs(u - best).max())
        expected = A @ (u - model[2]) + model[1] + 1e-3 * np.append(model[2][:-1], 0.0)
        np.testing.assert_allclose(slope, expected, atol=1e-14)
        return face(A, u, slope, *rest)

    monkeypatch.setattr(quadratic, "_minimize_on_face", record)
    found, info = minimize_quadratic(*model)
    assert starts[0] < 1e-6
    assert info.kkt <= quadratic._TOLERANCE
    np.testing.assert_allclose(found, best, rtol=0.0, atol=1e-13)
    # And a worse one is not.
    monkeypatch.setattr(simplices, "_from_inside", lambda model, u: (np.eye(1, len(u))[0], 1))
    A, slope, u, n = large_model(0, 80, 1)
    before = u.copy()
    assert minimize_on_simplices(A, slope, u, n, 1) == (False, 3)
    np.testing.assert_array_equal(u, before)
    monkeypatch.setattr(simplices, "_from_inside", lambda model, u: (None, 1))
    assert minimize_on_simplices(A, slope, u, n, 1) == (False, 2)
    monkeypatch.setattr(simplices, "_guess", own)
    assert minimize_on_simplices(A, slope, u, n, 1)[0]


@pytest.mark.parametrize(("name", "value"), [("_GUESSES", 1), ("_NO_BETTER", 0), ("_FEWER", 0.0)])
def test_guesses_that_do_not_settle_change_nothing(name, value, monkeypatch):
    A, slope, u, n = large_model(5, 150, 1)
    model, before = simplices._Model(A, slope, n, 1), u.copy()
    best = u.copy()
    assert simplices._guess(model, best)[0]
    if name == "_FEWER":
        # One change at a time is slow, but gets there.
        monkeypatch.setattr(simplices, "_MORE", 0.0)
        monkeypatch.setattr(simplices, "_GUESSES", 1000)
        monkeypatch.setattr(simplices, "_NO_BETTER", 1000)
    monkeypatch.setattr(simplices, name, value)
    settled, count = simplices._guess(model, u)
    assert settled == (name == "_FEWER")
    if settled:
        assert count > 20
        np.testing.assert_allclose(u, best, rtol=0.0, atol=1e-13)
        return
    # Without a guess that is better than none, the first one is the last.
    assert count == 1
    np.testing.assert_array_equal(u, before)


def test_guesses_and_steps_end_where_there_is_no_factor_or_no_number():
    d = 80
    u, slope = np.full(d, 1.0 / d), np.linspace(-1.0, 1.0, d)
    indefinite = simplices._Model(-np.eye(d), slope, d, 1)
    overflows = simplices._Model(1e-300 * np.eye(d), 1e300 * slope, d, 1)
    assert simplices._guess(indefinite, u) == (False, 1)
    assert simplices._guess(overflows, u) == (False, 1)
    strongly = simplices._Model(-1e6 * np.eye(d), slope, d, 1)
    assert simplices._from_inside(strongly, u) == (None, 1)
    nowhere = u * [[0.0], [1.0]]
    # A simplex without any support has no guess.
    assert simplices._guess(simplices._Model(np.eye(2 * d), np.ones(2 * d), 2 * d, 2),
                            nowhere.T.ravel().copy()) == (False, 1)  # fmt: skip
    np.testing.assert_array_equal(u, 1.0 / d)
