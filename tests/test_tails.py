"""Solutions from the rows that carry a tail risk are those of all rows, with a certificate."""

from __future__ import annotations

import importlib
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data

import sorel
from sorel import CVaR
from sorel.certificate import Certifier
from sorel.tails import Tails

tails = importlib.import_module("sorel.tails")
paths = importlib.import_module("sorel.paths")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of small problems, so that the tests are fast."""
    monkeypatch.setattr(tails, "_WORTH_A_PART", 0)


@pytest.fixture
def parts(monkeypatch):
    """What became of the attempts to solve a point on part of the rows."""
    seen = []
    solve = Tails.solve

    def watched(self, problem, start):
        seen.append(solve(self, problem, start))
        return seen[-1]

    monkeypatch.setattr(Tails, "solve", watched)
    return seen


def make_problem(loss="squared", n=600, kind="dense", **more):
    X, y = make_data(loss, n, 4, 3)
    if set(np.unique(y)) == {-1.0, 1.0}:
        # Far in the tail of noisy labels all losses are equal: these are labels of a model.
        noise = np.random.default_rng(0).standard_normal(n)
        y = np.where(X @ [1.0, -2.0, 3.0, 1.0] + 0.3 * noise > 0.0, 1.0, -1.0)
    if kind == "sparse":
        X = scipy.sparse.csr_array(np.where(np.abs(X) > 0.5, X, 0.0))
    elif kind == "columns":
        X = np.asfortranarray(X)
    more["fit_intercept"] = loss != "linear"
    return sorel.Problem(X, y, loss=loss, penalty=sorel.L2(0.01), **more)


@pytest.mark.parametrize("kind", ["dense", "sparse", "columns"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "linear", "poisson"])
def test_a_part_has_the_solution_of_all_rows(loss, weighted, kind):
    rng = np.random.default_rng(0)
    weight = rng.choice([0.0, 0.5, 1.0, 3.0], 600) if weighted else None
    problem = make_problem(loss, kind=kind, risk=CVaR(0.2), sample_weight=weight)
    start = sorel.solve(problem, tol=1e-8)
    target = problem.with_risk(CVaR(0.17))
    found = Tails(1e-8, 1000, 0).solve(target, start)
    cold = sorel.solve(target, tol=1e-9)
    assert found.converged
    assert found.relative_gap <= 1e-8
    assert len(found.weights) == 600
    # Both certificates hold, so each value lies within the bounds of the other.
    assert found.dual <= cold.objective + 1e-15
    assert cold.dual <= found.objective + 1e-15
    assert found.objective == pytest.approx(target.objective(found.w), rel=1e-13)
    # The weights are weights of the risk of all rows, and certify the answer again.
    assert found.weights.sum() == pytest.approx(1.0, rel=1e-12)
    again = target.certificate(found.w, found.weights)
    assert again.relative_gap <= 1.1e-8


def test_no_weight_exceeds_what_the_risk_of_all_rows_allows():
    problem = make_problem(risk=CVaR(0.2))
    start = sorel.solve(problem)
    found = Tails(1e-6, 1000, 0).solve(problem.with_risk(CVaR(0.19)), start)
    assert found.weights.max() <= 1.0 / (0.19 * 600)


def test_rows_outside_that_come_to_be_the_worst_are_seen():
    """A start far away: the rows chosen there are not those that count in the end."""
    problem = make_problem(risk=CVaR(0.1))
    right = sorel.solve(problem, tol=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(5):
        w = right.w + 3.0 * rng.standard_normal(len(right.w))
        far = sorel.solve(problem, w0=w, max_passes=0, callback=lambda record: True)
        found = Tails(1e-6, 1000, 0).solve(problem, far)
        if found is not None:
            assert found.dual <= right.objective <= found.objective + 1e-12
            assert found.gap >= found.objective - right.objective
            assert found.converged == (found.relative_gap <= 1e-6)


def test_a_certificate_counts_the_rows_outside(monkeypatch):
    """Were one row never chosen, its loss would still be in the objective."""
    problem = make_problem(risk=CVaR(0.1))
    start = sorel.solve(problem)
    worst = int(np.argmax(problem.losses(start.w)))
    copy = problem.engine.on_rows
    monkeypatch.setattr(
        type(problem.engine), "on_rows", lambda self, rows: copy(rows[rows != worst])
    )
    solver = Tails(1e-6, 1000, 0)
    choose = solver._choose

    def choose_without(*args):
        choose(*args)
        solver._rows = solver._rows[solver._rows != worst]

    monkeypatch.setattr(solver, "_choose", choose_without)
    found = solver.solve(problem, start)
    assert not found.converged
    assert found.objective == pytest.approx(problem.objective(found.w), rel=1e-13)
    assert found.dual <= start.objective


@pytest.mark.parametrize(
    ("risks", "l2"),
    [
        ([CVaR(a) for a in np.geomspace(0.5, 0.05, 12)], [0.01]),
        (["cvar:0.2"], [1e-2, 5e-3, 2e-3, 1e-3]),
    ],
)
def test_paths_use_them_and_reach_the_same_optimum(risks, l2, parts, monkeypatch):
    X, y = make_data("squared", 800, 4, 5)
    found = sorel.path(X, y, risks=risks, l2=l2, tol=1e-8)
    served = [result for result in parts if result is not None]
    assert len(served) >= len(found) // 2
    assert all(result.converged for result in served)
    assert "rows of the tail" in served[-1].status
    monkeypatch.setattr(tails, "_WORTH_A_PART", np.inf)
    whole = sorel.path(X, y, risks=risks, l2=l2, tol=1e-8)
    assert found.converged.all()
    np.testing.assert_allclose(found.objective, whole.objective, rtol=2e-8)
    np.testing.assert_allclose(found.coefs, whole.coefs, atol=1e-2)
    # A pass over a part of the rows is a part of a pass.
    assert found.passes.sum() < whole.passes.sum()


def test_a_result_is_that_of_one_run(parts):
    X, y = make_data("squared", 800, 4, 5)
    seen, begin = [], perf_counter()
    sorel.path(
        X, y, risks=["cvar:0.2", "cvar:0.19"], callback=lambda risk, l2, result: seen.append(result)
    )
    result, (record,) = seen[-1], seen[-1].history
    assert result.converged
    assert (record.passes, record.best_gap) == (result.passes, result.gap)
    assert record.best_relative_gap == result.relative_gap <= 1e-6
    assert 0.0 < result.seconds == record.seconds < perf_counter() - begin


def test_rows_serve_as_long_as_they_are_neither_few_nor_many():
    problem = make_problem(risk=CVaR(0.2))
    solver, start = Tails(1e-6, 1000, 0), sorel.solve(problem)
    engines = []
    for alpha in (0.2, 0.18, 0.14, 0.12, 0.115, 0.14, 0.2):
        start = solver.solve(problem.with_risk(CVaR(alpha)), start)
        assert start.converged
        engines.append(solver._engine)
    # 0.26 of the rows are fewer than twice 0.14 of them, and more than twice 0.12.
    assert engines[0] is engines[1] is engines[2] is not engines[3]
    # 0.156 of them are enough for 0.14, and too few for 0.2.
    assert engines[3] is engines[4] is engines[5] is not engines[6]


def test_bounds_passes_and_errors_of_a_part_are_put_together(monkeypatch):
    problem = make_problem(risk=CVaR(0.2))
    start, solver = sorel.solve(problem), Tails(1e-6, 1000, 0)
    found, quietly = [], tails.solve_quietly

    def remembered(*args, **more):
        found.append(quietly(*args, **more))
        return found[-1]

    monkeypatch.setattr(tails, "solve_quietly", remembered)
    target = problem.with_risk(CVaR(0.19))
    result = solver.solve(target, start)
    part, rows = found[0][0], solver._rows
    # One pass over all rows to choose some, one to certify, and shares of passes between them.
    assert result.passes == pytest.approx(2.0 + len(rows) / 600 * part.passes)
    assert result.gap == pytest.approx(target.objective(result.w) - part.dual, abs=1e-12)
    assert result.dual <= part.dual
    monkeypatch.setattr(Certifier, "upper_bound", lambda self, point: (2.0, 0.5))
    worse = Tails(1e-6, 1000, 0).solve(target, start)
    assert worse.gap == pytest.approx(2.5 - part.dual)
    assert worse.dual == pytest.approx(part.dual - 0.5)
    assert worse.relative_gap == pytest.approx(worse.gap / 2.0)
    assert not worse.converged


def test_what_a_part_misses_is_left_to_all_rows(parts, monkeypatch):
    X, y = make_data("squared", 800, 4, 5)
    solve_part = Tails._solve_part

    def never_quite(self, *args):
        result, losses = solve_part(self, *args)
        return paths.replace(result, converged=False), losses

    monkeypatch.setattr(Tails, "_solve_part", never_quite)
    levels = [CVaR(a) for a in np.geomspace(0.3, 0.1, 6)]
    found = sorel.path(X, y, risks=levels, tol=1e-7)
    assert found.converged.all()
    for risk, objective in zip(levels, found.objective, strict=True):
        cold = sorel.solve(sorel.Problem(X, y, risk=risk, fit_intercept=True), tol=1e-8)
        assert objective == pytest.approx(cold.objective, rel=2e-7)
    # After some in vain they are left alone.
    assert [result is None for result in parts] == [False] * tails._IN_VAIN + [True] * 2
    # What was spent in vain is part of the bill.
    assert found.passes[1] > parts[0].passes


@pytest.mark.parametrize(
    ("change", "serves"),
    [
        ({}, True),
        ({"risk": "mean"}, False),
        ({"risk": "esrm:3"}, False),
        ({"risk": CVaR(0.62)}, False),  # 1.3 of it are more than 0.8 of the rows
        ({"risk": CVaR(0.61)}, True),
        ({"risk": CVaR(0.02)}, False),  # a tail of less than four rows for each parameter
        ({"risk": CVaR(0.03)}, True),
        ({"tol": 1e-11}, False),
        ({"tol": 1e-10}, True),
    ],
)
def test_which_problems_are_served(change, serves):
    problem = make_problem(risk=change.get("risk", CVaR(0.1)))
    assert Tails(change.get("tol", 1e-6), 1000, 0)._serves(problem) == serves


def test_small_problems_and_short_numbers_are_not_served(monkeypatch):
    problem = make_problem(risk=CVaR(0.1))
    monkeypatch.setattr(tails, "_WORTH_A_PART", 2401)
    assert not Tails(1e-6, 1000, 0)._serves(problem)
    monkeypatch.setattr(tails, "_WORTH_A_PART", 2400)
    assert Tails(1e-6, 1000, 0)._serves(problem)
    X, y = make_data("squared", 600, 4, 3)
    short = sorel.Problem(X.astype(np.float32), y, risk=CVaR(0.1))
    assert not Tails(1e-7, 1000, 0)._serves(short)
    assert Tails(1e-6, 1000, 0)._serves(short)


def test_an_engine_that_gives_no_rows_is_not_asked_for_losses(monkeypatch):
    """All losses of a cluster would be a long way to come for nothing."""
    problem = make_problem(risk=CVaR(0.1))
    start = sorel.solve(problem)
    monkeypatch.delattr("sorel.engines.memory.MemoryEngine.on_rows")
    monkeypatch.setattr(sorel.Problem, "losses", None)
    assert Tails(1e-6, 1000, 0).solve(problem, start) is None


def test_equal_losses_are_not_chosen_from():
    """At zero coefficients all labels have one loss: any rows would be the worst of them."""
    X, y = make_data("logistic", 600, 4, 3)
    problem = sorel.Problem(X, y, loss="logistic", risk=CVaR(0.1), penalty=sorel.L2(100.0))
    start = sorel.solve(problem, w0=np.zeros(4), max_passes=0, callback=lambda record: True)
    assert not start.w.any()
    assert Tails(1e-6, 1000, 0).solve(problem, start) is None


def test_a_part_without_one_of_the_classes_is_no_part():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 2))
    y = np.where(np.arange(600) < 6, 1.0, -1.0)
    problem = sorel.Problem(X, y, loss="logistic", risk=CVaR(0.1), fit_intercept=True)
    # All of the rare class fit well, and the worst rows are of the other.
    w = np.array([0.0, 0.0, 5.0])
    start = sorel.solve(problem, w0=w, max_passes=0, callback=lambda record: True)
    start = paths.replace(start, w=w + np.array([0.1, 0.0, 0.0]), weights=np.zeros(600))
    assert Tails(1e-6, 1000, 0).solve(problem, start) is None


def test_an_interrupt_within_a_part_ends_the_path(monkeypatch):
    X, y = make_data("squared", 800, 4, 5)
    quietly = tails.solve_quietly

    def interrupted(*args, **more):
        result, _ = quietly(*args, **more)
        return paths.replace(result, converged=False, status="interrupted: by the test"), None

    monkeypatch.setattr(tails, "solve_quietly", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted at CVaR\(alpha=0.19\)"):
        sorel.path(X, y, risks=["cvar:0.2", "cvar:0.19"])


def test_misses_within_a_part_are_not_warned_of(parts, monkeypatch, recwarn):
    """The rows of the part are nobody's problem but ours."""
    X, y = make_data("squared", 800, 4, 5)
    quietly = tails.solve_quietly

    def early(*args, **more):
        return quietly(args[0], args[1], args[2], 2.0, **more)

    monkeypatch.setattr(tails, "solve_quietly", early)
    found = sorel.path(X, y, risks=["cvar:0.2", "cvar:0.1"], tol=1e-9)
    assert found.converged.all()
    assert not parts[-1].converged
    assert not recwarn.list


