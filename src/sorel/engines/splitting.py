"""Vectors of margins for methods that split X w from its losses, and the proximal map of the risk.

    prox(v) = argmin_z  sum_i sigma_i phi_[i](z) + rho/2 sum_i omega_i (z_i - v_i)^2

is found by pooling in the order of the losses at v (Xiao, Ge, Jiang and Yan 2023): see
src/core/margins.cpp. The inner product of vectors is that of the sample weights,
sum_i omega_i a_i b_i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sorel._core import pool_losses
from sorel.engines.base import Dual, FloatArray, Splitting

if TYPE_CHECKING:
    from sorel.engines.memory import MemoryEngine


class MemorySplitting(Splitting):
    """For margins in memory, one for each sample, and a loss of the compiled loops."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._code, self._delta, self._y = engine._loss_args
        n = engine.n_samples
        self._omega = np.broadcast_to(np.asarray(engine._omega, dtype=np.float64), (n,))
        # Samples without weight are nowhere in the order.
        self._used = self._omega > 0.0
        self._density = np.ones(n)

    def vector(self, w: FloatArray) -> Any:
        return self._engine.direction(w)

    def slopes(self, point: Any, dual: Any) -> Any:
        return point.slopes * dual.density

    def combine(self, *terms: tuple[float, Any]) -> Any:
        out = np.zeros(self._engine.n_samples)
        for factor, vector in terms:
            out += factor * vector
        return out

    def dot(self, a: Any, b: Any) -> float:
        return float(np.add.reduce(self._omega * a * b))

    def adjoint(self, s: Any) -> FloatArray:
        return self._engine._rows.adjoint(self._omega * s)

    def gram(self) -> FloatArray:
        return self._engine._rows.gram(np.array(self._omega))

    def prox(self, v: Any, rho: float) -> Any:
        loss: Any = self._engine.loss
        key = loss.proximal_number(self._y, v)
        worst = np.empty(len(key))
        self._engine._projector.worst_case(key, worst)
        order = np.lexsort((worst, key))
        order = order[self._used[order]]
        n = len(order)
        density, t, work = worst[order], np.empty(n), np.empty((4, n))
        pool_losses(
            self._code, self._delta, rho, key[order], density, self._omega[order],
            np.empty(n, np.int64), work, t,
        )  # fmt: skip
        self._density.fill(0.0)
        self._density[order] = density
        key[order] = t
        return loss.proximal_margin(self._y, key, v)

    def weighting(self) -> Dual:
        # In the dual set but for rounding.
        return self._engine._nearest(self._density.copy())
