"""Penalties against their definitions: optimality, duality and finite differences."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_penalties import Ball, Doubled, GroupLasso, OwnElasticNet, Pseudohuber
from sklearn.base import clone

from sorel import L2, Box, Budget, ElasticNet, NonNegative, Simplex
from sorel._core import PURE_L2, SEPARABLE, SIMPLEX, prox_inplace, prox_inplace_outputs
from sorel.penalties import Penalty, check_penalty, sample_values

D = 4
PENALTIES: list[Penalty] = [
    L2(0.7), ElasticNet(0.3, 0.4), ElasticNet(0.3, 0.0), NonNegative(0.5), NonNegative(0.5, 0.3),
    Box(0.2), Box(0.4, lower=[-1.0, 0.0, -math.inf, 0.5], upper=[0.0, 0.3, 2.0, math.inf]),
    Box(0.4, lower=[-0.5, 0.2, 0.2, -1.0], upper=1.0), Simplex(0.6), Box(0.0),
    Box(0.0, lower=[-0.5, 0.2, 0.0, -1.0], upper=[1.0, 0.2, 3.0, 0.0]), Simplex(0.0),
]  # fmt: skip
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
    l1 = penalty.l1 if isinstance(penalty, (ElasticNet, NonNegative)) else 0.0
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
    scale = 1.0 + (np.abs(v).max() + np.abs(u).max()) / step
    assert subgradient_violation(penalty, u, (v - u) / step) <= 1e-13 * scale


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
def test_fenchel_young_does_not_cancel(penalty):
    """At distance t from a maximiser in the interior of a face, the gap is l2/2 t^2 and no less."""
    v = np.array([0.9, 0.35, 0.55, 0.75]) * penalty.l2 + getattr(penalty, "l1", 0.0)
    u = penalty.conjugate_gradient(v)
    assert penalty.fenchel_young(u, v) <= 1e-30
    inside = np.abs(u - penalty.project(u + 1e-3)) > 5e-4
    inside &= np.abs(u - penalty.project(u - 1e-3)) > 5e-4
    if isinstance(penalty, Simplex):
        inside = u > 1e-3
    direction = np.where(inside, 1.0, 0.0)
    if isinstance(penalty, Simplex):
        direction[np.argmax(inside)] -= direction.sum()
    for t in (1e-3, 1e-6, 1e-9):
        w = u + t * direction
        expected = 0.5 * penalty.l2 * float((w - u) @ (w - u))
        assert penalty.fenchel_young(w, v) == pytest.approx(expected, rel=1e-6)


def test_values_by_hand():
    w = np.array([1.0, -2.0])
    for penalty, point, value in (
        (L2(2.0), w, 5.0),
        (ElasticNet(2.0, 0.5), w, 6.5),
        (NonNegative(2.0), w, math.inf),
        (NonNegative(2.0), np.abs(w), 5.0),
        (Box(2.0, -2.0, 1.0), w, 5.0),
        (Box(2.0, -1.5, 1.0), w, math.inf),
        (Simplex(2.0), [0.25, 0.75], 0.625),
        (Simplex(2.0), [0.25, 0.74], math.inf),
        (Simplex(2.0), [1.25, -0.25], math.inf),
    ):
        assert penalty.value(point) == value
        if value == math.inf:
            assert penalty.fenchel_young(point, np.ones(2)) == math.inf


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf - inf
def test_what_is_not_finite_is_certified_by_nobody(bad):
    for penalty in (Simplex(1.0), Budget(1.0), Budget(1.0, upper=0.5)):
        assert not penalty.fenchel_young([0.5, 0.5, 0.0], [1.0, bad, 0.0]) < math.inf


@by_penalty
def test_outputs_are_columns(penalty):
    """On (d, K) coefficients every operation is that of the K columns."""
    rng = np.random.default_rng(5)
    w = np.stack([penalty.project(c) for c in rng.standard_normal((3, D))], axis=1)
    v = 2.0 * rng.standard_normal((D, 3))
    for name, args in (("value", (w,)), ("conjugate", (v,)), ("fenchel_young", (w, v))):
        total = sum(getattr(penalty, name)(*(a[:, k] for a in args)) for k in range(3))
        assert getattr(penalty, name)(*args) == pytest.approx(total, rel=1e-12)
    for name, args in (("prox", (0.6,)), ("conjugate_gradient", ()), ("project", ())):
        expected = [getattr(penalty, name)(column, *args) for column in v.T]
        np.testing.assert_allclose(getattr(penalty, name)(v, *args), np.stack(expected, axis=1))
    assert penalty.value(penalty.project(np.zeros((D, 3)))) < math.inf


@by_penalty
@quick
@given(v=vectors, step=steps)
def test_compiled_prox(penalty, v, step):
    w, pair = v.copy(), np.stack([v, -v], axis=1)
    expected = penalty.prox(pair, step)
    prox_inplace(w, step, *penalty.kernel(D))
    np.testing.assert_allclose(w, penalty.prox(v, step), rtol=1e-13, atol=1e-14)
    prox_inplace_outputs(pair, step, *penalty.kernel(D))
    np.testing.assert_allclose(pair, expected, rtol=1e-13, atol=1e-14)
    code = PURE_L2 if penalty.quadratic else SEPARABLE if penalty.separable else SIMPLEX
    assert penalty.kernel(D).code == code
    with pytest.raises(ValueError, match="code of a penalty"):
        prox_inplace(w, step, *penalty.kernel(D)._replace(code=7))


@by_penalty
def test_gradient(penalty):
    if not penalty.smooth_in_bounds:
        with pytest.raises(TypeError, match=penalty.name):
            penalty.gradient(np.zeros(D))
        return
    assert not penalty.smooth or penalty.bounds(D) is None
    lower, upper = penalty.bounds(D) or (np.full(D, -np.inf), np.full(D, np.inf))
    for w in feasible(penalty, np.random.default_rng(6), 10):
        gradient = penalty.gradient(w)
        for j in range(D):
            # Into the domain, from a wall as well.
            h = 1e-6 if w[j] + 1e-6 <= upper[j] else -1e-6
            if lower[j] < upper[j]:
                change = penalty.value(w + h * np.eye(D)[j]) - penalty.value(w)
                assert gradient[j] == pytest.approx(change / h, abs=1e-5)


@by_penalty
def test_is_a_value(penalty):
    pickled = pickle.loads(pickle.dumps(penalty))
    copies = pickled, copy.deepcopy(penalty), clone(penalty, safe=False)
    for twin in copies:
        assert twin == penalty
        assert hash(twin) == hash(penalty)
    others = {L2(1.0), L2(1), Simplex(1.0), Box(1.0, [0.0, 1.0], 9.0), Box(1.0, [-0.0, 1.0], 9.0)}
    assert len(others) == 3
    assert penalty not in others
    assert type(penalty).__name__ in repr(penalty)
    with pytest.raises(AttributeError):
        penalty.l2 = 1.0
    if isinstance(penalty, Box) and isinstance(penalty.lower, np.ndarray):
        for twin in (penalty, *copies):
            with pytest.raises(ValueError, match="read-only"):
                twin.lower[0] = 1.0


NOT_NUMBERS = (True, np.True_, "1", None, [1.0], 1j)
NOT_BOUNDS = (True, "0", np.zeros((2, 2)), [True, False], ["a"], [])


@pytest.mark.parametrize(("make", "error", "message"), [
    *[(lambda bad=bad: L2(bad), TypeError, "l2 must be a real") for bad in NOT_NUMBERS],
    *[(lambda bad=bad: ElasticNet(1, bad), TypeError, "l1 must be a") for bad in NOT_NUMBERS],
    *[(lambda bad=bad: Box(1.0, bad), TypeError, "lower") for bad in NOT_BOUNDS],
    *[(lambda cls=cls, l2=l2: cls(l2), ValueError, rf"got {l2!r}.*strong convexity.*1/n")
      for cls in (L2, NonNegative, Simplex, Box, lambda l2: ElasticNet(l2, 0.1))
      for l2 in (-1.0, math.inf)],
    (lambda: L2(0.0), ValueError, "got 0.0.*strong convexity.*1/n"),
    (lambda: L2(math.nan), ValueError, "nan"),
    (lambda: ElasticNet(1.0, -0.5), ValueError, r"l1 .*>= 0, got -0.5"),
    (lambda: Box(1.0, 2.0, 1.0), ValueError, "lower=2 and upper=1"),
    (lambda: Box(1.0, [0.0, 2.0], 1.0), ValueError, "at index 1"),
    (lambda: Box(1.0, math.inf, math.inf), ValueError, "real number between"),
    (lambda: Box(1.0, -1.0, -math.inf), ValueError, "real number between"),
    (lambda: Box(1.0, [0.0, 0.0], [1.0, 1.0, 1.0]), ValueError, "same length"),
    (lambda: Box(1.0, [0.0, math.nan]), ValueError, r"nan \(index 1\)"),
    (lambda: Box(1.0, math.nan), ValueError, "nan"),
    (lambda: Box(1.0, [0.0, 0.0]).prox(np.zeros(3), 1.0), ValueError, "2 entries, but .* 3"),
    (lambda: Box(0.0, 0.0, math.inf), ValueError, r"got 0.0.*upper is infinite\. Pass"),
    (lambda: Box(0.0, [0.0, -math.inf], 1), ValueError, "0.0.*lower is infinite at index 1"),
    *[(lambda step=step: L2(1.0).prox(np.zeros(2), step), ValueError, "step must be a finite")
      for step in (0.0, -1.0, math.inf, math.nan)],
])  # fmt: skip
def test_bad_parameters_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


# The contract, for penalties of two coefficients: their own formulas and those that the base class
# derives, against brute force in the plane.

PLANE: list[Penalty] = [
    L2(0.7), ElasticNet(0.3, 0.4), NonNegative(0.5), NonNegative(0.5, 0.3),
    Box(0.4, lower=[-1.0, 0.0], upper=[0.5, math.inf]), Box(0.0, lower=[-1.0, 0.5], upper=2.0),
    Simplex(0.6), Simplex(0.0), GroupLasso(0.3, 0.8, [0, 0]), GroupLasso(0.3, 0.8, [0, 1]),
    OwnElasticNet(0.3, 0.4), Ball(), Pseudohuber(0.2), Doubled(0.3, 0.4),
    GroupLasso(0.3, 0.8, [0, 0]).plus_ridge(0.5), Ball().plus_ridge(0.5),
    Budget(0.3, 1.2, -0.5, [1.0, 1.5], [0.2, 0.5], [0.25, 1.0]),
    Budget(0.0, 1.0, [-0.5, 0.0], 2.0, 0.3, [0.5, 0.25]),
    Budget(0.4, 1.0, -math.inf, cost=0.3, previous=0.5),
]  # fmt: skip
in_the_plane = pytest.mark.parametrize("penalty", PLANE, ids=repr)
pairs = st.lists(st.floats(-5.0, 5.0, allow_subnormal=False), min_size=2, max_size=2).map(np.array)
quarters = st.lists(st.integers(-20, 20), min_size=2, max_size=2).map(lambda w: np.array(w) / 4.0)


@in_the_plane
@quick
@given(z=pairs, w=pairs, v=pairs, step=st.floats(0.05, 20.0))
def test_fenchel_young_vanishes_at_subgradients_alone(penalty, z, w, v, step):
    u, w = penalty.prox(z, step), penalty.project(w)
    q = (z - u) / step
    scale = 1.0 + abs(penalty.value(u)) + abs(penalty.conjugate(q)) + float(np.abs(q * u).sum())
    assert 0.0 <= penalty.fenchel_young(u, q) <= 1e-13 * scale / min(step, 1.0)
    naive = penalty.value(w) + penalty.conjugate(v) - float(v @ w)
    gap = penalty.fenchel_young(w, v)
    assert gap == pytest.approx(naive, abs=1e-12 * (1.0 + abs(penalty.conjugate(v))))
    # By strong convexity, q being a subgradient at u.
    distance = float((w - u) @ (w - u))
    assert penalty.fenchel_young(w, q) >= 0.5 * penalty.l2 * distance - 1e-12 * scale / step


@in_the_plane
@quick
@given(w=quarters, other=quarters)
def test_directional_derivative_against_differences(penalty, w, other):
    w, other = penalty.project(w), penalty.project(other)
    delta = other - w
    h = 1e-7
    forward = (penalty.value(w + h * delta) - penalty.value(w)) / h
    scale = 1.0 + abs(penalty.value(w)) + abs(penalty.value(other))
    assert penalty.directional_derivative(w, delta) == pytest.approx(forward, abs=3e-5 * scale)
    assert penalty.directional_derivative(w, 0.0 * delta) == 0.0


@in_the_plane
@quick
@given(w=quarters, slope=quarters)
def test_shortest_subgradient_is_the_steepest_descent(penalty, w, slope):
    """Along -s the objective slope.w + g falls by |s|^2, faster than along any other direction."""
    w = penalty.project(w)
    s = penalty.shortest_subgradient(w, slope)
    # What rounding leaves of a subgradient of 0 may point out of the domain.
    if np.linalg.norm(s) > 1e-6:
        rate = penalty.directional_derivative(w, -s) - float(slope @ s)
        assert rate == pytest.approx(-float(s @ s), abs=1e-4 * (1.0 + float(s @ s)))
        assert penalty.value(w - 1e-7 / np.linalg.norm(s) * s) < math.inf
    for angle in np.linspace(0.0, 2.0 * math.pi, 13):
        d = penalty.project(w + np.array([math.cos(angle), math.sin(angle)])) - w
        rate = penalty.directional_derivative(w, d) + float(slope @ d)
        assert rate >= -np.linalg.norm(s) * np.linalg.norm(d) - 1e-4 * (1.0 + np.linalg.norm(s))


@in_the_plane
def test_contract_also_with_more_ridge(penalty):
    stronger = penalty.plus_ridge(0.25)
    assert stronger.l2 == pytest.approx(penalty.l2 + 0.25)
    for each in (penalty, stronger):
        check_penalty(each, (2,))
        check_penalty(each, (2, 3))
        assert sample_values(copy.deepcopy(each), (2, 3)) == sample_values(each, (2, 3))
    lower, upper = penalty.bounds(2) or (-math.inf, math.inf)
    for point in 3.0 * np.random.default_rng(0).standard_normal((5, 2)):
        w = penalty.project(point)
        assert np.all((lower <= w) & (w <= upper))
        if penalty.value(point) < math.inf:
            np.testing.assert_array_equal(w, point)
        assert stronger.value(w) == pytest.approx(penalty.value(w) + 0.125 * float(w @ w))
        np.testing.assert_allclose(stronger.project(w), w, atol=1e-15)
        np.testing.assert_allclose(stronger.project(3.0 * w), penalty.project(3.0 * w), atol=1e-15)


def test_compiled_forms_are_for_the_packages_own_classes():
    class Renamed(ElasticNet):
        pass

    assert all(penalty.compiled for penalty in PENALTIES)
    for own in (Renamed(0.3, 0.4), Doubled(0.3, 0.4), OwnElasticNet(0.3, 0.4), Ball()):
        assert not own.compiled
    assert L2(0.3).quadratic
    assert not type("Renamed", (L2,), {})(0.3).quadratic
    with pytest.raises(TypeError, match="OwnElasticNet penalty has no compiled form"):
        OwnElasticNet(0.3, 0.4).kernel(2)


def test_changed_formulas_are_not_mixed_with_the_parents():
    """All that follows from value, prox and conjugate follows from the new ones."""
    own, same = Doubled(0.3, 0.4), ElasticNet(0.6, 0.8)
    assert own.name == "Doubled"
    for w, v in np.random.default_rng(0).standard_normal((10, 2, 3)):
        assert own.fenchel_young(w, v) == pytest.approx(same.fenchel_young(w, v), abs=1e-13)
        slope = same.directional_derivative(w, v)
        assert own.directional_derivative(w, v) == pytest.approx(slope, rel=1e-6)
        ridge = ElasticNet(1.6, 0.8).prox(w, 0.5)
        np.testing.assert_allclose(own.plus_ridge(1.0).prox(w, 0.5), ridge)
    with pytest.raises(TypeError, match="no gradient of its conjugate"):
        own.conjugate_gradient(np.zeros(3))
    assert not type("Own", (Simplex,), {"value": lambda self, w: 0.0})(0.1).compact


def in_place(self, v, step):
    v /= max(1.0, np.linalg.norm(v))
    return v


NET = {
    "l2": 0.3,
    "value": lambda self, w: OwnElasticNet(0.3, 0.4).value(w),
    "prox": lambda self, v, step: OwnElasticNet(0.3, 0.4).prox(v, step),
    "conjugate": lambda self, v: OwnElasticNet(0.3, 0.4).conjugate(v),
}
BALL = {"value": Ball.value, "prox": Ball.prox, "conjugate": Ball.conjugate, "compact": True}
LASSO = {
    "l2": 0.0,
    "value": lambda self, w: float(np.abs(w).sum()),
    "prox": lambda self, v, step: np.sign(v) * np.maximum(np.abs(v) - step, 0.0),
    "conjugate": lambda self, v: 0.0 if np.abs(v).max() <= 1.0 else math.inf,
}
# Not convex: it counts the coefficients.
COUNT = {
    "l2": 0.2,
    "value": lambda self, w: 0.1 * np.sum(np.square(w)) + np.count_nonzero(w),
    "prox": lambda self, v, step: np.where(
        v**2 > 2 * step + 0.4 * step**2, v / (1 + 0.2 * step), 0
    ),
    "conjugate": lambda self, v: np.sum(np.maximum(np.square(v) / 0.4 - 1.0, 0.0)),
}


@pytest.mark.parametrize(
    ("formulas", "error", "message"),
    [
        ({**NET, "conjugate": BALL["conjugate"]}, ValueError, "The Own penalty contradicts itself"),
        ({**NET, "prox": LASSO["prox"]}, ValueError, "The Own penalty contradicts itself"),
        ({**NET, "value": LASSO["value"]}, ValueError, "The Own penalty contradicts itself"),
        (COUNT, ValueError, "The Own penalty contradicts itself"),
        ({**NET, "l2": 0.5}, ValueError, "l2=0.5 of the Own .* not its modulus.*0.3"),
        (LASSO, ValueError, r"Own penalty must be .* > 0, got 0.0.*compact = True"),
        (BALL, TypeError, "no attribute l2"),
        ({**BALL, "l2": "0"}, TypeError, "l2 of the Own penalty must be a real number"),
        ({**BALL, "l2": 0.0, "prox": in_place}, ValueError, "Own .* leave its argument alone"),
        ({**BALL, "l2": 0.0, "prox": lambda self, v, step: np.zeros(3)}, ValueError,
         r"shape of its argument, \(4,\); got shape \(3,\)"),
    ],
    ids=["conjugate", "prox", "value", "not convex", "modulus", "flat", "no l2", "text", "in place",
         "shape"],
)  # fmt: skip
def test_penalties_that_contradict_themselves_are_refused(formulas, error, message):
    with pytest.raises(error, match=message):
        check_penalty(type("Own", (Penalty,), formulas)(), (4,))


def test_the_compiled_simplex_ends_where_rounding_decides():
    # Entries within a rounding error of the threshold used to come and go for ever.
    rng = np.random.default_rng(0)
    for _ in range(3000):
        d = int(rng.integers(2, 9))
        w = np.eye(d)[0] + rng.integers(-4, 5, d) * 2.0 ** rng.integers(-58, -50, d)
        expected = Simplex(0.0).prox(w, 1.0)
        prox_inplace(w, 1.0, *Simplex(0.0).kernel(d))
        np.testing.assert_allclose(w, expected, atol=1e-14)
        assert w.sum() == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize(
    ("size", "length"), [(1.0, 1.0), (1e4, 1.0), (1.0, 1e4), (1e-4, 1.0), (1e6, 1e-3), (0.0, 1.0)]
)
def test_differences_of_an_own_penalty_are_short(size, length):
    """Along a direction g is looked at nearby, however long the direction or far the point."""
    penalty, rng = Pseudohuber(0.7), np.random.default_rng(5)
    w, delta = size * rng.standard_normal(6), length * rng.standard_normal(6)
    gradient = penalty.gradient(w)
    found = Penalty.directional_derivative(penalty, w, delta)
    scale = float(np.abs(gradient) @ np.abs(delta)) + length
    assert found == pytest.approx(float(gradient @ delta), abs=2e-4 * scale)
    if size <= 1e4 * length:
        shortest = Penalty.shortest_subgradient(penalty, w, delta)
        np.testing.assert_allclose(shortest, delta + gradient, rtol=0, atol=5e-4 * (length + size))
    assert Penalty.directional_derivative(penalty, w, 0.0 * w) == 0.0


@pytest.mark.parametrize(
    ("penalty", "w", "direction"),
    # A millionth of a millionth of the coefficient, or of 1 where that is more.
    [(Box(1.0, -bound, bound), [0.0, bound], [0.0, 1e-12 * max(1.0, bound)])
     for bound in (0.01, 1.0, 1e6)]
    + [(Box(1.0, [-1.0] * 2, 1.0), [0.0, -1.0], [0.0, -1e-12])]
    + [(Simplex(1.0), np.full(d, 1 / d), sign * 1e-12 * np.sqrt(d) * np.eye(d)[0])
       for d in (1, 4, 100) for sign in (-1.0, 1.0)]
    + [(Simplex(1.0), [1.0, 0.0], [1e-12, -1e-12])],
)  # fmt: skip
def test_how_far_beside_the_domain_is_rounding(penalty, w, direction):
    for share, inside in ((0.5, True), (2.0, False)):
        point = np.array(w) + share * np.array(direction)
        assert np.isfinite(penalty.value(point)) == inside
        assert np.isfinite(penalty.fenchel_young(point, point)) == inside


def test_what_a_sum_lacks_by_rounding_goes_where_there_is_room():
    """No coefficient passes its bound, not even the first one, and not by 1e-17."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        z = rng.normal(size=rng.integers(2, 40)) * 10.0 ** rng.integers(-3, 6)
        z[0] = z.min() - 1.0
        w = Simplex(0.0).project(z)
        assert (w >= 0.0).all()
        assert abs(math.fsum(w) - 1.0) <= 2e-16 * len(w)
