"""Projections of tensors onto the dual set of a risk, in density form.

Where the tensors are in host memory, or samples have weights under a spectrum of more than two
levels, the compiled projection of :mod:`sorel.projection` does the work, on views of the tensors or
on copies.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sorel._lib.copies import shallow_copy
from sorel.engines.tensors.cuda import THREADS, Kernels, kernels_for
from sorel.problem.risks import ESRM, CVaR, Extremile, FloatArray, Mean, Risk
from sorel.projection import Projector

# Ranks that one thread takes, as a power of 2.
_RUN_BITS = 8
RUN = 1 << _RUN_BITS

# Threads of a block of such threads: few, so that all multiprocessors have some of them.
_RUN_THREADS = 64

# Threads that look for a tangent, by the number of pairs at work: more where there are few pairs.
_TANGENT_THREADS = ((4096, 32), (512, 128), (1, 256))

# Passes of a selection: each tells 11 bits of a key of 64, the last one 9.
_SELECTION_PASSES = 6

# Trials of a threshold between two looks at it, and such looks at most.
_TRIALS = 8
_MOST_LOOKS = 25

# Sums that a reduction takes at once.
_MOST_SUMS = 5

# Rows that 32-bit numbers count.
_MOST_SAMPLES = 2**31 - 1


class Blocks(NamedTuple):
    """Which samples a projection pooled: their block or -1, how many there are, and how large."""

    block: Tensor
    number: int
    sizes: Tensor


class HostProjection:
    """The compiled projection for tensors that the host can read, and for copies of others."""

    def __init__(self, risk: Risk, n: int, sample_weight: FloatArray | None) -> None:
        self._projector = Projector(risk, n, sample_weight)

    def fork(self) -> HostProjection:
        """The same for another run, which knows nothing of earlier projections."""
        other = shallow_copy(self)
        other._projector = self._projector.fork()
        return other

    def project(self, density: Tensor) -> Blocks:
        """Replace a vector by its projection."""
        values, device = density.cpu().numpy(), density.device  # on the host the same memory
        _, (block, count, *_) = self._projector.nearest(values)
        density.copy_(torch.from_numpy(values))
        sizes = np.bincount(block[block >= 0], minlength=count)
        return Blocks(torch.from_numpy(block).to(device), count, torch.from_numpy(sizes).to(device))

    def value(self, losses: Tensor) -> float:
        """The spectral risk of the losses."""
        return self._projector.value(losses.cpu().numpy())

    def shortfall(self, losses: Tensor, density: Tensor) -> float:
        """The spectral risk less q . l, without cancellation."""
        return self._projector.shortfall(losses.cpu().numpy(), density.cpu().numpy())

    def worst_case(self, losses: Tensor) -> Tensor:
        """A density that attains the spectral risk."""
        out = np.empty(len(losses))
        self._projector.worst_case(losses.cpu().numpy(), out)
        return torch.from_numpy(out).to(losses.device)


class CudaProjection:
    """The same on a CUDA device; sample weights only where the spectrum has two levels.

    These need a selection and some trials of a threshold. For any other spectrum the isotonic fit
    is the slope of the convex minorant of running sums (Robertson, Wright and Dykstra 1988, section
    1.2). That of short runs comes from a stack each, and neighbours are joined by their common
    tangent until one is left (Preparata and Hong 1977).
    """

    def __init__(
        self, risk: Risk, n: int, kernels: Kernels, sample_weight: FloatArray | None = None
    ) -> None:
        if n >= _MOST_SAMPLES:
            raise ValueError(f"a device takes up to {_MOST_SAMPLES - 1} rows, got {n}")
        self._n, self._kernels = n, kernels
        self._levels = _two_levels(risk, n, sample_weight is not None)
        self._weight: Tensor | None = None
        if sample_weight is not None:
            assert self._levels is not None
            # Of mean 1, so that sizes match those of equal weights.
            self._weight = torch.from_numpy(sample_weight * n).to(kernels.device)
        self._mass: Tensor | None = None
        if self._levels is None:
            self._mass = _masses(risk, n, kernels.device)
        self._begin()

    @property
    def _total(self) -> float:
        """What the weighted densities sum to."""
        assert self._levels is not None
        return self._levels.total(self._n) if self._weight is None else float(self._n)

    def _begin(self) -> None:
        """Working memory of a run: some numbers for each block of threads."""
        device = self._kernels.device
        self._edge = torch.zeros(3, dtype=torch.float64, device=device)
        self._threshold = torch.zeros(7, dtype=torch.float64, device=device)
        self._counts = torch.zeros(2048 + 1, dtype=torch.int32, device=device)
        self._parts = torch.empty(
            (_MOST_SUMS, self._kernels.sweep), dtype=torch.float64, device=device
        )
        self._warm = 0

    def fork(self) -> CudaProjection:
        """The same for another run, which knows nothing of earlier projections."""
        other = shallow_copy(self)
        other._begin()
        return other

    def project(self, density: Tensor) -> Blocks:
        """Replace a vector by its projection."""
        return self._pool(density) if self._levels is None else self._clip(density, self._levels)

    def _select(self, values: Tensor, levels: Levels) -> None:
        """Find the value at the edge between the levels, and leave it on the device."""
        if self._weight is not None:
            key, order = torch.sort(values, stable=True)
            reach = self._weight[order].cumsum_(0)
            # So much weight stays at the low level; of one level alone every edge is right.
            low = self._n * (levels.high - 1.0) / ((levels.high - levels.low) or 1.0)
            place = torch.searchsorted(reach, reach.new_full((1,), low)).clamp_(max=self._n - 1)
            self._edge[2:].copy_(key[place])
            return
        counts, ticket = self._counts[:-1], self._counts[-1:]
        for number in range(_SELECTION_PASSES):
            self._kernels.launch(
                "select_pass", self._kernels.sweep, THREADS, values, self._n, number, levels.bend,
                self._edge, counts, ticket,
            )  # fmt: skip

    def _clip(self, density: Tensor, levels: Levels) -> Blocks:
        low, _, high, _ = levels
        n, kernels = self._n, self._kernels
        block = torch.empty(n, dtype=torch.int32, device=density.device)
        if low == high:
            density.fill_(low)
            return Blocks(block.fill_(-1), 0, block.new_zeros(0))
        ticket = self._counts[-1:]
        self._select(density, levels)
        state = self._threshold.view(torch.int64)
        kernels.launch("begin_threshold", 1, 1, self._threshold, low, high, self._warm)
        for _ in range(_MOST_LOOKS):
            for _ in range(_TRIALS):
                kernels.launch(
                    "try_threshold", kernels.sweep, THREADS, density, self._weight, n, low, high,
                    self._total, self._edge, self._threshold, self._parts, ticket,
                )  # fmt: skip
            # It does nothing before a threshold is found.
            kernels.launch(
                "fill_threshold", kernels.sweep, THREADS, density, n, low, high, self._edge,
                self._threshold, block,
            )  # fmt: skip
            done, inside = state[5:].tolist()
            if done:
                break
        else:
            raise RuntimeError("no threshold was found; are all losses finite?")
        self._warm = 1
        if inside <= 1:
            # A single free sample takes what the others leave, and does not move.
            return Blocks(block.fill_(-1), 0, block.new_zeros(0))
        return Blocks(block, 1, torch.tensor([inside], device=density.device))

    def _pool(self, density: Tensor) -> Blocks:
        n, device, mass = self._n, density.device, self._mass
        key, order = torch.sort(density, stable=True)
        points, runs = n + 1, n // RUN + 1
        before, totals = self._before_runs(key)
        sums = torch.empty((points, 2), dtype=torch.float64, device=device)
        vertex, joined = torch.empty((2, points), dtype=torch.int32, device=device)
        counts, new_counts = torch.empty((2, runs), dtype=torch.int32, device=device)
        cuts = torch.empty(2 * runs, dtype=torch.int32, device=device)
        kernels = self._kernels
        kernels.over(
            "run_minorants", runs, key, mass, n, RUN, before, totals, sums, vertex, counts,
            threads=_RUN_THREADS,
        )  # fmt: skip
        span_bits = _RUN_BITS
        while 1 << span_bits < points:
            pairs = math.ceil(points / (2 << span_bits))
            threads = next(threads for least, threads in _TANGENT_THREADS if pairs >= least)
            kernels.launch(
                "tangents", pairs, threads, sums, vertex, counts, points, _RUN_BITS, span_bits, cuts
            )
            kernels.over(
                "join", points, vertex, counts, cuts, points, _RUN_BITS, span_bits, joined,
                new_counts,
            )  # fmt: skip
            vertex, joined, counts, new_counts = joined, vertex, new_counts, counts
            span_bits += 1
        vertex = vertex[: int(counts[0])]
        sizes = vertex.diff()
        pooled = sizes >= 2
        number = torch.cumsum(pooled, 0, dtype=torch.int32).sub_(1).masked_fill_(~pooled, -1)
        sizes = sizes[pooled]
        first = torch.arange(0, n, RUN, dtype=torch.int32, device=device)
        nearby = torch.searchsorted(vertex, first, right=True, out_int32=True).sub_(1)
        block = torch.empty(n, dtype=torch.int32, device=device)
        kernels.over(
            "write_pooled", n, key, mass, order, n, _RUN_BITS, sums, vertex, len(vertex), number,
            nearby, density, block,
        )  # fmt: skip
        return Blocks(block, len(sizes), sizes)

    def _before_runs(self, ordered: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of values less masses before each run of ranks, each as a sum of two doubles.

        Those before a run in its block of threads, and those before the block.
        """
        n, runs = self._n, self._n // RUN + 1
        blocks = math.ceil(runs / _RUN_THREADS)
        before = torch.empty((runs, 2), dtype=torch.float64, device=ordered.device)
        totals = torch.empty((blocks, 2), dtype=torch.float64, device=ordered.device)
        self._kernels.over(
            "run_totals", runs, ordered, self._mass, n, RUN, before, totals, threads=_RUN_THREADS
        )
        self._kernels.launch("before_blocks", 1, 1024, totals, blocks)
        return before, totals

    def _level_sums(
        self, losses: Tensor, density: Tensor | None, levels: Levels
    ) -> tuple[float, ...]:
        self._select(losses, levels)
        out = torch.empty(6, dtype=torch.float64, device=losses.device)
        self._kernels.launch(
            "level_sums", self._kernels.sweep, THREADS, losses, self._weight, density, self._n,
            levels.low, levels.high, self._edge, self._parts, self._counts[-1:], out,
        )  # fmt: skip
        return tuple(out.tolist())

    def value(self, losses: Tensor) -> float:
        """The spectral risk of the losses."""
        levels = self._levels
        if levels is None:
            assert self._mass is not None
            return float(torch.dot(self._mass, torch.sort(losses).values)) / self._n
        low, _, high, _ = levels
        below, n_below, above, n_above, _, edge = self._level_sums(losses, None, levels)
        # Losses equal to the edge take what is left.
        left = self._total - (low * n_below + high * n_above)
        return (low * below + high * above + edge * left) / self._n

    def shortfall(self, losses: Tensor, density: Tensor) -> float:
        """The spectral risk less q . l, without cancellation."""
        if self._levels is not None:
            return self._level_sums(losses, density, self._levels)[4] / self._n
        key, order = torch.sort(losses, stable=True)
        ordered = density[order]
        del order
        before, totals = self._before_runs(ordered)
        out = torch.zeros(len(before), dtype=torch.float64, device=losses.device)
        self._kernels.over(
            "run_shortfalls", len(before), ordered, self._mass, key, self._n, RUN, before, totals,
            out, threads=_RUN_THREADS,
        )  # fmt: skip
        return float(out.sum()) / self._n

    def worst_case(self, losses: Tensor) -> Tensor:
        """A density that attains the spectral risk."""
        out = torch.empty_like(losses)
        if self._levels is None:
            assert self._mass is not None
            out[torch.sort(losses, stable=True).indices] = self._mass
            return out
        low, middle, high, bend = self._levels
        self._select(losses, self._levels)
        edge = self._edge[2]
        out.fill_(low).masked_fill_(losses > edge, high)
        if self._weight is not None:
            tied = losses == edge
            left = self._total - torch.dot(self._weight, out.masked_fill(tied, 0.0))
            share = left / torch.dot(self._weight, tied.double())
            return torch.where(tied, share.clamp_(low, high), out)
        # Ties with the edge by position: the low level as far as it goes, and the middle one.
        tied = torch.nonzero(losses == edge).ravel()
        first = bend - int((losses < edge).sum())
        out[tied[first]] = middle
        out[tied[first + 1 :]] = high
        return out


