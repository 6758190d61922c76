"""Saved models: a skops archive with a header, which runs no code when it is loaded.

A model file is a zip archive in the format of skops, plus one member, ``sorel.json``, that holds
the versions that wrote it and the training summary, and another, ``lists.json``, for the names of
many columns, which skops would write at length. Loading reads that header first, then lets
skops build the model from types that skops itself trusts (those of scikit-learn and NumPy) and
from sorel's own; a file that names any other type is refused before anything of it is built.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from sorel._archives import (
    ArchiveError,
    TooLargeError,
    bounded_json,
    read_member,
    repacked,
    size_of,
)
from sorel._files import write_atomically
from sorel._warnings import warn

__all__ = ["ModelFileError", "load_model", "read_summary", "save_model"]

_HEADER, _SCHEMA, _LISTS = "sorel.json", "schema.json", "lists.json"

# What a file may unfold to: so many bytes, or so many times its own size. Loading takes about three
# times as much for a while.
_ROOM, _RATIO = 24 << 20, 3
_MAX_HEADER, _MAX_SCHEMA = 8 << 20, 8 << 20

# Letters in the schema for one of its objects, at least; each takes a kilobyte while it is loaded.
_NODE = 125
_MAX_PIPE = 1 << 30

# Raised when the layout of the archive or the meaning of the header changes. A file without lists
# beside the model is still of the first format, which earlier versions read.
_FORMAT, _WITHOUT_LISTS = 2, 1

# What zipfile, json, NumPy and skops raise on files that were damaged or made up.
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


class ModelFileError(ValueError):
    """The file is not a model that this version of sorel can load; the message says why."""


def save_model(
    model: Any,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    summary: dict[str, Any] | None = None,
    risk_weights: bool = True,
) -> None:
    """Save a fitted estimator or pipeline in a file that runs no code when it is loaded.

    Parameters
    ----------
    model : estimator
        A fitted estimator of sorel, or a scikit-learn pipeline around one.
    path : path or binary stream
        Where to write; by convention the name ends in ``.skops``. A path is written in one step:
        if anything fails, a file of that name stays as it was.
    summary : dict, optional
        What is worth knowing about the training, in JSON's types; added to what the model itself
        tells (its class, risk, certified gap and so on).
    risk_weights : bool, default=True
        Whether to save ``risk_weights_``, one number per training sample, which predictions do not
        need.

    Raises
    ------
    TypeError
        If the model holds something that could not be loaded again, such as a function of the
        user, or the summary holds something that JSON does not know.
    OSError
        If the file cannot be written.

    See Also
    --------
    load_model : The way back.
    read_summary : What is known about a saved model.

    Examples
    --------
    >>> import os, tempfile
    >>> from sklearn.datasets import load_diabetes
    >>> import sorel
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = sorel.SpectralRiskRegressor(risk="cvar:0.1").fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.skops")
    ...     sorel.save_model(model, path, summary={"data": "diabetes"})
    ...     loaded = sorel.load_model(path)
    >>> bool((loaded.predict(X) == model.predict(X)).all())
    True
    """
    if hasattr(model, "to_local"):
        # What was fitted on a cluster is the same model, and needs no cluster to predict.
        model = model.to_local()
    data = _dump(model if risk_weights else _without_weights(model), summary)
    if hasattr(path, "write"):
        cast(BinaryIO, path).write(data)
    else:
        write_atomically(path, data)


def load_model(path: str | os.PathLike[str] | BinaryIO, *, max_bytes: int | None = None) -> Any:
    """Load a model that :func:`save_model` or the command ``sorel fit`` saved.

    Only types of sorel, scikit-learn, NumPy and SciPy are built, by their names; no code from the
    file is run.

    Parameters
    ----------
    path : path or binary stream
        The saved model.
    max_bytes : int, optional
        How much the file may unfold to: by default 24 MB, or three times its own size where that is
        more. Files of :func:`save_model` stay below it.

    Returns
    -------
    estimator
        The fitted estimator or pipeline.

    Raises
    ------
    ModelFileError
        If the file is empty, damaged, not a model of sorel, written by a newer sorel, unfolds to
        more than `max_bytes`, or holds types that are not trusted.
    OSError
        If there is no such file, or it cannot be read.
    ModuleNotFoundError
        If a package is missing that is needed to read it.

    Warns
    -----
    UserWarning
        If the file was written with another scikit-learn (by its first two numbers) or another
        major version of NumPy, which may build or compute something else.

    Examples
    --------
    >>> import io
    >>> from sklearn.datasets import load_diabetes
    >>> import sorel
    >>> X, y = load_diabetes(return_X_y=True)
    >>> stream = io.BytesIO()
    >>> sorel.save_model(sorel.SpectralRiskRegressor().fit(X, y), stream)
    >>> _ = stream.seek(0)
    >>> sorel.load_model(stream)
    SpectralRiskRegressor()
    """
    with _opened(path) as (stream, name):
        return _load_checked(stream, name, max_bytes)


def _load_checked(stream: BinaryIO, name: str, max_bytes: int | None) -> Any:
    strange = _strange_versions(_header(stream, name))
    if strange:
        warn(
            f"{name} was saved with {strange}; its predictions may differ: save the model again, "
            "or install those versions"
        )
    try:
        return _load(stream, name, max_bytes)
    except ModelFileError as error:
        if not strange:
            raise
        raise ModelFileError(f"{error} (it was saved with {strange})") from None


def read_summary(path: str | os.PathLike[str] | BinaryIO) -> dict[str, Any]:
    """Return what is known about a saved model, without loading the model.

    Parameters
    ----------
    path : path or binary stream
        The saved model.

    Returns
    -------
    dict
        ``"sorel"`` is the version that wrote the file, ``"versions"`` those of scikit-learn and
        NumPy beside it, ``"created"`` the time in UTC; the rest describes the model and its
        training.

    Raises
    ------
    ModelFileError
        If the file is not a model of sorel, or written by a newer one.

    Examples
    --------
    >>> import io
    >>> from sklearn.datasets import load_diabetes
    >>> import sorel
    >>> from sorel.saving import read_summary
    >>> X, y = load_diabetes(return_X_y=True)
    >>> stream = io.BytesIO()
    >>> model = sorel.SpectralRiskRegressor(risk="cvar:0.1").fit(X, y)
    >>> sorel.save_model(model, stream, summary={"data": "diabetes"})
    >>> _ = stream.seek(0)
    >>> summary = read_summary(stream)
    >>> summary["risk"], summary["data"], summary["n_features"]
    ('cvar:0.1', 'diabetes', 10)
    """
    with _opened(path) as (stream, name):
        header = _header(stream, name)
    return {
        "sorel": header["sorel"],
        "versions": header.get("versions", {}),
        "created": header.get("created"),
        **header.get("summary", {}),
    }


def _dump(model: Any, summary: dict[str, Any] | None) -> bytes:
    skops_io = _skops()
    from sorel import __version__
    from sorel._sequences import take_out

    facts = _describe(model)
    model, lists = take_out(_without_checkpoints(model))
    header = {
        "format": _FORMAT if lists else _WITHOUT_LISTS,
        "sorel": __version__,
        "versions": _versions(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "summary": {**facts, **(summary or {})},
    }
    try:
        texts = {_HEADER: json.dumps(header, indent=None if lists else 2, allow_nan=False)}
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the summary must hold only numbers, texts, lists and dictionaries of them: {error}"
        ) from None
    if lists:
        texts[_LISTS] = json.dumps(lists, separators=(",", ":"))
    # Long arrays of zeros and many texts unfold to more than whoever loads them allows: they are
    # saved without being packed.
    refused: ModelFileError | None = None
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        buffer = _archive(skops_io, model, texts, compression)
        try:
            # Better no file than one that cannot be read back.
            _load(buffer, "the new file")
            return buffer.getvalue()
        except ModelFileError as error:
            refused = error
    raise TypeError(f"{_name(model)} cannot be saved so that it loads again: {refused}")


def _archive(skops_io: Any, model: Any, texts: dict[str, str], compression: int) -> io.BytesIO:
    try:
        buffer = io.BytesIO(skops_io.dumps(model, compression=compression))
    except (TypeError, AttributeError, RecursionError) as error:
        raise TypeError(f"{_name(model)} cannot be saved: {error}") from None
    with zipfile.ZipFile(buffer, "a", compression=compression) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return buffer


def _without_weights(model: Any) -> Any:
    """A copy of the model that has forgotten the weights of its training samples."""
    model = copy.copy(model)
    if hasattr(model, "steps"):
        model.steps = [(name, _without_weights(step)) for name, step in model.steps]
    vars(model).pop("risk_weights_", None)
    return model


def _versions() -> dict[str, str]:
    """Versions of the packages whose objects a model file holds."""
    import numpy
    import sklearn

    return {"scikit-learn": sklearn.__version__, "numpy": numpy.__version__}


def _without_checkpoints(model: Any) -> Any:
    """The model, or a copy that has forgotten where the state of its fit was kept.

    A path on this machine means nothing to whoever loads the model.
    """
    from sorel.estimators.base import SpectralFit

    params = model.get_params() if hasattr(model, "get_params") else {}
    places: dict[str, None] = {}
    for name, value in params.items():
        owner, _, last = name.rpartition("__")
        holder = params.get(owner) if owner else model
        if last == "checkpoint" and value is not None and isinstance(holder, SpectralFit):
            places[name] = None
    return copy.deepcopy(model).set_params(**places) if places else model


def _describe(model: Any) -> dict[str, Any]:
    """What a fitted model tells about itself, in JSON's types."""
    last = model
    while hasattr(last, "steps"):
        last = last.steps[-1][1]
    facts: dict[str, Any] = {"model": type(last).__name__}
    risk = getattr(last, "best_risk_", getattr(last, "risk", None))
    if risk is not None:
        facts["risk"] = risk if isinstance(risk, str) else getattr(risk, "spec", None) or repr(risk)
    loss = getattr(last, "loss", None)
    if isinstance(loss, str):
        facts["loss"] = loss
    for owner, attribute, key, kind in (
        (model, "n_features_in_", "n_features", int),
        (model, "feature_names_in_", "columns", lambda names: [str(name) for name in names]),
        (last, "classes_", "classes", lambda labels: labels.tolist()),
        (last, "objective_", "objective", float),
        (last, "relative_gap_", "relative_gap", float),
        (last, "n_passes_", "passes", float),
        (last, "status_", "status", str),
    ):
        try:
            facts[key] = kind(getattr(owner, attribute))
        except (AttributeError, TypeError, ValueError):
            continue
    return facts


