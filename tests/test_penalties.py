"""Penalties against their definitions: optimality, duality and finite differences."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import clone

from sorel.penalties import (
    L2,
    Box,
    ElasticNet,
    NonNegative,
    Penalty,
    Simplex,
    prox_inplace,
    prox_inplace_outputs,
)

D = 4
PENALTIES: list[Penalty] = [
    L2(0.7),
    ElasticNet(0.3, 0.4),
    ElasticNet(0.3, 0.0),
    NonNegative(0.5),
    Box(0.2),
    Box(0.4, lower=[-1.0, 0.0, -math.inf, 0.5], upper=[0.0, 0.3, 2.0, math.inf]),
    Box(0.4, lower=[-0.5, 0.2, 0.2, -1.0], upper=1.0),
    Simplex(0.6),
]
by_penalty = pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
vectors = st.lists(st.floats(-20.0, 20.0, allow_subnormal=False), min_size=D, max_size=D).map(
    np.array
)
steps = st.floats(1e-3, 1e3)
quick = settings(max_examples=40, deadline=None)


def subgradient_violation(penalty: Penalty, u: np.ndarray, q: np.ndarray) -> float:
    """How far `q` is from the subdifferential of g at `u`, from the definition of each penalty."""
    q = q - penalty.l2 * u
    if isinstance(penalty, Simplex):
        assert u.min() >= 0.0
        assert abs(u.sum() - 1.0) <= 1e-14
        theta = q[u > 0.0].mean()
        return max(np.abs(q[u > 0.0] - theta).max(), (q - theta).max(), 0.0)
    l1 = penalty.l1 if isinstance(penalty, ElasticNet) else 0.0
    bounds = penalty.bounds(D) or (np.full(D, -np.inf), np.full(D, np.inf))
    worst = 0.0
    for j, (low, high) in enumerate(zip(*bounds, strict=True)):
        assert low <= u[j] <= high
        least = -math.inf if u[j] == low else (l1 if u[j] > 0.0 else -l1)
        most = math.inf if u[j] == high else (-l1 if u[j] < 0.0 else l1)
        worst = max(worst, least - q[j], q[j] - most)
    return worst


def feasible(penalty: Penalty, rng: np.random.Generator, size: int = 200) -> np.ndarray:
    return np.array([penalty.project(3.0 * rng.standard_normal(D)) for _ in range(size)])


@by_penalty
@quick
@given(v=vectors, step=steps)
def test_prox_satisfies_the_optimality_conditions(penalty, v, step):
    u = penalty.prox(v, step)
    scale = 1.0 + np.abs(v).max() / step
    assert subgradient_violation(penalty, u, (v - u) / step) <= 1e-13 * scale


@by_penalty
@quick
@given(v=vectors, step=steps)
def test_moreau(penalty, v, step):
    """v = u + step q splits v into u = prox_{step g}(v) and q = prox_{g*/step}(v/step).

    The second holds exactly when u = step (v/step - q) is the gradient of g* at q.
    """
    u = penalty.prox(v, step)
    q = (v - u) / step
    np.testing.assert_allclose(
        penalty.conjugate_gradient(q), u, atol=1e-13 * (1.0 + np.abs(v).max() / step) / penalty.l2
    )


@by_penalty
@quick
@given(a=vectors, b=vectors, step=steps)
def test_prox_contracts(penalty, a, b, step):
    """Strong convexity makes the prox a contraction with factor 1/(1 + step l2)."""
    distance = np.linalg.norm(penalty.prox(a, step) - penalty.prox(b, step))
    bound = np.linalg.norm(a - b) / (1.0 + step * penalty.l2)
    assert distance <= bound * (1.0 + 1e-12) + 1e-14


@by_penalty
@pytest.mark.parametrize("tau", [0.3, 50.0, math.inf])
def test_prox_centered_minimises_its_objective(penalty, tau):
    rng = np.random.default_rng(3)
    for _ in range(5):
        v, center = rng.standard_normal((2, D)) * 3.0
        step = 0.8
        u = penalty.prox_centered(v, step, center, tau)
        q = (v - u) / step + (center - u) / tau
        assert subgradient_violation(penalty, u, q) <= 1e-13


def test_prox_centered_against_a_general_minimiser():
    penalty, step, tau = Box(0.4, lower=-0.5, upper=[0.0, 0.3, 2.0, 5.0]), 0.7, 1.3
    v, center = np.array([-2.0, 1.0, 3.0, 0.4]), np.array([1.0, 1.0, -2.0, 0.1])

    def objective(u):
        quadratic = 0.5 * penalty.l2 * (u @ u) + ((u - v) @ (u - v)) / (2 * step)
        gradient = penalty.l2 * u + (u - v) / step + (u - center) / tau
        return quadratic + ((u - center) @ (u - center)) / (2 * tau), gradient

    found = minimize(
        objective,
        np.zeros(D),
        jac=True,
        bounds=list(zip(*penalty.bounds(D), strict=True)),
        tol=1e-12,
    )
    np.testing.assert_allclose(penalty.prox_centered(v, step, center, tau), found.x, atol=1e-6)


@by_penalty
@quick
@given(v=vectors)
def test_conjugate_gradient_attains_the_conjugate(penalty, v):
    u = penalty.conjugate_gradient(v)
    scale = 1.0 + np.abs(v).max()
    assert subgradient_violation(penalty, u, v) <= 1e-13 * scale
    value = float(v @ u) - penalty.value(u)
    assert penalty.conjugate(v) == pytest.approx(value, rel=1e-12, abs=1e-12)
    others = feasible(penalty, np.random.default_rng(0))
    candidates = others @ v - np.array([penalty.value(w) for w in others])
    assert candidates.max() <= penalty.conjugate(v) + 1e-12 * scale**2


@by_penalty
def test_conjugate_gradient_is_the_derivative(penalty):
    rng = np.random.default_rng(1)
    h = 1e-6
    for _ in range(10):
        v = 2.0 * rng.standard_normal(D)
        slopes = [
            (penalty.conjugate(v + h * e) - penalty.conjugate(v - h * e)) / (2 * h)
            for e in np.eye(D)
        ]
        np.testing.assert_allclose(penalty.conjugate_gradient(v), slopes, atol=2e-5)


@by_penalty
def test_biconjugate_is_the_penalty(penalty):
    """g**(w) = max_v v.w - g*(v) is reached at a subgradient v, which the prox supplies."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        z = 3.0 * rng.standard_normal(D)
        w = penalty.prox(z, 1.0)
        at_subgradient = (z - w) @ w - penalty.conjugate(z - w)
        assert at_subgradient == pytest.approx(penalty.value(w), abs=1e-12)
        v = 3.0 * rng.standard_normal((50, D))
        lower = v @ w - np.array([penalty.conjugate(row) for row in v])
        assert lower.max() <= penalty.value(w) + 1e-12


