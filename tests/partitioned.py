"""The engine of docs/extending/engine.md, as it stands there."""

from __future__ import annotations

from helpers import run_page

PartitionedEngine = run_page("engine")["PartitionedEngine"]
