"""An engine whose rows lie in three parts: every operation is a sum over the parts.

It shows what a home for the data must offer, in plain NumPy: a cluster or a device would do the
same where its parts are. Losses are gathered for the projection, which is the one operation that
needs all samples at once.
"""

from __future__ import annotations

import itertools

import numpy as np

from sorel.engines import Curvature, Dual, Engine, Point
from sorel.fingerprints import fingerprint_array
from sorel.permutahedron import Projector


class PartPoint(Point):
    """Margins, losses and slopes at w, a list with one array for each part."""

    def __init__(self, w, margins, losses, slopes):
        super().__init__(w)
        self.margins, self.losses, self.slopes = margins, losses, slopes


class PartDual(Dual):
    """Densities in one vector; `block` tells which samples a projection pooled."""

    def __init__(self, density, block=None, n_blocks=0):
        self.density, self.block, self.n_blocks = density, block, n_blocks


class PartitionedEngine(Engine):
    def __init__(self, X, spec, n_parts=3):
        super().__init__(*X.shape, spec)
        cuts = np.linspace(0, self.n_samples, n_parts + 1).astype(int)
        self.ranges = [slice(*cut) for cut in itertools.pairwise(cuts)]
        if spec.fit_intercept:
            X = np.column_stack([X, np.ones(len(X))])
        self.rows = [np.array(X[part], dtype=float) for part in self.ranges]
        self.targets = [spec.targets[part] for part in self.ranges]
        n = self.n_samples
        self.omega = np.full(n, 1 / n) if spec.sample_weight is None else spec.sample_weight
        # It remembers the order of the last projection, so every run has its own.
        self.projector = Projector(spec.risk, n, spec.sample_weight)

    def for_run(self):
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, projector=self.projector.fork())
        return other

    def fingerprint(self):
        return {
            "data": " ".join(fingerprint_array(rows) for rows in self.rows),
            "targets": fingerprint_array(self.spec.targets),
            "sample weights": fingerprint_array(self.omega),
        }

    # Points.

    def _evaluate(self, w, margins):
        loss = self.spec.loss
        losses = [loss.value(*pair) for pair in zip(self.targets, margins, strict=True)]
        slopes = [loss.derivative(*pair) for pair in zip(self.targets, margins, strict=True)]
        return PartPoint(w, margins, losses, slopes)

    def point(self, w):
        return self._evaluate(np.array(w), [rows @ w for rows in self.rows])

    def direction(self, delta):
        return [rows @ delta for rows in self.rows]

    def moved(self, point, delta, direction, step):
        pairs = zip(point.margins, direction, strict=True)
        return self._evaluate(point.w + step * delta, [z + step * move for z, move in pairs])

    def is_finite(self, point):
        return all(np.all(np.isfinite(losses)) for losses in point.losses)

    def losses(self, point):
        return np.concatenate(point.losses)

    # Risks and weightings.

    def risk(self, point):
        return self.projector.value(self.losses(point))

    def shortfall(self, point, dual):
        return self.projector.shortfall(self.losses(point), dual.density)

    def uniform(self):
        return PartDual(np.ones(self.n_samples))

    def worst_case(self, point):
        density = np.empty(self.n_samples)
        self.projector.worst_case(self.losses(point), density)
        return PartDual(density)

    def _project(self, target):
        block = np.empty(self.n_samples, np.int32)
        density = np.empty(self.n_samples)
        return PartDual(density, block, self.projector.project(target, density, block))

    def ascend(self, dual, point, eta, previous=None, theta=0.0):
        losses = self.losses(point)
        if previous is not None:
            losses = losses + theta * (losses - self.losses(previous))
        return self._project(dual.density + eta * losses)

    def blend(self, dual, other, share):
        return PartDual((1 - share) * dual.density + share * other.density)

    def weights(self, dual):
        return dual.density * self.omega

    def nearest_dual(self, lam):
        used = self.omega > 0
        dual = self._project(np.divide(lam, self.omega, out=np.zeros_like(lam), where=used))
        return dual, float(np.abs(self.weights(dual) - lam).sum())

    def expected(self, point, dual):
        return float(self.weights(dual) @ self.losses(point))

    def square_distance(self, dual, other):
        return float(self.omega @ (dual.density - other.density) ** 2)

    def secant(self, dual, other, point, other_point):
        move = self.omega * (dual.density - other.density)
        change = self.losses(point) - self.losses(other_point)
        return self.square_distance(dual, other), -float(move @ change)

    def effective_share(self):
        return self.projector.effective_share()

    def mean_size(self, point):
        return float(self.omega @ np.abs(self.losses(point)))

    def loss_scale(self, point):
        losses = self.losses(point)
        mean = float(self.omega @ losses)
        spread = float(self.omega @ np.abs(losses - mean))
        return max(spread if spread > 1e-3 * abs(mean) else abs(mean), 1e-300)

    # Derivatives: a margin has K entries for the multinomial loss, and one for all others.

    def gradient(self, point, dual):
        lam = self.weights(dual)
        return sum(
            rows.T @ (slopes.T * lam[part]).T
            for rows, slopes, part in zip(self.rows, point.slopes, self.ranges, strict=True)
        )

    def slope(self, point, dual, direction):
        lam = self.weights(dual)
        terms = zip(self.ranges, point.slopes, direction, strict=True)
        return float(sum(np.sum((s.T * lam[part]).T * move) for part, s, move in terms))

    def curvature(self, point, dual, eta=0.0, caution=0.0):
        return PartCurvature(self, point, dual, eta if dual.n_blocks else 0.0, caution)

    def hessian(self, point, dual, eta=0.0, n_rows=None, caution=0.0):
        curvature = self.curvature(point, dual, eta, caution)
        size = int(np.prod(self.shape))
        columns = [curvature.product(unit.reshape(self.shape)).ravel() for unit in np.eye(size)]
        return np.array(columns)

    def best_intercept(self, point, dual):
        """Newton's method in the intercept alone, from sums over the parts."""
        for _ in range(50):
            lam = self.weights(dual)[:, None]
            slopes = np.concatenate(point.slopes).reshape(self.n_samples, -1)
            first = (lam * slopes).sum(axis=0)
            if np.abs(first).max() <= 1e-15:
                break
            second = np.tensordot(lam[:, 0], self.second_derivatives(point, 0.0), 1)
            # One number added to all intercepts of a softmax changes nothing.
            step = -np.linalg.pinv(second, 1e-12) @ first
            if not np.abs(step).max() > 1e-15 * np.abs(point.w).max():
                break
            delta = np.zeros(self.shape)
            delta[-1] = step if self.n_outputs > 1 else step[0]
            moved = self.moved(point, delta, self.direction(delta), 1.0)
            if not self.expected(moved, dual) <= self.expected(point, dual) * (1 + 1e-14):
                break
            point = moved
        return point if np.abs(first).max() <= 1e-12 else None

    def second_derivatives(self, point, caution):
        """An array of shape (n, K, K)."""
        loss = self.spec.loss
        pairs = list(zip(self.targets, point.margins, strict=True))
        second = np.concatenate([loss.curvature(*pair) for pair in pairs])
        if self.n_outputs > 1:
            return second
        if caution > 0.0 and loss.curvature_bound < np.inf:
            second = second + caution * (loss.curvature_bound - second)
        return second[:, None, None]


