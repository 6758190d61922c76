"""Portfolios of least risk: the losses of weights w in the scenarios R are u = -R w.

    min_w  R(u) + gamma mean(u) + g(w),    g a set of weights with a budget, a ridge and costs

A reward gamma for the mean return is a risk again, up to a factor: (1 + gamma) times the mixture of
R and the mean. A least mean return T instead of a reward is a matter of the right gamma, since

    min { R(u) + g(w) : mean return >= T }
        =  max_gamma  [ min_w R(u) + gamma mean(u) + g(w) ] + gamma T.

Between two rewards whose optima lie on both sides of T, a blend of the two portfolios has the
return T. The chord through them has the slope of the next reward to try, and every solved reward
gives a bound: the blend is certified like any other optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.certificate import unit
from sorel.problem.penalties import Budget, Penalty, Simplex
from sorel.problem.problem import Problem
from sorel.problem.risks import Deviation, Mean, Mixture, Risk
from sorel.solvers import Solver
from sorel.solvers.solve import Result, solve_quietly

__all__ = ["Portfolio", "Portfolios", "portfolio_penalty", "with_reward"]

FloatArray = NDArray[np.float64]

# Rewards that are tried for one target.
_MAX_REWARDS = 60

# Share of the tolerance that each may spend; a tenth of it after one that has led nowhere.
_SHARE = 0.2

# While the target is missed by far, a reward need not be solved better than to this share of the
# gap, nor worse than to ten times that.
_COARSE = 0.1

# A mean return within this share of the largest one counts as reached, and no reward is solved
# better.
_ROUNDING = 1e-12


def portfolio_penalty(
    d: int,
    l2: float = 0.0,
    budget: float = 1.0,
    lower: FloatArray | float = 0.0,
    upper: FloatArray | float = math.inf,
    cost: FloatArray | float = 0.0,
    previous: FloatArray | float = 0.0,
) -> Penalty:
    """The penalty of a portfolio: a simplex where that is all, which is faster.

    Examples
    --------
    >>> from sorel.estimators.portfolio_problems import portfolio_penalty
    >>> portfolio_penalty(3)
    Simplex(l2=0.0)
    """
    plain = budget == 1.0 and np.all(np.asarray(lower) == 0.0) and np.all(np.asarray(upper) >= 1.0)
    if plain and not np.any(cost):
        return Simplex(l2)
    penalty = Budget(l2, budget, lower, upper, cost, previous)
    penalty.terms((d,))  # refuses bounds that leave no weights
    return penalty


def with_reward(risk: Risk, reward: float) -> tuple[Risk, float]:
    """A risk and a factor that together are `risk` plus `reward` times the mean.

    Examples
    --------
    >>> from sorel import CVaR, Deviation
    >>> from sorel.estimators.portfolio_problems import with_reward
    >>> with_reward(CVaR(0.1), 1.0)
    (Mixture(components=(CVaR(alpha=0.1), Mean()), weights=(0.5, 0.5)), 2.0)
    >>> with_reward(Deviation(CVaR(0.1)), 0.25)
    (Deviation(risk=CVaR(alpha=0.1), share=0.75), 1.0)
    """
    if reward == 0.0:
        return risk, 1.0
    if isinstance(risk, Deviation):
        if reward < risk.share:
            return Deviation(risk.risk, risk.share - reward), 1.0
        return with_reward(risk.risk, reward - risk.share)
    factor = 1.0 + reward
    return Mixture((risk, Mean()), (1.0 / factor, reward / factor)), factor


@dataclass(frozen=True)
class Portfolio:
    """One portfolio and its certificate.

    Attributes
    ----------
    w : array of length d
        Weights of the assets.
    lam : array of length n
        The weighting of the scenarios that certifies them, without the reward's part.
    reward : float
        gamma, given or found for a target.
    risk, mean : float
        Risk of the losses, and mean return.
    objective, dual, gap, relative_gap : float
        Objective, a lower bound on its optimum, their difference, and that relative to the unit of
        the problem. With a target the objective has no reward in it.
    passes : float
        Passes over the scenarios.
    n_iter : int
        Outer iterations.
    converged : bool
        Whether the relative gap is at most the tolerance.
    status : str
        One sentence on how the fit ended.
    result : Result
        The run that found it: where the next one may start.
    """

    w: FloatArray
    lam: FloatArray
    reward: float
    risk: float
    mean: float
    objective: float
    dual: float
    gap: float
    relative_gap: float
    passes: float
    n_iter: int
    converged: bool
    status: str
    result: Result

    @property
    def cost(self) -> float:
        """Risk plus penalty: the objective without the reward."""
        return self.objective + self.reward * self.mean


class Portfolios:
    """The portfolio problems of one table of returns, for any reward and any target.

    Parameters
    ----------
    R : array or sparse matrix of shape (n, d)
        Returns: scenarios by assets.
    risk : Risk
        Risk of the losses; a :class:`~sorel.Deviation` is allowed.
    penalty : Penalty
        What :func:`portfolio_penalty` made.
    sample_weight, n_jobs
        As :class:`sorel.Problem` takes them.
    tol, max_passes, solver
        As :func:`sorel.solve` takes them; `max_passes` is the budget for each reward that is tried.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel import CVaR
    >>> from sorel.estimators.portfolio_problems import Portfolios, portfolio_penalty
    >>> R = np.array([[0.1, 0.0], [-0.2, 0.1], [0.4, 0.0], [0.1, 0.0]])
    >>> family = Portfolios(R, CVaR(0.5), portfolio_penalty(2))
    >>> family.with_target(0.05).w.round(6)
    array([0.333333, 0.666667])
    """

    def __init__(
        self,
        R: Any,
        risk: Risk,
        penalty: Penalty,
        *,
        sample_weight: FloatArray | None = None,
        tol: float = 1e-6,
        max_passes: float = 1000,
        solver: str | Solver = "auto",
        n_jobs: int | None = None,
    ) -> None:
        n = R.shape[0]
        self.R, self.risk, self.penalty, self.tol = R, risk, penalty, tol
        self.max_passes, self.solver = max_passes, solver
        weight = np.full(n, 1.0) if sample_weight is None else sample_weight
        self.omega = weight / weight.sum()
        self.means = np.asarray(R.T @ self.omega, dtype=np.float64)
        self.problem = Problem(
            R, np.zeros(n), risk=risk, loss="linear", penalty=penalty,
            sample_weight=sample_weight, n_jobs=n_jobs,
        )  # fmt: skip
        self.sample_weight = sample_weight
        self.found: list[Portfolio] = []

    def risk_of(self, w: FloatArray) -> float:
        """Risk of the losses of weights."""
        return float(self.risk(-np.asarray(self.R @ w, dtype=np.float64), self.sample_weight))

    def unit(self, objective: float, w: FloatArray) -> float:
        """What a gap of an objective at these weights is divided by."""
        return unit(self.problem, objective, self.problem.engine.point(w))

    def with_reward(self, reward: float, tol: float | None = None) -> Portfolio:
        """The portfolio of least risk minus `reward` times the mean return."""
        risk, factor = with_reward(self.risk, reward)
        problem = self.problem if reward == 0.0 else self.problem.with_risk(risk)
        problem = problem.with_penalty(_scaled(self.penalty, factor))
        # The part of the weighting that belongs to the risk; the rest is the mean's.
        share = 1.0 / factor
        start = None
        near = min(self.found, key=lambda p: abs(p.reward - reward), default=None)
        if near is not None:
            lam = share * near.lam + (1.0 - share) * self.omega
            start = replace(near.result, w=near.w, weights=lam)
        # Whether the portfolio asked for is solved is told by the caller.
        tol = self.tol if tol is None else tol
        result, _ = solve_quietly(problem, self.solver, tol, self.max_passes, warm_start=start)
        lam = np.maximum((result.weights - (1.0 - share) * self.omega) / share, 0.0)
        mean = float(self.means @ result.w)
        portfolio = Portfolio(
            result.w, lam, reward, self.risk_of(result.w), mean, factor * result.objective,
            factor * result.dual, factor * result.gap, result.relative_gap, result.passes,
            result.n_iter, result.converged, result.status, result,
        )  # fmt: skip
        self.found.append(portfolio)
        return portfolio

    def highest_mean(self) -> float:
        """The largest mean return of any weights; infinite where weights are unbounded."""
        top = self._top()
        return math.inf if top is None else float(self.means @ top)

    def _top(self) -> FloatArray | None:
        """Weights of the largest mean return."""
        if not self.penalty.compact:
            return None
        if isinstance(self.penalty, Budget):
            free = replace(self.penalty, l2=0.0, cost=0.0)
            return free.conjugate_gradient(self.means)
        return Simplex(0.0).conjugate_gradient(self.means)

    def with_target(self, target: float) -> Portfolio:
        """The portfolio of least risk whose mean return is at least `target`."""
        close = _ROUNDING * max(float(np.abs(self.means).max()), abs(target))
        highest = self.highest_mean()
        if target > highest + close:
            raise ValueError(
                f"target_return={target:g} is out of reach: the largest mean return of any "
                f"portfolio within the bounds is {highest:.8g}; lower the target"
            )
        target = min(target, highest)
        return _RewardSearch(self, target, close).run()


class _RewardSearch:
    """The reward that belongs to a target, from both sides."""

    def __init__(self, family: Portfolios, target: float, close: float) -> None:
        self.family, self.target, self.close = family, target, close
        self.passes, self.n_iter = 0.0, 0

    def run(self) -> Portfolio:
        family, target, status = self.family, self.target, ""
        least = next((p for p in family.found if p.reward == 0.0), None)
        if least is None:
            least = self._solve(0.0, family.tol)
        if self._reaches(least):
            return least
        below = max(filter(self._misses, family.found), key=lambda p: (p.mean, -p.cost))
        reached = filter(self._reaches, family.found)
        above = min(reached, key=lambda p: (p.mean, p.cost), default=None)
        above = above or self._start_above(least)
        share, tried, best = _SHARE, -1.0, (math.inf, above.w)
        for count in range(_MAX_REWARDS):
            best = min(best, (above.cost, above.w), self._blend(below, above), key=lambda b: b[0])
            # Every solved reward gives a bound.
            bound = max(family.found, key=lambda p: p.dual + p.reward * target)
            gap = max(best[0] - bound.dual - bound.reward * target, 0.0)
            size = family.unit(*best)
            if gap <= family.tol * size:
                break
            reward = self._next(below, above, bound, count)
            if abs(reward - tried) <= 1e-9 * abs(reward):
                share *= 0.1
            tried = reward
            # The same absolute gap, in the unit of the problem with the reward.
            _, factor = with_reward(family.risk, reward)
            scale = factor * family.unit((best[0] - reward * target) / factor, best[1])
            wanted = max(share * family.tol * size, _COARSE * gap) / max(scale, 1e-3 * size)
            new = self._solve(reward, min(max(wanted, _ROUNDING), 0.1 * _COARSE))
            status = new.status
            if self._reaches(new):
                above = new
            else:
                below = new
        objective, w = best
        relative, mean = gap / size, float(family.means @ w)
        converged = relative <= family.tol
        words = f"certified relative gap {relative:.2g} in {self.passes:.4g} passes"
        words = f"converged: {words}" if converged else f"not converged: {words} ({status})"
        return Portfolio(
            w, bound.lam, bound.reward, family.risk_of(w), mean, objective, objective - gap, gap,
            relative, self.passes, self.n_iter, converged, words,
            (above if above.result.passes else below).result,
        )  # fmt: skip

    def _reaches(self, portfolio: Portfolio) -> bool:
        return portfolio.mean >= self.target - self.close

    def _misses(self, portfolio: Portfolio) -> bool:
        return not self._reaches(portfolio)

    def _solve(self, reward: float, tol: float) -> Portfolio:
        new = self.family.with_reward(reward, tol)
        self.passes, self.n_iter = self.passes + new.passes, self.n_iter + new.n_iter
        return new

    def _start_above(self, below: Portfolio) -> Portfolio:
        """A portfolio that reaches the target: that of the largest mean, or one with a reward."""
        family, top, reward = self.family, self.family._top(), 1.0
        if top is not None:
            # A point of the frontier's upper side, which belongs to no finite reward.
            return replace(
                below, w=top, mean=float(family.means @ top), reward=0.0,
                objective=family.risk_of(top) + family.penalty.value(top),
                result=replace(below.result, w=top, passes=0.0),
            )  # fmt: skip
        while reward < 1e12:
            new = self._solve(reward, family.tol)
            if new.mean >= self.target:
                return new
            reward *= 8.0
        raise ValueError(f"target_return={self.target:g} is out of reach; lower the target")

    def _blend(self, below: Portfolio, above: Portfolio) -> tuple[float, FloatArray]:
        """Risk plus penalty, and weights, of the blend that has the return of the target."""
        family, distance = self.family, above.mean - below.mean
        if not distance > 0.0:
            return above.cost, above.w
        t = min(max((self.target - below.mean) / distance, 0.0), 1.0)
        w = (1.0 - t) * below.w + t * above.w
        return family.risk_of(w) + family.penalty.value(w), w

    def _next(self, below: Portfolio, above: Portfolio, bound: Portfolio, count: int) -> float:
        """The slope of the chord or, between two known rewards, where the return would fit."""
        distance = above.mean - below.mean
        if not distance > 0.0:
            return max(above.reward, below.reward, bound.reward)
        if count % 2 and above.reward > below.reward:
            part = (self.target - below.mean) / distance
            return below.reward + part * (above.reward - below.reward)
        return max((above.cost - below.cost) / distance, 0.0)


def _scaled(penalty: Penalty, factor: float) -> Penalty:
    """g / factor."""
    if factor == 1.0:
        return penalty
    if isinstance(penalty, Budget):
        return replace(penalty, l2=penalty.l2 / factor, cost=np.asarray(penalty.cost) / factor)
    return Simplex(penalty.l2 / factor)
