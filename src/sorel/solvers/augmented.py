"""Augmented Lagrangian on the weights: the outer loop that the second-order methods share.

With a centre q_k and a step eta, the inner problem

    min_w  Phi(w) = max_q [ q . l(w) - |q - q_k|^2 / (2 eta) ] + g(w)

is convex with a continuous gradient (Rockafellar, 1976). Its maximiser is one projection, and the
projection is piecewise linear, so Phi has a generalised Hessian (Li, Sun and Toh 2018; of pooled
blocks: Luo, Sun, Toh and Xiu 2019; for CVaR: Wu, Cui, Li and Sun 2023): the curvature of the losses
under q plus, inside each block that the projection pools, eta times the covariance of the loss
gradients. The centre then moves to the maximiser. Few centres are needed when eta is large; few
Newton steps when it is small.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sorel.certificate import Certificate, Path, gap_wanted, noise, unit
from sorel.engines.base import Point
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Iterates, Run, Solver
from sorel.solvers.constant_optimum import constant_optimum, losses_are_equal
from sorel.solvers.directions import Cheapest
from sorel.solvers.schedule import EtaSchedule, Pace, next_damping
from sorel.solvers.state import Direction, State

# Centres in a row that change nothing beyond rounding, after which a run ends.
_MAX_IDLE = 4

# Margins that are updated step by step drift away from X w by rounding. They are computed afresh
# before the drift, or after rounding in a certificate, reaches this share of the gap wanted.
_ROUNDING_SHARE = 0.1

# Passes after which a check is made in any case: `auto` changes methods at checks.
_HEARTBEAT = 50

# Share of its value at the last measurement at which the spread of the losses is measured again.
_FAR_BETTER = 0.01

# Checks on the way to where the loop starts, which is None if nothing can.
Start = Generator[Iterate, Certificate, Point | None]


@dataclass(slots=True)
class _Checks:
    """When a run was checked last, and how exact its margins are.

    Attributes
    ----------
    path : Path
        How the margins of the state were moved since they were computed from X.
    last, resumed : float
        Passes at the last check, and those before which no certificate is to be refined: no more
        goes to certificates than to steps.
    blurred : bool
        Whether rounding errors of the margins were a large part of the last certificate.
    """

    path: Path
    last: float
    resumed: float = 0.0
    blurred: bool = False

    def refreshed(self, state: State, rounding: float, wanted: float) -> State:
        """The state with margins computed from X, where moving them has cost too many digits."""
        if not self.blurred and rounding * self.path.moves <= _ROUNDING_SHARE * wanted:
            return state
        point = state.problem.engine.point(state.point.w)
        fresh = State(state.problem, point, state.center, state.eta)
        fresh.predicted, fresh.length = state.predicted, state.length
        self.path, self.blurred = Path(point.w), False
        return fresh

    def refine(self, state: State, run: Run, target: float) -> Iterates:
        """Have the state checked by a certificate that is worth a Hessian."""
        reply = yield Iterate(state.point, state.dual, state.gradient, target, self.path)
        self.last, self.resumed = run.passes, run.passes + reply.passes
        self.blurred = self.path.moves > 0 and reply.rounding > _ROUNDING_SHARE * target

    def check(self, state: State, run: Run, target: float) -> Iterates:
        """Have it checked as it is, if a check is wanted or may succeed."""
        due = run.wants_check or run.passes > self.last + _HEARTBEAT
        if due or (state.fenchel_young() <= target and state.in_order(target)):
            yield Iterate(state.point, state.dual, state.gradient, path=self.path)
            self.last = run.passes


class AugmentedLagrangian(Solver):
    """The outer loop; a subclass says how to find a direction."""

    pace: ClassVar[Pace] = Pace()

    # A refined certificate costs a Hessian, or many products with it: it is tried once the
    # predicted decrease is no more than this multiple of the gap wanted.
    promising: ClassVar[float] = 10.0

    @abstractmethod
    def direction(self, state: State, run: Run, damping: float) -> Direction:
        """A direction of descent for Phi at the state; see Engine.curvature for `damping`."""

    def predicted_decrease(self, state: State, run: Run, target: float) -> float:
        """About what there is to gain: here the prediction of the step that led to the state."""
        return state.predicted

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine = problem.engine
        checks = _Checks(Path(run.w), run.passes)
        point = yield from self._start(problem, run, checks.path)
        if point is None:
            return
        schedule = EtaSchedule(self.pace, problem.loss_scale(point), run.dual is not None)
        # With an infinite eta no centre is needed: the vectors of a warm start may go.
        center = run.dual if schedule.eta < np.inf else None
        state = State(problem, point, center or engine.uniform(), schedule.eta)
        # Vectors of length n: nothing but the state may hold them.
        del point, center
        run.dual = None
        measured, damping, used, idle = unit(problem, state.value, state.point), 0.0, 0.0, 0
        while not run.exhausted:
            size = unit(problem, state.value, state.point)
            target, rounding = gap_wanted(problem, run.tol, size), noise(problem, size)
            # Check.
            state = checks.refreshed(state, rounding, run.tol * size)
            run.latest = Iterate(state.point, state.dual, state.gradient, np.inf, checks.path)
            decrease = self.predicted_decrease(state, run, target)
            promising = decrease <= self.promising * target and run.passes >= checks.resumed
            promising = promising and not schedule.is_short(state.length)
            # The order of the losses alone may keep the gap up: no matrix lowers that bracket.
            if promising and state.in_order(target):
                yield from checks.refine(state, run, target)
            else:
                yield from checks.check(state, run, target)
            # Update the centre and eta.
            if schedule.is_solved(state.gained, state.predicted, state.length, used, rounding):
                run.n_iter += 1
                idle = idle + 1 if max(state.gained, state.predicted) <= rounding else 0
                if idle > _MAX_IDLE:
                    break
                if idle == 1 and run.passes >= checks.resumed:
                    # As good as it gets: what a larger eta makes of the weights may be rounding.
                    yield from checks.refine(state, run, np.inf)
                if schedule.capped or size < _FAR_BETTER * measured:
                    schedule.rescale(problem.loss_scale(state.point))
                    measured = size
                state = State(problem, state.point, state.dual, schedule.advance())
            elif schedule.stuck:
                state = State(problem, state.point, state.center, schedule.retreat())
            # Step.
            try:
                direction = self.direction(state, run, damping)
            except np.linalg.LinAlgError:
                # Beyond what rounding allows, the curvature may have no meaning left.
                break
            state = state.line_search(direction)
            run.passes += 1
            checks.path.move(state.point.w)
            schedule.note(state.length)
            used, damping = damping, next_damping(damping, schedule.is_short(state.length))
        if not run.exhausted:
            run.note = "rounding errors allow no further progress"
        yield Iterate(state.point, state.dual, state.gradient, np.inf, checks.path)

    def _start(self, problem: Problem, run: Run, path: Path) -> Start:
        """Where the loop starts: at the minimum for the plain average unless weights are known.

        A step towards that brings the losses to their final scale. None if it cannot be taken.
        """
        engine = problem.engine
        point, mean = engine.point(run.w), engine.uniform()
        run.passes += 1
        if run.dual is not None:
            return point
        if run.watched:
            yield Iterate(point, mean)
        if problem.fit_intercept and not problem.loss.curvature_bound < np.inf:
            # Newton steps climb down an exponential one by one.
            point = engine.best_intercept(point, mean) or point
            path.move(point.w)
        state = State(problem, point, mean, 0.0)
        equal = losses_are_equal(state)
        if (equal or not problem.penalty.quadratic) and (
            state.fenchel_young() <= problem.gap_wanted(run.tol, state.value, point)
        ):
            # Best for the plain average, and so perhaps for the risk.
            yield Iterate(point, mean if equal else engine.worst_case(point))
        del point
        try:
            if equal:
                find = Cheapest(problem)
                direction = find(state, run, 1.0)
                yield from constant_optimum(state, direction, find, run)
            else:
                direction = self.direction(state, run, 1.0)
            state = state.line_search(direction)
            run.passes += 1
        except np.linalg.LinAlgError:
            run.note = "the losses overflow at the start; scale the columns"
            return None
        path.move(state.point.w)
        return state.point
