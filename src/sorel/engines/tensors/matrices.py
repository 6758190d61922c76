"""Products with X on its device, dense or CSR, float64 or float32, summed in float64.

No product is taken in float32, so that no setting of torch about reduced precision matters. What is
not summed as it is read goes through tiles of float64 rows, whose size does not grow with n beyond
some vectors of that length.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sorel.engines.curvature import WORTH_SELECTING
from sorel.engines.tensors import cuda

FloatArray = NDArray[np.float64]

# Numbers in a tile, in matrices of d x d; a vector of length n, if that is more.
_SQUARES = 8

# Numbers in a tile at most, as far as d decides.
_MOST_OF_SQUARES = 2**24

# Numbers in a tile on a device at least: many small operations would take longer than one of those.
_LEAST_ON_DEVICE = 2**20

# Rows that one matrix product of a batch sums over: a d x d result alone keeps few cores busy.
_BATCH_ROWS = 512


class Matrix:
    """What both kinds of X share: everything that goes through tiles of dense rows."""

    def __init__(self, X: Tensor) -> None:
        self.X, self.shape = X, tuple(X.shape)
        self.n, self.d = int(X.shape[0]), int(X.shape[1])
        self.device = X.device

    def margins(self, w: Tensor) -> Tensor:
        """X w, for one column or several."""
        raise NotImplementedError

    def adjoint(self, c: Tensor, some: bool = False) -> Tensor:
        """X^T c, for one column or several; `some` says that c is 0 for most rows."""
        raise NotImplementedError

    def tile(self, rows: slice | Tensor) -> Tensor:
        """Rows of a range, or chosen ones, as a dense tile of float64."""
        raise NotImplementedError

    def columns(self) -> Tensor:
        """The largest |x_ij| of each column; not finite where some x_ij is not."""
        raise NotImplementedError

    def take(self, index: Tensor) -> Tensor:
        """Chosen rows of X as they are stored."""
        raise NotImplementedError

    @cached_property
    def column_scale(self) -> FloatArray:
        """The same on the host, found once."""
        return self.columns().cpu().numpy()

    @cached_property
    def height(self) -> int:
        """Rows of a tile."""
        room = max(self.n, min(_SQUARES * self.d * self.d, _MOST_OF_SQUARES))
        if self.device.type != "cpu":
            room = max(room, _LEAST_ON_DEVICE)
        height = room // self.d
        return max(1, min(self.n, height - height % _BATCH_ROWS or height))

    def tiles(self, index: Tensor | None) -> Iterator[tuple[slice | Tensor, Tensor]]:
        """Rows in order, all or the chosen ones, with what selects them from a vector."""
        for start in range(0, self.n if index is None else len(index), self.height):
            part = slice(start, start + self.height)
            rows = part if index is None else index[part]
            yield rows, self.tile(rows)

    def bad_value(self) -> str:
        """Where the first value is that is not finite."""
        for number, (_, tile) in enumerate(self.tiles(None)):
            bad = torch.nonzero(~torch.isfinite(tile))
            if len(bad):
                row, column = bad[0].tolist()
                return f"X[{number * self.height + row}, {column}] = {float(tile[row, column])}"
        raise AssertionError("all values are finite")

    def used(self, h: Tensor) -> Tensor | None:
        """The rows with a weight, where they are few enough to be gathered; else None."""
        if int(torch.count_nonzero(h)) > WORTH_SELECTING * self.n:
            return None
        return torch.nonzero(h).ravel()

    def gram(self, h: Tensor, intercept: bool) -> Tensor:
        """[X 1]^T diag(h) [X 1]; h may have either sign."""
        sums = ProductSum(self.d, self.device)
        across = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for part, tile in self.tiles(self.used(h)):
            scaled = tile * h[part][:, None]
            sums.add(tile, scaled)
            if intercept:
                across += scaled.sum(dim=0)
        out = sums.total()
        if not intercept:
            return out
        below = torch.cat([across, h.sum().reshape(1)])
        return torch.cat([torch.cat([out, across[None]]), below[:, None]], dim=1)

    def gram_diagonal(self, h: Tensor, intercept: bool) -> Tensor:
        """Diagonal of that matrix."""
        out = self.squares(h)
        return torch.cat([out, h.sum().reshape(1)]) if intercept else out

    def squares(self, h: Tensor) -> Tensor:
        """sum_i h_i x_ij^2 for each column j."""
        out = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for part, tile in self.tiles(self.used(h)):
            out += tile.square().T @ h[part]
        return out


class ProductSum:
    """The sum of a^T b over tall tiles, in batches where a device would else have little to do."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._total = torch.zeros((size, size), dtype=torch.float64, device=device)
        self._batches: Tensor | None = None

    def add(self, a: Tensor, b: Tensor) -> None:
        """Add the product of two tiles."""
        count = len(a) // _BATCH_ROWS if a.is_cuda else 0
        if self._batches is not None:
            count = len(self._batches) if count >= len(self._batches) else 0
        cut = count * _BATCH_ROWS if count > 1 else 0
        if cut > 0:
            left, right = (x[:cut].view(count, _BATCH_ROWS, -1) for x in (a, b))
            if self._batches is None:
                self._batches = torch.bmm(left.transpose(1, 2), right)
            else:
                self._batches.baddbmm_(left.transpose(1, 2), right)
        if cut < len(a):
            self._total += a[cut:].T @ b[cut:]

    def total(self) -> Tensor:
        """What has been added up."""
        return self._total if self._batches is None else self._total + self._batches.sum(dim=0)


