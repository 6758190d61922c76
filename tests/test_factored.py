"""Models of few rows and huge columns: optimality conditions, in long doubles."""

import math

import numpy as np
import pytest

import sorel
from sorel import factored
from sorel.factored import (
    FactoredModel,
    loses_curvature,
    loses_penalty,
    minimize_factored,
    sees_faintly,
)
from sorel.models import minimize_quadratic

PENALTIES = {
    "l2": sorel.L2(1e-3),
    "elastic": sorel.ElasticNet(1e-3, 2e-3),
    "nonnegative": sorel.NonNegative(1e-3),
    "box": sorel.Box(1e-3, -0.4, 0.3),
    "simplex": sorel.Simplex(1e-3),
}


def violation(M, gradient, w, penalty, n_penalized, u):
    """The largest violation of the optimality conditions, outside of the rows of M.

    What M sees is stiff: there rounding errors of u alone make slopes of any size.
    """
    kernel = penalty.kernel(n_penalized)
    long = np.longdouble
    step = u.astype(long) - w
    slope = gradient + M.T.astype(long) @ (M.astype(long) @ step)
    slope[:n_penalized] += kernel.l2 * u[:n_penalized]
    free = np.ones(len(u), dtype=bool)
    coef = u[:n_penalized]
    low, high = kernel.lower, kernel.upper
    if isinstance(penalty, sorel.Simplex):
        high = np.full(n_penalized, np.inf)
    free[:n_penalized] = (coef > low) & (coef < high) & ((coef != 0.0) | (kernel.l1 == 0.0))
    slope[:n_penalized] += kernel.l1 * np.sign(coef)
    # Multipliers of the rows, from the free parameters.
    directions = M[:, free].T
    if isinstance(penalty, sorel.Simplex):
        directions = np.c_[directions, np.arange(len(u))[free] < n_penalized]
    scale = np.linalg.norm(directions, axis=0)
    found = np.linalg.lstsq(directions / scale, slope[free].astype(float), rcond=None)[0] / scale
    every = M.T
    if isinstance(penalty, sorel.Simplex):
        every = np.c_[every, np.arange(len(u)) < n_penalized]
    rest = (slope - every @ found).astype(float)
    worst = np.abs(rest[free]).max(initial=0.0)
    bound = rest[:n_penalized][~free[:n_penalized]]
    at = coef[~free[:n_penalized]]
    lower, upper = low[~free[:n_penalized]], high[~free[:n_penalized]]
    down = np.where(at > lower, bound - kernel.l1, 0.0)
    up = np.where(at < upper, -bound - kernel.l1, 0.0)
    return max(worst, down.max(initial=0.0), up.max(initial=0.0))


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1e7])
def test_optimality(name, intercept, factor):
    penalty, rng = PENALTIES[name], np.random.default_rng(3)
    for _ in range(5):
        M = factor * rng.normal(size=(3, 8))
        if intercept:
            M = np.c_[M, np.ones(3)]
        w = np.zeros(M.shape[1])
        w[:8] = penalty.project(rng.normal(size=8))
        gradient = M.T @ (1e-3 / factor * rng.normal(size=3)) + 2e-3 * rng.normal(size=len(w))
        if intercept:
            gradient[8] = M[:, 8] @ (1e-3 / factor * rng.normal(size=3))
        start, _ = minimize_quadratic(M.T @ M, gradient, w, penalty, 8)
        u = minimize_factored(M, gradient, w, penalty, 8, start)
        np.testing.assert_allclose(u[:8], penalty.project(u[:8]), atol=1e-12)
        if factor == 1.0:
            np.testing.assert_allclose(u, start, rtol=1e-6, atol=1e-6)
        # A vertex may be better by less than a double can tell.
        if not intercept and u is not start:
            assert violation(M, gradient, w, penalty, 8, u) <= 1e-8


def test_what_the_matrix_has_lost():
    rng = np.random.default_rng(0)
    M, w = 1e8 * rng.normal(size=(2, 6)), np.full(6, 1 / 6)
    small, large = 1e-3 * rng.normal(size=6), np.full(6, 1e12)
    assert loses_penalty(M.T @ M, small, w, 1e-3, 2)
    assert not loses_penalty(M.T @ M, small, w, 1e6, 2)
    assert not loses_penalty(M.T @ M, large, w, 1e-3, 2)  # the gradient has too few digits, too
    assert not loses_penalty(M.T @ M, small, w, 1e-3, 20)
    assert not loses_penalty(M.T @ M, small, w, 0.0, 2)


