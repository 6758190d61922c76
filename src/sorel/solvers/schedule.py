"""The step eta of the augmented Lagrangian: how it grows, and when an inner problem is over.

An inner problem is a centre and an eta, solved by Newton steps; see
:mod:`sorel.solvers.augmented`. A larger eta needs fewer centres and harder inner problems.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["FULL_ENOUGH", "EtaSchedule", "Pace", "next_caution"]

# The largest eta, in units of 1 / (spread of the losses): beyond it the weights would be nothing
# but the rounding of eta * l.
_MAX_ETA = 1e15

# Newton steps after which an inner problem counts as stuck, and steps in a row that are cut short:
# new samples keep joining the ties then, because eta came too far ahead.
_HOPELESS = 40
_SHORT_STEPS = 2

# Factor of eta after a hard inner problem. After a stuck one its growth, too, is multiplied by
# _SLOWDOWN, but stays above _LEAST_GROWTH; every easy one multiplies it by _CONFIDENCE.
_SHRINKAGE = 0.3
_LEAST_GROWTH = 2.0
_SLOWDOWN, _CONFIDENCE = 0.3, 1.2

# An inner problem is solved when its last step promised less than what the move of the weights has
# gained, or less than _CUT_SHARE of it, if less than FULL_ENOUGH of that step was taken or its
# caution was above _CAUTIOUS.
FULL_ENOUGH, _CAUTIOUS, _CUT_SHARE = 0.2, 0.1, 0.03

# A certificate is tried when the weights may gain no more than _NEARLY_STILL gaps wanted, or, where
# they follow the ranks, a step no more than _NEARLY_DONE.
_NEARLY_STILL, _NEARLY_DONE = 2.0, 0.5

# Factor of the caution after a full step, and the caution that counts as none.
_EASE, _NO_CAUTION = 0.1, 1e-3


class Pace(NamedTuple):
    """How fast eta goes ahead, which is a matter of what a Newton step costs at a large eta.

    Attributes
    ----------
    first, warm : float
        First step from uniform weights and from those of a similar problem, in units of
        1 / (spread of the losses).
    growth : float
        Factor after an easy inner problem.
    easy : int
        Newton steps of an easy inner problem, at most.
    full : float
        Length of each of them, at least.
    short : float
        Length below which a step counts as cut short.
    hard : int
        Steps of an inner problem beyond which it counts as hard.
    """

    first: float = 4.0
    warm: float = 100.0
    growth: float = 10.0
    easy: int = 3
    full: float = 0.5
    short: float = 0.1
    hard: int = 12


class EtaSchedule:
    """The step eta of the weights, which adapts to what the inner problems cost.

    It grows after an easy inner problem and shrinks after a hard one. Where Newton steps are cut
    short again and again, eta came too far ahead: it goes back, and grows more slowly for a while.

    Parameters
    ----------
    pace : Pace
        How fast it may go.
    scale : float
        Spread of the losses; eta is measured in its inverse.
    warm : bool
        Whether the run starts near a solution.
    gentle : bool, default=False
        Whether eta should grow slowly at first: where the weights are nearly right, those that
        they tie are worth more than a large eta, which would tie others.

    Attributes
    ----------
    eta : float
        The step of the current inner problem. Infinite where the weights follow the ranks.

    Examples
    --------
    >>> from sorel.solvers.schedule import EtaSchedule, Pace
    >>> schedule = EtaSchedule(Pace(first=4.0, growth=10.0), scale=1.0, warm=False)
    >>> schedule.note(1.0)  # one full Newton step solved the inner problem
    >>> schedule.advance()
    40.0
    """

    def __init__(self, pace: Pace, scale: float, warm: bool, gentle: bool = False) -> None:
        self._pace = pace
        self.eta = (pace.warm if warm else pace.first) / scale
        self._largest = _MAX_ETA / scale
        self._growth = min(_LEAST_GROWTH, pace.growth) if gentle else pace.growth
        self._begin()

    def _begin(self) -> None:
        """Begin an inner problem: Newton steps, those cut short in a row, the shortest of all."""
        self._steps, self._cuts, self._shortest = 0, 0, 1.0

    def note(self, length: float) -> None:
        """Take note of a Newton step, of which the part `length` was taken."""
        self._steps += 1
        self._shortest = min(self._shortest, length)
        self._cuts = self._cuts + 1 if self.is_short(length) else 0

    def is_short(self, length: float) -> bool:
        """Whether a step counts as cut short."""
        return length < self._pace.short

    def follow_ranks(self) -> None:
        """Begin with weights that follow the ranks of the losses: an eta that is infinite."""
        self.eta = math.inf

    @property
    def by_ranks(self) -> bool:
        """Whether the weights follow the ranks."""
        return self.eta == math.inf

    def leave_ranks(self, *, warm: bool = True) -> float:
        """The finite eta of the first inner problem after that, from where they led or not."""
        self.eta = (self._pace.warm if warm else self._pace.first) * self._largest / _MAX_ETA
        self._begin()
        return self.eta

    @property
    def capped(self) -> bool:
        """Whether eta has come as far as rounding allows, for losses of the size it knows."""
        return self.eta >= self._largest

    def rescale(self, scale: float) -> None:
        """Take note that the losses have another spread by now: after a far better fit, less."""
        self._largest = max(self._largest, _MAX_ETA / scale)
        self.eta = max(self.eta, self._pace.first / scale)

    @property
    def stuck(self) -> bool:
        """Whether the inner problem is too hard at this eta."""
        return self._steps >= max(_HOPELESS, self._pace.hard) or self._cuts >= _SHORT_STEPS

    def is_solved(
        self, moved: float, predicted: float, length: float, used: float, noise: float
    ) -> bool:
        """Whether the inner problem is solved.

        `moved` is what the move of the weights has gained, `predicted` what the last step promised,
        of which `length` was taken, and `used` the caution of that step. A step cut short has
        gained little of what it promised, and a cautious one promised less than there is: both
        leave work. Gains below `noise` are rounding.
        """
        share = 1.0 if length >= FULL_ENOUGH and used <= _CAUTIOUS else _CUT_SHARE
        return self._steps > 0 and predicted <= max(share * moved, noise)

    def is_ready(
        self, moved: float, predicted: float, remains: float, target: float, promising: float,
        two_levels: bool,
    ) -> bool:  # fmt: skip
        """Whether a certificate may reach the gap `target`: steps promise `promising` of them.

        `remains` is about what the next step will promise, where weights follow the ranks.
        """
        if self.by_ranks:
            return remains <= _NEARLY_DONE * target
        # Under two levels the shortfall is about as much as the move of the weights has gained.
        still = not two_levels or moved <= _NEARLY_STILL * target
        return still and predicted <= promising * target

    def advance(self) -> float:
        """The eta of the next inner problem, when this one is solved."""
        if self._steps <= self._pace.easy and self._shortest >= self._pace.full:
            self.eta = min(self._growth * self.eta, self._largest)
            self._growth = min(_CONFIDENCE * self._growth, self._pace.growth)
        elif self._steps > self._pace.hard:
            self.eta *= _SHRINKAGE
        self._begin()
        return self.eta

    def retreat(self) -> float:
        """A smaller eta for an inner problem that is stuck."""
        self.eta *= _SHRINKAGE
        self._growth = max(_SLOWDOWN * self._growth, _LEAST_GROWTH)
        self._steps = self._cuts = 0
        return self.eta


def next_caution(caution: float, short: bool) -> float:
    """The caution of the next step: see :meth:`sorel.engines.Engine.hessian`.

    After a step cut short the curvature of the losses is taken from parabolas above them, and less
    so after every full step.
    """
    if short:
        return 1.0
    return _EASE * caution if caution > _NO_CAUTION else 0.0
