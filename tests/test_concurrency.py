"""Several threads solve one problem at once: each gets what it would get alone, bit for bit.

Sizes lie on both sides of every threshold at which an engine does something else: sorting,
selection, shared sweeps.
"""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data

import sorel
from sorel.engines import BlocksEngine
from sorel.rows import open_rows, write_blocks
from sorel.solvers import SOLVERS

THREADS = 8
SIZES = [300, 1500, 3000, 30_000]


def fingerprint(result):
    """All that a run found, as bytes and numbers."""
    history = tuple((record.passes, record.objective, record.gap) for record in result.history)
    numbers = (result.objective, result.dual, result.gap, result.passes, result.n_iter)
    return result.w.tobytes(), result.weights.tobytes(), numbers, history


def together(work):
    """What THREADS calls find that start at the same moment."""
    start = threading.Barrier(THREADS)

    def wait_and_work(_):
        start.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(wait_and_work, range(THREADS)))


def check(problem, solver, **options):
    def work():
        return fingerprint(sorel.solve(problem, solver, **options))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short budgets are not meant to converge
        alone = work()
        assert together(work) == [alone] * THREADS
        assert work() == alone


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "huber", "multinomial", "poisson"])
@pytest.mark.parametrize("weighted", [False, True])
def test_newton(n, risk, loss, weighted):
    X, y = make_data(loss, n, 4, 0)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, n) if weighted else None
    more = {"fit_intercept": True, "sample_weight": weight, "n_jobs": 2}
    problem = sorel.Problem(X, y, risk=risk, loss=loss, **more)
    check(problem, "newton", tol=1e-8, max_passes=12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("home", ["dense", "sparse", "blocks"])
def test_every_solver_and_home(solver, home, tmp_path):
    n = 25_000 if solver not in ("prospect", "saddle_saga") else 400
    X, y = make_data("squared", n, 4, 0)
    engine = None
    if home == "sparse":
        X = scipy.sparse.csr_array(X * (np.abs(X) > 0.5))
    elif home == "blocks":
        write_blocks(tmp_path / "blocks", X, rows_per_block=1 + n // 3)
        X, engine = open_rows(tmp_path / "blocks"), BlocksEngine
    problem = sorel.Problem(X, y, risk="esrm:2", engine=engine, n_jobs=2)
    try:
        SOLVERS[solver]().check(problem)
    except sorel.solvers.base.UnsupportedProblemError:
        assert home == "blocks"
        return
    check(problem, solver, tol=1e-9, max_passes=8)


@pytest.mark.parametrize(
    ("n", "d", "solver"), [(130_000, 8, "newton"), (2000, 30, "auto"), (2000, 60, "auto")]
)
def test_many_rows_and_small_matrices_of_the_linear_algebra_library(n, d, solver):
    X, y = make_data("squared", n, d, 0)
    check(sorel.Problem(X, y, risk="esrm:2", n_jobs=2), solver, tol=1e-9, max_passes=6)


def test_public_methods_of_one_problem():
    X, y = make_data("squared", 30_000, 4, 0)
    problem = sorel.Problem(X, y, risk="esrm:2")
    w, lam = np.full(4, 0.9), np.full(30_000, 1 / 30_000)

    def work():
        proof = problem.certificate(w, lam)
        return problem.objective(w), problem.losses(w).tobytes(), proof.gap, proof.dual

    alone = work()
    assert together(lambda: [work() for _ in range(5)]) == [[alone] * 5] * THREADS