def test_solutions_keep_their_sum_and_their_digits():
    rng = np.random.default_rng(1)
    M = 1e8 * rng.normal(size=(2, 6))
    model = FactoredModel(M, 1e-4, 6)
    right = 1e-4 * rng.normal(size=6) + 5.0 + M.T @ np.array([1e-8, -1e-8])
    free = np.ones(6, dtype=bool)
    step = model.solve(free, right, free)
    assert abs(step.sum()) <= 1e-15 * np.abs(step).max()
    # In the directions that neither the rows nor the sum see, the step is right / l2.
    seen = np.linalg.qr(np.c_[M.T, np.ones(6)])[0]
    rest = right - seen @ (seen.T @ right)
    np.testing.assert_allclose(step - seen @ (seen.T @ step), rest / 1e-4, rtol=1e-8, atol=1e-10)


def test_an_intercept_without_curvature():
    with pytest.raises(np.linalg.LinAlgError, match="do not bend"):
        FactoredModel(np.array([[1.0, 0.0]]), 0.1, 1)


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic", "poisson"])
@pytest.mark.parametrize("intercept", [False, True])
def test_few_rows_of_huge_columns_on_the_simplex(loss, intercept):
    # Losses are as good as constraints, and l2 decides among all that satisfies them.
    rng = np.random.default_rng(5)
    X = 1e7 * rng.normal(size=(2, 10))
    y = [2.0, 1.0] if loss == "poisson" else [1, -1]
    problem = sorel.Problem(
        X, y, risk="extremile:2.5", loss=loss, penalty=sorel.Simplex(1e-3), fit_intercept=intercept
    )
    result = sorel.solve(problem)
    assert result.converged, result.status


def nearly_equal_columns(rng, n, d, faint):
    X = rng.normal(size=(n, d))
    X[:, 1:] = X[:, :1] + faint * X[:, 1:]
    return X


def least_squares_gap(M, best, u, reach):
    """|M (u - best)|^2 / 2 over a box, less a bound on its minimum, both relative to |M best|^2.

    Every r has |M (x - best)|^2 / 2 >= r . M (x - best) - |r|^2 / 2. The one at u is made
    orthogonal to the columns of free coordinates, since it is not known better than u is.
    """
    r = (M.astype(np.longdouble) @ (u - best.astype(np.longdouble))).astype(float)
    value = 0.5 * float(r @ r)
    free = np.abs(u) < reach
    if free.any():
        Q = np.linalg.qr(M[:, free] / np.linalg.norm(M[:, free], axis=0))[0]
        r -= Q @ (Q.T @ r)
        r -= Q @ (Q.T @ r)
    slope = np.where(free, 0.0, M.T @ r)
    bound = -reach * float(np.abs(slope).sum()) - float(r @ (M @ best)) - 0.5 * float(r @ r)
    return (value - bound) / float(np.sum((M @ best) ** 2))


@pytest.mark.parametrize("faint", [1e-4, 1e-7, 1e-9])
@pytest.mark.parametrize("rows", [5, 30])
def test_faint_directions_without_l2(faint, rows):
    rng, d, reach = np.random.default_rng(rows), 5, 2.0
    penalty, zero = sorel.Box(0.0, -reach, reach), np.zeros(5)
    lost = []
    for _ in range(10):
        M = nearly_equal_columns(rng, rows, d, faint)
        best = rng.normal(size=d) * 2.0
        best[0] = -best[1:].sum()  # what there is to gain is faint
        gradient = -(M.T.astype(np.longdouble) @ (M @ best.astype(np.longdouble))).astype(float)
        start, _ = minimize_quadratic(M.T @ M, gradient, zero, penalty, d)
        u = minimize_factored(M, gradient, zero, penalty, d, start)
        assert np.all(np.abs(u) <= reach)
        assert least_squares_gap(M, best, u, reach) <= 1e-5
        lost.append(least_squares_gap(M, best, start, reach))
    if faint <= 1e-7:
        assert max(lost) > 1e-2  # which is what the rows are for


