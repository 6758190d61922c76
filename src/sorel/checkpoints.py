"""Checkpoints: the state of a long run in one file, so that an interrupted run can go on.

A checkpoint holds the best parameters and weights so far, the counters, the history and the state
of the random generator, beside a fingerprint of the problem. It is a NumPy ``.npz`` archive with a
JSON header; nothing in it is code. It is written whole or not at all, and a file that belongs to
another problem, is damaged or comes from a newer version is refused before the first step.
"""

from __future__ import annotations

import datetime
import json
import math
import numbers
import os
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from time import perf_counter as now
from sorel._files import check_writable, open_atomically
from sorel.engines.base import FloatArray
from sorel.problem import Problem

__all__ = ["Checkpoint", "CheckpointError", "Keeper", "State", "read_passes"]

# Raised when the content of the file, or the way a fingerprint is taken, changes.
_FORMAT = 2

# Members of the archive, and bytes of its header: the state of a generator is its longest part.
_MAX_MEMBERS, _MAX_HEADER = 16, 1 << 20

# Letters of a text from the file that a message shows.
_SHOWN = 200

# Numbers in one record of a history. The first format had the six of the iterate alone.
_COLUMNS, _FIRST_COLUMNS = 10, 6

# Generators of NumPy whose state can be written and read back.
_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

_MERSENNE_WORDS, _PHILOX_WORDS = 624, 4

