"""Hessians of lam . l, or of its maximum around a centre, for rows in this process's reach.

With h_i = omega_i (q_i phi''_i + eta phi'_i^2 [i moves with its loss]) the Hessian is

    X^T diag(h) X  -  sum_b (eta / omega_b) u_b u_b^T,   u_b = sum_{i in b} omega_i phi'_i x_i:

inside a pooled block b only differences of losses move the weights. A set with a round boundary
takes a matrix of low rank away besides (:class:`sorel.permutahedron.Derivative`). Where there are
many rows, a sample of them stands for all (Byrd, Chin, Neveitt and Nocedal 2011), drawn in
proportion to their curvature (unequal probabilities: Xu, Yang, Roosta-Khorasani, Re and Mahoney
2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel._lib.floats import EPS
from sorel.engines.base import Curvature, FloatArray
from sorel.engines.kronecker import KroneckerPreconditioner, Spectrum
from sorel.engines.last_gram import LastGram
from sorel.engines.matrix import FEW_COLUMNS, RowMatrix
from sorel.engines.row_gram import MAX_ROWS
from sorel.engines.rows.source import SPAN_BYTES
from sorel.models.row_systems import RowSystem, Weights

if TYPE_CHECKING:
    from sorel.engines.memory import MemoryEngine

# Rows or columns that do not count are left out when no more than this share is left.
WORTH_SELECTING = 0.7

# A Hessian from sampled rows pays when there are this many times more rows than asked for.
WORTH_SAMPLING = 3

# Rows of a block that should be in a sample before it stands for the block.
ROWS_PER_BLOCK = 50

# The eigenvectors of a p x p matrix pay where p^3 is no more than so many times the operations of a
# product with X (3371 x 148, four classes, 2026-11: with 1 in its place 105 passes for 20).
_WORTH_EIGENVECTORS = 4.0

# Stands in for the blocks of a weighting that has none.
NO_BLOCKS = np.full(1, -1, np.int32)


class MemoryCurvature(Curvature):
    """What one margin and several have in common."""

    def __init__(self, engine: MemoryEngine, point: Any, dual: Any, eta: float) -> None:
        self._engine, self._point, self._dual = engine, point, dual
        self._weights = engine._omega, engine._weighted
        self._block, self._n_blocks, self._eta, self._vectors = NO_BLOCKS, 0, 0.0, None
        derivative = dual.derivative
        if derivative is not None and derivative.n_blocks and eta > 0.0:
            self._block, self._n_blocks = derivative.block, derivative.n_blocks
            self._eta, self._vectors = eta * derivative.scale, derivative.vectors
            self._dual_eta = eta

    def _active(self) -> NDArray[np.bool_]:
        """Which rows have curvature."""
        raise NotImplementedError

    @cached_property
    def _carrying(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._active())

    @cached_property
    def _selection(self) -> RowMatrix | None:
        """The rows that have curvature, where leaving out the others pays."""
        engine = self._engine
        # On disk a span is read whole, whichever rows are wanted.
        if not engine.in_memory or len(self._carrying) > WORTH_SELECTING * engine.n_samples:
            return None
        return engine._rows.select(self._carrying)

    @property
    def share(self) -> float:
        if self._selection is None:
            return 1.0
        return len(self._carrying) / self._engine.n_samples

    def _own(self, vector: Any) -> Any:
        """The entries of a vector for the rows that products are taken with."""
        return vector if self._selection is None else vector[self._carrying]

    @property
    def _rows(self) -> RowMatrix:
        return self._engine._rows if self._selection is None else self._selection

    @cached_property
    def _low_rank(self) -> FloatArray:
        """L with L^T L the part of low rank that is taken away, of shape (k, size)."""
        engine = self._engine
        if self._vectors is None:
            return np.empty((0, engine.size))
        slopes = self._point.slopes
        moved = (engine._omega * v * np.sqrt(self._dual_eta) for v in self._vectors)
        terms = (m * slopes if slopes.ndim == 1 else m[:, None] * slopes for m in moved)
        return np.array([engine._rows.adjoint(term).ravel() for term in terms])

    def _less_low_rank(self, out: FloatArray, v: FloatArray) -> FloatArray:
        if self._vectors is not None:
            low_rank = self._low_rank
            out -= (low_rank.T @ (low_rank @ v.ravel())).reshape(out.shape)
        return out

    def _block_scales(self, factor: FloatArray | None = None) -> FloatArray:
        """eta / omega_b of the blocks, with the factors of sampled rows; 0 for one without any."""
        omega, weighted = self._weights

        def add(start: int, stop: int, out: FloatArray) -> None:
            part = slice(start, stop)
            factors = None if factor is None else factor[part]
            weights = omega[part] if weighted else omega
            _core.block_totals(self._block[part], factors, weights, weighted, out)

        rows, n_blocks = self._engine._rows, self._n_blocks
        # Each thread has totals of its own, which are to be fewer than its rows.
        if n_blocks * rows._threads < rows.n:
            totals = rows._sum(add, (n_blocks,))
        else:
            totals = np.zeros(n_blocks)
            add(0, rows.n, totals)
        _core.block_scales(self._eta, totals)
        return totals

    def _subtract_block_means(
        self, out: FloatArray, factor: FloatArray | None, pulls: list[FloatArray]
    ) -> None:
        """out less the means of blocks; `pulls` holds omega phi' of each margin."""
        engine, size, n_blocks = self._engine, len(out), self._n_blocks
        scale = self._block_scales(factor)
        tile = max(1, min(n_blocks, SPAN_BYTES // (8 * size)))
        for start in range(0, n_blocks, tile):
            stop = min(start + tile, n_blocks)
            parts = [engine._rows.block_sums(self._block, start, stop, c) for c in pulls]
            sums = parts[0] if len(parts) == 1 else np.dstack(parts).reshape(-1, size)
            _core.root_scaled(scale[start:stop], sums)
            # A product of a matrix with itself takes half the time of one of two matrices.
            out -= sums.T @ sums


class OneMargin(MemoryCurvature):
    """The Hessian through the rows that have curvature: a risk of the tail gives most rows none."""

    def __init__(
        self, engine: MemoryEngine, point: Any, dual: Any, eta: float, damping: float
    ) -> None:
        super().__init__(engine, point, dual, eta)
        self._h = np.empty(engine.n_samples)
        # omega phi', which is read inside the blocks.
        self._pull = np.empty(engine.n_samples if self._n_blocks else 0)
        engine._each(
            engine._loops.augmented_curvature, *engine._loss_args, point.margins, dual.density,
            self._block, self._eta, damping, *self._weights, self._h, self._pull,
        )  # fmt: skip

    def _active(self) -> NDArray[np.bool_]:
        return self._h != 0.0

    @property
    def rows(self) -> int | None:
        served = self._engine.in_memory and self._vectors is None
        return len(self._carrying) if served and len(self._carrying) <= MAX_ROWS else None

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        engine, h, factor = self._engine, self._h, None
        if n_rows is not None:
            h, factor = self._sample(n_rows, self._block, self._n_blocks)
        # A matrix that is larger than X is not kept.
        if factor is not None or not FEW_COLUMNS < engine.size <= engine.n_samples:
            out = engine._rows.gram(h)
        else:
            if engine._last_gram is None:
                engine._last_gram = LastGram()
            out = engine._last_gram.of(h, engine._rows.gram)
        if self._n_blocks:
            # A sampled h is of no more use: its memory serves again.
            pull = self._pull if factor is None else np.multiply(self._pull, factor, out=h)
            self._subtract_block_means(out, factor, [pull])
        if self._vectors is not None:
            out -= self._low_rank.T @ self._low_rank
        return out

    def _sample(
        self, n_rows: int, block: NDArray[np.int32], n_blocks: int
    ) -> tuple[FloatArray, FloatArray | None]:
        """h of about so many rows that stand for all, and how often each counts; None: once each.

        Both are in the working memory of the engine, until the next sample.
        """
        engine, h = self._engine, self._h
        count, total = engine._each(_core.count_and_sum, h)
        if count <= WORTH_SAMPLING * n_rows:
            return h, None
        # A block of which a handful of rows is sampled loses its covariance: then keep it all.
        keep_blocks = n_blocks * ROWS_PER_BLOCK > n_rows
        sampled, factor = engine._sample_room
        engine._each(_core.sample_rows, h, block, keep_blocks, total / n_rows, sampled, factor)
        return sampled, factor

    @cached_property
    def _moving(self) -> Weights:
        """The weights of the rows that products are taken with."""
        own = self._own
        if not self._n_blocks:
            h = own(self._h)
            return Weights(h, np.zeros(len(h)), np.full(len(h), -1, np.int32), np.empty(0))
        return Weights(own(self._h), own(self._pull), own(self._block), self._block_scales())

    def product(self, v: FloatArray) -> FloatArray:
        v = np.ascontiguousarray(v)
        if not self._n_blocks:
            return self._rows.gram_product(self._own(self._h), v)
        moving, change = self._moving, np.empty(self._rows.n)
        self._rows.margins(v, change)
        _core.apply_curvature(moving.h, moving.pull, moving.block, moving.scale, change)
        return self._less_low_rank(self._rows.adjoint(change), v)

    def diagonal(self) -> FloatArray:
        return self._engine._rows.gram_diagonal(self._h)

    def _weights_of_rows(self) -> Weights:
        """Those of the rows that have curvature, and no others."""
        moving = self._moving
        if self._selection is not None:
            return moving
        rows = self._carrying
        return Weights(moving.h[rows], moving.pull[rows], moving.block[rows], moving.scale)

    def solve(self, gradient: FloatArray, l2: float) -> FloatArray:
        engine, rows, d = self._engine, self._carrying, self._engine.n_features
        if not len(rows):
            if engine.fit_intercept:
                raise np.linalg.LinAlgError("no row has curvature")
            return -gradient / l2
        modulus = np.zeros(engine.shape)
        modulus[:d] = l2
        system = RowSystem(engine._row_gram(rows), self._weights_of_rows(), l2)
        # Where these rows stand among those that products are taken with.
        places = rows if self._selection is None else slice(None)

        def inverse(g: FloatArray) -> FloatArray:
            coef, image = g.copy(), np.empty(self._rows.n)
            coef[d:] = 0.0
            self._rows.margins(coef, image)
            derivative = float(g[d]) if engine.fit_intercept else None
            t, b = system.solve(image[places], derivative)
            back = np.zeros(self._rows.n)
            back[places] = t
            step = (self._rows.adjoint(back) - g) / l2
            if engine.fit_intercept:
                step[d] = b
            return step

        step = inverse(gradient)
        # Where l2 is small against the rows, digits cancel: what is left over is solved for again,
        # and where rows are all but dependent a second time.
        for _ in range(2 if system.rounding > math.sqrt(EPS) else 0):
            step += inverse(self.product(step) + modulus * step + gradient)
        return step

    def factor(self) -> FloatArray | None:
        engine, stored = self._engine, self._engine.stored()
        if stored is None:
            return None
        X = stored[0][self._carrying]
        A = np.ones((len(self._carrying), engine.size))
        A[:, : engine.n_features] = X.toarray() if hasattr(X, "toarray") else X
        return self._weights_of_rows().rooted(A)


class SeveralMargins(MemoryCurvature):
    """The Hessian of the multinomial loss, whose parabolas above it are not used for damping."""

    def _active(self) -> NDArray[np.bool_]:
        return np.asarray((self._dual.density != 0.0) | (self._block >= 0))

    def _own_block(self) -> NDArray[np.int32]:
        return np.asarray(self._own(self._block) if self._n_blocks else self._block)

    def _parts(self) -> tuple[Any, ...]:
        """Targets, slopes, densities and blocks of the rows that products are taken with."""
        parts = (self._engine.y, self._point.slopes, self._dual.density)
        return (*(self._own(part) for part in parts), self._own_block())

    @property
    def _own_weights(self) -> tuple[FloatArray, bool]:
        omega, weighted = self._weights
        return (self._own(omega) if weighted else omega), weighted

    def product(self, v: FloatArray) -> FloatArray:
        v, parts, omega = np.ascontiguousarray(v), self._parts(), self._own_weights
        slopes, block = parts[1], parts[3]
        change, means = np.empty(slopes.shape), np.empty(self._n_blocks)
        self._rows.margins(v, change)
        if self._n_blocks:
            moved = np.einsum("ik,ik->i", slopes, change)
            _core.block_means(block, moved, *omega, np.empty_like(means), means)
        _core.apply_softmax_curvature(*parts, means, self._eta, *omega, change)
        return self._less_low_rank(self._rows.adjoint(change), v)

    def _pair(self, a: int, b: int) -> FloatArray:
        """The weights of the rows in the block of two classes."""
        engine, h = self._engine, np.empty(self._engine.n_samples)
        engine._each(
            _core.softmax_pair_curvature, engine.y, self._point.slopes, self._dual.density,
            self._block, self._eta, *self._weights, a, b, h,
        )  # fmt: skip
        return h

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        engine, k = self._engine, self._engine.n_outputs
        rows = engine.shape[0]
        out = np.zeros((rows, k, rows, k))
        # Slopes and curvatures of a sample sum to 0 over the classes: what stands on the diagonal
        # is minus the sum of what stands beside it.
        for a in range(k):
            for b in range(a):
                gram = engine._rows.gram(self._pair(a, b))
                out[:, a, :, b] = out[:, b, :, a] = gram
                out[:, a, :, a] -= gram
                out[:, b, :, b] -= gram
        flat = out.reshape(rows * k, rows * k)
        if self._n_blocks:
            weighed = (self._point.slopes.T * engine._omega).copy()
            self._subtract_block_means(flat, None, list(weighed))
            flat -= self._low_rank.T @ self._low_rank
        return flat

    def diagonal(self) -> FloatArray:
        engine = self._engine
        columns = (engine._rows.gram_diagonal(self._pair(a, a)) for a in range(engine.n_outputs))
        return np.stack(list(columns), axis=1)

    def preconditioner(self, modulus: FloatArray) -> Callable[[FloatArray], FloatArray]:
        engine = self._engine
        y, slopes, density, block = self._parts()
        classes = softmax_curvature(y, slopes, density, *self._own_weights)
        if self._n_blocks:
            inside, change = self._eta * (block >= 0), np.empty_like(slopes)
            _core.weigh_softmax(y, slopes, 0.0, inside, *self._own_weights, change)
            classes += change.T @ slopes
        return KroneckerPreconditioner(row_spectrum(engine), classes, float(modulus[0, 0]))


def row_spectrum(engine: MemoryEngine) -> Spectrum:
    """Eigenvalues of the mean of [x 1] [x 1]^T, or where these cost too much its diagonal."""
    known: Spectrum | None = engine._facts.get("row spectrum")
    if known is None:
        omega = np.ascontiguousarray(np.broadcast_to(engine._omega, engine.n_samples))
        if engine.shape[0] ** 3 > _WORTH_EIGENVECTORS * engine.entries * engine.n_outputs:
            known = Spectrum(engine._rows.gram_diagonal(omega), None)
        else:
            known = Spectrum(*np.linalg.eigh(engine._rows.gram(omega)))
        engine._facts["row spectrum"] = known
    return known


def softmax_curvature(
    y: NDArray[Any], slopes: FloatArray, density: FloatArray, omega: FloatArray, weighted: bool
) -> FloatArray:
    """sum_i omega_i q_i (diag(p_i) - p_i p_i^T), the Hessian in margins that all samples share."""
    weighed = np.empty_like(slopes)
    _core.weigh_softmax(y, slopes, 1.0, density, omega, weighted, weighed)
    # p = slopes + onehot(y). What the second part adds to the product is the sum over each class,
    # of which the part of the class itself stands on the diagonal as well.
    out = slopes.T @ weighed
    totals = np.zeros(slopes.shape[1])
    _core.add_other_classes(y, weighed, totals, out)
    return np.asarray(np.diag(totals) - out)
