"""Whether an array is a torch tensor, or lives on a device and can become one; without torch.

Arrays of other libraries on a device (CuPy, JAX) are taken through DLPack, which copies nothing.
Those in host memory are NumPy's matter: ``np.asarray`` takes them as it always did.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

# DLPack's number for memory that the host can read.
_HOST = 1


def is_tensor(X: Any) -> bool:
    """Whether X is a tensor, or an array on a device.

    Examples
    --------
    >>> import numpy as np
    >>> from sorel._lib.devices import is_tensor
    >>> is_tensor(np.zeros(3)), is_tensor([1.0, 2.0])
    (False, False)
    """
    if isinstance(X, (np.ndarray, str)):
        return False
    # A folder of the user's own may go by this name.
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    if kind is not None and isinstance(X, kind):
        return True
    device = getattr(X, "__dlpack_device__", None)
    return callable(device) and hasattr(X, "__dlpack__") and device()[0] != _HOST


def is_on_device(X: Any) -> bool:
    """Whether X is an array that NumPy cannot read."""
    if not is_tensor(X):
        return False
    device = getattr(X, "device", None)
    return getattr(device, "type", "") != "cpu"


def as_tensor(X: Any) -> Any:
    """X as a tensor that shares its memory and is no part of a graph of gradients."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"{type(X).__name__} lives on a device, which sorel serves through torch; "
            'install it with pip install "sorel[torch]", or pass X as a NumPy array'
        ) from None
    if not isinstance(X, torch.Tensor):
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"{type(X).__module__.split('.')[0]} gave an array on a device, and this torch "
                f"({torch.__version__}) has no CUDA; install a CUDA build of torch, or pass NumPy "
                "arrays"
            )
        X = torch.from_dlpack(X)
    return X.detach()


def to_numpy(X: Any) -> Any:
    """Host copies of tensors; everything else as it is."""
    return as_tensor(X).cpu().numpy() if is_tensor(X) else X


def like(values: Any, X: Any) -> Any:
    """A tensor as an array of the library that X belongs to."""
    name = type(X).__module__.split(".")[0]
    if name == "torch" or isinstance(X, type(values)):
        return values
    return importlib.import_module(name).from_dlpack(values)