# What zipfile, json and NumPy raise on files that were damaged or made up.
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)

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
class State:
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
        # NumPy follows these places without a look at them.
        restored: Any = bits.state
        mersenne = restored["bit_generator"] == "MT19937"
        if mersenne and not 0 <= restored["state"]["pos"] <= _MERSENNE_WORDS:
            raise ValueError("a place outside the state of the generator")
        if not 0 <= restored.get("buffer_pos", 0) <= _PHILOX_WORDS:
            raise ValueError("a place outside the buffer of the generator")
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

    def load(self) -> State | None:
        """The state to go on from, or None where there is no file yet."""
        try:
            stream = open(self._file, "rb")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            return None
        with stream:
            try:
                with _archive(stream) as archive:
                    header = _header(archive, self.path)
                    self._check_problem(header["fingerprint"])
                    return self._state(header, archive)
            except CheckpointError:
                raise
            except _DAMAGE:
                raise _damaged(self.path) from None

    def save(self, state: State, *, last: bool = False) -> None:
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

    def _write(self, state: State) -> None:
        from sorel import __version__

        header = {
            "format": _FORMAT,
            "sorel": __version__,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "fingerprint": self._fingerprint,
            "solver": state.solver,
            "passes": state.passes,
            "seconds": state.seconds,
            "n_iter": state.n_iter,
            "objective": state.objective,
            "relative_gap": state.relative_gap,
            "generator": state.generator,
        }
        text = json.dumps(header, default=_plain).encode()
        arrays = {
            "header": np.frombuffer(text, dtype=np.uint8),
            "w": state.w,
            "weights": state.weights,
            "history": state.history,
        }
        # On a full disk, np.savez of NumPy 2.0 leaves an archive behind that complains at its end.
        with open_atomically(self._file) as stream, zipfile.ZipFile(stream, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    def _check_problem(self, found: dict[str, str]) -> None:
        differences = []
        for part, here in self._fingerprint.items():
            there = found[part]
            if here == there:
                continue
            if part in _HASHED:
                kinds = [text.rpartition(" ")[0] for text in (there, here)]
                shown = f" ({kinds[0]} then, {kinds[1]} now)" if kinds[0] != kinds[1] else ""
                differences.append(_HASHED[part] + shown)
            else:
                differences.append(f"the {part} was {there[:_SHOWN]} and is {here[:_SHOWN]}")
        if differences:
            if differences[0].startswith("the shape"):
                # Everything of another size differs; that says no more.
                differences = [text for text in differences if text not in _HASHED.values()]
            raise CheckpointError(
                f"the checkpoint {self.path!r} belongs to another problem: "
                f"{'; '.join(differences)}; give another path, or delete the file to start afresh"
            )

    def _state(self, header: dict[str, Any], archive: Any) -> State:
        problem = self._problem
        history = archive["history"]
        if header["format"] == 1:
            history = _with_best(history)
        state = State(
            solver=str(header["solver"]),
            w=archive["w"],
            weights=archive["weights"],
            history=history,
            passes=_number(header["passes"]),
            seconds=_number(header["seconds"]),
            n_iter=int(header["n_iter"]),
            objective=float(header["objective"]),
            relative_gap=float(header["relative_gap"]),
            generator=header["generator"],
        )
        arrays = (state.w, state.weights, state.history)
        if not (
            all(array.dtype == np.float64 for array in arrays)
            and state.w.shape == problem.engine.shape
            and state.weights.shape == (problem.n_samples,)
            and state.history.ndim == 2
            and state.history.shape[1] == _COLUMNS
            and math.isfinite(state.objective)
            and np.all(np.isfinite(state.w))
            and np.all(np.isfinite(state.weights))
            and (state.generator is None or state.generator["bit_generator"] in _GENERATORS)
        ):
            raise ValueError("the content does not fit the header")
        state.make_generator()  # fails here or never
        return state


def _with_best(history: FloatArray) -> FloatArray:
    """The records of the first format with the best values so far, as later ones have them."""
    if history.ndim != 2 or history.shape[1] != _FIRST_COLUMNS:
        raise ValueError("the content does not fit the header")
    _, _, objective, dual, gap, relative_gap = history.T
    return np.column_stack(
        [
            history,
            np.minimum.accumulate(objective),
            np.maximum.accumulate(dual),
            np.minimum.accumulate(gap),
            np.minimum.accumulate(relative_gap),
        ]
    )


def generator_state(generator: np.random.Generator) -> dict[str, Any] | None:
    """The state of a generator for a checkpoint; None for a kind that NumPy does not know."""
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
    try:
        stream = open(name, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return None
    with stream:
        try:
            with _archive(stream) as archive:
                return _number(_header(archive, name)["passes"])
        except CheckpointError:
            raise
        except _DAMAGE:
            raise _damaged(name) from None


def _check_place(path: str) -> None:
    """Raise the OSError that a write would end in, before hours of work depend on it."""
    check_writable(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"the checkpoint {path!r} is not a regular file; give another path")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"the checkpoint {path!r} cannot be written: no files in its folder")


def _archive(stream: Any) -> Any:
    # Nothing in a checkpoint is packed, so no more can be read than the file has.
    with zipfile.ZipFile(stream) as members:
        packed = any(
            member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size
            for member in members.infolist()
        )
        if packed or len(members.namelist()) > _MAX_MEMBERS:
            raise ValueError("not written by sorel")
        if any(member.file_size > _MAX_HEADER for member in _header_members(members)):
            raise ValueError("no header is that long")
    stream.seek(0)
    archive = np.load(stream, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("a bare array")
    return archive


def _header_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [member for member in archive.infolist() if member.filename.startswith("header")]


def _header(archive: Any, path: str) -> dict[str, Any]:
    """The header, after the checks that need nothing else of the file."""
    if "header" not in archive.files:
        raise _damaged(path)
    header: dict[str, Any] = json.loads(archive["header"].tobytes())
    layout = header["format"]
    if not isinstance(layout, int) or layout < 1:
        raise _damaged(path)
    if layout > _FORMAT:
        raise CheckpointError(
            f"the checkpoint {path!r} was written by sorel {str(header['sorel'])[:_SHOWN]} in "
            f"format {layout}, "
            f"newer than format {_FORMAT} of this version; upgrade sorel, give another path, or "
            "delete the file to start afresh"
        )
    return header


def _damaged(path: str) -> CheckpointError:
    return CheckpointError(
        f"{path!r} is damaged, or not a checkpoint of sorel; give another path, or delete the file "
        "to start afresh"
    )


def _number(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number < math.inf:
        raise ValueError("not a count")
    return number


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON's."""
    return value.tolist()
