"""Homes of the data: one engine for each."""

from __future__ import annotations

from typing import Any

import scipy.sparse

from sorel.engines.base import Curvature, Dual, Engine, Point, Spec
from sorel.engines.blocks import BlocksEngine
from sorel.engines.centered import CenteredMatrix, CenteredRows
from sorel.engines.dense import DenseEngine
from sorel.engines.memory import MemoryEngine
from sorel.engines.rows import RowSource
from sorel.engines.sparse import CsrRows, SparseEngine

__all__ = [
    "BlocksEngine",
    "Curvature",
    "DenseEngine",
    "Dual",
    "Engine",
    "Point",
    "SparseEngine",
    "Spec",
    "make_engine",
]


def make_engine(X: Any, spec: Spec) -> Engine:
    """The engine for this kind of X.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.engines import make_engine
    >>> spec = sorel.Problem(np.eye(3), [1.0, 2.0, 5.0]).engine.spec
    >>> make_engine(np.eye(3), spec).n_samples
    3
    """
    if scipy.sparse.issparse(X):
        return SparseEngine(X, spec)
    return trusting_engine(X, spec)


def trusting_engine(X: Any, spec: Spec) -> Engine:
    """The same for an X that has been looked at already, indices of sparse matrices included."""
    if isinstance(X, RowSource):
        return BlocksEngine(X, spec)
    if isinstance(X, CenteredMatrix):
        return MemoryEngine(CenteredRows(CsrRows(X.X, True), X.mean), spec)
    if scipy.sparse.issparse(X):
        return SparseEngine(X, spec, checked=True)
    return DenseEngine(X, spec)
