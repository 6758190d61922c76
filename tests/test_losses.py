"""Losses against closed forms, finite differences and 60-digit arithmetic; labels and errors."""

import math

import mpmath as mp
import numpy as np
import pytest

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
scalar_losses = pytest.mark.parametrize("loss", SCALAR, ids=repr)
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
            e = mp.exp(-y * z)
            # log(1 + e^-m) with e^-m far below the 60th digit is e^-m itself
            value = e if e < mp.mpf(10) ** -50 else mp.log(1 + e)
            p = 1 / (1 + mp.exp(y * z))
            found = value, -y * p, p * (1 / (1 + e))
        elif isinstance(loss, Poisson):
            own = y * mp.log(y) if y > 0 else mp.mpf(0)
            found = mp.exp(z) - y - y * z + own, mp.exp(z) - y, mp.exp(z)
        elif isinstance(loss, Gamma):
            ratio = y * mp.exp(-z)
            found = ratio - 1 + z - mp.log(y), 1 - ratio, ratio
        else:
            short = max(mp.mpf(0), 1 - y * z)
            found = short**2, -2 * y * short, mp.mpf(2 if y * z < 1 else 0)
        return tuple(float(v) for v in found)


@scalar_losses
def test_value_and_derivatives_to_the_last_digits_at_any_margin(loss):
    for y in targets(loss):
        expected = np.array([exact(loss, y, z) for z in MARGINS])
        formulas = loss.value, loss.derivative, loss.curvature
        found = np.column_stack([formula(y, MARGINS) for formula in formulas])
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=TINY)


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
    [1e4, -1e4, 0.0], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4 + 1], [0.0, 0.0, 0.0], [40.0, 0.0, -5.0],
    [1e-8, 0.0, -1e-8], [3.0, 3.0, -700.0], [1e4, 1e4 - 30.0, -1e4],
]  # fmt: skip


@pytest.mark.parametrize("z", HARD_MARGINS, ids=str)
def test_multinomial_keeps_its_digits(z):
    loss = Multinomial()
    for y in range(3):
        value, slopes, curvature = exact_multinomial(y, z)
        # Rounding of margins of 1e4 among themselves costs nothing: differences are exact here.
        np.testing.assert_allclose(loss.value([y], [z]), [value], rtol=4e-15, atol=TINY)
        np.testing.assert_allclose(loss.derivative([y], [z]), [slopes], rtol=4e-15, atol=TINY)
        found = loss.curvature([y], [z])[0]
        np.testing.assert_allclose(found, curvature, rtol=4e-15, atol=3e-16)
        if z[y] == max(z):
            # All its curvature is small then, and nothing larger covers an error of 1e-16.
            np.testing.assert_allclose(found[y], curvature[y], rtol=4e-15, atol=TINY)


# Targets.


@pytest.mark.parametrize("labels", [
    ["no", "yes", "yes", "no"],
    [False, True, True, False],
    [0, 1, 1, 0],
    [-1.0, 1.0, 1.0, -1.0],
    [2.5, 7.5, 7.5, 2.5],
    np.array(["a", "b", "b", "a"], dtype=object),
    np.array([[0], [1], [1], [0]]),
], ids=str)  # fmt: skip
def test_labels_of_any_kind_become_signs_or_indices(labels):
    for loss, codes in ((Logistic(), [-1.0, 1.0]), (SquaredHinge(), [-1.0, 1.0]),
                        (Multinomial(), [0, 1])):  # fmt: skip
        found, classes = loss.encode(labels)
        np.testing.assert_array_equal(found, np.array(codes)[[0, 1, 1, 0]])
        assert found.dtype == np.array(codes).dtype
        np.testing.assert_array_equal(classes, np.unique(np.ravel(labels)))
    codes, classes = Multinomial().encode(["red", "blue", "green", "blue"])
    np.testing.assert_array_equal(codes, [2, 0, 1, 0])
    assert list(classes) == ["blue", "green", "red"]
    assert Multinomial().n_outputs(classes) == 3


LABELS = ["logistic", "squared_hinge", "multinomial"]
TEXTS = [["a", "b"], ["1.5", "2.5"], [b"1.5", b"2.5"], [1.0 + 1.0j, 2.0]]
OBJECTS = [np.array(texts, dtype=object) for texts in TEXTS]


@pytest.mark.parametrize(("names", "y", "message"), [
    (LABELS, ["a", "a"], r"only one class, \['a'\]"),
    (LABELS, [0.1, 2.7, 1.4], "different real numbers.*loss='squared'"),
    (LABELS, np.array(["a", "b", None, "a"], dtype=object), r"missing value, y\[2\]"),
    (LABELS, np.array(["a", "b", np.nan, "a"], dtype=object), r"missing value, y\[2\]"),
    (LABELS[:2], [0, 1, 2], "y has 3; use loss='multinomial'"),
    *[(["squared", "huber"], y, "numeric") for y in [*TEXTS, *OBJECTS]],
    (["squared"], [1.0, None], r"y\[1\]"),
    *[(list(LOSSES), [0.0, 1.0, bad, 0.0], r"y\[2\] = -?(nan|inf)") for bad in (np.nan, -np.inf)],
    (list(LOSSES), [[0.0, 1.0], [1.0, 0.0]], r"y must be one-dimensional, got shape \(2, 2\)"),
    (["poisson"], [1.0, -2.0], r"counts or rates >= 0, got y\[1\] = -2"),
    (["poisson"], [0.0, 0.0], "y is 0 everywhere"),
    (["gamma"], [1.0, 0.0], r"amounts > 0, got y\[1\] = 0"),
    (["poisson"], ["a", "b"], "y must be numeric"),
], ids=str)  # fmt: skip
def test_targets_that_a_loss_cannot_read_are_refused(names, y, message):
    for name in names:
        with pytest.raises(ValueError, match=message):
            parse_loss(name).encode(y)


