"""Bounds in long doubles: valid, and there where double precision leaves none."""

from fractions import Fraction

import numpy as np
import pytest

import sorel
from sorel.extended import _FORMULAS, Long, _huber, can_extend
from sorel.losses import LOSSES, Huber

longer = pytest.mark.skipif(
    np.finfo(np.longdouble).eps >= np.finfo(float).eps,
    reason="long doubles are no longer than doubles here",
)


def targets(loss, z, rng):
    if loss in ("logistic", "squared_hinge"):
        return np.where(z + rng.logistic(size=len(z)) > 0, 1, -1)
    if loss == "multinomial":
        y = rng.integers(0, 3, len(z))
        y[:3] = [0, 1, 2]
        return y
    if loss in ("poisson", "gamma"):
        return np.exp(z / np.abs(z).max()) * rng.gamma(2.0, size=len(z))
    return z + rng.normal(size=len(z))


@longer
@pytest.mark.parametrize("name", [*sorted(set(LOSSES) - {"linear", "huber"}), "huber"])
def test_formulas_agree_with_the_losses(name):
    rng = np.random.default_rng(0)
    loss = LOSSES[name]()
    shape = (200, 3) if name == "multinomial" else 200
    z = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1.3, shape)
    y = loss.encode(targets(name, rng.normal(size=200), rng))[0]
    formulas = _huber(Huber().delta) if name == "huber" else _FORMULAS[type(loss)]
    values, slopes = formulas(y, z.astype(Long))
    assert values.dtype == slopes.dtype == Long
    np.testing.assert_allclose(values.astype(float), loss.value(y, z), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(slopes.astype(float), loss.derivative(y, z), rtol=1e-11, atol=1e-15)
    # Slopes are those of the values: a central difference in long doubles has 12 digits.
    h = Long(1e-6)
    if name == "multinomial":
        direction = rng.normal(size=shape)
        moved = formulas(y, z + h * direction)[0] - formulas(y, z - h * direction)[0]
        expected = np.sum(slopes * direction, axis=1)
    else:
        moved = formulas(y, z.astype(Long) + h)[0] - formulas(y, z.astype(Long) - h)[0]
        expected = slopes
    size = 1.0 + np.abs(values.astype(float))
    assert np.all(np.abs((moved / (2 * h) - expected).astype(float)) <= 1e-6 * size)


PENALTIES = [
    sorel.L2(0.1),
    sorel.ElasticNet(0.1, 0.05),
    sorel.NonNegative(0.1),
    sorel.Box(0.0, -0.5, 0.3),
    sorel.Simplex(0.0),
    sorel.Simplex(0.2),
]


@longer
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"linear"}))
def test_bound_is_valid_and_tight_for_its_weighting(loss, intercept, penalty):
    # Under the mean there is one weighting, so that the bound is the optimum, found in doubles.
    rng = np.random.default_rng(1)
    X = rng.normal(size=(12, 4))
    y = targets(loss, X @ rng.normal(size=4), rng)
    problem = sorel.Problem(
        X, y, risk=sorel.Mean(), loss=loss, penalty=penalty, fit_intercept=intercept
    )
    result = sorel.solve(problem, tol=1e-12)
    run = problem.for_run()
    engine = run.engine
    near = result.w + 1e-4 * rng.normal(size=result.w.shape)
    near[:4] = penalty.project(near[:4])
    point, dual = engine.point(near), engine.uniform()
    value = problem.objective(near)
    total, rounding = run._extended_bound(run._rounding(), point, dual, value, np.inf)
    bound = value - total
    assert rounding <= 1e-9 * result.objective
    assert bound <= result.objective * (1 + 1e-14)
    assert bound >= result.dual - 1e-8 * result.objective


@longer
@pytest.mark.parametrize(
    ("loss", "penalty", "intercept", "factor"),
    [
        # A tiny l2: the dual value loses the square of the gradient's error over it.
        ("squared_hinge", sorel.NonNegative(1e-9), False, 1e7),
        ("poisson", sorel.NonNegative(1e-8), True, 1e7),
        # Intercepts of a thousand: doubles leave their derivative at 1e-13.
        ("multinomial", sorel.ElasticNet(1e-7, 1e-6), True, None),
        # A wide domain without curvature.
        ("multinomial", sorel.Box(0.0, -1e8, 1e8), True, 1.0),
    ],
)
def test_solved_problems_are_certified(loss, penalty, intercept, factor):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 4))
    y = targets(loss, X[:, 0], rng)
    X = X + 10.0 ** rng.uniform(2, 4, 4) if factor is None else factor * X
    problem = sorel.Problem(
        X, y, risk=sorel.ESRM(2.0), loss=loss, penalty=penalty, fit_intercept=intercept
    )
    result = sorel.solve(problem)
    assert result.converged, result.status
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-6


