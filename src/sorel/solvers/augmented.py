"""Augmented Lagrangian on the weights: the outer loop that the second-order methods share.

With a centre q_k and a step eta, the inner problem

    min_w  Phi(w) = max_q [ q . l(w) - |q - q_k|^2 / (2 eta) ] + g(w)

is convex with a continuous gradient. Its maximiser is one projection, and the projection is
piecewise linear, so Phi has a generalised Hessian: the curvature of the losses under q plus, inside
each block that the projection pools, eta times the covariance of the loss gradients. The centre
then moves to the maximiser. Few centres are needed when eta is large; few Newton steps when it is
small. The step adapts to what the last inner problem cost.

With an infinite eta, Phi is the objective itself, and the maximiser the weights of the ranks. A
method that knows how these follow the losses begins so, and needs no centre where that leads on.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from sorel.certificate import Path, gap_wanted, noise, unit
from sorel.engines.base import Dual, Engine, FloatArray, Point
from sorel.line_search import MAX_TRIALS, next_length
from sorel.penalties import Penalty
from sorel.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run, Solver
from sorel.solvers.schedule import FULL_ENOUGH, EtaSchedule, Pace, next_caution

# In units of 1 / (spread of the losses): the step that finds weights for parameters of a similar
# problem.
_NEAR_ETA = 10.0

# So many idle centres end a run.
_MAX_IDLE = 4

# Margins are computed afresh after a certificate of which rounding errors are so large a share of
# the gap wanted.
_BLUR = 0.1

# Passes after which a check is made though it will hardly succeed: others may want to step in.
HEARTBEAT = 50

# A trial whose losses overflow is followed by one at this share of its length.
_OVERFLOW = 0.1

# How often the bracket of a line search is halved, in powers of ten, after its other trials. Where
# margins of 1e7 meet an exponential, the derivatives at its ends differ by so much that a secant
# through them hardly moves one of them, and the minimum lies at a kink between them.
_HALVINGS = 50

# Losses that differ by less, relative to them, count as equal. The eta at which they all but stay
# so, relative to their inverse, and what is left of the curvature at least.
_LEVEL, _LEVEL_ETA, _LEAST_SHARE = 1e-12, 1e6, 1e-3

# The bracket of the certificate, relative to the gap wanted, at which weights for such losses are
# worth a check, and how many steps in a row may fail to halve it.
_WORTH_REFINING, _MAX_FAILURES = 100.0, 2

# An objective that has come down to this share of what it was makes losses of another size.
_FAR_BETTER = 0.01

# Margins that are moved along and along drift away from X w: compute them afresh before the drift
# reaches this share of the tolerance.
_DRIFT = 0.04


class CostlyError(Exception):
    """Steps of this kind would cost more than those of another: `auto` knows which."""


class Settled(NamedTuple):
    """The augmented Lagrangian at a point: its maximiser q, q . l, |q - q_k|^2, the gradient."""

    dual: Dual
    expected: float
    distance: float
    gradient: FloatArray


def settle(
    engine: Engine, point: Point, center: Dual, eta: float, dual: Dual | None = None
) -> Settled:
    """The augmented Lagrangian at a point; `dual` is its maximiser where that is known."""
    if dual is None:
        dual = engine.dual_step(center, point, eta)
    distance = engine.differences(dual, center).weights if eta > 0.0 else 0.0
    return Settled(dual, engine.expected(point, dual), distance, engine.gradient(point, dual))


class State:
    """Phi and its gradient at one point, for one centre and one eta (0: the weights stay put)."""

    __slots__ = (
        "center", "dual", "eta", "gradient", "length", "moved", "penalty", "point", "predicted",
        "problem", "remains", "secants", "value",
    )  # fmt: skip

    def __init__(
        self,
        problem: Problem,
        point: Point,
        center: Dual,
        eta: float,
        settled: Settled | None = None,
    ) -> None:
        if settled is None:
            settled = settle(problem.engine, point, center, eta)
        self.problem, self.point, self.center, self.eta = problem, point, center, eta
        self.dual, expected, distance, self.gradient = settled
        self.moved = distance / (2 * eta) if eta > 0 else 0.0
        self.penalty = problem.penalty_value(point.w)
        self.value = expected - self.moved + self.penalty
        # What the Newton step that led here was to gain (what remains is far less), and the part of
        # it that was taken.
        self.predicted, self.length = np.inf, 1.0
        # About what the next one is to gain, where the weights follow the ranks, and what the last
        # ones have told of the curvature, where they share a matrix.
        self.remains = np.inf
        self.secants: tuple[Secant, ...] = ()

    def is_level(self) -> bool:
        """Whether the weights may change, and all losses are equal, as those of labels are at 0."""
        problem, engine = self.problem, self.problem.engine
        if problem.has_fixed_weights or not problem.loss.is_classifier or np.any(self.point.w):
            return False
        return engine.shortfall(self.point, self.dual) < _LEVEL * self.value

    def fenchel_young(self) -> float:
        """The second bracket of the certificate, up to the choice of the intercept."""
        problem = self.problem
        return problem.penalty.fenchel_young(
            problem.coefficients(self.point.w), -problem.coefficients(self.gradient)
        )


class Secant(NamedTuple):
    """A step, the change of the gradient along it, and their product."""

    step: FloatArray
    change: FloatArray
    bend: float


class Direction(NamedTuple):
    """A step, minus the slope of Phi along it, and the decrease that its model predicts."""

    delta: FloatArray
    descent: float
    decrease: float


@dataclass(slots=True)
class Progress:
    """How far the rounds of a run have come, beside the state.

    Attributes
    ----------
    schedule : EtaSchedule
        The step of the weights.
    path : Path
        How the margins of the state were moved since they were computed from X.
    measured : float
        The unit of the gap when the spread of the losses was last measured.
    checked, resumed : float
        Passes at the last check, and those before which no certificate is to be refined.
    caution, used : float
        Of the next step, and of the last one; see Engine.hessian.
    idle : int
        Rounds in a row that have changed nothing.
    blurred : bool
        Whether rounding errors of the margins were a large part of the last certificate.
    coarse : bool
        Whether they ever were, so that certificates tell more than steps do.
    """

    schedule: EtaSchedule
    path: Path
    measured: float
    checked: float
    resumed: float = 0.0
    caution: float = 0.0
    used: float = 0.0
    idle: int = 0
    blurred: bool = False
    coarse: bool = False

    def note_reply(self, passes: float, spent: float) -> None:
        """Take note of a certificate that was to be refined: no more goes there than to steps."""
        self.checked, self.resumed = passes, passes + spent


class AugmentedLagrangian(Solver):
    """Outer loop and line search; a subclass says how to find a direction."""

    pace: ClassVar[Pace] = Pace()

    # A refined certificate costs a Hessian, or many products with it: it is tried once a step
    # promised no more than this multiple of the gap wanted.
    promising: ClassVar[float] = 10.0

    # Whether a step takes many products, and no matrix.
    by_products: ClassVar[bool] = False

    @abstractmethod
    def direction(self, state: State, run: Run, caution: float) -> Direction:
        """A Newton direction for Phi at the state; see Engine.hessian for `caution`."""

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine = problem.engine
        point, path = engine.point(run.w), Path(run.w)
        run.passes += 1
        given = run.is_weighted
        by_ranks = (run.by_ranks or not given) and self.follows_ranks(problem)
        center = engine.uniform() if by_ranks else self._first_center(problem, point, run)
        if run.watched and not given:
            yield Iterate(point, engine.uniform())
        if not given and not run.near:
            # A step for the plain average brings the losses to their final scale.
            if problem.fit_intercept and not problem.loss.curvature_bound < np.inf:
                # Newton steps climb down an exponential one by one.
                point = engine.best_intercept(point, center) or point
                path.move(point.w)
            start = State(problem, point, center, 0.0)
            level = start.is_level()
            likely = level or not problem.penalty.quadratic
            if likely and start.fenchel_young() <= problem.gap_wanted(run.tol, start.value, point):
                # Best for the plain average, and so perhaps for the risk: all coefficients rest.
                yield Iterate(point, center if level else engine.worst_case(point))
            try:
                if level:
                    del point
                    direction = self.direction(start, run, 1.0)
                    yield from self._rest(start, direction, run)
                    point = self._follow(start, direction, run).point
                else:
                    point = self.first_step(start, run).point
            except np.linalg.LinAlgError:
                run.note = "the losses overflow at the start; scale the columns"
                return
            path.move(point.w)
            del start
        schedule = EtaSchedule(
            self.pace, problem.loss_scale(point), run.near or given, gentle=given
        )
        if by_ranks:
            schedule.follow_ranks()
        state = State(problem, point, center, schedule.eta)
        # Vectors of length n: nothing but the state may hold them.
        del point, center
        if not by_ranks:
            run.dual = None
        progress = Progress(schedule, path, unit(problem, state.value, state.point), run.passes)
        while not run.exhausted:
            path = progress.path
            run.latest = Iterate(state.point, state.dual, state.gradient, np.inf, path)
            size = unit(problem, state.value, state.point)
            target, rounded = gap_wanted(problem, run.tol, size), noise(problem, size)
            if progress.blurred or rounded * path.moves > _DRIFT * run.tol * size:
                fresh = State(problem, engine.point(state.point.w), state.center, state.eta)
                fresh.predicted, fresh.length = state.predicted, state.length
                fresh.remains, fresh.secants = state.remains, state.secants
                state, path = fresh, Path(state.point.w)
                progress.path, progress.blurred = path, False
            if schedule.by_ranks:
                self.gauge(state, run)
            ready = schedule.is_ready(
                state.moved, state.predicted, state.remains, target, self.promising,
                problem.has_two_levels,
            )  # fmt: skip
            if ready and run.passes >= progress.resumed:
                reply = yield Iterate(state.point, state.dual, state.gradient, target, path)
                progress.note_reply(run.passes, reply.passes)
                progress.blurred = path.moves > 0 and reply.rounding > _BLUR * target
                progress.coarse = progress.coarse or progress.blurred
            elif (
                run.wants_check
                or run.passes > progress.checked + HEARTBEAT
                or state.fenchel_young() <= target
            ):
                yield Iterate(state.point, state.dual, state.gradient, path=path)
                progress.checked = run.passes
            solved = schedule.is_solved(
                state.moved, state.predicted, state.length, progress.used, rounded
            )
            if schedule.by_ranks:
                if solved or self.has_slowed(state, run):
                    state = self._leave_ranks(state, run, schedule)
            elif solved:
                run.n_iter += 1
                still = max(state.moved, state.predicted) <= rounded
                progress.idle = progress.idle + 1 if still else 0
                if progress.idle > _MAX_IDLE:
                    break
                if progress.idle == 1 and run.passes >= progress.resumed:
                    # As good as it gets: what a larger eta makes of the weights may be rounding.
                    reply = yield Iterate(state.point, state.dual, state.gradient, np.inf, path)
                    progress.note_reply(run.passes, reply.passes)
                center = state.dual
                if schedule.capped or size < _FAR_BETTER * progress.measured:
                    schedule.rescale(problem.loss_scale(state.point))
                    progress.measured = size
                state = State(problem, state.point, center, schedule.advance())
                del center
            elif schedule.stuck:
                state = State(problem, state.point, state.center, schedule.retreat())
            progress.used = progress.caution
            try:
                state = self._step(state, run, progress.caution)
            except np.linalg.LinAlgError:
                # Beyond what rounding allows, the curvature may have no meaning left.
                break
            schedule.note(state.length)
            # A step with a shared matrix may be short because the weights follow fast.
            short = schedule.is_short(state.length) and not state.secants
            progress.caution = next_caution(progress.caution, short)
            path.move(state.point.w)
        if not run.exhausted:
            run.note = "rounding errors allow no further progress"
        yield Iterate(state.point, state.dual, state.gradient, np.inf, progress.path)

    def follows_ranks(self, problem: Problem) -> bool:
        """Whether the first weights are those of the ranks, as though they changed smoothly."""
        return False

    def gauge(self, state: State, run: Run) -> None:
        """Tell what remains to be gained where the weights follow the ranks, if that is cheap."""
        return None

    def has_slowed(self, state: State, run: Run) -> bool:
        """Whether steps by the ranks gain so little that the weights had better have a centre."""
        return True

    def is_astray(self, state: State) -> bool:
        """Whether steps by the ranks have come nowhere, and weights had better start anew."""
        return False

    @staticmethod
    def _first_center(problem: Problem, point: Point, run: Run) -> Dual:
        """The weights that the run came with, those for parameters nearby, or equal ones."""
        engine = problem.engine
        if run.dual is not None:
            return run.dual
        center = engine.uniform()
        if not run.near:
            return center
        near = engine.dual_step(center, point, _NEAR_ETA / problem.loss_scale(point))
        return near

    def _leave_ranks(self, state: State, run: Run, schedule: EtaSchedule) -> State:
        """The state after weights that followed the ranks, with a centre."""
        run.n_iter += 1
        problem = state.problem
        if self.is_astray(state):
            warm = run.is_weighted or run.near
            center = self._first_center(problem, state.point, run)
        else:
            warm, center = True, state.dual
        run.dual = None
        return State(problem, state.point, center, schedule.leave_ranks(warm=warm))

    def first_step(self, state: State, run: Run) -> State:
        """A state near the minimum of the plain average, from where the run starts."""
        return self._step(state, run, 1.0)

    def resting(self) -> AugmentedLagrangian:
        """The method whose steps find weights for which all coefficients rest."""
        return self

    def _rest(self, start: State, direction: Direction, run: Run) -> Iterates:
        """Look for weights that make a start of equal losses the solution; else yield nothing.

        All weightings attain the risk there, so the start is the solution if one of them balances
        the slopes of the losses. For noisy labels and a risk of the tail that is the rule. With a
        large eta Phi sees the losses as linear, and where it is least the weights are such, if
        there are any, and nearest to the uniform ones. The step for the plain average leads there
        where no weight comes to a limit, since slopes and curvature at the start are of one size.
        """
        problem, engine = start.problem, start.problem.engine
        rounded, eta = noise(problem, start.value), _LEVEL_ETA / start.value
        # The weights know the losses less their mean, which takes a share of the curvature away.
        share = 1.0 / max(1.0 - direction.descent, _LEAST_SHARE)
        delta, change = direction.delta, engine.direction(direction.delta)
        near = engine.moved(start.point, delta, change, share / eta)
        del change
        run.passes += 1
        if engine.risk(near) + problem.penalty_value(near.w) < start.value - rounded:
            return
        # The margins of the start cost next to nothing, and are not kept beside those of the steps.
        w = start.point.w
        steps = self._balance(start, w, State(problem, near, start.center, eta), run)
        del near, start.point
        yield from steps
        start.point = engine.point(w)

    def _balance(self, start: State, w: FloatArray, state: State, run: Run) -> Iterates:
        """Steps to the weights that make w the solution, as long as there may be such."""
        problem, engine, method = start.problem, start.problem.engine, self.resting()
        target, eta = gap_wanted(problem, run.tol, start.value), state.eta
        # No weighting is further away from the uniform one than this, so that Phi tells the risk.
        off = (1.0 / engine.spec.risk.effective_share(engine.n_samples) - 1.0) / (2.0 * eta)
        first, least, failures = np.inf, np.inf, 0
        while failures <= _MAX_FAILURES and not run.exhausted:
            slope = problem.coefficients(state.gradient)
            bracket = problem.penalty.fenchel_young(problem.coefficients(w), -slope)
            if method.by_products and problem.penalty.quadratic and bracket > first:
                # Most steps that lead to such weights come nearer to them from the start, and
                # those by products cost too much for the others.
                return
            if first == np.inf:
                first = bracket
            if bracket <= _WORTH_REFINING * target:
                point = engine.point(w)
                gradient = engine.gradient(point, state.dual)
                run.passes += 1
                yield Iterate(point, state.dual, gradient, target)
                del point
            failures = 0 if bracket <= 0.5 * least else failures + 1
            least = min(bracket, least)
            try:
                state = method._step(state, run, 0.0)
            except CostlyError:
                return
            # Steps are cut short where weights come to their limits: there are no such weights.
            if state.length < FULL_ENOUGH or state.value + off < start.value - target:
                return

    def _step(self, state: State, run: Run, caution: float) -> State:
        """The state after one Newton step with line search."""
        return self._follow(state, self.direction(state, run, caution), run)

    def _follow(self, state: State, direction: Direction, run: Run) -> State:
        """The state after a line search along a direction."""
        point, settled, length = self._line_search(state, direction)
        run.passes += 1
        new = State(state.problem, point, state.center, state.eta, settled)
        new.predicted, new.length = max(direction.decrease, 0.0), length
        return new

    def _line_search(self, state: State, direction: Direction) -> tuple[Point, Settled, float]:
        """A step near the minimum along the direction, by its derivative.

        Phi is convex and its derivative costs no product with X, so a zero of the derivative is
        the better target: with large eta it has kinks at which a test on values stops short. Most
        steps are 1 or less. One is longer where Phi still falls at least half as fast there as at
        the start: far from the minimum, losses that grow like a line or an exponential have a
        curvature that tells little of the way to go.
        """
        problem, engine = state.problem, state.problem.engine
        point, center, eta = state.point, state.center, state.eta
        descent = direction.descent
        if not descent > 0.0:
            return point, settle(engine, point, center, eta, state.dual), 1.0
        enough = 0.5 * max(descent, noise(problem, unit(problem, state.value, point)))
        point, dual, length = self._search_by_trials(state, direction, enough)
        return point, settle(engine, point, center, eta, dual), length

    def _search_by_trials(
        self, state: State, direction: Direction, enough: float
    ) -> tuple[Point, Dual, float]:
        """The same, trial by trial."""
        problem, engine = state.problem, state.problem.engine
        delta, descent = direction.delta, direction.descent
        change = engine.direction(delta)
        # How fast the penalty has been growing on the way to a trial: its derivative, looking back.
        growth, backwards = problem.penalty.directional_derivative, -problem.coefficients(delta)
        may_overflow = not problem.loss.curvature_bound < np.inf
        low, slope_low, high, slope_high = 0.0, -descent, 1.0, np.inf
        t, limit = 1.0, None
        # A Newton step takes an exponential down by a factor of e, and leaves 0.37 of its slope.
        short = 0.5 * enough if may_overflow else enough
        for trial in range(MAX_TRIALS + _HALVINGS):
            point, dual = engine.moved(state.point, delta, change, t), state.center
            finite = not may_overflow or math.isfinite(engine.sizes(point).absolute)
            if not finite:
                # Far beyond the minimum of a loss that grows like an exponential.
                high, slope_high, limit = t, np.inf, t
                t = low + _OVERFLOW * (t - low)
                del point, dual
                continue
            dual = engine.dual_step(state.center, point, state.eta)
            slope = engine.slope(point, dual, change)
            slope -= growth(problem.coefficients(point.w), backwards)
            if -short <= slope <= enough:
                return point, dual, t
            if slope < 0.0 and t == high:
                if limit is None:
                    limit = _reach(problem.penalty, problem.coefficients(state.point.w), -backwards)
                if t >= limit:
                    return point, dual, t
            t, low, slope_low, high, slope_high = next_length(
                t, slope, low, slope_low, high, slope_high, np.inf if limit is None else limit
            )
            if trial >= MAX_TRIALS and 0.0 < low < t < high:
                t = math.sqrt(low) * math.sqrt(high)
                if not low < t < high:
                    break
            del point, dual  # vectors of length n, which the next trial can take
        # Where the derivative is negative Phi has not yet turned up: safe to stop there.
        if low == 0.0:
            return state.point, state.dual, 0.0
        point = engine.moved(state.point, delta, change, low)
        return point, engine.dual_step(state.center, point, state.eta), low


def _reach(penalty: Penalty, coef: FloatArray, delta: FloatArray) -> float:
    """How far a direction that is feasible up to 1 may be followed, through smooth parts of g."""
    if penalty.quadratic:
        return np.inf
    if not penalty.compiled:
        return 1.0
    d = len(coef)
    lower, upper = penalty.bounds(d) or (np.full(d, -np.inf), np.full(d, np.inf))
    if coef.ndim > 1:
        lower, upper = lower[:, None], upper[:, None]
    # A coefficient may come to 0 and stay there, but does not change its sign.
    upper, lower = np.where(coef < 0.0, 0.0, upper), np.where(coef > 0.0, 0.0, lower)
    ahead = np.where(delta > 0.0, upper, lower)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(delta == 0.0, np.inf, (ahead - coef) / delta)
    return max(float(room.min()), 1.0)
