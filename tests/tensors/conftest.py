"""Tensors of the tests live where SOREL_TEST_DEVICE says: on the CPU, or on ``cuda``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    import torch
except ImportError:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def device():
    name = os.environ.get("SOREL_TEST_DEVICE", "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.exit(f"SOREL_TEST_DEVICE={name}, and torch {torch.__version__} sees no CUDA device")
    # One thread: the tests are small, and others may be at work.
    torch.set_num_threads(1)
    return torch.device(name)
