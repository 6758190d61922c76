"""What every run of every solver promises: tolerance, budget, history, interruption, restarts."""

import itertools
import pickle
import re
import warnings

import helpers
import numpy as np
import pytest
from helpers import make_data, quietly

import sorel
from sorel import ESRM, L2, CVaR, Problem, Simplex, solve
from sorel.solvers import SOLVERS, Iterate, Newton, Solver, Subgradient, UnsupportedProblemError

by_solver = pytest.mark.parametrize("solver", sorted(SOLVERS))


def make_problem(n=60, d=4, seed=0, factor=1.0, **options):
    rng = np.random.default_rng(seed)
    X = factor * rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) / factor + rng.standard_t(3, size=n)
    loss = sorel.losses.LOSSES[options.get("loss", "squared")]
    if loss.is_classifier:
        y = np.digitize(y, [0.0, 1.0]) if loss.name == "multinomial" else np.sign(y)
    return Problem(X, y, **{"risk": ESRM(2.0), "penalty": L2(0.1), **options})


def strictly(problem, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return solve(problem, *args, **options)


def check_result(problem, result, tol):
    """Everything that a result says about itself, recomputed."""
    assert result.w.shape == problem.engine.shape
    assert result.weights.shape == (problem.n_samples,)
    assert result.weights.min() >= 0.0
    assert result.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert result.objective == pytest.approx(problem.objective(result.w), rel=1e-12)
    assert result.objective <= problem.objective(problem.start()) * (1 + max(tol, 1e-12))
    assert result.gap == pytest.approx(result.objective - result.dual, rel=1e-9, abs=1e-15)
    assert result.relative_gap == pytest.approx(result.gap / abs(result.objective), rel=1e-9)
    assert result.converged == (result.relative_gap <= tol)
    proof = problem.certificate(result.w, result.weights)
    assert proof.gap <= max(result.gap, tol * abs(proof.primal)) * (1 + 1e-9) + 1e-15
    assert result.status.count(result.solver) == 1
    assert "\n" not in result.status
    check_history(result, tol)


def check_history(result, tol):
    """The best of the history so far is monotone, and the last of it is the result."""
    history, rounding = result.history, 1e-13 * result.objective
    assert result.passes >= history[-1].passes
    for earlier, later in itertools.pairwise(history):
        assert later.passes >= earlier.passes
        assert later.seconds >= earlier.seconds >= 0.0
        assert later.best_objective <= earlier.best_objective + rounding
        assert later.best_dual >= earlier.best_dual - rounding
        assert later.best_gap <= earlier.best_gap + rounding
        assert earlier.best_relative_gap > tol
    for record in history:
        assert record.objective >= result.dual - rounding
        assert record.dual <= result.objective + rounding
        assert record.best_objective <= record.objective + rounding
        assert record.best_dual >= record.dual - rounding
        assert record.best_gap <= record.gap + rounding
        difference = record.best_objective - record.best_dual
        assert record.best_gap == pytest.approx(difference, abs=rounding)
        assert record.best_relative_gap == record.best_gap / record.best_objective
    last = history[-1]
    best = (last.best_objective, last.best_dual, last.best_gap, last.best_relative_gap)
    assert best == (result.objective, result.dual, result.gap, result.relative_gap)


# Every solver.


@by_solver
@pytest.mark.parametrize("options", [
    {"risk": CVaR(0.3)},
    {"risk": ESRM(2.0)},
    {"loss": "huber", "fit_intercept": True},
    # No curvature at the start: every residual is on the linear part of the loss.
    {"loss": "huber", "fit_intercept": True, "n": 20, "d": 1, "factor": 0.1, "seed": 1},
    {"loss": "logistic", "fit_intercept": True},
    {"loss": "squared_hinge", "risk": CVaR(0.5)},
    {"loss": "multinomial", "risk": CVaR(0.5), "fit_intercept": True},
    {"penalty": sorel.ElasticNet(0.1, 0.1)},
    {"penalty": sorel.NonNegative(0.1)},
    {"penalty": sorel.Box(0.1, -0.2, 0.3)},
    {"penalty": Simplex(0.1)},
    {"penalty": Simplex(0.0), "loss": "logistic", "fit_intercept": True},
    {"penalty": sorel.Box(0.0, -0.2, 0.3), "fit_intercept": True},
    {"sample_weight": np.arange(1.0, 61.0)},
], ids=lambda options: "-".join(str(value) for value in options.values())[:40])  # fmt: skip
def test_problems_are_served_as_the_result_says_or_refused_in_words(solver, options):
    problem = make_problem(**options)
    try:
        result = quietly(problem, solver, tol=1e-3, max_passes=60)
    except UnsupportedProblemError as error:
        # Says which solvers can.
        assert any(repr(name) in str(error) for name in SOLVERS)  # noqa: PT017 (not every solver refuses)
        return
    assert result.solver == solver
    check_result(problem, result, 1e-3)


@by_solver
def test_runs_are_deterministic_and_leave_global_state_alone(solver):
    before = str(np.random.get_state())  # noqa: NPY002 (the global state is what is looked at)
    first, second = (
        quietly(make_problem(), solver, tol=1e-6, max_passes=20, random_state=3) for _ in range(2)
    )
    assert str(np.random.get_state()) == before  # noqa: NPY002 (the global state is what is looked at)
    np.testing.assert_array_equal(first.w, second.w)
    np.testing.assert_array_equal(first.weights, second.weights)
    strip = [[record._replace(seconds=0.0) for record in r.history] for r in (first, second)]
    assert strip[0] == strip[1]


@by_solver
def test_the_budget_of_passes_is_kept_and_warm_starts_go_on(solver):
    problem = make_problem(risk=CVaR(0.05))
    result = quietly(problem, solver, tol=0.0, max_passes=15)
    assert result.passes <= 15 + 10
    check_result(problem, result, 0.0)
    again = quietly(problem, solver, tol=1e-2, max_passes=40, warm_start=result)
    check_result(problem, again, 1e-2)
    assert again.objective <= result.objective * (1 + 1e-2)


@by_solver
def test_a_callback_may_stop_or_interrupt_any_solver(solver):
    problem, seen = make_problem(), []
    # The user wanted it: no warning.
    result = strictly(problem, solver, tol=0.0, callback=lambda record: not seen.append(record))
    assert result.history == seen
    assert len(seen) == 1
    assert "stopped by the callback" in result.status

    def interrupt(record):
        if record.passes > 4:
            raise KeyboardInterrupt

    result = quietly(problem, solver, tol=0.0, max_passes=100, callback=interrupt)
    assert result.status.startswith("interrupted")
    check_result(problem, result, 0.0)


# Solved to rounding.


def perfect(kind, size=1.0, dtype=np.float64):
    """A problem that a model fits without error, or all but."""
    rng = np.random.default_rng(0)
    X = (size * rng.normal(size=(40, 3))).astype(dtype)
    w = rng.normal(size=3)
    z = X.astype(np.float64) @ w
    options = {"risk": CVaR(0.3), "penalty": L2(1e-12 * size**2)}
    if kind == "separable":
        X += (np.sign(z)[:, None] * w * size).astype(dtype)
        return Problem(X, np.sign(z), loss="squared_hinge", **options)
    if kind == "constant":
        return Problem(X / size, np.full(40, 0.3 * size), fit_intercept=True, risk=CVaR(0.3))
    return Problem(X, z if kind == "exact" else np.zeros(40), **options)


KINDS = ["exact", "separable", "constant", "zero"]
by_kind = pytest.mark.parametrize("kind", KINDS)


def solvers_of(kind):
    """First-order methods are slow where classes are separable."""
    slow = [] if kind == "separable" else ["lbfgs", "subgradient"]
    return ["auto", "newton", "newton_cg", "continuation", *slow]


@pytest.mark.parametrize(("kind", "solver"), [(k, s) for k in KINDS for s in solvers_of(k)])
def test_a_perfect_fit_takes_a_few_passes(solver, kind):
    first_order = solver in ("lbfgs", "subgradient")
    for size, dtype in itertools.product((1e-6, 1.0, 1e6), (np.float64, np.float32)):
        problem = perfect(kind, 1.0 if first_order else size, dtype)
        result = strictly(problem, solver, tol=1e-6)
        assert result.passes <= 200
        zero = problem.losses(np.zeros(problem.engine.shape)).mean()
        assert result.gap <= 1.01e-6 * max(abs(result.objective), 1e-6 * zero)
        assert result.dual <= result.objective


@by_kind
@pytest.mark.parametrize("tol", [1e-9, 1e-12, 1e-15])
def test_no_tolerance_is_finer_than_rounding(kind, tol):
    problem = perfect(kind)
    result = quietly(problem, tol=tol)
    if result.relative_gap <= tol:
        assert result.status.startswith("converged: auto")
    elif result.converged:
        assert "perfect fit" in result.status
        assert result.gap <= 1e-12 * problem.losses(np.zeros(problem.engine.shape)).mean()
    else:
        assert result.status.startswith("stopped by rounding: auto")
    assert result.passes < 900


class Resting(Solver):
    """Passes without any progress, at the start and then at the optimum."""

    name = "resting"

    def iterates(self, problem, run):
        best = quietly(problem, tol=1e-15)
        for k in itertools.count():
            w = problem.start() if k < 60 else best.w
            run.passes += 1.0
            yield Iterate(problem.engine.point(w), problem.engine.nearest_dual(best.weights)[0])


def test_a_run_at_the_level_of_rounding_ends_once_it_rests():
    problem = make_problem()
    result = quietly(problem, Resting(), tol=1e-15, max_passes=10_000)
    assert result.status.startswith("stopped by rounding")
    assert not result.converged
    assert 100 < result.passes < 300


def test_the_last_bound_is_as_good_as_the_parameters_and_weights_allow():
    problem = make_problem()
    result = quietly(problem, Subgradient(), tol=1e-9, max_passes=30)
    assert result.gap <= problem.certificate(result.w, result.weights).gap * (1 + 1e-9)


def test_the_objective_is_that_of_the_rounded_intercept():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    problem = Problem(X, 2.0**40 + X @ [1.0, 2.0] + 1e-3 * rng.standard_normal(50),
                      penalty=L2(1e-16), fit_intercept=True)  # fmt: skip
    result = quietly(problem)
    assert result.objective == pytest.approx(problem.objective(result.w), rel=1e-9, abs=0.0)


def test_a_small_gap_beside_the_loss_at_zero_is_no_reason_to_stop():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 2))
    problem = Problem(X, X @ [30.0, -40.0] + 0.1 * rng.normal(size=100), penalty=L2(1e-6))
    assert solve(problem, "newton", tol=1e-11).relative_gap <= 1e-11
    offset = Problem(X, 1e7 + X @ [1.0, 2.0], risk=CVaR(0.2), fit_intercept=True)
    result = quietly(offset, "newton", max_passes=4)
    assert result.gap <= 1e-12 * offset.losses(np.zeros(3)).mean()
    assert result.relative_gap > 1e-6
    assert not result.converged


