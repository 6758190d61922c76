"""Quadratic models under penalties known by their proximal maps, against the active-set method."""

from __future__ import annotations

import numpy as np
import pytest
from own_penalties import Ball, GroupLasso, Pseudohuber

from sorel.models.quadratic import minimize_quadratic
from sorel.penalties import Box, ElasticNet, NonNegative, Penalty, Simplex


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


def test_refuses_what_is_not_finite():
    H, gradient, w = model("plain", 4)
    gradient[1] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        minimize_quadratic(H, gradient, w, GroupLasso(0.1, 0.1, [0, 0, 1, 1]), 4)
