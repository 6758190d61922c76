"""What sorel.dask does to a cluster: bytes, and workers that die.

The contract of its engine is asked in test_engine_contract.py.
"""

import contextlib
import os
import pickle
import signal
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import sorel

pytest.importorskip("distributed", reason="Dask is an extra")

import dask
import dask.array as da
import distributed

from sorel.dask import ClusterError, DaskSpectralRiskRegressor, open_problem
from sorel.dask.cluster import Partitions

N, D = 40_000, 5


@contextlib.contextmanager
def cluster(n_workers, lost_after="1h"):
    """A client of so many processes of one thread."""
    with (
        # A local cluster gives up on a worker that was killed twice within this time.
        dask.config.set({"distributed.deploy.lost-worker-timeout": lost_after}),
        distributed.LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as made,
        distributed.Client(made, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client():
    with cluster(2) as client:
        yield client


def make(n, d=D, chunks=4, seed=0):
    rng, noise = da.random.default_rng(seed), da.random.default_rng(seed + 1)
    X = rng.normal(size=(n, d), chunks=(n // chunks, d))
    return X, X.sum(axis=1) + noise.standard_t(3, size=n, chunks=n // chunks)


@pytest.fixture
def traffic(monkeypatch):
    """Bytes of all messages to and from the workers, and how many rounds they made."""
    traffic, send = SimpleNamespace(bytes=0, rounds=0), Partitions._send

    def counted(partitions, addresses, messages):
        replies = send(partitions, addresses, messages)
        if messages[0].program[0][0] != "place":
            traffic.rounds += 1
            traffic.bytes += sum(len(pickle.dumps(part)) for part in (*messages, *replies))
        return replies

    monkeypatch.setattr(Partitions, "_send", counted)
    return traffic


def check_same(model, local):
    """Both are certified, so the objectives lie within both gaps."""
    assert model.converged_, model.status_
    assert abs(model.objective_ - local.objective_) <= model.gap_ + local.gap_


def test_a_whole_fit_moves_no_vector_of_losses(client, traffic):
    n, per_round = 1_000_000, []
    made = client.persist(make(n))
    for risk in ("cvar:0.1", "esrm:2"):
        model = DaskSpectralRiskRegressor(risk=risk, tol=1e-6, client=client)
        start = traffic.bytes, traffic.rounds
        model.fit(*made)
        assert model.converged_
        # The weights of the samples are fetched once, at the end.
        spent = traffic.bytes - start[0] - 8 * n
        per_round.append(spent / (traffic.rounds - start[1]))
    assert max(per_round) < 0.4e6


MIXTURE = sorel.Mixture([sorel.Mean(), sorel.CVaR(0.05), sorel.ESRM(3)], [0.3, 0.4, 0.3])


@pytest.mark.parametrize("risk", [sorel.ESRM(2), MIXTURE], ids=str)
def test_few_bins_are_doubled_until_they_serve(client, risk):
    X, y = (part.persist() for part in make(N))
    local = sorel.Problem(np.asarray(X), np.asarray(y), risk=risk)
    best = sorel.solve(local, tol=1e-9)
    with open_problem(X, y, risk=risk, penalty=local.penalty, client=client, bins=128) as made:
        result = sorel.solve(made, tol=1e-6)
        assert made.certificate(result.w, result.weights).relative_gap <= 1e-6
    assert best.dual * (1 - 1e-12) <= result.objective <= best.objective * (1 + 1e-6)
    assert result.dual <= best.objective * (1 + 1e-12)
    # What certifies the answer there certifies it here, where every loss is seen.
    assert local.certificate(result.w, result.weights).relative_gap <= 1e-6


@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2"])
@pytest.mark.parametrize("labels", [False, True], ids=["shards that differ", "ties at the start"])
def test_awkward_data(client, risk, labels):
    """Rows in the order of their targets, and labels, whose losses are all equal at first."""
    X, y = (np.asarray(part) for part in make(N))
    order = np.argsort(y)
    X, y = X[order], y[order] > 0 if labels else y[order]
    there, here = (
        (sorel.dask.DaskSpectralRiskClassifier, sorel.SpectralRiskClassifier)
        if labels
        else (DaskSpectralRiskRegressor, sorel.SpectralRiskRegressor)
    )
    parts = da.from_array(X, chunks=(N // 4, D)), da.from_array(y, chunks=N // 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sorel.ConstantModelWarning)  # noise
        model = there(risk, tol=1e-6, client=client).fit(*parts)
        check_same(model, here(risk, tol=1e-6).fit(X, y))


def after(traffic, rounds, act):
    """A thread that acts some rounds after now."""
    until = traffic.rounds + rounds

    def wait():
        while traffic.rounds < until:
            time.sleep(0.001)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("risk", "solver", "rounds"), [
    ("cvar:0.1", "auto", 3), ("cvar:0.1", "auto", 24), ("esrm:2", "auto", 3),
    ("esrm:2", "auto", 14), ("esrm:2", "newton_cg", 20),
])  # fmt: skip
def test_a_killed_worker_does_not_end_a_fit(client, traffic, risk, solver, rounds):
    X, y = make(N)
    local = sorel.SpectralRiskRegressor(risk, tol=1e-6).fit(np.asarray(X), np.asarray(y))
    client.wait_for_workers(2, timeout=60)
    pids = client.run(os.getpid, workers=list(client.nthreads()), on_error="ignore")
    pid = next(iter(pids.values()))
    killer = after(traffic, rounds, lambda: os.kill(pid, signal.SIGKILL))
    model = DaskSpectralRiskRegressor(risk, tol=1e-6, solver=solver, client=client).fit(X, y)
    killer.join(10.0)
    assert "1 lost and their shards rebuilt" in model.status_
    check_same(model, local)
    assert model.risk_weights_.sum() == pytest.approx(1.0, abs=1e-12)
    client.wait_for_workers(2, timeout=60)


def test_a_worker_is_lost_between_a_step_of_the_weights_and_their_curvature(client):
    with open_problem(*make(1000), risk="cvar:0.1", client=client) as problem:
        engine = problem.engine
        point = engine.point(np.ones(D))
        dual = engine.dual_step(engine.uniform(), point, 1.0)
        assert engine.slope(point, dual, engine.direction(np.ones(D))) != 0.0
        curvature = engine.curvature(point, dual, 1.0)
        os.kill(client.run(os.getpid)[engine.partitions.addresses[0]], signal.SIGKILL)
        matrix = curvature.matrix()
        assert np.linalg.eigvalsh(matrix)[0] > 0.0
        v = np.arange(D, dtype=float)
        np.testing.assert_allclose(curvature.product(v), matrix @ v, rtol=1e-12)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize("rounds", [0, 6], ids=["before the fit", "in the middle of it"])
def test_a_stopped_worker_holds_up_a_fit_no_longer_than_the_timeout(traffic, rounds):
    X, y = make(N)
    # Long enough for a machine that is busy with other tests.
    with dask.config.set({"sorel.worker-timeout": 10.0}), cluster(2, "15s") as client:
        pid = next(iter(client.run(os.getpid).values()))
        stopper = after(traffic, rounds, lambda: os.kill(pid, signal.SIGSTOP))
        if rounds == 0:
            stopper.join(10.0)
        try:
            start = time.monotonic()
            model = DaskSpectralRiskRegressor("esrm:2", tol=1e-6, client=client).fit(X, y)
            # Scheduler and workers wait for ten heartbeats at least, and 300 s by themselves.
            assert time.monotonic() - start < 60.0
            assert ("1 lost and their shards rebuilt" in model.status_) == (rounds > 0)
            local = sorel.SpectralRiskRegressor("esrm:2", tol=1e-6).fit(X.compute(), y.compute())
            check_same(model, local)
        finally:
            stopper.join(10.0)
            os.kill(pid, signal.SIGKILL)


def test_workers_of_another_version_are_refused_by_name():
    def pretend(version):
        import sys

        import sorel

        if version is None:
            sys.modules["sorel"] = None
        else:
            sorel.__version__ = version

    X, y = make(1000)
    with cluster(2) as client:
        address = sorted(client.nthreads())[1]
        for version, words in (("0.0.7", "sorel 0.0.7"), (None, "no sorel")):
            client.run(pretend, version, workers=[address])
            with pytest.raises(ClusterError, match=f"worker {address} has {words}") as caught:
                DaskSpectralRiskRegressor(client=client).fit(X, y)
            assert f"this is sorel {sorel.__version__}" in str(caught.value)
            assert f"sorel[dask]=={sorel.__version__}" in str(caught.value)


class Spoilt(distributed.WorkerPlugin):
    """Every worker fails over the first Hessian, or dies, as if its memory were too small."""

    def __init__(self, dies):
        self._dies = dies

    def setup(self, worker):
        from sorel.dask.shards import Session

        def hessian(session, *args):
            if self._dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise MemoryError("no room")

        Session.hessian = hessian


def test_workers_whose_memory_is_too_small_end_the_fit():
    with cluster(1) as client:
        client.register_plugin(Spoilt(dies=False), name="spoilt")
        with pytest.raises(ClusterError, match=r"out of memory on its shard, partitions .* rows"):
            DaskSpectralRiskRegressor("cvar:0.1", client=client).fit(*make(N))
        client.register_plugin(Spoilt(dies=True), name="spoilt")
        with pytest.raises(
            ClusterError, match=r"in a row .* partitions 0, 1, 2, 3: 40000 rows"
        ) as e:
            DaskSpectralRiskRegressor("cvar:0.1", client=client).fit(*make(N))
        assert e.value.coef_.shape == (D,)


def test_a_scheduler_that_goes_away_leaves_the_best_iterate(traffic):
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}), cluster(1) as client:
        X, y = make(N)
        closer = after(traffic, 12, client.cluster.close)
        model = DaskSpectralRiskRegressor("cvar:0.1", tol=1e-9, client=client)
        with pytest.raises(ClusterError, match=r"does not answer|the client is") as caught:
            model.fit(X, y)
        closer.join(20.0)
        assert caught.value.coef_.shape == (D,)
        assert np.all(np.isfinite(caught.value.w))


def test_runs_are_forgotten_and_stochastic_solvers_refused(client):
    def sessions():
        from sorel.dask import shards

        return sum(len(home.sessions) for home in shards._HOMES.values())

    with open_problem(*make(1000), risk="esrm:2", client=client) as made:
        for _ in range(5):
            made.objective(np.ones(D))
        # That of the last call, and that of the problem itself.
        assert max(client.run(sessions).values()) <= 2
        with pytest.raises(ValueError, match="single samples, of which each would cost a message"):
            sorel.solve(made, "sorel")


def test_data_that_no_worker_is_left_to_load():
    def slow(block):
        time.sleep(2.0)
        return block

    X, y = make(1000)
    X = X.map_blocks(slow, meta=np.empty((0, D)))
    with dask.config.set({"sorel.worker-timeout": 0.5}), cluster(1) as client:
        threading.Timer(1.0, client.cluster.scale, [0]).start()
        with pytest.raises(ClusterError, match=r"not computed.* no worker for 0\.5 s; start some"):
            DaskSpectralRiskRegressor(client=client).fit(X, y)
