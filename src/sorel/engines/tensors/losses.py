"""The package's losses phi(y, z) for tensors: values and derivatives, in float64, on any device.

The formulas are those of :mod:`sorel.losses`. A class that is not in the table, a loss of the
user's own or one derived from the package's, is refused: its formulas are NumPy's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sorel.losses import (
    Gamma,
    Huber,
    Linear,
    Logistic,
    Loss,
    Multinomial,
    Poisson,
    Squared,
    SquaredHinge,
)

# Below this, exp(t) - 1 - t has lost too many digits of t.
_SERIES_BELOW = 0.05


class Formulas:
    """One loss of a margin per sample; every method takes targets and margins of length n."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def value(self, y: Tensor, z: Tensor) -> Tensor:
        """phi."""
        raise NotImplementedError

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        """First derivative in the margin."""
        raise NotImplementedError

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        """Second derivative in the margin."""
        raise NotImplementedError

    def majorant(self, y: Tensor, z: Tensor) -> Tensor:
        """Curvature of a parabola that touches phi at z and lies above it."""
        return torch.full_like(z, float(self.loss.curvature_bound))


class _Squared(Formulas):
    def value(self, y: Tensor, z: Tensor) -> Tensor:
        r = z - y
        return r.mul_(r).mul_(0.5)

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        return z - y

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.ones_like(z)


class _Huber(Formulas):
    def __init__(self, loss: Loss) -> None:
        assert isinstance(loss, Huber)
        super().__init__(loss)
        self._delta = float(loss.delta)

    def value(self, y: Tensor, z: Tensor) -> Tensor:
        r = (z - y).abs_()
        inner = r.clamp(max=self._delta)
        # min(r, delta) (r - min(r, delta) / 2) is both branches at once.
        return r.sub_(inner, alpha=0.5).mul_(inner)

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        return (z - y).clamp_(-self._delta, self._delta)

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        return ((z - y).abs_() <= self._delta).to(z.dtype)

    def majorant(self, y: Tensor, z: Tensor) -> Tensor:
        return self._delta / (z - y).abs_().clamp_(min=self._delta)


class _Logistic(Formulas):
    def value(self, y: Tensor, z: Tensor) -> Tensor:
        m = y * z
        small = m.abs().neg_().exp_().log1p_()
        return small.sub_(m.clamp_(max=0.0))

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.sigmoid_((y * z).neg_()).mul_(y).neg_()

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        e = (y * z).abs_().neg_().exp_()
        return e.div_((1.0 + e).square_())

    def majorant(self, y: Tensor, z: Tensor) -> Tensor:
        m = (y * z).abs_()
        near = m < 1e-4
        m.masked_fill_(near, 1.0)
        return (0.5 * torch.tanh(0.5 * m)).div_(m).masked_fill_(near, 0.25)


class _SquaredHinge(Formulas):
    def value(self, y: Tensor, z: Tensor) -> Tensor:
        return (1.0 - y * z).clamp_(min=0.0).square_()

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        return (1.0 - y * z).clamp_(min=0.0).mul_(y).mul_(-2.0)

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        return (y * z < 1.0).to(z.dtype).mul_(2.0)


class _Linear(Formulas):
    def value(self, y: Tensor, z: Tensor) -> Tensor:
        return y - z

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.full_like(z, -1.0)

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.zeros_like(z)


class _Deviance(Formulas):
    """In t = z - log(y), the margin above the best one."""

    def majorant(self, y: Tensor, z: Tensor) -> Tensor:
        away = z - y.log()
        chord = torch.where(away.abs() > 1e-4, self.derivative(y, z) / away, 0.0)
        chord = torch.where(chord.isfinite(), chord, 0.0)
        return torch.maximum(self.curvature(y, z), chord)


class _Poisson(_Deviance):
    def value(self, y: Tensor, z: Tensor) -> Tensor:
        positive = y > 0.0
        t = z - torch.where(positive, y, 1.0).log_()
        return torch.where(positive, y * _exp_excess(t), z.exp())

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        positive = y > 0.0
        t = z - torch.where(positive, y, 1.0).log_()
        return torch.where(positive, y * torch.expm1(t), z.exp())

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        return z.exp()


class _Gamma(_Deviance):
    def value(self, y: Tensor, z: Tensor) -> Tensor:
        return _exp_excess(y.log() - z)

    def derivative(self, y: Tensor, z: Tensor) -> Tensor:
        return torch.expm1_(y.log() - z).neg_()

    def curvature(self, y: Tensor, z: Tensor) -> Tensor:
        return (y.log() - z).exp_()


def _exp_excess(t: Tensor) -> Tensor:
    """exp(t) - 1 - t at full relative accuracy: by its series where the difference has none."""
    small = torch.where(t.abs() < _SERIES_BELOW, t, 0.0)
    series = torch.ones_like(t)
    for k in range(9, 2, -1):
        series.mul_(small).div_(k).add_(1.0)
    near = small.square_().mul_(0.5).mul_(series)
    return torch.where(t.abs() < _SERIES_BELOW, near, torch.expm1(t) - t)


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


_TABLE: dict[type[Loss], type[Formulas]] = {
    Squared: _Squared,
    Huber: _Huber,
    Logistic: _Logistic,
    SquaredHinge: _SquaredHinge,
    Linear: _Linear,
    Poisson: _Poisson,
    Gamma: _Gamma,
}


def formulas(loss: Loss) -> Any:
    """The formulas of a loss, None for the multinomial one, or an error that names what is served.

    Examples
    --------
    >>> import torch
    >>> from sorel.engines.tensors.losses import formulas
    >>> from sorel.losses import Squared
    >>> formulas(Squared()).value(torch.tensor([0.0]), torch.tensor([3.0]))
    tensor([4.5000])
    """
    if type(loss) is Multinomial:
        return None
    found = _TABLE.get(type(loss))
    if found is None:
        served: list[type[Loss]] = [*_TABLE, Multinomial]
        names = ", ".join(repr(known.name) for known in served)
        raise ValueError(
            f"the loss {type(loss).__name__} has formulas for NumPy arrays alone; on tensors use "
            f"one of {names}, or pass X as a NumPy array"
        )
    return found(loss)
