"""Checkpoints: the state of a long run in one file, so that an interrupted run can go on.

A checkpoint holds the best parameters and weights so far, the counters, the history and the state
of the random generator, beside a fingerprint of the problem. It is a NumPy ``.npz`` archive with a
JSON header; nothing in it is code. It is written whole or not at all, and a file that belongs to
another problem, is damaged or comes from another version of the format is refused before the first
step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter as now
from typing import Any

import numpy as np

from sorel._lib.inputs import is_real
from sorel._lib.text import shorten
from sorel.engines.base import FloatArray
from sorel.files.archives import bounded_json, unpacked
from sorel.files.atomic import check_writable, open_atomically
from sorel.problem.problem import Problem

__all__ = ["Checkpoint", "CheckpointError", "Keeper", "SavedRun", "read_passes"]

# Raised when the content of the file, or the way a fingerprint is taken, changes.
_FORMAT = 3

# What a checkpoint holds as arrays; the rest is in its header.
_ARRAYS = ("w", "weights", "history")

# Generators whose state NumPy reads back whatever is in it; others follow places without a look.
_GENERATORS = ("PCG64", "PCG64DXSM", "SFC64")

# How a message calls the parts of a fingerprint that are hashes. The others are shown.
_HASHED = {
    "data": "the values of X differ",
    "targets": "the targets y differ",
    "sample weights": "the sample weights differ",
}


class CheckpointError(ValueError):
    """The file is no checkpoint that this run can go on from; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """Where the state of a run is kept, and how often it is written.

    Parameters
    ----------
    path : path
        The file; by convention its name ends in ``.ckpt``. Its folder must exist.
    every : float, default=60.0
        Seconds between two writes, at least. A check of the run has to come in between.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np, sorel
    >>> problem = sorel.Problem(np.array([[1.0], [2.0], [3.0]]), [1.0, 2.0, 5.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep = sorel.Checkpoint(os.path.join(folder, "fit.ckpt"), every=600)
    ...     first = sorel.solve(problem, checkpoint=keep)
    ...     again = sorel.solve(problem, checkpoint=keep)
    >>> first.converged, "resumed" in again.status
    (True, True)
    """

    path: str | os.PathLike[str]
    every: float = 60.0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "path", os.fsdecode(self.path))
        except TypeError:
            raise TypeError(f"checkpoint must be a path, got {self.path!r}") from None
        if not self.path:
            raise ValueError("checkpoint must be the path of a file, got an empty text")
        if not (is_real(self.every) and self.every >= 0.0):
            raise ValueError(f"every must be a number of seconds, at least 0, got {self.every!r}")


@dataclass(frozen=True)
class SavedRun:
    """What a checkpoint holds of a run.

    Attributes
    ----------
    solver : str
        Name of the solver; another one may go on.
    w, weights : array
        Parameters of the lowest objective, and the weights lam of the highest dual value.
    history : array of shape (checks, columns)
        The records of the run.
    passes, seconds, n_iter : float, float, int
        What the run has spent.
    objective, relative_gap : float
        The best so far.
    generator : dict or None
        State of the random generator, where one was used.
    """

    solver: str
    w: FloatArray
    weights: FloatArray
    history: FloatArray
    passes: float
    seconds: float
    n_iter: int
    objective: float
    relative_gap: float
    generator: dict[str, Any] | None = None

    def make_generator(self) -> np.random.Generator | None:
        """The random generator where the run left it, if it had one."""
        if self.generator is None:
            return None
        bits = getattr(np.random, self.generator["bit_generator"])()
        bits.state = self.generator
        return np.random.Generator(bits)


