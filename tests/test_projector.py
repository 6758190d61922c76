"""Projectors: what they keep from call to call, and the risks that they give."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sorel._pool import WORTH_POOLING, Pool
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


def test_the_share_of_items_that_carry_a_risk():
    assert Projector(Mean(), 50).effective_share() == pytest.approx(1.0)
    assert Projector(CVaR(0.2), 50).effective_share() == pytest.approx(0.2)
    assert Projector(Max(), 50).effective_share() == pytest.approx(1.0 / 50)
    sigma = ESRM(2.0).weights(50)
    assert Projector(ESRM(2.0), 50).effective_share() == pytest.approx(1 / (50 * sigma @ sigma))


@pytest.mark.parametrize("alpha", [0.2, 0.123456])
def test_the_share_of_two_levels_needs_no_vector(alpha):
    n = cores._SELECT_FROM + 7
    projector, sigma = Projector(CVaR(alpha), n), CVaR(alpha).weights(n)
    assert projector.effective_share() == pytest.approx(1.0 / (n * sigma @ sigma), rel=1e-12)
    assert projector.core._mass is None


def test_jumps_of_the_spectrum():
    for given in (None, np.full(1000, 1e-3)):
        assert Projector(ESRM(2.0), 1000, given).largest_jump() == pytest.approx(0.002, rel=0.01)
        assert Projector(CVaR(0.2), 1000, given).largest_jump() == pytest.approx(1.0)
        assert Projector(Max(), 1000, given).largest_jump() == 1.0
        assert Projector(Mean(), 1000, given).largest_jump() == pytest.approx(0.0, abs=1e-12)
        halves = Mixture([Mean(), CVaR(0.5)], [0.5, 0.5])
        assert Projector(halves, 1000, given).largest_jump() == pytest.approx(2 / 3)
    assert Projector(ESRM(2.0), 1).largest_jump() == 0.0


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


def test_forks_do_not_share_orders():
    projector, losses = Projector(ESRM(2.0), 6), np.array([3.0, 1.0, 2.0, 5.0, 4.0, 0.0])
    out, other = np.empty(6), np.empty(6)
    projector.project(losses, out)
    fork = projector.fork()
    fork.project(-losses, other)
    assert fork.core._general()[1] is not projector.core._general()[1]
    assert_array_equal(np.argsort(other), np.argsort(-out))


def test_items_without_weight_are_left_out_and_others_are_not():
    omega = np.array([0.2, 0.5, 0.3])
    assert Projector(CVaR(0.5), 3, omega)._used is None
    assert_array_equal(Projector(CVaR(0.5), 3, np.array([0.4, 0.0, 0.6]))._used, [0, 2])
    assert Projector(CVaR(0.5), 3, omega).two_levels
    assert not Projector(ESRM(2.0), 3, omega).two_levels
    team = object()
    for weight, shared in ((None, True), (omega, True), (np.array([0.4, 0.0, 0.6]), False)):
        projector = Projector(ESRM(2.0), 3, weight)
        projector.share(team)
        assert (projector.core.team is team) is shared


@pytest.mark.parametrize("weighted", [False, True])
def test_a_threshold_that_is_found_needs_no_order(weighted):
    rng = np.random.default_rng(6)
    omega = rng.dirichlet(np.ones(50)) if weighted else None
    projector, zeta, out = Projector(CVaR(0.3), 50, omega), rng.standard_normal(50), np.empty(50)
    projector.project(zeta, out)
    assert projector.core._project_order is None
    assert (
        np.mean(out) == pytest.approx(1.0) if omega is None else omega @ out == pytest.approx(1.0)
    )
    # Where none is found, the order tells the same.
    with mock.patch.object(type(projector.core.threshold), "project", return_value=-1):
        other = projector.fork()
        again = np.empty(50)
        other.project(zeta, again)
    assert other.core._project_order is not None
    assert_allclose(again, out, atol=1e-12)


def test_sizes_of_two_levels_add_up():
    """At the bend of two levels stands what makes the sum right."""
    for n, alpha in ((10, 0.37), (7, 0.5), (5, 1.0), (6, 0.05)):
        mass = n * CVaR(alpha).weights(n)
        threshold = Uniform(mass, Pool()).threshold
        assert threshold.total == pytest.approx(n, rel=1e-15)
        assert (threshold.low, threshold.high) == (mass[0], mass[-1])
