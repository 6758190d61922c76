"""The clock of a run stands still while the compiler works."""

from __future__ import annotations

import threading

import numba
import numpy as np
import pytest
from numba.core import event

import sorel
from sorel import _clock
from sorel._clock import now
from sorel.solvers.base import Iterate, Solver

LOCK = "numba:compiler_lock"


@pytest.fixture
def clock(monkeypatch):
    """A wall clock that moves when it is told to."""

    class Wall:
        time = 0.0

        def __call__(self):
            return self.time

        def compile(self, seconds):
            """What numba's events look like: the lock is taken inside itself."""
            event.start_event(LOCK)
            event.start_event(LOCK)
            self.time += seconds
            event.end_event(LOCK)
            event.end_event(LOCK)

    wall = Wall()
    monkeypatch.setattr(_clock, "perf_counter", wall)
    return wall


def test_it_runs_and_leaves_out_what_is_compiled(clock):
    begin = now()
    clock.time += 1.0
    assert now() - begin == 1.0
    clock.compile(100.0)
    assert now() - begin == 1.0
    clock.time += 2.0
    clock.compile(50.0)
    assert now() - begin == 3.0


def test_threads_that_do_not_compile_do_not_gain_time(clock):
    times = []

    def measure():
        begin = now()
        ready.set()
        compiled.wait()
        times.append(now() - begin)

    ready, compiled = threading.Event(), threading.Event()
    thread = threading.Thread(target=measure)
    thread.start()
    ready.wait()
    clock.compile(100.0)
    compiled.set()
    thread.join()
    assert times == [100.0]


def test_numba_tells_of_what_it_compiles():
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    before = _clock._compiling.seconds
    assert numba.njit(lambda x: x + 1)(1) == 2
    assert _clock._compiling.seconds > before
    with pytest.raises(numba.TypingError):
        numba.njit(lambda x: x.nothing)(1)
    assert _clock._compiling.depth == 0


class SlowToCompile(Solver):
    """Stays at its start: three checks, each after 10 s of compiling and 1 s of work."""

    name = "slow_to_compile"

    def __init__(self, clock):
        self.clock = clock

    def iterates(self, problem, run):
        point = problem.engine.point(run.w)
        dual = problem.engine.worst_case(point)
        for _ in range(3):
            self.clock.compile(10.0)
            self.clock.time += 1.0
            run.n_iter += 1
            yield Iterate(point, dual)
            if run.exhausted:
                return


def test_budgets_histories_and_results_leave_compiling_out(clock):
    X = np.random.default_rng(0).normal(size=(30, 2))
    problem = sorel.Problem(X, X[:, 0] + 1.0)
    with pytest.warns(sorel.ConvergenceWarning):
        result = sorel.solve(problem, SlowToCompile(clock), max_seconds=5.0)
    assert result.n_iter == 3
    assert sorted({record.seconds for record in result.history}) == [1.0, 2.0, 3.0]
    assert result.seconds == 3.0
    with pytest.warns(sorel.ConvergenceWarning, match="max_seconds"):
        result = sorel.solve(problem, SlowToCompile(clock), max_seconds=1.5)
    assert result.n_iter == 2
