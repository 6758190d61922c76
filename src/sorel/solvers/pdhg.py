"""Restarted Halpern primal-dual hybrid gradient on margins: products with X and nothing else.

    min_w max_s  sum_i omega_i s_i (X w)_i - R*(s) + g(w),     R(z) the risk of the losses at z,

    w+ = prox_{tau g}(w - tau X^T s),     s+ = prox_{sig R*}(s + sig X (2 w+ - w)),

the second by Moreau's identity from the pooled proximal map of R. With T(x) = (w+, s+), the iterate
is x <- (k+1)/(k+2) (2 T(x) - x) + 1/(k+2) x_0, and x_0 moves up when the residual |T(x) - x| has
fallen enough (Lu and Yang 2024; restarts: Applegate et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sorel._lib.floats import EPS
from sorel.engines.base import FloatArray, Splitting
from sorel.problem.problem import Problem
from sorel.solvers.admm import first_rho
from sorel.solvers.apd import CHECK_EVERY, Restarts, balanced
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_positive, proximal_step


class PDHG(FirstOrder):
    """First-order method of products with X and its transpose.

    An iteration is one of each, counted as a pass, as are the evaluation behind each check and the
    first estimate of the norm of X, which grows with what the steps show of it.

    Parameters
    ----------
    balance : float, optional
        Dual over primal step length, sig / tau. None begins with a guess from the curvature of the
        loss, and follows what the rounds measure; a number is kept as it is.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
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
        dual = watch.start_dual(point)
        split = engine.splitting()
        run.passes += 2
        yield from watch.check(point, dual)
        x = anchor = _Pair(point.w, split.vector(point.w), split.slopes(point, dual))
        norm = _first_norm(split, x)
        balance = self.balance
        if balance is None:
            balance = (first_rho(problem, run) * norm) ** 2
        restarts, k = Restarts(math.inf), 0
        while True:
            root = math.sqrt(balance)
            tau, sigma = 1.0 / (norm * root), root / norm
            moved = _step(problem, split, x, tau, sigma)
            run.passes += 1
            run.n_iter += 1
            change = _difference(split, moved, x)
            norm = max(norm, _seen_norm(split, change, moved.w))
            primal, dual_way = change.squares(split)
            residual = math.sqrt(root * primal + dual_way / root)
            if run.n_iter % CHECK_EVERY == 0 or run.exhausted:
                checked = watch.point(moved.w, "give a balance between primal and dual steps")
                run.passes += 1
                if checked is None:
                    return
                yield from watch.check(checked, split.weighting())
            if k == 0:
                restarts.begin(residual, run.n_iter)
            elif restarts.due(residual, run.n_iter, 0):
                if self.balance is None:
                    balance = balanced(balance, *_difference(split, moved, anchor).squares(split))
                x, anchor, k = moved, moved, 0
                continue
            x = _halpern(split, x, moved, anchor, 1.0 / (k + 2.0))
            k += 1


class _Pair(NamedTuple):
    """w, X w and s, or differences of them."""

    w: FloatArray
    margins: Any
    s: Any

    def squares(self, split: Splitting) -> tuple[float, float]:
        """|w|^2 and |s|^2."""
        return float(np.vdot(self.w, self.w)), split.dot(self.s, self.s)


def _step(problem: Problem, split: Splitting, x: _Pair, tau: float, sigma: float) -> _Pair:
    w = proximal_step(problem, x.w, split.adjoint(x.s), tau)
    margins = split.vector(w)
    v = split.combine((1.0 / sigma, x.s), (2.0, margins), (-1.0, x.margins))
    z = split.prox(v, sigma)
    return _Pair(w, margins, split.combine((sigma, v), (-sigma, z)))


def _halpern(split: Splitting, x: _Pair, moved: _Pair, anchor: _Pair, share: float) -> _Pair:
    factors = (2.0 * (1.0 - share), share - 1.0, share)
    return _combine(split, zip(factors, (moved, x, anchor), strict=True))


def _difference(split: Splitting, x: _Pair, y: _Pair) -> _Pair:
    return _combine(split, ((1.0, x), (-1.0, y)))


def _combine(split: Splitting, terms: Iterable[tuple[float, _Pair]]) -> _Pair:
    """The sum of factors times pairs."""
    factors, pairs = zip(*terms, strict=True)
    w, margins, s = (tuple(zip(factors, parts, strict=True)) for parts in zip(*pairs, strict=True))
    total = np.asarray(sum(factor * part for factor, part in w))
    return _Pair(total, split.combine(*margins), split.combine(*s))


def _seen_norm(split: Splitting, change: _Pair, w: FloatArray) -> float:
    """|X u| / |u| for a change u of w, which no norm of X is below; 0 where u is rounding."""
    square = float(np.vdot(change.w, change.w))
    if square <= EPS * float(np.vdot(w, w)):
        return 0.0
    return math.sqrt(split.dot(change.margins, change.margins) / square)


def _first_norm(split: Splitting, x: _Pair) -> float:
    """|X u| / |u| along the gradient at the start; 1 where it says nothing."""
    u = split.adjoint(x.s)
    margins = split.vector(u)
    square, image = float(np.vdot(u, u)), split.dot(margins, margins)
    return math.sqrt(image / square) if image > 0.0 else 1.0
