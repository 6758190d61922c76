"""Checkpoints: the state of a long run in one file, so that an interrupted run can go on.

A checkpoint holds the best parameters and weights so far, the counters, the history and the state
of the random generator, beside a fingerprint of the problem. It is a NumPy ``.npz`` archive with a
JSON header; nothing in it is code. It is written whole or not at all, and a file that belongs to
another problem, is damaged or comes from another version of the format is refused before the first
step.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import numbers
import os
import warnings
from dataclasses import dataclass
from time import perf_counter as now
from typing import Any

import numpy as np

from sorel.engines.base import FloatArray
from sorel.files.archives import bounded_json, unpacked
from sorel.files.atomic import check_writable, open_atomically
from sorel.problem.problem import Problem

__all__ = ["Checkpoint", "CheckpointError", "Keeper", "SavedRun", "read_passes"]

# Raised when the content of the file, or the way a fingerprint is taken, changes.
_FORMAT = 3
# Bytes of the header: the state of a generator is its longest part.
_MAX_HEADER = 1 << 20
# Letters of a text from the file that a message shows.
_SHOWN = 200
# Numbers in one record of a history.
_COLUMNS = 10

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
        number = isinstance(self.every, numbers.Real) and not isinstance(self.every, bool)
        if not (number and self.every >= 0.0):
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
        _check_place(self.path)
        # A callback may change the current folder.
        self._file = os.path.abspath(self.path)
        self._problem = problem
        self._fingerprint = problem.fingerprint()
        self._failing = False
        self.next = now() + self.every

    def load(self) -> SavedRun | None:
        """The state to go on from, or None where there is no file yet."""
        found = _read(self._file, self.path)
        if found is None:
            return None
        header, arrays = found
        try:
            self._check_problem(header["fingerprint"])
            return self._state(header, arrays)
        except CheckpointError:
            raise
        except Exception:
            raise _damaged(self.path) from None

    def save(self, state: SavedRun, *, last: bool = False) -> None:
        """Write the state. A failure is a warning: the run and the last checkpoint matter more."""
        try:
            self._write(state)
            self._failing = False
        except (OSError, MemoryError) as error:
            if last or not self._failing:
                self._warn(error, last)
            self._failing = True
        self.next = now() + self.every

    def _warn(self, error: Exception, last: bool) -> None:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        kept = "; the one before stays as it was" if os.path.exists(self._file) else ""
        after = "" if last else "; the run goes on and will try again"
        warnings.warn(
            f"the checkpoint {self.path!r} could not be written: {reason}{kept}{after}",
            RuntimeWarning,
            stacklevel=2,
        )

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
                differences.append(f"the {part} was {there[:_SHOWN]} and is {here[:_SHOWN]}")
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

    def _state(self, header: dict[str, Any], arrays: dict[str, FloatArray]) -> SavedRun:
        state = SavedRun(
            **arrays,
            solver=str(header["solver"]),
            passes=_count(header["passes"]),
            seconds=_count(header["seconds"]),
            n_iter=int(header["n_iter"]),
            objective=float(header["objective"]),
            relative_gap=float(header["relative_gap"]),
            generator=header["generator"],
        )
        problem = self._problem
        if not (
            all(array.dtype == np.float64 for array in arrays.values())
            and state.w.shape == problem.engine.shape
            and state.weights.shape == (problem.n_samples,)
            and state.history.shape[1:] == (_COLUMNS,)
            and math.isfinite(state.objective)
            and np.all(np.isfinite(state.w))
            and np.all(np.isfinite(state.weights))
        ):
            raise ValueError("the content does not fit the header")
        if state.generator is not None and state.generator["bit_generator"] not in _GENERATORS:
            raise ValueError("the state of another generator")
        state.make_generator()  # fails here or never
        return state


# What a checkpoint holds as arrays; the rest is in its header.
_ARRAYS = ("w", "weights", "history")


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
    try:
        return None if found is None else _count(found[0]["passes"])
    except Exception:
        raise _damaged(name) from None


def _check_place(path: str) -> None:
    """Raise the OSError that a write would end in, before hours of work depend on it."""
    check_writable(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"the checkpoint {path!r} is not a regular file; give another path")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"the checkpoint {path!r} cannot be written: no files in its folder")


def _read(file: str, path: str) -> tuple[dict[str, Any], dict[str, FloatArray]] | None:
    """Header and arrays of a file, which messages call `path`; None where there is none."""
    try:
        stream = open(file, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return None
    try:
        with stream:
            # Nothing in a checkpoint is packed, so it holds no more than the file has.
            members = unpacked(stream, os.fstat(stream.fileno()).st_size)
        header = bounded_json(_array(members, "header").tobytes(), _MAX_HEADER)
        layout = header["format"]
        if layout != _FORMAT:
            age = "newer" if layout > _FORMAT else "older"
            raise CheckpointError(
                f"the checkpoint {path!r} was written by sorel {str(header['sorel'])[:_SHOWN]} in "
                f"format {layout}, {age} than format {_FORMAT} of this version; use that version "
                "of sorel, give another path, or delete the file to start afresh"
            )
        return header, {name: _array(members, name) for name in _ARRAYS}
    except CheckpointError:
        raise
    except Exception:
        raise _damaged(path) from None


def _array(members: dict[str, bytes], name: str) -> Any:
    return np.load(io.BytesIO(members[f"{name}.npy"]), allow_pickle=False)


def _damaged(path: str) -> CheckpointError:
    return CheckpointError(
        f"{path!r} is damaged, or not a checkpoint of sorel; give another path, or delete the file "
        "to start afresh"
    )


def _count(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number < math.inf:
        raise ValueError("not a count")
    return number
