"""Which bounds a certificate is made of, and when each of them is worth its work."""

from __future__ import annotations

import operator
from dataclasses import astuple
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import make_data

import sorel
from sorel import problem as problems
from sorel.problem import REFINABLE_SIZE, Problem, _Bound

EXPECTED, SHORTFALL, PENALTY, NOISE = 3.0, 0.25, 1.0, 0.012
ABOVE = SHORTFALL + NOISE


def certify(
    *, linear=(0.5, 0.003), refined=(0.1, 0.004), extended=(0.05, 0.005), least=0.0, size=3,
    affine=False, quadratic=True, by_parts=False, intercept=False, bracket=0.0, expected=EXPECTED,
    **options,
):  # fmt: skip
    """The certificate of a problem whose bounds are given, and which of them were asked for."""
    asked = []

    def bound(name, value, result):
        def answer(*arguments):
            asked.append((name, *(float(arguments[k]) for k in value)))
            return result

        return answer

    rounding = SimpleNamespace(
        margins=lambda w, path: 0.0,
        risk=lambda point, dual, expected, shortfall, error: 0.01,
        penalty_value=lambda value: 0.002,
        forget_weighting=lambda: asked.append(("forget",)),
    )
    stand_in = SimpleNamespace(
        engine=SimpleNamespace(
            expected=lambda point, dual: expected, shortfall=lambda point, dual: SHORTFALL
        ),
        penalty_value=lambda w: PENALTY,
        _least_value=least,
        _rounding=lambda: rounding,
        loss=SimpleNamespace(affine=affine),
        penalty=SimpleNamespace(quadratic=quadratic, fenchel_young=lambda coef, slope: bracket),
        by_parts=by_parts,
        fit_intercept=intercept,
        coefficients=lambda w: w,
        unit=lambda value: 2.0 * abs(value),
        _linear_bound=bound("linear", (), _Bound(*linear)),
        _refined_bound=bound("refined", (3, 5), (_Bound(*refined), 7.0)),
        _extended_bound=bound("extended", (3, 4), _Bound(*extended)),
    )
    found = Problem.certify(stand_in, SimpleNamespace(w=np.zeros(size)), None, **options)
    assert asked[-1:] == [("forget",)] or not np.isfinite(expected)
    return found, asked[:-1]


def names(asked):
    return [name for name, *_ in asked]


def test_the_parts_of_a_gap():
    found, asked = certify()
    assert names(asked) == ["linear"]
    assert found.primal == 4.25
    assert found.gap == pytest.approx(ABOVE + 0.5, rel=1e-14)
    assert found.dual == pytest.approx(4.25 - found.gap, rel=1e-14)
    assert found.relative_gap == pytest.approx(found.gap / 8.5, rel=1e-14)
    assert astuple(found)[4:] == pytest.approx((NOISE + 0.003, NOISE, 0.0), rel=1e-14)


def test_no_gap_where_the_objective_is_not_finite():
    found, _ = certify(expected=np.inf, least=0.5)
    assert astuple(found)[:4] == (np.inf, 0.5, np.inf, np.inf)


def test_a_bound_is_refined_where_that_alone_may_reach_the_gap_wanted():
    for refine, worth in [
        (0.999 * ABOVE, False),
        (ABOVE, True),
        (0.999 * (ABOVE + 0.5), True),
        (1.001 * (ABOVE + 0.5), False),
    ]:
        found, asked = certify(refine=refine)
        assert names(asked) == (["linear", "refined"] if worth else ["linear"])
        assert found.gap == pytest.approx(ABOVE + (0.1 if worth else 0.5), rel=1e-14)
        assert astuple(found)[4:] == pytest.approx(
            (NOISE + (0.004 if worth else 0.003), NOISE, 7.0 if worth else 0.0), rel=1e-14
        )
        if worth:
            assert asked[1][1:] == pytest.approx((EXPECTED + PENALTY, refine - ABOVE), abs=1e-14)
    # A refined bound may be no better.
    found, _ = certify(refine=0.5, refined=(0.6, 0.004))
    assert found.gap == pytest.approx(ABOVE + 0.5, rel=1e-14)


@pytest.mark.parametrize(
    ("options", "refinable"),
    [
        ({"affine": True}, False),
        ({"size": REFINABLE_SIZE, "quadratic": False}, True),
        ({"size": REFINABLE_SIZE + 1, "quadratic": False}, False),
        ({"size": REFINABLE_SIZE + 1}, True),
        ({"size": REFINABLE_SIZE + 1, "quadratic": False, "by_parts": True}, True),
        ({"size": REFINABLE_SIZE + 1, "affine": True}, False),
    ],
)
def test_what_can_be_refined(options, refinable):
    _, asked = certify(refine=0.5, **options)
    assert names(asked) == (["linear", "refined"] if refinable else ["linear"])
    _, asked = certify(refine=np.inf, **options)
    assert names(asked) == (["linear", "refined", "extended"] if refinable else ["linear"])
    # With a bracket that rules the simple bound out, where it can be refined.
    size = options.get("size", 3)
    _, asked = certify(refine=0.5, bracket=0.3, gradient=np.zeros(size), **options)
    assert names(asked) == (["refined"] if refinable else ["linear"])


