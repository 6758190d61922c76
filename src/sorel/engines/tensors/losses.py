"""Losses of tensors, in float64, on any device.

Those of one margin per sample are the formulas of :mod:`sorel.losses`. A class that is not in its
registry, a loss of the user's own or one derived from the package's, is refused: its formulas are
NumPy's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sorel.problem.losses import LOSSES, Loss


def check_served(loss: Loss) -> None:
    """Refuse a loss whose formulas do not take tensors.

    Examples
    --------
    >>> from sorel.engines.tensors.losses import check_served
    >>> from sorel.losses import Squared
    >>> check_served(Squared())
    """
    if type(loss) not in LOSSES.values():
        names = ", ".join(repr(name) for name in LOSSES)
        raise ValueError(
            f"the loss {type(loss).__name__} has formulas for NumPy arrays alone; on tensors use "
            f"one of {names}, or pass X as a NumPy array"
        )


def softmax_losses(y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Losses of K margins per sample, and slopes softmax(z) - onehot(y)."""
    own = y[:, None]
    # Distances from the own margin: the loss is log(1 + the sum of the others' exponentials).
    top = (z - z.gather(1, own)).scatter_(1, own, -torch.inf)
    highest = top.amax(dim=1, keepdim=True).clamp_(min=0.0)
    slopes = top.sub_(highest).exp_()
    rest = slopes.sum(dim=1, keepdim=True)
    first = highest.neg().exp_()
    # Where the own margin is the largest, log1p keeps the digits of a confident sample.
    losses = torch.where(highest > 0.0, highest + (rest + first).log_(), rest.log1p())
    slopes.div_(rest + first)
    slopes.scatter_(1, own, -slopes.sum(dim=1, keepdim=True))
    return losses[:, 0], slopes
