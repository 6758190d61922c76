"""The loops of kernels.cu: on a CUDA device, and elsewhere compiled as plain C++.

One thread that takes all blocks in turn sees none of the races that a device might, but it sees
every formula and every index, against the compiled projection of the host.
"""

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import sorel
from sorel.engines.tensors import cuda, projection
from sorel.engines.tensors.projection import CudaProjection, HostProjection

HERE = Path(__file__).parent
TWO_LEVELS = [
    sorel.CVaR(0.1), sorel.CVaR(0.53), sorel.Mean(),
    sorel.Mixture([sorel.Mean(), sorel.CVaR(0.15)], [0.4, 0.6]),
]  # fmt: skip
RISKS = [
    *TWO_LEVELS, sorel.ESRM(2.0), sorel.ESRM(20.0), sorel.Extremile(2.5), sorel.Max(),
    sorel.CustomSpectrum([0.0, 1.0, 1.0, 4.0]),
]  # fmt: skip


class PlainKernels:
    """The loops as C++, with the face of the compiled ones."""

    sweep = 3

    def __init__(self, library):
        self._library = library
        self.device = torch.device("cpu")

    def launch(self, name, blocks, threads, *arguments, shared=0):
        function = getattr(self._library, name)
        function.restype = None
        if name == "before_blocks" or threads == 1:
            blocks = 1
        values = [cuda._argument(argument) for argument in arguments]
        for block in range(blocks):
            self._library.set_block(block, blocks)
            function(*values)

    def over(self, name, count, *arguments, threads=1):
        # A block has one thread here.
        self.launch(name, count, 0, *arguments)


@pytest.fixture(scope="module")
def kernels(device, tmp_path_factory):
    if device.type == "cuda":
        made = cuda.kernels_for(device)
        assert made is not None
        return made
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernels")
    source = Path(cuda.__file__).with_name("kernels.cu").read_text()
    source = source.replace("extern __shared__ double shared[];", "static double shared[4096];")
    source = source.replace("__device__ __forceinline__", "static inline")
    (folder / "kernels.cpp").write_text(source)
    library = folder / "kernels.so"
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-include"]
    command += [str(HERE / "plain_cuda.h"), "-o", str(library), str(folder / "kernels.cpp")]
    subprocess.run(command, check=True)
    return PlainKernels(ctypes.CDLL(str(library)))


@pytest.fixture(params=[1, 4, 256])
def run(request, kernels, monkeypatch):
    """Ranks that one thread takes: few of them make many runs to be joined."""
    if isinstance(kernels, PlainKernels):
        # Running sums inside a block of threads need the threads.
        monkeypatch.setattr(projection, "_RUN_THREADS", 1)
    monkeypatch.setattr(projection, "RUN", request.param)
    monkeypatch.setattr(projection, "_RUN_BITS", request.param.bit_length() - 1)


def check_agreement(kernels, risk, n, omega, etas, rounding):
    """Projection, value, shortfall and worst case are those of the host."""
    device, rng = kernels.device, np.random.default_rng(n)
    host, ours = HostProjection(risk, n, omega), CudaProjection(risk, n, kernels, omega)
    share = torch.full((n,), 1.0 / n, dtype=torch.float64) if omega is None else torch.tensor(omega)
    top = float((risk.weights(n) * n).max())
    for eta, tied in itertools.product(etas, (False, True)):
        losses = rng.standard_t(3, n) ** 2
        losses = np.round(losses, 1) if tied else losses
        there = torch.tensor(1.0 + eta * losses)
        here = there.clone().to(device)
        blocks, others = ours.project(here), host.project(there)
        np.testing.assert_allclose(here.cpu(), there, rtol=0, atol=2.0 * rounding * top)
        assert float(here.cpu() @ share) == pytest.approx(1.0, abs=1e-13)
        assert int(blocks.block.max()) == blocks.number - 1
        if not tied:
            np.testing.assert_array_equal(blocks.block.cpu(), others.block)
            np.testing.assert_array_equal(blocks.sizes.cpu(), others.sizes)
        other = torch.tensor(losses + rng.exponential(size=n))
        short, size = ours.shortfall(other.to(device), here), float(other.max())
        assert short >= 0.0
        assert short == pytest.approx(host.shortfall(other, there), abs=rounding * size * top)
        value = host.value(other)
        assert ours.value(other.to(device)) == pytest.approx(value, rel=rounding)
        worst = ours.worst_case(other.to(device)).cpu()
        assert float((worst * share) @ other) == pytest.approx(value, rel=rounding)
        if omega is None:
            np.testing.assert_allclose(worst.sort().values, risk.weights(n) * n, rtol=1e-13)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("n", [1, 2, 3, 31, 256, 700])
