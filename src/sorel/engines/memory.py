"""The part of an engine that all data in this process's memory shares.

Vectors of length n are NumPy arrays here, the loops over them are compiled. A subclass adds the
products with X: :meth:`MemoryEngine._margins`, :meth:`MemoryEngine._adjoint` and the weighted
Gram matrices.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, partial
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf

from sorel._copies import shallow_copy
from sorel._pool import WORTH_POOLING, Pool
from sorel._threads import Team, limit_blas, thread_count
from sorel.engines import vectorised
from sorel.engines.base import (
    Curvature,
    Engine,
    FloatArray,
    Spec,
    Splitting,
    Turned,
    UnsupportedOperationError,
)
from sorel.engines.batches import Batches
from sorel.engines.handles import Change, MemoryDual, MemoryPoint
from sorel.engines.kronecker import KroneckerPreconditioner, Spectrum
from sorel.engines.last_gram import LastGram
from sorel.engines.row_gram import MAX_ROWS, RowGram
from sorel.engines.splitting import MemorySplitting
from sorel.engines.views import writable_view
from sorel.fingerprints import fingerprint_array, fingerprint_matrix
from sorel.kernels import PER_ROW, logistic, vectors
from sorel.kernels import losses as compiled_losses
from sorel.kernels.margins import CODES as WITH_PROXIMAL_MAP
from sorel.losses import compiled_form
from sorel.permutahedron import Projector
from sorel.risks import Deviation, Risk
from sorel.rowspace import RowSystem, Weights

_MAX_INTERCEPT_STEPS = 60

_EPS = float(np.finfo(np.float64).eps)
_LEAST = float(np.finfo(np.float64).tiny)

# A minimum in the intercepts is bounded from the curvature where it is no further away than this.
# Without curvature there is a minimum only where the derivative is smaller than this.
_NEAR_MINIMUM, _NO_SLOPE = 0.05, 1e-12

# A margin this far below another adds nothing to a softmax.
_OUT_OF_REACH = 1e3

# Up to this many columns compiled loops beat BLAS, whose calls cost more than they save.
FEW_COLUMNS = 24

# Numbers in a tile of block sums, at least and at most; in between half as many as samples.
_LEAST_TILE, _BLOCK_TILE = 65_536, 2_000_000

# A Hessian from sampled rows pays when there are this many times more rows than asked for.
WORTH_SAMPLING = 3

# Numbers in X, and entries of a vector, from which on threads gain more than their start costs;
# losses with exponentials are worth it sooner.
WORTH_SHARING_X = 1_000_000
_WORTH_SHARING, _WORTH_SHARING_SLOW = 100_000, 20_000

# Up to this many numbers in X, with few columns, the linear algebra library is never asked for so
# much that it would start threads.
_NO_LIBRARY_THREADS = 100_000

# Stands in for the blocks of a weighting that has none.
NO_BLOCKS = np.full(1, -1, np.int32)

# Entries of vectors that are compared at once.
_PART = 32_768

# Rows without curvature are left out of products when no more than this share is left.
WORTH_SELECTING = 0.7

# Facts that depend on the risk, beside those about the data.
_OF_RISK = ("_rank_mass", "_effective_share", "_largest_jump")

# The eigenvectors of a p x p matrix pay where p^3 is no more than so many times the operations of a
# product with X: they take the time of some products with the Hessian then.
_WORTH_TURNING = 4.0

# A system of rows is solved to this share of the gradient, in so many rounds at most.
_SOLVED, _REFINEMENTS = 1e-6, 2

# Rows are too near to dependent where a pivot of their inner products is less than this share of
# the largest: what they have of their own drowns in rounding errors.
_LEAST_PIVOT = 1e-5

# Rows of a block that should be in a sample before it stands for the block.
ROWS_PER_BLOCK = 50


_Value = TypeVar("_Value")


class shared_property(Generic[_Value]):
    """A fact about the data, found once for all the runs of an engine.

    Two runs may find it at the same time; both find the same.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, engine: None, owner: Any) -> shared_property[_Value]: ...
    @overload
    def __get__(self, engine: MemoryEngine, owner: Any) -> _Value: ...
    def __get__(self, engine: Any, owner: Any) -> Any:
        if engine is None:
            return self
        try:
            return engine._facts[self._name]
        except KeyError:
            value = engine._facts[self._name] = self._function(engine)
            return value


def _leave(*arrays: Any) -> None:
    """Leave short arrays to Python."""


def sweep_rows(team: Team, weighted: bool, kernel: Any, *args: Any) -> Any:
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
    rows = tuple(i for i, name in enumerate(names) if name in PER_ROW)
    return rows, names.index("omega") if "omega" in names else None


def _check_lengths(spec: Spec, n: int, n_outputs: int) -> None:
    """Refuse targets and weights that the loops, which trust the rows of X, would read beyond."""
    for name, values in (("targets", spec.targets), ("sample_weight", spec.sample_weight)):
        if values is not None and np.shape(values) != (n,):
            raise ValueError(
                f"X has {n} rows but {name} has shape {np.shape(values)}; they must agree"
            )
    if n_outputs > 1 and n:
        labels = np.asarray(spec.targets)
        if not (labels.min() >= 0 and labels.max() < n_outputs):
            raise ValueError(
                f"targets must be the numbers 0 to {n_outputs - 1} of the classes, got values from "
                f"{labels.min()} to {labels.max()}"
            )


