"""Rewards as mixtures, and the search for the reward that belongs to a target, rule by rule."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

import sorel
from sorel import Budget, CVaR, Deviation, Simplex
from sorel.estimators import portfolio_problems as portfolios
from sorel.estimators.portfolio_problems import Portfolios, portfolio_penalty, with_reward

RNG = np.random.default_rng(0)
R = 0.02 * RNG.standard_t(4, size=(60, 4)) + np.array([0.0, 0.001, 0.002, 0.003])


@pytest.mark.parametrize(
    ("options", "simplex"),
    [
        ({}, True),
        ({"upper": 1.0}, True),
        ({"upper": np.array([1.0, 2.0, 1.0, 0.9])}, False),
        ({"lower": np.array([0.0, 0.0, 0.1, 0.0])}, False),
        ({"budget": 2.0}, False),
        ({"cost": 0.01}, False),
        ({"previous": 0.25}, True),
    ],
)
def test_a_simplex_where_that_is_all(options, simplex):
    penalty = portfolio_penalty(4, 0.1, **options)
    assert isinstance(penalty, Simplex) is simplex
    assert isinstance(penalty, Budget) is not simplex
    assert penalty.l2 == 0.1


@pytest.mark.parametrize("reward", [0.0, 0.3, 0.5, 2.0])
@pytest.mark.parametrize("risk", [CVaR(0.2), Deviation(CVaR(0.2), 0.5)], ids=repr)
def test_a_reward_is_a_part_of_the_mean(risk, reward):
    losses = np.random.default_rng(1).standard_normal(30)
    mixed, factor = with_reward(risk, reward)
    assert factor * mixed(losses) == pytest.approx(risk(losses) + reward * losses.mean())


@pytest.mark.parametrize(
    "penalty",
    [
        portfolio_penalty(4, 0.02),
        portfolio_penalty(4, 0.02, lower=-0.2, upper=0.7, cost=0.001, previous=0.25),
    ],
    ids=["simplex", "budget"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_portfolio_of_a_reward(penalty, weighted):
    """Objective and weighting are those of risk and penalty less the reward, for all to check."""
    weight = np.random.default_rng(2).uniform(0.5, 2.0, 60) if weighted else None
    family = Portfolios(R, CVaR(0.2), penalty, sample_weight=weight, tol=1e-7)
    omega = np.full(60, 1 / 60) if weight is None else weight / weight.sum()
    for reward in (0.0, 0.5, 3.0):
        found = family.with_reward(reward)
        w, lam = found.w, found.weights
        mean, value = omega @ (R @ w), penalty.value(w)
        assert found.mean == pytest.approx(mean)
        assert found.risk == pytest.approx(family.risk(-R @ w, weight))
        assert found.objective == pytest.approx(found.risk + value - reward * mean)
        assert found.cost == pytest.approx(found.risk + value)
        assert found.gap == pytest.approx(found.objective - found.dual, abs=1e-12)
        # The weighting of the risk: it adds up to 1, and no weight is above omega / alpha.
        assert lam.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.all(lam <= omega / 0.2 + 1e-9)
        # What the weights guarantee for any portfolio: least -lam.R u - reward mean u + g(u).
        slope = R.T @ (lam + reward * omega)
        bound = -penalty.conjugate(slope)
        assert bound == pytest.approx(found.dual, abs=1e-7 * abs(found.objective) + 1e-9)


def test_a_reward_starts_from_the_nearest_that_is_known():
    penalty = portfolio_penalty(4, 0.02)
    cold = Portfolios(R, CVaR(0.2), penalty).with_reward(1.0)
    family = Portfolios(R, CVaR(0.2), penalty)
    family.with_reward(1.0)
    warm = family.with_reward(1.001)
    assert warm.converged
    assert warm.passes < cold.passes


def test_the_largest_mean():
    means = R.mean(axis=0)
    assert Portfolios(R, CVaR(0.2), portfolio_penalty(4)).highest_mean() == pytest.approx(
        max(means)
    )
    budget = portfolio_penalty(4, 0.5, lower=-0.2, upper=0.7, cost=0.1, previous=0.25)
    family = Portfolios(R, CVaR(0.2), budget)
    best = max(
        means @ w
        for w in itertools.product((-0.2, 0.1, 0.5, 0.7), repeat=4)
        if abs(sum(w) - 1.0) < 1e-12
    )
    order = np.sort(means)
    # All at the lower bound but as many at the upper one as the sum allows.
    exact = -0.2 * order[:2].sum() + 0.7 * order[2:].sum()
    assert best == pytest.approx(exact)
    assert family.highest_mean() == pytest.approx(exact)
    unbounded = portfolio_penalty(4, 0.5, lower=-math.inf)
    assert Portfolios(R, CVaR(0.2), unbounded).highest_mean() == math.inf


def test_targets_at_the_largest_mean_and_beyond():
    family = Portfolios(R, CVaR(0.2), portfolio_penalty(4, 0.02))
    highest = family.highest_mean()
    best = family.means == family.means.max()
    np.testing.assert_allclose(family.with_target(highest).w, best, atol=1e-6)
    size = np.abs(family.means).max()
    assert family.with_target(highest + 0.5e-12 * size).mean == pytest.approx(highest)
    for factor in (2e-12, 1e-3):
        with pytest.raises(ValueError, match="is out of reach: the largest mean return"):
            family.with_target(highest + factor * size)


@pytest.mark.parametrize("penalty", [portfolio_penalty(4, 0.02), portfolio_penalty(
    4, 0.02, lower=-math.inf)], ids=["simplex", "unbounded"])  # fmt: skip
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_the_portfolio_of_a_target(penalty, share):
    """Against the same problem with its constraint on the mean, by the reward that was found."""
    family = Portfolios(R, CVaR(0.2), penalty, tol=1e-7)
    lowest, top = family.with_reward(0.0).mean, R.mean(axis=0).max()
    target = (1.0 - share) * lowest + share * top
    found = family.with_target(target)
    assert found.converged
    assert found.mean >= target - 1e-12
    assert found.mean == pytest.approx(target, rel=1e-6)
    assert found.objective == pytest.approx(found.risk + penalty.value(found.w))
    # With the reward of the bound, no portfolio is better by more than the gap.
    slope = R.T @ (found.weights + found.reward / 60)
    bound = -penalty.conjugate(slope) + found.reward * target
    assert bound == pytest.approx(found.dual, abs=1e-6 * abs(found.objective))
    assert found.gap <= 1.001e-7 * family.unit(found.objective, found.w)
    # Below the mean of the least risk a target asks for nothing.
    easy = family.with_target(lowest - 1e-5)
    assert easy.reward == 0.0
    assert easy.mean == pytest.approx(lowest)


def test_rewards_are_solved_as_well_as_the_gap_asks_for(monkeypatch):
    family = Portfolios(R, CVaR(0.2), portfolio_penalty(4, 0.02), tol=1e-6)
    lowest, top = family.with_reward(0.0).mean, family.highest_mean()
    asked, own = [], Portfolios.with_reward

    def spied(self, reward, tol=None):
        found = own(self, reward, tol)
        asked.append((tol, found.passes, found.n_iter))
        return found

    monkeypatch.setattr(Portfolios, "with_reward", spied)
    found = family.with_target(0.5 * (lowest + top))
    tols = [tol for tol, _, _ in asked]
    assert tols[0] > tols[-1]
    assert all(0.2e-6 / 1e3 <= tol <= 1e-2 for tol in tols)
    assert found.passes == pytest.approx(sum(passes for _, passes, _ in asked))
    assert found.n_iter == sum(n_iter for _, _, n_iter in asked)
    assert len(asked) < 20
    # One that is known is where the next search begins.
    asked.clear()
    again = family.with_target(0.5 * (lowest + top))
    assert again.objective == pytest.approx(found.objective, rel=1e-6)
    assert len(asked) <= 1


@pytest.mark.parametrize("penalty", [portfolio_penalty(4, 0.3), portfolio_penalty(
    4, 0.3, lower=-0.2, upper=0.7, cost=np.array([0.1, 0.2, 0.0, 0.1]), previous=0.25)],
    ids=["simplex", "budget"])  # fmt: skip
def test_a_penalty_divided_by_a_number(penalty):
    w = np.array([0.1, 0.2, 0.3, 0.4])
    scaled = portfolios._scaled(penalty, 4.0)
    assert scaled.value(w) == pytest.approx(penalty.value(w) / 4.0)
    assert type(scaled) is type(penalty)
    assert portfolios._scaled(penalty, 1.0) is penalty


def test_the_cost_of_a_portfolio_has_no_reward_in_it():
    family = Portfolios(R, CVaR(0.2), portfolio_penalty(4, 0.02))
    found = family.with_reward(2.0)
    assert dataclasses.replace(found, objective=3.0, reward=2.0, mean=0.5).cost == 4.0
    assert isinstance(found.result, sorel.Result)
