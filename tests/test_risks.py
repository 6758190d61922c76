"""Spectra against 40-digit arithmetic and their defining properties."""

import copy
import math
import pickle
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import sorel
from sorel import ESRM, CustomSpectrum, CVaR, Deviation, Extremile, Max, Mean, Mixture, parse_risk
from sorel.risks import Risk, normalised_sample_weight

EXTREMES = [
    Mean(), Max(), *[CVaR(a) for a in (1e-6, 0.1, 0.29, 1 / 3, 0.71, 0.999999, 1.0)],
    *[ESRM(rho) for rho in (1e-8, 1e-3, 2.0, 37.0, 300.0, 800.0)],
    *[Extremile(r) for r in (1, 1 + 1e-9, 2.0, 2.5, 33.3, 500.0)],
]  # fmt: skip
ALL = [
    *EXTREMES, Mixture([Mean(), CVaR(0.1), ESRM(3.0)], [1, 2, 1]),
    CustomSpectrum([0.0, 1.0, 1.0, 5.0]), CustomSpectrum(np.exp),
    CustomSpectrum(cumulative=np.square),
]  # fmt: skip


def by_risk(risks: list[Risk]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("risk", risks, ids=repr)


# Exponents reach 745, and their rounding is one of the weights.
RELATIVE = 745 * np.finfo(float).eps


def exact_s(risk: Risk, u: mpmath.mpf) -> mpmath.mpf:
    """S(u) in the precision of mpmath, with the parameter taken as the exact double."""
    parameter = mpmath.mpf(float(next(iter(risk.get_params().values()), 0.0)))
    if isinstance(risk, Mean):
        return u
    if isinstance(risk, Max):
        return mpmath.mpf(int(u >= 1))
    if isinstance(risk, CVaR):
        return max(mpmath.mpf(0), (u - (1 - parameter)) / parameter)
    if isinstance(risk, ESRM):
        return (mpmath.exp(-parameter * (1 - u)) - mpmath.exp(-parameter)) / -mpmath.expm1(
            -parameter
        )
    assert isinstance(risk, Extremile)
    return u**parameter


def largest_relative_error(risk: Risk, sigma: np.ndarray, entries: set[int]) -> float:
    n, worst = sigma.size, 0.0
    # The difference cancels as many digits as n and the smallest weight have: work with many.
    with mpmath.workdps(400):
        for i in entries:
            want = exact_s(risk, mpmath.mpf(i) / n) - exact_s(risk, mpmath.mpf(i - 1) / n)
            if want > 1e-300:
                worst = max(worst, float(abs(mpmath.mpf(float(sigma[i - 1])) - want) / want))
            else:
                assert sigma[i - 1] <= 1e-299
    return worst


@by_risk(EXTREMES)
def test_weights_match_exact_arithmetic(risk: Risk) -> None:
    for n in (1, 2, 3, 7, 100, 999):
        entries = set(np.unique(np.linspace(1, n, 25).astype(int)).tolist()) | {max(1, n - 1)}
        assert largest_relative_error(risk, risk.weights(n), entries) < RELATIVE


@by_risk([CVaR(1e-6), CVaR(0.29), ESRM(1e-8), ESRM(800.0), Extremile(2.5), Extremile(500.0)])
def test_weights_match_exact_arithmetic_at_large_n(risk: Risk) -> None:
    n = 10**7
    sigma = risk.weights(n)
    edge = n - math.floor(n * 0.29)
    entries = {1, 2, n // 3, n // 2, edge - 1, edge, edge + 1, n - 11, n - 10, n - 9, n}
    assert largest_relative_error(risk, sigma, entries) < RELATIVE
    assert bool((sigma[1:] >= sigma[:-1]).all())
    assert abs(math.fsum(sigma[k : k + 2**16].sum() for k in range(0, n, 2**16)) - 1) < 1e-15


@by_risk(ALL)
def test_weights_are_nondecreasing_and_sum_to_one(risk: Risk) -> None:
    for n in (1, 2, 10, 4097, 40_000):
        sigma = risk.weights(n)
        assert sigma.shape == (n,)
        assert sigma.dtype == np.float64
        assert sigma[0] >= 0
        assert bool((np.diff(sigma) >= 0).all())
        assert abs(math.fsum(sigma) - 1) <= 4 * np.finfo(float).eps


def test_spectra_that_coincide() -> None:
    cubic = np.diff((np.arange(51) / 50) ** 3)
    mixed = 0.25 * CVaR(0.25).weights(50) + 0.75 * ESRM(2.0).weights(50)
    for risk, expected in (
        (CVaR(1.0), Mean().weights(50)),
        (Extremile(1), Mean().weights(50)),
        (CVaR(0.01), Max().weights(50)),
        (ESRM(1e-12), Mean().weights(50)),
        (ESRM(1e199), Max().weights(50)),
        (Mixture([CVaR(0.25), ESRM(2.0)], [2, 6]), mixed),
        # u^2 is the cumulative function of the density 2u.
        (CustomSpectrum(lambda u: u), Extremile(2.0).weights(50)),
        (CustomSpectrum(cumulative=lambda u: u**2), Extremile(2.0).weights(50)),
        (CustomSpectrum(cumulative=lambda u: 8.0 * u**3), cubic),
        # Functions of one number, constants, and functions that write to their argument.
        (CustomSpectrum(lambda u: 1.0), Mean().weights(50)),
        (CustomSpectrum(lambda u: math.exp(2 * u)), ESRM(2.0).weights(50)),
        (CustomSpectrum(cumulative=lambda u: float(u == 1)), Max().weights(50)),
        (CustomSpectrum(careless), CustomSpectrum(lambda u: 1.0 + u).weights(50)),
        (Cubic(), cubic),
    ):
        assert_allclose(risk.weights(50), expected, rtol=1e-9, atol=1e-15, err_msg=repr(risk))


def careless(u):
    u += 1.0
    return u


class Cubic(Risk):
    """S(u) = u^3 with nothing but its mirror image T, as somebody else would write it."""

    def __init__(self):
        self._store()

    def _tail_at(self, v):
        return v * (3.0 - v * (3.0 - v))


@by_risk(ALL)
def test_cumulative_and_tail_mirror_each_other(risk: Risk) -> None:
    u = np.linspace(0.0, 1.0, 65)
    s = risk.cumulative(u)
    assert (s[0], s[-1]) == pytest.approx((0.0, 1.0), abs=1e-15)
    assert_allclose(risk.tail(1.0 - u), 1.0 - s, atol=1e-13)
    slopes = np.diff(s)
    assert slopes.min() >= -1e-15
    assert np.diff(slopes).min() >= -1e-13
    assert isinstance(risk.tail(0.25), float)
    assert risk.cumulative(u.reshape(5, 13)).shape == (5, 13)
    # sigma is the increment of S.
    assert_allclose(risk.weights(64), slopes, atol=2e-13)


@by_risk([CVaR(0.3), ESRM(2.0), ESRM(800.0), Extremile(2.5)])
def test_tail_does_not_cancel(risk: Risk) -> None:
    with mpmath.workdps(60):
        for v in (1e-14, 1e-9, 1e-3):
            want = 1 - exact_s(risk, 1 - mpmath.mpf(v))
            assert float(abs(mpmath.mpf(risk.tail(v)) - want) / want) < 1e-15


@by_risk(ALL)
def test_increments_add_up_like_repeated_losses(risk: Risk) -> None:
    counts = np.array([0, 3, 0, 1, 5, 0, 2, 4, 1, 0])
    starts = np.append(0, np.cumsum(counts)[:-1])
    sigma = risk.weights(counts.sum())
    want = [sigma[a : a + c].sum() for a, c in zip(starts, counts, strict=True)]
    got = risk.increments(counts / counts.sum())
    assert_allclose(got, want, rtol=1e-10, atol=1e-14)
    assert not got[counts == 0].any()
    omega = np.random.default_rng(1).random(100_000)
    for increments in (got, risk.increments(omega / omega.sum())):
        assert abs(math.fsum(increments) - 1) < 1e-15
    density = got[counts > 0] / counts[counts > 0]
    assert bool((density[1:] >= density[:-1] * (1 - 1e-12)).all())
    losses = np.random.default_rng(2).standard_normal(10)
    assert risk(losses, counts) == pytest.approx(risk(np.repeat(losses, counts)), rel=1e-11)


@by_risk([ESRM(2.0), Extremile(2.5), CVaR(0.3)])
def test_increments_are_accurate_at_the_bottom(risk: Risk) -> None:
    omega = np.array([1e-9, 2e-9, 0.2, 0.3, 0.5])
    omega /= omega.sum()
    got = risk.increments(omega)
    with mpmath.workdps(60):
        reach = [mpmath.mpf(0)]
        for w in omega:
            reach.append(reach[-1] + mpmath.mpf(float(w)))
        levels = [exact_s(risk, u / reach[-1]) for u in reach]
        want = [float(b - a) for a, b in pairwise(levels)]
    assert_allclose(got, want, rtol=1e-14)


BENT = Mixture([Mean(), CVaR(0.25)], [1, 3])


@pytest.mark.parametrize(("risk", "n", "weight", "levels"), [
    (Mean(), 10, None, (1.0, 1.0)),
    (CVaR(0.25), 10, None, (0.0, 4.0)),
    (CVaR(0.01), 10, None, (0.0, 10.0)),
    (CVaR(0.01), 2, [0.5, 0.5], (0.0, 100.0)),
    (CVaR(1.0), 10, None, (1.0, 1.0)),
    (Max(), 10, None, (0.0, 10.0)),
    (Max(), 1, None, (1.0, 1.0)),
    (Max(), 2, [0.5, 0.5], None),
    (ESRM(2.0), 10, None, None),
    (BENT, 10, None, (0.25, 3.25)),
    (Mixture([CVaR(0.5), CVaR(0.25)], [1, 3]), 10, None, None),
    (Mixture([CVaR(0.5), ESRM(1.0)], [1, 0]), 10, None, (0.0, 2.0)),
    (Mixture([Mean(), Mean()], [1, 2]), 10, None, (1.0, 1.0)),
    # 0.25 and 3.25 bend at 3/4, as CVaR(0.25) does.
    (Mixture([BENT, CVaR(0.25)], [0.5, 0.5]), 8, None, (0.125, 3.625)),
    (Mixture([BENT, CVaR(0.5)], [0.5, 0.5]), 8, None, None),
])  # fmt: skip
def test_levels(risk, n, weight, levels) -> None:
    assert risk.levels(n, weight) == (levels and pytest.approx(levels))
    if levels and weight is None:
        density = n * risk.weights(n)
        assert (density[0], density[-1]) == pytest.approx(levels, rel=1e-14)
        assert np.count_nonzero((density > levels[0] + 1e-9) & (density < levels[1] - 1e-9)) <= 1


@by_risk(ALL)
def test_risk_of_losses(risk: Risk) -> None:
    losses, other = np.random.default_rng(0).standard_normal((2, 37))
    value = risk(losses)
    assert value == pytest.approx(math.fsum(risk.weights(37) * np.sort(losses)), rel=1e-14)
    assert losses.mean() - 1e-12 <= value <= losses.max() + 1e-12
    # Translation, scale, and subadditivity: what makes the risk coherent.
    assert risk(3.0 * losses + 1.0) == pytest.approx(3.0 * value + 1.0, rel=1e-13)
    assert risk(losses + other) <= value + risk(other) + 1e-12


def test_risks_by_other_definitions() -> None:
    losses = np.random.default_rng(3).standard_normal(101)
    variational = [t + np.maximum(losses - t, 0).mean() / 0.23 for t in losses]
    assert CVaR(0.23)(losses) == pytest.approx(min(variational), rel=1e-14)
    assert Extremile(2)(losses) == pytest.approx(np.maximum.outer(losses, losses).mean())
    assert CVaR(0.5)([1.0, 2.0, math.inf, 3.0]) == math.inf
    assert Max()([-math.inf, 1.0]) == 1.0


def test_custom_vector_is_a_step_density() -> None:
    vector = np.array([0.0, 0.5, 0.5, 2.0, 4.0, 5.0])
    cuts = np.append(0.0, np.cumsum(vector)) / vector.sum()
    for n in (1, 2, 3, 6, 8, 13, 1000):
        want = np.diff(np.interp(np.arange(n + 1) / n, np.arange(7) / 6, cuts))
        assert_allclose(CustomSpectrum(vector).weights(n), want, atol=2e-15)
    assert_array_equal(vector, [0.0, 0.5, 0.5, 2.0, 4.0, 5.0])


@by_risk(ALL)
def test_value_semantics(risk: Risk) -> None:
    twins = [copy.copy(risk), copy.deepcopy(risk), clone(risk)]
    if "lambda" not in repr(risk):
        twins.append(pickle.loads(pickle.dumps(risk)))
    for twin in twins:
        assert twin == risk
        assert hash(twin) == hash(risk)
        assert_array_equal(twin.weights(13), risk.weights(13))
    assert twins[2] is not risk
    assert risk.name == type(risk).__name__.lower().removesuffix("spectrum")
    if "<" not in repr(risk):
        names = {k: v for k, v in globals().items() if isinstance(v, type)}
        assert eval(repr(risk), names) == risk
    with pytest.raises(AttributeError, match="immutable"):
        risk.alpha = 0.2
    with pytest.raises(AttributeError, match="immutable"):
        del risk.alpha


def test_equality_and_parameters() -> None:
    assert len({Mean(), Max(), CVaR(0.5), CVaR(0.1), ESRM(0.5), CVaR(np.float64(0.5))}) == 5
    assert CVaR(1) == CVaR(1.0) != "cvar:1"
    assert Mixture([Mean()], [1.0]) != Mixture([Mean()], [2.0])


def test_set_params_validates_and_leaves_the_risk_alone() -> None:
    risk = CVaR(0.5)
    with pytest.raises(ValueError, match=r"no parameter 'rho'.*alpha"):
        risk.set_params(rho=1.0)
    with pytest.raises(ValueError, match="alpha"):
        risk.set_params(alpha=2.0)
    assert risk == CVaR(0.5)
    assert risk.set_params() is risk
    mixture = Mixture([Mean()], [1.0]).set_params(weights=[3.0])
    assert mixture.get_params() == {"components": (Mean(),), "weights": (3.0,)}
    spectrum = CustomSpectrum([1.0, 2.0]).set_params(density=[1.0, 1.0])
    assert_allclose(spectrum.weights(3), 1 / 3)


@pytest.mark.parametrize(("build", "error", "words"), [
    (lambda: CVaR(0.0), ValueError, r"alpha must lie in \(0, 1\], got 0.0"),
    (lambda: CVaR(math.nan), ValueError, "got nan"),
    (lambda: CVaR(True), TypeError, "real number, got True"),
    (lambda: ESRM(0.0), ValueError, r"rho must lie in \(0, inf\)"),
    (lambda: Extremile(0.99), ValueError, r"r must lie in \[1, inf\)"),
    (lambda: Mixture([], []), ValueError, "empty"),
    (lambda: Mixture([Mean()], [0.5, 0.5]), ValueError, "one entry per component"),
    (lambda: Mixture([Mean()], [0.0]), ValueError, "positive finite sum"),
    (lambda: Mixture([Mean(), Max()], [1.5, -0.5]), ValueError, "-0.5"),
    (lambda: Mixture(["mean"], [1.0]), TypeError, "risks such as"),
    (lambda: Mixture(Mean(), [1.0]), TypeError, "sequence"),
    (lambda: CustomSpectrum(), ValueError, "neither"),
    (lambda: CustomSpectrum([1.0], cumulative=abs), ValueError, "both"),
    (lambda: CustomSpectrum([]), ValueError, "non-empty"),
    (lambda: CustomSpectrum([[1.0, 2.0]]), ValueError, "non-empty vector"),
    (lambda: CustomSpectrum([0, 3.0, 7, 6.5]), ValueError, "7.0 to 6.5 at position 3[.]"),
    (lambda: CustomSpectrum([-1.0, 1.0]), ValueError, "nonnegative"),
    (lambda: CustomSpectrum([0.0, 0.0]), ValueError, "zero everywhere"),
    (lambda: CustomSpectrum(3.0), TypeError, "sequence"),
    (lambda: CustomSpectrum(lambda u: u - 0.5), ValueError, "nonnegative"),
    (lambda: CustomSpectrum(lambda u: 0.0 * u), ValueError, "zero everywhere"),
    (lambda: CustomSpectrum(lambda u: u * math.nan), ValueError, "finite"),
    (lambda: Mean().weights(0), ValueError, "at least 1"),
    (lambda: Mean().weights(2.0), TypeError, "integer"),
    (lambda: Mean().cumulative(1.1), ValueError, r"\[0, 1\]"),
    (lambda: Mean()([1.0, math.nan]), ValueError, "NaN"),
    (lambda: Mean()([]), ValueError, "shape"),
    (lambda: Mean().tail(math.nan), ValueError, r"\[0, 1\]"),
    (lambda: normalised_sample_weight([1.0, -1.0], 2), ValueError, "-1.0"),
    (lambda: normalised_sample_weight([0.0, 0.0], 2), ValueError, "zero everywhere"),
    (lambda: normalised_sample_weight([1.0], 2), ValueError, "shape"),
    (lambda: parse_risk("cvr:0.1"), ValueError, "known forms.*extremile:2.5"),
    (lambda: parse_risk("cvar"), ValueError, "known forms"),
    (lambda: parse_risk("mean:1"), ValueError, "known forms"),
    (lambda: parse_risk("cvar:x"), ValueError, "'x'"),
    (lambda: parse_risk("cvar:2"), ValueError, "alpha must lie"),
    (lambda: parse_risk("mix:mean,max=1"), ValueError, "'mix:mean,max=1'.*such as mix:mean"),
    (lambda: parse_risk(0.1), TypeError, "known forms"),
])  # fmt: skip
def test_errors_say_what_was_wrong(build, error, words) -> None:
    with pytest.raises(error, match=words):
        build()


@pytest.mark.parametrize(("text", "risk"), [
    ("mean", Mean()),
    (" MAX ", Max()),
    ("cvar:0.1", CVaR(0.1)),
    ("ESRM: 2", ESRM(2)),
    ("Extremile:2.5", Extremile(2.5)),
    ("Mix: mean=0.7, cvar:0.05 = 0.3", Mixture([Mean(), CVaR(0.05)], [0.7, 0.3])),
    ("deviation:mix:max=1,esrm:2=3", Deviation(Mixture([Max(), ESRM(2)], [1, 3]))),
])  # fmt: skip
def test_parse_risk(text: str, risk: Risk) -> None:
    assert parse_risk(text) == risk
    assert parse_risk(risk) is risk
    assert risk.spec is not None
    assert parse_risk(risk.spec) == risk
    assert Mixture([Mixture([Mean()], [1])], [1]).spec is None


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 2.0])
def test_all_faces_of_a_deviation_are_those_of_the_risk_less_a_share_of_the_mean(share):
    u = np.array([0.0, 0.1, 0.4, 0.75, 1.0])
    losses, weight = np.array([1.0, 2.0, 5.0, 7.0]), np.array([0.1, 0.4, 0.2, 0.3])
    for risk in (CVaR(0.5), ESRM(2.0)):
        deviation = sorel.Deviation(risk, share)
        assert_allclose(deviation.cumulative(u), risk.cumulative(u) - share * u, atol=1e-15)
        assert_allclose(deviation.tail(u), risk.tail(u) - share * u, atol=1e-15)
        assert_allclose(deviation.weights(7), risk.weights(7) - share / 7, atol=1e-15)
        expected = risk(losses, weight) - share * (weight @ losses)
        assert_allclose(deviation.increments(weight) @ losses, expected, rtol=1e-12, atol=1e-15)
        assert deviation(losses, weight) == pytest.approx(expected, abs=1e-15)
        assert (deviation.spec is None) is (share != 1.0)


