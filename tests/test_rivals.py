"""The solvers of the related work, and the proximal map that two of them share."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data
from rivals import RIVALS, Group, attempt, level, random_problem

import sorel
from sorel._core import LOGISTIC, pool_losses
from sorel.certificate import certify
from sorel.datasets import load_paper_dataset
from sorel.engines import BlocksEngine
from sorel.losses import Huber, Loss
from sorel.rows import open_rows, write_blocks
from sorel.solvers import (
    ADMM,
    APD,
    PDHG,
    SOLVERS,
    Drago,
    StochasticPD,
    UnsupportedProblemError,
)
from sorel.solvers.drago import smoothing_gap

MONOTONE = ["squared", "huber", "logistic", "squared_hinge", "linear"]


def make_loss(name):
    return Huber(0.7) if name == "huber" else name


def margin_problem(loss, risk, n, seed, weight=None):
    """X = I: parameters are margins, and the proximal map is that of the risk alone."""
    _, y = make_data("squared" if loss == "linear" else loss, n, 1, seed)
    return sorel.Problem(
        np.eye(n), y, risk=risk, loss=make_loss(loss), penalty=sorel.L2(1.0), sample_weight=weight
    )


def prox(problem, v, rho):
    split = problem.engine.splitting()
    z = split.prox(split.vector(v), rho)
    return np.array(z), split.weighting()


def prox_value(problem, z, v, rho):
    """Risk of the losses by brute force plus the distance from v, both under the weights."""
    omega = problem.sample_weight
    omega = np.full(len(v), 1.0 / len(v)) if omega is None else omega
    return problem.engine.risk(problem.engine.point(z)) + 0.5 * rho * np.sum(omega * (z - v) ** 2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", MONOTONE)
@pytest.mark.parametrize("risk", ["cvar:0.3", "esrm:3", "max", "mean"])
def test_the_proximal_map_satisfies_its_optimality_conditions(loss, risk, weighted):
    """z minimises q.l(z) + rho/2 |z - v|^2 for a q that attains the risk at z: a saddle point."""
    n = 12
    for seed in range(4):
        rng = np.random.default_rng(seed)
        weight = rng.integers(1, 4, n).astype(float) if weighted else None
        problem = margin_problem(loss, risk, n, seed, weight)
        engine, rho = problem.engine, float(10.0 ** rng.uniform(-1, 1))
        v = 2.0 * rng.standard_normal(n)
        # Ties among the losses at v, and a loss without slope.
        v[1], v[2] = v[0], problem.engine.y[2]
        z, dual = prox(problem, v, rho)
        point = engine.point(z)
        lam, omega = engine.weights(dual), engine.weights(engine.uniform())
        assert engine.shortfall(point, dual) <= 1e-12 * (1 + abs(engine.risk(point)))
        slope = lam * problem.loss.derivative(engine.y, z) + rho * omega * (z - v)
        assert np.max(np.abs(slope)) <= 1e-10


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
def test_the_proximal_map_against_a_conic_solver(loss):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    from helpers import _conic_losses, _conic_risk, _conic_solve

    n, rho = 8, 0.7
    for seed, risk in enumerate((sorel.CVaR(0.4), sorel.ESRM(2.0), sorel.Max())):
        problem = margin_problem(loss, risk, n, seed)
        v = 2.0 * np.random.default_rng(seed).standard_normal(n)
        z, _ = prox(problem, v, rho)
        free, bound = cp.Variable((n, 1)), cp.Variable(n)
        objective = _conic_risk(risk, bound) + 0.5 * rho / n * cp.sum_squares(free[:, 0] - v)
        best = _conic_solve(objective, [_conic_losses(loss, free, problem.engine.y) <= bound])
        assert prox_value(problem, z, v, rho) == pytest.approx(best, rel=1e-6, abs=1e-8)


def test_whole_weights_are_repeated_rows():
    rng = np.random.default_rng(3)
    weight = np.array([1.0, 3.0, 2.0, 0.0, 1.0, 2.0])
    y, v = rng.standard_normal(6), rng.standard_normal(6)
    rows = np.repeat(np.arange(6), weight.astype(int))
    found = {}
    for name, index, omega in (("weights", np.arange(6), weight), ("rows", rows, None)):
        problem = sorel.Problem(
            np.eye(len(index)), y[index], risk="esrm:3", penalty=sorel.L2(1.0), sample_weight=omega
        )
        found[name] = prox(problem, v[index], 1.3)[0]
    np.testing.assert_allclose(found["weights"][rows], found["rows"], rtol=1e-12)
    # Nobody asks where a sample without weight goes.
    assert found["weights"][3] == v[3]


@pytest.mark.parametrize("solver", RIVALS)
@pytest.mark.parametrize("seed", range(6))
def test_random_problems_are_certified_or_refused(solver, seed):
    """A share of the problems that `python tests/rivals.py 200` goes through."""
    # Seeds 7 apart have the same loss: all losses come up, each with other parts.
    problem = random_problem(8 * seed)
    result = attempt(problem, solver)
    if result is None:
        with pytest.raises(UnsupportedProblemError, match=f"'{solver}' .*; use .*'newton'"):
            sorel.solve(problem, solver)
        return
    assert result.converged, result.status
    optimum = sorel.solve(problem, "newton", tol=1e-8)
    tol = level(problem) if solver == "drago" else 1e-6
    assert result.dual <= optimum.objective + 1e-8 * abs(optimum.objective)
    assert result.objective - optimum.objective <= tol * abs(optimum.objective) * 1.01


@pytest.mark.parametrize("solver", RIVALS)
def test_a_problem_of_the_paper(solver):
    X, y = load_paper_dataset("concrete")[:2]
    problem = sorel.Problem(X, y, risk="esrm:2", penalty=sorel.L2(1 / len(y)))
    result = attempt(problem, solver)
    assert result.converged
    assert result.passes < 2000


@pytest.mark.parametrize("solver", RIVALS)
def test_homes_of_the_data_agree(solver, tmp_path):
    X, y = make_data("squared", 200, 4, seed=5)
    X = X * (np.abs(X) > 0.5)
    write_blocks(tmp_path / "blocks", X, rows_per_block=70)
    homes = {
        "columns": (np.asfortranarray(X), None),
        "short": (X.astype(np.float32).astype(np.float64), None),
        "sparse": (scipy.sparse.csr_array(X), None),
        "disk": (open_rows(tmp_path / "blocks"), BlocksEngine),
    }
    expected = sorel.solve(sorel.Problem(X, y, risk="esrm:2"), tol=1e-9).objective
    for home, (matrix, engine) in homes.items():
        problem = sorel.Problem(matrix, y, risk="esrm:2", engine=engine)
        if home == "disk" and solver in ("drago", "stochastic_pd"):
            with pytest.raises(UnsupportedProblemError, match=r"'batches'.*BlocksEngine.*'apd'"):
                sorel.solve(problem, solver)
            continue
        tol = 1e-3 if solver == "drago" else 1e-6
        result = sorel.solve(problem, solver, tol=tol, max_passes=20_000, random_state=0)
        assert result.objective == pytest.approx(expected, rel=2 * tol)


@pytest.mark.parametrize("solver", ["apd", "stochastic_pd", "drago"])
def test_a_loss_of_a_user_is_served_by_its_formulas(solver):
    class Pseudohuber(Loss):
        name, lower_bound, curvature_bound = "pseudohuber", 0.0, 1.0

        def value(self, y, margins):
            return np.sqrt(1.0 + (margins - y) ** 2) - 1.0

        def derivative(self, y, margins):
            return (margins - y) / np.sqrt(1.0 + (margins - y) ** 2)

        def curvature(self, y, margins):
            return (1.0 + (margins - y) ** 2) ** -1.5

    X, y = make_data("squared", 60, 3, seed=1)
    problem = sorel.Problem(X, y, risk="esrm:2", loss=Pseudohuber(), penalty=Group(0.1, 0.05))
    tol = 1e-3 if solver == "drago" else 1e-6
    result = sorel.solve(problem, solver, tol=tol, max_passes=20_000, random_state=0)
    assert result.objective == pytest.approx(sorel.solve(problem, tol=1e-8).objective, rel=2 * tol)
    for other in ("pdhg", "admm"):
        with pytest.raises(UnsupportedProblemError, match=r"not for the pseudohuber loss.*'apd'"):
            sorel.solve(problem, other)


@pytest.mark.parametrize(
    ("solver", "options", "reason"),
    [
        ("apd", {"loss": "poisson"}, "no bound on its curvature"),
        ("pdhg", {"loss": "multinomial"}, "not for the multinomial loss"),
        ("admm", {"loss": "poisson"}, "not for the poisson loss"),
        ("drago", {"penalty": sorel.Simplex(0.0)}, "modulus of strong convexity"),
        ("stochastic_pd", {"loss": "poisson"}, "bound on the curvature"),
    ],
)
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        result = sorel.solve(problem, "admm", tol=1e-6)
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
        result = sorel.solve(
            problem, Drago(nu=nu), tol=0.9 * allowed, max_passes=4000, random_state=0
        )
        assert result.gap <= allowed
        assert f"nu={nu:.3g}" in result.status
        gaps.append(result.gap)
    assert gaps == sorted(gaps, reverse=True)


def test_the_smoothed_optimum_of_drago_is_stationary():
    """At its limit the gradient vanishes under the weights of the smoothed problem."""
    X, y = make_data("squared", 60, 3, seed=4)
    problem = sorel.Problem(X, y, risk="cvar:0.3", penalty=sorel.L2(0.3))
    solver, engine, nu = Drago(nu=2.0), problem.engine, 2.0
    run = sorel.solvers.Run(problem.start(), None, 1e-12, 2000, np.inf, 0)
    iterates = solver.iterates(problem, run)
    iterate = next(iterates)
    for _ in range(300):
        certificate = certify(problem, iterate.point, iterate.dual)
        iterate = iterates.send(certificate)
    smoothed = engine.dual_step(engine.uniform(), iterate.point, 1.0 / nu)
    gradient = engine.gradient(iterate.point, smoothed) + 0.3 * iterate.point.w
    assert np.linalg.norm(gradient) <= 1e-6


@pytest.mark.parametrize(
    "solver", [APD(adaptive=False), StochasticPD(adaptive=False)], ids=lambda s: s.name
)
def test_the_published_steps_descend(solver):
    X, y = make_data("squared", 60, 3, seed=6)
    problem = sorel.Problem(X, y, risk="esrm:2", penalty=sorel.L2(0.3))
    with pytest.warns(sorel.ConvergenceWarning):
        result = sorel.solve(problem, solver, tol=1e-13, max_passes=400, random_state=0)
    start = result.history[0].gap
    assert result.gap <= 0.05 * start


def test_fixed_settings_are_kept():
    X, y = make_data("squared", 60, 3, seed=6)
    problem = sorel.Problem(X, y, risk="esrm:2", penalty=sorel.L2(0.3))
    for solver in (ADMM(rho=3.0), PDHG(balance=1.0), StochasticPD(batch_size=60), Drago(0.01)):
        tol = 1e-3 if isinstance(solver, Drago) else 1e-6
        assert sorel.solve(problem, solver, tol=tol, max_passes=5000, random_state=0).converged


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ADMM(rho=0.0), r"rho must be None or a finite number > 0, got 0.0"),
        (lambda: PDHG(balance=-1.0), r"balance must be .* got -1.0"),
        (lambda: APD(adaptive="yes"), r"adaptive must be True or False, got 'yes'"),
        (lambda: Drago(nu=-1), r"nu must be .* got -1"),
        (lambda: Drago(block_size=0), r"block_size must be an integer >= 1, got 0"),
        (lambda: StochasticPD(batch_size=2.5), r"batch_size must be an integer >= 1, got 2.5"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_auto_uses_none_of_them():
    assert set(RIVALS) <= set(SOLVERS)
    X, y = make_data("squared", 60, 3, seed=6)
    result = sorel.solve(sorel.Problem(X, y), "auto", tol=1e-6)
    assert not any(name in result.status for name in RIVALS)


def test_random_problems_cover_what_they_promise():
    problems = [random_problem(seed) for seed in range(200)]
    losses = {problem.loss.name for problem in problems}
    penalties = {type(problem.penalty).__name__ for problem in problems}
    assert losses == {
        "squared", "huber", "logistic", "squared_hinge", "linear", "multinomial", "poisson",
    }  # fmt: skip
    assert penalties == {"L2", "ElasticNet", "NonNegative", "Box", "Simplex", "Group"}
    parts = {
        (problem.fit_intercept, problem.sample_weight is not None, type(problem.engine).__name__)
        for problem in problems
    }
    homes = ("DenseEngine", "SparseEngine")
    assert parts == set(itertools.product((False, True), (False, True), homes))


def test_the_scalar_map_of_the_logistic_loss_is_a_root():
    """Newton's steps alone go to and fro between the flat ends of the sigmoid."""
    for mean, c in itertools.product((-50.0, -1.0, 0.0, 5.0, 80.0), (1e-3, 1.0, 20.0, 1e4)):
        key, density, t = np.array([mean]), np.array([c]), np.empty(1)
        pool_losses(
            LOGISTIC, 1.0, 1.0, key, density, np.ones(1), np.zeros(1, np.int64), np.empty((4, 1)), t
        )
        slope = c * 0.5 * (1.0 + np.tanh(0.5 * t[0])) + t[0] - mean
        assert abs(slope) <= 1e-13 * (1.0 + abs(mean) + c)


@pytest.mark.parametrize("adaptive", [True, False])
def test_rounds_of_apd_end_where_steps_are_adapted_and_only_there(adaptive, monkeypatch):
    """With constant steps the method is the published one, which knows no restarts."""
    X, y = make_data("squared", 60, 3, 0)
    problem = sorel.Problem(X, y, risk=sorel.CVaR(0.3), penalty=sorel.L2(0.1))
    found = []
    for due in (True, False):
        monkeypatch.setattr("sorel.solvers.apd.Restarts.due", lambda *args, due=due: due)
        solver = sorel.solvers.APD(adaptive=adaptive)
        with pytest.warns(sorel.ConvergenceWarning):
            found.append(sorel.solve(problem, solver, tol=1e-15, max_passes=100).w)
    assert np.array_equal(*found) is not adaptive
