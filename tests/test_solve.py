"""What every run of every solver promises: tolerance, budget, history, interruption, restarts."""

from __future__ import annotations

import itertools
import pickle
import re
import warnings

import numpy as np
import pytest
from helpers import make_data

import sorel
from sorel import ESRM, L2, CVaR, Problem, Record, Result, solve
from sorel.solvers import SOLVERS, Newton, Subgradient, UnsupportedProblemError

SOLVER_NAMES = sorted(SOLVERS)
by_solver = pytest.mark.parametrize("solver", SOLVER_NAMES)


def make_problem(n=60, d=4, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) + rng.standard_t(3, size=n)
    return Problem(X, y, **{"risk": ESRM(2.0), "penalty": L2(0.1), **options})


def quietly(problem, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConvergenceWarning)
        return solve(problem, *args, **options)


def check_result(problem, result, tol):
    """Everything that a result says about itself, recomputed."""
    assert isinstance(result, Result)
    assert result.w.shape == problem.engine.shape
    assert result.weights.shape == (problem.n_samples,)
    assert result.weights.min() >= 0.0
    assert result.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert result.objective == pytest.approx(problem.objective(result.w), rel=1e-12)
    assert result.gap == pytest.approx(result.objective - result.dual, rel=1e-9, abs=1e-15)
    assert result.relative_gap == pytest.approx(result.gap / abs(result.objective), rel=1e-9)
    assert result.converged == (result.relative_gap <= tol)
    proof = problem.certificate(result.w, result.weights)
    assert proof.gap <= max(result.gap, tol * abs(proof.primal)) * (1 + 1e-9) + 1e-15
    assert result.dual <= problem.objective(result.w) * (1 + 1e-14)
    assert result.seconds >= 0.0
    assert result.status.count(result.solver) == 1
    assert "\n" not in result.status
    history = result.history
    assert history
    assert all(isinstance(record, Record) for record in history)
    for earlier, later in itertools.pairwise(history):
        assert later.passes >= earlier.passes
        assert later.seconds >= earlier.seconds
    for record in history:
        assert record.seconds >= 0.0
        if np.isfinite(record.objective):
            assert record.gap >= -1e-14 * record.objective
            assert record.objective >= result.dual * (1 - 1e-12)
            assert record.dual <= result.objective * (1 + 1e-12)
    assert result.passes >= history[-1].passes
    assert result.objective <= min(r.objective for r in history) * (1 + tol) + 1e-15


# Every solver.


@by_solver
@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(2.0)], ids=repr)
def test_results_hold_what_they_say(solver, risk):
    problem = make_problem(risk=risk)
    result = quietly(problem, solver, tol=1e-3, max_passes=60)
    check_result(problem, result, 1e-3)
    assert result.solver == solver
    assert result.objective < problem.objective(problem.start())


@by_solver
@pytest.mark.parametrize("loss", ["huber", "logistic", "squared_hinge", "multinomial"])
def test_results_hold_for_all_losses(solver, loss):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    if loss != "huber":
        y = np.arange(40) % (3 if loss == "multinomial" else 2)
    problem = Problem(X, y, risk=CVaR(0.5), loss=loss, penalty=L2(0.1), fit_intercept=True)
    if loss == "multinomial" and solver in ("pdhg", "admm"):
        with pytest.raises(UnsupportedProblemError, match="not for the multinomial loss"):
            solve(problem, solver)
        return
    result = quietly(problem, solver, tol=1e-3, max_passes=40)
    check_result(problem, result, 1e-3)


@by_solver
@pytest.mark.parametrize("risk", [CVaR(0.1), ESRM(100.0)], ids=repr)
def test_results_are_never_worse_than_the_start(solver, risk):
    # No curvature at the start: every residual is on the linear part of the loss.
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(20, 1))
        y = 5.0 * (X[:, 0] + rng.standard_t(2, size=20))
        problem = Problem(X, y, risk=risk, loss="huber", penalty=L2(1.0), fit_intercept=True)
        result = quietly(problem, solver, tol=1e-6, max_passes=100)
        assert result.objective <= problem.objective(problem.start()) * (1 + 1e-12)


