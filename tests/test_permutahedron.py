"""Projections against brute force, an isotonic regression oracle and the optimality conditions."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import isotonic_regression

import sorel._core as _core
from sorel._lib.threads import Team
from sorel.permutahedron import Projector, project_permutahedron, thresholds
from sorel.permutahedron.cores import Uniform
from sorel.permutahedron.ordering import Order
from sorel.risks import ESRM, CustomSpectrum, CVaR, Extremile, Max, Mean, Mixture, Risk

EXAMPLES = settings(deadline=None, max_examples=150)
LARGE = 3000

RISKS = [
    Mean(),
    Max(),
    CVaR(0.5),
    CVaR(0.29),
    CVaR(0.01),
    Mixture([Mean(), CVaR(0.2)], [0.3, 0.7]),
    ESRM(2.0),
    ESRM(300.0),
    Extremile(2.5),
    Mixture([CVaR(0.5), CVaR(0.1)], [0.5, 0.5]),
    CustomSpectrum([0, 0, 1, 1, 1, 4]),
]
SCALES = [1e-9, 1e-3, 1.0, 30.0, 1e9]


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

    The projection shifts consecutive blocks of the sorted z, each to the sum of its sigma; of those
    candidates, the feasible one nearest to z is the projection.
    """
    n = z.size
    order = np.argsort(z, kind="stable")
    zs = [Fraction(float(v)) for v in z[order]]
    ss = [Fraction(float(v)) for v in sigma]
    best, best_distance = None, None
    for cuts in itertools.product((False, True), repeat=n - 1):
        edges = [0, *[i + 1 for i, cut in enumerate(cuts) if cut], n]
        point: list[Fraction] = []
        for a, b in itertools.pairwise(edges):
            shift = (sum(ss[a:b]) - sum(zs[a:b])) / (b - a)
            point += [v + shift for v in zs[a:b]]
        rising = sorted(point)
        if any(sum(rising[:k]) < sum(ss[:k]) for k in range(1, n)):
            continue
        distance = sum((p - v) ** 2 for p, v in zip(point, zs, strict=True))
        if best_distance is None or distance < best_distance:
            best, best_distance = point, distance
    assert best is not None
    out = np.empty(n)
    out[order] = [float(p) for p in best]
    return out


def assert_feasible(lam: np.ndarray, sigma: np.ndarray, tolerance: float = 1e-15) -> None:
    """Majorization, with sums in extended precision so that only lam is judged."""
    assert lam.min() >= 0.0
    excess = np.cumsum(np.sort(lam)[::-1], dtype=np.longdouble) - np.cumsum(
        sigma[::-1], dtype=np.longdouble
    )
    scale = math.fsum(sigma)
    assert float(excess.max()) <= tolerance * scale
    assert abs(float(excess[-1])) <= tolerance * scale


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", [CVaR(0.29), ESRM(2.0)], ids=repr)
def test_forks_share_nothing_that_is_written(risk: Risk, weighted: bool) -> None:
    n, threads, rounds = LARGE, 4, 20
    rng = np.random.default_rng(3)
    omega = None
    if weighted:
        omega = rng.random(n) * (rng.random(n) > 0.1)
        omega /= omega.sum()
    original = Projector(risk, n, omega)
    inputs = rng.standard_normal((threads, rounds, n))

    def results(projector: Projector, k: int) -> list[np.ndarray]:
        found = []
        for z in inputs[k]:
            q, worst, block = np.empty(n), np.empty(n), np.empty(n, np.int32)
            scalars = [projector.project(z, q, block), projector.worst_case(z, worst)]
            scalars += [projector.value(z), projector.shortfall(z, q)]
            found.append(np.concatenate([q, worst, block, scalars]))
        return found

    results(original, 0)
    forks = [original.fork() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(results, forks, range(threads)))
    for k in range(threads):
        assert_array_equal(found[k], results(Projector(risk, n, omega), k))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_brute_force(risk: Risk, n: int) -> None:
    rng = np.random.default_rng(n)
    sigma = risk.weights(n)
    for z in (
        rng.standard_normal(n) / n,
        rng.standard_normal(n) * 1e-9,
        1e9 + rng.integers(0, 8, n) * 2.0**-20,
        rng.integers(0, 2, n) / n,
    ):
        want = exact_projection(z, sigma)
        assert_allclose(project_permutahedron(z, risk), want, rtol=1e-13, atol=1e-15)
        assert_allclose(general(z, sigma), want, rtol=1e-13, atol=1e-15)


