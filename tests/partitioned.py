"""The engine of docs/extending/engine.md, as it stands there."""

from helpers import run_page

PartitionedEngine = run_page("engine")["PartitionedEngine"]
