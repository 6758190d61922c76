"""Projections against brute force, an isotonic regression oracle and the optimality conditions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import isotonic_regression

import sorel._core as _core
from sorel._lib.threads import Team
from sorel.permutahedron import Projector, project_permutahedron, thresholds
from sorel.permutahedron.cores import TwoLevels, Uniform, equal_weights
from sorel.permutahedron.ordering import Order, index_type
from sorel.risks import ESRM, CustomSpectrum, CVaR, Extremile, Max, Mean, Mixture, Risk

EXAMPLES = settings(deadline=None, max_examples=150)
LARGE = 3000

RISKS = [
    Mean(), Max(), CVaR(0.5), CVaR(0.29), CVaR(0.01), Mixture([Mean(), CVaR(0.2)], [0.3, 0.7]),
    ESRM(2.0), ESRM(300.0), Extremile(2.5), Mixture([CVaR(0.5), CVaR(0.1)], [0.5, 0.5]),
    CustomSpectrum([0, 0, 1, 1, 1, 4]),
]  # fmt: skip


def general(z: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The projection through sort and pooling, also where a threshold would do."""
    out = np.empty(z.size)
    Uniform(sigma).project(z, out, np.empty(z.size, np.int32))
    return out


def oracle(z: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    order = np.argsort(z, kind="stable")
    out = np.empty(z.size)
    out[order] = z[order] - isotonic_regression(z[order] - sigma).x
    return out


def exact_projection(z: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Brute force in rational arithmetic: the nearest feasible point over all cuts of the order.

    The projection shifts consecutive blocks of the sorted z, each to the sum of its sigma.
    """
    n, order = z.size, np.argsort(z, kind="stable")
    zs = [Fraction(float(v)) for v in z[order]]
    ss = [Fraction(float(v)) for v in sigma]
    candidates = []
    for cuts in itertools.product((False, True), repeat=n - 1):
        edges = [0, *[i + 1 for i, cut in enumerate(cuts) if cut], n]
        point: list[Fraction] = []
        for a, b in itertools.pairwise(edges):
            shift = (sum(ss[a:b]) - sum(zs[a:b])) / (b - a)
            point += [v + shift for v in zs[a:b]]
        rising = sorted(point)
        if all(sum(rising[:k]) >= sum(ss[:k]) for k in range(1, n)):
            distance = sum((p - v) ** 2 for p, v in zip(point, zs, strict=True))
            candidates.append((distance, point))
    out = np.empty(n)
    out[order] = [float(p) for p in min(candidates)[1]]
    return out


def assert_feasible(lam: np.ndarray, sigma: np.ndarray, tolerance: float = 1e-15) -> None:
    """Majorization, with sums in extended precision so that only lam is judged."""
    assert lam.min() >= 0.0
    excess = np.cumsum((np.sort(lam) - sigma)[::-1], dtype=np.longdouble)
    assert float(excess.max()) <= tolerance * math.fsum(sigma)
    assert abs(float(excess[-1])) <= tolerance * math.fsum(sigma)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_brute_force(risk: Risk, n: int) -> None:
    rng = np.random.default_rng(n)
    sigma = risk.weights(n)
    for z in (
        rng.standard_normal(n) / n, rng.standard_normal(n) * 1e-9,
        1e9 + rng.integers(0, 8, n) * 2.0**-20, rng.integers(0, 2, n) / n,
    ):  # fmt: skip
        want = exact_projection(z, sigma)
        assert_allclose(project_permutahedron(z, risk), want, rtol=1e-13, atol=1e-15)
        assert_allclose(general(z, sigma), want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 30.0, 1e9])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_isotonic_oracle_and_feasibility(risk: Risk, scale: float) -> None:
    rng = np.random.default_rng(7)
    for n in (50, LARGE):
        sigma = risk.weights(n)
        for z in (
            rng.standard_normal(n) * scale / n,
            rng.integers(-3, 4, n) * scale / n,
            (rng.standard_normal(n) + 100.0) * scale / n,
        ):
            lam = project_permutahedron(z, sigma)
            pooled = general(z, sigma)
            # The oracle subtracts numbers of the size of z.
            loss = 1e-14 + 1e-14 * abs(z).max()
            assert_allclose(lam, oracle(z, sigma), rtol=1e-10, atol=loss)
            assert_allclose(pooled, lam, rtol=1e-11, atol=1e-16)
            assert_feasible(lam, sigma)
            assert_feasible(pooled, sigma)


@st.composite
def vectors(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A vector and weights of one length, with ties, of any size."""
    n, scale = draw(st.integers(1, 25)), draw(st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]))
    z = draw(st.lists(st.floats(-1, 1) | st.integers(-2, 2), min_size=n, max_size=n))
    sigma = draw(st.lists(st.floats(0, 1) | st.integers(0, 2), min_size=n, max_size=n))
    assume(max(sigma) > 1e-100)
    return np.array(z, dtype=float) * scale, np.sort(np.array(sigma, dtype=float))


