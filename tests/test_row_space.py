"""Problems of few rows: in the space of these, and by systems of as many equations."""

import numpy as np
import pytest
import scipy.sparse

import sorel
from sorel import CVaR
from sorel.engines.rotated import rotate
from sorel.engines.row_gram import MAX_ROWS
from sorel.models.row_systems import RowSystem, Weights
from sorel.solvers import Newton, UnsupportedProblemError, row_space
from sorel.solvers.row_space import RowSpace

HOMES = {
    "rows": np.asarray,
    "columns": np.asfortranarray,
    "sparse": lambda X: scipy.sparse.csr_array(np.where(np.abs(X) > 0.05, X, 0.0)),
    "single": lambda X: X.astype(np.float32),
}


def make_problem(n=60, d=6000, kind="rows", loss="squared", intercept=True, **more):
    rng = np.random.default_rng(n + d)
    X = rng.standard_normal((n, d)) * np.geomspace(1.0, 0.1, d)
    y = X[:, :5] @ rng.standard_normal(5) + rng.standard_t(3, n)
    if loss == "logistic":
        y = np.where(y > 0.0, 1.0, -1.0)
    X = HOMES[kind](X)
    more.setdefault("risk", CVaR(0.2))
    return sorel.Problem(X, y, loss=loss, fit_intercept=intercept, **more)


@pytest.mark.parametrize("kind", HOMES)
@pytest.mark.parametrize("intercept", [True, False])
def test_losses_risk_and_norm_are_the_same_there(kind, intercept):
    problem = make_problem(kind=kind, intercept=intercept)
    rotated = rotate(problem.engine)
    small = problem.with_engine(rotated.engine)
    assert small.engine.n_features == small.n_samples == 60
    rng = np.random.default_rng(0)
    v = rng.standard_normal(60 + intercept)
    w = rotated.back(v)
    np.testing.assert_allclose(rotated.into(w), v, atol=1e-8)
    w, v = problem.for_user(w), small.for_user(v)
    np.testing.assert_allclose(problem.losses(w), small.losses(v), rtol=1e-6, atol=1e-9)
    assert problem.objective(w) == pytest.approx(small.objective(v), rel=1e-8)
    # What margins do not depend on is lost, and nothing else.
    anywhere = rng.standard_normal(problem.engine.shape)
    there = small.for_user(rotated.into(anywhere))
    anywhere = problem.for_user(anywhere)
    np.testing.assert_allclose(problem.losses(anywhere), small.losses(there), rtol=1e-8)
    assert small.objective(there) < problem.objective(anywhere)


def test_several_outputs_stay_where_they_are():
    assert rotate(sorel.Problem(np.eye(2, 3), [0, 1], loss="multinomial").engine) is None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["rows", "sparse"])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_the_solution_is_that_of_newton_steps(loss, kind, weighted):
    weight = np.random.default_rng(1).uniform(0.2, 3.0, 60) if weighted else None
    problem = make_problem(kind=kind, loss=loss, sample_weight=weight, penalty=sorel.L2(1e-3))
    found = sorel.solve(problem, RowSpace(), tol=1e-7)
    other = sorel.solve(problem, Newton(), tol=1e-9)
    assert found.converged
    assert found.dual <= other.objective * (1 + 1e-13)
    assert other.dual <= found.objective * (1 + 1e-13)
    assert problem.certificate(found.w, found.weights).relative_gap <= 1e-7
    np.testing.assert_allclose(found.w, other.w, atol=2e-2 * np.abs(other.w).max())


def test_auto_goes_there_first_and_on_where_that_leads_nowhere():
    result = sorel.solve(make_problem())
    assert result.converged
    assert "auto (row_space)" in result.status
    assert "row_space" not in sorel.solve(make_problem(risk="esrm:2")).status
    X, y = make_problem().engine.stored()
    problem = sorel.Problem(np.vstack([X, X[:2]]), np.append(y, [0.0, 1.0]), risk=CVaR(0.2))
    result = sorel.solve(problem)
    assert result.converged
    assert "row_space then" in result.status
    with pytest.warns(sorel.ConvergenceWarning, match="rows of X are all but dependent"):
        assert not sorel.solve(problem, RowSpace()).converged


