"""Fits of tensors: the contract of engines, and what it does not ask for."""

import gc
import weakref

import numpy as np
import pytest
import torch
from contract import *  # noqa: F403 (its tests are those of this module too)
from contract import D, N
from helpers import PENALTIES, RISKS, SERVED, make_data, make_loss
from torch.utils._python_dispatch import TorchDispatchMode

import sorel
from sorel.engines.tensors import DeviceMemoryError, TensorEngine
from sorel.solvers.base import UnsupportedProblemError


@pytest.fixture(params=["dense", "sparse"])
def home(request, device):
    """A function that makes a problem whose data are tensors."""

    def make(loss, *, risk="esrm", intercept=False, weighted=False, penalty=None, unit=1, shift=0):
        X, y = (torch.tensor(values, device=device) for values in make_data(loss, N, D, 0))
        y = unit * (y + shift)
        omega = np.random.default_rng(1).uniform(0.2, 2.0, N) if weighted else None
        return sorel.Problem(
            X if request.param == "dense" else X.to_sparse_csr(), y, risk=RISKS[risk],
            loss=make_loss(loss), penalty=penalty or sorel.L2(0.1), fit_intercept=intercept,
            sample_weight=omega,
        )  # fmt: skip

    return make


STOCHASTIC = ["sorel", "prospect", "lsvrg", "sgd", "saddle_saga"]
CASES = [
    *((loss, risk, "l2") for loss in SERVED for risk in ("cvar", "esrm")),
    *(("squared", risk, "l2") for risk in ("extremile", "max", "mixture", "custom")),
    *((loss, "esrm", name) for loss in ("squared", "linear") for name in PENALTIES if name != "l2"),
]


@pytest.mark.parametrize(
    ("loss", "risk", "penalty"), [case for case in CASES if case[::2] != ("linear", "nonnegative")]
)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_certificates_agree_with_the_host(device, loss, risk, penalty, kind):
    X, y = make_data(loss, 60, 3, 3)
    X, y = torch.tensor(X, dtype=kind), torch.tensor(y)
    more = {
        "risk": RISKS[risk], "loss": make_loss(loss), "penalty": PENALTIES[penalty],
        "fit_intercept": loss != "linear",
    }  # fmt: skip
    problem = sorel.Problem(X.to(device), y.to(device), **more)
    host = sorel.Problem(X.double().numpy(), y.numpy(), **more)
    result = sorel.solve(problem, tol=1e-6)
    assert result.converged, result.status
    assert all(record.gap >= 0.0 for record in result.history)
    here, there = (found.certificate(result.w, result.weights) for found in (problem, host))
    size = abs(here.primal)
    assert here.primal == pytest.approx(there.primal, rel=1e-11)
    assert here.dual == pytest.approx(there.dual, rel=1e-11, abs=1e-11 * size)
    best = sorel.solve(host, tol=1e-9)
    assert result.dual <= best.objective + 1e-12 * size
    assert result.objective >= best.dual - 1e-12 * size


@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2", "extremile:2.5"])
def test_hessians_of_sampled_rows_steer(regression, risk):
    engine = sorel.Problem(*regression(60_000, 5), risk=risk).engine.for_run()
    point = engine.point(np.full(5, 0.3))
    for eta in (0.05, 1.0, 20.0):
        dual = engine.dual_step(engine.uniform(), point, eta)
        exact = engine.curvature(point, dual, eta).matrix()
        some = engine.curvature(point, dual, eta).matrix(10_000)
        assert np.linalg.norm(some - exact) <= 0.15 * np.linalg.norm(exact)


def test_what_is_not_served_is_refused_by_name(regression):
    X, y = regression(30, 3)
    for solver in STOCHASTIC:
        with pytest.raises(UnsupportedProblemError, match=f"'{solver}' needs .* TensorEngine"):
            sorel.solve(sorel.Problem(X, y), solver)

    class Own(sorel.losses.Squared):
        pass

    with pytest.raises(ValueError, match=r"the loss Own .* on tensors use one of 'squared'"):
        sorel.Problem(X, y, loss=Own())
    with pytest.raises(ValueError, match=r"TensorEngine does not serve Deviation"):
        sorel.Problem(X, y, loss="linear", risk=sorel.Deviation(sorel.CVaR(0.1)))


