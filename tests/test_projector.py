"""Projectors: what they keep from call to call, and the risks that they give."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sorel._lib.pool import WORTH_POOLING, Pool
from sorel.permutahedron import Projector, cores, project_permutahedron
from sorel.permutahedron.cores import Uniform
from sorel.permutahedron.ordering import Order
from sorel.risks import ESRM, CVaR, Max, Mean, Mixture

RISKS = [Mean(), Max(), CVaR(0.3), ESRM(2.0), Mixture([CVaR(0.5), CVaR(0.1)], [0.5, 0.5])]


@pytest.mark.parametrize("weights", ["equal", "given", "some zero"])
@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("n", [7, 40])
def test_value_worst_case_and_shortfall_belong_together(risk, weights, n):
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


@pytest.mark.parametrize(
    ("sigma", "where"),
    [([3.0, 2.0, 5.0], "3.0 to 2.0 at position 1"), ([0.0, 2.0, 1.5], "2.0 to 1.5 at position 2")],
)
def test_where_sigma_falls(sigma, where):
    with pytest.raises(ValueError, match=f"falls from {where}; sort it first"):
        project_permutahedron([1.0, 2.0, 3.0], sigma)


@pytest.mark.parametrize("n", [cores._SELECT_FROM, cores._SELECT_FROM + 1])
@pytest.mark.parametrize("alpha", [0.29, 0.5, 1.0])
def test_long_vectors_of_two_levels_are_three_numbers(n, alpha):
    mass = n * CVaR(alpha).weights(n)
    core = Uniform(mass, Pool())
    assert (core._mass is None) is (n > cores._SELECT_FROM)
    assert_allclose(core.mass, mass, rtol=1e-15)
    losses = np.random.default_rng(0).standard_normal(n)
    losses[:100] = losses[100]
    with mock.patch.object(Order, "sort", autospec=True, side_effect=Order.sort) as sort:
        assert core.value(losses) == pytest.approx(mass @ np.sort(losses), rel=1e-10)
    assert sort.called is (n == cores._SELECT_FROM)


def test_a_spectrum_of_more_levels_is_kept():
    n = cores._SELECT_FROM + 1
    mass = n * ESRM(2.0).weights(n)
    core = Uniform(mass, Pool())
    assert core.mass is mass
    assert core.threshold is None


def test_working_memory_of_short_vectors_is_kept_and_long_ones_go_back():
    for n in (50, WORTH_POOLING):
        pool, mass = Pool(), n * ESRM(2.0).weights(n)
        core = Uniform(mass, pool)
        zeta, out, block = np.linspace(-1.0, 2.0, n), np.empty(n), np.empty(n, np.int32)
        core.project(zeta, out, block)
        assert (core._work is None) is (n == WORTH_POOLING)
        first = core._work
        core.project(zeta, out, block)
        assert core._work is first
        assert sum(map(len, pool._free.values())) == (2 if n == WORTH_POOLING else 0)


@pytest.mark.parametrize("long", [False, True])
def test_long_lists_have_one_order_for_losses_and_projections(monkeypatch, long):
    monkeypatch.setattr(cores, "ONE_ORDER_FROM", 40 if long else 41)
    core = Uniform(40 * ESRM(2.0).weights(40), Pool())
    losses = np.random.default_rng(3).standard_normal(40)
    core.value(losses)
    assert (core._value_order is core._project_order) is long


def test_sizes_of_two_levels_add_up():
    """At the bend of two levels stands what makes the sum right."""
    for n, alpha in ((10, 0.37), (7, 0.5), (5, 1.0), (6, 0.05)):
        mass = n * CVaR(alpha).weights(n)
        threshold = Uniform(mass, Pool()).threshold
        assert threshold.total == pytest.approx(n, rel=1e-15)
        assert (threshold.low, threshold.high) == (mass[0], mass[-1])