@by_solver
@pytest.mark.parametrize(
    "options",
    [
        {"penalty": sorel.ElasticNet(0.1, 0.1)},
        {"penalty": sorel.NonNegative(0.1)},
        {"penalty": sorel.Box(0.1, -0.2, 0.3)},
        {"penalty": sorel.Simplex(0.1)},
        {"sample_weight": np.arange(1.0, 61.0)},
    ],
    ids=str,
)
def test_penalties_and_weights_are_served_or_refused_in_words(solver, options):
    problem = make_problem(**options)
    try:
        result = quietly(problem, solver, tol=1e-3, max_passes=40)
    except UnsupportedProblemError as error:
        # Says which solvers can.
        assert any(repr(name) in str(error) for name in SOLVERS)  # noqa: PT017 (not every solver refuses)
        return
    check_result(problem, result, 1e-3)
    assert np.isfinite(problem.penalty.value(result.w))


@by_solver
def test_runs_are_deterministic_and_leave_global_state_alone(solver):
    problem = make_problem()
    before = np.random.get_state()  # noqa: NPY002 (the global state is what is looked at)
    first, second = (
        quietly(problem, solver, tol=1e-6, max_passes=20, random_state=3) for _ in range(2)
    )
    after = np.random.get_state()  # noqa: NPY002 (the global state is what is looked at)
    np.testing.assert_array_equal(first.w, second.w)
    np.testing.assert_array_equal(first.weights, second.weights)
    strip = [[record._replace(seconds=0.0) for record in r.history] for r in (first, second)]
    assert strip[0] == strip[1]
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])
    assert before[2:] == after[2:]


@by_solver
def test_the_budget_of_passes_is_kept(solver):
    problem = make_problem(risk=CVaR(0.05))
    result = quietly(problem, solver, tol=0.0, max_passes=15)
    assert not result.converged
    assert result.passes <= 15 + 10
    check_result(problem, result, 0.0)


@by_solver
def test_a_callback_may_stop_any_solver(solver):
    seen = []

    def callback(record):
        seen.append(record)
        return len(seen) == 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the user wanted it: no warning
        result = solve(make_problem(), solver, tol=0.0, callback=callback)
    assert len(seen) == 1
    assert result.history == seen
    assert "stopped by the callback" in result.status


@by_solver
def test_interruption_returns_the_best_so_far(solver):
    problem = make_problem()

    def callback(record):
        if record.passes > 4:
            raise KeyboardInterrupt

    result = quietly(problem, solver, tol=0.0, max_passes=100, callback=callback)
    assert result.status.startswith("interrupted")
    check_result(problem, result, 0.0)


@by_solver
def test_the_interface_of_warm_starts(solver):
    problem = make_problem()
    first = quietly(problem, solver, tol=1e-2, max_passes=40)
    again = quietly(problem, solver, tol=1e-2, max_passes=40, warm_start=first)
    check_result(problem, again, 1e-2)
    assert again.objective <= first.objective * (1 + 1e-2)


# Numbers that agree.


def monotone(values, sign, rounding):
    """Whether values never fall (sign 1) or rise (sign -1) by more than rounding."""
    return np.all(sign * np.diff(values) >= -rounding)


@by_solver
@pytest.mark.parametrize("risk", [CVaR(0.3), ESRM(2.0)], ids=repr)
def test_the_history_and_the_result_tell_the_same(solver, risk):
    problem = make_problem(risk=risk)
    result = quietly(problem, solver, tol=1e-4, max_passes=80)
    last, rounding = result.history[-1], 1e-14 * result.objective
    best = (last.best_objective, last.best_dual, last.best_gap, last.best_relative_gap)
    assert best == (result.objective, result.dual, result.gap, result.relative_gap)
    for k, record in enumerate(result.history, start=1):
        so_far = result.history[:k]
        assert record.best_objective == pytest.approx(min(r.objective for r in so_far), rel=1e-13)
        assert record.best_dual == pytest.approx(max(r.dual for r in so_far), rel=1e-12)
        difference = record.best_objective - record.best_dual
        assert record.best_gap == pytest.approx(difference, abs=rounding)
        assert record.best_relative_gap == record.best_gap / record.best_objective
        assert record.best_gap <= record.gap + rounding
    assert monotone([record.best_objective for record in result.history], -1, rounding)
    assert monotone([record.best_dual for record in result.history], 1, rounding)
    assert monotone([record.best_gap for record in result.history], -1, rounding)
    # The parameters are those of the lowest objective, the weights those of the highest bound.
    assert problem.objective(result.w) == pytest.approx(result.objective, rel=1e-12)
    proof = problem.certificate(result.w, result.weights)
    assert proof.gap <= result.gap * (1 + 1e-6) + 1e-13 * result.objective


