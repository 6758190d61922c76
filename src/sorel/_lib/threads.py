"""How many threads to use, and how to split the rows of a sweep among them.

A compiled loop releases the interpreter's lock, so plain threads run several of them at once. Each
thread takes one range of consecutive rows, the same range every time, and partial sums are added in
the order of the ranges: results are the same to the last bit for a given number of threads.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Result = TypeVar("_Result")

# Ranges start at multiples of this many rows, so that two threads never write to one cache line.
_ALIGNMENT = 64


def thread_count(n_jobs: int | None = None) -> int:
    """The number of threads that `n_jobs` stands for.

    Parameters
    ----------
    n_jobs : int or None, default=None
        A positive number is taken as it is; -1 is one thread per core that this process may use,
        the quota of its container included, -2 one less. None follows the settings around the
        call: the cores of the process, and the threads of the linear algebra library
        (``OMP_NUM_THREADS`` and its kin, or ``threadpoolctl.threadpool_limits``), whichever is
        less.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> from sorel._lib.threads import thread_count
    >>> thread_count(3)
    3
    """
    if n_jobs is None:
        return max(1, min(_cores(), _blas_threads()))
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, Integral) or n_jobs == 0:
        raise ValueError(
            f"n_jobs must be None or an integer other than 0 (-1: all cores), got {n_jobs!r}"
        )
    return int(n_jobs) if n_jobs > 0 else max(1, _cores() + 1 + int(n_jobs))


def _cores() -> int:
    """Cores that this process may keep busy: its affinity and the quota of its container."""
    # joblib takes a tenth of a second to import, and small problems never ask.
    import joblib

    return int(joblib.cpu_count())


def _blas_threads() -> int:
    # A limit that a run in another thread has set is not the user's.
    return _blas_limit.threads_before() or _library_threads()


def _library_threads() -> int:
    limits = [
        library["num_threads"]
        for library in _controller().info()
        if library["user_api"] == "blas" and library["num_threads"]
    ]
    return min(limits, default=sys.maxsize)


@cache
def _controller() -> Any:
    # Looking for the loaded libraries takes milliseconds, asking those found takes none. scipy
    # brings a library of its own, which must be loaded to be found.
    import scipy.linalg  # noqa: F401 (loads the library)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _BlasLimit:
    """One limit for all who ask for it, set by the first and lifted by the last.

    Limits that each caller set and restored for itself would, with callers in several threads, be
    restored in the wrong order and stay. For the same reason threadpoolctl listens to one thread at
    a time only, until that lets go: here any thread may be the first, and another one the last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0
        self._limiter: Any = None

    def threads_before(self) -> int:
        """Threads of the library before the limit was set; 0 while there is none."""
        with self._lock:
            return self._before if self._users > 0 else 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = _library_threads()
                _let_go()
                self._limiter = _controller().limit(limits=1, user_api="blas")
                _let_go()
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _let_go()
                self._limiter.restore_original_limits()
                _let_go()


def _let_go() -> None:
    """Let threadpoolctl listen to whichever thread comes next, as before version 3.8."""
    for library in _controller().lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


_blas_limit = _BlasLimit()


def limit_blas() -> AbstractContextManager[None]:
    """A context in which the linear algebra library uses one thread.

    Its callers may run side by side. And its idle threads spin for a while after every product,
    on the cores that the compiled loops want.
    """
    return _blas_limit


@cache
def _executor(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="sorel")


if hasattr(os, "register_at_fork"):
    # A child process has none of its parent's threads.
    os.register_at_fork(after_in_child=_executor.cache_clear)


class Team:
    """Threads that share the rows of a matrix.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    threads : int
        Number of threads; the calling thread is one of them.

    Attributes
    ----------
    ranges : list of (start, stop)
        The rows of each thread.

    Examples
    --------
    >>> from sorel._lib.threads import Team
    >>> team = Team(1000, 2)
    >>> team.ranges
    [(0, 512), (512, 1000)]
    >>> team.sweep(lambda start, stop: stop - start)
    [512, 488]
    """

    def __init__(self, n_rows: int, threads: int = 1) -> None:
        self.threads = threads
        height = -(-n_rows // threads)
        height = max(1, -(-height // _ALIGNMENT) * _ALIGNMENT)
        starts = range(0, n_rows, height)
        self.ranges = [(start, min(start + height, n_rows)) for start in starts]

    def sweep(self, task: Callable[[int, int], _Result]) -> list[_Result]:
        """The results of ``task(start, stop)`` for every range, in order."""
        return self.map(lambda rows: task(*rows), self.ranges)

    def map(self, task: Callable[[Any], _Result], items: list[Any]) -> list[_Result]:
        """The results of ``task(item)``, in order; each thread takes the next item in turn."""
        if self.threads == 1:
            return [task(item) for item in items]
        pool = _executor(self.threads - 1)
        results: list[Any] = [None] * len(items)
        waiting = deque(range(len(items)))

        def work() -> None:
            while True:
                try:
                    index = waiting.popleft()
                except IndexError:
                    return
                results[index] = task(items[index])

        helpers = [pool.submit(work) for _ in range(min(self.threads, len(items)) - 1)]
        try:
            work()
        finally:
            # Even when this thread fails, nobody may still write to the caller's arrays.
            errors = [helper.exception() for helper in helpers]
        for error in errors:
            if error is not None:
                raise error
        return results

    def accumulate(
        self, task: Callable[[int, int, NDArray[np.float64]], None], shape: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """The sum of what ``task(start, stop, out)`` adds to `out`, over all ranges.

        Each thread has its own sum, and always takes the same ranges.
        """
        workers = max(1, min(self.threads, len(self.ranges)))

        def work(first: int) -> NDArray[np.float64]:
            out = np.zeros(shape)
            for start, stop in self.ranges[first::workers]:
                task(start, stop, out)
            return out

        total, *others = self.map(work, list(range(workers)))
        for other in others:
            total += other
        return total


def by_ranges(team: Team | None, sweep: Callable[..., _Result], *arguments: Any) -> list[_Result]:
    """What a sweep over arrays of one length returns for each range; all at once without a team."""
    if team is None:
        return [sweep(*arguments)]
    return team.sweep(
        lambda start, stop: sweep(
            *(x[start:stop] if isinstance(x, np.ndarray) else x for x in arguments)
        )
    )
