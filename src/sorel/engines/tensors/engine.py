"""X as a tensor: everything of length n on its device, w and small matrices on the host.

The operations are those of :mod:`sorel.engines.memory`, in torch's. Margins, losses, weights and
sums are float64 whatever X is. Points keep their margins; losses and slopes are made when they are
asked for, and those of a point that a line search left are dropped: vectors of length n are what a
device runs out of.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sorel._lib.copies import shallow_copy
from sorel._lib.floats import EPS
from sorel.engines.base import (
    Curvature,
    Differences,
    Dual,
    Engine,
    FloatArray,
    Point,
    RoundingFacts,
    Sizes,
    Spec,
)
from sorel.engines.curvature import ROWS_PER_BLOCK, WORTH_SAMPLING
from sorel.engines.intercepts import InterceptStatistics
from sorel.engines.tensors.losses import check_served, softmax_losses
from sorel.engines.tensors.matrices import Matrix, make_matrix
from sorel.engines.tensors.projection import Blocks, make_projection
from sorel.files.fingerprints import fingerprint_array, fingerprint_matrix
from sorel.problem.risks import CVaR

# Up to this share of rows with a weight, products leave out the others.
_FEW = 0.3

# Vectors of length n that a run holds at most, beside X.
_MOST_VECTORS = 16

# Arrays up to this size are hashed on the host.
_FEW_NUMBERS = 2**23


class DeviceMemoryError(MemoryError):
    """The device has too little memory for the problem; the message says how much it takes."""


class TensorPoint(Point):
    """Margins at one parameter vector; losses, and slopes of several margins, made when needed."""

    __slots__ = ("_engine", "_losses", "_slopes", "margins")

    def __init__(self, w: FloatArray, engine: TensorEngine, margins: Tensor) -> None:
        super().__init__(w)
        self._engine = engine
        self.margins = margins
        self._losses: Any = None
        self._slopes: Any = None

    @property
    def losses(self) -> Any:
        """The loss of every sample."""
        if self._losses is None:
            self._evaluate()
        return self._losses

    @property
    def slopes(self) -> Any:
        """Derivatives of the losses in the margins; of one margin per sample made anew."""
        engine = self._engine
        if engine.n_outputs == 1:
            return engine.spec.loss.derivative(engine.y, self.margins)
        if self._slopes is None:
            self._evaluate()
        return self._slopes

    def _evaluate(self) -> None:
        engine = self._engine
        if engine.n_outputs == 1:
            self._losses = engine.spec.loss.value(engine.y, self.margins)
        else:
            self._losses, self._slopes = softmax_losses(engine.y, self.margins)

    def forget(self) -> None:
        """Keep the margins alone."""
        self._losses = self._slopes = None


class TensorDual(Dual):
    """A weighting as densities, with the blocks of the projection that made it."""

    __slots__ = ("blocks", "density")

    def __init__(self, density: Tensor, blocks: Blocks | None = None) -> None:
        self.density = density
        self.blocks = blocks if blocks is not None and blocks.number > 0 else None


class TensorEngine(Engine):
    """Engine for a torch tensor, dense or CSR, on any device.

    Parameters
    ----------
    X : Tensor or Matrix of shape (n, d)
        float64 or float32, dense with contiguous rows, or CSR; used in place.
    spec : Spec
        Targets (a tensor, or an array that is moved to the device of X), loss, risk, weights.

    Examples
    --------
    >>> import torch, sorel
    >>> from sorel.engines.tensors import TensorEngine
    >>> X = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    >>> problem = sorel.Problem(X, torch.tensor([1.0, 2.0, 5.0]), risk=sorel.Max())
    >>> isinstance(problem.engine, TensorEngine), problem.objective([1.0])
    (True, 2.1666666666666665)
    """

    def __init__(self, X: Tensor | Matrix, spec: Spec) -> None:
        super().__init__(int(X.shape[0]), int(X.shape[1]), spec)
        self.device = X.device
        check_served(spec.loss)
        kind = torch.int64 if self.n_outputs > 1 else torch.float64
        # The sample weights: 1/n for all of them where none are given.
        n, weight = self.n_samples, spec.sample_weight
        omega = 1.0 / n if weight is None else weight
        # Whether a weighting of the risk leaves most rows without a weight.
        self._some = isinstance(spec.risk, CVaR) and spec.risk.alpha < _FEW
        with out_of_memory(n, self.device):
            self.y = torch.as_tensor(spec.targets, device=self.device, dtype=kind)
            self.matrix = X if isinstance(X, Matrix) else make_matrix(X.detach())
            self._omega = torch.as_tensor(omega, device=self.device, dtype=torch.float64)
            self._projection = make_projection(spec.risk, n, weight, self.device)

    def for_run(self, sequence: bool = False) -> TensorEngine:
        other = shallow_copy(self)
        other._projection = self._projection.fork()
        return other

    @contextmanager
    def working(self) -> Iterator[None]:
        with torch.no_grad(), out_of_memory(self.n_samples, self.device):
            yield

    @property
    def data_type(self) -> np.dtype[Any]:
        return np.dtype(str(self.matrix.X.dtype).removeprefix("torch."))

    def fingerprint(self) -> dict[str, str]:
        weight = self.spec.sample_weight
        return {
            "data": _fingerprint(self.matrix.X),
            "targets": fingerprint_array(self.y.cpu().numpy()),
            "sample weights": "none" if weight is None else fingerprint_array(weight),
        }

    def on_rows(self, rows: Any) -> Engine | None:
        chosen, weight = torch.from_numpy(rows).to(self.device), self.spec.sample_weight
        targets, classes = self.y[chosen], max(2, self.n_outputs)
        if self.spec.loss.is_classifier and len(torch.unique(targets)) < classes:
            return None
        if weight is not None and not weight[rows].any():
            return None
        spec = replace(self.spec.for_rows(rows), targets=targets)
        return TensorEngine(self.matrix.take(chosen), spec)

    # Products with X.

    def _to_device(self, w: FloatArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(w, dtype=np.float64)).to(self.device)

    def _margins(self, w: FloatArray) -> Tensor:
        parameters = self._to_device(w)
        if not w[: self.n_features].any():
            # Where most runs start, and steps in the intercept alone: no product with X is needed.
            shape = (self.n_samples, *self.shape[1:])
            out = torch.zeros(shape, dtype=torch.float64, device=self.device)
        else:
            out = self.matrix.margins(parameters[: self.n_features])
        return out.add_(parameters[-1]) if self.fit_intercept else out

    def _adjoint(self, c: Tensor) -> FloatArray:
        out = self.matrix.adjoint(c, self._some)
        if self.fit_intercept:
            out = torch.cat([out, c.sum(dim=0, keepdim=True)])
        return out.cpu().numpy()

    # Points.

    def point(self, w: FloatArray) -> TensorPoint:
        with out_of_memory(self.n_samples, self.device):
            return TensorPoint(np.array(w, dtype=np.float64), self, self._margins(w))

    def losses(self, point: Any) -> FloatArray:
        return np.array(point.losses.cpu().numpy())

    def direction(self, delta: FloatArray) -> Tensor:
        return self._margins(delta)

    def moved(self, point: Any, delta: FloatArray, direction: Any, step: float) -> TensorPoint:
        # The line search goes on from the margins, and most likely never comes back.
        point.forget()
        margins = torch.add(point.margins, direction, alpha=step)
        return TensorPoint(point.w + step * delta, self, margins)

    # Risks and weightings.

    def _dot(self, a: Tensor, b: Tensor) -> float:
        """sum_i omega_i a_i b_i."""
        if self.spec.sample_weight is None:
            return float(torch.dot(a, b)) / self.n_samples
        return float(torch.dot(a * self._omega, b))

    def _mean(self, values: Tensor) -> float:
        if self.spec.sample_weight is None:
            return float(values.mean())
        return float(torch.dot(values, self._omega))

    def risk(self, point: Any) -> float:
        return self._projection.value(point.losses)

    def shortfall(self, point: Any, dual: Any) -> float:
        return self._projection.shortfall(point.losses, dual.density)

    def uniform(self) -> TensorDual:
        return TensorDual(torch.ones(self.n_samples, dtype=torch.float64, device=self.device))

    def worst_case(self, point: Any) -> TensorDual:
        return TensorDual(self._projection.worst_case(point.losses))

    def dual_step(
        self, center: Any, point: Any, eta: float, previous: Any = None, theta: float = 0.0
    ) -> TensorDual:
        if eta == 0.0:
            return center
        if eta == np.inf:
            return self.worst_case(point)
        losses: Any
        if theta != 0.0 and previous is not None:
            losses = torch.sub(point.losses, previous.losses).mul_(theta).add_(point.losses)
        elif self.n_outputs == 1:
            # Losses of a trial point are hardly ever asked for again: they are not kept.
            losses = self.spec.loss.value(self.y, point.margins)
        else:
            losses = point.losses
        target = torch.add(center.density, losses, alpha=eta)
        return TensorDual(target, self._projection.project(target))

    def expected(self, point: Any, dual: Any) -> float:
        return self._dot(dual.density, point.losses)

    def differences(
        self, dual: Any, other: Any, point: Any = None, other_point: Any = None
    ) -> Differences:
        move = dual.density - other.density
        if point is None or other_point is None:
            return Differences(self._dot(move, move))
        change = point.losses - other_point.losses
        return Differences(
            self._dot(move, move), -self._dot(move, change), self._dot(change, change)
        )

    def blend(self, dual: Any, other: Any, share: float) -> TensorDual:
        return TensorDual((dual.density * (1.0 - share)).add_(other.density, alpha=share))

    def sizes(self, point: Any) -> Sizes:
        losses = point.losses
        mean = self._mean(losses)
        absolute = mean if self.spec.loss.lower_bound >= 0.0 else self._mean(losses.abs())
        return Sizes(mean, absolute, self._mean((losses - mean).abs_()))

    def rounding(self, point: Any, dual: Any) -> RoundingFacts:
        loss, weights = cast(Any, self.spec.loss), 0.0
        if self.spec.sample_weight is not None:
            # Differences of the cumulative risk are off by rounding errors of 1 each, not of their
            # own size, which may be far less.
            used = point.losses[self._omega > 0.0]
            weights = EPS * float(torch.linalg.vector_norm(used))
        facts = self._mean(dual.density), weights
        if loss.lower_bound > -math.inf and loss.curvature_bound < math.inf:
            return RoundingFacts(*facts)
        lam, slopes, losses = dual.density * self._omega, point.slopes.abs_(), point.losses.abs()
        if loss.link == "log":
            # The formulas compare the margin with log y, whose error is as good as one of the loss.
            losses += slopes * torch.where(self.y > 0.0, self.y, 1.0).log_().abs_()
        sums = (losses, slopes, loss.curvature(self.y, point.margins))
        return RoundingFacts(*facts, *(float(torch.dot(lam, size)) for size in sums))

    def column_scale(self) -> FloatArray | None:
        return self.matrix.column_scale

    def weights(self, dual: Any) -> FloatArray:
        with out_of_memory(self.n_samples, self.device):
            lam = dual.density * self._omega
            # Pages that a CUDA device writes to itself, and that torch keeps for the next result:
            # finding others took 280 of the 460 ms of a fit to 5e7 rows (H200, 2026-11).
            pages = torch.empty(lam.shape, dtype=lam.dtype, pin_memory=lam.is_cuda)
            return pages.copy_(lam).numpy()

    def nearest_dual(self, lam: FloatArray) -> tuple[TensorDual, float]:
        given = self._to_device(lam)
        density = torch.where(self._omega > 0.0, given / self._omega, 0.0)
        dual = TensorDual(density, self._projection.project(density))
        return dual, float((dual.density * self._omega - given).abs_().sum())

    # Derivatives.

    def _weighted_slopes(self, point: Any, dual: Any) -> Tensor:
        if self.n_outputs == 1:
            return point.slopes.mul_(dual.density).mul_(self._omega)
        return point.slopes * (dual.density * self._omega)[:, None]

    def gradient(self, point: Any, dual: Any) -> FloatArray:
        return self._adjoint(self._weighted_slopes(point, dual))

    def slope(self, point: Any, dual: Any, direction: Any) -> float:
        slopes = self._weighted_slopes(point, dual)
        return float(torch.dot(slopes.ravel(), direction.ravel()))

    def _sample_rows(self, h: Tensor, blocks: Blocks | None, n_rows: int) -> Tensor | None:
        """Factors of the weights of rows that stand for all; None where all are kept.

        Systematic samples: of rows in proportion to their curvature, and of whole blocks too small
        to be sampled by rows, which would lose their covariance. Blocks are numbered by rank, so
        that every n-th of them is a sample of all sizes of losses.
        """
        factor, alone, together = torch.zeros_like(h), h, h.new_zeros(())
        if blocks is not None:
            block, _, sizes = blocks
            small = sizes < ROWS_PER_BLOCK * self.n_samples / n_rows
            place = block.clamp(min=0)
            inside = (block >= 0) & small[place]
            alone = h.masked_fill(inside, 0.0)
            together = (sizes * small).sum()
        # The host waits once for all that it has to know.
        sums = torch.stack([torch.count_nonzero(h), together, alone.sum()]).tolist()
        if sums[0] <= WORTH_SAMPLING * n_rows:
            return None
        if blocks is not None:
            stride = max(1, math.ceil(sums[1] / n_rows))
            taken = small & (small.cumsum(0) % stride == stride // 2)
            factor.masked_fill_(inside & taken[place], float(stride))
            del inside, place
        unit = sums[2] / n_rows
        if unit > 0.0:
            steps = alone.cumsum(0).div_(unit).add_(0.5).floor_()
            passed = alone > 0.0
            passed[1:] &= steps[1:] > steps[:-1]
            passed[0] &= steps[0] > 0.0
            factor[passed] += (unit / alone[passed]).clamp_(min=1.0)
        return factor

    def _block_part(self, blocks: Blocks, slopes: Tensor, eta: float, omega: Tensor) -> Tensor:
        """eta sum_b u_b u_b^T / omega_b, u_b the sum over block b of omega_i phi'_i [x_i 1].

        Inside a pooled block only differences of losses move the weights: this takes the mean out.
        `slopes` has omega_i phi'_i, a column for every margin; rows without a weight are left out.
        """
        size, height = self.size, max(1, self.matrix.height // self.n_outputs)
        out = torch.zeros((size, size), dtype=torch.float64, device=self.device)
        index = torch.nonzero((blocks.block >= 0) & (omega > 0.0)).ravel()
        own, order = torch.sort(blocks.block[index], stable=True)
        index = index[order]
        # u_b and omega_b of a block that goes on in the next tile: a column, or none.
        last, held = -1, out.new_empty((size + 1, 0))
        for start in range(0, len(index), height):
            rows, part = index[start : start + height], own[start : start + height]
            tile = self.matrix.tile(rows)
            if self.fit_intercept:
                tile = torch.cat([tile, torch.ones_like(tile[:, :1])], dim=1)
            # Parameters of one feature follow each other, margin by margin.
            terms = (tile[:, :, None] * slopes[rows][:, None, :]).reshape(len(rows), size)
            terms = torch.cat([terms, omega[rows][:, None]], dim=1)
            counts = torch.unique_consecutive(part, return_counts=True)[1]
            sums = _segment_sums(terms, counts.cumsum(0) - 1)
            if int(part[0]) == last:
                sums[:, :1] += held
            else:
                sums = torch.cat([held, sums], dim=1)
            last = int(part[-1])
            whole = sums.shape[1] - int(start + height < len(index))
            u, held = sums[:-1, :whole], sums[:, whole:]
            out += (u * (eta / sums[-1, :whole])) @ u.T
        return out

    def curvature(self, point: Any, dual: Any, eta: float = 0.0, damping: float = 0.0) -> Curvature:
        if self.n_outputs > 1:
            return _SeveralMargins(self, point, dual, eta)
        return _OneMargin(self, point, dual, eta, damping)

    def intercept_statistics(self, point: Any, dual: Any, shift: Any) -> InterceptStatistics:
        lam, loss = dual.density * self._omega, cast(Any, self.spec.loss)
        if self.n_outputs > 1:
            move = torch.as_tensor(shift, dtype=torch.float64, device=self.device)
            slopes = softmax_losses(self.y, point.margins + move)[1]
            p = _probabilities(self.y, slopes)
            weighted = lam[:, None] * p
            hessian = torch.diag(weighted.sum(dim=0)) - p.T @ weighted
            present = torch.bincount(self.y, lam, self.n_outputs) > 0.0
            rounding = float((lam @ slopes.abs()).sum())
            return InterceptStatistics(
                (lam @ slopes).cpu().numpy(), hessian.cpu().numpy(), rounding, present.cpu().numpy()
            )
        z = point.margins + float(shift)
        slopes = loss.derivative(self.y, z).mul_(lam)
        first, sizes = slopes.sum(), slopes.abs_().sum()
        # One vector after the other: memory may be what there is least of.
        del slopes
        curvatures = loss.curvature(self.y, z).mul_(lam)
        del z, lam
        sizes += torch.dot(curvatures, point.margins.abs().add_(abs(float(shift))))
        first, second, rounding = torch.stack([first, curvatures.sum(), sizes]).tolist()
        return InterceptStatistics(
            np.array([first]), np.array([[second]]), rounding, np.ones(1, np.bool_)
        )


class _TensorCurvature(Curvature):
    """What one margin and several have in common: diagonal weights, less the means of blocks."""

    def __init__(self, engine: TensorEngine, point: Any, dual: Any, eta: float) -> None:
        self._engine, self._point, self._dual, self._eta = engine, point, dual, eta
        self._blocks: Blocks | None = dual.blocks if eta > 0.0 else None

    @cached_property
    def _means(self) -> _BlockSums:
        assert self._blocks is not None
        return _BlockSums(self._blocks, self._engine._omega, self._eta)

    def _pair(self, a: int, b: int) -> Tensor:
        """The weights of the rows in the part of the matrix that belongs to two margins."""
        raise NotImplementedError

    def diagonal(self) -> FloatArray:
        engine = self._engine
        columns = [
            engine.matrix.gram_diagonal(self._pair(a, a), engine.fit_intercept)
            for a in range(engine.n_outputs)
        ]
        return torch.stack(columns, dim=1).reshape(engine.shape).cpu().numpy()

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        engine, k, factor = self._engine, self._engine.n_outputs, None
        if k == 1 and n_rows is not None and engine.n_samples > WORTH_SAMPLING * n_rows:
            factor = engine._sample_rows(self._pair(0, 0), self._blocks, n_rows)
        rows = engine.shape[0]
        out = torch.empty((rows, k, rows, k), dtype=torch.float64, device=engine.device)
        for a in range(k):
            for b in range(a + 1):
                h = self._pair(a, b) if factor is None else self._pair(a, b) * factor
                out[:, a, :, b] = out[:, b, :, a] = engine.matrix.gram(h, engine.fit_intercept)
        out = out.reshape(rows * k, rows * k)
        if self._blocks is not None:
            omega = engine._omega.expand(engine.n_samples)
            omega = omega if factor is None else omega * factor
            slopes = self._point.slopes.reshape(-1, k) * omega[:, None]
            out -= engine._block_part(self._blocks, slopes, self._eta, omega)
        return out.cpu().numpy()


class _OneMargin(_TensorCurvature):
    """The weights are omega (q phi'' + eta phi'^2 [in a block])."""

    def __init__(
        self, engine: TensorEngine, point: Any, dual: Any, eta: float, damping: float
    ) -> None:
        super().__init__(engine, point, dual, eta)
        loss: Any = engine.spec.loss
        self._h = loss.curvature(engine.y, point.margins)
        if damping > 0.0:
            self._h.lerp_(loss.majorant(engine.y, point.margins), damping)
        self._h.mul_(dual.density)
        if self._blocks is not None:
            self._h.add_(point.slopes.square_().mul_(self._blocks.block >= 0), alpha=eta)
        self._h.mul_(engine._omega)

    @cached_property
    def _pull(self) -> Tensor:
        assert self._blocks is not None
        return self._point.slopes.mul_(self._engine._omega).mul_(self._blocks.block >= 0)

    @property
    def share(self) -> float:
        return max(int(torch.count_nonzero(self._h)), 1) / self._engine.n_samples

    def _pair(self, a: int, b: int) -> Tensor:
        return self._h

    def product(self, v: FloatArray) -> FloatArray:
        change = self._engine._margins(v)
        moved = self._h * change
        if self._blocks is not None:
            change.mul_(self._pull)
            moved.addcmul_(self._pull, self._means.spread(change), value=-1.0)
        return self._engine._adjoint(moved)


class _SeveralMargins(_TensorCurvature):
    """The Hessian of the multinomial loss, whose parabolas above it are not used for damping."""

    def product(self, v: FloatArray) -> FloatArray:
        engine, slopes = self._engine, self._point.slopes
        change = engine._margins(v)
        p = _probabilities(engine.y, slopes)
        average = (p * change).sum(dim=1, keepdim=True)
        losses = (slopes * change).sum(dim=1)
        moved = change.sub_(average).mul_(p).mul_((self._dual.density * engine._omega)[:, None])
        if self._blocks is not None:
            inside = self._blocks.block >= 0
            own = losses.mul_(inside).mul_(engine._omega)
            pull = own.mul(self._eta)
            pull -= self._means.spread(own) * inside * engine._omega
            moved.add_(slopes * pull[:, None])
        return engine._adjoint(moved)

    def _pair(self, a: int, b: int) -> Tensor:
        # q times one entry of diag(p) - p p^T.
        engine, slopes = self._engine, self._point.slopes
        own = engine.y == a
        p = slopes[:, a] + own
        if a == b:
            # 1 - p is taken from the slope where that is exact.
            h = torch.where(own, -slopes[:, a], 1.0 - p).mul_(p)
        else:
            h = (slopes[:, b] + (engine.y == b)).mul_(p).neg_()
        h.mul_(self._dual.density)
        if self._blocks is not None:
            h.add_(slopes[:, a] * slopes[:, b] * (self._blocks.block >= 0), alpha=self._eta)
        return h.mul_(engine._omega)


def _probabilities(y: Tensor, slopes: Tensor) -> Tensor:
    """softmax(z) from the slopes softmax(z) - onehot(y)."""
    return slopes.scatter_add(1, y[:, None], torch.ones_like(slopes[:, :1]))


class _BlockSums:
    """For a vector, eta / omega_b times its sum over the block of each sample."""

    def __init__(self, blocks: Blocks, omega: Tensor, eta: float) -> None:
        self._block, self._count, sizes = blocks
        self._order: Tensor | None = None
        if self._count > 1:
            # The samples by blocks, those of none first: running sums are the same every time.
            self._order = torch.sort(self._block, stable=True).indices
            pooled = sizes.sum()
            self._ends = sizes.cumsum(0) - 1 + (len(self._block) - pooled)
            self._before = self._ends - sizes
        totals = sizes * omega if omega.ndim == 0 else self._sums(omega)
        # Samples of weight 0 may form a block of their own.
        self._scale = eta / torch.where(totals > 0.0, totals, torch.inf)

    def _sums(self, values: Tensor) -> Tensor:
        """Of values that are 0 outside the blocks, or of any where there are several blocks."""
        if self._order is None:
            return torch.where(self._block >= 0, values, 0.0).sum().reshape(1)
        running = values[self._order].cumsum(0)
        first = torch.where(self._before >= 0, running[self._before.clamp(min=0)], 0.0)
        return running[self._ends] - first

    def spread(self, values: Tensor) -> Tensor:
        """The number of the block of each sample; anything outside the blocks."""
        sums = self._sums(values).mul_(self._scale)
        return sums if self._order is None else sums[self._block.clamp(min=0)]


def _segment_sums(terms: Tensor, ends: Tensor) -> Tensor:
    """Sums over consecutive rows, of which `ends` has the last ones; a column for each.

    As differences of running sums, which are the same every time. Along rows of memory these are
    many times faster than across them.
    """
    sums = terms.T.contiguous().cumsum(1)[:, ends]
    sums[:, 1:] -= sums[:, :-1].clone()
    return sums


@contextmanager
def out_of_memory(n: int, device: torch.device) -> Iterator[None]:
    """Say what a problem of n rows takes, where the memory of the device does not suffice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        needed = 8 * _MOST_VECTORS * n
        message = (
            f"{device} ran out of memory: beside X, a fit of {n} rows takes up to "
            f"{_MOST_VECTORS} vectors of {n} float64, {needed / 1e9:.3g} GB"
        )
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            message += f", and {free / 1e9:.3g} of {total / 1e9:.3g} GB are free"
        error.__traceback__ = None  # its frames hold what was allocated
        raise DeviceMemoryError(
            f"{message}; store X as float32, which halves it, fit to a part of the rows, or pass "
            "blocks on disk, which are read span by span: see sorel.rows.write_blocks"
        ) from None


def _fingerprint(X: Tensor) -> str:
    """The fingerprint of the same array on the host; of a large one, from its own pieces."""
    if X.layout != torch.strided:
        parts = X.crow_indices(), X.col_indices(), X.values()
        texts = " ".join(fingerprint_array(part.cpu().numpy()) for part in parts)
        return f"sparse {X.dtype} {texts}"
    if X.device.type == "cpu" or X.numel() <= _FEW_NUMBERS:
        return fingerprint_matrix(X.cpu().numpy())
    bits = X.view(torch.int64 if X.dtype == torch.float64 else torch.int32)
    digest = hashlib.blake2b(digest_size=16)
    stride = max(1, len(X) * X.shape[1] // _FEW_NUMBERS)
    digest.update(X[::stride].cpu().numpy().tobytes())
    # Sums of the bits as whole numbers: exact in any order, and every number is in one.
    digest.update(bits.sum(dim=0, dtype=torch.int64).cpu().numpy().tobytes())
    return f"dense {X.dtype} on a device {digest.hexdigest()}"
