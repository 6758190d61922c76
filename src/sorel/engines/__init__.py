"""Homes of the data: one engine for each."""

from __future__ import annotations

from typing import Any

import scipy.sparse
from numpy.typing import NDArray

from sorel.engines.base import Dual, Engine, FloatArray, Point
from sorel.engines.blocks import BlocksEngine
from sorel.engines.dense import DenseEngine
from sorel.engines.sparse import SparseEngine
from sorel.losses import Loss
from sorel.risks import Risk
from sorel.rows import RowSource

__all__ = ["BlocksEngine", "DenseEngine", "Dual", "Engine", "Point", "SparseEngine", "make_engine"]


def make_engine(
    X: Any,
    y: NDArray[Any],
    loss: Loss,
    n_outputs: int,
    risk: Risk,
    fit_intercept: bool,
    sample_weight: FloatArray | None,
    n_jobs: int | None = None,
) -> Engine:
    """The engine for this kind of X."""
    home: type[DenseEngine] | type[SparseEngine] = DenseEngine
    if isinstance(X, RowSource):
        home = BlocksEngine
    elif scipy.sparse.issparse(X):
        home = SparseEngine
    return home(X, y, loss, n_outputs, risk, fit_intercept, sample_weight, n_jobs)
