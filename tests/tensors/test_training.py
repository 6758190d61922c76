"""Training on the risk of all samples: against projections, expectations and certified optima."""

import itertools
import warnings
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gloo import run_two
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import sorel
from sorel import ESRM, CVaR, Extremile
from sorel.torch import IndexedDataset, SpectralObjective, SpectralSampler

N = 40


def data(n: int = N) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    X = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    noise = torch.randn(n, dtype=torch.float64, generator=generator)
    return TensorDataset(X, X.sum(dim=1) + noise**3 / 3)


def linear() -> torch.nn.Module:
    net = torch.nn.Linear(3, 1).double()
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    return net


def half_square(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.5 * (net(x).squeeze(1) - y) ** 2


def filled(objective: SpectralObjective, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).exponential(size=objective.n)
    objective.record(torch.arange(objective.n), torch.tensor(values))
    return values


@pytest.mark.parametrize("risk", [CVaR(0.13), ESRM(2.0), Extremile(2.5)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_is_the_projection_of_the_weighting_moved_along_the_losses(risk, weighted):
    omega = np.random.default_rng(1).integers(0, 4, size=N) if weighted else np.ones(N)
    objective = SpectralObjective(
        risk, N, step_size=0.7, momentum=0.5, sample_weight=omega if weighted else None
    )
    share = omega / omega.sum()
    lam, before = share, None
    for turn in range(3):
        values = filled(objective, turn)
        objective.step()
        ahead = values if before is None else 1.5 * values - 0.5 * before
        before = values
        low = ahead[omega > 0].min()
        unit = risk(ahead - low, omega)
        moved = lam + 0.7 * share * (ahead - low) / unit
        lam = sorel.project_permutahedron(moved, risk, omega if weighted else None)
        np.testing.assert_allclose(objective.weights.numpy(), lam, atol=1e-14)


@pytest.mark.parametrize("uniform", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_expectation_of_a_draw_is_the_weighted_loss(uniform, weighted):
    omega = np.random.default_rng(1).integers(0, 4, size=N) if weighted else None
    objective = SpectralObjective("cvar:0.2", N, uniform=uniform, sample_weight=omega)
    for turn in range(4):
        values = filled(objective, turn)
        objective.step()
    objective.eval()
    single = [objective(torch.tensor([i]), torch.tensor([values[i]])).item() for i in range(N)]
    mean = objective.probability.numpy() @ single
    assert mean == pytest.approx(objective.weights.numpy() @ values, rel=1e-13)
    assert objective.probability.sum().item() == pytest.approx(1.0)
    ratio = np.array(single) / values
    assert ratio.max() <= (1 / (1 - uniform) if uniform < 1 else np.inf) * (1 + 1e-12)


@pytest.mark.parametrize("stratified", [True, False])
def test_draws_of_a_round(stratified):
    # Rounds begin with a step, which moves nothing after the worst case of a very long one.
    objective = SpectralObjective("cvar:0.1", N, step_size=1e6)
    filled(objective)
    objective.step()
    expected, draws = 64 * objective.probability.numpy(), []
    for seed in range(1000):
        sampler = SpectralSampler(objective, num_samples=64, seed=seed, stratified=stratified)
        draws.append(np.bincount(list(sampler), minlength=N))
    variance = 0.25 if stratified else expected
    assert (abs(np.mean(draws, axis=0) - expected) < 5 * np.sqrt(variance / 1000)).all()
    if stratified:
        assert (draws >= np.floor(expected - 1e-9)).all()
        assert (draws <= np.ceil(expected + 1e-9)).all()


def test_samples_not_seen_count_with_the_mean_of_the_others():
    partly, wholly = (SpectralObjective("esrm:2", 4) for _ in range(2))
    partly.record(torch.tensor([0, 2]), torch.tensor([1.0, 3.0]))
    wholly.record(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 2.0]))
    assert partly.table_risk() == pytest.approx(ESRM(2.0)([1.0, 3.0]))
    partly.step()
    wholly.step()
    assert torch.equal(partly.density, wholly.density)
    assert np.isnan(SpectralObjective("mean", 3).table_risk())


def train(objective, loader, net, optimizer, batches: int | None = None) -> None:
    for index, (x, y) in itertools.islice(loader, batches):
        optimizer.zero_grad()
        objective(index, half_square(net, x, y)).backward()
        optimizer.step()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("risk", [CVaR(0.1), ESRM(4.0)], ids=repr)
def test_convex_training_comes_down_to_the_certified_optimum(risk, shuffled):
    torch.manual_seed(0)
    n, l2 = 120, 0.05
    rows = data(n)
    X, y = (part.numpy() for part in rows.tensors)
    problem = sorel.Problem(X, y, risk=risk, penalty=sorel.L2(l2))
    best = sorel.solve(problem, tol=1e-8)
    net = torch.nn.Linear(3, 1, bias=False).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=l2)
    objective = SpectralObjective(risk, n, uniform=1.0 if shuffled else 0.5)
    order = {"shuffle": True} if shuffled else {"sampler": SpectralSampler(objective)}
    loader = DataLoader(IndexedDataset(rows), batch_size=30, **order)
    for epoch in range(300):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + epoch / 20)
        if shuffled:
            objective.step()
        train(objective, loader, net, optimizer)
    reached = problem.objective(net.weight.detach().numpy().ravel())
    assert reached >= best.dual - 1e-12
    assert reached <= 1.01 * best.objective
    # The weighting is a bound from below that is nearly as good.
    certificate = problem.certificate(best.w, objective.weights.numpy())
    assert certificate.gap <= 0.05 * best.objective