def test_an_interrupt_loses_nothing(monkeypatch):
    problem = make_problem(penalty=sorel.L2(1e-4))
    rehearse = row_space.rehearse

    def stopped(iterates, small, run):
        for count, found in enumerate(rehearse(iterates, small, run)):
            if count == 3:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(row_space, "rehearse", stopped)
    result = sorel.solve(problem, RowSpace())
    assert result.status.startswith("interrupted")
    assert result.objective < 0.5 * problem.objective(problem.start())


@pytest.mark.parametrize("change", [
    {"n": 500, "d": 499}, {"risk": "mean"}, {"risk": "esrm:2"},
    {"loss": "linear", "intercept": False}, {"penalty": sorel.ElasticNet(0.1, 0.1)},
])  # fmt: skip
def test_what_is_refused(change):
    with pytest.raises(UnsupportedProblemError, match=f"{MAX_ROWS} rows, more columns"):
        sorel.solve(make_problem(**change), RowSpace())


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("loss", "risk"), [("squared", "cvar:0.3"), ("logistic", "esrm:2")])
@pytest.mark.parametrize("l2", [0.01, 1e-11])
def test_engines_solve_by_rows(home, intercept, loss, risk, l2):
    """Of a gradient of 1e9 times the penalty so many digits cancel, unless steps are refined."""
    problem = make_problem(30, 120, home, loss, intercept, risk=risk, penalty=sorel.L2(l2))
    engine = problem.engine.for_run()
    point = engine.point(0.1 * np.random.default_rng(1).standard_normal(engine.shape))
    dual = engine.dual_step(engine.uniform(), point, 0.5)
    curvature = engine.curvature(point, dual, 0.5)
    gradient = engine.gradient(point, dual)
    matrix = engine.curvature(point, dual, 0.5).matrix() + np.diag(problem.modulus())
    step = curvature.solve(gradient, problem.penalty.l2)
    np.testing.assert_allclose(matrix @ step, -gradient, atol=1e-8 * np.abs(gradient).max())


def test_rows_times_a_root_of_their_weights():
    rng = np.random.default_rng(0)
    A, h, pull = rng.standard_normal((5, 3)), rng.uniform(1.0, 2.0, 5), rng.uniform(0.2, 0.7, 5)
    block, scale = np.array([0, -1, 1, 0, 2], np.int32), np.array([0.8, 0.5, 0.0])
    own = scale[:, None] * (np.arange(3)[:, None] == block)
    C = np.diag(h) - np.einsum("bi,bj,i,j->ij", own > 0.0, own, pull, pull)
    rooted = Weights(h, pull, block, scale).rooted(A.copy())
    np.testing.assert_allclose(rooted.T @ rooted, A.T @ C @ A, rtol=1e-12)


def test_systems_without_a_solution_are_refused():
    # One row in one block: its weight cannot move, and the loss itself is flat.
    weights = Weights(np.array([2.0]), np.ones(1), np.zeros(1, np.int32), np.array([2.0]))
    with pytest.raises(np.linalg.LinAlgError, match="do not bend"):
        RowSystem(np.ones((1, 1)), weights, 0.1).solve(np.ones(1), 1.0)
    with pytest.raises(np.linalg.LinAlgError, match="1 x 1"):
        RowSystem(np.full((1, 1), np.nan), weights, 0.1)


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


def test_newton_beyond_the_largest_matrix_of_columns():
    problem = make_problem(40, intercept=False, penalty=sorel.L2(1e-2))
    X, y = problem.engine.stored()
    result = sorel.solve(problem, "newton", tol=1e-8)
    assert result.converged, result.status
    # Dual feasibility by hand: lam is a weighting of CVaR(0.2), and w minimises lam . l + g.
    lam, residual = result.weights, X @ result.w - y
    assert lam.max() <= 1.0 / (0.2 * 40) + 1e-12
    assert lam.sum() == pytest.approx(1.0)
    gradient = X.T @ (lam * residual) + 1e-2 * result.w
    assert np.linalg.norm(gradient) <= 1e-3 * np.linalg.norm(1e-2 * result.w)
