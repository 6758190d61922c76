"""A share of the random problems of fuzz.py, and whether its checks see what is wrong."""

import dataclasses
import itertools
from pathlib import Path

import fuzz
import numpy as np
import pytest
from fuzz import Case, check

import sorel

DATA = Path(__file__).parent / "data"

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


def assert_right(case):
    report = check(case)
    assert not report.failures, f"{case}: {report.failures}; {case.snippet}"
    return report


@pytest.mark.parametrize("number", range(60))
def test_random_problems_are_solved_and_certified(number):
    assert_right(Case(11, number))


@pytest.mark.parametrize("kind", NASTY)
def test_bounds_hold_in_spite_of_rounding(kind):
    for case in itertools.islice(cases(12, NASTY[kind]), 5):
        assert_right(case)


@pytest.mark.parametrize(("seed", "number", "missed"), [
    (2028, 1371, False),  # bounds that margins in doubles are too coarse for
    (2028, 2211, False),  # intercepts of thousands, several classes
    (31, 4703, False),  # the maximum, with sample weights of all sizes
    (2028, 2147, False),  # exponentials of all sizes
    (2028, 634, False),  # targets below what margins resolve
    (2028, 1724, False),  # fewer rows than columns, and columns of 1e7
    (901, 6603, False),  # losses without curvature at the start
    (555, 7380, False),  # a Huber loss of little but its kink
    (779, 690, False),  # running sums of many sample weights
    (311116, 7939, False),  # the same, and a large density at their end
    (311117, 7809, False),  # exponentials of samples without weight
    (311118, 9381, False),  # a gap that is rounding, and less than that at a last look
    (311116, 927, False),  # all but an exact fit, at the end of a sequence of problems
    (301118, 1910, False),  # a deviation of a mixture with the maximum, weights of many sizes
    (92801, 915, False),  # columns of 1e8 on a simplex: nothing but rounding left of the losses
    (92802, 1318, False),  # targets that are all alike, on a simplex
    (92801, 2120, False),  # an intercept that is far from that of an exponential's minimum
    (92802, 5246, False),  # an intercept between losses that are linear for far around
    (92801, 3520, False),  # a number added to the intercepts of all classes
    (92801, 5163, False),  # bounds of 1e-13
    (92801, 6587, False),  # the deviation of one sample
    (2028, 6287, True),  # columns of 1e7, where rounding leaves too much of the gap
])  # fmt: skip
def test_problems_that_were_hard(seed, number, missed):
    report = assert_right(Case(seed, number))
    if report.missed and not missed:
        # Rounding, which differs between processors, decides whether 1000 passes are enough.
        assert sorel.solve(report.case.problem(), max_passes=4000).converged, report.missed


def test_a_step_far_out_in_an_intercept_without_curvature():
    # Two residuals of one sign under a loss that is all but linear there: the Newton step goes out
    # to 1e10, and what comes back has lost ten digits.
    parts = [sorel.Extremile(12.484414908857085), sorel.Mean()]
    risk = sorel.Mixture(parts, [0.27037925393229945, 0.7296207460677006])
    with np.load(DATA / "rounding.npz") as file:
        X, y, w, lam, weight = (file[f"saturated_{a}"] for a in ("X", "y", "w", "lam", "weight"))
    problem = sorel.Problem(
        X, y, risk=risk, loss=fuzz.PseudoHuber(), penalty=sorel.Simplex(1.6330572564166608),
        fit_intercept=True, sample_weight=weight,
    )  # fmt: skip
    best = sorel.solve(problem, tol=1e-13, max_passes=200)
    assert problem.certificate(w, lam).dual <= best.objective * (1 + 1e-13)


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
        other = {name: change(result) for name, change in changes.items()}
        return dataclasses.replace(result, **other)

    monkeypatch.setattr(sorel, "solve", solve)
    return check(case).failures


def heavier(result):
    lam = result.weights * (1 - 1e-6)
    lam[np.argmax(lam)] += 1e-6
    return lam


@pytest.mark.parametrize(("changes", "words"), [
    ({"dual": lambda r: r.objective * (1 + 1e-12), "gap": lambda r: 0.0}, "the dual"),
    ({"objective": lambda r: r.objective * (1 - 1e-12)}, "the last record"),
    ({"weights": heavier}, "the weights leave their set"),
])  # fmt: skip
def test_wrong_claims_are_seen(monkeypatch, changes, words):
    assert any(words in failure for failure in claim(monkeypatch, tail_case(), **changes))


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
        size = abs(float(value)) + case.zero_loss()
        assert problem.objective(w) == pytest.approx(float(value), abs=1e-9 * size)
        assert value <= upper <= value + 1e-12 * size


def test_failing_cases_are_reduced_and_spelled_out():
    case = next(cases(1, lambda p: p["X"].shape[0] > 20 and p["weights"] == "wide"
                      and p["penalty_name"] == "l2" and p["loss_name"] == "squared"))  # fmt: skip

    def fails(case):
        """As if any large target were a trouble."""
        return np.abs(case.parts["y"]).max() > 0.9 * largest

    largest = np.abs(case.parts["y"]).max()
    small = fuzz.reduced(case, fails)
    assert fails(small)
    assert small.parts["weight"] is None
    space = {}
    exec(small.snippet, space)
    assert space["problem"].n_samples == 1
    np.testing.assert_array_equal(space["X"], small.parts["X"])
    assert space["X"].shape == (1, 1)
