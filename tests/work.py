"""How much work small problems take: what runs of every kind evaluate, and what they did last time.

    python tests/work.py          # prints what has left the table's bounds
    python tests/work.py --write  # writes the table anew, after a change that is meant

A mistake in a decision (when to check, which way to go, when to stop) seldom makes an answer wrong,
since every answer is certified. It makes the answer slow. So the passes of each run here, and the
operations that it asks of its engine, are kept in `data/work.json`, and a test compares.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse
from helpers import RISKS, make_data, make_loss
from own_penalties import OwnElasticNet, Pseudohuber

import sorel
from sorel import problem, proximal, rowspace
from sorel.engines.base import Curvature, Engine
from sorel.models import constrained, minimize_quadratic, smooth
from sorel.problem import Problem

TABLE = Path(__file__).resolve().parent / "data" / "work.json"

# What is counted, by the operations of an engine, a curvature or a problem that do it.
_OPERATIONS = {
    "points": ("point", "moved", "tried", "search", "settle"),
    "weightings": ("ascend", "worst_case", "blend", "secant"),
    "gradients": ("gradient", "slope"),
    "matrices": ("hessian", "curvature", "columns", "factor"),
    "products": ("product", "solve"),
    "epochs": ("epoch", "minibatch_epoch", "prospect_epoch", "saddle_epoch"),
    "intercepts": ("best_intercept", "intercept_slack", "intercept_spread"),
    "certificates": ("certificate", "certify", "refine"),
    "maps": ("prox",),
}
_OWN_PENALTIES = (OwnElasticNet, Pseudohuber)

# LAPACK's Cholesky decompositions and what is solved with them.
_SYSTEMS = {"dpotrf": "decompositions", "dpotrs": "triangles"}
_MODULES = (constrained, problem, proximal, rowspace, smooth)

PENALTIES = {
    "l2": sorel.L2(0.01),
    "elastic": sorel.ElasticNet(0.01, 0.05),
    "nonnegative": sorel.NonNegative(0.01),
    "box": sorel.Box(0.01, -0.2, 0.3),
    "simplex": sorel.Simplex(0.01),
}


def _descendants(cls: type) -> Iterator[type]:
    yield cls
    for below in cls.__subclasses__():
        yield from _descendants(below)


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """Counts operations, by kind, of all that runs inside."""
    counts: Counter[str] = Counter()

    def counted(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def count(*arguments: Any, **named: Any) -> Any:
            counts[kind] += 1
            return function(*arguments, **named)

        return count

    classes = {*_descendants(Engine), *_descendants(Curvature), *_OWN_PENALTIES, Problem}
    with contextlib.ExitStack() as stack:
        for kind, names in _OPERATIONS.items():
            for cls in classes:
                for name in names:
                    function = cls.__dict__.get(name)
                    if callable(function):
                        patch = mock.patch.object(cls, name, counted(kind, function))
                        stack.enter_context(patch)
        for name, kind in _SYSTEMS.items():
            for module in _MODULES:
                if hasattr(module, name):
                    patch = mock.patch.object(module, name, counted(kind, getattr(module, name)))
                    stack.enter_context(patch)
        yield counts


# The data of all runs are multiplied by 1 plus so much noise: a run whose work depends on rounding
# has no place in the table.
_noise = 0.0


def _data(loss: str, n: int, d: int, seed: int = 11) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_data(loss, n, d, seed)
    return X * (1.0 + _noise * np.random.default_rng(1).standard_normal(X.shape)), y


def _solved(
    loss: str,
    risk: str,
    penalty: str,
    *,
    n: int = 200,
    d: int = 4,
    home: str = "dense",
    solver: str = "auto",
    tol: float = 1e-7,
    max_passes: float = 400,
    intercept: bool = False,
    weighted: bool = False,
) -> sorel.Result:
    X, y = _data(loss, n, d)
    problem = Problem(
        HOMES[home](X),
        y,
        risk=RISKS[risk],
        loss=make_loss(loss),
        penalty=PENALTIES[penalty],
        fit_intercept=intercept,
        sample_weight=np.random.default_rng(7).uniform(0.3, 2.0, n) if weighted else None,
        n_jobs=1,
    )
    return sorel.solve(problem, solver, tol=tol, max_passes=max_passes, random_state=3)


def _sparse(X: np.ndarray) -> Any:
    return scipy.sparse.csr_matrix(X * (np.random.default_rng(5).random(X.shape) < 0.3))


def _on_disk(X: np.ndarray) -> Any:
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, X)
        file.flush()
        return np.load(file.name, mmap_mode="r")


HOMES: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": lambda X: X,
    "columns": np.asfortranarray,
    "single": lambda X: X.astype(np.float32),
    "sparse": _sparse,
    "disk": _on_disk,
}


def _path(**options: Any) -> float:
    X, y = _data("squared", 300, 6)
    return float(sorel.path(X, y, tol=1e-6, **options).passes.sum())


def _quantile(**options: Any) -> None:
    sorel.QuantileRegressor(n_jobs=1, **options).fit(*_data("squared", 300, 4))


def _rank(**options: Any) -> None:
    sorel.RankRegressor(n_jobs=1, **options).fit(*_data("squared", 300, 4))


def _portfolio(**options: Any) -> None:
    returns = 0.01 * _data("squared", 400, 8)[0] + np.linspace(0.0, 0.002, 8)
    sorel.SpectralRiskPortfolio(n_jobs=1, **options).fit(returns)


def _model(penalty: sorel.penalties.Penalty, size: int, rough: float = 0.0) -> float:
    """A quadratic model with columns that resemble one another, and one intercept."""
    rng = np.random.default_rng(size)
    A = rng.standard_normal((2 * size, size)) + rng.standard_normal((2 * size, 1))
    A *= 1.0 + _noise * rng.standard_normal(A.shape)
    gradient = A.T @ rng.standard_normal(2 * size) / size
    found = minimize_quadratic(
        A.T @ A / size, gradient, np.zeros(size), penalty, size - 1, 1, rough
    )
    return found[1].n_iter


def _runs() -> dict[str, Callable[[], Any]]:
    """All runs by name; the first word of a name is the kind."""
    runs: dict[str, Callable[[], Any]] = {}

    def add(kind: str, loss: str, risk: str, penalty: str = "l2", **options: Any) -> None:
        words = [kind, loss, risk, penalty]
        for key, value in options.items():
            if value is not False and key not in ("tol", "max_passes"):
                words.append(key if value is True else str(value))
        name = "-".join(words)
        assert name not in runs, name
        runs[name] = functools.partial(_solved, loss, risk, penalty, **options)

    losses = ["squared", "huber", "logistic", "squared_hinge", "poisson", "multinomial"]
    count = 0
    for loss in losses:
        for penalty in PENALTIES:
            for risk in RISKS:
                count += 1
                flags = {"intercept": count % 2 == 0, "weighted": count % 3 == 0}
                add("small", loss, risk, penalty, **flags)
    for i, risk in enumerate(RISKS):
        for j, loss in enumerate(losses):
            flags = {"intercept": (i + j) % 2 == 0, "weighted": (i + j) % 3 == 0}
            if (loss, risk) != ("poisson", "max"):
                add("dense", loss, risk, n=1200, d=40, **flags)
            add("wide", loss, risk, ["l2", "elastic"][(i + j) % 2], n=50, d=120, **flags)
            add("sparse", loss, risk, ["l2", "elastic", "box"][(i + j) % 3], d=30, home="sparse")
            add("disk", loss, risk, home="disk", **flags)
            if (i + j) % 2:
                add("single", loss, risk, home="single", tol=1e-4, **flags)
                add("columns", loss, risk, home="columns", n=1200, d=20, **flags)
    for loss, risk in (("squared", "cvar"), ("logistic", "esrm"), ("huber", "mixture")):
        for solver in ("newton", "newton_cg", "continuation", "lbfgs", "subgradient"):
            add("solver", loss, risk, solver=solver, d=20, tol=1e-5)
    for loss, risk in (("squared", "esrm"), ("logistic", "extremile"), ("squared_hinge", "mean")):
        for penalty, home in (("l2", "dense"), ("elastic", "sparse"), ("box", "dense")):
            for solver in ("sorel", "lsvrg", "prospect", "saddle_saga", "sgd"):
                by_rank = solver in ("prospect", "saddle_saga")
                flags = {
                    "intercept": home == "sparse",
                    "weighted": penalty == "box" and not by_rank,
                }
                add("epochs", loss, risk, penalty, solver=solver, home=home, tol=1e-3,
                    max_passes=60, **flags)  # fmt: skip
    for loss, risk in (("squared", "esrm"), ("logistic", "cvar"), ("huber", "max")):
        for solver in ("apd", "pdhg", "admm", "drago", "stochastic_pd"):
            add("rivals", loss, risk, solver=solver, tol=1e-3, max_passes=300)
    models = {
        **PENALTIES,
        "lasso": sorel.ElasticNet(1e-4, 0.3),
        "budget": sorel.Budget(0.01, lower=-0.1, upper=0.4),
        "costs": sorel.Budget(0.01, lower=-0.1, upper=0.4, previous=0.05, cost=0.1),
        "own": OwnElasticNet(0.01, 0.3),
        "smooth": Pseudohuber(0.01),
    }
    for name, model in models.items():
        for size in (6, 30, 100):
            runs[f"model-{name}-{size}"] = functools.partial(_model, model, size)
            runs[f"model-{name}-{size}-rough"] = functools.partial(_model, model, size, 0.01)
    several = {
        "path-l2": (_path, {"risks": ["cvar:0.2"], "l2": [1.0, 0.1, 0.01, 0.001]}),
        "path-risks": (_path, {"risks": ["mean", "esrm:1", "cvar:0.5"], "l2": [0.1, 0.01]}),
        "path-esrm": (_path, {"risks": ["esrm:1"], "l2": np.geomspace(1.0, 1e-3, 8)}),
        "path-lasso": (_path, {"risks": ["esrm:1"], "l2": [0.1, 0.05, 0.02], "l1": 0.05}),
        "linear-median": (_quantile, {"quantile": 0.5, "alpha": 0.01}),
        "linear-quantile": (_quantile, {"quantile": 0.9, "alpha": 0.0}),
        "linear-rank": (_rank, {}),
        "linear-portfolio": (_portfolio, {"risk": "cvar:0.1"}),
        "linear-reward": (_portfolio, {"risk": "cvar:0.1", "reward": 0.5, "lower": -0.5}),
        "linear-target": (_portfolio, {"risk": "esrm:3", "target_return": 0.0012}),
        "linear-costs": (
            _portfolio,
            {"risk": "cvar:0.2", "previous_weights": np.full(8, 0.125), "transaction_cost": 0.001},
        ),
    }
    for name, (run, options) in several.items():
        runs[name] = functools.partial(run, **options)
    return runs


RUNS = _runs()


def measure(name: str, noise: float = 0.0) -> dict[str, float]:
    """The passes of a run, its checks, and the operations that it took."""
    with (
        warnings.catch_warnings(),
        counting() as counts,
        mock.patch(f"{__name__}._noise", noise),
        # Spans of 70 rows, and nothing that is too small for the disk.
        mock.patch("sorel.rows.source.SPAN_BYTES", 1),
        mock.patch("sorel.rows.source.MIN_SPAN_ROWS", 70),
        mock.patch("sorel.problem.WORTH_STREAMING", 0),
    ):
        warnings.simplefilter("ignore")  # some runs are cut short, which is counted all the same
        found = RUNS[name]()
    if isinstance(found, sorel.Result):
        counts["passes"], counts["checks"] = found.passes, len(found.history)
    elif found is not None:
        counts["passes"] = found
    return {kind: round(float(count), 1) for kind, count in sorted(counts.items()) if count}


def outside(recorded: dict[str, float], measured: dict[str, float]) -> list[str]:
    """What is more than a quarter and one above the record, or two fifths and one below."""
    complaints = []
    for kind in sorted({*recorded, *measured}):
        before, now = recorded.get(kind, 0.0), measured.get(kind, 0.0)
        if not 0.6 * before - 1.0 <= now <= 1.25 * before + 1.0:
            complaints.append(f"{kind}: {now:g}, recorded {before:g}")
    return complaints


def steady(name: str) -> dict[str, float] | None:
    """What a run takes, or None where changes of the data by rounding errors change that."""
    measured = measure(name)
    others = [measure(name, noise) for noise in (1e-15, -1e-14, 1e-13)]
    return None if any(_differs(measured, other) for other in others) else measured


def _differs(measured: dict[str, float], other: dict[str, float]) -> bool:
    kinds = {*measured, *other}
    return any(
        abs(measured.get(kind, 0.0) - other.get(kind, 0.0)) > 0.1 * measured.get(kind, 0.0)
        for kind in kinds
    )


def main() -> int:
    """Compare with the table or write it; 1 where a run has left the bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table anew")
    if parser.parse_args().write:
        found = {name: steady(name) for name in RUNS}
        rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items() if row]
        TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
        print(f"{len(rows)} of {len(RUNS)} runs do not depend on rounding")
        return 0
    table, bad = json.loads(TABLE.read_text()), 0
    for name in table:
        for complaint in outside(table[name], measure(name)):
            bad = 1
            print(f"{name}: {complaint}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