def test_an_objective_is_bounded_with_its_rounding():
    problem = make_problem(risk=CVaR(0.1))
    w = np.array([0.3, -0.2, 1.0, 0.5, 0.1])
    objective, error = Certifier(problem).upper_bound(problem.engine.point(problem.from_user(w)))
    exact = problem.certificate(w, np.full(600, 1 / 600))
    assert objective == pytest.approx(problem.objective(w), rel=1e-14)
    assert 0.0 < error < 1e-12 * objective
    assert error == pytest.approx(exact.primal_rounding, rel=0.5, abs=0.0)


def chosen(losses, weights, alpha, omega=None, problem=None):
    """The rows that are chosen for these losses, or None."""
    n = len(losses)
    if problem is None:
        problem = sorel.Problem(np.ones((n, 1)), np.zeros(n), sample_weight=omega)
    solver = Tails(1e-6, 1000, 0)
    solver._choose(problem, alpha, losses, SimpleNamespace(weights=weights))
    if solver._engine is None:
        return None
    expected = len(solver._rows) / n if omega is None else omega[solver._rows].sum() / omega.sum()
    assert solver._mass == pytest.approx(expected)
    assert solver._engine.n_samples == len(solver._rows)
    return solver._rows.tolist()


@pytest.mark.parametrize("scale", [1.0, 1e6, -1e6])
def test_the_worst_rows_are_chosen(scale):
    rng = np.random.default_rng(0)
    losses = scale * (2.0 + rng.permutation(100) / 50.0)
    order = np.argsort(losses)[::-1]
    weights = np.zeros(100)
    weights[order[:20]] = 0.05
    # 1.3 times a fifth, whether the rows beside the edge have weight or not.
    assert chosen(losses, weights, 0.2) == sorted(order[:26])
    weights[order[50:55]] = 0.05
    assert chosen(losses, weights, 0.2) == sorted(order[:26])
    # Those of a tie share its weight, wherever they are.
    weights[order[50:55]] = [0.049, 0.01, 1e-9, 0.05 * (1 - 1e-7), 0.05 * (1 - 1e-5)]
    assert chosen(losses, weights, 0.2) == sorted([*order[:26], *order[[50, 51, 52, 54]]])


