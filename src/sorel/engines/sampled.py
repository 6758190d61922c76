"""Stochastic work on a matrix in memory whose rows can be read one at a time.

How rows are read is the business of the compiled loops, of which dense and sparse X have a set
each, with the same arguments after the first. They keep parameters by output, (K, p) in place of
(p, K), and take a penalty as plain numbers; this module translates. All samples of an epoch are
drawn before its first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sorel.engines import vectorised
from sorel.engines.base import (
    Descent,
    Dual,
    FloatArray,
    Plan,
    Smoothness,
    UnsupportedOperationError,
)
from sorel.engines.memory import MemoryEngine, shared_property
from sorel.kernels import steps, vectors
from sorel.losses import Squared
from sorel.penalties import PURE_L2, Kernel

IntArray = NDArray[np.int64]

# Share of the importance-sampling probabilities that is uniform, so that no row is forgotten.
UNIFORM_SHARE = 0.05

# Operations that need a bound, and those that step on single samples.
_BOUNDS = ("smoothness", "jacobian_bound")
_SINGLE = ("epoch", "minibatch_epoch", "table", "prospect_epoch", "saddle_epoch")


# Operations after which a compiled loop is left for a moment, so that Ctrl-C and other signals are
# heard: about half a second. And those that a step of a method with a table takes for each sample.
_UNHEARD = 500_000_000
_TABLE_WORK = 10


class Steps(NamedTuple):
    """The compiled loops for one kind of X, which is their first argument."""

    svrg: Callable[..., None]
    minibatch: Callable[..., None]
    prospect: Callable[..., None]
    saddle_saga: Callable[..., None]


class ScaledColumns(NamedTuple):
    """X with its rows times some vector, by columns.

    Attributes
    ----------
    loop : callable
        Coordinate descent for this kind of X.
    arrays : tuple of array
        X as its first arguments.
    squares, means : array
        The square of each column, and its product with that vector.
    """

    loop: Callable[..., tuple[float, float, int]]
    arrays: tuple[NDArray[Any], ...]
    squares: FloatArray
    means: FloatArray


@dataclass
class _Table:
    """Losses, weighted derivatives q_i phi'_i and their mean gradient, with the order of the keys.

    ``order[r]`` is the sample at rank r and ``position`` its inverse. For Prospect `key` holds the
    sorted losses, over nu where nu > 0; for SAGA the targets of the last projection, by whose order
    `losses` and `density` then stand (``projected``).
    """

    losses: FloatArray
    density: FloatArray
    slopes: FloatArray
    mean: FloatArray
    key: FloatArray
    order: IntArray
    position: IntArray
    pools: FloatArray
    bounds: IntArray
    nu: float = -1.0
    projected: bool = False


class SampledEngine(MemoryEngine):
    """Single-sample operations; a subclass holds X in ``_X``, in the form that its loops read."""

    _X: Any
    _steps: ClassVar[Steps] = Steps(
        steps.svrg_steps,
        steps.minibatch_steps,
        steps.prospect_steps,
        steps.saddle_saga_steps,
    )

    def _with_columns(self, X: Any, form: Any) -> Any:
        """A run of its own on a matrix with some of the columns, in the form that loops read.

        A Hessian asks a point for its margins and slopes alone, whichever columns made them.
        """
        other = self.for_run()
        assert isinstance(other, SampledEngine)
        other._handed_on = other._last_gram = None
        other._matrix, other._X, other.n_features = X, form, X.shape[1]
        rows = other.n_features + int(self.fit_intercept)
        other.shape = (rows, *self.shape[1:])
        other.size = rows * self.n_outputs
        # All else that is known of the data depends on the columns.
        other._facts = {"_mean_loss_at_zero": self._mean_loss_at_zero}
        other._share_rows()
        return other

    def descend(
        self, point: Any, dual: Any, w: FloatArray, penalty: Kernel, sweeps: int, goal: float
    ) -> Descent:
        root = np.sqrt(self.weights(dual))
        residual = root * point.slopes
        new, shift = w.copy(), 0.0
        coef = new[: self.n_features]
        loop, arrays, squares, means = self._scaled_columns(root)
        if self.fit_intercept:
            shift = -float(root @ residual)
            residual += shift * root
            squares -= means**2
            new[-1] += shift
        else:
            means = np.zeros_like(means)
        _, l2, l1, lower, upper = penalty
        moved, left, taken = loop(
            *arrays, means, np.maximum(squares, 0.0), residual, coef, l1, l2, lower, upper, sweeps,
            goal, 0.0,
        )  # fmt: skip
        if self.fit_intercept:
            new[-1] += moved
        return Descent(new, left, taken)

    def _scaled_columns(self, root: FloatArray) -> ScaledColumns:
        """X with its rows times `root`, for coordinate descent."""
        raise NotImplementedError

    def _row_work(self, plan: Plan) -> int:
        """Operations of a step on one row, roughly; a proximal map touches all coefficients."""
        return 3 * self.size

    def _squared_rows(self) -> FloatArray:
        """|x_i|^2 without the intercept."""
        return np.asarray(np.einsum("ij,ij->i", self._X, self._X, dtype=np.float64))

    @shared_property
    def _row_squares(self) -> FloatArray:
        """|x_i|^2, with the 1 of the intercept."""
        squares = self._squared_rows()
        return squares + 1.0 if self.fit_intercept else squares

    @property
    def _formula(self) -> tuple[int, float]:
        """How the compiled steps call the loss; several margins tell by their number."""
        return self._loss_args[:2]

    @shared_property
    def _top_square(self) -> float:
        return float(self._row_squares.max())

    @shared_property
    def _targets(self) -> FloatArray:
        # One type for class indices and numbers: one compiled loop for both.
        return np.ascontiguousarray(self.y, dtype=np.float64)

    @shared_property
    def _rank_mass(self) -> FloatArray:
        """sigma by rank as densities; only without sample weights do ranks alone settle it."""
        if self._weighted:
            raise UnsupportedOperationError("tables of ranked weights take no sample weights")
        return self.spec.risk.weights(self.n_samples) * self.n_samples

    def obstacle(self, operation: str) -> str | None:
        reason = super().obstacle(operation)
        if reason is not None:
            return reason
        loss = self.loss
        if operation == "descend" and type(loss) is not Squared:
            return f"needs the squared loss, and not {loss.name}"
        if operation in _BOUNDS and not loss.curvature_bound < math.inf:
            return f"needs a bound on the curvature, and the {loss.name} loss declares none"
        if operation == "jacobian_bound" and not self._bounds_slopes:
            return f"needs bounded slopes, and the {loss.name} loss declares no such bound"
        if operation in (*_SINGLE, *_BOUNDS) and self._offset != 0.0:
            return "takes weights that are not negative, and a deviation has negative ones"
        if operation in _SINGLE and self._loops is vectorised:
            return (
                "steps on single samples in compiled loops, which do not have the formulas of the "
                f"{loss.name} loss"
            )
        return None

    @property
    def _bounds_slopes(self) -> bool:
        """Whether a slope is bounded, by a constant or by the loss itself."""
        return self.loss.lower_bound >= 0.0 or self.loss.lipschitz < math.inf

    def smoothness(self, dual: Any = None) -> Smoothness:
        squares, n = self._row_squares, self.n_samples
        if dual is None:
            average = self._projector.value(squares)
            # The largest density falls to a sample of the least weight, at the top of the order.
            omega = 1.0 / n if self.spec.sample_weight is None else self.spec.sample_weight
            used = np.asarray(omega)[np.asarray(omega) > 0]
            heaviest = float(np.max(n * self.spec.risk.tail(used)))
            component = heaviest * self._top_square
        else:
            average, peak = self._weighted_peak(dual)
            component = n * peak
        curvature = self.loss.curvature_bound
        return Smoothness(curvature * average, curvature * component, curvature * self._top_square)

    def jacobian_bound(self, value: float) -> float:
        squares, omega = self._row_squares, self.spec.sample_weight
        mean = float(squares.mean()) if omega is None else float(omega @ squares)
        bound = self.loss.lipschitz**2 * mean
        if self.loss.lower_bound >= 0.0:
            bound = min(bound, 2.0 * self.loss.curvature_bound * value * float(squares.max()))
        return bound

    # Variance-reduced epochs and mini-batches.

    def epoch(
        self,
        point: Any,
        dual: Any,
        gradient: FloatArray,
        plan: Plan,
        rng: np.random.Generator,
        start: FloatArray | None = None,
        total: FloatArray | None = None,
    ) -> FloatArray:
        indices, scale = self._draw(dual, plan, rng)
        W = self._by_output(point.w if start is None else start)
        numbers = step_numbers(plan, self._drift(plan, gradient))
        cut = len(indices)
        if total is not None:
            cut = min(plan.burn_in * plan.batch, cut)
        if cut > 0:
            self._take_steps(point, indices[:cut], scale[:cut], plan.batch, W, None, numbers)
        if total is not None:
            sums = np.zeros(W.shape)
            self._take_steps(point, indices[cut:], scale[cut:], plan.batch, W, sums, numbers)
            total += self._by_parameter(sums)
        return self._by_parameter(W)

    def _draw(self, dual: Any, plan: Plan, rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        """The samples of an epoch in the order of its steps, and lam_i / p_i of each."""
        count = plan.steps * plan.batch
        probability = self._probabilities(dual, plan)
        if plan.sampling == "importance":
            indices = _systematic(probability, count, rng)
        else:
            indices = rng.integers(self.n_samples, size=count)
        scale = self._scales(dual, probability, indices)
        self._give(probability)
        return indices, scale

    def _probabilities(self, dual: Any, plan: Plan) -> FloatArray:
        """The p_i of the plan, in an array of the pool."""
        if plan.sampling not in ("importance", "uniform"):
            raise ValueError(f"sampling must be 'uniform' or 'importance', got {plan.sampling!r}")
        n = self.n_samples
        probability = self._take((n,))
        if plan.sampling == "uniform":
            probability.fill(1.0 / n)
            return probability
        self._weigh_squares(dual, probability)
        mass = float(probability.sum())
        # Without any gradient to speak of, all samples are alike.
        probability *= (1.0 - UNIFORM_SHARE) / mass if mass > 0 else 0.0
        probability += (UNIFORM_SHARE if mass > 0 else 1.0) / n
        return probability

    def _weigh_squares(self, dual: Any, out: FloatArray) -> None:
        """out = lam_i |x_i|^2."""
        np.multiply(dual.density, self._row_squares, out=out)
        out *= self._omega

    def _scales(self, dual: Any, probability: FloatArray, indices: IntArray) -> FloatArray:
        """lam_i / p_i of every draw."""
        scale = np.asarray(dual.density[indices] / probability[indices])
        scale *= self._omega[indices] if self._weighted else self._omega
        return scale

    def _weighted_peak(self, dual: Any) -> tuple[float, float]:
        """Sum and largest of lam_i |x_i|^2."""
        weighed = self._take((self.n_samples,))
        self._weigh_squares(dual, weighed)
        found = float(weighed.sum()), float(weighed.max())
        self._give(weighed)
        return found

    def _take_steps(
        self,
        point: Any,
        indices: IntArray,
        scale: FloatArray,
        batch: int,
        W: FloatArray,
        sums: FloatArray | None,
        numbers: tuple[Any, ...],
    ) -> None:
        """Variance-reduced steps on W, whose iterates are added to `sums`."""
        summed = sums is not None
        self._steps.svrg(
            self._X, self._targets, *self._formula,
            point.slopes.reshape(self.n_samples, -1), scale, indices, batch, W,
            sums if summed else W, summed, *numbers,
        )  # fmt: skip

    def minibatch_epoch(self, w: FloatArray, plan: Plan, rng: np.random.Generator) -> FloatArray:
        count = plan.steps * plan.batch
        if self._weighted:
            indices = _systematic(self._omega, count, rng)
        else:
            rounds = -(-count // self.n_samples)
            shuffled = [rng.permutation(self.n_samples) for _ in range(rounds)]
            indices = np.concatenate(shuffled)[:count]
        W = self._by_output(w)
        sigma = self.spec.risk.weights(plan.batch)
        numbers = step_numbers(plan, self._drift(plan, np.zeros(self.shape)))
        for start, stop in _pieces(count, plan.batch, self._row_work(plan)):
            self._steps.minibatch(
                self._X, self._targets, *self._formula, sigma, indices[start:stop], W, *numbers
            )
        return self._by_parameter(W)

    # Tables.

    def table(self, point: Any, dual: Any) -> _Table:
        n = self.n_samples
        slopes = point.slopes.reshape(n, -1) * dual.density[:, None]
        return _Table(
            losses=point.losses.copy(),
            density=dual.density.copy(),
            slopes=slopes,
            mean=self._by_output(self.gradient(point, dual)),
            key=np.empty(n),
            order=np.arange(n),
            position=np.arange(n),
            pools=np.empty((3, n)),
            bounds=np.empty(n, np.int64),
        )

    def table_dual(self, table: _Table) -> Dual:
        dual = self._new_dual()
        if table.nu == 0.0:
            dual.density[table.order] = self._rank_mass
            return dual
        dual.density[table.order] = table.density if table.projected else table.key
        self._project(dual)
        return dual

    def prospect_epoch(
        self, table: _Table, w: FloatArray, plan: Plan, nu: float, rng: np.random.Generator
    ) -> FloatArray:
        if table.nu != nu:
            self._sort(table, table.losses / nu if nu > 0 else table.losses)
            table.nu = nu
        rows, probes = rng.integers(self.n_samples, size=(2, plan.steps * plan.batch))
        W = self._by_output(w)
        numbers = step_numbers(plan)
        work = self._row_work(plan) + _TABLE_WORK * self.n_samples // plan.batch
        for start, stop in _pieces(len(rows), plan.batch, work):
            self._steps.prospect(
                self._X, self._targets, *self._formula, rows[start:stop], probes[start:stop],
                plan.batch, table.slopes, table.mean, table.key, table.order, table.position,
                self._rank_mass, nu, table.pools, table.bounds, W, *numbers,
            )  # fmt: skip
        return self._by_parameter(W)

    def saddle_epoch(
        self,
        table: _Table,
        w: FloatArray,
        plan: Plan,
        dual_step: float,
        nu: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        if not table.projected:
            self._sort(table, table.density + dual_step * table.losses)
            table.losses, table.density = table.losses[table.order], table.density[table.order]
            table.projected = True
        rows, probes = rng.integers(self.n_samples, size=(2, plan.steps * plan.batch))
        W = self._by_output(w)
        numbers = step_numbers(plan)
        work = self._row_work(plan) + _TABLE_WORK * self.n_samples // plan.batch
        for start, stop in _pieces(len(rows), plan.batch, work):
            self._steps.saddle_saga(
                self._X, self._targets, *self._formula, rows[start:stop], probes[start:stop],
                plan.batch, table.slopes, table.mean, table.losses, table.density, table.key,
                table.order, table.position, self._rank_mass, nu, dual_step, table.pools,
                table.bounds, W, *numbers,
            )  # fmt: skip
            if not np.all(np.isfinite(table.key)):
                break
        return self._by_parameter(W)

    @staticmethod
    def _sort(table: _Table, values: FloatArray) -> None:
        table.order[:] = np.argsort(values, kind="stable")
        table.key[:] = values[table.order]
        table.position[table.order] = np.arange(len(values))

    # Translation.

    def _by_output(self, w: FloatArray) -> FloatArray:
        return np.array(w.reshape(self.shape[0], -1).T, order="C")

    def _by_parameter(self, W: FloatArray) -> FloatArray:
        return np.ascontiguousarray(W.T).reshape(self.shape)

    def _drift(self, plan: Plan, gradient: FloatArray) -> FloatArray:
        """What every step adds: minus its share of the gradient, plus the pull of the centre."""
        _, step, _, free_step, *_ = step_numbers(plan)
        steps = np.full((1, self.shape[0]), step)
        if self.fit_intercept:
            steps[0, -1] = free_step
        drift = -steps * self._by_output(gradient)
        if plan.center is not None:
            drift += steps / plan.tau * self._by_output(plan.center)
        return drift


def _pieces(count: int, batch: int, work: int) -> list[tuple[int, int]]:
    """Ranges of draws, whole batches each, that take no longer than anybody waits for an answer.

    Parameters
    ----------
    count, batch : int
        Draws in all, and in a step.
    work : int
        Operations for one draw.
    """
    height = max(1, _UNHEARD // (work * batch)) * batch
    return [(start, min(start + height, count)) for start in range(0, count, height)]


def _systematic(probability: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draws that follow the probabilities as closely as whole numbers can, shuffled."""
    indices = systematic_sample(probability, count, rng.random())
    rng.shuffle(indices)
    return indices


