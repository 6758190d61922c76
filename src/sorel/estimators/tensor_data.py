"""Tensors in, tensors out: what the estimators do with data on a device.

Fitted attributes are NumPy arrays wherever X is. Predictions belong to the library and the device
of the X that they are made for, and are float64; labels that are texts are no tensors, and stay
NumPy arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_n_features

from sorel._lib.devices import like, to_numpy
from sorel.engines.tensors.inputs import finite_matrix, one_column, read_tensor, refuse_infinite
from sorel.engines.tensors.losses import check_served
from sorel.engines.tensors.matrices import make_matrix
from sorel.estimators.base import check_weights
from sorel.problem.losses import Loss

FloatArray = NDArray[np.float64]


def read_arrays(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, FloatArray | None]:
    """X as a tensor, y as one or as an array, weights as an array; all of the same length."""
    matrix = read_tensor(X)
    y = one_column(y, matrix)
    return matrix, y, check_weights(to_numpy(sample_weight), matrix)


def distinct(y: Any) -> tuple[NDArray[Any], Any]:
    """The labels in a tensor, sorted, and their codes on its device."""
    refuse_infinite(y)
    labels, codes = torch.unique(y, return_inverse=True)
    return labels.cpu().numpy(), codes


def host_rows(X: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows as a NumPy array or a scipy one."""
    taken = make_matrix(X).take(torch.from_numpy(rows).to(X.device)).cpu()
    if taken.layout == torch.strided:
        return taken.numpy()
    parts = taken.values(), taken.col_indices(), taken.crow_indices()
    return scipy.sparse.csr_array(tuple(part.numpy() for part in parts), shape=tuple(taken.shape))


def scores(model: Any, X: Any) -> Any:
    """Margins of the rows, on their device."""
    tensor = read_tensor(X)
    _check_n_features(model, tensor, reset=False)
    device = tensor.device
    coef = torch.from_numpy(np.ascontiguousarray(model.coef_.T)).to(device)
    intercept = torch.as_tensor(model.intercept_, dtype=torch.float64, device=device)
    return finite_matrix(tensor).margins(coef) + intercept


def predict_numbers(loss: Loss, margins: Any, X: Any) -> Any:
    """What the margins predict, in the library of X."""
    check_served(loss)  # refuses a loss of the user's own, which may predict as it likes
    return like(margins.exp_() if loss.link == "log" else margins, X)


def predict_labels(classes: NDArray[Any], margins: Any, X: Any) -> Any:
    """The labels of the largest margins: in the library of X, where they are numbers."""
    codes = margins.argmax(dim=1) if margins.ndim == 2 else (margins > 0.0).long()
    if classes.dtype.kind not in "iufb":
        return classes[codes.cpu().numpy()]
    return like(torch.from_numpy(classes).to(codes.device)[codes], X)


def probabilities(margins: Any, X: Any, *, logarithms: bool) -> Any:
    """Probabilities of the classes, or their logarithms, in the library of X."""
    if margins.ndim == 1:
        # A sigmoid is the softmax of half the margin and its negative.
        margins = torch.stack([-0.5 * margins, 0.5 * margins], dim=1)
    function = torch.log_softmax if logarithms else torch.softmax
    return like(function(margins, dim=1), X)
