"""Bounds on rounding errors against the errors themselves, in extended or exact arithmetic."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from helpers import LOSSES, RISKS, SERVED, brute_losses, make_data, make_loss
from own_penalties import Ball

import sorel
from sorel import L2, Problem
from sorel.certificate import certify
from sorel.certificate.rounding import Path, Rounding
from sorel.engines import DenseEngine, Engine

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


@pytest.mark.parametrize("d", [3, 13, 1000])
@pytest.mark.parametrize("l2", [0.1, 5.2238191698255546e-05])
def test_the_least_value_of_a_penalty_bounds_that_of_the_objective(d, l2):
    """A perfect fit by the best weights of a simplex, whose penalty is l2 / (2 d)."""
    problem = Problem(np.ones((1, d)), [1.0], risk="mean", penalty=sorel.Simplex(l2))
    found = problem.certificate(np.full(d, 1.0 / d), [1.0])
    assert Fraction(found.dual) <= Fraction(l2) / (2 * d)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("penalty", [
    L2(1e-7), sorel.ElasticNet(1e-7, 1e-5), sorel.NonNegative(1e-7), sorel.Box(1e-7, -1.0, 1.0),
    sorel.Simplex(1e-5),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("loss", ["squared", "huber", "gamma"])
@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_that_are_all_but_met(rows, loss, penalty, intercept):
    """What is left of the slopes is far below the rounding of a margin."""
    if loss == "gamma" and isinstance(penalty, sorel.Simplex):
        return  # half of such draws miss, with a warning: coefficients that sum to 1 move margins
    rng = np.random.default_rng(rows)
    X = 1e5 * rng.standard_normal((rows, 12))
    y = np.exp(X @ (rng.random(12) / 1e6)) if loss == "gamma" else rng.random(rows)
    options = {"risk": "esrm:2", "loss": loss, "penalty": penalty, "fit_intercept": intercept}
    assert sorel.solve(Problem(X, y, **options)).converged


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
def test_a_certificate_of_a_tiny_row_holds_far_away(w):
    penalty = sorel.ElasticNet(6.16, 0.0063)
    problem = sorel.Problem([[6.6e-10]], [0.0005], risk="cvar:0.5", loss="gamma", penalty=penalty)
    assert problem.certificate(np.array([w]), np.ones(1)).dual <= problem.objective(np.zeros(1))


# What a bound may be above the error that it stands for, and still be of use.
USEFUL = 1e3
UNIT = 2.0**-53


def test_every_source_of_an_error_of_margins_is_charged():
    X = np.array([[1e3, 0.0], [1.0, 1e-3], [0.0, 0.0]])
    problem = Problem(X, [1.0, 2.0, 3.0], fit_intercept=True)
    classes = Problem(X, [0, 1, 2], loss="multinomial", fit_intercept=True)
    moved = Problem(X, [1.0, 2.0, 3.0], loss="poisson", offset=[0.0, -70.0, 1.0])
    on_simplex = Problem(X, [1.0, 2.0, 3.0], penalty=sorel.Simplex(0.5))
    long_way, far_way, on_way = Path(np.ones(3)), Path(np.array([1e5, 0.0, 0.0])), Path(np.ones(2))
    long_way.moves = 10**9
    far_way.move(np.zeros(3))
    on_way.move(np.ones(2))
    rounding, blind = rounding_of(problem), rounding_of(Problem(X, [1e4] * 3, engine=Blind))
    many = Problem(np.ones((2000, 1)), np.ones(2000))
    zero, equal = problem.engine.point(np.zeros(3)), problem.engine.uniform()
    none = many.engine.point(np.zeros(1))
    hinge = Problem(np.zeros((2, 1)), [1, -1], loss="squared_hinge")
    linear = Problem(X, [1.0, 2.0, 3.0], loss="linear", risk="cvar:0.5")
    flat = classes.engine.point(np.zeros((3, 3)))
    convex, nothing = rounding_of(Problem(X, [1.0, 2.0, 3.0], penalty=L2(0.5))), np.zeros(2)
    point, mean = linear.engine.point(np.array([1e3, 0.0])), linear.engine.uniform()
    charged = [
        (rounding.margins(np.array([-1e5, 0.0, 0.0])), 1e8 * UNIT),
        (rounding.margins(np.array([0.0, 0.0, -1e9])), 1e9 * UNIT),
        (rounding.margins(np.zeros(3), far_way), 1e8 * UNIT),
        (rounding.margins(np.ones(3), long_way), 1e9 * 1e3 * UNIT),
        (rounding_of(classes).margins(np.array([[0.0] * 3, [0.0] * 3, [3.0, 0.0, 4.0]])), 5 * UNIT),
        (rounding_of(moved).margins(np.zeros(2)), 70.0 * UNIT),
        (rounding_of(on_simplex).margins(np.array([0.501, 0.501])), 1e3 * 2e-3),
        (rounding_of(on_simplex).margins(np.array([0.501, 0.501]), on_way), 1e3 * 2e-3),
        (blind.margins(np.zeros(2)), 1e4 * UNIT),
        (Rounding(problem.engine, problem.penalty, 1.0, 0.5).margins(np.zeros(3)), 0.5),
        (rounding.intercept(zero, equal, 0.0, 1e6)[1], 1e6 * UNIT),
        (rounding.intercept(zero, equal, -1e-3, 1e6)[1], 1e-3),
        (rounding_of(classes).intercept(flat, classes.engine.uniform(), 1e-9, 1.0)[1], 1e-9),
        (convex.bracket(1.0, np.array([1e6, 0.0]), nothing, 0.0, 0.0), 1e6 * UNIT),
        (rounding_of(on_simplex).bracket(0.0, np.array([0.501, 0.501]), nothing, 1.0, 0.0), 2.0),
        (rounding_of(hinge).losses(none, hinge.engine.uniform(), 1.0, 0.0)[1], 2.0),
        (rounding_of(many).losses(none, many.engine.uniform(), 1e4, 0.0)[0], 1e4 * UNIT),
        (rounding_of(linear).risk(point, mean, 0.0, 0.0, 0.0), 1e6 * UNIT),
        (rounding_of(linear).risk(point, mean, 1e9, 1e9, 0.0), 2e9 * UNIT),
        (rounding_of(linear).risk(point, mean, 0.0, 0.0, 0.5), 0.5),
    ]
    deviation = Problem(X, [1.0, 2.0, 3.0], loss="linear", risk=sorel.Deviation(sorel.CVaR(0.5)))
    for affine, parts in ((linear, 1.0), (deviation, 2.0)):
        sums = rounding_of(affine).affine_sums(affine.engine.uniform())
        np.testing.assert_allclose(sums, parts * np.abs(X).sum(axis=0) / 3.0, rtol=1e-12)
    for bound, error in charged:
        assert 0.99 * error <= bound <= USEFUL * error


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", ["cvar:0.3", "esrm:2"])
@pytest.mark.parametrize("loss", SERVED)
def test_errors_of_margins_move_losses_no_more_than_charged(loss, risk, weighted):
    """A shift of all margins is an error that all have; at a perfect fit only curvature counts."""
    X, y = make_data(loss, 40, 3, seed=8)
    fitted = np.append(np.random.default_rng(8).normal(size=3), 0.5)
    if loss in ("squared", "huber", "poisson", "gamma"):
        y = X @ fitted[:3] + 0.5
        y = np.exp(y) if loss in ("poisson", "gamma") else y
    weights = np.arange(1.0, 41.0) if weighted else None
    problem = Problem(X, y, risk=risk, loss=loss, fit_intercept=True, sample_weight=weights)
    engine, rounding = problem.engine, rounding_of(problem)
    several = loss == "multinomial"
    given = np.outer(fitted, [1.0, 0.0, -1.0]) if several else problem.from_user(fitted)
    for w in (given, 1.0 - given):
        point = engine.point(w)
        dual, mean = engine.worst_case(point), engine.uniform()
        for size in (1e-5, 1e-2):
            risks, means = [], []
            for sign in (1.0, -1.0):
                shifted = w.copy()
                shifted[-1] += size * np.array([sign, 0.0, 0.0] if several else sign)
                other = engine.point(shifted)
                risks.append(abs(engine.risk(other) - engine.risk(point)))
                means.append(abs(engine.expected(other, mean) - engine.expected(point, mean)))
            whole, value = engine.risk(point), engine.expected(point, mean)
            for lam, expected in ((dual, whole), (mean, value)):
                bound = rounding.risk(point, lam, expected, whole - expected, size)
                assert max(risks) <= bound <= USEFUL * max(risks)
            bound, slopes = rounding.losses(point, mean, value, size)
            assert max(means) <= bound <= USEFUL * max(means)
            assert max(means) <= size * slopes


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("penalty", [
    L2(1e-3), L2(10.0), sorel.Box(0.0, -1.0, 2.0), sorel.Box(1e-6, -2.0, 0.6),
    sorel.Simplex(0.0), sorel.Simplex(5.0), sorel.Budget(1e-3, lower=0.0, upper=0.6),
    Ball(),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("last", [0.5, -0.9])
def test_errors_of_a_gradient_move_its_bound_no_more_than_charged(penalty, blind, last):
    """An error of so much in units of the columns of X, with all signs."""
    rng = np.random.default_rng(9)
    X = rng.normal(size=(300, 3)) * [1.0, 30.0, 1e3]
    problem = Problem(X, rng.normal(size=300), penalty=penalty, engine=Blind if blind else None)
    rounding, coef = rounding_of(problem), penalty.project(np.array([0.2, 0.3, last]))
    slope = 1e3 * rng.normal(size=3)
    columns = np.abs(slope) if blind else np.abs(X).max(axis=0)
    for gradient in (slope, -penalty.l2 * coef):
        sizes = np.abs(gradient) if blind else columns
        value = penalty.fenchel_young(coef, -gradient)
        for error in (1e-4, 10.0):
            found = [
                penalty.fenchel_young(coef, -gradient - error * sizes * signs) - value
                for signs in itertools.product((1.0, -1.0), repeat=3)
            ]
            bound = rounding.bracket(value, coef, gradient, 1.0, error)
            assert max(found) <= bound <= USEFUL * max(found)
            # The same error as one of the sums that the gradient is made of.
            bound = rounding.bracket(value, coef, gradient, 1.0, 0.0, sizes * error / UNIT)
            assert max(found) <= bound <= 10.0 * USEFUL * max(found)
            bound = rounding.bracket(value, coef, gradient, error / UNIT, 0.0)
            assert blind or max(found) <= bound <= 10.0 * USEFUL * max(found)


@needs_long
@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_the_logarithm_of_a_target_is_charged(loss):
    """The formulas compare the margin with log y, of which no digit after its last is known."""
    rng, errors, bounds = np.random.default_rng(10), [], []
    for _ in range(30):
        z = rng.uniform(30.0, 40.0)
        y = np.exp(z + rng.uniform(-0.2, 0.2))
        problem = Problem([[0.0]], [y], loss=loss, offset=[z])
        point, dual = problem.engine.point(np.zeros(1)), problem.engine.uniform()
        found, z, y = problem.engine.expected(point, dual), Long(z), Long(y)
        exact = y * (np.log(y) - z - 1) + np.exp(z) if loss == "poisson" else 0
        exact = y * np.exp(-z) - 1 + z - np.log(y) if loss == "gamma" else exact
        errors.append(float(abs(found - exact) / exact))
        bounds.append(rounding_of(problem).losses(point, dual, found, 0.0)[0] / float(exact))
    assert np.all(np.array(errors) <= bounds)
    assert max(bounds) <= USEFUL * max(errors)
