"""Cells: the pieces of work of a reproduction, kept as files so that a run can be continued.

A cell is a kind of experiment, a dataset and some parameters. Its file is named after a digest of
these, of the data and of the code, and is written in one step: what is there is complete, and what
belongs to other code or other data is never read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sorel._files import write_atomically

__all__ = [
    "Cell",
    "Dataset",
    "Progress",
    "Store",
    "cell",
    "code_version",
    "end_with",
    "run_cells",
]

FloatArray = NDArray[np.float64]

# Seconds between two looks at whether the parent is still there.
_GLANCE = 0.5

# Modules and packages that shape output and input but no number of an experiment.
_NOT_NUMERIC = {
    "__main__.py",
    "_archives.py",
    "_leftovers.py",
    "_tables.py",
    "_text.py",
    "cli",
    "demo.py",
    "estimators",
    "metrics.py",
    "model_selection.py",
    "plots.py",
    "saving.py",
    "tables.py",
}


@dataclass(frozen=True)
class Dataset:
    """Training data as the experiments see them."""

    name: str
    X: FloatArray = field(repr=False, compare=False)
    y: FloatArray = field(repr=False, compare=False)

    @property
    def checksum(self) -> str:
        """SHA-256 of the numbers."""
        digest = hashlib.sha256(repr(self.X.shape).encode())
        for array in (self.X, self.y):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Attributes
    ----------
    kind : str
        Name of the experiment, a key of ``sorel.reproduce.experiments.EXPERIMENTS``.
    dataset : str
        Name of its data; empty where it needs none.
    parameters : str
        Its arguments as JSON with sorted keys, so that equal cells are equal strings.
    cost : float
        Rough amount of work, for the order of the cells and the time left.
    """

    kind: str
    dataset: str
    parameters: str
    cost: float = field(default=1.0, compare=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the experiment."""
        return dict(json.loads(self.parameters))


def cell(kind: str, dataset: str = "", cost: float = 1.0, **arguments: Any) -> Cell:
    """Make a cell from the arguments of its experiment.

    Examples
    --------
    >>> from sorel.reproduce.cells import cell
    >>> cell("toy", steps=3).arguments
    {'steps': 3}
    """
    return Cell(kind, dataset, json.dumps(arguments, sort_keys=True), cost)


@lru_cache
def code_version() -> str:
    """Version and digest of the code that produces numbers, and versions of what it builds on."""
    import numba
    import scipy

    import sorel

    root = Path(sorel.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        shown_only = name.startswith("reproduce/") and name != "reproduce/experiments.py"
        if shown_only or name.partition("/")[0] in _NOT_NUMERIC:
            continue
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    libraries = f"numpy {np.__version__}, scipy {scipy.__version__}, numba {numba.__version__}"
    return f"sorel {sorel.__version__} ({digest.hexdigest()[:12]}), {libraries}"


class Store:
    """The folder of finished cells.

    Parameters
    ----------
    folder : path
        Created if missing.
    checksums : mapping of str to str
        Checksum of each dataset by name.
    """

    def __init__(self, folder: str | os.PathLike[str], checksums: Mapping[str, str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checksums = dict(checksums)

    def path(self, cell: Cell) -> Path:
        """Where the result of `cell` is, or will be."""
        data = self.checksums.get(cell.dataset, "")
        key = json.dumps([cell.kind, cell.dataset, cell.parameters, data, code_version()])
        digest = hashlib.sha256(key.encode()).hexdigest()[:20]
        name = "-".join(part for part in (cell.kind, cell.dataset, digest) if part)
        return self.folder / f"{name}.json"

    def load(self, cell: Cell) -> dict[str, Any] | None:
        """The result of `cell`, or None if there is none that can be read."""
        try:
            return dict(json.loads(self.path(cell).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def save(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Keep a result; all of it, or nothing."""
        write_atomically(self.path(cell), json.dumps(result).encode())


class Progress:
    """A line on a terminal with the share done and the time left; silence elsewhere."""

    def __init__(self, shown: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._drawn = 0.0

    def start(self, stage: str, cells: Sequence[Cell], known: int) -> None:
        """Begin a stage of which `known` cells were finished earlier."""
        self._stage, self._known = stage, known
        self._count, self._total = len(cells), sum(cell.cost for cell in cells)
        self._done, self._spent, self._begin = 0, 0.0, time.monotonic()
        self._draw(force=True)

    def advance(self, cell: Cell) -> None:
        """Take note of a finished cell."""
        self._done += 1
        self._spent += cell.cost
        self._draw(force=self._done == self._count)

    def close(self) -> None:
        """Leave the line clean."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self, force: bool) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._drawn < 0.2 and not force):
            return
        self._drawn = now
        share = self._spent / self._total if self._total else 1.0
        left = ""
        if 0.0 < share < 1.0:
            left = f", about {_duration((now - self._begin) * (1.0 - share) / share)} left"
        kept = f" ({self._known} kept from before)" if self._known else ""
        print(
            f"\r\x1b[K{self._stage}: {self._done}/{self._count} cells{kept}, {share:.0%}{left}",
            end="",
            file=sys.stderr,
            flush=True,
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def run_cells(
    stage: str,
    cells: Sequence[Cell],
    data: Mapping[str, Dataset],
    store: Store,
    jobs: int = 1,
    progress: Progress | None = None,
) -> dict[Cell, dict[str, Any]]:
    """The results of `cells`: read where they are kept, computed and kept where they are not.

    Parameters
    ----------
    stage : str
        What the progress line calls this work.
    cells : sequence of Cell
    data : mapping of str to Dataset
    store : Store
    jobs : int, default=1
        Processes. The results do not depend on it, measured times apart.
    progress : Progress, optional

    Returns
    -------
    dict
        Result by cell, in the order of `cells`.
    """
    progress = progress or Progress(shown=False)
    found = {cell: store.load(cell) for cell in dict.fromkeys(cells)}
    missing = [cell for cell, result in found.items() if result is None]
    # The longest first: no process is then left alone with a long cell at the end.
    missing.sort(key=lambda cell: -cell.cost)
    progress.start(stage, missing, len(found) - len(missing))
    tasks = [(cell, data.get(cell.dataset), store) for cell in missing]
    for cell, result in _computed(tasks, min(jobs, len(tasks))):
        found[cell] = result
        progress.advance(cell)
    return {cell: result for cell, result in found.items() if result is not None}


def _computed(tasks: Sequence[tuple[Cell, Dataset | None, Store]], jobs: int) -> Any:
    if jobs <= 1:
        return (_compute(*task) for task in tasks)
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, backend="loky", return_as="generator_unordered", batch_size=1)
    parent = os.getpid()
    return parallel(delayed(_compute_for)(parent, *task) for task in tasks)


def _compute_for(
    parent: int, cell: Cell, data: Dataset | None, store: Store
) -> tuple[Cell, dict[str, Any]]:
    """The same in a process that is not to outlive the one that waits for the result."""
    end_with(parent)
    return _compute(cell, data, store)


@lru_cache
def end_with(parent: int) -> None:
    """End this process soon after its parent has ended, however that was.

    Parameters
    ----------
    parent : int
        Number of the process that started this one.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_GLANCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="sorel-parent").start()


def _compute(cell: Cell, data: Dataset | None, store: Store) -> tuple[Cell, dict[str, Any]]:
    from threadpoolctl import threadpool_limits

    from sorel.reproduce.experiments import EXPERIMENTS

    # One thread: sums are then added in the same order on every machine and for every --jobs.
    with threadpool_limits(1):
        result = EXPERIMENTS[cell.kind](data, **cell.arguments)
    store.save(cell, result)
    return cell, result
