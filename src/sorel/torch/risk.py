"""The spectral risk of a batch of losses as a function that torch can differentiate.

The value is ``sum_i sigma_i l_[i]``, and its gradient in the losses is the weighting lam that gives
the value as ``sum_i lam_i l_i``. Equal losses share the weights of their places, in proportion to
their sample weights, so that neither the value nor the gradient depends on the order of the batch.
On a CUDA device, which would have to be waited for, the first of equal losses count instead, where
there are no sample weights: another subgradient.

Small batches take as long as torch needs to start the operations, so these are few: the weights of
the places are kept, and losses without ties need only the largest of them sorted out.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils._pytree as _pytree

from sorel.problem.risks import (
    ESRM,
    CustomSpectrum,
    CVaR,
    Deviation,
    Extremile,
    FloatArray,
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
    losses : Tensor
        One loss per sample, of a floating-point type and at least one dimension; all entries count
        alike.
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
        A scalar of the type of the losses. NaN among the losses gives NaN. Half precision is
        computed in float32.

    Raises
    ------
    TypeError
        If the losses are no floating-point tensor.
    ValueError
        If there are no losses, or a single number in their place, or the weights cannot be used.

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
        losses : Tensor
            One loss per sample, of at least one dimension: ``reduction="none"``.
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
    check_floating(losses)
    if losses.ndim == 0:
        raise ValueError(
            "losses must be one for each sample, got a single number (shape ()); compute them with "
            "reduction='none'."
        )
    if weights is not None and weights.shape != losses.shape:
        raise ValueError(
            f"weights must have the shape of the losses, {tuple(losses.shape)}, got "
            f"{tuple(weights.shape)}."
        )
    flat = losses if losses.ndim == 1 else losses.reshape(-1)
    if losses.dtype not in (torch.float32, torch.float64):
        # Weights of large batches are beyond half precision.
        flat = flat.float()
    if weights is not None:
        weights = weights.detach().reshape(-1)
    if group is not None:
        return _joint_risk(flat, key, weights, group).to(losses.dtype)
    if flat.shape[0] == 0:
        raise ValueError("losses are empty; a risk needs at least one loss.")
    # What is compiled or transformed sees one operator, which costs a call.
    apart = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    lam = (_weighting if apart else _weigh)(flat.detach(), weights, key)
    return dot(lam, flat).to(losses.dtype)


def check_floating(losses: Any) -> None:
    """Refuse losses that are no tensor of a floating-point type."""
    if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
        kind = losses.dtype if isinstance(losses, torch.Tensor) else type(losses).__name__
        raise TypeError(f"losses must be a floating-point tensor, got {kind}; convert it first.")


def dot(weights: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    """Their inner product, in which a loss of weight 0 counts for nothing, even if infinite."""
    return torch.dot(weights, torch.where(weights != 0.0, losses, 0.0))


# One operator without a derivative, which compiled code and vmap know by its name.
_OPERATORS = torch.library.Library("sorel", "DEF")
_OPERATORS.define("weighting(Tensor losses, Tensor? weights, int key) -> Tensor")
_weighting = torch.ops.sorel.weighting.default


@torch.library.impl(_OPERATORS, "weighting", "CompositeExplicitAutograd")
def _weigh(losses: torch.Tensor, weights: torch.Tensor | None, key: int) -> torch.Tensor:
    """The weights of the losses that make up the risk."""
    if weights is not None:
        return _weigh_on_host(losses, torch.sort(losses), weights, key)
    n = losses.shape[0]
    sigma, used = _top_places(key, n, losses.dtype, losses.device)
    if losses.is_cuda:
        # To ask whether there are ties would be to wait for the device: the first of them count.
        order = torch.sort(losses, descending=True, stable=True).indices[: used.shape[0]]
        return torch.zeros_like(losses).scatter_(0, order, used)
    top, order = torch.topk(losses, sigma.shape[0])
    if torch.unique_consecutive(top).shape[0] == sigma.shape[0]:
        return torch.zeros_like(losses).scatter_(0, order, sigma)
    whole = (top.flip(0), order.flip(0)) if sigma.shape[0] == n else torch.sort(losses)
    return _weigh_on_host(losses, whole, None, key)


@torch.library.register_fake("sorel::weighting", lib=_OPERATORS)
def _(losses: torch.Tensor, weights: torch.Tensor | None, key: int) -> torch.Tensor:
    return torch.empty_like(losses, memory_format=torch.contiguous_format)


@torch.library.register_vmap("sorel::weighting", lib=_OPERATORS)
def _(
    info: Any, in_dims: Any, losses: torch.Tensor, weights: torch.Tensor | None, key: int
) -> tuple[torch.Tensor, int]:
    def rows(given: Any, dim: int | None) -> Any:
        return [given] * info.batch_size if dim is None else given.movedim(dim, 0)

    pairs = zip(rows(losses, in_dims[0]), rows(weights, in_dims[1]), strict=True)
    return torch.stack([_weighting(row, own, key) for row, own in pairs]), 0


@functools.lru_cache(maxsize=16)
def _top_places(
    key: int, n: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the largest losses, from the largest on: with a place of weight 0, and without.

    The loss at that place may be equal to one that has weight.
    """
    sigma = _places(key, n)
    used = len(np.trim_zeros(sigma, "f"))
    top = torch.from_numpy(sigma[::-1].copy()).to(device=device, dtype=dtype)
    return top[: used + 1], top[:used]


