"""Stochastic work on a matrix in memory whose rows can be read one at a time.

How rows are read is the business of the compiled loops, which take dense and sparse X alike. They
keep parameters by output, (K, p) in place of (p, K), and take a penalty as plain numbers; this
module translates. All samples of an epoch are drawn before its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import sorel._core as _core
from sorel._core import PURE_L2
from sorel.engines.base import Dual, FloatArray, Plan, Smoothness, Stochastic
from sorel.engines.batches import Batches

if TYPE_CHECKING:
    from sorel.engines.memory import MemoryEngine

IntArray = NDArray[np.int64]

# Share of the draws of an epoch that is uniform, so that no sample is left out.
UNIFORM_SHARE = 0.05

# The operations that step on single samples, in compiled loops.
SINGLE = ("epoch", "minibatch_epoch", "table", "table_dual", "prospect_epoch", "saddle_epoch")

# Operations after which a compiled loop is left for a moment, so that Ctrl-C and other signals are
# heard: about half a second.
_UNHEARD = 500_000_000


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


class MemoryStochastic(Stochastic):
    """Steps on single samples of an engine in memory."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine, self._rows = engine, engine._rows
        # How the compiled steps call the loss; several margins tell by their number.
        self._formula = engine._loss_args[:2]

    def smoothness(self, dual: Any = None) -> Smoothness:
        engine = self._engine
        squares, n = engine._row_squares, engine.n_samples
        top = float(squares.max())
        if dual is None:
            average = engine._projector.value(squares)
            component = n * engine._projector.heaviest * top
        else:
            weighed = engine.weights(dual) * squares
            average, component = float(weighed.sum()), n * float(weighed.max())
        curvature = engine.loss.curvature_bound
        return Smoothness(curvature * average, curvature * component, curvature * top)

    def jacobian_bound(self, value: float) -> float:
        loss, squares = self._engine.loss, self._engine._row_squares
        bound = loss.lipschitz**2 * self._engine._mean(squares)
        if loss.lower_bound >= 0.0:
            bound = min(bound, 2.0 * loss.curvature_bound * value * float(squares.max()))
        return bound

    def batches(self, n_blocks: int, rng: np.random.Generator) -> Batches:
        return Batches(self._engine, n_blocks, rng)

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
        engine, probability = self._engine, self._probabilities(dual, plan)
        W = self._by_output(point.w if start is None else start)
        sums = np.zeros(W.shape) if total is not None else W
        drift, rule = self._drift(plan, gradient), step_numbers(plan)
        left = (plan.burn_in if total is not None else plan.steps) * plan.batch
        for X, drawn in self._draws(probability, plan, rng):
            cut = min(left, len(drawn))
            left -= cut
            scale = dual.density[drawn] / probability[drawn]
            scale *= engine._omega[drawn] if engine._weighted else engine._omega
            # Rows that were gathered stand in the order of the steps, others where they are.
            places = drawn if X is self._rows.form else np.arange(len(drawn))
            slopes, targets = self._slopes(point, drawn, X), engine._targets
            targets = targets if X is self._rows.form else targets[drawn]
            for part, summed in ((slice(cut), False), (slice(cut, None), True)):
                _core.svrg_steps(
                    X, targets, *self._formula, slopes, scale[part], places[part], plan.batch, W,
                    sums, summed, drift, rule,
                )  # fmt: skip
        if total is not None:
            total += self._by_parameter(sums)
        return self._by_parameter(W)

    def _draws(self, probability: FloatArray, plan: Plan, rng: np.random.Generator) -> Any:
        """Samples in the order of the steps, and the X that they are rows of."""
        count = plan.steps * plan.batch
        if plan.sampling == "importance":
            yield self._rows.form, _systematic(probability, count, rng)
        else:
            yield self._rows.form, rng.integers(self._engine.n_samples, size=count)

    def _slopes(self, point: Any, drawn: IntArray, X: Any) -> FloatArray:
        """Derivatives of the losses at the snapshot, of shape (rows of X, outputs)."""
        slopes = point.slopes.reshape(self._engine.n_samples, -1)
        return np.asarray(slopes if X is self._rows.form else slopes[drawn])

    def _probabilities(self, dual: Any, plan: Plan) -> FloatArray:
        """The p_i of the plan."""
        if plan.sampling not in ("importance", "uniform"):
            raise ValueError(f"sampling must be 'uniform' or 'importance', got {plan.sampling!r}")
        engine, n = self._engine, self._engine.n_samples
        if plan.sampling == "uniform":
            return np.full(n, 1.0 / n)
        probability = engine.weights(dual) * engine._row_squares
        mass = float(probability.sum())
        # Without any gradient to speak of, all samples are alike.
        probability *= (1.0 - UNIFORM_SHARE) / mass if mass > 0 else 0.0
        probability += (UNIFORM_SHARE if mass > 0 else 1.0) / n
        return probability

    def minibatch_epoch(self, w: FloatArray, plan: Plan, rng: np.random.Generator) -> FloatArray:
        engine, W = self._engine, self._by_output(w)
        sigma = engine.spec.risk.weights(plan.batch)
        drift, rule = self._drift(plan, np.zeros(engine.shape)), step_numbers(plan)
        for X, targets, drawn in self._shuffled(plan, rng):
            for part in self._pieces(len(drawn), plan.batch):
                _core.minibatch_steps(
                    X, targets, *self._formula, sigma, drawn[part], W, drift, rule
                )
        return self._by_parameter(W)

    def _shuffled(self, plan: Plan, rng: np.random.Generator) -> Any:
        """X, targets and samples of which consecutive ones make batches."""
        engine, count = self._engine, plan.steps * plan.batch
        if engine._weighted:
            drawn = _systematic(engine._omega, count, rng)
        else:
            rounds = -(-count // engine.n_samples)
            shuffled = [rng.permutation(engine.n_samples) for _ in range(rounds)]
            drawn = np.concatenate(shuffled)[:count]
        yield self._rows.form, engine._targets, drawn

    def _pieces(self, count: int, batch: int, table: int = 0) -> list[slice]:
        """Ranges of draws, whole batches each, that take no longer than anybody waits.

        `table` is the work of a step on tables of all samples.
        """
        engine = self._engine
        entries = -(-engine.entries // engine.n_samples)
        # An entry of a sparse row brings a coefficient up to date; a proximal map may touch all.
        work = 20 * engine.n_outputs * (1 + entries) + 3 * engine.size + table // batch
        height = max(1, _UNHEARD // (work * batch)) * batch
        return [slice(start, min(start + height, count)) for start in range(0, count, height)]

    # Tables.

    def table(self, point: Any, dual: Any) -> _Table:
        engine, n = self._engine, self._engine.n_samples
        slopes = point.slopes.reshape(n, -1) * dual.density[:, None]
        return _Table(
            losses=point.losses.copy(),
            density=dual.density.copy(),
            slopes=slopes,
            mean=self._by_output(engine.gradient(point, dual)),
            key=np.empty(n),
            order=np.arange(n),
            position=np.arange(n),
            pools=np.empty((3, n)),
            bounds=np.empty(n, np.int64),
        )

    def table_dual(self, table: _Table) -> Dual:
        density, engine = np.empty(self._engine.n_samples), self._engine
        if table.nu == 0.0:
            density[table.order] = engine._rank_mass
        else:
            density[table.order] = table.density if table.projected else table.key
        return engine._nearest(density)

    def prospect_epoch(
        self, table: _Table, w: FloatArray, plan: Plan, nu: float, rng: np.random.Generator
    ) -> FloatArray:
        if table.nu != nu:
            self._sort(table, table.losses / nu if nu > 0 else table.losses)
            table.nu = nu
        return self._table_epoch(_core.prospect_steps, table, w, plan, rng, nu)

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
        return self._table_epoch(
            _core.saddle_saga_steps, table, w, plan, rng, nu, dual_step, table.losses, table.density
        )

    def _table_epoch(
        self,
        loop: Callable[..., None],
        table: _Table,
        w: FloatArray,
        plan: Plan,
        rng: np.random.Generator,
        *settings: Any,
    ) -> FloatArray:
        """An epoch of a compiled loop on tables, with gradients and losses of random samples."""
        engine, W = self._engine, self._by_output(w)
        rows, probes = rng.integers(engine.n_samples, size=(2, plan.steps * plan.batch))
        ranked = (
            table.key, table.order, table.position, engine._rank_mass, table.pools, table.bounds
        )  # fmt: skip
        for part in self._pieces(len(rows), plan.batch, 10 * engine.n_samples):
            loop(
                self._rows.form, engine._targets, *self._formula, rows[part], probes[part],
                plan.batch, table.slopes, table.mean, ranked, *settings, W, step_numbers(plan),
            )  # fmt: skip
            # A divergence ends the epoch.
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
        return np.array(w.reshape(self._engine.shape[0], -1).T, order="C")

    def _by_parameter(self, W: FloatArray) -> FloatArray:
        return np.ascontiguousarray(W.T).reshape(self._engine.shape)

    def _drift(self, plan: Plan, gradient: FloatArray) -> FloatArray:
        """What every step adds: minus its share of the gradient, plus the pull of the centre."""
        _, step, _, free_step, *_ = step_numbers(plan)
        steps = np.full((1, self._engine.shape[0]), step)
        if self._engine.fit_intercept:
            steps[0, -1] = free_step
        drift = -steps * self._by_output(gradient)
        if plan.center is not None:
            drift += steps / plan.tau * self._by_output(plan.center)
        return drift


def _systematic(probability: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draws that follow the probabilities as closely as whole numbers can, shuffled."""
    indices = systematic_sample(probability, count, rng.random())
    rng.shuffle(indices)
    return indices


def systematic_sample(probability: FloatArray, count: int, offset: float) -> IntArray:
    """`count` draws in order of position, of which item i gets count * p_i, rounded up or down."""
    indices = np.empty(count, np.int64)
    _core.systematic_sample(probability, count, offset, indices)
    return indices


def step_numbers(plan: Plan) -> tuple[Any, ...]:
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
    return (shrink, scale, free_shrink, free_scale, not smooth, scale, *penalty)
