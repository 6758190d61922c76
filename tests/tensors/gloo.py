"""Two processes of torch.distributed for the tests."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing


def run_two(function: Any, folder: Path) -> list[Any]:
    """What `function(rank)` returns in two processes that know of each other."""
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    torch.multiprocessing.spawn(_run, args=(function, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def _run(rank: int, function: Any, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    torch.save(function(rank), f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    # Taking a process group apart can wait for a thread that waits for the interpreter's lock.
    os._exit(0)
