"""Fits of tensors: what the contract does not ask for."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from helpers import PENALTIES, RISKS, make_data, make_loss
from torch.utils._python_dispatch import TorchDispatchMode

import sorel
from sorel.certificate import certify
from sorel.engines.tensors import DeviceMemoryError, TensorEngine
from sorel.solvers.base import UnsupportedProblemError

LOSSES = ["squared", "huber", "logistic", "squared_hinge", "multinomial", "poisson", "gamma"]
STOCHASTIC = ["sorel", "prospect", "lsvrg", "sgd", "saddle_saga"]


def regression(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X @ rng.standard_normal(d) + rng.standard_t(3, n)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("risk", ["cvar", "esrm", "extremile", "max", "mixture", "custom"])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_certificates_agree_with_the_host(device, loss, risk, kind):
    X, y = make_data(loss, 60, 4, 3)
    X, y = torch.tensor(X, dtype=kind), torch.tensor(y)
    more = {
        "risk": RISKS[risk], "loss": make_loss(loss), "penalty": sorel.L2(0.1),
        "fit_intercept": True,
    }  # fmt: skip
    problem = sorel.Problem(X.to(device), y.to(device), **more)
    host = sorel.Problem(X.double().numpy(), y.numpy(), **more)
    result = sorel.solve(problem, tol=1e-6)
    assert result.converged, result.status
    assert all(record.gap >= 0.0 for record in result.history)

    def proof(there):
        run = there.for_run()
        dual, _ = run.engine.nearest_dual(result.weights)
        return certify(run, run.engine.point(run.from_user(result.w)), dual)

    here, there = proof(problem), proof(host)
    assert here.primal == pytest.approx(there.primal, rel=1e-11)
    assert here.dual == pytest.approx(there.dual, rel=1e-11, abs=1e-11 * here.primal)
    best = sorel.solve(host, tol=1e-9)
    assert result.dual <= best.objective * (1 + 1e-12)
    assert result.objective >= best.dual * (1 - 1e-12)


@pytest.mark.parametrize(
    ("loss", "penalty"),
    [(loss, name) for loss in ("squared", "linear") for name in ("elastic", "box", "simplex")]
    + [("squared", "nonnegative")],
)
def test_penalties(device, penalty, loss):
    X, y = regression(40, 3)
    more = {"risk": sorel.ESRM(2.0), "penalty": PENALTIES[penalty], "loss": loss}
    there = sorel.solve(sorel.Problem(X, y, **more), tol=1e-8)
    tensors = torch.tensor(X, device=device), torch.tensor(y, device=device)
    here = sorel.solve(sorel.Problem(*tensors, **more), tol=1e-8)
    assert here.converged
    assert here.objective == pytest.approx(there.objective, rel=2e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e9), (1e-9, 0.0), (1e9, 0.0)])
@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2"])
def test_offsets_and_units_of_the_targets_do_not_matter(device, risk, scale, offset, weighted):
    X, y = regression(200, 3)
    y = (y + offset) - offset
    weight = np.random.default_rng(1).integers(0, 3, 200).astype(float) if weighted else None
    more = {"risk": risk, "fit_intercept": True, "sample_weight": weight}
    here = sorel.solve(sorel.Problem(X, y, **more))
    tensor, targets = torch.tensor(X, device=device), torch.tensor(scale * (y + offset))
    there = sorel.solve(sorel.Problem(tensor, targets.to(device), **more))
    assert there.converged
    assert there.relative_gap == there.gap / there.objective <= 1e-6
    assert there.objective / scale**2 == pytest.approx(here.objective, rel=2e-6)


@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2", "extremile:2.5"])
def test_hessians_of_sampled_rows_steer(device, risk):
    X, y = regression(60_000, 5)
    problem = sorel.Problem(
        torch.tensor(X, device=device), torch.tensor(y, device=device), risk=risk
    )
    engine = problem.engine.for_run()
    point = engine.point(np.full(5, 0.3))
    for eta in (0.05, 1.0, 20.0):
        dual = engine.dual_step(engine.uniform(), point, eta)
        exact = engine.curvature(point, dual, eta).matrix()
        some = engine.curvature(point, dual, eta).matrix(10_000)
        assert np.linalg.norm(some - exact) <= 0.15 * np.linalg.norm(exact)
        product = engine.curvature(point, dual, eta).product(np.arange(5.0))
        np.testing.assert_allclose(product, exact @ np.arange(5.0), rtol=1e-8)
    result = sorel.solve(problem, tol=1e-6)
    assert result.converged
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-6


@pytest.mark.parametrize("solver", STOCHASTIC)
def test_solvers_on_single_samples_are_refused_by_name(device, solver):
    X, y = regression(30, 3)
    problem = sorel.Problem(torch.tensor(X, device=device), torch.tensor(y, device=device))
    with pytest.raises(UnsupportedProblemError, match=f"'{solver}' needs .* TensorEngine"):
        sorel.solve(problem, solver)


def test_what_is_not_served_is_refused_by_name(device):
    X, y = (torch.tensor(values, device=device) for values in regression(30, 3))

    class Own(sorel.losses.Squared):
        pass

    with pytest.raises(ValueError, match=r"the loss Own .* on tensors use one of 'squared'"):
        sorel.Problem(X, y, loss=Own())
    with pytest.raises(ValueError, match=r"TensorEngine does not serve Deviation"):
        sorel.Problem(X, y, loss="linear", risk=sorel.Deviation(sorel.CVaR(0.1)))


def test_data_are_read_in_place_and_left_alone(device):
    for sparse in (False, True):
        X, y = (torch.tensor(values, device=device) for values in regression(200, 3))
        data = X.to_sparse_csr() if sparse else X
        values = data.values() if sparse else data
        before = values.clone(), y.clone()
        problem = sorel.Problem(data, y, risk="esrm:2", fit_intercept=True)
        inside = problem.engine.matrix.X
        assert (inside.values() if sparse else inside).data_ptr() == values.data_ptr()
        sorel.solve(problem, tol=1e-9)
        assert torch.equal(values, before[0])
        assert torch.equal(y, before[1])


def test_settings_of_torch_do_not_matter_and_stay(device):
    X, y = regression(500, 4)
    tensors = torch.tensor(X, device=device).float(), torch.tensor(y, device=device)
    plain = sorel.solve(sorel.Problem(*tensors, risk="esrm:2"), tol=1e-6)
    allowed = torch.backends.cuda.matmul.allow_tf32
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float16)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            other = sorel.solve(sorel.Problem(*tensors, risk="esrm:2"), tol=1e-6)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.matmul.allow_tf32 = allowed
    np.testing.assert_array_equal(plain.w, other.w)


def test_float32_warns_of_a_tolerance_below_its_rounding(device):
    X, y = regression(100, 2)
    problem = sorel.Problem(torch.tensor(X, device=device).float(), torch.tensor(y, device=device))
    assert problem.data_type == np.float32
    with pytest.warns(sorel.PrecisionWarning, match="float32"):
        sorel.solve(problem, tol=1e-8)


def test_checkpoints_and_warm_starts(device, tmp_path):
    X, y = regression(300, 3)
    problem = sorel.Problem(torch.tensor(X, device=device), torch.tensor(y, device=device))
    path = tmp_path / "run.ckpt"
    sorel.solve(problem, tol=1e-9, checkpoint=path, callback=lambda record: record.passes > 2)
    # The same numbers in host memory are the same problem.
    host = sorel.Problem(X, y)
    assert "resumed" in sorel.solve(host, tol=1e-9, checkpoint=path).status
    result = sorel.solve(problem, tol=1e-9)
    assert sorel.solve(problem.with_risk("cvar:0.4"), warm_start=result, tol=1e-9).converged


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
def test_memory_beside_x_is_at_most_sixteen_vectors(device, risk, loss):
    n, d = 200_000, 4
    X, y = regression(n, d)
    y = y > 0 if loss == "logistic" else y
    X, y = torch.tensor(X, device=device), torch.tensor(y, device=device)
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


def test_a_device_that_runs_out_of_memory_says_what_a_fit_takes(device, monkeypatch):
    X, y = regression(1000, 3)
    problem = sorel.Problem(torch.tensor(X, device=device), torch.tensor(y, device=device))

    def full(*args, **more):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(TensorEngine, "gradient", full)
    message = r"16 vectors of 1000 float64, 0.000128 GB.*float32.*sorel\.rows\.write_blocks"
    with pytest.raises(DeviceMemoryError, match=message):
        sorel.solve(problem)


def test_nothing_stays_allocated_when_a_device_is_full(device):
    if device.type != "cuda":
        pytest.skip("the memory of the CPU is not ours to fill")
    n = 2_000_000
    X, y = torch.randn(n, 4, device=device).double(), torch.randn(n, device=device).double()
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


def test_two_threads_may_solve_one_problem(device):
    from concurrent.futures import ThreadPoolExecutor

    X, y = regression(2000, 4)
    problem = sorel.Problem(
        torch.tensor(X, device=device), torch.tensor(y, device=device), risk="esrm:2"
    )
    alone = sorel.solve(problem)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: sorel.solve(problem), range(4)))
    assert {result.objective for result in both} == {alone.objective}