# Names.


def test_losses_are_values_found_by_name():
    for name in LOSSES:
        loss = parse_loss(name)
        assert loss.name == name
        assert parse_loss(loss) is loss
        assert loss == parse_loss(name)
        assert hash(loss) == hash(parse_loss(name))
    assert Huber(0.5) == Huber(0.5) != Huber(0.6)
    assert Squared() != Logistic()
    for delta in (0.0, -1.0, np.nan, np.inf, "1", None, [1.0, 2.0]):
        with pytest.raises(ValueError, match="delta must be a finite number above 0, got"):
            Huber(delta)


@pytest.mark.parametrize("name", ["hinge", "Squared", None, 3, ["squared"]], ids=repr)
def test_unknown_losses_are_answered_with_the_known(name):
    with pytest.raises(ValueError, match="unknown loss") as raised:
        parse_loss(name)
    assert all(known in str(raised.value) for known in LOSSES)
    assert repr(name) in str(raised.value)


# Deviances under a log link.


@pytest.mark.parametrize("loss", DEVIANCES, ids=repr)
@pytest.mark.parametrize("y", [0.0, 1e-9, 0.3, 1.0, 7.0, 1e6])
def test_deviances_to_the_last_digits(loss, y):
    if y == 0.0 and isinstance(loss, Gamma):
        return
    center = np.log(y) if y > 0 else 0.0
    # Far from the minimum, at it, and where the difference of large terms leaves nothing.
    offsets = np.array([0.0, 1e-12, 1e-6, 1e-3, 0.049, 0.051, 0.5, 3.0, 30.0])
    z = center + np.append(offsets, -offsets)
    value, slope, curvature = np.array([exact(loss, y, each) for each in z]).T
    # log y is rounded before the margin is compared with it.
    blur = 4e-16 * (1.0 + abs(center)) * np.abs(slope) + 1e-31 * max(y, 1.0)
    found = loss.value(y, z)
    assert np.all(np.abs(found - value) <= 1e-12 * value + blur)
    assert np.all(found >= 0.0)
    error = np.abs(loss.derivative(y, z) - slope)
    assert np.all(error <= 1e-12 * np.abs(slope) + 1e-15 * (1 + abs(center)) * curvature)
    np.testing.assert_allclose(loss.curvature(y, z), curvature, rtol=1e-13 * (1 + abs(center)))


def test_links_go_both_ways():
    z = np.linspace(-5, 5, 11)
    for loss, expected in (
        (Squared(), z),
        (Logistic(), 1 / (1 + np.exp(-z))),
        (Poisson(), np.exp(z)),
        (Gamma(), np.exp(z)),
    ):
        np.testing.assert_allclose(loss.predict(z), expected)
        np.testing.assert_allclose(loss.margins(loss.predict(z)), z, atol=1e-13)
    p = Multinomial().predict(np.column_stack([z, 0 * z, -z]))
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(Multinomial().predict(Multinomial().margins(p)), p)


class Rounded(Loss):
    """sqrt(1 + r^2), less 3: all but linear far out, and at least -2."""

    name, lower_bound, curvature_bound = "rounded", -2.0, 1.0

    def value(self, y, z):
        return np.sqrt(1.0 + (z - y) ** 2) - 3.0

    def derivative(self, y, z):
        return (z - y) / np.sqrt(1.0 + (z - y) ** 2)

    def curvature(self, y, z):
        return (1.0 + (z - y) ** 2) ** -1.5


def test_the_majorant_of_a_loss_with_or_without_bounds():
    y, z = np.zeros(9), np.array([-80.0, -3.0, -0.4, -1e-3, 0.0, 1e-3, 0.4, 3.0, 80.0])
    loss = Rounded()
    value, slope, curvature = loss.value(y, z), loss.derivative(y, z), loss.curvature(y, z)
    found = loss.majorant(y, z)
    with np.errstate(invalid="ignore"):
        chord = slope**2 / (value + 2.0)
    chord[4] = np.inf  # at the minimum there is nothing but the bound
    np.testing.assert_allclose(found, np.clip(chord, curvature, 1.0), rtol=1e-12)
    # A parabola of this curvature lies above the loss.
    u = np.linspace(-200.0, 200.0, 4001)[:, None]
    parabola = value + slope * (u - z) + found / 2.0 * (u - z) ** 2
    assert np.all(loss.value(0.0, u) <= parabola + 1e-9)
    for low, most in ((-math.inf, 2.0), (-2.0, math.inf), (-math.inf, math.inf)):
        loss.lower_bound, loss.curvature_bound = low, most
        expected = curvature if most == math.inf else np.full(9, 2.0)
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
