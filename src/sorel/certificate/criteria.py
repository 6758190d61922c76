"""What a gap is relative to, and how small it has to be.

The relative gap is gap / |F(w)|; for affine losses, whose objective may cancel, it is
gap / max(|F(w)|, mean absolute deviation of the losses at w). A problem is solved where that is at
most the tolerance, or where the fit is perfect: next to nothing is left of the loss of the best
constant model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sorel._lib.devices import to_numpy
from sorel.certificate.rounding import ROUNDINGS
from sorel.engines import trusting_engine
from sorel.problem.risks import Deviation, Mean

if TYPE_CHECKING:
    from sorel.engines.base import Point
    from sorel.problem.problem import Problem

# Gap of a perfect fit, in units of the loss of the best constant model. Margins of twice as many
# digits leave an objective of its root.
_PERFECT_GAP = 1e-12
_PERFECT_FIT = math.sqrt(_PERFECT_GAP)


def unit(problem: Problem, objective: float, point: Point) -> float:
    """What a gap is divided by to be relative: |F(w)|, or the spread of affine losses.

    Examples
    --------
    >>> import sorel
    >>> from sorel.certificate import unit
    >>> problem = sorel.Problem([[1.0], [2.0]], [1.0, 3.0])
    >>> unit(problem, -2.5, problem.engine.point([1.0]))
    2.5
    """
    size = abs(objective)
    return max(size, problem.engine.sizes(point).deviation) if problem.loss.affine else size


def relative(gap: float, unit: float) -> float:
    """gap / unit; 0 where there is no gap, whatever the unit.

    Examples
    --------
    >>> from sorel.certificate import relative
    >>> relative(1.0, 4.0), relative(0.0, 0.0), relative(1.0, 0.0)
    (0.25, 0.0, inf)
    """
    if gap == 0.0:
        return 0.0
    return gap / unit if unit > 0.0 else math.inf


def gap_wanted(problem: Problem, tol: float, unit: float) -> float:
    """The gap at which a problem is solved: `tol` times the unit, or that of a perfect fit.

    A `tol` of 0 asks for all that can be had.

    Examples
    --------
    >>> import sorel
    >>> from sorel.certificate import gap_wanted
    >>> problem = sorel.Problem([[1.0], [2.0]], [1.0, 3.0])
    >>> gap_wanted(problem, 1e-6, 2.0), gap_wanted(problem, 1e-6, 0.0)
    (2e-06, 5e-13)
    """
    wanted = tol * unit
    # The loss of a constant model takes some work, and hardly ever matters.
    if tol > 0.0 and (problem.loss.affine or unit < _PERFECT_FIT * problem.zero_loss):
        constant = problem.constant_loss
        if unit < _PERFECT_FIT * constant:
            wanted = max(wanted, _PERFECT_GAP * constant)
    return wanted


def constant_loss(problem: Problem) -> float:
    """Mean loss of the best constant model, whether or not an intercept is fitted.

    For affine losses, which have no best one, the spread of the losses at w = 0 or beside it.
    """
    engine = problem.engine.for_run()
    if problem.loss.affine:
        return problem.loss_scale(engine.point(np.zeros(engine.shape)))
    spec = engine.spec
    if spec.targets is not None:
        spec = replace(
            spec, targets=to_numpy(spec.targets), risk=Mean(), fit_intercept=True,
            sample_weight=problem.given_weight,
        )  # fmt: skip
        engine = trusting_engine(np.zeros((problem.n_samples, 1)), spec)
    elif not problem.fit_intercept:  # rows on a cluster
        return 0.0
    point = engine.point(np.zeros(engine.shape))
    best = engine.best_intercept(point, engine.uniform())
    least = 0.0 if best is None else engine.sizes(best).absolute
    # Targets that are all alike have no loss but rounding.
    return least if least > _PERFECT_GAP**2 * problem.zero_loss else 0.0


def vanishes(
    problem: Problem, objective: float, penalty: float, gap: float, rounding: float
) -> bool:
    """Whether nothing but rounding is left of the objective: a perfect fit as well.

    `penalty` is its share g(w), and `rounding` its error. Where targets are all alike, or the risk
    is a deviation of 0, no other model tells what is small, nor what a penalty is small against.
    """
    if isinstance(problem.risk, Deviation):
        perfect = problem.risk.share == 1.0 and objective - penalty <= rounding
        return perfect and gap <= _PERFECT_GAP * problem.largest_loss
    rounded, constant = max(objective, 0.5 * gap) <= rounding, problem.constant_loss
    if constant > 0.0:
        return rounded and gap <= _PERFECT_FIT * constant
    return rounded or gap <= _PERFECT_GAP**2 * problem.largest_loss


def noise(problem: Problem, unit: float) -> float:
    """Changes of an objective of that size that are rounding: large near a perfect fit.

    Each margin is rounded once, relative to targets whose loss at zero margins is known.
    """
    return ROUNDINGS * max(unit, math.sqrt(problem.zero_loss) * math.sqrt(unit))
