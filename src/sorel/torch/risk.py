"""The spectral risk of a batch of losses as a function that torch can differentiate.

The value is ``sum_i sigma_i l_[i]``, and its gradient in the losses is the weighting lam that gives
the value as ``sum_i lam_i l_i``. Equal losses share the weights of their places, in proportion to
their sample weights, so that neither the value nor the gradient depends on the order of the batch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as _pytree

from sorel.risks import (
    ESRM,
    CustomSpectrum,
    CVaR,
    Deviation,
    Extremile,
    Max,
    Mean,
    Mixture,
    Risk,
    normalised_sample_weight,
    parse_risk,
)

__all__ = ["SpectralRisk", "spectral_risk"]


def spectral_risk(
    losses: torch.Tensor,
    risk: Risk | str,
    weights: torch.Tensor | None = None,
    *,
    process_group: Any = None,
) -> torch.Tensor:
    """Spectral risk of the losses of a batch.

    Parameters
    ----------
    losses : Tensor of any shape
        One loss per sample, of a floating-point type; all entries count alike.
    risk : Risk or str
        Weights of the ordered losses, such as ``CVaR(0.1)`` or ``"cvar:0.1"``.
    weights : Tensor, optional
        Sample weights of the shape of the losses: finite, nonnegative, not all zero; a weight of 2
        is the same as giving the loss twice. They are constants: no gradient flows to them.
    process_group : ProcessGroup, optional
        Processes of torch.distributed whose batches, which may differ in size, are one batch. All
        of them must call. The value is then that of the joint batch, and the gradient is multiplied
        by the number of processes, because `DistributedDataParallel` takes the average of the
        processes' gradients: the gradient of the parameters is that of the joint batch.

    Returns
    -------
    Tensor
        A scalar of the type of the losses. NaN among the losses gives NaN. It was computed in
        float64 where the device has it.

    Raises
    ------
    TypeError
        If the losses are no floating-point tensor.
    ValueError
        If there are no losses, or the weights cannot be used.

    Examples
    --------
    >>> import torch
    >>> from sorel.torch import spectral_risk
    >>> losses = torch.tensor([3.0, 1.0, 2.0, 4.0, 3.0], requires_grad=True)
    >>> value = spectral_risk(losses, "cvar:0.4")
    >>> value.backward()
    >>> value.item(), losses.grad
    (3.5, tensor([0.2500, 0.0000, 0.0000, 0.5000, 0.2500]))
    """
    return _risk_of(losses, _key_of(risk), weights, process_group)


class SpectralRisk(torch.nn.Module):
    """Spectral risk of the losses of a batch, as a module.

    Under torch.distributed it gives the risk of the joint batch of all processes while it is in
    training mode, and that of the process's own batch after ``eval()``, as batch normalisation
    across processes does. See `spectral_risk` for values and gradients.

    The risk of a mini-batch is not an unbiased estimate of the risk of all samples: the smaller the
    batch and the tail, the more it falls short. `SpectralObjective` has no such bias.

    Parameters
    ----------
    risk : Risk or str
        Weights of the ordered losses, such as ``CVaR(0.1)`` or ``"cvar:0.1"``.
    process_group : ProcessGroup, optional
        The processes that share a batch; all of them when not given.

    Examples
    --------
    >>> import torch
    >>> from sorel.torch import SpectralRisk
    >>> criterion = SpectralRisk("cvar:0.5")
    >>> criterion
    SpectralRisk(CVaR(alpha=0.5))
    >>> criterion(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    tensor(4.)
    """

    def __init__(self, risk: Risk | str, process_group: Any = None) -> None:
        super().__init__()
        self.risk = parse_risk(risk)
        self.process_group = process_group
        self._key = _key_of(self.risk)

    def forward(self, losses: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the risk.

        Parameters
        ----------
        losses : Tensor of any shape
            One loss per sample.
        weights : Tensor, optional
            Sample weights of the same shape.

        Returns
        -------
        Tensor
            A scalar.
        """
        group = None
        if self.training and dist.is_available() and dist.is_initialized():
            group = dist.group.WORLD if self.process_group is None else self.process_group
        return _risk_of(losses, self._key, weights, group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Keys belong to a process.
        super().__setstate__({**state, "_key": _key_of(state["risk"])})

    def __getstate__(self) -> dict[str, Any]:
        # A process group cannot leave its process.
        return {**self.__dict__, "process_group": None}

    def extra_repr(self) -> str:
        return repr(self.risk)


# Operators take numbers, not risks.
_RISKS: list[Risk] = []

# Before torch 2.12, compiled code takes no object for a constant unless its class is known as one.
for _kind in (Mean, CVaR, ESRM, Extremile, Max, Mixture, CustomSpectrum, Deviation):
    if hasattr(_pytree, "register_constant"):
        _pytree.register_constant(_kind)


@torch.compiler.assume_constant_result
def _key_of(risk: Risk | str) -> int:
    known = parse_risk(risk)
    if known not in _RISKS:
        _RISKS.append(known)
    return _RISKS.index(known)


def _risk_of(
    losses: torch.Tensor, key: int, weights: torch.Tensor | None, group: Any
) -> torch.Tensor:
    if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
        kind = losses.dtype if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise TypeError(f"losses must be a floating-point tensor, got {kind}; convert it first.")
    if weights is not None and weights.shape != losses.shape:
        raise ValueError(
            f"weights must have the shape of the losses, {tuple(losses.shape)}, got "
            f"{tuple(weights.shape)}."
        )
    # Sums of many small weights, and weights themselves, are beyond half precision.
    precise = torch.float32 if losses.device.type == "mps" else torch.float64
    flat = losses.reshape(-1).to(precise)
    flat_weights = None if weights is None else weights.detach().reshape(-1)
    if group is not None:
        return _joint_risk(flat, key, flat_weights, group).to(losses.dtype)
    if flat.shape[0] == 0:
        raise ValueError("losses are empty; a risk needs at least one loss.")
    lam = _weighting(flat.detach(), key, flat_weights)
    return _dot(lam, flat).to(losses.dtype)


def _dot(lam: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    # An infinite loss of weight 0 counts for nothing, as in `Risk.__call__`.
    return torch.where(lam != 0.0, lam * losses, 0.0).sum()


def _weighting(losses: torch.Tensor, key: int, weights: torch.Tensor | None) -> torch.Tensor:
    """The weights of the losses of which the risk is made; equal losses share theirs."""
    ordered, order = torch.sort(losses)
    if weights is None:
        sigma = _sigma(losses, losses.shape[0], key)
        omega = torch.ones_like(sigma)
    else:
        sigma, omega = _increments(losses, weights, order, key)
    rises = (ordered[1:] != ordered[:-1]).to(torch.int64)
    tie = torch.cat([rises.new_zeros(1), torch.cumsum(rises, 0)])
    mass = torch.zeros_like(sigma).scatter_add(0, tie, sigma)
    room = torch.zeros_like(sigma).scatter_add(0, tie, omega)
    shared = torch.where(omega > 0.0, omega * (mass / room)[tie], 0.0)
    return torch.zeros_like(shared).scatter(0, order, shared)


@functools.lru_cache(maxsize=8)
def _cached_sigma(n: int, key: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(_RISKS[key].weights(n)).to(device=device, dtype=dtype)


@torch.library.custom_op("sorel::sigma", mutates_args=())
def _sigma(like: torch.Tensor, n: int, key: int) -> torch.Tensor:
    # A copy, because compiled code may write into what an operator returns.
    return _cached_sigma(n, key, like.dtype, like.device).clone()


@_sigma.register_fake
def _(like: torch.Tensor, n: int, key: int) -> torch.Tensor:
    return like.new_empty(n)


@_sigma.register_vmap
def _(info: Any, in_dims: Any, like: torch.Tensor, n: int, key: int) -> tuple[torch.Tensor, None]:
    return _sigma(like.select(in_dims[0], 0), n, key), None


@torch.library.custom_op("sorel::increments", mutates_args=())
def _increments(
    like: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, key: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the ordered losses, and the normalised sample weights in their order."""
    given = weights.to(device="cpu", dtype=torch.float64).numpy()
    try:
        omega = normalised_sample_weight(given, given.size)[order.cpu().numpy()]
    except ValueError as error:
        raise ValueError(str(error).replace("sample_weight", "weights")) from None
    sigma = _RISKS[key].increments(omega)
    return torch.from_numpy(sigma).to(like), torch.from_numpy(omega).to(like)


@_increments.register_fake
def _(
    like: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, key: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(like), torch.empty_like(like)


# Sizes of batches are numbers that a compiled graph cannot know.
@torch.compiler.disable
def _joint_risk(
    losses: torch.Tensor, key: int, weights: torch.Tensor | None, group: Any
) -> torch.Tensor:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    own = torch.tensor([losses.shape[0], weights is not None], device=losses.device)
    gathered = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(gathered, own, group=group)
    sizes, weighted = zip(*(pair.tolist() for pair in gathered), strict=True)
    if sum(sizes) == 0:
        raise ValueError("losses are empty in every process; a risk needs at least one loss.")
    if any(weighted) != all(weighted):
        raise ValueError(
            f"weights are given by {sum(weighted)} of {world} processes; give them in all or none."
        )
    everyone = gather(losses.detach(), sizes, group)
    all_weights = None if weights is None else gather(weights.to(losses.dtype), sizes, group)
    lam = _weighting(everyone, key, all_weights)
    start = sum(sizes[:rank])
    share = _dot(lam[start : start + sizes[rank]], losses)
    # The value of the joint batch, and world times the gradient of this process's share of it.
    return _dot(lam, everyone) + world * (share - share.detach())


def gather(part: torch.Tensor, sizes: tuple[int, ...], group: Any) -> torch.Tensor:
    padded = part.new_zeros(max(sizes))
    padded[: part.shape[0]] = part
    rows = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group=group)
    return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])