def test_brute_force_matches_a_quadratic_program() -> None:
    # The brute force above presumes the structure of the solution; this one only presumes the set.
    from scipy.optimize import minimize

    rng = np.random.default_rng(0)
    for sigma in (ESRM(2.0).weights(5), CVaR(0.5).weights(5), Extremile(3.0).weights(5)):
        z = rng.standard_normal(5) / 3
        sets = [np.array(s) for s in itertools.product((0.0, 1.0), repeat=5) if 0 < sum(s) < 5]
        reach = np.cumsum(sigma[::-1])
        constraints = [{"type": "eq", "fun": lambda p: p.sum() - 1.0}]
        constraints += [
            {"type": "ineq", "fun": lambda p, s=s, r=reach: r[int(s.sum()) - 1] - s @ p}
            for s in sets
        ]
        found = minimize(
            lambda p, z=z: ((p - z) ** 2).sum(),
            np.full(5, 0.2),
            jac=lambda p, z=z: 2 * (p - z),
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-15},
        )
        assert_allclose(exact_projection(z, sigma), found.x, atol=1e-7)


@pytest.mark.parametrize("scale", SCALES)
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


def test_large_offsets_lose_nothing() -> None:
    # On a grid of exact doubles, adding 2**30 is exact, and so must be the projection.
    rng = np.random.default_rng(1)
    n = 1000
    z = rng.integers(-(2**12), 2**12, n) * 2.0**-20
    for risk in RISKS:
        assert_array_equal(project_permutahedron(z + 2.0**30, risk), project_permutahedron(z, risk))


vectors = (
    st.integers(1, 25)
    .flatmap(
        lambda n: st.tuples(
            st.lists(st.one_of(st.floats(-1, 1), st.integers(-2, 2)), min_size=n, max_size=n),
            st.lists(st.one_of(st.floats(0, 1), st.integers(0, 2)), min_size=n, max_size=n),
            st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]),
        )
    )
    .filter(lambda case: max(case[1]) > 1e-100)
)


@EXAMPLES
@given(vectors)
def test_properties(case: tuple[list[float], list[float], float]) -> None:
    z = np.array(case[0], dtype=float) * case[2]
    sigma = np.sort(np.array(case[1], dtype=float))
    before = z.copy()
    lam = project_permutahedron(z, sigma)
    assert_array_equal(z, before)
    assert_feasible(lam, sigma, 2e-15)
    total = math.fsum(sigma)
    # Optimality: no vertex lies on the far side of the supporting plane.
    residual = z - lam
    slack = float(np.sort(residual) @ sigma - residual @ lam)
    assert slack <= 1e-13 * total * (abs(residual).max() + total)
    assert_allclose(project_permutahedron(lam, sigma), lam, rtol=1e-12, atol=4e-15 * total)
    shuffle = np.random.default_rng(0).permutation(z.size)
    assert_array_equal(project_permutahedron(z[shuffle], sigma), lam[shuffle])
    assert_allclose(
        project_permutahedron(2.0**10 * z, 2.0**10 * sigma), 2.0**10 * lam, rtol=1e-15, atol=1e-250
    )


