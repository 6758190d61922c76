"""Newton steps from the rows that have curvature, against the p x p system."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel.models.row_systems import RowSystem, Weights, _Root


def wide(n=30, d=120, loss="squared", seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) / np.sqrt(d) + rng.standard_normal(n)
    return X, z if loss == "squared" else np.where(z > 0.0, 1.0, -1.0)


def homes(X):
    return {
        "C": X,
        "F": np.asfortranarray(X),
        "float32": X.astype(np.float32),
        "sparse": scipy.sparse.csr_array(X),
    }


@pytest.mark.parametrize("blocks", [0, 1, 4])
@pytest.mark.parametrize("intercept", [False, True])
def test_system_of_the_rows_solves_that_of_the_columns(blocks, intercept):
    rng = np.random.default_rng(blocks)
    r, d, eta, l2 = 20, 35, 3.0, 0.01
    A, omega, slope = rng.standard_normal((r, d)), rng.random(r), rng.standard_normal(r)
    block = rng.integers(-1, blocks, r).astype(np.int32) if blocks else np.full(r, -1, np.int32)
    h = omega * (0.1 + rng.random(r) + eta * slope**2 * (block >= 0))
    pull = omega * slope * (block >= 0)
    scale = np.array([eta / omega[block == b].sum() for b in range(blocks)])
    C = np.diag(h)
    for b in range(blocks):
        inside = pull * (block == b)
        C -= scale[b] * np.outer(inside, inside)
    g, derivative = rng.standard_normal(d), 0.7 if intercept else None
    system = RowSystem(A @ A.T, Weights(h, pull, block, scale), l2)
    t, b = system.solve(A @ g, derivative)
    step = np.append(-(g - A.T @ t) / l2, b)
    full = np.column_stack([A, np.ones(r)])
    hessian = full.T @ C @ full + np.diag([l2] * d + [0.0])
    gradient = np.append(g, 0.7)
    if not intercept:
        hessian, gradient, step = hessian[:d, :d], g, step[:d]
    np.testing.assert_allclose(hessian @ step, -gradient, atol=1e-9)


def test_an_intercept_in_which_nothing_bends_is_refused():
    # One row in one block: its weight cannot move, and the loss itself is flat.
    h, pull = np.array([2.0]), np.array([1.0])
    weights = Weights(h, pull, np.zeros(1, np.int32), np.array([2.0]))
    system = RowSystem(np.ones((1, 1)), weights, 0.1)
    with pytest.raises(np.linalg.LinAlgError, match="do not bend"):
        system.solve(np.ones(1), 1.0)


def test_a_matrix_that_is_not_finite_is_refused():
    none = np.zeros(1), np.array([-1], np.int32), np.zeros(0)
    with pytest.raises(np.linalg.LinAlgError, match="1 x 1"):
        RowSystem(np.full((1, 1), np.nan), Weights(np.ones(1), *none), 0.1)


@pytest.mark.parametrize("home", ["C", "F", "float32", "sparse"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("loss", "risk"), [("squared", "cvar:0.3"), ("logistic", "esrm:2")])
def test_engines_solve_by_rows(home, intercept, loss, risk):
    X, y = wide(loss=loss)
    problem = sorel.Problem(homes(X)[home], y, risk=risk, loss=loss, fit_intercept=intercept)
    engine = problem.engine.for_run()
    point = engine.point(0.1 * np.random.default_rng(1).standard_normal(engine.shape))
    dual = engine.dual_step(engine.uniform(), point, 0.5)
    curvature = engine.curvature(point, dual, 0.5)
    assert curvature.rows is not None
    gradient = engine.gradient(point, dual)
    matrix = engine.curvature(point, dual, 0.5).matrix() + np.diag(problem.modulus())
    step = curvature.solve(gradient, problem.penalty.l2)
    size = np.abs(gradient).max()
    np.testing.assert_allclose(matrix @ step, -gradient, atol=1e-6 * size)


def test_rows_without_curvature():
    """The step is that of the penalty alone; an intercept is then held by nothing."""
    X, y = np.array([[3.0, 1.0], [-4.0, 0.0], [5.0, 2.0]]), [1, -1, 1]
    for intercept in (False, True):
        problem = sorel.Problem(X, y, loss="squared_hinge", fit_intercept=intercept)
        engine = problem.engine
        w = np.zeros(engine.shape)
        w[0] = 1.0
        curvature = engine.curvature(engine.point(w), engine.uniform())
        assert curvature.rows == 0
        if intercept:
            with pytest.raises(np.linalg.LinAlgError, match="curvature"):
                curvature.solve(w, 0.5)
        else:
            np.testing.assert_array_equal(curvature.solve(w, 0.5), -2.0 * w)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("home", ["C", "sparse"])
@pytest.mark.parametrize(("loss", "risk"), [("squared", "cvar:0.2"), ("logistic", "esrm:2")])
def test_newton_with_more_columns_than_rows(home, intercept, loss, risk):
    X, y = wide(60, 400, loss)
    problem = sorel.Problem(homes(X)[home], y, risk=risk, loss=loss, fit_intercept=intercept)
    result = sorel.solve(problem, "newton", tol=1e-9)
    assert result.converged, result.status
    other = sorel.solve(problem, "newton_cg", tol=1e-7, max_passes=5000)
    assert result.objective <= other.objective + result.gap
    assert other.dual <= result.objective


def test_newton_beyond_the_largest_matrix_of_columns():
    X, y = wide(40, 6000)
    problem = sorel.Problem(X, y, risk="cvar:0.2", penalty=sorel.L2(1e-2))
    result = sorel.solve(problem, "newton", tol=1e-8)
    assert result.converged, result.status
    # Dual feasibility by hand: lam is a weighting of CVaR(0.2), and w minimises lam . l + g.
    lam, residual = result.weights, X @ result.w - y
    assert lam.max() <= 1.0 / (0.2 * 40) + 1e-12
    assert lam.sum() == pytest.approx(1.0)
    gradient = X.T @ (lam * residual) + 1e-2 * result.w
    assert np.linalg.norm(gradient) <= 1e-3 * np.linalg.norm(1e-2 * result.w)


@pytest.mark.parametrize("mixed", [False, True])
def test_auto_goes_on_from_products_to_a_matrix_where_these_are_many(mixed):
    """Scales of columns are made good by a diagonal; those of other directions are not."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 300)) * np.geomspace(1.0, 1e-3, 300)
    if mixed:
        X = X @ np.linalg.qr(rng.standard_normal((300, 300)))[0]
    y = X @ rng.standard_normal(300) + 0.1 * rng.standard_normal(900)
    problem = sorel.Problem(X, y, risk="cvar:0.5", penalty=sorel.L2(1e-8))
    result = sorel.solve(problem, tol=1e-8)
    assert result.converged, result.status
    assert ("newton_cg then newton" in result.status) == mixed, result.status
    other = sorel.solve(problem, "newton", tol=1e-8)
    assert abs(other.objective - result.objective) <= 2e-8 * result.objective


@pytest.mark.parametrize("full", [0.0, 0.5, 1.0])
def test_a_root_of_the_weights(full):
    """B B^T = diag(h) less a share of what would make a block singular, and its uses."""
    rng = np.random.default_rng(5)
    h, pull = rng.uniform(0.5, 2.0, 7), rng.standard_normal(7)
    block = np.array([0, 0, -1, 1, 1, 1, -1], dtype=np.int32)
    pull[block < 0] = 0.0
    most = np.bincount(block + 1, pull**2 / h)[1:]
    scale = full / most
    C = np.diag(h)
    for b in range(2):
        inside = np.where(block == b, pull, 0.0)
        C -= scale[b] * np.outer(inside, inside)
    root = _Root(Weights(h, pull, block, scale))
    B = np.column_stack([root.times(column) for column in np.eye(7)])
    np.testing.assert_allclose(B @ B.T, C, atol=1e-12)
    np.testing.assert_allclose(np.column_stack([root.adjoint(c) for c in np.eye(7)]), B.T)
    M = rng.standard_normal((9, 7))
    K = M.T @ M
    np.testing.assert_allclose(root.congruent(K.copy()), B.T @ K @ B, atol=1e-12)
