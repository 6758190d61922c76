"""What all first-order solvers share: optima, settings, seeds, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from stochastic import PENALTIES, WEIGHTS, D, N, X, last_iterate, make, optimum, quietly, snapshot

import sorel
from sorel.engines.base import Engine, UnsupportedOperationError
from sorel.engines.memory import MemoryEngine
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
    Run,
    SaddleSAGA,
    StochasticPD,
    Subgradient,
    UnsupportedProblemError,
)
from sorel.solvers.common import Watch

ALL = [SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient, APD, PDHG, ADMM, Drago, StochasticPD]


def solvers():
    return [
        SOREL(),
        SOREL("paper", dual_step=0.1),
        LSVRG(nu=0.05),
        LSVRG(batch_size=4),
        Prospect(),
        Prospect(nu=0.05, batch_size=4),
        SaddleSAGA(),
        SaddleSAGA(nu=0.05),
        Subgradient(),
        LBFGS(),
        APD(),
        Drago(nu=0.01),
        StochasticPD(),
    ]


@pytest.mark.parametrize("solver", solvers(), ids=lambda s: f"{s.name}")
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
def test_solvers_come_close_to_the_optimum(solver, loss):
    problem = make(loss)
    best = optimum(problem)
    result = quietly(problem, solver, tol=1e-5, max_passes=250)
    start = problem.objective(problem.start())
    # nu = 0.05 moves the optimum a little; the others have only their budget to blame.
    slack = 2e-2 if getattr(solver, "nu", 0.0) > 0 else 2e-3
    assert result.objective - best.objective <= slack * (start - best.objective)
    assert result.gap >= result.objective - best.objective - 1e-12
    assert result.passes <= 300
    assert result.solver == solver.name
    passes = [record.passes for record in result.history]
    assert passes == sorted(passes)


@pytest.mark.parametrize(
    "solver",
    [
        SOREL("paper"),
        SGD(batch_size=N),
        *(cls() for cls in ALL if cls not in (SOREL, SGD)),
        LBFGS(),
    ],
    ids=lambda s: s.name,
)
def test_mean_is_solved_to_the_tolerance(solver):
    # Without ties to break, every method is an ordinary one for a smooth strongly convex problem.
    problem = make(risk=sorel.Mean(), penalty=sorel.L2(0.5), fit_intercept=True)
    assert sorel.solve(problem, solver, tol=1e-6, max_passes=2000).converged


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.name)
@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.name)
def test_every_penalty_is_taken(cls, penalty):
    problem = make(penalty=penalty, fit_intercept=True)
    solver = cls("paper") if cls is SOREL else cls()
    result = quietly(problem, solver, tol=1e-6, max_passes=80)
    assert math.isfinite(penalty.value(result.w[:D]))
    best = optimum(problem)
    start = problem.objective(problem.start())
    # One batch of all samples where there are fewer than 64: sgd has no bias here.
    assert result.objective - best.objective <= 0.1 * (start - best.objective) + 1e-12


@pytest.mark.parametrize("cls", [LSVRG, Prospect, SaddleSAGA], ids=lambda c: c.name)
def test_smoothing_leads_to_the_smoothed_optimum(cls):
    # There the gradient under the smoothed weights vanishes, ties or not.
    problem = make(risk=sorel.CVaR(0.3))
    engine, nu = problem.engine, 1.0
    iterate = last_iterate(cls(nu=nu), problem, 400)
    dual = engine.dual_step(engine.uniform(), iterate.point, 1 / nu)
    gradient = engine.gradient(iterate.point, dual) + 0.1 * iterate.point.w
    assert np.linalg.norm(gradient) <= 1e-5 * np.linalg.norm(snapshot(problem)[2])
    np.testing.assert_allclose(iterate.dual.density, dual.density, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("cls", [LSVRG, Prospect, SaddleSAGA, SGD], ids=lambda c: c.name)
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


def test_a_penalty_may_blow_up_alone():
    """What counts is the objective, of which the losses may know nothing."""
    problem = sorel.Problem(np.zeros((4, 2)), np.ones(4), penalty=sorel.L2(0.1))
    watch = Watch(problem, Run(np.zeros(2), None, 1e-9, 1e6, math.inf, 0))
    watch.start()
    # A mean loss of 1/2 at the start, and l2/2 |w|^2 a million times that at about 3162.
    limit = math.sqrt(1e6 * 0.5 / 0.05)
    assert watch.point(np.array([0.99 * limit, 0.0]), "") is not None
    assert watch.point(np.array([1.01 * limit, 0.0]), "") is None


def test_sources_of_randomness_are_checked():
    with pytest.raises(ValueError, match="nonnegative int"):
        sorel.solve(make(), "sgd", random_state=-1)


@pytest.mark.parametrize(
    "solver",
    [LSVRG(50.0), Prospect(50.0), SaddleSAGA(50.0), SGD(50.0), Prospect(50.0, nu=0.1)],
    ids=lambda s: s.name,
)
def test_other_solvers_diverge_readably(solver):
    with np.errstate(all="ignore"):
        result = quietly(make(), solver, max_passes=500)
    assert "diverged" in result.status
    assert np.all(np.isfinite(result.w))


@pytest.mark.parametrize(
    "cls",
    [SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient, Drago, StochasticPD],
    ids=lambda c: c.name,
)
def test_same_seed_same_result_and_no_global_state(cls):
    solver = cls("paper") if cls is SOREL else cls()
    state = np.random.get_state()[1].copy()  # noqa: NPY002 (it is the global state we look at)
    runs = [
        quietly(make(risk=sorel.CVaR(0.3)), solver, tol=1e-12, max_passes=9, random_state=seed)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].w, runs[1].w)
    # One batch of everything, like the full subgradient, leaves nothing to chance.
    if cls not in (Subgradient, SGD):
        assert np.any(runs[0].w != runs[2].w)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002 (as above)


@pytest.mark.parametrize("cls", [Prospect, SaddleSAGA])
def test_rank_tables_refuse_sample_weights(cls):
    with pytest.raises(UnsupportedProblemError, match="sample weights") as error:
        sorel.solve(make(sample_weight=WEIGHTS), cls())
    assert "'lsvrg'" in str(error.value)
    assert "'saddle_saga'" not in str(error.value).split("use")[-1]


def test_engines_without_single_samples_are_refused(monkeypatch):
    problem = make()
    engine = problem.engine
    monkeypatch.setattr(MemoryEngine, "stochastic", Engine.stochastic)
    with pytest.raises(UnsupportedOperationError, match="stochastic"):
        engine.stochastic()
    with pytest.raises(
        UnsupportedProblemError, match="needs the operation 'minibatch_epoch'"
    ) as error:
        sorel.solve(problem, "sgd")
    assert "'subgradient'" in str(error.value)
    assert quietly(problem, "subgradient", tol=1e-3).converged


@pytest.mark.parametrize("cls", [SOREL, LSVRG, Prospect, SaddleSAGA, SGD, Subgradient])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "big", True])
def test_bad_step_sizes_are_refused(cls, value):
    with pytest.raises(ValueError, match=r"step_size.*" + str(value)[:3]):
        cls(step_size=value)


def test_bad_settings_are_refused():
    for value in (0, 1.5, True, "4"):
        with pytest.raises(ValueError, match="batch_size"):
            SGD(batch_size=value)
    for value in (-1.0, math.nan, None):
        with pytest.raises(ValueError, match="nu"):
            LSVRG(nu=value)
    with pytest.raises(ValueError, match="memory"):
        LBFGS(memory=0)


def test_warm_start_continues():
    problem = make()
    first = quietly(problem, SOREL("paper"), tol=1e-4, max_passes=400)
    again = quietly(problem, SOREL("paper"), tol=1e-3, warm_start=first)
    assert again.n_iter == 0
    assert again.converged