@EXAMPLES
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=12).filter(lambda c: sum(c) > 0),
    st.sampled_from(RISKS),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.integers(0, 10**6),
)
def test_weights_repeat_rows(counts: list[int], risk: Risk, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = np.array(counts)
    total = int(m.sum())
    zeta = np.round(rng.standard_normal(m.size) * 2, 1) * scale
    # Density form: q of a row equals that of each of its copies.
    weighted, repeated = np.empty(m.size), np.empty(total)
    Projector(risk, m.size, m / total).project(zeta, weighted)
    Projector(risk, total).project(np.repeat(zeta, m), repeated)
    assert_allclose(np.repeat(weighted, m), repeated, rtol=1e-10, atol=1e-11)
    assert bool((weighted[m == 0] == 0.0).all())
    lam = project_permutahedron(zeta * m / total, risk, sample_weight=m)
    assert_allclose(lam, weighted * m / total, rtol=1e-10, atol=1e-11)
    assert lam.sum() == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_weighted_optimality(risk: Risk) -> None:
    rng = np.random.default_rng(5)
    for n in (1, 2, 30, 300):
        omega = rng.random(n) ** 3
        omega /= omega.sum()
        zeta = rng.standard_normal(n)
        q, vertex = np.empty(n), np.empty(n)
        projector = Projector(risk, n, omega)
        projector.project(zeta, q)
        assert q.min() >= 0
        assert math.fsum(omega * q) == pytest.approx(1.0, abs=1e-14)
        # In the inner product of omega, the vertex nearest to the residual is the worst case.
        top = projector.worst_case(zeta - q, vertex)
        assert top - math.fsum(omega * (zeta - q) * q) <= 1e-12
        assert top == pytest.approx(math.fsum(omega * (zeta - q) * vertex), abs=1e-13)
        assert top == pytest.approx(risk(zeta - q, omega), abs=1e-13)


def projectors(risk: Risk, n: int) -> list[tuple[Projector, np.ndarray]]:
    omega = np.random.default_rng(11).random(n) + 0.1
    omega[::7] = 0.0
    omega /= omega.sum()
    return [(Projector(risk, n), np.full(n, 1 / n)), (Projector(risk, n, omega), omega)]


@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_linearisation(risk: Risk) -> None:
    n = 60
    rng = np.random.default_rng(4)
    direction = rng.standard_normal(n)
    for (projector, omega), scale in itertools.product(projectors(risk, n), (1e-2, 1.0, 1e3)):
        zeta = scale * rng.standard_normal(n)
        ahead, behind, q = np.empty(n), np.empty(n), np.empty(n)
        step = 1e-7
        projector.project(zeta + step * direction, ahead)
        projector.project(zeta - step * direction, behind)
        block = np.empty(n, np.int32)
        count = projector.project(zeta, q, block)
        assert set(block.tolist()) - {-1} == set(range(count))
        want = np.zeros(n)
        for b in range(count):
            members = block == b
            assert np.count_nonzero(members) > 1
            mean = np.average(direction[members], weights=omega[members])
            want[members] = direction[members] - mean
        assert_allclose((ahead - behind) / (2 * step), want, atol=1e-6)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_reuse_gives_the_answer_of_a_fresh_call(risk: Risk) -> None:
    n = 500
    rng = np.random.default_rng(6)
    for weighted in (False, True):
        omega = projectors(risk, n)[1][1] if weighted else None
        kept = Projector(risk, n, omega)
        warm, cold = np.empty(n), np.empty(n)
        zeta = rng.standard_normal(n)
        for size in (0.0, 1e-6, 1e-3, 1e-2, 1.0, 1e9, 1e-9, 0.0):
            zeta = zeta + size * rng.standard_normal(n)
            if size == 1e9:
                zeta = np.round(zeta, -8)
            fresh = Projector(risk, n, omega)
            labels = np.empty((2, n), np.int32)
            blocks = (kept.project(zeta, warm, labels[0]), fresh.project(zeta, cold, labels[1]))
            assert_allclose(warm, cold, rtol=1e-13, atol=1e-15)
            assert blocks[0] == blocks[1]
            assert_array_equal(labels[0], labels[1])
            # The order is settled by value, then position, so these agree to the bit.
            assert kept.worst_case(zeta, warm) == fresh.worst_case(zeta, cold)
            assert_array_equal(warm, cold)
            assert kept.value(zeta) == fresh.value(zeta)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("n", [1, 9, 2500])
def test_worst_case_and_value(risk: Risk, n: int) -> None:
    rng = np.random.default_rng(8)
    for losses in (rng.standard_normal(n) ** 2, rng.integers(0, 4, n) * 1.0, np.full(n, 0.7)):
        projector, q = Projector(risk, n), np.empty(n)
        value = projector.worst_case(losses, q)
        want = math.fsum(risk.weights(n) * np.sort(losses))
        assert value == pytest.approx(want, rel=2e-15)
        assert projector.value(losses) == pytest.approx(want, rel=2e-15)
        assert math.fsum(q * losses) / n == pytest.approx(want, rel=1e-14)
        # Ties by position: q is sigma in the stable order.
        assert_array_equal(q[np.argsort(losses, kind="stable")], n * risk.weights(n))


def test_sum_of_a_large_projection_is_exact() -> None:
    n = 200_000
    z = np.random.default_rng(9).standard_normal(n)
    for risk in (ESRM(2.0), CVaR(0.1), CVaR(1e-6), Extremile(20.0), Max()):
        for scale in (1e-3 / n, 1.0 / n, 10.0):
            assert_feasible(project_permutahedron(scale * z, risk), risk.weights(n))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_threshold_is_found_in_few_trials(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    # Newton steps may cycle between two pieces; the bracket must break that.
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 300))
        zeta = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 6) + 10.0 ** rng.integers(0, 9)
        weight = None if seed % 2 else rng.random(n) + 0.01
        total = float(n) if weight is None else float(weight.sum())
        low, high = rng.choice([0.0, 0.2]), max(rng.choice([1.5, 10.0, n]), 1.5)
        rank = min(n - 1, int(n * (1 - (1 - low) / (high - low))))
        finder = thresholds.Thresholder(weight, low, high, total, rank)
        out, block = np.empty(n), np.empty(n, np.int32)
        monkeypatch.setattr(thresholds, "MAX_TRIALS", 30 if weight is None else 80)
        team = Team(n, threads) if threads > 1 else None
        for move in (0.0, 1e-3):  # the second search starts from the last threshold
            zeta = zeta + move * rng.standard_normal(n)
            assert finder.project(zeta, out, block, team) >= 0
            heavy = np.ones(n) if weight is None else weight
            assert math.fsum(heavy * out) == pytest.approx(total, rel=1e-14)
            # Optimality of a box cut by a plane: one multiplier explains every item.
            multiplier = zeta - out
            free = (out > low) & (out < high)
            spread = 1e-9 + 4e-16 * abs(zeta).max()
            if free.any():
                assert np.ptp(multiplier[free]) <= spread
            if (out == low).any() and (out > low).any():
                assert multiplier[out == low].max() <= multiplier[out > low].min() + spread
            if (out == high).any() and (out < high).any():
                assert multiplier[out == high].min() >= multiplier[out < high].max() - spread


