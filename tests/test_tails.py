"""Solutions from the rows that carry a tail risk are those of all rows, with a certificate."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data

import sorel
from sorel import CVaR
from sorel.solvers.tails import Tails

tails = importlib.import_module("sorel.solvers.tails")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of small problems, so that the tests are fast."""
    monkeypatch.setattr(tails, "LEAST_ENTRIES", 0)


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
    # Both certificates hold, so each value lies within the bounds of the other.
    assert found.dual <= cold.objective + 1e-15
    assert cold.dual <= found.objective + 1e-15
    assert found.objective == pytest.approx(target.objective(found.w), rel=1e-13)
    # The weights are weights of the risk of all rows, and certify the answer again.
    assert target.certificate(found.w, found.weights).relative_gap <= 1.1e-8


def test_the_rows_of_a_long_tail_are_not_those_of_a_short_one():
    problem, served, shares = make_problem(), Tails(1e-8, 1000, 0), []
    start = sorel.solve(problem, tol=1e-8)
    for alpha in (0.4, 0.35, 0.05):
        start = served.solve(problem.with_risk(CVaR(alpha)), start)
        shares.append(int(start.status.split(" rows of the tail")[0].split()[-1]) / 600)
    assert shares[0] == shares[1] <= 1.0
    assert shares[2] <= 0.2


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


@pytest.mark.parametrize(("risks", "l2"), [
    ([CVaR(a) for a in (*np.geomspace(0.5, 0.05, 12), 0.3, 0.06)], [0.01]),
    (["cvar:0.2"], [1e-2, 5e-3, 2e-3, 1e-3]),
])  # fmt: skip
def test_paths_use_them_and_reach_the_same_optimum(risks, l2, monkeypatch):
    X, y = make_data("squared", 800, 4, 5)
    results = []
    found = sorel.path(X, y, risks=risks, l2=l2, tol=1e-8, callback=lambda *a: results.append(a[2]))
    served = [result for result in results if "rows of the tail" in result.status]
    assert len(served) >= len(found) // 2
    monkeypatch.setattr(tails, "LEAST_ENTRIES", np.inf)
    whole = sorel.path(X, y, risks=risks, l2=l2, tol=1e-8)
    assert found.converged.all()
    np.testing.assert_allclose(found.objective, whole.objective, rtol=2e-8)
    np.testing.assert_allclose(found.coefs, whole.coefs, atol=1e-2)
    # A pass over a part of the rows is a part of a pass.
    assert found.passes.sum() < whole.passes.sum()


@pytest.mark.parametrize(("change", "serves"), [
    ({}, True), ({"risk": "mean"}, False), ({"risk": "esrm:3"}, False),
    ({"risk": CVaR(0.49)}, True), ({"risk": CVaR(0.51)}, False),  # all rows are as cheap
    ({"risk": CVaR(0.02)}, False),  # a tail of less than four rows for each parameter
    ({"risk": CVaR(0.03)}, True),
    ({"tol": 1e-13}, False),
])  # fmt: skip
def test_which_problems_are_served(change, serves):
    problem = make_problem(risk=change.get("risk", CVaR(0.1)))
    found = Tails(change.get("tol", 1e-6), 1000, 0).solve(problem, sorel.solve(problem))
    assert (found is not None) == serves


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
    start = replace(start, w=w + np.array([0.1, 0.0, 0.0]), weights=np.zeros(600))
    assert Tails(1e-6, 1000, 0).solve(problem, start) is None


@pytest.mark.parametrize("status", ["interrupted: by the test", "not converged: by the test"])
def test_a_part_that_is_interrupted_ends_the_path_and_one_that_fails_is_left_to_all_rows(
    status, monkeypatch
):
    X, y = make_data("squared", 800, 4, 5)
    quietly = tails.solve_quietly

    def unsolved(*args, **more):
        result, complaint = quietly(*args, **more)
        return replace(result, converged=False, status=status), complaint

    monkeypatch.setattr(tails, "solve_quietly", unsolved)
    levels = ["cvar:0.2", "cvar:0.19", "cvar:0.18"]
    if status.startswith("interrupted"):
        with pytest.raises(KeyboardInterrupt, match=r"interrupted at CVaR\(alpha=0.19\)"):
            sorel.path(X, y, risks=levels)
        return
    found = sorel.path(X, y, risks=levels, tol=1e-7)
    assert found.converged.all()