def test_directions_that_no_row_sees_lead_to_the_bounds():
    rng = np.random.default_rng(2)
    M = nearly_equal_columns(rng, 3, 4, 1e-8)
    M = np.c_[M, M[:, :1], np.zeros(3)]
    gradient = M.T @ rng.normal(size=3)
    gradient[5] = 1e-3
    penalty, zero = sorel.Box(0.0, -2.0, 3.0), np.zeros(6)
    u = minimize_factored(M, gradient, zero, penalty, 6, zero)
    assert u[5] == -2.0
    assert np.linalg.norm(gradient[:5] + M[:, :5].T @ (M @ u)) <= 1e-7


def test_which_matrices_lose_faint_directions():
    rng = np.random.default_rng(4)
    for faint in (1e-6, 1e-9):
        M = nearly_equal_columns(rng, 12, 4, faint)
        assert loses_curvature(M.T @ M, 0.0, 12)
        assert sees_faintly(M)
        assert not loses_curvature(M.T @ M, 1e-3, 12)
        assert not loses_curvature(M.T @ M, 0.0, 10**6)  # the rows would take too long
    M = rng.normal(size=(12, 4)) * 10.0 ** np.array([-6, 0, 3, 6])  # scales alone lose nothing
    assert not loses_curvature(M.T @ M, 0.0, 12)
    assert not sees_faintly(M)
    M[:, 3] = M[:, 2]
    assert loses_curvature(M.T @ M, 0.0, 12)
    assert not sees_faintly(M)
    assert not sees_faintly(np.zeros((3, 2)))
    with pytest.raises(np.linalg.LinAlgError, match="do not bend at all"):
        FactoredModel(np.zeros((3, 2)), 0.0, 2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["multinomial", "logistic"])
@pytest.mark.parametrize("eta", [0.0, 5.0])
def test_factor_is_a_root_of_the_hessian(loss, weighted, eta):
    rng = np.random.default_rng(6)
    X, y = rng.normal(size=(40, 5)), rng.integers(0, 3 if loss == "multinomial" else 2, 40)
    weight = rng.integers(0, 3, 40) + (np.arange(40) < 4.0) if weighted else None
    problem = sorel.Problem(
        X, y, risk="cvar:0.3", loss=loss, fit_intercept=True, sample_weight=weight
    ).for_run()
    engine = problem.engine
    point = engine.point(0.3 * rng.normal(size=engine.shape))
    dual = engine.ascend(engine.uniform(), point, eta) if eta else engine.uniform()
    M = engine.curvature(point, dual, eta).factor()
    hessian = engine.hessian(point, dual, eta)
    np.testing.assert_allclose(M.T @ M, hessian, atol=1e-14 * np.abs(hessian).max())


@pytest.mark.parametrize("risk", ["max", "mean", "esrm:2"])
@pytest.mark.parametrize("loss", ["squared_hinge", "logistic", "gamma", "poisson"])
def test_nearly_equal_columns_in_a_wide_box(loss, risk):
    rng, n, d, faint = np.random.default_rng(2), 20, 6, 1e-8
    X, reach = nearly_equal_columns(rng, n, d, faint), 1e-2 / faint
    z = X @ (reach * rng.normal(size=d))
    means, signs = np.exp(z / np.abs(z).mean()), np.where(rng.random(n) < 0.5, -1, 1)
    y = {
        "squared_hinge": signs,
        "logistic": signs,
        "gamma": means * rng.gamma(2.0, size=n),
        "poisson": rng.poisson(means),
    }[loss]
    penalty = sorel.Box(0.0, -reach * rng.random(d), reach * rng.random(d))
    result = sorel.solve(sorel.Problem(X, y, risk=risk, loss=loss, penalty=penalty))
    assert result.converged, result.status


def test_where_the_penalty_is_lost_to_rounding():
    """Its share of the matrix' errors, and what the gradient's errors leave of l2 w."""
    rng = np.random.default_rng(5)
    found = []
    for _ in range(300):
        h, l2 = 10.0 ** rng.uniform(4, 12), 10.0 ** rng.uniform(-6, 2)
        g, size = 10.0 ** rng.uniform(-2, 14), 10.0 ** rng.uniform(-4, 4)
        hessian, gradient = np.diag([h, 0.3 * h, 0.0]), np.array([0.1 * g, -g, 0.0])
        w = np.array([-size, 0.0, 0.2 * size])
        lost = 2.0**-52 * h > 1e-4 * l2
        told = 2.0**-52 * g < 1e-2 * l2 * size
        found.append((lost, told))
        assert loses_penalty(hessian, gradient, w, l2, 3) is (lost and told)
        assert not loses_penalty(hessian, gradient, w, l2, 4)
    assert len(set(found)) == 4
    many = factored._MOST_PARAMETERS
    for p, lost in ((many, True), (many + 1, False)):
        assert loses_penalty(1e12 * np.eye(p), np.zeros(p), np.ones(p), 1e-3, 2) is lost


