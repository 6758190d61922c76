"""What `auto` decides: the rows of its table for real sizes, and when another method has its turn.

Every answer is certified, so a wrong decision makes a run slow and nothing else.
"""

import math

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data
from own_penalties import Ball

import sorel
from sorel import ESRM, L2, Box, CVaR, ElasticNet, Mixture, NonNegative, Problem, Simplex
from sorel.solvers import Iterate, Solver, auto
from sorel.solvers.auto import TABLE, Facts, Method, methods


def make_problem(n, d, loss, risk, penalty=None, sparse=False):
    """A problem of some size; its numbers do not count."""
    X = scipy.sparse.csr_array((n, d)) if sparse else np.zeros((n, d), np.float32)
    y = np.arange(float(n)) if loss in ("squared", "huber", "linear") else np.arange(n) % 2
    if loss == "multinomial":
        y = np.arange(n) % 4
    return Problem(X, y, risk=risk, loss=loss, penalty=penalty or L2(0.1))


def describe(problem):
    """The rows for a problem, with the steps and passes that they may take."""
    facts, words = Facts(problem), []
    for row in methods(problem):
        word = row.name
        if word == "newton_cg":
            word += f" {row.patience(facts):.0f}"
        if word == "quasi_newton":
            word += f" {facts.gradient_steps:.0f}" + " matrix" * facts.shares_matrix
        trial = row.trial(facts)
        words.append(f"{word} {trial:.0f}" if trial < math.inf else word)
    return ", ".join(words)


MATRIX = "newton, continuation"
CG = f"newton_cg 250, {MATRIX}"
SET = "newton on a working set"
FIRST = "lbfgs or pdhg"
TRIED = f"{SET}, {FIRST} 2858, sorel 100, {MATRIX}"

# A jump of 3.5 and of 7 % of the largest weight.
MILD = Mixture([ESRM(2.0), CVaR(0.5)], [0.96, 0.04])
SHARP = Mixture([ESRM(2.0), CVaR(0.5)], [0.92, 0.08])

# Real sizes, many of them just beside a threshold.
CHOSEN = {
    (442, 10, "squared", "cvar:0.5"): MATRIX,
    (569, 30, "logistic", "esrm:2"): f"quasi_newton 0 matrix, {MATRIX}",
    (450, 20, "squared", "esrm:2"): MATRIX,
    (520, 20, "squared", "esrm:2"): f"quasi_newton 0 matrix, {MATRIX}",
    (60_000, 20, "huber", "extremile:2.5"): f"quasi_newton 0 matrix, {MATRIX}",
    (5000, 50, "logistic", "mean"): f"quasi_newton 0 matrix, {MATRIX}",
    (5000, 53, "logistic", "mean"): f"quasi_newton 30 matrix, {MATRIX}",
    (100_000, 32, "logistic", "mean"): f"quasi_newton 0 matrix, {MATRIX}",
    (3000, 180, "squared", "esrm:2"): f"quasi_newton 0 matrix, {CG}",
    (3000, 260, "squared", "esrm:2"): f"newton_cg 250, {MATRIX}",
    (5000, 350, "squared", "esrm:2"): f"quasi_newton 0 matrix, newton_cg 250, {MATRIX}",
    (5000, 53, "logistic", MILD): f"quasi_newton 30 matrix, {MATRIX}",
    (5000, 53, "logistic", SHARP): MATRIX,
    (20_000, 1000, "logistic", "esrm:2"): f"quasi_newton 156 matrix, newton_cg 392, {MATRIX}",
    (3000, 1900, "huber", "mean"): f"quasi_newton 250, newton_cg 1144, {MATRIX}",
    (400, 600, "huber", "esrm:2"): f"newton_cg 250, {MATRIX}",
    (1797, 128, "logistic", "cvar:0.1"): MATRIX,
    (1797, 190, "logistic", "cvar:0.1"): MATRIX,
    (1797, 210, "logistic", "cvar:0.1"): CG,
    (3000, 1500, "squared", "cvar:0.05"): f"newton_cg 1032, {MATRIX}",
    (300, 4000, "logistic", "cvar:0.1"): f"row_space, newton_cg 250, {MATRIX}",
    (1000, 6000, "squared", "mean"): f"quasi_newton 172, newton_cg 442, {MATRIX}",
    (1797, 64, "multinomial", "cvar:0.1"): f"newton_cg 250, {MATRIX}",
    (150, 4, "multinomial", "cvar:0.1"): MATRIX,
    (3000, 900, "squared", "cvar:0.1", ElasticNet(0.1, 0.1)): MATRIX,
    (3000, 1100, "squared", "cvar:0.1", ElasticNet(0.1, 0.1)): f"{SET}, sorel 100, {MATRIX}",
    (2000, 1500, "logistic", "mean", Box(0.1, -1.0, 1.0)): TRIED,
    (2000, 1500, "squared", "mean", NonNegative(0.1)): TRIED,
    (500, 3000, "logistic", "cvar:0.1", Box(0.1, -1.0, 1.0)): f"{FIRST} 750, sorel 100, {MATRIX}",
    (500, 6000, "squared", "esrm:2", NonNegative(0.1)): f"{FIRST}, sorel 100",
    (500, 3000, "multinomial", "cvar:0.1", Box(0.1, -1.0, 1.0)): f"{SET}, sorel 100",
    (250, 2000, "linear", "cvar:0.05", Simplex(0.1)): MATRIX,
    (3000, 400, "multinomial", "mean", Simplex(0.1)): MATRIX,
    (3000, 400, "multinomial", "cvar:0.1", Simplex(0.1)): f"sorel 100, {MATRIX}",
    (300, 16_000, "multinomial", "mean"): "newton_cg 250, sorel 100",
}


