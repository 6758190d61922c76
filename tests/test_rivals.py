"""The solvers of the related work: what they certify, what they refuse, and why."""

import numpy as np
import pytest
import scipy.sparse
from helpers import RISKS, make_data, quietly, run_page
from own_penalties import GroupLasso

import sorel
from sorel.engines import BlocksEngine
from sorel.losses import Huber
from sorel.rows import open_rows, write_blocks
from sorel.solvers import SOLVERS, Drago, UnsupportedProblemError
from sorel.solvers.drago import default_smoothing, smoothing_gap

RIVALS = ["apd", "pdhg", "admm", "drago", "stochastic_pd"]
LOSSES = ["squared", "huber", "logistic", "squared_hinge", "linear", "multinomial", "poisson"]


def random_problem(seed: int) -> sorel.Problem:
    """A problem of 20 to 120 rows whose parts are drawn from all that there are."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(20, 121)), int(rng.integers(1, 7))
    loss = LOSSES[seed % len(LOSSES)]
    X, y = make_data("squared" if loss == "linear" else loss, n, d, seed)
    X = X * 10.0 ** rng.uniform(-0.5, 0.5, d)
    l2 = float(10.0 ** rng.uniform(-2, 0))
    penalties = [
        sorel.L2(l2), sorel.ElasticNet(l2, 0.1), sorel.NonNegative(l2), sorel.Box(l2, -0.3, 0.4),
        sorel.Simplex(l2), GroupLasso(l2, 0.1, np.zeros(d, int)),
    ]  # fmt: skip
    weight = rng.uniform(0.2, 2.0, n) * (rng.random(n) > 0.1) if rng.random() < 0.4 else None
    risk = list(RISKS.values())[int(rng.integers(len(RISKS)))]
    return sorel.Problem(
        scipy.sparse.csr_array(X * (np.abs(X) > 0.3)) if rng.random() < 0.3 else X,
        y,
        risk=risk,
        loss=Huber(0.7) if loss == "huber" else loss,
        penalty=penalties[int(rng.integers(len(penalties)))],
        # Linear losses have no minimum in an intercept.
        fit_intercept=bool(rng.random() < 0.5) and loss != "linear",
        sample_weight=weight,
    )


@pytest.mark.parametrize("solver", RIVALS)
@pytest.mark.parametrize("seed", range(6))
def test_random_problems_are_certified_or_refused(solver, seed):
    # Seeds 7 apart have the same loss: all losses come up, each with other parts.
    problem, tol = random_problem(8 * seed), 1e-6
    optimum = sorel.solve(problem, "newton", tol=1e-8).objective
    if solver == "drago" and problem.penalty.l2 > 0.0:
        nu = default_smoothing(problem, problem.engine.point(problem.start()))
        tol = max(tol, smoothing_gap(problem, nu) / abs(optimum))
    refused = SOLVERS[solver]().obstacle(problem) is not None
    if refused:
        with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*; use .*'newton'"):
            sorel.solve(problem, solver)
        return
    result = sorel.solve(problem, solver, tol=tol, max_passes=20_000, random_state=0)
    assert result.converged, result.status
    assert result.dual <= optimum + 1e-8 * abs(optimum)
    assert result.objective - optimum <= tol * abs(optimum) * 1.01


@pytest.mark.parametrize("solver", RIVALS)
def test_rows_on_disk_are_served_or_refused(solver, tmp_path):
    X, y = make_data("squared", 200, 4, seed=5)
    write_blocks(tmp_path / "blocks", X, rows_per_block=70)
    blocks = open_rows(tmp_path / "blocks")
    problem = sorel.Problem(blocks, y, risk="esrm:2", engine=BlocksEngine)
    if solver in ("drago", "stochastic_pd"):
        with pytest.raises(UnsupportedProblemError, match=r"'batches'.*BlocksEngine.*'apd'"):
            sorel.solve(problem, solver)
        return
    expected = sorel.solve(sorel.Problem(X, y, risk="esrm:2"), tol=1e-9).objective
    result = sorel.solve(problem, solver, max_passes=20_000)
    assert result.objective == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("solver", ["apd", "stochastic_pd", "drago"])
def test_a_loss_and_a_penalty_of_a_user_are_served_by_their_formulas(solver):
    loss, penalty = run_page("loss")["Asymmetric"](2.5), GroupLasso(0.1, 0.05, [0, 0, 0])
    X, y = make_data("squared", 60, 3, seed=1)
    problem = sorel.Problem(X, y, risk="esrm:2", loss=loss, penalty=penalty)
    tol = 1e-3 if solver == "drago" else 1e-6
    result = sorel.solve(problem, solver, tol=tol, max_passes=20_000, random_state=0)
    assert result.objective == pytest.approx(sorel.solve(problem, tol=1e-8).objective, rel=2 * tol)


@pytest.mark.parametrize(("solver", "options", "reason"), [
    ("apd", {"loss": "poisson"}, "no bound on its curvature"),
    ("pdhg", {"loss": "multinomial"}, "not for the multinomial loss"),
    ("admm", {"loss": "poisson"}, "not for the poisson loss"),
    ("drago", {"penalty": sorel.Simplex(0.0)}, "modulus of strong convexity"),
    ("stochastic_pd", {"loss": "poisson"}, "bound on the curvature"),
])  # fmt: skip
def test_refusals_say_why_and_who_can(solver, options, reason):
    X, y = make_data(options.get("loss", "squared"), 40, 3, seed=0)
    problem = sorel.Problem(X, y, risk="cvar:0.5", **options)
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*{reason}.*use .*'newton'"):
        sorel.solve(problem, solver)


def test_too_many_parameters_for_a_matrix():
    problem = sorel.Problem(np.ones((3, 5001)), np.arange(3.0))
    with pytest.raises(UnsupportedProblemError, match=r"'admm' builds a 5001 x 5001.*'pdhg'"):
        sorel.solve(problem, "admm")


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("size", [3e7, 4e9, 1e12])
def test_admm_where_rounding_loses_the_penalty_beside_the_squares(size, intercept):
    """Equal rows make a matrix of rank one, and l2 is below the rounding of its entries."""
    y = np.random.default_rng(11).standard_t(4, size=50)
    X = np.full((50, 3), size)
    problem = sorel.Problem(X, y, risk="cvar:0.4", fit_intercept=intercept)
    result = quietly(problem, "admm", tol=1e-6)
    assert result.converged or result.status.startswith("stopped by rounding")
    # Coefficients so small cost nothing: the best constant.
    constant = sorel.Problem(np.zeros((50, 1)), y, risk="cvar:0.4", fit_intercept=True)
    best = sorel.solve(constant, tol=1e-9)
    assert result.objective == pytest.approx(best.objective, rel=2e-6 + result.relative_gap)


def test_the_smoothing_of_drago_leaves_no_more_than_it_says():
    X, y = make_data("squared", 120, 3, seed=2)
    problem = sorel.Problem(X, y, risk="cvar:0.3", penalty=sorel.L2(0.1))
    gaps = []
    for nu in (1.0, 0.1, 0.01):
        allowed = smoothing_gap(problem, nu)
        sigma = problem.risk.weights(120)
        assert allowed == pytest.approx(0.5 * nu * (120 * np.sum(sigma**2) - 1))
        options = {"tol": 0.9 * allowed, "max_passes": 4000, "random_state": 0}
        result = sorel.solve(problem, Drago(nu=nu), **options)
        assert result.gap <= allowed
        assert f"nu={nu:.3g}" in result.status
        gaps.append(result.gap)
    assert gaps == sorted(gaps, reverse=True)