def test_projections_agree_with_the_host(kernels, risk, n):
    check_agreement(kernels, risk, n, None, (1e-3, 0.3, 10.0, 1e4, 1e8), 1e-13)


@pytest.mark.parametrize("risk", TWO_LEVELS, ids=repr)
@pytest.mark.parametrize("n", [1, 2, 31, 700])
def test_two_levels_with_sample_weights(kernels, risk, n):
    omega = np.random.default_rng(n).uniform(0.2, 2.0, n)
    check_agreement(kernels, risk, n, omega / omega.sum(), (1e-3, 0.3, 10.0, 1e4), 5e-12)


def test_a_projection_of_many_numbers(cuda_device, kernels):
    n = 3_000_000
    losses = torch.distributions.StudentT(3.0).sample((n,)).double().square()
    for risk in (sorel.ESRM(2.0), sorel.Extremile(2.5), sorel.CVaR(0.1)):
        host, ours = HostProjection(risk, n, None), CudaProjection(risk, n, kernels)
        for eta in (0.1, 1.0, 1e3):
            there = 1.0 + eta * losses
            here = there.to(cuda_device)
            again = here.clone()
            blocks, others = ours.project(here), host.project(there)
            np.testing.assert_allclose(here.cpu(), there, rtol=0, atol=1e-12)
            assert torch.equal(blocks.block.cpu(), others.block)
            ours.project(again)
            assert torch.equal(here, again)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("d", [1, 2, 3, 8, 20, 100, 257, 1000])
def test_products(cuda_device, kind, d):
    for n in (1, 63, 1000, 5003):
        X = torch.randn(n, d, device=cuda_device, dtype=torch.float64).to(kind)
        w, c = (torch.randn(size, device=cuda_device).double() for size in (d, n))
        c[::3] = 0.0
        exact, size = X.double(), 1e-13 * (n + d)
        assert (cuda.margins(X, w) - exact @ w).abs().max() <= size
        for some in (False, True):
            assert (cuda.adjoint(X, c, some) - exact.T @ c).abs().max() <= size
        assert (cuda.weighted_squares(X, c) - exact.square().T @ c).abs().max() <= size
        assert torch.equal(cuda.columns(X), exact.abs().amax(dim=0))
        X[n // 2, d // 2] = torch.nan
        assert torch.isnan(cuda.columns(X)[d // 2])


@pytest.mark.usefixtures("cuda_device")
def test_compiled_loops_are_stored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = cuda._machine_code("sm_90")
    (path,) = (tmp_path / "sorel").glob("cuda-*.cubin")
    with monkeypatch.context() as patch:
        patch.setattr(cuda, "_compile", None)
        assert cuda._machine_code("sm_90") == code
    path.write_bytes(b"damaged")
    assert cuda._machine_code("sm_90") == code
    assert path.read_bytes().endswith(code)


@pytest.mark.usefixtures("cuda_device")
def test_nvrtc_that_is_missing_leaves_torch(regression, monkeypatch):
    def missing():
        raise OSError("no NVRTC")

    monkeypatch.setattr(cuda, "_load_nvrtc", missing)
    cuda._kernels.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="loops for CUDA cannot be compiled"):
            assert sorel.solve(sorel.Problem(*regression(300, 3), risk="esrm:2")).converged
    finally:
        cuda._kernels.cache_clear()