def test_weights_of_samples_count_where_rows_are_chosen():
    losses = np.arange(40.0)
    omega = np.where(np.arange(40) % 2, 3.0, 1.0)
    weights = np.zeros(40)
    weights[30:] = omega[30:] / omega[30:].sum()
    # From the top 3, 1, 3, 1, ...: 20.8 of 80 are reached with the eleventh.
    assert chosen(losses, weights, 0.2, omega) == list(range(29, 40))
    # One third of what each may have: a tie.
    weights[20] = weights[30] / 3.0
    assert chosen(losses, weights, 0.2, omega) == [20, *range(29, 40)]
    weights[20] = weights[30]
    assert chosen(losses, weights, 0.2, omega) == list(range(29, 40))


def test_rows_are_not_chosen_where_they_would_be_too_many():
    losses, weights = np.arange(100.0), np.zeros(100)
    weights[80:] = 0.05
    # A tie of 11 rows beyond the 26: below twice the tail. Four more are above it.
    weights[60:71] = 0.01
    assert len(chosen(losses, weights, 0.2)) == 37
    weights[56:60] = 0.01
    assert chosen(losses, weights, 0.2) is None
    # Above 0.8 of all rows.
    weights[:] = 0.0
    weights[40:] = 1.0 / 60.0
    assert len(chosen(losses, weights, 0.6)) == 78
    weights[:4] = 0.01
    assert chosen(losses, weights, 0.6) is None


def test_rows_are_not_chosen_where_a_copy_would_be_too_large(monkeypatch):
    losses, weights = np.arange(100.0), np.zeros(100)
    problem = sorel.Problem(np.ones((100, 3)), np.zeros(100))
    monkeypatch.setattr(tails, "_MAX_COPY", 26 * 3 * 8)
    assert len(chosen(losses, weights, 0.2, problem=problem)) == 26
    monkeypatch.setattr(tails, "_MAX_COPY", 26 * 3 * 8 - 1)
    assert chosen(losses, weights, 0.2, problem=problem) is None


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_losses_are_equal_relative_to_their_size(scale):
    losses, weights = np.full(100, scale), np.zeros(100)
    assert chosen(losses, weights, 0.2) is None
    losses[:80] *= 1.0 - 5e-10
    assert chosen(losses, weights, 0.2) is None
    losses[:80] *= 1.0 - 5e-9
    assert len(chosen(losses, weights, 0.2)) == 26
