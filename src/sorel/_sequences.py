"""Long lists of texts and numbers inside a model, kept apart from it in a saved file.

skops writes every text and every number of a list as an object of its own, which takes a kilobyte
while it is written or read; a pipeline over a wide table names its columns five times, and so do
the categories of many texts. `take_out` puts a short mark in the place of each such list, and equal
lists are kept once; `put_back` is the way back.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

__all__ = ["put_back", "take_out"]

# Shorter ones stay where they are, so that files of narrow tables are plain skops files.
_LONG = 256

# What a mark says: which list, and what it was.
_MARK, _KIND = "sorel_sequence", "kind"
_LIST, _ARRAY, _ARRAYS = "list", "array", "arrays"


def take_out(model: Any) -> tuple[Any, list[list[Any]]]:
    """A copy of a model with marks for its long lists, and the lists; the model itself stays.

    Parameters
    ----------
    model : estimator
        Any estimator; lists, tuples, dictionaries and estimators inside it are looked through.

    Returns
    -------
    model : estimator
        The model itself where it has no such lists.
    lists : list of list
        Texts or whole numbers, or tuples of texts.

    Examples
    --------
    >>> from sklearn.preprocessing import FunctionTransformer
    >>> from sorel._sequences import put_back, take_out
    >>> model = FunctionTransformer(kw_args={"names": ["a"] * 1000})
    >>> marked, lists = take_out(model)
    >>> marked.kw_args, len(lists[0])
    ({'names': {'sorel_sequence': 0, 'kind': 'list'}}, 1000)
    >>> put_back(marked, lists).kw_args == model.kw_args
    True
    """
    return _Taker().visit(model)


def put_back(model: Any, lists: Any) -> Any:
    """The model with the lists in their places; it is changed where that can be done.

    Parameters
    ----------
    model : estimator
        With marks from :func:`take_out`.
    lists : list of list
        What belongs there. A list that was in several places is the same object in all of them.

    Raises
    ------
    LookupError, TypeError, ValueError
        If a mark or a list is none.
    """
    return _Putter(lists).visit(model)


class _Taker:
    def __init__(self) -> None:
        self._lists: list[list[Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}
        # What was looked at, and what came of it; the original is held so that its id stays its.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def visit(self, model: Any) -> tuple[Any, list[list[Any]]]:
        return self._marked(model), self._lists

    def _marked(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple, dict, np.ndarray, BaseEstimator)):
            return value
        if id(value) not in self._seen:
            # A model that holds itself is left to skops.
            self._seen[id(value)] = value, value
            self._seen[id(value)] = value, self._replaced(value)
        return self._seen[id(value)][1]

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            texts = _is_list(value) and _is_plain(value, str)
            return self._mark(value.tolist(), _ARRAY) if texts else value
        if isinstance(value, BaseEstimator):
            before = vars(value)
            after = {name: self._marked(part) for name, part in before.items()}
            if all(after[name] is before[name] for name in before):
                return value
            new = copy.copy(value)
            vars(new).update(after)
            return new
        if type(value) is dict:
            after = {name: self._marked(part) for name, part in value.items()}
            return value if all(after[name] is value[name] for name in value) else after
        if type(value) not in (list, tuple):
            return value
        if type(value) is list and (_is_plain(value, str) or _is_plain(value, int)):
            return self._mark(value, _LIST)
        if type(value) is list and _are_texts(value):
            return self._mark([tuple(part) for part in value], _ARRAYS)
        parts = [self._marked(part) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)

    def _mark(self, values: list[Any], kind: str) -> dict[str, Any]:
        place = self._places.setdefault(tuple(values), len(self._lists))
        if place == len(self._lists):
            self._lists.append(values)
        return {_MARK: place, _KIND: kind}


def _is_plain(values: Any, kind: type) -> bool:
    return len(values) >= _LONG and all(type(value) is kind for value in values)


def _is_list(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1


def _are_texts(values: list[Any]) -> bool:
    """Whether these are many arrays of texts, such as the categories of many columns."""
    return len(values) >= _LONG and all(
        _is_list(value) and all(type(text) is str for text in value) for value in values
    )


class _Putter:
    def __init__(self, lists: Any) -> None:
        if not isinstance(lists, list) or not all(isinstance(part, list) for part in lists):
            raise TypeError("the lists of its columns are none")
        self._lists = lists
        self._made: dict[tuple[int, str], Any] = {}
        self._seen: dict[int, Any] = {}

    def visit(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple, dict, BaseEstimator)):
            return value
        if isinstance(value, dict) and _MARK in value:
            return self._meant(value[_MARK], value[_KIND])
        if id(value) in self._seen:
            return value
        self._seen[id(value)] = value
        if isinstance(value, tuple):
            parts = [self.visit(part) for part in value]
            same = all(new is old for new, old in zip(parts, value, strict=True))
            return value if same else tuple(parts)
        if isinstance(value, list):
            value[:] = [self.visit(part) for part in value]
        else:
            inside = value if isinstance(value, dict) else vars(value)
            for name, part in list(inside.items()):
                inside[name] = self.visit(part)
        return value

    def _meant(self, place: Any, kind: Any) -> Any:
        if type(place) is not int or place < 0 or kind not in (_LIST, _ARRAY, _ARRAYS):
            raise ValueError(f"{place!r} is no place in the lists of its columns")
        values = self._lists[place]
        if kind == _LIST:
            return values
        if (place, kind) not in self._made:
            arrays = [_texts(part) for part in values] if kind == _ARRAYS else _texts(values)
            self._made[place, kind] = arrays
        return self._made[place, kind]


def _texts(values: Any) -> Any:
    if not isinstance(values, list):
        raise TypeError("the lists of its columns are none")
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