@EXAMPLES
@given(vectors())
def test_properties(case: tuple[np.ndarray, np.ndarray]) -> None:
    z, sigma = case
    before, total = z.copy(), math.fsum(sigma)
    lam = project_permutahedron(z, sigma)
    assert_array_equal(z, before)
    assert_feasible(lam, sigma, 2e-15)
    # Optimality: no vertex lies on the far side of the supporting plane.
    residual = z - lam
    slack = float(np.sort(residual) @ sigma - residual @ lam)
    assert slack <= 1e-13 * total * (abs(residual).max() + total)
    assert_allclose(project_permutahedron(lam, sigma), lam, rtol=1e-12, atol=4e-15 * total)
    # In another order, but for rounding: two-level weights sum the free items in the order of z.
    shuffle = np.random.default_rng(0).permutation(z.size)
    shuffled = project_permutahedron(z[shuffle], sigma)
    assert_allclose(shuffled, lam[shuffle], rtol=1e-12, atol=4e-15 * total)
    larger = project_permutahedron(2.0**10 * z, 2.0**10 * sigma)
    assert_allclose(larger, 2.0**10 * lam, rtol=1e-15, atol=1e-250)


@EXAMPLES
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=12).filter(lambda c: sum(c) > 0),
    st.sampled_from(RISKS), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(0, 10**6),
)  # fmt: skip
def test_weights_repeat_rows(counts: list[int], risk: Risk, scale: float, seed: int) -> None:
    m, total = np.array(counts), sum(counts)
    zeta = np.round(np.random.default_rng(seed).standard_normal(m.size) * 2, 1) * scale
    # Density form: q of a row equals that of each of its copies.
    weighted, _ = Projector(risk, m.size, m / total).nearest(zeta.copy())
    repeated, _ = Projector(risk, total).nearest(np.repeat(zeta, m))
    assert_allclose(np.repeat(weighted, m), repeated, rtol=1e-10, atol=1e-11)
    assert bool((weighted[m == 0] == 0.0).all())
    lam = project_permutahedron(zeta * m / total, risk, sample_weight=m)
    assert_allclose(lam, weighted * m / total, rtol=1e-10, atol=1e-11)
    assert lam.sum() == pytest.approx(1.0, abs=1e-14)


def projectors(risk: Risk, n: int) -> list[tuple[Projector, np.ndarray]]:
    omega = np.random.default_rng(11).random(n) + 0.1
    omega[1::7] = 0.0
    omega /= omega.sum()
    return [(Projector(risk, n), np.full(n, 1 / n)), (Projector(risk, n, omega), omega)]


@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_linearisation(risk: Risk) -> None:
    n, rng, step = 60, np.random.default_rng(4), 1e-7
    direction = rng.standard_normal(n)
    for (projector, omega), scale in itertools.product(projectors(risk, n), (1e-2, 1.0, 1e3)):
        zeta = scale * rng.standard_normal(n)
        ahead, behind = (projector.nearest(zeta + s * direction)[0].copy() for s in (step, -step))
        derivative, want = projector.nearest(zeta)[1], np.zeros(n)
        block = derivative.block
        assert set(block.tolist()) - {-1} == set(range(derivative.n_blocks))
        for b in range(derivative.n_blocks):
            members = block == b
            assert np.count_nonzero(members) > 1
            mean = np.average(direction[members], weights=omega[members])
            want[members] = direction[members] - mean
        assert_allclose((ahead - behind) / (2 * step), want, atol=1e-6)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("weighted", [0, 1])