@pytest.mark.parametrize(
    ("bracket", "refined", "intercept", "order"),
    [
        # The target is 0.238. A bracket below it says nothing.
        (0.23, 0.1, False, ["linear", "refined"]),
        (0.3, 0.1, False, ["refined"]),
        (0.3, 0.1, True, ["refined"]),
        # The refined bound has missed the target, and is better than the bracket.
        (0.3, 0.25, False, ["refined"]),
        # An intercept that moves may do without the bracket.
        (0.3, 0.25, True, ["refined", "linear"]),
        (0.3, 0.3, False, ["refined"]),
        (0.3, 0.4, False, ["refined", "linear"]),
    ],
)
def test_the_simple_bound_is_left_where_its_bracket_is_too_large(
    bracket, refined, intercept, order
):
    found, asked = certify(
        refine=0.5, gradient=np.zeros(3), bracket=bracket, refined=(refined, 0.0),
        intercept=intercept, linear=(0.35, 0.0),
    )  # fmt: skip
    assert names(asked) == order
    best = min(refined, 0.35) if "linear" in order else refined
    assert found.gap == pytest.approx(ABOVE + best, rel=1e-14)


def test_the_bracket_does_not_matter_where_the_best_bound_is_wanted():
    _, asked = certify(refine=np.inf, gradient=np.zeros(3), bracket=9.0)
    assert names(asked) == ["linear", "refined", "extended"]
    assert asked[1][1:] == (EXPECTED + PENALTY, 0.0)
    _, asked = certify(refine=0.9 * ABOVE, gradient=np.zeros(3), bracket=9.0)
    assert names(asked) == ["linear"]


def test_long_doubles_where_much_is_left():
    border = problems._WORTH_DIGITS * 2.0 * 4.25
    for left, worth in [(0.9 * border, False), (1.1 * border, True)]:
        found, asked = certify(
            refine=np.inf, refined=(left, 0.0), extended=(0.1 * border, 0.01 * border)
        )
        assert names(asked) == ["linear", "refined"] + ["extended"] * worth
        assert found.gap - ABOVE == pytest.approx(0.1 * border if worth else left, rel=1e-6)
        if worth:
            assert asked[-1][1:] == pytest.approx((EXPECTED + PENALTY, left), rel=1e-14)
    _, asked = certify(refine=np.inf, linear=(0.0, 0.0))
    assert names(asked) == ["linear"]
    _, asked = certify(refine=0.5)
    assert names(asked) == ["linear", "refined"]


def test_no_bound_lies_below_the_least_value():
    found, _ = certify(least=3.75)
    # 3 + 1 - 3.75 instead of 0.5, without an error of its own.
    assert found.gap == pytest.approx(ABOVE + 0.25, rel=1e-14)
    assert found.rounding == pytest.approx(NOISE, rel=1e-14)
    assert found.dual == 3.75
    found, _ = certify(least=3.45)
    assert found.gap == pytest.approx(ABOVE + 0.5, rel=1e-14)


def refined(
    bounds, expected, *, formed=True, target=0.1, max_products=40, kept=False, quadratic=False,
    size=3, products=4, reached=False, fails=False, at_once=False,
):  # fmt: skip
    """What refinements come to where these are the bounds and values of one step after another."""
    log = []
    values, given = iter(expected), iter(bounds)

    def step(name, result):
        def answer(*arguments):
            log.append(name)
            if fails and name == "matrix":
                raise np.linalg.LinAlgError
            return result(*arguments)

        return answer

    def conjugate(point, dual, slope, target, drop, most, kept):
        log.append((most, round(drop, 9)))
        return SimpleNamespace(step=np.ones(3), reached=reached, products=products, passes=2.0)

    stand_in = SimpleNamespace(
        engine=SimpleNamespace(
            size=size,
            gradient=step("gradient", lambda point, dual: np.zeros(3)),
            point=lambda u: SimpleNamespace(w=u),
            expected=lambda point, dual: next(values),
            newton_point=lambda *arguments: (
                (SimpleNamespace(w=np.zeros(3)), next(values), np.zeros(3)) if at_once else None
            ),
        ),
        penalty=SimpleNamespace(quadratic=quadratic, l2=0.1),
        _by_products=lambda: not formed,
        kept_factor=lambda: (lambda residual: residual) if kept else None,
        _conjugate_step=conjugate,
        _newton_point=step("matrix", lambda point, dual, slope: np.zeros(3)),
        penalty_value=lambda u: 1.0,
        _linear_bound=lambda *arguments: _Bound(*next(given)),
    )
    stand_in._refined_bound = lambda *arguments, exact: (
        log.append(("exact", arguments[-1], exact)) or (_Bound(0.07, 0.0), 0.0)
    )
    rounding = SimpleNamespace(margins=lambda u: 0.0)
    start = SimpleNamespace(w=np.zeros(3))
    found, passes = Problem._refined_bound(
        stand_in, rounding, start, None, 5.0, None, target, max_products
    )
    return found, passes, log


def test_one_newton_step_is_enough_where_it_reaches_the_target():
    # 5 - 3.98 - 1 were gained, and the bound lies 0.03 below.
    found, passes, log = refined([(0.03, 0.001)], [3.98])
    assert found == pytest.approx((0.05, 0.001), rel=1e-12)
    assert passes == 0.0
    assert log == ["gradient", "matrix"]
    found, _, log = refined([(0.03, 0.001)], [3.98], quadratic=True, at_once=True)
    assert found == pytest.approx((0.05, 0.001), rel=1e-12)
    assert log == ["gradient"]


