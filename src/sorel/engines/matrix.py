"""Products with X in this process's reach, as an engine asks for them: dense, CSR, or on disk.

[X 1] is X with a column of ones where there is an intercept; p counts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sorel._lib.copies import shallow_copy
from sorel._lib.threads import Team

FloatArray = NDArray[np.float64]

# Columns up to which compiled loops beat BLAS, whose calls cost more than they save.
FEW_COLUMNS = 24

# Up to this many parameters a p x p matrix is cheap whatever the rows are.
FEW_PARAMETERS = 128

# Bytes of rows that may be copied to make products with them cheaper.
MAX_COPY = 1 << 30

# Entries of X from which on threads gain more than their start costs.
WORTH_SHARING = 1_000_000

_Result = TypeVar("_Result")


class RowMatrix(ABC):
    """X by rows.

    Attributes
    ----------
    n, d, p : int
        Rows, columns, and columns with that of the intercept.
    entries : int
        Entries of X that a product with it reads.
    form : object
        X as the compiled loops take it; None where they cannot.
    """

    # Whether X itself is an array of this process.
    in_memory: ClassVar[bool] = True
    form: Any
    _team: Team | None = None
    _threads = 1

    def __init__(self, shape: tuple[int, int], intercept: bool) -> None:
        (self.n, self.d), self.intercept = shape, intercept
        self.p = self.d + int(intercept)
        self.entries = self.n * self.d

    def shared(self, threads: int) -> Self:
        """The same, with so many threads for sweeps over the rows."""
        other = shallow_copy(self)
        other._threads = threads if self.entries >= WORTH_SHARING else 1
        other._team = other._make_team(other._threads) if other._threads > 1 else None
        return other

    def _make_team(self, threads: int) -> Team:
        return Team(self.n, threads)

    def _like(self, other: Self) -> Self:
        """Another matrix with the threads of this one."""
        return other.shared(self._threads)

    def _sweep(self, task: Callable[[int, int], _Result]) -> list[_Result]:
        """What ``task(start, stop)`` returns for each range of rows."""
        return [task(0, self.n)] if self._team is None else self._team.sweep(task)

    def _sum(
        self, task: Callable[[int, int, FloatArray], None], shape: tuple[int, ...]
    ) -> FloatArray:
        """Sum over the rows of what ``task(start, stop, out)`` adds to `out`, in a fixed order."""
        if self._team is not None:
            return self._team.accumulate(task, shape)
        out = np.zeros(shape)
        task(0, self.n, out)
        return out

    @property
    @abstractmethod
    def array(self) -> Any:
        """X as a NumPy array or a CSR matrix, or what is read in its place."""

    @abstractmethod
    def select(self, rows: NDArray[np.intp]) -> RowMatrix | None:
        """A copy of some rows; None where it would be too large, or gain nothing."""

    @abstractmethod
    def columns(self, chosen: NDArray[np.intp]) -> RowMatrix:
        """A copy of some columns."""

    def inner_products(self, rows: NDArray[np.intp], others: NDArray[np.intp]) -> FloatArray:
        """Inner products of rows of X, an array in memory, with others."""
        X = self.array
        left = X[rows].astype(np.float64, copy=False)
        right = left if others is rows else X[others].astype(np.float64, copy=False)
        out = left @ right.T
        return np.asarray(out.toarray() if hasattr(out, "toarray") else out)

    @abstractmethod
    def margins(self, w: FloatArray, out: NDArray[Any]) -> None:
        """out = [X 1] w."""

    @abstractmethod
    def adjoint(self, c: NDArray[Any]) -> FloatArray:
        """[X 1]^T c."""

    @abstractmethod
    def gram(self, h: FloatArray) -> FloatArray:
        """[X 1]^T diag(h) [X 1]; h may have either sign."""

    @abstractmethod
    def gram_diagonal(self, h: FloatArray) -> FloatArray:
        """Diagonal of that matrix."""

    def gram_product(self, h: FloatArray, v: FloatArray) -> FloatArray:
        """That matrix times v."""
        change = np.empty(self.n)
        self.margins(v, change)
        change *= h
        return self.adjoint(change)

    @abstractmethod
    def block_sums(self, block: NDArray[Any], start: int, stop: int, c: FloatArray) -> FloatArray:
        """Rows sum_{i in block} c_i [x_i 1], for the blocks start..stop."""

    @abstractmethod
    def column_scale(self) -> FloatArray:
        """The largest |x_ij| of each column."""

    @abstractmethod
    def squares(self) -> FloatArray:
        """|x_i|^2 of each row."""