# Tolerance, warnings and the status.


@pytest.mark.parametrize(("limit", "reason"), [
    ({"max_passes": 4}, "max_passes=4 reached"),
    ({"max_passes": 0}, "max_passes=0 reached"),
    ({"max_seconds": 0.0}, "max_seconds reached"),
], ids=str)  # fmt: skip
def test_a_budget_too_small_is_reported_with_value_target_and_remedy(limit, reason):
    problem = make_problem(risk=CVaR(0.05))
    with pytest.warns(sorel.ConvergenceWarning) as caught:
        result = solve(problem, "newton", tol=1e-12, **limit)
    (warning,) = caught
    assert warning.filename == __file__
    words = rf"relative gap (\S+) is above tol=1e-12 .*{reason}.*raise {next(iter(limit))}$"
    found = re.search(words, str(warning.message))
    assert float(found[1]) == pytest.approx(result.relative_gap, rel=1e-2)
    assert result.status.startswith(f"not converged: {reason}")
    check_result(problem, result, 1e-12)


def test_the_status_says_why_a_run_ended_once():
    """The solver's note is what ended the run, or stands in brackets; never both."""
    problem = make_problem(risk=CVaR(0.3))
    ended = quietly(problem, Subgradient(step_size=1e6))
    assert ended.status.startswith("not converged: diverged at pass")
    assert ended.status.count("diverged") == 1
    assert re.search(r"auto \([a-z_]+( then [a-z_]+)*\)", solve(problem).status)
    assert "(" not in solve(problem, "newton").status