@functools.lru_cache(maxsize=16)
def _places(key: int, n: int) -> FloatArray:
    return _RISKS[key].weights(n)


def _weigh_on_host(
    losses: torch.Tensor,
    ascending: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor | None,
    key: int,
) -> torch.Tensor:
    n = losses.shape[0]
    values, places = (part.cpu().numpy() for part in ascending)
    if weights is None:
        omega, sigma = np.ones(n), _places(key, n)
    else:
        given = weights.to(device="cpu", dtype=torch.float64).numpy()
        try:
            omega = normalised_sample_weight(given, n)[places]
        except ValueError as error:
            raise ValueError(str(error).replace("sample_weight", "weights")) from None
        sigma = _RISKS[key].increments(omega)
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    mass, room = np.add.reduceat(sigma, starts), np.add.reduceat(omega, starts)
    density = np.divide(mass, room, out=np.zeros_like(mass), where=room > 0.0)
    lam = np.empty(n)
    lam[places] = omega * np.repeat(density, np.diff(starts, append=n))
    return torch.from_numpy(lam).to(losses)


# Sizes of batches are numbers that a compiled graph cannot know.
@torch.compiler.disable
def _joint_risk(
    losses: torch.Tensor, key: int, weights: torch.Tensor | None, group: Any
) -> torch.Tensor:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes, weighted = gather_numbers(losses, [losses.shape[0], weights is not None], group)
    if sum(sizes) == 0:
        raise ValueError("losses are empty in every process; a risk needs at least one loss.")
    if any(weighted) != all(weighted):
        raise ValueError(
            f"weights are given by {sum(weighted)} of {world} processes; give them in all or none."
        )
    everyone = gather(losses.detach(), sizes, group)
    all_weights = None if weights is None else gather(weights.to(losses.dtype), sizes, group)
    lam = _weighting(everyone, all_weights, key)
    start = sum(sizes[:rank])
    share = dot(lam[start : start + sizes[rank]], losses)
    return joint(dot(lam, everyone), share, world)


def joint(value: torch.Tensor, share: torch.Tensor, world: int) -> torch.Tensor:
    """The value of the joint batch, with `world` times the gradient of a process's share of it."""
    return value + world * (share - share.detach())


def gather_numbers(near: torch.Tensor, own: list[int], group: Any) -> list[tuple[int, ...]]:
    """Some numbers of every process, each in a row; sent from the device of a tensor."""
    given = torch.tensor(own, dtype=torch.int64, device=near.device)
    everyone = [torch.empty_like(given) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, given, group=group)
    return list(zip(*(numbers.tolist() for numbers in everyone), strict=True))


def gather(part: torch.Tensor, sizes: tuple[int, ...], group: Any) -> torch.Tensor:
    padded = part.new_zeros(max(sizes))
    padded[: part.shape[0]] = part
    rows = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group=group)
    return torch.cat([row[:size] for row, size in zip(rows, sizes, strict=True)])