def test_the_gap_of_the_run_is_not_that_of_its_last_iterate():
    # The weights of a single iterate jump; the bound of an earlier one still holds.
    problem = make_problem(n=200, risk=CVaR(0.1), penalty=L2(1 / 200))
    result = quietly(problem, "prospect", tol=1e-6, max_passes=60)
    last = result.history[-1]
    assert max(record.relative_gap for record in result.history[-10:]) > 2 * result.relative_gap
    assert last.best_relative_gap == result.relative_gap


@by_solver
def test_a_run_ends_with_the_first_best_gap_below_the_tolerance(solver):
    problem = make_problem()
    result = quietly(problem, solver, tol=3e-2, max_passes=300)
    assert result.converged
    assert result.history[-1].best_relative_gap <= 3e-2
    assert all(record.best_relative_gap > 3e-2 for record in result.history[:-1])


# Solved to rounding.


def perfect(kind, size, dtype, seed=0):
    """A problem that a model fits without error, or all but."""
    rng = np.random.default_rng(seed)
    X = (size * rng.normal(size=(40, 3))).astype(dtype)
    w = rng.normal(size=3)
    z = X.astype(np.float64) @ w
    options = {"risk": CVaR(0.3), "penalty": L2(1e-12 * size**2)}
    if kind == "exact":
        return Problem(X, z, **options)
    if kind == "separable":
        X += (np.sign(z)[:, None] * w * size).astype(dtype)
        return Problem(X, np.sign(z), loss="squared_hinge", **options)
    if kind == "constant":
        return Problem(X / size, np.full(40, 0.3 * size), fit_intercept=True, risk=CVaR(0.3))
    return Problem(X, np.zeros(40), **options)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("kind", ["exact", "separable", "constant", "zero"])
@pytest.mark.parametrize("solver", ["auto", "newton", "newton_cg", "continuation"])
def test_a_perfect_fit_takes_a_few_passes(solver, kind, size, dtype):
    problem = perfect(kind, size, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(problem, solver, tol=1e-6)
    assert result.converged
    assert result.passes <= 120
    zero = problem.losses(np.zeros(problem.engine.shape)).mean()
    assert result.gap <= 1.01e-6 * max(abs(result.objective), 1e-6 * zero)
    assert result.dual <= result.objective


@pytest.mark.parametrize("kind", ["exact", "constant", "zero"])
@pytest.mark.parametrize("solver", ["lbfgs", "subgradient"])
def test_methods_of_first_order_end_at_a_perfect_fit(solver, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solve(perfect(kind, 1.0, np.float64), solver, tol=1e-6).passes <= 200


@pytest.mark.parametrize("tol", [1e-9, 1e-12, 1e-15])
@pytest.mark.parametrize("kind", ["exact", "separable", "constant", "zero"])
def test_no_tolerance_is_finer_than_rounding(kind, tol):
    problem = perfect(kind, 1.0, np.float64)
    result = quietly(problem, tol=tol)
    if result.relative_gap <= tol:
        assert result.status.startswith("converged: auto")
    elif result.converged:
        assert "perfect fit" in result.status
        assert result.gap <= 1e-12 * problem.losses(np.zeros(problem.engine.shape)).mean()
    else:
        assert result.status.startswith("stopped by rounding: auto")
    assert result.passes < 900


def test_a_tolerance_above_rounding_is_met_all_the_same():
    # A gap below 1e-12 of the loss at zero is no reason to stop where more can be had.
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 2))
    problem = Problem(X, X @ [30.0, -40.0] + 0.1 * rng.normal(size=100), penalty=L2(1e-6))
    result = solve(problem, "newton", tol=1e-11)
    assert result.objective < 1e-4 * problem.objective(np.zeros(2))
    assert result.relative_gap <= 1e-11