def test_fallback_to_the_sort_when_the_threshold_search_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z = np.random.default_rng(10).standard_normal(50) / 50
    want = project_permutahedron(z, CVaR(0.3))
    omega = np.full(50, 1 / 50)
    monkeypatch.setattr(thresholds, "MAX_TRIALS", 0)
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


# Orders that are kept.

TINY = np.finfo(float).smallest_subnormal


@pytest.mark.parametrize("n", [1, 100, 5001, 70_000])
@pytest.mark.parametrize(
    "make",
    [
        lambda rng, n: rng.normal(size=n) ** 2,
        lambda rng, n: 1e6 + rng.normal(size=n),
        lambda rng, n: np.exp(8.0 * rng.normal(size=n)),
        lambda rng, n: np.where(np.arange(n) == 5, 1e300, rng.uniform(size=n)),
        lambda rng, n: rng.integers(0, 3, n).astype(float),
        lambda rng, n: TINY * rng.integers(0, 1000, n),
        lambda rng, n: np.repeat(rng.normal(size=n), 2)[:n] + 1e-12 * rng.normal(size=n),
        lambda rng, n: np.where(np.arange(n) == 7, np.inf, rng.normal(size=n)),
    ],
)
def test_an_order_that_is_kept_is_that_of_a_stable_sort(make, n) -> None:
    rng = np.random.default_rng(6)
    values, keep = make(rng, n), Order(np.empty((2, n)))
    # From nothing, from nearby, and from an order that does not help.
    for vector in (values, values + 1e-9 * rng.normal(size=n), rng.permutation(values)):
        keep.update(vector)
        assert_array_equal(keep.order, np.argsort(vector, kind="stable"))
        assert_array_equal(keep.key, np.sort(vector))


def test_a_repair_ends_where_its_budget_does() -> None:
    late = np.append(np.arange(1.0, 10.0), 0.0)  # ten moves for the last of ten items
    for budget in (10, 11):
        order, key = np.arange(10, dtype=np.int32), np.empty(10)
        assert _core.repair(late, order, key, budget) is (budget == 11)
        assert sorted(order) == list(range(10))


# What a weighting falls short of.


@pytest.mark.parametrize("weights", ["equal", "given", "some zero"])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("n", [7, 40])
def test_value_worst_case_and_shortfall_belong_together(risk: Risk, weights: str, n: int) -> None:
    rng = np.random.default_rng(n)
    losses, omega = rng.standard_normal(n), rng.uniform(0.5, 2.0, n)
    if weights == "some zero":
        omega[::3] = 0.0
    omega /= omega.sum()
    given = None if weights == "equal" else omega
    omega = np.full(n, 1.0 / n) if given is None else omega
    projector, q, other = Projector(risk, n, given), np.empty(n), np.empty(n)
    expected = risk(losses, given)
    assert projector.value(losses) == pytest.approx(expected, rel=1e-12)
    assert projector.worst_case(losses, q) == pytest.approx(expected, rel=1e-12)
    assert omega @ (q * losses) == pytest.approx(expected, rel=1e-12)
    assert projector.shortfall(losses, q) == pytest.approx(0.0, abs=1e-15)
    projector.project(rng.standard_normal(n), other)
    left = expected - omega @ (other * losses)
    assert projector.shortfall(losses, other) == pytest.approx(left, rel=1e-9, abs=1e-14)