@pytest.mark.parametrize("solver", ["auto", "newton", "newton_cg"])
def test_interruption_between_checks_loses_nothing(monkeypatch, solver):
    # Second-order methods check only when that may succeed: progress until then counts as well.
    problem = make_problem(risk=CVaR(0.1))
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
    # The margins came there by steps, and are off by rounding.
    reached = max(problem.objective(point.w) for point in seen[-2:])
    assert result.objective <= (1.0 + 1e-12) * reached
    assert result.objective < 0.9 * problem.objective(problem.start())


def test_errors_of_a_callback_are_the_callers():
    with pytest.raises(ZeroDivisionError):
        solve(make_problem(), "newton", callback=lambda record: 1 / 0)


# Starts and other arguments.


def test_a_warm_start_saves_passes_on_the_same_and_other_data():
    problem = make_problem(n=300, risk=CVaR(0.1), penalty=L2(1 / 300))
    cold = solve(problem, "newton", tol=1e-9)
    for near in (problem, make_problem(n=300, risk=CVaR(0.1), penalty=L2(1.01 / 300))):
        warm = solve(near, "newton", tol=1e-9, warm_start=cold)
        assert warm.converged
        assert warm.passes < cold.passes
    few = solve(make_problem(n=40, risk=CVaR(0.1), penalty=L2(1 / 300)), "newton")
    result = solve(problem, "newton", tol=1e-9, warm_start=few)
    assert result.objective == pytest.approx(cold.objective, rel=2e-9)


