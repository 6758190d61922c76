"""The engine for vectors of length n in this process's memory.

They are NumPy arrays, and the loops over them are compiled. Products with X are those of a
:class:`sorel.engines.matrix.RowMatrix`, dense, CSR or on disk.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel._core import PARAMETERS
from sorel._lib.copies import shallow_copy
from sorel._lib.floats import EPS
from sorel._lib.threads import Team, limit_blas, thread_count
from sorel.engines import base, vectorised
from sorel.engines.base import FloatArray
from sorel.engines.curvature import OneMargin, SeveralMargins, softmax_curvature
from sorel.engines.intercepts import InterceptStatistics
from sorel.engines.last_gram import LastGram
from sorel.engines.matrix import FEW_COLUMNS, WORTH_SHARING, RowMatrix
from sorel.engines.row_gram import RowGram
from sorel.engines.splitting import MemorySplitting
from sorel.engines.stochastic import SINGLE, MemoryStochastic
from sorel.files.fingerprints import fingerprint_array, fingerprint_matrix
from sorel.problem.losses import compiled_form
from sorel.problem.risks import Deviation, Risk
from sorel.projection import Derivative, Projector, WeightSet

# Samples from which on threads gain more than their start costs in loops over vectors; with
# exponentials a fifth of them is enough.
_MANY_SAMPLES = 100_000


class MemoryPoint(base.Point):
    """Margins and losses at one parameter vector; slopes are made when they are asked for."""

    __slots__ = ("_engine", "_slopes", "losses", "margins")

    def __init__(
        self, w: FloatArray, engine: MemoryEngine, margins: Any, losses: Any, slopes: Any = None
    ) -> None:
        self.w, self.margins, self.losses = w, margins, losses
        self._engine, self._slopes = engine, slopes

    @property
    def slopes(self) -> Any:
        """Derivatives of the losses in the margins."""
        if self._slopes is None:
            engine = self._engine
            self._slopes = np.empty(self.margins.shape)
            engine._each(engine._loops.slopes_at, *engine._loss_args, self.margins, self._slopes)
        return self._slopes


class MemoryDual(base.Dual):
    """A weighting as densities, with the derivative of the projection that made it."""

    __slots__ = ("density", "derivative")

    def __init__(self, density: FloatArray, derivative: Derivative | None = None) -> None:
        self.density, self.derivative = density, derivative


def _shared(function: Callable[[Any], Any]) -> Any:
    """A property of the data, found once for all the runs of an engine.

    Two runs may find it at the same time; both find the same.
    """
    name = function.__name__

    @wraps(function)
    def fact(engine: MemoryEngine) -> Any:
        if name not in engine._facts:
            engine._facts[name] = function(engine)
        return engine._facts[name]

    return property(fact)


def _sweep_rows(team: Team, weighted: bool, kernel: Any, *args: Any) -> Any:
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


# Parameters of the loops that have an entry for each sample.
_PER_ROW = frozenset(
    (
        "X", "y", "margins", "losses", "slopes", "density", "others", "previous", "target", "block",
        "direction", "new_margins", "change", "c", "h", "pull", "squares", "sampled", "factor",
    )
)  # fmt: skip


@cache
def _row_parameters(kernel: Any) -> tuple[tuple[int, ...], int | None]:
    """Positions of the parameters with an entry per row, and that of the sample weights."""
    names = PARAMETERS.get(kernel.__name__) or list(inspect.signature(kernel).parameters)
    rows = tuple(i for i, name in enumerate(names) if name in _PER_ROW)
    return rows, names.index("omega") if "omega" in names else None


def _fill(value: Any, change: FloatArray) -> None:
    change[...] = value


def _weighted_sum(losses: FloatArray, omega: FloatArray, weighted: bool) -> float:
    """sum_i omega_i l_i, added up in pairs."""
    if not weighted:
        return float(np.add.reduce(losses)) * float(omega[0])
    # Not a product of the linear algebra library: its sums depend on how busy the cores are.
    return float(np.add.reduce(omega * losses))


def _sum_distances(losses: FloatArray, mean: float, omega: FloatArray, weighted: bool) -> float:
    """sum_i omega_i |l_i - mean|."""
    with np.errstate(invalid="ignore"):
        distances = np.subtract(losses, mean)
    return _weighted_sum(np.abs(distances, out=distances), omega, weighted)


def _check_lengths(spec: base.Spec, n: int, n_outputs: int) -> None:
    """Refuse targets and weights that the loops, which trust the rows of X, would read beyond."""
    for name in ("targets", "sample_weight", "margin_offset"):
        values = getattr(spec, name)
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


class MemoryEngine(base.Engine):
    """Losses, weights and projections for margins in memory.

    Under a Deviation the weights of the losses are q - share, while the projection stays that of
    the risk: it does not see a number added to all losses.

    Shared by all runs: X, the spec, the weights of the risk, and facts about the data. A run has
    its own projector, which remembers orders, and its own last Gram matrix: see :meth:`for_run`.
    """

    # What runs one after another share.
    _handed_on: LastGram | None = None

    def __init__(self, rows: RowMatrix, spec: base.Spec) -> None:
        super().__init__(rows.n, rows.d, spec)
        _check_lengths(spec, self.n_samples, self.n_outputs)
        self._rows = rows
        # Arrays that came out of messages need not be aligned, which the loops insist on.
        kind = np.int64 if self.n_outputs > 1 else np.float64
        self.y, self.loss = np.require(spec.targets, kind, ["C", "A"]), spec.loss
        n, weight = self.n_samples, spec.sample_weight
        self._weighted = weight is not None
        self._omega = (
            np.full(1, 1.0 / n) if weight is None else np.require(weight, None, ["C", "A"])
        )
        self._facts: dict[str, Any] = {}
        self._compiled = compiled_form(spec.loss)
        self._loops: Any = _core
        self._loss_args: tuple[Any, float, Any] = (-1, 1.0, self.y)
        if self._compiled is not None:
            self._loss_args = (*self._compiled, self.y)
        elif self.n_outputs == 1:
            self._loops, self._loss_args = vectorised, (spec.loss, 1.0, self.y)
        # Exponentials of samples without weight may overflow: 0 times that is not 0. Their margins
        # stay at 0, which changes no result.
        self._unused = np.flatnonzero(self._omega == 0.0)
        self._margin_shape = (n,) if self.n_outputs == 1 else (n, self.n_outputs)
        self._use_risk()
        self._begin()

    def _use_risk(self) -> None:
        """Get the set of weightings of the risk."""
        self._offset = 0.0
        risk = given = self.spec.risk
        if isinstance(given, Deviation):
            risk, self._offset = given.risk, -float(given.share)
        self._projector = self._make_projector(risk)

    def _make_projector(self, risk: Risk) -> WeightSet:
        """The set of weightings of a risk: the place for one of your own."""
        return Projector(risk, self.n_samples, self.spec.sample_weight)

    def _begin(self) -> None:
        """Get the working memory and the threads of a run."""
        self._known_gram: RowGram | None = None
        self._last_gram = self._handed_on
        self.__dict__.pop("_sample_room", None)
        slow = self._compiled is None or self._compiled[0] == _core.LOSS_CODES["logistic"]
        many = self.n_samples >= (_MANY_SAMPLES // 5 if slow else _MANY_SAMPLES)
        # A small problem is not even worth the question how many threads there are.
        threads = 1
        if many or self._rows.entries >= WORTH_SHARING:
            threads = thread_count(self.spec.n_jobs)
        self._rows = self._rows.shared(threads)
        # Runs a loop on every range of rows, and returns the sum of what it returned. It does not
        # hold the engine, whose arrays would then wait for the garbage collector.
        self._each: Any = operator.call
        team = Team(self.n_samples, threads) if many and threads > 1 else None
        if team is not None:
            self._each = partial(_sweep_rows, team, self._weighted)
        self._projector.share(team)

    @cached_property
    def _sample_room(self) -> FloatArray:
        """Working memory for the weights of sampled rows and their factors."""
        return np.empty((2, self.n_samples))

    def _ones(self) -> FloatArray:
        ones = np.empty(self.n_samples)
        self._each(_fill, 1.0, ones)
        return ones

    def with_risk(self, risk: Risk) -> MemoryEngine:
        other = shallow_copy(self)
        other.spec = dataclasses.replace(self.spec, risk=risk)
        other._facts = {name: fact for name, fact in self._facts.items() if name != "_rank_mass"}
        other._use_risk()
        other._begin()
        return other

    def for_run(self, sequence: bool = False) -> MemoryEngine:
        other = shallow_copy(self)
        if sequence:
            other._handed_on = LastGram()
        other._projector = self._projector.fork()
        other._begin()
        return other

    def working(self) -> AbstractContextManager[Any]:
        # So few entries are not worth a call: the linear algebra library starts no threads then.
        few = self.size <= FEW_COLUMNS and self.n_samples * self.size <= _MANY_SAMPLES
        return nullcontext() if few else limit_blas()

    def fingerprint(self) -> dict[str, str]:
        weight = self.spec.sample_weight
        return {
            "data": fingerprint_matrix(self._rows.array),
            "targets": fingerprint_array(self.y),
            "sample weights": "none" if weight is None else fingerprint_array(weight),
        }

    @property
    def data_type(self) -> np.dtype[Any]:
        return np.dtype(self._rows.array.dtype)

    @property
    def entries(self) -> int:
        return self._rows.entries

    def stored(self) -> tuple[Any, Any] | None:
        rows = self._rows
        return (rows.array, self.y) if rows.in_memory and rows.form is not None else None

    @property
    def in_memory(self) -> bool:
        return self._rows.in_memory

    def column_scale(self) -> FloatArray | None:
        return self._column_scale

    @_shared
    def _column_scale(self) -> FloatArray:
        return self._rows.column_scale()

    # Points.

    def point(self, w: FloatArray) -> MemoryPoint:
        w = np.ascontiguousarray(w, dtype=np.float64)
        margins = self.direction(w)
        if self.spec.margin_offset is not None:
            margins += self.spec.margin_offset
            margins[self._unused] = 0.0
        return self._evaluated(w, margins)

    def direction(self, delta: FloatArray) -> NDArray[Any]:
        change = np.empty(self._margin_shape)
        if not np.count_nonzero(delta[: self.n_features]):
            # Where most runs start, and steps in the intercept alone: no product with X is needed.
            self._each(_fill, delta[-1] if self.fit_intercept else 0.0, change)
        else:
            self._rows.margins(np.ascontiguousarray(delta), change)
        if self._unused.size:
            change[self._unused] = 0.0
        return change

    def moved(self, point: Any, delta: FloatArray, direction: Any, step: float) -> MemoryPoint:
        w = point.w + step * delta
        if self.n_outputs > 1:
            return self._evaluated(w, point.margins + step * direction)
        margins, losses = np.empty(self.n_samples), np.empty(self.n_samples)
        self._each(
            self._loops.move_margins, point.margins, direction, step, *self._loss_args, margins,
            losses,
        )  # fmt: skip
        return MemoryPoint(w, self, margins, losses)

    def _evaluated(self, w: FloatArray, margins: Any) -> MemoryPoint:
        losses, slopes = np.empty(self.n_samples), None
        if self.n_outputs == 1:
            self._each(self._loops.losses_at, *self._loss_args, margins, losses)
        else:
            slopes = np.empty(self._margin_shape)
            self._each(self._loops.softmax_losses, self.y, margins, losses, slopes)
        return MemoryPoint(w, self, margins, losses, slopes)

    def losses(self, point: Any) -> FloatArray:
        losses = np.array(point.losses)
        if self._unused.size:
            margins = np.empty(self._margin_shape)
            self._rows.margins(point.w, margins)
            if self.spec.margin_offset is not None:
                margins += self.spec.margin_offset
            losses[self._unused] = self._evaluated(point.w, margins).losses[self._unused]
        return losses

    def sizes(self, point: Any) -> base.Sizes:
        losses, mean = point.losses, self._mean(point.losses)
        absolute = mean if self.loss.lower_bound >= 0.0 else self._mean(np.abs(losses))
        distance = self._each(_sum_distances, losses, mean, self._omega, self._weighted)
        return base.Sizes(mean, absolute, distance)

    def _mean(self, values: FloatArray) -> float:
        return float(self._each(_weighted_sum, values, self._omega, self._weighted))

    # Risks and weightings.

    def risk(self, point: Any) -> float:
        value = self._projector.value(point.losses)
        return value if self._offset == 0.0 else value + self._offset * self._mean(point.losses)

    def shortfall(self, point: Any, dual: Any) -> float:
        return self._projector.shortfall(point.losses, dual.density)

    def uniform(self) -> MemoryDual:
        return MemoryDual(self._ones())

    def worst_case(self, point: Any) -> MemoryDual:
        density = np.empty(self.n_samples)
        self._projector.worst_case(point.losses, density)
        return MemoryDual(density)

    def dual_step(
        self, center: Any, point: Any, eta: float, previous: Any = None, theta: float = 0.0
    ) -> MemoryDual:
        if eta == 0.0:
            return center
        if eta == np.inf:
            return self.worst_case(point)
        target, last = np.empty(self.n_samples), (point if previous is None else previous).losses
        self._each(_core.ascent_target, center.density, point.losses, last, eta, theta, target)
        return self._nearest(target)

    def _nearest(self, target: FloatArray) -> MemoryDual:
        """The weighting nearest to a vector of densities, which is overwritten."""
        return MemoryDual(*self._projector.nearest(target))

    def blend(self, dual: Any, other: Any, share: float) -> MemoryDual:
        return MemoryDual((1.0 - share) * dual.density + share * other.density)

    def _weighing(self, dual: Any) -> FloatArray:
        """The densities that weigh the losses: under a Deviation not those of the projection."""
        return dual.density if self._offset == 0.0 else dual.density + self._offset

    def expected(self, point: Any, dual: Any) -> float:
        return self._each(
            _core.weighted_sum, self._weighing(dual), point.losses, self._omega, self._weighted
        )

    def differences(
        self, dual: Any, other: Any, point: Any = None, other_point: Any = None
    ) -> base.Differences:
        omega = self._omega, self._weighted
        square = self._each(_core.weighted_square_distance, dual.density, other.density, *omega)
        if point is None or other_point is None:
            return base.Differences(square)
        move, change = dual.density - other.density, other_point.losses - point.losses
        losses = self._mean(change * change)
        return base.Differences(square, self._mean(np.multiply(move, change, out=move)), losses)

    def weights(self, dual: Any) -> FloatArray:
        return np.asarray(dual.density * self._omega)

    def nearest_dual(self, lam: FloatArray) -> tuple[MemoryDual, float]:
        lam = np.asarray(lam, dtype=np.float64)
        omega = np.broadcast_to(self._omega, lam.shape)
        density = np.divide(lam, omega, out=np.zeros(self.n_samples), where=omega > 0.0)
        dual = self._nearest(density)
        return dual, float(np.abs(self.weights(dual) - lam).sum())

    # Derivatives.

    def gradient(self, point: Any, dual: Any) -> FloatArray:
        c, density = np.empty(self._margin_shape), self._weighing(dual)
        omega = self._omega, self._weighted
        if self.n_outputs == 1:
            self._each(
                self._loops.weighted_slopes, *self._loss_args, point.margins, density, *omega, c
            )
        else:
            self._each(_core.weigh_softmax, self.y, point.slopes, 0.0, density, *omega, c)
        return self._rows.adjoint(c)

    def slope(self, point: Any, dual: Any, direction: Any) -> float:
        omega, density = (self._omega, self._weighted), self._weighing(dual)
        if self.n_outputs == 1:
            return self._each(
                self._loops.directional_slope, *self._loss_args, point.margins, density, direction,
                *omega,
            )  # fmt: skip
        moved = np.einsum("ik,ik->i", point.slopes, direction)
        return self._each(_core.weighted_sum, density, moved, *omega)

    def curvature(
        self, point: Any, dual: Any, eta: float = 0.0, damping: float = 0.0
    ) -> base.Curvature:
        if self.n_outputs > 1:
            return SeveralMargins(self, point, dual, eta)
        return OneMargin(self, point, dual, eta, damping)

    def intercept_statistics(self, point: Any, dual: Any, shift: Any) -> InterceptStatistics:
        if self.n_outputs == 1:
            first, second, rounding = self._each(
                self._loops.shift_statistics, *self._loss_args, point.margins, float(shift),
                dual.density, self._omega, self._weighted,
            )  # fmt: skip
            return InterceptStatistics(
                np.array([first]), np.array([[second]]), rounding, np.ones(1, np.bool_)
            )
        lam, slopes = self.weights(dual), point.slopes
        if np.any(shift):
            slopes = self._evaluated(point.w, point.margins + shift).slopes
        hessian = softmax_curvature(self.y, slopes, lam, np.ones(1), False)
        present = np.bincount(self.y, lam, self.n_outputs) > 0.0
        return InterceptStatistics(
            lam @ slopes, hessian, float(np.sum(lam @ np.abs(slopes))), present
        )

    # The certificate.

    def rounding(self, point: Any, dual: Any) -> base.RoundingFacts:
        loss = self.loss
        facts = base.RoundingFacts(self._mean(dual.density), self._weights_error(point))
        if loss.lower_bound > -np.inf and loss.curvature_bound < np.inf:
            return facts
        lam = self.weights(dual)
        if self._offset != 0.0:
            # The weights of a Deviation are no larger than the sum of both parts.
            lam = lam + abs(self._offset) * self._omega
        losses = np.abs(point.losses)
        if loss.affine:
            size, bound = float(np.add.reduce(lam * losses)), loss.lipschitz
            return base.RoundingFacts(*facts[:2], size, bound * float(np.sum(lam)), 0.0, bound, 0.0)
        slopes = np.abs(point.slopes)
        curvature = np.asarray(loss.curvature(self.y, point.margins))
        used = self._omega > 0.0 if self._weighted else slice(None)
        if loss.link == "log":
            # The formulas compare the margin with log y, whose error is as good as one of the loss.
            losses += slopes * np.abs(np.log(np.where(self.y > 0.0, self.y, 1.0)))
        sums = (float(np.add.reduce(lam * size)) for size in (losses, slopes, curvature))
        largest = (float(np.max(size[used])) for size in (slopes, curvature))
        return base.RoundingFacts(*facts[:2], *sums, *largest)

    def _weights_error(self, point: Any) -> float:
        if not self._weighted:
            return 0.0
        # Differences of the cumulative risk are off by rounding errors of 1 each, not of their own
        # size, which may be far less. Squares of losses may overflow where these do not.
        largest = float(np.max(np.abs(point.losses))) or 1.0
        scaled = self._each(_core.square_of_used, point.losses / largest, self._omega)
        return EPS * largest * math.sqrt(scaled)

    # Parts of the problem.

    def on_rows(self, rows: NDArray[np.intp]) -> base.Engine | None:
        classes = max(2, self.n_outputs)
        if self.loss.is_classifier and len(np.unique(self.y[rows])) < classes:
            return None
        weight = self.spec.sample_weight
        if weight is not None and not weight[rows].any():
            return None
        some = self._rows.select(rows)
        return None if some is None else MemoryEngine(some, self.spec.for_rows(rows))

    def columns(self, chosen: NDArray[np.intp]) -> base.Engine:
        other = self.for_run()
        other._handed_on = other._last_gram = None
        other._rows = self._rows.columns(chosen)
        other.n_features = other._rows.d
        other.shape = (other._rows.p, *self.shape[1:])
        other.size = other._rows.p * self.n_outputs
        # What is known of the data depends on the columns.
        other._facts = {}
        return other

    def _row_gram(self, rows: NDArray[np.intp]) -> FloatArray:
        """Inner products of some rows of X with each other; the caller may write to it."""
        if self._known_gram is None:
            self._known_gram = RowGram(self.n_samples, self._rows.inner_products)
        return self._known_gram.of(rows)

    # Optional operations.

    def obstacle(self, operation: str) -> str | None:
        loss = self.loss
        if operation in ("deviations", "margin_offset"):
            return None
        reason = super().obstacle(operation)
        if reason is not None:
            return reason
        nonnegative = ("splitting", "batches", "smoothness", "jacobian_bound", *SINGLE)
        if self._offset != 0.0 and operation in nonnegative:
            return "takes weights that are not negative, and a deviation has negative ones"
        if operation == "splitting" and self._compiled is None:
            return (
                "needs the proximal map of the risk in the margins, which is known for losses "
                f"of one residual or one labelled margin, and not for the {loss.name} loss"
            )
        if operation in ("smoothness", "jacobian_bound") and not loss.curvature_bound < math.inf:
            return f"needs a bound on the curvature, and the {loss.name} loss declares none"
        bounded = loss.lower_bound >= 0.0 or loss.lipschitz < math.inf
        if operation == "jacobian_bound" and not bounded:
            return f"needs bounded slopes, and the {loss.name} loss declares no such bound"
        # Losses with an offset have a log link, and those are not compiled: no other steps on rows.
        if operation == "batches" and self.spec.margin_offset is not None:
            return "takes margins X w alone, and the problem has an offset"
        if operation in (*SINGLE, "batches") and self._rows.form is None:
            return (
                "steps on single rows, and takes no sparse X less its means, as "
                "fit_intercept='mean' has it"
            )
        if operation in SINGLE and self._loops is vectorised:
            return (
                "steps on single samples in compiled loops, which do not have the formulas of the "
                f"{loss.name} loss"
            )
        return None

    def splitting(self) -> base.Splitting:
        reason = self.obstacle("splitting")
        if reason is not None:
            raise base.UnsupportedOperationError(f"splitting {reason}")
        return MemorySplitting(self)

    def stochastic(self) -> base.Stochastic:
        return MemoryStochastic(self)

    @_shared
    def _row_squares(self) -> FloatArray:
        """|x_i|^2, with the 1 of the intercept."""
        return self._rows.squares() + float(self.fit_intercept)

    @_shared
    def _targets(self) -> FloatArray:
        # One type for class indices and numbers: one compiled loop for both.
        return np.ascontiguousarray(self.y, dtype=np.float64)

    @_shared
    def _rank_mass(self) -> FloatArray:
        """sigma by rank as densities; only without sample weights do ranks alone determine it."""
        if self._weighted:
            raise base.UnsupportedOperationError("tables of ranked weights take no sample weights")
        return self.spec.risk.weights(self.n_samples) * self.n_samples