@longer
def test_targets_far_from_zero():
    # The residuals are rounding errors of the margins, and the slopes with them.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, 7)) * 1e3
    problem = sorel.Problem(X, [4e8, -4e8], loss=sorel.losses.Huber(0.01), penalty=sorel.L2(1e-9))
    result = sorel.solve(problem)
    assert result.converged, result.status


@longer
def test_who_has_no_such_bound():
    X, y = np.eye(3), np.array([1.0, 2.0, 5.0])
    small = sorel.Problem(X, y)
    assert can_extend(small.engine, small.penalty)
    assert small.extends
    assert not sorel.Problem(X, y, loss="linear").extends
    many = sorel.Problem(np.ones((3, 500)), y)
    assert not can_extend(many.engine, many.penalty)


class InDoubles(sorel.losses.Loss):
    """A loss whose formulas know nothing but doubles."""

    name, lower_bound, curvature_bound = "in_doubles", 0.0, 1.0

    def value(self, y, z):
        return 0.5 * np.asarray(z - y, dtype=np.float64) ** 2

    def derivative(self, y, z):
        return np.asarray(z - y, dtype=np.float64)

    def curvature(self, y, z):
        return np.ones(len(z))


def test_a_loss_in_doubles_is_left_alone():
    problem = sorel.Problem(np.eye(3), [1.0, 2.0, 5.0], loss=InDoubles())
    run = problem.for_run()
    point, dual = run.engine.point(np.zeros(3)), run.engine.uniform()
    assert run._extended_bound(run._rounding(), point, dual, 1.0, np.inf).total == np.inf


@longer
@pytest.mark.parametrize("risk", [sorel.Mean(), sorel.ESRM(3.0), sorel.Extremile(2.5)], ids=repr)
def test_hinges_that_doubles_see_on_the_wrong_side(risk):
    """Columns of 1e7 hold the weights by hinges of 1e-9, which is what margins are rounded by."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, y = 5e7 * rng.standard_normal((5, 20)), np.array([-1, 1, 1, -1, 1])
        problem = sorel.Problem(X, y, risk=risk, loss="squared_hinge", penalty=sorel.Simplex(0.1))
        result = sorel.solve(problem, max_passes=300)
        assert result.converged, result.status
        # Without the losses, which are next to nothing, this is a projection.
        w = cp.Variable(20)
        inside = [w >= 0, cp.sum(w) == 1, cp.multiply(y, X / 5e7 @ w) >= 1 / 5e7]
        least = cp.Problem(cp.Minimize(0.05 * cp.sum_squares(w)), inside).solve(solver="CLARABEL")
        assert result.dual - 1e-8 <= least <= result.objective + 1e-8


@longer
@pytest.mark.parametrize("seed", range(4))
def test_residuals_far_below_the_targets_leave_no_gap(seed):
    """A narrow Huber loss of large numbers that are fitted, where digits of margins run out."""
    rng = np.random.default_rng(seed)
    X, y = 3e7 * rng.standard_normal((12, 20)), 1e8 * rng.standard_t(1.5, 12)
    delta, l2 = 2e-3, 0.01
    problem = sorel.Problem(
        X, y, risk=sorel.Mean(), loss=Huber(delta), penalty=sorel.L2(l2), fit_intercept=True
    )
    result = sorel.solve(problem)
    assert result.converged
    assert result.relative_gap <= 1e-8
    # The objective without any rounding.
    w = [Fraction(x) for x in result.w]
    width, value = Fraction(delta), Fraction(0)
    for row, target in zip(X, y, strict=True):
        z = sum((Fraction(x) * c for x, c in zip(row, w[:-1], strict=True)), start=w[-1])
        r = abs(z - Fraction(target))
        value += (r * r / 2 if r <= width else width * (r - width / 2)) / len(y)
    value += Fraction(l2) / 2 * sum(c * c for c in w[:-1])
    assert Fraction(result.dual) <= value
    assert abs(value - Fraction(result.objective)) <= Fraction(result.gap)