def test_where_faint_directions_are_lost():
    for share, lost in ((0.9, True), (1.1, False)):
        # The second pivot of columns at a small angle is its sine.
        sine = share * factored._FAINT
        matrix = np.array([[1.0, math.sqrt(1.0 - sine**2)], [math.sqrt(1.0 - sine**2), 1.0]])
        scale = np.array([1e3, 1e-2])
        for hessian in (matrix, scale[:, None] * matrix * scale):
            assert loses_curvature(hessian, 0.0, 2) is lost
    equal = np.ones((2, 2))
    for share, lost in ((0.9, True), (1.1, False)):
        assert loses_curvature(equal, share * 2.0**-52 / 1e-4, 2) is lost
    rows = factored._MOST_NUMBERS // 2
    assert loses_curvature(equal, 0.0, rows)
    assert not loses_curvature(equal, 0.0, rows + 1)
    for p, lost in ((factored._MOST_PARAMETERS, True), (factored._MOST_PARAMETERS + 1, False)):
        assert loses_curvature(np.ones((p, p)), 0.0, 2) is lost


@pytest.mark.parametrize(
    ("share", "seen"),
    [
        (0.9 * factored._FAINT, True),
        (1.1 * factored._FAINT, False),
        (1.1 * factored._INVISIBLE, True),
        (0.9 * factored._INVISIBLE, False),
    ],
)
def test_directions_that_are_seen_faintly(share, seen):
    turn = np.linalg.qr(np.random.default_rng(6).normal(size=(2, 2)))[0]
    # Columns of length 1 along (1, 1) and (1, -1) have singular values of this ratio.
    M = turn @ np.diag([1.0, share]) @ np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(1 + share**2)
    assert sees_faintly(M) is seen


def test_rows_for_what_a_factor_does_not_see():
    M = np.random.default_rng(7).normal(size=(2, 5))
    singular = np.linalg.svd(M, compute_uv=False)
    extra = factored._unseen(M, 1e-10)
    np.testing.assert_allclose(extra @ M.T, 0.0, atol=1e-12)
    expected = (factored._LENT * singular[-1]) ** 2 * np.eye(3)
    np.testing.assert_allclose(extra @ extra.T, expected, atol=1e-12)
    # One that is seen too faintly counts as not seen.
    assert len(factored._unseen(np.vstack([M[0], 1e-12 * M[1]]), 1e-10)) == 4


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("n_penalized", [5, 4])
def test_systems_with_a_factor(l2, n_penalized):
    """Products and solutions are those of the matrix, for all parameters and for some."""
    rng = np.random.default_rng(8)
    for rows in (3, 9):
        model = FactoredModel(rng.normal(size=(rows, 5)), l2, n_penalized)
        matrix = model.M.T @ model.M + np.diag(model.diagonal)
        step, right = rng.normal(size=5), rng.normal(size=5)
        np.testing.assert_allclose(model.product(step), matrix @ step)
        if l2 > 0.0:
            np.testing.assert_array_equal(model.diagonal[:n_penalized], l2)
            sizes = np.sum(model.M**2, axis=0)
            lent = 1e-4 * l2 * sizes[n_penalized:] / sizes.max()
            np.testing.assert_allclose(model.diagonal[n_penalized:], lent)
        for free in (np.ones(5, dtype=bool), np.array([True, False, True, True, True])):
            some = matrix[np.ix_(free, free)]
            found = model.solve(free, right[free])
            np.testing.assert_allclose(some @ found, right[free], rtol=1e-6, atol=1e-9)
            if l2 == 0.0:
                continue
            summing = (np.arange(5) < n_penalized)[free]
            found = model.solve(free, right[free], summing)
            assert found[summing].sum() == pytest.approx(0.0, abs=1e-10)
            left = some @ found - right[free]
            np.testing.assert_allclose(left[summing], left[summing].mean(), atol=1e-7)
            np.testing.assert_allclose(left[~summing], 0.0, atol=1e-7)