def test_a_start_of_ones_own():
    X, y = make_data("squared", 80, 3, 0)
    problem = Problem(X, y, risk=CVaR(0.3), fit_intercept=True)
    cold = solve(problem, tol=1e-9)
    first = []
    quietly(problem, "subgradient", max_passes=3, w0=cold.w.tolist(), callback=first.append)
    assert first[0].objective == pytest.approx(cold.objective, rel=1e-6)
    positive = Problem(X, y, risk=CVaR(0.3), penalty=sorel.NonNegative(0.1))
    assert solve(positive, w0=[-1.0, 2.0, -3.0]).converged
    with pytest.raises(ValueError, match=r"w must have shape \(4,\), intercept last, got \(3,\)"):
        solve(problem, w0=np.zeros(3))
    with pytest.raises(ValueError, match="w0 or warm_start, not both"):
        solve(problem, w0=cold.w, warm_start=cold)


@pytest.mark.parametrize(
    "state", [None, 7, np.int64(3), np.random.default_rng(1), np.random.RandomState(1)], ids=str
)
def test_sources_of_randomness(state):
    problem = make_problem()
    result = quietly(problem, "sorel", tol=1e-3, max_passes=30, random_state=state)
    check_result(problem, result, 1e-3)


@pytest.mark.parametrize(("name", "value", "message"), [
    *[("random_state", s, "must be") for s in (-1, 1.5, "seed", [1, -2], {})],
    *[(name, value, "must be a number of at least 0, got")
      for name in ("tol", "max_passes", "max_seconds")
      for value in (-1.0, np.nan, "1", [1.0], True)],
    ("callback", 3, "must be callable, got 3"),
    ("warm_start", np.zeros(4), ""),
    ("problem", np.zeros((3, 2)), r"must be a sorel\.Problem, got ndarray"),
], ids=str)  # fmt: skip
def test_bad_arguments_are_refused(name, value, message):
    with pytest.raises((TypeError, ValueError), match=f"{name} {message}"):
        solve(**{"problem": make_problem(), "solver": "newton", name: value})


@pytest.mark.parametrize("solver", ["adam", "", None, Newton], ids=repr)
def test_unknown_solvers_are_answered_with_the_known(solver):
    with pytest.raises(ValueError, match="unknown solver") as raised:
        solve(make_problem(), solver)
    assert all(name in str(raised.value) for name in SOLVERS)


def test_results_can_be_stored_and_start_another_run_unchanged():
    problem = make_problem(n=25_000, d=2)
    result = solve(problem)
    copy = pickle.loads(pickle.dumps(result))
    assert solve(problem, "newton", tol=1e-9, warm_start=result).converged
    np.testing.assert_array_equal(copy.w, result.w)
    np.testing.assert_array_equal(copy.weights, result.weights)
    assert (copy.history, copy.status) == (result.history, result.status)
    with pytest.raises(ValueError, match=r"shape \(2,\), this problem needs \(4,\)"):
        solve(make_problem(d=4), "newton", warm_start=copy)