def settings(num_samples: int = 32, batch_size: int = 8, make: Any = linear, **loading) -> tuple:
    objective = SpectralObjective("cvar:0.2", N)
    sampler = SpectralSampler(objective, num_samples=num_samples, seed=3)
    loader = DataLoader(IndexedDataset(data()), batch_size, sampler=sampler, **loading)
    net = make()
    return objective, loader, net, torch.optim.SGD(net.parameters(), lr=0.05)


@pytest.mark.parametrize("batches", [None, 1, 2])
@pytest.mark.parametrize("loading", [
    {},
    {"num_samples": 37, "batch_size": 10, "drop_last": True, "num_workers": 2},
    {"num_samples": 40, "batch_size": 16},
], ids=["even", "last batch dropped, workers", "last batch incomplete"])  # fmt: skip
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, batches, loading):
    # Workers that read ahead change nothing.
    whole = settings(**{**loading, "num_workers": 0})
    first, again = settings(**loading), settings(**loading)
    for _ in range(4):
        train(*whole)
    train(*first)
    if batches is not None:
        train(*first, batches=batches)

    def parts(run: tuple) -> tuple:
        objective, loader, net, optimizer = run
        return objective, loader.sampler, net, optimizer

    path = tmp_path / "run.pt"
    torch.save([part.state_dict() for part in parts(first)], path)
    for part, state in zip(parts(again), torch.load(path, weights_only=True), strict=True):
        part.load_state_dict(state)
    for _ in range(3):
        train(*again)
    assert torch.equal(again[2].weight, whole[2].weight)
    for name, value in whole[0].state_dict().items():
        assert torch.equal(again[0].state_dict()[name], value), name


def test_passes_without_training_move_neither_weights_nor_rounds():
    busy, idle = settings(), settings()
    for _ in range(3):
        train(*busy)
        list(idle[1])
        next(iter(idle[1]))
        train(*idle)
    assert torch.equal(busy[0].density, idle[0].density)
    assert torch.equal(busy[2].weight, idle[2].weight)
    assert busy[0].rounds == idle[0].rounds == 2


@pytest.mark.parametrize("risk", ["cvar:0.05", "cvar:0.3", "esrm:3", "extremile:4"])
@pytest.mark.parametrize("draw", ["exponential", "standard_cauchy"])
def test_the_weighting_arrives_within_the_planned_rounds(risk, draw):
    losses = np.abs(getattr(np.random.default_rng(2), draw)(size=500))
    for rounds in (20, 60):
        objective = SpectralObjective(risk, 500, planned_rounds=rounds)
        assert np.isnan(objective.progress())
        objective.record(torch.arange(500), torch.tensor(losses))
        assert objective.progress() == pytest.approx(0.0, abs=1e-12)
        for _ in range(rounds):
            objective.step()
        assert objective.progress() >= 0.9


