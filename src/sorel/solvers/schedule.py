"""The step eta of the augmented Lagrangian: how it grows, and when an inner problem is over.

An inner problem is a centre and an eta, solved by Newton steps; see :mod:`sorel.solvers.augmented`.
A larger eta needs fewer centres (Rockafellar 1976) and makes inner problems harder.
"""

from __future__ import annotations

from typing import NamedTuple

from sorel.certificate.rounding import ROUNDINGS

# The largest eta, in units of 1 / (spread of the losses): beyond it the weights would be nothing
# but the rounding of eta * l.
_MAX_ETA = 1.0 / ROUNDINGS

# Newton steps beyond which an inner problem is hard. Three times as many, and it is stuck.
_HARD_STEPS = 12

# Steps in a row, each cut short by its line search, after which it is stuck: new samples keep
# joining the ties then, because eta came too far ahead.
_MAX_SHORT_STEPS = 2

# Factor of eta after a hard or stuck inner problem, and of its growth after a stuck one.
_SHRINKAGE = 0.3

# The growth of eta never falls below this factor, begins there near a solution, and rises by it
# after each easy inner problem.
_LEAST_GROWTH = 2.0

# Factor of the damping after a full step, and what a damped or short step may leave to be gained.
_EASE = 0.1


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
    """

    first: float = 4.0
    warm: float = 100.0
    growth: float = 10.0
    easy: int = 3
    full: float = 0.5
    short: float = 0.1


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
        Whether the run starts with weights that are nearly right. Those that they tie are worth
        more than a large eta, which would tie others: it grows slowly then.

    Attributes
    ----------
    eta : float
        The step of the current inner problem. Infinite for weights that are those of the risk.

    Examples
    --------
    >>> from sorel.solvers.schedule import EtaSchedule, Pace
    >>> schedule = EtaSchedule(Pace(first=4.0, growth=10.0), scale=1.0, warm=False)
    >>> schedule.note(1.0)  # one full Newton step solved the inner problem
    >>> schedule.advance()
    40.0
    """

    def __init__(self, pace: Pace, scale: float, warm: bool) -> None:
        self._pace = pace
        self.eta = (pace.warm if warm else pace.first) / scale
        self._largest = max(_MAX_ETA / scale, self.eta)
        self._growth = _LEAST_GROWTH if warm else pace.growth
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
        return self._steps >= 3 * _HARD_STEPS or self._cuts >= _MAX_SHORT_STEPS

    def is_solved(
        self, gained: float, predicted: float, length: float, damping: float, noise: float
    ) -> bool:
        """Whether the inner problem is solved.

        `gained` is what the move of the weights has gained, `predicted` the decrease that the last
        step was to bring, of which `length` was taken, and `damping` that of this step. A step cut
        short has brought little of it, and a damped one predicted less than there is: both leave
        work. Gains below `noise` are rounding.
        """
        share = _EASE if self.is_short(length) or damping > _EASE else 1.0
        return self._steps > 0 and predicted <= max(share * gained, noise)

    def advance(self) -> float:
        """The eta of the next inner problem, when this one is solved."""
        if self._steps <= self._pace.easy and self._shortest >= self._pace.full:
            self.eta = min(self._growth * self.eta, self._largest)
            self._growth = min(_LEAST_GROWTH * self._growth, self._pace.growth)
        elif self._steps > _HARD_STEPS:
            self.eta *= _SHRINKAGE
        self._begin()
        return self.eta

    def retreat(self) -> float:
        """A smaller eta for an inner problem that is stuck."""
        self.eta *= _SHRINKAGE
        self._growth = max(_SHRINKAGE * self._growth, _LEAST_GROWTH)
        self._steps = self._cuts = 0
        return self.eta


def next_damping(damping: float, short: bool) -> float:
    """The damping of the next step: see :meth:`sorel.engines.Engine.curvature`.

    After a step cut short the curvature of the losses is taken from parabolas above them, and less
    so after every full step.
    """
    if short:
        return 1.0
    return _EASE * damping if damping > _EASE**2 else 0.0