# The type of the data.


@pytest.mark.parametrize(
    ("kind", "named", "rounding"),
    [(np.float16, "float16", "9.8e-04"), (np.float32, "float32", "1.2e-07"),
     (np.float64, "float64", "2.2e-16"), (np.int32, "float64", "2.2e-16")],
)  # fmt: skip
def test_a_tolerance_below_the_rounding_of_the_data_is_named(kind, named, rounding):
    rng = np.random.default_rng(10)
    problem = Problem((10 * rng.normal(size=(30, 2))).astype(kind), rng.normal(size=30))
    eps = np.finfo(problem.data_type).eps
    message = f"rounding of X, {rounding} for {named}.*set tol={2 * eps:.1e} or more"
    with pytest.warns(sorel.PrecisionWarning, match=message) as seen:
        quietly(problem, tol=0.1 * eps, max_passes=3)
    assert seen[0].filename == helpers.__file__
    assert ("as float64" in str(seen[0].message)) == (named != "float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error", sorel.PrecisionWarning)
        quietly(problem, tol=1.1 * eps, max_passes=3)


# Extreme numbers.


@pytest.mark.parametrize("factor", [1e155, 1e300])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge"])
def test_an_x_that_overflows_is_named(factor, loss):
    problem = make_problem(factor=factor, loss=loss)
    for solver in ("auto", "sorel", "lbfgs"):
        with pytest.raises(ValueError, match=r"X has an entry of size .*e\+\d+ in column"):
            solve(problem, solver)


def test_targets_that_overflow_are_named_once(recwarn):
    X, y = make_data("squared", 60, 5, 5)
    with pytest.raises(ValueError, match="scale y"):
        solve(Problem(X, y * 1e300, risk=CVaR(0.2)))
    assert len(recwarn) == 0


@pytest.mark.parametrize(("loss", "sign"), [("poisson", 1.0), ("gamma", -1.0)])
def test_losses_that_overflow_everywhere_are_an_error(loss, sign):
    rng = np.random.default_rng(1)
    X = sign * 1e6 * (1.0 + rng.random((20, 3)))
    problem = Problem(X, 1.0 + rng.random(20), loss=loss, penalty=Simplex(1e-3))
    with pytest.raises(ValueError, match=rf"the {loss} losses overflow .* size \S+e\+06; scale"):
        solve(problem)


@pytest.mark.parametrize(("options", "remedy"), [
    ({"penalty": L2(1e-320)}, "raise l2: rounding errors alone leave"),
    ({"penalty": L2(1e-160)}, "raise l2: rounding errors alone leave"),
    ({"penalty": L2(1e-160), "loss": "logistic"}, "raise l2: rounding errors alone leave"),
    ({"penalty": sorel.Box(0.0, -1e6, 1e6), "factor": 1e8}, "columns of X or raise l2"),
], ids=str)  # fmt: skip
def test_what_rounding_leaves_is_said_with_a_remedy(options, remedy):
    with pytest.warns(sorel.ConvergenceWarning, match=remedy):
        solve(make_problem(risk=CVaR(0.2), **options))


@pytest.mark.parametrize("size", [1e308, 1e-300, 1e-320])
def test_sample_weights_of_any_size(size):
    X, y = make_data("squared", 60, 5, 3)
    options = {"risk": CVaR(0.2), "penalty": L2(0.1)}
    plain = solve(Problem(X, y, **options))
    same = solve(Problem(X, y, sample_weight=np.full(60, size), **options))
    assert same.objective == pytest.approx(plain.objective, rel=3e-6)
    half = np.where(np.arange(60) < 30, size, 1.0)
    result = solve(Problem(X, y, sample_weight=half, **options))
    left = slice(0, 30) if size > 1.0 else slice(30, None)
    alone = solve(Problem(X[left], y[left], **options))
    assert result.objective == pytest.approx(alone.objective, rel=1e-5)


def test_a_callback_may_stop_where_losses_overflow():
    problem = Problem([[1e4], [2e4]], [1.0, 2.0], loss="poisson", penalty=L2(1e-3))
    result = solve(problem, "newton", w0=[1.0], callback=lambda record: True)
    assert result.objective == np.inf
    assert not result.converged
