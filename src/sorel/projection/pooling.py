"""Pooling adjacent violators (Ayer et al. 1955): sorted vectors onto the permutahedron."""

from __future__ import annotations

from sorel._core import project_sorted, project_weighted

__all__ = ["project_sorted", "project_weighted"]