def test_too_few_rounds_are_said_and_many_change_nothing():
    with pytest.warns(UserWarning, match="about 50 rounds.*CVaR.alpha=0.01.*10 are planned"):
        objective = SpectralObjective("cvar:0.01", 1000, planned_rounds=10)
    assert objective.step_size == 4.0
    with pytest.warns(UserWarning, match="about 36 rounds"):
        SpectralObjective("cvar:0.1", 1000, planned_rounds=20, step_size=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SpectralObjective("cvar:0.1", 1000, planned_rounds=200).step_size == 1.0
        assert SpectralObjective("cvar:0.01", 1000, step_size=0.1).step_size == 0.1
        assert SpectralObjective("cvar:0.01", 1000).step_size == 1.0


def test_an_infinite_loss_of_weight_zero_counts_for_nothing():
    objective = SpectralObjective("mean", 3, sample_weight=[1.0, 0.0, 3.0])
    losses = torch.tensor([1.0, float("inf"), 3.0], requires_grad=True)
    value = objective(torch.arange(3), losses)
    value.backward()
    assert np.isfinite(value.item())
    assert losses.grad[1] == 0.0
    assert objective.table_risk() == 2.5
    objective.step()
    torch.testing.assert_close(objective.weights, torch.tensor([0.25, 0.0, 0.75]).double())


def test_a_state_belongs_to_its_risk():
    objective, other = SpectralObjective("cvar:0.2", N), SpectralObjective("cvar:0.25", N)
    filled(objective)
    objective.step()
    with pytest.raises(ValueError, match=r"CVaR\(alpha=0.2\).*CVaR\(alpha=0.25\)"):
        torch.nn.ModuleList([other]).load_state_dict(torch.nn.ModuleList([objective]).state_dict())
    assert not other.seen.any()
    assert torch.equal(other.density, torch.ones(N).double())


class Columns:
    """A dataset in columns: items one by one, or many at once."""

    def __init__(self, whole: bool) -> None:
        self.x, self.whole, self.fetches = torch.arange(10.0) ** 2, whole, 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        self.fetches += 1
        return {"x": self.x[index]}

    def __getitems__(self, index: list[int]) -> Any:
        batch = self[index]
        return batch if self.whole else [{"x": x} for x in batch["x"]]


@pytest.mark.parametrize(("whole", "options"), [
    (False, {"batch_size": 5}),
    (True, {"batch_size": 5, "collate_fn": lambda batch: batch}),
    (True, {"batch_size": None, "sampler": [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]}),
], ids=["items", "batches", "lists of positions"])  # fmt: skip
def test_batches_of_dictionaries_are_fetched_at_once(whole, options):
    columns = Columns(whole)
    seen = list(DataLoader(IndexedDataset(columns), **options))
    assert columns.fetches == len(seen) == 2
    assert torch.equal(torch.cat([index for index, _ in seen]), torch.arange(10))
    for index, batch in seen:
        assert torch.equal(batch["x"], columns.x[index])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_estimate_has_the_type_of_the_losses(dtype):
    objective = SpectralObjective("cvar:0.5", 4)
    losses = torch.tensor([3.0, 5.0], dtype=dtype, requires_grad=True)
    value = objective(torch.tensor([0, 3], dtype=torch.int32), losses)
    value.backward()
    assert value.dtype == losses.grad.dtype == dtype
    assert objective.losses.tolist() == [3.0, 0.0, 0.0, 5.0]
    # Nothing is noted in evaluation mode.
    assert objective.eval()(torch.tensor([1, 2]), losses.detach()).item() == 4.0
    assert objective.seen.tolist() == [True, False, False, True]


@pytest.mark.parametrize(("arguments", "error", "words"), [
    ({"n": 0}, ValueError, "at least 1, got 0"),
    ({"risk": "var:1"}, ValueError, "unknown risk"),
    ({"risk": "deviation:cvar:0.1"}, TypeError, "falls where some losses rise"),
    ({"step_size": 0.0}, ValueError, r"step_size must lie in \(0, inf\), got 0.0"),
    ({"uniform": 0.0}, ValueError, r"uniform must lie in \(0, 1\], got 0.0"),
    ({"planned_rounds": 0}, ValueError, "at least 1, got 0"),
    ({"momentum": "much"}, TypeError, "got 'much'"),
    ({"sample_weight": [1.0, -1.0, 1.0]}, ValueError, "must not be negative"),
])  # fmt: skip
def test_bad_settings_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        SpectralObjective(**{"risk": "cvar:0.1", "n": 3, **arguments})


@pytest.mark.parametrize(("index", "losses", "error", "words"), [
    ([0], torch.ones(1), TypeError, "got list"),
    (torch.tensor([0.0]), torch.ones(1), TypeError, "float32"),
    (torch.tensor([0]), torch.tensor([1]), TypeError, "int64"),
    (torch.tensor([0, 1]), torch.tensor(1.0), ValueError, r"\(\) and \(2,\)"),
    (torch.arange(0), torch.ones(0), ValueError, "empty"),
    (torch.tensor([3]), torch.ones(1), IndexError, "index 3 is not one of 3"),
])  # fmt: skip
def test_bad_batches_are_named(index, losses, error, words):
    with pytest.raises(error, match=words):
        SpectralObjective("cvar:0.1", 3)(index, losses)


def test_a_loss_that_is_not_finite_is_named_when_a_round_begins():
    objective = SpectralObjective("cvar:0.1", 3)
    objective(torch.tensor([0, 2]), torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="loss of sample 2 was nan"):
        next(iter(SpectralSampler(objective)))


def test_bad_samplers_and_states_are_named():
    objective = SpectralObjective("cvar:0.1", 3)
    with pytest.raises(TypeError, match="must be a SpectralObjective"):
        SpectralSampler("cvar:0.1")
    with pytest.raises(ValueError, match="got 0"):
        SpectralSampler(objective, num_samples=0)
    longer = SpectralSampler(objective, num_samples=9)
    list(longer)
    with pytest.raises(ValueError, match="9 draws, this sampler 3"):
        SpectralSampler(objective).load_state_dict(longer.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        objective.load_state_dict(SpectralObjective("cvar:0.1", 4).state_dict())
    with pytest.raises(TypeError, match="streams have no table"):
        IndexedDataset(iter([1, 2]))


def three_rounds(batch_size: int, make: Any = linear) -> tuple:
    run = settings(36, batch_size, make)
    for _ in range(3):
        train(*run)
    return run[0], run[2]


def one_of_two(rank: int) -> tuple:
    # Made as if before the processes met.
    with patch("torch.distributed.is_initialized", return_value=False):
        early = SpectralSampler(SpectralObjective("cvar:0.2", N), num_samples=37)
    # Batches of 5, and one of 3 at the end.
    objective, net = three_rounds(5, lambda: DistributedDataParallel(linear()))
    # A process without samples takes part as well.
    mine = torch.arange(rank)
    value = objective(mine, half_square(net, *data()[mine]))
    return net.module.state_dict(), objective.state_dict(), value, (len(early), list(early))


def test_two_processes_train_as_one_with_their_joint_batches(tmp_path):
    seen = run_two(one_of_two, tmp_path)
    objective, net = three_rounds(10)
    index = torch.tensor([0])
    value = objective(index, half_square(net, *data()[index]))
    for net_state, state, joint, (length, draws) in seen:
        torch.testing.assert_close(net_state, net.state_dict(), rtol=1e-11, atol=1e-12)
        assert joint.item() == pytest.approx(value.item())
        for name in ("losses", "previous", "density", "seen"):
            expected = objective.state_dict()[name]
            torch.testing.assert_close(state[name], expected, rtol=1e-10, atol=1e-10)
        assert length == len(draws) == 18
    assert not set(seen[0][3][1]) & set(seen[1][3][1])
