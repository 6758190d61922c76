"""What a model file may hold: a list of types, and checks of the numbers in them.

skops builds any estimator of scikit-learn. Once they predict, some of those open files that a table
names, follow indices without looking at bounds, or ask for memory without end. So a file may hold
estimators of sorel and the parts of the pipeline of ``sorel fit``, and nothing else unless whoever
loads it names it. That is decided by names, before anything is built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sorel._lib.aliases import public_name

# What skops calls the builders of plain values, and the types that each may build here.
_NUMBERS = ("numpy.bool", "numpy.bool_", "numpy.float32", "numpy.float64", "numpy.int64")
_PLAIN = {
    "DictNode": ("builtins.dict",),
    "ListNode": ("builtins.list",),
    "TupleNode": ("builtins.tuple",),
    "SliceNode": ("builtins.slice",),
    "JsonNode": ("builtins.str",),
    "TypeNode": ("builtins.bool", "builtins.float", "builtins.int", "builtins.str", *_NUMBERS),
    "NdArrayNode": ("numpy.ndarray", "numpy.str_", *_NUMBERS),
    "DTypeNode": ("numpy.dtype",),
}
# The parts of what `sorel fit` writes; the last is a list of columns that scikit-learn 1.6 keeps.
_PREPARATION = (
    "sklearn.pipeline.Pipeline",
    "sklearn.compose._column_transformer.ColumnTransformer",
    "sklearn.impute._base.SimpleImputer",
    "sklearn.preprocessing._data.StandardScaler",
    "sklearn.preprocessing._encoders.OneHotEncoder",
    "sklearn.compose._column_transformer._RemainderColsList",
)


def own_types() -> list[str]:
    """Names of the types that skops has to be told of: sorel's own, and NumPy's ``dtype``.

    Returns
    -------
    list of str
        Estimators, risks, losses, penalties and solvers. None of them acts when it is built.

    Examples
    --------
    >>> from sorel.files.contents import own_types
    >>> "sorel.problem.risks.CVaR" in own_types()
    True
    """
    from sorel import estimators
    from sorel.estimators import metrics, model_selection
    from sorel.problem import losses, penalties, risks
    from sorel.solvers.base import Solver

    found: set[type] = {metrics.TailScorer}
    for base in (risks.Risk, losses.Loss, penalties.Penalty, Solver):
        found.update(_descendants(base))
    for module in (estimators, model_selection):
        found.update(getattr(module, name) for name in module.__all__)
    # Subclasses may come from anywhere; those from elsewhere are not ours to trust.
    ours = [cls for cls in found if cls.__module__.partition(".")[0] == "sorel"]
    # A file may name a class by either name of its module.
    modules = [
        (cls, name) for cls in ours for name in (cls.__module__, public_name(cls.__module__))
    ]
    names = {f"{module}.{cls.__qualname__}" for cls, module in modules}
    return sorted([*names, "numpy.dtype", _PREPARATION[-1]])


def foreign_types(schema: Any, trusted: Collection[str] = ()) -> list[str]:
    """Types in the schema of a file that it may not hold.

    Parameters
    ----------
    schema : dict
        What skops wrote as ``schema.json``.
    trusted : collection of str
        Names of types that it may hold besides.

    Returns
    -------
    list of str
        Their names; empty for a file of ``sorel fit``.

    Examples
    --------
    >>> from sorel.files.contents import foreign_types
    >>> svr = {"__module__": "sklearn.svm._classes", "__class__": "SVR", "__loader__": "ObjectNode"}
    >>> foreign_types(svr)
    ['sklearn.svm._classes.SVR']
    """
    own = own_types()
    # Penalties with arrays are made anew by their constructors.
    allowed = {**_PLAIN, "ObjectNode": {*own, *_PREPARATION}, "ConstructorFromReduceNode": own}
    found = set()
    for node in nodes_of(schema):
        if "__loader__" in node or isinstance(node.get("__class__"), str):
            name = f"{node.get('__module__')}.{node.get('__class__')}"
            if name not in trusted and name not in allowed.get(str(node.get("__loader__")), ()):
                found.add(name)
    return sorted(found)


def nodes_of(schema: Any) -> Iterator[dict[str, Any]]:
    """All dictionaries in a value of JSON, those inside others too, in an order of their own.

    Parameters
    ----------
    schema : Any
        The value.
    """
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def estimators_in(model: Any) -> Iterator[BaseEstimator]:
    """The estimators that a model is made of, the model among them, each once.

    Parameters
    ----------
    model : Any
        Lists, tuples, dictionaries and estimators inside it are looked through.
    """
    seen: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, (list, tuple, dict, BaseEstimator)) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, BaseEstimator):
            yield value
            value = vars(value)
        waiting.extend(value.values() if isinstance(value, dict) else value)


def check_numbers(model: Any, trusted: Collection[str] | None = ()) -> None:
    """Refuse a model whose numbers are not finite, or whose arrays do not fit together.

    Parameters
    ----------
    model : estimator
        As it was built from a file, or is to be saved.
    trusted : collection of str, optional
        Names of types that are not looked at; None stands for all but sorel's own.

    Raises
    ------
    ValueError
        If something is wrong; the message names the array.

    Examples
    --------
    >>> import numpy as np
    >>> import sorel
    >>> from sorel.files.contents import check_numbers
    >>> model = sorel.SpectralRiskRegressor().fit(np.eye(3), [1.0, 2.0, 4.0])
    >>> model.coef_[0] = np.nan
    >>> check_numbers(model)
    Traceback (most recent call last):
    ...
    ValueError: coef_ of the SpectralRiskRegressor is not finite
    """
    from sorel.estimators.base import SpectralModel

    checks: dict[type, Callable[[Any], None]] = {SpectralModel: _check_linear}
    if trusted is not None:
        checks |= {
            StandardScaler: _check_scaler,
            OneHotEncoder: _check_encoder,
            ColumnTransformer: _check_columns,
        }
    for part in estimators_in(model):
        name = f"{type(part).__module__}.{type(part).__qualname__}"
        for kind, check in checks.items():
            if isinstance(part, kind) and name not in (trusted or ()):
                check(part)


def _check_linear(model: Any) -> None:
    if not hasattr(model, "coef_"):
        return
    shape = np.shape(getattr(model, "quantile", 0.5))
    if isinstance(model, ClassifierMixin):
        labels = np.asarray(model.classes_)
        if labels.ndim != 1 or len(labels) < 2:
            raise ValueError(f"classes_ of the {type(model).__name__} are no labels")
        shape = (1,) if len(labels) == 2 else labels.shape
    _check_array(model, "coef_", (*shape, model.n_features_in_))
    _check_array(model, "intercept_", shape)


def _check_scaler(scaler: Any) -> None:
    for name in ("mean_", "scale_"):
        if getattr(scaler, name, None) is not None:
            _check_array(scaler, name, (scaler.n_features_in_,))


def _check_encoder(encoder: Any) -> None:
    """Refuse what would write indicators outside the columns there are: nobody else looks."""
    if not hasattr(encoder, "categories_"):
        return
    state = vars(encoder)
    merged = ("drop", "min_frequency", "max_categories", "_drop_idx_after_grouping")
    if any(state.get(name) is not None for name in merged) or state.get("_infrequent_enabled"):
        raise ValueError("its OneHotEncoder drops or merges categories")
    lengths = [len(part) for part in encoder.categories_]
    if len(lengths) != encoder.n_features_in_ or lengths != encoder._n_features_outs:
        raise ValueError("the categories of its OneHotEncoder do not fit its columns")


def _check_columns(columns: Any) -> None:
    if columns.n_jobs is not None:
        raise ValueError(f"its ColumnTransformer starts processes, n_jobs={columns.n_jobs!r}")


def _check_array(owner: Any, name: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(getattr(owner, name))
    what = f"{name} of the {type(owner).__name__}"
    if array.shape != shape or array.dtype.kind not in "iuf":
        raise ValueError(f"{what} has the shape {array.shape} and should have {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} is not finite")


def _descendants(base: type) -> set[type]:
    below: set[type] = set(base.__subclasses__())
    return below.union(*(_descendants(cls) for cls in below))
