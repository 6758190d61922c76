"""What all first-order solvers share: optima, settings, seeds, refusals; steps and their formulas.

The primal-dual methods of the related work have files of their own.
"""

import math

import numpy as np
import pytest
from helpers import quietly
from sklearn.exceptions import ConvergenceWarning
from stochastic import PENALTIES, WEIGHTS, D, N, X, last_iterate, make, optimum, plan, snapshot

import sorel
from sorel.solvers import (
    ADMM,
    APD,
    LBFGS,
    LSVRG,
    PDHG,
    SGD,
    SOREL,
    Drago,
    Prospect,
    SaddleSAGA,
    StochasticPD,
    Subgradient,
    UnsupportedProblemError,
)

PAPER = [SOREL("paper"), LSVRG(), Prospect(), SaddleSAGA(), SGD(batch_size=N)]
ALL = [*PAPER, Subgradient(), APD(), PDHG(), ADMM(), Drago(), StochasticPD()]
by_name = {"ids": lambda given: given.name}


@pytest.mark.parametrize(
    "solver",
    [
        SOREL("paper", dual_step=0.1), LSVRG(batch_size=4), LSVRG(nu=0.05), Prospect(),
        Prospect(nu=0.05, batch_size=4), SaddleSAGA(), SaddleSAGA(nu=0.05), Subgradient(), LBFGS(),
    ],
    **by_name,
)  # fmt: skip
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
def test_solvers_come_close_to_the_optimum(solver, loss):
    problem = make(loss)
    best = optimum(problem).objective
    result = quietly(problem, solver, tol=1e-5, max_passes=250)
    # nu = 0.05 moves the optimum a little; the others have only their budget to blame.
    slack = 2e-2 if getattr(solver, "nu", 0.0) > 0 else 2e-3
    assert result.objective - best <= slack * (problem.objective(problem.start()) - best)
    assert result.gap >= result.objective - best - 1e-12
    assert result.passes <= 300


@pytest.mark.parametrize("penalty", PENALTIES, **by_name)
@pytest.mark.parametrize("solver", ALL, **by_name)
def test_every_penalty_is_taken(solver, penalty):
    problem = make(penalty=penalty, fit_intercept=True)
    result = quietly(problem, solver, tol=1e-6, max_passes=80)
    assert math.isfinite(penalty.value(result.w[:D]))
    best = optimum(problem).objective
    assert result.objective - best <= 0.1 * (problem.objective(problem.start()) - best) + 1e-12


