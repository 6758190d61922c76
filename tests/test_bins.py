"""Losses collapsed to bins: what they say of the risk, and the weightings made from them."""

import numpy as np
import pytest

import sorel

pytest.importorskip("distributed", reason="Dask is an extra")

from sorel.dask import bins as binning
from sorel.projection import Projector

MIXTURE = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.05), sorel.ESRM(3)], [0.3, 0.4, 0.3])
# What is lost by 64, 512 and 4096 bins of each worker, relative to the risk.
LOST = {
    sorel.ESRM(2): (1.8e-4, 3e-6, 4e-8), sorel.Extremile(2.5): (1.8e-4, 3e-6, 4e-8),
    MIXTURE: (1.2e-4, 1e-5, 9e-8), sorel.Max(): (0.0, 0.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", LOST, ids=str)
def test_bins_bound_the_risk_and_keep_the_weights_feasible(risk, weighted):
    rng = np.random.default_rng(0)
    parts = [0.5 * rng.standard_t(3, size=m) ** 2 for m in (30_000, 50_000)]
    losses = np.concatenate(parts)
    omega = rng.integers(3, size=len(losses)) + 0.0 if weighted else np.ones(len(losses))
    omega /= omega.sum()
    order = np.argsort(losses)
    exact = risk.increments(omega[order]) @ losses[order]
    for count, lost in zip((64, 512, 4096), LOST[risk], strict=True):
        places, bins = [], []
        for part, weight in zip(parts, np.split(omega, [len(parts[0])]), strict=True):
            edges = binning.choose_edges(part, count, risk)
            place, items, used = binning.fill(part, edges, weight, True)
            assert len(items.size) <= count
            places.append(np.searchsorted(used, place) + sum(len(b.size) for b in bins))
            bins.append(items)
        items, place = binning.join(bins), np.concatenate(places)
        outside = (losses < items.low[place]) | (losses > items.high[place])
        assert not np.any(outside & (omega > 0.0))
        assert np.array_equal(items.size, np.bincount(place))
        np.testing.assert_allclose(items.mass, np.bincount(place, omega), rtol=1e-12)
        sums = np.bincount(place, omega * losses)
        np.testing.assert_allclose(items.mass * items.value, sums, rtol=1e-9, atol=1e-18)
        bound = binning.bound_risk(risk, items)
        assert bound.lower * (1 - 1e-12) <= exact <= bound.upper * (1 + 1e-12)
        assert bound.upper - bound.lower <= (lost + 1e-12) * exact
        worst = binning.worst_case(risk, items) * items.mass @ items.value
        assert worst == pytest.approx(bound.lower, rel=1e-12)
        found = binning.project(risk, items._replace(value=0.7 * items.value), 64, 2)
        assert found.n_blocks == found.block.max() + 1 <= 64
        assert np.all((found.pull >= 0.0) & (found.pull <= 1.0))
        lam = found.density[place] * omega
        # In the dual set: the top of any size holds no more than the risk puts there.
        top = np.argsort(-found.density[place], kind="stable")
        held = risk.tail(np.minimum(np.cumsum(omega[top]), 1.0))
        assert np.all(np.cumsum(lam[top]) <= held + 1e-12)
        assert lam.sum() == pytest.approx(1.0, abs=1e-12)
        moment = np.bincount(place, lam * (losses - items.low[place]))
        short = binning.shortfall(items, bound, np.bincount(place, lam), moment)
        assert short == pytest.approx(bound.upper - lam @ losses, abs=1e-12 * exact)


@pytest.mark.parametrize("risk", [sorel.ESRM(2), sorel.Extremile(3.5), MIXTURE], ids=str)
def test_a_bin_of_each_value_loses_nothing(risk):
    values = np.random.default_rng(1).normal(size=40)
    omega = np.full(40, 1 / 40)
    edges = binning.choose_edges(np.repeat(values, 3), 50, risk)
    assert np.array_equal(edges, np.sort(values)[1:])
    place, items, _ = binning.fill(values, edges, omega, True)
    bound = binning.bound_risk(risk, items)
    assert bound.lower == pytest.approx(bound.upper, rel=1e-14)
    assert bound.upper == pytest.approx(risk(values), rel=1e-12)
    found = binning.project(risk, items, 64, 1)
    exact = np.empty(40)
    Projector(risk, 40).project(values, exact, np.empty(40, np.int32))
    np.testing.assert_allclose(found.density[place], exact, atol=1e-12)
    # Bins of several samples that are not pooled follow by the slope of their densities.
    value, size = 30.0 * np.arange(40), np.full(40, 2.0)
    apart = binning.Bins(size, items.mass, value, value - 0.5, value + 0.5)
    several = binning.project(risk, apart, 64, 3)
    slope = (several.density[6:] - several.density[:-6]) / 180.0
    np.testing.assert_allclose(several.pull[3:-3], slope, atol=1e-12)
    # How densities follow values: by as much, less the mean of their block.
    step = 1e-6 * np.random.default_rng(2).normal(size=len(items.value))
    other = binning.project(risk, items._replace(value=items.value + step), 64, 1)
    for block in range(found.n_blocks):
        inside = found.block == block
        moved = step[inside] - np.average(step[inside], weights=items.mass[inside])
        change = (other.density - found.density)[inside]
        np.testing.assert_allclose(change, found.pull[inside] * moved, atol=1e-12)
    assert np.all(np.abs(other.density - found.density)[found.block < 0] <= 1e-12)
