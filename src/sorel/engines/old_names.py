"""Names of the contract before it was cut, for callers that still use them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sorel.engines import coordinate_descent, intercepts, rotated


class Settled(NamedTuple):
    dual: Any
    expected: float
    distance: float
    gradient: Any


class OldNames:
    solves_by_rows = products_are_cheap = property(lambda self: self.in_memory)
    preconditions_classes = property(lambda self: self.in_memory)
    serves_deviations = property(lambda self: self.obstacle("deviations") is None)

    def in_sequence(self):
        return self.for_run(sequence=True)

    def release(self):
        pass

    def is_finite(self, point):
        return bool(np.isfinite(self.sizes(point).absolute))

    def tried(self, point, delta, direction, step, center, eta):
        moved = self.moved(point, delta, direction, step)
        if not (self.spec.loss.curvature_bound < np.inf or self.is_finite(moved)):
            return moved, center, np.inf
        dual = self.dual_step(center, moved, eta)
        return moved, dual, self.slope(moved, dual, direction)

    def response(self, center, point, eta):
        return self.dual_step(center, point, eta)

    def settle(self, point, center, eta, dual=None):
        if dual is None:
            dual = self.dual_step(center, point, eta)
        distance = self.differences(dual, center).weights if eta > 0.0 else 0.0
        return Settled(dual, self.expected(point, dual), distance, self.gradient(point, dual))

    def ascend(self, dual, point, eta, previous=None, theta=0.0):
        return self.dual_step(dual, point, eta, previous, theta)

    def as_center(self, dual):
        return dual

    def square_distance(self, dual, other):
        return self.differences(dual, other).weights

    def secant(self, *args):
        return self.differences(*args)[:2]

    def hessian(self, point, dual, eta=0.0, n_rows=None, caution=0.0):
        return self.curvature(point, dual, eta, caution).matrix(n_rows)

    def intercept_slack(self, point, dual, residual):
        return intercepts.slack(self, point, dual, residual)

    def intercept_spread(self, point, dual, residual):
        return intercepts.spread(self.n_outputs, residual)

    def mass(self, dual):
        return self._mean(dual.density) if hasattr(self, "_mean") else 1.0

    def weights_rounding(self, point):
        return (
            self._weights_error(point)
            if hasattr(self, "_weights_error")
            else self.rounding(point, self.uniform()).weights
        )

    def largest_slope(self, point, error):
        facts = self.rounding(point, self.uniform())
        return facts.largest_slope + error * facts.largest_curvature

    def absolute_sums(self, point, dual):
        return self.rounding(point, dual)[2:5]

    def loss_scale(self, point):
        return self.sizes(point).deviation

    def mean_size(self, point):
        return self.sizes(point).absolute

    def mean_loss_at_zero(self):
        return self.mean_size(self.point(np.zeros(self.shape)))

    def effective_share(self):
        return self.spec.risk.effective_share(self.n_samples)

    def largest_jump(self):
        return self.spec.risk.largest_jump(self.n_samples)

    def offers(self, operation):
        if operation == "descend":
            return coordinate_descent.serves(self)
        return self.obstacle({"sample": "on_rows"}.get(operation, operation)) is None

    def sample(self, n_rows, rng):
        return self.on_rows(
            np.sort(rng.choice(self.n_samples, n_rows, replace=False, shuffle=False))
        )

    def turned(self):
        return rotated.rotate(self)

    def descend(self, *args):
        return coordinate_descent.descend(self, *args)

    def corrected(self, dual, change, center):
        from sorel.deviations import corrected

        return corrected(self, dual, change, center)