@pytest.mark.parametrize("cls", [LSVRG, Prospect, SaddleSAGA, Drago], **by_name)
def test_smoothing_leads_to_the_smoothed_optimum(cls):
    # There the gradient under the smoothed weights vanishes, ties or not.
    problem = make(risk=sorel.CVaR(0.3))
    engine, nu = problem.engine, 1.0
    iterate = last_iterate(cls(nu=nu), problem, 1200 if cls is Drago else 400)
    dual = engine.dual_step(engine.uniform(), iterate.point, 1 / nu)
    gradient = engine.gradient(iterate.point, dual) + 0.1 * iterate.point.w
    assert np.linalg.norm(gradient) <= 1e-5 * np.linalg.norm(snapshot(problem)[2])
    np.testing.assert_allclose(iterate.dual.density, dual.density, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("cls", [LSVRG, Prospect, SaddleSAGA, SGD], **by_name)
def test_default_steps_are_the_documented_ones(cls, batch):
    """1 / (3 max_i n lam_i L_i + l2) in w, 1 / max_i L_i for mini-batches; in q by the Jacobian."""
    problem = make()
    squares, sigma = np.sum(X**2, axis=1), problem.risk.weights(N)
    settings = {"step_size": 1 / (3 * N * sigma.max() * squares.max() + 0.1)}
    if cls is LSVRG:
        # Weights are known at the start, and one epoch follows.
        lam = np.empty(N)
        lam[np.argsort(problem.losses(np.zeros(D)))] = sigma
        settings["step_size"] = 1 / (3 * N * np.max(lam * squares) + 0.1)
    elif cls is SGD:
        settings["step_size"] = 1 / (squares.max() + 0.1)
    elif cls is SaddleSAGA:
        bound = 2 * np.mean(problem.losses(np.zeros(D))) * squares.max()
        settings["dual_step"] = 1 / (3 * N * settings["step_size"] * bound)
    default, given = (
        quietly(problem, cls(batch_size=batch, **more), tol=0.0, max_passes=2, random_state=0)
        for more in ({}, settings)
    )
    np.testing.assert_allclose(default.w, given.w, rtol=1e-9)


@pytest.mark.parametrize("solver", PAPER[:-1], **by_name)
def test_two_passes_for_each_outer_iteration(solver):
    result = quietly(make(), solver, tol=0.0, max_passes=21)
    assert result.passes == pytest.approx(1 + 2 * result.n_iter)
    assert result.n_iter == 10
    # Certificates of so few columns cost none.
    rng = np.random.default_rng(0)
    more, targets = rng.standard_normal((400, 25)), rng.standard_normal(400)
    problem = sorel.Problem(more, targets, risk=sorel.CVaR(0.5))
    result = quietly(problem, solver, tol=1e-3, max_passes=41)
    assert result.passes == pytest.approx(1 + 2 * result.n_iter)


def test_passes_of_batches_that_leave_samples_over():
    result = quietly(make(), SOREL("paper", batch_size=16), tol=0.0, max_passes=18)
    assert result.passes == pytest.approx(1 + 1.8 * result.n_iter)


@pytest.mark.parametrize(
    "solver",
    [
        SOREL("paper", 50.0), LSVRG(50.0), Prospect(50.0), SaddleSAGA(50.0), SGD(50.0),
        Prospect(50.0, nu=0.1),
    ],
    **by_name,
)  # fmt: skip
def test_solvers_diverge_readably(solver):
    problem = make()
    with np.errstate(all="ignore"), pytest.warns(sorel.ConvergenceWarning, match="diverged at"):
        result = sorel.solve(problem, solver, max_passes=500)
    assert "lower step_size=50" in result.status
    assert np.all(np.isfinite(result.w))
    assert result.objective <= problem.objective(np.zeros(D)) * (1 + 1e-12)


def refused_steps():
    for cls in (SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient):
        for value in (0.0, -1.0, math.inf, math.nan, "big", True):
            yield cls, {"step_size": value}, r"step_size.*" + str(value)[:3]


@pytest.mark.parametrize(("cls", "settings", "message"), [
    *refused_steps(),
    *((SGD, {"batch_size": value}, "batch_size") for value in (0, 1.5, True, "4")),
    *((LSVRG, {"nu": value}, "nu") for value in (-1.0, math.nan, None)),
    (LBFGS, {"memory": 0}, "memory"),
    (SOREL, {"schedule": "odd"}, r"'auto', 'paper', 'stable', 'theory'.*'odd'"),
    (SOREL, {"schedule": "paper", "dual_step": -2}, r"dual_step.*-2"),
    (SOREL, {"schedule": "theory", "step_size": 0.1}, r"theorem.*step_size=0\.1"),
    (SOREL, {"schedule": "theory", "dual_step": 0.1}, r"theorem.*dual_step=0\.1"),
    (ADMM, {"rho": 0.0}, r"rho must be None or a finite number > 0, got 0.0"),
    (PDHG, {"balance": -1.0}, r"balance must be .* got -1.0"),
    (APD, {"adaptive": "yes"}, r"adaptive must be True or False, got 'yes'"),
    (Drago, {"nu": -1}, r"nu must be .* got -1"),
    (Drago, {"block_size": 0}, r"block_size must be an integer >= 1, got 0"),
    (StochasticPD, {"batch_size": 2.5}, r"batch_size must be an integer >= 1, got 2.5"),
])  # fmt: skip
def test_bad_settings_are_refused(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        cls(**settings)


def test_warm_start_continues():
    problem = make()
    first = quietly(problem, SOREL("paper"), tol=1e-4, max_passes=400)
    again = quietly(problem, SOREL("paper"), tol=1e-3, warm_start=first)
    assert again.n_iter == 0
    assert again.converged


def test_minibatch_epoch_equals_the_formula():
    problem = make()
    engine = problem.engine
    w = np.array([0.2, -0.1, 0.3])
    setting = plan(problem, 0.05, 5, batch=8)
    moved = engine.stochastic().minibatch_epoch(w, setting, np.random.default_rng(4))
    order = np.random.default_rng(4).permutation(N)
    sigma = problem.risk.weights(8)
    for batch in order.reshape(5, 8):
        point = engine.point(w)
        ranked = batch[np.argsort(point.losses[batch])]
        w = (w - 0.05 * X[ranked].T @ (sigma * point.slopes[ranked])) / (1 + 0.05 * 0.1)
    np.testing.assert_allclose(moved, w, rtol=1e-12)


def test_sgd_takes_sample_weights():
    problem = make(risk=sorel.Mean(), sample_weight=WEIGHTS)
    best = optimum(problem).objective
    result = quietly(problem, SGD(step_size=0.01, batch_size=4), tol=1e-8, max_passes=100)
    assert result.objective - best <= 1e-2 * (problem.objective(np.zeros(D)) - best)


@pytest.mark.parametrize("nu", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_prospect_tables_are_what_a_full_sort_gives(nu, loss):
    # Integer data make ties, which the order settles by position as a stable sort does.
    data = np.round(X)
    problem = make(loss, data=data, fit_intercept=True)
    engine, steps = problem.engine, problem.engine.stochastic()
    point, dual, _ = snapshot(problem)
    if nu > 0:
        dual = engine.dual_step(engine.uniform(), point, 1 / nu)
    table = steps.table(point, dual)
    w, rng = point.w, np.random.default_rng(1)
    for _ in range(3):
        w = steps.prospect_epoch(table, w, plan(problem, 0.01, N), nu, rng)
        keys = np.empty(N)
        keys[table.order] = table.key
        np.testing.assert_array_equal(table.order, np.argsort(keys, kind="stable"))
        mean = np.column_stack([data, np.ones(N)]).T @ table.slopes / N
        np.testing.assert_allclose(table.mean, mean.T, rtol=1e-10, atol=1e-12)
        lam = np.empty(N)
        if nu > 0:
            lam[:] = sorel.project_permutahedron(keys / N, problem.risk.weights(N))
        else:
            lam[table.order] = problem.risk.weights(N)
        np.testing.assert_allclose(engine.weights(steps.table_dual(table)), lam, atol=1e-14)


def test_prospect_step_uses_the_projected_weights():
    problem = make()
    engine, nu = problem.engine, 0.2
    point, _, _ = snapshot(problem)
    dual = engine.dual_step(engine.uniform(), point, 1 / nu)
    table = engine.stochastic().table(point, dual)
    w = point.w + 0.1
    setting = plan(problem, 0.01, 1, proximal=False)
    moved = engine.stochastic().prospect_epoch(table, w, setting, nu, np.random.default_rng(0))
    row, _ = np.random.default_rng(0).integers(N, size=(2, 1))
    i = row[0]
    change = dual.density[i] * (engine.point(w).slopes[i] - point.slopes[i]) * X[i]
    direction = change + engine.gradient(point, dual) + 0.1 * w
    np.testing.assert_allclose(moved, w - 0.01 * direction, rtol=1e-12)


@pytest.mark.parametrize("nu", [0.0, 0.5])
def test_saddle_saga_equals_the_formula(nu):
    problem = make(fit_intercept=True)
    engine = problem.engine
    point, dual, _ = snapshot(problem)
    table = engine.stochastic().table(point, dual)
    setting = plan(problem, 0.02, 10, batch=2)
    moved = engine.stochastic().saddle_epoch(
        table, point.w, setting, 0.05, nu, np.random.default_rng(2)
    )
    rows, probes = np.random.default_rng(2).integers(N, size=(2, 20)).reshape(2, 10, 2)
    padded = np.column_stack([X, np.ones(N)])
    w, q = point.w.copy(), dual.density.copy()
    losses, slopes = point.losses.copy(), q * point.slopes
    sigma = problem.risk.weights(N)
    for i, j in zip(rows, probes, strict=True):
        now = engine.point(w)
        fresh = q[i] * now.slopes[i]
        direction = padded[i].T @ (fresh - slopes[i]) / 2 + padded.T @ slopes / N
        target = q + 0.05 * (losses + nu)
        np.add.at(target, j, 0.05 * N * (now.losses[j] - losses[j]) / 2)
        q = N * sorel.project_permutahedron(target / (1 + 0.05 * nu) / N, sigma)
        slopes[i], losses[j] = fresh, now.losses[j]
        w = w - 0.02 * direction
        w[:D] /= 1 + 0.02 * 0.1
    np.testing.assert_allclose(moved, w, rtol=1e-9, atol=1e-12)
    found = engine.stochastic().table_dual(table).density
    np.testing.assert_allclose(found, q, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(table.losses, losses[table.order], rtol=1e-12)


def test_lbfgs_keeps_bounds_and_says_when_it_stalls():
    box = make(penalty=sorel.Box(0.1, -0.3, [0.2, 0.5, 0.4]), fit_intercept=True)
    result = quietly(box, LBFGS(), tol=1e-6, max_passes=200)
    best = optimum(box).objective
    assert result.objective - best <= 1e-3 * best
    several = make("multinomial", penalty=sorel.NonNegative(0.1), fit_intercept=True)
    assert quietly(several, LBFGS(), tol=1e-3, max_passes=200).w[:D].min() >= 0.0
    # The larger of w^2/2 and (w - 4)^2/2 has its minimum at a kink: one weighting proves nothing.
    kink = sorel.Problem([[1.0], [1.0]], [0.0, 4.0], risk=sorel.Max(), penalty=sorel.L2(1e-3))
    stalled = quietly(kink, LBFGS(), tol=0.0)
    assert stalled.w == pytest.approx([2.0], abs=1e-3)
    assert "no descent" in stalled.status


@pytest.mark.parametrize(("solver", "options", "message", "others"), [
    ("prospect", {"sample_weight": WEIGHTS}, "sample weights", {"saddle_saga"}),
    ("saddle_saga", {"sample_weight": WEIGHTS}, "sample weights", {"prospect"}),
    ("lbfgs", {"penalty": sorel.ElasticNet(0.1, 0.2)}, "smooth penalties", set()),
    ("lbfgs", {"penalty": sorel.Simplex(0.1)}, "smooth penalties", set()),
])  # fmt: skip
def test_refusals_name_who_can(solver, options, message, others):
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}'.*{message}.*; use ") as error:
        sorel.solve(make(**options), solver)
    named = str(error.value).partition("; use ")[2]
    for name in ("newton", "sorel", "lsvrg", "prospect", "saddle_saga", "sgd", "subgradient"):
        assert (repr(name) in named) is (name != solver and name not in others)
    assert repr(solver) not in named


@pytest.mark.parametrize("solver", PAPER, **by_name)
def test_steps_from_curvature_need_some(solver):
    box = sorel.Box(0.0, -1.0, 1.0)
    assert solver.obstacle(make(penalty=box)) is None
    assert "there is none with the linear loss" in solver.obstacle(make("linear", penalty=box))


def test_subgradients_say_why_they_end():
    X, y = np.array([[1.0], [2.0]]), np.array([1e3, 3e3])
    problem = sorel.Problem(X, y, risk="max", penalty=sorel.L2(1.0))
    found = quietly(problem, "subgradient", tol=0.0, max_passes=5000)
    assert "rounding errors allow no further progress" in found.status
    assert found.relative_gap <= 1e-12
    flat = sorel.Problem(X, 0.0 * y, risk="max")
    assert quietly(flat, "subgradient", tol=0.0).gap == 0.0
    wild = sorel.Problem(np.eye(3), [1.0, 2.0, 4.0], risk="max")
    with pytest.warns(ConvergenceWarning, match=r"to get there, use solver='auto'"):
        fast = sorel.solve(wild, Subgradient(step_size=1e200))
    assert "diverged at pass 2: lower step_size=1e+200" in fast.status
