"""Saved models: a skops archive with a header, which runs no code when it is loaded.

A model file is a zip archive in the format of skops, plus one member, ``sorel.json``, that holds
the versions that wrote it and the training summary. Loading reads that header first, then the names
of all types in the file: one outside the list of ``contents.py`` is refused before anything is
built. Objects and arrays are numbered in the order of the file and no times are kept, so that the
same model makes the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import json
import math
import os
import sys
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from sorel._lib.extras import import_extra
from sorel._lib.text import shorten
from sorel._lib.warnings import warn
from sorel.files.archives import MAX_TEXT, ArchiveError, TooLargeError, bounded_json, unpacked
from sorel.files.atomic import write_atomically

__all__ = ["ModelFileError", "load_model", "read_summary", "save_model"]

_HEADER, _SCHEMA = "sorel.json", "schema.json"

# How many times its own size a file may unfold to, or that of the longest text where that is more.
# The schema may take this part of it. Loading takes about three times as much for a while.
_RATIO = 3
# Raised when the layout of the archive or the meaning of the header changes. 2 was never released.
_FORMAT = 1


class ModelFileError(ValueError):
    """The file is not a model that this version of sorel can load; the message says why."""


def save_model(
    model: Any,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    summary: dict[str, Any] | None = None,
    risk_weights: bool = True,
    times: bool = False,
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
    times : bool, default=False
        Whether to save when the file was written, and the seconds that the fit took, in
        ``history_`` and ``cv_results_``. Without them they are missing there, and the same model
        makes the same bytes.

    Raises
    ------
    TypeError
        If the model holds something that could not be loaded again, such as a function of the
        user, or the summary holds something that JSON does not know.
    ValueError
        If coefficients are not finite.
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
    data = _dump(model, summary, risk_weights, times)
    if hasattr(path, "write"):
        cast(BinaryIO, path).write(data)
    else:
        write_atomically(path, data)


def load_model(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    max_bytes: int | None = None,
    trusted: Collection[str] = (),
) -> Any:
    """Load a model that :func:`save_model` or the command ``sorel fit`` saved.

    No code from the file is run. By default a file may hold estimators of sorel, with their risks,
    losses, penalties and solvers, and the parts of the pipeline of ``sorel fit``: ``Pipeline``,
    ``ColumnTransformer``, ``SimpleImputer``, ``StandardScaler`` and ``OneHotEncoder``. Their arrays
    must be finite and fit together.

    Parameters
    ----------
    path : path or binary stream
        The saved model.
    max_bytes : int, optional
        How much the file may unfold to: by default 24 MB, or three times its own size where that is
        more. Files of :func:`save_model` stay below it.
    trusted : collection of str
        Names of other types that the file may hold, such as
        ``"sklearn.preprocessing._polynomial.PolynomialFeatures"``; the error names those that it
        does hold. Name them only if you trust whoever made the file: what such an estimator does
        with its numbers, and with a table, is not checked.

    Returns
    -------
    estimator
        The fitted estimator or pipeline.

    Raises
    ------
    ModelFileError
        If the file is empty, damaged, not a model of sorel, written by a newer sorel, unfolds to
        more than `max_bytes`, holds types that are not trusted, or numbers that are not finite or
        do not fit together.
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
        strange = _strange_versions(_header(stream, name))
        if strange:
            warn(
                f"{name} was saved with {strange}; its predictions may differ: save the model "
                "again, or install those versions"
            )
        return _load(stream, name, max_bytes, frozenset(trusted))


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
        NumPy beside it, ``"created"`` the time in UTC where it was saved; the rest describes the
        model and its training.

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
    facts = {"sorel": header["sorel"], "versions": header.get("versions", {})}
    if "created" in header:
        facts["created"] = header["created"]
    return facts | header.get("summary", {})


