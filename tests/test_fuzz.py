"""A share of the random problems of fuzz.py, and whether its checks see what is wrong."""

from __future__ import annotations

import dataclasses
import itertools

import fuzz
import numpy as np
import pytest
from fuzz import Case, check

import sorel

# Kinds of problems whose dual bounds used to lie above values that the objective attains, before
# certificates were charged with their rounding errors.
NASTY = {
    "columns of many scales on a simplex": lambda p: (
        p["penalty_name"] == "simplex" and p["rows"] in ("scales", "offset")
    ),
    "intercepts without curvature": lambda p: p["loss_name"] == "huber" and p["intercept"],
    "perfect fits": lambda p: p["targets"] in ("perfect", "constant", "zero"),
    "weights of many sizes": lambda p: p["weights"] == "wide",
    "columns that are nearly one": lambda p: p["rows"] == "collinear",
    "an intercept for each class": lambda p: p["loss_name"] == "multinomial" and p["intercept"],
}


def cases(seed, fits):
    """The problems of a seed that are of some kind."""
    return (case for case in (Case(seed, k) for k in itertools.count()) if fits(case.parts))


@pytest.mark.parametrize("number", range(60))
def test_random_problems_are_solved_and_certified(number):
    report = check(Case(11, number))
    assert not report.failures, f"{report.case}: {report.failures}; {report.case.snippet}"


@pytest.mark.parametrize("kind", NASTY)
def test_bounds_hold_in_spite_of_rounding(kind):
    for case in itertools.islice(cases(12, NASTY[kind]), 5):
        report = check(case)
        assert not report.failures, f"{report.case}: {report.failures}; {report.case.snippet}"


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        (4242, 8694),  # a Newton step in an intercept without curvature goes out to 1e10 and back
        (2026, 1333),  # coefficients whose sum is 4e-15 off, at a fit that is perfect but for that
    ],
)
def test_problems_that_were_certified_wrongly(seed, number):
    report = check(Case(seed, number))
    assert not report.failures, report.failures


def tail_case():
    """A problem with some samples at the cap of their weights, and others below it."""
    return next(
        cases(0, lambda p: p["risk_name"] == "cvar" and p["loss_name"] == "squared"
              and p["risk"].argument.alpha < 0.6 and len(p["y"]) > 20 and p["weights"] == "none"
              and p["targets"] == "noise")
    )  # fmt: skip


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
    case = tail_case()
    failures = claim(monkeypatch, case, dual=lambda r: r.objective * (1 + 1e-12), gap=lambda r: 0.0)
    assert any("the dual" in failure for failure in failures)
    assert any("the last record" in failure for failure in failures)


def test_wrong_weights_are_seen(monkeypatch):
    case = tail_case()

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
        size = abs(float(value)) + case.loss_at_zero()
        assert problem.objective(w) == pytest.approx(float(value), abs=1e-9 * size)
        assert value <= upper <= value + 1e-12 * size


def test_the_command_prints_a_summary(capsys):
    assert fuzz.main(["--count", "3", "--seed", "8"]) == 0
    assert "3 problems in" in capsys.readouterr().out
