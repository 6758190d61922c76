"""The loops of ``kernels.cu``: compiled when first needed, stored, and launched on tensors.

The compiler is NVRTC, which comes with every CUDA build of torch, and the launches go through the
driver: neither a CUDA toolkit nor a C compiler has to be there. Where NVRTC cannot be found,
everything is done in torch's own operations, and a warning says so.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import math
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sorel._lib.warnings import warn
from sorel.files.atomic import write_atomically

# Threads of a block in sweeps over samples.
THREADS = 256

# Blocks for each multiprocessor in such sweeps.
_BLOCKS = 4

# Columns that fit into the shared memory of a block beside each other.
_MOST_COLUMNS = 6000

# Threads that share a row, by the packs of numbers in it.
_LANES = ((20, 32), (8, 8), (3, 4), (0, 1))

# Blocks of rows for sums over all rows.
_ROW_BLOCKS = 1056


class Kernels:
    """The compiled loops on one device."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.device = device
        self.sweep = _BLOCKS * properties.multi_processor_count
        code = _machine_code(f"sm_{properties.major}{properties.minor}")
        self._driver = _load_driver()
        module = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # makes the context that the module is loaded into
            torch.empty(1, device=device)
            self._check(self._driver.cuModuleLoadData(ctypes.byref(module), code))
        self._module = module
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _check(self, result: int) -> None:
        if result != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(text))
            raise RuntimeError(f"the CUDA driver failed: {(text.value or b'').decode()}")

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._check(
                self._driver.cuModuleGetFunction(
                    ctypes.byref(function), self._module, name.encode()
                )
            )
            self._functions[name] = function
        return self._functions[name]

    def launch(
        self,
        name: str,
        blocks: int | tuple[int, int],
        threads: int,
        *arguments: Any,
        shared: int = 0,
    ) -> None:
        """Run a loop on the current stream of torch.

        Parameters
        ----------
        name : str
            A function of ``kernels.cu``.
        blocks, threads : int
            Size of the grid and of its blocks.
        *arguments
            Tensors are given as pointers, None as a null one, ints as 64-bit integers, floats as
            doubles.
        shared : int
            Bytes of shared memory.
        """
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        across, down = blocks if isinstance(blocks, tuple) else (blocks, 1)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        grid = (across, down, 1, threads, 1, 1, shared, stream, pointers, None)
        with torch.cuda.device(self.device):
            self._check(self._driver.cuLaunchKernel(self._function(name), *grid))

    def over(self, name: str, count: int, *arguments: Any, threads: int = THREADS) -> None:
        """Run a loop with one thread for each of `count` items."""
        self.launch(name, math.ceil(count / threads), threads, *arguments)


def _argument(value: Any) -> Any:
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_longlong(value)


