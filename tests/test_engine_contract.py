"""The tests of the contract for every home of the data, and what a foreign engine can count on.

The partitioned engine of docs/extending/engine.md stands for a home that somebody else wrote.
"""

from __future__ import annotations

import dask.array as da
import distributed
import numpy as np
import pytest
import scipy.sparse
from contract import *  # noqa: F403 (its tests are those of this module)
from contract import D, N
from helpers import RISKS, make_data, make_loss
from partitioned import PartitionedEngine

import sorel
from sorel.dask import open_problem
from sorel.engines import BlocksEngine, DenseEngine, Engine
from sorel.engines.centered import CenteredMatrix
from sorel.permutahedron import Derivative, WeightSet
from sorel.rows import open_rows, write_blocks
from sorel.solvers.base import UnsupportedProblemError

STOCHASTIC = ["sorel", "prospect", "lsvrg", "sgd", "saddle_saga"]


@pytest.fixture(scope="module")
def client():
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


@pytest.fixture(params=["dense", "columns", "sparse", "less", "disk", "partitioned", "dask"])
def home(request, tmp_path, monkeypatch):
    """A function that makes a problem whose data live there."""
    opened = []

    def make(loss, *, risk="esrm", intercept=False, weighted=False, penalty=None, unit=1, shift=0):
        X, y = make_data(loss, N, D, 0)
        y = unit * (y + shift)
        more = {
            "risk": RISKS[risk], "loss": make_loss(loss), "penalty": penalty or sorel.L2(0.1),
            "fit_intercept": intercept,
        }  # fmt: skip
        omega = np.random.default_rng(1).uniform(0.2, 2.0, N) if weighted else None
        if request.param == "dask":
            weight = None if omega is None else da.from_array(omega, chunks=9)
            context = open_problem(
                da.from_array(X, chunks=(9, D)), da.from_array(y, chunks=9), sample_weight=weight,
                client=request.getfixturevalue("client"), **more,
            )  # fmt: skip
            opened.append(context)
            return context.__enter__()
        engine = None
        if request.param == "columns":
            X = np.asfortranarray(X)
        elif request.param == "sparse":
            X = scipy.sparse.csr_array(X)
        elif request.param == "less" and not intercept:
            shift = np.linspace(0.5, 1.5, D)
            X = CenteredMatrix(scipy.sparse.csr_array(X + shift), shift)
        elif request.param == "disk":
            monkeypatch.setattr("sorel.rows.source.MIN_SPAN_ROWS", 7)
            monkeypatch.setattr("sorel.rows.source.SPAN_BYTES", 1)
            folder = tmp_path / f"blocks{len(list(tmp_path.iterdir()))}"
            write_blocks(folder, X, rows_per_block=8)
            X, engine = open_rows(folder), BlocksEngine
        elif request.param == "partitioned":
            engine = PartitionedEngine
        return sorel.Problem(X, y, sample_weight=omega, engine=engine, **more)

    yield make
    for context in opened:
        context.__exit__(None, None, None)


def test_the_contract_has_at_most_35_operations():
    public = [name for name in vars(Engine) if not name.startswith("_")]
    assert len(public) <= 35


@pytest.mark.parametrize("solver", STOCHASTIC)
def test_solvers_on_single_samples_refuse_a_foreign_engine_by_name(solver):
    X, y = make_data("squared", N, D, 0)
    problem = sorel.Problem(X, y, engine=PartitionedEngine)
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}' needs .* PartitionedEngine"):
        sorel.solve(problem, solver)


def test_from_engine_and_what_is_not_an_engine():
    X, y = make_data("squared", N, D, 0)
    problem = sorel.Problem(X, y, risk="cvar:0.2", engine=PartitionedEngine)
    same = sorel.Problem.from_engine(problem.engine, problem.penalty)
    assert same.risk == sorel.CVaR(0.2)
    assert same.loss.name == "squared"
    assert sorel.solve(same).objective == sorel.solve(problem).objective
    with pytest.raises(TypeError, match=r"engine must make a sorel\.engines\.Engine"):
        sorel.Problem(X, y, engine=lambda X, spec: X)


# A risk is a convex set of weightings: two that are no spectrum's.


