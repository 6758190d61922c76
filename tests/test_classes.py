"""Several classes: products with X, the preconditioner, and what the solvers make of them."""

import numpy as np
import pytest
import scipy.sparse
from contract import parameters

import sorel
from sorel.engines import intercepts
from sorel.engines.curvature import row_spectrum
from sorel.engines.kronecker import KroneckerPreconditioner, Spectrum

K = 4

HOMES = {
    "C": np.ascontiguousarray,
    "float32 F": lambda X: np.asfortranarray(X, np.float32),
    "sparse": scipy.sparse.csr_array,
}


def data(n=60, d=5, classes=K, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    # Numbers that float32 holds as well.
    X = X.astype(np.float32).astype(np.float64)
    margins = X @ rng.standard_normal((d, classes)) + rng.gumbel(size=(n, classes))
    y = margins.argmax(axis=1)
    y[:classes] = np.arange(classes)
    return X, y


def make(X, y, *, risk="mean", weight=None, intercept=True, penalty=None):
    return sorel.Problem(
        X, y, risk=risk, loss="multinomial", penalty=penalty or sorel.L2(0.01),
        fit_intercept=intercept, sample_weight=weight,
    )  # fmt: skip


def test_the_preconditioner_stays_positive_where_nothing_has_curvature():
    solve = KroneckerPreconditioner(Spectrum(np.zeros(2), None), np.diag([1.0, 2.0, 0.0, 0.0]), 0.0)
    R = np.ones((2, K))
    np.testing.assert_allclose(solve(R), R, rtol=1e-12)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("eta", [0.0, 0.7])
def test_the_preconditioner_is_made_of_the_means_of_rows_and_classes(home, intercept, eta):
    X, y = data()
    weight = np.random.default_rng(1).uniform(0.2, 2.0, len(y)) if intercept else None
    engine = make(HOMES[home](X), y, risk="esrm:2", weight=weight, intercept=intercept).engine
    omega = engine.weights(engine.uniform())
    point = engine.point(parameters(engine))
    dual = engine.dual_step(engine.uniform(), point, 0.7)
    loss, margins = sorel.losses.Multinomial(), np.asarray(point.margins)
    slopes = loss.derivative(y, margins)
    classes = np.einsum("i,iab->ab", omega * dual.density, loss.curvature(y, margins))
    if eta > 0.0:
        classes += eta * (slopes * (omega * (dual.derivative.block >= 0))[:, None]).T @ slopes
    full = np.column_stack([X, np.ones(len(X))]) if intercept else X
    G = full.T @ (omega[:, None] * full)
    R = parameters(engine, 8)
    expected = np.linalg.solve(np.kron(G, classes) + 0.01 * np.eye(R.size), R.ravel())
    found = engine.curvature(point, dual, eta).preconditioner(np.full(engine.shape, 0.01))(R)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("home", ["C", "sparse"])
def test_many_columns_leave_the_rows_their_diagonal(home):
    X, y = data(n=20, d=60)
    engine = make(HOMES[home](X), y).engine
    values, vectors = row_spectrum(engine)
    assert vectors is None
    np.testing.assert_allclose(values, np.r_[(X**2).mean(axis=0), 1.0], rtol=1e-12)


@pytest.mark.parametrize("risk", ["mean", "cvar:0.3"])
def test_what_all_classes_have_in_common_is_penalised_away(risk):
    problem = make(*data(), risk=risk)
    start = 3.0 + parameters(problem.engine)
    result = sorel.solve(problem, solver="newton_cg", tol=1e-10, w0=start)
    assert result.converged
    np.testing.assert_allclose(result.w.sum(axis=1), 0.0, atol=1e-4)


def test_a_class_for_almost_every_row():
    problem = make(*data(n=60, d=3, classes=40), risk="cvar:0.5")
    result = sorel.solve(problem, tol=1e-6)
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-6


@pytest.mark.parametrize("rare", [0.0, 6.0, 14.0])
def test_what_is_left_in_the_intercepts_is_bounded(rare):
    # A class that is hardly there has next to no curvature, and its intercept far to go.
    rng = np.random.default_rng(0)
    for _ in range(10):
        X, y = rng.normal(size=(30, 2)), rng.integers(0, 3, 30)
        engine = make(X, y, weight=np.where(y == 2, np.exp(-rare), 1.0)).engine
        w, dual = rng.normal(size=(3, 3)), engine.uniform()
        best, lam = engine.best_intercept(engine.point(w), dual), engine.weights(dual)
        point = engine.point(best.w + 0.01 * np.outer([0, 0, 1], rng.normal(size=3)))
        residual = float(np.linalg.norm(lam @ point.slopes))
        slack = intercepts.slack(engine, point, dual, residual)
        assert engine.expected(point, dual) - engine.expected(best, dual) <= slack
        spread = np.sum(lam[:, None] * np.abs(best.slopes - point.slopes))
        assert spread <= intercepts.spread(engine.n_outputs, residual)
        assert slack < np.inf or rare > 0.0
    # Far from a minimum nothing is claimed.
    far = engine.point(w + 1e3 * np.eye(3))
    assert intercepts.slack(engine, far, engine.uniform(), 0.3) == np.inf


def two_groups(seed):
    """Four classes: a pair of them on either side of 0, which are all but apart."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((34, 1))
    y = 2 * rng.integers(0, 2, 34) + (x[:, 0] > 0)
    y[np.argsort(-x[:, 0])[:4]] = 1
    return x, y


@pytest.mark.parametrize("risk", ["mean", "esrm:2"])
@pytest.mark.parametrize("seed", range(3))
def test_groups_of_classes_that_are_apart_within_wide_bounds(seed, risk):
    """Without l2 all of the box counts, and errors of the gradient count by its width."""
    problem = make(*two_groups(seed), risk=risk, penalty=sorel.Box(0.0, -3e5, 3e5))
    result = sorel.solve(problem)
    assert result.converged, result.status


@pytest.mark.parametrize("far", [39.0, 45.0, 65.0])
def test_intercepts_that_go_far_and_come_back_lose_no_digits_of_the_margins(far):
    """With next to no curvature a Newton step may be of 1e17, and what the rows differ by is lost.

    A bound from such margins was above the optimum by a hundredth of it.
    """
    X = 0.05 * np.random.default_rng(5).standard_normal((3, 1))
    problem = make(X, np.arange(3))
    engine = problem.engine
    w = np.array([[0.3, -1.0, 0.7], [0.0, -far, 0.6]])
    best = engine.best_intercept(engine.point(w), engine.uniform())
    if best is not None:
        np.testing.assert_allclose(best.margins, engine.point(best.w).margins, atol=1e-9)
    found = problem.certificate(w, np.full(3, 1 / 3))
    assert found.dual <= sorel.solve(problem, tol=1e-9).objective


def test_no_draw_of_a_distribution_takes_far_longer_than_the_others():
    """A bound promised by products and not kept was sought again and again, then from a matrix."""
    passes = []
    for seed in range(34, 46):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((2000, 80))
        z = X @ rng.standard_normal((80, 6)) / np.sqrt(80) + rng.gumbel(size=(2000, 6))
        settings = {"loss": "multinomial", "penalty": sorel.L2(1 / 2000), "fit_intercept": True}
        passes.append(
            sorel.solve(sorel.Problem(X, z.argmax(axis=1), risk="mean", **settings)).passes
        )
    assert max(passes) <= 1.5 * np.median(passes)
