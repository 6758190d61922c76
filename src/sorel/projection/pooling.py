"""Pooling adjacent violators: the projection of a sorted vector onto the permutahedron."""

from __future__ import annotations

from sorel._core import project_sorted, project_weighted

__all__ = ["project_sorted", "project_weighted"]
