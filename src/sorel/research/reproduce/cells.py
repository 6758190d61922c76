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
from collections.abc import Hashable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sorel.engines.base import FloatArray
from sorel.files.atomic import write_atomically

Key = TypeVar("Key", bound=Hashable)

# Seconds between two looks at whether the parent is still there.
_GLANCE = 0.5

# Modules and packages that shape output and input but, experiments.py apart, no number.
_NOT_NUMERIC = {"__main__.py", "cli", "estimators", "files", "research"}


class Dataset(NamedTuple):
    """Training data as the experiments see them."""

    name: str
    X: FloatArray
    y: FloatArray

    @property
    def checksum(self) -> str:
        """SHA-256 of the numbers."""
        digest = hashlib.sha256(repr(self.X.shape).encode())
        for array in (self.X, self.y):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class Cell(NamedTuple):
    """One piece of work.

    Attributes
    ----------
    kind : str
        Name of the experiment, a function of ``sorel.reproduce.experiments``.
    dataset : str
        Name of its data; empty where it needs none.
    parameters : str
        Its arguments as JSON with sorted keys, so that equal cells are equal strings.
    """

    kind: str
    dataset: str
    parameters: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the experiment."""
        return dict(json.loads(self.parameters))


def cell(kind: str, dataset: str = "", **arguments: Any) -> Cell:
    """Make a cell from the arguments of its experiment.

    Examples
    --------
    >>> from sorel.reproduce.cells import cell
    >>> cell("toy", steps=3).arguments
    {'steps': 3}
    """
    return Cell(kind, dataset, json.dumps(arguments, sort_keys=True))


@lru_cache
def code_version() -> str:
    """Version and digest of the code that produces numbers, and versions of what it builds on."""
    import scipy

    import sorel

    root = Path(sorel.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".so", ".pyd")):
        name = path.relative_to(root).as_posix()
        if name.partition("/")[0] in _NOT_NUMERIC and path.name != "experiments.py":
            continue
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    libraries = f"numpy {np.__version__}, scipy {scipy.__version__}"
    return f"sorel {sorel.__version__} ({digest.hexdigest()[:12]}), {libraries}"


class Progress:
    """A line on a terminal with the share done and the time left; silence elsewhere."""

    def __init__(self, shown: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown

    def start(self, stage: str, costs: Iterable[float], known: int) -> None:
        """Begin a stage of which `known` cells were finished earlier."""
        costs = list(costs)
        kept = f" ({known} kept from before)" if known else ""
        self._text = f"{stage}: {{done}}/{len(costs)} cells{kept}, {{share:.0%}}{{left}}"
        self._total, self._begin = sum(costs), time.monotonic()
        self._done, self._spent = 0, 0.0
        self._draw()

    def advance(self, cost: float) -> None:
        """Take note of a finished cell."""
        self._done, self._spent = self._done + 1, self._spent + cost
        self._draw()

    def close(self) -> None:
        """Leave the line clean."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        share, left = self._spent / self._total if self._total else 1.0, ""
        if 0.0 < share < 1.0:
            seconds = (time.monotonic() - self._begin) * (1.0 - share) / share
            left = f", about {timedelta(seconds=round(seconds))} left"
        self.close()
        if self._shown:
            text = self._text.format(done=self._done, share=share, left=left)
            print(text, end="", file=sys.stderr, flush=True)


class Work:
    """Computes cells, or reads what was computed before.

    Parameters
    ----------
    folder : path
        Where finished cells are kept; created if missing.
    data : mapping of str to Dataset
        The datasets by name.
    jobs : int, default=1
        Processes. The results do not depend on it, measured times apart.
    progress : Progress, optional
        Told about every finished cell.

    Attributes
    ----------
    cells, kept : int
        Cells so far, and how many of them were there before.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        data: Mapping[str, Dataset],
        jobs: int = 1,
        progress: Progress | None = None,
    ) -> None:
        self.folder, self.data, self.jobs = Path(folder), data, jobs
        self.folder.mkdir(parents=True, exist_ok=True)
        self.progress = progress or Progress(shown=False)
        self.cells = self.kept = 0
        self._checksums = {name: dataset.checksum for name, dataset in data.items()}

    def path(self, cell: Cell) -> Path:
        """Where the result of `cell` is, or will be."""
        key = json.dumps([*cell, self._checksums.get(cell.dataset, ""), code_version()])
        digest = hashlib.sha256(key.encode()).hexdigest()[:20]
        return self.folder / f"{'-'.join(filter(None, (*cell[:2], digest)))}.json"

    def load(self, cell: Cell) -> dict[str, Any] | None:
        """The result of `cell`, or None if there is none that can be read."""
        try:
            return dict(json.loads(self.path(cell).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def run(self, stage: str, cells: Mapping[Key, Cell]) -> dict[Key, dict[str, Any]]:
        """The results of `cells`, under the same keys; `stage` is what the progress line says."""
        found = {cell: self.load(cell) for cell in dict.fromkeys(cells.values())}
        missing = {cell: self._cost(cell) for cell, result in found.items() if result is None}
        self.cells += len(found)
        self.kept += len(found) - len(missing)
        self.progress.start(stage, missing.values(), len(found) - len(missing))
        from joblib import Parallel, delayed

        # The longest first: no process is then left alone with a long cell at the end.
        tasks = (
            delayed(_compute)(cell, self.data.get(cell.dataset), self.path(cell), os.getpid())
            for cell in sorted(missing, key=lambda cell: -missing[cell])
        )
        parallel = Parallel(self.jobs, "loky", return_as="generator_unordered", batch_size=1)
        for cell, result in parallel(tasks):
            found[cell] = result
            self.progress.advance(missing[cell])
        return {key: found[cell] or {} for key, cell in cells.items()}

    def _cost(self, cell: Cell) -> float:
        """A rough amount of work: a pass takes time for its samples and for its overhead."""
        n = len(self.data[cell.dataset].y) if cell.dataset else 1
        if cell.kind == "cost":
            return float(n) ** 2
        arguments = cell.arguments
        passes = arguments.get("passes", 2 * arguments.get("iterations", 100))
        return float(len(arguments.get("grid", "1")) * passes * (n + 1000))


def _compute(
    cell: Cell, data: Dataset | None, path: Path, parent: int
) -> tuple[Cell, dict[str, Any]]:
    """Run an experiment and keep its result; all of it, or nothing."""
    from threadpoolctl import threadpool_limits

    from sorel.research.reproduce import experiments

    if os.getpid() != parent:
        end_with(parent)
    # One thread: sums are then added in the same order on every machine and for every --jobs.
    with threadpool_limits(1):
        result = getattr(experiments, cell.kind)(data, **cell.arguments)
    write_atomically(path, json.dumps(result).encode())
    return cell, result


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
