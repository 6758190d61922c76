"""Restarted Halpern primal-dual hybrid gradient on margins: products with X and nothing else.

    min_w max_s  sum_i omega_i s_i (X w)_i - R*(s) + g(w),     R(z) the risk of the losses at z,

    w+ = prox_{tau g}(w - tau X^T s),     s+ = prox_{sig R*}(s + sig X (2 w+ - w)),

the second by Moreau's identity from the pooled proximal map of R. With T(x) = (w+, s+), the iterate
is x <- (k+1)/(k+2) (2 T(x) - x) + 1/(k+2) x_0, and x_0 moves up when the residual |T(x) - x| has
fallen enough (Lu and Yang 2024; restarts: Applegate et al. 2021).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sorel.engines.base import FloatArray, Splitting
from sorel.problem.problem import Problem
from sorel.solvers.admm import first_rho
from sorel.solvers.apd import CHECK_EVERY, LONG_ROUND, NECESSARY_DECAY, SUFFICIENT_DECAY
from sorel.solvers.base import Iterate, Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_positive

# Steps of the power method for the norm of X.
_POWER_STEPS = 20

# Factor of its estimate, which is from below.
_NORM_SAFETY = 1.05


class PDHG(FirstOrder):
    """First-order method of products with X and its transpose.

    An iteration is one of each, counted as a pass, as is each product pair of the power method that
    begins a run and the evaluation behind each check.

    Parameters
    ----------
    balance : float, optional
        Dual over primal step length, sig / tau. None begins with a guess from the curvature of the
        loss, and follows what the rounds measure; a number is kept as it is.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.PDHG(), tol=1e-6).converged
    True
    """

    name: ClassVar[str] = "pdhg"
    operations: ClassVar[tuple[str, ...]] = ("splitting",)
    compiled_penalty: ClassVar[bool] = False

    def __init__(self, balance: float | None = None) -> None:
        self.balance = check_positive("balance", balance)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        point = watch.start()
        dual = run.dual if run.dual is not None else engine.worst_case(point)
        split = engine.splitting()
        run.passes += 1
        watch.saw((yield Iterate(point, dual, None, watch.refine())))
        norm = _NORM_SAFETY * _norm(problem, split, run)
        balance = self.balance
        if balance is None:
            balance = (first_rho(problem, run) * norm) ** 2
        x = _Pair(point.w, split.vector(point.w), split.slopes(point, dual))
        anchor, k, spent, first, last = x, 0, 0, math.inf, math.inf
        while True:
            root = math.sqrt(balance)
            tau, sigma = 1.0 / (norm * root), root / norm
            moved = _step(problem, split, x, tau, sigma)
            run.passes += 1
            run.n_iter += 1
            spent += 1
            norm = max(norm, _NORM_SAFETY * _seen_norm(split, x, moved))
            residual = _distance(split, x, moved, balance)
            if run.n_iter % CHECK_EVERY == 0 or run.exhausted:
                w = watch.point(moved.w, "give a balance between primal and dual steps")
                run.passes += 1
                if w is None:
                    return
                watch.saw((yield Iterate(w, split.weighting(), None, watch.refine())))
            if k == 0:
                first = residual
            done = residual <= SUFFICIENT_DECAY * first or (
                residual <= NECESSARY_DECAY * first and residual > last
            )
            if k > 0 and (done or k >= LONG_ROUND * spent):
                if self.balance is None:
                    balance = _rebalanced(split, anchor, moved, balance)
                x = anchor = moved
                k, last = 0, math.inf
                continue
            last = residual
            share = 1.0 / (k + 2.0)
            x = _halpern(split, x, moved, anchor, share)
            k += 1


class _Pair(NamedTuple):
    """w, X w and s."""

    w: FloatArray
    margins: Any
    s: Any


def _step(problem: Problem, split: Splitting, x: _Pair, tau: float, sigma: float) -> _Pair:
    w = x.w - tau * split.adjoint(x.s)
    coef = problem.coefficients(w)
    coef[...] = problem.penalty.prox(coef, tau)
    margins = split.vector(w)
    v = split.combine((1.0 / sigma, x.s), (2.0, margins), (-1.0, x.margins))
    z = split.prox(v, sigma)
    return _Pair(w, margins, split.combine((sigma, v), (-sigma, z)))


def _halpern(split: Splitting, x: _Pair, moved: _Pair, anchor: _Pair, share: float) -> _Pair:
    factors = (2.0 * (1.0 - share), share - 1.0, share)
    terms = (moved, x, anchor)
    w = sum(factor * pair.w for factor, pair in zip(factors, terms, strict=True))
    margins = split.combine(*zip(factors, (pair.margins for pair in terms), strict=True))
    s = split.combine(*zip(factors, (pair.s for pair in terms), strict=True))
    return _Pair(np.asarray(w), margins, s)


def _distance(split: Splitting, x: _Pair, y: _Pair, balance: float) -> float:
    """The norm in which a step is never longer than the one before."""
    w = y.w - x.w
    s = split.combine((1.0, y.s), (-1.0, x.s))
    root = math.sqrt(balance)
    return math.sqrt(root * float(np.vdot(w, w)) + split.dot(s, s) / root)


def _seen_norm(split: Splitting, x: _Pair, y: _Pair) -> float:
    """|X (w - w')| / |w - w'|, which no norm of X is below."""
    w = y.w - x.w
    square = float(np.vdot(w, w))
    if square == 0.0:
        return 0.0
    margins = split.combine((1.0, y.margins), (-1.0, x.margins))
    # Differences of margins near the optimum are rounding.
    if square <= 1e-24 * float(np.vdot(y.w, y.w)):
        return 0.0
    return math.sqrt(split.dot(margins, margins) / square)


def _rebalanced(split: Splitting, anchor: _Pair, x: _Pair, balance: float) -> float:
    """The geometric mean of the balance and of what a round has measured."""
    w = x.w - anchor.w
    s = split.combine((1.0, x.s), (-1.0, anchor.s))
    primal, dual = float(np.vdot(w, w)), split.dot(s, s)
    if not (primal > 0.0 and dual > 0.0):
        return balance
    return math.sqrt(balance * dual / primal)


def _norm(problem: Problem, split: Splitting, run: Run) -> float:
    """The largest singular value of X in the norm of the sample weights, from below."""
    v = np.random.default_rng(0).standard_normal(problem.engine.shape)
    value = 0.0
    for _ in range(_POWER_STEPS):
        v /= np.linalg.norm(v)
        v = split.adjoint(split.vector(v))
        value = float(np.linalg.norm(v))
        run.passes += 1
        if value == 0.0:
            return 1.0
    return math.sqrt(value)