def test_weights_of_many_samples_keep_their_digits():
    # Both are the mean. What a running sum loses would all go to the smallest loss.
    weight = np.random.default_rng(0).integers(1, 4, 20_000).astype(float)
    omega = weight / weight.sum()
    assert abs(CustomSpectrum((1.0, 1.0)).increments(omega) - omega).max() <= 1e-15


def test_a_density_with_jumps_is_integrated_between_them():
    def density(u):
        return 1.0 + 2.0 * (u >= 0.25) + 5.0 * (u >= 0.875)

    def integral(u):
        return u + 2.0 * np.maximum(u - 0.25, 0.0) + 5.0 * np.maximum(u - 0.875, 0.0)

    risk, total = CustomSpectrum(density), integral(1.0)
    u = np.array([0.0, 1e-4, 0.2, 0.25, 0.2501, 0.6, 0.875, 0.9, 1.0 - 1e-4, 1.0])
    assert_allclose(risk.cumulative(u), integral(u) / total, rtol=1e-12, atol=1e-15)
    assert_allclose(risk.tail(1.0 - u), (total - integral(u)) / total, rtol=1e-9, atol=1e-14)
    for n in (3, 4, 512, 2048):
        # Jumps at the ends of cells, or inside one that is cut into a thousand pieces.
        expected = np.diff(integral(np.arange(n + 1) / n)) / total
        assert_allclose(risk.weights(n), expected, atol=2e-3 if n == 3 else 1e-14)
    assert risk.weights(3).sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_a_cumulative_function_of_any_size_is_checked_in_its_own_units(size):
    assert_allclose(CustomSpectrum(cumulative=lambda u: size * u**1.5).cumulative(0.25), 0.125)
    with pytest.raises(ValueError, match="slope of cumulative must be nondecreasing"):
        CustomSpectrum(cumulative=lambda u: size * (u**2 + 2e-3 * np.sin(40.0 * u)))
    with pytest.raises(ValueError, match="slope of cumulative must be nonnegative"):
        CustomSpectrum(cumulative=lambda u: size * (u**3 - 1e-4 * np.sin(np.pi * u)))
    with pytest.raises(ValueError, match=r"cumulative\(0\) must be 0"):
        CustomSpectrum(cumulative=lambda u: size * (u + 1e-11))
    CustomSpectrum(cumulative=lambda u: size * (u + 1e-13))


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_densities_are_looked_at_between_the_points_of_a_grid(bad):
    def density(u):
        return np.where(np.asarray(u) * 8192 % 1.0 == 0.0, 1.0, bad)

    with pytest.raises(ValueError, match="finite and nonnegative on all"):
        CustomSpectrum(density)


def test_the_share_of_losses_that_carry_a_risk_and_jumps_of_its_spectrum():
    for risk, share in ((Mean(), 1.0), (CVaR(0.2), 0.2), (Max(), 1.0 / 50)):
        assert risk.effective_share(50) == pytest.approx(share)
        assert sorel.Deviation(risk).effective_share(50) == risk.effective_share(50)
    sigma = ESRM(2.0).weights(50)
    assert ESRM(2.0).effective_share(50) == pytest.approx(1 / (50 * sigma @ sigma))
    for risk, n, jump in ((Max(), 1000, 1.0), (CVaR(0.2), 1000, 1.0), (Mean(), 1000, 0.0)):
        assert risk.largest_jump(n) == pytest.approx(jump, abs=1e-12)
        assert sorel.Deviation(risk).largest_jump(n) == risk.largest_jump(n)
    assert ESRM(2.0).largest_jump(1000) == pytest.approx(0.002, rel=0.01)
    assert ESRM(2.0).largest_jump(1) == 0.0
