"""Fits on a Dask cluster of two processes on this machine, against the same fits in memory.

Rows are generated on the workers. Sections: a large fit, the time and the bytes of one evaluation,
the certified gap against the number of bins, and fits during which a worker is killed. Run as
``python -m benchmarks.cluster [--quick] [--only SECTION]``.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

import sorel
from benchmarks.common import markdown, show_seconds
from sorel.dask import DaskSpectralRiskRegressor, open_problem
from sorel.dask.cluster import Partitions

RISKS = {"CVaR(0.1)": "cvar:0.1", "ESRM(2)": "esrm:2"}
SPECTRA = {
    "ESRM(2)": sorel.ESRM(2),
    "Extremile(2.5)": sorel.Extremile(2.5),
    "0.5 CVaR(0.1) + 0.5 ESRM(2)": sorel.Mixture([sorel.CVaR(0.1), sorel.ESRM(2)], [0.5, 0.5]),
}
TOL = 1e-6
SECTIONS = ("fit", "evaluation", "bins", "kills")


def rows(n: int, d: int, chunks: int = 8) -> tuple[Any, Any]:
    """Normal features and targets with Student-t noise, generated where they will be used."""
    height = -(-n // chunks)
    X = da.random.default_rng(0).normal(size=(n, d), chunks=(height, d))
    noise = da.random.default_rng(1).standard_t(3, size=n, chunks=height)
    return X, X.sum(axis=1) + noise


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result


def large_fit(client: distributed.Client, n: int, d: int) -> str:
    """The same problem on the cluster and in memory."""
    X, y = client.persist(rows(n, d))
    distributed.wait([X, y])
    table = []
    found = {}
    for name, risk in RISKS.items():
        model = DaskSpectralRiskRegressor(risk, tol=TOL, client=client)
        seconds, model = timed(lambda model=model: model.fit(X, y))
        found[name] = seconds, model
    X, y = client.compute([X, y], sync=True)
    for name, risk in RISKS.items():
        seconds, model = found[name]
        local = sorel.SpectralRiskRegressor(risk, tol=TOL, n_jobs=1)
        alone, local = timed(lambda local=local: local.fit(X, y))
        apart = abs(model.objective_ - local.objective_)
        table.append(
            [
                name,
                show_seconds(seconds),
                f"{model.n_passes_:.4g}",
                f"{model.relative_gap_:.1e}",
                show_seconds(alone),
                f"{local.relative_gap_:.1e}",
                f"{apart / local.objective_:.1e}",
                "yes" if apart <= model.gap_ + local.gap_ else "no",
            ]
        )
    return markdown(
        [
            "risk", "two workers", "passes", "certified", "in memory, one thread", "certified",
            "objectives differ by", "within the certificates",
        ],
        table,
    )  # fmt: skip


class Traffic:
    """Bytes to and from the workers, and rounds."""

    def __init__(self) -> None:
        self.bytes = self.rounds = 0
        self.counting = False
        send = Partitions._send

        def counted(partitions: Any, addresses: list[str], messages: list[Any]) -> Any:
            replies = send(partitions, addresses, messages)
            if self.counting:
                self.rounds += 1
                self.bytes += sum(len(pickle.dumps(part)) for part in (*messages, *replies))
            return replies

        Partitions._send = counted  # type: ignore[method-assign] # to count

    def of(self, action: Callable[[], Any]) -> tuple[int, int]:
        """Bytes and rounds of an action."""
        self.bytes, self.rounds, self.counting = 0, 0, True
        action()
        self.counting = False
        return self.bytes, self.rounds


def evaluate(problem: sorel.Problem, w: np.ndarray) -> None:
    """Losses, dual step and gradient: what a line search asks for at every trial."""
    engine = problem.engine
    point = engine.point(w)
    dual = engine.dual_step(engine.uniform(), point, 1.0)
    engine.expected(point, dual)
    engine.gradient(point, dual)


def round_trip(client: distributed.Client, repeats: int = 100) -> str:
    """The time of a message that asks for nothing."""
    with open_problem(*rows(1000, 2, chunks=2), client=client) as problem:
        engine = problem.engine
        seconds = [
            timed(lambda: engine.partitions.exchange(engine.run, [("free", [])]))[0]
            for _ in range(repeats)
        ]
    return f"An empty round: {show_seconds(median(seconds))} (median of {repeats})."


def evaluations(client: distributed.Client, sizes: list[int], d: int, repeats: int) -> str:
    traffic = Traffic()
    table = []
    w = np.full(d, 0.9)
    for n in sizes:
        X, y = client.persist(rows(n, d))
        distributed.wait([X, y])
        arrays = client.compute([X, y], sync=True)
        for name, risk in RISKS.items():
            local = sorel.Problem(*arrays, risk=risk, n_jobs=1).for_run()
            with open_problem(X, y, risk=risk, client=client) as problem:
                problem = problem.for_run()
                actions = {
                    "objective": lambda p: p.engine.risk(p.engine.point(w)),
                    "dual step and gradient": lambda p: evaluate(p, w),
                }
                for what, action in actions.items():
                    times: dict[str, float] = {}
                    for place, given in (("cluster", problem), ("memory", local)):
                        action(given)
                        with given.engine.working():
                            times[place] = median(
                                timed(lambda a=action, g=given: a(g))[0] for _ in range(repeats)
                            )
                    size, rounds = traffic.of(lambda a=action, p=problem: a(p))
                    bar = 3 * times["memory"] + 0.1
                    table.append(
                        [
                            f"{n:.0e}".replace("e+0", "e"),
                            name,
                            what,
                            show_seconds(times["cluster"]),
                            show_seconds(times["memory"]),
                            "yes" if times["cluster"] <= bar else "no",
                            f"{rounds}",
                            f"{size / 1e3:.1f}",
                        ]
                    )
    header = [
        "n", "risk", "evaluation", "two workers", "in memory", "<= 3x + 100 ms", "rounds", "kB",
    ]  # fmt: skip
    return markdown(header, table)


def bins_table(client: distributed.Client, n: int, d: int, counts: list[int]) -> str:
    X, y = client.persist(rows(n, d))
    distributed.wait([X, y])
    table = []
    for name, risk in SPECTRA.items():
        row = [name]
        for count in counts:
            settings = {"risk": risk, "client": client, "bins": count, "precision": np.inf}
            with open_problem(X, y, **settings) as problem, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = sorel.solve(problem, "newton", tol=1e-9, max_passes=25)
            row.append(f"{result.relative_gap:.1e}")
        table.append(row)
    return markdown(["risk", *(f"B = {count}" for count in counts)], table)


def kills(client: distributed.Client, n: int, d: int, fits: int) -> str:
    X, y = rows(n, d)
    rng = np.random.default_rng(0)
    table = []
    for name, risk in RISKS.items():
        client.wait_for_workers(2)
        model = DaskSpectralRiskRegressor(risk, tol=TOL, client=client)
        model.fit(X, y)
        alone, _ = timed(lambda model=model: model.fit(X, y))
        best, gap = model.objective_, model.gap_
        seconds, right = [], 0
        for _ in range(fits):
            client.wait_for_workers(2)
            time.sleep(1.0)
            pids = client.run(os.getpid, on_error="ignore")
            victim = int(rng.choice(list(pids.values())))
            timer = threading.Timer(
                float(rng.uniform(0.05, 0.95)) * alone, os.kill, (victim, signal.SIGKILL)
            )
            timer.start()
            spent, _ = timed(lambda model=model: model.fit(X, y))
            timer.join()
            seconds.append(spent)
            right += model.converged_ and abs(model.objective_ - best) <= model.gap_ + gap
        table.append(
            [
                name,
                show_seconds(alone),
                show_seconds(median(seconds)),
                show_seconds(max(seconds)),
                f"{right} of {fits}",
            ]
        )
    header = ["risk", "undisturbed", "with a kill, median", "slowest", "right answers"]
    return markdown(header, table)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, fewer fits")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    arguments = parser.parse_args(argv)
    wanted = SECTIONS if arguments.only is None else (arguments.only,)
    small = 10 if arguments.quick else 1
    with (
        # A local cluster gives up on a worker that was killed twice within this time.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        DaskSpectralRiskRegressor("esrm:2", client=client).fit(*rows(20_000, 5))
        DaskSpectralRiskRegressor("cvar:0.1", client=client).fit(*rows(20_000, 5))
        if "fit" in wanted:
            n = 10_000_000 // small
            print(f"## n={n:.0e}, d=20, to a certified {TOL:.0e}\n")
            print(large_fit(client, n, 20), "\n", flush=True)
        if "evaluation" in wanted:
            print("## One evaluation, d=50\n")
            print(round_trip(client), "\n", flush=True)
            sizes = [100_000 // small, 1_000_000 // small]
            print(evaluations(client, sizes, 50, 7), "\n", flush=True)
        if "bins" in wanted:
            n = 1_000_000 // small
            print(f"## Certified relative gap against bins of each worker: n={n:.0e}, d=20\n")
            counts = [256, 1024, 2048, 4096] if small == 1 else [256, 1024]
            print(bins_table(client, n, 20, counts), "\n", flush=True)
        if "kills" in wanted:
            n = 500_000 // small
            print(f"## A worker killed at a random moment of each fit: n={n:.0e}, d=20\n")
            print(kills(client, n, 20, 5 if small == 1 else 2), "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