@pytest.mark.parametrize(("settled", "steps"), [(1e-8, 2), (-1.0, factored._FULL_STEPS)])
def test_a_face_is_left_when_steps_are_small_or_full(monkeypatch, settled, steps):
    monkeypatch.setattr(factored, "_SETTLED", settled)
    calls, own = [], FactoredModel.solve

    def solve(self, free, *arguments):
        calls.append(free.copy())
        return own(self, free, *arguments)

    monkeypatch.setattr(FactoredModel, "solve", solve)
    rng = np.random.default_rng(9)
    M, gradient = rng.normal(size=(9, 4)), rng.normal(size=4)
    u = minimize_factored(M, gradient, np.zeros(4), sorel.L2(0.3), 4, np.zeros(4))
    np.testing.assert_allclose(u, np.linalg.solve(M.T @ M + 0.3 * np.eye(4), -gradient))
    assert len(calls) == steps


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", PENALTIES)
def test_a_poor_start_is_left_behind(name, intercept):
    penalty, rng = PENALTIES[name], np.random.default_rng(10)
    for _ in range(5):
        M, gradient = rng.normal(size=(9, 5 + intercept)), 0.3 * rng.normal(size=5 + intercept)
        w, start = np.zeros((2, 5 + intercept))
        w[:5] = penalty.project(rng.normal(size=5))
        start[:5] = penalty.project(2.0 * rng.normal(size=5))
        exact, _ = minimize_quadratic(M.T @ M, gradient, w, penalty, 5)
        u = minimize_factored(M, gradient, w, penalty, 5, start)
        np.testing.assert_allclose(u, exact, atol=1e-9)


@pytest.mark.parametrize(
    ("penalty", "start", "first"),
    [
        (sorel.ElasticNet(0.1, 0.1), [0.2, 0.0, -0.3, 0.0], [0, 2, 3]),
        (sorel.NonNegative(0.1), [0.2, 0.0, 0.3, 0.0], [0, 2, 3]),
        (sorel.Box(0.1, -0.2, 0.2), [0.2, -0.2, 0.0, 0.0], [2, 3]),
        (sorel.L2(0.1), [0.2, 0.0, -0.3, 0.0], [0, 1, 2, 3]),
    ],
)
def test_what_moves_first_is_neither_at_a_bound_nor_at_a_kink(monkeypatch, penalty, start, first):
    calls, own = [], FactoredModel.solve

    def solve(self, free, *arguments):
        calls.append(np.flatnonzero(free).tolist())
        return own(self, free, *arguments)

    monkeypatch.setattr(FactoredModel, "solve", solve)
    M, gradient = np.random.default_rng(11).normal(size=(9, 4)), np.full(4, 0.1)
    # The last is an intercept.
    minimize_factored(M, gradient, np.zeros(4), penalty, 3, np.array(start))
    assert calls[0] == first


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_scales_of_columns_lose_nothing_in_any_units(scale):
    assert not loses_curvature(scale * np.diag([1.0, 1e-20]), 0.0, 2)
    assert loses_curvature(scale * np.diag([1.0, 0.0]), 0.0, 2)


def test_rows_for_what_is_not_seen_in_the_units_of_the_columns():
    rng = np.random.default_rng(12)
    M = rng.normal(size=(2, 4)) * [1e-3, 1.0, 1e3, 1.0]
    model = FactoredModel(M, 0.0, 4)
    np.testing.assert_array_equal(model.M[:2], M)
    np.testing.assert_array_equal(model.diagonal, 0.0)
    scale = np.sqrt(np.sum(M**2, axis=0))
    seen, extra = M / scale, model.M[2:] / scale
    assert extra.shape == (2, 4)
    np.testing.assert_allclose(extra @ seen.T, 0.0, atol=1e-12)
    np.testing.assert_allclose(extra, factored._unseen(seen, factored._INVISIBLE), atol=1e-12)


def test_several_outputs_see_less():
    few, several = factored._INVISIBLE, factored._INVISIBLE_OF_SEVERAL
    share = math.sqrt(few * several)
    turn = np.linalg.qr(np.random.default_rng(13).normal(size=(2, 2)))[0]
    # As above, columns of length 1 and singular values of this ratio.
    M = turn @ np.diag([1.0, share]) @ np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(1 + share**2)
    assert few < share < several
    for n_outputs, rows in ((1, 2), (2, 3)):
        assert len(FactoredModel(M, 0.0, 2, n_outputs).M) == rows