def test_reuse_gives_the_answer_of_a_fresh_call(risk: Risk, weighted: int) -> None:
    n, rng = 500, np.random.default_rng(6)
    kept = projectors(risk, n)[weighted][0]
    warm, cold, labels = np.empty(n), np.empty(n), np.empty((2, n), np.int32)
    zeta = rng.standard_normal(n)
    for size in (0.0, 1e-6, 1e-3, 1e-2, 1.0, 1e9, 1e-9, 0.0):
        zeta = zeta + size * rng.standard_normal(n)
        if size == 1e9:
            zeta = np.round(zeta, -8)
        fresh = projectors(risk, n)[weighted][0]
        assert kept.project(zeta, warm, labels[0]) == fresh.project(zeta, cold, labels[1])
        assert_allclose(warm, cold, rtol=1e-13, atol=1e-15)
        assert_array_equal(labels[0], labels[1])
        # The order is by value, then position, so these agree to the bit.
        assert kept.worst_case(zeta, warm) == fresh.worst_case(zeta, cold)
        assert_array_equal(warm, cold)
        assert kept.value(zeta) == fresh.value(zeta)


def test_sum_of_a_large_projection_is_exact() -> None:
    z = np.random.default_rng(9).standard_normal(n := 200_000)
    for risk, scale in itertools.product((ESRM(2.0), CVaR(0.1), CVaR(1e-6)), (1e-3 / n, 10.0)):
        assert_feasible(project_permutahedron(scale * z, risk), risk.weights(n))