class Levels(NamedTuple):
    """A spectrum of two levels in density form: `middle` at the rank `bend`, `low` before it.

    With sample weights there is no such rank.
    """

    low: float
    middle: float
    high: float
    bend: int

    def total(self, n: int) -> float:
        """What the densities sum to: n, up to rounding."""
        return math.fsum((self.low * self.bend, self.middle, self.high * (n - 1 - self.bend)))


def _two_levels(risk: Risk, n: int, weighted: bool) -> Levels | None:
    if weighted:
        pair = risk.levels(n, np.ones(1))
        return None if pair is None else Levels(pair[0], math.nan, pair[1], -1)
    if type(risk) is CVaR:
        # As the weights of the host, without a vector of them.
        reach = n * Fraction(float(risk.alpha))
        whole = math.floor(reach)
        if 0 < whole < n:
            high = n * float(1 / reach)
            return Levels(0.0, n * float((reach - whole) / reach), high, n - whole - 1)
    if type(risk) is Mean:
        return Levels(1.0, 1.0, 1.0, 0)
    if risk.levels(n) is None:
        return None
    mass = risk.weights(n) * n
    bend = min(int(np.searchsorted(mass, mass[0], side="right")), n - 1)
    if mass[min(bend + 1, n - 1)] != mass[-1]:
        return None
    return Levels(float(mass[0]), float(mass[bend]), float(mass[-1]), bend)


