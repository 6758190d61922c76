"""From what a user gives to checked tensors: X, targets, class labels and sample weights.

Everything must be on the device of X, or in host memory as NumPy arrays and lists, from where it is
moved. Tensors that require gradients are detached: a fit is no part of a graph, and its results
carry no gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sorel._lib.devices import as_tensor, is_tensor
from sorel.engines.tensors.engine import out_of_memory
from sorel.engines.tensors.losses import check_served
from sorel.engines.tensors.matrices import Matrix, make_matrix
from sorel.problem.losses import Deviance, Loss


def read_data(X: Any, y: Any, loss: Loss) -> tuple[Matrix, Any, NDArray[Any] | None]:
    """The products with X, the targets beside it, and the labels of a classification problem.

    All of them are checked: an error says what is wrong with them.

    Examples
    --------
    >>> import torch
    >>> from sorel.engines.tensors import read_data
    >>> from sorel.losses import Logistic
    >>> read_data(torch.eye(2), torch.tensor([3, 7]), Logistic())[1:]
    (tensor([-1.,  1.], dtype=torch.float64), array([3, 7]))
    """
    check_served(loss)
    tensor = read_tensor(X)
    with torch.no_grad(), out_of_memory(tensor.shape[0], tensor.device):
        return finite_matrix(tensor), *read_targets(y, loss, tensor)


def finite_matrix(X: Tensor) -> Matrix:
    """The products with X, whose values are checked."""
    matrix = make_matrix(X)
    if not np.isfinite(matrix.column_scale).all():
        raise ValueError(
            f"X has a value that is not finite: {matrix.bad_value()}; drop or impute such rows"
        )
    return matrix


def read_tensor(X: Any) -> Tensor:
    """X as a detached tensor of a shape and a type that the engine takes."""
    tensor = as_tensor(X)
    if tensor.ndim != 2:
        hint = "; reshape one feature with X.reshape(-1, 1)" if tensor.ndim == 1 else ""
        raise ValueError(f"X must be two-dimensional, got shape {tuple(tensor.shape)}{hint}")
    if 0 in tensor.shape:
        raise ValueError(
            f"X is empty: shape {tuple(tensor.shape)}; at least one row and one column"
        )
    if tensor.dtype not in (torch.float64, torch.float32):
        raise TypeError(
            f"X must be float64 or float32, got {tensor.dtype}; convert it with X.double() or "
            "X.float(), which copies it"
        )
    if tensor.layout == torch.strided:
        return tensor.contiguous()
    return tensor if tensor.layout == torch.sparse_csr else tensor.to_sparse_csr()


def read_targets(y: Any, loss: Loss, X: Tensor) -> tuple[Any, NDArray[Any] | None]:
    """Targets as the formulas want them, and the class labels if there are any."""
    tensor = one_column(y, X)
    if isinstance(tensor, np.ndarray):
        return loss.encode(tensor)
    if tensor.is_complex():
        raise ValueError(f"y must be real, got {tensor.dtype}")
    refuse_infinite(tensor)
    if not loss.is_classifier:
        targets = tensor.to(torch.float64).contiguous()
        if isinstance(loss, Deviance):
            _refuse(loss.refused(targets), targets, f"{loss.rule}, got")
        return targets, None
    found, codes = torch.unique(tensor, return_inverse=True)
    classes = found.cpu().numpy()
    # What these classes are good for is decided in one place: two rows of each tell it all.
    _, classes = loss.encode(np.concatenate([classes, classes]))
    if loss.n_outputs(classes) > 1:
        return codes, classes
    return codes.double().mul_(2.0).sub_(1.0), classes


def one_column(y: Any, X: Tensor) -> Any:
    """y with one value for each row of X, as a tensor on its device or as a NumPy array."""
    values = as_tensor(y) if is_tensor(y) else np.asarray(y)
    if is_tensor(y) and values.device != X.device:
        raise ValueError(
            f"X is on {X.device} and y on {values.device}; move one of them, e.g. with "
            f"y.to({str(X.device)!r})"
        )
    shape = tuple(values.shape)
    length = shape[0] if shape else 0
    if length != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows but y has {length} values; they must agree")
    if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise ValueError(f"y must be one-dimensional, got shape {shape}")
    return values[:, 0] if len(shape) == 2 else values


def refuse_infinite(y: Tensor) -> None:
    """Refuse targets that are not finite."""
    _refuse(~torch.isfinite(y), y, "y has a value that is not finite:")


def _refuse(bad: Tensor, y: Tensor, rule: str) -> None:
    if bool(bad.any()):
        first = int(torch.nonzero(bad)[0])
        raise ValueError(f"{rule} y[{first}] = {y[first].item()}; drop or impute such rows")