class ChiSquare(WeightSet):
    """{q >= 0, mean q = 1, mean (q - 1)^2 <= radius}, for equal weights."""

    heaviest = 1.0

    def __init__(self, n, radius):
        self.n, self.radius = n, radius

    def _scaled(self, z):
        """The q = max(s (z - t), 0) of mean 1 on the boundary, and s."""
        order = np.sort(z)[::-1]
        for count in range(self.n, 0, -1):
            top = order[:count] - order[:count].mean()
            rest = self.n * (1.0 + self.radius) - self.n**2 / count
            if rest >= 0.0 and np.any(top):
                s = np.sqrt(rest / (top @ top))
                q = self.n / count + s * (z - order[:count].mean())
                if np.sort(q)[::-1][count - 1] >= 0.0:
                    return np.maximum(q, 0.0), s
        return self.n * (z == z.max()) / np.sum(z == z.max()), 0.0

    def value(self, losses):
        return self.worst_case(losses, np.empty(self.n))

    def worst_case(self, losses, out):
        out[:] = self._scaled(losses)[0] if np.ptp(losses) > 0.0 else 1.0
        return float(out @ losses) / self.n

    def shortfall(self, losses, density):
        return max(self.value(losses) - float(density @ losses) / self.n, 0.0)

    def nearest(self, zeta):
        order = np.sort(zeta)[::-1]
        counts = np.arange(1, self.n + 1)
        shifts = (np.cumsum(order) - self.n) / counts
        t = shifts[np.flatnonzero(order > shifts)[-1]]
        q, scale, vectors = np.maximum(zeta - t, 0.0), 1.0, None
        if np.mean((q - 1.0) ** 2) > self.radius:
            q, scale = self._scaled(zeta)
            inside = q > 0.0
            away = np.where(inside, zeta - zeta[inside].mean(), 0.0)
            vectors = (away * np.sqrt(scale / np.mean(away**2)))[None]
        block = np.where(q > 0.0, 0, -1).astype(np.int32)
        return q, Derivative(block, 1, scale, vectors)


class OwnSet(DenseEngine):
    def _make_projector(self, risk):
        return ChiSquare(self.n_samples, 0.8)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("solver", ["auto", "newton", "newton_cg"])
def test_a_set_of_weightings_of_ones_own_is_solved_and_certified(loss, solver):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    X, y = make_data(loss, N, D, 0)
    problem = sorel.Problem(X, y, risk="cvar:0.5", loss=loss, penalty=sorel.L2(0.1), engine=OwnSet)
    result = sorel.solve(problem, solver, tol=1e-7)
    assert result.converged, result.status
    w = cp.Variable(D)
    margins = X @ w
    labels = np.where(y == np.max(y), 1.0, -1.0)
    losses = 0.5 * cp.square(margins - y)
    if loss != "squared":
        losses = cp.logistic(-cp.multiply(labels, margins))
    # sup over the ball = min over eta of eta + (mean (l - eta + s)_+^2 ...)^(1/2), with s >= 0.
    eta, excess = cp.Variable(), cp.Variable(N, nonneg=True)
    scale = np.sqrt((1.0 + 0.8) / N)
    objective = eta + scale * cp.norm(excess) + 0.05 * cp.sum_squares(w)
    value = cp.Problem(cp.Minimize(objective), [excess >= losses - eta]).solve(solver=cp.CLARABEL)
    assert result.objective == pytest.approx(value, rel=1e-6)
    assert result.dual <= value * (1 + 1e-7)


def test_the_derivative_of_ones_own_set_is_that_of_the_gradient():
    X, y = make_data("squared", N, D, 0)
    engine = sorel.Problem(X, y, risk="cvar:0.5", engine=OwnSet).engine
    w, center, eta = 0.5 * np.ones(D), engine.uniform(), 3.0

    def gradient(u):
        point = engine.point(u)
        return engine.gradient(point, engine.dual_step(center, point, eta))

    point = engine.point(w)
    dual = engine.dual_step(center, point, eta)
    assert dual.derivative.vectors is not None
    curvature, h = engine.curvature(point, dual, eta), 1e-6
    numeric = [(gradient(w + h * e) - gradient(w - h * e)) / (2 * h) for e in np.eye(D)]
    np.testing.assert_allclose(curvature.matrix(), numeric, rtol=1e-5, atol=1e-6)
    product = curvature.matrix() @ np.ones(D)
    np.testing.assert_allclose(curvature.product(np.ones(D)), product, rtol=1e-10)
