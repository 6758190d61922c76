"""Time, memory and exactness of fits on a CUDA device: `make bench-gpu`.

A fit is timed from tensors on the device to a certified result on the host: the checks of the data,
the solver and the transfer of the weights are all in it. The first fit of each case, which compiles
and allocates, is not counted; of the others, the median is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import sorel
from benchmarks.common import markdown
from sorel import certificate as proof

SEED = 0


class Case(NamedTuple):
    """One row of the table: a problem, and the seconds that it should take."""

    n: int
    d: int
    kind: str
    loss: str
    risk: str
    tol: float
    bar: float
    goal: float

    @property
    def data(self) -> tuple[int, int, str, str]:
        return self.n, self.d, self.kind, self.loss

    def __str__(self) -> str:
        size = f"n={self.n:.0e}, d={self.d}, {self.kind}"
        return f"{self.loss}, {self.risk}, {size}, certified {self.tol:.0e}"


CASES = [
    Case(10**7, 100, "float64", "squared", "cvar:0.1", 1e-6, 0.5, 0.2),
    Case(10**7, 100, "float64", "squared", "esrm:2", 1e-6, 1.0, 0.2),
    Case(10**7, 100, "float64", "squared", "extremile:2.5", 1e-6, 1.0, 0.2),
    Case(10**7, 100, "float32", "squared", "cvar:0.1", 1e-5, 0.4, 0.1),
    Case(10**7, 100, "float32", "squared", "esrm:2", 1e-5, 0.4, 0.1),
    Case(10**7, 100, "float32", "squared", "extremile:2.5", 1e-5, 0.4, 0.1),
    Case(5 * 10**7, 20, "float64", "squared", "cvar:0.1", 1e-6, 1.0, 0.4),
    Case(10**6, 500, "float64", "logistic", "cvar:0.5", 1e-4, 3.0, 1.0),
]
STEPS = [1e-2, 1e-1, 1.0, 1e1, 1e2, 1e4, 1e6]
PROJECTION_BAR, PROJECTION_GOAL = 20.0, 5.0
FASTER_BAR, FASTER_GOAL = 10.0, 50.0


def make_data(torch: Any, n: int, d: int, kind: str, loss: str) -> tuple[Any, Any]:
    """Rows and targets on the device: Student noise with 3 degrees of freedom, or noisy labels."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    real = getattr(torch, kind)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=real)

    X, w = normal(n, d), normal(d) / d**0.5
    if loss == "squared":
        chi = sum(normal(n).square_() for _ in range(3))
        return X, X @ w + normal(n) / (chi / 3.0).sqrt_()
    u = torch.rand(n, generator=generator, device="cuda", dtype=torch.float64)
    return X, (X @ w + torch.log(u / (1.0 - u)) > 0.0).to(torch.int64)


def timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median time of calls after the first, and the last result."""
    result = function()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), result


def fit(X: Any, y: Any, case: Case) -> Any:
    problem = sorel.Problem(X, y, risk=case.risk, loss=case.loss)
    return sorel.solve(problem, tol=case.tol)


def fits(torch: Any, cases: list[Case], repeats: int, with_host: bool) -> None:
    rows, against = [], []
    made, X, y = None, None, None
    for case in cases:
        if made != case.data:
            X = y = None
            torch.cuda.empty_cache()
            X, y = make_data(torch, *case.data)
            made = case.data
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds, result = timed(lambda X=X, y=y, case=case: fit(X, y, case), repeats)
        vectors = (torch.cuda.max_memory_allocated() - before) / (8 * case.n)
        left = torch.cuda.memory_allocated() - before
        assert left == 0, f"{left} bytes are still allocated"
        rows.append(
            [
                str(case), f"{case.bar:g} s", f"{case.goal:g} s", f"{seconds:.3f} s",
                "yes" if seconds <= case.goal else "bar" if seconds <= case.bar else "no",
                f"{result.passes:.1f}", f"{result.relative_gap:.1e}", f"{vectors:.1f}",
            ]
        )  # fmt: skip
        print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
        if with_host and case.kind == "float64" and case.d == 100:
            rows_on_host, targets = X.cpu().numpy(), y.cpu().numpy()
            there, other = timed(lambda a=rows_on_host, b=targets, c=case: fit(a, b, c), 1)
            against.append(
                [case.risk, f"{there:.2f} s", f"{seconds:.3f} s", f"{there / seconds:.0f}",
                 f"{abs(result.objective / other.objective - 1.0):.1e}"]
            )  # fmt: skip
            print(*against[-1], sep=", ", file=sys.stderr, flush=True)
            del rows_on_host, targets
    head = ["fit", "bar", "goal", "measured", "goal met", "passes", "relative gap", "peak, vectors"]
    print(markdown(head, rows))
    if against:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        print(f"\nAgainst this library on {cores} cores, n=1e7, d=100, float64, certified 1e-06")
        print(f"(bar: {FASTER_BAR:g} times faster, goal: {FASTER_GOAL:g} times):\n")
        head = ["risk", "on the host", "on the device", "times faster", "objectives differ by"]
        print(markdown(head, against))


def projections(torch: Any, n: int, repeats: int) -> None:
    """Projections of q + eta l for losses with heavy tails, from small steps to large ones."""
    from sorel.engines.tensors.projection import make_projection

    losses = make_data(torch, n, 1, "float64", "squared")[1].square_().mul_(0.5)
    rows = []
    device = losses.device

    def measure(function: Callable[[], Any]) -> float:
        def call() -> None:
            function()
            torch.cuda.synchronize()

        return 1e3 * timed(call, repeats)[0]

    rows.append(
        ["torch.sort alone", *([f"{measure(lambda: torch.sort(losses)):.2f}"] * len(STEPS))]
    )
    for risk in (sorel.CVaR(0.1), sorel.ESRM(2.0), sorel.Extremile(2.5)):
        projection = make_projection(risk, n, None, device)
        row = []
        for eta in STEPS:
            target = 1.0 + eta * losses
            out = torch.empty_like(target)

            def call(target: Any = target, out: Any = out, projection: Any = projection) -> None:
                projection.project(out.copy_(target))

            row.append(f"{measure(call):.2f}")
        rows.append([repr(risk), *row])
    print(f"\nProjection of {n:.0e} numbers, milliseconds, by the step eta", end=" ")
    print(f"(bar: {PROJECTION_BAR:g}, goal: {PROJECTION_GOAL:g}):\n")
    print(markdown(["spectrum", *(f"{eta:g}" for eta in STEPS)], rows))


def certify(problem: sorel.Problem, result: Any) -> Any:
    """The certificate of a result as it is: Newton steps that tighten it may part ways."""
    run = problem.for_run()
    dual, _ = run.engine.nearest_dual(result.weights)
    return proof.certify(run, run.engine.point(run.from_user(result.w)), dual)


def exactness(torch: Any, n: int, d: int) -> None:
    """Certificates of the device against float64 evaluations of the same pair on the host."""
    rows = []
    worst, least = 0.0, np.inf
    for loss in ("squared", "huber", "logistic", "squared_hinge"):
        kind = "squared" if loss in ("squared", "huber") else "logistic"
        for real in ("float64", "float32"):
            X, y = make_data(torch, n, d, real, kind)
            # The numbers as they are stored, in float64.
            far = X.double().cpu().numpy(), y.double().cpu().numpy()
            for risk in ("cvar:0.1", "esrm:2", "extremile:2.5", "max"):
                more = {"risk": risk, "loss": loss, "penalty": sorel.L2(1e-3)}
                problem = sorel.Problem(X, y, fit_intercept=True, **more)
                host = sorel.Problem(*far, fit_intercept=True, **more)
                result = sorel.solve(problem, tol=1e-5)
                here, there = (certify(where, result) for where in (problem, host))
                unit = abs(there.primal)
                apart = max(abs(here.primal - there.primal), abs(here.dual - there.dual)) / unit
                gaps = [record.gap for record in result.history] + [here.gap, there.gap]
                worst, least = max(worst, apart), min(least, *gaps)
                rows.append([loss, real, risk, f"{result.relative_gap:.1e}", f"{apart:.1e}"])
    print(
        f"\nCertificates of the device against the host's of the same pair, n={n:.0e}, d={d}: ",
        end="",
    )
    print(f"{len(rows)} problems, differences up to {worst:.1e}, least gap {least:.1e}\n")
    print(markdown(["loss", "X", "risk", "relative gap", "primal and dual differ by"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="fits that are timed (default: 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, for a trial")
    parser.add_argument("--no-host", action="store_true", help="leave the host's fits out")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit('torch is not installed; pip install "sorel[torch]"')
    if not torch.cuda.is_available():
        sys.exit(f"no CUDA device: torch {torch.__version__} sees none")
    scale = arguments.scale
    cases = [case._replace(n=max(1000, int(scale * case.n))) for case in CASES]
    name, version = torch.cuda.get_device_name(), torch.__version__
    print(f"{name}, torch {version}, sorel {sorel.__version__}\n", flush=True)
    projections(torch, max(1000, int(scale * 10**7)), 3 * arguments.repeats)
    torch.cuda.empty_cache()
    exactness(torch, max(1000, int(scale * 2 * 10**5)), 20)
    print(flush=True)
    fits(torch, cases, arguments.repeats, not arguments.no_host)


if __name__ == "__main__":
    main()