def exact_shortfall(key, mass, density, weight, order) -> float:
    """The formula of the loop in fractions."""
    own = [Fraction(float(density[i])) * Fraction(float(weight[i])) for i in order]
    surplus, total = Fraction(0), Fraction(0)
    for j in range(len(order)):
        surplus += own[j] - Fraction(float(mass[j]))
        if j + 1 < len(order):
            total += max(surplus, Fraction(0)) * (Fraction(key[j + 1]) - Fraction(key[j]))
    return float(total + max(-surplus * Fraction(key[-1]), Fraction(0)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e12])
def test_a_shortfall_keeps_what_is_small_against_its_sums(weighted: bool, size: float) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 30):
        losses = rng.standard_normal(n)
        order = np.argsort(losses)
        density, weight = rng.uniform(0.0, 2.0, n), np.ones(n)
        if weighted:
            weight = 2.0 ** rng.integers(-2, 3, n)  # products without rounding
        mass = (density * weight)[order]
        mass[: n // 2] -= 0.25
        mass[n // 2 :] += 0.25
        # A large number that comes and goes takes the digits of the rest from a plain sum.
        mass[0] -= size
        mass[-1] += size
        key = losses[order]
        got = _core.ordered_shortfall(key, mass, density, weight if weighted else None, order)
        expected = exact_shortfall(key, mass, density, weight, order)
        assert got == pytest.approx(expected, rel=1e-14, abs=1e-13)


def test_mean_and_single_item() -> None:
    assert_array_equal(project_permutahedron([5.0], [2.0]), [2.0])
    assert_array_equal(project_permutahedron([3, -1], Mean()), [0.5, 0.5])
    assert_array_equal(project_permutahedron([5.0], CVaR(0.5), [3.0]), [1.0])


def test_input_kinds() -> None:
    z = np.arange(12.0)[::-2]
    want = project_permutahedron(z.copy(), ESRM(1.0))
    assert_array_equal(project_permutahedron(z, ESRM(1.0)), want)
    assert_array_equal(project_permutahedron(z.astype(np.float32), ESRM(1.0)), want)
    assert_array_equal(project_permutahedron(z.astype(int).tolist(), ESRM(1.0)), want)
    frozen = z.copy()
    frozen.flags.writeable = False
    assert_array_equal(project_permutahedron(frozen, ESRM(1.0)), want)


@pytest.mark.parametrize(
    ("z", "sigma", "weight", "error", "words"),
    [
        ([], [], None, ValueError, "non-empty"),
        ([[1.0]], [1.0], None, ValueError, "shape"),
        (["a"], [1.0], None, ValueError, "texts such as 'a'"),
        ([True], [1.0], None, TypeError, "real numbers"),
        ([math.nan, 1.0], [0.5, 0.5], None, ValueError, "finite"),
        ([math.inf, 1.0], [0.5, 0.5], None, ValueError, "finite"),
        ([0.0, 1.0], [1.0], None, ValueError, r"shape \(2,\)"),
        ([0.0, 1.0], [0.6, 0.4], None, ValueError, "falls from 0.6 to 0.4 at position 1"),
        ([0.0, 1.0], [-0.1, 1.1], None, ValueError, "-0.1"),
        ([0.0, 1.0], [0.5, math.nan], None, ValueError, "finite"),
        ([0.0, 1.0], [0.0, 0.0], None, ValueError, "zero everywhere"),
        ([0.0, 1.0], [0.5, 0.5], [1, 1], TypeError, "needs a risk"),
        ([0.0, 1.0], Mean(), [1, -1], ValueError, "nonnegative"),
        ([0.0, 1.0], Mean(), [1], ValueError, "shape"),
        ([0.0, 1.0], Mean(), [0, 0], ValueError, "zero everywhere"),
        ([1e300, 1.0], Mean(), [1e-300, 1], ValueError, "overflows"),
    ],
)
def test_errors_say_what_was_wrong(z, sigma, weight, error, words) -> None:
    with pytest.raises(error, match=words):
        project_permutahedron(z, sigma, weight)