class MemoryEngine(Engine):
    """Losses, weights and projections for margins in memory.

    Under a Deviation the weights of the losses are q - share, while the projection stays that of
    the risk: it does not see a number added to all losses.

    Shared by all runs: X, the spec, the weights of the risk, and facts about the data. A run has
    its own pool of arrays and its own projector, which remembers orders: see :meth:`for_run`.
    """

    serves_deviations = True
    preconditions_classes = True
    products_are_cheap = True

    # What runs one after another share.
    _handed_on: LastGram | None = None

    def __init__(self, X: Any, spec: Spec) -> None:
        super().__init__(X.shape[0], X.shape[1], spec)
        _check_lengths(spec, self.n_samples, self.n_outputs)
        self._matrix = X
        self.y, self.loss = writable_view(np.ascontiguousarray(spec.targets)), spec.loss
        n, weight = self.n_samples, spec.sample_weight
        self._weighted = weight is not None
        self._omega = np.full(1, 1.0 / n) if weight is None else weight
        self._facts: dict[str, Any] = {}
        self._compiled = compiled_form(spec.loss)
        self._loops: Any
        self._loss_args: tuple[Any, float, Any]
        if self._compiled is not None or self.n_outputs > 1:
            self._loops = compiled_losses
            if self._compiled is not None and self._compiled[0] == compiled_losses.LOGISTIC:
                self._loops = logistic
            self._loss_args = (*(self._compiled or (-1, 1.0)), self.y)
        else:
            self._loops, self._loss_args = vectorised, (spec.loss, 1.0, self.y)
        self._overflows = not spec.loss.curvature_bound < np.inf
        # Exponentials of samples without weight may overflow: 0 times that is not 0. Their margins
        # stay at 0, where it matters to nobody.
        self._unused = np.empty(0, np.intp)
        if self._weighted and self._overflows:
            self._unused = np.flatnonzero(self._omega == 0.0)
        self._margin_shape = (n,) if self.n_outputs == 1 else (n, self.n_outputs)
        self._use_pool()
        self._use_risk()
        self._share_rows()

    def _use_risk(self) -> None:
        """Get a projector for the risk of the spec."""
        spec = self.spec
        risk, self._offset = spec.risk, 0.0
        if isinstance(spec.risk, Deviation):
            risk, self._offset = spec.risk.risk, -float(spec.risk.share)
        self._projector = self._make_projector(risk)
        # A general projection holds many vectors, so trial points do without their own.
        self._sparing = (
            self.n_outputs == 1
            and self.n_samples >= WORTH_POOLING
            and not self._projector.two_levels
        )

    def _make_projector(self, risk: Risk) -> Projector:
        """The projection onto the dual set of a risk: the place for one of your own."""
        return Projector(risk, self.n_samples, self.spec.sample_weight, self._pool)

    def with_risk(self, risk: Risk) -> MemoryEngine:
        other = shallow_copy(self)
        other.spec = dataclasses.replace(self.spec, risk=risk)
        other._facts = {name: fact for name, fact in self._facts.items() if name not in _OF_RISK}
        other._use_pool()
        other._use_risk()
        other._share_rows()
        return other

    def in_sequence(self) -> MemoryEngine:
        other = shallow_copy(self)
        other._handed_on = LastGram()
        return other

    def for_run(self, sequence: bool = False) -> MemoryEngine:
        if sequence:
            return self.in_sequence()
        other = shallow_copy(self)
        other._use_pool()
        other._projector = self._projector.fork(other._pool)
        other._share_rows()
        return other

    def _use_pool(self) -> None:
        """Get a pool of arrays with an entry for each margin; short ones are made every time."""
        self._pool = Pool()
        self._known_gram: RowGram | None = None
        self._last_gram = self._handed_on
        pooled = self.n_samples * self.n_outputs >= WORTH_POOLING
        self._recycler = self._pool if pooled else None
        self._take: Any = self._pool.take if pooled else np.empty
        self._give: Any = self._pool.give if pooled else _leave

    def release(self) -> None:
        if self._recycler is not None:
            self._projector = self._projector.fork(self._pool)
            self._pool.drain()

    @property
    def data_type(self) -> np.dtype[Any]:
        return np.dtype(self._matrix.dtype)

    def fingerprint(self) -> dict[str, str]:
        weight = self.spec.sample_weight
        return {
            "data": fingerprint_matrix(self._matrix),
            "targets": fingerprint_array(self.y),
            "sample weights": "none" if weight is None else fingerprint_array(weight),
        }

    # Threads.

    def _share_rows(self) -> None:
        """Choose the threads for sweeps over X and for those over vectors of length n."""
        slow = self._compiled is None or self._compiled[0] == compiled_losses.LOGISTIC
        large_X = self.n_samples * self.n_features >= WORTH_SHARING_X
        large = self.n_samples >= (_WORTH_SHARING_SLOW if slow else _WORTH_SHARING)
        # A small problem is not even worth the question how many threads there are.
        threads = thread_count(self.spec.n_jobs) if large or large_X else 1
        team = Team(self.n_samples, threads) if threads > 1 else None
        self._row_team = team if large_X else None
        self._team = team if large else None
        # Runs a loop on every range of rows, and returns the sum of what it returned. A small
        # problem makes hundreds of such calls in a millisecond, so it pays for no more than one.
        # It does not hold the engine, whose arrays would then wait for the garbage collector.
        self._each: Any = operator.call
        if self._team is not None:
            self._each = partial(sweep_rows, self._team, self._weighted)
        self._projector.share(self._team)
        # Short vectors with equal sample weights and one margin each, which no threads share.
        self._is_short = (
            self._recycler is None
            and self._team is None
            and self.n_outputs == 1
            and not self._weighted
            and self._offset == 0.0
        )
        self._project_short = self._projector.project

    def working(self) -> AbstractContextManager[Any]:
        # With so few numbers no threads share the products, but some may share long vectors.
        alone = self._team is None
        small = self.n_samples * self.shape[0] <= _NO_LIBRARY_THREADS
        few = self.shape[0] * self.n_outputs <= FEW_COLUMNS
        return nullcontext() if alone and small and few else limit_blas()

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

    def _gram_product(self, h: FloatArray, v: FloatArray) -> FloatArray:
        """That matrix times v."""
        change = np.empty(self.n_samples)
        self._margins(v, change)
        change *= h
        return self._adjoint(change)

    @shared_property
    def _row_spectrum(self) -> Spectrum:
        """Eigenvalues of the mean of [x 1] [x 1]^T, or where these cost too much its diagonal."""
        omega = np.ascontiguousarray(np.broadcast_to(self._omega, self.n_samples))
        entries = getattr(self._matrix, "nnz", self.n_samples * self.n_features)
        if self.shape[0] ** 3 > _WORTH_TURNING * entries * self.n_outputs:
            return Spectrum(self._gram_diagonal(omega), None)
        return Spectrum(*np.linalg.eigh(self._gram(omega)))

    def _block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        """Rows sum_{i in block} c_i [x_i 1], for the blocks start..stop."""
        raise NotImplementedError

    def sample(self, n_rows: int, rng: np.random.Generator) -> Engine | None:
        # In ascending order, so that X is read in sequence.
        return self.on_rows(
            np.sort(rng.choice(self.n_samples, n_rows, replace=False, shuffle=False))
        )

    def on_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        classes = max(2, self.n_outputs)
        if self.loss.is_classifier and len(np.unique(self.y[rows])) < classes:
            return None
        weight = self.spec.sample_weight
        if weight is not None and not weight[rows].any():
            return None
        return self._copy_rows(rows)

    def _copy_rows(self, rows: NDArray[np.intp]) -> Engine | None:
        """An engine of these rows; None where there is no way to get at them."""
        return None

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

    def _row_products(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> FloatArray:
        """Inner products of rows of X with others."""
        raise NotImplementedError

    def _row_gram(self, rows: NDArray[np.intp]) -> FloatArray:
        """Inner products of rows of X with each other."""
        if self._known_gram is None:
            self._known_gram = RowGram(self.n_samples, self._row_products)
        return self._known_gram.of(rows)

    def turned(self) -> Turned | None:
        if not self.solves_by_rows or self.n_outputs > 1 or self.n_samples > MAX_ROWS:
            return None
        n, d = self.n_samples, self.n_features
        factor, failed = dpotrf(self._row_gram(np.arange(n)).T, lower=1, clean=1, overwrite_a=1)
        pivots = factor.diagonal()
        if failed or not pivots.min() >= _LEAST_PIVOT * pivots.max():
            return None
        factor = np.ascontiguousarray(factor)

        def into(w: FloatArray) -> FloatArray:
            coef, image = w.copy(), np.empty(n)
            coef[d:] = 0.0
            self._margins(coef, image)
            return np.append(solve_triangular(factor, image, lower=True), w[d:])

        def back(v: FloatArray) -> FloatArray:
            w = self._adjoint(solve_triangular(factor, v[:n], lower=True, trans="T"))
            w[d:] = v[n:]
            return w

        return Turned(self._with_square(factor), into, back)

    def _with_square(self, X: FloatArray) -> Engine:
        """The same problem with this matrix in the place of X."""
        raise NotImplementedError

    # Points.

    def point(self, w: FloatArray) -> MemoryPoint:
        point = self._new_point(w)
        if not point.w.any():
            # Where most runs start: no product with X is needed for margins of 0.
            point.margins.fill(0.0)
        else:
            self._margins(point.w, point.margins)
            if self._unused.size:
                point.margins[self._unused] = 0.0
        self._fill_losses(point)
        return point

    def losses(self, point: Any) -> FloatArray:
        losses = np.array(point.losses)
        if self._unused.size:
            margins, every = np.empty(self._margin_shape), np.empty(self.n_samples)
            self._margins(point.w, margins)
            self._loops.losses_at(*self._loss_args, margins, every)
            losses[self._unused] = every[self._unused]
        return losses

    def is_finite(self, point: Any) -> bool:
        return not self._overflows or bool(np.all(np.isfinite(point.losses)))

    def direction(self, delta: FloatArray) -> Change:
        change = Change(self._take(self._margin_shape), self._recycler)
        self._margins(np.ascontiguousarray(delta), change.margins)
        if self._unused.size:
            change.margins[self._unused] = 0.0
        return change

    def moved(self, point: Any, delta: FloatArray, direction: Any, step: float) -> MemoryPoint:
        if self._sparing:
            # The line search goes on from the margins, and most likely never comes back.
            point.forget_losses()
            return MemoryPoint(point.w + step * delta, self, line=(point, direction, step))
        new = self._new_point(point.w + step * delta)
        if self.n_outputs == 1:
            self._move((point, direction, step), new.margins, new.losses)
        else:
            np.multiply(direction.margins, step, out=new.margins)
            np.add(new.margins, point.margins, out=new.margins)
            self._fill_losses(new)
        return new

    def tried(
        self, point: Any, delta: FloatArray, direction: Any, step: float, center: Any, eta: float
    ) -> Any:
        if not self._is_short:
            return super().tried(point, delta, direction, step, center, eta)
        # The same, loop by loop: a small problem makes so many trials that layers between them and
        # the loops would take longer than the loops.
        n, change, formula = self.n_samples, direction.margins, self._loss_args
        margins, losses, dual = np.empty(n), np.empty(n), center
        self._loops.move_margins(point.margins, change, step, *formula, margins, losses)
        moved = MemoryPoint(point.w + step * delta, self, margins, losses)
        if not self.is_finite(moved):
            return moved, center, np.inf
        if eta == np.inf:
            dual = self.worst_case(moved)
        elif eta > 0.0:
            density, block = np.empty(n), np.empty(n, np.int32)
            vectors.ascent_target(center.density, losses, losses, eta, 0.0, density)
            dual = MemoryDual(density, None)
            dual.block, dual.n_blocks = block, self._project_short(density, density, block)
        slope = self._loops.directional_slope(
            *formula, margins, dual.density, change, self._omega, False
        )
        return moved, dual, slope

    def _move(self, line: Any, margins: Any, losses: Any) -> None:
        point, direction, step = line
        self._each(
            self._loops.move_margins, point.margins, direction.margins, step, *self._loss_args,
            margins, losses,
        )  # fmt: skip

    def _evaluated(self, point: MemoryPoint) -> tuple[Any, Any]:
        """Margins and losses of a point on a line, or of one that kept its margins alone."""
        losses = self._take((self.n_samples,))
        if point.line is None:
            margins = point.margins
            self._each(self._loops.losses_at, *self._loss_args, margins, losses)
        else:
            margins = self._take(self._margin_shape)
            self._move(point.line, margins, losses)
        return margins, losses

    def _new_point(self, w: FloatArray) -> MemoryPoint:
        take = self._take
        w = np.ascontiguousarray(w, dtype=np.float64)
        return MemoryPoint(w, self, take(self._margin_shape), take((self.n_samples,)))

    def _fill_losses(self, point: MemoryPoint) -> None:
        if self.n_outputs == 1:
            self._each(self._loops.losses_at, *self._loss_args, point.margins, point.losses)
        else:
            point.slopes = self._take(self._margin_shape)
            self._each(
                self._loops.softmax_losses, self.y, point.margins, point.losses, point.slopes
            )

    def _slopes_at(self, point: MemoryPoint) -> FloatArray:
        slopes = self._take(self._margin_shape)
        self._each(self._loops.slopes_at, *self._loss_args, point.margins, slopes)
        return slopes

    # Risks and weightings.

    def risk(self, point: Any) -> float:
        value = self._projector.value(point.losses)
        if self._offset == 0.0:
            return value
        return value + self._offset * self._mean(point.losses)

    def _mean(self, losses: FloatArray) -> float:
        if not self._weighted:
            return float(np.add.reduce(losses)) * float(self._omega[0])
        # Not a product of the linear algebra library: its sums depend on how busy the cores are.
        weighed = self._take((self.n_samples,))
        np.multiply(self._omega, losses, out=weighed)
        mean = float(np.add.reduce(weighed))
        self._give(weighed)
        return mean

    def _signed(self, dual: Any) -> FloatArray:
        """The densities of a Deviation that weigh the losses, to be given back to the pool."""
        signed = self._take((self.n_samples,))
        np.add(dual.density, self._offset, out=signed)
        return signed

    def shortfall(self, point: Any, dual: Any) -> float:
        return self._projector.shortfall(point.losses, dual.density)

    def effective_share(self) -> float:
        return self._effective_share

    @shared_property
    def _effective_share(self) -> float:
        return self._projector.effective_share()

    def largest_jump(self) -> float:
        return self._largest_jump

    @shared_property
    def _largest_jump(self) -> float:
        return self._projector.largest_jump()

    def uniform(self) -> MemoryDual:
        dual = self._new_dual()
        dual.density.fill(1.0)
        return dual

    def worst_case(self, point: Any) -> MemoryDual:
        dual = self._new_dual()
        self._projector.worst_case(point.losses, dual.density)
        return dual

    def ascend(
        self,
        dual: Any,
        point: Any,
        eta: float,
        previous: Any = None,
        theta: float = 0.0,
    ) -> MemoryDual:
        new = self._new_dual()
        if point.line is not None and theta == 0.0:
            start, direction, step = point.line
            self._each(
                self._loops.line_target, start.margins, direction.margins, step, *self._loss_args,
                dual.density, eta, new.density,
            )  # fmt: skip
            self._project(new)
            return new
        last = point.losses if previous is None else previous.losses
        self._each(vectors.ascent_target, dual.density, point.losses, last, eta, theta, new.density)
        self._project(new)
        return new

    def _project(self, dual: Any) -> None:
        """Replace a density by its projection, and note the blocks."""
        dual.block = self._take((self.n_samples,), np.int32)
        dual.n_blocks = self._projector.project(dual.density, dual.density, dual.block)

    def _new_dual(self) -> MemoryDual:
        return MemoryDual(self._take((self.n_samples,)), self._recycler)

    def as_center(self, dual: Any) -> MemoryDual:
        dual.forget_blocks()
        return dual

    def expected(self, point: Any, dual: Any) -> float:
        if self._offset == 0.0:
            return self._each(
                vectors.weighted_sum, dual.density, point.losses, self._omega, self._weighted
            )
        signed = self._signed(dual)
        value = self._each(vectors.weighted_sum, signed, point.losses, self._omega, self._weighted)
        self._give(signed)
        return value

    def square_distance(self, dual: Any, other: Any) -> float:
        return self._each(
            vectors.weighted_square_distance, dual.density, other.density, self._omega,
            self._weighted,
        )  # fmt: skip

    def secant(self, dual: Any, other: Any, point: Any, other_point: Any) -> tuple[float, float]:
        square = product = 0.0
        # Part by part, so that what is made on the way stays in the cache.
        for start in range(0, self.n_samples, _PART):
            part = slice(start, start + _PART)
            move = dual.density[part] - other.density[part]
            weighted = move * (self._omega[part] if self._weighted else self._omega)
            square += float(np.add.reduce(weighted * move))
            change = other_point.losses[part] - point.losses[part]
            product += float(np.add.reduce(weighted * change))
        return square, product

    def blend(self, dual: Any, other: Any, share: float) -> MemoryDual:
        new = self._new_dual()
        np.multiply(dual.density, 1.0 - share, out=new.density)
        new.density += share * other.density
        return new

    def corrected(self, dual: Any, change: Any, center: Any) -> MemoryDual:
        new = self._new_dual()
        shift = self._mean(change.margins)
        np.subtract(dual.density, change.margins, out=new.density)
        new.density += shift - center.density
        share = self._share_inside(new.density, center.density)
        new.density *= share
        new.density += center.density
        return new

    def _share_inside(self, move: FloatArray, center: FloatArray) -> float:
        """The largest t <= 1, up to rounding, for which center + t move is in the dual set."""
        risk = self._projector.risk
        levels = risk.levels(self.n_samples, self.spec.sample_weight)
        with np.errstate(divide="ignore", invalid="ignore"):
            if levels is not None:
                room = np.where(move > 0.0, levels[1] - center, center - levels[0])
                shares = room / np.abs(move)
            else:
                # The top of the order may not hold more than the risk puts there.
                order = np.argsort(-move)
                omega = np.broadcast_to(self._omega, move.shape)[order]
                reach = np.minimum(np.cumsum(omega), 1.0)
                held = np.cumsum(omega * move[order])
                # All samples together hold nothing, up to rounding.
                counts = held > 1e-13 * held.max()
                shares = (risk.tail(reach[counts]) - reach[counts]) / held[counts]
        shares = shares[np.isfinite(shares) & (shares >= 0.0)]
        return min(1.0, float(shares.min(initial=1.0)) * (1.0 - 1e-14))

    def loss_scale(self, point: Any) -> float:
        mean = self._mean(point.losses)
        distances = self._take((self.n_samples,))
        np.subtract(point.losses, mean, out=distances)
        spread = self._mean(np.abs(distances, out=distances))
        self._give(distances)
        return spread

    def mean_size(self, point: Any) -> float:
        return self._mean_size(point.losses)

    def _mean_size(self, losses: FloatArray) -> float:
        if self.loss.lower_bound >= 0.0:
            return self._mean(losses)
        # Densities of 0 and a share of 1 make the plain mean.
        zero = np.broadcast_to(0.0, losses.shape)
        return self._each(vectors.absolute_sum, zero, losses, self._omega, self._weighted, 1.0)

    def mean_loss_at_zero(self) -> float:
        return self._mean_loss_at_zero

    @shared_property
    def _mean_loss_at_zero(self) -> float:
        # No product with X is needed for margins of 0.
        point = self._new_point(np.zeros(self.shape))
        point.margins.fill(0.0)
        self._fill_losses(point)
        size = self._mean_size(point.losses)
        # Runs have pools of their own, and would have no use for these vectors.
        del point
        self._pool.drain()
        return size

    def mass(self, dual: Any) -> float:
        return self._mean(dual.density)

    def weights_rounding(self, point: Any) -> float:
        if not self._weighted:
            return 0.0
        # Differences of the cumulative risk are off by rounding errors of 1 each, not of their own
        # size, which may be far less.
        total = self._each(vectors.square_of_used, point.losses, self._omega)
        if total < np.inf:
            return _EPS * math.sqrt(total)
        # Squares of losses that grow like exponentials may overflow where these do not.
        largest = float(np.max(np.abs(point.losses)))
        scaled = self._each(vectors.square_of_used, point.losses / largest, self._omega)
        return _EPS * largest * math.sqrt(scaled)

    def largest_slope(self, point: Any, error: float) -> float:
        used = self._omega > 0.0 if self._weighted else slice(None)
        slopes = np.abs(point.slopes) + error * self.loss.curvature(self.y, point.margins)
        return float(np.max(slopes[used]))

    def stored(self) -> tuple[Any, Any] | None:
        return self._matrix, self.y

    def column_scale(self) -> FloatArray | None:
        return self._column_scale

    @shared_property
    def _column_scale(self) -> FloatArray:
        """The largest |x_ij| of each column."""
        raise NotImplementedError

    def absolute_sums(self, point: Any, dual: Any) -> tuple[float, float, float]:
        if self.loss.affine:
            # Under a Deviation the weights are no larger than the sum of both parts.
            share = abs(self._offset)
            args = (dual.density, point.losses, self._omega, self._weighted, share)
            return self._each(vectors.absolute_sum, *args), (1.0 + share) * self.loss.lipschitz, 0.0
        lam = self.weights(dual)
        curvature = self.loss.curvature(self.y, point.margins)
        losses, slopes = np.abs(point.losses), np.abs(point.slopes)
        if self.loss.link == "log":
            # The formulas compare the margin with log y, whose error is as good as one of the loss.
            losses += slopes * np.abs(np.log(np.where(self.y > 0.0, self.y, 1.0)))
        sizes = (losses, slopes, curvature)
        first, second, third = (float(lam @ size) for size in sizes)
        return first, second, third

    def weights(self, dual: Any) -> FloatArray:
        omega = self.spec.sample_weight if self._weighted else 1.0 / self.n_samples
        return np.asarray(dual.density * omega)

    def nearest_dual(self, lam: FloatArray) -> tuple[MemoryDual, float]:
        lam = np.asarray(lam, dtype=np.float64)
        dual = self._new_dual()
        if not self._weighted:
            np.multiply(lam, self.n_samples, out=dual.density)
        else:
            dual.density.fill(0.0)
            np.divide(lam, self._omega, out=dual.density, where=self._omega > 0)
        self._project(dual)
        return dual, float(np.abs(self.weights(dual) - lam).sum())

    def obstacle(self, operation: str) -> str | None:
        reason = super().obstacle(operation)
        if reason is None and operation in ("splitting", "batches"):
            if self._offset != 0.0:
                return "takes weights that are not negative, and a deviation has negative ones"
            form = self._compiled
            if operation == "splitting" and (form is None or form[0] not in WITH_PROXIMAL_MAP):
                return (
                    "needs the proximal map of the risk in the margins, which is known for losses "
                    f"of one residual or one labelled margin, and not for the {self.loss.name} loss"
                )
        return reason

    def loss_distance(self, point: Any, other: Any) -> float:
        return self._each(
            vectors.weighted_square_distance, point.losses, other.losses, self._omega,
            self._weighted,
        )  # fmt: skip

    def batches(self, n_blocks: int, rng: np.random.Generator) -> Batches:
        return Batches(self, n_blocks, rng)

    def splitting(self) -> Splitting:
        reason = self.obstacle("splitting")
        if reason is not None:
            raise UnsupportedOperationError(f"splitting {reason}")
        return MemorySplitting(self)

    # Derivatives.

    def gradient(self, point: Any, dual: Any) -> FloatArray:
        c = self._take(self._margin_shape)
        if self.n_outputs == 1:
            signed = dual.density if self._offset == 0.0 else self._signed(dual)
            self._each(
                self._loops.weighted_slopes, *self._loss_args, point.margins, signed,
                self._omega, self._weighted, c,
            )  # fmt: skip
            if self._offset != 0.0:
                self._give(signed)
        else:
            self._each(
                compiled_losses.weigh_softmax, self.y, point.slopes, 0.0, dual.density,
                self._omega, self._weighted, c,
            )  # fmt: skip
        out = self._adjoint(c)
        self._give(c)
        return out

    def slope(self, point: Any, dual: Any, direction: Any) -> float:
        if self.n_outputs == 1:
            signed = dual.density if self._offset == 0.0 else self._signed(dual)
            if point.line is not None:
                start, _, step = point.line
                value = self._each(
                    self._loops.line_slope, start.margins, direction.margins, step,
                    *self._loss_args, signed, self._omega, self._weighted,
                )  # fmt: skip
            else:
                value = self._each(
                    self._loops.directional_slope, *self._loss_args, point.margins, signed,
                    direction.margins, self._omega, self._weighted,
                )  # fmt: skip
            if self._offset != 0.0:
                self._give(signed)
            return value
        moved = np.einsum("ik,ik->i", point.slopes, direction.margins)
        return self._each(vectors.weighted_sum, dual.density, moved, self._omega, self._weighted)

    def hessian(
        self,
        point: Any,
        dual: Any,
        eta: float = 0.0,
        n_rows: int | None = None,
        caution: float = 0.0,
    ) -> FloatArray:
        block = dual.block
        if dual.n_blocks == 0:
            block, eta = NO_BLOCKS, 0.0
        h = self._take((self.n_samples,))
        factor = None
        if self.n_outputs == 1:
            self._each(
                self._loops.augmented_curvature, *self._loss_args, point.margins, dual.density,
                block, eta, caution, self._omega, self._weighted, h,
            )  # fmt: skip
            if n_rows is not None and self.n_samples > WORTH_SAMPLING * n_rows:
                factor = self._sample_rows(h, block, dual.n_blocks, eta, n_rows)
            # A matrix that is larger than X is not kept.
            if factor is not None or not FEW_COLUMNS < self.size <= self.n_samples:
                out = self._gram(h)
            else:
                if self._last_gram is None:
                    self._last_gram = LastGram()
                out = self._last_gram.of(h, self._gram)
        else:
            out = self._softmax_hessian(point, dual, block, eta, h)
        self._give(h)
        if eta > 0.0:
            self._subtract_block_means(out, point, dual, eta, factor)
        return out

    def _sample_rows(
        self, h: FloatArray, block: NDArray[Any], n_blocks: int, eta: float, n_rows: int
    ) -> FloatArray | None:
        """Thin out h in place; return the factors, or None when all rows are kept."""
        if np.count_nonzero(h) <= WORTH_SAMPLING * n_rows:
            return None
        factor = self._take((self.n_samples,))
        # A block of which a handful of rows is sampled loses its covariance: then keep all of it.
        keep_blocks = eta > 0.0 and n_blocks * ROWS_PER_BLOCK > n_rows
        if eta == 0.0:
            block = NO_BLOCKS
        vectors.sample_rows(h, block, keep_blocks, float(h.sum()) / n_rows, factor)
        return factor

    def _softmax_hessian(
        self, point: Any, dual: Any, block: NDArray[Any], eta: float, h: FloatArray
    ) -> FloatArray:
        rows, k = self.shape[0], self.n_outputs
        out = np.zeros((rows, k, rows, k))
        # Slopes and curvatures of a sample sum to 0 over the classes: what stands on the diagonal
        # is minus the sum of what stands beside it.
        for a in range(k):
            for b in range(a):
                self._each(
                    self._loops.softmax_pair_curvature, self.y, point.slopes, dual.density, block,
                    eta, self._omega, self._weighted, a, b, h,
                )  # fmt: skip
                gram = self._gram(h)
                out[:, a, :, b] = out[:, b, :, a] = gram
                out[:, a, :, a] -= gram
                out[:, b, :, b] -= gram
        return out.reshape(rows * k, rows * k)

    def _subtract_block_means(
        self, out: FloatArray, point: Any, dual: Any, eta: float, factor: FloatArray | None
    ) -> None:
        """Inside a pooled block only differences of losses move the weights: take the mean out."""
        n_blocks, size = dual.n_blocks, out.shape[0]
        sampled = factor is not None
        totals = np.empty(n_blocks)
        sampling = (factor if sampled else totals, sampled, self._omega, self._weighted)
        vectors.block_totals(dual.block, *sampling, totals)
        # A block without a sampled row has no mean to take out.
        scale = eta / np.where(totals > 0.0, totals, np.inf)
        c = self._take((self.n_samples,))
        room = min(max(_LEAST_TILE, self.n_samples // 2), _BLOCK_TILE)
        tile = max(1, min(n_blocks, room // size))
        for start in range(0, n_blocks, tile):
            stop = min(start + tile, n_blocks)
            if self.n_outputs == 1:
                if start == 0:
                    self._loops.block_slopes(
                        *self._loss_args, point.margins, dual.block, *sampling, c
                    )
                sums = self._block_sums(dual.block, start, stop, c)
            else:
                cube = np.empty((stop - start, *self.shape))
                for a in range(self.n_outputs):
                    vectors.sample_slopes(np.ascontiguousarray(point.slopes[:, a]), *sampling, c)
                    cube[:, :, a] = self._block_sums(dual.block, start, stop, c)
                sums = cube.reshape(stop - start, size)
            out -= (sums * scale[start:stop, None]).T @ sums
        self._give(c, factor)

    def curvature(self, point: Any, dual: Any, eta: float = 0.0, caution: float = 0.0) -> Curvature:
        if self.n_outputs > 1:
            return _SoftmaxRows(self, point, dual, eta)
        return _ActiveRows(self, point, dual, eta, caution)

    # The intercept.

    def best_intercept(self, point: Any, dual: Any) -> MemoryPoint | None:
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

    def _best_shift(self, point: Any, dual: Any) -> float | None:
        return best_shift(lambda shift: self._shift_statistics(point, dual, shift))

    def _shift_statistics(self, point: Any, dual: Any, shift: float) -> tuple[float, float, float]:
        return self._each(
            self._loops.shift_statistics, *self._loss_args, point.margins, shift, dual.density,
            self._omega, self._weighted,
        )  # fmt: skip

    def intercept_slack(self, point: Any, dual: Any, residual: float) -> float:
        if residual == 0.0:
            return 0.0
        if self.n_outputs > 1:
            return self._softmax_intercept_slack(point, dual, residual)
        if self._compiled is not None and self._compiled[0] == compiled_losses.SQUARED:
            # A parabola, whose curvature is the sum of the weights, falls by half of this.
            return residual**2 / self.mass(dual)
        return shift_slack(lambda shift: self._shift_statistics(point, dual, shift), residual)

    def _softmax_intercept_slack(self, point: Any, dual: Any, residual: float) -> float:
        lam = self.weights(dual)
        hessian = self._softmax_intercept_hessian(point, lam)
        return softmax_slack(hessian, residual)

    def _softmax_intercept_hessian(self, point: Any, lam: FloatArray) -> FloatArray:
        return softmax_curvature(self.y, point.slopes, lam, np.ones(1), False)

    def _best_softmax_intercept(self, point: Any, dual: Any) -> MemoryPoint | None:
        lam = self.weights(dual)
        start = current = self._without_absent_classes(point, lam)
        # All moves are counted from the start: one that goes far takes digits from the margins.
        shift = np.zeros(self.n_outputs)
        value, gradient = self.expected(current, dual), lam @ current.slopes
        slopes = float(np.sum(lam @ np.abs(current.slopes)))
        for _ in range(_MAX_INTERCEPT_STEPS):
            size = np.abs(gradient).max()
            if size <= 4.0 * _EPS * slopes:
                break
            hessian = self._softmax_intercept_hessian(current, lam)
            # Adding one number to all intercepts changes nothing: pin that direction.
            hessian += np.trace(hessian) / self.n_outputs**2
            try:
                delta = -np.linalg.solve(hessian, gradient)
            except np.linalg.LinAlgError:
                break
            slope, step = float(gradient @ delta), 1.0
            for _ in range(_MAX_INTERCEPT_STEPS):
                further = shift + step * delta
                w = start.w.copy()
                w[-1] += further
                trial = self._new_point(w)
                np.add(start.margins, further, out=trial.margins)
                self._fill_losses(trial)
                trial_value = self.expected(trial, dual)
                if trial_value <= value + 1e-4 * step * slope or -slope <= 1e-14 * abs(value):
                    break
                step *= 0.5
            else:
                break
            left = lam @ trial.slopes
            if np.abs(left).max() >= size <= 1e-12:
                break
            current, shift, value, gradient = trial, further, trial_value, left
        # What is left of the derivative in the intercepts is for `intercept_slack` to judge.
        return current if np.abs(gradient).max() <= 1e-9 else None

    def _without_absent_classes(self, point: Any, lam: FloatArray) -> MemoryPoint:
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


# The derivatives of lam . l in a shift of all margins, and the scale of their rounding.
ShiftStatistics = Callable[[float], tuple[float, float, float]]


def best_shift(statistics: ShiftStatistics) -> float | None:
    """Root of the nondecreasing derivative in the shift: Newton inside a bracket."""
    low, high, shift = -np.inf, np.inf, 0.0
    reach = 1.0
    for _ in range(_MAX_INTERCEPT_STEPS):
        first, second, rounding = statistics(shift)
        if abs(first) <= 4e-16 * rounding < np.inf:
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


def shift_slack(statistics: ShiftStatistics, residual: float) -> float:
    """How far lam . l may fall below its value at no shift, whose derivative is that small.

    The minimum lies between two shifts at which the derivative has either sign for certain.
    """
    _, curvature, size = statistics(0.0)
    # The first try is as long as the margins' own rounding needs to show a change.
    reach = 4.0 * (residual + 1e-16 * size) / curvature if curvature > 0.0 else 1e-16
    for _ in range(_MAX_INTERCEPT_STEPS):
        if statistics(-reach)[0] <= -residual and statistics(reach)[0] >= residual:
            return residual * reach
        reach *= 16.0
    return np.inf


def softmax_curvature(
    y: NDArray[Any], slopes: FloatArray, density: FloatArray, omega: FloatArray, weighted: bool
) -> FloatArray:
    """sum_i omega_i q_i (diag(p_i) - p_i p_i^T), the Hessian in margins that all samples share."""
    weighed = np.empty_like(slopes)
    compiled_losses.weigh_softmax(y, slopes, 1.0, density, omega, weighted, weighed)
    # p = slopes + onehot(y). What the second part adds to the product is the sum over each class,
    # of which the part of the class itself stands on the diagonal as well.
    out = slopes.T @ weighed
    totals = np.zeros(slopes.shape[1])
    compiled_losses.add_other_classes(y, weighed, totals, out)
    return np.diag(totals) - out


def softmax_slack(hessian: FloatArray, residual: float) -> float:
    """The same for the intercepts of several classes, from the Hessian of lam . l in them."""
    # A class that is out of reach has neither slope nor curvature.
    present = np.diag(hessian) > 0.0
    if np.count_nonzero(present) < 2:
        # Either one class has all the weight, and log(1 / p) of it is left to gain with 1 - p the
        # residual, or samples are so far on the wrong side that their losses are linear.
        return 2.0 * residual if residual < _NO_SLOPE else np.inf
    # The least curvature but for the direction in which all intercepts grow alike.
    curvature = float(np.linalg.eigvalsh(hessian[np.ix_(present, present)])[1])
    # The minimum is at most about this far away, and up to there the curvature is much the same:
    # along t it changes by no more than a factor of exp(2 |t|).
    if not residual < _NEAR_MINIMUM * curvature:
        return np.inf
    return residual**2 / curvature


class _ActiveRows(Curvature):
    """The Hessian through the rows that have curvature: a risk of the tail gives most rows none."""

    def __init__(self, engine: MemoryEngine, point: Any, dual: Any, eta: float, caution: float):
        self._engine, self._made_from = engine, (point, dual, eta, caution)
        omega = (engine._omega, engine._weighted)
        n, n_blocks, block = engine.n_samples, dual.n_blocks, dual.block
        self._h = h = engine._take((n,))
        if n_blocks == 0 or eta == 0.0:
            n_blocks, block, eta = 0, engine._take((n,), np.int32), 0.0
            block.fill(-1)
        # Without blocks nothing pulls, and a long vector need not say so.
        pull: FloatArray = np.empty(n) if n_blocks else np.broadcast_to(0.0, (n,))
        totals = np.empty(n_blocks)
        engine._each(
            engine._loops.augmented_curvature, *engine._loss_args, point.margins, dual.density,
            block, eta, caution, *omega, h,
        )  # fmt: skip
        if n_blocks:
            engine._each(
                engine._loops.block_slopes, *engine._loss_args, point.margins, block, h, False,
                *omega, pull,
            )  # fmt: skip
            vectors.block_totals(block, h, False, *omega, totals)
        # Samples of weight 0 may form a block of their own.
        self._scale = eta / np.where(totals > 0.0, totals, np.inf)
        if not n_blocks:
            engine._give(block)
            block = np.broadcast_to(np.int32(-1), (n,))
        self._active, self._selection = (h, pull, block), None
        count = int(np.count_nonzero(h))
        if count <= WORTH_SELECTING * n:
            self._selection = engine._select(self._numbers)
        if self._selection is not None:
            rows = self._numbers
            self._active = h[rows], pull[rows], block[rows]
            self.share = count / n
        if engine.solves_by_rows and count <= MAX_ROWS:
            self.rows = count

    def __del__(self) -> None:
        self._engine._give(self._h)

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        point, dual, eta, caution = self._made_from
        return self._engine.hessian(point, dual, eta, n_rows, caution)

    @cached_property
    def _numbers(self) -> NDArray[np.intp]:
        """The rows that have curvature."""
        return np.flatnonzero(self._h)

    def product(self, v: FloatArray) -> FloatArray:
        if self._selection is None and not len(self._scale):
            return self._engine._gram_product(self._h, np.ascontiguousarray(v))
        change = self._rows_of(v)
        vectors.apply_curvature(*self._active, self._scale, change)
        return self._adjoint(change)

    def _rows_of(self, v: FloatArray) -> FloatArray:
        """The margins of v in the rows that products are taken with."""
        engine, selection = self._engine, self._selection
        v, change = np.ascontiguousarray(v), np.empty(len(self._active[0]))
        if selection is None:
            engine._margins(v, change)
        else:
            engine._margins_of(selection, v, change)
        return change

    def _adjoint(self, change: FloatArray) -> FloatArray:
        engine, selection = self._engine, self._selection
        return (
            engine._adjoint(change) if selection is None else engine._adjoint_of(selection, change)
        )

    def diagonal(self) -> FloatArray:
        return self._engine._gram_diagonal(self._h)

    def solve(self, gradient: FloatArray, l2: float) -> FloatArray:
        engine, rows, (h, pull, block) = self._engine, self._numbers, self._active
        every = self._selection is None
        if every:
            h, pull, block = h[rows], pull[rows], block[rows]
        d = engine.n_features
        if not len(rows):
            if engine.fit_intercept:
                raise np.linalg.LinAlgError("no row has curvature")
            return -gradient / l2
        modulus = np.zeros(engine.shape)
        modulus[:d] = l2
        system = RowSystem(engine._row_gram(rows), Weights(h, pull, block, self._scale), l2)

        def inverse(g: FloatArray) -> FloatArray:
            coef = g.copy()
            coef[d:] = 0.0
            image = self._rows_of(coef)
            derivative = float(g[d]) if engine.fit_intercept else None
            t, b = system.solve(image[rows] if every else image, derivative)
            back = t
            if every:
                back = np.zeros(engine.n_samples)
                back[rows] = t
            step = (self._adjoint(back) - g) / l2
            if engine.fit_intercept:
                step[d] = b
            return step

        step = inverse(gradient)
        # Where l2 is small against the rows, digits cancel: what is left over is solved for again.
        for _ in range(_REFINEMENTS if system.rounding > _SOLVED else 0):
            residual = self.product(step) + modulus * step + gradient
            left, whole = float(residual @ residual), float(gradient @ gradient)
            if left <= _SOLVED**2 * whole:
                break
            step += inverse(residual)
        return step

    def factor(self) -> FloatArray | None:
        engine, rows, stored = self._engine, self._numbers, self._engine.stored()
        if stored is None:
            return None
        X = stored[0] if len(rows) == engine.n_samples else stored[0][rows]
        A = np.ones((len(rows), engine.size))
        A[:, : engine.n_features] = X.toarray() if hasattr(X, "toarray") else X
        del X
        _, pull, block = self._active
        if self._selection is None:
            pull, block = pull[rows], block[rows]
        return Weights(self._h[rows], pull, block, self._scale).rooted(A)


class _SoftmaxRows(Curvature):
    """The Hessian of the multinomial loss, whose parabolas above it are not used for caution."""

    def __init__(self, engine: MemoryEngine, point: Any, dual: Any, eta: float):
        self._engine, self._point, self._dual = engine, point, dual
        self._n_blocks, block = dual.n_blocks, dual.block
        if dual.n_blocks == 0 or eta == 0.0:
            self._n_blocks, block, eta = 0, NO_BLOCKS, 0.0
        self._block, self._eta, self._selection = block, eta, None
        self._active = engine.y, point.slopes, dual.density, block
        self._omega = engine._omega
        rows = np.flatnonzero((dual.density != 0.0) | (block >= 0))
        if len(rows) <= WORTH_SELECTING * engine.n_samples:
            self._selection = engine._select(rows)
        if self._selection is not None:
            y, slopes, density, block = self._active
            self._active = y[rows], slopes[rows], density[rows], block[rows] if eta else block
            self._omega = engine._omega[rows] if engine._weighted else engine._omega
            self.share = len(rows) / engine.n_samples

    def matrix(self, n_rows: int | None = None) -> FloatArray:
        return self._engine.hessian(self._point, self._dual, self._eta, n_rows)

    def product(self, v: FloatArray) -> FloatArray:
        engine, selection, (_, slopes, _, block) = self._engine, self._selection, self._active
        v, means = np.ascontiguousarray(v), np.empty(self._n_blocks)
        # The pool is for arrays of one length; that of a selection changes from step to step.
        change = engine._take(slopes.shape) if selection is None else np.empty(slopes.shape)
        if selection is None:
            engine._margins(v, change)
        else:
            engine._margins_of(selection, v, change)
        omega = self._omega, engine._weighted
        if self._eta > 0.0:
            moved = np.einsum("ik,ik->i", slopes, change)
            vectors.block_means(block, moved, *omega, np.empty_like(means), means)
        compiled_losses.apply_softmax_curvature(*self._active, means, self._eta, *omega, change)
        if selection is not None:
            return engine._adjoint_of(selection, change)
        out = engine._adjoint(change)
        engine._give(change)
        return out

    def diagonal(self) -> FloatArray:
        engine = self._engine
        h = engine._take((engine.n_samples,))
        out = np.empty(engine.shape)
        for a in range(engine.n_outputs):
            engine._each(
                compiled_losses.softmax_pair_curvature, engine.y, self._point.slopes,
                self._dual.density, self._block, self._eta, engine._omega, engine._weighted, a, a,
                h,
            )  # fmt: skip
            out[:, a] = engine._gram_diagonal(h)
        engine._give(h)
        return out

    def preconditioner(self, modulus: FloatArray) -> Callable[[FloatArray], FloatArray]:
        return KroneckerPreconditioner(
            self._engine._row_spectrum, self._class_curvature(), float(modulus[0, 0])
        )

    def _class_curvature(self) -> FloatArray:
        """Sum over the samples of the curvature in the margins, without the means of blocks."""
        y, slopes, density, block = self._active
        omega = self._omega, self._engine._weighted
        out = softmax_curvature(y, slopes, density, *omega)
        if self._eta > 0.0:
            inside, change = (self._eta * (block >= 0)), np.empty_like(slopes)
            compiled_losses.weigh_softmax(y, slopes, 0.0, inside, *omega, change)
            out += change.T @ slopes
        return out
