"""When a round of the augmented Lagrangian is over, and what its step eta becomes then.

A round is an inner problem: Newton steps for one centre and one eta. The rules look at a few
numbers, which stand in arrays, so that the loop in Python and the compiled one of small problems
follow the same functions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel._compiled import compiled, plain

__all__ = ["EtaSchedule", "Pace", "Rounds"]

FloatArray = NDArray[np.float64]

# The step beyond which the weights would be nothing but the rounding of eta * l, in units of
# 1 / (spread of the losses).
_MAX_ETA = 1e15

# eta grows after an easy inner problem and shrinks after one of many Newton steps. When so many
# steps in a row are cut short, new samples keep joining the ties: eta came too far ahead, goes back
# and grows more slowly for a while.
_HOPELESS = 40
_SHORT_STEPS = 2
_SHRINKAGE = 0.3
_LEAST_GROWTH = 2.0
_SLOWDOWN, _CONFIDENCE = 0.3, 1.2

# An inner problem is done when its last step promised less than what the move of the weights has
# gained, or, if that step was cut shorter or more cautious than this, less than this share of it.
FULL_ENOUGH, _CAUTIOUS, _CUT_SHARE = 0.2, 0.1, 0.03

# Where eta is infinite, and weights follow the ranks, a step is to promise less than this share of
# what the last one promised, and to be taken for this part at least. Else weights get a centre.
_FAST, _MOSTLY = 0.1, 0.5

# Relative to the objective, changes below this are rounding.
ROUNDING = 1e-15

# An objective that has come down to this share of what it was makes losses of another size.
FAR_BETTER = 0.01

# What steps by the ranks may still gain where a certificate is tried, in gaps wanted. Weights that
# stay put leave more to gain than those that follow.
_NEARLY_DONE = 0.5

# What the weights may still gain where a certificate is tried, in gaps wanted.
_NEARLY_STILL = 2.0

# Margins that are moved along and along drift away from X w: compute them afresh before the drift
# reaches this share of the tolerance.
DRIFT = 0.01
_EPS = float(np.finfo(np.float64).eps)

# After a step cut short the curvature of the losses is taken from parabolas above them, and less so
# after every full step.
_EASE, _NO_CAUTION = 0.1, 1e-3

# The numbers of a schedule, with what the last step promised and the one before it, and those of
# its pace.
ETA, LARGEST, GROWTH, STEPS, CUTS, SHORTEST, LATEST, EARLIER, N_SCHEDULE = range(9)
FIRST, WARM, FASTEST, EASY, FULL, SHORT, HARD = range(7)

# What ends rounds that are taken at once: the tolerance, the size from which on an objective is its
# own unit, the mean loss at zero margins, what steps may promise where a certificate is tried, and
# whether the risk has two levels; passes at which the run ends or a check is due, those before
# which none is to be refined, and the unit when the spread of the losses was measured.
TOL, LEAST_UNIT, ZERO_LOSS, PROMISING, TWO_LEVELS = range(5)
MOST_PASSES, NEXT_CHECK, RESUMED, MEASURED, N_LIMITS = range(5, 10)

# Where they stand. The augmented Lagrangian, lam . l and |q - q_k|^2 in it, and what the weights
# gain, what the last step promised and how much of it was taken, the caution of the next step and
# of the last; passes, rounds and moves of the margins.
VALUE, EXPECTATION, APART, GAINED, PREDICTED, TAKEN, CAUTION, USED = range(8)
PASSES, ROUNDS, MOVES = range(8, 11)
# What the loop itself keeps: what comes next, which of two places holds the point, its blocks, the
# moves per item that the next repair of the order may take, what the step under way promises, and
# what the weights had to gain at the end of the last round, where that was looked at. Whether one
# operation is all that is wanted, and whether margins at its end are to be computed from X. About
# what the next step will promise, where weights follow the ranks.
PHASE, SIDE, BLOCKS, BUDGET, PROMISED, LEFT, ALONE, AFRESH, REMAINS, N_PROGRESS = range(11, 21)

# What comes next: to see whether somebody is to look at the point, or only whether the round is
# over; to evaluate the point for another centre or eta; a Newton step; the search along it; to see
# what the parameters have to gain under weights that stay put.
LOOK, DECIDE, EVALUATE, STEP, SEARCH, GAUGE = range(6)


@compiled(inline=True)
def note_step(schedule: Any, pace: Any, length: float, predicted: float) -> None:
    """Take note of a Newton step, of which the part `length` was taken, and of its promise."""
    schedule[STEPS] += 1.0
    schedule[EARLIER] = schedule[LATEST]
    schedule[LATEST] = predicted
    schedule[SHORTEST] = min(schedule[SHORTEST], length)
    schedule[CUTS] = schedule[CUTS] + 1.0 if length < pace[SHORT] else 0.0


@compiled(inline=True)
def is_stuck(schedule: Any, pace: Any) -> bool:
    """Whether the inner problem is too hard at this eta."""
    return schedule[STEPS] >= max(_HOPELESS, pace[HARD]) or schedule[CUTS] >= _SHORT_STEPS


@compiled(inline=True)
def advance(schedule: Any, pace: Any) -> None:
    """Go on to the eta of the next inner problem, when this one is solved."""
    if schedule[STEPS] <= pace[EASY] and schedule[SHORTEST] >= pace[FULL]:
        schedule[ETA] = min(schedule[GROWTH] * schedule[ETA], schedule[LARGEST])
        schedule[GROWTH] = min(_CONFIDENCE * schedule[GROWTH], pace[FASTEST])
    elif schedule[STEPS] > pace[HARD]:
        schedule[ETA] *= _SHRINKAGE
    schedule[STEPS] = 0.0
    schedule[CUTS] = 0.0
    schedule[SHORTEST] = 1.0


@compiled(inline=True)
def retreat(schedule: Any) -> None:
    """Go back to a smaller eta for an inner problem that is stuck."""
    schedule[ETA] *= _SHRINKAGE
    schedule[GROWTH] = max(_SLOWDOWN * schedule[GROWTH], _LEAST_GROWTH)
    schedule[STEPS] = 0.0
    schedule[CUTS] = 0.0


@compiled(inline=True)
def leave_ranks(schedule: Any, pace: Any) -> None:
    """Go on from weights that follow the ranks to a finite eta, with them as the centre."""
    schedule[ETA] = pace[WARM] * schedule[LARGEST] / _MAX_ETA
    schedule[STEPS] = 0.0
    schedule[CUTS] = 0.0
    schedule[SHORTEST] = 1.0


@compiled(inline=True)
def has_slowed(schedule: Any, length: float) -> bool:
    """Whether steps by the ranks no longer gain digits: the order of single samples matters.

    `length` is the part of the last step that was taken.
    """
    slow = schedule[LATEST] > _FAST * schedule[EARLIER] or length < _MOSTLY
    return schedule[STEPS] > 0.0 and slow


@compiled(inline=True)
def is_solved(
    schedule: Any, moved: float, predicted: float, length: float, used: float, noise: float
) -> bool:
    """Whether the steps of an inner problem have come to their end.

    `moved` is what the move of the weights has gained, `predicted` what the last step promised, of
    which `length` was taken, and `used` the caution of that step. A step cut short has gained
    little of what it promised, and a cautious one promised less than there is: both leave work.
    """
    share = 1.0 if length >= FULL_ENOUGH and used <= _CAUTIOUS else _CUT_SHARE
    return schedule[STEPS] > 0.0 and predicted <= max(share * moved, noise)


@compiled(inline=True)
def is_ready(
    schedule: Any, moved: float, predicted: float, remains: float, target: float, promising: float,
    two_levels: bool,
) -> bool:  # fmt: skip
    """Whether a certificate may reach the gap wanted, for the steps promise `promising` of them.

    `remains` is about what the next step will promise, where weights follow the ranks.
    """
    if schedule[ETA] == math.inf:
        return remains <= _NEARLY_DONE * target
    # Under two levels the shortfall is about as much as the move of the weights has gained.
    still = not two_levels or moved <= _NEARLY_STILL * target
    return still and predicted <= promising * target


@compiled(inline=True)
def margin_rounding(zero_loss: float, unit: float) -> float:
    """Relative error of the losses from rounding each margin once: large near a perfect fit."""
    return _EPS * math.sqrt(max(1.0, zero_loss / unit))


@compiled(inline=True)
def next_caution(caution: float, short: bool) -> float:
    """The caution of the next step."""
    if short:
        return 1.0
    return _EASE * caution if caution > _NO_CAUTION else 0.0


class Rounds(NamedTuple):
    """Rounds that are to be taken at once: where they stand, and what ends them.

    Attributes
    ----------
    schedule, pace, limits, progress : array
        The numbers that are listed above.
    reach : array
        The largest size of each parameter on the way.
    """

    schedule: FloatArray
    pace: FloatArray
    limits: FloatArray
    progress: FloatArray
    reach: FloatArray


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
    numbers, pace : array
        All that the rules look at.

    Examples
    --------
    >>> from sorel.rounds import EtaSchedule, Pace
    >>> schedule = EtaSchedule(Pace(first=4.0, growth=10.0), scale=1.0, warm=False)
    >>> schedule.note(1.0)  # one full Newton step solved the inner problem
    >>> schedule.advance()
    40.0
    """

    def __init__(self, pace: Pace, scale: float, warm: bool, gentle: bool = False) -> None:
        growth = min(_LEAST_GROWTH, pace.growth) if gentle else pace.growth
        eta = (pace.warm if warm else pace.first) / scale
        self.numbers = np.array([eta, _MAX_ETA / scale, growth, 0.0, 0.0, 1.0, math.inf, math.inf])
        self.pace = np.array(pace, dtype=np.float64)

    @property
    def eta(self) -> float:
        """The step of the current inner problem."""
        return float(self.numbers[ETA])

    def note(self, length: float, predicted: float = math.inf) -> None:
        """Take note of a Newton step, of which the part `length` was taken, and of its promise."""
        _note_step(self.numbers, self.pace, length, predicted)

    def is_short(self, length: float) -> bool:
        """Whether a step counts as cut short."""
        return bool(length < self.pace[SHORT])

    def follow_ranks(self) -> None:
        """Begin with weights that follow the ranks of the losses: an eta that is infinite."""
        self.numbers[ETA] = math.inf

    @property
    def by_ranks(self) -> bool:
        """Whether the weights follow the ranks."""
        return bool(self.numbers[ETA] == math.inf)

    def has_slowed(self, length: float) -> bool:
        """Whether they should no longer: see the rule of that name."""
        return bool(_has_slowed(self.numbers, length))

    def leave_ranks(self, *, warm: bool = True) -> float:
        """The finite eta of the first inner problem after that, from where they led or not."""
        _leave_ranks(self.numbers, self.pace)
        if not warm:
            self.numbers[ETA] *= self.pace[FIRST] / self.pace[WARM]
        return self.eta

    def is_ready(
        self, moved: float, predicted: float, remains: float, target: float, promising: float,
        two_levels: bool,
    ) -> bool:  # fmt: skip
        """Whether a certificate may reach the gap wanted: see the rule of that name."""
        return bool(
            _is_ready(self.numbers, moved, predicted, remains, target, promising, two_levels)
        )

    @property
    def capped(self) -> bool:
        """Whether eta has come as far as rounding allows, for losses of the size it knows."""
        return bool(self.numbers[ETA] >= self.numbers[LARGEST])

    def rescale(self, scale: float) -> None:
        """Take note that the losses have another spread by now: after a far better fit, less."""
        self.numbers[LARGEST] = max(self.numbers[LARGEST], _MAX_ETA / scale)
        self.numbers[ETA] = max(self.numbers[ETA], self.pace[FIRST] / scale)

    @property
    def stuck(self) -> bool:
        """Whether the inner problem is too hard at this eta."""
        return bool(_is_stuck(self.numbers, self.pace))

    def is_solved(
        self, moved: float, predicted: float, length: float, used: float, noise: float
    ) -> bool:
        """Whether the inner problem is solved: see the rule of that name."""
        return bool(_is_solved(self.numbers, moved, predicted, length, used, noise))

    def advance(self) -> float:
        """The eta of the next inner problem, when this one is solved."""
        _advance(self.numbers, self.pace)
        return self.eta

    def retreat(self) -> float:
        """A smaller eta for an inner problem that is stuck."""
        _retreat(self.numbers)
        return self.eta


# A few numbers are not worth a call of compiled code.
_note_step, _is_stuck, _is_solved = plain(note_step), plain(is_stuck), plain(is_solved)
_advance, _retreat = plain(advance), plain(retreat)
_has_slowed, _leave_ranks, _is_ready = plain(has_slowed), plain(leave_ranks), plain(is_ready)
