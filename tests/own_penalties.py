"""Penalties that are not the package's own: one from the page on extending, and some others."""

import numpy as np
from helpers import run_page

from sorel.penalties import ElasticNet, Penalty

GroupLasso = run_page("penalty")["GroupLasso"]


class OwnElasticNet(Penalty):
    """The elastic net once more, from its textbook formulas."""

    def __init__(self, l2, l1):
        self.l2, self.l1 = l2, l1

    def value(self, w):
        return 0.5 * self.l2 * np.sum(np.square(w)) + self.l1 * np.sum(np.abs(w))

    def prox(self, v, step):
        left = np.maximum(np.abs(v) - step * self.l1, 0.0)
        return np.sign(v) * left / (1.0 + step * self.l2)

    def conjugate(self, v):
        return np.sum(np.maximum(np.abs(v) - self.l1, 0.0) ** 2) / (2.0 * self.l2)


class Ball(Penalty):
    """Coefficients of length at most 1, and no curvature."""

    l2, compact = 0.0, True

    def value(self, w):
        return 0.0 if np.linalg.norm(w) <= 1.0 + 1e-12 else np.inf

    def prox(self, v, step):
        return np.asarray(v) / max(1.0, np.linalg.norm(v))

    def conjugate(self, v):
        return np.linalg.norm(v)


class Pseudohuber(Penalty):
    """A smooth penalty that is not a square: l2/2 w^2 + sqrt(1 + w^2) - 1, summed."""

    smooth = separable = True

    def __init__(self, l2):
        self.l2 = l2

    def value(self, w):
        return np.sum(0.5 * self.l2 * np.square(w) + np.sqrt(1.0 + np.square(w)) - 1.0)

    def gradient(self, w):
        return self.l2 * w + w / np.sqrt(1.0 + np.square(w))

    def _solve(self, slope, v):
        """u with slope u + u / sqrt(1 + u^2) = v, by Newton's steps, which never go beyond it."""
        u = np.asarray(v, dtype=float) / (slope + 1.0)
        for _ in range(20):
            excess = slope * u + u / np.sqrt(1.0 + u * u) - v
            u = u - excess / (slope + (1.0 + u * u) ** -1.5)
        return u

    def prox(self, v, step):
        return self._solve(self.l2 + 1.0 / step, np.asarray(v, dtype=float) / step)

    def conjugate(self, v):
        u = self._solve(self.l2, v)
        return np.vdot(v, u) - self.value(u)


class Doubled(ElasticNet):
    """Twice an elastic net, by way of its formulas: no elastic net of the same l2 and l1."""

    def value(self, w):
        return 2.0 * super().value(w)

    def prox(self, v, step):
        return super().prox(v, 2.0 * step)

    def conjugate(self, v):
        return 2.0 * super().conjugate(np.asarray(v) / 2.0)
