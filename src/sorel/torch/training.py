"""Training on the spectral risk of all samples, one batch at a time.

The risk of n losses is ``max_{lam in P(sigma)} lam . l(w)``. `SpectralObjective` keeps the loss of
every sample when it was last seen, and a weighting lam. Once in a round it takes lam a step towards
the losses, ``Proj(lam + eta ((1 + theta) l - theta l_previous))``, as SOREL does (Ge and Jiang
2024). In between lam is fixed, and the batches that `SpectralSampler` draws, each loss multiplied
by lam_i over the probability of i, give unbiased gradients of ``lam . l(w)`` to any optimizer
(Horvitz and Thompson 1952).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from sorel._lib.warnings import warn
from sorel.problem.risks import (
    Deviation,
    FloatArray,
    Mean,
    Risk,
    check_real,
    normalised_sample_weight,
    parse_risk,
)
from sorel.projection import Projector
from sorel.torch.risk import check_floating, gather, gather_numbers, joint

__all__ = ["IndexedDataset", "SpectralObjective", "SpectralSampler"]

# The weighting covers 95% of its way after this number times (largest density - 1) / step_size
# rounds: 1.5 to 3.8 for CVaR(0.02) of fixed losses that are exponential, squares of normal or t
# variables, uniform or logistic; fewer for smooth risks.
_ROUNDS_OF_WAY = 2.0
# No longer step is chosen for few rounds. With 10 rounds on concrete, steps of 10 and 20 end with a
# CVaR(0.02) 1.3 and 1.6 times that of a step of 1; with 20 rounds, a step of 5 with 1.06 times it.
_LONGEST_STEP = 4.0


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
    step_size : float, optional
        Length of the dual step, in units that do not depend on those of the losses: before the
        projection, the density of a sample rises by `step_size` times its loss over the risk of all
        (of losses less their least). 1.0 when not given, or what `planned_rounds` asks for. Very
        long steps are the worst case of the table itself, which swings from one part of the samples
        to another.
    planned_rounds : int, optional
        Number of rounds of the training. The step is then long enough, from 1.0 to 4.0, for the
        weighting to come to the worst case within them: it takes about 2 (d - 1) / `step_size`
        rounds, d being n times the largest weight of the risk, which is 98 for CVaR(0.02) and a
        step of 1. A warning says where they are too few; `progress` says how far it is.
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
        step_size: float | None = None,
        planned_rounds: int | None = None,
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
        self.n = int(n)
        if step_size is not None:
            hint = "1.0 is a usual choice"
            check_real("step_size", step_size, 0.0, math.inf, hint=hint, low_open=True)
        check_real("momentum", momentum, 0.0, 1.0, hint="0.0 leaves losses as they are")
        hint = "0.5 looks again at samples that have no weight"
        check_real("uniform", uniform, 0.0, 1.0, hint=hint, low_open=True)
        self.step_size = self._planned_step(step_size, planned_rounds)
        self.momentum, self.uniform = momentum, uniform
        omega: FloatArray | None = None
        if isinstance(sample_weight, torch.Tensor):
            sample_weight = sample_weight.detach().cpu().double().numpy()
        if sample_weight is not None:
            omega = normalised_sample_weight(sample_weight, self.n)
        self._projector = Projector(self.risk, self.n, omega)
        ones = torch.ones(self.n, dtype=torch.float64)
        # n times the sample weights.
        scale = ones if omega is None else torch.from_numpy(self.n * omega)
        self.register_buffer("_scale", scale, persistent=False)
        self.register_buffer("losses", torch.zeros_like(ones))
        self.register_buffer("previous", torch.zeros_like(ones))
        self.register_buffer("seen", torch.zeros(self.n, dtype=torch.bool))
        self.register_buffer("density", ones.clone())
        # Samples of this round that were used: where a resumed round goes on.
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        # Whether `previous` holds a round.
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))
        # How often losses were noted, and the largest batch of this round.
        self._notes = self._largest_batch = 0

    def _planned_step(self, step_size: float | None, planned: int | None) -> float:
        way = _ROUNDS_OF_WAY * (self.n * float(self.risk.weights(self.n)[-1]) - 1.0)
        if planned is None:
            return 1.0 if step_size is None else step_size
        if isinstance(planned, bool) or not isinstance(planned, int) or planned < 1:
            raise ValueError(
                f"planned_rounds must be an integer and at least 1, got {planned!r}; it is the "
                "number of times that the sampler is gone through."
            )
        if step_size is None:
            step_size = min(max(way / planned, 1.0), _LONGEST_STEP)
        if way / step_size > planned:
            warn(
                f"the weighting needs about {math.ceil(way / step_size)} rounds to come to "
                f"{self.risk!r}, and {planned} are planned: the training stays between the plain "
                "mean and the risk. Give SpectralSampler fewer num_samples for more rounds, or "
                "train on SpectralRisk."
            )
        return step_size

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
        factors = self.importance(place).to(losses)
        # An infinite loss of weight 0 counts for nothing.
        value = (factors * torch.where(factors != 0.0, losses, 0.0)).mean()
        if self.training:
            if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
                return self._joint(place, losses, value)
            if not len(place):
                raise ValueError("the batch is empty; leave it out.")
            self._note(place, losses)
            self._advance(len(place))
        return value

    def _advance(self, size: int) -> None:
        self.position += size
        self._largest_batch = max(self._largest_batch, size)

    def _joint(
        self, place: torch.Tensor, losses: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """The estimate of the joint batch: its value, and its gradient after an average."""
        table = self.losses
        (sizes,) = gather_numbers(table, [len(place)], None)
        self._note(gather(place, sizes, None), gather(losses.detach().to(table), sizes, None))
        self._advance(len(place))
        share = value * (len(place) / sum(sizes)) if len(place) else losses.sum()
        total = share.detach().clone()
        dist.all_reduce(total)
        return joint(total, share, len(sizes))

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
        self._notes += 1

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
        self._largest_batch = 0
        seen = self._known()
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

    def _known(self) -> npt.NDArray[np.bool_]:
        """Samples whose loss was seen and counts."""
        return (self.seen & (self._scale > 0.0)).cpu().numpy()

    def table_risk(self) -> float:
        """Return the risk of the losses in the table, those of samples seen at different times.

        Returns
        -------
        float
            NaN before anything was seen.
        """
        return self._of_table(self.risk)

    def _of_table(self, risk: Risk) -> float:
        known = self._known()
        if not known.any():
            return math.nan
        return risk(self.losses.cpu().numpy()[known], self._scale.cpu().numpy()[known])

    def progress(self) -> float:
        """Return how far the weighting has come from the plain mean to the worst case.

        Returns
        -------
        float
            The excess of lam . l over the mean of the losses in the table, as a share of the excess
            of their risk: 0 at the beginning, 1 for the worst case. NaN before anything was seen,
            and while all losses are equal.
        """
        mean, risk = self._of_table(Mean()), self._of_table(self.risk)
        known = torch.from_numpy(self._known())
        lam = self.weights.cpu()[known]
        if not risk > mean:
            return math.nan
        value = float(lam @ self.losses.cpu()[known]) / float(lam.sum())
        return (value - mean) / (risk - mean)

    def get_extra_state(self) -> torch.Tensor:
        """Return the risk that the state is one of, as the bytes of its name."""
        return torch.tensor(list(repr(self.risk).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Do nothing: the risk is checked before anything is loaded."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        saved = state.get(f"{prefix}_extra_state")
        name = repr(self.risk) if saved is None else bytes(saved.tolist()).decode()
        if name != repr(self.risk):
            raise ValueError(
                f"the saved state is one of {name}, and this objective has {self.risk!r}; make it "
                "with the risk that was saved."
            )
        super()._load_from_state_dict(state, prefix, *others)

    def extra_repr(self) -> str:
        return f"{self.risk!r}, n={self.n}"

    def _place(self, index: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        if not isinstance(index, torch.Tensor) or index.dtype not in _INTEGERS:
            kind = index.dtype if isinstance(index, torch.Tensor) else type(index).__name__
            raise TypeError(
                f"index must be a tensor of integers, got {kind}; IndexedDataset gives it."
            )
        check_floating(losses)
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
    Draws are stratified (systematic sampling: Madow 1949): in a round of m draws, sample i comes up
    m p_i times, rounded up or down at random, in random order. While the weighting is uniform, a
    round of n draws is an ordinary shuffled epoch.

    ``state_dict`` and ``load_state_dict`` resume within a round: load those of the objective too. A
    round that was read to its end, with less than a batch left, is over: a loader that drops its
    last batch leaves that much. (With workers, which read ahead, an incomplete last batch that is
    not dropped is then lost if the state was saved just before it.)

    A pass of which the objective saw nothing is served again, and moves no weight.

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
        if isinstance(count, bool) or not isinstance(count, int):
            raise ValueError(f"num_samples must be an integer, got {num_samples!r}.")
        self.objective = objective
        self.num_samples = count
        self.stratified = stratified
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.zeros(0, dtype=torch.int64)
        self._resumed = self._exhausted = False
        # Where the last pass began, and what the objective had seen by then.
        self._start, self._notes = 0, -1
        self._shares()

    def _shares(self) -> tuple[int, int, int]:
        """Draws of a process in a round, the number of processes, and which one this is."""
        # Asked every time, since processes may meet after the sampler was made.
        world, rank = 1, 0
        if dist.is_available() and dist.is_initialized():
            world, rank = dist.get_world_size(), dist.get_rank()
        if self.num_samples < world:
            raise ValueError(
                f"num_samples must be at least {world}, one for each process, got "
                f"{self.num_samples}."
            )
        return self.num_samples // world, world, rank

    def __len__(self) -> int:
        return self._shares()[0]

    def __iter__(self) -> Iterator[int]:
        # The order is drawn here and not at the first sample: whoever reads ahead, as the workers
        # of a loader do, must not read beyond a change of the weighting.
        share, world, rank = self._shares()
        if self._resumed and int(self.objective.position) < share:
            self._start = int(self.objective.position)
        elif self._notes != self.objective._notes:
            self.objective.step()
            self._order, self._start = self._draw(share * world), 0
        self._resumed = self._exhausted = False
        self._notes = self.objective._notes
        return self._serve(self._order[rank::world][self._start :].tolist())

    def _serve(self, samples: list[int]) -> Iterator[int]:
        yield from samples
        self._exhausted = True

    def _draw(self, m: int) -> torch.Tensor:
        reach = torch.cumsum(self.objective.probability.cpu().double(), 0)
        generator = self._generator
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
            The order of the round, whether it is over, and the state of the random numbers.
        """
        left = len(self) - int(self.objective.position)
        return {
            "order": self._order.clone(),
            "over": self._exhausted and left < self.objective._largest_batch,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a saved sampler was; the next iteration yields what its round has left.

        Parameters
        ----------
        state : dict
            What `state_dict` returned.
        """
        order = state["order"]
        share, world, _ = self._shares()
        if len(order) not in (0, share * world):
            raise ValueError(
                f"the saved round has {len(order)} draws, this sampler {share * world}; give both "
                "the same num_samples."
            )
        self._order = order.clone()
        self._generator.set_state(state["generator"].cpu())
        self._resumed = len(order) > 0 and not state.get("over", False)
        self._notes = -1


class IndexedDataset(torch.utils.data.Dataset[Any]):
    """A dataset that gives the position of each sample along with it.

    Batches are fetched at once where the dataset can (``__getitems__``, or items by a list of
    positions). What it gives for them, a list of samples or a batch that is complete already, such
    as a dictionary of columns, goes on as (positions, batch).

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

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        place = torch.as_tensor(index) if isinstance(index, (list, tuple)) else index
        return place, self.dataset[index]

    def __getitems__(self, index: list[int]) -> Any:
        if not callable(getattr(self.dataset, "__getitems__", None)):
            return [self[i] for i in index]
        batch = self.dataset.__getitems__(index)
        if isinstance(batch, (list, tuple)) and len(batch) == len(index):
            return list(zip(index, batch, strict=True))
        return torch.as_tensor(index), batch


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
