"""Offsets and units of the targets do not matter on a device either."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

import sorel


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e9), (1e-9, 0.0), (1e9, 0.0)])
@pytest.mark.parametrize("risk", ["cvar:0.1", "esrm:2"])
def test_offsets_and_units(device, risk, scale, offset, weighted):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.standard_t(4, size=200)
    y = (y + offset) - offset
    weight = rng.integers(0, 3, 200).astype(float) if weighted else None
    more = {"risk": risk, "fit_intercept": True, "sample_weight": weight}
    here = sorel.solve(sorel.Problem(X, y, **more))
    tensor, targets = torch.tensor(X, device=device), torch.tensor(scale * (y + offset))
    there = sorel.solve(sorel.Problem(tensor, targets.to(device), **more))
    assert there.converged
    assert there.relative_gap == there.gap / there.objective <= 1e-6
    assert there.objective / scale**2 == pytest.approx(here.objective, rel=2e-6)