@pytest.mark.parametrize(
    ("bounds", "expected", "steps"),
    [
        # Slack outweighs what was gained: another step, three in all.
        ([(0.9, 0.0), (0.8, 0.0), (0.7, 0.0), (0.6, 0.0)], [3.98, 3.97, 3.96, 3.95], 3),
        ([(0.9, 0.0), (0.01, 0.0)], [3.98, 3.97], 2),
        # A tenth of what was gained is slack, or less: nothing is left to gain.
        ([(0.041, 0.0), (0.0, 0.0)], [3.6, 3.6], 2),
        ([(0.039, 0.0)], [3.6], 1),
        # The same for what rounding makes of it.
        ([(0.29, 0.15)], [3.98], 1),
        ([(0.31, 0.15), (0.01, 0.0)], [3.98, 3.98], 2),
        # A step that has led upwards, beyond rounding.
        ([(0.9, 0.01)], [4.02], 1),
        ([(0.9, 0.03), (0.01, 0.0)], [4.02, 3.98], 2),
        ([(0.9, 0.0)], [np.inf], 1),
    ],
)
def test_steps_follow_while_slack_outweighs_what_was_gained(bounds, expected, steps):
    found, _, log = refined(bounds, expected)
    assert log == ["gradient", "matrix"] * steps
    best = [
        (max(5.0 - value - 1.0 + linear, error), error)
        for (linear, error), value in zip(bounds[:steps], expected[:steps], strict=True)
        if np.isfinite(value)
    ]
    assert found == pytest.approx(min(best, default=(np.inf, 0.0)), abs=1e-12)


def test_steps_by_products_end_with_their_budget_or_out_of_reach():
    found, passes, log = refined(
        [(0.5, 0.0)] * 10, [3.98] * 10, formed=False, size=2000, max_products=10
    )
    # After 12 of 10 products there are no more.
    assert log == ["gradient", (10, 0.0), "gradient", (6, 0.02), "gradient", (2, 0.02)]
    assert passes == 9.0
    assert found.total == pytest.approx(0.52, rel=1e-12)
    _, _, log = refined([(0.5, 0.0)] * 20, [3.98] * 20, formed=False, size=2000, max_products=99)
    assert len(log) == 20
    # What was gained is more than the target: the weighting cannot attain it.
    _, _, log = refined([(0.5, 0.0)] * 10, [3.85] * 10, formed=False)
    assert len(log) == 2
    # Without a target nothing is out of reach.
    _, _, log = refined(
        [(0.5, 0.0)] * 10, [3.85] * 10, formed=False, target=0.0, max_products=8, size=2000
    )
    assert len(log) == 4
    # A thousandth of what was gained is slack.
    for share, steps in [(0.9e-3, 1), (1.1e-3, 3)]:
        _, _, log = refined(
            [(share * 0.2, 0.0)] * 10, [3.8] * 10, formed=False, target=0.0, max_products=12,
            size=2000,
        )  # fmt: skip
        assert len(log) == 2 * steps


def test_a_matrix_after_products_that_did_not_do():
    border = problems._FEW_PARAMETERS
    for size, tried in [(border, True), (border + 1, False)]:
        found, _, log = refined(
            [(0.5, 0.0)] * 10, [3.98] * 10, formed=False, size=size, max_products=4
        )
        assert (("exact", 0, True) in log) is tried
        assert found.total == pytest.approx(0.07 if tried else 0.52, rel=1e-12)
    # Not where the target is reached, nor where it is out of reach.
    for linear, value in [(0.01, 3.98), (0.5, 3.85)]:
        _, _, log = refined([(linear, 0.0)], [value], formed=False)
        assert len(log) == 2


def test_a_kept_matrix_is_tried_first():
    options = {"kept": True, "max_products": 40, "target": 0.0}
    _, passes, log = refined([(0.01, 0.0)], [3.6], reached=True, **options)
    assert log == ["gradient", (problems._KEPT_PRODUCTS, 0.0)]
    assert passes == 3.0
    # Once it has failed it is tried no more.
    _, passes, log = refined([(0.9, 0.0)] * 3, [3.98] * 3, **options)
    first, second = ["gradient", (problems._KEPT_PRODUCTS, 0.0), "matrix"], ["gradient", "matrix"]
    assert log == first + second + second
    found, _, log = refined([], [], fails=True)
    assert log == ["gradient", "matrix"]
    assert found == (np.inf, 0.0)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_how_far_products_go(monkeypatch, target, kept):
    """By the decrease of the model, and by the slack |residual|^2 / (2 l2) of the coefficients."""
    seen = {}

    def model(curvature, modulus, slope, *, enough, max_products, precondition):
        seen.update(enough=enough, slope=slope, most=max_products, precondition=precondition)
        return "solution"

    monkeypatch.setattr(problems, "minimize_model", model)
    engine = SimpleNamespace(curvature=lambda point, dual: None)
    stand_in = SimpleNamespace(
        engine=engine, near_engine=None, near_inverse=None, penalty=SimpleNamespace(l2=0.5),
        modulus=lambda: np.array([0.5, 0.5, 0.0]), coefficients=lambda w: w[:2],
    )  # fmt: skip
    inverse = (lambda residual: residual) if kept else None
    point = SimpleNamespace(w=np.array([1.0, 2.0, 3.0]))
    solution = Problem._conjugate_step(
        stand_in, point, None, np.array([0.1, 0.2, 0.3]), target, 0.25, 17, inverse
    )
    assert solution == "solution"
    np.testing.assert_allclose(seen["slope"], [0.6, 1.2, 0.3])
    assert (seen["most"], seen["precondition"]) == (17, inverse)

    def enough(decrease, slack):
        return seen["enough"](0.0, decrease, np.array([np.sqrt(slack), 0.0, 9.0]))

    if target:
        # In all, what was gained before, now, and the slack: nine tenths of the target.
        assert enough(0.3, 0.34)
        assert not enough(0.3, 0.36)
    if kept:
        assert enough(0.75, 0.099)
        assert not enough(0.75, 0.101)
    elif target:
        assert enough(0.751, 0.7)
        assert not enough(0.749, 0.7)
    else:
        assert enough(0.75, 0.49e-3)
        assert not enough(0.75, 0.51e-3)
        assert not enough(0.25, 0.26e-3)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("separable", [False, True])
