"""Compile everything once, by solving small problems of every kind: the command ``sorel warmup``.

Loops are compiled when a problem first needs them, and stored. An image or a machine that is
prepared in this way starts every first fit at once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numba.core import config, event
from numpy.typing import NDArray

from sorel._compiled import cache_folder, cache_folders, trouble
from sorel.kernels import vectors
from sorel.losses import LOSSES, Loss
from sorel.penalties import L2, Box, Budget, ElasticNet, NonNegative, Penalty, Simplex
from sorel.permutahedron import project_permutahedron
from sorel.problem import Problem
from sorel.risks import ESRM, CVaR
from sorel.rows import RowSource
from sorel.solve import solve
from sorel.solvers import SOLVERS

__all__ = ["Summary", "steps", "warm_up"]

# Rows of most problems; then enough for a sort in two rounds and for the edge of CVaR to be
# selected, and enough for a sort in three and for threads to share the vectors.
_FEW, _MANY, _SHARED = 60, 4000, 120_000
# Columns; and enough of them for the other way to form a Gram matrix.
_COLUMNS, _MANY_COLUMNS = 4, 80
# Passes within which every solver has run each of its loops.
_PASSES = 12


@dataclass(frozen=True)
class Summary:
    """What a warmup did.

    Attributes
    ----------
    loops : int
        Loops that were compiled; those found in the store are not counted.
    seconds : float
        Wall-clock time.
    folders : list of str
        Where the compiled code is.
    """

    loops: int
    seconds: float
    folders: list[str]


class _Streamed(RowSource):
    """Rows in memory that are read as if they were on disk."""

    def __init__(self, X: NDArray[Any]) -> None:
        self._X = X
        self.n_samples, self.n_features = X.shape
        self.dtype = X.dtype
        self._settle([0, self.n_samples])

    @property
    def nbytes(self) -> int:
        # More than would be loaded at once.
        return 1 << 62

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._X[start:stop]

    def where(self, row: int, column: int) -> str:
        return f"row {row}, column {column}"

    def _identity(self) -> Iterator[Any]:
        return iter(())


def _data(n: int, d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + rng.standard_t(3, size=n)


def _targets(loss: Loss, y: NDArray[np.float64]) -> NDArray[Any]:
    """Targets that the loss takes: three classes or two, numbers, or amounts above 0."""
    classes = (np.digitize(y, [-1.0, 1.0]), y > 0.0)
    for targets in classes if loss.is_classifier else (y, np.exp(y)):
        try:
            loss.encode(targets)
        except ValueError:
            continue
        return targets
    raise ValueError(f"no targets for the loss {loss.name!r}")


def _solve(X: Any, y: Any, solver: str = "auto", **options: Any) -> None:
    """A few passes; whether they get anywhere does not matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            solve(Problem(X, y, **options), solver, tol=1e-10, max_passes=_PASSES)
        except ValueError:
            # What is refused needs no code.
            return


def _descend(problem: Problem) -> None:
    """Coordinate descent, for which a problem must be larger than those here."""
    engine, w = problem.engine, problem.start()
    if engine.obstacle("descend") is None:
        kernel = problem.penalty.kernel(problem.n_features)
        engine.descend(engine.point(w), engine.uniform(), w, kernel, 1, 0.0)


def _recall() -> None:
    """The recursion of steps from gradients, which `auto` takes in larger problems alone."""
    pairs, ones = np.ones((2, 3)), np.ones(3)
    vectors.quasi_newton_product(pairs, pairs, np.full(2, 3.0), 0, 1, ones, ones.copy())


