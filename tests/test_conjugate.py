"""Conjugate gradients on the quadratic model of a Newton step."""

from types import SimpleNamespace

import numpy as np
import pytest

from sorel.models.conjugate import minimize_model


def curvature_of(H, share=1.0):
    return SimpleNamespace(
        share=share,
        product=lambda v: H @ v,
        preconditioner=lambda modulus: lambda v: v / (np.diag(H) + modulus),
    )


def test_conjugate_gradients():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((12, 6))
    H, modulus, gradient = A.T @ A, np.array([0.5] * 5 + [0.0]), rng.standard_normal(6)
    full = H + np.diag(modulus)
    scale = 1.0 / np.diag(full)
    seen = []

    def enough(left, decrease, residual):
        seen.append((left, decrease, residual.copy()))
        return len(seen) > 3

    found = minimize_model(curvature_of(H, 0.25), modulus, gradient, enough=enough, max_products=50)
    assert (found.products, found.reached) == (3, True)
    # Three products of a quarter of the rows, and as much for the preconditioner.
    assert found.passes == pytest.approx(1.0)
    step = found.step
    assert found.decrease == pytest.approx(-(0.5 * step @ full @ step + gradient @ step))
    left, decrease, residual = seen[-1]
    np.testing.assert_allclose(residual, -gradient - full @ step)
    assert decrease == found.decrease
    assert left == pytest.approx((residual**2 @ scale) / (gradient**2 @ scale))
    # The best of all steps in the space of three products.
    basis = [scale * gradient]
    for _ in range(2):
        basis.append(scale * (full @ basis[-1]))
    B = np.array(basis).T
    best = -B @ np.linalg.solve(B.T @ full @ B, B.T @ gradient)
    np.testing.assert_allclose(step, best, rtol=1e-8)


def test_where_conjugate_gradients_end():
    H, none = np.eye(2), np.zeros(2)

    def never(left, decrease, residual):
        return False

    found = minimize_model(curvature_of(H), none, none, enough=never, max_products=9)
    assert (found.products, found.reached, found.decrease) == (0, True, 0.0)
    rng = np.random.default_rng(1)
    A = rng.standard_normal((40, 40))
    H, gradient = A @ A.T + 1e-6 * np.eye(40), rng.standard_normal(40)
    for most, products in ((7, 7), (1000, 90)):
        start = np.zeros(40)
        found = minimize_model(curvature_of(H), start, gradient, enough=never, max_products=most)
        assert (found.products, found.reached) == (products, False)
    # A matrix without curvature along the gradient has no minimum to go to.
    flat = SimpleNamespace(share=0.5, product=lambda v: 0.0 * v)
    found = minimize_model(flat, none, np.ones(2), enough=never, max_products=9,
                           precondition=lambda v: v)  # fmt: skip
    assert (found.products, found.reached, found.passes) == (1, False, 0.5)
    np.testing.assert_array_equal(found.step, none)