def test_a_run_cut_short_is_not_solved_because_of_an_offset():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(50, 3))
    y = 1e7 + X @ [1.0, 2.0, 3.0] + rng.normal(size=50)
    problem = Problem(X, y, risk=CVaR(0.2), fit_intercept=True)
    result = quietly(problem, "newton", max_passes=4)
    assert result.gap <= 1e-12 * problem.losses(np.zeros(4)).mean()
    assert result.relative_gap > 1e-6
    assert not result.converged


# Tolerance and warnings.


@pytest.mark.parametrize("tol", [1e-1, 1e-4, 1e-8, 1e-11])
def test_tol_is_the_relative_gap(tol):
    problem = make_problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(problem, Newton(), tol=tol)
    assert result.solver == "newton"
    assert result.converged
    assert result.relative_gap <= tol
    assert problem.certificate(result.w, result.weights).relative_gap <= tol
    check_result(problem, result, tol)
    assert result.status.startswith("converged")


def test_too_few_passes_are_reported_with_value_target_and_remedy():
    problem = make_problem(risk=CVaR(0.05))
    with pytest.warns(sorel.ConvergenceWarning) as caught:
        result = solve(problem, "newton", tol=1e-12, max_passes=4)
    (warning,) = caught
    message = str(warning.message)
    value = float(re.search(r"relative gap (\S+) is above", message)[1])
    assert value == pytest.approx(result.relative_gap, rel=1e-2)
    assert "tol=1e-12" in message
    assert "max_passes=4 reached" in message
    assert "raise max_passes" in message
    assert warning.filename == __file__
    assert not result.converged
    assert result.status.startswith("not converged: max_passes=4 reached")
    check_result(problem, result, 1e-12)


def test_the_clock_ends_a_run():
    problem = make_problem(risk=CVaR(0.05))
    with pytest.warns(sorel.ConvergenceWarning, match=r"max_seconds reached.*raise max_seconds"):
        result = solve(problem, "newton", tol=1e-12, max_seconds=0.0)
    assert "max_seconds" in result.status
    check_result(problem, result, 1e-12)


def test_zero_passes_still_give_a_certified_answer():
    problem = make_problem()
    result = quietly(problem, "newton", max_passes=0)
    check_result(problem, result, 1e-6)


# Callbacks and interruption.


UNEVEN = np.linspace(1.0, 2.0, 60)


@pytest.mark.parametrize("solver", ["auto", "newton", "newton_cg"])
@pytest.mark.parametrize("weight", [None, UNEVEN], ids=["even", "uneven"])
def test_interruption_between_checks_loses_nothing(monkeypatch, solver, weight):
    # Second-order methods check only when that may succeed: progress until then counts as well.
    problem = make_problem(risk=CVaR(0.1), sample_weight=weight)
    seen = []
    original = problem.engine.moved

    def interrupted(*args):
        if len(seen) == 7:
            raise KeyboardInterrupt
        seen.append(original(*args))
        return seen[-1]

    monkeypatch.setattr(problem.engine, "moved", interrupted)
    result = solve(problem, solver, tol=1e-15)
    assert result.status.startswith("interrupted")
    reached = problem.objective(seen[-2].w)
    # The margins came there by steps, and are off by rounding.
    assert result.objective <= (1.0 + 1e-12) * max(reached, problem.objective(seen[-1].w))
    assert result.objective < 0.9 * problem.objective(problem.start())


def test_errors_of_a_callback_are_the_callers():
    def callback(record):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        solve(make_problem(), "newton", callback=callback)


# Warm starts.


def test_a_warm_start_saves_passes():
    problem = make_problem(n=300, risk=CVaR(0.1), penalty=L2(1 / 300))
    cold = solve(problem, "newton", tol=1e-9)
    warm = solve(problem, "newton", tol=1e-9, warm_start=cold)
    assert warm.converged
    assert warm.passes < cold.passes
    near = make_problem(n=300, risk=CVaR(0.1), penalty=L2(1.01 / 300))
    assert solve(near, "newton", tol=1e-9, warm_start=cold).passes < cold.passes


def test_a_warm_start_from_other_data():
    few, many = make_problem(n=40), make_problem(n=90)
    start = solve(few, "newton", tol=1e-9)
    result = solve(many, "newton", tol=1e-9, warm_start=start)
    assert result.converged
    assert len(result.weights) == 90
    cold = solve(many, "newton", tol=1e-9)
    assert result.objective == pytest.approx(cold.objective, rel=2e-9)


