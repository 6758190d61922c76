"""Portfolios of least risk: the losses of weights w in the scenarios R are u = -R w.

    min_w  R(u) + gamma mean(u) + g(w),    g a set of weights with a budget, a ridge and costs

A reward gamma for the mean return is a risk again, up to a factor: (1 + gamma) times the mixture of
R and the mean. A least mean return T instead of a reward is a matter of the right gamma, since

    min { R(u) + g(w) : mean return >= T }
        =  max_gamma  [ min_w R(u) + gamma mean(u) + g(w) ] + gamma T.

Between two rewards whose optima lie on both sides of T, a blend of the two portfolios has the
return T. The chord through them has the slope of the next reward to try, and every solved reward
gives a bound (Kelley's cutting planes, 1960, in one variable): the blend is certified like any
other optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel.certificate import relative, unit
from sorel.problem.penalties import Budget, Penalty, Simplex
from sorel.problem.problem import Problem
from sorel.problem.risks import Deviation, Mean, Mixture, Risk
from sorel.solvers import Solver
from sorel.solvers.solve import Result, solve_quietly

FloatArray = NDArray[np.float64]

# Rewards that are tried for one target.
_MAX_REWARDS = 60

# Share of the gap to which the next reward is solved.
_SHARE = 0.1

# A mean return within this share of the largest one counts as reached.
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
class Portfolio(Result):
    """One portfolio `w` and its certificate, in the units of the user.

    `weights` is the weighting of the scenarios that certifies it, without the reward's part. With a
    target the objective has no reward in it.

    Attributes
    ----------
    reward : float
        gamma, given or found for a target.
    risk, mean : float
        Risk of the losses, and mean return.
    """

    reward: float = 0.0
    risk: float = 0.0
    mean: float = 0.0

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
        if self.found:
            closest = min(self.found, key=lambda p: abs(p.reward - reward))
            lam = share * closest.weights + (1.0 - share) * self.omega
            start = replace(closest, weights=lam)
        # Whether the portfolio asked for is solved is told by the caller.
        tol = self.tol if tol is None else tol
        result, _ = solve_quietly(problem, self.solver, tol, self.max_passes, warm_start=start)
        lam = np.maximum((result.weights - (1.0 - share) * self.omega) / share, 0.0)
        scaled = {name: factor * getattr(result, name) for name in ("objective", "dual", "gap")}
        portfolio = self._portfolio(result, weights=lam, reward=reward, **scaled)
        self.found.append(portfolio)
        return portfolio

    def _portfolio(self, result: Result, **changed: Any) -> Portfolio:
        """A result as a portfolio, with its own risk and mean return."""
        known = {**vars(result), **changed}
        w = known["w"]
        return Portfolio(**{**known, "risk": self.risk_of(w), "mean": float(self.means @ w)})

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
        return self._search(min(target, highest), close)

    def _search(self, target: float, close: float) -> Portfolio:
        """The portfolio of a target, from those of rewards on both sides of it."""
        known = len(self.found)
        least = next((p for p in self.found if p.reward == 0.0), None) or self.with_reward(0.0)
        reached = target - close
        if least.mean >= reached:
            return least
        below = max((p for p in self.found if p.mean < reached), key=lambda p: (p.mean, -p.cost))
        richer = (p for p in self.found if p.mean >= reached)
        above = min(richer, key=lambda p: (p.mean, p.cost), default=None)
        above = above or self._start_above(target, least)
        best = above.cost, above.w
        for _ in range(_MAX_REWARDS):
            best = min(best, self._blend(target, below, above), key=lambda pair: pair[0])
            # Every solved reward gives a bound.
            bound = max(self.found, key=lambda p: p.dual + p.reward * target)
            gap = max(best[0] - bound.dual - bound.reward * target, 0.0)
            size = self.unit(*best)
            if gap <= self.tol * size:
                break
            # The slope of the chord.
            rise, distance = above.cost - below.cost, above.mean - below.mean
            reward = max(rise / distance, 0.0) if distance > 0.0 else bound.reward
            # The same absolute gap, in the unit of the problem with the reward.
            _, factor = with_reward(self.risk, reward)
            scale = factor * self.unit((best[0] - reward * target) / factor, best[1])
            new = self.with_reward(reward, _SHARE * min(relative(gap, scale), _SHARE))
            if new.mean >= reached:
                above = new
            else:
                below = new
        objective, w = best
        tried, achieved = self.found[known:], relative(gap, size)
        passes, n_iter = sum(p.passes for p in tried), sum(p.n_iter for p in tried)
        status = f"certified relative gap {achieved:.2g} in {passes:.4g} passes"
        converged = achieved <= self.tol
        status = f"converged: {status}" if converged else f"not converged: {status} ({new.status})"
        return self._portfolio(
            bound, w=w, objective=objective, dual=objective - gap, gap=gap, relative_gap=achieved,
            passes=passes, n_iter=n_iter, converged=converged, status=status,
        )  # fmt: skip

    def _start_above(self, target: float, least: Portfolio) -> Portfolio:
        """A portfolio that reaches the target: that of the largest mean, or one with a reward."""
        top, reward = self._top(), 1.0
        if top is not None:
            # A point of the frontier's upper side, which belongs to no finite reward.
            return self._portfolio(least, w=top, objective=self._cost(top))
        while reward < 1e12:
            new = self.with_reward(reward)
            if new.mean >= target:
                return new
            reward *= 8.0
        raise ValueError(f"target_return={target:g} is out of reach; lower the target")

    def _cost(self, w: FloatArray) -> float:
        return self.risk_of(w) + self.penalty.value(w)

    def _blend(self, target: float, below: Portfolio, above: Portfolio) -> tuple[float, FloatArray]:
        """Risk plus penalty, and weights, of the blend that has the return of the target."""
        distance = above.mean - below.mean
        t = min(max((target - below.mean) / distance, 0.0), 1.0) if distance > 0.0 else 1.0
        w = (1.0 - t) * below.w + t * above.w
        return self._cost(w), w


def _scaled(penalty: Penalty, factor: float) -> Penalty:
    """g / factor."""
    if factor == 1.0:
        return penalty
    if isinstance(penalty, Budget):
        return replace(penalty, l2=penalty.l2 / factor, cost=np.asarray(penalty.cost) / factor)
    return Simplex(penalty.l2 / factor)