@by_penalty
@quick
@given(w=vectors, v=vectors)
def test_fenchel_young_is_the_naive_difference(penalty, w, v):
    w = penalty.project(w)
    gap = penalty.fenchel_young(w, v)
    naive = penalty.value(w) + penalty.conjugate(v) - float(v @ w)
    scale = 1.0 + penalty.value(w) + abs(penalty.conjugate(v)) + abs(float(v @ w))
    assert gap >= 0.0
    assert gap == pytest.approx(naive, abs=1e-12 * scale)


@by_penalty
def test_fenchel_young_does_not_cancel(penalty):
    """At distance t from a maximiser in the interior of a face, the gap is l2/2 t^2 and no less."""
    v = np.array([0.9, 0.35, 0.55, 0.75]) * penalty.l2
    if isinstance(penalty, ElasticNet):
        v += penalty.l1
    u = penalty.conjugate_gradient(v)
    inside = np.abs(u - penalty.project(u + 1e-3)) > 5e-4
    inside &= np.abs(u - penalty.project(u - 1e-3)) > 5e-4
    if isinstance(penalty, Simplex):
        inside = u > 1e-3
    direction = np.where(inside, 1.0, 0.0)
    direction[np.flatnonzero(inside)[0]] -= direction.sum() if isinstance(penalty, Simplex) else 0
    assert direction.any()
    for t in (1e-3, 1e-6, 1e-9):
        w = u + t * direction
        expected = 0.5 * penalty.l2 * float((w - u) @ (w - u))
        assert penalty.fenchel_young(w, v) == pytest.approx(expected, rel=1e-6)
    assert penalty.fenchel_young(u, v) <= 1e-30


@by_penalty
def test_fenchel_young_is_infinite_outside_the_domain(penalty):
    w = np.full(D, -7.0)
    if penalty.value(w) < math.inf:
        assert penalty.bounds(D) is None
    else:
        assert penalty.fenchel_young(w, np.ones(D)) == math.inf


