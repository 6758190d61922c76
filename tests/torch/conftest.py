"""The tests of tensors use the helpers of the others, and run on the CPU or on every device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

torch = pytest.importorskip("torch")


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the tensors of the tests live")


@pytest.fixture(scope="session")
def device(request):
    name = request.config.getoption("--device")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.exit(f"--device {name}, and this torch sees no CUDA device", returncode=2)
    return torch.device(name)
