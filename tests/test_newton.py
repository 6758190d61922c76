"""The second-order solver against a conic solver, on awkward problems, and on the paper's."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from helpers import CASES, certified, conic_optimum, make_data, quietly
from own_penalties import Ball

import sorel
from sorel import ESRM, L2, CVaR, ElasticNet, Extremile, Max, Mean, Problem, Simplex, solve
from sorel.datasets import load_paper_dataset
from sorel.solvers import UnsupportedProblemError
from sorel.solvers.base import Run
from sorel.solvers.directions import Cheapest
from sorel.solvers.newton import MAX_SIZE
from sorel.solvers.state import State

EXTREME = [CVaR(0.02), CVaR(0.1), Max(), ESRM(50.0)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_optimum_agrees_with_a_conic_solver(case):
    result = certified(case.problem(), tol=1e-12)
    assert result.objective == pytest.approx(conic_optimum(case).value, rel=1e-7)


# Awkward problems.


def regression(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + rng.standard_t(2, size=n)


def decades(loss):
    X, y = make_data(loss, 120, 7, seed=1)
    return X * 10.0 ** np.arange(-3, 4), y, loss


X3, Y3 = regression(70, 3)
ALMOST = 10.0 * X3 @ [1.0, -2.0, 0.5] + 1e-5 * np.random.default_rng(2).normal(size=70)


AWKWARD = {
    "ties": (np.round(X3), np.round(Y3), "squared"),
    "fewer rows than columns": (*regression(15, 40), "squared"),
    "constant, zero and repeated columns": (
        np.column_stack([X3, np.ones(70), np.zeros(70), X3[:, 0], 1e-3 * np.ones(70)]),
        Y3,
        "squared",
    ),
    "columns over six decades": decades("squared"),
    "labels, columns over six decades": decades("logistic"),
    "almost met": (10.0 * X3, ALMOST, "squared"),
    "almost met, huber": (10.0 * X3, ALMOST, "huber"),
    # The intercept has far to go, and the losses no curvature to say how far.
    "far targets, huber": (X3, 1e4 * (1.0 + Y3), "huber"),
    "separable": (X3, np.sign(X3[:, 0]), "squared_hinge"),
    "three classes": (X3, np.digitize(Y3, [-1.0, 1.0]), "multinomial"),
}


@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("risk", [Mean(), CVaR(0.5), ESRM(2.0), *EXTREME], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_awkward_data(kind, risk, intercept):
    X, y, loss = AWKWARD[kind]
    for l2 in (1.0,) if "far" in kind else (1e-6, 1.0 / len(y), 1.0):
        penalty = L2(l2)
        problem = Problem(X, y, risk=risk, loss=loss, penalty=penalty, fit_intercept=intercept)
        start = problem.objective(problem.start())
        # There is a way down, also where all losses tie at the start.
        share = 0.9 if kind == "separable" and l2 < 1 else 1 + 1e-9
        assert certified(problem).objective <= share * start


@pytest.mark.parametrize("penalty", [
    L2(1.0), L2(1e-6), sorel.ElasticNet(1e-3, 0.05), sorel.ElasticNet(1e-3, 100.0),
    sorel.NonNegative(1e-6), sorel.Box(1.0, -0.1, 0.1), sorel.Box(1e-3, 0.5, 0.5), Simplex(1e-3),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("risk", [Mean(), CVaR(0.1), ESRM(2.0), ESRM(100.0), Max()], ids=repr)
def test_kinks_walls_and_losses_without_curvature(penalty, risk):
    result = certified(Problem(*regression(100, 6), risk=risk, penalty=penalty, fit_intercept=True))
    assert np.isfinite(penalty.value(result.w[:-1]))
    # Most residuals lie on the linear part of Huber's loss, and no penalty holds the intercept.
    for n, unit, intercept in itertools.product([3, 20, 60], [1.0, 5.0], [False, True]):
        if isinstance(penalty, Simplex):
            break  # a single coefficient has no choice there
        X, y = regression(n, 1)
        options = {"risk": risk, "loss": "huber", "penalty": penalty, "fit_intercept": intercept}
        certified(Problem(X, unit * y, **options))


# The paper's problems, with optimal values certified to a relative gap of 1e-11.
PAPER = {
    "yacht": (0.295917358232, 0.274134834638, 0.302463087609),
    "energy": (0.110642981387, 0.107459532353, 0.118766406611),
    "concrete": (0.362342773056, 0.333068469502, 0.369971779473),
    "kin8nm": (0.539611956055, 0.493142664688, 0.547194615799),
    "power": (0.065983529656, 0.061149972448, 0.067673654803),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_problems(name):
    X, y = load_paper_dataset(name)
    for risk, value in zip((CVaR(0.5), ESRM(2.0), Extremile(2.5)), PAPER[name], strict=True):
        # The published digits end at 1e-12.
        found = certified(Problem(X, y, risk=risk)).objective
        assert found == pytest.approx(value, rel=1e-9, abs=1e-12)


# Its limits.


def test_too_many_parameters_are_refused_where_a_matrix_is_needed():
    problem = Problem(np.ones((2, 5001)), [0.0, 1.0], penalty=Ball())
    with pytest.raises(UnsupportedProblemError, match=r"at most 5000.*solver=.*'auto'"):
        sorel.solve(problem, solver="newton")
    many = Problem(np.ones((3, 1667)), [0, 1, 2], loss="multinomial", penalty=Ball())
    with pytest.raises(UnsupportedProblemError, match="5001 x 5001"):
        sorel.solve(many, solver="newton")


def sparse_classes(n, d, seed=0):
    """Rows of few entries in 60 of d columns, of very unequal frequency, and noisy labels."""
    rng = np.random.default_rng(seed)
    columns = d // 60 * (60 * rng.random((n, 8)) ** 3).astype(int)
    shape, rows = (n, d), np.repeat(np.arange(n), 8)
    X = scipy.sparse.csr_array((np.abs(rng.normal(size=8 * n)), (rows, columns.ravel())), shape)
    return X, np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1, -1)


@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(2.0)], ids=repr)
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "multinomial"])
def test_many_parameters_under_a_smooth_penalty(risk, loss):
    X, y = sparse_classes(150, 6000)
    if loss == "multinomial":
        y = y + (np.arange(150) % 2)
    problem = Problem(X, y, risk=risk, loss=loss, penalty=L2(1e-2), fit_intercept=True)
    # Rounding decides whether the multinomial case takes a little less or more than 1000 passes.
    result = certified(problem, tol=1e-7, max_passes=2000)
    # The empty columns take no part; without them the problem is small enough for a matrix.
    used = np.flatnonzero(np.diff(X.tocsc().indptr))
    assert len(used) <= 60 < MAX_SIZE < 6000
    small = Problem(X[:, used], y, risk=risk, loss=loss, penalty=L2(1e-2), fit_intercept=True)
    assert result.objective == pytest.approx(certified(small, tol=1e-9).objective, rel=2e-7)


def test_the_accuracy_of_floating_point_is_reported_honestly():
    X, y = regression(60, 3)
    problem = Problem(X, y, risk=CVaR(0.1))
    result = quietly(problem, "newton", tol=0.0)
    assert 0.0 < result.relative_gap < 1e-12
    # The tolerance is out of reach, and what is left is rounding: the gap covers it.
    assert not result.converged
    assert "rounding errors allow no further progress" in result.status
    assert result.gap >= problem.certificate(result.w, result.weights).rounding > 0.0


@pytest.mark.parametrize("seed", [20, 22, 28])
def test_a_start_that_no_step_improves(seed):
    # Two samples and many badly scaled columns: the first step promises nothing but rounding.
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2, 80)) * 10.0 ** rng.uniform(-3, 3, 80)
    problem = Problem(X, [0, 1], risk=Mean(), loss="squared_hinge", penalty=Simplex(0.5))
    assert solve(problem, "auto", tol=1e-6).converged


def test_duplicated_rows_under_the_worst_case():
    # Steps are cut short as rows join the ties; the centre must wait until one goes through.
    rng = np.random.default_rng(7)
    X = np.repeat(rng.normal(size=(40, 60)), 5, axis=0)
    y = np.repeat(rng.normal(size=40), 5) + 1e-3 * rng.normal(size=200)
    for risk in (Max(), CVaR(0.02)):
        problem = Problem(X, y, risk=risk, penalty=L2(0.005), fit_intercept=True)
        assert solve(problem, "auto", tol=1e-6).converged


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_many_rows_of_a_quadratic_problem_take_one_step(weighted, intercept):
    rng = np.random.default_rng(3)
    n, d = 90_000, 3
    X = rng.normal(size=(n, d)) + 1.0
    y = X @ np.arange(1.0, d + 1.0) + rng.standard_t(3, size=n)
    omega = rng.uniform(1.0, 2.0, size=n) if weighted else None
    options = {"penalty": L2(0.1), "fit_intercept": intercept, "sample_weight": omega}
    problem = Problem(X, y, risk=Mean(), **options)
    assert problem.is_quadratic
    result = certified(problem)
    assert result.passes == 3  # the start, the Hessian of all rows, and where the step leads
    A = np.column_stack([X, np.ones(n)]) if intercept else X
    ridge = np.diag([0.1] * d + [0.0] * intercept)
    share = omega / omega.sum() if weighted else np.full(n, 1.0 / n)
    expected = np.linalg.solve((A.T * share) @ A + ridge, (A.T * share) @ y)
    np.testing.assert_allclose(result.w, expected, rtol=1e-9)
    # Others are not, and take a sample of the rows to begin with.
    for risk in (CVaR(0.1), ESRM(2.0)):
        assert not problem.with_risk(risk).is_quadratic
        certified(problem.with_risk(risk))


@pytest.mark.parametrize(("d", "penalty", "hard", "by_products"), [
    (100, L2(0.1), False, (False, False)), (200, L2(0.1), False, (True, True)),
    (200, L2(1e-12), True, (True, False)), (200, ElasticNet(0.1, 0.1), False, (False, False)),
])  # fmt: skip
def test_directions_come_from_products_while_these_cost_less_than_a_matrix(
    d, penalty, hard, by_products
):
    rng = np.random.default_rng(0)
    X, turn = rng.standard_normal((900, d)), np.linalg.qr(rng.standard_normal((d, d)))[0]
    if hard:
        X = X @ (turn * np.geomspace(1.0, 1e-6, d)) @ turn.T
    # A gradient of all directions, of much curvature and of little.
    y = np.linalg.lstsq(X.T, rng.standard_normal(d))[0]
    problem = Problem(X, y, risk="mean", penalty=penalty)
    engine, find = problem.engine.for_run(), Cheapest(problem)
    begun = find.by_products
    state = State(problem, engine.point(problem.start()), engine.uniform(), 0.0)
    run = Run(problem.start(), None, 1e-6, 1e6, np.inf, 0)
    for _ in range(9):
        find(state, run, 0.0)
    assert (begun, find.by_products) == by_products


@pytest.mark.parametrize("solver", ["auto", "continuation"])
def test_separable_labels_with_next_to_no_penalty(solver):
    """All losses are tiny, more of them tie than there are parameters to tell them apart."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 200))
    y = np.where(X @ rng.standard_normal(200) > 0.0, 1.0, -1.0)
    problem = sorel.Problem(X, y, risk="cvar:0.1", loss="logistic", penalty=sorel.L2(1e-10))
    result = sorel.solve(problem, solver)
    assert result.converged, result.status
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-5


@pytest.mark.parametrize("solver", ["newton", "auto"])
@pytest.mark.parametrize("risk", ["mean", "extremile:3", "cvar:0.2"])
def test_a_start_that_is_the_solution_is_seen_at_once(solver, risk):
    """Columns that a nonnegative model can only lose by: all its coefficients stay at 0."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1.0, (300, 4))
    y = -X.sum(axis=1) - rng.uniform(0.0, 1.0, 300)
    problem = sorel.Problem(X, y, risk=risk, penalty=sorel.NonNegative(1e-3))
    result = sorel.solve(problem, solver, tol=1e-9)
    assert result.converged
    assert not np.any(result.w)
    assert result.passes <= 1.0