def test_when_a_factor_takes_the_place_of_a_matrix(
    monkeypatch, few, loses, outputs, quadratic, separable
):
    monkeypatch.setattr(problems, "loses_penalty", lambda *arguments: few)

    def loses_curvature(hessian, l2, rows):
        assert rows == 5 * outputs
        return loses

    def minimize(factor, gradient, w, penalty, n_penalized, u, n_outputs):
        assert (n_penalized, n_outputs) == (3 * outputs, outputs)
        return w + 2.0

    monkeypatch.setattr(problems, "loses_curvature", loses_curvature)
    monkeypatch.setattr(problems, "minimize_factored", minimize)
    penalty = SimpleNamespace(compiled=True, l2=0.1, separable=separable, quadratic=quadratic)
    w, u = np.zeros(3 * outputs), np.ones(3 * outputs)
    for faint_columns, faint_factor, factor in [
        (True, True, np.eye(3 * outputs)),
        (False, True, np.eye(3 * outputs)),
        (True, False, np.eye(3 * outputs)),
        (True, True, None),
    ]:
        monkeypatch.setattr(problems, "sees_faintly", lambda M, answer=faint_factor: answer)
        curvature = SimpleNamespace(factor=lambda factor=factor: factor)
        stand_in = SimpleNamespace(
            engine=SimpleNamespace(n_outputs=outputs, curvature=lambda *_, own=curvature: own),
            penalty=penalty, n_samples=5, n_features=3, _has_faint_columns=faint_columns,
        )  # fmt: skip
        found, bent = Problem.by_factor(stand_in, None, None, None, w, w, u)
        by_penalty = few and outputs == 1
        wanted = by_penalty or (separable and not quadratic and loses)
        wanted = wanted and (outputs == 1 or faint_columns)
        wanted = wanted and factor is not None and (by_penalty or faint_factor)
        if wanted:
            np.testing.assert_array_equal(found, 2.0)
            assert bent == 4.0 * 3 * outputs
        else:
            assert found is u
            assert bent is None
    penalty.compiled = False
    assert Problem.by_factor(stand_in, None, None, None, w, w, u) == (u, None)


def test_the_least_value_of_losses_and_penalty():
    X, y = make_data("squared", 20, 3, 0)
    # The least of l2/2 |w|^2 over the simplex is at equal coefficients.
    assert Problem(X, y, penalty=sorel.Simplex(0.6))._least_value == pytest.approx(0.1, rel=1e-14)
    assert Problem(X, y, penalty=sorel.Simplex(0.6))._least_value <= 0.1
    assert Problem(X, y, penalty=sorel.L2(0.6))._least_value == 0.0
    lower = Problem(X, y, penalty=sorel.Box(0.5, 1.0, 2.0))._least_value
    assert 0.75 * (1.0 - 3e-15) <= lower < 0.75
    linear = {"loss": "linear", "penalty": sorel.Simplex(0.6)}
    assert Problem(X, y, **linear)._least_value == -np.inf
    whole = Problem(X, y, risk=sorel.Deviation(sorel.CVaR(0.5)), **linear)
    assert whole._least_value == pytest.approx(0.1 - 2.0**-51 * whole._zero_loss, rel=1e-14)
    mixture = sorel.Mixture((sorel.CVaR(0.5), sorel.CVaR(0.1)), (0.5, 0.5))
    mixed = Problem(X, y, risk=sorel.Deviation(mixture), **linear)
    missing = 2.0**-51 * (20 * mixed._zero_loss + np.abs(X).max(axis=0).sum())
    assert 0.1 - mixed._least_value == pytest.approx(missing, rel=0.1)
    part = sorel.Deviation(sorel.CVaR(0.5), 0.5)
    assert Problem(X, y, risk=part, **linear)._least_value == -np.inf


