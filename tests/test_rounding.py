"""Bounds on rounding errors against the errors themselves, in extended or exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from helpers import LOSSES, RISKS, brute_losses, make_data, make_loss

import sorel
from sorel import L2, Problem
from sorel.certificate import certify
from sorel.certificate.rounding import Path, Rounding
from sorel.engines import DenseEngine, Engine, intercepts
from sorel.losses import Huber

Long = np.longdouble
needs_long = pytest.mark.skipif(
    np.finfo(Long).eps > 1e-18, reason="long double is no longer than double here"
)


def rounding_of(problem):
    return Rounding(problem.engine, problem.penalty, problem.zero_loss)


@needs_long
@pytest.mark.parametrize("d", [1, 3, 40, 700])
@pytest.mark.parametrize("storage", ["C", "F", "sparse"])
def test_margins_are_known_up_to_their_bound(d, storage):
    rng = np.random.default_rng(d)
    X = rng.normal(size=(30, d)) * 10.0 ** rng.uniform(-3, 3, d)
    given = {"C": X, "F": np.asfortranarray(X), "sparse": scipy.sparse.csr_array(X)}[storage]
    problem = Problem(given, rng.normal(size=30), fit_intercept=True)
    rounding = rounding_of(problem)
    w = rng.normal(size=d + 1)
    path, point = Path(w), problem.engine.point(w)

    def error(point):
        exact = X.astype(Long) @ point.w[:d].astype(Long) + Long(point.w[d])
        return float(np.abs(point.margins - exact).max())

    assert error(point) <= rounding.margins(point.w)
    for step in (1e6, 1.0, -1e6, 1e-3):
        delta = step * rng.normal(size=d + 1)
        point = problem.engine.moved(point, delta, problem.engine.direction(delta), 0.7)
        path.move(point.w)
        assert error(point) <= rounding.margins(point.w, path)
    assert rounding.margins(point.w, path) >= rounding.margins(point.w)


@needs_long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", RISKS)
def test_the_objective_is_known_up_to_its_bound(loss, risk):
    X, y = make_data(loss, 60, 4, seed=1)
    problem = Problem(1e3 * X, y, risk=RISKS[risk], loss=make_loss(loss), penalty=L2(1e-3))
    rng = np.random.default_rng(2)
    for size in (1e-6, 1e-3, 1.0):
        w = size * rng.normal(size=problem.engine.shape)
        point = problem.engine.point(w)
        found = certify(problem, point, problem.engine.worst_case(point))
        losses = np.sort(brute_losses(loss, 1e3 * X, y, w.astype(Long), False))
        exact = np.sum(problem.risk.weights(60).astype(Long) * losses)
        exact += Long(1e-3) / 2 * np.sum(w.astype(Long) ** 2)
        assert abs(Long(found.primal) - exact) <= found.primal_rounding
        assert found.primal_rounding <= found.rounding <= found.gap
        assert found.rounding <= 1e-11 * found.primal  # of some use


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
def test_what_the_intercept_may_still_gain(loss):
    rng = np.random.default_rng(3)
    X, y = make_data(loss, 30, 2, seed=3)
    given = sorel.losses.Huber(0.01) if loss == "huber" else loss
    problem = Problem(X, y, loss=given, risk=sorel.ESRM(3.0), fit_intercept=True)
    engine = problem.engine
    point = engine.point(rng.normal(size=3))
    dual = engine.worst_case(point)
    best = engine.best_intercept(point, dual)
    left = abs(float(engine.gradient(best, dual)[-1])) + 1e-14
    slack = intercepts.slack(engine, best, dual, left)
    assert 0.0 < slack <= 1e-12
    value = engine.expected(best, dual)
    for step in 10.0 ** np.arange(-16, 3):
        for shift in (-step, step):
            moved = engine.point(best.w + np.array([0.0, 0.0, shift]))
            assert engine.expected(moved, dual) >= value - slack - 1e-15 * value


def test_weights_that_do_not_add_up_are_charged():
    rng = np.random.default_rng(4)
    problem = Problem(rng.normal(size=(20, 2)), rng.normal(size=20), risk=sorel.ESRM(2.0))
    engine = problem.engine
    point = engine.point(np.zeros(2))
    dual = engine.worst_case(point)
    fine = certify(problem, point, dual)
    for share in (1e-10, -1e-10):
        other = engine.worst_case(point)
        other.density *= 1.0 + share
        found = certify(problem, point, other)
        assert found.dual <= fine.dual + fine.rounding
        assert found.rounding >= 1e-10 * found.primal
        assert found.primal + found.primal_rounding >= fine.primal


class Blind(DenseEngine):
    """An engine that knows nothing of its rounding errors."""

    def column_scale(self):
        return None

    def mass(self, dual):
        return 1.0


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_an_engine_may_leave_it_out(fit_intercept):
    X, y = make_data("squared", 40, 3, seed=5)
    options = {"risk": sorel.CVaR(0.2), "fit_intercept": fit_intercept}
    blind, seeing = Problem(X, y, engine=Blind, **options), Problem(X, y, **options)
    result = sorel.solve(blind, tol=1e-10)
    assert result.converged
    assert result.gap > 0.0
    found = seeing.certificate(result.w, result.weights)
    assert found.relative_gap <= 2e-10
    guess = blind.certificate(result.w, result.weights)
    assert guess.rounding == pytest.approx(found.rounding, rel=0.99)


@pytest.mark.parametrize("loss", ["linear", "poisson", "gamma"])
@pytest.mark.parametrize("risk", ["cvar", "esrm", "max"])
def test_losses_without_bounds_are_certified(loss, risk):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(50, 3))
    y = rng.gamma(2.0, size=50)
    problem = Problem(X, y, loss=loss, risk=RISKS[risk], penalty=L2(0.1))
    result = sorel.solve(problem, "newton", tol=1e-9)
    assert result.converged
    best = sorel.solve(problem, "newton", tol=1e-13, max_passes=200, warm_start=result)
    assert result.dual <= best.objective + 1e-15 * abs(best.objective)
    for size in (0.0, 1e-3, 1.0):
        w = best.w + size * rng.normal(size=3)
        for lam in (best.weights, np.full(50, 0.02)):
            found = problem.certificate(w, lam)
            assert found.dual <= best.objective + 1e-15 * abs(best.objective)
            assert found.gap >= found.primal - best.objective
            assert 0.0 < found.rounding <= 1e-12 * (1.0 + abs(found.primal))


def test_an_engine_that_lacks_the_sums_says_so():
    class Poor(DenseEngine):
        rounding = Engine.rounding

    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(10, 2)), rng.gamma(2.0, size=10)
    problem = Problem(X, y, loss="poisson", engine=Poor)
    with pytest.raises(NotImplementedError, match=r"Poor has no operation 'rounding'"):
        problem.certificate(np.zeros(2), np.full(10, 0.1))
    # Losses with bounds do without.
    assert sorel.solve(Problem(X, y, engine=Poor)).converged


@pytest.mark.parametrize("penalty", [sorel.Simplex(0.5), sorel.Budget(0.5, cost=0.1)], ids=repr)
def test_coefficients_beside_the_domain_do_not_lower_the_objective(penalty):
    """What is attained is attained in the domain: at the projection, up to the rounding charged."""
    X, y = make_data("squared", 40, 3, 0)
    problem = Problem(X, y, risk="esrm:2", penalty=penalty)
    for distance in (1e-14, -1e-12, -1e-10):
        w = np.array([0.2, 0.3, 0.5]) + distance
        point = problem.engine.point(w)
        found = certify(problem, point, problem.engine.worst_case(point))
        inside = problem.objective(penalty.project(w))
        assert inside <= found.primal + found.primal_rounding
        assert found.primal_rounding <= 100.0 * (abs(distance) + 1e-14)


PENALTIES = (
    sorel.L2(1e-7),
    sorel.ElasticNet(1e-7, 1e-5),
    sorel.NonNegative(1e-7),
    sorel.Box(1e-7, -1.0, 1.0),
    sorel.Simplex(1e-5),
)


CASES = [
    (loss, penalty)
    for loss in ("squared", Huber(0.1), "poisson", "gamma")
    for penalty in PENALTIES
    # Poisson's losses overflow on most of a simplex of this size.
    if not (loss == "poisson" and isinstance(penalty, sorel.Simplex))
]


@pytest.mark.parametrize(("loss", "penalty"), CASES, ids=repr)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_are_all_but_met(rows, loss, penalty):
    """What is left of the losses is far below the rounding of a margin."""
    rng = np.random.default_rng(rows)
    X = 1e6 * rng.standard_normal((rows, 12))
    y = np.exp(X @ (rng.random(12) / 1e7)) if loss in ("poisson", "gamma") else rng.random(rows)
    result = sorel.solve(sorel.Problem(X, y, risk="esrm:2", loss=loss, penalty=penalty))
    assert result.converged
    assert result.relative_gap <= 1e-4  # less where the fit counts as perfect before


@pytest.mark.parametrize("mu", [1e-9, 1e-3])
@pytest.mark.parametrize("size", [1e3, 1e7])
def test_the_bound_of_one_row_holds_in_exact_arithmetic(size, mu):
    x, y = size * np.random.default_rng(0).standard_normal(9), 1.87
    result = sorel.solve(sorel.Problem(x[None], [y], risk="mean", penalty=sorel.L2(mu)))

    def exact(w):
        residual = sum(Fraction(a) * b for a, b in zip(x, w, strict=True)) - Fraction(y)
        return (residual**2 + Fraction(mu) * sum(c * c for c in w)) / 2

    share = Fraction(y) / (Fraction(mu) + sum(Fraction(c) ** 2 for c in x))
    optimum = exact([share * Fraction(c) for c in x])
    assert Fraction(result.dual) <= optimum
    assert exact([Fraction(c) for c in result.w]) - optimum <= Fraction(result.gap)
    assert result.gap <= 1e-4 * optimum


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_one_target_is_met_up_to_the_rounding_of_the_intercept(offset):
    X = np.random.default_rng(0).standard_normal((1, 5))
    penalty = sorel.Simplex(0.0)
    assert sorel.solve(sorel.Problem(X, [offset], penalty=penalty, fit_intercept=True)).converged


@pytest.mark.parametrize("w", [-1.3, 1.0, 40.0])
def test_a_bound_from_margins_far_away_is_charged_with_its_rounding(w):
    """With X of 1e-10 margins of 1e13 were tried, whose digits cancel."""
    penalty = sorel.ElasticNet(6.16, 0.0063)
    problem = sorel.Problem([[6.6e-10]], [0.0005], risk="cvar:0.5", loss="gamma", penalty=penalty)
    assert problem.certificate(np.array([w]), np.ones(1)).dual <= problem.objective(np.zeros(1))