def _dump(model: Any, summary: dict[str, Any] | None, risk_weights: bool, times: bool) -> bytes:
    skops_io = import_extra("skops.io", "saved models need")
    from sorel import __version__
    from sorel.files.contents import check_numbers

    check_numbers(model, trusted=None)
    header = {
        "format": _FORMAT,
        "sorel": __version__,
        "versions": _versions(),
        "summary": {**_describe(model), **(summary or {})},
    }
    if times:
        header["created"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        text = json.dumps(header, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the summary must hold only numbers, texts, lists and dictionaries of them: {error}"
        ) from None
    name = f"this {type(model).__name__}"
    try:
        written = skops_io.dumps(_lasting(model, risk_weights, times))
    except (TypeError, AttributeError, RecursionError) as error:
        raise TypeError(f"{name} cannot be saved: {error}") from None
    members = _numbered(unpacked(io.BytesIO(written), sys.maxsize)) | {_HEADER: text.encode()}
    # Long arrays of zeros and many texts unfold to more than whoever loads them allows: they are
    # saved without being packed.
    refused: ModelFileError | None = None
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        archive = _zipped(members, compression)
        try:
            # Better no file than one that cannot be read back.
            _load(archive, "the new file", trusted=None)
            return archive.getvalue()
        except ModelFileError as error:
            refused = error
    raise TypeError(f"{name} cannot be saved so that it loads again: {refused}")


def _zipped(members: Mapping[str, bytes], compression: int) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            # An entry without a time of its own is of 1980.
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer


def _numbered(members: dict[str, bytes]) -> dict[str, bytes]:
    """Number the objects and members of an archive, which skops calls by addresses in memory.

    Whether two plain values are one object depends on the interpreter and says nothing: those lose
    their numbers.
    """
    from sorel.files.contents import nodes_of

    schema = json.loads(members[_SCHEMA])
    objects: dict[int, int] = {}
    names: dict[str, str] = {}
    for node in nodes_of(schema):
        address, member = node.get("__id__"), node.get("file")
        if node.get("__loader__") in ("JsonNode", "TypeNode"):
            node.pop("__id__", None)
        elif isinstance(address, int):
            node["__id__"] = objects.setdefault(address, len(objects) + 1)
        if isinstance(member, str):
            node["file"] = names.setdefault(member, f"{len(names)}{Path(member).suffix}")
    renamed = {after: members[before] for before, after in names.items()}
    return {**renamed, _SCHEMA: json.dumps(schema).encode()}


def _lasting(model: Any, risk_weights: bool, times: bool) -> Any:
    """A copy without what belongs to this machine or this moment.

    That is where the state of a fit was kept, and how long it took.
    """
    from sorel.estimators.base import SpectralFit, SpectralModel
    from sorel.files.contents import estimators_in
    from sorel.solvers.solve import Record

    model = copy.deepcopy(model)
    for part in estimators_in(model):
        state = vars(part)
        if isinstance(part, SpectralFit):
            part.checkpoint = None
        if isinstance(part, SpectralModel) and not risk_weights:
            state.pop("risk_weights_", None)
        if isinstance(part, SpectralModel) and not times:
            if "_history" in state:
                state["_history"][:, Record._fields.index("seconds")] = math.nan
            if "cv_results_" in state:
                state["cv_results_"]["mean_fit_time"][:] = math.nan
    return model


def _versions() -> dict[str, str]:
    """Versions of the packages whose objects a model file holds."""
    import numpy
    import sklearn

    return {"scikit-learn": sklearn.__version__, "numpy": numpy.__version__}


def _describe(model: Any) -> dict[str, Any]:
    """What a fitted model tells about itself, in JSON's types."""
    last = model
    while hasattr(last, "steps"):
        last = last.steps[-1][1]
    facts: dict[str, Any] = {"model": type(last).__name__}
    risk = getattr(last, "best_risk_", getattr(last, "risk", None))
    if risk is not None:
        facts["risk"] = risk if isinstance(risk, str) else getattr(risk, "spec", None) or repr(risk)
    if isinstance(getattr(last, "loss", None), str):
        facts["loss"] = last.loss
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
        name = getattr(file, "name", None)
        label = repr(name) if isinstance(name, str) else "the stream"
        # What was read already is no part of the model.
        yield io.BytesIO(cast(BinaryIO, file).read()), label
        return
    path = Path(file)
    with path.open("rb") as stream:
        yield stream if path.is_file() else io.BytesIO(stream.read()), repr(str(path))


def _header(stream: BinaryIO, name: str) -> dict[str, Any]:
    """The header, after the checks that need nothing else of the file."""
    version = import_extra("packaging.version", "saved models need").Version
    from sorel import __version__

    with _refusing(name):
        found = unpacked(stream, MAX_TEXT, only=_HEADER)
        if not found:
            raise ModelFileError(f"{name} is not a model of sorel: it has no {_HEADER} inside")
        header = bounded_json(found[_HEADER])
        written = header["sorel"]
        newer = header["format"] > _FORMAT or version(written) > version(__version__)
        if not isinstance(header.get("summary", {}), dict):
            raise ValueError(f"its {_HEADER} does not describe a model")
    if newer:
        raise ModelFileError(
            f"{name} was saved by sorel {written}, newer than this sorel {__version__}; "
            "upgrade with: pip install --upgrade sorel"
        )
    return cast(dict[str, Any], header)


def _load(
    stream: BinaryIO, name: str, max_bytes: int | None = None, trusted: Collection[str] | None = ()
) -> Any:
    """The model; `trusted` is None where all that skops trusts may be in it."""
    skops_io = import_extra("skops.io", "saved models need")
    from sklearn.base import BaseEstimator

    from sorel.files.contents import check_numbers, foreign_types, own_types

    with _refusing(name), warnings.catch_warnings():
        # NumPy and the archive reader grumble about damaged bytes before they give up.
        warnings.simplefilter("ignore", SyntaxWarning)
        data, schema = _checked_archive(stream, max_bytes)
        foreign = [] if trusted is None else foreign_types(schema, trusted)
        if foreign:
            raise ModelFileError(
                f"{name} holds types that sorel does not trust, and was not loaded: "
                f"{', '.join(foreign)}; if you trust whoever made it, name them with "
                "sorel.load_model(..., trusted=[...])"
            )
        model = skops_io.loads(data, trusted=[*own_types(), *(trusted or ())])
        check_numbers(model, trusted)
    if not isinstance(model, BaseEstimator):
        raise ModelFileError(f"{name} holds a {type(model).__name__}, which is no model")
    return model


def _checked_archive(stream: BinaryIO, max_bytes: int | None) -> tuple[bytes, Any]:
    """The archive, which skops reads no more often than is counted, unpacked; and its schema."""
    from sorel.files.contents import nodes_of

    size = stream.seek(0, os.SEEK_END)
    limit = _RATIO * max(MAX_TEXT, size) if max_bytes is None else max_bytes
    members = unpacked(stream, limit)
    if _SCHEMA not in members:
        raise ValueError(f"it has no {_SCHEMA} inside")
    schema = bounded_json(members[_SCHEMA], max(limit // _RATIO, MAX_TEXT))
    # Each array in the schema reads its member anew.
    files = [node["file"] for node in nodes_of(schema) if isinstance(node.get("file"), str)]
    total = sum(len(members.get(file, b"")) for file in files)
    if total > limit:
        raise TooLargeError(f"its arrays take {total / 1e6:g} MB, and may take {limit / 1e6:g} MB")
    return _zipped(members, zipfile.ZIP_STORED).getvalue(), schema


@contextlib.contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn whatever the libraries have to say to a file into an error that names it."""
    try:
        yield
    except ModelFileError:
        raise
    except TooLargeError as error:
        raise ModelFileError(
            f"{name} was not loaded: {error}; if you trust it, allow more with "
            "sorel.load_model(..., max_bytes=...)"
        ) from None
    except (ArchiveError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"{name} is not a model of sorel, or it is damaged: {error}") from None
    except Exception as error:
        reason = shorten(error) or type(error).__name__
        raise ModelFileError(f"{name} is damaged and was not loaded: {reason}") from None


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
