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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sorel._copies import shallow_copy
from sorel.engines.base import Curvature, Dual, Engine, FloatArray, Point, Spec
from sorel.engines.memory import best_shift, shift_slack, softmax_slack
from sorel.engines.tensors.losses import formulas, softmax_losses
from sorel.engines.tensors.matrices import Matrix, ProductSum, make_matrix
from sorel.engines.tensors.projection import Blocks, make_projection
from sorel.fingerprints import fingerprint_array, fingerprint_matrix
from sorel.risks import CVaR

_EPS = float(np.finfo(np.float64).eps)

_MAX_INTERCEPT_STEPS = 60

# A margin this far below another adds nothing to a softmax.
_OUT_OF_REACH = 1e3

# A Hessian from sampled rows pays when there are this many times more rows than asked for, and a
# block may be sampled by rows when so many of them are to be expected.
_WORTH_SAMPLING, _ROWS_PER_BLOCK = 3, 50

# Up to this share of rows with a weight, products leave out the others.
_FEW = 0.3

# Numbers in a tile of sampled rows.
_SAMPLED_NUMBERS = 2**23

# Vectors of length n that a run holds at most, beside X.
_MOST_VECTORS = 16

# Vectors up to this length go to ordinary pages of the host.
_FEW_TO_HOST = 2**17

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
        self._losses: Tensor | None = None
        self._slopes: Tensor | None = None

    @property
    def losses(self) -> Tensor:
        """The loss of every sample."""
        if self._losses is None:
            self._evaluate()
        assert self._losses is not None
        return self._losses

    @property
    def slopes(self) -> Tensor:
        """Derivatives of the losses in the margins; of one margin per sample made anew."""
        engine = self._engine
        if engine.n_outputs == 1:
            return engine.formulas.derivative(engine.y, self.margins)
        if self._slopes is None:
            self._evaluate()
        assert self._slopes is not None
        return self._slopes

    def _evaluate(self) -> None:
        engine = self._engine
        if engine.n_outputs == 1:
            self._losses = engine.formulas.value(engine.y, self.margins)
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
        self.formulas = formulas(spec.loss)
        with out_of_memory(self.n_samples, self.device):
            self._place(X, spec)

    def _place(self, X: Tensor | Matrix, spec: Spec) -> None:
        """Bring what is not X to its device."""
        kind = torch.int64 if self.n_outputs > 1 else torch.float64
        self.y = torch.as_tensor(spec.targets, device=self.device, dtype=kind)
        self.matrix = X if isinstance(X, Matrix) else make_matrix(X.detach())
        n, weight = self.n_samples, spec.sample_weight
        self._omega: Tensor | None = None
        if weight is not None:
            self._omega = torch.as_tensor(weight, device=self.device, dtype=torch.float64)
        self._overflows = self.n_outputs == 1 and not spec.loss.curvature_bound < math.inf
        # Whether a weighting of the risk leaves most rows without a weight.
        self._some = isinstance(spec.risk, CVaR) and spec.risk.alpha < _FEW
        self._facts: dict[str, Any] = {}
        self._projection = make_projection(spec.risk, n, weight, self.device)

    def for_run(self, sequence: bool = False) -> TensorEngine:
        other = shallow_copy(self)
        other._projection = self._projection.fork()
        return other

    def release(self) -> None:
        self._projection = self._projection.fork()

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

    def sample(self, n_rows: int, rng: np.random.Generator) -> Engine | None:
        # One of each of so many ranges: to draw from all rows takes longer than to solve the part.
        edges = np.linspace(0, self.n_samples, n_rows + 1).astype(np.int64)
        widths = np.diff(edges)
        chosen = edges[:-1] + (rng.random(n_rows) * widths).astype(np.int64)
        rows = torch.from_numpy(chosen).to(self.device)
        targets, weight = self.y[rows], self.spec.sample_weight
        classes = max(2, self.n_outputs)
        if self.spec.loss.is_classifier and len(torch.unique(targets)) < classes:
            return None
        if weight is not None and not weight[chosen].any():
            return None
        if weight is not None:
            weight = weight[chosen] / weight[chosen].sum()
        spec = replace(self.spec, targets=targets, sample_weight=weight)
        return TensorEngine(self.matrix.take(rows), spec)

    # Products with X.

    def _to_device(self, w: FloatArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(w, dtype=np.float64)).to(self.device)

    def _margins(self, w: FloatArray) -> Tensor:
        parameters = self._to_device(w)
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
        return _to_host(point.losses)

    def is_finite(self, point: Any) -> bool:
        return not self._overflows or bool(torch.isfinite(point.losses).all())

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
        if self._omega is None:
            return float(torch.dot(a, b)) / self.n_samples
        return float(torch.dot(a * self._omega, b))

    def _mean(self, values: Tensor) -> float:
        if self._omega is None:
            return float(values.mean())
        return float(torch.dot(values, self._omega))

    def _lam(self, density: Tensor) -> Tensor:
        """A new vector with q times the sample weights."""
        return density / self.n_samples if self._omega is None else density * self._omega

    def _weigh(self, values: Tensor) -> Tensor:
        """Values times the sample weights, in place."""
        return values.div_(self.n_samples) if self._omega is None else values.mul_(self._omega)

    def risk(self, point: Any) -> float:
        return self._projection.value(point.losses)

    def shortfall(self, point: Any, dual: Any) -> float:
        return self._projection.shortfall(point.losses, dual.density)

    def effective_share(self) -> float:
        return self._projection.effective_share()

    def uniform(self) -> TensorDual:
        return TensorDual(torch.ones(self.n_samples, dtype=torch.float64, device=self.device))

    def worst_case(self, point: Any) -> TensorDual:
        return TensorDual(self._projection.worst_case(point.losses))

    def ascend(
        self,
        dual: Any,
        point: Any,
        eta: float,
        previous: Any = None,
        theta: float = 0.0,
    ) -> TensorDual:
        if theta != 0.0 and previous is not None:
            target = torch.sub(point.losses, previous.losses).mul_(theta).add_(point.losses)
            target.mul_(eta).add_(dual.density)
        elif self.n_outputs == 1:
            # Losses of a trial point are hardly ever asked for again: they are not kept.
            target = self.formulas.value(self.y, point.margins).mul_(eta).add_(dual.density)
        else:
            target = torch.add(dual.density, point.losses, alpha=eta)
        return TensorDual(target, self._projection.project(target))

    def as_center(self, dual: Any) -> TensorDual:
        dual.blocks = None
        return dual

    def expected(self, point: Any, dual: Any) -> float:
        return self._dot(dual.density, point.losses)

    def square_distance(self, dual: Any, other: Any) -> float:
        move = dual.density - other.density
        return self._dot(move, move)

    def secant(self, dual: Any, other: Any, point: Any, other_point: Any) -> tuple[float, float]:
        move = dual.density - other.density
        return self._dot(move, move), -self._dot(move, point.losses - other_point.losses)

    def blend(self, dual: Any, other: Any, share: float) -> TensorDual:
        return TensorDual((dual.density * (1.0 - share)).add_(other.density, alpha=share))

    def loss_scale(self, point: Any) -> float:
        losses = point.losses
        return self._mean((losses - self._mean(losses)).abs_())

    def mean_size(self, point: Any) -> float:
        losses = point.losses
        return self._mean(losses if self.spec.loss.lower_bound >= 0.0 else losses.abs())

    def mean_loss_at_zero(self) -> float:
        if "mean loss at zero" not in self._facts:
            # No product with X is needed for margins of 0.
            shape = (self.n_samples,) if self.n_outputs == 1 else (self.n_samples, self.n_outputs)
            with out_of_memory(self.n_samples, self.device):
                margins = torch.zeros(shape, dtype=torch.float64, device=self.device)
                point = TensorPoint(np.zeros(self.shape), self, margins)
                self._facts["mean loss at zero"] = self.mean_size(point)
        return self._facts["mean loss at zero"]

    def mass(self, dual: Any) -> float:
        return self._mean(dual.density)

    def weights_rounding(self, point: Any) -> float:
        if self._omega is None:
            return 0.0
        # Differences of the cumulative risk are off by rounding errors of 1 each, not of their own
        # size, which may be far less.
        return _EPS * float(torch.linalg.vector_norm(point.losses[self._omega > 0.0]))

    def column_scale(self) -> FloatArray | None:
        return self.matrix.column_scale

    def absolute_sums(self, point: Any, dual: Any) -> tuple[float, float, float]:
        loss, lam = self.spec.loss, self._lam(dual.density)
        if loss.affine:
            return float(torch.dot(lam, point.losses.abs())), loss.lipschitz, 0.0
        slopes = point.slopes.abs_()
        losses = point.losses.abs()
        if loss.link == "log":
            # The formulas compare the margin with log y, whose error is as good as one of the loss.
            losses += slopes * torch.where(self.y > 0.0, self.y, 1.0).log_().abs_()
        curvature = self.formulas.curvature(self.y, point.margins)
        return (
            float(torch.dot(lam, losses)),
            float(torch.dot(lam, slopes)),
            float(torch.dot(lam, curvature)),
        )

    def weights(self, dual: Any) -> FloatArray:
        with out_of_memory(self.n_samples, self.device):
            return _to_host(self._lam(dual.density))

    def nearest_dual(self, lam: FloatArray) -> tuple[TensorDual, float]:
        given = self._to_device(lam)
        if self._omega is None:
            density = given * self.n_samples
        else:
            density = torch.where(self._omega > 0.0, given / self._omega, 0.0)
        dual = TensorDual(density, self._projection.project(density))
        return dual, float((self._lam(dual.density) - given).abs_().sum())

    # Derivatives.

    def _weighted_slopes(self, point: Any, dual: Any) -> Tensor:
        if self.n_outputs == 1:
            return self._weigh(point.slopes.mul_(dual.density))
        return point.slopes * self._lam(dual.density)[:, None]

    def gradient(self, point: Any, dual: Any) -> FloatArray:
        return self._adjoint(self._weighted_slopes(point, dual))

    def slope(self, point: Any, dual: Any, direction: Any) -> float:
        slopes = self._weighted_slopes(point, dual)
        return float(torch.dot(slopes.ravel(), direction.ravel()))

    def _diagonal(self, point: Any, dual: Any, eta: float, caution: float) -> Tensor:
        """Diagonal of the generalised Hessian: omega (q phi'' + eta phi'^2 [in a block])."""
        h = self.formulas.curvature(self.y, point.margins)
        if caution > 0.0:
            h.lerp_(self.formulas.majorant(self.y, point.margins), caution)
        h.mul_(dual.density)
        if eta > 0.0:
            h.add_(point.slopes.square_().mul_(dual.blocks.block >= 0), alpha=eta)
        return self._weigh(h)

    def hessian(
        self,
        point: Any,
        dual: Any,
        eta: float = 0.0,
        n_rows: int | None = None,
        caution: float = 0.0,
    ) -> FloatArray:
        if dual.blocks is None:
            eta = 0.0
        if self.n_outputs > 1:
            return self._softmax_hessian(point, dual, eta)
        h = self._diagonal(point, dual, eta, caution)
        index = factor = None
        if n_rows is not None and self.n_samples > _WORTH_SAMPLING * n_rows:
            index, factor = self._sample_rows(h, dual, eta, n_rows)
        if index is None or factor is None:
            out = self.matrix.gram(h, self.fit_intercept)
            del h
            if eta > 0.0:
                out -= self._block_part(dual.blocks, [self._weigh(point.slopes)], eta)
            return out.cpu().numpy()
        h = h[index].mul_(factor)
        return self._sampled_hessian(h, point, dual, eta, index, factor).cpu().numpy()

    def _sample_rows(
        self, h: Tensor, dual: Any, eta: float, n_rows: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Rows that stand for all, with the factors of their weights; None where all are kept.

        Systematic samples: of rows in proportion to their curvature, and of whole blocks too small
        to be sampled by rows, which would lose their covariance. Blocks are numbered by rank, so
        that every n-th of them is a sample of all sizes of losses.
        """
        factor, alone = torch.zeros_like(h), h
        if eta > 0.0:
            block, _, sizes = dual.blocks
            small = sizes < _ROWS_PER_BLOCK * self.n_samples / n_rows
            place = block.clamp(min=0)
            inside = (block >= 0) & small[place]
            alone = h.masked_fill(inside, 0.0)
            together = (sizes * small).sum()
        else:
            together = h.new_zeros(())
        # The host waits once for all that it has to know.
        sums = torch.stack([torch.count_nonzero(h), together, alone.sum()]).tolist()
        if sums[0] <= _WORTH_SAMPLING * n_rows:
            return None, None
        if eta > 0.0:
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
            del steps
            rows = torch.nonzero(passed).ravel()
            factor[rows] += (unit / alone[rows]).clamp_(min=1.0)
        index = torch.nonzero(factor).ravel()
        return index, factor[index]

    def _sampled_hessian(
        self, h: Tensor, point: Any, dual: Any, eta: float, index: Tensor, factor: Tensor
    ) -> Tensor:
        """The Hessian from rows that stand for all, a tile of them at a time.

        Tiles of rows in the order of their blocks: a block that is cut by the end of a tile counts
        as two, which takes a little less of its mean out.
        """
        block = None
        if eta > 0.0:
            block, order = torch.sort(dual.blocks.block[index], stable=True)
            index, h, factor = index[order], h[order], factor[order]
            omega = 1.0 / self.n_samples if self._omega is None else self._omega[index]
            # Rows of no block have neither weight nor slope here.
            weight = (factor * omega).masked_fill_(block < 0, 0.0)
            slopes = self.formulas.derivative(self.y[index], point.margins[index]).mul_(weight)
        size = self.shape[0]
        out = torch.zeros((size, size), dtype=torch.float64, device=self.device)
        products = ProductSum(size, self.device)
        height = max(1, _SAMPLED_NUMBERS // size)
        for start in range(0, len(index), height):
            part = slice(start, start + height)
            tile = self.matrix.gather(index[part])
            if self.fit_intercept:
                tile = torch.cat([tile, torch.ones_like(tile[:, :1])], dim=1)
            products.add(tile, tile * h[part, None])
            if block is None:
                continue
            own = block[part]
            ends = torch.nonzero(
                torch.cat([own[1:] != own[:-1], own.new_ones(1, dtype=torch.bool)])
            )
            terms = torch.cat([tile * slopes[part, None], weight[part, None]], dim=1)
            sums = _segment_sums(terms, ends.ravel())
            totals = sums[-1]
            scale = eta / torch.where(totals > 0.0, totals, torch.inf)
            out -= (sums[:-1] * scale) @ sums[:-1].T
        return out.add_(products.total())

    def _softmax_hessian(self, point: Any, dual: Any, eta: float) -> FloatArray:
        rows, k = self.shape[0], self.n_outputs
        out = torch.empty((rows, k, rows, k), dtype=torch.float64, device=self.device)
        slopes = point.slopes
        inside = dual.blocks.block >= 0 if eta > 0.0 else None
        for a in range(k):
            for b in range(a + 1):
                h = self._softmax_pair(slopes, dual, a, b)
                if inside is not None:
                    h.add_(slopes[:, a] * slopes[:, b] * inside, alpha=eta)
                gram = self.matrix.gram(self._weigh(h), self.fit_intercept)
                out[:, a, :, b] = gram
                out[:, b, :, a] = gram
        out = out.reshape(rows * k, rows * k)
        if eta > 0.0:
            columns = [self._weigh(slopes[:, a].clone()) for a in range(k)]
            out -= self._block_part(dual.blocks, columns, eta)
        return out.cpu().numpy()

    def _softmax_pair(self, slopes: Tensor, dual: Any, a: int, b: int) -> Tensor:
        """q times one entry of diag(p) - p p^T for every sample."""
        own = self.y == a
        p = slopes[:, a] + own
        if a == b:
            # 1 - p is taken from the slope where that is exact.
            return torch.where(own, -slopes[:, a], 1.0 - p).mul_(p).mul_(dual.density)
        return (slopes[:, b] + (self.y == b)).mul_(p).mul_(dual.density).neg_()

    def _block_part(self, blocks: Blocks, columns: list[Tensor], eta: float) -> Tensor:
        """eta sum_b u_b u_b^T / omega_b, u_b the sum over block b of c_i [x_i 1].

        Inside a pooled block only differences of losses move the weights: this takes the mean out.
        There is one vector c for every margin.
        """
        size = self.shape[0] * self.n_outputs
        out = torch.zeros((size, size), dtype=torch.float64, device=self.device)
        place, index = torch.sort(blocks.block, stable=True)
        index = index[place >= 0]
        ends = blocks.sizes.cumsum(0)
        if self._omega is None:
            totals = blocks.sizes.double() / self.n_samples
        else:
            totals = _segment_sums(self._omega[index][:, None], ends - 1)[0]
        scale = eta / torch.where(totals > 0.0, totals, torch.inf)
        # A run of blocks at a time: their sums make a tile, and so do some of their rows.
        height = max(1, self.matrix.height // self.n_outputs)
        last, stops = ends.cpu().numpy(), _runs(ends.cpu().numpy(), height)
        first = 0
        for start, stop in zip([0, *stops[:-1]], stops, strict=True):
            shape = (self.n_outputs, self.shape[0], stop - start)
            sums = torch.zeros(shape, dtype=torch.float64, device=self.device)
            for begin in range(first, int(last[stop - 1]), height):
                part = index[begin : min(begin + height, int(last[stop - 1]))]
                own = place[len(place) - len(index) + begin :][: len(part)]
                found, counts = torch.unique_consecutive(own, return_counts=True)
                tile = self.matrix.gather(part)
                if self.fit_intercept:
                    tile = torch.cat([tile, torch.ones_like(tile[:, :1])], dim=1)
                for k, c in enumerate(columns):
                    terms = tile * c[part][:, None]
                    sums[k][:, found - start] += _segment_sums(terms, counts.cumsum(0) - 1)
            # Parameters of one feature follow each other, margin by margin.
            flat = sums.transpose(0, 1).reshape(size, stop - start)
            out += (flat * scale[start:stop]) @ flat.T
            first = int(last[stop - 1])
        return out

    def curvature(self, point: Any, dual: Any, eta: float = 0.0, caution: float = 0.0) -> Curvature:
        if dual.blocks is None:
            eta = 0.0
        if self.n_outputs > 1:
            return _SoftmaxCurvature(self, point, dual, eta)
        return _TensorCurvature(self, point, dual, eta, caution)

    # The intercept.

    def best_intercept(self, point: Any, dual: Any) -> TensorPoint | None:
        if self.n_outputs > 1:
            return self._best_softmax_intercept(point, dual)
        shift = best_shift(partial(self._shift_statistics, point, dual))
        return None if shift is None else self._shifted(point, shift)

    def _shifted(self, point: Any, shift: Any) -> TensorPoint:
        w = point.w.copy()
        w[-1] += shift
        move = shift if np.ndim(shift) == 0 else self._to_device(shift)
        return TensorPoint(w, self, point.margins + move)

    def _shift_statistics(self, point: Any, dual: Any, shift: float) -> tuple[float, float, float]:
        """Derivatives of lam . l in a shift of the margins, and the rounding scale of the first."""
        lam = self._lam(dual.density)
        z = point.margins + shift
        slopes = self.formulas.derivative(self.y, z).mul_(lam)
        first, sizes = slopes.sum(), slopes.abs_().sum()
        # One vector after the other: memory may be what there is least of.
        del slopes
        curvatures = self.formulas.curvature(self.y, z).mul_(lam)
        del z, lam
        sizes += torch.dot(curvatures, point.margins.abs().add_(abs(shift)))
        first, second, rounding = torch.stack([first, curvatures.sum(), sizes]).tolist()
        return first, second, rounding

    def intercept_slack(self, point: Any, dual: Any, residual: float) -> float:
        if residual == 0.0:
            return 0.0
        if self.n_outputs > 1:
            return self._softmax_intercept_slack(point, dual, residual)
        return shift_slack(partial(self._shift_statistics, point, dual), residual)

    def _softmax_intercept_slack(self, point: Any, dual: Any, residual: float) -> float:
        hessian = self._softmax_intercept_hessian(point, self._lam(dual.density))
        return softmax_slack(hessian, residual)

    def _softmax_intercept_hessian(self, point: Any, lam: Tensor) -> FloatArray:
        p = point.slopes.clone()
        p.scatter_add_(1, self.y[:, None], torch.ones_like(p[:, :1]))
        weighted = lam[:, None] * p
        return (torch.diag(weighted.sum(dim=0)) - p.T @ weighted).cpu().numpy()

    def _best_softmax_intercept(self, point: Any, dual: Any) -> TensorPoint | None:
        lam = self._lam(dual.density)

        def derivative(at: TensorPoint) -> FloatArray:
            return (lam @ at.slopes).cpu().numpy()

        start = current = self._without_absent_classes(point, lam)
        # All moves are counted from the start: one that goes far takes digits from the margins.
        shift = np.zeros(self.n_outputs)
        value, gradient = self.expected(current, dual), derivative(current)
        for _ in range(_MAX_INTERCEPT_STEPS):
            if np.max(np.abs(gradient)) <= 1e-15:
                break
            hessian = self._softmax_intercept_hessian(current, lam)
            # Adding one number to all intercepts changes nothing: pin that direction.
            hessian += np.full_like(hessian, np.trace(hessian) / self.n_outputs**2)
            try:
                delta = -np.linalg.solve(hessian, gradient)
            except np.linalg.LinAlgError:
                break
            slope, step = float(gradient @ delta), 1.0
            for _ in range(_MAX_INTERCEPT_STEPS):
                further = shift + step * delta
                trial = self._shifted(start, further)
                trial_value = self.expected(trial, dual)
                if trial_value <= value + 1e-4 * step * slope or -slope <= 1e-14 * abs(value):
                    break
                step *= 0.5
            else:
                break
            last, gradient = gradient, derivative(trial)
            if np.max(np.abs(gradient)) >= np.max(np.abs(last)) <= 1e-12:
                gradient = last
                break
            current, shift, value = trial, further, trial_value
        # The bound holds only where the derivative in the intercepts is zero to rounding, and far
        # out, where all but one class has next to no weight, no rounding is small enough.
        residual = np.abs(gradient)
        present = residual > 0.0
        reach = np.max(np.abs(current.w[-1][present]), initial=0.0)
        return current if np.max(residual) * (1.0 + reach) <= 1e-12 else None

    def _without_absent_classes(self, point: Any, lam: Tensor) -> TensorPoint:
        """A class without weight has its best intercept at minus infinity: put it out of reach."""
        seen = torch.zeros(self.n_outputs, dtype=torch.bool, device=self.device)
        seen[self.y[lam > 0.0]] = True
        present = seen.cpu().numpy()
        if present.all():
            return point
        least, most = torch.aminmax(point.margins)
        return self._shifted(point, np.where(present, 0.0, -(_OUT_OF_REACH + float(most - least))))


class _TensorCurvature(Curvature):
    """The Hessian for products: diagonal weights, and what the means of blocks take away."""

    def __init__(
        self, engine: TensorEngine, point: Any, dual: Any, eta: float, caution: float
    ) -> None:
        self._engine, self._made_from = engine, (point, dual, eta, caution)
        self._h = engine._diagonal(point, dual, eta, caution)
        self._blocks: _BlockSums | None = None
        if eta > 0.0:
            self._pull = engine._weigh(point.slopes).mul_(dual.blocks.block >= 0)
            self._blocks = _BlockSums(dual.blocks, engine._omega, eta)
        active = int(torch.count_nonzero(self._h))
        self.share = max(active, 1) / engine.n_samples

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        point, dual, eta, caution = self._made_from
        return self._engine.hessian(point, dual, eta, n_rows, caution)

    def product(self, v: FloatArray) -> FloatArray:
        engine = self._engine
        change = engine._margins(v)
        moved = self._h * change
        if self._blocks is not None:
            change.mul_(self._pull)
            moved.addcmul_(self._pull, self._blocks.spread(change), value=-1.0)
        return engine._adjoint(moved)

    def diagonal(self) -> FloatArray:
        engine = self._engine
        return engine.matrix.gram_diagonal(self._h, engine.fit_intercept).cpu().numpy()


class _SoftmaxCurvature(Curvature):
    """The Hessian of the multinomial loss, whose parabolas above it are not used for caution."""

    def __init__(self, engine: TensorEngine, point: Any, dual: Any, eta: float) -> None:
        self._engine, self._point, self._dual, self._eta = engine, point, dual, eta
        self._blocks = None
        if eta > 0.0:
            self._inside = dual.blocks.block >= 0
            self._blocks = _BlockSums(dual.blocks, engine._omega, eta)

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        return self._engine.hessian(self._point, self._dual, self._eta, n_rows)

    def product(self, v: FloatArray) -> FloatArray:
        engine, slopes = self._engine, self._point.slopes
        change = engine._margins(v)
        p = slopes.clone()
        p.scatter_add_(1, engine.y[:, None], torch.ones_like(p[:, :1]))
        average = (p * change).sum(dim=1, keepdim=True)
        losses = (slopes * change).sum(dim=1)
        moved = change.sub_(average).mul_(p).mul_(engine._lam(self._dual.density)[:, None])
        if self._blocks is not None:
            own = engine._weigh(losses.mul_(self._inside))
            pull = own.mul(self._eta)
            pull -= engine._weigh(self._blocks.spread(own) * self._inside)
            moved.add_(slopes * pull[:, None])
        return engine._adjoint(moved)

    def diagonal(self) -> FloatArray:
        engine, slopes = self._engine, self._point.slopes
        out = np.empty(engine.shape)
        for a in range(engine.n_outputs):
            h = engine._softmax_pair(slopes, self._dual, a, a)
            if self._blocks is not None:
                h.add_(slopes[:, a].square() * self._inside, alpha=self._eta)
            h = engine._weigh(h)
            out[:, a] = engine.matrix.gram_diagonal(h, engine.fit_intercept).cpu().numpy()
        return out


class _BlockSums:
    """For a vector, eta / omega_b times its sum over the block of each sample."""

    def __init__(self, blocks: Blocks, omega: Tensor | None, eta: float) -> None:
        self._block, self._count, sizes = blocks
        self._order: Tensor | None = None
        if self._count > 1:
            # The samples by blocks, those of none first: running sums are the same every time.
            self._order = torch.sort(self._block, stable=True).indices
            pooled = sizes.sum()
            self._ends = sizes.cumsum(0) - 1 + (len(self._block) - pooled)
            self._before = self._ends - sizes
        if omega is None:
            totals = sizes.double() / len(self._block)
        else:
            totals = self._sums(omega)
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


def _to_host(vector: Tensor) -> FloatArray:
    """A copy in host memory.

    A long vector goes to pages that the device writes to itself, which torch keeps for the next one
    when the array is dropped: other pages would have to be found anew every time.
    """
    if vector.device.type == "cuda" and len(vector) > _FEW_TO_HOST:
        pages = torch.empty(len(vector), dtype=torch.float64, pin_memory=True)
        return pages.copy_(vector).numpy()
    out = np.empty(len(vector))
    torch.from_numpy(out).copy_(vector)
    return out


def _runs(ends: FloatArray, height: int) -> list[int]:
    """Where to cut a list of blocks so that a run has about `height` rows and as many blocks."""
    stops, start, done = [], 0, 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, done + height, side="right"))
        stop = min(max(stop, start + 1), start + height)
        stops.append(stop)
        start, done = stop, int(ends[stop - 1])
    return stops


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
