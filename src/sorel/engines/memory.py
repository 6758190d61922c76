"""The part of an engine that all data in this process's memory shares.

Vectors of length n are NumPy arrays here, the loops over them are compiled. A subclass adds the
products with X: :meth:`MemoryEngine._margins`, :meth:`MemoryEngine._adjoint` and the weighted
Gram matrices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel import kernels
from sorel._pool import WORTH_POOLING, Pool
from sorel._threads import Team, limit_blas, thread_count
from sorel.engines.base import Curvature, Dual, Engine, FloatArray, Point
from sorel.losses import Loss
from sorel.permutahedron import Projector
from sorel.risks import Risk

_MAX_INTERCEPT_STEPS = 60

# A margin this far below another adds nothing to a softmax.
_OUT_OF_REACH = 1e3

# Up to this many columns compiled loops beat BLAS, whose calls cost more than they save.
FEW_COLUMNS = 24

# Numbers in a tile of block sums, at least and at most; in between half as many as samples.
_LEAST_TILE, _BLOCK_TILE = 65_536, 2_000_000

# A Hessian from sampled rows pays when there are this many times more rows than asked for.
_WORTH_SAMPLING = 3

# Numbers in X, and entries of a vector, from which on threads gain more than their start costs;
# losses with exponentials are worth it sooner.
WORTH_SHARING_X = 1_000_000
_WORTH_SHARING, _WORTH_SHARING_SLOW = 100_000, 20_000

# Stands in for the blocks of a weighting that has none.
_NO_BLOCKS = np.full(1, -1, np.int32)

# Rows without curvature are left out of products when no more than this share is left.
_WORTH_SELECTING = 0.7

# Rows of a block that should be in a sample before it stands for the block.
_ROWS_PER_BLOCK = 50


class _Change:
    """Change of the margins per unit step, in an array that goes back when it is no longer used."""

    __slots__ = ("_pool", "margins")

    def __init__(self, margins: NDArray[Any], pool: Pool | None) -> None:
        self.margins = margins
        self._pool = pool

    def __del__(self) -> None:
        if self._pool is not None:
            self._pool.give(self.margins)


def _call(kernel: Any, *args: Any) -> Any:
    return kernel(*args)


def sweep_rows(team: Team, weighted: bool, kernel: Any, args: tuple[Any, ...]) -> Any:
    """Run a loop on every range of rows; the sum of what it returned, where it did."""
    positions, omega = _row_parameters(kernel)
    if omega is not None and weighted:
        positions = (*positions, omega)

    def task(start: int, stop: int) -> Any:
        part = list(args)
        for i in positions:
            part[i] = part[i][start:stop]
        return kernel(*part)

    results = team.sweep(task)
    if isinstance(results[0], tuple):
        return tuple(sum(column) for column in zip(*results, strict=True))
    return None if results[0] is None else sum(results)


@cache
def _row_parameters(kernel: Any) -> tuple[tuple[int, ...], int | None]:
    """Positions of the parameters with an entry per row, and that of the sample weights."""
    names = list(inspect.signature(getattr(kernel, "py_func", kernel)).parameters)
    rows = tuple(i for i, name in enumerate(names) if name in kernels.PER_ROW)
    return rows, names.index("omega") if "omega" in names else None


class MemoryEngine(Engine):
    """Losses, weights and projections for margins in memory."""

    def __init__(
        self,
        n_samples: int,
        n_features: int,
        y: NDArray[Any],
        loss: Loss,
        n_outputs: int,
        risk: Risk,
        fit_intercept: bool,
        sample_weight: FloatArray | None,
        n_jobs: int | None,
    ) -> None:
        self.n_samples, self.n_features, self.n_outputs = n_samples, n_features, n_outputs
        self.fit_intercept = fit_intercept
        rows = n_features + int(fit_intercept)
        self.shape = (rows,) if n_outputs == 1 else (rows, n_outputs)
        self.y, self.loss = y, loss
        self.sample_weight = sample_weight
        self._weighted = sample_weight is not None
        self._omega = sample_weight if sample_weight is not None else np.full(1, 1.0 / n_samples)
        self._n_jobs = n_jobs
        self._pool = Pool()
        self._projector = Projector(risk, n_samples, sample_weight, self._pool)
        self._recycler = self._pool if n_samples >= WORTH_POOLING else None
        # A general projection holds many vectors, so trial points do without their own.
        self._sparing = (
            n_outputs == 1 and n_samples >= WORTH_POOLING and not self._projector.two_levels
        )
        self._margin_shape = (n_samples,) if n_outputs == 1 else (n_samples, n_outputs)
        self._loss_args = (loss.code, loss.parameter, y)
        self._share_rows()

    # Threads.

    def _share_rows(self) -> None:
        """Choose the threads for sweeps over X and for those over vectors of length n."""
        slow = self.n_outputs > 1 or self.loss.code == kernels.LOGISTIC
        large_X = self.n_samples * self.n_features >= WORTH_SHARING_X
        large = self.n_samples >= (_WORTH_SHARING_SLOW if slow else _WORTH_SHARING)
        # A small problem is not even worth the question how many threads there are.
        threads = thread_count(self._n_jobs) if large or large_X else 1
        team = Team(self.n_samples, threads) if threads > 1 else None
        self._row_team = team if large_X else None
        self._team = team if large else None
        # Runs a loop on every range of rows, and returns the sum of what it returned. A small
        # problem makes hundreds of such calls in a millisecond, so it pays for no more than one.
        self._each: Any = _call if self._team is None else self._each_range
        self._projector.share(self._team)

    def working(self) -> AbstractContextManager[Any]:
        alone = self._team is None and self._row_team is None
        return nullcontext() if alone else limit_blas()

    def _each_range(self, kernel: Any, *args: Any) -> Any:
        assert self._team is not None
        return sweep_rows(self._team, self._weighted, kernel, args)

    def _accumulate(
        self,
        task: Callable[[int, int, FloatArray], None],
        shape: tuple[int, ...],
    ) -> FloatArray:
        """Sum over the rows of what ``task(start, stop, out)`` adds to `out`, in a fixed order."""
        if self._row_team is None:
            out = np.zeros(shape)
            task(0, self.n_samples, out)
            return out
        return self._row_team.accumulate(task, shape)

    # Products with X, from the subclass.

    def _margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        """out = X w + b."""
        raise NotImplementedError

    def _adjoint(self, c: NDArray[Any]) -> FloatArray:
        """X^T c, and below it the sum of c when there is an intercept; shaped like w."""
        raise NotImplementedError

    def _gram(self, h: FloatArray) -> FloatArray:
        """[X 1]^T diag(h) [X 1]; h may have either sign."""
        raise NotImplementedError

    def _gram_diagonal(self, h: FloatArray) -> FloatArray:
        """Diagonal of that matrix."""
        raise NotImplementedError

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        """Rows sum_{i in block} c_i [x_i 1], for the blocks start..stop."""
        raise NotImplementedError

    def _sample_of_rows(self, n_rows: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Distinct random rows in ascending order, so that X is read in sequence.

        None if they miss a class, or all have no weight: that is another problem.
        """
        rows = np.sort(rng.choice(self.n_samples, n_rows, replace=False, shuffle=False))
        classes = max(2, self.n_outputs)
        if self.loss.is_classifier and len(np.unique(self.y[rows])) < classes:
            return None
        if self.sample_weight is not None and not self.sample_weight[rows].any():
            return None
        return rows

    def _arguments_for(self, rows: NDArray[np.int64]) -> tuple[Any, ...]:
        """What makes an engine for some of the rows, after their X."""
        weight = self.sample_weight
        if weight is not None:
            weight = weight[rows] / weight[rows].sum()
        return (
            self.y[rows], self.loss, self.n_outputs, self._projector.risk, self.fit_intercept,
            weight, self._n_jobs,
        )  # fmt: skip

    def _select(self, rows: NDArray[np.intp]) -> Any:
        """Some rows of X, for :meth:`_margins_of` and :meth:`_adjoint_of`; None: all of them.

        Worth it where products with few rows are cheaper.
        """
        return None

    def _margins_of(self, selection: Any, w: FloatArray, out: FloatArray) -> None:
        """The margins of selected rows."""
        raise NotImplementedError

    def _adjoint_of(self, selection: Any, c: FloatArray) -> FloatArray:
        """The sum of c_i [x_i 1] over selected rows."""
        raise NotImplementedError

    def forget(self) -> None:
        self._projector.forget()
        self._pool.drain()
        self._share_rows()

    # Points.

    def point(self, w: FloatArray) -> Point:
        point = self._new_point(w)
        self._margins(point.w, point.margins)
        self._fill_losses(point)
        return point

    def direction(self, delta: FloatArray) -> Any:
        change = _Change(self._pool.take(self._margin_shape), self._recycler)
        self._margins(np.ascontiguousarray(delta), change.margins)
        return change

    def moved(self, point: Point, delta: FloatArray, direction: Any, step: float) -> Point:
        if self._sparing:
            # The line search goes on from the margins, and most likely never comes back.
            point.forget_losses(self._settle)
            return Point(
                point.w + step * delta, self._slopes_at, pool=self._recycler,
                evaluate=self._settle, line=(point, direction, step),
            )  # fmt: skip
        new = self._new_point(point.w + step * delta)
        if self.n_outputs == 1:
            self._move((point, direction, step), new.margins, new.losses)
        else:
            np.multiply(direction.margins, step, out=new.margins)
            np.add(new.margins, point.margins, out=new.margins)
            self._fill_losses(new)
        return new

    def _move(self, line: tuple[Point, _Change, float], margins: Any, losses: Any) -> None:
        point, direction, step = line
        self._each(
            kernels.move_margins, point.margins, direction.margins, step, *self._loss_args,
            margins, losses,
        )  # fmt: skip

    def _settle(self, point: Point) -> None:
        losses = self._pool.take((self.n_samples,))
        if point.line is None:
            margins = point.margins
            self._each(kernels.losses_at, *self._loss_args, margins, losses)
        else:
            margins = self._pool.take(self._margin_shape)
            self._move(point.line, margins, losses)
        point.settle(margins, losses)

    def _new_point(self, w: FloatArray) -> Point:
        take = self._pool.take
        w = np.ascontiguousarray(w, dtype=np.float64)
        return Point(
            w, self._slopes_at, take(self._margin_shape), take((self.n_samples,)), self._recycler
        )

    def _fill_losses(self, point: Point) -> None:
        if self.n_outputs == 1:
            self._each(kernels.losses_at, *self._loss_args, point.margins, point.losses)
        else:
            point.slopes = self._pool.take(self._margin_shape)
            self._each(kernels.softmax_losses, self.y, point.margins, point.losses, point.slopes)

    def _slopes_at(self, point: Point) -> FloatArray:
        slopes = self._pool.take(self._margin_shape)
        self._each(kernels.slopes_at, *self._loss_args, point.margins, slopes)
        return slopes

    # Risks and weightings.

    def risk(self, point: Point) -> float:
        return self._projector.value(point.losses)

    def shortfall(self, point: Point, dual: Dual) -> float:
        return self._projector.shortfall(point.losses, dual.density)

    def effective_share(self) -> float:
        return self._projector.effective_share()

    def uniform(self) -> Dual:
        dual = self._new_dual()
        dual.density.fill(1.0)
        return dual

    def worst_case(self, point: Point) -> Dual:
        dual = self._new_dual()
        self._projector.worst_case(point.losses, dual.density)
        return dual

    def ascend(
        self,
        dual: Dual,
        point: Point,
        eta: float,
        previous: Point | None = None,
        theta: float = 0.0,
    ) -> Dual:
        new = self._new_dual()
        if point.line is not None and theta == 0.0:
            start, direction, step = point.line
            self._each(
                kernels.line_target, start.margins, direction.margins, step, *self._loss_args,
                dual.density, eta, new.density,
            )  # fmt: skip
            self._project(new)
            return new
        last = point.losses if previous is None else previous.losses
        self._each(kernels.ascent_target, dual.density, point.losses, last, eta, theta, new.density)
        self._project(new)
        return new

    def _project(self, dual: Dual) -> None:
        """Replace a density by its projection, and note the blocks."""
        dual.block = self._pool.take((self.n_samples,), np.int32)
        dual.n_blocks = self._projector.project(dual.density, dual.density, dual.block)

    def _new_dual(self) -> Dual:
        return Dual(self._pool.take((self.n_samples,)), None, 0, self._recycler)

    def expected(self, point: Point, dual: Dual) -> float:
        return self._each(
            kernels.weighted_sum, dual.density, point.losses, self._omega, self._weighted
        )

    def square_distance(self, dual: Dual, other: Dual) -> float:
        return self._each(
            kernels.weighted_square_distance, dual.density, other.density, self._omega,
            self._weighted,
        )  # fmt: skip

    def secant(
        self, dual: Dual, other: Dual, point: Point, other_point: Point
    ) -> tuple[float, float]:
        return self._each(
            kernels.weighted_secant, dual.density, other.density, point.losses, other_point.losses,
            self._omega, self._weighted,
        )  # fmt: skip

    def blend(self, dual: Dual, other: Dual, share: float) -> Dual:
        new = self._new_dual()
        np.multiply(dual.density, 1.0 - share, out=new.density)
        new.density += share * other.density
        return new

    def loss_scale(self, point: Point) -> float:
        mean, spread = kernels.mean_and_deviation(point.losses, self._omega, self._weighted)
        # Ties everywhere (classification at w = 0) leave only the size of the losses to go by,
        # and a perfect fit not even that.
        floor = np.finfo(np.float64).eps * self.mean_loss_at_zero() or 1.0
        return max(spread if spread > 1e-3 * mean else mean, floor)

    def mean_loss_at_zero(self) -> float:
        return self._mean_loss_at_zero

    @cached_property
    def _mean_loss_at_zero(self) -> float:
        point = self._new_point(np.zeros(self.shape))
        point.margins.fill(0.0)
        self._fill_losses(point)
        np.abs(point.losses, out=point.losses)
        return float(kernels.mean_and_deviation(point.losses, self._omega, self._weighted)[0])

    def column_scale(self) -> FloatArray | None:
        return self._column_scale

    @cached_property
    def _column_scale(self) -> FloatArray:
        """The largest |x_ij| of each column."""
        raise NotImplementedError

    def absolute_sums(self, point: Point, dual: Dual) -> tuple[float, float]:
        lam, slopes = self.weights(dual), point.slopes
        sizes = np.abs(slopes) if self.n_outputs == 1 else np.linalg.norm(slopes, axis=1)
        return float(lam @ np.abs(point.losses)), float(lam @ sizes)

    def weights(self, dual: Dual) -> FloatArray:
        omega = self.sample_weight if self.sample_weight is not None else 1.0 / self.n_samples
        return np.asarray(dual.density * omega)

    def dual_from_weights(self, lam: FloatArray) -> Dual:
        lam = np.asarray(lam, dtype=np.float64)
        dual = self._new_dual()
        if self.sample_weight is None:
            np.multiply(lam, self.n_samples, out=dual.density)
        else:
            dual.density.fill(0.0)
            np.divide(lam, self.sample_weight, out=dual.density, where=self.sample_weight > 0)
        self._project(dual)
        return dual

    # Derivatives.

    def gradient(self, point: Point, dual: Dual) -> FloatArray:
        c = self._pool.take(self._margin_shape)
        if self.n_outputs == 1:
            self._each(
                kernels.weighted_slopes, *self._loss_args, point.margins, dual.density,
                self._omega, self._weighted, c,
            )  # fmt: skip
        else:
            np.multiply(point.slopes, self.weights(dual)[:, None], out=c)
        out = self._adjoint(c)
        self._pool.give(c)
        return out

    def slope(self, point: Point, dual: Dual, direction: Any) -> float:
        if point.line is not None:
            start, _, step = point.line
            return self._each(
                kernels.line_slope, start.margins, direction.margins, step, *self._loss_args,
                dual.density, self._omega, self._weighted,
            )  # fmt: skip
        if self.n_outputs == 1:
            return self._each(
                kernels.directional_slope, *self._loss_args, point.margins, dual.density,
                direction.margins, self._omega, self._weighted,
            )  # fmt: skip
        return float(np.einsum("i,ik,ik->", self.weights(dual), point.slopes, direction.margins))

    def hessian(
        self,
        point: Point,
        dual: Dual,
        eta: float = 0.0,
        n_rows: int | None = None,
        caution: float = 0.0,
    ) -> FloatArray:
        block = dual.block
        if block is None or dual.n_blocks == 0:
            block, eta = _NO_BLOCKS, 0.0
        h = self._pool.take((self.n_samples,))
        factor = None
        if self.n_outputs == 1:
            self._each(
                kernels.augmented_curvature, *self._loss_args, point.margins, dual.density, block,
                eta, caution, self._omega, self._weighted, h,
            )  # fmt: skip
            if n_rows is not None and self.n_samples > _WORTH_SAMPLING * n_rows:
                factor = self._sample_rows(h, block, dual.n_blocks, eta, n_rows)
            out = self._gram(h)
        else:
            out = self._softmax_hessian(point, dual, block, eta, h)
        self._pool.give(h)
        if eta > 0.0:
            self._subtract_block_means(out, point, dual, eta, factor)
        return out

    def _sample_rows(
        self, h: FloatArray, block: NDArray[Any], n_blocks: int, eta: float, n_rows: int
    ) -> FloatArray | None:
        """Thin out h in place; return the factors, or None when all rows are kept."""
        if np.count_nonzero(h) <= _WORTH_SAMPLING * n_rows:
            return None
        factor = self._pool.take((self.n_samples,))
        # A block of which a handful of rows is sampled loses its covariance: then keep all of it.
        keep_blocks = eta > 0.0 and n_blocks * _ROWS_PER_BLOCK > n_rows
        if eta == 0.0:
            block = _NO_BLOCKS
        kernels.sample_rows(h, block, keep_blocks, float(h.sum()) / n_rows, factor)
        return factor

    def _softmax_hessian(
        self, point: Point, dual: Dual, block: NDArray[Any], eta: float, h: FloatArray
    ) -> FloatArray:
        rows, k = self.shape
        out = np.empty((rows, k, rows, k))
        for a in range(k):
            for b in range(a + 1):
                self._each(
                    kernels.softmax_pair_curvature, self.y, point.slopes, dual.density, block, eta,
                    self._omega, self._weighted, a, b, h,
                )  # fmt: skip
                gram = self._gram(h)
                out[:, a, :, b] = gram
                if a != b:
                    out[:, b, :, a] = gram
        return out.reshape(rows * k, rows * k)

    def _subtract_block_means(
        self, out: FloatArray, point: Point, dual: Dual, eta: float, factor: FloatArray | None
    ) -> None:
        """Inside a pooled block only differences of losses move the weights: take the mean out."""
        n_blocks, size = dual.n_blocks, out.shape[0]
        sampled = factor is not None
        totals = np.empty(n_blocks)
        sampling = (factor if sampled else totals, sampled, self._omega, self._weighted)
        kernels.block_totals(dual.block, *sampling, totals)
        # A block without a sampled row has no mean to take out.
        scale = eta / np.where(totals > 0.0, totals, np.inf)
        c = self._pool.take((self.n_samples,))
        room = min(max(_LEAST_TILE, self.n_samples // 2), _BLOCK_TILE)
        tile = max(1, min(n_blocks, room // size))
        for start in range(0, n_blocks, tile):
            stop = min(start + tile, n_blocks)
            if self.n_outputs == 1:
                if start == 0:
                    kernels.block_slopes(*self._loss_args, point.margins, dual.block, *sampling, c)
                sums = self._block_sums(dual.block, start, stop, c)
            else:
                cube = np.empty((stop - start, *self.shape))
                for a in range(self.n_outputs):
                    kernels.sample_slopes(np.ascontiguousarray(point.slopes[:, a]), *sampling, c)
                    cube[:, :, a] = self._block_sums(dual.block, start, stop, c)
                sums = cube.reshape(stop - start, size)
            out -= (sums * scale[start:stop, None]).T @ sums
        self._pool.give(c, factor)

    def curvature(
        self, point: Point, dual: Dual, eta: float = 0.0, caution: float = 0.0
    ) -> Curvature:
        if self.n_outputs > 1:
            return super().curvature(point, dual, eta, caution)
        return _ActiveRows(self, point, dual, eta, caution)

    def hessian_product(
        self, point: Point, dual: Dual, eta: float, v: FloatArray, caution: float = 0.0
    ) -> FloatArray:
        if self.n_outputs == 1:
            return self.curvature(point, dual, eta, caution).product(v)
        block, means = dual.block, np.empty(dual.n_blocks)
        if block is None or dual.n_blocks == 0:
            block, eta = _NO_BLOCKS, 0.0
        change = self._pool.take(self._margin_shape)
        self._margins(np.ascontiguousarray(v), change)
        if eta > 0.0:
            moved = (change * point.slopes).sum(axis=1)
            totals = np.empty_like(means)
            kernels.block_means(block, moved, self._omega, self._weighted, totals, means)
        kernels.apply_softmax_curvature(
            self.y, point.slopes, dual.density, block, means, eta, self._omega, self._weighted,
            change,
        )  # fmt: skip
        out = self._adjoint(change)
        self._pool.give(change)
        return out

    def hessian_diagonal(
        self, point: Point, dual: Dual, eta: float, caution: float = 0.0
    ) -> FloatArray:
        if self.n_outputs == 1:
            return self.curvature(point, dual, eta, caution).diagonal()
        block = dual.block
        if block is None or dual.n_blocks == 0:
            block, eta = _NO_BLOCKS, 0.0
        h = self._pool.take((self.n_samples,))
        out = np.empty(self.shape)
        for a in range(self.n_outputs):
            self._each(
                kernels.softmax_pair_curvature, self.y, point.slopes, dual.density, block, eta,
                self._omega, self._weighted, a, a, h,
            )  # fmt: skip
            out[:, a] = self._gram_diagonal(h)
        self._pool.give(h)
        return out

    # The intercept.

    def best_intercept(self, point: Point, dual: Dual) -> Point | None:
        if self.n_outputs > 1:
            return self._best_softmax_intercept(point, dual)
        shift = self._best_shift(point, dual)
        if shift is None:
            return None
        w = point.w.copy()
        w[-1] += shift
        new = self._new_point(w)
        np.add(point.margins, shift, out=new.margins)
        self._fill_losses(new)
        return new

    def _best_shift(self, point: Point, dual: Dual) -> float | None:
        """Root of the nondecreasing derivative in the shift: Newton inside a bracket."""
        low, high, shift = -np.inf, np.inf, 0.0
        reach = 1.0
        for _ in range(_MAX_INTERCEPT_STEPS):
            first, second, rounding = self._each(
                kernels.shift_statistics, *self._loss_args, point.margins, shift, dual.density,
                self._omega, self._weighted,
            )  # fmt: skip
            if abs(first) <= 4e-16 * rounding:
                return shift
            if first < 0:
                low = shift
            else:
                high = shift
            trial = shift - first / second if second > 0 else np.nan
            if not low < trial < high or abs(trial - shift) > 1e3 * reach:
                if np.isfinite(low) and np.isfinite(high):
                    trial = 0.5 * (low + high)
                else:
                    reach *= 4.0
                    trial = low + reach if np.isfinite(low) else high - reach
            # An open bracket is infinitely wide, and so is its larger end.
            closed = np.isfinite(low) and np.isfinite(high)
            if trial == shift or (closed and high - low <= 4e-16 * max(abs(low), abs(high))):
                return shift
            shift = trial
        return None

    def intercept_slack(self, point: Point, dual: Dual, residual: float) -> float:
        if residual == 0.0:
            return 0.0
        if self.n_outputs > 1:
            return self._softmax_intercept_slack(point, dual, residual)

        def statistics(shift: float) -> Any:
            return self._each(
                kernels.shift_statistics, *self._loss_args, point.margins, shift, dual.density,
                self._omega, self._weighted,
            )  # fmt: skip

        # The minimum lies between two shifts at which the derivative has either sign for certain.
        _, curvature, size = statistics(0.0)
        # The first try is as long as the margins' own rounding needs to show a change.
        reach = 4.0 * (residual + 1e-16 * size) / curvature if curvature > 0.0 else 1e-16
        for _ in range(_MAX_INTERCEPT_STEPS):
            if statistics(-reach)[0] <= -residual and statistics(reach)[0] >= residual:
                return residual * reach
            reach *= 16.0
        return np.inf

    def _softmax_intercept_slack(self, point: Point, dual: Dual, residual: float) -> float:
        lam = self.weights(dual)
        hessian = self._softmax_intercept_hessian(point, lam)
        # A class that is out of reach has neither slope nor curvature.
        present = np.diag(hessian) > 0.0
        if np.count_nonzero(present) < 2:
            return 0.0
        # The least curvature but for the direction in which all intercepts grow alike.
        curvature = float(np.linalg.eigvalsh(hessian[np.ix_(present, present)])[1])
        return residual**2 / curvature if curvature > 0.0 else np.inf

    def _softmax_intercept_hessian(self, point: Point, lam: FloatArray) -> FloatArray:
        p = point.slopes.copy()
        p[np.arange(self.n_samples), self.y] += 1.0
        weighted = lam[:, None] * p
        return np.diag(weighted.sum(0)) - p.T @ weighted

    def _best_softmax_intercept(self, point: Point, dual: Dual) -> Point | None:
        lam = self.weights(dual)
        current = self._without_absent_classes(point, lam)
        value = self.expected(current, dual)
        for _ in range(_MAX_INTERCEPT_STEPS):
            gradient = lam @ current.slopes
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
                w = current.w.copy()
                w[-1] += step * delta
                trial = self._new_point(w)
                np.add(current.margins, step * delta, out=trial.margins)
                self._fill_losses(trial)
                trial_value = self.expected(trial, dual)
                if trial_value <= value + 1e-4 * step * slope or -slope <= 1e-14 * abs(value):
                    break
                step *= 0.5
            else:
                break
            stalled = np.max(np.abs(lam @ trial.slopes)) >= np.max(np.abs(gradient)) <= 1e-12
            if stalled:
                break
            current, value = trial, trial_value
        # The bound holds only where the derivative in the intercepts is zero to rounding, and far
        # out, where all but one class has next to no weight, no rounding is small enough.
        residual = np.abs(lam @ current.slopes)
        present = residual > 0.0
        reach = np.max(np.abs(current.w[-1][present]), initial=0.0)
        return current if np.max(residual) * (1.0 + reach) <= 1e-12 else None

    def _without_absent_classes(self, point: Point, lam: FloatArray) -> Point:
        """A class without weight has its best intercept at minus infinity: put it out of reach."""
        present = np.zeros(self.n_outputs, dtype=bool)
        present[self.y[lam > 0.0]] = True
        if present.all():
            return point
        drop = np.where(present, 0.0, -(_OUT_OF_REACH + np.ptp(point.margins)))
        w = point.w.copy()
        w[-1] += drop
        new = self._new_point(w)
        np.add(point.margins, drop, out=new.margins)
        self._fill_losses(new)
        return new


class _ActiveRows(Curvature):
    """The Hessian through the rows that have curvature: a risk of the tail gives most rows none."""

    def __init__(self, engine: MemoryEngine, point: Point, dual: Dual, eta: float, caution: float):
        super().__init__(engine, point, dual, eta, caution)
        self._engine = engine
        omega = (engine._omega, engine._weighted)
        n, n_blocks, block = engine.n_samples, dual.n_blocks, dual.block
        if block is None or n_blocks == 0 or eta == 0.0:
            n_blocks, block, eta = 0, np.full(n, -1, np.int32), 0.0
        h, pull = np.empty(n), np.empty(n)
        engine._each(
            kernels.augmented_curvature, *engine._loss_args, point.margins, dual.density, block,
            eta, caution, *omega, h,
        )  # fmt: skip
        engine._each(
            kernels.block_slopes, *engine._loss_args, point.margins, block, h, False, *omega, pull
        )
        totals = np.empty(n_blocks)
        kernels.block_totals(block, h, False, *omega, totals)
        # Samples of weight 0 may form a block of their own.
        self._scale = eta / np.where(totals > 0.0, totals, np.inf)
        self._h, self._active, self._selection = h, (h, pull, block), None
        rows = np.flatnonzero(h)
        if len(rows) <= _WORTH_SELECTING * n:
            self._selection = engine._select(rows)
        if self._selection is not None:
            self._active = h[rows], pull[rows], block[rows]
            self.share = len(rows) / n

    def product(self, v: FloatArray) -> FloatArray:
        engine, selection, active = self._engine, self._selection, self._active
        v, change = np.ascontiguousarray(v), np.empty(len(active[0]))
        if selection is None:
            engine._margins(v, change)
        else:
            engine._margins_of(selection, v, change)
        kernels.apply_curvature(*active, self._scale, change)
        return (
            engine._adjoint(change) if selection is None else engine._adjoint_of(selection, change)
        )

    def diagonal(self) -> FloatArray:
        return self._engine._gram_diagonal(self._h)