@pytest.mark.parametrize(
    "penalty",
    [sorel.L2(0.3), sorel.NonNegative(0.3), sorel.Box(0.3, 5.0, np.inf), sorel.Box(0.0, -1.0, 2.0)],
    ids=repr,
)
def test_what_rounded_shares_may_make_of_losses(penalty):
    """The least of g(w) - e |loss of one sample|, by a search over a grid, in large units."""
    share = 2.0**-51
    X, y = np.array([[1e15], [-3e15]]), np.array([2e15, 1e15])
    mixture = sorel.Mixture((sorel.CVaR(0.5), sorel.CVaR(0.1)), (0.5, 0.5))
    problem = Problem(X, y, loss="linear", penalty=penalty, risk=sorel.Deviation(mixture))
    grid = np.linspace(-10.0, 10.0, 20001)
    inside = [w for w in grid if np.isfinite(penalty.value(np.array([w])))]
    worst = min(
        penalty.value(np.array([w])) - share * np.abs(y - X[:, 0] * w).max() for w in inside
    )
    least = min(penalty.value(np.array([w])) for w in inside)
    assert least - problem._rounded_shares(mixture) <= worst
    assert problem._rounded_shares(mixture) < 10.0 * max(least - worst, 1.0)


def test_shares_of_a_mixture_that_do_not_add_up_make_no_wrong_certificate():
    """One row, far from zero margins: all that is left of the risk is what the shares miss 1 by."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(40):
        share = rng.uniform()
        shares = share, float(np.nextafter(1.0 - share, rng.integers(2)))
        lack = sum(map(Fraction, shares)) - 1
        missed += lack < 0
        X, l2 = 10.0 ** rng.uniform(0.0, 3.0, (1, 28)), 7e-5
        mixture = sorel.Mixture((sorel.CVaR(0.1), sorel.CVaR(0.001)), shares)
        problem = Problem(
            X, [1e-3], risk=sorel.Deviation(mixture), loss="linear", penalty=sorel.Simplex(l2)
        )
        result = sorel.solve(problem)
        for w in (np.full(28, 1.0 / 28.0), result.w):
            w = [Fraction(value) / sum(map(Fraction, w)) for value in w]
            loss = Fraction(1e-3) - sum(map(operator.mul, map(Fraction, X[0]), w))
            ridge = Fraction(l2) / 2 * sum(value * value for value in w)
            assert Fraction(problem._least_value) <= ridge - abs(lack * loss)
            assert Fraction(result.dual) <= ridge - abs(lack * loss)
    assert missed > 5


def test_the_size_of_the_losses_where_those_at_zero_are_none():
    X, zero = np.array([[1.0, 3.0], [2.0, -1.0]]), [0.0, 0.0]
    simplex = sorel.Simplex(0.1)
    at_start = 0.5 * np.mean((X @ [0.5, 0.5]) ** 2)
    assert Problem(X, zero, penalty=simplex)._zero_loss == pytest.approx(at_start, rel=1e-14)
    # No such place, and the smallest number there is.
    assert Problem(X, zero, penalty=sorel.L2(0.1))._zero_loss == problems._TINY
    # Margins that cancel at the start: (0, 1) squared and halved, projected, is (1, 3) / 4.
    X = np.array([[1.0, -1.0], [2.0, -2.0]])
    problem = Problem(X, zero, penalty=simplex)
    beside = 0.5 * np.mean((X @ simplex.project([0.0, 0.5])) ** 2)
    assert problem._zero_loss == pytest.approx(beside, rel=1e-12)
    # Exponentials of margins of 1, not those of the start.
    X = np.array([[800.0, 800.0], [1.0, 1.0]])
    poisson = Problem(X, [1.0, 1.0], loss="poisson", penalty=simplex)
    at_zero = np.mean(np.abs(poisson.loss.value(np.ones(2), np.zeros(2))))
    at_one = np.mean(np.abs(poisson.loss.value(np.ones(2), np.ones(2))))
    assert poisson._zero_loss == pytest.approx(at_zero or at_one, rel=1e-14)


@pytest.mark.parametrize(
    ("size", "outputs", "quadratic", "cheap", "kept"),
    [
        (problems._WORTH_KEEPING, 1, True, True, True),
        (problems._WORTH_KEEPING - 1, 1, True, True, False),
        (problems._WORTH_KEEPING, 2, True, True, False),
        (problems._WORTH_KEEPING, 1, False, True, False),
        (problems._WORTH_KEEPING, 1, True, False, False),
    ],
)
def test_which_matrices_are_kept(size, outputs, quadratic, cheap, kept):
    stand_in = SimpleNamespace(
        engine=SimpleNamespace(n_outputs=outputs, products_are_cheap=cheap),
        penalty=SimpleNamespace(quadratic=quadratic), curvature=None,
    )  # fmt: skip
    hessian = np.eye(size)
    assert Problem.keep_curvature(stand_in, hessian) is kept
    assert stand_in.curvature is (hessian if kept else None)


@pytest.mark.parametrize(
    ("size", "rows", "cheaper", "quadratic", "path"),
    [
        (problems.FEW_PARAMETERS, 5, True, True, "matrix"),
        (problems.FEW_PARAMETERS + 1, 5, True, True, "rows"),
        (problems.FEW_PARAMETERS + 1, 5, False, True, "matrix"),
        (problems.FEW_PARAMETERS + 1, 5, True, False, "matrix"),
        (problems.FEW_PARAMETERS + 1, 0, True, True, "matrix"),
        (problems._FEW_PARAMETERS, 5, False, True, "matrix"),
        (problems._FEW_PARAMETERS + 1, 5, False, True, "rows"),
        (REFINABLE_SIZE, 0, False, True, "matrix"),
        (REFINABLE_SIZE + 1, 0, False, True, "none"),
    ],
)
def test_newton_points_from_a_matrix_or_from_rows(
    monkeypatch, size, rows, cheaper, quadratic, path
):
    monkeypatch.setattr(
        problems, "StepCosts", lambda engine, n: SimpleNamespace(rows_are_cheaper=cheaper)
    )
    monkeypatch.setattr(problems, "minimize_quadratic", lambda *arguments: (np.full(2, 7.0), None))
    w, gradient = np.array([2.0, 4.0]), np.array([0.1, 0.2])
    solved, kept, factored = [], [], []

    def solve(right, l2):
        solved.append((right, l2))
        return np.full(2, 0.25)

    part = SimpleNamespace(
        engine=SimpleNamespace(hessian=lambda point, dual: "matrix"), rows=None, penalty=None,
        n_penalized=2, take=lambda values: values, put=lambda w, u: u,
    )  # fmt: skip
    stand_in = SimpleNamespace(
        engine=SimpleNamespace(
            size=size, solves_by_rows=True, n_outputs=1,
            curvature=lambda point, dual: SimpleNamespace(rows=rows, solve=solve),
        ),
        penalty=SimpleNamespace(quadratic=quadratic, l2=0.5, separable=True),
        modulus=lambda: np.array([0.5, 0.0]), part=lambda w, gradient: part,
        keep_curvature=kept.append,
        by_factor=lambda *arguments: factored.append(1) or (np.full(2, 8.0), None),
    )  # fmt: skip
    point = SimpleNamespace(w=w)
    if path == "none":
        with pytest.raises(np.linalg.LinAlgError, match="more rows"):
            Problem._newton_point(stand_in, point, None, gradient)
        return
    found = Problem._newton_point(stand_in, point, None, gradient)
    if path == "rows":
        np.testing.assert_array_equal(found, w + 0.25)
        np.testing.assert_allclose(solved[0][0], [1.1, 0.2])
        assert solved[0][1] == 0.5
    else:
        assert kept == ["matrix"]
        np.testing.assert_array_equal(found, 7.0 if quadratic else 8.0)
        if not quadratic:
            # Where some rest, or coefficients hang together, the matrix has the last word.
            for attribute, value in (("rows", [0]), ("separable", False)):
                holder = part if attribute == "rows" else stand_in.penalty
                own = getattr(holder, attribute)
                setattr(holder, attribute, value)
                again = Problem._newton_point(stand_in, point, None, gradient)
                np.testing.assert_array_equal(again, 7.0)
                setattr(holder, attribute, own)
            assert len(factored) == 1


def test_the_scale_of_losses_without_coefficients():
    X, y = make_data("squared", 30, 2, 1)
    own = 0.5 * np.mean((y - y.mean()) ** 2)
    problem = Problem(X, y + 5.0, fit_intercept=True)
    assert problem._scale == pytest.approx(own, rel=1e-12)
    assert Problem(X, y + 5.0)._scale == pytest.approx(0.5 * np.mean((y + 5.0) ** 2), rel=1e-12)
    # No less than a share, and nothing where targets are all alike.
    far = Problem(X, y + 1e7, fit_intercept=True)
    assert far._scale == pytest.approx(problems._OFFSET * far._zero_loss, rel=1e-12)
    alike = Problem(X, np.full(30, 5.0), fit_intercept=True)
    assert alike._scale == alike._zero_loss == 12.5


def test_what_is_left_of_an_intercept_is_charged():
    """The simple bound with an intercept is that at the best one, and what lies between them."""
    X, y = make_data("logistic", 40, 2, 3)
    problem = Problem(X, y, loss="logistic", penalty=sorel.L2(0.1), fit_intercept=True).for_run()
    engine, rounding = problem.engine, problem._rounding()
    point = engine.point(np.array([0.3, -0.2, 0.7]))
    dual = engine.worst_case(point)
    expected = engine.expected(point, dual)
    penalty = problem.penalty_value(point.w)
    found = problem._linear_bound(rounding, point, dual, expected, penalty, None, 1e-16)
    best = engine.best_intercept(point, dual)
    slope = engine.gradient(best, dual)[:2]
    bracket = problem.penalty.fenchel_young(best.w[:2], -slope)
    excess = expected - engine.expected(best, dual)
    assert excess > 1e-3
    assert found.total == pytest.approx(excess + bracket, rel=1e-9)
    assert 0.0 < found.rounding < 1e-12
    # At the best intercept the gradient that is given serves.
    again = problem._linear_bound(
        rounding, best, dual, engine.expected(best, dual), penalty, np.r_[slope, 0.0], 1e-16
    )
    assert again.total == pytest.approx(bracket, rel=1e-9)


def test_parameters_of_one_output_may_be_flat():
    X, y = make_data("multinomial", 20, 2, 0)
    problem = Problem(X, y, loss="multinomial", penalty=sorel.L2(0.1))
    w = np.arange(6.0)
    np.testing.assert_array_equal(problem.check_parameters(w), w.reshape(2, 3))
    for bad in (np.zeros(5), np.zeros((3, 2)), np.zeros((6, 1))):
        with pytest.raises(ValueError, match="w must have shape"):
            problem.check_parameters(bad)


@pytest.mark.parametrize("reached", [0.9, 1.1])
def test_moderate_losses(reached):
    X, y = make_data("squared", 20, 2, 0)
    problem = Problem(X, y)
    way = np.sqrt(2.0 * reached * problems._MODERATE * problem._zero_loss / np.mean(X[:, 0] ** 2))
    point = problem.engine.point(np.array([way, 0.0]))
    assert problem.is_moderate(point) is (reached < 1.0)


def linear_bound(
    *, intercept=False, best="elsewhere", bracket=0.25, affine=False, spread=6e-3, summed=4e-3,
    gradient=None,
):  # fmt: skip
    """The simple bound where all that it is made of is given, and what was asked for."""
    asked = []
    start, shifted = (SimpleNamespace(w=np.array([1.0, 2.0, b])) for b in (0.0, 0.5))
    best = {"elsewhere": shifted, "here": start, "nowhere": None}[best]

    def losses(point, dual, expected, margin_error):
        asked.append((point, expected, round(margin_error, 9)))
        return 3e-3, "slopes"

    def spread_of(value, coef, slope, slopes, residual, sums=None):
        assert (value, slopes) == (bracket, "slopes")
        asked.append((round(residual, 9), sums))
        return spread if sums is None else summed

    rounding = SimpleNamespace(
        difference=lambda value: 1e-3, shift=lambda w: 2e-3, losses=losses,
        intercept=lambda point, dual, slope, slopes: (4e-3, 0.5), penalty_value=lambda value: 5e-3,
        bracket=spread_of, affine_sums=lambda dual: "sums",
    )  # fmt: skip
    stand_in = SimpleNamespace(
        engine=SimpleNamespace(
            best_intercept=lambda point, dual: best, expected=lambda point, dual: 2.5,
            gradient=lambda point, dual: asked.append("gradient") or np.array([0.1, 0.2, 0.3]),
        ),
        fit_intercept=intercept, n_features=2, coefficients=lambda w: w[:2],
        penalty=SimpleNamespace(fenchel_young=lambda coef, slope: bracket),
        loss=SimpleNamespace(affine=affine), unit=lambda value: 10.0 * value,
    )  # fmt: skip
    found = Problem._linear_bound(stand_in, rounding, start, None, 3.0, 1.0, gradient, 7e-3)
    return found, asked, start, shifted


def test_the_simple_bound_without_an_intercept():
    found, asked, start, _ = linear_bound()
    assert found == pytest.approx((0.25 + 14e-3, 14e-3), rel=1e-12)
    assert asked == ["gradient", (start, 3.0, 7e-3), (0.0, None)]
    _, asked, start, _ = linear_bound(gradient=np.zeros(3))
    assert asked == [(start, 3.0, 7e-3), (0.0, None)]
    assert linear_bound(bracket=np.inf)[0] == (np.inf, 0.0)


def test_the_simple_bound_with_an_intercept():
    gradient = np.zeros(3)
    found, asked, _, shifted = linear_bound(intercept=True, gradient=gradient)
    # 3 - 2.5 is lost to the intercept, with the errors of a difference and of a shift.
    assert found == pytest.approx((0.5 + 0.25 + 19e-3, 19e-3), rel=1e-12)
    assert asked == ["gradient", (shifted, 2.5, 9e-3), (0.5, None)]
    found, asked, start, _ = linear_bound(intercept=True, best="here", gradient=gradient)
    assert found == pytest.approx((0.25 + 18e-3, 18e-3), rel=1e-12)
    assert asked == [(start, 3.0, 7e-3), (0.5, None)]
    assert linear_bound(intercept=True, best="nowhere")[0] == (np.inf, 0.0)


def test_terms_of_an_affine_gradient_are_added_up_where_that_may_pay():
    border = problems._WORTH_SUMS * 10.0 * (3.0 + 1.0)
    for spread, sums in [(0.99 * border, False), (1.01 * border, True)]:
        for affine in (False, True):
            found, asked, *_ = linear_bound(affine=affine, spread=spread, summed=0.5 * border)
            assert ((0.0, "sums") in asked) is (affine and sums)
            least = 0.5 * border if affine and sums else spread
            assert found.rounding - 8e-3 == pytest.approx(least, rel=1e-6)
    found, *_ = linear_bound(affine=True, spread=2.0 * border, summed=3.0 * border)
    assert found.rounding - 8e-3 == pytest.approx(2.0 * border, rel=1e-6)


def test_a_problem_with_the_maximum_apart(monkeypatch):
    X, y = make_data("squared", 30, 3, 0)
    mixture = sorel.Mixture([sorel.CVaR(0.5), sorel.Max()], [0.5, 0.5])
    problem = Problem(X, y, risk=mixture, sample_weight=np.linspace(1.0, 2.0, 30))
    other = problem.apart()
    assert other.engine is not problem.engine
    assert other._zero_loss == problem._zero_loss
    assert other.objective(np.ones(3)) == pytest.approx(problem.objective(np.ones(3)), rel=1e-12)
    monkeypatch.setattr(problems, "LARGEST_HESSIAN", 3)
    assert problem.apart() is not None
    monkeypatch.setattr(problems, "LARGEST_HESSIAN", 2)
    assert problem.apart() is None
    monkeypatch.undo()
    plain = Problem(X, y, risk="max")
    monkeypatch.setattr(plain.engine, "apart", lambda: pytest.fail("asked for in vain"))
    assert plain.apart() is None
    monkeypatch.setattr(problem.engine, "apart", lambda: None)
    assert problem.apart() is None


@pytest.mark.parametrize("name", ["in_single", "sample"])
def test_problems_of_other_engines_that_may_not_be_had(monkeypatch, name):
    X, y = make_data("squared", 30, 3, 0)
    problem = Problem(X, y)
    arguments = (5, np.random.default_rng(0)) if name == "sample" else ()
    ask = problem.subsample if name == "sample" else problem.in_single
    for engine in (Problem(X[:5], y[:5]).engine, None):
        monkeypatch.setattr(problem.engine, name, lambda *given, engine=engine: engine)
        other = ask(*arguments)
        if engine is None:
            assert other is None
        else:
            assert other.engine is engine
            assert other.penalty is problem.penalty
            with pytest.raises(TypeError, match="has the risk of its engine"):
                other.with_risk("mean")


def test_what_a_bound_in_long_doubles_is_asked_for(monkeypatch):
    stand_in = SimpleNamespace(engine=None, loss=None, penalty=None, unit=lambda value: 3.0 * value)
    for answer, expected in [
        (None, (np.inf, 0.0)),
        (SimpleNamespace(value=np.longdouble(1.75), rounding=0.01), (0.25, 0.01)),
        # No less than what rounding makes of it.
        (SimpleNamespace(value=np.longdouble(1.995), rounding=0.01), (0.01, 0.01)),
    ]:
        asked = []

        def extended(*arguments, answer=answer, asked=asked):
            asked.append(arguments[-2:])
            return answer

        monkeypatch.setattr(problems, "extended_bound", extended)
        found = Problem._extended_bound(stand_in, None, None, None, 2.0, 0.5)
        assert found == pytest.approx(expected, rel=1e-12)
        assert asked == [pytest.approx((problems._ENOUGH_DIGITS * 6.0, 1.5), rel=1e-14)]


@pytest.mark.parametrize("affine", [False, True])
def test_the_least_gap_has_the_errors_of_losses_and_bracket(affine):
    def bracket(value, coef, slope, slopes, residual, sums):
        assert (value, residual, slopes) == (0.0, 0.0, "slopes")
        assert sums == ("sums" if affine else None)
        return 0.2

    rounding = SimpleNamespace(
        margins=lambda w: 0.1, losses=lambda point, dual, expected, error: (3.0 * error, "slopes"),
        bracket=bracket, affine_sums=lambda dual: "sums",
    )  # fmt: skip
    stand_in = SimpleNamespace(
        engine=SimpleNamespace(point=lambda w: None, expected=lambda point, dual: 1.0),
        _rounding=lambda: rounding, coefficients=lambda w: w,
        loss=SimpleNamespace(affine=affine),
    )  # fmt: skip
    assert Problem.least_gap(stand_in, np.ones(2), None) == pytest.approx(0.5, rel=1e-14)


@pytest.mark.parametrize(
    "weight", [np.ma.masked_array(np.ones(20), np.arange(20) == 3), ["1"] * 20, ["a"] * 20]
)
def test_sample_weights_that_are_no_numbers_are_refused(weight):
    X, y = make_data("squared", 20, 2, 0)
    with pytest.raises(ValueError, match="sample_weight"):
        Problem(X, y, sample_weight=weight)
    Problem(X, y, sample_weight=None)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_measure_of_the_worst_of_exponentials(intercept):
    """Samples on the steep side of their loss count by the level of those on the flat side."""
    X, y = make_data("gamma", 30, 2, 0)
    problem = Problem(X, y, loss="gamma", risk="max", fit_intercept=intercept)
    found = 0
    for shift in (-3.0, -1.0, 1.0, 3.0) if intercept else (0.0,):
        w = np.r_[4.0, -3.0, shift][: 2 + intercept]
        ratio = y * np.exp(-(X @ w[:2] + shift))
        # The loss is log(1 / ratio) + ratio - 1, its slope 1 - ratio, its curvature the ratio.
        steep = ratio >= np.abs(1.0 - ratio)
        level = np.max((ratio - np.log(ratio) - 1.0)[~steep], initial=0.0)
        evened = problem.evened(w)
        assert (evened is not None) == (steep.any() and level > 1.0)
        if evened is not None:
            measure = np.where(steep, 1.0 / level, 1.0)
            np.testing.assert_allclose(evened.sample_weight, measure / measure.sum())
            found += 1
    assert found


def test_working_sets_are_kept_for_one_engine_and_one_penalty():
    X, y = make_data("squared", 20, 3, 0)
    problem = Problem(X, y, penalty=sorel.ElasticNet(0.1, 0.1)).for_run()
    arguments = problem.start(), np.ones(3)
    problem.part(*arguments)
    known = problem._working_sets
    problem.part(*arguments)
    assert problem._working_sets is known
    other = problem.with_penalty(sorel.ElasticNet(0.1, 0.2))
    again = problem.for_run()
    for changed in (other, again):
        changed.part(*arguments)
        assert changed._working_sets is not known
        assert changed._working_sets.engine is changed.engine
        assert changed._working_sets.penalty is changed.penalty
