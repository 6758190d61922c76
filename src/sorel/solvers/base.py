"""What every solver is: a generator of iterates.

A solver yields an :class:`Iterate` whenever it has something worth checking and receives the
certificate in return. It never decides that the problem is solved: :func:`sorel.solve` owns the
tolerance, the budget, the history and the clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter as now
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sorel.certificate import Certificate, Certifier, KnownCurvature, Path
from sorel.engines.base import Dual, FloatArray, Point
from sorel.problem.problem import Problem

# Share of the tolerance that a problem which stands in for another may use up.
SHARE_OF_TOL = 0.7


class Iterate(NamedTuple):
    """A point and a weighting to be certified.

    `gradient` is that of lam . l at the point where the solver has it at hand. `refine` is a gap
    worth a Hessian, and `path` how the margins were moved since they were computed from X: see
    :meth:`sorel.certificate.Certifier.certify`.

    Examples
    --------
    >>> import sorel
    >>> from sorel.certificate import certify
    >>> from sorel.solvers import Iterate
    >>> problem = sorel.Problem([[1.0], [2.0]], [1.0, 3.0])
    >>> iterate = Iterate(problem.engine.point([1.0]), problem.engine.uniform())
    >>> certify(problem, iterate.point, iterate.dual).gap > 0
    True
    """

    point: Point
    dual: Dual
    gradient: FloatArray | None = None
    refine: float = 0.0
    path: Path | None = None

    def certify(self, certifier: Certifier) -> Certificate:
        """The certificate of the point and the weighting."""
        return certifier.certify(
            self.point, self.dual, gradient=self.gradient, refine=self.refine, path=self.path
        )


Iterates = Generator[Iterate, Certificate, None]


@dataclass
class Run:
    """Where a run starts and what it may spend; a solver adds its passes as it goes.

    Attributes
    ----------
    w : array
        Starting point.
    dual : Dual or None
        Starting weighting of a warm start.
    tol : float
        Relative gap wanted. Solvers may use it to choose when a check is worth its cost.
    passes : float
        Sample gradients spent so far, divided by n.
    known : KnownCurvature
        What the run has learnt of the curvature.
    watched : bool
        Whether there is a callback, so that checks are wanted even where none can succeed.
    save_at : float
        Time on the clock from which on a check is wanted, so that there is something to save.
    latest : Iterate or None
        Where a solver that checks rarely stands, so that an interruption loses nothing.
    note : str
        What the solver did, or why it gave up, for the status line.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from sorel.solvers import Run
    >>> run = Run(np.zeros(2), None, tol=1e-6, max_passes=10, deadline=math.inf, random_state=0)
    >>> run.passes += 12
    >>> run.exhausted
    True
    """

    w: FloatArray
    dual: Dual | None
    tol: float
    max_passes: float
    deadline: float
    random_state: Any
    watched: bool = False
    known: KnownCurvature = field(default_factory=KnownCurvature)
    passes: float = 0.0
    n_iter: int = 0
    note: str = ""
    latest: Iterate | None = None
    save_at: float = math.inf

    @cached_property
    def rng(self) -> np.random.Generator:
        """The run's own generator, made when a solver first asks for it."""
        return make_generator(self.random_state)

    @property
    def wants_check(self) -> bool:
        """Whether a check is welcome that will hardly succeed."""
        return self.watched or now() >= self.save_at

    @property
    def exhausted(self) -> bool:
        """Whether the budget of passes or of time is spent: inner loops end early then."""
        return self.passes >= self.max_passes or now() >= self.deadline


def make_generator(random_state: Any) -> np.random.Generator:
    """A generator from what users pass as random_state; global state is left alone."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**32, dtype=np.uint64))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise ValueError(
            "random_state must be a nonnegative int, a Generator, a RandomState or None, "
            f"got {random_state!r}"
        ) from None


def rehearse(
    iterates: Iterates, problem: Problem, run: Run
) -> Iterator[tuple[Iterate, Certificate]]:
    """Iterates with their certificates, while the budget lasts: a solver's look at another problem.

    What :func:`sorel.solve` does for a user, without a history or a clock.
    """
    certifier = Certifier(problem, run.known)
    try:
        iterate = next(iterates)
        while True:
            certificate = iterate.certify(certifier)
            run.passes += certificate.passes
            yield iterate, certificate
            if run.exhausted:
                return
            iterate = iterates.send(certificate)
    except StopIteration:
        return
    finally:
        iterates.close()


class UnsupportedProblemError(ValueError):
    """The solver cannot work on this problem; the message says which solvers can."""


class Solver(ABC):
    """Base of all solvers.

    Attributes
    ----------
    name : str
        The name that :func:`sorel.solve` knows it by.

    Examples
    --------
    >>> import sorel
    >>> from sorel.solvers import Iterate, Solver
    >>> class Nothing(Solver):
    ...     name = "nothing"
    ...
    ...     def iterates(self, problem, run):
    ...         yield Iterate(problem.engine.point(run.w), problem.engine.uniform())
    >>> problem = sorel.Problem([[1.0], [2.0]], [0.0, 0.0])
    >>> sorel.solve(problem, Nothing()).solver  # w = 0 is the optimum, as it happens
    'nothing'
    """

    name: ClassVar[str]

    def check(self, problem: Problem) -> None:  # noqa: B027 (optional hook: most solvers take all)
        """Raise UnsupportedProblemError when the problem is not for this solver."""

    @abstractmethod
    def iterates(self, problem: Problem, run: Run) -> Iterates:
        """Yield iterates, the starting point first, until the caller stops or nothing is left."""
