"""The one decorator behind every compiled loop of the package, and the store of its results.

It fixes the options that were measured to matter, so that no kernel carries its own copy of them.
Compiled code is kept on disk by numba; here the disk is only ever a help. A folder that cannot be
read or written, a full disk or a damaged file costs the time to compile again, and never the fit. A
folder that was filled before (``sorel warmup``) serves even where it cannot be written any more.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, overload

import numba
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, NullCache
from numba.core.dispatcher import Dispatcher

__all__ = ["cache_folder", "cache_folders", "compiled", "trouble"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Reordering sums gives the whole gain of fast math; leaving out "nnan" and "ninf" keeps NaN and inf
# honest.
_REORDER = {"reassoc", "contract", "nsz", "arcp"}

# The folders that code was stored in or loaded from, and the last error that kept it from being
# stored.
_folders: set[str] = set()
_trouble: Exception | None = None


@overload
def compiled(function: _Function) -> _Function: ...


@overload
def compiled(
    *, fastmath: bool = ..., inline: bool = ..., inner: bool = ...
) -> Callable[[_Function], _Function]: ...


def compiled(
    function: Any = None, *, fastmath: bool = True, inline: bool = False, inner: bool = False
) -> Any:
    """Compile a function of arrays and scalars with the package's options.

    Parameters
    ----------
    function : callable
        A function that numba's nopython mode accepts.
    fastmath : bool, default=True
        Let the compiler reorder sums. Turn it off where the order of the operations carries the
        accuracy (compensated sums, exact differences).
    inline : bool, default=False
        Put the body into compiled callers, which then need no unit of its own: less to compile
        where there is one such caller. It takes over the caller's `fastmath` there.
    inner : bool, default=False
        Leave out the entry for calls from Python, which takes a third of the time to compile a
        short function: only compiled code can call it.

    Returns
    -------
    callable
        The compiled function, or the function itself when ``NUMBA_DISABLE_JIT=1``.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel._compiled import compiled
    >>> @compiled
    ... def total(x):
    ...     s = 0.0
    ...     for value in x:
    ...         s += value
    ...     return s
    >>> float(total(np.ones(3)))
    3.0
    """
    if function is None:
        return lambda f: _compile(f, fastmath, inline, inner)
    return _compile(function, fastmath, inline, inner)


def _compile(function: Any, fastmath: bool, inline: bool, inner: bool) -> Any:
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": _REORDER if fastmath else False,
        "inline": "always" if inline else "never",
        # Nobody passes these functions to C, and each such entry costs milliseconds.
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": inner,
    }
    dispatcher: Any = numba.njit(**options)(function)
    if isinstance(dispatcher, Dispatcher):
        dispatcher._cache = _Store(function)  # type: ignore[attr-defined] # numba's
    return dispatcher


def cache_folder() -> str | None:
    """The folder where this module's code would be stored, or None where none can be written."""
    return _Store(cache_folder).cache_path


def cache_folders() -> list[str]:
    """The folders that this process stored compiled code in, or loaded it from."""
    return sorted(_folders)


def trouble() -> Exception | None:
    """The last error that kept compiled code from being stored, if any."""
    return _trouble


class _Pause(event.Listener):
    """Keeps the garbage collector from searching all that the compiler holds, again and again.

    A tenth of the time to compile, or to load what is compiled, goes there. Functions are compiled
    inside others, and perhaps in several threads: the last to end lets the collector go on, if it
    was on when the first began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._collecting = False

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._collecting = gc.isenabled()
                gc.disable()
            self._depth += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._collecting:
                gc.enable()

    def on_start(self, event: Any) -> None:
        self.__enter__()

    def on_end(self, event: Any) -> None:
        self.__exit__()


_pause = _Pause()
event.register("numba:compile", _pause)


def _without_tests(locators: list[Any]) -> list[Any]:
    untested = {"ensure_cache_path": lambda self: None}
    return [type(locator.__name__, (locator,), untested) for locator in locators]


class _ReadableFiles(CompileResultCacheImpl):
    """numba's folders in numba's order, without its test whether a file can be written there."""

    _locator_classes = _without_tests(CompileResultCacheImpl._locator_classes)


class _ReadableCache(FunctionCache):
    """numba's cache where it would be if all folders could be written to."""

    _impl_class = _ReadableFiles


