"""A share of the random problems of fuzz.py, and whether its checks see what is wrong."""

from __future__ import annotations

import dataclasses

import fuzz
import numpy as np
import pytest
from fuzz import Case, check

import sorel

# Problems whose dual bounds lay above values that the objective attains, before certificates were
# charged with their rounding errors: by 1e-12 and less relative to the optimum, where that is not
# 0, and by whole multiples of it where it is.
VIOLATED = [(0, 27), (0, 29), (0, 31), (0, 246), (0, 334), (0, 350), (0, 400), (0, 655), (0, 784)]
WEIGHTED = [(1, 530), (1, 2284), (2, 3333), (2, 4600)]


@pytest.mark.parametrize("number", range(60))
def test_random_problems_are_solved_and_certified(number):
    report = check(Case(11, number))
    assert not report.failures, f"{report.case}: {report.failures}; {report.case.snippet}"


@pytest.mark.parametrize(("seed", "number"), VIOLATED + WEIGHTED)
def test_bounds_hold_in_spite_of_rounding(seed, number):
    report = check(Case(seed, number))
    assert not report.failures, f"{report.case}: {report.failures}; {report.case.snippet}"


def claim(monkeypatch, case, **changes):
    """What the checks say when the first run claims something else than it found."""
    original, calls = sorel.solve, []

    def solve(*args, **options):
        result = original(*args, **options)
        calls.append(result)
        if len(calls) > 1:
            return result
        return dataclasses.replace(
            result, **{name: change(result) for name, change in changes.items()}
        )

    monkeypatch.setattr(sorel, "solve", solve)
    return check(case).failures


def test_a_wrong_certificate_is_seen(monkeypatch):
    case = Case(0, 3)
    failures = claim(monkeypatch, case, dual=lambda r: r.objective * (1 + 1e-12), gap=lambda r: 0.0)
    assert any("the dual" in failure for failure in failures)
    assert any("the last record" in failure for failure in failures)


def test_wrong_weights_are_seen(monkeypatch):
    case = Case(0, 3, losses=("squared",))

    def heavier(result):
        lam = result.weights * (1 - 1e-6)
        lam[np.argmax(lam)] += 1e-6
        return lam

    failures = claim(monkeypatch, case, weights=heavier)
    assert any("the weights leave their set" in failure for failure in failures)


def test_exceptions_are_reported_with_a_way_to_repeat_them(monkeypatch):
    def fail(*args, **options):
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(sorel, "solve", fail)
    report = check(Case(0, 5))
    assert report.outcome == "exception"
    assert "ZeroDivisionError: mine" in report.failures[0]
    space = {}
    exec(report.case.snippet.replace("print(case)", "0"), space)
    np.testing.assert_array_equal(space["case"].parts["X"], Case(0, 5).parts["X"])


@pytest.mark.parametrize("kind", [*fuzz.LOSSES])
def test_the_oracle_agrees_with_the_package(kind):
    for number in range(5):
        case = Case(5, number, losses=(kind,))
        problem = case.problem()
        w = np.random.default_rng(number).normal(size=problem.engine.shape)
        d = problem.n_features
        w[:d] = problem.penalty.project(w[:d])
        value, upper = case.objective(case.exact(w))
        assert problem.objective(w) == pytest.approx(float(value), rel=1e-9)
        # A sum of deviations that is 0 is so up to rounding.
        assert value - 1e-17 <= upper <= value * (1 + 1e-12) + 1e-12


def test_the_command_prints_a_summary(capsys):
    assert fuzz.main(["--count", "3", "--seed", "8"]) == 0
    assert "3 problems in" in capsys.readouterr().out