def steps() -> Iterator[tuple[str, Callable[[], None]]]:
    """What a warmup goes through: a name and an action for each kind of problem.

    Yields
    ------
    name : str
    action : callable
        Solves problems of that kind.
    """
    X, y = _data(_FEW, _COLUMNS)
    classes = np.digitize(y, [-1.0, 1.0])
    risks = (CVaR(0.5), ESRM(2.0))
    weight = np.linspace(1.0, 2.0, _FEW)

    def losses() -> None:
        for kind in LOSSES.values():
            loss = kind()
            for risk in risks:
                for intercept in (True, False):
                    _solve(X, _targets(loss, y), loss=loss, risk=risk, fit_intercept=intercept)

    def penalties() -> None:
        kinds: tuple[Penalty, ...] = (
            L2(0.1), ElasticNet(0.01, 0.1), NonNegative(0.1), Box(0.1, -1.0, 1.0), Simplex(0.1),
        )  # fmt: skip
        for penalty in kinds:
            for solver in ("auto", "newton_cg", "sorel"):
                _solve(X, y, solver, penalty=penalty)
                _solve(X, classes, solver, loss="multinomial", penalty=penalty)
        _solve(X, y, penalty=Budget(0.1, upper=0.9, cost=0.1))

    def weights() -> None:
        for risk in risks:
            for solver in ("auto", "sorel"):
                _solve(X, y, solver, risk=risk, sample_weight=weight)
                _solve(
                    X, classes, solver, risk=risk, loss="multinomial", sample_weight=weight,
                    fit_intercept=True,
                )  # fmt: skip

    def projection() -> None:
        for risk in risks:
            project_permutahedron(y, risk)
            project_permutahedron(y, risk, weight)
        project_permutahedron(_data(_SHARED, 1)[1], ESRM(2.0))
        # Losses of some thousand rows are sorted where they are projected.
        _solve(*_data(_MANY, _COLUMNS), risk=ESRM(2.0))

    def home(matrix: Any) -> Callable[[], None]:
        def action() -> None:
            for solver in SOLVERS:
                _solve(matrix, y, solver, fit_intercept=True)
                _solve(matrix, classes, solver, loss="multinomial", fit_intercept=True)
            _solve(matrix, y, "sorel", penalty=ElasticNet(0.01, 0.1))
            _descend(Problem(matrix, y, penalty=ElasticNet(0.01, 0.1)))

        return action

    def many(n: int, d: int, **options: Any) -> Callable[[], None]:
        def action() -> None:
            rows, targets = _data(n, d)
            for matrix in (rows, scipy.sparse.csr_array(rows)):
                for risk in risks:
                    for solver in ("auto", "newton_cg", "lbfgs"):
                        _solve(matrix, targets > 0.0, solver, risk=risk, loss="logistic", **options)

        return action

    yield "losses and risks", losses
    yield "penalties", penalties
    yield "sample weights", weights
    yield "projections", projection
    yield "steps from gradients", _recall
    yield "every solver, dense rows", home(X)
    yield "every solver, dense columns", home(np.asfortranarray(X))
    sparse = scipy.sparse.csr_array(X)
    yield "every solver, sparse", home(sparse)
    wide = scipy.sparse.csr_array(
        (sparse.data, sparse.indices.astype(np.int64), sparse.indptr.astype(np.int64))
    )
    yield "every solver, sparse, 64-bit indices", home(wide)
    yield "every solver, rows on disk", home(_Streamed(X))
    short = X.astype(np.float32)
    yield "every solver, float32, dense rows", home(short)
    yield "every solver, float32, dense columns", home(np.asfortranarray(short))
    yield "every solver, float32, sparse", home(scipy.sparse.csr_array(short))
    yield "every solver, float32, rows on disk", home(_Streamed(short))
    yield "many columns", many(_FEW, _MANY_COLUMNS)
    yield "many rows", many(_MANY, _COLUMNS)
    yield "many rows and two threads", many(_SHARED, _COLUMNS, n_jobs=2)


class _Counter(event.Listener):
    """Counts the loops of this package that are compiled."""

    loops = 0

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__
        self.loops += module.partition(".")[0] == __package__

    def on_end(self, event: Any) -> None:
        """Nothing: what is begun is counted."""


def warm_up(report: Callable[[str], None] = print) -> Summary:
    """Compile and store all loops of the package.

    Parameters
    ----------
    report : callable, default=print
        Told in a line what is done, and how long it took.

    Returns
    -------
    Summary

    Raises
    ------
    OSError
        If the compiled code cannot be stored.
    ValueError
        If compilation is switched off.

    Examples
    --------
    >>> from sorel.warmup import warm_up
    >>> warm_up().loops  # doctest: +SKIP
    312
    """
    if getattr(config, "DISABLE_JIT", False):
        raise ValueError("NUMBA_DISABLE_JIT is set, so there is nothing to compile; unset it")
    _check_folder()
    counter = _Counter()
    begin = time.perf_counter()
    with event.install_listener("numba:compile", counter):
        for name, action in steps():
            before, since = counter.loops, time.perf_counter()
            action()
            error = trouble()
            if error is not None:
                raise OSError(f"compiled code cannot be stored: {error}") from error
            seconds = time.perf_counter() - since
            report(f"{name:40} {counter.loops - before:4d} loops {seconds:7.1f} s")
    return Summary(counter.loops, time.perf_counter() - begin, cache_folders())


def _check_folder() -> None:
    wanted, folder = getattr(config, "CACHE_DIR", ""), cache_folder()
    if wanted and (folder is None or not folder.startswith(wanted)):
        raise OSError(f"NUMBA_CACHE_DIR={wanted} cannot be written; choose another folder")
    if folder is None:
        raise OSError(
            "there is no folder to store compiled code in: neither that of the package nor that of "
            "the user can be written; set NUMBA_CACHE_DIR to one that can"
        )