class _Store:
    """numba's cache of one function, opened when it is first needed.

    Opening it at import would try the folder on disk for each of some hundred functions.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    @cached_property
    def _cache(self) -> Any:
        # Without a folder that can be written, numba raises: neither the source's, nor the user's,
        # nor the one that was set.
        return self._open(FunctionCache) or NullCache()

    @cached_property
    def _readable(self) -> Any:
        place = self._open(_ReadableCache)
        return NullCache() if place is None or place.cache_path == self.cache_path else place

    def _open(self, kind: type[FunctionCache]) -> Any:
        try:
            place = kind(self._function)
        except (RuntimeError, OSError):
            return None
        files = place._cache_file
        # With and without bounds checks the same source makes different code.
        checked = bool(getattr(numba.config, "BOUNDSCHECK", None))
        files._source_stamp = (files._source_stamp, _stamp(self._function), checked)
        return place

    @property
    def cache_path(self) -> str | None:
        path: str | None = self._cache.cache_path
        return path

    def load_overload(self, signature: Any, context: Any) -> Any:
        with _pause:
            return self._load(signature, context)

    def _load(self, signature: Any, context: Any) -> Any:
        for place in (self._cache, self._readable):
            try:
                result = place.load_overload(signature, context)
                if result is None:
                    continue
                # Processes that store at the same time may mix up the files of two signatures.
                if tuple(result.signature.args) != _arguments(signature):
                    raise ValueError("the file holds code for other types")
            except OSError:
                continue
            except Exception:
                # A damaged file raises anything. Start the function's index anew, so that what is
                # compiled now can be stored.
                if place is self._cache:
                    self.flush()
                continue
            _folders.add(place.cache_path)
            return result
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        try:
            self._cache.save_overload(signature, result)
            if self.cache_path is not None:
                _folders.add(self.cache_path)
        except Exception as error:
            _note(error)

    def enable(self) -> None:
        self._cache.enable()

    def disable(self) -> None:
        self._cache.disable()

    def flush(self) -> None:
        try:
            self._cache.flush()
        except OSError as error:
            _note(error)


def _arguments(signature: Any) -> tuple[Any, ...]:
    return tuple(getattr(signature, "args", signature))


def _note(error: Exception) -> None:
    global _trouble
    _trouble = error


def _stamp(function: Any) -> str:
    """A hash of all the source that a compiled function is made of.

    numba looks at the function's own file. But the code of callees is part of the result, and so
    are global numbers, wherever they come from.
    """
    parts = sorted(set(_sources(function, set())))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _sources(function: Any, seen: set[Any]) -> Iterator[str]:
    if function in seen:
        return
    seen.add(function)
    yield _file_hash(inspect.getfile(function))
    for name, value in _globals(function.__code__, function.__globals__):
        callee = value.py_func if isinstance(value, Dispatcher) else value
        if isinstance(callee, FunctionType):
            yield from _sources(callee, seen)
        elif isinstance(value, (bool, int, float, str, tuple)):
            yield f"{function.__module__}.{name}={value!r}"


def _globals(code: CodeType, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The global names that code refers to, with their values, through modules of the package."""
    for name in code.co_names:
        value = scope.get(name)
        if isinstance(value, ModuleType) and value.__name__.startswith(f"{__package__}."):
            yield from _globals(code, vars(value))
        elif value is not None:
            yield name, value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant, scope)


@cache
def _file_hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        # Source in an archive, or none at all: its name must do.
        return os.path.basename(path)