@pytest.mark.parametrize("sparse", [False, True])
def test_data_are_read_in_place_and_left_alone(regression, sparse):
    X, y = regression(200, 3)
    data = X.to_sparse_csr() if sparse else X
    values = data.values() if sparse else data
    before = values.clone(), y.clone()
    problem = sorel.Problem(data, y, risk="esrm:2", fit_intercept=True)
    inside = problem.engine.matrix.X
    assert (inside.values() if sparse else inside).data_ptr() == values.data_ptr()
    sorel.solve(problem, tol=1e-9)
    assert torch.equal(values, before[0])
    assert torch.equal(y, before[1])


def test_settings_of_torch_do_not_matter_and_stay(device, regression):
    X, y = regression(500, 4)
    plain = sorel.solve(sorel.Problem(X.float(), y, risk="esrm:2"), tol=1e-6)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float16)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            other = sorel.solve(sorel.Problem(X.float(), y, risk="esrm:2"), tol=1e-6)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)
    np.testing.assert_array_equal(plain.w, other.w)


def test_a_checkpoint_is_that_of_the_host(regression, tmp_path):
    X, y = regression(300, 3)
    problem, path = sorel.Problem(X, y), tmp_path / "run.ckpt"
    sorel.solve(problem, tol=1e-9, checkpoint=path, callback=lambda record: record.passes > 2)
    # The same numbers in host memory are the same problem.
    host = sorel.Problem(X.cpu().numpy(), y.cpu().numpy())
    assert "resumed" in sorel.solve(host, tol=1e-9, checkpoint=path).status


class Tally(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they are alive."""

    def __init__(self, *given):
        super().__init__()
        self.given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self.alive, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._note(tensor.untyped_storage())
        return out

    def _note(self, storage):
        place = storage.data_ptr()
        if place in self.alive or place in self.given:
            return

        def dropped(_):
            self.now -= self.alive.pop(place)[1]

        self.alive[place] = weakref.ref(storage, dropped), storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)


@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_memory_beside_x_is_at_most_sixteen_vectors(device, regression, risk, loss):
    n, d = 200_000, 4
    X, y = regression(n, d)
    y = y > 0 if loss == "logistic" else y
    # Matrices of d x d, and what does not grow with n.
    small = 8 * 64 * d * d + 2**16

    def solve():
        return sorel.solve(sorel.Problem(X, y, risk=risk, loss=loss, fit_intercept=True), tol=1e-6)

    if device.type == "cuda":
        solve()
        gc.collect()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = solve()
        peak = torch.cuda.max_memory_allocated() - before
        # Tiles have a least size on a device.
        small += 3 * 8 * 2**20
        assert torch.cuda.memory_allocated() == before
    else:
        with Tally(X, y) as tally:
            result = solve()
        peak = tally.peak
    assert result.converged
    assert peak <= 16 * 8 * n + small


def test_a_device_that_runs_out_of_memory_says_what_a_fit_takes(regression, monkeypatch):
    def full(*args, **more):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(TensorEngine, "gradient", full)
    message = r"16 vectors of 1000 float64, 0.000128 GB.*float32.*sorel\.rows\.write_blocks"
    with pytest.raises(DeviceMemoryError, match=message):
        sorel.solve(sorel.Problem(*regression(1000, 3)))


@pytest.mark.usefixtures("cuda_device")
def test_nothing_stays_allocated_when_a_device_is_full(regression):
    n = 2_000_000
    X, y = regression(n, 4)
    sorel.solve(sorel.Problem(X[:1000], y[:1000], risk="esrm:2"))
    gc.collect()
    torch.cuda.empty_cache()
    before, total = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[1]
    try:
        torch.cuda.set_per_process_memory_fraction((before + 6 * 8 * n) / total)
        with pytest.raises(DeviceMemoryError, match="ran out of memory"):
            sorel.solve(sorel.Problem(X, y, risk="esrm:2"), "newton")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert sorel.solve(sorel.Problem(X, y, risk="esrm:2")).converged
