"""What the first-order methods share: checked settings, refusals, and the watch for divergence."""

from __future__ import annotations

import math
from collections.abc import Generator
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from sorel._lib.floats import TINY
from sorel.certificate import Certificate, gap_wanted
from sorel.engines.base import Dual, FloatArray, Plan, Point
from sorel.engines.matrix import FEW_COLUMNS
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterate, Run, Solver, UnsupportedProblemError

# A run whose objective exceeds that of a plain start by this factor will not come back.
BLOW_UP = 1e6

# Without a step size, variance-reduced methods take 1 / (this multiple of the largest curvature of
# a term), as SAGA does (Defazio, Bach and Lacoste-Julien 2014).
SAFE_CURVATURE = 3.0


def check_positive(name: str, value: Any) -> float | None:
    """`value` as a float > 0, or None; anything else is refused."""
    if value is None:
        return None
    if _is_number(value) and 0.0 < value < math.inf:
        return float(value)
    raise ValueError(f"{name} must be None or a finite number > 0, got {value!r}")


def check_nonnegative(name: str, value: Any) -> float:
    """`value` as a float >= 0."""
    if _is_number(value) and 0.0 <= value < math.inf:
        return float(value)
    raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def check_count(name: str, value: Any) -> int:
    """`value` as an int >= 1."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1:
        return int(value)
    raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


def check_flag(name: str, value: Any) -> bool:
    """`value` as a bool."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def step_for(curvature: float) -> float:
    """The step 1 / curvature. Rows that do not bend are zero, and any step leaves them alone."""
    return 1.0 / curvature if curvature > 0.0 else 1.0


def proximal_step(problem: Problem, w: FloatArray, gradient: FloatArray, step: float) -> FloatArray:
    """prox_{step g}(w - step gradient); no penalty touches the intercept."""
    moved = w - step * gradient
    coef = problem.coefficients(moved)
    coef[...] = problem.penalty.prox(coef, step)
    return moved


def projected(problem: Problem, w: FloatArray) -> FloatArray:
    """w with its coefficients moved to the nearest ones of the penalty's domain, in place."""
    coef = problem.coefficients(w)
    coef[...] = problem.penalty.project(coef)
    return w


