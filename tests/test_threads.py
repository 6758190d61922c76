"""Sharing rows among threads: who gets which, how many there are, and that nothing else changes."""

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from helpers import make_data
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info, threadpool_limits

import sorel
from sorel._lib import threads as _threads
from sorel._lib.threads import Team, limit_blas, thread_count
from sorel.engines import matrix, memory
from sorel.permutahedron import Projector

RISKS = [sorel.CVaR(0.3), sorel.ESRM(2.0), sorel.Max(), sorel.Mean()]


@pytest.fixture
def everything_shared(monkeypatch):
    """Let even small problems use threads."""
    monkeypatch.setattr(memory, "_MANY_SAMPLES", 0)
    for module in (memory, matrix):
        monkeypatch.setattr(module, "WORTH_SHARING", 0)


def test_how_many_threads(monkeypatch):
    monkeypatch.setattr(_threads, "_cores", lambda: 4)
    assert [thread_count(jobs) for jobs in (-1, -2, -9, 2)] == [4, 3, 1, 2]
    with threadpool_limits(1, user_api="blas"):
        assert thread_count() == 1
        assert thread_count(2) == 2
    for bad in (0, 1.5, True, "2"):
        with pytest.raises(ValueError, match="n_jobs must be None or an integer other than 0"):
            thread_count(bad)
        with pytest.raises(ValueError, match="n_jobs"):
            sorel.Problem(np.eye(3), np.arange(3.0), n_jobs=bad)


def test_settings_of_the_environment_are_respected():
    code = "from sorel._lib.threads import thread_count; print(thread_count())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def blas_threads():
    return [library["num_threads"] for library in threadpool_info()
            if library["user_api"] == "blas"]  # fmt: skip


def in_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_the_library_is_limited_from_any_thread_until_the_last_one_ends():
    with threadpool_limits(2, user_api="blas"):
        before, users = thread_count(None), blas_threads()
        one, two = limit_blas(), limit_blas()
        one.__enter__()
        in_a_thread(two.__enter__)
        assert set(blas_threads()) <= {1}
        # The limit of a run is not taken for the user's.
        assert thread_count(None) == before
        in_a_thread(lambda: one.__exit__(None, None, None))
        assert set(blas_threads()) <= {1}
        two.__exit__(None, None, None)
        assert blas_threads() == users


def test_a_solve_leaves_the_settings_as_they_were(everything_shared):
    X, y = make_data("squared", 300, 3, 0)
    with threadpool_limits(2, user_api="blas"):
        before, seen = blas_threads(), []
        problem = sorel.Problem(X, y, n_jobs=2)
        sorel.solve(problem, callback=lambda record: seen.append(blas_threads()))
        assert all(set(threads) <= {1} for threads in seen)
        with pytest.raises(ZeroDivisionError):
            sorel.solve(problem, callback=lambda record: 1 / 0)
        assert blas_threads() == before


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 1001])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_ranges_cover_all_rows_once_and_results_come_in_order(n, threads):
    team = Team(n, threads)
    assert len(team.ranges) <= threads
    assert [i for rows in team.sweep(range) for i in rows] == list(range(n))
    assert team.map(lambda i: i * i, list(range(50))) == [i * i for i in range(50)]
    total = team.accumulate(lambda start, stop, out: np.add(out, stop - start, out=out), (2,))
    assert_array_equal(total, [n, n])


def test_errors_of_threads_come_through():
    def fail(start, stop):
        if start > 0:
            raise ZeroDivisionError(f"rows {start} to {stop}")

    with pytest.raises(ZeroDivisionError, match="rows"):
        Team(1000, 3).sweep(fail)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_its_own_threads():
    team = Team(1000, 2)
    team.sweep(lambda start, stop: stop - start)
    child = os.fork()
    if child == 0:
        good = sum(team.sweep(lambda start, stop: stop - start)) == 1000
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [70, 3000, 120_000])
def test_projection_by_threads(risk, weighted, n):
    rng = np.random.default_rng(1)
    omega = rng.random(n) + 0.01
    omega = omega / omega.sum() if weighted else None
    alone, shared = Projector(risk, n, omega), Projector(risk, n, omega)
    shared.share(Team(n, 3))
    for scale in (1.0, 1e-3, 1e6, 0.0):
        zeta = scale * rng.standard_t(2, size=n) + 10.0
        q, p = np.empty((2, n))
        block, other = np.empty((2, n), np.int32)
        assert alone.project(zeta, q, block) == shared.project(zeta, p, other)
        assert_allclose(p, q, rtol=1e-9, atol=1e-12)
        assert np.count_nonzero(block != other) <= 1
        in_place = zeta.copy()
        shared.project(in_place, in_place)
        assert_allclose(in_place, p, rtol=1e-13, atol=1e-15)
        assert shared.value(zeta) == pytest.approx(alone.value(zeta), rel=1e-12)
        assert shared.worst_case(zeta, p) == pytest.approx(alone.worst_case(zeta, q), rel=1e-12)
        assert_array_equal(p, q)
        expected = pytest.approx(alone.shortfall(zeta, np.ones(n)), rel=1e-9, abs=1e-9 * scale)
        assert shared.shortfall(zeta, np.ones(n)) == expected


@pytest.mark.parametrize("risk", RISKS[:2], ids=repr)
def test_the_threads_of_a_team_project(risk):
    asked = []

    class Counted(Team):
        def map(self, task, items):
            asked.append(len(items))
            return super().map(task, items)

    projector = Projector(risk, 1000, None)
    projector.share(Counted(1000, 2))
    projector.project(np.arange(1000.0), np.empty(1000))
    assert asked


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "squared_hinge", "multinomial"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("d", [3, 40])
@pytest.mark.parametrize("weighted", [False, True])
def test_answers_do_not_depend_on_the_number_of_threads(
    everything_shared, loss, order, d, weighted
):
    X, y = make_data(loss, 700, d, 0)
    weight = np.random.default_rng(3).integers(0, 3, 700).astype(float) if weighted else None
    results = []
    for jobs in (1, 2, 3):
        problem = sorel.Problem(
            np.asarray(X, order=order), y, risk=sorel.ESRM(2.0), loss=loss, fit_intercept=True,
            sample_weight=weight, n_jobs=jobs,
        )  # fmt: skip
        result, again = (sorel.solve(problem, tol=1e-8) for _ in range(2))
        assert_array_equal(result.w, again.w)
        assert_array_equal(result.weights, again.weights)
        assert result.converged
        results.append(result)
    for result in results[1:]:
        assert result.objective == pytest.approx(results[0].objective, rel=1e-7)
        assert_allclose(result.w, results[0].w, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sparse_data", [False, True])
def test_what_a_problem_holds_goes_with_it(everything_shared, sparse_data):
    # Vectors of length n that wait for the garbage collector add up over the fits of a search.
    X, y = make_data("squared", 300, 3, 0)

    def engines():
        # The class of a proxy is that of an object that may be gone.
        kinds = ((held, type(held)) for held in gc.get_objects())
        return {id(held) for held, kind in kinds if issubclass(kind, memory.MemoryEngine)}

    gc.collect()
    gc.disable()
    try:
        before = engines()
        problem = sorel.Problem(scipy.sparse.csr_array(X) if sparse_data else X, y, n_jobs=2)
        result = sorel.solve(problem)
        assert engines() > before
        del problem, result
        assert engines() <= before
    finally:
        gc.enable()