def test_values_by_hand():
    w = np.array([1.0, -2.0])
    assert L2(2.0).value(w) == 5.0
    assert ElasticNet(2.0, 0.5).value(w) == 6.5
    assert NonNegative(2.0).value(w) == math.inf
    assert NonNegative(2.0).value(np.abs(w)) == 5.0
    assert Box(2.0, -2.0, 1.0).value(w) == 5.0
    assert Box(2.0, -1.5, 1.0).value(w) == math.inf
    assert Simplex(2.0).value([0.25, 0.75]) == 0.625
    assert Simplex(2.0).value([0.25, 0.74]) == math.inf
    assert Simplex(2.0).value([1.25, -0.25]) == math.inf


def test_rounding_is_not_infeasible():
    assert NonNegative(1.0).value([-1e-17, 1.0]) < math.inf
    assert Box(1.0, upper=1e6, lower=-1e6).value([1e6 * (1 + 2e-16)]) < math.inf
    assert Simplex(1.0).value(np.full(1001, 1.0 / 1001)) < math.inf


@pytest.mark.parametrize("shift", [0.0, 1e6, -1e9])
def test_simplex_ignores_a_common_shift(shift):
    v = np.array([3.0, 2.5, -1.0, 2.0])
    penalty = Simplex(1.0)
    np.testing.assert_allclose(penalty.project(v + shift), penalty.project(v), atol=1e-6)
    assert penalty.project(v + shift).sum() == pytest.approx(1.0, abs=1e-15)


@by_penalty
def test_outputs_are_columns(penalty):
    """On (d, K) coefficients every operation is that of the K columns."""
    rng = np.random.default_rng(5)
    w = np.stack([penalty.project(c) for c in rng.standard_normal((3, D))], axis=1)
    v, z = 2.0 * rng.standard_normal((2, D, 3))
    columns = range(3)
    for name, args in (("value", (w,)), ("conjugate", (v,)), ("fenchel_young", (w, v))):
        total = sum(getattr(penalty, name)(*(a[:, k] for a in args)) for k in columns)
        assert getattr(penalty, name)(*args) == pytest.approx(total, rel=1e-12)
    for name, args in (("prox", (0.6,)), ("conjugate_gradient", ()), ("project", ())):
        expected = [getattr(penalty, name)(z[:, k], *args) for k in columns]
        np.testing.assert_allclose(getattr(penalty, name)(z, *args), np.stack(expected, axis=1))
    start = penalty.feasible_start((D, 3))
    assert start.shape == (D, 3)
    assert penalty.value(start) < math.inf


@by_penalty
@quick
@given(v=vectors, step=steps)
def test_compiled_prox(penalty, v, step):
    w = v.copy()
    prox_inplace(w, step, *penalty.kernel(D))
    np.testing.assert_allclose(w, penalty.prox(v, step), rtol=1e-13, atol=1e-14)
    pair = np.stack([v, -v], axis=1)
    expected = penalty.prox(pair, step)
    prox_inplace_outputs(pair, step, *penalty.kernel(D))
    np.testing.assert_allclose(pair, expected, rtol=1e-13, atol=1e-14)


@by_penalty
def test_start_and_bounds(penalty):
    start = penalty.feasible_start(D)
    assert penalty.value(start) < math.inf
    np.testing.assert_allclose(start, penalty.project(np.zeros(D)))
    bounds = penalty.bounds(D)
    if bounds is not None:
        for w in feasible(penalty, np.random.default_rng(4), 20):
            assert np.all(bounds[0] <= w)
            assert np.all(w <= bounds[1])
    code, l2, l1, lower, upper = penalty.kernel(D)
    assert code == (0 if penalty.smooth else 1 if penalty.separable else 2)
    assert (l2, l1) == (penalty.l2, getattr(penalty, "l1", 0.0))
    assert lower.shape == upper.shape == (D,)


def test_feasible_starts_by_hand():
    np.testing.assert_array_equal(Simplex(1.0).feasible_start(4), np.full(4, 0.25))
    np.testing.assert_array_equal(Box(1.0, 0.5, 2.0).feasible_start(2), [0.5, 0.5])


def test_unbounded_box_has_no_bounds():
    assert Box(1.0, -math.inf, math.inf).bounds(3) is None
    assert L2(1.0).bounds(3) is None
    assert ElasticNet(1.0, 1.0).bounds(3) is None


