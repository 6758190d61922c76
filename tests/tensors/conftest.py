"""Tensors of the tests live where SOREL_TEST_DEVICE says: on the CPU, or on ``cuda``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
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


@pytest.fixture
def cuda_device(device):
    if device.type != "cuda":
        pytest.skip("only a CUDA device has this")
    return device


@pytest.fixture
def regression(device):
    """A function that makes n rows of d features and targets with heavy tails, on the device."""

    def make(n, d):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, d))
        y = X @ rng.standard_normal(d) + rng.standard_t(3, n)
        return torch.tensor(X, device=device), torch.tensor(y, device=device)

    return make