class FirstOrder(Solver):
    """Base of the methods that step along gradients.

    Attributes
    ----------
    operations : tuple of str
        The optional operations that the method may need of an engine.
    compiled_penalty : bool
        Whether these are compiled loops, which know the package's own penalties alone.
    step_size : float or None
        The step that the user has given.
    """

    operations: ClassVar[tuple[str, ...]] = ()
    compiled_penalty: ClassVar[bool] = True
    step_size: float | None = None

    def obstacle(self, problem: Problem) -> str | None:
        """Why the method cannot take this problem, or None."""
        if self.needs() and self.compiled_penalty and not problem.penalty.compiled:
            return (
                "takes the steps of single samples in compiled loops, which know only sorel's own "
                f"penalties and not the class {type(problem.penalty).__name__}"
            )
        reasons = (problem.engine.obstacle(operation) for operation in self.needs())
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None or problem.penalty.l2 > 0.0 or "smoothness" not in self.needs():
            return reason
        if problem.engine.stochastic().smoothness().largest > 0.0:
            return None
        return (
            "takes its steps from the curvature of losses and penalty, and there is none with the "
            f"{problem.loss.name} loss, {problem.penalty!r} and this X"
        )

    def needs(self) -> tuple[str, ...]:
        """The optional operations that the method needs of an engine, with its settings."""
        # A step that is given needs no bound on the curvature.
        given = self.step_size is not None
        return tuple(name for name in self.operations if not (given and name == "smoothness"))

    def check(self, problem: Problem) -> None:
        reason = self.obstacle(problem)
        if reason is not None:
            able = ", ".join(repr(name) for name in alternatives(problem)) or "another solver"
            raise UnsupportedProblemError(f"solver {self.name!r} {reason}; use {able}")

    def plan(self, problem: Problem, step: float, batch: int = 1, **more: Any) -> Plan:
        """A plan of one pass; plain gradient steps where the penalty is quadratic."""
        penalty, batch = problem.penalty, min(batch, problem.n_samples)
        more.setdefault("proximal", not penalty.quadratic)
        kernel = penalty.kernel(problem.n_features)
        return Plan(step, problem.n_samples // batch, kernel, batch, **more)

    def safe_step(self, problem: Problem, dual: Dual | None = None, bend: float = 0.0) -> float:
        """The given step, or 1 / (3 max_i n lam_i L_i + l2 + bend), for the worst weights or these.

        `bend` is the curvature of what else is minimised.
        """
        if self.step_size is not None:
            return self.step_size
        component = problem.engine.stochastic().smoothness(dual).component
        return step_for(SAFE_CURVATURE * component + problem.penalty.l2 + bend)


class Smoothed(FirstOrder):
    """Base of the methods for single samples whose risk may be smoothed, by -nu/2 |q - 1|^2."""

    def __init__(
        self, step_size: float | None = None, nu: float = 0.0, batch_size: int = 1
    ) -> None:
        self.step_size = check_positive("step_size", step_size)
        self.nu = check_nonnegative("nu", nu)
        self.batch_size = check_count("batch_size", batch_size)

    def weighting(self, problem: Problem, point: Point) -> Dual:
        """The maximiser of q . l - nu/2 |q - 1|^2 at a point."""
        engine = problem.engine
        if self.nu == 0.0:
            return engine.worst_case(point)
        return engine.dual_step(engine.uniform(), point, 1.0 / self.nu)


def alternatives(problem: Problem) -> list[str]:
    """Names of the solvers that take this problem."""
    from sorel.solvers import SOLVERS

    # `auto` takes what any other solver takes, and asking it would recurse.
    able = [name for name, cls in SOLVERS.items() if name != "auto" and _takes(cls(), problem)]
    return ["auto", *able] if able else able


def _takes(solver: Solver, problem: Problem) -> bool:
    if isinstance(solver, FirstOrder):
        return solver.obstacle(problem) is None
    try:
        solver.check(problem)
    except UnsupportedProblemError:
        return False
    return True


class Watch:
    """Evaluates the iterates of a run, stops it when they diverge, and says when to refine."""

    def __init__(self, problem: Problem, run: Run) -> None:
        self.problem, self.run = problem, run
        self._limit = math.inf
        self._checks = 0
        self._refine = 0.0
        self._mean = problem.engine.uniform()

    def start(self) -> Point:
        """The starting point, which sets the scale of a blow-up."""
        engine, run = self.problem.engine, self.run
        point = engine.point(run.w)
        value = engine.risk(point) + self.problem.penalty_value(point.w)
        self._limit = BLOW_UP * max(abs(value), TINY)
        self._refine = self.problem.gap_wanted(run.tol, value, point)
        return point

    def start_dual(self, point: Point) -> Dual:
        """The weighting of a warm start, or the worst case at the starting point."""
        dual = self.run.dual
        return dual if dual is not None else self.problem.engine.worst_case(point)

    def point(self, w: FloatArray, remedy: str) -> Point | None:
        """The point at w, or None after a divergence, with the note of the run set."""
        engine = self.problem.engine
        if np.all(np.isfinite(w)):
            point = engine.point(w)
            # The mean of the losses is below their risk, and grows with each of them.
            if engine.expected(point, self._mean) <= self._limit:
                return point
        self.run.note = f"diverged at pass {self.run.passes:.4g}: {remedy}"
        return None

    def after_epoch(self, w: FloatArray, passes: float, remedy: str) -> Point | None:
        """The point at the end of an iteration that took so many passes: see :meth:`point`."""
        self.run.n_iter += 1
        self.run.passes += passes
        return self.point(w, remedy)

    def check(
        self,
        point: Point,
        dual: Dual,
        gradient: FloatArray | None = None,
        refine: float | None = None,
    ) -> Generator[Iterate, Certificate, Certificate]:
        """Have an iterate certified; `refine` is a gap worth a Hessian.

        None is the gap wanted: at every check where a Hessian is cheap, else ever more rarely.
        """
        self._checks += 1
        if refine is None:
            cheap = self.problem.engine.size <= FEW_COLUMNS
            refine = self._refine if cheap or self._checks & (self._checks - 1) == 0 else 0.0
        reply = yield Iterate(point, dual, gradient, refine)
        self._refine = gap_wanted(self.problem, self.run.tol, reply.unit)
        return reply
