"""The differentiable spectral risk, against the risks themselves, differences and one process."""

import itertools

import numpy as np
import pytest
import torch
from gloo import run_two
from torch.nn.parallel import DistributedDataParallel

from sorel import ESRM, CustomSpectrum, CVaR, Deviation, Extremile, Max, Mean, Mixture
from sorel.torch import SpectralRisk, spectral_risk

RISKS = [
    Mean(), Max(), CVaR(0.13), CVaR(0.5), ESRM(2.0), Extremile(2.5),
    Mixture([Mean(), CVaR(0.2)], [0.25, 0.75]), CustomSpectrum([1.0, 1.0, 4.0]),
    Deviation(CVaR(0.3)),
]  # fmt: skip


def losses_of(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("shape", [(1,), (7,), (4, 5), (2, 1, 9)])
def test_value_is_the_risk_of_the_entries(device, risk, shape):
    losses, weights = losses_of(*shape), losses_of(*shape, seed=1).abs()
    flat = losses.numpy().ravel()
    value = spectral_risk(losses.to(device), risk)
    assert value.shape == ()
    assert value.item() == pytest.approx(risk(flat), rel=1e-13, abs=1e-15)
    value = SpectralRisk(risk)(losses.to(device), weights.to(device))
    exact = risk(flat, weights.numpy().ravel())
    assert value.item() == pytest.approx(exact, rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_agrees_with_differences(device, risk, weighted):
    losses = losses_of(11).to(device).requires_grad_()
    weights = losses_of(11, seed=2).abs().to(device).requires_grad_() if weighted else None
    assert torch.autograd.gradcheck(lambda x: spectral_risk(x, risk, weights), losses)
    # Through a network the second derivative is that of the losses alone.
    assert torch.autograd.gradgradcheck(lambda x: spectral_risk(x**2, risk, weights), losses)
    spectral_risk(losses, risk, weights).backward()
    assert weights is None or weights.grad is None


@pytest.mark.parametrize("risk", RISKS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_at_ties_is_a_subgradient_without_a_preferred_order(device, risk, weighted):
    rng = np.random.default_rng(3)
    values = rng.integers(0, 4, size=12).astype(float)
    weights = rng.integers(0, 4, size=12).astype(float) if weighted else np.ones(12)

    def slope(order: np.ndarray) -> np.ndarray:
        losses = torch.tensor(values[order], device=device, requires_grad=True)
        given = torch.tensor(weights[order], device=device) if weighted else None
        spectral_risk(losses, risk, given).backward()
        back = np.empty(12)
        back[order] = losses.grad.cpu().numpy()
        return back

    lam = slope(np.arange(12))
    # A convex function lies above its tangents.
    for _ in range(50):
        other = values + rng.standard_normal(12)
        assert risk(other, weights) >= risk(values, weights) + lam @ (other - values) - 1e-12
    assert not lam[weights == 0].any()
    if device.type == "cuda" and not weighted:
        return  # the first of equal losses count there
    for _ in range(5):
        np.testing.assert_allclose(slope(rng.permutation(12)), lam, atol=1e-15)
    for value in np.unique(values[weights > 0]):
        tied = (values == value) & (weights > 0)
        assert np.ptp(lam[tied] / weights[tied]) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("risk", [Mean(), CVaR(0.01), ESRM(3.0)], ids=repr)
def test_types_are_kept_and_sums_are_precise(device, dtype, risk):
    losses = (losses_of(20_000) ** 2).to(device, dtype).requires_grad_()
    value = spectral_risk(losses, risk)
    value.backward()
    assert value.dtype == losses.grad.dtype == dtype
    exact = risk(losses.detach().cpu().double().numpy())
    # Half types are summed in float32, whose sums of 20,000 losses are a few units off.
    loss_of_sums = 20 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert value.item() == pytest.approx(exact, rel=loss_of_sums + torch.finfo(dtype).eps)
    if dtype in (torch.float32, torch.float64):
        assert losses.grad.double().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_infinite_losses_count_only_where_they_have_weight(device):
    losses = torch.tensor([-np.inf, 1.0, 2.0, 3.0], device=device, requires_grad=True)
    value = spectral_risk(losses, "cvar:0.5")
    value.backward()
    assert value.item() == 2.5
    assert losses.grad.tolist() == [0.0, 0.0, 0.5, 0.5]
    assert spectral_risk(torch.tensor([1.0, np.inf], device=device), "mean").item() == np.inf
    unknown = torch.tensor([1.0, np.nan, 2.0], device=device)
    assert np.isnan(spectral_risk(unknown, "cvar:0.3").item())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole(backend):
    torch._dynamo.reset()
    losses = losses_of(9, 2).requires_grad_()
    weights = losses_of(9, 2, seed=4).abs()
    whole = torch.compile(
        lambda x, w, r: spectral_risk(x**2, r, w), backend=backend, fullgraph=True
    )
    # The second of a kind asks that the first one's parameters are not taken for constants.
    for risk in ("cvar:0.21", CVaR(0.43), CVaR(0.57), RISKS[7]):
        for given in (None, weights) if risk != CVaR(0.43) else (None,):
            (expected,) = torch.autograd.grad(spectral_risk(losses**2, risk, given), losses)
            value = whole(losses, given, risk)
            assert value.item() == pytest.approx(spectral_risk(losses**2, risk, given).item())
            torch.testing.assert_close(torch.autograd.grad(value, losses)[0], expected)
    module = torch.compile(SpectralRisk(CVaR(0.31)), backend=backend, fullgraph=True, dynamic=True)
    assert module(weights[:5]).item() == pytest.approx(CVaR(0.31)(weights[:5].numpy().ravel()))


def test_transforms_of_functions_see_value_and_gradient():
    losses = losses_of(3, 12).round(decimals=1)
    whole = torch.func.grad_and_value(lambda row: spectral_risk(row, "cvar:0.3"))
    for row, slope, value in zip(losses, *torch.vmap(whole)(losses), strict=True):
        own = row.clone().requires_grad_()
        spectral_risk(own, "cvar:0.3").backward()
        torch.testing.assert_close(slope, own.grad)
        assert value.item() == pytest.approx(CVaR(0.3)(row.numpy()), rel=1e-14)


@pytest.mark.parametrize(("losses", "weights", "error", "words"), [
    (torch.tensor([1, 2]), None, TypeError, "torch.int64"),
    (torch.tensor([1j]), None, TypeError, "complex64"),
    ([1.0, 2.0], None, TypeError, "got list"),
    (torch.empty(0), None, ValueError, "empty"),
    # A forgotten reduction="none" would train the mean.
    (torch.tensor(1.0), None, ValueError, "single number.*reduction='none'"),
    (torch.ones(2), torch.ones(3), ValueError, r"\(2,\), got \(3,\)"),
    (torch.ones(2), torch.tensor([1.0, -2.0]), ValueError, r"weights\[1\] = -2.0"),
    (torch.ones(2), torch.tensor([1.0, np.nan]), ValueError, "not finite"),
    (torch.ones(2), torch.zeros(2), ValueError, "zero everywhere"),
])  # fmt: skip
def test_bad_input_is_named(losses, weights, error, words):
    with pytest.raises(error, match=words):
        spectral_risk(losses, "cvar:0.5", weights)


def test_a_batch_that_was_first_seen_in_inference_mode_can_be_trained_on():
    losses = losses_of(23).requires_grad_()
    criterion = SpectralRisk("cvar:0.29")
    with torch.inference_mode():
        value = criterion(losses)
    criterion(losses).backward()
    assert losses.grad @ losses.detach() == pytest.approx(value.item())


# Two processes against one.

CASES = [
    (CVaR(0.3), (5, 3), False),
    (ESRM(2.0), (4, 4), True),
    (CVaR(0.1), (1, 7), True),
    (Extremile(3.0), (8, 0), False),
]


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    X = losses_of(8, 3, seed=5)
    X[6] = X[2]  # a tie across processes
    y = X.sum(dim=1) + losses_of(8, seed=6)
    y[6] = y[2]
    return X, y, losses_of(8, seed=7).abs() + 0.1


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    return torch.nn.Sequential(*layers).double()


def value_and_gradient(net, criterion, X, y, weights):
    value = criterion((net(X).squeeze(-1) - y) ** 2, weights)
    net.zero_grad()
    value.backward()
    slopes = torch.cat([p.grad.ravel() for p in net.parameters()])
    return torch.cat([value.detach()[None], slopes])


def one_of_two(rank: int) -> dict:
    X, y, weights = batch()
    out = {}
    for number, (risk, sizes, weighted) in enumerate(CASES):
        own = slice(0, sizes[0]) if rank == 0 else slice(sizes[0], 8)
        given = weights[own] if weighted else None
        net = DistributedDataParallel(model())
        criterion = SpectralRisk(risk)
        out[number] = value_and_gradient(net, criterion, X[own], y[own], given)
        if number == 0:
            # Collectives are left out of compiled graphs.
            compiled = torch.compile(criterion, backend="eager")
            out["compiled"] = value_and_gradient(net, compiled, X[own], y[own], given)
            out["local"] = criterion.eval()(y[own])
    try:
        SpectralRisk("mean")(y, weights if rank else None)
    except ValueError as error:
        out["refusal"] = str(error)
    return out


def test_two_processes_have_the_risk_and_gradient_of_their_joint_batch(tmp_path):
    seen = run_two(one_of_two, tmp_path)
    X, y, weights = batch()
    for number, (risk, _, weighted) in enumerate(CASES):
        given = weights if weighted else None
        expected = value_and_gradient(model(), SpectralRisk(risk), X, y, given)
        names = (number, "compiled") if number == 0 else (number,)
        for out, name in itertools.product(seen, names):
            torch.testing.assert_close(out[name], expected, rtol=1e-12, atol=1e-13)
    for out, own in zip(seen, (y[:5], y[5:]), strict=True):
        assert out["local"].item() == pytest.approx(CASES[0][0](own.numpy()))
        assert "1 of 2 processes" in out["refusal"]