def kernels_for(device: torch.device) -> Kernels | None:
    """The compiled loops for a device, or None where there are none."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _kernels(index)


@cache
def _kernels(index: int) -> Kernels | None:
    try:
        return Kernels(torch.device("cuda", index))
    except OSError as error:
        warn(
            f"the loops for CUDA cannot be compiled ({error}): fits on the device work, but are "
            "slow; install NVRTC, e.g. with the CUDA build of torch",
            RuntimeWarning,
        )
        return None


def _load_driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _load_nvrtc() -> Any:
    major = str(torch.version.cuda).split(".")[0]
    package = Path(torch.__file__).resolve().parent
    places = [package / "lib", package.parent / "nvidia" / "cuda_nvrtc" / "lib"]
    places += [package.parent / "nvidia" / f"cu{major}" / "lib"]
    places += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"]
    if sys.platform == "win32":
        names = glob.glob(str(package / "lib" / "nvrtc64_*_0.dll"))
    else:
        names = [str(path) for place in places for path in sorted(place.glob("libnvrtc.so*"))]
        names.append(f"libnvrtc.so.{major}")
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"no NVRTC of CUDA {major} was found")


def _machine_code(architecture: str) -> bytes:
    """The compiled ``kernels.cu``, from the store of compiled code where it is there."""
    nvrtc = _load_nvrtc()
    source = Path(__file__).with_name("kernels.cu").read_bytes()
    version = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(*map(ctypes.byref, version))
    kind = f"{architecture} {version[0].value}.{version[1].value} ".encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sorel"
    path = folder / f"cuda-{_digest(kind + source)}.cubin"
    # A folder that cannot be read or written costs a compilation, and nothing else.
    with suppress(OSError):
        digest, _, code = path.read_bytes().partition(b"\n")
        if digest.decode(errors="replace") == _digest(code):
            return code
    code = _compile(nvrtc, source, architecture)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{_digest(code)}\n".encode() + code)
    return code


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _compile(nvrtc: Any, source: bytes, architecture: str) -> bytes:
    program = ctypes.c_void_p()

    def check(result: int) -> None:
        if result != 0:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"kernels.cu does not compile: {log.value.decode()}")

    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None))
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    given = (ctypes.c_char_p * len(options))(*options)
    check(nvrtc.nvrtcCompileProgram(program, len(options), given))
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    code = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


# Products with X.


def serves(X: Tensor) -> bool:
    """Whether the loops take this X."""
    return X.is_cuda and X.shape[1] <= _MOST_COLUMNS and kernels_for(X.device) is not None


def _loops(X: Tensor) -> Kernels:
    kernels = kernels_for(X.device)
    assert kernels is not None
    return kernels


def _real(X: Tensor) -> str:
    return "double" if X.dtype == torch.float64 else "float"


def _pack(X: Tensor) -> int:
    """Numbers of a row that are read together."""
    size = 16 // X.element_size()
    return size if X.shape[1] % size == 0 and X.data_ptr() % 16 == 0 else 1


def margins(X: Tensor, w: Tensor) -> Tensor:
    """X w."""
    (n, d), size = X.shape, _pack(X)
    # So many threads share a row that each has some of its packs.
    lanes = next(lanes for least, lanes in _LANES if d // size >= least)
    out = torch.empty(n, dtype=torch.float64, device=X.device)
    kernels = _loops(X)
    blocks = min(math.ceil(n / (4 * THREADS // lanes)), 2 * kernels.sweep)
    name = f"margins_{_real(X)}{size}_{lanes}"
    kernels.launch(name, blocks, THREADS, X, w.contiguous(), n, d, out, shared=8 * d)
    return out


def adjoint(X: Tensor, c: Tensor, some: bool) -> Tensor:
    """X^T c; where c has weights for `some` rows only, the others are not read."""
    size = _pack(X)
    name = f"adjoint_some_{_real(X)}{size}" if some else f"adjoint_{_real(X)}{size}"
    return _by_rows(name, X, size, c).sum(dim=0)


def weighted_squares(X: Tensor, c: Tensor) -> Tensor:
    """sum_i c_i x_ij^2 for each column j."""
    size = _pack(X)
    return _by_rows(f"squares_{_real(X)}{size}", X, size, c).sum(dim=0)


def columns(X: Tensor) -> Tensor:
    """The largest |x_ij| of each column; NaN where there is one."""
    return _by_rows(f"columns_{_real(X)}", X, 1).amax(dim=0)


def _by_rows(name: str, X: Tensor, size: int, *vectors: Tensor) -> Tensor:
    """What a loop finds for each of some blocks of rows, in rows of length d."""
    n, d = X.shape
    blocks = min(_ROW_BLOCKS, math.ceil(n / 64))
    height = math.ceil(n / blocks)
    blocks = math.ceil(n / height)
    # Packs of columns are shared evenly among blocks of threads.
    packs = d // size
    tiles = math.ceil(packs / THREADS)
    width = math.ceil(packs / tiles)
    parts = torch.empty((blocks, d), dtype=torch.float64, device=X.device)
    arguments = (X, *(vector.contiguous() for vector in vectors), n, d, height, width, parts)
    _loops(X).launch(name, (blocks, tiles), THREADS, *arguments, shared=8 * THREADS)
    return parts
