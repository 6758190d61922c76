"""Penalties that are not the package's own, in whole problems: served right, or refused by name."""

import numpy as np
import pytest
from helpers import certified, conic_reference, make_data
from own_penalties import Ball, Doubled, GroupLasso, OwnElasticNet, Pseudohuber

import sorel
from sorel import ESRM, CVaR, ElasticNet, Max, Problem
from sorel.models.proximal import ProximalModel
from sorel.penalties import Penalty, check_penalty
from sorel.solvers import SOLVERS, UnsupportedProblemError

L2, L1 = 0.02, 0.08
GROUPS = np.array([0, 0, 1, 1, 1, 2])
FULL_PASSES = {"auto", "newton", "continuation", "subgradient"}
PROXIMAL = {"apd", "pdhg", "admm", "stochastic_pd"}


def conic_terms(kind):
    """g and its constraints for the conic solver."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")

    def penalize(coef):
        g = 0.5 * L2 * cp.sum_squares(coef)
        if kind == "elastic":
            return g + L1 * cp.sum(cp.abs(coef)), []
        if kind == "ball":
            return 0.0, [cp.norm(cp.vec(coef, order="C")) <= 1.0]
        groups = [np.flatnonzero(k == GROUPS) for k in range(3)]
        return g + L1 * sum(cp.norm(cp.vec(coef[rows], order="C")) for rows in groups), []

    return penalize


OWN = {"elastic": OwnElasticNet(L2, L1), "group": GroupLasso(L2, L1, GROUPS), "ball": Ball()}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("kind", OWN)
def test_optimum_agrees_with_a_conic_solver(kind, loss, intercept):
    X, y = make_data(loss, 40, 6, seed=len(loss))
    expected = conic_reference(X, y, CVaR(0.3), loss, intercept, conic_terms(kind)).value
    problem = Problem(X, y, risk=CVaR(0.3), loss=loss, penalty=OWN[kind], fit_intercept=intercept)
    result = certified(problem)
    assert result.objective == pytest.approx(expected, rel=1e-7)
    assert result.dual <= expected * (1 + 1e-7)


@pytest.mark.parametrize("risk", [CVaR(0.1), ESRM(2.0), Max()], ids=repr)
@pytest.mark.parametrize("shape", [(30, 50), (300, 12)], ids=str)
@pytest.mark.parametrize("loss", ["squared", "huber", "squared_hinge"])
def test_the_elastic_net_rewritten_is_the_elastic_net(loss, shape, risk):
    X, y = make_data(loss, *shape, seed=1)
    X *= np.logspace(-2, 1, shape[1])
    own = Problem(X, y, risk=risk, loss=loss, penalty=OwnElasticNet(1e-3, 0.1), fit_intercept=True)
    expected = certified(own.with_penalty(ElasticNet(1e-3, 0.1)), tol=1e-8).objective
    assert certified(own, tol=1e-8).objective == pytest.approx(expected, rel=2e-8)


def test_a_modulus_near_0_is_no_contradiction():
    for l2 in (1e-7, 1e-9, 1e-11):
        check_penalty(OwnElasticNet(l2, 0.0), (3,))


def test_a_subclass_is_not_computed_as_its_parent():
    X, y = make_data("squared", 50, 4, seed=3)
    own = Problem(X, y, risk=ESRM(1.0), penalty=Doubled(L2, L1))
    expected = certified(own.with_penalty(ElasticNet(2 * L2, 2 * L1))).objective
    for solver in FULL_PASSES:
        assert certified(own, solver, tol=1e-6).objective == pytest.approx(expected, rel=2e-6)
    with pytest.raises(UnsupportedProblemError, match="not the class Doubled"):
        sorel.solve(own, "sorel")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("penalty", [*OWN.values(), Pseudohuber(L2)], ids=repr)
def test_every_solver_serves_or_refuses_by_name(solver, penalty):
    X, y = make_data("squared", 80, 6, seed=4)
    problem = Problem(X, y, risk=ESRM(2.0), penalty=penalty, fit_intercept=True)
    served = solver in FULL_PASSES | PROXIMAL or (solver == "lbfgs" and penalty.smooth)
    if served or (solver == "drago" and penalty.l2 > 0.0):
        # What its smoothing allows.
        tol = 1e-3 if solver == "drago" else 1e-5
        result = certified(problem, solver, tol=tol, max_passes=5000, random_state=0)
        assert result.objective == pytest.approx(certified(problem).objective, rel=2 * tol)
        assert solver != "auto" or "auto (newton)" in result.status
        return
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}'.*newton"):
        sorel.solve(problem, solver)


def test_more_parameters_than_a_small_matrix():
    rng = np.random.default_rng(6)
    X, y = rng.standard_normal((20, 1200)), rng.standard_normal(20)
    separable = type("Separable", (OwnElasticNet,), {"separable": True})
    problem = Problem(X, y, penalty=separable(0.5, 0.3))
    same = certified(problem.with_penalty(ElasticNet(0.5, 0.3)), tol=1e-7)
    assert certified(problem, "auto", tol=1e-7).objective == pytest.approx(same.objective, rel=2e-7)


def test_starts_and_restarts(tmp_path):
    """Warm starts project, and a checkpoint knows the penalty by what it computes."""
    X, y = make_data("squared", 60, 6, seed=7)
    problem = Problem(X, y, penalty=Ball())
    far = certified(problem.with_penalty(sorel.L2(1e-6)))
    assert np.linalg.norm(far.w) > 1.0
    assert certified(problem, warm_start=far).converged
    first, other = (Problem(X, y, penalty=scaled_ball(radius)) for radius in (1.0, 1.5))
    path = tmp_path / "run.ckpt"
    sorel.solve(first, checkpoint=path)
    assert "resumed" in sorel.solve(first, checkpoint=path).status
    with pytest.raises(sorel.CheckpointError, match="the penalty was Scaled"):
        sorel.solve(other, checkpoint=path)


def test_a_problem_looks_at_the_formulas():
    X, y = make_data("squared", 20, 3, seed=8)
    formulas = {
        "l2": 1.0,
        "value": lambda self, w: 0.5 * float(w @ w),
        "prox": lambda self, v, step: v / (1.0 + step),
        "conjugate": lambda self, v: 0.5 * float(v @ v),
    }
    one_dimensional = type("OneDimensional", (Penalty,), formulas)()
    assert certified(Problem(X, y, penalty=one_dimensional)).converged
    with pytest.raises((TypeError, ValueError)):
        Problem(X, np.arange(20) % 3, loss="multinomial", penalty=one_dimensional)
    slip = type("Slip", (Ball,), {"conjugate": lambda self, v: 0.0})()
    with pytest.raises(ValueError, match="Slip penalty contradicts itself"):
        Problem(X, y, penalty=slip)


def scaled_ball(radius):
    """A ball whose radius none of its attributes shows."""

    class Scaled(Ball):
        def value(self, w):
            return 0.0 if np.linalg.norm(w) <= radius * (1.0 + 1e-12) else np.inf

        def prox(self, v, step):
            return np.asarray(v) / max(1.0, np.linalg.norm(v) / radius)

        def conjugate(self, v):
            return radius * np.linalg.norm(v)

    return Scaled()


@pytest.mark.parametrize("radius", [1e-9, 1e-4, 1e6])
def test_a_domain_may_be_small_or_large(radius):
    # All points that the formulas are tried at may have the same one nearest to them.
    X, y = np.array([[1.0], [2.0], [-1.0]]), radius * np.array([5.0, 5.0, -5.0])
    result = certified(Problem(X, y, penalty=scaled_ball(radius), risk="mean"), tol=1e-6)
    np.testing.assert_allclose(result.w, radius, rtol=1e-3)


def test_a_model_that_is_flat_in_a_direction_is_minimised():
    """Without a penalty's curvature, its Newton matrix is singular."""
    rng, d = np.random.default_rng(6), 6
    Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    H = Q @ np.diag([1.0, 1e-2, 1e-4, 1e-6, 1e-8, 0.0]) @ Q.T
    best = 0.3 * rng.random(d)
    model = ProximalModel(H, -H @ best, np.zeros(d), sorel.Box(0.0, -1.0, 1.0), (d,))
    np.testing.assert_allclose(H @ model.minimize(), H @ best, atol=1e-14)
    assert model.n_iter <= 5