class Keeper:
    """Reads and writes the checkpoint of one run.

    Parameters
    ----------
    checkpoint : path or Checkpoint
        Where and how often.
    problem : Problem
        What is solved; a checkpoint of another problem is refused.
    """

    def __init__(self, checkpoint: str | os.PathLike[str] | Checkpoint, problem: Problem) -> None:
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(checkpoint)
        self.path, self.every = os.fspath(checkpoint.path), float(checkpoint.every)
        # Raises the OSError that a write would end in, before hours of work depend on it.
        check_writable(self.path)
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise OSError(f"the checkpoint {self.path!r} is not a regular file; give another path")
        # A callback may change the current folder.
        self._file = os.path.abspath(self.path)
        self._problem = problem
        self._fingerprint = problem.fingerprint()
        self.next = now() + self.every

    def load(self) -> SavedRun | None:
        """The state to go on from, or None where there is no file yet."""
        found = _read(self._file, self.path)
        if found is None:
            return None
        header, arrays = found
        with _refusing(self.path):
            self._check_problem(header["fingerprint"])
            return self._state(header, arrays)

    def save(self, state: SavedRun, *, last: bool = False) -> None:
        """Write the state. A failure is a warning: the run and the last checkpoint matter more."""
        try:
            self._write(state)
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            kept = "; the one before stays as it was" if os.path.exists(self._file) else ""
            after = "" if last else "; the run goes on and will try again"
            # The same words at every write: Python shows them once.
            warnings.warn(
                f"the checkpoint {self.path!r} could not be written: {reason}{kept}{after}",
                RuntimeWarning,
                stacklevel=2,
            )
        self.next = now() + self.every

    def _write(self, state: SavedRun) -> None:
        from sorel import __version__

        header = {
            "format": _FORMAT,
            "sorel": __version__,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "fingerprint": self._fingerprint,
            **{name: value for name, value in vars(state).items() if name not in _ARRAYS},
        }
        # The numbers of a generator's state are NumPy's.
        text = json.dumps(header, default=lambda value: value.tolist()).encode()
        arrays = {name: getattr(state, name) for name in _ARRAYS}
        with open_atomically(self._file) as stream:
            np.savez(stream, header=np.frombuffer(text, dtype=np.uint8), **arrays)

    def _check_problem(self, found: dict[str, str]) -> None:
        differences = []
        for part, here in self._fingerprint.items():
            there = found[part]
            if here == there:
                continue
            if part not in _HASHED:
                differences.append(f"the {part} was {shorten(there)} and is {shorten(here)}")
                continue
            kinds = [text.rpartition(" ")[0] for text in (there, here)]
            shown = f" ({kinds[0]} then, {kinds[1]} now)" if kinds[0] != kinds[1] else ""
            differences.append(_HASHED[part] + shown)
        if differences and differences[0].startswith("the shape"):
            # Everything of another size differs; that says no more.
            differences = [text for text in differences if text not in _HASHED.values()]
        if differences:
            raise CheckpointError(
                f"the checkpoint {self.path!r} belongs to another problem: "
                f"{'; '.join(differences)}; give another path, or delete the file to start afresh"
            )

    def _state(self, header: dict[str, Any], arrays: dict[str, Any]) -> SavedRun:
        from sorel.solvers.solve import Record

        names = [field.name for field in dataclasses.fields(SavedRun)]
        state = SavedRun(**{name: (arrays if name in _ARRAYS else header)[name] for name in names})
        problem = self._problem
        if not (
            isinstance(state.solver, str)
            and all(0.0 <= x < math.inf for x in (state.passes, state.seconds, state.n_iter))
            and state.relative_gap >= 0.0
            and all(array.dtype == np.float64 for array in arrays.values())
            and state.w.shape == problem.engine.shape
            and state.weights.shape == (problem.n_samples,)
            and state.history.shape[1:] == (len(Record._fields),)
            and math.isfinite(state.objective)
            and np.all(np.isfinite(state.w))
            and np.all(np.isfinite(state.weights))
        ):
            raise ValueError("the content does not fit the header")
        if state.generator is not None and state.generator["bit_generator"] not in _GENERATORS:
            raise ValueError("the state of another generator")
        state.make_generator()  # fails here or never
        return state


def generator_state(generator: np.random.Generator) -> dict[str, Any] | None:
    """The state of a generator for a checkpoint; None for a kind that cannot be kept."""
    state = dict(generator.bit_generator.state)
    return state if state["bit_generator"] in _GENERATORS else None


def read_passes(path: str | os.PathLike[str]) -> float | None:
    """Passes that the run of a checkpoint has spent; None where there is no such file.

    Parameters
    ----------
    path : path
        The checkpoint.

    Raises
    ------
    CheckpointError
        If the file is damaged, or not a checkpoint that this version can read.
    """
    name = os.fsdecode(path)
    found = _read(name, name)
    with _refusing(name):
        return None if found is None else float(found[0]["passes"])


def _read(file: str, path: str) -> tuple[dict[str, Any], dict[str, FloatArray]] | None:
    """Header and arrays of a file, which messages call `path`; None where there is none."""
    try:
        stream = open(file, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return None
    with stream, _refusing(path):
        # Nothing in a checkpoint is packed, so it holds no more than the file has.
        members = unpacked(stream, os.fstat(stream.fileno()).st_size)
        header = bounded_json(_array(members, "header").tobytes())
        layout = header["format"]
        if layout != _FORMAT:
            age = "newer" if layout > _FORMAT else "older"
            raise CheckpointError(
                f"the checkpoint {path!r} was written by sorel {shorten(header['sorel'])} in "
                f"format {layout}, {age} than format {_FORMAT} of this version; use that version "
                "of sorel, give another path, or delete the file to start afresh"
            )
        return header, {name: _array(members, name) for name in _ARRAYS}


def _array(members: dict[str, bytes], name: str) -> Any:
    return np.load(io.BytesIO(members[f"{name}.npy"]), allow_pickle=False)


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Turn whatever goes wrong with a file into an error that names it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception:
        raise CheckpointError(
            f"{path!r} is damaged, or not a checkpoint of sorel; give another path, or delete the "
            "file to start afresh"
        ) from None