@pytest.fixture(scope="module")
def problems():
    return {case: make_problem(*case) for case in CHOSEN}


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_the_methods_for_real_sizes(problems, case):
    assert describe(problems[case]) == CHOSEN[case]


@pytest.mark.parametrize("name", [
    "_FEW_COLUMNS", "_GRADIENT_STEPS", "_LEAST_ENTRIES", "_MATRICES", "_MATRIX_STEPS",
    "_ROWS_PER_PARAMETER", "_SMOOTH_JUMP", "PRODUCTS_PER_STEP",
])  # fmt: skip
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_halved_or_doubled_threshold_shows(problems, monkeypatch, name, factor):
    monkeypatch.setattr(auto, name, factor * getattr(auto, name))
    assert any(describe(problem) != CHOSEN[case] for case, problem in problems.items())


class Creeping(Solver):
    """Goes a share of the way to the optimum in each pass, or none: the gap falls by its square."""

    name = "creeping"
    spent = 0.0

    def __init__(self, rest):
        self.rest = rest

    def iterates(self, problem, run):
        best, rest = sorel.solve(problem, "newton", tol=1e-12), 1.0
        dual = problem.engine.nearest_dual(best.weights)[0]
        while True:
            run.passes += 1.0
            rest *= self.rest
            Creeping.spent = run.passes
            yield Iterate(problem.engine.point((1.0 - rest) * best.w), dual)


def creep(monkeypatch, row, rest, max_passes=10_000, **options):
    """The status of a run in which a method that creeps comes first."""
    X, y = make_data("squared", 60, 3, seed=0)
    first = row._replace(applies=lambda facts: True, make=lambda facts: Creeping(rest))
    monkeypatch.setattr(auto, "TABLE", (first, *TABLE))
    result = sorel.solve(Problem(X, y, **options), max_passes=max_passes, tol=1e-9)
    assert result.converged
    return result.status


ROWS = {row.name: row for row in TABLE}


@pytest.mark.parametrize(("row", "options", "passes"), [
    ("newton", {}, 250.0), ("newton_cg", {}, 250.0), ("newton_cg", {"max_passes": 200}, 160.0),
    # A tenth of a trial tells that it leads nowhere.
    ("sorel", {"penalty": NonNegative(0.1)}, 10.0),
])  # fmt: skip
def test_a_method_without_progress_hands_over(monkeypatch, row, options, passes):
    assert "auto (creeping then newton" in creep(monkeypatch, ROWS[row], 1.0, **options)
    assert Creeping.spent == pytest.approx(passes, abs=3.0)


@pytest.mark.parametrize(
    ("row", "passes", "alone"),
    [("sorel", 75, True), ("sorel", 120, False), ("newton", 800, True), ("newton", 80_000, False)],
)
def test_a_method_goes_on_while_it_gets_there(monkeypatch, row, passes, alone):
    """To the tolerance within the trial of 100 passes, or by a tenth of the gap within 250."""
    options = {"risk": "mean", "penalty": L2(10.0)}
    problem = Problem(*make_data("squared", 60, 3, seed=0), **options)
    best = sorel.solve(problem, "newton", tol=1e-12)
    gap = problem.certificate(np.zeros(3), best.weights).gap
    rest = (1e-9 * best.objective / gap) ** (0.5 / passes)
    assert ("(creeping)" in creep(monkeypatch, ROWS[row], rest, 100_000, **options)) == alone
    assert alone or Creeping.spent < 300


def test_the_last_method_goes_on_to_the_end_of_the_budget(monkeypatch):
    creeping = Method("creeping", lambda f: True, lambda f: Creeping(1.0))
    monkeypatch.setattr(auto, "TABLE", (creeping,))
    X, y = make_data("squared", 60, 3, seed=0)
    with pytest.warns(sorel.ConvergenceWarning):
        assert sorel.solve(Problem(X, y), max_passes=900).passes >= 900


def test_products_give_way_to_a_matrix_where_they_become_many():
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((300, 300)))
    X = rng.standard_normal((900, 300)) @ (rotation * np.geomspace(1.0, 1e-3, 300)) @ rotation.T
    y = X @ rng.standard_normal(300) + 0.1 * rng.standard_normal(900)
    problem = Problem(X, y, risk="cvar:0.2", loss="huber", penalty=L2(1e-7))
    result = sorel.solve(problem)
    assert result.converged
    assert "auto (newton_cg then newton)" in result.status


def test_a_penalty_of_the_users_own_with_very_many_parameters_is_for_the_last():
    problem = Problem(np.ones((2, 5001)), [0.0, 1.0], penalty=Ball())
    assert [row.name for row in methods(problem)] == ["subgradient"]
    with pytest.warns(sorel.ConvergenceWarning):
        assert "auto (subgradient)" in sorel.solve(problem, max_passes=20).status
