"""ADMM for rank-based losses, after Xiao, Ge, Jiang and Yan (2023): z = X w is split from w.

    w <- argmin_w  g(w) + rho/2 |X w - z + s/rho|^2,
    z <- argmin_z  risk of the losses at z  + rho/2 |z - v|^2,     v = X w + s/rho,
    s <- rho (v - z),

with the norm of the sample weights. The second line is exact, by pooling in the order of the
losses at v; the first is a ridge system, or a small quadratic problem under another penalty.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

from scipy.linalg.lapack import dpotrs

from sorel.engines.base import FloatArray, Splitting
from sorel.models.quadratic import _factor, minimize_quadratic
from sorel.problem.problem import Problem
from sorel.solvers.apd import CHECK_EVERY, balanced
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import FirstOrder, Watch, check_positive
from sorel.solvers.newton import MAX_SIZE

# Over-relaxation of X w (Boyd et al. 2011, section 3.4.3).
_RELAX = 1.6


class ADMM(FirstOrder):
    """Alternating directions with pooled losses.

    An iteration is one product with X and one with its transpose: a pass. The matrix X^T X of the
    first is another.

    Parameters
    ----------
    rho : float, optional
        Penalty on z - X w, in the norm of the sample weights. None begins with the curvature of the
        loss and follows the ways that z and s have gone; a number is kept as it is.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.ADMM(), tol=1e-6).converged
    True
    """

    name: ClassVar[str] = "admm"
    operations: ClassVar[tuple[str, ...]] = ("splitting",)
    compiled_penalty: ClassVar[bool] = False

    def __init__(self, rho: float | None = None) -> None:
        self.rho = check_positive("rho", rho)

    def obstacle(self, problem: Problem) -> str | None:
        size = problem.engine.size
        if size > MAX_SIZE:
            return f"builds a {size} x {size} matrix and takes at most {MAX_SIZE} parameters"
        return super().obstacle(problem)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        point = watch.start()
        dual = watch.start_dual(point)
        split = engine.splitting()
        gram = split.gram()
        run.passes += 2
        yield from watch.check(point, dual)
        rho = self.rho if self.rho is not None else first_rho(problem, run)
        step = _PrimalStep(problem, gram)
        w, s = point.w, split.slopes(point, dual)
        margins = split.vector(w)
        z = margins
        reference = z, s
        for k in itertools.count(1):
            # The gradient at w of rho/2 |X w - z + s/rho|^2.
            pull = split.adjoint(split.combine((rho, margins), (-rho, z), (1.0, s)))
            w = step(w, pull, rho)
            margins = split.vector(w)
            relaxed = split.combine((_RELAX, margins), (1.0 - _RELAX, z))
            v = split.combine((1.0, relaxed), (1.0 / rho, s))
            z = split.prox(v, rho)
            s = split.combine((rho, v), (-rho, z))
            run.passes += 1
            run.n_iter += 1
            if k % CHECK_EVERY == 0 or run.exhausted:
                moved = watch.point(w, f"lower rho={rho:.3g}")
                run.passes += 1
                if moved is None:
                    return
                yield from watch.check(moved, split.weighting())
                # Ever more rarely: under endless changes ADMM need not converge.
                check = k // CHECK_EVERY
                if self.rho is None and check & (check - 1) == 0:
                    rho = _rebalanced(split, (z, s), reference, rho)
                    reference = z, s


def first_rho(problem: Problem, run: Run) -> float:
    """The curvature of the loss; where it has none, a slope per spread of the losses."""
    curvature = problem.loss.curvature_bound
    if curvature > 0.0:
        return curvature
    return 1.0 / problem.loss_scale(problem.engine.point(run.w))


def _rebalanced(split: Splitting, now: Any, before: Any, rho: float) -> float:
    """rho on its way to |change of s| / |change of z|, at which both are equally far off."""
    z, s = (split.combine((1.0, a), (-1.0, b)) for a, b in zip(now, before, strict=True))
    return math.sqrt(balanced(rho**2, split.dot(z, z), split.dot(s, s)))


class _PrimalStep:
    """argmin_u  pull.(u - w) + rho/2 (u - w)^T gram (u - w) + g(u)."""

    def __init__(self, problem: Problem, gram: FloatArray) -> None:
        self._problem, self._gram = problem, gram
        self._factor: tuple[float, FloatArray] | None = None

    def __call__(self, w: FloatArray, pull: FloatArray, rho: float) -> FloatArray:
        penalty, d = self._problem.penalty, self._problem.n_features
        if not penalty.quadratic:
            return minimize_quadratic(rho * self._gram, pull, w, penalty, d)[0]
        if self._factor is None or self._factor[0] != rho:
            matrix = rho * self._gram
            matrix.flat[: d * len(w) : len(w) + 1] += penalty.l2
            # A shift, where rounding has lost the penalty, adds a proximal term to the step.
            self._factor = rho, _factor(matrix)[0]
        slope = pull.copy()
        slope[:d] += penalty.l2 * w[:d]
        return w - dpotrs(self._factor[1], slope, lower=1)[0]
