"""The tests of the contract, asked of tensors on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contract import *  # noqa: F403 (its tests are those of this module)
from contract import D, N
from helpers import RISKS, make_data, make_loss

import sorel


@pytest.fixture(params=["dense", "sparse"])
def home(request, device):
    """A function that makes a problem whose data are tensors."""

    def make(loss, *, risk="esrm", intercept=False, weighted=False, penalty=None, seed=0):
        X, y = make_data(loss, N, D, seed)
        X, y = torch.tensor(X, device=device), torch.tensor(y, device=device)
        omega = np.random.default_rng(seed + 1).uniform(0.2, 2.0, N) if weighted else None
        return sorel.Problem(
            X if request.param == "dense" else X.to_sparse_csr(), y, risk=RISKS[risk],
            loss=make_loss(loss), penalty=penalty or sorel.L2(0.1), fit_intercept=intercept,
            sample_weight=omega,
        )  # fmt: skip

    return make