class DenseMatrix(Matrix):
    """A tensor with rows that follow each other in memory."""

    def margins(self, w: Tensor) -> Tensor:
        if w.ndim == 1 and cuda.serves(self.X):
            return cuda.margins(self.X, w)
        if self.X.dtype == torch.float64:
            return self.X @ w
        out = torch.empty((self.n, *w.shape[1:]), dtype=torch.float64, device=self.device)
        for part, tile in self.tiles(None):
            torch.matmul(tile, w, out=out[part])
        return out

    def adjoint(self, c: Tensor, some: bool = False) -> Tensor:
        if c.ndim == 1 and cuda.serves(self.X):
            return cuda.adjoint(self.X, c, some)
        if self.X.dtype == torch.float64:
            return self.X.T @ c
        out = torch.zeros((self.d, *c.shape[1:]), dtype=torch.float64, device=self.device)
        for part, tile in self.tiles(None):
            out += tile.T @ c[part]
        return out

    def squares(self, h: Tensor) -> Tensor:
        if cuda.serves(self.X):
            return cuda.weighted_squares(self.X, h)
        return super().squares(h)

    def tile(self, rows: slice | Tensor) -> Tensor:
        return self.X[rows].double()

    def take(self, index: Tensor) -> Tensor:
        return self.X[index]

    def columns(self) -> Tensor:
        if cuda.serves(self.X):
            return cuda.columns(self.X)
        least, most = torch.aminmax(self.X, dim=0)
        return torch.maximum(most, least.neg_()).double()


class CsrMatrix(Matrix):
    """A sparse tensor in the layout CSR, read in runs of rows; never made dense as a whole."""

    def __init__(self, X: Tensor) -> None:
        super().__init__(X)
        self._starts, self._columns = X.crow_indices(), X.col_indices()
        self._values = X.values()
        # Runs of rows with so many entries that their copies are no larger than a tile.
        room = max(2 * self.n, 2**16)
        stored = self._starts.cpu().numpy()
        cuts = [0]
        while cuts[-1] < self.n:
            beyond = int(np.searchsorted(stored, stored[cuts[-1]] + room, side="right")) - 1
            cuts.append(min(max(beyond, cuts[-1] + 1), self.n))
        self._runs = [
            (first, last, int(stored[first]), int(stored[last]))
            for first, last in itertools.pairwise(cuts)
        ]

    def margins(self, w: Tensor) -> Tensor:
        out = torch.empty((self.n, *w.shape[1:]), dtype=torch.float64, device=self.device)
        for first, last, begin, end in self._runs:
            terms = _scaled(w[self._columns[begin:end]], self._values[begin:end])
            counts = self._starts[first : last + 1].diff()
            out[first:last] = torch.segment_reduce(terms, "sum", lengths=counts, initial=0.0)
        return out

    def adjoint(self, c: Tensor, some: bool = False) -> Tensor:
        out = torch.zeros((self.d, *c.shape[1:]), dtype=torch.float64, device=self.device)
        for first, last, begin, end in self._runs:
            counts = self._starts[first : last + 1].diff()
            rows = c[first:last].repeat_interleave(counts, dim=0)
            terms = _scaled(rows, self._values[begin:end])
            out.index_add_(0, self._columns[begin:end], terms)
        return out

    def tile(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.n), device=self.device)
        numbers, entries = self._entries(rows)
        out = torch.zeros((len(rows), self.d), dtype=torch.float64, device=self.device)
        places = numbers, self._columns[entries]
        return out.index_put_(places, self._values[entries].double(), accumulate=True)

    def _entries(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Of the entries of chosen rows, the number of the row among them and where they are."""
        counts = self._starts[index + 1] - self._starts[index]
        rows = torch.repeat_interleave(torch.arange(len(index), device=self.device), counts)
        before = counts.cumsum(0) - counts
        inside = torch.arange(len(rows), device=self.device) - before[rows]
        return rows, self._starts[index][rows] + inside

    def take(self, index: Tensor) -> Tensor:
        rows, entries = self._entries(index)
        counts = torch.bincount(rows, minlength=len(index))
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        parts = starts, self._columns[entries], self._values[entries]
        with warnings.catch_warnings():
            # Whoever made X has heard that CSR tensors are young.
            warnings.simplefilter("ignore")
            return torch.sparse_csr_tensor(*parts, (len(index), self.d))

    def columns(self) -> Tensor:
        out = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for _, _, begin, end in self._runs:
            sizes = self._values[begin:end].abs().double()
            out.scatter_reduce_(0, self._columns[begin:end], sizes, "amax")
        return out


def _scaled(rows: Tensor, values: Tensor) -> Tensor:
    """Rows, or numbers, each times its value."""
    return rows * (values if rows.ndim == 1 else values[:, None])


def make_matrix(X: Tensor) -> Matrix:
    """The products for this kind of X."""
    return DenseMatrix(X) if X.layout == torch.strided else CsrMatrix(X)