# Arguments.


@pytest.mark.parametrize(
    "state", [None, 0, 7, np.int64(3), np.random.default_rng(1), np.random.RandomState(1)], ids=str
)
@pytest.mark.parametrize("solver", ["newton", "sorel"])
def test_sources_of_randomness(state, solver):
    problem = make_problem()
    check_result(
        problem, quietly(problem, solver, tol=1e-3, max_passes=30, random_state=state), 1e-3
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[("random_state", s, "must be") for s in (-1, 1.5, "seed", [1, -2], {})],
        *[(name, value, "must be a number of at least 0, got")
          for name in ("tol", "max_passes", "max_seconds")
          for value in (-1.0, np.nan, "1", [1.0], True)],
        ("callback", 3, "must be callable, got 3"),
        ("warm_start", np.zeros(4), ""),
        ("problem", np.zeros((3, 2)), r"must be a sorel\.Problem, got ndarray"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments_are_refused(name, value, message):
    with pytest.raises((TypeError, ValueError), match=f"{name} {message}"):
        solve(**{"problem": make_problem(), "solver": "newton", name: value})


@pytest.mark.parametrize("solver", ["adam", "", None, Newton], ids=repr)
def test_unknown_solvers_are_answered_with_the_known(solver):
    with pytest.raises(ValueError, match="unknown solver") as raised:
        solve(make_problem(), solver)
    assert all(name in str(raised.value) for name in SOLVERS)


# Results.


def test_results_are_values():
    """They can be stored, keep their arrays, and start another run unchanged."""
    problem = make_problem(n=25_000, d=2)
    result = solve(problem)
    assert (result.solver, result.converged) == ("auto", True)
    assert result.relative_gap <= 1e-6
    copy = pickle.loads(pickle.dumps(result))
    assert solve(problem, "newton", tol=1e-9, warm_start=result).converged
    np.testing.assert_array_equal(copy.w, result.w)
    np.testing.assert_array_equal(copy.weights, result.weights)
    assert (copy.history, copy.status) == (result.history, result.status)
    with pytest.raises(ValueError, match=r"shape \(2,\), this problem needs \(4,\)"):
        solve(make_problem(d=4), "newton", warm_start=copy)


# Single precision.


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("solver", ["auto", "sorel"])
def test_float32_is_solved_as_what_it_stores(loss, solver):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(400, 5)).astype(np.float32)
    y = X @ np.arange(5.0) + rng.standard_t(3, size=400)
    if loss == "logistic":
        y = np.where(y > 0, 1, -1)
    single = sorel.Problem(X, y, risk=sorel.ESRM(1.0), loss=loss)
    double = sorel.Problem(X.astype(np.float64), y, risk=sorel.ESRM(1.0), loss=loss)
    result = sorel.solve(single, solver, tol=1e-6)
    assert result.converged
    # The certificate is that of the same numbers in double precision.
    again = double.certificate(result.w, result.weights)
    assert again.primal == pytest.approx(result.objective, rel=1e-13)
    assert again.gap <= 1.0001 * result.gap + 1e-15


@pytest.mark.parametrize(
    ("kind", "named", "rounding"),
    [
        (np.float16, "float16", "9.8e-04"),
        (np.float32, "float32", "1.2e-07"),
        (np.float64, "float64", "2.2e-16"),
        (np.int32, "float64", "2.2e-16"),
        (bool, "float64", "2.2e-16"),
    ],
)
def test_the_type_of_the_numbers_is_named(kind, named, rounding):
    rng = np.random.default_rng(10)
    X = (10 * rng.normal(size=(30, 2))).astype(kind)
    problem = Problem(X, rng.normal(size=30))
    eps = np.finfo(problem.data_type).eps
    with pytest.warns(
        sorel.PrecisionWarning, match=f"rounding of X, {rounding} for {named}"
    ) as seen:
        quietly(problem, tol=0.1 * eps, max_passes=3)
    assert seen[0].filename == __file__
    assert ("as float64" in str(seen[0].message)) == (named != "float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error", sorel.PrecisionWarning)
        quietly(problem, tol=1.1 * eps, max_passes=3)


def test_a_start_of_ones_own():
    X, y = make_data("squared", 80, 3, 0)
    problem = sorel.Problem(X, y, risk=sorel.CVaR(0.3), fit_intercept=True)
    cold = sorel.solve(problem, tol=1e-9)
    near = sorel.solve(problem, tol=1e-9, w0=cold.w)
    assert near.objective == pytest.approx(cold.objective, rel=1e-8)
    first = []
    sorel.solve(problem, "subgradient", max_passes=3, w0=cold.w, callback=first.append, tol=0.0)
    assert first[0].objective == pytest.approx(cold.objective, rel=1e-6)
    assert sorel.solve(problem, w0=cold.w.tolist()).converged
    positive = sorel.Problem(X, y, risk=sorel.CVaR(0.3), penalty=sorel.NonNegative(0.1))
    assert sorel.solve(positive, w0=[-1.0, 2.0, -3.0]).converged
    with pytest.raises(ValueError, match=r"w must have shape \(4,\), intercept last, got \(3,\)"):
        sorel.solve(problem, w0=np.zeros(3))
    with pytest.raises(ValueError, match="w0 or warm_start, not both"):
        sorel.solve(problem, w0=cold.w, warm_start=cold)


# Extreme numbers.


def scaled(rng, factor):
    X = rng.standard_normal((60, 5))
    z = X @ rng.standard_normal(5) + rng.standard_normal(60)
    return X * factor, z


@pytest.mark.parametrize("factor", [1e155, 1e200, 1e300])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
def test_an_x_that_overflows_is_named(factor, loss):
    X, z = scaled(np.random.default_rng(0), factor)
    y = z if loss in ("squared", "huber") else np.sign(z)
    problem = sorel.Problem(X, y, risk=sorel.CVaR(0.2), loss=loss)
    for solver in ("auto", "sorel", "lbfgs"):
        with pytest.raises(ValueError, match=r"X has an entry of size .*e\+\d+ in column"):
            sorel.solve(problem, solver)


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_losses_that_overflow_everywhere_are_an_error(loss):
    rng = np.random.default_rng(1)
    X = -1e6 * (1.0 + rng.random((20, 3))) * (1.0 if loss == "gamma" else -1.0)
    problem = sorel.Problem(
        X, 1.0 + rng.random(20), risk=sorel.CVaR(0.2), loss=loss, penalty=sorel.Simplex(1e-3)
    )
    with pytest.raises(ValueError, match=f"the {loss} losses overflow .* scale the columns"):
        sorel.solve(problem)


@pytest.mark.parametrize("l2", [1e-320, 1e-160])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_modulus_below_rounding_is_said_to_be_the_trouble(l2, loss):
    X, z = scaled(np.random.default_rng(2), 1.0)
    y = z if loss == "squared" else np.sign(z)
    problem = sorel.Problem(X, y, risk=sorel.CVaR(0.2), loss=loss, penalty=sorel.L2(l2))
    with pytest.warns(sorel.ConvergenceWarning, match="raise l2: rounding errors alone leave"):
        sorel.solve(problem)


@pytest.mark.parametrize("size", [1e308, 1e300, 1e-300, 1e-320])
def test_sample_weights_of_any_size(size):
    X, y = scaled(np.random.default_rng(3), 1.0)
    options = {"risk": sorel.CVaR(0.2), "penalty": sorel.L2(0.1)}
    plain = sorel.solve(sorel.Problem(X, y, **options))
    weights = np.full(len(y), size)
    same = sorel.solve(sorel.Problem(X, y, sample_weight=weights, **options))
    assert same.objective == pytest.approx(plain.objective, rel=3e-6)
    half = np.where(np.arange(len(y)) < 30, size, 1.0)
    result = sorel.solve(sorel.Problem(X, y, sample_weight=half, **options))
    assert result.converged
    left = slice(0, 30) if size > 1.0 else slice(30, None)
    alone = sorel.solve(sorel.Problem(X[left], y[left], **options))
    assert result.objective == pytest.approx(alone.objective, rel=1e-5)


def test_targets_that_overflow_are_named_once(recwarn):
    X, y = scaled(np.random.default_rng(5), 1.0)
    with pytest.raises(ValueError, match="scale y"):
        sorel.solve(sorel.Problem(X, y * 1e300, risk=sorel.CVaR(0.2)))
    assert len(recwarn) == 0


@pytest.mark.parametrize(
    "penalty", [sorel.Simplex(0.0), sorel.Simplex(1e-3), sorel.Box(0.0, -1, 1)]
)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
@pytest.mark.parametrize("risk", [sorel.CVaR(0.3), sorel.ESRM(2.0), sorel.Max()])
def test_large_columns_in_bounded_domains(penalty, loss, risk):
    for seed, factor in enumerate((1e6, 1e8)):
        if factor > 1e6 and isinstance(penalty, sorel.Box):
            break  # margins of 1e8 are in reach: rounding them alone leaves more than the tolerance
        X, z = scaled(np.random.default_rng(seed), factor)
        X = np.c_[X, X[:, :3]]  # duplicated
        y = z if loss in ("squared", "huber") else np.sign(z)
        result = sorel.solve(sorel.Problem(X, y, risk=risk, loss=loss, penalty=penalty))
        assert result.converged, result.status


def test_a_domain_too_large_for_the_digits_is_said_to_be_the_trouble():
    X, y = scaled(np.random.default_rng(0), 1e8)
    problem = sorel.Problem(X, y, risk=sorel.CVaR(0.3), penalty=sorel.Box(0.0, -1e6, 1e6))
    with pytest.warns(sorel.ConvergenceWarning, match="scale the columns of X or raise l2"):
        sorel.solve(problem)


@pytest.mark.parametrize(
    ("loss", "X", "y"),
    [
        ("gamma", [[182.0, -5740.0]], [1.4]),
        ("poisson", [[6220.0, -418.0], [-233.0, -3150.0]], [4.0, 2.0]),
        ("poisson", [[1140.0, 1140.0], [-470.0, -470.0]], [1.0, 1.0]),
        ("gamma", [[-1140.0, -1140.0], [470.0, 470.0]], [1.0, 1.0]),
    ],
)
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_losses_that_overflow_at_the_start_alone(loss, X, y, fit_intercept):
    X = np.array(X)
    if not fit_intercept and X[0, 0] == X[0, 1]:
        return  # one point, where they overflow
    problem = sorel.Problem(
        X,
        y,
        risk=sorel.ESRM(2.0),
        loss=loss,
        penalty=sorel.Simplex(0.1),
        fit_intercept=fit_intercept,
    )
    result = sorel.solve(problem)
    assert result.converged, result.status


def test_the_status_says_why_a_run_ended_once():
    """The solver's note is what ended the run, or stands in brackets; never both."""
    X, y = make_data("squared", 60, 3, 0)
    problem = Problem(X, y, risk=CVaR(0.3))
    with pytest.warns(sorel.ConvergenceWarning):
        ended = solve(problem, Subgradient(step_size=1e6), tol=1e-6)
    assert ended.status.startswith("not converged: diverged at pass")
    assert ended.status.count("diverged") == 1
    chosen = solve(problem, "auto", tol=1e-6)
    assert re.search(r"auto \([a-z_]+( then [a-z_]+)*\)", chosen.status)
    plain = solve(problem, "newton", tol=1e-6)
    assert "(" not in plain.status


@pytest.mark.parametrize(("loss", "sign"), [("poisson", 1.0), ("gamma", -1.0)])
def test_losses_that_are_huge_at_the_start(loss, sign):
    # Newton steps climb down an exponential one by one, and these are 400 steps high.
    rng = np.random.default_rng(2)
    X = sign * rng.uniform([400.0, 300.0, -1.0], [500.0, 400.0, 1.0], size=(6, 3))
    y = np.full(6, 2.0)
    problem = sorel.Problem(X, y, risk="cvar:0.5", loss=loss, penalty=sorel.Simplex(1e-3))
    result = sorel.solve(problem)
    assert result.converged, result.status
    assert result.passes < 100


def test_a_callback_may_stop_where_losses_overflow():
    X = np.array([[1e4], [2e4]])
    problem = sorel.Problem(X, [1.0, 2.0], loss="poisson", penalty=sorel.L2(1e-3))
    result = sorel.solve(problem, "newton", w0=[1.0], callback=lambda record: True)
    assert result.objective == np.inf
    assert not result.converged