@contextlib.contextmanager
def _opened(file: str | os.PathLike[str] | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    """A stream that can be read more than once, and what messages call it."""
    if hasattr(file, "read"):
        given = cast(BinaryIO, file)
        name = getattr(file, "name", None)
        label = repr(name) if isinstance(name, str) else "the stream"
        # What was read already is no part of the model.
        yield io.BytesIO(given.read()), label
        return
    path = Path(file)
    with path.open("rb") as stream:
        if path.is_file():
            yield stream, repr(str(path))
            return
        data = stream.read(_MAX_PIPE + 1)
        if len(data) > _MAX_PIPE:
            raise ModelFileError(f"{str(path)!r} does not end after {_MAX_PIPE >> 20} MB")
        yield io.BytesIO(data), repr(str(path))


def _header(stream: BinaryIO, name: str) -> dict[str, Any]:
    """The header, after the checks that need nothing else of the file."""
    if not size_of(stream):
        raise ModelFileError(f"{name} is empty; save the model again")
    try:
        text = read_member(stream, _HEADER, _MAX_HEADER)
    except ArchiveError as error:
        raise _refused(name, error) from None
    except _DAMAGE as error:
        if not zipfile.is_zipfile(stream):
            raise ModelFileError(
                f"{name} is not a model of sorel, or it is damaged: it is not a whole zip archive"
            ) from None
        raise _damaged(name, error) from None
    if text is None:
        raise ModelFileError(f"{name} is not a model of sorel: it has no {_HEADER} inside")
    try:
        header = bounded_json(text, _MAX_HEADER)
        written, layout = header["sorel"], header["format"]
        summary = header.get("summary", {})
        newer = layout > _FORMAT or _newer(written)
        whole = isinstance(summary, dict) and isinstance(written, str)
    except (*_DAMAGE, RecursionError) as error:
        _tell_missing(name, error)
        raise _damaged(name, error) from None
    if not whole:
        raise ModelFileError(f"{name} is damaged: its {_HEADER} does not describe a model")
    if newer:
        from sorel import __version__

        raise ModelFileError(
            f"{name} was saved by sorel {written}, newer than this sorel {__version__}; "
            "upgrade with: pip install --upgrade sorel"
        )
    return cast(dict[str, Any], header)


def _load(stream: BinaryIO, name: str, max_bytes: int | None = None) -> Any:
    skops_io = _skops()
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        with warnings.catch_warnings():
            # NumPy and the archive reader grumble about damaged bytes before they give up.
            warnings.simplefilter("ignore", SyntaxWarning)
            data, lists = _checked_archive(stream, max_bytes)
            model = skops_io.loads(data, trusted=_trusted_types())
            if lists is not None:
                from sorel._sequences import put_back

                model = put_back(model, lists)
    except UntrustedTypesFoundException as error:
        foreign = str(error).partition("[")[2].partition("]")[0] or str(error)
        raise ModelFileError(
            f"{name} holds types that sorel does not trust, and was not loaded: {foreign}"
        ) from None
    except TooLargeError as error:
        raise ModelFileError(
            f"{name} was not loaded: {error}; if you trust it, allow more with "
            "sorel.load_model(..., max_bytes=...)"
        ) from None
    except ArchiveError as error:
        raise _refused(name, error) from None
    except (*_DAMAGE, MemoryError, RecursionError, SyntaxError) as error:
        _tell_missing(name, error)
        raise _damaged(name, error) from None
    _check_model(model, name)
    return model


def _limit(size: int) -> int:
    return max(_ROOM, _RATIO * size)


def _checked_archive(stream: BinaryIO, max_bytes: int | None) -> tuple[bytes, Any]:
    """The archive without surprises: unpacked, and read by skops no more often than is counted.

    And the lists beside the model, if there are any.
    """
    limit = _limit(size_of(stream)) if max_bytes is None else max_bytes
    copy, sizes = repacked(stream, limit)
    room = max(limit // _RATIO, _MAX_SCHEMA)
    text = read_member(copy, _SCHEMA, room)
    if text is None:
        raise ValueError(f"it has no {_SCHEMA} inside")
    schema = bounded_json(text, room, room // _NODE)
    # Each array in the schema reads its member anew.
    total = sum(sizes.get(file, 0) for file in _files(schema))
    if total > limit:
        raise TooLargeError(f"its arrays take {total / 1e6:g} MB, and may take {limit / 1e6:g} MB")
    text = read_member(copy, _LISTS, room)
    lists = None if text is None else bounded_json(text, room, room // _NODE)
    return copy.getvalue(), lists


def _files(schema: Any) -> Iterator[str]:
    """The members of the archive that a schema refers to, as often as it does."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            file = node.get("file")
            if isinstance(file, str):
                yield file
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _check_model(model: Any, name: str) -> None:
    from sklearn.base import BaseEstimator

    if not isinstance(model, BaseEstimator):
        raise ModelFileError(f"{name} holds a {type(model).__name__}, which is no model")


def _refused(name: str, error: ArchiveError) -> ModelFileError:
    return ModelFileError(f"{name} is not a model of sorel, or it is damaged: {error}")


def _strange_versions(header: dict[str, Any]) -> str:
    """The versions of the file that differ from those here, in words; empty if none do."""
    saved, here = header.get("versions"), _versions()
    if not isinstance(saved, dict):
        return ""
    digits = {"scikit-learn": 2, "numpy": 1}
    strange = [
        f"{package} {saved[package]} (here: {here[package]})"
        for package, count in digits.items()
        if isinstance(saved.get(package), str)
        and saved[package].split(".")[:count] != here[package].split(".")[:count]
    ]
    return " and ".join(strange)


# Packages that reading a model may need. A file that names any other module is not one of ours.
_NEEDED = ("packaging", "skops", "scipy", "sklearn", "joblib", "pandas", "threadpoolctl", "numba")


def _tell_missing(name: str, error: BaseException) -> None:
    """Raise an error that names the missing package, if that is what went wrong."""
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and missing in _NEEDED:
        raise ModuleNotFoundError(
            f'to read {name}, {missing} is needed: pip install "sorel[cli]"', name=missing
        ) from None


def _damaged(name: str, error: BaseException) -> ModelFileError:
    # One line, whatever the library below had to say.
    reason = " ".join(str(error).split()) or type(error).__name__
    return ModelFileError(f"{name} is damaged and was not loaded: {reason[:200]}")


def _newer(written: str) -> bool:
    from packaging.version import InvalidVersion, Version

    from sorel import __version__

    try:
        return Version(written) > Version(__version__)
    except InvalidVersion as error:
        raise ValueError(f"{written!r} is not a version") from error


def _trusted_types() -> list[str]:
    """Names of the types that a model may hold besides those that skops trusts by itself.

    They are sorel's own, NumPy's descriptions of number types, which scikit-learn's imputers
    keep, and a list of columns that scikit-learn 1.6 keeps. None of them acts when it is built.
    """
    from sorel import estimators, losses, metrics, model_selection, penalties, risks
    from sorel.solvers.base import Solver

    found: set[type] = {metrics.TailScorer}
    found.update(_descendants(risks.Risk))
    found.update(_descendants(losses.Loss))
    found.update(_descendants(penalties.Penalty))
    found.update(_descendants(Solver))
    for module in (estimators, model_selection):
        found.update(getattr(module, name) for name in module.__all__)
    # Subclasses may come from anywhere; those from elsewhere are not ours to trust.
    ours = [cls for cls in found if cls.__module__.partition(".")[0] == "sorel"]
    theirs = ["numpy.dtype", "sklearn.compose._column_transformer._RemainderColsList"]
    return sorted([*theirs, *(f"{cls.__module__}.{cls.__qualname__}" for cls in ours)])


def _descendants(base: type) -> set[type]:
    below: set[type] = set(base.__subclasses__())
    return below.union(*(_descendants(cls) for cls in below))


def _name(model: Any) -> str:
    return f"this {type(model).__name__}"


def _skops() -> Any:
    try:
        import skops.io
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "skops":
            raise
        raise ModuleNotFoundError(
            'saved models need skops: pip install "sorel[cli]"', name=error.name
        ) from None
    return skops.io
