"""Loops over values collapsed to bins: which bin a value is in, and sums over the bins."""

from __future__ import annotations

from sorel._core import fill_bins, find_cells, held_by_bins, spread_bins

__all__ = ["fill_bins", "find_cells", "held_by_bins", "spread_bins"]