def systematic_sample(probability: FloatArray, count: int, offset: float) -> IntArray:
    """`count` draws in order of position, of which item i gets count * p_i, rounded up or down."""
    indices = np.empty(count, np.int64)
    vectors.systematic_sample(probability, count, offset, indices)
    return indices


def step_numbers(plan: Plan, drift: FloatArray | None = None) -> tuple[Any, ...]:
    """The numbers behind one step: w <- prox(shrink w + drift - step * direction).

    A quadratic penalty and a centre are linear in the step, explicit or implicit, and need no
    proximal map of their own. With another penalty the centre alone is folded in, which also
    shortens the step of the map that remains.
    """
    penalty, step = plan.penalty, plan.step
    pull = step / plan.tau if plan.center is not None else 0.0
    smooth = penalty.code == PURE_L2
    if not plan.proximal and not smooth:
        raise ValueError("plain gradient steps need a smooth penalty: set proximal=True")
    weight = step * penalty.l2 if smooth else 0.0
    if plan.proximal:
        shrink, free_shrink = 1.0 / (1.0 + pull + weight), 1.0 / (1.0 + pull)
        scale, free_scale = step * shrink, step * free_shrink
    else:
        shrink, free_shrink = 1.0 - pull - weight, 1.0 - pull
        scale = free_scale = step
    head = () if drift is None else (drift,)
    return (*head, shrink, scale, free_shrink, free_scale, not smooth, scale, *penalty)