def _masses(risk: Risk, n: int, device: torch.device) -> Tensor:
    """The weights of ordered losses in density form: those of the usual risks on the device."""
    if type(risk) is ESRM:
        rho = float(risk.rho)
        out = torch.arange(n - 1, -1, -1, dtype=torch.float64, device=device)
        out.mul_(-rho / n).exp_().mul_(n * (math.expm1(-rho / n) / math.expm1(-rho)))
    elif type(risk) is Extremile and risk.r > 1.0:
        r = float(risk.r)
        out = torch.arange(1, n + 1, dtype=torch.float64, device=device)
        share = out.reciprocal().neg_().log1p_().mul_(r).expm1_().neg_()
        out.div_(n).pow_(r).mul_(share).mul_(n)
    else:
        return torch.from_numpy(risk.weights(n) * n).to(device)
    # Rounding must not leave them short.
    return out.mul_(n / float(out.sum()))


def make_projection(
    risk: Risk, n: int, sample_weight: FloatArray | None, device: torch.device
) -> HostProjection | CudaProjection:
    """The projection for this device."""
    kernels = kernels_for(device)
    if kernels is None or (sample_weight is not None and risk.levels(n, sample_weight) is None):
        return HostProjection(risk, n, sample_weight)
    return CudaProjection(risk, n, kernels, sample_weight)
