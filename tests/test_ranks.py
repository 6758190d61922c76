"""Steps by the ranks that share a matrix: their formulas, when they end, and what they lead to."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

import sorel
from sorel import ESRM, L2, CVaR, Extremile, Mean, Mixture, Problem
from sorel.solvers import Newton, NewtonCG, Run, ranks
from sorel.solvers.augmented import Secant, State


def make_problem(risk, loss="squared", n=5000, d=30, seed=0, weighted=False, intercept=True):
    rng = np.random.default_rng(seed)
    X = np.exp(0.3 * rng.standard_normal((n, 1))) * rng.standard_normal((n, d))
    y = X @ rng.standard_normal(d) / np.sqrt(d) + rng.standard_t(4, size=n)
    if loss == "logistic":
        y = np.where(y > 0.0, 1.0, -1.0)
    weight = rng.uniform(0.5, 2.0, size=n) if weighted else None
    return Problem(
        X, y, risk=risk, loss=loss, penalty=L2(1e-3), fit_intercept=intercept, sample_weight=weight
    )


def certified(problem, tol):
    """Solve, and check the proof from outside the run."""
    result = sorel.solve(problem, "newton", tol=tol)
    assert result.converged, result.status
    assert problem.certificate(result.w, result.weights).relative_gap <= tol
    return result


def start_of(problem, w):
    """The state at w with the weights of the ranks, and a run that starts there."""
    engine = problem.engine
    run = Run(w, None, 1e-6, 1e3, math.inf, 0)
    return State(problem, engine.point(w), engine.uniform(), np.inf), run


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("risk", [ESRM(0.5), ESRM(3.0), Extremile(2.5)])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
def test_they_lead_to_the_optimum(loss, risk, intercept, weighted, monkeypatch):
    problem = make_problem(risk, loss, weighted=weighted, intercept=intercept)
    assert Newton().follows_ranks(problem)
    result = certified(problem, tol=1e-9)
    monkeypatch.setattr(Newton, "follows_ranks", lambda self, problem: False)
    other = sorel.solve(problem, "newton", tol=1e-9)
    assert result.objective == pytest.approx(other.objective, rel=2e-9)
    np.testing.assert_allclose(result.w, other.w, atol=1e-3)
    assert result.passes <= 1.3 * other.passes


@pytest.mark.parametrize("risk", [ESRM(0.5), ESRM(3.0), Extremile(2.5)])
def test_squared_losses_take_one_or_two_matrices(risk, monkeypatch):
    problem = make_problem(risk)
    formed = []
    plain = type(problem.engine).hessian
    monkeypatch.setattr(
        type(problem.engine), "hessian", lambda *args: formed.append(1) or plain(*args)
    )
    result = sorel.solve(problem, "newton", tol=1e-9)
    assert result.converged
    assert result.n_iter == 0  # the weights never had a centre
    assert len(formed) <= 2


def test_what_remains_is_the_gain_of_a_newton_step_for_weights_that_stay_put():
    problem = make_problem(ESRM(2.0)).for_run()
    w = np.full(problem.engine.shape, 0.05)
    state, run = start_of(problem, w)
    ranks.gauge(state, run)
    # Half the decrease of the quadratic model, by hand.
    engine = problem.engine
    lam = engine.weights(state.dual)
    X, y = engine.stored()
    A = np.column_stack([X, np.ones(len(X))])
    modulus = np.append(np.full(X.shape[1], 1e-3), 0.0)
    gradient = A.T @ (lam * (A @ w - y)) + modulus * w
    matrix = (A.T * lam) @ A + np.diag(modulus)
    expected = 0.5 * gradient @ np.linalg.solve(matrix, gradient)
    assert state.remains == pytest.approx(expected, rel=1e-6)
    # For fixed weights, that is all there is.
    value = lam @ (0.5 * (A @ w - y) ** 2) + 0.5 * modulus @ w**2
    u = w - np.linalg.solve(matrix, gradient)
    least = lam @ (0.5 * (A @ u - y) ** 2) + 0.5 * modulus @ u**2
    assert value - least == pytest.approx(expected, rel=1e-6)
    assert run.passes == 1.0


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_direction_is_that_of_bfgs(count):
    problem = make_problem(ESRM(2.0), d=25).for_run()
    rng = np.random.default_rng(count)
    w = rng.standard_normal(problem.engine.shape)
    state, run = start_of(problem, w)
    ranks.gauge(state, run)
    matrix = run.known.matrix + np.diag(problem.modulus())
    secants = []
    for _ in range(count):
        step = rng.standard_normal(w.size)
        change = 2.0 * matrix @ step + 0.1 * step
        secants.append(Secant(step, change, float(step @ change)))
        image = matrix @ step
        matrix += np.outer(change, change) / (step @ change)
        matrix -= np.outer(image, image) / (step @ image)
    state.secants = tuple(secants)
    found = ranks.direction(state, run)
    slope = state.gradient + problem.modulus() * w
    np.testing.assert_allclose(found.delta, -np.linalg.solve(matrix, slope), rtol=1e-8, atol=1e-10)
    assert found.descent == pytest.approx(-slope @ found.delta)
    assert found.decrease == state.remains


def test_steps_are_remembered_up_to_a_number():
    problem = make_problem(ESRM(2.0), d=25).for_run()
    rng = np.random.default_rng(3)
    state, _ = start_of(problem, np.zeros(problem.engine.shape))
    for k in range(1, ranks._MEMORY + 4):
        new, _ = start_of(problem, state.point.w + 0.01 * rng.standard_normal(26))
        ranks.remember(state, new)
        assert len(new.secants) == min(k, ranks._MEMORY)
        last = new.secants[-1]
        np.testing.assert_allclose(last.step, new.point.w - state.point.w)
        # The gradient of the objective itself, as finite differences tell along the step.
        middle = problem.objective(new.point.w) - problem.objective(state.point.w)
        slopes = [s.gradient + problem.modulus() * s.point.w for s in (state, new)]
        low, high = sorted(float(slope @ last.step) for slope in slopes)
        assert low - 1e-12 <= middle <= high + 1e-12
        assert last.bend == pytest.approx(high - low, rel=1e-9)
        state = new
    # A step to where it came from tells nothing.
    same, _ = start_of(problem, state.point.w)
    ranks.remember(state, same)
    assert same.secants is state.secants


def slowed(remains, predicted, secants, borrowed=False, fresh=1.0):
    """Whether steps have slowed, and whether a matrix was made, which says that `fresh` remains."""
    made = []

    def hessian(point, dual, eta, rows):
        made.append(1)
        return np.array([[1.0 / (2.0 * fresh)]])

    engine = SimpleNamespace(hessian=hessian, size=1)
    problem = SimpleNamespace(
        engine=engine, modulus=lambda: np.zeros(1), penalty=SimpleNamespace(l2=0.0)
    )  # fmt: skip
    state = SimpleNamespace(
        problem=problem, remains=remains, predicted=predicted, secants=(None,) * secants,
        point=SimpleNamespace(w=np.zeros(1)), gradient=np.ones(1), dual=None,
    )  # fmt: skip
    known = SimpleNamespace(matrix=np.eye(1))
    known.factor = lambda problem: lambda slope: slope / known.matrix[0]
    run = SimpleNamespace(borrowed=borrowed, passes=0.0, known=known)
    found = ranks.have_slowed(state, run)
    if made:
        assert (state.predicted, state.secants) == (np.inf, ())
        assert not run.borrowed
        assert run.passes == 1.0
    return found, bool(made)


def test_when_steps_have_slowed():
    go_on, leave = (False, False), (True, False)
    assert slowed(1.0, np.inf, 0) == go_on  # before the first step
    assert slowed(0.5, 1.0, 1) == go_on
    assert slowed(0.51, 1.0, 1) == leave
    assert slowed(0.5, 1.0, 2) == go_on
    # The matrix is of another place or problem: a new one may lead on, if it tells something new.
    for steps, borrowed in ((2, False), (0, True), (1, True)):
        assert slowed(0.9, 1.0, steps, borrowed, fresh=0.9) == (True, True)
        assert slowed(0.9, 1.0, steps, borrowed, fresh=1.7) == (True, True)
        assert slowed(0.9, 1.0, steps, borrowed, fresh=1.9) == (False, True)
        assert slowed(0.9, 1.0, steps, borrowed, fresh=0.4) == (False, True)
    # No matrix, or none that has a factor.
    assert slowed(np.inf, np.inf, 0) == leave
    assert slowed(math.nan, 1.0, 1) == leave


def test_a_matrix_without_a_factor_is_left():
    problem = make_problem(ESRM(2.0), d=25).for_run()
    state, run = start_of(problem, np.zeros(problem.engine.shape))
    run.known.matrix = -np.eye(problem.engine.size)
    ranks.gauge(state, run)
    assert state.remains == np.inf
    assert ranks.have_slowed(state, run)
    assert ranks.are_far_off(state)
    with pytest.raises(np.linalg.LinAlgError):
        ranks.direction(state, run)


def test_far_from_the_solution_ranks_tell_little():
    problem = make_problem(ESRM(2.0), d=25)
    state, _ = start_of(problem, np.zeros(problem.engine.shape))
    for share, far in ((2.0, True), (0.5, False)):
        state.remains = share * ranks._FAR * state.value
        assert ranks.are_far_off(state) is far


def test_who_shares_a_matrix():
    def can(**changes):
        facts = {"products_are_cheap": True, "n_outputs": 1, "entries": ranks._WORTH_SHARING}
        jump = changes.pop("jump", ranks._SMOOTH)
        return ranks.can_share(SimpleNamespace(**{**facts, **changes}, largest_jump=lambda: jump))

    assert can()
    assert not can(products_are_cheap=False)
    assert not can(n_outputs=2)
    assert not can(entries=ranks._WORTH_SHARING - 1)
    assert not can(jump=1.01 * ranks._SMOOTH)


@pytest.mark.parametrize("weighted", [False, True])
def test_risks_with_jumps_have_kinks(weighted):
    """Each jump of the spectrum is a threshold at which samples gather."""
    follows = Newton().follows_ranks
    for risk in (ESRM(2.0), Extremile(3.0), Mixture([Mean(), ESRM(4.0)], [0.5, 0.5])):
        assert follows(make_problem(risk, weighted=weighted))
    for risk in (CVaR(0.5), Mixture([CVaR(0.5), ESRM(2.0)], [0.5, 0.5]), Mean()):
        assert not follows(make_problem(risk, weighted=weighted))
    assert not NewtonCG().follows_ranks(make_problem(ESRM(2.0)))


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_similar_problem_lends_its_matrix(loss, monkeypatch):
    problem = make_problem(ESRM(0.5), loss, d=40)
    first = sorel.solve(problem, "newton")
    assert first.curvature is not None
    assert first.n_iter == 0
    formed, projected = [], []
    engine = type(problem.engine)
    hessian, nearest = engine.hessian, engine.nearest_dual
    monkeypatch.setattr(engine, "hessian", lambda *args: formed.append(1) or hessian(*args))
    monkeypatch.setattr(engine, "nearest_dual", lambda *args: projected.append(1) or nearest(*args))
    near = problem.with_risk(ESRM(0.52))
    result = sorel.solve(near, "newton", warm_start=first)
    assert result.converged
    assert not formed
    assert not projected  # the ranks told the weights
    assert result.passes < first.passes
    cold = sorel.solve(near, "newton", tol=1e-8)
    assert result.objective == pytest.approx(cold.objective, rel=2e-6)
    # Its weights are there for a method that asks.
    assert sorel.solve(near, "sorel", warm_start=first, tol=1e-3).converged
    assert projected


@pytest.mark.parametrize("share", [1e-3, 0.5])
def test_labels_under_a_sharp_risk_leave_the_ranks(share, monkeypatch):
    """Losses come to tie there: no step by the ranks leads on, and weights start anew."""
    problem = make_problem(ESRM(2.0), "logistic", d=40)
    left = []
    plain = Newton._leave_ranks
    monkeypatch.setattr(Newton, "_leave_ranks", lambda *args: left.append(1) or plain(*args))
    monkeypatch.setattr(ranks, "_SLOW", share)
    result = certified(problem, tol=1e-8)
    assert left
    assert result.n_iter > 0
    # A problem nearby starts from the weights that had centres.
    near = problem.with_risk(ESRM(2.1))
    again = sorel.solve(near, "newton", warm_start=result)
    assert again.converged
    assert len(left) == 1
