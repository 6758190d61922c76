"""Losses against closed forms, finite differences and 60-digit arithmetic; labels and errors."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorel.losses import (
    LOSSES,
    Gamma,
    Huber,
    Logistic,
    Loss,
    Multinomial,
    Poisson,
    Squared,
    SquaredHinge,
    parse_loss,
)

SCALAR = [Squared(), Huber(1.0), Huber(0.3), Logistic(), SquaredHinge()]
DEVIANCES = [Poisson(), Gamma()]
BINARY = [Logistic(), SquaredHinge()]
# Every loss of one margin that takes any number, or labels.
ANY = [Huber(0.3), *(kind() for kind in LOSSES.values() if kind.link != "log")]
ANY = [loss for loss in ANY if not loss.affine and not isinstance(loss, Multinomial)]
any_losses = pytest.mark.parametrize("loss", ANY, ids=repr)
scalar_losses = pytest.mark.parametrize("loss", SCALAR, ids=repr)
binary_losses = pytest.mark.parametrize("loss", BINARY, ids=repr)
LARGE = [1e4, 745.0, 700.0, 40.0, 37.0, 18.0, 1.0, 0.5, 1e-3, 1e-9, 0.0]
MARGINS = [*LARGE, *(-m for m in LARGE[:-1])]
TINY = np.finfo(np.float64).tiny


def targets(loss: Loss) -> list[float]:
    return [-1.0, 1.0] if loss.is_classifier else [-2.3, 0.0, 1e3]


def exact(loss: Loss, y: float, z: float) -> tuple[float, float, float]:
    """Value and derivatives in 60 digits, rounded once."""
    with mp.workdps(60):
        y, z = mp.mpf(y), mp.mpf(z)
        if isinstance(loss, Squared):
            found = (z - y) ** 2 / 2, z - y, mp.mpf(1)
        elif isinstance(loss, Huber):
            r, delta = z - y, mp.mpf(loss.delta)
            if abs(r) <= delta:
                found = r**2 / 2, r, mp.mpf(1)
            else:
                found = delta * (abs(r) - delta / 2), delta * mp.sign(r), mp.mpf(0)
        elif isinstance(loss, Logistic):
            p = 1 / (1 + mp.exp(y * z))
            # log(1 + e^-m) with e^-m far below the 60th digit is e^-m itself
            e = mp.exp(-y * z)
            value = e if e < mp.mpf(10) ** -50 else mp.log(1 + e)
            found = value, -y * p, p * (1 / (1 + e))
        else:
            m = y * z
            short = max(mp.mpf(0), 1 - m)
            found = short**2, -2 * y * short, mp.mpf(2 if m < 1 else 0)
        return tuple(float(v) for v in found)


@scalar_losses
def test_value_and_derivatives_to_the_last_digits_at_any_margin(loss):
    for y in targets(loss):
        expected = np.array([exact(loss, y, z) for z in MARGINS])
        found = np.column_stack(
            [loss.value(y, MARGINS), loss.derivative(y, MARGINS), loss.curvature(y, MARGINS)]
        )
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=TINY)


@any_losses
def test_derivatives_against_finite_differences(loss):
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], 60) if loss.is_classifier else rng.normal(size=60)
    z, h = 2.0 * rng.normal(size=60), 1e-5
    # At a kink of the derivative no difference quotient is right.
    change = loss.curvature(y, z + 9 * h) - loss.curvature(y, z - 9 * h)
    smooth = np.abs(change) < 0.5
    assert smooth.sum() > 50
    y, z = y[smooth], z[smooth]
    first = (loss.value(y, z + h) - loss.value(y, z - h)) / (2 * h)
    second = (loss.derivative(y, z + h) - loss.derivative(y, z - h)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(y, z), first, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(loss.curvature(y, z), second, rtol=1e-6, atol=1e-8)


@any_losses
@settings(deadline=None, derandomize=True)
@given(
    y=st.sampled_from([-1.0, 1.0]),
    a=st.floats(-1e4, 1e4),
    b=st.floats(-1e4, 1e4),
    t=st.floats(0.0, 1.0),
)
def test_convex_with_a_supporting_line(loss, y, a, b, t):
    at_a, at_b, between = loss.value(y, [a, b, t * a + (1 - t) * b])
    slope, other = loss.derivative(y, [a, b])
    # The point between is rounded, and so is its distance from the target.
    rounding = 4e-16 * (1.0 + abs(a) + abs(b)) * (abs(slope) + abs(other) + 1e-15)
    size = abs(at_a) + abs(at_b) + 1e-300
    assert between <= t * at_a + (1 - t) * at_b + 1e-12 * size + rounding
    assert at_b >= at_a + slope * (b - a) - 1e-12 * (size + abs(slope * (b - a)))
    assert loss.curvature(y, [a])[0] >= 0.0
    assert at_a >= 0.0


def test_huber_is_continuous_where_it_turns_linear():
    loss, edge = Huber(0.7), 0.7 * (1 + np.array([-1e-9, 0.0, 1e-9]))
    np.testing.assert_allclose(loss.value(0.0, edge), 0.245, rtol=1e-8)
    np.testing.assert_allclose(loss.derivative(0.0, edge), 0.7, rtol=1e-8)
    assert loss.value(0.0, [100.0])[0] == pytest.approx(0.7 * (100.0 - 0.35), rel=1e-15)


@pytest.mark.parametrize("delta", [0.0, -1.0, np.nan, np.inf, "1", None, [1.0, 2.0]])
def test_huber_refuses_a_delta_out_of_range(delta):
    with pytest.raises(ValueError, match="delta must be a finite number above 0, got"):
        Huber(delta)


def test_losses_are_values():
    assert Huber(0.5) == Huber(0.5) != Huber(0.6)
    assert hash(Squared()) == hash(Squared())
    assert Squared() != Logistic()


# The multinomial loss.


def exact_multinomial(y: int, z: list[float]) -> tuple[float, list[float], list[list[float]]]:
    with mp.workdps(60):
        exps = [mp.exp(mp.mpf(v) - mp.mpf(z[y])) for v in z]
        rest = mp.fsum(e for c, e in enumerate(exps) if c != y)
        total = 1 + rest
        value = rest if rest < mp.mpf(10) ** -50 else mp.log(total)
        p = [e / total for e in exps]
        slopes = [p[c] if c != y else -rest / total for c in range(len(z))]
        k = range(len(z))
        complement = [rest / total if c == y else 1 - p[c] for c in k]
        hess = [[p[a] * complement[a] if a == b else -p[a] * p[b] for b in k] for a in k]
        return float(value), [float(s) for s in slopes], [[float(h) for h in row] for row in hess]


HARD_MARGINS = [
    [1e4, -1e4, 0.0],
    [1e4, 1e4, 1e4],
    [-1e4, -1e4, -1e4 + 1],
    [0.0, 0.0, 0.0],
    [40.0, 0.0, -5.0],
    [1e-8, 0.0, -1e-8],
    [3.0, 3.0, -700.0],
    [1e4, 1e4 - 30.0, -1e4],
]


@pytest.mark.parametrize("y", [0, 1, 2])
@pytest.mark.parametrize("z", HARD_MARGINS, ids=str)
def test_multinomial_keeps_its_digits(z, y):
    value, slopes, curvature = exact_multinomial(y, z)
    loss = Multinomial()
    # Rounding of margins of 1e4 among themselves costs nothing: their differences are exact here.
    np.testing.assert_allclose(loss.value([y], [z]), [value], rtol=4e-15, atol=TINY)
    np.testing.assert_allclose(loss.derivative([y], [z]), [slopes], rtol=4e-15, atol=TINY)
    found = loss.curvature([y], [z])[0]
    np.testing.assert_allclose(found, curvature, rtol=4e-15, atol=3e-16)
    if z[y] == max(z):
        # All its curvature is small then, and nothing larger covers an error of 1e-16.
        np.testing.assert_allclose(found[y], curvature[y], rtol=4e-15, atol=TINY)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    st.integers(0, 2),
)
def test_multinomial_is_convex(a, b, y):
    loss = Multinomial()
    middle = 0.5 * (np.array(a) + b)
    at_a, at_b, between = loss.value(y, [a, b, middle])
    assert between <= 0.5 * (at_a + at_b) + 1e-13 * (at_a + at_b)
    assert np.linalg.eigvalsh(loss.curvature([y], [a])[0]).min() > -1e-15


def test_arguments_are_left_alone():
    y, z = np.array([1.0, -1.0]), np.array([0.3, 0.4])
    before = y.copy(), z.copy()
    Logistic().value(y, z), Logistic().curvature(y, z)
    np.testing.assert_array_equal(y, before[0])
    np.testing.assert_array_equal(z, before[1])
    margins = np.array([[1.0, 2.0]])
    Multinomial().derivative([0], margins), Multinomial().curvature([0], margins)
    np.testing.assert_array_equal(margins, [[1.0, 2.0]])


# Targets.


@binary_losses
@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes", "yes", "no"],
        [False, True, True, False],
        [0, 1, 1, 0],
        [-1, 1, 1, -1],
        [-1.0, 1.0, 1.0, -1.0],
        [2.5, 7.5, 7.5, 2.5],
        np.array(["a", "b", "b", "a"], dtype=object),
        np.array([[0], [1], [1], [0]]),
    ],
    ids=str,
)
def test_two_labels_of_any_kind_become_signs(loss, labels):
    codes, classes = loss.encode(labels)
    np.testing.assert_array_equal(codes, [-1.0, 1.0, 1.0, -1.0])
    assert codes.dtype == np.float64
    assert classes is not None
    np.testing.assert_array_equal(classes, np.unique(np.ravel(labels)))


def test_labels_of_many_classes_become_indices():
    codes, classes = Multinomial().encode(["red", "blue", "green", "blue"])
    np.testing.assert_array_equal(codes, [2, 0, 1, 0])
    assert codes.dtype == np.int64
    assert list(classes) == ["blue", "green", "red"]
    assert Multinomial().n_outputs(classes) == 3
    np.testing.assert_array_equal(Multinomial().encode([3.0, 1.0, 2.0])[0], [2, 0, 1])


LABELS = ["logistic", "squared_hinge", "multinomial"]
TEXTS = [["a", "b"], ["1.5", "2.5"], [b"1.5", b"2.5"], [1.0 + 1.0j, 2.0]]
OBJECTS = [np.array(texts, dtype=object) for texts in TEXTS]


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        *[(name, ["a", "a"], r"only one class, \['a'\]") for name in LABELS],
        *[(name, [0.1, 2.7, 1.4], "different real numbers.*loss='squared'") for name in LABELS],
        *[(name, [0, 1, 2], "y has 3; use loss='multinomial'") for name in LABELS[:2]],
        *[(name, np.array(["a", "b", bad, "a"], dtype=object), r"missing: y\[2\]")
          for name in LABELS for bad in (None, np.nan)],
        *[(name, y, "numeric") for name in ("squared", "huber") for y in [*TEXTS, *OBJECTS]],
        ("squared", [1.0, None], r"y\[1\]"),
    ],
    ids=str,
)  # fmt: skip
def test_targets_that_a_loss_cannot_read_are_refused(name, y, message):
    with pytest.raises(ValueError, match=message):
        parse_loss(name).encode(y)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_targets_that_are_not_finite_are_named(name, bad):
    with pytest.raises(ValueError, match=r"y\[2\] = -?(nan|inf)"):
        parse_loss(name).encode([0.0, 1.0, bad, 0.0])


@pytest.mark.parametrize("name", LOSSES)
def test_targets_must_be_a_vector(name):
    with pytest.raises(ValueError, match=r"y must be one-dimensional, got shape \(2, 2\)"):
        parse_loss(name).encode([[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.float32, np.float16, object])
def test_numbers_of_any_type_are_targets(dtype):
    encoded, classes = Squared().encode(np.array([0, 1, 1], dtype=dtype))
    assert encoded.dtype == np.float64
    assert classes is None
    np.testing.assert_array_equal(encoded, [0.0, 1.0, 1.0])


# Names.


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_found_by_name(name):
    loss = parse_loss(name)
    assert loss.name == name
    assert parse_loss(loss) is loss


@pytest.mark.parametrize("name", ["hinge", "Squared", None, 3, ["squared"]], ids=repr)
def test_unknown_losses_are_answered_with_the_known(name):
    with pytest.raises(ValueError, match="unknown loss") as raised:
        parse_loss(name)
    assert all(known in str(raised.value) for known in LOSSES)
    assert repr(name) in str(raised.value)


# Deviances under a log link.


def exact_deviance(loss: Loss, y: float, z: float) -> tuple[float, float, float]:
    with mp.workdps(60):
        y, z = mp.mpf(y), mp.mpf(z)
        if isinstance(loss, Poisson):
            own = y * mp.log(y) if y > 0 else mp.mpf(0)
            found = mp.exp(z) - y - y * z + own, mp.exp(z) - y, mp.exp(z)
        else:
            ratio = y * mp.exp(-z)
            found = ratio - 1 + z - mp.log(y), 1 - ratio, ratio
        return tuple(float(v) for v in found)


@pytest.mark.parametrize("loss", DEVIANCES, ids=repr)
@pytest.mark.parametrize("y", [0.0, 1e-9, 0.3, 1.0, 7.0, 1e6])
def test_deviances_to_the_last_digits(loss, y):
    if y == 0.0 and isinstance(loss, Gamma):
        return
    center = np.log(y) if y > 0 else 0.0
    # Far from the minimum, at it, and where the difference of large terms leaves nothing.
    offsets = [0.0, 1e-12, 1e-6, 1e-3, 0.049, 0.051, 0.5, 3.0, 30.0]
    for t in [*offsets, *(-t for t in offsets)]:
        z = center + t
        expected = exact_deviance(loss, y, z)
        found = [float(f(y, [z])[0]) for f in (loss.value, loss.derivative, loss.curvature)]
        # log y is rounded before the margin is compared with it.
        blur = 4e-16 * (1.0 + abs(center)) * (abs(expected[1]) + 1e-300)
        assert found[0] == pytest.approx(expected[0], rel=1e-12, abs=blur + 1e-31 * max(y, 1.0))
        assert found[1] == pytest.approx(
            expected[1], rel=1e-12, abs=1e-15 * (1 + abs(center)) * expected[2]
        )
        assert found[2] == pytest.approx(expected[2], rel=1e-13 * (1 + abs(center)))
        assert found[0] >= 0.0


@pytest.mark.parametrize("loss", DEVIANCES, ids=repr)
@settings(deadline=None, derandomize=True)
@given(y=st.floats(0.01, 100.0), a=st.floats(-30, 30), b=st.floats(-30, 30))
def test_deviances_lie_above_their_tangents(loss, y, a, b):
    at_a, at_b = loss.value(y, [a, b])
    slope = loss.derivative(y, [a])[0]
    size = at_a + at_b + abs(slope * (b - a))
    assert at_b >= at_a + slope * (b - a) - 1e-12 * size
    assert np.all(loss.value(y, [a, b]) >= 0.0)


@pytest.mark.parametrize("loss", DEVIANCES, ids=repr)
def test_links_go_both_ways(loss):
    z = np.linspace(-5, 5, 11)
    np.testing.assert_allclose(loss.predict(z), np.exp(z))
    np.testing.assert_allclose(loss.margins(loss.predict(z)), z, atol=1e-15)


def test_other_links():
    z = np.linspace(-5, 5, 11)
    np.testing.assert_array_equal(Squared().predict(z), z)
    np.testing.assert_allclose(Logistic().predict(z), 1 / (1 + np.exp(-z)))
    np.testing.assert_allclose(Logistic().margins(Logistic().predict(z)), z, atol=1e-13)
    p = Multinomial().predict(np.column_stack([z, 0 * z, -z]))
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(Multinomial().predict(Multinomial().margins(p)), p)


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        ("poisson", [1.0, -2.0], r"counts or rates >= 0, got y\[1\] = -2"),
        ("poisson", [0.0, 0.0], "y is 0 everywhere"),
        ("gamma", [1.0, 0.0], r"amounts > 0, got y\[1\] = 0"),
        ("gamma", [1.0, np.nan], r"not finite: y\[1\]"),
        ("poisson", ["a", "b"], "y must be numeric"),
    ],
)
def test_deviances_check_their_targets(loss, y, message):
    with pytest.raises(ValueError, match=message):
        parse_loss(loss).encode(y)


class Rounded(Loss):
    """sqrt(1 + r^2), less 3: all but linear far out, and at least -2."""

    name, lower_bound, curvature_bound = "rounded", -2.0, 1.0

    def value(self, y, z):
        return np.sqrt(1.0 + (z - y) ** 2) - 3.0

    def derivative(self, y, z):
        return (z - y) / np.sqrt(1.0 + (z - y) ** 2)

    def curvature(self, y, z):
        return (1.0 + (z - y) ** 2) ** -1.5


def test_the_majorant_of_a_loss_with_bounds():
    y, z = np.zeros(9), np.array([-80.0, -3.0, -0.4, -1e-3, 0.0, 1e-3, 0.4, 3.0, 80.0])
    loss = Rounded()
    value, slope = loss.value(y, z), loss.derivative(y, z)
    found = loss.majorant(y, z)
    with np.errstate(invalid="ignore"):
        chord = slope**2 / (value + 2.0)
    chord[4] = np.inf  # at the minimum there is nothing but the bound
    np.testing.assert_allclose(found, np.clip(chord, loss.curvature(y, z), 1.0), rtol=1e-12)
    assert found[0] < 0.02
    # A parabola of this curvature lies above the loss.
    u = np.linspace(-200.0, 200.0, 4001)
    for k in range(9):
        parabola = value[k] + slope[k] * (u - z[k]) + found[k] / 2.0 * (u - z[k]) ** 2
        assert np.all(loss.value(0.0, u) <= parabola + 1e-9)


def test_the_majorant_of_a_loss_that_lacks_a_bound():
    y, z = np.zeros(3), np.array([-3.0, 0.0, 3.0])
    for low, most in ((-math.inf, 2.0), (-2.0, math.inf), (-math.inf, math.inf)):
        loss = Rounded()
        loss.lower_bound, loss.curvature_bound = low, most
        expected = loss.curvature(y, z) if most == math.inf else np.full(3, 2.0)
        np.testing.assert_array_equal(loss.majorant(y, z), expected)


@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_the_majorant_of_a_deviance_ends_short_of_the_minimum(name):
    loss = LOSSES[name]()
    y = np.array([0.3, 1.0, 20.0])[:, None]
    away = np.array([-6.0, -1.0, -1e-3, -1e-5, 0.0, 1e-5, 1e-3, 1.0, 6.0])
    z = np.log(y) + away
    found, curvature = loss.majorant(y, z), loss.curvature(y, z)
    far = np.abs(away) > 1e-4
    chord = loss.derivative(y, z)[:, far] / away[far]
    np.testing.assert_allclose(found[:, far], np.maximum(curvature[:, far], chord), rtol=1e-9)
    np.testing.assert_array_equal(found[:, ~far], curvature[:, ~far])
    # From the side where the loss is steep the minimum is reached, and never passed from there.
    steep = away > 0.0 if name == "poisson" else away < 0.0
    left = z - loss.derivative(y, z) / found - np.log(y)
    assert np.all(left[:, steep] * away[steep] >= -1e-12)
    if name == "poisson":
        zero = np.zeros(2)
        np.testing.assert_array_equal(loss.majorant(zero, zero + 1.0), np.exp([1.0, 1.0]))
