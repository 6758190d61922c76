"""Training on the spectral risk of all samples, one batch at a time.

The risk of n losses is ``max_{lam in P(sigma)} lam . l(w)``. `SpectralObjective` keeps the loss of
every sample when it was last seen, and a weighting lam. Once in a round it takes lam a step towards
the losses, ``Proj(lam + eta ((1 + theta) l - theta l_previous))``, as SOREL does. In between lam is
fixed, and the batches that `SpectralSampler` draws, each loss multiplied by lam_i over the
probability of i, give unbiased gradients of ``lam . l(w)`` to any optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sorel.permutahedron import Projector
from sorel.risks import Deviation, FloatArray, Risk, normalised_sample_weight, parse_risk
from sorel.torch.risk import gather

__all__ = ["IndexedDataset", "SpectralObjective", "SpectralSampler"]


class SpectralObjective(torch.nn.Module):
    """The spectral risk of all training samples, as a loss of single batches.

    Unlike the risk of a mini-batch it is not biased by the size of the batch: the weighting of the
    samples comes from a table of the losses of all of them. Call it with the positions of the
    samples of a batch in the training set and their losses; `SpectralSampler` draws the batches and
    moves the weighting at the beginning of every round.

    It has no parameters. Its buffers are the table and the weighting, of length n; ``state_dict``
    saves them, and ``to`` moves them to where the losses are computed.

    Parameters
    ----------
    risk : Risk or str
        Weights of the ordered losses, such as ``CVaR(0.1)`` or ``"cvar:0.1"``.
    n : int
        Number of training samples.
    step_size : float, default=1.0
        Length of the dual step, in units that do not depend on those of the losses: before the
        projection, the density of a sample rises by `step_size` times its loss over the risk of all
        (of losses less their least). Very long steps are the worst case of the table itself, which
        swings from one part of the samples to another.
    momentum : float, default=0.0
        theta, from 0 to 1: by how much the losses are extrapolated from the previous round.
    uniform : float, default=0.5
        Share of the draws, in (0, 1], that does not care for the weighting, so that losses of
        weight 0 are looked at again; no weight in a batch exceeds ``1 / (1 - uniform)``. 1 is for
        ordinary shuffled batches: no sampler is needed then, and `step` is called once an epoch.
    sample_weight : array-like of shape (n,), optional
        Sample weights; 2 is the same as having the sample twice.

    Attributes
    ----------
    losses : Tensor of shape (n,)
        The loss of each sample when it was last seen.
    density : Tensor of shape (n,)
        lam over the normalised sample weights: all 1 at the beginning, when it is the plain mean.

    Notes
    -----
    If the losses are convex in the parameters, the saddle point that rounds of exact primal steps
    approach is the minimum of the risk, and `sorel.solve` finds it with a certificate; that is
    proved, with step sizes that depend on constants of the problem. For networks nothing of the
    kind is: the gradient of a batch is an unbiased one of lam . l(w) for the weighting of the
    round, but the table lags behind the network by up to a round and more, and stationary points
    are all that a limit could be.

    Under torch.distributed, in training mode, the processes share what they see, and the gradient
    is that of their joint batch after `DistributedDataParallel` has taken the average. All of them
    must call with the same settings, and their samplers must have the same seed.

    Examples
    --------
    >>> import torch
    >>> from sorel.torch import IndexedDataset, SpectralObjective, SpectralSampler
    >>> _ = torch.manual_seed(0)
    >>> X = torch.randn(200, 3)
    >>> data = torch.utils.data.TensorDataset(X, X.sum(dim=1) + torch.randn(200))
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    >>> objective = SpectralObjective("cvar:0.1", len(data))
    >>> loader = torch.utils.data.DataLoader(
    ...     IndexedDataset(data), batch_size=20, sampler=SpectralSampler(objective)
    ... )
    >>> for epoch in range(30):
    ...     for index, (x, y) in loader:
    ...         losses = 0.5 * (model(x).squeeze(1) - y) ** 2
    ...         optimizer.zero_grad()
    ...         objective(index, losses).backward()
    ...         optimizer.step()
    >>> bool(objective.table_risk() < 2.7)  # the certified minimum is 2.55
    True
    """

    losses: torch.Tensor
    previous: torch.Tensor
    seen: torch.Tensor
    density: torch.Tensor
    position: torch.Tensor
    rounds: torch.Tensor
    _scale: torch.Tensor

    def __init__(
        self,
        risk: Risk | str,
        n: int,
        *,
        step_size: float = 1.0,
        momentum: float = 0.0,
        uniform: float = 0.5,
        sample_weight: Any = None,
    ) -> None:
        super().__init__()
        self.risk = parse_risk(risk)
        if isinstance(self.risk, Deviation):
            raise TypeError(
                f"{self.risk!r} falls where some losses rise, which no weighting describes; train "
                f"on {self.risk.risk!r}, or on a Mixture with Mean()."
            )
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"n must be the number of training samples, at least 1, got {n!r}.")
        _check("step_size", step_size, 0.0, math.inf, "1.0 is a usual choice")
        _check("momentum", momentum, 0.0, 1.0, "0.0 leaves losses as they are")
        _check("uniform", uniform, 0.0, 1.0, "0.5 looks again at samples that have no weight")
        if step_size == 0.0 or uniform == 0.0:
            name = "step_size" if step_size == 0.0 else "uniform"
            raise ValueError(f"{name} must be above 0, or nothing is learnt about the samples.")
        self.n = int(n)
        self.step_size, self.momentum, self.uniform = step_size, momentum, uniform
        self._omega: FloatArray | None = None
        if sample_weight is not None:
            given = sample_weight
            if isinstance(sample_weight, torch.Tensor):
                given = sample_weight.detach().cpu().double().numpy()
            self._omega = normalised_sample_weight(given, self.n)
        self._projector = Projector(self.risk, self.n, self._omega)
        # n times the sample weights.
        scale = np.ones(self.n) if self._omega is None else self.n * self._omega
        self.register_buffer("_scale", torch.from_numpy(scale), persistent=False)
        self.register_buffer("losses", torch.zeros(self.n, dtype=torch.float64))
        self.register_buffer("previous", torch.zeros(self.n, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(self.n, dtype=torch.bool))
        self.register_buffer("density", torch.ones(self.n, dtype=torch.float64))
        # Samples of this round that were used: where a resumed round goes on.
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        # Whether `previous` holds a round.
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    @property
    def weights(self) -> torch.Tensor:
        """The weighting lam of the samples: nonnegative, with sum 1."""
        return self.density * self._scale / self.n

    @property
    def probability(self) -> torch.Tensor:
        """The probabilities with which samples are to be drawn."""
        return (1.0 - self.uniform) * self.weights + self.uniform / self.n

    def importance(self, index: torch.Tensor) -> torch.Tensor:
        """Return lam_i over the probability of i, the factors of the losses in a batch.

        Parameters
        ----------
        index : Tensor
            Positions of the samples in the training set.

        Returns
        -------
        Tensor
            Numbers from 0 to ``1 / (1 - uniform)``, of the shape of the index.
        """
        lifted = self._scale[index] * self.density[index]
        return lifted / ((1.0 - self.uniform) * lifted + self.uniform)

    def forward(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        """Note the losses of a batch, and return an unbiased estimate of lam . l.

        Parameters
        ----------
        index : Tensor of shape (batch,)
            Positions of the samples in the training set, integers from 0 to n - 1.
        losses : Tensor of shape (batch,)
            Their losses. Nothing is noted in evaluation mode.

        Returns
        -------
        Tensor
            The mean of lam_i / p_i times the loss, p the probabilities of the draws.
        """
        place = self._place(index, losses)
        value = (self.importance(place).to(losses) * losses).mean()
        if self.training:
            if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
                return self._joint(place, losses, value)
            if not len(place):
                raise ValueError("the batch is empty; leave it out.")
            self._note(place, losses)
            self.position += len(place)
        return value

    def _joint(
        self, place: torch.Tensor, losses: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """The estimate of the joint batch: its value, and its gradient after an average."""
        world = dist.get_world_size()
        table = self.losses
        own = torch.tensor([len(place)], dtype=torch.int64, device=table.device)
        counts = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(counts, own)
        sizes = tuple(int(count) for count in counts)
        self._note(gather(place, sizes, None), gather(losses.detach().to(table), sizes, None))
        self.position += len(place)
        total = sum(sizes)
        share = value * (len(place) / total) if len(place) else losses.sum()
        joint = share.detach().clone()
        dist.all_reduce(joint)
        return joint + world * (share - share.detach())

    def record(self, index: torch.Tensor, losses: torch.Tensor) -> None:
        """Note losses that were computed for another reason, such as a pass over all samples.

        Parameters
        ----------
        index : Tensor of shape (batch,)
            Positions of the samples in the training set.
        losses : Tensor of shape (batch,)
            Their losses.
        """
        self._note(self._place(index, losses), losses)

    @torch.no_grad()
    def _note(self, place: torch.Tensor, losses: torch.Tensor) -> None:
        self.losses[place] = losses.to(self.losses)
        self.seen[place] = True

    @torch.no_grad()
    def step(self) -> None:
        """Begin a round: take the weighting a step towards the losses of the table.

        `SpectralSampler` calls this. Samples that were not seen yet count with the mean loss of
        those that were.

        Raises
        ------
        ValueError
            If a loss in the table is not finite.
        """
        self.position.zero_()
        seen = self.seen.cpu().numpy()
        if not seen.any():
            return
        table = self.losses.cpu().double().numpy().copy()
        wrong = seen & ~np.isfinite(table)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"the loss of sample {at} was {float(table[at])!r} when it was last seen; shorten "
                "the optimizer's steps, clip gradients, or repair the sample."
            )
        table[~seen] = table[seen].mean()
        ahead = table
        if self.momentum and self.rounds:
            ahead = table + self.momentum * (table - self.previous.cpu().double().numpy())
        self.previous.copy_(torch.from_numpy(table))
        self.rounds += 1
        # Neither the unit of the losses nor a constant added to them matters.
        ahead = ahead - ahead.min()
        unit = self._projector.value(ahead)
        if unit > 0.0:
            density = self.density.cpu().double().numpy()
            density = density + (self.step_size / unit) * ahead
            self._projector.project(density, density)
            self.density.copy_(torch.from_numpy(density))

    def table_risk(self) -> float:
        """Return the risk of the losses in the table, those of samples seen at different times.

        Returns
        -------
        float
            NaN before anything was seen.
        """
        seen = self.seen.cpu().numpy()
        if not seen.any():
            return math.nan
        omega = None if self._omega is None else self._omega[seen]
        return self.risk(self.losses.cpu().numpy()[seen], omega)

    def extra_repr(self) -> str:
        return f"{self.risk!r}, n={self.n}"

    def _place(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        if not isinstance(index, torch.Tensor) or index.dtype not in _INTEGERS:
            kind = index.dtype if isinstance(index, torch.Tensor) else type(index).__name__
            raise TypeError(
                f"index must be a tensor of integers, got {kind}; IndexedDataset gives it."
            )
        if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
            kind = losses.dtype if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise TypeError(f"losses must be a floating-point tensor, got {kind}.")
        if index.ndim != 1 or losses.shape != index.shape:
            raise ValueError(
                f"losses must be one for each index, got shapes {tuple(losses.shape)} and "
                f"{tuple(index.shape)}; reduce other dimensions first, with reduction='none'."
            )
        # On an accelerator the check would have to wait for it.
        if index.device.type == "cpu" and len(index):
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= self.n:
                raise IndexError(
                    f"index {low if low < 0 else high} is not one of {self.n} samples; n must be "
                    "the length of the training set."
                )
        return index.to(self.losses.device, torch.int64)


class SpectralSampler(torch.utils.data.Sampler[int]):
    """Draws the samples of a round, and moves the objective's weighting when a round begins.

    To be given to a ``DataLoader`` as ``sampler``, with any batch size and any number of workers.
    Draws are stratified: in a round of m draws, sample i comes up m p_i times, rounded up or down
    at random, in random order. While the weighting is uniform, a round of n draws is an ordinary
    shuffled epoch.

    ``state_dict`` and ``load_state_dict`` resume within a round: load those of the objective too. A
    loader that drops its last batch needs `num_samples` to be a multiple of the batch size for
    that.

    Parameters
    ----------
    objective : SpectralObjective
        The objective.
    num_samples : int, optional
        Draws in a round, of all processes together; n when not given. The weighting is fixed during
        a round, so that large sets may want shorter ones.
    seed : int, default=0
        Seed of the draws. Processes of torch.distributed must have the same.
    stratified : bool, default=True
        False makes the draws of a round independent.

    Examples
    --------
    >>> from sorel.torch import SpectralObjective, SpectralSampler
    >>> sampler = SpectralSampler(SpectralObjective("cvar:0.1", 5))
    >>> sorted(sampler), len(sampler)
    ([0, 1, 2, 3, 4], 5)
    """

    def __init__(
        self,
        objective: SpectralObjective,
        num_samples: int | None = None,
        *,
        seed: int = 0,
        stratified: bool = True,
    ) -> None:
        if not isinstance(objective, SpectralObjective):
            raise TypeError(f"objective must be a SpectralObjective, got {objective!r}.")
        count = objective.n if num_samples is None else num_samples
        self._world, self._rank = 1, 0
        if dist.is_available() and dist.is_initialized():
            self._world, self._rank = dist.get_world_size(), dist.get_rank()
        if isinstance(count, bool) or not isinstance(count, int) or count < self._world:
            raise ValueError(
                f"num_samples must be an integer and at least {self._world}, got {num_samples!r}."
            )
        self.objective = objective
        # As many for every process.
        self.num_samples = count // self._world * self._world
        self.stratified = stratified
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.zeros(0, dtype=torch.int64)
        self._resumed = False

    def __len__(self) -> int:
        return self.num_samples // self._world

    def __iter__(self) -> Iterator[int]:
        # The order is drawn here and not at the first sample: whoever reads ahead, as the workers
        # of a loader do, must not read beyond a change of the weighting.
        start = int(self.objective.position) if self._resumed else 0
        resumed = self._resumed and start < len(self)
        self._resumed = False
        if not resumed:
            self.objective.step()
            self._order, start = self._draw(), 0
        own = self._order[self._rank :: self._world]
        return iter(own[start:].tolist())

    def _draw(self) -> torch.Tensor:
        reach = torch.cumsum(self.objective.probability.cpu().double(), 0)
        m, generator = self.num_samples, self._generator
        if self.stratified:
            start = torch.rand((), dtype=torch.float64, generator=generator)
            points = (torch.arange(m, dtype=torch.float64) + start) / m
        else:
            points = torch.rand(m, dtype=torch.float64, generator=generator)
        drawn = torch.searchsorted(reach, points * reach[-1], right=True).clamp_max(len(reach) - 1)
        return drawn[torch.randperm(m, generator=generator)]

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on in the middle of a round.

        Returns
        -------
        dict
            The order of the round and the state of the random numbers.
        """
        return {"order": self._order.clone(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a saved sampler was; the next iteration yields what its round has left.

        Parameters
        ----------
        state : dict
            What `state_dict` returned.
        """
        order = state["order"]
        if len(order) not in (0, self.num_samples):
            raise ValueError(
                f"the saved round has {len(order)} draws, this sampler {self.num_samples}; give "
                "both the same num_samples."
            )
        self._order = order.clone()
        self._generator.set_state(state["generator"].cpu())
        self._resumed = len(order) > 0


class IndexedDataset(torch.utils.data.Dataset[Any]):
    """A dataset that gives the position of each sample along with it.

    Parameters
    ----------
    dataset : Dataset
        Anything with ``len`` and items by position.

    Examples
    --------
    >>> from sorel.torch import IndexedDataset
    >>> IndexedDataset(["a", "b"])[1]
    (1, 'b')
    """

    def __init__(self, dataset: Any) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                f"dataset must have a length and items by position, got {type(dataset).__name__}; "
                "streams have no table of losses."
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def _check(name: str, value: Any, low: float, high: float, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a real number, got {value!r}; {hint}.")
    if not (low <= value <= high and math.isfinite(value)):
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}; {hint}.")