def test_gradient():
    np.testing.assert_array_equal(L2(0.5).gradient([2.0, -4.0]), [1.0, -2.0])
    for penalty in PENALTIES:
        if not penalty.smooth:
            with pytest.raises(TypeError, match=penalty.name):
                penalty.gradient(np.zeros(D))


@by_penalty
def test_is_a_value(penalty):
    for twin in (pickle.loads(pickle.dumps(penalty)), copy.deepcopy(penalty), copy.copy(penalty)):
        assert twin == penalty
        assert hash(twin) == hash(penalty)
    assert clone(penalty, safe=False) == penalty
    assert penalty != "L2"
    assert type(penalty).__name__ in repr(penalty)
    with pytest.raises(AttributeError):
        penalty.l2 = 1.0


def test_equality_tells_penalties_apart():
    assert L2(1.0) != L2(2.0)
    assert L2(1.0) != NonNegative(1.0)
    assert ElasticNet(1, 2) == ElasticNet(1.0, 2.0)
    assert Box(1.0, lower=[0.0, 0.0]) == Box(1.0, lower=np.zeros(2))
    assert Box(1.0, lower=[0.0, 0.0]) != Box(1.0, lower=[0.0, -1.0])
    assert hash(Box(1.0, lower=[0.0, 0.0])) == hash(Box(1.0, lower=[-0.0, 0.0]))
    assert len({L2(1.0), L2(1), Simplex(1.0)}) == 2


def test_box_owns_its_bounds():
    lower = np.zeros(2)
    box = Box(1.0, lower=lower)
    lower[0] = 5.0
    np.testing.assert_array_equal(box.lower, [0.0, 0.0])
    for twin in (box, pickle.loads(pickle.dumps(box)), copy.deepcopy(box)):
        with pytest.raises(ValueError, match="read-only"):
            twin.lower[0] = 1.0


@pytest.mark.parametrize("l2", [0.0, -1.0, math.inf])
@pytest.mark.parametrize("make", [L2, NonNegative, Simplex, Box, lambda l2: ElasticNet(l2, 0.1)])
def test_l2_must_be_positive(make, l2):
    with pytest.raises(ValueError, match=rf"got {l2!r}.*strong convexity.*1/n"):
        make(l2)


@pytest.mark.parametrize("bad", [True, np.True_, "1", None, [1.0], 1j])
def test_numbers_only(bad):
    with pytest.raises(TypeError, match="l2 must be a real number"):
        L2(bad)
    with pytest.raises(TypeError, match="l1 must be a real number"):
        ElasticNet(1.0, bad)


def test_refuses_bad_parameters():
    with pytest.raises(ValueError, match="nan"):
        L2(math.nan)
    with pytest.raises(ValueError, match=r"l1 .*>= 0, got -0.5"):
        ElasticNet(1.0, -0.5)
    with pytest.raises(ValueError, match="lower=2 and upper=1"):
        Box(1.0, 2.0, 1.0)
    with pytest.raises(ValueError, match="at index 1"):
        Box(1.0, [0.0, 2.0], 1.0)
    with pytest.raises(ValueError, match="real number between"):
        Box(1.0, math.inf, math.inf)
    with pytest.raises(ValueError, match="same length"):
        Box(1.0, [0.0, 0.0], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="nan"):
        Box(1.0, [0.0, math.nan])
    with pytest.raises(ValueError, match="nan"):
        Box(1.0, math.nan)
    for bad in (True, "0", np.zeros((2, 2)), [True, False], ["a"], []):
        with pytest.raises(TypeError, match="lower"):
            Box(1.0, bad)
    with pytest.raises(ValueError, match="2 entries, but there are 3"):
        Box(1.0, [0.0, 0.0]).prox(np.zeros(3), 1.0)


@by_penalty
@pytest.mark.parametrize("step", [0.0, -1.0, math.inf, math.nan])
def test_refuses_bad_steps(penalty, step):
    with pytest.raises(ValueError, match="step must be a finite number > 0"):
        penalty.prox(np.zeros(D), step)
    with pytest.raises(ValueError, match="step must be a finite number > 0"):
        penalty.prox_centered(np.zeros(D), step, np.zeros(D), 1.0)
    with pytest.raises(ValueError, match="tau must be > 0"):
        penalty.prox_centered(np.zeros(D), 1.0, np.zeros(D), -1.0)