def test_fallback_to_the_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    z, omega = np.random.default_rng(10).standard_normal(50) / 50, np.full(50, 1 / 50)
    want = project_permutahedron(z, CVaR(0.3))
    for limit in ("_WARM_TRIALS", "MAX_TRIALS"):
        monkeypatch.setattr(thresholds, limit, 0)
    assert_allclose(project_permutahedron(z, CVaR(0.3)), want, rtol=1e-13, atol=1e-16)
    assert_allclose(project_permutahedron(z, CVaR(0.3), omega), want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_free_items_keep_what_is_small_against_them(weighted: bool) -> None:
    run = 256  # items that are added up without compensation
    zeta = np.concatenate([np.full(run, size) for size in (1e16, 1.0, -1e16, 3.0, 7e15, -7e15)])
    weight = np.ones(len(zeta)) if weighted else None
    found = _core.level_sums(zeta, weight, 0.0, 0.0, -1e17, 1e17)
    assert found[:3] == (0.0, 0.0, len(zeta))
    assert found[3] + found[4] == 4.0 * run


@pytest.mark.parametrize("n", [1, 100, 5001, 70_000])
@pytest.mark.parametrize("make", [
    lambda rng, n: rng.normal(size=n) ** 2,
    lambda rng, n: np.exp(8.0 * rng.normal(size=n)),
    lambda rng, n: np.where(np.arange(n) == 5, 1e300, rng.uniform(size=n)),
    lambda rng, n: rng.integers(0, 3, n).astype(float),
    lambda rng, n: 5e-324 * rng.integers(0, 1000, n),
    lambda rng, n: np.repeat(rng.normal(size=n), 2)[:n] + 1e-12 * rng.normal(size=n),
    lambda rng, n: np.where(np.arange(n) == 7, np.inf, rng.normal(size=n)),
])  # fmt: skip
@pytest.mark.parametrize("threads", [1, 3])
def test_an_order_that_is_kept_is_that_of_a_stable_sort(make, n, threads) -> None:
    rng, team = np.random.default_rng(6), None if threads == 1 else Team(n, threads)
    values, keep = make(rng, n), Order(np.empty((2, n)))
    # From nothing, from nearby, and from an order that does not help.
    for vector in (values, values + 1e-9 * rng.normal(size=n), rng.permutation(values)):
        keep.update(vector, team)
        assert_array_equal(keep.order, np.argsort(vector, kind="stable"))
        assert_array_equal(keep.key, np.sort(vector))


def test_an_order_takes_four_bytes_an_item_where_they_suffice() -> None:
    assert (index_type(2**31 - 1), index_type(2**31)) == (np.int32, np.int64)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_two_levels_but_for_one_entry_need_no_sort(risk: Risk, n: int) -> None:
    mass = n * risk.weights(n)
    between = np.count_nonzero((mass > mass[0]) & (mass < mass[-1]))
    assert isinstance(equal_weights(mass), TwoLevels) == (between <= 1)


@pytest.mark.parametrize("weighted", [0, 1])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("n", [1, 40, 2500])
def test_value_worst_case_and_shortfall_belong_together(risk: Risk, weighted: int, n: int) -> None:
    rng, (projector, mass) = np.random.default_rng(n), projectors(risk, n)[weighted]
    q, other = np.empty(n), np.empty(n)
    # The last one misleads a sample of every 14th item.
    low = rng.standard_normal(n) - 9.0 * (np.arange(n) % 14 == 0)
    for losses in (rng.standard_normal(n), rng.integers(0, 4, n) * 1.0, np.full(n, 0.7), low):
        order = np.argsort(losses, kind="stable")
        sigma = risk.increments(mass[order]) if weighted else risk.weights(n)
        expected = pytest.approx(math.fsum(sigma * losses[order]), rel=1e-12, abs=1e-15)
        assert projector.value(losses) == expected
        assert projector.worst_case(losses, q) == expected
        # Ties by position: q is sigma in the stable order.
        assert_allclose((mass * q)[order], sigma, rtol=1e-11, atol=1e-15)
        assert projector.shortfall(losses, q) == pytest.approx(0.0, abs=1e-15)
        projector.project(rng.standard_normal(n), other)
        left = math.fsum(sigma * losses[order]) - mass @ (other * losses)
        assert projector.shortfall(losses, other) == pytest.approx(left, rel=1e-9, abs=1e-13)


def exact_shortfall(key, mass, own) -> float:
    """The formula of the loop in fractions."""
    key, mass, own = ([Fraction(float(v)) for v in values] for values in (key, mass, own))
    surplus, total = Fraction(0), Fraction(0)
    for j in range(len(key)):
        surplus += own[j] - mass[j]
        if j + 1 < len(key):
            total += max(surplus, Fraction(0)) * (key[j + 1] - key[j])
    return float(total + max(-surplus * key[-1], Fraction(0)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e12])
def test_a_shortfall_keeps_what_is_small_against_its_sums(weighted: bool, size: float) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 30):
        losses, density = rng.standard_normal(n), rng.uniform(0.0, 2.0, n)
        order = np.argsort(losses)
        # Products without rounding.
        weight = 2.0 ** rng.integers(-2, 3, n) if weighted else np.ones(n)
        mass = (density * weight)[order] + np.where(np.arange(n) < n // 2, -0.25, 0.25)
        # A large number that comes and goes takes the digits of the rest from a plain sum.
        mass[0] -= size
        mass[-1] += size
        key = losses[order]
        parts = key, mass, density, weight if weighted else None, order
        got = _core.ordered_shortfall(*parts, 0.0, 0.0, 0.0)[0]
        expected = exact_shortfall(key, mass, (density * weight)[order])
        assert got == pytest.approx(expected, rel=1e-14, abs=1e-13)


@pytest.mark.parametrize(("z", "sigma", "weight", "error", "words"), [
    ([], [], None, ValueError, "non-empty"),
    ([[1.0]], [1.0], None, ValueError, "shape"),
    (["a"], [1.0], None, ValueError, "texts such as 'a'"),
    ([True], [1.0], None, TypeError, "real numbers"),
    ([math.nan, 1.0], [0.5, 0.5], None, ValueError, "finite"),
    ([0.0, 1.0], [0.5, math.nan], None, ValueError, "finite"),
    ([0.0, 1.0], [1.0], None, ValueError, r"shape \(2,\)"),
    ([0.0, 1.0], [0.6, 0.4], None, ValueError, "falls from 0.6 to 0.4 at position 1"),
    ([0.0, 1.0], [-0.1, 1.1], None, ValueError, "-0.1"),
    ([0.0, 1.0], [0.0, 0.0], None, ValueError, "zero everywhere"),
    ([0.0, 1.0], [0.5, 0.5], [1, 1], TypeError, "needs a risk"),
    ([0.0, 1.0], Mean(), [1, -1], ValueError, "nonnegative"),
    ([0.0, 1.0], Mean(), [0, 0], ValueError, "zero everywhere"),
    ([1e300, 1.0], Mean(), [1e-300, 1], ValueError, "overflows"),
])  # fmt: skip
def test_errors_say_what_was_wrong(z, sigma, weight, error, words) -> None:
    with pytest.raises(error, match=words):
        project_permutahedron(z, sigma, weight)


@pytest.mark.parametrize("weight", [None, [0.72, 0.28]])
def test_thresholds_find_the_items_again_however_far_they_have_moved(weight):
    projector = Projector(CVaR(0.1), 2, None if weight is None else np.array(weight))
    out = np.empty(2)
    for size in (1.0, 1e22, 1e9, 1e64, 1.0):
        for zeta in ([1.2, 87.7], [3.1, 3.1], [55.0, -2.0]):
            projector.project(size * np.array(zeta), out)
            assert out @ (weight or [0.5, 0.5]) == pytest.approx(1.0, rel=1e-12)
