"""Data as the user gives them, checked once and made ready for an engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.devices import is_on_device, is_tensor, to_numpy
from sorel._lib.inputs import check_meaning, check_numbers
from sorel._lib.threads import thread_count
from sorel.engines import trusting_engine
from sorel.engines.base import Engine, FloatArray, Spec
from sorel.engines.centered import CenteredMatrix
from sorel.engines.csr import checked_csr
from sorel.engines.rows import RowSource, open_data
from sorel.problem.losses import Loss
from sorel.problem.risks import Deviation, Max, Mixture, Risk, normalised_sample_weight

# Bytes of rows on disk that are held in memory all the same.
WORTH_STREAMING = 256 << 20


class CheckedData(NamedTuple):
    """What a problem is made from.

    Attributes
    ----------
    make : callable
        Makes the engine from X and the spec.
    X, spec
        The checked data.
    targets : array
        The encoded targets before an offset was taken off.
    weight : array or None
        Sample weights that sum to 1; None where all are alike.
    """

    make: Callable[[Any, Spec], Engine]
    X: Any
    spec: Spec
    targets: Any
    weight: FloatArray | None


def check_data(
    X: Any,
    y: Any,
    risk: Risk,
    loss: Loss,
    fit_intercept: bool,
    sample_weight: ArrayLike | None,
    offset: ArrayLike | None,
    n_jobs: int | None,
    make: Callable[[Any, Spec], Engine] | None,
) -> CheckedData:
    """The data of a problem, or an error that says what is wrong with them."""
    if n_jobs is not None:
        thread_count(n_jobs)  # refuses what is not a number of threads
    if make is None and is_tensor(X):
        # Torch takes longer to import than all the rest.
        from sorel.engines.tensors import TensorEngine, read_data

        X, targets, classes = read_data(X, y, loss)
        make = TensorEngine
    else:
        _check_meaning_of_targets(y, loss)
        if sample_weight is not None:
            check_numbers(sample_weight, "sample_weight")
        if make is None:
            check_numbers(X, "X")
            source, y = open_data(X, y)
            X = check_matrix(X) if source is None else _check_source(X, source)
            make = trusting_engine
        targets, classes = _encode(loss, y, int(X.shape[0]))
    weight = _check_sample_weight(sample_weight, int(X.shape[0]))
    added = None if offset is None else check_offset(offset, loss, int(X.shape[0]))
    shift, error, given = 0.0, 0.0, targets
    if fit_intercept and loss.translates:
        targets, shift, error = _centred(targets, weight)
    counted = counting(weight, risk)
    spec = Spec(
        targets, loss, risk, classes, bool(fit_intercept), counted, n_jobs, shift, error, added
    )
    return CheckedData(make, X, spec, given, weight)


def target_offset(low: float, high: float, mean: float) -> tuple[float, float]:
    """What to take off targets of this range so that they keep their digits, and its rounding."""
    offset = min(max(mean, low), high)
    reach = max(high - offset, offset - low)
    if offset == 0.0 or not math.isfinite(reach):
        return 0.0, 0.0
    return offset, 2.0**-53 * reach


def _centred(targets: Any, weight: FloatArray | None) -> tuple[Any, float, float]:
    """Targets less their offset, the offset, and what that rounds them by."""
    values = to_numpy(targets)
    if weight is not None:
        values = values[weight > 0.0]
        weight = weight[weight > 0.0]
    # NumPy's average adds up products, and its mean pairs of numbers.
    mean = values.mean() if weight is None else np.average(values, weights=weight)
    offset, error = target_offset(float(values.min()), float(values.max()), float(mean))
    return targets - offset if offset else targets, offset, error


def _check_meaning_of_targets(y: Any, loss: Loss) -> None:
    """Refuse masks, times and texts, though labels of a classification may be texts."""
    if loss.is_classifier:
        check_meaning(y, "y")
        return
    try:
        check_numbers(y, "y")
    except ValueError as error:
        if "texts" not in str(error):
            raise
        raise ValueError(
            f"{error}, or set loss='logistic' or loss='multinomial' if they are labels"
        ) from None


def _encode(loss: Loss, y: Any, n: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if is_on_device(y):
        raise ValueError(
            f"X is in host memory and y on {getattr(y, 'device', 'a device')}; move one of them, "
            "e.g. with y.cpu()"
        )
    length = len(np.asarray(y)) if np.ndim(y) else 0
    if length != n:
        raise ValueError(f"X has {n} rows but y has {length} values; they must agree")
    return loss.encode(y)


def check_offset(offset: Any, loss: Loss, n: int) -> FloatArray:
    """An offset of the margins as an array of n finite numbers, for a loss that takes one."""
    if loss.link != "log":
        remedy = "subtract it from y" if loss.translates else "leave it out"
        raise ValueError(
            "offset is for losses under a log link, 'poisson' and 'gamma', where it is the "
            f"logarithm of an exposure, got loss={loss.name!r}; {remedy}"
        )
    check_numbers(offset, "offset")
    values = np.asarray(to_numpy(offset), dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"X has {n} rows but offset has shape {values.shape}; they must agree")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(
            f"offset has a value that is not finite: offset[{bad[0]}] = {values[bad[0]]}; as the "
            "logarithm of an exposure it needs one above 0: drop such rows"
        )
    return values


def check_margin_offset(engine: Engine) -> None:
    """Refuse an offset where points would not have it."""
    if engine.spec.margin_offset is not None and engine.obstacle("margin_offset") is not None:
        raise ValueError(
            f"{type(engine).__name__} does not serve an offset, which takes X as a NumPy array, a "
            "scipy sparse matrix or rows on disk"
        )


def check_affine(engine: Engine) -> None:
    """Refuse what has no minimum, or is not convex, with losses that have no lower bound."""
    spec = engine.spec
    if isinstance(spec.risk, Deviation):
        if not spec.loss.affine:
            raise ValueError(
                f"{spec.risk!r} needs an affine loss, since a deviation falls where losses rise: "
                f"with the {spec.loss.name} loss it is not convex; use loss='linear', or the risk "
                f"{spec.risk.risk!r}"
            )
        if engine.obstacle("deviations") is not None:
            raise ValueError(f"{type(engine).__name__} does not serve {spec.risk!r}")
    if spec.loss.affine and spec.fit_intercept:
        why = "has no minimum in an intercept: all losses fall with it, by the same amount"
        if isinstance(spec.risk, Deviation):
            why = "does not depend on an intercept"
        raise ValueError(
            f"{spec.risk!r} of the {spec.loss.name} loss {why}; set fit_intercept=False, and "
            "choose the intercept afterwards, e.g. a quantile of the residuals"
        )


def check_matrix(X: Any) -> Any:
    """X as a finite two-dimensional matrix, copied only where its type or strides demand it."""
    import scipy.sparse

    if isinstance(X, CenteredMatrix):
        return X
    if scipy.sparse.issparse(X):
        matrix = checked_csr(X) if X.ndim == 2 else X
        values = matrix.data
    else:
        matrix = X if isinstance(X, np.ndarray) else np.asarray(X)
        values = matrix
    if matrix.ndim != 2:
        hint = "; reshape one feature with X.reshape(-1, 1)" if matrix.ndim == 1 else ""
        raise ValueError(f"X must be two-dimensional, got shape {matrix.shape}{hint}")
    if matrix.shape[0] == 0 or matrix.shape[1] == 0:
        raise ValueError(f"X is empty: shape {matrix.shape}; at least one row and one column")
    if values.dtype not in (np.float64, np.float32):
        try:
            if values.dtype.kind not in "fiubO":
                raise TypeError
            matrix = matrix.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"X must be numeric, got dtype {values.dtype}; encode text columns first"
            ) from None
        values = matrix.data if scipy.sparse.issparse(matrix) else matrix
    if not _all_finite(values):
        if scipy.sparse.issparse(matrix):
            raise ValueError("X has values that are not finite; drop or impute them")
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"X has a value that is not finite: X[{row}, {column}] = {values[row, column]}; "
            "drop or impute such rows"
        )
    if isinstance(matrix, np.ndarray) and not (
        matrix.flags.c_contiguous or matrix.flags.f_contiguous
    ):
        matrix = np.ascontiguousarray(matrix)
    return matrix


def _check_source(X: Any, source: RowSource) -> Any:
    """Rows on disk, found to be finite; as an array where that is small."""
    if source.nbytes > WORTH_STREAMING:
        source.check_finite()
        return source
    if isinstance(X, np.ndarray):
        return check_matrix(X)
    source.check_finite()
    matrix = source.read(0, source.n_samples)
    source.close()
    return matrix


def _all_finite(values: NDArray[Any]) -> bool:
    # The sum is finite unless a value is not, or the sum overflows: look closely only then.
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(values, dtype=np.float64)):
            return True
    return bool(np.all(np.isfinite(values)))


def counting(weight: FloatArray | None, risk: Risk) -> FloatArray | None:
    """The weights that a risk knows of: the maximum tells no more than whether there is one.

    Steps of the weighting are measured against these, and those of samples that weigh next to
    nothing would be small for no reason.
    """
    if weight is None or not _is_maximum(risk):
        return weight
    used = weight > 0.0
    return None if used.all() else used / float(np.count_nonzero(used))


def _is_maximum(risk: Risk) -> bool:
    """Whether a risk is the maximum, if only as a mixture of nothing else."""
    if isinstance(risk, Mixture):
        return all(map(_is_maximum, risk.components))
    return isinstance(risk, Max)


def _check_sample_weight(sample_weight: ArrayLike | None, n: int) -> FloatArray | None:
    """Weights that sum to 1, or None where all are alike: then the faster loops serve."""
    if sample_weight is None:
        return None
    weight = np.asarray(to_numpy(sample_weight))
    if weight.ndim == 0:
        weight = np.full(n, weight)
    weight = normalised_sample_weight(weight, n)
    return None if np.all(weight == weight[0]) else weight