class PartCurvature(Curvature):
    def __init__(self, engine, point, dual, eta, caution):
        self.engine, self.eta, self.dual = engine, eta, dual
        n, k = engine.n_samples, engine.n_outputs
        self.slopes = np.concatenate(point.slopes).reshape(n, k)
        self.second = (
            engine.second_derivatives(point, caution) * engine.weights(dual)[:, None, None]
        )
        self.inside = np.zeros(n) if eta == 0.0 else (dual.block >= 0) * engine.omega

    def product(self, v):
        engine, n = self.engine, self.engine.n_samples
        change = np.concatenate(engine.direction(v)).reshape(n, -1)
        moved = np.einsum("ijk,ik->ij", self.second, change)
        if self.eta > 0.0:
            # Inside a pooled block the weights move with the losses, less their mean.
            block, losses = self.dual.block, np.sum(self.slopes * change, axis=1)
            pooled = block >= 0
            count = self.dual.n_blocks
            totals = np.bincount(block[pooled], self.inside[pooled], count)
            sums = np.bincount(block[pooled], (self.inside * losses)[pooled], count)
            means = sums / np.where(totals > 0, totals, np.inf)
            losses = np.where(pooled, losses - means[block], 0.0)
            moved = moved + (self.eta * self.inside * losses)[:, None] * self.slopes
        parts = zip(engine.rows, engine.ranges, strict=True)
        return sum(rows.T @ moved[part] for rows, part in parts).reshape(engine.shape)

    def diagonal(self):
        engine = self.engine
        own = np.einsum("ijj->ij", self.second) + self.eta * self.inside[:, None] * self.slopes**2
        parts = zip(engine.rows, engine.ranges, strict=True)
        return sum((rows**2).T @ own[part] for rows, part in parts).reshape(engine.shape)
